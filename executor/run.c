/* SPDX-License-Identifier: Apache-2.0 */
/* A run: loads and validates schedules, allocates the arenas, opens the trace. train.c trains. */
#include "executor/run.h"

#include "base/size.h"
#include "base/units.h"
#include "executor/batch.h"
#include "executor/evaluate.h"
#include "executor/log.h"
#include "executor/run_parts.h"
#include "executor/run_paths.h"
#include "executor/within.h"
#include "texts/token_file.h"
#include "schedule/cost.h"
#include "schedule/program.h"
#include "schedule/training_settings.h"
#include "schedule/validate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The largest share of a predicted step that timing ops may take, unless it is asked for. */
#define MAX_TIMING_SHARE 0.01

/* A run with more op times than this records those of its first step only, unless asked for. */
#define MAX_TIMINGS 2000000u

/* A schedule must fit the limits that it was planned for: either may have been edited since. */
static enum tdm_status check_limits(const struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_topology *topology = &schedule->machine->topology;
    for (uint32_t place = 0; place < topology->place_count; place++) {
        uint64_t limit_bytes = tdm_schedule_limit(schedule, (enum tdm_place)place);
        uint64_t needed = tdm_program_used_bytes(program, (enum tdm_place)place);
        if (needed <= limit_bytes)
            continue;
        char need[TDM_FORMAT_SIZE], limit[TDM_FORMAT_SIZE], prefix[TDM_PLACE_PREFIX];
        if (place != TDM_DEVICE && place != topology->far)
            return tdm_fail(err, TDM_INFEASIBLE, "needs %s of %s memory, the machine has %s",
                            tdm_format_bytes(needed, need), topology->places[place].name,
                            tdm_format_bytes(limit_bytes, limit));
        tdm_fail(err, TDM_INFEASIBLE, "needs %s of %s memory, \"%smemory_bytes\" allows %s",
                 tdm_format_bytes(needed, need), topology->places[place].name,
                 tdm_place_prefix(topology, (enum tdm_place)place, prefix),
                 tdm_format_bytes(limit_bytes, limit));
        return tdm_hint(err, "plan again with a larger --%s%smemory",
                        place == TDM_DEVICE ? "" : topology->places[place].name,
                        place == TDM_DEVICE ? "" : "-");
    }
    return TDM_OK;
}

/* A program that is being checked. */
struct check {
    struct tdm_validation *validation;
    struct tdm_forecast *forecast;
};

static enum tdm_status check_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct check *c = self;
    enum tdm_status status = tdm_validation_take(c->validation, item, err);
    return status == TDM_OK
               ? tdm_forecast_take(c->forecast, item, tdm_validation_waits(c->validation), err)
               : status;
}

/* Validates a program of several ranks, and simulates them. */
static enum tdm_status check_team(const struct tdm_program *program, bool for_trace,
                                  struct tdm_forecast **forecasts, struct tdm_error *err)
{
    enum tdm_status status = tdm_program_validate(program, program->arena_bytes, err);
    return status == TDM_OK ? tdm_forecast_team(program, for_trace, forecasts, err) : status;
}

/* Validates and simulates a program in one emission of its items. */
static enum tdm_status check(const struct tdm_program *program, bool for_trace,
                             struct tdm_forecast **forecasts, struct tdm_error *err)
{
    struct check c = {NULL, NULL};
    if (program->ranks > 1)
        return check_team(program, for_trace, forecasts, err);
    enum tdm_status status = tdm_validation_new(program, program->arena_bytes, &c.validation, err);
    if (status == TDM_OK)
        status = tdm_forecast_begin(program, for_trace, &c.forecast, err);
    if (status == TDM_OK)
        status = tdm_program_emit(program, check_item, &c, err);
    if (status == TDM_OK)
        status = tdm_validation_finish(c.validation, err);
    if (status == TDM_OK)
        status = tdm_forecast_end(c.forecast, err);
    tdm_validation_free(c.validation);
    if (status != TDM_OK) {
        tdm_forecast_free(c.forecast);
        return status;
    }
    forecasts[0] = c.forecast;
    return TDM_OK;
}

