/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of what streams through the rings of units. */
#include "schedule/streams.h"

#include "schedule/lowering.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"

#include <stdlib.h>

static bool add(struct tdm_unit_list *list, uint32_t unit)
{
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity == 0 ? 256 : 2 * list->capacity;
        uint32_t *units = realloc(list->units, capacity * sizeof(*units));
        if (units == NULL)
            return false;
        list->units = units;
        list->capacity = capacity;
    }
    list->units[list->count++] = unit;
    return true;
}

bool tdm_streams_add(struct tdm_streams *streams, const struct tdm_body *body)
{
    const uint32_t unit = body->layer;
    const bool updates = body->kind == TDM_BODY_OPTIMIZER;
    if (updates ? tdm_updates_on_host(streams->schedule, unit) : !tdm_body_is_of_layer(body->kind))
        return true;
    bool stored = true;
    if (unit < streams->schedule->model->layers) {
        if (unit != streams->last && streams->far_weights[unit])
            stored = add(&streams->visits, unit);
        streams->last = unit;
    }
    for (uint32_t i = 0; updates && i < streams->passing_slices[unit]; i++)
        stored &= add(&streams->updates, unit);
    return stored;
}

void tdm_streams_free(struct tdm_streams *streams)
{
    free(streams->visits.units);
    free(streams->updates.units);
}

/* ---- of a program ---- */

enum tdm_content tdm_streamed_state(const struct tdm_schedule *schedule, size_t number)
{
    static const enum tdm_content usual[TDM_STREAMED_STATES] = {TDM_UNIT_MASTER, TDM_UNIT_MOMENT1,
                                                                TDM_UNIT_MOMENT2,
                                                                TDM_UNIT_GRADIENT},
                                  beside_host[TDM_STREAMED_STATES] = {
                                      TDM_UNIT_MOMENT1, TDM_UNIT_MOMENT2, TDM_UNIT_MASTER,
                                      TDM_UNIT_GRADIENT};
    return (schedule->optimizer.on != TDM_DEVICE ? beside_host : usual)[number];
}

bool tdm_passes_ring(const struct tdm_program *program, enum tdm_content content, uint32_t unit)
{
    bool any_unit = content != TDM_UNIT_WEIGHTS && content != TDM_UNIT_GRADIENT;
    return tdm_home_is_far(program, content, unit) &&
           (any_unit || unit < program->schedule->model->layers);
}

bool tdm_has_passing_state(const struct tdm_program *program, uint32_t unit)
{
    for (size_t i = 0; i < TDM_STREAMED_STATES; i++)
        if (tdm_passes_ring(program, tdm_streamed_state(program->schedule, i), unit))
            return true;
    return false;
}

static enum tdm_status plan_body(void *self, const struct tdm_body *body, struct tdm_error *err)
{
    return tdm_streams_add(self, body)
               ? TDM_OK
               : tdm_fail(err, TDM_NO_MEMORY, "out of memory for streaming layers");
}

enum tdm_status tdm_stream_plan(struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    struct tdm_layout *layout = program->layout;
    bool *far_weights = calloc(model->unit_count, sizeof(*far_weights));
    uint32_t *slices = calloc(model->unit_count, sizeof(*slices));
    struct tdm_streams streams = {.schedule = program->schedule,
                                  .far_weights = far_weights,
                                  .passing_slices = slices,
                                  .last = TDM_NONE};
    enum tdm_status status = TDM_OK;
    if (far_weights == NULL || slices == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for streaming layers");
        goto free_units;
    }
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        far_weights[unit] = tdm_weights_staged(program, unit);
        slices[unit] =
            tdm_has_passing_state(program, unit) ? tdm_slice_count(program->schedule, unit) : 0;
    }
    status = tdm_nest_visit(program, plan_body, &streams, err);
    layout->visits = streams.visits.units;
    layout->visit_count = streams.visits.count;
    layout->updates = streams.updates.units;
    layout->update_count = streams.updates.count;

free_units:
    free(far_weights);
    free(slices);
    return status;
}
