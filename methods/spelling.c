/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in the spelling of other systems: "gradient_checkpointing: true" is checkpointing=on. */
#include "methods/method.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Other names of keys. A row with values applies to that value only; a row without keeps the value.
 */
static const struct alias {
    const char *name, *value; /* as the user writes it */
    const char *key, *stands_for;
} aliases[] = {
    /* Hugging Face's TrainingArguments */
    {"gradient_checkpointing", NULL, "checkpointing", NULL},
    {"attn_implementation", "flash_attention_2", "attention", "flash"},
    {"attn_implementation", NULL, "attention", NULL},
    {"optim", "adamw_torch", "optimizer", "torch_adam"}, /* of DeepSpeed's methods */
    {"optim", "adamw_torch_fused", "optimizer", "torch_adam_fused"},
    {"optimizer", "adamw_torch", "optimizer", "torch_adam"},
    {"optimizer", "adamw_torch_fused", "optimizer", "torch_adam_fused"},
    {"optim", "adamw_torch", "optimizer", "adamw-foreach"},
    {"optim", "adamw_torch_fused", "optimizer", "adamw-fused"},
    {"optimizer", "adamw_torch", "optimizer", "adamw-foreach"},
    {"optimizer", "adamw_torch_fused", "optimizer", "adamw-fused"},
    {"optimizer", "adamw", "optimizer",
     "adamw-foreach"}, /* torch.optim.AdamW chooses it on a GPU */
    {"optimizer", "adamw_bnb_8bit", "optimizer", "adamw-8bit"},
    {"optim", "adamw_bnb_8bit", "optimizer", "adamw-8bit"},
    /* torchao's, which the methods of DeepSpeed have as bitsandbytes' */
    {"optim", "adamw_torch_8bit", "optimizer", "ao-adamw-8bit"},
    {"optimizer", "adamw_torch_8bit", "optimizer", "ao-adamw-8bit"},
    {"optim", "adamw_torch_8bit", "optimizer", "adamw-8bit"},
    {"optimizer", "adamw_torch_8bit", "optimizer", "adamw-8bit"},
    {"optimizer", "torchao.optim.AdamW8bit", "optimizer", "ao-adamw-8bit"},
    {"optim", "adamw_torch_4bit", "optimizer", "adamw-4bit"},
    {"optimizer", "adamw_torch_4bit", "optimizer", "adamw-4bit"},
    {"optimizer", "torchao.optim.AdamW4bit", "optimizer", "adamw-4bit"},
    {"optimizer", "AdamW4bit", "optimizer", "adamw-4bit"},
    {"optimizer", "ao_adamw_4bit", "optimizer", "adamw-4bit"}, /* Axolotl's names */
    {"optimizer", "ao_adamw_8bit", "optimizer", "ao-adamw-8bit"},
    {"optimizer", "ao_adamw_8bit", "optimizer", "adamw-8bit"},
    {"optimizer", "ao_adamw_fp8", "optimizer", "adamw-fp8"},
    {"optim", "ao_adamw_4bit", "optimizer", "adamw-4bit"},
    {"optim", "ao_adamw_8bit", "optimizer", "ao-adamw-8bit"},
    {"optim", "ao_adamw_8bit", "optimizer", "adamw-8bit"},
    {"optim", "ao_adamw_fp8", "optimizer", "adamw-fp8"},
    {"optimizer", "torchao.optim.AdamWFp8", "optimizer", "adamw-fp8"},
    {"optimizer", "AdamWFp8", "optimizer", "adamw-fp8"},
    {"optimizer", "AdamW8bit", "optimizer", "adamw-8bit"}, /* bitsandbytes' too */
    {"optimizer", "PagedAdamW8bit", "optimizer", "paged-adamw-8bit"},
    {"optimizer", "PagedAdamW", "optimizer", "paged-adamw-32bit"},
    {"optim", "paged_adamw", "optimizer", "paged-adamw-32bit"},
    {"optim", "lion", "optimizer", "lion-32bit"},
    {"optim", "galore_adamw", "optimizer", "galore"},
    {"optimizer", "galore_adamw", "optimizer", "galore"},
    {"optim", "galore_adamw_layerwise", "optimizer", "galore"}, /* and optimizer_in_bwd */
    {"optimizer", "galore_adamw_layerwise", "optimizer", "galore"},
    {"optim", "galore_adamw_8bit_layerwise", "optimizer", "galore-8bit"},
    {"optimizer", "galore_adamw_8bit_layerwise", "optimizer", "galore-8bit"},
    {"optim", "galore_adamw_8bit", "optimizer", "galore-8bit"},
    {"optimizer", "galore_adamw_8bit", "optimizer", "galore-8bit"},
    {"bf16", "true", "autocast", "bf16"},
    {"bf16", "false", "autocast", "no"},
    {"fp16", "true", "weights_dtype", "fp32"},      /* autocast to two bytes, with a GradScaler */
    {"fp16", "true", "grad_reduce_in_bf16", "yes"}, /* Megatron-LM's buffers have this dtype */
    {"clip_grad_norm", NULL, "max_grad_norm", NULL},
    {"gradient_clipping", NULL, "max_grad_norm", NULL}, /* DeepSpeed's config */
    {"clip_grad", NULL, "max_grad_norm", NULL},         /* Megatron-LM's, which has it itself */
    {"max_grad_norm", NULL, "clip_grad", NULL},
    {"gradient_accumulation_steps", NULL, "num_microbatches", NULL}, /* of Megatron-LM */
    {"optim", NULL, "optimizer", NULL},
    {"torch_compile", "true", "compile", "all"},
    {"torch_compile", "false", "compile", "no"},
    {"compile", "true", "compile", "all"}, /* torchtune's */
    {"use_liger_kernel", "true", "logits", "fused"},
    {"use_liger_kernel", "false", "logits", "hf"},
    {"use_liger", "true", "logits", "fused"}, /* of TRL to 0.15, and of Liger's examples */
    {"use_liger", "false", "logits", "hf"},
    {"enable_activation_checkpointing", NULL, "checkpointing", NULL}, /* torchtune's */
    {"activation_checkpointing", NULL, "checkpointing", NULL},        /* NeMo Automodel's */
    {"pure_bf16", "true", "weights_dtype", "bf16"},                   /* LLaMA-Factory's */
    {"activation_checkpoint_cpu_offload", "true", "checkpoint_offload", "alst"},
    {"activation_checkpoint_cpu_offload", "false", "checkpoint_offload", "no"},
    {"activation_offloading", "true", "checkpoint_offload", "yes"}, /* TRL's, Axolotl's */
    {"activation_offloading", "false", "checkpoint_offload", "no"},
    {"enable_activation_offloading", "true", "checkpoint_offload", "yes"}, /* torchtune's */
    {"enable_activation_offloading", "false", "checkpoint_offload", "no"},
    {"activation_checkpointing_offload", NULL, "checkpoint_offload", NULL},
    {"fsdp_activation_checkpointing_offload", NULL, "checkpoint_offload", NULL},
    /* vLLM and SGLang */
    {"tp", NULL, "tensor_parallel_size", NULL},
    {"pp", NULL, "pipeline_parallel_size", NULL},
    {"tp", NULL, "tp_size", NULL},
    {"pp", NULL, "pp_size", NULL},
    {"tensor_parallel_size", NULL, "tp_size", NULL},
    {"pipeline_parallel_size", NULL, "pp_size", NULL},
    {"quantization", "gptq_marlin", "quantization", "gptq"},
    {"quantization", "awq_marlin", "quantization", "awq"},
    {"quantization", "modelopt_fp4", "quantization", "nvfp4"},
    {"quantization", "modelopt", "quantization", "fp8"},
    {"kv_cache_dtype", "fp8_e4m3", "kv_cache_dtype", "fp8"},
    {"kv_cache_dtype", "fp8_e5m2", "kv_cache_dtype", "fp8"},
    {"kv_cache_dtype", "bfloat16", "kv_cache_dtype", "auto"},
    /* TRL's ModelConfig and SFTConfig, and Axolotl */
    {"dtype", "float32", "weights_dtype", "fp32"},
    {"dtype", "bfloat16", "weights_dtype", "bf16"},
    {"dtype", "float16", "weights_dtype", "bf16"}, /* which is as wide */
    {"torch_dtype", "float16", "weights_dtype", "bf16"},
    {"torch_dtype", "float32", "weights_dtype", "fp32"},
    {"torch_dtype", "bfloat16", "weights_dtype", "bf16"},
    {"attn_implementation", "flash_attention_3", "attention", "flash"},
    {"flash_attention", "true", "attention", "flash"},
    {"sdp_attention", "true", "attention", "sdpa"},
    {"eager_attention", "true", "attention", "eager"},
    {"loss_type", "nll", "logits", "hf"},
    {"loss_type", "chunked_nll", "logits", "chunked"},
    {"chunked_cross_entropy", "true", "logits", "chunked"},
    {"liger_fused_linear_cross_entropy", "true", "logits", "fused"},
    {"cut_cross_entropy", "true", "logits", "cut"},
    {"lora_targets", "all-linear", "lora_targets", "all"},
    {"lora_target_modules", "all-linear", "lora_targets", "all"},
    {"lora_target_modules", NULL, "lora_targets", NULL},
    {"lora_target_linear", "true", "lora_targets", "all"},
    {"lora_use_dora", NULL, "use_dora", NULL},
    {"peft_use_dora", NULL, "use_dora", NULL},
    {"peft_use_rslora", NULL, "use_rslora", NULL},
    {"lora_modules_to_save", NULL, "modules_to_save", NULL},
    {"use_bnb_nested_quant", NULL, "double_quantization", NULL},
    /* PyTorch */
    {"PYTORCH_ALLOC_CONF", NULL, "allocator_conf", NULL},
    {"PYTORCH_CUDA_ALLOC_CONF", NULL, "allocator_conf", NULL},
    /* accelerate and torchtitan */
    {"fsdp_offload_params", "true", "offload_policy", "cpu"},
    {"fsdp_offload_params", "false", "offload_policy", "none"},
    {"offload_params", "true", "offload_policy", "cpu"}, /* fsdp_config's */
    {"offload_params", "false", "offload_policy", "none"},
    {"fsdp_cpu_offload", "true", "offload_policy", "cpu"}, /* torchtune's */
    {"fsdp_cpu_offload", "false", "offload_policy", "none"},
    {"cpu_offload", "true", "offload_policy", "cpu"}, /* FullyShardedDataParallel's argument */
    {"cpu_offload", "false", "offload_policy", "none"},
    {"enable_cpu_offload", "true", "offload_policy", "cpu"},
    {"data_parallel_replicate_degree", NULL, "dp_replicate_size", NULL},
    {"recipe_name", NULL, "float8_recipe", NULL}, /* torchao's Float8LinearConfig */
    /* PEFT's LoraConfig */
    {"lora_r", NULL, "lora_rank", NULL},
    {"r", NULL, "lora_rank", NULL},
    {"target_modules", "all-linear", "lora_targets", "all"},
    {"target_modules", NULL, "lora_targets", NULL},
    /* BitsAndBytesConfig */
    {"load_in_4bit", "true", "quantization", "nf4"},
    {"load_in_8bit", "true", "quantization", "int8"},
    {"bnb_4bit_quant_type", "nf4", "quantization", "nf4"},
    {"bnb_4bit_quant_type", "fp4", "quantization", "nf4"},
    {"bnb_4bit_use_double_quant", NULL, "double_quantization", NULL},
    /* LLaMA-Factory and ms-swift */
    {"lora_target", NULL, "lora_targets", NULL},
    {"quantization_bit", "4", "quantization", "nf4"},
    {"quantization_bit", "8", "quantization", "int8"},
    {"quant_bits", "4", "quantization", "nf4"},
    {"quant_bits", "8", "quantization", "int8"},
    {"flash_attn", "fa2", "attention", "flash"},
    {"attn_impl", "flash_attn", "attention", "flash"},
    /* DeepSpeed's config */
    {"offload_optimizer", "{\"device\": \"cpu\"}", "offload_optimizer", "cpu"},
    {"offload_optimizer", "{\"device\": \"none\"}", "offload_optimizer", "none"},
    {"offload_optimizer", "{\"device\": \"nvme\"}", "offload_optimizer", "nvme"},
    {"offload_param", "{\"device\": \"cpu\"}", "offload_param", "cpu"},
    {"offload_param", "{\"device\": \"none\"}", "offload_param", "none"},
    {"offload_param", "{\"device\": \"nvme\"}", "offload_param", "nvme"},
    {"data_types", "{\"grad_accum_dtype\": \"bf16\"}", "grad_accum_dtype", "bf16"},
    {"data_types", "{\"grad_accum_dtype\": \"fp32\"}", "grad_accum_dtype", "fp32"},
    {"tiled_mlp_compute", "true", "tiled_mlp_compute", "auto"},
    {"tiled_mlp_compute", "false", "tiled_mlp_compute", "0"},
    /* OOMB's arguments */
    {"grad_ckpt", NULL, "layer_checkpoint", NULL},
    {"cpu_offload", "2", "kv_offload", "yes"},
    {"cpu_offload", "0", "kv_offload", "no"},
    {"block_size", NULL, "chunk", NULL},
    {"page_size", NULL, "page", NULL},
};

