/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of states, of the device memory that stages them, and of gradients, for the current homes.
 */
#include "planner/estimate_parts.h"

#include "base/size.h"
#include "schedule/layout.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"

#include <stdlib.h>
#include <string.h>

/* ---- sizes of units ---- */

/* Bytes of a unit's state, at any home. */
static uint64_t state_bytes(const struct tdm_schedule *base, enum tdm_state state, uint32_t unit)
{
    switch (state) {
    case TDM_STATE_WEIGHTS:
        return tdm_content_bytes(base, TDM_UNIT_WEIGHTS, unit, 0);
    case TDM_STATE_MASTER:
        return tdm_content_bytes(base, TDM_UNIT_MASTER, unit, 0);
    case TDM_STATE_MOMENTS:
        return tdm_content_bytes(base, TDM_UNIT_MOMENT1, unit, 0) +
               tdm_content_bytes(base, TDM_UNIT_MOMENT2, unit, 0);
    default: /* gradients; without an optimizer they outlive the step */
        if (base->optimizer.kind != TDM_OPTIMIZER_NONE || base->pass != TDM_TRAIN)
            return 0;
        return tdm_content_bytes(base, TDM_UNIT_GRADIENT, unit, 0) +
               (base->model->tied && unit == tdm_model_embedding_unit(base->model)
                    ? tdm_content_bytes(base, TDM_TIED_GRADIENT, 0, 0)
                    : 0);
    }
}

static uint64_t slice_bytes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    if (e->slices[unit] == 1)
        return e->unit_bytes[state][unit];
    const double share = (double)tdm_slice_at(e->base, unit, 0).elements /
                         (double)e->base->model->units[unit].elements;
    return (uint64_t)(share * (double)e->unit_bytes[state][unit]);
}

/* Bytes at home of a unit's state, whose slices have slots of one size. */
static uint64_t home_bytes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    static const enum tdm_content contents[TDM_STATES][2] = {
        [TDM_STATE_MASTER] = {TDM_UNIT_MASTER},
        [TDM_STATE_MOMENTS] = {TDM_UNIT_MOMENT1, TDM_UNIT_MOMENT2},
    };
    uint64_t slots = 0;
    for (int i = 0; i < 2; i++) {
        enum tdm_content content = contents[state][i];
        if (content != TDM_EMPTY && tdm_is_sliced(e->base, content, unit))
            slots += tdm_slice_slot_bytes(e->base, unit, tdm_content_dtype(e->base, content));
    }
    return slots > 0 ? slots * e->slices[unit] : e->unit_bytes[state][unit];
}

bool tdm_estimator_note_units(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint32_t units = base->model->unit_count;
    e->gradient_bytes = calloc((size_t)units + 1, sizeof(uint64_t));
    e->slices = calloc((size_t)units + 1, sizeof(uint32_t));
    if (e->gradient_bytes == NULL || e->slices == NULL)
        return false;
    for (uint32_t unit = 0; unit < units; unit++) {
        e->gradient_bytes[unit] = tdm_content_bytes(base, TDM_UNIT_GRADIENT, unit, 0);
        e->slices[unit] = tdm_slice_count(base, unit);
    }
    for (int s = 0; s < TDM_STATES; s++) {
        enum tdm_state state = (enum tdm_state)s;
        uint64_t most = 0, *bytes = calloc((size_t)units + 1, sizeof(uint64_t));
        e->unit_bytes[s] = bytes;
        e->slice_bytes[s] = calloc((size_t)units + 1, sizeof(uint64_t));
        e->home_bytes[s] = calloc((size_t)units + 1, sizeof(uint64_t));
        if (bytes == NULL || e->slice_bytes[s] == NULL || e->home_bytes[s] == NULL)
            return false;
        for (uint32_t unit = 0; unit < units; unit++)
            bytes[unit] = state_bytes(base, state, unit);
        for (uint32_t layer = 0; layer < e->layers; layer++)
            most = larger(most, bytes[layer]);
        for (uint32_t layer = 0; layer < e->layers && state != TDM_STATE_GRADIENTS; layer++)
            bytes[layer] = most;
        for (uint32_t unit = 0; unit < units; unit++) {
            e->slice_bytes[s][unit] = slice_bytes(e, state, unit);
            e->home_bytes[s][unit] = home_bytes(e, state, unit);
        }
    }
    return true;
}

uint64_t tdm_estimator_unit_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit)
{
    return e->unit_bytes[state][unit];
}

uint64_t tdm_estimator_slice_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                   uint32_t unit)
{
    return e->slice_bytes[state][unit];
}

bool tdm_estimator_comes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    return state == TDM_STATE_WEIGHTS || !tdm_updates_on_host(e->base, unit);
}

uint64_t tdm_estimator_sent_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit)
{
    if (e->base->optimizer.kind == TDM_OPTIMIZER_NONE)
        return 0;
    if (!tdm_updates_on_host(e->base, unit))
        return e->unit_bytes[state][unit];
    return state == TDM_STATE_WEIGHTS ? e->gradient_bytes[unit] : 0;
}

