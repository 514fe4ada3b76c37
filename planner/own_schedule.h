/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidemark's own schedule as a method beside those of other systems: what was said of it by --set KEY=VALUE becomes
 * a request to the planner, whose answer is what predict and compare show.
 */
#ifndef TDM_PLANNER_OWN_SCHEDULE_H
#define TDM_PLANNER_OWN_SCHEDULE_H

#include "methods/method.h"
#include "planner/objective.h"

/* Is it that method? Others are predicted by tdm_method_predict(). */
static inline bool tdm_method_is_own(const struct tdm_method *method)
{
    return method->system == NULL;
}

struct tdm_own_request {
    struct tdm_request request;
    enum tdm_objective objective;
    double margin; /* of the device's memory, left over where `memory` was not said */
};

/* Reads what was said of the method, and what is assumed for the rest; names and pairs are borrowed. TDM_USAGE. */
enum tdm_status tdm_own_read(const struct tdm_method_settings *settings,
                             const struct tdm_method_choices *choices, const char *model,
                             const char *machine, double margin, struct tdm_own_request *own,
                             struct tdm_error *err);

/* The schedule for own->request.context tokens. As tdm_objective_memory() has it: the caller owns what is in *found, on
 * TDM_INFEASIBLE too, where nothing fits. */
enum tdm_status tdm_own_find(const struct tdm_own_request *own, struct tdm_objective_found *found,
                             struct tdm_error *err);

/* The longest context that fits; request.context is not read. */
enum tdm_status tdm_own_longest(const struct tdm_own_request *own,
                                struct tdm_objective_found *found, struct tdm_error *err);

#endif
