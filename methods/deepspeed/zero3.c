/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO-3. Of every parameter this rank has a bf16 partition: one buffer holds the partitions of
 * trained parameters, and each frozen parameter has its own. Masters, moments and gradients are
 * divided likewise, by sub-groups. Gradients are copied to one bucket, rearranged by rank, reduced
 * and scattered to a buffer that is allocated at the start. Source: runtime/zero/stage3.py
 * (_create_fp16_partitions_with_defragmentation, _create_fp32_partitions,
 * initialize_optimizer_states, _setup_for_real_optimizer, __add_grad_to_ipg_bucket,
 * __avg_scatter_grads, partition_grads, step), partition_parameters.py (_partition_param),
 * runtime/comm/coalesced_collectives.py. */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

#define NORM_ELEMENTS UINT64_C(250000000) /* _constant_buffered_norm2 */

uint64_t tdm_zero3_share(const struct tdm_deepspeed *d, uint32_t number)
{
    return tdm_size_ceil_div(d->parameters[number].elements, d->ranks);
}

static uint16_t communicated(const struct tdm_deepspeed *d)
{
    return d->s.fp32_communication ? FP32 : BF16;
}

static uint16_t accumulated(const struct tdm_deepspeed *d)
{
    return d->s.fp32_accumulation ? FP32 : BF16;
}

/* ---- deepspeed.initialize ---- */

struct tdm_eager_value *tdm_zero3_parameter(struct tdm_torch_model *t, uint32_t module,
                                            uint64_t rows, uint64_t columns, uint16_t element_bytes,
                                            bool trained)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint32_t number = t->parameter_count;
    struct tdm_eager_value *value =
        tdm_zero_parameter(t, module, rows, columns, element_bytes, trained);
    struct zero_parameter *p = &d->parameters[number];
    uint64_t share = tdm_zero3_share(d, number);
    if (tdm_zeropp_has_second(&d->s)) {
        tdm_zeropp_keep_second(t, number);
        if (d->s.offload_param) /* pinned blocks of invalid copies are used again */
            tdm_zero_host(t, tdm_zeropp_second_share(d, number), BF16);
    }
    p->on_disk = tdm_nvme_writes_part(&d->s, share);
    if (!p->on_disk && d->s.offload_param && !p->persists)
        tdm_zero_host(t, share, BF16);
    else if (!p->on_disk)
        p->partition = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_WEIGHTS, share, BF16);
    tdm_value_vacate(t->m, value);
    return value;
}

/* Divides trained parameters into sub-groups. Returns the sum of this rank's partitions of them. */
static uint64_t make_groups(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t all = 0, group = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        if (!d->parameters[i].trained)
            continue;
        uint64_t share = tdm_zero3_share(d, i);
        d->parameters[i].group = d->group_count;
        all += share;
        group += share;
        if (group >= d->s.sub_group_size) {
            d->group_elements[d->group_count++] = group;
            group = 0;
        }
    }
    if (group > 0)
        d->group_elements[d->group_count++] = group;
    return all;
}

/* Moves the partitions through the host into one buffer, which is on the GPU, or with offload_param
 * on the host, as far as it has room for them. */
static void defragment(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    if (d->s.offload_param == TDM_OFFLOAD_NVME) {
        tdm_nvme_place(t);
        return;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        if (!d->parameters[i].trained)
            continue;
        tdm_drop(t->m, d->parameters[i].partition);
        d->parameters[i].partition = NULL;
    }
    if (d->s.offload_param) {
        tdm_zero_host(t, d->partition_elements, BF16);
        return;
    }
    tdm_torch_empty_cache(t->m->allocator);
    d->flat = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_WEIGHTS, d->partition_elements, BF16);
}

/* Each partition is cast, then cloned. The cast copy lives until the next one is made. */
static void make_masters(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct tdm_eager_value *last = NULL;
    uint64_t largest = 0;
    for (uint32_t g = 0; g < d->group_count; g++) {
        uint64_t elements = d->group_elements[g];
        largest = elements > largest ? elements : largest;
        if (tdm_nvme_swaps(d, elements))
            continue;
        if (d->s.offload_optimizer) { /* masters, and gradients in fp32 */
            tdm_host_take(t->m, tdm_size_mul(elements, FP32));
            tdm_zero_host(t, elements, FP32);
            continue;
        }
        struct tdm_eager_value *converted =
            tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_OPTIMIZER, elements, FP32);
        tdm_drop(t->m, last);
        last = converted;
        d->masters[g] = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_OPTIMIZER, elements, FP32);
    }
    tdm_drop(t->m, last);
    if (!d->s.offload_optimizer)
        tdm_drop(t->m, tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_GRADIENTS, largest, FP32));
}

void tdm_zero3_start(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    if (t->settings.frozen) /* DeepSpeedZeRoOffload alone, without an optimizer */
        return;
    d->partition_elements = make_groups(t);
    defragment(t);
    make_masters(t);
    tdm_nvme_start(t);
    if (d->s.contiguous_gradients)
        d->buckets[0] = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_COMMUNICATION,
                                     d->s.reduce_bucket_size, communicated(d));
    if (d->s.offload_optimizer)
        tdm_zero_host(t, d->partition_elements, accumulated(d));
    else
        d->gradients = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_GRADIENTS, d->partition_elements,
                                    accumulated(d));
    if (d->ranks > 1 || d->s.offload_param)
        for (uint32_t i = 0; i < t->parameter_count; i++) {
            if (!d->parameters[i].trained)
                continue;
            tdm_value_occupy(t->m, t->parameters[i]); /* needed to hook its gradient accumulation */
            tdm_value_vacate(t->m, t->parameters[i]);
        }
    t->m->linear_function = true;
    tdm_zero3_follow(t);
}

