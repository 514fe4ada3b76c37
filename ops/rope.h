/* SPDX-License-Identifier: Apache-2.0 */
/* Rotation of the heads of q, and of K on its way into pages. With QK-norm every head is normed
 * before the rotation.
 *
 * An op norms if it has the operand of QK-norm's weights. Then it also has all other operands that
 * depend on QK-norm. Backends check nothing else. Its part is that of the weights, q_norm or
 * k_norm. Without QK-norm it is the part of the product before it, q or kv, which only identifies
 * the op. */
#ifndef TDM_OPS_ROPE_H
#define TDM_OPS_ROPE_H

#include "ops/ops.h"

struct tdm_rope_params {
    uint32_t query_heads, kv_heads, head_dim;
    struct tdm_rope positions; /* how angles follow from positions */
    double norm_epsilon;       /* of QK-norm */
};

enum tdm_rope_operand {
    /* [tokens, query_heads, head_dim]: changed from the q product to q; with QK-norm only read */
    TDM_ROPE_Q,
    TDM_ROPE_WEIGHTS, /* read with QK-norm, else absent: [head_dim] */
    TDM_ROPE_OUT,     /* written with QK-norm, else absent: q, [tokens, query_heads, head_dim] */
    TDM_ROPE_OPERANDS
};
extern const struct tdm_op_type tdm_rope_type;

/* The last three operands exist only with QK-norm. */
enum tdm_rope_grad_operand {
    TDM_ROPE_GRAD_DQ,       /* changed: gradient of q becomes that of the q product */
    TDM_ROPE_GRAD_RAW,      /* read with QK-norm, else absent: the norm's input */
    TDM_ROPE_GRAD_WEIGHTS,  /* read with QK-norm, else absent: [head_dim] */
    TDM_ROPE_GRAD_DWEIGHTS, /* written or added to with QK-norm, else absent */
    TDM_ROPE_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_rope_grad_type;

enum tdm_kv_write_operand {
    TDM_KV_WRITE_RAW,     /* read: [tokens, K then V: 2 * kv_heads * head_dim] */
    TDM_KV_WRITE_PAGES,   /* written: pages of K, rotated, and of V */
    TDM_KV_WRITE_WEIGHTS, /* read with QK-norm, else absent: [head_dim] */
    TDM_KV_WRITE_OPERANDS
};
extern const struct tdm_op_type tdm_kv_write_type;

/* The last three operands exist only with QK-norm. */
enum tdm_kv_grad_read_operand {
    TDM_KV_GRAD_READ_DPAGES, /* read: the complete gradient of the chunk's pages */
    /* written: gradient of the product, dK rotated back; shape of TDM_KV_WRITE_RAW */
    TDM_KV_GRAD_READ_DRAW,
    TDM_KV_GRAD_READ_RAW,      /* read with QK-norm, else absent: the norm's input */
    TDM_KV_GRAD_READ_WEIGHTS,  /* read with QK-norm, else absent: [head_dim] */
    TDM_KV_GRAD_READ_DWEIGHTS, /* written or added to with QK-norm, else absent */
    TDM_KV_GRAD_READ_OPERANDS
};
extern const struct tdm_op_type tdm_kv_grad_read_type;

#endif
