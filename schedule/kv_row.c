/* SPDX-License-Identifier: Apache-2.0 */
/* The row of K and V of the current layer: its slots, and the slot of a chunk. */
#include "schedule/kv_row.h"

#include "schedule/attend.h"

static uint32_t longest_sequence(const struct tdm_program *program)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < program->chunk_count; i = program->chunks[i].last_chunk + 1) {
        uint32_t chunks = program->chunks[i].last_chunk - i + 1;
        longest = chunks > longest ? chunks : longest;
    }
    return longest;
}

/* Maximum number of chunks that a chunk of a layer sees. */
static uint32_t span_of(const struct tdm_program *program, uint32_t layer)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < program->chunk_count; i++) {
        uint32_t seen = i + 1 - tdm_attend_first(program, layer, i);
        most = seen > most ? seen : most;
    }
    return most;
}

uint32_t tdm_kv_span(const struct tdm_program *program)
{
    const struct tdm_model *model = program->schedule->model;
    uint32_t longest = longest_sequence(program), most = 0;
    if (program->ranks > 1) /* chunks of other ranks enter in rounds, not one by one */
        return longest;
    for (uint32_t layer = 0; layer < model->layers && 2 * most < longest; layer++) {
        if (layer > 0 && model->layer_kinds[layer].window == model->layer_kinds[layer - 1].window)
            continue;
        uint32_t span = span_of(program, layer);
        most = span > most ? span : most;
    }
    return 2 * most < longest ? most : longest;
}

uint32_t tdm_kv_slots(const struct tdm_program *program, uint32_t span)
{
    uint32_t longest = longest_sequence(program);
    return span < longest ? 2 * span : longest;
}

bool tdm_kv_row_is_whole(const struct tdm_program *program)
{
    return program->schedule->order == TDM_LAYER_MAJOR && program->ranks == 1 &&
           program->schedule->pass == TDM_TRAIN &&
           longest_sequence(program) == program->chunk_count &&
           tdm_kv_span(program) == program->chunk_count;
}

/* The chunk in the first slot of a row of twice the span, after chunk `entered` has entered. Chunks
 * are numbered from 0 in order of entry. When the row is full, all but the last span - 1 leave. */
static uint32_t first_in_row(uint32_t span, uint32_t entered)
{
    return entered < span ? 0 : (entered + 1 - span) / (span + 1) * (span + 1);
}

uint32_t tdm_kv_slot(const struct tdm_program *program, uint32_t span, bool falling,
                     uint32_t entered, uint32_t chunk)
{
    const struct tdm_chunk *of = &program->chunks[chunk];
    uint32_t before = chunk - of->first_chunk, after = of->last_chunk - chunk;
    if (of->last_chunk - of->first_chunk < 2 * span)
        return before;
    if (!falling)
        return before - first_in_row(span, entered - of->first_chunk);
    return 2 * span - 1 - (after - first_in_row(span, of->last_chunk - entered));
}

bool tdm_kv_moves(const struct tdm_program *program, uint32_t span, bool falling, uint32_t layer,
                  uint32_t reader, struct tdm_kv_move *move)
{
    uint32_t first = tdm_attend_first(program, layer, reader), entered = reader, last = reader - 1;
    move->first = first;
    move->end = reader;
    if (falling) {
        move->first = last = tdm_attend_shared(program, layer, reader);
        move->end = reader + 1;
        entered = first;
    }
    if (move->first >= move->end)
        return false;
    move->from = tdm_kv_slot(program, span, falling, last, move->first);
    move->to = tdm_kv_slot(program, span, falling, entered, move->first);
    return move->from != move->to;
}
