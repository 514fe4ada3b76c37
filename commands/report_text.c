/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the answer of `tidemark report` as text: tables of memory, times, lanes and waits. */
#include "commands/report_parts.h"

#include "base/text.h"
#include "base/units.h"
#include "commands/kind_times.h"
#include "commands/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Waits with a smaller total are not printed. */
#define SHORTEST_WAIT_SECONDS 1e-4

const char *tdm_report_show_seconds(double seconds, char out[TDM_FORMAT_SIZE])
{
    if (isnan(seconds))
        return "-";
    return tdm_format_seconds(seconds, out);
}

static const char *show_bytes(bool known, uint64_t bytes, char out[TDM_FORMAT_SIZE])
{
    return known ? tdm_format_bytes(bytes, out) : "-";
}

const char *tdm_report_show_error(double error, char out[TDM_FORMAT_SIZE])
{
    if (isnan(error))
        return "-";
    if (error > 9.995)
        snprintf(out, TDM_FORMAT_SIZE, "%.0f times", error + 1); /* the measured figure */
    else
        snprintf(out, TDM_FORMAT_SIZE, "%+.1f%%", 100 * error);
    return out;
}

static void print_run(const struct tdm_report *report)
{
    const struct tdm_trace_run_info *run = report->run;
    char pinned[TDM_FORMAT_SIZE], pageable[TDM_FORMAT_SIZE];
    char shown[TDM_TEXT_SHOWN];
    printf("trace     %s\n", tdm_text_shown(report->path, shown));
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

/* Prints the losses of one text: its first, last and least. */
static void print_evaluations_on(const struct tdm_program_report *report, const char *text)
{
    const struct tdm_trace_evaluation_row *first = NULL, *last = NULL, *best = NULL;
    size_t count = 0;
    for (size_t i = 0; i < report->evaluation_count; i++) {
        const struct tdm_trace_evaluation_row *row = &report->evaluations[i];
        if (strcmp(row->text, text) != 0)
            continue;
        first = count++ == 0 ? row : first;
        best = best == NULL || row->loss < best->loss ? row : best;
        last = row;
    }
    if (last == NULL || isnan(last->loss))
        return;
    printf("evaluated %zu time%s on %" PRIu64 " tokens", count, count == 1 ? "" : "s",
           last->tokens);
    if (strcmp(text, TDM_TEXT_UNNAMED) != 0)
        printf(" of %s", text);
    fputs("; loss ", stdout);
    if (count > 1)
        printf("%.4f after step %" PRId64 " to ", first->loss, first->step);
    printf("%.4f after step %" PRId64, last->loss, last->step);
    if (best != last)
        printf(", least %.4f after step %" PRId64, best->loss, best->step);
    putchar('\n');
}

/* A line for each text, in the order in which they first come. */
static void print_evaluations(const struct tdm_program_report *report)
{
    for (size_t i = 0; i < report->evaluation_count; i++) {
        size_t before = 0;
        while (strcmp(report->evaluations[before].text, report->evaluations[i].text) != 0)
            before++;
        if (before == i)
            print_evaluations_on(report, report->evaluations[i].text);
    }
}

/* Prints the progress of an unfinished step, and the predicted time of that point. */
static void print_unfinished(const struct tdm_program_report *report)
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
    printf("after %s, predicted %s\n", tdm_report_show_seconds(row->seconds, measured),
           tdm_report_show_seconds(row->predicted_seconds, predicted));
}

