/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kinds of ops each backend has kernels for.
 *
 * A backend builds its table run[] from its list here. So code that does not link the backend, such
 * as the planner, also knows what it can run. A kind that is not in the list is NULL in the table.
 */
#ifndef TDM_OPS_KERNELS_H
#define TDM_OPS_KERNELS_H

#include "ops/ops.h"

/* KERNEL(kind, function) for each kind. The backend declares the functions by its list, and
 * defines them. */
#define TDM_CPU_KERNELS(KERNEL)                              \
    KERNEL(COPY, tdm_cpu_copy)                               \
    KERNEL(ZERO, tdm_cpu_zero)                               \
    KERNEL(EMBED, tdm_cpu_embed)                             \
    KERNEL(SORT_TOKENS, tdm_cpu_sort_tokens)                 \
    KERNEL(EMBED_GRAD, tdm_cpu_embed_grad)                   \
    KERNEL(NORM, tdm_cpu_norm)                               \
    KERNEL(NORM_GRAD, tdm_cpu_norm_grad)                     \
    KERNEL(PRODUCT, tdm_cpu_product)                         \
    KERNEL(PRODUCT_GRAD_INPUT, tdm_cpu_product)              \
    KERNEL(PRODUCT_GRAD_WEIGHT, tdm_cpu_product_grad_weight) \
    KERNEL(ROPE, tdm_cpu_rope)                               \
    KERNEL(ROPE_GRAD, tdm_cpu_rope_grad)                     \
    KERNEL(KV_WRITE, tdm_cpu_kv_write)                       \
    KERNEL(KV_GRAD_READ, tdm_cpu_kv_grad_read)               \
    KERNEL(PAGE_MEANS, tdm_cpu_page_means)                   \
    KERNEL(SELECT, tdm_cpu_select)                           \
    KERNEL(ATTENTION, tdm_cpu_attention)                     \
    KERNEL(ATTENTION_GRAD, tdm_cpu_attention_grad)           \
    KERNEL(SWIGLU, tdm_cpu_swiglu)                           \
    KERNEL(SWIGLU_GRAD, tdm_cpu_swiglu_grad)                 \
    KERNEL(HEAD, tdm_cpu_head)                               \
    KERNEL(LOSS, tdm_cpu_head)                               \
    KERNEL(HEAD_GRAD, tdm_cpu_head)                          \
    KERNEL(GRADIENT_NORM, tdm_cpu_gradient_norm)             \
    KERNEL(OPTIMIZER, tdm_cpu_optimizer)                     \
    KERNEL(GATHER, tdm_cpu_team)                             \
    KERNEL(REDUCE, tdm_cpu_team)                             \
    KERNEL(REDUCE_ALL, tdm_cpu_team)                         \
    KERNEL(REDUCE_SCATTER, tdm_cpu_team)                     \
    KERNEL(GATHER_ALL, tdm_cpu_team)                         \
    KERNEL(ALL_TO_ALL, tdm_cpu_team)                         \
    KERNEL(HOP, tdm_cpu_team)                                \
    KERNEL(HOP_SUM, tdm_cpu_team)                            \
    KERNEL(MERGE, tdm_cpu_merge)                             \
    KERNEL(PACK_QUERIES, tdm_cpu_pack_queries)

#define TDM_CUDA_KERNELS(KERNEL)                                  \
    KERNEL(COPY, tdm_cuda_run_copy)                               \
    KERNEL(ZERO, tdm_cuda_run_zero)                               \
    KERNEL(EMBED, tdm_cuda_run_embed)                             \
    KERNEL(SORT_TOKENS, tdm_cuda_run_sort_tokens)                 \
    KERNEL(EMBED_GRAD, tdm_cuda_run_embed_grad)                   \
    KERNEL(NORM, tdm_cuda_run_norm)                               \
    KERNEL(NORM_GRAD, tdm_cuda_run_norm_grad)                     \
    KERNEL(PRODUCT, tdm_cuda_run_product)                         \
    KERNEL(PRODUCT_GRAD_INPUT, tdm_cuda_run_product)              \
    KERNEL(PRODUCT_GRAD_WEIGHT, tdm_cuda_run_product_grad_weight) \
    KERNEL(ROPE, tdm_cuda_run_rope)                               \
    KERNEL(ROPE_GRAD, tdm_cuda_run_rope_grad)                     \
    KERNEL(KV_WRITE, tdm_cuda_run_kv_write)                       \
    KERNEL(KV_GRAD_READ, tdm_cuda_run_kv_grad_read)               \
    KERNEL(PAGE_MEANS, tdm_cuda_run_page_means)                   \
    KERNEL(SELECT, tdm_cuda_run_select)                           \
    KERNEL(ATTENTION, tdm_cuda_run_attention)                     \
    KERNEL(ATTENTION_GRAD, tdm_cuda_run_attention_grad)           \
    KERNEL(SWIGLU, tdm_cuda_run_swiglu)                           \
    KERNEL(SWIGLU_GRAD, tdm_cuda_run_swiglu_grad)                 \
    KERNEL(HEAD, tdm_cuda_run_head)                               \
    KERNEL(LOSS, tdm_cuda_run_head)                               \
    KERNEL(HEAD_GRAD, tdm_cuda_run_head)                          \
    KERNEL(GRADIENT_NORM, tdm_cuda_run_gradient_norm)             \
    KERNEL(OPTIMIZER, tdm_cuda_run_optimizer)                     \
    KERNEL(GATHER, tdm_cuda_run_team)                             \
    KERNEL(REDUCE, tdm_cuda_run_team)                             \
    KERNEL(REDUCE_ALL, tdm_cuda_run_team)                         \
    KERNEL(REDUCE_SCATTER, tdm_cuda_run_team)                     \
    KERNEL(GATHER_ALL, tdm_cuda_run_team)                         \
    KERNEL(ALL_TO_ALL, tdm_cuda_run_team)                         \
    KERNEL(HOP, tdm_cuda_run_team)                                \
    KERNEL(HOP_SUM, tdm_cuda_run_team)                            \
    KERNEL(MERGE, tdm_cuda_run_merge)                             \
    KERNEL(PACK_QUERIES, tdm_cuda_run_pack_queries)

struct tdm_kernels {
    const char *backend; /* "cuda" */
    tdm_kinds kinds;     /* the kinds that it has kernels for */
};

/* The backends that compute, whether or not this build has them. The last entry has no name. */
enum tdm_computing { TDM_COMPUTING_CPU, TDM_COMPUTING_CUDA, TDM_COMPUTING };
extern const struct tdm_kernels tdm_kernels[TDM_COMPUTING + 1];

/* Enough bytes for the names of all kinds. */
#define TDM_KINDS_TEXT 512

/* Names the kinds of a set: "select, page_means"; "" if there are none. Returns `text`. */
const char *tdm_kinds_show(tdm_kinds kinds, char text[TDM_KINDS_TEXT]);

/* Does a backend lack kernels for some of `kinds`? If so, writes to `line` which: "the cuda backend
 * has no kernel for select". */
#define TDM_LACKS_TEXT (TDM_KINDS_TEXT + 64)
bool tdm_kernels_lack(const struct tdm_kernels *kernels, tdm_kinds kinds,
                      char line[TDM_LACKS_TEXT]);

#endif
