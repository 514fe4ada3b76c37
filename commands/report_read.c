/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the data of `tidemark report` from a trace: steps, evaluations, memory, times, lanes and
 * waits, grouped by program. Also computes the derived figures. */
#include "commands/report_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static void add_step(struct tdm_program_report *report, const struct tdm_trace_step_row *step)
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
                                   struct tdm_program_report *report, struct tdm_error *err)
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
        report->sharers[place] = used[i].arenas;
    }
    free(used);
    return TDM_OK;
}

bool tdm_report_only_unfinished(const struct tdm_program_report *report)
{
    return report->steps == 0 && report->unfinished != NULL && report->unfinished->timed;
}

/* For an unfinished step, reads the waits of its finished ops. */
static enum tdm_status read_waits(struct tdm_trace_reader *reader,
                                  struct tdm_program_report *report, struct tdm_error *err)
{
    struct tdm_trace_interval *intervals;
    size_t count, kept = 0;
    bool whole = !tdm_report_only_unfinished(report);
    int64_t step = whole ? report->last_timed : report->unfinished->step;
    enum tdm_status status =
        tdm_trace_read_intervals(reader, report->program.program, step, &intervals, &count, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        if (whole || intervals[i].measured)
            intervals[kept++] = intervals[i];
    status = tdm_trace_sum_waits(intervals, kept, whole, &report->waits, &report->wait_count, err);
    free(intervals);
    return status;
}

static enum tdm_status read_program(struct tdm_trace_reader *reader, int64_t step,
                                    struct tdm_program_report *report, struct tdm_error *err)
{
    int64_t program = report->program.program;
    bool unfinished = tdm_report_only_unfinished(report);
    int64_t timed = unfinished ? report->unfinished->step : step;
    enum tdm_status status = read_places(reader, step, report, err);
    if (status == TDM_OK)
        status = (unfinished ? tdm_trace_read_unfinished_times : tdm_trace_read_times)(
            reader, program, timed, &report->times, &report->time_count, err);
    if (status == TDM_OK)
        status = (unfinished ? tdm_trace_read_unfinished_lanes : tdm_trace_read_lanes)(
            reader, program, timed, &report->lanes, &report->lane_count, err);
    if (status == TDM_OK)
        status = tdm_trace_read_selection(reader, program, step, &report->selection, err);
    if (status == TDM_OK)
        status = read_waits(reader, report, err);
    if (status == TDM_OK && report->program.ranks > 1)
        status =
            tdm_trace_read_ranks(reader, program, step, &report->ranks, &report->rank_count, err);
    if (status == TDM_OK && report->program.ranks > 1)
        status = tdm_trace_read_rank_waits(reader, program, step, &report->rank_waits,
                                           &report->rank_wait_count, err);
    return status;
}

/* Assigns unfinished steps to their programs. *count: their number. *chosen: how many of them were
 * requested. */
static enum tdm_status read_unfinished(struct tdm_trace_reader *reader, struct tdm_report *report,
                                       size_t *count, size_t *chosen, struct tdm_error *err)
{
    *chosen = 0;
    enum tdm_status status = tdm_trace_read_unfinished(reader, &report->unfinished, count, err);
    for (size_t i = 0; status == TDM_OK && i < *count; i++)
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

/* Assigns every step to its program. Fails if no requested step exists. */
static enum tdm_status read_steps(struct tdm_trace_reader *reader, struct tdm_report *report,
                                  struct tdm_error *err)
{
    struct tdm_trace_step_row *steps;
    size_t count, begun, chosen;
    enum tdm_status status = read_unfinished(reader, report, &begun, &chosen, err);
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
    report->without = chosen == 0;
    if (count == 0 && begun == 0) {
        status = tdm_fail(err, TDM_INPUT, "%s: holds no finished step", report->path);
        tdm_hint(err, "let the run finish its first step, or run it again");
    } else if (chosen == 0) {
        status = tdm_fail(err, TDM_USAGE, "--step: %s holds no step %" PRId64, report->path,
                          report->step);
        if (count == 0)
            tdm_hint(err, "it holds step %" PRId64 ", not finished", report->unfinished[0].step);
        else
            tdm_hint(err, "its first step is %" PRId64 ", its last one %" PRId64, steps[0].step,
                     steps[count - 1].step);
    }
    free(steps);
    return status;
}

/* Assigns every evaluation to the trained program and to the program that ran it. The rows of a
 * trained program are contiguous. */
static enum tdm_status read_evaluations(struct tdm_trace_reader *reader, struct tdm_report *report,
                                        struct tdm_error *err)
{
    size_t count;
    enum tdm_status status = tdm_trace_read_evaluations(reader, &report->evaluations, &count, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const struct tdm_trace_evaluation_row *row = &report->evaluations[i];
        if (report->step != TDM_TRACE_EVERY_STEP && row->step != report->step)
            continue;
        for (size_t j = 0; j < report->program_count; j++) {
            struct tdm_program_report *program = &report->programs[j];
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

bool tdm_report_shows(const struct tdm_report *report, const struct tdm_program_report *program)
{
    return report->step == TDM_TRACE_EVERY_STEP || program->steps > 0 ||
           program->unfinished != NULL;
}

enum tdm_status tdm_report_read(struct tdm_trace_reader *reader, struct tdm_report *report,
                                struct tdm_error *err)
{
    struct tdm_trace_program_row *programs;
    size_t count;
    tdm_trace_reader_see(reader, report->rank);
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
        report->programs[i].topology = tdm_trace_reader_topology(reader);
        report->programs[i].program = programs[i];
        report->programs[i].last_timed = TDM_TRACE_EVERY_STEP;
    }
    if (count > 0 && report->rank >= programs[0].ranks) {
        uint32_t ranks = programs[0].ranks; /* all programs of a run have as many */
        free(programs);
        return tdm_fail(err, TDM_USAGE, "--rank: %s has %u rank%s, and no rank %u", report->path,
                        ranks, ranks == 1 ? "" : "s", report->rank);
    }
    free(programs);

    status = read_steps(reader, report, err);
    if (status == TDM_OK)
        status = read_evaluations(reader, report, err);
    for (size_t i = 0; i < report->program_count && status == TDM_OK; i++)
        if (tdm_report_shows(report, &report->programs[i]))
            status = read_program(reader, report->step, &report->programs[i], err);
    return status;
}

void tdm_report_free(struct tdm_report *report)
{
    for (size_t i = 0; i < report->program_count; i++) {
        free(report->programs[i].times);
        free(report->programs[i].lanes);
        free(report->programs[i].waits);
        free(report->programs[i].ranks);
        free(report->programs[i].rank_waits);
    }
    free(report->programs);
    free(report->unfinished);
    free(report->evaluations);
}

uint64_t tdm_report_predicted_used_bytes(const struct tdm_program_report *report, int place)
{
    uint64_t sharers = report->topology->places[place].host_memory ? report->program.ranks : 1;
    if (report->sampled[place])
        sharers = report->sharers[place];
    return report->program.arena_bytes[place] * sharers + report->program.runtime_bytes[place];
}

uint64_t tdm_report_rank_planned_bytes(const struct tdm_program_report *report,
                                       const struct tdm_trace_rank_row *row)
{
    const uint64_t arenas = row->used_bytes > 0 ? row->arenas : 1;
    return report->program.arena_bytes[TDM_DEVICE] * arenas +
           report->program.runtime_bytes[TDM_DEVICE];
}

double tdm_report_step_seconds(const struct tdm_program_report *report)
{
    return report->steps == 0 ? NAN : report->seconds / (double)report->steps;
}

double tdm_report_tokens_per_second(const struct tdm_program_report *report)
{
    return report->seconds > 0 ? (double)report->tokens / report->seconds : NAN;
}

double tdm_report_error(double predicted, double measured)
{
    return measured > 0 ? predicted / measured - 1 : NAN;
}
