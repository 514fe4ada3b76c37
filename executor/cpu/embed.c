/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embedding: copies a row of the table for every token, and adds the gradient to the table. One
 * task owns a block of a gradient row: it adds the rows of all equal tokens and writes it once.
 */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "ops/embed.h"

#include <string.h>

enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 256 }; /* of a task of the gradient */

struct embed {
    const struct tdm_launch *launch;
    const int32_t *tokens;
    const struct tdm_tensor *table;
};

static struct embed embed_begin(const struct tdm_launch *launch)
{
    return (struct embed){.launch = launch,
                          .tokens = launch->operand[TDM_EMBED_TOKENS].data,
                          .table = tdm_launch_tensors(launch).matrix[0]};
}

enum tdm_status tdm_cpu_check_tokens(const struct tdm_launch *launch, const int32_t *tokens,
                                     uint64_t count, struct tdm_error *err)
{
    uint32_t vocabulary = tdm_launch_params(launch)->embed.vocabulary;
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
    const struct tdm_operand *w = &x->launch->operand[TDM_EMBED_WEIGHTS],
                             *out = &x->launch->operand[TDM_EMBED_OUT];
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
    struct embed x = embed_begin(launch);
    enum tdm_status status = tdm_cpu_check_tokens(launch, x.tokens, launch->op->tokens, err);
    if (status == TDM_OK)
        tdm_cpu_for(executor, (launch->op->tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS, embed_task,
                    &x);
    return status;
}

/* A task of the gradient: a block of columns of the table rows whose tokens first occur in a block
 * of the sorted order. Rows of DX are added in the order of the chunk. */
static void embed_grad_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct embed *x = context;
    const struct tdm_operand *dx = &x->launch->operand[TDM_EMBED_GRAD_DOUT],
                             *table = &x->launch->operand[TDM_EMBED_GRAD_DWEIGHTS];
    const int32_t *order = x->launch->operand[TDM_EMBED_GRAD_ORDER].data, *tokens = x->tokens;
    uint64_t columns = x->table->columns, count = x->launch->op->tokens;
    uint64_t blocks = (columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    uint64_t first = index % blocks * BLOCK_COLUMNS,
             width = tdm_least(BLOCK_COLUMNS, columns - first);
    uint64_t begin = index / blocks * BLOCK_ROWS, end = tdm_least(count, begin + BLOCK_ROWS);
    float sum[BLOCK_COLUMNS], scratch[BLOCK_COLUMNS];
    (void)thread_scratch;
    for (uint64_t i = begin; i < end; i++) {
        int32_t token = tokens[order[i]];
        if (i > 0 && tokens[order[i - 1]] == token)
            continue; /* it belongs to a run that began earlier */
        uint64_t at = x->table->offset + (uint64_t)token * columns + first;
        tdm_load_row(table->data, table->dtype, at, width, sum);
        for (uint64_t j = i; j < count && tokens[order[j]] == token; j++) {
            const float *d = tdm_view_row(dx->data, dx->dtype, (uint64_t)order[j] * columns + first,
                                          width, scratch);
            TDM_SIMD
            for (uint64_t c = 0; c < width; c++)
                sum[c] += d[c];
        }
        tdm_store_row(table->data, table->dtype, at, width, sum);
    }
}

enum tdm_status tdm_cpu_embed_grad(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    struct embed x = embed_begin(launch);
    uint64_t blocks = (x.table->columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    (void)err; /* the sort has checked the tokens */
    tdm_cpu_for(executor, (launch->op->tokens + BLOCK_ROWS - 1) / BLOCK_ROWS * blocks,
                embed_grad_task, &x);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_embed_scratch(const struct tdm_cpu_shape *shape)
{
    return (struct tdm_cpu_scratch){.thread_bytes = shape->params->embed.hidden * sizeof(float)};
}
