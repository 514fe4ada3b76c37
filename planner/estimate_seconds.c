/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seconds of an estimate: numbers of bodies times their costs, and the copies of these bodies.
 *
 * For every group (in layer-major order for every sweep) it adds up the computing of each phase,
 * and the minimum seconds of copies in either direction of the link. A phase takes as long as the
 * longest of them.
 */
#include "planner/estimate_span.h"

#include "schedule/nest.h"

#include <math.h>
#include <string.h>

/* Factor by which copies of prefixes make the compute lane wait more than other copies. */
#define EXPOSED 100

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

double tdm_estimator_richer_seconds(const struct tdm_estimator *e)
{
    double seconds = 0;
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        const struct layer_cost *all = &costs_of(e, layer)[e->chunks];
        seconds += all->backward[TDM_SEARCHED_SET] - all->backward[TDM_SETS - 1];
    }
    return seconds;
}

/* Seconds of a sweep's copies on a link. `least` leaves out the copies that fit into staging before
 * the sweep begins, and the last chunks of sequences, which may be short. */
struct link {
    double all, least;
};

static struct link both(struct link a, struct link b)
{
    return (struct link){a.all + b.all, a.least + b.least};
}

static const struct link no_link;

/* Seconds to copy chunks [from, to), if a full one has `bytes`. */
static struct link link_seconds(const struct tdm_estimator *e, enum tdm_link_number way,
                                uint32_t from, uint32_t to, uint64_t bytes)
{
    const struct tdm_machine *machine = e->base->machine;
    uint64_t ahead =
        larger(e->base->prefetch + 1, e->base->rings.stashed) + e->base->sequence_count;
    double seconds = (double)bytes / tdm_machine_link_rate(machine, way);
    uint32_t chunks = to > from ? to - from : 0;
    struct link link = no_link;
    if (chunks > 0)
        link.all = chunks * machine->copy_seconds +
                   (e->tokens_before[to] - e->tokens_before[from]) * seconds;
    if (chunks > ahead)
        link.least = (double)(chunks - ahead) * (machine->copy_seconds + seconds);
    return link;
}

/* The chunks, from the first one on, whose stored input is on the host, where a layer's backward
 * reads it. */
static uint32_t far_inputs(const struct tdm_estimator *e, const struct span *span, uint32_t layer)
{
    if (layer != span->first)
        return span->near;
    return layer > 0 && tdm_is_far(span->group->input_place) ? e->chunks : 0;
}

/* Seconds to fetch these. */
static struct link fetch_input(const struct tdm_estimator *e, const struct span *span,
                               uint32_t layer)
{
    return link_seconds(e, TDM_LINK_H2D, 0, far_inputs(e, span, layer), e->x);
}

/* Seconds to copy what is kept on the host: all of it, or only what a rerun reads. */
static struct link copy_kept(const struct tdm_estimator *e, const struct span *span,
                             enum tdm_link_number way, bool all)
{
    enum tdm_set kept = span->group->kept;
    uint64_t bytes = 0;
    for (int i = 0; i < TDM_STORES; i++) {
        enum tdm_store store = (enum tdm_store)i;
        bool read = all || tdm_store_type(store)->needed_without == store;
        bytes += read && tdm_set_has(kept, store) ? e->store[store] : 0;
    }
    if (!tdm_is_far(span->group->kept_place) || bytes == 0)
        return no_link;
    return link_seconds(e, way, span->kept, e->chunks, bytes);
}

/* The same for what is held on the host, without inputs. */
static struct link copy_held(const struct tdm_estimator *e, const struct span *span,
                             enum tdm_link_number way)
{
    return both(
        link_seconds(e, way, span->held, (uint32_t)smaller(span->kept, span->near),
                     set_bytes(e, span->group->held)),
        link_seconds(e, way, products_from(e, span), span->near, e->store[TDM_STORE_GATE_UP]));
}

