/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a plot shows, from a schedule or from a trace. */
#include "plots/source_parts.h"

#include "base/json.h"
#include "base/units.h"
#include "schedule/program.h"
#include "traces/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The lanes of more ranks are not shown together. */
#define MOST_RANKS_SHOWN 16u

/* Words. */

__attribute__((format(printf, 3, 4))) static void append(char *out, size_t bytes,
                                                         const char *format, ...)
{
    size_t used = strlen(out);
    va_list list;
    va_start(list, format);
    vsnprintf(out + used, bytes - used, format, list);
    va_end(list);
}

/* "28 groups of 1 layer", "groups of 5,5,4,4,3,3,2,2 layers". */
static void describe_groups(const struct tdm_schedule *schedule, char *out, size_t bytes)
{
    uint32_t count = schedule->group_count;
    uint32_t size = schedule->groups[0].layers;
    bool equal = true;
    for (uint32_t i = 1; i < count; i++)
        equal = equal && schedule->groups[i].layers == size;
    if (equal) {
        snprintf(out, bytes, "%" PRIu32 " group%s of %" PRIu32 " layer%s", count,
                 count == 1 ? "" : "s", size, size == 1 ? "" : "s");
        return;
    }
    snprintf(out, bytes, "groups of ");
    for (uint32_t i = 0; i < count && i < 16; i++)
        append(out, bytes, "%s%" PRIu32, i == 0 ? "" : ",", schedule->groups[i].layers);
    append(out, bytes, "%s layers", count > 16 ? ",..." : "");
}

enum tdm_status tdm_plot_describe(const char *path, const struct tdm_schedule *schedule,
                                  struct tdm_plot *plot, struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    char groups[96];
    uint64_t tokens = schedule->sequences[0].tokens;
    bool equal = true;
    for (uint32_t i = 1; i < schedule->sequence_count; i++)
        equal = equal && schedule->sequences[i].tokens == tokens;
    if (schedule->sequence_count == 1)
        snprintf(plot->title, sizeof(plot->title), "%s, context %s", schedule->model->name,
                 tdm_format_tokens(tokens, text));
    else if (equal)
        snprintf(plot->title, sizeof(plot->title), "%s, %" PRIu32 " sequences, context %s",
                 schedule->model->name, schedule->sequence_count, tdm_format_tokens(tokens, text));
    else
        snprintf(plot->title, sizeof(plot->title), "%s, %" PRIu32 " sequences, %s tokens",
                 schedule->model->name, schedule->sequence_count,
                 tdm_format_tokens(tdm_schedule_tokens(schedule), text));

    describe_groups(schedule, groups, sizeof(groups));
    snprintf(plot->subtitle, sizeof(plot->subtitle), "%s, %s, chunks of %s tokens; planned for %s",
             tdm_order_name(schedule->order), groups,
             tdm_format_tokens(schedule->chunk_tokens, text), schedule->machine->title);
    plot->topology = schedule->machine->topology;
    for (uint32_t place = 0; place < plot->topology.place_count; place++) {
        plot->limit_bytes[place] = tdm_schedule_limit(schedule, (enum tdm_place)place);
        plot->runtime_bytes[place] = schedule->machine->topology.places[place].runtime_bytes;
    }
    bool all = plot->rank == TDM_PLOT_ALL_RANKS;
    if (!all && plot->rank >= schedule->ranks)
        return tdm_fail(err, TDM_USAGE, "--rank: %s has %u rank%s, and no rank %u", path,
                        schedule->ranks, schedule->ranks == 1 ? "" : "s", plot->rank);
    plot->shown_ranks = !all ? 1 : schedule->ranks <= MOST_RANKS_SHOWN ? schedule->ranks : 1;
    plot->rank = all ? 0 : plot->rank;
    if (schedule->ranks > 1)
        append(plot->title, sizeof(plot->title), "; %u ranks, memory%s of rank %u", schedule->ranks,
               plot->shown_ranks == 1 ? " and lanes" : "", plot->rank);
    return TDM_OK;
}

