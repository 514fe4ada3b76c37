/* SPDX-License-Identifier: Apache-2.0 */
/* Queries that go around a ring: their keys, and the order of sums. */
#include "schedule/queries.h"

#include "schedule/attend.h"
#include "schedule/ranks.h"

uint32_t tdm_queries_next_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                              uint32_t rank, uint32_t after)
{
    uint32_t key = after == TDM_NONE ? tdm_attend_first(program, layer, chunk) : after + 1;
    while (key < chunk && program->chunks[key].rank != rank)
        key++;
    return key < chunk ? key : TDM_NONE;
}

uint32_t tdm_queries_last_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                              uint32_t rank)
{
    const uint32_t first = tdm_attend_first(program, layer, chunk);
    for (uint32_t key = chunk; key-- > first;)
        if (program->chunks[key].rank == rank)
            return key;
    return TDM_NONE;
}

/* After some hops, the last key of the rank that then has the queries. */
static uint32_t last_key_at(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                            uint32_t hops)
{
    return tdm_queries_last_key(program, layer, chunk,
                                (program->chunks[chunk].rank + hops) % program->ranks);
}

bool tdm_queries_are_read(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                          uint32_t hops)
{
    for (; hops < program->ranks; hops++)
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

/* The chunk of the round that begins with `first` that adds to a key at a turn, if it does: the
 * key's own rank begins, with other chunks than the key itself, and the key's own queries end. */
static uint32_t adds_at(const struct tdm_program *program, uint32_t layer, uint32_t key,
                        uint32_t first, uint32_t turn)
{
    const uint32_t home = program->chunks[key].rank, ranks = program->ranks;
    const uint32_t chunk = tdm_round_of(program, first, (home + ranks - turn % ranks) % ranks);
    const bool last = turn == ranks;
    return chunk != TDM_NONE && sees(program, layer, chunk, key) &&
                   (turn % ranks > 0 || last == (chunk == key))
               ? chunk
               : TDM_NONE;
}

uint32_t tdm_queries_sum_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                                uint32_t chunk)
{
    const uint32_t ranks = program->ranks, home = program->chunks[key].rank;
    const uint32_t first = tdm_round_first(program, chunk), end = tdm_round_end(program, chunk);
    uint32_t turn = chunk == key ? ranks : (home + ranks - program->chunks[chunk].rank) % ranks;
    while (turn-- > 0) {
        const uint32_t before = adds_at(program, layer, key, first, turn);
        if (before != TDM_NONE)
            return before;
    }
    if (end > program->chunks[key].last_chunk)
        return program->chunk_count;
    /* later rounds have added before; if nobody sees the key in one, nobody does in later ones */
    for (turn = ranks; turn-- > 0;) {
        const uint32_t before = adds_at(program, layer, key, end, turn);
        if (before != TDM_NONE)
            return before;
    }
    return program->chunk_count;
}
