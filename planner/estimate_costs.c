/* SPDX-License-Identifier: Apache-2.0 */
/* Costs and sizes for estimates, taken from a small step that is lowered and simulated. */
#include "planner/estimate_lanes.h"
#include "planner/estimate_parts.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/move.h"
#include "ops/select.h"
#include "simulator/simulate.h"
#include "schedule/attend.h"
#include "schedule/cost.h"
#include "schedule/gather.h"
#include "schedule/kv_row.h"
#include "schedule/layout.h"
#include "schedule/optimizer.h"
#include "schedule/scratch.h"

#include <stdlib.h>
#include <string.h>

/* ---- the small step ---- */

struct profile {
    struct tdm_estimator *estimator;
    const struct tdm_program *program;
    /* `input`: take all costs; otherwise those of the backward */
    enum tdm_set kept;
    double *head; /* [classes] */
    uint64_t resident_work;
};

/* The cost to which an op of the small step adds its time. Every kind is listed, so that none is
 * missed. */
enum account {
    ACCOUNT_NONE,
    ACCOUNT_BESIDE, /* copies of units, which may overlap computing */
    ACCOUNT_SIGHT,  /* depends on what its chunk sees: attention_seconds(), select_seconds() */
    ACCOUNT_EMBED,
    ACCOUNT_LAYER, /* by the op's part */
};

static const enum account accounts[TDM_OP_KINDS] = {
    [TDM_OP_COPY] = ACCOUNT_BESIDE,
    [TDM_OP_ZERO] = ACCOUNT_LAYER,
    [TDM_OP_EMBED] = ACCOUNT_EMBED,
    [TDM_OP_SORT_TOKENS] = ACCOUNT_LAYER,
    [TDM_OP_EMBED_GRAD] = ACCOUNT_LAYER,
    [TDM_OP_NORM] = ACCOUNT_LAYER,
    [TDM_OP_NORM_GRAD] = ACCOUNT_LAYER,
    [TDM_OP_PRODUCT] = ACCOUNT_LAYER,
    [TDM_OP_PRODUCT_GRAD_INPUT] = ACCOUNT_LAYER,
    [TDM_OP_PRODUCT_GRAD_WEIGHT] = ACCOUNT_LAYER,
    [TDM_OP_ROPE] = ACCOUNT_LAYER,
    [TDM_OP_ROPE_GRAD] = ACCOUNT_LAYER,
    [TDM_OP_KV_WRITE] = ACCOUNT_LAYER,
    [TDM_OP_KV_GRAD_READ] = ACCOUNT_LAYER,
    [TDM_OP_PAGE_MEANS] = ACCOUNT_SIGHT,
    [TDM_OP_SELECT] = ACCOUNT_SIGHT,
    [TDM_OP_ATTENTION] = ACCOUNT_SIGHT,
    [TDM_OP_ATTENTION_GRAD] = ACCOUNT_SIGHT,
    [TDM_OP_SWIGLU] = ACCOUNT_LAYER,
    [TDM_OP_SWIGLU_GRAD] = ACCOUNT_LAYER,
    [TDM_OP_HEAD] = ACCOUNT_LAYER,
    [TDM_OP_LOSS] = ACCOUNT_LAYER,
    [TDM_OP_HEAD_GRAD] = ACCOUNT_LAYER,
    [TDM_OP_GRADIENT_NORM] = ACCOUNT_LAYER,
    [TDM_OP_OPTIMIZER] = ACCOUNT_LAYER,
};

static enum tdm_status note_op(void *self, const struct tdm_op *op, double start, double end,
                               const uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES],
                               struct tdm_error *err)
{
    struct profile *profile = self;
    struct tdm_estimator *e = profile->estimator;
    double seconds = end - start;
    uint64_t work = live[TDM_DEVICE][TDM_WORKSPACE] - profile->resident_work;
    enum account account = accounts[op->kind];

    if (account == ACCOUNT_NONE)
        return tdm_fail(err, TDM_INTERNAL, "estimates do not count the time of %s",
                        tdm_op_kind_name(op->kind));
    if (account == ACCOUNT_BESIDE)
        return TDM_OK;
    if (profile->kept != TDM_SET_INPUT &&
        (op->phase != TDM_BACKWARD || op->part == TDM_PART_HEAD || op->part == TDM_PART_FINAL_NORM))
        return TDM_OK;
    if (op->phase == TDM_OPTIMIZER_PHASE) {
        bool host = op->lane == TDM_LANE_HOST;
        *(host ? &e->host_seconds : &e->optimizer_seconds) += seconds;
        bool embedding = op->layer == tdm_model_embedding_unit(e->base->model);
        if (host && embedding)
            e->last_host_seconds = seconds;
        if (op->kind == TDM_OP_GRADIENT_NORM && (embedding || op->layer == 0))
            e->last_norm_seconds += seconds;
        return TDM_OK;
    }
    if (op->part == TDM_PART_HEAD || op->part == TDM_PART_FINAL_NORM) {
        e->work_head = larger(e->work_head, work);
        profile->head[op->chunk] += seconds;
        return TDM_OK;
    }
    /* ops on the embedding count for layer 0 */
    uint32_t layer = op->layer < e->layers ? op->layer : 0;
    struct layer_cost *cost = &e->costs[(size_t)layer * e->classes + op->chunk];
    if (op->phase == TDM_BACKWARD) {
        uint64_t *most = layer == 0 ? &e->work_backward_first : &e->work_backward;
        if (profile->kept == TDM_SET_INPUT)
            *most = larger(*most, work);
        if (account != ACCOUNT_SIGHT)
            cost->backward[profile->kept] += seconds; /* find_costs() subtracts the K, V sweep */
        return TDM_OK;
    }
    e->work_forward = larger(e->work_forward, work);
    if (account == ACCOUNT_SIGHT)
        return TDM_OK;
    if (account == ACCOUNT_EMBED)
        cost->embed += seconds;
    else if (op->part == TDM_PART_ATTENTION_NORM)
        cost->norm += seconds;
    else if (op->part == TDM_PART_Q || op->part == TDM_PART_Q_NORM)
        cost->q += seconds;
    else if (op->part == TDM_PART_KV || op->part == TDM_PART_K_NORM)
        cost->kv += seconds;
    else
        cost->rest += seconds;
    if (op->part == TDM_PART_GATE_UP && op->kind == TDM_OP_PRODUCT)
        cost->gate_up += seconds;
    else if (op->part == TDM_PART_MLP_NORM)
        cost->mlp_norm += seconds;
    return TDM_OK;
}

