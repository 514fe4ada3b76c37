/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memory snapshot of PyTorch: what torch.cuda.memory._snapshot() returns, pickled.
 *
 * The number of a place is the number of the device: 0 is the device, 1 the host. Its arena is one
 * segment at BASE_ADDRESS, and a value is a block in it: allocated before its first op, freed
 * after its last one. Values that outlive the step are the blocks that the snapshot has.
 */
#include "exports/export.h"

#include "exports/pickle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where every arena begins; an address of 0 would look like none. */
#define BASE_ADDRESS (UINT64_C(1) << 32)
#define NOT_KEPT UINT32_MAX

enum key {
    KEY_ACTION,
    KEY_ADDR,
    KEY_SIZE,
    KEY_STREAM,
    KEY_TIME_US,
    KEY_FRAMES,
    KEY_FILENAME,
    KEY_LINE,
    KEY_NAME,
    KEY_ALLOC,
    KEY_FREE_REQUESTED,
    KEY_FREE_COMPLETED,
    KEY_TENSOR,
    KEY_OP,
    KEY_BUFFER,
    KEY_CATEGORY,
    KEYS
};
static const char *const key_names[KEYS] = {"action",  "addr",   "size",           "stream",
                                            "time_us", "frames", "filename",       "line",
                                            "name",    "alloc",  "free_requested", "free_completed",
                                            "tensor",  "op",     "buffer",         "category"};

struct memory_viz {
    const struct tdm_step *step;
    struct tdm_pickle pickle;
    bool has_key[KEYS];
    uint32_t kept_key[KEYS];
    uint32_t *frames;  /* [life_count] its frames in the memo, or NOT_KEPT */
    size_t *ending;    /* [life_count] lives by rising last op */
    uint64_t *time_us; /* [op_count] */
};

/* Writes a string that is used often. */
static void write_key(struct memory_viz *viz, enum key key)
{
    if (viz->has_key[key]) {
        tdm_pickle_again(&viz->pickle, viz->kept_key[key]);
        return;
    }
    tdm_pickle_text(&viz->pickle, key_names[key]);
    viz->kept_key[key] = tdm_pickle_keep(&viz->pickle);
    viz->has_key[key] = true;
}

static void write_frame(struct memory_viz *viz, enum key filename, uint64_t line, const char *name)
{
    tdm_pickle_begin_dict(&viz->pickle);
    write_key(viz, KEY_FILENAME);
    write_key(viz, filename);
    write_key(viz, KEY_LINE);
    tdm_pickle_number(&viz->pickle, line);
    write_key(viz, KEY_NAME);
    tdm_pickle_text(&viz->pickle, name);
    tdm_pickle_end_dict(&viz->pickle);
}

/* As "tensor:4:attention_output, layer 4, chunk 2", the innermost frame first: the tensor with its
 * layer, its buffer with its slot, the category, and the op that made it with its number. */
static void write_frames(struct memory_viz *viz, size_t number)
{
    const struct tdm_step *step = viz->step;
    const struct tdm_step_life *life = &step->lives[number];
    const uint32_t layer = life->tensor.layer;
    char name[TDM_STEP_NAME];
    uint64_t count;
    write_key(viz, KEY_FRAMES);
    if (viz->frames[number] != NOT_KEPT) {
        tdm_pickle_again(&viz->pickle, viz->frames[number]);
        return;
    }
    tdm_pickle_begin_list(&viz->pickle, &count);
    viz->frames[number] = tdm_pickle_keep(&viz->pickle);
    tdm_pickle_item(&viz->pickle, &count);
    write_frame(viz, KEY_TENSOR, layer < step->plot->schedule->model->layers ? layer + 1 : 0,
                tdm_step_tensor_name(step, &life->tensor, name));
    tdm_pickle_item(&viz->pickle, &count);
    write_frame(viz, KEY_BUFFER, life->tensor.slot,
                step->program->buffers[life->tensor.buffer].name);
    tdm_pickle_item(&viz->pickle, &count);
    write_frame(viz, KEY_CATEGORY, 0, tdm_category_name(tdm_step_category(step, &life->tensor)));
    const struct tdm_timeline_op *op =
        tdm_timeline_op(&step->plot->panels[tdm_step_side(step)].timeline, life->first_op);
    if (op != NULL && !life->carried) {
        tdm_pickle_item(&viz->pickle, &count);
        char said[2 * TDM_STEP_NAME];
        snprintf(said, sizeof(said), "%s %s", tdm_phase_name(op->phase),
                 tdm_step_op_name(step, op, name));
        write_frame(viz, KEY_OP, life->first_op, said);
    }
    tdm_pickle_end_list(&viz->pickle, count);
}

