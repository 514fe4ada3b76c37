/* SPDX-License-Identifier: Apache-2.0 */
/* Options of ms-swift's sft, pt and rlhf beside those of TrainingArguments and of Megatron-LM:
 * swift/arguments, swift/trainers/arguments.py, swift/megatron/arguments and swift/config of
 * ms-swift 3602360a. */
#include "commands/from_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define OF_PICTURES "the language model alone is predicted"
#define OF_ANSWERS "evaluation is not predicted"

/* Of samples, templates and names. */
/* clang-format off */
#define OF_DATA \
    {"split_dataset_ratio", IGNORE NO_MEMORY}, \
    {"val_dataset*", IGNORE NO_MEMORY}, \
    {"cached_*", IGNORE NO_MEMORY}, \
    {"load_*", IGNORE NO_MEMORY}, \
    {"streaming", IGNORE NO_MEMORY}, \
    {"columns*", IGNORE NO_MEMORY}, \
    {"system", IGNORE NO_MEMORY}, \
    {"model_*", IGNORE NO_MEMORY}, \
    {"template*", IGNORE NO_MEMORY}, \
    {"agent_template", IGNORE NO_MEMORY}, \
    {"use_chat_template", IGNORE NO_MEMORY}, \
    {"enable_thinking", IGNORE NO_MEMORY}, \
    {"add_non_thinking_prefix", IGNORE NO_MEMORY}, \
    {"truncation_strategy", IGNORE NO_MEMORY}, \
    {"use_hf", IGNORE NO_MEMORY}, \
    {"loss_scale", IGNORE NO_MEMORY}
/* clang-format on */

static const json_t *said(const struct tdm_from_reading *r, const char *key)
{
    return json_object_get(r->root, key);
}

static enum tdm_status read_type(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    return tdm_from_is(value, "lora") || tdm_from_is(value, "full")
               ? TDM_OK
               : tdm_from_bad(r, path, value, "lora and full are known");
}

