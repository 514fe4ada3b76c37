/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies in the estimate by lanes: what a chunk of a layer fetches, computes and sends. */
#include "planner/estimate_lanes_parts.h"

#include <math.h>

#define LAST_PRODUCT (1.0 / 3) /* share of what follows the attention */
#define SURE 0.999             /* what is known of the seconds that computing will take at least */
#define GRADIENT_BEGINS 0.2    /* share before the first gradient of weights, */
#define GRADIENT_GOES_ON (1.0 / 3) /* and before the second: then the first may be sent */

/* ---- costs ---- */

static const struct layer_cost *cost_of(const struct lane_clocks *c, const struct lane_body *body)
{
    return c->m->times[body->layer].cost + body->chunk;
}

static double attention(const struct lane_clocks *c, const struct lane_body *body)
{
    return c->m->times[body->layer].attention[body->chunk];
}

static double attention_grad(const struct lane_clocks *c, const struct lane_body *body)
{
    return c->m->times[body->layer].attention_grad * attention(c, body);
}

static const struct lane_layer *layer_of(const struct lane_clocks *c, const struct lane_body *body)
{
    return &c->m->of_layers[body->layer];
}

static const struct lane_chunk *chunk_of(const struct lane_clocks *c, const struct lane_body *body)
{
    return &c->m->of_chunks[body->chunk];
}

static const struct lane_stored *stored_of(const struct lane_clocks *c,
                                           const struct lane_body *body)
{
    return &c->m->stored[(size_t)body->layer * c->n + body->chunk];
}

/* Its chunk's place in the step. */
static uint32_t place_of(const struct lane_clocks *c, const struct lane_body *body)
{
    return c->e->chunk_list[body->chunk].place;
}

/* ---- fetches ---- */

/* The ring that inputs enter. */
static struct lane_ring *inputs_of(struct lane_clocks *c, const struct lane_body *body)
{
    return body->ahead ? &c->ahead_x : &c->fetched_x;
}

/* Emits the fetches of a body. */
static void fetch_body(struct lane_clocks *c, struct lane_body *body)
{
    const size_t at = (size_t)body->layer * c->n + body->chunk;
    const struct lane_stored *stored = &c->m->stored[at];
    body->fetches = 0;
    body->fetched = 0;
    const struct lane_layer *layer = layer_of(c, body);
    if (layer->far_input[body->reader] && place_of(c, body) < layer->near_input) {
        body->fetches |= BIT_OF_INPUT;
        body->fetched = copy_in(c, later(*take_slot(inputs_of(c, body)), c->m->x_sent[at]),
                                chunk_of(c, body)->x.in);
    }
    if (stored->far == 0 || body->reader != INPUT_OF_LATER)
        return;
    unsigned read = stored->far;
    if (body->kind == TDM_BODY_FORWARD)
        read &= stored->kept & c->m->read_again;
    for (int s = 0; read >> s != 0; s++) {
        if (!HAS(read, s))
            continue;
        body->fetches |= (uint8_t)(1u << s);
        body->fetched = copy_in(c, later(*take_slot(&c->fetched[s]), c->m->stored_sent[at]),
                                chunk_of(c, body)->store[s].in);
    }
}

static void release_fetches(struct lane_clocks *c, const struct lane_body *body)
{
    if (body->fetches == 0)
        return;
    if (body->fetches & BIT_OF_INPUT)
        release_slot(inputs_of(c, body), c->compute);
    const unsigned stores = body->fetches & ~BIT_OF_INPUT;
    for (int s = 0; stores >> s != 0; s++)
        if (HAS(stores, s))
            release_slot(&c->fetched[s], c->compute);
}

/* ---- chunk-major: rows of K and V on the host, and of their gradients ---- */

static double *row_of(struct lane_clocks *c, uint32_t layer)
{
    return &c->row_free[c->m->far_rows[layer] % c->schedule->rings.kv];
}

