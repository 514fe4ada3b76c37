/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of a program: what a schedule declares, with place, category, slots and bytes. */
#include "base/size.h"
#include "schedule/attend.h"
#include "schedule/gather.h"
#include "schedule/kv_row.h"
#include "schedule/layout.h"
#include "schedule/lowering.h"
#include "schedule/operands.h"
#include "schedule/optimizer.h"
#include "schedule/scratch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_WORKSPACES 32u

struct builder {
    struct tdm_program *program;
    const struct tdm_schedule *schedule;
    const struct tdm_model *model;
    struct tdm_layout *layout;
    uint64_t chunk_capacity; /* tokens of the largest chunk */
    uint32_t capacity;       /* of program->buffers */
};

static enum tdm_category category_of(enum tdm_content content)
{
    switch (content) {
    case TDM_UNIT_WEIGHTS:
        return TDM_WEIGHTS;
    case TDM_UNIT_MASTER:
    case TDM_UNIT_MOMENT1:
    case TDM_UNIT_MOMENT2:
        return TDM_OPTIMIZER;
    case TDM_UNIT_GRADIENT:
    case TDM_TIED_GRADIENT:
        return TDM_GRADIENTS;
    case TDM_KVPAGES:
    case TDM_PAGE_MEANS:
        return TDM_KV;
    case TDM_DKVPAGES:
        return TDM_KV_GRADIENTS;
    case TDM_LOGIT_TILE:
    case TDM_HEAD_LSE:
    case TDM_HEAD_SUM:
        return TDM_LOGITS;
    case TDM_TOKENS:
        return TDM_STAGING;
    default:
        return TDM_WORKSPACE;
    }
}

static bool is_of_unit(enum tdm_content content)
{
    return content >= TDM_UNIT_WEIGHTS && content <= TDM_UNIT_GRADIENT;
}

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

/* Adds a buffer of `slots` slots for `content`; returns its number. Capacity was reserved. */
static uint32_t declare(struct builder *b, enum tdm_place place, enum tdm_category category,
                        enum tdm_axis axis, enum tdm_content content, uint32_t unit,
                        uint64_t tokens, uint32_t slots, const char *format, ...)
    __attribute__((format(printf, 9, 10)));

static uint32_t declare(struct builder *b, enum tdm_place place, enum tdm_category category,
                        enum tdm_axis axis, enum tdm_content content, uint32_t unit,
                        uint64_t tokens, uint32_t slots, const char *format, ...)
{
    uint32_t number = b->program->buffer_count++;
    struct tdm_buffer *buffer = &b->program->buffers[number];
    va_list args;
    va_start(args, format);
    vsnprintf(buffer->name, sizeof(buffer->name), format, args);
    va_end(args);
    buffer->place = place;
    buffer->category = category;
    buffer->content = content;
    buffer->axis = axis;
    buffer->by_part = is_of_unit(content);
    buffer->dtype = tdm_content_dtype(b->schedule, content);
    buffer->slots = slots;
    buffer->slot_bytes =
        tdm_size_align(tdm_content_bytes(b->schedule, content, unit, tokens), TDM_SLOT_ALIGN);
    buffer->bytes = tdm_size_mul(buffer->slot_bytes, slots);
    return number;
}

/* The unit with the largest layout among the layers: what a slot of a row must hold. */
static uint32_t largest_layer(const struct tdm_model *model)
{
    uint32_t largest = 0;
    for (uint32_t layer = 1; layer < model->layers; layer++)
        if (model->units[layer].elements > model->units[largest].elements)
            largest = layer;
    return largest;
}

static uint32_t resident(struct builder *b, uint32_t number, enum tdm_content content,
                         uint32_t layer, uint32_t chunk)
{
    struct tdm_buffer *buffer = &b->program->buffers[number];
    buffer->resident = true;
    buffer->initial = (struct tdm_tag){content, layer, chunk, TDM_NONE};
    return number;
}

/* Homes of a content of units: a row of layers at each place, one buffer each for embedding and
 * head. */
