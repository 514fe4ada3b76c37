/* SPDX-License-Identifier: Apache-2.0 */
/* Backward of a layer, and gradient of the embedding. */
#include "schedule/lower_parts.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/mlp.h"
#include "ops/move.h"
#include "ops/norm.h"
#include "ops/product.h"
#include "ops/rope.h"
#include "schedule/attend.h"
#include "schedule/optimizer.h"

/* Where dX of the attention norm's output is. If ranks gather K and V, those of all chunks wait for
 * dK and dV, in a row. */
static struct tdm_ref d_normed(const struct tdm_lowering *l, uint32_t chunk)
{
    struct tdm_ref ref = tdm_low_work(l, TDM_DNORMED);
    ref.slot = tdm_ranks_gather(l->program) ? l->program->chunks[chunk].slot : 0;
    return ref;
}

static struct tdm_ref work_of(const struct tdm_lowering *l, enum tdm_content content,
                              uint32_t chunk)
{
    return content == TDM_DNORMED ? d_normed(l, chunk) : tdm_low_work(l, content);
}

/* input gradient = output gradient * weights; weight gradient += output gradient^T * input. */
static void grad_input(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                       struct tdm_ref from, struct tdm_tag gradient, enum tdm_content to,
                       bool first)
{
    if (l->lives_only)
        return;
    struct tdm_tag made = tdm_low_tag(to, body->layer, body->chunk);
    tdm_low_op_begin(l, body, TDM_OP_PRODUCT_GRAD_INPUT, part);
    tdm_low_reads(l, TDM_PRODUCT_GRAD_INPUT_DOUT, from, gradient);
    tdm_low_reads_weights(l, TDM_PRODUCT_GRAD_INPUT_WEIGHTS, body->layer, part);
    if (first)
        tdm_low_writes(l, TDM_PRODUCT_GRAD_INPUT_DX, work_of(l, to, body->chunk), made);
    else /* the q product's share is there; the KV product's completes the sum */
        tdm_low_changes(l, TDM_PRODUCT_GRAD_INPUT_DX, work_of(l, to, body->chunk), made,
                        tdm_low_sum_tag(to, body->layer, body->chunk, 0));
    tdm_low_op_end(l);
}

static void grad_weight(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                        struct tdm_ref input, enum tdm_content of, struct tdm_ref from,
                        struct tdm_tag gradient)
{
    tdm_low_op_begin(l, body, TDM_OP_PRODUCT_GRAD_WEIGHT, part);
    tdm_low_reads(l, TDM_PRODUCT_GRAD_WEIGHT_X, input, tdm_low_tag(of, body->layer, body->chunk));
    tdm_low_reads(l, TDM_PRODUCT_GRAD_WEIGHT_DOUT, from, gradient);
    tdm_low_adds_layer_gradient(l, TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS, part);
    tdm_low_op_end(l);
    tdm_low_send_part(l, body, part);
}

static void norm_grad(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                      struct tdm_ref x, enum tdm_content of, enum tdm_content d_out,
                      uint32_t contributor, struct tdm_tag before, struct tdm_tag after)
{
    tdm_low_op_begin(l, body, TDM_OP_NORM_GRAD, part);
    tdm_low_reads(l, TDM_NORM_GRAD_X, x, tdm_low_tag(of, body->layer, body->chunk));
    tdm_low_reads_weights(l, TDM_NORM_GRAD_WEIGHTS, body->layer, part);
    tdm_low_reads(l, TDM_NORM_GRAD_DOUT, work_of(l, d_out, body->chunk),
                  tdm_low_sum_tag(d_out, body->layer, body->chunk, contributor));
    tdm_low_changes(l, TDM_NORM_GRAD_DX, tdm_low_stream_ref(l, body->chunk), before, after);
    tdm_low_adds_layer_gradient(l, TDM_NORM_GRAD_DWEIGHTS, part);
    tdm_low_op_end(l);
    tdm_low_send_part(l, body, part);
}

