/* SPDX-License-Identifier: Apache-2.0 */
/* A layer forward: for the first time, again, or as the recompute of a backward; K and V alone. */
#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/mlp.h"
#include "ops/norm.h"
#include "ops/product.h"
#include "ops/rope.h"
#include "schedule/attend.h"
#include "schedule/lower_parts.h"

static void embed(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref to)
{
    tdm_low_op_begin(l, body, TDM_OP_EMBED, TDM_PART_EMBEDDING);
    tdm_low_reads(l, TDM_EMBED_TOKENS, (struct tdm_ref){l->layout->tokens, body->chunk},
                  tdm_low_tag(TDM_TOKENS, TDM_NONE, body->chunk));
    tdm_low_reads_weights(l, TDM_EMBED_WEIGHTS, tdm_model_embedding_unit(l->model),
                          TDM_PART_EMBEDDING);
    uint64_t rows = l->op.tokens * l->model->hidden * tdm_dtype_bytes(l->schedule->dtypes.weights);
    if (l->op.access[TDM_EMBED_WEIGHTS].bytes > rows)
        l->op.access[TDM_EMBED_WEIGHTS].bytes = rows; /* at most a row for each token */
    tdm_low_writes(l, TDM_EMBED_OUT, to, tdm_low_tag(TDM_X, 0, body->chunk));
    tdm_low_op_end(l);
}

struct tdm_ref tdm_low_input_of(struct tdm_lowering *l, const struct tdm_pending *pending,
                                bool *embedded)
{
    const struct tdm_body *body = &pending->body;
    *embedded = false;
    if (pending->fetched_x.buffer != TDM_NONE)
        return pending->fetched_x;
    struct tdm_ref stored = tdm_low_stored_x(l, body);
    if (stored.buffer != TDM_NONE)
        return stored;

    bool first_pass = body->pass == TDM_PASS_FIRST;
    struct tdm_ref x = first_pass && tdm_low_streams_x(l) ? tdm_low_stream_ref(l, body->chunk)
                                                          : tdm_low_work(l, TDM_X);
    if (body->layer == 0) {
        if (!first_pass) {
            tdm_low_alloc_work(l, TDM_X);
            *embedded = true;
        }
        embed(l, body, x);
    }
    return x;
}

void tdm_low_norm(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                  struct tdm_ref x, enum tdm_content from, enum tdm_content to)
{
    tdm_low_op_begin(l, body, TDM_OP_NORM, part);
    tdm_low_reads(l, TDM_NORM_X, x, tdm_low_tag(from, body->layer, body->chunk));
    tdm_low_reads_weights(
        l, TDM_NORM_WEIGHTS,
        body->layer == l->model->layers ? tdm_model_head_unit(l->model) : body->layer, part);
    tdm_low_writes(l, TDM_NORM_OUT, tdm_low_work(l, to), tdm_low_tag(to, body->layer, body->chunk));
    tdm_low_op_end(l);
}

void tdm_low_product(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                     struct tdm_ref input, enum tdm_content from, struct tdm_ref output,
                     struct tdm_tag made, struct tdm_ref addend, enum tdm_content added)
{
    tdm_low_op_begin(l, body, TDM_OP_PRODUCT, part);
    tdm_low_reads(l, TDM_PRODUCT_X, input, tdm_low_tag(from, body->layer, body->chunk));
    tdm_low_reads_weights(l, TDM_PRODUCT_WEIGHTS, body->layer, part);
    tdm_low_writes(l, TDM_PRODUCT_OUT, output, made);
    if (addend.buffer != TDM_NONE)
        tdm_low_reads(l, TDM_PRODUCT_ADDEND, addend, tdm_low_tag(added, body->layer, body->chunk));
    tdm_low_op_end(l);
}

bool tdm_low_qk_norm(const struct tdm_lowering *l, const struct tdm_body *body)
{
    return l->model->layer_kinds[body->layer].qk_norm;
}

void tdm_low_q_raw(struct tdm_lowering *l, const struct tdm_body *body)
{
    tdm_low_alloc_work(l, TDM_QRAW);
    tdm_low_product(l, body, TDM_PART_Q, tdm_low_work(l, TDM_NORMED), TDM_NORMED,
                    tdm_low_work(l, TDM_QRAW), tdm_low_tag(TDM_QRAW, body->layer, body->chunk),
                    tdm_nowhere, TDM_EMPTY);
}

