/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and tokens for tests that execute steps: drawn from a seed, the same for every
 * backend. */
#ifndef TDM_TESTS_STEP_DATA_H
#define TDM_TESTS_STEP_DATA_H

#include "executor/arenas.h"

struct tdm_step_data {
    const struct tdm_model *model; /* borrowed */
    float *weights;                /* all units, one after the other */
    size_t count;                  /* elements of all units */
    int32_t *inputs, *targets;     /* [tokens]; -1 where a document ends inside its sequence */
    uint64_t tokens;
    bool hides_rows; /* a step is not told which rows of the embedding the inputs use */
    /* The step's sequences, borrowed, if the schedule takes documents from the text; NULL: the
     * schedule has them. */
    const struct tdm_sequence *sequences;
};

/* Draws weights like those of a trained model: norms about 1, biases small, matrices such that
 * activations neither vanish nor explode. They are exact in bf16 if nothing wider than bf16 weights
 * is stored. Draws random tokens. False if memory runs out. The caller frees, also then. */
bool tdm_step_data_draw(struct tdm_step_data *data, const struct tdm_schedule *schedule,
                        uint64_t seed);
void tdm_step_data_free(struct tdm_step_data *data);

/* Writes them to the arenas [program->ranks] of a program lowered from the same schedule or a
 * variant. Masters match; moments are zero. */
enum tdm_status tdm_step_data_write(const struct tdm_step_data *data,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program, struct tdm_error *err);

#endif
