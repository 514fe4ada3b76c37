/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention in rounds: turns, and the order of sums. */
#include "schedule/ring.h"

#include "schedule/attend.h"
#include "schedule/ranks.h"

struct tdm_ring tdm_ring_begin(const struct tdm_program *program, uint32_t layer, uint32_t queries,
                               uint32_t queries_end)
{
    struct tdm_ring ring = {program, layer, queries, queries_end, queries, 0};
    /* the first queries see furthest back */
    ring.keys = tdm_round_first(program, tdm_attend_first(program, layer, queries));
    ring.turns =
        (program->chunks[queries].round - program->chunks[ring.keys].round + 1) * program->ranks;
    return ring;
}

struct tdm_turn tdm_ring_turn(const struct tdm_ring *ring, uint32_t number)
{
    const uint32_t ranks = ring->program->ranks, round = number / ranks, hops = number % ranks + 1;
    /* all rounds before that of the queries are full */
    return (struct tdm_turn){ring->keys + round * ranks, hops, round * (ranks - 1) + hops - 1};
}

uint32_t tdm_ring_chunk(const struct tdm_program *program, uint32_t first, uint32_t hops,
                        uint32_t rank)
{
    return tdm_round_of(program, first, (rank + program->ranks - hops) % program->ranks);
}

uint32_t tdm_ring_seer(const struct tdm_ring *ring, uint32_t rank, uint32_t key)
{
    const uint32_t chunk = tdm_round_of(ring->program, ring->queries, rank);
    if (chunk == TDM_NONE || key == TDM_NONE || chunk >= ring->queries_end || chunk < key ||
        tdm_attend_first(ring->program, ring->layer, chunk) > key)
        return TDM_NONE;
    return chunk;
}

/* Hops from the rank of a chunk to that of another. */
static uint32_t hops_between(const struct tdm_ring *ring, uint32_t from, uint32_t to)
{
    const uint32_t ranks = ring->program->ranks;
    return (ring->program->chunks[to].rank + ranks - ring->program->chunks[from].rank) % ranks;
}

bool tdm_ring_is_seen(const struct tdm_ring *ring, uint32_t key, uint32_t hops)
{
    const uint32_t first = key < ring->queries ? ring->queries : key + 1;
    for (uint32_t i = first; i < ring->queries_end; i++) {
        if (tdm_attend_first(ring->program, ring->layer, i) > key)
            return false; /* later ones see no further back */
        if (hops_between(ring, key, i) >= hops)
            return true;
    }
    return false;
}

uint32_t tdm_ring_contributor(const struct tdm_ring *ring, uint32_t key, uint32_t hops)
{
    const uint32_t first = key < ring->queries ? ring->queries : key + 1;
    uint32_t last = TDM_NONE, most = 0;
    for (uint32_t i = first; i < ring->queries_end && most < hops; i++) {
        const uint32_t after = hops_between(ring, key, i);
        if (tdm_attend_first(ring->program, ring->layer, i) > key)
            break;
        if (after > most && after <= hops) {
            last = i;
            most = after;
        }
    }
    return last;
}

uint32_t tdm_ring_sum_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                             uint32_t contributor)
{
    const struct tdm_chunk *chunk = &program->chunks[key];
    const uint32_t home = chunk->rank;
    uint32_t first = tdm_round_first(program, contributor), end = tdm_round_end(program, first);
    struct tdm_ring ring = tdm_ring_begin(program, layer, first, end);
    uint32_t before = tdm_ring_contributor(&ring, key, program->ranks - 1);
    if (program->chunks[contributor].rank == home && before != TDM_NONE)
        return before;
    if (end > chunk->last_chunk)
        return program->chunk_count;
    ring = tdm_ring_begin(program, layer, end, tdm_round_end(program, end));
    before = tdm_ring_seer(&ring, home, key);
    if (before == TDM_NONE)
        before = tdm_ring_contributor(&ring, key, program->ranks - 1);
    /* if nobody sees it in a round, nobody does in later ones */
    return before == TDM_NONE ? program->chunk_count : before;
}
