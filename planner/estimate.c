/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates: counts of bodies times their costs, and sums of what is live together. */
#include "planner/estimate_parts.h"

#include "base/size.h"
#include "schedule/lowering.h"
#include "schedule/nest.h"
#include "schedule/optimizer.h"

#include <string.h>

/* How many times more than other copies those of prefixes make the compute lane wait. */
#define EXPOSED 100

/* A group with its splits made plain: attention outputs are kept from chunk `kept` on (`chunks`:
 * none), and held of chunks [held, kept). */
struct span {
    uint32_t first, top; /* layers */
    uint32_t kept, held;
    bool last;
    const struct tdm_group *group;
};

static struct span span_of(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                           uint32_t number, uint32_t first)
{
    const struct tdm_group *group = &schedule->groups[number];
    struct span span = {.first = first,
                        .top = first + group->layers - 1,
                        .kept = e->chunks,
                        .held = e->chunks,
                        .last = number + 1 == schedule->group_count,
                        .group = group};
    if (group->kept >= TDM_SET_ATTENTION_OUTPUT && group->kept_from_chunk < e->chunks)
        span.kept = group->kept_from_chunk;
    span.held = span.kept;
    if (group->held >= TDM_SET_ATTENTION_OUTPUT && group->held_from_chunk < span.kept)
        span.held = group->held_from_chunk;
    return span;
}

/* The splits of one layer of a group. In chunk-major order the first forward of the last layer makes
 * its K and V alone, so that there is nothing to keep; it runs again, and can be held. */
static struct span span_of_layer(const struct tdm_estimator *e, const struct span *group,
                                 enum tdm_order order, uint32_t layer)
{
    struct span span = *group;
    if (order == TDM_CHUNK_MAJOR && span.last && layer == span.top) {
        span.kept = span.held = e->chunks;
        if (span.group->held >= TDM_SET_ATTENTION_OUTPUT && span.group->held_from_chunk < e->chunks)
            span.held = span.group->held_from_chunk;
    }
    return span;
}

/* Is a layer run forward again in the backward? */
static bool runs_again(const struct span *span, enum tdm_order order, uint32_t layer)
{
    return layer < span->top || (order == TDM_CHUNK_MAJOR && span->last);
}

/* Bytes of a chunk that has a set beside its input. */
static uint64_t set_bytes(const struct tdm_estimator *e, enum tdm_set set)
{
    return (set >= TDM_SET_ATTENTION_OUTPUT ? e->attention : 0) + (set >= TDM_SET_QKV ? e->q : 0) +
           (set >= TDM_SET_ALL ? e->gate_up : 0);
}

static bool keeps_kv(const struct span *span)
{
    return span->group->kv == TDM_KV_KEEP;
}

/* Costs of a layer summed over the chunks before each chunk: [chunks + 1]. */
static const struct layer_cost *costs_of(const struct tdm_estimator *e, uint32_t layer)
{
    return e->costs_before + (size_t)e->row_of[layer] * ((size_t)e->chunks + 1);
}

static double forward_of(const struct layer_cost *cost)
{
    return cost->embed + cost->norm + cost->q + cost->kv + cost->rest;
}

static double sum_attention(const struct tdm_estimator *e, uint32_t layer, uint32_t from,
                            uint32_t to)
{
    const double *before =
        e->attention_before + (size_t)e->kind_of[layer] * ((size_t)e->chunks + 1);
    return before[to] - before[from];
}

double tdm_estimator_forward_seconds(const struct tdm_estimator *e)
{
    double seconds = 0;
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        seconds += forward_of(&costs_of(e, layer)[e->chunks]);
        seconds += sum_attention(e, layer, 0, e->chunks);
    }
    return seconds;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Seconds that a link needs for a sweep's copies: all of them, and without those that fit into staging before
 * the sweep begins, and the last chunks of sequences, which may be short. */
struct link {
    double all, least;
};

static struct link both(struct link a, struct link b)
{
    return (struct link){a.all + b.all, a.least + b.least};
}

static const struct link no_link;

/* Of chunks [from, to), with `bytes` for a full one. */
static struct link link_seconds(const struct tdm_estimator *e, enum tdm_rate rate, uint32_t from,
                                uint32_t to, uint64_t bytes)
{
    const struct tdm_machine *machine = e->base->machine;
    uint64_t ahead =
        larger(e->base->prefetch + 1, e->base->rings.stashed) + e->base->sequence_count;
    double seconds = (double)bytes / machine->rate[rate];
    uint32_t chunks = to > from ? to - from : 0;
    struct link link = no_link;
    if (chunks > 0)
        link.all = chunks * machine->copy_seconds +
                   (e->tokens_before[to] - e->tokens_before[from]) * seconds;
    if (chunks > ahead)
        link.least = (double)(chunks - ahead) * (machine->copy_seconds + seconds);
    return link;
}

static bool on_host(enum tdm_place place)
{
    return place == TDM_HOST;
}

/* Is the stored input of a layer on the host, where its backward reads it? */
static bool input_on_host(const struct span *span, uint32_t layer)
{
    if (layer == 0)
        return false;
    return on_host(layer == span->first ? span->group->input_place : span->group->held_place);
}

/* The chunks from which on gate and up are held beside an attention output that is kept. */
static uint32_t products_from(const struct tdm_estimator *e, const struct span *span)
{
    const struct tdm_group *group = span->group;
    if (group->held < TDM_SET_ALL || group->kept >= TDM_SET_ALL)
        return e->chunks;
    return group->held_from_chunk > span->kept
               ? (uint32_t)smaller(group->held_from_chunk, e->chunks)
               : span->kept;
}

