/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch: what kernels of the compute lane need on the device beside their operands.
 *
 * One buffer that lives through the whole step; ops use it one after the other and leave nothing in it
 * for the next. Its size is decided here and nowhere else, so that a plan counts what a backend will
 * use: a backend checks when it is opened that its kernels need no more.
 */
#ifndef TDM_SCHEDULE_SCRATCH_H
#define TDM_SCHEDULE_SCRATCH_H

#include "schedule/schedule.h"

/* Bytes for ops on chunks of at most `tokens` tokens; TDM_SIZE_MAX if they overflow. */
uint64_t tdm_scratch_bytes(const struct tdm_schedule *schedule, uint64_t tokens);

/* Of these, what products may use: the same however pages are gathered, since what a library has decides how it
 * sums. */
uint64_t tdm_scratch_product_bytes(const struct tdm_schedule *schedule, uint64_t tokens);

/* Of these, what the backward of attention takes for its sums of dQ, and for the counters that order them with at most
 * `key_pages` pages of keys; 0 for dtypes, head dims and pages that no kernel which adds up dQ takes. */
uint64_t tdm_scratch_dq_bytes(const struct tdm_schedule *schedule, uint64_t tokens);
uint64_t tdm_scratch_turn_bytes(const struct tdm_schedule *schedule, uint64_t tokens,
                                uint64_t key_pages);

#endif
