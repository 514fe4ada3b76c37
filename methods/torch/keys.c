/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the methods that train Hugging Face's models with PyTorch. */
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <ctype.h>
#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, name)
#define IMAGE_TOKENS_MOST 100000000u
#define COPIES_MOST 1000ul /* of a part of a regular expression */
#define LAYER_MOST 4096u
#define TE_ROWS 8u
#define RANK_MOST 65536u
#define LABELS_MOST 1000000u
#define ACCUMULATION_MOST 1000000u

/* Is the projection's module in a layer matched by the whole expression? Models that have a text
 * model inside give it longer names. */
static bool is_matched(const regex_t *expression, const char *projection)
{
    static const char *const models[] = {
        "model.layers.0.", "model.language_model.layers.0.", "language_model.model.layers.0.",
        "layers.0.",       "model.text_model.layers.0.",     ""};
    static const char *const parts[] = {"self_attn.", "mlp.", ""};
    char name[128];
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        for (size_t j = 0; j < sizeof(parts) / sizeof(parts[0]); j++) {
            regmatch_t match;
            snprintf(name, sizeof(name), "%s%s%s", models[i], parts[j], projection);
            if (regexec(expression, name, 1, &match, 0) == 0 && match.rm_so == 0 &&
                name[match.rm_eo] == '\0')
                return true;
        }
    return false;
}

/* About the most copies of a part that regcomp makes: two for each `+`, as many as its largest
 * number for each `{}`. It has no limit of its own. */
static unsigned long copies_of(const char *expression)
{
    unsigned long copies = 1;
    for (const char *at = expression; *at != '\0' && copies <= COPIES_MOST; at++) {
        unsigned long most = *at == '+' ? 2 : 1;
        if (*at == '{')
            for (char *end = (char *)at; *end != '\0' && *end != '}'; end++)
                if (isdigit((unsigned char)*end)) {
                    unsigned long number = strtoul(end, &end, 10);
                    most = number > most ? number : most;
                    end--;
                }
        copies = most > COPIES_MOST ? COPIES_MOST + 1 : copies * most;
    }
    return copies;
}

/* peft matches the names of modules by a regular expression (re.fullmatch). Python's \d and (?: are
 * written as POSIX has them. */
static enum tdm_status read_expression(const struct tdm_method_key *key, const char *value,
                                       struct tdm_method_settings *settings, struct tdm_error *err)
{
    char text[512];
    size_t used = 0;
    regex_t expression;
    for (const char *at = value; *at != '\0' && used + 8 < sizeof(text); at++) {
        if (at[0] == '\\' && at[1] == 'd') {
            bool inside = used > 0 && text[used - 1] == '[';
            used += (size_t)snprintf(text + used, sizeof(text) - used, inside ? "0-9" : "[0-9]");
            at++;
        } else if (at[0] == '(' && at[1] == '?' && at[2] == ':') {
            text[used++] = '(';
            at += 2;
        } else {
            text[used++] = *at;
        }
    }
    text[used] = '\0';
    settings->torch.lora_targets = 0;
    if (copies_of(text) > COPIES_MOST)
        return tdm_fail(err, TDM_USAGE, "--set %s: \"%.128s\" repeats too often to be read",
                        key->name, value);
    if (regcomp(&expression, text, REG_EXTENDED) != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: \"%.128s\" is not a regular expression that can be read",
                        key->name, value);
    for (unsigned p = 0; p < TDM_PROJECTIONS; p++)
        if (is_matched(&expression, tdm_projection_name(p)))
            settings->torch.lora_targets |= 1u << p;
    regfree(&expression);
    if (settings->torch.lora_targets != 0)
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--set %s: \"%.128s\" matches no projection of a layer",
                    key->name, value);
}

/* Names of projections, without those of the modules that hold them. */
static void without_modules(const char *value, char *out, size_t out_bytes)
{
    static const char *const modules[] = {"self_attn.", "attn.", "attention.", "mlp."};
    size_t used = 0;
    while (*value != '\0' && used + 1 < out_bytes) {
        for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
            if (strncmp(value, modules[i], strlen(modules[i])) == 0)
                value += strlen(modules[i]);
        if (*value != '\0') /* it may end with a module */
            out[used++] = *value++;
    }
    out[used] = '\0';
}

/* Projections in the words of models with other modules than Llama's. */
static const struct tdm_key_word other_targets[] = {
    {"c_attn", 1u << TDM_PROJECTION_QKV},                           /* GPT 2, Qwen 1 */
    {"c_proj", 1u << TDM_PROJECTION_O | 1u << TDM_PROJECTION_DOWN}, /* both have both */
    {"c_fc", 1u << TDM_PROJECTION_UP},                              /* GPT 2 */
    {"query_key_value", 1u << TDM_PROJECTION_QKV},                  /* GPT-NeoX, Falcon */
    {"W_pack", 1u << TDM_PROJECTION_QKV},                           /* Baichuan */
    {"dense_h_to_4h", 1u << TDM_PROJECTION_UP | 1u << TDM_PROJECTION_GATE_UP}, /* GPT-NeoX, GLM */
    {"dense_4h_to_h", 1u << TDM_PROJECTION_DOWN},
    {"dense", 1u << TDM_PROJECTION_O},
    {"out_proj", 1u << TDM_PROJECTION_O}, /* OPT, GPT-J */
    {"wqkv", 1u << TDM_PROJECTION_QKV}, /* InternLM 2, whose w1, w3 and w2 are gate, up and down */
    {"wo", 1u << TDM_PROJECTION_O},
    {"w1", 1u << TDM_PROJECTION_GATE},
    {"w2", 1u << TDM_PROJECTION_DOWN},
    {"w3", 1u << TDM_PROJECTION_UP},
    {"Wqkv", 1u << TDM_PROJECTION_QKV}, /* MPT */
    {"fc_in", 1u << TDM_PROJECTION_UP}, /* GPT-J */
    {"fc_out", 1u << TDM_PROJECTION_DOWN},
    {"fc1", 1u << TDM_PROJECTION_UP}, /* Phi */
    {"fc2", 1u << TDM_PROJECTION_DOWN},
};
#define OTHER_TARGETS (sizeof(other_targets) / sizeof(other_targets[0]))

/* Names separated by commas or spaces, each perhaps after the module that has it
 * (self_attn.q_proj); a regular expression; or all. */
enum tdm_status tdm_key_read_targets(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "all") == 0) {
        settings->torch.lora_targets = (1u << TDM_PROJECTIONS) - 1;
        return TDM_OK;
    }
    if (strpbrk(value, "()[]*\\|") != NULL)
        return read_expression(key, value, settings, err);
    char names[512];
    without_modules(value, names, sizeof(names));
    struct tdm_key_word words[TDM_PROJECTIONS + OTHER_TARGETS];
    for (unsigned p = 0; p < TDM_PROJECTIONS; p++)
        words[p] = (struct tdm_key_word){tdm_projection_name(p), 1u << p};
    memcpy(words + TDM_PROJECTIONS, other_targets, sizeof(other_targets));
    const bool known = tdm_key_read_words(key, names, words, TDM_PROJECTIONS + OTHER_TARGETS,
                                          &settings->torch.lora_targets, NULL) == TDM_OK;
    return known ? TDM_OK : tdm_key_bad_value(key, value, err); /* with the modules */
}

enum tdm_status tdm_key_read_step(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err)
{
    if (strcmp(value, "all") != 0 && (strlen(value) != 1 || *value < '1' || *value > '3'))
        return tdm_key_bad_value(key, value, err);
    settings->step = *value == 'a' ? 0 : (uint32_t)(*value - '0');
    return TDM_OK;
}