/* Buffers that are live during the whole step. The real step has tokens and losses of all
 * chunks. */
static void note_residents(struct profile *profile)
{
    struct tdm_estimator *e = profile->estimator;
    for (uint32_t i = 0; i < profile->program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &profile->program->buffers[i];
        if (!buffer->resident && i != profile->program->scratch)
            continue;
        uint64_t *resident = &e->resident_bytes[buffer->place], bytes = buffer->bytes;
        if (buffer->category == TDM_WORKSPACE)
            profile->resident_work += bytes;
        if (buffer->axis == TDM_AXIS_CHUNK)
            bytes = tdm_size_mul(buffer->slot_bytes, e->chunks);
        else if (i == profile->program->scratch) /* part of it depends on the sequence's length */
            bytes = tdm_content_bytes(e->base, TDM_SCRATCH, 0, e->longest_tokens);
        *resident = tdm_size_add(*resident, bytes);
    }
}

uint32_t tdm_estimator_count(const struct tdm_estimator *e, uint32_t c, uint32_t from, uint32_t to)
{
    const uint32_t *before = &e->class_before[(size_t)c * ((size_t)e->chunks + 1)];
    return before[to] - before[from];
}

/* The small step: groups of one layer that keep a set, all on the device, and one short sequence
 * per class of chunks. */
static void small_schedule(const struct tdm_schedule *base, struct tdm_sequence *sequences,
                           uint32_t count, enum tdm_set kept, struct tdm_group *groups,
                           struct tdm_schedule *small)
{
    *small = *base;
    small->sequences = sequences;
    small->sequence_count = count;
    small->order = TDM_LAYER_MAJOR;
    small->groups = groups;
    small->group_count = base->model->layers;
    for (uint32_t i = 0; i < small->group_count; i++)
        groups[i] = (struct tdm_group){.layers = 1,
                                       .kept = kept,
                                       .kv = tdm_set_has(kept, TDM_STORE_KV) ? TDM_KV_KEEP
                                                                             : TDM_KV_RECOMPUTE};
}

/* Bytes of a unit's state, at any home. */
static uint64_t state_bytes(const struct tdm_schedule *base, enum tdm_state state, uint32_t unit)
{
    switch (state) {
    case TDM_STATE_WEIGHTS:
        return tdm_content_bytes(base, TDM_UNIT_WEIGHTS, unit, 0);
    case TDM_STATE_MASTER:
        return tdm_content_bytes(base, TDM_UNIT_MASTER, unit, 0);
    case TDM_STATE_MOMENTS:
        return tdm_content_bytes(base, TDM_UNIT_MOMENT1, unit, 0) +
               tdm_content_bytes(base, TDM_UNIT_MOMENT2, unit, 0);
    default: /* gradients; without an optimizer they outlive the step */
        if (base->optimizer.kind != TDM_OPTIMIZER_NONE || base->pass != TDM_TRAIN)
            return 0;
        return tdm_content_bytes(base, TDM_UNIT_GRADIENT, unit, 0) +
               (base->model->tied && unit == tdm_model_embedding_unit(base->model)
                    ? tdm_content_bytes(base, TDM_TIED_GRADIENT, 0, 0)
                    : 0);
    }
}

/* Tables of the sizes of states, which do not depend on homes. Layers share slots of one size, so
 * each counts as the largest, except with its gradients. */
static bool note_units(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint32_t units = base->model->unit_count;
    e->gradient_bytes = calloc((size_t)units + 1, sizeof(uint64_t));
    if (e->gradient_bytes == NULL)
        return false;
    for (uint32_t unit = 0; unit < units; unit++)
        e->gradient_bytes[unit] = tdm_content_bytes(base, TDM_UNIT_GRADIENT, unit, 0);
    for (int s = 0; s < TDM_STATES; s++) {
        enum tdm_state state = (enum tdm_state)s;
        uint64_t most = 0, *bytes = calloc((size_t)units + 1, sizeof(uint64_t));
        e->unit_bytes[s] = bytes;
        if (bytes == NULL)
            return false;
        for (uint32_t unit = 0; unit < units; unit++)
            bytes[unit] = state_bytes(base, state, unit);
        for (uint32_t layer = 0; layer < e->layers; layer++)
            most = larger(most, bytes[layer]);
        for (uint32_t layer = 0; layer < e->layers && state != TDM_STATE_GRADIENTS; layer++)
            bytes[layer] = most;
    }
    return true;
}

