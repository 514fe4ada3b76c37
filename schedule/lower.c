/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: bodies of the loop nest become allocations, frees and operations.
 *
 * A body asks for what it needs (its input, an attention output) and gets it from where the schedule
 * put it, or recomputes it; it hands on what it made to where the schedule wants it. Fetches from
 * another place are emitted some bodies ahead: bodies wait in a short queue, a body's fetches are
 * emitted when it enters and its ops when it leaves.
 */
#include "base/size.h"
#include "schedule/cost.h"
#include "schedule/layout.h"
#include "schedule/lowering.h"
#include "schedule/nest.h"

#include <string.h>

#define MAX_QUEUE 32u

/* A slot of a buffer. */
struct ref {
    uint32_t buffer, slot;
};

static const struct ref nowhere = {TDM_NONE, 0};

/* A body in the queue, and where its fetches put what it will read. */
struct pending {
    struct tdm_body body;
    struct ref fetched_x, fetched_attention;
};

struct lowering {
    const struct tdm_program *program;
    const struct tdm_schedule *schedule;
    const struct tdm_model *model;
    const struct tdm_layout *layout;
    tdm_sink sink;
    void *self;
    struct tdm_error *err;
    enum tdm_status status; /* once it is not TDM_OK, nothing more is emitted */
    uint64_t op_count;
    struct tdm_op op; /* under construction */

    struct pending queue[MAX_QUEUE];
    uint32_t queue_first, queue_count, depth;
    uint32_t next_fetched_x, next_fetched_attention, next_stashed_x, next_stashed_attention;
};

/* ---- emitting ---- */

static void emit(struct lowering *l, const struct tdm_item *item)
{
    if (l->status == TDM_OK)
        l->status = l->sink(l->self, item, l->err);
}

static void alloc(struct lowering *l, uint32_t buffer)
{
    if (buffer != TDM_NONE)
        emit(l, &(struct tdm_item){.kind = TDM_ALLOC, .buffer = buffer});
}

static void release(struct lowering *l, uint32_t buffer)
{
    if (buffer != TDM_NONE)
        emit(l, &(struct tdm_item){.kind = TDM_FREE, .buffer = buffer});
}

static void op_begin(struct lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                     enum tdm_part part)
{
    memset(&l->op, 0, sizeof(l->op));
    l->op.kind = kind;
    l->op.part = part;
    l->op.phase = body->phase;
    l->op.lane = TDM_LANE_COMPUTE;
    l->op.layer = body->layer;
    l->op.chunk = body->chunk;
    if (body->chunk != TDM_NONE)
        l->op.tokens = l->program->chunks[body->chunk].tokens;
}

static void op_end(struct lowering *l)
{
    l->op.number = l->op_count++;
    tdm_op_cost(l->program, &l->op);
    emit(l, &(struct tdm_item){.kind = TDM_RUN, .op = &l->op});
}

static struct tdm_tag tag(enum tdm_content content, uint32_t layer, uint32_t chunk)
{
    return (struct tdm_tag){content, layer, chunk, TDM_NONE};
}

static struct tdm_tag sum_tag(enum tdm_content content, uint32_t layer, uint32_t chunk,
                              uint32_t contributor)
{
    return (struct tdm_tag){content, layer, chunk, contributor};
}

static void access(struct lowering *l, struct ref ref, uint32_t slots, enum tdm_mode mode,
                   uint32_t part, struct tdm_tag before, struct tdm_tag after, uint64_t bytes)
{
    l->op.access[l->op.access_count++] =
        (struct tdm_access){ref.buffer, ref.slot, slots, mode, part, before, after, bytes};
}

static void absent(struct lowering *l)
{
    l->op.access[l->op.access_count++] = (struct tdm_access){.buffer = TDM_NONE};
}

/* Operands of one slot that holds rows of the op's chunk. */
static uint64_t row_bytes(const struct lowering *l, enum tdm_content content)
{
    return tdm_content_bytes(l->schedule, content, 0, l->op.tokens);
}

static void reads(struct lowering *l, struct ref ref, struct tdm_tag what)
{
    access(l, ref, 1, TDM_READ, 0, what, what, row_bytes(l, what.content));
}

static void writes(struct lowering *l, struct ref ref, struct tdm_tag what)
{
    access(l, ref, 1, TDM_WRITE, 0, tag(TDM_EMPTY, TDM_NONE, TDM_NONE), what,
           row_bytes(l, what.content));
}

static void changes(struct lowering *l, struct ref ref, struct tdm_tag before,
                    struct tdm_tag after)
{
    access(l, ref, 1, TDM_ACCUMULATE, 0, before, after, row_bytes(l, after.content));
}

static struct ref work(const struct lowering *l, enum tdm_content content)
{
    return (struct ref){l->layout->work[content], 0};
}

static void alloc_work(struct lowering *l, enum tdm_content content)
{
    alloc(l, l->layout->work[content]);
}

static void release_work(struct lowering *l, enum tdm_content content)
{
    release(l, l->layout->work[content]);
}

/* ---- units: weights, gradients, moments ---- */

static struct ref unit_ref(const struct lowering *l, const uint32_t rows[TDM_UNIT_ROWS],
                           uint32_t unit)
{
    struct ref ref;
    ref.buffer = rows[tdm_unit_row_of(l->model, unit, &ref.slot)];
    return ref;
}

static void reads_weights(struct lowering *l, uint32_t unit, enum tdm_part part)
{
    struct tdm_tag what = tag(TDM_UNIT_WEIGHTS, unit, TDM_NONE);
    access(l, unit_ref(l, l->layout->weights, unit), 1, TDM_READ, part, what, what,
           tdm_part_bytes(l->model, unit, part, l->schedule->dtypes.weights));
}

static struct ref gradient_ref(const struct lowering *l, uint32_t unit)
{
    if (unit < l->model->layers)
        return (struct ref){l->layout->layer_gradient[unit], l->layout->layer_gradient_slot[unit]};
    if (unit == tdm_model_embedding_unit(l->model))
        return (struct ref){l->layout->embedding_gradient, 0};
    return (struct ref){l->layout->head_gradient, 0};
}

