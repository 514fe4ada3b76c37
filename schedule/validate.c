/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validator: replays what every slot holds.
 *
 * There is one record per buffer: whether it is live, and for each slot (in buffers of units, for
 * each part of a slot) its tag and the last positions at which each lane read and wrote it. The
 * code is written to be obvious, not fast: allocations are quadratic in buffers, an access is
 * linear in its slots.
 *
 * operands.c has the table of what an op's operands must be. validate_cost.c counts what an op
 * costs.
 */
#include "schedule/validate.h"

#include "base/size.h"
#include "ops/move.h"
#include "ops/team.h"
#include "schedule/gather.h"
#include "schedule/layout.h"
#include "schedule/operands.h"
#include "schedule/program.h"
#include "schedule/slices.h"
#include "schedule/tags.h"
#include "schedule/team_check.h"
#include "schedule/validate_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct uses {
    uint64_t read[TDM_MAX_LANES], written[TDM_MAX_LANES];
};

struct record {
    bool live;
    uint32_t parts;                /* of a slot: 1, or TDM_PARTS in buffers of units */
    struct tdm_tag *tags;          /* [slots][parts] */
    struct uses *uses;             /* [slots][parts] */
    uint64_t last[TDM_MAX_LANES];  /* last use of any slot, ever */
    uint64_t birth[TDM_MAX_LANES]; /* last uses of its bytes before it was allocated */
    bool born;                     /* it has been live before */
};

struct tdm_validator {
    const struct tdm_program *program;
    const struct tdm_topology *topology; /* of its machine */
    bool layers_alike;                   /* their parts are at the same offsets in a slot */
    uint64_t capacity_bytes[TDM_MAX_PLACES];
    struct record *records;
    uint64_t position[TDM_MAX_LANES];
    uint64_t passed[TDM_MAX_LANES]
                   [TDM_MAX_LANES]; /* [lane][other]: position of other that lane has waited for */
    uint64_t next_op;
    enum tdm_update_rows updated_rows; /* of the embedding, by the last update of some of them */
    uint64_t *tile_base;               /* [chunk_count + 1] LM-head tiles before a chunk */
    struct tdm_cost_check *costs;
};

enum tdm_status tdm_validator_new(const struct tdm_program *program,
                                  const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                  struct tdm_validator **out, struct tdm_error *err)
{
    struct tdm_validator *v = calloc(1, sizeof(*v));
    if (v == NULL)
        goto no_memory;
    v->program = program;
    v->topology = &program->schedule->machine->topology;
    v->layers_alike = tdm_model_layers_alike(program->schedule->model);
    memcpy(v->capacity_bytes, capacity_bytes, sizeof(v->capacity_bytes));
    v->records = calloc((size_t)program->buffer_count + 1, sizeof(*v->records));
    v->tile_base = calloc((size_t)program->chunk_count + 1, sizeof(*v->tile_base));
    v->costs = tdm_cost_check_new(program);
    if (v->records == NULL || v->tile_base == NULL || v->costs == NULL)
        goto no_memory;
    for (uint32_t i = 0; i < program->chunk_count; i++)
        v->tile_base[i + 1] =
            v->tile_base[i] +
            tdm_size_ceil_div(program->chunks[i].tokens, program->schedule->head_tile_tokens);
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        struct record *record = &v->records[i];
        record->parts = buffer->by_part ? TDM_PARTS : 1;
        record->tags = calloc((size_t)buffer->slots * record->parts, sizeof(*record->tags));
        record->uses = calloc((size_t)buffer->slots * record->parts, sizeof(*record->uses));
        if (record->tags == NULL || record->uses == NULL)
            goto no_memory;
    }
    *out = v;
    return TDM_OK;

no_memory:
    tdm_validator_free(v);
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the validator");
}

void tdm_validator_free(struct tdm_validator *v)
{
    if (v == NULL)
        return;
    for (uint32_t i = 0; v->records != NULL && i < v->program->buffer_count; i++) {
        free(v->records[i].tags);
        free(v->records[i].uses);
    }
    free(v->records);
    free(v->tile_base);
    tdm_cost_check_free(v->costs);
    free(v);
}

/* ---- buffers come and go ---- */

static bool bytes_overlap(const struct tdm_buffer *a, const struct tdm_buffer *b)
{
    return a->place == b->place && a->offset < tdm_size_add(b->offset, b->bytes) &&
           b->offset < tdm_size_add(a->offset, a->bytes);
}

