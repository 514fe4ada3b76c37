/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a trace, by the readers of traces/reader.h. docs/library.md describes the
 * columns. */
#include "library/table.h"

#include <math.h>
#include <stdlib.h>

/* ---- rows that the reader has in another form ---- */

static enum tdm_status read_run(const struct tdm_table_query *q, void **rows, size_t *count,
                                struct tdm_error *err)
{
    struct tdm_trace_run_info *row = malloc(sizeof(*row));
    if (row == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the run of the trace");
    *row = *tdm_trace_reader_run(q->reader);
    *rows = row;
    *count = 1;
    return TDM_OK;
}

/* A place of a program. */
struct place_row {
    int64_t program;
    enum tdm_place place;
    uint64_t arena_bytes, live_peak_bytes, runtime_bytes;
};

static enum tdm_status read_places(const struct tdm_table_query *q, void **rows, size_t *count,
                                   struct tdm_error *err)
{
    struct tdm_trace_program_row *programs;
    size_t program_count, next = 0;
    const uint32_t places = tdm_trace_reader_topology(q->reader)->place_count;
    enum tdm_status status = tdm_trace_read_programs(q->reader, &programs, &program_count, err);
    if (status != TDM_OK)
        return status;
    struct place_row *list = malloc((program_count * places + 1) * sizeof(*list));
    for (size_t p = 0; list != NULL && p < program_count; p++)
        for (uint32_t place = 0; place < places; place++)
            list[next++] = (struct place_row){.program = programs[p].program,
                                              .place = (enum tdm_place)place,
                                              .arena_bytes = programs[p].arena_bytes[place],
                                              .live_peak_bytes = programs[p].live_peak_bytes[place],
                                              .runtime_bytes = programs[p].runtime_bytes[place]};
    free(programs);
    if (list == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the places of the trace");
    *rows = list;
    *count = next;
    return TDM_OK;
}

/* Bytes of values of a category in a place. */
struct peak_row {
    enum tdm_place place;
    enum tdm_category category;
    double predicted_at_peak, measured_at_peak, predicted_most, measured_most; /* NAN: unknown */
};

static enum tdm_status read_peaks(const struct tdm_table_query *q, void **rows, size_t *count,
                                  struct tdm_error *err)
{
    const uint32_t places = tdm_trace_reader_topology(q->reader)->place_count;
    struct tdm_trace_peaks peaks;
    enum tdm_status status = tdm_trace_read_peaks(q->reader, q->program, q->step, &peaks, err);
    if (status != TDM_OK)
        return status;
    struct peak_row *list = malloc((size_t)places * TDM_CATEGORIES * sizeof(*list));
    if (list == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the peaks of the trace");
    size_t next = 0;
    for (uint32_t place = 0; place < places; place++)
        for (int c = 0; c < TDM_CATEGORIES; c++) {
            const struct tdm_trace_peak *predicted = &peaks.predicted[place];
            const struct tdm_trace_peak *measured = &peaks.measured[place];
            if ((!predicted->known || predicted->most[c] == 0) &&
                (!measured->known || measured->most[c] == 0))
                continue;
            list[next++] = (struct peak_row){
                .place = (enum tdm_place)place,
                .category = (enum tdm_category)c,
                .predicted_at_peak = predicted->known ? (double)predicted->at_peak[c] : NAN,
                .measured_at_peak = measured->known ? (double)measured->at_peak[c] : NAN,
                .predicted_most = predicted->known ? (double)predicted->most[c] : NAN,
                .measured_most = measured->known ? (double)measured->most[c] : NAN};
        }
    *rows = list;
    *count = next;
    return TDM_OK;
}

/* ---- rows of the reader ---- */

/* Defines read_NAME() by tdm_trace_read_NAME(), whose first arguments follow ROW. */
#define READ(name, row, ...)                                                            \
    static enum tdm_status read_##name(const struct tdm_table_query *q, void **rows,    \
                                       size_t *count, struct tdm_error *err)            \
    {                                                                                   \
        struct row *list;                                                               \
        enum tdm_status status = tdm_trace_read_##name(__VA_ARGS__, &list, count, err); \
        if (status == TDM_OK)                                                           \
            *rows = list;                                                               \
        return status;                                                                  \
    }

READ(programs, tdm_trace_program_row, q->reader)
READ(steps, tdm_trace_step_row, q->reader)
READ(evaluations, tdm_trace_evaluation_row, q->reader)
READ(memory, tdm_values_change, q->reader, q->program)
READ(allocation, tdm_trace_allocation_row, q->reader, q->program)
READ(observed, tdm_values_change, q->reader, q->program, q->step)
READ(intervals, tdm_trace_interval, q->reader, q->program, q->step)
READ(times, tdm_trace_time_row, q->reader, q->program, q->step)
READ(lanes, tdm_trace_lane_row, q->reader, q->program, q->step)
READ(ranks, tdm_trace_rank_row, q->reader, q->program, q->step)
READ(rank_waits, tdm_trace_rank_wait, q->reader, q->program, q->step)
READ(arenas, tdm_trace_arena_row, q->reader, q->program, q->step)
READ(used, tdm_trace_used_row, q->reader, q->program, q->step)
READ(touched, tdm_trace_touched_row, q->reader, q->program, q->step)

/* ---- columns ---- */

#define COLUMN(row, member, field)                               \
    {                                                            \
#member, TDM_FIELD_##field, offsetof(struct row, member) \
    }

static const struct tdm_column run_columns[] = {COLUMN(tdm_trace_run_info, command, POINTER),
                                                COLUMN(tdm_trace_run_info, backend, POINTER),
                                                COLUMN(tdm_trace_run_info, ran_on, POINTER),
                                                COLUMN(tdm_trace_run_info, versions, POINTER),
                                                COLUMN(tdm_trace_run_info, started_at, POINTER),
                                                COLUMN(tdm_trace_run_info, ended_at, POINTER),
                                                COLUMN(tdm_trace_run_info, ending, POINTER),
                                                COLUMN(tdm_trace_run_info, resumed_from, POINTER),
                                                COLUMN(tdm_trace_run_info, pinned_bytes, COUNT),
                                                COLUMN(tdm_trace_run_info, pageable_bytes, COUNT),
                                                {0}};
static const struct tdm_column program_columns[] = {
    COLUMN(tdm_trace_program_row, program, SIGNED),
    COLUMN(tdm_trace_program_row, name, CHARS),
    COLUMN(tdm_trace_program_row, ranks, NUMBER),
    COLUMN(tdm_trace_program_row, ops, COUNT),
    COLUMN(tdm_trace_program_row, predicted_seconds, REAL),
    COLUMN(tdm_trace_program_row, steps, COUNT),
    COLUMN(tdm_trace_program_row, timed_steps, COUNT),
    {0}};
static const struct tdm_column place_columns[] = {
    COLUMN(place_row, program, SIGNED),      COLUMN(place_row, place, PLACE),
    COLUMN(place_row, arena_bytes, COUNT),   COLUMN(place_row, live_peak_bytes, COUNT),
    COLUMN(place_row, runtime_bytes, COUNT), {0}};
static const struct tdm_column step_columns[] = {
    COLUMN(tdm_trace_step_row, program, SIGNED), COLUMN(tdm_trace_step_row, step, SIGNED),
    COLUMN(tdm_trace_step_row, loss, REAL),      COLUMN(tdm_trace_step_row, gradient_norm, REAL),
    COLUMN(tdm_trace_step_row, seconds, REAL),   COLUMN(tdm_trace_step_row, tokens, COUNT),
    COLUMN(tdm_trace_step_row, timed, YES),      {0}};
static const struct tdm_column evaluation_columns[] = {
    COLUMN(tdm_trace_evaluation_row, program, SIGNED),
    COLUMN(tdm_trace_evaluation_row, step, SIGNED),
    COLUMN(tdm_trace_evaluation_row, text, CHARS),
    COLUMN(tdm_trace_evaluation_row, evaluated_by, SIGNED),
    COLUMN(tdm_trace_evaluation_row, loss, REAL),
    COLUMN(tdm_trace_evaluation_row, seconds, REAL),
    COLUMN(tdm_trace_evaluation_row, tokens, COUNT),
    {0}};
static const struct tdm_column op_columns[] = {
    COLUMN(tdm_trace_interval, op_number, COUNT),
    COLUMN(tdm_trace_interval, kind, KIND),
    COLUMN(tdm_trace_interval, phase, PHASE),
    COLUMN(tdm_trace_interval, lane, LANE),
    COLUMN(tdm_trace_interval, layer, NUMBER),
    COLUMN(tdm_trace_interval, chunk, NUMBER),
    COLUMN(tdm_trace_interval, content, CONTENT),
    COLUMN(tdm_trace_interval, flops, COUNT),
    COLUMN(tdm_trace_interval, bytes, COUNT),
    COLUMN(tdm_trace_interval, predicted_start_ns, SIGNED),
    COLUMN(tdm_trace_interval, predicted_end_ns, SIGNED),
    COLUMN(tdm_trace_interval, measured, YES),
    COLUMN(tdm_trace_interval, start_ns, SIGNED),
    COLUMN(tdm_trace_interval, end_ns, SIGNED),
    {0}};
static const struct tdm_column change_columns[] = {COLUMN(tdm_values_change, op_number, COUNT),
                                                   COLUMN(tdm_values_change, place, PLACE),
                                                   COLUMN(tdm_values_change, category, CATEGORY),
                                                   COLUMN(tdm_values_change, value_bytes, COUNT),
                                                   {0}};
static const struct tdm_column allocation_columns[] = {
    COLUMN(tdm_trace_allocation_row, op_number, COUNT),
    COLUMN(tdm_trace_allocation_row, place, PLACE),
    COLUMN(tdm_trace_allocation_row, allocated_bytes, COUNT),
    {0}};
static const struct tdm_column peak_columns[] = {
    {"place", TDM_FIELD_PLACE, offsetof(struct peak_row, place)},
    {"category", TDM_FIELD_CATEGORY, offsetof(struct peak_row, category)},
    {"predicted_at_peak_bytes", TDM_FIELD_REAL, offsetof(struct peak_row, predicted_at_peak)},
    {"measured_at_peak_bytes", TDM_FIELD_REAL, offsetof(struct peak_row, measured_at_peak)},
    {"predicted_most_bytes", TDM_FIELD_REAL, offsetof(struct peak_row, predicted_most)},
    {"measured_most_bytes", TDM_FIELD_REAL, offsetof(struct peak_row, measured_most)},
    {0}};
static const struct tdm_column time_columns[] = {
    COLUMN(tdm_trace_time_row, phase, PHASE),
    COLUMN(tdm_trace_time_row, kind, KIND),
    COLUMN(tdm_trace_time_row, ops, COUNT),
    COLUMN(tdm_trace_time_row, predicted_seconds, REAL),
    COLUMN(tdm_trace_time_row, measured_seconds, REAL),
    {0}};
static const struct tdm_column lane_columns[] = {
    COLUMN(tdm_trace_lane_row, lane, LANE),
    COLUMN(tdm_trace_lane_row, ops, COUNT),
    COLUMN(tdm_trace_lane_row, copied_bytes, COUNT),
    COLUMN(tdm_trace_lane_row, predicted_busy_seconds, REAL),
    COLUMN(tdm_trace_lane_row, measured_busy_seconds, REAL),
    COLUMN(tdm_trace_lane_row, predicted_stall_seconds, REAL),
    COLUMN(tdm_trace_lane_row, measured_stall_seconds, REAL),
    {0}};
#define RANK_TIME(side, what)                                                           \
    {                                                                                   \
#side "_" #what, TDM_FIELD_REAL, offsetof(struct tdm_trace_rank_row, side.what) \
    }
static const struct tdm_column rank_columns[] = {COLUMN(tdm_trace_rank_row, rank, NUMBER),
                                                 COLUMN(tdm_trace_rank_row, ops, COUNT),
                                                 COLUMN(tdm_trace_rank_row, copied_bytes, COUNT),
                                                 COLUMN(tdm_trace_rank_row, received_bytes, COUNT),
                                                 COLUMN(tdm_trace_rank_row, sent_bytes, COUNT),
                                                 COLUMN(tdm_trace_rank_row, used_bytes, COUNT),
                                                 COLUMN(tdm_trace_rank_row, arenas, NUMBER),
                                                 RANK_TIME(predicted, step_seconds),
                                                 RANK_TIME(predicted, compute_seconds),
                                                 RANK_TIME(predicted, team_seconds),
                                                 RANK_TIME(predicted, wait_seconds),
                                                 RANK_TIME(measured, step_seconds),
                                                 RANK_TIME(measured, compute_seconds),
                                                 RANK_TIME(measured, team_seconds),
                                                 RANK_TIME(measured, wait_seconds),
                                                 {0}};
static const struct tdm_column wait_columns[] = {
    COLUMN(tdm_trace_rank_wait, rank, NUMBER),
    COLUMN(tdm_trace_rank_wait, awaited, NUMBER),
    COLUMN(tdm_trace_rank_wait, predicted_seconds, REAL),
    COLUMN(tdm_trace_rank_wait, measured_seconds, REAL),
    {0}};
static const struct tdm_column arena_columns[] = {COLUMN(tdm_trace_arena_row, place, PLACE),
                                                  COLUMN(tdm_trace_arena_row, planned_bytes, COUNT),
                                                  COLUMN(tdm_trace_arena_row, touched_bytes, COUNT),
                                                  COLUMN(tdm_trace_arena_row, highest_byte, COUNT),
                                                  {0}};
static const struct tdm_column used_columns[] = {
    COLUMN(tdm_trace_used_row, step, SIGNED),   COLUMN(tdm_trace_used_row, time_ns, SIGNED),
    COLUMN(tdm_trace_used_row, place, PLACE),   COLUMN(tdm_trace_used_row, used_bytes, COUNT),
    COLUMN(tdm_trace_used_row, arenas, NUMBER), {0}};
static const struct tdm_column buffer_columns[] = {
    COLUMN(tdm_trace_touched_row, buffer, NUMBER),
    COLUMN(tdm_trace_touched_row, name, CHARS),
    COLUMN(tdm_trace_touched_row, place, PLACE),
    COLUMN(tdm_trace_touched_row, category, CATEGORY),
    COLUMN(tdm_trace_touched_row, bytes, COUNT),
    COLUMN(tdm_trace_touched_row, offset, COUNT),
    COLUMN(tdm_trace_touched_row, touched_bytes, COUNT),
    COLUMN(tdm_trace_touched_row, first_op, COUNT),
    COLUMN(tdm_trace_touched_row, last_op, COUNT),
    {0}};

const struct tdm_table_kind tdm_table_kinds[] = {
    {"run", sizeof(struct tdm_trace_run_info), run_columns, read_run},
    {"programs", sizeof(struct tdm_trace_program_row), program_columns, read_programs},
    {"places", sizeof(struct place_row), place_columns, read_places},
    {"steps", sizeof(struct tdm_trace_step_row), step_columns, read_steps},
    {"evaluations", sizeof(struct tdm_trace_evaluation_row), evaluation_columns, read_evaluations},
    {"ops", sizeof(struct tdm_trace_interval), op_columns, read_intervals},
    {"memory", sizeof(struct tdm_values_change), change_columns, read_memory},
    {"observed", sizeof(struct tdm_values_change), change_columns, read_observed},
    {"allocation", sizeof(struct tdm_trace_allocation_row), allocation_columns, read_allocation},
    {"peaks", sizeof(struct peak_row), peak_columns, read_peaks},
    {"times", sizeof(struct tdm_trace_time_row), time_columns, read_times},
    {"lanes", sizeof(struct tdm_trace_lane_row), lane_columns, read_lanes},
    {"ranks", sizeof(struct tdm_trace_rank_row), rank_columns, read_ranks},
    {"waits", sizeof(struct tdm_trace_rank_wait), wait_columns, read_rank_waits},
    {"arenas", sizeof(struct tdm_trace_arena_row), arena_columns, read_arenas},
    {"used", sizeof(struct tdm_trace_used_row), used_columns, read_used},
    {"buffers", sizeof(struct tdm_trace_touched_row), buffer_columns, read_touched},
    {0}};
