/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by operands_ring.c, which defines it, and operands_queries.c: operands of ranks in a ring,
 * each of one slot.
 */
#ifndef TDM_SCHEDULE_OPERANDS_PARTS_H
#define TDM_SCHEDULE_OPERANDS_PARTS_H

#include "schedule/program_types.h"

/* An operand that must be there: one slot. */
struct tdm_due {
    enum tdm_mode mode;
    struct tdm_tag before, after;
};

struct tdm_operand_due {
    uint32_t operand;
    struct tdm_due due;
};

extern const struct tdm_tag tdm_nothing_there;

struct tdm_tag tdm_due_tag(enum tdm_content content, uint32_t layer, uint32_t chunk,
                           uint32_t contributor);
struct tdm_due tdm_due_read(struct tdm_tag what);

bool tdm_operand_is_there(const struct tdm_op *op, uint32_t operand);
enum tdm_status tdm_operand_check_due(const struct tdm_program *program, const struct tdm_op *op,
                                      uint32_t operand, struct tdm_due due, struct tdm_error *err);
enum tdm_status tdm_operand_check_dues(const struct tdm_program *program, const struct tdm_op *op,
                                       const struct tdm_operand_due *dues, size_t count,
                                       struct tdm_error *err);
/* TDM_INPUT: the op `what`. */
enum tdm_status tdm_op_malformed(const struct tdm_op *op, const char *what, struct tdm_error *err);

/* Do the queries of a chunk see keys of chunk `key`? */
bool tdm_queries_see(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                     uint32_t key);

/* The members of the ring are ranks, or rows of ranks that divide the heads: the one that has a
 * chunk, how many there are, and the hops from that of a chunk to that of another. */
uint32_t tdm_row_of(const struct tdm_program *program, uint32_t chunk);
uint32_t tdm_ring_rows(const struct tdm_program *program);
uint32_t tdm_hops_to(const struct tdm_program *program, uint32_t from, uint32_t to);

/* Which chunk of its row in its round a chunk is: in that lap it goes around. */
uint32_t tdm_lap_of(const struct tdm_program *program, uint32_t chunk);

/* What attention reads in place of q, its output and its gradient, or makes in place of dQ: the
 * rank's heads of it, if ranks divide the heads. */
enum tdm_content tdm_due_attended(const struct tdm_program *program, enum tdm_content whole);

/* ---- operands_queries.c ---- */

/* If queries go around in the backward: is it an op of that? And the check of such an op. */
bool tdm_operands_of_queries(const struct tdm_op *op);
enum tdm_status tdm_operands_check_queries(const struct tdm_program *program,
                                           const struct tdm_op *op, struct tdm_error *err);

/* A hop of sums of dQ. `sent`, `received`: the chunks whose queries the rank has one hop before,
 * and then; or TDM_NONE. */
enum tdm_status tdm_operands_check_dq_hop(const struct tdm_program *program,
                                          const struct tdm_op *op, uint32_t sent, uint32_t received,
                                          struct tdm_error *err);

#endif