static void mlp_backward(struct tdm_lowering *l, struct tdm_values *v)
{
    const struct tdm_body *body = &v->pending->body;
    uint32_t layer = body->layer, chunk = body->chunk;
    struct tdm_ref gate_up = v->at[TDM_GATE_UP];
    struct tdm_ref stream = tdm_low_stream_ref(l, chunk);
    struct tdm_tag dx = tdm_low_tag(TDM_DX, layer + 1, chunk);
    struct tdm_tag d_gate_up = tdm_low_tag(TDM_DGATE_UP, layer, chunk);
    struct tdm_ref activated = tdm_low_work(l, TDM_DACTIVATED); /* at first its gradient */

    tdm_low_alloc_work(l, TDM_DACTIVATED);
    grad_input(l, body, TDM_PART_DOWN, stream, dx, TDM_DACTIVATED, true);
    tdm_low_op_begin(l, body, TDM_OP_SWIGLU_GRAD, TDM_PART_GATE_UP);
    tdm_low_changes(l, TDM_SWIGLU_GRAD_GATE_UP, gate_up, tdm_low_tag(TDM_GATE_UP, layer, chunk),
                    d_gate_up);
    tdm_low_changes(l, TDM_SWIGLU_GRAD_DOUT, activated, tdm_low_tag(TDM_DACTIVATED, layer, chunk),
                    tdm_low_tag(TDM_ACTIVATED, layer, chunk));
    tdm_low_op_end(l);
    grad_weight(l, body, TDM_PART_DOWN, activated, TDM_ACTIVATED, stream, dx);
    tdm_low_release_work(l, TDM_DACTIVATED);
    grad_weight(l, body, TDM_PART_GATE_UP, v->at[TDM_MLP_NORMED], TDM_MLP_NORMED, gate_up,
                d_gate_up);
    tdm_low_value_free(l, v, TDM_MLP_NORMED);
    tdm_low_alloc_work(l, TDM_DMLP_NORMED);
    grad_input(l, body, TDM_PART_GATE_UP, gate_up, d_gate_up, TDM_DMLP_NORMED, true);
    tdm_low_value_free(l, v, TDM_GATE_UP);
    norm_grad(l, body, TDM_PART_MLP_NORM, v->at[TDM_Y], TDM_Y, TDM_DMLP_NORMED, TDM_NONE, dx,
              tdm_low_tag(TDM_DY, layer, chunk));
    tdm_low_release_work(l, TDM_DMLP_NORMED);
    tdm_low_value_free(l, v, TDM_Y);
}

void tdm_low_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                            const struct tdm_attention_refs *refs)
{
    if (l->lives_only)
        return;
    uint32_t layer = body->layer, chunk = body->chunk;
    uint32_t first = tdm_attend_first(l->program, layer, chunk);
    uint32_t shared = tdm_attend_shared(l->program, layer, chunk);
    struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, layer, first);
    struct tdm_tag after = tdm_low_share_tag(l, TDM_DKVPAGES, layer, first, chunk);
    if (tdm_ranks_divide_heads(l->program) && !tdm_ranks_gather(l->program))
        /* the chunks of all ranks add to it */
        after = tdm_low_sum_tag(TDM_DKVPAGES, layer, first, chunk);
    struct tdm_tag before = after;
    before.contributor = tdm_kv_sum_before(l->program, chunk);

    tdm_low_op_begin(l, body, TDM_OP_ATTENTION_GRAD, 0);
    tdm_low_reads(l, TDM_ATTENTION_GRAD_Q, refs->q,
                  tdm_low_tag(tdm_low_attended(l, TDM_Q), layer, chunk));
    tdm_low_chunks(l, TDM_ATTENTION_GRAD_KV, body, tdm_low_seen_kv(l, body), first, chunk + 1,
                   TDM_READ, pages, pages);
    tdm_low_reads(l, TDM_ATTENTION_GRAD_O, refs->out,
                  tdm_low_tag(tdm_low_attended(l, TDM_ATTENTION_OUT), layer, chunk));
    tdm_low_reads(l, TDM_ATTENTION_GRAD_DO, refs->d_out,
                  tdm_low_tag(tdm_low_attended(l, TDM_DATTENTION), layer, chunk));
    tdm_low_writes(l, TDM_ATTENTION_GRAD_DQ, refs->d_q,
                   tdm_low_tag(tdm_low_attended(l, TDM_DQ), layer, chunk));
    tdm_low_chunks(l, TDM_ATTENTION_GRAD_DKV_OPENED, body, tdm_low_seen_dkv(l, layer), first,
                   shared, TDM_WRITE, before, after);
    tdm_low_chunks(l, TDM_ATTENTION_GRAD_DKV_ADDED, body, tdm_low_seen_dkv(l, layer), shared,
                   chunk + 1, TDM_ACCUMULATE, before, after);
    tdm_low_reads_lists(l, TDM_ATTENTION_GRAD_LISTS, body, refs->lists);
    tdm_low_op_end(l);
}

