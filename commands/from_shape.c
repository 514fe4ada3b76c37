/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model that Megatron-LM's arguments describe, as the config.json that Hugging Face would have
 * of it, which models/config.c reads. Norms, biases, the activation and positions are settings of
 * the method (commands/from_megatron.c). Sources: megatron/training/arguments.py (validate_args),
 * core/tokenizers/utils/build_tokenizer.py of Megatron-LM d98e8a64.
 */
#include "commands/from_shape.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define GPT2_VOCABULARY 50257
#define TIKTOKEN_VOCABULARY 131072 /* DEFAULT_TIKTOKEN_MAX_VOCAB */
#define EXPERTS_PER_TOKEN 2
#define MLP_MULTIPLE 64 /* of the width of a gated MLP that is not said */

/* Options of sizes, and what they are in a config and in a model. */
#define FIELD(name) offsetof(struct tdm_model, name)
#define NO_FIELD SIZE_MAX
static const struct {
    const char *option, *key;
    size_t field;
} sizes[] = {
    {"--num-layers", "num_hidden_layers", FIELD(layers)},
    {"--hidden-size", "hidden_size", FIELD(hidden)},
    {"--num-attention-heads", "num_attention_heads", FIELD(query_heads)},
    {"--num-query-groups", "num_key_value_heads", FIELD(kv_heads)},
    {"--kv-channels", "head_dim", FIELD(head_dim)},
    {"--ffn-hidden-size", "intermediate_size", FIELD(intermediate)},
    {"--max-position-embeddings", "max_position_embeddings", NO_FIELD},
    {"--vocab-size", "vocab_size", FIELD(vocabulary)},
    {"--num-experts", "num_local_experts", FIELD(experts.count)},
    {"--moe-ffn-hidden-size", "moe_intermediate_size", FIELD(experts.intermediate)},
    {"--moe-router-topk", "num_experts_per_tok", FIELD(experts.per_token)},
    {"--moe-shared-expert-intermediate-size", "shared_expert_intermediate_size",
     FIELD(experts.shared)},
};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* Of a vocabulary that is padded or not said; no config has it. */
#define OTHER_VOCABULARY "tidemark_vocab_size"
#define ASSUMED_VOCABULARY "tidemark_vocab_assumed"
#define IMPLIED_SIZES "tidemark_implied" /* why a size that is not said is what it is */

static bool is_on(const json_t *arguments, const char *option)
{
    return !tdm_from_is_off(json_object_get(arguments, option));
}

static json_int_t size_of(const json_t *config, const char *key)
{
    return json_integer_value(json_object_get(config, key));
}

static bool has(const json_t *config, const char *key)
{
    return json_object_get(config, key) != NULL;
}

/* A size that follows from others, if it is not said. */
static bool imply(json_t *config, const char *key, json_int_t value)
{
    return has(config, key) || value < 1 ||
           json_object_set_new(config, key, json_integer(value)) == 0;
}

/* The same, with what is to be said of it where the model differs. */
static bool imply_because(json_t *config, const char *key, json_int_t value, const char *why)
{
    json_t *reasons = json_object_get(config, IMPLIED_SIZES);
    if (has(config, key) || value < 1)
        return true;
    if (reasons == NULL && json_object_set_new(config, IMPLIED_SIZES, reasons = json_object()) != 0)
        return false;
    return json_object_set_new(reasons, key, json_string(why)) == 0 && imply(config, key, value);
}

static enum tdm_status read_sizes(const struct tdm_from_reading *r, const json_t *arguments)
{
    for (size_t i = 0; i < SIZES; i++) {
        const json_t *value = json_object_get(arguments, sizes[i].option);
        uint64_t count;
        if (tdm_from_is_off(value))
            continue;
        enum tdm_status status = tdm_from_count(r, sizes[i].option, value, &count);
        if (status != TDM_OK)
            return status;
        if (json_object_set_new(r->from->config, sizes[i].key, json_integer((json_int_t)count)) !=
            0)
            return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its model", r->file);
    }
    return TDM_OK;
}

/* The vocabulary where --vocab-size does not say it: the padded one, or that of a tokenizer whose
 * size is known. */
