/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State: writes and reads the weights and moments of a model in the arenas of a program, and reads
 * its gradients. Used outside steps; values pass through fp32 memory.
 *
 * `arenas` has an element for each rank of the program. Weights are written to all of them, and
 * masters and moments to the ranks that have them (schedule/slices.h).
 *
 * With several processes all call these functions. Each writes to its own ranks; process 0 alone
 * gets what is read, but for the loss, which all get. With arenas that name no processes, one of
 * several can read for itself what its own ranks have.
 */
#ifndef TDM_EXECUTOR_STATE_H
#define TDM_EXECUTOR_STATE_H

#include "executor/arenas.h"

/* Elements of a tensor to move at a time; and how many of these remain from `first` on. */
#define TDM_STATE_BLOCK (UINT64_C(1) << 22)
static inline uint64_t tdm_state_block(const struct tdm_tensor *tensor, uint64_t first)
{
    uint64_t left = tensor->elements - first;
    return left < TDM_STATE_BLOCK ? left : TDM_STATE_BLOCK;
}

/* Writes elements [first, first + count) of a weight tensor, with the matching master and zero
 * moments. The master is `values`, bit for bit; a bf16 weight is the nearest to it. */
enum tdm_status tdm_state_put(const struct tdm_arenas *arenas, const struct tdm_program *program,
                              const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                              const float *values, struct tdm_error *err);

/* Reads elements of a tensor. `content`: TDM_UNIT_WEIGHTS as stored; TDM_UNIT_MASTER exactly, from
 * the master if there is one; a moment, 0 if there is none; TDM_UNIT_GRADIENT, the sum of both
 * parts if tied, and TDM_INPUT if the schedule has an optimizer or evaluates. */
enum tdm_status tdm_state_get(const struct tdm_arenas *arenas, const struct tdm_program *program,
                              enum tdm_content content, const struct tdm_tensor *tensor,
                              uint64_t first, uint64_t count, float *values, struct tdm_error *err);

/* The dtype in which a program keeps weights, masters or moments from one step to the next;
 * TDM_DTYPE_NONE: it has none. */
enum tdm_dtype tdm_state_dtype(const struct tdm_program *program, enum tdm_content content);

/* Writes or reads elements of a tensor's weights, masters or moments as they are kept, whatever
 * places and ranks have them. The program has the content. */
enum tdm_status tdm_state_put_kept(const struct tdm_arenas *arenas,
                                   const struct tdm_program *program, enum tdm_content content,
                                   const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                                   const void *data, struct tdm_error *err);
enum tdm_status tdm_state_get_kept(const struct tdm_arenas *arenas,
                                   const struct tdm_program *program, enum tdm_content content,
                                   const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                                   void *data, struct tdm_error *err);

/* Writes the weights of a unit from `values` [units[unit].elements] (padding is ignored), with the
 * matching master and zero moments. */
enum tdm_status tdm_state_write(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                uint32_t unit, const float *values, struct tdm_error *err);

/* Reads the weights of a unit, [units[unit].elements], padding 0: exactly, from the master if there
 * is one. */
enum tdm_status tdm_state_read_weights(const struct tdm_arenas *arenas,
                                       const struct tdm_program *program, uint32_t unit,
                                       float *values, struct tdm_error *err);

/* The same for its gradient, if the schedule has no optimizer; the sum of both parts if tied. */
enum tdm_status tdm_state_read_gradient(const struct tdm_arenas *arenas,
                                        const struct tdm_program *program, uint32_t unit,
                                        float *values, struct tdm_error *err);

/* Reads the first or second moment of a unit, [units[unit].elements], padding 0; all 0 if the
 * optimizer has none. */
enum tdm_status tdm_state_read_moment(const struct tdm_arenas *arenas,
                                      const struct tdm_program *program, uint32_t unit, bool second,
                                      float *values, struct tdm_error *err);

/* Writes the tokens of a step, each chunk's to its rank: `arenas` has program->ranks elements.
 * Inputs and targets of all sequences, [tokens of the step] each. */
enum tdm_status tdm_state_write_tokens(const struct tdm_arenas *arenas,
                                       const struct tdm_program *program, const int32_t *inputs,
                                       const int32_t *targets, struct tdm_error *err);

/* After a step: reads the mean loss over its tokens that have a target, summed in chunk order, and
 * the norms of the gradient before clipping: of all (NAN for an evaluation), and of each unit of
 * the model, if `unit_norms` is not NULL. */
enum tdm_status tdm_state_read_loss(const struct tdm_arenas *arenas,
                                    const struct tdm_program *program, double *loss,
                                    double *gradient_norm, double *unit_norms,
                                    struct tdm_error *err);

#endif
