/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers for what the forward leaves to the backward: inputs of groups, other values that groups
 * keep or hold for a chunk, and the rings that stage them to the host and back. */
#include "schedule/buffers_parts.h"

#include "schedule/kv_row.h"
#include "schedule/nest.h"
#include "schedule/ranks.h"

bool tdm_store_kept(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk)
{
    const struct tdm_layout *layout = program->layout;
    return layout->kept[store][layer] != TDM_NONE &&
           program->chunks[chunk].place >=
               program->schedule->groups[layout->group_of[layer]].kept_from_chunk;
}

bool tdm_store_held(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk)
{
    const struct tdm_layout *layout = program->layout;
    return (layout->held[store][layer] != TDM_NONE ||
            layout->held_near[store][layer] != TDM_NONE) &&
           !tdm_store_kept(program, tdm_store_type(store)->needed_without, layer, chunk) &&
           program->chunks[chunk].place >=
               program->schedule->groups[layout->group_of[layer]].held_from_chunk;
}

uint32_t tdm_prefetch_depth(const struct tdm_program *program)
{
    uint32_t most = tdm_rank_chunks_least(program) - 1;
    return program->schedule->prefetch < most ? program->schedule->prefetch : most;
}

bool tdm_layer_runs_again(const struct tdm_builder *b, uint32_t layer)
{
    const struct tdm_schedule *schedule = b->schedule;
    uint32_t group = b->layout->group_of[layer];
    uint32_t first = tdm_schedule_first_layer(schedule, group);
    bool top = layer == first + schedule->groups[group].layers - 1;
    return !top || (schedule->order == TDM_CHUNK_MAJOR && group == schedule->group_count - 1);
}

/* Declares what a layer holds of the chunks [from, to) of the step: at the group's place, and of
 * the chunks that are near on the device. */
static void declare_held(struct tdm_builder *b, const char *name, enum tdm_content content,
                         uint32_t layer, uint32_t from, uint32_t to, uint32_t *held, uint32_t *near)
{
    const struct tdm_schedule *schedule = b->schedule;
    const struct tdm_group *group = &schedule->groups[b->layout->group_of[layer]];
    const bool row = schedule->order == TDM_LAYER_MAJOR;
    uint32_t border = to;
    if (from >= to)
        return;
    if (group->held_place != TDM_DEVICE)
        border = tdm_held_near_from(group, b->program->chunk_count);
    border = border < from ? from : border > to ? to : border;
    if (from < border)
        *held = tdm_declare(b, group->held_place, TDM_RESIDUALS, TDM_AXIS_CHUNK, content, 0,
                            b->chunk_capacity, row ? tdm_rank_chunks(b->program, from, border) : 1,
                            "held_%s.layer%u", name, layer);
    if (border < to)
        *near = tdm_declare(b, TDM_DEVICE, TDM_RESIDUALS, TDM_AXIS_CHUNK, content, 0,
                            b->chunk_capacity, tdm_rank_chunks(b->program, border, to),
                            "held_near_%s.layer%u", name, layer);
}

static void declare_store(struct tdm_builder *b, enum tdm_store store, uint32_t layer)
{
    const struct tdm_schedule *schedule = b->schedule;
    struct tdm_layout *layout = b->layout;
    const struct tdm_store_type *type = tdm_store_type(store);
    const struct tdm_group *group = &schedule->groups[layout->group_of[layer]];
    uint32_t chunks = b->program->chunk_count;
    bool row = schedule->order == TDM_LAYER_MAJOR;
    /* in chunk-major order the first forward of the last layer makes only its K and V */
    bool forwarded = row || layer + 1 < b->model->layers;

    if (forwarded && tdm_set_has(group->kept, store) && group->kept_from_chunk < chunks)
        layout->kept[store][layer] = tdm_declare(
            b, group->kept_place, TDM_RESIDUALS, TDM_AXIS_CHUNK, type->content, 0,
            b->chunk_capacity, tdm_rank_chunks(b->program, group->kept_from_chunk, chunks),
            "kept_%s.layer%u", type->name, layer);
    /* a layer that does not run forward again cannot hold; kept values need not be held */
    uint32_t held_to =
        layout->kept[type->needed_without][layer] == TDM_NONE ? chunks : group->kept_from_chunk;
    if (tdm_layer_runs_again(b, layer) && tdm_set_has(group->held, store))
        declare_held(b, type->name, type->content, layer, group->held_from_chunk, held_to,
                     &layout->held[store][layer], &layout->held_near[store][layer]);
}