static void attention_grad(struct tdm_lowering *l, const struct tdm_values *v)
{
    const struct tdm_body *body = &v->pending->body;
    const struct tdm_attention_refs refs = {
        .q = v->at[TDM_Q],
        .out = v->at[TDM_ATTENTION_OUT],
        .d_out = tdm_low_work(l, TDM_DATTENTION),
        .d_q = tdm_low_work(l, TDM_DQ),
        .lists = v->at[TDM_PAGE_LISTS],
    };
    if (tdm_ranks_divide_heads(l->program)) {
        tdm_low_heads_attention_grad(l, body, &refs);
        return;
    }
    if (tdm_ranks_ring(l->program)) {
        tdm_low_ring_attention_grad(l, body, &refs);
        return;
    }
    tdm_low_dkv_move_if_full(l, body);
    tdm_low_attention_grad(l, body, &refs);
}

/* Reads the product that a QK-norm read, for the norm's gradient. */
static void reads_raw(struct tdm_lowering *l, uint32_t operand, enum tdm_content raw)
{
    tdm_low_reads(l, operand, tdm_low_work(l, raw), tdm_low_tag(raw, l->op.layer, l->op.chunk));
}

static void q_backward(struct tdm_lowering *l, const struct tdm_values *v)
{
    const struct tdm_body *body = &v->pending->body;
    struct tdm_tag raw = tdm_low_tag(TDM_DQRAW, body->layer, body->chunk);
    bool norm = tdm_low_qk_norm(l, body);
    if (norm && (v->made & TDM_BIT(TDM_Q)) == 0) /* else the product is in its workspace */
        tdm_low_q_raw(l, body, v->at[TDM_NORMED]);
    tdm_low_op_begin(l, body, TDM_OP_ROPE_GRAD, norm ? TDM_PART_Q_NORM : TDM_PART_Q);
    tdm_low_changes(l, TDM_ROPE_GRAD_DQ, tdm_low_work(l, TDM_DQ),
                    tdm_low_tag(TDM_DQ, body->layer, body->chunk), raw);
    if (norm) {
        reads_raw(l, TDM_ROPE_GRAD_RAW, TDM_QRAW);
        tdm_low_reads_weights(l, TDM_ROPE_GRAD_WEIGHTS, body->layer, TDM_PART_Q_NORM);
        tdm_low_adds_layer_gradient(l, TDM_ROPE_GRAD_DWEIGHTS, TDM_PART_Q_NORM);
    }
    tdm_low_op_end(l);
    if (norm) {
        tdm_low_send_part(l, body, TDM_PART_Q_NORM);
        tdm_low_release_work(l, TDM_QRAW);
    }
    grad_weight(l, body, TDM_PART_Q, v->at[TDM_NORMED], TDM_NORMED, tdm_low_work(l, TDM_DQ), raw);
    if (!tdm_ranks_gather(l->program))
        tdm_low_alloc_work(l, TDM_DNORMED);
    grad_input(l, body, TDM_PART_Q, tdm_low_work(l, TDM_DQ), raw, TDM_DNORMED, true);
    tdm_low_release_work(l, TDM_DQ);
}