/* Seconds to fetch a layer's stored input from the host, where it is there. */
static struct link fetch_input(const struct tdm_estimator *e, const struct span *span,
                               uint32_t layer)
{
    return input_on_host(span, layer) ? link_seconds(e, TDM_RATE_H2D, 0, e->chunks, e->x) : no_link;
}

/* Seconds to copy what is kept on the host: all of it, or without q, which a rerun does not need. */
static struct link copy_kept(const struct tdm_estimator *e, const struct span *span,
                             enum tdm_rate rate, bool with_q)
{
    uint64_t bytes = set_bytes(e, span->group->kept);
    if (!on_host(span->group->kept_place) || bytes == 0)
        return no_link;
    if (!with_q && span->group->kept >= TDM_SET_QKV)
        bytes -= e->q;
    return link_seconds(e, rate, span->kept, e->chunks, bytes);
}

/* The same for what is held there, inputs not counted. */
static struct link copy_held(const struct tdm_estimator *e, const struct span *span,
                             enum tdm_rate rate)
{
    if (!on_host(span->group->held_place))
        return no_link;
    return both(link_seconds(e, rate, span->held, span->kept, set_bytes(e, span->group->held)),
                link_seconds(e, rate, products_from(e, span), e->chunks, e->gate_up));
}

static bool far_kv(const struct span *span)
{
    return keeps_kv(span) && on_host(span->group->kv_place);
}

/* In layer-major order, does a layer have K and V in a row of its own? It is counted with what is kept. */
static bool own_kv(const struct span *span)
{
    return keeps_kv(span) && !on_host(span->group->kv_place);
}

/* Seconds of the backward of a layer's chunks, where [held, kept) have what is held, and the others from
 * `kept` on what is kept, beside what is held of another store. */
static double backward_seconds(const struct tdm_estimator *e, const struct span *span,
                               uint32_t layer, bool again)
{
    const struct tdm_group *group = span->group;
    uint32_t n = e->chunks, held = again ? span->held : span->kept;
    const struct layer_cost *sums = costs_of(e, layer);
    enum tdm_set first = again ? group->held : TDM_SET_INPUT, last = group->kept;
    double seconds = sums[held].backward[TDM_SET_INPUT] + sums[span->kept].backward[first] -
                     sums[held].backward[first] + sums[n].backward[last] -
                     sums[span->kept].backward[last];
    /* gate and up can be held of chunks whose attention output is kept */
    if (again)
        seconds -= sums[n].gate_up - sums[products_from(e, span)].gate_up;
    return seconds + e->attention_grad_seconds[e->kind_of[layer]] +
           sum_attention(e, layer, 0, held);
}

/* Seconds of a phase, and in it of copies to the device and to the host. */
struct phase {
    double seconds, fetch, send;
    double prefixes; /* of these, of what a chunk needs at once: little of it is hidden */
};

struct phases {
    struct phase forward, backward;
};

/* A sweep: its staging holds a few chunks only, so that it takes as long as its computing or its copies,
 * whichever is longer. */
static struct sweep add_sweep(struct phase *phase, double compute, struct link fetch,
                              struct link send)
{
    phase->seconds += later(compute, later(fetch.least, send.least));
    phase->fetch += fetch.least;
    phase->send += send.least;
    return (struct sweep){compute, fetch.all, send.all};
}

static void add_phase(struct phase *sum, const struct phase *phase)
{
    sum->seconds += phase->seconds;
    sum->fetch += phase->fetch;
    sum->send += phase->send;
    sum->prefixes += phase->prefixes;
}

/* Layer-major: sweeps follow each other. */
static void layer_major_seconds(const struct tdm_estimator *e, const struct span *span,
                                struct phases *all_layers)
{
    const struct tdm_group *group = span->group;
    uint32_t n = e->chunks;
    struct phases of_layer = {0}, *phases = &of_layer;
    for (uint32_t layer = span->first; layer <= span->top; layer++) {
        struct layer_sweeps *sweeps = &e->sweeps[layer];
        /* inner layers are alike, but for the lowest, of which the input is the group's */
        if (layer > span->first + 1 && layer < span->top &&
            e->row_of[layer] == e->row_of[layer - 1] &&
            e->kind_of[layer] == e->kind_of[layer - 1]) {
            *sweeps = sweeps[-1];
            add_phase(&all_layers->forward, &of_layer.forward);
            add_phase(&all_layers->backward, &of_layer.backward);
            continue;
        }
        of_layer = (struct phases){0};
        *sweeps = (struct layer_sweeps){0};
        const struct layer_cost *all = &costs_of(e, layer)[n];
        const struct layer_cost *before = &costs_of(e, layer)[span->kept]; /* what is not kept */
        double forward = forward_of(all);
        struct link send = copy_kept(e, span, TDM_RATE_D2H, true);
        bool far = far_kv(span), again = layer < span->top;
        if (far)
            send = both(send, link_seconds(e, TDM_RATE_D2H, 0, n, e->kv));
        if (layer == span->top && !span->last && on_host(group[1].input_place))
            send = both(send, link_seconds(e, TDM_RATE_D2H, 0, n, e->x));
        const struct row_moves *moves = &e->moves[e->kind_of[layer]];
        bool holds_kv = again && !keeps_kv(span) && group->held >= TDM_SET_QKV;
        bool passes = !own_kv(span); /* its K and V, through the row of the layer under way */
        double moved = passes ? moves->rising : 0;
        sweeps->forward = add_sweep(&phases->forward,
                                    forward + sum_attention(e, layer, 0, n) + moved, no_link, send);

        struct link fetch = fetch_input(e, span, layer);
        struct link row = far ? link_seconds(e, TDM_RATE_H2D, 0, n, e->kv) : no_link;
        if (again) {
            double compute =
                forward - (all->q - before->q) + sum_attention(e, layer, 0, span->kept);
            if (!holds_kv)
                compute -= all->norm - before->norm + all->kv - (keeps_kv(span) ? 0 : before->kv);
            if (group->kept == TDM_SET_ALL)
                compute -= all->mlp_norm - before->mlp_norm + all->gate_up - before->gate_up;
            if (span->kept == n && !holds_kv)
                compute += moved;
            send = copy_held(e, span, TDM_RATE_D2H);
            if (on_host(group->held_place))
                send = both(send, link_seconds(e, TDM_RATE_D2H, 0, n, e->x));
            sweeps->again = add_sweep(&phases->backward, compute,
                                      both(fetch, copy_kept(e, span, TDM_RATE_H2D, false)), send);
            if (far) {
                struct link early = link_seconds(e, TDM_RATE_H2D, 0, span->kept, e->kv);
                phases->backward.fetch += early.least;
                sweeps->again.fetch += early.all;
            }
        }
        struct link stored = both(fetch, copy_kept(e, span, TDM_RATE_H2D, true));
        double made = all->embed + all->norm + all->kv, beside = moves->gradients;
        beside += passes && !holds_kv ? moves->falling : 0;
        if (far) { /* into a row that the layer above leaves chunk by chunk */
            phases->backward.fetch += row.least;
        } else if (passes && !holds_kv && moves->apart) {
            sweeps->kv = add_sweep(&phases->backward, made, fetch, no_link);
        } else if (passes && !holds_kv) { /* between the chunks' backwards */
            beside += made;
            stored = both(stored, fetch);
        }
        if (again)
            stored = both(stored, copy_held(e, span, TDM_RATE_H2D));
        sweeps->backward = add_sweep(
            &phases->backward, backward_seconds(e, span, layer, again) + beside, stored, no_link);
        sweeps->backward.fetch += row.all;
        add_phase(&all_layers->forward, &of_layer.forward);
        add_phase(&all_layers->backward, &of_layer.backward);
    }
}

