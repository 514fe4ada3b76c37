/* SPDX-License-Identifier: Apache-2.0 */
/* Conflicts: which buffers are ever live together. They are the input of packing (pack.h). */
#ifndef TDM_SCHEDULE_CONFLICTS_H
#define TDM_SCHEDULE_CONFLICTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Which of `count` buffers are ever live together: a symmetric bit matrix. */
struct tdm_conflicts {
    uint32_t count;
    uint32_t words; /* a row */
    uint64_t *bits; /* [count][words] */
};

enum tdm_status tdm_conflicts_new(uint32_t count, struct tdm_conflicts *conflicts,
                                  struct tdm_error *err);
void tdm_conflicts_free(struct tdm_conflicts *conflicts);

/* Records that `buffer` becomes live while the buffers in `live` ([words] of bits) are live. */
void tdm_conflicts_add(struct tdm_conflicts *conflicts, uint32_t buffer, const uint64_t *live);
bool tdm_conflicts_test(const struct tdm_conflicts *conflicts, uint32_t a, uint32_t b);

#endif
