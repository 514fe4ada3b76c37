/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the records of all kinds. */
#include "ops/ops.h"

#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/head.h"
#include "ops/mlp.h"
#include "ops/move.h"
#include "ops/norm.h"
#include "ops/product.h"
#include "ops/rope.h"
#include "ops/select.h"
#include "ops/update.h"

const struct tdm_op_type *tdm_op_type(enum tdm_op_kind kind)
{
    static const struct tdm_op_type *const types[TDM_OP_KINDS] = {
        [TDM_OP_COPY] = &tdm_copy_type,
        [TDM_OP_ZERO] = &tdm_zero_type,
        [TDM_OP_EMBED] = &tdm_embed_type,
        [TDM_OP_SORT_TOKENS] = &tdm_sort_tokens_type,
        [TDM_OP_EMBED_GRAD] = &tdm_embed_grad_type,
        [TDM_OP_NORM] = &tdm_norm_type,
        [TDM_OP_NORM_GRAD] = &tdm_norm_grad_type,
        [TDM_OP_PRODUCT] = &tdm_product_type,
        [TDM_OP_PRODUCT_GRAD_INPUT] = &tdm_product_grad_input_type,
        [TDM_OP_PRODUCT_GRAD_WEIGHT] = &tdm_product_grad_weight_type,
        [TDM_OP_ROPE] = &tdm_rope_type,
        [TDM_OP_ROPE_GRAD] = &tdm_rope_grad_type,
        [TDM_OP_KV_WRITE] = &tdm_kv_write_type,
        [TDM_OP_KV_GRAD_READ] = &tdm_kv_grad_read_type,
        [TDM_OP_PAGE_MEANS] = &tdm_page_means_type,
        [TDM_OP_SELECT] = &tdm_select_type,
        [TDM_OP_ATTENTION] = &tdm_attention_type,
        [TDM_OP_ATTENTION_GRAD] = &tdm_attention_grad_type,
        [TDM_OP_SWIGLU] = &tdm_swiglu_type,
        [TDM_OP_SWIGLU_GRAD] = &tdm_swiglu_grad_type,
        [TDM_OP_HEAD] = &tdm_head_type,
        [TDM_OP_LOSS] = &tdm_loss_type,
        [TDM_OP_HEAD_GRAD] = &tdm_head_grad_type,
        [TDM_OP_GRADIENT_NORM] = &tdm_gradient_norm_type,
        [TDM_OP_OPTIMIZER] = &tdm_optimizer_type,
    };
    return types[kind];
}

uint64_t tdm_no_flops(const struct tdm_params *params, const struct tdm_work *work)
{
    (void)params;
    (void)work;
    return 0;
}

const char *tdm_op_kind_name(enum tdm_op_kind kind)
{
    return tdm_op_type(kind)->name;
}
