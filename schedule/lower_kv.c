/* SPDX-License-Identifier: Apache-2.0 */
/*
 * K and V of a layer, and their gradients: where a body reads and writes them.
 *
 * In layer-major order a sweep has its own row on the device, with as many slots as windows require
 * (kv_row.h). If a layer's K and V outlive a sweep, they are in a row with a slot for every chunk.
 * In chunk-major order every layer has a row. A row whose home is the host is staged through a few
 * rows on the device, which layers share in turn: a body fetches what its chunk sees, and sends
 * home what it made or added to. If attention itself gathers its pages from the host (gather.h),
 * only the K and V that a body makes, and the complete sums of its own chunk, pass through these
 * rows, which have a slot for one chunk.
 */
#include "ops/move.h"
#include "schedule/attend.h"
#include "schedule/gather.h"
#include "schedule/kv_row.h"
#include "schedule/lower_parts.h"

static bool gathers(const struct tdm_lowering *l, uint32_t layer)
{
    return tdm_gathers(l->schedule, layer);
}

enum tdm_kv_step tdm_low_kv_step(const struct tdm_lowering *l, const struct tdm_body *body)
{
    const struct tdm_layout *layout = l->layout;
    bool rerun = body->pass == TDM_PASS_RERUN;
    bool asked = !rerun || !tdm_low_is_there(l, body, TDM_STORE_ATTENTION);
    if (tdm_ranks_gather(l->program) &&
        body->kind == TDM_BODY_FORWARD) /* bodies before it gathered them */
        return TDM_KV_THERE;
    if (body->pass == TDM_PASS_FIRST)
        return TDM_KV_MAKE;
    if (gathers(l, body->layer))
        return TDM_KV_THERE;
    if (layout->host_kv[body->layer] != TDM_NONE)
        return asked ? TDM_KV_FETCH : TDM_KV_THERE;
    if (layout->own_kv[body->layer] == TDM_NONE)
        return asked ? TDM_KV_MAKE : TDM_KV_THERE;
    bool held = l->schedule->groups[body->group].kv == TDM_KV_RECOMPUTE;
    return held && rerun ? TDM_KV_MAKE : TDM_KV_THERE;
}

uint32_t tdm_low_kv_row(const struct tdm_lowering *l, uint32_t layer, enum tdm_pass pass)
{
    uint32_t own = l->layout->own_kv[layer];
    bool kept = l->schedule->groups[l->layout->group_of[layer]].kv == TDM_KV_KEEP;
    return own != TDM_NONE && (kept || pass != TDM_PASS_FIRST) ? own : l->layout->kv[layer];
}

static bool is_falling(const struct tdm_body *body)
{
    return body->pass == TDM_PASS_BACKWARD;
}

/* Has a row fewer slots than there are chunks? */
static bool is_ring(const struct tdm_lowering *l, uint32_t row)
{
    return l->program->buffers[row].axis == TDM_AXIS_RING;
}

/* In the backward: the chunk whose backward runs now or next. What it sees enters before it. */
static uint32_t reader_of(const struct tdm_lowering *l, const struct tdm_body *body)
{
    return body->kind == TDM_BODY_KV ? tdm_attend_last(l->program, body->layer, body->chunk)
                                     : body->chunk;
}

struct tdm_ref tdm_low_kv_ref(const struct tdm_lowering *l, const struct tdm_body *body,
                              uint32_t row, uint32_t chunk)
{
    uint32_t entered = body->chunk;
    if (tdm_ranks_ring(l->program)) { /* own chunks, or its set's: of the step, or in shared rows */
        const struct tdm_chunk *of = &l->program->chunks[chunk];
        const bool own = row == l->layout->own_kv[body->layer];
        return (struct tdm_ref){row, own ? of->set_slot
                                         : tdm_set_slot(l->program, chunk, of->first_chunk)};
    }
    if (!is_ring(l, row))
        return (struct tdm_ref){row, chunk};
    if (is_falling(body))
        entered = tdm_attend_first(l->program, body->layer, reader_of(l, body));
    return (struct tdm_ref){
        row, tdm_kv_slot(l->program, l->layout->kv_span, is_falling(body), entered, chunk)};
}