static void declare_homes(struct builder *b, enum tdm_content content, const char *name)
{
    if (tdm_content_dtype(b->schedule, content) == TDM_DTYPE_NONE)
        return;
    const struct tdm_home *home = &b->schedule->homes[tdm_state_of(content)];
    uint32_t *rows = b->layout->home[content - TDM_UNIT_WEIGHTS];
    uint32_t layers = b->model->layers, near = home->device_layers;
    uint32_t largest = largest_layer(b->model);
    uint32_t embedding = tdm_model_embedding_unit(b->model);
    uint32_t head = tdm_model_head_unit(b->model);
    enum tdm_category category = category_of(content);

    if (near > 0)
        rows[TDM_ROW_LAYERS] =
            resident(b,
                     declare(b, TDM_DEVICE, category, TDM_AXIS_UNIT, content, largest, 0, near,
                             "%s.layers", name),
                     content, tdm_home_layer(home, layers, TDM_DEVICE, 0), TDM_NONE);
    if (near < layers)
        rows[TDM_ROW_HOST_LAYERS] =
            resident(b,
                     declare(b, TDM_HOST, category, TDM_AXIS_UNIT, content, largest, 0,
                             layers - near, "%s.host_layers", name),
                     content, tdm_home_layer(home, layers, TDM_HOST, 0), TDM_NONE);
    rows[TDM_ROW_EMBEDDING] = resident(b,
                                       declare(b, home->embedding, category, TDM_AXIS_UNIT, content,
                                               embedding, 0, 1, "%s.embedding", name),
                                       content, embedding, TDM_NONE);
    rows[TDM_ROW_HEAD] = resident(
        b, declare(b, home->head, category, TDM_AXIS_UNIT, content, head, 0, 1, "%s.head", name),
        content, head, TDM_NONE);
}

/* Does what is at home on the host of a unit come to the device? For updates on the host it does not. */
static bool is_staged(const struct builder *b, enum tdm_content content, uint32_t unit)
{
    return tdm_schedule_home(b->schedule, tdm_state_of(content), unit) == TDM_HOST &&
           (content == TDM_UNIT_WEIGHTS || !tdm_updates_on_host(b->schedule, unit));
}

/* On the device: where what is at home on the host is used. */
static void declare_staged(struct builder *b, enum tdm_content content, uint32_t slots,
                           const char *name)
{
    if (tdm_content_dtype(b->schedule, content) == TDM_DTYPE_NONE)
        return;
    uint32_t *rows = b->layout->staged[content - TDM_UNIT_WEIGHTS];
    uint32_t far = 0; /* more slots would stay empty */
    for (uint32_t layer = 0; layer < b->model->layers; layer++)
        far += is_staged(b, content, layer);
    if (slots > far)
        slots = far;
    if (far > 0)
        rows[TDM_ROW_LAYERS] = declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content,
                                       largest_layer(b->model), 0, slots, "staged_%s.layers", name);
    if (is_staged(b, content, tdm_model_embedding_unit(b->model)))
        rows[TDM_ROW_EMBEDDING] =
            declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content,
                    tdm_model_embedding_unit(b->model), 0, 1, "staged_%s.embedding", name);
    if (is_staged(b, content, tdm_model_head_unit(b->model)))
        rows[TDM_ROW_HEAD] = declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content,
                                     tdm_model_head_unit(b->model), 0, 1, "staged_%s.head", name);
}

static void declare_state(struct builder *b)
{
    const struct tdm_rings *rings = &b->schedule->rings;
    declare_homes(b, TDM_UNIT_WEIGHTS, "weights");
    declare_staged(b, TDM_UNIT_WEIGHTS, rings->weights, "weights");
    /* an evaluate pass has them too, untouched, so that it can run among steps that train */
    declare_homes(b, TDM_UNIT_MASTER, "master");
    declare_homes(b, TDM_UNIT_MOMENT1, "moment1");
    declare_homes(b, TDM_UNIT_MOMENT2, "moment2");
    declare_staged(b, TDM_UNIT_MASTER, rings->optimizer, "master");
    declare_staged(b, TDM_UNIT_MOMENT1, rings->optimizer, "moment1");
    declare_staged(b, TDM_UNIT_MOMENT2, rings->optimizer, "moment2");
}

/* The state first: residents are laid in this order, and another program of the model, with another
 * nest or pass but the same homes, must find weights, master and moments where they are here. */
static void declare_residents(struct builder *b)
{
    struct tdm_layout *layout = b->layout;
    uint32_t chunks = b->program->chunk_count;

    declare_state(b);
    layout->tokens = resident(b,
                              declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_CHUNK, TDM_TOKENS, 0,
                                      b->chunk_capacity, chunks, "tokens"),
                              TDM_TOKENS, TDM_NONE, 0);
    layout->loss = resident(
        b, declare(b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_CHUNK, TDM_LOSS, 0, 1, chunks, "loss"),
        TDM_EMPTY, TDM_NONE, TDM_NONE);
    if (b->schedule->pass == TDM_TRAIN)
        layout->norms = resident(b,
                                 declare(b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_UNIT,
                                         TDM_GRADIENT_NORM, 0, 1, b->model->unit_count, "norms"),
                                 TDM_EMPTY, TDM_NONE, TDM_NONE);
}

