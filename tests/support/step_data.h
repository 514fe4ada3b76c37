/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and tokens for tests that execute steps: drawn from a seed, the same for every
 * backend. */
#ifndef TDM_TESTS_STEP_DATA_H
#define TDM_TESTS_STEP_DATA_H

#include "executor/arenas.h"

struct tdm_step_data {
    const struct tdm_model *model; /* borrowed */
    float *weights;                /* all units, one after the other */
    size_t count;                  /* of these */
    int32_t *inputs, *targets;     /* [tokens]; -1 where a document ends inside its sequence */
    uint64_t tokens;
    /* of a schedule that takes documents from the text, the step's; borrowed; NULL: the schedule
     * has them */
    const struct tdm_sequence *sequences;
};

/* Weights around those of a trained model: norms about 1, biases small, matrices such that
 * activations neither vanish nor explode; exact in bf16 where the schedule has nothing wider than
 * bf16 weights. Random tokens. False if memory ran out. The caller frees, also after a failure. */
bool tdm_step_data_draw(struct tdm_step_data *data, const struct tdm_schedule *schedule,
                        uint64_t seed);
void tdm_step_data_free(struct tdm_step_data *data);

/* Writes them to the arenas of a program that was lowered from such a schedule: masters to match,
 * moments zero. */
enum tdm_status tdm_step_data_write(const struct tdm_step_data *data,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program, struct tdm_error *err);

#endif
