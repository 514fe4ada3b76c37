/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO-1 and ZeRO-2. Every rank has the bf16 parameters in one flat buffer, and its partition of
 * the fp32 masters, moments and gradients. Gradients are copied to buckets, and a bucket is reduced
 * as a whole. Gradients of this rank's partition are collected in bf16 until the step, which
 * flattens them, casts them to fp32 and updates. Stage 1 reduces in the last backward of a step
 * alone, and unless overlap_comm is on when that is done; the other ranks' gradients go with the
 * buckets. Experts of deepspeed.moe are groups of their own, which fewer ranks divide.
 * Source: runtime/zero/stage_1_and_2.py (__init__, setup_buckets, process_gradients,
 * reduce_gradients, reduce_ready_partitions_and_remove_grads,
 * reduce_independent_p_g_buckets_and_remove_grads, average_tensor, reduce_ipg_grads,
 * copy_grads_in_partition, independent_gradient_partition_epilogue, step). */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

/* The first rank's partition of a group starts at its first parameter. */
static bool in_part(const struct tdm_deepspeed *d, uint32_t number)
{
    const struct zero_parameter *p = &d->parameters[number];
    return p->trained && p->offset < d->group_elements[p->group];
}

/* Number of elements of a parameter within the partition. */
static uint64_t elements_in_part(const struct tdm_deepspeed *d, uint32_t number)
{
    const struct zero_parameter *p = &d->parameters[number];
    uint64_t part = d->group_elements[p->group];
    return p->offset + p->elements <= part ? p->elements : part - p->offset;
}

/* Ranks that divide a group of parameters: those that have the same ones. */
static uint64_t ranks_of(const struct tdm_deepspeed *d, bool experts)
{
    return experts ? d->ranks / d->s.ep_size : d->ranks;
}

/* ---- deepspeed.initialize ---- */

/* Elements of a group of experts' parameters, at most:
 * moe/utils.py split_params_into_different_moe_groups_for_optimizer. */
#define MOST_GROUP_ELEMENTS UINT64_C(178956971)

/* Groups are made of all that is trained, and of experts. Those of experts come last. */
static void group_parameters(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    for (unsigned experts = 0; experts < (d->s.ep_size > 0 ? 2u : 1u); experts++) {
        uint64_t align = 2 * ranks_of(d, experts), taken = 0;
        for (uint32_t i = 0; i < t->parameter_count; i++) {
            struct zero_parameter *p = &d->parameters[i];
            if (!p->trained || p->expert != experts)
                continue;
            if (experts && taken > 0 && taken + p->elements > MOST_GROUP_ELEMENTS) {
                d->group_count++;
                taken = 0;
            }
            p->group = d->group_count;
            p->offset = taken;
            taken += p->elements;
            d->group_elements[p->group] = tdm_size_mul(tdm_size_ceil_div(taken, align), 2);
        }
        d->group_count++;
    }
}

/* Makes the flat buffer of a group while its parameters exist, if memory allows; else they move to
 * the host first. */
static void flatten_parameters(struct tdm_torch_model *t, uint32_t group, bool experts)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct tdm_torch_allocator *allocator = t->m->allocator;
    uint64_t elements = tdm_size_mul(d->group_elements[group], ranks_of(d, experts));
    tdm_torch_empty_cache(allocator);
    uint64_t taken = tdm_torch_current(allocator).reserved;
    bool moves = tdm_torch_capacity(allocator) < tdm_size_add(taken, tdm_size_mul(elements, BF16));
    for (uint32_t i = 0; i < t->parameter_count && moves; i++)
        if (d->parameters[i].trained && d->parameters[i].group == group)
            tdm_value_vacate(t->m, t->parameters[i]);
    if (moves)
        tdm_torch_empty_cache(allocator);
    d->flats[group] = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_WEIGHTS, elements, BF16);
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (d->parameters[i].trained && d->parameters[i].group == group)
            tdm_value_set_data(t->m, t->parameters[i], d->flats[group]);
}

/* A group's flat buffer, and this rank's masters. */
static void start_group(struct tdm_torch_model *t, uint32_t group)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t elements = d->group_elements[group];
    flatten_parameters(t, group, group > 0);
    struct tdm_eager_value *clone =
        tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_WORKSPACE, elements, BF16);
    if (d->s.offload_optimizer) { /* masters, bf16 copies of the updated parameters, gradients */
        tdm_zero_host(t, elements, FP32);
        tdm_zero_host(t, elements, BF16);
        tdm_zero_host(t, elements, FP32);
    } else {
        d->masters[group] = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_OPTIMIZER, elements, FP32);
    }
    tdm_drop(t->m, clone);
}

static uint64_t digest(void *context)
{
    const struct tdm_torch_model *t = context;
    return tdm_zero_digest(t->wrapped) | 1;
}

