/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that the schema of a trace is the one that this version writes. A file may claim to be a
 * trace but have views in place of tables, or other views. Reading it would run their SQL.
 */
#include "traces/query.h"
#include "traces/sqlite.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Does the current row of `theirs` (type, name, SQL) have the statement that is next after *at in
 * the text of the schema? Moves *at behind it. */
static bool is_next(sqlite3_stmt *theirs, const char **at)
{
    char head[96];
    const char *type = (const char *)sqlite3_column_text(theirs, 0);
    const char *name = (const char *)sqlite3_column_text(theirs, 1);
    const char *sql = (const char *)sqlite3_column_text(theirs, 2);
    const char *statement = strstr(*at, "\nCREATE ");
    if (type == NULL || name == NULL || sql == NULL || statement == NULL)
        return false;
    const int length = snprintf(head, sizeof(head), "\nCREATE %s %s ",
                                strcmp(type, "table") == 0 ? "TABLE" : "VIEW", name);
    const size_t bytes = strlen(sql);
    if (length >= (int)sizeof(head) || strncmp(statement, head, (size_t)length) != 0 ||
        strncmp(statement + 1, sql, bytes) != 0 || statement[1 + bytes] != ';')
        return false;
    *at = statement + 1 + bytes;
    return true;
}

/* Has the trace the statements of the schema, word by word and no others, as it has if nobody
 * changed it? Then no database has to be made to compare it with, which takes longer than all else
 * that opening a trace does. */
static bool is_as_written(const struct tdm_trace_reader *reader)
{
    const char *at = tdm_trace_schema;
    sqlite3_stmt *theirs = NULL;
    bool same = sqlite3_prepare_v2(reader->db,
                                   "SELECT type, name, sql FROM sqlite_master"
                                   " WHERE sql IS NOT NULL ORDER BY rowid",
                                   -1, &theirs, NULL) == SQLITE_OK;
    int code = SQLITE_ERROR;
    while (same && (code = sqlite3_step(theirs)) == SQLITE_ROW)
        same = is_next(theirs, &at);
    sqlite3_finalize(theirs);
    return same && code == SQLITE_DONE && strstr(at, "\nCREATE ") == NULL;
}

/* The next character that matters at *at, which moves behind it: comments and white space count as
 * one space, none at the end. Within quotes, of kind *quote, all do. */
static char next_character(const char **at, char *quote)
{
    const char *from = *at;
    while (*quote == '\0' && (isspace((unsigned char)**at) || strncmp(*at, "--", 2) == 0))
        *at += **at == '-' ? strcspn(*at, "\n") : 1;
    if (**at == '\0')
        return '\0';
    if (*at != from)
        return ' ';
    const char next = *(*at)++;
    if (*quote == next)
        *quote = '\0';
    else if (*quote == '\0' && strchr("'\"`", next) != NULL)
        *quote = next;
    return next;
}

/* Are both statements the same but for comments? */
static bool is_same_sql(const char *a, const char *b)
{
    char quote_a = '\0', quote_b = '\0', next;
    do {
        next = next_character(&a, &quote_a);
        if (next != next_character(&b, &quote_b))
            return false;
    } while (next != '\0');
    return true;
}

/* Compares one object with the current row of `ours`: type, name and SQL. */
static enum tdm_status check_object(struct tdm_trace_reader *reader, sqlite3_stmt *ours,
                                    sqlite3_stmt *theirs, struct tdm_error *err)
{
    const char *type = (const char *)sqlite3_column_text(ours, 0);
    const char *name = (const char *)sqlite3_column_text(ours, 1);
    const char *sql = (const char *)sqlite3_column_text(ours, 2);
    sqlite3_reset(theirs);
    int code = sqlite3_bind_text(theirs, 1, name, -1, SQLITE_STATIC);
    if (code == SQLITE_OK)
        code = sqlite3_step(theirs);
    enum tdm_status status =
        tdm_sqlite_status(code, TDM_SQLITE_READ, reader->path, reader->db, err);
    if (status != TDM_OK)
        return status;
    const char *found_type =
        code == SQLITE_ROW ? (const char *)sqlite3_column_text(theirs, 0) : NULL;
    const char *found_sql =
        code == SQLITE_ROW ? (const char *)sqlite3_column_text(theirs, 1) : NULL;
    if (found_type != NULL && found_sql != NULL && strcmp(found_type, type) == 0 &&
        is_same_sql(found_sql, sql))
        return TDM_OK;
    if (found_type == NULL)
        tdm_fail(err, TDM_INPUT, "%s: is not a trace: it has no %s \"%s\"", reader->path, type,
                 name);
    else if (strcmp(found_type, type) != 0)
        tdm_fail(err, TDM_INPUT, "%s: is not a trace: its \"%s\" is a %.16s, not a %s",
                 reader->path, name, found_type, type);
    else
        tdm_fail(err, TDM_INPUT, "%s: is not a trace: its %s \"%s\" is another one", reader->path,
                 type, name);
    return tdm_hint(err, "name a file that `tidemark run --trace FILE` wrote");
}

enum tdm_status tdm_trace_check_schema(struct tdm_trace_reader *reader, struct tdm_error *err)
{
    sqlite3 *model = NULL;
    sqlite3_stmt *ours = NULL, *theirs = NULL;
    if (is_as_written(reader))
        return TDM_OK;
    int code = sqlite3_open(":memory:", &model);
    if (code == SQLITE_OK)
        code = sqlite3_exec(model, tdm_trace_schema, NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_prepare_v2(model,
                                  "SELECT type, name, sql FROM sqlite_master "
                                  "WHERE sql IS NOT NULL ORDER BY rowid",
                                  -1, &ours, NULL);
    enum tdm_status status = tdm_sqlite_status(code, TDM_SQLITE_READ, reader->path, model, err);
    if (status == TDM_OK)
        status = tdm_sqlite_status(
            sqlite3_prepare_v2(reader->db, "SELECT type, sql FROM sqlite_master WHERE name = ?1",
                               -1, &theirs, NULL),
            TDM_SQLITE_READ, reader->path, reader->db, err);
    while (status == TDM_OK && (code = sqlite3_step(ours)) == SQLITE_ROW)
        status = check_object(reader, ours, theirs, err);
    if (status == TDM_OK)
        status = tdm_sqlite_status(code, TDM_SQLITE_READ, reader->path, model, err);
    sqlite3_finalize(theirs);
    sqlite3_finalize(ours);
    sqlite3_close(model);
    return status;
}
