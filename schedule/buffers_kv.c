/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of K and V: rows for K and V and for their gradients, on the device or on the host; page
 * means and page lists. */
#include "schedule/buffers_parts.h"

#include "schedule/attend.h"
#include "schedule/gather.h"
#include "schedule/kv_row.h"
#include "schedule/ranks.h"

#include <stdlib.h>

/* Running sums of dK, dV at another place than the device: for the chunks that a later chunk sees,
 * or for all if attention adds to them there. */
static bool declare_far_gradients(struct tdm_builder *b, uint32_t layer)
{
    struct tdm_layout *layout = b->layout;
    uint32_t chunks = b->program->chunk_count;
    layout->far_slot[layer] = malloc(((size_t)chunks + 1) * sizeof(uint32_t));
    if (layout->far_slot[layer] == NULL)
        return false;
    tdm_attend_seen(b->program, layer, layout->far_slot[layer]);
    for (uint32_t chunk = 0; chunk <= chunks && tdm_gathers(b->schedule, layer); chunk++)
        layout->far_slot[layer][chunk] = chunk;
    uint32_t seen = layout->far_slot[layer][chunks];
    if (seen > 0)
        layout->host_dkv[layer] = tdm_declare(
            b, b->schedule->groups[layout->group_of[layer]].kv_gradients_place, TDM_KV_GRADIENTS,
            tdm_gathers(b->schedule, layer) ? TDM_AXIS_CHUNK : TDM_AXIS_RING, TDM_DKVPAGES, 0,
            b->chunk_capacity, seen, "kv_gradients.layer%u", layer);
    return true;
}

/* The row that a layer uses. Layers take rows in turn. A layer whose attention gathers pages from
 * the host needs one slot, any other layer a slot for every chunk. */
static uint32_t take_row(struct tdm_builder *b, uint32_t *taken, uint32_t layer,
                         uint32_t slots[TDM_MAX_RING])
{
    uint32_t row = (*taken)++ % b->schedule->rings.kv;
    uint32_t needed = tdm_gathers(b->schedule, layer) ? 1 : b->program->chunk_count;
    if (needed > slots[row])
        slots[row] = needed;
    return row;
}

/* Chunk-major: declares the device rows that stage K, V and gradients at home on the host. Layers
 * share them in turn. */
static void declare_kv_rows(struct tdm_builder *b)
{
    struct tdm_layout *layout = b->layout;
    uint32_t far_kv = 0, far_gradients = 0;
    uint32_t slots[TDM_MAX_RING] = {0}, gradient_slots[TDM_MAX_RING] = {0};
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        if (layout->host_kv[layer] != TDM_NONE)
            take_row(b, &far_kv, layer, slots);
        if (layout->far_slot[layer] != NULL)
            take_row(b, &far_gradients, layer, gradient_slots);
    }
    for (uint32_t row = 0; row < TDM_MAX_RING; row++) {
        if (slots[row] > 0)
            layout->kv_rows[row] =
                tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_CHUNK, TDM_KVPAGES, 0,
                            b->chunk_capacity, slots[row], "staged_kv.%u", row);
        if (gradient_slots[row] > 0)
            layout->dkv_rows[row] =
                tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_CHUNK, TDM_DKVPAGES, 0,
                            b->chunk_capacity, gradient_slots[row], "staged_kv_gradients.%u", row);
    }
    far_kv = far_gradients = 0;
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        if (layout->host_kv[layer] != TDM_NONE)
            layout->kv[layer] = layout->kv_rows[take_row(b, &far_kv, layer, slots)];
        if (layout->far_slot[layer] != NULL)
            layout->dkv[layer] =
                layout->dkv_rows[take_row(b, &far_gradients, layer, gradient_slots)];
    }
}

/* The most chunks that a rank, or its set, has of a sequence. */
static uint32_t own_chunks(const struct tdm_program *program)
{
    uint32_t most = 0;
    for (uint32_t i = 0, end; i < program->chunk_count; i = end) {
        end = program->chunks[i].last_chunk + 1;
        uint32_t of_sequence = tdm_set_most_chunks(program, i, end);
        most = of_sequence > most ? of_sequence : most;
    }
    return most;
}