struct tdm_ref tdm_low_made_kv(const struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t row = tdm_low_kv_row(l, body->layer, body->pass);
    if (tdm_ranks_divide_heads(l->program))
        return tdm_low_own_kv(l, body);
    return gathers(l, body->layer) ? (struct tdm_ref){row, 0}
                                   : tdm_low_kv_ref(l, body, row, body->chunk);
}

uint32_t tdm_low_seen_kv(const struct tdm_lowering *l, const struct tdm_body *body)
{
    return gathers(l, body->layer) ? l->layout->host_kv[body->layer]
                                   : tdm_low_kv_row(l, body->layer, body->pass);
}

/* Are a layer's sums at home on the host, and does attention add to them there? */
static bool sums_at_home(const struct tdm_lowering *l, uint32_t layer)
{
    return gathers(l, layer) && l->layout->far_slot[layer] != NULL;
}

uint32_t tdm_low_seen_dkv(const struct tdm_lowering *l, uint32_t layer)
{
    return sums_at_home(l, layer) ? l->layout->host_dkv[layer] : l->layout->dkv[layer];
}

struct tdm_ref tdm_low_finished_dkv(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    struct tdm_ref sums = {l->layout->dkv[layer], 0};
    if (tdm_ranks_divide_heads(l->program))
        return tdm_low_work(l, TDM_OWN_DKVPAGES);
    if (!sums_at_home(l, layer))
        return tdm_low_kv_ref(l, body, sums.buffer, chunk);
    tdm_low_copy(l, body, (struct tdm_ref){l->layout->host_dkv[layer], chunk}, sums,
                 tdm_low_sum_tag(TDM_DKVPAGES, layer, chunk, chunk));
    return sums;
}

void tdm_low_chunks(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                    uint32_t row, uint32_t first, uint32_t end, enum tdm_mode mode,
                    struct tdm_tag before, struct tdm_tag after)
{
    if (first == end || l->lives_only)
        return;
    before.chunk = after.chunk = first;
    tdm_low_access(l, operand, tdm_low_kv_ref(l, body, row, first), end - first, mode, 0, before,
                   after, tdm_chunks_bytes(l->program, after.content, first, end));
}

/* Copies chunks [first, end). `from` and `to` are the slots of `first`. */
static void copy_chunks(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref from,
                        struct tdm_ref to, uint32_t first, uint32_t end, struct tdm_tag what)
{
    if (first == end)
        return;
    if (l->lives_only) {
        tdm_low_route(l, from.buffer, to.buffer); /* refuses a move without a link */
        return;
    }
    struct tdm_body of_first = *body;
    of_first.chunk = what.chunk = first;
    uint64_t bytes = tdm_chunks_bytes(l->program, what.content, first, end);
    tdm_low_op_begin(l, &of_first, TDM_OP_COPY, 0);
    tdm_low_route(l, from.buffer, to.buffer);
    for (uint32_t chunk = first + 1; chunk < end; chunk++)
        l->op.tokens += l->program->chunks[chunk].tokens;
    tdm_low_access(l, TDM_COPY_FROM, from, end - first, TDM_READ, 0, what, what, bytes);
    tdm_low_access(l, TDM_COPY_TO, to, end - first, TDM_WRITE, 0,
                   tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE), what, bytes);
    tdm_low_op_end(l);
}

/* Before chunks enter a row that `reader` is the first to see: if the row is full, moves the other
 * chunks that `reader` sees. */
static void move_if_full(struct tdm_lowering *l, const struct tdm_body *body, uint32_t row,
                         uint32_t reader, struct tdm_tag what)
{
    struct tdm_kv_move move;
    if (tdm_kv_moves(l->program, l->layout->kv_span, is_falling(body), body->layer, reader, &move))
        copy_chunks(l, body, (struct tdm_ref){row, move.from}, (struct tdm_ref){row, move.to},
                    move.first, move.end, what);
}

