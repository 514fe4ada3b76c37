/* SPDX-License-Identifier: Apache-2.0 */
/* BurstEngine's training loop: shards of weights, forward, loss, backward and optimizer step.
 * Sources: apps/llama/pretrain_llama_hug_tokenizer.py, cpm/llama/models/llama.py,
 * cpm/layers/transformer.py, bmtrain/optim/{adam,adam_offload,optim_manager}.py. */
#include "base/size.h"
#include "methods/context/burst_parts.h"
#include "methods/eager/cut.h"
#include "methods/eager/ops.h"

#include <stdlib.h>

/* Bytes per element in AdamOffloadOptimizer: two moments and the parameter in fp32, parameter and
 * gradient in bf16. */
#define HOST_STATE_BYTES 16u

#define BLOCK_TOKENS 128u /* of a mask of blocks */

static uint64_t matrix(const struct burst_model *b)
{
    return (uint64_t)b->config->vocabulary * b->config->hidden;
}

static void make_parameters(struct burst_model *b)
{
    struct tdm_eager *m = b->m;
    bool trained = b->lora_rank == 0;
    m->linear_function = true; /* OpLinear */
    m->category = TDM_METHOD_WEIGHTS;
    for (uint32_t i = 0; i < b->config->layers; i++)
        burst_make_block(b, i);
    b->final_norm = burst_shard(b, b->config->hidden, trained);
    b->embedding = burst_shard(b, matrix(b), trained);
    b->head = burst_shard(b, matrix(b), trained);
    if (!trained) {
        b->placeholder = tdm_value_leaf(m, 1, 1, FP32, true);
        tdm_value_vacate(m, b->placeholder);
    }
    m->category = TDM_METHOD_WORKSPACE;
    if (!b->settings.plain_loss) {
        b->whole_head = burst_gather(b, b->head, b->config->vocabulary, b->config->hidden);
        tdm_value_set_category(m, b->whole_head, TDM_METHOD_WEIGHTS);
    }
    b->ids = tdm_value_new(m, b->batch, b->all_tokens, INT32);
    b->targets = tdm_value_new(m, b->batch, b->all_tokens, INT32);
    for (unsigned i = 0; i < 3; i++) /* tasks, spans, context */
        b->others[i] = tdm_value_new(m, b->batch, b->all_tokens, i < 2 ? INT32 : 1);
}

static void release(void *state)
{
    struct burst_model *b = state;
    if (b == NULL)
        return;
    tdm_drop(b->m, b->loss);
    tdm_drop(b->m, b->first_input);
    free(b->blocks);
    free(b->states);
    free(b);
}

static enum tdm_status create(struct tdm_eager *m, const struct tdm_model *config,
                              const struct tdm_method_settings *settings, void **state,
                              struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    struct burst_model *b = calloc(1, sizeof(*b));
    if (b != NULL) {
        b->m = m;
        b->blocks = calloc(config->layers, sizeof(*b->blocks));
        b->states = calloc((size_t)config->layers + 3, sizeof(*b->states));
    }
    if (b == NULL || b->blocks == NULL || b->states == NULL) {
        release(b);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a model");
    }
    b->config = config;
    b->settings = settings->burst;
    b->all_tokens = tdm_context_padded_tokens(&torch->context, torch->tokens);
    b->tokens = tdm_context_local_tokens(&torch->context, torch->tokens);
    b->batch = torch->batch;
    b->ranks = torch->ranks;
    b->shards = settings->burst.replicated ? 1 : torch->ranks;
    b->gpus_per_node = torch->context.gpus_per_node;
    b->lora_rank = torch->lora_rank;
    b->lora_targets = torch->lora_targets;
    b->steps = torch->optimizer != TDM_TORCH_NO_OPTIMIZER;
    make_parameters(b);
    *state = b;
    return TDM_OK;
}

/* ---- forward and backward ---- */

/* Cosines and sines of all tokens, not only of the rank's, computed on first use. */
static void make_rotary(struct burst_model *b)
{
    struct tdm_eager *m = b->m;
    uint64_t tokens = b->all_tokens, head_dim = b->config->head_dim;
    if (b->cosine != NULL)
        return;
    struct tdm_eager_value *range = tdm_value_new(m, tokens, 1, INT64);
    struct tdm_eager_value *positions = tdm_value_new(m, tokens, 1, FP32);
    tdm_drop(m, range);
    struct tdm_eager_value *angles = tdm_value_new(m, tokens, head_dim / 2, FP32);
    struct tdm_eager_value *both = tdm_value_new(m, tokens, head_dim, FP32);
    struct tdm_eager_value **tables[] = {&b->cosine, &b->sine};
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *wide = tdm_value_new(m, tokens, head_dim, FP32);
        *tables[i] = tdm_value_new(m, tokens, head_dim, BF16);
        tdm_drop(m, wide);
    }
    tdm_drop(m, both);
    tdm_drop(m, angles);
    tdm_drop(m, positions);
}

/* The mask of blocks, made once (torch/nn/attention/flex_attention.py `BlockMask`). The mask of all
 * pairs from which create_block_mask makes it, 17 B a pair for a moment, is not counted. */
static void make_block_mask(struct burst_model *b)
{
    struct tdm_eager *m = b->m;
    uint64_t blocks = tdm_size_ceil_div(b->tokens, BLOCK_TOKENS);
    uint64_t rows = b->batch * b->config->query_heads * blocks;
    if (b->settings.mask != TDM_BURST_BLOCK || b->block_tables[0] != NULL)
        return;
    m->label = (struct tdm_label){.name = "mask of blocks", .layer = TDM_NO_LAYER};
    for (unsigned i = 0; i < BURST_TABLES; i++)
        b->block_tables[i] = tdm_value_new(m, rows, i % 2 == 0 ? 1 : blocks, INT32);
}