/* Seconds of the backward of a layer's chunks. Chunks [held, kept) have the held set. Chunks from
 * `kept` on have the kept set, and also gate and up where these are held. */
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
    /* gate and up can be held for chunks whose attention output is kept */
    if (again)
        seconds -= sums[n].gate_up - sums[products_from(e, span)].gate_up;
    return seconds + e->attention_grad_seconds[e->kind_of[layer]] +
           sum_attention(e, layer, 0, held);
}

/* Seconds of a phase, and of its copies to the device and to the host. */
struct phase {
    double seconds, fetch, send;
    /* part of these copies: needed immediately by a chunk, so that little of it is hidden */
    double prefixes;
};

struct phases {
    struct phase forward, backward;
};

/* Adds a sweep. Its staging holds only a few chunks, so it takes as long as its computing or its
 * copies, whichever is longer. */
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

/* Layer-major order: sweeps follow each other. */
static void layer_major_seconds(const struct tdm_estimator *e, const struct span *span,
                                struct phases *all_layers)
{
    const struct tdm_group *group = span->group;
    uint32_t n = e->chunks;
    struct phases of_layer = {0}, *phases = &of_layer;
    for (uint32_t layer = span->first; layer <= span->top; layer++) {
        struct layer_sweeps *sweeps = &e->sweeps[layer];
        /* inner layers are alike, except the lowest, whose input is that of the group */
        if (layer > span->first + 1 && layer < span->top &&
            e->kv_ahead[layer] == e->kv_ahead[layer - 1] &&
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
        const struct layer_cost *before = &costs_of(e, layer)[span->kept]; /* of chunks not kept */
        double forward = forward_of(all);
        struct link send = copy_kept(e, span, TDM_LINK_D2H, true);
        bool far = far_kv(span), again = layer < span->top;
        if (far)
            send = both(send, link_seconds(e, TDM_LINK_D2H, 0, n, e->kv));
        if (layer == span->top && !span->last && tdm_is_far(group[1].input_place))
            send = both(send, link_seconds(e, TDM_LINK_D2H, 0, n, e->x));
        const struct row_moves *moves = &e->moves[e->kind_of[layer]];
        bool holds_kv = again && !keeps_kv(span) && tdm_set_has(group->held, TDM_STORE_KV);
        bool passes = !own_kv(span); /* K and V use the current layer's row */
        double moved = passes ? moves->rising : 0;
        sweeps->forward = add_sweep(&phases->forward,
                                    forward + sum_attention(e, layer, 0, n) + moved, no_link, send);

        struct link fetch = fetch_input(e, span, layer);
        struct link row = far ? link_seconds(e, TDM_LINK_H2D, 0, n, e->kv) : no_link;
        if (again) {
            double compute =
                forward - (all->q - before->q) + sum_attention(e, layer, 0, span->kept);
            if (!holds_kv)
                compute -= all->norm - before->norm + all->kv - (keeps_kv(span) ? 0 : before->kv);
            if (tdm_set_has(group->kept, TDM_STORE_GATE_UP))
                compute -= all->mlp_norm - before->mlp_norm + all->gate_up - before->gate_up;
            if (span->kept == n && !holds_kv)
                compute += moved;
            send = copy_held(e, span, TDM_LINK_D2H);
            send = both(send, link_seconds(e, TDM_LINK_D2H, 0, span->near, e->x));
            sweeps->again = add_sweep(&phases->backward, compute,
                                      both(fetch, copy_kept(e, span, TDM_LINK_H2D, false)), send);
            if (far) {
                struct link early = link_seconds(e, TDM_LINK_H2D, 0, span->kept, e->kv);
                phases->backward.fetch += early.least;
                sweeps->again.fetch += early.all;
            }
        }
        struct link stored = both(fetch, copy_kept(e, span, TDM_LINK_H2D, true));
        double made = all->embed + all->norm + all->kv, beside = moves->gradients;
        beside += passes && !holds_kv ? moves->falling : 0;
        if (far) { /* into a row that the layer above frees chunk by chunk */
            phases->backward.fetch += row.least;
        } else if (e->kv_ahead[layer]) { /* the same, between the backwards of its chunks */
            beside += made;
            row = fetch;
            phases->backward.fetch += row.least;
        } else if (passes && !holds_kv && moves->apart) {
            sweeps->kv = add_sweep(&phases->backward, made, fetch, no_link);
        } else if (passes && !holds_kv) { /* between the backwards of chunks */
            beside += made;
            stored = both(stored, fetch);
        }
        if (again)
            stored = both(stored, copy_held(e, span, TDM_LINK_H2D));
        sweeps->backward = add_sweep(
            &phases->backward, backward_seconds(e, span, layer, again) + beside, stored, no_link);
        sweeps->backward.fetch += row.all;
        add_phase(&all_layers->forward, &of_layer.forward);
        add_phase(&all_layers->backward, &of_layer.backward);
    }
}

/* Seconds that gathering adds to attention in a forward; gather_backward_seconds(): in a backward,
 * where attention of some chunks runs again. */
static double gather_seconds(const struct tdm_estimator *e, uint32_t layer, uint32_t chunks)
{
    return (double)gathered_before(e, layer, chunks)->kv /
           tdm_machine_link_rate(e->base->machine, TDM_LINK_H2D);
}

static double gather_backward_seconds(const struct tdm_estimator *e, const struct span *span,
                                      uint32_t layer, bool again)
{
    const struct tdm_machine *machine = e->base->machine;
    double sums = (double)gathered_before(e, layer, e->chunks)->sums;
    double seconds = gather_seconds(e, layer, e->chunks) +
                     gather_seconds(e, layer, again ? span->held : span->kept);
    if (again)
        seconds += gather_seconds(e, layer, span->kept);
    if (tdm_is_far(span->group->kv_gradients_place))
        seconds += sums / tdm_machine_link_rate(machine, TDM_LINK_H2D) +
                   sums / tdm_machine_link_rate(machine, TDM_LINK_D2H);
    return seconds;
}

/* Seconds to copy the prefixes of K and V, or their gradients, of all chunks of a layer. `own`:
 * with the chunk itself. */
static double prefix_seconds(const struct tdm_estimator *e, enum tdm_link_number way,
                             uint32_t layer, uint64_t bytes, bool own)
{
    if (gathers(e, layer))
        return 0;
    double chunks = (double)e->seen_chunks[e->kind_of[layer]] - (own ? 0 : e->chunks);
    return chunks * (double)bytes / tdm_machine_link_rate(e->base->machine, way);
}

/* Chunk-major order: the computing and the copies of a group. */
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
        sent = both(sent, copy_kept(e, &span, TDM_LINK_D2H, true));
        if (layer == span.top && !span.last && tdm_is_far(span.group[1].input_place))
            sent = both(sent, link_seconds(e, TDM_LINK_D2H, 0, n, e->x));
        if (again)
            backward += all->embed + before->norm + before->q + all->rest +
                        sum_attention(e, layer, 0, span.kept);
        if (again && tdm_set_has(span.group->kept, TDM_STORE_GATE_UP))
            backward -= all->mlp_norm - before->mlp_norm + all->gate_up - before->gate_up;
        backward += backward_seconds(e, &span, layer, again);
        struct link stored = copy_kept(e, &span, TDM_LINK_H2D, true);
        if (layer == span.first)
            stored = both(stored, fetch_input(e, &span, layer));
        if (again && layer == span.first)
            stored = both(stored, fetch_input(e, &span, layer));
        if (again)
            stored = both(stored, copy_kept(e, &span, TDM_LINK_H2D, false));
        fetch = both(fetch, stored);
        if (far && gathers(e, layer)) {
            forward += only_kv ? 0 : gather_seconds(e, layer, n);
            backward += gather_backward_seconds(e, &span, layer, again);
        }
        if (far) {
            sent = both(sent, link_seconds(e, TDM_LINK_D2H, 0, n, e->kv));
            early_prefixes += only_kv ? 0 : prefix_seconds(e, TDM_LINK_H2D, layer, e->kv, false);
            prefixes += prefix_seconds(e, TDM_LINK_H2D, layer, e->kv, true);
        }
        if (tdm_is_far(span.group->kv_gradients_place))
            sums += prefix_seconds(e, TDM_LINK_D2H, layer, e->dkv, false);
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

/* Layers of a group with weights at home on the host. */
static uint32_t far_layers(const struct tdm_estimator *e, const struct span *span)
{
    const struct tdm_home *home = &e->base->homes[TDM_STATE_WEIGHTS];
    return tdm_home_far_below(home, e->layers, span->top + 1) -
           tdm_home_far_below(home, e->layers, span->first);
}

/* Minimum fetches of layers' weights in each phase: visits of layers that are not in the ring. */
static void weight_visits(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          double *in_forward, double *in_backward)
{
    uint32_t first = 0, ring = e->base->rings.weights;
    bool by_layer = schedule->order == TDM_LAYER_MAJOR;
    *in_forward = *in_backward = 0;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct span span = span_of(e, schedule, g, first);
        double far = far_layers(e, &span);
        bool passes = !by_layer && far > ring; /* fetched again for every chunk */
        *in_forward += passes ? e->chunks * (far - ring) : far;
        *in_backward += passes ? e->chunks * 2 * (far - ring) : far;
        *in_backward += by_layer && far > 0 ? far - 1 : 0; /* for the rerun */
        first += schedule->groups[g].layers;
    }
    /* some are still in the ring, or were fetched ahead */
    *in_backward = later(*in_backward - ring, 0);
}