bool tdm_gradient_passes(const struct tdm_program *program, uint32_t unit)
{
    return !tdm_gradients_stay(program->schedule) ||
           tdm_home_is_far(program, TDM_UNIT_GRADIENT, unit);
}

/* Where a unit's gradient stays: until its update, or without an optimizer beyond the step. */
static uint32_t declare_gradient_home(struct builder *b, uint32_t unit, const char *name)
{
    enum tdm_place place = tdm_schedule_home(b->schedule, TDM_STATE_GRADIENTS, unit);
    uint32_t number = declare(b, place, TDM_GRADIENTS, TDM_AXIS_UNIT, TDM_UNIT_GRADIENT, unit, 0, 1,
                              "gradients.%s", name);
    return tdm_updates_at_end(b->schedule) ? number
                                           : resident(b, number, TDM_EMPTY, unit, TDM_NONE);
}

static void declare_gradient_homes(struct builder *b)
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

/* Where the head adds to the gradient of a tied embedding; it stays where the embedding's does. */
static void declare_tied_gradient(struct builder *b)
{
    struct tdm_layout *layout = b->layout;
    bool passes = tdm_gradient_passes(b->program, tdm_model_embedding_unit(b->model));
    bool outlives = b->schedule->optimizer.kind == TDM_OPTIMIZER_NONE; /* the step */
    enum tdm_content content = TDM_TIED_GRADIENT;

    layout->tied_gradient =
        declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_UNIT, content, 0, 0, 1, "gradients.tied");
    if (tdm_gradients_stay(b->schedule) && passes)
        layout->tied_home = declare(b, TDM_HOST, TDM_GRADIENTS, TDM_AXIS_UNIT, content, 0, 0, 1,
                                    "gradients.tied_home");
    if (outlives)
        resident(b, passes ? layout->tied_home : layout->tied_gradient, TDM_EMPTY, TDM_NONE,
                 TDM_NONE);
    else if (layout->tied_home != TDM_NONE &&
             !tdm_updates_on_host(b->schedule, tdm_model_embedding_unit(b->model)))
        layout->staged_tied = declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, content, 0, 0, 1,
                                      "staged_gradients.tied");
}

bool tdm_gradient_visits_host(const struct tdm_program *program, uint32_t unit)
{
    return tdm_updates_on_host(program->schedule, unit) &&
           !(tdm_gradients_stay(program->schedule) &&
             tdm_home_is_far(program, TDM_UNIT_GRADIENT, unit));
}

/* On the host: what updates there read of the device. */
static void declare_host_updates(struct builder *b)
{
    struct tdm_layout *layout = b->layout;
    const struct tdm_model *model = b->model;
    enum tdm_content content = TDM_UNIT_GRADIENT;
    uint32_t slots = b->schedule->rings.optimizer, visitors = 0, units = 0;
    uint32_t embedding = tdm_model_embedding_unit(model), head = tdm_model_head_unit(model);
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        units += tdm_updates_on_host(b->schedule, unit);
        visitors += unit < model->layers && tdm_gradient_visits_host(b->program, unit);
    }
    if (visitors > 0)
        layout->host_gradient[TDM_ROW_LAYERS] =
            declare(b, TDM_HOST, TDM_STAGING, TDM_AXIS_RING, content, largest_layer(model), 0,
                    slots < visitors ? slots : visitors, "host_gradients.layers");
    if (tdm_gradient_visits_host(b->program, embedding)) {
        layout->host_gradient[TDM_ROW_EMBEDDING] =
            declare(b, TDM_HOST, TDM_STAGING, TDM_AXIS_RING, content, embedding, 0, 1,
                    "host_gradients.embedding");
        if (model->tied)
            layout->host_tied = declare(b, TDM_HOST, TDM_STAGING, TDM_AXIS_RING, TDM_TIED_GRADIENT,
                                        0, 0, 1, "host_gradients.tied");
    }
    if (tdm_gradient_visits_host(b->program, head))
        layout->host_gradient[TDM_ROW_HEAD] = declare(b, TDM_HOST, TDM_STAGING, TDM_AXIS_RING,
                                                      content, head, 0, 1, "host_gradients.head");
    if (units > 0 && b->schedule->optimizer.clip != TDM_CLIP_NONE)
        layout->host_norms = declare(b, TDM_HOST, TDM_STAGING, TDM_AXIS_UNIT, TDM_GRADIENT_NORM, 0,
                                     1, model->unit_count, "host_norms");
}

