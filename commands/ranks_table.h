/* SPDX-License-Identifier: Apache-2.0 */
/* What each of several ranks does in a step, as predicted. */
#ifndef TDM_COMMANDS_RANKS_TABLE_H
#define TDM_COMMANDS_RANKS_TABLE_H

#include "simulator/simulate.h"

#include <stdio.h>

/* Prints how long ranks compute and wait, for whom, and what they exchange; nothing of one rank. */
void tdm_ranks_table(FILE *out, const struct tdm_topology *topology,
                     const struct tdm_team_use *team);

#endif