static enum tdm_status read_vocabulary(const struct tdm_from_reading *r, const json_t *arguments)
{
    static const char padded[] = "--padded-vocab-size";
    json_t *config = r->from->config;
    const json_t *ranks = json_object_get(arguments, "--tensor-model-parallel-size");
    const bool tiktoken =
        tdm_from_is(json_object_get(arguments, "--tokenizer-type"), "TikTokenizer");
    const bool pairs = is_on(arguments, "--merge-file");
    uint64_t rows, parts = 1;
    if (is_on(arguments, padded)) {
        enum tdm_status status =
            tdm_from_count(r, padded, json_object_get(arguments, padded), &rows);
        if (status == TDM_OK && rows > TDM_DIMENSION_LIMIT)
            status = tdm_from_bad(r, padded, json_object_get(arguments, padded),
                                  "it must be at most 16777216");
        if (status == TDM_OK && ranks != NULL)
            status = tdm_from_count(r, "--tensor-model-parallel-size", ranks, &parts);
        if (status != TDM_OK)
            return status;
        char text[32]; /* rows of a rank, which any smaller vocabulary is padded to */
        snprintf(text, sizeof(text), "%" PRIu64, (rows + parts - 1) / parts);
        json_object_del(config, "vocab_size");
        if (!imply(config, OTHER_VOCABULARY, (json_int_t)rows))
            return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its model", r->file);
        return tdm_from_pair(r, "make_vocab_size_divisible_by", text);
    }
    if (has(config, "vocab_size") || (!tiktoken && !pairs))
        return TDM_OK;
    return imply(config, OTHER_VOCABULARY, tiktoken ? TIKTOKEN_VOCABULARY : GPT2_VOCABULARY) &&
                   json_object_set_new(config, ASSUMED_VOCABULARY, json_true()) == 0
               ? TDM_OK
               : tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its model", r->file);
}

/* What Megatron-LM takes where a size is not said. */
static bool imply_sizes(json_t *config, const json_t *arguments)
{
    const json_int_t hidden = size_of(config, "hidden_size"),
                     heads = size_of(config, "num_attention_heads");
    const json_int_t gated = hidden * 8 / 3 / MLP_MULTIPLE * MLP_MULTIPLE;
    bool done =
        is_on(arguments, "--swiglu")
            ? imply_because(config, "intermediate_size", gated,
                            "--ffn-hidden-size is not there, which means 8/3 x --hidden-size in "
                            "multiples of 64")
            : imply_because(config, "intermediate_size", hidden * 4,
                            "--ffn-hidden-size is not there, which means 4 x --hidden-size");
    if (heads > 0 && hidden % heads == 0)
        done = done && imply_because(config, "head_dim", hidden / heads,
                                     "--kv-channels is not there, which means --hidden-size / "
                                     "--num-attention-heads");
    if (!is_on(arguments, "--group-query-attention")) {
        json_object_del(config, "num_key_value_heads");
        done = done && imply_because(config, "num_key_value_heads", heads,
                                     "--group-query-attention is not there, which means as many "
                                     "KV heads as --num-attention-heads");
    }
    if (has(config, "num_local_experts"))
        done = done && imply(config, "num_experts_per_tok", EXPERTS_PER_TOKEN) &&
               imply(config, "moe_intermediate_size", size_of(config, "intermediate_size"));
    return done &&
           json_object_set_new(
               config, "tie_word_embeddings",
               json_boolean(!is_on(arguments, "--untie-embeddings-and-output-weights"))) == 0;
}

/* Sizes that other parts of a model replace, which are not compared. */
static void drop_sizes(json_t *config, const json_t *arguments)
{
    if (has(config, "num_local_experts"))
        json_object_del(config, "intermediate_size");
    if (is_on(arguments, "--multi-latent-attention")) {
        json_object_del(config, "head_dim");
        json_object_del(config, "num_key_value_heads");
    }
}

/* The option of a part that shapes are not read with; NULL: there is none. */
static const char *other_part(const json_t *arguments)
{
    static const char *const parts[] = {"--multi-latent-attention",
                                        "--moe-shared-expert-intermediate-size",
                                        "--hybrid-override-pattern",
                                        "--hybrid-layer-pattern",
                                        "--is-hybrid-model",
                                        "--squared-relu",
                                        NULL};
    const json_t *every = json_object_get(arguments, "--moe-layer-freq");
    for (const char *const *part = parts; *part != NULL; part++)
        if (is_on(arguments, *part))
            return *part;
    if (is_on(arguments, "--qk-layernorm") && is_on(arguments, "--add-qkv-bias"))
        return "--add-qkv-bias"; /* no family has both */
    if (is_on(arguments, "--num-experts") && is_on(arguments, "--add-qkv-bias"))
        return "--add-qkv-bias";
    return every == NULL || json_integer_value(every) == 1 ? NULL : "--moe-layer-freq";
}

/* The option of a size that is missing, or NULL. */
static const char *missing_size(const json_t *config)
{
    for (size_t i = 0; i < SIZES && strcmp(sizes[i].key, "num_local_experts") != 0; i++)
        if (!has(config, sizes[i].key) && strcmp(sizes[i].key, "intermediate_size") != 0 &&
            !(strcmp(sizes[i].key, "vocab_size") == 0 && has(config, OTHER_VOCABULARY)))
            return sizes[i].option;
    return NULL;
}

