/* SPDX-License-Identifier: Apache-2.0 */
/* Progress output and summary of a run. */
#include "commands/run_progress.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "executor/checkpoint_folder.h"
#include "executor/forecast.h"
#include "schedule/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_CELLS 20

/* Seconds between plain lines without a terminal: the minimum, and the maximum within a step. */
#define PLAIN_SECONDS 5.0
#define LONGEST_PLAIN_SECONDS 30.0

/* Steps longer than this show progress within the step on a terminal. */
#define WITHIN_SECONDS 2.0

void tdm_progress_begin(struct tdm_progress *progress, FILE *out, uint64_t steps)
{
    const char *wanted = getenv("TIDEMARK_PROGRESS");
    *progress = (struct tdm_progress){.out = out,
                                      .terminal = isatty(fileno(out)) != 0,
                                      .quiet = wanted != NULL && strcmp(wanted, "no") == 0,
                                      .steps = steps};
}

/* Stops the current ticker before other output. */
static void leave(struct tdm_progress *progress)
{
    if (progress->waiting != NULL)
        tdm_ticker_end(progress->waiting);
}

/* Starts a ticker for slow work before the first step that prints nothing itself. */
static void await(struct tdm_progress *progress, const char *text)
{
    leave(progress);
    if (progress->waiting != NULL && progress->program == NULL)
        tdm_ticker_begin(progress->waiting, progress->out, text);
}

double tdm_progress_pause(double seconds)
{
    return fmin(LONGEST_PLAIN_SECONDS, fmax(PLAIN_SECONDS, seconds / 10));
}

static void planned(void *self, const char *path, const struct tdm_program *program,
                    const struct tdm_amounts *amounts, double predicted_seconds)
{
    struct tdm_progress *progress = self;
    char text[3][TDM_FORMAT_SIZE], seconds[TDM_FORMAT_SIZE], ranks[40] = "", takes[40] = "takes";
    const uint32_t count = program->schedule->ranks;
    leave(progress);
    if (count > 1) {
        snprintf(ranks, sizeof(ranks), " on rank 0 of %u", count);
        snprintf(takes, sizeof(takes), "each rank takes");
    }
    char shown[TDM_TEXT_SHOWN];
    fprintf(progress->out, "%s: %s, %llu tokens a step, %llu ops%s\n", tdm_text_shown(path, shown),
            program->schedule->model->name,
            (unsigned long long)tdm_schedule_tokens(program->schedule),
            (unsigned long long)program->op_count, ranks);
    fprintf(progress->out,
            "  %s %s of device, %s%s of pinned and %s of pageable host memory; predicted %s a "
            "step\n",
            takes, tdm_format_bytes(amounts->device_bytes, text[0]),
            count > 1 ? "all together " : "", tdm_format_bytes(amounts->pinned_bytes, text[1]),
            tdm_format_bytes(amounts->pageable_bytes, text[2]),
            tdm_format_seconds(predicted_seconds, seconds));
    await(progress, "  preparing the run");
}

static const char *known_bytes(uint64_t bytes, char out[TDM_FORMAT_SIZE])
{
    return bytes == UINT64_MAX ? "an unknown amount" : tdm_format_bytes(bytes, out);
}

static void compared(void *self, const struct tdm_free_memory *memory)
{
    struct tdm_progress *progress = self;
    char device[TDM_FORMAT_SIZE], host[TDM_FORMAT_SIZE];
    leave(progress);
    fputs("  free: ", progress->out);
    if (memory->device_bytes > 0)
        fprintf(progress->out, "%s of the GPU's memory, ",
                known_bytes(memory->device_bytes, device));
    fprintf(progress->out, "%s of this computer's\n", known_bytes(memory->host_bytes, host));
}