/* Names separated by commas or spaces, all or none. */
enum tdm_status tdm_key_read_liger(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const struct tdm_key_word words[] = {{"rms_norm", TDM_LIGER_NORMS},
                                                {"swiglu", TDM_LIGER_MLP},
                                                {"rope", TDM_LIGER_ROPE},
                                                {"all", TDM_LIGER_ALL}};
    settings->torch.liger = 0;
    if (strcmp(value, "none") == 0)
        return TDM_OK;
    return tdm_key_read_words(key, value, words, sizeof(words) / sizeof(words[0]),
                              &settings->torch.liger, err);
}

/* A version, by its first two numbers, or "now". */
static enum tdm_status read_version(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    unsigned version[TDM_VERSION_NUMBERS];
    settings->torch.loss = TDM_LOSS_PADDED;
    settings->torch.expert_modules = false;
    if (strcmp(value, "now") == 0)
        return TDM_OK;
    const enum tdm_status status = tdm_key_read_version(key, value, "4.48.1", version, err);
    if (status != TDM_OK)
        return status;
    const unsigned major = version[0], minor = version[1];
    settings->torch.expert_modules = major < 5;
    if (major < 4 || (major == 4 && minor <= 45))
        settings->torch.loss = TDM_LOSS_WIDE;
    else if (major == 4 && minor <= 48)
        settings->torch.loss = TDM_LOSS_SHIFTED;
    return TDM_OK;
}

/* ---- needs ---- */

static bool has_lora(const struct tdm_key_case *c)
{
    return c->settings->torch.lora_rank > 0;
}

/* Only these of peft have a dropout of their inputs that is modelled. */
static bool has_dropout(const struct tdm_key_case *c)
{
    const enum tdm_adapter adapter = c->settings->torch.adapter;
    return has_lora(c) && (adapter == TDM_ADAPTER_LORA || adapter == TDM_ADAPTER_VERA);
}

/* Adapters of projections, which lora_targets chooses. */
static bool has_projections(const struct tdm_key_case *c)
{
    const enum tdm_adapter adapter = c->settings->torch.adapter;
    return has_lora(c) && adapter != TDM_ADAPTER_NORMS &&
           !tdm_adapter_is_prompt(&c->settings->torch);
}

static bool mixes_precision(const struct tdm_torch_settings *torch)
{
    return torch->wrapper->mixes_precision && tdm_parts_leave_shards(torch);
}

static bool casts_adapters(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    return !mixes_precision(torch) || (torch->wrapper == &tdm_fsdp_wrapper && !torch->fp32_weights);
}

static bool has_nf4(const struct tdm_key_case *c)
{
    return c->settings->torch.quantization == TDM_QUANTIZATION_NF4;
}

static bool has_chunked_logits(const struct tdm_key_case *c)
{
    return c->settings->torch.logits == TDM_LOGITS_CHUNKED ||
           c->settings->torch.logits == TDM_LOGITS_IN_PLACE;
}

/* Autocast casts operands of products that are in fp32: adapters, and those of a chunked loss; and
 * accelerate makes logits fp32 that a loss in place, or a trainer of all logits, then keeps. */
static bool has_wide_products(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    bool adapters = torch->lora_rank > 0 && torch->peft;
    const bool encoder =
        torch->lora_rank > 0 &&
        (torch->adapter == TDM_ADAPTER_P_TUNING ||
         (torch->adapter == TDM_ADAPTER_PREFIX && torch->adapter_sizes.prefix_projection));
    return (adapters || encoder || has_chunked_logits(c) || tdm_second_has_logits(&torch->second) ||
            torch->fp32_weights) &&
           (!mixes_precision(torch) || tdm_fsdp_widens_adapters(torch));
}

/* bf16 changes what bf16 weights do not say, no what fp32 weights say. */
static bool has_other_autocast(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    return torch->fp32_weights == (torch->autocast == TDM_AUTOCAST_NO);
}

static bool has_version(const struct tdm_key_case *c)
{
    return (!tdm_second_has_loss(&c->settings->torch.second) &&
            tdm_torch_has_own_loss(&c->settings->torch)) ||
           c->settings->torch.attention == TDM_TORCH_FLASH || c->model->experts.count > 0;
}

static bool has_liger(const struct tdm_key_case *c)
{
    return (c->settings->torch.liger & (TDM_LIGER_NORMS | TDM_LIGER_ROPE)) != 0 ||
           c->settings->torch.logits == TDM_LOGITS_FUSED;
}

static bool has_score(const struct tdm_key_case *c)
{
    return c->settings->torch.logits == TDM_LOGITS_SCORE;
}

static bool has_later_steps(const struct tdm_key_case *c)
{
    return c->settings->step != 1;
}

static bool has_checkpoints(const struct tdm_key_case *c)
{
    return c->settings->torch.checkpointing != TDM_CHECKPOINTING_OFF;
}

static bool has_no_checkpoints(const struct tdm_key_case *c)
{
    return !has_checkpoints(c);
}

/* A key that users set and that changes no figure. */
static bool never(const struct tdm_key_case *c)
{
    (void)c;
    return false;
}

static const struct tdm_key_need needs_nothing = {"on memory: it changes a number alone", never};
const struct tdm_key_need tdm_need_own_clipping = {
    "on memory: norms are taken with or without it, and gradients are scaled in place", never};
const struct tdm_key_need tdm_need_lora = {"without lora_rank", has_lora};
static const struct tdm_key_need needs_dropout = {"without peft_type=LORA or VERA", has_dropout};
static const struct tdm_key_need needs_projections = {"without adapters of projections",
                                                      has_projections};
const struct tdm_key_need tdm_need_chunked_logits = {"without logits=chunked or in-place",
                                                     has_chunked_logits};
const struct tdm_key_need tdm_need_later_steps = {"with step=1", has_later_steps};
static bool has_vision(const struct tdm_key_case *c)
{
    return tdm_torch_counts_vision(&c->settings->torch, c->model);
}

static const struct tdm_key_need needs_vision = {
    "without a vision tower that is counted: Qwen2.5-VL's, whole on each GPU, not quantized",
    has_vision};
static const struct tdm_key_need needs_version = {
    "without transformers' own loss, attention=flash and experts", has_version};
static const struct tdm_key_need needs_liger = {"without liger's norms, rotations or loss",
                                                has_liger};
static const struct tdm_key_need needs_score = {"without logits=score", has_score};
/* FSDP 1 makes fp32 what is trained. */
static bool has_wide_weights(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    return torch->fp32_weights && !torch->peft && torch->adapter == TDM_ADAPTER_LORA &&
           (torch->wrapper != &tdm_fsdp_wrapper || !torch->fsdp.version_1);
}

static const struct tdm_key_need needs_wide_weights = {
    "without weights_dtype=fp32 and LoRA, and with lora=peft or fsdp_version=1", has_wide_weights};
static const struct tdm_key_need needs_own_dtype = {
    "among shards of fp32, as which adapters are made anyway", casts_adapters};
static bool has_gptq(const struct tdm_key_case *c)
{
    return c->settings->torch.quantization == TDM_QUANTIZATION_GPTQ;
}

static const struct tdm_key_need needs_gptq = {"without quantization=gptq", has_gptq};
static const struct tdm_key_need needs_nf4 = {"without quantization=nf4", has_nf4};
static const struct tdm_key_need needs_wide_products = {
    "without fp32 adapters (lora=peft, P_TUNING), logits=chunked or in-place, or trl=1.9",
    has_wide_products};
static const struct tdm_key_need needs_other_autocast = {"with these weights_dtype",
                                                         has_other_autocast};
