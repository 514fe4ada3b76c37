/* SPDX-License-Identifier: Apache-2.0 */
/* What run.c, which loads schedules and takes memory, and train.c, which trains by one of them,
 * share. For these two alone. */
#ifndef TDM_EXECUTOR_RUN_PARTS_H
#define TDM_EXECUTOR_RUN_PARTS_H

#include "executor/forecast.h"
#include "executor/record.h"
#include "executor/run.h"
#include "executor/run_weights.h"

/* A schedule as it was read and checked. */
struct tdm_loaded {
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_forecast *forecast;
};

struct tdm_run {
    const struct tdm_run_options *options;
    const struct tdm_run_listener *listener;
    struct tdm_loaded *loaded; /* the one that evaluates last, if there is one */
    const struct tdm_program **programs;
    uint32_t program_count;
    struct tdm_tokens *tokens, *validation; /* validation NULL: nobody evaluates */
    struct tdm_run_weights weights;
    struct tdm_arenas arenas;
    struct tdm_recorder *recorder; /* NULL: no trace */
};

/* Trains by the schedule of that number, in the arenas of the run, to the last step that is asked
 * for. What came of it is in *result, which begins with what loading it set. */
enum tdm_status tdm_train(struct tdm_run *run, uint32_t index, struct tdm_run_result *result,
                          struct tdm_error *err);

#endif