static uint64_t skip_tiles(void *context, uint64_t tiles)
{
    (void)context;
    return tiles;
}

void tdm_zero2_start(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    t->m->follower = (struct tdm_follower){.digest = digest, .skip = skip_tiles, .context = t};
    uint64_t largest = 0;
    d->keeps_gradients = t->settings.wrapper == &tdm_deepspeed_zero1_wrapper;
    if (d->s.offload_optimizer)
        d->s.contiguous_gradients = true; /* DeepSpeed enforces it */
    group_parameters(t);
    for (uint32_t g = 0; g < d->group_count; g++)
        start_group(t, g);
    if (!d->s.offload_optimizer) {
        /* initialize_optimizer_states: gradients of all groups; masters wait for their own. */
        for (uint32_t g = 0; g < d->group_count; g++)
            d->zeros[g] =
                tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_GRADIENTS, d->group_elements[g], FP32);
        for (uint32_t g = 0; g < d->group_count; g++) {
            tdm_drop(t->m, d->zeros[g]);
            d->zeros[g] = NULL;
        }
        return;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (d->parameters[i].trained && d->parameters[i].elements > largest)
            largest = d->parameters[i].elements;
    for (uint32_t i = 0; i < t->parameter_count; i++) /* sums over backwards */
        if (in_part(d, i) && d->s.gradient_accumulation_steps > 1)
            tdm_zero_host(t, d->parameters[i].elements, BF16);
    tdm_zero_host(t, largest, BF16);
    d->offload_buffer = tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_COMMUNICATION, largest, BF16);
}

/* Slices of a bucket that lie in the partitions of different ranks, and their elements: of the
 * parameters that all ranks have, or of experts. */
static uint32_t count_slices(const struct tdm_deepspeed *d, bool experts, uint64_t *elements)
{
    uint64_t before = UINT64_MAX;
    uint32_t slices = 0;
    *elements = 0;
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        const struct zero_parameter *p = &d->parameters[d->waiting[i]];
        if (p->expert != experts) {
            before = UINT64_MAX;
            continue;
        }
        uint64_t part = d->group_elements[p->group];
        uint64_t first = p->offset / part, last = (p->offset + p->elements - 1) / part;
        slices += (uint32_t)(last - first) + (first != before);
        before = last;
        *elements += p->elements;
    }
    return slices;
}

/* Reduces what the bucket has of all ranks, or of those that share experts. What consists of
 * several slices is reduced as a copy, contiguous or not. */
static void all_reduce(struct tdm_torch_model *t, bool experts)
{
    const struct tdm_deepspeed *d = t->wrapped;
    struct tdm_eager_value *flat = NULL, *wide = NULL;
    uint64_t elements;
    uint32_t slices = count_slices(d, experts, &elements);
    bool copied =
        d->s.contiguous_gradients ? d->s.reduce_scatter && slices > 1 : d->waiting_count > 1;
    if (elements == 0)
        return;
    if (copied)
        flat = tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_COMMUNICATION, elements, BF16);
    if (d->s.fp32_communication)
        wide = tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_COMMUNICATION, elements, FP32);
    tdm_drop(t->m, wide);
    tdm_drop(t->m, flat);
}

static void drop_gradient(struct tdm_torch_model *t, uint32_t number)
{
    tdm_drop(t->m, t->parameters[number]->grad);
    t->parameters[number]->grad = NULL;
}

/* Offloads a gradient: takes its norm, checks that it is finite, and copies it in fp32. */
static void offload_gradient(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t elements = elements_in_part(d, number);
    tdm_zero_norm(t, ZERO_REDUCE, elements);
    tdm_zero_overflow(t, ZERO_REDUCE, d->parameters[number].elements);
    tdm_drop(t->m, tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_GRADIENTS, elements, FP32));
    drop_gradient(t, number);
}

static void collect_gradient(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t elements = 0;
    if (d->collected == NULL) {
        for (uint32_t i = 0; i < t->parameter_count; i++)
            if (in_part(d, i))
                elements += d->parameters[i].elements;
        d->collected = tdm_zero_new(t, ZERO_REDUCE, TDM_METHOD_GRADIENTS, elements, BF16);
    }
    drop_gradient(t, number);
    t->parameters[number]->grad = tdm_value_view(t->m, d->collected);
}

static void reduce(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    if (d->waiting_count == 0)
        return;
    all_reduce(t, false);
    all_reduce(t, true);
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        uint32_t number = d->waiting[i];
        if (!in_part(d, number)) {
            if (!d->keeps_gradients)
                drop_gradient(t, number);
        } else if (d->s.offload_optimizer) {
            offload_gradient(t, number);
        } else if (d->s.contiguous_gradients) {
            collect_gradient(t, number);
        }
    }
    d->waiting_count = 0;
    d->bucket_elements = 0;
}