static const struct tdm_key_need needs_checkpoints = {"without checkpointing", has_checkpoints};
/* OffloadActivations copies all that is saved, not inputs of layers alone. */
static const struct tdm_key_need needs_inputs = {
    "without checkpointing; where it is activation_offloading, which then copies all that is saved, "
    "that is not modelled",
    has_checkpoints};
static const struct tdm_key_need needs_no_checkpoints = {"with checkpointing", has_no_checkpoints};

static bool compiles_checkpoints(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    return torch->compile != TDM_COMPILE_NO && torch->checkpointing == TDM_CHECKPOINTING_ON;
}

static const struct tdm_key_need needs_wrapped = {
    "without compile and checkpointing=on; selective ones are compiled always",
    compiles_checkpoints};

/* Layers of which other GPUs have parts are compiled without their checkpoints here. */
static bool has_whole_layers(const struct tdm_key_case *c)
{
    return c->settings->torch.context.divider == NULL && tdm_tensor_ranks(&c->settings->torch) == 1;
}

static const struct tdm_key_need needs_whole_layers = {
    "with divided sequences or tensor parallelism, where it is not modelled", has_whole_layers};

static bool has_optimizer(const struct tdm_key_case *c)
{
    return c->settings->torch.optimizer != TDM_TORCH_NO_OPTIMIZER;
}

static bool has_galore(const struct tdm_key_case *c)
{
    return c->settings->torch.optimizer >= TDM_TORCH_GALORE;
}

static bool has_gradients_on_gpu(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    return torch->wrapper != &tdm_fsdp_wrapper || !torch->fsdp.offload;
}

static const struct tdm_key_need needs_gradients_on_gpu = {"with offload_policy=cpu",
                                                           has_gradients_on_gpu};
static const struct tdm_key_need needs_optimizer = {"with optimizer=none", has_optimizer};
static const struct tdm_key_need needs_galore = {"without optimizer=galore or galore-8bit",
                                                 has_galore};

static bool has_scores(const struct tdm_key_case *c)
{
    const enum tdm_torch_attention attention = c->settings->torch.attention;
    return attention == TDM_TORCH_EAGER || attention == TDM_TORCH_MATERIALIZED;
}

static const struct tdm_key_need needs_scores = {
    "without attention=eager: kernels keep no mask but a seed", has_scores};

/* ---- tables ---- */

const char *tdm_key_settled_grads(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return c->settings->torch.optimizer == TDM_TORCH_NO_OPTIMIZER ? "held" : "none";
}

static const struct {
    const char *name;
    enum tdm_quantization quantization;
} bases[] = {
    [TDM_BASE_WHOLE] = {"none", TDM_QUANTIZATION_NONE},
    [TDM_BASE_NF4] = {"nf4", TDM_QUANTIZATION_NF4},
    [TDM_BASE_NF4_DOUBLE] = {"nf4", TDM_QUANTIZATION_NF4},
    [TDM_BASE_INT8] = {"int8", TDM_QUANTIZATION_INT8},
    [TDM_BASE_GPTQ] = {"gptq", TDM_QUANTIZATION_GPTQ},
    [TDM_BASE_AWQ] = {"awq", TDM_QUANTIZATION_AWQ},
};

static const char *settled_quantization(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return bases[c->model->base.kind].name;
}

#define USUAL_GROUP 128u
#define USUAL_BITS 4u
#define FLOAT8_BLOCK 128u

static uint64_t usual_labels(const struct tdm_model *model)
{
    return model->labels > 0 ? model->labels : 1;
}

/* A config of ForSequenceClassification has a head of its labels, whatever is said of logits. */
static enum tdm_status settle_head(const struct tdm_model *model,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    struct tdm_torch_settings *torch = &settings->torch;
    if (torch->labels == 0)
        torch->labels = usual_labels(model);
    if (torch->second.trainer == TDM_TRAINER_REWARD && torch->logits == TDM_LOGITS_HF)
        torch->logits = TDM_LOGITS_SCORE;
    if (model->labels == 0)
        return TDM_OK;
    if (settings->method->system != &tdm_torch_system || torch->context.chunk_tokens > 0) {
        tdm_fail(err, TDM_USAGE,
                 "method %s: the head of %s, which scores whole sequences, is not modelled",
                 settings->method->name, model->name);
        return tdm_hint(err, "parallel, ddp, fsdp and zero3 take it; or take the config of the "
                             "model with an LM head");
    }
    if (torch->logits != TDM_LOGITS_HF && torch->logits != TDM_LOGITS_SCORE) {
        tdm_fail(err, TDM_USAGE,
                 "--set logits: %s has a head that scores whole sequences, and no LM head",
                 model->name);
        return tdm_hint(err, "leave it out, or take the config of the model with an LM head");
    }
    torch->logits = TDM_LOGITS_SCORE;
    return TDM_OK;
}

enum tdm_status tdm_torch_settle_base(const struct tdm_model *model,
                                      struct tdm_method_settings *settings, struct tdm_error *err)
{
    struct tdm_torch_settings *torch = &settings->torch;
    const enum tdm_base_kind kind = model->base.kind;
    torch->quantized_group = kind == TDM_BASE_WHOLE ? USUAL_GROUP : model->base.group;
    torch->quantized_bits = model->base.bits > 0 ? model->base.bits : USUAL_BITS;
    enum tdm_status status = settle_head(model, settings, err);
    if (status != TDM_OK)
        return status;
    if (kind == TDM_BASE_WHOLE || settings->method->serves)
        return TDM_OK;
    if (model->base.served_alone) {
        tdm_fail(err, TDM_USAGE, "method %s: the weights of %s are integers of compressed-tensors",
                 settings->method->name, model->name);
        return tdm_hint(err,
                        "--mode serve takes them; to train take the model that was not quantized");
    }
    if (settings->method->system != &tdm_torch_system) {
        tdm_fail(err, TDM_USAGE, "method %s: the quantized weights of %s are not modelled",
                 settings->method->name, model->name);
        return tdm_hint(err, "take the config of the model that was not quantized");
    }
    if (torch->whole_base || (torch->quantization != TDM_QUANTIZATION_NONE &&
                              torch->quantization != bases[kind].quantization))
        return tdm_fail(err, TDM_USAGE,
                        "--set quantization: the weights of %s are quantized already: %s",
                        model->name, bases[kind].name);
    if (torch->quantized_bits == 3) {
        tdm_fail(err, TDM_USAGE,
                 "method %s: GPTQ's weights of 3 bits are not modelled under adapters",
                 settings->method->name);
        return tdm_hint(err, "of 2, 4 and 8 bits they are; --mode serve takes all");
    }
    torch->quantization = bases[kind].quantization;
    torch->double_quantization |= kind == TDM_BASE_NF4_DOUBLE;
    return TDM_OK;
}

/* Does transformers take scores in memory if nothing is said? */
static bool takes_eager(const struct tdm_model *model)
{
    return (model->parts & TDM_PART_SINKS) != 0 || model->own_scores != TDM_SCORES_COMMON;
}

enum tdm_torch_attention tdm_torch_attention_of(const struct tdm_model *model,
                                                enum tdm_torch_attention attention)
{
    return takes_eager(model) && attention == TDM_TORCH_SDPA ? TDM_TORCH_EAGER : attention;
}

static const char *settled_attention(const struct tdm_key_case *c, char *text)
{
    (void)text;
    return takes_eager(c->model) ? "eager" : "sdpa";
}

static const char *settled_logits(const struct tdm_key_case *c, char *text)
{
    (void)text;
    const bool rewards = c->settings->torch.second.trainer == TDM_TRAINER_REWARD;
    return c->model->labels > 0 || rewards ? "score" : "hf";
}