/* Warns once: the run continues, but slower. */
static void pageable(void *self, uint64_t bytes, const char *reason)
{
    struct tdm_progress *progress = self;
    char text[TDM_FORMAT_SIZE];
    leave(progress);
    if (progress->terminal)
        fputs("\r\033[K", progress->out);
    fprintf(
        progress->out,
        "warning: %s of host memory cannot be pinned (%s) and stay pageable: copies are several "
        "times slower and hold up the launches; raise the limit of locked memory (ulimit -l) or "
        "plan with a smaller --host-memory\n",
        tdm_format_bytes(bytes, text), reason);
    fflush(progress->out);
    await(progress, "  preparing the run");
}

/* Printed only on a terminal, because it takes seconds. */
static void taken(void *self, uint64_t taken_bytes, uint64_t bytes)
{
    struct tdm_progress *progress = self;
    char so_far[TDM_FORMAT_SIZE], all[TDM_FORMAT_SIZE];
    if (!progress->terminal)
        return;
    leave(progress);
    fputs("\r\033[K", progress->out);
    if (taken_bytes < bytes)
        fprintf(progress->out, "  taking host memory: %s of %s",
                tdm_format_bytes(taken_bytes, so_far), tdm_format_bytes(bytes, all));
    fflush(progress->out);
    if (taken_bytes == bytes)
        await(progress, "  preparing the run");
}

static void tokens(void *self, const struct tdm_tokens *tokens, double entropy)
{
    struct tdm_progress *progress = self;
    unsigned long long count = tdm_tokens_count(tokens), documents = tdm_tokens_documents(tokens);
    char shown[TDM_TEXT_SHOWN];
    leave(progress);
    if (count == 0) {
        fprintf(progress->out,
                "  random tokens: the loss cannot fall below %.3f (--tokens FILE trains on text)\n",
                entropy);
    } else {
        fprintf(progress->out, "  %s: %llu tokens (%s)",
                tdm_text_shown(tdm_tokens_name(tokens), shown), count, tdm_tokens_format(tokens));
        if (documents > 0)
            fprintf(progress->out, ", %llu document%s", documents, documents == 1 ? "" : "s");
        if (tdm_tokens_are_masked(tokens))
            fprintf(progress->out, ", %llu targets",
                    (unsigned long long)tdm_tokens_targets(tokens));
        fprintf(progress->out, ", unigram entropy %.3f nats\n", entropy);
    }
    await(progress, "  preparing the run");
}

/* Seconds since the last plain line. */
static double since_printed(const struct tdm_progress *progress)
{
    return tdm_now_seconds() - progress->printed_seconds;
}

static void print_bar(const struct tdm_progress *progress, double done, double all)
{
    uint64_t cells = (uint64_t)(done / all * BAR_CELLS);
    fputs("\r\033[K[", progress->out);
    for (uint64_t i = 0; i < BAR_CELLS; i++)
        fputc(i < cells ? '#' : '.', progress->out);
    fputs("] ", progress->out);
}

static void moved(void *self, const char *what, uint64_t done, uint64_t elements)
{
    struct tdm_progress *progress = self;
    if (!progress->terminal && progress->waiting != NULL && progress->waiting->runs) {
        tdm_ticker_say(progress->waiting, "  %s: %.0f%%", what,
                       100 * (double)done / (double)elements);
        return; /* the ticker prints it at its next interval */
    }
    leave(progress);
    if (progress->moving != what) { /* first block */
        progress->moving = what;
        progress->printed_seconds = tdm_now_seconds();
    }
    bool last = done == elements;
    if (last)
        progress->moving = NULL;
    if (progress->terminal)
        print_bar(progress, (double)done, (double)elements);
    else if (since_printed(progress) < PLAIN_SECONDS)
        return;
    progress->printed_seconds = tdm_now_seconds();
    fprintf(progress->out, "%s%s: %.0f%%", progress->terminal ? "" : "  ", what,
            100 * (double)done / (double)elements);
    fputs(progress->terminal && !last ? "" : "\n", progress->out);
    fflush(progress->out);
    if (last)
        await(progress, "  preparing the run");
}

/* Disables line wrap: a line wider than the terminal is truncated. */
#define WRAP_OFF "\033[?7l"
#define WRAP_ON "\033[?7h"

