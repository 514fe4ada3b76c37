/* SPDX-License-Identifier: Apache-2.0 */
/* Trains by one schedule: runs its steps and the evaluations between them, saves and records. */
#include "executor/run_parts.h"

#include "base/size.h"
#include "executor/batch.h"
#include "executor/evaluate.h"
#include "executor/log.h"
#include "executor/midstep.h"
#include "executor/rerun.h"
#include "executor/state.h"
#include "executor/team_walk.h"
#include "executor/within.h"
#include "schedule/learning_rate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How far a training is. The next step depends on this, the weights and the optimizer's state,
 * and on nothing else. */
struct position {
    uint64_t step; /* the last one that is done; 0: none */
    uint64_t seed; /* decides, with a step's number, its sequences and how it rounds */
    const struct tdm_optimizer_settings *settings; /* learning rate and its schedule */
};

/* What training one program needs beside the arenas. */
struct training {
    struct tdm_run *run;
    const struct tdm_program *program;
    struct tdm_run_result *result;
    struct position position;
    struct tdm_history history; /* of all steps up to `position` */
    struct tdm_team_walk *walk;
    /* of the ranks, in the first step, which is measured; NULL after it */
    struct tdm_observer **observers;
    struct tdm_trace_arena (*scanned)[TDM_MAX_PLACES]; /* [ranks], of that step */
    double *unit_norms;                                /* [units of the model] of the last step */
    uint64_t *used_bytes; /* [ranks] of the device after a step, as its driver reports it; 0: not
                             known */
    struct tdm_midstep midstep;
    struct tdm_evaluation *evaluation;    /* NULL: none */
    struct tdm_batch *batch;              /* NULL: nothing is computed */
    struct tdm_log *log;                  /* NULL: none */
    const volatile sig_atomic_t *cut;     /* not zero: ends a step in the middle */
    struct tdm_run_wishes wishes;         /* after the last step */
    struct tdm_within *within;            /* saves within steps; NULL: none */
    const struct tdm_checkpoint *goes_on; /* within the next step; NULL: that begins */
    double earlier_seconds;               /* of its ops before */
    bool evaluates;                       /* an evaluation was interrupted */
    bool is_overwritten;                  /* an evaluation came before the measured step */
};

/* What is known of a step when it has ended. */
struct ended_step {
    uint64_t number;
    double loss, gradient_norm; /* NAN: nothing is computed */
    int64_t start_ns, end_ns;
};

/* ---- one step ---- */

/* Writes the tokens of a step into the arenas. */
static enum tdm_status write_tokens(const struct training *t, struct tdm_step *step,
                                    struct tdm_error *err)
{
    if (t->batch == NULL)
        return TDM_OK;
    tdm_batch_step(t->batch, step->seed, step->number);
    tdm_batch_describe(t->batch, step);
    return tdm_state_write_tokens(t->run->arenas, t->program, t->batch->inputs, t->batch->targets,
                                  err);
}

static enum tdm_status walk(struct training *t, const struct tdm_step *step,
                            struct ended_step *ended, struct tdm_error *err)
{
    const struct tdm_arenas *arenas = tdm_run_here(t->run);
    ended->number = step->number;
    ended->start_ns = arenas->backend->now(arenas->executor);
    t->result->begun = true;
    tdm_midstep_begin(&t->midstep, step->number, ended->start_ns);
    tdm_within_begin(t->within, step->number, t->earlier_seconds);
    tdm_within_go_on(t->walk, t->run->arenas, t->goes_on);
    enum tdm_status status = tdm_team_walk_step(t->walk, step, t->observers, t->cut, err);
    ended->end_ns = arenas->backend->now(arenas->executor);
    if (status == TDM_INTERRUPTED)
        (void)tdm_midstep_cut(&t->midstep, tdm_walk_launched(tdm_team_walk_first(t->walk)),
                              ended->end_ns, NULL);
    if (status == TDM_INTERRUPTED)
        (void)tdm_within_stopped(t->within, err);
    return status;
}

/* Are the arenas scanned after the step? What an evaluation before it left there would count. */
static bool scans(const struct training *t)
{
    return t->observers != NULL && t->run->options->backend->executes && !t->is_overwritten;
}