/* What a layer's attention gathers for the chunks before one. */
static const struct gathered *gathered_before(const struct tdm_estimator *e, uint32_t layer,
                                              uint32_t chunk)
{
    return &e->gathered_before[(size_t)e->kind_of[layer] * ((size_t)e->chunks + 1) + chunk];
}

/* Does it, in chunk-major order, where K and V are on the host? */
static bool gathers(const struct tdm_estimator *e, uint32_t layer)
{
    return gathered_before(e, layer, e->chunks)->kv > 0;
}

/* Seconds that this adds to the attention of a forward, and to those of a backward, where that of the first
 * chunks runs again. */
static double gather_seconds(const struct tdm_estimator *e, uint32_t layer, uint32_t chunks)
{
    return (double)gathered_before(e, layer, chunks)->kv / e->base->machine->rate[TDM_RATE_H2D];
}

static double gather_backward_seconds(const struct tdm_estimator *e, const struct span *span,
                                      uint32_t layer, bool again)
{
    const double *rate = e->base->machine->rate;
    double sums = (double)gathered_before(e, layer, e->chunks)->sums;
    double seconds = gather_seconds(e, layer, e->chunks) +
                     gather_seconds(e, layer, again ? span->held : span->kept);
    if (again)
        seconds += gather_seconds(e, layer, span->kept);
    if (on_host(span->group->kv_gradients_place))
        seconds += sums / rate[TDM_RATE_H2D] + sums / rate[TDM_RATE_D2H];
    return seconds;
}

/* Seconds for the prefixes of K and V, or their gradients, of all chunks of a layer: with a chunk's own, or
 * without. */
static double prefix_seconds(const struct tdm_estimator *e, enum tdm_rate rate, uint32_t layer,
                             uint64_t bytes, bool own)
{
    if (gathers(e, layer))
        return 0;
    double chunks = (double)e->seen_chunks[e->kind_of[layer]] - (own ? 0 : e->chunks);
    return chunks * (double)bytes / e->base->machine->rate[rate];
}