/* Says once what a run that was told to stop still does, and how long that takes. */
static void tell_stopping(struct tdm_progress *progress, const struct tdm_run_moment *moment)
{
    char left[TDM_FORMAT_SIZE], save[TDM_FORMAT_SIZE];
    if (!moment->stopping || progress->stopping)
        return;
    progress->stopping = true;
    if (progress->terminal)
        fputs("\r\033[K", progress->out);
    if (moment->pauses)
        fprintf(progress->out, "  stopping: step %llu is saved where a layer of its backward ends",
                (unsigned long long)moment->step);
    else
        fprintf(progress->out, "  stopping: step %llu ends in about %s%s and is saved",
                (unsigned long long)moment->step, tdm_format_seconds(moment->left_seconds, left),
                moment->left_as_planned ? " as planned" : "");
    if (progress->save_seconds > 0)
        fprintf(progress->out, " (the last save took %s)",
                tdm_format_seconds(progress->save_seconds, save));
    fputs("; a second signal stops at once\n", progress->out);
    fflush(progress->out);
}

static void within(void *self, const struct tdm_run_moment *moment)
{
    struct tdm_progress *progress = self;
    double seconds = moment->seconds;
    leave(progress);
    tell_stopping(progress, moment);
    if (progress->quiet || seconds < (progress->terminal ? WITHIN_SECONDS : PLAIN_SECONDS) ||
        (!progress->terminal && since_printed(progress) < tdm_progress_pause(seconds)))
        return;
    progress->printed_seconds = tdm_now_seconds();

    char where[TDM_WHERE_SIZE], text[2][TDM_FORMAT_SIZE];
    double share = seconds / (seconds + moment->left_seconds);
    if (progress->terminal)
        print_bar(progress, (double)(moment->step - 1) + share, (double)progress->steps);
    fprintf(
        progress->out, "%sstep %llu/%llu  %s  %s, left %s", progress->terminal ? WRAP_OFF : "  ",
        (unsigned long long)moment->step, (unsigned long long)progress->steps,
        tdm_forecast_where(moment->program, moment->phase, moment->layer, moment->chunk, where),
        tdm_format_seconds(seconds, text[0]), tdm_format_seconds(moment->left_seconds, text[1]));
    if (moment->used_bytes > 0)
        fprintf(progress->out, "  device %s used of %s planned",
                tdm_format_bytes(moment->used_bytes, text[0]),
                tdm_format_bytes(moment->planned_bytes, text[1]));
    fputs(progress->terminal ? WRAP_ON : "\n", progress->out);
    fflush(progress->out);
}

static void stepped(void *self, const struct tdm_program *program, uint64_t step, double loss,
                    double gradient_norm, double seconds)
{
    struct tdm_progress *progress = self;
    const struct tdm_schedule *schedule = program->schedule;
    leave(progress);
    if (program != progress->program) {
        progress->program = program;
        progress->seconds = 0;
        progress->validation_loss = NAN;
    }
    progress->seconds += seconds;
    bool last = step == progress->steps;
    const uint64_t done = step - progress->before;
    if (!progress->terminal && !last && done > 1 && since_printed(progress) < PLAIN_SECONDS)
        return;
    progress->printed_seconds = tdm_now_seconds();

    double tokens_per_second = (double)tdm_schedule_tokens(schedule) / seconds;
    double mfu =
        tdm_model_flops(schedule) / seconds / (schedule->machine->peak_flops * schedule->ranks);
    double left = progress->seconds / (double)done * (double)(progress->steps - step);
    char device[TDM_FORMAT_SIZE], remaining[TDM_FORMAT_SIZE];
    if (progress->terminal)
        print_bar(progress, (double)step, (double)progress->steps);
    fprintf(progress->out, "%sstep %llu/%llu", progress->terminal ? "" : "  ",
            (unsigned long long)step, (unsigned long long)progress->steps);
    if (!isnan(loss))
        fprintf(progress->out, "  loss %.4f", loss);
    if (!isnan(progress->validation_loss) && progress->terminal)
        fprintf(progress->out, "  validation %.4f", progress->validation_loss);
    if (!isnan(gradient_norm) && !progress->terminal)
        fprintf(progress->out, "  gradient norm %.3g", gradient_norm);
    if (!isnan(loss)) /* NAN: the backend computes nothing */
        fprintf(progress->out, "  %.0f tokens/s  MFU %.1f%%", tokens_per_second, 100 * mfu);
    fprintf(progress->out, "  device %s  left %s",
            tdm_format_bytes(program->arena_bytes[TDM_DEVICE], device),
            tdm_format_seconds(left, remaining));
    if (!progress->terminal || last)
        fputc('\n', progress->out);
    fflush(progress->out);
}