/* "backward norm, layer 1, chunk 63". Layers and chunks count from 1, as in all messages. */
static void describe_op(const struct tdm_schedule *schedule, const struct tdm_timeline_op *op,
                        char *out, size_t bytes)
{
    out[0] = '\0';
    bool of_unit = op->kind == TDM_OP_GRADIENT_NORM || op->kind == TDM_OP_OPTIMIZER;
    if (!of_unit)
        append(out, bytes, "%s ", tdm_phase_name(op->phase));
    append(out, bytes, "%s", tdm_op_kind_name(op->kind));
    if (op->layer < schedule->model->layers)
        append(out, bytes, ", layer %" PRIu32, op->layer + 1);
    else if (of_unit)
        append(out, bytes, ", %s",
               op->layer == tdm_model_head_unit(schedule->model) ? "head" : "embedding");
    if (op->chunk != TDM_NONE)
        append(out, bytes, ", chunk %" PRIu32, op->chunk + 1);
}

enum tdm_status tdm_plot_add_values(struct tdm_timeline *timeline,
                                    const struct tdm_values_change *rows, size_t count,
                                    struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const struct tdm_timeline_change change = {.op_number = rows[i].op_number,
                                                   .bytes = rows[i].value_bytes,
                                                   .place = rows[i].place,
                                                   .category = rows[i].category};
        status = tdm_timeline_add_change(&timeline->values, &change, err);
    }
    return status;
}

enum tdm_status tdm_plot_open_ranks(const struct tdm_plot *plot, struct tdm_plot_panel *panel,
                                    struct tdm_error *err)
{
    if (plot->shown_ranks == 1)
        return TDM_OK;
    panel->ranks = calloc(plot->shown_ranks, sizeof(*panel->ranks));
    return panel->ranks == NULL
               ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", plot->shown_ranks)
               : TDM_OK;
}

void tdm_plot_finish_panel(const struct tdm_plot *plot, const struct tdm_schedule *schedule,
                           struct tdm_plot_panel *panel)
{
    panel->known = true;
    tdm_timeline_clock(&panel->timeline);
    panel->end_seconds = tdm_timeline_end(&panel->timeline);
    for (uint32_t rank = 0; panel->ranks != NULL && rank < plot->shown_ranks; rank++)
        panel->end_seconds = fmax(panel->end_seconds, tdm_timeline_end(&panel->ranks[rank]));
    if (!(panel->end_seconds > 0))
        panel->end_seconds = 1e-9; /* nothing took any time: the null backend */
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++) {
        struct tdm_timeline_peak *peak = &panel->peak[place];
        tdm_timeline_find_peak(&panel->timeline, (enum tdm_place)place, peak);
        const struct tdm_timeline_op *op =
            peak->known ? tdm_timeline_op(&panel->timeline, peak->op_number) : NULL;
        if (op != NULL)
            describe_op(schedule, op, panel->peak_op[place], sizeof(panel->peak_op[place]));
    }
}

/* Traces. */

static enum tdm_status add_allocations(struct tdm_timeline *timeline,
                                       const struct tdm_trace_allocation_row *rows, size_t count,
                                       struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const struct tdm_timeline_change change = {.op_number = rows[i].op_number,
                                                   .bytes = rows[i].allocated_bytes,
                                                   .place = rows[i].place};
        status = tdm_timeline_add_change(&timeline->allocations, &change, err);
    }
    return status;
}

/* Adds the ops of a rank to a timeline of each side. */
static enum tdm_status add_ops(struct tdm_timeline *const timelines[TDM_PLOT_SIDES],
                               const struct tdm_trace_interval *rows, size_t count,
                               struct tdm_error *err)
{
    for (size_t i = 0; i < count; i++) {
        struct tdm_timeline_op op = {.number = rows[i].op_number,
                                     .start = (double)rows[i].predicted_start_ns * 1e-9,
                                     .end = (double)rows[i].predicted_end_ns * 1e-9,
                                     .kind = rows[i].kind,
                                     .phase = rows[i].phase,
                                     .lane = rows[i].lane,
                                     .layer = rows[i].layer,
                                     .chunk = rows[i].chunk};
        enum tdm_status status = tdm_timeline_add_op(timelines[TDM_PREDICTED], &op, err);
        if (status == TDM_OK && rows[i].measured) {
            op.start = (double)rows[i].start_ns * 1e-9;
            op.end = (double)rows[i].end_ns * 1e-9;
            status = tdm_timeline_add_op(timelines[TDM_MEASURED], &op, err);
        }
        if (status != TDM_OK)
            return status;
    }
    return TDM_OK;
}

/* Which step of which program to show. It is the last one whose ops were timed and whose memory was
 * observed, which a run does not do in every step; else the last timed one; else one that did not
 * end. If there is none, only the program is set. */
struct choice {
    int64_t program, step;
    bool unfinished;
};

