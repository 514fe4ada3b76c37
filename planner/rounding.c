/* SPDX-License-Identifier: Apache-2.0 */
/* Rounded schedules: made from the shares of a solution, copied, written and compared. */
#include "planner/rounding.h"

#include "planner/places.h"

#include <stdlib.h>
#include <string.h>

void tdm_rounded_free(struct tdm_rounded *rounded)
{
    free(rounded->groups);
    rounded->groups = NULL;
}

bool tdm_rounded_passes(const struct tdm_rounded *rounded)
{
    return rounded->passes_only || (rounded->homes[TDM_STATE_WEIGHTS].device_layers > 0 &&
                                    rounded->homes[TDM_STATE_MOMENTS].device_layers == 0);
}

void tdm_rounded_set_near(struct tdm_rounded *rounded, uint32_t device_layers, bool passing)
{
    rounded->homes[TDM_STATE_WEIGHTS].device_layers = device_layers;
    for (int state = TDM_STATE_MASTER; state <= TDM_STATE_MOMENTS; state++)
        rounded->homes[state].device_layers = passing || rounded->passes_only ? 0 : device_layers;
}

void tdm_rounded_copy(struct tdm_rounded *to, const struct tdm_rounded *from)
{
    struct tdm_group *groups = to->groups;
    memcpy(groups, from->groups, from->group_count * sizeof(*groups));
    *to = *from;
    to->groups = groups;
}

bool tdm_rounded_duplicate(const struct tdm_search_space *space, const struct tdm_rounded *from,
                           struct tdm_rounded *to)
{
    struct tdm_group *groups = calloc((size_t)space->schedule->model->layers + 1, sizeof(*groups));
    if (groups == NULL)
        return false;
    to->groups = groups;
    tdm_rounded_copy(to, from);
    return true;
}

void tdm_rounded_write(const struct tdm_search_space *space, const struct tdm_rounded *rounded)
{
    struct tdm_schedule *schedule = space->schedule;
    schedule->order = rounded->order;
    schedule->chunk_tokens = space->bases[rounded->size].chunk_tokens;
    schedule->prefetch = rounded->prefetch;
    schedule->packed_bytes = 0;
    schedule->optimizer.on = space->bases[rounded->size].optimizer.on;
    schedule->head_tile_tokens = rounded->tiles.safe;
    schedule->group_count = rounded->group_count;
    memcpy(schedule->groups, rounded->groups, rounded->group_count * sizeof(*rounded->groups));
    for (uint32_t g = 0; g < rounded->group_count; g++) {
        struct tdm_group *group = &schedule->groups[g];
        if (group->held_device_chunks < tdm_estimator_chunks(space->estimators[rounded->size]))
            continue;
        group->held_place = TDM_DEVICE; /* all chunks are there; moves still change how many */
        group->held_device_chunks = 0;
    }
    memcpy(schedule->homes, rounded->homes, sizeof(schedule->homes));
    schedule->rings = rounded->rings;
}

#define SETTING_BITS 4u
#define RING_BITS 8u
_Static_assert(TDM_MAX_PLACES <= 1u << SETTING_BITS && TDM_SETS <= 1u << SETTING_BITS,
               "settings of a group are packed into bits");

/* The settings of a group in bits; those that are not used count as 0. */
static uint32_t settings_of(const struct tdm_group *group, enum tdm_order order, bool first)
{
    const bool holds = order == TDM_CHUNK_MAJOR || group->layers > 1;
    uint32_t bits = first ? 0 : group->input_place;
    bits = bits << SETTING_BITS | group->kept;
    bits = bits << SETTING_BITS | (group->kept == TDM_SET_INPUT ? 0 : group->kept_place);
    bits = bits << SETTING_BITS | group->held;
    bits = bits << SETTING_BITS | (holds ? group->held_place : 0);
    bits = bits << SETTING_BITS | group->kv;
    bits = bits << SETTING_BITS | group->kv_place;
    return bits << SETTING_BITS | group->kv_gradients_place;
}

struct tdm_memo_key tdm_rounded_key(const struct tdm_rounded *rounded)
{
    struct tdm_memo_key key = tdm_memo_mix_pair(
        TDM_MEMO_NOTHING, rounded->size << 8 | rounded->order, rounded->group_count);
    for (int state = 0; state < TDM_STATES; state++) {
        const struct tdm_home *home = &rounded->homes[state];
        key = tdm_memo_mix_pair(key, home->device_layers,
                                (uint32_t)home->embedding << SETTING_BITS | home->head);
    }
    /* the other rings are the same in a search */
    key = tdm_memo_mix_pair(key, rounded->rings.weights, rounded->rings.optimizer);
    key =
        tdm_memo_mix_pair(key, rounded->rings.stashed | rounded->rings.host_gradients << RING_BITS,
                          rounded->prefetch << 1 | rounded->rings.ahead);
    for (uint32_t g = 0; g < rounded->group_count; g++) {
        const struct tdm_group *group = &rounded->groups[g];
        key = tdm_memo_mix_pair(key, group->layers, group->kept_from_chunk);
        key = tdm_memo_mix_pair(key, group->held_from_chunk,
                                settings_of(group, rounded->order, g == 0));
        if (group->held_device_chunks > 0)
            key = tdm_memo_mix_pair(key, group->held_device_chunks, g);
    }
    return key;
}

/* ---- from shares to counts ---- */

static enum tdm_place place_of(const struct tdm_schedule *schedule, double share)
{
    return share >= 0.5 ? TDM_DEVICE : tdm_far_place(schedule);
}

enum tdm_status tdm_round(const struct tdm_search_space *space, uint32_t size, enum tdm_order order,
                          struct tdm_relaxation *relaxation, const struct tdm_relaxed *relaxed,
                          struct tdm_rounded *rounded, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = space->schedule;
    const uint64_t tile = space->bases[size].head_tile_tokens;
    *rounded = (struct tdm_rounded){.size = size,
                                    .order = order,
                                    .rings = space->bases[size].rings,
                                    .prefetch = space->bases[size].prefetch,
                                    .passes_only = tdm_search_space_passes(space, size),
                                    .tiles = {.safe = tile, .large = tile}};
    rounded->groups = calloc((size_t)schedule->model->layers + 1, sizeof(*rounded->groups));
    if (rounded->groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    tdm_relaxation_groups(relaxation, rounded->groups, &rounded->group_count);
    memcpy(rounded->homes, space->bases[size].homes, sizeof(rounded->homes));
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        rounded->homes[state] = (struct tdm_home){(uint32_t)(relaxed->device_layers[state] + 1e-6),
                                                  place_of(schedule, relaxed->embedding[state]),
                                                  place_of(schedule, relaxed->head[state])};
    return TDM_OK;
}