/* " of NAME" of a text that has a name; else "". */
static const char *of_text(const char *text, char out[TDM_TEXT_NAME + 8])
{
    const bool named = strcmp(text, TDM_TEXT_UNNAMED) != 0;
    snprintf(out, TDM_TEXT_NAME + 8, "%s%s", named ? " of " : "", named ? text : "");
    return out;
}

static void evaluated(void *self, uint64_t step, const char *text, double loss, uint64_t count,
                      double seconds)
{
    char named[TDM_TEXT_NAME + 8];
    struct tdm_progress *progress = self;
    progress->seconds += seconds; /* counts toward the estimate of the remaining time */
    progress->validation_loss = loss;
    if (progress->terminal || isnan(loss)) /* the bar shows it from the next step on */
        return;
    fprintf(progress->out, "  step %llu/%llu  validation loss%s %.4f over %llu tokens\n",
            (unsigned long long)step, (unsigned long long)progress->steps, of_text(text, named),
            loss, (unsigned long long)count);
    fflush(progress->out);
}

static void resumed(void *self, const char *directory, uint64_t step, bool within,
                    const char *differences)
{
    struct tdm_progress *progress = self;
    char shown[TDM_TEXT_SHOWN];
    leave(progress);
    progress->before = step;
    const bool done = !within && step == progress->steps;
    fprintf(progress->out, "  resumed from %s, %s step %llu of %llu%s\n",
            tdm_text_shown(directory, shown), within ? "within" : "after",
            (unsigned long long)step + within, (unsigned long long)progress->steps,
            done ? ": no step is left to train" : "");
    if (differences[0] != '\0' && !done)
        fprintf(progress->out, "  not the same bits from here on: %s\n", differences);
    await(progress, "  preparing the run");
}

static void saving(void *self, const char *between)
{
    struct tdm_progress *progress = self;
    leave(progress);
    progress->saves_beside = between == NULL;
    if (between == NULL)
        fprintf(progress->out, "  checkpoints are written while the next step computes\n");
    else
        fprintf(progress->out, "  checkpoints are written between two steps: %s\n", between);
    await(progress, "  preparing the run");
}

/* A rate at which to tell how long a save takes: no disk was measured. */
#define TOLD_BYTES_PER_SECOND 1e9

static void within_costs(void *self, uint32_t pauses, uint64_t least_bytes, uint64_t most_bytes,
                         double first_seconds, double gap_seconds)
{
    struct tdm_progress *progress = self;
    char least[TDM_FORMAT_SIZE], most[TDM_FORMAT_SIZE], first[TDM_FORMAT_SIZE],
        gap[TDM_FORMAT_SIZE], seconds[TDM_FORMAT_SIZE];
    leave(progress);
    fprintf(progress->out,
            "  a save within a step writes %s to %s (%s at 1 GB/s, and as long to read it back); "
            "it can be saved at %u points, the first %s after it began, then at most %s apart, as "
            "predicted\n",
            tdm_format_bytes(least_bytes, least), tdm_format_bytes(most_bytes, most),
            tdm_format_seconds((double)most_bytes / TOLD_BYTES_PER_SECOND, seconds), pauses,
            tdm_format_seconds(first_seconds, first), tdm_format_seconds(gap_seconds, gap));
    await(progress, "  preparing the run");
}

