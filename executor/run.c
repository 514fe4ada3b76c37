/* SPDX-License-Identifier: Apache-2.0 */
/* A run: load, validate, take the arenas, train, record. */
#include "executor/run.h"

#include "base/size.h"
#include "base/units.h"
#include "executor/batch.h"
#include "executor/evaluate.h"
#include "executor/midstep.h"
#include "executor/record.h"
#include "executor/run_paths.h"
#include "executor/run_weights.h"
#include "executor/state.h"
#include "executor/token_file.h"
#include "executor/walk.h"
#include "simulator/simulate.h"
#include "schedule/cost.h"
#include "schedule/learning_rate.h"
#include "schedule/training_settings.h"
#include "schedule/validate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Timing ops may take so much of a predicted step, unless asked for. */
#define MAX_TIMING_SHARE 0.01

/* More op times than this in a run are recorded for its first step only, unless asked for. */
#define MAX_TIMINGS 2000000u

struct loaded {
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    double predicted_seconds;
};

struct run {
    const struct tdm_run_options *options;
    const struct tdm_run_listener *listener;
    struct loaded *loaded; /* the one that evaluates last, if there is one */
    const struct tdm_program **programs;
    uint32_t program_count;
    struct tdm_tokens *tokens, *validation; /* validation NULL: nobody evaluates */
    struct tdm_run_weights weights;
    struct tdm_arenas arenas;
    struct tdm_recorder *recorder; /* NULL: no trace */
};

/* A schedule must fit the limits that it was planned for: somebody may have changed either. */
static enum tdm_status check_limits(const struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_topology *topology = &schedule->machine->topology;
    for (uint32_t place = 0; place < topology->place_count; place++) {
        uint64_t limit_bytes = tdm_schedule_limit(schedule, (enum tdm_place)place);
        uint64_t needed =
            tdm_size_add(program->arena_bytes[place], topology->places[place].runtime_bytes);
        if (needed <= limit_bytes)
            continue;
        char need[TDM_FORMAT_SIZE], limit[TDM_FORMAT_SIZE];
        if (place >= TDM_PLACES)
            return tdm_fail(err, TDM_INFEASIBLE, "needs %s of %s memory, the machine has %s",
                            tdm_format_bytes(needed, need), topology->places[place].name,
                            tdm_format_bytes(limit_bytes, limit));
        tdm_fail(err, TDM_INFEASIBLE, "needs %s of %s memory, \"%s\" allows %s",
                 tdm_format_bytes(needed, need), topology->places[place].name,
                 place == TDM_DEVICE ? "memory_bytes" : "host_memory_bytes",
                 tdm_format_bytes(limit_bytes, limit));
        return tdm_hint(err, "plan again with a larger --%smemory",
                        place == TDM_DEVICE ? "" : "host-");
    }
    return TDM_OK;
}

/* `pairs`: settings other than its own. */
static enum tdm_status load_one(const char *path, const char *const *pairs, size_t pair_count,
                                struct loaded *loaded, struct tdm_error *err)
{
    enum tdm_status status = tdm_schedule_load(path, &loaded->schedule, err);
    if (status == TDM_OK)
        status = tdm_training_settings_apply(pairs, pair_count, loaded->schedule, err);
    if (status != TDM_OK)
        return status;
    const struct tdm_schedule *schedule = loaded->schedule;
    status = tdm_program_lower(schedule, &loaded->program, err);
    if (status == TDM_OK)
        status = check_limits(loaded->program, err);
    if (status == TDM_OK)
        status = tdm_program_validate(loaded->program, loaded->program->arena_bytes, err);
    if (status != TDM_OK)
        return tdm_about(err, path);
    struct tdm_simulation simulation;
    status = tdm_simulate(loaded->program, NULL, NULL, &simulation, err);
    if (status == TDM_OK)
        loaded->predicted_seconds = simulation.step_seconds;
    return status;
}

static void tell_planned(const struct run *run, const char *path, const struct loaded *loaded)
{
    const struct tdm_amounts amounts =
        tdm_amounts_of(loaded->program, run->options->backend, run->options->trace_path != NULL);
    run->listener->planned(run->listener->self, path, loaded->program, &amounts,
                           loaded->predicted_seconds);
}

static enum tdm_status check_stop(const struct tdm_run_options *options, struct tdm_error *err)
{
    return options->stop != NULL && *options->stop
               ? tdm_fail(err, TDM_INTERRUPTED, "interrupted before the first step")
               : TDM_OK;
}

