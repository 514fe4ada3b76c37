/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of dividing a sequence: the bytes that a GPU sends to other GPUs. */
#include "methods/context/fpdt.h"
#include "methods/method.h"

#define BF16_BYTES 2.0
#define FP32_BYTES 4.0

struct rank_bytes {
    double query, key; /* of one tensor of a layer in bf16 */
};

static struct rank_bytes bytes_of(const struct tdm_model *model, const struct tdm_torch_settings *s,
                                  double tokens)
{
    double numbers = tokens * (double)s->batch * (double)model->head_dim * BF16_BYTES;
    return (struct rank_bytes){.query = numbers * model->query_heads,
                               .key = numbers * model->kv_heads};
}

/* K and V are passed round the ring. In the backward, dK and dV are too: in fp32, but in bf16 after
 * the first turn of a double ring. */
static struct tdm_ring_turn ring_of(const struct tdm_context *c, double key_bytes)
{
    const struct tdm_gpu_group group = {c->ring_degree, c->ulysses_degree, c->gpus_per_node};
    struct tdm_ring_turn ring = tdm_ring_of(group);
    const double wide = FP32_BYTES / BF16_BYTES, turns = (double)ring.nodes;
    ring.forward_bytes = ring.backward_bytes = 2 * key_bytes;
    ring.double_ring = c->divider->rings_of_nodes;
    ring.gradient_bytes = 2 * key_bytes * (ring.double_ring ? (wide + turns - 1) / turns : wide);
    ring.node_gradient_bytes = 2 * key_bytes;
    return ring;
}

void tdm_context_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                      struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const struct tdm_context *c = &s->context;
    const struct tdm_gpu_group exchanging = {c->ulysses_degree, 1, c->gpus_per_node};
    double tokens = (double)tdm_context_local_tokens(c, s->tokens), layers = model->layers;
    double forwards = 1 + tdm_torch_forwards_again(model, s), ulysses = (double)c->ulysses_degree;
    struct rank_bytes b = bytes_of(model, s, tokens);
    /* q, k, v and the output are exchanged, and in the backward their gradients. */
    tdm_traffic_add_exchange(&cost->exposed, exchanging,
                             layers * (forwards + 1) * (2 * b.query + 2 * b.key) * (ulysses - 1) /
                                 ulysses);
    cost->ring = ring_of(c, b.key);
    cost->ring_forwards = layers * forwards;
    cost->ring_backwards = layers;
}

/* A chunk's K and V come back for every chunk behind it, in the forward, where a checkpoint runs it
 * again, and once in the backward; there the queries of every chunk come back for every chunk
 * before it: q, the output and its gradient, and dQ in fp32 in both directions. Everything goes to
 * the host once. MLP and head run again in their backward. */
void tdm_fpdt_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                   struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const struct tdm_context *c = &s->context;
    const double tokens = (double)tdm_context_local_tokens(c, s->tokens), layers = model->layers;
    const double forwards = 1 + tdm_torch_forwards_again(model, s);
    const double rows = tokens * (double)s->batch;
    const double chunks = (double)tdm_fpdt_chunks(c, (uint64_t)tokens);
    const struct rank_bytes b = bytes_of(model, s, tokens);
    tdm_context_cost(model, settings, cost);
    const double stored = 2 * b.query + 2 * b.key + rows * model->hidden * BF16_BYTES;
    const double dq = 2 * FP32_BYTES / BF16_BYTES;
    cost->host_bytes += layers * (forwards * (stored + (chunks - 1) * b.key) + 2 * b.key +
                                  (chunks + 1) / 2 * (3 + dq) * b.query);
    const double up = (model->parts & TDM_PART_PLAIN_MLP) != 0 ? 1 : 2;
    cost->product_flops +=
        2 * rows * model->hidden * (up * model->intermediate * layers + (double)model->vocabulary);
}
