/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration: measures this machine's rates and makes a machine description of them.
 *
 * Only the work of real runs is timed. Short steps of models with known shapes (a few layers) run
 * as tidemark run would run them, long enough that a card gets as hot as in a long step. The times
 * of their ops become tables (simulator/rate_fit.h). Copies are timed alone, many in sequence, in
 * one direction and in both.
 */
#ifndef TDM_EXECUTOR_CALIBRATE_H
#define TDM_EXECUTOR_CALIBRATE_H

#include "executor/backend.h"

#include <signal.h>

struct tdm_calibration_options {
    const struct tdm_backend *backend;
    bool quick;                        /* takes a few seconds, for tests */
    const volatile sig_atomic_t *stop; /* TDM_INTERRUPTED when it is set; NULL: never */
    /* Receives a line that says what is being measured; may be NULL. */
    void (*say)(void *self, const char *text);
    void *self;
};

/* Measures the machine and makes its description, which the caller owns. TDM_INPUT if the backend
 * computes nothing; TDM_INFEASIBLE if the machine has too little memory for the smallest step. */
enum tdm_status tdm_calibrate(const struct tdm_calibration_options *options, json_t **description,
                              struct tdm_error *err);

/* Makes a description from a trace: the machine that its programs were planned for, with rates
 * corrected by the timed ops (of all timed steps except a program's first, if there are several).
 * Links and memory are unchanged. `say` (may be NULL) receives what changed. The caller owns
 * *description. TDM_INPUT if no op was timed, or if the programs were planned for different
 * machines. */
enum tdm_status tdm_calibrate_from_trace(const char *path,
                                         void (*say)(void *self, const char *text), void *self,
                                         json_t **description, struct tdm_error *err);

#endif