static enum tdm_status load_all(struct run *run, struct tdm_run_result *results,
                                struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    struct loaded *evaluator = &run->loaded[options->schedule_count];
    if (options->evaluate_path != NULL) {
        enum tdm_status status = load_one(options->evaluate_path, NULL, 0, evaluator, err);
        if (status != TDM_OK)
            return status;
        run->programs[options->schedule_count] = evaluator->program;
    }
    for (uint32_t i = 0; i < options->schedule_count; i++) {
        enum tdm_status status = check_stop(options, err);
        if (status == TDM_OK)
            status = load_one(options->schedule_paths[i], options->pairs, options->pair_count,
                              &run->loaded[i], err);
        if (status != TDM_OK)
            return status;
        if (strcmp(run->loaded[i].schedule->model->digest,
                   run->loaded[0].schedule->model->digest) != 0) {
            tdm_fail(err, TDM_INPUT, "%s: is a schedule for %s, and %s for %s",
                     options->schedule_paths[i], run->loaded[i].schedule->model->name,
                     options->schedule_paths[0], run->loaded[0].schedule->model->name);
            return tdm_hint(err, "schedules of one run must be for the same model");
        }
        run->programs[i] = run->loaded[i].program;
        if (options->evaluate_path != NULL)
            status = tdm_evaluation_check(options->evaluate_path, evaluator->program,
                                          options->schedule_paths[i], run->loaded[i].program, err);
        if (status != TDM_OK)
            return status;
        results[i].predicted_step_seconds = run->loaded[i].predicted_seconds;
        results[i].model_flops = tdm_model_flops(run->loaded[i].schedule);
        results[i].topology = run->loaded[i].schedule->machine->topology;
        for (uint32_t place = 0; place < results[i].topology.place_count; place++)
            results[i].arenas[place] =
                (struct tdm_trace_arena){.place = (enum tdm_place)place,
                                         .planned_bytes = run->programs[i]->arena_bytes[place]};
        results[i].runtime_planned_bytes =
            run->loaded[i].schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
        tell_planned(run, options->schedule_paths[i], &run->loaded[i]);
    }
    if (options->evaluate_path != NULL)
        tell_planned(run, options->evaluate_path, evaluator);
    return TDM_OK;
}

/* A dry run ends here: would there be memory for it? */
static enum tdm_status compare_memory(const struct run *run, struct tdm_error *err)
{
    struct tdm_free_memory memory;
    enum tdm_status status =
        tdm_arenas_check(run->options->backend, run->program_count, run->programs, &memory, err);
    if (run->options->backend->executes && (status == TDM_OK || status == TDM_INFEASIBLE))
        run->listener->compared(run->listener->self, &memory);
    return status;
}

/* Ends step 1 of a program: what the arenas show. */
static enum tdm_status scan(const struct run *run, struct tdm_run_result *result,
                            struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t place = 0; place < result->topology.place_count && status == TDM_OK; place++) {
        struct tdm_trace_arena *arena = &result->arenas[place];
        status = tdm_arenas_scan(&run->arenas, (enum tdm_place)place, &arena->touched_bytes,
                                 &arena->highest_byte, err);
    }
    return status;
}

/* What training one program needs beside the arenas. */
struct training {
    const struct tdm_program *program;
    struct tdm_walk *walk;
    struct tdm_observer *observer;
    struct tdm_midstep midstep;
    struct tdm_evaluation *evaluation; /* NULL: none */
    struct tdm_batch *batch;           /* NULL: nothing is computed */
};

/* The last tenth of the steps is averaged: what single steps show is mostly their text. */
static void note_loss(struct tdm_run_result *result, uint64_t step, uint64_t steps, double loss)
{
    uint64_t before = steps - (steps + 9) / 10;
    if (step == 1)
        result->first_loss = loss;
    if (step <= before || step == 1)
        result->late_loss = loss;
    else
        result->late_loss += (loss - result->late_loss) / (double)(step - before);
}