static const char *settled_labels(const struct tdm_key_case *c, char *text)
{
    snprintf(text, TDM_KEY_TEXT, "%" PRIu64, usual_labels(c->model));
    return text;
}

const struct tdm_method_key tdm_keys_torch[] = {
    {"checkpointing", "off|on|on-reentrant|selective|modules", "off",
     "gradient checkpointing of every layer; on: use_reentrant=False; selective: torchtitan's by "
     "operation; modules: of norms, attention and MLP, each by itself, as NeMo Automodel has it",
     tdm_key_read_choice, FIELD(torch.checkpointing), .compared = "on"},
    {"checkpoint_every", "N", "1",
     "of N layers one is checkpointed: torchtitan's selective_ac_option", tdm_key_read_count,
     FIELD(torch.checkpoint_every), .least = 1, .most = LAYER_MOST, .needs = {&needs_checkpoints}},
    {"checkpoint_offload", "no|alst|yes", "no",
     "inputs of checkpointed layers in host memory: yes: offload of gradient_checkpointing_kwargs, "
     "activation_offloading; alst: activation_checkpoint_cpu_offload",
     tdm_key_read_choice, FIELD(torch.checkpoint_offload), .needs = {&needs_inputs}},
    {"attention", "sdpa|sdpa-flash|eager|efficient|materialized|flash", NULL,
     "attn_implementation; sdpa-flash: without cuDNN's kernel; eager: scores in memory; if nothing "
     "is said sdpa, but eager where attention has sinks, and of GPT-J, BLOOM and MPT",
     tdm_key_read_choice, FIELD(torch.attention), .settled = settled_attention},
    {"optimizer",
     "none|adamw-fused|adamw-foreach|sgd|sgd-momentum|adamw-8bit|paged-adamw-8bit|"
     "paged-adamw-32bit|lion-8bit|lion-32bit|adamw-4bit|adamw-fp8|ao-adamw-8bit|adafactor|muon|adam-mini|galore|galore-8bit",
     "adamw-foreach",
     "torch.optim, states in the dtype of the weights; bitsandbytes' of 8 and 32 bits, paged ones in "
     "managed memory; torchao's of 4 bits, fp8 and 8 bits (ao-); Adafactor of transformers; Muon, for all but matrices of layers AdamW; Adam-mini; "
     "GaLore, galore-8bit: with bitsandbytes' states; none: no step is made",
     tdm_key_read_choice, FIELD(torch.optimizer), .compared = "adamw-fused"},
    {"weights_dtype", "bf16|fp32", "bf16", "fp32: the forward runs under autocast to bf16",
     tdm_key_read_switch, FIELD(torch.fp32_weights)},
    {"logits",
     "hf|hf-held|base|last|bf16|chunked|fused|score|cut|parts|in-place|bf16-held|fp32-held", "hf",
     "loss by transformers, output dropped or held; no head; last tokens; bf16 loss; TRL's; Liger's; "
     "score: ForSequenceClassification's head, of reward models too; cut: cut cross-entropy; parts: torchtune's; "
     "in-place: ms-swift's CELOSS_PARALLEL_SIZE; bf16-held: as bf16, but held, as the name of a plain "
     "loop does; fp32-held: the same of an output of fp32, as torchtitan's was to June 2024",
     tdm_key_read_choice, FIELD(torch.logits), .settled = settled_logits},
    {"logits_chunk", "N", "256", "tokens of a chunk of logits=chunked and in-place",
     tdm_key_read_tokens, FIELD(torch.loss_chunk_tokens), .needs = {&tdm_need_chunked_logits}},
    {"transformers", "now|4.48|4.45", "now",
     "any version of it: before 5 each expert is a module, which is quantized and takes adapters; "
     "to 4.48 the loss copies the shifted logits, to 4.45 also the output is fp32, and of Mistral, "
     "Mixtral, Phi 3, Qwen 2 and StarCoder 2 attention=flash repeats K and V",
     .read = read_version, .needs = {&needs_version}},
    {"loss_held", "yes|no", "yes",
     "the loss and with it its input: until the next one, as in a plain loop; no: until its backward "
     "is done, as in a Trainer of transformers",
     tdm_key_read_switch, FIELD(torch.drops_loss), .needs = {&tdm_need_lora, &needs_checkpoints}},
    {"num_labels", "N", NULL, "outputs of the head of logits=score; the config's, else 1",
     tdm_key_read_count, FIELD(torch.labels), .least = 1, .most = LABELS_MOST,
     .needs = {&needs_score}, .settled = settled_labels},
    {"compile", "no|layers|all", "no",
     "torch.compile of each layer, or of the loss too: a model of what inductor fuses",
     tdm_key_read_choice, FIELD(torch.compile)},
    {"checkpoint_wrapper", "no|yes", "no",
     "checkpoints are compiled with their layers, as torchtitan has them and selective ones always are",
     tdm_key_read_switch, FIELD(torch.checkpoint_wrapper),
     .needs = {&needs_wrapped, &needs_whole_layers}},
    {"liger", "none|all|rms_norm,swiglu,rope", "none",
     "Liger's kernels in layers (its loss is logits=fused; use_liger_kernel means both)",
     .read = tdm_key_read_liger},
    {"liger_version", "now|0.7.0|0.6.0|0.4.2", "now",
     "to 0.7.0 GRPO's loss has logits of a sequence; 0.5.3 to 0.6.0: norms and rotations fail on more than 2^31 elements, and each chunk of the loss "
     "has logits of its own; 0.4.2 and before: in fp32 too",
     tdm_key_read_choice, FIELD(torch.liger_version), .needs = {&needs_liger}},
    {"allocator_conf", "default|expandable_segments:True", "default", "PYTORCH_ALLOC_CONF",
     tdm_key_read_switch, FIELD(expandable_segments)},
    {"grads", "none|held", NULL,
     "gradients at the start of a step: zero_grad(set_to_none=True) after every step, or added to",
     tdm_key_read_choice, FIELD(torch.grads), .settled = tdm_key_settled_grads,
     .needs = {&tdm_need_later_steps}},
    {"lora_rank", "N", "0", "adapters of that rank; all else is frozen; 0: no LoRA",
     tdm_key_read_count, FIELD(torch.lora_rank), .most = RANK_MOST},
    {"lora_targets", "all|q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "all",
     "projections with adapters; where they are joint, qkv_proj (c_attn, query_key_value) and "
     "gate_up_proj",
     .read = tdm_key_read_targets, .needs = {&tdm_need_lora, &needs_projections}},
    {"lora", "bf16|peft", "bf16",
     "adapters in the dtype of the weights, or by the peft library: in fp32", tdm_key_read_switch,
     FIELD(torch.peft), .needs = {&tdm_need_lora, &needs_own_dtype}},
    {"use_rslora", "no|yes", "no", "rank-stabilised LoRA: adapters are scaled by another number",
     tdm_key_read_switch, FIELD(torch.rank_stabilised), .needs = {&needs_nothing}},
    {"use_cache", "no|yes", "no", "the forward makes a KV cache", tdm_key_read_switch,
     FIELD(torch.use_cache), .needs = {&needs_no_checkpoints}},
    {"torch", "now|2.1|2.0", "now",
     "to 2.1, a mean, as in norms, saves its input; to 2.0, AdamW (foreach) makes more",
     tdm_key_read_choice, FIELD(torch.release)},
    {"step", "1|2|3|all", "all", "the step to predict; later steps equal the third",
     .read = tdm_key_read_step},
    {.name = NULL},
};

const struct tdm_method_key tdm_keys_code[] = {
    {"model_code", "transformers|litgpt|lit-gpt", "transformers",
     "whose code the model and its loss are; litgpt: LitGPT's of 2024, lit-gpt: of 2023",
     tdm_key_read_choice, FIELD(torch.code)},
    {.name = NULL},
};

