/* SPDX-License-Identifier: Apache-2.0 */
/* A sweep: one request planned at many contexts or memory limits. */
#ifndef TDM_PLANNER_SWEEP_H
#define TDM_PLANNER_SWEEP_H

#include "planner/request.h"
#include "planner/shortage.h"

#include <signal.h>

enum tdm_sweep_axis { TDM_SWEEP_CONTEXT, TDM_SWEEP_MEMORY, TDM_SWEEP_HOST_MEMORY, TDM_SWEEP_AXES };

const char *tdm_sweep_axis_name(enum tdm_sweep_axis axis); /* "context", "memory", "host-memory" */

#define TDM_SWEEP_MOST 256u

struct tdm_sweep {
    enum tdm_sweep_axis axis;
    size_t count;
    uint64_t values[TDM_SWEEP_MOST]; /* rising: tokens or bytes */
};

/* Reads "context=8K..4M" (doubling), "memory=8G..140G" (evenly spaced), either with ":N" points, or
 * a list "memory=24G,80G". TDM_USAGE says what is expected. */
enum tdm_status tdm_sweep_parse(const char *text, struct tdm_sweep *sweep, struct tdm_error *err);

/* Sets the value of a request that a sweep varies. */
void tdm_sweep_set(struct tdm_request *request, enum tdm_sweep_axis axis, uint64_t value);

struct tdm_sweep_point {
    uint64_t value;
    struct tdm_schedule *schedule; /* NULL: nothing fits */
    struct tdm_search search;
    enum tdm_binding binding; /* if nothing fits: what is short, and how much is enough; else 0 */
    uint64_t needed_device_bytes, needed_far_bytes;
};

/* The plans of a sweep. */
struct tdm_sweep_result {
    enum tdm_sweep_axis axis;
    size_t count; /* number of points; fewer than requested if it was stopped */
    struct tdm_sweep_point *points;
};

struct tdm_sweep_options {
    const volatile sig_atomic_t *stop; /* the sweep ends after the current point; NULL: never */
    /* the same sweep with less of another memory, whose plans are taken over where they are faster;
     * or NULL */
    const struct tdm_sweep_result *less;
    void *self;
    void (*planned)(void *self, size_t done, size_t count, const struct tdm_sweep_point *point);
};

/* Plans every point. Values above the machine's memory become that memory, which is planned once.
 * The request's own value on the axis is ignored. TDM_INTERRUPTED keeps the points so far in
 * *result. The caller frees *result in every case. */
enum tdm_status tdm_sweep_run(const struct tdm_request *request, const struct tdm_sweep *sweep,
                              const struct tdm_sweep_options *options,
                              struct tdm_sweep_result *result, struct tdm_error *err);
void tdm_sweep_result_free(struct tdm_sweep_result *result);

#endif