/* Chunk-major: fetches the K and V that a body sees, if they are on the host. Returns the end. */
static double fetch_row(struct lane_clocks *c, const struct lane_body *body, bool asked)
{
    if (c->by_layer || !layer_of(c, body)->far_kv || !asked)
        return 0;
    double all = (double)c->n * (c->n + 1) / 2;
    double chunks = body->chunk + (body->pass == TDM_PASS_FIRST ? 0 : 1);
    chunks *= (double)c->e->seen_chunks[c->e->kind_of[body->layer]] / all;
    double ready = later(*row_of(c, body->layer), c->m->kv_sent[body->layer]);
    return chunks > 0 ? copy_to_device(c, ready, chunks * (double)c->e->kv) : 0;
}

static void free_row(struct lane_clocks *c, uint32_t layer, double at)
{
    if (!c->by_layer && c->m->of_layers[layer].far_kv)
        *row_of(c, layer) = at;
}

/* Chunk-major: the sums of K and V gradients, if they are on the host. */
static bool sums_far(const struct lane_clocks *c, uint32_t layer)
{
    return !c->by_layer && tdm_is_far(c->m->spans[layer].group->kv_gradients_place);
}

static double sums_seen(const struct lane_clocks *c, const struct lane_body *body)
{
    double all = (double)c->n * (c->n + 1) / 2;
    return (double)c->e->seen_chunks[c->e->kind_of[body->layer]] / all * (double)c->e->dkv;
}

static double fetch_sums(struct lane_clocks *c, const struct lane_body *body)
{
    if (!sums_far(c, body->layer) || body->chunk + 1 == c->n)
        return 0;
    return copy_to_device(c, c->sums_sent, (body->chunk + 1) * sums_seen(c, body));
}

static void send_sums(struct lane_clocks *c, const struct lane_body *body)
{
    if (sums_far(c, body->layer) && body->chunk > 0)
        c->sums_sent = copy_to_host(c, c->compute, body->chunk * sums_seen(c, body));
}

/* ---- what a body sends ---- */

/* Bits of the stores on the host that a forward makes. */
static unsigned stashes(const struct lane_clocks *c, const struct lane_body *body)
{
    const struct lane_stored *stored = stored_of(c, body);
    return stored->far & (body->pass == TDM_PASS_FIRST ? stored->kept : stored->held);
}

static void send_kv(struct lane_clocks *c, const struct lane_body *body, double made)
{
    if (body->pass == TDM_PASS_FIRST && layer_of(c, body)->far_kv)
        c->m->kv_sent[body->layer] = c->row_sent = copy_out(c, made, chunk_of(c, body)->kv.out);
}

/* Layer-major: the forward's output is in a row of the stream, and not in a slot of the ring. */
static bool makes_row(const struct lane_clocks *c, const struct lane_body *body)
{
    return body->pass == TDM_PASS_FIRST && layer_of(c, body)->into_row;
}

static void send_output(struct lane_clocks *c, const struct lane_body *body)
{
    const size_t at = (size_t)(body->layer + 1) * c->n + body->chunk;
    double sent = copy_out(c, c->compute, chunk_of(c, body)->x.out);
    c->m->x_sent[at] = sent;
    if (makes_row(c, body))
        c->m->stream_free[body->chunk] = sent;
    else
        *take_slot(&c->stashed_x) = sent;
}

/* ---- bodies ---- */

/* Layer-major: fetches K and V of a chunk into the row that the layer above has used. */
static void fetch_kv(struct lane_clocks *c, const struct lane_body *body)
{
    c->kv_ready = copy_in(c, c->kv_free, chunk_of(c, body)->kv.in);
}

/* When the slot is free into which a forward makes a store that goes to the host; 0: none does. */
static double slot_free(const struct lane_clocks *c, unsigned made, int store)
{
    return HAS(made, store) ? c->stashed[store].free[c->stashed[store].next] : 0;
}

