/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ring attention (arXiv 2310.01889) in rounds: whose K and V a rank has when, and who adds to the
 * gradients of K and V before whom.
 *
 * The queries of a round attend to one round of K and V after the other, with rising number, up to
 * their own. The K and V of such a round go around: after s hops a rank has those of the rank s
 * before it. After ranks - 1 hops it takes its own chunk. These are its turns.
 *
 * In the backward the gradients of K and V go around behind them. A sum begins with the first rank
 * on the way whose queries see the chunk, and ends where the chunk is at home: there it is added to
 * what the queries of later rounds contributed, and then the rank adds what its own queries do.
 *
 * If ranks divide the heads, the members of the ring are their sets (ranks.h): a rank passes its
 * heads on to the rank with the same heads in the next set. A set has several chunks of a round.
 * They go around one after the other, in laps: in the first lap the first chunk of each set, and so
 * on. In a turn all of the set's queries attend to the chunk that is there, and add to its
 * gradients with falling number, as chunks of one rank do. So the last to add to a chunk, in the
 * turn in which it is at home, are its own queries. Without sets each rank is one, and a round has
 * one lap.
 */
#ifndef TDM_SCHEDULE_RING_H
#define TDM_SCHEDULE_RING_H

#include "schedule/ranks.h"

/* Chunks of other ranks that a rank has at a time: their K and V, and sums of their gradients. */
#define TDM_VISITING_SLOTS 2u
#define TDM_PASSING_SLOTS 3u

struct tdm_ring {
    const struct tdm_program *program;
    uint32_t layer;
    uint32_t queries, queries_end; /* chunks of one round whose queries attend */
    uint32_t keys;                 /* first chunk of the first round of K and V that some see */
    uint32_t turns;                /* of a rank: `sets` for each lap of each round of K and V */
};

/* A turn: a lap of the round of K and V that begins with chunk `first`, after `hops` hops. With as
 * many as sets the set has its own chunk again. `visit`: turns with chunks of others before it. */
struct tdm_turn {
    uint32_t first, lap, hops, visit;
};

/* The ring of a layer for the queries of chunks [queries, queries_end), the first ones of their
 * round. Rounds must not be contiguous (TDM_DEAL_CONTIGUOUS). */
struct tdm_ring tdm_ring_begin(const struct tdm_program *program, uint32_t layer, uint32_t queries,
                               uint32_t queries_end);

struct tdm_turn tdm_ring_turn(const struct tdm_ring *ring, uint32_t number);

/* The chunk that program->rank has `hops` hops after it began, in a lap of the round that begins
 * with chunk `first`; TDM_NONE: none. */
uint32_t tdm_ring_chunk(const struct tdm_program *program, uint32_t first, uint32_t lap,
                        uint32_t hops);

/* The chunks of a set whose queries see chunk `key`, of those that attend; they lie in a row. None
 * if `key` is TDM_NONE. */
struct tdm_set_chunks tdm_ring_seers(const struct tdm_ring *ring, uint32_t set, uint32_t key);

/* Do queries of the set that has `key` after `hops` hops, or of one further on its way, see it?
 * Else it goes no further. */
bool tdm_ring_is_seen(const struct tdm_ring *ring, uint32_t key, uint32_t hops);

/* The last one, on the way of chunk `key` to `hops` hops, whose queries see it: the number of its
 * chunk. TDM_NONE: nobody. */
uint32_t tdm_ring_contributor(const struct tdm_ring *ring, uint32_t key, uint32_t hops);

/* In the backward: whose contribution came to the sum of dK and dV of `key`, where it is at home,
 * just before that of chunk `contributor`; chunk_count if that is the first. */
uint32_t tdm_ring_sum_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                             uint32_t contributor);

#endif