static void write_event(struct memory_viz *viz, enum key action, size_t number, uint64_t time_us,
                        uint64_t *count)
{
    const struct tdm_step_life *life = &viz->step->lives[number];
    struct tdm_pickle *pickle = &viz->pickle;
    tdm_pickle_item(pickle, count);
    tdm_pickle_begin_dict(pickle);
    write_key(viz, KEY_ACTION);
    write_key(viz, action);
    write_key(viz, KEY_ADDR);
    tdm_pickle_number(pickle, BASE_ADDRESS + life->offset);
    write_key(viz, KEY_SIZE);
    tdm_pickle_number(pickle, life->bytes);
    write_key(viz, KEY_STREAM);
    tdm_pickle_number(pickle, 0);
    write_key(viz, KEY_TIME_US);
    tdm_pickle_number(pickle, time_us);
    write_frames(viz, number);
    tdm_pickle_end_dict(pickle);
}

static void write_free(struct memory_viz *viz, size_t number, uint64_t time_us, uint64_t *count)
{
    write_event(viz, KEY_FREE_REQUESTED, number, time_us, count);
    write_event(viz, KEY_FREE_COMPLETED, number, time_us, count);
}

static bool is_at(const struct memory_viz *viz, size_t number, uint32_t place)
{
    return tdm_step_place(viz->step, &viz->step->lives[number].tensor) == (enum tdm_place)place;
}

/* What lives at a place: for each op, values whose last op was the one before go, then those that
 * it begins come. */
static void write_trace(struct memory_viz *viz, uint32_t place)
{
    const struct tdm_step *step = viz->step;
    size_t next = 0, end = 0;
    uint64_t count;
    tdm_pickle_begin_list(&viz->pickle, &count);
    for (uint32_t op = 0; op < step->op_count && !ferror(viz->pickle.out); op++) {
        for (; end < step->life_count && step->lives[viz->ending[end]].last_op < op; end++)
            if (is_at(viz, viz->ending[end], place))
                write_free(viz, viz->ending[end], viz->time_us[op], &count);
        for (; next < step->life_count && step->lives[next].first_op == op; next++)
            if (is_at(viz, next, place))
                write_event(viz, KEY_ALLOC, next, viz->time_us[op], &count);
    }
    for (; end < step->life_count; end++)
        if (is_at(viz, viz->ending[end], place) && !step->lives[viz->ending[end]].carried)
            write_free(viz, viz->ending[end], viz->time_us[step->op_count - 1], &count);
    tdm_pickle_end_list(&viz->pickle, count);
}

static void write_pair(struct memory_viz *viz, const char *key, uint64_t number)
{
    tdm_pickle_text(&viz->pickle, key);
    tdm_pickle_number(&viz->pickle, number);
}

static void write_words(struct memory_viz *viz, const char *key, const char *text)
{
    tdm_pickle_text(&viz->pickle, key);
    tdm_pickle_text(&viz->pickle, text);
}