#define ALIASES (sizeof(aliases) / sizeof(aliases[0]))

/* Is it the same word? Case, "-" versus "_", and surrounding dashes or quotes are ignored. */
static bool is_word(const char *text, size_t length, const char *word)
{
    while (length > 0 && strchr("-\"' ", text[0]) != NULL) {
        text++;
        length--;
    }
    while (length > 0 && strchr("\"' ", text[length - 1]) != NULL)
        length--;
    if (length != strlen(word))
        return false;
    for (size_t i = 0; i < length; i++) {
        char letter = text[i] == '-' ? '_' : text[i];
        if (strncasecmp(&letter, word[i] == '-' ? "_" : &word[i], 1) != 0)
            return false;
    }
    return true;
}

static size_t find_key(const struct tdm_method *method, const char *text, size_t length)
{
    const struct tdm_method_key *key;
    size_t k = 0;
    while ((key = tdm_method_key(method, k)) != NULL && !is_word(text, length, key->name))
        k++;
    return key == NULL ? TDM_METHOD_MOST_KEYS : k;
}

static bool has_value(const struct tdm_method_key *key, const char *value)
{
    size_t length = strlen(value);
    for (const char *at = key->values; at != NULL;
         at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strcspn(at, "|") == length && strncasecmp(at, value, length) == 0)
            return true;
    return false;
}

