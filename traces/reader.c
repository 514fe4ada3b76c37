/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of traces: opens a trace, with an error that says what is wrong with a file, and reads
 * the rows of run, programs and steps. reader_memory.c and reader_time.c hold the other queries. */
#include "traces/reader.h"

#include "base/text.h"
#include "traces/query.h"
#include "traces/sqlite.h"
#include "traces/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_filled(const char *path, const char *suffix)
{
    size_t bytes = strlen(path) + strlen(suffix) + 1;
    char *name = malloc(bytes);
    struct stat info;
    if (name == NULL)
        return true;
    snprintf(name, bytes, "%s%s", path, suffix);
    bool filled = stat(name, &info) == 0 && info.st_size > 0;
    free(name);
    return filled;
}

/* Is part of the content in files beside the database? */
static bool has_companion(const char *path)
{
    return is_filled(path, "-wal") || is_filled(path, "-journal");
}

/* Reads the integer that a PRAGMA returns. */
static enum tdm_status read_pragma(struct tdm_trace_reader *reader, const char *sql, int64_t *value,
                                   struct tdm_error *err)
{
    struct tdm_query query = tdm_query_begin(reader, sql, 0, 0, err);
    while (tdm_query_next(&query))
        *value = tdm_query_integer(&query, 0);
    return tdm_query_end(&query);
}

/* Opens the database and reads its first page, which shows whether it is one. */
static enum tdm_status open_database(struct tdm_trace_reader *reader, const char *query,
                                     int64_t *id, struct tdm_error *err)
{
    enum tdm_status status =
        tdm_sqlite_open(reader->path, SQLITE_OPEN_READONLY, query, &reader->db, err);
    if (status == TDM_OK)
        status = tdm_sqlite_status(sqlite3_exec(reader->db, "BEGIN", NULL, NULL, NULL),
                                   TDM_SQLITE_READ, reader->path, reader->db, err);
    return status == TDM_OK ? read_pragma(reader, "PRAGMA application_id", id, err) : status;
}

/* A run that was killed, or lost its power, while it closed the trace left a journal. Whoever opens
 * the file for writing undoes with it what was not completed. */
static void roll_back_journal(const char *path)
{
    sqlite3 *db = NULL;
    if (tdm_sqlite_open(path, SQLITE_OPEN_READWRITE, NULL, &db, NULL) == TDM_OK)
        (void)sqlite3_exec(db, "PRAGMA application_id", NULL, NULL, NULL);
    sqlite3_close(db);
}

/* Why opening failed, as SQLite's primary code. */
static int failure_code(const struct tdm_trace_reader *reader)
{
    return reader->db == NULL ? SQLITE_CANTOPEN : sqlite3_errcode(reader->db) & 0xff;
}

/* Finds a file that is cut short: SQLite reads the missing end of the last page as zeros. */
static enum tdm_status check_size(struct tdm_trace_reader *reader, struct tdm_error *err)
{
    int64_t pages = 0;
    int64_t page_bytes = 0;
    struct stat info;
    enum tdm_status status = read_pragma(reader, "PRAGMA page_count", &pages, err);
    if (status == TDM_OK)
        status = read_pragma(reader, "PRAGMA page_size", &page_bytes, err);
    if (status != TDM_OK || has_companion(reader->path) || stat(reader->path, &info) != 0 ||
        (int64_t)info.st_size >= pages * page_bytes)
        return status;
    tdm_fail(err, TDM_INPUT, "%s: the file is cut short: %" PRId64 " bytes of %" PRId64,
             reader->path, (int64_t)info.st_size, pages * page_bytes);
    tdm_hint(err, "use a whole copy of it");
    return TDM_INPUT;
}