static bool has_adapter(const struct tdm_from_reading *r)
{
    static const char *const names[] = {"tuner_type", "train_type", "sft_type"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (said(r, names[i]) != NULL)
            return tdm_from_is(said(r, names[i]), "lora");
    return true; /* base_args.py */
}

static enum tdm_status read_trainer(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value)
{
    static const char *const alike[] = {"dpo", "kto", "orpo", "cpo", NULL};
    if (tdm_from_is(value, "grpo"))
        return tdm_from_pair(r, "trainer", "grpo");
    /* of all logits: rlhf_trainers/dpo_trainer.py concatenated_forward */
    const enum tdm_status scored = tdm_from_quiet_pair(r, "trl", "1.9");
    if (scored != TDM_OK)
        return scored;
    for (const char *const *name = alike; *name != NULL; name++)
        if (tdm_from_is(value, *name))
            return tdm_from_pair(r, "trainer", *name);
    if (tdm_from_is(value, "simpo")) /* TRL's CPOTrainer */
        return tdm_from_pair(r, "trainer", "cpo");
    return tdm_from_bad(r, path, value, "dpo, kto, orpo, cpo, simpo and grpo are known");
}

/* fp16 goes with weights of fp32 (model_args.py _init_mixed_precision). */
static enum tdm_status read_dtype(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    if (tdm_from_is(value, "bfloat16") || tdm_from_is(value, "bf16"))
        return TDM_OK;
    if (!tdm_from_is(value, "float32") && !tdm_from_is(value, "fp32"))
        return tdm_from_bad(r, path, value, "bfloat16 and float32 are known");
    enum tdm_status status =
        tdm_from_lack(r, path, "predicted as autocast to bf16, whose sizes are those of fp16");
    return status == TDM_OK ? tdm_from_pair(r, "weights_dtype", "fp32") : status;
}

static enum tdm_status read_attention(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    return tdm_from_is(value, "flash_attn")
               ? tdm_from_pair(r, "attn_implementation", "flash_attention_2")
               : tdm_from_read_attention(r, path, value);
}

static enum tdm_status read_bits(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    const json_t *how = said(r, "quant_method");
    const json_int_t bits = json_integer_value(value);
    enum tdm_status status = TDM_OK;
    if (how != NULL && !tdm_from_is(how, "bnb"))
        return tdm_from_bad(r, "quant_method", how, "bnb is known");
    if (bits == 8)
        return tdm_from_pair(r, "load_in_8bit", "true");
    if (bits != 4)
        return tdm_from_bad(r, path, value, "4 and 8 are known");
    if (!json_is_false(said(r, "bnb_4bit_use_double_quant")))
        status = tdm_from_quiet_pair(r, "double_quantization", "yes");
    return status == TDM_OK ? tdm_from_pair(r, "load_in_4bit", "true") : status;
}

/* Its own configs by their names (swift/config), or a file. */
static enum tdm_status read_deepspeed(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value)
{
    static const struct {
        const char *name, *method, *pairs[9];
    } configs[] = {
        {"zero0", "ddp", {NULL}},
        {"zero1", "deepspeed-zero1", {"overlap_comm", "false", "reduce_bucket_size", "2e8", NULL}},
        {"zero2", "zero2", {"overlap_comm", "false", "reduce_bucket_size", "2e8", NULL}},
        {"zero2_offload",
         "zero2",
         {"overlap_comm", "false", "reduce_bucket_size", "2e8", "offload_optimizer", "cpu", NULL}},
        {"zero3", "zero3", {"overlap_comm", "false", NULL}},
        {"zero3_offload",
         "zero3",
         {"overlap_comm", "false", "offload_optimizer", "cpu", "offload_param", "cpu", NULL}},
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        const char *const *pair = configs[i].pairs;
        enum tdm_status status = TDM_OK;
        if (!tdm_from_is(value, configs[i].name))
            continue;
        r->from->method = configs[i].method;
        for (; *pair != NULL && status == TDM_OK; pair += 2)
            status = tdm_from_pair(r, pair[0], pair[1]);
        static const char *const sizes[] = {"reduce_bucket_size", "stage3_prefetch_bucket_size",
                                            "stage3_param_persistence_threshold"};
        for (size_t k = 0; k < 3 && status == TDM_OK && tdm_from_begins(configs[i].name, "zero3");
             k++)
            status = tdm_from_pair(r, sizes[k], "auto");
        return status;
    }
    return tdm_from_read_deepspeed(r, path, value);
}

/* "fsdp2": fully_shard with checkpoints of its own (swift/config/fsdp2.json). */
static enum tdm_status read_fsdp(const struct tdm_from_reading *r, const char *path,
                                 const json_t *value)
{
    if (!tdm_from_is(value, "fsdp2"))
        return tdm_from_bad(r, path, value, "fsdp2 is known");
    r->from->method = "fsdp";
    return TDM_OK;
}

/* The loss over divided sequences is the trainer's own, of the logits as they come, also with
 * Liger's kernels (trainers/seq2seq_trainer.py compute_loss): bf16 by DeepSpeed, fp32 under
 * autocast. */
static enum tdm_status settle_loss(const struct tdm_from_reading *r)
{
    char tokens[32];
    if (r->from->loss_tokens == 0)
        return strcmp(r->from->method, "alst") == 0 ? tdm_from_pair(r, "logits", "bf16") : TDM_OK;
    snprintf(tokens, sizeof(tokens), "%" PRIu64, r->from->loss_tokens);
    const enum tdm_status status = tdm_from_pair(r, "logits", "in-place");
    return status == TDM_OK ? tdm_from_pair(r, "logits_chunk", tokens) : status;
}

/* Ranks exchange heads as far as their number divides the KV heads, else they form a ring, as by
 * USP (sequence_parallel/sequence_parallel.py `_init_device_mesh`); over ZeRO-3 the method is ALST
 * without its tiled loss. */
static enum tdm_status settle_sequence_parallel(const struct tdm_from_reading *r)
{
    static const struct {
        const char *method, *over, *pairs[7]; /* method NULL: no other is named */
    } divided[] = {
        {NULL, "usp", {"sharding", "ddp", NULL}},
        {"ddp", "usp", {"sharding", "ddp", NULL}},
        {"deepspeed-zero1", "usp", {"sharding", "zero1", NULL}},
        {"fsdp", "usp", {"sharding", "fsdp", NULL}},
        {"zero3",
         "alst",
         {"tiled_logits", "0", "tiled_mlp_compute", "0", "activation_checkpoint_cpu_offload",
          "false", NULL}},
    };
    const char *method = r->from->method;
    size_t i = 0, count = sizeof(divided) / sizeof(divided[0]);
    while (i < count && (method == NULL) != (divided[i].method == NULL))
        i++;
    while (method != NULL && i < count && strcmp(method, divided[i].method) != 0)
        i++;
    if (i == count)
        return tdm_from_bad(r, "sequence_parallel_size", said(r, "sequence_parallel_size"),
                            "divided sequences are known without DeepSpeed, with its stages 1 and "
                            "3 and with FSDP");
    enum tdm_status status = TDM_OK;
    r->from->method = divided[i].over;
    for (const char *const *pair = divided[i].pairs; *pair != NULL && status == TDM_OK; pair += 2)
        status = tdm_from_pair(r, pair[0], pair[1]);
    if (status == TDM_OK && tdm_from_is(said(r, "deepspeed"), "zero3")) /* ALST's is offloaded */
        status = tdm_from_pair(r, "offload_optimizer", "none");
    return status == TDM_OK ? settle_loss(r) : status;
}

static enum tdm_status read_sequence_parallel(const struct tdm_from_reading *r, const char *path,
                                              const json_t *value)
{
    char text[32];
    uint64_t size = 1;
    enum tdm_status status = tdm_from_count(r, path, value, &size);
    snprintf(text, sizeof(text), "%" PRIu64, size);
    return size == 1 ? status : tdm_from_pair(r, "sequence_parallel_size", text);
}

static uint64_t gpus_of(const struct tdm_from *from)
{
    const uint64_t nodes = from->nodes > 0 ? from->nodes : 1;
    return from->asked_gpus > 0     ? from->asked_gpus
           : from->gpus > 0         ? from->gpus
           : from->gpus_of_node > 0 ? from->gpus_of_node * nodes
                                    : 1;
}

/* Where they are not said, micro-batches add up to 16 sequences (trainers/arguments.py). */
static void settle_steps(struct tdm_from *from)
{
    const uint64_t at_once = (from->batch > 0 ? from->batch : 1) * gpus_of(from);
    if (from->accumulation == 0)
        from->accumulation = (16 + at_once - 1) / at_once;
}

static enum tdm_status settle_adapter(const struct tdm_from_reading *r)
{
    static const struct {
        const char *option, *key, *value;
    } defaults[] = {{"lora_rank", "lora_rank", "8"}, {"lora_dropout", "lora_dropout", "0.05"}};
    enum tdm_status status = TDM_OK;
    r->from->adapters = true;
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]) && status == TDM_OK; i++)
        if (said(r, defaults[i].option) == NULL)
            status = tdm_from_pair(r, defaults[i].key, defaults[i].value);
    return status;
}

