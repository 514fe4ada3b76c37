/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts and slices of the state of units: their masters and moments.
 *
 * With several ranks each rank has the state of a part of every unit, and updates the weights of
 * that part. With one rank the part is the unit.
 *
 * Embedding and head can be many times as large as a layer. Their parts are divided into slices of
 * at most a layer's part (or TDM_SLICE_ALIGN, if that has fewer elements), so that they pass
 * through the rings of the layers' states (lower_stream.c) instead of staging buffers as large as
 * they are. The state of a layer is one slice.
 *
 * Sizes depend on the model and the number of ranks alone: all programs of a model have the same
 * homes, and all ranks have buffers of the same size. So the last ranks' parts of a small unit may
 * be empty.
 */
#ifndef TDM_SCHEDULE_SLICES_H
#define TDM_SCHEDULE_SLICES_H

#include "ops/content.h"
#include "schedule/schedule.h"

#include <stdbool.h>
#include <stdint.h>

/* Slices begin at multiples of this many elements, so that their bytes do, in every dtype, at
 * multiples of TDM_SLOT_ALIGN (layout.h). */
#define TDM_SLICE_ALIGN 256u

struct tdm_slice {
    uint64_t first, elements; /* padding between tensors included */
};

/* The part of a unit whose state a rank has; `first` is of the unit. */
struct tdm_slice tdm_rank_part(const struct tdm_schedule *schedule, uint32_t unit, uint32_t rank);

/* The elements of a tensor in that part; `first` is of the tensor. */
struct tdm_slice tdm_rank_part_of(const struct tdm_schedule *schedule,
                                  const struct tdm_tensor *tensor, uint32_t rank);

/* The elements of a part of a unit's tensors (TDM_PART_ALL: of all), with the gaps between them,
 * and which of these are in the part whose state a rank has. */
struct tdm_slice tdm_tensors_range(const struct tdm_model *model, uint32_t unit,
                                   enum tdm_part part);
struct tdm_slice tdm_rank_range(const struct tdm_schedule *schedule, uint32_t unit,
                                enum tdm_part part, uint32_t rank);

/* Does each rank get the sum of a gradient in the part that it updates, and no more? Without an
 * optimizer whole gradients are the result. */
bool tdm_sums_by_part(const struct tdm_schedule *schedule);

/* Does each rank have its part of the weights at home, and no more? */
bool tdm_weights_sliced(const struct tdm_schedule *schedule);

/* Number of slices of a part, and a slice of the largest part; `first` is of the part. */
uint32_t tdm_slice_count(const struct tdm_schedule *schedule, uint32_t unit);
struct tdm_slice tdm_slice_at(const struct tdm_schedule *schedule, uint32_t unit, uint32_t slice);

/* The elements of a unit that a rank updates at a time: of a slice of its part, or, with one slice,
 * of all of it. */
struct tdm_slice tdm_update_range(const struct tdm_schedule *schedule, uint32_t unit, uint32_t rank,
                                  uint32_t slice, uint32_t slices);

/* Bytes of a slot for a slice of a unit. */
uint64_t tdm_slice_slot_bytes(const struct tdm_schedule *schedule, uint32_t unit,
                              enum tdm_dtype dtype);

/* Is a content of a unit stored part by part: its master or a moment? */
bool tdm_is_of_state(enum tdm_content content);

/* Is it stored slice by slice? Then its home has a slot for each slice, and tags number the slices
 * as chunks. */
bool tdm_is_sliced(const struct tdm_schedule *schedule, enum tdm_content content, uint32_t unit);

#endif