static bool is_here(const struct training *t, uint32_t rank)
{
    return t->run->arenas[rank].backend != NULL;
}

/* Finds which bytes of the arenas the measured step touched; the result has the most of all ranks.
 */
static enum tdm_status scan(const struct training *t, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; rank < t->run->ranks; rank++)
        for (uint32_t place = 0;
             is_here(t, rank) && place < t->result->topology.place_count && status == TDM_OK;
             place++) {
            struct tdm_trace_arena *most = &t->result->arenas[place];
            struct tdm_trace_arena *arena = &t->scanned[rank][place];
            *arena = *most;
            status = tdm_arenas_scan(&t->run->arenas[rank], (enum tdm_place)place,
                                     &arena->touched_bytes, &arena->highest_byte, err);
            most->touched_bytes = tdm_most(most->touched_bytes, arena->touched_bytes);
            most->highest_byte = tdm_most(most->highest_byte, arena->highest_byte);
        }
    t->result->scanned = status == TDM_OK;
    return status;
}

/* What is planned for a rank's device: the arenas of all ranks on it, and the runtime, which a
 * process has once. */
static uint64_t planned_device_bytes(const struct training *t, const struct tdm_arenas *arenas)
{
    return tdm_size_add(tdm_size_mul(arenas->bytes[TDM_DEVICE], arenas->sharers[TDM_DEVICE]),
                        t->result->runtime_planned_bytes);
}

/* Reads the device memory that the drivers report after a step, and notes the most so far. The
 * device that most ranks share has most. */
static enum tdm_status read_device_use(const struct training *t, struct tdm_error *err)
{
    struct tdm_run_result *result = t->result;
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; rank < t->run->ranks && status == TDM_OK; rank++) {
        const struct tdm_arenas *arenas = &t->run->arenas[rank];
        if (!is_here(t, rank) || arenas->backend->used == NULL)
            continue;
        status = arenas->backend->used(arenas->executor, &t->used_bytes[rank], NULL, err);
        if (status != TDM_OK)
            break;
        result->device_used_bytes = tdm_most(result->device_used_bytes, t->used_bytes[rank]);
        result->device_planned_bytes =
            tdm_most(result->device_planned_bytes, planned_device_bytes(t, arenas));
        result->device_ranks = tdm_most(result->device_ranks, arenas->sharers[TDM_DEVICE]);
    }
    result->device_used_bytes = tdm_most(result->device_used_bytes, t->midstep.most_used_bytes);
    return status;
}

static enum tdm_status read_results(const struct training *t, struct ended_step *ended,
                                    struct tdm_error *err)
{
    const bool executes = t->run->options->backend->executes;
    enum tdm_status status = TDM_OK;
    if (executes)
        status = tdm_state_read_loss(t->run->arenas, t->program, &ended->loss,
                                     &ended->gradient_norm, t->unit_norms, err);
    if (status == TDM_OK && scans(t))
        status = scan(t, err);
    return status == TDM_OK ? read_device_use(t, err) : status;
}

static enum tdm_status record(const struct training *t, const struct ended_step *ended,
                              struct tdm_error *err)
{
    const struct tdm_recorded_step recorded = {.step = ended->number,
                                               .loss = ended->loss,
                                               .gradient_norm = ended->gradient_norm,
                                               .start_ns = ended->start_ns,
                                               .end_ns = ended->end_ns,
                                               .observers = t->observers,
                                               .scanned = scans(t) ? t->scanned : NULL,
                                               .device_used_bytes = t->used_bytes};
    return t->run->recorder == NULL
               ? TDM_OK
               : tdm_recorder_step(t->run->recorder, t->program, t->run->arenas, &recorded, err);
}

/* Averages the last tenth of the steps: the loss of one step depends mostly on its text. */
static void note_loss(struct tdm_run_result *result, uint64_t step, uint64_t steps, double loss)
{
    uint64_t before = steps - (steps + 9) / 10;
    bool first = result->steps == 0;
    if (first)
        result->first_loss = loss;
    if (step <= before || first)
        result->late_loss = loss;
    else
        result->late_loss += (loss - result->late_loss) / (double)(step - before);
}

