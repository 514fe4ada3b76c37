/* SPDX-License-Identifier: Apache-2.0 */
/* What follows the backward of a unit: the norm of its gradient, and its update. */
#ifndef TDM_OPS_UPDATE_H
#define TDM_OPS_UPDATE_H

#include "ops/ops.h"

struct tdm_update_params {
    bool adamw;   /* else SGD */
    bool on_host; /* units whose home is the host are updated on its cores */
    double beta1, beta2, epsilon, weight_decay;
    uint32_t decayed; /* what decays: a bit for each enum tdm_tensor_kind */
    double clip_norm; /* gradients are scaled down to this norm if there is an operand of norms */
};

/* The rows of an embedding that an update changes. On the host those that no token of the step uses
 * are updated early, since their gradient is zero, and the others when it is there. Which rows
 * these are a step knows; if not, the second update changes all. */
enum tdm_update_rows { TDM_ROWS_ALL, TDM_ROWS_UNUSED, TDM_ROWS_USED };

/* Is a tensor of this role among the kinds that decay? */
static inline bool tdm_decays(uint32_t decayed, enum tdm_role role)
{
    return (decayed >> tdm_role_kind(role) & 1) != 0;
}

enum tdm_gradient_norm_operand {
    TDM_GRADIENT_NORM_GRADIENT, /* read: of the unit, complete */
    TDM_GRADIENT_NORM_NORM,     /* written: fp64 [1], sum of squares */
    TDM_GRADIENT_NORM_TIED, /* read, or absent: the head's part of a tied embedding's gradient */
    TDM_GRADIENT_NORM_OPERANDS
};
extern const struct tdm_op_type tdm_gradient_norm_type;

enum tdm_optimizer_operand {
    TDM_OPTIMIZER_WEIGHTS,  /* changed: of the unit */
    TDM_OPTIMIZER_GRADIENT, /* read, or absent if it is zero: of the unit, complete */
    TDM_OPTIMIZER_MASTER,   /* changed, or absent: weights in fp32, or remainders */
    TDM_OPTIMIZER_MOMENT1,  /* changed, or absent */
    TDM_OPTIMIZER_MOMENT2,  /* changed, or absent */
    /* read if gradients are clipped, else absent: fp64 [1] for each unit, this one or all */
    TDM_OPTIMIZER_NORMS,
    TDM_OPTIMIZER_TIED, /* read, or absent: the head's part of a tied embedding's gradient */
    TDM_OPTIMIZER_OPERANDS
};
extern const struct tdm_op_type tdm_optimizer_type;

#endif