static enum tdm_status check_alloc(struct tdm_validator *v, uint32_t number, struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &v->program->buffers[number];
    struct record *record = &v->records[number];
    uint64_t end = tdm_size_add(buffer->offset, buffer->bytes);

    if (record->live)
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" is allocated while it lives", buffer->name);
    if (buffer->resident && record->born)
        return tdm_fail(err, TDM_INPUT,
                        "buffer \"%s\", which outlives the step, is freed inside it", buffer->name);
    if (buffer->bytes != tdm_size_mul(buffer->slots, buffer->slot_bytes))
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" has %llu bytes, not %u slots of %llu",
                        buffer->name, (unsigned long long)buffer->bytes, buffer->slots,
                        (unsigned long long)buffer->slot_bytes);
    if (end > v->program->arena_bytes[buffer->place])
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" ends at byte %llu of a %s arena of %llu",
                        buffer->name, (unsigned long long)end,
                        tdm_place_name(v->topology, buffer->place),
                        (unsigned long long)v->program->arena_bytes[buffer->place]);
    if (end > v->capacity_bytes[buffer->place])
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" ends at byte %llu, over the %s's %llu",
                        buffer->name, (unsigned long long)end,
                        tdm_place_name(v->topology, buffer->place),
                        (unsigned long long)v->capacity_bytes[buffer->place]);
    for (uint32_t other = 0; other < v->program->buffer_count; other++) {
        if (!bytes_overlap(buffer, &v->program->buffers[other]))
            continue;
        if (v->records[other].live)
            return tdm_fail(err, TDM_INPUT, "live buffers \"%s\" and \"%s\" overlap", buffer->name,
                            v->program->buffers[other].name);
        for (uint32_t lane = 0; lane < v->topology->lane_count; lane++)
            if (v->records[other].last[lane] > record->birth[lane])
                record->birth[lane] = v->records[other].last[lane];
    }
    record->live = record->born = true;
    return TDM_OK;
}

/* What a slot holds when its buffer is allocated: nothing, or what outlived the last step. */
static struct tdm_tag initial_tag(const struct tdm_validator *v, const struct tdm_buffer *buffer,
                                  uint32_t slot)
{
    if (!buffer->resident)
        return (struct tdm_tag){TDM_EMPTY, TDM_NONE, TDM_NONE, TDM_NONE, 0};
    return tdm_program_initial(v->program, buffer, slot);
}

static void fill_tags(struct tdm_validator *v, uint32_t number)
{
    const struct tdm_buffer *buffer = &v->program->buffers[number];
    struct record *record = &v->records[number];
    for (uint32_t slot = 0; slot < buffer->slots; slot++) {
        struct tdm_tag tag = initial_tag(v, buffer, slot);
        for (uint32_t part = 0; part < record->parts; part++)
            record->tags[(size_t)slot * record->parts + part] = tag;
    }
}

/* ---- one access ---- */

/* Parts of a slot that an access names: [*first, *end). */
static void parts_of(const struct record *record, const struct tdm_access *access, uint32_t *first,
                     uint32_t *end)
{
    bool all = record->parts == 1 || access->part >= TDM_PARTS;
    *first = all ? 0 : access->part;
    *end = all ? record->parts : access->part + 1;
}

/* Parts whose bytes an access may use: all of a slot, if layers have parts at different offsets. */
static void parts_used(const struct tdm_validator *v, const struct record *record,
                       const struct tdm_access *access, uint32_t *first, uint32_t *end)
{
    parts_of(record, access, first, end);
    if (!v->layers_alike) {
        *first = 0;
        *end = record->parts;
    }
}

/* Does the unit that a tag names have tensors of this part? A buffer of units has a tag for every
 * part; the tags of parts that the unit lacks are ignored. */
static bool has_part(const struct tdm_program *program, const struct record *record,
                     struct tdm_tag tag, uint32_t part)
{
    if (record->parts == 1 || tag.layer >= program->schedule->model->unit_count)
        return record->parts == 1 || part == 0;
    return tdm_part_bytes(program->schedule->model, tag.layer, (enum tdm_part)part,
                          TDM_DTYPE_BF16) > 0;
}

/* Bytes of the slice that a tag names; TDM_SIZE_MAX if there is none. */
static uint64_t slice_bytes(const struct tdm_validator *v, struct tdm_tag tag)
{
    if (!tdm_is_sliced(v->program->schedule, tag.content, tag.layer) ||
        tag.chunk >= tdm_slice_count(v->program->schedule, tag.layer))
        return TDM_SIZE_MAX;
    return tdm_size_mul(tdm_slice_at(v->program->schedule, tag.layer, tag.chunk).elements,
                        tdm_dtype_bytes(tdm_content_dtype(v->program->schedule, tag.content)));
}

/* Bytes that each slot of an access must have, for its largest chunk or for its unit. */
static uint64_t slot_need(const struct tdm_validator *v, const struct tdm_op *op,
                          const struct tdm_access *access)
{
    const struct tdm_schedule *schedule = v->program->schedule;
    enum tdm_content content = access->after.content;
    if (tdm_content_is_of_unit(content) && access->after.layer >= schedule->model->unit_count)
        return TDM_SIZE_MAX;
    if (tdm_content_is_of_unit(content) && access->after.chunk != TDM_NONE)
        return slice_bytes(v, access->after);
    bool of_tile = content == TDM_LOGIT_TILE || content == TDM_HEAD_LSE || content == TDM_HEAD_SUM;
    uint64_t tokens = of_tile ? op->tokens : 0;
    for (uint32_t k = 0; k < access->slots && !of_tile; k++) {
        uint32_t chunk = tdm_tag_at(access->after, k).chunk;
        if (chunk < v->program->chunk_count && v->program->chunks[chunk].tokens > tokens)
            tokens = v->program->chunks[chunk].tokens;
    }
    if (content == TDM_UNIT_WEIGHTS && access->after.share != 0 && op->kind == TDM_OP_COPY &&
        v->program->buffers[access->buffer].resident) /* the home of a rank's part */
        return tdm_rank_part(schedule, access->after.layer, v->program->rank).elements *
               tdm_dtype_bytes(schedule->dtypes.weights);
    return tdm_content_bytes(schedule, content, access->after.layer, tokens);
}

