/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of traces: queries of time by phase and op kind, by lane and by op, and of what
 * selections held. The views of schema.sql compute most sums of times. */
#include "traces/query.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void take_time(struct tdm_query *query, void *row)
{
    struct tdm_trace_time_row *time = row;
    time->phase = tdm_query_phase(query, 0);
    time->kind = tdm_query_kind(query, 1);
    time->ops = tdm_query_count(query, 2);
    time->predicted_seconds = tdm_query_real(query, 3);
    time->measured_seconds = tdm_query_real(query, 4);
}

static int compare_times(const void *left, const void *right)
{
    const struct tdm_trace_time_row *a = left;
    const struct tdm_trace_time_row *b = right;
    int by_phase = (a->phase > b->phase) - (a->phase < b->phase);
    return by_phase != 0 ? by_phase : (a->kind > b->kind) - (a->kind < b->kind);
}

#define SELECT_TIMES(condition)                                                               \
    "SELECT p.phase, p.kind, p.ops, p.seconds, m.seconds FROM predicted_time AS p "           \
    "LEFT JOIN (SELECT phase, kind, avg(seconds) AS seconds FROM measured_time "              \
    "WHERE run = ?1 AND program = ?2 AND rank = ?4 " condition " GROUP BY phase, kind) AS m " \
    "ON m.phase = p.phase AND m.kind = p.kind WHERE p.program = ?2 AND p.rank = ?4"

static enum tdm_status read_times(struct tdm_trace_reader *reader, const char *sql, int64_t program,
                                  int64_t step, struct tdm_trace_time_row **rows, size_t *count,
                                  struct tdm_error *err)
{
    void *found;
    enum tdm_status status =
        tdm_query_rows(reader, sql, program, step, sizeof(**rows), take_time, &found, count, err);
    if (status != TDM_OK)
        return status;
    if (*count > 0)
        qsort(found, *count, sizeof(**rows), compare_times);
    *rows = found;
    return TDM_OK;
}

enum tdm_status tdm_trace_read_times(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_time_row **rows, size_t *count,
                                     struct tdm_error *err)
{
    return read_times(
        reader, step == TDM_TRACE_EVERY_STEP ? SELECT_TIMES("") : SELECT_TIMES("AND step = ?3"),
        program, step, rows, count, err);
}

enum tdm_status tdm_trace_read_unfinished_times(struct tdm_trace_reader *reader, int64_t program,
                                                int64_t step, struct tdm_trace_time_row **rows,
                                                size_t *count, struct tdm_error *err)
{
    return read_times(
        reader,
        "SELECT phase, kind, ops, predicted_seconds, measured_seconds "
        "FROM unfinished_time WHERE run = ?1 AND program = ?2 AND step = ?3 AND rank = ?4",
        program, step, rows, count, err);
}

static void take_lane(struct tdm_query *query, void *row)
{
    struct tdm_trace_lane_row *lane = row;
    lane->lane = tdm_query_lane(query, 0);
    lane->ops = tdm_query_count(query, 1);
    lane->copied_bytes = tdm_query_count(query, 2);
    lane->predicted_busy_seconds = tdm_query_real(query, 3);
    lane->predicted_stall_seconds = tdm_query_real(query, 4);
    lane->measured_busy_seconds = tdm_query_real(query, 5);
    lane->measured_stall_seconds = tdm_query_real(query, 6);
}

static int compare_lanes(const void *left, const void *right)
{
    const struct tdm_trace_lane_row *a = left;
    const struct tdm_trace_lane_row *b = right;
    return (a->lane > b->lane) - (a->lane < b->lane);
}

#define SELECT_LANES(condition)                                                               \
    "SELECT p.lane, p.ops, p.copied_bytes, p.busy_seconds, p.stall_seconds, m.busy, m.stall " \
    "FROM predicted_lane AS p "                                                               \
    "LEFT JOIN (SELECT lane, avg(measured_busy_seconds) AS busy, "                            \
    "avg(measured_stall_seconds) AS stall FROM stalls "                                       \
    "WHERE run = ?1 AND program = ?2 AND rank = ?4 " condition " GROUP BY lane) AS m "        \
    "ON m.lane = p.lane WHERE p.program = ?2 AND p.rank = ?4"