/* Chunk-major: the copies of a group against its computing. */
static void chunk_major_seconds(const struct tdm_estimator *e, const struct span *group,
                                struct phases *phases)
{
    uint32_t n = e->chunks;
    double forward = 0, backward = 0, sums = 0, prefixes = 0, early_prefixes = 0;
    struct link sent = no_link, fetch = no_link;
    memset(&e->sweeps[group->first], 0, (group->top - group->first + 1) * sizeof(*e->sweeps));
    for (uint32_t layer = group->first; layer <= group->top; layer++) {
        struct span span = span_of_layer(e, group, TDM_CHUNK_MAJOR, layer);
        const struct layer_cost *all = &costs_of(e, layer)[n];
        const struct layer_cost *before = &costs_of(e, layer)[span.kept];
        bool again = runs_again(&span, TDM_CHUNK_MAJOR, layer), far = far_kv(&span);
        bool only_kv = span.last && layer == span.top;
        forward += all->embed + all->norm + all->kv;
        if (!only_kv)
            forward += all->q + all->rest + sum_attention(e, layer, 0, n);
        sent = both(sent, copy_kept(e, &span, TDM_RATE_D2H, true));
        if (layer == span.top && !span.last && on_host(span.group[1].input_place))
            sent = both(sent, link_seconds(e, TDM_RATE_D2H, 0, n, e->x));
        if (again)
            backward += all->embed + before->norm + before->q + all->rest +
                        sum_attention(e, layer, 0, span.kept);
        if (again && span.group->kept == TDM_SET_ALL)
            backward -= all->mlp_norm - before->mlp_norm + all->gate_up - before->gate_up;
        backward += backward_seconds(e, &span, layer, again);
        struct link stored = copy_kept(e, &span, TDM_RATE_H2D, true);
        if (layer == span.first)
            stored = both(stored, fetch_input(e, &span, layer));
        if (again && layer == span.first)
            stored = both(stored, fetch_input(e, &span, layer));
        if (again)
            stored = both(stored, copy_kept(e, &span, TDM_RATE_H2D, false));
        fetch = both(fetch, stored);
        if (far && gathers(e, layer)) {
            forward += only_kv ? 0 : gather_seconds(e, layer, n);
            backward += gather_backward_seconds(e, &span, layer, again);
        }
        if (far) {
            sent = both(sent, link_seconds(e, TDM_RATE_D2H, 0, n, e->kv));
            early_prefixes += only_kv ? 0 : prefix_seconds(e, TDM_RATE_H2D, layer, e->kv, false);
            prefixes += prefix_seconds(e, TDM_RATE_H2D, layer, e->kv, true);
        }
        if (on_host(span.group->kv_gradients_place))
            sums += prefix_seconds(e, TDM_RATE_D2H, layer, e->dkv, false);
    }
    struct link early = {early_prefixes, 0}, late = {prefixes, prefixes}, gradients = {sums, 0};
    struct layer_sweeps *sweeps = &e->sweeps[group->top];
    sweeps->forward = add_sweep(&phases->forward, forward, early, no_link);
    sweeps->forward.send += sent.all;
    phases->forward.fetch += early_prefixes;
    phases->forward.send += sent.least;
    sweeps->backward = add_sweep(&phases->backward, backward, both(fetch, late), gradients);
    phases->backward.send += sums;
    phases->backward.prefixes += prefixes + sums;
}

/* Layers of a group at home on the host. */
static uint32_t far_layers(const struct tdm_estimator *e, const struct span *span)
{
    const struct tdm_home *home = &e->base->homes[TDM_STATE_WEIGHTS];
    return tdm_home_far_below(home, e->layers, span->top + 1) -
           tdm_home_far_below(home, e->layers, span->first);
}

/* Fetches of weights of layers in a phase, at least: each visit of a layer that is not in the ring. */
static void weight_visits(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          double *in_forward, double *in_backward)
{
    uint32_t first = 0, ring = e->base->rings.weights;
    bool by_layer = schedule->order == TDM_LAYER_MAJOR;
    *in_forward = *in_backward = 0;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct span span = span_of(e, schedule, g, first);
        double far = far_layers(e, &span);
        bool passes = !by_layer && far > ring; /* with every chunk again */
        *in_forward += passes ? e->chunks * (far - ring) : far;
        *in_backward += passes ? e->chunks * 2 * (far - ring) : far;
        *in_backward += by_layer && far > 0 ? far - 1 : 0; /* to run again */
        first += schedule->groups[g].layers;
    }
    *in_backward = later(*in_backward - ring, 0); /* of the turn, and what runs ahead */
}

/* No phase is shorter than its copies of a direction, or of both at their rate together, less what runs
 * ahead of a phase or behind it: `spare` seconds. */
static void wait_for_copies(const struct tdm_estimator *e, struct phase *phase, double spare)
{
    const double *rate = e->base->machine->rate;
    double both = (phase->fetch * rate[TDM_RATE_H2D] + phase->send * rate[TDM_RATE_D2H]) /
                  rate[TDM_RATE_BOTH_WAYS];
    phase->seconds = later(phase->seconds, later(phase->fetch, later(phase->send, both)) - spare);
}

/* Copies of state whose home is the host. */
static void add_state(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                      struct phases *phases)
{
    const struct tdm_machine *machine = e->base->machine;
    const uint32_t last[] = {tdm_model_embedding_unit(e->base->model),
                             tdm_model_head_unit(e->base->model)};
    bool updates = e->base->optimizer.kind != TDM_OPTIMIZER_NONE;
    double forward, backward, through_ring = 0, fetched, sent = 0;
    double weights = (double)tdm_estimator_unit_bytes(e, TDM_STATE_WEIGHTS, 0);
    weight_visits(e, schedule, &forward, &backward);
    fetched = backward * weights;
    for (int s = 0; s <= TDM_STATE_MOMENTS && updates; s++) {
        enum tdm_state state = (enum tdm_state)s;
        double far = e->layers - e->base->homes[state].device_layers;
        bool comes = state != TDM_STATE_WEIGHTS && tdm_estimator_comes(e, state);
        double bytes = far * (double)tdm_estimator_unit_bytes(e, state, 0);
        through_ring += comes ? bytes : 0;
        sent += far * (double)tdm_estimator_sent_bytes(e, state, 0);
        for (int i = 0; i < 2; i++)
            if (tdm_schedule_home(e->base, state, last[i]) == TDM_HOST) {
                bytes += (double)tdm_estimator_unit_bytes(e, state, last[i]);
                sent += (double)tdm_estimator_sent_bytes(e, state, last[i]);
            }
        fetched += comes ? bytes : 0;
    }
    phases->forward.fetch += forward * weights / machine->rate[TDM_RATE_H2D];
    phases->backward.fetch += fetched / machine->rate[TDM_RATE_H2D];
    phases->backward.send += sent / machine->rate[TDM_RATE_D2H];
    /* one slot is filled again when what was in it is home */
    if (e->base->rings.optimizer == 1)
        phases->backward.seconds =
            later(phases->backward.seconds, through_ring / machine->rate[TDM_RATE_H2D] +
                                                through_ring / machine->rate[TDM_RATE_D2H]);
}

