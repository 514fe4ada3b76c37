/* SPDX-License-Identifier: Apache-2.0 */
/* What is predicted of the compute lane's ops: kept from a simulation. */
#include "executor/forecast.h"

#include "simulator/simulate.h"

#include <stdio.h>
#include <stdlib.h>

static enum tdm_status note_op(void *self, const struct tdm_op *op, double start_seconds,
                               double end_seconds,
                               const uint64_t live_bytes[TDM_MAX_PLACES][TDM_CATEGORIES],
                               struct tdm_error *err)
{
    struct tdm_forecast *forecast = self;
    (void)start_seconds;
    (void)live_bytes;
    (void)err;
    if (op->lane == TDM_LANE_COMPUTE)
        forecast->ops[forecast->count++] =
            (struct tdm_forecast_op){.number = op->number,
                                     .end_seconds = (float)end_seconds,
                                     .layer = op->layer,
                                     .chunk = op->chunk,
                                     .phase = op->phase};
    return TDM_OK;
}

enum tdm_status tdm_forecast_new(const struct tdm_program *program, struct tdm_forecast **out,
                                 struct tdm_error *err)
{
    struct tdm_simulation simulation;
    struct tdm_forecast *forecast = calloc(1, sizeof(*forecast));
    if (forecast == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a forecast");
    forecast->program = program;
    forecast->ops = malloc((program->op_count + 1) * sizeof(*forecast->ops));
    enum tdm_status status = TDM_OK;
    if (forecast->ops == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the forecast of %llu ops",
                          (unsigned long long)program->op_count);
    if (status == TDM_OK)
        status = tdm_simulate(program, note_op, forecast, &simulation, err);
    if (status == TDM_OK && forecast->count == 0)
        status = tdm_fail(err, TDM_INTERNAL, "a program without an op of the compute lane");
    if (status != TDM_OK) {
        tdm_forecast_free(forecast);
        return status;
    }
    forecast->step_seconds = simulation.step_seconds;
    *out = forecast;
    return TDM_OK;
}

void tdm_forecast_free(struct tdm_forecast *forecast)
{
    if (forecast == NULL)
        return;
    free(forecast->ops);
    free(forecast);
}

double tdm_forecast_seconds(const struct tdm_forecast *forecast, uint64_t position)
{
    return position == 0 ? 0 : (double)forecast->ops[position - 1].end_seconds;
}

const char *tdm_forecast_where(const struct tdm_program *program, enum tdm_phase phase,
                               uint32_t layer, uint32_t chunk, char out[TDM_WHERE_SIZE])
{
    uint32_t layers = program->schedule->model->layers;
    int at = snprintf(out, TDM_WHERE_SIZE, "%s", tdm_phase_name(phase));
    if (layer < layers)
        at +=
            snprintf(out + at, TDM_WHERE_SIZE - (size_t)at, ", layer %u of %u", layer + 1, layers);
    if (chunk != TDM_NONE)
        snprintf(out + at, TDM_WHERE_SIZE - (size_t)at, ", chunk %u of %u", chunk + 1,
                 program->chunk_count);
    return out;
}