/* Adds the contribution `contributor` to a part's gradient; the first one (after `first + 1` there is
 * none) overwrites. */
static void adds_gradient(struct lowering *l, uint32_t unit, enum tdm_part part,
                          uint32_t contributor, uint32_t first)
{
    struct tdm_tag after = sum_tag(TDM_UNIT_GRADIENT, unit, TDM_NONE, contributor);
    struct tdm_tag before = after;
    before.contributor = contributor + 1;
    if (contributor == first)
        before = tag(TDM_EMPTY, TDM_NONE, TDM_NONE);
    access(l, gradient_ref(l, unit), 1, contributor == first ? TDM_WRITE : TDM_ACCUMULATE, part,
           before, after, tdm_part_bytes(l->model, unit, part, l->schedule->dtypes.gradients));
}

/* A layer's gradient over the chunks. */
static void adds_layer_gradient(struct lowering *l, enum tdm_part part)
{
    adds_gradient(l, l->op.layer, part, l->op.chunk, l->program->chunk_count - 1);
}

/* ---- moving between places ---- */

static void copy(struct lowering *l, const struct tdm_body *body, enum tdm_lane lane,
                 struct ref from, struct ref to, struct tdm_tag what)
{
    op_begin(l, body, TDM_OP_COPY, 0);
    l->op.lane = lane;
    l->op.layer = what.layer;
    reads(l, from, what);
    writes(l, to, what);
    op_end(l);
}

static bool on_host(const struct lowering *l, uint32_t buffer)
{
    return buffer != TDM_NONE && l->program->buffers[buffer].place == TDM_HOST;
}

static struct ref next_slot(const struct lowering *l, uint32_t ring, uint32_t *next)
{
    struct ref ref = {ring, *next};
    *next = (*next + 1) % l->program->buffers[ring].slots;
    return ref;
}

/* ---- where things are ---- */

static bool layer_major(const struct lowering *l)
{
    return l->schedule->order == TDM_LAYER_MAJOR;
}

static bool first_of_group(const struct lowering *l, uint32_t layer)
{
    return layer == 0 || l->layout->group_of[layer] != l->layout->group_of[layer - 1];
}

static bool top_of_group(const struct lowering *l, uint32_t layer)
{
    return layer + 1 == l->model->layers || first_of_group(l, layer + 1);
}

static struct ref stream_ref(const struct lowering *l, uint32_t chunk)
{
    return (struct ref){l->layout->stream, l->layout->stream_slots == 1 ? 0 : chunk};
}

static struct ref held_input_ref(const struct lowering *l, uint32_t layer, uint32_t chunk)
{
    return (struct ref){l->layout->held_input[layer], layer_major(l) ? chunk : 0};
}

/* Where the stored X of a body's layer is at home; nowhere if it is not stored: tokens, or on its way
 * through the forward. */
static struct ref stored_x(const struct lowering *l, const struct tdm_body *body)
{
    bool first = first_of_group(l, body->layer);
    if (body->layer == 0)
        return nowhere;
    if (body->pass != TDM_PASS_FIRST)
        return first ? (struct ref){l->layout->input[body->group], body->chunk}
                     : held_input_ref(l, body->layer, body->chunk);
    if (!first)
        return nowhere;
    struct ref input = {l->layout->input[body->group], body->chunk};
    /* in layer-major order the stream still has what was copied to the host */
    return layer_major(l) && on_host(l, input.buffer) ? nowhere : input;
}

/* Where the attention output of a body is at home, if it was kept or is held. */
static struct ref stored_attention(const struct lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    const struct tdm_group *group = &l->schedule->groups[body->group];
    if (tdm_attention_kept(l->program, layer, chunk))
        return (struct ref){l->layout->kept_attention[layer], chunk - group->kept_from_chunk};
    if (body->pass != TDM_PASS_FIRST && tdm_attention_held(l->program, layer, chunk))
        return (struct ref){l->layout->held_attention[layer],
                            layer_major(l) ? chunk - group->held_from_chunk : 0};
    return nowhere;
}

/* Is the attention output there before this body runs? */
static bool attention_is_there(const struct lowering *l, const struct tdm_body *body)
{
    if (body->pass == TDM_PASS_FIRST)
        return false;
    if (tdm_attention_kept(l->program, body->layer, body->chunk))
        return true;
    return body->kind == TDM_BODY_BACKWARD &&
           tdm_attention_held(l->program, body->layer, body->chunk);
}

/* ---- fetches ---- */

static bool has_layer_input(const struct tdm_body *body)
{
    return body->kind == TDM_BODY_FORWARD || body->kind == TDM_BODY_KV ||
           body->kind == TDM_BODY_BACKWARD;
}

/* Emits the copies of what a body will read from the host. */
static void fetch(struct lowering *l, struct pending *pending)
{
    const struct tdm_body *body = &pending->body;
    pending->fetched_x = pending->fetched_attention = nowhere;
    if (!has_layer_input(body))
        return;

    struct ref x = stored_x(l, body);
    if (on_host(l, x.buffer)) {
        pending->fetched_x = next_slot(l, l->layout->fetched_x, &l->next_fetched_x);
        copy(l, body, TDM_LANE_H2D, x, pending->fetched_x, tag(TDM_X, body->layer, body->chunk));
    }
    if (body->kind == TDM_BODY_KV || !attention_is_there(l, body))
        return;
    struct ref attention = stored_attention(l, body);
    if (on_host(l, attention.buffer)) {
        pending->fetched_attention =
            next_slot(l, l->layout->fetched_attention, &l->next_fetched_attention);
        copy(l, body, TDM_LANE_H2D, attention, pending->fetched_attention,
             tag(TDM_ATTENTION_OUT, body->layer, body->chunk));
    }
}

/* ---- the steps of a layer ---- */

static void embed(struct lowering *l, const struct tdm_body *body, struct ref to)
{
    op_begin(l, body, TDM_OP_EMBED, TDM_PART_EMBEDDING);
    reads(l, (struct ref){l->layout->tokens, body->chunk},
          tag(TDM_TOKENS, TDM_NONE, body->chunk));
    reads_weights(l, tdm_model_embedding_unit(l->model), TDM_PART_EMBEDDING);
    uint64_t rows = l->op.tokens * l->model->hidden * tdm_dtype_bytes(l->schedule->dtypes.weights);
    if (l->op.access[1].bytes > rows)
        l->op.access[1].bytes = rows; /* at most a row for each token */
    writes(l, to, tag(TDM_X, 0, body->chunk));
    op_end(l);
}