uint64_t tdm_estimator_unit_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit)
{
    return e->unit_bytes[state][unit];
}

bool tdm_estimator_comes(const struct tdm_estimator *e, enum tdm_state state)
{
    return state == TDM_STATE_WEIGHTS || !tdm_is_far(e->base->optimizer.on);
}

uint64_t tdm_estimator_sent_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit)
{
    if (e->base->optimizer.kind == TDM_OPTIMIZER_NONE)
        return 0;
    if (!tdm_is_far(e->base->optimizer.on))
        return e->unit_bytes[state][unit];
    return state == TDM_STATE_WEIGHTS ? e->gradient_bytes[unit] : 0;
}

/* Device bytes for state at home on the host: a ring for layers; buffer_bytes(): the buffer of one
 * unit. */
static uint64_t ring_bytes(const struct tdm_estimator *e, enum tdm_state state, uint32_t slots)
{
    uint64_t most = e->unit_bytes[state][0];
    for (uint32_t layer = 0; layer < e->layers && state == TDM_STATE_GRADIENTS; layer++)
        most = larger(most, e->gradient_bytes[layer]);
    return smaller(slots, e->layers - e->base->homes[state].device_layers) * most;
}

static uint64_t buffer_bytes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    bool far = tdm_is_far(tdm_schedule_home(e->base, state, unit));
    return far ? e->unit_bytes[state][unit] : 0;
}

static uint64_t update_bytes(const struct tdm_estimator *e, uint32_t unit)
{
    if (tdm_updates_on_host(e->base, unit))
        return 0;
    return buffer_bytes(e, TDM_STATE_MASTER, unit) + buffer_bytes(e, TDM_STATE_MOMENTS, unit);
}

/* Host bytes for gradients that are sent there to be used. */
static void note_host_updates(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint32_t embedding = tdm_model_embedding_unit(base->model);
    uint64_t most = 0, visitors = 0;
    bool stay = tdm_gradients_stay(base);
    e->host_ring = e->host_head = e->host_embedding = 0;
    for (uint32_t unit = 0; unit < base->model->unit_count; unit++) {
        bool far = stay && tdm_is_far(tdm_schedule_home(base, TDM_STATE_GRADIENTS, unit));
        uint64_t bytes = e->gradient_bytes[unit];
        if (far || !tdm_updates_on_host(base, unit))
            continue;
        if (unit < e->layers) {
            most = larger(most, bytes);
            visitors++;
        } else if (unit == embedding) {
            e->host_embedding =
                bytes + (base->model->tied ? tdm_content_bytes(base, TDM_TIED_GRADIENT, 0, 0) : 0);
        } else {
            e->host_head = bytes;
        }
    }
    e->host_ring = smaller(base->rings.optimizer, visitors) * most;
}

/* Adds all states at their homes. */
static void add_states(const struct tdm_estimator *e, uint64_t bytes[TDM_MAX_PLACES])
{
    const uint32_t last[] = {tdm_model_embedding_unit(e->base->model),
                             tdm_model_head_unit(e->base->model)};
    for (int state = 0; state < TDM_STATES; state++) {
        for (uint32_t unit = 0; unit < e->layers; unit++)
            bytes[tdm_schedule_home(e->base, (enum tdm_state)state, unit)] +=
                tdm_estimator_unit_bytes(e, (enum tdm_state)state, unit);
        for (int i = 0; i < 2; i++)
            bytes[tdm_schedule_home(e->base, (enum tdm_state)state, last[i])] +=
                tdm_estimator_unit_bytes(e, (enum tdm_state)state, last[i]);
    }
}

static void note_rings(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint32_t embedding = tdm_model_embedding_unit(base->model);
    uint32_t slots = base->rings.optimizer;
    uint32_t head = tdm_model_head_unit(base->model);
    e->weight_ring = ring_bytes(e, TDM_STATE_WEIGHTS, base->rings.weights);
    e->embedding_buffer = buffer_bytes(e, TDM_STATE_WEIGHTS, embedding);
    e->head_buffer =
        buffer_bytes(e, TDM_STATE_WEIGHTS, head) + (base->model->tied ? e->embedding_buffer : 0);
    if (base->optimizer.kind == TDM_OPTIMIZER_NONE || base->pass == TDM_EVALUATE)
        return;
    note_host_updates(e);
    e->embedding_update = update_bytes(e, embedding);
    e->head_update = update_bytes(e, head);
    e->state_rings = 0;
    if (tdm_is_far(base->optimizer.on))
        return;
    e->state_rings =
        ring_bytes(e, TDM_STATE_MASTER, slots) + ring_bytes(e, TDM_STATE_MOMENTS, slots);
    if (tdm_updates_at_end(base))
        e->state_rings += ring_bytes(e, TDM_STATE_GRADIENTS, slots);
}

/* Device bytes of a unit's gradient while it is summed; 0 if it is resident. `stays`: bytes that
 * stay for an update after the backward. */
