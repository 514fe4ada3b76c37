/* SPDX-License-Identifier: Apache-2.0 */
/* What an op writes: pieces of elements of one dtype in the slots of its operands. */
#ifndef TDM_EXECUTOR_WRITTEN_H
#define TDM_EXECUTOR_WRITTEN_H

#include "executor/backend.h"

struct tdm_written {
    uint32_t operand, slot;
    const struct tdm_tensor *tensor; /* in buffers of units, otherwise NULL */
    bool lse;                        /* the LSE after an attention output */
    enum tdm_dtype dtype;
    uint64_t offset; /* bytes from the beginning of the slot */
    uint64_t elements;
};

#define TDM_WRITTEN_MOST 24

/* An element in memory as a number; NAN for other dtypes. */
double tdm_value_of(const void *at, enum tdm_dtype dtype);

/* Does an access of an op write? */
bool tdm_is_written(const struct tdm_access *access);

/* Is this tensor of a unit among those that an access names? */
bool tdm_is_of_part(const struct tdm_access *access, const struct tdm_tensor *tensor);

/* Lists the pieces of one slot of a written operand. Returns how many there are. LM-head ops and
 * ops that write pages write only part of the piece that is listed. */
uint32_t tdm_list_written(const struct tdm_launch *launch, uint32_t operand, uint32_t slot,
                          struct tdm_written written[TDM_WRITTEN_MOST]);

#endif