/* Checkpoints are on where nothing is said, and reentrant but under DDP (trainers/mixin.py
 * _fix_gradient_checkpointing). A prompt of GRPO may have max_length, and its completion more. */
static enum tdm_status settle(const struct tdm_from_reading *r)
{
    struct tdm_from *from = r->from;
    const bool shares = from->method != NULL || from->deepspeed.by != NULL;
    const json_t *how = said(r, "gradient_checkpointing_kwargs");
    enum tdm_status status = TDM_OK;
    from->is_training = from->is_trainer = from->bf16 = true;
    if (said(r, "gradient_checkpointing") == NULL)
        from->checkpoints = from->model_checkpoints = true;
    if (from->method != NULL && strcmp(from->method, "fsdp") == 0)
        from->reentrant = false;
    else if (json_object_get(how, "use_reentrant") == NULL)
        from->reentrant = shares || gpus_of(from) == 1;
    settle_steps(from);
    if (tdm_from_is(said(r, "rlhf_type"), "grpo") && from->context > 0) {
        const json_t *completion = said(r, "max_completion_length");
        from->context += json_is_integer(completion) && json_integer_value(completion) > 0
                             ? (uint64_t)json_integer_value(completion)
                             : 512; /* rlhf_args.py */
    }
    if (has_adapter(r))
        status = settle_adapter(r);
    if (status == TDM_OK && json_integer_value(said(r, "sequence_parallel_size")) > 1)
        status = settle_sequence_parallel(r);
    return status;
}

