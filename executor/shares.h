/* SPDX-License-Identifier: Apache-2.0 */
/* What team ops (ops/team.h) move between ranks, the same on every backend and transport. All of it
 * follows from the rank's own launch and the schedule: no rank looks at the ops of others. */
#ifndef TDM_EXECUTOR_SHARES_H
#define TDM_EXECUTOR_SHARES_H

#include "executor/transport.h"

/* Phases of a team op, the same on all ranks. */
uint32_t tdm_share_phases(const struct tdm_launch *launch);

/* Fills in what the rank of a launch gives and takes in a phase of its op, and what it sums then.
 */
void tdm_share_exchange(const struct tdm_launch *launch, uint32_t phase,
                        struct tdm_exchange *exchange);

/* The `number`-th copy of rows in the rank's own memory, before pieces move or after; false: there
 * are no more. Only a TDM_OP_ALL_TO_ALL has some. */
bool tdm_share_rows(const struct tdm_launch *launch, bool after, uint32_t number,
                    struct tdm_row_copy *copy);

#endif
