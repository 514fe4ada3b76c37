/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates: seconds and bytes of a schedule, and the LM-head tile. */
#include "planner/estimate_lanes.h"
#include "planner/estimate_parts.h"

#include "base/size.h"

#include <math.h>

/* With a tile of logits of `tile_tokens`. */
static uint64_t device_bytes(const struct tdm_estimator *e, const struct tdm_estimate *estimate,
                             uint64_t tile_tokens)
{
    return larger(estimate->body_bytes, estimate->head_bytes + tdm_estimate_logits(e, tile_tokens));
}

static void estimate_bytes(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                           struct tdm_estimate *estimate)
{
    *estimate = (struct tdm_estimate){0};
    if (schedule->pass == TDM_EVALUATE)
        tdm_estimate_evaluate(e, schedule, estimate);
    else
        tdm_estimate_bytes(e, schedule, estimate);
}

void tdm_estimate_add_seconds(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                              double enough_seconds, double copies, struct tdm_estimate *estimate)
{
    if (schedule->pass == TDM_EVALUATE)
        return; /* set together with the bytes */
    tdm_estimate_seconds(e, schedule, estimate);
    estimate->likely_seconds = estimate->seconds;
    enough_seconds -= copies * estimate->copy_seconds;
    estimate->is_cut = estimate->seconds >= enough_seconds;
    if (estimate->is_cut)
        return;
    double lanes = tdm_estimate_lanes(e, schedule, enough_seconds, &estimate->is_cut);
    estimate->likely_seconds =
        later(estimate->seconds, lanes > 0 ? lanes : tdm_estimate_waiting(e));
}

void tdm_estimate(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                  struct tdm_estimate *estimate)
{
    estimate_bytes(e, schedule, estimate);
    tdm_estimate_add_seconds(e, schedule, HUGE_VAL, 0, estimate);
    estimate->bytes[TDM_DEVICE] = device_bytes(e, estimate, schedule->head_tile_tokens);
}

double tdm_estimate_least_seconds(const struct tdm_estimator *e,
                                  const struct tdm_schedule *schedule)
{
    struct tdm_estimate estimate = {0};
    if (schedule->pass == TDM_EVALUATE)
        tdm_estimate_evaluate(e, schedule, &estimate);
    else
        tdm_estimate_seconds(e, schedule, &estimate);
    return estimate.seconds;
}

uint64_t tdm_estimator_resident_bytes(const struct tdm_estimator *e)
{
    return tdm_size_add(e->resident_bytes[TDM_DEVICE], e->resident_bytes[e->far]);
}

uint64_t tdm_estimate_add_tile(const struct tdm_estimator *e, uint64_t tile_tokens, bool fixed,
                               uint64_t most_bytes, struct tdm_estimate *estimate)
{
    const uint64_t most = larger(estimate->body_bytes, most_bytes);
    while (!fixed && tile_tokens >= 2 * TDM_LEAST_TILE &&
           estimate->head_bytes + tdm_estimate_logits(e, tile_tokens) > most)
        tile_tokens = (tile_tokens + 1) / 2;
    estimate->bytes[TDM_DEVICE] = device_bytes(e, estimate, tile_tokens);
    return tile_tokens;
}

double tdm_estimator_tile_seconds(const struct tdm_estimator *e, uint64_t tile_tokens)
{
    const struct tdm_rate_table *share = &e->base->machine->table[TDM_RATE_HEAD_TILE_SHARE];
    const uint64_t own_tokens = e->base->head_tile_tokens;
    if (tile_tokens == own_tokens)
        return 0;
    return e->head_seconds *
           (tdm_rate_at(share, (double)own_tokens) / tdm_rate_at(share, (double)tile_tokens) - 1);
}

void tdm_estimate_bytes_only(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                             struct tdm_estimate *estimate)
{
    estimate_bytes(e, schedule, estimate);
}
