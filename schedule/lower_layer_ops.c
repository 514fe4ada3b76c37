/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of a layer's forward. lower_layer.c decides which are made, and in what order. */
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
                  struct tdm_ref x, enum tdm_content from, struct tdm_ref output,
                  enum tdm_content to)
{
    if (l->lives_only)
        return;
    tdm_low_op_begin(l, body, TDM_OP_NORM, part);
    tdm_low_reads(l, TDM_NORM_X, x, tdm_low_tag(from, body->layer, body->chunk));
    tdm_low_reads_weights(
        l, TDM_NORM_WEIGHTS,
        body->layer == l->model->layers ? tdm_model_head_unit(l->model) : body->layer, part);
    tdm_low_writes(l, TDM_NORM_OUT, output, tdm_low_tag(to, body->layer, body->chunk));
    tdm_low_op_end(l);
}

void tdm_low_product(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                     struct tdm_ref input, enum tdm_content from, struct tdm_ref output,
                     struct tdm_tag made, struct tdm_ref addend, enum tdm_content added)
{
    if (l->lives_only)
        return;
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

void tdm_low_q_raw(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed)
{
    tdm_low_alloc_work(l, TDM_QRAW);
    tdm_low_product(l, body, TDM_PART_Q, normed, TDM_NORMED, tdm_low_work(l, TDM_QRAW),
                    tdm_low_tag(TDM_QRAW, body->layer, body->chunk), tdm_nowhere, TDM_EMPTY);
}

void tdm_low_kv_raw(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed)
{
    tdm_low_alloc_work(l, TDM_KVRAW);
    tdm_low_product(l, body, TDM_PART_KV, normed, TDM_NORMED, tdm_low_work(l, TDM_KVRAW),
                    tdm_low_tag(TDM_KVRAW, body->layer, body->chunk), tdm_nowhere, TDM_EMPTY);
}

void tdm_low_q_product(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed,
                       struct tdm_ref q)
{
    struct tdm_tag raw = tdm_low_tag(TDM_QRAW, body->layer, body->chunk);
    if (tdm_low_qk_norm(l, body)) {
        tdm_low_q_raw(l, body, normed);
        tdm_low_op_begin(l, body, TDM_OP_ROPE, TDM_PART_Q_NORM);
        tdm_low_reads(l, TDM_ROPE_Q, tdm_low_work(l, TDM_QRAW), raw);
        tdm_low_reads_weights(l, TDM_ROPE_WEIGHTS, body->layer, TDM_PART_Q_NORM);
        tdm_low_writes(l, TDM_ROPE_OUT, q, tdm_low_tag(TDM_Q, body->layer, body->chunk));
        tdm_low_op_end(l);
        if (body->kind != TDM_BODY_BACKWARD)
            tdm_low_release_work(l, TDM_QRAW);
        return;
    }
    tdm_low_product(l, body, TDM_PART_Q, normed, TDM_NORMED, q, raw, tdm_nowhere, TDM_EMPTY);
    tdm_low_op_begin(l, body, TDM_OP_ROPE, TDM_PART_Q);
    tdm_low_changes(l, TDM_ROPE_Q, q, raw, tdm_low_tag(TDM_Q, body->layer, body->chunk));
    tdm_low_op_end(l);
}

void tdm_low_kv_product(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed)
{
    struct tdm_tag raw = tdm_low_tag(TDM_KVRAW, body->layer, body->chunk);
    bool whole = tdm_ranks_divide_heads(l->program); /* the rank's own chunk, of all heads */
    struct tdm_tag pages =
        tdm_low_tag(whole ? TDM_OWN_KVPAGES : TDM_KVPAGES, body->layer, body->chunk);
    struct tdm_ref row = tdm_low_made_kv(l, body);
    bool norm = tdm_low_qk_norm(l, body);
    tdm_low_kv_enter(l, body, row);
    tdm_low_kv_raw(l, body, normed);
    tdm_low_op_begin(l, body, TDM_OP_KV_WRITE, norm ? TDM_PART_K_NORM : TDM_PART_KV);
    tdm_low_reads(l, TDM_KV_WRITE_RAW, tdm_low_work(l, TDM_KVRAW), raw);
    tdm_low_writes(l, TDM_KV_WRITE_PAGES, row, pages);
    if (norm)
        tdm_low_reads_weights(l, TDM_KV_WRITE_WEIGHTS, body->layer, TDM_PART_K_NORM);
    tdm_low_op_end(l);
    tdm_low_release_work(l, TDM_KVRAW);
    tdm_low_page_means(l, body);
    tdm_low_exchange_kv(l, body);
    tdm_low_kv_send(l, body, row);
}

void tdm_low_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                       struct tdm_ref output, struct tdm_ref lists)
{
    if (l->lives_only)
        return;
    uint32_t first = tdm_attend_first(l->program, body->layer, body->chunk);
    struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, body->layer, first);
    tdm_low_op_begin(l, body, TDM_OP_ATTENTION, 0);
    tdm_low_reads(l, TDM_ATTENTION_Q, q,
                  tdm_low_tag(tdm_low_attended(l, TDM_Q), body->layer, body->chunk));
    tdm_low_chunks(l, TDM_ATTENTION_KV, body, tdm_low_seen_kv(l, body), first, body->chunk + 1,
                   TDM_READ, pages, pages);
    tdm_low_writes(l, TDM_ATTENTION_O, output,
                   tdm_low_tag(tdm_low_attended(l, TDM_ATTENTION_OUT), body->layer, body->chunk));
    tdm_low_reads_lists(l, TDM_ATTENTION_LISTS, body, lists);
    tdm_low_op_end(l);
}

void tdm_low_activation(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref gate_up,
                        struct tdm_ref output)
{
    if (l->lives_only)
        return;
    tdm_low_op_begin(l, body, TDM_OP_SWIGLU, TDM_PART_GATE_UP);
    tdm_low_reads(l, TDM_SWIGLU_GATE_UP, gate_up,
                  tdm_low_tag(TDM_GATE_UP, body->layer, body->chunk));
    tdm_low_writes(l, TDM_SWIGLU_OUT, output, tdm_low_tag(TDM_ACTIVATED, body->layer, body->chunk));
    tdm_low_op_end(l);
}
