/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the trace reader: one SELECT at a time, with its columns as our types.
 *
 * In every SELECT ?1 is the run, ?2 the program, ?3 the step and ?4 the rank.
 */
#ifndef TDM_TRACES_QUERY_H
#define TDM_TRACES_QUERY_H

#include "traces/reader.h"

#include <sqlite3.h>

enum { TDM_RUN_STRINGS = 8 };

struct tdm_trace_reader {
    char *path;
    sqlite3 *db;
    int64_t run_id;
    uint32_t rank; /* that queries see */
    struct tdm_trace_run_info run;
    struct tdm_topology topology;   /* for the places and lanes named in its rows */
    char *strings[TDM_RUN_STRINGS]; /* that `run` points to */
};

/* Fails with TDM_INPUT unless the file has all tables and views of schema.sql with the same SQL
 * (check_schema.c). */
enum tdm_status tdm_trace_check_schema(struct tdm_trace_reader *reader, struct tdm_error *err);

/* A running SELECT. After a failure it returns no more rows, and tdm_query_end() returns the
 * failure. */
struct tdm_query {
    struct tdm_trace_reader *reader;
    sqlite3_stmt *statement;
    enum tdm_status status;
    struct tdm_error *err;
};

struct tdm_query tdm_query_begin(struct tdm_trace_reader *reader, const char *sql, int64_t program,
                                 int64_t step, struct tdm_error *err);
bool tdm_query_next(struct tdm_query *query); /* false: no further row, or a failure */
enum tdm_status tdm_query_end(struct tdm_query *query);

/* A column of the current row, counted from 0. */
int64_t tdm_query_integer(const struct tdm_query *query, int column);
uint64_t tdm_query_count(const struct tdm_query *query, int column);
uint32_t tdm_query_number(const struct tdm_query *query, int column);  /* NULL: TDM_NONE */
double tdm_query_real(const struct tdm_query *query, int column);      /* NULL: NAN */
const char *tdm_query_text(const struct tdm_query *query, int column); /* until the next row */

/* Nanoseconds of a clock that begins with a run or a step. More than 104 days make the query fail:
 * TDM_INPUT. */
int64_t tdm_query_time(struct tdm_query *query, int column);

/* Converts a name to a value of its enum. An unknown name makes the query fail: TDM_INPUT. */
enum tdm_place tdm_query_place(struct tdm_query *query, int column);
enum tdm_category tdm_query_category(struct tdm_query *query, int column);
enum tdm_lane tdm_query_lane(struct tdm_query *query, int column);
enum tdm_phase tdm_query_phase(struct tdm_query *query, int column);
enum tdm_op_kind tdm_query_kind(struct tdm_query *query, int column);
enum tdm_content tdm_query_content(struct tdm_query *query, int column); /* NULL: TDM_EMPTY */

/* Runs a query to its end; `take` fills one zeroed row of `size` bytes. *rows is one allocation,
 * which the caller frees, or NULL if there are no rows. */
enum tdm_status tdm_query_rows(struct tdm_trace_reader *reader, const char *sql, int64_t program,
                               int64_t step, size_t size,
                               void (*take)(struct tdm_query *query, void *row), void **rows,
                               size_t *count, struct tdm_error *err);

#endif