/* The input of a body's layer: where it can be read on the device. Sets *embedded if it was made in
 * the workspace, which the caller releases. */
static struct ref input_of(struct lowering *l, const struct pending *pending, bool *embedded)
{
    const struct tdm_body *body = &pending->body;
    *embedded = false;
    if (pending->fetched_x.buffer != TDM_NONE)
        return pending->fetched_x;
    struct ref stored = stored_x(l, body);
    if (stored.buffer != TDM_NONE)
        return stored;

    bool first_pass = body->pass == TDM_PASS_FIRST;
    struct ref x = first_pass && layer_major(l) ? stream_ref(l, body->chunk) : work(l, TDM_X);
    if (body->layer == 0) {
        if (!first_pass) {
            alloc_work(l, TDM_X);
            *embedded = true;
        }
        embed(l, body, x);
    }
    return x;
}

static void norm(struct lowering *l, const struct tdm_body *body, enum tdm_part part,
                 struct ref x, enum tdm_content from, enum tdm_content to)
{
    op_begin(l, body, TDM_OP_NORM, part);
    reads(l, x, tag(from, body->layer, body->chunk));
    reads_weights(l, body->kind == TDM_BODY_HEAD ? tdm_model_head_unit(l->model) : body->layer,
                  part);
    writes(l, work(l, to), tag(to, body->layer, body->chunk));
    op_end(l);
}

/* output = [addend +] input * weights^T. */
static void product(struct lowering *l, const struct tdm_body *body, enum tdm_part part,
                    struct ref input, enum tdm_content from, struct ref output,
                    struct tdm_tag made, struct ref addend, enum tdm_content added)
{
    op_begin(l, body, TDM_OP_PRODUCT, part);
    reads(l, input, tag(from, body->layer, body->chunk));
    reads_weights(l, body->layer, part);
    writes(l, output, made);
    if (addend.buffer != TDM_NONE)
        reads(l, addend, tag(added, body->layer, body->chunk));
    op_end(l);
}

static void q_product(struct lowering *l, const struct tdm_body *body)
{
    struct tdm_tag raw = tag(TDM_QRAW, body->layer, body->chunk);
    product(l, body, TDM_PART_Q, work(l, TDM_NORMED), TDM_NORMED, work(l, TDM_Q), raw, nowhere,
            TDM_EMPTY);
    op_begin(l, body, TDM_OP_ROPE, TDM_PART_Q);
    changes(l, work(l, TDM_Q), raw, tag(TDM_Q, body->layer, body->chunk));
    op_end(l);
}

static void kv_product(struct lowering *l, const struct tdm_body *body)
{
    struct tdm_tag raw = tag(TDM_KVRAW, body->layer, body->chunk);
    alloc_work(l, TDM_KVRAW);
    product(l, body, TDM_PART_KV, work(l, TDM_NORMED), TDM_NORMED, work(l, TDM_KVRAW), raw,
            nowhere, TDM_EMPTY);
    op_begin(l, body, TDM_OP_KV_WRITE, TDM_PART_KV);
    reads(l, work(l, TDM_KVRAW), raw);
    writes(l, (struct ref){l->layout->kv[body->layer], body->chunk},
           tag(TDM_KVPAGES, body->layer, body->chunk));
    op_end(l);
    release_work(l, TDM_KVRAW);
}

/* The slots of a KV buffer that a chunk sees: those of its sequence up to itself. */
static void prefix(struct lowering *l, uint32_t buffer, enum tdm_mode mode, struct tdm_tag before,
                   struct tdm_tag after)
{
    const struct tdm_chunk *chunk = &l->program->chunks[l->op.chunk];
    uint32_t slots = l->op.chunk - chunk->first_chunk + 1;
    uint64_t full = tdm_content_bytes(l->schedule, after.content, 0, l->schedule->chunk_tokens);
    access(l, (struct ref){buffer, chunk->first_chunk}, slots, mode, 0, before, after,
           (slots - 1) * full + row_bytes(l, after.content));
}

static void attention(struct lowering *l, const struct tdm_body *body, struct ref output)
{
    struct tdm_tag pages =
        tag(TDM_KVPAGES, body->layer, l->program->chunks[body->chunk].first_chunk);
    op_begin(l, body, TDM_OP_ATTENTION, 0);
    reads(l, work(l, TDM_Q), tag(TDM_Q, body->layer, body->chunk));
    prefix(l, l->layout->kv[body->layer], TDM_READ, pages, pages);
    writes(l, output, tag(TDM_ATTENTION_OUT, body->layer, body->chunk));
    op_end(l);
}

/* From the attention output to what the down product reads; Y stays in its workspace. */
static void mlp(struct lowering *l, const struct tdm_body *body, struct ref attention_out,
                struct ref x)
{
    alloc_work(l, TDM_Y);
    product(l, body, TDM_PART_O, attention_out, TDM_ATTENTION_OUT, work(l, TDM_Y),
            tag(TDM_Y, body->layer, body->chunk), x, TDM_X);
    alloc_work(l, TDM_MLP_NORMED);
    norm(l, body, TDM_PART_MLP_NORM, work(l, TDM_Y), TDM_Y, TDM_MLP_NORMED);
    alloc_work(l, TDM_GATE_UP);
    product(l, body, TDM_PART_GATE_UP, work(l, TDM_MLP_NORMED), TDM_MLP_NORMED,
            work(l, TDM_GATE_UP), tag(TDM_GATE_UP, body->layer, body->chunk), nowhere, TDM_EMPTY);
    if (body->kind == TDM_BODY_FORWARD)
        release_work(l, TDM_MLP_NORMED);
    alloc_work(l, TDM_ACTIVATED);
    op_begin(l, body, TDM_OP_SWIGLU, TDM_PART_GATE_UP);
    reads(l, work(l, TDM_GATE_UP), tag(TDM_GATE_UP, body->layer, body->chunk));
    writes(l, work(l, TDM_ACTIVATED), tag(TDM_ACTIVATED, body->layer, body->chunk));
    op_end(l);
    if (body->kind == TDM_BODY_FORWARD)
        release_work(l, TDM_GATE_UP);
}