/* Makes a phase no shorter than its copies in one direction, or in both at their combined rate,
 * less `spare` seconds of copies that run before or after the phase. */
static void wait_for_copies(const struct tdm_estimator *e, struct phase *phase, double spare)
{
    const struct tdm_machine *machine = e->base->machine;
    double both = (phase->fetch * tdm_machine_link_rate(machine, TDM_LINK_H2D) +
                   phase->send * tdm_machine_link_rate(machine, TDM_LINK_D2H)) /
                  tdm_machine_both_ways_rate(machine);
    phase->seconds = later(phase->seconds, later(phase->fetch, later(phase->send, both)) - spare);
}

/* Adds copies of state at home on the host. */
static void add_state(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                      struct phases *phases)
{
    const struct tdm_machine *machine = e->base->machine;
    const uint32_t last[] = {tdm_model_embedding_unit(e->base->model),
                             tdm_model_head_unit(e->base->model)};
    bool updates = e->base->optimizer.kind != TDM_OPTIMIZER_NONE;
    double forward, backward, fetched, sent = 0;
    double weights = (double)tdm_estimator_unit_bytes(e, TDM_STATE_WEIGHTS, 0);
    weight_visits(e, schedule, &forward, &backward);
    fetched = backward * weights;
    /* all layers at home on the host are updated at one place */
    const struct tdm_home *home = &e->base->homes[TDM_STATE_WEIGHTS];
    const uint32_t far = e->layers - home->device_layers;
    if (updates && far > 0)
        sent += far * (double)tdm_estimator_sent_bytes(e, TDM_STATE_WEIGHTS,
                                                       tdm_home_layer(home, e->layers, e->far, 0));
    for (int s = 0; s <= TDM_STATE_MOMENTS && updates; s++) {
        enum tdm_state state = (enum tdm_state)s;
        const bool comes = state != TDM_STATE_WEIGHTS;
        const double layers = comes ? tdm_estimator_passing_layers(e, state) : 0;
        double bytes = layers * (double)tdm_estimator_unit_bytes(e, state, 0);
        sent += bytes;
        for (int i = 0; i < 2; i++)
            if (tdm_is_far(tdm_schedule_home(e->base, state, last[i]))) {
                if (comes && tdm_estimator_comes(e, state, last[i]))
                    bytes += (double)tdm_estimator_unit_bytes(e, state, last[i]);
                sent += (double)tdm_estimator_sent_bytes(e, state, last[i]);
            }
        fetched += bytes;
    }
    phases->forward.fetch += forward * weights / tdm_machine_link_rate(machine, TDM_LINK_H2D);
    phases->backward.fetch += fetched / tdm_machine_link_rate(machine, TDM_LINK_H2D);
    phases->backward.send += sent / tdm_machine_link_rate(machine, TDM_LINK_D2H);
}

