/* SPDX-License-Identifier: Apache-2.0 */
/* What an op costs: FLOPs and bytes, from the model and the op's shape alone. */
#ifndef TDM_SCHEDULE_COST_H
#define TDM_SCHEDULE_COST_H

#include "schedule/program.h"

/* Sets op->flops, op->bytes, and of attention op->keys and op->head_dim. Products 2 FLOPs a
 * multiply-add; attention by visited (query, key) pairs (attend.h): forward 4 * head_dim * heads a
 * pair, backward 10 (FlashAttention counts five products). Bytes: every operand once, twice where
 * it is accumulated into. */
void tdm_op_cost(const struct tdm_program *program, struct tdm_op *op);

/* FLOPs of a step that MFU counts: 6 * matmul parameters * tokens + 3 * causal attention forward, a
 * third of it where the pass is `evaluate`; recompute is not counted. */
double tdm_model_flops(const struct tdm_schedule *schedule);

/* The rate that an op of the compute lane runs at; and the share of that rate which follows from
 * op->tokens, or TDM_RATES if it does not. */
enum tdm_rate tdm_op_rate(const struct tdm_op *op);
enum tdm_rate tdm_rate_share(enum tdm_rate rate);
/* The refined rate that an op runs at where the machine describes it; that of tdm_op_rate() if none
 * is. */
enum tdm_rate tdm_op_refined_rate(const struct tdm_op *op);

/* What a rate counts of an op: FLOPs, or bytes where it has none; and what it is looked up by: the
 * keys of attention, else FLOPs or bytes, a token where there is a share by tokens. */
double tdm_op_work(const struct tdm_op *op);
double tdm_op_size(const struct tdm_op *op, enum tdm_rate rate);

/* Predicted seconds of one op on a machine, alone on its lane: it does not fall with the op's work.
 * `busy`: bits of the machine's links, by number, that others use meanwhile. */
double tdm_op_seconds(const struct tdm_machine *machine, const struct tdm_op *op, uint32_t busy);

#endif
