/* SPDX-License-Identifier: Apache-2.0 */
/* Observer: turns the launches of a step back into accesses to slots. */
#include "executor/observer.h"

#include <stdlib.h>

struct tdm_observer {
    const struct tdm_program *program;
    const struct tdm_arenas *arenas;
    struct tdm_values *values;
};

enum tdm_status tdm_observer_new(const struct tdm_program *program, const struct tdm_arenas *arenas,
                                 struct tdm_observer **out, struct tdm_error *err)
{
    struct tdm_observer *observer = calloc(1, sizeof(*observer));
    if (observer == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for observing a step");
    observer->program = program;
    observer->arenas = arenas;
    enum tdm_status status = tdm_values_new(program, &observer->values, err);
    if (status != TDM_OK) {
        free(observer);
        return status;
    }
    *out = observer;
    return TDM_OK;
}

void tdm_observer_free(struct tdm_observer *observer)
{
    if (observer == NULL)
        return;
    tdm_values_free(observer->values);
    free(observer);
}

void tdm_observer_reset(struct tdm_observer *observer)
{
    tdm_values_reset(observer->values);
}

struct tdm_values *tdm_observer_values(struct tdm_observer *observer)
{
    return observer->values;
}

/* Finds the slots that a launch uses, from the address in its operand. */
static enum tdm_status read_back(const struct tdm_observer *observer, const struct tdm_op *op,
                                 const struct tdm_operand *operand, struct tdm_access *access,
                                 struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &observer->program->buffers[access->buffer];
    const char *base = observer->arenas->base[buffer->place];
    access->mode = operand->mode;
    access->slots = operand->slots;
    if (base == NULL)
        return TDM_OK;
    /* an address before the buffer wraps around to a number that is far too large */
    uint64_t offset = (uint64_t)((const char *)operand->data - base) - buffer->offset;
    uint64_t slot = offset / buffer->slot_bytes;
    if (offset % buffer->slot_bytes != 0 || slot >= buffer->slots ||
        operand->slots > buffer->slots - slot)
        return tdm_fail(err, TDM_INTERNAL, "op %llu was launched on memory outside \"%s\"",
                        (unsigned long long)op->number, buffer->name);
    access->first_slot = (uint32_t)slot;
    return TDM_OK;
}

enum tdm_status tdm_observer_launch(struct tdm_observer *observer, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    struct tdm_op op = *launch->op;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < op.access_count && status == TDM_OK; i++)
        if (op.access[i].buffer != TDM_NONE)
            status = read_back(observer, launch->op, &launch->operand[i], &op.access[i], err);
    if (status == TDM_OK)
        tdm_values_take(observer->values, &op);
    return status;
}
