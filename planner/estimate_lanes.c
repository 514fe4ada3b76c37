/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seconds of a step with the waits of its lanes, body by body. No bound, but within a percent or
 * two of the simulator, in a hundredth of its time.
 *
 * The bodies of the nest run in program order, as lowering emits them. A body computes for as long
 * as its costs say. Its fetches are emitted ahead of it, when it enters lowering's queue. Copies of
 * a direction follow each other, and are slower while the other direction is busy. Computing waits
 * for what it reads, a fetch waits for its slot and its source, and a slot that stages state is
 * free when its content was sent home. Left out: that operations of a body wait one by one, and
 * that buffers share bytes of the arena. For the latter, buffers and rings of state wait until
 * everything before them was computed.
 */
#include "planner/estimate_lanes.h"

#include "planner/estimate_span.h"
#include "schedule/optimizer.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 32u    /* more than any ring of layers has */
#define CONTENTS 3u  /* of the optimizer: master, two moments */
#define OVERHEAD 16u /* bodies besides those of layers and chunks */

/* Shares of a layer's backward: before the first and after the last reader of K and V. */
#define BEFORE_ATTENTION 0.55
#define AFTER_ATTENTION 0.2
#define GRADIENT_BEGINS 0.1 /* share before the first gradient of weights */

enum kind {
    KIND_BACKWARD_BEGIN, /* of the phase; the queue is empty */
    KIND_LAYER_BEGIN,
    KIND_LAYER_END,
    KIND_HEAD_BEGIN,
    KIND_HEAD_END,
    KIND_MARK, /* only takes a place in the queue */
    KIND_HEAD,
    KIND_UPDATE,
    KIND_FORWARD, /* from here on: a layer and a chunk */
    KIND_KV,
    KIND_BACKWARD
};

enum pass { PASS_FIRST, PASS_RERUN, PASS_BACKWARD };

struct body {
    uint8_t kind, pass;
    uint8_t fetches; /* bits of the stores that it fetched; bit TDM_STORES: the input */
    uint32_t layer, chunk;
    double fetched; /* end of its chunk fetches */
};
#define BIT_OF_INPUT (1u << TDM_STORES)

/* A chunk of a layer: bits of the stores that the forward keeps, that a rerun holds, and those of
 * both that are on the host. */
struct stored {
    uint8_t kept, held, far;
};

/* Seconds of a layer: [chunks + 1], sums of the chunks before; and how many times longer than the
 * forward of a chunk's attention its gradient takes. */
struct times {
    const struct layer_cost *cost_before;
    const double *attention_before;
    double attention_grad;
};

/* A ring of chunk slots, in the order of their use. */
struct ring {
    double *free; /* [slots]: when each slot is free */
    uint32_t next, released, slots;
};
#define RINGS (2 * TDM_STORES + 2)

struct tdm_lanes {
    uint32_t most_bodies; /* 0: the step has too many bodies for this estimate */
    struct body *bodies;
    uint32_t *visits, *updates;
    struct stored *stored;        /* [layers * chunks] */
    double *x_sent, *stored_sent; /* [layers * chunks]: when inputs and stores are on the host */
    double *stream_free;          /* [chunks]: until then a copy reads the row of the stream */
    double *slots;                /* of rings */
    double *kv_sent;              /* [layers]: when the last chunk's K and V are on the host */
    uint32_t *far_rows;           /* [layers]: number of lower layers with K and V on the host */
    bool *far[TDM_STATE_MOMENTS + 1]; /* [units]: is a state at home on the host, and not empty? */
    struct span *spans;               /* [layers]: of the layer's group */
    struct times *times;              /* [layers] */
};

/* The clocks of a step. */
struct clocks {
    const struct tdm_estimator *e;
    const struct tdm_schedule *schedule;
    struct tdm_lanes *m; /* memory */
    uint32_t n, layers, depth, body_count;
    bool by_layer, trains;
    double copy_seconds, to_device[2], to_host[2]; /* seconds per byte: alone, and both ways */
    double compute, h2d, d2h, host;
    struct ring fetched_x, fetched[TDM_STORES], stashed_x, stashed[TDM_STORES];
    double gradient_bytes; /* of all units */

    /* the ring of weights, as in lower_stream.c */
    uint32_t visit_count, next_visit, visit, current;
    uint32_t ring_layer[SLOTS], ring_needed[SLOTS];
    double ring_free[SLOTS], ring_ready[SLOTS];
    /* rings of masters and moments, as there */
    uint32_t update_count, update, next_update, next_content, passed, fetched_contents;
    uint32_t state_slots[CONTENTS];
    double state_free[CONTENTS][SLOTS], state_ready[CONTENTS][SLOTS];
    bool states_open;
    double buffers_free;
    /* weights of embedding [0] and head [1], while they have users */
    uint32_t users[2];
    double unit_ready[2];
    /* updates on the host */
    double gradient_free, host_free[SLOTS];
    uint32_t host_gradients;
    double sums_sent;
    double kv_ready, kv_free; /* layer-major: K and V from the host, and the row that they enter */
    double row_free[SLOTS];   /* chunk-major: rows for K and V that are on the host */
};

/* ---- memory ---- */

#define MOST_BODIES 6000u

