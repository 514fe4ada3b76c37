/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models as the Hub and other programs have them, and the shipped config that each
 * means. */
#include "base/names.h"
#include "models/model.h"
#include "models/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PLAIN_BYTES 96u
#define FOREIGN_BYTES 200u

/* Models with the dimensions of a shipped one, by their plain names. Some that were trained further
 * have a few rows of the embedding more, such as the two of ChatML: less than 0.01% of the weights.
 */
static const struct {
    const char *name, *shipped;
} same[] = {
    {"acereason-nemotron-14b", "qwen2.5-14b"},
    {"acereason-nemotron-7b", "qwen2.5-7b"},
    {"alma-7b", "llama-2-7b"},
    {"aya-23-8b", "aya-expanse-8b"},
    {"bloom", "bloom-176b"},
    {"bloomz", "bloom-176b"},
    {"bloomz-1b1", "bloom-1b1"},
    {"bloomz-1b7", "bloom-1b7"},
    {"bloomz-3b", "bloom-3b"},
    {"bloomz-560m", "bloom-560m"},
    {"bloomz-7b1", "bloom-7b1"},
    {"bloomz-7b1-mt", "bloom-7b1"},
    {"c4ai-command-a-03", "command-a"},
    {"c4ai-command-r-plus", "command-r-plus"},
    {"c4ai-command-r-plus-08", "command-r-plus"},
    {"c4ai-command-r-v01", "command-r-v01"},
    {"c4ai-command-r7b-12", "command-r7b"},
    {"c4ai-command-r7b-arabic-02", "command-r7b"},
    {"codegemma-1.1-2b", "gemma-2b"},
    {"codegemma-1.1-7b", "gemma-7b"},
    {"codegemma-2b", "gemma-2b"},
    {"codegemma-7b", "gemma-7b"},
    {"codellama-13b-python", "codellama-13b"},
    {"codellama-34b-python", "codellama-34b"},
    {"codellama-70b-python", "codellama-70b"},
    {"codellama-7b-python", "codellama-7b"},
    {"codestral-22b-v0.1", "codestral-22b"},
    {"command-a-08", "command-a"},
    {"command-r", "command-r-v01"},
    {"deepscaler-1.5b", "deepseek-r1-distill-qwen-1.5b"},
    {"deepseek-coder-7b", "deepseek-llm-7b"},
    {"deepseek-coder-v2", "deepseek-v2"},
    {"deepseek-coder-v2-lite", "deepseek-v2-lite"},
    {"deepseek-math-7b", "deepseek-llm-7b"},
    {"deepseek-r1", "deepseek-v3"},
    {"deepseek-r1-distill-llama-70b", "llama-3.1-70b"},
    {"deepseek-r1-distill-llama-8b", "llama-3.1-8b"},
    {"deepseek-r1-distill-qwen-14b", "qwen2.5-14b"},
    {"deepseek-r1-distill-qwen-32b", "qwen2.5-32b"},
    {"deepseek-r1-distill-qwen-7b", "qwen2.5-7b"},
    {"deepseek-r1-qwen3-8b", "qwen3-8b"},
    {"deepseek-r1-zero", "deepseek-v3"},
    {"deepseek-v2.5", "deepseek-v2"},
    {"deepseek-v3.1", "deepseek-v3"},
    {"deepseek-v3.1-terminus", "deepseek-v3"},
    {"devstral-small", "mistral-small-24b"},
    {"dolphin-2.9-llama3-8b", "llama-3-8b"},
    {"dots.llm1.inst", "dots.llm1"},
    {"ernie-4.5-21b-a3b-pt", "ernie-4.5-21b-a3b"},
    {"exaone-4.0.1-32b", "exaone-4.0-32b"},
    {"falcon2-11b", "falcon-11b"},
    {"gemma-1.1-2b", "gemma-2b"},
    {"gemma-1.1-7b", "gemma-7b"},
    {"glm-4.7", "glm-4.6"},
    {"glm-z1-32b", "glm-4-32b"},
    {"glm-z1-9b", "glm-4-9b"},
    {"gpt-j", "gpt-j-6b"},
    {"gpt-neoxt-20b", "gpt-neox-20b"},
    {"gpt-oss-safeguard-120b", "gpt-oss-120b"},
    {"gpt-oss-safeguard-20b", "gpt-oss-20b"},
    {"granite-3.0-1b-a400m", "granite-3.1-1b-a400m"},
    {"granite-3.0-2b", "granite-3.1-2b"},
    {"granite-3.0-3b-a800m", "granite-3.1-3b-a800m"},
    {"granite-3.0-8b", "granite-3.1-8b"},
    {"granite-3.2-2b", "granite-3.1-2b"},
    {"granite-3.2-8b", "granite-3.1-8b"},
    {"hermes-2-pro-llama-3-8b", "llama-3-8b"},
    {"hermes-2-pro-mistral-7b", "mistral-7b-v0.1"},
    {"hermes-3-llama-3.1-405b", "llama-3.1-405b"},
    {"hermes-3-llama-3.1-70b", "llama-3.1-70b"},
    {"hermes-3-llama-3.1-8b", "llama-3.1-8b"},
    {"hermes-3-llama-3.2-3b", "llama-3.2-3b"},
    {"hermes-4-14b", "qwen3-14b"},
    {"hermes-4-405b", "llama-3.1-405b"},
    {"hermes-4-70b", "llama-3.1-70b"},
    {"internlm2-1_8b", "internlm2.5-1.8b"},
    {"internlm2-20b", "internlm2.5-20b"},
    {"internlm2-7b", "internlm2.5-7b"},
    {"internlm2_5-1_8b", "internlm2.5-1.8b"},
    {"internlm2_5-20b", "internlm2.5-20b"},
    {"internlm2_5-7b", "internlm2.5-7b"},
    {"kimi-dev-72b", "qwen2.5-72b"},
    {"kimi-k2-instruct-0905", "kimi-k2-0905"},
    {"lfm2.5-1.2b", "lfm2-1.2b"},
    {"llama-13b", "llama-2-13b"},
    {"llama-3-70b", "llama-3.1-70b"},
    {"llama-3.1-nemotron-70b", "llama-3.1-70b"},
    {"llama-3.1-nemotron-nano-8b-v1", "llama-3.1-8b"},
    {"llama-3.1-storm-8b", "llama-3.1-8b"},
    {"llama-3.1-tulu-3-405b", "llama-3.1-405b"},
    {"llama-3.1-tulu-3-70b", "llama-3.1-70b"},
    {"llama-3.1-tulu-3-8b", "llama-3.1-8b"},
    {"llama-3.3-70b", "llama-3.1-70b"},
    {"llama-4-maverick-17b-128e", "llama-4-maverick"},
    {"llama-4-scout-17b-16e", "llama-4-scout"},
    {"llama-7b", "llama-2-7b"},
    {"llama-guard-3-1b", "llama-3.2-1b"},
    {"llama-guard-3-8b", "llama-3.1-8b"},
    {"llamaguard-7b", "llama-2-7b"},
    {"llemma_7b", "codellama-7b"},
    {"longchat-13b", "llama-2-13b"},
    {"longchat-7b", "llama-2-7b"},
    {"longwriter-llama3.1-8b", "llama-3.1-8b"},
    {"magicoder-ds-6.7b", "deepseek-coder-6.7b"},
    {"magicoder-s-ds-6.7b", "deepseek-coder-6.7b"},
    {"magistral-small", "mistral-small-24b"},
    {"mathstral-7b", "mistral-7b-v0.3"},
    {"medgemma-27b", "gemma-3-27b"},
    {"medgemma-4b", "gemma-3-4b"},
    {"minimax-m2.1", "minimax-m2"},
    {"minimax-m2.5", "minimax-m2"},
    {"minitron-4b", "nemotron-mini-4b"},
    {"mistral-7b-openorca", "mistral-7b-v0.1"},
    {"mistral-large", "mistral-large-123b"},
    {"mistral-nemo", "mistral-nemo-12b"},
    {"mistral-small-3.1-24b", "mistral-small-24b"},
    {"mistral-small-3.2-24b", "mistral-small-24b"},
    {"moonlight-16b", "moonlight-16b-a3b"},
    {"neural-chat-7b-v3-1", "mistral-7b-v0.1"},
    {"nous-hermes-2-mistral-7b", "mistral-7b-v0.1"},
    {"nous-hermes-2-mixtral-8x7b", "mixtral-8x7b"},
    {"nous-hermes-2-yi-34b", "yi-34b"},
    {"nous-hermes-llama2-13b", "llama-2-13b"},
    {"nous-hermes-llama2-7b", "llama-2-7b"},
    {"nvidia-nemotron-nano-12b-v2", "nemotron-nano-12b-v2"},
    {"nvidia-nemotron-nano-9b-v2", "nemotron-nano-9b-v2"},
    {"olmo-3.1-32b", "olmo-3-32b"},
    {"open_llama_13b", "llama-2-13b"},
    {"open_llama_3b_v2", "open-llama-3b"},
    {"open_llama_7b", "llama-2-7b"},
    {"open_llama_7b_v2", "llama-2-7b"},
    {"openchat-3.5", "mistral-7b-v0.1"},
    {"opencodeinterpreter-ds-33b", "deepseek-coder-33b"},
    {"opencodeinterpreter-ds-6.7b", "deepseek-coder-6.7b"},
    {"openhermes-2-mistral-7b", "mistral-7b-v0.1"},
    {"openhermes-2.5-mistral-7b", "mistral-7b-v0.1"},
    {"openreasoning-nemotron-14b", "qwen2.5-14b"},
    {"openreasoning-nemotron-32b", "qwen2.5-32b"},
    {"openreasoning-nemotron-7b", "qwen2.5-7b"},
    {"openthinker-32b", "qwen2.5-32b"},
    {"openthinker-7b", "qwen2.5-7b"},
    {"openthinker3-7b", "qwen2.5-7b"},
    {"phi-1_5", "phi-1.5"},
    {"phi-3.5-mini", "phi-3-mini"},
    {"phi-4-plus", "phi-4"},
    {"qwen-1_8b", "qwen-1.8b"},
    {"qwen2-0.5b", "qwen2.5-0.5b"},
    {"qwen2-1.5b", "qwen2.5-1.5b"},
    {"qwen2-70b", "qwen2.5-72b"},
    {"qwen2-72b", "qwen2.5-72b"},
    {"qwen2-7b", "qwen2.5-7b"},
    {"qwen2-math-1.5b", "qwen2.5-1.5b"},
    {"qwen2-math-72b", "qwen2.5-72b"},
    {"qwen2-math-7b", "qwen2.5-7b"},
    {"qwen2.5-14b-1m", "qwen2.5-14b"},
    {"qwen2.5-7b-1m", "qwen2.5-7b"},
    {"qwen2.5-coder-0.5b", "qwen2.5-0.5b"},
    {"qwen2.5-coder-1.5b", "qwen2.5-1.5b"},
    {"qwen2.5-coder-14b", "qwen2.5-14b"},
    {"qwen2.5-coder-32b", "qwen2.5-32b"},
    {"qwen2.5-coder-3b", "qwen2.5-3b"},
    {"qwen2.5-coder-7b", "qwen2.5-7b"},
    {"qwen2.5-math-1.5b", "qwen2.5-1.5b"},
    {"qwen2.5-math-72b", "qwen2.5-72b"},
    {"qwen2.5-math-7b", "qwen2.5-7b"},
    {"qwen3-coder-30b-a3b", "qwen3-30b-a3b"},
    {"qwen3-coder-next", "qwen3-next-80b-a3b"},
    {"qwq-32b", "qwen2.5-32b"},
    {"s1-32b", "qwen2.5-32b"},
    {"s1.1-32b", "qwen2.5-32b"},
    {"shieldgemma-27b", "gemma-2-27b"},
    {"shieldgemma-2b", "gemma-2-2b"},
    {"shieldgemma-9b", "gemma-2-9b"},
    {"sky-t1-32b", "qwen2.5-32b"},
    {"skywork-or1-32b", "qwen2.5-32b"},
    {"skywork-or1-7b", "qwen2.5-7b"},
    {"smollm-1.7b", "smollm2-1.7b"},
    {"smollm-135m", "smollm2-135m"},
    {"smollm-360m", "smollm2-360m"},
    {"solar-10.7b-v1.0", "solar-10.7b"},
    {"stable-code-3b", "stablelm-3b-4e1t"},
    {"stablebeluga-7b", "llama-2-7b"},
    {"stablelm-2-1_6b", "stablelm-2-1.6b"},
    {"stablelm-2-zephyr-1_6b", "stablelm-2-1.6b"},
    {"stablelm-zephyr-3b", "stablelm-3b-4e1t"},
    {"starcoder2-15b-v0.1", "starcoder2-15b"},
    {"starling-lm-7b", "mistral-7b-v0.1"},
    {"tinyllama", "tinyllama-1.1b"},
    {"tinyllama-1.1b-intermediate-step-1431k-3t", "tinyllama-1.1b"},
    {"tulu-2-13b", "llama-2-13b"},
    {"tulu-2-70b", "llama-2-70b"},
    {"tulu-2-7b", "llama-2-7b"},
    {"vicuna-13b", "llama-2-13b"},
    {"vicuna-33b", "llama-30b"},
    {"vicuna-7b", "llama-2-7b"},
    {"wizardlm-13b-v1.2", "llama-2-13b"},
    {"wizardmath-7b-v1.1", "mistral-7b-v0.1"},
    {"yarn-llama-2-13b", "llama-2-13b"},
    {"yarn-llama-2-7b", "llama-2-7b"},
    {"yarn-mistral-7b", "mistral-7b-v0.1"},
    {"yi-1.5-34b", "yi-34b"},
    {"yi-1.5-6b", "yi-6b"},
    {"yi-9b", "yi-1.5-9b"},
    {"zephyr", "mistral-7b-v0.1"},
    {"zephyr-7b", "mistral-7b-v0.1"},
    {"zephyr-7b-gemma", "gemma-7b"},
    {"zephyr-orpo-141b-a35b", "mixtral-8x22b"},
};
enum { SAME = sizeof(same) / sizeof(same[0]) };

