/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of units: the homes of weights, masters, moments and gradients; device buffers that stage
 * those at home on the host; host buffers for gradients that updates there read.
 */
#include "schedule/buffers_parts.h"

#include "schedule/layout.h"
#include "schedule/nest.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"

#include <stdio.h>

enum tdm_state tdm_state_of(enum tdm_content content)
{
    switch (content) {
    case TDM_UNIT_WEIGHTS:
        return TDM_STATE_WEIGHTS;
    case TDM_UNIT_MASTER:
        return TDM_STATE_MASTER;
    case TDM_UNIT_GRADIENT:
        return TDM_STATE_GRADIENTS;
    default:
        return TDM_STATE_MOMENTS;
    }
}

/* The layer with the most elements. A slot of a row must be able to hold it. */
static uint32_t largest_layer(const struct tdm_model *model)
{
    uint32_t largest = 0;
    for (uint32_t layer = 1; layer < model->layers; layer++)
        if (model->units[layer].elements > model->units[largest].elements)
            largest = layer;
    return largest;
}

struct tdm_ref tdm_home_of(const struct tdm_program *program, enum tdm_content content,
                           uint32_t unit)
{
    const struct tdm_model *model = program->schedule->model;
    const uint32_t *rows = program->layout->home[content - TDM_UNIT_WEIGHTS];
    enum tdm_state state = tdm_state_of(content);
    struct tdm_ref ref = {TDM_NONE, 0};
    if (content == TDM_UNIT_GRADIENT && unit < model->layers)
        ref.buffer = program->layout->gradient_home[unit];
    else if (unit < model->layers)
        ref =
            (struct tdm_ref){rows[tdm_schedule_home(program->schedule, state, unit) == TDM_DEVICE
                                      ? TDM_ROW_LAYERS
                                      : TDM_ROW_HOST_LAYERS],
                             tdm_home_slot(&program->schedule->homes[state], model->layers, unit)};
    else
        ref.buffer =
            rows[unit == tdm_model_embedding_unit(model) ? TDM_ROW_EMBEDDING : TDM_ROW_HEAD];
    return ref.buffer == TDM_NONE ? tdm_nowhere : ref;
}

bool tdm_home_is_far(const struct tdm_program *program, enum tdm_content content, uint32_t unit)
{
    uint32_t home = tdm_home_of(program, content, unit).buffer;
    return home != TDM_NONE && program->buffers[home].place != TDM_DEVICE;
}

bool tdm_weights_staged(const struct tdm_program *program, uint32_t unit)
{
    return tdm_weights_sliced(program->schedule) ||
           tdm_home_is_far(program, TDM_UNIT_WEIGHTS, unit);
}

/* Cuts the slots of a buffer of weights down to the part that a rank has. Returns the buffer. */
static uint32_t cut_weights(struct tdm_builder *b, uint32_t number, enum tdm_content content,
                            uint32_t unit)
{
    struct tdm_buffer *buffer = &b->program->buffers[number];
    if (content != TDM_UNIT_WEIGHTS || !tdm_weights_sliced(b->schedule))
        return number;
    uint64_t elements = tdm_rank_part(b->schedule, unit, 0).elements;
    buffer->slot_bytes =
        tdm_size_align(tdm_size_mul(elements, tdm_dtype_bytes(buffer->dtype)), TDM_SLOT_ALIGN);
    buffer->bytes = tdm_size_mul(buffer->slot_bytes, buffer->slots);
    return number;
}

/* Home of a content of embedding or head. */
static uint32_t declare_unit_home(struct tdm_builder *b, enum tdm_place place,
                                  enum tdm_category category, enum tdm_content content,
                                  uint32_t unit, const char *name, const char *of)
{
    bool sliced = tdm_is_sliced(b->schedule, content, unit);
    uint32_t number =
        tdm_declare(b, place, category, TDM_AXIS_UNIT, content, unit, 0, 1, "%s.%s", name, of);
    if (sliced)
        tdm_declare_slices(b, number, unit, tdm_slice_count(b->schedule, unit));
    cut_weights(b, number, content, unit);
    return tdm_declare_resident(b, number, content, unit, sliced ? 0 : TDM_NONE);
}

/* Homes of a content of units: a row of layers at each place, one buffer each for embedding and
 * head. */