static void make_buckets(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    d->ready = true;
    d->bucket = 0;
    for (uint32_t i = 0; i < (d->s.overlap_comm ? 2u : 1u); i++)
        d->buckets[i] =
            tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_COMMUNICATION, d->s.reduce_bucket_size, BF16);
}

/* To 0.18.2 `backward` itself made them, so they lie beside what the loss needs. */
void tdm_zero2_before_backward(struct tdm_torch_model *t)
{
    const struct tdm_deepspeed *d = t->wrapped;
    if (d->s.early_buckets && d->s.contiguous_gradients && !d->ready)
        make_buckets(t);
}

/* Is this the last backward before a step? Two are run if gradients are accumulated. */
static bool is_last_backward(const struct tdm_deepspeed *d)
{
    return d->s.gradient_accumulation_steps == 1 || d->backwards % 2 == 1;
}

/* Copies a gradient to the bucket, which is reduced first if it has no room. */
static void fill_bucket(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    bool contiguous = d->s.contiguous_gradients;
    uint64_t elements = d->parameters[number].elements;
    if (d->bucket_elements + elements > d->s.reduce_bucket_size) {
        reduce(t);
        if (contiguous && d->s.overlap_comm)
            d->bucket = 1 - d->bucket;
    }
    if (t->m->partial_gradients)
        return;
    if (contiguous && elements <= d->s.reduce_bucket_size) {
        drop_gradient(t, number);
        t->parameters[number]->grad = tdm_value_view(t->m, d->buckets[d->bucket]);
    }
    d->bucket_elements += elements;
    d->waiting[d->waiting_count++] = number;
}

void tdm_zero2_gradient(void *context, struct tdm_eager_value *leaf)
{
    struct tdm_torch_model *t = context;
    struct tdm_deepspeed *d = t->wrapped;
    if (leaf->storage->category != TDM_METHOD_WEIGHTS)
        return;
    if (d->s.contiguous_gradients && !d->ready)
        make_buckets(t);
    if (!d->keeps_gradients || (d->s.overlap_comm && is_last_backward(d)))
        fill_bucket(t, tdm_zero_number(t, leaf));
}

void tdm_zero2_after_backward(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    bool last = is_last_backward(d);
    d->backwards++;
    if (d->keeps_gradients && !last)
        return;
    for (uint32_t i = 0; i < t->parameter_count && d->keeps_gradients && !d->s.overlap_comm; i++)
        if (d->parameters[i].trained && t->parameters[i]->grad != NULL)
            fill_bucket(t, i);
    reduce(t);
    if (d->gradients == NULL)
        d->gradients = d->collected;
    else
        tdm_drop(t->m, d->collected); /* it was added to `gradients` */
    d->collected = NULL;
    for (uint32_t i = 0; i < 2; i++) {
        tdm_drop(t->m, d->buckets[i]);
        d->buckets[i] = NULL;
    }
    d->ready = false;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        if (!d->parameters[i].trained)
            continue;
        if (!d->s.contiguous_gradients && t->parameters[i]->grad != NULL && in_part(d, i))
            continue; /* gradients of the partition stay in place */
        drop_gradient(t, i);
    }
}

/* ---- the step ---- */

static void check_and_measure(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    for (uint32_t i = 0; i < t->parameter_count && d->s.check_grad_overflow; i++)
        if (in_part(d, i))
            tdm_zero_overflow(t, ZERO_COMPUTE, elements_in_part(d, i));
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (in_part(d, i))
            tdm_zero_norm(t, ZERO_COMPUTE, elements_in_part(d, i));
}

/* The gradients of all groups are views of one buffer, which goes with the last of them. */
static void step_group(struct tdm_torch_model *t, uint32_t group)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t elements = d->group_elements[group];
    struct tdm_eager_value *flat =
        tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_GRADIENTS, elements, BF16);
    struct tdm_eager_value *wide =
        tdm_zero_new(t, ZERO_COMPUTE, TDM_METHOD_GRADIENTS, elements, FP32);
    tdm_drop(t->m, flat);
    if (group == d->group_count - 1) {
        tdm_drop(t->m, d->gradients);
        d->gradients = NULL;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (d->parameters[i].trained && d->parameters[i].group == group)
            drop_gradient(t, i);
    tdm_zero_update(t, group);
    tdm_drop(t->m, wide);
}

void tdm_zero2_step(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    if (d->s.offload_optimizer) {
        for (uint32_t g = 0; g < d->group_count; g++)
            tdm_zero_update(t, g);
        d->states_made = true;
        return;
    }
    check_and_measure(t);
    for (uint32_t g = 0; g < d->group_count; g++)
        step_group(t, g);
}