static enum tdm_status check_identity(struct tdm_trace_reader *reader, struct tdm_error *err)
{
    int64_t id = 0;
    int64_t version = 0;
    enum tdm_status status = open_database(reader, NULL, &id, err);
    int code = status == TDM_OK ? SQLITE_OK : failure_code(reader);
    if (code == SQLITE_READONLY && is_filled(reader->path, "-journal")) {
        sqlite3_close(reader->db);
        reader->db = NULL;
        roll_back_journal(reader->path);
        status = open_database(reader, NULL, &id, err);
        code = status == TDM_OK ? SQLITE_OK : failure_code(reader);
    }
    if (code == SQLITE_CANTOPEN || code == SQLITE_READONLY) {
        /* SQLite writes files beside a database in WAL mode, and may not write here. */
        if (has_companion(reader->path)) {
            tdm_hint(err,
                     "copy it with its -wal or -journal file to a place that you may write to");
            return status;
        }
        sqlite3_close(reader->db);
        reader->db = NULL;
        status = open_database(reader, "immutable=1", &id, err);
        code = status == TDM_OK ? SQLITE_OK : failure_code(reader);
    }
    if (code == SQLITE_CORRUPT) {
        tdm_fail(err, TDM_INPUT, "%s: the file is cut short or damaged", reader->path);
        tdm_hint(err, "use a whole copy of it");
        return TDM_INPUT;
    }
    if (code == SQLITE_NOTADB) {
        tdm_fail(err, TDM_INPUT, "%s: is not a trace: no SQLite database", reader->path);
        tdm_hint(
            err,
            "name a file that `tidemark run --trace FILE` wrote; of a schedule, plot and diff tell more");
        return TDM_INPUT;
    }
    if (status != TDM_OK)
        return status;
    if (id != TDM_TRACE_APPLICATION_ID) {
        tdm_fail(err, TDM_INPUT, "%s: is not a trace: another program's database", reader->path);
        tdm_hint(err, "name a file that `tidemark run --trace FILE` wrote");
        return TDM_INPUT;
    }
    status = check_size(reader, err);
    if (status == TDM_OK)
        status = read_pragma(reader, "PRAGMA user_version", &version, err);
    if (status == TDM_OK && version != TDM_TRACE_VERSION) {
        status = tdm_fail(err, TDM_INPUT, "%s: is a trace of version %" PRId64 ", not %d",
                          reader->path, version, TDM_TRACE_VERSION);
        tdm_hint(err, "read it with the tidemark that wrote it, or run again");
    }
    return status;
}

static enum tdm_status read_run(struct tdm_trace_reader *reader, struct tdm_error *err)
{
    bool found = false;
    struct tdm_query query =
        tdm_query_begin(reader,
                        "SELECT command, backend, ran_on, versions, started_at, "
                        "resumed_from, ended_at, ending, id, pinned_bytes, "
                        "pageable_bytes FROM run "
                        "ORDER BY id DESC LIMIT 1",
                        0, 0, err);
    while (tdm_query_next(&query)) {
        found = true;
        for (int i = 0; i < TDM_RUN_STRINGS; i++) {
            if (sqlite3_column_type(query.statement, i) == SQLITE_NULL)
                continue;
            reader->strings[i] = strdup(tdm_query_text(&query, i));
            if (reader->strings[i] == NULL)
                query.status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory", reader->path);
            else
                tdm_text_clean(reader->strings[i]);
        }
        reader->run_id = tdm_query_integer(&query, TDM_RUN_STRINGS);
        reader->run.pinned_bytes = tdm_query_count(&query, TDM_RUN_STRINGS + 1);
        reader->run.pageable_bytes = tdm_query_count(&query, TDM_RUN_STRINGS + 2);
    }
    enum tdm_status status = tdm_query_end(&query);
    if (status != TDM_OK)
        return status;
    if (!found)
        return tdm_fail(err, TDM_INPUT, "%s: holds no run", reader->path);
    reader->run = (struct tdm_trace_run_info){
        .command = reader->strings[0],
        .backend = reader->strings[1],
        .ran_on = reader->strings[2],
        .versions = reader->strings[3],
        .started_at = reader->strings[4],
        .resumed_from = reader->strings[5],
        .ended_at = reader->strings[6],
        .ending = reader->strings[7],
        .pinned_bytes = reader->run.pinned_bytes,
        .pageable_bytes = reader->run.pageable_bytes,
    };
    return TDM_OK;
}

