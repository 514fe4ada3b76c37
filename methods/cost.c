/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of methods that keep a sequence whole, and the time of any cost. */
#include "methods/cost.h"

#include "methods/method.h"

#include <math.h>

#define BF16_BYTES 2.0
#define FP32_BYTES 4.0

/* Unmasked pairs of a query and a key, in one layer of one sequence: none where it has no
 * attention.
 */
static double seen_pairs(const struct tdm_model *model, uint32_t layer, double tokens)
{
    const struct tdm_layer_kind *kind = &model->layer_kinds[layer];
    double window = (double)kind->window;
    if (kind->no_attention || kind->delta || kind->short_conv)
        return 0;
    if (window == 0 || window >= tokens)
        return tokens * (tokens + 1) / 2;
    return window * (window + 1) / 2 + (tokens - window) * window;
}

double tdm_torch_forwards_again(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    if (s->checkpointing == TDM_CHECKPOINTING_OFF)
        return 0;
    if (s->checkpoint_every <= 1)
        return 1;
    return (double)(model->layers / s->checkpoint_every) / (double)model->layers;
}

static void compute(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    double tokens = (double)s->tokens, batch = (double)s->batch;
    double head = 2.0 * model->hidden * model->vocabulary * tokens * batch, attention = 0;
    double layers = 2 * (double)tdm_model_active_matmul_parameters(model) * tokens * batch - head;
    bool headless = s->logits == TDM_LOGITS_BASE || s->logits == TDM_LOGITS_LAST ||
                    s->logits == TDM_LOGITS_SCORE;
    for (uint32_t i = 0; i < model->layers; i++)
        attention +=
            4.0 * model->query_heads * model->head_dim * batch * seen_pairs(model, i, tokens);
    double again = tdm_torch_forwards_again(model, s);
    /* The backward of a product takes two products of the same size; that of attention takes five
     * for the forward's two. Frozen weights have no gradient. */
    cost->product_flops =
        (layers + (headless ? 0 : head)) * (s->lora_rank > 0 ? 2 : 3) + again * layers;
    if (settings->method->system == &tdm_torch_system)
        cost->product_flops += tdm_adapter_flops(model, s, again);
    cost->attention_flops = attention * (3.5 + again);
}

struct tdm_gpu_group tdm_torch_all_ranks(const struct tdm_torch_settings *s)
{
    return (struct tdm_gpu_group){s->ranks, 1, s->context.gpus_per_node};
}

double tdm_torch_shared_gradient_bytes(const struct tdm_model *model,
                                       const struct tdm_torch_settings *s)
{
    double share = (double)(s->ranks - 1) / (double)s->ranks;
    return tdm_torch_trained_parameters(model, s) * share *
           (s->fp32_weights ? FP32_BYTES : BF16_BYTES);
}

double tdm_torch_offloaded_bytes(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    double tokens = (double)tdm_context_local_tokens(&s->context, s->tokens) * (double)s->batch;
    bool offloads = s->checkpoint_offload == TDM_CHECKPOINTS_AWAY_ALST &&
                    s->checkpointing != TDM_CHECKPOINTING_OFF;
    return offloads ? 2 * BF16_BYTES * model->hidden * model->layers * tokens : 0;
}

void tdm_torch_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    struct tdm_method_cost *cost)
{
    const struct tdm_context *context = &settings->torch.context;
    const struct tdm_wrapper *wrapper = settings->torch.wrapper;
    if (context->divider != NULL && wrapper == &tdm_no_wrapper)
        wrapper = &tdm_ddp_wrapper; /* DDP still reduces gradients */
    *cost =
        (struct tdm_method_cost){.host_bytes = tdm_torch_offloaded_bytes(model, &settings->torch)};
    if (settings->torch.host_optimizer != TDM_HOST_NOTHING) /* gradients there, parameters back */
        cost->host_bytes += 2 * tdm_torch_trained_parameters(model, &settings->torch) *
                            (settings->torch.fp32_weights ? FP32_BYTES : BF16_BYTES);
    compute(model, settings, cost);
    if (wrapper->cost != NULL)
        wrapper->cost(model, settings, cost);
    if (context->divider == NULL)
        return;
    cost->product_flops /= (double)context->ranks;
    cost->attention_flops /= (double)context->ranks;
    context->divider->cost(model, settings, cost);
}

double tdm_method_sent_bytes(const struct tdm_method_cost *cost)
{
    return tdm_traffic_bytes(&cost->sent) + tdm_traffic_bytes(&cost->exposed) +
           cost->ring_forwards * tdm_ring_forward_sent(&cost->ring) +
           cost->ring_backwards * tdm_ring_backward_sent(&cost->ring);
}

/* The forward's share of attention FLOPs: 2/7 without checkpointing, 4/9 with it; a value between.
 */
#define FORWARD_SHARE 0.4

double tdm_method_seconds(const struct tdm_method_cost *cost, const struct tdm_model *model,
                          const struct tdm_machine *machine)
{
    const struct tdm_links links = tdm_links_of(machine);
    bool narrow = model->head_dim <= TDM_NARROW_HEAD_DIM;
    double forward =
        cost->attention_flops * FORWARD_SHARE /
        machine->rate[narrow ? TDM_RATE_NARROW_ATTENTION_FORWARD : TDM_RATE_ATTENTION_FORWARD];
    double backward =
        cost->attention_flops * (1 - FORWARD_SHARE) /
        machine->rate[narrow ? TDM_RATE_NARROW_ATTENTION_BACKWARD : TDM_RATE_ATTENTION_BACKWARD];
    double round_forward = cost->ring_forwards * tdm_ring_forward_seconds(&cost->ring, &links);
    double round_backward = cost->ring_backwards * tdm_ring_backward_seconds(&cost->ring, &links);
    double computing = cost->product_flops / machine->rate[TDM_RATE_PRODUCT] +
                       fmax(forward, round_forward) + fmax(backward, round_backward);
    /* Rings and collectives share the links. */
    double sending = tdm_traffic_seconds(&cost->sent, &links) + round_forward + round_backward;
    double moving = fmax(sending, cost->host_bytes / tdm_machine_both_ways_rate(machine));
    return fmax(computing, moving) + tdm_traffic_seconds(&cost->exposed, &links);
}
