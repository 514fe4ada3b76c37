/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a config of LitGPT's fine-tuning: config_hub/finetune, litgpt/finetune/{lora,full}.py and
 * args.py of LitGPT 26857050. */
#include "commands/from_rules.h"

#include <stdio.h>
#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY

/* Checkpoints are downloaded to checkpoints/PUBLISHER/NAME. */
static enum tdm_status read_folder(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    static const char folder[] = "checkpoints/";
    const char *name = json_string_value(value);
    if (name == NULL)
        return tdm_from_bad(r, path, value, "expected a name or a folder");
    const char *inside = strstr(name, folder);
    json_t *rest = json_string(inside != NULL ? inside + strlen(folder) : name);
    enum tdm_status status = tdm_from_read_model(r, path, rest);
    json_decref(rest);
    return status;
}

static enum tdm_status read_precision(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    if (tdm_from_is(value, "bf16-true"))
        return tdm_from_note(r, path, "bf16");
    return tdm_from_is(value, "16-true")
               ? tdm_from_lack(r, path, "predicted as bf16, whose sizes are the same")
               : tdm_from_bad(r, path, value, "bf16-true and 16-true are known");
}

static enum tdm_status read_quantize(const struct tdm_from_reading *r, const char *path,
                                     const json_t *value)
{
    const bool twice = tdm_from_is(value, "bnb.nf4-dq") || tdm_from_is(value, "bnb.fp4-dq");
    enum tdm_status status = TDM_OK;
    if (tdm_from_is(value, "bnb.int8-training"))
        return tdm_from_pair(r, "load_in_8bit", "true");
    if (!twice && !tdm_from_is(value, "bnb.nf4") && !tdm_from_is(value, "bnb.fp4"))
        return tdm_from_bad(r, path, value,
                            "bnb.nf4, bnb.nf4-dq, bnb.fp4, bnb.fp4-dq and bnb.int8-training are "
                            "known");
    status = tdm_from_pair(r, "load_in_4bit", "true");
    if (status == TDM_OK) /* of bitsandbytes 0.42, which its recipes need (finetune/lora.py) */
        status = tdm_from_quiet_pair(r, "bnb_keeps_inputs", "yes");
    return status == TDM_OK && twice ? tdm_from_quiet_pair(r, "double_quantization", "yes")
                                     : status;
}

static enum tdm_status read_devices(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    return json_is_string(value) ? tdm_from_note(r, path, "--gpus says it")
                                 : tdm_from_count(r, path, value, &r->from->gpus_of_node);
}

/* A name, or an object with class_path. Quantized training takes bitsandbytes' PagedAdamW
 * (utils.py instantiate_bnb_optimizer). */
static enum tdm_status read_optimizer(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    const char *name =
        json_string_value(json_is_object(value) ? json_object_get(value, "class_path") : value);
    const char *dot = name != NULL ? strrchr(name, '.') : NULL;
    const bool quantized = !tdm_from_is_off(json_object_get(r->root, "quantize"));
    name = dot != NULL ? dot + 1 : name != NULL ? name : "";
    if (strcmp(name, "AdamW") == 0 || strcmp(name, "Adam") == 0)
        return tdm_from_pair(r, "optimizer", quantized ? "paged-adamw-32bit" : "adamw-foreach");
    return strcmp(name, "SGD") == 0 && !quantized
               ? tdm_from_pair(r, "optimizer", "sgd")
               : tdm_from_bad(r, path, value, "Adam, AdamW and SGD are known");
}

/* Gradients of global_batch_size sequences are added up before a step (args.py). */
static enum tdm_status read_global(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    const json_t *micro = tdm_from_in(r, "train", "micro_batch_size");
    const json_t *devices = json_object_get(r->root, "devices");
    json_int_t all = json_integer_value(micro);
    uint64_t global;
    enum tdm_status status = tdm_from_count(r, path, value, &global);
    if (json_is_integer(devices))
        all *= json_integer_value(devices);
    if (status == TDM_OK && all > 0 && global >= (uint64_t)all)
        r->from->accumulation = global / (uint64_t)all;
    return status;
}

/* Where adapters are, by LitGPT's defaults where nothing is said. */
static enum tdm_status add_targets(const struct tdm_from_reading *r)
{
    static const struct {
        const char *key, *projections;
        bool by_default;
    } parts[] = {{"lora_query", "q_proj", true},
                 {"lora_key", "k_proj", false},
                 {"lora_value", "v_proj", true},
                 {"lora_projection", "o_proj", false},
                 {"lora_mlp", "gate_proj,up_proj,down_proj", false}};
    char text[128] = "";
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const json_t *value = json_object_get(r->root, parts[i].key);
        const size_t used = strlen(text);
        if (value == NULL || json_is_null(value) ? parts[i].by_default : !tdm_from_is_off(value))
            snprintf(text + used, sizeof(text) - used, "%s%s", used > 0 ? "," : "",
                     parts[i].projections);
    }
    return text[0] == '\0' ? TDM_OK : tdm_from_pair(r, "lora_targets", text);
}

/* Several GPUs share shards, of FSDP 1 or of fully_shard where adapters are trained, with
 * checkpoints of every block (finetune/full.py, lora.py). */
static enum tdm_status settle(const struct tdm_from_reading *r)
{
    const bool adapted = json_object_get(r->root, "lora_r") != NULL ||
                         json_object_get(r->root, "lora_query") != NULL;
    enum tdm_status status = TDM_OK;
    r->from->is_training = true;
    r->from->spread = "fsdp";
    if (adapted && json_object_get(r->root, "lora_r") == NULL)
        status = tdm_from_pair(r, "lora_rank", "8");
    if (status == TDM_OK && adapted)
        status = add_targets(r);
    if (status == TDM_OK)
        status = tdm_from_quiet_pair(r, "model_code", "litgpt");
    if (status == TDM_OK && r->from->gpus_of_node > 1) {
        r->from->checkpoints = true;
        r->from->fsdp_1 = !adapted;
    }
    return status;
}

static const struct tdm_from_rule rules[] = {
    {"checkpoint_dir", READ(read_folder)},
    {"precision", READ(read_precision)},
    {"quantize", READ(read_quantize)},
    {"devices", READ(read_devices)},
    {"num_nodes", SAYS(NODES)},
    {"lora_r", SET "lora_rank"},
    {"lora_dropout", SET "lora_dropout"},
    {"lora_head", LACK "the head is predicted without an adapter"},
    {"lora_*", IGNORE "read as lora_targets"},
    {"train.micro_batch_size", SAYS(BATCH)},
    {"train.global_batch_size", READ(read_global)},
    {"train.max_seq_length", SAYS(CONTEXT)},
    {"train.max_norm", SET "max_grad_norm"},
    {"train.tie_embeddings", REFUSE "the head of its own is known"},
    {"train.*", IGNORE NO_MEMORY},
    {"optimizer", READ(read_optimizer)},
    {"data*", IGNORE NO_MEMORY},
    {"eval.*", IGNORE "evaluation is not predicted"},
    {"log.*", IGNORE NO_MEMORY},
    {"out_dir", IGNORE NO_MEMORY},
    {"logger_name", IGNORE NO_MEMORY},
    {"seed", IGNORE NO_MEMORY},
    {"resume", IGNORE NO_MEMORY},
    {"access_token", IGNORE NO_MEMORY},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_litgpt = {.name = "a config of LitGPT",
                                              .rules = rules,
                                              .signs = {"checkpoint_dir", "lora_query"},
                                              .settle = settle};
