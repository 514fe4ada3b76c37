/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of a nest, from the simulator's counts. */
#include "planner/nest_cost.h"

#include "schedule/cost.h"

struct tdm_nest_cost tdm_nest_cost(const struct tdm_schedule *schedule,
                                   const struct tdm_simulation *simulation)
{
    const struct tdm_model *model = schedule->model;
    double tokens = (double)tdm_schedule_tokens(schedule);
    /* model FLOPs are 6 x products + 3 x attention forwards; solve for one attention forward */
    double products = (double)tdm_model_active_matmul_parameters(model) * tokens;
    double attention = (tdm_model_flops(schedule) - 6 * products) / 3;
    return (struct tdm_nest_cost){
        .stored_bytes_per_token = (double)simulation->stored_peak_bytes / tokens,
        .attention = simulation->attention_forward_flops / attention,
        .linear = simulation->product_flops / products,
    };
}
