/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of a step: their classes by length, and the seconds of their attention and of moves in
 * rows. */
#include "planner/estimate_parts.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/move.h"
#include "ops/select.h"
#include "schedule/attend.h"
#include "schedule/cost.h"
#include "schedule/gather.h"
#include "schedule/ranks.h"
#include "schedule/kv_row.h"
#include "schedule/layout.h"
#include "schedule/program.h"

#include <stdlib.h>
#include <string.h>

/* ---- seconds of ops ---- */

/* Seconds with K and V on the device. estimate_seconds.c adds those to gather them from the
 * host. */
static double op_seconds(const struct tdm_program *chunks, struct tdm_op *op)
{
    tdm_op_cost(chunks, op);
    op->fetched_bytes = op->sent_bytes = 0;
    return tdm_op_seconds(chunks->schedule->machine, op);
}

/* Seconds to make the page lists of a chunk, with its page means if pages are chosen by vote. */
static double select_seconds(const struct tdm_program *chunks, uint32_t layer, uint32_t number)
{
    struct tdm_page_rule rule = tdm_schedule_page_rule(chunks->schedule, layer);
    struct tdm_op select = {.kind = TDM_OP_SELECT,
                            .layer = layer,
                            .chunk = number,
                            .tokens = chunks->chunks[number].tokens};
    struct tdm_op means = select;
    means.kind = TDM_OP_PAGE_MEANS;
    means.access_count = 1;
    means.access[TDM_PAGE_MEANS_PAGES].bytes =
        tdm_chunks_bytes(chunks, TDM_KVPAGES, number, number + 1);
    if (!tdm_selector_lists(rule.selector.kind))
        return 0;
    double seconds = op_seconds(chunks, &select);
    return rule.selector.kind == TDM_SELECT_TOP_K ? seconds + op_seconds(chunks, &means) : seconds;
}

/* Attention of one chunk, with no other op on its lane. The ops are those of lowering, but without
 * lists. */
static double attention_seconds(const struct tdm_program *chunks, uint32_t layer, uint32_t number,
                                bool gradient)
{
    uint32_t next = number + 1;
    uint32_t first = tdm_attend_first(chunks, layer, number),
             shared = tdm_attend_shared(chunks, layer, number);
    const struct {
        enum tdm_content content;
        uint32_t first, end; /* chunks */
        enum tdm_mode mode;
    } operands[] = {[TDM_ATTENTION_Q] = {TDM_Q, number, next, TDM_READ},
                    [TDM_ATTENTION_KV] = {TDM_KVPAGES, first, next, TDM_READ},
                    [TDM_ATTENTION_O] = {TDM_ATTENTION_OUT, number, next, TDM_WRITE},
                    [TDM_ATTENTION_GRAD_DO] = {TDM_DATTENTION, number, next, TDM_READ},
                    [TDM_ATTENTION_GRAD_DQ] = {TDM_DQ, number, next, TDM_WRITE},
                    [TDM_ATTENTION_GRAD_DKV_OPENED] = {TDM_DKVPAGES, first, shared, TDM_WRITE},
                    [TDM_ATTENTION_GRAD_DKV_ADDED] = {TDM_DKVPAGES, shared, next, TDM_ACCUMULATE}};
    struct tdm_op op = {.kind = gradient ? TDM_OP_ATTENTION_GRAD : TDM_OP_ATTENTION,
                        .layer = layer,
                        .chunk = number,
                        .tokens = chunks->chunks[number].tokens,
                        .access_count = gradient ? TDM_ATTENTION_GRAD_LISTS : TDM_ATTENTION_LISTS};
    for (uint32_t i = 0; i < op.access_count; i++) {
        op.access[i].mode = operands[i].mode;
        op.access[i].bytes =
            tdm_chunks_bytes(chunks, operands[i].content, operands[i].first, operands[i].end);
    }
    return op_seconds(chunks, &op);
}

/* Seconds of the copy that frees slots in a row before `reader` enters; 0 without a copy. */
static double move_seconds(const struct tdm_program *chunks, uint32_t span, bool falling,
                           uint32_t layer, uint32_t reader, enum tdm_content content)
{
    struct tdm_kv_move move;
    struct tdm_op op = {
        .kind = TDM_OP_COPY, .link = TDM_NO_LINK, .access_count = TDM_COPY_OPERANDS};
    if (!tdm_kv_moves(chunks, span, falling, layer, reader, &move))
        return 0;
    op.access[TDM_COPY_FROM].bytes = op.access[TDM_COPY_TO].bytes =
        tdm_chunks_bytes(chunks, content, move.first, move.end);
    return op_seconds(chunks, &op);
}

