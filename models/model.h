/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model: the dimensions of a decoder-only transformer and the tensors it is made of.
 *
 * It is read from a Hugging Face config.json. Supported are RMSNorm, RoPE, grouped-query attention,
 * and SwiGLU or GeGLU, in LlamaForCausalLM, MinistralForCausalLM, MistralForCausalLM,
 * Qwen2ForCausalLM and Qwen3ForCausalLM. Predictions of other systems, but not schedules, also
 * support families with further parts (the table in config.c). Every layer has its own kind;
 * nothing assumes that all are alike.
 *
 * Tensors are grouped in units. A unit is streamed, accumulated and optimised as a whole. There is
 * one for each layer, then the embedding, then the head (final norm and output weight). The tensors
 * of a unit lie one after another. Offsets are in elements, so one layout serves weights,
 * gradients, moments and masters of any dtype.
 */
#ifndef TDM_MODELS_MODEL_H
#define TDM_MODELS_MODEL_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum tdm_rope_kind { TDM_ROPE_PLAIN, TDM_ROPE_LINEAR, TDM_ROPE_LLAMA3, TDM_ROPE_YARN };

/* Rotary position embedding. Fields that a kind does not use are 0. */
struct tdm_rope {
    enum tdm_rope_kind kind;
    double theta;
    double factor;
    double low_frequency_factor;  /* llama3 */
    double high_frequency_factor; /* llama3 */
    uint64_t original_context;    /* llama3, yarn */
    double beta_fast, beta_slow;  /* yarn */
    double attention_factor;      /* yarn: scale of cos and sin; 1 for the other kinds */
};

/* The activation of the MLP's gate: SwiGLU, GeGLU with the GELU by tanh. */
enum tdm_activation {
    TDM_ACTIVATION_SILU,
    TDM_ACTIVATION_GELU_TANH,
    TDM_ACTIVATION_GELU,      /* exact; of predictions alone, as is the next */
    TDM_ACTIVATION_GELU_NEW,  /* by tanh, of single operations */
    TDM_ACTIVATION_GELU_FAST, /* the same, of more operations */
    TDM_ACTIVATION_RELU,      /* OPT */
    TDM_ACTIVATION_RELU2,     /* the square of relu */
    TDM_ACTIVATION_XIELU,     /* with two trained numbers, of single operations: Apertus */
    TDM_ACTIVATION_BLOOM,     /* GELU by tanh, of operations in a function */
    TDM_ACTIVATIONS
};

/* The kind of one layer. */
struct tdm_layer_kind {
    bool qkv_bias;
    bool qk_norm; /* every head of q and k has an RMSNorm before RoPE; q and k have a weight each */
    uint64_t window; /* tokens that a token sees, including itself; 0: all before it */
    bool post_norms; /* the outputs of attention and MLP are normed before they are added */
    bool experts;    /* a mixture of experts in place of the MLP */
    bool no_rope;    /* q and k are not rotated */
    bool delta;      /* a gated DeltaNet in place of attention */
    bool mamba;      /* Mamba-2, in place of attention or beside it */
    bool short_conv; /* a short convolution in place of attention */
    bool no_attention, no_mlp;
};

/* Mixture of experts; count 0: none. */
struct tdm_experts {
    uint32_t count, per_token, intermediate;
    uint32_t shared;   /* width of the experts that every token has, together; 0: none */
    bool shared_gate;  /* their output is weighted by a gate */
    bool normalized;   /* the weights of a token's chosen experts add up to 1 */
    bool wide_weights; /* these weights stay in fp32 */
    bool router_first; /* the router precedes the experts in the order of modules */
    uint32_t groups;   /* of experts, of which a token's choice is limited to some; 0: the router is
                          another than GLM-4.5's and DeepSeek's */
    enum tdm_router {
        TDM_ROUTER_SOFTMAX,        /* of all experts, of which some are chosen */
        TDM_ROUTER_CHOSEN,         /* in fp32, of those that are chosen: Granite */
        TDM_ROUTER_GROUPS,         /* GLM-4.5: sigmoids, with a bias for the choice of groups */
        TDM_ROUTER_GREEDY,         /* DeepSeek V2: softmax in fp32; of all experts the first */
        TDM_ROUTER_LIMITED_GREEDY, /* the same, of the best groups */
        TDM_ROUTER_ERNIE,          /* softmax of products in fp32, with a bias for the choice */
        TDM_ROUTER_HUNYUAN,        /* the same without a bias */
        TDM_ROUTER_MINIMAX,        /* sigmoids in fp32, with a bias for the choice */
        TDM_ROUTER_LFM2,           /* the same in the dtype of the logits, times a number */
    } router;
    bool wide_router;  /* its weight is fp32 in a model of bf16 */
    bool shared_first; /* what every token has is computed before the router */
    bool biased;       /* router and experts have biases, gates are clamped: GPT-OSS */
    bool beside;       /* they run beside the MLP, which every token has: Granite */
    bool all_rows;     /* every expert computes all tokens: Llama 4 as transformers has it */
};

