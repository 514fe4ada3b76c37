/* SPDX-License-Identifier: Apache-2.0 */
/* DistributedDataParallel's buckets of gradients, and the parameters whose states
 * ZeroRedundancyOptimizer assigns to the first rank. The first step has one bucket for all
 * gradients. From the second step on, buckets are in the order in which gradients became ready; the
 * first has 1 MiB, the others 25 MiB. NCCL's work object of the first step's reduction holds its
 * bucket until two things have happened: a watchdog thread, which polls every 100 ms, has seen the
 * work complete, and another collective has been called. That is mostly the first reduction of the
 * second backward, and sometimes a collective before the second forward. Sources:
 * torch/nn/parallel/distributed.py (_ddp_init_helper, forward),
 * torch/csrc/distributed/c10d/reducer.cpp (initialize_buckets, rebuild_buckets,
 * compute_bucket_assignment_by_size, mark_variable_ready_dense),
 * torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (stashed_for_allocator_safety_,
 * Watchdog::runLoop, workEnqueue), torch/distributed/optim/zero_redundancy_optimizer.py
 * (_partition_parameters). */
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define FIRST_BUCKET_BYTES MIB
#define BUCKET_BYTES (25 * MIB)
#define BROADCAST_BYTES (250 * MIB)

/* One bucket for all gradients; from the second step on, several in the order of readiness. */
struct torch_buckets {
    struct tdm_eager_value *all, *small, **parts, **order;
    uint32_t part_count, order_count, steps;
    uint64_t ready_bytes; /* of gradients, in the second step */
    bool
        *own_states; /* for each parameter: ZeroRedundancyOptimizer keeps its states on this rank */
};

static void free_buckets(void *state)
{
    struct torch_buckets *b = state;
    free(b->parts);
    free(b->order);
    free(b->own_states);
    free(b);
}

static void *create_buckets(struct tdm_torch_model *t, uint32_t most_parameters)
{
    struct torch_buckets *b = calloc(1, sizeof(*b));
    (void)t;
    if (b == NULL)
        return NULL;
    b->parts = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    b->order = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    b->own_states = calloc(most_parameters, sizeof(*b->own_states));
    if (b->parts != NULL && b->order != NULL && b->own_states != NULL)
        return b;
    free_buckets(b);
    return NULL;
}

static uint64_t bytes_of(const struct tdm_eager_value *value)
{
    return tdm_value_elements(value) * value->element_bytes;
}

static struct tdm_eager_value *new_bucket(struct tdm_torch_model *t, uint64_t bytes)
{
    t->m->category = TDM_METHOD_COMMUNICATION;
    t->m->label = (struct tdm_label){.name = "bucket of gradients", .layer = TDM_NO_LAYER};
    struct tdm_eager_value *bucket = tdm_value_new(t->m, bytes, 1, 1);
    t->m->category = TDM_METHOD_WORKSPACE;
    return bucket;
}

static void drop_first_bucket(struct tdm_torch_model *t)
{
    struct torch_buckets *b = t->wrapped;
    tdm_drop(t->m, b->all);
    b->all = NULL;
}

static void note_gradient(void *context, struct tdm_eager_value *leaf)
{
    struct tdm_torch_model *t = context;
    struct torch_buckets *b = t->wrapped;
    if (leaf->storage->category != TDM_METHOD_WEIGHTS || t->accumulating) /* in no_sync() */
        return;
    if (b->steps == 1 && b->order_count < t->parameter_count)
        b->order[b->order_count++] = leaf;
    if (b->steps == 2 && b->all != NULL) {
        b->ready_bytes += bytes_of(leaf);
        if (b->ready_bytes >= FIRST_BUCKET_BYTES) /* a bucket of this size is reduced */
            drop_first_bucket(t);
    }
    if (!t->settings.ddp.bucket_views)
        return;
    tdm_drop(t->m, leaf->grad); /* copied to the bucket, of which it is now a view */
    leaf->grad = tdm_value_view(t->m, b->steps == 1 ? b->all : b->parts[0]);
}

/* Assigns the largest parameters first, each to the rank with the fewest elements, and marks those
 * of the first rank. */
static void divide_states(struct tdm_torch_model *t)
{
    struct torch_buckets *b = t->wrapped;
    uint64_t first = 0, least_other = 0, others = t->settings.ranks - 1, given = 0;
    uint64_t below = UINT64_MAX;
    for (;;) {
        uint64_t size = 0;
        for (uint32_t i = 0; i < t->parameter_count; i++) {
            uint64_t elements = tdm_value_elements(t->parameters[i]);
            if (t->parameters[i]->requires_grad && elements < below && elements > size)
                size = elements;
        }
        if (size == 0)
            return;
        for (uint32_t i = 0; i < t->parameter_count; i++) {
            if (!t->parameters[i]->requires_grad || tdm_value_elements(t->parameters[i]) != size)
                continue;
            /* The other ranks are assumed to fill evenly, which holds as far as sizes are alike. */
            bool mine = first <= least_other;
            b->own_states[i] = mine;
            if (mine)
                first += size;
            else
                least_other = (given += size) / others;
        }
        below = size;
    }
}

void tdm_broadcast_join(struct tdm_broadcast *b, const struct tdm_eager_value *tensor)
{
    b->bytes += bytes_of(tensor);
    b->count++;
}

