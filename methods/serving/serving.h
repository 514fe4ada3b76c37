/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serving: what an inference server holds on each GPU, and how many tokens of K and V it has room
 * for. It is vLLM's arithmetic: gpu_memory_utilization of the device, less weights, less the peak
 * of a profile run, less what is not torch's, is divided into blocks. Sources, of vLLM 0.6.6,
 * 0.8.4, 0.9.1, 0.11.0 and 0.19.0: vllm/worker/worker.py and vllm/v1/worker/gpu_worker.py (what is
 * left), vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py (blocks, groups,
 * windows). docs/serving.md has a row for each formula.
 */
#ifndef TDM_METHODS_SERVING_SERVING_H
#define TDM_METHODS_SERVING_SERVING_H

#include "machines/machine.h"
#include "models/model.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_method;
struct tdm_method_settings;

/* The first version of those that count alike. The order is that of the key "version". */
enum tdm_serving_version {
    TDM_VLLM_0_6_4, /* V0: not torch's is all that the driver counts outside torch */
    TDM_VLLM_0_6_5, /* V0: its increase since the worker was made */
    TDM_VLLM_0_8,   /* V1: as 0.6.4 */
    TDM_VLLM_0_9_1, /* V1: as 0.6.5 */
    TDM_VLLM_0_11,  /* V1: the increase after NCCL was set up */
    TDM_VLLM_0_17,  /* V1: top-p without a sort, a workspace of experts that stays */
    TDM_VLLM_0_21,  /* V1: the same, and CUDA graphs are within the budget */
};

enum tdm_serving_choice { TDM_SERVING_AUTO, TDM_SERVING_NO, TDM_SERVING_YES };

enum tdm_kv_dtype {
    TDM_KV_AUTO,
    TDM_KV_FP8,
    TDM_KV_INT8,
    TDM_KV_INT4,
    TDM_KV_NVFP4,
    TDM_KV_DTYPES
};

enum tdm_kv_eviction {
    TDM_EVICT_NONE,
    TDM_EVICT_STREAMING, /* StreamingLLM, arXiv 2309.17453: sinks and the latest tokens */
    TDM_EVICT_H2O,       /* arXiv 2306.14048: as many heavy hitters as latest tokens */
    TDM_EVICT_SNAPKV,    /* arXiv 2404.14469: the prompt is cut down, all that is generated kept */
};

/* What a context-parallel prefill sends around, arXiv 2411.01783. */
enum tdm_prefill_pass { TDM_PASS_KV, TDM_PASS_Q };

enum tdm_serving_weights {
    TDM_SERVED_BF16,
    TDM_SERVED_FP8,
    TDM_SERVED_INT8, /* W8A8: a scale for each output */
    TDM_SERVED_AWQ,  /* 4 bits, a scale and a zero for each group */
    TDM_SERVED_GPTQ, /* 4 bits, a scale for each group */
    TDM_SERVED_NVFP4,
    TDM_SERVED_NF4,          /* bitsandbytes */
    TDM_SERVED_MXFP4,        /* experts alone, as GPT-OSS is stored */
    TDM_SERVED_INT4_EXPERTS, /* the same in integers, as Kimi K2 Thinking is */
    TDM_SERVED_AS_STORED,    /* nothing is said: as the config of the checkpoint has them */
};

/* What states of layers are stored in; auto: as the config says, else bf16. */
enum tdm_state_dtype { TDM_STATES_AUTO, TDM_STATES_BF16, TDM_STATES_FP32 };

#define TDM_PREFIX_LEVELS 8u

