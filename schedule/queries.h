/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings in which queries go around in the backward (BurstEngine, arXiv 2509.19836): which keys a
 * rank has for them, and who adds to gradients before whom.
 *
 * The queries of a round go around once. After s hops a rank has those of the rank s before it,
 * and attends from them to all of its own chunks of K and V that they see, with rising number. What
 * it adds to dK and dV stays there. What it contributes to dQ joins a sum that goes around behind
 * the queries, one hop later, and ends where they are at home.
 *
 * A rank begins with its own queries and its earlier chunks. Its own chunk it takes last, when the
 * others' sum has come.
 *
 * If ranks divide the heads, the members of the ring are their sets, and the queries of a round go
 * around in laps, as K and V do in ring.h. Each set begins a lap with its own queries of it, and
 * takes its own chunks last, after all laps.
 */
#ifndef TDM_SCHEDULE_QUERIES_H
#define TDM_SCHEDULE_QUERIES_H

#include "schedule/program_types.h"

/* Slots of others' queries, beside a rank's own, and of sums of dQ on their way. */
#define TDM_VISITING_QUERIES_SLOTS 2u
#define TDM_PASSING_DQ_SLOTS 3u

/* Of the chunks of a set that come after `after` (TDM_NONE: all), the first whose K and V the
 * queries of `chunk` see, itself left out; TDM_NONE: there is none. */
uint32_t tdm_queries_next_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                              uint32_t set, uint32_t after);

/* The last of them. */
uint32_t tdm_queries_last_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                              uint32_t set);

/* Do the queries of a chunk see keys of the set that has them after `hops` hops, or of one further
 * on their way? Else they go no further. */
bool tdm_queries_are_read(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                          uint32_t hops);

/* The key that has added last to the sum of dQ of a chunk when `hops` sets after its own have;
 * TDM_NONE: none has. */
uint32_t tdm_queries_contributor(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                                 uint32_t hops);

/* The chunk whose queries added to dK and dV of `key` just before those of `chunk` do; chunk_count
 * if these are the first. */
uint32_t tdm_queries_sum_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                                uint32_t chunk);

#endif
