/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for SQLite: turns its codes into a status with a hint, opens a file by its plain name,
 * and runs a statement. */
#include "traces/sqlite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long to wait for another program that has the database locked. */
enum { BUSY_MILLISECONDS = 2000 };

static const char *const act_names[] = {
    [TDM_SQLITE_OPEN] = "opened", [TDM_SQLITE_READ] = "read", [TDM_SQLITE_WRITE] = "written"};

enum tdm_status tdm_sqlite_status(int code, enum tdm_sqlite_act act, const char *path, sqlite3 *db,
                                  struct tdm_error *err)
{
    int system_reason = errno;
    int primary = code & 0xff;
    if (primary == SQLITE_OK || primary == SQLITE_ROW || primary == SQLITE_DONE)
        return TDM_OK;

    const char *text = db == NULL ? sqlite3_errstr(code) : sqlite3_errmsg(db);
    /* sqlite3_exec() forgets the system's reason; errno still has it. */
    if (db != NULL && sqlite3_system_errno(db) != 0)
        system_reason = sqlite3_system_errno(db);
    int reason = primary == SQLITE_IOERR ? system_reason : 0;
    if (primary == SQLITE_ERROR && act == TDM_SQLITE_READ) {
        tdm_fail(err, TDM_INPUT, "%s: is not a trace, or damaged: %s", path, text);
        return tdm_hint(err, "name a file that `tidemark run --trace FILE` wrote");
    }
    enum tdm_status status = TDM_IO;
    switch (primary) {
    case SQLITE_NOMEM:
        status = TDM_NO_MEMORY;
        break;
    case SQLITE_CONSTRAINT:
    case SQLITE_MISUSE:
        status = TDM_INTERNAL;
        break;
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        status = TDM_INPUT;
        break;
    default:
        break;
    }
    tdm_fail(err, status, "%s: the trace cannot be %s: %s%s%s", path, act_names[act], text,
             reason == 0 ? "" : ": ", reason == 0 ? "" : strerror(reason));

    switch (primary) {
    case SQLITE_FULL:
    case SQLITE_IOERR:
        tdm_hint(err, reason == EFBIG
                          ? "raise the limit on the size of files (ulimit -f)"
                          : "free space on that file system, or write the trace elsewhere");
        break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        tdm_hint(err, "another program has it open for writing: end that first");
        break;
    case SQLITE_CORRUPT:
        tdm_hint(err, "the file is cut short or damaged: use a whole copy of it");
        break;
    default:
        break;
    }
    return status;
}

/* The path in a form that SQLite takes neither for a URI nor for a special name. */
static char *make_name(const char *path)
{
    size_t bytes = strlen(path) + sizeof("./");
    char *name = malloc(bytes);
    if (name != NULL)
        snprintf(name, bytes, "%s%s", path[0] == '/' ? "" : "./", path);
    return name;
}

/* "file://", the path with the special characters of a URI as %xx, and "?query". */
static char *make_uri(const char *path, const char *query)
{
    size_t bytes = sizeof("file://?") + 3 * strlen(path) + strlen(query);
    char *uri = malloc(bytes);
    if (uri == NULL)
        return NULL;
    char *out = uri + sprintf(uri, "%s", path[0] == '/' ? "file://" : "file:./");
    for (const char *in = path; *in != '\0'; in++) {
        if (strchr("%?#", *in) != NULL)
            out += sprintf(out, "%%%02X", (unsigned char)*in);
        else
            *out++ = *in;
    }
    snprintf(out, bytes - (size_t)(out - uri), "?%s", query);
    return uri;
}

enum tdm_status tdm_sqlite_open(const char *path, int flags, const char *query, sqlite3 **db,
                                struct tdm_error *err)
{
    char *name = query == NULL ? make_name(path) : make_uri(path, query);
    if (name == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its name", path);

    sqlite3 *opened = NULL;
    enum tdm_status status = tdm_sqlite_status(
        sqlite3_open_v2(name, &opened, flags | (query == NULL ? 0 : SQLITE_OPEN_URI), NULL),
        TDM_SQLITE_OPEN, path, opened, err);
    free(name);
    if (status != TDM_OK) {
        sqlite3_close(opened); /* set even after a failure */
        *db = NULL;
        return status;
    }
    sqlite3_extended_result_codes(opened, 1);
    sqlite3_busy_timeout(opened, BUSY_MILLISECONDS);
    *db = opened;
    return TDM_OK;
}

static int bind(sqlite3_stmt *statement, int index, const struct tdm_value *value)
{
    switch (value->kind) {
    case TDM_VALUE_INTEGER:
        return sqlite3_bind_int64(statement, index, value->integer);
    case TDM_VALUE_REAL:
        return sqlite3_bind_double(statement, index, value->real);
    case TDM_VALUE_TEXT:
        return sqlite3_bind_text(statement, index, value->text, -1, SQLITE_STATIC);
    case TDM_VALUE_NULL:
        break;
    }
    return sqlite3_bind_null(statement, index);
}

enum tdm_status tdm_sqlite_run(sqlite3 *db, const char *path, sqlite3_stmt *statement,
                               size_t values, const struct tdm_value *value, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < values && status == TDM_OK; i++)
        status = tdm_sqlite_status(bind(statement, (int)i + 1, &value[i]), TDM_SQLITE_WRITE, path,
                                   db, err);
    if (status == TDM_OK)
        status = tdm_sqlite_status(sqlite3_step(statement), TDM_SQLITE_WRITE, path, db, err);
    sqlite3_reset(statement); /* repeats the code of a failed step, already reported */
    return status;
}
