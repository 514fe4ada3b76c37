/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by run.c, which loads schedules and allocates memory, run_join.c, which joins processes,
 * and train.c, which trains; private to these. */
#ifndef TDM_EXECUTOR_RUN_PARTS_H
#define TDM_EXECUTOR_RUN_PARTS_H

#include "executor/forecast.h"
#include "executor/record.h"
#include "executor/run.h"
#include "executor/run_weights.h"
#include "executor/team.h"

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
    struct tdm_tokens *tokens;
    struct tdm_tokens *texts[TDM_RUN_MOST_TEXTS]; /* to evaluate on; NULL: none */
    struct tdm_run_weights weights;
    uint32_t ranks;            /* of all programs */
    struct tdm_arenas *arenas; /* [ranks]; without a backend: of another process */
    struct tdm_team_options team;
    bool hangs; /* a rank is in an op that does not end, and uses the memory of the run */
    struct tdm_recorder *recorder; /* NULL: no trace */
};

/* The arenas of this process' first rank, which is observed and recorded. */
static inline const struct tdm_arenas *tdm_run_here(const struct tdm_run *run)
{
    return tdm_arenas_here(run->arenas);
}

/* Before memory is taken: divides the ranks among processes, chooses the transport, and compares
 * what must be the same in all processes: run_join.c. */
enum tdm_status tdm_run_join(struct tdm_run *run, struct tdm_error *err);

/* Trains by schedule `index`, in the arenas of the run, up to its last step. Adds to *result, which
 * holds what loading set. */
enum tdm_status tdm_train(struct tdm_run *run, uint32_t index, struct tdm_run_result *result,
                          struct tdm_error *err);

#endif
