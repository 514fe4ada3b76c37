/* SPDX-License-Identifier: Apache-2.0 */
/* Who attends to whom. */
#include "schedule/attend.h"

#include "base/size.h"

/* Tokens that a token of a layer can see at most. */
static uint64_t window_of(const struct tdm_schedule *schedule, uint32_t layer)
{
    uint64_t window = schedule->model->layer_kinds[layer].window;
    return window > 0 ? window : TDM_SIZE_MAX;
}

uint64_t tdm_attend_first_token(const struct tdm_schedule *schedule, uint32_t layer,
                                uint32_t sequence, uint64_t token)
{
    const struct tdm_sequence *s = &schedule->sequences[sequence];
    uint64_t start = tdm_document_start(s, tdm_document_of(s, token));
    uint64_t window = window_of(schedule, layer);
    return token - start < window ? start : token - window + 1;
}

uint32_t tdm_attend_first(const struct tdm_program *program, uint32_t layer, uint32_t number)
{
    const struct tdm_chunk *chunk = &program->chunks[number];
    uint64_t token =
        tdm_attend_first_token(program->schedule, layer, chunk->sequence, chunk->first_token);
    return chunk->first_chunk + (uint32_t)(token / program->schedule->chunk_tokens);
}

uint32_t tdm_attend_shared(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    if (chunk == program->chunks[chunk].last_chunk)
        return chunk + 1;
    return tdm_attend_first(program, layer, chunk + 1);
}

void tdm_attend_seen(const struct tdm_program *program, uint32_t layer, uint32_t *before)
{
    before[0] = 0;
    for (uint32_t i = 0; i < program->chunk_count; i++)
        before[i + 1] = before[i] + (tdm_attend_shared(program, layer, i) <= i);
}

/* Pairs of the queries at positions [first, first + tokens) of a document. */
static uint64_t document_pairs(uint64_t first, uint64_t tokens, uint64_t window)
{
    uint64_t growing = first >= window ? 0 : window - first; /* queries that see all before them */
    if (growing > tokens)
        growing = tokens;
    uint64_t pairs = tdm_size_add(tdm_size_mul(growing, first),
                                  tdm_size_mul(growing, tdm_size_add(growing, 1)) / 2);
    return tdm_size_add(pairs, tdm_size_mul(tokens - growing, window));
}

uint64_t tdm_attend_pairs(const struct tdm_program *program, uint32_t layer, uint32_t number)
{
    const struct tdm_chunk *chunk = &program->chunks[number];
    const struct tdm_sequence *sequence = &program->schedule->sequences[chunk->sequence];
    uint64_t window = window_of(program->schedule, layer);
    uint64_t token = chunk->first_token, end = token + chunk->tokens, pairs = 0;
    for (uint32_t document = tdm_document_of(sequence, token); token < end; document++) {
        uint64_t stop = tdm_document_end(sequence, document);
        stop = stop < end ? stop : end;
        uint64_t position = token - tdm_document_start(sequence, document);
        pairs = tdm_size_add(pairs, document_pairs(position, stop - token, window));
        token = stop;
    }
    return pairs;
}

/* Pairs of all sequences in a layer. */
static double layer_pairs(const struct tdm_schedule *schedule, uint64_t window)
{
    double pairs = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        const struct tdm_sequence *sequence = &schedule->sequences[s];
        for (uint32_t d = 0; d < sequence->document_count; d++) {
            uint64_t tokens = tdm_document_end(sequence, d) - tdm_document_start(sequence, d);
            uint64_t growing = tokens < window ? tokens : window;
            pairs += (double)growing * ((double)growing + 1) / 2 +
                     (double)(tokens - growing) * (double)window;
        }
    }
    return pairs;
}

double tdm_attend_step_pairs(const struct tdm_schedule *schedule)
{
    double pairs = 0, last = 0;
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++) {
        uint64_t window = window_of(schedule, layer);
        if (layer == 0 || window != window_of(schedule, layer - 1))
            last = layer_pairs(schedule, window);
        pairs += last;
    }
    return pairs;
}