/* Where gradients are summed: at home where that is the device and they stay there; else one layer's
 * (layer-major) or one group's (chunk-major) at a time. */
static uint32_t count_passing(const struct tdm_program *program, uint32_t layer, uint32_t end)
{
    uint32_t count = 0;
    for (; layer < end; layer++)
        count += tdm_gradient_passes(program, layer);
    return count;
}

static void declare_gradients(struct builder *b)
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
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        uint32_t group = layout->group_of[layer];
        uint32_t end = tdm_schedule_first_layer(schedule, group) + schedule->groups[group].layers;
        if (!tdm_gradient_passes(b->program, layer)) {
            struct tdm_ref home = tdm_home_of(b->program, content, layer);
            layout->layer_gradient[layer] = home.buffer;
            layout->layer_gradient_slot[layer] = home.slot;
            continue;
        }
        if (by_layer ? row == TDM_NONE : group != group_of_row) {
            slot = 0;
            row = by_layer
                      ? declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content, largest, 0, 1,
                                "gradients.layer")
                      : declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content, largest, 0,
                                count_passing(b->program, layer, end), "gradients.group%u", group);
        }
        group_of_row = group;
        layout->layer_gradient[layer] = row;
        layout->layer_gradient_slot[layer] = by_layer ? 0 : slot++;
    }
    layout->embedding_gradient = tdm_gradient_passes(b->program, embedding)
                                     ? declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content,
                                               embedding, 0, 1, "gradients.embedding_sum")
                                     : tdm_home_of(b->program, content, embedding).buffer;
    layout->head_gradient = tdm_gradient_passes(b->program, head)
                                ? declare(b, TDM_DEVICE, TDM_GRADIENTS, TDM_AXIS_RING, content,
                                          head, 0, 1, "gradients.head_sum")
                                : tdm_home_of(b->program, content, head).buffer;
    if (model->tied)
        declare_tied_gradient(b);
}

/* Does a layer run forward again with its group? In chunk-major order the last layer of all does too:
 * its output comes then. */
static bool runs_again(const struct builder *b, uint32_t layer)
{
    const struct tdm_schedule *schedule = b->schedule;
    uint32_t group = b->layout->group_of[layer];
    uint32_t first = tdm_schedule_first_layer(schedule, group);
    bool top = layer == first + schedule->groups[group].layers - 1;
    return !top || (schedule->order == TDM_CHUNK_MAJOR && group == schedule->group_count - 1);
}

/* On the host, sums of dK, dV so far: of the chunks that a later one sees; of all where attention adds to them
 * there. */
static bool declare_far_gradients(struct builder *b, uint32_t layer)
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
        layout->host_dkv[layer] =
            declare(b, TDM_HOST, TDM_KV_GRADIENTS,
                    tdm_gathers(b->schedule, layer) ? TDM_AXIS_CHUNK : TDM_AXIS_RING, TDM_DKVPAGES,
                    0, b->chunk_capacity, seen, "kv_gradients.layer%u", layer);
    return true;
}

/* Chunk-major: the rows through which K, V and gradients of the host pass, shared by the layers in turn. */
static void declare_kv_rows(struct builder *b)
{
    struct tdm_layout *layout = b->layout;
    uint32_t chunks = 1, most = b->schedule->rings.kv;
    uint32_t far_kv = 0, far_gradients = 0;
    for (uint32_t layer = 0; layer < b->model->layers; layer++)
        if ((layout->host_kv[layer] != TDM_NONE || layout->far_slot[layer] != NULL) &&
            !tdm_gathers(b->schedule, layer))
            chunks = b->program->chunk_count;
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        if (layout->host_kv[layer] != TDM_NONE) {
            uint32_t row = far_kv++ % most;
            if (layout->kv_rows[row] == TDM_NONE)
                layout->kv_rows[row] =
                    declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_CHUNK, TDM_KVPAGES, 0,
                            b->chunk_capacity, chunks, "staged_kv.%u", row);
            layout->kv[layer] = layout->kv_rows[row];
        }
        if (layout->far_slot[layer] != NULL) {
            uint32_t row = far_gradients++ % most;
            if (layout->dkv_rows[row] == TDM_NONE)
                layout->dkv_rows[row] =
                    declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_CHUNK, TDM_DKVPAGES, 0,
                            b->chunk_capacity, chunks, "staged_kv_gradients.%u", row);
            layout->dkv[layer] = layout->dkv_rows[row];
        }
    }
}

