/* SPDX-License-Identifier: Apache-2.0 */
/* Where ops find the tensors of units: a slot holds a whole unit (content.h), and an op works on a
 * part of it. */
#ifndef TDM_OPS_WEIGHTS_H
#define TDM_OPS_WEIGHTS_H

#include "ops/content.h"

struct tdm_weights_params {
    const struct tdm_unit *units; /* [unit_count]; these and the tensors belong to the model */
    const struct tdm_tensor *tensors;
    uint32_t unit_count;
    uint32_t embedding_unit, head_unit;
    bool tied; /* the head's matrix is the embedding */
};

/* The tensors of a part. */
struct tdm_part_tensors {
    uint32_t count; /* number of matrices: 1, or 2 for K with V and gate with up; 0: no such part */
    const struct tdm_tensor *matrix[2]; /* a norm's vector is a matrix of one row */
    const struct tdm_tensor *bias[2];   /* NULL: none */
    uint64_t inputs;                    /* columns of each matrix */
    uint64_t outputs;                   /* rows of both */
};

/* The tensors of a part in the unit of an op with this `layer`. TDM_PART_EMBEDDING, _FINAL_NORM and
 * _HEAD have their own units, whatever the layer. For a tied head it returns the embedding. */
struct tdm_part_tensors tdm_part_tensors(const struct tdm_weights_params *weights,
                                         enum tdm_part part, uint32_t layer);

#endif
