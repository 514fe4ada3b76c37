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
#include "planner/estimate_lanes_parts.h"

#include "schedule/optimizer.h"
#include "schedule/slices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

#define MOST_BODIES 6000u
#define OVERHEAD 16u /* bodies besides those of layers and chunks */

void tdm_lanes_free(struct tdm_lanes *m)
{
    if (m == NULL)
        return;
    free(m->bodies);
    free(m->group_layers);
    free(m->listed_ahead);
    free(m->streaming);
    tdm_streams_free(&m->streams);
    free(m->slices);
    free(m->passing_slices);
    free(m->first_slice);
    free(m->slice_shares);
    free(m->shares);
    free(m->stored);
    free(m->prepared);
    free(m->x_sent);
    free(m->stored_sent);
    free(m->stream_free);
    free(m->slots);
    free(m->gradient_made);
    free(m->gradient_begun);
    free(m->kv_sent);
    free(m->far_rows);
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        free(m->far[state]);
    free(m->spans);
    free(m->of_layers);
    free(m->times);
    free(m->costs);
    free(m->attention);
    free(m->of_chunks);
    free(m->rest);
    free(m);
}

/* The share of its unit that each slice is. */
static void share_slices(const struct tdm_schedule *schedule, struct tdm_lanes *m)
{
    const struct tdm_model *model = schedule->model;
    uint32_t count = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        m->first_slice[unit] = count;
        for (uint32_t slice = 0; slice < m->slices[unit]; slice++)
            m->slice_shares[count++] = unit < model->layers
                                           ? 1
                                           : (double)tdm_slice_at(schedule, unit, slice).elements /
                                                 (double)model->units[unit].elements;
    }
}

struct tdm_lanes *tdm_lanes_new(const struct tdm_schedule *schedule, uint32_t chunks)
{
    const struct tdm_model *model = schedule->model;
    struct tdm_lanes *m = calloc(1, sizeof(*m));
    const uint32_t layers = model->layers, units = model->unit_count;
    size_t updates = 0;
    /* of a layer: three sweeps and their markers; of a chunk: head and embedding */
    const uint64_t bodies =
        (uint64_t)layers * (4 * (uint64_t)chunks + 10) + 2 * (uint64_t)chunks + OVERHEAD;
    if (m == NULL || (uint64_t)layers * chunks * 3 > MOST_BODIES)
        return m;
    const size_t all = (size_t)layers * chunks;
    bool ok = (m->bodies = calloc(bodies, sizeof(*m->bodies))) != NULL;
    ok &= (m->group_layers = calloc(layers, sizeof(*m->group_layers))) != NULL;
    ok &= (m->listed_ahead = calloc(layers, sizeof(*m->listed_ahead))) != NULL;
    ok &= (m->streaming = calloc(bodies, sizeof(*m->streaming))) != NULL;
    ok &= (m->slices = calloc(units, sizeof(*m->slices))) != NULL;
    ok &= (m->passing_slices = calloc(units, sizeof(*m->passing_slices))) != NULL;
    for (uint32_t unit = 0; unit < units && ok; unit++)
        updates += m->slices[unit] = tdm_slice_count(schedule, unit);
    /* all that they can hold: an estimate asks for no memory */
    ok &= (m->streams.visits.units = calloc(bodies, sizeof(uint32_t))) != NULL;
    ok &= (m->streams.updates.units = calloc(updates + 1, sizeof(uint32_t))) != NULL;
    m->streams.visits.capacity = (uint32_t)bodies;
    m->streams.updates.capacity = (uint32_t)updates + 1;
    ok &= (m->shares = calloc(updates, sizeof(*m->shares))) != NULL;
    ok &= (m->first_slice = calloc(units, sizeof(*m->first_slice))) != NULL;
    ok &= (m->slice_shares = calloc(updates, sizeof(*m->slice_shares))) != NULL;
    ok &= (m->stored = calloc(all, sizeof(*m->stored))) != NULL;
    ok &= (m->prepared = calloc(layers, sizeof(*m->prepared))) != NULL;
    ok &= (m->x_sent = calloc(all + chunks, sizeof(double))) != NULL;
    ok &= (m->stored_sent = calloc(all, sizeof(double))) != NULL;
    ok &= (m->stream_free = calloc(chunks, sizeof(double))) != NULL;
    ok &= (m->slots = calloc((size_t)RINGS * (chunks + 1), sizeof(double))) != NULL;
    ok &= (m->gradient_made = calloc(layers, sizeof(double))) != NULL;
    ok &= (m->gradient_begun = calloc(layers, sizeof(double))) != NULL;
    ok &= (m->kv_sent = calloc(layers, sizeof(double))) != NULL;
    ok &= (m->far_rows = calloc(layers, sizeof(*m->far_rows))) != NULL;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        ok &= (m->far[state] = calloc((size_t)units + 1, sizeof(bool))) != NULL;
    ok &= (m->spans = calloc(layers, sizeof(*m->spans))) != NULL;
    ok &= (m->of_layers = calloc(layers, sizeof(*m->of_layers))) != NULL;
    ok &= (m->times = calloc(layers, sizeof(*m->times))) != NULL;
    ok &= (m->costs = calloc(all, sizeof(*m->costs))) != NULL;
    ok &= (m->attention = calloc(all, sizeof(double))) != NULL;
    ok &= (m->of_chunks = calloc(chunks, sizeof(*m->of_chunks))) != NULL;
    ok &= (m->rest = calloc(layers, sizeof(*m->rest))) != NULL;
    if (!ok) {
        tdm_lanes_free(m);
        return NULL;
    }
    share_slices(schedule, m);
    m->most_bodies = (uint32_t)bodies;
    return m;
}