void tdm_lanes_free(struct tdm_lanes *m)
{
    if (m == NULL)
        return;
    free(m->bodies);
    free(m->visits);
    free(m->updates);
    free(m->stored);
    free(m->x_sent);
    free(m->stored_sent);
    free(m->stream_free);
    free(m->slots);
    free(m->kv_sent);
    free(m->far_rows);
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        free(m->far[state]);
    free(m->spans);
    free(m->times);
    free(m);
}

struct tdm_lanes *tdm_lanes_new(uint32_t layers, uint32_t units, uint32_t chunks)
{
    struct tdm_lanes *m = calloc(1, sizeof(*m));
    /* of a layer: three sweeps and their markers */
    const uint64_t bodies = (uint64_t)layers * (4 * (uint64_t)chunks + 10) + chunks + OVERHEAD;
    if (m == NULL || (uint64_t)layers * chunks * 3 > MOST_BODIES)
        return m;
    const size_t all = (size_t)layers * chunks;
    bool ok = (m->bodies = calloc(bodies, sizeof(*m->bodies))) != NULL;
    ok &= (m->visits = calloc(bodies, sizeof(*m->visits))) != NULL;
    ok &= (m->updates = calloc((size_t)layers + 1, sizeof(*m->updates))) != NULL;
    ok &= (m->stored = calloc(all, sizeof(*m->stored))) != NULL;
    ok &= (m->x_sent = calloc(all + chunks, sizeof(double))) != NULL;
    ok &= (m->stored_sent = calloc(all, sizeof(double))) != NULL;
    ok &= (m->stream_free = calloc(chunks, sizeof(double))) != NULL;
    ok &= (m->slots = calloc((size_t)RINGS * (chunks + 1), sizeof(double))) != NULL;
    ok &= (m->kv_sent = calloc(layers, sizeof(double))) != NULL;
    ok &= (m->far_rows = calloc(layers, sizeof(*m->far_rows))) != NULL;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        ok &= (m->far[state] = calloc((size_t)units + 1, sizeof(bool))) != NULL;
    ok &= (m->spans = calloc(layers, sizeof(*m->spans))) != NULL;
    ok &= (m->times = calloc(layers, sizeof(*m->times))) != NULL;
    if (!ok) {
        tdm_lanes_free(m);
        return NULL;
    }
    m->most_bodies = (uint32_t)bodies;
    return m;
}

/* ---- copies ---- */

static double copy_to_device(struct clocks *c, double ready, double bytes)
{
    double start = later(c->h2d, ready);
    return c->h2d = start + c->copy_seconds + bytes * c->to_device[c->d2h > start];
}

static double copy_to_host(struct clocks *c, double ready, double bytes)
{
    double start = later(c->d2h, ready);
    return c->d2h = start + c->copy_seconds + bytes * c->to_host[c->h2d > start];
}

/* Bytes of a chunk whose slot has `bytes`. */
static double of_chunk(const struct clocks *c, uint64_t bytes, uint32_t chunk)
{
    return (double)bytes * (c->e->tokens_before[chunk + 1] - c->e->tokens_before[chunk]);
}

static double *take_slot(struct ring *ring)
{
    double *slot = &ring->free[ring->next];
    ring->next = ring->next + 1 == ring->slots ? 0 : ring->next + 1;
    return slot;
}

static void release_slot(struct ring *ring, double at)
{
    ring->free[ring->released] = at;
    ring->released = ring->released + 1 == ring->slots ? 0 : ring->released + 1;
}

/* ---- costs ---- */

static const struct layer_cost *cost_before(const struct clocks *c, const struct body *body)
{
    return &c->m->times[body->layer].cost_before[body->chunk];
}

/* Of a chunk. */
#define COST(field) (cost[1].field - cost[0].field)

static double attention(const struct clocks *c, const struct body *body)
{
    const double *before = &c->m->times[body->layer].attention_before[body->chunk];
    return before[1] - before[0];
}

static double attention_grad(const struct clocks *c, const struct body *body)
{
    return c->m->times[body->layer].attention_grad * attention(c, body);
}

static const struct stored *stored_of(const struct clocks *c, const struct body *body)
{
    return &c->m->stored[(size_t)body->layer * c->n + body->chunk];
}

#define HAS(mask, store) (((mask) >> (store)) & 1u)

static bool holds_kv(const struct clocks *c, const struct span *span, uint32_t layer)
{
    return c->by_layer && layer < span->top && !keeps_kv(span) &&
           tdm_set_has(span->group->held, TDM_STORE_KV);
}

/* ---- weights of layers ---- */

static uint32_t find_slot(const struct clocks *c, uint32_t layer)
{
    const uint32_t slots = c->schedule->rings.weights;
    uint32_t slot = 0;
    while (slot < slots && c->ring_layer[slot] != layer)
        slot++;
    return slot < slots ? slot : SLOTS;
}

static uint32_t free_slot(const struct clocks *c)
{
    uint32_t best = SLOTS;
    for (uint32_t slot = 0; slot < c->schedule->rings.weights; slot++)
        if (c->ring_needed[slot] <= c->visit &&
            (best == SLOTS || c->ring_needed[slot] < c->ring_needed[best]))
            best = slot;
    return best;
}

