/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: turns the bodies of the loop nest into allocations, frees and operations.
 *
 * A body reads the values that it needs (its input, an attention output, q) from where the schedule
 * stores them, or recomputes them. It writes its results to where the schedule wants them. Fetches
 * from another place are emitted some bodies ahead: bodies wait in a short queue; a body's fetches
 * are emitted when it enters the queue, its ops when it leaves.
 */
#include "schedule/kv_row.h"
#include "schedule/lower_parts.h"
#include "schedule/optimizer.h"

/* ---- markers: where buffers begin and end ---- */

static uint32_t first_layer(const struct tdm_lowering *l, uint32_t group)
{
    return tdm_schedule_first_layer(l->schedule, group);
}

/* The row of K and V that a layer shares with others, or TDM_NONE if this pass does not need it. A
 * row of its own lives longer than a sweep. */
static uint32_t sweep_row(const struct tdm_lowering *l, uint32_t layer, enum tdm_pass pass)
{
    uint32_t row = tdm_low_kv_row(l, layer, pass);
    if (row == l->layout->own_kv[layer])
        return TDM_NONE;
    bool rerun = pass == TDM_PASS_RERUN; /* chunks with a kept attention output need no K, V */
    return rerun && tdm_store_kept(l->program, TDM_STORE_ATTENTION, layer, 0) ? TDM_NONE : row;
}

/* Is there something of a layer in that row before its backward begins? */
static bool kv_ahead(const struct tdm_lowering *l, uint32_t layer)
{
    return tdm_nest_kv_ahead(l->schedule, l->whole_row, layer);
}

/* Allocates what the first forward of a layer stores for the backward. */
static void alloc_kept(struct tdm_lowering *l, uint32_t group, uint32_t layer)
{
    if (l->schedule->groups[group].kv == TDM_KV_KEEP)
        tdm_low_alloc(l, l->layout->own_kv[layer]);
    tdm_low_alloc(l, l->layout->host_kv[layer]);
    if (tdm_low_first_selects(l, layer))
        tdm_low_alloc(l, l->layout->lists[layer]);
    for (int store = 0; store < TDM_STORES; store++)
        tdm_low_alloc(l, l->layout->kept[store][layer]);
    if (tdm_low_top_of_group(l, layer) && group + 1 < l->schedule->group_count)
        tdm_low_alloc(l, l->layout->input[group + 1]);
}

/* Allocates what a layer holds when its group runs forward again, except its input, which the layer
 * below writes. */
static void alloc_held(struct tdm_lowering *l, uint32_t group, uint32_t layer)
{
    if (l->schedule->groups[group].kv == TDM_KV_RECOMPUTE)
        tdm_low_alloc(l, l->layout->own_kv[layer]);
    if (!tdm_low_first_selects(l, layer))
        tdm_low_alloc(l, l->layout->lists[layer]);
    for (int store = 0; store < TDM_STORES; store++) {
        tdm_low_alloc(l, l->layout->held[store][layer]);
        tdm_low_alloc(l, l->layout->held_near[store][layer]);
    }
}

static void alloc_held_input(struct tdm_lowering *l, uint32_t layer)
{
    tdm_low_alloc(l, l->layout->held_input[layer]);
    tdm_low_alloc(l, l->layout->held_input_near[layer]);
}

/* Frees what only this layer's backward still needed. */
static void release_stores(struct tdm_lowering *l, uint32_t group, uint32_t layer)
{
    tdm_low_release(l, l->layout->own_kv[layer]);
    tdm_low_release(l, l->layout->host_kv[layer]);
    tdm_low_release(l, l->layout->lists[layer]);
    for (int store = 0; store < TDM_STORES; store++) {
        tdm_low_release(l, l->layout->kept[store][layer]);
        tdm_low_release(l, l->layout->held[store][layer]);
        tdm_low_release(l, l->layout->held_near[store][layer]);
    }
    tdm_low_release(l, l->layout->held_input[layer]);
    tdm_low_release(l, l->layout->held_input_near[layer]);
    if (tdm_low_first_of_group(l, layer))
        tdm_low_release(l, l->layout->input[group]);
}

/* The gradient of a unit is complete: copies it to its home, if that is not on the device. */
static void end_gradient(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit)
{
    if (!tdm_home_is_far(l->program, TDM_UNIT_GRADIENT, unit))
        return;
    struct tdm_ref home = tdm_home_of(l->program, TDM_UNIT_GRADIENT, unit);
    tdm_low_alloc_gradient(l, home.buffer);
    tdm_low_copy_unit(l, body, tdm_low_gradient_ref(l, unit), home,
                      tdm_low_complete_tag(l, TDM_UNIT_GRADIENT, unit));
}