static bool declare_kv(struct builder *b)
{
    struct tdm_layout *layout = b->layout;
    bool row = b->schedule->order == TDM_LAYER_MAJOR;
    bool backward = b->schedule->pass == TDM_TRAIN;
    uint32_t chunks = b->program->chunk_count;
    uint32_t shared = TDM_NONE, shared_gradients = TDM_NONE;

    if (row) {
        layout->kv_span = tdm_kv_span(b->program);
        uint32_t slots = tdm_kv_slots(b->program, layout->kv_span);
        enum tdm_axis axis = slots < chunks ? TDM_AXIS_RING : TDM_AXIS_CHUNK;
        shared =
            declare(b, TDM_DEVICE, TDM_KV, axis, TDM_KVPAGES, 0, b->chunk_capacity, slots, "kv");
        if (backward)
            shared_gradients = declare(b, TDM_DEVICE, TDM_KV_GRADIENTS, axis, TDM_DKVPAGES, 0,
                                       b->chunk_capacity, slots, "kv_gradients");
    }
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        const struct tdm_group *group = &b->schedule->groups[layout->group_of[layer]];
        bool kept = group->kv == TDM_KV_KEEP;
        bool held = row && !kept && group->held >= TDM_SET_QKV && runs_again(b, layer);
        layout->kv[layer] = shared;
        if (held || (kept && group->kv_place == TDM_DEVICE))
            layout->own_kv[layer] =
                declare(b, TDM_DEVICE, TDM_KV, TDM_AXIS_CHUNK, TDM_KVPAGES, 0, b->chunk_capacity,
                        chunks, "%s_kv.layer%u", held ? "held" : "kept", layer);
        else if (kept)
            layout->host_kv[layer] = declare(b, TDM_HOST, TDM_KV, TDM_AXIS_CHUNK, TDM_KVPAGES, 0,
                                             b->chunk_capacity, chunks, "kept_kv.layer%u", layer);
        layout->dkv[layer] = shared_gradients;
        if (row || !backward)
            continue;
        if (group->kv_gradients_place == TDM_DEVICE)
            layout->dkv[layer] =
                declare(b, TDM_DEVICE, TDM_KV_GRADIENTS, TDM_AXIS_CHUNK, TDM_DKVPAGES, 0,
                        b->chunk_capacity, chunks, "kv_gradients.layer%u", layer);
        else if (!declare_far_gradients(b, layer))
            return false;
    }
    if (!row)
        declare_kv_rows(b);
    return true;
}

/* Where pages win by a vote: their means, and the lists that the forward keeps for the backward. */
static void declare_lists(struct builder *b)
{
    struct tdm_layout *layout = b->layout;
    bool row = b->schedule->order == TDM_LAYER_MAJOR;
    uint32_t chunks = b->program->chunk_count, shared = TDM_NONE;
    if (row)
        shared = declare(b, TDM_DEVICE, TDM_KV, TDM_AXIS_CHUNK, TDM_PAGE_MEANS, 0,
                         b->chunk_capacity, chunks, "page_means");
    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        struct tdm_page_rule rule = tdm_schedule_page_rule(b->schedule, layer);
        if (rule.selector.kind != TDM_SELECT_TOP_K)
            continue;
        layout->means[layer] =
            row ? shared
                : declare(b, TDM_DEVICE, TDM_KV, TDM_AXIS_CHUNK, TDM_PAGE_MEANS, 0,
                          b->chunk_capacity, chunks, "page_means.layer%u", layer);
        /* in chunk-major order those of the last layer live for one chunk */
        if (b->schedule->pass == TDM_TRAIN)
            layout->lists[layer] = declare(
                b, TDM_DEVICE, TDM_RESIDUALS, TDM_AXIS_CHUNK, TDM_PAGE_LISTS, 0, b->chunk_capacity,
                row || layer + 1 < b->model->layers ? chunks : 1, "page_lists.layer%u", layer);
    }
}