/* As tdm_low_visit(). */
static void visit_layer(struct clocks *c, uint32_t layer)
{
    const bool *far = c->m->far[TDM_STATE_WEIGHTS];
    if (layer == c->current)
        return;
    c->current = layer;
    while (far[layer] && c->next_visit < c->visit_count) {
        uint32_t due = c->m->visits[c->next_visit], slot = find_slot(c, due);
        if (slot == SLOTS && (slot = free_slot(c)) == SLOTS)
            break;
        if (c->ring_layer[slot] != due) {
            c->ring_ready[slot] =
                copy_to_device(c, c->ring_free[slot],
                               (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_WEIGHTS, due));
            c->ring_layer[slot] = due;
        }
        c->ring_needed[slot] = ++c->next_visit;
    }
    c->visit += far[layer];
}

/* When a layer's weights are on the device. */
static double weights_ready(const struct clocks *c, uint32_t layer)
{
    uint32_t slot = c->m->far[TDM_STATE_WEIGHTS][layer] ? find_slot(c, layer) : SLOTS;
    return slot < SLOTS ? c->ring_ready[slot] : 0;
}

/* Their slot is in use until then. */
static void use_weights(struct clocks *c, uint32_t layer, double until)
{
    uint32_t slot = c->m->far[TDM_STATE_WEIGHTS][layer] ? find_slot(c, layer) : SLOTS;
    if (slot < SLOTS)
        c->ring_free[slot] = later(c->ring_free[slot], until);
}

/* ---- masters and moments ---- */

static bool content_far(const struct clocks *c, uint32_t content, uint32_t unit)
{
    return c->m->far[content == 0 ? TDM_STATE_MASTER : TDM_STATE_MOMENTS][unit];
}

static double content_bytes(const struct clocks *c, uint32_t content, uint32_t unit)
{
    return content == 0 ? (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_MASTER, unit)
                        : (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_MOMENTS, unit) / 2;
}

static bool has_far_state(const struct clocks *c, uint32_t unit)
{
    return content_far(c, 0, unit) || content_far(c, 1, unit);
}

static bool has_slots(const struct clocks *c, uint32_t unit)
{
    for (uint32_t i = 0; i < CONTENTS; i++)
        if (content_far(c, i, unit) && c->next_update >= c->update + c->state_slots[i])
            return false;
    return true;
}

static bool fetch_next_state(struct clocks *c)
{
    while (c->next_update < c->update_count) {
        uint32_t unit = c->m->updates[c->next_update];
        if (c->next_content == 0 && !has_slots(c, unit))
            return false;
        for (; c->next_content < CONTENTS; c->next_content++) {
            uint32_t i = c->next_content;
            if (!content_far(c, i, unit))
                continue;
            uint32_t slot = c->next_update % c->state_slots[i];
            c->state_ready[i][slot] =
                copy_to_device(c, c->state_free[i][slot], content_bytes(c, i, unit));
            c->next_content++;
            return true;
        }
        c->next_content = 0;
        c->next_update++;
    }
    return false;
}

static void open_states(struct clocks *c)
{
    if (!c->trains || tdm_is_far(c->e->base->optimizer.on))
        return;
    for (uint32_t i = 0; i < CONTENTS; i++)
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            c->state_free[i][slot] = later(c->compute, c->buffers_free);
    c->states_open = true;
    while (fetch_next_state(c))
        ;
}

/* As tdm_low_stream_body(): the contents of a slot are fetched one by one. */
static void stream_states(struct clocks *c, uint32_t layer)
{
    uint64_t bodies = c->n;
    if (!c->states_open || c->next_update >= c->update_count)
        return;
    if (!c->by_layer)
        bodies *= c->m->spans[layer].group->layers;
    uint64_t due = (uint64_t)++c->passed * (CONTENTS + 2) / bodies;
    while (c->fetched_contents < due && fetch_next_state(c))
        c->fetched_contents++;
}

/* ---- embedding and head, the units at the ends ---- */

static uint32_t end_unit(const struct clocks *c, int head)
{
    const struct tdm_model *model = c->e->base->model;
    return head ? tdm_model_head_unit(model) : tdm_model_embedding_unit(model);
}

static void begin_use(struct clocks *c, int head)
{
    uint32_t unit = end_unit(c, head);
    if (c->m->far[TDM_STATE_WEIGHTS][unit] && c->users[head]++ == 0)
        c->unit_ready[head] = copy_to_device(
            c, c->compute, (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_WEIGHTS, unit));
}

static void end_use(struct clocks *c, int head)
{
    if (c->m->far[TDM_STATE_WEIGHTS][end_unit(c, head)])
        c->users[head]--;
}

static void use_head(struct clocks *c, bool begin)
{
    for (int head = c->e->base->model->tied ? 0 : 1; head < 2; head++)
        (begin ? begin_use : end_use)(c, head);
}

/* ---- updates ---- */

/* A unit's share of the seconds of all updates. */
static double update_seconds(const struct clocks *c, uint32_t unit, double all)
{
    return c->gradient_bytes > 0 ? all * (double)c->e->gradient_bytes[unit] / c->gradient_bytes : 0;
}

/* The gradient goes to the host, where its lane updates the unit. */
static void update_on_host(struct clocks *c, uint32_t unit)
{
    double unused = 0, *free_at = &unused;
    if (unit < c->layers)
        free_at = &c->host_free[c->host_gradients++ % c->schedule->rings.optimizer];
    double sent = copy_to_host(c, later(c->compute, *free_at), (double)c->e->gradient_bytes[unit]);
    c->host = later(c->host, sent) + update_seconds(c, unit, c->e->host_seconds);
    c->compute += update_seconds(c, unit, c->e->optimizer_seconds);
    *free_at = c->host;
    if (unit < c->layers)
        c->gradient_free = sent;
}