static void declare_homes(struct tdm_builder *b, enum tdm_content content, const char *name)
{
    if (tdm_content_dtype(b->schedule, content) == TDM_DTYPE_NONE)
        return;
    const struct tdm_home *home = &b->schedule->homes[tdm_state_of(content)];
    uint32_t *rows = b->layout->home[content - TDM_UNIT_WEIGHTS];
    enum tdm_place far = b->schedule->machine->topology.far;
    uint32_t layers = b->model->layers, near = home->device_layers;
    uint32_t largest = largest_layer(b->model);
    uint32_t embedding = tdm_model_embedding_unit(b->model);
    uint32_t head = tdm_model_head_unit(b->model);
    enum tdm_category category = content == TDM_UNIT_WEIGHTS ? TDM_WEIGHTS : TDM_OPTIMIZER;

    if (near > 0)
        rows[TDM_ROW_LAYERS] = tdm_declare_resident(
            b,
            cut_weights(b,
                        tdm_declare(b, TDM_DEVICE, category, TDM_AXIS_UNIT, content, largest, 0,
                                    near, "%s.layers", name),
                        content, largest),
            content, tdm_home_layer(home, layers, TDM_DEVICE, 0), TDM_NONE);
    if (near < layers)
        rows[TDM_ROW_HOST_LAYERS] = tdm_declare_resident(
            b,
            cut_weights(b,
                        tdm_declare(b, far, category, TDM_AXIS_UNIT, content, largest, 0,
                                    layers - near, "%s.host_layers", name),
                        content, largest),
            content, tdm_home_layer(home, layers, far, 0), TDM_NONE);
    rows[TDM_ROW_EMBEDDING] =
        declare_unit_home(b, home->embedding, category, content, embedding, name, "embedding");
    rows[TDM_ROW_HEAD] = declare_unit_home(b, home->head, category, content, head, name, "head");
}

/* Is a content of a unit at home on the host and used on the device? If the host updates the unit,
 * only its weights are. */
static bool is_staged(const struct tdm_builder *b, enum tdm_content content, uint32_t unit)
{
    if (content == TDM_UNIT_WEIGHTS && tdm_weights_sliced(b->schedule))
        return true;
    return tdm_schedule_home(b->schedule, tdm_state_of(content), unit) != TDM_DEVICE &&
           (content == TDM_UNIT_WEIGHTS || !tdm_updates_on_host(b->schedule, unit));
}

/* Declares the device buffers for a content of units that are at home on the host: a ring for
 * layers, and one buffer each for embedding and head. */
static void declare_staged(struct tdm_builder *b, enum tdm_content content, uint32_t slots,
                           const char *name)
{
    if (tdm_content_dtype(b->schedule, content) == TDM_DTYPE_NONE)
        return;
    uint32_t *rows = b->layout->staged[content - TDM_UNIT_WEIGHTS];
    uint32_t far = 0; /* more slots than this would stay empty */
    for (uint32_t layer = 0; layer < b->model->layers; layer++)
        far += is_staged(b, content, layer);
    if (slots > far)
        slots = far;
    if (far > 0)
        rows[TDM_ROW_LAYERS] =
            tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content, largest_layer(b->model),
                        0, slots, "staged_%s.layers", name);
    if (is_staged(b, content, tdm_model_embedding_unit(b->model)))
        rows[TDM_ROW_EMBEDDING] =
            tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content,
                        tdm_model_embedding_unit(b->model), 0, 1, "staged_%s.embedding", name);
    if (is_staged(b, content, tdm_model_head_unit(b->model)))
        rows[TDM_ROW_HEAD] =
            tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content,
                        tdm_model_head_unit(b->model), 0, 1, "staged_%s.head", name);
}

/* Declares the ring for masters or moments of units that are at home on the host: layers, and the
 * slices of embedding and head. */
static void declare_state_ring(struct tdm_builder *b, enum tdm_content content, const char *name)
{
    if (tdm_content_dtype(b->schedule, content) == TDM_DTYPE_NONE)
        return;
    uint32_t slots = b->schedule->rings.optimizer, layers = b->model->layers;
    uint32_t far = 0, largest = TDM_NONE; /* number of passes, and the unit with the most bytes */
    for (uint32_t unit = 0; unit < b->model->unit_count; unit++) {
        if (!is_staged(b, content, unit))
            continue;
        far += tdm_slice_count(b->schedule, unit);
        if (largest == TDM_NONE || tdm_slice_at(b->schedule, unit, 0).elements >
                                       tdm_slice_at(b->schedule, largest, 0).elements)
            largest = unit;
    }
    if (far == 0)
        return;
    uint32_t number = tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content, largest, 0,
                                  slots < far ? slots : far, "staged_%s.layers", name);
    if (largest >= layers)
        tdm_declare_slices(b, number, largest, slots < far ? slots : far);
    b->layout->staged[content - TDM_UNIT_WEIGHTS][TDM_ROW_LAYERS] = number;
}