const struct tdm_method_key tdm_keys_in_backward[] = {
    {"optimizer_in_bwd", "no|yes", "no",
     "torchtune's, and LOMO's: a parameter is stepped once it has its gradient, which is freed",
     tdm_key_read_switch, FIELD(torch.steps_in_backward), .needs = {&needs_optimizer}},
    {"cpu_offload_optimizer", "no|states|gradients", "no",
     "torchao's CPUOffloadOptimizer: states in host memory; gradients: with offload_gradients=True",
     tdm_key_read_choice, FIELD(torch.host_optimizer), .needs = {&needs_optimizer}},
    {.name = NULL},
};

const struct tdm_method_key tdm_keys_module[] = {
    {"attention_dropout", "0|0.1", "0",
     "of attention=eager: dropout of scores, any share below 1; what the model's config says counts "
     "anyway",
     tdm_key_read_dropout, FIELD(torch.attention_dropout), .needs = {&needs_scores}},
    {"image_tokens", "N", "0",
     "tokens of a sequence that pictures give, by a frozen vision tower (of Qwen2.5-VL)",
     tdm_key_read_count, FIELD(torch.image_tokens), .most = IMAGE_TOKENS_MOST,
     .needs = {&needs_vision}},
    {"use_dora", "no|yes", "no",
     "DoRA: a magnitude for each output; the whole change of a weight is made for each product",
     tdm_key_read_switch, FIELD(torch.dora), .needs = {&tdm_need_lora}},
    {.name = NULL},
};

const struct tdm_method_key tdm_keys_plain[] = {
    {"lora_dtype", "weights|bf16", "weights",
     "of adapters among weights of fp32; bf16: as TRL makes those of quantized weights",
     tdm_key_read_switch, FIELD(torch.narrow_adapters),
     .needs = {&tdm_need_lora, &needs_wide_weights}},
    {"galore_rank", "N", "128", "rank of the projection of optimizer=galore and galore-8bit",
     tdm_key_read_count, FIELD(torch.galore_rank), .least = 1, .most = RANK_MOST,
     .needs = {&needs_galore}},
    {.name = NULL},
};

const struct tdm_method_key tdm_keys_whole[] = {
    {"gptq_kernel", "cuda-old|triton", "cuda-old",
     "products of quantization=gptq: cuda-old: unpacked by operations of PyTorch, and kept for the "
     "backward; triton: by a kernel, for the time of each product",
     tdm_key_read_switch, FIELD(torch.gptq_triton), .needs = {&needs_gptq}},
    {"lora_kernels", "none|unsloth", "none",
     "unsloth: its functions of q, k and v with their adapters, of the output and of the MLP with theirs",
     tdm_key_read_choice, FIELD(torch.lora_kernels), .needs = {&tdm_need_lora}},
    {.name = NULL},
};

/* Names separated by commas or spaces, or none. */
static enum tdm_status read_modules(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const struct tdm_key_word words[] = {{"embed_tokens", TDM_SAVED_EMBEDDING},
                                                {"lm_head", TDM_SAVED_HEAD}};
    settings->torch.modules_to_save = 0;
    if (strcmp(value, "none") == 0)
        return TDM_OK;
    return tdm_key_read_words(key, value, words, sizeof(words) / sizeof(words[0]),
                              &settings->torch.modules_to_save, err);
}

static enum tdm_status read_quantization(const struct tdm_method_key *key, const char *value,
                                         struct tdm_method_settings *settings,
                                         struct tdm_error *err)
{
    enum tdm_status status = tdm_key_read_choice(key, value, settings, err);
    settings->torch.whole_base =
        status == TDM_OK && settings->torch.quantization == TDM_QUANTIZATION_NONE;
    return status;
}

const struct tdm_method_key tdm_keys_adapters[] = {
    {"quantization", "none|nf4|int8|gptq|awq", NULL,
     "projections under adapters: bitsandbytes in 4 bits (fp4 takes the same) or 8; GPTQ and AWQ, 4 "
     "bits; if nothing is said as the model's quantization_config",
     read_quantization, FIELD(torch.quantization), .settled = settled_quantization,
     .needs = {&tdm_need_lora}, .unmeasured = "awq"},
    {"double_quantization", "no|yes", "no", "bnb_4bit_use_double_quant: scales of 8 bits",
     tdm_key_read_switch, FIELD(torch.double_quantization), .needs = {&needs_nf4}},
    {"bnb_keeps_inputs", "no|yes", "no",
     "products of 4 bits keep their inputs until the next loss, as before bitsandbytes 0.43",
     tdm_key_read_switch, FIELD(torch.bnb_keeps_inputs), .needs = {&needs_nf4}},
    {"modules_to_save", "none|embed_tokens,lm_head", "none",
     "modules of which copies are trained beside adapters", .read = read_modules,
     .needs = {&tdm_need_lora}},
    {"lora_dropout", "0|0.05", "0", "dropout of the inputs of adapters, any share below 1",
     .read = tdm_key_read_dropout, FIELD(torch.lora_dropout),
     .needs = {&tdm_need_lora, &needs_dropout}},
    {"autocast", "weights|bf16|no", "weights",
     "weights: to bf16 where weights are fp32; bf16: always, as bf16=True of TrainingArguments; no: "
     "fp32 weights make all values fp32",
     tdm_key_read_choice, FIELD(torch.autocast),
     .needs = {&needs_wide_products, &needs_other_autocast}},
    {.name = NULL},
};

/* torchao's Float8LinearConfig, by the names of its recipes. */
const struct tdm_method_key tdm_keys_float8[] = {
    {"float8_recipe", "none|tensorwise|rowwise|rowwise_with_gw_hp|te|blockwise", "none",
     "products of the layers' projections in 8 bits by torchao's Float8Linear, by its recipes; te: "
     "by Transformer Engine as accelerate has it, with the head's; blockwise: by Float8BlockwiseLinear",
     tdm_key_read_choice, FIELD(torch.float8), .unmeasured = "blockwise"},
    {.name = NULL},
};

enum tdm_status tdm_key_read_clipping(const struct tdm_method_key *key, const char *value,
                                      struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double norm = strtod(value, &end);
    if (end == value || *end != '\0' || !(norm >= 0))
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: \"%.64s\" is not a norm; expected a number from 0 on", key->name,
                        value);
    settings->torch.clips = norm > 0;
    return TDM_OK;
}

/* The training loop. Under DDP all but the last backward are in no_sync(), under fully_shard every
 * one reduces its gradients, as in torchtitan. */
const struct tdm_method_key tdm_keys_loop[] = {
    {"gradient_accumulation_steps", "N", "1", "backwards before a step", tdm_key_read_count,
     FIELD(torch.accumulation), .least = 1, .most = ACCUMULATION_MOST},
    {"max_grad_norm", "0|1", "0", "any norm to which gradients are clipped before a step; 0: none",
     .read = tdm_key_read_clipping, .needs = {&needs_gradients_on_gpu}},
    {.name = NULL},
};

/* Mixtures whose experts are joined before transformers 5 too (modeling_granitemoe.py,
 * modeling_gpt_oss.py, modeling_llama4.py). */
static bool always_joins(const struct tdm_experts *e)
{
    return e->biased || e->all_rows || e->beside || e->router == TDM_ROUTER_CHOSEN;
}

/* Experts that are modules are quantized, and adapters are of them. Where that is not modelled, an
 * answer for joint ones would be of another model. */
