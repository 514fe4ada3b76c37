/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of a chunk, their buffers, and the optimizer. Megatron's DistributedDataParallel makes
 * contiguous buffers of the trained parameters (with LoRA: the adapters, which are created after
 * all frozen parameters) and of their fp32 gradients. The optimizer has fp32 main parameters and
 * two moments, of all parameters or of this rank's share. Sources:
 * megatron/core/distributed/{distributed_data_parallel,param_and_grad_buffer}.py,
 * optimizer/{distrib_optimizer,optimizer,emerging_optimizers}.py, optimizer/cpu_offloading/
 * hybrid_optimizer.py; Transformer Engine's optimizers/fused_adam.py (initialize_state); Muon's
 * step: Emerging-Optimizers fd772926,
 * orthogonalized_optimizers/{orthogonalized_optimizer,muon_utils}.py.
 */
#include "methods/megatron/parts.h"

#include "base/size.h"

#include <stdlib.h>

#define PARAMETER_ALIGN 64u /* elements, with the distributed optimizer */
#define BUCKET_ALIGN 128u
#define BUCKET_LEAST 40000000u /* elements, if gradients are reduced during the backward */
#define BUCKET_PER_RANK 1000000u
#define MUON_STEPS 5u /* muon_num_ns_steps */

#define LAYER_PARAMETERS (20u + 2 * ADAPTED_MODULES)
#define OTHER_PARAMETERS 5u

static void add(struct tdm_megatron *t, struct megatron_chunk *chunk,
                struct tdm_eager_value **place, uint64_t rows, uint64_t columns)
{
    *place =
        tdm_value_leaf(t->m, rows, columns, BF16, chunk->parameter_count >= chunk->first_trained);
    chunk->parameters[chunk->parameter_count++] =
        (struct megatron_parameter){.place = place, .rows = rows, .columns = columns};
}

/* Experts divide their GPUs in another way, so they have buffers and shares of their own. */
static void add_expert(struct tdm_megatron *t, struct megatron_chunk *chunk,
                       struct tdm_eager_value **place, uint64_t rows, uint64_t columns,
                       const struct megatron_layer *layer)
{
    add(t, chunk, place, rows, columns);
    chunk->parameters[chunk->parameter_count - 1].buffer = BUFFER_EXPERTS;
    if (layer->float8)
        megatron_add_cast(t, *place, false);
}

/* The weight of a product of 8 bits, if its layer has such. */
static void add_product(struct tdm_megatron *t, struct megatron_chunk *chunk,
                        struct tdm_eager_value **place, uint64_t rows, uint64_t columns,
                        const struct megatron_layer *layer)
{
    add(t, chunk, place, rows, columns);
    if (!layer->float8)
        return;
    /* Attention saves its output itself. */
    bool keeps_input = place == &layer->projection && t->set.float8 != TDM_TE_DELAYED;
    megatron_add_cast(t, *place, keeps_input);
    if (t->set.float8_weights)
        chunk->parameters[chunk->parameter_count - 1].buffer = BUFFER_FLOAT8;
}

static void add_norm(struct tdm_megatron *t, struct megatron_chunk *chunk,
                     struct tdm_eager_value **norm, struct tdm_eager_value **bias)
{
    add(t, chunk, norm, 1, t->config->hidden);
    if (t->set.layer_norm)
        add(t, chunk, bias, 1, t->config->hidden);
}

static void add_latent_attention(struct tdm_megatron *t, struct megatron_chunk *chunk,
                                 struct megatron_layer *layer)
{
    const struct tdm_latent *l = &t->config->latent;
    uint64_t hidden = t->config->hidden, queries = t->heads * t->config->head_dim;
    add_norm(t, chunk, &layer->qkv_norm, &layer->qkv_norm_bias);
    add_product(t, chunk, &layer->projection, hidden, t->heads * l->value_dim, layer);
    if (l->q_rank > 0) {
        add_product(t, chunk, &layer->q_latent, l->q_rank, hidden, layer);
        add(t, chunk, &layer->q_norm, 1, l->q_rank);
        add_product(t, chunk, &layer->q_from_latent, queries, l->q_rank, layer);
    } else {
        add_product(t, chunk, &layer->qkv, queries, hidden, layer);
    }
    add_product(t, chunk, &layer->kv_latent, l->kv_rank + l->rotary_dim, hidden, layer);
    add(t, chunk, &layer->k_norm, 1, l->kv_rank);
    add_product(t, chunk, &layer->kv_from_latent, t->heads * (l->plain_dim + l->value_dim),
                l->kv_rank, layer);
}