void tdm_declare_state(struct tdm_builder *b)
{
    const struct tdm_rings *rings = &b->schedule->rings;
    declare_homes(b, TDM_UNIT_WEIGHTS, "weights");
    declare_staged(b, TDM_UNIT_WEIGHTS, rings->weights, "weights");
    /* an evaluate pass has them too and leaves them unchanged, so that it can run between training
     * steps */
    declare_homes(b, TDM_UNIT_MASTER, "master");
    declare_homes(b, TDM_UNIT_MOMENT1, "moment1");
    declare_homes(b, TDM_UNIT_MOMENT2, "moment2");
    declare_state_ring(b, TDM_UNIT_MASTER, "master");
    declare_state_ring(b, TDM_UNIT_MOMENT1, "moment1");
    declare_state_ring(b, TDM_UNIT_MOMENT2, "moment2");
}

bool tdm_gradient_is_transient(const struct tdm_program *program, uint32_t unit)
{
    return !tdm_gradients_stay(program->schedule) ||
           tdm_home_is_far(program, TDM_UNIT_GRADIENT, unit);
}

/* Where a unit's gradient stays until its update; without an optimizer, beyond the step. */
static uint32_t declare_gradient_home(struct tdm_builder *b, uint32_t unit, const char *name)
{
    enum tdm_place place = tdm_schedule_home(b->schedule, TDM_STATE_GRADIENTS, unit);
    uint32_t number = tdm_declare(b, place, TDM_GRADIENTS, TDM_AXIS_UNIT, TDM_UNIT_GRADIENT, unit,
                                  0, 1, "gradients.%s", name);
    return tdm_updates_at_end(b->schedule)
               ? number
               : tdm_declare_resident(b, number, TDM_EMPTY, unit, TDM_NONE);
}

static void declare_gradient_homes(struct tdm_builder *b)
{
    uint32_t *rows = b->layout->home[TDM_UNIT_GRADIENT - TDM_UNIT_WEIGHTS];
    char name[24];
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        snprintf(name, sizeof(name), "layer%u", layer);
        b->layout->gradient_home[layer] = declare_gradient_home(b, layer, name);
    }
    rows[TDM_ROW_EMBEDDING] =
        declare_gradient_home(b, tdm_model_embedding_unit(b->model), "embedding");
    rows[TDM_ROW_HEAD] = declare_gradient_home(b, tdm_model_head_unit(b->model), "head");
    if (tdm_updates_at_end(b->schedule))
        declare_staged(b, TDM_UNIT_GRADIENT, b->schedule->rings.optimizer, "gradients");
}

/* Where the head sums its part of a tied embedding's gradient. It stays where the embedding's
 * does. */
static void declare_tied_gradient(struct tdm_builder *b)
{
    struct tdm_layout *layout = b->layout;
    bool passes = tdm_gradient_is_transient(b->program, tdm_model_embedding_unit(b->model));
    bool outlives = b->schedule->optimizer.kind == TDM_OPTIMIZER_NONE; /* outlives the step */
    enum tdm_content content = TDM_TIED_GRADIENT;

    layout->tied_gradient = tdm_declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_UNIT, content, 0, 0,
                                        1, "gradients.tied");
    if (tdm_gradients_stay(b->schedule) && passes)
        layout->tied_home = tdm_declare(
            b,
            tdm_schedule_home(b->schedule, TDM_STATE_GRADIENTS, tdm_model_embedding_unit(b->model)),
            TDM_GRADIENTS, TDM_AXIS_UNIT, content, 0, 0, 1, "gradients.tied_home");
    if (outlives)
        tdm_declare_resident(b, passes ? layout->tied_home : layout->tied_gradient, TDM_EMPTY,
                             TDM_NONE, TDM_NONE);
    else if (layout->tied_home != TDM_NONE &&
             !tdm_updates_on_host(b->schedule, tdm_model_embedding_unit(b->model)))
        layout->staged_tied = tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content, 0, 0,
                                          1, "staged_gradients.tied");
}

bool tdm_gradient_visits_host(const struct tdm_program *program, uint32_t unit)
{
    return tdm_updates_on_host(program->schedule, unit) &&
           !(tdm_gradients_stay(program->schedule) &&
             tdm_home_is_far(program, TDM_UNIT_GRADIENT, unit));
}

