/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what an op writes. */
#include "executor/written.h"

#include "base/size.h"
#include "schedule/layout.h"
#include "schedule/operands.h"
#include "schedule/slices.h"
#include "schedule/tags.h"

#include <math.h>
#include <string.h>

double tdm_value_of(const void *at, enum tdm_dtype dtype)
{
    float single;
    double wide;
    uint16_t half;
    int32_t whole;
    switch (dtype) {
    case TDM_DTYPE_FP32:
        memcpy(&single, at, sizeof(single));
        return (double)single;
    case TDM_DTYPE_BF16:
        memcpy(&half, at, sizeof(half));
        return (double)tdm_bf16_to_float(half);
    case TDM_DTYPE_FP64:
        memcpy(&wide, at, sizeof(wide));
        return wide;
    case TDM_DTYPE_INT32:
        memcpy(&whole, at, sizeof(whole));
        return whole;
    case TDM_DTYPE_REMAINDER16:
        memcpy(&half, at, sizeof(half));
        return half;
    default:
        return NAN;
    }
}

bool tdm_is_written(const struct tdm_access *access)
{
    return access->buffer != TDM_NONE && access->mode != TDM_READ;
}

bool tdm_is_of_part(const struct tdm_access *access, const struct tdm_tensor *tensor)
{
    return access->part == TDM_PART_ALL || tdm_part_of(tensor->role) == access->part;
}

/* Bytes of a slot that an op may write. */
static uint64_t worked_bytes(const struct tdm_op *op, const struct tdm_access *access,
                             uint64_t slot_bytes)
{
    bool all = op->kind == TDM_OP_HEAD || op->kind == TDM_OP_LOSS || op->kind == TDM_OP_HEAD_GRAD ||
               access->after.content == TDM_KVPAGES || access->after.content == TDM_DKVPAGES ||
               access->after.content == TDM_PASSING_DKV;
    return all || access->bytes > slot_bytes ? slot_bytes : access->bytes;
}

/* The elements of a unit that a slot holds: all, but of a state that is stored slice by slice those
 * of one slice, and of what each rank has its part of, that part. */
static struct tdm_slice held_elements(const struct tdm_launch *launch,
                                      const struct tdm_access *access, uint32_t slot,
                                      uint64_t slot_elements)
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    const uint32_t unit = access->after.layer, rank = launch->program->rank;
    const uint64_t all = schedule->model->units[unit].elements;
    if (tdm_is_sliced(schedule, access->after.content, unit))
        return tdm_update_range(schedule, unit, rank, access->after.chunk + slot,
                                tdm_slice_count(schedule, unit));
    if (tdm_is_of_state(access->after.content) || slot_elements < all)
        return tdm_rank_part(schedule, unit, rank);
    return (struct tdm_slice){0, all};
}

uint32_t tdm_list_written(const struct tdm_launch *launch, uint32_t operand, uint32_t slot,
                          struct tdm_written written[TDM_WRITTEN_MOST])
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    const struct tdm_model *model = schedule->model;
    const struct tdm_op *op = launch->op;
    const struct tdm_access *access = &op->access[operand];
    enum tdm_dtype dtype = launch->program->buffers[access->buffer].dtype;
    uint64_t slot_bytes = launch->program->buffers[access->buffer].slot_bytes;
    uint64_t size = tdm_dtype_bytes(dtype);
    struct tdm_written plain = {.operand = operand, .slot = slot, .dtype = dtype};
    uint32_t count = 0;
    if (tdm_content_is_of_unit(access->after.content)) {
        const struct tdm_unit *unit = &model->units[access->after.layer];
        const struct tdm_slice held = held_elements(launch, access, slot, slot_bytes / size);
        for (uint32_t t = 0; t < unit->tensor_count && count < TDM_WRITTEN_MOST; t++) {
            const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + t];
            const uint64_t first = tdm_most(tensor->offset, held.first);
            const uint64_t end =
                tdm_least(tensor->offset + tensor->elements, held.first + held.elements);
            if (!tdm_is_of_part(access, tensor) || first >= end)
                continue;
            written[count] = plain;
            written[count].tensor = tensor;
            written[count].offset = (first - held.first) * size;
            written[count++].elements = end - first;
        }
        return count;
    }
    written[0] = plain;
    written[0].elements = worked_bytes(op, access, slot_bytes) / size;
    if (access->after.content == TDM_QUERIES) { /* Q and dO, and the facts of their rows */
        const uint64_t queries = op->kind == TDM_OP_HOP
                                     ? launch->program->chunks[access->after.chunk].tokens
                                     : op->tokens;
        written[0].elements = 2 * queries * model->query_heads * model->head_dim;
        written[1] = plain;
        written[1].lse = true;
        written[1].dtype = TDM_DTYPE_FP32;
        written[1].offset = tdm_lse_offset(schedule, TDM_QUERIES, queries);
        written[1].elements = 2 * queries * model->query_heads;
        return 2;
    }
    const bool merged = op->kind == TDM_OP_MERGE && (access->after.content == TDM_OUT_SUM ||
                                                     access->after.content == TDM_ATTENTION_OUT);
    if (op->kind != TDM_OP_ATTENTION && !merged)
        return 1;
    uint64_t rows = op->tokens * model->query_heads;
    written[0].elements = rows * model->head_dim;
    written[1] = plain;
    written[1].lse = true;
    written[1].dtype = TDM_DTYPE_FP32;
    written[1].offset = tdm_lse_offset(schedule, access->after.content, op->tokens);
    written[1].elements = rows;
    return 2;
}