static void add_experts(struct tdm_megatron *t, struct megatron_chunk *chunk,
                        struct megatron_layer *layer)
{
    const struct tdm_experts *e = &t->config->experts;
    uint64_t hidden = t->config->hidden, width = e->intermediate / t->layout.expert_tensor;
    add_norm(t, chunk, &layer->mlp_norm, &layer->mlp_norm_bias);
    add(t, chunk, &layer->router, e->count, hidden);
    for (uint64_t i = 0; i < layer->local_experts; i++)
        add_expert(t, chunk, &layer->experts[2 * i], 2 * width, hidden, layer);
    for (uint64_t i = 0; i < layer->local_experts; i++)
        add_expert(t, chunk, &layer->experts[2 * i + 1], hidden, width, layer);
    if (e->shared > 0) {
        uint64_t shared = e->shared / t->layout.tensor;
        add_product(t, chunk, &layer->shared_fc1, 2 * shared, hidden, layer);
        add_product(t, chunk, &layer->shared_fc2, hidden, shared, layer);
    }
}

static void add_attention(struct tdm_megatron *t, struct megatron_chunk *chunk,
                          struct megatron_layer *layer, const struct tdm_layer_kind *kind)
{
    uint64_t hidden = t->config->hidden, dim = t->config->head_dim;
    /* Ranks that share KV heads divide q, k and v evenly all the same. */
    uint64_t qkv = (t->heads * t->sharing + 2 * t->groups) * dim / t->sharing;
    bool biased = t->set.linear_bias;
    add_product(t, chunk, &layer->projection, hidden, t->heads * dim, layer);
    if (biased)
        add(t, chunk, &layer->projection_bias, 1, hidden);
    if (kind->post_norms)
        add(t, chunk, &layer->post_attention_norm, 1, hidden);
    add_norm(t, chunk, &layer->qkv_norm, &layer->qkv_norm_bias);
    add_product(t, chunk, &layer->qkv, qkv, hidden, layer);
    if (biased || kind->qkv_bias)
        add(t, chunk, &layer->qkv_bias, 1, qkv);
    if (kind->qk_norm) {
        add(t, chunk, &layer->q_norm, 1, dim);
        add(t, chunk, &layer->k_norm, 1, dim);
    }
}

static void add_layer(struct tdm_megatron *t, struct megatron_chunk *chunk,
                      struct megatron_layer *layer, const struct tdm_layer_kind *kind)
{
    uint64_t hidden = t->config->hidden, fc1 = t->gated ? 2 * t->width : t->width;
    bool biased = t->set.linear_bias;
    if (kind->mamba)
        megatron_add_mamba(t, chunk, layer, add, add_product);
    else if (t->config->latent.kv_rank > 0)
        add_latent_attention(t, chunk, layer);
    else if (!kind->no_attention)
        add_attention(t, chunk, layer, kind);
    if (kind->no_mlp)
        return;
    if (kind->experts) {
        add_experts(t, chunk, layer);
        return;
    }
    add_norm(t, chunk, &layer->mlp_norm, &layer->mlp_norm_bias);
    add_product(t, chunk, &layer->fc1, fc1, hidden, layer);
    if (biased)
        add(t, chunk, &layer->fc1_bias, 1, fc1);
    add_product(t, chunk, &layer->fc2, hidden, t->width, layer);
    if (biased)
        add(t, chunk, &layer->fc2_bias, 1, hidden);
    if (kind->post_norms)
        add(t, chunk, &layer->post_mlp_norm, 1, hidden);
}

