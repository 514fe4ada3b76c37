/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch: device memory that kernels of the compute lane need besides their operands.
 *
 * One buffer that lives for the whole step. Ops use it one after the other and leave nothing in it
 * for the next. The record of each op says how much it needs, and for what (ops/ops.h). Kernels and
 * records take their constants from ops/scratch.h, so a plan counts what a backend will use.
 */
#ifndef TDM_SCHEDULE_SCRATCH_H
#define TDM_SCHEDULE_SCRATCH_H

#include "schedule/schedule.h"

/* Bytes for ops on chunks of at most `tokens` tokens; TDM_SIZE_MAX if they overflow. */
uint64_t tdm_scratch_bytes(const struct tdm_schedule *schedule, uint64_t tokens);

/* The part that products may use. It does not depend on how pages are gathered, because the size of
 * a library's workspace decides the order of its sums. */
uint64_t tdm_scratch_product_bytes(const struct tdm_schedule *schedule, uint64_t tokens);

#endif
