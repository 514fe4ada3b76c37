/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch of a step: the most that any op of it needs. */
#include "schedule/scratch.h"

#include "base/size.h"

/* Every array in it begins on so many bytes. */
#define ARRAY_ALIGN 256u

/* What a library may use to multiply, where a result has too few tiles to fill a GPU and its sum is
 * cut into parts: as much as the largest result of a layer in fp32, but no more than this. */
#define MOST_PRODUCT_BYTES (UINT64_C(32) << 20)

/* Sums over rows are made in two steps, so that they repeat: of so many slices of the rows, then of the
 * slices; gradients of norms, of QK-norms by head, of biases. */
#define NORM_SLICES 264u
#define HEAD_SLICES 2112u
#define BIAS_SLICES 64u

/* Sums of squares: so many a tensor. */
#define SQUARES 1024u

static uint64_t product_bytes(const struct tdm_model *model, uint64_t tokens)
{
    uint64_t rows = tokens > model->hidden ? tokens : model->hidden;
    uint64_t bytes = tdm_size_mul(rows, 2 * (uint64_t)model->intermediate * sizeof(float));
    return bytes < MOST_PRODUCT_BYTES ? bytes : MOST_PRODUCT_BYTES;
}

/* Arrays of one op. */
static uint64_t arrays(uint64_t one, uint64_t other)
{
    return tdm_size_add(tdm_size_align(one, ARRAY_ALIGN), tdm_size_align(other, ARRAY_ALIGN));
}

uint64_t tdm_scratch_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    const struct tdm_model *model = schedule->model;
    uint64_t columns = ((uint64_t)model->query_heads + 2 * (uint64_t)model->kv_heads) *
                       (uint64_t)model->head_dim;
    uint64_t tensors = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        if (model->units[unit].tensor_count > tensors)
            tensors = model->units[unit].tensor_count;
    const uint64_t needs[] = {
        product_bytes(model, tokens),
        /* attention: from where a row sees, and in the backward a sum for each head */
        arrays(tdm_size_mul(tokens, sizeof(uint64_t)),
               tdm_size_mul(tokens, sizeof(float) * (uint64_t)model->query_heads)),
        /* LM head: the loss of each row */
        arrays(tdm_size_mul(tokens, sizeof(double)), 0),
        arrays(tdm_size_mul(model->hidden, NORM_SLICES * sizeof(float)), 0),
        arrays(tdm_size_mul(model->head_dim, HEAD_SLICES * sizeof(float)), 0),
        arrays(tdm_size_mul(columns, BIAS_SLICES * sizeof(float)), 0),
        arrays(tdm_size_mul(tensors, SQUARES * sizeof(double)), 0),
    };
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
        most = needs[i] > most ? needs[i] : most;
    return most;
}