/* The input of a module that is recomputed anyway is not also gathered again. */
static bool may_regather(const struct tdm_megatron *t, enum megatron_target target)
{
    bool mlp_again = t->set.recompute == TDM_RECOMPUTE_SELECTIVE &&
                     (t->set.modules & 1u << TDM_RECOMPUTED_MLP) != 0;
    return t->set.regather && t->sequence_parallel && t->set.recompute != TDM_RECOMPUTE_FULL &&
           !(mlp_again && target == ADAPTED_FC1);
}

/* If ranks divide the outputs of a module, they divide the rows of its A, else the columns of A.
 * They always divide the rows of B. */
static void add_adapters(struct tdm_megatron *t, struct megatron_chunk *chunk,
                         struct megatron_layer *layer)
{
    const struct tdm_eager_value *weights[ADAPTED_MODULES] = {layer->projection, layer->qkv,
                                                              layer->fc1, layer->fc2};
    uint64_t part = t->lora_rank / t->layout.tensor;
    for (unsigned i = 0; i < ADAPTED_MODULES; i++) {
        bool row = i == ADAPTED_PROJECTION || i == ADAPTED_FC2;
        struct megatron_adapter *adapter = &layer->adapters[i];
        if ((t->lora_targets >> i & 1) == 0)
            continue;
        add(t, chunk, &adapter->in, row ? t->lora_rank : part, weights[i]->columns);
        add(t, chunk, &adapter->out, row ? weights[i]->rows / t->layout.tensor : weights[i]->rows,
            t->lora_rank);
        adapter->regathers = !row && may_regather(t, i);
    }
}

/* The number of a layer of a chunk in the model. */
static uint64_t number_of(const struct tdm_megatron *t, uint32_t chunk, uint64_t layer)
{
    return t->layout.offsets[chunk] + layer;
}

/* is_first_last_bf16_layer */
static bool is_wide(const struct tdm_megatron *t, uint64_t number)
{
    return t->set.wide_ends &&
           (number < t->set.wide_at_start || number + t->set.wide_at_end >= t->config->layers);
}

static bool make_layers(struct tdm_megatron *t, struct megatron_chunk *chunk, uint32_t number)
{
    uint64_t layers = t->layout.layers[number], experts = 0;
    chunk->layers = calloc(layers + 1, sizeof(*chunk->layers));
    for (uint64_t i = 0; i < layers && chunk->layers != NULL; i++) {
        struct megatron_layer *layer = &chunk->layers[i];
        layer->float8 = t->set.float8 != TDM_TE_NONE && !is_wide(t, number_of(t, number, i));
        if (!t->config->layer_kinds[number_of(t, number, i)].experts)
            continue;
        layer->local_experts = t->config->experts.count / t->layout.expert;
        layer->experts = calloc(2 * layer->local_experts, sizeof(struct tdm_eager_value *));
        experts += layer->local_experts;
        if (layer->experts == NULL)
            return false;
    }
    chunk->parameters = calloc(layers * LAYER_PARAMETERS + 2 * experts + OTHER_PARAMETERS,
                               sizeof(*chunk->parameters));
    return chunk->layers != NULL && chunk->parameters != NULL;
}

enum tdm_status megatron_make_chunk(struct tdm_megatron *t, uint32_t number, struct tdm_error *err)
{
    struct megatron_chunk *chunk = &t->chunks[number];
    uint64_t layers = t->layout.layers[number];
    if (!make_layers(t, chunk, number))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a stage of a pipeline");
    chunk->first_trained = t->lora_rank > 0 ? UINT32_MAX : 0;
    t->m->category = TDM_METHOD_WEIGHTS;
    t->m->label = (struct tdm_label){.name = "parameters", .layer = TDM_NO_LAYER};
    if (chunk->first)
        add(t, chunk, &chunk->embedding, t->vocabulary, t->config->hidden);
    if (chunk->first && t->set.positions == TDM_POSITIONS_LEARNED)
        add(t, chunk, &chunk->positions, t->config->max_context, t->config->hidden);
    for (uint64_t i = 0; i < layers; i++)
        add_layer(t, chunk, &chunk->layers[i], &t->config->layer_kinds[number_of(t, number, i)]);
    if (chunk->last) {
        add_norm(t, chunk, &chunk->final_norm, &chunk->final_norm_bias);
        if (!t->tied_here)
            add(t, chunk, &chunk->head, t->vocabulary, t->config->hidden);
    }
    for (uint32_t i = 0; i < chunk->parameter_count; i++) {
        struct tdm_eager_value **place = chunk->parameters[i].place;
        chunk->parameters[i].shared =
            t->tied && (place == &chunk->embedding || place == &chunk->head);
    }
    if (t->lora_rank > 0) {
        chunk->first_trained = chunk->parameter_count;
        tdm_label(t->m, "adapters");
        for (uint64_t i = 0; i < layers; i++)
            add_adapters(t, chunk, &chunk->layers[i]);
    }
    t->m->category = TDM_METHOD_WORKSPACE;
    return TDM_OK;
}

