/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates the arrays that hold the numbers of a program's buffers by purpose, and fills what
 * follows from the nest alone. */
#include "schedule/buffers_parts.h"

#include "base/size.h"
#include "schedule/layout.h"

#include <stdlib.h>

static uint32_t *none_array(uint32_t count)
{
    uint32_t *array = malloc(((size_t)count + 1) * sizeof(*array));
    for (uint32_t i = 0; array != NULL && i <= count; i++)
        array[i] = TDM_NONE;
    return array;
}

struct tdm_layout *tdm_layout_new(const struct tdm_program *program)
{
    const struct tdm_schedule *schedule = program->schedule;
    uint32_t layers = schedule->model->layers;
    struct tdm_layout *layout = calloc(1, sizeof(*layout));
    if (layout == NULL)
        return NULL;
    uint32_t *scalars[] = {&layout->tokens,        &layout->loss,
                           &layout->norms,         &layout->embedding_gradient,
                           &layout->head_gradient, &layout->tied_gradient,
                           &layout->tied_home,     &layout->staged_tied,
                           &layout->host_tied,     &layout->host_norms,
                           &layout->stream,        &layout->fetched_x,
                           &layout->stashed_x,     &layout->visiting_kv,
                           &layout->ahead_x};
    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]); i++)
        *scalars[i] = TDM_NONE;
    for (int store = 0; store < TDM_STORES; store++)
        layout->fetched[store] = layout->stashed[store] = TDM_NONE;
    for (uint32_t row = 0; row < TDM_MAX_RING; row++)
        layout->kv_rows[row] = layout->dkv_rows[row] = TDM_NONE;
    for (int row = 0; row < TDM_UNIT_ROWS; row++) {
        layout->host_gradient[row] = TDM_NONE;
        for (int content = 0; content < TDM_UNIT_CONTENTS; content++)
            layout->home[content][row] = layout->staged[content][row] = TDM_NONE;
    }
    for (int content = 0; content < TDM_CONTENTS; content++)
        layout->work[content] = TDM_NONE;

    uint32_t **by_layer[] = {
        &layout->layer_gradient, &layout->layer_gradient_slot,
        &layout->gradient_home,  &layout->kv,
        &layout->own_kv,         &layout->host_kv,
        &layout->host_dkv,       &layout->dkv,
        &layout->means,          &layout->lists,
        &layout->held_input,     &layout->held_input_near,
        &layout->group_of,
    };
    layout->layer_count = layers;
    bool complete = true;
    for (size_t i = 0; i < sizeof(by_layer) / sizeof(by_layer[0]); i++)
        complete &= (*by_layer[i] = none_array(layers)) != NULL;
    for (int store = 0; store < TDM_STORES; store++) {
        complete &= (layout->kept[store] = none_array(layers)) != NULL;
        complete &= (layout->held[store] = none_array(layers)) != NULL;
        complete &= (layout->held_near[store] = none_array(layers)) != NULL;
    }
    complete &= (layout->input = none_array(schedule->group_count)) != NULL;
    complete &= (layout->far_slot = calloc((size_t)layers + 1, sizeof(uint32_t *))) != NULL;
    complete &= (layout->tile_base = none_array(program->chunk_count)) != NULL;
    if (!complete) {
        tdm_layout_free(layout);
        return NULL;
    }

    uint32_t layer = 0;
    for (uint32_t group = 0; group < schedule->group_count; group++)
        for (uint32_t i = 0; i < schedule->groups[group].layers; i++)
            layout->group_of[layer++] = group;
    uint32_t tiles = 0;
    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++) {
        layout->tile_base[chunk] = tiles;
        tiles +=
            (uint32_t)tdm_size_ceil_div(program->chunks[chunk].tokens, schedule->head_tile_tokens);
    }
    layout->tile_base[program->chunk_count] = tiles;
    layout->vocabulary_tiles = tdm_vocabulary_tiles(schedule);
    return layout;
}

void tdm_layout_free(struct tdm_layout *layout)
{
    if (layout == NULL)
        return;
    free(layout->input);
    free(layout->layer_gradient);
    free(layout->layer_gradient_slot);
    free(layout->gradient_home);
    free(layout->kv);
    free(layout->own_kv);
    free(layout->host_kv);
    free(layout->host_dkv);
    for (uint32_t layer = 0; layout->far_slot != NULL && layer < layout->layer_count; layer++)
        free(layout->far_slot[layer]);
    free(layout->far_slot);
    free(layout->dkv);
    free(layout->means);
    free(layout->lists);
    for (int store = 0; store < TDM_STORES; store++) {
        free(layout->kept[store]);
        free(layout->held[store]);
        free(layout->held_near[store]);
    }
    free(layout->held_input);
    free(layout->held_input_near);
    free(layout->group_of);
    free(layout->tile_base);
    free(layout->visits);
    free(layout->updates);
    free(layout);
}