/* Seconds of what rings and a sweep over a layer may leave to the next phase, or begin in the last. */
static double spare_seconds(const struct tdm_estimator *e)
{
    uint64_t slots = larger(e->base->prefetch + 1, e->base->rings.stashed) + 1;
    uint64_t bytes = slots * (e->x + e->attention + e->q + e->gate_up + e->kv + e->dkv) +
                     e->chunks * (e->x + e->kv * e->base->rings.kv);
    return (double)bytes / e->base->machine->rate[TDM_RATE_D2H];
}

/* Does a store of a layer's chunks have room of its own in all of them, so that no backward makes it in workspace? */
static bool all_stored(const struct tdm_estimator *e, const struct span *span, bool again,
                       enum tdm_store store)
{
    enum tdm_set set = tdm_store_set(store);
    bool kept = span->group->kept >= set, held = again && span->group->held >= set;
    if (store == TDM_STORE_GATE_UP && held && !kept) /* beside what is kept too */
        return span->group->held_from_chunk == 0;
    return (span->kept == 0 || (held && span->held == 0)) && (span->kept == e->chunks || kept);
}

/* Workspace of a layer's backward. */
static uint64_t backward_work(const struct tdm_estimator *e, const struct span *group,
                              enum tdm_order order, uint32_t layer)
{
    struct span span = span_of_layer(e, group, order, layer);
    bool again = runs_again(&span, order, layer);
    uint64_t work = layer == 0 ? e->work_backward_first : e->work_backward;
    /* where heads are normed, q has its product beside it */
    uint64_t q = e->base->model->layer_kinds[layer].qk_norm ? 2 * e->q : e->q;
    work -= all_stored(e, &span, again, TDM_STORE_ATTENTION) ? e->attention : 0;
    work -= all_stored(e, &span, again, TDM_STORE_Q) ? q : 0;
    work -= all_stored(e, &span, again, TDM_STORE_GATE_UP) ? e->gate_up : 0;
    return work;
}

/* Bytes stored so far, walking up the groups: what is kept of all layers, and inputs of groups. */
struct stored {
    uint64_t kept[TDM_PLACES], inputs[TDM_PLACES];
    uint64_t
        kv[TDM_PLACES]; /* in chunk-major order; in layer-major order it is with what is kept */
};

/* Which staging rings a schedule needs. */
struct needs {
    bool inputs, inner;                      /* stored inputs of groups, of layers in them */
    bool kept[TDM_STORES], held[TDM_STORES]; /* what a set has beside */
    uint64_t far_kv, far_gradients;          /* layers with K and V, or their gradients, there */
    bool gathers_all;                        /* none of these needs a row of all chunks */
};

static struct needs needs_of(const struct tdm_estimator *e, const struct tdm_schedule *schedule)
{
    struct needs needs = {.gathers_all = true};
    bool by_chunk = schedule->order == TDM_CHUNK_MAJOR;
    uint32_t first = 0;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct span span = span_of(e, schedule, g, first);
        const struct tdm_group *group = span.group;
        bool keeps = !by_chunk || !span.last || group->layers > 1;
        bool holds = !by_chunk && group->layers > 1 && on_host(group->held_place);
        needs.inputs |= g > 0 && on_host(group->input_place);
        needs.inner |= holds;
        for (int store = 0; store < TDM_STORES; store++) {
            enum tdm_set set = tdm_store_set((enum tdm_store)store);
            uint32_t held_to =
                store == TDM_STORE_GATE_UP && group->kept < set ? e->chunks : span.kept;
            needs.kept[store] |=
                keeps && span.kept < e->chunks && group->kept >= set && on_host(group->kept_place);
            needs.held[store] |= holds && group->held >= set && group->held_from_chunk < held_to;
        }
        for (uint32_t layer = first; layer <= span.top && by_chunk; layer++) {
            bool far_gradients = on_host(group->kv_gradients_place);
            needs.far_kv += far_kv(&span);
            needs.far_gradients += far_gradients;
            needs.gathers_all &= (!far_kv(&span) && !far_gradients) || gathers(e, layer);
        }
        first += group->layers;
    }
    return needs;
}

/* What the rings take in the forward, and in the backward those of state left out. */
static void add_rings(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                      uint64_t *forward, uint64_t *backward)
{
    const uint64_t store_bytes[TDM_STORES] = {e->attention, e->q, e->gate_up};
    struct needs needs = needs_of(e, schedule);
    uint64_t fetch_slots = smaller(schedule->prefetch, e->chunks - 1) + 1;
    uint64_t stash_slots = smaller(schedule->rings.stashed, e->chunks);
    uint64_t row_slots = needs.gathers_all ? 1 : e->chunks;
    uint64_t rows = smaller(needs.far_kv, schedule->rings.kv) * row_slots * e->kv;
    *forward = e->weight_ring + rows;
    *backward = e->weight_ring + rows +
                smaller(needs.far_gradients, schedule->rings.kv) * row_slots * e->dkv;
    if (needs.inputs || needs.inner)
        *backward += fetch_slots * e->x;
    if (needs.inner)
        *backward += stash_slots * e->x;
    if (needs.inputs && schedule->order == TDM_CHUNK_MAJOR)
        *forward += (fetch_slots + stash_slots) * e->x;
    for (int store = 0; store < TDM_STORES; store++) {
        if (needs.kept[store] || needs.held[store])
            *backward += fetch_slots * store_bytes[store];
        if (needs.held[store])
            *backward += stash_slots * store_bytes[store];
        if (needs.kept[store])
            *forward += stash_slots * store_bytes[store];
    }
}

/* The rings of masters and moments, while layers go backward. */
static uint64_t state_rings(const struct tdm_estimator *e)
{
    return tdm_updates_at_end(e->base) ? 0 : e->state_rings;
}

