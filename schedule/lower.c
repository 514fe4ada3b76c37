/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: bodies of the loop nest become allocations, frees and operations.
 *
 * A body asks for what it needs (its input, an attention output) and gets it from where the schedule
 * put it, or recomputes it; it hands on what it made to where the schedule wants it. Fetches from
 * another place are emitted some bodies ahead: bodies wait in a short queue, a body's fetches are
 * emitted when it enters and its ops when it leaves.
 */
#include "schedule/lower_parts.h"

/* ---- markers: where buffers begin and end ---- */

static uint32_t first_layer(const struct tdm_lowering *l, uint32_t group)
{
    return tdm_schedule_first_layer(l->schedule, group);
}

/* Does some chunk of a layer run its attention again with the group? */
static bool reruns_attention(const struct tdm_lowering *l, uint32_t layer)
{
    return !tdm_attention_kept(l->program, layer, 0);
}

/* What the first forward of a layer stores for the backward. */
static void alloc_kept(struct tdm_lowering *l, uint32_t group, uint32_t layer)
{
    tdm_low_alloc(l, l->layout->kept_attention[layer]);
    if (tdm_low_top_of_group(l, layer) && group + 1 < l->schedule->group_count)
        tdm_low_alloc(l, l->layout->input[group + 1]);
}

/* What only this layer's backward still needed. */
static void release_stores(struct tdm_lowering *l, uint32_t group, uint32_t layer)
{
    tdm_low_release(l, l->layout->kept_attention[layer]);
    tdm_low_release(l, l->layout->held_attention[layer]);
    tdm_low_release(l, l->layout->held_input[layer]);
    if (tdm_low_first_of_group(l, layer))
        tdm_low_release(l, l->layout->input[group]);
}

static void layer_begin(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer;
    if (body->pass == TDM_PASS_RERUN) {
        if (reruns_attention(l, layer))
            tdm_low_alloc(l, l->layout->kv[layer]);
        tdm_low_alloc(l, l->layout->held_input[layer + 1]);
        tdm_low_alloc(l, l->layout->held_attention[layer]);
        return;
    }
    tdm_low_alloc(l, l->layout->kv[layer]);
    if (body->pass == TDM_PASS_FIRST)
        alloc_kept(l, body->group, layer);
}