/* Reads the tables of places and lanes: the rows that every machine has, and those that the machine
 * of the last program adds. */
static enum tdm_status read_topology(struct tdm_trace_reader *reader, struct tdm_error *err)
{
    json_t *schedule = NULL;
    tdm_topology_begin(&reader->topology);
    struct tdm_query query =
        tdm_query_begin(reader, "SELECT schedule FROM program ORDER BY id DESC LIMIT 1", 0, 0, err);
    while (tdm_query_next(&query)) {
        const char *text = tdm_query_text(&query, 0);
        struct tdm_error unread; /* reported when the schedule is read */
        if (tdm_json_parse(reader->path, text, strlen(text), &schedule, &unread) != TDM_OK)
            schedule = NULL;
    }
    enum tdm_status status = tdm_query_end(&query);
    const json_t *machine = json_object_get(schedule, "machine");
    struct tdm_json_reader tables = {
        .file = reader->path, .prefix = "machine", .object = machine, .err = err};
    if (status == TDM_OK && json_is_object(machine))
        tdm_topology_read(&tables, &reader->topology);
    json_decref(schedule);
    return status == TDM_OK ? tdm_json_status(&tables) : status;
}

/* Gives the reason where SQLite would only say "unable to open database file". */
static enum tdm_status check_file(const char *path, struct tdm_error *err)
{
    struct stat info;
    int reason = stat(path, &info) != 0 || access(path, R_OK) != 0 ? errno : 0;
    if (reason != 0) {
        tdm_fail(err, TDM_IO, "%s: cannot be opened: %s", path, strerror(reason));
        if (reason == ENOENT)
            tdm_hint(err, "`tidemark run --trace FILE` writes a trace");
        return TDM_IO;
    }
    if (!S_ISREG(info.st_mode))
        return tdm_fail(err, TDM_INPUT, "%s: is not a trace: %s", path,
                        S_ISDIR(info.st_mode) ? "a directory; name a file in it"
                                              : "not a regular file");
    if (info.st_size == 0) {
        tdm_fail(err, TDM_INPUT, "%s: is not a trace: the file is empty", path);
        tdm_hint(err, "name a file that `tidemark run --trace FILE` wrote");
        return TDM_INPUT;
    }
    return TDM_OK;
}

