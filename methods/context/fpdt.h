/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ulysses-Offload, the Fully Pipelined Distributed Transformer (FPDT): ranks exchange tokens for
 * heads chunk by chunk; q, k, v, the output and the input of a layer's attention wait in pinned
 * host memory, and come back two chunks at a time. MLP, head and loss run chunk by chunk too.
 * Source: DeepSpeed 0.19 deepspeed/sequence/fpdt_layer.py, as Megatron-DeepSpeed calls it
 * (megatron/model/{transformer,gpt_model}.py).
 */
#ifndef TDM_METHODS_CONTEXT_FPDT_H
#define TDM_METHODS_CONTEXT_FPDT_H

#include "methods/context/context.h"

#define TDM_FPDT_MOST_CHUNKS 4096u /* of a sequence */
#define TDM_FPDT_MLP_PARTS 2u      /* of a chunk: fpdt_FFN_chunk_size of ParallelMLP */
#define TDM_FPDT_LOSS_PARTS 32u    /* of a chunk: num_chunks_ce of gpt_model.py */

/* Chunks of a padded sequence of which `tokens` are a rank's. */
uint64_t tdm_fpdt_chunks(const struct tdm_context *context, uint64_t tokens);

/* What attention has beside its input. Weights are borrowed; biases may be NULL. */
struct tdm_fpdt_attention {
    const struct tdm_context *context;                       /* must outlive the graph */
    uint64_t batch, query_heads, kv_heads, tokens, head_dim; /* of a rank's tokens and all heads */
    struct tdm_eager_value *weight[3], *bias[3];             /* of q, k and v */
    struct tdm_eager_value *cosine, *sine;                   /* of all tokens */
};

/* FPDT_Attention without its last product: the output of all heads for a rank's tokens. */
struct tdm_eager_value *tdm_fpdt_attention(struct tdm_eager *m,
                                           const struct tdm_fpdt_attention *attention,
                                           struct tdm_eager_value *x);

/* FPDT_FFN of `parts` parts of the rows. `gate` is NULL in a plain MLP, which is all that DeepSpeed
 * has; a gated one is computed in the same way. */
struct tdm_fpdt_mlp {
    uint64_t parts;
    struct tdm_eager_value *gate, *up, *down, *up_bias, *down_bias;
};
struct tdm_eager_value *tdm_fpdt_mlp(struct tdm_eager *m, const struct tdm_fpdt_mlp *mlp,
                                     struct tdm_eager_value *x);

/* FPDT_LogitsLoss: losses of the tokens of all `ranks`, from `parts` parts of this rank's rows. */
struct tdm_eager_value *tdm_fpdt_losses(struct tdm_eager *m, struct tdm_eager_value *hidden,
                                        struct tdm_eager_value *head, uint64_t parts,
                                        uint64_t ranks);

#endif
