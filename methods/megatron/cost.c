/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a step of Megatron-LM for one GPU: its share of products and attention, and the bytes
 * it sends. A rank's rows of K and V have `kv` bytes together. With R ranks, the four kinds of
 * context parallelism send
 *
 *     p2p         (R - 1) kv forward, and twice as much backward (K, V and their gradients),
 *                 overlapped with computation
 *     all_gather  (R - 1) kv forward; backward, the same again, and gradients are reduced; not
 *                 overlapped
 *     a2a         (R - 1) / R of q, k, v and the output, forward and backward
 *     a2a+p2p     both, each over its part of the ranks
 *
 * Tensor parallelism reduces twice per layer forward, and twice backward. Each time it sends
 * 2 (R - 1) / R of the hidden states; with sequence parallelism, a gather and a scatter send the
 * same. Sequence parallelism gathers once more for weight gradients.
 */
#include "methods/megatron/megatron.h"

#include "methods/megatron/parts.h"
#include "methods/method.h"

#include <math.h>

#define BF16_BYTES 2.0
#define FP32_BYTES 4.0

/* The share of a whole that one rank sends to gather or scatter it. Each rank holds a part. */
static double share(uint64_t ranks)
{
    return (double)(ranks - 1) / (double)ranks;
}

/* Of a forward's products: experts that run again, or the shared ones. */
static double mixture_share(const struct tdm_model *model, const struct tdm_megatron_settings *s)
{
    const struct tdm_experts *e = &model->experts;
    const bool all = (s->modules & 1u << TDM_RECOMPUTED_MOE) != 0;
    const bool shared = all || (s->modules & 1u << TDM_RECOMPUTED_SHARED_EXPERTS) != 0;
    const double width =
        (shared ? e->shared : 0) + (all ? (double)e->intermediate * e->per_token : 0);
    double layers = 0;
    for (uint32_t i = 0; i < model->layers && e->count > 0; i++)
        layers += model->layer_kinds[i].experts;
    return 3.0 * model->hidden * width * layers / (double)tdm_model_active_matmul_parameters(model);
}

static void compute(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    const struct tdm_megatron_layout *l, struct tdm_method_cost *cost)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    double copies = (double)(l->tensor * l->context * l->pipeline), forward, extra = 0;
    /* In forwards, forward and backward cost: products 3 (frozen ones 2), attention 3.5. */
    tdm_torch_cost(model, settings, cost);
    forward = cost->product_flops / (settings->torch.lora_rank > 0 ? 2 : 3);
    if (s->recompute == TDM_RECOMPUTE_FULL)
        extra = s->method == TDM_RECOMPUTE_BLOCK
                    ? (double)(s->recompute_layers * l->chunks * l->pipeline) / model->layers
                    : 1;
    extra = extra > 1 ? 1 : extra;
    double again = extra;
    if (s->recompute == TDM_RECOMPUTE_SELECTIVE &&
        (s->modules & 1u << TDM_RECOMPUTED_CORE_ATTN) != 0)
        again = 1;
    cost->attention_flops *= (3.5 + again) / 3.5;
    if (s->recompute == TDM_RECOMPUTE_SELECTIVE && (s->modules & 1u << TDM_RECOMPUTED_MLP) != 0)
        extra = (s->gelu_mlp || (model->parts & TDM_PART_PLAIN_MLP) != 0 ? 2.0 : 3.0) *
                model->hidden * model->intermediate * model->layers /
                (double)tdm_model_active_matmul_parameters(model);
    if (s->recompute == TDM_RECOMPUTE_SELECTIVE)
        extra += mixture_share(model, s);
    cost->product_flops += forward * extra;
    if (s->packed && !s->hybrid && s->longest > 0) /* of each sequence by itself */
        cost->attention_flops *= (double)s->longest / (double)settings->torch.tokens;
    double steps = (double)l->microbatches / copies;
    cost->product_flops *= steps;
    cost->attention_flops *= steps;
}

/* Ranks are numbered by tensor, context, data and pipeline. The tensor rank varies fastest. */
static struct tdm_gpu_group group_of(const struct tdm_method_settings *settings, uint64_t ranks,
                                     uint64_t stride)
{
    return (struct tdm_gpu_group){ranks, stride, settings->torch.context.gpus_per_node};
}

