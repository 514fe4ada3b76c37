/* SPDX-License-Identifier: Apache-2.0 */
/* Measures steps for a calibration: steps of short models, executed as in a run, all ops timed. */
#include "executor/calibrate_parts.h"

#include "base/json.h"
#include "base/units.h"
#include "executor/batch.h"
#include "executor/state.h"
#include "executor/walk.h"
#include "executor/weights.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"

#include <stdlib.h>
#include <string.h>

#define SEED 1
#define LEARNING_RATE 1e-5
/* How many timed and how many untimed steps are compared. */
#define COMPARED_STEPS 3

struct session {
    struct tdm_calibration *calibration;
    uint32_t count;
    struct tdm_calibration_shape shapes[TDM_MOST_SHAPES];
    struct tdm_schedule *schedules[TDM_MOST_SHAPES];
    struct tdm_program *programs[TDM_MOST_SHAPES];
    struct tdm_arenas arenas;
    /* of the program that is measured now */
    struct tdm_walk *walk;
    struct tdm_tokens *tokens;
    struct tdm_batch *batch;
    struct tdm_timing *timings; /* [ops] */
    double *seconds;            /* [ops] */
    uint64_t steps;
};

static void store_fp32(struct tdm_dtypes *dtypes)
{
    dtypes->weights = dtypes->activations = dtypes->kv = dtypes->kv_gradients = dtypes->gradients =
        dtypes->logits = TDM_DTYPE_FP32;
}

enum tdm_status tdm_calibration_program(const struct tdm_calibration *calibration,
                                        const struct tdm_calibration_shape *shape,
                                        struct tdm_schedule **out_schedule,
                                        struct tdm_program **out_program, struct tdm_error *err)
{
    struct tdm_model *shipped = NULL, *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    const uint64_t no_limit[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX};
    enum tdm_status status = tdm_model_load(shape->model, &shipped, err);
    if (status != TDM_OK)
        return status;
    json_t *config = tdm_json_copy(shipped->config);
    tdm_model_free(shipped);
    tdm_json_set(&config, "num_hidden_layers", json_integer(shape->layers));
    tdm_json_set(&config, "vocab_size", json_integer(shape->vocabulary));
    status = config == NULL
                 ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model")
                 : tdm_model_from_config(shape->model, shape->model, config, &model, err);
    json_decref(config);
    if (status == TDM_OK)
        status = tdm_machine_from_json("calibrate", calibration->machine, &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, shape->context, &schedule, err);
    if (status != TDM_OK) {
        tdm_machine_free(machine);
        tdm_model_free(model);
        return status;
    }
    schedule->chunk_tokens = shape->chunk_tokens;
    schedule->head_tile_tokens = shape->chunk_tokens;
    if (shape->fp32)
        store_fp32(&schedule->dtypes);
    tdm_schedule_set_optimizer(schedule, shape->optimizer);
    schedule->optimizer.learning_rate = LEARNING_RATE;
    status = tdm_schedule_check(schedule, "calibrate", err);
    struct tdm_program *program = NULL;
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_program_validate(program, no_limit, err);
    if (status != TDM_OK) {
        tdm_program_free(program);
        tdm_schedule_free(schedule);
        return status;
    }
    *out_schedule = schedule;
    *out_program = program;
    return TDM_OK;
}

/* ---- one program ---- */