/* ---- bodies ---- */

/* Where a forward writes the next layer's input on the device. *home: where it must go from there. */
static struct ref output_of(struct lowering *l, const struct tdm_body *body, struct ref *home)
{
    uint32_t next = body->layer + 1;
    *home = nowhere;
    if (next == l->model->layers)
        return body->pass == TDM_PASS_FIRST || !layer_major(l) ? stream_ref(l, body->chunk)
                                                               : nowhere;
    struct ref target = nowhere;
    if (body->pass == TDM_PASS_RERUN)
        target = held_input_ref(l, next, body->chunk);
    else if (top_of_group(l, body->layer))
        target = (struct ref){l->layout->input[body->group + 1], body->chunk};

    if (target.buffer == TDM_NONE) /* inside a group, on the way through the forward */
        return layer_major(l) ? stream_ref(l, body->chunk) : work(l, TDM_X);
    if (!on_host(l, target.buffer))
        return target;
    *home = target;
    if (body->pass == TDM_PASS_FIRST && layer_major(l))
        return stream_ref(l, body->chunk); /* the next layer reads it there */
    return next_slot(l, l->layout->stashed_x, &l->next_stashed_x);
}

static void forward_body(struct lowering *l, const struct pending *pending)
{
    const struct tdm_body *body = &pending->body;
    bool there = attention_is_there(l, body);
    bool embedded;
    struct ref x = input_of(l, pending, &embedded);
    struct ref stored = stored_attention(l, body);
    struct ref attention_out = stored;
    bool in_work = false;

    if (there) {
        if (on_host(l, stored.buffer))
            attention_out = pending->fetched_attention;
    } else {
        alloc_work(l, TDM_NORMED);
        norm(l, body, TDM_PART_ATTENTION_NORM, x, TDM_X, TDM_NORMED);
        alloc_work(l, TDM_Q);
        q_product(l, body);
        /* chunk-major keeps K and V from the forward */
        if (body->pass == TDM_PASS_FIRST || layer_major(l))
            kv_product(l, body);
        release_work(l, TDM_NORMED);
        if (stored.buffer == TDM_NONE) {
            alloc_work(l, TDM_ATTENTION_OUT);
            attention_out = work(l, TDM_ATTENTION_OUT);
            in_work = true;
        } else if (on_host(l, stored.buffer)) {
            attention_out =
                next_slot(l, l->layout->stashed_attention, &l->next_stashed_attention);
        }
        attention(l, body, attention_out);
        if (on_host(l, stored.buffer))
            copy(l, body, TDM_LANE_D2H, attention_out, stored,
                 tag(TDM_ATTENTION_OUT, body->layer, body->chunk));
        release_work(l, TDM_Q);
    }

    mlp(l, body, attention_out, x);
    if (in_work)
        release_work(l, TDM_ATTENTION_OUT);
    struct ref home;
    struct ref output = output_of(l, body, &home);
    struct tdm_tag made = tag(TDM_X, body->layer + 1, body->chunk);
    product(l, body, TDM_PART_DOWN, work(l, TDM_ACTIVATED), TDM_ACTIVATED, output, made,
            work(l, TDM_Y), TDM_Y);
    release_work(l, TDM_ACTIVATED);
    release_work(l, TDM_Y);
    if (embedded)
        release_work(l, TDM_X);
    if (home.buffer != TDM_NONE)
        copy(l, body, TDM_LANE_D2H, output, home, made);
}

static void kv_body(struct lowering *l, const struct pending *pending)
{
    const struct tdm_body *body = &pending->body;
    bool embedded;
    struct ref x = input_of(l, pending, &embedded);
    alloc_work(l, TDM_NORMED);
    norm(l, body, TDM_PART_ATTENTION_NORM, x, TDM_X, TDM_NORMED);
    if (embedded)
        release_work(l, TDM_X);
    kv_product(l, body);
    release_work(l, TDM_NORMED);
}

/* One LM-head tile; tiles of the whole step are numbered through, and run in reverse. */
static void head_tile(struct lowering *l, const struct tdm_body *body, uint32_t tile, uint32_t tiles)
{
    const struct tdm_schedule *schedule = l->schedule;
    const struct tdm_layout *layout = l->layout;
    uint64_t chunk_tokens = l->program->chunks[body->chunk].tokens;
    uint32_t number = layout->tile_base[body->chunk] + tile;
    uint32_t last = layout->tile_base[l->program->chunk_count] - 1;
    bool tied = l->model->tied;
    uint32_t unit = tied ? tdm_model_embedding_unit(l->model) : tdm_model_head_unit(l->model);
    enum tdm_part part = tied ? TDM_PART_EMBEDDING : TDM_PART_HEAD;
    bool first = tile == tiles - 1;

    op_begin(l, body, TDM_OP_HEAD, TDM_PART_HEAD);
    l->op.first_row = tile * schedule->head_tile_tokens;
    l->op.tokens = chunk_tokens - l->op.first_row;
    if (l->op.tokens > schedule->head_tile_tokens)
        l->op.tokens = schedule->head_tile_tokens;

    changes(l, work(l, TDM_FINAL_NORMED),
            first ? tag(TDM_FINAL_NORMED, body->layer, body->chunk)
                  : sum_tag(TDM_DFINAL_NORMED, body->layer, body->chunk, tile + 1),
            sum_tag(TDM_DFINAL_NORMED, body->layer, body->chunk, tile));
    reads(l, (struct ref){layout->tokens, body->chunk}, tag(TDM_TOKENS, TDM_NONE, body->chunk));
    reads_weights(l, unit, part);
    writes(l, work(l, TDM_LOGIT_TILE),
           sum_tag(TDM_LOGIT_TILE, body->layer, body->chunk, tile));
    if (tied) {
        struct tdm_tag after = sum_tag(TDM_TIED_GRADIENT, unit, TDM_NONE, number);
        struct tdm_tag before = sum_tag(TDM_TIED_GRADIENT, unit, TDM_NONE, number + 1);
        access(l, (struct ref){layout->tied_gradient, 0}, 1,
               number == last ? TDM_WRITE : TDM_ACCUMULATE, 0, before, after,
               tdm_part_bytes(l->model, unit, part, schedule->dtypes.gradients));
    } else {
        adds_gradient(l, unit, TDM_PART_HEAD, number, last);
    }
    access(l, (struct ref){layout->loss, body->chunk}, 1, first ? TDM_WRITE : TDM_ACCUMULATE, 0,
           sum_tag(TDM_LOSS, TDM_NONE, body->chunk, tile + 1),
           sum_tag(TDM_LOSS, TDM_NONE, body->chunk, tile), sizeof(double));
    op_end(l);
}