static void kv_move_if_full(struct tdm_lowering *l, const struct tdm_body *body, uint32_t row)
{
    if (!is_ring(l, row))
        return;
    uint32_t reader = is_falling(body) ? reader_of(l, body) : body->chunk;
    /* in the backward, before the first of those that enter together */
    if (!is_falling(body) || tdm_attend_first(l->program, body->layer, reader) == body->chunk)
        move_if_full(l, body, row, reader, tdm_low_tag(TDM_KVPAGES, body->layer, TDM_NONE));
}

void tdm_low_kv_enter(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref made)
{
    kv_move_if_full(l, body, made.buffer);
}

/* K and V of a chunk on the host, which keeps those of the rank's chunks. */
static struct tdm_ref at_home(const struct tdm_lowering *l, uint32_t host, uint32_t chunk)
{
    return (struct tdm_ref){host, l->program->chunks[chunk].slot};
}

/* What a body makes: pages of all KV heads, which are what attention reads unless ranks divide the
 * heads. */
static enum tdm_content made_content(const struct tdm_lowering *l)
{
    return tdm_ranks_divide_heads(l->program) ? TDM_OWN_KVPAGES : TDM_KVPAGES;
}

void tdm_low_kv_send(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref made)
{
    uint32_t host = l->layout->host_kv[body->layer];
    if (body->pass == TDM_PASS_FIRST && host != TDM_NONE)
        copy_chunks(l, body, made, at_home(l, host, body->chunk), body->chunk, body->chunk + 1,
                    tdm_low_tag(made_content(l), body->layer, body->chunk));
}

void tdm_low_dkv_move_if_full(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t row = l->layout->dkv[body->layer];
    if (is_ring(l, row))
        move_if_full(l, body, row, body->chunk,
                     tdm_low_sum_tag(TDM_DKVPAGES, body->layer, TDM_NONE,
                                     tdm_sum_before(l->program, body->chunk)));
}

void tdm_low_kv_fetch(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    enum tdm_kv_step step = tdm_low_kv_step(l, body);
    uint32_t host = l->layout->host_kv[layer], row = tdm_low_kv_row(l, layer, body->pass);
    uint32_t first = chunk, end = step == TDM_KV_FETCH ? chunk + 1 : chunk;
    if (host == TDM_NONE || step == TDM_KV_THERE || gathers(l, layer))
        return;
    /* a sweep fills its row chunk by chunk; a body that only makes K, V sees no earlier chunks */
    if (!tdm_low_layer_major(l) && body->kind != TDM_BODY_KV)
        first = tdm_attend_first(l->program, layer, chunk);
    if (step == TDM_KV_FETCH)
        kv_move_if_full(l, body, row);
    struct tdm_ref to = tdm_low_kv_ref(l, body, row, first);
    if (tdm_ranks_divide_heads(l->program))
        to = tdm_low_own_kv(l, body);
    copy_chunks(l, body, at_home(l, host, first), to, first, end,
                tdm_low_tag(made_content(l), layer, TDM_NONE));
}

/* The slots of the host's sums, from a chunk on. */
static struct tdm_ref far_gradients(const struct tdm_lowering *l, uint32_t layer, uint32_t chunk)
{
    return (struct tdm_ref){l->layout->host_dkv[layer], l->layout->far_slot[layer][chunk]};
}

void tdm_low_dkv_fetch(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    uint32_t shared = tdm_attend_shared(l->program, layer, chunk);
    if (l->layout->far_slot[layer] != NULL && !gathers(l, layer))
        copy_chunks(
            l, body, far_gradients(l, layer, shared),
            (struct tdm_ref){l->layout->dkv[layer], shared}, shared, chunk + 1,
            tdm_low_sum_tag(TDM_DKVPAGES, layer, TDM_NONE, tdm_sum_before(l->program, chunk)));
}

void tdm_low_dkv_send(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    uint32_t first = tdm_attend_first(l->program, layer, chunk);
    if (l->layout->far_slot[layer] != NULL && !gathers(l, layer))
        copy_chunks(l, body, (struct tdm_ref){l->layout->dkv[layer], first},
                    far_gradients(l, layer, first), first, chunk,
                    tdm_low_sum_tag(TDM_DKVPAGES, layer, TDM_NONE, chunk));
}