/* Latent attention: q, and k and v, come from products of few dimensions, each normed. Heads of q
 * and k have dimensions that are not rotated, and others that are, of which k has one head.
 * kv_rank 0: none. */
struct tdm_latent {
    uint32_t q_rank; /* 0: q is projected at once */
    uint32_t kv_rank, plain_dim, rotary_dim, value_dim;
    enum tdm_latent_rotation {
        TDM_LATENT_NEIGHBOURS, /* two neighbours are rotated together */
        TDM_LATENT_HALVES,     /* as Llama's heads */
        TDM_LATENT_COMPLEX,    /* neighbours, as complex numbers in fp32: DeepSeek V2 */
    } rotation;
};

/* Parts in which families differ from Llama, beside those that have a field of their own. Only
 * predictions know them. */
enum tdm_model_part {
    TDM_PART_NO_PRE_NORMS = 1,      /* only the outputs of attention and MLP are normed */
    TDM_PART_WIDE_NORMS = 2,        /* norms multiply by their weight in fp32 */
    TDM_PART_LATE_QK_NORM = 4,      /* heads are normed after the transposition */
    TDM_PART_JOINT_QKV = 8,         /* one product for q, k and v */
    TDM_PART_JOINT_GATE_UP = 16,    /* one product for gate and up */
    TDM_PART_CUT_ROPE = 32,         /* rotated and other dimensions of a head are joined again */
    TDM_PART_INTERLEAVED_ROPE = 64, /* neighbours are rotated together: cosines are spread anew */
    TDM_PART_TWO_ROPES = 128,       /* layers with a window have angles of their own */
    TDM_PART_MULTIPLIERS = 256,     /* of embeddings, of what is added to the residual, of logits */
    TDM_PART_GLM_NORMS = 512,       /* names of GLM-4's norms */
    TDM_PART_WIDE_ROPE = 1024,      /* heads are rotated in fp32 */
    TDM_PART_LAYER_NORMS = 2048,    /* LayerNorm, with a bias */
    TDM_PART_PARALLEL = 4096,       /* attention and MLP read the same norm and are added at once */
    TDM_PART_PLAIN_MLP = 8192,      /* up, activation, down: no gate */
    TDM_PART_BIASES = 16384,        /* all products of a layer have biases */
    TDM_PART_HEAD_BIAS = 32768,     /* so does the head */
    TDM_PART_MEAN_NORMS = 1 << 16,  /* LayerNorm without a bias, of single operations: Cohere */
    TDM_PART_WIDE_HEADS = 1 << 17,  /* heads are made fp32 before they are rotated: Cohere */
    TDM_PART_LOGIT_SCALE = 1 << 18, /* logits are multiplied by a number */
    TDM_PART_POSITIONS = 1 << 19,   /* learned positions in place of rotation: GPT-2 */
    TDM_PART_SINKS = 1 << 20,       /* a sink for each head; half the angles; biases of q, k, v, o:
                                       GPT-OSS */
    TDM_PART_COMPLEX_ROPE = 1 << 21,    /* heads are rotated as complex numbers: Llama 4 */
    TDM_PART_TURNED_NORM = 1 << 22,     /* heads are normed after they are rotated: Hunyuan */
    TDM_PART_CAST_ROPE = 1 << 23,       /* heads become fp32 for each product of it: ERNIE */
    TDM_PART_PLACE_SCALE = 1 << 24,     /* rotated q times a number of its place: Ministral 3 */
    TDM_PART_GATED_ATTENTION = 1 << 25, /* q is projected with a gate of the output: Qwen3-Next */
    TDM_PART_DROPOUT = 1 << 26,         /* of scores and of what is added: Seed-OSS */
    TDM_PART_NO_ANGLES = 1 << 27,       /* no layer is rotated, so no angles are made */
    TDM_PART_ONE_MIXER = 1 << 28,       /* a layer has one norm and one module: Nemotron-H */
    TDM_PART_FALCON_H1 = 1 << 29,       /* multipliers of its modules; attention beside Mamba-2 */
    TDM_PART_FLASH_ROPE = 1 << 30, /* FlashAttention's kernel rotates q and k in fp32: Qwen 1 */
};

