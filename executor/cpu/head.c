/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head and loss of a tile of tokens, forward and backward at once: logits, cross entropy, and
 * the gradients of the weights and of the normed rows, which these replace. No more of the logits
 * exists than a tile. The loss is the mean over the tokens of the step that have a target, so every
 * gradient is divided by their number; a target of -1 is none. TDM_OP_LOSS is the same without
 * gradients.
 */
#include "executor/cpu/multiply.h"

#include "executor/cpu/convert.h"
#include "executor/cpu/exp.h"
#include "schedule/layout.h"

#include <math.h>
#include <string.h>

enum { TASK_ROWS = 4, BLOCK = 1024, LANES = 16 }; /* rows of a task, columns at a time */

struct head {
    const struct tdm_launch *launch;
    const int32_t *targets; /* of the tile */
    uint64_t vocabulary;
    double per_token; /* 1 / tokens of the step that have a target */
    double *losses;   /* [rows of the tile] */
    bool backward;    /* logits become their gradients */
};

static float largest(const float *x, uint64_t count, float most)
{
    float lane[LANES];
    uint64_t i = 0;
    for (int j = 0; j < LANES; j++)
        lane[j] = most;
    for (; i + LANES <= count; i += LANES) {
        TDM_SIMD
        for (int j = 0; j < LANES; j++)
            lane[j] = tdm_choose(x[i + j] > lane[j], x[i + j], lane[j]);
    }
    for (; i < count; i++)
        most = x[i] > most ? x[i] : most;
    for (int j = 0; j < LANES; j++)
        most = lane[j] > most ? lane[j] : most;
    return most;
}

/* Sum of exp(x - most), in lanes of double so that it has one order. */
static double sum_exp(const float *x, uint64_t count, float most)
{
    double lane[LANES] = {0}, sum = 0;
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        TDM_SIMD
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)tdm_exp(x[i + j] - most);
    }
    for (; i < count; i++)
        sum += (double)tdm_exp(x[i] - most);
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

/* The largest logit of a row, then the sum of exp(logit - most). */
static float row_most(const struct tdm_operand *logits, uint64_t row, uint64_t vocabulary)
{
    float most = -INFINITY, block[BLOCK];
    for (uint64_t c = 0; c < vocabulary; c += BLOCK) {
        uint64_t count = tdm_least(BLOCK, vocabulary - c);
        most =
            largest(tdm_view_row(logits->data, logits->dtype, row + c, count, block), count, most);
    }
    return most;
}

static double row_sum(const struct tdm_operand *logits, uint64_t row, uint64_t vocabulary,
                      float most)
{
    double sum = 0;
    float block[BLOCK];
    for (uint64_t c = 0; c < vocabulary; c += BLOCK) {
        uint64_t count = tdm_least(BLOCK, vocabulary - c);
        sum +=
            sum_exp(tdm_view_row(logits->data, logits->dtype, row + c, count, block), count, most);
    }
    return sum;
}

/* Rows of logits become their gradients; the loss of each is noted. */
static void softmax_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct head *x = context;
    const struct tdm_operand *logits = &x->launch->operand[3];
    float block[BLOCK], at_target;
    (void)thread_scratch;
    uint64_t end = tdm_least(x->launch->op->tokens, (index + 1) * TASK_ROWS);
    for (uint64_t t = index * TASK_ROWS; t < end; t++) {
        uint64_t row = t * x->vocabulary, target = (uint64_t)x->targets[t];
        if (x->targets[t] < 0) {
            memset(tdm_operand_at(logits, row), 0, x->vocabulary * tdm_dtype_bytes(logits->dtype));
            x->losses[t] = 0;
            continue;
        }
        tdm_load_row(logits->data, logits->dtype, row + target, 1, &at_target);
        float most = row_most(logits, row, x->vocabulary);
        double sum = row_sum(logits, row, x->vocabulary, most);
        double lse = (double)most + log(sum);
        x->losses[t] = lse - (double)at_target;
        if (!x->backward)
            continue;
        float scale = (float)(x->per_token / sum);
        /* p - 1 without cancellation where p is nearly 1 */
        float d_target = (float)(expm1((double)at_target - lse) * x->per_token);
        for (uint64_t c = 0; c < x->vocabulary; c += BLOCK) {
            uint64_t count = tdm_least(BLOCK, x->vocabulary - c);
            tdm_load_row(logits->data, logits->dtype, row + c, count, block);
            TDM_SIMD
            for (uint64_t j = 0; j < count; j++)
                block[j] = tdm_exp(block[j] - most) * scale;
            tdm_store_row(logits->data, logits->dtype, row + c, count, block);
        }
        tdm_store_row(logits->data, logits->dtype, row + target, 1, &d_target);
    }
}

