/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of the validator: recounts what the simulator reads of an op besides its operands.
 *
 * Nothing here calls cost.c, attend.c or gather.c, which computed the figures. Products are counted
 * from the tensors of their part, bytes from the operands, pairs token by token. Estimated figures
 * (pairs of page lists, pages gathered from the host) must lie between the possible minimum and
 * maximum.
 */
#ifndef TDM_SCHEDULE_VALIDATE_COST_H
#define TDM_SCHEDULE_VALIDATE_COST_H

#include "schedule/program_types.h"

struct tdm_cost_check;

/* For the ops of a program, which is borrowed. NULL: out of memory. */
struct tdm_cost_check *tdm_cost_check_new(const struct tdm_program *program);
void tdm_cost_check_free(struct tdm_cost_check *check);

/* Checks FLOPs, bytes, keys, pairs, head dim and bytes over the link of an op whose kind, layer,
 * chunk and buffers exist. TDM_INPUT says which figure is wrong. */
enum tdm_status tdm_cost_check_op(struct tdm_cost_check *check, const struct tdm_op *op,
                                  struct tdm_error *err);

#endif
