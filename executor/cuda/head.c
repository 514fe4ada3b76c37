/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head and loss of a tile of tokens, forward and backward at once: logits, cross entropy, and
 * the gradients of the weights and of the normed rows, which replace the rows. TDM_OP_LOSS is the
 * same without gradients. If a tile has only a part of the vocabulary, TDM_OP_LOSS adds up the sums
 * of its rows. TDM_OP_HEAD_GRAD takes these sums and adds up the gradients of the rows in fp32.
 */
#include "executor/cuda/cuda.h"

#include "ops/head.h"
#include "schedule/layout.h"

/* The matrices of a tile: rows [tokens, hidden], entries of the weight [entries, hidden],
 * logits. */
struct products {
    struct tdm_matrix rows, weight, logits;
};

static struct tdm_matrix transposed(struct tdm_matrix matrix)
{
    matrix.transposed = true;
    return matrix;
}

static enum tdm_status multiply(struct tdm_executor *executor, uint64_t m, uint64_t n, uint64_t k,
                                struct tdm_matrix a, struct tdm_matrix b, bool add,
                                struct tdm_matrix c, struct tdm_error *err)
{
    struct tdm_multiplication product = {.m = m, .n = n, .c = c, .add = add, .terms = 1};
    product.term[0].k = k;
    product.term[0].a = a;
    product.term[0].b = b;
    return tdm_cuda_multiply(executor->matmul, 1, &product, tdm_cuda_compute(executor), err);
}

/* Computes the gradient of the rows: at once, or summed over the tiles of the vocabulary and then
 * stored. */
static enum tdm_status rows_gradient(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     const struct products *p, struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    uint64_t hidden = tdm_launch_params(launch)->head.hidden;
    if (op->kind == TDM_OP_HEAD)
        return multiply(executor, op->tokens, hidden, op->entries, p->logits, p->weight, false,
                        p->rows, err);
    const struct tdm_operand *sum = &launch->operand[TDM_HEAD_GRAD_SUM];
    struct tdm_matrix to = {sum->data, sum->dtype, hidden, false};
    enum tdm_status status = multiply(executor, op->tokens, hidden, op->entries, p->logits,
                                      p->weight, sum->mode == TDM_ACCUMULATE, to, err);
    if (status != TDM_OK || launch->operand[TDM_HEAD_ROWS].mode != TDM_ACCUMULATE)
        return status;
    return tdm_cuda_store(sum->data, op->tokens * hidden,
                          (struct tdm_array){p->rows.data, p->rows.dtype},
                          tdm_cuda_compute(executor), err);
}

static struct tdm_cross_entropy cross_entropy_of(const struct tdm_executor *executor,
                                                 const struct tdm_launch *launch)
{
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *sums =
        &launch->operand[op->kind == TDM_OP_LOSS ? TDM_LOSS_LSE : TDM_HEAD_GRAD_LSE];
    return (struct tdm_cross_entropy){
        .logits = tdm_array_at(&launch->operand[TDM_HEAD_LOGITS], 0),
        .targets = (const int32_t *)launch->operand[TDM_HEAD_TOKENS].data +
                   launch->program->chunks[op->chunk].tokens + op->first_row,
        .rows = op->tokens,
        .first_entry = op->first_entry,
        .entries = op->entries,
        .vocabulary = tdm_launch_params(launch)->head.vocabulary,
        .per_token = 1.0 / (double)tdm_launch_trained_tokens(launch),
        .sums = op->kind == TDM_OP_HEAD ? NULL : sums->data,
        .sums_are_there = op->kind == TDM_OP_HEAD_GRAD,
        .adds = op->kind == TDM_OP_LOSS && sums->data != NULL && sums->mode == TDM_ACCUMULATE,
        .backward = op->kind != TDM_OP_LOSS,
        .losses = executor->scratch,
        .fault = executor->fault,
    };
}

enum tdm_status tdm_cuda_run_head(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *normed = &launch->operand[TDM_HEAD_ROWS],
                             *w = &launch->operand[TDM_HEAD_WEIGHTS];
    const struct tdm_operand *logits = &launch->operand[TDM_HEAD_LOGITS],
                             *dw = &launch->operand[TDM_HEAD_DWEIGHTS];
    const struct tdm_operand *loss = &launch->operand[TDM_HEAD_LOSS];
    uint64_t hidden = tdm_launch_params(launch)->head.hidden;
    uint64_t at = tdm_launch_tensors(launch).matrix[0]->offset + op->first_entry * hidden;
    struct tdm_cross_entropy x = cross_entropy_of(executor, launch);
    struct products p = {
        {tdm_operand_at(normed, op->first_row * hidden), normed->dtype, hidden, false},
        {tdm_operand_at(w, at), w->dtype, hidden, false},
        {logits->data, logits->dtype, op->entries, false}};

    enum tdm_status status = multiply(executor, op->tokens, op->entries, hidden, p.rows,
                                      transposed(p.weight), false, p.logits, err);
    if (status == TDM_OK)
        status = tdm_cuda_cross_entropy(&x, tdm_cuda_compute(executor), err);
    if (status == TDM_OK && op->kind != TDM_OP_HEAD_GRAD && loss->data != NULL)
        status =
            tdm_cuda_sum_values(x.losses, op->tokens, x.per_token, loss->mode == TDM_ACCUMULATE,
                                loss->data, tdm_cuda_compute(executor), err);
    if (status != TDM_OK || !x.backward)
        return status;

    struct tdm_matrix to_weight = {tdm_operand_at(dw, at), dw->dtype, hidden, false};
    bool add =
        op->kind == TDM_OP_HEAD ? dw->mode == TDM_ACCUMULATE : !tdm_head_opens(launch->program, op);
    status = multiply(executor, op->entries, hidden, op->tokens, transposed(p.logits), p.rows, add,
                      to_weight, err);
    return status == TDM_OK ? rows_gradient(executor, launch, &p, err) : status;
}
