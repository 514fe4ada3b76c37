/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in 8 bits as Transformer Engine has them. */
#include "methods/eager/te_float8.h"

#include "methods/eager/dtypes.h"

#include <stddef.h>

static struct tdm_eager_value *bytes_of(struct tdm_eager *m, const struct tdm_eager_value *x)
{
    return tdm_value_new(m, x->rows, x->columns, FLOAT8);
}

struct tdm_te_tensor tdm_te_quantize(struct tdm_eager *m, enum tdm_te_recipe recipe,
                                     const struct tdm_eager_value *x, unsigned usage)
{
    bool both_orders = m->gpu.float8_both_orders;
    struct tdm_te_tensor made = {.data = NULL};
    if (recipe == TDM_TE_DELAYED)
        made.scale = tdm_value_new(m, 1, 1, FP32);
    if (both_orders || (usage & TDM_TE_ROWS) != 0)
        made.data = bytes_of(m, x);
    if (!both_orders && (usage & TDM_TE_COLUMNS) != 0)
        made.transpose = bytes_of(m, x);
    if (recipe != TDM_TE_DELAYED)
        made.scale = tdm_value_new(m, 1, 1, FP32);
    return made;
}

void tdm_te_add_columns(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    if (!m->gpu.float8_both_orders && tensor->transpose == NULL)
        tensor->transpose = bytes_of(m, tensor->data);
}

void tdm_te_drop_rows(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    if (tensor->transpose == NULL)
        return;
    tdm_drop(m, tensor->data);
    tensor->data = NULL;
}

void tdm_te_clear(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    if (tensor->data != NULL)
        tdm_value_vacate(m, tensor->data);
    if (tensor->transpose != NULL)
        tdm_value_vacate(m, tensor->transpose);
}

void tdm_te_drop(struct tdm_eager *m, struct tdm_te_tensor *tensor)
{
    tdm_drop(m, tensor->data);
    tdm_drop(m, tensor->transpose);
    tdm_drop(m, tensor->scale);
    *tensor = (struct tdm_te_tensor){.data = NULL};
}

void tdm_te_save(struct tdm_eager *m, struct tdm_node *node, const struct tdm_te_tensor *tensor)
{
    tdm_node_save(m, node, tensor->data != NULL ? tensor->data : tensor->transpose);
    tdm_node_save(m, node, tensor->scale);
}

struct tdm_te_tensor tdm_te_saved(struct tdm_eager *m, struct tdm_node *node, uint32_t first)
{
    return (struct tdm_te_tensor){.data = tdm_node_saved(m, node, first),
                                  .scale = tdm_node_saved(m, node, first + 1)};
}