/* Is an access in the right slot, if its content is found by number? Tokens and losses are found by
 * chunk, norms by unit. */
static bool is_in_place(const struct tdm_buffer *buffer, const struct tdm_access *access)
{
    if (buffer->resident && buffer->axis == TDM_AXIS_CHUNK)
        return access->first_slot == access->after.chunk;
    return access->after.content != TDM_GRADIENT_NORM || access->first_slot == access->after.layer;
}

/* May an op of the compute lane use a content at another place? Only attention that gathers may. */
static bool may_be_far(const struct tdm_schedule *schedule, const struct tdm_op *op,
                       enum tdm_content content)
{
    bool attends = op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD;
    return attends && (content == TDM_KVPAGES || content == TDM_DKVPAGES) &&
           op->layer < schedule->model->layers && tdm_gathers(schedule, op->layer);
}

static enum tdm_status check_range(const struct tdm_validator *v, const struct tdm_op *op,
                                   const struct tdm_access *access, struct tdm_error *err)
{
    if (access->buffer >= v->program->buffer_count)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) names buffer %u of %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), access->buffer,
                        v->program->buffer_count);
    const struct tdm_buffer *buffer = &v->program->buffers[access->buffer];
    if (!v->records[access->buffer].live)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) uses buffer \"%s\", which is not live",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), buffer->name);
    if (access->slots == 0 || access->first_slot >= buffer->slots ||
        access->slots > buffer->slots - access->first_slot)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) uses slots %u to %u of \"%s\", which has %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        access->first_slot, access->first_slot + access->slots - 1, buffer->name,
                        buffer->slots);
    if (access->after.content >= TDM_CONTENTS || access->before.content >= TDM_CONTENTS)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) leaves content %d in \"%s\"",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        (int)access->after.content, buffer->name);
    if (buffer->dtype != tdm_content_dtype(v->program->schedule, access->after.content))
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) has %s in \"%s\", which stores %s",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        tdm_content_name(access->after.content), buffer->name,
                        tdm_dtype_name(buffer->dtype));
    if (!is_in_place(buffer, access))
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) has %s in slot %u of \"%s\"",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        tdm_tag_show(access->after, (char[TDM_TAG_TEXT]){0}), access->first_slot,
                        buffer->name);
    if (access->bytes > tdm_size_mul(access->slots, buffer->slot_bytes))
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) uses %llu bytes of %u slots of \"%s\"",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        (unsigned long long)access->bytes, access->slots, buffer->name);
    uint64_t need = slot_need(v, op, access);
    if (need > buffer->slot_bytes)
        return tdm_fail(err, TDM_INPUT,
                        "op %llu (%s) needs %llu bytes for %s in a slot of \"%s\", which has %llu",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        (unsigned long long)need, tdm_content_name(access->after.content),
                        buffer->name, (unsigned long long)buffer->slot_bytes);
    const struct tdm_lane_row *lane = &v->topology->lanes[op->lane];
    if (lane->computes && buffer->place != lane->place &&
        !may_be_far(v->program->schedule, op, access->after.content))
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) computes on \"%s\", which is at place %s",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), buffer->name,
                        tdm_place_name(v->topology, buffer->place));
    return TDM_OK;
}

/* Checks that keep the replay, and the order tracker before it, inside their arrays. */
static enum tdm_status check_ranges(const struct tdm_validator *v, const struct tdm_op *op,
                                    struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (op->access_count > TDM_OPERANDS || (uint32_t)op->lane >= v->topology->lane_count ||
        op->kind >= TDM_OP_KINDS)
        return tdm_fail(err, TDM_INPUT, "op %llu, of kind %d, has %u operands on lane %d",
                        (unsigned long long)op->number, (int)op->kind, op->access_count,
                        (int)op->lane);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++)
        if (op->access[i].buffer != TDM_NONE)
            status = check_range(v, op, &op->access[i], err);
    return status;
}

