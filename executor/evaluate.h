/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluation: runs a program whose pass is `evaluate` between steps, in the same arenas and on the
 * same weights that are being trained.
 *
 * Both programs have weights, masters and moments at the same offsets. The running program uses the
 * rest of the arenas. There are one or more texts; an evaluation always reads the same windows of
 * its text.
 */
#ifndef TDM_EXECUTOR_EVALUATE_H
#define TDM_EXECUTOR_EVALUATE_H

#include "executor/arenas.h"
#include "executor/forecast.h"
#include "executor/team.h"
#include "texts/tokens.h"

#include <signal.h>

/* Does `evaluation` have all state where `training` keeps it, with the same buffers, places,
 * offsets and bytes? TDM_INPUT names the field of the schedule to change. Messages name both files.
 * */
enum tdm_status tdm_evaluation_check(const char *path, const struct tdm_program *evaluation,
                                     const char *training_path, const struct tdm_program *training,
                                     struct tdm_error *err);

/* Is a text long enough for an evaluation by this schedule? TDM_INPUT: shorter than one step and
 * the token after it. Also errors of tdm_batch_new(). */
enum tdm_status tdm_evaluation_check_tokens(const struct tdm_tokens *tokens,
                                            const struct tdm_schedule *schedule,
                                            struct tdm_error *err);

struct tdm_evaluation;

/* Creates an evaluation by a checked program in allocated arenas. `texts`, [text_count], are
 * checked; they are NULL if the backend computes nothing. Each evaluation runs the program on the
 * first windows of a text, at most `windows`. The contents of the arenas are lost, as with
 * tdm_walk_prepare(). `forecasts` are as for tdm_team_walk_new(), `team` says how ranks are joined.
 * Program, forecasts, arenas and texts must outlive *evaluation, which the caller owns. */
enum tdm_status
tdm_evaluation_new(const struct tdm_program *program, struct tdm_forecast *const *forecasts,
                   const struct tdm_arenas *arenas, const struct tdm_team_options *team,
                   struct tdm_tokens *const *texts, uint32_t text_count, uint64_t seed,
                   uint64_t windows, struct tdm_evaluation **evaluation, struct tdm_error *err);
void tdm_evaluation_free(struct tdm_evaluation *evaluation);

/* tdm_team_walk_hangs(). */
bool tdm_evaluation_hangs(const struct tdm_evaluation *evaluation);

/* Number of tokens in the windows of a text that have a target. */
uint64_t tdm_evaluation_tokens(const struct tdm_evaluation *evaluation, uint32_t text);

/* Evaluates on a text after step `step`. *loss is the mean over all tokens that have a target (NAN
 * if nothing is computed), *seconds the time that it took. Op times of the backend are discarded.
 * TDM_INTERRUPTED as tdm_walk_step(). */
enum tdm_status tdm_evaluation_run(struct tdm_evaluation *evaluation, uint32_t text, uint64_t step,
                                   const volatile sig_atomic_t *stop, double *loss, double *seconds,
                                   struct tdm_error *err);

#endif