#define SELECT_UNFINISHED_LANES                                                               \
    "SELECT lane, count(*), sum(copied_bytes), "                                              \
    "sum(due) / 1e9, max(0, max(due_end) - sum(due)) / 1e9, "                                 \
    "sum(taken) / 1e9, max(0, max(taken_end) - sum(taken)) / 1e9 "                            \
    "FROM (SELECT o.lane, o.copied_bytes, o.predicted_end_ns - o.predicted_start_ns AS due, " \
    "o.predicted_end_ns AS due_end, t.end_ns - t.start_ns AS taken, t.end_ns AS taken_end "   \
    "FROM unfinished AS u "                                                                   \
    "JOIN timing AS t ON t.run = u.run AND t.program = u.program AND t.step = u.step "        \
    "AND t.rank = ?4 "                                                                        \
    "JOIN op AS o ON o.program = t.program AND o.rank = t.rank AND o.number = t.op_number "   \
    "WHERE u.run = ?1 AND u.program = ?2 AND u.step = ?3) GROUP BY lane"

static enum tdm_status read_lanes(struct tdm_trace_reader *reader, const char *sql, int64_t program,
                                  int64_t step, struct tdm_trace_lane_row **rows, size_t *count,
                                  struct tdm_error *err)
{
    void *found;
    enum tdm_status status =
        tdm_query_rows(reader, sql, program, step, sizeof(**rows), take_lane, &found, count, err);
    if (status != TDM_OK)
        return status;
    if (*count > 0)
        qsort(found, *count, sizeof(**rows), compare_lanes);
    *rows = found;
    return TDM_OK;
}

enum tdm_status tdm_trace_read_lanes(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_lane_row **rows, size_t *count,
                                     struct tdm_error *err)
{
    return read_lanes(
        reader, step == TDM_TRACE_EVERY_STEP ? SELECT_LANES("") : SELECT_LANES("AND step = ?3"),
        program, step, rows, count, err);
}

enum tdm_status tdm_trace_read_unfinished_lanes(struct tdm_trace_reader *reader, int64_t program,
                                                int64_t step, struct tdm_trace_lane_row **rows,
                                                size_t *count, struct tdm_error *err)
{
    return read_lanes(reader, SELECT_UNFINISHED_LANES, program, step, rows, count, err);
}

static void take_interval(struct tdm_query *query, void *row)
{
    struct tdm_trace_interval *interval = row;
    interval->op_number = tdm_query_count(query, 0);
    interval->kind = tdm_query_kind(query, 1);
    interval->phase = tdm_query_phase(query, 2);
    interval->lane = tdm_query_lane(query, 3);
    interval->layer = tdm_query_number(query, 4);
    interval->chunk = tdm_query_number(query, 5);
    interval->predicted_start_ns = tdm_query_time(query, 6);
    interval->predicted_end_ns = tdm_query_time(query, 7);
    interval->flops = tdm_query_count(query, 8);
    interval->bytes = tdm_query_count(query, 9);
    interval->measured = sqlite3_column_type(query->statement, 10) != SQLITE_NULL;
    interval->start_ns = tdm_query_time(query, 10);
    interval->end_ns = tdm_query_time(query, 11);
    interval->content = tdm_query_content(query, 12);
}