/* Final norm, LM head and loss: a row of the last X becomes the same row of its gradient. */
static void head_body(struct lowering *l, const struct tdm_body *body)
{
    uint32_t head = tdm_model_head_unit(l->model);
    struct ref stream = stream_ref(l, body->chunk);
    uint32_t tiles = l->layout->tile_base[body->chunk + 1] - l->layout->tile_base[body->chunk];

    alloc_work(l, TDM_FINAL_NORMED);
    norm(l, body, TDM_PART_FINAL_NORM, stream, TDM_X, TDM_FINAL_NORMED);
    alloc_work(l, TDM_LOGIT_TILE);
    for (uint32_t tile = tiles; tile-- > 0;)
        head_tile(l, body, tile, tiles);
    release_work(l, TDM_LOGIT_TILE);

    op_begin(l, body, TDM_OP_NORM_GRAD, TDM_PART_FINAL_NORM);
    reads(l, stream, tag(TDM_X, body->layer, body->chunk));
    reads_weights(l, head, TDM_PART_FINAL_NORM);
    reads(l, work(l, TDM_FINAL_NORMED),
          sum_tag(TDM_DFINAL_NORMED, body->layer, body->chunk, 0));
    writes(l, stream, tag(TDM_DX, body->layer, body->chunk));
    adds_gradient(l, head, TDM_PART_FINAL_NORM, body->chunk, l->program->chunk_count - 1);
    op_end(l);
    release_work(l, TDM_FINAL_NORMED);
}

/* input gradient = output gradient * weights; weight gradient += output gradient^T * input. */
static void grad_input(struct lowering *l, const struct tdm_body *body, enum tdm_part part,
                       struct ref from, struct tdm_tag gradient, enum tdm_content to, bool first)
{
    struct tdm_tag made = tag(to, body->layer, body->chunk);
    op_begin(l, body, TDM_OP_PRODUCT_GRAD_INPUT, part);
    reads(l, from, gradient);
    reads_weights(l, body->layer, part);
    if (first)
        writes(l, work(l, to), made);
    else /* the q product's share is there; with the KV product's the sum is complete */
        changes(l, work(l, to), made, sum_tag(to, body->layer, body->chunk, 0));
    op_end(l);
}

static void grad_weight(struct lowering *l, const struct tdm_body *body, enum tdm_part part,
                        struct ref input, enum tdm_content of, struct ref from,
                        struct tdm_tag gradient)
{
    op_begin(l, body, TDM_OP_PRODUCT_GRAD_WEIGHT, part);
    reads(l, input, tag(of, body->layer, body->chunk));
    reads(l, from, gradient);
    adds_layer_gradient(l, part);
    op_end(l);
}

static void norm_grad(struct lowering *l, const struct tdm_body *body, enum tdm_part part,
                      struct ref x, enum tdm_content of, enum tdm_content d_normed,
                      uint32_t contributor, struct tdm_tag before, struct tdm_tag after)
{
    op_begin(l, body, TDM_OP_NORM_GRAD, part);
    reads(l, x, tag(of, body->layer, body->chunk));
    reads_weights(l, body->layer, part);
    reads(l, work(l, d_normed), sum_tag(d_normed, body->layer, body->chunk, contributor));
    changes(l, stream_ref(l, body->chunk), before, after);
    adds_layer_gradient(l, part);
    op_end(l);
}

static void mlp_backward(struct lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    struct ref stream = stream_ref(l, chunk);
    struct tdm_tag dx = tag(TDM_DX, layer + 1, chunk);
    struct tdm_tag d_gate_up = tag(TDM_DGATE_UP, layer, chunk);

    grad_weight(l, body, TDM_PART_DOWN, work(l, TDM_ACTIVATED), TDM_ACTIVATED, stream, dx);
    release_work(l, TDM_ACTIVATED);
    alloc_work(l, TDM_DACTIVATED);
    grad_input(l, body, TDM_PART_DOWN, stream, dx, TDM_DACTIVATED, true);
    op_begin(l, body, TDM_OP_SWIGLU_GRAD, TDM_PART_GATE_UP);
    changes(l, work(l, TDM_GATE_UP), tag(TDM_GATE_UP, layer, chunk), d_gate_up);
    reads(l, work(l, TDM_DACTIVATED), tag(TDM_DACTIVATED, layer, chunk));
    op_end(l);
    release_work(l, TDM_DACTIVATED);
    grad_weight(l, body, TDM_PART_GATE_UP, work(l, TDM_MLP_NORMED), TDM_MLP_NORMED,
                work(l, TDM_GATE_UP), d_gate_up);
    release_work(l, TDM_MLP_NORMED);
    alloc_work(l, TDM_DMLP_NORMED);
    grad_input(l, body, TDM_PART_GATE_UP, work(l, TDM_GATE_UP), d_gate_up, TDM_DMLP_NORMED, true);
    release_work(l, TDM_GATE_UP);
    norm_grad(l, body, TDM_PART_MLP_NORM, work(l, TDM_Y), TDM_Y, TDM_DMLP_NORMED, TDM_NONE, dx,
              tag(TDM_DY, layer, chunk));
    release_work(l, TDM_DMLP_NORMED);
    release_work(l, TDM_Y);
}

