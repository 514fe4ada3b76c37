/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluation: a program whose pass is `evaluate`, run between steps on the very weights that are
 * being trained, in the same arenas.
 *
 * Weights, masters and moments of both programs are at the same offsets; the rest of the arenas
 * belongs to whichever program runs. What it evaluates on are fixed windows of a text.
 */
#ifndef TDM_EXECUTOR_EVALUATE_H
#define TDM_EXECUTOR_EVALUATE_H

#include "executor/arenas.h"
#include "executor/forecast.h"
#include "executor/tokens.h"

#include <signal.h>

/* Does `evaluation` find all state where `training` leaves it: the same buffers, places, offsets
 * and bytes? Messages name both files. TDM_INPUT with the field of the schedule to change. */
enum tdm_status tdm_evaluation_check(const char *path, const struct tdm_program *evaluation,
                                     const char *training_path, const struct tdm_program *training,
                                     struct tdm_error *err);

/* Will a text do for an evaluation by this schedule? TDM_INPUT: it is shorter than a step and the
 * token after it, and errors of tdm_batch_new(). */
enum tdm_status tdm_evaluation_check_tokens(const struct tdm_tokens *tokens,
                                            const struct tdm_schedule *schedule,
                                            struct tdm_error *err);

struct tdm_evaluation;

/* For a checked program in taken arenas; `tokens` NULL: the backend computes nothing. An evaluation
 * runs the program on the first windows of the tokens, at most `windows` and no more than there
 * are. What the arenas hold is lost, as with tdm_walk_prepare(). `forecast` is as for
 * tdm_walk_new(). Program, forecast, arenas and tokens must outlive it. The caller owns
 * *evaluation. The tokens are checked. */
enum tdm_status tdm_evaluation_new(const struct tdm_program *program,
                                   const struct tdm_forecast *forecast,
                                   const struct tdm_arenas *arenas, const struct tdm_tokens *tokens,
                                   uint64_t seed, uint64_t windows,
                                   struct tdm_evaluation **evaluation, struct tdm_error *err);
void tdm_evaluation_free(struct tdm_evaluation *evaluation);

/* Windows of an evaluation, and the tokens of all of them that have a target. */
uint64_t tdm_evaluation_windows(const struct tdm_evaluation *evaluation);
uint64_t tdm_evaluation_tokens(const struct tdm_evaluation *evaluation);

/* Evaluates after step `step`: the mean loss over all tokens (NAN if nothing is computed) and the
 * seconds that it took. Op times of the backend are dropped. TDM_INTERRUPTED as tdm_walk_step(). */
enum tdm_status tdm_evaluation_run(struct tdm_evaluation *evaluation, uint64_t step,
                                   const volatile sig_atomic_t *stop, double *loss, double *seconds,
                                   struct tdm_error *err);

#endif