static void send_states(struct clocks *c, uint32_t unit)
{
    if (c->m->far[TDM_STATE_WEIGHTS][unit]) {
        double sent = copy_to_host(c, c->compute,
                                   (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_WEIGHTS, unit));
        if (unit < c->layers)
            use_weights(c, unit, sent);
    }
    for (uint32_t i = 0; i < CONTENTS; i++) {
        if (!content_far(c, i, unit))
            continue;
        double sent = copy_to_host(c, c->compute, content_bytes(c, i, unit));
        if (unit < c->layers)
            c->state_free[i][c->update % c->state_slots[i]] = sent;
    }
}

static void update(struct clocks *c, uint32_t unit)
{
    const int head = unit == end_unit(c, 1);
    double ready = 0;
    if (tdm_updates_on_host(c->e->base, unit)) {
        update_on_host(c, unit);
        return;
    }
    if (unit < c->layers) {
        while (fetch_next_state(c))
            ;
        visit_layer(c, unit);
        ready = weights_ready(c, unit);
        for (uint32_t i = 0; i < CONTENTS; i++)
            if (content_far(c, i, unit))
                ready = later(ready, c->state_ready[i][c->update % c->state_slots[i]]);
    } else {
        begin_use(c, head);
        ready = c->unit_ready[head];
        for (uint32_t i = 0; i < CONTENTS; i++)
            if (content_far(c, i, unit))
                ready = copy_to_device(c, later(c->compute, head ? 0 : c->d2h),
                                       content_bytes(c, i, unit));
    }
    c->compute = later(c->compute, ready) + update_seconds(c, unit, c->e->optimizer_seconds);
    send_states(c, unit);
    if (head && has_far_state(c, unit))
        c->buffers_free = c->d2h;
    if (unit >= c->layers) {
        end_use(c, head);
    } else if (has_far_state(c, unit)) {
        c->update++;
        c->passed = c->fetched_contents = 0;
    }
}

/* ---- bodies of layers ---- */

static bool reads_input(const struct clocks *c, const struct body *body, const struct span *span)
{
    if (body->layer == 0)
        return false;
    if (body->pass == PASS_FIRST)
        return !c->by_layer && body->layer == span->first;
    return body->kind != KIND_KV || (!keeps_kv(span) && !holds_kv(c, span, body->layer));
}

/* Emits the fetches of a body. */
static void fetch_body(struct clocks *c, struct body *body)
{
    const struct span *span = &c->m->spans[body->layer];
    const size_t at = (size_t)body->layer * c->n + body->chunk;
    const struct stored *stored = &c->m->stored[at];
    enum tdm_place input =
        body->layer == span->first ? span->group->input_place : span->group->held_place;
    if (tdm_is_far(input) && reads_input(c, body, span)) {
        body->fetches |= BIT_OF_INPUT;
        body->fetched = copy_to_device(c, later(*take_slot(&c->fetched_x), c->m->x_sent[at]),
                                       of_chunk(c, c->e->x, body->chunk));
    }
    if (stored->far == 0 || body->pass == PASS_FIRST || body->kind == KIND_KV)
        return;
    for (int s = 0; s < TDM_STORES; s++) {
        bool rerun = (int)tdm_store_type((enum tdm_store)s)->needed_without == s;
        if (!HAS(stored->far, s) ||
            (body->kind == KIND_FORWARD && !(rerun && HAS(stored->kept, s))))
            continue;
        body->fetches |= (uint8_t)(1u << s);
        body->fetched = copy_to_device(c, later(*take_slot(&c->fetched[s]), c->m->stored_sent[at]),
                                       of_chunk(c, c->e->store[s], body->chunk));
    }
}

static void release_fetches(struct clocks *c, const struct body *body)
{
    if (body->fetches == 0)
        return;
    if (body->fetches & BIT_OF_INPUT)
        release_slot(&c->fetched_x, c->compute);
    for (int s = 0; s < TDM_STORES; s++)
        if (HAS(body->fetches, s))
            release_slot(&c->fetched[s], c->compute);
}

/* Bits of the stores on the host that a forward makes. */
static unsigned stashes(const struct clocks *c, const struct body *body)
{
    const struct stored *stored = stored_of(c, body);
    return stored->far & (body->pass == PASS_FIRST ? stored->kept : stored->held);
}

static double *row_of(struct clocks *c, uint32_t layer)
{
    return &c->row_free[c->m->far_rows[layer] % c->schedule->rings.kv];
}

/* Chunk-major: fetches the K and V that a body sees, if they are on the host. Returns the end. */
static double fetch_row(struct clocks *c, const struct body *body, bool asked)
{
    const struct span *span = &c->m->spans[body->layer];
    if (c->by_layer || !far_kv(span) || !asked)
        return 0;
    double all = (double)c->n * (c->n + 1) / 2;
    double chunks = body->chunk + (body->pass == PASS_FIRST ? 0 : 1);
    chunks *= (double)c->e->seen_chunks[c->e->kind_of[body->layer]] / all;
    double ready = later(*row_of(c, body->layer), c->m->kv_sent[body->layer]);
    return chunks > 0 ? copy_to_device(c, ready, chunks * (double)c->e->kv) : 0;
}

