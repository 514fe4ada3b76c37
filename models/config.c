/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a Hugging Face config.json: the architecture and its dimensions. Refuses every option that
 * would change the computation and that we do not implement. Absent fields have the defaults of the
 * transformers library; null counts as absent. */
#include "models/parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* How a config tells which layers have a sliding window. */
enum windows {
    WINDOWS_NONE,
    WINDOWS_ALL,  /* all layers, if sliding_window is not null; or as layer_types tells */
    WINDOWS_SAID, /* the same, but none if sliding_window is absent */
    /* from max_window_layers on, if use_sliding_window is set; or as layer_types tells */
    WINDOWS_LATE,
    WINDOWS_EVEN, /* layers 0, 2, 4 ...; or as layer_types tells */
    /* all but every sixth (sliding_window_pattern) or fourth layer; or as layer_types tells */
    WINDOWS_SIXTH,
    WINDOWS_FOURTH,
};

/* Parts of a family that have a field in the model, and names and defaults of its fields; beside
 * those of enum tdm_model_part, which have lower bits. */
#define OWN_PART(number) (UINT64_C(1) << (32 + (number)))
#define PART_OFFSET_NORMS OWN_PART(0)
#define PART_SCALED_EMBEDDING OWN_PART(1)
#define PART_TIED OWN_PART(2) /* the default of tie_word_embeddings */
#define PART_POST_NORMS OWN_PART(3)
#define PART_WHOLE_QK_NORM OWN_PART(4)
#define PART_SOFTCAPS OWN_PART(5)
#define PART_QKV_BIAS_ALONE OWN_PART(6) /* attention_bias is of q, k and v, not of o */
#define PART_EXPERTS OWN_PART(7)
#define PART_NO_ROPE OWN_PART(8)          /* some layers have none */
#define PART_LATENT OWN_PART(9)           /* q, and k and v, are made from few dimensions */
#define PART_FALCON OWN_PART(10)          /* names and defaults of Falcon's fields */
#define PART_NEOX OWN_PART(11)            /* the same of GPT-NeoX */
#define PART_HALF_ROPE OWN_PART(12)       /* half of a head is rotated, if nothing is said */
#define PART_ROPE_OF_WINDOWS OWN_PART(13) /* layers without a window are not rotated */
#define PART_GPT2 OWN_PART(14)            /* names of GPT-2's fields */
#define PART_USE_QKV_BIAS OWN_PART(15)    /* use_qkv_bias is of q, k and v */
#define PART_VISION OWN_PART(16)          /* it has a vision tower that is known */
#define PART_XIELU OWN_PART(17)           /* its activation, if nothing is said */
#define PART_LFM2 OWN_PART(18)            /* names of its fields are its own */
#define PART_TEXT_ALONE OWN_PART(19)      /* what it has beside the language model is not counted */
#define PART_USE_QK_NORM OWN_PART(20)     /* use_qk_norm says whether heads are normed */
#define PART_QWEN OWN_PART(21)            /* names of Qwen 1's fields */
#define PART_OPT OWN_PART(22)             /* names of OPT's fields */
#define PART_BARE_NORMS OWN_PART(23)
#define PART_NEMOTRON OWN_PART(24) /* LayerNorm times 1 + weight, the square of ReLU */
#define PART_OWN_CODE OWN_PART(25) /* its repository has its code */
#define PART_GPTJ OWN_PART(26)     /* options of GPT-J, whose fields are GPT-2's */
#define PART_BLOOM OWN_PART(27)    /* names of BLOOM's fields */
#define PART_MPT OWN_PART(28)      /* names of MPT's fields */
#define PART_BAICHUAN OWN_PART(29)
#define PARTS_OF_MODEL UINT64_C(0xffffffff)
#define PARTS_OF_GEMMA (PART_OFFSET_NORMS | PART_SCALED_EMBEDDING | PART_TIED)
#define PARTS_OF_COHERE                                                                     \
    (TDM_PART_PARALLEL | TDM_PART_MEAN_NORMS | TDM_PART_WIDE_HEADS | TDM_PART_LOGIT_SCALE | \
     PART_TIED)

#define WINDOW_DEFAULT 4096u      /* sliding_window, if the field is absent */
#define WINDOW_LAYERS_DEFAULT 28u /* max_window_layers */
#define ROPE_LAYERS_DEFAULT 4u    /* no_rope_layer_interval */
#define ATTENTION_CHUNK_DEFAULT 8192u
#define DROPOUT_DEFAULT 0.1
#define LABELS_DEFAULT 2u

struct architecture {
    const char *name;       /* in "architectures" */
    const char *model_type; /* in "model_type" */
    uint64_t max_context;   /* default of max_position_embeddings */
    uint32_t head_dim;      /* default of head_dim; 0: hidden_size divided by the heads */
    bool qkv_bias, qk_norm;
    enum windows windows;
    uint64_t parts; /* without any, schedules support it too */
    enum tdm_family family;
};

