/* SPDX-License-Identifier: Apache-2.0 */
/* State in the estimate by lanes: rings of weights, masters and moments, weights of embedding and
 * head, and the updates of units. */
#include "planner/estimate_lanes_parts.h"

#include "schedule/cost.h"
#include "schedule/optimizer.h"

/* ---- weights of layers ---- */

/* The slot of the ring that has a layer's weights; SLOTS: none has. */
static uint32_t find_slot(const struct lane_clocks *c, uint32_t layer)
{
    const uint32_t slots = c->schedule->rings.weights;
    uint32_t slot = 0;
    while (slot < slots && c->ring_layer[slot] != layer)
        slot++;
    return slot < slots ? slot : SLOTS;
}

static uint32_t free_slot(const struct lane_clocks *c)
{
    uint32_t best = SLOTS;
    for (uint32_t slot = 0; slot < c->schedule->rings.weights; slot++)
        if (c->ring_needed[slot] <= c->visit &&
            (best == SLOTS || c->ring_needed[slot] < c->ring_needed[best]))
            best = slot;
    return best;
}

void tdm_lanes_next_layer(struct lane_clocks *c, uint32_t layer)
{
    const bool *far = c->m->far[TDM_STATE_WEIGHTS];
    c->current = layer;
    while (far[layer] && c->next_visit < c->m->streams.visits.count) {
        uint32_t due = c->m->streams.visits.units[c->next_visit], slot = find_slot(c, due);
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
    c->slot = far[layer] ? find_slot(c, layer) : SLOTS;
}

/* ---- masters and moments ---- */

static bool content_far(const struct lane_clocks *c, uint32_t content, uint32_t unit)
{
    return c->m->far[content == c->m->master ? TDM_STATE_MASTER : TDM_STATE_MOMENTS][unit];
}

static double content_bytes(const struct lane_clocks *c, uint32_t content, uint32_t unit)
{
    return content == c->m->master
               ? (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_MASTER, unit)
               : (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_MOMENTS, unit) / 2;
}

bool tdm_lanes_has_far_state(const struct lane_clocks *c, uint32_t unit)
{
    return content_far(c, 0, unit) || content_far(c, 1, unit);
}

static bool has_slots(const struct lane_clocks *c, uint32_t unit)
{
    for (uint32_t i = 0; i < CONTENTS; i++)
        if (content_far(c, i, unit) && c->next_update >= c->update + c->state_slots[i])
            return false;
    return true;
}

/* As layers_between() and send_kept() of lower_stream.c. */
static uint32_t layers_between(const struct lane_clocks *c)
{
    const struct tdm_unit_list *updates = &c->m->streams.updates;
    return c->update < updates->count && updates->units[c->update] < c->layers
               ? c->last_update - updates->units[c->update] - 1
               : 0;
}

static void send_kept(struct lane_clocks *c)
{
    if (!c->keeps)
        return;
    c->state_free[c->m->master][(c->update - 1) % c->state_slots[c->m->master]] =
        copy_to_host(c, c->updated, content_bytes(c, c->m->master, c->last_update));
    c->keeps = false;
}

static bool fetch_next_state(struct lane_clocks *c)
{
    while (c->next_update < c->m->streams.updates.count) {
        const uint32_t unit = c->m->streams.updates.units[c->next_update];
        if (c->next_content == 0 && !has_slots(c, unit))
            return false;
        for (; c->next_content < CONTENTS; c->next_content++) {
            uint32_t i = c->next_content;
            if (!content_far(c, i, unit))
                continue;
            if (i == c->m->master)
                send_kept(c);
            uint32_t slot = c->next_update % c->state_slots[i];
            c->state_ready[i][slot] =
                copy_to_device(c, c->state_free[i][slot],
                               content_bytes(c, i, unit) * c->m->shares[c->next_update]);
            c->next_content++;
            return true;
        }
        c->next_content = 0;
        c->next_update++;
    }
    return false;
}

static void open_rings(struct lane_clocks *c)
{
    for (uint32_t i = 0; i < CONTENTS && !c->states_open; i++)
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            c->state_free[i][slot] = c->compute;
    c->states_open = true;
}

void tdm_lanes_open_states(struct lane_clocks *c)
{
    if (!c->trains || !c->layers_pass)
        return;
    open_rings(c);
    while (fetch_next_state(c))
        ;
}

void tdm_lanes_fetch_states(struct lane_clocks *c, uint32_t layer)
{
    const uint32_t bodies = c->by_layer ? c->n : c->n * c->m->spans[layer].group->layers;
    const uint32_t due = ++c->passed * (CONTENTS + 2) / bodies; /* bodies are few */
    if (c->keeps && c->passed > bodies * layers_between(c))
        send_kept(c);
    while (c->fetched_contents < due && !(c->keeps && c->next_content == c->m->master) &&
           fetch_next_state(c))
        c->fetched_contents++;
}

/* ---- embedding and head, the units at the ends ---- */

uint32_t tdm_lanes_end_unit(const struct lane_clocks *c, int head)
{
    const struct tdm_model *model = c->e->base->model;
    return head ? tdm_model_head_unit(model) : tdm_model_embedding_unit(model);
}

void tdm_lanes_begin_use(struct lane_clocks *c, int head)
{
    uint32_t unit = tdm_lanes_end_unit(c, head);
    if (c->m->far[TDM_STATE_WEIGHTS][unit] && c->users[head]++ == 0)
        c->unit_ready[head] = copy_to_device(
            c, c->compute, (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_WEIGHTS, unit));
}

void tdm_lanes_end_use(struct lane_clocks *c, int head)
{
    if (c->m->far[TDM_STATE_WEIGHTS][tdm_lanes_end_unit(c, head)])
        c->users[head]--;
}

void tdm_lanes_use_head(struct lane_clocks *c, bool begin)
{
    for (int head = c->e->base->model->tied ? 0 : 1; head < 2; head++)
        (begin ? tdm_lanes_begin_use : tdm_lanes_end_use)(c, head);
}

/* ---- updates ---- */

/* Seconds of a unit's norm and update on the compute lane; without updates on the host, its share
 * of all. */
static double update_seconds(const struct lane_clocks *c, uint32_t unit)
{
    const double of_all = c->m->gradient_bytes, all = c->e->updates.optimizer_seconds;
    if (c->e->far_updates != NULL)
        return (tdm_updates_on_host(c->e->base, unit) ? c->e->far_updates
                                                      : c->e->near_updates)[unit]
            .compute;
    return of_all > 0 ? all * (double)c->e->gradient_bytes[unit] / of_all : 0;
}

/* An update on the host that takes `seconds` beside no copies. How much copies slow it is known
 * when they are: so all updates since the lane was idle are taken to run beside copies as dense as
 * those since then, and the first of them as those since the lane was idle the time before. */
static void update_beside_copies(struct lane_clocks *c, double ready, double seconds)
{
    const double until = later(c->h2d, c->d2h);
    if (until > c->link_until)
        c->link_busy = (c->link_seconds - c->link_begin) / (until - c->link_until);
    if (ready > c->host) {
        c->host_begin = ready;
        c->host_work = 0;
        c->link_begin = c->link_seconds;
        c->link_until = until;
    }
    c->host_work += seconds;
    c->host = c->host_begin +
              c->host_work / later(1 - c->e->seconds_per_copied_byte * c->link_busy / c->to_device,
                                   TDM_LEAST_UPDATE_RATE);
}

/* The gradient goes to the host, where its lane updates the unit. Layer-major, it is sent part by
 * part, those of the MLP first. */
static void update_on_host(struct lane_clocks *c, uint32_t unit)
{
    const struct tdm_model *model = c->e->base->model;
    const double bytes = (double)c->e->gradient_bytes[unit];
    double unused = 0, *free_at = &unused, made = c->compute, begun = made, others = 0;
    if (unit < c->layers) {
        free_at = &c->host_free[c->host_gradients++ % c->schedule->rings.host_gradients];
        begun = made = c->m->gradient_made[unit];
    }
    if (unit < c->layers && c->by_layer) {
        begun = c->m->gradient_begun[unit];
        others = 1 - 3.0 * (double)model->hidden * (double)model->intermediate /
                         (double)model->units[unit].elements;
    }
    double sent = later(made, copy_to_host(c, later(begun, *free_at), bytes));
    update_beside_copies(c, sent, c->e->far_updates[unit].host);
    c->compute += update_seconds(c, unit);
    *free_at = c->host;
    c->gradient_free = sent;
    c->mlp_gradient_free = sent - others * bytes * c->to_host;
}

static void send_weights(struct lane_clocks *c, uint32_t unit)
{
    if (!c->m->far[TDM_STATE_WEIGHTS][unit])
        return;
    double sent = copy_to_host(c, c->compute,
                               (double)tdm_estimator_unit_bytes(c->e, TDM_STATE_WEIGHTS, unit));
    if (unit < c->layers)
        use_weights(c, sent);
}

/* When the state of the next update is on the device. */
static double states_ready(const struct lane_clocks *c, uint32_t unit)
{
    double ready = 0;
    for (uint32_t i = 0; i < CONTENTS; i++)
        if (content_far(c, i, unit))
            ready = later(ready, c->state_ready[i][c->update % c->state_slots[i]]);
    return ready;
}

/* Sends the state of an update home. */
static void send_states(struct lane_clocks *c, uint32_t unit, double share)
{
    const uint32_t number = c->update++;
    c->last_update = unit;
    c->updated = c->compute;
    c->keeps = c->m->master > 0 && c->by_layer && unit < c->layers &&
               content_far(c, c->m->master, unit) && layers_between(c) > 0;
    for (uint32_t i = 0; i < CONTENTS; i++)
        if (content_far(c, i, unit) && !(c->keeps && i == c->m->master))
            c->state_free[i][number % c->state_slots[i]] =
                copy_to_host(c, c->compute, content_bytes(c, i, unit) * share);
    c->passed = c->fetched_contents = 0;
}

static void update_end_unit(struct lane_clocks *c, uint32_t unit)
{
    const int head = unit == tdm_lanes_end_unit(c, 1);
    const double seconds = update_seconds(c, unit);
    tdm_lanes_begin_use(c, head);
    c->compute = later(c->compute, c->unit_ready[head]);
    if (!tdm_lanes_has_far_state(c, unit)) {
        c->compute += seconds;
        send_weights(c, unit);
        tdm_lanes_end_use(c, head);
        return;
    }
    open_rings(c);
    send_kept(c);
    const struct tdm_unit_list *updates = &c->m->streams.updates;
    while (c->update < updates->count && updates->units[c->update] == unit) {
        const double share = c->m->shares[c->update];
        while (fetch_next_state(c))
            ;
        c->compute = later(c->compute, states_ready(c, unit)) + seconds * share;
        if (c->update + 1 == updates->count || updates->units[c->update + 1] != unit)
            send_weights(c, unit);
        send_states(c, unit, share);
    }
    if (!head || !c->layers_pass)
        c->states_open = false;
    tdm_lanes_end_use(c, head);
}

void tdm_lanes_update(struct lane_clocks *c, uint32_t unit)
{
    if (tdm_updates_on_host(c->e->base, unit)) {
        update_on_host(c, unit);
        return;
    }
    if (unit >= c->layers) {
        update_end_unit(c, unit);
        return;
    }
    if (tdm_lanes_has_far_state(c, unit))
        send_kept(c);
    while (c->states_open && fetch_next_state(c))
        ;
    visit_layer(c, unit);
    c->compute =
        later(c->compute, later(weights_ready(c), states_ready(c, unit))) + update_seconds(c, unit);
    send_weights(c, unit);
    if (tdm_lanes_has_far_state(c, unit))
        send_states(c, unit, 1);
}
