/* SPDX-License-Identifier: Apache-2.0 */
/* The walk: items of a program become launches on a backend. */
#include "executor/walk.h"

#include "schedule/order.h"

#include <stdlib.h>

struct tdm_walk {
    const struct tdm_program *program;
    const struct tdm_arenas *arenas;
    struct tdm_order_tracker *order;
    /* of the step under way */
    const struct tdm_step *step;
    struct tdm_observer *observer;
    const volatile sig_atomic_t *stop;
};

enum tdm_status tdm_walk_new(const struct tdm_program *program, const struct tdm_arenas *arenas,
                             struct tdm_walk **out, struct tdm_error *err)
{
    struct tdm_walk *walk = calloc(1, sizeof(*walk));
    if (walk == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a walk");
    walk->program = program;
    walk->arenas = arenas;
    enum tdm_status status = tdm_order_new(program, &walk->order, err);
    if (status != TDM_OK) {
        free(walk);
        return status;
    }
    *out = walk;
    return TDM_OK;
}

void tdm_walk_free(struct tdm_walk *walk)
{
    if (walk == NULL)
        return;
    tdm_order_free(walk->order);
    free(walk);
}

static void resolve(const struct tdm_walk *walk, const struct tdm_access *access,
                    struct tdm_operand *operand)
{
    if (access->buffer == TDM_NONE) {
        *operand = (struct tdm_operand){0};
        return;
    }
    const struct tdm_buffer *buffer = &walk->program->buffers[access->buffer];
    *operand =
        (struct tdm_operand){.data = tdm_arenas_slot(walk->arenas, buffer, access->first_slot),
                             .dtype = buffer->dtype,
                             .mode = access->mode,
                             .slots = access->slots,
                             .slot_bytes = buffer->slot_bytes};
}

static struct tdm_launch launch_of(const struct tdm_walk *walk, const struct tdm_op *op)
{
    struct tdm_launch launch = {.program = walk->program,
                                .op = op,
                                .step = walk->step,
                                .scratch = tdm_arenas_scratch(walk->arenas, walk->program)};
    for (uint32_t i = 0; i < op->access_count; i++)
        resolve(walk, &op->access[i], &launch.operand[i]);
    return launch;
}

static enum tdm_status launch_op(struct tdm_walk *walk, const struct tdm_op *op,
                                 const struct tdm_waits *waits, struct tdm_error *err)
{
    const struct tdm_backend *backend = walk->arenas->backend;
    struct tdm_executor *executor = walk->arenas->executor;
    enum tdm_status status = TDM_OK;

    for (int lane = 0; lane < TDM_LANES && status == TDM_OK; lane++)
        if (backend->wait != NULL && waits->lane_position[lane] > 0)
            status = backend->wait(executor, op->lane, (enum tdm_lane)lane,
                                   waits->lane_position[lane], err);
    if (status != TDM_OK)
        return status;
    if (backend->run[op->kind] == NULL)
        return tdm_fail(err, TDM_INPUT, "backend \"%s\" does not run %s", backend->name,
                        tdm_op_kind_name(op->kind));

    struct tdm_launch launch = launch_of(walk, op);
    if (walk->observer != NULL)
        tdm_observer_launch(walk->observer, op);
    return backend->run[op->kind](executor, &launch, err);
}

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct tdm_walk *walk = self;
    struct tdm_waits waits;
    tdm_order_push(walk->order, item, &waits);
    if (item->kind != TDM_RUN)
        return TDM_OK;
    if (walk->stop != NULL && *walk->stop)
        return tdm_fail(err, TDM_INTERRUPTED, "interrupted before op %llu of step %llu",
                        (unsigned long long)item->op->number,
                        (unsigned long long)walk->step->number);
    return launch_op(walk, item->op, &waits, err);
}

static enum tdm_status prepare_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct tdm_walk *walk = self;
    if (item->kind != TDM_RUN)
        return TDM_OK;
    struct tdm_launch launch = launch_of(walk, item->op);
    return walk->arenas->backend->prepare(walk->arenas->executor, &launch, err);
}

enum tdm_status tdm_walk_prepare(struct tdm_walk *walk, struct tdm_error *err)
{
    const struct tdm_backend *backend = walk->arenas->backend;
    const struct tdm_step step = {.number = 1};
    if (backend->prepare == NULL)
        return TDM_OK;
    walk->step = &step;
    enum tdm_status status = tdm_program_emit(walk->program, prepare_item, walk, err);
    walk->step = NULL;
    enum tdm_status finished =
        backend->finish(walk->arenas->executor, status == TDM_OK ? err : NULL);
    return status == TDM_OK ? finished : status;
}

enum tdm_status tdm_walk_step(struct tdm_walk *walk, const struct tdm_step *step,
                              struct tdm_observer *observer, const volatile sig_atomic_t *stop,
                              struct tdm_error *err)
{
    const struct tdm_backend *backend = walk->arenas->backend;
    walk->step = step;
    walk->observer = observer;
    walk->stop = stop;
    tdm_order_reset(walk->order);
    if (observer != NULL)
        tdm_observer_reset(observer);
    enum tdm_status status = tdm_program_emit(walk->program, take_item, walk, err);
    enum tdm_status finished =
        backend->finish == NULL
            ? TDM_OK
            : backend->finish(walk->arenas->executor, status == TDM_OK ? err : NULL);
    return status == TDM_OK ? finished : status;
}
