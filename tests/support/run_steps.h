/* SPDX-License-Identifier: Apache-2.0 */
/* Runs whole steps of a schedule on a backend, for tests that compare the results. */
#ifndef TDM_TESTS_RUN_STEPS_H
#define TDM_TESTS_RUN_STEPS_H

#include "tests/support/step_data.h"

#define TDM_STEPS_MOST 3u /* with an optimizer; without one: 1 step */

/* Results of a step: gradients if there is no optimizer, otherwise weights (masters if there are
 * any) and moments. */
enum tdm_left { TDM_LEFT_VALUES, TDM_LEFT_MOMENT1, TDM_LEFT_MOMENT2, TDM_LEFTS };

struct tdm_steps {
    uint32_t steps; /* steps that were run */
    double losses[TDM_STEPS_MOST];
    double norms[TDM_STEPS_MOST]; /* of all gradients; NAN for an evaluation */
    size_t count;                 /* elements of all units, one unit after the other */
    float *values;                /* [TDM_STEPS_MOST][TDM_LEFTS][count] */
    uint64_t moves; /* copies within a row of K and V or of their gradients, per step */
    /* Copies of the last step that ran while an op of the compute lane ran. */
    uint64_t overlapped;
    /* Of the device, as its driver reports after the last step; 0: no memory of its own. */
    uint64_t used_bytes;
};

/* Values of one kind after step `step`, counted from 0. */
float *tdm_steps_values(const struct tdm_steps *steps, uint32_t step, enum tdm_left what);

/* Does the schedule update weights, or leave gradients? An evaluation does neither. */
bool tdm_steps_update(const struct tdm_schedule *schedule);
bool tdm_steps_leave_gradients(const struct tdm_schedule *schedule);

/* Lowers and validates a schedule and runs it on a backend, with these weights and tokens. Arenas
 * are filled with NaN if `poisoned`, otherwise with the pattern; then touching a byte beyond the
 * plan is an error. The caller frees, also after a failure. */
enum tdm_status tdm_steps_run(const struct tdm_schedule *schedule,
                              const struct tdm_backend *backend, const struct tdm_step_data *data,
                              uint64_t seed, bool poisoned, struct tdm_steps *steps,
                              struct tdm_error *err);
void tdm_steps_free(struct tdm_steps *steps);

/* Do both have the same bits? */
bool tdm_steps_same(const struct tdm_steps *a, const struct tdm_steps *b);

#endif
