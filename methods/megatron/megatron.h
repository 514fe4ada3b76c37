/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-LM as a system: GPT models of Megatron-Core whose layers are Transformer Engine's
 * modules, divided by tensor, context, pipeline and data parallelism. The prediction is for one
 * rank of one pipeline stage. Sources:
 * megatron/core/{tensor_parallel,pipeline_parallel,distributed,optimizer,transformer,models/gpt},
 * transformer_engine/pytorch/{module,attention}. docs/methods.md lists each assumption.
 */
#ifndef TDM_METHODS_MEGATRON_MEGATRON_H
#define TDM_METHODS_MEGATRON_MEGATRON_H

#include "base/status.h"

#include "methods/eager/te_float8.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_model;
struct tdm_method_settings;
struct tdm_method_cost;

enum tdm_megatron_recompute {
    TDM_RECOMPUTE_NONE,
    TDM_RECOMPUTE_SELECTIVE,
    TDM_RECOMPUTE_FULL,
};
enum tdm_megatron_method { TDM_RECOMPUTE_UNIFORM, TDM_RECOMPUTE_BLOCK };
enum tdm_megatron_exchange { TDM_CP_P2P, TDM_CP_ALL_GATHER, TDM_CP_A2A, TDM_CP_A2A_P2P };
enum tdm_megatron_attention {
    TDM_BACKEND_AUTO,
    TDM_BACKEND_FLASH,
    TDM_BACKEND_FUSED,
    TDM_BACKEND_UNFUSED
};
enum tdm_megatron_cublas {
    TDM_CUBLAS_DEFAULT,
    TDM_CUBLAS_4096_8,
    TDM_CUBLAS_4096_2,
    TDM_CUBLAS_16_8
};
enum tdm_megatron_loss { TDM_LOSS_NATIVE, TDM_LOSS_TE };

/* Modules that selective recomputation can name. */
enum tdm_megatron_module {
    TDM_RECOMPUTED_CORE_ATTN,
    TDM_RECOMPUTED_MLP,
    TDM_RECOMPUTED_LAYERNORM,
    TDM_RECOMPUTED_MOE_ACT,
    TDM_RECOMPUTED_MLA_UP_PROJ,
    TDM_RECOMPUTED_MOE,
    TDM_RECOMPUTED_SHARED_EXPERTS,
    TDM_MODULES
};

/* The gated activation: one kernel with the bias, or single operations of later and of earlier
 * versions. */
enum tdm_megatron_glu { TDM_GLU_FUSED, TDM_GLU_SINGLE, TDM_GLU_OLD };

/* position_embedding_type */
enum tdm_megatron_positions { TDM_POSITIONS_ROPE, TDM_POSITIONS_LEARNED, TDM_POSITIONS_NONE };

/* Whose peak a prediction is of: of a pipeline, the first or the last stage has the highest one,
 * as stages between hold fewer micro-batches than the first, and no head; where these may have more
 * layers, one of them may. */
enum tdm_megatron_rank { TDM_RANK_HIGHEST, TDM_RANK_FIRST, TDM_RANK_LAST, TDM_RANK_BETWEEN };
enum tdm_megatron_run { TDM_RUN_FIRST, TDM_RUN_LAST, TDM_RUN_BETWEEN };

#define TDM_MEGATRON_CHUNKS 64u /* virtual stages of a stage */