/* Sources: transformers 5.17, models/MODEL_TYPE/modeling_MODEL_TYPE.py and configuration_*.py. */
static const struct architecture architectures[] = {
    {"ApertusForCausalLM", "apertus", 65536, 0, false, true, WINDOWS_NONE,
     TDM_PART_PLAIN_MLP | PART_XIELU, TDM_FAMILY_DENSE},
    {"ArceeForCausalLM", "arcee", 4096, 0, false, false, WINDOWS_NONE, TDM_PART_PLAIN_MLP,
     TDM_FAMILY_DENSE},
    {"BaichuanForCausalLM", "baichuan", 4096, 0, false, false, WINDOWS_NONE,
     TDM_PART_JOINT_QKV | PART_OWN_CODE | PART_BAICHUAN, TDM_FAMILY_DENSE},
    {"BloomForCausalLM", "bloom", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_BIASES | TDM_PART_JOINT_QKV |
         TDM_PART_NO_ANGLES | PART_TIED | PART_BLOOM,
     TDM_FAMILY_DENSE},
    {"Cohere2ForCausalLM", "cohere2", 8192, 0, false, false, WINDOWS_FOURTH,
     PARTS_OF_COHERE | PART_ROPE_OF_WINDOWS, TDM_FAMILY_DENSE},
    {"CohereForCausalLM", "cohere", 8192, 0, false, false, WINDOWS_NONE,
     PARTS_OF_COHERE | PART_USE_QK_NORM, TDM_FAMILY_DENSE},
    {"DeepseekV2ForCausalLM", "deepseek_v2", 2048, 0, false, false, WINDOWS_NONE,
     PART_EXPERTS | PART_LATENT, TDM_FAMILY_DEEPSEEK},
    {"DeepseekV3ForCausalLM", "deepseek_v3", 4096, 0, false, false, WINDOWS_NONE,
     PART_EXPERTS | PART_LATENT, TDM_FAMILY_DEEPSEEK},
    {"Dots1ForCausalLM", "dots1", 2048, 0, false, true, WINDOWS_SAID, PART_EXPERTS,
     TDM_FAMILY_DEEPSEEK},
    {"Ernie4_5ForCausalLM", "ernie4_5", 131072, 128, false, false, WINDOWS_NONE,
     TDM_PART_INTERLEAVED_ROPE | TDM_PART_WIDE_ROPE | TDM_PART_CAST_ROPE | PART_TIED,
     TDM_FAMILY_DENSE},
    {"Ernie4_5_MoeForCausalLM", "ernie4_5_moe", 131072, 0, false, false, WINDOWS_NONE,
     TDM_PART_INTERLEAVED_ROPE | TDM_PART_WIDE_ROPE | TDM_PART_CAST_ROPE | PART_TIED | PART_EXPERTS,
     TDM_FAMILY_ERNIE},
    {"Exaone4ForCausalLM", "exaone4", 2048, 0, false, true, WINDOWS_FOURTH,
     PART_POST_NORMS | TDM_PART_NO_PRE_NORMS | TDM_PART_LATE_QK_NORM | PART_ROPE_OF_WINDOWS,
     TDM_FAMILY_DENSE},
    {"FalconForCausalLM", "falcon", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PARALLEL | TDM_PART_PLAIN_MLP | TDM_PART_JOINT_QKV |
         PART_TIED | PART_FALCON,
     TDM_FAMILY_DENSE},
    {"FalconH1ForCausalLM", "falcon_h1", 8192, 0, false, false, WINDOWS_NONE, TDM_PART_FALCON_H1,
     TDM_FAMILY_DENSE},
    {"GPT2LMHeadModel", "gpt2", 1024, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_BIASES | TDM_PART_JOINT_QKV |
         TDM_PART_POSITIONS | PART_TIED | PART_GPT2,
     TDM_FAMILY_DENSE},
    {"GPTJForCausalLM", "gptj", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PARALLEL | TDM_PART_PLAIN_MLP | TDM_PART_HEAD_BIAS |
         TDM_PART_CUT_ROPE | PART_GPT2 | PART_GPTJ,
     TDM_FAMILY_DENSE},
    {"GPTNeoXForCausalLM", "gpt_neox", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PARALLEL | TDM_PART_PLAIN_MLP | TDM_PART_BIASES |
         TDM_PART_JOINT_QKV | TDM_PART_CUT_ROPE | PART_NEOX,
     TDM_FAMILY_DENSE},
    {"Gemma2ForCausalLM", "gemma2", 8192, 256, false, false, WINDOWS_EVEN,
     PARTS_OF_GEMMA | PART_POST_NORMS | PART_SOFTCAPS, TDM_FAMILY_DENSE},
    {"Gemma3ForCausalLM", "gemma3_text", 131072, 256, false, true, WINDOWS_SIXTH,
     PARTS_OF_GEMMA | PART_POST_NORMS | TDM_PART_LATE_QK_NORM | TDM_PART_TWO_ROPES,
     TDM_FAMILY_DENSE},
    {"GemmaForCausalLM", "gemma", 8192, 256, false, false, WINDOWS_NONE, PARTS_OF_GEMMA,
     TDM_FAMILY_DENSE},
    {"Glm4ForCausalLM", "glm4", 131072, 128, false, false, WINDOWS_NONE,
     PART_POST_NORMS | PART_QKV_BIAS_ALONE | TDM_PART_GLM_NORMS | TDM_PART_JOINT_GATE_UP |
         TDM_PART_CUT_ROPE | TDM_PART_INTERLEAVED_ROPE,
     TDM_FAMILY_DENSE},
    {"Glm4MoeForCausalLM", "glm4_moe", 131072, 0, false, false, WINDOWS_NONE,
     PART_EXPERTS | PART_QKV_BIAS_ALONE | PART_USE_QK_NORM | TDM_PART_CUT_ROPE | PART_HALF_ROPE,
     TDM_FAMILY_DEEPSEEK},
    {"Glm4MoeLiteForCausalLM", "glm4_moe_lite", 202752, 0, false, false, WINDOWS_NONE,
     PART_EXPERTS | PART_LATENT, TDM_FAMILY_DEEPSEEK},
    {"GlmForCausalLM", "glm", 131072, 128, false, false, WINDOWS_NONE,
     PART_QKV_BIAS_ALONE | TDM_PART_JOINT_GATE_UP | TDM_PART_CUT_ROPE | TDM_PART_INTERLEAVED_ROPE,
     TDM_FAMILY_DENSE},
    {"GptOssForCausalLM", "gpt_oss", 131072, 64, true, false, WINDOWS_EVEN,
     TDM_PART_WIDE_NORMS | TDM_PART_SINKS | PART_EXPERTS, TDM_FAMILY_GPT_OSS},
    {"GraniteForCausalLM", "granite", 2048, 0, false, false, WINDOWS_NONE, TDM_PART_MULTIPLIERS,
     TDM_FAMILY_DENSE},
    {"GraniteMoeForCausalLM", "granitemoe", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_MULTIPLIERS | PART_EXPERTS, TDM_FAMILY_GRANITE_MOE},
    {"GraniteMoeHybridForCausalLM", "granitemoehybrid", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_MULTIPLIERS | TDM_PART_JOINT_GATE_UP | PART_EXPERTS, TDM_FAMILY_GRANITE_HYBRID},
    {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", 2048, 0, false, true, WINDOWS_NONE,
     TDM_PART_TURNED_NORM, TDM_FAMILY_DENSE},
    {"HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", 2048, 0, false, true, WINDOWS_NONE,
     TDM_PART_TURNED_NORM | PART_EXPERTS, TDM_FAMILY_HUNYUAN},
    {"InternLM2ForCausalLM", "internlm2", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_JOINT_QKV | PART_OWN_CODE, TDM_FAMILY_DENSE},
    {"InternLM3ForCausalLM", "internlm3", 32768, 0, false, false, WINDOWS_NONE, PART_OWN_CODE,
     TDM_FAMILY_DENSE},
    {"Lfm2ForCausalLM", "lfm2", 128000, 0, false, true, WINDOWS_NONE, PART_TIED | PART_LFM2,
     TDM_FAMILY_DENSE},
    {"Lfm2MoeForCausalLM", "lfm2_moe", 128000, 0, false, true, WINDOWS_NONE,
     PART_TIED | PART_LFM2 | PART_EXPERTS, TDM_FAMILY_LFM2},
    {"LlamaForCausalLM", "llama", 2048, 0, false, false, WINDOWS_NONE, 0, TDM_FAMILY_DENSE},
    {"Llama4ForCausalLM", "llama4_text", 4096 * 32, 128, false, false, WINDOWS_NONE,
     TDM_PART_COMPLEX_ROPE | PART_NO_ROPE | PART_EXPERTS, TDM_FAMILY_LLAMA4},
    {"MiniMaxM2ForCausalLM", "minimax_m2", 196608, 128, false, true, WINDOWS_NONE,
     PART_WHOLE_QK_NORM | TDM_PART_CUT_ROPE | PART_EXPERTS, TDM_FAMILY_MINIMAX},
    {"MinistralForCausalLM", "ministral", 131072, 0, false, false, WINDOWS_ALL, 0,
     TDM_FAMILY_DENSE},
    {"Ministral3ForCausalLM", "ministral3", 262144, 128, false, false, WINDOWS_SAID,
     TDM_PART_PLACE_SCALE, TDM_FAMILY_DENSE},
    {"MistralForCausalLM", "mistral", 131072, 0, false, false, WINDOWS_ALL, 0, TDM_FAMILY_DENSE},
    {"MixtralForCausalLM", "mixtral", 131072, 0, false, false, WINDOWS_SAID, PART_EXPERTS,
     TDM_FAMILY_MIXTRAL},
    {"MPTForCausalLM", "mpt", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_JOINT_QKV | TDM_PART_NO_ANGLES |
         PART_TIED | PART_MPT,
     TDM_FAMILY_DENSE},
    {"NemotronForCausalLM", "nemotron", 4096, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_CUT_ROPE | PART_OFFSET_NORMS |
         PART_HALF_ROPE | PART_NEMOTRON,
     TDM_FAMILY_DENSE},
    {"NemotronHForCausalLM", "nemotron_h", 4096, 128, false, false, WINDOWS_NONE,
     TDM_PART_PLAIN_MLP | TDM_PART_ONE_MIXER | TDM_PART_NO_ANGLES, TDM_FAMILY_DENSE},
    {"OlmoForCausalLM", "olmo", 2048, 0, false, false, WINDOWS_NONE,
     TDM_PART_WIDE_ROPE | PART_BARE_NORMS, TDM_FAMILY_DENSE},
    {"Olmo2ForCausalLM", "olmo2", 2048, 0, false, true, WINDOWS_NONE,
     PART_POST_NORMS | PART_WHOLE_QK_NORM | TDM_PART_NO_PRE_NORMS | TDM_PART_WIDE_NORMS |
         TDM_PART_WIDE_ROPE,
     TDM_FAMILY_DENSE},
    {"Olmo3ForCausalLM", "olmo3", 65536, 0, false, true, WINDOWS_FOURTH,
     PART_POST_NORMS | PART_WHOLE_QK_NORM | TDM_PART_NO_PRE_NORMS | TDM_PART_WIDE_NORMS |
         TDM_PART_WIDE_ROPE | TDM_PART_TWO_ROPES,
     TDM_FAMILY_DENSE},
    {"OlmoeForCausalLM", "olmoe", 4096, 0, false, true, WINDOWS_NONE,
     PART_EXPERTS | PART_WHOLE_QK_NORM, TDM_FAMILY_OLMOE},
    {"OPTForCausalLM", "opt", 2048, 0, true, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_BIASES | TDM_PART_POSITIONS | PART_TIED |
         PART_OPT,
     TDM_FAMILY_DENSE},
    {"PhiForCausalLM", "phi", 2048, 0, true, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_PARALLEL | TDM_PART_PLAIN_MLP | TDM_PART_BIASES |
         TDM_PART_CUT_ROPE | TDM_PART_HEAD_BIAS | PART_HALF_ROPE,
     TDM_FAMILY_DENSE},
    {"Phi3ForCausalLM", "phi3", 4096, 0, false, false, WINDOWS_SAID,
     TDM_PART_JOINT_QKV | TDM_PART_JOINT_GATE_UP | TDM_PART_CUT_ROPE, TDM_FAMILY_DENSE},
    {"Phi4MMForCausalLM", "phi4mm", 131072, 0, false, false, WINDOWS_SAID,
     TDM_PART_JOINT_QKV | TDM_PART_JOINT_GATE_UP | TDM_PART_CUT_ROPE | PART_TEXT_ALONE,
     TDM_FAMILY_DENSE},
    {"Phi4MultimodalForCausalLM", "phi4_multimodal", 131072, 0, false, false, WINDOWS_SAID,
     TDM_PART_JOINT_QKV | TDM_PART_JOINT_GATE_UP | TDM_PART_CUT_ROPE | PART_TEXT_ALONE,
     TDM_FAMILY_DENSE},
    {"QWenLMHeadModel", "qwen", 32768, 0, true, false, WINDOWS_NONE,
     TDM_PART_JOINT_QKV | TDM_PART_WIDE_ROPE | TDM_PART_FLASH_ROPE | PART_QWEN, TDM_FAMILY_DENSE},
    {"Qwen2ForCausalLM", "qwen2", 32768, 0, true, false, WINDOWS_LATE, 0, TDM_FAMILY_DENSE},
    {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", 32768, 0, true, false, WINDOWS_LATE,
     PART_VISION | PART_TEXT_ALONE, TDM_FAMILY_DENSE},
    {"Qwen2VLForConditionalGeneration", "qwen2_vl_text", 32768, 0, true, false, WINDOWS_LATE,
     PART_TEXT_ALONE, TDM_FAMILY_DENSE},
    {"Qwen2MoeForCausalLM", "qwen2_moe", 32768, 0, true, false, WINDOWS_LATE, PART_EXPERTS,
     TDM_FAMILY_QWEN2_MOE},
    {"Qwen3ForCausalLM", "qwen3", 32768, 128, false, true, WINDOWS_LATE, 0, TDM_FAMILY_DENSE},
    {"Qwen3NextForCausalLM", "qwen3_next", 32768, 256, false, true, WINDOWS_NONE,
     PART_EXPERTS | PART_OFFSET_NORMS | TDM_PART_CUT_ROPE | TDM_PART_GATED_ATTENTION,
     TDM_FAMILY_QWEN3_NEXT},
    {"Qwen3_5ForCausalLM", "qwen3_5_text", 32768, 256, false, true, WINDOWS_NONE,
     PART_OFFSET_NORMS | TDM_PART_CUT_ROPE | TDM_PART_GATED_ATTENTION | PART_TEXT_ALONE,
     TDM_FAMILY_QWEN3_5},
    {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 32768, 256, false, true, WINDOWS_NONE,
     PART_EXPERTS | PART_OFFSET_NORMS | TDM_PART_CUT_ROPE | TDM_PART_GATED_ATTENTION |
         PART_TEXT_ALONE,
     TDM_FAMILY_QWEN3_5_MOE},
    {"Qwen3MoeForCausalLM", "qwen3_moe", 32768, 128, false, true, WINDOWS_LATE, PART_EXPERTS,
     TDM_FAMILY_QWEN3_MOE},
    {"SeedOssForCausalLM", "seed_oss", 524288, 128, false, false, WINDOWS_NONE,
     PART_QKV_BIAS_ALONE | TDM_PART_DROPOUT, TDM_FAMILY_DENSE},
    {"StableLmForCausalLM", "stablelm", 4096, 0, false, false, WINDOWS_NONE,
     TDM_PART_LAYER_NORMS | TDM_PART_CUT_ROPE | PART_USE_QKV_BIAS, TDM_FAMILY_DENSE},
    {"Starcoder2ForCausalLM", "starcoder2", 4096, 0, true, false, WINDOWS_SAID,
     TDM_PART_LAYER_NORMS | TDM_PART_PLAIN_MLP | TDM_PART_BIASES | PART_TIED, TDM_FAMILY_DENSE},
    {"SmolLM3ForCausalLM", "smollm3", 32768, 0, false, false, WINDOWS_NONE,
     PART_NO_ROPE | PART_TIED, TDM_FAMILY_DENSE},
};

