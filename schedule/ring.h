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
 */
#ifndef TDM_SCHEDULE_RING_H
#define TDM_SCHEDULE_RING_H

#include "schedule/program_types.h"

/* Chunks of other ranks that a rank has at a time: their K and V, and sums of their gradients. */
#define TDM_VISITING_SLOTS 2u
#define TDM_PASSING_SLOTS 3u

struct tdm_ring {
    const struct tdm_program *program;
    uint32_t layer;
    uint32_t queries, queries_end; /* chunks of one round whose queries attend */
    uint32_t keys;                 /* first chunk of the first round of K and V that some see */
    uint32_t turns;                /* of a rank: `ranks` for each round of K and V */
};

/* A turn: the round of K and V that begins with chunk `first`, after `hops` hops. With as many as
 * ranks the rank has its own chunk again. `visit`: turns with chunks of others before it. */
struct tdm_turn {
    uint32_t first, hops, visit;
};

/* The ring of a layer for the queries of chunks [queries, queries_end), the first ones of their
 * round. Rounds must not be contiguous (TDM_DEAL_CONTIGUOUS). */
struct tdm_ring tdm_ring_begin(const struct tdm_program *program, uint32_t layer, uint32_t queries,
                               uint32_t queries_end);

struct tdm_turn tdm_ring_turn(const struct tdm_ring *ring, uint32_t number);

/* The chunk whose K and V a rank has `hops` hops after they began, in the round that begins with
 * chunk `first`; TDM_NONE: none. */
uint32_t tdm_ring_chunk(const struct tdm_program *program, uint32_t first, uint32_t hops,
                        uint32_t rank);

/* The chunk of a rank whose queries see chunk `key`; TDM_NONE if they do not, or it has none. */
uint32_t tdm_ring_seer(const struct tdm_ring *ring, uint32_t rank, uint32_t key);

/* Do queries of the rank that has `key` after `hops` hops, or of one further on its way, see it?
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