static enum tdm_status is_observed(struct tdm_trace_reader *reader,
                                   const struct tdm_trace_step_row *step, bool *observed,
                                   struct tdm_error *err)
{
    struct tdm_values_change *rows = NULL;
    size_t count = 0;
    enum tdm_status status =
        tdm_trace_read_observed(reader, step->program, step->step, &rows, &count, err);
    free(rows);
    *observed = count > 0;
    return status;
}

/* Chooses the last timed one of the steps that did not end. */
static enum tdm_status choose_unfinished(struct tdm_trace_reader *reader, int64_t wanted,
                                         struct choice *choice, struct tdm_error *err)
{
    struct tdm_trace_unfinished_row *rows = NULL;
    size_t count = 0;
    enum tdm_status status = tdm_trace_read_unfinished(reader, &rows, &count, err);
    for (size_t i = 0; i < count; i++)
        if (rows[i].timed && (wanted == TDM_PLOT_LAST_STEP || rows[i].step == wanted))
            *choice = (struct choice){rows[i].program, rows[i].step, true};
    free(rows);
    return status;
}

static enum tdm_status choose_step(const char *path, struct tdm_trace_reader *reader,
                                   const struct tdm_trace_step_row *steps, size_t count,
                                   int64_t wanted, struct choice *choice, struct tdm_error *err)
{
    bool there = false;
    const struct tdm_trace_step_row *timed = NULL;
    for (size_t i = count; i-- > 0;) {
        bool matches = wanted == TDM_PLOT_LAST_STEP || steps[i].step == wanted;
        there = there || matches;
        if (!matches || !steps[i].timed)
            continue;
        bool observed;
        enum tdm_status status = is_observed(reader, &steps[i], &observed, err);
        if (status != TDM_OK)
            return status;
        if (observed || timed == NULL)
            timed = &steps[i];
        if (observed)
            break;
    }
    if (timed != NULL) {
        *choice = (struct choice){timed->program, timed->step, false};
        return TDM_OK;
    }
    enum tdm_status status = choose_unfinished(reader, wanted, choice, err);
    if (status != TDM_OK || choice->unfinished)
        return status;
    if (wanted == TDM_PLOT_LAST_STEP)
        return TDM_OK;

    tdm_fail(err, TDM_USAGE, "--step: %s %s step %" PRId64, path,
             there ? "has no op times of" : "holds no", wanted);
    for (size_t i = count; i-- > 0;) {
        if (steps[i].timed)
            return tdm_hint(err, "the last step whose ops were timed is %" PRId64, steps[i].step);
    }
    return TDM_USAGE;
}

static enum tdm_status choose(const char *path, struct tdm_trace_reader *reader, int64_t wanted,
                              struct choice *choice, struct tdm_error *err)
{
    struct tdm_trace_program_row *programs = NULL;
    struct tdm_trace_step_row *steps = NULL;
    size_t program_count = 0;
    size_t step_count = 0;
    enum tdm_status status = tdm_trace_read_programs(reader, &programs, &program_count, err);
    if (status == TDM_OK && program_count == 0) {
        tdm_fail(err, TDM_INPUT, "%s: holds no program: its run ended before the first step", path);
        status = tdm_hint(err, "run it again");
    }
    if (status == TDM_OK)
        status = tdm_trace_read_steps(reader, &steps, &step_count, err);
    if (status == TDM_OK) {
        *choice = (struct choice){step_count > 0 ? steps[step_count - 1].program
                                                 : programs[0].program, /* the last evaluates */
                                  TDM_PLOT_LAST_STEP, false};
        status = choose_step(path, reader, steps, step_count, wanted, choice, err);
    }
    free(programs);
    free(steps);
    return status;
}

/* Reads both timelines. The planned allocations are also drawn beside observed values, at the times
 * of that step. */