/* A log that cannot be written any more ends no training. */
static void tell_lost_log(const struct training *t, const struct tdm_error *failure)
{
    const struct tdm_run_listener *listener = t->run->listener;
    if (failure->status != TDM_OK && listener->trace_lost != NULL)
        listener->trace_lost(listener->self, failure);
}

static void log_step(const struct training *t, const struct ended_step *ended, double seconds)
{
    const struct tdm_schedule *schedule = t->program->schedule;
    struct tdm_error failure = {.status = TDM_OK};
    const bool has_norms =
        t->run->options->backend->executes && tdm_program_norms_buffer(t->program) != NULL;
    const struct tdm_log_step logged = {
        .step = ended->number,
        .has_loss = t->run->options->backend->executes,
        .has_norm = has_norms,
        .loss = ended->loss,
        .gradient_norm = ended->gradient_norm,
        .unit_norms = has_norms ? t->unit_norms : NULL,
        .learning_rate = tdm_learning_rate(t->position.settings, ended->number),
        .seconds = seconds,
        .tokens_per_second = (double)tdm_schedule_tokens(schedule) / seconds,
        .mfu = t->result->model_flops / seconds / (schedule->machine->peak_flops * schedule->ranks),
        .device_used_bytes = t->used_bytes[tdm_run_here(t->run) - t->run->arenas],
        .host_used_bytes = tdm_arenas_host_used(tdm_run_here(t->run))};
    if (t->log == NULL)
        return;
    (void)tdm_log_step(t->log, &logged, &failure);
    tell_lost_log(t, &failure);
}

/* Rows of steps that the log does not have because they were run without it: the checkpoint knows
 * their losses and norms. */
static void fill_log(const struct training *t)
{
    const uint64_t had = tdm_log_last_step(t->log);
    const bool executes = t->run->options->backend->executes;
    struct tdm_error failure = {.status = TDM_OK};
    for (uint64_t step = had + 1; had > 0 && step <= t->history.count; step++) {
        const struct tdm_history_step *known = &t->history.steps[step - 1];
        const struct tdm_log_step logged = {.step = step,
                                            .has_loss = executes,
                                            .has_norm = executes && !isnan(known->gradient_norm),
                                            .loss = known->loss,
                                            .gradient_norm = known->gradient_norm,
                                            .learning_rate = NAN,
                                            .seconds = NAN,
                                            .tokens_per_second = NAN,
                                            .mfu = NAN};
        (void)tdm_log_step(t->log, &logged, &failure);
    }
    tell_lost_log(t, &failure);
}

/* Finds the first op whose output is not finite, if the user wants it, and adds it to the message.
 */
static void find_first(const struct training *t, uint64_t step, struct tdm_error *err)
{
    const struct tdm_rerun rerun = {.run = t->run,
                                    .program = t->program,
                                    .walk = t->walk,
                                    .batch = t->batch,
                                    .stop = t->run->options->stop,
                                    .saved_step = t->result->saved_step,
                                    .within_step = t->result->within_step,
                                    .last = step};
    struct tdm_error found = {.status = TDM_OK};
    struct tdm_rerun_start from = {0};
    char within[96] = "";
    if (!t->run->options->check_finite || t->batch == NULL || err == NULL)
        return;
    size_t length = strlen(err->message);
    if (tdm_rerun(&rerun, &from, &found) == TDM_OK)
        snprintf(found.message, sizeof(found.message),
                 "all outputs are finite when the steps after %llu run again",
                 (unsigned long long)from.step);
    if (from.op > 0) /* the checkpoint may hold what it is about */
        snprintf(within, sizeof(within), "; of step %llu only the ops from %llu on were run again",
                 (unsigned long long)from.step + 1, (unsigned long long)from.op + 1);
    snprintf(err->message + length, sizeof(err->message) - length, ": %s%s", found.message, within);
}

/* What to do about a loss, or weights, that are not finite. `untrained`: no update was made before.
 */
static enum tdm_status hint_lower(const struct training *t, bool untrained, struct tdm_error *err)
{
    if (untrained)
        return tdm_hint(err, "no update was made before it: look at the weights and the tokens%s",
                        t->run->options->check_finite ? "" : " (--check-finite names the op)");
    const uint64_t saved = tdm_most(t->result->saved_step, t->result->resumed_step);
    if (!tdm_run_saves_checkpoints(t->run->options) || saved == 0)
        return tdm_hint(err, "lower the learning rate (--set optimizer.learning_rate=R)");
    return tdm_hint(err,
                    "the checkpoint of step %llu is good: --resume it with a lower learning rate "
                    "(--set optimizer.learning_rate=R)",
                    (unsigned long long)saved);
}