static bool has_deltas(const struct architecture *architecture)
{
    return architecture->family >= TDM_FAMILY_QWEN3_NEXT &&
           architecture->family <= TDM_FAMILY_QWEN3_5_MOE;
}

static enum tdm_mixers mixers_of(const struct architecture *architecture)
{
    return architecture->family == TDM_FAMILY_GRANITE_HYBRID ? TDM_MIXERS_GRANITE
           : (architecture->parts & TDM_PART_FALCON_H1) != 0 ? TDM_MIXERS_FALCON
           : (architecture->parts & TDM_PART_ONE_MIXER) != 0 ? TDM_MIXERS_NEMOTRON
           : (architecture->parts & PART_LFM2) != 0          ? TDM_MIXERS_SHORT
                                                             : TDM_MIXERS_ATTENTION;
}

enum { ARCHITECTURES = sizeof(architectures) / sizeof(architectures[0]) };

/* Letters and digits that both names begin with, in any case. */
static size_t common_start(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] != '\0' && b[n] != '\0' && strncasecmp(a + n, b + n, 1) == 0)
        n++;
    return n;
}

#define SAME_FAMILY 3u /* letters that names of one family share at least: Phi, Glm, GPT */

#define SCORED "ForSequenceClassification"
#define NAME_BYTES 96u

/* Letters of a class's name before what says what the class is for. */
static size_t stem_length(const char *name)
{
    static const char *const ends[] = {"ForCausalLM", "LMHeadModel", SCORED};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t end = strlen(ends[i]);
        if (length > end && strcmp(name + length - end, ends[i]) == 0)
            return length - end;
    }
    return length;
}

/* The known architecture that is nearest: as a table says, else whose name begins as this one does,
 * else whose layers have what the config's fields name. */
