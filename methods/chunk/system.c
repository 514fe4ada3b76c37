/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of chunk-recurrent training: test_efficiency/test.py of OOMB, test_latency/seco.py of SeCO.
 * The labels are moved to the GPU before the step. Logits stay bf16, and the losses of tokens are
 * summed. The name `loss` holds a chunk's graph until the next chunk's loss exists.
 *
 * Not all chunks are run (rows.c). The peak is in the backward of the last chunks.
 */
#include "methods/chunk/parts.h"

#include "base/size.h"
#include "methods/eager/ops.h"

#include <stdlib.h>

static void end(void *state);

static enum tdm_status create(struct tdm_eager *m, const struct tdm_model *config,
                              const struct tdm_method_settings *settings, void **state,
                              struct tdm_error *err)
{
    struct tdm_chunk_run *run = calloc(1, sizeof(*run));
    if (run == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for chunks");
    run->m = m;
    tdm_chunk_rank_model(config, settings->torch.ranks, &run->rank);
    run->config = &run->rank;
    run->settings = settings;
    run->chunks = tdm_size_ceil_div(settings->torch.tokens, settings->chunk.tokens);
    enum tdm_status status = tdm_chunk_pages_create(run, err);
    if (status == TDM_OK)
        status = tdm_torch_model_create(m, config, &settings->torch, &run->model, err);
    if (status != TDM_OK) {
        end(run);
        return status;
    }
    tdm_chunk_divide(run);
    run->labels = tdm_value_new(m, settings->torch.batch, settings->torch.tokens, INT64);
    *state = run;
    return TDM_OK;
}

static void end(void *state)
{
    struct tdm_chunk_run *run = state;
    if (run == NULL)
        return;
    tdm_drop(run->m, run->loss);
    tdm_torch_model_free(run->model);
    tdm_chunk_pages_free(run);
    free(run);
}

/* ---- a chunk ---- */

static struct tdm_eager_value *call_layer(struct tdm_chunk_run *run, uint32_t number,
                                          struct tdm_eager_value *x)
{
    const struct tdm_function function = {.run = tdm_chunk_layer, .model = run, .layer = number};
    if (run->sweep || !run->settings->chunk.checkpoint)
        return tdm_chunk_layer(run->m, run, number, x);
    return tdm_checkpoint(run->m, &function, x);
}

/* Cross entropy of bf16 logits: one loss per token, and their sum. */
static struct tdm_eager_value *chunk_loss(struct tdm_chunk_run *run, struct tdm_eager_value *hidden)
{
    struct tdm_eager *m = run->m;
    m->category = TDM_METHOD_LOGITS;
    tdm_label(m, "lm_head");
    struct tdm_eager_value *logits = tdm_linear(m, hidden, run->model->head, NULL, false);
    logits = tdm_chunk_gather_logits(run, logits);
    tdm_label(m, "loss");
    struct tdm_eager_value *loss = tdm_cross_entropy(m, logits, run->labels);
    m->category = TDM_METHOD_WORKSPACE;
    tdm_drop(m, logits);
    return loss;
}

static struct tdm_eager_value *run_chunk(struct tdm_chunk_run *run, uint64_t number)
{
    struct tdm_eager *m = run->m;
    struct tdm_torch_model *t = run->model;
    run->number = number;
    m->label = (struct tdm_label){.name = "model.embed_tokens", .layer = TDM_NO_LAYER};
    struct tdm_eager_value *x =
        tdm_embedding(m, t->embedding, t->ids, tdm_chunk_tokens(run, number));
    struct tdm_eager_value *embedded = tdm_take(x); /* a second name holds it */
    for (uint32_t l = 0; l < run->config->layers; l++) {
        struct tdm_eager_value *y = call_layer(run, l, x);
        tdm_drop(m, x);
        x = y;
    }
    tdm_label(m, "model.norm");
    struct tdm_eager_value *hidden = tdm_torch_norm(m, t, x, t->final_norm);
    tdm_drop(m, x);
    tdm_drop(m, embedded);
    struct tdm_eager_value *loss = chunk_loss(run, hidden);
    tdm_drop(m, hidden);
    return loss;
}

/* K and V of a chunk that is not run. */
static void add_chunk(struct tdm_chunk_run *run, uint64_t number)
{
    run->number = number;
    for (uint32_t l = 0; l < run->config->layers; l++) {
        if (run->settings->chunk.page_tokens > 0)
            tdm_chunk_choose(run, l, NULL);
        tdm_chunk_add(run, l, NULL, NULL);
    }
}

static void forward(void *state)
{
    struct tdm_chunk_run *run = state;
    struct tdm_eager *m = run->m;
    m->grad_enabled = false;
    run->sweep = true;
    for (uint64_t c = 0; c < run->chunks && m->status == TDM_OK; c++) {
        run->held = c + 1;
        if (tdm_chunk_is_run(run, c))
            tdm_drop(m, run_chunk(run, c));
        else
            add_chunk(run, c);
    }
    run->sweep = false;
    m->grad_enabled = true;
}

/* ---- SeCO's cache objects ---- */

static void drop_second(struct tdm_chunk_run *run)
{
    for (uint32_t l = 0; l < run->config->layers; l++)
        for (unsigned i = 0; i < 2; i++) {
            tdm_drop(run->m, run->layers[l].second[i]);
            run->layers[l].second[i] = NULL;
        }
}

/* No later chunk left gradients for K and V of the last chunk. Hooks in its graph hold zeros
 * instead. */
static void add_zeros(struct tdm_chunk_run *run)
{
    enum tdm_method_category before = run->m->category;
    run->m->category = TDM_METHOD_KV_GRADIENTS;
    for (uint32_t l = 0; l < run->config->layers; l++) {
        struct chunk_pages *last = &run->layers[l].chunks[run->chunks - 1];
        for (last->grad_count = 0; last->grad_count < 2; last->grad_count++)
            last->grads[last->grad_count] = tdm_value_like(run->m, last->kv[last->grad_count]);
    }
    run->m->category = before;
}

static void drop_zeros(struct tdm_chunk_run *run)
{
    for (uint32_t l = 0; l < run->config->layers; l++) {
        struct chunk_pages *last = &run->layers[l].chunks[run->chunks - 1];
        while (last->grad_count > 0)
            tdm_drop(run->m, last->grads[--last->grad_count]);
    }
}

static void backward(void *state)
{
    struct tdm_chunk_run *run = state;
    struct tdm_eager *m = run->m;
    bool pages = run->settings->chunk.page_tokens > 0;
    for (uint64_t c = run->chunks; c-- > 0 && m->status == TDM_OK;) {
        if (tdm_chunk_is_run(run, c)) {
            drop_second(run);
            struct tdm_eager_value *loss = run_chunk(run, c);
            tdm_drop(m, run->loss); /* and with it the graph of the previous chunk */
            run->loss = loss;
            if (!pages && c + 1 == run->chunks)
                add_zeros(run);
            else if (!pages)
                drop_zeros(run);
            tdm_backward(m, loss, NULL);
        }
        if (pages)
            tdm_chunk_remove(run);
    }
    drop_second(run);
    while (run->held > 0)
        tdm_chunk_remove(run);
    tdm_drop(m, run->loss);
    run->loss = NULL;
}

static void step(void *state)
{
    struct tdm_chunk_run *run = state;
    tdm_torch_optimizer_step(run->model);
}

static void zero_grad(void *state)
{
    struct tdm_chunk_run *run = state;
    tdm_torch_zero_grad(run->model);
}

static uint64_t weight_bytes(const void *state)
{
    const struct tdm_chunk_run *run = state;
    return tdm_torch_weight_bytes(run->model);
}

const struct tdm_torch_system tdm_chunk_system = {
    .create = create,
    .free = end,
    .phases = {forward, backward, step},
    .end_step = zero_grad,
    .weight_bytes = weight_bytes,
};
