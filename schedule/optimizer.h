/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers: what each keeps beside the weights, and so which dtypes go with it.
 *
 *     kind                weights       master                       moments
 *     none                any           none                         none
 *     adamw               fp32          none (they are it)           fp32
 *                         bf16          remainder16 or fp32          fp32
 *     adamw-bf16-moments  as adamw      as adamw                     bf16
 *     adamw-bf16          bf16          none: rounded stochastically bf16
 *     sgd                 fp32          none                         none
 *                         bf16          none: rounded stochastically none
 *                         bf16          remainder16 or fp32          none
 *
 * A master or moments whose dtype is none have no buffer and take no bytes.
 */
#ifndef TDM_SCHEDULE_OPTIMIZER_H
#define TDM_SCHEDULE_OPTIMIZER_H

#include "schedule/schedule.h"

/* The names of all kinds, as a message or a help text lists them. */
#define TDM_OPTIMIZER_NAMES "adamw, adamw-bf16-moments, adamw-bf16, sgd or none"

/* Sets kind, and dtypes.master and dtypes.moments to what the kind keeps beside the weights that the
 * schedule has, where it leaves a choice to the first of the table above. */
void tdm_schedule_set_optimizer(struct tdm_schedule *schedule, enum tdm_optimizer kind);

/* Ranges of the settings, and the table above. TDM_INPUT with the reason. */
enum tdm_status tdm_optimizer_check(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err);

#endif