static uint64_t gradient_bytes(const struct tdm_schedule *base, uint32_t unit, uint64_t bytes,
                               uint64_t stays[TDM_MAX_PLACES])
{
    enum tdm_place home = tdm_schedule_home(base, TDM_STATE_GRADIENTS, unit);
    if (tdm_updates_at_end(base))
        stays[home] = bytes;
    return tdm_gradients_stay(base) && !tdm_updates_at_end(base) && !tdm_is_far(home) ? 0 : bytes;
}

static void note_gradients(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    const struct tdm_model *model = base->model;
    uint32_t embedding = tdm_model_embedding_unit(model), head = tdm_model_head_unit(model);
    memset(e->embedding_stays, 0, sizeof(e->embedding_stays));
    memset(e->head_stays, 0, sizeof(e->head_stays));
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        uint64_t bytes = e->gradient_bytes[layer];
        uint64_t stays[TDM_MAX_PLACES] = {0};
        uint64_t passes = gradient_bytes(base, layer, bytes, stays) - stays[TDM_DEVICE];
        e->passing_below[layer + 1] = e->passing_below[layer] + passes;
        for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
            e->staying_below[place][layer + 1] = e->staying_below[place][layer] + stays[place];
    }
    uint64_t bytes = e->gradient_bytes[embedding];
    e->embedding_gradient = gradient_bytes(base, embedding, bytes, e->embedding_stays);
    if (model->tied) {
        uint64_t tied = tdm_content_bytes(base, TDM_TIED_GRADIENT, 0, 0);
        e->tied_gradient = e->embedding_gradient == 0 ? 0 : tied;
        for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
            if (e->embedding_stays[place] > 0)
                e->embedding_stays[place] += tied;
    }
    bytes = e->gradient_bytes[head];
    e->head_gradient = gradient_bytes(base, head, bytes, e->head_stays);
}

static void note_sizes(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint64_t tokens = 0;
    for (uint32_t s = 0; s < base->sequence_count; s++)
        tokens = larger(tokens, smaller(base->sequences[s].tokens, base->chunk_tokens));
    e->longest_tokens = tokens;
    e->x = tdm_content_bytes(base, TDM_X, 0, tokens);
    for (int store = 0; store < TDM_STORES; store++)
        e->store[store] =
            tdm_content_bytes(base, tdm_store_type((enum tdm_store)store)->content, 0, tokens);
    e->kv = tdm_content_bytes(base, TDM_KVPAGES, 0, tokens);
    e->dkv = tdm_content_bytes(base, TDM_DKVPAGES, 0, tokens);
    e->lists = tdm_content_bytes(base, TDM_PAGE_LISTS, 0, tokens);
    e->means = tdm_content_bytes(base, TDM_PAGE_MEANS, 0, tokens);
}

/* Computes what depends on the homes. */
static void note_homes(struct tdm_estimator *e)
{
    note_rings(e);
    tdm_estimate_note_state(e);
    if (e->base->pass == TDM_TRAIN)
        note_gradients(e);
}

void tdm_estimator_set_state(struct tdm_estimator *e, const struct tdm_home homes[TDM_STATES],
                             const struct tdm_rings *rings)
{
    e->own.rings = *rings;
    memcpy(e->own.homes, homes, sizeof(e->own.homes));
    note_homes(e);
    memcpy(e->resident_bytes, e->stateless_bytes, sizeof(e->resident_bytes));
    add_states(e, e->resident_bytes);
}

/* Lowers and simulates the small step. `kept` decides which costs are taken from it. */
static enum tdm_status run_small_step(struct profile *profile, struct tdm_sequence *sequences,
                                      struct tdm_group *groups, enum tdm_set kept,
                                      struct tdm_error *err)
{
    struct tdm_estimator *e = profile->estimator;
    struct tdm_schedule small;
    struct tdm_program *program = NULL;
    struct tdm_simulation simulation;
    small_schedule(e->base, sequences, e->classes, kept, groups, &small);
    enum tdm_status status = tdm_program_lower(&small, &program, err);
    if (status != TDM_OK)
        return status;
    profile->program = program;
    profile->kept = kept;
    if (kept == TDM_SET_INPUT)
        note_residents(profile);
    status = tdm_simulate(program, note_op, profile, &simulation, err);
    tdm_program_free(program);
    return status;
}

/* Seconds of updates on the host that no computing hides. */
static void note_tail(struct tdm_estimator *e)
{
    const struct tdm_machine *machine = e->base->machine;
    const struct tdm_home *weights = &e->base->homes[TDM_STATE_WEIGHTS];
    uint32_t embedding = tdm_model_embedding_unit(e->base->model);
    bool all = weights->device_layers == 0 && tdm_is_far(weights->head);
    double beside[TDM_ORDERS] = {e->optimizer_seconds, e->optimizer_seconds};
    double goes = machine->copy_seconds + (double)e->gradient_bytes[embedding] /
                                              tdm_machine_link_rate(machine, TDM_LINK_D2H);
    double comes = machine->copy_seconds + (double)e->unit_bytes[TDM_STATE_WEIGHTS][embedding] /
                                               tdm_machine_link_rate(machine, TDM_LINK_H2D);
    if (!(e->last_host_seconds > 0))
        return;
    if (all) /* otherwise updates of other units run on the device */
        beside[TDM_LAYER_MAJOR] = e->last_norm_seconds;
    e->lead_seconds = comes;
    for (int order = 0; order < TDM_ORDERS; order++)
        if (goes + e->last_host_seconds > beside[order])
            e->tail_seconds[order] = goes + e->last_host_seconds - beside[order];
}