void tdm_megatron_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                       struct tdm_method_cost *cost)
{
    const struct tdm_megatron_settings *s = &settings->megatron;
    struct tdm_megatron_layout l;
    *cost = (struct tdm_method_cost){.sequences = 0};
    if (tdm_megatron_layout(model, settings, &l, NULL) != TDM_OK)
        return;
    const struct tdm_gpu_group tensor = group_of(settings, l.tensor, 1),
                               context = group_of(settings, l.context, l.tensor),
                               heads = group_of(settings, l.exchange_heads, l.tensor),
                               ring =
                                   group_of(settings, l.exchange_ring, l.tensor * l.exchange_heads),
                               replicas = group_of(settings, l.context * l.data, l.tensor),
                               stages =
                                   group_of(settings, l.pipeline, l.tensor * l.context * l.data);
    compute(model, settings, &l, cost);
    cost->sequences = (double)(settings->torch.batch * l.microbatches * l.data);
    double rows = (double)(settings->torch.batch * settings->torch.tokens / l.context);
    double layers = (double)l.stage_layers * (double)l.microbatches;
    /* A layer of a hybrid model has one block. */
    const double blocks = (model->parts & TDM_PART_ONE_MIXER) != 0 ? 1 : 2;
    double forwards = s->recompute == TDM_RECOMPUTE_FULL ? 2 : 1;
    double hidden = rows * model->hidden * BF16_BYTES;
    double dims = (double)(model->head_dim + megatron_value_dim(model)); /* of k and v; q and o */
    double kv =
        rows * fmax(model->kv_heads, (double)l.tensor) * dims / (double)l.tensor * BF16_BYTES;
    double qo = rows * model->query_heads * dims / (double)l.tensor * BF16_BYTES;
    const struct megatron_divider *divider = &megatron_dividers[s->exchange];
    if (!divider->rings && !divider->exchanges)
        tdm_traffic_add(&cost->exposed, context,
                        layers * (double)(l.context - 1) * kv * (forwards + 2));
    if (divider->rings) {
        cost->ring = tdm_ring_of(ring);
        cost->ring.forward_bytes = kv;
        cost->ring.backward_bytes = 2 * kv;
        cost->ring_forwards = layers * forwards;
        cost->ring_backwards = layers;
    }
    tdm_traffic_add_exchange(&cost->exposed, heads,
                             layers * share(l.exchange_heads) * (qo + kv) * (forwards + 1));
    tdm_traffic_add(&cost->exposed, tensor,
                    layers * blocks * 2 * share(l.tensor) * hidden * (forwards + 1));
    /* Ranks that share KV heads gather the joint q, k, v. */
    if (model->latent.kv_rank == 0 && l.tensor > model->kv_heads)
        tdm_traffic_add(&cost->exposed, tensor,
                        layers * share(l.tensor) * rows *
                            (double)(model->query_heads + 2 * model->kv_heads) * model->head_dim *
                            BF16_BYTES * (forwards + 1));
    /* The input of a product is gathered again for its weight's gradient. */
    if (l.sequence_parallel && (settings->torch.lora_rank == 0 || s->regather))
        tdm_traffic_add(&cost->sent, tensor, layers * blocks * share(l.tensor) * hidden);
    if (l.pipeline > 1)
        tdm_traffic_add(&cost->exposed, stages,
                        2 * (double)(l.microbatches * l.chunks) * hidden /
                            (l.sequence_parallel ? (double)l.tensor : 1));
    double parameters =
        tdm_torch_trained_parameters(model, &settings->torch) / (double)(l.tensor * l.pipeline);
    double reduced = share(l.data * l.context) * parameters;
    tdm_traffic_add(s->overlap_reduce ? &cost->sent : &cost->exposed, replicas,
                    reduced * FP32_BYTES * (s->distributed_optimizer ? 1 : 2));
    if (s->distributed_optimizer)
        tdm_traffic_add(&cost->exposed, replicas, reduced * BF16_BYTES);
    if (s->offloads) /* gradients to the host, parameters back */
        cost->host_bytes +=
            s->offloaded * parameters / (double)(l.data * l.context) *
            ((s->narrow_gradients || s->reduces_narrow ? BF16_BYTES : FP32_BYTES) + BF16_BYTES);
}