static const struct {
    enum tdm_content content;
    enum tdm_set set;
    const char *name;
} stores[TDM_STORES] = {
    [TDM_STORE_ATTENTION] = {TDM_ATTENTION_OUT, TDM_SET_ATTENTION_OUTPUT, "attention"},
    [TDM_STORE_Q] = {TDM_Q, TDM_SET_QKV, "q"},
    [TDM_STORE_GATE_UP] = {TDM_GATE_UP, TDM_SET_ALL, "gate_up"},
};

enum tdm_content tdm_store_content(enum tdm_store store)
{
    return stores[store].content;
}

enum tdm_set tdm_store_set(enum tdm_store store)
{
    return stores[store].set;
}

/* What keeps a chunk of a store from being held: it is kept itself; or, for q, the attention output is:
 * then nothing but the backward needs q. */
static enum tdm_store kept_instead(enum tdm_store store)
{
    return store == TDM_STORE_Q ? TDM_STORE_ATTENTION : store;
}

static void declare_store(struct builder *b, enum tdm_store store, uint32_t layer)
{
    const struct tdm_schedule *schedule = b->schedule;
    struct tdm_layout *layout = b->layout;
    const struct tdm_group *group = &schedule->groups[layout->group_of[layer]];
    uint32_t chunks = b->program->chunk_count;
    bool row = schedule->order == TDM_LAYER_MAJOR;
    /* in chunk-major order the first forward of the last layer makes its K and V alone */
    bool forwarded = row || layer + 1 < b->model->layers;

    if (forwarded && group->kept >= stores[store].set && group->kept_from_chunk < chunks)
        layout->kept[store][layer] =
            declare(b, group->kept_place, TDM_RESIDUALS, TDM_AXIS_CHUNK, stores[store].content, 0,
                    b->chunk_capacity, chunks - group->kept_from_chunk, "kept_%s.layer%u",
                    stores[store].name, layer);
    /* what a group does not run forward again it cannot hold; what is kept need not be held */
    uint32_t held_to =
        layout->kept[kept_instead(store)][layer] == TDM_NONE ? chunks : group->kept_from_chunk;
    if (runs_again(b, layer) && group->held >= stores[store].set &&
        group->held_from_chunk < held_to)
        layout->held[store][layer] =
            declare(b, group->held_place, TDM_RESIDUALS, TDM_AXIS_CHUNK, stores[store].content, 0,
                    b->chunk_capacity, row ? held_to - group->held_from_chunk : 1,
                    "held_%s.layer%u", stores[store].name, layer);
}

/* What groups keep and hold. */
static void declare_stores(struct builder *b)
{
    const struct tdm_schedule *schedule = b->schedule;
    struct tdm_layout *layout = b->layout;
    uint32_t chunks = b->program->chunk_count;
    bool row = schedule->order == TDM_LAYER_MAJOR;

    for (uint32_t group = 1; group < schedule->group_count; group++)
        layout->input[group] =
            declare(b, schedule->groups[group].input_place, TDM_RESIDUALS, TDM_AXIS_CHUNK, TDM_X, 0,
                    b->chunk_capacity, chunks, "input.group%u", group);

    for (uint32_t layer = 0; layer < b->model->layers; layer++) {
        const struct tdm_group *group = &schedule->groups[layout->group_of[layer]];
        if (layer > tdm_schedule_first_layer(schedule, layout->group_of[layer]))
            layout->held_input[layer] =
                declare(b, group->held_place, TDM_RESIDUALS, TDM_AXIS_CHUNK, TDM_X, 0,
                        b->chunk_capacity, row ? chunks : 1, "held_input.layer%u", layer);
        for (int store = 0; store < TDM_STORES; store++)
            declare_store(b, (enum tdm_store)store, layer);
    }
}

/* Is any of these buffers (skipping TDM_NONE) on the host? */
static bool any_on_host(const struct tdm_program *program, const uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] != TDM_NONE && program->buffers[numbers[i]].place == TDM_HOST)
            return true;
    return false;
}