static enum tdm_status check_tags(struct tdm_validator *v, const struct tdm_op *op,
                                  const struct tdm_access *access, struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &v->program->buffers[access->buffer];
    struct record *record = &v->records[access->buffer];
    uint32_t first, end;
    parts_of(record, access, &first, &end);

    for (uint32_t k = 0; k < access->slots; k++)
        for (uint32_t part = first; part < end; part++) {
            struct tdm_tag due = tdm_tag_at(access->before, k);
            struct tdm_tag after = tdm_tag_at(access->after, k);
            struct tdm_tag *found =
                &record->tags[(size_t)(access->first_slot + k) * record->parts + part];
            if (!has_part(v->program, record, after, part))
                continue;
            if (access->mode != TDM_WRITE && !tdm_tag_same(*found, due)) {
                char due_text[TDM_TAG_TEXT], found_text[TDM_TAG_TEXT];
                return tdm_fail(err, TDM_INPUT,
                                "op %llu (%s, layer %d, chunk %d) expects %s in slot %u of \"%s\", "
                                "which holds %s",
                                (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                                (int)op->layer, (int)op->chunk, tdm_tag_show(due, due_text),
                                access->first_slot + k, buffer->name,
                                tdm_tag_show(*found, found_text));
            }
            if (access->mode != TDM_READ)
                *found = after;
        }
    return TDM_OK;
}

/* Checks that `op` has waited for position `due` of `lane`, itself or earlier on its lane. */
static enum tdm_status check_wait(const struct tdm_validator *v, const struct tdm_op *op,
                                  uint32_t lane, uint64_t due, const struct tdm_buffer *buffer,
                                  struct tdm_error *err)
{
    if (lane == (uint32_t)op->lane || due <= v->passed[op->lane][lane])
        return TDM_OK;
    return tdm_fail(
        err, TDM_INPUT, "op %llu (%s) does not wait for op %llu of lane %s, which uses \"%s\" too",
        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (unsigned long long)due,
        tdm_lane_name(v->topology, (enum tdm_lane)lane), buffer->name);
}

static enum tdm_status check_order(const struct tdm_validator *v, const struct tdm_op *op,
                                   const struct tdm_access *access, struct tdm_error *err)
{
    const struct record *record = &v->records[access->buffer];
    const struct tdm_buffer *buffer = &v->program->buffers[access->buffer];
    enum tdm_status status = TDM_OK;
    uint32_t first, end;
    parts_used(v, record, access, &first, &end);
    for (uint32_t lane = 0; lane < v->topology->lane_count && status == TDM_OK; lane++) {
        uint64_t due = record->birth[lane];
        /* no use of a slot is later than the last use of the buffer */
        const bool passed = record->last[lane] <= v->passed[op->lane][lane];
        if (lane == (uint32_t)op->lane || (passed && due <= v->passed[op->lane][lane]))
            continue;
        for (uint32_t k = 0; k < access->slots; k++)
            for (uint32_t part = first; part < end; part++) {
                const struct uses *uses =
                    &record->uses[(size_t)(access->first_slot + k) * record->parts + part];
                if (uses->written[lane] > due)
                    due = uses->written[lane];
                if (access->mode != TDM_READ && uses->read[lane] > due)
                    due = uses->read[lane];
            }
        status = check_wait(v, op, lane, due, buffer, err);
    }
    return status;
}

static void note_uses(struct tdm_validator *v, const struct tdm_op *op,
                      const struct tdm_access *access)
{
    struct record *record = &v->records[access->buffer];
    uint64_t position = v->position[op->lane];
    uint32_t first, end;
    parts_used(v, record, access, &first, &end);
    for (uint32_t k = 0; k < access->slots; k++)
        for (uint32_t part = first; part < end; part++) {
            struct uses *uses =
                &record->uses[(size_t)(access->first_slot + k) * record->parts + part];
            if (access->mode == TDM_READ)
                uses->read[op->lane] = position;
            else
                uses->written[op->lane] = position;
        }
    record->last[op->lane] = position;
}

/* Is the copy of one part right? Only gradients are copied in parts, away from the device. The unit
 * must have the part, and the op must name it. Tags show the rest: that the part's sum is complete,
 * and that a reader of the whole unit finds every part. */
static bool is_part_of_gradient(const struct tdm_validator *v, const struct tdm_op *op,
                                struct tdm_tag what)
{
    const struct tdm_buffer *to = &v->program->buffers[op->access[TDM_COPY_TO].buffer];
    return what.content == TDM_UNIT_GRADIENT && to->place != TDM_DEVICE &&
           op->access[TDM_COPY_FROM].part < TDM_PARTS &&
           op->access[TDM_COPY_FROM].part == (uint32_t)op->part &&
           tdm_part_bytes(v->program->schedule->model, what.layer, op->part, TDM_DTYPE_BF16) > 0;
}

/* Is a gradient that is copied complete? With an optimizer each of several ranks has the sum of its
 * own part, and copies that. */
static bool is_complete_sum(const struct tdm_validator *v, const struct tdm_op *op,
                            struct tdm_tag what)
{
    const struct tdm_schedule *schedule = v->program->schedule;
    if (v->program->ranks == 1 || schedule->optimizer.kind == TDM_OPTIMIZER_NONE)
        return what.contributor == 0 && what.share == 0 && op->elements == 0;
    const struct tdm_slice own = tdm_rank_part(schedule, what.layer, v->program->rank);
    return what.contributor == TDM_NONE && what.share == v->program->rank + 1 &&
           op->first_element == own.first && op->elements == own.elements;
}

/* Does a copy of a unit that is no sum move what is due: of sliced weights the rank's part, of all
 * else all? */
static bool is_part_of_weights(const struct tdm_validator *v, const struct tdm_op *op,
                               struct tdm_tag what)
{
    const struct tdm_schedule *schedule = v->program->schedule;
    if (what.content != TDM_UNIT_WEIGHTS || !tdm_weights_sliced(schedule))
        return what.share == 0 && op->elements == 0;
    const struct tdm_slice own = tdm_rank_part(schedule, what.layer, v->program->rank);
    return what.share == v->program->rank + 1 && op->first_element == own.first &&
           op->elements == own.elements;
}

/* Is the copy of a unit right? Units are copied as the step found them, or when their sum or their
 * update is complete; a norm when it is made. Only gradients are copied in parts. */
static bool is_of_unit(const struct tdm_validator *v, const struct tdm_op *op, struct tdm_tag what)
{
    bool by_part = tdm_content_is_of_unit(what.content);
    bool is_sum = what.content == TDM_UNIT_GRADIENT || what.content == TDM_TIED_GRADIENT;
    return what.layer == op->layer && what.layer < v->program->schedule->model->unit_count &&
           (what.chunk != TDM_NONE) ==
               tdm_is_sliced(v->program->schedule, what.content, what.layer) &&
           op->chunk == TDM_NONE && op->tokens == 0 &&
           (is_sum ? is_complete_sum(v, op, what)
                   : is_part_of_weights(v, op, what) &&
                         (what.contributor == 0 || what.contributor == TDM_NONE)) &&
           ((op->access[TDM_COPY_FROM].part == (by_part ? (uint32_t)TDM_PART_ALL : 0) &&
             op->part == 0) ||
            is_part_of_gradient(v, op, what));
}

static uint64_t unit_bytes(const struct tdm_validator *v, const struct tdm_op *op,
                           struct tdm_tag what)
{
    const struct tdm_schedule *schedule = v->program->schedule;
    uint32_t part = op->access[TDM_COPY_FROM].part;
    if (what.chunk != TDM_NONE)
        return slice_bytes(v, what);
    if (what.share != 0)
        return op->elements * tdm_dtype_bytes(tdm_content_dtype(schedule, what.content));
    return tdm_content_is_of_unit(what.content) && part < TDM_PARTS
               ? tdm_part_bytes(schedule->model, what.layer, (enum tdm_part)part,
                                tdm_content_dtype(schedule, what.content))
               : tdm_content_bytes(schedule, what.content, what.layer, 0);
}

/* Is the copy of chunks right? They are whole chunks of one sequence. Several at once are copied
 * only between rows of equal slots. Only a sum of dK, dV is copied before it is complete. */
static bool is_of_chunks(const struct tdm_validator *v, const struct tdm_op *op,
                         struct tdm_tag what)
{
    const struct tdm_program *program = v->program;
    const struct tdm_access *read = &op->access[TDM_COPY_FROM], *write = &op->access[TDM_COPY_TO];
    uint64_t tokens = 0;
    if (what.layer != op->layer || what.chunk != op->chunk || what.chunk >= program->chunk_count ||
        read->slots > program->chunk_count - what.chunk)
        return false;
    for (uint32_t k = 0; k < read->slots; k++) {
        if (program->chunks[what.chunk + k].sequence != program->chunks[what.chunk].sequence)
            return false;
        tokens += program->chunks[what.chunk + k].tokens;
    }
    bool rows = what.content == TDM_KVPAGES || what.content == TDM_DKVPAGES;
    bool equal =
        program->buffers[read->buffer].slot_bytes == program->buffers[write->buffer].slot_bytes;
    return op->tokens == tokens && (read->slots == 1 || (rows && equal)) &&
           (what.contributor == TDM_NONE) == (what.content != TDM_DKVPAGES);
}

static uint64_t chunk_bytes(const struct tdm_validator *v, struct tdm_tag what, uint32_t slots)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < slots; k++)
        bytes = tdm_size_add(bytes, tdm_content_bytes(v->program->schedule, what.content, 0,
                                                      v->program->chunks[what.chunk + k].tokens));
    return bytes;
}

