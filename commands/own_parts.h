/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of tidemark's own schedule. Only for commands/own_*.c. */
#ifndef TDM_COMMANDS_OWN_PARTS_H
#define TDM_COMMANDS_OWN_PARTS_H

#include "planner/objective.h"
#include "commands/own_schedule.h"

struct tdm_own_schedule {
    struct tdm_objective_found found; /* its schedule is NULL if no request could be made */
    bool brief;                       /* a brief search found it */
    bool refused_briefly;             /* without a search */
};

#endif
