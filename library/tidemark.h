/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtidemark: the models, machines, plans and predictions of tidemark, and the traces of its runs.
 *
 *     struct tidemark_error error;
 *     tidemark_answer *answer;
 *     const char *options[] = {"--context", "64K", "--memory", "24G", NULL};
 *     if (tidemark_plan("qwen2.5-7b", options, &answer, &error) != TIDEMARK_OK)
 *         puts(error.message);
 *
 * Compile with `pkg-config --cflags --libs tidemark`. What an answer holds is what the command of
 * the same name prints with --json; `man tidemark` describes options and keys.
 *
 * Functions that can fail return a status and fill `error`, which may be NULL. They set their
 * outputs only on success, unless said otherwise. Nothing is printed and nothing exits. Threads may
 * call at the same time: those that plan, predict or read JSON wait for each other. One handle is
 * for one thread at a time.
 *
 * The library's name, libtidemark.so.0, changes when a program that was compiled against this
 * header would no longer run. Keys, tables, columns and statuses may be added without that.
 *
 * libtidemark is linked with GLPK, which is under the GPL, version 3 or later: so is a program that
 * is distributed together with it.
 */
#ifndef TIDEMARK_H
#define TIDEMARK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Only these functions are visible in the library. */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

enum tidemark_status {
    TIDEMARK_OK,
    TIDEMARK_USAGE,       /* a wrong option or value of one */
    TIDEMARK_INPUT,       /* a wrong file, or no such model, machine, table, step, ... */
    TIDEMARK_INFEASIBLE,  /* it does not fit */
    TIDEMARK_NO_MEMORY,   /* this process could not get memory */
    TIDEMARK_NO_DEVICE,   /* no such GPU or driver */
    TIDEMARK_IO,          /* reading or writing failed */
    TIDEMARK_INTERRUPTED, /* not returned by these functions */
    TIDEMARK_INTERNAL     /* a bug in tidemark */
};

/* Why a function failed: `message` is one line, `hint` a usual remedy or "". */
struct tidemark_error {
    enum tidemark_status status;
    char message[768];
    char hint[1536];
};

/* "0.1.0" */
const char *tidemark_version(void);

/* ---- answers ---- */

/* A JSON object. */
typedef struct tidemark_answer tidemark_answer;

/* The shipped models in a list {"models": [...]}, if `model` is NULL; else one with its tensors:
 * a shipped name, the path of a config.json, or a directory with one. The caller frees *answer. */
enum tidemark_status tidemark_models(const char *model, tidemark_answer **answer,
                                     struct tidemark_error *error);

/* The same of machines: {"machines": [...]}, or one with its rates: a shipped name, the path of a
 * description, or "local". */
enum tidemark_status tidemark_machines(const char *machine, tidemark_answer **answer,
                                       struct tidemark_error *error);

/* Plans a step of `model`. `options` are words of `tidemark plan --help`, ended by NULL:
 * {"--context", "64K", NULL}. With "-o", FILE the schedule is written there, for `tidemark run`;
 * else it is only the answer's "schedule". --sweep is not for the library. On TIDEMARK_INFEASIBLE
 * *answer is set too: "fits" is false, and what is short and what would help is in it. */
enum tidemark_status tidemark_plan(const char *model, const char *const *options,
                                   tidemark_answer **answer, struct tidemark_error *error);

/* Predicts what another system needs for a step of `model`, with words of `tidemark predict
 * --help`:
 * {"--context", "16K", "--method", "fsdp", "--gpus", "2", NULL}. "-o", "-" adds a timeline. On
 * TIDEMARK_INFEASIBLE *answer is set too, with the peaks that it would have. */
enum tidemark_status tidemark_predict(const char *model, const char *const *options,
                                      tidemark_answer **answer, struct tidemark_error *error);

/* The text of the answer, indented. It belongs to the answer. */
const char *tidemark_answer_json(const tidemark_answer *answer);

/* A value by its path: "peak_bytes", "steps.0.categories.weights". TIDEMARK_INPUT if there is none
 * or if it is of another type. A number is taken as a real, true and false as the integers 1 and 0.
 * The text belongs to the answer. */
enum tidemark_status tidemark_answer_integer(const tidemark_answer *answer, const char *path,
                                             int64_t *value);
enum tidemark_status tidemark_answer_real(const tidemark_answer *answer, const char *path,
                                          double *value);
enum tidemark_status tidemark_answer_text(const tidemark_answer *answer, const char *path,
                                          const char **value);

void tidemark_answer_free(tidemark_answer *answer);

/* ---- traces ---- */

/* A trace that `tidemark run --trace` wrote, opened for reading. It shows what it had when it was
 * opened; the run may go on. */
typedef struct tidemark_trace tidemark_trace;

enum tidemark_status tidemark_trace_open(const char *path, tidemark_trace **trace,
                                         struct tidemark_error *error);
void tidemark_trace_close(tidemark_trace *trace);

/* Columns of equal length. */
typedef struct tidemark_table tidemark_table;

/* Measured columns then have the mean or the most of all steps, as the docs say. */
#define TIDEMARK_EVERY_STEP (-1)

/* Reads a table of the trace; tidemark_trace_table_name() lists them. `program` is a value of the
 * column "program" of the table "programs", or 0 for the first program. `step` is a step, or
 * TIDEMARK_EVERY_STEP. `rank` is 0 unless several ranks ran. TIDEMARK_INPUT for a program, step or
 * rank that the trace does not have. A table that does not depend on one of them ignores it.
 * Without rows it has all its columns, each empty. The caller frees *table, also after the trace
 * was closed. */
enum tidemark_status tidemark_trace_read(tidemark_trace *trace, const char *name, int64_t program,
                                         int64_t step, uint32_t rank, tidemark_table **table,
                                         struct tidemark_error *error);

/* The name of table number `index`, NULL past the last. */
const char *tidemark_trace_table_name(uint32_t index);

enum tidemark_type { TIDEMARK_INTEGERS, TIDEMARK_REALS, TIDEMARK_TEXTS };

uint64_t tidemark_table_rows(const tidemark_table *table);
uint32_t tidemark_table_columns(const tidemark_table *table);

/* NULL past the last column. */
const char *tidemark_table_name(const tidemark_table *table, uint32_t column);
enum tidemark_type tidemark_table_type(const tidemark_table *table, uint32_t column);

/* The values of a column, an array of as many as there are rows, which belongs to the table. NULL
 * if the column is of another type. What is not known is -1 in integers, a NaN in reals, and NULL
 * in texts. */
const int64_t *tidemark_table_integers(const tidemark_table *table, uint32_t column);
const double *tidemark_table_reals(const tidemark_table *table, uint32_t column);
const char *const *tidemark_table_texts(const tidemark_table *table, uint32_t column);

void tidemark_table_free(tidemark_table *table);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