static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y != 0) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* GPUs among which a buffer's gradients are reduced, and which of them this one is. */
static uint64_t sharing_ranks(const struct tdm_megatron *t, enum megatron_buffer buffer)
{
    return buffer == BUFFER_EXPERTS ? t->layout.expert_data : t->layout.data * t->layout.context;
}

/* Sets how many elements of the parameters from .. to - 1, counted from the last one, are this
 * rank's. Their bucket has the elements begin .. end - 1. */
static void own_share(const struct tdm_megatron *t, struct megatron_chunk *chunk,
                      enum megatron_buffer buffer, uint32_t from, uint32_t to,
                      const uint64_t *starts, uint64_t begin, uint64_t end)
{
    uint64_t rank = buffer == BUFFER_EXPERTS ? t->expert_data_rank : t->data_rank;
    uint64_t share = (end - begin) / sharing_ranks(t, buffer), low = begin + rank * share,
             high = low + share;
    for (uint32_t i = from; i < to; i++) {
        struct megatron_parameter *p = &chunk->parameters[chunk->parameter_count - 1 - i];
        if (p->buffer != buffer)
            continue;
        uint64_t first = starts[i], last = first + p->rows * p->columns;
        first = first > low ? first : low;
        last = last < high ? last : high;
        p->own = last > first ? last - first : 0;
    }
}

/* Lays out the trained parameters from the last to the first, in buckets. Returns the number of
 * elements, with padding. */
static uint64_t lay_out(struct tdm_megatron *t, struct megatron_chunk *chunk,
                        enum megatron_buffer buffer, uint64_t *starts)
{
    bool divided = t->set.distributed_optimizer;
    uint64_t ranks = sharing_ranks(t, buffer), at = 0, begin = 0, limit = UINT64_MAX;
    uint32_t from = 0, count = chunk->parameter_count - chunk->first_trained, final = count;
    while (final > 0 && chunk->parameters[chunk->parameter_count - final].buffer != buffer)
        final--;
    if (t->set.overlap_reduce) {
        limit = BUCKET_PER_RANK * ranks;
        limit = limit > BUCKET_LEAST ? limit : BUCKET_LEAST;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct megatron_parameter *p = &chunk->parameters[chunk->parameter_count - 1 - i];
        bool last = i + 1 == final;
        if (p->buffer != buffer)
            continue;
        at = divided ? tdm_size_align(at, PARAMETER_ALIGN) : at;
        starts[i] = at;
        at += p->rows * p->columns;
        if (!last && at - begin < limit && !(divided && (p->shared || (p - 1)->shared)))
            continue;
        if (divided)
            at = tdm_size_ceil_div(at, common_multiple(ranks, BUCKET_ALIGN)) *
                 common_multiple(ranks, BUCKET_ALIGN);
        own_share(t, chunk, buffer, from, i + 1, starts, begin, at);
        begin = at;
        from = i + 1;
    }
    return at;
}

