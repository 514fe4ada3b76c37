/* SPDX-License-Identifier: Apache-2.0 */
/* The loop nest: both orders written as plain loops over groups, layers and chunks. */
#include "schedule/nest.h"

#include "schedule/attend.h"
#include "schedule/kv_row.h"
#include "schedule/optimizer.h"
#include "schedule/ranks.h"

bool tdm_nest_embeds_apart(const struct tdm_schedule *schedule)
{
    return schedule->order == TDM_LAYER_MAJOR || schedule->group_count > 1;
}

bool tdm_nest_defers(const struct tdm_schedule *schedule)
{
    return schedule->ranks > 1 && schedule->rings.gradients > 1;
}

/* Does a layer's backward read K and V in the row that layers share? */
static bool shares_row(const struct tdm_group *group, bool runs_again)
{
    if (group->kv == TDM_KV_KEEP)
        return group->kv_place != TDM_DEVICE;
    return !runs_again || !tdm_set_has(group->held, TDM_STORE_KV);
}

static bool weights_are_far(const struct tdm_schedule *schedule, uint32_t layer)
{
    return tdm_schedule_home(schedule, TDM_STATE_WEIGHTS, layer) != TDM_DEVICE;
}

/* Of a layer of group `number`, whose first layer is `first`. */
static bool is_ahead(const struct tdm_schedule *schedule, uint32_t number, uint32_t first,
                     uint32_t layer)
{
    const struct tdm_group *group = &schedule->groups[number], *above = group;
    const bool top = layer + 1 == first + group->layers;
    if (layer == 0 || layer + 1 == schedule->model->layers)
        return false;
    if (top && group->layers > 1) /* between them the group runs forward, in the same row */
        return false;
    if (top)
        above++;
    /* the layer above runs again, unless it is the top of its group */
    const bool above_again = top ? above->layers > 1 : layer + 2 < first + group->layers;
    if (group->kv == TDM_KV_KEEP || !shares_row(group, !top) || !shares_row(above, above_again) ||
        (layer == first ? group->input_place : group->held_place) == TDM_DEVICE)
        return false;
    /* the weights of both layers are there at the same time */
    return schedule->rings.weights > 1 || !weights_are_far(schedule, layer) ||
           !weights_are_far(schedule, layer + 1);
}

bool tdm_nest_kv_ahead(const struct tdm_schedule *schedule, bool whole_row, uint32_t layer)
{
    const uint32_t group = tdm_schedule_group_of(schedule, layer);
    return whole_row && schedule->rings.ahead > 0 &&
           is_ahead(schedule, group, tdm_schedule_first_layer(schedule, group), layer);
}

bool tdm_nest_any_kv_ahead(const struct tdm_schedule *schedule, bool whole_row, bool *ahead)
{
    bool any = false;
    for (uint32_t group = 0, first = 0; group < schedule->group_count; group++) {
        const uint32_t end = first + schedule->groups[group].layers;
        for (uint32_t layer = first; layer < end && (ahead != NULL || !any); layer++) {
            const bool is =
                whole_row && schedule->rings.ahead > 0 && is_ahead(schedule, group, first, layer);
            any |= is;
            if (ahead != NULL)
                ahead[layer] = is;
        }
        first = end;
    }
    return any;
}

struct nest {
    const struct tdm_program *program;
    const struct tdm_schedule *schedule;
    uint32_t chunks;
    tdm_body_visitor visit;
    void *self;
    struct tdm_error *err;
    enum tdm_status status; /* once it is not TDM_OK, nothing more is visited */
    enum tdm_phase phase;
    bool whole_row;  /* of tdm_nest_kv_ahead() */
    uint32_t summed; /* layer whose gradient is being summed over the ranks; TDM_NONE: none */
};

/* Are the bodies of a chunk left out? */
static bool leaves_out(const struct nest *nest, uint32_t chunk)
{
    return nest->program->left_out != NULL && nest->program->left_out[chunk];
}

static void visit(struct nest *nest, enum tdm_body_kind kind, enum tdm_pass pass, uint32_t group,
                  uint32_t layer, uint32_t chunk)
{
    if (nest->status != TDM_OK ||
        (chunk != TDM_NONE &&
         (nest->program->chunks[chunk].rank != nest->program->rank || leaves_out(nest, chunk))))
        return;
    struct tdm_body body = {kind, nest->phase, pass, group, layer, chunk, false};
    if (kind == TDM_BODY_GRADIENT_SUM || kind == TDM_BODY_GRADIENT_NORM ||
        kind == TDM_BODY_OPTIMIZER)
        body.phase = TDM_OPTIMIZER_PHASE;
    nest->status = nest->visit(nest->self, &body, nest->err);
}

