/* SPDX-License-Identifier: Apache-2.0 */
/* Runs whole steps of a schedule on a backend. */
#include "tests/support/run_steps.h"

#include "executor/batch.h"
#include "executor/state.h"
#include "executor/team_walk.h"
#include "executor/transports.h"
#include "schedule/learning_rate.h"
#include "schedule/program.h"
#include "schedule/validate.h"

#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 65536u
#define POISON 0xff
#define RANKS_MOST 8u

float *tdm_steps_values(const struct tdm_steps *steps, uint32_t step, enum tdm_left what)
{
    return steps->values + ((size_t)step * TDM_LEFTS + (size_t)what) * steps->count;
}

bool tdm_steps_update(const struct tdm_schedule *schedule)
{
    return schedule->optimizer.kind != TDM_OPTIMIZER_NONE && schedule->pass == TDM_TRAIN;
}

bool tdm_steps_leave_gradients(const struct tdm_schedule *schedule)
{
    return schedule->optimizer.kind == TDM_OPTIMIZER_NONE && schedule->pass == TDM_TRAIN;
}

static enum tdm_status read_step(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                 uint32_t step, struct tdm_steps *steps, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    enum tdm_status status =
        tdm_state_read_loss(arenas, program, &steps->losses[step], &steps->norms[step], NULL, err);
    float *at = tdm_steps_values(steps, step, TDM_LEFT_VALUES);
    for (int what = 0; what < TDM_LEFTS; what++)
        for (uint32_t unit = 0; unit < model->unit_count && status == TDM_OK; unit++) {
            if (what != TDM_LEFT_VALUES)
                status =
                    tdm_state_read_moment(arenas, program, unit, what == TDM_LEFT_MOMENT2, at, err);
            else if (tdm_steps_leave_gradients(program->schedule))
                status = tdm_state_read_gradient(arenas, program, unit, at, err);
            else
                status = tdm_state_read_weights(arenas, program, unit, at, err);
            at += model->units[unit].elements;
        }
    return status;
}

static enum tdm_status poison(const struct tdm_arenas *arenas, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int place = 0; place < (int)TDM_MAX_PLACES && status == TDM_OK; place++) {
        if (arenas->base[place] == NULL)
            continue;
        void *bytes = malloc(arenas->bytes[place]);
        if (bytes == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for poison");
        memset(bytes, POISON, arenas->bytes[place]);
        status = arenas->backend->upload(arenas->executor, arenas->base[place], bytes,
                                         arenas->bytes[place], err);
        free(bytes);
    }
    return status;
}

/* Checks that nothing beyond the planned bytes was touched; the arenas are larger. */
static enum tdm_status check_arenas(const struct tdm_arenas *arenas,
                                    const uint64_t planned_bytes[TDM_MAX_PLACES],
                                    struct tdm_error *err)
{
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
        uint64_t touched, highest;
        enum tdm_status status =
            tdm_arenas_scan(arenas, (enum tdm_place)place, &touched, &highest, err);
        if (status != TDM_OK)
            return status;
        if (highest > planned_bytes[place])
            return tdm_fail(err, TDM_INTERNAL, "bytes touched up to %llu, %llu planned",
                            (unsigned long long)highest, (unsigned long long)planned_bytes[place]);
    }
    return TDM_OK;
}

static uint64_t trained_tokens(const struct tdm_step_data *data)
{
    uint64_t trained = 0;
    for (uint64_t i = 0; i < data->tokens; i++)
        trained += data->targets[i] >= 0;
    return trained;
}

/* ---- ops that ran at the same time ---- */

/* Lanes of all ops, and times of a step. */
struct times {
    enum tdm_lane *lanes;       /* [ops] */
    struct tdm_timing *timings; /* [ops] */
    uint64_t ops;
};

static enum tdm_status note_lane(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct times *times = self;
    (void)err;
    if (item->kind == TDM_RUN)
        times->lanes[item->op->number] = item->op->lane;
    return TDM_OK;
}

static bool run_together(const struct tdm_timing *a, const struct tdm_timing *b)
{
    return a->start_ns < b->end_ns && b->start_ns < a->end_ns;
}

/* Counts copies that ran while an op of the compute lane ran, in the last step. */
static enum tdm_status count_overlapped(const struct tdm_program *program,
                                        const struct tdm_arenas *arenas, uint64_t *overlapped,
                                        struct tdm_error *err)
{
    const struct tdm_backend *backend = arenas->backend;
    struct times times = {.lanes = calloc(program->op_count + 1, sizeof(*times.lanes)),
                          .timings = calloc(program->op_count + 1, sizeof(*times.timings))};
    enum tdm_status status = times.lanes == NULL || times.timings == NULL
                                 ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for times")
                                 : tdm_program_emit(program, note_lane, &times, err);
    *overlapped = 0;
    if (status == TDM_OK && backend->reap != NULL)
        times.ops = backend->reap(arenas->executor, times.timings, program->op_count);
    for (uint64_t i = 0; i < times.ops; i++) {
        const struct tdm_timing *copy = &times.timings[i];
        bool beside = false;
        if (times.lanes[copy->op_number] == TDM_LANE_COMPUTE)
            continue;
        for (uint64_t k = 0; k < times.ops && !beside; k++)
            beside = times.lanes[times.timings[k].op_number] == TDM_LANE_COMPUTE &&
                     run_together(copy, &times.timings[k]);
        *overlapped += beside;
    }
    free(times.lanes);
    free(times.timings);
    return status;
}

static enum tdm_status count_move(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    uint64_t *moves = self;
    (void)err;
    *moves += item->kind == TDM_RUN && item->op->kind == TDM_OP_COPY &&
              item->op->lane == TDM_LANE_COMPUTE;
    return TDM_OK;
}