static enum tdm_status find_costs(struct tdm_estimator *e, const uint64_t *lengths,
                                  struct tdm_error *err)
{
    struct profile profile = {.estimator = e};
    enum tdm_status status = TDM_OK;
    struct tdm_group *groups = calloc((size_t)e->layers + 1, sizeof(*groups));
    struct tdm_sequence *sequences = tdm_sequences_new(e->classes, 0);
    profile.head = calloc((size_t)e->classes + 1, sizeof(*profile.head));
    if (groups == NULL || sequences == NULL || profile.head == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for estimates");
        goto free_lists;
    }
    for (uint32_t c = 0; c < e->classes; c++)
        sequences[c].tokens = lengths[c];
    status = run_small_step(&profile, sequences, groups, TDM_SET_INPUT, err);
    for (int set = TDM_SET_ATTENTION_OUTPUT + 1; set < TDM_SETS; set++)
        if (status == TDM_OK && e->base->pass == TDM_TRAIN)
            status = run_small_step(&profile, sequences, groups, (enum tdm_set)set, err);
    for (uint32_t i = 0; i < e->layers * e->classes; i++) {
        struct layer_cost *cost = &e->costs[i];
        cost->backward[TDM_SET_INPUT] -= cost->embed + cost->norm + cost->kv;
        cost->backward[TDM_SET_ATTENTION_OUTPUT] = cost->backward[TDM_SET_INPUT];
    }
    note_tail(e);
    for (uint32_t c = 0; c < e->classes; c++)
        e->head_seconds += profile.head[c] * tdm_estimator_count(e, c, 0, e->chunks);

free_lists:
    free(groups);
    tdm_sequences_free(sequences, e->classes);
    free(profile.head);
    return status;
}

static void add_cost(struct layer_cost *sum, const struct layer_cost *cost)
{
    sum->embed += cost->embed;
    sum->norm += cost->norm;
    sum->q += cost->q;
    sum->kv += cost->kv;
    sum->rest += cost->rest;
    sum->mlp_norm += cost->mlp_norm;
    sum->gate_up += cost->gate_up;
    for (int set = 0; set < TDM_SETS; set++)
        sum->backward[set] += cost->backward[set];
}