static const char *const words[2][5] = {{"no", "off", "false", "0", NULL},
                                        {"yes", "on", "true", "1", NULL}};

/* 1 if the text says yes, 0 if it says no; -1: neither. */
static int yes_or_no(const char *text)
{
    for (int yes = 0; yes < 2; yes++)
        for (unsigned i = 0; words[yes][i] != NULL; i++)
            if (strcasecmp(words[yes][i], text) == 0)
                return yes;
    return -1;
}

/* Are they the same value, in any of the words for yes and no? */
static bool is_same(const char *value, const char *text)
{
    int yes = yes_or_no(text);
    return strcasecmp(value, text) == 0 ||
           (yes >= 0 && strcmp(value, yes == 1 ? "true" : "false") == 0);
}

/* Translates yes and no to the words of the key: "on" for "True". */
static const char *as_key_has_it(const struct tdm_method_key *key, const char *value)
{
    int yes = has_value(key, value) ? -1 : yes_or_no(value);
    for (unsigned i = 0; yes >= 0 && words[yes][i] != NULL; i++)
        if (has_value(key, words[yes][i]))
            return words[yes][i];
    return value;
}

/* Is there a later row for the same, with a value that the key has where this row's it lacks? */
static bool has_better(const struct tdm_method_key *key, const struct alias *alias)
{
    for (const struct alias *other = alias + 1; other < aliases + ALIASES; other++)
        if (alias->stands_for != NULL && other->value != NULL &&
            strcmp(other->name, alias->name) == 0 && strcmp(other->value, alias->value) == 0)
            return !has_value(key, alias->stands_for) && has_value(key, other->stands_for);
    return false;
}

