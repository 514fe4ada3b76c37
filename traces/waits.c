/* SPDX-License-Identifier: Apache-2.0 */
/* Sums what the compute lane waited for. */
#include "traces/waits.h"

#include "base/sort.h"

#include <math.h>
#include <stdlib.h>

struct span {
    int64_t start_ns, end_ns;
    const struct tdm_trace_interval *op;
};

struct sums {
    struct tdm_trace_wait *rows;
    size_t count, capacity;
    bool whole;        /* the step ended */
    bool measured;     /* measured times are being summed, else predicted ones */
    bool any_measured; /* there are measured times */
};

static bool same(const struct tdm_trace_wait *row, enum tdm_phase phase,
                 const struct tdm_trace_interval *awaited)
{
    if (row->phase != phase || row->launch != (awaited == NULL))
        return false;
    return awaited == NULL || (row->lane == awaited->lane && row->kind == awaited->kind &&
                               row->content == awaited->content);
}

/* Finds or adds the row of a wait; NULL: no memory. */
static struct tdm_trace_wait *find(struct sums *sums, enum tdm_phase phase,
                                   const struct tdm_trace_interval *awaited)
{
    for (size_t i = 0; i < sums->count; i++)
        if (same(&sums->rows[i], phase, awaited))
            return &sums->rows[i];
    if (sums->count == sums->capacity) {
        size_t capacity = sums->capacity == 0 ? 16 : 2 * sums->capacity;
        struct tdm_trace_wait *rows = realloc(sums->rows, capacity * sizeof(*rows));
        if (rows == NULL)
            return NULL;
        sums->rows = rows;
        sums->capacity = capacity;
    }
    struct tdm_trace_wait *row = &sums->rows[sums->count++];
    *row = (struct tdm_trace_wait){.phase = phase,
                                   .launch = awaited == NULL,
                                   .measured_seconds = sums->any_measured ? 0 : NAN};
    if (awaited != NULL) {
        row->lane = awaited->lane;
        row->kind = awaited->kind;
        row->content = awaited->content;
    }
    return row;
}

static bool add(struct sums *sums, enum tdm_phase phase, const struct tdm_trace_interval *awaited,
                int64_t nanoseconds)
{
    struct tdm_trace_wait *row = find(sums, phase, awaited);
    if (row == NULL)
        return false;
    *(sums->measured ? &row->measured_seconds : &row->predicted_seconds) +=
        1e-9 * (double)nanoseconds;
    row->waits += sums->measured == sums->any_measured;
    return true;
}

/* Loops over the compute lane's ops by rising start, and over the others by rising end. */
static bool sum_gaps(struct sums *sums, const struct span *compute, size_t compute_count,
                     const struct span *others, size_t other_count)
{
    int64_t free_ns = 0;
    size_t ended = 0;
    for (size_t i = 0; i < compute_count; i++) {
        const struct span *span = &compute[i];
        while (ended < other_count && others[ended].end_ns <= span->start_ns)
            ended++;
        bool in_gap = ended > 0 && others[ended - 1].end_ns > free_ns;
        if (span->start_ns > free_ns &&
            !add(sums, span->op->phase, in_gap ? others[ended - 1].op : NULL,
                 span->start_ns - free_ns))
            return false;
        if (span->end_ns > free_ns)
            free_ns = span->end_ns;
    }
    const struct span *last = other_count == 0 ? NULL : &others[other_count - 1];
    return !sums->whole || last == NULL || last->end_ns <= free_ns ||
           add(sums, last->op->phase, last->op, last->end_ns - free_ns);
}

static int by_start(const void *left, const void *right)
{
    const struct span *a = left, *b = right;
    int by_time = (a->start_ns > b->start_ns) - (a->start_ns < b->start_ns);
    return by_time != 0
               ? by_time
               : (a->op->op_number > b->op->op_number) - (a->op->op_number < b->op->op_number);
}

static int by_end(const void *left, const void *right)
{
    const struct span *a = left, *b = right;
    int by_time = (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
    return by_time != 0
               ? by_time
               : (a->op->op_number > b->op->op_number) - (a->op->op_number < b->op->op_number);
}

static int longest_first(const void *left, const void *right)
{
    const struct tdm_trace_wait *a = left, *b = right;
    double x = isnan(a->measured_seconds) ? a->predicted_seconds : a->measured_seconds;
    double y = isnan(b->measured_seconds) ? b->predicted_seconds : b->measured_seconds;
    int by_seconds = (x < y) - (x > y);
    return by_seconds != 0 ? by_seconds : (a->phase > b->phase) - (a->phase < b->phase);
}

/* Sums predicted or measured times. Compute ops fill `spans` from its start, others from its
 * end. */
static bool sum_times(struct sums *sums, const struct tdm_trace_interval *intervals, size_t count,
                      struct span *spans)
{
    size_t compute = 0, others = 0;
    for (size_t i = 0; i < count; i++) {
        const struct tdm_trace_interval *op = &intervals[i];
        if (sums->measured && !op->measured)
            continue;
        struct span span = {sums->measured ? op->start_ns : op->predicted_start_ns,
                            sums->measured ? op->end_ns : op->predicted_end_ns, op};
        if (op->lane == TDM_LANE_COMPUTE)
            spans[compute++] = span;
        else
            spans[count - ++others] = span;
    }
    qsort(spans, compute, sizeof(*spans), by_start);
    qsort(spans + count - others, others, sizeof(*spans), by_end);
    return sum_gaps(sums, spans, compute, spans + count - others, others);
}

enum tdm_status tdm_trace_sum_waits(const struct tdm_trace_interval *intervals, size_t count,
                                    bool whole, struct tdm_trace_wait **waits, size_t *wait_count,
                                    struct tdm_error *err)
{
    struct sums sums = {.whole = whole};
    struct span *spans = calloc(count + 1, sizeof(*spans));
    for (size_t i = 0; i < count; i++)
        sums.any_measured = sums.any_measured || intervals[i].measured;
    bool done = spans != NULL && sum_times(&sums, intervals, count, spans);
    sums.measured = true;
    if (done && sums.any_measured)
        done = sum_times(&sums, intervals, count, spans);
    free(spans);
    if (!done) {
        free(sums.rows);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the waits of %zu ops", count);
    }
    if (sums.count > 0)
        tdm_sort_stable(sums.rows, sums.count, sizeof(*sums.rows), longest_first);
    *waits = sums.rows;
    *wait_count = sums.count;
    return TDM_OK;
}
