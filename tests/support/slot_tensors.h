/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements of a unit's tensors are in a slot: all, or those of the slot's slice. */
#ifndef TDM_TESTS_SLOT_TENSORS_H
#define TDM_TESTS_SLOT_TENSORS_H

#include "schedule/program.h"
#include "schedule/slices.h"

/* Elements of a tensor in a slot that holds a slice of its unit (TDM_NONE: the unit). *at: where
 * they begin in the slot. Returns their number. */
static inline uint64_t tdm_slot_elements(const struct tdm_schedule *schedule,
                                         const struct tdm_tensor *tensor, uint32_t slice,
                                         uint64_t *at)
{
    struct tdm_slice range = {0, schedule->model->units[tensor->unit].elements};
    if (slice != TDM_NONE)
        range = tdm_slice_at(schedule, tensor->unit, slice);
    uint64_t first = tensor->offset > range.first ? tensor->offset : range.first;
    uint64_t end = tensor->offset + tensor->elements;
    if (end > range.first + range.elements)
        end = range.first + range.elements;
    *at = first - range.first;
    return end > first ? end - first : 0;
}

#endif