/* ---- preparation ---- */

static void find_homes(struct tdm_lanes *m, const struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    for (int s = 0; s <= TDM_STATE_MOMENTS; s++)
        for (uint32_t unit = 0; unit < base->model->unit_count; unit++)
            m->far[s][unit] = tdm_estimator_unit_bytes(e, (enum tdm_state)s, unit) > 0 &&
                              tdm_estimator_comes(e, (enum tdm_state)s, unit) &&
                              tdm_is_far(tdm_schedule_home(base, (enum tdm_state)s, unit));
    m->layers_pass = false;
    m->master = tdm_is_far(base->optimizer.on) ? CONTENTS - 1 : 0;
    for (uint32_t i = 0; i < CONTENTS; i++) {
        const bool *far = m->far[i == m->master ? TDM_STATE_MASTER : TDM_STATE_MOMENTS];
        m->passes[i] = 0;
        for (uint32_t unit = 0; unit < base->model->unit_count; unit++) {
            m->passes[i] += far[unit] ? m->slices[unit] : 0;
            m->layers_pass |= unit < e->layers && far[unit];
        }
    }
    memcpy(m->homes, base->homes, sizeof(m->homes));
    m->has_homes = true;
    m->has_streams = false;
}

static void find_stored(struct lane_clocks *c, const struct span *span, uint32_t layer)
{
    const struct tdm_group *group = span->group;
    const bool keeps = c->by_layer || layer + 1 < c->layers;
    const bool holds = layer < span->top || (!c->by_layer && span->last);
    const uint8_t kept = (uint8_t)(keeps ? bits_of(group->kept) : 0);
    const uint8_t held = (uint8_t)(holds ? bits_of(group->held) : 0);
    for (uint32_t i = 0; i < c->n; i++) {
        struct lane_stored *stored = &c->m->stored[(size_t)layer * c->n + i];
        const uint32_t place = c->e->chunk_list[i].place;
        stored->kept = place >= group->kept_from_chunk ? kept : 0;
        stored->held = place >= group->held_from_chunk ? held : 0;
        /* beside a kept attention output only the products of the MLP are held */
        if (HAS(stored->kept, TDM_STORE_ATTENTION))
            stored->held &= (uint8_t)(1u << TDM_STORE_GATE_UP);
        stored->held &= (uint8_t)~stored->kept;
        stored->far = (uint8_t)((tdm_is_far(group->kept_place) ? stored->kept : 0) |
                                (place < span->near ? stored->held : 0));
    }
}

static void find_layer(struct lane_clocks *c, const struct span *span, uint32_t layer)
{
    const struct tdm_group *group = span->group;
    const bool first = layer == span->first, top = layer == span->top;
    const bool far_input = first ? layer > 0 && tdm_is_far(group->input_place) : span->near > 0;
    struct lane_layer *of_layer = &c->m->of_layers[layer];
    *of_layer = (struct lane_layer){.keeps_kv = keeps_kv(span), .far_kv = far_kv(span)};
    of_layer->holds_kv =
        c->by_layer && !top && !keeps_kv(span) && tdm_set_has(group->held, TDM_STORE_KV);
    of_layer->far_input[INPUT_OF_FIRST] = far_input && !c->by_layer && first;
    of_layer->far_input[INPUT_OF_LATER] = far_input;
    of_layer->far_input[INPUT_OF_KV] = far_input && !keeps_kv(span) && !of_layer->holds_kv;
    of_layer->near_input = first ? c->n : span->near;
    of_layer->into_row = c->by_layer;
    if (layer + 1 == c->layers)
        return;
    /* as the input of the layer above */
    of_layer->into_row &= !top || tdm_is_far(group[1].input_place);
    of_layer->sends[0] = top && tdm_is_far(group[1].input_place);
    of_layer->sends[1] = !top && span->near > 0;
    of_layer->near_output = span->near;
}