static bool updates(const struct training *t)
{
    return t->program->schedule->optimizer.kind != TDM_OPTIMIZER_NONE;
}

/* What of an ended step is infinite or NaN, which ends a training; NULL: nothing. A gradient norm
 * that is spoils the weights. */
static const char *what_is_not_finite(const struct training *t, const struct ended_step *ended)
{
    if (!t->run->options->backend->executes)
        return NULL;
    if (!isfinite(ended->loss))
        return "loss";
    return tdm_program_norms_buffer(t->program) != NULL && !isfinite(ended->gradient_norm)
               ? "gradient norm"
               : NULL;
}

/* Adds an ended step to the training's results and history, and reports it. */
static enum tdm_status count(struct training *t, const struct ended_step *ended,
                             struct tdm_error *err)
{
    const struct tdm_run_listener *listener = t->run->listener;
    struct tdm_run_result *result = t->result;
    double seconds = t->earlier_seconds + 1e-9 * (double)(ended->end_ns - ended->start_ns);
    note_loss(result, ended->number, t->run->options->steps, ended->loss);
    result->steps = ended->number;
    result->seconds += seconds;
    result->tokens += tdm_schedule_tokens(t->program->schedule);
    log_step(t, ended, seconds);
    const char *spoiled = what_is_not_finite(t, ended);
    if (spoiled != NULL) {
        result->failed = spoiled;
        tdm_fail(err, TDM_INPUT, "the %s of step %llu is not a number", spoiled,
                 (unsigned long long)ended->number);
        (void)tdm_run_weights_await(&t->run->weights, &result->saved_step, NULL);
        find_first(t, ended->number, err);
        return hint_lower(t, ended->number == 1 || !updates(t), err);
    }
    listener->stepped(listener->self, t->program, ended->number, ended->loss, ended->gradient_norm,
                      seconds);
    return tdm_history_add(&t->history, ended->loss, ended->gradient_norm, err);
}

static void drop_observers(struct training *t)
{
    for (uint32_t rank = 0; t->observers != NULL && rank < t->run->ranks; rank++)
        tdm_observer_free(t->observers[rank]);
    free(t->observers);
    t->observers = NULL;
}

/* Runs the next step. */
static enum tdm_status next_step(struct training *t, struct tdm_error *err)
{
    const struct tdm_recorder *recorder = t->run->recorder;
    const uint64_t number = t->position.step + 1;
    struct tdm_step step = {.number = number,
                            .learning_rate = tdm_learning_rate(t->position.settings, number),
                            .seed = t->position.seed,
                            .untimed = recorder == NULL || t->goes_on != NULL ||
                                       !tdm_recorder_times(recorder, number)};
    struct ended_step ended = {.loss = NAN, .gradient_norm = NAN};
    enum tdm_status status = write_tokens(t, &step, err);
    if (status == TDM_OK)
        status = walk(t, &step, &ended, err);
    if (status == TDM_OK)
        status = read_results(t, &ended, err);
    if (status == TDM_OK)
        status = record(t, &ended, err);
    if (status == TDM_OK)
        status = count(t, &ended, err);
    if (status != TDM_OK)
        return status;
    t->position.step = number;
    t->goes_on = NULL;
    t->earlier_seconds = 0;
    drop_observers(t);
    return TDM_OK;
}

/* ---- between steps ---- */

/* Saves what is to be saved after this step. */
static enum tdm_status save(struct training *t, struct tdm_error *err)
{
    enum tdm_status status =
        tdm_run_weights_save(&t->run->weights, t->run->arenas, t->program, &t->history, &t->wishes,
                             &t->result->saved_step, err);
    if (status != TDM_INPUT)
        return status;
    find_first(t, t->position.step, err); /* a weight is not finite */
    return hint_lower(t, false, err);
}

static bool is_cut(const struct training *t)
{
    return t->cut != NULL && *t->cut;
}

