/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of PyTorch by what they allocate, what they save for the backward, and what their
 * backward allocates. Inputs are borrowed, results are new references.
 * Sources: tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp, and the
 * kernels named in kernels.c.
 */
#ifndef TDM_METHODS_EAGER_OPS_H
#define TDM_METHODS_EAGER_OPS_H

#include "methods/eager/eager.h"

/* x.to(dtype): x itself if it is of that dtype. */
struct tdm_eager_value *tdm_cast(struct tdm_eager *m, struct tdm_eager_value *x,
                                 uint16_t element_bytes);
/* What autocast makes of an input of a product: a bf16 copy, cached for parameters that are
 * trained. */
struct tdm_eager_value *tdm_autocast(struct tdm_eager *m, struct tdm_eager_value *x);

/* The smaller of two operands is broadcast. */
struct tdm_eager_value *tdm_mul(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b);
struct tdm_eager_value *tdm_add(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b);
/* With a number; saves nothing. */
struct tdm_eager_value *tdm_mul_number(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_add_number(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_square(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_rsqrt(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_silu(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_gelu(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_tanh(struct tdm_eager *m, struct tdm_eager_value *x);
/* softmax over the columns, in the dtype of x. */
struct tdm_eager_value *tdm_softmax(struct tdm_eager *m, struct tdm_eager_value *x);
/* Mean over the columns; over everything. */
struct tdm_eager_value *tdm_row_mean(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_mean(struct tdm_eager *m, struct tdm_eager_value *x);

/* Sums of neighbours: of the columns of each row (as many rows as x), or of so many rows each. */
struct tdm_eager_value *tdm_row_sum(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows);

/* [.., columns] of rows, seen as rows x columns; a copy in the backward if the gradient does not
 * lie so. */
struct tdm_eager_value *tdm_reshape(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows,
                                    uint64_t columns);
/* transpose(1, 2) of heads and tokens. */
struct tdm_eager_value *tdm_transpose(struct tdm_eager *m, struct tdm_eager_value *x);
/* x.contiguous(). */
struct tdm_eager_value *tdm_contiguous(struct tdm_eager *m, struct tdm_eager_value *x);
/* torch.cat of an empty tensor, which may be of a wider dtype, and x. */
struct tdm_eager_value *tdm_cat_alone(struct tdm_eager *m, struct tdm_eager_value *x,
                                      uint16_t element_bytes);
/* rotate_half: the halves of the columns change places, one of them negated. */
struct tdm_eager_value *tdm_rotate_half(struct tdm_eager *m, struct tdm_eager_value *x);
/* chunk(2): both halves of the columns, as views. */
void tdm_halves(struct tdm_eager *m, struct tdm_eager_value *x, struct tdm_eager_value **first,
                struct tdm_eager_value **second);
/* Every row `times` times in memory of its own; x itself if once. */
struct tdm_eager_value *tdm_repeat(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t times);
/* Rows first .. first + rows - 1 as a view; the backward fills zeros around. */
struct tdm_eager_value *tdm_rows(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows);

/* x W^T + b; b may be NULL. `flat`: x has two dimensions, so no views are made of it. */
struct tdm_eager_value *tdm_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                   struct tdm_eager_value *weight, struct tdm_eager_value *bias,
                                   bool flat);
/* Batched products of a [batch * rows, inner] with b: rows x columns results in each of the batch.
 * The operands lie as they are, copied first if `copies` (a 4-D operand whose heads cannot be
 * merged with the batch). */
struct tdm_eager_value *tdm_bmm(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b, uint64_t rows, uint64_t columns);

struct tdm_eager_value *tdm_embedding(struct tdm_eager *m, struct tdm_eager_value *weight,
                                      struct tdm_eager_value *ids, uint64_t tokens);

enum tdm_attention_kernel { TDM_ATTENTION_CUDNN, TDM_ATTENTION_FLASH, TDM_ATTENTION_EFFICIENT };

struct tdm_attention_shape {
    enum tdm_attention_kernel kernel;
    uint64_t batch, query_heads, kv_heads, tokens, head_dim;
};

/* scaled_dot_product_attention; `bias` is the mask in the dtype of q, or NULL. */
struct tdm_eager_value *tdm_attention(struct tdm_eager *m, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v,
                                      struct tdm_eager_value *bias,
                                      const struct tdm_attention_shape *shape);

/* Cross entropy over rows of fp32 logits, mean; a loss of one element. */
struct tdm_eager_value *tdm_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *logits,
                                          struct tdm_eager_value *labels);

/* Workspace of cuBLAS for the thread that runs, made by its first product and kept; cuBLASLt's. */
void tdm_cublas(struct tdm_eager *m);
void tdm_cublaslt(struct tdm_eager *m);

/* ---- scratch of kernels (kernels.c) ---- */

/* Bytes of the buffer through which thread blocks share a sum of `inputs` elements into each of
 * `outputs` neighbouring ones; 0 if the sum stays inside blocks. *semaphore_bytes is the other
 * buffer. */
uint64_t tdm_column_sum_scratch(const struct tdm_gpu_facts *gpu, uint64_t inputs, uint64_t outputs,
                                uint64_t *semaphore_bytes);
/* The same for a sum of everything into one element. */
uint64_t tdm_total_sum_scratch(const struct tdm_gpu_facts *gpu, uint64_t inputs,
                               uint64_t *semaphore_bytes);
/* Workspace of cuDNN's attention backward. */
uint64_t tdm_cudnn_backward_workspace(const struct tdm_attention_shape *shape);
/* Of the memory-efficient one; with larger heads than this it adds up outputs, dK and dV in fp32
 * too. */
#define TDM_EFFICIENT_HEAD_DIM 128u
uint64_t tdm_efficient_backward_workspace(const struct tdm_attention_shape *shape);

/* Scratch of FlashAttention-2's backward, which is made and dropped. */
#define TDM_FLASH_ROWS 128u   /* tokens of a sequence are padded to it */
#define TDM_FLASH_COLUMNS 32u /* and head dims to this */
struct tdm_flash_scratch {
    uint64_t query_rows; /* padded tokens of all query heads: sums of dO * O, and dQ in fp32 */
    uint64_t wide_rows;  /* dK and dV of every query head; 0: there are as many KV heads */
    uint64_t head_dim;
    bool has_sums; /* the caller has memory for the sums */
};
void tdm_flash_backward_scratch(struct tdm_eager *m, const struct tdm_flash_scratch *scratch);

/* In how many parts FlashAttention-2's forward cuts the keys, so that short sequences fill the
 * GPU. */
uint64_t tdm_flash_splits(const struct tdm_gpu_facts *gpu, const struct tdm_attention_shape *shape);

/* The backward of an embedding's look-up with a gradient of the weight's size, which is
 * returned. */
struct tdm_eager_value *tdm_embedding_gradient(struct tdm_eager *m, uint64_t vocabulary,
                                               uint64_t hidden, uint16_t element_bytes,
                                               uint64_t tokens);

#endif
