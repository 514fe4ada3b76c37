/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the tensors of a part. */
#include "ops/weights.h"

static bool is_bias(enum tdm_role role)
{
    return role == TDM_ROLE_Q_BIAS || role == TDM_ROLE_K_BIAS || role == TDM_ROLE_V_BIAS;
}

/* Is it the second of the part's two matrices or biases? */
static bool is_second(enum tdm_role role)
{
    return role == TDM_ROLE_V || role == TDM_ROLE_V_BIAS || role == TDM_ROLE_UP;
}

static uint32_t unit_of(const struct tdm_weights_params *weights, enum tdm_part part,
                        uint32_t layer)
{
    switch (part) {
    case TDM_PART_EMBEDDING:
        return weights->embedding_unit;
    case TDM_PART_FINAL_NORM:
    case TDM_PART_HEAD:
        return weights->head_unit;
    default:
        return layer;
    }
}

struct tdm_part_tensors tdm_part_tensors(const struct tdm_weights_params *weights,
                                         enum tdm_part part, uint32_t layer)
{
    struct tdm_part_tensors found = {0};
    if (part == TDM_PART_HEAD && weights->tied)
        part = TDM_PART_EMBEDDING;
    uint32_t number = unit_of(weights, part, layer);
    if (number >= weights->unit_count)
        return found;
    const struct tdm_unit *unit = &weights->units[number];
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (tdm_part_of(tensor->role) != part)
            continue;
        if (is_bias(tensor->role)) {
            found.bias[is_second(tensor->role)] = tensor;
            continue;
        }
        found.matrix[is_second(tensor->role)] = tensor;
        found.inputs = tensor->columns;
        found.outputs += tensor->rows;
        found.count++;
    }
    return found;
}