/* What the driver of a device reports after a step, and the most of what it reported in it. */
static enum tdm_status read_device_use(const struct run *run, const struct tdm_midstep *midstep,
                                       struct tdm_run_result *result, uint64_t *used_bytes,
                                       struct tdm_error *err)
{
    if (run->options->backend->used == NULL)
        return TDM_OK;
    enum tdm_status status =
        run->options->backend->used(run->arenas.executor, used_bytes, NULL, err);
    uint64_t most = midstep->most_used_bytes;
    if (status == TDM_OK && *used_bytes > most)
        most = *used_bytes;
    if (most > result->device_used_bytes)
        result->device_used_bytes = most;
    result->device_planned_bytes = midstep->planned_bytes;
    return status;
}

static enum tdm_status one_step(struct run *run, struct training *training, uint64_t number,
                                struct tdm_run_result *result, struct tdm_error *err)
{
    const struct tdm_program *program = training->program;
    const struct tdm_backend *backend = run->options->backend;
    struct tdm_step step = {
        .number = number,
        .learning_rate = tdm_learning_rate(&program->schedule->optimizer, number),
        .seed = run->options->seed,
        .untimed = run->recorder == NULL || !tdm_recorder_times(run->recorder, number)};
    struct tdm_observer *observer = number == 1 ? training->observer : NULL;
    enum tdm_status status = TDM_OK;
    double loss = NAN, norm = NAN;

    if (backend->executes) {
        tdm_batch_step(training->batch, run->options->seed, number);
        tdm_batch_describe(training->batch, &step);
        status = tdm_state_write_tokens(&run->arenas, program, training->batch->inputs,
                                        training->batch->targets, err);
    }
    if (status != TDM_OK)
        return status;
    int64_t start_ns = backend->now(run->arenas.executor);
    result->begun = true;
    tdm_midstep_begin(&training->midstep, number, start_ns);
    status = tdm_walk_step(training->walk, &step, observer, run->options->stop, err);
    int64_t end_ns = backend->now(run->arenas.executor);
    if (status == TDM_INTERRUPTED)
        (void)tdm_midstep_cut(&training->midstep, tdm_walk_launched(training->walk), end_ns, NULL);
    if (status == TDM_OK && backend->executes)
        status = tdm_state_read_loss(&run->arenas, program, &loss, &norm, err);
    if (status == TDM_OK && number == 1 && backend->executes)
        status = scan(run, result, err);
    if (status != TDM_OK)
        return status;
    uint64_t used_bytes = 0;
    status = read_device_use(run, &training->midstep, result, &used_bytes, err);
    if (status != TDM_OK)
        return status;
    if (run->recorder != NULL) {
        const struct tdm_recorded_step recorded = {
            .step = number,
            .loss = loss,
            .gradient_norm = norm,
            .start_ns = start_ns,
            .end_ns = end_ns,
            .observer = observer,
            .arenas = observer != NULL && backend->executes ? result->arenas : NULL,
            .device_used_bytes = used_bytes};
        status = tdm_recorder_step(run->recorder, program, &run->arenas, &recorded, err);
        if (status != TDM_OK)
            return status;
    }
    result->steps = number;
    result->seconds += 1e-9 * (double)(end_ns - start_ns);
    result->tokens += tdm_schedule_tokens(program->schedule);
    note_loss(result, number, run->options->steps, loss);
    if (isinf(loss) || (isnan(loss) && backend->executes)) {
        tdm_fail(err, TDM_INPUT, "the loss of step %llu is not a number",
                 (unsigned long long)number);
        return tdm_hint(err, "lower the learning rate (--set optimizer.learning_rate=R)");
    }
    run->listener->stepped(run->listener->self, program, number, loss, norm,
                           1e-9 * (double)(end_ns - start_ns));
    return TDM_OK;
}

/* After the steps that are due; then tells everybody. */
static enum tdm_status evaluate(struct run *run, struct training *training, uint64_t step,
                                struct tdm_run_result *result, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    struct tdm_run_validation *validation = &result->validation;
    double loss, seconds;
    if (step % options->evaluate_every != 0 && step != options->steps)
        return TDM_OK;
    enum tdm_status status =
        tdm_evaluation_run(training->evaluation, step, options->stop, &loss, &seconds, err);
    uint64_t tokens = tdm_evaluation_tokens(training->evaluation);
    if (status == TDM_OK && run->recorder != NULL)
        status = tdm_recorder_evaluated(run->recorder, step, loss, tokens, seconds, err);
    if (status != TDM_OK)
        return status;
    if (validation->evaluations++ == 0 || loss < validation->best_loss) {
        validation->best_loss = loss;
        validation->best_step = step;
    }
    validation->last_loss = loss;
    validation->last_step = step;
    validation->tokens = tokens;
    validation->seconds += seconds;
    run->listener->evaluated(run->listener->self, step, loss, tokens, seconds);
    return TDM_OK;
}