/* Moves in the rows of a layer. Rows with a slot for every chunk need none. */
static struct row_moves row_moves(const struct tdm_program *chunks, uint32_t span, uint32_t layer)
{
    uint32_t n = chunks->chunk_count;
    struct row_moves moves = {.apart = tdm_attend_first(chunks, layer, n - 1) == 0};
    for (uint32_t i = 0; i < n && tdm_kv_slots(chunks, span) < n; i++) {
        moves.rising += move_seconds(chunks, span, false, layer, i, TDM_KVPAGES);
        moves.falling += move_seconds(chunks, span, true, layer, i, TDM_KVPAGES);
        moves.gradients += move_seconds(chunks, span, true, layer, i, TDM_DKVPAGES);
    }
    return moves;
}

/* ---- kinds of layers ---- */

/* The lowest layer of a kind. */
static uint32_t first_of_kind(const struct tdm_estimator *e, uint32_t kind)
{
    uint32_t layer = 0;
    while (e->kind_of[layer] != kind)
        layer++;
    return layer;
}

static void find_kinds(struct tdm_estimator *e)
{
    const struct tdm_layer_kind *kinds = e->base->model->layer_kinds;
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        uint32_t like = 0;
        while (kinds[like].window != kinds[layer].window)
            like++;
        e->kind_of[layer] = like < layer ? e->kind_of[like] : e->kinds++;
    }
}

/* Expected pages that a chunk's attention gathers from the host; 0 if it does not gather. */
static double moved_pages(const struct tdm_program *chunks, uint32_t layer, uint32_t chunk)
{
    const struct tdm_schedule *schedule = chunks->schedule;
    struct tdm_page_rule rule = tdm_schedule_page_rule(schedule, layer);
    if (!tdm_gather_is_set(schedule) || !tdm_selector_lists(rule.selector.kind))
        return 0;
    uint64_t before = chunk - tdm_attend_first(chunks, layer, chunk);
    return tdm_gather_moved_pages(
        schedule, before * tdm_pages_of_chunk(&rule),
        tdm_size_ceil_div(chunks->chunks[chunk].tokens, schedule->page_tokens));
}

/* Adds the seconds of a chunk's attention in a kind of layers. Lists are made once per step; a step
 * that trains counts them in the backward. */
static void time_chunk(struct tdm_estimator *e, const struct tdm_program *chunks, uint32_t kind,
                       uint32_t layer, uint32_t chunk)
{
    const double seconds = attention_seconds(chunks, layer, chunk, false);
    const double lists = select_seconds(chunks, layer, chunk);
    double *before =
        &e->attention_before[kind * ((size_t)e->chunks + 1) + chunks->chunks[chunk].place];
    before[1] = before[0] + seconds;
    e->attention_grad_seconds[kind] += attention_seconds(chunks, layer, chunk, true);
    if (e->base->pass == TDM_TRAIN)
        e->attention_grad_seconds[kind] += lists;
    else
        before[1] += lists;
}

