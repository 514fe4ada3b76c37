/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What streams through the rings of units in a step: weights of layers whose home is not the
 * device, in the order in which bodies use them, and state of the units that the device updates, in
 * the order of the updates. lower_stream.c fetches by these lists, and the planner's clocks
 * (planner/estimate_lanes.c) do too.
 */
#ifndef TDM_SCHEDULE_STREAMS_H
#define TDM_SCHEDULE_STREAMS_H

#include "schedule/nest.h"

struct tdm_unit_list {
    uint32_t *units, count, capacity;
};

struct tdm_streams {
    const struct tdm_schedule *schedule; /* borrowed, as the next two */
    const bool *far_weights;             /* [units] that are staged */
    /* [units] number of slices (slices.h) in which state passes through the rings; 0: none does */
    const uint32_t *passing_slices;
    struct tdm_unit_list visits;  /* layers whose weights are fetched */
    struct tdm_unit_list updates; /* units, each as often as it has slices that pass */
    uint32_t last;                /* layer that a body used last; TDM_NONE at the beginning */
};

/* Adds what the next body of the nest streams. False: out of memory. */
bool tdm_streams_add(struct tdm_streams *streams, const struct tdm_body *body);

/* Frees the lists. */
void tdm_streams_free(struct tdm_streams *streams);

/* State that an update needs besides the weights, in the order in which it is fetched and sent:
 * masters and moments. The gradient, which is last, does not change. Where other units are updated
 * on the host, masters come after the moments: they have the fewest bytes, and can wait while
 * gradients are sent (lower_stream.c). */
#define TDM_STREAMED_STATES 4
enum tdm_content tdm_streamed_state(const struct tdm_schedule *schedule, size_t number);

/* Does a content of a unit pass through its ring? Weights and gradients of embedding and head have
 * buffers of their own. */
bool tdm_passes_ring(const struct tdm_program *program, enum tdm_content content, uint32_t unit);

/* Does any state of a unit pass? */
bool tdm_has_passing_state(const struct tdm_program *program, uint32_t unit);

/* Fills layout->visits and layout->updates of a program. */
enum tdm_status tdm_stream_plan(struct tdm_program *program, struct tdm_error *err);

#endif
