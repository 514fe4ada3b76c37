/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validator: replays a program and trusts nothing.
 *
 * Separate from lowering, order and packing. It takes the items as they come and checks that no two
 * live buffers overlap, that accesses lie inside live buffers, that every read and every addition
 * finds the expected contents (tags), that compute operands are on the device, that arenas and
 * capacities are not exceeded, and that each op waits for everything that it conflicts with.
 * Quadratic in buffers, linear in ops.
 */
#ifndef TDM_SCHEDULE_VALIDATE_H
#define TDM_SCHEDULE_VALIDATE_H

#include "schedule/order.h"
#include "schedule/program_types.h"

struct tdm_validator;

/* Capacities in bytes of each place's arena; TDM_SIZE_MAX: no limit. Buffers are read from the
 * program once, here. */
enum tdm_status tdm_validator_new(const struct tdm_program *program,
                                  const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                  struct tdm_validator **validator, struct tdm_error *err);

/* Takes the next item, and for TDM_RUN what the op waits for (NULL: not checked). TDM_INPUT with a
 * message that names op, buffer, slot, expected and found. */
enum tdm_status tdm_validator_push(struct tdm_validator *validator, const struct tdm_item *item,
                                   const struct tdm_waits *waits, struct tdm_error *err);

/* Checks the end of the step: resident slots hold what the next step expects, and all sums are
 * complete. */
enum tdm_status tdm_validator_finish(struct tdm_validator *validator, struct tdm_error *err);

void tdm_validator_free(struct tdm_validator *validator);

/* A validator together with an order tracker, as a sink of a program's items. */
struct tdm_validation;
enum tdm_status tdm_validation_new(const struct tdm_program *program,
                                   const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                   struct tdm_validation **validation, struct tdm_error *err);
/* `self` is the validation. */
enum tdm_status tdm_validation_take(void *self, const struct tdm_item *item, struct tdm_error *err);
/* What the item taken last waits for, if it is an op: for other readers of the same items. */
const struct tdm_waits *tdm_validation_waits(const struct tdm_validation *validation);
enum tdm_status tdm_validation_finish(struct tdm_validation *validation, struct tdm_error *err);
void tdm_validation_free(struct tdm_validation *validation);

/* Validates `program`: emits it to a validation and finishes that. Of a sampled program the ranks
 * that were lowered, without the sums of bytes over all ranks. */
enum tdm_status tdm_program_validate(const struct tdm_program *program,
                                     const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                     struct tdm_error *err);

#endif