static void unload(struct tdm_loaded *loaded)
{
    for (uint32_t rank = 0; loaded->forecasts != NULL && rank < loaded->program->ranks; rank++)
        tdm_forecast_free(loaded->forecasts[rank]);
    free(loaded->forecasts);
    tdm_program_free(loaded->program);
    tdm_schedule_free(loaded->schedule);
}

/* Loads, lowers and checks one schedule. `pairs` are settings that replace its own. */
static enum tdm_status load_one(const char *path, const char *const *pairs, size_t pair_count,
                                bool for_trace, struct tdm_loaded *loaded, struct tdm_error *err)
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
    if (status == TDM_OK) {
        loaded->forecasts = calloc(loaded->program->ranks, sizeof(*loaded->forecasts));
        status = loaded->forecasts == NULL
                     ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for forecasts")
                     : check(loaded->program, for_trace, loaded->forecasts, err);
    }
    return status == TDM_OK ? TDM_OK : tdm_about(err, path);
}

static void tell_planned(const struct tdm_run *run, const char *path,
                         const struct tdm_loaded *loaded)
{
    struct tdm_amounts amounts =
        tdm_amounts_of(loaded->program, run->options->backend, run->options->trace_path != NULL);
    if (tdm_run_saves_checkpoints(run->options))
        amounts.pageable_bytes =
            tdm_size_add(amounts.pageable_bytes, loaded->schedule->snapshot_bytes);
    run->listener->planned(run->listener->self, path, loaded->program, &amounts,
                           loaded->forecasts[0]->step_seconds);
}

static enum tdm_status check_stop(const struct tdm_run_options *options, struct tdm_error *err)
{
    return options->stop != NULL && *options->stop
               ? tdm_fail(err, TDM_INTERRUPTED, "interrupted before the first step")
               : TDM_OK;
}

/* All programs of a run share the arenas of their ranks. */
static enum tdm_status check_ranks(const struct tdm_run *run, uint32_t index, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    const struct tdm_program *evaluator = run->programs[options->schedule_count];
    const uint32_t ranks = run->programs[index]->ranks;
    const bool alone = options->evaluate_path == NULL;
    if (ranks == run->programs[0]->ranks && (alone || evaluator->ranks == ranks))
        return TDM_OK;
    tdm_fail(err, TDM_INPUT, "%s: is a schedule for %u ranks, and %s for %u",
             options->schedule_paths[index], ranks,
             ranks != run->programs[0]->ranks ? options->schedule_paths[0] : options->evaluate_path,
             ranks != run->programs[0]->ranks ? run->programs[0]->ranks : evaluator->ranks);
    return tdm_hint(err, "schedules of one run must have the same ranks");
}