/* Ends the training if it was told to stop while a step was under way. */
static enum tdm_status check_stop(const struct training *t, struct tdm_error *err)
{
    const struct tdm_run_options *options = t->run->options;
    if (!tdm_run_saves_checkpoints(options) || !t->wishes.stop ||
        t->position.step == options->steps)
        return TDM_OK;
    tdm_processes_fail_alike(options->processes);
    return tdm_fail(err, TDM_INTERRUPTED, "interrupted after step %llu",
                    (unsigned long long)t->position.step);
}

/* Evaluates on a text, then records and reports the result. */
static enum tdm_status evaluate_on(struct training *t, uint32_t number, struct tdm_error *err)
{
    const struct tdm_run_options *options = t->run->options;
    const struct tdm_run_listener *listener = t->run->listener;
    struct tdm_run_validation *validation = &t->result->validations[number];
    const char *text = options->texts[number].name;
    const uint64_t step = t->position.step;
    /* one of several processes must not leave the others in it: then a step follows, and a save */
    const volatile sig_atomic_t *stop = options->processes == NULL ? options->stop : t->cut;
    double loss, seconds;
    enum tdm_status status =
        tdm_evaluation_run(t->evaluation, number, step, stop, &loss, &seconds, err);
    t->evaluates = status == TDM_INTERRUPTED;
    uint64_t tokens = tdm_evaluation_tokens(t->evaluation, number);
    /* the step that a run goes on from is in another trace */
    if (status == TDM_OK && t->run->recorder != NULL && step > t->result->resumed_step)
        status = tdm_recorder_evaluated(t->run->recorder, step, text, loss, tokens, seconds, err);
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
    listener->evaluated(listener->self, step, text, loss, tokens, seconds);
    struct tdm_error failure = {.status = TDM_OK};
    if (t->log != NULL)
        (void)tdm_log_evaluation(t->log, step, text, loss, tokens, seconds, &failure);
    tell_lost_log(t, &failure);
    return TDM_OK;
}

/* Is this step one to evaluate after? */
static bool is_evaluated(const struct training *t)
{
    const struct tdm_run_options *options = t->run->options;
    const uint64_t step = t->position.step;
    return t->evaluation != NULL && (step % options->evaluate_every == 0 || step == options->steps);
}

/* Evaluates on the texts from number `first` on. */
static enum tdm_status evaluate(struct training *t, uint32_t first, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t i = first; i < t->run->options->text_count && status == TDM_OK; i++)
        status = evaluate_on(t, i, err);
    return status;
}

/* A step is saved before its evaluation. So a run that goes on from it evaluates on the texts of
 * which the log has no row yet; the first one to do that is the same in all processes. The
 * next step is observed, but its arenas are not scanned. */
static enum tdm_status evaluate_again(struct training *t, struct tdm_error *err)
{
    struct tdm_processes *processes = t->run->options->processes;
    uint32_t first = t->log == NULL ? 0 : tdm_log_evaluated(t->log);
    if (t->result->resumed_step == 0 || t->goes_on != NULL || !is_evaluated(t))
        return TDM_OK;
    enum tdm_status status =
        processes == NULL ? TDM_OK
                          : tdm_processes_broadcast(processes, 0, &first, sizeof(first), err);
    if (status != TDM_OK || first >= t->run->options->text_count)
        return status;
    t->is_overwritten = true;
    return evaluate(t, first, err);
}

/* ---- a training ---- */

/* Opens the evaluation, with its text. */
static enum tdm_status open_evaluation(struct training *t, struct tdm_error *err)
{
    const struct tdm_run_options *options = t->run->options;
    const struct tdm_loaded *evaluator = &t->run->loaded[options->schedule_count];
    if (options->evaluate_path == NULL)
        return TDM_OK;
    return tdm_evaluation_new(evaluator->program, evaluator->forecasts, t->run->arenas,
                              &t->run->team, options->backend->executes ? t->run->texts : NULL,
                              options->text_count, t->position.seed, options->evaluate_windows,
                              &t->evaluation, err);
}