/* A layer's body for the rank's chunk of a round, which begins with chunk `first`. Without a chunk
 * in the round, the rank is absent. */
static void visit_round(struct nest *nest, enum tdm_body_kind kind, enum tdm_pass pass,
                        uint32_t group, uint32_t layer, uint32_t first)
{
    if (leaves_out(nest, first))
        return;
    uint32_t own = tdm_round_own(nest->program, first);
    if (own != TDM_NONE) {
        visit(nest, kind, pass, group, layer, own);
        return;
    }
    const struct tdm_body body = {kind, nest->phase, pass, group, layer, first, true};
    if (nest->status == TDM_OK)
        nest->status = nest->visit(nest->self, &body, nest->err);
}

static void phase_begin(struct nest *nest, enum tdm_phase phase)
{
    nest->phase = phase;
    visit(nest, TDM_BODY_PHASE_BEGIN, TDM_PASS_FIRST, TDM_NONE, TDM_NONE, TDM_NONE);
}

static void phase_end(struct nest *nest)
{
    visit(nest, TDM_BODY_PHASE_END, TDM_PASS_FIRST, TDM_NONE, TDM_NONE, TDM_NONE);
}

static void update(struct nest *nest, uint32_t unit)
{
    visit(nest, TDM_BODY_OPTIMIZER, TDM_PASS_BACKWARD, TDM_NONE, unit, TDM_NONE);
}

static void gradient_sum(struct nest *nest, uint32_t unit)
{
    if (nest->program->ranks > 1)
        visit(nest, TDM_BODY_GRADIENT_SUM, TDM_PASS_BACKWARD, TDM_NONE, unit, TDM_NONE);
}

static void gradient_norm(struct nest *nest, uint32_t unit)
{
    visit(nest, TDM_BODY_GRADIENT_NORM, TDM_PASS_BACKWARD, TDM_NONE, unit, TDM_NONE);
}

static void update_at_once(struct nest *nest, uint32_t unit)
{
    if (!tdm_gradients_stay(nest->schedule))
        update(nest, unit);
}

/* The gradient of a unit is complete. */
static void gradient_complete(struct nest *nest, uint32_t unit)
{
    gradient_sum(nest, unit);
    gradient_norm(nest, unit);
    update_at_once(nest, unit);
}

/* A layer has gone backward, and its gradient is summed while the next one does. That of the layer
 * above has been summed meanwhile. Norms are summed over the ranks too, and before the next
 * gradient, which takes longer. */
static void gradient_deferred(struct nest *nest, uint32_t group, uint32_t layer)
{
    const uint32_t above = nest->summed;
    nest->summed = layer;
    if (above != TDM_NONE)
        gradient_norm(nest, above);
    gradient_sum(nest, layer);
    visit(nest, TDM_BODY_LAYER_END, TDM_PASS_BACKWARD, group, layer, TDM_NONE);
    if (above != TDM_NONE) {
        update_at_once(nest, above);
        visit(nest, TDM_BODY_GRADIENT_END, TDM_PASS_BACKWARD, TDM_NONE, above, TDM_NONE);
    }
    if (layer > 0)
        return;
    gradient_norm(nest, layer);
    update_at_once(nest, layer);
    visit(nest, TDM_BODY_GRADIENT_END, TDM_PASS_BACKWARD, TDM_NONE, layer, TDM_NONE);
}

/* Runs after layer 0, if tdm_nest_embeds_apart(): the memory of both is never live together. */
static void embedding(struct nest *nest)
{
    for (uint32_t chunk = nest->chunks; chunk-- > 0 && tdm_nest_embeds_apart(nest->schedule);)
        visit(nest, TDM_BODY_EMBEDDING, TDM_PASS_BACKWARD, TDM_NONE, 0, chunk);
    gradient_complete(nest, tdm_model_embedding_unit(nest->schedule->model));
}

/* Updates all units, lower layers first: the backward used them last. */
static void update_at_end(struct nest *nest)
{
    const struct tdm_model *model = nest->schedule->model;
    if (!tdm_updates_at_end(nest->schedule))
        return;
    phase_begin(nest, TDM_OPTIMIZER_PHASE);
    update(nest, tdm_model_head_unit(model));
    for (uint32_t layer = 0; layer < model->layers; layer++)
        update(nest, layer);
    update(nest, tdm_model_embedding_unit(model));
    phase_end(nest);
}

