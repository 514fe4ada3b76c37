/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a timeline of one step, and thins it to the columns of a picture. */
#include "plots/timeline.h"

#include "ops/team.h"

#include <stdlib.h>
#include <string.h>

const char *tdm_op_group_name(enum tdm_op_group group)
{
    static const char *const names[] = {"product", "attention", "head", "optimizer",
                                        "copy",    "team",      "other"};
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
        return (TDM_TEAM_KINDS & TDM_KIND(kind)) != 0 ? TDM_GROUP_TEAM : TDM_GROUP_OTHER;
    }
}

/* Ensures that an array can hold one more element of `bytes`. */
static enum tdm_status grow(void **array, size_t count, size_t *capacity, size_t bytes,
                            struct tdm_error *err)
{
    if (count < *capacity)
        return TDM_OK;
    size_t larger = *capacity == 0 ? 1024 : *capacity * 2;
    void *moved = larger > SIZE_MAX / bytes ? NULL : realloc(*array, larger * bytes);
    if (moved == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a timeline of %zu entries", larger);
    *array = moved;
    *capacity = larger;
    return TDM_OK;
}

enum tdm_status tdm_timeline_add_change(struct tdm_timeline_changes *changes,
                                        const struct tdm_timeline_change *change,
                                        struct tdm_error *err)
{
    void *array = changes->change;
    enum tdm_status status = grow(&array, changes->count, &changes->capacity, sizeof(*change), err);
    changes->change = array;
    if (status == TDM_OK)
        changes->change[changes->count++] = *change;
    return status;
}

enum tdm_status tdm_timeline_add_op(struct tdm_timeline *timeline, const struct tdm_timeline_op *op,
                                    struct tdm_error *err)
{
    void *array = timeline->ops;
    enum tdm_status status =
        grow(&array, timeline->op_count, &timeline->op_capacity, sizeof(*op), err);
    timeline->ops = array;
    if (status == TDM_OK)
        timeline->ops[timeline->op_count++] = *op;
    return status;
}

void tdm_timeline_free(struct tdm_timeline *timeline)
{
    free(timeline->values.change);
    free(timeline->allocations.change);
    free(timeline->ops);
    *timeline = (struct tdm_timeline){0};
}

/* Sets the times of the changes up to an op; returns the first one after it. */
static size_t set_seconds(struct tdm_timeline_changes *changes, size_t at, uint64_t op_number,
                          double seconds)
{
    while (at < changes->count && changes->change[at].op_number <= op_number)
        changes->change[at++].seconds = seconds;
    return at;
}

/* Goes through the ops of a timeline, and says when each changes memory. */
struct clock {
    size_t next; /* op of the compute lane */
    double now;
};

static double clock_at(const struct tdm_timeline *timeline, size_t i, struct clock *clock)
{
    const struct tdm_timeline_op *ops = timeline->ops;
    const size_t count = timeline->op_count;
    size_t next = clock->next < i ? i : clock->next;
    while (next < count && ops[next].lane != TDM_LANE_COMPUTE)
        next++;
    clock->next = next;
    double start = ops[i].start;
    if (next < count && ops[next].start < start)
        start = ops[next].start;
    if (i > 0 && start > clock->now)
        clock->now = start;
    return clock->now;
}

void tdm_timeline_clock(struct tdm_timeline *timeline)
{
    size_t value = 0, allocation = 0;
    struct clock clock = {0, 0};
    for (size_t i = 0; i < timeline->op_count; i++) {
        double now = clock_at(timeline, i, &clock);
        value = set_seconds(&timeline->values, value, timeline->ops[i].number, now);
        allocation = set_seconds(&timeline->allocations, allocation, timeline->ops[i].number, now);
    }
    set_seconds(&timeline->values, value, UINT64_MAX, clock.now);
    set_seconds(&timeline->allocations, allocation, UINT64_MAX, clock.now);
}

void tdm_timeline_op_clock(const struct tdm_timeline *timeline, double *seconds)
{
    struct clock clock = {0, 0};
    for (size_t i = 0; i < timeline->op_count; i++)
        seconds[i] = clock_at(timeline, i, &clock);
}

double tdm_timeline_end(const struct tdm_timeline *timeline)
{
    double end = 0;
    for (size_t i = 0; i < timeline->op_count; i++) {
        if (timeline->ops[i].end > end)
            end = timeline->ops[i].end;
    }
    return end;
}

/* Applies the changes of one op, from `at` on, to `now`. Returns where those of the next op
 * begin. */
static size_t take_op(const struct tdm_timeline_changes *changes, size_t at,
                      uint64_t now[TDM_MAX_PLACES][TDM_CATEGORIES])
{
    uint64_t op_number = changes->change[at].op_number;
    while (at < changes->count && changes->change[at].op_number == op_number) {
        const struct tdm_timeline_change *change = &changes->change[at++];
        now[change->place][change->category] = change->bytes;
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
    const struct tdm_timeline_changes *values = &timeline->values;
    uint64_t now[TDM_MAX_PLACES][TDM_CATEGORIES] = {{0}};
    *peak = (struct tdm_timeline_peak){0};
    for (size_t at = 0; at < values->count;) {
        const struct tdm_timeline_change *first = &values->change[at];
        at = take_op(values, at, now);
        uint64_t total = sum(now[place]);
        if (total <= peak->value_bytes)
            continue;
        peak->known = true;
        peak->op_number = first->op_number;
        peak->seconds = first->seconds;
        peak->value_bytes = total;
        memcpy(peak->categories, now[place], sizeof(now[place]));
    }
}

const struct tdm_timeline_op *tdm_timeline_op(const struct tdm_timeline *timeline, uint64_t number)
{
    size_t low = 0, high = timeline->op_count;
    if (number < high && timeline->ops[number].number == number) /* none is missing before it */
        return &timeline->ops[number];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (timeline->ops[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < timeline->op_count && timeline->ops[low].number == number ? &timeline->ops[low]
                                                                           : NULL;
}

/* The column of a time; the end of the step is in the last one. */
static size_t column_of(double seconds, double end_seconds, size_t count)
{
    if (!(seconds > 0))
        return 0;
    double column = seconds / end_seconds * (double)count;
    return column >= (double)count ? count - 1 : (size_t)column;
}

static void keep_most(struct tdm_column *column, const uint64_t now[TDM_MAX_PLACES][TDM_CATEGORIES])
{
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++) {
        if (sum(now[place]) > sum(column->value_bytes[place]))
            memcpy(column->value_bytes[place], now[place], sizeof(now[place]));
    }
}

static void keep_most_allocated(struct tdm_column *column, const uint64_t now[TDM_MAX_PLACES])
{
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
        if (now[place] > column->allocated_bytes[place])
            column->allocated_bytes[place] = now[place];
}

/* Does the state before a change at `seconds`, in column `target`, last for some time in column
 * `i`? */
static bool lasts_into(size_t i, size_t target, double seconds, double end_seconds, size_t count)
{
    return i < target || seconds > end_seconds * (double)i / (double)count;
}

/* A column includes the state that the one before left, if that lasts for some time in it. */
static void thin_values(const struct tdm_timeline *timeline, double end_seconds, size_t count,
                        struct tdm_column *columns)
{
    const struct tdm_timeline_changes *values = &timeline->values;
    uint64_t now[TDM_MAX_PLACES][TDM_CATEGORIES] = {{0}};
    size_t column = 0;
    for (size_t at = 0; at < values->count;) {
        double seconds = values->change[at].seconds;
        size_t target = column_of(seconds, end_seconds, count);
        while (column < target) {
            column++;
            if (lasts_into(column, target, seconds, end_seconds, count))
                keep_most(&columns[column], (const uint64_t(*)[TDM_CATEGORIES])now);
        }
        at = take_op(values, at, now);
        keep_most(&columns[column], (const uint64_t(*)[TDM_CATEGORIES])now);
    }
    while (++column < count)
        keep_most(&columns[column], (const uint64_t(*)[TDM_CATEGORIES])now);
}

static void thin_allocations(const struct tdm_timeline *timeline, double end_seconds, size_t count,
                             struct tdm_column *columns)
{
    const struct tdm_timeline_changes *allocations = &timeline->allocations;
    uint64_t now[TDM_MAX_PLACES] = {0};
    size_t column = 0;
    for (size_t at = 0; at < allocations->count; at++) {
        const struct tdm_timeline_change *change = &allocations->change[at];
        size_t target = column_of(change->seconds, end_seconds, count);
        while (column < target) {
            column++;
            if (lasts_into(column, target, change->seconds, end_seconds, count))
                keep_most_allocated(&columns[column], now);
        }
        now[change->place] = change->bytes;
        keep_most_allocated(&columns[column], now);
    }
    while (++column < count)
        keep_most_allocated(&columns[column], now);
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
    thin_values(timeline, end_seconds, count, thinned);
    thin_allocations(timeline, end_seconds, count, thinned);
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

/* Forward or backward, whichever the column has more of. If it has neither, the phase before. */
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
