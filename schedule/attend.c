/* SPDX-License-Identifier: Apache-2.0 */
/* Who attends to whom. */
#include "schedule/attend.h"

#include "base/size.h"

uint64_t tdm_attend_first_token(const struct tdm_schedule *schedule, uint32_t sequence,
                                uint64_t token)
{
    const struct tdm_sequence *s = &schedule->sequences[sequence];
    return tdm_document_start(s, tdm_document_of(s, token));
}

uint32_t tdm_attend_first(const struct tdm_program *program, uint32_t number)
{
    const struct tdm_chunk *chunk = &program->chunks[number];
    uint64_t token = tdm_attend_first_token(program->schedule, chunk->sequence, chunk->first_token);
    return chunk->first_chunk + (uint32_t)(token / program->schedule->chunk_tokens);
}

uint32_t tdm_attend_shared(const struct tdm_program *program, uint32_t chunk)
{
    if (chunk == program->chunks[chunk].last_chunk)
        return chunk + 1;
    return tdm_attend_first(program, chunk + 1);
}

/* Pairs of the queries at positions [first, first + tokens) of a document. */
static uint64_t document_pairs(uint64_t first, uint64_t tokens)
{
    return tdm_size_add(tdm_size_mul(tokens, first),
                        tdm_size_mul(tokens, tdm_size_add(tokens, 1)) / 2);
}

uint64_t tdm_attend_pairs(const struct tdm_program *program, uint32_t number)
{
    const struct tdm_chunk *chunk = &program->chunks[number];
    const struct tdm_sequence *sequence = &program->schedule->sequences[chunk->sequence];
    uint64_t token = chunk->first_token, end = token + chunk->tokens, pairs = 0;
    for (uint32_t document = tdm_document_of(sequence, token); token < end; document++) {
        uint64_t stop = tdm_document_end(sequence, document);
        stop = stop < end ? stop : end;
        pairs = tdm_size_add(
            pairs, document_pairs(token - tdm_document_start(sequence, document), stop - token));
        token = stop;
    }
    return pairs;
}

double tdm_attend_step_pairs(const struct tdm_schedule *schedule)
{
    double pairs = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        const struct tdm_sequence *sequence = &schedule->sequences[s];
        for (uint32_t d = 0; d < sequence->document_count; d++) {
            double tokens =
                (double)(tdm_document_end(sequence, d) - tdm_document_start(sequence, d));
            pairs += tokens * (tokens + 1) / 2;
        }
    }
    return pairs;
}