static void saved_within(void *self, const char *directory, uint64_t step, uint64_t op,
                         uint64_t ops, double seconds)
{
    struct tdm_progress *progress = self;
    char shown[TDM_TEXT_SHOWN], text[TDM_FORMAT_SIZE];
    progress->save_seconds = seconds;
    if (progress->terminal)
        return;
    fprintf(progress->out, "  step %llu/%llu  saved before op %llu of %llu to %s in %s\n",
            (unsigned long long)step, (unsigned long long)progress->steps,
            (unsigned long long)op + 1, (unsigned long long)ops, tdm_text_shown(directory, shown),
            tdm_format_seconds(seconds, text));
    fflush(progress->out);
}

static void saved(void *self, const char *directory, uint64_t step, double seconds)
{
    struct tdm_progress *progress = self;
    char shown[TDM_TEXT_SHOWN], text[TDM_FORMAT_SIZE];
    if (!progress->saves_beside) /* counts toward the estimate of the remaining time */
        progress->seconds += seconds;
    progress->save_seconds = seconds;
    if (progress->terminal)
        return;
    fprintf(progress->out, "  step %llu/%llu  saved to %s in %s\n", (unsigned long long)step,
            (unsigned long long)progress->steps, tdm_text_shown(directory, shown),
            tdm_format_seconds(seconds, text));
    fflush(progress->out);
}

static void warned(void *self, const struct tdm_error *what)
{
    struct tdm_progress *progress = self;
    leave(progress);
    if (progress->terminal)
        fputs("\r\033[K", progress->out);
    fprintf(progress->out, "warning: %s\n", what->message);
    fflush(progress->out);
}

static void trace_lost(void *self, const struct tdm_error *failure)
{
    struct tdm_progress *progress = self;
    leave(progress);
    if (progress->terminal)
        fputs("\r\033[K", progress->out);
    fprintf(progress->out, "warning: %s; the training goes on without it\n", failure->message);
    fflush(progress->out);
}

struct tdm_run_listener tdm_progress_listener(struct tdm_progress *progress)
{
    return (struct tdm_run_listener){.self = progress,
                                     .taking = {progress, taken, pageable, NULL},
                                     .planned = planned,
                                     .compared = compared,
                                     .tokens = tokens,
                                     .moved = moved,
                                     .resumed = resumed,
                                     .within_costs = within_costs,
                                     .saved_within = saved_within,
                                     .saving = saving,
                                     .saved = saved,
                                     .within = within,
                                     .stepped = stepped,
                                     .evaluated = evaluated,
                                     .warned = warned,
                                     .trace_lost = trace_lost};
}

/* Prints the driver's memory use, and the part outside the arenas: context, kernels, libraries. */
static void print_driver_use(FILE *out, const struct tdm_run_result *result)
{
    char used[TDM_FORMAT_SIZE], beside[TDM_FORMAT_SIZE], planned_text[TDM_FORMAT_SIZE];
    char arenas[64] = "the device arena";
    if (result->device_ranks > 1)
        snprintf(arenas, sizeof(arenas), "the arenas of %u ranks", result->device_ranks);
    uint64_t arena = result->device_planned_bytes - result->runtime_planned_bytes;
    uint64_t all = result->device_used_bytes;
    fprintf(out, "  the driver reports %s: %s beside %s, planned %s\n", tdm_format_bytes(all, used),
            tdm_format_bytes(all > arena ? all - arena : 0, beside), arenas,
            tdm_format_bytes(result->runtime_planned_bytes, planned_text));
}

/* A loss that is not a number may have a sign, which says nothing. */
static const char *show_loss(double loss, char out[TDM_FORMAT_SIZE])
{
    if (isnan(loss))
        return "not a number";
    snprintf(out, TDM_FORMAT_SIZE, "%.4f", loss);
    return out;
}