/* The number of layers of [layer, end) whose gradients pass. */
static uint32_t count_passing(const struct tdm_program *program, uint32_t layer, uint32_t end)
{
    uint32_t count = 0;
    for (; layer < end; layer++)
        count += tdm_gradient_is_transient(program, layer);
    return count;
}

void tdm_declare_gradients(struct tdm_builder *b)
{
    const struct tdm_schedule *schedule = b->schedule;
    const struct tdm_model *model = b->model;
    struct tdm_layout *layout = b->layout;
    bool by_layer = schedule->order == TDM_LAYER_MAJOR;
    uint32_t largest = largest_layer(model);
    uint32_t embedding = tdm_model_embedding_unit(model), head = tdm_model_head_unit(model);
    enum tdm_content content = TDM_UNIT_GRADIENT;

    if (tdm_gradients_stay(schedule))
        declare_gradient_homes(b);
    uint32_t row = TDM_NONE, group_of_row = TDM_NONE, slot = 0;
    const uint32_t passing = tdm_nest_defers(schedule) ? schedule->rings.gradients : 1;
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        uint32_t group = layout->group_of[layer];
        uint32_t end = tdm_schedule_first_layer(schedule, group) + schedule->groups[group].layers;
        if (!tdm_gradient_is_transient(b->program, layer)) {
            struct tdm_ref home = tdm_home_of(b->program, content, layer);
            layout->layer_gradient[layer] = home.buffer;
            layout->layer_gradient_slot[layer] = home.slot;
            continue;
        }
        if (by_layer ? row == TDM_NONE : group != group_of_row) {
            slot = 0;
            row = by_layer ? tdm_declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content,
                                         largest, 0, passing, "gradients.layer")
                           : tdm_declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content,
                                         largest, 0, count_passing(b->program, layer, end),
                                         "gradients.group%u", group);
        }
        group_of_row = group;
        layout->layer_gradient[layer] = row;
        layout->layer_gradient_slot[layer] = by_layer ? slot++ % passing : slot++;
    }
    layout->embedding_gradient =
        tdm_gradient_is_transient(b->program, embedding)
            ? tdm_declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content, embedding, 0, 1,
                          "gradients.embedding_sum")
            : tdm_home_of(b->program, content, embedding).buffer;
    layout->head_gradient = tdm_gradient_is_transient(b->program, head)
                                ? tdm_declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content,
                                              head, 0, 1, "gradients.head_sum")
                                : tdm_home_of(b->program, content, head).buffer;
    if (model->tied)
        declare_tied_gradient(b);
}

void tdm_declare_host_updates(struct tdm_builder *b)
{
    struct tdm_layout *layout = b->layout;
    const struct tdm_model *model = b->model;
    enum tdm_content content = TDM_UNIT_GRADIENT;
    enum tdm_place place = b->schedule->optimizer.on;
    uint32_t slots = b->schedule->rings.host_gradients, visitors = 0, units = 0;
    uint32_t embedding = tdm_model_embedding_unit(model), head = tdm_model_head_unit(model);
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        units += tdm_updates_on_host(b->schedule, unit);
        visitors += unit < model->layers && tdm_gradient_visits_host(b->program, unit);
    }
    if (visitors > 0)
        layout->host_gradient[TDM_ROW_LAYERS] =
            tdm_declare(b, place, TDM_STAGING, TDM_AXIS_RING, content, largest_layer(model), 0,
                        slots < visitors ? slots : visitors, "host_gradients.layers");
    if (tdm_gradient_visits_host(b->program, embedding)) {
        layout->host_gradient[TDM_ROW_EMBEDDING] =
            tdm_declare(b, place, TDM_STAGING, TDM_AXIS_RING, content, embedding, 0, 1,
                        "host_gradients.embedding");
        if (model->tied)
            layout->host_tied = tdm_declare(b, place, TDM_STAGING, TDM_AXIS_RING, TDM_TIED_GRADIENT,
                                            0, 0, 1, "host_gradients.tied");
    }
    if (tdm_gradient_visits_host(b->program, head))
        layout->host_gradient[TDM_ROW_HEAD] = tdm_declare(
            b, place, TDM_STAGING, TDM_AXIS_RING, content, head, 0, 1, "host_gradients.head");
    if (units > 0 && b->schedule->optimizer.clip != TDM_CLIP_NONE)
        layout->host_norms = tdm_declare(b, place, TDM_STAGING, TDM_AXIS_UNIT, TDM_GRADIENT_NORM, 0,
                                         1, model->unit_count, "host_norms");
}
