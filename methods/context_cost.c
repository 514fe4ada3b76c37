/* SPDX-License-Identifier: Apache-2.0 */
/* What a divided sequence costs a GPU: its share of the work, and what goes from GPU to GPU. */
#include "methods/context_cost.h"

#include "methods/method.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- seconds of the rings ---- */

static double inside(const struct tdm_links *links, double bytes)
{
    return links->node_latency_seconds + bytes / links->node_bytes_per_second;
}

static double between(const struct tdm_links *links, double bytes)
{
    return links->network_latency_seconds + bytes / links->network_bytes_per_second;
}

/* One tensor once round all ranks: the slower link rules every step of a single ring; of two rings that run at the same
 * time the slower one; else one after the other. */
static double round_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links,
                            double bytes, bool together)
{
    double ranks = (double)turn->ranks, nodes = (double)turn->nodes;
    if (nodes <= 1)
        return ranks * inside(links, bytes);
    if (turn->kind == TDM_TURN_RING)
        return ranks * larger(inside(links, bytes), between(links, bytes));
    double inner = (ranks - nodes) * inside(links, bytes), outer = nodes * between(links, bytes);
    return together ? larger(inner, outer) : inner + outer;
}

double tdm_ring_forward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links)
{
    return 2 * round_seconds(turn, links, turn->key_bytes, true);
}

double tdm_ring_backward_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links)
{
    if (turn->kind == TDM_TURN_BURST)
        return 3 * round_seconds(turn, links, turn->query_bytes, true) +
               2 * round_seconds(turn, links, turn->sum_bytes, true);
    /* Gradients of keys and values are ready only when a turn inside a node is. */
    return 2 * round_seconds(turn, links, turn->key_bytes, true) +
           2 * round_seconds(turn, links, turn->key_gradient_bytes, false);
}

/* ---- bytes ---- */

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

void tdm_context_share_cost(const struct tdm_model *model,
                            const struct tdm_method_settings *settings,
                            struct tdm_method_cost *cost)
{
    double ranks = (double)settings->torch.context.ranks;
    struct tdm_method_settings whole = *settings;
    if (whole.torch.sharing == TDM_SHARING_NONE) /* gradients are summed all the same */
        whole.torch.sharing = TDM_SHARING_DDP;
    tdm_torch_cost(model, &whole, cost);
    cost->product_flops /= ranks;
    cost->attention_flops /= ranks;
}

void tdm_context_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                      struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const struct tdm_context *c = &s->context;
    double tokens = (double)tdm_context_local_tokens(c, s->tokens), layers = model->layers;
    double forwards = s->checkpointing == TDM_CHECKPOINTING_OFF ? 1 : 2;
    double ring = (double)c->ring_degree, ulysses = (double)c->ulysses_degree;
    struct rank_bytes b = bytes_of(model, s, tokens);
    tdm_context_share_cost(model, settings, cost);
    /* q, k, v and the output change places, and in the backward their gradients. */
    cost->exposed_bytes +=
        layers * (forwards + 1) * (2 * b.query + 2 * b.key) * (ulysses - 1) / ulysses;
    /* K and V R - 1 times, dK and dV R times and in fp32, between nodes of a double ring in bf16. */
    cost->sent_bytes += layers * 2 * b.key * (ring - 1) * (forwards + 1);
    if (ring > 1)
        cost->sent_bytes += layers * 2 * b.key * (FP32_BYTES / BF16_BYTES) * ring;
}