/* Seconds of copies that rings and a layer's sweep can leave to the next phase, or begin in the
 * previous one. */
static double spare_seconds(const struct tdm_estimator *e, const struct tdm_schedule *schedule)
{
    uint64_t stored = set_bytes(e, TDM_SEARCHED_SET);
    for (uint32_t g = 0; g < schedule->group_count; g++)
        stored = larger(stored, set_bytes(e, schedule->groups[g].kept));
    uint64_t slots = larger(e->base->prefetch + 1, e->base->rings.stashed) + 1;
    uint64_t bytes =
        slots * (e->x + stored + e->kv + e->dkv) + e->chunks * (e->x + e->kv * e->base->rings.kv);
    return (double)bytes / tdm_machine_link_rate(e->base->machine, TDM_LINK_D2H);
}

/* Is a group like the one below it in everything that its seconds depend on? Most groups are. */
static bool is_like_below(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          uint32_t number, uint32_t first)
{
    const struct tdm_group *group = &schedule->groups[number];
    if (number == 0 || number + 1 == schedule->group_count ||
        memcmp(group, group - 1, sizeof(*group)) != 0 || group[1].input_place != group->input_place)
        return false;
    for (uint32_t layer = first; layer < first + group->layers; layer++)
        if (e->kv_ahead[layer] != e->kv_ahead[layer - group->layers] ||
            e->row_of[layer] != e->row_of[layer - group->layers] ||
            e->kind_of[layer] != e->kind_of[layer - group->layers])
            return false;
    return true;
}

