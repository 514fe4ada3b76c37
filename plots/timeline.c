/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline of one step, and its thinning to the columns of a picture. */
#include "plots/timeline.h"

#include <stdlib.h>
#include <string.h>

const char *tdm_op_group_name(enum tdm_op_group group)
{
    static const char *const names[] = {"product",   "attention", "head",
                                        "optimizer", "copy",      "other"};
    return names[group];
}

enum tdm_op_group tdm_op_group_of(enum tdm_op_kind kind)
{
    switch (kind) {
    case TDM_OP_PRODUCT:
    case TDM_OP_PRODUCT_GRAD_INPUT:
    case TDM_OP_PRODUCT_GRAD_WEIGHT:
        return TDM_GROUP_PRODUCT;
    case TDM_OP_ATTENTION:
    case TDM_OP_ATTENTION_GRAD:
        return TDM_GROUP_ATTENTION;
    case TDM_OP_HEAD:
    case TDM_OP_LOSS:
    case TDM_OP_HEAD_GRAD:
        return TDM_GROUP_HEAD;
    case TDM_OP_GRADIENT_NORM:
    case TDM_OP_OPTIMIZER:
        return TDM_GROUP_OPTIMIZER;
    case TDM_OP_COPY:
        return TDM_GROUP_COPY;
    default:
        return TDM_GROUP_OTHER;
    }
}

/* Room for one more element of `bytes` in an array. */
static enum tdm_status grow(void **array, size_t count, size_t *room, size_t bytes,
                            struct tdm_error *err)
{
    if (count < *room)
        return TDM_OK;
    size_t larger = *room == 0 ? 1024 : *room * 2;
    void *moved = larger > SIZE_MAX / bytes ? NULL : realloc(*array, larger * bytes);
    if (moved == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a timeline of %zu entries", larger);
    *array = moved;
    *room = larger;
    return TDM_OK;
}

enum tdm_status tdm_timeline_add_change(struct tdm_timeline *timeline,
                                        const struct tdm_timeline_change *change,
                                        struct tdm_error *err)
{
    void *array = timeline->changes;
    enum tdm_status status =
        grow(&array, timeline->change_count, &timeline->change_room, sizeof(*change), err);
    timeline->changes = array;
    if (status == TDM_OK)
        timeline->changes[timeline->change_count++] = *change;
    return status;
}

enum tdm_status tdm_timeline_add_op(struct tdm_timeline *timeline, const struct tdm_timeline_op *op,
                                    struct tdm_error *err)
{
    void *array = timeline->ops;
    enum tdm_status status = grow(&array, timeline->op_count, &timeline->op_room, sizeof(*op), err);
    timeline->ops = array;
    if (status == TDM_OK)
        timeline->ops[timeline->op_count++] = *op;
    return status;
}

void tdm_timeline_free(struct tdm_timeline *timeline)
{
    free(timeline->changes);
    free(timeline->ops);
    *timeline = (struct tdm_timeline){0};
}

/* The longest subsequence of times that never fall stays (patience sorting: tails[k] ends the best one
 * of length k + 1, before[] leads back); the others move. */
enum tdm_status tdm_timeline_straighten(struct tdm_timeline *timeline, struct tdm_error *err)
{
    struct tdm_timeline_change *changes = timeline->changes;
    size_t count = timeline->change_count;
    size_t sorted = 1;
    while (sorted < count && changes[sorted - 1].seconds <= changes[sorted].seconds)
        sorted++;
    if (sorted >= count)
        return TDM_OK;

    size_t *tails = malloc(count * sizeof(*tails));
    size_t *before = malloc(count * sizeof(*before));
    if (tails == NULL || before == NULL) {
        free(tails);
        free(before);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a timeline of %zu entries", count);
    }
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        size_t low = 0;
        size_t high = length;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (changes[tails[middle]].seconds <= changes[i].seconds)
                low = middle + 1;
            else
                high = middle;
        }
        before[i] = low == 0 ? SIZE_MAX : tails[low - 1];
        tails[low] = i;
        if (low == length)
            length++;
    }

    size_t stays = tails[length - 1];
    double seconds = changes[stays].seconds;
    for (size_t i = count; i-- > 0;) {
        if (i == stays) {
            seconds = changes[i].seconds;
            stays = before[i];
        }
        changes[i].seconds = seconds;
    }
    free(tails);
    free(before);
    return TDM_OK;
}

