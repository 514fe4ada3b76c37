/* SPDX-License-Identifier: Apache-2.0 */
/* Lockstep: compares a backend with the cpu backend, op by op. */
#include "tests/support/lockstep_compare.h"

#include "schedule/learning_rate.h"
#include "schedule/operands.h"
#include "schedule/program.h"
#include "schedule/slices.h"
#include "schedule/tags.h"
#include "tests/support/step_data.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 65536u

/* ---- both arenas ---- */

static enum tdm_status poison(struct lockstep_walk *w, const struct tdm_buffer *buffer,
                              uint64_t offset, uint64_t bytes, struct tdm_error *err)
{
    memset((unsigned char *)w->cpu.base[buffer->place] + offset, POISON, bytes);
    return lockstep_upload(w, buffer->place, offset, bytes, err);
}

/* ---- an op's operands ---- */

static bool overlap(const struct tdm_access *a, const struct tdm_access *b)
{
    return a->buffer == b->buffer && a->first_slot < b->first_slot + b->slots &&
           b->first_slot < a->first_slot + a->slots;
}

/* Does the op write to this operand? */
static bool changes(const struct tdm_op *op, const struct tdm_access *access)
{
    for (uint32_t i = 0; i < op->access_count; i++)
        if (tdm_is_written(&op->access[i]) && overlap(access, &op->access[i]))
            return true;
    return false;
}

/* Does the op read what this operand holds? */
static bool in_place(const struct tdm_op *op, const struct tdm_access *write)
{
    for (uint32_t i = 0; i < op->access_count; i++)
        if (op->access[i].buffer != TDM_NONE && op->access[i].mode != TDM_WRITE &&
            overlap(write, &op->access[i]))
            return true;
    return false;
}

static struct tdm_launch launch_in(const struct lockstep_walk *w, const struct tdm_arenas *arenas,
                                   const struct tdm_op *op)
{
    struct tdm_launch launch = {.program = w->program,
                                .op = op,
                                .step = &w->step,
                                .scratch = tdm_arenas_scratch(arenas, w->program)};
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE)
            continue;
        const struct tdm_buffer *buffer = &w->program->buffers[access->buffer];
        launch.operand[i] =
            (struct tdm_operand){.data = tdm_arenas_slot(arenas, buffer, access->first_slot),
                                 .dtype = buffer->dtype,
                                 .mode = access->mode,
                                 .slots = access->slots,
                                 .slot_bytes = buffer->slot_bytes};
    }
    return launch;
}

/* Sets *launch to the cpu's operands before the op. Those that the op changes are copied. */
static enum tdm_status keep_operands(struct lockstep_walk *w, const struct tdm_op *op,
                                     struct tdm_launch *launch, struct tdm_error *err)
{
    uint64_t bytes = 0, at = 0;
    *launch = launch_in(w, &w->cpu, op);
    for (uint32_t i = 0; i < op->access_count; i++)
        if (launch->operand[i].data != NULL && changes(op, &op->access[i]))
            bytes += launch->operand[i].slots * launch->operand[i].slot_bytes;
    if (bytes > w->before_bytes) {
        free(w->before);
        w->before = malloc(bytes);
        w->before_bytes = w->before == NULL ? 0 : bytes;
        if (w->before == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for operands");
    }
    for (uint32_t i = 0; i < op->access_count; i++) {
        struct tdm_operand *operand = &launch->operand[i];
        if (operand->data == NULL || !changes(op, &op->access[i]))
            continue;
        uint64_t of_operand = operand->slots * operand->slot_bytes;
        memcpy(w->before + at, operand->data, of_operand);
        operand->data = w->before + at;
        at += of_operand;
    }
    return TDM_OK;
}

static enum tdm_status poison_outputs(struct lockstep_walk *w, const struct tdm_op *op,
                                      struct tdm_error *err)
{
    const struct tdm_schedule *schedule = w->program->schedule;
    const struct tdm_model *model = schedule->model;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++) {
        const struct tdm_access *access = &op->access[i];
        if (!tdm_is_written(access) || access->mode != TDM_WRITE || in_place(op, access))
            continue;
        const struct tdm_buffer *buffer = &w->program->buffers[access->buffer];
        uint64_t first = lockstep_offset(buffer, access->first_slot);
        if (!tdm_content_is_of_unit(access->after.content) ||
            tdm_is_sliced(schedule, access->after.content, access->after.layer)) {
            status = poison(w, buffer, first, access->slots * buffer->slot_bytes, err);
            continue;
        }
        const struct tdm_unit *unit = &model->units[access->after.layer];
        for (uint32_t t = 0; t < unit->tensor_count && status == TDM_OK; t++) {
            const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + t];
            uint64_t size = tdm_dtype_bytes(buffer->dtype);
            if (tdm_is_of_part(access, tensor))
                status =
                    poison(w, buffer, first + tensor->offset * size, tensor->elements * size, err);
        }
    }
    return status;
}

/* ---- the run ---- */

static enum tdm_status run_on(const struct tdm_arenas *arenas, const struct tdm_launch *launch,
                              struct tdm_error *err)
{
    const struct tdm_backend *backend = arenas->backend;
    struct tdm_timing timings[16];
    enum tdm_status status = backend->run[launch->op->kind](arenas->executor, launch, err);
    if (status == TDM_OK && backend->finish != NULL)
        status = backend->finish(arenas->executor, err);
    while (backend->reap != NULL && backend->reap(arenas->executor, timings, 16) > 0)
        ;
    return status;
}