/* Finds what the layers of a group do, unless that is known: most groups stay as they were. */
static void find_group(struct lane_clocks *c, const struct span *span)
{
    struct lane_group *prepared = &c->m->prepared[span->first];
    const enum tdm_place above = span->last ? TDM_DEVICE : span->group[1].input_place;
    if (memcmp(&prepared->group, span->group, sizeof(*span->group)) == 0 &&
        prepared->order == c->schedule->order && prepared->above == above &&
        prepared->last == span->last)
        return;
    for (uint32_t layer = span->first; layer <= span->top; layer++) {
        c->m->prepared[layer].group.layers = 0;
        find_layer(c, span, layer);
        find_stored(c, span, layer);
    }
    *prepared = (struct lane_group){*span->group, c->schedule->order, above, span->last};
}

static struct lane_copy copy_of(const struct lane_clocks *c, uint64_t slot_bytes, double share)
{
    const double bytes = (double)slot_bytes * share;
    return (struct lane_copy){c->copy_seconds + bytes * c->to_device,
                              c->copy_seconds + bytes * c->to_host};
}

/* Seconds of a chunk, from sums of the chunks before. */
static struct layer_cost cost_of_chunk(const struct layer_cost *before)
{
    struct layer_cost cost = {.embed = before[1].embed - before[0].embed,
                              .norm = before[1].norm - before[0].norm,
                              .q = before[1].q - before[0].q,
                              .kv = before[1].kv - before[0].kv,
                              .rest = before[1].rest - before[0].rest,
                              .mlp_norm = before[1].mlp_norm - before[0].mlp_norm,
                              .gate_up = before[1].gate_up - before[0].gate_up};
    for (int set = 0; set < TDM_SETS; set++)
        cost.backward[set] = before[1].backward[set] - before[0].backward[set];
    return cost;
}

/* What does not depend on the schedule. Layers with equal costs share a row. */
static void find_times(struct lane_clocks *c)
{
    const struct tdm_estimator *e = c->e;
    struct tdm_lanes *m = c->m;
    const size_t row = (size_t)e->chunks + 1;
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        const uint32_t kind = e->kind_of[layer];
        const struct layer_cost *cost_before = e->costs_before + e->row_of[layer] * row;
        const double *before = e->attention_before + kind * row;
        const double all = before[e->chunks];
        struct layer_cost *cost = m->costs + (size_t)e->row_of[layer] * e->chunks;
        double *attention = m->attention + (size_t)kind * e->chunks;
        for (uint32_t place = 0; place < e->chunks; place++) {
            cost[e->chunk_at[place]] = cost_of_chunk(cost_before + place);
            attention[e->chunk_at[place]] = before[place + 1] - before[place];
        }
        m->times[layer] = (struct lane_times){
            .cost = cost,
            .attention = attention,
            .attention_grad = all > 0 ? e->attention_grad_seconds[kind] / all : 0};
    }
    for (uint32_t place = 0; place < e->chunks; place++) {
        const double share = e->tokens_before[place + 1] - e->tokens_before[place];
        struct lane_chunk *of_chunk = &m->of_chunks[e->chunk_at[place]];
        of_chunk->x = copy_of(c, e->x, share);
        of_chunk->kv = copy_of(c, e->kv, share);
        for (int s = 0; s < TDM_STORES; s++)
            of_chunk->store[s] = copy_of(c, e->store[s], share);
    }
    m->read_again = 0;
    for (int s = 0; s < TDM_STORES; s++)
        m->read_again |=
            (uint8_t)((int)tdm_store_type((enum tdm_store)s)->needed_without == s ? 1u << s : 0);
    for (uint32_t unit = 0; unit < e->base->model->unit_count; unit++)
        m->gradient_bytes += (double)e->gradient_bytes[unit];
}

static void take_ring(struct lane_ring *ring, uint32_t slots, double **memory)
{
    *ring = (struct lane_ring){.free = *memory, .slots = slots};
    memset(ring->free, 0, slots * sizeof(double));
    *memory += slots;
}

