/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of the parts of a layer, taken from the ops of small steps. */
#include "planner/estimate_parts.h"

#include "base/size.h"
#include "schedule/cost.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/scratch.h"

#include <stdlib.h>
#include <string.h>

struct profile {
    struct tdm_estimator *estimator;
    const struct tdm_estimator *like; /* as of tdm_estimator_new_like() */
    const struct tdm_program *program;
    /* `input`: take all costs; otherwise those of the backward */
    enum tdm_set kept;
    double *head;                /* [classes] */
    uint64_t work;               /* live bytes of workspace on the device */
    uint64_t resident_work;      /* of these, during the whole step */
    struct update_cost *updates; /* [units], of find_updates() */
    double used_rows;            /* of the embedding, by the small step */
};

/* The cost to which an op of the small step adds its time. */
enum account {
    ACCOUNT_BESIDE, /* copies of units, which may overlap computing */
    ACCOUNT_SIGHT,  /* depends on what its chunk sees: attention_seconds(), select_seconds() */
    ACCOUNT_EMBED,
    ACCOUNT_LAYER, /* by the op's part */
};

static enum account account_of(enum tdm_op_kind kind)
{
    switch (kind) {
    case TDM_OP_COPY:
        return ACCOUNT_BESIDE;
    case TDM_OP_EMBED:
        return ACCOUNT_EMBED;
    case TDM_OP_PAGE_MEANS: /* made for the selection */
        return ACCOUNT_SIGHT;
    default:
        return tdm_op_type(kind)->sight != TDM_SIGHT_NONE ? ACCOUNT_SIGHT : ACCOUNT_LAYER;
    }
}

/* Seconds of an op. Of the embedding's update on the host the rows that a short step uses, or all
 * others, stand for those of the whole step; the latter are updated during the forward. */
static double op_seconds(struct profile *profile, const struct tdm_op *op)
{
    struct tdm_estimator *e = profile->estimator;
    const struct tdm_schedule *base = e->base;
    if (op->rows == TDM_ROWS_ALL)
        return tdm_op_seconds(base->machine, op);
    const double rows = base->model->vocabulary, used = (double)tdm_used_rows(base);
    const double due = op->rows == TDM_ROWS_USED ? used : rows - used;
    const double seen = op->rows == TDM_ROWS_USED ? profile->used_rows : rows - profile->used_rows;
    struct tdm_op whole = *op;
    whole.bytes = (uint64_t)((double)op->bytes * due / seen);
    const double seconds = tdm_op_seconds(base->machine, &whole);
    if (op->rows == TDM_ROWS_USED)
        return seconds;
    e->early_host_seconds = seconds;
    return 0;
}

static enum tdm_status note_op(struct profile *profile, const struct tdm_op *op)
{
    struct tdm_estimator *e = profile->estimator;
    const double seconds = e->untimed ? 0 : op_seconds(profile, op);
    const uint64_t work = profile->work - profile->resident_work;
    const enum account account = account_of(op->kind);