bool tdm_declare_kv(struct tdm_builder *b)
{
    struct tdm_layout *layout = b->layout;
    bool row = b->schedule->order == TDM_LAYER_MAJOR;
    bool backward = b->schedule->pass == TDM_TRAIN;
    bool ring = tdm_ranks_ring(b->program);
    uint32_t chunks = b->program->chunk_count;
    uint32_t shared = TDM_NONE, shared_gradients = TDM_NONE;

    if (row) {
        layout->kv_span = tdm_kv_span(b->program);
        uint32_t slots = ring ? own_chunks(b->program) : tdm_kv_slots(b->program, layout->kv_span);
        enum tdm_axis axis = slots < chunks && !ring ? TDM_AXIS_RING : TDM_AXIS_CHUNK;
        shared = tdm_declare(b, TDM_DEVICE, TDM_KV, axis, TDM_KVPAGES, 0, b->chunk_capacity, slots,
                             "kv");
        if (backward)
            shared_gradients = tdm_declare(b, TDM_DEVICE, TDM_KV_GRADIENTS, axis, TDM_DKVPAGES, 0,
                                           b->chunk_capacity, slots, "kv_gradients");
    }
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        const struct tdm_group *group = &b->schedule->groups[layout->group_of[layer]];
        bool kept = group->kv == TDM_KV_KEEP;
        bool held = row && !kept && tdm_set_has(group->held, TDM_STORE_KV) &&
                    tdm_layer_runs_again(b, layer);
        layout->kv[layer] = shared;
        if (held || (kept && group->kv_place == TDM_DEVICE))
            layout->own_kv[layer] = tdm_declare(
                b, TDM_DEVICE, TDM_KV, TDM_AXIS_CHUNK, TDM_KVPAGES, 0, b->chunk_capacity,
                ring ? tdm_set_most_chunks(b->program, 0, chunks) : chunks, "%s_kv.layer%u",
                held ? "held" : "kept", layer);
        else if (kept)
            layout->host_kv[layer] =
                tdm_declare(b, group->kv_place, TDM_KV, TDM_AXIS_CHUNK,
                            tdm_ranks_divide_heads(b->program) ? TDM_OWN_KVPAGES : TDM_KVPAGES, 0,
                            b->chunk_capacity, tdm_rank_chunks(b->program, 0, chunks),
                            "kept_kv.layer%u", layer);
        layout->dkv[layer] = shared_gradients;
        if (row || !backward)
            continue;
        if (group->kv_gradients_place == TDM_DEVICE)
            layout->dkv[layer] =
                tdm_declare(b, TDM_DEVICE, TDM_KV_GRADIENTS, TDM_AXIS_CHUNK, TDM_DKVPAGES, 0,
                            b->chunk_capacity, chunks, "kv_gradients.layer%u", layer);
        else if (!declare_far_gradients(b, layer))
            return false;
    }
    if (!row)
        declare_kv_rows(b);
    return true;
}

void tdm_declare_lists(struct tdm_builder *b)
{
    struct tdm_layout *layout = b->layout;
    bool row = b->schedule->order == TDM_LAYER_MAJOR;
    uint32_t chunks = b->program->chunk_count, shared = TDM_NONE;
    if (row)
        shared = tdm_declare(b, TDM_DEVICE, TDM_KV, TDM_AXIS_CHUNK, TDM_PAGE_MEANS, 0,
                             b->chunk_capacity, chunks, "page_means");
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        struct tdm_page_rule rule = tdm_schedule_page_rule(b->schedule, layer);
        if (rule.selector.kind != TDM_SELECT_TOP_K)
            continue;
        layout->means[layer] =
            row ? shared
                : tdm_declare(b, TDM_DEVICE, TDM_KV, TDM_AXIS_CHUNK, TDM_PAGE_MEANS, 0,
                              b->chunk_capacity, chunks, "page_means.layer%u", layer);
        /* in chunk-major order the lists of the last layer live for one chunk */
        if (b->schedule->pass == TDM_TRAIN)
            layout->lists[layer] = tdm_declare(
                b, TDM_DEVICE, TDM_RESIDUALS, TDM_AXIS_CHUNK, TDM_PAGE_LISTS, 0, b->chunk_capacity,
                row || layer + 1 < b->model->layers ? tdm_rank_chunks(b->program, 0, chunks) : 1,
                "page_lists.layer%u", layer);
    }
}