/* Frees the buffer in which a layer's gradient was summed, unless it stays or goes on. */
static void release_sum(struct tdm_lowering *l, uint32_t layer)
{
    if (tdm_gradient_is_transient(l->program, layer) && !tdm_low_gradient_goes_on(l, layer))
        tdm_low_release(l, l->layout->layer_gradient[layer]);
}

static void end_tied_gradient(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t embedding = tdm_model_embedding_unit(l->model);
    if (!tdm_gradient_is_transient(l->program, embedding))
        return;
    if (l->layout->tied_home != TDM_NONE) {
        tdm_low_alloc_gradient(l, l->layout->tied_home);
        tdm_low_copy_unit(l, body, (struct tdm_ref){l->layout->tied_gradient, 0},
                          (struct tdm_ref){l->layout->tied_home, 0},
                          tdm_low_complete_tag(l, TDM_TIED_GRADIENT, embedding));
    }
    tdm_low_release(l, l->layout->tied_gradient);
}

/* Begin or end the use of weights other than a layer's between two markers: the embedding's in
 * layer 0, and the head's. */
static void use_embedding(struct tdm_lowering *l, const struct tdm_body *body, bool begin)
{
    uint32_t embedding = tdm_model_embedding_unit(l->model);
    if (begin)
        tdm_low_stage_weights(l, body, embedding);
    else
        tdm_low_unstage_weights(l, embedding);
    if (!begin && body->phase == TDM_FORWARD)
        tdm_low_update_unused(l);
}

static void use_head(struct tdm_lowering *l, const struct tdm_body *body, bool begin)
{
    uint32_t head = tdm_model_head_unit(l->model);
    if (l->model->tied)
        use_embedding(l, body, begin);
    if (begin)
        tdm_low_stage_weights(l, body, head);
    else
        tdm_low_unstage_weights(l, head);
}

static void layer_begin(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer;
    const bool backward = body->pass == TDM_PASS_BACKWARD;
    if (layer == 0)
        use_embedding(l, body, true);
    if (!backward || !kv_ahead(l, layer))
        tdm_low_alloc(l, sweep_row(l, layer, body->pass));
    if (body->pass == TDM_PASS_FIRST) {
        tdm_low_alloc_means(l, layer);
        alloc_kept(l, body->group, layer);
    } else if (body->pass == TDM_PASS_RERUN) {
        alloc_held_input(l, layer + 1);
        alloc_held(l, body->group, layer);
    } else if (tdm_ranks_gather(l->program)) {
        tdm_low_alloc_work(l, TDM_DNORMED); /* of all chunks */
    }
    if (backward && tdm_low_ranks_add_first(l))
        tdm_low_alloc(l, l->layout->dkv[layer]);
    if (tdm_ranks_divide_heads(l->program)) {
        tdm_low_alloc_work(l, TDM_OWN_KVPAGES);
        tdm_low_alloc_work(l, TDM_PARTED);
    }
}

static void layer_end(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer;
    if (layer == 0)
        use_embedding(l, body, false);
    if (body->pass != TDM_PASS_BACKWARD || layer == 0 || !kv_ahead(l, layer - 1))
        tdm_low_release(l, sweep_row(l, layer, body->pass));
    if (tdm_ranks_divide_heads(l->program)) {
        tdm_low_release_work(l, TDM_OWN_KVPAGES);
        tdm_low_release_work(l, TDM_PARTED);
    }
    if (body->pass == TDM_PASS_FIRST)
        tdm_low_release_means(l, layer, false);
    if (body->pass != TDM_PASS_BACKWARD)
        return;
    tdm_low_release(l, l->layout->dkv[layer]);
    if (tdm_ranks_gather(l->program))
        tdm_low_release_work(l, TDM_DNORMED);
    if (!tdm_nest_defers(l->schedule)) {
        end_gradient(l, body, layer);
        release_sum(l, layer);
    }
    release_stores(l, body->group, layer);
}

/* Does a group need a workspace for X between its layers? Not if X passes through the stream, or if
 * it is one layer whose input is stored elsewhere. */
static bool group_needs_x(const struct tdm_lowering *l, uint32_t group)
{
    return !tdm_low_streams_x(l) && (group == 0 || l->schedule->groups[group].layers > 1);
}

/* Chunk-major: the buffer of a layer's dK and dV that lives as long as its group. */
static uint32_t group_gradients(const struct tdm_lowering *l, uint32_t layer)
{
    bool far = l->layout->far_slot[layer] != NULL;
    return far ? l->layout->host_dkv[layer] : l->layout->dkv[layer];
}