static void free_row(struct clocks *c, uint32_t layer, double at)
{
    if (!c->by_layer && far_kv(&c->m->spans[layer]))
        *row_of(c, layer) = at;
}

/* Chunk-major: the sums of K and V gradients, if they are on the host. */
static bool sums_far(const struct clocks *c, uint32_t layer)
{
    return !c->by_layer && tdm_is_far(c->m->spans[layer].group->kv_gradients_place);
}

static double sums_seen(const struct clocks *c, const struct body *body)
{
    double all = (double)c->n * (c->n + 1) / 2;
    return (double)c->e->seen_chunks[c->e->kind_of[body->layer]] / all * (double)c->e->dkv;
}

static double fetch_sums(struct clocks *c, const struct body *body)
{
    if (!sums_far(c, body->layer) || body->chunk + 1 == c->n)
        return 0;
    return copy_to_device(c, c->sums_sent, (body->chunk + 1) * sums_seen(c, body));
}

static void send_sums(struct clocks *c, const struct body *body)
{
    if (sums_far(c, body->layer) && body->chunk > 0)
        c->sums_sent = copy_to_host(c, c->compute, body->chunk * sums_seen(c, body));
}

static void send_kv(struct clocks *c, const struct body *body, double made)
{
    if (body->pass == PASS_FIRST && far_kv(&c->m->spans[body->layer]))
        c->m->kv_sent[body->layer] = copy_to_host(c, made, of_chunk(c, c->e->kv, body->chunk));
}

static void send_input(struct clocks *c, const struct body *body)
{
    const struct span *span = &c->m->spans[body->layer];
    const bool first = body->pass == PASS_FIRST, top = body->layer == span->top;
    const size_t at = (size_t)(body->layer + 1) * c->n + body->chunk;
    if (body->layer + 1 == c->layers || first != top)
        return;
    if (!tdm_is_far(first ? span->group[1].input_place : span->group->held_place))
        return;
    double sent = copy_to_host(c, c->compute, of_chunk(c, c->e->x, body->chunk));
    c->m->x_sent[at] = sent;
    if (first && c->by_layer)
        c->m->stream_free[body->chunk] = sent;
    else
        *take_slot(&c->stashed_x) = sent;
}

/* Layer-major: fetches K and V of a chunk into the row that the layer above has used. */
static void fetch_kv(struct clocks *c, const struct body *body)
{
    c->kv_ready = copy_to_device(c, c->kv_free, of_chunk(c, c->e->kv, body->chunk));
}

static void run_forward(struct clocks *c, const struct body *body, double ready)
{
    const struct span *span = &c->m->spans[body->layer];
    const struct layer_cost *cost = cost_before(c, body);
    const struct stored *stored = stored_of(c, body);
    const bool first = body->pass == PASS_FIRST;
    const unsigned made = stashes(c, body);
    double rest = COST(rest), seen = attention(c, body), before = COST(embed);
    if (!first && HAS(stored->kept, TDM_STORE_GATE_UP))
        rest -= COST(mlp_norm) + COST(gate_up);
    if (!first && HAS(stored->kept, TDM_STORE_ATTENTION)) {
        seen = 0;
        before += holds_kv(c, span, body->layer) ? COST(norm) + COST(kv) : 0;
    } else {
        before += COST(norm) + COST(q) + (first || !keeps_kv(span) ? COST(kv) : 0);
    }
    for (int s = 0; made >> s != 0; s++)
        if (HAS(made, s))
            ready = later(ready, c->stashed[s].free[c->stashed[s].next]);
    c->compute = later(later(c->compute, ready) + before, fetch_row(c, body, seen > 0));
    if (c->by_layer && !first && seen > 0 && far_kv(span)) {
        fetch_kv(c, body);
        c->compute = later(c->compute, c->kv_ready);
    }
    send_kv(c, body, c->compute);
    c->compute += seen;
    free_row(c, body->layer, c->compute);
    double attended = c->compute;
    c->compute += rest;
    if (first && c->by_layer)
        c->compute = later(c->compute, c->m->stream_free[body->chunk]);
    for (int s = 0; made >> s != 0; s++)
        if (HAS(made, s)) {
            double from = s == TDM_STORE_GATE_UP ? c->compute - rest / 3 : attended;
            double sent = copy_to_host(c, from, of_chunk(c, c->e->store[s], body->chunk));
            *take_slot(&c->stashed[s]) = sent;
            c->m->stored_sent[(size_t)body->layer * c->n + body->chunk] = sent;
        }
    send_input(c, body);
}

/* K and V of a chunk: made, or in a sweep fetched. */
static void run_kv(struct clocks *c, const struct body *body, double ready)
{
    const struct span *span = &c->m->spans[body->layer];
    const struct layer_cost *cost = cost_before(c, body);
    if (body->pass != PASS_FIRST && far_kv(span))
        fetch_kv(c, body);
    if (body->pass != PASS_FIRST && (keeps_kv(span) || holds_kv(c, span, body->layer)))
        return;
    c->compute = later(c->compute, ready) + COST(embed) + COST(norm) + COST(kv);
    send_kv(c, body, c->compute);
}

