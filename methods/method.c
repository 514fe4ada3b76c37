/* SPDX-License-Identifier: Apache-2.0 */
/* The methods: tables of keys, presets and checks. */
#include "methods/method.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MANY_GPUS 65536u

static void share_by_ddp(struct tdm_method_settings *settings)
{
    settings->torch.sharing = TDM_SHARING_DDP;
}

static void share_by_zero1(struct tdm_method_settings *settings)
{
    settings->torch.sharing = TDM_SHARING_ZERO1;
}

static void share_by_fsdp(struct tdm_method_settings *settings)
{
    settings->torch.sharing = TDM_SHARING_FSDP;
}

static enum tdm_status check_fsdp(const struct tdm_model *model,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    (void)model;
    if (settings->torch.lora_rank > 0)
        return tdm_fail(err, TDM_USAGE, "--set lora_rank: method %s with LoRA is not known",
                        settings->method->name);
    return TDM_OK;
}

static const struct tdm_method_key *const torch_keys[] = {tdm_keys_torch, NULL};
static const struct tdm_method_key *const ddp_keys[] = {tdm_keys_ddp, tdm_keys_torch, NULL};
static const struct tdm_method_key *const fsdp_keys[] = {tdm_keys_fsdp, tdm_keys_torch, NULL};

static const struct tdm_method methods[] = {
    {.name = "parallel",
     .summary = "the whole sequence at once on one GPU: PyTorch and Hugging Face transformers",
     .least_gpus = 1,
     .most_gpus = 1,
     .keys = torch_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost},
    {.name = "ddp",
     .summary = "the same on every GPU: DistributedDataParallel",
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = ddp_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost,
     .preset = share_by_ddp},
    {.name = "zero1",
     .summary =
         "DistributedDataParallel with ZeroRedundancyOptimizer: optimizer states are divided",
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = ddp_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost,
     .preset = share_by_zero1},
    {.name = "fsdp",
     .summary =
         "fully_shard on every layer and the whole: parameters, gradients and states are shards",
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = fsdp_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost,
     .preset = share_by_fsdp,
     .check = check_fsdp},
    {.name = "ring",
     .summary = "ring attention: a sequence over all GPUs, keys and values go round",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_ring_keys,
     .system = &tdm_context_system,
     .cost = tdm_context_cost,
     .preset = tdm_ring_preset,
     .check = tdm_context_check},
    {.name = "double-ring",
     .summary = "LoongTrain's ring of nodes around rings of GPUs, zigzag",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_double_ring_keys,
     .system = &tdm_context_system,
     .cost = tdm_context_cost,
     .preset = tdm_double_ring_preset,
     .check = tdm_context_check},
    {.name = "ulysses",
     .summary = "DeepSpeed-Ulysses: all-to-all of a sequence's tokens and heads around attention",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_ulysses_keys,
     .system = &tdm_context_system,
     .cost = tdm_context_cost,
     .preset = tdm_ulysses_preset,
     .check = tdm_context_check},
    {.name = "usp",
     .summary = "unified sequence parallelism: Ulysses among some GPUs, rings across them",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_usp_keys,
     .system = &tdm_context_system,
     .cost = tdm_context_cost,
     .preset = tdm_usp_preset,
     .check = tdm_context_check},
    {.name = "burst",
     .summary =
         "BurstEngine: BurstAttention, selective checkpointing, fused head and loss, on BMTrain",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_burst_keys,
     .system = &tdm_burst_system,
     .cost = tdm_burst_cost,
     .preset = tdm_burst_preset,
     .check = tdm_burst_check},
    {.name = NULL},
};

const struct tdm_method *tdm_methods(void)
{
    return methods;
}

enum tdm_status tdm_method_find(const char *name, const struct tdm_method **method,
                                struct tdm_error *err)
{
    char list[512] = "";
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

/* Does a table before number `table` have it? */
static bool is_hidden(const struct tdm_method *method, size_t table, const char *name)
{
    for (size_t before = 0; before < table; before++)
        for (const struct tdm_method_key *key = method->keys[before]; key->name != NULL; key++)
            if (strcmp(key->name, name) == 0)
                return true;
    return false;
}

const struct tdm_method_key *tdm_method_key(const struct tdm_method *method, size_t number)
{
    for (size_t table = 0; method->keys[table] != NULL; table++)
        for (const struct tdm_method_key *key = method->keys[table]; key->name != NULL; key++)
            if (!is_hidden(method, table, key->name) && number-- == 0)
                return key;
    return NULL;
}

static enum tdm_status unknown_key(const struct tdm_method *method, const char *pair,
                                   struct tdm_error *err)
{
    const struct tdm_method_key *key;
    char list[512] = "";
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++) {
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

static enum tdm_status note_said(const struct tdm_method *method, const char *pair,
                                 struct tdm_method_choices *choices, struct tdm_error *err)
{
    const struct tdm_method_key *key;
    size_t k = 0, span = strcspn(pair, "=");
    while ((key = tdm_method_key(method, k)) != NULL &&
           (strlen(key->name) != span || memcmp(key->name, pair, span) != 0))
        k++;
    if (key == NULL || pair[span] != '=')
        return unknown_key(method, pair, err);
    if (choices->said[k] != NULL)
        return tdm_fail(err, TDM_USAGE, "--set: \"%s\" is given twice", key->name);
    choices->said[k] = pair + span + 1;
    return TDM_OK;
}

enum tdm_status tdm_method_apply(const struct tdm_method *method, const char *const *pairs,
                                 size_t count, struct tdm_method_settings *settings,
                                 struct tdm_method_choices *choices, struct tdm_error *err)
{
    const struct tdm_method_key *key;
    enum tdm_status status = TDM_OK;
    memset(choices, 0, sizeof(*choices));
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        status = note_said(method, pairs[i], choices, err);
    settings->method = method;
    settings->torch.grads = TDM_GRADS_UNSAID;
    settings->communicators = method->most_gpus > 1;
    if (method->preset != NULL)
        method->preset(settings);
    for (size_t k = 0; status == TDM_OK && (key = tdm_method_key(method, k)) != NULL; k++) {
        const char *value = choices->said[k] != NULL ? choices->said[k] : key->assumed;
        status = value == NULL ? TDM_OK : key->read(key, value, settings, err);
    }
    return status;
}

enum tdm_status tdm_method_check(const struct tdm_model *model,
                                 struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_method *method = settings->method;
    uint64_t gpus = settings->torch.ranks;
    if (gpus < method->least_gpus)
        return tdm_fail(err, TDM_USAGE, "--gpus: method %s runs on %" PRIu64 " or more",
                        method->name, method->least_gpus);
    if (gpus > method->most_gpus)
        return tdm_fail(err, TDM_USAGE, "--gpus: method %s runs on %s", method->name,
                        method->most_gpus == 1 ? "one GPU" : "fewer");
    return method->check == NULL ? TDM_OK : method->check(model, settings, err);
}