static enum tdm_status check_modules(const struct tdm_model *model,
                                     const struct tdm_torch_settings *torch, const char *method,
                                     struct tdm_error *err)
{
    const uint32_t mlp =
        1u << TDM_PROJECTION_GATE | 1u << TDM_PROJECTION_UP | 1u << TDM_PROJECTION_DOWN;
    if (!torch->expert_modules || model->experts.count == 0 || always_joins(&model->experts))
        return TDM_OK;
    const bool modules = tdm_torch_expert_modules(model, torch) > 0;
    const bool adapted = torch->lora_rank > 0 && torch->adapter != TDM_ADAPTER_NORMS &&
                         !tdm_adapter_is_prompt(torch) && (tdm_adapter_targets(torch) & mlp) != 0;
    if (modules && torch->lora_kernels != TDM_LORA_KERNELS_NONE)
        return tdm_fail(err, TDM_USAGE,
                        "--set lora_kernels: of experts before transformers 5 it is not modelled");
    if (modules || (!adapted && torch->quantization == TDM_QUANTIZATION_NONE))
        return TDM_OK;
    tdm_fail(
        err, TDM_USAGE,
        "method %s: %s experts of %s before transformers 5, which are modules of their own, are "
        "not modelled with these settings",
        method, adapted ? "adapters of" : "quantized", model->architecture);
    return tdm_hint(err, "--set transformers=now%s",
                    adapted && torch->quantization == TDM_QUANTIZATION_NONE
                        ? ", or adapters of attention alone: "
                          "--set lora_targets=q_proj,k_proj,v_proj,o_proj"
                        : "");
}

/* What is not modelled of gated DeltaNets and other mixers, and of shared experts whose modules
 * gather their weights one by one. */
static enum tdm_status check_mixed(const struct tdm_model *model,
                                   const struct tdm_torch_settings *torch, const char *method,
                                   struct tdm_error *err)
{
    const uint32_t latent = 1u << TDM_PROJECTION_Q_A | 1u << TDM_PROJECTION_Q_B |
                            1u << TDM_PROJECTION_KV_A | 1u << TDM_PROJECTION_KV_B;
    const uint32_t heads = 1u << TDM_PROJECTION_Q | 1u << TDM_PROJECTION_K |
                           1u << TDM_PROJECTION_V | 1u << TDM_PROJECTION_O | latent;
    const uint32_t all = (1u << TDM_PROJECTIONS) - 1;
    const char *mixer = tdm_model_other_mixer(model);
    const bool shared = (model->experts.shared_gate || model->experts.router > TDM_ROUTER_CHOSEN) &&
                        !tdm_adapter_takes_shared(torch);
    if (mixer == NULL && !shared && torch->float8 == TDM_FLOAT8_NO)
        return TDM_OK;
    if (mixer == NULL && !model->experts.shared_gate && model->experts.router <= TDM_ROUTER_CHOSEN)
        return TDM_OK;
    const bool mlp = model->experts.count == 0 && torch->lora_targets != all;
    if (torch->lora_rank > 0 && torch->adapter != TDM_ADAPTER_NORMS &&
        !tdm_adapter_is_prompt(torch) && !mlp && (torch->lora_targets & ~heads) != 0) {
        tdm_fail(err, TDM_USAGE, "--set %s: adapters of %s of %s are not modelled",
                 torch->adapter == TDM_ADAPTER_LORA ? "lora_rank" : "peft_type",
                 mixer != NULL ? mixer : "shared experts", model->architecture);
        return tdm_hint(err, "those of attention are: --set lora_targets=%s",
                        model->latent.kv_rank > 0
                            ? "q_a_proj,q_b_proj,q_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj"
                            : "q_proj,k_proj,v_proj,o_proj");
    }
    if (torch->quantization != TDM_QUANTIZATION_NONE || torch->float8 != TDM_FLOAT8_NO)
        return tdm_fail(err, TDM_USAGE, "method %s: quantized projections of %s are not modelled",
                        method, model->architecture);
    if (mixer == NULL)
        return TDM_OK;
    if (torch->context.divider != NULL)
        return tdm_fail(err, TDM_USAGE, "method %s: %s, which %s has, are not modelled", method,
                        mixer, model->architecture);
    if (torch->use_cache || torch->compile != TDM_COMPILE_NO)
        return tdm_fail(err, TDM_USAGE, "--set %s: of %s it is not modelled",
                        torch->use_cache ? "use_cache" : "compile", mixer);
    return TDM_OK;
}

/* What accelerate's convert_model and Transformer Engine (assert_dim_for_fp8_exec) need, and what
 * is not modelled. */
static enum tdm_status check_te(const struct tdm_model *model,
                                const struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const char *what = torch->lora_rank > 0                  ? "adapters"
                       : torch->compile != TDM_COMPILE_NO    ? "torch.compile"
                       : torch->context.divider != NULL      ? "divided sequences"
                       : torch->wrapper == &tdm_fsdp_wrapper ? "fully_shard"
                       : model->experts.count > 0            ? "experts"
                       : model->tied                         ? "a tied head"
                                                             : NULL;
    if (what != NULL)
        return tdm_fail(err, TDM_USAGE,
                        "--set float8_recipe: te with %s is not "
                        "modelled",
                        what);
    if (torch->batch * torch->tokens % TE_ROWS != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--context: Transformer Engine's products of 8 bits need tokens that %u "
                        "divides",
                        TE_ROWS);
    return TDM_OK;
}

/* Float8BlockwiseLinear takes bf16 alone, and whole blocks. */
static enum tdm_status check_blockwise(const struct tdm_model *model,
                                       const struct tdm_torch_settings *torch,
                                       struct tdm_error *err)
{
    const bool whole = model->hidden % FLOAT8_BLOCK == 0 &&
                       model->intermediate % FLOAT8_BLOCK == 0 &&
                       (uint64_t)model->kv_heads * model->head_dim % FLOAT8_BLOCK == 0 &&
                       (uint64_t)model->query_heads * model->head_dim % FLOAT8_BLOCK == 0;
    if (!whole)
        return tdm_fail(err, TDM_USAGE,
                        "--set float8_recipe: blockwise needs projections of multiples of %u, "
                        "which those of %s are not",
                        FLOAT8_BLOCK, model->name);
    if (torch->fp32_weights && torch->wrapper != &tdm_fsdp_wrapper)
        return tdm_fail(err, TDM_USAGE,
                        "--set float8_recipe: blockwise takes weights of bf16 alone");
    return TDM_OK;
}

