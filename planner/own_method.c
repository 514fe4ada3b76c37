/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a method become the planner's words. */
#include "planner/own_method.h"

struct tdm_own_words tdm_own_words(const struct tdm_method_settings *settings,
                                   const struct tdm_method_choices *choices, const char *model,
                                   const char *machine, double margin)
{
    const struct tdm_method *method = settings->method;
    return (struct tdm_own_words){
        .model = model,
        .machine = machine,
        .context = settings->torch.tokens,
        .batch = settings->torch.batch,
        .margin = margin,
        .objective = tdm_method_value(method, choices, "objective"),
        .optimizer = tdm_method_value(method, choices, "optimizer"),
        .budget = tdm_method_value(method, choices, "budget"),
        .memory = tdm_method_value(method, choices, "memory"),
        .host_memory = tdm_method_value(method, choices, "host_memory"),
        .pairs = choices->others,
        .pair_count = choices->other_count,
    };
}