/* Chunk-major: the row of a group's gradients that pass (lowering.h), or TDM_NONE. */
static uint32_t passing_row(const struct tdm_lowering *l, uint32_t first, uint32_t end)
{
    for (uint32_t layer = first; layer < end; layer++)
        if (tdm_gradient_is_transient(l->program, layer))
            return l->layout->layer_gradient[layer];
    return TDM_NONE;
}

static void group_begin(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (tdm_low_layer_major(l))
        return;
    uint32_t first = first_layer(l, body->group);
    uint32_t end = first + l->schedule->groups[body->group].layers;
    bool forward = body->pass == TDM_PASS_FIRST;

    if (first == 0)
        use_embedding(l, body, true);
    if (forward && group_needs_x(l, body->group))
        tdm_low_alloc_work(l, TDM_X);
    if (!forward)
        tdm_low_alloc(l, passing_row(l, first, end));
    for (uint32_t layer = first; layer < end; layer++) {
        if (forward) {
            tdm_low_alloc_means(l, layer);
            alloc_kept(l, body->group, layer);
        } else {
            if (!tdm_gradient_is_transient(l->program, layer))
                tdm_low_alloc_gradient(l, l->layout->layer_gradient[layer]);
            tdm_low_alloc(l, group_gradients(l, layer));
            alloc_held_input(l, layer);
            alloc_held(l, body->group, layer);
        }
    }
}

static void group_end(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (body->group == 0 && body->pass == TDM_PASS_BACKWARD && !tdm_updates_at_end(l->schedule))
        tdm_low_end_layers(l);
    if (tdm_low_layer_major(l))
        return;
    uint32_t first = first_layer(l, body->group);
    uint32_t end = first + l->schedule->groups[body->group].layers;

    if (first == 0)
        use_embedding(l, body, false);
    for (uint32_t layer = first; layer < end; layer++)
        tdm_low_release_means(l, layer, body->pass != TDM_PASS_FIRST);
    if (body->pass == TDM_PASS_FIRST) {
        if (group_needs_x(l, body->group))
            tdm_low_release_work(l, TDM_X);
        if (l->schedule->pass == TDM_TRAIN)
            return; /* the backward needs K and V too */
    }
    for (uint32_t layer = first; layer < end; layer++) {
        tdm_low_release(l, group_gradients(l, layer));
        release_stores(l, body->group, layer);
        end_gradient(l, body, layer);
    }
    tdm_low_release(l, passing_row(l, first, end));
}

/* Is any of these buffers, one per layer or group, on the host? */
static bool any_far(const struct tdm_lowering *l, const uint32_t *buffers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tdm_low_is_far(l, buffers[i]))
            return true;
    return false;
}

/* Calls `act` for the rings through which a phase copies from or to the host. */
static void phase_rings(struct tdm_lowering *l, bool forward,
                        void (*act)(struct tdm_lowering *, uint32_t))
{
    const struct tdm_layout *layout = l->layout;
    uint32_t layers = l->model->layers;
    bool inputs = any_far(l, layout->input, l->schedule->group_count);
    bool held_inputs = any_far(l, layout->held_input, layers);
    /* in the forward, layer-major order reads inputs from the stream and stashes them from there */
    bool through_rings = inputs && !tdm_low_layer_major(l);

    if (forward ? through_rings : inputs || held_inputs)
        act(l, layout->fetched_x);
    if (!forward)
        act(l, layout->ahead_x);
    if (forward ? through_rings : held_inputs)
        act(l, layout->stashed_x);
    for (uint32_t row = 0; row < TDM_MAX_RING; row++) {
        act(l, layout->kv_rows[row]);
        if (!forward)
            act(l, layout->dkv_rows[row]);
    }
    for (int store = 0; store < TDM_STORES; store++) {
        bool kept = any_far(l, layout->kept[store], layers);
        bool held = any_far(l, layout->held[store], layers);
        if (!forward && (kept || held))
            act(l, layout->fetched[store]);
        if (forward ? kept : held)
            act(l, layout->stashed[store]);
    }
}