/* The part of a Hub id after the publisher. Names that look like paths stay unchanged. */
static const char *without_publisher(const char *name)
{
    static const char *const folders[] = {"models", "model", "checkpoints", "output", "outputs",
                                          "saves",  "data",  "weights",     "tmp",    "configs"};
    const char *slash = strchr(name, '/');
    if (slash == NULL || slash == name || strchr(slash + 1, '/') != NULL ||
        strchr("./~", *name) != NULL || strstr(slash, ".json") != NULL)
        return name;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (strncmp(name, folders[i], (size_t)(slash - name)) == 0 &&
            folders[i][slash - name] == '\0')
            return name;
    return slash + 1;
}

static bool is_word(const char *part, size_t length, const char *const *words)
{
    for (size_t i = 0; words[i] != NULL; i++)
        if (strlen(words[i]) == length && strncasecmp(words[i], part, length) == 0)
            return true;
    return false;
}

/* Words about training, and about the context that is rotated. */
static const char *const dropped[] = {
    "meta",    "instruct", "chat", "base",  "hf",       "it",      "pt",        "sft",
    "dpo",     "rlvr",     "rl",   "think", "thinking", "preview", "beta",      "alpha",
    "deduped", "full",     "fp16", "bf16",  "text",     "unsloth", "reasoning", "4k",
    "8k",      "16k",      "32k",  "64k",   "128k",     "200k",    "262k",      NULL};

