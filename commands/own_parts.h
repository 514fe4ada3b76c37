/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of tidemark's own schedule share. Not for use outside commands/own_*.c. */
#ifndef TDM_COMMANDS_OWN_PARTS_H
#define TDM_COMMANDS_OWN_PARTS_H

#include "planner/objective.h"
#include "commands/own_schedule.h"

struct tdm_own_schedule {
    struct tdm_objective_found found; /* its schedule: NULL if not even one could be asked for */
};

#endif
