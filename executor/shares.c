/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks and gradients in the operands of team ops. */
#include "executor/shares.h"

#include "ops/team.h"
#include "schedule/layout.h"

void *tdm_share_of_chunk(const struct tdm_launch *launch, uint32_t chunk)
{
    for (uint32_t i = 0; i < launch->op->access_count; i++) {
        const struct tdm_access *access = &launch->op->access[i];
        uint32_t first = access->after.chunk;
        if (access->buffer != TDM_NONE && chunk >= first && chunk < first + access->slots)
            return (unsigned char *)launch->operand[i].data +
                   (chunk - first) * launch->operand[i].slot_bytes;
    }
    return NULL;
}

uint64_t tdm_share_chunk_bytes(const struct tdm_launch *launch, enum tdm_content content,
                               uint32_t chunk)
{
    return tdm_chunks_bytes(launch->program, content, chunk, chunk + 1);
}

struct tdm_range tdm_share_range(const struct tdm_launch *launch)
{
    const struct tdm_access *access = &launch->op->access[TDM_REDUCE_ALL_SUM];
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_unit *unit = &weights->units[access->after.layer];
    uint64_t first = unit->elements, end = 0;
    if (access->after.content != TDM_UNIT_GRADIENT)
        return (struct tdm_range){0, access->bytes / tdm_dtype_bytes(sum->dtype)};
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (access->part != TDM_PART_ALL &&
            tdm_part_of(tensor->role) != (enum tdm_part)access->part)
            continue;
        first = tensor->offset < first ? tensor->offset : first;
        end = tensor->offset + tensor->elements;
    }
    return (struct tdm_range){first, end > first ? end - first : 0};
}

struct tdm_range tdm_share_slice(struct tdm_range range, uint32_t rank, uint32_t ranks)
{
    uint64_t blocks = (range.count + TDM_SHARE_ALIGN - 1) / TDM_SHARE_ALIGN;
    uint64_t begin = blocks * rank / ranks * TDM_SHARE_ALIGN;
    uint64_t end = blocks * (rank + 1) / ranks * TDM_SHARE_ALIGN;
    end = end < range.count ? end : range.count;
    begin = begin < end ? begin : end;
    return (struct tdm_range){range.first + begin, end - begin};
}
