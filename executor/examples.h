/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The examples of a program: of all ops that run the same code, the first one.
 *
 * A backend that prepares for a program (tdm_backend.prepare) needs no other ops. A program of many
 * thousand ops has some dozens.
 */
#ifndef TDM_EXECUTOR_EXAMPLES_H
#define TDM_EXECUTOR_EXAMPLES_H

#include "schedule/program.h"

/* The maximum number of examples. Ops unlike all of them are prepared in the step. */
#define TDM_EXAMPLES 256u

struct tdm_examples;

/* Creates the examples of a program, which must outlive them, without any. The caller owns
 * *examples. */
enum tdm_status tdm_examples_new(const struct tdm_program *program, struct tdm_examples **examples,
                                 struct tdm_error *err);
void tdm_examples_free(struct tdm_examples *examples);

/* Keeps a copy of an op of the compute lane if it is unlike all examples so far: in its kind, its
 * part, its tokens or vocabulary entries, the operands that it has and their modes; or, a
 * selection, in whether it votes. */
enum tdm_status tdm_examples_take(struct tdm_examples *examples, const struct tdm_op *op,
                                  struct tdm_error *err);

/* The examples in program order; valid until the next tdm_examples_take(). */
const struct tdm_op *tdm_examples_ops(const struct tdm_examples *examples, uint32_t *count);

#endif
