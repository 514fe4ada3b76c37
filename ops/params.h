/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of ops: what all ops of a family have in common in a program. Lowering fills them once
 * (schedule/params.h), and whoever runs or counts ops reads them from tdm_program.params. What
 * differs from op to op lies in the op.
 *
 * Pointers lead into the model; nothing here is owned.
 */
#ifndef TDM_OPS_PARAMS_H
#define TDM_OPS_PARAMS_H

#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/head.h"
#include "ops/mlp.h"
#include "ops/norm.h"
#include "ops/pages.h"
#include "ops/product.h"
#include "ops/rope.h"
#include "ops/select.h"
#include "ops/update.h"
#include "ops/weights.h"

struct tdm_params {
    const char *model;                 /* its name, for messages */
    struct tdm_weights_params weights; /* of all ops that work on a part of a unit */
    struct tdm_embed_params embed;     /* sort_tokens too */
    struct tdm_norm_params norm;
    struct tdm_product_params product;
    struct tdm_rope_params rope;
    struct tdm_pages_params pages; /* of all ops over pages of K and V, and over their lists */
    struct tdm_attention_params attention; /* the selection too */
    struct tdm_mlp_params mlp;
    struct tdm_head_params head;
    struct tdm_update_params update;
};

#endif