/* `computed`: by a backend that computes losses. */
static void print_steps(const struct tdm_program_report *report, bool computed)
{
    char measured[TDM_FORMAT_SIZE];
    char predicted[TDM_FORMAT_SIZE];
    printf("\nprogram   %s: %" PRIu64 " ops\n", report->program.name, report->program.ops);
    if (report->evaluated > 0) {
        printf("evaluates %zu time%s, %s each\n", report->evaluated,
               report->evaluated == 1 ? "" : "s",
               tdm_report_show_seconds(report->evaluated_seconds / (double)report->evaluated,
                                       measured));
        return;
    }
    if (report->steps == 0) {
        printf("steps     none finished; predicted %s a step\n",
               tdm_report_show_seconds(report->program.predicted_seconds, predicted));
        return;
    }
    if (report->steps == 1)
        printf("step      %" PRId64, report->first.step);
    else
        printf("steps     %zu, from %" PRId64 " to %" PRId64, report->steps, report->first.step,
               report->last.step);
    if (!computed)
        printf("\n");
    else if (isnan(report->last.loss))
        printf("; the last loss is not a number\n");
    else if (report->steps == 1)
        printf("; loss %.4f\n", report->last.loss);
    else
        printf("; loss %.4f to %.4f\n", report->first.loss, report->last.loss);
    if (!computed) {
        printf("speed     none: nothing was computed; predicted %s a step\n",
               tdm_report_show_seconds(report->program.predicted_seconds, predicted));
        return;
    }
    double tokens = tdm_report_tokens_per_second(report);
    if (!isnan(tokens))
        printf("speed     %.*f tokens/s, ", tokens < 100 ? 1 : 0, tokens);
    else
        printf("speed     ");
    printf("%s a step, predicted %s\n",
           tdm_report_show_seconds(tdm_report_step_seconds(report), measured),
           tdm_report_show_seconds(report->program.predicted_seconds, predicted));
}

/* Prints "8.31 MiB    8.31 MiB    +0.0%". The error appears only if both values are known. */
static void print_pair(bool has_predicted, uint64_t predicted, bool has_measured, uint64_t measured)
{
    char left[TDM_FORMAT_SIZE], right[TDM_FORMAT_SIZE], error[TDM_FORMAT_SIZE];
    double off =
        has_predicted && has_measured ? tdm_report_error((double)predicted, (double)measured) : NAN;
    printf("  %11s %11s %8s", show_bytes(has_predicted, predicted, left),
           show_bytes(has_measured, measured, right), tdm_report_show_error(off, error));
}

static void print_taken_row(const char *place, const char *what, bool has_planned, uint64_t planned,
                            bool has_measured, uint64_t measured)
{
    printf("%-7s  %-19s", place, what);
    print_pair(has_planned, planned, has_measured, measured);
    putchar('\n');
}

/* Prints used bytes. Where no driver reports the device, the backend is not the one that the
 * machine's runtime was planned for: there is nothing to compare. */
static void print_used(const struct tdm_program_report *report, int place)
{
    const char *name = tdm_place_name(report->topology, (enum tdm_place)place);
    const uint64_t planned = tdm_report_predicted_used_bytes(report, place);
    const uint64_t used = report->used_bytes[place];
    char text[2][TDM_FORMAT_SIZE];
    if (report->sampled[TDM_DEVICE] || !report->sampled[place])
        print_taken_row(name, "used", true, planned, report->sampled[place], used);
    else
        printf("%-7s  %-19s  %11s %11s %8s\n", name, "used", tdm_format_bytes(planned, text[0]),
               tdm_format_bytes(used, text[1]), "-");
}

/* Prints the plan's memory of a place, from the total to its parts. */
static void print_taken(const struct tdm_program_report *report, int place)
{
    bool scanned = report->scanned[place];
    const struct tdm_trace_arena_row *arena = &report->arenas[place];
    uint64_t planned = scanned ? arena->planned_bytes : report->program.arena_bytes[place];
    print_used(report, place);
    print_taken_row("", "arena, highest byte", true, planned, scanned, arena->highest_byte);
    print_taken_row("", "arena, touched", false, 0, scanned, arena->touched_bytes);
    print_taken_row("", "allocated", true, report->program.live_peak_bytes[place], false, 0);
}

static void print_values_row(const char *place, const char *what,
                             const struct tdm_trace_peak *predicted, uint64_t predicted_most,
                             uint64_t predicted_at_peak, const struct tdm_trace_peak *measured,
                             uint64_t measured_most, uint64_t measured_at_peak)
{
    printf("%-7s  %-19s", place, what);
    print_pair(predicted->known, predicted_most, measured->known, measured_most);
    print_pair(predicted->known, predicted_at_peak, measured->known, measured_at_peak);
    putchar('\n');
}