static void raise_to(uint64_t *most, uint64_t bytes)
{
    *most = larger(*most, bytes);
}

/* Device bytes of gradients of layers while the lowest of them, `layer`, goes backward, and those above
 * it up to `top`. */
static uint64_t layer_gradients(const struct tdm_estimator *e, uint32_t layer, uint32_t top)
{
    const uint64_t *staying = e->staying_below[TDM_DEVICE];
    return e->passing_below[top + 1] - e->passing_below[layer] + staying[e->layers] -
           staying[layer];
}

/* Where it is not made apart, the embedding's gradient is born after the first backward of layer 0: beside the
 * workspace of a second one, if there is one. */
static uint64_t beside_embedding_gradient(const struct tdm_estimator *e, uint64_t work)
{
    return larger(e->chunks > 1 ? e->embedding_gradient + work : work, e->embedding_gradient);
}

/* Device bytes of a layer's backward in layer-major order, beside what is stored. */
static uint64_t sweep_bytes(const struct tdm_estimator *e, const struct span *span, uint64_t rings,
                            uint32_t layer)
{
    rings += state_rings(e);
    uint64_t work = backward_work(e, span, TDM_LAYER_MAJOR, layer);
    if (layer == 0)
        work += e->embedding_room;
    return e->resident_bytes[TDM_DEVICE] + rings + e->tied_gradient + e->head_stays[TDM_DEVICE] +
           layer_gradients(e, layer, layer) + e->chunks * e->x +
           e->row_slots * ((own_kv(span) ? 0 : e->kv) + e->dkv) + work;
}

/* Host bytes of gradients of layers above `top`, which are complete. */
static uint64_t host_gradients(const struct tdm_estimator *e, uint32_t top)
{
    const uint64_t *staying = e->staying_below[TDM_HOST];
    return staying[e->layers] - staying[top + 1];
}

/* Bytes that a layer of a group holds, in layer-major order. */
static uint64_t held_bytes(const struct tdm_estimator *e, const struct span *span)
{
    return (uint64_t)(span->kept - span->held) * set_bytes(e, span->group->held) +
           (uint64_t)(e->chunks - products_from(e, span)) * e->gate_up;
}

static bool votes(const struct tdm_estimator *e, uint32_t layer)
{
    return tdm_schedule_page_rule(e->base, layer).selector.kind == TDM_SELECT_TOP_K;
}

/* Page lists that are kept of the layers [first, end). */
static uint64_t lists_bytes(const struct tdm_estimator *e, uint32_t first, uint64_t end)
{
    uint64_t bytes = 0;
    for (uint32_t layer = first; layer < end; layer++)
        bytes += votes(e, layer) ? e->chunks * e->lists : 0;
    return bytes;
}

/* Page means of the last layer: in the forward's last sweep, or in chunk-major order until its lists are made. */
static uint64_t means_bytes(const struct tdm_estimator *e)
{
    return votes(e, e->layers - 1) ? e->chunks * e->means : 0;
}

/* For gradients that are used on the host, while there is a backward. */
static uint64_t host_ring(const struct tdm_estimator *e)
{
    return tdm_updates_at_end(e->base) ? 0 : e->host_ring;
}

/* Moments of a group in layer-major order: the first backward chunk of its top layer and of its lowest
 * one. */
static void layer_major_moments(const struct tdm_estimator *e, const struct span *span,
                                const struct stored *stored, uint64_t rings,
                                struct tdm_estimate *estimate)
{
    uint64_t n = e->chunks, above = span->top - span->first;
    uint64_t kept = (n - span->kept) * set_bytes(e, span->group->kept), held = n * e->x;
    uint64_t outputs = held_bytes(e, span);
    /* K and V of inner layers that hold q too: rows of their own, on the device */
    uint64_t rows = !keeps_kv(span) && span->group->held >= TDM_SET_QKV ? n * e->kv : 0;
    bool far_kept = on_host(span->group->kept_place), far = on_host(span->group->held_place);
    uint64_t device = stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE];
    raise_to(&estimate->body_bytes, sweep_bytes(e, span, rings, span->top) + device + above * rows +
                                        (far ? 0 : above * (held + outputs)));
    raise_to(&estimate->bytes[TDM_HOST], stored->kept[TDM_HOST] + stored->inputs[TDM_HOST] +
                                             (far ? above * (held + outputs) : 0) +
                                             e->head_stays[TDM_HOST] +
                                             host_gradients(e, span->top) + host_ring(e));
    if (above > 0)
        raise_to(&estimate->body_bytes,
                 sweep_bytes(e, span, rings, span->first) + device - (far_kept ? 0 : above * kept) -
                     lists_bytes(e, span->first + 1, span->top + 1) -
                     (own_kv(span) ? above * n * e->kv : 0) +
                     (rows > 0 ? rows - e->row_slots * e->kv : 0) + (far ? 0 : outputs));
}

/* Rooms for weights of embedding and head in chunk-major order: all the group that uses them. */
static uint64_t group_rooms(const struct tdm_estimator *e, const struct span *span)
{
    if (span->last)
        return e->base->model->tied ? e->head_room
                                    : e->head_room + (span->first == 0 ? e->embedding_room : 0);
    return span->first == 0 ? e->embedding_room : 0;
}

/* Moments of a group in chunk-major order: K, V of all layers up to it are there, dK, dV and gradients
 * of its own. */
