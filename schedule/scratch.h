/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch: what kernels of the compute lane need on the device beside their operands.
 *
 * One buffer that lives through the whole step; ops use it one after the other and leave nothing in
 * it for the next. The record of each op says how much it needs (ops/ops.h), and for what; kernels
 * and records have their constants from ops/scratch.h. So a plan counts what a backend will use.
 */
#ifndef TDM_SCHEDULE_SCRATCH_H
#define TDM_SCHEDULE_SCRATCH_H

#include "schedule/schedule.h"

/* Bytes for ops on chunks of at most `tokens` tokens; TDM_SIZE_MAX if they overflow. */
uint64_t tdm_scratch_bytes(const struct tdm_schedule *schedule, uint64_t tokens);

/* Of these, what products may use: the same however pages are gathered, since what a library has
 * decides how it sums. */
uint64_t tdm_scratch_product_bytes(const struct tdm_schedule *schedule, uint64_t tokens);

#endif
