/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention in rounds: turns, and the order of sums. */
#include "schedule/ring.h"

#include "schedule/attend.h"

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
    const uint32_t ranks = ring->program->ranks, sets = tdm_rank_sets(ring->program);
    const uint32_t laps = number / sets, hops = number % sets + 1;
    /* all rounds before that of the queries are full */
    return (struct tdm_turn){.first = ring->keys + number / ranks * ranks,
                             .lap = laps % (ranks / sets),
                             .hops = hops,
                             .visit = laps * (sets - 1) + hops - 1};
}

uint32_t tdm_ring_chunk(const struct tdm_program *program, uint32_t first, uint32_t lap,
                        uint32_t hops)
{
    const uint32_t sets = tdm_rank_sets(program), own = tdm_rank_set(program, program->rank);
    const struct tdm_set_chunks chunks = tdm_round_set(
        program, first, tdm_round_end(program, first), (own + sets - hops % sets) % sets);
    return chunks.first + lap < chunks.end ? chunks.first + lap : TDM_NONE;
}

struct tdm_set_chunks tdm_ring_seers(const struct tdm_ring *ring, uint32_t set, uint32_t key)
{
    struct tdm_set_chunks seers = {0, 0};
    if (key == TDM_NONE)
        return seers;
    seers = tdm_round_set(ring->program, ring->queries, ring->queries_end, set);
    while (seers.first < seers.end && seers.first < key)
        seers.first++;
    while (seers.first < seers.end &&
           tdm_attend_first(ring->program, ring->layer, seers.end - 1) > key)
        seers.end--;
    return seers;
}

/* Hops from the set of a chunk to that of another. */
static uint32_t hops_between(const struct tdm_ring *ring, uint32_t from, uint32_t to)
{
    const struct tdm_program *program = ring->program;
    const uint32_t sets = tdm_rank_sets(program);
    return (tdm_rank_set(program, program->chunks[to].rank) + sets -
            tdm_rank_set(program, program->chunks[from].rank)) %
           sets;
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
    for (uint32_t i = first; i < ring->queries_end; i++) {
        const uint32_t after = hops_between(ring, key, i);
        if (tdm_attend_first(ring->program, ring->layer, i) > key)
            break;
        if (after > most && after <= hops) { /* the first of its set adds last */
            last = i;
            most = after;
        }
    }
    return last;
}

/* Whose contribution of a round is the last where a key is at home; TDM_NONE: nobody's. */
static uint32_t last_of_round(const struct tdm_ring *ring, uint32_t key)
{
    const struct tdm_program *program = ring->program;
    const struct tdm_set_chunks own =
        tdm_ring_seers(ring, tdm_rank_set(program, program->chunks[key].rank), key);
    return own.first < own.end ? own.first
                               : tdm_ring_contributor(ring, key, tdm_rank_sets(program) - 1);
}

uint32_t tdm_ring_sum_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                             uint32_t contributor)
{
    const struct tdm_chunk *chunk = &program->chunks[key];
    const uint32_t home = tdm_rank_set(program, chunk->rank);
    uint32_t first = tdm_round_first(program, contributor), end = tdm_round_end(program, first);
    struct tdm_ring ring = tdm_ring_begin(program, layer, first, end);
    if (tdm_rank_set(program, program->chunks[contributor].rank) == home) {
        if (contributor + 1 < tdm_ring_seers(&ring, home, key).end)
            return contributor + 1;
        const uint32_t around = tdm_ring_contributor(&ring, key, tdm_rank_sets(program) - 1);
        if (around != TDM_NONE)
            return around;
    }
    if (end > chunk->last_chunk)
        return program->chunk_count;
    ring = tdm_ring_begin(program, layer, end, tdm_round_end(program, end));
    const uint32_t before = last_of_round(&ring, key);
    /* if nobody sees it in a round, nobody does in later ones */
    return before == TDM_NONE ? program->chunk_count : before;
}
