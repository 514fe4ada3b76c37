/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of a nest, from what the simulator counted. */
#include "planner/nest_cost.h"

#include "schedule/cost.h"

struct tdm_nest_cost tdm_nest_cost(const struct tdm_schedule *schedule,
                                   const struct tdm_simulation *simulation)
{
    const struct tdm_model *model = schedule->model;
    double tokens = (double)tdm_schedule_tokens(schedule);
    /* what 6 and 3 count once: model FLOPs are 6 x products and 3 x attention forwards */
    double products = (double)tdm_model_active_matmul_parameters(model) * tokens;
    double attention = (tdm_model_flops(schedule) - 6 * products) / 3;
    return (struct tdm_nest_cost){
        .stored_bytes_per_token = (double)simulation->stored_peak_bytes / tokens,
        .attention = simulation->attention_forward_flops / attention,
        .linear = simulation->product_flops / products,
    };
}