/* Reports the text, fills the arenas with the pattern, and writes the first weights. */
static enum tdm_status fill_arenas(struct training *t, struct tdm_error *err)
{
    struct tdm_run *run = t->run;
    if (!run->options->backend->executes)
        return TDM_OK;
    t->result->unigram_entropy = tdm_tokens_unigram_entropy(run->tokens);
    run->listener->tokens(run->listener->self, run->tokens, t->result->unigram_entropy);
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; rank < run->ranks && status == TDM_OK; rank++)
        if (run->arenas[rank].backend != NULL)
            status = tdm_arenas_fill(&run->arenas[rank], run->options->stop, err);
    return status == TDM_OK ? tdm_run_weights_init(&run->weights, run->arenas, t->program, err)
                            : status;
}

/* Takes the position and the history of the checkpoint that the run goes on from, if any. */
static enum tdm_status resume(struct training *t, struct tdm_error *err)
{
    const struct tdm_checkpoint *resumed = t->run->weights.resumed;
    if (resumed == NULL)
        return TDM_OK;
    enum tdm_status status = tdm_checkpoint_history(resumed, &t->history, err);
    for (uint64_t i = 0; i < t->history.count && status == TDM_OK; i++) {
        note_loss(t->result, i + 1, t->run->options->steps, t->history.steps[i].loss);
        t->result->steps = i + 1;
    }
    t->position.step = t->result->resumed_step = resumed->step;
    t->goes_on = resumed->parts != NULL ? resumed : NULL;
    t->earlier_seconds = resumed->within_seconds;
    return status;
}

static void drop_traced(const struct tdm_run *run, const struct tdm_loaded *loaded)
{
    for (uint32_t rank = 0; rank < run->ranks; rank++)
        tdm_forecast_drop_traced(loaded->forecasts[rank]);
}

/* Records the forecasts in the trace. Then drops what only the trace needs. */
static enum tdm_status record_forecasts(const struct training *t, uint32_t index,
                                        struct tdm_error *err)
{
    struct tdm_run *run = t->run;
    const struct tdm_run_options *options = run->options;
    const struct tdm_loaded *loaded = &run->loaded[index];
    if (run->recorder == NULL)
        return TDM_OK;
    enum tdm_status status = tdm_recorder_program(run->recorder, options->schedule_paths[index],
                                                  loaded->forecasts, t->position.step + 1, err);
    drop_traced(run, loaded);
    if (status != TDM_OK || options->evaluate_path == NULL)
        return status;
    const struct tdm_loaded *evaluator = &run->loaded[options->schedule_count];
    status =
        tdm_recorder_evaluator(run->recorder, options->evaluate_path, evaluator->forecasts, err);
    drop_traced(run, evaluator);
    return status;
}

