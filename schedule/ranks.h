/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks: which rank works on which chunk, and the order in which chunks add to a sum.
 *
 * A rank is one device with its own arena and lanes. Chunks are dealt in rounds: a round is the
 * next chunks of a sequence, one for each rank, in rank order in one round and in reverse rank
 * order in the next. Under a causal mask later chunks cost more; over every two rounds all ranks
 * have the same cost. Programs have one rank so far: then a round is one chunk, and a chunk's slot
 * is its number.
 */
#ifndef TDM_SCHEDULE_RANKS_H
#define TDM_SCHEDULE_RANKS_H

#include "schedule/program_types.h"

#define TDM_MAX_RANKS 1024u

/* Sets rank, round and slot of all chunks of a step, whose sequence, first_chunk and last_chunk are
 * set. `ranks` is 1 to TDM_MAX_RANKS. A round belongs to one sequence; the last round of a sequence
 * may have no chunk for some ranks. */
void tdm_ranks_deal(struct tdm_chunk *chunks, uint32_t count, uint32_t ranks);

/* Sums over chunks (dK, dV of a chunk, gradients of weights) run in reverse order, on each rank
 * over its own chunks. Returns the chunk that added last before `chunk`; chunk_count if `chunk` is
 * the first. */
uint32_t tdm_sum_before(const struct tdm_program *program, uint32_t chunk);

/* Is `chunk` the first of its rank to add to the sums over all chunks? */
bool tdm_sum_opens(const struct tdm_program *program, uint32_t chunk);

/* Is it the last of its rank to add? Then the rank's sums over all chunks are complete. */
bool tdm_sum_closes(const struct tdm_program *program, uint32_t chunk);

#endif