static enum tdm_status begin_program(struct session *s, uint32_t number, struct tdm_error *err)
{
    const struct tdm_program *program = s->programs[number];
    const struct tdm_calibration_options *options = s->calibration->options;
    const struct tdm_weights_watch watch = {.stop = options->stop};
    uint64_t tokens = tdm_schedule_tokens(program->schedule);
    s->steps = 0;
    s->timings = malloc((program->op_count + 1) * sizeof(*s->timings));
    s->seconds = malloc((program->op_count + 1) * sizeof(*s->seconds));
    if (s->timings == NULL || s->seconds == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a step of %llu tokens",
                        (unsigned long long)tokens);
    enum tdm_status status = tdm_walk_new(program, NULL, &s->arenas, &s->walk, err);
    if (status == TDM_OK)
        status = tdm_tokens_open(NULL, program->schedule->model->vocabulary, &s->tokens, err);
    if (status == TDM_OK)
        status = tdm_batch_new(s->tokens, program->schedule, &s->batch, err);
    if (status == TDM_OK)
        status = tdm_walk_prepare(s->walk, err);
    if (status == TDM_OK)
        status = tdm_weights_draw(SEED, &s->arenas, program, &watch, err);
    if (status == TDM_OK) {
        tdm_batch_step(s->batch, SEED, 1);
        status =
            tdm_state_write_tokens(&s->arenas, program, s->batch->inputs, s->batch->targets, err);
    }
    return status;
}

static void end_program(struct session *s)
{
    tdm_walk_free(s->walk);
    tdm_batch_free(s->batch);
    tdm_tokens_free(s->tokens);
    free(s->timings);
    free(s->seconds);
    s->walk = NULL;
    s->tokens = NULL;
    s->batch = NULL;
    s->timings = NULL;
    s->seconds = NULL;
}

static enum tdm_status run_step(struct session *s, const struct tdm_program *program, bool timed,
                                double *seconds, struct tdm_error *err)
{
    const struct tdm_backend *backend = s->arenas.backend;
    struct tdm_step step = {
        .number = ++s->steps, .learning_rate = LEARNING_RATE, .seed = SEED, .untimed = !timed};
    int64_t start_ns = backend->now(s->arenas.executor);
    enum tdm_status status =
        tdm_walk_step(s->walk, &step, NULL, s->calibration->options->stop, err);
    *seconds = 1e-9 * (double)(backend->now(s->arenas.executor) - start_ns);
    size_t count = backend->reap(s->arenas.executor, s->timings, program->op_count);
    memset(s->seconds, 0, program->op_count * sizeof(*s->seconds));
    for (size_t i = 0; i < count; i++)
        s->seconds[s->timings[i].op_number] =
            1e-9 * (double)(s->timings[i].end_ns - s->timings[i].start_ns);
    return status;
}

static enum tdm_status note_op(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct session *s = self;
    if (item->kind != TDM_RUN)
        return TDM_OK;
    return tdm_rate_fit_add(s->calibration->fit, s->schedules[0]->machine, item->op,
                            s->seconds[item->op->number], err);
}

/* Measures what it costs to time an op. The program is the one with the shortest ops. */
static enum tdm_status compare_untimed(struct session *s, const struct tdm_program *program,
                                       struct tdm_error *err)
{
    double total[2] = {0}, seconds = 0;
    enum tdm_status status = TDM_OK;
    for (int i = 0; i < 2 * COMPARED_STEPS && status == TDM_OK; i++) {
        status = run_step(s, program, i % 2 == 1, &seconds, err);
        total[i % 2] += seconds;
    }
    double overhead = (total[1] - total[0]) / COMPARED_STEPS / (double)program->op_count;
    if (s->arenas.backend->timing_seconds > 0 && overhead > s->calibration->overhead_seconds)
        s->calibration->overhead_seconds = overhead < 2 * s->arenas.backend->timing_seconds
                                               ? overhead
                                               : s->arenas.backend->timing_seconds;
    return status;
}