/* Observers of the first step, and room for what is found after steps. */
static enum tdm_status open_measuring(struct training *t, struct tdm_error *err)
{
    const uint32_t ranks = t->run->ranks;
    t->observers = calloc(ranks, sizeof(*t->observers));
    t->scanned = calloc(ranks, sizeof(*t->scanned));
    t->used_bytes = calloc(ranks, sizeof(*t->used_bytes));
    t->unit_norms = calloc(t->program->schedule->model->unit_count, sizeof(*t->unit_norms));
    if (t->observers == NULL || t->scanned == NULL || t->used_bytes == NULL ||
        t->unit_norms == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", ranks);
    enum tdm_status status = TDM_OK;
    if (t->goes_on !=
        NULL) /* the ops before it were another run's: only whole steps are measured */
        drop_observers(t);
    for (uint32_t rank = 0; t->observers != NULL && rank < ranks && status == TDM_OK; rank++)
        if (is_here(t, rank))
            status = tdm_observer_new(tdm_team_walk_program(t->walk, rank), &t->run->arenas[rank],
                                      &t->observers[rank], err);
    return status;
}

/* Allocates all that the steps need. close_training() must follow even if it fails. */
static enum tdm_status open_training(struct training *t, uint32_t index, struct tdm_error *err)
{
    struct tdm_run *run = t->run;
    const struct tdm_backend *backend = run->options->backend;
    struct tdm_forecast *const *forecasts = run->loaded[index].forecasts;
    const struct tdm_arenas *here = tdm_run_here(run);
    t->result->outside_bytes = backend->outside_bytes(here->executor);
    enum tdm_status status = resume(t, err);
    if (status == TDM_OK)
        status = tdm_team_walk_open(t->program, forecasts, run->arenas, &run->team, &t->walk, err);
    if (status == TDM_OK)
        status = open_measuring(t, err);
    if (status == TDM_OK && backend->executes)
        status = tdm_batch_new(run->tokens, t->program->schedule, &t->batch, err);
    if (status == TDM_OK)
        status = tdm_team_walk_prepare(t->walk, err);
    if (status == TDM_OK)
        status = open_evaluation(t, err);
    if (status == TDM_OK)
        status = fill_arenas(t, err);
    if (status == TDM_OK)
        status = tdm_run_weights_prepare(&run->weights, t->program, err);
    if (status == TDM_OK)
        status = record_forecasts(t, index, err);
    if (status == TDM_OK && run->options->log_path != NULL)
        status = tdm_log_open(run->options->log_path, t->program->schedule->model->layers,
                              t->position.step, &t->log, err);
    run->weights.log = t->log;
    if (status != TDM_OK)
        return status;
    if (t->log != NULL)
        fill_log(t);
    tdm_midstep_open(&t->midstep, here, forecasts[here - run->arenas], run->listener, run->recorder,
                     planned_device_bytes(t, here));
    tdm_walk_watch(tdm_team_walk_first(t->walk), &t->midstep.watch);
    status = tdm_within_open(run, t->walk, t->program, &t->history, t->result, &t->within, err);
    if (status != TDM_OK)
        return status;
    t->midstep.pauses = t->within != NULL;
    t->cut = run->options->stop;
    if (tdm_run_saves_checkpoints(run->options)) { /* an interrupted step is ended and saved */
        t->midstep.stop = run->options->stop;
        t->cut = run->options->cut;
    }
    return TDM_OK;
}

/* If a rank hangs, it may still use all of this. */
static void close_training(struct training *t)
{
    t->run->hangs = tdm_team_walk_hangs(t->walk) || tdm_evaluation_hangs(t->evaluation);
    t->result->hangs = t->run->hangs;
    if (t->run->hangs)
        return;
    tdm_within_close(t->within);
    tdm_evaluation_free(t->evaluation);
    tdm_batch_free(t->batch);
    drop_observers(t);
    free(t->scanned);
    free(t->unit_norms);
    free(t->used_bytes);
    tdm_team_walk_free(t->walk);
    tdm_history_free(&t->history);
}

enum tdm_status tdm_train(struct tdm_run *run, uint32_t index, struct tdm_run_result *result,
                          struct tdm_error *err)
{
    const struct tdm_program *program = run->programs[index];
    struct training t = {
        .run = run,
        .program = program,
        .result = result,
        .position = {.seed = run->weights.seed, .settings = &program->schedule->optimizer}};
    enum tdm_status status = open_training(&t, index, err);
    if (status == TDM_OK && t.position.step == run->options->steps) /* nothing is left to train */
        status = save(&t, err);
    if (status == TDM_OK)
        status = evaluate_again(&t, err);
    while (status == TDM_OK && t.position.step < run->options->steps) {
        status = next_step(&t, err);
        if (status == TDM_OK)
            status = tdm_run_wishes(&run->weights, &t.wishes, err);
        if (status == TDM_OK) /* before an evaluation overwrites the gradients */
            status = save(&t, err);
        if (status == TDM_OK)
            status = check_stop(&t, err);
        if (status == TDM_OK && is_evaluated(&t))
            status = evaluate(&t, 0, err);
    }
    /* an evaluation was interrupted */
    struct tdm_error late = {.status = TDM_OK};
    t.wishes.stop = true;
    if (status == TDM_INTERRUPTED && t.evaluates && run->options->processes == NULL &&
        t.position.step > result->resumed_step && tdm_run_saves_checkpoints(run->options) &&
        !is_cut(&t) && save(&t, &late) != TDM_OK) {
        status = late.status;
        if (err != NULL)
            *err = late;
    }
    /* a save goes on; its failure counts unless something failed before */
    const enum tdm_status saved =
        tdm_run_weights_await(&run->weights, &result->saved_step, status == TDM_OK ? err : NULL);
    status = status == TDM_OK ? saved : status;
    result->finished = status == TDM_OK;
    run->weights.log = NULL;
    status = tdm_log_close(t.log, status, err);
    close_training(&t);
    return status;
}