static const char *nearest(const struct tdm_json_reader *reader, bool by_type, const char *value)
{
    static const struct {
        const char *field, *name;
    } fields[] = {{"kv_lora_rank", "DeepseekV3ForCausalLM"},
                  {"n_routed_experts", "Glm4MoeForCausalLM"},
                  {"shared_expert_intermediate_size", "Qwen2MoeForCausalLM"},
                  {"num_experts", "Qwen3MoeForCausalLM"},
                  {"num_local_experts", "MixtralForCausalLM"},
                  {"final_logit_softcapping", "Gemma2ForCausalLM"},
                  {"rotary_pct", "GPTNeoXForCausalLM"},
                  {"layer_norm_eps", "StableLmForCausalLM"},
                  {"layer_norm_epsilon", "GPTNeoXForCausalLM"}};
    /* Whose layers are mostly those of another family, under names that do not say so. */
    static const struct {
        const char *start, *name;
    } known[] = {{"MiMo", "Qwen2ForCausalLM"},
                 {"Afmoe", "Qwen3MoeForCausalLM"},
                 {"Bailing", "DeepseekV3ForCausalLM"},
                 {"MiniMax", "MixtralForCausalLM"},
                 {"MiniCPM3", "DeepseekV2ForCausalLM"},
                 {"MiniCPM", "LlamaForCausalLM"},
                 {"PhiMoE", "MixtralForCausalLM"},
                 {"ChatGLM", "GlmForCausalLM"},
                 {"GPTNeoFor", "GPT2LMHeadModel"},
                 {"PaliGemma", "GemmaForCausalLM"},
                 {"Bamba", "GraniteMoeHybridForCausalLM"},
                 {"Mamba", "NemotronHForCausalLM"},
                 {"Zamba", "NemotronHForCausalLM"},
                 {"Jamba", "GraniteMoeHybridForCausalLM"}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (common_start(known[i].start, value) == strlen(known[i].start))
            return known[i].name;
    const struct architecture *best = NULL;
    size_t longest = SAME_FAMILY - 1;
    for (size_t i = 0; i < ARCHITECTURES; i++) {
        const char *name = by_type ? architectures[i].model_type : architectures[i].name;
        size_t length = common_start(name, value);
        if (length > longest) {
            longest = length;
            best = &architectures[i];
        }
    }
    if (best != NULL)
        return best->name;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (json_object_get(reader->object, fields[i].field) != NULL)
            return fields[i].name;
    return "LlamaForCausalLM";
}

/* Does a class read a whole text at once, and not continue it? */
static bool is_encoder(const char *name)
{
    static const char *const parts[] = {"bert", "ForMaskedLM", "T5", "Bart", "Whisper", "Electra"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcasestr(name, parts[i]) != NULL)
            return true;
    return false;
}

static const struct architecture *unsupported(struct tdm_json_reader *reader, const char *key,
                                              const char *value)
{
    const size_t length = strlen(value), end = strlen("Model");
    char name[NAME_BYTES];
    if (is_encoder(value)) {
        tdm_json_fail(reader, key,
                      "names \"%.60s\", which has an encoder; only decoders are known, such as "
                      "LlamaForCausalLM",
                      value);
        return NULL;
    }
    /* "Qwen2Model" is Qwen2, and not Qwen2Moe */
    snprintf(name, sizeof(name), "%.*s",
             (int)(length > end && strcmp(value + length - end, "Model") == 0 &&
                           stem_length(value) == length
                       ? length - end
                       : length),
             value);
    const char *near = nearest(reader, strcmp(key, "model_type") == 0, name);
    const bool scores =
        near[stem_length(near)] != '\0' &&
        (strstr(value, "Reward") != NULL || strstr(value, "Classification") != NULL);
    tdm_json_fail(reader, key,
                  "names \"%.60s\", which is not known; the nearest that is known is %.*s%s", value,
                  (int)(scores ? stem_length(near) : strlen(near)), near, scores ? SCORED : "");
    return NULL;
}

/* Finds the architecture by "architectures" or, if the config has none, by "model_type". NULL after
 * failure. */
static const struct architecture *find_architecture(struct tdm_json_reader *reader)
{
    if (!tdm_json_has(reader, "architectures")) {
        if (!tdm_json_has(reader, "model_type")) {
            tdm_json_fail(reader, "architectures", "is missing; add it as [NAME], such as [\"%s\"]",
                          nearest(reader, false, ""));
            return NULL;
        }
        const char *type = tdm_json_string(reader, "model_type");
        if (tdm_json_status(reader) != TDM_OK)
            return NULL;
        for (size_t i = 0; i < ARCHITECTURES; i++) {
            if (strcmp(type, architectures[i].model_type) == 0)
                return &architectures[i];
        }
        return unsupported(reader, "model_type", type);
    }

    const json_t *list = tdm_json_array(reader, "architectures");
    if (list == NULL)
        return NULL;
    const char *name = json_string_value(json_array_get(list, 0));
    if (name == NULL) {
        tdm_json_fail(reader, "architectures", "must hold the name of an architecture");
        return NULL;
    }
    for (size_t i = 0; i < ARCHITECTURES; i++) {
        const size_t stem = stem_length(architectures[i].name);
        if (strcasecmp(name, architectures[i].name) == 0 || /* MPT is Mpt in transformers */
            (strncmp(name, architectures[i].name, stem) == 0 && strcmp(name + stem, SCORED) == 0 &&
             architectures[i].name[stem] != '\0'))
            return &architectures[i];
    }
    return unsupported(reader, "architectures", name);
}

/* Outputs of the head of a class that scores whole sequences; 0: it has an LM head. id2label, which
 * transformers writes, counts as its list of labels does there. */
static uint32_t read_labels(struct tdm_json_reader *reader)
{
    const char *name =
        json_string_value(json_array_get(json_object_get(reader->object, "architectures"), 0));
    const size_t length = name == NULL ? 0 : strlen(name), end = strlen(SCORED);
    if (length <= end || strcmp(name + length - end, SCORED) != 0)
        return 0;
    const size_t listed = json_object_size(json_object_get(reader->object, "id2label"));
    return (uint32_t)(listed > 0 ? listed
                                 : tdm_json_count_or(reader, "num_labels", 1, TDM_DIMENSION_LIMIT,
                                                     LABELS_DEFAULT));
}

const struct tdm_activation_type tdm_activation_types[TDM_ACTIVATIONS] = {
    [TDM_ACTIVATION_SILU] = {"silu", "SwiGLU", ""}, /* older digests do not name it */
    [TDM_ACTIVATION_GELU_TANH] = {"gelu_pytorch_tanh", "GeGLU", " gelu"},
    [TDM_ACTIVATION_GELU] = {"gelu", "exact GELU", " exact gelu"},
    [TDM_ACTIVATION_GELU_NEW] = {"gelu_new", "GELU of single operations", " gelu_new"},
    [TDM_ACTIVATION_GELU_FAST] = {"gelu_fast", "GELU of more operations", " gelu_fast"},
    [TDM_ACTIVATION_RELU] = {"relu", "ReLU", " relu"},
    [TDM_ACTIVATION_RELU2] = {"relu2", "squared ReLU", " relu2"},
    [TDM_ACTIVATION_XIELU] = {"xielu", "xIELU", " xielu"},
    [TDM_ACTIVATION_BLOOM] = {"bloom_gelu", "BLOOM's GELU", " bloom gelu"},
};

/* Can it have an activation? Llama and its like can have all, Gemma must have GELU, others SiLU. */
static bool has_activation(uint64_t parts, enum tdm_activation activation)
{
    bool gemma = parts & PART_SCALED_EMBEDDING;
    if ((parts & (TDM_PART_PLAIN_MLP | TDM_PART_LAYER_NORMS)) == TDM_PART_PLAIN_MLP)
        return activation == TDM_ACTIVATION_RELU2 ||
               (activation == TDM_ACTIVATION_XIELU && (parts & PART_XIELU) != 0);
    if ((parts & PART_NEMOTRON) != 0)
        return activation == TDM_ACTIVATION_RELU2;
    if ((parts & PART_OPT) != 0)
        return activation >= TDM_ACTIVATION_GELU && activation <= TDM_ACTIVATION_RELU;
    if ((parts & TDM_PART_PLAIN_MLP) != 0)
        return activation != TDM_ACTIVATION_SILU && activation < TDM_ACTIVATION_RELU;
    if (parts == 0)
        return activation <= TDM_ACTIVATION_GELU_TANH;
    return activation == (gemma ? TDM_ACTIVATION_GELU_TANH : TDM_ACTIVATION_SILU);
}

/* Gemma's field is hidden_activation; configs of the first one have hidden_act alone. */
static void read_activation(struct tdm_json_reader *reader, uint64_t parts, struct tdm_model *model)
{
    const struct tdm_activation_type *types = tdm_activation_types;
    bool gemma = parts & PART_SCALED_EMBEDDING;
    const char *key =
        gemma && !tdm_json_has(reader, "hidden_act") ? "hidden_activation" : "hidden_act";
    if (gemma && tdm_json_has(reader, "hidden_activation"))
        key = "hidden_activation";
    if ((parts & (PART_GPT2 | PART_OPT)) != 0)
        key = "activation_function";
    if ((parts & TDM_PART_ONE_MIXER) != 0)
        key = "mlp_hidden_act";
    bool layer_norms = parts & TDM_PART_LAYER_NORMS;
    const char *name =
        tdm_json_string_or(reader, key,
                           types[(parts & PART_XIELU) != 0      ? TDM_ACTIVATION_XIELU
                                 : (parts & PART_GPT2) != 0     ? TDM_ACTIVATION_GELU_NEW
                                 : (parts & PART_OPT) != 0      ? TDM_ACTIVATION_RELU
                                 : (parts & PART_NEMOTRON) != 0 ? TDM_ACTIVATION_RELU2
                                 : gemma                        ? TDM_ACTIVATION_GELU_TANH
                                 : (parts & TDM_PART_PLAIN_MLP) != 0
                                     ? layer_norms ? TDM_ACTIVATION_GELU : TDM_ACTIVATION_RELU2
                                     : TDM_ACTIVATION_SILU]
                               .name);
    if (gemma && strcmp(key, "hidden_act") == 0 && strcmp(name, "gelu") == 0)
        name = types[TDM_ACTIVATION_GELU_TANH].name; /* which transformers takes in its place */
    char known[200] = "";
    size_t used = 0;
    for (int i = 0; i < TDM_ACTIVATIONS; i++) {
        if (!has_activation(parts, (enum tdm_activation)i))
            continue;
        if (strcmp(name, types[i].name) == 0) {
            model->activation = (enum tdm_activation)i;
            return;
        }
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s\"%s\" (%s)",
                                 used > 0 ? " or " : "", types[i].name, types[i].mlp);
    }
    tdm_json_fail(reader, key, "is \"%.40s\"; only %s is supported", name, known);
}