/* The texts of a run, and whether they will do for its schedules. */
static enum tdm_status open_tokens(struct run *run, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    const struct tdm_schedule *schedule = run->programs[0]->schedule;
    uint32_t vocabulary = schedule->model->vocabulary;
    enum tdm_status status = tdm_tokens_open(options->tokens_path, vocabulary, &run->tokens, err);
    if (status == TDM_OK && options->evaluate_path != NULL) {
        if (options->validation_path != NULL) {
            status = tdm_tokens_open(options->validation_path, vocabulary, &run->validation, err);
        } else {
            status =
                tdm_tokens_split(run->tokens, options->validation_share, &run->validation, err);
            if (status != TDM_OK)
                tdm_about(err, tdm_tokens_name(run->tokens));
        }
    }
    for (uint32_t i = 0; i < run->program_count && status == TDM_OK; i++) {
        struct tdm_batch *batch = NULL;
        bool evaluates = i >= options->schedule_count;
        status = evaluates
                     ? tdm_evaluation_check_tokens(run->validation, run->programs[i]->schedule, err)
                     : tdm_batch_new(run->tokens, run->programs[i]->schedule, &batch, err);
        tdm_batch_free(batch);
    }
    return status;
}

/* The program that evaluates, on its text. */
static enum tdm_status open_evaluation(struct run *run, struct training *training,
                                       struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    return tdm_evaluation_new(run->programs[options->schedule_count], &run->arenas,
                              options->backend->executes ? run->validation : NULL, options->seed,
                              options->evaluate_windows, &training->evaluation, err);
}

static enum tdm_status train(struct run *run, uint32_t index, struct tdm_run_result *result,
                             struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    const struct tdm_backend *backend = options->backend;
    const struct tdm_program *program = run->programs[index];
    struct training training = {.program = program};
    enum tdm_status status = TDM_OK;

    result->outside_bytes = backend->outside_bytes(run->arenas.executor);
    status = tdm_walk_new(program, &run->arenas, &training.walk, err);
    if (status == TDM_OK)
        status = tdm_observer_new(program, &run->arenas, &training.observer, err);
    if (status == TDM_OK && backend->executes)
        status = tdm_batch_new(run->tokens, program->schedule, &training.batch, err);
    if (status == TDM_OK)
        status = tdm_walk_prepare(training.walk, err);
    if (status == TDM_OK && options->evaluate_path != NULL)
        status = open_evaluation(run, &training, err);
    if (status == TDM_OK && backend->executes) {
        result->unigram_entropy = tdm_tokens_unigram_entropy(run->tokens);
        run->listener->tokens(run->listener->self, run->tokens, result->unigram_entropy);
        status = tdm_arenas_fill(&run->arenas, options->stop, err);
        if (status == TDM_OK)
            status = tdm_run_weights_init(&run->weights, &run->arenas, program, err);
    }
    if (status == TDM_OK && run->recorder != NULL)
        status = tdm_recorder_program(run->recorder, options->schedule_paths[index], program, err);
    if (status == TDM_OK && run->recorder != NULL && options->evaluate_path != NULL)
        status = tdm_recorder_evaluator(run->recorder, options->evaluate_path,
                                        run->programs[options->schedule_count], err);
    if (status == TDM_OK) {
        tdm_midstep_open(
            &training.midstep, &run->arenas, tdm_walk_forecast(training.walk), run->listener,
            run->recorder,
            tdm_size_add(run->arenas.bytes[TDM_DEVICE], result->runtime_planned_bytes));
        tdm_walk_watch(training.walk, &training.midstep.watch);
    }
    for (uint64_t step = 1; step <= options->steps && status == TDM_OK; step++) {
        status = one_step(run, &training, step, result, err);
        if (status == TDM_OK) /* before an evaluation writes where gradients are */
            status = tdm_run_weights_save(&run->weights, &run->arenas, program, step, err);
        if (status == TDM_OK && training.evaluation != NULL)
            status = evaluate(run, &training, step, result, err);
    }

    tdm_evaluation_free(training.evaluation);
    tdm_batch_free(training.batch);
    tdm_observer_free(training.observer);
    tdm_walk_free(training.walk);
    return status;
}

