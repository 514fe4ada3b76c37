/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of traces: what each of several ranks does in a step, and for whom it waits. The views
 * of schema.sql compute the sums. */
#include "traces/query.h"

#include <math.h>
#include <stdlib.h>

static void take_wait(struct tdm_query *query, void *row)
{
    struct tdm_trace_rank_wait *wait = row;
    wait->rank = tdm_query_number(query, 0);
    wait->awaited = tdm_query_number(query, 1);
    wait->predicted_seconds = tdm_query_real(query, 2);
    wait->measured_seconds = tdm_query_real(query, 3);
}

static int compare_waits(const void *left, const void *right)
{
    const struct tdm_trace_rank_wait *a = left, *b = right;
    double x = isnan(a->measured_seconds) ? a->predicted_seconds : a->measured_seconds;
    double y = isnan(b->measured_seconds) ? b->predicted_seconds : b->measured_seconds;
    int by_rank = (a->rank > b->rank) - (a->rank < b->rank);
    int by_seconds = (x < y) - (x > y);
    return by_rank != 0      ? by_rank
           : by_seconds != 0 ? by_seconds
                             : (a->awaited > b->awaited) - (a->awaited < b->awaited);
}

/* Measured waits are the mean of the timed steps. Waits of less than a nanosecond are equal work in
 * another order. */
#define SELECT_WAITS(condition)                                                              \
    "WITH timed AS (SELECT count(DISTINCT step) AS steps FROM measured_team_wait "           \
    "WHERE run = ?1 AND program = ?2 " condition "), "                                       \
    "p AS (SELECT rank, awaited, sum(wait_ns) / 1e9 AS seconds FROM predicted_team_wait "    \
    "WHERE program = ?2 AND wait_ns > 0 GROUP BY rank, awaited), "                           \
    "m AS (SELECT rank, awaited, sum(wait_ns) / 1e9 / (SELECT steps FROM timed) AS seconds " \
    "FROM measured_team_wait WHERE run = ?1 AND program = ?2 AND wait_ns > 0 " condition     \
    " GROUP BY rank, awaited) "                                                              \
    "SELECT w.rank, w.awaited, ifnull(p.seconds, 0.0), "                                     \
    "CASE WHEN (SELECT steps FROM timed) > 0 THEN ifnull(m.seconds, 0.0) END "               \
    "FROM (SELECT rank, awaited FROM p UNION SELECT rank, awaited FROM m) AS w "             \
    "LEFT JOIN p ON p.rank = w.rank AND p.awaited = w.awaited "                              \
    "LEFT JOIN m ON m.rank = w.rank AND m.awaited = w.awaited"

enum tdm_status tdm_trace_read_rank_waits(struct tdm_trace_reader *reader, int64_t program,
                                          int64_t step, struct tdm_trace_rank_wait **rows,
                                          size_t *count, struct tdm_error *err)
{
    void *found;
    enum tdm_status status = tdm_query_rows(
        reader, step == TDM_TRACE_EVERY_STEP ? SELECT_WAITS("") : SELECT_WAITS("AND step = ?3"),
        program, step, sizeof(**rows), take_wait, &found, count, err);
    if (status != TDM_OK)
        return status;
    if (*count > 0)
        qsort(found, *count, sizeof(**rows), compare_waits);
    *rows = found;
    return TDM_OK;
}

enum tdm_status tdm_trace_read_timed_ranks(struct tdm_trace_reader *reader, int64_t program,
                                           int64_t step, uint32_t *ranks, struct tdm_error *err)
{
    struct tdm_query query =
        tdm_query_begin(reader,
                        "SELECT DISTINCT rank FROM timing WHERE run = ?1 AND program = ?2 "
                        "AND step = ?3 ORDER BY rank",
                        program, step, err);
    uint32_t count = 0;
    while (tdm_query_next(&query))
        count += tdm_query_number(&query, 0) == count;
    enum tdm_status status = tdm_query_end(&query);
    if (status == TDM_OK)
        *ranks = count;
    return status;
}

static void take_rank(struct tdm_query *query, void *row)
{
    struct tdm_trace_rank_row *rank = row;
    rank->rank = tdm_query_number(query, 0);
    rank->ops = tdm_query_count(query, 1);
    rank->copied_bytes = tdm_query_count(query, 2);
    rank->received_bytes = tdm_query_count(query, 3);
    rank->sent_bytes = tdm_query_count(query, 4);
    rank->used_bytes = tdm_query_count(query, 5);
    rank->arenas = tdm_query_number(query, 6);
    rank->predicted = (struct tdm_trace_rank_times){.step_seconds = tdm_query_real(query, 7),
                                                    .compute_seconds = tdm_query_real(query, 8),
                                                    .team_seconds = tdm_query_real(query, 9)};
    rank->measured = (struct tdm_trace_rank_times){.step_seconds = tdm_query_real(query, 10),
                                                   .compute_seconds = tdm_query_real(query, 11),
                                                   .team_seconds = tdm_query_real(query, 12)};
}

#define OF_DEVICE(column, condition)                                            \
    "(SELECT max(" column ") FROM used_memory WHERE run = ?1 AND program = ?2 " \
    "AND place = 'device' AND rank = p.rank " condition ")"

#define SELECT_RANKS(condition)                                                                                               \
    "SELECT p.rank, p.ops, p.copied_bytes, p.received_bytes, p.sent_bytes, " OF_DEVICE(                                       \
        "used_bytes",                                                                                                         \
        condition) ", " OF_DEVICE("arenas",                                                                                   \
                                  condition) ", "                                                                             \
                                             "p.step_seconds, p.compute_seconds, p.team_seconds, m.step, m.compute, m.team "  \
                                             "FROM predicted_rank AS p LEFT JOIN (SELECT rank, avg(step_seconds) AS step, "   \
                                             "avg(compute_seconds) AS compute, avg(team_seconds) AS team FROM measured_rank " \
                                             "WHERE run = ?1 AND program = ?2 " condition                                     \
                                             " GROUP BY rank) AS m "                                                          \
                                             "ON m.rank = p.rank WHERE p.program = ?2 ORDER BY p.rank"

/* Takes the waits out of the time of the team ops. */
static void part_waits(struct tdm_trace_rank_row *rank, const struct tdm_trace_rank_wait *waits,
                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (waits[i].rank == rank->rank) {
            rank->predicted.wait_seconds += waits[i].predicted_seconds;
            rank->measured.wait_seconds += waits[i].measured_seconds;
        }
    if (isnan(rank->measured.step_seconds))
        rank->measured.wait_seconds = NAN;
    rank->predicted.team_seconds -= rank->predicted.wait_seconds;
    rank->measured.team_seconds -= rank->measured.wait_seconds;
}

enum tdm_status tdm_trace_read_ranks(struct tdm_trace_reader *reader, int64_t program, int64_t step,
                                     struct tdm_trace_rank_row **rows, size_t *count,
                                     struct tdm_error *err)
{
    struct tdm_trace_rank_wait *waits;
    size_t wait_count;
    void *found;
    enum tdm_status status =
        tdm_trace_read_rank_waits(reader, program, step, &waits, &wait_count, err);
    if (status != TDM_OK)
        return status;
    status = tdm_query_rows(
        reader, step == TDM_TRACE_EVERY_STEP ? SELECT_RANKS("") : SELECT_RANKS("AND step = ?3"),
        program, step, sizeof(**rows), take_rank, &found, count, err);
    if (status == TDM_OK) {
        *rows = found;
        for (size_t i = 0; i < *count; i++)
            part_waits(&(*rows)[i], waits, wait_count);
    }
    free(waits);
    return status;
}