void tdm_declare_stores(struct tdm_builder *b)
{
    const struct tdm_schedule *schedule = b->schedule;
    struct tdm_layout *layout = b->layout;
    uint32_t chunks = tdm_rank_chunks(b->program, 0, b->program->chunk_count);

    for (uint32_t group = 1; group < schedule->group_count; group++)
        layout->input[group] =
            tdm_declare(b, schedule->groups[group].input_place, TDM_RESIDUALS, TDM_AXIS_CHUNK,
                        TDM_X, 0, b->chunk_capacity, chunks, "input.group%u", group);

    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        if (layer > tdm_schedule_first_layer(schedule, layout->group_of[layer]))
            declare_held(b, "input", TDM_X, layer, 0, b->program->chunk_count,
                         &layout->held_input[layer], &layout->held_input_near[layer]);
        for (int store = 0; store < TDM_STORES; store++)
            declare_store(b, (enum tdm_store)store, layer);
    }
}

/* Is any of these buffers at another place than the device? TDM_NONE is skipped. */
static bool any_far(const struct tdm_program *program, const uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] != TDM_NONE && program->buffers[numbers[i]].place != TDM_DEVICE)
            return true;
    return false;
}

/* Is an input at the far place of which K and V are made ahead? Where a group holds all chunks on
 * the device all the same, its inputs are not. */
static bool fetches_ahead(const struct tdm_builder *b)
{
    const struct tdm_layout *layout = b->layout;
    const bool whole_row = tdm_kv_row_is_whole(b->program);
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        const uint32_t group = layout->group_of[layer];
        const bool first = layer == tdm_schedule_first_layer(b->schedule, group);
        if (tdm_nest_kv_ahead(b->schedule, whole_row, layer) &&
            any_far(b->program, first ? &layout->input[group] : &layout->held_input[layer], 1))
            return true;
    }
    return false;
}

void tdm_declare_rings(struct tdm_builder *b)
{
    struct tdm_program *program = b->program;
    struct tdm_layout *layout = b->layout;
    uint32_t layers = b->model->layers, groups = b->schedule->group_count;
    bool host_inputs = any_far(program, layout->input, groups);
    bool host_held = any_far(program, layout->held_input, layers);
    uint32_t chunks = tdm_rank_chunks(program, 0, program->chunk_count);
    uint32_t fetch_slots = tdm_prefetch_depth(program) + 1;
    uint32_t stash_slots =
        b->schedule->rings.stashed < chunks ? b->schedule->rings.stashed : chunks;

    if (host_inputs || host_held)
        layout->fetched_x = tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, TDM_X, 0,
                                        b->chunk_capacity, fetch_slots, "fetched_x");
    if (fetches_ahead(b))
        layout->ahead_x = tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, TDM_X, 0,
                                      b->chunk_capacity, 1, "ahead_x");
    /* layer-major order stashes group inputs directly from the stream */
    if (host_held || (host_inputs && b->schedule->order == TDM_CHUNK_MAJOR))
        layout->stashed_x = tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, TDM_X, 0,
                                        b->chunk_capacity, stash_slots, "stashed_x");
    for (int store = 0; store < TDM_STORES; store++) {
        if (!any_far(program, layout->kept[store], layers) &&
            !any_far(program, layout->held[store], layers))
            continue;
        const struct tdm_store_type *type = tdm_store_type((enum tdm_store)store);
        layout->fetched[store] =
            tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, type->content, 0,
                        b->chunk_capacity, fetch_slots, "fetched_%s", type->name);
        layout->stashed[store] =
            tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, type->content, 0,
                        b->chunk_capacity, stash_slots, "stashed_%s", type->name);
    }
}