/* Host memory that is not pinned: what was planned to be, and what would be pinned and could
 * not. */
static uint64_t pageable_bytes(const struct run *run, uint64_t pinned_bytes)
{
    const struct tdm_backend *backend = run->options->backend;
    uint64_t most = 0;
    for (uint32_t i = 0; i < run->program_count; i++) {
        const struct tdm_amounts amounts = tdm_amounts_of(run->programs[i], backend, true);
        most = amounts.pageable_bytes > most ? amounts.pageable_bytes : most;
    }
    if (backend->own_device_memory)
        most = tdm_size_add(most, run->arenas.bytes[TDM_HOST] - pinned_bytes);
    else
        most = tdm_size_add(most, run->arenas.bytes[TDM_DEVICE]);
    return most;
}

/* Of all steps, if they are not too many and timing them costs next to nothing; else of the
 * first. */
static uint64_t choose_timed(const struct run *run)
{
    const struct tdm_run_options *options = run->options;
    uint64_t ops = 0;
    bool cheap = true;
    for (uint32_t i = 0; i < options->schedule_count; i++) {
        ops += run->programs[i]->op_count;
        cheap = cheap && options->backend->timing_seconds * (double)run->programs[i]->op_count <=
                             MAX_TIMING_SHARE * run->loaded[i].predicted_seconds;
    }
    return cheap && ops <= MAX_TIMINGS / (options->steps + 1) ? 1 : UINT64_MAX;
}

static enum tdm_status open_recorder(struct run *run, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    uint64_t every = options->timed_every != 0 ? options->timed_every : choose_timed(run);
    struct tdm_recorded_memory memory = {0};
    if (options->backend->pinned_bytes != NULL)
        memory.pinned_bytes = options->backend->pinned_bytes(run->arenas.executor);
    if (options->backend->executes)
        memory.pageable_bytes = pageable_bytes(run, memory.pinned_bytes);
    return tdm_recorder_open(options, memory, run->program_count, run->programs, every,
                             &run->recorder, err);
}

enum tdm_status tdm_run(const struct tdm_run_options *options,
                        const struct tdm_run_listener *listener, struct tdm_run_result *results,
                        struct tdm_error *err)
{
    struct run run = {.options = options, .listener = listener};
    struct tdm_watch taking = listener->taking;
    taking.stop = options->stop;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < options->schedule_count; i++)
        results[i] = (struct tdm_run_result){.first_loss = NAN,
                                             .late_loss = NAN,
                                             .validation = {.last_loss = NAN, .best_loss = NAN}};
    run.program_count = options->schedule_count + (options->evaluate_path != NULL);
    run.loaded = calloc((size_t)run.program_count + 1, sizeof(*run.loaded));
    run.programs = calloc((size_t)run.program_count + 1, sizeof(struct tdm_program *));
    if (run.loaded == NULL || run.programs == NULL)
        status =
            tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u schedules", options->schedule_count);
    if (status == TDM_OK)
        status = tdm_run_check_paths(options, err);
    if (status == TDM_OK)
        status = load_all(&run, results, err);
    if (status == TDM_OK)
        status = tdm_run_weights_open(options, listener, run.programs[0], &run.weights, err);
    if (status == TDM_OK)
        status = open_tokens(&run, err);
    if (status == TDM_OK && options->dry_run)
        status = compare_memory(&run, err);
    if (status == TDM_OK)
        status = check_stop(options, err);
    if (status != TDM_OK || options->dry_run)
        goto free_programs;

    status = tdm_arenas_take_watched(options->backend, run.program_count, run.programs, &taking,
                                     &run.arenas, err);
    if (status == TDM_OK && options->trace_path != NULL) /* a run that cannot begin leaves none */
        status = open_recorder(&run, err);
    for (uint32_t i = 0; i < options->schedule_count && status == TDM_OK; i++)
        status = train(&run, i, &results[i], err);
    tdm_arenas_release(&run.arenas);
    status = tdm_recorder_close(run.recorder, status, err);

free_programs:
    tdm_run_weights_close(&run.weights);
    tdm_tokens_free(run.validation);
    tdm_tokens_free(run.tokens);
    for (uint32_t i = 0; run.loaded != NULL && i < run.program_count; i++) {
        tdm_program_free(run.loaded[i].program);
        tdm_schedule_free(run.loaded[i].schedule);
    }
    free(run.loaded);
    free(run.programs);
    return status;
}