double tdm_timeline_end(const struct tdm_timeline *timeline)
{
    double end = 0;
    for (size_t i = 0; i < timeline->op_count; i++) {
        if (timeline->ops[i].end > end)
            end = timeline->ops[i].end;
    }
    for (size_t i = 0; i < timeline->change_count; i++) {
        if (timeline->changes[i].seconds > end)
            end = timeline->changes[i].seconds;
    }
    return end;
}

/* Makes the changes of one moment, from `at` on, in `live`; returns where the next moment begins. */
static size_t take_moment(const struct tdm_timeline *timeline, size_t at,
                          uint64_t live[TDM_PLACES][TDM_CATEGORIES])
{
    uint64_t moment = timeline->changes[at].moment;
    while (at < timeline->change_count && timeline->changes[at].moment == moment) {
        const struct tdm_timeline_change *change = &timeline->changes[at++];
        live[change->place][change->category] = change->live_bytes;
    }
    return at;
}

static uint64_t sum(const uint64_t categories[TDM_CATEGORIES])
{
    uint64_t total = 0;
    for (int category = 0; category < TDM_CATEGORIES; category++)
        total += categories[category];
    return total;
}

void tdm_timeline_find_peak(const struct tdm_timeline *timeline, enum tdm_place place,
                            struct tdm_timeline_peak *peak)
{
    uint64_t live[TDM_PLACES][TDM_CATEGORIES] = {{0}};
    *peak = (struct tdm_timeline_peak){0};
    for (size_t at = 0; at < timeline->change_count;) {
        const struct tdm_timeline_change *first = &timeline->changes[at];
        at = take_moment(timeline, at, live);
        uint64_t total = sum(live[place]);
        if (total <= peak->live_bytes)
            continue;
        peak->known = true;
        peak->moment = first->moment;
        peak->seconds = first->seconds;
        peak->live_bytes = total;
        memcpy(peak->categories, live[place], sizeof(live[place]));
    }
}

const struct tdm_timeline_op *tdm_timeline_op_at(const struct tdm_timeline *timeline,
                                                 double seconds)
{
    const struct tdm_timeline_op *found = NULL;
    for (size_t i = 0; i < timeline->op_count; i++) {
        const struct tdm_timeline_op *op = &timeline->ops[i];
        if (op->lane == TDM_LANE_COMPUTE && op->start <= seconds &&
            (found == NULL || op->start >= found->start))
            found = op;
    }
    return found;
}

/* The column of a time; the end of the step is in the last one. */
static size_t column_of(double seconds, double end_seconds, size_t count)
{
    if (!(seconds > 0))
        return 0;
    double column = seconds / end_seconds * (double)count;
    return column >= (double)count ? count - 1 : (size_t)column;
}

static void keep_most(struct tdm_column *column, const uint64_t live[TDM_PLACES][TDM_CATEGORIES])
{
    for (int place = 0; place < TDM_PLACES; place++) {
        if (sum(live[place]) > sum(column->live_bytes[place]))
            memcpy(column->live_bytes[place], live[place], sizeof(live[place]));
    }
}

/* A column begins with what the one before left, if that lasts for some time in it. */
static void thin_memory(const struct tdm_timeline *timeline, double end_seconds, size_t count,
                        struct tdm_column *columns)
{
    uint64_t live[TDM_PLACES][TDM_CATEGORIES] = {{0}};
    size_t column = 0;
    for (size_t at = 0; at < timeline->change_count;) {
        double seconds = timeline->changes[at].seconds;
        size_t target = column_of(seconds, end_seconds, count);
        while (column < target) {
            column++;
            if (column < target || seconds > end_seconds * (double)column / (double)count)
                keep_most(&columns[column], (const uint64_t(*)[TDM_CATEGORIES])live);
        }
        at = take_moment(timeline, at, live);
        keep_most(&columns[column], (const uint64_t(*)[TDM_CATEGORIES])live);
    }
    while (++column < count)
        keep_most(&columns[column], (const uint64_t(*)[TDM_CATEGORIES])live);
}