/* What of LitGPT's model and of its loop is modelled. */
static enum tdm_status check_litgpt(const struct tdm_model *model,
                                    const struct tdm_torch_settings *torch, struct tdm_error *err)
{
    const uint32_t parts = TDM_PART_LAYER_NORMS | TDM_PART_PARALLEL | TDM_PART_PLAIN_MLP |
                           TDM_PART_BIASES | TDM_PART_HEAD_BIAS | TDM_PART_JOINT_QKV |
                           TDM_PART_CUT_ROPE;
    bool windows = false;
    if (torch->code == TDM_CODE_TRANSFORMERS)
        return TDM_OK;
    for (uint32_t i = 0; i < model->layers; i++)
        windows |=
            model->layer_kinds[i].window > 0 && torch->tokens >= model->layer_kinds[i].window;
    const char *what =
        (model->parts & ~parts) != 0 || model->experts.count > 0 || model->head_norms ||
                model->own_scores != TDM_SCORES_COMMON || model->whole_qk_norm ||
                model->attention_softcap > 0 || model->logits_softcap > 0
            ? model->architecture
        : windows                                                    ? "a window of attention"
        : torch->lora_rank > 0 && torch->adapter != TDM_ADAPTER_LORA ? "peft_type"
        : torch->dora                                                ? "use_dora"
        : torch->peft                                                ? "lora=peft"
        : torch->quantization != TDM_QUANTIZATION_NONE &&
                torch->quantization != TDM_QUANTIZATION_NF4
            ? "this quantization"
        : torch->modules_to_save != 0 ? "modules_to_save"
        : torch->logits != TDM_LOGITS_HF && torch->logits != TDM_LOGITS_BF16 &&
                torch->logits != TDM_LOGITS_BF16_HELD
            ? "logits of another loss"
        : torch->loss != TDM_LOSS_PADDED ? "a version of transformers"
        : torch->attention == TDM_TORCH_EAGER || torch->attention == TDM_TORCH_MATERIALIZED
            ? "attention=eager"
        : torch->compile != TDM_COMPILE_NO && model->kv_heads > 1 &&
                model->query_heads > model->kv_heads
            ? "compile and groups of queries"
        : torch->liger != 0                                           ? "liger"
        : torch->use_cache                                            ? "use_cache"
        : torch->fp32_weights || torch->autocast == TDM_AUTOCAST_BF16 ? "autocast"
        : torch->second.trainer != TDM_TRAINER_SFT                    ? "trainer"
                                                                      : NULL;
    if (what == NULL)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--set model_code: LitGPT with %s is not modelled", what);
    return tdm_hint(err, "without model_code the answer is for the code of transformers");
}

/* Where Unsloth's functions are modelled: LoRA on weights that are whole, of nf4 or of GPTQ. That
 * of the MLP has neither dropout nor GPTQ. */
static enum tdm_status check_lora_kernels(const struct tdm_model *model,
                                          const struct tdm_torch_settings *torch,
                                          struct tdm_error *err)
{
    const uint32_t mlp =
        1u << TDM_PROJECTION_GATE | 1u << TDM_PROJECTION_UP | 1u << TDM_PROJECTION_DOWN;
    const bool gptq = torch->quantization == TDM_QUANTIZATION_GPTQ;
    if (torch->lora_rank == 0 || torch->lora_kernels == TDM_LORA_KERNELS_NONE)
        return TDM_OK;
    if ((torch->lora_targets & mlp) == mlp && model->experts.count == 0 &&
        (torch->lora_dropout > 0 || gptq)) {
        tdm_fail(err, TDM_USAGE,
                 "--set lora_kernels: Unsloth's function of the MLP does not run with %s",
                 gptq ? "quantization=gptq" : "lora_dropout");
        return tdm_hint(
            err,
            "take adapters of attention alone: --set lora_targets=q_proj,k_proj,v_proj,o_proj");
    }
    const char *what =
        torch->adapter != TDM_ADAPTER_LORA ? "peft_type"
        : torch->dora                      ? "use_dora"
        : torch->quantization == TDM_QUANTIZATION_INT8 ||
                torch->quantization == TDM_QUANTIZATION_AWQ
            ? "this quantization"
        : torch->bnb_keeps_inputs              ? "bnb_keeps_inputs"
        : torch->float8 != TDM_FLOAT8_NO       ? "float8_recipe"
        : torch->compile != TDM_COMPILE_NO     ? "compile"
        : torch->code != TDM_CODE_TRANSFORMERS ? "model_code"
        : tdm_second_has_loss(&torch->second) && torch->second.trainer != TDM_TRAINER_GRPO
            ? "trainer"
            : NULL;
    if (what == NULL)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--set lora_kernels: Unsloth's functions with %s are not modelled",
             what);
    return tdm_hint(err, "without lora_kernels the answer is for peft's own operations");
}

/* torchtune refuses gradients of several backwards and clipping; other optimizers hold tensors from
 * one parameter to the next. */
static enum tdm_status check_steps(const struct tdm_torch_settings *torch, struct tdm_error *err)
{
    const char *what =
        torch->accumulation > 1          ? "gradient_accumulation_steps"
        : torch->clips                   ? "max_grad_norm"
        : torch->grads == TDM_GRADS_HELD ? "grads=held"
        : torch->optimizer >= TDM_TORCH_ADAFACTOR && torch->optimizer < TDM_TORCH_GALORE
            ? "this optimizer"
            : NULL;
    return !torch->steps_in_backward || what == NULL
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE, "--set optimizer_in_bwd: it does not go with %s", what);
}

/* It steps one copy of a parameter after the other, by an optimizer that runs on a CPU. */
static enum tdm_status check_host(const struct tdm_torch_settings *torch, struct tdm_error *err)
{
    const char *what = torch->host_optimizer == TDM_HOST_NOTHING   ? NULL
                       : torch->optimizer > TDM_TORCH_SGD_MOMENTUM ? "this optimizer"
                       : torch->clips                              ? "max_grad_norm"
                       : torch->steps_in_backward                  ? "optimizer_in_bwd"
                       : torch->grads == TDM_GRADS_HELD            ? "grads=held"
                       : torch->second.trainer != TDM_TRAINER_SFT  ? "trainer"
                       : torch->accumulation > 1 && torch->host_optimizer == TDM_HOST_GRADIENTS
                           ? "gradient_accumulation_steps and offloaded gradients"
                           : NULL;
    return what == NULL ? TDM_OK
                        : tdm_fail(err, TDM_USAGE,
                                   "--set cpu_offload_optimizer: it does not go with %s", what);
}

static enum tdm_status check_checkpoints(const struct tdm_model *model,
                                         const struct tdm_torch_settings *torch,
                                         struct tdm_error *err)
{
    const char *with =
        (model->parts & (TDM_PART_PARALLEL | TDM_PART_ONE_MIXER)) != 0 ? "layers of this family"
        : torch->checkpoint_offload != TDM_CHECKPOINTS_HERE            ? "checkpoint_offload"
        : torch->context.chunk_tokens > 0 || torch->mlp_tiles > 0      ? "sequences in chunks"
                                                                       : NULL;
    if (torch->checkpointing != TDM_CHECKPOINTING_MODULES || with == NULL)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--set checkpointing=modules: it is not modelled with %s", with);
    return tdm_hint(err, "--set checkpointing=on, of whole layers");
}

/* Baichuan 2: losses that read the head's weight themselves do not know that it is normed. */
static enum tdm_status check_normed_head(const struct tdm_model *model,
                                         const struct tdm_method_settings *settings,
                                         struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const char *what = torch->logits_tiles > 0                    ? "logits_tiles"
                       : torch->second.trainer != TDM_TRAINER_SFT ? "trainer"
                       : torch->code != TDM_CODE_TRANSFORMERS     ? "model_code"
                       : torch->context.divider != NULL           ? "divided sequences"
                       : torch->context.chunk_tokens > 0          ? "sequences in chunks"
                       : tdm_tensor_ranks(torch) > 1              ? "tensor-parallel ranks"
                       : torch->logits > TDM_LOGITS_BF16 && torch->logits != TDM_LOGITS_SCORE
                           ? "logits in parts"
                           : NULL;
    return !model->normed_head || what == NULL
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE,
                          "method %s: the normed head of %s with %s is not modelled",
                          settings->method->name, model->architecture, what);
}