/* Visits the rounds [begin, end) of chunks of one sequence, in ascending order or in reverse. */
static void visit_rounds(struct nest *nest, enum tdm_body_kind kind, enum tdm_pass pass,
                         uint32_t group, uint32_t layer, uint32_t begin, uint32_t end)
{
    const struct tdm_program *program = nest->program;
    bool reverse = kind == TDM_BODY_BACKWARD || kind == TDM_BODY_BACKWARD_KV;
    for (uint32_t first = begin; !reverse && first < end; first = tdm_round_end(program, first))
        visit_round(nest, kind, pass, group, layer, first);
    for (uint32_t first = end; reverse && first > begin;) {
        first = tdm_round_first(program, first - 1);
        visit_round(nest, kind, pass, group, layer, first);
    }
}

/* A layer forward by several ranks. If they gather K and V, they first do so for the whole
 * sequence. So ranks wait for each other only before attention, of which all have the same over the
 * sequence, though not in every round. If they divide the heads, all have the same in every round.
 */
static void forward_rounds(struct nest *nest, enum tdm_pass pass, uint32_t group, uint32_t layer)
{
    for (uint32_t begin = 0, end; begin < nest->chunks; begin = end) {
        end = nest->program->chunks[begin].last_chunk + 1;
        if (tdm_ranks_gather(nest->program))
            visit_rounds(nest, TDM_BODY_KV, pass, group, layer, begin, end);
        visit_rounds(nest, TDM_BODY_FORWARD, pass, group, layer, begin, end);
    }
}

/* A layer forward over all chunks, in ascending order. */
static void forward_sweep(struct nest *nest, enum tdm_pass pass, uint32_t group, uint32_t layer)
{
    visit(nest, TDM_BODY_LAYER_BEGIN, pass, group, layer, TDM_NONE);
    if (nest->program->ranks > 1)
        forward_rounds(nest, pass, group, layer);
    for (uint32_t chunk = 0; chunk < nest->chunks && nest->program->ranks == 1; chunk++)
        visit(nest, TDM_BODY_FORWARD, pass, group, layer, chunk);
    visit(nest, TDM_BODY_LAYER_END, pass, group, layer, TDM_NONE);
}

/* A layer backward by several ranks: for each sequence, all K and V that its chunks see, then its
 * rounds in reverse; if ranks gather K and V only down to attention, and then, with the complete dK
 * and dV, the rest. */
static void backward_rounds(struct nest *nest, uint32_t group, uint32_t layer)
{
    for (uint32_t end = nest->chunks, begin; end > 0; end = begin) {
        begin = nest->program->chunks[end - 1].first_chunk;
        visit_rounds(nest, TDM_BODY_KV, TDM_PASS_BACKWARD, group, layer, begin, end);
        visit_rounds(nest, TDM_BODY_BACKWARD, TDM_PASS_BACKWARD, group, layer, begin, end);
        if (tdm_ranks_gather(nest->program))
            visit_rounds(nest, TDM_BODY_BACKWARD_KV, TDM_PASS_BACKWARD, group, layer, begin, end);
    }
}

static bool kv_ahead(const struct nest *nest, uint32_t layer)
{
    return tdm_nest_kv_ahead(nest->schedule, nest->whole_row, layer);
}

/* A layer backward over all chunks, in reverse: all later chunks have added to a chunk's dK, dV. K
 * and V of the chunks that it sees are made just before, so that only as many are live as windows
 * let a chunk see, unless they were made ahead. */
static void backward_chunks(struct nest *nest, uint32_t group, uint32_t layer)
{
    const bool is_ready = kv_ahead(nest, layer), below = layer > 0 && kv_ahead(nest, layer - 1);
    const uint32_t group_below = below ? tdm_schedule_group_of(nest->schedule, layer - 1) : group;
    for (uint32_t chunk = nest->chunks, made = chunk; chunk-- > 0;) {
        uint32_t first = tdm_attend_first(nest->program, layer, chunk);
        for (uint32_t seen = first; seen < made && !is_ready; seen++)
            visit(nest, TDM_BODY_KV, TDM_PASS_BACKWARD, group, layer, seen);
        made = first;
        visit(nest, TDM_BODY_BACKWARD, TDM_PASS_BACKWARD, group, layer, chunk);
        if (below)
            visit(nest, TDM_BODY_KV, TDM_PASS_BACKWARD, group_below, layer - 1, chunk);
    }
}