/* Refuses options that would add tensors or change results. The details of a switched-off option do
 * not matter. */
static void refuse_options(struct tdm_json_reader *reader, const struct architecture *architecture)
{
    /* In Llama and Qwen3 this adds a bias to q, k, v and o. Qwen2 and Mistral have no such
     * option. */
    bool bias_alone = architecture->qkv_bias ||
                      (architecture->parts & (PART_QKV_BIAS_ALONE | TDM_PART_BIASES)) != 0;
    if (!bias_alone && tdm_json_bool_or(reader, "attention_bias", false))
        tdm_json_fail(reader, "attention_bias",
                      "is true, which in %s adds a bias to the o product too and is not supported; "
                      "only models without it are",
                      architecture->name);
    if (tdm_json_bool_or(reader, "mlp_bias", false))
        tdm_json_fail(reader, "mlp_bias",
                      "is true, which is not supported; only models without "
                      "biases in the MLP are");
    static const char *const biases[] = {"attention_out_bias", "use_bias"};
    for (size_t i = 0; i < sizeof(biases) / sizeof(biases[0]); i++)
        if ((architecture->parts & (TDM_PART_DROPOUT | TDM_PART_CAST_ROPE)) != 0 &&
            tdm_json_bool_or(reader, biases[i], false))
            tdm_json_fail(reader, biases[i], "is true, which is not known of %s",
                          architecture->name);
    static const char *const own_biases[] = {"bias", "qkv_bias"};
    const bool joint = (architecture->parts & TDM_PART_JOINT_QKV) != 0 && /* InternLM 2: true */
                       (architecture->parts & PART_BAICHUAN) == 0;
    for (size_t i = 0; i < sizeof(own_biases) / sizeof(own_biases[0]); i++)
        if ((architecture->parts & PART_OWN_CODE) != 0 &&
            tdm_json_bool_or(reader, own_biases[i], i == 0 && joint))
            tdm_json_fail(reader, own_biases[i], "is not false, which is not known of %s",
                          architecture->name);
    if ((architecture->parts & PART_BARE_NORMS) != 0 && tdm_json_has(reader, "clip_qkv"))
        tdm_json_fail(reader, "clip_qkv", "is given; q, k and v that are clipped are not known");
    if ((architecture->parts & PART_QWEN) != 0 && !tdm_json_bool_or(reader, "no_bias", true))
        tdm_json_fail(reader, "no_bias",
                      "is false, which is not supported; only q, k and v may have biases");
    if ((architecture->parts & TDM_PART_CUT_ROPE) == 0 &&
        tdm_json_number_or(reader, "partial_rotary_factor", 0, 1, 1) != 1)
        tdm_json_fail(reader, "partial_rotary_factor",
                      "is not 1; only rotation of whole heads is supported");
}

static uint32_t dimension(struct tdm_json_reader *reader, const char *key)
{
    return (uint32_t)tdm_json_count(reader, key, 1, TDM_DIMENSION_LIMIT);
}

/* The same, with the default that the architecture may have. */
static uint32_t dimension_or(struct tdm_json_reader *reader, const char *key, uint32_t usual)
{
    return usual == 0 ? dimension(reader, key)
                      : (uint32_t)tdm_json_count_or(reader, key, 1, TDM_DIMENSION_LIMIT, usual);
}

/* Dimensions that configs of Gemma 3 with a vision tower leave out. */
static bool leaves_out(const struct architecture *architecture)
{
    return (architecture->parts & TDM_PART_TWO_ROPES) != 0 &&
           (architecture->parts & PART_SCALED_EMBEDDING) != 0;
}

static bool is_gpt2(const struct architecture *architecture)
{
    return (architecture->parts & PART_GPT2) != 0;
}

/* Fields that some families name in words of their own; transformers writes the common ones too. */
enum field { FIELD_HIDDEN, FIELD_LAYERS, FIELD_HEADS, FIELD_CONTEXT, FIELDS };

static const char *field_name(const struct tdm_json_reader *reader,
                              const struct architecture *architecture, enum field field)
{
    static const char *const common[FIELDS] = {"hidden_size", "num_hidden_layers",
                                               "num_attention_heads", "max_position_embeddings"};
    static const struct {
        uint64_t part;
        const char *names[FIELDS];
    } own[] = {{PART_GPT2, {"n_embd", "n_layer", "n_head", "n_positions"}},
               {PART_BLOOM, {"n_embed", "n_layer", "n_head", "seq_length"}},
               {PART_MPT, {"d_model", "n_layers", "n_heads", "max_seq_len"}}};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if ((architecture->parts & own[i].part) != 0 && !tdm_json_has(reader, common[field]))
            return own[i].names[field];
    return common[field];
}

static void read_heads(struct tdm_json_reader *reader, const struct architecture *architecture,
                       struct tdm_model *model)
{
    model->query_heads = dimension_or(reader, field_name(reader, architecture, FIELD_HEADS),
                                      leaves_out(architecture) ? 8 : 0);
    bool falcon = (architecture->parts & PART_FALCON) != 0;
    model->kv_heads = (uint32_t)tdm_json_count_or(
        reader, falcon ? "num_kv_heads" : "num_key_value_heads", 1, TDM_DIMENSION_LIMIT,
        falcon                     ? 1
        : leaves_out(architecture) ? 4
                                   : model->query_heads);
    if (falcon && !tdm_json_bool_or(reader, "new_decoder_architecture", false))
        model->kv_heads = 1; /* multi_query */
    if (tdm_json_status(reader) != TDM_OK)
        return;
    if (model->query_heads % model->kv_heads != 0) {
        tdm_json_fail(reader, "num_key_value_heads",
                      "is %" PRIu32 ", which does not divide %" PRIu32 " query heads "
                      "(\"num_attention_heads\"); give a divisor",
                      model->kv_heads, model->query_heads);
        return;
    }
    if ((architecture->parts & PART_LATENT) != 0) {
        model->head_dim = 2; /* until tdm_latent_read */
    } else if (tdm_json_has(reader, "head_dim")) {
        model->head_dim = dimension(reader, "head_dim");
    } else if ((architecture->parts & PART_QWEN) != 0) {
        model->head_dim = dimension(reader, "kv_channels");
    } else if (architecture->head_dim != 0) {
        model->head_dim = architecture->head_dim;
    } else if (model->hidden % model->query_heads != 0) {
        tdm_json_fail(reader, field_name(reader, architecture, FIELD_HEADS),
                      "is %" PRIu32 ", which does not divide \"%s\" %" PRIu32
                      "; correct one of them or add \"head_dim\"",
                      model->query_heads, field_name(reader, architecture, FIELD_HIDDEN),
                      model->hidden);
    } else {
        model->head_dim = model->hidden / model->query_heads;
    }
    if (tdm_json_status(reader) != TDM_OK)
        return;
    if (model->head_dim % 2 != 0)
        tdm_json_fail(
            reader, "head_dim", "is %" PRIu32 "%s; rotary position embedding needs an even one",
            model->head_dim,
            tdm_json_has(reader, "head_dim") ? "" : " (\"hidden_size\" / \"num_attention_heads\")");
    else if ((uint64_t)model->query_heads * model->head_dim > TDM_DIMENSION_LIMIT)
        tdm_json_fail(reader, "head_dim",
                      "is %" PRIu32 "; times %" PRIu32 " query heads that is more than %" PRIu64
                      ": lower one of them",
                      model->head_dim, model->query_heads, TDM_DIMENSION_LIMIT);
}

/* Tokens that a layer with a window sees; 0: no layer has a window. */
static uint64_t read_window(struct tdm_json_reader *reader, enum windows windows)
{
    bool said = json_object_get(reader->object, "sliding_window") != NULL;
    bool asked = windows == WINDOWS_ALL || (windows == WINDOWS_SAID && said) ||
                 windows >= WINDOWS_EVEN ||
                 (windows == WINDOWS_LATE && tdm_json_bool_or(reader, "use_sliding_window", false));
    if (!asked || json_is_null(json_object_get(reader->object, "sliding_window")))
        return 0;
    return tdm_json_count_or(reader, "sliding_window", 1, UINT64_C(1) << 40, WINDOW_DEFAULT);
}