static void run_backward(struct clocks *c, const struct body *body, double ready)
{
    const struct tdm_group *group = c->m->spans[body->layer].group;
    const struct layer_cost *cost = cost_before(c, body);
    const struct stored *stored = stored_of(c, body);
    const bool kept = HAS(stored->kept, TDM_STORE_ATTENTION);
    const bool held = !kept && HAS(stored->held, TDM_STORE_ATTENTION);
    const double least = COST(backward[kept ? group->kept : held ? group->held : TDM_SET_INPUT]);
    double seconds = least + attention_grad(c, body), before = BEFORE_ATTENTION * least;
    if (!kept && !held) {
        seconds += attention(c, body);
        before = COST(norm) + COST(q);
    }
    if (kept && HAS(stored->held & ~stored->kept, TDM_STORE_GATE_UP))
        seconds -= COST(gate_up);
    c->compute = later(c->compute, ready);
    /* chunk-major: the gradient of the group above leaves the same bytes */
    if (!c->by_layer && body->chunk + 1 == c->n)
        c->compute = later(c->compute, c->gradient_free - GRADIENT_BEGINS * least);
    c->compute = later(c->compute + before, fetch_row(c, body, true));
    c->compute = later(c->compute, fetch_sums(c, body));
    if (c->by_layer && far_kv(&c->m->spans[body->layer]))
        c->compute = later(c->compute, c->kv_ready);
    c->compute += seconds - before;
    if (body->chunk == 0)
        c->kv_free = c->compute - AFTER_ATTENTION * least;
    free_row(c, body->layer, c->compute - AFTER_ATTENTION * least);
    send_sums(c, body);
    /* it adds to the bytes from which the gradient of the layer above is sent */
    if (c->by_layer && body->chunk + 1 == c->n)
        c->compute = later(c->compute, c->gradient_free);
}

static void run_head(struct clocks *c, const struct body *body)
{
    double ready = c->unit_ready[c->e->base->model->tied ? 0 : 1];
    double share = (c->e->tokens_before[body->chunk + 1] - c->e->tokens_before[body->chunk]) /
                   c->e->tokens_before[c->n];
    c->compute = later(c->compute, ready) + c->e->head_seconds * share;
}

static void run_body(struct clocks *c, const struct body *body)
{
    double ready;
    switch ((enum kind)body->kind) {
    case KIND_BACKWARD_BEGIN:
        if (!c->by_layer)
            open_states(c);
        return;
    case KIND_LAYER_BEGIN:
        if (body->layer == 0)
            begin_use(c, 0);
        return;
    case KIND_LAYER_END:
        if (body->layer == 0)
            end_use(c, 0);
        return;
    case KIND_HEAD_BEGIN:
        use_head(c, true);
        return;
    case KIND_HEAD_END:
        use_head(c, false);
        if (c->by_layer)
            open_states(c);
        return;
    case KIND_MARK:
        return;
    case KIND_HEAD:
        run_head(c, body);
        return;
    case KIND_UPDATE:
        update(c, body->layer);
        return;
    default:
        visit_layer(c, body->layer);
        stream_states(c, body->layer);
        ready = later(weights_ready(c, body->layer), body->fetched);
        if (body->layer == 0)
            ready = later(ready, c->unit_ready[0]);
        if (body->kind == KIND_FORWARD)
            run_forward(c, body, ready);
        else if (body->kind == KIND_KV)
            run_kv(c, body, ready);
        else
            run_backward(c, body, ready);
        use_weights(c, body->layer, c->compute);
        release_fetches(c, body);
    }
}

/* ---- the nest ---- */

static void add(struct clocks *c, enum kind kind, enum pass pass, uint32_t layer, uint32_t chunk)
{
    c->m->bodies[c->body_count++] =
        (struct body){.kind = (uint8_t)kind, .pass = (uint8_t)pass, .layer = layer, .chunk = chunk};
}

static void add_forward(struct clocks *c, enum pass pass, uint32_t layer)
{
    add(c, KIND_LAYER_BEGIN, pass, layer, 0);
    for (uint32_t i = 0; i < c->n; i++)
        add(c, KIND_FORWARD, pass, layer, i);
    add(c, KIND_LAYER_END, pass, layer, 0);
}

/* The gradient of a unit is complete. */
static void add_update(struct clocks *c, uint32_t unit)
{
    add(c, KIND_MARK, PASS_BACKWARD, unit, 0);
    if (c->trains)
        add(c, KIND_UPDATE, PASS_BACKWARD, unit, 0);
}

static void layer_major(struct clocks *c)
{
    for (uint32_t layer = 0; layer < c->layers; layer++)
        add_forward(c, PASS_FIRST, layer);
    add(c, KIND_BACKWARD_BEGIN, PASS_BACKWARD, 0, 0);
    add(c, KIND_HEAD_BEGIN, PASS_BACKWARD, 0, 0);
    for (uint32_t i = c->n; i-- > 0;)
        add(c, KIND_HEAD, PASS_BACKWARD, 0, i);
    add_update(c, end_unit(c, 1));
    add(c, KIND_HEAD_END, PASS_BACKWARD, 0, 0);
    for (uint32_t end = c->layers; end > 0;) {
        const struct span *span = &c->m->spans[end - 1];
        add(c, KIND_MARK, PASS_BACKWARD, 0, 0);
        for (uint32_t layer = span->first; layer < span->top; layer++)
            add_forward(c, PASS_RERUN, layer);
        for (uint32_t layer = span->top + 1; layer-- > span->first;) {
            add(c, KIND_LAYER_BEGIN, PASS_BACKWARD, layer, 0);
            for (uint32_t i = 0; i < c->n; i++)
                add(c, KIND_KV, PASS_BACKWARD, layer, i);
            for (uint32_t i = c->n; i-- > 0;)
                add(c, KIND_BACKWARD, PASS_BACKWARD, layer, i);
            add_update(c, layer);
            add(c, KIND_LAYER_END, PASS_BACKWARD, layer, 0);
        }
        add(c, KIND_MARK, PASS_BACKWARD, 0, 0);
        end = span->first;
    }
    add_update(c, end_unit(c, 0));
}