static void attention_grad(struct lowering *l, const struct tdm_body *body,
                           struct ref attention_out)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    const struct tdm_chunk *where = &l->program->chunks[chunk];
    struct tdm_tag pages = tag(TDM_KVPAGES, layer, where->first_chunk);
    struct tdm_tag after = sum_tag(TDM_DKVPAGES, layer, where->first_chunk, chunk);
    struct tdm_tag before = after;
    before.contributor = chunk + 1;
    bool first = chunk == where->last_chunk;

    op_begin(l, body, TDM_OP_ATTENTION_GRAD, 0);
    reads(l, work(l, TDM_Q), tag(TDM_Q, layer, chunk));
    prefix(l, l->layout->kv[layer], TDM_READ, pages, pages);
    reads(l, attention_out, tag(TDM_ATTENTION_OUT, layer, chunk));
    reads(l, work(l, TDM_DATTENTION), tag(TDM_DATTENTION, layer, chunk));
    writes(l, work(l, TDM_DQ), tag(TDM_DQ, layer, chunk));
    prefix(l, l->layout->dkv[layer], first ? TDM_WRITE : TDM_ACCUMULATE, before, after);
    op_end(l);
}

static void q_backward(struct lowering *l, const struct tdm_body *body)
{
    struct tdm_tag raw = tag(TDM_DQRAW, body->layer, body->chunk);
    op_begin(l, body, TDM_OP_ROPE_GRAD, TDM_PART_Q);
    changes(l, work(l, TDM_DQ), tag(TDM_DQ, body->layer, body->chunk), raw);
    op_end(l);
    grad_weight(l, body, TDM_PART_Q, work(l, TDM_NORMED), TDM_NORMED, work(l, TDM_DQ), raw);
    alloc_work(l, TDM_DNORMED);
    grad_input(l, body, TDM_PART_Q, work(l, TDM_DQ), raw, TDM_DNORMED, true);
    release_work(l, TDM_DQ);
}

/* When a chunk is reached, all later chunks have added to its dK, dV. */
static void kv_backward(struct lowering *l, const struct tdm_body *body)
{
    struct tdm_tag raw = tag(TDM_DKVRAW, body->layer, body->chunk);
    alloc_work(l, TDM_DKVRAW);
    op_begin(l, body, TDM_OP_KV_GRAD_READ, TDM_PART_KV);
    reads(l, (struct ref){l->layout->dkv[body->layer], body->chunk},
          sum_tag(TDM_DKVPAGES, body->layer, body->chunk, body->chunk));
    writes(l, work(l, TDM_DKVRAW), raw);
    op_end(l);
    grad_weight(l, body, TDM_PART_KV, work(l, TDM_NORMED), TDM_NORMED, work(l, TDM_DKVRAW), raw);
    release_work(l, TDM_NORMED);
    grad_input(l, body, TDM_PART_KV, work(l, TDM_DKVRAW), raw, TDM_DNORMED, false);
    release_work(l, TDM_DKVRAW);
}