void tdm_broadcast_send(struct tdm_torch_model *t, struct tdm_broadcast *b, bool last)
{
    if (b->bytes >= BROADCAST_BYTES || last) {
        tdm_drop(t->m, b->on_the_way[0]);
        b->on_the_way[0] = b->on_the_way[1];
        b->on_the_way[1] = b->count > 1 ? new_bucket(t, b->bytes) : NULL;
        b->bytes = b->count = 0;
    }
    for (unsigned i = 0; i < 2 && last; i++) {
        tdm_drop(t->m, b->on_the_way[i]);
        b->on_the_way[i] = NULL;
    }
}

/* DDP's constructor sends all parameters to the other ranks. */
static void broadcast_parameters(struct tdm_torch_model *t)
{
    struct tdm_broadcast sent = {.count = 0};
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        bool last = i + 1 == t->parameter_count;
        tdm_broadcast_join(&sent, t->parameters[i]);
        for (unsigned f = 0; f < 2 && last; f++)
            if (t->frequencies[f] != NULL &&
                t->frequencies[f]->element_bytes == t->parameters[i]->element_bytes)
                tdm_broadcast_join(&sent, t->frequencies[f]);
        tdm_broadcast_send(t, &sent, last);
    }
}

static void start(struct tdm_torch_model *t)
{
    struct torch_buckets *b = t->wrapped;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (t->parameters[i]->requires_grad)
            bytes += bytes_of(t->parameters[i]);
    broadcast_parameters(t);
    if (t->settings.empty_cache)
        tdm_torch_empty_cache(t->m->allocator);
    b->all = new_bucket(t, bytes);
    b->small = new_bucket(t, 1);
}

static void start_zero1(struct tdm_torch_model *t)
{
    start(t);
    divide_states(t);
}

static bool owns_states(const struct tdm_torch_model *t, uint32_t parameter)
{
    const struct torch_buckets *b = t->wrapped;
    return b->own_states[parameter];
}

static void rebuild(struct tdm_torch_model *t)
{
    struct torch_buckets *b = t->wrapped;
    uint64_t bytes = 0, limit = FIRST_BUCKET_BYTES;
    for (uint32_t i = 0; i < b->order_count; i++) {
        bytes += bytes_of(b->order[i]);
        if (bytes < limit && i + 1 < b->order_count)
            continue;
        b->parts[b->part_count++] = new_bucket(t, bytes);
        bytes = 0;
        limit = BUCKET_BYTES;
    }
}

static void before_forward(struct tdm_torch_model *t)
{
    struct torch_buckets *b = t->wrapped;
    if (t->settings.accumulation > 1 && !t->accumulating)
        return; /* the first forward of the step has done it */
    if (t->adapters_off)
        return; /* the module in it is called */
    if (!t->m->grad_enabled)
        return; /* buckets are made anew before a forward with a graph
                   (torch/nn/parallel/distributed.py, _pre_forward) */
    if (++b->steps != 2)
        return;
    if (t->settings.ddp.early_buckets)
        drop_first_bucket(t);
    rebuild(t);
}

/* ---- keys and costs ---- */

#define FIELD(name) .field = offsetof(struct tdm_method_settings, name)

static bool has_buckets(const struct tdm_key_case *c)
{
    return c->settings->torch.wrapper->create == create_buckets;
}

static const struct tdm_key_need needs_buckets = {"without sharding=ddp or zero1", has_buckets};

const struct tdm_method_key tdm_keys_ddp[] = {
    {"gradient_as_bucket_view", "no|yes", "no",
     "gradients live in the buckets of DDP, and not beside them", tdm_key_read_switch,
     FIELD(torch.ddp.bucket_views), .needs = {&needs_buckets}},
    {"empty_cache", "no|yes", "yes", "torch.cuda.empty_cache() before the first step",
     tdm_key_read_switch, FIELD(torch.empty_cache)},
    {"first_bucket", "late|early", "late",
     "the one of the first step goes in the second backward, or before its forward: a race in NCCL's process group",
     tdm_key_read_switch, FIELD(torch.ddp.early_buckets),
     .needs = {&needs_buckets, &tdm_need_later_steps}},
    {.name = NULL},
};

static const struct tdm_method_key *const tables[] = {tdm_keys_ddp, NULL};

/* Gradients are all-reduced. */
static void add_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                     struct tdm_method_cost *cost)
{
    tdm_traffic_add(&cost->sent, tdm_torch_all_ranks(&settings->torch),
                    2 * tdm_torch_shared_gradient_bytes(model, &settings->torch));
}

/* In addition every rank sends the parameters that it has updated. */
static void add_zero1_cost(const struct tdm_model *model,
                           const struct tdm_method_settings *settings, struct tdm_method_cost *cost)
{
    add_cost(model, settings, cost);
    tdm_traffic_add(&cost->exposed, tdm_torch_all_ranks(&settings->torch),
                    tdm_torch_shared_gradient_bytes(model, &settings->torch));
}

#define DDP                                                         \
    .keys = tables, .create = create_buckets, .free = free_buckets, \
    .before_forward = before_forward, .gradient = note_gradient

const struct tdm_wrapper tdm_ddp_wrapper = {.name = "ddp", DDP, .start = start, .cost = add_cost};
const struct tdm_wrapper tdm_zero1_wrapper = {
    .name = "zero1", DDP, .start = start_zero1, .owns_states = owns_states, .cost = add_zero1_cost};
