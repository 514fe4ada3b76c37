/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between places, and zeros. */
#include "executor/cpu/cpu.h"

#include <string.h>

enum { TASK_BYTES = 1 << 20 };

struct copy {
    unsigned char *to;
    const unsigned char *from;
    uint64_t bytes;
};

static void copy_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct copy *copy = context;
    uint64_t first = index * TASK_BYTES;
    (void)thread_scratch;
    memcpy(copy->to + first, copy->from + first, tdm_least(TASK_BYTES, copy->bytes - first));
}

enum tdm_status tdm_cpu_copy(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    (void)err;
    const struct tdm_operand *from = &launch->operand[0];
    struct copy copy = {launch->operand[1].data, from->data, launch->op->access[0].bytes};
    if (from->slots > 1) { /* slots are equal; the gaps between them go along */
        struct tdm_tag what = launch->op->access[0].before;
        uint32_t last = what.chunk + from->slots - 1;
        copy.bytes = (from->slots - 1) * from->slot_bytes +
                     tdm_chunks_bytes(launch->program, what.content, last, last + 1);
    }
    tdm_cpu_for(executor, (copy.bytes + TASK_BYTES - 1) / TASK_BYTES, copy_task, &copy);
    return TDM_OK;
}

/* Of a unit: the tensors of the part. Of anything else: all meaningful bytes. */
enum tdm_status tdm_cpu_zero(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    const struct tdm_model *model = launch->program->schedule->model;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *slot = &launch->operand[0];
    (void)executor;
    (void)err;
    enum tdm_content content = op->access[0].after.content;
    if (content < TDM_UNIT_WEIGHTS || content > TDM_UNIT_GRADIENT || op->part == TDM_PART_ALL) {
        memset(slot->data, 0, op->access[0].bytes);
        return TDM_OK;
    }
    const struct tdm_unit *unit = &model->units[op->layer];
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + i];
        if (tdm_part_of(tensor->role) == op->part)
            memset(tdm_operand_at(slot, tensor->offset), 0,
                   tensor->elements * tdm_dtype_bytes(slot->dtype));
    }
    return TDM_OK;
}