/* Staging rings on the device for what lives on the host. */
static void declare_rings(struct builder *b)
{
    struct tdm_program *program = b->program;
    struct tdm_layout *layout = b->layout;
    uint32_t layers = b->model->layers, groups = b->schedule->group_count;
    bool host_inputs = any_on_host(program, layout->input, groups);
    bool host_held = any_on_host(program, layout->held_input, layers);
    uint32_t chunks = program->chunk_count;
    uint32_t fetch_slots = tdm_prefetch_depth(program) + 1;
    uint32_t stash_slots =
        b->schedule->rings.stashed < chunks ? b->schedule->rings.stashed : chunks;

    if (host_inputs || host_held)
        layout->fetched_x = declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, TDM_X, 0,
                                    b->chunk_capacity, fetch_slots, "fetched_x");
    /* layer-major stashes group inputs from the stream itself */
    if (host_held || (host_inputs && b->schedule->order == TDM_CHUNK_MAJOR))
        layout->stashed_x = declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, TDM_X, 0,
                                    b->chunk_capacity, stash_slots, "stashed_x");
    for (int store = 0; store < TDM_STORES; store++) {
        if (!any_on_host(program, layout->kept[store], layers) &&
            !any_on_host(program, layout->held[store], layers))
            continue;
        layout->fetched[store] =
            declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, stores[store].content, 0,
                    b->chunk_capacity, fetch_slots, "fetched_%s", stores[store].name);
        layout->stashed[store] =
            declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_RING, stores[store].content, 0,
                    b->chunk_capacity, stash_slots, "stashed_%s", stores[store].name);
    }
}

static void declare_workspaces(struct builder *b)
{
    static const struct {
        enum tdm_content content;
        const char *name;
    } table[] = {
        {TDM_X, "x"},
        {TDM_NORMED, "normed"},
        {TDM_Q, "q"},
        {TDM_QRAW, "q_raw"},
        {TDM_KVRAW, "kv_raw"},
        {TDM_ATTENTION_OUT, "attention"},
        {TDM_Y, "y"},
        {TDM_MLP_NORMED, "mlp_normed"},
        {TDM_GATE_UP, "gate_up"},
        {TDM_ACTIVATED, "activated"},
        {TDM_DACTIVATED, "d_activated"},
        {TDM_DMLP_NORMED, "d_mlp_normed"},
        {TDM_DATTENTION, "d_attention"},
        {TDM_DQ, "d_q"},
        {TDM_DKVRAW, "d_kv_raw"},
        {TDM_DNORMED, "d_normed"},
        {TDM_FINAL_NORMED, "final_normed"},
        {TDM_TOKEN_ORDER, "token_order"},
        {TDM_PAGE_LISTS, "page_lists"},
    };
    struct tdm_layout *layout = b->layout;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        layout->work[table[i].content] =
            declare(b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, table[i].content, 0,
                    b->chunk_capacity, 1, "%s", table[i].name);
    uint64_t tile = b->schedule->head_tile_tokens;
    if (tile > b->chunk_capacity)
        tile = b->chunk_capacity;
    layout->work[TDM_LOGIT_TILE] =
        declare(b, TDM_DEVICE, TDM_LOGITS, TDM_AXIS_RING, TDM_LOGIT_TILE, 0, tile, 1, "logits");
    if (layout->vocabulary_tiles > 1) {
        layout->work[TDM_HEAD_LSE] =
            declare(b, TDM_DEVICE, TDM_LOGITS, TDM_AXIS_RING, TDM_HEAD_LSE, 0, tile, 1, "head_lse");
        layout->work[TDM_HEAD_SUM] =
            declare(b, TDM_DEVICE, TDM_LOGITS, TDM_AXIS_RING, TDM_HEAD_SUM, 0, tile, 1, "head_sum");
    }
    /* without a backward it is X that runs through it, in chunk-major order too */
    layout->stream_slots = b->schedule->order == TDM_CHUNK_MAJOR && b->schedule->group_count == 1
                               ? 1
                               : b->program->chunk_count;
    layout->stream = declare(b, TDM_DEVICE, TDM_RESIDUALS, TDM_AXIS_CHUNK, TDM_X, 0,
                             b->chunk_capacity, layout->stream_slots, "stream");
}

static uint32_t *none_array(uint32_t count)
{
    uint32_t *array = malloc(((size_t)count + 1) * sizeof(*array));
    for (uint32_t i = 0; array != NULL && i <= count; i++)
        array[i] = TDM_NONE;
    return array;
}

