/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands: what every op must read, write and add to.
 *
 * Part of the validator: a table written from what the ops compute, independently of how lowering
 * emits them. So lowering cannot justify a wrong operand by itself. Also: comparing tags, and
 * describing them in words.
 */
#ifndef TDM_SCHEDULE_OPERANDS_H
#define TDM_SCHEDULE_OPERANDS_H

#include "schedule/program.h"

/* Checks an op of the compute lane: its shape is a part of the step, and it has exactly the
 * expected operands with the expected tags. `tile_base` [chunk_count + 1]: LM-head tiles before a
 * chunk. TDM_INPUT with a message that names op and operand. */
enum tdm_status tdm_operands_check(const struct tdm_program *program, const uint64_t *tile_base,
                                   const struct tdm_op *op, struct tdm_error *err);

/* Is this the content of buffers whose slots are units? */
bool tdm_content_is_of_unit(enum tdm_content content);

bool tdm_tag_same(struct tdm_tag a, struct tdm_tag b);

/* The tag of the k-th slot of a range: that of the k-th chunk after the first, or for unit contents
 * of the k-th unit. */
struct tdm_tag tdm_tag_at(struct tdm_tag tag, uint32_t k);

#define TDM_TAG_TEXT 96

/* "k, v pages of layer 3 chunk 2 down to contributor 5". Returns `text`. */
const char *tdm_tag_show(struct tdm_tag tag, char text[TDM_TAG_TEXT]);

#endif
