/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of ops: what all ops of a family have in common in a program. Lowering fills them once
 * (schedule/params.h). Code that runs or counts ops reads them from tdm_program.params. Values that
 * differ between ops are in the op.
 *
 * Pointers point into the model; nothing here is owned.
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
    struct tdm_weights_params weights; /* for all ops that work on a part of a unit */
    struct tdm_embed_params embed;     /* also for sort_tokens */
    struct tdm_norm_params norm;
    struct tdm_product_params product;
    struct tdm_rope_params rope;
    struct tdm_pages_params pages; /* for all ops over pages of K and V, and over their lists */
    struct tdm_attention_params attention; /* also for the selection */
    struct tdm_mlp_params mlp;
    struct tdm_head_params head;
    struct tdm_update_params update;
};

#endif