/* ---- its Megatron-LM ---- */

/* Is an option there that models without experts do not have? */
static bool has_experts(const struct tdm_from_reading *r)
{
    const char *key;
    const json_t *value;
    bool has = false;
    json_object_foreach((json_t *)(uintptr_t)r->root, key, value)
    {
        has |= tdm_from_begins(key, "moe_") || tdm_from_begins(key, "expert_");
    }
    return has;
}

/* Where nothing is said, swift/megatron/arguments/megatron_args.py. */
static enum tdm_status settle_megatron(const struct tdm_from_reading *r)
{
    static const struct {
        const char *key, *value;
    } defaults[] = {{"tensor_model_parallel_size", "1"},    {"context_parallel_size", "1"},
                    {"recompute_granularity", "selective"}, {"use_distributed_optimizer", "yes"},
                    {"cross_entropy_loss_fusion", "yes"},   {"attention_backend", "flash"}};
    enum { DIVIDES = 3 }; /* use_distributed_optimizer */
    const json_t *optimizer = said(r, "optimizer");
    const bool muon = tdm_from_is(optimizer, "muon") || tdm_from_is(optimizer, "dist_muon");
    enum tdm_status status = TDM_OK;
    r->from->method = "megatron-cp";
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]) && status == TDM_OK; i++)
        if (said(r, defaults[i].key) == NULL)
            status =
                tdm_from_pair(r, defaults[i].key, muon && i == DIVIDES ? "no" : defaults[i].value);
    if (status == TDM_OK && has_experts(r) && said(r, "expert_tensor_parallel_size") == NULL)
        status = tdm_from_pair(r, "expert_tensor_parallel_size", "1");
    return status;
}

static enum tdm_status read_megatron_type(const struct tdm_from_reading *r, const char *path,
                                          const json_t *value)
{
    return tdm_from_is(value, "full")
               ? TDM_OK
               : tdm_from_bad(r, path, value, "of Megatron-LM full training is known");
}

