/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head and loss of a tile of tokens, forward and backward at once: logits, cross entropy, and the
 * gradients of the weights and of the normed rows, which these replace. TDM_OP_LOSS is the same
 * without gradients.
 */
#include "executor/cuda/cuda.h"

#include "schedule/layout.h"

uint64_t tdm_cuda_head_scratch(const struct tdm_model *model, uint64_t tokens)
{
    (void)model;
    return tokens * sizeof(double);
}

enum tdm_status tdm_cuda_run_head(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    const struct tdm_model *model = schedule->model;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *normed = &launch->operand[0], *tokens = &launch->operand[1];
    const struct tdm_operand *w = &launch->operand[2], *logits = &launch->operand[3];
    bool backward = op->kind == TDM_OP_HEAD;
    const struct tdm_operand *dw = &launch->operand[4], *loss = &launch->operand[backward ? 5 : 4];
    uint32_t unit = model->tied ? tdm_model_embedding_unit(model) : tdm_model_head_unit(model);
    const struct tdm_tensor *tensor =
        tdm_model_tensor(model, unit, model->tied ? TDM_ROLE_EMBEDDING : TDM_ROLE_HEAD);
    uint64_t hidden = model->hidden, vocabulary = model->vocabulary;
    const int32_t *targets =
        (const int32_t *)tokens->data + launch->program->chunks[op->chunk].tokens + op->first_row;
    double *losses = (double *)executor->scratch;
    double per_token = 1.0 / (double)tdm_schedule_trained_tokens(schedule);
    cudaStream_t stream = tdm_cuda_compute(executor);

    struct tdm_matrix rows = {tdm_operand_at(normed, op->first_row * hidden), normed->dtype, hidden,
                              false};
    struct tdm_matrix weight = {tdm_operand_at(w, tensor->offset), w->dtype, hidden, false};
    struct tdm_matrix tile = {logits->data, logits->dtype, vocabulary, false};
    struct tdm_matrix weight_transposed = weight, tile_transposed = tile;
    weight_transposed.transposed = tile_transposed.transposed = true;

    struct tdm_multiplication forward = {.m = op->tokens, .n = vocabulary, .c = tile, .terms = 1};
    forward.term[0].k = hidden;
    forward.term[0].a = rows;
    forward.term[0].b = weight_transposed;
    enum tdm_status status = tdm_cuda_multiply(executor->matmul, 1, &forward, stream, err);
    if (status == TDM_OK)
        status =
            tdm_cuda_cross_entropy(tdm_array_at(logits, 0), targets, op->tokens, model->vocabulary,
                                   per_token, backward, losses, executor->fault, stream, err);
    if (status == TDM_OK)
        status = tdm_cuda_sum_values(losses, op->tokens, per_token, loss->mode == TDM_ACCUMULATE,
                                     loss->data, stream, err);
    if (status != TDM_OK || !backward)
        return status;

    struct tdm_multiplication to_weight = {.m = vocabulary, .n = hidden, .terms = 1};
    to_weight.c = (struct tdm_matrix){tdm_operand_at(dw, tensor->offset), dw->dtype, hidden, false};
    to_weight.add = dw->mode == TDM_ACCUMULATE;
    to_weight.term[0].k = op->tokens;
    to_weight.term[0].a = tile_transposed;
    to_weight.term[0].b = rows;
    status = tdm_cuda_multiply(executor->matmul, 1, &to_weight, stream, err);
    if (status != TDM_OK)
        return status;

    struct tdm_multiplication to_rows = {.m = op->tokens, .n = hidden, .c = rows, .terms = 1};
    to_rows.term[0].k = vocabulary;
    to_rows.term[0].a = tile;
    to_rows.term[0].b = weight;
    return tdm_cuda_multiply(executor->matmul, 1, &to_rows, stream, err);
}