/* When the sweep reaches a chunk, all later chunks have added to its dK and dV. */
static void kv_backward(struct tdm_lowering *l, struct tdm_values *v)
{
    const struct tdm_body *body = &v->pending->body;
    struct tdm_tag raw = tdm_low_tag(TDM_DKVRAW, body->layer, body->chunk);
    bool norm = tdm_low_qk_norm(l, body);
    if (norm) /* the pages hold K after norm and RoPE; the gradient of the norm needs the product */
        tdm_low_kv_raw(l, body, v->at[TDM_NORMED]);
    struct tdm_ref sums = tdm_low_finished_dkv(l, body);
    bool whole = tdm_ranks_divide_heads(l->program);
    struct tdm_tag finished =
        whole ? tdm_low_tag(TDM_OWN_DKVPAGES, body->layer, body->chunk)
              : tdm_low_sum_tag(TDM_DKVPAGES, body->layer, body->chunk, body->chunk);
    tdm_low_alloc_work(l, TDM_DKVRAW);
    tdm_low_op_begin(l, body, TDM_OP_KV_GRAD_READ, norm ? TDM_PART_K_NORM : TDM_PART_KV);
    tdm_low_reads(l, TDM_KV_GRAD_READ_DPAGES, sums, finished);
    tdm_low_writes(l, TDM_KV_GRAD_READ_DRAW, tdm_low_work(l, TDM_DKVRAW), raw);
    if (norm) {
        reads_raw(l, TDM_KV_GRAD_READ_RAW, TDM_KVRAW);
        tdm_low_reads_weights(l, TDM_KV_GRAD_READ_WEIGHTS, body->layer, TDM_PART_K_NORM);
        tdm_low_adds_layer_gradient(l, TDM_KV_GRAD_READ_DWEIGHTS, TDM_PART_K_NORM);
    }
    tdm_low_op_end(l);
    if (whole)
        tdm_low_release_work(l, TDM_OWN_DKVPAGES);
    if (norm) {
        tdm_low_send_part(l, body, TDM_PART_K_NORM);
        tdm_low_release_work(l, TDM_KVRAW);
    }
    grad_weight(l, body, TDM_PART_KV, v->at[TDM_NORMED], TDM_NORMED, tdm_low_work(l, TDM_DKVRAW),
                raw);
    tdm_low_value_free(l, v, TDM_NORMED);
    grad_input(l, body, TDM_PART_KV, tdm_low_work(l, TDM_DKVRAW), raw, TDM_DNORMED, false);
    tdm_low_release_work(l, TDM_DKVRAW);
}

/* The gradient of the embedding: each row of DX is added to the row of its token. Rows are sorted
 * by token, so that one worker owns a row of the table and adds to it in a fixed order. The
 * gradient is set to zero once, which takes 0.5 ms of a step for 2 GiB. A bitmap of touched rows
 * would cost its readers more. */
void tdm_low_embedding_body(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t unit = tdm_model_embedding_unit(l->model);
    uint64_t bytes =
        tdm_part_bytes(l->model, unit, TDM_PART_EMBEDDING, l->schedule->dtypes.gradients);
    struct tdm_ref gradient = tdm_low_gradient_ref(l, unit);
    struct tdm_tag after = tdm_low_share_tag(l, TDM_UNIT_GRADIENT, unit, TDM_NONE, body->chunk);
    struct tdm_tag before = after;
    before.contributor = tdm_sum_before(l->program, body->chunk);
    struct tdm_body on_unit = *body;
    on_unit.layer = unit;

    if (tdm_sum_opens(l->program, body->chunk)) { /* rows of tokens that do not occur stay zero */
        tdm_low_alloc_gradient(l, gradient.buffer);
        tdm_low_op_begin(l, &on_unit, TDM_OP_ZERO, TDM_PART_EMBEDDING);
        tdm_low_access(l, TDM_ZERO_SLOT, gradient, 1, TDM_WRITE, TDM_PART_EMBEDDING,
                       tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE), before, bytes);
        tdm_low_op_end(l);
    }
    struct tdm_ref tokens = {l->layout->tokens, body->chunk};
    struct tdm_ref order = tdm_low_work(l, TDM_TOKEN_ORDER);
    tdm_low_alloc_work(l, TDM_TOKEN_ORDER);
    tdm_low_op_begin(l, &on_unit, TDM_OP_SORT_TOKENS, TDM_PART_EMBEDDING);
    tdm_low_reads(l, TDM_SORT_TOKENS_TOKENS, tokens,
                  tdm_low_tag(TDM_TOKENS, TDM_NONE, body->chunk));
    tdm_low_writes(l, TDM_SORT_TOKENS_ORDER, order,
                   tdm_low_tag(TDM_TOKEN_ORDER, TDM_NONE, body->chunk));
    tdm_low_op_end(l);
    tdm_low_op_begin(l, &on_unit, TDM_OP_EMBED_GRAD, TDM_PART_EMBEDDING);
    tdm_low_reads(l, TDM_EMBED_GRAD_TOKENS, tokens, tdm_low_tag(TDM_TOKENS, TDM_NONE, body->chunk));
    tdm_low_reads(l, TDM_EMBED_GRAD_ORDER, order,
                  tdm_low_tag(TDM_TOKEN_ORDER, TDM_NONE, body->chunk));
    tdm_low_reads(l, TDM_EMBED_GRAD_DOUT, tdm_low_stream_ref(l, body->chunk),
                  tdm_low_tag(TDM_DX, 0, body->chunk));
    uint64_t rows =
        l->op.tokens * l->model->hidden * tdm_dtype_bytes(l->schedule->dtypes.gradients);
    tdm_low_access(l, TDM_EMBED_GRAD_DWEIGHTS, gradient, 1, TDM_ACCUMULATE, TDM_PART_EMBEDDING,
                   before, after, rows < bytes ? rows : bytes); /* at most a row for each token */
    tdm_low_op_end(l);
    tdm_low_release_work(l, TDM_TOKEN_ORDER);
    if (tdm_sum_closes(l->program, body->chunk))
        tdm_low_release(l, l->layout->stream); /* no later op reads it */
}