static void backward_sweep(struct nest *nest, uint32_t group, uint32_t layer)
{
    visit(nest, TDM_BODY_LAYER_BEGIN, TDM_PASS_BACKWARD, group, layer, TDM_NONE);
    if (nest->program->ranks > 1)
        backward_rounds(nest, group, layer);
    else
        backward_chunks(nest, group, layer);
    if (tdm_nest_defers(nest->schedule)) {
        gradient_deferred(nest, group, layer);
        return;
    }
    gradient_complete(nest, layer);
    visit(nest, TDM_BODY_LAYER_END, TDM_PASS_BACKWARD, group, layer, TDM_NONE);
}

static void layer_major_group(struct nest *nest, uint32_t group)
{
    uint32_t first = tdm_schedule_first_layer(nest->schedule, group);
    uint32_t top = first + nest->schedule->groups[group].layers - 1;

    visit(nest, TDM_BODY_GROUP_BEGIN, TDM_PASS_BACKWARD, group, TDM_NONE, TDM_NONE);
    for (uint32_t layer = first; layer < top; layer++)
        forward_sweep(nest, TDM_PASS_RERUN, group, layer);
    for (uint32_t layer = top + 1; layer-- > first;)
        backward_sweep(nest, group, layer);
    visit(nest, TDM_BODY_GROUP_END, TDM_PASS_BACKWARD, group, TDM_NONE, TDM_NONE);
}

static void layer_major(struct nest *nest)
{
    const struct tdm_schedule *schedule = nest->schedule;
    const struct tdm_model *model = schedule->model;

    phase_begin(nest, TDM_FORWARD);
    for (uint32_t layer = 0; layer < model->layers; layer++)
        forward_sweep(nest, TDM_PASS_FIRST, tdm_schedule_group_of(schedule, layer), layer);
    phase_end(nest);

    phase_begin(nest, TDM_BACKWARD);
    visit(nest, TDM_BODY_HEAD_BEGIN, TDM_PASS_BACKWARD, TDM_NONE, TDM_NONE, TDM_NONE);
    for (uint32_t chunk = nest->chunks; chunk-- > 0;)
        visit(nest, TDM_BODY_HEAD, TDM_PASS_BACKWARD, TDM_NONE, model->layers, chunk);
    gradient_complete(nest, tdm_model_head_unit(model));
    visit(nest, TDM_BODY_HEAD_END, TDM_PASS_BACKWARD, TDM_NONE, TDM_NONE, TDM_NONE);
    for (uint32_t group = schedule->group_count; group-- > 0;)
        layer_major_group(nest, group);
    embedding(nest);
    phase_end(nest);
    update_at_end(nest);
}

static void chunk_major_forward(struct nest *nest, uint32_t group, bool last)
{
    uint32_t first = tdm_schedule_first_layer(nest->schedule, group);
    uint32_t top = first + nest->schedule->groups[group].layers - 1;

    visit(nest, TDM_BODY_GROUP_BEGIN, TDM_PASS_FIRST, group, TDM_NONE, TDM_NONE);
    for (uint32_t chunk = 0; chunk < nest->chunks; chunk++)
        for (uint32_t layer = first; layer <= top; layer++)
            /* the second forward computes the output of the last layer: here K and V are enough */
            visit(nest, last && layer == top ? TDM_BODY_KV : TDM_BODY_FORWARD, TDM_PASS_FIRST,
                  group, layer, chunk);
    visit(nest, TDM_BODY_GROUP_END, TDM_PASS_FIRST, group, TDM_NONE, TDM_NONE);
}

static void chunk_major_backward(struct nest *nest, uint32_t group, bool last)
{
    const struct tdm_model *model = nest->schedule->model;
    uint32_t first = tdm_schedule_first_layer(nest->schedule, group);
    uint32_t top = first + nest->schedule->groups[group].layers - 1;

    visit(nest, TDM_BODY_GROUP_BEGIN, TDM_PASS_BACKWARD, group, TDM_NONE, TDM_NONE);
    for (uint32_t chunk = nest->chunks; chunk-- > 0;) {
        for (uint32_t layer = first; layer < top + last; layer++)
            visit(nest, TDM_BODY_FORWARD, TDM_PASS_RERUN, group, layer, chunk);
        if (last)
            visit(nest, TDM_BODY_HEAD, TDM_PASS_BACKWARD, group, model->layers, chunk);
        for (uint32_t layer = top + 1; layer-- > first;)
            visit(nest, TDM_BODY_BACKWARD, TDM_PASS_BACKWARD, group, layer, chunk);
    }
    for (uint32_t layer = top + 1; layer-- > first;)
        gradient_complete(nest, layer);
    visit(nest, TDM_BODY_GROUP_END, TDM_PASS_BACKWARD, group, TDM_NONE, TDM_NONE);
}

