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

void tdm_rounded_copy(struct tdm_rounded *to, const struct tdm_rounded *from)
{
    struct tdm_group *groups = to->groups;
    memcpy(groups, from->groups, from->group_count * sizeof(*groups));
    *to = *from;
    to->groups = groups;
}

void tdm_rounded_write(const struct tdm_search_space *space, const struct tdm_rounded *rounded)
{
    struct tdm_schedule *schedule = space->schedule;
    schedule->order = rounded->order;
    schedule->chunk_tokens = space->bases[rounded->size].chunk_tokens;
    schedule->prefetch = space->bases[rounded->size].prefetch;
    schedule->optimizer.on = space->bases[rounded->size].optimizer.on;
    schedule->head_tile_tokens = rounded->tiles.safe;
    schedule->group_count = rounded->group_count;
    memcpy(schedule->groups, rounded->groups, rounded->group_count * sizeof(*rounded->groups));
    memcpy(schedule->homes, rounded->homes, sizeof(schedule->homes));
    schedule->rings = rounded->rings;
}

/* A group in four numbers; unused fields count as 0. */
struct packed_group {
    uint32_t layers, kept_from_chunk, held_from_chunk, settings;
};
#define SETTING_BITS 4u
_Static_assert(TDM_MAX_PLACES <= 1u << SETTING_BITS && TDM_SETS <= 1u << SETTING_BITS,
               "settings of a group are packed into bits");

static struct packed_group pack(const struct tdm_group *group, enum tdm_order order, bool first)
{
    const bool holds = order == TDM_CHUNK_MAJOR || group->layers > 1;
    const uint32_t settings[] = {first ? 0 : group->input_place,
                                 group->kept,
                                 group->kept == TDM_SET_INPUT ? 0 : group->kept_place,
                                 group->held,
                                 holds ? group->held_place : 0,
                                 group->kv,
                                 group->kv_place,
                                 group->kv_gradients_place};
    struct packed_group packed = {group->layers, group->kept_from_chunk, group->held_from_chunk, 0};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        packed.settings = packed.settings << SETTING_BITS | settings[i];
    return packed;
}

struct tdm_memo_key tdm_rounded_key(const struct tdm_rounded *rounded)
{
    const uint32_t what[] = {rounded->size, rounded->order, rounded->group_count};
    struct tdm_memo_key key = tdm_memo_mix(TDM_MEMO_NOTHING, what, sizeof(what));
    key = tdm_memo_mix(key, rounded->homes, sizeof(rounded->homes));
    key = tdm_memo_mix(key, &rounded->rings, sizeof(rounded->rings));
    for (uint32_t g = 0; g < rounded->group_count; g++) {
        const struct packed_group group = pack(&rounded->groups[g], rounded->order, g == 0);
        key = tdm_memo_mix(key, &group, sizeof(group));
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
                                    .rings = schedule->rings,
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