/* Words about quantized weights. */
static const char *const quantized[] = {"bnb",
                                        "4bit",
                                        "8bit",
                                        "gptq",
                                        "awq",
                                        "int4",
                                        "int8",
                                        "w4a16",
                                        "w8a8",
                                        "fp8",
                                        "nf4",
                                        "nvfp4",
                                        "gguf",
                                        "qat",
                                        "dynamic",
                                        "block",
                                        "quantized.w4a16",
                                        "quantized.w8a16",
                                        "quantized.w8a8",
                                        NULL};

const char *tdm_model_of_page(const char *text, char *out, size_t out_bytes)
{
    static const char *const sites[] = {"https://huggingface.co/", "http://huggingface.co/",
                                        "huggingface.co/", "https://hf.co/", "hf.co/"};
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        const size_t site = strlen(sites[i]);
        if (strncasecmp(text, sites[i], site) != 0)
            continue;
        const char *name = text + site, *slash = strchr(name, '/');
        const size_t length =
            slash == NULL ? strlen(name) : (size_t)(slash - name) + 1 + strcspn(slash + 1, "/?#");
        if (length == 0 || length >= out_bytes)
            return text;
        snprintf(out, out_bytes, "%.*s", (int)length, name);
        return out;
    }
    return text;
}

/* Endings of names whose publishers all store the weights alike, so that the ending says what the
 * config beside them says. Sources: unsloth 015bdef0, unsloth/models/llama.py (nf4, double
 * quantization) and mapper.py (names); the quant_config.json of AWQ and GPTQ weights (groups of
 * 128); the config.json of compressed-tensors' (groups of 128, or columns in 8 bits). */
