/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding: a row of the table for every token, and the gradient added back to the table. */
#include "executor/cpu/cpu.h"

#include "executor/cpu/convert.h"

#include <string.h>

enum { BLOCK_COLUMNS = 64 }; /* of a task of the gradient */

struct embed {
    const struct tdm_launch *launch;
    const int32_t *tokens;
    const struct tdm_tensor *table;
};

static enum tdm_status embed_begin(const struct tdm_launch *launch, struct embed *x,
                                   struct tdm_error *err)
{
    const struct tdm_model *model = launch->program->schedule->model;
    *x = (struct embed){
        .launch = launch,
        .tokens = launch->operand[0].data,
        .table = tdm_model_tensor(model, tdm_model_embedding_unit(model), TDM_ROLE_EMBEDDING)};
    return tdm_cpu_check_tokens(launch, x->tokens, launch->op->tokens, err);
}

enum tdm_status tdm_cpu_check_tokens(const struct tdm_launch *launch, const int32_t *tokens,
                                     uint64_t count, struct tdm_error *err)
{
    uint32_t vocabulary = launch->program->schedule->model->vocabulary;
    for (uint64_t t = 0; t < count; t++)
        if (tokens[t] < 0 || (uint32_t)tokens[t] >= vocabulary)
            return tdm_fail(err, TDM_INPUT,
                            "token %d, row %llu of chunk %u, is not in the vocabulary of %u",
                            (int)tokens[t], (unsigned long long)t, launch->op->chunk, vocabulary);
    return TDM_OK;
}

static void embed_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct embed *x = context;
    const struct tdm_operand *w = &x->launch->operand[1], *out = &x->launch->operand[2];
    uint64_t columns = x->table->columns, row_bytes = columns * tdm_dtype_bytes(w->dtype);
    uint64_t end = tdm_least(x->launch->op->tokens, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        uint64_t from = x->table->offset + (uint64_t)x->tokens[t] * columns;
        if (w->dtype == out->dtype) {
            memcpy(tdm_operand_at(out, t * columns), tdm_operand_at(w, from), row_bytes);
        } else {
            const float *row = tdm_view_row(w->data, w->dtype, from, columns, thread_scratch);
            tdm_store_row(out->data, out->dtype, t * columns, columns, row);
        }
    }
}

enum tdm_status tdm_cpu_embed(struct tdm_executor *executor, const struct tdm_launch *launch,
                              struct tdm_error *err)
{
    struct embed x;
    enum tdm_status status = embed_begin(launch, &x, err);
    if (status == TDM_OK)
        tdm_cpu_for(executor, (launch->op->tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS, embed_task,
                    &x);
    return status;
}

/* A block of columns of the table: rows are added in the order of the tokens. */
static void embed_grad_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct embed *x = context;
    const struct tdm_operand *dx = &x->launch->operand[1], *table = &x->launch->operand[2];
    uint64_t columns = x->table->columns, first = index * BLOCK_COLUMNS;
    uint64_t count = tdm_least(BLOCK_COLUMNS, columns - first);
    float row[BLOCK_COLUMNS], scratch[BLOCK_COLUMNS];
    (void)thread_scratch;
    if (table->mode == TDM_WRITE)
        for (uint64_t i = 0; i < x->table->rows; i++)
            memset(tdm_operand_at(table, x->table->offset + i * columns + first), 0,
                   count * tdm_dtype_bytes(table->dtype));
    for (uint64_t t = 0; t < x->launch->op->tokens; t++) {
        const float *d = tdm_view_row(dx->data, dx->dtype, t * columns + first, count, row);
        tdm_add_row(table->data, table->dtype,
                    x->table->offset + (uint64_t)x->tokens[t] * columns + first, count, d, scratch);
    }
}

enum tdm_status tdm_cpu_embed_grad(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    struct embed x;
    enum tdm_status status = embed_begin(launch, &x, err);
    if (status == TDM_OK)
        tdm_cpu_for(executor, (x.table->columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS,
                    embed_grad_task, &x);
    return status;
}

struct tdm_cpu_scratch tdm_embed_scratch(const struct tdm_cpu_shape *shape)
{
    return (struct tdm_cpu_scratch){.thread_bytes = shape->model->hidden * sizeof(float)};
}