static void phase_buffers(struct tdm_lowering *l, const struct tdm_body *body, bool begin)
{
    void (*act)(struct tdm_lowering *, uint32_t) = begin ? tdm_low_alloc : tdm_low_release;
    bool forward = body->phase == TDM_FORWARD;
    uint32_t embedding = tdm_model_embedding_unit(l->model);
    tdm_low_host_update_phase(l, body, begin);
    if (body->phase == TDM_OPTIMIZER_PHASE) {
        tdm_low_stream_phase(l, body, begin);
        return;
    }
    phase_rings(l, forward, act);
    tdm_low_stream_phase(l, body, begin);
    l->next_fetched_x = l->next_stashed_x = 0;
    for (int store = 0; store < TDM_STORES; store++)
        l->next_fetched[store] = l->next_stashed[store] = 0;

    bool evaluates = l->schedule->pass == TDM_EVALUATE; /* it has only this phase */
    if (evaluates || (begin && forward == tdm_low_layer_major(l)))
        act(l, l->layout->stream);
    if (begin || forward)
        return;
    end_tied_gradient(l, body);
    end_gradient(l, body, embedding);
    if (tdm_gradients_stay(l->schedule) && tdm_gradient_is_transient(l->program, embedding))
        tdm_low_release(l, l->layout->embedding_gradient);
}

static void head_gradients(struct tdm_lowering *l, const struct tdm_body *body, bool begin)
{
    uint32_t head = tdm_model_head_unit(l->model);
    bool passes = tdm_gradient_is_transient(l->program, head);
    use_head(l, body, begin);
    if (begin) {
        tdm_low_alloc_gradient(l, l->layout->head_gradient);
        /* lives until the embedding's gradient is complete too */
        tdm_low_alloc_gradient(l, l->layout->tied_gradient);
        return;
    }
    end_gradient(l, body, head);
    if (passes)
        tdm_low_release(l, l->layout->head_gradient);
    if (l->schedule->pass == TDM_TRAIN && tdm_low_layer_major(l) &&
        !tdm_updates_at_end(l->schedule))
        tdm_low_open_states(l, body);
}

/* ---- the queue ---- */

/* A round in which the rank has no chunk. */
static void run_absent(struct tdm_lowering *l, const struct tdm_body *body)
{
    tdm_low_visit(l, body, body->layer);
    if (body->kind == TDM_BODY_KV || body->kind == TDM_BODY_FORWARD)
        tdm_low_exchange_kv(l, body);
    tdm_low_attention_of_others(l, body);
    if (body->kind == TDM_BODY_BACKWARD_KV && tdm_ranks_divide_heads(l->program))
        tdm_low_heads_dkv(l, body);
    if (body->kind != TDM_BODY_BACKWARD)
        return;
    if (tdm_ranks_divide_heads(l->program))
        tdm_low_heads_attention_grad(l, body, NULL);
    else if (tdm_ranks_ring(l->program))
        tdm_low_ring_attention_grad(l, body, NULL);
    tdm_low_reduce(l, body);
}

static void run_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    const struct tdm_body *body = &pending->body;
    if (body->absent) {
        run_absent(l, body);
        return;
    }
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
        head_gradients(l, body, body->kind == TDM_BODY_HEAD_BEGIN);
        break;
    case TDM_BODY_FORWARD:
        tdm_low_visit(l, body, body->layer);
        tdm_low_stream_body(l, body);
        tdm_low_forward_body(l, pending);
        break;
    case TDM_BODY_KV:
        tdm_low_visit(l, body, body->layer);
        tdm_low_kv_body(l, pending);
        break;
    case TDM_BODY_HEAD:
        tdm_low_head_body(l, body);
        break;
    case TDM_BODY_LOSS:
        tdm_low_loss_body(l, body);
        break;
    case TDM_BODY_BACKWARD:
        tdm_low_visit(l, body, body->layer);
        tdm_low_stream_body(l, body);
        tdm_low_backward_body(l, pending);
        break;
    case TDM_BODY_BACKWARD_KV:
        tdm_low_visit(l, body, body->layer);
        tdm_low_backward_kv_body(l, pending);
        break;
    case TDM_BODY_EMBEDDING:
        tdm_low_embedding_body(l, body);
        break;
    case TDM_BODY_GRADIENT_SUM:
        tdm_low_reduce_gradient(l, body);
        break;
    case TDM_BODY_GRADIENT_NORM:
        tdm_low_gradient_norm_body(l, body);
        break;
    case TDM_BODY_OPTIMIZER:
        tdm_low_optimizer_body(l, body);
        break;
    case TDM_BODY_GRADIENT_END:
        end_gradient(l, body, body->layer);
        release_sum(l, body->layer);
        break;
    }
}