enum tdm_status tdm_trace_read_intervals(struct tdm_trace_reader *reader, int64_t program,
                                         int64_t step, struct tdm_trace_interval **rows,
                                         size_t *count, struct tdm_error *err)
{
    void *found;
    enum tdm_status status = tdm_query_rows(
        reader,
        "SELECT o.number, o.kind, o.phase, o.lane, o.layer, o.chunk, o.predicted_start_ns, "
        "o.predicted_end_ns, o.flops, o.bytes, t.start_ns, t.end_ns, o.content FROM op AS o "
        "LEFT JOIN timing AS t ON t.run = ?1 AND t.program = ?2 AND t.step = ?3 "
        "AND t.rank = o.rank AND t.op_number = o.number "
        "WHERE o.program = ?2 AND o.rank = ?4 ORDER BY o.number",
        program, step, sizeof(**rows), take_interval, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

#define WHOLE_STEPS "(SELECT step FROM step WHERE run = ?1 AND program = ?2) "

#define SELECT_PAIRS(condition)                                                                   \
    "SELECT count(*), sum(pairs), CASE WHEN count(*) > 0 THEN "                                   \
    "(SELECT 1.0 * sum(t.pairs) / count(DISTINCT t.step) FROM timing AS t "                       \
    "JOIN op AS o ON o.program = t.program AND o.rank = t.rank "                                  \
    "AND o.number = t.op_number "                                                                 \
    "WHERE t.run = ?1 AND t.program = ?2 AND t.rank = ?4 "                                        \
    "AND t.step IN " WHOLE_STEPS condition " AND o.kind = 'select' AND t.pairs > 0) END FROM op " \
    "WHERE program = ?2 AND rank = ?4 AND kind = 'select'"

#define SELECT_GATHERED(condition)                                           \
    "SELECT sum(ifnull(fetched_bytes, 0) + ifnull(sent_bytes, 0)), "         \
    "(SELECT 1.0 * sum(ifnull(fetched_bytes, 0) + ifnull(sent_bytes, 0)) / " \
    "count(DISTINCT step) FROM timing WHERE run = ?1 AND program = ?2 "      \
    "AND rank = ?4 AND step IN " WHOLE_STEPS condition                       \
    " AND fetched_bytes > 0) FROM op WHERE program = ?2 AND rank = ?4 "      \
    "AND team_op IS NULL AND fetched_bytes > 0"

#define SELECT_CONTENTS(condition)                                                              \
    "SELECT b.content, sum(b.bytes), sum(t.bytes) FROM buffer AS b LEFT JOIN (SELECT buffer, "  \
    "max(bytes) AS bytes FROM touched WHERE run = ?1 AND program = ?2 AND rank = ?4 " condition \
    " GROUP BY buffer) AS t ON t.buffer = b.number WHERE b.program = ?2 GROUP BY b.content"

enum tdm_status tdm_trace_read_selection(struct tdm_trace_reader *reader, int64_t program,
                                         int64_t step, struct tdm_trace_selection *selection,
                                         struct tdm_error *err)
{
    bool every = step == TDM_TRACE_EVERY_STEP;
    struct tdm_trace_selection found = {.held_pairs = NAN, .held_gathered_bytes = NAN};
    struct tdm_query query = tdm_query_begin(
        reader, every ? SELECT_PAIRS("") : SELECT_PAIRS("AND t.step = ?3"), program, step, err);
    while (tdm_query_next(&query)) {
        found.ops = tdm_query_count(&query, 0);
        found.room_pairs = tdm_query_count(&query, 1);
        found.held_pairs = tdm_query_real(&query, 2);
    }
    enum tdm_status status = tdm_query_end(&query);
    if (status != TDM_OK)
        return status;
    query = tdm_query_begin(reader, every ? SELECT_GATHERED("") : SELECT_GATHERED("AND step = ?3"),
                            program, step, err);
    while (tdm_query_next(&query)) {
        found.gathered_bytes = tdm_query_count(&query, 0);
        found.held_gathered_bytes = tdm_query_real(&query, 1);
    }
    status = tdm_query_end(&query);
    if (status != TDM_OK)
        return status;
    query = tdm_query_begin(reader, every ? SELECT_CONTENTS("") : SELECT_CONTENTS("AND step = ?3"),
                            program, step, err);
    while (tdm_query_next(&query)) {
        const char *content = tdm_query_text(&query, 0);
        bool lists = strcmp(content, tdm_content_name(TDM_PAGE_LISTS)) == 0;
        if (!lists && strcmp(content, tdm_content_name(TDM_PAGE_MEANS)) != 0)
            continue;
        *(lists ? &found.list_bytes : &found.mean_bytes) = tdm_query_count(&query, 1);
        *(lists ? &found.touched_list_bytes : &found.touched_mean_bytes) =
            tdm_query_count(&query, 2);
        found.touched = found.touched || sqlite3_column_type(query.statement, 2) != SQLITE_NULL;
    }
    status = tdm_query_end(&query);
    if (status == TDM_OK)
        *selection = found;
    return status;
}