static const struct {
    const char *ending;
    struct tdm_base_weights weights;
} endings[] = {
    {"-bnb-4bit", {.kind = TDM_BASE_NF4_DOUBLE}},
    {"-bnb-8bit", {.kind = TDM_BASE_INT8}},
    {"-awq", {.kind = TDM_BASE_AWQ, .group = 128}},
    {"-gptq-int4", {.kind = TDM_BASE_GPTQ, .group = 128}},
    {"-gptq-int8", {.kind = TDM_BASE_GPTQ, .bits = 8, .group = 128}},
    {"-fp8", {.stored = TDM_STORED_FP8}},
    {"-fp8-dynamic", {.stored = TDM_STORED_FP8}},
    {"-fp8-block", {.stored = TDM_STORED_FP8}},
    {"-quantized.w4a16", {.kind = TDM_BASE_GPTQ, .served_alone = true, .group = 128}},
    {"-quantized.w8a16", {.kind = TDM_BASE_GPTQ, .served_alone = true, .bits = 8}},
    {"-quantized.w8a8", {.kind = TDM_BASE_INT8, .served_alone = true}},
};

static bool ends_in(const char *name, const char *ending)
{
    const size_t length = strlen(name), end = strlen(ending);
    return length > end && strcasecmp(name + length - end, ending) == 0;
}