static void prepare(struct lane_clocks *c)
{
    const struct tdm_schedule *schedule = c->schedule;
    const struct tdm_machine *machine = c->e->base->machine;
    const size_t all = (size_t)c->layers * c->n;
    double *slots = c->m->slots;
    double h2d = tdm_machine_link_rate(machine, TDM_LINK_H2D);
    double d2h = tdm_machine_link_rate(machine, TDM_LINK_D2H);
    uint32_t stash = (uint32_t)smaller(schedule->rings.stashed, c->n);
    c->depth = (uint32_t)smaller(schedule->prefetch, c->n - 1);
    c->copy_seconds = machine->copy_seconds;
    c->to_device = 1 / h2d;
    c->to_host = 1 / d2h;
    c->device_slower[0] = h2d / tdm_machine_rate_beside(machine, TDM_LINK_H2D);
    c->host_slower[0] = d2h / tdm_machine_rate_beside(machine, TDM_LINK_D2H);
    c->device_slower[1] = h2d / tdm_machine_rate_beside_updates(machine, TDM_LINK_H2D);
    c->host_slower[1] = d2h / tdm_machine_rate_beside_updates(machine, TDM_LINK_D2H);
    memset(c->m->x_sent, 0, (all + c->n) * sizeof(double));
    memset(c->m->stored_sent, 0, all * sizeof(double));
    memset(c->m->stream_free, 0, c->n * sizeof(double));
    memset(c->m->kv_sent, 0, c->layers * sizeof(double));
    take_ring(&c->fetched_x, c->depth + 1, &slots);
    take_ring(&c->ahead_x, 1, &slots);
    take_ring(&c->stashed_x, stash, &slots);
    for (int s = 0; s < TDM_STORES; s++) {
        take_ring(&c->fetched[s], c->depth + 1, &slots);
        take_ring(&c->stashed[s], stash, &slots);
    }
    c->current = UINT32_MAX;
    c->slot = SLOTS;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        c->ring_layer[slot] = UINT32_MAX;
    if (!c->m->has_homes)
        find_times(c);
    if (!c->m->has_homes || memcmp(c->m->homes, c->e->base->homes, sizeof(c->m->homes)) != 0)
        find_homes(c->m, c->e);
    c->layers_pass = c->m->layers_pass;
    for (uint32_t i = 0; i < CONTENTS; i++)
        c->state_slots[i] = (uint32_t)smaller(schedule->rings.optimizer, c->m->passes[i]);
    for (uint32_t g = 0, layer = 0, far = 0; g < schedule->group_count; g++) {
        struct span span = span_of(c->e, schedule, g, layer);
        find_group(c, &span);
        for (; layer <= span.top; layer++) {
            c->m->spans[layer] = span;
            c->m->far_rows[layer] = far;
            far += far_kv(&span);
        }
    }
}

/* ---- the estimate ---- */

/* Pages that attention gathers and updates after the backward are left to tdm_estimate_waiting().
 */
static bool is_known(const struct tdm_estimator *e, const struct tdm_schedule *schedule)
{
    const struct tdm_rings *rings = &schedule->rings;
    if (e->memory->most_bodies == 0 || tdm_updates_at_end(e->base) || rings->weights >= SLOTS ||
        rings->optimizer >= SLOTS || rings->host_gradients >= SLOTS || rings->kv >= SLOTS ||
        rings->weights == 0 || rings->optimizer == 0 || rings->host_gradients == 0 ||
        rings->kv == 0 || rings->stashed == 0)
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

/* Sums what the groups from each one on still compute in the forward, and in the backward down from
 * it. */
static void sum_rest(struct lane_clocks *c)
{
    const struct tdm_schedule *schedule = c->schedule;
    struct lane_rest *rest = c->m->rest;
    const uint32_t groups = schedule->group_count;
    double backward = 0;
    for (uint32_t g = 0, layer = 0; g < groups; g++) {
        rest[g].forward = 0;
        for (const uint32_t end = layer + schedule->groups[g].layers; layer < end; layer++) {
            const struct layer_sweeps *sweeps = &c->e->sweeps[layer];
            rest[g].forward += sweeps->forward.compute;
            backward += sweeps->again.compute + sweeps->kv.compute + sweeps->backward.compute;
        }
        rest[g].backward = backward;
    }
    for (uint32_t g = groups; g-- > 0;)
        rest[g].forward += g + 1 < groups ? rest[g + 1].forward : backward + c->e->head_seconds;
}

double tdm_estimate_lanes(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          double enough_seconds, bool *is_cut)
{
    struct lane_clocks clocks = {.e = e,
                                 .schedule = schedule,
                                 .m = e->memory,
                                 .n = e->chunks,
                                 .layers = e->layers,
                                 .enough = enough_seconds,
                                 .by_layer = schedule->order == TDM_LAYER_MAJOR,
                                 .trains = e->base->optimizer.kind != TDM_OPTIMIZER_NONE},
                       *c = &clocks;
    if (!is_known(e, schedule))
        return 0;
    prepare(c);
    if (!tdm_lanes_list(c) || !tdm_lanes_plan_streams(c))
        return 0;
    if (enough_seconds < HUGE_VAL)
        sum_rest(c);
    *is_cut = !tdm_lanes_run(c);
    return later(later(c->compute, c->h2d), later(c->d2h, c->host));
}