/* The role of a tensor in the model. Their order here is the order inside a unit. */
enum tdm_role {
    TDM_ROLE_ATTENTION_NORM, /* [hidden] */
    TDM_ROLE_Q,              /* [query_heads * head_dim, hidden] */
    TDM_ROLE_Q_BIAS,         /* [query_heads * head_dim] */
    TDM_ROLE_K,              /* [kv_heads * head_dim, hidden] */
    TDM_ROLE_V,              /* [kv_heads * head_dim, hidden] */
    TDM_ROLE_K_BIAS,         /* [kv_heads * head_dim] */
    TDM_ROLE_V_BIAS,         /* [kv_heads * head_dim] */
    TDM_ROLE_O,              /* [hidden, query_heads * head_dim] */
    TDM_ROLE_MLP_NORM,       /* [hidden] */
    TDM_ROLE_GATE,           /* [intermediate, hidden] */
    TDM_ROLE_UP,             /* [intermediate, hidden] */
    TDM_ROLE_DOWN,           /* [hidden, intermediate] */
    TDM_ROLE_EMBEDDING,      /* [vocabulary, hidden] */
    TDM_ROLE_FINAL_NORM,     /* [hidden] */
    TDM_ROLE_HEAD,           /* [vocabulary, hidden]; absent if tied */
    TDM_ROLE_Q_NORM,         /* [head_dim], for all heads of the layer; after its other tensors */
    TDM_ROLE_K_NORM,         /* [head_dim] */
    TDM_ROLE_POST_ATTENTION_NORM,  /* [hidden] */
    TDM_ROLE_POST_MLP_NORM,        /* [hidden] */
    TDM_ROLE_ROUTER,               /* [experts, hidden] */
    TDM_ROLE_EXPERTS_GATE_UP,      /* [experts * 2 * expert intermediate, hidden] */
    TDM_ROLE_EXPERTS_DOWN,         /* [experts * hidden, expert intermediate] */
    TDM_ROLE_QKV,                  /* [(query_heads + 2 kv_heads) * head_dim, hidden] */
    TDM_ROLE_GATE_UP,              /* [2 * intermediate, hidden] */
    TDM_ROLE_ATTENTION_NORM_BIAS,  /* [hidden] */
    TDM_ROLE_MLP_NORM_BIAS,        /* [hidden] */
    TDM_ROLE_FINAL_NORM_BIAS,      /* [hidden] */
    TDM_ROLE_QKV_BIAS,             /* as many as rows of QKV */
    TDM_ROLE_O_BIAS,               /* [hidden] */
    TDM_ROLE_UP_BIAS,              /* [intermediate] */
    TDM_ROLE_DOWN_BIAS,            /* [hidden] */
    TDM_ROLE_HEAD_BIAS,            /* [vocabulary] */
    TDM_ROLE_Q_LATENT,             /* [q_rank, hidden] */
    TDM_ROLE_Q_LATENT_NORM,        /* [q_rank] */
    TDM_ROLE_Q_FROM_LATENT,        /* [query_heads * head_dim, q_rank] */
    TDM_ROLE_KV_LATENT,            /* [kv_rank + rotary_dim, hidden] */
    TDM_ROLE_KV_LATENT_NORM,       /* [kv_rank] */
    TDM_ROLE_KV_FROM_LATENT,       /* [query_heads * (plain_dim + value_dim), kv_rank] */
    TDM_ROLE_SHARED_GATE,          /* [shared, hidden] */
    TDM_ROLE_SHARED_UP,            /* [shared, hidden] */
    TDM_ROLE_SHARED_DOWN,          /* [hidden, shared] */
    TDM_ROLE_SHARED_EXPERT_GATE,   /* [1, hidden], a matrix */
    TDM_ROLE_SINKS,                /* [query_heads] */
    TDM_ROLE_ROUTER_BIAS,          /* [experts] */
    TDM_ROLE_EXPERTS_GATE_UP_BIAS, /* [experts, 2 * expert intermediate] */
    TDM_ROLE_EXPERTS_DOWN_BIAS,    /* [experts, hidden] */
    TDM_ROLE_POSITIONS,            /* [max_context, hidden], beside the embedding */
    TDM_ROLE_DELTA_TIME,           /* [value heads] */
    TDM_ROLE_DELTA_DECAY,          /* [value heads] */
    TDM_ROLE_DELTA_KERNEL,         /* [q, k and v, kernel], a matrix */
    TDM_ROLE_DELTA_QKVZ,           /* [q, k, v and gate, hidden]; if apart without the gate */
    TDM_ROLE_DELTA_BA,             /* [2 * value heads, hidden]; if apart half of it */
    TDM_ROLE_DELTA_NORM,           /* [value dim] */
    TDM_ROLE_DELTA_OUT,            /* [hidden, values] */
    TDM_ROLE_DELTA_Z,              /* [values, hidden], if apart */
    TDM_ROLE_DELTA_A,              /* [value heads, hidden], if apart */
    TDM_ROLE_MAMBA_TIME,           /* [heads] */
    TDM_ROLE_MAMBA_DECAY,          /* [heads] */
    TDM_ROLE_MAMBA_SKIP,           /* [heads] */
    TDM_ROLE_MAMBA_KERNEL,         /* [x, B and C, kernel], a matrix */
    TDM_ROLE_MAMBA_KERNEL_BIAS,    /* [x, B and C] */
    TDM_ROLE_MAMBA_IN,             /* [gate, x, B, C and times, hidden] */
    TDM_ROLE_MAMBA_NORM,           /* [x] */
    TDM_ROLE_MAMBA_OUT,            /* [hidden, x] */
    TDM_ROLE_SHORT_KERNEL,         /* [hidden, kernel], a matrix */
    TDM_ROLE_SHORT_IN,             /* [3 hidden, hidden] */
    TDM_ROLE_SHORT_OUT,            /* [hidden, hidden] */
    TDM_ROLE_XIELU_POSITIVE,       /* [1] */
    TDM_ROLE_XIELU_NEGATIVE,       /* [1] */
    TDM_ROLE_EMBEDDING_NORM,       /* [hidden], beside the embedding */
    TDM_ROLE_EMBEDDING_NORM_BIAS,  /* [hidden] */
    TDM_ROLES
};