/* First half: from dX of the layer above to dQ, and to what the chunk adds to dK and dV of the
 * chunks that it sees. Leaves dQ (in its workspace) and `v` to the second half. */
static void backward_to_attention(struct tdm_lowering *l, const struct tdm_pending *pending,
                                  struct tdm_values *v)
{
    const struct tdm_body *body = &pending->body;
    uint32_t layer = body->layer, chunk = body->chunk;

    if (tdm_sum_opens(l->program, chunk) && tdm_low_layer_major(l)) {
        if (l->program->ranks == 1 || !tdm_low_ranks_add_first(l)) /* else the layer has begun it */
            tdm_low_alloc(l, l->layout->dkv[layer]);
        if (!tdm_low_gradient_came_on(l, layer))
            tdm_low_alloc_gradient(l, l->layout->layer_gradient[layer]);
    }

    if (!tdm_low_layer_major(l)) /* in layer-major order the sweep did it */
        tdm_low_kv_fetch(l, body);
    tdm_low_dkv_fetch(l, body);
    tdm_low_values_begin(l, pending, v);
    tdm_low_values_make(l, v);

    mlp_backward(l, v);
    struct tdm_tag dy = tdm_low_tag(TDM_DY, layer, chunk);
    grad_weight(l, body, TDM_PART_O, v->at[TDM_ATTENTION_OUT], TDM_ATTENTION_OUT,
                tdm_low_stream_ref(l, chunk), dy);
    tdm_low_alloc_work(l, TDM_DATTENTION);
    grad_input(l, body, TDM_PART_O, tdm_low_stream_ref(l, chunk), dy, TDM_DATTENTION, true);
    tdm_low_alloc_work(l, TDM_DQ);
    attention_grad(l, v);
    tdm_low_value_free(l, v, TDM_PAGE_LISTS);
    tdm_low_release_work(l, TDM_DATTENTION);
    tdm_low_value_free(l, v, TDM_Q);
    tdm_low_value_free(l, v, TDM_ATTENTION_OUT);
}

/* From the chunk's complete dK and dV to dX. */
static void backward_from_kv(struct tdm_lowering *l, const struct tdm_body *body,
                             struct tdm_values *v)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    kv_backward(l, v);
    tdm_low_dkv_send(l, body);
    norm_grad(l, body, TDM_PART_ATTENTION_NORM, v->at[TDM_X], TDM_X, TDM_DNORMED, 0,
              tdm_low_tag(TDM_DY, layer, chunk), tdm_low_tag(TDM_DX, layer, chunk));
    if (!tdm_ranks_gather(l->program))
        tdm_low_release_work(l, TDM_DNORMED);
    tdm_low_value_free(l, v, TDM_X);
    if (layer == 0 && !tdm_nest_embeds_apart(l->schedule))
        tdm_low_embedding_body(l, body);
}

void tdm_low_backward_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    struct tdm_values v;
    backward_to_attention(l, pending, &v);
    q_backward(l, &v);
    if (!tdm_ranks_gather(l->program)) {
        backward_from_kv(l, &pending->body, &v);
        return;
    }
    tdm_low_value_free(l, &v, TDM_NORMED);
    tdm_low_value_free(l, &v, TDM_X);
    tdm_low_reduce(l, &pending->body);
}

void tdm_low_backward_kv_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    struct tdm_values v;
    tdm_low_values_begin(l, pending, &v);
    tdm_low_values_make(l, &v);
    if (tdm_ranks_divide_heads(l->program))
        tdm_low_heads_dkv(l, &pending->body);
    backward_from_kv(l, &pending->body, &v);
}
