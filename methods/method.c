/* SPDX-License-Identifier: Apache-2.0 */
/* The methods and their keys. */
#include "methods/method.h"

#include "base/units.h"

#include <stdio.h>
#include <string.h>

#define FIELD(name) offsetof(struct tdm_method_settings, name)
#define RANK_MOST 65536u

/* Number of the value in "a|b|c", or -1. */
static int choice(const char *values, const char *value)
{
    size_t length = strlen(value);
    for (int number = 0; values != NULL; number++) {
        size_t span = strcspn(values, "|");
        if (span == length && memcmp(values, value, span) == 0)
            return number;
        values = values[span] == '|' ? values + span + 1 : NULL;
    }
    return -1;
}

static enum tdm_status bad_value(const struct tdm_method_key *key, const char *value,
                                 struct tdm_error *err)
{
    return tdm_fail(err, TDM_USAGE, "--set %s: \"%.64s\" is not known; %s is due", key->name, value,
                    key->values);
}

/* The order of the values is that of the enum. */
static enum tdm_status read_choice(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    int number = choice(key->values, value);
    if (number < 0)
        return bad_value(key, value, err);
    *(unsigned *)(void *)((char *)settings + key->field) = (unsigned)number;
    return TDM_OK;
}

/* The second of two values is true. */
static enum tdm_status read_switch(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    int number = choice(key->values, value);
    if (number < 0)
        return bad_value(key, value, err);
    *(bool *)(void *)((char *)settings + key->field) = number == 1;
    return TDM_OK;
}

static enum tdm_status read_rank(const struct tdm_method_key *key, const char *value,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    (void)key;
    return tdm_parse_count(value, "--set lora_rank", 0, RANK_MOST, &settings->torch.lora_rank, err);
}

/* Names with commas or spaces between them, or all. */
static enum tdm_status read_targets(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    uint32_t targets = 0;
    if (strcmp(value, "all") == 0)
        targets = (1u << TDM_PROJECTIONS) - 1;
    else
        for (const char *name = value; *name != '\0';) {
            size_t span = strcspn(name, ", ");
            unsigned p = 0;
            while (p < TDM_PROJECTIONS && (strlen(tdm_projection_name(p)) != span ||
                                           memcmp(name, tdm_projection_name(p), span) != 0))
                p++;
            if (p == TDM_PROJECTIONS)
                return bad_value(key, value, err);
            targets |= 1u << p;
            name += span + strspn(name + span, ", ");
        }
    if (targets == 0)
        return bad_value(key, value, err);
    settings->torch.lora_targets = targets;
    return TDM_OK;
}

static enum tdm_status read_step(const struct tdm_method_key *key, const char *value,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "all") != 0 && (strlen(value) != 1 || *value < '1' || *value > '3'))
        return bad_value(key, value, err);
    settings->step = *value == 'a' ? 0 : (uint32_t)(*value - '0');
    return TDM_OK;
}

/* Keys of all that PyTorch runs. */
#define TORCH_KEYS                                                                                      \
    {"checkpointing", "off|on|on-reentrant",                                                            \
     "off",           "gradient checkpointing of every layer; on: use_reentrant=False",                 \
     read_choice,     FIELD(torch.checkpointing)},                                                      \
        {"attention",                                                                                   \
         "sdpa|sdpa-flash|eager",                                                                       \
         "sdpa",                                                                                        \
         "attn_implementation; sdpa-flash: without cuDNN's kernel; eager: scores in memory",            \
         read_choice,                                                                                   \
         FIELD(torch.attention)},                                                                       \
        {"optimizer",     "none|adamw-fused|adamw-foreach|sgd|sgd-momentum",                            \
         "adamw-foreach", "torch.optim, states in the dtype of the weights; none: no step is made",     \
         read_choice,     FIELD(torch.optimizer)},                                                      \
        {"weights_dtype", "bf16|fp32",                                                                  \
         "bf16",          "fp32: the forward runs under autocast to bf16",                              \
         read_switch,     FIELD(torch.fp32_weights)},                                                   \
        {"logits",                                                                                      \
         "hf|hf-held|base|last",                                                                        \
         "hf",                                                                                          \
         "loss as transformers computes it, output dropped or held; no LM head; of last tokens alone",  \
         read_choice,                                                                                   \
         FIELD(torch.logits)},                                                                          \
        {"allocator_conf", "default|expandable_segments:True", "default", "PYTORCH_ALLOC_CONF",         \
         read_switch,      FIELD(expandable_segments)},                                                 \
        {"grads",                                                                                       \
         "none|held",                                                                                   \
         NULL,                                                                                          \
         "gradients at the start of a step: zero_grad(set_to_none=True) after every step, or added to", \
         read_choice,                                                                                   \
         FIELD(torch.grads)},                                                                           \
        {"lora_rank", "N", "0", "adapters of that rank; all else is frozen; 0: no LoRA",                \
         read_rank,   0},                                                                               \
        {"lora_targets", "all|q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",                 \
         "all",          "projections with adapters",                                                   \
         read_targets,   0},                                                                            \
        {"lora",      "bf16|peft",                                                                      \
         "bf16",      "adapters in the dtype of the weights, or by the peft library: in fp32",          \
         read_switch, FIELD(torch.peft)},                                                               \
        {"use_cache",           "no|yes", "no", "the forward makes a KV cache", read_switch,            \
         FIELD(torch.use_cache)},                                                                       \
    {                                                                                                   \
        "step", "1|2|3|all", "all", "the step that counts; later ones are as the third",                \
            read_step, 0                                                                                \
    }

