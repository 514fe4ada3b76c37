/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LongLoRA's attention (dvlab-research/LongLoRA, llama_attn_replace.py forward_flashattn,
 * forward_flashattn_full). q and repeated k, v are stacked. Each half of the heads becomes a
 * sequence of its own, packed and unpadded. FlashAttention runs inside groups of tokens, which
 * begin half a group later for the second half. The shift moves no values. Full attention has
 * neither halves nor groups. Without FlashAttention (forward_noflashattn) half of the heads is
 * rolled in place, and the scores of each group are in memory. supervised-fine-tune.py has groups
 * of 8,192 tokens where 4,096 do not divide the context (llama_attn_replace_sft.py).
 */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include "base/size.h"

#define STACKED 3u /* q, k, v */
#define HALVES 2u

static void stack_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    for (uint32_t i = 0; i < STACKED; i++) { /* unbind */
        results[i] = tdm_value_view(m, grads[0]);
        results[i]->rows = node->edges[i].rows;
        results[i]->columns = node->edges[i].columns;
    }
}

static struct tdm_eager_value *stack(struct tdm_eager *m,
                                     struct tdm_eager_value *const parts[STACKED])
{
    static const struct tdm_eager_op op = {"StackBackward0", false, stack_backward};
    struct tdm_node *node = tdm_node_new(m, &op, parts, STACKED);
    return tdm_node_finish(
        m, node,
        tdm_value_new(m, STACKED * parts[0]->rows, parts[0]->columns, parts[0]->element_bytes));
}

static void copy_backward(struct tdm_eager *m, struct tdm_node *node,
                          struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *indices = node->saved_count == 0 ? NULL : tdm_node_saved(m, node, 0);
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    tdm_drop(m, indices);
}

/* A copy in another order: by indices, which are saved, or by strides (NULL). Takes ownership of
 * x. */
static struct tdm_eager_value *copied(struct tdm_eager *m, struct tdm_eager_value *x,
                                      struct tdm_eager_value *indices)
{
    static const struct tdm_eager_op op = {"IndexFirstAxisBackward", false, copy_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    if (indices != NULL)
        tdm_node_save(m, node, indices);
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, x->columns, x->element_bytes);
    tdm_node_finish(m, node, y);
    tdm_drop(m, x);
    return y;
}

static void flash_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[3];
    (void)grads;
    for (uint32_t i = 0; i < 3; i++)
        saved[i] = tdm_node_saved(m, node, i);
    results[0] = tdm_value_like(m, saved[0]);
    /* Each group is padded by up to 128 rows. */
    const struct tdm_flash_scratch scratch = {.query_rows =
                                                  saved[1]->rows + node->facts[0] * TDM_FLASH_ROWS,
                                              .head_dim = saved[1]->columns};
    tdm_flash_backward_scratch(m, &scratch);
    for (uint32_t i = 0; i < 3; i++)
        tdm_drop(m, saved[i]);
}

static struct tdm_eager_value *flash(struct tdm_eager *m, struct tdm_eager_value *qkv,
                                     uint64_t padded_heads)
{
    static const struct tdm_eager_op op = {"FlashAttnVarlenQKVPackedFuncBackward", false,
                                           flash_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &qkv, 1);
    struct tdm_eager_value *y =
        tdm_value_new(m, qkv->rows / STACKED, qkv->columns, qkv->element_bytes);
    struct tdm_eager_value *sums = tdm_value_new(m, y->rows, 1, FP32);
    if (node != NULL)
        node->facts[0] = padded_heads;
    tdm_node_save(m, node, qkv);
    tdm_node_save(m, node, y);
    tdm_node_save(m, node, sums);
    tdm_drop(m, sums);
    return tdm_node_finish(m, node, y);
}

#define SUPERVISED_GROUP 8192u
#define SUPERVISED_UNIT 4096u

uint64_t tdm_shifted_group_tokens(const struct tdm_torch_settings *s)
{
    if (s->supervised && !s->materialized_groups && s->tokens % SUPERVISED_UNIT != 0)
        return SUPERVISED_GROUP;
    return s->tokens / (2u << s->groups);
}

/* A whole gradient for what was written to; the written half is taken out of it and rolled back;
 * its slice is a whole gradient again, and both are added. */
static void shift_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_edge *edge = &node->edges[0];
    results[0] = tdm_value_new(m, edge->rows, edge->columns, grads[0]->element_bytes);
    struct tdm_eager_value *half =
        tdm_value_new(m, edge->rows / HALVES, edge->columns, grads[0]->element_bytes);
    struct tdm_eager_value *rolled = tdm_value_like(m, half);
    tdm_drop(m, half);
    tdm_drop(m, tdm_value_like(m, results[0]));
    tdm_drop(m, rolled);
}

struct tdm_eager_value *tdm_shift_heads(struct tdm_eager *m, struct tdm_eager_value *x)
{
    static const struct tdm_eager_op op = {"CopySlices", false, shift_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    tdm_drop(m, tdm_value_new(m, x->rows / HALVES, x->columns, x->element_bytes));
    struct tdm_eager_value *y = tdm_value_view(m, x);
    y->swapped = x->swapped;
    tdm_node_finish(m, node, y);
    tdm_drop(m, x);
    return y;
}

struct tdm_eager_value *tdm_shifted_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              struct tdm_eager_value *q, struct tdm_eager_value *k,
                                              struct tdm_eager_value *v)
{
    uint64_t times = t->config->query_heads / t->config->kv_heads;
    bool full = t->settings.full_attention;
    uint64_t sequences = (full ? 1 : HALVES) * t->settings.batch;
    /* One group more where they are shifted: half of one is at each end. */
    uint64_t groups =
        full ? 1
             : tdm_size_ceil_div(t->settings.tokens, tdm_shifted_group_tokens(&t->settings)) + 1;
    uint64_t heads = t->config->query_heads / (full ? 1 : HALVES);
    struct tdm_eager_value *parts[STACKED] = {tdm_take(q), tdm_repeat(m, k, times),
                                              tdm_repeat(m, v, times)};
    struct tdm_eager_value *stacked = stack(m, parts);
    struct tdm_eager_value *mask = tdm_value_new(m, sequences * t->settings.tokens, 1, INT64);
    struct tdm_eager_value *packed = copied(m, stacked, NULL);
    struct tdm_eager_value *indices = tdm_value_new(m, sequences * t->settings.tokens, 1, INT64);
    struct tdm_eager_value *unpadded = copied(m, tdm_take(packed), indices);
    struct tdm_eager_value *output = flash(m, unpadded, sequences * groups * heads);
    struct tdm_eager_value *y = copied(m, tdm_take(output), indices); /* padded */
    if (!full)
        y = copied(m, y, NULL); /* joins the halves again */
    tdm_drop(m, output);
    tdm_drop(m, unpadded);
    tdm_drop(m, packed);
    tdm_drop(m, indices);
    tdm_drop(m, mask);
    for (unsigned i = 0; i < STACKED; i++)
        tdm_drop(m, parts[i]);
    return y;
}