void tdm_low_kv_raw(struct tdm_lowering *l, const struct tdm_body *body)
{
    tdm_low_alloc_work(l, TDM_KVRAW);
    tdm_low_product(l, body, TDM_PART_KV, tdm_low_work(l, TDM_NORMED), TDM_NORMED,
                    tdm_low_work(l, TDM_KVRAW), tdm_low_tag(TDM_KVRAW, body->layer, body->chunk),
                    tdm_nowhere, TDM_EMPTY);
}

void tdm_low_q_product(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q)
{
    struct tdm_tag raw = tdm_low_tag(TDM_QRAW, body->layer, body->chunk);
    if (tdm_low_qk_norm(l, body)) {
        tdm_low_q_raw(l, body);
        tdm_low_op_begin(l, body, TDM_OP_ROPE, TDM_PART_Q_NORM);
        tdm_low_reads(l, TDM_ROPE_Q, tdm_low_work(l, TDM_QRAW), raw);
        tdm_low_reads_weights(l, TDM_ROPE_WEIGHTS, body->layer, TDM_PART_Q_NORM);
        tdm_low_writes(l, TDM_ROPE_OUT, q, tdm_low_tag(TDM_Q, body->layer, body->chunk));
        tdm_low_op_end(l);
        if (body->kind != TDM_BODY_BACKWARD)
            tdm_low_release_work(l, TDM_QRAW);
        return;
    }
    tdm_low_product(l, body, TDM_PART_Q, tdm_low_work(l, TDM_NORMED), TDM_NORMED, q, raw,
                    tdm_nowhere, TDM_EMPTY);
    tdm_low_op_begin(l, body, TDM_OP_ROPE, TDM_PART_Q);
    tdm_low_changes(l, TDM_ROPE_Q, q, raw, tdm_low_tag(TDM_Q, body->layer, body->chunk));
    tdm_low_op_end(l);
}

void tdm_low_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                       struct tdm_ref output, struct tdm_ref lists)
{
    uint32_t first = tdm_attend_first(l->program, body->layer, body->chunk);
    struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, body->layer, first);
    tdm_low_op_begin(l, body, TDM_OP_ATTENTION, 0);
    tdm_low_reads(l, TDM_ATTENTION_Q, q, tdm_low_tag(TDM_Q, body->layer, body->chunk));
    tdm_low_chunks(l, TDM_ATTENTION_KV, body, tdm_low_seen_kv(l, body), first, body->chunk + 1,
                   TDM_READ, pages, pages);
    tdm_low_writes(l, TDM_ATTENTION_O, output,
                   tdm_low_tag(TDM_ATTENTION_OUT, body->layer, body->chunk));
    tdm_low_reads_lists(l, TDM_ATTENTION_LISTS, body, lists);
    tdm_low_op_end(l);
}

void tdm_low_mlp(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref attention_out,
                 struct tdm_ref x, struct tdm_ref gate_up, bool make)
{
    struct tdm_tag products = tdm_low_tag(TDM_GATE_UP, body->layer, body->chunk);
    bool backward = body->kind == TDM_BODY_BACKWARD;
    tdm_low_alloc_work(l, TDM_Y);
    tdm_low_product(l, body, TDM_PART_O, attention_out, TDM_ATTENTION_OUT, tdm_low_work(l, TDM_Y),
                    tdm_low_tag(TDM_Y, body->layer, body->chunk), x, TDM_X);
    if (make || backward) {
        tdm_low_alloc_work(l, TDM_MLP_NORMED);
        tdm_low_norm(l, body, TDM_PART_MLP_NORM, tdm_low_work(l, TDM_Y), TDM_Y, TDM_MLP_NORMED);
    }
    if (make)
        tdm_low_product(l, body, TDM_PART_GATE_UP, tdm_low_work(l, TDM_MLP_NORMED), TDM_MLP_NORMED,
                        gate_up, products, tdm_nowhere, TDM_EMPTY);
    if (make && !backward)
        tdm_low_release_work(l, TDM_MLP_NORMED);
    tdm_low_alloc_work(l, TDM_ACTIVATED);
    tdm_low_op_begin(l, body, TDM_OP_SWIGLU, TDM_PART_GATE_UP);
    tdm_low_reads(l, TDM_SWIGLU_GATE_UP, gate_up, products);
    tdm_low_writes(l, TDM_SWIGLU_OUT, tdm_low_work(l, TDM_ACTIVATED),
                   tdm_low_tag(TDM_ACTIVATED, body->layer, body->chunk));
    tdm_low_op_end(l);
}

