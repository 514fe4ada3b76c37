/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of many ranks stand for all, so that plans of hundreds of ranks take seconds.
 *
 * - For times: of more than TDM_SIMULATED_RANKS ranks the first, and those whose attention costs
 *   most and least.
 * - For memory: the first of each set of ranks that allocate and free the same buffers in the same
 *   order. What a rank allocates follows from its chunks: their rounds, lengths and stores, whom
 *   they see and who sees them. Without documents a few ranks stand for all. Likewise the first and
 *   the last of a row of rounds in which a rank does the same stand for those between them.
 */
#ifndef TDM_SCHEDULE_RANKS_SAMPLE_H
#define TDM_SCHEDULE_RANKS_SAMPLE_H

#include "schedule/program_types.h"

/* Up to this many ranks all are simulated. */
#define TDM_SIMULATED_RANKS 16u

/* Sets stands[ranks]: the lowest rank with the same allocations and frees, in the same order.
 * Chunks are dealt and buffers declared. TDM_NO_MEMORY. */
enum tdm_status tdm_ranks_alike(const struct tdm_program *program, uint32_t *stands,
                                struct tdm_error *err);

/* Sets left_out[chunks]: those of rounds in which program->rank allocates and frees the same, in
 * every layer, as in the rounds before and after them. None where K and V go around a ring, in
 * which each round has more turns than the last. TDM_NO_MEMORY. */
enum tdm_status tdm_rounds_left_out(const struct tdm_program *program, bool *left_out,
                                    struct tdm_error *err);

/* The ranks that are simulated, by rising number. Returns how many: at most TDM_SIMULATED_RANKS. */
uint32_t tdm_ranks_simulated(const struct tdm_program *program,
                             uint32_t ranks[TDM_SIMULATED_RANKS]);

#endif