/* Reads layer_types: "full_attention" or "sliding_attention" for every layer. */
static void read_layer_types(struct tdm_json_reader *reader, uint64_t window,
                             struct tdm_model *model)
{
    const json_t *types = tdm_json_array(reader, "layer_types");
    if (types != NULL && json_array_size(types) != model->layers)
        tdm_json_fail(reader, "layer_types",
                      "has %zu entries for %" PRIu32 " layers; give one a layer",
                      json_array_size(types), model->layers);
    for (uint32_t i = 0; i < model->layers && tdm_json_status(reader) == TDM_OK; i++) {
        char shown[TDM_JSON_SHOWN];
        const json_t *entry = json_array_get(types, i);
        const char *type = json_string_value(entry);
        bool sliding = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (!sliding && (type == NULL || strcmp(type, "full_attention") != 0))
            tdm_json_fail(reader, "layer_types",
                          "has %s for layer %" PRIu32
                          "; expected \"full_attention\" or \"sliding_attention\"",
                          tdm_json_show(entry, shown), i);
        else if (sliding && window == 0)
            tdm_json_fail(reader, "layer_types",
                          "has \"sliding_attention\" for layer %" PRIu32
                          ", but no window is given; set \"sliding_window\" (in Qwen models "
                          "\"use_sliding_window\" too), or name an architecture that has windows",
                          i);
        model->layer_kinds[i].window = sliding ? window : 0;
    }
}

/* Every so many layers, the last one has no window; 0: that is not how it is said. */
static uint64_t full_layers(struct tdm_json_reader *reader, enum windows windows)
{
    if (windows == WINDOWS_SIXTH)
        return tdm_json_count_or(reader, "sliding_window_pattern", 1, TDM_LAYER_LIMIT, 6);
    return windows == WINDOWS_FOURTH ? 4 : 0;
}

/* SmolLM3: no_rope_layers has 1 for a layer that is rotated; by default every fourth is not. */
static void read_rope_layers(struct tdm_json_reader *reader, struct tdm_model *model)
{
    const json_t *list =
        tdm_json_has(reader, "no_rope_layers") ? tdm_json_array(reader, "no_rope_layers") : NULL;
    bool said = json_array_size(list) > 0; /* configs of Llama 4 have an empty one */
    uint64_t every = tdm_json_count_or(reader, "no_rope_layer_interval", 1, TDM_LAYER_LIMIT,
                                       ROPE_LAYERS_DEFAULT);
    if (said && tdm_json_status(reader) == TDM_OK && json_array_size(list) != model->layers)
        tdm_json_fail(reader, "no_rope_layers",
                      "has %zu entries for %" PRIu32 " layers; give one a layer",
                      json_array_size(list), model->layers);
    for (uint32_t i = 0; i < model->layers && tdm_json_status(reader) == TDM_OK; i++)
        model->layer_kinds[i].no_rope =
            said ? json_integer_value(json_array_get(list, i)) == 0 : (i + 1) % every == 0;
}

/* Llama 4: layers with rotation attend within chunks of so many tokens, which for memory are
 * windows. */
static void read_attention_chunks(struct tdm_json_reader *reader, struct tdm_model *model)
{
    uint64_t chunk = tdm_json_count_or(reader, "attention_chunk_size", 1, UINT64_C(1) << 40,
                                       ATTENTION_CHUNK_DEFAULT);
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].window = model->layer_kinds[i].no_rope ? 0 : chunk;
}

/* Reads the kinds of all layers. */
static void read_layer_kinds(struct tdm_json_reader *reader,
                             const struct architecture *architecture, struct tdm_model *model)
{
    uint64_t window = read_window(reader, architecture->windows), first = 0;
    if (architecture->windows == WINDOWS_LATE && window > 0)
        first = tdm_json_count_or(reader, "max_window_layers", 0, TDM_LAYER_LIMIT,
                                  WINDOW_LAYERS_DEFAULT);
    bool qkv_bias = architecture->qkv_bias;
    if ((architecture->parts & PART_QKV_BIAS_ALONE) != 0)
        qkv_bias = tdm_json_bool_or(reader, "attention_bias",
                                    (architecture->parts & TDM_PART_DROPOUT) != 0);
    if ((architecture->parts & PART_USE_QKV_BIAS) != 0)
        qkv_bias = tdm_json_bool_or(reader, "use_qkv_bias", false);
    const bool qk_norm = (architecture->parts & PART_USE_QK_NORM) != 0
                             ? tdm_json_bool_or(reader, "use_qk_norm", false)
                             : architecture->qk_norm;
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i] = (struct tdm_layer_kind){
            .qkv_bias = qkv_bias, .qk_norm = qk_norm, .window = i >= first ? window : 0};
    for (uint32_t i = 1; i < model->layers && architecture->windows == WINDOWS_EVEN; i += 2)
        model->layer_kinds[i].window = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].no_rope = model->own_scores > TDM_SCORES_GPTJ;
    uint64_t full = full_layers(reader, architecture->windows);
    for (uint32_t i = 0; i < model->layers && full > 0; i++)
        if ((i + 1) % full == 0)
            model->layer_kinds[i].window = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].post_norms = (architecture->parts & PART_POST_NORMS) != 0;
    tdm_experts_read_layers(reader, architecture->family, model);
    if ((architecture->parts & PART_NO_ROPE) != 0)
        read_rope_layers(reader, model);
    if (architecture->family == TDM_FAMILY_LLAMA4)
        read_attention_chunks(reader, model);
    else if (has_deltas(architecture))
        tdm_delta_read_layers(reader, model);
    else if (mixers_of(architecture) != TDM_MIXERS_ATTENTION)
        tdm_mixers_read_layers(reader, mixers_of(architecture), model);
    else if (tdm_json_has(reader, "layer_types"))
        read_layer_types(reader, window, model);
    for (uint32_t i = 0; i < model->layers; i++)
        if ((architecture->parts & PART_ROPE_OF_WINDOWS) != 0 && window > 0)
            model->layer_kinds[i].no_rope = model->layer_kinds[i].window == 0;
}

/* The share of a head's dimensions that is rotated. New configs have it in rope_parameters. */
static double read_rotary_share(struct tdm_json_reader *reader, const char *key, double usual)
{
    const json_t *inner = json_object_get(reader->object, "rope_parameters");
    const json_t *share = json_object_get(inner, "partial_rotary_factor");
    if (json_is_number(share))
        usual = json_number_value(share);
    return tdm_json_number_or(reader, key, 0, 1, usual);
}

/* Of Falcon only layers as the 7B's are known, and those with groups of K and V (40B, 180B, and
 * with one norm 11B). */
static void read_falcon(struct tdm_json_reader *reader, struct tdm_model *model)
{
    const bool groups = tdm_json_bool_or(reader, "new_decoder_architecture", false);
    static const struct {
        const char *key;
        bool value, usual;
    } needed[] = {{"multi_query", true, true},
                  {"parallel_attn", true, true},
                  {"alibi", false, false},
                  {"bias", false, false}};
    model->early_heads = groups;
    model->two_norms = groups && tdm_json_count_or(reader, "num_ln_in_parallel_attn", 1, 2, 2) == 2;
    for (size_t i = groups ? 1 : 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (tdm_json_bool_or(reader, needed[i].key, needed[i].usual) != needed[i].value)
            tdm_json_fail(reader, needed[i].key,
                          "is %s; of Falcon only layers as those of 7B, 11B and 40B are known",
                          needed[i].value ? "false" : "true");
}

/* OPT: positions have two rows before the first; q is multiplied before it is split. The 350M's
 * layers, which are normed behind their modules and narrower at both ends, are not known. */
static void read_opt(struct tdm_json_reader *reader, struct tdm_model *model)
{
    static const char *const needed[] = {"do_layer_norm_before", "enable_bias",
                                         "layer_norm_elementwise_affine"};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!tdm_json_bool_or(reader, needed[i], true))
            tdm_json_fail(reader, needed[i], "is false, which is not known of OPT");
    if (tdm_json_count_or(reader, "word_embed_proj_dim", 1, TDM_DIMENSION_LIMIT, model->hidden) !=
        model->hidden)
        tdm_json_fail(reader, "word_embed_proj_dim",
                      "is not hidden_size, which is not known of OPT");
    model->dropout = tdm_json_number_or(reader, "dropout", 0, 1, DROPOUT_DEFAULT);
    model->scaled_heads = true;
    model->spare_places = 2;
}

