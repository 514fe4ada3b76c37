/* SPDX-License-Identifier: Apache-2.0 */
/* Estimate of a pass that only evaluates: one forward, with the K and V of the current layers and X
 * between layers. */
#include "planner/estimate_parts.h"

void tdm_estimate_evaluate(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                           struct tdm_estimate *out)
{
    const struct tdm_place_row *places = schedule->machine->topology.places;
    bool by_layer = schedule->order == TDM_LAYER_MAJOR;
    uint32_t most = 1,
             last = 0; /* layers whose K and V are live together: at any time, and in the head */
    if (!by_layer) {
        last = schedule->groups[schedule->group_count - 1].layers;
        for (uint32_t g = 0; g < schedule->group_count; g++)
            if (schedule->groups[g].layers > most)
                most = schedule->groups[g].layers;
    }
    uint64_t n = e->chunks, row = by_layer ? e->row_slots : n;
    uint64_t slots = by_layer || schedule->group_count > 1 ? n : 1; /* of X between layers */
    uint64_t all = places[TDM_DEVICE].runtime_bytes + e->resident_bytes[TDM_DEVICE] +
                   e->weight_ring + slots * e->x;
    struct tdm_estimate estimate = {
        .seconds = tdm_estimator_forward_seconds(e) + e->head_seconds,
        .body_bytes = all + most * row * e->kv + e->work_forward,
        .head_bytes = all + last * n * e->kv + e->work_head + e->head_buffer,
    };
    estimate.bytes[e->far] = places[e->far].runtime_bytes + e->resident_bytes[e->far];
    for (uint32_t layer = 0; layer < e->layers && by_layer; layer++)
        estimate.seconds += e->moves[e->kind_of[layer]].rising;
    estimate.likely_seconds = estimate.seconds;
    *out = estimate;
}