static void chunk_major(struct nest *nest)
{
    const struct tdm_schedule *schedule = nest->schedule;
    uint32_t last = schedule->group_count - 1;

    phase_begin(nest, TDM_FORWARD);
    for (uint32_t group = 0; group <= last; group++)
        chunk_major_forward(nest, group, group == last);
    phase_end(nest);

    phase_begin(nest, TDM_BACKWARD);
    for (uint32_t group = last + 1; group-- > 0;) {
        if (group == last)
            visit(nest, TDM_BODY_HEAD_BEGIN, TDM_PASS_BACKWARD, TDM_NONE, TDM_NONE, TDM_NONE);
        chunk_major_backward(nest, group, group == last);
        if (group == last) {
            gradient_complete(nest, tdm_model_head_unit(schedule->model));
            visit(nest, TDM_BODY_HEAD_END, TDM_PASS_BACKWARD, TDM_NONE, TDM_NONE, TDM_NONE);
        }
    }
    embedding(nest);
    phase_end(nest);
    update_at_end(nest);
}

/* The forward, then the loss of each chunk from its last X. */
static void evaluate_layer_major(struct nest *nest)
{
    const struct tdm_schedule *schedule = nest->schedule;
    uint32_t layers = schedule->model->layers;
    for (uint32_t layer = 0; layer < layers; layer++)
        forward_sweep(nest, TDM_PASS_FIRST, tdm_schedule_group_of(schedule, layer), layer);
    visit(nest, TDM_BODY_HEAD_BEGIN, TDM_PASS_FIRST, TDM_NONE, TDM_NONE, TDM_NONE);
    for (uint32_t chunk = 0; chunk < nest->chunks; chunk++)
        visit(nest, TDM_BODY_LOSS, TDM_PASS_FIRST, TDM_NONE, layers, chunk);
    visit(nest, TDM_BODY_HEAD_END, TDM_PASS_FIRST, TDM_NONE, TDM_NONE, TDM_NONE);
}

static void evaluate_chunk_major(struct nest *nest)
{
    const struct tdm_schedule *schedule = nest->schedule;
    uint32_t layers = schedule->model->layers;
    for (uint32_t group = 0; group < schedule->group_count; group++) {
        uint32_t first = tdm_schedule_first_layer(schedule, group);
        uint32_t end = first + schedule->groups[group].layers;
        bool last = end == layers;
        visit(nest, TDM_BODY_GROUP_BEGIN, TDM_PASS_FIRST, group, TDM_NONE, TDM_NONE);
        if (last)
            visit(nest, TDM_BODY_HEAD_BEGIN, TDM_PASS_FIRST, TDM_NONE, TDM_NONE, TDM_NONE);
        for (uint32_t chunk = 0; chunk < nest->chunks; chunk++) {
            for (uint32_t layer = first; layer < end; layer++)
                visit(nest, TDM_BODY_FORWARD, TDM_PASS_FIRST, group, layer, chunk);
            if (last)
                visit(nest, TDM_BODY_LOSS, TDM_PASS_FIRST, group, layers, chunk);
        }
        if (last)
            visit(nest, TDM_BODY_HEAD_END, TDM_PASS_FIRST, TDM_NONE, TDM_NONE, TDM_NONE);
        visit(nest, TDM_BODY_GROUP_END, TDM_PASS_FIRST, group, TDM_NONE, TDM_NONE);
    }
}

static void evaluate(struct nest *nest)
{
    phase_begin(nest, TDM_FORWARD);
    if (nest->schedule->order == TDM_LAYER_MAJOR)
        evaluate_layer_major(nest);
    else
        evaluate_chunk_major(nest);
    phase_end(nest);
}

enum tdm_status tdm_nest_visit(const struct tdm_program *program, tdm_body_visitor visitor,
                               void *self, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    struct nest nest = {.program = program,
                        .schedule = schedule,
                        .chunks = program->chunk_count,
                        .visit = visitor,
                        .self = self,
                        .err = err,
                        .status = TDM_OK,
                        .summed = TDM_NONE};
    nest.whole_row = tdm_kv_row_is_whole(program);
    if (schedule->pass == TDM_EVALUATE)
        evaluate(&nest);
    else if (schedule->order == TDM_LAYER_MAJOR)
        layer_major(&nest);
    else
        chunk_major(&nest);
    return nest.status;
}