static enum tdm_status read_timelines(struct tdm_trace_reader *reader, const struct choice *choice,
                                      struct tdm_plot *plot, struct tdm_error *err)
{
    int64_t program = choice->program;
    int64_t step = choice->step;
    bool measured = step != TDM_PLOT_LAST_STEP;
    struct tdm_timeline *const timeline[] = {&plot->panels[TDM_PREDICTED].timeline,
                                             &plot->panels[TDM_MEASURED].timeline};
    struct tdm_trace_interval *intervals = NULL;
    struct tdm_values_change *memory = NULL, *observed = NULL;
    struct tdm_trace_allocation_row *allocations = NULL;
    size_t count, observed_count = 0;
    enum tdm_status status = tdm_trace_read_intervals(
        reader, program, measured ? step : TDM_TRACE_EVERY_STEP, &intervals, &count, err);
    if (status == TDM_OK)
        status = add_ops(timeline, intervals, count, err);
    if (status == TDM_OK)
        status = tdm_trace_read_memory(reader, program, &memory, &count, err);
    if (status == TDM_OK)
        status = tdm_plot_add_values(timeline[0], memory, count, err);
    if (status == TDM_OK && measured)
        status = tdm_trace_read_observed(reader, program, step, &observed, &observed_count, err);
    if (status == TDM_OK)
        status = tdm_plot_add_values(timeline[1], observed, observed_count, err);
    if (status == TDM_OK)
        status = tdm_trace_read_allocation(reader, program, &allocations, &count, err);
    if (status == TDM_OK)
        status = add_allocations(timeline[0], allocations, count, err);
    if (status == TDM_OK && observed_count > 0)
        status = add_allocations(timeline[1], allocations, count, err);
    free(intervals);
    free(memory);
    free(observed);
    free(allocations);
    return status;
}

/* Reads the lanes of all ranks, if more than one are shown. The reader sees plot->rank again
 * afterwards. */
static enum tdm_status read_ranks(struct tdm_trace_reader *reader, const struct choice *choice,
                                  struct tdm_plot *plot, struct tdm_error *err)
{
    struct tdm_plot_panel *panels = plot->panels;
    int64_t step = choice->step == TDM_PLOT_LAST_STEP ? TDM_TRACE_EVERY_STEP : choice->step;
    enum tdm_status status = TDM_OK;
    for (int side = 0; side < TDM_PLOT_SIDES && status == TDM_OK; side++)
        status = tdm_plot_open_ranks(plot, &panels[side], err);
    for (uint32_t rank = 0; rank < plot->shown_ranks && plot->shown_ranks > 1 && status == TDM_OK;
         rank++) {
        struct tdm_timeline *timelines[] = {&panels[TDM_PREDICTED].ranks[rank],
                                            &panels[TDM_MEASURED].ranks[rank]};
        struct tdm_trace_interval *rows = NULL;
        size_t count;
        tdm_trace_reader_see(reader, rank);
        status = tdm_trace_read_intervals(reader, choice->program, step, &rows, &count, err);
        if (status == TDM_OK)
            status = add_ops(timelines, rows, count, err);
        free(rows);
    }
    tdm_trace_reader_see(reader, plot->rank);
    return status;
}

static enum tdm_status read_used(struct tdm_trace_reader *reader, const struct choice *choice,
                                 struct tdm_plot *plot, struct tdm_error *err)
{
    struct tdm_trace_used_row *rows;
    size_t count;
    if (choice->step == TDM_PLOT_LAST_STEP)
        return TDM_OK;
    enum tdm_status status =
        tdm_trace_read_used(reader, choice->program, choice->step, &rows, &count, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        if (rows[i].used_bytes > plot->used_bytes[rows[i].place])
            plot->used_bytes[rows[i].place] = rows[i].used_bytes;
    free(rows);
    return TDM_OK;
}

static enum tdm_status read_arenas(struct tdm_trace_reader *reader, int64_t program,
                                   struct tdm_plot *plot, struct tdm_error *err)
{
    struct tdm_trace_program_row *programs = NULL;
    struct tdm_trace_evaluation_row *evaluations = NULL;
    size_t count = 0, evaluation_count = 0;
    enum tdm_status status = tdm_trace_read_programs(reader, &programs, &count, err);
    if (status == TDM_OK)
        status = tdm_trace_read_evaluations(reader, &evaluations, &evaluation_count, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        bool evaluates = false;
        for (size_t j = 0; j < evaluation_count; j++)
            evaluates = evaluates || evaluations[j].evaluated_by == programs[i].program;
        plot->programs += !evaluates;
        if (programs[i].program == program) {
            memcpy(plot->arena_bytes, programs[i].arena_bytes, sizeof(plot->arena_bytes));
            memcpy(plot->program_name, programs[i].name, sizeof(plot->program_name));
        }
    }
    free(evaluations);
    free(programs);
    return status;
}

static enum tdm_status read_trace(const char *path, int64_t wanted, struct tdm_plot *plot,
                                  struct tdm_error *err)
{
    struct tdm_trace_reader *reader;
    struct tdm_schedule *schedule = NULL;
    json_t *root = NULL;
    char *text = NULL;
    struct choice choice;
    enum tdm_status status = tdm_trace_reader_open(path, &reader, err);
    if (status != TDM_OK)
        return status;
    if (plot->rank != TDM_PLOT_ALL_RANKS)
        tdm_trace_reader_see(reader, plot->rank);
    status = choose(path, reader, wanted, &choice, err);
    if (status == TDM_OK)
        status = tdm_trace_read_schedule(reader, choice.program, &text, err);
    if (status == TDM_OK)
        status = tdm_json_parse(path, text, strlen(text), &root, err);
    if (status == TDM_OK)
        status = tdm_schedule_from_json(path, root, &schedule, err);
    if (status == TDM_OK)
        status = tdm_plot_describe(path, schedule, plot, err);
    if (status == TDM_OK)
        status = read_ranks(reader, &choice, plot, err);
    if (status == TDM_OK && choice.step != TDM_PLOT_LAST_STEP)
        status = tdm_trace_read_timed_ranks(reader, choice.program, choice.step, &plot->timed_ranks,
                                            err);
    if (status == TDM_OK)
        status = read_timelines(reader, &choice, plot, err);
    if (status == TDM_OK)
        status = read_arenas(reader, choice.program, plot, err);
    if (status == TDM_OK)
        status = read_used(reader, &choice, plot, err);
    if (status != TDM_OK)
        goto close_reader;

