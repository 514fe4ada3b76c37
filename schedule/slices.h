/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices: embedding and head can be many times as large as a layer. Their masters and moments are
 * divided into slices of at most a layer's elements (or TDM_SLICE_ALIGN, if a layer has fewer), so
 * that they pass through the rings of the layers' states (lower_stream.c) instead of staging
 * buffers as large as they are. The state of a layer is one slice.
 *
 * The number of slices depends on the model alone: all programs of a model have the same homes.
 */
#ifndef TDM_SCHEDULE_SLICES_H
#define TDM_SCHEDULE_SLICES_H

#include "base/dtype.h"
#include "models/model.h"
#include "ops/content.h"

#include <stdbool.h>
#include <stdint.h>

/* Slices begin at multiples of this many elements, so that their bytes do, in every dtype, at
 * multiples of TDM_SLOT_ALIGN (layout.h). */
#define TDM_SLICE_ALIGN 256u

struct tdm_slice {
    uint64_t first, elements; /* of the unit, padding between tensors included */
};

uint32_t tdm_slice_count(const struct tdm_model *model, uint32_t unit);
struct tdm_slice tdm_slice_at(const struct tdm_model *model, uint32_t unit, uint32_t slice);

/* Bytes of a slot for a slice of a unit. */
uint64_t tdm_slice_slot_bytes(const struct tdm_model *model, uint32_t unit, enum tdm_dtype dtype);

/* Is a content of a unit stored slice by slice? Then its home has a slot for each slice, and tags
 * number the slices as chunks. */
bool tdm_is_sliced(const struct tdm_model *model, enum tdm_content content, uint32_t unit);

#endif