static void embedding_backward(struct lowering *l, const struct tdm_body *body)
{
    uint32_t unit = tdm_model_embedding_unit(l->model);
    uint32_t chunks = l->program->chunk_count;
    uint64_t bytes =
        tdm_part_bytes(l->model, unit, TDM_PART_EMBEDDING, l->schedule->dtypes.gradients);
    struct ref gradient = gradient_ref(l, unit);
    struct tdm_tag before = sum_tag(TDM_UNIT_GRADIENT, unit, TDM_NONE, body->chunk + 1);
    struct tdm_tag after = sum_tag(TDM_UNIT_GRADIENT, unit, TDM_NONE, body->chunk);
    struct tdm_body on_unit = *body;
    on_unit.layer = unit;

    if (body->chunk == chunks - 1) { /* rows of tokens that do not occur stay zero */
        if (l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
            alloc(l, gradient.buffer);
        op_begin(l, &on_unit, TDM_OP_ZERO, TDM_PART_EMBEDDING);
        access(l, gradient, 1, TDM_WRITE, TDM_PART_EMBEDDING,
               tag(TDM_EMPTY, TDM_NONE, TDM_NONE), before, bytes);
        op_end(l);
    }
    op_begin(l, &on_unit, TDM_OP_EMBED_GRAD, TDM_PART_EMBEDDING);
    reads(l, (struct ref){l->layout->tokens, body->chunk},
          tag(TDM_TOKENS, TDM_NONE, body->chunk));
    reads(l, stream_ref(l, body->chunk), tag(TDM_DX, 0, body->chunk));
    uint64_t rows = l->op.tokens * l->model->hidden * tdm_dtype_bytes(l->schedule->dtypes.gradients);
    access(l, gradient, 1, TDM_ACCUMULATE, TDM_PART_EMBEDDING, before, after,
           rows < bytes ? rows : bytes); /* at most a row for each token */
    op_end(l);
}

static void backward_body(struct lowering *l, const struct pending *pending)
{
    const struct tdm_body *body = &pending->body;
    uint32_t layer = body->layer, chunk = body->chunk;
    bool there = attention_is_there(l, body);
    bool embedded;

    if (chunk == l->program->chunk_count - 1 && layer_major(l)) {
        alloc(l, l->layout->dkv[layer]);
        if (l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
            alloc(l, l->layout->layer_gradient[layer]);
    }

    struct ref x = input_of(l, pending, &embedded);
    alloc_work(l, TDM_NORMED);
    norm(l, body, TDM_PART_ATTENTION_NORM, x, TDM_X, TDM_NORMED);
    alloc_work(l, TDM_Q);
    q_product(l, body);
    struct ref attention_out = stored_attention(l, body);
    if (!there) {
        alloc_work(l, TDM_ATTENTION_OUT);
        attention_out = work(l, TDM_ATTENTION_OUT);
        attention(l, body, attention_out);
    } else if (on_host(l, attention_out.buffer)) {
        attention_out = pending->fetched_attention;
    }
    mlp(l, body, attention_out, x);

    mlp_backward(l, body);
    struct tdm_tag dy = tag(TDM_DY, layer, chunk);
    grad_weight(l, body, TDM_PART_O, attention_out, TDM_ATTENTION_OUT, stream_ref(l, chunk), dy);
    alloc_work(l, TDM_DATTENTION);
    grad_input(l, body, TDM_PART_O, stream_ref(l, chunk), dy, TDM_DATTENTION, true);
    alloc_work(l, TDM_DQ);
    attention_grad(l, body, attention_out);
    release_work(l, TDM_DATTENTION);
    release_work(l, TDM_Q);
    if (!there)
        release_work(l, TDM_ATTENTION_OUT);
    q_backward(l, body);
    kv_backward(l, body);
    norm_grad(l, body, TDM_PART_ATTENTION_NORM, x, TDM_X, TDM_DNORMED, 0, dy,
              tag(TDM_DX, layer, chunk));
    release_work(l, TDM_DNORMED);
    if (embedded)
        release_work(l, TDM_X);
    if (layer == 0)
        embedding_backward(l, body);
}

static void updates(struct lowering *l, const uint32_t rows[TDM_UNIT_ROWS],
                    enum tdm_content content, enum tdm_dtype dtype)
{
    struct ref ref = unit_ref(l, rows, l->op.layer);
    if (ref.buffer == TDM_NONE) {
        absent(l);
        return;
    }
    /* contributor 0: as of after this step */
    access(l, ref, 1, TDM_ACCUMULATE, TDM_PART_ALL, tag(content, l->op.layer, TDM_NONE),
           sum_tag(content, l->op.layer, TDM_NONE, 0),
           tdm_part_bytes(l->model, l->op.layer, TDM_PART_ALL, dtype));
}

static void optimizer_body(struct lowering *l, const struct tdm_body *body)
{
    const struct tdm_layout *layout = l->layout;
    const struct tdm_dtypes *dtypes = &l->schedule->dtypes;
    uint32_t unit = body->layer;
    uint32_t embedding = tdm_model_embedding_unit(l->model);
    uint64_t gradient_bytes =
        tdm_part_bytes(l->model, unit, TDM_PART_ALL, dtypes->gradients);
    struct tdm_tag gradient = sum_tag(TDM_UNIT_GRADIENT, unit, TDM_NONE, 0);

    op_begin(l, body, TDM_OP_OPTIMIZER, TDM_PART_ALL);
    updates(l, layout->weights, TDM_UNIT_WEIGHTS, dtypes->weights);
    access(l, gradient_ref(l, unit), 1, TDM_READ, TDM_PART_ALL, gradient, gradient,
           gradient_bytes);
    updates(l, layout->master, TDM_UNIT_MASTER, dtypes->master);
    updates(l, layout->moment1, TDM_UNIT_MOMENT1, dtypes->moments);
    updates(l, layout->moment2, TDM_UNIT_MOMENT2, dtypes->moments);
    struct tdm_tag norms = tag(TDM_GRADIENT_NORM, unit, TDM_NONE);
    access(l, (struct ref){layout->norms, unit}, 1, TDM_WRITE, 0, norms, norms, sizeof(double));
    if (unit == embedding && l->model->tied) {
        struct tdm_tag tied = sum_tag(TDM_TIED_GRADIENT, unit, TDM_NONE, 0);
        access(l, (struct ref){layout->tied_gradient, 0}, 1, TDM_READ, 0, tied, tied,
               gradient_bytes);
    }
    op_end(l);
    if (unit == embedding)
        release(l, layout->embedding_gradient);
}

/* ---- markers: where buffers begin and end ---- */

static uint32_t first_layer(const struct lowering *l, uint32_t group)
{
    return tdm_schedule_first_layer(l->schedule, group);
}

/* Does some chunk of a layer run its attention again with the group? */
static bool reruns_attention(const struct lowering *l, uint32_t layer)
{
    return !tdm_attention_kept(l->program, layer, 0);
}

/* What the first forward of a layer stores for the backward. */
static void alloc_kept(struct lowering *l, uint32_t group, uint32_t layer)
{
    alloc(l, l->layout->kept_attention[layer]);
    if (top_of_group(l, layer) && group + 1 < l->schedule->group_count)
        alloc(l, l->layout->input[group + 1]);
}

/* What only this layer's backward still needed. */
static void release_stores(struct lowering *l, uint32_t group, uint32_t layer)
{
    release(l, l->layout->kept_attention[layer]);
    release(l, l->layout->held_attention[layer]);
    release(l, l->layout->held_input[layer]);
    if (first_of_group(l, layer))
        release(l, l->layout->input[group]);
}

static void layer_begin(struct lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer;
    if (body->pass == TDM_PASS_RERUN) {
        if (reruns_attention(l, layer))
            alloc(l, l->layout->kv[layer]);
        alloc(l, l->layout->held_input[layer + 1]);
        alloc(l, l->layout->held_attention[layer]);
        return;
    }
    alloc(l, l->layout->kv[layer]);
    if (body->pass == TDM_PASS_FIRST)
        alloc_kept(l, body->group, layer);
}

static void layer_end(struct lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer;
    if (body->pass != TDM_PASS_RERUN || reruns_attention(l, layer))
        release(l, l->layout->kv[layer]);
    if (body->pass != TDM_PASS_BACKWARD)
        return;
    release(l, l->layout->dkv[layer]);
    if (l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        release(l, l->layout->layer_gradient[layer]);
    release_stores(l, body->group, layer);
}

/* In layer-major order the layers allocate for themselves. In the forward of chunk-major a group
 * needs a place for X between its layers, unless it is one layer that has its input elsewhere. */
static bool group_needs_x(const struct lowering *l, uint32_t group)
{
    return group == 0 || l->schedule->groups[group].layers > 1;
}

static void group_begin(struct lowering *l, const struct tdm_body *body)
{
    if (layer_major(l))
        return;
    uint32_t first = first_layer(l, body->group);
    uint32_t end = first + l->schedule->groups[body->group].layers;
    bool forward = body->pass == TDM_PASS_FIRST;

    if (forward && group_needs_x(l, body->group))
        alloc_work(l, TDM_X);
    if (!forward && l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        alloc(l, l->layout->layer_gradient[first]);
    for (uint32_t layer = first; layer < end; layer++) {
        if (forward) {
            alloc(l, l->layout->kv[layer]);
            alloc_kept(l, body->group, layer);
        } else {
            alloc(l, l->layout->dkv[layer]);
            alloc(l, l->layout->held_input[layer]);
            alloc(l, l->layout->held_attention[layer]);
        }
    }
}

static void group_end(struct lowering *l, const struct tdm_body *body)
{
    if (layer_major(l))
        return;
    uint32_t first = first_layer(l, body->group);
    uint32_t end = first + l->schedule->groups[body->group].layers;

    if (body->pass == TDM_PASS_FIRST) {
        if (group_needs_x(l, body->group))
            release_work(l, TDM_X);
        return;
    }
    for (uint32_t layer = first; layer < end; layer++) {
        release(l, l->layout->kv[layer]);
        release(l, l->layout->dkv[layer]);
        release_stores(l, body->group, layer);
    }
    if (l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        release(l, l->layout->layer_gradient[first]);
}

/* Is a staging ring needed in a phase: does the phase move something from (to) the host? */
static bool ring_used(const struct lowering *l, uint32_t ring, enum tdm_phase phase)
{
    const struct tdm_layout *layout = l->layout;
    bool kept_on_host = false, held_on_host = false, input_on_host = false, held_x = false;
    for (uint32_t layer = 0; layer < l->model->layers; layer++) {
        kept_on_host |= on_host(l, layout->kept_attention[layer]);
        held_on_host |= on_host(l, layout->held_attention[layer]);
        held_x |= on_host(l, layout->held_input[layer]);
    }
    for (uint32_t group = 0; group < l->schedule->group_count; group++)
        input_on_host |= on_host(l, layout->input[group]);

    bool forward = phase == TDM_FORWARD;
    if (ring == layout->fetched_x)
        return forward ? input_on_host && !layer_major(l) : input_on_host || held_x;
    if (ring == layout->stashed_x)
        return forward ? input_on_host && !layer_major(l) : held_x;
    if (ring == layout->fetched_attention)
        return !forward;
    return forward ? kept_on_host : held_on_host;
}

static void phase_buffers(struct lowering *l, const struct tdm_body *body, bool begin)
{
    const struct tdm_layout *layout = l->layout;
    void (*act)(struct lowering *, uint32_t) = begin ? alloc : release;
    uint32_t rings[] = {layout->fetched_x, layout->stashed_x, layout->fetched_attention,
                        layout->stashed_attention};
    for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++)
        if (rings[i] != TDM_NONE && ring_used(l, rings[i], body->phase))
            act(l, rings[i]);
    l->next_fetched_x = l->next_stashed_x = 0;
    l->next_fetched_attention = l->next_stashed_attention = 0;

    bool forward = body->phase == TDM_FORWARD;
    if (begin ? forward == layer_major(l) : !forward)
        act(l, layout->stream);
    if (!begin && !forward && l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        act(l, layout->tied_gradient);
}

static void head_gradients(struct lowering *l, bool begin)
{
    if (l->schedule->optimizer.kind == TDM_OPTIMIZER_NONE)
        return; /* resident */
    if (begin) {
        alloc(l, l->layout->head_gradient);
        alloc(l, l->layout->tied_gradient); /* lives until the embedding's optimizer */
    } else {
        release(l, l->layout->head_gradient);
    }
}

/* ---- the queue ---- */

static void run_body(struct lowering *l, const struct pending *pending)
{
    const struct tdm_body *body = &pending->body;
    switch (body->kind) {
    case TDM_BODY_PHASE_BEGIN:
    case TDM_BODY_PHASE_END:
        phase_buffers(l, body, body->kind == TDM_BODY_PHASE_BEGIN);
        break;
    case TDM_BODY_GROUP_BEGIN:
        group_begin(l, body);
        break;
    case TDM_BODY_GROUP_END:
        group_end(l, body);
        break;
    case TDM_BODY_LAYER_BEGIN:
        layer_begin(l, body);
        break;
    case TDM_BODY_LAYER_END:
        layer_end(l, body);
        break;
    case TDM_BODY_HEAD_BEGIN:
    case TDM_BODY_HEAD_END:
        head_gradients(l, body->kind == TDM_BODY_HEAD_BEGIN);
        break;
    case TDM_BODY_FORWARD:
        forward_body(l, pending);
        break;
    case TDM_BODY_KV:
        kv_body(l, pending);
        break;
    case TDM_BODY_HEAD:
        head_body(l, body);
        break;
    case TDM_BODY_BACKWARD:
        backward_body(l, pending);
        break;
    case TDM_BODY_OPTIMIZER:
        optimizer_body(l, body);
        break;
    }
}

static void leave_queue(struct lowering *l)
{
    struct pending pending = l->queue[l->queue_first];
    l->queue_first = (l->queue_first + 1) % MAX_QUEUE;
    l->queue_count--;
    run_body(l, &pending);
}

static enum tdm_status take_body(void *self, const struct tdm_body *body, struct tdm_error *err)
{
    struct lowering *l = self;
    (void)err; /* the sink fills it: it is l->err */
    /* a phase begins and ends with nothing under way: its rings must be there before a fetch */
    bool phase = body->kind == TDM_BODY_PHASE_BEGIN || body->kind == TDM_BODY_PHASE_END;
    while (l->queue_count > (phase ? 0 : l->depth))
        leave_queue(l);
    struct pending pending = {.body = *body};
    if (phase) {
        run_body(l, &pending);
        return l->status;
    }
    fetch(l, &pending);
    l->queue[(l->queue_first + l->queue_count) % MAX_QUEUE] = pending;
    l->queue_count++;
    return l->status;
}

enum tdm_status tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                          struct tdm_error *err)
{
    struct lowering l = {.program = program,
                         .schedule = program->schedule,
                         .model = program->schedule->model,
                         .layout = program->layout,
                         .sink = sink,
                         .self = self,
                         .err = err,
                         .status = TDM_OK,
                         .depth = tdm_prefetch_depth(program)};
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].resident)
            alloc(&l, i);
    if (l.status == TDM_OK)
        l.status = tdm_nest_walk(l.schedule, program->chunk_count, take_body, &l, err);
    for (uint32_t i = program->buffer_count; i-- > 0;)
        if (program->buffers[i].resident)
            release(&l, i);
    return l.status;
}
