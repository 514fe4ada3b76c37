/* SPDX-License-Identifier: Apache-2.0 */
/* What a loop nest costs, in the units of the design: independent of a machine's speed. */
#ifndef TDM_PLANNER_NEST_COST_H
#define TDM_PLANNER_NEST_COST_H

#include "simulator/simulate.h"

struct tdm_nest_cost {
    double
        stored_bytes_per_token; /* residuals, K, V and their gradients, all places, at their peak */
    double attention;           /* attention forwards of all layers */
    double
        linear; /* FLOPs of products over parameters x tokens: a forward is 2, a step at least 6 */
};

struct tdm_nest_cost tdm_nest_cost(const struct tdm_schedule *schedule,
                                   const struct tdm_simulation *simulation);

#endif
