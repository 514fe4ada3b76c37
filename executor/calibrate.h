/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration: this machine's rates, measured, as the description of a machine.
 *
 * Nothing is timed but what a run does: short steps of models of known shapes (few layers of them)
 * are run as tidemark run runs them, for so long that a card is as hot as in a long step, and the
 * times of their ops become tables (simulator/rate_fit.h). Copies are launched by themselves, many
 * in a row, one way and both.
 */
#ifndef TDM_EXECUTOR_CALIBRATE_H
#define TDM_EXECUTOR_CALIBRATE_H

#include "executor/backend.h"

#include <signal.h>

struct tdm_calibration_options {
    const struct tdm_backend *backend;
    bool quick;                        /* a few seconds: what tests have time for */
    const volatile sig_atomic_t *stop; /* TDM_INTERRUPTED when it is set; NULL: never */
    /* Told in a line what is being measured; may be NULL. */
    void (*say)(void *self, const char *text);
    void *self;
};

/* Measures and makes the description; the caller owns it. TDM_INPUT if the backend computes
 * nothing; TDM_INFEASIBLE if the machine has no room for the smallest step. */
enum tdm_status tdm_calibrate(const struct tdm_calibration_options *options, json_t **description,
                              struct tdm_error *err);

/* The machine that a trace's programs were planned for, with rates corrected by the ops that it
 * timed (of all timed steps but the first of a program, where there are several). Links and memory
 * stay. `say` (may be NULL) is told what changed. The caller owns *description. TDM_INPUT if no op
 * was timed, or the programs were planned for different machines. */
enum tdm_status tdm_calibrate_from_trace(const char *path,
                                         void (*say)(void *self, const char *text), void *self,
                                         json_t **description, struct tdm_error *err);

#endif
