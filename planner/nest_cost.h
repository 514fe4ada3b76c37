/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of a loop nest in units that do not depend on a machine's speed. */
#ifndef TDM_PLANNER_NEST_COST_H
#define TDM_PLANNER_NEST_COST_H

#include "simulator/simulate.h"

struct tdm_nest_cost {
    double stored_bytes_per_token; /* peak residuals, K, V and their gradients, all places */
    double attention;              /* attention forwards of all layers */
    double linear; /* FLOPs of products / (parameters x tokens): 2 for a forward, at least 6 for a
                      step */
};

struct tdm_nest_cost tdm_nest_cost(const struct tdm_schedule *schedule,
                                   const struct tdm_simulation *simulation);

#endif
