/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OOMB's tensor parallelism (chunkoptim/modifiers/train_blockwise_tp.py,
 * train_blockwise_tp_sparse.py). Every rank loads the whole model; then each projection of the
 * layers and the head are replaced by copies of this rank's part: `ColumnParallelLinear` of q, k,
 * v, gate, up and the head, `RowParallelLinear` of o and down. Embedding and norms stay whole, and
 * tied weights become two. A rank has its part of the heads and their pages. What row-parallel
 * products make is all-reduced in place. Logits of all ranks are gathered, and the loss is that of
 * all words on every rank.
 */
#include "methods/chunk/parts.h"

#include "base/size.h"
#include "methods/eager/ops.h"

void tdm_chunk_rank_model(const struct tdm_model *whole, uint64_t ranks, struct tdm_model *rank)
{
    *rank = *whole; /* its tables are borrowed */
    rank->query_heads /= (uint32_t)ranks;
    rank->kv_heads /= (uint32_t)ranks;
}

/* Replaces a parameter by a new one, or adds it if the old one stays. */
static void replace(struct tdm_chunk_run *run, struct tdm_eager_value **place, uint64_t rows,
                    uint64_t columns, bool stays)
{
    struct tdm_torch_model *t = run->model;
    struct tdm_eager_value *old = *place;
    uint32_t i = 0;
    if (old == NULL)
        return;
    while (i < t->parameter_count && (stays || t->parameters[i] != old))
        i++;
    run->m->label = old->storage->label;
    *place = tdm_value_leaf(run->m, rows, columns, old->element_bytes, old->requires_grad);
    (*place)->module = old->module;
    t->parameters[i] = *place;
    if (stays)
        t->parameter_count++;
    else
        tdm_drop(run->m, old);
}

void tdm_chunk_divide(struct tdm_chunk_run *run)
{
    static const enum tdm_projection divided[] = {
        TDM_PROJECTION_Q,    TDM_PROJECTION_K,  TDM_PROJECTION_V,   TDM_PROJECTION_O,
        TDM_PROJECTION_GATE, TDM_PROJECTION_UP, TDM_PROJECTION_DOWN};
    struct tdm_torch_model *t = run->model;
    struct tdm_label label = run->m->label;
    uint64_t ranks = run->settings->torch.ranks;
    if (ranks == 1)
        return;
    run->m->category = TDM_METHOD_WEIGHTS;
    for (uint32_t l = 0; l < run->config->layers; l++)
        for (unsigned i = 0; i < sizeof(divided) / sizeof(divided[0]); i++) {
            enum tdm_projection p = divided[i];
            struct tdm_eager_value **weight = &t->layers[l].weight[p],
                                   **bias = &t->layers[l].bias[p];
            bool by_rows = p != TDM_PROJECTION_O && p != TDM_PROJECTION_DOWN;
            if (*weight == NULL)
                continue;
            replace(run, weight, (*weight)->rows / (by_rows ? ranks : 1),
                    (*weight)->columns / (by_rows ? 1 : ranks), false);
            if (*bias != NULL)
                replace(run, bias, (*bias)->rows / (by_rows ? ranks : 1), (*bias)->columns, false);
        }
    /* The dense program leaves out the last words if ranks do not divide them, the sparse one has
     * a last part that is smaller. */
    uint64_t words = t->head->rows;
    replace(run, &t->head,
            run->settings->chunk.budget > 0 ? tdm_size_ceil_div(words, ranks) : words / ranks,
            t->head->columns, t->head == t->embedding);
    run->m->category = TDM_METHOD_WORKSPACE;
    run->m->label = label;
}

static void gather_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    results[0] = tdm_value_view(m, grads[0]); /* grad_output[..., start:end] */
    results[0]->rows = node->edges[0].rows;
    results[0]->columns = node->edges[0].columns;
}

/* `_AllGather`: torch's all_gather of a list gathers into one buffer, copies from it to the list's
 * tensors (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp `allgather`), and these are joined. */
struct tdm_eager_value *tdm_chunk_gather_logits(struct tdm_chunk_run *run,
                                                struct tdm_eager_value *logits)
{
    static const struct tdm_eager_op op = {"_AllGatherBackward", false, gather_backward};
    struct tdm_eager *m = run->m;
    uint64_t ranks = run->settings->torch.ranks;
    if (ranks == 1)
        return logits;
    struct tdm_node *node = tdm_node_new(m, &op, &logits, 1);
    struct tdm_eager_value *parts[TDM_CHUNK_RANKS];
    for (uint64_t r = 0; r < ranks; r++)
        parts[r] = tdm_value_like(m, logits);
    struct tdm_eager_value *flat =
        tdm_value_new(m, ranks * logits->rows, logits->columns, logits->element_bytes);
    tdm_drop(m, flat);
    struct tdm_eager_value *all =
        tdm_value_new(m, logits->rows, ranks * logits->columns, logits->element_bytes);
    for (uint64_t r = 0; r < ranks; r++)
        tdm_drop(m, parts[r]);
    tdm_node_finish(m, node, all);
    tdm_drop(m, logits);
    return all;
}