/* The family whose layers have these parts, for models/config.c. */
static bool name_family(json_t *config, const json_t *arguments)
{
    const bool experts = has(config, "num_local_experts");
    const char *name = is_on(arguments, "--qk-layernorm")
                           ? (experts ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM")
                       : experts                            ? "MixtralForCausalLM"
                       : is_on(arguments, "--add-qkv-bias") ? "Qwen2ForCausalLM"
                                                            : "LlamaForCausalLM";
    return json_object_set_new(config, "architectures", json_pack("[s]", name)) == 0;
}

enum tdm_status tdm_from_read_shape(const struct tdm_from_reading *r, const json_t *arguments)
{
    json_decref(r->from->config);
    json_t *config = r->from->config = json_object();
    r->from->config_file = r->file;
    if (config == NULL)
        return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its model", r->file);
    const bool whole = is_on(arguments, "--num-layers");
    enum tdm_status status = read_sizes(r, arguments);
    if (status == TDM_OK)
        status = read_vocabulary(r, arguments);
    if (status != TDM_OK)
        return status;
    if (whole && !imply_sizes(config, arguments))
        return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its model", r->file);
    const char *part = other_part(arguments);
    const char *missing = whole && part == NULL ? missing_size(config) : NULL;
    drop_sizes(config, arguments);
    if (!whole)
        return TDM_OK;
    if (part != NULL)
        return tdm_from_unnamed(r, part, "is there, with which the sizes alone are no model");
    if (missing == NULL && part == NULL &&
        size_of(config, "num_attention_heads") % size_of(config, "num_key_value_heads") != 0)
        return tdm_from_bad(r, "--num-query-groups",
                            json_object_get(arguments, "--num-query-groups"),
                            "it must divide --num-attention-heads");
    if (missing != NULL)
        return tdm_from_unnamed(
            r, missing,
            strcmp(missing, "--vocab-size") == 0
                ? "is missing or 0, and --padded-vocab-size too; the model needs it"
                : "is missing or 0, and the model needs it");
    return name_family(config, arguments)
               ? TDM_OK
               : tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its model", r->file);
}

bool tdm_from_has_shape(const struct tdm_from *from)
{
    return has(from->config, "architectures");
}

enum tdm_status tdm_from_make_model(struct tdm_from *from, struct tdm_model **model,
                                    struct tdm_error *err)
{
    const struct tdm_from_reading r = {.from = from, .file = from->config_file, .err = err};
    json_t *config = from->config;
    const char *slash = strrchr(r.file, '/');
    enum tdm_status status = TDM_OK;
    char why[64];
    if (has(config, ASSUMED_VOCABULARY)) {
        snprintf(why, sizeof(why), "predicted with its usual %" JSON_INTEGER_FORMAT " tokens",
                 size_of(config, OTHER_VOCABULARY));
        status = tdm_from_lack(&r, "the tokenizer", why);
    }
    if (status != TDM_OK)
        return status;
    if (!imply(config, "vocab_size", size_of(config, OTHER_VOCABULARY)) ||
        !imply(config, "intermediate_size", size_of(config, "moe_intermediate_size")))
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its model", r.file);
    return tdm_model_from_config(r.file, slash != NULL ? slash + 1 : r.file, config, model, err);
}

static enum tdm_status differs(const struct tdm_from *from, const struct tdm_model *model,
                               const char *option, const char *key, uint64_t has_it,
                               struct tdm_error *err)
{
    const char *why =
        json_string_value(json_object_get(json_object_get(from->config, IMPLIED_SIZES), key));
    tdm_fail(err, TDM_INPUT, "%s: %s%s%" JSON_INTEGER_FORMAT ", and %s has %" PRIu64,
             from->config_file, why != NULL ? why : option, why != NULL ? ": " : " is ",
             size_of(from->config, key), model->name, has_it);
    return tdm_hint(err, tdm_from_has_shape(from) ? "leave MODEL out: the file describes its own"
                                                  : "name the model that the file is of");
}

enum tdm_status tdm_from_compare(const struct tdm_from *from, const struct tdm_model *model,
                                 struct tdm_error *err)
{
    const json_t *tied = json_object_get(from->config, "tie_word_embeddings");
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t there;
        if (sizes[i].field == NO_FIELD || !has(from->config, sizes[i].key))
            continue;
        memcpy(&there, (const char *)model + sizes[i].field, sizeof(there));
        if (size_of(from->config, sizes[i].key) != (json_int_t)there)
            return differs(from, model, sizes[i].option, sizes[i].key, there, err);
    }
    if (tied != NULL && json_is_true(tied) != model->tied) {
        tdm_fail(err, TDM_INPUT, "%s: --untie-embeddings-and-output-weights is %s, and %s has %s",
                 from->config_file, model->tied ? "there" : "not there", model->name,
                 model->tied ? "its embedding as its head" : "a head of its own");
        return tdm_hint(err, "add it or leave it out, or name the model that the file is of");
    }
    return TDM_OK;
}