/* Seconds of attention and of moves of all chunks, for each kind of layer. */
static enum tdm_status time_attention(struct tdm_estimator *e, const struct tdm_program *chunks,
                                      struct tdm_error *err)
{
    size_t row = (size_t)e->chunks + 1;
    e->kind_of = calloc((size_t)e->layers + 1, sizeof(*e->kind_of));
    if (e->kind_of != NULL)
        find_kinds(e);
    e->attention_before = calloc(e->kinds * row + 1, sizeof(*e->attention_before));
    e->attention_grad_seconds = calloc((size_t)e->kinds + 1, sizeof(*e->attention_grad_seconds));
    e->seen_chunks = calloc((size_t)e->kinds + 1, sizeof(*e->seen_chunks));
    e->gathered_before = calloc(e->kinds * row + 1, sizeof(*e->gathered_before));
    e->moves = calloc((size_t)e->kinds + 1, sizeof(*e->moves));
    if (e->kind_of == NULL || e->attention_before == NULL || e->attention_grad_seconds == NULL ||
        e->seen_chunks == NULL || e->gathered_before == NULL || e->moves == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", e->chunks);
    const struct tdm_schedule *base = e->base;
    double page = (double)tdm_content_bytes(base, TDM_KVPAGES, 0, base->page_tokens);
    double sum_page = (double)tdm_content_bytes(base, TDM_DKVPAGES, 0, base->page_tokens);
    uint32_t span = tdm_kv_span(chunks);
    e->row_slots = tdm_kv_slots(chunks, span);
    for (uint32_t kind = 0; kind < e->kinds; kind++) {
        uint32_t layer = first_of_kind(e, kind);
        if (!e->untimed)
            e->moves[kind] = row_moves(chunks, span, layer);
        for (uint32_t place = 0; place < e->chunks; place++) {
            const uint32_t i = e->chunk_at[place];
            if (!e->untimed)
                time_chunk(e, chunks, kind, layer, i);
            e->seen_chunks[kind] += i + 1 - tdm_attend_first(chunks, layer, i);
            double pages = moved_pages(chunks, layer, i);
            struct gathered *gathered = e->gathered_before + kind * row + place;
            gathered[1].kv = gathered->kv + (uint64_t)(pages * page);
            gathered[1].sums = gathered->sums + (uint64_t)(pages * sum_page);
        }
    }
    return TDM_OK;
}

/* ---- classes of chunks ---- */

/* The class of a length, added if it is new. */
static uint32_t class_of(uint64_t *lengths, uint32_t *classes, uint64_t tokens)
{
    uint32_t c = 0;
    while (c < *classes && lengths[c] != tokens)
        c++;
    if (c == *classes)
        lengths[(*classes)++] = tokens;
    return c;
}

uint64_t tdm_estimator_chunks_of(const struct tdm_schedule *schedule, uint32_t sequence)
{
    return tdm_size_ceil_div(schedule->sequences[sequence].tokens, schedule->chunk_tokens);
}

enum tdm_status tdm_estimator_walk_chunks(struct tdm_estimator *e, uint64_t *lengths,
                                          uint32_t **class_list, struct tdm_error *err)
{
    const struct tdm_schedule *base = e->base;
    struct tdm_chunk chunk = {0};
    struct tdm_program program = {.chunk_count = e->chunks, .ranks = 1};
    uint32_t *list = calloc((size_t)e->chunks + 1, sizeof(*list));
    struct tdm_chunk *chunks = calloc((size_t)e->chunks + 1, sizeof(*chunks));
    e->chunk_list = chunks;
    e->chunk_at = calloc((size_t)e->chunks + 1, sizeof(*e->chunk_at));
    if (list == NULL || chunks == NULL || e->chunk_at == NULL) {
        free(list);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", e->chunks);
    }

    tdm_program_set_schedule(&program, base);
    program.chunks = chunks;
    uint32_t number = 0;
    for (uint32_t s = 0; s < base->sequence_count; s++) {
        uint64_t left = base->sequences[s].tokens;
        chunk.sequence = s;
        chunk.first_chunk = number;
        chunk.last_chunk = number + (uint32_t)tdm_estimator_chunks_of(base, s) - 1;
        for (chunk.first_token = 0; left > 0; number++) {
            chunk.tokens = smaller(left, base->chunk_tokens);
            left -= chunk.tokens;
            chunks[number] = chunk;
            list[number] = class_of(lengths, &e->classes, chunk.tokens);
            chunk.first_token += chunk.tokens;
        }
    }
    tdm_chunks_place(chunks, e->chunks, base);
    for (uint32_t i = 0; i < e->chunks; i++)
        e->chunk_at[chunks[i].place] = i;
    for (uint32_t place = 0; place < e->chunks; place++)
        e->tokens_before[place + 1] =
            e->tokens_before[place] +
            (double)chunks[e->chunk_at[place]].tokens / (double)e->longest_tokens;
    tdm_ranks_deal(chunks, e->chunks, program.ranks, TDM_DEAL_SNAKE, NULL);
    enum tdm_status status = time_attention(e, &program, err);
    if (status != TDM_OK) {
        free(list);
        return status;
    }
    lengths[e->classes] = lengths[list[e->chunks - 1]];
    list[e->chunks - 1] = e->classes++;
    *class_list = list;
    return TDM_OK;
}

enum tdm_status tdm_estimator_count_classes(struct tdm_estimator *e, const uint32_t *class_list,
                                            struct tdm_error *err)
{
    size_t row = (size_t)e->chunks + 1;
    e->class_before = calloc(e->classes * row, sizeof(*e->class_before));
    e->costs = calloc((size_t)e->layers * e->classes, sizeof(*e->costs));
    if (e->class_before == NULL || e->costs == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", e->chunks);
    for (uint32_t c = 0; c < e->classes; c++)
        for (uint32_t i = 0; i < e->chunks; i++)
            e->class_before[c * row + i + 1] =
                e->class_before[c * row + i] + (class_list[e->chunk_at[i]] == c ? 1 : 0);
    return TDM_OK;
}

uint32_t tdm_estimator_count(const struct tdm_estimator *e, uint32_t c, uint32_t from, uint32_t to)
{
    const uint32_t *before = &e->class_before[(size_t)c * ((size_t)e->chunks + 1)];
    return before[to] - before[from];
}