bool tdm_method_read_pair(const struct tdm_method *method, const char *pair, size_t *number,
                          const char **value)
{
    bool option =
        strncmp(pair, "--", 2) == 0; /* "--sequence-parallel", "--recompute-granularity full" */
    size_t length = strcspn(pair, option ? "=: " : "=:");
    bool is_bare = pair[length] == '\0'; /* "use_liger_kernel" */
    const char *text = pair + length + (is_bare ? 0 : 1);
    text += strspn(text, " ");
    if ((option || is_bare) && *text == '\0')
        text = "true";
    for (size_t i = 0; i < ALIASES; i++) {
        const struct alias *alias = &aliases[i];
        if (!is_word(pair, length, alias->name) ||
            (alias->value != NULL && !is_same(alias->value, text)) ||
            (find_key(method, pair, length) < TDM_METHOD_MOST_KEYS && alias->stands_for == NULL))
            continue;
        size_t k = find_key(method, alias->key, strlen(alias->key));
        const bool own = strcmp(alias->name, alias->key) == 0; /* it only translates values */
        if (k == TDM_METHOD_MOST_KEYS || has_better(tdm_method_key(method, k), alias) ||
            (own && (has_value(tdm_method_key(method, k), text) ||
                     !has_value(tdm_method_key(method, k), alias->stands_for))))
            continue;
        *number = k;
        *value = alias->stands_for != NULL && !has_value(tdm_method_key(method, k), text)
                     ? alias->stands_for
                     : as_key_has_it(tdm_method_key(method, k), text);
        return option || !is_bare || alias->value != NULL ||
               has_value(tdm_method_key(method, k), *value);
    }
    *number = find_key(method, pair, length);
    if (*number == TDM_METHOD_MOST_KEYS)
        return false;
    *value = as_key_has_it(tdm_method_key(method, *number), text);
    return option || !is_bare || has_value(tdm_method_key(method, *number), *value);
}

