/* SPDX-License-Identifier: Apache-2.0 */
/* Says which bytes a copy op moves, and between which addresses. */
#include "executor/copied.h"

#include "ops/move.h"
#include "schedule/layout.h"
#include "schedule/tags.h"

/* The bytes of one part of a unit. The tensors of a part lie one after the other. */
static struct tdm_copied part_of_unit(const struct tdm_launch *launch)
{
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_access *access = &launch->op->access[TDM_COPY_FROM];
    const struct tdm_operand *from = &launch->operand[TDM_COPY_FROM];
    const struct tdm_unit *unit = &weights->units[access->before.layer];
    uint64_t first = unit->elements, end = 0;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (tdm_part_of(tensor->role) != (enum tdm_part)access->part)
            continue;
        first = tensor->offset < first ? tensor->offset : first;
        end = tensor->offset + tensor->elements;
    }
    return (struct tdm_copied){tdm_operand_at(&launch->operand[TDM_COPY_TO], first),
                               tdm_operand_at(from, first),
                               end > first ? (end - first) * tdm_dtype_bytes(from->dtype) : 0};
}

/* A rank's part of a gradient or of weights. The home of sliced weights has that part alone. */
static struct tdm_copied rank_part(const struct tdm_launch *launch, uint64_t bytes)
{
    const struct tdm_operand *from = &launch->operand[TDM_COPY_FROM];
    const struct tdm_operand *to = &launch->operand[TDM_COPY_TO];
    const uint64_t first = launch->op->first_element;
    return (struct tdm_copied){tdm_operand_at(to, to->slot_bytes < from->slot_bytes ? 0 : first),
                               tdm_operand_at(from, from->slot_bytes < to->slot_bytes ? 0 : first),
                               bytes};
}

struct tdm_copied tdm_copied_by(const struct tdm_launch *launch)
{
    const struct tdm_access *access = &launch->op->access[TDM_COPY_FROM];
    const struct tdm_operand *from = &launch->operand[TDM_COPY_FROM];
    uint64_t bytes = access->bytes;
    if (tdm_content_is_of_unit(access->before.content) && access->part < TDM_PARTS)
        return part_of_unit(launch);
    if (launch->op->elements > 0)
        return rank_part(launch, bytes);
    if (from->slots > 1) { /* slots are equal; the gaps between them are copied too */
        uint32_t last = access->before.chunk + from->slots - 1;
        bytes = (from->slots - 1) * from->slot_bytes +
                tdm_chunks_bytes(launch->program, access->before.content, last, last + 1);
    }
    return (struct tdm_copied){launch->operand[TDM_COPY_TO].data, from->data, bytes};
}
