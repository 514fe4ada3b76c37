/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that stand for others, and rounds. */
#include "schedule/ranks_sample.h"

#include "schedule/attend.h"
#include "schedule/ranks.h"
#include "schedule/slices.h"

#include <stdlib.h>

static void mix(uint64_t *mark, uint64_t part)
{
    *mark = (*mark ^ part) * UINT64_C(0x9e3779b97f4a7c15);
    *mark ^= *mark >> 29;
}

/* Does a layer see as far as the one below it? */
static bool sees_as_below(const struct tdm_model *model, uint32_t layer)
{
    return layer > 0 && model->layer_kinds[layer].window == model->layer_kinds[layer - 1].window;
}

/* What allocations may depend on of a chunk, in every group and layer, beside its place in the
 * step.
 */
static void mix_chunk(const struct tdm_program *program, uint32_t chunk, uint64_t *mark)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_chunk *of = &program->chunks[chunk];
    for (uint32_t group = 0; group < schedule->group_count; group++) {
        const struct tdm_group *g = &schedule->groups[group];
        mix(mark, 2u * (chunk >= g->kept_from_chunk) + (chunk >= g->held_from_chunk));
        mix(mark, chunk >= tdm_held_near_from(g, program->chunk_count));
    }
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++) {
        if (sees_as_below(schedule->model, layer))
            continue;
        const uint32_t first = tdm_attend_first(program, layer, chunk);
        const uint32_t last = tdm_attend_last(program, layer, chunk);
        mix(mark, first == chunk);
        mix(mark, last == chunk);
        mix(mark, first == of->first_chunk ? TDM_NONE : chunk - first);
        mix(mark, last == of->last_chunk ? TDM_NONE : last - chunk);
    }
}

enum tdm_status tdm_ranks_alike(const struct tdm_program *program, uint32_t *stands,
                                struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    uint64_t *marks = calloc(program->ranks, sizeof(*marks));
    if (marks == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", program->ranks);
    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++) {
        const struct tdm_chunk *of = &program->chunks[chunk];
        mix(&marks[of->rank], of->round);
        mix(&marks[of->rank], of->tokens);
        mix_chunk(program, chunk, &marks[of->rank]);
    }
    for (uint32_t rank = 0; rank < program->ranks; rank++) {
        for (uint32_t unit = 0; unit < schedule->model->unit_count; unit++)
            mix(&marks[rank], tdm_rank_part(schedule, unit, rank).elements);
        for (stands[rank] = 0; marks[stands[rank]] != marks[rank];)
            stands[rank]++;
    }
    free(marks);
    return TDM_OK;
}

/* What a rank allocates in a round may depend on the chunks of all ranks, and on its own, whichever
 * of them that is. */
static uint64_t mark_round(const struct tdm_program *program, uint32_t first, uint32_t end)
{
    uint64_t mark = 0, own = 0;
    for (uint32_t chunk = first; chunk < end; chunk++) {
        mix_chunk(program, chunk, &mark);
        if (program->chunks[chunk].rank != program->rank)
            continue;
        mix_chunk(program, chunk, &own);
        mix(&own, 2u * tdm_sum_opens(program, chunk) + tdm_sum_closes(program, chunk));
    }
    mix(&mark, own);
    return mark;
}

enum tdm_status tdm_rounds_left_out(const struct tdm_program *program, bool *left_out,
                                    struct tdm_error *err)
{
    uint64_t *marks = calloc((size_t)program->chunk_count + 2, sizeof(*marks));
    if (marks == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", program->chunk_count);
    for (uint32_t first = 0, end; first < program->chunk_count; first = end) {
        end = tdm_round_end(program, first);
        const uint64_t mark = mark_round(program, first, end);
        for (uint32_t chunk = first; chunk < end; chunk++)
            marks[chunk] = mark;
    }
    for (uint32_t first = 0, end; first < program->chunk_count; first = end) {
        const struct tdm_chunk *of = &program->chunks[first];
        end = tdm_round_end(program, first);
        const bool inner = first > of->first_chunk && end <= of->last_chunk;
        for (uint32_t chunk = first; chunk < end; chunk++)
            left_out[chunk] = inner && marks[first] == marks[first - 1] &&
                              marks[first] == marks[end] && !tdm_ranks_ring(program);
    }
    free(marks);
    return TDM_OK;
}

/* Adds (query, key) pairs of every rank's chunks in a layer, and keeps the most of any layer. */
static void pairs_of_layer(const struct tdm_program *program, uint32_t layer,
                           double most[TDM_MAX_RANKS])
{
    double pairs[TDM_MAX_RANKS] = {0};
    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
        pairs[program->chunks[chunk].rank] += (double)tdm_attend_pairs(program, layer, chunk);
    for (uint32_t rank = 0; rank < program->ranks; rank++)
        most[rank] = pairs[rank] > most[rank] ? pairs[rank] : most[rank];
}

uint32_t tdm_ranks_simulated(const struct tdm_program *program, uint32_t ranks[TDM_SIMULATED_RANKS])
{
    const struct tdm_model *model = program->schedule->model;
    double pairs[TDM_MAX_RANKS] = {0};
    uint32_t most = 0, least = 0, count = 0;
    for (uint32_t rank = 0; rank < program->ranks && program->ranks <= TDM_SIMULATED_RANKS; rank++)
        ranks[count++] = rank;
    if (count > 0)
        return count;
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        if (sees_as_below(model, layer))
            continue;
        pairs_of_layer(program, layer, pairs);
        if (model->layer_kinds[layer].window == 0)
            break; /* no layer sees more */
    }
    for (uint32_t rank = 1; rank < program->ranks; rank++) {
        most = pairs[rank] > pairs[most] ? rank : most;
        least = pairs[rank] < pairs[least] ? rank : least;
    }
    const uint32_t low = most < least ? most : least, high = most < least ? least : most;
    ranks[count++] = 0;
    if (low != 0)
        ranks[count++] = low;
    if (high != low)
        ranks[count++] = high;
    return count;
}