static void chunk_major_moments(const struct tdm_estimator *e, const struct span *span,
                                const struct stored *stored, uint64_t rings, bool one_group,
                                struct tdm_estimate *estimate)
{
    uint64_t n = e->chunks, layers = span->top - span->first + 1;
    uint64_t held = (layers - 1) * e->x;
    for (uint32_t layer = span->first; layer <= span->top; layer++) {
        struct span own = span_of_layer(e, span, TDM_CHUNK_MAJOR, layer);
        if (runs_again(&own, TDM_CHUNK_MAJOR, layer) && own.held < own.kept)
            held += set_bytes(e, span->group->held);
        else if (runs_again(&own, TDM_CHUNK_MAJOR, layer) && products_from(e, &own) < e->chunks)
            held += e->gate_up;
    }
    bool any = false;
    for (uint32_t layer = span->first; layer <= span->top; layer++)
        any = any || (far_kv(span) && gathers(e, layer));
    uint64_t kv = stored->kv[TDM_DEVICE] + (any ? e->gather_work : 0);
    uint64_t dkv = on_host(span->group->kv_gradients_place) ? 0 : layers * n * e->dkv;
    uint64_t group =
        e->resident_bytes[TDM_DEVICE] + rings + state_rings(e) + e->tied_gradient +
        (one_group ? 1 : n) * e->x + (span->last ? e->head_gradient : e->head_stays[TDM_DEVICE]) +
        group_rooms(e, span) + kv + dkv + layer_gradients(e, span->first, span->top) + held +
        stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE] + (span->last ? means_bytes(e) : 0);
    raise_to(&estimate->body_bytes, group + backward_work(e, span, TDM_CHUNK_MAJOR, span->top));
    if (one_group)
        raise_to(&estimate->body_bytes,
                 group + beside_embedding_gradient(e, backward_work(e, span, TDM_CHUNK_MAJOR, 0)));
    if (span->last)
        raise_to(&estimate->head_bytes, group + e->work_head);
    raise_to(&estimate->bytes[TDM_HOST], stored->kept[TDM_HOST] + stored->inputs[TDM_HOST] +
                                             stored->kv[TDM_HOST] +
                                             (span->last ? 0 : e->head_stays[TDM_HOST]) +
                                             host_gradients(e, span->top) + host_ring(e));
}

/* The end of the forward, and in layer-major order the head after it. */
static void forward_moments(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                            const struct stored *stored, uint64_t forward_rings,
                            uint64_t backward_rings, struct tdm_estimate *estimate)
{
    uint64_t n = e->chunks;
    uint64_t all =
        e->resident_bytes[TDM_DEVICE] + stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE];
    if (schedule->order == TDM_CHUNK_MAJOR) {
        /* the last layer makes its K and V only, which takes little workspace */
        raise_to(&estimate->body_bytes,
                 all + forward_rings + stored->kv[TDM_DEVICE] + means_bytes(e));
        return;
    }
    /* where the last layer keeps all, attention writes to where it is kept */
    const struct tdm_group *last = &schedule->groups[schedule->group_count - 1];
    bool keeps = last->kept >= TDM_SET_ATTENTION_OUTPUT && last->kept_from_chunk == 0;
    uint64_t work = e->work_forward - (keeps ? set_bytes(e, last->kept) : 0);
    bool own_kv = last->kv == TDM_KV_KEEP && !on_host(last->kv_place);
    raise_to(&estimate->body_bytes, all + forward_rings + means_bytes(e) + n * e->x +
                                        (own_kv ? 0 : e->row_slots * e->kv) + work);
    raise_to(&estimate->head_bytes, all + backward_rings + n * e->x + e->tied_gradient +
                                        e->head_gradient + e->work_head + e->head_room);
}

/* Updates of head and embedding in the backward, which have rooms for what comes from the host. `stored`: what
 * there still is when the head is updated. */
static void update_moments(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                           const struct stored *stored, uint64_t rings,
                           struct tdm_estimate *estimate)
{
    uint64_t slots = tdm_nest_embeds_apart(schedule) ? e->chunks : 1;
    uint64_t all = e->resident_bytes[TDM_DEVICE] + rings + e->tied_gradient;
    uint64_t kept = stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE] + stored->kv[TDM_DEVICE];
    uint64_t staying = e->staying_below[TDM_DEVICE][e->layers] + e->head_stays[TDM_DEVICE];
    raise_to(&estimate->body_bytes, all + staying + e->embedding_gradient + slots * e->x);
    if (tdm_updates_at_end(e->base) || schedule->optimizer.kind == TDM_OPTIMIZER_NONE)
        return;
    /* updated on the host its weights are not there any more */
    uint32_t embedding = tdm_model_embedding_unit(e->base->model);
    uint64_t room = tdm_updates_on_host(e->base, embedding) ? 0 : e->embedding_room;
    raise_to(&estimate->body_bytes, all + e->embedding_gradient + room + e->embedding_update);
    if (schedule->order == TDM_CHUNK_MAJOR) /* layers went backward before */
        all += state_rings(e);
    raise_to(&estimate->body_bytes,
             all + slots * e->x + e->head_gradient + e->head_room + e->head_update + kept);
    raise_to(&estimate->bytes[TDM_HOST], e->host_ring + e->host_embedding);
    raise_to(&estimate->bytes[TDM_HOST], e->host_ring + e->host_head + stored->kept[TDM_HOST] +
                                             stored->inputs[TDM_HOST] + stored->kv[TDM_HOST]);
}

