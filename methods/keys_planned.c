/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of tidemark's own schedule. The planner reads them as it reads the options of plan. */
#include "methods/key.h"

#include <string.h>

static enum tdm_status read_no_lora(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    (void)key;
    (void)settings;
    if (strcmp(value, "0") == 0)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--set lora_rank: tidemark trains all weights, and has no adapters");
    return tdm_hint(err, "all other methods take it; of one GPU, oomb and parallel");
}

const struct tdm_method_key tdm_keys_planned[] = {
    {"objective", "time|memory", "time",
     "the fastest schedule that fits, or the one that takes the least memory of the device",
     .read = NULL},
    {"optimizer", "adamw|adamw-bf16-moments|adamw-bf16|sgd|none", "adamw",
     "as plan --optimizer; adamw-bf16: all states in bf16, as torch.optim has them of bf16 weights",
     .read = NULL, .compared = "adamw-bf16"},
    {"budget", "dense|TOKENS", "dense", "as plan --budget: sparse attention", .read = NULL},
    {"memory", "all|SIZE", "all", "of the device; all: but for the margin", .read = NULL},
    {"host_memory", "all|SIZE", "all", "of the host; all: what a server of such cards has",
     .read = NULL},
    {"lora_rank", "0", NULL, "tidemark has no adapters", .read = read_no_lora},
    {.name = NULL},
};
