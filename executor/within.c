/* SPDX-License-Identifier: Apache-2.0 */
/* Saves within steps (executor/within.h). */
#include "executor/within.h"

#include "base/size.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool is_stopped(const struct tdm_within *within)
{
    const struct tdm_run_options *options = within->run->options;
    return options->stop != NULL && *options->stop;
}

static bool wants(void *self, const struct tdm_op *op)
{
    struct tdm_within *within = self;
    const uint32_t count = tdm_pauses_count(within->pauses);
    while (within->next < count && tdm_pauses_at(within->pauses, within->next)->op < op->number)
        within->next++;
    if (within->next == count || tdm_pauses_at(within->pauses, within->next)->op != op->number)
        return false;
    return is_stopped(within) ||
           now_seconds() - within->saved_seconds >= within->run->options->within_seconds;
}

static enum tdm_status save_there(void *self, const struct tdm_op *op, double seconds,
                                  struct tdm_error *err)
{
    struct tdm_within *within = self;
    struct tdm_run *run = within->run;
    const struct tdm_checkpoint_within at = {.pause = within->next,
                                             .seconds = within->earlier_seconds + seconds};
    enum tdm_status status =
        tdm_run_weights_save_within(&run->weights, run->arenas, within->program, within->pauses,
                                    &at, within->history, &within->result->saved_step, err);
    within->saved_seconds = now_seconds();
    if (status != TDM_OK)
        return status;
    within->result->within_step = within->step;
    if (!is_stopped(within))
        return TDM_OK;
    return tdm_fail(err, TDM_INTERRUPTED,
                    "interrupted in step %" PRIu64 ", before op %" PRIu64 " of %" PRIu64
                    ", where it was saved",
                    within->step, op->number + 1, within->program->op_count);
}

enum tdm_status tdm_within_open(struct tdm_within *within, struct tdm_run *run,
                                const struct tdm_program *program,
                                const struct tdm_history *history, struct tdm_run_result *result,
                                struct tdm_error *err)
{
    *within = (struct tdm_within){.run = run,
                                  .program = program,
                                  .history = history,
                                  .result = result,
                                  .saved_seconds = now_seconds(),
                                  .pauser = {within, wants, save_there}};
    return run->options->saves_within ? tdm_pauses_new(program, &within->pauses, err) : TDM_OK;
}

void tdm_within_close(struct tdm_within *within)
{
    tdm_pauses_free(within->pauses);
    within->pauses = NULL;
}

void tdm_within_begin(struct tdm_within *within, uint64_t step, double earlier_seconds)
{
    within->step = step;
    within->next = 0;
    within->earlier_seconds = earlier_seconds;
    if (within->result->saved_step != within->saved_step)
        within->saved_seconds = now_seconds();
    within->saved_step = within->result->saved_step;
}

/* When a pause is expected, after the step began. */
static double expected_seconds(const struct tdm_forecast *forecast, const struct tdm_pause *pause)
{
    uint64_t ended = 0;
    while (ended < forecast->count && forecast->ops[ended].number < pause->op)
        ended++;
    return tdm_forecast_seconds(forecast, ended);
}

enum tdm_status tdm_within_tell_costs(const struct tdm_run *run, struct tdm_error *err)
{
    const struct tdm_forecast *forecast = run->loaded[0].forecasts[0];
    const struct tdm_run_listener *listener = run->listener;
    struct tdm_pauses *pauses;
    if (!run->options->saves_within || listener->within_costs == NULL ||
        run->programs[0]->ranks > 1) /* which is refused */
        return TDM_OK;
    enum tdm_status status = tdm_pauses_new(run->programs[0], &pauses, err);
    if (status != TDM_OK)
        return status;
    const uint32_t count = tdm_pauses_count(pauses);
    uint64_t least = count == 0 ? 0 : UINT64_MAX, most = 0;
    double first = 0, before = 0, gap = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct tdm_pause *pause = tdm_pauses_at(pauses, i);
        const double seconds = expected_seconds(forecast, pause);
        least = tdm_least(least, pause->bytes);
        most = tdm_most(most, pause->bytes);
        first = i == 0 ? seconds : first;
        gap = i == 0 ? 0 : fmax(gap, seconds - before);
        before = seconds;
    }
    listener->within_costs(listener->self, count, least, most, first, gap);
    tdm_pauses_free(pauses);
    return TDM_OK;
}