static void make_buffers(struct tdm_megatron *t, struct megatron_chunk *chunk,
                         enum megatron_buffer buffer)
{
    struct tdm_eager *m = t->m;
    uint64_t *starts = calloc(chunk->parameter_count, sizeof(*starts));
    if (starts == NULL)
        tdm_eager_no_memory(m);
    uint64_t elements = lay_out(t, chunk, buffer, starts);
    m->label = (struct tdm_label){.name = "param_buffer", .layer = TDM_NO_LAYER};
    if (t->set.distributed_optimizer) {
        m->category = TDM_METHOD_WEIGHTS;
        chunk->weights[buffer] =
            tdm_value_new(m, elements, 1, buffer == BUFFER_FLOAT8 ? FLOAT8 : BF16);
    }
    const bool narrow = t->set.narrow_gradients || t->set.reduces_narrow;
    tdm_label(m, "grad_buffer");
    m->category = TDM_METHOD_GRADIENTS;
    chunk->gradients[buffer] = tdm_value_new(m, elements, 1, narrow ? BF16 : FP32);
    m->category = TDM_METHOD_WORKSPACE;
    for (uint32_t i = chunk->parameter_count;
         i-- > chunk->first_trained && chunk->weights[buffer] != NULL;) {
        struct megatron_parameter *p = &chunk->parameters[i];
        if (p->buffer != buffer)
            continue;
        struct tdm_eager_value *view = tdm_value_view(m, chunk->weights[buffer]);
        view->rows = p->rows;
        view->columns = p->columns;
        view->element_bytes = BF16; /* as which a weight of 8 bits acts */
        view->module = (*p->place)->module;
        tdm_value_require_grad(m, view);
        tdm_drop(m, *p->place);
        *p->place = view;
        if (buffer == BUFFER_FLOAT8)
            megatron_gather_cast(t, view);
    }
    free(starts);
}

void megatron_make_buffers(struct tdm_megatron *t, struct megatron_chunk *chunk)
{
    bool used[BUFFERS] = {[BUFFER_OTHERS] = true};
    for (uint32_t i = chunk->first_trained; i < chunk->parameter_count; i++)
        used[chunk->parameters[i].buffer] = true;
    for (unsigned i = 0; i < BUFFERS; i++)
        if (used[i])
            make_buffers(t, chunk, i);
}

/* detach().clone().float(); `wide` is NULL where that is in host memory. */
static void clone_main(struct tdm_eager *m, uint64_t elements, struct tdm_eager_value **wide)
{
    struct tdm_eager_value *clone = tdm_value_new(m, elements, 1, BF16);
    if (wide != NULL)
        *wide = tdm_value_new(m, elements, 1, FP32);
    tdm_drop(m, clone);
}

/* HybridDeviceOptimizer is made of whole parameters first, which the distributed optimizer replaces
 * by one of its shards: copies of those that stay on the GPU live until that is made. The list is
 * the caller's. */
static struct tdm_eager_value **make_whole_copies(struct tdm_megatron *t,
                                                  const struct megatron_chunk *chunk)
{
    struct tdm_eager_value **copies =
        calloc((size_t)chunk->parameter_count + 1, sizeof(struct tdm_eager_value *));
    double all = 0, offloaded = 0;
    if (copies == NULL)
        tdm_eager_no_memory(t->m);
    for (uint32_t i = chunk->first_trained; i < chunk->parameter_count; i++)
        all += (double)chunk->parameters[i].rows * (double)chunk->parameters[i].columns;
    for (uint32_t i = chunk->first_trained; i < chunk->parameter_count; i++) {
        const struct megatron_parameter *p = &chunk->parameters[i];
        const bool away = offloaded < all * t->set.offloaded;
        clone_main(t->m, p->rows * p->columns, away ? NULL : &copies[i]);
        offloaded += away ? (double)p->rows * (double)p->columns : 0;
    }
    return copies;
}

/* Those of HybridDeviceOptimizer: of the parameters in the order of their buffers, which begins
 * with the last, as many are offloaded as fill the share. Shards that it offloads have pinned
 * copies. */
