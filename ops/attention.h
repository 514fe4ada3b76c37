/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a chunk's queries to the K and V of the chunks that they see, and its gradient.
 * Q, K and V, and the output are the same operands of both. */
#ifndef TDM_OPS_ATTENTION_H
#define TDM_OPS_ATTENTION_H

#include "ops/ops.h"

enum tdm_attention_operand {
    TDM_ATTENTION_Q,  /* read: rotated, [tokens, query_heads, head_dim] */
    TDM_ATTENTION_KV, /* read: pages of K and V of the chunks that the op's chunk sees */
    /* written: output [tokens, query_heads, head_dim], then LSE fp32 [tokens, query_heads] */
    TDM_ATTENTION_O,
    TDM_ATTENTION_LISTS, /* read where a selector lists pages, else absent */
    TDM_ATTENTION_OPERANDS
};
extern const struct tdm_op_type tdm_attention_type;

enum tdm_attention_grad_operand {
    TDM_ATTENTION_GRAD_Q = TDM_ATTENTION_Q,   /* read: rotated */
    TDM_ATTENTION_GRAD_KV = TDM_ATTENTION_KV, /* read */
    TDM_ATTENTION_GRAD_O = TDM_ATTENTION_O,   /* read: output and LSE of the forward */
    TDM_ATTENTION_GRAD_DO, /* read: gradient of the output, [tokens, query_heads, head_dim] */
    TDM_ATTENTION_GRAD_DQ, /* written: gradient of q */
    /* written: gradient of the pages of K and V of the chunks that no later chunk sees; absent if
     * there are none */
    TDM_ATTENTION_GRAD_DKV_OPENED,
    /* added to: the same of the chunks that a later chunk sees too; absent if there are none */
    TDM_ATTENTION_GRAD_DKV_ADDED,
    TDM_ATTENTION_GRAD_LISTS, /* read where a selector lists pages, else absent */
    TDM_ATTENTION_GRAD_OPERANDS
};
extern const struct tdm_op_type tdm_attention_grad_type;

#endif