/* A weight tensor, row-major [rows, columns] as Hugging Face stores it (y = x W^T). A vector has
 * rows = 1. */
struct tdm_tensor {
    enum tdm_role role;
    uint32_t unit;
    uint64_t rows, columns;
    uint64_t elements;
    uint64_t offset; /* first element inside its unit; a multiple of TDM_TENSOR_ALIGN */
};

/* Is it the weight of a norm? */
static inline bool tdm_role_is_norm(enum tdm_role role)
{
    return role == TDM_ROLE_ATTENTION_NORM || role == TDM_ROLE_Q_NORM || role == TDM_ROLE_K_NORM ||
           role == TDM_ROLE_MLP_NORM || role == TDM_ROLE_POST_ATTENTION_NORM ||
           role == TDM_ROLE_POST_MLP_NORM || role == TDM_ROLE_FINAL_NORM ||
           role == TDM_ROLE_Q_LATENT_NORM || role == TDM_ROLE_KV_LATENT_NORM ||
           role == TDM_ROLE_DELTA_NORM || role == TDM_ROLE_MAMBA_NORM ||
           role == TDM_ROLE_EMBEDDING_NORM;
}

/* Does a tensor of this role have one dimension, as norms and biases do? */
bool tdm_role_is_vector(enum tdm_role role);