/* Checks link and lane of a copy. Inside a place it runs on the lane that computes there; between
 * places, over the link that the machine has between them, on the link's lane. */
static enum tdm_status check_way(const struct tdm_validator *v, const struct tdm_op *op,
                                 struct tdm_error *err)
{
    enum tdm_place from = v->program->buffers[op->access[TDM_COPY_FROM].buffer].place;
    enum tdm_place to = v->program->buffers[op->access[TDM_COPY_TO].buffer].place;
    const struct tdm_lane_row *lane = &v->topology->lanes[op->lane];
    bool inside = op->link == TDM_NO_LINK && from == to && lane->computes && lane->place == from;
    struct tdm_tag what = op->access[TDM_COPY_FROM].before;
    if (what.content == TDM_UNIT_WEIGHTS && what.share != 0 && from == to) /* beside computing */
        inside = op->link == TDM_NO_LINK && op->lane == TDM_LANE_PEER && from == TDM_DEVICE;
    if (inside)
        return TDM_OK;
    if (from == to)
        return tdm_fail(err, TDM_INPUT, "op %llu copies inside place %s on lane %s%s",
                        (unsigned long long)op->number, tdm_place_name(v->topology, from),
                        tdm_lane_name(v->topology, op->lane),
                        op->link == TDM_NO_LINK ? "" : ", over a link");
    if (op->link >= v->topology->link_count)
        return tdm_fail(err, TDM_INPUT, "op %llu copies from %s to %s over no link of the machine",
                        (unsigned long long)op->number, tdm_place_name(v->topology, from),
                        tdm_place_name(v->topology, to));
    const struct tdm_link *link = &v->topology->links[op->link];
    if (link->from != from || link->to != to || link->lane != op->lane)
        return tdm_fail(
            err, TDM_INPUT, "op %llu copies from %s to %s on lane %s, over the link from %s to %s",
            (unsigned long long)op->number, tdm_place_name(v->topology, from),
            tdm_place_name(v->topology, to), tdm_lane_name(v->topology, op->lane),
            tdm_place_name(v->topology, link->from), tdm_place_name(v->topology, link->to));
    return TDM_OK;
}

