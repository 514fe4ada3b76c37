/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target of traces: that of a run, with changed values, or any file; read as report, plot and
 * export do. */
#include "tests/fuzz/fuzz.h"

#include "commands/report_parts.h"
#include "exports/export.h"
#include "exports/page.h"
#include "traces/reader.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <unistd.h>

struct edited_column {
    char column[48], table[48], key[160]; /* key: columns that tell a row */
};

static struct edited_column columns[256];
static size_t column_count;
static void *trace_bytes;
static sqlite3_int64 trace_size;

static sqlite3 *open_database(const char *path)
{
    sqlite3 *db;
    TDM_FUZZ_CHECK(sqlite3_open(path, &db) == SQLITE_OK);
    TDM_FUZZ_CHECK(sqlite3_exec(db,
                                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
                                "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF",
                                NULL, NULL, NULL) == SQLITE_OK);
    return db;
}

/* Reads the trace of the run, and lists its columns. */
static void read_trace(void)
{
    char path[TDM_FUZZ_PATH];
    sqlite3_stmt *names;
    sqlite3 *db = open_database(tdm_fuzz_path("run.db", path));
    trace_bytes = sqlite3_serialize(db, "main", &trace_size, 0);
    TDM_FUZZ_CHECK(trace_bytes != NULL);
    TDM_FUZZ_CHECK(
        sqlite3_prepare_v2(db,
                           "SELECT c.name, t.name, ifnull((SELECT group_concat(k.name) FROM"
                           " pragma_table_info(t.name) AS k WHERE k.pk > 0), 'rowid')"
                           " FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c"
                           " WHERE t.type = 'table' ORDER BY t.name, c.cid",
                           -1, &names, NULL) == SQLITE_OK);
    while (sqlite3_step(names) == SQLITE_ROW) {
        struct edited_column *c = &columns[column_count++];
        TDM_FUZZ_CHECK(column_count <= sizeof(columns) / sizeof(columns[0]));
        snprintf(c->column, sizeof(c->column), "%s", (const char *)sqlite3_column_text(names, 0));
        snprintf(c->table, sizeof(c->table), "%s", (const char *)sqlite3_column_text(names, 1));
        snprintf(c->key, sizeof(c->key), "%s", (const char *)sqlite3_column_text(names, 2));
    }
    sqlite3_finalize(names);
    sqlite3_close(db);
}

/* What an edit writes. */
static void bind_value(sqlite3_stmt *statement, const uint8_t edit[8])
{
    static const sqlite3_int64 extremes[] = {INT64_MIN, INT64_MAX, -1,      UINT32_MAX,
                                             INT32_MAX, INT32_MIN, 1 << 16, INT64_C(1) << 53};
    static const char *const words[] = {"",         "device",   "host", "compute", "copy",
                                        "nonsense", "\x1b[31m", "{}",   "\xff",    "h2d"};
    int number = edit[5] | edit[6] << 8 | edit[7] << 16;
    switch (edit[4] % 6) {
    case 0:
        sqlite3_bind_int(statement, 1, number);
        break;
    case 1:
        sqlite3_bind_int(statement, 1, -number);
        break;
    case 2:
        sqlite3_bind_int64(statement, 1,
                           extremes[(size_t)number % (sizeof(extremes) / sizeof(extremes[0]))]);
        break;
    case 3:
        sqlite3_bind_double(statement, 1, number == 0 ? 1e308 : 1.0 / number);
        break;
    case 4:
        sqlite3_bind_text(statement, 1, words[(size_t)number % (sizeof(words) / sizeof(words[0]))],
                          -1, SQLITE_STATIC);
        break;
    default:
        sqlite3_bind_null(statement, 1);
    }
}

/* An edit: column, row (2 bytes), kind, kind of value, value (3 bytes). It changes a value, takes
 * the one of another row, or removes rows. What the table refuses is left out. */
static void edit_trace(sqlite3 *db, const uint8_t edit[8])
{
    const struct edited_column *c = &columns[edit[0] % column_count];
    unsigned row = edit[1] | (unsigned)edit[2] << 8;
    char sql[768];
    sqlite3_stmt *statement;
    switch (edit[3] % 5) {
    case 3:
        snprintf(sql, sizeof(sql),
                 "UPDATE %s SET %s = (SELECT %s FROM %s LIMIT 1 OFFSET ?1) WHERE (%s) IN"
                 " (SELECT %s FROM %s LIMIT 1 OFFSET %u)",
                 c->table, c->column, c->column, c->table, c->key, c->key, c->table, row);
        break;
    case 4:
        snprintf(sql, sizeof(sql), "DELETE FROM %s WHERE (%s) IN (SELECT %s FROM %s LIMIT %s%u)",
                 c->table, c->key, c->key, c->table, edit[4] & 1 ? "-1 OFFSET " : "1 OFFSET ", row);
        break;
    default:
        snprintf(sql, sizeof(sql),
                 "UPDATE %s SET %s = ?1 WHERE (%s) IN (SELECT %s FROM %s LIMIT %s%u)", c->table,
                 c->column, c->key, c->key, c->table, edit[3] % 5 == 2 ? "-1 OFFSET " : "1 OFFSET ",
                 row);
    }
    TDM_FUZZ_CHECK(sqlite3_prepare_v2(db, sql, -1, &statement, NULL) == SQLITE_OK);
    if (edit[3] % 5 == 3)
        sqlite3_bind_int(statement, 1, edit[5] | edit[6] << 8);
    else if (edit[3] % 5 != 4)
        bind_value(statement, edit);
    (void)sqlite3_step(statement);
    sqlite3_finalize(statement);
}