enum tdm_status tdm_trace_reader_open(const char *path, struct tdm_trace_reader **reader,
                                      struct tdm_error *err)
{
    enum tdm_status status = check_file(path, err);
    if (status != TDM_OK)
        return status;
    struct tdm_trace_reader *made = calloc(1, sizeof(*made));
    if (made != NULL)
        made->path = strdup(path);
    if (made == NULL || made->path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", path);
    if (status == TDM_OK)
        status = check_identity(made, err);
    if (status == TDM_OK)
        status = tdm_trace_check_schema(made, err);
    if (status == TDM_OK)
        status = read_run(made, err);
    if (status == TDM_OK)
        status = read_topology(made, err);
    if (status != TDM_OK) {
        tdm_trace_reader_close(made);
        return status;
    }
    *reader = made;
    return TDM_OK;
}

void tdm_trace_reader_close(struct tdm_trace_reader *reader)
{
    if (reader == NULL)
        return;
    sqlite3_close(reader->db);
    for (int i = 0; i < TDM_RUN_STRINGS; i++)
        free(reader->strings[i]);
    free(reader->path);
    free(reader);
}

const struct tdm_trace_run_info *tdm_trace_reader_run(const struct tdm_trace_reader *reader)
{
    return &reader->run;
}

void tdm_trace_reader_see(struct tdm_trace_reader *reader, uint32_t rank)
{
    reader->rank = rank;
}

const struct tdm_topology *tdm_trace_reader_topology(const struct tdm_trace_reader *reader)
{
    return &reader->topology;
}

/* Programs and steps. */

static void take_program(struct tdm_query *query, void *row)
{
    struct tdm_trace_program_row *program = row;
    program->program = tdm_query_integer(query, 0);
    snprintf(program->name, sizeof(program->name), "%s", tdm_query_text(query, 1));
    tdm_text_clean(program->name);
    program->ops = tdm_query_count(query, 2);
    program->predicted_seconds = isnan(tdm_query_real(query, 3)) ? 0 : tdm_query_real(query, 3);
    program->steps = tdm_query_count(query, 4);
    program->timed_steps = tdm_query_count(query, 5);
    program->ranks = (uint32_t)tdm_query_count(query, 6);
}

static enum tdm_status read_program_places(struct tdm_trace_reader *reader,
                                           struct tdm_trace_program_row *row, struct tdm_error *err)
{
    struct tdm_query query =
        tdm_query_begin(reader,
                        "SELECT place, arena_bytes, live_peak_bytes, runtime_bytes "
                        "FROM program_place WHERE program = ?2",
                        row->program, 0, err);
    while (tdm_query_next(&query)) {
        enum tdm_place place = tdm_query_place(&query, 0);
        row->arena_bytes[place] = tdm_query_count(&query, 1);
        row->live_peak_bytes[place] = tdm_query_count(&query, 2);
        row->runtime_bytes[place] = tdm_query_count(&query, 3);
    }
    return tdm_query_end(&query);
}

#define STEP_IS_TIMED                                                                  \
    "EXISTS (SELECT 1 FROM timing AS t WHERE t.run = s.run AND t.program = s.program " \
    "AND t.step = s.step AND t.rank = ?4)"

enum tdm_status tdm_trace_read_programs(struct tdm_trace_reader *reader,
                                        struct tdm_trace_program_row **rows, size_t *count,
                                        struct tdm_error *err)
{
    void *found;
    size_t programs;
    enum tdm_status status = tdm_query_rows(
        reader,
        "SELECT p.id, p.name, (SELECT count(*) FROM op WHERE program = p.id AND rank = ?4), "
        "(SELECT max(predicted_end_ns) / 1e9 FROM op WHERE program = p.id), "
        "(SELECT count(*) FROM step WHERE run = ?1 AND program = p.id), "
        "(SELECT count(*) FROM step AS s WHERE run = ?1 AND program = p.id AND " STEP_IS_TIMED "), "
        "p.ranks FROM program AS p ORDER BY p.id",
        0, 0, sizeof(**rows), take_program, &found, &programs, err);
    if (status != TDM_OK)
        return status;
    struct tdm_trace_program_row *row = found;
    for (size_t i = 0; i < programs && status == TDM_OK; i++)
        status = read_program_places(reader, &row[i], err);
    if (status != TDM_OK) {
        free(row);
        return status;
    }
    *rows = row;
    *count = programs;
    return TDM_OK;
}

enum tdm_status tdm_trace_read_schedule(struct tdm_trace_reader *reader, int64_t program,
                                        char **json, struct tdm_error *err)
{
    char *text = NULL;
    bool found = false;
    struct tdm_query query =
        tdm_query_begin(reader, "SELECT schedule FROM program WHERE id = ?2", program, 0, err);
    while (tdm_query_next(&query)) {
        found = true;
        text = strdup(tdm_query_text(&query, 0));
        if (text == NULL)
            query.status =
                tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for a schedule", reader->path);
    }
    enum tdm_status status = tdm_query_end(&query);
    if (status == TDM_OK && !found)
        return tdm_fail(err, TDM_INPUT, "%s: holds no program %" PRId64, reader->path, program);
    if (status != TDM_OK) {
        free(text);
        return status;
    }
    *json = text;
    return TDM_OK;
}

static void take_step(struct tdm_query *query, void *row)
{
    struct tdm_trace_step_row *step = row;
    step->program = tdm_query_integer(query, 0);
    step->step = tdm_query_integer(query, 1);
    step->loss = tdm_query_real(query, 2);
    step->gradient_norm = tdm_query_real(query, 3);
    step->tokens = tdm_query_count(query, 4);
    step->seconds = tdm_query_real(query, 5);
    step->timed = tdm_query_integer(query, 6) != 0;
}

enum tdm_status tdm_trace_read_steps(struct tdm_trace_reader *reader,
                                     struct tdm_trace_step_row **rows, size_t *count,
                                     struct tdm_error *err)
{
    void *found;
    enum tdm_status status =
        tdm_query_rows(reader,
                       "SELECT program, step, loss, gradient_norm, tokens, seconds, " STEP_IS_TIMED
                       " FROM step AS s WHERE run = ?1 ORDER BY finished",
                       0, 0, sizeof(**rows), take_step, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

const char *tdm_trace_failed(const struct tdm_trace_step_row *rows, size_t count)
{
    const struct tdm_trace_step_row *last = count == 0 ? NULL : &rows[count - 1];
    bool losses = false, norms = false;
    for (size_t i = 0; i < count; i++) {
        losses |= rows[i].program == last->program && isfinite(rows[i].loss);
        norms |= rows[i].program == last->program && isfinite(rows[i].gradient_norm);
    }
    return losses && !isfinite(last->loss)           ? "loss"
           : norms && !isfinite(last->gradient_norm) ? "gradient norm"
                                                     : NULL;
}

static void take_unfinished(struct tdm_query *query, void *row)
{
    struct tdm_trace_unfinished_row *step = row;
    step->program = tdm_query_integer(query, 0);
    step->step = tdm_query_integer(query, 1);
    step->seconds = tdm_query_real(query, 2);
    step->timed = tdm_query_integer(query, 3) != 0;
    step->layers = (uint32_t)tdm_query_count(query, 4);
    step->chunks = (uint32_t)tdm_query_count(query, 5);
    step->layer = step->chunk = TDM_NONE;
    if (sqlite3_column_type(query->statement, 6) == SQLITE_NULL)
        return;
    step->ops = tdm_query_count(query, 6) + 1;
    step->phase = tdm_query_phase(query, 7);
    step->layer = tdm_query_number(query, 8);
    step->chunk = tdm_query_number(query, 9);
    step->predicted_seconds = tdm_query_real(query, 10);
}

enum tdm_status tdm_trace_read_unfinished(struct tdm_trace_reader *reader,
                                          struct tdm_trace_unfinished_row **rows, size_t *count,
                                          struct tdm_error *err)
{
    void *found;
    enum tdm_status status = tdm_query_rows(
        reader,
        "SELECT s.program, s.step, s.seconds, " STEP_IS_TIMED ", "
        "(SELECT max(layer) + 1 FROM op WHERE program = s.program AND rank = 0 "
        "AND kind = 'attention'), "
        "(SELECT max(chunk) + 1 FROM op WHERE program = s.program), "
        "o.number, o.phase, o.layer, o.chunk, o.predicted_end_ns / 1e9 FROM unfinished AS s "
        "LEFT JOIN op AS o ON o.program = s.program AND o.rank = 0 AND o.number = s.op_number "
        "WHERE s.run = ?1 ORDER BY s.program, s.step",
        0, 0, sizeof(**rows), take_unfinished, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}

static void take_evaluation(struct tdm_query *query, void *row)
{
    struct tdm_trace_evaluation_row *evaluation = row;
    evaluation->program = tdm_query_integer(query, 0);
    evaluation->step = tdm_query_integer(query, 1);
    evaluation->evaluated_by = tdm_query_integer(query, 2);
    evaluation->loss = tdm_query_real(query, 3);
    evaluation->tokens = tdm_query_count(query, 4);
    evaluation->seconds = tdm_query_real(query, 5);
    const char *text = tdm_query_text(query, 6);
    snprintf(evaluation->text, sizeof(evaluation->text), "%s", text == NULL ? "" : text);
}

enum tdm_status tdm_trace_read_evaluations(struct tdm_trace_reader *reader,
                                           struct tdm_trace_evaluation_row **rows, size_t *count,
                                           struct tdm_error *err)
{
    void *found;
    enum tdm_status status =
        tdm_query_rows(reader,
                       "SELECT program, step, evaluated_by, loss, tokens, seconds, text "
                       "FROM evaluation WHERE run = ?1 ORDER BY program, step, text",
                       0, 0, sizeof(**rows), take_evaluation, &found, count, err);
    if (status == TDM_OK)
        *rows = found;
    return status;
}