/* Attention of a forward, with q and with K and V as far as they are asked for: makes what the
 * schedule stores. Returns where the output is; *work: in the workspace. */
static struct tdm_ref forward_attention(struct tdm_lowering *l, const struct tdm_pending *pending,
                                        struct tdm_ref x, bool *work)
{
    const struct tdm_body *body = &pending->body;
    bool there = tdm_low_is_there(l, body, TDM_STORE_ATTENTION);
    enum tdm_kv_step kv = tdm_low_kv_step(l, body);
    struct tdm_ref q = tdm_nowhere;
    bool q_work = false, lists_work;

    *work = false;
    tdm_low_kv_fetch(l, body);
    if (!there || kv == TDM_KV_MAKE) {
        tdm_low_alloc_work(l, TDM_NORMED);
        tdm_low_norm(l, body, TDM_PART_ATTENTION_NORM, x, TDM_X, TDM_NORMED);
    }
    if (!there) {
        q = tdm_low_target(l, body, TDM_STORE_Q, &q_work);
        tdm_low_q_product(l, body, q);
        tdm_low_stash(l, body, TDM_STORE_Q, q);
    }
    if (kv == TDM_KV_MAKE)
        tdm_low_kv_product(l, body);
    if (!there || kv == TDM_KV_MAKE)
        tdm_low_release_work(l, TDM_NORMED);
    if (there)
        return tdm_low_source(l, pending, TDM_STORE_ATTENTION);

    struct tdm_ref lists = tdm_low_lists(l, body, q, &lists_work);
    struct tdm_ref output = tdm_low_target(l, body, TDM_STORE_ATTENTION, work);
    tdm_low_attention(l, body, q, output, lists);
    if (lists_work)
        tdm_low_release_work(l, TDM_PAGE_LISTS);
    tdm_low_stash(l, body, TDM_STORE_ATTENTION, output);
    if (q_work)
        tdm_low_release_work(l, TDM_Q);
    return output;
}

void tdm_low_forward_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    const struct tdm_body *body = &pending->body;
    bool embedded, attention_work, gate_up_work = false;
    struct tdm_ref x = tdm_low_input_of(l, pending, &embedded);
    struct tdm_ref attention_out = forward_attention(l, pending, x, &attention_work);

    bool make = !tdm_low_is_there(l, body, TDM_STORE_GATE_UP);
    struct tdm_ref gate_up = make ? tdm_low_target(l, body, TDM_STORE_GATE_UP, &gate_up_work)
                                  : tdm_low_source(l, pending, TDM_STORE_GATE_UP);
    tdm_low_mlp(l, body, attention_out, x, gate_up, make);
    if (make)
        tdm_low_stash(l, body, TDM_STORE_GATE_UP, gate_up);
    if (gate_up_work)
        tdm_low_release_work(l, TDM_GATE_UP);
    if (attention_work)
        tdm_low_release_work(l, TDM_ATTENTION_OUT);

    struct tdm_ref home;
    struct tdm_ref output = tdm_low_output_of(l, body, &home);
    struct tdm_tag made = tdm_low_tag(TDM_X, body->layer + 1, body->chunk);
    tdm_low_product(l, body, TDM_PART_DOWN, tdm_low_work(l, TDM_ACTIVATED), TDM_ACTIVATED, output,
                    made, tdm_low_work(l, TDM_Y), TDM_Y);
    tdm_low_release_work(l, TDM_ACTIVATED);
    tdm_low_release_work(l, TDM_Y);
    if (embedded)
        tdm_low_release_work(l, TDM_X);
    if (home.buffer != TDM_NONE)
        tdm_low_copy(l, body, output, home, made);
}

void tdm_low_kv_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    const struct tdm_body *body = &pending->body;
    enum tdm_kv_step step = tdm_low_kv_step(l, body);
    bool embedded;
    tdm_low_kv_fetch(l, body);
    if (step != TDM_KV_MAKE)
        return;
    struct tdm_ref x = tdm_low_input_of(l, pending, &embedded);
    tdm_low_alloc_work(l, TDM_NORMED);
    tdm_low_norm(l, body, TDM_PART_ATTENTION_NORM, x, TDM_X, TDM_NORMED);
    if (embedded)
        tdm_low_release_work(l, TDM_X);
    tdm_low_kv_product(l, body);
    tdm_low_release_work(l, TDM_NORMED);
}