/* Everything that `report` reads and prints. */
static bool report(const char *path)
{
    struct tdm_trace_reader *reader;
    struct tdm_error err = {0};
    if (!tdm_fuzz_taken(tdm_trace_reader_open(path, &reader, &err), &err))
        return false;
    struct tdm_report all = {.path = path, .step = TDM_TRACE_EVERY_STEP};
    bool taken = tdm_fuzz_taken(tdm_report_read(reader, &all, &err), &err);
    if (taken) {
        tdm_report_print_text(&all);
        TDM_FUZZ_CHECK(tdm_report_print_json(&all, &err) == TDM_OK);
    }
    tdm_report_free(&all);
    tdm_trace_reader_close(reader);
    return taken;
}

static bool report_to(FILE *nowhere, const char *path)
{
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    dup2(fileno(nowhere), STDOUT_FILENO);
    bool taken = report(path);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    return taken;
}

/* One of the formats, or the page, by `choice`: each reads all. */
static void export_one(const char *path, unsigned choice, FILE *out)
{
    const struct tdm_export_source source = {
        .path = path, .step = TDM_PLOT_LAST_STEP, .rank = TDM_PLOT_ALL_RANKS};
    const struct tdm_export_format *format = tdm_export_formats[choice % 4]; /* three, and NULL */
    struct tdm_error err = {0};
    struct tdm_step *step;
    struct tdm_export_gaps gaps;
    if (format != NULL) {
        (void)tdm_fuzz_taken(tdm_export_write(format, &source, out, &gaps, &err), &err);
    } else if (tdm_fuzz_taken(tdm_step_read(path, TDM_PLOT_LAST_STEP, 0, &step, &err), &err)) {
        TDM_FUZZ_CHECK(tdm_page_write(step, out, &err) == TDM_OK);
        tdm_step_free(step);
    }
}

/* ---- memory of SQLite ---- */

/* A sanitizer knows nothing of SQLite's code, and its allocator takes half of the time of an
 * execution. So a search gives SQLite blocks of powers of two, which are used again; replays do
 * not. */
enum { SMALLEST_POWER = 5, POWERS = 12 };

struct block {
    struct block *next; /* of the free ones */
    unsigned power;
};

static struct block *unused[POWERS];

static void *take_block(int bytes)
{
    unsigned power = 0;
    while (power < POWERS && (size_t)bytes > (size_t)1 << (SMALLEST_POWER + power))
        power++;
    struct block *block = power < POWERS ? unused[power] : NULL;
    if (block != NULL) {
        unused[power] = block->next;
        return block + 1;
    }
    block = malloc(sizeof(*block) +
                   (power < POWERS ? (size_t)1 << (SMALLEST_POWER + power) : (size_t)bytes));
    if (block == NULL)
        return NULL;
    *block = (struct block){NULL, power < POWERS ? power : (unsigned)bytes};
    return block + 1;
}

static void give_block(void *memory)
{
    struct block *block = memory == NULL ? NULL : (struct block *)memory - 1;
    if (block == NULL)
        return;
    if (block->power >= POWERS) {
        free(block);
        return;
    }
    block->next = unused[block->power];
    unused[block->power] = block;
}

static int block_bytes(void *memory)
{
    const struct block *block = memory == NULL ? NULL : (struct block *)memory - 1;
    if (block == NULL)
        return 0;
    return block->power < POWERS ? 1 << (SMALLEST_POWER + block->power) : (int)block->power;
}

static void *resize_block(void *memory, int bytes)
{
    if (bytes <= block_bytes(memory))
        return memory;
    void *larger = take_block(bytes);
    if (larger != NULL && memory != NULL) {
        memcpy(larger, memory, (size_t)block_bytes(memory));
        give_block(memory);
    }
    return larger;
}

static int round_bytes(int bytes)
{
    return (bytes + 7) & ~7;
}

static int begin_blocks(void *unneeded)
{
    (void)unneeded;
    return SQLITE_OK;
}

static void end_blocks(void *unneeded)
{
    (void)unneeded;
}

bool tdm_fuzz_trace(const uint8_t *data, size_t bytes)
{
    static FILE *nowhere;
    char path[TDM_FUZZ_PATH];
    if (nowhere == NULL && tdm_fuzz_searches) {
        static const sqlite3_mem_methods blocks = {take_block,  give_block,  resize_block,
                                                   block_bytes, round_bytes, begin_blocks,
                                                   end_blocks,  NULL};
        TDM_FUZZ_CHECK(sqlite3_config(SQLITE_CONFIG_MALLOC, &blocks) == SQLITE_OK);
    }
    tdm_fuzz_train();
    if (nowhere == NULL) {
        read_trace();
        nowhere = fopen("/dev/null", "w");
        TDM_FUZZ_CHECK(nowhere != NULL);
    }
    tdm_fuzz_path("edited.db", path);
    if (bytes >= 6 && memcmp(data, "SQLite", 6) == 0) {
        tdm_fuzz_write("edited.db", data, bytes);
    } else {
        tdm_fuzz_write("edited.db", trace_bytes, (size_t)trace_size);
        sqlite3 *db = open_database(path);
        (void)sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
        for (size_t at = 0; at + 8 <= bytes && at < 16 * 8; at += 8)
            edit_trace(db, data + at);
        (void)sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
        sqlite3_close(db);
    }
    unsigned sum = 0; /* chooses what reads the trace */
    for (size_t i = 0; i < bytes; i++)
        sum += data[i];
    bool taken = true;
    if (!tdm_fuzz_searches || sum % 5 == 4)
        taken = report_to(nowhere, path);
    if (!tdm_fuzz_searches || sum % 5 < 4)
        export_one(path, sum % 5, nowhere);
    return taken;
}
