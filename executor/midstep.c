/* SPDX-License-Identifier: Apache-2.0 */
/* Within a step: reports progress, samples memory and sends batches to the trace, at intervals. */
#include "executor/midstep.h"

/* The time between two samples of memory. */
#define SAMPLE_SECONDS 1.0

/* The time between two batches for the trace; the second is the least, when a phase begins. */
#define SEND_SECONDS 5.0
#define SEND_PHASE_SECONDS 1.0

/* A smaller share of a step tells too little about the rest. */
#define LEAST_SHARE 0.02

/* Ignores an error of the driver: the end of the step reports it. */
static void sample(struct tdm_midstep *midstep, double seconds)
{
    const struct tdm_backend *backend = midstep->arenas->backend;
    uint64_t used_bytes;
    midstep->sampled_seconds = seconds;
    if (backend->used != NULL &&
        backend->used(midstep->arenas->executor, &used_bytes, NULL, NULL) == TDM_OK) {
        midstep->used_bytes = used_bytes;
        if (used_bytes > midstep->most_used_bytes)
            midstep->most_used_bytes = used_bytes;
    }
    if (midstep->recorder != NULL)
        tdm_recorder_sample(midstep->recorder, midstep->arenas, &midstep->unfinished,
                            midstep->used_bytes);
}

/* The op that runs, or the last one. */
static const struct tdm_forecast_op *op_under_way(const struct tdm_forecast *forecast,
                                                  uint64_t ended)
{
    return &forecast->ops[ended < forecast->count ? ended : forecast->count - 1];
}

static bool is_due(const struct tdm_midstep *midstep, enum tdm_phase phase, double seconds)
{
    double passed = seconds - midstep->sent_seconds;
    return passed >= SEND_SECONDS || (passed >= SEND_PHASE_SECONDS && phase != midstep->sent_phase);
}

/* `all`: of all ranks, which run no more; may wait. */
static enum tdm_status send(struct tdm_midstep *midstep, uint64_t ended, double seconds, bool all,
                            struct tdm_error *err)
{
    bool sent;
    midstep->unfinished.ops_ended = ended == 0 ? 0 : midstep->forecast->ops[ended - 1].number + 1;
    enum tdm_status status = tdm_recorder_unfinished(midstep->recorder, midstep->arenas,
                                                     &midstep->unfinished, all, &sent, err);
    if (status == TDM_OK && sent) {
        midstep->sent_seconds = seconds;
        midstep->sent_phase = op_under_way(midstep->forecast, ended)->phase;
    }
    return status;
}

/* Have enough ops ended to tell the time of the others from theirs? */
static bool tells(const struct tdm_forecast *forecast, uint64_t ended)
{
    return tdm_forecast_seconds(forecast, ended) > LEAST_SHARE * forecast->step_seconds;
}

/* The predicted time of the ops that have not ended, scaled by the ratio of measured to predicted
 * time of the others. */
static double left_seconds(const struct tdm_forecast *forecast, uint64_t ended, double seconds)
{
    double passed = tdm_forecast_seconds(forecast, ended);
    double left = forecast->step_seconds - passed;
    return tells(forecast, ended) ? left * seconds / passed : left;
}

static void tell(const struct tdm_midstep *midstep, uint64_t ended, double seconds)
{
    const struct tdm_forecast *forecast = midstep->forecast;
    const struct tdm_forecast_op *op = op_under_way(forecast, ended);
    const struct tdm_run_moment moment = {.program = forecast->program,
                                          .step = midstep->step,
                                          .phase = op->phase,
                                          .layer = op->layer,
                                          .chunk = op->chunk,
                                          .seconds = seconds,
                                          .left_seconds = left_seconds(forecast, ended, seconds),
                                          .left_as_planned = !tells(forecast, ended),
                                          .stopping = midstep->stop != NULL && *midstep->stop,
                                          .pauses = midstep->pauses,
                                          .used_bytes = midstep->used_bytes,
                                          .planned_bytes = midstep->planned_bytes};
    midstep->listener->within(midstep->listener->self, &moment);
}

static enum tdm_status look(void *self, uint64_t ended, double seconds, struct tdm_error *err)
{
    struct tdm_midstep *midstep = self;
    midstep->unfinished.seconds = seconds;
    if (seconds - midstep->sampled_seconds >= SAMPLE_SECONDS)
        sample(midstep, seconds);
    if (midstep->listener->within != NULL)
        tell(midstep, ended, seconds);
    if (midstep->recorder == NULL ||
        !is_due(midstep, op_under_way(midstep->forecast, ended)->phase, seconds))
        return TDM_OK;
    return send(midstep, ended, seconds, false, err);
}

enum tdm_status tdm_midstep_cut(struct tdm_midstep *midstep, uint64_t ended, int64_t now_ns,
                                struct tdm_error *err)
{
    if (midstep->recorder == NULL)
        return TDM_OK;
    midstep->unfinished.seconds = 1e-9 * (double)(now_ns - midstep->unfinished.start_ns);
    return send(midstep, ended, midstep->unfinished.seconds, true, err);
}

void tdm_midstep_open(struct tdm_midstep *midstep, const struct tdm_arenas *arenas,
                      const struct tdm_forecast *forecast, const struct tdm_run_listener *listener,
                      struct tdm_recorder *recorder, uint64_t planned_bytes)
{
    *midstep = (struct tdm_midstep){.arenas = arenas,
                                    .forecast = forecast,
                                    .listener = listener,
                                    .recorder = recorder,
                                    .planned_bytes = planned_bytes,
                                    .watch = {midstep, look}};
}

void tdm_midstep_begin(struct tdm_midstep *midstep, uint64_t step, int64_t start_ns)
{
    midstep->step = step;
    midstep->sampled_seconds = midstep->sent_seconds = 0;
    midstep->sent_phase = midstep->forecast->ops[0].phase;
    midstep->unfinished = (struct tdm_unfinished_step){.step = step, .start_ns = start_ns};
}