/* GPT-2 has dropout of its values and of its attention's weights. */
static void read_gpt2(struct tdm_json_reader *reader, struct tdm_model *model)
{
    model->dropout = tdm_json_number_or(reader, "resid_pdrop", 0, 1, DROPOUT_DEFAULT);
    model->attention_dropout = tdm_json_number_or(reader, "attn_pdrop", 0, 1, DROPOUT_DEFAULT);
    model->embedding_dropout = tdm_json_number_or(reader, "embd_pdrop", 0, 1, DROPOUT_DEFAULT);
    if (tdm_json_bool_or(reader, "reorder_and_upcast_attn", false))
        tdm_json_fail(reader, "reorder_and_upcast_attn", "is true, which is not known");
    if (tdm_json_bool_or(reader, "add_cross_attention", false))
        tdm_json_fail(reader, "add_cross_attention", "is true, which is not known");
}

/* GPT-J: fields of GPT-2, rotated neighbours, biases of the MLP alone, no dropout by default. */
static void read_gptj(struct tdm_json_reader *reader, struct tdm_model *model)
{
    model->own_scores = TDM_SCORES_GPTJ;
    model->mlp_biases = true;
    model->rotary_dim = (uint32_t)tdm_json_count_or(reader, "rotary_dim", 2, model->head_dim, 64);
    model->dropout = tdm_json_number_or(reader, "resid_pdrop", 0, 1, 0);
    model->attention_dropout = tdm_json_number_or(reader, "attn_pdrop", 0, 1, 0);
    model->embedding_dropout = tdm_json_number_or(reader, "embd_pdrop", 0, 1, 0);
}

#define BAICHUAN_LAYERS 32u     /* of 7B; 13B has 40 */
#define BAICHUAN_1_WORDS 64000u /* which has a plain head */

static void read_baichuan(struct tdm_json_reader *reader, struct tdm_model *model)
{
    if (tdm_json_status(reader) == TDM_OK && model->layers > BAICHUAN_LAYERS)
        tdm_json_fail(reader, "num_hidden_layers",
                      "is %" PRIu32
                      "; of Baichuan 7B is known, and not 13B, whose masks have ALiBi",
                      model->layers);
    model->normed_head = model->vocabulary != BAICHUAN_1_WORDS;
}