/* Kinds of tensors, as optimizers distinguish them. A head of its own is a matrix; a tied one is
 * the embedding. */
enum tdm_tensor_kind {
    TDM_KIND_MATRICES,
    TDM_KIND_EMBEDDINGS,
    TDM_KIND_NORMS,
    TDM_KIND_BIASES,
    TDM_TENSOR_KINDS
};
enum tdm_tensor_kind tdm_role_kind(enum tdm_role role);

/* "matrices" and so on. */
const char *tdm_tensor_kind_name(enum tdm_tensor_kind kind);

/* The most of a dimension: a width, or the rows of a vocabulary. */
#define TDM_DIMENSION_LIMIT (UINT64_C(1) << 24)

/* Inside a unit, tensors are aligned to this number of elements: 256 B at 16 bits. */
#define TDM_TENSOR_ALIGN 128u

struct tdm_unit {
    uint32_t first_tensor, tensor_count; /* into tdm_model.tensors */
    uint64_t elements;                   /* of the layout, with padding */
    uint64_t parameters;                 /* without padding */
};

/* Gated DeltaNet (Qwen3-Next): q and k of key_heads, v and its gate of value_heads, convolved over
 * `kernel` tokens. value_heads 0: none. */
struct tdm_delta {
    uint32_t key_heads, value_heads, key_dim, value_dim, kernel;
    bool apart; /* q, k and v, the gate, and both numbers of a head are four products: Qwen3.5 */
};

/* Mamba-2: x and its gate of heads * head_dim, B and C of groups * state, convolved over `kernel`
 * tokens; states are made every `chunk` tokens. heads 0: none. */
struct tdm_mamba {
    uint32_t heads, head_dim, groups, state, kernel, chunk;
    bool kernel_bias, norm;
};

/* What the projections of layers are stored in, if their config says that they are quantized. */
enum tdm_base_kind {
    TDM_BASE_WHOLE,
    TDM_BASE_NF4, /* bitsandbytes */
    TDM_BASE_NF4_DOUBLE,
    TDM_BASE_INT8,
    TDM_BASE_GPTQ, /* of as many bits as `bits` says */
    TDM_BASE_AWQ,
};
/* What the weights of a checkpoint are stored in that are made bf16 to be trained, and served as
 * they are. */
enum tdm_stored_weights {
    TDM_STORED_BF16,
    TDM_STORED_FP8,
    TDM_STORED_MXFP4,        /* experts alone, as are the next */
    TDM_STORED_INT4_EXPERTS, /* with a scale for each group: Kimi K2 Thinking */
};
struct tdm_base_weights {
    enum tdm_base_kind kind;
    enum tdm_stored_weights stored;
    bool served_alone; /* by compressed-tensors, in integers: nothing trains adapters on them */
    uint32_t bits;     /* of GPTQ: 2, 3, 4 or 8; 0: 4 */
    uint32_t group;    /* weights of a column with one scale; 0: all of it */
};

/* A vision tower. Without blocks there is none, or it is not known. */
struct tdm_vision {
    uint32_t blocks, hidden, intermediate, out;
    uint64_t patch_values; /* of pixels, for one row of the tower's input */
    uint64_t merged;       /* rows that make one token of the language model */
};

/* Attention that transformers has as functions of a family's own, with scores in memory alone. */
enum tdm_own_scores {
    TDM_SCORES_COMMON,
    TDM_SCORES_GPTJ,  /* q and k in fp32, tables of angles in each layer */
    TDM_SCORES_BLOOM, /* ALiBi in the product */
    TDM_SCORES_MPT,   /* ALiBi in fp32 */
};

#define TDM_VISION_BLOCK_TENSORS 12u /* of each block of a tower */
/* Is tensor `number` one of the tower's blocks? */
bool tdm_vision_in_block(const struct tdm_vision *vision, uint32_t number);
/* Shape of tensor `number` of the tower, in the order of its modules; false: there is none. */
bool tdm_vision_tensor(const struct tdm_vision *vision, uint32_t number, uint64_t *rows,
                       uint64_t *columns);