/* Sums of costs, one row for all layers with equal costs. `class_list` is [chunks]. */
static enum tdm_status sum_layers(struct tdm_estimator *e, const uint32_t *class_list,
                                  struct tdm_error *err)
{
    size_t row = (size_t)e->chunks + 1, bytes = e->classes * sizeof(*e->costs);
    uint32_t rows = 0;
    e->row_of = calloc((size_t)e->layers + 1, sizeof(*e->row_of));
    if (e->row_of == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u layers", e->layers);
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        const struct layer_cost *costs = &e->costs[(size_t)layer * e->classes];
        uint32_t like = 0;
        while (memcmp(&e->costs[(size_t)like * e->classes], costs, bytes) != 0)
            like++;
        e->row_of[layer] = like < layer ? e->row_of[like] : rows++;
    }
    e->costs_before = calloc(rows * row + 1, sizeof(*e->costs_before));
    if (e->costs_before == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", e->chunks);
    for (uint32_t layer = 0, done = 0; layer < e->layers; layer++)
        for (uint32_t i = 0; i < e->chunks && e->row_of[layer] == done; i++) {
            struct layer_cost *next = &e->costs_before[e->row_of[layer] * row + i + 1];
            *next = next[-1];
            add_cost(next, &e->costs[(size_t)layer * e->classes + class_list[i]]);
            done += i + 1 == e->chunks;
        }
    return TDM_OK;
}

/* ---- chunks ---- */

/* Seconds with K and V on the device. estimate_seconds.c adds those to gather them from the
 * host. */
static double op_seconds(const struct tdm_program *chunks, struct tdm_op *op)
{
    tdm_op_cost(chunks, op);
    op->fetched_bytes = op->sent_bytes = 0;
    return tdm_op_seconds(chunks->schedule->machine, op, 0);
}

/* Seconds to make the page lists of a chunk, with its page means if pages are chosen by vote. */
static double select_seconds(const struct tdm_program *chunks, uint32_t layer, uint32_t number)
{
    struct tdm_page_rule rule = tdm_schedule_page_rule(chunks->schedule, layer);
    struct tdm_op select = {.kind = TDM_OP_SELECT,
                            .layer = layer,
                            .chunk = number,
                            .tokens = chunks->chunks[number].tokens};
    struct tdm_op means = select;
    means.kind = TDM_OP_PAGE_MEANS;
    means.access_count = 1;
    means.access[TDM_PAGE_MEANS_PAGES].bytes =
        tdm_chunks_bytes(chunks, TDM_KVPAGES, number, number + 1);
    if (!tdm_selector_lists(rule.selector.kind))
        return 0;
    double seconds = op_seconds(chunks, &select);
    return rule.selector.kind == TDM_SELECT_TOP_K ? seconds + op_seconds(chunks, &means) : seconds;
}

/* Attention of one chunk, with no other op on its lane. The ops are those of lowering, but without
 * lists. */
static double attention_seconds(const struct tdm_program *chunks, uint32_t layer, uint32_t number,
                                bool gradient)
{
    uint32_t next = number + 1;
    uint32_t first = tdm_attend_first(chunks, layer, number),
             shared = tdm_attend_shared(chunks, layer, number);
    const struct {
        enum tdm_content content;
        uint32_t first, end; /* chunks */
        enum tdm_mode mode;
    } operands[] = {[TDM_ATTENTION_Q] = {TDM_Q, number, next, TDM_READ},
                    [TDM_ATTENTION_KV] = {TDM_KVPAGES, first, next, TDM_READ},
                    [TDM_ATTENTION_O] = {TDM_ATTENTION_OUT, number, next, TDM_WRITE},
                    [TDM_ATTENTION_GRAD_DO] = {TDM_DATTENTION, number, next, TDM_READ},
                    [TDM_ATTENTION_GRAD_DQ] = {TDM_DQ, number, next, TDM_WRITE},
                    [TDM_ATTENTION_GRAD_DKV_OPENED] = {TDM_DKVPAGES, first, shared, TDM_WRITE},
                    [TDM_ATTENTION_GRAD_DKV_ADDED] = {TDM_DKVPAGES, shared, next, TDM_ACCUMULATE}};
    struct tdm_op op = {.kind = gradient ? TDM_OP_ATTENTION_GRAD : TDM_OP_ATTENTION,
                        .layer = layer,
                        .chunk = number,
                        .tokens = chunks->chunks[number].tokens,
                        .access_count = gradient ? TDM_ATTENTION_GRAD_LISTS : TDM_ATTENTION_LISTS};
    for (uint32_t i = 0; i < op.access_count; i++) {
        op.access[i].mode = operands[i].mode;
        op.access[i].bytes =
            tdm_chunks_bytes(chunks, operands[i].content, operands[i].first, operands[i].end);
    }
    return op_seconds(chunks, &op);
}

/* Seconds of the copy that frees slots in a row before `reader` enters; 0 without a copy. */
static double move_seconds(const struct tdm_program *chunks, uint32_t span, bool falling,
                           uint32_t layer, uint32_t reader, enum tdm_content content)
{
    struct tdm_kv_move move;
    struct tdm_op op = {
        .kind = TDM_OP_COPY, .link = TDM_NO_LINK, .access_count = TDM_COPY_OPERANDS};
    if (!tdm_kv_moves(chunks, span, falling, layer, reader, &move))
        return 0;
    op.access[TDM_COPY_FROM].bytes = op.access[TDM_COPY_TO].bytes =
        tdm_chunks_bytes(chunks, content, move.first, move.end);
    return op_seconds(chunks, &op);
}

/* Moves in the rows of a layer. Rows with a slot for every chunk need none. */
static struct row_moves row_moves(const struct tdm_program *chunks, uint32_t span, uint32_t layer)
{
    uint32_t n = chunks->chunk_count;
    struct row_moves moves = {.apart = tdm_attend_first(chunks, layer, n - 1) == 0};
    for (uint32_t i = 0; i < n && tdm_kv_slots(chunks, span) < n; i++) {
        moves.rising += move_seconds(chunks, span, false, layer, i, TDM_KVPAGES);
        moves.falling += move_seconds(chunks, span, true, layer, i, TDM_KVPAGES);
        moves.gradients += move_seconds(chunks, span, true, layer, i, TDM_DKVPAGES);
    }
    return moves;
}

/* The class of a length, added if it is new. */
static uint32_t class_of(uint64_t *lengths, uint32_t *classes, uint64_t tokens)
{
    uint32_t c = 0;
    while (c < *classes && lengths[c] != tokens)
        c++;
    if (c == *classes)
        lengths[(*classes)++] = tokens;
    return c;
}

static uint64_t chunks_of(const struct tdm_schedule *schedule, uint32_t sequence)
{
    return tdm_size_ceil_div(schedule->sequences[sequence].tokens, schedule->chunk_tokens);
}

/* The lowest layer of a kind. */
static uint32_t first_of_kind(const struct tdm_estimator *e, uint32_t kind)
{
    uint32_t layer = 0;
    while (e->kind_of[layer] != kind)
        layer++;
    return layer;
}

static void find_kinds(struct tdm_estimator *e)
{
    const struct tdm_layer_kind *kinds = e->base->model->layer_kinds;
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        uint32_t like = 0;
        while (kinds[like].window != kinds[layer].window)
            like++;
        e->kind_of[layer] = like < layer ? e->kind_of[like] : e->kinds++;
    }
}

/* Expected pages that a chunk's attention gathers from the host; 0 if it does not gather. */
static double moved_pages(const struct tdm_program *chunks, uint32_t layer, uint32_t chunk)
{
    const struct tdm_schedule *schedule = chunks->schedule;
    struct tdm_page_rule rule = tdm_schedule_page_rule(schedule, layer);
    if (!tdm_gather_is_set(schedule) || !tdm_selector_lists(rule.selector.kind))
        return 0;
    uint64_t before = chunk - tdm_attend_first(chunks, layer, chunk);
    return tdm_gather_moved_pages(
        schedule, before * tdm_pages_of_chunk(&rule),
        tdm_size_ceil_div(chunks->chunks[chunk].tokens, schedule->page_tokens));
}