/* A block of the segment: of a value, or free (NULL). */
static void write_block(struct memory_viz *viz, uint64_t offset, uint64_t bytes,
                        const struct tdm_step_life *life)
{
    struct tdm_pickle *pickle = &viz->pickle;
    uint64_t count;
    tdm_pickle_begin_dict(pickle);
    write_pair(viz, "address", BASE_ADDRESS + offset);
    write_pair(viz, "size", bytes);
    write_pair(viz, "requested_size", life == NULL ? 0 : life->bytes);
    write_words(viz, "state", life == NULL ? "inactive" : "active_allocated");
    if (life != NULL) {
        write_frames(viz, (size_t)(life - viz->step->lives));
    } else {
        write_key(viz, KEY_FRAMES);
        tdm_pickle_begin_list(pickle, &count);
        tdm_pickle_end_list(pickle, count);
    }
    tdm_pickle_end_dict(pickle);
}

static int by_offset(const void *left, const void *right)
{
    const struct tdm_step_life *a = *(const struct tdm_step_life *const *)left;
    const struct tdm_step_life *b = *(const struct tdm_step_life *const *)right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* The blocks of a segment cover it: those of values that outlive the step, and what is between. */
static enum tdm_status write_blocks(struct memory_viz *viz, uint32_t place, uint64_t arena_bytes,
                                    uint64_t *live_bytes, struct tdm_error *err)
{
    const struct tdm_step *step = viz->step;
    size_t carried = 0;
    for (size_t i = 0; i < step->life_count; i++)
        carried += step->lives[i].carried && is_at(viz, i, place);
    const struct tdm_step_life **kept = calloc(carried + 1, sizeof(struct tdm_step_life *));
    if (kept == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu values", carried);
    carried = 0;
    for (size_t i = 0; i < step->life_count; i++)
        if (step->lives[i].carried && is_at(viz, i, place))
            kept[carried++] = &step->lives[i];
    qsort(kept, carried, sizeof(struct tdm_step_life *), by_offset);
    uint64_t at = 0, count;
    *live_bytes = 0;
    tdm_pickle_text(&viz->pickle, "blocks");
    tdm_pickle_begin_list(&viz->pickle, &count);
    for (size_t i = 0; i <= carried; i++) {
        uint64_t next = i < carried ? kept[i]->offset : arena_bytes;
        if (next > at) {
            tdm_pickle_item(&viz->pickle, &count);
            write_block(viz, at, next - at, NULL);
        }
        if (i == carried)
            break;
        tdm_pickle_item(&viz->pickle, &count);
        write_block(viz, next, kept[i]->bytes, kept[i]);
        *live_bytes += kept[i]->bytes;
        at = next + kept[i]->bytes;
    }
    tdm_pickle_end_list(&viz->pickle, count);
    free(kept);
    return TDM_OK;
}

static enum tdm_status write_segment(struct memory_viz *viz, uint32_t place, uint64_t arena_bytes,
                                     struct tdm_error *err)
{
    struct tdm_pickle *pickle = &viz->pickle;
    uint64_t count, live_bytes = 0;
    tdm_pickle_begin_dict(pickle);
    write_pair(viz, "device", place);
    write_pair(viz, "address", BASE_ADDRESS);
    write_pair(viz, "total_size", arena_bytes);
    write_pair(viz, "stream", 0);
    write_words(viz, "segment_type", "large");
    tdm_pickle_text(pickle, "is_expandable");
    tdm_pickle_false(pickle);
    write_key(viz, KEY_FRAMES);
    tdm_pickle_begin_list(pickle, &count);
    tdm_pickle_end_list(pickle, count);
    enum tdm_status status = write_blocks(viz, place, arena_bytes, &live_bytes, err);
    write_pair(viz, "allocated_size", live_bytes);
    write_pair(viz, "active_size", live_bytes);
    write_pair(viz, "requested_size", live_bytes);
    tdm_pickle_end_dict(pickle);
    return status;
}

static enum tdm_status write_snapshot(struct memory_viz *viz, struct tdm_error *err)
{
    const struct tdm_step *step = viz->step;
    const uint32_t places = step->plot->topology.place_count;
    struct tdm_pickle *pickle = &viz->pickle;
    enum tdm_status status = TDM_OK;
    uint64_t count;
    tdm_pickle_begin_dict(pickle);
    tdm_pickle_text(pickle, "segments");
    tdm_pickle_begin_list(pickle, &count);
    for (uint32_t place = 0; place < places && status == TDM_OK; place++) {
        uint64_t arena_bytes = step->program->arena_bytes[place];
        if (arena_bytes == 0)
            continue;
        tdm_pickle_item(pickle, &count);
        status = write_segment(viz, place, arena_bytes, err);
    }
    tdm_pickle_end_list(pickle, count);
    tdm_pickle_text(pickle, "device_traces");
    tdm_pickle_begin_list(pickle, &count);
    for (uint32_t place = 0; place < places && status == TDM_OK; place++) {
        tdm_pickle_item(pickle, &count);
        write_trace(viz, place);
    }
    tdm_pickle_end_list(pickle, count);
    tdm_pickle_text(pickle, "allocator_settings");
    tdm_pickle_begin_dict(pickle);
    tdm_pickle_end_dict(pickle);
    tdm_pickle_end_dict(pickle);
    tdm_pickle_end(pickle);
    return status;
}

/* Orders lives by their last op. */
static enum tdm_status order_endings(struct memory_viz *viz, struct tdm_error *err)
{
    const struct tdm_step *step = viz->step;
    size_t *place = calloc((size_t)step->op_count + 1, sizeof(*place));
    if (place == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu values", step->life_count);
    for (size_t i = 0; i < step->life_count; i++)
        place[step->lives[i].last_op + 1]++;
    for (uint32_t op = 0; op < step->op_count; op++)
        place[op + 1] += place[op];
    for (size_t i = 0; i < step->life_count; i++)
        viz->ending[place[step->lives[i].last_op]++] = i;
    free(place);
    return TDM_OK;
}

/* When each op changes memory. An op without a time has that of the one before. */
static enum tdm_status find_times(struct memory_viz *viz, struct tdm_error *err)
{
    const struct tdm_step *step = viz->step;
    const struct tdm_timeline *timeline = &step->plot->panels[tdm_step_side(step)].timeline;
    double *seconds = malloc((timeline->op_count + 1) * sizeof(*seconds));
    if (seconds == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu times", timeline->op_count);
    tdm_timeline_op_clock(timeline, seconds);
    uint64_t now = 0;
    size_t next = 0;
    for (uint32_t op = 0; op < step->op_count; op++) {
        if (next < timeline->op_count && timeline->ops[next].number == op)
            now = (uint64_t)llround(seconds[next++] * 1e6);
        viz->time_us[op] = now;
    }
    free(seconds);
    return TDM_OK;
}

enum tdm_status tdm_export_memory_viz(const struct tdm_step *step, FILE *out, struct tdm_error *err)
{
    struct memory_viz viz = {.step = step, .pickle = tdm_pickle_begin(out)};
    viz.frames = malloc((step->life_count + 1) * sizeof(*viz.frames));
    viz.ending = malloc((step->life_count + 1) * sizeof(*viz.ending));
    viz.time_us = malloc(((size_t)step->op_count + 1) * sizeof(*viz.time_us));
    enum tdm_status status = TDM_OK;
    if (viz.frames == NULL || viz.ending == NULL || viz.time_us == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu values", step->life_count);
    for (size_t i = 0; i < step->life_count && status == TDM_OK; i++)
        viz.frames[i] = NOT_KEPT;
    if (status == TDM_OK)
        status = order_endings(&viz, err);
    if (status == TDM_OK)
        status = find_times(&viz, err);
    if (status == TDM_OK)
        status = write_snapshot(&viz, err);
    free(viz.frames);
    free(viz.ending);
    free(viz.time_us);
    return status;
}