/* A token has a target unless it ends a document of which the sequence has the end. */
static enum tdm_status check_targets(const struct tdm_launch *launch, const int32_t *targets,
                                     struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    const struct tdm_chunk *chunk = &launch->program->chunks[op->chunk];
    const struct tdm_sequence *sequence = &launch->program->schedule->sequences[chunk->sequence];
    enum tdm_status status = TDM_OK;
    for (uint64_t t = 0; t < op->tokens && status == TDM_OK; t++) {
        uint64_t token = chunk->first_token + op->first_row + t;
        if (tdm_sequence_trains(sequence, token))
            status = tdm_cpu_check_tokens(launch, &targets[t], 1, err);
        else if (targets[t] != TDM_NO_TARGET)
            status = tdm_fail(err, TDM_INPUT,
                              "token %llu of sequence %u ends a document and has target %d; %d is "
                              "due",
                              (unsigned long long)token, chunk->sequence, (int)targets[t],
                              TDM_NO_TARGET);
    }
    return status;
}

enum tdm_status tdm_cpu_head(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    const struct tdm_model *model = launch->program->schedule->model;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *normed = &launch->operand[0], *tokens = &launch->operand[1];
    const struct tdm_operand *w = &launch->operand[2], *logits = &launch->operand[3];
    bool backward = op->kind == TDM_OP_HEAD;
    const struct tdm_operand *dw = &launch->operand[4], *loss = &launch->operand[backward ? 5 : 4];
    uint32_t unit = model->tied ? tdm_model_embedding_unit(model) : tdm_model_head_unit(model);
    const struct tdm_tensor *tensor =
        tdm_model_tensor(model, unit, model->tied ? TDM_ROLE_EMBEDDING : TDM_ROLE_HEAD);
    uint64_t hidden = model->hidden, vocabulary = model->vocabulary;
    uint64_t chunk_tokens = launch->program->chunks[op->chunk].tokens;

    unsigned char *scratch = executor->shared_scratch;
    struct head x = {
        .launch = launch,
        .targets = (const int32_t *)tokens->data + chunk_tokens + op->first_row,
        .vocabulary = vocabulary,
        .per_token = 1.0 / (double)tdm_schedule_trained_tokens(launch->program->schedule),
        .losses = tdm_cpu_take(&scratch, op->tokens, sizeof(double)),
        .backward = backward,
    };
    enum tdm_status status = check_targets(launch, x.targets, err);
    if (status != TDM_OK)
        return status;

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
    tdm_multiply(executor, 1, &forward);

    tdm_cpu_for(executor, (op->tokens + TASK_ROWS - 1) / TASK_ROWS, softmax_task, &x);
    double sum = 0;
    for (uint64_t t = 0; t < op->tokens; t++)
        sum += x.losses[t];
    double *total = loss->data;
    *total = (loss->mode == TDM_ACCUMULATE ? *total : 0.0) + sum * x.per_token;
    if (!backward)
        return TDM_OK;

    struct tdm_multiplication to_weight = {.m = vocabulary, .n = hidden, .terms = 1};
    to_weight.c = (struct tdm_matrix){tdm_operand_at(dw, tensor->offset), dw->dtype, hidden, false};
    to_weight.add = dw->mode == TDM_ACCUMULATE;
    to_weight.term[0].k = op->tokens;
    to_weight.term[0].a = tile_transposed;
    to_weight.term[0].b = rows;
    tdm_multiply(executor, 1, &to_weight);

    struct tdm_multiplication to_rows = {.m = op->tokens, .n = hidden, .c = rows, .terms = 1};
    to_rows.term[0].k = vocabulary;
    to_rows.term[0].a = tile;
    to_rows.term[0].b = weight;
    tdm_multiply(executor, 1, &to_rows);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_head_scratch(const struct tdm_cpu_shape *shape)
{
    return (struct tdm_cpu_scratch){.shared_bytes = shape->chunk_tokens * sizeof(double) + 64};
}