struct tdm_model {
    char name[64];         /* shipped name, or the directory or file it came from */
    char architecture[48]; /* "LlamaForCausalLM" */
    char digest[17];       /* hex digest of dimensions and options, without name and max_context */
    uint32_t layers;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t query_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t vocabulary;
    uint64_t max_context; /* max_position_embeddings, the trained length; see
                             tdm_model_position_limit() */
    double norm_epsilon;
    double initializer_range;
    bool tied;
    struct tdm_rope rope;
    enum tdm_activation activation;
    struct tdm_experts experts;
    struct tdm_latent latent;
    struct tdm_delta delta;
    struct tdm_mamba mamba;
    bool wide_states;      /* states of served sequences are fp32, as the config says */
    uint32_t short_kernel; /* of short convolutions; 0: none */
    struct tdm_base_weights base;
    struct tdm_vision vision; /* counted by methods whose GPUs have whole models */
    uint32_t parts;           /* bits of enum tdm_model_part */
    uint32_t rotary_dim;      /* dimensions of a head that are rotated */
    bool text_alone;          /* its config has towers of pictures or sound too, not counted */
    uint32_t labels;          /* outputs of the head, which scores whole sequences; 0: an LM head */
    bool sized_only;          /* predictions support it, schedules do not */
    bool scaled_embedding;    /* embeddings are multiplied by sqrt(hidden) */
    bool offset_norms;        /* norms multiply by 1 + weight, in fp32 */
    bool whole_qk_norm;       /* q and k are normed over all heads at once */
    bool head_norms;     /* q and k are normed without weights where they are rotated: Llama 4 */
    bool scaled_queries; /* q is scaled by its position where it is not rotated: Llama 4 */
    double dropout, attention_dropout; /* of a training's values and scores; 0: none */
    double embedding_dropout;
    enum tdm_own_scores own_scores;
    bool embedding_norm;   /* embeddings are normed: BLOOM */
    bool mlp_biases;       /* of the products of layers those of the MLP alone: GPT-J */
    bool unbiased_norms;   /* LayerNorm with a weight alone: MPT */
    bool bare_norms;       /* LayerNorm in fp32 without weights: OLMo 1 */
    bool scaled_heads;     /* q is multiplied by a number before it is split into heads: OPT */
    uint32_t spare_places; /* rows of learned positions that no token takes: OPT has 2 */
    bool normed_head;      /* rows of the head's weight are made of length 1: Baichuan 2 */
    bool own_code;    /* its repository's code, not transformers': InternLM 2 and 3, Baichuan */
    bool early_heads; /* K and V of all query heads are made before rotation: Falcon 40B */
    bool two_norms;   /* of TDM_PART_PARALLEL: attention and MLP have norms of their own */
    double attention_softcap, logits_softcap; /* 0: none */

    struct tdm_layer_kind *layer_kinds; /* [layers] */
    struct tdm_tensor *tensors;         /* sorted by unit, then role */
    uint32_t tensor_count;
    struct tdm_unit *units; /* [layers + 2] */
    uint32_t unit_count;
    uint64_t parameters; /* all; tied ones count once */
    json_t *config;      /* the config it was read from, kept for the schedule; owned */
};

/* Unit numbers: 0 .. layers-1 are the layers. */
static inline uint32_t tdm_model_embedding_unit(const struct tdm_model *model)
{
    return model->layers;
}

static inline uint32_t tdm_model_head_unit(const struct tdm_model *model)
{
    return model->layers + 1;
}

/* Elements of K, or of V, that a layer makes of a token. */
static inline uint64_t tdm_model_kv_width(const struct tdm_model *model)
{
    return (uint64_t)model->kv_heads * model->head_dim;
}

/* Loads MODEL of the command line: a shipped name ("qwen2.5-7b"), the path of a config.json, or a
 * directory that holds one. If there is no such file, it may be a shipped name in other letters
 * ("Qwen2.5-7B") or in the Hub's form ("Qwen/Qwen2.5-7B-Instruct"). On success the caller owns
 * *model (tdm_model_free). TDM_INPUT: unknown name (lists the shipped ones), unsupported
 * architecture (names it and the nearest that is known), impossible dimensions. */