/* Seconds of attention and of moves of all chunks, for each kind of layer. */
static enum tdm_status time_attention(struct tdm_estimator *e, const struct tdm_program *chunks,
                                      struct tdm_error *err)
{
    size_t row = (size_t)e->chunks + 1;
    e->kind_of = calloc((size_t)e->layers + 1, sizeof(*e->kind_of));
    if (e->kind_of != NULL)
        find_kinds(e);
    e->attention_before = calloc(e->kinds * row + 1, sizeof(*e->attention_before));
    e->attention_grad_seconds = calloc((size_t)e->kinds + 1, sizeof(*e->attention_grad_seconds));
    e->seen_chunks = calloc((size_t)e->kinds + 1, sizeof(*e->seen_chunks));
    e->gathered_before = calloc(e->kinds * row + 1, sizeof(*e->gathered_before));
    e->moves = calloc((size_t)e->kinds + 1, sizeof(*e->moves));
    if (e->kind_of == NULL || e->attention_before == NULL || e->attention_grad_seconds == NULL ||
        e->seen_chunks == NULL || e->gathered_before == NULL || e->moves == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", e->chunks);
    const struct tdm_schedule *base = e->base;
    double page = (double)tdm_content_bytes(base, TDM_KVPAGES, 0, base->page_tokens);
    double sum_page = (double)tdm_content_bytes(base, TDM_DKVPAGES, 0, base->page_tokens);
    uint32_t span = tdm_kv_span(chunks);
    e->row_slots = tdm_kv_slots(chunks, span);
    for (uint32_t kind = 0; kind < e->kinds; kind++) {
        uint32_t layer = first_of_kind(e, kind);
        e->moves[kind] = row_moves(chunks, span, layer);
        double *before = e->attention_before + kind * row;
        for (uint32_t i = 0; i < e->chunks; i++) {
            before[i + 1] = before[i] + attention_seconds(chunks, layer, i, false);
            e->attention_grad_seconds[kind] += attention_seconds(chunks, layer, i, true);
            /* lists are made once per step; a step that trains counts them in the backward */
            if (e->base->pass == TDM_TRAIN)
                e->attention_grad_seconds[kind] += select_seconds(chunks, layer, i);
            else
                before[i + 1] += select_seconds(chunks, layer, i);
            e->seen_chunks[kind] += i + 1 - tdm_attend_first(chunks, layer, i);
            double pages = moved_pages(chunks, layer, i);
            struct gathered *gathered = e->gathered_before + kind * row + i;
            gathered[1].kv = gathered->kv + (uint64_t)(pages * page);
            gathered[1].sums = gathered->sums + (uint64_t)(pages * sum_page);
        }
    }
    return TDM_OK;
}

/* Workspace for gathered pages, with K and V of all layers on the host, beyond that of the base. */
static void find_gather_work(struct tdm_estimator *e)
{
    struct tdm_group all = {.layers = e->layers, .kv = TDM_KV_KEEP, .kv_place = e->far};
    struct tdm_schedule far = *e->base;
    far.order = TDM_CHUNK_MAJOR;
    far.groups = &all;
    far.group_count = 1;
    const uint64_t bytes = tdm_scratch_bytes(&far, e->longest_tokens);
    const uint64_t base_bytes = tdm_scratch_bytes(e->base, e->longest_tokens);
    e->gather_work = bytes > base_bytes ? bytes - base_bytes : 0;
}

/* Assigns all chunks to classes and times their attention. `lengths` has space for two classes per
 * sequence and one more. *class_list is [chunks]; the caller frees it. */
static enum tdm_status walk_chunks(struct tdm_estimator *e, uint64_t *lengths,
                                   uint32_t **class_list, struct tdm_error *err)
{
    const struct tdm_schedule *base = e->base;
    struct tdm_chunk chunk = {0};
    struct tdm_program program = {.chunk_count = e->chunks};
    uint32_t *list = calloc((size_t)e->chunks + 1, sizeof(*list));
    struct tdm_chunk *chunks = calloc((size_t)e->chunks + 1, sizeof(*chunks));
    if (list == NULL || chunks == NULL) {
        free(list);
        free(chunks);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", e->chunks);
    }

    tdm_program_set_schedule(&program, base);
    program.chunks = chunks;
    uint32_t number = 0;
    for (uint32_t s = 0; s < base->sequence_count; s++) {
        uint64_t left = base->sequences[s].tokens;
        chunk.sequence = s;
        chunk.first_chunk = number;
        chunk.last_chunk = number + (uint32_t)chunks_of(base, s) - 1;
        for (chunk.first_token = 0; left > 0; number++) {
            chunk.tokens = smaller(left, base->chunk_tokens);
            left -= chunk.tokens;
            chunks[number] = chunk;
            list[number] = class_of(lengths, &e->classes, chunk.tokens);
            e->tokens_before[number + 1] =
                e->tokens_before[number] + (double)chunk.tokens / (double)e->longest_tokens;
            chunk.first_token += chunk.tokens;
        }
    }
    enum tdm_status status = time_attention(e, &program, err);
    free(chunks);
    if (status != TDM_OK) {
        free(list);
        return status;
    }
    lengths[e->classes] = lengths[list[e->chunks - 1]];
    list[e->chunks - 1] = e->classes++;
    *class_list = list;
    return TDM_OK;
}

static enum tdm_status count_classes(struct tdm_estimator *e, const uint32_t *class_list,
                                     struct tdm_error *err)
{
    size_t row = (size_t)e->chunks + 1;
    e->class_before = calloc(e->classes * row, sizeof(*e->class_before));
    e->costs = calloc((size_t)e->layers * e->classes, sizeof(*e->costs));
    if (e->class_before == NULL || e->costs == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks", e->chunks);
    for (uint32_t c = 0; c < e->classes; c++)
        for (uint32_t i = 0; i < e->chunks; i++)
            e->class_before[c * row + i + 1] =
                e->class_before[c * row + i] + (class_list[i] == c ? 1 : 0);
    return TDM_OK;
}

static bool take_sums(struct tdm_estimator *e, const struct tdm_model *model, uint64_t chunks)
{
    size_t count = (size_t)model->layers + 1;
    e->tokens_before = calloc((size_t)chunks + 1, sizeof(double));
    e->sweeps = calloc(count, sizeof(*e->sweeps));
    e->before_forward = calloc(count, sizeof(*e->before_forward));
    e->around_backward = calloc(count, sizeof(*e->around_backward));
    bool complete = e->tokens_before != NULL && e->sweeps != NULL && e->before_forward != NULL &&
                    e->around_backward != NULL;
    complete &=
        (e->memory = tdm_lanes_new(model->layers, model->unit_count, (uint32_t)chunks)) != NULL;
    complete &= (e->passing_below = calloc(count, sizeof(uint64_t))) != NULL;
    complete &= (e->votes_below = calloc(count, sizeof(uint64_t))) != NULL;
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        complete &= (e->staying_below[place] = calloc(count, sizeof(uint64_t))) != NULL;
    return complete;
}

static void note_votes(struct tdm_estimator *e)
{
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        struct tdm_page_rule rule = tdm_schedule_page_rule(e->base, layer);
        e->votes_below[layer + 1] =
            e->votes_below[layer] + (rule.selector.kind == TDM_SELECT_TOP_K);
    }
}

enum tdm_status tdm_estimator_new(const struct tdm_schedule *base, struct tdm_estimator **out,
                                  struct tdm_error *err)
{
    uint64_t chunks = 0;
    for (uint32_t s = 0; s < base->sequence_count; s++)
        chunks = tdm_size_add(chunks, chunks_of(base, s));
    if (chunks > UINT32_MAX / 2)
        return tdm_fail(err, TDM_INPUT, "%llu chunks in a step", (unsigned long long)chunks);
    enum tdm_status status = TDM_OK;
    uint32_t *class_list = NULL;
    uint64_t *lengths = calloc((size_t)base->sequence_count * 2 + 2, sizeof(*lengths));
    struct tdm_estimator *e = calloc(1, sizeof(*e));
    if (lengths == NULL || e == NULL || !take_sums(e, base->model, chunks)) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for estimates");
        goto done;
    }
    e->own = *base;
    e->base = &e->own;
    e->layers = base->model->layers;
    e->chunks = (uint32_t)chunks;
    e->far = tdm_far_place(base);
    note_sizes(e);
    note_votes(e);
    if (!note_units(e)) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for estimates");
        goto done;
    }
    note_homes(e);
    find_gather_work(e);
    status = walk_chunks(e, lengths, &class_list, err);
    if (status == TDM_OK)
        status = count_classes(e, class_list, err);
    if (status == TDM_OK)
        status = find_costs(e, lengths, err);
    if (status == TDM_OK)
        status = sum_layers(e, class_list, err);
    if (status == TDM_OK) {
        uint64_t states[TDM_MAX_PLACES] = {0};
        add_states(e, states);
        for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
            e->stateless_bytes[place] = e->resident_bytes[place] - states[place];
    }

