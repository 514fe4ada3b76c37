/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate of a step: warmup, then constant or decaying to a final rate. */
#ifndef TDM_SCHEDULE_LEARNING_RATE_H
#define TDM_SCHEDULE_LEARNING_RATE_H

#include "schedule/schedule.h"

/* All names, for messages. */
#define TDM_RATE_SCHEDULE_NAMES "constant, linear or cosine"

const char *tdm_rate_schedule_name(enum tdm_rate_schedule schedule); /* "constant", "linear", ... */
bool tdm_rate_schedule_parse(const char *name, enum tdm_rate_schedule *schedule);

/* The rate of step `step`, counted from 1. Up to step warmup_steps it is learning_rate * step /
 * warmup_steps. Then it decays to final_learning_rate over decay_steps steps and stays there:
 * linearly, or by half a cosine (Loshchilov and Hutter, arXiv 1608.03983, equation 5). */
double tdm_learning_rate(const struct tdm_optimizer_settings *optimizer, uint64_t step);

/* Checks ranges, that a decay has steps, and that a constant rate has none. TDM_INPUT with the
 * reason. */
enum tdm_status tdm_learning_rate_check(const struct tdm_optimizer_settings *optimizer,
                                        const char *file, struct tdm_error *err);

#endif