/* Updates after the backward begin with all gradients there. */
static void end_moments(const struct tdm_estimator *e, struct tdm_estimate *estimate)
{
    uint64_t gradients[TDM_PLACES];
    if (!tdm_updates_at_end(e->base))
        return;
    for (int place = 0; place < TDM_PLACES; place++)
        gradients[place] =
            e->staying_below[place][e->layers] + e->head_stays[place] + e->embedding_stays[place];
    uint64_t weights = e->base->optimizer.on == TDM_HOST ? 0 : e->weight_ring;
    raise_to(&estimate->body_bytes,
             e->resident_bytes[TDM_DEVICE] + weights + e->state_rings + gradients[TDM_DEVICE]);
    raise_to(&estimate->bytes[TDM_HOST], gradients[TDM_HOST] + e->host_ring + e->host_head);
    raise_to(&estimate->bytes[TDM_HOST], e->host_ring + e->host_embedding);
}

/* Is a group like the one below it, in all that its seconds depend on? Most groups of most schedules are. */
static bool is_like_below(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          uint32_t number, uint32_t first)
{
    const struct tdm_group *group = &schedule->groups[number];
    if (number == 0 || number + 1 == schedule->group_count ||
        memcmp(group, group - 1, sizeof(*group)) != 0 || group[1].input_place != group->input_place)
        return false;
    for (uint32_t layer = first; layer < first + group->layers; layer++)
        if (e->row_of[layer] != e->row_of[layer - group->layers] ||
            e->kind_of[layer] != e->kind_of[layer - group->layers])
            return false;
    return true;
}

void tdm_estimate(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                  struct tdm_estimate *out)
{
    if (schedule->pass == TDM_EVALUATE) {
        tdm_estimate_evaluate(e, schedule, out);
        return;
    }
    struct tdm_estimate estimate = {0};
    struct phases phases = {0}, of_group = {0};
    struct stored stored = {0}, below = {0}; /* below the last group */
    uint64_t forward_rings, backward_rings;
    bool by_layer = schedule->order == TDM_LAYER_MAJOR;
    add_rings(e, schedule, &forward_rings, &backward_rings);
    uint32_t first = 0;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct span span = span_of(e, schedule, g, first);
        const struct tdm_group *group = span.group;
        below = stored;
        uint64_t keeping = span.last && !by_layer ? group->layers - 1 : group->layers;
        stored.kept[group->kept_place] +=
            keeping * (e->chunks - span.kept) * set_bytes(e, group->kept);
        stored.kept[TDM_DEVICE] += lists_bytes(e, first, first + keeping);
        if (group->kv == TDM_KV_KEEP)
            *(by_layer ? &stored.kept[group->kv_place] : &stored.kv[group->kv_place]) +=
                group->layers * e->chunks * e->kv;
        if (g > 0)
            stored.inputs[group->input_place] += e->chunks * e->x;
        if (is_like_below(e, schedule, g, first)) {
            memcpy(&e->sweeps[first], &e->sweeps[first - group->layers],
                   group->layers * sizeof(*e->sweeps));
        } else {
            of_group = (struct phases){0};
            (by_layer ? layer_major_seconds : chunk_major_seconds)(e, &span, &of_group);
        }
        add_phase(&phases.forward, &of_group.forward);
        add_phase(&phases.backward, &of_group.backward);
        if (by_layer) {
            layer_major_moments(e, &span, &stored, backward_rings, &estimate);
        } else {
            chunk_major_moments(e, &span, &stored, backward_rings, schedule->group_count == 1,
                                &estimate);
        }
        first += group->layers;
    }
    phases.forward.seconds += e->lead_seconds;
    phases.backward.seconds +=
        e->head_seconds + e->optimizer_seconds + e->tail_seconds[schedule->order];
    phases.backward.seconds = later(phases.backward.seconds, e->host_seconds);
    add_state(e, schedule, &phases);
    wait_for_copies(e, &phases.forward, spare_seconds(e));
    wait_for_copies(e, &phases.backward, spare_seconds(e));
    estimate.seconds = phases.forward.seconds + phases.backward.seconds;
    estimate.likely_seconds = later(estimate.seconds, tdm_estimate_waiting(e));
    estimate.copy_seconds = phases.forward.fetch + phases.forward.send + phases.backward.fetch +
                            phases.backward.send + EXPOSED * phases.backward.prefixes;
    forward_moments(e, schedule, &stored, forward_rings, backward_rings, &estimate);
    update_moments(e, schedule, by_layer ? &stored : &below, backward_rings, &estimate);
    end_moments(e, &estimate);

    const struct tdm_machine *machine = schedule->machine;
    estimate.bytes[TDM_HOST] += e->resident_bytes[TDM_HOST];
    for (int place = 0; place < TDM_PLACES; place++)
        estimate.bytes[place] += machine->runtime_bytes[place];
    estimate.body_bytes += machine->runtime_bytes[TDM_DEVICE];
    estimate.head_bytes += machine->runtime_bytes[TDM_DEVICE];
    estimate.bytes[TDM_DEVICE] =
        larger(estimate.body_bytes,
               estimate.head_bytes + tdm_estimate_logits(e, schedule->head_tile_tokens));
    *out = estimate;
}

uint64_t tdm_estimate_tile(const struct tdm_estimator *e, struct tdm_schedule *schedule,
                           uint64_t tile_tokens, bool fixed, struct tdm_estimate *estimate)
{
    schedule->head_tile_tokens = tile_tokens;
    tdm_estimate(e, schedule, estimate);
    if (fixed)
        return tile_tokens;
    while (tile_tokens >= 2 * TDM_LEAST_TILE &&
           estimate->head_bytes + tdm_estimate_logits(e, tile_tokens) > estimate->body_bytes)
        tile_tokens = (tile_tokens + 1) / 2;
    estimate->bytes[TDM_DEVICE] =
        larger(estimate->head_bytes + tdm_estimate_logits(e, tile_tokens), estimate->body_bytes);
    schedule->head_tile_tokens = tile_tokens;
    return tile_tokens;
}