static const struct tdm_from_rule megatron_rules[] = {
    {"model", SAYS(MODEL)},
    {"max_length", SAYS(CONTEXT)},
    {"tuner_type", READ(read_megatron_type)},
    {"train_type", READ(read_megatron_type)},
    {"rlhf_type", REFUSE "supervised training is known"},
    {"task_type", LACK "the loss of all tokens is predicted"},
    {"fp8_param_gather", SET "fp8_param_gather"},
    {"lora_*", IGNORE NO_MEMORY},
    {"target_modules", IGNORE NO_MEMORY},
    {"merge_lora", IGNORE "it is for saving"},
    {"freeze_*", IGNORE OF_PICTURES},
    {"vit_*", IGNORE OF_PICTURES},
    {"packing", IGNORE "sequences are assumed to be full"},
    {"padding_free", IGNORE "sequences are assumed to be full"},
    {"mtp_num_layers", REFUSE "heads of later tokens are not known"},
    {"num_train_epochs", IGNORE NO_MEMORY},
    {"output_dir", IGNORE NO_MEMORY},
    {"report_to", IGNORE NO_MEMORY},
    {"dataset*", IGNORE NO_MEMORY},
    {"dataloader_*", IGNORE NO_MEMORY},
    OF_DATA,
    {"*", TABLE(tdm_from_megatron_rules)},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_swift_megatron = {.name = "ms-swift's options of Megatron-LM",
                                                      .rules = megatron_rules,
                                                      .signs = {NULL},
                                                      .settle = settle_megatron};

/* ---- its trainer ---- */

static const struct tdm_from_rule rules[] = {
    {"model", SAYS(MODEL)},
    {"tuner_type", READ(read_type)},
    {"train_type", READ(read_type)},
    {"sft_type", READ(read_type)},
    {"rlhf_type", READ(read_trainer)},
    {"torch_dtype", READ(read_dtype)},
    {"attn_impl", READ(read_attention)},
    {"target_modules", SET "lora_targets"},
    {"target_regex", LACK "adapters of all projections are predicted"},
    {"target_parameters", REFUSE "adapters of projections are known"},
    {"modules_to_save", SET "modules_to_save"},
    {"lora_rank", SET "lora_rank"},
    {"lora_dropout", SET "lora_dropout"},
    {"lora_dtype", LACK "adapters are predicted in fp32"},
    {"lora_*", IGNORE NO_MEMORY},
    {"quant_bits", READ(read_bits)},
    {"quant_method", IGNORE "read with quant_bits"},
    {"bnb_4bit_*", IGNORE "read with quant_bits"},
    {"deepspeed", READ(read_deepspeed)},
    {"fsdp", READ(read_fsdp)},
    {"zero_hpz_partition_size", SET "zero_hpz_partition_size"},
    {"deepspeed_autotp_size", ONE "AutoTP is not known"},
    {"sequence_parallel_size", READ(read_sequence_parallel)},
    {"use_galore", REFUSE "GaLore of ms-swift is not known; --set optimizer=galore is near"},
    {"lisa_activated_layers", REFUSE "LISA is not known"},
    {"optimizer", LACK "the optimizer of transformers is predicted"},
    {"freeze_parameters*", LACK "all weights are predicted to be trained"},
    {"trainable_parameters*", LACK "all weights are predicted to be trained"},
    {"freeze_*", IGNORE OF_PICTURES},
    {"vit_*", IGNORE OF_PICTURES},
    {"aligner_lr", IGNORE OF_PICTURES},
    {"max_pixels", IGNORE OF_PICTURES},
    {"task_type", LACK "the loss of all tokens is predicted"},
    {"num_labels", IGNORE "read with task_type"},
    {"problem_type", IGNORE "read with task_type"},
    {"enable_channel_loss", LACK "the loss of transformers is predicted"},
    {"enable_dft_loss", LACK "the loss of transformers is predicted"},
    {"loss_type", LACK "the loss of transformers is predicted"},
    OF_DATA,
    {"external_plugins", IGNORE NO_MEMORY},
    {"add_version", IGNORE NO_MEMORY},
    {"create_checkpoint_symlink", IGNORE NO_MEMORY},
    {"adapters", IGNORE NO_MEMORY},
    {"ref_adapters", IGNORE NO_MEMORY},
    {"merge_lora", IGNORE "it is for saving"},
    {"max_new_tokens", IGNORE OF_ANSWERS},
    {"rpo_alpha", IGNORE NO_MEMORY},
    {"stream", IGNORE NO_MEMORY},
    {"num_infer_workers", IGNORE NO_MEMORY},
    {"overlong_filter", IGNORE NO_MEMORY},
    {"multi_turn_scheduler", IGNORE NO_MEMORY},
    {"max_turns", IGNORE NO_MEMORY},
    {"*", TABLE(tdm_from_training_rules)},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_swift = {.name = "arguments of ms-swift",
                                             .rules = rules,
                                             .signs = {"tuner_type", "train_type", "sft_type",
                                                       "rlhf_type", "split_dataset_ratio",
                                                       "attn_impl", "model_author"},
                                             .settle = settle};