/* The devices that ranks have in turn: all, or as many as TDM_DEVICES says. */
static enum tdm_status find_devices(const struct tdm_backend *backend, uint32_t devices[RANKS_MOST],
                                    struct tdm_error *err)
{
    const char *most = getenv("TDM_DEVICES");
    uint32_t count = 1;
    enum tdm_status status = backend->devices == NULL ? TDM_OK : backend->devices(&count, err);
    if (most != NULL && strtoul(most, NULL, 10) < count)
        count = (uint32_t)strtoul(most, NULL, 10);
    for (uint32_t rank = 0; rank < RANKS_MOST && status == TDM_OK; rank++)
        devices[rank] = count == 0 ? 0 : rank % count;
    return status;
}

/* Ranks are joined by the transport that TDM_TRANSPORT names, else read each other's memory. */
static enum tdm_status open_walk(const struct tdm_program *program, const struct tdm_arenas *arenas,
                                 struct tdm_team_walk **walk, struct tdm_error *err)
{
    const char *name = getenv("TDM_TRANSPORT");
    struct tdm_team_options options = {.transport = &tdm_transport_shared};
    enum tdm_status status =
        name == NULL ? TDM_OK : tdm_transport_find(name, &options.transport, err);
    return status == TDM_OK ? tdm_team_walk_open(program, NULL, arenas, &options, walk, err)
                            : status;
}

enum tdm_status tdm_steps_run(const struct tdm_schedule *schedule,
                              const struct tdm_backend *backend, const struct tdm_step_data *data,
                              uint64_t seed, bool poisoned, struct tdm_steps *steps,
                              struct tdm_error *err)
{
    struct tdm_program *program = NULL;
    struct tdm_arenas arenas[RANKS_MOST] = {0};
    struct tdm_team_walk *walk = NULL;
    uint32_t devices[RANKS_MOST], taken = 0;
    uint64_t no_limit[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    uint64_t planned_bytes[TDM_MAX_PLACES] = {0};

    *steps = (struct tdm_steps){.steps = tdm_steps_update(schedule) ? TDM_STEPS_MOST : 1,
                                .count = data->count};
    steps->values = calloc((size_t)TDM_STEPS_MOST * TDM_LEFTS * data->count, sizeof(float));
    uint64_t *used_rows =
        calloc(tdm_token_set_words(schedule->model->vocabulary), sizeof(*used_rows));
    if (steps->values == NULL || used_rows == NULL) {
        free(used_rows);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for what steps leave");
    }
    tdm_token_set(data->inputs, data->tokens, schedule->model->vocabulary, used_rows);
    enum tdm_status status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_program_validate(program, no_limit, err);
    if (status == TDM_OK)
        status = tdm_program_emit(program, count_move, &steps->moves, err);
    const uint32_t places = schedule->machine->topology.place_count;
    for (uint32_t place = 0; place < places && status == TDM_OK; place++) {
        planned_bytes[place] = program->arena_bytes[place];
        program->arena_bytes[place] += GUARD_BYTES; /* guard bytes that no op may touch */
    }
    if (status == TDM_OK)
        status = find_devices(backend, devices, err);
    if (status == TDM_OK)
        status = tdm_arenas_take(backend, 1, (const struct tdm_program *const *)&program, devices,
                                 NULL, arenas, err);
    if (status == TDM_OK)
        taken = program->ranks;
    if (status == TDM_OK)
        status = open_walk(program, arenas, &walk, err);
    if (status == TDM_OK)
        status = tdm_team_walk_prepare(walk, err);
    for (uint32_t rank = 0; status == TDM_OK && rank < taken; rank++)
        status = poisoned ? poison(&arenas[rank], err) : tdm_arenas_fill(&arenas[rank], NULL, err);
    if (status == TDM_OK)
        status = tdm_step_data_write(data, arenas, program, err);
    for (uint32_t i = 0; i < steps->steps && status == TDM_OK; i++) {
        struct tdm_step step = {.number = i + 1,
                                .learning_rate = tdm_learning_rate(&schedule->optimizer, i + 1),
                                .seed = seed,
                                .sequences = data->sequences,
                                .used_rows = data->hides_rows ? NULL : used_rows,
                                .trained_tokens = trained_tokens(data)};
        status = tdm_team_walk_step(walk, &step, NULL, NULL, err);
        if (status == TDM_OK)
            status = read_step(arenas, program, i, steps, err);
        if (status == TDM_OK)
            status = count_overlapped(program, arenas, &steps->overlapped, err);
    }
    uint64_t left;
    if (status == TDM_OK && backend->used != NULL)
        status = backend->used(arenas[0].executor, &steps->used_bytes, &left, err);
    for (uint32_t rank = 0; status == TDM_OK && !poisoned && rank < taken; rank++)
        status = check_arenas(&arenas[rank], planned_bytes, err);
    tdm_team_walk_free(walk);
    tdm_arenas_release(arenas, taken);
    tdm_program_free(program);
    free(used_rows);
    return status;
}

void tdm_steps_free(struct tdm_steps *steps)
{
    free(steps->values);
    *steps = (struct tdm_steps){0};
}

bool tdm_steps_same(const struct tdm_steps *a, const struct tdm_steps *b)
{
    return a->steps == b->steps &&
           memcmp(a->losses, b->losses, a->steps * sizeof(a->losses[0])) == 0 &&
           memcmp(a->norms, b->norms, a->steps * sizeof(a->norms[0])) == 0 &&
           memcmp(a->values, b->values,
                  (size_t)a->steps * TDM_LEFTS * a->count * sizeof(a->values[0])) == 0;
}