static struct tdm_layout *layout_new(const struct tdm_program *program)
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
                           &layout->stashed_x};
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
        &layout->layer_gradient,
        &layout->layer_gradient_slot,
        &layout->gradient_home,
        &layout->kv,
        &layout->own_kv,
        &layout->host_kv,
        &layout->host_dkv,
        &layout->dkv,
        &layout->means,
        &layout->lists,
        &layout->kept[TDM_STORE_ATTENTION],
        &layout->kept[TDM_STORE_Q],
        &layout->kept[TDM_STORE_GATE_UP],
        &layout->held[TDM_STORE_ATTENTION],
        &layout->held[TDM_STORE_Q],
        &layout->held[TDM_STORE_GATE_UP],
        &layout->held_input,
        &layout->group_of,
    };
    layout->layer_count = layers;
    bool complete = true;
    for (size_t i = 0; i < sizeof(by_layer) / sizeof(by_layer[0]); i++)
        complete &= (*by_layer[i] = none_array(layers)) != NULL;
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
    }
    free(layout->held_input);
    free(layout->group_of);
    free(layout->tile_base);
    free(layout->visits);
    free(layout->updates);
    free(layout);
}

enum tdm_status tdm_buffers_declare(struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_model *model = schedule->model;
    struct builder b = {.program = program, .schedule = schedule, .model = model};

    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
        if (program->chunks[chunk].tokens > b.chunk_capacity)
            b.chunk_capacity = program->chunks[chunk].tokens;
    b.capacity = 2 * MAX_WORKSPACES + 2 * TDM_MAX_RING + 8 * TDM_UNIT_CONTENTS +
                 14 * model->layers + 2 * schedule->group_count;
    program->layout = b.layout = layout_new(program);
    program->buffers = calloc(b.capacity, sizeof(*program->buffers));
    if (program->layout == NULL || program->buffers == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the program's buffers");

    declare_residents(&b);
    program->scratch = declare(&b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, TDM_SCRATCH, 0,
                               b.chunk_capacity, 1, "scratch");
    program->product_bytes = tdm_scratch_product_bytes(b.schedule, b.chunk_capacity);
    if (schedule->pass == TDM_TRAIN) {
        declare_gradients(&b);
        declare_host_updates(&b);
    }
    if (!declare_kv(&b))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the program's buffers");
    declare_lists(&b);
    if (schedule->pass == TDM_TRAIN)
        declare_stores(&b);
    declare_workspaces(&b);
    declare_rings(&b);

    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].bytes == TDM_SIZE_MAX)
            return tdm_fail(err, TDM_INPUT, "buffer \"%s\" has more than 2^64 bytes",
                            program->buffers[i].name);
    return tdm_stream_plan(program, err);
}

uint64_t tdm_part_bytes(const struct tdm_model *model, uint32_t unit, enum tdm_part part,
                        enum tdm_dtype dtype)
{
    const struct tdm_unit *u = &model->units[unit];
    uint64_t elements = 0;
    for (uint32_t i = 0; i < u->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[u->first_tensor + i];
        if (part == TDM_PART_ALL || tdm_part_of(tensor->role) == part)
            elements += tensor->elements;
    }
    return elements * tdm_dtype_bytes(dtype);
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

struct tdm_tag tdm_program_initial(const struct tdm_program *program,
                                   const struct tdm_buffer *buffer, uint32_t slot)
{
    const struct tdm_model *model = program->schedule->model;
    struct tdm_tag tag = tdm_tag_at(buffer->initial, slot);
    if (buffer->axis == TDM_AXIS_UNIT && tag.content != TDM_EMPTY &&
        buffer->initial.layer < model->layers)
        tag.layer = tdm_home_layer(&program->schedule->homes[tdm_state_of(tag.content)],
                                   model->layers, buffer->place, slot);
    return tag;
}

bool tdm_program_home(const struct tdm_program *program, enum tdm_content content, uint32_t unit,
                      uint32_t *buffer, uint32_t *slot)
{
    struct tdm_ref home = tdm_home_of(program, content, unit);
    *buffer = home.buffer;
    *slot = home.slot;
    return home.buffer != TDM_NONE;
}

bool tdm_store_kept(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk)
{
    const struct tdm_layout *layout = program->layout;
    return layout->kept[store][layer] != TDM_NONE &&
           chunk >= program->schedule->groups[layout->group_of[layer]].kept_from_chunk;
}

bool tdm_store_held(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk)
{
    const struct tdm_layout *layout = program->layout;
    return layout->held[store][layer] != TDM_NONE &&
           !tdm_store_kept(program, kept_instead(store), layer, chunk) &&
           chunk >= program->schedule->groups[layout->group_of[layer]].held_from_chunk;
}

uint32_t tdm_prefetch_depth(const struct tdm_program *program)
{
    uint32_t most = program->chunk_count - 1;
    return program->schedule->prefetch < most ? program->schedule->prefetch : most;
}