static void layer_end(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer;
    if (body->pass != TDM_PASS_RERUN || reruns_attention(l, layer))
        tdm_low_release(l, l->layout->kv[layer]);
    if (body->pass != TDM_PASS_BACKWARD)
        return;
    tdm_low_release(l, l->layout->dkv[layer]);
    if (l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        tdm_low_release(l, l->layout->layer_gradient[layer]);
    release_stores(l, body->group, layer);
}

/* In layer-major order the layers allocate for themselves. In the forward of chunk-major a group
 * needs a place for X between its layers, unless it is one layer that has its input elsewhere. */
static bool group_needs_x(const struct tdm_lowering *l, uint32_t group)
{
    return group == 0 || l->schedule->groups[group].layers > 1;
}

static void group_begin(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (tdm_low_layer_major(l))
        return;
    uint32_t first = first_layer(l, body->group);
    uint32_t end = first + l->schedule->groups[body->group].layers;
    bool forward = body->pass == TDM_PASS_FIRST;

    if (forward && group_needs_x(l, body->group))
        tdm_low_alloc_work(l, TDM_X);
    if (!forward && l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        tdm_low_alloc(l, l->layout->layer_gradient[first]);
    for (uint32_t layer = first; layer < end; layer++) {
        if (forward) {
            tdm_low_alloc(l, l->layout->kv[layer]);
            alloc_kept(l, body->group, layer);
        } else {
            tdm_low_alloc(l, l->layout->dkv[layer]);
            tdm_low_alloc(l, l->layout->held_input[layer]);
            tdm_low_alloc(l, l->layout->held_attention[layer]);
        }
    }
}

static void group_end(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (tdm_low_layer_major(l))
        return;
    uint32_t first = first_layer(l, body->group);
    uint32_t end = first + l->schedule->groups[body->group].layers;

    if (body->pass == TDM_PASS_FIRST) {
        if (group_needs_x(l, body->group))
            tdm_low_release_work(l, TDM_X);
        return;
    }
    for (uint32_t layer = first; layer < end; layer++) {
        tdm_low_release(l, l->layout->kv[layer]);
        tdm_low_release(l, l->layout->dkv[layer]);
        release_stores(l, body->group, layer);
    }
    if (l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        tdm_low_release(l, l->layout->layer_gradient[first]);
}

/* Is a staging ring needed in a phase: does the phase move something from (to) the host? */
static bool ring_used(const struct tdm_lowering *l, uint32_t ring, enum tdm_phase phase)
{
    const struct tdm_layout *layout = l->layout;
    bool kept_on_host = false, held_on_host = false, input_on_host = false, held_x = false;
    for (uint32_t layer = 0; layer < l->model->layers; layer++) {
        kept_on_host |= tdm_low_on_host(l, layout->kept_attention[layer]);
        held_on_host |= tdm_low_on_host(l, layout->held_attention[layer]);
        held_x |= tdm_low_on_host(l, layout->held_input[layer]);
    }
    for (uint32_t group = 0; group < l->schedule->group_count; group++)
        input_on_host |= tdm_low_on_host(l, layout->input[group]);

    bool forward = phase == TDM_FORWARD;
    if (ring == layout->fetched_x)
        return forward ? input_on_host && !tdm_low_layer_major(l) : input_on_host || held_x;
    if (ring == layout->stashed_x)
        return forward ? input_on_host && !tdm_low_layer_major(l) : held_x;
    if (ring == layout->fetched_attention)
        return !forward;
    return forward ? kept_on_host : held_on_host;
}

static void phase_buffers(struct tdm_lowering *l, const struct tdm_body *body, bool begin)
{
    const struct tdm_layout *layout = l->layout;
    void (*act)(struct tdm_lowering *, uint32_t) = begin ? tdm_low_alloc : tdm_low_release;
    uint32_t rings[] = {layout->fetched_x, layout->stashed_x, layout->fetched_attention,
                        layout->stashed_attention};
    for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++)
        if (rings[i] != TDM_NONE && ring_used(l, rings[i], body->phase))
            act(l, rings[i]);
    l->next_fetched_x = l->next_stashed_x = 0;
    l->next_fetched_attention = l->next_stashed_attention = 0;

    bool forward = body->phase == TDM_FORWARD;
    if (begin ? forward == tdm_low_layer_major(l) : !forward)
        act(l, layout->stream);
    if (!begin && !forward && l->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
        act(l, layout->tied_gradient);
}

static void head_gradients(struct tdm_lowering *l, bool begin)
{
    if (l->schedule->optimizer.kind == TDM_OPTIMIZER_NONE)
        return; /* resident */
    if (begin) {
        tdm_low_alloc(l, l->layout->head_gradient);
        tdm_low_alloc(l, l->layout->tied_gradient); /* lives until the embedding's optimizer */
    } else {
        tdm_low_release(l, l->layout->head_gradient);
    }
}

/* ---- the queue ---- */

static void run_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    const struct tdm_body *body = &pending->body;
    switch (body->kind) {
    case TDM_BODY_PHASE_BEGIN:
    case TDM_BODY_PHASE_END:
        phase_buffers(l, body, body->kind == TDM_BODY_PHASE_BEGIN);
        break;
    case TDM_BODY_GROUP_BEGIN:
        group_begin(l, body);
        break;
    case TDM_BODY_GROUP_END:
        group_end(l, body);
        break;
    case TDM_BODY_LAYER_BEGIN:
        layer_begin(l, body);
        break;
    case TDM_BODY_LAYER_END:
        layer_end(l, body);
        break;
    case TDM_BODY_HEAD_BEGIN:
    case TDM_BODY_HEAD_END:
        head_gradients(l, body->kind == TDM_BODY_HEAD_BEGIN);
        break;
    case TDM_BODY_FORWARD:
        tdm_low_forward_body(l, pending);
        break;
    case TDM_BODY_KV:
        tdm_low_kv_body(l, pending);
        break;
    case TDM_BODY_HEAD:
        tdm_low_head_body(l, body);
        break;
    case TDM_BODY_BACKWARD:
        tdm_low_backward_body(l, pending);
        break;
    case TDM_BODY_OPTIMIZER:
        tdm_low_optimizer_body(l, body);
        break;
    }
}

static void leave_queue(struct tdm_lowering *l)
{
    struct tdm_pending pending = l->queue[l->queue_first];
    l->queue_first = (l->queue_first + 1) % MAX_QUEUE;
    l->queue_count--;
    run_body(l, &pending);
}

static enum tdm_status take_body(void *self, const struct tdm_body *body, struct tdm_error *err)
{
    struct tdm_lowering *l = self;
    (void)err; /* the sink fills it: it is l->err */
    /* a phase begins and ends with nothing under way: its rings must be there before a fetch */
    bool phase = body->kind == TDM_BODY_PHASE_BEGIN || body->kind == TDM_BODY_PHASE_END;
    while (l->queue_count > (phase ? 0 : l->depth))
        leave_queue(l);
    struct tdm_pending pending = {.body = *body};
    if (phase) {
        run_body(l, &pending);
        return l->status;
    }
    tdm_low_fetch(l, &pending);
    l->queue[(l->queue_first + l->queue_count) % MAX_QUEUE] = pending;
    l->queue_count++;
    return l->status;
}

enum tdm_status tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                          struct tdm_error *err)
{
    struct tdm_lowering l = {.program = program,
                             .schedule = program->schedule,
                             .model = program->schedule->model,
                             .layout = program->layout,
                             .sink = sink,
                             .self = self,
                             .err = err,
                             .status = TDM_OK,
                             .depth = tdm_prefetch_depth(program)};
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].resident)
            tdm_low_alloc(&l, i);
    if (l.status == TDM_OK)
        l.status = tdm_nest_walk(l.schedule, program->chunk_count, take_body, &l, err);
    for (uint32_t i = program->buffer_count; i-- > 0;)
        if (program->buffers[i].resident)
            tdm_low_release(&l, i);
    return l.status;
}
