/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro-batches of a step on one stage of the pipeline: forwards and backwards in the order of
 * 1F1B, with virtual stages interleaved, and the messages between stages. A step repeats itself
 * once the pipeline is full, so only as many micro-batches are run as reach the peak.
 * Sources: megatron/core/pipeline_parallel/schedules.py,
 * models/common/embeddings/language_model_embedding.py, tensor_parallel/layers.py
 * (VocabParallelEmbedding), megatron/training/utils.py (get_batch_on_this_tp_rank).
 */
#include "methods/megatron/parts.h"

#include "methods/eager/ops.h"

#include <stdlib.h>

#define MORE_MICROBATCHES 3u /* beyond those that are in flight at once */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void plan(struct tdm_megatron *t, bool backward, uint64_t number)
{
    uint64_t chunks = t->layout.chunks, group = t->layout.group * chunks;
    uint64_t inside = number % group, width = t->layout.group;
    uint64_t rest = t->microbatches - number / group * width;
    struct megatron_action *action = &t->actions[t->action_count++];
    if (chunks == 1) {
        *action = (struct megatron_action){backward, 0, (uint32_t)number};
        return;
    }
    width = least(width, rest);
    uint64_t chunk = inside / width;
    *action =
        (struct megatron_action){backward, (uint32_t)(backward ? chunks - 1 - chunk : chunk),
                                 (uint32_t)(number / group * t->layout.group + inside % width)};
}

enum tdm_status megatron_make_schedule(struct tdm_megatron *t, struct tdm_error *err)
{
    const struct tdm_megatron_layout *layout = &t->layout;
    uint64_t after = layout->pipeline - 1 - layout->stage, chunks = layout->chunks;
    uint64_t warm_up = chunks == 1 ? after : 2 * after + (chunks - 1) * layout->group,
             enough = warm_up;
    if (chunks > 1) /* whole groups */
        enough = (warm_up / (chunks * layout->group) + 1) * layout->group;
    t->microbatches = (uint32_t)least(layout->microbatches, enough + MORE_MICROBATCHES +
                                                                (chunks > 1 ? layout->group : 0));
    if (chunks > 1 && t->microbatches < layout->microbatches)
        t->microbatches -= t->microbatches % (uint32_t)layout->group;
    uint64_t total = t->microbatches * chunks;
    warm_up = least(warm_up, total);
    t->actions = calloc(2 * total, sizeof(*t->actions));
    bool missing = t->actions == NULL;
    for (uint64_t c = 0; c < chunks; c++) {
        struct megatron_chunk *chunk = &t->chunks[c];
        chunk->inputs = calloc(t->microbatches, sizeof(struct tdm_eager_value *));
        chunk->outputs = calloc(t->microbatches, sizeof(struct tdm_eager_value *));
        missing |= chunk->inputs == NULL || chunk->outputs == NULL;
    }
    if (missing)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu micro-batches",
                        (unsigned long long)t->microbatches);
    for (uint64_t i = 0; i < warm_up; i++)
        plan(t, false, i);
    for (uint64_t i = 0; i < total; i++) {
        if (warm_up + i < total)
            plan(t, false, warm_up + i);
        plan(t, true, i);
    }
    return TDM_OK;
}

/* ---- inputs of a micro-batch ---- */

static struct tdm_eager_value *received(struct tdm_megatron *t)
{
    t->m->category = TDM_METHOD_COMMUNICATION;
    t->m->label = (struct tdm_label){.name = "received", .layer = TDM_NO_LAYER};
    struct tdm_eager_value *x = tdm_value_new(t->m, t->part_rows, t->config->hidden, BF16);
    t->m->category = TDM_METHOD_WORKSPACE;
    return x;
}

/* Tokens, labels, their mask and positions of whole sequences, then this rank's part. The causal
 * mask, which no kernel reads, exists only if the loader makes it. */