/* Settings, from the keys of methods/serving/keys.c and, of SGLang, sglang.c. */
struct tdm_serving {
    bool sglang;           /* SGLang's arithmetic (sglang.c), not vLLM's */
    double static_share;   /* SGLang's mem_fraction_static; 0: by the card */
    uint64_t total_tokens; /* SGLang's max_total_tokens; 0: unset */
    enum tdm_serving_version version;
    double utilization;             /* of the device */
    uint64_t batched_tokens;        /* of a step; TDM_AUTO */
    uint64_t sequences;             /* of a step; TDM_AUTO */
    enum tdm_serving_choice chunks; /* is a prompt computed in chunks? */
    enum tdm_kv_dtype kv_dtype;
    uint64_t kv_group;       /* elements that share a scale; TDM_AUTO */
    uint64_t block_size;     /* tokens of a block, as they are said */
    uint64_t sliding_window; /* of every layer; TDM_AUTO: as the model has it */
    uint64_t chunk_tokens;   /* of chunked attention; 0: none */
    uint64_t full_every;     /* with chunks: of so many layers the last one sees all */
    enum tdm_state_dtype state_dtype;
    enum tdm_serving_choice prefix_caching; /* of states: a page more */
    bool one_group;                         /* layers with windows keep all tokens */
    enum tdm_kv_eviction eviction;
    uint64_t budget_tokens, sink_tokens, prompt_tokens; /* of eviction */
    struct {
        uint64_t nodes, tokens; /* so many prefixes of this length below those of the level above */
    } prefix[TDM_PREFIX_LEVELS];
    uint32_t prefix_levels;
    uint64_t tensor_ranks, pipeline_ranks;
    uint64_t decode_ranks;  /* of the tensor-parallel ranks, which divide a sequence's tokens */
    uint64_t prefill_ranks; /* which divide the tokens of a prompt, and of the cache */
    enum tdm_prefill_pass pass;
    enum tdm_serving_weights weights;
    uint64_t other_weights_bytes;
    bool adapters;                        /* enable_lora */
    uint64_t adapter_slots, adapter_rank; /* max_loras, max_lora_rank */
    uint64_t weight_group; /* elements that share a scale, of AWQ, GPTQ, INT4_EXPERTS; TDM_AUTO: a
                            * column */
    bool eager;            /* no CUDA graphs */
    bool flashinfer;       /* samples by FlashInfer, not by sorting */
    uint64_t non_torch_bytes; /* TDM_AUTO */
    uint64_t kv_memory_bytes; /* kv_cache_memory_bytes: of the cache, with no profile; 0: unset */
    uint64_t override_blocks; /* num_gpu_blocks_override; 0: unset */
};

/* Bytes of one GPU. */
struct tdm_serving_rank {
    uint64_t weights_bytes; /* with the table of RoPE: what vLLM says that loading took */
    uint64_t rope_bytes;
    uint64_t forward_bytes; /* the peak of the profile run in the model */
    uint64_t sampler_bytes; /* the same in the sampler; 0: it does not run there */
    uint64_t non_torch_bytes;
    uint64_t cache_bytes; /* what is left for K and V */
    uint64_t block_bytes; /* of a block, in all layers that the GPU has */
    uint64_t blocks;      /* that it has room for */
    uint64_t graph_bytes; /* of CUDA graphs, beside the budget before 0.21: an estimate */
};

struct tdm_serving_answer {
    uint64_t budget_bytes; /* gpu_memory_utilization of the device; of SGLang `share` of `free` */
    uint64_t free_bytes;   /* of SGLang: before the weights were loaded */
    double share;          /* of SGLang: mem_fraction_static */
    uint64_t batched_tokens, sequences;
    bool chunked;
    uint32_t stage; /* the pipeline stage that has room for the fewest blocks */
    struct tdm_serving_rank rank;
    uint32_t groups;               /* of layers that have a block table of their own */
    uint64_t blocks;               /* of all GPUs alike */
    uint64_t cache_tokens;         /* "GPU KV cache size" */
    uint64_t blocks_of_a_sequence; /* of the context, none of it shared */
    double concurrency;            /* "Maximum concurrency" */
    uint64_t held_sequences;       /* of the context that the cache holds, with shared prefixes */
};

/* Can vLLM serve the model so? TDM_USAGE says what is wrong, and what to do. */
enum tdm_status tdm_serving_check(const struct tdm_model *model,
                                  struct tdm_method_settings *settings, struct tdm_error *err);

/* What a server for sequences of `context` tokens holds. Needs checked settings. */
void tdm_serving_answer(const struct tdm_model *model, const struct tdm_machine *machine,
                        const struct tdm_serving *serving, uint64_t context,
                        struct tdm_serving_answer *answer);

/* Tokens of a block: block_size, raised so that a page of K and V of a layer has room for the
 * states of one, where layers have them. */
uint64_t tdm_serving_block_tokens(const struct tdm_model *model, const struct tdm_serving *serving);

/* Bytes of the cache of a GPU that some sequences take, in whole blocks. */
uint64_t tdm_serving_needed_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                                  const struct tdm_serving_answer *answer, uint64_t context,
                                  uint64_t sequences);

/* The longest context of which the cache holds `sequences`, up to `most`; 0: none. */
uint64_t tdm_serving_longest(const struct tdm_model *model, const struct tdm_machine *machine,
                             const struct tdm_serving *serving, uint64_t sequences, uint64_t most);

/* Servers as methods, with their keys, for --mode serve. They are not of tdm_methods(). */
extern const struct tdm_method tdm_serving_method; /* vLLM */
extern const struct tdm_method tdm_sglang_method;

/* The server of a name, or NULL. */
const struct tdm_method *tdm_serving_find(const char *name);

#endif
