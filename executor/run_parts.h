/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by run.c, which loads schedules and allocates memory, and train.c, which trains by one of
 * them; private to these two. */
#ifndef TDM_EXECUTOR_RUN_PARTS_H
#define TDM_EXECUTOR_RUN_PARTS_H

#include "executor/forecast.h"
#include "executor/record.h"
#include "executor/run.h"
#include "executor/run_weights.h"

/* A schedule that was read and checked. */
struct tdm_loaded {
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_forecast **forecasts; /* [ranks of the program] */
};

struct tdm_run {
    const struct tdm_run_options *options;
    const struct tdm_run_listener *listener;
    struct tdm_loaded *loaded; /* [program_count]; the evaluation program, if any, is last */
    const struct tdm_program **programs;
    uint32_t program_count;
    struct tdm_tokens *tokens, *validation; /* validation NULL: no evaluation */
    struct tdm_run_weights weights;
    uint32_t ranks;                /* of all programs */
    struct tdm_arenas *arenas;     /* [ranks] */
    struct tdm_recorder *recorder; /* NULL: no trace */
};

/* Trains by schedule `index`, in the arenas of the run, up to its last step. Adds to *result, which
 * holds what loading set. */
enum tdm_status tdm_train(struct tdm_run *run, uint32_t index, struct tdm_run_result *result,
                          struct tdm_error *err);

#endif