double tdm_estimate_group(const struct tdm_estimator *e, const struct tdm_group *groups,
                          uint32_t first)
{
    struct phases phases = {0};
    const struct span span = span_of_group(e, groups, first, first + groups->layers == e->layers);
    memset(e->kv_ahead + first, 0, groups->layers * sizeof(*e->kv_ahead));
    layer_major_seconds(e, &span, &phases);
    return phases.forward.seconds + phases.backward.seconds;
}

void tdm_estimate_seconds(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          struct tdm_estimate *estimate)
{
    struct phases phases = {0}, of_group = {0};
    uint32_t first = 0;
    tdm_nest_any_kv_ahead(schedule, schedule->order == TDM_LAYER_MAJOR && e->row_slots == e->chunks,
                          e->kv_ahead);
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        const struct tdm_group *group = &schedule->groups[g];
        if (is_like_below(e, schedule, g, first)) {
            memcpy(&e->sweeps[first], &e->sweeps[first - group->layers],
                   group->layers * sizeof(*e->sweeps));
        } else {
            struct span span = span_of(e, schedule, g, first);
            of_group = (struct phases){0};
            (schedule->order == TDM_LAYER_MAJOR ? layer_major_seconds
                                                : chunk_major_seconds)(e, &span, &of_group);
        }
        add_phase(&phases.forward, &of_group.forward);
        add_phase(&phases.backward, &of_group.backward);
        first += group->layers;
    }
    phases.forward.seconds += e->lead_seconds;
    phases.backward.seconds +=
        e->head_seconds + e->updates.optimizer_seconds + e->updates.tail_seconds[schedule->order];
    phases.backward.seconds = later(phases.backward.seconds, e->updates.host_seconds);
    add_state(e, schedule, &phases);
    double spare = spare_seconds(e, schedule);
    wait_for_copies(e, &phases.forward, spare);
    wait_for_copies(e, &phases.backward, spare);
    estimate->seconds = phases.forward.seconds + phases.backward.seconds;
    estimate->copy_seconds = phases.forward.fetch + phases.forward.send + phases.backward.fetch +
                             phases.backward.send + EXPOSED * phases.backward.prefixes;
}