static void print_result(FILE *out, const struct tdm_run_options *options, uint32_t index,
                         const struct tdm_run_result *result)
{
    const char *path = options->schedule_paths[index];
    char seconds[TDM_FORMAT_SIZE], predicted[TDM_FORMAT_SIZE];
    const uint64_t done = result->steps - result->resumed_step;
    double each = result->seconds / (double)done;
    char shown[TDM_TEXT_SHOWN];
    if (!options->backend->executes) {
        fprintf(out, "%s: %llu step%s, nothing computed (predicted %s each)\n",
                tdm_text_shown(path, shown), (unsigned long long)done, done == 1 ? "" : "s",
                tdm_format_seconds(result->predicted_step_seconds, predicted));
        return;
    }
    fprintf(out, "%s: %llu step%s, %s each (predicted %s), %.0f tokens/s\n",
            tdm_text_shown(path, shown), (unsigned long long)done, done == 1 ? "" : "s",
            tdm_format_seconds(each, seconds),
            tdm_format_seconds(result->predicted_step_seconds, predicted),
            (double)result->tokens / result->seconds);
    char loss[2][TDM_FORMAT_SIZE];
    fprintf(out, "  loss %s", show_loss(result->first_loss, loss[0]));
    if (result->steps > 1)
        fprintf(out, " at the first step, %s over the last tenth of steps",
                show_loss(result->late_loss, loss[0]));
    fprintf(out, "; unigram entropy %.4f\n", result->unigram_entropy);
    for (uint32_t t = 0; t < options->text_count; t++) {
        const struct tdm_run_validation *validation = &result->validations[t];
        char named[TDM_TEXT_NAME + 8];
        if (validation->evaluations == 0)
            continue;
        fprintf(
            out,
            "  validation loss%s %s over %llu tokens after step %llu; least %s after step %llu\n",
            of_text(options->texts[t].name, named), show_loss(validation->last_loss, loss[0]),
            (unsigned long long)validation->tokens, (unsigned long long)validation->last_step,
            show_loss(validation->best_loss, loss[1]), (unsigned long long)validation->best_step);
    }
    char outside[TDM_FORMAT_SIZE];
    for (uint32_t place = 0; place < result->topology.place_count; place++) {
        const struct tdm_trace_arena *arena = &result->arenas[place];
        char planned_text[TDM_FORMAT_SIZE], touched[TDM_FORMAT_SIZE];
        if (arena->planned_bytes > 0 && result->scanned)
            fprintf(out, "  %s arena: planned %s, touched %s, highest byte %llu of %llu\n",
                    tdm_place_name(&result->topology, (enum tdm_place)place),
                    tdm_format_bytes(arena->planned_bytes, planned_text),
                    tdm_format_bytes(arena->touched_bytes, touched),
                    (unsigned long long)arena->highest_byte,
                    (unsigned long long)arena->planned_bytes);
    }
    if (result->device_used_bytes > 0)
        print_driver_use(out, result);
    else
        fprintf(out, "  outside the arenas the backend holds %s\n",
                tdm_format_bytes(result->outside_bytes, outside));
}

bool tdm_progress_finished(const struct tdm_run_options *options,
                           const struct tdm_run_result *results)
{
    bool finished = true;
    for (uint32_t i = 0; i < options->schedule_count; i++)
        finished = finished && results[i].finished;
    return finished;
}

void tdm_progress_end(struct tdm_progress *progress, const struct tdm_run_options *options,
                      const struct tdm_run_result *results, enum tdm_status status)
{
    leave(progress);
    if (progress->terminal && status != TDM_OK && progress->program != NULL)
        fputc('\n', progress->out);
    for (uint32_t i = 0; i < options->schedule_count; i++)
        if (results[i].steps > results[i].resumed_step)
            print_result(progress->out, options, i, &results[i]);
    char shown[TDM_TEXT_SHOWN];
    const bool finished = tdm_progress_finished(options, results);
    if (finished && options->save_path != NULL) {
        char *latest = options->save_every > 0
                           ? tdm_path_join(options->save_path, TDM_CHECKPOINT_LATEST)
                           : NULL;
        fprintf(progress->out, "  %s saved to %s\n",
                options->save_every > 0 ? "checkpoint" : "weights",
                tdm_text_shown(latest != NULL ? latest : options->save_path, shown));
        free(latest);
    }
    if (finished && options->gradients_path != NULL)
        fprintf(progress->out, "  gradients saved to %s\n",
                tdm_text_shown(options->gradients_path, shown));
}