static void take_batch(struct tdm_megatron *t)
{
    struct tdm_eager *m = t->m;
    struct megatron_kept whole = {.count = 0};
    uint64_t length = t->tokens * t->layout.context, all = t->batch * length;
    bool first = t->chunks[0].first || t->chunks[t->layout.chunks - 1].last;
    if (!first)
        return;
    m->label = (struct tdm_label){.name = "batch", .layer = TDM_NO_LAYER};
    const uint16_t widths[] = {INT64, INT64, FP32, INT64};
    for (unsigned i = 0; i < 4; i++)
        megatron_keep(m, &whole, tdm_value_new(m, all, 1, widths[i]));
    if (t->set.mask_in_loader && !t->packed)
        t->mask = tdm_value_new(m, t->batch * length, length, BOOL);
    t->tokens_in =
        t->layout.context > 1 ? tdm_value_new(m, t->rows, 1, INT64) : tdm_take(whole.values[0]);
    t->labels =
        t->layout.context > 1 ? tdm_value_new(m, t->rows, 1, INT64) : tdm_take(whole.values[1]);
    megatron_drop_all(m, &whole);
}

static void drop_batch(struct tdm_megatron *t)
{
    tdm_drop(t->m, t->tokens_in);
    tdm_drop(t->m, t->labels);
    tdm_drop(t->m, t->mask);
    t->tokens_in = t->labels = t->mask = NULL;
}

static struct tdm_eager_value *embed(struct tdm_megatron *t, struct megatron_chunk *chunk)
{
    struct tdm_eager *m = t->m;
    m->label = (struct tdm_label){.name = "embedding", .layer = TDM_NO_LAYER};
    struct tdm_eager_value *x = tdm_embedding(m, chunk->embedding, t->tokens_in, t->rows), *y;
    if (chunk->positions != NULL) {
        struct tdm_eager_value *positions =
            tdm_embedding(m, chunk->positions, t->tokens_in, t->rows);
        y = tdm_add(m, x, positions);
        tdm_drop(m, x);
        tdm_drop(m, positions);
        x = y;
    }
    if (t->config->scaled_embedding) {
        y = tdm_mul_number(m, x);
        tdm_drop(m, x);
        x = y;
    }
    if (t->batch > 1) {
        y = megatron_copy(t, x);
        tdm_drop(m, x);
        x = y;
    }
    if (t->sequence_parallel) {
        y = megatron_scatter(t, x);
        tdm_drop(m, x);
        x = y;
    }
    y = megatron_dropout(t, x);
    tdm_drop(m, x);
    return y;
}

/* Angles of all tokens, or with context parallelism only of this rank's; of packed sequences those
 * of the longest, whole. A cache keeps them. */
static void make_angles(struct tdm_megatron *t)
{
    /* those of windows too: Gemma3RotaryEmbedding stacks both */
    const uint64_t angles = (t->config->parts & TDM_PART_TWO_ROPES) != 0 ? 2 : 1;
    if (t->angles == NULL && t->rotates)
        t->angles = tdm_value_new(
            t->m, (t->packed ? t->longest : t->tokens) * angles,
            t->config->latent.kv_rank > 0 ? t->config->rotary_dim : t->config->head_dim, FP32);
}

/* ---- forwards and backwards ---- */

static void forward(struct tdm_megatron *t, const struct megatron_action *action)
{
    struct tdm_eager *m = t->m;
    struct megatron_chunk *chunk = &t->chunks[action->chunk];
    struct tdm_eager_value *x, *input = NULL;
    if (!chunk->first) {
        input = t->next_input != NULL ? t->next_input : received(t);
        t->next_input = NULL;
        tdm_value_require_grad(m, input);
    }
    tdm_drop(m, chunk->held);
    chunk->held = tdm_take(input);
    take_batch(t);
    x = chunk->first ? embed(t, chunk) : tdm_take(input);
    if (t->lora_rank > 0 && t->set.recompute == TDM_RECOMPUTE_FULL && !x->requires_grad) {
        /* The backward of a checkpoint runs only if its input needs a gradient. Like a received
         * input, this one outlives the graph. */
        input = tdm_value_view(m, x);
        tdm_value_require_grad(m, input);
        tdm_drop(m, x);
        x = tdm_take(input);
    }
    make_angles(t);
    x = megatron_run_chunk(t, action->chunk, x);
    if (chunk->last) {
        struct tdm_eager_value *loss = megatron_head_loss(t, chunk, x);
        tdm_drop(m, x);
        x = loss;
    }
    drop_batch(t);
    tdm_drop(m, t->finished_input);
    t->finished_input = NULL;
    chunk->inputs[action->microbatch] = input;
    chunk->outputs[action->microbatch] = x;
}

/* Frees the memory of an output that was sent, but not its node: deallocate_pipeline_outputs. */
static void sent(struct tdm_megatron *t, const struct megatron_action *action)
{
    struct megatron_chunk *chunk = &t->chunks[action->chunk];
    struct tdm_eager_value *output = chunk->outputs[action->microbatch];
    if (!chunk->last && output != NULL)
        tdm_value_vacate(t->m, output);
}

