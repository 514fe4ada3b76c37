/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is predicted of the compute lane's ops, by their position in it: when each ends, and where
 * in the step it is. It says how far a step is whose ops are counted as they end, and what is left
 * of it.
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

struct tdm_forecast {
    const struct tdm_program *program;
    struct tdm_forecast_op *ops; /* [count], at least one; the one at position p is number p - 1 */
    uint64_t count;
    double step_seconds;
};

/* Simulates `program`, which must outlive it. The caller owns *forecast. */
enum tdm_status tdm_forecast_new(const struct tdm_program *program, struct tdm_forecast **forecast,
                                 struct tdm_error *err);
void tdm_forecast_free(struct tdm_forecast *forecast);

/* Predicted seconds from the begin of the step to the end of the op at a position; 0 for position
 * 0. */
double tdm_forecast_seconds(const struct tdm_forecast *forecast, uint64_t position);

/* Where in a step: "backward, layer 12 of 28, chunk 5 of 32", counted from 1. `layer` and `chunk`
 * may be TDM_NONE, `layer` a unit that is no layer. Returns `out`. */
#define TDM_WHERE_SIZE 96
const char *tdm_forecast_where(const struct tdm_program *program, enum tdm_phase phase,
                               uint32_t layer, uint32_t chunk, char out[TDM_WHERE_SIZE]);

#endif