static void run_forward(struct lane_clocks *c, const struct lane_body *body, double ready)
{
    const struct lane_layer *layer = layer_of(c, body);
    const struct layer_cost *cost = cost_of(c, body);
    const struct lane_stored *stored = stored_of(c, body);
    const bool first = body->pass == TDM_PASS_FIRST,
               sends =
                   layer->sends[first ? 0 : 1] && (first || place_of(c, body) < layer->near_output);
    const unsigned made = stashes(c, body);
    double rest = cost->rest, seen = attention(c, body), before = cost->embed;
    if (!first && HAS(stored->kept, TDM_STORE_GATE_UP))
        rest -= cost->mlp_norm + cost->gate_up;
    if (!first && HAS(stored->kept, TDM_STORE_ATTENTION)) {
        seen = 0;
        before += layer->holds_kv ? cost->norm + cost->kv : 0;
    } else {
        before += cost->norm + cost->q + (first || !layer->keeps_kv ? cost->kv : 0);
    }
    if (made != 0) {
        ready = later(ready, slot_free(c, made, TDM_STORE_Q));
        ready = later(ready, slot_free(c, made, TDM_STORE_NORMED));
    }
    c->compute = later(later(c->compute, ready) + before, fetch_row(c, body, seen > 0));
    /* all layers whose K and V go to the host make them in one row */
    if (c->by_layer && first && layer->far_kv && body->chunk == 0)
        c->compute = later(c->compute, c->row_sent);
    if (c->by_layer && !first && seen > 0 && layer->far_kv) {
        fetch_kv(c, body);
        c->compute = later(c->compute, c->kv_ready);
    }
    send_kv(c, body, c->compute);
    c->compute = later(c->compute, slot_free(c, made, TDM_STORE_ATTENTION)) + seen;
    free_row(c, body->layer, c->compute);
    double attended = c->compute;
    c->compute += rest;
    /* run again, it soon makes something in bytes from which a gradient is sent */
    if (c->by_layer && !first)
        c->compute = later(c->compute, c->gradient_free);
    if (HAS(made, TDM_STORE_GATE_UP))
        c->compute = later(c->compute, slot_free(c, made, TDM_STORE_GATE_UP) + cost->gate_up +
                                           rest * LAST_PRODUCT);
    if (makes_row(c, body))
        c->compute = later(c->compute, c->m->stream_free[body->chunk]);
    else if (sends) /* the last product writes into the slot */
        c->compute = later(c->compute, c->stashed_x.free[c->stashed_x.next] + rest * LAST_PRODUCT);
    for (int s = 0; made >> s != 0; s++)
        if (HAS(made, s)) {
            double from = s == TDM_STORE_GATE_UP ? c->compute - rest * LAST_PRODUCT : attended;
            double sent = copy_out(c, from, chunk_of(c, body)->store[s].out);
            *take_slot(&c->stashed[s]) = sent;
            c->m->stored_sent[(size_t)body->layer * c->n + body->chunk] = sent;
        }
    if (sends)
        send_output(c, body);
}

/* K and V of a chunk: made, or in a sweep fetched. */
static void run_kv(struct lane_clocks *c, const struct lane_body *body, double ready)
{
    const struct lane_layer *layer = layer_of(c, body);
    const struct layer_cost *cost = cost_of(c, body);
    if (body->pass != TDM_PASS_FIRST && layer->far_kv)
        fetch_kv(c, body);
    if (body->pass != TDM_PASS_FIRST && (layer->keeps_kv || layer->holds_kv))
        return;
    c->compute = later(c->compute, ready) + cost->embed + cost->norm + cost->kv;
    send_kv(c, body, c->compute);
}

/* Does a layer's backward follow that of the layer above with no sweep forward between? Then parts
 * of its gradient wait for the copies of the same parts alone. */
static bool goes_straight_on(const struct lane_clocks *c, uint32_t layer)
{
    const struct span *spans = c->m->spans;
    return layer + 1 < c->layers &&
           (spans[layer + 1].first <= layer || spans[layer].first == layer);
}

