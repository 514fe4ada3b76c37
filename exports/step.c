/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one step in detail. */
#include "exports/step.h"

#include "ops/update.h"
#include "schedule/order.h"
#include "schedule/values.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names. */

static bool is_of_unit(enum tdm_content content)
{
    return content >= TDM_UNIT_WEIGHTS && content <= TDM_UNIT_GRADIENT;
}

/* Appends ", layer 4", or the name of another unit. */
static int append_layer(const struct tdm_step *step, uint32_t layer, bool of_unit, char *out,
                        size_t bytes)
{
    const struct tdm_model *model = step->plot->schedule->model;
    if (layer < model->layers)
        return snprintf(out, bytes, ", layer %" PRIu32, layer + 1);
    if (layer == TDM_NONE)
        return 0;
    return snprintf(out, bytes, ", %s",
                    !of_unit                              ? "output"
                    : layer == tdm_model_head_unit(model) ? "head"
                                                          : "embedding");
}

const char *tdm_step_op_name(const struct tdm_step *step, const struct tdm_timeline_op *op,
                             char out[TDM_STEP_NAME])
{
    const struct tdm_step_op *detail = &step->ops[op->number];
    const char *of = detail->part < TDM_PARTS ? tdm_part_name((enum tdm_part)detail->part)
                     : op->kind == TDM_OP_COPY
                         ? tdm_content_name((enum tdm_content)detail->tensor.content)
                         : NULL;
    if (of != NULL && strcmp(of, tdm_op_kind_name(op->kind)) == 0)
        of = NULL; /* "head head" */
    snprintf(out, TDM_STEP_NAME, "%s%s%s", tdm_op_kind_name(op->kind), of == NULL ? "" : " ",
             of == NULL ? "" : of);
    return out;
}

const char *tdm_step_tensor_name(const struct tdm_step *step, const struct tdm_step_tensor *tensor,
                                 char out[TDM_STEP_NAME])
{
    const bool of_unit = is_of_unit((enum tdm_content)tensor->content);
    int at =
        snprintf(out, TDM_STEP_NAME, "%s", tdm_content_name((enum tdm_content)tensor->content));
    if (tensor->part < TDM_PARTS)
        at += snprintf(out + at, TDM_STEP_NAME - (size_t)at, " %s",
                       tdm_part_name((enum tdm_part)tensor->part));
    /* these parts are of one unit, which they name */
    bool named = tensor->part == TDM_PART_EMBEDDING || tensor->part == TDM_PART_HEAD;
    if (!named)
        at += append_layer(step, tensor->layer, of_unit, out + at, TDM_STEP_NAME - (size_t)at);
    if (tensor->chunk != TDM_NONE)
        snprintf(out + at, TDM_STEP_NAME - (size_t)at, ", %s %" PRIu32, of_unit ? "slice" : "chunk",
                 tensor->chunk + 1);
    return out;
}

enum tdm_place tdm_step_place(const struct tdm_step *step, const struct tdm_step_tensor *tensor)
{
    return step->program->buffers[tensor->buffer].place;
}

enum tdm_category tdm_step_category(const struct tdm_step *step,
                                    const struct tdm_step_tensor *tensor)
{
    return step->program->buffers[tensor->buffer].category;
}

enum tdm_plot_side tdm_step_side(const struct tdm_step *step)
{
    return step->plot->panels[TDM_MEASURED].known ? TDM_MEASURED : TDM_PREDICTED;
}

/* Where values are. */

/* Bytes from the start of a unit to a part of it. */
static uint64_t part_offset(const struct tdm_model *model, uint32_t unit, enum tdm_part part,
                            enum tdm_dtype dtype)
{
    if (unit >= model->unit_count)
        return 0;
    const struct tdm_unit *u = &model->units[unit];
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < u->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[u->first_tensor + i];
        if (tdm_part_of(tensor->role) == part && tensor->offset < first)
            first = tensor->offset;
    }
    return first == UINT64_MAX ? 0 : first * tdm_dtype_bytes(dtype);
}

/* Are the parts of this value apart from each other? Masters and moments are stored whole, or slice
 * by slice, and their values are counted for the first part. */
static bool has_part(const struct tdm_buffer *buffer, const struct tdm_value_life *life)
{
    return buffer->by_part && life->tag.chunk == TDM_NONE;
}

struct reading {
    struct tdm_step *step;
    const char *path;
    struct tdm_values *values;
    size_t life_capacity;
    bool no_memory;
    uint32_t *on_lane[TDM_MAX_LANES]; /* [op_count] ops by position on their lane */
    /* of the last op of each lane that has times */
    double lane_free[TDM_PLOT_SIDES][TDM_MAX_LANES];
};