static const struct tdm_method_key parallel_keys[] = {TORCH_KEYS, {.name = NULL}};

static const struct tdm_method_key ddp_keys[] = {
    {"gradient_as_bucket_view", "no|yes", "no",
     "gradients live in the buckets of DDP, and not beside them", read_switch,
     FIELD(torch.bucket_views)},
    TORCH_KEYS,
    {.name = NULL},
};

static const struct tdm_method_key fsdp_keys[] = {
    {"reshard_after_forward", "no|yes", "yes",
     "parameters are gathered for the forward, and again for the backward", read_switch,
     FIELD(torch.reshard)},
    TORCH_KEYS,
    {.name = NULL},
};

static const struct tdm_method methods[] = {
    {"parallel", "the whole sequence at once on one GPU: PyTorch and Hugging Face transformers",
     TDM_SHARING_NONE, parallel_keys},
    {"ddp", "the same on every GPU: DistributedDataParallel", TDM_SHARING_DDP, ddp_keys},
    {"zero1", "DistributedDataParallel with ZeroRedundancyOptimizer: optimizer states are divided",
     TDM_SHARING_ZERO1, ddp_keys},
    {"fsdp",
     "fully_shard on every layer and the whole: parameters, gradients and states are shards",
     TDM_SHARING_FSDP, fsdp_keys},
    {.name = NULL},
};

const struct tdm_method *tdm_methods(void)
{
    return methods;
}

enum tdm_status tdm_method_find(const char *name, const struct tdm_method **method,
                                struct tdm_error *err)
{
    char list[256] = "";
    for (const struct tdm_method *m = methods; m->name != NULL; m++) {
        size_t used = strlen(list);
        if (strcmp(m->name, name) == 0) {
            *method = m;
            return TDM_OK;
        }
        snprintf(list + used, sizeof(list) - used, "%s%s", used == 0 ? "" : ", ", m->name);
    }
    tdm_fail(err, TDM_USAGE, "method \"%.64s\" is not known", name);
    return tdm_hint(err, "methods: %s", list);
}

enum tdm_status tdm_method_check_gpus(const struct tdm_method *method, uint64_t gpus,
                                      struct tdm_error *err)
{
    bool one = method->sharing == TDM_SHARING_NONE;
    if (one == (gpus == 1))
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--gpus: method %s runs on %s", method->name,
                    one ? "one GPU" : "two or more");
}

static enum tdm_status unknown_key(const struct tdm_method *method, const char *pair,
                                   struct tdm_error *err)
{
    char list[512] = "";
    for (const struct tdm_method_key *key = method->keys; key->name != NULL; key++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", used == 0 ? "" : ", ", key->name);
    }
    if (strchr(pair, '=') == NULL)
        tdm_fail(err, TDM_USAGE, "--set: \"%.64s\" is not KEY=VALUE", pair);
    else
        tdm_fail(err, TDM_USAGE, "--set: method %s has no key \"%.*s\"", method->name,
                 (int)strcspn(pair, "="), pair);
    return tdm_hint(err, "keys: %s", list);
}

enum tdm_status tdm_method_apply(const struct tdm_method *method, const char *const *pairs,
                                 size_t count, struct tdm_method_settings *settings,
                                 struct tdm_method_choices *choices, struct tdm_error *err)
{
    memset(choices, 0, sizeof(*choices));
    for (size_t i = 0; i < count; i++) {
        size_t k = 0, span = strcspn(pairs[i], "=");
        while (method->keys[k].name != NULL && (strlen(method->keys[k].name) != span ||
                                                memcmp(method->keys[k].name, pairs[i], span) != 0))
            k++;
        if (method->keys[k].name == NULL || pairs[i][span] != '=')
            return unknown_key(method, pairs[i], err);
        if (choices->said[k] != NULL)
            return tdm_fail(err, TDM_USAGE, "--set: \"%s\" is given twice", method->keys[k].name);
        choices->said[k] = pairs[i] + span + 1;
    }
    settings->torch.grads = TDM_GRADS_UNSAID;
    settings->torch.sharing = method->sharing;
    for (size_t k = 0; method->keys[k].name != NULL; k++) {
        const struct tdm_method_key *key = &method->keys[k];
        const char *value = choices->said[k] != NULL ? choices->said[k] : key->assumed;
        enum tdm_status status = value == NULL ? TDM_OK : key->read(key, value, settings, err);
        if (status != TDM_OK)
            return status;
    }
    if (method->sharing == TDM_SHARING_FSDP && settings->torch.lora_rank > 0)
        return tdm_fail(err, TDM_USAGE, "--set lora_rank: method %s with LoRA is not known",
                        method->name);
    return TDM_OK;
}
