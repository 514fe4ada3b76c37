/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: deals chunks to ranks, and orders the sums over a rank's chunks. */
#include "schedule/ranks.h"

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