static enum tdm_status check_copy(const struct tdm_validator *v, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    const struct tdm_access *read = &op->access[TDM_COPY_FROM], *write = &op->access[TDM_COPY_TO];
    if (op->access_count != TDM_COPY_OPERANDS || read->mode != TDM_READ ||
        write->mode != TDM_WRITE || !tdm_tag_same(read->before, write->after) ||
        read->bytes != write->bytes || read->slots != write->slots || read->part != write->part)
        return tdm_fail(err, TDM_INPUT, "op %llu reads one content and writes another",
                        (unsigned long long)op->number);
    if (read->buffer == write->buffer && read->first_slot < write->first_slot + write->slots &&
        write->first_slot < read->first_slot + read->slots)
        return tdm_fail(err, TDM_INPUT, "op %llu copies slots of \"%s\" to slots that overlap them",
                        (unsigned long long)op->number, v->program->buffers[read->buffer].name);
    struct tdm_tag what = read->before;
    bool unit = tdm_content_is_of_unit(what.content) || what.content == TDM_TIED_GRADIENT ||
                what.content == TDM_GRADIENT_NORM;
    if (unit ? !is_of_unit(v, op, what) : !is_of_chunks(v, op, what))
        return tdm_fail(err, TDM_INPUT, "op %llu, for layer %d, chunk %d, copies %s",
                        (unsigned long long)op->number, (int)op->layer, (int)op->chunk,
                        tdm_tag_show(what, (char[TDM_TAG_TEXT]){0}));
    uint64_t bytes = unit ? unit_bytes(v, op, what) : chunk_bytes(v, what, read->slots);
    if (read->bytes != bytes)
        return tdm_fail(err, TDM_INPUT, "op %llu copies %llu bytes of %llu",
                        (unsigned long long)op->number, (unsigned long long)read->bytes,
                        (unsigned long long)bytes);
    return check_way(v, op, err);
}

/* Checks what the simulator reads of an op besides its operands: phase, layer, chunk and costs. */
static enum tdm_status check_cost(const struct tdm_validator *v, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    bool update = op->kind == TDM_OP_GRADIENT_NORM || op->kind == TDM_OP_OPTIMIZER ||
                  op->kind == TDM_OP_REDUCE_ALL || op->kind == TDM_OP_REDUCE_SCATTER ||
                  op->kind == TDM_OP_GATHER_ALL;
    bool copy = op->kind == TDM_OP_COPY;
    /* sliced weights are gathered for their use, in any phase */
    bool any = copy || (op->kind == TDM_OP_GATHER_ALL && tdm_weights_sliced(v->program->schedule));
    if ((!any && update != (op->phase == TDM_OPTIMIZER_PHASE)) || op->phase >= TDM_PHASES)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) is of phase %d",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->phase);
    if (op->chunk != TDM_NONE && op->chunk >= v->program->chunk_count)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) is of chunk %u of %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), op->chunk,
                        v->program->chunk_count);
    if ((op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD ||
         op->kind == TDM_OP_SELECT) &&
        op->layer >= v->program->schedule->model->layers)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) is of layer %u of %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), op->layer,
                        v->program->schedule->model->layers);
    if (op->chunk == TDM_NONE && !update && !copy)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) is of no chunk",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind));
    return tdm_cost_check_op(v->costs, op, err);
}

