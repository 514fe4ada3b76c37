/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A timeline: live bytes by place and category and the ops of every lane over one step, predicted or
 * measured, and its thinning to as many columns as a picture has.
 *
 * A step of a million ops is drawn on some 1,500 pixels. A column of memory shows the moment in it at
 * which the place holds most, whole, so that no peak is lost and every stack is one that really was;
 * a column of a lane shows which share of its time the lane spent on which group of op kinds.
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
    TDM_GROUP_OTHER,
    TDM_OP_GROUPS
};

const char *tdm_op_group_name(enum tdm_op_group group); /* "product" */
enum tdm_op_group tdm_op_group_of(enum tdm_op_kind kind);

/* A change of live bytes. Those of one moment happen at once. */
struct tdm_timeline_change {
    uint64_t moment, live_bytes;
    double seconds; /* from the begin of the step */
    enum tdm_place place;
    enum tdm_category category;
};

struct tdm_timeline_op {
    double start, end; /* seconds from the begin of the step */
    enum tdm_op_kind kind;
    enum tdm_phase phase;
    enum tdm_lane lane;
    uint32_t layer, chunk; /* TDM_NONE */
};

/* All zero is an empty one. */
struct tdm_timeline {
    struct tdm_timeline_change *changes; /* by rising moment */
    size_t change_count, change_room;
    struct tdm_timeline_op *ops; /* in program order */
    size_t op_count, op_room;
};

/* Appends one; TDM_NO_MEMORY. */
enum tdm_status tdm_timeline_add_change(struct tdm_timeline *timeline,
                                        const struct tdm_timeline_change *change,
                                        struct tdm_error *err);
enum tdm_status tdm_timeline_add_op(struct tdm_timeline *timeline, const struct tdm_timeline_op *op,
                                    struct tdm_error *err);
void tdm_timeline_free(struct tdm_timeline *timeline); /* leaves an empty one */

/* Moments are in program order; lanes overlap, so that some were noted earlier or later than their
 * neighbours. Moves as few of them as possible, each to the next one that stayed, so that times never
 * fall. TDM_NO_MEMORY. */
enum tdm_status tdm_timeline_straighten(struct tdm_timeline *timeline, struct tdm_error *err);

/* When the last op ends or memory changes last. */
double tdm_timeline_end(const struct tdm_timeline *timeline);

/* The first moment at which a place holds most, with what it holds. */
struct tdm_timeline_peak {
    bool known; /* it ever holds something */
    uint64_t moment, live_bytes;
    double seconds;
    uint64_t categories[TDM_CATEGORIES];
};
void tdm_timeline_find_peak(const struct tdm_timeline *timeline, enum tdm_place place,
                            struct tdm_timeline_peak *peak);

/* The op on the compute lane at a time (the one before, in a stall); NULL if there is none. */
const struct tdm_timeline_op *tdm_timeline_op_at(const struct tdm_timeline *timeline,
                                                 double seconds);

struct tdm_column {
    uint64_t live_bytes[TDM_PLACES][TDM_CATEGORIES];
    double busy[TDM_LANES][TDM_OP_GROUPS]; /* shares of the column; of a lane at most 1 in sum */
    double phases[TDM_PHASES];             /* the same, of the compute lane */
};

/* `count` columns of end_seconds / count each, malloc'ed, which the caller frees; times must not
 * fall. TDM_NO_MEMORY. */
enum tdm_status tdm_timeline_thin(const struct tdm_timeline *timeline, double end_seconds,
                                  size_t count, struct tdm_column **columns, struct tdm_error *err);

/* A stretch of forward, backward or optimizer. */
struct tdm_phase_run {
    enum tdm_phase phase;
    size_t first, last; /* columns, both included */
};

/* The phases of the columns; what an optimizer does inside the backward belongs to the backward, and
 * stretches shorter than `least` columns to their neighbour. At most `capacity` (1 or more); returns how many. */
size_t tdm_phase_runs(const struct tdm_column *columns, size_t count, size_t least,
                      struct tdm_phase_run *runs, size_t capacity);

#endif