    if (account == ACCOUNT_BESIDE)
        return TDM_OK;
    if (profile->kept != TDM_SET_INPUT &&
        (op->phase != TDM_BACKWARD || op->part == TDM_PART_HEAD || op->part == TDM_PART_FINAL_NORM))
        return TDM_OK;
    if (op->phase == TDM_OPTIMIZER_PHASE) {
        bool host = op->lane == TDM_LANE_HOST;
        bool embedding = op->layer == tdm_model_embedding_unit(e->base->model);
        if (!host)
            e->updates.optimizer_seconds += seconds;
        else if (embedding)
            e->last_host_seconds += seconds;
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
            cost->backward[profile->kept] +=
                seconds; /* tdm_estimator_find_costs() subtracts the K, V sweep */
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

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct profile *profile = self;
    (void)err;
    if (item->kind == TDM_RUN)
        return note_op(profile, item->op);
    const struct tdm_buffer *buffer = &profile->program->buffers[item->buffer];
    if (buffer->place == TDM_DEVICE && buffer->category == TDM_WORKSPACE)
        profile->work += item->kind == TDM_FREE ? -buffer->bytes : buffer->bytes;
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
            bytes = tdm_scratch_bytes(e->base, e->longest_tokens);
        *resident = tdm_size_add(*resident, bytes);
    }
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

/* Workspace depends neither on homes nor on where updates run. */
static void take_work(struct tdm_estimator *e, const struct tdm_estimator *like)
{
    e->work_forward = like->work_forward;
    e->work_head = like->work_head;
    e->work_backward = like->work_backward;
    e->work_backward_first = like->work_backward_first;
}

/* Goes through the small step and notes its ops. `kept` decides which costs are taken from it. */
static enum tdm_status run_small_step(struct profile *profile, struct tdm_sequence *sequences,
                                      struct tdm_group *groups, enum tdm_set kept,
                                      struct tdm_error *err)
{
    struct tdm_estimator *e = profile->estimator;
    struct tdm_schedule small;
    struct tdm_program *program = NULL;
    small_schedule(e->base, sequences, e->classes, kept, groups, &small);
    profile->used_rows = (double)tdm_used_rows(&small);
    enum tdm_status status = tdm_program_declare(&small, &program, err);
    if (status != TDM_OK)
        return status;
    profile->program = program;
    profile->kept = kept;
    if (kept == TDM_SET_INPUT)
        note_residents(profile);
    profile->work = 0;
    if (e->untimed && profile->like != NULL)
        take_work(e, profile->like);
    else
        status = tdm_program_emit(program, take_item, profile, err);
    tdm_program_free(program);
    return status;
}

/* ---- updates on the host ---- */

static enum tdm_status take_update(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct profile *profile = self;
    (void)err;
    if (item->kind != TDM_RUN || item->op->phase != TDM_OPTIMIZER_PHASE ||
        account_of(item->op->kind) == ACCOUNT_BESIDE)
        return TDM_OK;
    struct update_cost *cost = &profile->updates[item->op->layer];
    const struct tdm_machine *machine = profile->estimator->base->machine;
    const double slower = tdm_op_seconds_per_copied_byte(machine, item->op);
    *(item->op->lane == TDM_LANE_HOST ? &cost->host : &cost->compute) +=
        op_seconds(profile, item->op);
    profile->estimator->seconds_per_copied_byte =
        later(profile->estimator->seconds_per_copied_byte, slower);
    return TDM_OK;
}

/* Goes through two short steps, with all layers' state on the host and on the device. */
static enum tdm_status find_updates(struct profile *profile, struct tdm_sequence *sequences,
                                    struct tdm_group *groups, struct tdm_error *err)
{
    struct tdm_estimator *e = profile->estimator;
    const size_t units = (size_t)e->base->model->unit_count + 1;
    const struct tdm_machine *machine = e->base->machine;
    const uint32_t embedding = tdm_model_embedding_unit(e->base->model);
    enum tdm_status status = TDM_OK;
    e->far_updates = calloc(units, sizeof(*e->far_updates));
    e->near_updates = calloc(units, sizeof(*e->near_updates));
    if (e->far_updates == NULL || e->near_updates == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for estimates");
    for (int near = 0; near < 2 && status == TDM_OK; near++) {
        struct tdm_schedule small;
        struct tdm_program *program = NULL;
        small_schedule(e->base, sequences, 1, TDM_SET_INPUT, groups, &small);
        for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
            small.homes[state].device_layers = near ? e->layers : 0;
        profile->updates = near ? e->near_updates : e->far_updates;
        profile->used_rows = (double)tdm_used_rows(&small);
        status = tdm_program_declare(&small, &program, err);
        if (status == TDM_OK)
            status = tdm_program_emit(program, take_update, profile, err);
        tdm_program_free(program);
    }
    if (e->last_host_seconds > 0)
        e->lead_seconds =
            machine->copy_seconds + (double)e->unit_bytes[TDM_STATE_WEIGHTS][embedding] /
                                        tdm_machine_link_rate(machine, TDM_LINK_H2D);
    e->updates = tdm_estimator_updates(e, e->base->homes[TDM_STATE_WEIGHTS].device_layers);
    return status;
}

struct tdm_updates tdm_estimator_updates(const struct tdm_estimator *e, uint32_t device_layers)
{
    const struct tdm_schedule *base = e->base;
    const struct tdm_machine *machine = base->machine;
    const struct tdm_home home = {.device_layers = device_layers};
    const uint32_t embedding = tdm_model_embedding_unit(base->model);
    const bool all = device_layers == 0 && tdm_is_far(base->homes[TDM_STATE_WEIGHTS].head);
    struct tdm_updates sum = {0};
    if (e->far_updates == NULL)
        return e->updates;
    for (uint32_t unit = 0, far = 0; unit < base->model->unit_count; unit++) {
        const uint32_t below =
            unit < e->layers ? tdm_home_far_below(&home, e->layers, unit + 1) : far + 1;
        const struct update_cost *cost = &(below > far ? e->far_updates : e->near_updates)[unit];
        sum.host_seconds += cost->host;
        sum.optimizer_seconds += cost->compute;
        far = below;
    }
    /* the embedding's gradient is sent and used while norms compute, of more layers in chunk-major
     * order; if updates are after the backward, also those of units on the device */
    const double last =
        machine->copy_seconds + e->last_host_seconds +
        (double)e->gradient_bytes[embedding] / tdm_machine_link_rate(machine, TDM_LINK_D2H);
    for (int order = 0; order < TDM_ORDERS && e->last_host_seconds > 0; order++) {
        const bool norms = order == TDM_LAYER_MAJOR && (all || !tdm_updates_at_end(base));
        sum.tail_seconds[order] =
            later(last - (norms ? e->last_norm_seconds : sum.optimizer_seconds), 0);
    }
    return sum;
}

/* Seconds of a backward with a set depend neither on homes nor on where updates run. */
static void take_costs(struct tdm_estimator *e, const struct tdm_estimator *like, int set)
{
    for (uint32_t i = 0; i < e->layers * e->classes; i++)
        e->costs[i].backward[set] = like->costs[i].backward[set];
}

enum tdm_status tdm_estimator_find_costs(struct tdm_estimator *e, const struct tdm_estimator *like,
                                         const uint64_t *lengths, struct tdm_error *err)
{
    struct profile profile = {.estimator = e, .like = like};
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
    for (int set = TDM_SET_ATTENTION_OUTPUT + 1; set < TDM_SETS && !e->untimed; set++)
        if (like != NULL)
            take_costs(e, like, set);
        else if (status == TDM_OK && e->base->pass == TDM_TRAIN)
            status = run_small_step(&profile, sequences, groups, (enum tdm_set)set, err);
    for (uint32_t i = 0; i < e->layers * e->classes; i++) {
        struct layer_cost *cost = &e->costs[i];
        cost->backward[TDM_SET_INPUT] -= cost->embed + cost->norm + cost->kv;
        cost->backward[TDM_SET_ATTENTION_OUTPUT] = cost->backward[TDM_SET_INPUT];
    }
    if (status == TDM_OK && e->base->pass == TDM_TRAIN && tdm_is_far(e->base->optimizer.on) &&
        !e->untimed)
        status = find_updates(&profile, sequences, groups, err);
    for (uint32_t c = 0; c < e->classes; c++)
        e->head_seconds += profile.head[c] * tdm_estimator_count(e, c, 0, e->chunks);

free_lists:
    free(groups);
    tdm_sequences_free(sequences, e->classes);
    free(profile.head);
    return status;
}

/* ---- sums ---- */

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

enum tdm_status tdm_estimator_sum_layers(struct tdm_estimator *e, const uint32_t *class_list,
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
            add_cost(next, &e->costs[(size_t)layer * e->classes + class_list[e->chunk_at[i]]]);
            done += i + 1 == e->chunks;
        }
    return TDM_OK;
}