static enum tdm_status check_operands(const struct tdm_validator *v, const struct tdm_op *op,
                                      struct tdm_error *err)
{
    if (op->kind == TDM_OP_COPY)
        return check_copy(v, op, err);
    return (TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0
               ? tdm_operands_check_team(v->program, v->tile_base, op, err)
               : tdm_operands_check(v->program, v->tile_base, op, err);
}

/* Rows of the embedding that no token uses are updated once, before the others. Their tags do not
 * tell: the step still reads the other rows as they were. */
static enum tdm_status check_rows(struct tdm_validator *v, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    static const enum tdm_update_rows before[] = {
        [TDM_ROWS_UNUSED] = TDM_ROWS_ALL, [TDM_ROWS_USED] = TDM_ROWS_UNUSED};
    if (op->rows == TDM_ROWS_ALL)
        return TDM_OK;
    if (v->updated_rows != before[op->rows])
        return tdm_fail(err, TDM_INPUT,
                        "op %llu updates the rows of the embedding that %s token uses, %s",
                        (unsigned long long)op->number, op->rows == TDM_ROWS_USED ? "a" : "no",
                        op->rows == TDM_ROWS_USED ? "before the others" : "a second time");
    v->updated_rows = op->rows;
    return TDM_OK;
}

static enum tdm_status check_op(struct tdm_validator *v, const struct tdm_op *op,
                                const struct tdm_waits *waits, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if ((uint32_t)op->lane >= v->topology->lane_count || op->kind >= TDM_OP_KINDS)
        return tdm_fail(err, TDM_INPUT, "op %llu, of kind %d, is on lane %d",
                        (unsigned long long)op->number, (int)op->kind, (int)op->lane);
    if (op->number != v->next_op)
        return tdm_fail(err, TDM_INPUT, "op %llu comes where op %llu is expected",
                        (unsigned long long)op->number, (unsigned long long)v->next_op);
    v->next_op++;
    v->position[op->lane]++;
    if (waits != NULL)
        for (uint32_t lane = 0; lane < v->topology->lane_count; lane++) {
            if (lane != (uint32_t)op->lane && waits->lane_position[lane] > v->position[lane])
                return tdm_fail(err, TDM_INPUT, "op %llu waits for an op that is yet to come",
                                (unsigned long long)op->number);
            if (waits->lane_position[lane] > v->passed[op->lane][lane])
                v->passed[op->lane][lane] = waits->lane_position[lane];
        }

    if (status == TDM_OK)
        status = check_ranges(v, op, err);
    if (status == TDM_OK)
        status = check_cost(v, op, err);
    if (status == TDM_OK)
        status = check_operands(v, op, err);
    if (status == TDM_OK)
        status = check_rows(v, op, err);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK && waits != NULL; i++)
        if (op->access[i].buffer != TDM_NONE)
            status = check_order(v, op, &op->access[i], err);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++)
        if (op->access[i].buffer != TDM_NONE) {
            status = check_tags(v, op, &op->access[i], err);
            note_uses(v, op, &op->access[i]);
        }
    return status;
}

/* ---- the stream ---- */

/* What a slot of a resident buffer must hold at the end of the step: weights, masters and moments
 * updated once if the pass trains and there is an optimizer; complete gradients if there is none; a
 * loss for every chunk of the rank and a norm for every unit; everything else unchanged. */
static struct tdm_tag due_at_end(const struct tdm_validator *v, const struct tdm_buffer *buffer,
                                 uint32_t slot)
{
    struct tdm_tag due = initial_tag(v, buffer, slot);
    bool updated = buffer->category == TDM_WEIGHTS || buffer->category == TDM_OPTIMIZER;
    if (due.content != TDM_EMPTY) {
        if (updated && v->program->schedule->pass == TDM_TRAIN &&
            v->program->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
            due.contributor = 0;
        return due;
    }
    if (buffer->category != TDM_GRADIENTS && buffer->axis == TDM_AXIS_CHUNK)
        return v->program->chunks[slot].rank == v->program->rank
                   ? (struct tdm_tag){TDM_LOSS, TDM_NONE, slot, 0, 0}
                   : due;
    if (buffer->category != TDM_GRADIENTS)
        return (struct tdm_tag){TDM_GRADIENT_NORM, slot, TDM_NONE, TDM_NONE, 0};
    return due.layer != TDM_NONE
               ? (struct tdm_tag){TDM_UNIT_GRADIENT, due.layer, TDM_NONE, 0, 0}
               : (struct tdm_tag){TDM_TIED_GRADIENT,
                                  tdm_model_embedding_unit(v->program->schedule->model), TDM_NONE,
                                  0, 0};
}

static enum tdm_status check_resident(const struct tdm_validator *v, uint32_t number,
                                      struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &v->program->buffers[number];
    const struct record *record = &v->records[number];
    for (uint32_t slot = 0; slot < buffer->slots; slot++) {
        struct tdm_tag due = due_at_end(v, buffer, slot);
        for (uint32_t part = 0; part < record->parts; part++) {
            struct tdm_tag found = record->tags[(size_t)slot * record->parts + part];
            if (!has_part(v->program, record, due, part) || tdm_tag_same(found, due))
                continue;
            char due_text[TDM_TAG_TEXT], found_text[TDM_TAG_TEXT];
            return tdm_fail(
                err, TDM_INPUT, "at the end of the step slot %u of \"%s\" holds %s, not %s", slot,
                buffer->name, tdm_tag_show(found, found_text), tdm_tag_show(due, due_text));
        }
    }
    return TDM_OK;
}

static enum tdm_status check_free(struct tdm_validator *v, uint32_t number, struct tdm_error *err)
{
    struct record *record = &v->records[number];
    if (!record->live)
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" is freed but not live",
                        v->program->buffers[number].name);
    record->live = false;
    return v->program->buffers[number].resident ? check_resident(v, number, err) : TDM_OK;
}

