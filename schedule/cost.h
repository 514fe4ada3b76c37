/* SPDX-License-Identifier: Apache-2.0 */
/* What an op costs: FLOPs and bytes, from the model and the op's shape alone. */
#ifndef TDM_SCHEDULE_COST_H
#define TDM_SCHEDULE_COST_H

#include "schedule/program_types.h"

/* Sets op->flops and op->bytes, and for attention its keys, pairs and heads. A product takes 2
 * FLOPs per multiply-add. Attention is counted by visited (query, key) pairs (attend.h): the
 * forward takes 4 * head_dim * heads FLOPs per pair, the backward 10 * head_dim * heads
 * (FlashAttention counts five products). Bytes: every operand once, and twice if it is accumulated
 * into. */
void tdm_op_cost(const struct tdm_program *program, struct tdm_op *op);

/* FLOPs of a step as MFU counts them: 6 * matmul parameters * tokens + 3 * causal attention
 * forward. A third of that for the pass `evaluate`. Recompute is not counted. */
double tdm_model_flops(const struct tdm_schedule *schedule);

/* The rate of an op of the compute lane; and the share of that rate that depends on op->tokens, or
 * TDM_RATES if none does. */
enum tdm_rate tdm_op_rate(const struct tdm_op *op);
enum tdm_rate tdm_rate_share(enum tdm_rate rate);
/* The refined rate of an op, to be used if the machine describes it. Without a refined rate, the
 * same as tdm_op_rate(). */
enum tdm_rate tdm_op_refined_rate(const struct tdm_op *op);

/* tdm_op_work() is the work that the rate divides: FLOPs, or bytes if the op has no FLOPs.
 * tdm_op_size() is the size at which the rate is looked up: keys for attention, else FLOPs or
 * bytes, per token if there is a share by tokens. */
double tdm_op_work(const struct tdm_op *op);
double tdm_op_size(const struct tdm_op *op, enum tdm_rate rate);

/* Bytes that a copy or a team op moves over its link, whose rate depends on what else is under way
 * (tdm_link_rate()); 0 for others. */
uint64_t tdm_op_link_bytes(const struct tdm_op *op);

/* Does the backward of attention take longer than its rate says, because it has fewer blocks than
 * the machine has multiprocessors, and the rate was measured with more? */
bool tdm_op_has_few_blocks(const struct tdm_machine *machine, const struct tdm_op *op);

/* Predicted seconds of one op on a machine, while no other link is busy. More work never takes less
 * time. */
double tdm_op_seconds(const struct tdm_machine *machine, const struct tdm_op *op);

/* The least rate of an update on the host beside copies, as a share of its rate alone. */
#define TDM_LEAST_UPDATE_RATE 0.1

/* Is it an update on the host that shares its memory with copies, and does the machine say how?
 * Each slows the other. Rounding updates wait for the cores, not for memory. */
bool tdm_op_shares_host_memory(const struct tdm_machine *machine, const struct tdm_op *op);

/* Seconds that such an update takes longer for each byte that is copied from or to host memory
 * meanwhile; 0 of other ops. */
double tdm_op_seconds_per_copied_byte(const struct tdm_machine *machine, const struct tdm_op *op);

#endif
