/* SPDX-License-Identifier: Apache-2.0 */
/* Remedies are settings, tried one by one, then one on top of the other. */
#include "methods/remedy.h"

#include "base/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SUGGESTED 3u

/* From those that cost least time or change least of what is learnt to those that cost more. */
static const struct {
    const char *key, *value;
    const char
        *words; /* as Hugging Face's TrainingArguments, PyTorch or DeepSpeed's config call it */
} remedies[] = {
    {"attention", "sdpa", "attn_implementation: sdpa"},
    {"optimizer", "adamw-fused", "optim: adamw_torch_fused"},
    {"logits", "hf", "drop the model's output before the backward"},
    {"logits", "fused", "use_liger_kernel: true"},
    {"allocator_conf", "expandable_segments:True", "PYTORCH_ALLOC_CONF=expandable_segments:True"},
    {"gradient_as_bucket_view", "yes", "gradient_as_bucket_view=True"},
    {"reshard_after_forward", "yes", "reshard_after_forward=True"},
    {"reduce_bucket_size", "5e7", "\"reduce_bucket_size\": 5e7"},
    {"sub_group_size", "1e8", "\"sub_group_size\": 1e8"},
    {"stage3_max_live_parameters", "1e8", "\"stage3_max_live_parameters\": 1e8"},
    {"stage3_max_reuse_distance", "1e8", "\"stage3_max_reuse_distance\": 1e8"},
    {"overlap_comm", "false", "\"overlap_comm\": false"},
    {"use_distributed_optimizer", "yes", "--use-distributed-optimizer"},
    {"sequence_parallel", "yes", "--sequence-parallel"},
    {"recompute_granularity", "full",
     "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
    {"sl_loss", "on", "--sp burst_sl_loss"},
    {"sharding", "fsdp", "fully_shard over all ranks"},
    {"spzero", "on", "--spzero"},
    {"grad_ckpt", "seq-wise", "--sp burst_sl_ckpt in place of burst_whole_ckpt"},
    {"grad_ckpt", "none", "--sp burst, which keeps no attention output"},
    {"use_checkpoint", "on", "use_checkpoint=True"},
    {"offload", "on", "--offload"},
    {"checkpointing", "on", "gradient_checkpointing: true"},
    {"offload_optimizer", "cpu", "\"offload_optimizer\": {\"device\": \"cpu\"}"},
    {"offload_param", "cpu", "\"offload_param\": {\"device\": \"cpu\"}"},
    {"layer_checkpoint", "yes", "grad_ckpt: true"},
    {"kv_offload", "yes", "cpu_offload: 2"},
    {"chunk", "1K", "chunks of 1,024 tokens"},
    {"budget", "8K", "page_budget: 64"},
    {"weights_dtype", "bf16", "weights in bf16"},
    {"lora_rank", "16", "LoRA of rank 16"},
};

#define REMEDIES (sizeof(remedies) / sizeof(remedies[0]))

/* A size that is already as small. */
static bool is_smaller(const char *now, const char *value)
{
    char *now_end, *value_end;
    double is = strtod(now, &now_end), would_be = strtod(value, &value_end);
    return strchr(value, 'e') != NULL && *value_end == '\0' && *now_end == '\0' && is <= would_be;
}

/* Changes a setting; false if the method has no such key, or it is so already. An optimizer other than
 * foreach AdamW is not changed. */
static bool change(const struct tdm_method *method, const struct tdm_method_choices *choices,
                   size_t r, struct tdm_method_settings *settings)
{
    const struct tdm_method_key *key;
    size_t k = 0;
    while ((key = tdm_method_key(method, k)) != NULL && strcmp(key->name, remedies[r].key) != 0)
        k++;
    if (key == NULL)
        return false;
    const char *now = choices->said[k] != NULL ? choices->said[k] : key->assumed;
    if (strcmp(now, remedies[r].value) == 0 || is_smaller(now, remedies[r].value) ||
        (strcmp(key->name, "optimizer") == 0 && strcmp(now, "adamw-foreach") != 0) ||
        (strcmp(remedies[r].value, "hf") == 0 && strcmp(now, "hf-held") != 0) ||
        (strcmp(remedies[r].value, "fused") == 0 && strncmp(now, "hf", 2) != 0) ||
        (strcmp(key->name, "attention") == 0 && strcmp(now, "eager") != 0 &&
         strcmp(now, "materialized") != 0) ||
        (strcmp(key->name, "checkpointing") == 0 && strcmp(now, "off") != 0) ||
        (strcmp(key->name, "chunk") == 0 && settings->chunk.tokens <= 1024) ||
        (strcmp(key->name, "budget") == 0 && settings->chunk.budget > 0) ||
        (strcmp(remedies[r].value, "seq-wise") == 0 && strcmp(now, "full") != 0) ||
        (strcmp(key->name, "lora_rank") == 0 && settings->torch.lora_rank > 0))
        return false;
    return key->read(key, remedies[r].value, settings, NULL) == TDM_OK;
}

struct trial {
    const struct tdm_model *model;
    const struct tdm_machine *machine;
    double margin;
    struct tdm_method_prediction prediction;
};

static enum tdm_status try(struct trial *t, const struct tdm_method_settings *settings, bool *fits,
                           struct tdm_error *err)
{
    struct tdm_method_settings checked = *settings;
    *fits = false;
    if (tdm_method_check(t->model, &checked, NULL) != TDM_OK)
        return TDM_OK; /* it cannot be run so */
    enum tdm_status status =
        tdm_method_predict(t->model, t->machine, &checked, t->margin, &t->prediction, err);
    *fits = status == TDM_OK && t->prediction.fits;
    return status;
}

static void add(char *out, const char *join, const char *words, const struct trial *t)
{
    char bytes[TDM_FORMAT_SIZE];
    size_t used = strlen(out);
    const struct tdm_method_step *step = &t->prediction.steps[t->prediction.highest];
    snprintf(out + used, TDM_REMEDY_TEXT - used, "%s%s (%s)", used == 0 ? "it fits with " : join,
             words, tdm_format_bytes(step->used_bytes, bytes));
}

/* The longest context in steps of 1K tokens; 0: not even 1K. */
static enum tdm_status longest(struct trial *t, struct tdm_method_settings settings,
                               uint64_t *tokens, struct tdm_error *err)
{
    uint64_t low = 0, high = settings.torch.tokens / 1024;
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        bool fits;
        settings.torch.tokens = middle * 1024;
        status = try(t, &settings, &fits, err);
        if (fits)
            low = middle;
        else
            high = middle;
    }
    *tokens = low * 1024;
    return status;
}