static void run_backward(struct lane_clocks *c, const struct lane_body *body, double ready)
{
    const struct lane_layer *layer = layer_of(c, body);
    const struct tdm_group *group = c->m->spans[body->layer].group;
    const struct layer_cost *cost = cost_of(c, body);
    const struct lane_stored *stored = stored_of(c, body);
    const bool kept = HAS(stored->kept, TDM_STORE_ATTENTION);
    const bool held = !kept && HAS(stored->held, TDM_STORE_ATTENTION);
    const double least = cost->backward[kept ? group->kept : held ? group->held : TDM_SET_INPUT];
    const double grad = attention_grad(c, body), parts = cost->backward[TDM_SEARCHED_SET];
    /* q, K and V are made of the normed input, and so their gradients are those of two products */
    const double after = 2 * (cost->norm + cost->q + cost->kv);
    double seconds = least + grad, before = least - after;
    if (!kept && !held) {
        seconds += attention(c, body);
        before = cost->norm + cost->q;
    }
    if (kept && HAS(stored->held & ~stored->kept, TDM_STORE_GATE_UP))
        seconds -= cost->gate_up;
    c->compute = later(c->compute, ready);
    /* chunk-major: the gradient of the group above leaves the same bytes */
    if (!c->by_layer && body->chunk + 1 == c->n)
        c->compute = later(c->compute, c->gradient_free - GRADIENT_BEGINS * least);
    c->compute = later(c->compute + before, fetch_row(c, body, true));
    c->compute = later(c->compute, fetch_sums(c, body));
    if (c->by_layer && layer->far_kv)
        c->compute = later(c->compute, c->kv_ready);
    c->compute += seconds - before;
    /* layer-major: it adds to the bytes from which the gradient of the layer above is sent */
    const double after_first = (1 - GRADIENT_GOES_ON) * parts + grad;
    if (c->by_layer && body->chunk + 1 == c->n && goes_straight_on(c, body->layer))
        c->compute = later(later(c->compute, c->gradient_free), c->mlp_gradient_free + after_first);
    else if (c->by_layer && body->chunk + 1 == c->n)
        c->compute = later(c->compute, c->gradient_free + (1 - GRADIENT_BEGINS) * parts + grad);
    c->m->gradient_made[body->layer] = c->compute;
    c->m->gradient_begun[body->layer] = c->compute - after_first;
    if (body->chunk == 0)
        c->kv_free = c->compute - after;
    free_row(c, body->layer, c->compute - after);
    send_sums(c, body);
}

/* Layer-major: the gradient of the head takes the bytes of a ring from which the forward still
 * sends, unless the ring is larger. Packing places large buffers first. */
static void wait_for_sends(struct lane_clocks *c)
{
    const uint64_t gradient = c->e->gradient_bytes[tdm_lanes_end_unit(c, 1)];
    for (int s = 0; s < TDM_STORES; s++)
        for (uint32_t slot = 0; slot < c->stashed[s].slots; slot++)
            if (c->stashed[s].slots * c->e->store[s] < gradient)
                c->compute = later(c->compute, c->stashed[s].free[slot]);
}

static void run_head(struct lane_clocks *c, const struct lane_body *body)
{
    double ready = c->unit_ready[c->e->base->model->tied ? 0 : 1];
    const double *before = c->e->tokens_before + c->e->chunk_list[body->chunk].place;
    double share = (before[1] - before[0]) / c->e->tokens_before[c->n];
    c->compute = later(c->compute, ready) + c->e->head_seconds * share;
}

static void use_embedding(struct lane_clocks *c, const struct lane_body *body, bool begin)
{
    (begin ? tdm_lanes_begin_use : tdm_lanes_end_use)(c, 0);
    if (!begin && body->phase == TDM_FORWARD && c->e->early_host_seconds > 0)
        c->host = later(c->host, c->unit_ready[0]) + c->e->early_host_seconds;
}

