/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO++ on stage 3. hpZ: when a parameter is given back, the GPUs of a group keep a second copy of
 * it among them, of which later gathers are made until the optimizer steps. qwZ: what is gathered
 * is quantized to 8 bits. qgZ: between nodes gradients are exchanged in 4 bits, first in the node,
 * then between nodes. Sources: DeepSpeed 0.19, runtime/zero/partition_parameters.py
 * (_partition_param_sec, CUDAQuantizer, _all_gather_sequential, _all_gather_coalesced,
 * AllGatherHandle.wait, AllGatherCoalescedHandle.wait), runtime/zero/stage3.py
 * (invalidate_secondary_tensor, __avg_scatter_grads), runtime/comm/coalesced_collectives.py
 * (all_to_all_quant_reduce), csrc/quantization/pt_binding.cpp. */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

/* ---- hpZ ---- */

uint64_t tdm_zeropp_second_share(const struct tdm_deepspeed *d, uint32_t number)
{
    uint64_t groups = d->ranks / tdm_zeropp_second_ranks(&d->s, d->ranks);
    return tdm_zero3_share(d, number) * groups;
}

void tdm_zeropp_keep_second(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_parameter *p = &d->parameters[number];
    if (p->has_second)
        return;
    p->has_second = true;
    tdm_zero_changes(d, number);
    if (!d->s.offload_param)
        p->second = tdm_zero_named(t, ZERO_COMPUTE, TDM_METHOD_WEIGHTS, "second copy (hpZ)",
                                   tdm_zeropp_second_share(d, number), BF16);
}

void tdm_zeropp_drop_seconds(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        struct zero_parameter *p = &d->parameters[i];
        if (!p->trained)
            continue;
        tdm_drop(t->m, p->second);
        p->second = NULL;
        p->has_second = false;
        tdm_zero_changes(d, i);
    }
}

/* ---- qwZ ---- */

#define MOST_EIGHTS 1000u /* target_group_size, in eights */

/* The quantizer looks upwards from elements / 8000 for a number of groups that divides the eights.
 * So a group has as many eights as the largest divisor up to 1,000. */
uint64_t tdm_zeropp_groups(uint64_t elements)
{
    uint64_t eights = elements / TDM_ZEROPP_MULTIPLE;
    uint64_t of_a_group = eights < MOST_EIGHTS ? eights : MOST_EIGHTS;
    while (of_a_group > 1 && eights % of_a_group != 0)
        of_a_group--;
    return of_a_group == 0 ? 1 : eights / of_a_group;
}

static struct tdm_eager_value *gathered(struct tdm_torch_model *t, uint64_t elements,
                                        uint16_t bytes)
{
    return tdm_zero_new(t, ZERO_GATHER, TDM_METHOD_COMMUNICATION, elements, bytes);
}

void tdm_zeropp_send(struct tdm_torch_model *t, struct zero_quantized *q, uint64_t share,
                     uint64_t ranks, bool several, bool on_host)
{
    uint64_t groups = tdm_zeropp_groups(share);
    struct tdm_eager_value *joined = NULL;
    if (several) {
        struct tdm_eager_value *brought = on_host ? gathered(t, share, BF16) : NULL;
        joined = gathered(t, share, BF16);
        tdm_drop(t->m, brought);
    }
    struct tdm_eager_value *half = gathered(t, share, FP16);
    tdm_drop(t->m, joined);
    q->part_scales = gathered(t, groups, FP32);
    q->part = gathered(t, share, INT8);
    tdm_drop(t->m, half);
    q->scales = gathered(t, tdm_size_mul(groups, ranks), FP32);
}

void tdm_zeropp_arrive(struct tdm_torch_model *t, struct zero_quantized *q, uint64_t elements)
{
    tdm_drop(t->m, q->part);
    tdm_drop(t->m, q->part_scales);
    q->part = q->part_scales = NULL;
    q->wide = gathered(t, elements, FP16);
}

/* ---- qgZ ---- */

/* The variables of all_to_all_quant_reduce. Each keeps its tensor until the next one is made. */
enum variable {
    SENT_IN_NODE,
    SENT_IN_NODE_SCALES,
    CAME_IN_NODE,
    CAME_IN_NODE_SCALES,
    SENT,
    SENT_SCALES,
    CAME,
    CAME_SCALES,
    WIDE,
    VARIABLES
};

static struct tdm_eager_value *exchanged(struct tdm_torch_model *t, uint64_t elements,
                                         uint16_t bytes)
{
    return tdm_zero_named(t, ZERO_REDUCE, TDM_METHOD_COMMUNICATION, "gradients in 4 bits (qgZ)",
                          elements, bytes);
}

static void assign(struct tdm_torch_model *t, struct tdm_eager_value **variable,
                   struct tdm_eager_value *value)
{
    tdm_drop(t->m, *variable);
    *variable = value;
}

/* A kernel makes scales, then values of 4 bits; `first` is the variable of the values. */
static void assign_pair(struct tdm_torch_model *t, struct tdm_eager_value **v, enum variable first,
                        uint64_t elements, uint64_t groups)
{
    struct tdm_eager_value *scales = exchanged(t, groups, FP32);
    struct tdm_eager_value *values = exchanged(t, elements / 2, INT8);
    assign(t, &v[first], values);
    assign(t, &v[first + 1], scales);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The sum over nodes, made one after the other, and their mean. */
static struct tdm_eager_value *mean_over_nodes(struct tdm_torch_model *t, uint64_t elements,
                                               uint64_t nodes)
{
    struct tdm_eager_value *sum = NULL;
    for (uint64_t i = 0; i <= nodes; i++)
        assign(t, &sum, exchanged(t, elements, FP16));
    return sum;
}

static void exchange(struct tdm_torch_model *t, struct tdm_eager_value **v,
                     struct zero_parameter *p)
{
    const struct tdm_deepspeed *d = t->wrapped;
    uint64_t in_node = t->settings.context.gpus_per_node, nodes = d->ranks / in_node;
    uint64_t groups = larger(larger(p->shape[0], p->shape[1]), d->ranks);
    uint64_t elements = p->elements / in_node;
    assign_pair(t, v, SENT_IN_NODE, p->elements, groups);
    assign(t, &v[CAME_IN_NODE], exchanged(t, p->elements / 2, INT8));
    assign(t, &v[CAME_IN_NODE_SCALES], exchanged(t, groups, FP32));
    assign_pair(t, v, SENT, elements, groups / in_node);
    assign(t, &v[CAME], exchanged(t, elements / 2, INT8));
    assign(t, &v[CAME_SCALES], exchanged(t, groups / in_node, FP32));
    assign(t, &v[WIDE], exchanged(t, elements, FP16));
    p->reduced = mean_over_nodes(t, elements / nodes, nodes);
}

void tdm_zeropp_reduce(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct tdm_eager_value *v[VARIABLES] = {NULL};
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        struct zero_parameter *p = &d->parameters[d->waiting[i]];
        tdm_zero_changes(d, d->waiting[i]);
        if (p->shape[1] > 0 && p->elements % (2 * d->ranks) == 0)
            exchange(t, v, p);
        else if (p->elements % d->ranks != 0) /* reduce_scatter_coalesced copies what it pads */
            p->reduced = tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_COMMUNICATION,
                                      tdm_zero3_share(d, d->waiting[i]) * d->ranks, BF16);
    }
    for (unsigned i = 0; i < VARIABLES; i++)
        tdm_drop(t->m, v[i]);
}
