/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mamba-2 by the kernels of mamba_ssm, for transformers and for Megatron-Core: convolution and scan
 * of a layer, and the norm of groups behind it.
 */
#ifndef TDM_METHODS_TORCH_MAMBA_H
#define TDM_METHODS_TORCH_MAMBA_H

#include "methods/eager/eager.h"

/* Weights of Mamba-2, in the order of transformers' modules. */
enum {
    MAMBA_TIME,
    MAMBA_DECAY,
    MAMBA_SKIP,
    MAMBA_KERNEL,
    MAMBA_KERNEL_BIAS,
    MAMBA_IN,
    MAMBA_NORM,
    MAMBA_OUT,
    MAMBA_WEIGHTS
};

/* What a GPU has of a layer; chunks are of so many tokens. */
struct tdm_scan_shape {
    uint64_t sequences, tokens; /* of each sequence */
    uint64_t heads, head_dim, groups, state, chunk;
};

/* Inputs of mamba_split_conv1d_scan_combined: `all` is z, x, B, C and dt of all tokens. Without
 * `norm` the scan applies the gate; without `out`, and then without `norm`, no product follows. */
struct tdm_scan_inputs {
    struct tdm_eager_value *all, *kernel, *kernel_bias, *time, *decay, *skip, *norm, *out;
};

struct tdm_eager_value *tdm_mamba_scan(struct tdm_eager *m, const struct tdm_scan_shape *shape,
                                       const struct tdm_scan_inputs *inputs);

/* RMSNormGated without a gate (layernorm_gated.py): a norm of each of so many groups of columns. */
struct tdm_eager_value *tdm_mamba_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *weight, uint64_t groups);

#endif
