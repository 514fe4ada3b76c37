/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps what a simulation predicts: ends of the compute lane's ops; for a trace, all ops. */
#include "executor/forecast.h"

#include "ops/team.h"
#include "simulator/team.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Notes the allocated bytes of a place if they changed. Few ops change them. */
static enum tdm_status note_allocation(struct tdm_forecast *forecast, uint64_t op_number,
                                       enum tdm_place place, uint64_t bytes, struct tdm_error *err)
{
    if (bytes == forecast->allocated[place])
        return TDM_OK;
    if (forecast->allocation_count == forecast->allocation_capacity) {
        size_t capacity = 2 * forecast->allocation_capacity + 64;
        struct tdm_forecast_allocation *more =
            realloc(forecast->allocations, capacity * sizeof(*more));
        if (more == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu allocations", capacity);
        forecast->allocations = more;
        forecast->allocation_capacity = capacity;
    }
    forecast->allocated[place] = bytes;
    forecast->allocations[forecast->allocation_count++] =
        (struct tdm_forecast_allocation){op_number, place, bytes};
    return TDM_OK;
}

static enum tdm_status note_op(void *self, const struct tdm_op *op, double start_seconds,
                               double end_seconds,
                               const uint64_t live_bytes[TDM_MAX_PLACES][TDM_CATEGORIES],
                               struct tdm_error *err)
{
    struct tdm_forecast *forecast = self;
    if (op->lane == TDM_LANE_COMPUTE)
        forecast->ops[forecast->count++] =
            (struct tdm_forecast_op){.number = op->number,
                                     .end_seconds = (float)end_seconds,
                                     .layer = op->layer,
                                     .chunk = op->chunk,
                                     .phase = op->phase};
    enum tdm_status status = tdm_examples_take(forecast->examples, op, err);
    if (forecast->traced == NULL || status != TDM_OK)
        return status;
    tdm_values_take(forecast->values, op);
    forecast->traced[op->number] =
        tdm_trace_op_of(op, llround(start_seconds * 1e9), llround(end_seconds * 1e9));
    if ((TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0)
        forecast->traced[op->number].team_op = ++forecast->team_ops;
    for (uint32_t place = 0; place < TDM_MAX_PLACES && status == TDM_OK; place++) {
        uint64_t allocated = 0;
        for (int category = 0; category < TDM_CATEGORIES; category++)
            allocated += live_bytes[place][category];
        status = note_allocation(forecast, op->number, (enum tdm_place)place, allocated, err);
    }
    return status;
}

/* A forecast without a simulator: note_op() must see the ops. */
static enum tdm_status make(const struct tdm_program *program, bool for_trace,
                            struct tdm_forecast **out, struct tdm_error *err)
{
    struct tdm_forecast *forecast = calloc(1, sizeof(*forecast));
    if (forecast == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a forecast");
    forecast->view = *program;
    forecast->program = program->rank == 0 ? program : &forecast->view;
    forecast->ops = malloc((program->op_count + 1) * sizeof(*forecast->ops));
    if (for_trace)
        forecast->traced = malloc((program->op_count + 1) * sizeof(*forecast->traced));
    enum tdm_status status = TDM_OK;
    if (forecast->ops == NULL || (for_trace && forecast->traced == NULL))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the forecast of %llu ops",
                          (unsigned long long)program->op_count);
    if (status == TDM_OK && for_trace)
        status = tdm_values_new(forecast->program, &forecast->values, err);
    if (status == TDM_OK)
        status = tdm_examples_new(forecast->program, &forecast->examples, err);
    if (status != TDM_OK) {
        tdm_forecast_free(forecast);
        return status;
    }
    *out = forecast;
    return TDM_OK;
}

enum tdm_status tdm_forecast_begin(const struct tdm_program *program, bool for_trace,
                                   struct tdm_forecast **out, struct tdm_error *err)
{
    struct tdm_forecast *forecast;
    enum tdm_status status = make(program, for_trace, &forecast, err);
    if (status != TDM_OK)
        return status;
    status = tdm_simulator_new(forecast->program, true, &forecast->simulator, err);
    if (status != TDM_OK) {
        tdm_forecast_free(forecast);
        return status;
    }
    *out = forecast;
    return TDM_OK;
}

enum tdm_status tdm_forecast_take(struct tdm_forecast *forecast, const struct tdm_item *item,
                                  const struct tdm_waits *waits, struct tdm_error *err)
{
    enum tdm_status status = tdm_simulator_take(forecast->simulator, item, waits, err);
    if (status != TDM_OK || item->kind != TDM_RUN)
        return status;
    /* set_times() sets the times */
    return note_op(forecast, item->op, 0, 0, tdm_simulator_live(forecast->simulator), err);
}

static void set_times(struct tdm_forecast *forecast)
{
    const struct tdm_program *program = forecast->program;
    uint64_t positions[TDM_MAX_LANES] = {0};
    double start, end;
    for (uint64_t i = 0; i < forecast->count; i++) {
        tdm_simulator_times(forecast->simulator, TDM_LANE_COMPUTE, i + 1, &start, &end);
        forecast->ops[i].end_seconds = (float)end;
    }
    for (uint64_t i = 0; i < program->op_count && forecast->traced != NULL; i++) {
        struct tdm_trace_op *op = &forecast->traced[i];
        tdm_simulator_times(forecast->simulator, op->lane, ++positions[op->lane], &start, &end);
        op->predicted_start_ns = llround(start * 1e9);
        op->predicted_end_ns = llround(end * 1e9);
    }
}

/* Keeps how many bytes are predicted to hold values. */
static enum tdm_status keep_changes(struct tdm_forecast *forecast, struct tdm_error *err)
{
    size_t capacity = tdm_values_change_capacity(forecast->program) + 1;
    struct tdm_values_change *changes = calloc(capacity, sizeof(*changes));
    if (changes == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for what is to hold values");
    forecast->change_count = tdm_values_changes(forecast->values, changes);
    forecast->changes = realloc(changes, (forecast->change_count + 1) * sizeof(*changes));
    if (forecast->changes == NULL) /* it could not be made smaller */
        forecast->changes = changes;
    tdm_values_free(forecast->values);
    forecast->values = NULL;
    return TDM_OK;
}

static enum tdm_status finish(struct tdm_forecast *forecast, double step_seconds,
                              struct tdm_error *err)
{
    forecast->step_seconds = step_seconds;
    if (forecast->count == 0)
        return tdm_fail(err, TDM_INTERNAL, "a program without an op of the compute lane");
    return forecast->values != NULL ? keep_changes(forecast, err) : TDM_OK;
}

enum tdm_status tdm_forecast_end(struct tdm_forecast *forecast, struct tdm_error *err)
{
    struct tdm_simulation simulation;
    enum tdm_status status = tdm_simulator_finish(forecast->simulator, &simulation, err);
    if (status != TDM_OK)
        return status;
    set_times(forecast);
    tdm_simulator_free(forecast->simulator);
    forecast->simulator = NULL;
    return finish(forecast, simulation.step_seconds, err);
}

enum tdm_status tdm_forecast_team(const struct tdm_program *program, bool for_trace,
                                  struct tdm_forecast **forecasts, struct tdm_error *err)
{
    struct tdm_simulation simulation;
    enum tdm_status status = TDM_OK;
    uint32_t made = 0;
    for (; made < program->ranks && status == TDM_OK; made += status == TDM_OK) {
        const struct tdm_program view = tdm_program_of_rank(program, made);
        status = make(made == 0 ? program : &view, for_trace, &forecasts[made], err);
    }
    if (status == TDM_OK)
        status = tdm_simulate_team(program, note_op, (void *const *)forecasts, program->ranks,
                                   &simulation, err);
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++)
        status = finish(forecasts[rank], simulation.step_seconds, err);
    while (status != TDM_OK && made-- > 0) {
        tdm_forecast_free(forecasts[made]);
        forecasts[made] = NULL;
    }
    return status;
}

static enum tdm_status take_item(void *self, const struct tdm_item *item,
                                 const struct tdm_waits *waits, struct tdm_error *err)
{
    return tdm_forecast_take(self, item, waits, err);
}

enum tdm_status tdm_forecast_new(const struct tdm_program *program, struct tdm_forecast **out,
                                 struct tdm_error *err)
{
    struct tdm_forecast *forecast = NULL;
    enum tdm_status status = tdm_forecast_begin(program, false, &forecast, err);
    if (status == TDM_OK)
        status = tdm_order_emit(program, take_item, forecast, err);
    if (status == TDM_OK)
        status = tdm_forecast_end(forecast, err);
    if (status != TDM_OK) {
        tdm_forecast_free(forecast);
        return status;
    }
    *out = forecast;
    return TDM_OK;
}

void tdm_forecast_drop_traced(struct tdm_forecast *forecast)
{
    free(forecast->traced);
    free(forecast->allocations);
    free(forecast->changes);
    forecast->traced = NULL;
    forecast->allocations = NULL;
    forecast->changes = NULL;
    forecast->change_count = 0;
    forecast->allocation_count = forecast->allocation_capacity = 0;
}

void tdm_forecast_free(struct tdm_forecast *forecast)
{
    if (forecast == NULL)
        return;
    tdm_forecast_drop_traced(forecast);
    tdm_simulator_free(forecast->simulator);
    tdm_values_free(forecast->values);
    tdm_examples_free(forecast->examples);
    free(forecast->ops);
    free(forecast);
}

uint64_t tdm_forecast_traced_bytes(void)
{
    return sizeof(struct tdm_trace_op);
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
