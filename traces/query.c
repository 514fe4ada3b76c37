/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one SELECT: binds its parameters, reads rows and columns, and keeps the first failure. */
#include "traces/query.h"

#include "traces/sqlite.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tdm_query tdm_query_begin(struct tdm_trace_reader *reader, const char *sql, int64_t program,
                                 int64_t step, struct tdm_error *err)
{
    struct tdm_query query = {.reader = reader, .err = err};
    query.status =
        tdm_sqlite_status(sqlite3_prepare_v2(reader->db, sql, -1, &query.statement, NULL),
                          TDM_SQLITE_READ, reader->path, reader->db, err);
    if (query.status != TDM_OK)
        return query;
    const int64_t values[] = {reader->run_id, program, step, reader->rank};
    int parameters = sqlite3_bind_parameter_count(query.statement);
    for (int i = 0; i < parameters && query.status == TDM_OK; i++)
        query.status = tdm_sqlite_status(sqlite3_bind_int64(query.statement, i + 1, values[i]),
                                         TDM_SQLITE_READ, reader->path, reader->db, err);
    return query;
}

bool tdm_query_next(struct tdm_query *query)
{
    if (query->status != TDM_OK)
        return false;
    int code = sqlite3_step(query->statement);
    query->status = tdm_sqlite_status(code, TDM_SQLITE_READ, query->reader->path, query->reader->db,
                                      query->err);
    return code == SQLITE_ROW;
}

enum tdm_status tdm_query_end(struct tdm_query *query)
{
    sqlite3_finalize(query->statement);
    query->statement = NULL;
    return query->status;
}

int64_t tdm_query_integer(const struct tdm_query *query, int column)
{
    return sqlite3_column_int64(query->statement, column);
}

uint64_t tdm_query_count(const struct tdm_query *query, int column)
{
    int64_t value = tdm_query_integer(query, column);
    return value < 0 ? 0 : (uint64_t)value;
}

uint32_t tdm_query_number(const struct tdm_query *query, int column)
{
    if (sqlite3_column_type(query->statement, column) == SQLITE_NULL)
        return TDM_NONE;
    return (uint32_t)tdm_query_count(query, column);
}

int64_t tdm_query_time(struct tdm_query *query, int column)
{
    const int64_t most_ns = INT64_C(1) << 53; /* 104 days, which a double still tells exactly */
    int64_t time_ns = tdm_query_integer(query, column);
    if ((time_ns < -most_ns || time_ns > most_ns) && query->status == TDM_OK) {
        query->status =
            tdm_fail(query->err, TDM_INPUT, "%s: %s %" PRId64 " is not a time here",
                     query->reader->path, sqlite3_column_name(query->statement, column), time_ns);
        tdm_hint(query->err, "the file was changed or damaged: use a whole copy of it");
    }
    return time_ns;
}

double tdm_query_real(const struct tdm_query *query, int column)
{
    if (sqlite3_column_type(query->statement, column) == SQLITE_NULL)
        return NAN;
    return sqlite3_column_double(query->statement, column);
}

const char *tdm_query_text(const struct tdm_query *query, int column)
{
    const unsigned char *text = sqlite3_column_text(query->statement, column);
    return text == NULL ? "" : (const char *)text;
}

/* Reports a name that this program does not know. */
static void not_known(struct tdm_query *query, int column)
{
    if (query->status != TDM_OK)
        return;
    query->status =
        tdm_fail(query->err, TDM_INPUT, "%s: %s \"%.64s\" is not known here", query->reader->path,
                 sqlite3_column_name(query->statement, column), tdm_query_text(query, column));
    tdm_hint(query->err, "read it with the tidemark that wrote it: %s",
             query->reader->run.versions);
}

/* Reads a name as one of `names` values of an enum. */
static int name_at(struct tdm_query *query, int column, const char *(*name)(int), int names)
{
    const char *text = tdm_query_text(query, column);
    for (int i = 0; i < names; i++)
        if (strcmp(text, name(i)) == 0)
            return i;
    not_known(query, column);
    return 0;
}

static const char *category_name(int value)
{
    return tdm_category_name((enum tdm_category)value);
}

static const char *phase_name(int value)
{
    return tdm_phase_name((enum tdm_phase)value);
}

static const char *kind_name(int value)
{
    return tdm_op_kind_name((enum tdm_op_kind)value);
}

enum tdm_place tdm_query_place(struct tdm_query *query, int column)
{
    enum tdm_place place = TDM_DEVICE;
    if (!tdm_place_parse(&query->reader->topology, tdm_query_text(query, column), &place))
        not_known(query, column);
    return place;
}

enum tdm_category tdm_query_category(struct tdm_query *query, int column)
{
    return (enum tdm_category)name_at(query, column, category_name, TDM_CATEGORIES);
}

enum tdm_lane tdm_query_lane(struct tdm_query *query, int column)
{
    enum tdm_lane lane = TDM_LANE_COMPUTE;
    if (!tdm_lane_parse(&query->reader->topology, tdm_query_text(query, column), &lane))
        not_known(query, column);
    return lane;
}

enum tdm_phase tdm_query_phase(struct tdm_query *query, int column)
{
    return (enum tdm_phase)name_at(query, column, phase_name, TDM_PHASES);
}

enum tdm_op_kind tdm_query_kind(struct tdm_query *query, int column)
{
    return (enum tdm_op_kind)name_at(query, column, kind_name, TDM_OP_KINDS);
}

static const char *content_name(int content)
{
    return tdm_content_name((enum tdm_content)content);
}

enum tdm_content tdm_query_content(struct tdm_query *query, int column)
{
    if (sqlite3_column_type(query->statement, column) == SQLITE_NULL)
        return TDM_EMPTY;
    return (enum tdm_content)name_at(query, column, content_name, TDM_CONTENTS);
}

enum tdm_status tdm_query_rows(struct tdm_trace_reader *reader, const char *sql, int64_t program,
                               int64_t step, size_t size,
                               void (*take)(struct tdm_query *query, void *row), void **rows,
                               size_t *count, struct tdm_error *err)
{
    char *array = NULL;
    size_t used = 0;
    size_t capacity = 0;
    struct tdm_query query = tdm_query_begin(reader, sql, program, step, err);
    while (tdm_query_next(&query)) {
        if (used == capacity) {
            size_t larger = capacity == 0 ? 64 : 2 * capacity;
            char *moved = reallocarray(array, larger, size);
            if (moved == NULL) {
                query.status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for %zu rows",
                                        reader->path, larger);
                break;
            }
            array = moved;
            capacity = larger;
        }
        void *row = array + used++ * size;
        memset(row, 0, size);
        take(&query, row);
    }
    enum tdm_status status = tdm_query_end(&query);
    if (status != TDM_OK) {
        free(array);
        return status;
    }
    *rows = array;
    *count = used;
    return TDM_OK;
}