/* GPT-J, BLOOM and MPT: scores in memory are all that transformers has, or that is modelled. */
static enum tdm_status check_own_scores(const struct tdm_model *model,
                                        const struct tdm_method_settings *settings,
                                        struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const char *what = torch->context.divider != NULL         ? "divided sequences"
                       : torch->context.chunk_tokens > 0      ? "sequences in chunks"
                       : torch->shifted                       ? "attention in groups"
                       : tdm_tensor_ranks(torch) > 1          ? "tensor-parallel ranks"
                       : torch->compile != TDM_COMPILE_NO     ? "compile"
                       : torch->liger != 0                    ? "liger"
                       : torch->use_cache                     ? "use_cache"
                       : tdm_adapter_prefix_tokens(torch) > 0 ? "PREFIX_TUNING"
                                                              : NULL;
    if (model->own_scores == TDM_SCORES_COMMON)
        return TDM_OK;
    if (torch->attention != TDM_TORCH_EAGER && torch->attention != TDM_TORCH_MATERIALIZED &&
        what == NULL)
        return tdm_fail(err, TDM_USAGE,
                        "--set attention: attention of %s with scores in memory alone is modelled: "
                        "eager",
                        model->architecture);
    return what == NULL ? TDM_OK
                        : tdm_fail(err, TDM_USAGE, "method %s: %s with %s is not modelled",
                                   settings->method->name, model->architecture, what);
}

enum tdm_status tdm_torch_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                                struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    const char *part = tdm_model_rare_part(model);
    const bool known = torch->deepspeed.ep_size == 0 &&
                       settings->method->system == &tdm_torch_system &&
                       (model->latent.kv_rank == 0 || torch->context.divider == NULL);
    if (part != NULL && !known) {
        tdm_fail(err, TDM_USAGE, "method %s: %s of %s are not modelled", settings->method->name,
                 part, model->architecture);
        return tdm_hint(err, model->parts == 0 ? "parallel, fsdp, zero3 and tensor-parallel take it"
                                               : "--mode serve takes it");
    }
    if (torch->wrapper != &tdm_fsdp_wrapper)
        settings->torch.fsdp.expert_parts = 0;
    settings->torch.steps_in_backward &= torch->optimizer != TDM_TORCH_NO_OPTIMIZER;
    if (torch->optimizer == TDM_TORCH_NO_OPTIMIZER)
        settings->torch.host_optimizer = TDM_HOST_NOTHING;
    enum tdm_status status = tdm_adapter_check(model, torch, err);
    if (status == TDM_OK)
        status = check_litgpt(model, torch, err);
    if (status == TDM_OK)
        status = check_steps(torch, err);
    if (status == TDM_OK)
        status = check_host(torch, err);
    if (status == TDM_OK)
        status = check_checkpoints(model, torch, err);
    if (status == TDM_OK)
        status = check_lora_kernels(model, torch, err);
    if (status == TDM_OK)
        status = check_mixed(model, torch, settings->method->name, err);
    if (status == TDM_OK)
        status = check_modules(model, torch, settings->method->name, err);
    if (status != TDM_OK)
        return status;
    if (torch->image_tokens > 0 && model->vision.blocks == 0 && !model->text_alone)
        return tdm_fail(err, TDM_USAGE, "--set image_tokens: %s has no vision tower; leave it out",
                        model->name);
    if (torch->image_tokens > torch->tokens)
        return tdm_fail(err, TDM_USAGE,
                        "--set image_tokens: more than the %" PRIu64 " tokens of a sequence",
                        torch->tokens);
    if ((model->parts & TDM_PART_SINKS) != 0 && torch->context.divider != NULL)
        return tdm_fail(err, TDM_USAGE,
                        "method %s: sinks of attention, which %s has, are not modelled",
                        settings->method->name, model->architecture);
    settings->torch.attention = tdm_torch_attention_of(model, torch->attention);
    status = check_own_scores(model, settings, err);
    if (status == TDM_OK)
        status = check_normed_head(model, settings, err);
    if (status != TDM_OK)
        return status;
    settings->torch.fsdp.gathers_float8 &=
        torch->float8 == TDM_FLOAT8_TENSORWISE && torch->wrapper == &tdm_fsdp_wrapper;
    if (torch->float8 != TDM_FLOAT8_NO && torch->quantization != TDM_QUANTIZATION_NONE)
        return tdm_fail(err, TDM_USAGE,
                        "--set float8_recipe: products of quantized weights are not of 8 bits");
    if (torch->float8 == TDM_FLOAT8_BLOCKWISE &&
        (status = check_blockwise(model, torch, err)) != TDM_OK)
        return status;
    if (torch->float8 == TDM_FLOAT8_TE && (status = check_te(model, settings, err)) != TDM_OK)
        return status;
    if (torch->fsdp.gathers_float8 && torch->fsdp.offload)
        return tdm_fail(err, TDM_USAGE,
                        "--set enable_fsdp_float8_all_gather: it goes with offload_policy=none");
    if (torch->quantization != TDM_QUANTIZATION_NONE && torch->lora_rank == 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set quantization: quantized weights are frozen, so nothing would "
                 "be trained");
        return tdm_hint(err, "add adapters: --set lora_rank=16");
    }
    return tdm_second_check(model, settings, err);
}

enum tdm_status tdm_torch_check_second(const struct tdm_model *model,
                                       const struct tdm_method_settings *settings,
                                       struct tdm_error *err)
{
    struct tdm_method_settings of_second = *settings;
    of_second.torch = (struct tdm_torch_settings){.tokens = settings->torch.tokens,
                                                  .batch = settings->torch.batch,
                                                  .attention = settings->torch.attention,
                                                  .wrapper = &tdm_no_wrapper,
                                                  .ranks = 1};
    return tdm_torch_check(model, &of_second, err);
}

const char *tdm_torch_assumption(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings)
{
    const struct tdm_divider *divider = settings->method->divider;
    const struct tdm_wrapper *wrapper = settings->torch.wrapper;
    const char *of_wrapper = wrapper->assumption == NULL ? NULL : wrapper->assumption(settings);
    if (of_wrapper != NULL)
        return of_wrapper;
    if (tdm_adapter_prefix_tokens(&settings->torch) > 0)
        return TDM_NOT_MEASURED "PREFIX_TUNING, as read in peft and transformers";
    if (tdm_model_other_mixer(model) != NULL && wrapper->enter_module != NULL)
        return TDM_NOT_MEASURED
            "mixers under ZeRO-3, whose kernels read weights of modules that are "
            "not called, so these are gathered with the mixer";
    if (model->delta.value_heads > 0)
        return "gated DeltaNets by the kernels of flash-linear-attention and causal-conv1d";
    if (model->mamba.heads > 0)
        return TDM_NOT_MEASURED
            "Mamba-2 by the kernels of mamba-ssm and causal-conv1d, as read; without "
            "them transformers needs many times as much";
    if (model->latent.kv_rank > 0)
        return TDM_NOT_MEASURED "latent attention on a GPU, whose kernels' scratch is assumed";
    if (model->short_kernel > 0)
        return "short convolutions by the kernel of causal-conv1d";
    if (tdm_torch_counts_vision(&settings->torch, model))
        return "the vision tower is frozen: its weights and what image_tokens says count, not what it "
               "makes while it runs";
    if (model->text_alone)
        return TDM_NOT_COUNTED "towers of pictures or sound; this is the language model alone";
    if ((model->parts & TDM_PART_SINKS) != 0)
        return settings->torch.attention == TDM_TORCH_EAGER
                   ? NULL
                   : "kernels of attention whose sinks take nothing";
    if (model->attention_dropout > 0 && settings->torch.attention != TDM_TORCH_EAGER &&
        settings->torch.attention != TDM_TORCH_MATERIALIZED)
        return "dropout of attention by its kernels, which keep no mask but a seed";
    if (model->base.stored == TDM_STORED_FP8)
        return TDM_NOT_COUNTED "the weights of fp8, which are made bf16 to be trained";
    if (model->base.stored == TDM_STORED_INT4_EXPERTS)
        return TDM_NOT_COUNTED "the experts of int4, which are made bf16 to be trained";
    return divider == NULL || divider->assumption == NULL ? NULL
                                                          : divider->assumption(model, settings);
}
