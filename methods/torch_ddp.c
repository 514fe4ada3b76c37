/* SPDX-License-Identifier: Apache-2.0 */
/* DistributedDataParallel's buckets of gradients, and which parameters' states ZeroRedundancyOptimizer leaves to
 * the first rank. The first step has one bucket for all gradients; from the second step on there are buckets in the
 * order in which gradients came, of 1 MiB and then of 25 MiB; the one bucket goes at the end of that step's backward.
 * Sources: torch/nn/parallel/distributed.py (_ddp_init_helper, forward), torch/csrc/distributed/c10d/reducer.cpp
 * (initialize_buckets, rebuild_buckets, compute_bucket_assignment_by_size, mark_variable_ready_dense),
 * torch/distributed/optim/zero_redundancy_optimizer.py (_partition_parameters). */
#include "methods/torch_parts.h"

#include <stddef.h>

#define MIB (UINT64_C(1) << 20)
#define FIRST_BUCKET_BYTES MIB
#define BUCKET_BYTES (25 * MIB)

static uint64_t bytes_of(const struct tdm_value *value)
{
    return tdm_value_elements(value) * value->element_bytes;
}

static struct tdm_value *new_bucket(struct tdm_torch_model *t, uint64_t bytes)
{
    t->m->category = TDM_METHOD_COMMUNICATION;
    t->m->label = (struct tdm_label){.name = "bucket of gradients", .layer = TDM_NO_LAYER};
    struct tdm_value *bucket = tdm_value_new(t->m, bytes, 1, 1);
    t->m->category = TDM_METHOD_WORKSPACE;
    return bucket;
}

static void note_gradient(void *context, struct tdm_value *leaf)
{
    struct tdm_torch_model *t = context;
    struct torch_buckets *b = &t->buckets;
    if (leaf->storage->category != TDM_METHOD_WEIGHTS)
        return;
    if (b->steps == 1 && b->order_count < t->parameter_count)
        b->order[b->order_count++] = leaf;
    if (!t->settings.bucket_views)
        return;
    tdm_drop(t->m, leaf->grad); /* copied to the bucket, which it is a view of from now on */
    leaf->grad = tdm_value_view(t->m, b->all != NULL ? b->all : b->parts[0]);
}

/* Largest parameters first, each to the rank that has least: the first rank's are marked. */
static void divide_states(struct tdm_torch_model *t)
{
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
            /* With more ranks the others fill up evenly, as far as sizes are alike. */
            bool mine = first <= least_other;
            t->own_states[i] = mine;
            if (mine)
                first += size;
            else
                least_other = (given += size) / others;
        }
        below = size;
    }
}

void tdm_torch_share(struct tdm_torch_model *t)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        t->own_states[i] = t->parameters[i]->requires_grad;
        if (t->parameters[i]->requires_grad)
            bytes += bytes_of(t->parameters[i]);
    }
    if (t->settings.sharing != TDM_SHARING_DDP && t->settings.sharing != TDM_SHARING_ZERO1)
        return;
    t->buckets.all = new_bucket(t, bytes);
    t->buckets.small = new_bucket(t, 1);
    t->m->gradient_ready = note_gradient;
    t->m->gradient_context = t;
    if (t->settings.sharing == TDM_SHARING_ZERO1)
        divide_states(t);
}

static void rebuild(struct tdm_torch_model *t)
{
    struct torch_buckets *b = &t->buckets;
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

void tdm_ddp_before_forward(struct tdm_torch_model *t)
{
    if (t->buckets.small != NULL && ++t->buckets.steps == 2)
        rebuild(t);
}

void tdm_ddp_after_backward(struct tdm_torch_model *t)
{
    if (t->buckets.steps < 2)
        return;
    tdm_drop(t->m, t->buckets.all);
    t->buckets.all = NULL;
}