struct tdm_megatron_settings {
    uint64_t tensor, context, pipeline; /* degrees; 0: all GPUs that the other degrees leave */
    uint64_t virtual_layers;  /* num_layers_per_virtual_pipeline_stage; 0: one chunk a stage */
    uint64_t virtual_stages;  /* the same, said by how many chunks a stage has */
    const char *stage_layout; /* pipeline_model_parallel_layout, borrowed; or NULL */
    bool counts_embedding, counts_loss; /* as layers, when the layers are divided */
    uint64_t group; /* micro-batches that a chunk takes in a row; 0: one for each stage */
    uint64_t first_layers, last_layers; /* of the first and the last stage; 0: as the others */
    uint64_t microbatches;              /* 0: as many as fill the pipeline */
    uint64_t recompute_layers, vocabulary_multiple;
    uint64_t exchange_heads, exchange_ring; /* a2a+p2p: ranks that exchange heads, and ranks of a
                                               ring; 0: half of the ranks exchange heads */
    enum tdm_megatron_recompute recompute;
    enum tdm_megatron_method method;
    enum tdm_megatron_exchange exchange;
    enum tdm_megatron_loss loss;
    enum tdm_megatron_attention attention;
    enum tdm_megatron_cublas cublas;
    enum tdm_megatron_glu glu;
    enum tdm_megatron_rank rank; /* whose peak is asked for */
    enum tdm_megatron_run run;   /* the stage that is run: see prediction.c */
    uint64_t between;            /* which of those that layout counts as `between` */
    uint32_t modules;            /* one bit for each */
    bool sequence_parallel, distribute_saved, distributed_optimizer, fused_gradients, fused_loss;
    bool overlap_reduce, gelu_mlp, layer_norm, linear_bias;
    enum tdm_megatron_positions positions;
    double dropout; /* of hidden states */
    bool mask_in_loader;
    uint64_t expert, expert_tensor; /* degrees of experts; expert_tensor 0: as tensor */
    double attention_dropout;       /* of scores that are in memory */
    bool pads_experts, wide_router, permute_fusion;
    double capacity_factor; /* of an expert, of its even share of tokens; 0: no limit */
    bool packed;            /* qkv_format=thd: sequences without padding, one behind the other */
    uint64_t longest;       /* of packed: tokens of a sequence; 0: one sequence */
    bool hybrid;            /* ranks that divide a sequence follow from its length ... */
    uint64_t hybrid_tokens; /* ... of which each has at most this many tokens */
    bool narrow_gradients, narrow_first, narrow_second; /* bf16: buffer of gradients, moments, by
                                                           the precision-aware optimizer ... */
    bool precise;        /* its main parameters are what bf16 lacks of them, in 16 bits */
    bool offloads;       /* the optimizer's states of a share of the parameters are on the host */
    double offloaded;    /* that share */
    bool muon;           /* in place of Adam, for matrices of layers */
    bool reduces_narrow; /* ... or gradients alone, of which the step makes fp32 copies */
    enum tdm_te_recipe float8;
    bool float8_weights; /* weights of its products have no other copy */
    bool wide_ends;      /* layers at both ends, as many as these say, have products of bf16 */
    uint64_t wide_at_start, wide_at_end;
    bool regather; /* inputs of adapters are gathered again in the backward */
};

/* How the GPUs are divided, with all open values settled. With hybrid context parallelism context
 * and data are those of a sequence of all tokens. */
struct tdm_megatron_layout {
    uint64_t tensor, context, pipeline, data;
    uint64_t expert, expert_tensor, expert_data; /* how the same GPUs divide experts */
    uint64_t exchange_heads, exchange_ring;      /* among the context ranks */
    uint64_t stage;                              /* that is run */
    /* stages between the ends that may have the highest peak: those with more layers than each
     * before it, which has as many micro-batches in flight or more */
    uint64_t between;
    uint64_t chunks;                                                    /* of a stage */
    uint32_t layers[TDM_MEGATRON_CHUNKS], offsets[TDM_MEGATRON_CHUNKS]; /* of each: their first */
    uint64_t stage_layers, microbatches;
    uint64_t group; /* micro-batches in a row, where stages are interleaved */
    bool sequence_parallel;
};

/* TDM_USAGE: the model or the GPUs cannot be divided this way, or settings exclude each other. */
enum tdm_status tdm_megatron_layout(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    struct tdm_megatron_layout *layout, struct tdm_error *err);

/* Sets what follows from the model: Megatron-Core's layers with its norms, biases, positions and
 * activation. */
void tdm_megatron_of_model(const struct tdm_model *model, struct tdm_megatron_settings *s);

/* For the table of methods. */
enum tdm_status tdm_megatron_check(const struct tdm_model *model,
                                   struct tdm_method_settings *settings, struct tdm_error *err);

const char *tdm_megatron_assumption(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings);

/* For one GPU: its share of the work, and the bytes that context (all four kinds), tensor, pipeline
 * and data parallelism send. */
void tdm_megatron_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                       struct tdm_method_cost *cost);

#endif
