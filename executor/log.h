/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of a run: a directory with train.csv and gradient_norms.csv, a row a step, and
 * validation.csv, a row an evaluation, and an event file of TensorBoard. All can be read while the
 * run writes them.
 *
 * A resumed run goes on in the files of the run before: rows after the step that it goes on from
 * are removed.
 */
#ifndef TDM_EXECUTOR_LOG_H
#define TDM_EXECUTOR_LOG_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define TDM_LOG_TRAIN "train.csv"
#define TDM_LOG_NORMS "gradient_norms.csv"
#define TDM_LOG_VALIDATION "validation.csv"

struct tdm_log;

/* May a log be written to `directory`? TDM_USAGE if one is there, unless it is resumed or `force`,
 * or if another run writes there. */
enum tdm_status tdm_log_check(const char *directory, bool resumed, bool force,
                              struct tdm_error *err);

/* Makes the directory and opens the files, after `resumed_step` (0: from the start, which replaces
 * an older log), for a model with `layers`, and locks the log until it is closed. TDM_USAGE:
 * another run writes there; TDM_INPUT: a file to go on in has a line that no log of the model has,
 * and none was changed; TDM_IO. On success the caller owns *log. */
enum tdm_status tdm_log_open(const char *directory, uint32_t layers, uint64_t resumed_step,
                             struct tdm_log **log, struct tdm_error *err);

/* The last step of which it had a row when it was opened, of those up to `resumed_step`; 0: none.
 */
uint64_t tdm_log_last_step(const struct tdm_log *log);

/* Evaluations on texts that it has after the step that the run goes on from. */
uint32_t tdm_log_evaluated(const struct tdm_log *log);

/* What is logged of a step. */
struct tdm_log_step {
    uint64_t step;
    bool has_loss, has_norm; /* else they are not known */
    double loss, gradient_norm;
    /* [layers + 2] of the model's units, before clipping; NULL: not known */
    const double *unit_norms;
    double learning_rate, seconds, tokens_per_second, mfu; /* NAN: not known */
    uint64_t device_used_bytes, host_used_bytes;           /* 0: not known */
};

/* Both return the failure of a write once; then they do nothing, and so the run can go on. */
enum tdm_status tdm_log_step(struct tdm_log *log, const struct tdm_log_step *step,
                             struct tdm_error *err);
enum tdm_status tdm_log_evaluation(struct tdm_log *log, uint64_t step, const char *text,
                                   double loss, uint64_t tokens, double seconds,
                                   struct tdm_error *err);

/* Waits until what was logged is on disk, so that a checkpoint that is saved after it is never
 * ahead of the log. NULL is allowed. tdm_log_close() returns a failure. */
void tdm_log_flush(struct tdm_log *log);

/* Closes and frees; NULL is allowed. Returns `status`, or the first failure of a write if that is
 * TDM_OK. */
enum tdm_status tdm_log_close(struct tdm_log *log, enum tdm_status status, struct tdm_error *err);

#endif
