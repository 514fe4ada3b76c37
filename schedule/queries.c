/* SPDX-License-Identifier: Apache-2.0 */
/* Queries that go around a ring: their keys, and the order of sums. */
#include "schedule/queries.h"

#include "schedule/attend.h"
#include "schedule/ranks.h"

static uint32_t set_of(const struct tdm_program *program, uint32_t chunk)
{
    return tdm_rank_set(program, program->chunks[chunk].rank);
}

uint32_t tdm_queries_next_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                              uint32_t set, uint32_t after)
{
    uint32_t key = after == TDM_NONE ? tdm_attend_first(program, layer, chunk) : after + 1;
    while (key < chunk && set_of(program, key) != set)
        key++;
    return key < chunk ? key : TDM_NONE;
}

uint32_t tdm_queries_last_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                              uint32_t set)
{
    const uint32_t first = tdm_attend_first(program, layer, chunk);
    for (uint32_t key = chunk; key-- > first;)
        if (set_of(program, key) == set)
            return key;
    return TDM_NONE;
}

/* After some hops, the last key of the set that then has the queries. */
static uint32_t last_key_at(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                            uint32_t hops)
{
    return tdm_queries_last_key(program, layer, chunk,
                                (set_of(program, chunk) + hops) % tdm_rank_sets(program));
}

bool tdm_queries_are_read(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                          uint32_t hops)
{
    for (const uint32_t sets = tdm_rank_sets(program); hops < sets; hops++)
        if (last_key_at(program, layer, chunk, hops) != TDM_NONE)
            return true;
    return false;
}

uint32_t tdm_queries_contributor(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                                 uint32_t hops)
{
    for (; hops > 0; hops--) {
        const uint32_t key = last_key_at(program, layer, chunk, hops);
        if (key != TDM_NONE)
            return key;
    }
    return TDM_NONE;
}

static bool sees(const struct tdm_program *program, uint32_t layer, uint32_t chunk, uint32_t key)
{
    return chunk >= key && tdm_attend_first(program, layer, chunk) <= key;
}

/* The chunk of the round that begins with `first` that adds to a key, which is not its own, at a
 * turn, if it does: in each lap the key's own set begins. */
static uint32_t adds_at(const struct tdm_program *program, uint32_t layer, uint32_t key,
                        uint32_t first, uint32_t turn)
{
    const uint32_t sets = tdm_rank_sets(program), lap = turn / sets;
    const struct tdm_set_chunks chunks =
        tdm_round_set(program, first, tdm_round_end(program, first),
                      (set_of(program, key) + sets - turn % sets) % sets);
    const uint32_t chunk = chunks.first + lap;
    return chunk < chunks.end && chunk != key && sees(program, layer, chunk, key) ? chunk
                                                                                  : TDM_NONE;
}

/* The turn in which a chunk of the round that begins with `first` adds to a key: to itself last. */
static uint32_t turn_of(const struct tdm_program *program, uint32_t key, uint32_t first,
                        uint32_t chunk)
{
    const uint32_t sets = tdm_rank_sets(program), set = set_of(program, chunk);
    const uint32_t lap =
        chunk - tdm_round_set(program, first, tdm_round_end(program, first), set).first;
    return chunk == key ? program->ranks : lap * sets + (set_of(program, key) + sets - set) % sets;
}

uint32_t tdm_queries_sum_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                                uint32_t chunk)
{
    const uint32_t first = tdm_round_first(program, chunk), end = tdm_round_end(program, chunk);
    for (uint32_t turn = turn_of(program, key, first, chunk); turn-- > 0;) {
        const uint32_t before = adds_at(program, layer, key, first, turn);
        if (before != TDM_NONE)
            return before;
    }
    if (end > program->chunks[key].last_chunk)
        return program->chunk_count;
    /* later rounds have added before; if nobody sees the key in one, nobody does in later ones */
    for (uint32_t turn = program->ranks; turn-- > 0;) {
        const uint32_t before = adds_at(program, layer, key, end, turn);
        if (before != TDM_NONE)
            return before;
    }
    return program->chunk_count;
}