done:
    free(class_list);
    free(lengths);
    if (status == TDM_OK)
        *out = e;
    else
        tdm_estimator_free(e);
    return status;
}

void tdm_estimator_free(struct tdm_estimator *e)
{
    if (e == NULL)
        return;
    for (int state = 0; state < TDM_STATES; state++)
        free(e->unit_bytes[state]);
    free(e->gradient_bytes);
    free(e->tokens_before);
    free(e->sweeps);
    tdm_lanes_free(e->memory);
    free(e->before_forward);
    free(e->around_backward);
    free(e->passing_below);
    free(e->votes_below);
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        free(e->staying_below[place]);
    free(e->class_before);
    free(e->costs);
    free(e->row_of);
    free(e->costs_before);
    free(e->kind_of);
    free(e->attention_before);
    free(e->attention_grad_seconds);
    free(e->seen_chunks);
    free(e->gathered_before);
    free(e->moves);
    free(e);
}

uint32_t tdm_estimator_chunks(const struct tdm_estimator *e)
{
    return e->chunks;
}

uint64_t tdm_estimate_logits(const struct tdm_estimator *e, uint64_t tile_tokens)
{
    uint64_t tokens = smaller(tile_tokens, e->base->chunk_tokens);
    uint64_t bytes = tdm_content_bytes(e->base, TDM_LOGIT_TILE, 0, tokens);
    if (tdm_vocabulary_tiles(e->base) == 1)
        return bytes;
    bytes = tdm_size_add(bytes, tdm_content_bytes(e->base, TDM_HEAD_LSE, 0, tokens));
    return e->base->pass == TDM_EVALUATE
               ? bytes
               : tdm_size_add(bytes, tdm_content_bytes(e->base, TDM_HEAD_SUM, 0, tokens));
}