static void take_life(void *self, const struct tdm_value_life *life)
{
    struct reading *reading = self;
    struct tdm_step *step = reading->step;
    const struct tdm_buffer *buffer = &step->program->buffers[life->buffer];
    if (life->bytes == 0 || reading->no_memory)
        return;
    if (step->life_count == reading->life_capacity) {
        size_t capacity = reading->life_capacity == 0 ? 4096 : 2 * reading->life_capacity;
        struct tdm_step_life *lives = realloc(step->lives, capacity * sizeof(*lives));
        reading->no_memory = lives == NULL;
        if (lives == NULL)
            return;
        step->lives = lives;
        reading->life_capacity = capacity;
    }
    uint64_t offset = buffer->offset + life->slot * buffer->slot_bytes;
    if (has_part(buffer, life))
        offset +=
            part_offset(step->plot->schedule->model, life->tag.layer, life->part, buffer->dtype);
    step->lives[step->life_count++] = (struct tdm_step_life){
        .tensor = {.buffer = life->buffer,
                   .slot = life->slot,
                   .layer = life->tag.layer,
                   .chunk = life->tag.chunk,
                   .content = (uint8_t)life->tag.content,
                   .part = has_part(buffer, life) ? (uint8_t)life->part : (uint8_t)TDM_PARTS},
        .first_op = life->carried ? 0 : (uint32_t)life->first_op,
        .last_op = life->carried ? step->op_count - 1 : (uint32_t)life->last_op,
        .offset = offset,
        .bytes = life->bytes,
        .carried = life->carried};
}

/* By their first op; those of one op in the order in which they were told. */
static enum tdm_status sort_lives(struct tdm_step *step, struct tdm_error *err)
{
    size_t *place = calloc((size_t)step->op_count + 1, sizeof(*place));
    struct tdm_step_life *sorted = malloc((step->life_count + 1) * sizeof(*sorted));
    if (place == NULL || sorted == NULL) {
        free(place);
        free(sorted);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu values", step->life_count);
    }
    for (size_t i = 0; i < step->life_count; i++)
        place[step->lives[i].first_op + 1]++;
    for (uint32_t op = 0; op < step->op_count; op++)
        place[op + 1] += place[op];
    for (size_t i = 0; i < step->life_count; i++)
        sorted[place[step->lives[i].first_op]++] = step->lives[i];
    free(step->lives);
    free(place);
    step->lives = sorted;
    return TDM_OK;
}

/* Ops. */

static struct tdm_step_tensor tensor_of(const struct tdm_program *program, const struct tdm_op *op)
{
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE || access->mode == TDM_READ)
            continue;
        bool by_part = program->buffers[access->buffer].by_part && access->part < TDM_PARTS;
        return (struct tdm_step_tensor){.buffer = access->buffer,
                                        .slot = access->first_slot,
                                        .layer = access->after.layer,
                                        .chunk = access->after.chunk,
                                        .content = (uint8_t)access->after.content,
                                        .part =
                                            by_part ? (uint8_t)access->part : (uint8_t)TDM_PARTS};
    }
    return (struct tdm_step_tensor){TDM_NONE, TDM_NONE, TDM_NONE, TDM_NONE, TDM_EMPTY, TDM_PARTS};
}

/* Does an op work with a part of weights? The number 0 means none, and is that of a norm. */
static uint8_t part_of(const struct tdm_op *op)
{
    bool of_norm = op->kind == TDM_OP_NORM || op->kind == TDM_OP_NORM_GRAD;
    return op->part < TDM_PARTS && (op->part != 0 || of_norm) ? (uint8_t)op->part
                                                              : (uint8_t)TDM_PARTS;
}

/* The op of another lane that ended last of those that `op` waits for, if its own lane was idle
 * then. */
static uint32_t find_awaited(const struct reading *reading, enum tdm_plot_side side,
                             const struct tdm_op *op, const struct tdm_waits *waits)
{
    const struct tdm_timeline *timeline = &reading->step->plot->panels[side].timeline;
    double latest = reading->lane_free[side][op->lane];
    uint32_t awaited = TDM_NO_OP;
    for (uint32_t lane = 0; lane < TDM_MAX_LANES; lane++) {
        if (waits->lane_position[lane] == 0 || lane == (uint32_t)op->lane)
            continue;
        uint32_t number = reading->on_lane[lane][waits->lane_position[lane] - 1];
        const struct tdm_timeline_op *other = tdm_timeline_op(timeline, number);
        if (other != NULL && other->end > latest) {
            latest = other->end;
            awaited = number;
        }
    }
    return awaited;
}

/* A trace has the ops as they were lowered when it was written. */
static enum tdm_status check_op(const struct reading *reading, const struct tdm_op *op,
                                struct tdm_error *err)
{
    const struct tdm_timeline *timeline = &reading->step->plot->panels[TDM_PREDICTED].timeline;
    const struct tdm_timeline_op *seen = tdm_timeline_op(timeline, op->number);
    if (seen != NULL && seen->kind == op->kind && seen->lane == op->lane &&
        seen->layer == op->layer && seen->chunk == op->chunk)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT, "%s: op %" PRIu64 " is not the one of its schedule's program",
             reading->path, op->number);
    return tdm_hint(err, "another version of tidemark wrote it: use that one, or run again");
}

