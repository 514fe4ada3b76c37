/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks: which rank works on which chunk, and the order in which chunks add to a sum.
 *
 * A rank is one device with its own arena and lanes. Chunks are dealt in rounds: a round is the
 * next chunks of a sequence, at most one for each rank. Under a causal mask later chunks cost more.
 * Which rank has which chunk of a round, by the schedule's `deal`:
 *
 * - snake: in rank order in one round, in reverse order in the next. Over every two rounds of one
 *   document all ranks have the same cost.
 * - stripes: in rank order in every round. Higher ranks have a chunk's cost more in each.
 * - contiguous: a rank has a part of the sequence in one piece; so a round is one chunk, and all
 *   other ranks are absent from it. The last rank has most to do.
 * - greedy: the costliest chunk to the rank that has least so far, and so on. For packed documents,
 *   whose chunks cost more and less without an order.
 *
 * With one rank a round is one chunk, and a chunk's slot is its number.
 *
 * Buffers of a rank's own chunks (residuals, the stream) have a slot for each of them. Rows of K
 * and V and of their gradients, tokens and losses have a slot for every chunk of the step or
 * sequence.
 */
#ifndef TDM_SCHEDULE_RANKS_H
#define TDM_SCHEDULE_RANKS_H

#include "schedule/program_types.h"

/* Sets rank, round, slot and what follows these of all chunks of a step, whose sequence,
 * first_chunk and last_chunk are set. `ranks` is 1 to TDM_MAX_RANKS. A round belongs to one
 * sequence; the last round of a sequence may have no chunk for some ranks. `costs` [count], in any
 * unit, are read for TDM_DEAL_GREEDY alone. */
void tdm_ranks_deal(struct tdm_chunk *chunks, uint32_t count, uint32_t ranks, enum tdm_deal deal,
                    const uint64_t *costs);

/* How several ranks share attention. Gathered: each chunk's queries run on its rank, which gathers
 * K and V of all chunks and has shares of the gradients of all K and V. By heads: each rank runs
 * its heads of all chunks, as one rank would. In a ring: each rank has K and V and their gradients
 * of its own chunks; those of others pass by, one chunk at a time (ring.h). Of rings, those in
 * which in the backward queries pass by instead (queries.h). All are false for one rank.
 *
 * Gathered and by heads are both true if ranks in a row, a set, divide the heads, and ranks with
 * the same heads of all sets gather their K and V. A set then does for its chunks what one rank
 * does that gathers. By heads and a ring are both true if those ranks pass K and V around. */
bool tdm_ranks_gather(const struct tdm_program *program);
bool tdm_ranks_divide_heads(const struct tdm_program *program);
bool tdm_ranks_ring(const struct tdm_program *program);
bool tdm_ranks_pass_queries(const struct tdm_program *program);

/* The rounds: first chunk of the round of `chunk`, and the chunk after it. */
uint32_t tdm_round_first(const struct tdm_program *program, uint32_t chunk);
uint32_t tdm_round_end(const struct tdm_program *program, uint32_t chunk);

/* The chunk of program->rank in the round of `chunk`; TDM_NONE if it has none. */
uint32_t tdm_round_own(const struct tdm_program *program, uint32_t chunk);

/* The chunk of a rank in the round that begins with chunk `first`; TDM_NONE if it has none. */
uint32_t tdm_round_of(const struct tdm_program *program, uint32_t first, uint32_t rank);

/* The set of a rank: of those that divide the heads. Without that each rank is one. And the number
 * of sets. */
uint32_t tdm_rank_set(const struct tdm_program *program, uint32_t rank);
uint32_t tdm_rank_sets(const struct tdm_program *program);

/* The rank of a set that has the same heads as program->rank. */
uint32_t tdm_rank_like(const struct tdm_program *program, uint32_t set);

/* Chunks [first, end) of a round, whose ranks are of one set. */
struct tdm_set_chunks {
    uint32_t first, end;
};

/* Those among chunks [first, end) of a round whose ranks are of a set. The set's chunks of a round
 * lie in a row. None: first == end. */
struct tdm_set_chunks tdm_round_set(const struct tdm_program *program, uint32_t first, uint32_t end,
                                    uint32_t set);

/* Sets tdm_chunk.set_slot of all chunks, which are dealt. */
void tdm_sets_count(struct tdm_program *program);

/* The most chunks that any set has among [first, end). */
uint32_t tdm_set_most_chunks(const struct tdm_program *program, uint32_t first, uint32_t end);

/* The number of the chunks among [first, chunk) that the set of `chunk` has. */
uint32_t tdm_set_slot(const struct tdm_program *program, uint32_t chunk, uint32_t first);

/* The first chunk from `chunk` on whose rank is of the set of program->rank; chunk_count if there
 * is none. */
uint32_t tdm_set_next(const struct tdm_program *program, uint32_t chunk);

/* The first chunk of program->rank from `chunk` on; chunk_count if there is none. */
uint32_t tdm_rank_next(const struct tdm_program *program, uint32_t chunk);

/* The most chunks that any rank has among [first, end); and the fewest that any has in a step. */
uint32_t tdm_rank_chunks(const struct tdm_program *program, uint32_t first, uint32_t end);
uint32_t tdm_rank_chunks_least(const struct tdm_program *program);

/* Sets the place of all chunks [count] of a step, whose sequences are set. */
void tdm_chunks_place(struct tdm_chunk *chunks, uint64_t count,
                      const struct tdm_schedule *schedule);

/* The number of the chunks with places among [first, place of `chunk`) that the rank of `chunk`
 * has: its slot in a buffer for the rank's chunks from place `first` on. */
uint32_t tdm_rank_slot(const struct tdm_program *program, uint32_t chunk, uint32_t first);

/* What a tag says of a sum to which only the chunks of program->rank have added (tdm_tag.share). */
uint32_t tdm_rank_share(const struct tdm_program *program);

/* The number of sets that have a share of dK and dV of `chunk`, the chunk's own among them. */
uint32_t tdm_shares(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Is `set` one of them? */
bool tdm_has_share(const struct tdm_program *program, uint32_t layer, uint32_t chunk, uint32_t set);

/* Sums over chunks (dK, dV of a chunk, gradients of weights) run in reverse order, on each rank
 * over its own chunks. Returns the chunk that added last before `chunk`; chunk_count if `chunk` is
 * the first. */
uint32_t tdm_sum_before(const struct tdm_program *program, uint32_t chunk);

/* The same for the sums of dK and dV of the chunks that `chunk` sees, to which, if ranks divide the
 * heads, the chunks of their whole set add on each of them. */
uint32_t tdm_kv_sum_before(const struct tdm_program *program, uint32_t chunk);

/* Is `chunk` the first of its rank to add to the sums over all chunks? */
bool tdm_sum_opens(const struct tdm_program *program, uint32_t chunk);

/* Is it the last of its rank to add? Then the rank's sums over all chunks are complete. */
bool tdm_sum_closes(const struct tdm_program *program, uint32_t chunk);

#endif