static void make_hybrid_parameters(struct tdm_megatron *t, struct megatron_chunk *chunk)
{
    struct tdm_eager_value **copies = make_whole_copies(t, chunk);
    double all = 0, offloaded = 0;
    for (uint32_t i = chunk->first_trained; i < chunk->parameter_count; i++)
        all += (double)chunk->parameters[i].own;
    for (uint32_t i = chunk->parameter_count; i-- > chunk->first_trained;) {
        struct megatron_parameter *p = &chunk->parameters[i];
        if (p->own == 0)
            continue;
        p->on_host = offloaded < all * t->set.offloaded;
        clone_main(t->m, p->own, p->on_host ? NULL : &p->states[0]);
        if (p->on_host)
            tdm_host_take_pinned(t->m, p->own * FP32);
        offloaded += p->on_host ? (double)p->own : 0;
    }
    for (uint32_t i = 0; i < chunk->parameter_count; i++)
        tdm_drop(t->m, copies[i]);
    free(copies);
}

/* It has shares alone, and is the hybrid one's on the GPU. */
static bool is_precise(const struct tdm_megatron_settings *s)
{
    return s->precise && s->distributed_optimizer && !s->offloads;
}

/* Does Transformer Engine's FusedAdam have them, as states that the first step makes? Megatron has
 * them itself where weights of 8 bits come from them (OptimizerConfig.__post_init__). */
static bool has_remainders(const struct tdm_megatron *t)
{
    return is_precise(&t->set) && (t->set.float8 == TDM_TE_NONE || t->set.float8 == TDM_TE_DELAYED);
}

void megatron_make_main_parameters(struct tdm_megatron *t, struct megatron_chunk *chunk)
{
    struct tdm_eager *m = t->m;
    m->category = TDM_METHOD_OPTIMIZER;
    m->label = (struct tdm_label){.name = "main_param", .layer = TDM_NO_LAYER};
    if (t->set.offloads)
        make_hybrid_parameters(t, chunk);
    for (uint32_t i = chunk->first_trained;
         i < chunk->parameter_count && !t->set.offloads && !has_remainders(t); i++) {
        struct megatron_parameter *p = &chunk->parameters[i];
        if (!t->set.distributed_optimizer)
            p->own = p->rows * p->columns;
        if (p->own > 0)
            clone_main(m, p->own, &p->states[0]);
    }
    m->category = TDM_METHOD_WORKSPACE;
}

/* Float16OptimizerWithFloat16Params and the distributed optimizer, _copy_model_grads_to_main_grads:
 * model_grad.float(), which copies a gradient in bf16. */
static void copy_gradients(struct tdm_megatron *t)
{
    t->m->category = TDM_METHOD_GRADIENTS;
    t->m->label = (struct tdm_label){.name = "main_param.grad", .layer = TDM_NO_LAYER};
    for (uint64_t c = 0; c < t->layout.chunks; c++)
        for (uint32_t i = 0; i < t->chunks[c].parameter_count; i++) {
            struct megatron_parameter *p = &t->chunks[c].parameters[i];
            if (p->own > 0 && !p->on_host)
                p->gradient = tdm_replace(t->m, p->gradient, tdm_value_new(t->m, p->own, 1, FP32));
        }
    t->m->category = TDM_METHOD_WORKSPACE;
}

/* Does Muon step it? What has two dimensions, but the embeddings and the head. */
static bool is_of_muon(const struct tdm_megatron *t, const struct megatron_chunk *chunk,
                       const struct megatron_parameter *p)
{
    return t->set.muon && p->rows > 1 && p->columns > 1 && p->place != &chunk->embedding &&
           p->place != &chunk->positions && p->place != &chunk->head;
}

/* Newton and Schulz's iteration in bf16 of the whole matrix, which tensor-parallel ranks gather
 * from each other (tp_mode duplicated). Returns the update, which lives until the next one is made.
 */
