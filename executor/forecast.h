/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is predicted of a program, from one simulation. Of the compute lane's ops, by their position
 * in it: when each ends, and where in the step it is. It says how far a step is whose ops are
 * counted as they end, and what is left of it. For a trace also the times of all ops, and what is
 * allocated.
 */
#ifndef TDM_EXECUTOR_FORECAST_H
#define TDM_EXECUTOR_FORECAST_H

#include "schedule/program.h"

struct tdm_forecast_op {
    uint64_t number; /* of the op, in program order */
    float end_seconds;
    uint32_t layer, chunk; /* or TDM_NONE */
    enum tdm_phase phase;
};

struct tdm_forecast_time {
    double start_seconds, end_seconds;
};

/* From this op on, so many bytes of a place are allocated. */
struct tdm_forecast_allocation {
    uint64_t op_number;
    enum tdm_place place;
    uint64_t bytes;
};

struct tdm_forecast {
    const struct tdm_program *program;
    struct tdm_forecast_op *ops; /* [count], at least one; the one at position p is number p - 1 */
    uint64_t count;
    double step_seconds;
    /* for a trace, else NULL: of all ops by number, and by rising op number */
    struct tdm_forecast_time *times;
    struct tdm_forecast_allocation *allocations;
    size_t allocation_count, allocation_capacity;
    uint64_t allocated[TDM_MAX_PLACES]; /* by the last one */
    struct tdm_simulator *simulator;    /* NULL: the step was simulated */
};

/* A forecast of `program`, which must outlive it, that waits for the items of a step. The caller
 * owns *forecast. */
enum tdm_status tdm_forecast_begin(const struct tdm_program *program, bool for_trace,
                                   struct tdm_forecast **forecast, struct tdm_error *err);
/* A sink of the program's items; `self` is the forecast. */
enum tdm_status tdm_forecast_take(void *self, const struct tdm_item *item, struct tdm_error *err);
/* After the last item. */
enum tdm_status tdm_forecast_end(struct tdm_forecast *forecast, struct tdm_error *err);

/* All of it with an emission of its own, and not for a trace. */
enum tdm_status tdm_forecast_new(const struct tdm_program *program, struct tdm_forecast **forecast,
                                 struct tdm_error *err);
void tdm_forecast_free(struct tdm_forecast *forecast);

/* Frees what it has for a trace. */
void tdm_forecast_drop_times(struct tdm_forecast *forecast);

/* Bytes of what it has of an op for a trace. */
uint64_t tdm_forecast_time_bytes(void);

/* Predicted seconds from the begin of the step to the end of the op at a position; 0 for position
 * 0. */
double tdm_forecast_seconds(const struct tdm_forecast *forecast, uint64_t position);

/* Where in a step: "backward, layer 12 of 28, chunk 5 of 32", counted from 1. `layer` and `chunk`
 * may be TDM_NONE, `layer` a unit that is no layer. Returns `out`. */
#define TDM_WHERE_SIZE 96
const char *tdm_forecast_where(const struct tdm_program *program, enum tdm_phase phase,
                               uint32_t layer, uint32_t chunk, char out[TDM_WHERE_SIZE]);

#endif