enum tdm_status tdm_validator_push(struct tdm_validator *v, const struct tdm_item *item,
                                   const struct tdm_waits *waits, struct tdm_error *err)
{
    if (item->kind == TDM_RUN)
        return check_op(v, item->op, waits, err);
    if (item->buffer >= v->program->buffer_count)
        return tdm_fail(err, TDM_INPUT, "buffer %u of %u", item->buffer, v->program->buffer_count);
    if (item->kind == TDM_FREE)
        return check_free(v, item->buffer, err);
    enum tdm_status status = check_alloc(v, item->buffer, err);
    if (status == TDM_OK)
        fill_tags(v, item->buffer);
    return status;
}

enum tdm_status tdm_validator_finish(struct tdm_validator *v, struct tdm_error *err)
{
    for (uint32_t i = 0; i < v->program->buffer_count; i++)
        if (v->records[i].live)
            return tdm_fail(err, TDM_INPUT, "buffer \"%s\" is never freed",
                            v->program->buffers[i].name);
    if (v->next_op != v->program->op_count)
        return tdm_fail(err, TDM_INPUT, "%llu ops in the stream, %llu in the program",
                        (unsigned long long)v->next_op, (unsigned long long)v->program->op_count);
    return TDM_OK;
}

/* ---- a whole program ---- */

struct tdm_validation {
    struct tdm_order_tracker *order;
    struct tdm_waits waits; /* of the last item */
    struct tdm_validator *validator;
};

enum tdm_status tdm_validation_new(const struct tdm_program *program,
                                   const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                   struct tdm_validation **out, struct tdm_error *err)
{
    struct tdm_validation *validation = calloc(1, sizeof(*validation));
    if (validation == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a validation");
    enum tdm_status status = tdm_order_new(program, &validation->order, err);
    if (status == TDM_OK)
        status = tdm_validator_new(program, capacity_bytes, &validation->validator, err);
    if (status != TDM_OK) {
        tdm_validation_free(validation);
        return status;
    }
    *out = validation;
    return TDM_OK;
}

enum tdm_status tdm_validation_take(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct tdm_validation *validation = self;
    if (item->kind == TDM_RUN) {
        enum tdm_status status = check_ranges(validation->validator, item->op, err);
        if (status != TDM_OK)
            return status;
    }
    tdm_order_push(validation->order, item, &validation->waits);
    return tdm_validator_push(validation->validator, item, &validation->waits, err);
}

const struct tdm_waits *tdm_validation_waits(const struct tdm_validation *validation)
{
    return &validation->waits;
}

enum tdm_status tdm_validation_finish(struct tdm_validation *validation, struct tdm_error *err)
{
    return tdm_validator_finish(validation->validator, err);
}

void tdm_validation_free(struct tdm_validation *validation)
{
    if (validation == NULL)
        return;
    tdm_validator_free(validation->validator);
    tdm_order_free(validation->order);
    free(validation);
}

/* A rank of a program under validation. */
struct rank_check {
    struct tdm_validation *validation;
    struct tdm_team_check *team;
};

static enum tdm_status take_of_rank(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct rank_check *check = self;
    enum tdm_status status = tdm_validation_take(check->validation, item, err);
    return status == TDM_OK ? tdm_team_check_take(check->team, item, err) : status;
}

static enum tdm_status validate_rank(const struct tdm_program *program,
                                     const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                     struct tdm_team_check *team, struct tdm_error *err)
{
    struct rank_check check = {.team = team};
    enum tdm_status status = tdm_validation_new(program, capacity_bytes, &check.validation, err);
    tdm_team_check_rank(team, program->rank);
    if (status == TDM_OK)
        status = tdm_program_emit(program, take_of_rank, &check, err);
    if (status == TDM_OK)
        status = tdm_validation_finish(check.validation, err);
    if (status == TDM_OK)
        status = tdm_team_check_rank_end(team, err);
    tdm_validation_free(check.validation);
    return status;
}

enum tdm_status tdm_program_validate(const struct tdm_program *program,
                                     const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                     struct tdm_error *err)
{
    struct tdm_team_check *team = NULL;
    enum tdm_status status =
        tdm_team_check_new(program->ranks, tdm_operands_row(program), &team, err);
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++) {
        if (program->sampled && program->counts[rank].ops == 0)
            continue;
        const struct tdm_program view = tdm_program_of_rank(program, rank);
        status = validate_rank(&view, capacity_bytes, team, err);
    }
    if (status == TDM_OK && !program->sampled) /* bytes of all ranks */
        status = tdm_team_check_finish(team, err);
    tdm_team_check_free(team);
    return status;
}
