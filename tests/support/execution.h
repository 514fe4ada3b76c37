/* SPDX-License-Identifier: Apache-2.0 */
/* A program with its arenas, random weights and random tokens on a backend, for tests that execute
 * the program. */
#ifndef TDM_TESTS_EXECUTION_H
#define TDM_TESTS_EXECUTION_H

#include "executor/arenas.h"
#include "executor/batch.h"

/* The byte that tests fill unused memory with: it gives NaN in every dtype of values. */
#define TDM_POISON 0xff

struct tdm_execution {
    uint64_t seed;
    struct tdm_program *program; /* owned */
    struct tdm_arenas arenas;
    struct tdm_tokens *tokens;
    struct tdm_batch *batch;
};

/* Takes over a lowered program and reserves its arenas on a backend. The caller closes, also after
 * a failure. */
enum tdm_status tdm_execution_open(struct tdm_program *program, const char *backend, uint64_t seed,
                                   struct tdm_execution *e, struct tdm_error *err);
void tdm_execution_close(struct tdm_execution *e);

/* Fills the arenas with `byte` and writes random weights, masters and moments. */
enum tdm_status tdm_execution_begin(struct tdm_execution *e, int byte, struct tdm_error *err);

/* Writes the tokens of a step, and fills *step for its ops. */
enum tdm_status tdm_execution_step(struct tdm_execution *e, uint64_t number, struct tdm_step *step,
                                   struct tdm_error *err);

/* Launches one op immediately, whatever ran before it. */
enum tdm_status tdm_execution_launch(struct tdm_execution *e, const struct tdm_op *op,
                                     const struct tdm_step *step, struct tdm_error *err);

/* Returns a copy of all buffers that outlive the step, malloc'ed: the result of a run. Padding,
 * between tensors of a unit and after the last element of a slot, is zero in the copy. */
unsigned char *tdm_execution_state(const struct tdm_execution *e, uint64_t *bytes);

#endif