/* Prints the memory that holds values in a place. */
static void print_values(const struct tdm_program_report *report, int place)
{
    const struct tdm_trace_peak *predicted = &report->peaks.predicted[place];
    const struct tdm_trace_peak *measured = &report->peaks.measured[place];
    const char *label = tdm_place_name(report->topology, (enum tdm_place)place);
    if (!predicted->known && !measured->known)
        return;
    for (int category = 0; category < TDM_CATEGORIES; category++) {
        if (predicted->most[category] == 0 && measured->most[category] == 0)
            continue;
        print_values_row(label, tdm_category_name((enum tdm_category)category), predicted,
                         predicted->most[category], predicted->at_peak[category], measured,
                         measured->most[category], measured->at_peak[category]);
        label = "";
    }
    print_values_row(label, "all", predicted, predicted->value_bytes, predicted->value_bytes,
                     measured, measured->value_bytes, measured->value_bytes);
}

static void print_memory(const struct tdm_program_report *report)
{
    printf("\n%-28s  %11s %11s %8s\n", "memory taken, at most", "planned", "measured", "error");
    for (int place = 0; place < (int)report->topology->place_count; place++)
        print_taken(report, place);
    printf("\n%-28s  %32s  %32s\n", "memory that holds values", "each category's own peak",
           "at the peak of the place");
    printf("%-28s  %11s %11s %8s  %11s %11s %8s\n", "", "predicted", "measured", "error",
           "predicted", "measured", "error");
    for (int place = 0; place < (int)report->topology->place_count; place++)
        print_values(report, place);
}

static void print_times(const struct tdm_program_report *report)
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
               tdm_report_show_seconds(row->predicted_seconds, left),
               tdm_report_show_seconds(row->measured_seconds, right),
               tdm_report_show_error(
                   tdm_report_error(row->predicted_seconds, row->measured_seconds), error));
    }
}

/* Sorted by the effect on the step time, so that a wrong rate is at the top. */
static void print_kinds(const struct tdm_program_report *report)
{
    struct tdm_kind_time kinds[TDM_OP_KINDS];
    char text[2][TDM_FORMAT_SIZE], error[TDM_FORMAT_SIZE];
    size_t count = tdm_kind_times(report->times, report->time_count, kinds);
    double step = tdm_report_step_seconds(report);
    if (count == 0)
        return;
    printf("\n%-32s  %9s  %10s  %10s  %8s  %8s\n", "by kind, most seconds off first", "ops",
           "predicted", "measured", "ratio", "of step");
    for (size_t i = 0; i < count; i++) {
        double off = kinds[i].predicted_seconds - kinds[i].measured_seconds;
        double ratio = tdm_kind_ratio(&kinds[i]);
        printf("%-32s  %9" PRIu64 "  %10s  %10s  ", tdm_op_kind_name(kinds[i].kind), kinds[i].ops,
               tdm_report_show_seconds(kinds[i].predicted_seconds, text[0]),
               tdm_report_show_seconds(kinds[i].measured_seconds, text[1]));
        if (isnan(ratio))
            printf("%8s  ", "-");
        else
            printf("%8.3f  ", ratio);
        printf("%8s\n", tdm_report_show_error(step > 0 ? off / step : NAN, error));
    }
}

