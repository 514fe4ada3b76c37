/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands: what every op must read, write and add to.
 *
 * Part of the validator: a table written from what the ops compute, independently of how lowering
 * emits them. So lowering cannot justify a wrong operand by itself.
 */
#ifndef TDM_SCHEDULE_OPERANDS_H
#define TDM_SCHEDULE_OPERANDS_H

#include "schedule/program_types.h"

/* Checks an op of the compute lane: its shape is a part of the step, and it has exactly the
 * expected operands with the expected tags. `tile_base` [chunk_count + 1]: LM-head tiles before a
 * chunk. TDM_INPUT with a message that names op and operand. */
enum tdm_status tdm_operands_check(const struct tdm_program *program, const uint64_t *tile_base,
                                   const struct tdm_op *op, struct tdm_error *err);

/* The same of a team op (ops/team.h). */
enum tdm_status tdm_operands_check_team(const struct tdm_program *program,
                                        const uint64_t *tile_base, const struct tdm_op *op,
                                        struct tdm_error *err);

/* The ranks in a row that divide the heads of the same chunks: all, some, or 1 where none do. */
uint32_t tdm_operands_row(const struct tdm_program *program);

/* First chunk with a token that some token of `chunk` sees in a layer. */
uint32_t tdm_operands_first_seen(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Is it an op of ranks in a ring that computes? tdm_operands_check() calls the check for those;
 * tdm_operands_check_team() that for hops, of a round of chunks [first, end). */
bool tdm_operands_of_ring(const struct tdm_program *program, const struct tdm_op *op);
enum tdm_status tdm_operands_check_ring(const struct tdm_program *program, const struct tdm_op *op,
                                        struct tdm_error *err);
enum tdm_status tdm_operands_check_hop(const struct tdm_program *program, const struct tdm_op *op,
                                       uint32_t first, uint32_t end, struct tdm_error *err);

#endif
