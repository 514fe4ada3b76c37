/* SPDX-License-Identifier: Apache-2.0 */
/* Copies bytes between places, and sets slots to zero. */
#include "executor/cpu/cpu.h"

#include "executor/copied.h"
#include "ops/move.h"

#include <string.h>

enum { TASK_BYTES = 1 << 20 };

static void copy_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct tdm_copied *copied = context;
    uint64_t first = index * TASK_BYTES;
    (void)thread_scratch;
    memcpy((unsigned char *)copied->to + first, (const unsigned char *)copied->from + first,
           tdm_least(TASK_BYTES, copied->bytes - first));
}

enum tdm_status tdm_cpu_copy(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    struct tdm_copied copied = tdm_copied_by(launch);
    (void)err;
    tdm_cpu_for(executor, (copied.bytes + TASK_BYTES - 1) / TASK_BYTES, copy_task, &copied);
    return TDM_OK;
}

/* Zeroes the tensors of one part of a unit, or all meaningful bytes of any other content. */
enum tdm_status tdm_cpu_zero(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *slot = &launch->operand[TDM_ZERO_SLOT];
    (void)executor;
    (void)err;
    enum tdm_content content = op->access[TDM_ZERO_SLOT].after.content;
    if (content < TDM_UNIT_WEIGHTS || content > TDM_UNIT_GRADIENT || op->part == TDM_PART_ALL) {
        memset(slot->data, 0, op->access[TDM_ZERO_SLOT].bytes);
        return TDM_OK;
    }
    const struct tdm_unit *unit = &weights->units[op->layer];
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (tdm_part_of(tensor->role) == op->part)
            memset(tdm_operand_at(slot, tensor->offset), 0,
                   tensor->elements * tdm_dtype_bytes(slot->dtype));
    }
    return TDM_OK;
}
