/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of traces: queries of memory.
 *
 * Peaks are found in one pass over the changes, which are stored in the order of their ops. The
 * views of schema.sql give the same answer (tests compare them), but sort millions of rows.
 */
#include "base/text.h"
#include "traces/query.h"

#include <stdio.h>
#include <string.h>

static void take_change(struct tdm_query *query, void *row)
{
    struct tdm_values_change *change = row;
    change->op_number = tdm_query_count(query, 0);
    change->place = tdm_query_place(query, 1);
    change->category = tdm_query_category(query, 2);
    change->value_bytes = tdm_query_count(query, 3);
}

#define SELECT_MEMORY                                                \
    "SELECT op_number, place, category, value_bytes, 0 FROM memory " \
    "WHERE program = ?2 AND rank = ?4 ORDER BY op_number"
#define SELECT_OBSERVED                                                   \
    "SELECT op_number, place, category, value_bytes, step FROM observed " \
    "WHERE run = ?1 AND program = ?2 AND rank = ?4"

enum tdm_status tdm_trace_read_memory(struct tdm_trace_reader *reader, int64_t program,
                                      struct tdm_values_change **rows, size_t *count,
                                      struct tdm_error *err)
{
    void *found;
    enum tdm_status status = tdm_query_rows(reader, SELECT_MEMORY, program, 0, sizeof(**rows),
                                            take_change, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

enum tdm_status tdm_trace_read_observed(struct tdm_trace_reader *reader, int64_t program,
                                        int64_t step, struct tdm_values_change **rows,
                                        size_t *count, struct tdm_error *err)
{
    void *found;
    enum tdm_status status =
        tdm_query_rows(reader, SELECT_OBSERVED " AND step = ?3 ORDER BY op_number", program, step,
                       sizeof(**rows), take_change, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

static void take_allocation(struct tdm_query *query, void *row)
{
    struct tdm_trace_allocation_row *allocation = row;
    allocation->op_number = tdm_query_count(query, 0);
    allocation->place = tdm_query_place(query, 1);
    allocation->allocated_bytes = tdm_query_count(query, 2);
}

enum tdm_status tdm_trace_read_allocation(struct tdm_trace_reader *reader, int64_t program,
                                          struct tdm_trace_allocation_row **rows, size_t *count,
                                          struct tdm_error *err)
{
    void *found;
    enum tdm_status status =
        tdm_query_rows(reader,
                       "SELECT op_number, place, allocated_bytes FROM allocation "
                       "WHERE program = ?2 AND rank = ?4 ORDER BY op_number",
                       program, 0, sizeof(**rows), take_allocation, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

/* Bytes of all places at one op of one step, and the peaks so far. */
struct peak_scan {
    int64_t step;
    uint64_t op_number;
    bool begun;
    bool changed[TDM_MAX_PLACES];
    uint64_t now[TDM_MAX_PLACES][TDM_CATEGORIES];
    struct tdm_trace_peak *peaks;
};

/* Compares with the peaks, when all changes of an op are known. */
static void end_op(struct peak_scan *scan)
{
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++) {
        struct tdm_trace_peak *peak = &scan->peaks[place];
        if (!scan->changed[place])
            continue;
        scan->changed[place] = false;
        uint64_t total = 0;
        for (int category = 0; category < TDM_CATEGORIES; category++) {
            uint64_t bytes = scan->now[place][category];
            total += bytes;
            if (bytes > peak->most[category])
                peak->most[category] = bytes;
        }
        if (peak->known && total <= peak->value_bytes)
            continue;
        peak->known = true;
        peak->step = scan->step;
        peak->op_number = scan->op_number;
        peak->value_bytes = total;
        memcpy(peak->at_peak, scan->now[place], sizeof(peak->at_peak));
    }
}

static enum tdm_status scan_peaks(struct tdm_trace_reader *reader, const char *sql, int64_t program,
                                  int64_t step, struct tdm_trace_peak peaks[TDM_MAX_PLACES],
                                  struct tdm_error *err)
{
    struct peak_scan scan = {.peaks = peaks};
    struct tdm_query query = tdm_query_begin(reader, sql, program, step, err);
    while (tdm_query_next(&query)) {
        struct tdm_values_change change;
        take_change(&query, &change);
        int64_t of_step = tdm_query_integer(&query, 4);
        if (scan.begun && (of_step != scan.step || change.op_number != scan.op_number))
            end_op(&scan);
        if (!scan.begun || of_step != scan.step)
            memset(scan.now, 0, sizeof(scan.now));
        scan.begun = true;
        scan.step = of_step;
        scan.op_number = change.op_number;
        scan.changed[change.place] = true;
        scan.now[change.place][change.category] = change.value_bytes;
    }
    if (scan.begun)
        end_op(&scan);
    return tdm_query_end(&query);
}

enum tdm_status tdm_trace_read_peaks(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_peaks *peaks, struct tdm_error *err)
{
    struct tdm_trace_peaks found = {0};
    enum tdm_status status = scan_peaks(reader, SELECT_MEMORY, program, step, found.predicted, err);
    if (status == TDM_OK)
        status = scan_peaks(reader,
                            step == TDM_TRACE_EVERY_STEP
                                ? SELECT_OBSERVED " ORDER BY step, op_number"
                                : SELECT_OBSERVED " AND step = ?3 ORDER BY step, op_number",
                            program, step, found.measured, err);
    if (status == TDM_OK)
        *peaks = found;
    return status;
}

static void take_arena(struct tdm_query *query, void *row)
{
    struct tdm_trace_arena_row *arena = row;
    arena->place = tdm_query_place(query, 0);
    arena->planned_bytes = tdm_query_count(query, 1);
    arena->touched_bytes = tdm_query_count(query, 2);
    arena->highest_byte = tdm_query_count(query, 3);
}

enum tdm_status tdm_trace_read_arenas(struct tdm_trace_reader *reader, int64_t program,
                                      int64_t step, struct tdm_trace_arena_row **rows,
                                      size_t *count, struct tdm_error *err)
{
    void *found;
    enum tdm_status status = tdm_query_rows(
        reader,
        step == TDM_TRACE_EVERY_STEP
            ? "SELECT place, max(planned_bytes), max(touched_bytes), max(highest_byte) "
              "FROM arena WHERE run = ?1 AND program = ?2 AND rank = ?4 GROUP BY place ORDER BY place"
            : "SELECT place, planned_bytes, touched_bytes, highest_byte FROM arena "
              "WHERE run = ?1 AND program = ?2 AND step = ?3 AND rank = ?4 ORDER BY place",
        program, step, sizeof(**rows), take_arena, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

static void take_used(struct tdm_query *query, void *row)
{
    struct tdm_trace_used_row *used = row;
    used->step = tdm_query_integer(query, 0);
    used->time_ns = tdm_query_time(query, 1);
    used->place = tdm_query_place(query, 2);
    used->used_bytes = tdm_query_count(query, 3);
    used->arenas = tdm_query_number(query, 4);
}

#define SELECT_USED                                                                    \
    "SELECT step, time_ns, place, used_bytes, arenas FROM used_memory WHERE run = ?1 " \
    "AND program = ?2 AND rank = ?4"

enum tdm_status tdm_trace_read_used(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                    struct tdm_trace_used_row **rows, size_t *count,
                                    struct tdm_error *err)
{
    void *found;
    enum tdm_status status = tdm_query_rows(
        reader,
        step == TDM_TRACE_EVERY_STEP ? SELECT_USED " ORDER BY time_ns, rowid"
                                     : SELECT_USED " AND step = ?3 ORDER BY time_ns, rowid",
        program, step, sizeof(**rows), take_used, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

static void take_touched(struct tdm_query *query, void *row)
{
    struct tdm_trace_touched_row *touched = row;
    touched->buffer = tdm_query_number(query, 0);
    snprintf(touched->name, sizeof(touched->name), "%s", tdm_query_text(query, 1));
    tdm_text_clean(touched->name);
    touched->place = tdm_query_place(query, 2);
    touched->category = tdm_query_category(query, 3);
    touched->bytes = tdm_query_count(query, 4);
    touched->offset = tdm_query_count(query, 5);
    touched->touched_bytes = tdm_query_count(query, 6);
    touched->first_op = tdm_query_count(query, 7);
    touched->last_op = tdm_query_count(query, 8);
}

enum tdm_status tdm_trace_read_touched(struct tdm_trace_reader *reader, int64_t program,
                                       int64_t step, struct tdm_trace_touched_row **rows,
                                       size_t *count, struct tdm_error *err)
{
    void *found;
    enum tdm_status status =
        tdm_query_rows(reader,
                       "SELECT b.number, b.name, b.place, b.category, b.bytes, b.offset, t.bytes, "
                       "t.first_op, t.last_op FROM touched AS t "
                       "JOIN buffer AS b ON b.program = t.program AND b.number = t.buffer "
                       "WHERE t.run = ?1 AND t.program = ?2 AND t.step = ?3 AND t.rank = ?4 "
                       "ORDER BY b.number",
                       program, step, sizeof(**rows), take_touched, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}