/* Begins or ends a group; the lowest one uses the embedding. */
static void add_group(struct clocks *c, bool begin, uint32_t first)
{
    add(c, begin ? KIND_LAYER_BEGIN : KIND_LAYER_END, PASS_FIRST, first, 0);
}

static void chunk_major(struct clocks *c)
{
    for (uint32_t first = 0; first < c->layers; first = c->m->spans[first].top + 1) {
        add_group(c, true, first);
        for (uint32_t i = 0; i < c->n; i++)
            for (uint32_t layer = first; layer <= c->m->spans[first].top; layer++)
                add(c, layer + 1 == c->layers ? KIND_KV : KIND_FORWARD, PASS_FIRST, layer, i);
        add_group(c, false, first);
    }
    add(c, KIND_BACKWARD_BEGIN, PASS_BACKWARD, 0, 0);
    add(c, KIND_HEAD_BEGIN, PASS_BACKWARD, 0, 0);
    for (uint32_t end = c->layers; end > 0;) {
        const uint32_t first = c->m->spans[end - 1].first;
        const bool last = end == c->layers;
        add_group(c, true, first);
        for (uint32_t i = c->n; i-- > 0;) {
            for (uint32_t layer = first; layer + !last < end; layer++)
                add(c, KIND_FORWARD, PASS_RERUN, layer, i);
            if (last)
                add(c, KIND_HEAD, PASS_BACKWARD, 0, i);
            for (uint32_t layer = end; layer-- > first;)
                add(c, KIND_BACKWARD, PASS_BACKWARD, layer, i);
        }
        for (uint32_t layer = end; layer-- > first;)
            add_update(c, layer);
        add_group(c, false, first);
        if (last) {
            add_update(c, end_unit(c, 1));
            add(c, KIND_HEAD_END, PASS_BACKWARD, 0, 0);
        }
        end = first;
    }
    add_update(c, end_unit(c, 0));
}

/* Lists the visits of layers whose weights are far, and the updates with far state. */
static void plan_streams(struct clocks *c)
{
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < c->body_count; i++) {
        const struct body *body = &c->m->bodies[i];
        bool updates = body->kind == KIND_UPDATE && body->layer < c->layers &&
                       !tdm_updates_on_host(c->e->base, body->layer);
        if (!updates && body->kind < KIND_FORWARD)
            continue;
        if (body->layer != last && c->m->far[TDM_STATE_WEIGHTS][body->layer])
            c->m->visits[c->visit_count++] = body->layer;
        last = body->layer;
        if (updates && has_far_state(c, body->layer))
            c->m->updates[c->update_count++] = body->layer;
    }
}

/* ---- preparation ---- */

static void find_homes(struct clocks *c)
{
    const struct tdm_schedule *base = c->e->base;
    for (int s = 0; s <= TDM_STATE_MOMENTS; s++)
        for (uint32_t unit = 0; unit < base->model->unit_count; unit++)
            c->m->far[s][unit] = tdm_estimator_unit_bytes(c->e, (enum tdm_state)s, unit) > 0 &&
                                 tdm_is_far(tdm_schedule_home(base, (enum tdm_state)s, unit));
    for (uint32_t i = 0; i < CONTENTS; i++) {
        const struct tdm_home *home = &base->homes[i == 0 ? TDM_STATE_MASTER : TDM_STATE_MOMENTS];
        c->state_slots[i] =
            (uint32_t)smaller(c->schedule->rings.optimizer, c->layers - home->device_layers);
    }
    for (uint32_t unit = 0; unit < base->model->unit_count; unit++)
        c->gradient_bytes += (double)c->e->gradient_bytes[unit];
}

/* Bits of the stores of a set, apart from K and V. */
static uint8_t bits_of(enum tdm_set set)
{
    unsigned bits = 0;
    for (int s = 0; s < TDM_STORES; s++)
        bits |= tdm_set_has(set, (enum tdm_store)s) ? 1u << s : 0;
    return (uint8_t)bits;
}

static void find_stored(struct clocks *c, const struct span *span, uint32_t layer)
{
    const struct tdm_group *group = span->group;
    const bool keeps = c->by_layer || layer + 1 < c->layers;
    const bool holds = layer < span->top || (!c->by_layer && span->last);
    const uint8_t kept = keeps ? bits_of(group->kept) : 0, held = holds ? bits_of(group->held) : 0;
    for (uint32_t i = 0; i < c->n; i++) {
        struct stored *stored = &c->m->stored[(size_t)layer * c->n + i];
        stored->kept = i >= group->kept_from_chunk ? kept : 0;
        stored->held = i >= group->held_from_chunk ? held : 0;
        /* beside a kept attention output only the products of the MLP are held */
        if (HAS(stored->kept, TDM_STORE_ATTENTION))
            stored->held &= (uint8_t)(1u << TDM_STORE_GATE_UP);
        stored->held &= (uint8_t)~stored->kept;
        stored->far = (uint8_t)((tdm_is_far(group->kept_place) ? stored->kept : 0) |
                                (tdm_is_far(group->held_place) ? stored->held : 0));
    }
}

