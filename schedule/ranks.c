/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: deals chunks to ranks, and orders the sums over a rank's chunks. */
#include "schedule/ranks.h"

#include "base/size.h"
#include "schedule/attend.h"

/* The chunks of one round: [first, first + count). */
struct round {
    struct tdm_chunk *chunks;
    const uint64_t *costs; /* of all chunks of the step */
    uint32_t number, first, count;
};

/* Its costliest chunk that no rank has yet; of equal ones the first. */
static uint32_t costliest(const struct round *round)
{
    uint32_t found = TDM_NONE;
    for (uint32_t i = round->first; i < round->first + round->count; i++)
        if (round->chunks[i].rank == TDM_NONE &&
            (found == TDM_NONE || round->costs[i] > round->costs[found]))
            found = i;
    return found;
}

/* Gives the costliest chunk of a round to the rank that has least so far, and so on. */
static void deal_greedily(const struct round *round, uint32_t ranks, uint64_t loads[TDM_MAX_RANKS])
{
    bool has[TDM_MAX_RANKS] = {false};
    for (uint32_t i = 0; i < round->count; i++)
        round->chunks[round->first + i].rank = TDM_NONE;
    for (uint32_t i = 0; i < round->count; i++) {
        uint32_t chunk = costliest(round), rank = 0;
        while (has[rank])
            rank++;
        for (uint32_t other = rank + 1; other < ranks; other++)
            if (!has[other] && loads[other] < loads[rank])
                rank = other;
        has[rank] = true;
        loads[rank] = tdm_size_add(loads[rank], round->costs[chunk]);
        round->chunks[chunk].rank = rank;
    }
}

/* The rank of the i-th chunk of a round. */
static uint32_t rank_of(enum tdm_deal deal, const struct round *round, uint32_t ranks, uint32_t i)
{
    const struct tdm_chunk *chunk = &round->chunks[round->first + i];
    uint64_t chunks = chunk->last_chunk + 1 - chunk->first_chunk;
    uint64_t before = round->first + i - chunk->first_chunk;
    if (deal == TDM_DEAL_CONTIGUOUS)
        return (uint32_t)(before * ranks / chunks);
    return deal == TDM_DEAL_SNAKE && round->number % 2 == 1 ? ranks - 1 - i : i;
}

void tdm_ranks_deal(struct tdm_chunk *chunks, uint32_t count, uint32_t ranks, enum tdm_deal deal,
                    const uint64_t *costs)
{
    uint32_t next_slot[TDM_MAX_RANKS] = {0}, next_chunk[TDM_MAX_RANKS];
    uint64_t loads[TDM_MAX_RANKS] = {0};
    struct round round = {.chunks = chunks, .costs = costs};
    for (; round.first < count; round.first += round.count, round.number++) {
        uint32_t left = chunks[round.first].last_chunk + 1 - round.first;
        round.count = left < ranks ? left : ranks;
        if (deal == TDM_DEAL_CONTIGUOUS)
            round.count = 1;
        if (deal == TDM_DEAL_GREEDY)
            deal_greedily(&round, ranks, loads);
        for (uint32_t i = 0; i < round.count; i++) {
            struct tdm_chunk *chunk = &chunks[round.first + i];
            if (deal != TDM_DEAL_GREEDY)
                chunk->rank = rank_of(deal, &round, ranks, i);
            chunk->round = round.number;
            chunk->round_first = round.first;
            chunk->round_end = round.first + round.count;
            chunk->slot = next_slot[chunk->rank]++;
        }
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        next_chunk[rank] = count;
    for (uint32_t i = count; i-- > 0;) {
        chunks[i].next = next_chunk[chunks[i].rank];
        next_chunk[chunks[i].rank] = i;
    }
}

bool tdm_ranks_gather(const struct tdm_program *program)
{
    return program->ranks > 1 && tdm_schedule_gathers(program->schedule);
}

bool tdm_ranks_divide_heads(const struct tdm_program *program)
{
    return program->ranks > 1 && tdm_schedule_divides_heads(program->schedule);
}

bool tdm_ranks_ring(const struct tdm_program *program)
{
    return program->ranks > 1 && tdm_schedule_rings(program->schedule);
}

bool tdm_ranks_pass_queries(const struct tdm_program *program)
{
    return program->ranks > 1 && tdm_schedule_passes_queries(program->schedule);
}

uint32_t tdm_round_first(const struct tdm_program *program, uint32_t chunk)
{
    return program->chunks[chunk].round_first;
}

uint32_t tdm_round_end(const struct tdm_program *program, uint32_t chunk)
{
    return program->chunks[chunk].round_end;
}

uint32_t tdm_round_of(const struct tdm_program *program, uint32_t first, uint32_t rank)
{
    const uint32_t end = program->chunks[first].round_end;
    /* where it is in a full round that is dealt in turns: other ranks may be a thousand */
    if (rank < end - first && program->chunks[first + rank].rank == rank)
        return first + rank;
    if (rank < end - first && program->chunks[end - 1 - rank].rank == rank)
        return end - 1 - rank;
    for (uint32_t i = first; i < end; i++)
        if (program->chunks[i].rank == rank)
            return i;
    return TDM_NONE;
}

uint32_t tdm_round_own(const struct tdm_program *program, uint32_t chunk)
{
    return tdm_round_of(program, tdm_round_first(program, chunk), program->rank);
}

/* How many ranks are a set. */
static uint32_t set_ranks(const struct tdm_program *program)
{
    return program->ranks > 1 ? tdm_schedule_head_parts(program->schedule) : 1;
}

uint32_t tdm_rank_set(const struct tdm_program *program, uint32_t rank)
{
    return program->ranks > 1 ? rank / set_ranks(program) : 0;
}

uint32_t tdm_rank_sets(const struct tdm_program *program)
{
    return program->ranks > 1 ? program->ranks / tdm_schedule_head_parts(program->schedule) : 1;
}

uint32_t tdm_rank_like(const struct tdm_program *program, uint32_t set)
{
    const uint32_t parts = tdm_schedule_head_parts(program->schedule);
    return set * parts + program->rank % parts;
}

struct tdm_set_chunks tdm_round_set(const struct tdm_program *program, uint32_t first, uint32_t end,
                                    uint32_t set)
{
    const uint32_t each = set_ranks(program);
    struct tdm_set_chunks chunks = {first, first};
    while (chunks.first < end && program->chunks[chunks.first].rank / each != set)
        chunks.first++;
    for (chunks.end = chunks.first;
         chunks.end < end && program->chunks[chunks.end].rank / each == set;)
        chunks.end++;
    return chunks;
}

void tdm_sets_count(struct tdm_program *program)
{
    uint32_t next_slot[TDM_MAX_RANKS] = {0};
    for (uint32_t i = 0; i < program->chunk_count; i++)
        program->chunks[i].set_slot = next_slot[tdm_rank_set(program, program->chunks[i].rank)]++;
}

uint32_t tdm_set_most_chunks(const struct tdm_program *program, uint32_t first, uint32_t end)
{
    uint32_t chunks[TDM_MAX_RANKS] = {0}, most = 0;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t of_set = ++chunks[tdm_rank_set(program, program->chunks[i].rank)];
        most = of_set > most ? of_set : most;
    }
    return most;
}