static enum tdm_status load_all(struct tdm_run *run, struct tdm_run_result *results,
                                struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    struct tdm_loaded *evaluator = &run->loaded[options->schedule_count];
    const bool for_trace = options->trace_path != NULL && !options->dry_run;
    if (options->evaluate_path != NULL) {
        enum tdm_status status =
            load_one(options->evaluate_path, NULL, 0, for_trace, evaluator, err);
        if (status != TDM_OK)
            return status;
        run->programs[options->schedule_count] = evaluator->program;
    }
    for (uint32_t i = 0; i < options->schedule_count; i++) {
        enum tdm_status status = check_stop(options, err);
        if (status == TDM_OK)
            status = load_one(options->schedule_paths[i], options->pairs, options->pair_count,
                              for_trace, &run->loaded[i], err);
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
        status = check_ranks(run, i, err);
        if (status != TDM_OK)
            return status;
        if (options->evaluate_path != NULL)
            status = tdm_evaluation_check(options->evaluate_path, evaluator->program,
                                          options->schedule_paths[i], run->loaded[i].program, err);
        if (status != TDM_OK)
            return status;
        results[i].predicted_step_seconds = run->loaded[i].forecasts[0]->step_seconds;
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

/* The last part of a dry run: is there enough memory for the run? */
static enum tdm_status compare_memory(const struct tdm_run *run, struct tdm_error *err)
{
    struct tdm_free_memory memory;
    enum tdm_status status =
        tdm_arenas_check(run->options->backend, run->program_count, run->programs, &memory, err);
    if (run->options->backend->executes && (status == TDM_OK || status == TDM_INFEASIBLE))
        run->listener->compared(run->listener->self, &memory);
    return status;
}

/* Opens a text to evaluate on. */
static enum tdm_status open_text(struct tdm_run *run, uint32_t number, struct tdm_error *err)
{
    const struct tdm_run_text *text = &run->options->texts[number];
    const struct tdm_schedule *schedule = run->programs[run->options->schedule_count]->schedule;
    enum tdm_status status;
    if (text->path != NULL) {
        status = tdm_tokens_open(text->path, schedule->model->vocabulary, &run->texts[number], err);
    } else {
        status = tdm_tokens_split(run->tokens, text->share, &run->texts[number], err);
        if (status != TDM_OK)
            tdm_about(err, tdm_tokens_name(run->tokens));
    }
    return status == TDM_OK ? tdm_evaluation_check_tokens(run->texts[number], schedule, err)
                            : status;
}

/* A mask of the whole text may leave a part of it without a target. */
static enum tdm_status check_targets(const struct tdm_tokens *tokens, const char *what_for,
                                     struct tdm_error *err)
{
    if (tokens == NULL || !tdm_tokens_are_masked(tokens) || tdm_tokens_targets(tokens) > 0)
        return TDM_OK;
    return tdm_fail(err, TDM_INPUT, "%s: none of the %" PRIu64 " tokens to %s on is a target",
                    tdm_tokens_name(tokens), tdm_tokens_count(tokens), what_for);
}

/* Opens the texts of a run, and checks that they suffice for its schedules. */
static enum tdm_status open_tokens(struct tdm_run *run, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    const struct tdm_schedule *schedule = run->programs[0]->schedule;
    uint32_t vocabulary = schedule->model->vocabulary;
    enum tdm_status status = tdm_tokens_open(options->tokens_path, vocabulary, &run->tokens, err);
    if (status == TDM_OK && options->mask_path != NULL)
        status = tdm_tokens_mask(run->tokens, options->mask_path, err);
    if (status == TDM_OK)
        status = tdm_tokens_read_in(run->tokens, options->order, err);
    for (uint32_t i = 0; options->evaluate_path != NULL && i < options->text_count; i++)
        if (status == TDM_OK)
            status = open_text(run, i, err);
    if (status == TDM_OK)
        status = check_targets(run->tokens, "train", err);
    for (uint32_t i = 0; i < options->text_count && status == TDM_OK; i++)
        status = check_targets(run->texts[i], "evaluate", err);
    for (uint32_t i = 0; i < options->schedule_count && status == TDM_OK; i++) {
        struct tdm_batch *batch = NULL;
        status = tdm_batch_new(run->tokens, run->programs[i]->schedule, &batch, err);
        tdm_batch_free(batch);
    }
    return status;
}

/* Host memory that is not pinned: what was planned as pageable, and what could not be pinned. */
static uint64_t pageable_bytes(const struct tdm_run *run, uint64_t pinned_bytes)
{
    const struct tdm_backend *backend = run->options->backend;
    uint64_t most = 0;
    for (uint32_t i = 0; i < run->program_count; i++) {
        const struct tdm_amounts amounts = tdm_amounts_of(run->programs[i], backend, true);
        most = amounts.pageable_bytes > most ? amounts.pageable_bytes : most;
    }
    if (backend->own_device_memory)
        return tdm_size_add(most, tdm_arenas_host_bytes(tdm_run_here(run)) - pinned_bytes);
    return tdm_size_add(most, tdm_size_mul(tdm_arenas_device_bytes(tdm_run_here(run)), run->ranks));
}

/* Ops of all steps are timed if they are not too many and timing them costs little; else only
 * those of the first step. */
static uint64_t choose_timed(const struct tdm_run *run)
{
    const struct tdm_run_options *options = run->options;
    uint64_t ops = 0;
    bool cheap = true;
    for (uint32_t i = 0; i < options->schedule_count; i++) {
        ops += run->programs[i]->op_count * run->programs[i]->ranks;
        cheap = cheap && options->backend->timing_seconds * (double)run->programs[i]->op_count <=
                             MAX_TIMING_SHARE * run->loaded[i].forecasts[0]->step_seconds;
    }
    return cheap && ops <= MAX_TIMINGS / (options->steps + 1) ? 1 : UINT64_MAX;
}

static enum tdm_status open_recorder(struct tdm_run *run, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    struct tdm_recorded_start start = {
        .resumed_from = run->weights.resumed == NULL ? NULL : run->weights.resumed->directory};
    uint64_t every = 0; /* no trace */
    if (options->trace_path != NULL)
        every = options->timed_every != 0 ? options->timed_every : choose_timed(run);
    enum tdm_status status =
        tdm_processes_broadcast(options->processes, 0, &every, sizeof(every), err);
    if (status != TDM_OK || every == 0)
        return status;
    if (options->backend->pinned_bytes != NULL)
        start.pinned_bytes = options->backend->pinned_bytes(tdm_run_here(run)->executor);
    if (options->backend->executes)
        start.pageable_bytes = pageable_bytes(run, start.pinned_bytes);
    return tdm_recorder_open(options, run->listener, start, run->program_count, run->programs,
                             every, &run->recorder, err);
}

enum tdm_status tdm_run(const struct tdm_run_options *options,
                        const struct tdm_run_listener *listener, struct tdm_run_result *results,
                        struct tdm_error *err)
{
    struct tdm_run run = {.options = options, .listener = listener};
    struct tdm_arena_watch taking = listener->taking;
    taking.stop = options->stop;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < options->schedule_count; i++)
        results[i] = (struct tdm_run_result){.first_loss = NAN, .late_loss = NAN};
    run.program_count = options->schedule_count + (options->evaluate_path != NULL);
    run.loaded = calloc((size_t)run.program_count + 1, sizeof(*run.loaded));
    run.programs = calloc((size_t)run.program_count + 1, sizeof(struct tdm_program *));
    if (run.loaded == NULL || run.programs == NULL)
        status =
            tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u schedules", options->schedule_count);
    if (status == TDM_OK)
        status = tdm_run_check_paths(options, err);
    if (status == TDM_OK && options->log_path != NULL)
        status =
            tdm_log_check(options->log_path, options->resume_path != NULL, options->force, err);
    if (status == TDM_OK)
        status = load_all(&run, results, err);
    if (status == TDM_OK)
        status = tdm_within_tell_costs(&run, err);
    if (status == TDM_OK)
        status = tdm_run_weights_open(options, listener, run.programs[0], &run.weights, err);
    if (status == TDM_OK)
        status = open_tokens(&run, err);
    if (status == TDM_OK)
        status = tdm_run_weights_match(&run.weights, run.tokens, err);
    if (status == TDM_OK && options->dry_run)
        status = compare_memory(&run, err);
    if (status == TDM_OK)
        status = tdm_run_join(&run, err);
    if (status == TDM_OK)
        status = check_stop(options, err);
    if (status == TDM_OK && !options->dry_run)
        status = tdm_run_weights_begin(&run.weights, err);
    if (status != TDM_OK || options->dry_run)
        goto free_programs;

    run.ranks = run.programs[0]->ranks;
    run.arenas = calloc(run.ranks, sizeof(*run.arenas));
    if (run.arenas == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", run.ranks);
        goto free_programs;
    }
    status = tdm_arenas_take_ranks(options->backend, run.program_count, run.programs,
                                   tdm_processes_first(options->processes, run.ranks),
                                   tdm_processes_ranks(options->processes, run.ranks),
                                   options->devices, &taking, run.arenas, err);
    for (uint32_t rank = 0; rank < run.ranks && status == TDM_OK; rank++)
        run.arenas[rank].processes = options->processes;
    /* not earlier: a run that cannot begin leaves no trace */
    if (status == TDM_OK)
        status = open_recorder(&run, err);
    for (uint32_t i = 0; i < options->schedule_count && status == TDM_OK; i++)
        status = tdm_train(&run, i, &results[i], err);
    if (!run.hangs)
        tdm_arenas_release(run.arenas, run.ranks);
    status = tdm_recorder_close(run.recorder, status, err);
    if (run.hangs) /* the process ends with what that rank uses */
        return status;

free_programs:
    tdm_run_weights_close(&run.weights);
    for (uint32_t i = 0; i < TDM_RUN_MOST_TEXTS; i++)
        tdm_tokens_free(run.texts[i]);
    tdm_tokens_free(run.tokens);
    for (uint32_t i = 0; run.loaded != NULL && i < run.program_count; i++)
        unload(&run.loaded[i]);
    free(run.arenas);
    free(run.loaded);
    free(run.programs);
    return status;
}
