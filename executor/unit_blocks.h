/* SPDX-License-Identifier: Apache-2.0 */
/* Iterates over the elements of a unit in blocks, tensor by tensor, without the padding. */
#ifndef TDM_EXECUTOR_UNIT_BLOCKS_H
#define TDM_EXECUTOR_UNIT_BLOCKS_H

#include "base/size.h"
#include "models/model.h"

#include <stdbool.h>

/* A unit is cut into tasks of equal length that do not depend on the number of threads, so that
 * sums over it have one fixed order. */
enum { TDM_UNIT_BLOCK = 512, TDM_UNIT_TASKS_MOST = 1024, TDM_UNIT_TASK_LEAST = 16384 };

struct tdm_unit_block {
    const struct tdm_tensor *tensor;
    uint64_t first, count; /* elements of the unit */
};

static inline uint64_t tdm_unit_task_elements(uint64_t elements)
{
    return tdm_most(TDM_UNIT_TASK_LEAST,
                    (elements + TDM_UNIT_TASKS_MOST - 1) / TDM_UNIT_TASKS_MOST);
}

/* Advances to the next block of [begin, end) of a unit. *block must be all zero at first. False
 * after the last one. */
static inline bool tdm_next_unit_block(const struct tdm_tensor *tensors,
                                       const struct tdm_unit *unit, uint64_t begin, uint64_t end,
                                       struct tdm_unit_block *block)
{
    const struct tdm_tensor *tensor = &tensors[unit->first_tensor];
    const struct tdm_tensor *beyond = tensor + unit->tensor_count;
    uint64_t first = begin;
    if (block->tensor != NULL) {
        tensor = block->tensor;
        first = block->first + block->count;
    }
    for (; tensor < beyond; tensor++) {
        uint64_t last = tdm_least(end, tensor->offset + tensor->elements);
        first = tdm_most(first, tensor->offset);
        if (first >= last)
            continue;
        *block = (struct tdm_unit_block){tensor, first, tdm_least(TDM_UNIT_BLOCK, last - first)};
        return true;
    }
    return false;
}

#endif