uint32_t tdm_set_slot(const struct tdm_program *program, uint32_t chunk, uint32_t first)
{
    const uint32_t set = tdm_rank_set(program, program->chunks[chunk].rank);
    while (tdm_rank_set(program, program->chunks[first].rank) != set)
        first++;
    return program->chunks[chunk].set_slot - program->chunks[first].set_slot;
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

void tdm_chunks_place(struct tdm_chunk *chunks, uint64_t count, const struct tdm_schedule *schedule)
{
    const bool by_position = schedule->splits_by_position && schedule->ranks == 1;
    for (uint32_t i = 0; i < count; i++)
        chunks[i].place = i;
    for (uint32_t place = 0, position = 0; by_position && place < count; position++)
        for (uint32_t i = 0; i < count; i = chunks[i].last_chunk + 1)
            if (chunks[i].last_chunk - i >= position)
                chunks[i + position].place = place++;
}

uint32_t tdm_rank_slot(const struct tdm_program *program, uint32_t chunk, uint32_t first)
{
    const struct tdm_chunk *of = &program->chunks[chunk];
    if (program->ranks == 1)
        return of->place - first;
    const uint32_t begin = program->chunks[first].round_first;
    uint32_t own = tdm_round_of(program, begin, of->rank);
    if (own == TDM_NONE) /* it has none in this round */
        for (own = first; program->chunks[own].rank != of->rank;)
            own++;
    else if (own < first)
        own = program->chunks[own].next;
    return of->slot - program->chunks[own].slot;
}

uint32_t tdm_rank_share(const struct tdm_program *program)
{
    return program->ranks > 1 ? program->rank + 1 : 0;
}

uint32_t tdm_shares(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    const uint32_t each = set_ranks(program);
    const uint32_t last = tdm_attend_last(program, layer, chunk);
    bool has[TDM_MAX_RANKS] = {false};
    uint32_t shares = 0;
    for (uint32_t i = chunk; i <= last && shares * each < program->ranks; i++) {
        const uint32_t set = program->chunks[i].rank / each;
        shares += !has[set];
        has[set] = true;
    }
    return shares;
}

bool tdm_has_share(const struct tdm_program *program, uint32_t layer, uint32_t chunk, uint32_t set)
{
    const uint32_t last = tdm_attend_last(program, layer, chunk);
    for (uint32_t i = chunk; i <= last; i++)
        if (tdm_rank_set(program, program->chunks[i].rank) == set)
            return true;
    return false;
}

static uint32_t next_of(const struct tdm_program *program, uint32_t rank, uint32_t chunk)
{
    while (chunk < program->chunk_count && program->chunks[chunk].rank != rank)
        chunk++;
    return chunk;
}

static uint32_t next_of_set(const struct tdm_program *program, uint32_t set, uint32_t chunk)
{
    const uint32_t each = set_ranks(program);
    while (chunk < program->chunk_count && program->chunks[chunk].rank / each != set)
        chunk++;
    return chunk;
}

uint32_t tdm_set_next(const struct tdm_program *program, uint32_t chunk)
{
    return next_of_set(program, tdm_rank_set(program, program->rank), chunk);
}

uint32_t tdm_rank_next(const struct tdm_program *program, uint32_t chunk)
{
    return next_of(program, program->rank, chunk);
}

uint32_t tdm_sum_before(const struct tdm_program *program, uint32_t chunk)
{
    return program->chunks[chunk].next;
}

uint32_t tdm_kv_sum_before(const struct tdm_program *program, uint32_t chunk)
{
    return next_of_set(program, tdm_rank_set(program, program->chunks[chunk].rank), chunk + 1);
}

bool tdm_sum_opens(const struct tdm_program *program, uint32_t chunk)
{
    return tdm_sum_before(program, chunk) == program->chunk_count;
}

bool tdm_sum_closes(const struct tdm_program *program, uint32_t chunk)
{
    return program->chunks[chunk].slot == 0;
}