/* Prints the page lists of a selection: capacity, entries used, and memory. */
static void print_selection(const struct tdm_program_report *report)
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
           tdm_report_show_error(
               counted ? tdm_report_error((double)s->room_pairs, s->held_pairs) : NAN, error));
    if (s->gathered_bytes > 0) {
        char left[TDM_FORMAT_SIZE], right[TDM_FORMAT_SIZE];
        bool known = !isnan(s->held_gathered_bytes);
        printf(
            "%-18s  %20s  %20s  %8s\n", "gathered, sent", show_bytes(true, s->gathered_bytes, left),
            show_bytes(known, known ? (uint64_t)s->held_gathered_bytes : 0, right),
            tdm_report_show_error(
                known ? tdm_report_error((double)s->gathered_bytes, s->held_gathered_bytes) : NAN,
                error));
    }
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        char left[TDM_FORMAT_SIZE], right[TDM_FORMAT_SIZE];
        if (buffers[i].bytes == 0)
            continue;
        double off = tdm_report_error((double)buffers[i].bytes, (double)buffers[i].touched_bytes);
        printf("%-18s  %20s  %20s  %8s\n", buffers[i].name,
               show_bytes(true, buffers[i].bytes, left),
               show_bytes(s->touched, buffers[i].touched_bytes, right),
               tdm_report_show_error(s->touched ? off : NAN, error));
    }
}

static void print_lanes(const struct tdm_program_report *report)
{
    char text[4][TDM_FORMAT_SIZE];
    printf("\n%-10s  %21s   %21s\n", "", "predicted", "measured");
    printf("%-10s  %10s %10s   %10s %10s\n", "lane", "busy", "stalled", "busy", "stalled");
    for (size_t i = 0; i < report->lane_count; i++) {
        const struct tdm_trace_lane_row *row = &report->lanes[i];
        printf("%-10s  %10s %10s   %10s %10s\n", tdm_lane_name(report->topology, row->lane),
               tdm_report_show_seconds(row->predicted_busy_seconds, text[0]),
               tdm_report_show_seconds(row->predicted_stall_seconds, text[1]),
               tdm_report_show_seconds(row->measured_busy_seconds, text[2]),
               tdm_report_show_seconds(row->measured_stall_seconds, text[3]));
    }
}

/* "h2d copy of weights", "the host that launches". */
static const char *wait_name(const struct tdm_program_report *report,
                             const struct tdm_trace_wait *wait, char *name, size_t size)
{
    if (wait->launch)
        snprintf(name, size, "the host that launches");
    else if (wait->content != TDM_EMPTY)
        snprintf(name, size, "%s %s of %s", tdm_lane_name(report->topology, wait->lane),
                 tdm_op_kind_name(wait->kind), tdm_content_name(wait->content));
    else
        snprintf(name, size, "%s %s", tdm_lane_name(report->topology, wait->lane),
                 tdm_op_kind_name(wait->kind));
    return name;
}

static void print_waits(const struct tdm_program_report *report)
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
               wait_name(report, wait, name, sizeof(name)), wait->waits,
               tdm_report_show_seconds(wait->predicted_seconds, predicted),
               tdm_report_show_seconds(wait->measured_seconds, measured));
    }
}

static void print_program(const struct tdm_report *report, const struct tdm_program_report *program)
{
    print_steps(program, strcmp(report->run->backend, "null") != 0);
    if (program->program.ranks > 1)
        printf("ranks     %" PRIu32
               "; the tables of memory, time, lanes and waits are of rank %" PRIu32 "\n",
               program->program.ranks, report->rank);
    print_unfinished(program);
    print_evaluations(program);
    print_memory(program);
    if (tdm_report_only_unfinished(program))
        printf("\nof step %" PRId64
               ", not finished: times, lanes and waits of the ops that had ended\n",
               program->unfinished->step);
    if (program->steps > 0 && program->timed_steps == 0)
        printf("\nno op of %s was timed\n",
               report->step == TDM_TRACE_EVERY_STEP ? "these steps" : "this step");
    print_times(program);
    print_kinds(program);
    print_selection(program);
    print_lanes(program);
    print_waits(program);
    tdm_report_print_ranks(program);
}

void tdm_report_print_text(const struct tdm_report *report)
{
    print_run(report);
    for (size_t i = 0; i < report->program_count; i++) {
        const struct tdm_program_report *program = &report->programs[i];
        if (tdm_report_shows(report, program))
            print_program(report, program);
    }
}