    const struct tdm_trace_run_info *run = tdm_trace_reader_run(reader);
    plot->from_trace = true;
    plot->step = choice.step;
    plot->unfinished = choice.unfinished;
    tdm_plot_finish_panel(plot, schedule, &plot->panels[TDM_PREDICTED]);
    if (choice.step != TDM_PLOT_LAST_STEP) {
        append(plot->subtitle, sizeof(plot->subtitle), "; measured on %s, backend %s", run->ran_on,
               run->backend);
        tdm_plot_finish_panel(plot, schedule, &plot->panels[TDM_MEASURED]);
    }
close_reader:
    plot->schedule = schedule;
    json_decref(root);
    free(text);
    tdm_trace_reader_close(reader);
    return status;
}

enum tdm_status tdm_plot_read(const char *path, int64_t step, uint32_t rank, struct tdm_plot **plot,
                              struct tdm_error *err)
{
    char begin[64] = "";
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return tdm_fail(err, TDM_IO, "%s: cannot be opened: %s", path, strerror(errno));
    size_t got = fread(begin, 1, sizeof(begin) - 1, file);
    bool failed = ferror(file);
    int reason = errno;
    fclose(file);
    if (failed)
        return tdm_fail(err, TDM_IO, "%s: cannot be read: %s", path, strerror(reason));
    bool trace = got >= 16 && memcmp(begin, "SQLite format 3", 16) == 0;
    if (!trace && begin[strspn(begin, " \t\r\n")] != '{') {
        tdm_fail(err, TDM_INPUT, "%s: is neither a schedule nor a trace", path);
        return tdm_hint(err, "`tidemark plan -o FILE` writes schedules, `tidemark run --trace "
                             "FILE` writes traces");
    }
    if (!trace && step != TDM_PLOT_LAST_STEP) {
        tdm_fail(err, TDM_USAGE, "--step: %s is a schedule, which has no measured steps", path);
        return tdm_hint(err, "give a trace, or leave --step out");
    }

    struct tdm_plot *read = calloc(1, sizeof(*read));
    if (read == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a plot");
    read->step = TDM_PLOT_LAST_STEP;
    read->rank = rank;
    enum tdm_status status =
        trace ? read_trace(path, step, read, err) : tdm_plot_read_schedule(path, read, err);
    if (status != TDM_OK) {
        tdm_plot_free(read);
        return status;
    }
    *plot = read;
    return TDM_OK;
}

void tdm_plot_free(struct tdm_plot *plot)
{
    if (plot == NULL)
        return;
    for (int side = 0; side < TDM_PLOT_SIDES; side++) {
        struct tdm_plot_panel *panel = &plot->panels[side];
        tdm_timeline_free(&panel->timeline);
        for (uint32_t rank = 0; panel->ranks != NULL && rank < plot->shown_ranks; rank++)
            tdm_timeline_free(&panel->ranks[rank]);
        free(panel->ranks);
    }
    tdm_schedule_free(plot->schedule);
    free(plot);
}