uint64_t tdm_zero3_weight_bytes(const struct tdm_torch_model *t)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        elements += tdm_zero3_share(t->wrapped, i);
    return elements * BF16;
}

/* ---- gradients ---- */

/* Are the gradients in the bucket? The gradient of a parameter larger than the bucket is not. */
static bool in_bucket(const struct tdm_deepspeed *d)
{
    return d->s.contiguous_gradients && d->bucket_elements <= d->s.reduce_bucket_size;
}

/* A copy on the GPU, its norm, and it in fp32. What goes to NVMe is made fp32 only before a step,
 * and stays until the bucket is done. */
static void offload_gradient(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_parameter *p = &d->parameters[number];
    bool swaps = tdm_nvme_swaps(d, d->group_elements[p->group]);
    uint64_t share = tdm_zero3_share(d, number);
    struct tdm_eager_value *back =
        tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_GRADIENTS, share, accumulated(d));
    if (!swaps || !t->accumulating) {
        tdm_zero_norm(t, ZERO_REDUCE, share < NORM_ELEMENTS ? share : NORM_ELEMENTS);
        struct tdm_eager_value *wide =
            accumulated(d) == FP32
                ? tdm_take(back)
                : tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_GRADIENTS, share, FP32);
        if (swaps)
            p->wide = wide;
        else
            tdm_drop(t->m, wide);
    }
    tdm_drop(t->m, back);
}

/* Rearranges gradients by rank for the reduce-scatter. A single gradient that divides evenly needs
 * no copy. */
static struct tdm_eager_value *rearrange(struct tdm_torch_model *t)
{
    const struct tdm_deepspeed *d = t->wrapped;
    uint64_t padded = 0;
    if (!d->s.reduce_scatter && in_bucket(d))
        return NULL; /* an all-reduce in place */
    if (d->waiting_count == 1 && d->parameters[d->waiting[0]].elements % d->ranks == 0)
        return NULL;
    for (uint32_t i = 0; i < d->waiting_count; i++)
        padded += tdm_zero3_share(d, d->waiting[i]) * d->ranks;
    return tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_COMMUNICATION, padded, communicated(d));
}

static void reduce(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct tdm_eager_value *wide = NULL, *kept = NULL;
    uint64_t shares = 0;
    if (d->waiting_count == 0)
        return;
    if (d->s.fp32_communication && !in_bucket(d))
        wide = tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_COMMUNICATION, d->bucket_elements, FP32);
    struct tdm_eager_value *flat = NULL;
    if (tdm_zeropp_exchanges(&d->s, d->ranks, t->settings.context.gpus_per_node))
        tdm_zeropp_reduce(t);
    else
        flat = rearrange(t);
    for (uint32_t i = 0; i < d->waiting_count; i++)
        shares += tdm_zero3_share(d, d->waiting[i]);
    if (accumulated(d) != communicated(d))
        kept = tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_GRADIENTS, shares, accumulated(d));
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        struct tdm_eager_value *leaf = t->parameters[d->waiting[i]];
        if (d->s.offload_optimizer)
            offload_gradient(t, d->waiting[i]);
        tdm_drop(t->m, leaf->grad);
        leaf->grad = NULL;
    }
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        tdm_nvme_write_gradient(t, d->waiting[i]);
        tdm_drop(t->m, d->parameters[d->waiting[i]].reduced);
        d->parameters[d->waiting[i]].reduced = NULL;
        tdm_zero_changes(d, d->waiting[i]);
    }
    tdm_drop(t->m, kept);
    tdm_drop(t->m, flat);
    tdm_drop(t->m, wide);
    d->waiting_count = 0;
    d->bucket_elements = 0;
}

void tdm_zero3_gradient(void *context, struct tdm_eager_value *leaf)
{
    struct tdm_torch_model *t = context;
    struct tdm_deepspeed *d = t->wrapped;
    if (leaf->storage->category != TDM_METHOD_WEIGHTS)
        return;
    uint32_t number = tdm_zero_number(t, leaf);
    uint64_t elements = d->parameters[number].elements;
    if (d->bucket_elements + elements > d->s.reduce_bucket_size)
        reduce(t);
    if (t->m->partial_gradients)
        return;
    if (d->s.contiguous_gradients && elements <= d->s.reduce_bucket_size) {
        tdm_drop(t->m, leaf->grad);
        leaf->grad = tdm_value_view(t->m, d->buckets[0]);
    }
    d->bucket_elements += elements;
    d->waiting[d->waiting_count++] = number;
}

void tdm_zero3_after_backward(struct tdm_torch_model *t)
{
    reduce(t);
    tdm_zero3_leftovers(t);
}

/* ---- the step ---- */

void tdm_zero3_step(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    tdm_zero3_release_all(t);
    for (uint32_t i = 0; i < t->parameter_count && !d->s.offload_optimizer; i++)
        if (d->parameters[i].trained)
            tdm_zero_norm(t, ZERO_COMPUTE, tdm_zero3_share(d, i));
    for (uint32_t g = 0; g < d->group_count; g++) {
        uint64_t elements = d->group_elements[g];
        struct tdm_eager_value *grad = NULL;
        if (!d->s.offload_optimizer) {
            grad = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_GRADIENTS, elements, accumulated(d));
            if (accumulated(d) != FP32) {
                struct tdm_eager_value *wide =
                    tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_GRADIENTS, elements, FP32);
                tdm_drop(t->m, grad);
                grad = wide;
            }
        }
        if (tdm_nvme_swaps(d, elements))
            tdm_nvme_step(t, g);
        else
            tdm_zero_update(t, g);
        tdm_drop(t->m, grad);
    }
    d->states_made = true;
    tdm_zero3_gather_persistent(t);
    tdm_zeropp_drop_seconds(t);
}
