/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks: which rank works on which chunk, and who adds to a sum before whom.
 *
 * A rank is one device with its own arena and lanes. Chunks are dealt in rounds: the next chunks of
 * a sequence, one for each rank, in the order of the ranks in one round and against it in the next.
 * Under a causal mask, where a later chunk costs more, every two rounds cost all ranks the same.
 * Programs have one rank so far: then a round is a chunk, and a chunk's slot is its number.
 */
#ifndef TDM_SCHEDULE_RANKS_H
#define TDM_SCHEDULE_RANKS_H

#include "schedule/program.h"

#define TDM_MAX_RANKS 1024u

/* Sets rank, round and slot of all chunks of a step, whose sequence, first_chunk and last_chunk are
 * set; `ranks` is 1 to TDM_MAX_RANKS. A round is of one sequence: its last one may leave some ranks
 * without a chunk. */
void tdm_ranks_deal(struct tdm_chunk *chunks, uint32_t count, uint32_t ranks);

/* Sums over chunks (dK, dV of a chunk, gradients of weights) run in reverse, on each rank over its
 * own chunks: who added last when `chunk` adds. chunk_count: nobody did, it is the first. */
uint32_t tdm_sum_before(const struct tdm_program *program, uint32_t chunk);

/* Is it the first of its rank to add to the sums over all chunks? */
bool tdm_sum_opens(const struct tdm_program *program, uint32_t chunk);

#endif