static void backward(struct tdm_megatron *t, const struct megatron_action *action)
{
    struct tdm_eager *m = t->m;
    struct megatron_chunk *chunk = &t->chunks[action->chunk];
    struct tdm_eager_value **input = &chunk->inputs[action->microbatch];
    struct tdm_eager_value **output = &chunk->outputs[action->microbatch];
    tdm_backward(m, *output, chunk->last ? NULL : t->output_gradient);
    tdm_drop(m, *output);
    tdm_drop(m, t->input_gradient);
    t->input_gradient = *input != NULL ? tdm_take((*input)->grad) : NULL;
    tdm_drop(m, t->finished_input);
    t->finished_input = t->layout.chunks == 1 ? tdm_take(*input) : NULL;
    tdm_drop(m, *input);
    *input = *output = NULL;
}

static void receive_gradient(struct tdm_megatron *t)
{
    struct tdm_eager_value *gradient = received(t);
    tdm_drop(t->m, t->output_gradient);
    t->output_gradient = gradient;
}

static bool waits_for_gradient(const struct tdm_megatron *t, const struct megatron_action *action)
{
    return !t->chunks[action->chunk].last;
}

/* The next action of this direction, from `number` on; or NULL. */
static const struct megatron_action *next_of(const struct tdm_megatron *t, uint32_t number,
                                             bool backward)
{
    while (number < t->action_count && t->actions[number].backward != backward)
        number++;
    return number < t->action_count ? &t->actions[number] : NULL;
}

/* 1F1B: the next gradient is received before the output that was sent is freed. */
static void act(struct tdm_megatron *t, const struct megatron_action *action)
{
    const struct megatron_action *after =
        t->next_action < t->action_count ? &t->actions[t->next_action] : NULL;
    if (action->backward) {
        if ((action - 1)->backward && waits_for_gradient(t, action))
            receive_gradient(t);
        backward(t, action);
        return;
    }
    forward(t, action);
    if (after != NULL && after->backward && waits_for_gradient(t, after))
        receive_gradient(t);
    sent(t, action);
}

static void send_last(struct tdm_megatron *t)
{
    if (t->unsent != NULL)
        sent(t, t->unsent);
    t->unsent = NULL;
}

/* Interleaved stages receive while they compute: the next input after a forward, the next gradient
 * after a backward, and the first gradient at the end of the warm-up. The output of a forward is
 * freed after the backward that follows it. */
static void act_interleaved(struct tdm_megatron *t, const struct megatron_action *action)
{
    const struct megatron_action *gradient = next_of(t, t->next_action, true);
    const struct megatron_action *input = next_of(t, t->next_action, false);
    if (!action->backward || (action - 1)->backward)
        send_last(t);
    if (action->backward) {
        if (t->output_gradient == NULL && waits_for_gradient(t, action))
            receive_gradient(t);
        backward(t, action);
        tdm_drop(t->m, t->output_gradient);
        t->output_gradient = NULL;
    } else {
        forward(t, action);
        if (input != NULL && t->next_input == NULL && !t->chunks[input->chunk].first)
            t->next_input = received(t);
        t->unsent = action;
        if (action + 1 == input)
            send_last(t);
    }
    bool warm = action->backward || (input != NULL && action + 1 == input && input + 1 == gradient);
    if (warm && gradient != NULL && t->output_gradient == NULL && waits_for_gradient(t, gradient))
        receive_gradient(t);
}

static void act_next(struct tdm_megatron *t)
{
    const struct megatron_action *action = &t->actions[t->next_action++];
    if (t->layout.chunks > 1)
        act_interleaved(t, action);
    else
        act(t, action);
}

void megatron_warm_up(struct tdm_megatron *t)
{
    t->next_action = 0;
    while (t->next_action < t->action_count && !t->actions[t->next_action].backward)
        act_next(t);
}

void megatron_finish_step(struct tdm_megatron *t)
{
    while (t->next_action < t->action_count)
        act_next(t);
    send_last(t);
    tdm_drop(t->m, t->output_gradient);
    tdm_drop(t->m, t->input_gradient);
    tdm_drop(t->m, t->finished_input);
    t->output_gradient = t->input_gradient = t->finished_input = NULL;
}