static struct tdm_eager_value *step_muon(struct tdm_megatron *t, const struct megatron_parameter *p,
                                         struct tdm_eager_value *before)
{
    struct tdm_eager *m = t->m;
    const uint64_t ranks = t->layout.tensor, elements = p->rows * p->columns,
                   rows = p->rows < p->columns ? p->rows : p->columns;
    struct tdm_eager_value *shards = NULL, *whole = NULL;
    if (ranks > 1) {
        shards = tdm_value_new(m, elements, ranks, FP32);
        whole = tdm_value_new(m, elements, ranks, FP32);
        tdm_drop(m, shards);
    }
    struct tdm_eager_value *wide = tdm_value_new(m, elements, ranks, FP32);
    struct tdm_eager_value *x = tdm_value_new(m, elements, ranks, BF16), *gram = NULL;
    tdm_drop(m, wide);
    for (unsigned i = 0; i < MUON_STEPS; i++) {
        gram = tdm_replace(m, gram, tdm_value_new(m, rows, rows, BF16));
        struct tdm_eager_value *polynomial = tdm_value_new(m, rows, rows, BF16);
        x = tdm_replace(m, x, tdm_value_new(m, elements, ranks, BF16));
        tdm_drop(m, polynomial);
    }
    tdm_drop(m, gram);
    wide = tdm_value_new(m, elements, ranks, FP32);
    tdm_drop(m, x);
    tdm_drop(m, whole);
    for (unsigned i = 0; i < 2; i++) /* times two numbers */
        wide = tdm_replace(m, wide, tdm_value_new(m, elements, 1, FP32));
    tdm_drop(m, before);
    return wide;
}

static void run_muon(struct tdm_megatron *t)
{
    struct tdm_eager_value *update = NULL;
    t->m->category = TDM_METHOD_OPTIMIZER;
    t->m->label = (struct tdm_label){.name = "orth_grad", .layer = TDM_NO_LAYER};
    for (uint64_t c = 0; c < t->layout.chunks && t->set.muon; c++)
        for (uint32_t i = t->chunks[c].first_trained; i < t->chunks[c].parameter_count; i++)
            if (is_of_muon(t, &t->chunks[c], &t->chunks[c].parameters[i]))
                update = step_muon(t, &t->chunks[c].parameters[i], update);
    tdm_drop(t->m, update);
    t->m->category = TDM_METHOD_WORKSPACE;
}

static void make_states(struct tdm_megatron *t)
{
    t->states_made = true;
    t->m->category = TDM_METHOD_OPTIMIZER;
    t->m->label = (struct tdm_label){.name = "exp_avg, exp_avg_sq", .layer = TDM_NO_LAYER};
    for (uint64_t c = 0; c < t->layout.chunks; c++)
        for (uint32_t i = 0; i < t->chunks[c].parameter_count; i++) {
            struct megatron_parameter *p = &t->chunks[c].parameters[i];
            const bool hybrid = t->set.offloads, /* whose moments are torch's and in fp32 */
                narrow[] = {false, t->set.narrow_first && !hybrid, t->set.narrow_second && !hybrid};
            const unsigned states = is_of_muon(t, &t->chunks[c], p) ? 2 : 3;
            if (p->on_host) { /* pinned gradients, and moments */
                tdm_host_take_pinned(t->m, p->own * FP32);
                tdm_host_take(t->m, 2 * p->own * FP32);
                continue;
            }
            for (unsigned s = 1; s < states && p->own > 0; s++)
                p->states[s] = tdm_value_new(t->m, p->own, 1, narrow[s] ? BF16 : FP32);
            if (has_remainders(t) && p->own > 0)
                p->states[0] = tdm_value_new(t->m, p->own, 1, BF16);
        }
    t->m->category = TDM_METHOD_WORKSPACE;
}

void megatron_optimizer_step(struct tdm_megatron *t)
{
    const struct tdm_megatron_settings *set = &t->set;
    const bool precise =
        is_precise(set) || set->narrow_gradients || set->narrow_first || set->narrow_second;
    if ((set->reduces_narrow && !precise) ||
        (set->offloads && (set->reduces_narrow || set->narrow_gradients)))
        copy_gradients(t);
    if (!t->states_made)
        make_states(t);
    run_muon(t);
}

/* Those of the hybrid optimizer's own parameters stay until the next step. */
void megatron_drop_gradients(struct tdm_megatron *t)
{
    for (uint64_t c = 0; c < t->layout.chunks && !t->set.offloads; c++)
        for (uint32_t i = 0; i < t->chunks[c].parameter_count; i++) {
            struct megatron_parameter *p = &t->chunks[c].parameters[i];
            tdm_drop(t->m, p->gradient);
            p->gradient = NULL;
        }
}