/* ---- rings and buffers ---- */

/* Device bytes of the ring for weights or gradients of layers at home on the host. buffer_bytes():
 * of the buffer of one unit. state_ring_bytes(): of the ring for masters or moments, through which
 * embedding and head pass too. */
static uint64_t ring_bytes(const struct tdm_estimator *e, enum tdm_state state, uint32_t slots)
{
    uint64_t most = e->unit_bytes[state][0];
    for (uint32_t layer = 0; layer < e->layers && state == TDM_STATE_GRADIENTS; layer++)
        most = larger(most, e->gradient_bytes[layer]);
    return smaller(slots, e->layers - e->base->homes[state].device_layers) * most;
}

static uint64_t buffer_bytes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    bool far = tdm_is_far(tdm_schedule_home(e->base, state, unit));
    return far ? e->unit_bytes[state][unit] : 0;
}

/* All layers have as many bytes. What the host updates has all its state there. */
uint32_t tdm_estimator_passing_layers(const struct tdm_estimator *e, enum tdm_state state)
{
    const bool on_host = tdm_is_far(e->base->optimizer.on);
    const uint32_t far = e->layers - e->base->homes[state].device_layers;
    const uint32_t there =
        on_host ? e->layers - e->base->homes[TDM_STATE_WEIGHTS].device_layers : 0;
    return e->unit_bytes[state][0] > 0 ? far - there : 0;
}

static bool passes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    return tdm_estimator_comes(e, state, unit) && buffer_bytes(e, state, unit) > 0;
}

static bool has_passing_state(const struct tdm_estimator *e, uint32_t unit)
{
    return passes(e, TDM_STATE_MASTER, unit) || passes(e, TDM_STATE_MOMENTS, unit);
}

/* Of what is updated on the device. */
static uint64_t state_ring_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                 uint32_t slots)
{
    uint64_t passing = tdm_estimator_passing_layers(e, state);
    uint64_t most = passing > 0 ? e->unit_bytes[state][0] : 0;
    for (uint32_t unit = e->layers; unit < e->base->model->unit_count; unit++) {
        if (!passes(e, state, unit))
            continue;
        passing += e->slices[unit];
        most = larger(most, tdm_estimator_slice_bytes(e, state, unit));
    }
    return smaller(slots, passing) * most;
}

/* Host bytes for gradients that are sent there to be used. */
static void note_host_updates(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint32_t embedding = tdm_model_embedding_unit(base->model);
    uint64_t most = 0, visitors = 0;
    bool stay = tdm_gradients_stay(base);
    e->host_slot = e->host_ring = e->host_head = e->host_embedding = 0;
    if (!tdm_is_far(base->optimizer.on))
        return;
    for (uint32_t unit = 0; unit < base->model->unit_count; unit++) {
        bool far = stay && tdm_is_far(tdm_schedule_home(base, TDM_STATE_GRADIENTS, unit));
        uint64_t bytes = e->gradient_bytes[unit];
        if (far || !tdm_updates_on_host(base, unit))
            continue;
        if (unit < e->layers) {
            most = larger(most, bytes);
            visitors++;
        } else if (unit == embedding) {
            e->host_embedding =
                bytes + (base->model->tied ? tdm_content_bytes(base, TDM_TIED_GRADIENT, 0, 0) : 0);
        } else {
            e->host_head = bytes;
        }
    }
    e->host_slot = most;
    e->host_ring = smaller(base->rings.host_gradients, visitors) * most;
}

/* Device bytes for weights and gradient of embedding or head that an update after the backward
 * fetches from the host. */
static uint64_t fetched_bytes(const struct tdm_estimator *e, uint32_t unit)
{
    bool far = tdm_is_far(tdm_schedule_home(e->base, TDM_STATE_GRADIENTS, unit));
    if (tdm_updates_on_host(e->base, unit) || !tdm_updates_at_end(e->base))
        return 0;
    return buffer_bytes(e, TDM_STATE_WEIGHTS, unit) + (far ? e->gradient_bytes[unit] : 0);
}

static void note_rings(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint32_t embedding = tdm_model_embedding_unit(base->model);
    uint32_t slots = base->rings.optimizer;
    uint32_t head = tdm_model_head_unit(base->model);
    e->weight_ring = ring_bytes(e, TDM_STATE_WEIGHTS, base->rings.weights);
    e->embedding_buffer = buffer_bytes(e, TDM_STATE_WEIGHTS, embedding);
    e->head_buffer =
        buffer_bytes(e, TDM_STATE_WEIGHTS, head) + (base->model->tied ? e->embedding_buffer : 0);
    if (base->optimizer.kind == TDM_OPTIMIZER_NONE || base->pass == TDM_EVALUATE)
        return;
    note_host_updates(e);
    e->embedding_update = e->head_update = e->state_rings = 0;
    e->embedding_fetched = fetched_bytes(e, embedding);
    e->head_fetched = fetched_bytes(e, head);
    const uint64_t rings = state_ring_bytes(e, TDM_STATE_MASTER, slots) +
                           state_ring_bytes(e, TDM_STATE_MOMENTS, slots);
    /* rings are there while units need them; for layers, all the time that these go backward */
    bool of_layers = tdm_updates_at_end(base) ||
                     tdm_estimator_passing_layers(e, TDM_STATE_MASTER) > 0 ||
                     tdm_estimator_passing_layers(e, TDM_STATE_MOMENTS) > 0;
    e->state_rings = of_layers ? rings : 0;
    e->embedding_update = has_passing_state(e, embedding) ? rings : 0;
    e->head_update = has_passing_state(e, head) ? rings : 0;
    if (tdm_updates_at_end(base) && !tdm_is_far(base->optimizer.on))
        e->state_rings += ring_bytes(e, TDM_STATE_GRADIENTS, slots);
}