/* Unsloth's "dynamic" weights: some modules, others for each model, stay in bf16. */
static bool is_dynamic(const char *name)
{
    return ends_in(name, "-unsloth-bnb-4bit");
}

/* What the ending of a name says of the weights; false: nothing that is known. */
static bool read_ending(const char *name, struct tdm_base_weights *weights)
{
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]) && !is_dynamic(name); i++)
        if (ends_in(name, endings[i].ending)) {
            *weights = endings[i].weights;
            return true;
        }
    return false;
}

/* A Hub name without the publisher and without words about its training: Qwen2.5-7B from
 * "Qwen/Qwen2.5-7B-Instruct". *is_quantized, if not NULL: words about quantized weights were there.
 * Returns `out`. */
static const char *plain_name(const char *name, char out[PLAIN_BYTES], bool *is_quantized)
{
    const char *part = without_publisher(name);
    size_t used = 0;
    bool found = false;
    out[0] = '\0';
    while (*part != '\0') {
        size_t length = strcspn(part, "-");
        bool date = length == 4 && strspn(part, "0123456789") == 4;
        bool states = is_word(part, length, quantized);
        found |= states;
        if (!date && !states && !is_word(part, length, dropped) && used < PLAIN_BYTES)
            used += (size_t)snprintf(out + used, PLAIN_BYTES - used, "%s%.*s", used == 0 ? "" : "-",
                                     (int)length, part);
        part += length + (part[length] == '-');
    }
    if (is_quantized != NULL)
        *is_quantized = found;
    return out;
}

/* NULL: no entry of the table is so named. */
static const char *same_as(const char *name)
{
    for (size_t i = 0; i < SAME; i++)
        if (tdm_name_is(name, same[i].name))
            return same[i].shipped;
    return NULL;
}

/* A name whose words about training or whose date tell models apart that are stored otherwise, such
 * as Kimi-K2-Thinking. NULL: there is none. */
static const char *whole_name_meant(const char *whole, const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++)
        if (tdm_name_is(whole, names[i]))
            return names[i];
    return same_as(whole);
}

/* NULL: none is meant. A part of a name in the table is not enough, since "qwen-7b" is the end of
 * one that is another model. */
static const char *meant_of(const char *plain, const char *const *names)
{
    const char *listed = same_as(plain);
    return listed != NULL ? listed : tdm_name_meant(plain, names);
}

/* Families that are not known, by how names of their models begin, and the known one whose layers
 * are nearest, as config.c has it. */