static struct tdm_eager_value *call_layer(struct burst_model *b, uint32_t layer,
                                          struct tdm_eager_value *x)
{
    const struct tdm_function function = {.run = burst_layer, .model = b, .layer = layer};
    if (!x->requires_grad) /* BMTrain checkpoints it whatever use_checkpoint says */
        return burst_first_layer(b, x);
    burst_enter(b, layer, false);
    struct tdm_eager_value *input = burst_mark(b, layer, x, false);
    struct tdm_eager_value *made = b->settings.whole_layers
                                       ? burst_layer(b->m, b, layer, input)
                                       : tdm_checkpoint_reentrant(b->m, &function, input);
    tdm_drop(b->m, input);
    burst_exit(b, layer);
    struct tdm_eager_value *output = burst_mark(b, layer, made, true);
    tdm_drop(b->m, made);
    return output;
}

static struct tdm_eager_value *encode(struct burst_model *b)
{
    struct tdm_eager *m = b->m;
    struct tdm_eager_value *weight =
        burst_gather(b, b->embedding, b->config->vocabulary, b->config->hidden);
    m->label = (struct tdm_label){.name = "embedding", .layer = TDM_NO_LAYER};
    struct tdm_eager_value *x = tdm_embedding(m, weight, b->ids, b->batch * b->tokens);
    tdm_drop(m, weight);
    for (uint32_t i = 0; i < b->config->layers; i++) {
        make_rotary(b);
        make_block_mask(b);
        struct tdm_eager_value *y = call_layer(b, i, x);
        tdm_drop(m, x);
        x = y;
    }
    weight = burst_gather(b, b->final_norm, 1, b->config->hidden);
    tdm_label(m, "norm");
    struct tdm_eager_value *hidden = burst_norm(m, x, weight);
    tdm_drop(m, weight);
    tdm_drop(m, x);
    return hidden;
}

static void forward(void *state)
{
    struct burst_model *b = state;
    struct tdm_eager_value *input_before = b->first_input;
    b->first_input = NULL;
    tdm_torch_empty_cache(b->m->allocator);
    struct tdm_eager_value *hidden = encode(b);
    tdm_label(b->m, "loss");
    struct tdm_eager_value *loss = b->settings.plain_loss
                                       ? burst_plain_loss(b, hidden)
                                       : tdm_cut_cross_entropy(b->m, hidden, b->whole_head);
    tdm_drop(b->m, hidden);
    tdm_drop(b->m, b->loss);
    tdm_drop(b->m, input_before);
    b->loss = loss;
}

static void backward(void *state)
{
    struct burst_model *b = state;
    tdm_backward(b->m, b->loss, NULL);
}

/* ---- the optimizer ---- */

/* Number of trained shards: one per layer; without adapters also final norm, embedding and head. */
static uint32_t trained_parts(const struct burst_model *b)
{
    return b->config->layers + (b->lora_rank > 0 ? 0 : 3);
}

static const struct tdm_eager_value *trained_part(const struct burst_model *b, uint32_t i)
{
    const uint32_t layers = b->config->layers;
    if (i < layers)
        return b->blocks[i].storages[b->lora_rank > 0 ? BURST_ADAPTERS : BURST_BASE].shard;
    return i == layers ? b->final_norm : i == layers + 1 ? b->embedding : b->head;
}

/* Computes the norms of gradients in fp32, one by one, and allocates states in the first step. For
 * frozen weights it would take norms of zeros; we assume that the optimizer is given only trained
 * ones. */
static void step(void *state)
{
    struct burst_model *b = state;
    struct tdm_eager *m = b->m;
    uint32_t parts = trained_parts(b);
    if (!b->steps)
        return;
    for (uint32_t i = 0; i < parts; i++)
        tdm_drop(m, tdm_value_new(m, 1, trained_part(b, i)->columns, FP32));
    m->category = TDM_METHOD_OPTIMIZER;
    m->label = (struct tdm_label){.name = "masters and moments", .layer = TDM_NO_LAYER};
    for (uint32_t i = 0; i < parts; i++) {
        struct burst_state *s = &b->states[i];
        uint64_t elements = trained_part(b, i)->columns;
        if (s->first != NULL || s->on_host || m->status != TDM_OK)
            continue;
        s->on_host = b->settings.offload;
        if (s->on_host) {
            tdm_host_take(m, elements * HOST_STATE_BYTES);
            continue;
        }
        s->first = tdm_value_new(m, 1, elements, FP32);
        s->second = tdm_value_new(m, 1, elements, FP32);
        s->master = tdm_value_new(m, 1, elements, FP32);
    }
    m->category = TDM_METHOD_WORKSPACE;
}

/* The loop never sets gradients to zero, so they accumulate. */
static void end_step(void *state)
{
    (void)state;
}

static uint64_t weight_bytes(const void *state)
{
    const struct burst_model *b = state;
    uint64_t elements = b->final_norm->columns + b->embedding->columns + b->head->columns;
    for (uint32_t i = 0; i < b->config->layers; i++)
        for (unsigned s = 0; s < BURST_STORAGES; s++)
            if (b->blocks[i].storages[s].shard != NULL)
                elements += b->blocks[i].storages[s].shard->columns;
    return elements * BF16;
}

const struct tdm_torch_system tdm_burst_system = {
    .create = create,
    .free = release,
    .phases = {forward, backward, step},
    .end_step = end_step,
    .weight_bytes = weight_bytes,
};
