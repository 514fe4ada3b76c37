/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of a step in the estimate by lanes: the nest's own, and what streams between them. */
#include "planner/estimate_lanes_parts.h"

#include <string.h>

/* ---- bodies ---- */

/* Does the list in memory have the schedule's nest? Besides what all schedules of an estimator
 * share, the nest depends on the order, the sizes of groups and the K and V that are made ahead. */
static bool is_listed(const struct lane_clocks *c)
{
    const struct tdm_lanes *m = c->m;
    const struct tdm_schedule *schedule = c->schedule;
    if (memcmp(c->e->kv_ahead, m->listed_ahead, c->layers * sizeof(bool)) != 0)
        return false;
    if (m->body_count == 0 || m->order != schedule->order ||
        m->group_count != schedule->group_count)
        return false;
    for (uint32_t g = 0; g < schedule->group_count; g++)
        if (m->group_layers[g] != schedule->groups[g].layers)
            return false;
    return true;
}

static uint8_t reader_of(const struct tdm_body *body)
{
    if (body->pass == TDM_PASS_FIRST)
        return INPUT_OF_FIRST;
    return body->kind == TDM_BODY_KV ? INPUT_OF_KV : INPUT_OF_LATER;
}

static enum tdm_status take_body(void *self, const struct tdm_body *body, struct tdm_error *err)
{
    struct tdm_lanes *m = self;
    (void)err;
    if (m->body_count == m->most_bodies)
        return TDM_INTERNAL;
    const bool of_layer = tdm_body_is_of_layer(body->kind);
    /* of bodies in a row that use one layer, the first streams what all need */
    if (body->kind == TDM_BODY_OPTIMIZER || (of_layer && body->layer != m->last_layer))
        m->streaming[m->streaming_count++] = m->body_count;
    if (of_layer)
        m->last_layer = body->layer;
    else if (body->kind == TDM_BODY_OPTIMIZER)
        m->last_layer = TDM_NONE;
    m->bodies[m->body_count++] =
        (struct lane_body){.kind = (uint8_t)body->kind,
                           .pass = (uint8_t)body->pass,
                           .phase = (uint8_t)body->phase,
                           .reader = reader_of(body),
                           .ahead = body->kind == TDM_BODY_KV && body->pass == TDM_PASS_BACKWARD &&
                                    m->listed_ahead[body->layer],
                           .group = body->group,
                           .layer = body->layer,
                           .chunk = body->chunk};
    return TDM_OK;
}

bool tdm_lanes_list(struct lane_clocks *c)
{
    struct tdm_lanes *m = c->m;
    const struct tdm_schedule *schedule = c->schedule;
    const struct tdm_program step = {
        .schedule = schedule, .chunks = c->e->chunk_list, .chunk_count = c->n, .ranks = 1};
    struct tdm_error err;
    if (is_listed(c))
        return true;
    memcpy(m->listed_ahead, c->e->kv_ahead, c->layers * sizeof(bool));
    m->body_count = m->streaming_count = 0;
    m->has_streams = false;
    m->last_layer = TDM_NONE;
    if (tdm_nest_visit(&step, take_body, m, &err) != TDM_OK) {
        m->body_count = 0;
        return false;
    }
    m->order = schedule->order;
    m->group_count = schedule->group_count;
    for (uint32_t g = 0; g < schedule->group_count; g++)
        m->group_layers[g] = schedule->groups[g].layers;
    return true;
}

/* ---- streams ---- */

/* The shares of their units that the updates make. */
static void find_shares(struct lane_clocks *c)
{
    const struct tdm_unit_list *updates = &c->m->streams.updates;
    for (uint32_t i = 0, slice = 0; i < updates->count; i++) {
        const uint32_t unit = updates->units[i];
        slice = i > 0 && updates->units[i - 1] == unit ? slice + 1 : 0;
        c->m->shares[i] = c->m->slice_shares[c->m->first_slice[unit] + slice];
    }
}

bool tdm_lanes_plan_streams(struct lane_clocks *c)
{
    struct tdm_lanes *m = c->m;
    if (m->has_streams)
        return true;
    m->streams.schedule = c->e->base;
    m->streams.far_weights = m->far[TDM_STATE_WEIGHTS];
    m->streams.passing_slices = m->passing_slices;
    m->streams.visits.count = m->streams.updates.count = 0;
    m->streams.last = TDM_NONE;
    for (uint32_t unit = 0; unit < c->e->base->model->unit_count; unit++)
        m->passing_slices[unit] = tdm_lanes_has_far_state(c, unit) ? m->slices[unit] : 0;
    for (uint32_t i = 0; i < m->streaming_count; i++) {
        const struct lane_body *body = &m->bodies[m->streaming[i]];
        const struct tdm_body of_nest = {.kind = (enum tdm_body_kind)body->kind,
                                         .layer = body->layer};
        if (!tdm_streams_add(&m->streams, &of_nest))
            return false;
    }
    find_shares(c);
    m->has_streams = true;
    return true;
}