static enum tdm_status take_item(void *self, const struct tdm_item *item,
                                 const struct tdm_waits *waits, struct tdm_error *err)
{
    struct reading *reading = self;
    struct tdm_step *step = reading->step;
    if (item->kind != TDM_RUN)
        return TDM_OK;
    const struct tdm_op *op = item->op;
    enum tdm_status status = check_op(reading, op, err);
    if (status != TDM_OK)
        return status;
    tdm_values_take(reading->values, op);
    struct tdm_step_op *detail = &step->ops[op->number];
    *detail = (struct tdm_step_op){.tokens = op->tokens,
                                   .flops = op->flops,
                                   .bytes = op->bytes,
                                   .tensor = tensor_of(step->program, op),
                                   .part = part_of(op)};
    reading->on_lane[op->lane][waits->position - 1] = (uint32_t)op->number;
    for (int side = 0; side < TDM_PLOT_SIDES; side++) {
        const struct tdm_timeline *timeline = &step->plot->panels[side].timeline;
        const struct tdm_timeline_op *timed = tdm_timeline_op(timeline, op->number);
        detail->waited_for[side] = TDM_NO_OP;
        if (timed == NULL)
            continue;
        detail->waited_for[side] = find_awaited(reading, (enum tdm_plot_side)side, op, waits);
        reading->lane_free[side][op->lane] = timed->end;
    }
    return TDM_OK;
}

static enum tdm_status begin(struct reading *reading, struct tdm_error *err)
{
    struct tdm_step *step = reading->step;
    const uint64_t ops = step->program->op_count;
    if (ops >= TDM_NO_OP || ops == 0)
        return tdm_fail(err, TDM_INPUT, "%s: a step of %" PRIu64 " ops cannot be exported",
                        reading->path, ops);
    step->op_count = (uint32_t)ops;
    step->ops = calloc(ops, sizeof(*step->ops));
    bool made = step->ops != NULL;
    for (uint32_t lane = 0; lane < TDM_MAX_LANES; lane++) {
        if ((step->program->lanes & 1u << lane) == 0)
            continue;
        reading->on_lane[lane] = malloc(ops * sizeof(*reading->on_lane[lane]));
        made = made && reading->on_lane[lane] != NULL;
    }
    return made ? TDM_OK : tdm_fail(err, TDM_NO_MEMORY, "out of memory for %" PRIu64 " ops", ops);
}

static enum tdm_status read_program(const char *path, struct tdm_step *step, struct tdm_error *err)
{
    struct reading reading = {.step = step, .path = path};
    struct tdm_values_change *unused = NULL;
    enum tdm_status status = tdm_program_lower(step->plot->schedule, &step->program, err);
    if (status == TDM_OK)
        status = begin(&reading, err);
    if (status == TDM_OK)
        status = tdm_values_new(step->program, &reading.values, err);
    if (status == TDM_OK) {
        tdm_values_tell(reading.values, take_life, &reading);
        status = tdm_order_emit(step->program, take_item, &reading, err);
    }
    if (status == TDM_OK) {
        unused = calloc(tdm_values_change_capacity(step->program) + 1, sizeof(*unused));
        reading.no_memory = reading.no_memory || unused == NULL;
        if (unused != NULL) /* which ends the values that are left */
            (void)tdm_values_changes(reading.values, unused);
        if (reading.no_memory)
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the values of a step");
    }
    free(unused);
    tdm_values_free(reading.values);
    for (uint32_t lane = 0; lane < TDM_MAX_LANES; lane++)
        free(reading.on_lane[lane]);
    return status == TDM_OK ? sort_lives(step, err) : status;
}

static enum tdm_status read_steps(const char *path, struct tdm_step *step, struct tdm_error *err)
{
    struct tdm_trace_reader *reader;
    enum tdm_status status = tdm_trace_reader_open(path, &reader, err);
    if (status != TDM_OK)
        return status;
    status = tdm_trace_read_steps(reader, &step->steps, &step->step_count, err);
    if (status == TDM_OK)
        status =
            tdm_trace_read_evaluations(reader, &step->evaluations, &step->evaluation_count, err);
    tdm_trace_reader_close(reader);
    return status;
}

enum tdm_status tdm_step_read(const char *path, int64_t number, struct tdm_step **out,
                              struct tdm_error *err)
{
    struct tdm_step *step = calloc(1, sizeof(*step));
    if (step == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a step");
    enum tdm_status status = tdm_plot_read(path, number, 0, &step->plot, err);
    if (status == TDM_OK)
        status = read_program(path, step, err);
    if (status == TDM_OK && step->plot->from_trace)
        status = read_steps(path, step, err);
    if (status != TDM_OK) {
        tdm_step_free(step);
        return status;
    }
    *out = step;
    return TDM_OK;
}

void tdm_step_free(struct tdm_step *step)
{
    if (step == NULL)
        return;
    tdm_program_free(step->program);
    tdm_plot_free(step->plot);
    free(step->ops);
    free(step->lives);
    free(step->steps);
    free(step->evaluations);
    free(step);
}