static enum tdm_status try_singles(struct trial *t, const struct tdm_method *method,
                                   const struct tdm_method_settings *settings,
                                   const struct tdm_method_choices *choices, char *out,
                                   struct tdm_error *err)
{
    unsigned suggested = 0;
    for (size_t r = 0; r < REMEDIES && suggested < MOST_SUGGESTED; r++) {
        struct tdm_method_settings changed = *settings;
        bool fits;
        if (!change(method, choices, r, &changed))
            continue;
        enum tdm_status status = try(t, &changed, &fits, err);
        if (status != TDM_OK)
            return status;
        if (!fits)
            continue;
        add(out, ", with ", remedies[r].words, t);
        suggested++;
    }
    return TDM_OK;
}

static enum tdm_status try_together(struct trial *t, const struct tdm_method *method,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_method_choices *choices, char *out,
                                    struct tdm_error *err)
{
    struct tdm_method_settings changed = *settings;
    char words[TDM_REMEDY_TEXT / 2] = "";
    for (size_t r = 0; r < REMEDIES; r++) {
        bool fits;
        if (!change(method, choices, r, &changed))
            continue;
        size_t used = strlen(words);
        snprintf(words + used, sizeof(words) - used, "%s%s", used == 0 ? "" : " and ",
                 remedies[r].words);
        enum tdm_status status = try(t, &changed, &fits, err);
        if (status != TDM_OK)
            return status;
        if (fits) {
            add(out, "", words, t);
            return TDM_OK;
        }
    }
    return TDM_OK;
}

enum tdm_status tdm_method_remedies(const struct tdm_method *method, const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_method_choices *choices, double margin,
                                    char out[TDM_REMEDY_TEXT], struct tdm_error *err)
{
    struct trial t = {.model = model, .machine = machine, .margin = margin};
    uint64_t tokens = 0;
    out[0] = '\0';
    enum tdm_status status = try_singles(&t, method, settings, choices, out, err);
    if (status == TDM_OK && out[0] == '\0')
        status = try_together(&t, method, settings, choices, out, err);
    if (status == TDM_OK)
        status = longest(&t, *settings, &tokens, err);
    if (status == TDM_OK && tokens > 0) {
        char text[TDM_FORMAT_SIZE];
        size_t used = strlen(out);
        snprintf(out + used, TDM_REMEDY_TEXT - used, "%sas it is, %s tokens fit",
                 used == 0 ? "" : "; ", tdm_format_tokens(tokens, text));
    }
    return status;
}