enum tdm_status tdm_model_load(const char *model_or_path, struct tdm_model **model,
                               struct tdm_error *err);

/* Would tdm_model_load() read a directory of this name, and not a shipped config? */
bool tdm_model_is_directory(const char *model_or_path);

/* Writes to `out` the file or directory that tdm_model_load() would read. TDM_INPUT if the name is
 * too long. */
enum tdm_status tdm_model_path(const char *model_or_path, char *out, size_t out_bytes,
                               struct tdm_error *err);

/* Makes a model from a parsed config (borrowed; kept by reference). `file` names it in messages. */
enum tdm_status tdm_model_from_config(const char *file, const char *name, json_t *config,
                                      struct tdm_model **model, struct tdm_error *err);

void tdm_model_free(struct tdm_model *model);

/* Do all layers have the same tensors at the same offsets in their units? */
bool tdm_model_layers_alike(const struct tdm_model *model);

/* The tensor with a role in a unit; NULL if the unit has none. */
const struct tdm_tensor *tdm_model_tensor(const struct tdm_model *model, uint32_t unit,
                                          enum tdm_role role);

/* The value of all elements of a vector before training: 0 for a bias. A norm gets the value that
 * makes it multiply by 1: 1, or 0 if it multiplies by 1 + weight. */
float tdm_model_vector_start(const struct tdm_model *model, enum tdm_role role);

/* Writes to `out` a list, for messages, of the parts of the model that schedules do not support. It
 * is "" if there are none, so that the model can be trained. Returns `out`. */
#define TDM_MODEL_UNKNOWN 400
const char *tdm_model_unknown(const struct tdm_model *model, char out[TDM_MODEL_UNKNOWN]);

/* A role's name in Hugging Face checkpoints, without "model.layers.N." for a tensor of a layer:
 * "self_attn.q_proj.weight". */
const char *tdm_role_name(enum tdm_role role);

/* Writes the Hugging Face name of a tensor to `out`: "model.layers.3.self_attn.q_proj.weight". */
void tdm_tensor_name(const struct tdm_model *model, const struct tdm_tensor *tensor, char *out,
                     uint32_t out_bytes);

/* Parameters of matrix products: the matrices of the layers, including all experts, and the head
 * (also when tied). The embedding look-up, biases and norms do not count. */
uint64_t tdm_model_matmul_parameters(const struct tdm_model *model);

/* The same, but of the experts only those of one token. Each costs a token 2 FLOPs forward. */
uint64_t tdm_model_active_matmul_parameters(const struct tdm_model *model);

/* Words for a part of the model that Megatron-LM's methods alone know: latent keys and values, or
 * experts that all tokens share. NULL: it has neither. */
const char *tdm_model_rare_part(const struct tdm_model *model);

/* The longest context of learned positions, of which there is a row each. 0: positions are
 * rotations or nothing, which have no limit. */
uint64_t tdm_model_position_limit(const struct tdm_model *model);

/* Words for what some layers have in place of attention, or beside it: gated DeltaNets, Mamba-2,
 * short convolutions. NULL: all have attention alone. */
const char *tdm_model_other_mixer(const struct tdm_model *model);

/* The shortest window of a layer that is shorter than `tokens`; 0 if there is none. */
uint64_t tdm_model_shortest_window(const struct tdm_model *model, uint64_t tokens);

/* Writes the inverse frequencies of RoPE, [head_dim / 2], in double, with the kind's scaling
 * applied. Sources: linear (positions / factor), Llama 3.1 (frequency bands), YaRN (arXiv
 * 2309.00071). *attention_factor receives the scale of cos and sin (1 except for YaRN). */
void tdm_rope_inverse_frequencies(const struct tdm_rope *rope, uint32_t head_dim,
                                  double *inverse_frequencies, double *attention_factor);

/* Names of the shipped models, sorted: a NULL-terminated array of strings in one allocation, which
 * the caller frees with free(). TDM_IO if the data directory cannot be read. */
enum tdm_status tdm_model_names(char ***names, struct tdm_error *err);

#endif