static void find_times(struct clocks *c, uint32_t layer)
{
    const struct tdm_estimator *e = c->e;
    const size_t row = (size_t)c->n + 1;
    const uint32_t kind = e->kind_of[layer];
    const double *before = e->attention_before + kind * row;
    c->m->times[layer] = (struct times){
        .cost_before = e->costs_before + e->row_of[layer] * row,
        .attention_before = before,
        .attention_grad = before[c->n] > 0 ? e->attention_grad_seconds[kind] / before[c->n] : 0};
}

static void take_ring(struct ring *ring, uint32_t slots, double **memory)
{
    *ring = (struct ring){.free = *memory, .slots = slots};
    memset(ring->free, 0, slots * sizeof(double));
    *memory += slots;
}

static void prepare(struct clocks *c)
{
    const struct tdm_schedule *schedule = c->schedule;
    const struct tdm_machine *machine = c->e->base->machine;
    const size_t all = (size_t)c->layers * c->n;
    double both = tdm_machine_both_ways_rate(machine) / 2, *slots = c->m->slots;
    double h2d = tdm_machine_link_rate(machine, TDM_LINK_H2D);
    double d2h = tdm_machine_link_rate(machine, TDM_LINK_D2H);
    uint32_t stash = (uint32_t)smaller(schedule->rings.stashed, c->n);
    c->depth = (uint32_t)smaller(c->e->base->prefetch, c->n - 1);
    c->copy_seconds = machine->copy_seconds;
    c->to_device[0] = 1 / h2d;
    c->to_device[1] = 1 / (both < h2d ? both : h2d);
    c->to_host[0] = 1 / d2h;
    c->to_host[1] = 1 / (both < d2h ? both : d2h);
    memset(c->m->x_sent, 0, (all + c->n) * sizeof(double));
    memset(c->m->stored_sent, 0, all * sizeof(double));
    memset(c->m->stream_free, 0, c->n * sizeof(double));
    memset(c->m->kv_sent, 0, c->layers * sizeof(double));
    take_ring(&c->fetched_x, c->depth + 1, &slots);
    take_ring(&c->stashed_x, stash, &slots);
    for (int s = 0; s < TDM_STORES; s++) {
        take_ring(&c->fetched[s], c->depth + 1, &slots);
        take_ring(&c->stashed[s], stash, &slots);
    }
    c->current = UINT32_MAX;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        c->ring_layer[slot] = UINT32_MAX;
    find_homes(c);
    for (uint32_t g = 0, layer = 0, far = 0; g < schedule->group_count; g++) {
        struct span span = span_of(c->e, schedule, g, layer);
        for (; layer <= span.top; layer++) {
            c->m->spans[layer] = span;
            c->m->far_rows[layer] = far;
            far += far_kv(&span);
            find_stored(c, &span, layer);
            find_times(c, layer);
        }
    }
}

/* Pages that attention gathers and updates after the backward are left to tdm_estimate_waiting().
 */
static bool is_known(const struct tdm_estimator *e, const struct tdm_schedule *schedule)
{
    const struct tdm_rings *rings = &schedule->rings;
    if (e->memory->most_bodies == 0 || tdm_updates_at_end(e->base) || rings->weights >= SLOTS ||
        rings->optimizer >= SLOTS || rings->kv >= SLOTS || rings->weights == 0 ||
        rings->optimizer == 0 || rings->kv == 0 || rings->stashed == 0)
        return false;
    for (uint32_t g = 0, first = 0; g < schedule->group_count; g++) {
        const struct tdm_group *group = &schedule->groups[g];
        if (schedule->order == TDM_CHUNK_MAJOR && gathers(e, first))
            return false;
        first += group->layers;
    }
    return true;
}

bool tdm_estimator_knows_lanes(const struct tdm_estimator *e)
{
    return e->memory->most_bodies > 0;
}

double tdm_estimate_lanes(const struct tdm_estimator *e, const struct tdm_schedule *schedule)
{
    struct clocks clocks = {.e = e,
                            .schedule = schedule,
                            .m = e->memory,
                            .n = e->chunks,
                            .layers = e->layers,
                            .by_layer = schedule->order == TDM_LAYER_MAJOR,
                            .trains = e->base->optimizer.kind != TDM_OPTIMIZER_NONE},
                  *c = &clocks;
    if (!is_known(e, schedule))
        return 0;
    prepare(c);
    (c->by_layer ? layer_major : chunk_major)(c);
    plan_streams(c);
    uint32_t run = 0;
    for (uint32_t i = 0; i < c->body_count; i++) {
        struct body *body = &c->m->bodies[i];
        bool phase = body->kind == KIND_BACKWARD_BEGIN;
        while (i - run > (phase ? 0 : c->depth))
            run_body(c, &c->m->bodies[run++]);
        if (phase)
            run_body(c, &c->m->bodies[run++]);
        else if (body->kind >= KIND_FORWARD)
            fetch_body(c, body);
    }
    while (run < c->body_count)
        run_body(c, &c->m->bodies[run++]);
    return later(later(c->compute, c->h2d), later(c->d2h, c->host));
}
