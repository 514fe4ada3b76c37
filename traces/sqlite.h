/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the writer and the reader of traces: SQLite's codes as our status, and the schema. */
#ifndef TDM_TRACES_SQLITE_H
#define TDM_TRACES_SQLITE_H

#include "base/status.h"

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

/* Text of schema.sql; the build makes it. */
extern const char tdm_trace_schema[];

/* The action on a trace, for messages. */
enum tdm_sqlite_act { TDM_SQLITE_OPEN, TDM_SQLITE_READ, TDM_SQLITE_WRITE };

/* Converts SQLite's return code to our status: TDM_OK for SQLITE_OK, ROW and DONE. Otherwise the
 * message is "PATH: the trace cannot be written: SQLite's message" and the status is TDM_INPUT (not
 * a database, damaged, or a missing table), TDM_NO_MEMORY, TDM_INTERNAL (a row that violates the
 * schema) or TDM_IO. `db` may be NULL. */
enum tdm_status tdm_sqlite_status(int code, enum tdm_sqlite_act act, const char *path, sqlite3 *db,
                                  struct tdm_error *err);

/* Opens the file `path` literally; SQLite alone might read it as a URI or as ":memory:". `query`
 * (may be NULL) is appended to the URI after "?": "immutable=1". On failure *db is NULL. */
enum tdm_status tdm_sqlite_open(const char *path, int flags, const char *query, sqlite3 **db,
                                struct tdm_error *err);

/* One value to bind. Text must live until the statement has run. */
struct tdm_value {
    enum { TDM_VALUE_NULL, TDM_VALUE_INTEGER, TDM_VALUE_REAL, TDM_VALUE_TEXT } kind;
    int64_t integer;
    double real;
    const char *text;
};

static inline struct tdm_value tdm_null(void)
{
    return (struct tdm_value){.kind = TDM_VALUE_NULL};
}

static inline struct tdm_value tdm_integer(int64_t number)
{
    return (struct tdm_value){.kind = TDM_VALUE_INTEGER, .integer = number};
}

/* SQLite's integers are signed: a saturated size becomes the largest of them. */
static inline struct tdm_value tdm_count(uint64_t number)
{
    return tdm_integer(number > INT64_MAX ? INT64_MAX : (int64_t)number);
}

/* NaN becomes NULL. */
static inline struct tdm_value tdm_real(double number)
{
    return (struct tdm_value){.kind = TDM_VALUE_REAL, .real = number};
}

/* NULL becomes NULL. */
static inline struct tdm_value tdm_text(const char *string)
{
    if (string == NULL)
        return tdm_null();
    return (struct tdm_value){.kind = TDM_VALUE_TEXT, .text = string};
}

/* Binds the values, runs a statement that returns no rows, and resets it. */
enum tdm_status tdm_sqlite_run(sqlite3 *db, const char *path, sqlite3_stmt *statement,
                               size_t values, const struct tdm_value *value, struct tdm_error *err);

#endif
