/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of a step in the estimate by lanes, in the order of its nest. */
#include "planner/estimate_lanes_parts.h"

#include "schedule/optimizer.h"

static void add(struct lane_clocks *c, enum kind kind, enum pass pass, uint32_t layer,
                uint32_t chunk)
{
    c->m->bodies[c->body_count++] = (struct lane_body){
        .kind = (uint8_t)kind, .pass = (uint8_t)pass, .layer = layer, .chunk = chunk};
}

static void add_forward(struct lane_clocks *c, enum pass pass, uint32_t layer)
{
    add(c, KIND_LAYER_BEGIN, pass, layer, 0);
    for (uint32_t i = 0; i < c->n; i++)
        add(c, KIND_FORWARD, pass, layer, i);
    add(c, KIND_LAYER_END, pass, layer, 0);
}

/* The gradient of a unit is complete. */
static void add_update(struct lane_clocks *c, uint32_t unit)
{
    add(c, KIND_MARK, PASS_BACKWARD, unit, 0);
    if (c->trains)
        add(c, KIND_UPDATE, PASS_BACKWARD, unit, 0);
}

void tdm_lanes_layer_major(struct lane_clocks *c)
{
    for (uint32_t layer = 0; layer < c->layers; layer++)
        add_forward(c, PASS_FIRST, layer);
    add(c, KIND_BACKWARD_BEGIN, PASS_BACKWARD, 0, 0);
    add(c, KIND_HEAD_BEGIN, PASS_BACKWARD, 0, 0);
    for (uint32_t i = c->n; i-- > 0;)
        add(c, KIND_HEAD, PASS_BACKWARD, 0, i);
    add_update(c, tdm_lanes_end_unit(c, 1));
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
    add_update(c, tdm_lanes_end_unit(c, 0));
}

/* Begins or ends a group; the lowest one uses the embedding. */
static void add_group(struct lane_clocks *c, bool begin, uint32_t first)
{
    add(c, begin ? KIND_LAYER_BEGIN : KIND_LAYER_END, PASS_FIRST, first, 0);
}

void tdm_lanes_chunk_major(struct lane_clocks *c)
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
            add_update(c, tdm_lanes_end_unit(c, 1));
            add(c, KIND_HEAD_END, PASS_BACKWARD, 0, 0);
        }
        end = first;
    }
    add_update(c, tdm_lanes_end_unit(c, 0));
}

void tdm_lanes_plan_streams(struct lane_clocks *c)
{
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < c->body_count; i++) {
        const struct lane_body *body = &c->m->bodies[i];
        bool updates = body->kind == KIND_UPDATE && body->layer < c->layers &&
                       !tdm_updates_on_host(c->e->base, body->layer);
        if (!updates && body->kind < KIND_FORWARD)
            continue;
        if (body->layer != last && c->m->far[TDM_STATE_WEIGHTS][body->layer])
            c->m->visits[c->visit_count++] = body->layer;
        last = body->layer;
        if (updates && tdm_lanes_has_far_state(c, body->layer))
            c->m->updates[c->update_count++] = body->layer;
    }
}