static void fetch_body(struct tdm_lowering *l, struct tdm_pending *pending)
{
    const struct tdm_body *body = &pending->body;
    uint64_t made = 0, read = 0;
    if (tdm_body_is_of_layer(body->kind) && !body->absent)
        read = tdm_low_reads_of_body(l, body, &made);
    tdm_low_fetch(l, pending, read, made);
    pending->waits = false;
}

static void leave_queue(struct tdm_lowering *l)
{
    struct tdm_pending pending = l->queue[l->queue_first];
    l->queue_first = (l->queue_first + 1) % TDM_MOST_QUEUED;
    l->queue_count--;
    l->queue_chunks -= pending.runs_ahead;
    if (l->queue_count > 0 && l->queue[l->queue_first].waits)
        fetch_body(l, &l->queue[l->queue_first]);
    run_body(l, &pending);
}

/* Would a body fetch a value that a body in the queue has yet to make? The backward of a layer
 * begins with the last chunks, which the layer below has just run forward again. */
static bool overtakes(const struct tdm_lowering *l, const struct tdm_body *body)
{
    if (body->kind != TDM_BODY_KV && body->kind != TDM_BODY_BACKWARD)
        return false;
    for (uint32_t i = 0; i < l->queue_count; i++) {
        const struct tdm_body *earlier = &l->queue[(l->queue_first + i) % TDM_MOST_QUEUED].body;
        if (earlier->kind == TDM_BODY_FORWARD && earlier->layer + 1 == body->layer &&
            earlier->chunk == body->chunk)
            return tdm_low_is_far(l, tdm_low_stored_x(l, body).buffer);
    }
    return false;
}

/* Does a pending body fetch for its chunk? */
static bool fetches(const struct tdm_pending *pending)
{
    bool any = pending->fetched_x.buffer != TDM_NONE;
    for (int store = 0; store < TDM_STORES; store++)
        any = any || pending->fetched[store].buffer != TDM_NONE;
    return any;
}

static enum tdm_status take_body(void *self, const struct tdm_body *body, struct tdm_error *err)
{
    struct tdm_lowering *l = self;
    (void)err; /* the sink fills it: it is l->err */
    /* the queue is empty when a phase begins or ends: its rings must be allocated before a fetch */
    bool phase = body->kind == TDM_BODY_PHASE_BEGIN || body->kind == TDM_BODY_PHASE_END;
    while (l->queue_count > 0 && (phase || l->queue_chunks > l->depth ||
                                  l->queue_count == TDM_MOST_QUEUED || overtakes(l, body)))
        leave_queue(l);
    struct tdm_pending pending = {.body = *body};
    if (phase) {
        run_body(l, &pending);
        return l->status;
    }
    /* in one slot of its own, which the body before it leaves free */
    const bool ahead = tdm_low_makes_ahead(l, body);
    pending.waits = ahead && l->queue_count > 0;
    if (!pending.waits)
        fetch_body(l, &pending);
    pending.runs_ahead = !ahead && tdm_body_runs_ahead(body->kind, body->chunk, fetches(&pending));
    l->queue[(l->queue_first + l->queue_count) % TDM_MOST_QUEUED] = pending;
    l->queue_count++;
    l->queue_chunks += pending.runs_ahead;
    return l->status;
}

static enum tdm_status lower(const struct tdm_program *program, bool lives_only, tdm_sink sink,
                             void *self, struct tdm_error *err)
{
    struct tdm_lowering l = {.program = program,
                             .schedule = program->schedule,
                             .model = program->schedule->model,
                             .layout = program->layout,
                             .layers_alike = tdm_model_layers_alike(program->schedule->model),
                             .lives_only = lives_only,
                             .whole_row = tdm_kv_row_is_whole(program),
                             .rank_chunks = tdm_rank_chunks(program, 0, program->chunk_count),
                             .sink = sink,
                             .self = self,
                             .err = err,
                             .status = TDM_OK,
                             .ring = {.current = TDM_NONE},
                             .depth = tdm_prefetch_depth(program)};
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].resident)
            tdm_low_alloc(&l, i);
    tdm_low_alloc(&l, program->scratch);
    if (l.status == TDM_OK)
        l.status = tdm_nest_visit(program, take_body, &l, err);
    tdm_low_release(&l, program->scratch);
    for (uint32_t i = program->buffer_count; i-- > 0;)
        if (program->buffers[i].resident)
            tdm_low_release(&l, i);
    return l.status;
}

enum tdm_status tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                          struct tdm_error *err)
{
    return lower(program, false, sink, self, err);
}

enum tdm_status tdm_lower_lives(const struct tdm_program *program, tdm_sink sink, void *self,
                                struct tdm_error *err)
{
    return lower(program, true, sink, self, err);
}
