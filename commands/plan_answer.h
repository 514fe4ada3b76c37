/* SPDX-License-Identifier: Apache-2.0 */
/* The answer of `tidemark plan`: the search, what is short if nothing fits, and both as JSON. Only
 * for cmd_plan.c and plan_answer.c. */
#ifndef TDM_COMMANDS_PLAN_ANSWER_H
#define TDM_COMMANDS_PLAN_ANSWER_H

#include "commands/plan_arguments.h"
#include "models/weights.h"
#include "planner/shortage.h"

#include <jansson.h>
#include <stdio.h>

struct tdm_plan_result {
    struct tdm_objective_found found;
    struct tdm_weights *weights; /* beside the model; NULL: none */
    bool has_shortage;           /* the next is known */
    struct tdm_shortage shortage;
};

/* Searches by the objective. Shows progress on `progress`, unless it is NULL. */
enum tdm_status tdm_plan_search(const struct tdm_plan_arguments *a, FILE *progress,
                                struct tdm_objective_found *found, struct tdm_error *err);

/* Goes on after a search that returned `searched` and `err`: looks for what would fit if nothing
 * does, else checks the weights beside the model and writes the schedule if a file is named. The
 * caller ends *result with tdm_plan_result_free(). Returns `searched` or a further error. */
enum tdm_status tdm_plan_finish(const struct tdm_plan_arguments *a, enum tdm_status searched,
                                FILE *progress, struct tdm_plan_result *result,
                                struct tdm_error *err);
void tdm_plan_result_free(struct tdm_plan_result *result);

/* The answer after tdm_plan_finish() returned `finished`, which is TDM_OK or TDM_INFEASIBLE, and
 * then `reason`. *answer is NULL if memory ran out. */
enum tdm_status tdm_plan_result_json(const struct tdm_plan_arguments *a,
                                     const struct tdm_plan_result *result, enum tdm_status finished,
                                     const struct tdm_error *reason, json_t **answer,
                                     struct tdm_error *err);

#endif