bool tdm_method_read_also(const struct tdm_method *method, const char *pair, size_t *number,
                          const char **value)
{
    size_t length = strcspn(pair, strncmp(pair, "--", 2) == 0 ? "=: " : "=:"), k;
    const char *said;
    if (strstr(pair, "galore") != NULL && strstr(pair, "_layerwise") != NULL &&
        (is_word(pair, length, "optim") || is_word(pair, length, "optimizer"))) {
        *number = find_key(method, "optimizer_in_bwd", strlen("optimizer_in_bwd"));
        *value = "yes";
        return *number < TDM_METHOD_MOST_KEYS;
    }
    if ((!is_word(pair, length, "use_liger_kernel") && !is_word(pair, length, "use_liger")) ||
        !tdm_method_read_pair(method, pair, &k, &said) || strcmp(said, "fused") != 0)
        return false;
    *number = find_key(method, "liger", strlen("liger"));
    *value = "all";
    return *number < TDM_METHOD_MOST_KEYS;
}

bool tdm_method_is_given(const struct tdm_method *method, const char *pair)
{
    static const char *const given[][2] = {
        {"bf16", "true"},
        {"mixed_precision", "bf16"},
        {"dtype", "bfloat16"},
        {"torch_dtype", "bfloat16"},
        {"fp16", "true"}, /* which is as wide, and whose masters DeepSpeed keeps */
        {"mixed_precision", "fp16"},
        {"dtype", "float16"},
        {"torch_dtype", "float16"},
        {"bnb_4bit_compute_dtype", "bfloat16"},
        {"bnb_4bit_compute_dtype", "float16"}};
    const size_t length = strcspn(pair, "=:");
    const char *value = pair[length] == '\0' ? "true" : pair + length + 1;
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
        if (!method->serves && is_word(pair, length, given[i][0]) &&
            is_same(given[i][1], value + strspn(value, " ")))
            return true;
    return false;
}

bool tdm_method_other_values(const struct tdm_method *method, const char *pair,
                             char expected[TDM_OTHER_VALUES])
{
    size_t length = strcspn(pair, strncmp(pair, "--", 2) == 0 ? "=: " : "=:"), used = 0;
    bool yes_no = false;
    expected[0] = '\0';
    for (size_t i = 0; i < ALIASES; i++) {
        const struct alias *alias = &aliases[i];
        if (alias->value == NULL || !is_word(pair, length, alias->name) ||
            find_key(method, alias->key, strlen(alias->key)) == TDM_METHOD_MOST_KEYS)
            continue;
        yes_no |= yes_or_no(alias->value) >= 0 && strlen(alias->value) > 1; /* a word, no number */
        if (used < TDM_OTHER_VALUES)
            used += (size_t)snprintf(expected + used, TDM_OTHER_VALUES - used, "%s%s",
                                     used > 0 ? "|" : "", alias->value);
    }
    if (yes_no)
        snprintf(expected, TDM_OTHER_VALUES, "yes or no");
    return used > 0;
}

const char *tdm_method_option_meant(const char *pair)
{
    static const char *const options[][2] = {{"per_device_train_batch_size", "--batch"},
                                             {"train_micro_batch_size_per_gpu", "--batch"},
                                             {"micro_batch_size", "--batch"},
                                             {"batch_size", "--batch"},
                                             {"max_model_len", "--context"},
                                             {"context_length", "--context"},
                                             {"max_seq_length", "--context"},
                                             {"max_seq_len", "--context"},
                                             {"cutoff_len", "--context"},
                                             {"model_max_length", "--context"},
                                             {"max_length", "--context"},
                                             {"sequence_len", "--context"},
                                             {"seq_len", "--context"},
                                             {"local_batch_size", "--batch"},
                                             {"num_processes", "--gpus"},
                                             {"num_machines", "--nodes"},
                                             {"nnodes", "--nodes"},
                                             {"seq_length", "--context"},
                                             {"nproc_per_node", "--gpus"}};
    size_t length = strcspn(pair, strncmp(pair, "--", 2) == 0 ? "=: " : "=:");
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (is_word(pair, length, options[i][0]))
            return options[i][1];
    return NULL;
}
