/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tidemark report`: predicted against measured, from a trace: memory by category at the peak, time
 * by phase and op kind, by kind alone, stalls by lane and by what was waited for. Everything is read before
 * the first line is printed.
 */
#include "planner/cmd.h"

#include "base/units.h"
#include "planner/kind_times.h"
#include "planner/print.h"
#include "traces/reader.h"
#include "traces/waits.h"

#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Waits that take less in all are left out of the text. */
#define SHORTEST_WAIT_SECONDS 1e-4

/* What is said of one program. */
struct program_report {
    struct tdm_trace_program_row program;
    /* Of the steps that were asked for. */
    size_t steps, timed_steps;
    struct tdm_trace_step_row first, last;
    int64_t last_timed; /* TDM_TRACE_EVERY_STEP: none */
    double seconds;
    uint64_t tokens;
    const struct tdm_trace_unfinished_row *unfinished; /* NULL: none; borrowed from the report */
    struct tdm_trace_peaks peaks;
    struct tdm_trace_arena_row arenas[TDM_PLACES];
    bool scanned[TDM_PLACES];
    uint64_t used_bytes[TDM_PLACES];
    bool sampled[TDM_PLACES];
    struct tdm_trace_time_row *times;
    size_t time_count;
    struct tdm_trace_lane_row *lanes;
    size_t lane_count;
    struct tdm_trace_wait *waits; /* of the last timed step that was asked for */
    size_t wait_count;
    struct tdm_trace_selection selection;
    /* Of its weights, after the steps that were asked for; borrowed from the report. */
    const struct tdm_trace_evaluation_row *evaluations;
    size_t evaluation_count;
    size_t evaluated; /* evaluations that this program made, and the seconds of all */
    double evaluated_seconds;
};

struct report {
    const char *path;
    const struct tdm_trace_run_info *run;
    int64_t step; /* or TDM_TRACE_EVERY_STEP */
    size_t steps; /* finished, of all programs */
    struct program_report *programs;
    size_t program_count;
    struct tdm_trace_unfinished_row *unfinished;
    struct tdm_trace_evaluation_row *evaluations;
};

static void report_free(struct report *report)
{
    for (size_t i = 0; i < report->program_count; i++) {
        free(report->programs[i].times);
        free(report->programs[i].lanes);
        free(report->programs[i].waits);
    }
    free(report->programs);
    free(report->unfinished);
    free(report->evaluations);
}

/* Reading. */

static void add_step(struct program_report *report, const struct tdm_trace_step_row *step)
{
    if (report->steps++ == 0)
        report->first = *step;
    report->last = *step;
    report->timed_steps += step->timed;
    if (step->timed)
        report->last_timed = step->step;
    report->seconds += step->seconds;
    report->tokens += step->tokens;
}

static enum tdm_status read_places(struct tdm_trace_reader *reader, int64_t step,
                                   struct program_report *report, struct tdm_error *err)
{
    int64_t program = report->program.program;
    struct tdm_trace_arena_row *arenas = NULL;
    struct tdm_trace_used_row *used = NULL;
    size_t count;
    enum tdm_status status = tdm_trace_read_peaks(reader, program, step, &report->peaks, err);
    if (status == TDM_OK)
        status = tdm_trace_read_arenas(reader, program, step, &arenas, &count, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        report->arenas[arenas[i].place] = arenas[i];
        report->scanned[arenas[i].place] = true;
    }
    free(arenas);

    status = tdm_trace_read_used(reader, program, step, &used, &count, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        enum tdm_place place = used[i].place;
        if (!report->sampled[place] || used[i].used_bytes > report->used_bytes[place])
            report->used_bytes[place] = used[i].used_bytes;
        report->sampled[place] = true;
    }
    free(used);
    return TDM_OK;
}

static enum tdm_status read_waits(struct tdm_trace_reader *reader, struct program_report *report,
                                  struct tdm_error *err)
{
    struct tdm_trace_interval *intervals;
    size_t count;
    enum tdm_status status = tdm_trace_read_intervals(reader, report->program.program,
                                                      report->last_timed, &intervals, &count, err);
    if (status != TDM_OK)
        return status;
    status = tdm_trace_sum_waits(intervals, count, &report->waits, &report->wait_count, err);
    free(intervals);
    return status;
}

/* Is a step that did not end, and was timed, all that there is of a program? */
static bool has_only_unfinished(const struct program_report *report)
{
    return report->steps == 0 && report->unfinished != NULL && report->unfinished->timed;
}

static enum tdm_status read_program(struct tdm_trace_reader *reader, int64_t step,
                                    struct program_report *report, struct tdm_error *err)
{
    int64_t program = report->program.program;
    enum tdm_status status = read_places(reader, step, report, err);
    if (status == TDM_OK && has_only_unfinished(report))
        status = tdm_trace_read_unfinished_times(reader, program, report->unfinished->step,
                                                 &report->times, &report->time_count, err);
    else if (status == TDM_OK)
        status =
            tdm_trace_read_times(reader, program, step, &report->times, &report->time_count, err);
    if (status == TDM_OK)
        status =
            tdm_trace_read_lanes(reader, program, step, &report->lanes, &report->lane_count, err);
    if (status == TDM_OK)
        status = tdm_trace_read_selection(reader, program, step, &report->selection, err);
    if (status == TDM_OK)
        status = read_waits(reader, report, err);
    return status;
}

/* Gives every step that did not end to its program; *chosen counts those that were asked for. */
static enum tdm_status read_unfinished(struct tdm_trace_reader *reader, struct report *report,
                                       size_t *chosen, struct tdm_error *err)
{
    size_t count;
    *chosen = 0;
    enum tdm_status status = tdm_trace_read_unfinished(reader, &report->unfinished, &count, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        for (size_t j = 0; j < report->program_count; j++) {
            const struct tdm_trace_unfinished_row *row = &report->unfinished[i];
            if (report->programs[j].program.program != row->program ||
                (report->step != TDM_TRACE_EVERY_STEP && row->step != report->step))
                continue;
            report->programs[j].unfinished = row;
            ++*chosen;
        }
    return status;
}

/* Gives every step to its program; fails if none is left to speak of. */
static enum tdm_status read_steps(struct tdm_trace_reader *reader, struct report *report,
                                  struct tdm_error *err)
{
    struct tdm_trace_step_row *steps;
    size_t count, chosen;
    enum tdm_status status = read_unfinished(reader, report, &chosen, err);
    if (status == TDM_OK)
        status = tdm_trace_read_steps(reader, &steps, &count, err);
    if (status != TDM_OK)
        return status;
    report->steps = count;
    for (size_t i = 0; i < count; i++) {
        if (report->step != TDM_TRACE_EVERY_STEP && steps[i].step != report->step)
            continue;
        for (size_t j = 0; j < report->program_count; j++) {
            if (report->programs[j].program.program == steps[i].program) {
                add_step(&report->programs[j], &steps[i]);
                chosen++;
            }
        }
    }
    if (count == 0 && chosen == 0) {
        status = tdm_fail(err, TDM_INPUT, "%s: holds no finished step", report->path);
        tdm_hint(err, "let the run finish its first step, or run it again");
    } else if (chosen == 0) {
        status = tdm_fail(err, TDM_USAGE, "--step: %s holds no step %" PRId64, report->path,
                          report->step);
        tdm_hint(err, "its first step is %" PRId64 ", its last one %" PRId64, steps[0].step,
                 steps[count - 1].step);
    }
    free(steps);
    return status;
}

/* Gives every evaluation to the program that was trained, whose rows follow each other, and to the one
 * that ran. */
static enum tdm_status read_evaluations(struct tdm_trace_reader *reader, struct report *report,
                                        struct tdm_error *err)
{
    size_t count;
    enum tdm_status status = tdm_trace_read_evaluations(reader, &report->evaluations, &count, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const struct tdm_trace_evaluation_row *row = &report->evaluations[i];
        if (report->step != TDM_TRACE_EVERY_STEP && row->step != report->step)
            continue;
        for (size_t j = 0; j < report->program_count; j++) {
            struct program_report *program = &report->programs[j];
            if (program->program.program == row->program && program->evaluation_count++ == 0)
                program->evaluations = row;
            if (program->program.program == row->evaluated_by) {
                program->evaluated++;
                program->evaluated_seconds += row->seconds;
            }
        }
    }
    return status;
}

/* Was something of it asked for? */
static bool is_shown(const struct report *report, const struct program_report *program)
{
    return report->step == TDM_TRACE_EVERY_STEP || program->steps > 0 ||
           program->unfinished != NULL;
}

static enum tdm_status read_report(struct tdm_trace_reader *reader, struct report *report,
                                   struct tdm_error *err)
{
    struct tdm_trace_program_row *programs;
    size_t count;
    enum tdm_status status = tdm_trace_read_programs(reader, &programs, &count, err);
    if (status != TDM_OK)
        return status;
    report->run = tdm_trace_reader_run(reader);
    report->programs = calloc(count + 1, sizeof(report->programs[0]));
    if (report->programs == NULL) {
        free(programs);
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for a report", report->path);
    }
    report->program_count = count;
    for (size_t i = 0; i < count; i++) {
        report->programs[i].program = programs[i];
        report->programs[i].last_timed = TDM_TRACE_EVERY_STEP;
    }
    free(programs);

    status = read_steps(reader, report, err);
    if (status == TDM_OK)
        status = read_evaluations(reader, report, err);
    for (size_t i = 0; i < report->program_count && status == TDM_OK; i++)
        if (is_shown(report, &report->programs[i]))
            status = read_program(reader, report->step, &report->programs[i], err);
    return status;
}

/* What both forms say. */

/* Categories outside the arena: what the driver holds is not seen at the launches. */
static bool is_outside(int category)
{
    return category == TDM_RUNTIME || category == TDM_ALLOCATOR;
}

/* Live bytes of the arena at the peak. */
static uint64_t arena_live_bytes(const struct tdm_trace_peak *peak)
{
    uint64_t bytes = 0;
    for (int category = 0; category < TDM_CATEGORIES; category++)
        if (!is_outside(category))
            bytes += peak->categories[category];
    return bytes;
}

/* The arena and what is outside it. */
static uint64_t predicted_used_bytes(const struct program_report *report, int place)
{
    return report->program.arena_bytes[place] + report->program.runtime_bytes[place];
}

static double step_seconds(const struct program_report *report)
{
    return report->steps == 0 ? NAN : report->seconds / (double)report->steps;
}

static double tokens_per_second(const struct program_report *report)
{
    return report->seconds > 0 ? (double)report->tokens / report->seconds : NAN;
}

/* By how much a prediction is too large: 0.1 is a tenth. */
static double error_of(double predicted, double measured)
{
    return measured > 0 ? predicted / measured - 1 : NAN;
}

/* As text. */

static const char *show_seconds(double seconds, char out[TDM_FORMAT_SIZE])
{
    if (isnan(seconds))
        return "-";
    return tdm_format_seconds(seconds, out);
}

static const char *show_bytes(bool known, uint64_t bytes, char out[TDM_FORMAT_SIZE])
{
    return known ? tdm_format_bytes(bytes, out) : "-";
}

static const char *show_error(double error, char out[TDM_FORMAT_SIZE])
{
    if (isnan(error))
        return "-";
    if (error > 9.995)
        snprintf(out, TDM_FORMAT_SIZE, "x%.0f", error + 1);
    else
        snprintf(out, TDM_FORMAT_SIZE, "%+.1f%%", 100 * error);
    return out;
}

static void print_run(const struct report *report)
{
    const struct tdm_trace_run_info *run = report->run;
    char pinned[TDM_FORMAT_SIZE], pageable[TDM_FORMAT_SIZE];
    printf("trace     %s\n", report->path);
    printf("command   %s\n", run->command);
    printf("backend   %s on %s\n", run->backend, run->ran_on);
    printf("versions  %s\n", run->versions);
    printf("host      %s pinned, %s pageable\n", tdm_format_bytes(run->pinned_bytes, pinned),
           tdm_format_bytes(run->pageable_bytes, pageable));
    printf("started   %s\n", run->started_at);
    if (run->resumed_from != NULL)
        printf("resumed   from %s\n", run->resumed_from);
    if (run->ending == NULL)
        printf("ended     no: killed, or running still; %zu finished step%s recorded\n",
               report->steps, report->steps == 1 ? "" : "s");
    else
        printf("ended     %s (%s)\n", run->ended_at == NULL ? "at some time" : run->ended_at,
               run->ending);
}

/* The evaluation with the least loss. */
static const struct tdm_trace_evaluation_row *best_evaluation(const struct program_report *report)
{
    const struct tdm_trace_evaluation_row *best = report->evaluations;
    for (size_t i = 1; i < report->evaluation_count; i++)
        if (report->evaluations[i].loss < best->loss)
            best = &report->evaluations[i];
    return best;
}

static void print_evaluations(const struct program_report *report)
{
    size_t count = report->evaluation_count;
    if (count == 0 || isnan(report->evaluations[count - 1].loss))
        return;
    const struct tdm_trace_evaluation_row *first = report->evaluations, *last = first + count - 1;
    const struct tdm_trace_evaluation_row *best = best_evaluation(report);
    printf("evaluated %zu time%s on %" PRIu64 " tokens; loss ", count, count == 1 ? "" : "s",
           last->tokens);
    if (count > 1)
        printf("%.4f after step %" PRId64 " to ", first->loss, first->step);
    printf("%.4f after step %" PRId64, last->loss, last->step);
    if (best != last)
        printf(", least %.4f after step %" PRId64, best->loss, best->step);
    putchar('\n');
}

/* Of a step that did not end: how far it was, and when that was predicted. */
static void print_unfinished(const struct program_report *report)
{
    const struct tdm_trace_unfinished_row *row = report->unfinished;
    char measured[TDM_FORMAT_SIZE], predicted[TDM_FORMAT_SIZE];
    if (row == NULL)
        return;
    printf("step      %" PRId64 ", not finished: ", row->step);
    if (row->ops > 0) {
        printf("op %" PRIu64 " of %" PRIu64 " had ended (%s", row->ops, report->program.ops,
               tdm_phase_name(row->phase));
        if (row->layer < row->layers)
            printf(", layer %" PRIu32 " of %" PRIu32, row->layer + 1, row->layers);
        if (row->chunk != TDM_NONE)
            printf(", chunk %" PRIu32 " of %" PRIu32, row->chunk + 1, row->chunks);
        printf(") ");
    } else {
        printf("no op had ended ");
    }
    printf("after %s, predicted %s\n", show_seconds(row->seconds, measured),
           show_seconds(row->predicted_seconds, predicted));
}

static void print_steps(const struct program_report *report)
{
    char measured[TDM_FORMAT_SIZE];
    char predicted[TDM_FORMAT_SIZE];
    printf("\nprogram   %s: %" PRIu64 " ops\n", report->program.name, report->program.ops);
    if (report->evaluated > 0) {
        printf("evaluates %zu time%s, %s each\n", report->evaluated,
               report->evaluated == 1 ? "" : "s",
               show_seconds(report->evaluated_seconds / (double)report->evaluated, measured));
        return;
    }
    if (report->steps == 0) {
        printf("steps     none finished; predicted %s a step\n",
               show_seconds(report->program.predicted_seconds, predicted));
        return;
    }
    if (report->steps == 1)
        printf("step      %" PRId64, report->first.step);
    else
        printf("steps     %zu, from %" PRId64 " to %" PRId64, report->steps, report->first.step,
               report->last.step);
    if (isnan(report->last.loss)) /* a backend that computes nothing */
        printf("\n");
    else if (report->steps == 1)
        printf("; loss %.4f\n", report->last.loss);
    else
        printf("; loss %.4f to %.4f\n", report->first.loss, report->last.loss);
    double tokens = tokens_per_second(report);
    if (!isnan(tokens))
        printf("speed     %.*f tokens/s, ", tokens < 100 ? 1 : 0, tokens);
    else
        printf("speed     ");
    printf("%s a step, predicted %s\n", show_seconds(step_seconds(report), measured),
           show_seconds(report->program.predicted_seconds, predicted));
}

static void print_memory_row(const char *place, const char *what, bool has_predicted,
                             uint64_t predicted, bool has_measured, uint64_t measured)
{
    char left[TDM_FORMAT_SIZE];
    char right[TDM_FORMAT_SIZE];
    char error[TDM_FORMAT_SIZE];
    printf("%-7s  %-20s  %12s  %12s  %8s\n", place, what,
           show_bytes(has_predicted, predicted, left), show_bytes(has_measured, measured, right),
           show_error(has_predicted && has_measured ? error_of((double)predicted, (double)measured)
                                                    : NAN,
                      error));
}

static void print_place(const struct program_report *report, int place)
{
    const struct tdm_trace_peak *predicted = &report->peaks.predicted[place];
    const struct tdm_trace_peak *measured = &report->peaks.measured[place];
    const char *label = tdm_place_name((enum tdm_place)place);
    for (int category = 0; category < TDM_CATEGORIES; category++) {
        if (predicted->categories[category] == 0 && measured->categories[category] == 0)
            continue;
        bool seen = measured->known && !is_outside(category);
        print_memory_row(label, tdm_category_name((enum tdm_category)category), predicted->known,
                         predicted->categories[category], seen, measured->categories[category]);
        label = "";
    }
    print_memory_row(label, "live at the peak", predicted->known, arena_live_bytes(predicted),
                     measured->known, arena_live_bytes(measured));
    bool scanned = report->scanned[place];
    const struct tdm_trace_arena_row *arena = &report->arenas[place];
    uint64_t planned = scanned ? arena->planned_bytes : report->program.arena_bytes[place];
    print_memory_row("", "arena, touched", true, planned, scanned, arena->touched_bytes);
    print_memory_row("", "arena, highest byte", true, planned, scanned, arena->highest_byte);
    print_memory_row("", "used", true, predicted_used_bytes(report, place), report->sampled[place],
                     report->used_bytes[place]);
}

static void print_times(const struct program_report *report)
{
    char left[TDM_FORMAT_SIZE];
    char right[TDM_FORMAT_SIZE];
    char error[TDM_FORMAT_SIZE];
    printf("\n%-10s  %-20s  %9s  %10s  %10s  %8s\n", "time", "", "ops", "predicted", "measured",
           "error");
    for (size_t i = 0; i < report->time_count; i++) {
        const struct tdm_trace_time_row *row = &report->times[i];
        bool repeated = i > 0 && report->times[i - 1].phase == row->phase;
        printf("%-10s  %-20s  %9" PRIu64 "  %10s  %10s  %8s\n",
               repeated ? "" : tdm_phase_name(row->phase), tdm_op_kind_name(row->kind), row->ops,
               show_seconds(row->predicted_seconds, left),
               show_seconds(row->measured_seconds, right),
               show_error(error_of(row->predicted_seconds, row->measured_seconds), error));
    }
}

/* A wrong rate shows at the top: what it takes off the step, or adds. */
static void print_kinds(const struct program_report *report)
{
    struct tdm_kind_time kinds[TDM_OP_KINDS];
    char text[2][TDM_FORMAT_SIZE], error[TDM_FORMAT_SIZE];
    size_t count = tdm_kind_times(report->times, report->time_count, kinds);
    double step = step_seconds(report);
    if (count == 0)
        return;
    printf("\n%-32s  %9s  %10s  %10s  %8s  %8s\n", "by kind, most seconds off first", "ops",
           "predicted", "measured", "ratio", "of step");
    for (size_t i = 0; i < count; i++) {
        double off = kinds[i].predicted_seconds - kinds[i].measured_seconds;
        double ratio = tdm_kind_ratio(&kinds[i]);
        printf("%-32s  %9" PRIu64 "  %10s  %10s  ", tdm_op_kind_name(kinds[i].kind), kinds[i].ops,
               show_seconds(kinds[i].predicted_seconds, text[0]),
               show_seconds(kinds[i].measured_seconds, text[1]));
        if (isnan(ratio))
            printf("%8s  ", "-");
        else
            printf("%8.3f  ", ratio);
        printf("%8s\n", show_error(step > 0 ? off / step : NAN, error));
    }
}

/* A selection's lists: what they have room for against what they held, and their memory. */
static void print_selection(const struct program_report *report)
{
    const struct tdm_trace_selection *s = &report->selection;
    char room[TDM_DIGITS_SIZE], held[TDM_DIGITS_SIZE], error[TDM_FORMAT_SIZE];
    const struct {
        const char *name;
        uint64_t bytes, touched_bytes;
    } buffers[] = {{"page lists", s->list_bytes, s->touched_list_bytes},
                   {"page means", s->mean_bytes, s->touched_mean_bytes}};
    if (s->ops == 0)
        return;
    bool counted = !isnan(s->held_pairs);
    printf("\n%-18s  %20s  %20s  %8s\n", "selection", "room", "held", "error");
    printf("%-18s  %20s  %20s  %8s\n", "(query, key) pairs", tdm_format_digits(s->room_pairs, room),
           counted ? tdm_format_digits((uint64_t)llround(s->held_pairs), held) : "-",
           show_error(counted ? error_of((double)s->room_pairs, s->held_pairs) : NAN, error));
    if (s->gathered_bytes > 0) {
        char left[TDM_FORMAT_SIZE], right[TDM_FORMAT_SIZE];
        bool known = !isnan(s->held_gathered_bytes);
        printf("%-18s  %20s  %20s  %8s\n", "gathered, sent",
               show_bytes(true, s->gathered_bytes, left),
               show_bytes(known, known ? (uint64_t)s->held_gathered_bytes : 0, right),
               show_error(known ? error_of((double)s->gathered_bytes, s->held_gathered_bytes) : NAN,
                          error));
    }
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        char left[TDM_FORMAT_SIZE], right[TDM_FORMAT_SIZE];
        if (buffers[i].bytes == 0)
            continue;
        double off = error_of((double)buffers[i].bytes, (double)buffers[i].touched_bytes);
        printf("%-18s  %20s  %20s  %8s\n", buffers[i].name,
               show_bytes(true, buffers[i].bytes, left),
               show_bytes(s->touched, buffers[i].touched_bytes, right),
               show_error(s->touched ? off : NAN, error));
    }
}

static void print_lanes(const struct program_report *report)
{
    char text[4][TDM_FORMAT_SIZE];
    printf("\n%-10s  %21s   %21s\n", "", "predicted", "measured");
    printf("%-10s  %10s %10s   %10s %10s\n", "lane", "busy", "stalled", "busy", "stalled");
    for (size_t i = 0; i < report->lane_count; i++) {
        const struct tdm_trace_lane_row *row = &report->lanes[i];
        printf("%-10s  %10s %10s   %10s %10s\n", tdm_lane_name(row->lane),
               show_seconds(row->predicted_busy_seconds, text[0]),
               show_seconds(row->predicted_stall_seconds, text[1]),
               show_seconds(row->measured_busy_seconds, text[2]),
               show_seconds(row->measured_stall_seconds, text[3]));
    }
}

/* "h2d copy of weights", "the launching host". */
static const char *wait_name(const struct tdm_trace_wait *wait, char *name, size_t size)
{
    if (wait->launch)
        snprintf(name, size, "the host that launches");
    else if (wait->content != TDM_EMPTY)
        snprintf(name, size, "%s %s of %s", tdm_lane_name(wait->lane), tdm_op_kind_name(wait->kind),
                 tdm_content_name(wait->content));
    else
        snprintf(name, size, "%s %s", tdm_lane_name(wait->lane), tdm_op_kind_name(wait->kind));
    return name;
}

static void print_waits(const struct program_report *report)
{
    char name[80], predicted[TDM_FORMAT_SIZE], measured[TDM_FORMAT_SIZE];
    size_t rows = 0;
    for (size_t i = 0; i < report->wait_count; i++) {
        const struct tdm_trace_wait *wait = &report->waits[i];
        if (fmax(wait->predicted_seconds, wait->measured_seconds) < SHORTEST_WAIT_SECONDS)
            continue;
        if (rows++ == 0)
            printf("\n%-10s  %-36s  %7s  %10s  %10s\n", "stalled in", "compute waits for", "waits",
                   "predicted", "measured");
        printf("%-10s  %-36s  %7" PRIu64 "  %10s  %10s\n", tdm_phase_name(wait->phase),
               wait_name(wait, name, sizeof(name)), wait->waits,
               show_seconds(wait->predicted_seconds, predicted),
               show_seconds(wait->measured_seconds, measured));
    }
}

static void print_program(const struct report *report, const struct program_report *program)
{
    print_steps(program);
    print_unfinished(program);
    print_evaluations(program);
    printf("\n%-7s  %-20s  %12s  %12s  %8s\n", "memory", "", "predicted", "measured", "error");
    for (int place = 0; place < TDM_PLACES; place++)
        print_place(program, place);
    if (has_only_unfinished(program))
        printf("\ntimes of the ops that had ended\n");
    if (program->steps > 0 && program->timed_steps == 0)
        printf("\nno op of %s was timed\n",
               report->step == TDM_TRACE_EVERY_STEP ? "these steps" : "this step");
    print_times(program);
    print_kinds(program);
    print_selection(program);
    print_lanes(program);
    print_waits(program);
}

static void print_text(const struct report *report)
{
    print_run(report);
    for (size_t i = 0; i < report->program_count; i++) {
        const struct program_report *program = &report->programs[i];
        if (is_shown(report, program))
            print_program(report, program);
    }
}

/* As JSON. Device keys are plain ("peak_bytes"), those of other places begin with their name. */

static json_t *json_seconds(double seconds)
{
    return isfinite(seconds) ? json_real(seconds) : json_null();
}

static json_t *json_bytes(bool known, uint64_t bytes)
{
    return known ? json_integer((json_int_t)bytes) : json_null();
}

/* JSON is UTF-8; file names need not be: in one that is not, other bytes than ASCII become "?". */
static json_t *json_text(const char *text)
{
    if (text == NULL)
        return json_null();
    json_t *value = json_string(text);
    char *plain = value == NULL ? strdup(text) : NULL;
    for (char *byte = plain; byte != NULL && *byte != '\0'; byte++)
        if ((unsigned char)*byte >= 0x80)
            *byte = '?';
    if (plain != NULL)
        value = json_string(plain);
    free(plain);
    return value;
}

static void set_of_place(json_t *object, int place, const char *key, json_t *value)
{
    char name[64];
    const char *prefix = place == TDM_DEVICE ? "" : tdm_place_name((enum tdm_place)place);
    snprintf(name, sizeof(name), "%s%s%s", prefix, prefix[0] == '\0' ? "" : "_", key);
    json_object_set_new(object, name, value);
}

static json_t *json_categories(const struct tdm_trace_peak *peak)
{
    if (!peak->known)
        return json_null();
    json_t *object = json_object();
    for (int category = 0; category < TDM_CATEGORIES; category++)
        if (peak->categories[category] != 0)
            json_object_set_new(object, tdm_category_name((enum tdm_category)category),
                                json_integer((json_int_t)peak->categories[category]));
    return object;
}

static json_t *json_predicted(const struct program_report *report)
{
    json_t *object = json_object();
    json_object_set_new(object, "step_seconds", json_seconds(report->program.predicted_seconds));
    for (int place = 0; place < TDM_PLACES; place++) {
        const struct tdm_trace_peak *peak = &report->peaks.predicted[place];
        set_of_place(object, place, "peak_bytes",
                     json_bytes(true, predicted_used_bytes(report, place)));
        set_of_place(object, place, "peak_allocated_bytes",
                     json_bytes(peak->known, arena_live_bytes(peak)));
        set_of_place(object, place, "peak_reserved_bytes",
                     json_bytes(true, report->program.arena_bytes[place]));
        set_of_place(object, place, "categories", json_categories(peak));
    }
    return object;
}

static json_t *json_measured(const struct program_report *report)
{
    json_t *object = json_object();
    json_object_set_new(object, "step_seconds", json_seconds(step_seconds(report)));
    for (int place = 0; place < TDM_PLACES; place++) {
        const struct tdm_trace_peak *peak = &report->peaks.measured[place];
        const struct tdm_trace_arena_row *arena = &report->arenas[place];
        bool scanned = report->scanned[place];
        set_of_place(object, place, "peak_bytes",
                     json_bytes(report->sampled[place], report->used_bytes[place]));
        set_of_place(object, place, "peak_allocated_bytes",
                     json_bytes(peak->known, arena_live_bytes(peak)));
        set_of_place(object, place, "peak_reserved_bytes",
                     json_bytes(scanned, arena->planned_bytes));
        set_of_place(object, place, "touched_bytes", json_bytes(scanned, arena->touched_bytes));
        set_of_place(object, place, "highest_byte", json_bytes(scanned, arena->highest_byte));
        set_of_place(object, place, "categories", json_categories(peak));
    }
    return object;
}

static json_t *json_times(const struct program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->time_count; i++) {
        const struct tdm_trace_time_row *row = &report->times[i];
        json_array_append_new(
            array,
            json_pack("{s:s, s:s, s:I, s:o, s:o, s:o}", "phase", tdm_phase_name(row->phase), "kind",
                      tdm_op_kind_name(row->kind), "ops", (json_int_t)row->ops, "predicted_seconds",
                      json_seconds(row->predicted_seconds), "measured_seconds",
                      json_seconds(row->measured_seconds), "error",
                      json_seconds(error_of(row->predicted_seconds, row->measured_seconds))));
    }
    return array;
}

static json_t *json_kinds(const struct program_report *report)
{
    struct tdm_kind_time kinds[TDM_OP_KINDS];
    size_t count = tdm_kind_times(report->times, report->time_count, kinds);
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_pack("{s:s, s:I, s:f, s:f, s:o}", "kind",
                                               tdm_op_kind_name(kinds[i].kind), "ops",
                                               (json_int_t)kinds[i].ops, "predicted_seconds",
                                               kinds[i].predicted_seconds, "measured_seconds",
                                               kinds[i].measured_seconds, "ratio",
                                               json_seconds(tdm_kind_ratio(&kinds[i]))));
    return array;
}

static json_t *json_selection(const struct program_report *report)
{
    const struct tdm_trace_selection *s = &report->selection;
    if (s->ops == 0)
        return json_null();
    return json_pack(
        "{s:I, s:I, s:o, s:I, s:o, s:I, s:o, s:I, s:o}", "ops", (json_int_t)s->ops, "room_pairs",
        (json_int_t)s->room_pairs, "held_pairs",
        isnan(s->held_pairs) ? json_null() : json_integer((json_int_t)llround(s->held_pairs)),
        "gathered_bytes", (json_int_t)s->gathered_bytes, "held_gathered_bytes",
        isnan(s->held_gathered_bytes) ? json_null()
                                      : json_integer((json_int_t)llround(s->held_gathered_bytes)),
        "page_list_bytes", (json_int_t)s->list_bytes, "touched_page_list_bytes",
        json_bytes(s->touched, s->touched_list_bytes), "page_mean_bytes", (json_int_t)s->mean_bytes,
        "touched_page_mean_bytes", json_bytes(s->touched, s->touched_mean_bytes));
}

static json_t *json_lanes(const struct program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->lane_count; i++) {
        const struct tdm_trace_lane_row *row = &report->lanes[i];
        json_array_append_new(
            array,
            json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "lane", tdm_lane_name(row->lane),
                      "ops", (json_int_t)row->ops, "copied_bytes", (json_int_t)row->copied_bytes,
                      "predicted_busy_seconds", json_seconds(row->predicted_busy_seconds),
                      "predicted_stall_seconds", json_seconds(row->predicted_stall_seconds),
                      "measured_busy_seconds", json_seconds(row->measured_busy_seconds),
                      "measured_stall_seconds", json_seconds(row->measured_stall_seconds)));
    }
    return array;
}

static json_t *json_waits(const struct program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->wait_count; i++) {
        const struct tdm_trace_wait *wait = &report->waits[i];
        json_array_append_new(
            array,
            json_pack(
                "{s:s, s:o, s:o, s:o, s:I, s:o, s:o}", "phase", tdm_phase_name(wait->phase), "lane",
                wait->launch ? json_null() : json_string(tdm_lane_name(wait->lane)), "kind",
                wait->launch ? json_null() : json_string(tdm_op_kind_name(wait->kind)), "content",
                wait->content == TDM_EMPTY ? json_null()
                                           : json_string(tdm_content_name(wait->content)),
                "waits", (json_int_t)wait->waits, "predicted_seconds",
                json_seconds(wait->predicted_seconds), "measured_seconds",
                json_seconds(wait->measured_seconds)));
    }
    return array;
}

static json_t *json_evaluations(const struct program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->evaluation_count; i++) {
        const struct tdm_trace_evaluation_row *row = &report->evaluations[i];
        json_array_append_new(array,
                              json_pack("{s:I, s:o, s:I, s:f}", "step", (json_int_t)row->step,
                                        "loss", json_seconds(row->loss), "tokens",
                                        (json_int_t)row->tokens, "seconds", row->seconds));
    }
    return array;
}

static json_t *json_unfinished(const struct program_report *report)
{
    const struct tdm_trace_unfinished_row *row = report->unfinished;
    if (row == NULL)
        return json_null();
    bool some = row->ops > 0;
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:I, s:f, s:f}", "step", (json_int_t)row->step,
                     "op_number", some ? json_integer((json_int_t)row->ops - 1) : json_null(),
                     "phase", some ? json_string(tdm_phase_name(row->phase)) : json_null(), "layer",
                     row->layer != TDM_NONE ? json_integer(row->layer) : json_null(), "chunk",
                     row->chunk != TDM_NONE ? json_integer(row->chunk) : json_null(), "ops",
                     (json_int_t)report->program.ops, "seconds", row->seconds, "predicted_seconds",
                     row->predicted_seconds);
}

static json_t *json_program(const struct program_report *report)
{
    json_t *object = json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:o}", "name", json_text(report->program.name), "ops",
        (json_int_t)report->program.ops, "steps", (json_int_t)report->steps, "timed_steps",
        (json_int_t)report->timed_steps, "tokens", (json_int_t)report->tokens, "tokens_per_second",
        json_seconds(tokens_per_second(report)));
    if (object == NULL)
        return NULL;
    bool some = report->steps > 0;
    json_object_set_new(object, "first_step",
                        some ? json_integer(report->first.step) : json_null());
    json_object_set_new(object, "last_step", some ? json_integer(report->last.step) : json_null());
    json_object_set_new(object, "first_loss", json_seconds(some ? report->first.loss : NAN));
    json_object_set_new(object, "last_loss", json_seconds(some ? report->last.loss : NAN));
    json_object_set_new(object, "unfinished", json_unfinished(report));
    json_object_set_new(object, "evaluations", json_evaluations(report));
    json_object_set_new(object, "predicted", json_predicted(report));
    json_object_set_new(object, "measured", json_measured(report));
    json_object_set_new(object, "times", json_times(report));
    json_object_set_new(object, "kinds", json_kinds(report));
    json_object_set_new(object, "selection", json_selection(report));
    json_object_set_new(object, "lanes", json_lanes(report));
    json_object_set_new(object, "waits", json_waits(report));
    return object;
}

static enum tdm_status print_json(const struct report *report, struct tdm_error *err)
{
    const struct tdm_trace_run_info *run = report->run;
    json_t *programs = json_array();
    for (size_t i = 0; i < report->program_count; i++)
        if (is_shown(report, &report->programs[i]))
            json_array_append_new(programs, json_program(&report->programs[i]));
    json_t *root = json_pack(
        "{s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o}", "trace",
        json_text(report->path), "host_pinned_bytes", (json_int_t)run->pinned_bytes,
        "host_pageable_bytes", (json_int_t)run->pageable_bytes, "command", json_text(run->command),
        "backend", json_text(run->backend), "ran_on", json_text(run->ran_on), "versions",
        json_text(run->versions), "started_at", json_text(run->started_at), "resumed_from",
        json_text(run->resumed_from), "ended_at", json_text(run->ended_at), "ending",
        json_text(run->ending), "steps", (json_int_t)report->steps, "programs", programs);
    int failed =
        root == NULL || json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) != 0;
    json_decref(root);
    if (failed)
        return tdm_fail(err, TDM_IO, "%s: the report cannot be written as JSON", report->path);
    putchar('\n');
    return TDM_OK;
}

/* The command. */

static enum tdm_status print_report(const char *path, int64_t step, bool as_json,
                                    struct tdm_error *err)
{
    struct report report = {.path = path, .step = step};
    struct tdm_trace_reader *reader;
    enum tdm_status status = tdm_trace_reader_open(path, &reader, err);
    if (status != TDM_OK)
        return status;
    status = read_report(reader, &report, err);
    if (status == TDM_OK && as_json)
        status = print_json(&report, err);
    else if (status == TDM_OK)
        print_text(&report);
    report_free(&report);
    tdm_trace_reader_close(reader);
    if (status == TDM_OK && (fflush(stdout) != 0 || ferror(stdout)))
        return tdm_fail(err, TDM_IO, "standard output cannot be written");
    return status;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    static const struct option options[] = {
        {"step", required_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int64_t step = TDM_TRACE_EVERY_STEP;
    bool as_json = false;
    uint64_t number;
    enum tdm_status status;

    opterr = 0;
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        switch (option) {
        case 's':
            status = tdm_parse_count(optarg, "--step", 0, INT64_MAX, &number, err);
            if (status != TDM_OK)
                return status;
            step = (int64_t)number;
            break;
        case 'j':
            as_json = true;
            break;
        case 'h':
            tdm_cmd_print_help(&tdm_cmd_report);
            return TDM_OK;
        default:
            return tdm_cmd_bad_option(&tdm_cmd_report, argc, argv, option, err);
        }
    }
    if (optind + 1 != argc) {
        tdm_fail(err, TDM_USAGE,
                 optind == argc ? "report: no trace is named" : "report: takes one trace only");
        tdm_hint(err, "usage: tidemark %s", tdm_cmd_report.usage);
        return TDM_USAGE;
    }
    return print_report(argv[optind], step, as_json, err);
}

const struct tdm_command tdm_cmd_report = {
    .name = "report",
    .usage = "report TRACE [--step N] [--json]",
    .summary = "predicted against measured: memory at the peak, time by op kind, stalls",
    .help =
        "  --step N   report this step only; else all: the highest peak, mean times\n"
        "  --json     one JSON object on stdout\n"
        "\n"
        "TRACE is what `tidemark run --trace FILE` wrote. `live` are the bytes of live\n"
        "buffers, `used` those that the driver or the system reports. The error says by how\n"
        "much the prediction is too large, the ratio is predicted over measured. A lane is\n"
        "stalled while it is idle before its last op ends. What the compute lane waited for is\n"
        "named, of the last timed step: the op that ended last before it went on, at the step's end\n"
        "what ended it, or the host, where it launched too late (lane null in JSON). A wrong rate\n"
        "shows at the top of the op kinds; tidemark calibrate --from TRACE corrects it. Of a step\n"
        "that did not end: how far it was, and the times of the ops that had ended, if there is no\n"
        "other step. Selection: (query, key) pairs that page lists have room for, and held (counted\n"
        "on cpu); bytes that attention gathers from the host and sends back, by chance and in truth;\n"
        "bytes of page lists and means.\n"
        "\n"
        "Example:\n"
        "  tidemark report demo/run.db --step 100\n",
    .run = run,
};