static void run_body(struct lane_clocks *c, const struct lane_body *body)
{
    double ready;
    switch ((enum tdm_body_kind)body->kind) {
    case TDM_BODY_PHASE_BEGIN:
        if (body->phase == TDM_BACKWARD && !c->by_layer)
            tdm_lanes_open_states(c);
        return;
    case TDM_BODY_GROUP_BEGIN:
    case TDM_BODY_GROUP_END:
        if (!c->by_layer && body->group == 0)
            use_embedding(c, body, body->kind == TDM_BODY_GROUP_BEGIN);
        return;
    case TDM_BODY_LAYER_BEGIN:
    case TDM_BODY_LAYER_END:
        if (body->layer == 0)
            use_embedding(c, body, body->kind == TDM_BODY_LAYER_BEGIN);
        return;
    case TDM_BODY_HEAD_BEGIN:
        if (c->by_layer)
            wait_for_sends(c);
        tdm_lanes_use_head(c, true);
        return;
    case TDM_BODY_HEAD_END:
        tdm_lanes_use_head(c, false);
        if (c->by_layer)
            tdm_lanes_open_states(c);
        return;
    case TDM_BODY_HEAD:
        run_head(c, body);
        return;
    case TDM_BODY_OPTIMIZER:
        tdm_lanes_update(c, body->layer);
        return;
    case TDM_BODY_FORWARD:
    case TDM_BODY_KV:
    case TDM_BODY_BACKWARD:
        visit_layer(c, body->layer);
        if (body->kind != TDM_BODY_KV)
            stream_states(c, body->layer);
        ready = later(weights_ready(c), body->fetched);
        if (body->layer == 0)
            ready = later(ready, c->unit_ready[0]);
        /* what the top layer fetches takes bytes from which the gradient of the head is sent */
        if (c->by_layer && body->layer + 1 == c->layers)
            ready = later(ready, c->gradient_free);
        if (body->kind == TDM_BODY_FORWARD)
            run_forward(c, body, ready);
        else if (body->kind == TDM_BODY_KV)
            run_kv(c, body, ready);
        else
            run_backward(c, body, ready);
        use_weights(c, c->compute);
        release_fetches(c, body);
        return;
    default: /* takes a place in the queue */
        return;
    }
}

/* Will the step take enough seconds to be of no interest, as seen from the beginning of a group? */
static bool takes_enough(struct lane_clocks *c, const struct lane_body *body)
{
    if (body->kind != TDM_BODY_GROUP_BEGIN || c->enough >= HUGE_VAL)
        return false;
    const struct lane_rest *rest = &c->m->rest[body->group];
    double seconds =
        c->compute + SURE * (body->pass == TDM_PASS_FIRST ? rest->forward : rest->backward);
    if (seconds < c->enough)
        return false;
    c->compute = seconds;
    return true;
}

static bool runs_ahead(const struct lane_body *body)
{
    return !body->ahead &&
           tdm_body_runs_ahead((enum tdm_body_kind)body->kind, body->chunk, body->fetches != 0);
}

/* The first body of the queue leaves it: then the next one, of `queued`, fetches what it did not
 * fetch ahead. */
static void leave_queue(struct lane_clocks *c, uint32_t run, uint32_t queued)
{
    struct lane_body *bodies = c->m->bodies;
    if (run + 1 < queued && bodies[run + 1].ahead)
        fetch_body(c, &bodies[run + 1]);
    run_body(c, &bodies[run]);
}

bool tdm_lanes_run(struct lane_clocks *c)
{
    struct lane_body *bodies = c->m->bodies;
    const uint32_t count = c->m->body_count;
    uint32_t run = 0, chunks = 0; /* bodies of chunks in the queue */
    for (uint32_t i = 0; i < count; i++) {
        const enum tdm_body_kind kind = (enum tdm_body_kind)bodies[i].kind;
        const bool phase = kind == TDM_BODY_PHASE_BEGIN || kind == TDM_BODY_PHASE_END;
        while (run < i && (phase || chunks > c->depth || i - run == TDM_MOST_QUEUED)) {
            chunks -= runs_ahead(&bodies[run]);
            leave_queue(c, run++, i);
        }
        if (takes_enough(c, &bodies[i]))
            return false;
        if (phase)
            run_body(c, &bodies[run++]);
        else if (tdm_body_is_of_layer(kind) && (!bodies[i].ahead || run == i))
            fetch_body(c, &bodies[i]);
        chunks += !phase && runs_ahead(&bodies[i]);
    }
    while (run < count)
        leave_queue(c, run++, count);
    return true;
}
