/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline: bytes that hold values by place and category, allocated bytes by place, and the ops
 * of every lane over one step, predicted or measured. It can be thinned to the columns of a
 * picture.
 *
 * Memory changes with ops, in program order, which has no times. The timeline uses the times of its
 * ops: memory is drawn where the compute lane is.
 *
 * A step of a million ops is drawn on about 1,500 pixels. A column of memory shows the complete
 * state at the op in it at which values take most of the place. So no peak is lost, and every stack
 * really occurred. A column of a lane shows which share of its time the lane spent on each group of
 * op kinds.
 */
#ifndef TDM_PLOTS_TIMELINE_H
#define TDM_PLOTS_TIMELINE_H

#include "base/status.h"
#include "schedule/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Op kinds that a picture shows in one colour. */
enum tdm_op_group {
    TDM_GROUP_PRODUCT,
    TDM_GROUP_ATTENTION,
    TDM_GROUP_HEAD,
    TDM_GROUP_OPTIMIZER,
    TDM_GROUP_COPY,
    TDM_GROUP_TEAM,
    TDM_GROUP_OTHER,
    TDM_OP_GROUPS
};

const char *tdm_op_group_name(enum tdm_op_group group); /* "product" */
enum tdm_op_group tdm_op_group_of(enum tdm_op_kind kind);

/* From an op on, `bytes` of a place and category hold values, or `bytes` of a place are
 * allocated. */
struct tdm_timeline_change {
    uint64_t op_number, bytes;
    double seconds; /* from the start of the step: tdm_timeline_clock() */
    enum tdm_place place;
    enum tdm_category category; /* of values */
};

struct tdm_timeline_op {
    uint64_t number;
    double start, end; /* seconds from the start of the step */
    enum tdm_op_kind kind;
    enum tdm_phase phase;
    enum tdm_lane lane;
    uint32_t layer, chunk; /* or TDM_NONE */
};

/* An array of changes by rising op number. */
struct tdm_timeline_changes {
    struct tdm_timeline_change *change;
    size_t count, capacity;
};

/* An empty timeline is all zero. */
struct tdm_timeline {
    struct tdm_timeline_changes values, allocations;
    struct tdm_timeline_op *ops; /* in program order; some may be missing */
    size_t op_count, op_capacity;
};

/* Appends one; TDM_NO_MEMORY. */
enum tdm_status tdm_timeline_add_change(struct tdm_timeline_changes *changes,
                                        const struct tdm_timeline_change *change,
                                        struct tdm_error *err);
enum tdm_status tdm_timeline_add_op(struct tdm_timeline *timeline, const struct tdm_timeline_op *op,
                                    struct tdm_error *err);
void tdm_timeline_free(struct tdm_timeline *timeline); /* leaves an empty one */

/* Sets the times of all changes. The first op changes memory at the start of the step. An op of the
 * compute lane changes memory when it starts. So does an op of another lane, but not before the op
 * that precedes it in the program, and not after the next op of the compute lane. So times never
 * decrease. */
void tdm_timeline_clock(struct tdm_timeline *timeline);

/* The same times by op: seconds[i] is when ops[i] changes memory. */
void tdm_timeline_op_clock(const struct tdm_timeline *timeline, double *seconds);

/* When the last op ends; 0 if there is none. */
double tdm_timeline_end(const struct tdm_timeline *timeline);

/* The first op at which values take most of a place, with what they take. */
struct tdm_timeline_peak {
    bool known; /* it ever holds something */
    uint64_t op_number, value_bytes;
    double seconds;
    uint64_t categories[TDM_CATEGORIES];
};
void tdm_timeline_find_peak(const struct tdm_timeline *timeline, enum tdm_place place,
                            struct tdm_timeline_peak *peak);

/* The op of a number; NULL if it is missing. */
const struct tdm_timeline_op *tdm_timeline_op(const struct tdm_timeline *timeline, uint64_t number);

struct tdm_column {
    uint64_t value_bytes[TDM_MAX_PLACES][TDM_CATEGORIES];
    uint64_t allocated_bytes[TDM_MAX_PLACES]; /* at most */
    double busy[TDM_MAX_LANES]
               [TDM_OP_GROUPS]; /* shares of the column; of a lane at most 1 in sum */
    double phases[TDM_PHASES];  /* the same, of the compute lane */
};

/* Makes `count` columns of end_seconds / count each, malloc'ed; the caller frees them. Times must
 * not decrease. TDM_NO_MEMORY. */
enum tdm_status tdm_timeline_thin(const struct tdm_timeline *timeline, double end_seconds,
                                  size_t count, struct tdm_column **columns, struct tdm_error *err);

/* A stretch of forward, backward or optimizer. */
struct tdm_phase_run {
    enum tdm_phase phase;
    size_t first, last; /* columns, both included */
};

/* Finds the phases of the columns. Optimizer work inside the backward belongs to the backward, and
 * a stretch shorter than `least` columns to its neighbour. Writes at most `capacity` (1 or more)
 * runs; returns how many. */
size_t tdm_phase_runs(const struct tdm_column *columns, size_t count, size_t least,
                      struct tdm_phase_run *runs, size_t capacity);

#endif
