/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prediction for a program, from one simulation. For each op of the compute lane, by position,
 * it holds the end time and the place in the step. From the number of ended ops it tells how far a
 * step is and how long the rest takes. It has examples of the ops, for the backend to prepare with.
 * For a trace it also holds what the trace says of all ops, with their times, and of memory.
 */
#ifndef TDM_EXECUTOR_FORECAST_H
#define TDM_EXECUTOR_FORECAST_H

#include "executor/examples.h"
#include "schedule/order.h"
#include "schedule/program.h"
#include "schedule/values.h"
#include "traces/trace.h"

struct tdm_forecast_op {
    uint64_t number; /* of the op, in program order */
    float end_seconds;
    uint32_t layer, chunk; /* or TDM_NONE */
    enum tdm_phase phase;
};

/* From this op on, `bytes` of the place are allocated. */
struct tdm_forecast_allocation {
    uint64_t op_number;
    enum tdm_place place;
    uint64_t bytes;
};

struct tdm_forecast {
    const struct tdm_program *program; /* as its rank runs it */
    struct tdm_program view;           /* that, of ranks other than the first */
    struct tdm_forecast_op *ops;       /* [count], at least one; index p - 1 is position p */
    uint64_t count;
    double step_seconds;
    struct tdm_examples *examples;
    /* For a trace, else NULL: all ops by number; allocations and bytes that hold values, by rising
     * op number. */
    struct tdm_trace_op *traced;
    struct tdm_forecast_allocation *allocations;
    size_t allocation_count, allocation_capacity;
    struct tdm_values_change *changes;
    size_t change_count;
    /* NULL after the last item, like all that only the making of a forecast needs */
    struct tdm_simulator *simulator;
    struct tdm_values *values;
    uint64_t allocated[TDM_MAX_PLACES]; /* as of the last allocation */
    uint32_t team_ops;                  /* so far */
};

/* Creates a forecast of `program`, which must outlive it. It is then fed with the items of a step.
 * The caller owns *forecast. */
enum tdm_status tdm_forecast_begin(const struct tdm_program *program, bool for_trace,
                                   struct tdm_forecast **forecast, struct tdm_error *err);
/* Takes an item of the program, and what it waits for if it is an op. */
enum tdm_status tdm_forecast_take(struct tdm_forecast *forecast, const struct tdm_item *item,
                                  const struct tdm_waits *waits, struct tdm_error *err);
/* To be called after the last item. */
enum tdm_status tdm_forecast_end(struct tdm_forecast *forecast, struct tdm_error *err);

/* Does all of this with an emission of its own, without the data for a trace. */
enum tdm_status tdm_forecast_new(const struct tdm_program *program, struct tdm_forecast **forecast,
                                 struct tdm_error *err);
void tdm_forecast_free(struct tdm_forecast *forecast);

/* The forecasts of all ranks of a program with several, with their waits for each other, into
 * `forecasts` [program->ranks], which must hold NULL. The caller owns them; after a failure there
 * are none, and all are NULL. */
enum tdm_status tdm_forecast_team(const struct tdm_program *program, bool for_trace,
                                  struct tdm_forecast **forecasts, struct tdm_error *err);

/* Frees the data for a trace. */
void tdm_forecast_drop_traced(struct tdm_forecast *forecast);

/* Bytes that the data for a trace takes for each op, without those of `changes`. */
uint64_t tdm_forecast_traced_bytes(void);

/* Predicted seconds from the start of the step to the end of the op at a position; 0 for position
 * 0. */
double tdm_forecast_seconds(const struct tdm_forecast *forecast, uint64_t position);

/* Where in a step: "backward, layer 12 of 28, chunk 5 of 32", counted from 1. `layer` and `chunk`
 * may be TDM_NONE, `layer` may be a unit other than a layer. Returns `out`. */
#define TDM_WHERE_SIZE 96
const char *tdm_forecast_where(const struct tdm_program *program, enum tdm_phase phase,
                               uint32_t layer, uint32_t chunk, char out[TDM_WHERE_SIZE]);

#endif