static void read_bloom(struct tdm_json_reader *reader, struct tdm_model *model)
{
    static const char *const refused[] = {"apply_residual_connection_post_layernorm",
                                          "slow_but_exact"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (tdm_json_bool_or(reader, refused[i], false))
            tdm_json_fail(reader, refused[i], "is true, which is not known of BLOOM");
    model->own_scores = TDM_SCORES_BLOOM;
    model->embedding_norm = true;
    model->activation = TDM_ACTIVATION_BLOOM;
    model->dropout = tdm_json_number_or(reader, "hidden_dropout", 0, 1, 0);
    model->attention_dropout = tdm_json_number_or(reader, "attention_dropout", 0, 1, 0);
}

/* MPT with ALiBi, as all published models have it. */
static void read_mpt(struct tdm_json_reader *reader, struct tdm_model *model)
{
    const json_t *inner = json_object_get(reader->object, "attn_config");
    model->own_scores = TDM_SCORES_MPT;
    model->unbiased_norms = true;
    model->activation = TDM_ACTIVATION_GELU;
    if (!tdm_json_bool_or(reader, "no_bias", true))
        tdm_json_fail(reader, "no_bias", "is false, which is not known of MPT");
    if (inner == NULL)
        return;
    struct tdm_json_reader attention = *reader;
    attention.prefix = "attn_config";
    attention.object = tdm_json_object(reader, "attn_config");
    attention.status = tdm_json_status(reader);
    if (attention.status == TDM_OK) {
        if (!tdm_json_bool_or(&attention, "alibi", true))
            tdm_json_fail(&attention, "alibi", "is false; MPT with ALiBi alone is known");
        if (tdm_json_has(&attention, "clip_qkv"))
            tdm_json_fail(&attention, "clip_qkv",
                          "is given; q, k and v that are clipped are not "
                          "known");
        if (tdm_json_bool_or(&attention, "qk_ln", false))
            tdm_json_fail(&attention, "qk_ln", "is true, which is not known of MPT");
        model->dropout = model->attention_dropout =
            tdm_json_number_or(&attention, "attn_pdrop", 0, 1, 0);
    }
    reader->status = tdm_json_status(&attention);
}

/* Reads the options that only predictions of other systems know, and the activation. */
static void read_parts(struct tdm_json_reader *reader, const struct architecture *architecture,
                       struct tdm_model *model)
{
    uint64_t parts = architecture->parts;
    model->parts = (uint32_t)(parts & PARTS_OF_MODEL);
    model->labels = read_labels(reader);
    model->tied &= model->labels == 0;
    model->sized_only |= parts != 0 || model->labels > 0;
    model->scaled_embedding = (parts & PART_SCALED_EMBEDDING) != 0;
    model->offset_norms = (parts & PART_OFFSET_NORMS) != 0;
    model->whole_qk_norm = (parts & PART_WHOLE_QK_NORM) != 0;
    model->bare_norms = (parts & PART_BARE_NORMS) != 0;
    model->own_code = (parts & PART_OWN_CODE) != 0;
    model->two_norms = (parts & PART_NEOX) != 0;
    if ((parts & PART_NEOX) != 0 && !tdm_json_bool_or(reader, "use_parallel_residual", true))
        model->parts &= ~(uint32_t)TDM_PART_PARALLEL;
    if ((parts & PART_FALCON) != 0)
        read_falcon(reader, model);
    if ((parts & (PART_BLOOM | PART_MPT)) == 0)
        read_activation(reader, parts, model);
    model->rotary_dim = model->head_dim;
    if ((parts & TDM_PART_CUT_ROPE) != 0 && (parts & PART_GPTJ) == 0) {
        double share = read_rotary_share(
            reader, (parts & PART_NEOX) != 0 ? "rotary_pct" : "partial_rotary_factor",
            (parts & (TDM_PART_INTERLEAVED_ROPE | PART_HALF_ROPE)) != 0                    ? 0.5
            : (parts & (PART_NEOX | TDM_PART_LAYER_NORMS | TDM_PART_GATED_ATTENTION)) != 0 ? 0.25
                                                                                           : 1);
        model->rotary_dim = (uint32_t)(model->head_dim * share) / 2 * 2;
        if (tdm_json_status(reader) == TDM_OK &&
            (model->rotary_dim == 0 || model->rotary_dim > model->head_dim))
            tdm_json_fail(reader, "partial_rotary_factor",
                          "must leave between 2 and %" PRIu32 " dimensions to rotate",
                          model->head_dim);
    }
    if ((parts & PART_SOFTCAPS) != 0) {
        model->attention_softcap = tdm_json_number_or(reader, "attn_logit_softcapping", 0, 1e9, 0);
        model->logits_softcap = tdm_json_number_or(reader, "final_logit_softcapping", 0, 1e9, 0);
    }
    model->attention_dropout = tdm_json_number_or(reader, "attention_dropout", 0, 1, 0);
    if ((parts & PART_GPTJ) != 0)
        read_gptj(reader, model);
    else if (is_gpt2(architecture))
        read_gpt2(reader, model);
    if ((parts & PART_BAICHUAN) != 0)
        read_baichuan(reader, model);
    if ((parts & PART_BLOOM) != 0)
        read_bloom(reader, model);
    if ((parts & PART_MPT) != 0)
        read_mpt(reader, model);
    if ((parts & PART_OPT) != 0)
        read_opt(reader, model);
    if (strcmp(architecture->model_type, "starcoder2") == 0) {
        model->dropout = tdm_json_number_or(reader, "residual_dropout", 0, 1, 0);
        model->embedding_dropout = tdm_json_number_or(reader, "embedding_dropout", 0, 1, 0);
    }
    if ((parts & TDM_PART_DROPOUT) != 0) {
        model->dropout = tdm_json_number_or(reader, "residual_dropout", 0, 1, DROPOUT_DEFAULT);
        model->attention_dropout =
            tdm_json_number_or(reader, "attention_dropout", 0, 1, DROPOUT_DEFAULT);
    }
    model->sized_only |= model->dropout + model->attention_dropout + model->embedding_dropout > 0;
    if (architecture->family == TDM_FAMILY_LLAMA4) {
        model->head_norms = tdm_json_bool_or(reader, "use_qk_norm", true);
        /* A number in the published configs, where it only counts whether it is 0. */
        const json_t *tuning = json_object_get(reader->object, "attn_temperature_tuning");
        model->scaled_queries =
            !json_is_false(tuning) && (!json_is_integer(tuning) || json_integer_value(tuning) != 0);
    }
    if (mixers_of(architecture) == TDM_MIXERS_SHORT)
        tdm_short_conv_read(reader, model);
    else if (mixers_of(architecture) != TDM_MIXERS_ATTENTION)
        tdm_mamba_read(reader, mixers_of(architecture), model);
    if (mixers_of(architecture) == TDM_MIXERS_GRANITE &&
        strcmp(tdm_json_string_or(reader, "position_embedding_type", "nope"), "rope") != 0)
        model->parts |= TDM_PART_NO_ANGLES;
    tdm_experts_read(reader, architecture->family, model);
    if ((parts & PART_LATENT) != 0)
        tdm_latent_read(reader, model);
    if (has_deltas(architecture))
        tdm_delta_read(reader, model);
}

/* The field of the MLP's width. */
static const char *width_key(struct tdm_json_reader *reader,
                             const struct architecture *architecture)
{
    return architecture->family == TDM_FAMILY_LLAMA4           ? "intermediate_size_mlp"
           : architecture->family == TDM_FAMILY_GRANITE_HYBRID ? "shared_intermediate_size"
           : architecture->family == TDM_FAMILY_QWEN3_5_MOE    ? "moe_intermediate_size"
           : (architecture->parts & PART_OPT) != 0             ? "ffn_dim"
           : (architecture->parts & PART_LFM2) != 0 && tdm_json_has(reader, "block_ff_dim")
               ? "block_ff_dim"
               : "intermediate_size";
}

/* BLOOM's MLP is four times as wide as the model, as MPT's is if nothing else is said. */
static uint32_t read_ratio(struct tdm_json_reader *reader, uint32_t hidden)
{
    const uint64_t width = hidden * tdm_json_count_or(reader, "expansion_ratio", 1, 64, 4);
    if (width > TDM_DIMENSION_LIMIT)
        tdm_json_fail(reader, "expansion_ratio", "makes the MLP too wide");
    return (uint32_t)width;
}

static enum tdm_status read_text_model(struct tdm_json_reader *reader,
                                       const struct architecture *architecture,
                                       struct tdm_model *model)
{
    snprintf(model->architecture, sizeof(model->architecture), "%s", architecture->name);
    refuse_options(reader, architecture);

    bool gpt2 = is_gpt2(architecture), falcon = (architecture->parts & PART_FALCON) != 0;
    model->hidden = dimension(reader, field_name(reader, architecture, FIELD_HIDDEN));
    model->intermediate =
        (architecture->parts & (PART_BLOOM | PART_MPT)) != 0 ? read_ratio(reader, model->hidden)
        : gpt2 || falcon
            ? (uint32_t)tdm_json_count_or(reader, gpt2 ? "n_inner" : "ffn_hidden_size", 1,
                                          TDM_DIMENSION_LIMIT, UINT64_C(4) * model->hidden)
            : dimension(reader, width_key(reader, architecture));
    if ((architecture->parts & PART_QWEN) != 0)
        model->intermediate /= 2; /* the field counts the gate too */
    model->layers =
        (uint32_t)(mixers_of(architecture) == TDM_MIXERS_NEMOTRON
                       ? tdm_json_count_or(reader, "num_hidden_layers", 1, TDM_LAYER_LIMIT,
                                           tdm_mixers_count(reader))
                       : tdm_json_count(reader, field_name(reader, architecture, FIELD_LAYERS), 1,
                                        TDM_LAYER_LIMIT));
    if (tdm_json_status(reader) == TDM_OK &&
        (model->layers == 0 || model->layers > TDM_LAYER_LIMIT)) /* of a pattern */
        tdm_json_fail(reader, "hybrid_override_pattern",
                      "has %" PRIu32 " layers; expected 1 to %" PRIu64, model->layers,
                      TDM_LAYER_LIMIT);
    model->vocabulary = dimension_or(reader, "vocab_size", leaves_out(architecture) ? 262208 : 0);
    read_heads(reader, architecture, model);
    model->max_context = tdm_json_count_or(reader, field_name(reader, architecture, FIELD_CONTEXT),
                                           1, UINT64_C(1) << 40, architecture->max_context);
    model->norm_epsilon = tdm_json_number_or(
        reader, (architecture->parts & PART_QWEN) != 0 ? "layer_norm_epsilon" : "rms_norm_eps",
        1e-30, 1, 1e-6);
    model->initializer_range = tdm_json_number_or(reader, "initializer_range", 0, 10, 0.02);
    model->tied =
        tdm_json_bool_or(reader, "tie_word_embeddings", (architecture->parts & PART_TIED) != 0);
    model->wide_states =
        strcmp(tdm_json_string_or(reader, "mamba_ssm_dtype", "auto"), "float32") == 0 ||
        strcmp(tdm_json_string_or(reader, "mamba_ssm_cache_dtype", "auto"), "float32") == 0;
    read_parts(reader, architecture, model);
    if (tdm_json_status(reader) != TDM_OK || tdm_rope_read(reader, model) != TDM_OK)
        return tdm_json_status(reader);
    tdm_base_weights_read(reader, model);

    model->layer_kinds = calloc(model->layers, sizeof(*model->layer_kinds));
    if (model->layer_kinds == NULL) {
        reader->status =
            tdm_fail(reader->err, TDM_NO_MEMORY, "%s: no memory for %" PRIu32 " layers",
                     reader->file, model->layers);
        return reader->status;
    }
    read_layer_kinds(reader, architecture, model);
    return tdm_json_status(reader);
}

#define FLAT_NAMES 13u /* from here on, configs of older versions have both at once */

/* A model of text and pictures whose config has that of the text in "text_config". */
static bool has_text_config(const struct tdm_json_reader *reader)
{
    static const char *const names[] = {
        "Gemma3ForConditionalGeneration",         "Idefics3ForConditionalGeneration",
        "InternVLForConditionalGeneration",       "Llama4ForConditionalGeneration",
        "LlavaForConditionalGeneration",          "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration", "Mistral3ForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",        "Qwen3VLMoeForConditionalGeneration",
        "SmolVLMForConditionalGeneration",        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",     "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration"};
    const char *name =
        json_string_value(json_array_get(json_object_get(reader->object, "architectures"), 0));
    for (size_t i = 0; name != NULL && i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return i < FLAT_NAMES || tdm_json_has(reader, "text_config");
    return false;
}

/* Of such a model the language model alone. */
static enum tdm_status read_inner(struct tdm_json_reader *reader, struct tdm_model *model)
{
    struct tdm_json_reader inner = *reader;
    inner.prefix = "text_config";
    inner.object = tdm_json_object(reader, "text_config");
    inner.status = tdm_json_status(reader);
    const char *type =
        tdm_json_status(&inner) == TDM_OK ? tdm_json_string(&inner, "model_type") : NULL;
    /* language models whose layers are those of another family */
    static const struct {
        const char *type, *known;
    } same[] = {{"qwen3_vl_text", "qwen3"}, {"qwen3_vl_moe_text", "qwen3_moe"}};
    const char *known = type;
    for (size_t i = 0; type != NULL && i < sizeof(same) / sizeof(same[0]); i++)
        if (strcmp(type, same[i].type) == 0)
            known = same[i].known;
    const struct architecture *architecture = NULL;
    for (size_t i = 0; known != NULL && i < ARCHITECTURES; i++)
        if (strcmp(known, architectures[i].model_type) == 0)
            architecture = &architectures[i];
    if (tdm_json_status(&inner) == TDM_OK && architecture == NULL)
        unsupported(&inner, "model_type", type);
    model->text_alone = model->sized_only = true;
    if (tdm_json_status(&inner) == TDM_OK)
        read_text_model(&inner, architecture, model);
    if (tdm_json_status(&inner) == TDM_OK && (architecture->parts & PART_VISION) != 0)
        tdm_vision_read(reader, &model->vision);
    if (tdm_json_status(reader) != TDM_OK)
        inner.status = tdm_json_status(reader);
    if (tdm_json_has(reader, "tie_word_embeddings")) /* that of the whole counts */
        model->tied = tdm_json_bool_or(reader, "tie_word_embeddings", model->tied);
    reader->status = tdm_json_status(&inner);
    return reader->status;
}

enum tdm_status tdm_config_read(struct tdm_json_reader *reader, struct tdm_model *model)
{
    if (has_text_config(reader))
        return read_inner(reader, model);
    const struct architecture *architecture = find_architecture(reader);
    if (architecture == NULL)
        return tdm_json_status(reader);
    model->text_alone = (architecture->parts & PART_TEXT_ALONE) != 0;
    if ((architecture->parts & PART_VISION) != 0)
        tdm_vision_read(reader, &model->vision);
    return read_text_model(reader, architecture, model);
}