static const struct {
    const char *start, *family, *nearest, *why;
} foreign[] = {
    {"ai21-jamba", "Jamba", "granite-4.0-h-tiny", "Mamba-1"},
    {"baichuan", "Baichuan of 13B", "baichuan2-7b", "ALiBi in its masks"},
    {"chatglm", "ChatGLM", "glm-4-9b", "its own code"},
    {"dbrx", "DBRX", "mixtral-8x7b", "LayerNorm and joint q, k and v"},
    {"deepseek-moe", "DeepSeek 1", "qwen2-57b-a14b", "its own code"},
    {"deepseek-v3.2", "DeepSeek V3.2", "deepseek-v3", "an indexer chooses what is attended to"},
    {"dots.llm1", NULL, NULL, NULL},
    {"exaone-3", "EXAONE 3", "llama-3.1-8b", "its own code"},
    {"exaone-deep", "EXAONE 3", "llama-3.1-8b", "its own code"},
    {"falcon-mamba", "Falcon Mamba", "nemotron-h-8b", "no attention"},
    {"falcon-rw", "Falcon RW", "bloom-7b1", "ALiBi and other MLPs"},
    {"gemma-3n", "Gemma 3n", "gemma-3-4b", "embeddings of each layer"},
    {"gemma-4", "Gemma 4", "gemma-3-27b", "layers share K and V"},
    {"glm-5", "GLM-5", "deepseek-v3", "an indexer chooses what is attended to"},
    {"gpt-neo-", "GPT-Neo", "gpt2-xl", "windows and unscaled scores"},
    {"internlm-", "InternLM 1", "llama-2-7b", "it has biases of all heads"},
    {"jamba", "Jamba", "granite-4.0-h-tiny", "Mamba-1"},
    {"k-exaone", "K-EXAONE", "exaone-4.0-32b", "experts"},
    {"kimi-k2.5", "Kimi K2.5", "kimi-k2-thinking", "it has a vision tower"},
    {"kimi-linear", "Kimi Linear", "qwen3-next-80b-a3b",
     "its delta rule has a decay for each dimension, beside latent attention"},
    {"ling-", "Ling", "glm-4.5-air", "its own code joins q, k and v"},
    {"llada", "LLaDA", "llama-3.1-8b", "it is trained by diffusion"},
    {"llama-3_3-nemotron-super", "Nemotron Super", "llama-3.1-70b",
     "its layers differ from one another"},
    {"mamba", "Mamba", "nemotron-h-8b", "no attention"},
    {"mimo-7b", "MiMo", "qwen2.5-7b", "a layer that predicts further tokens"},
    {"mimo-v2", "MiMo V2", "gpt-oss-120b", "K and V of two widths"},
    {"minicpm", "MiniCPM", "granite-3.1-2b", "its own code"},
    {"minimax", "MiniMax", "mixtral-8x22b", "linear attention"},
    {"minimax-m2", NULL, NULL, NULL},
    {"mistral-large-3", "Mistral Large 3", "deepseek-v3", "it is no 123B"},
    {"mistral-small-2409", "Mistral Small of 22B", "codestral-22b", "it is no 24B"},
    {"mistral-small-instruct-2409", "Mistral Small of 22B", "codestral-22b", "it is no 24B"},
    {"mpt-7b-storywriter", "MPT's StoryWriter", "mpt-7b", "q, k and v are clipped"},
    {"nvidia-nemotron-3", "Nemotron 3", "nemotron-nano-9b-v2", "layers of experts"},
    {"olmo-1b-0", "OLMo of 2024", "olmo-1b", "q, k and v may be clipped"},
    {"olmo-7b-0", "OLMo of 2024", "olmo-7b", "q, k and v may be clipped"},
    {"opt-350m", "OPT's 350M", "opt-125m", "its layers differ from those of other sizes"},
    {"phi-3-small", "Phi 3 small", "phi-3-mini", "sparse attention by blocks"},
    {"phi-3.5-moe", "Phi with experts", "mixtral-8x7b", "LayerNorm and its router"},
    {"phi-4-mini-flash", "Phi-4-mini-flash", "phi-4-mini",
     "Mamba-1, and layers that share K and V"},
    {"ring-", "Ring", "glm-4.5-air", "its own code joins q, k and v"},
    {"rwkv", "RWKV", "nemotron-h-8b", "no attention"},
    {"solar-open", "Solar Open", "glm-4.5-air", "its own experts"},
    {"stablelm-2-12b", "StableLM 2 of 12B", "stablelm-2-1.6b",
     "heads are normed, attention and MLP are parallel"},
    {"starcoder", "StarCoder 1", "gpt2-xl", "one head of K and V"},
    {"starcoder2", NULL, NULL, NULL},
    {"step-3.5", "Step 3.5", "glm-4.5", "windows and gated attention"},
    {"step3", "Step 3", "deepseek-v3", "q is factorised"},
    {"trinity", "Trinity", "qwen3-30b-a3b", "gated attention and norms behind modules"},
    {"vaultgemma", "VaultGemma", "gemma-2-2b", "it has no norms behind its modules"},
    {"wizardcoder-15b", "StarCoder 1", "gpt2-xl", "one head of K and V"},
    {"zamba", "Zamba", "nemotron-h-8b", "layers share attention"},
};

