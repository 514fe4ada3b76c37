/* SPDX-License-Identifier: Apache-2.0 */
/* What a launch of TDM_OP_COPY moves, the same on every backend. */
#ifndef TDM_EXECUTOR_COPIED_H
#define TDM_EXECUTOR_COPIED_H

#include "executor/backend.h"

/* A contiguous range. For several slots: from the start of the first to the end of the contents of
 * the last. For a part of a unit: from its first tensor to the end of its last, with the alignment
 * gaps. */
struct tdm_copied {
    void *to;
    const void *from;
    uint64_t bytes;
};

struct tdm_copied tdm_copied_by(const struct tdm_launch *launch);

#endif
