/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of PyTorch: what they allocate, what they save for the backward, and what their
 * backward allocates. Inputs are borrowed. Results are new references.
 * Sources: tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp, and the
 * kernels named in kernels.c.
 */
#ifndef TDM_METHODS_EAGER_OPS_H
#define TDM_METHODS_EAGER_OPS_H

#include "methods/eager/eager.h"
#include "models/model.h"

/* x.to(dtype): x itself if it has that dtype. */
struct tdm_eager_value *tdm_cast(struct tdm_eager *m, struct tdm_eager_value *x,
                                 uint16_t element_bytes);
/* An operand of a product under autocast: a bf16 copy, which is cached for trained parameters. */
struct tdm_eager_value *tdm_autocast(struct tdm_eager *m, struct tdm_eager_value *x);

/* The smaller of two operands is broadcast. */
struct tdm_eager_value *tdm_mul(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b);
struct tdm_eager_value *tdm_add(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b);
/* a - b, which may be broadcast. */
struct tdm_eager_value *tdm_sub(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b);
/* x += y: the memory of x. */
struct tdm_eager_value *tdm_add_in_place(struct tdm_eager *m, struct tdm_eager_value *x,
                                         struct tdm_eager_value *y);
/* The largest of each row, with its place. */
struct tdm_eager_value *tdm_row_max(struct tdm_eager *m, struct tdm_eager_value *x);
/* clamp with one bound or two. */
struct tdm_eager_value *tdm_clamp(struct tdm_eager *m, struct tdm_eager_value *x, uint32_t bounds);
struct tdm_eager_value *tdm_sigmoid(struct tdm_eager *m, struct tdm_eager_value *x);
/* The other operand is a number. Saves nothing. */
struct tdm_eager_value *tdm_mul_number(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_add_number(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_square(struct tdm_eager *m, struct tdm_eager_value *x);
/* nn.LayerNorm: saves its input and weights, and means and scales of the rows in fp32. Under
 * autocast all of it is fp32 (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32). */
struct tdm_eager_value *tdm_layer_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *weight,
                                       struct tdm_eager_value *bias);
struct tdm_eager_value *tdm_rsqrt(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_activate(struct tdm_eager *m, enum tdm_activation activation,
                                     struct tdm_eager_value *x);
struct tdm_eager_value *tdm_relu(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_softplus(struct tdm_eager *m, struct tdm_eager_value *x);
/* xIELU, operation by operation, with its two trained numbers. */
struct tdm_eager_value *tdm_xielu(struct tdm_eager *m, struct tdm_eager_value *x,
                                  struct tdm_eager_value *const numbers[2]);
struct tdm_eager_value *tdm_tanh(struct tdm_eager *m, struct tdm_eager_value *x);
/* softmax over the columns, in the dtype of x. */
struct tdm_eager_value *tdm_softmax(struct tdm_eager *m, struct tdm_eager_value *x);
/* Mean over the columns; over everything. */
struct tdm_eager_value *tdm_row_mean(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_mean(struct tdm_eager *m, struct tdm_eager_value *x);

/* Sums the columns of each row if `rows` is that of x; else adjacent rows, to `rows` rows. */
struct tdm_eager_value *tdm_row_sum(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows);

/* x as rows x columns: a view, or a copy if x is `swapped`. The same holds for the gradient. */
struct tdm_eager_value *tdm_reshape(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows,
                                    uint64_t columns);
/* transpose(1, 2) of heads and tokens. */
struct tdm_eager_value *tdm_transpose(struct tdm_eager *m, struct tdm_eager_value *x);
/* x.contiguous(). */
struct tdm_eager_value *tdm_contiguous(struct tdm_eager *m, struct tdm_eager_value *x);
/* x.clone(). */
struct tdm_eager_value *tdm_clone(struct tdm_eager *m, struct tdm_eager_value *x);
/* nn.Dropout in training. Saves a mask of bytes. */
struct tdm_eager_value *tdm_dropout(struct tdm_eager *m, struct tdm_eager_value *x);
/* torch.cat of an empty tensor, which may be of a wider dtype, and x. */
struct tdm_eager_value *tdm_cat_alone(struct tdm_eager *m, struct tdm_eager_value *x,
                                      uint16_t element_bytes);
/* rotate_half: swaps the halves of the columns and negates one of them. */
struct tdm_eager_value *tdm_rotate_half(struct tdm_eager *m, struct tdm_eager_value *x);
/* chunk(2): both halves of the columns, as views. */
void tdm_halves(struct tdm_eager *m, struct tdm_eager_value *x, struct tdm_eager_value **first,
                struct tdm_eager_value **second);
/* split: `count` parts of the columns, as views. */
void tdm_split(struct tdm_eager *m, struct tdm_eager_value *x, const uint64_t *columns,
               uint32_t count, struct tdm_eager_value **parts);
/* expand: a view of more rows or columns, whose gradient is summed. */
struct tdm_eager_value *tdm_stretch(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows,
                                    uint64_t columns);
/* x.expand(): the same memory read `times` times. */
struct tdm_eager_value *tdm_expand(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t times);
/* A copy with every row `times` times; x itself if `times` is 1. */
struct tdm_eager_value *tdm_repeat(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t times);
/* A view of `rows` rows. The backward copies their gradient into zeros of the shape of x. */
struct tdm_eager_value *tdm_rows(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows);

/* x[..., first : first + columns]: a view, with the same backward. Which columns does not matter.
 */
struct tdm_eager_value *tdm_columns(struct tdm_eager *m, struct tdm_eager_value *x,
                                    uint64_t columns);
/* F.pad with zeros to so many columns. */
struct tdm_eager_value *tdm_pad(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t columns);
/* torch.cat of a and b along their columns. */
struct tdm_eager_value *tdm_cat(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b);

/* The same of several, whose gradients are views of theirs together. */
struct tdm_eager_value *tdm_cat_many(struct tdm_eager *m, struct tdm_eager_value *const *x,
                                     uint32_t count);

/* A backward of one kernel, whose result has the shape of the incoming gradient. */
void tdm_map_backward(struct tdm_eager *m, struct tdm_node *node,
                      struct tdm_eager_value *const *grads, struct tdm_eager_value **results);

/* The backward of torch.cat: gradients are parts of the result's. */
void tdm_cat_backward(struct tdm_eager *m, struct tdm_node *node,
                      struct tdm_eager_value *const *grads, struct tdm_eager_value **results);

/* x W^T + b; b may be NULL. `flat`: x has two dimensions, so no views of it are made. */
struct tdm_eager_value *tdm_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                   struct tdm_eager_value *weight, struct tdm_eager_value *bias,
                                   bool flat);
/* Batched products of a and b. The whole result has rows x columns elements. The operands are not
 * copied. */
struct tdm_eager_value *tdm_bmm(struct tdm_eager *m, struct tdm_eager_value *a,
                                struct tdm_eager_value *b, uint64_t rows, uint64_t columns);

struct tdm_eager_value *tdm_embedding(struct tdm_eager *m, struct tdm_eager_value *weight,
                                      struct tdm_eager_value *ids, uint64_t tokens);

enum tdm_attention_kernel { TDM_ATTENTION_CUDNN, TDM_ATTENTION_FLASH, TDM_ATTENTION_EFFICIENT };

struct tdm_attention_shape {
    enum tdm_attention_kernel kernel;
    uint64_t batch, query_heads, kv_heads, tokens, head_dim;
    uint64_t value_dim; /* of V's heads; 0: head_dim */
};

/* scaled_dot_product_attention. `bias` is the mask in the dtype of q, or NULL. */
struct tdm_eager_value *tdm_attention(struct tdm_eager *m, struct tdm_eager_value *q,
                                      struct tdm_eager_value *k, struct tdm_eager_value *v,
                                      struct tdm_eager_value *bias,
                                      const struct tdm_attention_shape *shape);

/* Mean cross entropy over the rows of the logits: a loss of one element. */
struct tdm_eager_value *tdm_cross_entropy(struct tdm_eager *m, struct tdm_eager_value *logits,
                                          struct tdm_eager_value *labels);

/* The workspaces of cuBLAS and cuBLASLt for the running thread. Its first product allocates them,
 * and they are kept. */
void tdm_cublas(struct tdm_eager *m);
void tdm_cublaslt(struct tdm_eager *m);

/* ---- scratch of kernels (kernels.c) ---- */

/* Bytes of the buffer through which thread blocks share a sum of `inputs` elements into each of
 * `outputs` adjacent ones; 0 if every sum stays inside one block. *semaphore_bytes: size of the
 * buffer of semaphores. */
uint64_t tdm_column_sum_scratch(const struct tdm_gpu_facts *gpu, uint64_t inputs, uint64_t outputs,
                                uint64_t *semaphore_bytes);
/* The same for a sum of everything into one element. */
uint64_t tdm_total_sum_scratch(const struct tdm_gpu_facts *gpu, uint64_t inputs,
                               uint64_t *semaphore_bytes);
/* Workspace of cuDNN's attention backward. */
uint64_t tdm_cudnn_backward_workspace(const struct tdm_attention_shape *shape);
/* Workspace of the memory-efficient kernel's backward. With larger heads than this, the kernel also
 * accumulates outputs, dK and dV in fp32. */
#define TDM_EFFICIENT_HEAD_DIM 128u
uint64_t tdm_efficient_backward_workspace(const struct tdm_attention_shape *shape);

/* Scratch of FlashAttention-2's backward, which is allocated and freed. */
#define TDM_FLASH_ROWS 128u   /* tokens of a sequence are padded to a multiple of this */
#define TDM_FLASH_COLUMNS 32u /* and head dims to a multiple of this */
struct tdm_flash_scratch {
    uint64_t query_rows; /* padded tokens of all query heads: sums of dO * O, and dQ in fp32 */
    uint64_t wide_rows;  /* dK and dV of every query head; 0: there are as many KV heads */
    uint64_t head_dim;
    bool has_sums; /* the caller has memory for the sums */
};
void tdm_flash_backward_scratch(struct tdm_eager *m, const struct tdm_flash_scratch *scratch);

/* Number of parts into which FlashAttention-2's forward cuts the keys, so that short sequences fill
 * the GPU. */
uint64_t tdm_flash_splits(const struct tdm_gpu_facts *gpu, const struct tdm_attention_shape *shape);

/* The backward of an embedding's look-up. Returns the gradient, which has the weight's size. */
struct tdm_eager_value *tdm_embedding_gradient(struct tdm_eager *m, uint64_t vocabulary,
                                               uint64_t hidden, uint16_t element_bytes,
                                               uint64_t tokens);

#endif