/* Does the date of a name, which the plain name lacks, say more than when it was trained? */
static bool is_dated(const char *name)
{
    static const char *const starts[] = {"olmo-1b-0", "olmo-7b-0", "mistral-small-instruct-2409",
                                         "mistral-small-2409"};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
        if (strncasecmp(name, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

/* NULL: the name begins as no family of the table. */
static const char *foreign_words(const char *plain, char out[FOREIGN_BYTES])
{
    const size_t none = sizeof(foreign) / sizeof(foreign[0]);
    size_t best = none, longest = 0;
    for (size_t i = 0; i < none; i++) {
        const size_t length = strlen(foreign[i].start);
        if (length > longest && strncasecmp(plain, foreign[i].start, length) == 0) {
            longest = length;
            best = i;
        }
    }
    if (best == none || foreign[best].family == NULL)
        return NULL;
    snprintf(out, FOREIGN_BYTES, "%s is not known: %s; of the families that are, %s is nearest",
             foreign[best].family, foreign[best].why, foreign[best].nearest);
    return out;
}

static enum tdm_status unknown(const char *name, const char *const *names, struct tdm_error *err)
{
    char suggestion[TDM_SUGGESTION_BYTES], plain[PLAIN_BYTES], words[FOREIGN_BYTES];
    const char *family = foreign_words(without_publisher(name), words);
    tdm_fail(err, TDM_INPUT,
             "\"%.256s\" is not a shipped model, a config.json or a directory that holds one",
             name);
    if (family != NULL)
        return tdm_hint(err, "%s", family);
    tdm_hint(err,
             "%s\"tidemark models\" lists those that are shipped, such as llama-3.1-8b and "
             "qwen2.5-7b; of any other give the config.json that the Hub has beside its weights",
             tdm_name_suggest(plain_name(name, plain, NULL), names, suggestion));
    return TDM_INPUT;
}

static enum tdm_status refuse_quantized(const char *name, const char *meant, struct tdm_error *err)
{
    if (is_dynamic(name))
        tdm_fail(err, TDM_INPUT,
                 "\"%.256s\" names weights of %s in nf4 of which unsloth keeps some in bf16", name,
                 meant);
    else
        tdm_fail(err, TDM_INPUT, "\"%.256s\" names quantized weights of %s", name, meant);
    tdm_hint(err,
             "give %s, and its weights as a setting: --set quantization=nf4, int8 or gptq under "
             "adapters, awq, gptq or fp8 with --mode serve%s",
             meant, is_dynamic(name) ? "; or the config.json that lies beside them" : "");
    return TDM_INPUT;
}

enum tdm_status tdm_model_find_meant(const char *name, char *out, size_t out_bytes,
                                     struct tdm_base_weights *weights, struct tdm_error *err)
{
    char **owned, plain[PLAIN_BYTES];
    bool is_quantized;
    enum tdm_status status = tdm_model_names(&owned, err);
    if (status != TDM_OK)
        return status;
    const char *const *names = (const char *const *)owned;
    const char *meant = whole_name_meant(without_publisher(name), names);
    plain_name(name, plain, &is_quantized);
    if (meant == NULL)
        meant = meant_of(plain, names);
    if (is_dated(without_publisher(name)))
        meant = NULL;
    if (meant == NULL && strcasecmp(plain, "mistral-7b") == 0 && without_publisher(name) != name)
        meant = "mistral-7b-v0.1"; /* of those who train it further: unsloth, HuggingFaceH4 */
    char *version = strrchr(plain, '-');
    if (meant == NULL && version != NULL && (version[1] == 'v' || version[1] == 'V')) {
        *version = '\0';
        meant = meant_of(plain, names);
    }
    if (meant == NULL) {
        status = unknown(name, names, err);
    } else if (is_quantized && !read_ending(name, weights)) {
        status = refuse_quantized(name, meant, err);
    } else {
        snprintf(out, out_bytes, "%s", meant);
    }
    free(owned);
    return status;
}