static enum tdm_status run_op(struct lockstep_walk *w, const struct tdm_op *op,
                              struct tdm_error *err)
{
    struct tdm_launch before, of_cpu = launch_in(w, &w->cpu, op);
    struct tdm_launch of_other = launch_in(w, &w->other, op);
    struct tdm_slack slack = {0};
    enum tdm_status status = keep_operands(w, op, &before, err);
    if (status == TDM_OK)
        status = poison_outputs(w, op, err);
    if (status == TDM_OK)
        status = run_on(&w->cpu, &of_cpu, err);
    if (status == TDM_OK)
        status = run_on(&w->other, &of_other, err);
    if (status == TDM_OK)
        status = tdm_slack_begin(&slack, &before, &w->cpu, err);
    if (status == TDM_OK)
        status = lockstep_compare_op(w, &of_cpu, &slack, err);
    tdm_slack_end(&slack);
    uint64_t all = w->cpu.bytes[TDM_DEVICE] - w->program->buffers[w->program->scratch].bytes;
    if (status == TDM_OK && w->unseen_bytes * 8 > all)
        status = lockstep_compare_arenas(w, op, err);
    return status;
}

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct lockstep_walk *w = self;
    if (item->kind == TDM_RUN)
        return run_op(w, item->op, err);
    const struct tdm_buffer *buffer = &w->program->buffers[item->buffer];
    if (buffer->resident)
        return TDM_OK;
    return poison(w, buffer, buffer->offset, buffer->bytes, err);
}

static enum tdm_status open_walk(struct lockstep_walk *w, const struct tdm_schedule *schedule,
                                 const struct tdm_backend *backend, struct tdm_error *err)
{
    const struct tdm_backend *cpu;
    uint64_t all = 0;
    enum tdm_status status = tdm_backend_find("cpu", &cpu, err);
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, &w->program, err);
    if (status != TDM_OK)
        return status;
    const struct tdm_program *const programs[] = {w->program};
    for (int place = 0; place < TDM_PLACES; place++) {
        if (w->program->arena_bytes[place] > 0)
            w->program->arena_bytes[place] += GUARD_BYTES; /* guard bytes that no op may change */
        all += w->program->arena_bytes[place];
    }
    w->seen = malloc(all + TDM_OPERANDS * 2 * NEIGHBOUR_BYTES);
    if (w->seen == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a copy of the arena");
    status = tdm_arenas_take(cpu, 1, programs, NULL, NULL, &w->cpu, err);
    return status == TDM_OK ? tdm_arenas_take(backend, 1, programs, NULL, NULL, &w->other, err)
                            : status;
}

static void close_walk(struct lockstep_walk *w)
{
    tdm_arenas_release(&w->cpu, 1);
    tdm_arenas_release(&w->other, 1);
    tdm_program_free(w->program);
    free(w->seen);
    free(w->before);
}

/* Writes poison, weights and tokens to both arenas. */
static enum tdm_status begin_walk(struct lockstep_walk *w, const struct tdm_step_data *data,
                                  struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int place = 0; place < TDM_PLACES; place++)
        if (w->cpu.base[place] != NULL)
            memset(w->cpu.base[place], POISON, w->cpu.bytes[place]);
    status = tdm_step_data_write(data, &w->cpu, w->program, err);
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++)
        status = lockstep_upload(w, (enum tdm_place)place, 0, w->cpu.bytes[place], err);
    return status;
}

enum tdm_status tdm_lockstep_run(const struct tdm_schedule *schedule,
                                 const struct tdm_backend *backend, uint64_t seed, uint32_t steps,
                                 struct tdm_lockstep *lockstep, struct tdm_error *err)
{
    struct lockstep_walk w = {.lockstep = lockstep};
    struct tdm_step_data data = {0};
    struct tdm_op last = {.layer = TDM_NONE, .chunk = TDM_NONE};
    enum tdm_status status = open_walk(&w, schedule, backend, err);
    if (status == TDM_OK && !tdm_step_data_draw(&data, schedule, seed))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for weights");
    if (status == TDM_OK)
        status = begin_walk(&w, &data, err);
    for (uint32_t i = 0; i < steps && status == TDM_OK; i++) {
        w.step = (struct tdm_step){.number = i + 1,
                                   .learning_rate = tdm_learning_rate(&schedule->optimizer, i + 1),
                                   .seed = seed};
        status = tdm_program_emit(w.program, take_item, &w, err);
    }
    if (status == TDM_OK)
        status = lockstep_compare_arenas(&w, &last, err);
    tdm_step_data_free(&data);
    close_walk(&w);
    return status;
}

static void add_elements(struct tdm_lockstep_elements *all, const struct tdm_lockstep_elements *one)
{
    all->bounded += one->bounded;
    all->differ += one->differ;
    all->off += one->off;
    all->size += one->size;
}

void tdm_lockstep_add(struct tdm_lockstep *all, const struct tdm_lockstep *one)
{
    for (int i = 0; i < TDM_OP_KINDS; i++) {
        all->kinds[i].ops += one->kinds[i].ops;
        all->kinds[i].elements += one->kinds[i].elements;
        add_elements(&all->kinds[i].bf16, &one->kinds[i].bf16);
        add_elements(&all->kinds[i].others, &one->kinds[i].others);
        all->kinds[i].worst = fmax(all->kinds[i].worst, one->kinds[i].worst);
        all->kinds[i].wrong += one->kinds[i].wrong;
    }
    if (all->wrong == 0 && one->wrong > 0)
        memcpy(all->first, one->first, sizeof(all->first));
    all->wrong += one->wrong;
}