static void thin_op(const struct tdm_timeline_op *op, double end_seconds, size_t count,
                    struct tdm_column *columns)
{
    enum tdm_op_group group = tdm_op_group_of(op->kind);
    double width = end_seconds / (double)count;
    size_t last = column_of(op->end, end_seconds, count);
    for (size_t i = column_of(op->start, end_seconds, count); i <= last; i++) {
        double from = width * (double)i;
        double to = from + width;
        double share = ((op->end < to ? op->end : to) - (op->start > from ? op->start : from));
        if (!(share > 0))
            continue;
        columns[i].busy[op->lane][group] += share / width;
        if (op->lane == TDM_LANE_COMPUTE)
            columns[i].phases[op->phase] += share / width;
    }
}

enum tdm_status tdm_timeline_thin(const struct tdm_timeline *timeline, double end_seconds,
                                  size_t count, struct tdm_column **columns, struct tdm_error *err)
{
    struct tdm_column *thinned = calloc(count, sizeof(*thinned));
    if (thinned == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu columns of a picture", count);
    thin_memory(timeline, end_seconds, count, thinned);
    for (size_t i = 0; i < timeline->op_count; i++)
        thin_op(&timeline->ops[i], end_seconds, count, thinned);

    /* Measured ops of one lane may overlap by the resolution of a clock. */
    for (size_t i = 0; i < count; i++) {
        for (int lane = 0; lane < TDM_LANES; lane++) {
            double busy = 0;
            for (int group = 0; group < TDM_OP_GROUPS; group++)
                busy += thinned[i].busy[lane][group];
            for (int group = 0; group < TDM_OP_GROUPS && busy > 1; group++)
                thinned[i].busy[lane][group] /= busy;
        }
    }
    *columns = thinned;
    return TDM_OK;
}

/* Forward or backward, whichever the column has more of; where it has neither, the phase before. */
static enum tdm_phase pass_of(const struct tdm_column *column, enum tdm_phase before)
{
    double forward = column->phases[TDM_FORWARD];
    double backward = column->phases[TDM_BACKWARD];
    return forward == 0 && backward == 0 ? before
           : forward >= backward         ? TDM_FORWARD
                                         : TDM_BACKWARD;
}

size_t tdm_phase_runs(const struct tdm_column *columns, size_t count, size_t least,
                      struct tdm_phase_run *runs, size_t capacity)
{
    size_t used = 0;
    size_t passes_end = count; /* only the optimizer works after it */
    while (passes_end > 0 && columns[passes_end - 1].phases[TDM_FORWARD] == 0 &&
           columns[passes_end - 1].phases[TDM_BACKWARD] == 0)
        passes_end--;

    enum tdm_phase phase = TDM_FORWARD;
    for (size_t first = 0, last; first < count; first = last + 1) {
        phase = first < passes_end ? pass_of(&columns[first], phase) : TDM_OPTIMIZER_PHASE;
        size_t end = first < passes_end ? passes_end : count;
        last = first;
        while (last + 1 < end &&
               (phase == TDM_OPTIMIZER_PHASE || pass_of(&columns[last + 1], phase) == phase))
            last++;

        struct tdm_phase_run *before = used == 0 ? NULL : &runs[used - 1];
        if (before != NULL &&
            (before->phase == phase || last - first + 1 < least || used == capacity)) {
            before->last = last;
        } else if (before != NULL && before->last - before->first + 1 < least) {
            *before = (struct tdm_phase_run){.phase = phase, .first = before->first, .last = last};
        } else {
            runs[used++] = (struct tdm_phase_run){.phase = phase, .first = first, .last = last};
        }
    }
    return used;
}
