/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: deals chunks to ranks, and orders the sums over a rank's chunks. */
#include "schedule/ranks.h"

#include "schedule/attend.h"

void tdm_ranks_deal(struct tdm_chunk *chunks, uint32_t count, uint32_t ranks)
{
    uint32_t next_slot[TDM_MAX_RANKS] = {0};
    uint32_t round = 0;
    for (uint32_t first = 0; first < count; round++) {
        uint32_t left = chunks[first].last_chunk + 1 - first;
        uint32_t dealt = left < ranks ? left : ranks;
        for (uint32_t i = 0; i < dealt; i++) {
            uint32_t rank = round % 2 == 0 ? i : ranks - 1 - i;
            struct tdm_chunk *chunk = &chunks[first + i];
            chunk->rank = rank;
            chunk->round = round;
            chunk->slot = next_slot[rank]++;
        }
        first += dealt;
    }
}

uint32_t tdm_round_first(const struct tdm_program *program, uint32_t chunk)
{
    while (chunk > 0 && program->chunks[chunk - 1].round == program->chunks[chunk].round)
        chunk--;
    return chunk;
}

uint32_t tdm_round_end(const struct tdm_program *program, uint32_t chunk)
{
    uint32_t round = program->chunks[chunk].round;
    while (chunk < program->chunk_count && program->chunks[chunk].round == round)
        chunk++;
    return chunk;
}

uint32_t tdm_round_own(const struct tdm_program *program, uint32_t chunk)
{
    uint32_t end = tdm_round_end(program, chunk);
    for (uint32_t i = tdm_round_first(program, chunk); i < end; i++)
        if (program->chunks[i].rank == program->rank)
            return i;
    return TDM_NONE;
}

uint32_t tdm_rank_chunks(const struct tdm_program *program, uint32_t first, uint32_t end)
{
    uint32_t chunks[TDM_MAX_RANKS] = {0}, most = 0;
    if (program->ranks <= 1)
        return end - first;
    for (uint32_t i = first; i < end; i++) {
        uint32_t of_rank = ++chunks[program->chunks[i].rank];
        most = of_rank > most ? of_rank : most;
    }
    return most;
}

uint32_t tdm_rank_chunks_least(const struct tdm_program *program)
{
    uint32_t chunks[TDM_MAX_RANKS] = {0}, least = program->chunk_count;
    for (uint32_t i = 0; program->ranks > 1 && i < program->chunk_count; i++)
        chunks[program->chunks[i].rank]++;
    for (uint32_t rank = 0; program->ranks > 1 && rank < program->ranks; rank++)
        least = chunks[rank] < least ? chunks[rank] : least;
    return least;
}

uint32_t tdm_rank_slot(const struct tdm_program *program, uint32_t chunk, uint32_t first)
{
    const struct tdm_chunk *of = &program->chunks[chunk];
    while (program->chunks[first].rank != of->rank)
        first++;
    return of->slot - program->chunks[first].slot;
}

uint32_t tdm_rank_share(const struct tdm_program *program)
{
    return program->ranks > 1 ? program->rank + 1 : 0;
}

uint32_t tdm_shares(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    bool has[TDM_MAX_RANKS] = {false};
    uint32_t shares = 0;
    for (uint32_t i = chunk; i <= program->chunks[chunk].last_chunk && shares < program->ranks &&
                             tdm_attend_first(program, layer, i) <= chunk;
         i++) {
        shares += !has[program->chunks[i].rank];
        has[program->chunks[i].rank] = true;
    }
    return shares;
}

bool tdm_has_share(const struct tdm_program *program, uint32_t layer, uint32_t chunk, uint32_t rank)
{
    for (uint32_t i = chunk;
         i <= program->chunks[chunk].last_chunk && tdm_attend_first(program, layer, i) <= chunk;
         i++)
        if (program->chunks[i].rank == rank)
            return true;
    return false;
}

uint32_t tdm_sum_before(const struct tdm_program *program, uint32_t chunk)
{
    uint32_t rank = program->chunks[chunk].rank;
    do
        chunk++;
    while (chunk < program->chunk_count && program->chunks[chunk].rank != rank);
    return chunk;
}

bool tdm_sum_opens(const struct tdm_program *program, uint32_t chunk)
{
    return tdm_sum_before(program, chunk) == program->chunk_count;
}

bool tdm_sum_closes(const struct tdm_program *program, uint32_t chunk)
{
    const uint32_t rank = program->chunks[chunk].rank;
    while (chunk-- > 0)
        if (program->chunks[chunk].rank == rank)
            return false;
    return true;
}