/* ---- gradients ---- */

/* Device bytes of a unit's gradient while it is summed; 0 if it is resident. `stays`: bytes that
 * stay for an update after the backward. */
static uint64_t gradient_bytes(const struct tdm_schedule *base, uint32_t unit, uint64_t bytes,
                               uint64_t stays[TDM_MAX_PLACES])
{
    enum tdm_place home = tdm_schedule_home(base, TDM_STATE_GRADIENTS, unit);
    if (tdm_updates_at_end(base))
        stays[home] = bytes;
    return tdm_gradients_stay(base) && !tdm_updates_at_end(base) && !tdm_is_far(home) ? 0 : bytes;
}

static void note_gradients(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    const struct tdm_model *model = base->model;
    uint32_t embedding = tdm_model_embedding_unit(model), head = tdm_model_head_unit(model);
    const struct tdm_home *home = &base->homes[TDM_STATE_GRADIENTS];
    if (e->has_noted_gradients && memcmp(&e->noted_gradients, home, sizeof(*home)) == 0)
        return;
    e->noted_gradients = *home;
    e->has_noted_gradients = true;
    memset(e->embedding_stays, 0, sizeof(e->embedding_stays));
    memset(e->head_stays, 0, sizeof(e->head_stays));
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        uint64_t bytes = e->gradient_bytes[layer];
        uint64_t stays[TDM_MAX_PLACES] = {0};
        uint64_t passes = gradient_bytes(base, layer, bytes, stays) - stays[TDM_DEVICE];
        e->passing_below[layer + 1] = e->passing_below[layer] + passes;
        for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
            e->staying_below[place][layer + 1] = e->staying_below[place][layer] + stays[place];
    }
    uint64_t bytes = e->gradient_bytes[embedding];
    e->embedding_gradient = gradient_bytes(base, embedding, bytes, e->embedding_stays);
    if (model->tied) {
        uint64_t tied = tdm_content_bytes(base, TDM_TIED_GRADIENT, 0, 0);
        e->tied_gradient = e->embedding_gradient == 0 ? 0 : tied;
        for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
            if (e->embedding_stays[place] > 0)
                e->embedding_stays[place] += tied;
    }
    bytes = e->gradient_bytes[head];
    e->head_gradient = gradient_bytes(base, head, bytes, e->head_stays);
}

/* ---- homes ---- */

void tdm_estimator_add_states(const struct tdm_estimator *e, uint64_t bytes[TDM_MAX_PLACES])
{
    const uint32_t last[] = {tdm_model_embedding_unit(e->base->model),
                             tdm_model_head_unit(e->base->model)};
    for (int state = 0; state < TDM_STATES; state++) {
        const uint64_t near = e->base->homes[state].device_layers, *layers = e->unit_bytes[state];
        if (state != TDM_STATE_GRADIENTS) { /* all layers have as many bytes */
            bytes[TDM_DEVICE] += near * layers[0];
            bytes[e->far] += (e->layers - near) * layers[0];
        }
        for (uint32_t unit = 0; unit < e->layers && state == TDM_STATE_GRADIENTS; unit++)
            if (layers[unit] > 0)
                bytes[tdm_schedule_home(e->base, (enum tdm_state)state, unit)] += layers[unit];
        for (int i = 0; i < 2; i++)
            bytes[tdm_schedule_home(e->base, (enum tdm_state)state, last[i])] +=
                e->home_bytes[state][last[i]];
    }
}

void tdm_estimator_note_homes(struct tdm_estimator *e)
{
    note_rings(e);
    e->updates = tdm_estimator_updates(e, e->base->homes[TDM_STATE_WEIGHTS].device_layers);
    if (e->base->pass == TDM_TRAIN)
        note_gradients(e);
}

void tdm_estimator_set_state(struct tdm_estimator *e, const struct tdm_home homes[TDM_STATES],
                             const struct tdm_rings *rings)
{
    e->own.rings = *rings;
    memcpy(e->own.homes, homes, sizeof(e->own.homes));
    tdm_estimator_note_homes(e);
    memcpy(e->resident_bytes, e->stateless_bytes, sizeof(e->resident_bytes));
    tdm_estimator_add_states(e, e->resident_bytes);
}