static enum tdm_status measure_program(struct session *s, uint32_t number, struct tdm_error *err)
{
    const struct tdm_program *program = s->programs[number];
    const struct tdm_calibration_shape *shape = &s->shapes[number];
    char context[TDM_FORMAT_SIZE], chunk[TDM_FORMAT_SIZE];
    double seconds = 0, second = 0, total = 0;
    tdm_calibration_say(s->calibration->options, "%s, %u layers: %s tokens in chunks of %s",
                        shape->model, shape->layers, tdm_format_tokens(shape->context, context),
                        tdm_format_tokens(shape->chunk_tokens, chunk));
    enum tdm_status status = begin_program(s, number, err);
    if (status == TDM_OK)
        status = run_step(s, program, true, &seconds, err); /* not noted: slower than the rest */
    if (status == TDM_OK && number == 0)
        status = compare_untimed(s, program, err);
    for (uint32_t steps = 0; status == TDM_OK && (steps == 0 || total < shape->seconds); steps++) {
        status = run_step(s, program, true, &seconds, err);
        total += seconds;
        if (status == TDM_OK && total >= shape->seconds / 2) /* hot by then */
            status = tdm_program_emit(program, note_op, s, err);
        second = steps == 0 ? seconds : second;
    }
    if (total > s->calibration->longest_seconds) {
        s->calibration->longest_seconds = total;
        s->calibration->early_seconds = second;
        s->calibration->late_seconds = seconds;
    }
    end_program(s);
    return status;
}

static void note_runtime(struct session *s, enum tdm_place place, uint64_t used_bytes)
{
    uint64_t arena = s->arenas.bytes[place], *most = &s->calibration->runtime_bytes[place];
    if (used_bytes > arena && used_bytes - arena > *most)
        *most = used_bytes - arena;
}

/* Reads how much driver and libraries take beside the arenas, if there is a device. */
static enum tdm_status read_runtime(struct session *s, struct tdm_error *err)
{
    uint64_t used = 0, free_bytes = 0;
    if (s->arenas.backend->used == NULL)
        return TDM_OK;
    enum tdm_status status = s->arenas.backend->used(s->arenas.executor, &used, &free_bytes, err);
    if (status != TDM_OK)
        return status;
    for (int place = 0; place < TDM_PLACES; place++)
        note_runtime(s, (enum tdm_place)place,
                     tdm_arenas_used(&s->arenas, (enum tdm_place)place, used));
    return TDM_OK;
}

/* ---- programs of one model ---- */

static void leave_out(struct session *s, uint32_t number)
{
    tdm_program_free(s->programs[number]);
    tdm_schedule_free(s->schedules[number]);
    s->count--;
    for (uint32_t i = number; i < s->count; i++) {
        s->programs[i] = s->programs[i + 1];
        s->schedules[i] = s->schedules[i + 1];
        s->shapes[i] = s->shapes[i + 1];
    }
}

/* Allocates the arenas. Leaves out the largest program until the memory suffices. */
static enum tdm_status take_memory(struct session *s, struct tdm_error *err)
{
    for (;;) {
        uint32_t largest = 0;
        enum tdm_status status = tdm_arenas_take(s->calibration->options->backend, s->count,
                                                 (const struct tdm_program *const *)s->programs,
                                                 NULL, NULL, &s->arenas, err);
        if (status != TDM_INFEASIBLE || s->count == 1)
            return status;
        for (uint32_t i = 1; i < s->count; i++)
            if (s->programs[i]->arena_bytes[TDM_DEVICE] >
                s->programs[largest]->arena_bytes[TDM_DEVICE])
                largest = i;
        leave_out(s, largest);
    }
}

enum tdm_status tdm_calibrate_steps(struct tdm_calibration *calibration, uint32_t count,
                                    const struct tdm_calibration_shape *shapes,
                                    struct tdm_error *err)
{
    struct session s = {.calibration = calibration};
    enum tdm_status status = TDM_OK;
    for (; s.count < count && s.count < TDM_MOST_SHAPES && status == TDM_OK; s.count++) {
        s.shapes[s.count] = shapes[s.count];
        status = tdm_calibration_program(calibration, &shapes[s.count], &s.schedules[s.count],
                                         &s.programs[s.count], err);
        if (status != TDM_OK)
            break;
    }
    if (status == TDM_OK)
        status = take_memory(&s, err);
    for (uint32_t i = 0; i < s.count && status == TDM_OK; i++)
        status = measure_program(&s, i, err);
    if (status == TDM_OK)
        status = read_runtime(&s, err);
    tdm_arenas_release(&s.arenas, 1);
    while (s.count > 0)
        leave_out(&s, s.count - 1);
    return status;
}
