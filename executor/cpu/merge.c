/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges parts of attention over disjoint keys. With the outputs O, O' of a row and their LSEs L,
 * L' (FlashAttention-2, arXiv 2307.08691, section 3.1):
 *
 *     L'' = log(exp(L) + exp(L')),  O'' = exp(L - L'') O + exp(L' - L'') O'
 *
 * Parts of dQ are added. What there is so far is kept in fp32.
 */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "executor/simd.h"
#include "ops/attention.h"

#include <math.h>

struct merge {
    const struct tdm_launch *launch;
    uint64_t heads, dim;
    bool outputs; /* else dQ */
    bool opens;   /* the first part */
};

/* Where the LSEs of an output are, [tokens, heads]. */
static float *lse_of(const struct merge *x, const struct tdm_operand *out)
{
    const uint64_t elements = x->launch->op->tokens * x->heads * x->dim;
    void *lse = (unsigned char *)out->data + tdm_lse_bytes_at(elements, out->dtype);
    return lse;
}

/* The shares of what there was and of the part in a row of one head; changes its LSE. */
static void share_row(float *lse, float of_part, float *was, float *part)
{
    const float most = *lse > of_part ? *lse : of_part;
    const float a = expf(*lse - most), b = expf(of_part - most);
    *was = a / (a + b);
    *part = b / (a + b);
    *lse = most + logf(a + b);
}

static void merge_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct merge *x = context;
    const struct tdm_operand *from = &x->launch->operand[TDM_MERGE_PART],
                             *sum = &x->launch->operand[TDM_MERGE_SUM],
                             *out = &x->launch->operand[TDM_MERGE_OUT];
    const uint64_t width = x->heads * x->dim;
    const bool reads = sum->mode == TDM_READ; /* the last part: the sum itself is not needed more */
    unsigned char *scratch = thread_scratch;
    float *part_row = tdm_cpu_take(&scratch, width, sizeof(float));
    float *merged = tdm_cpu_take(&scratch, width, sizeof(float));
    const uint64_t end = tdm_least(x->launch->op->tokens, (index + 1) * TDM_TASK_ROWS);
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++) {
        const float *part = tdm_view_row(from->data, from->dtype, t * width, width, part_row);
        float *so_far = (float *)sum->data + t * width, *to = reads ? merged : so_far;
        for (uint64_t head = 0; head < x->heads; head++) {
            const uint64_t row = t * x->heads + head, at = head * x->dim;
            float was = x->opens ? 0.0f : 1.0f, of_part = 1.0f;
            if (x->outputs) {
                float lse = x->opens ? 0.0f : lse_of(x, sum)[row];
                if (x->opens)
                    lse = lse_of(x, from)[row];
                else
                    share_row(&lse, lse_of(x, from)[row], &was, &of_part);
                lse_of(x, reads ? out : sum)[row] = lse;
            }
            for (uint64_t i = at; i < at + x->dim && x->opens; i++)
                to[i] = part[i];
            TDM_SIMD
            for (uint64_t i = x->opens ? at + x->dim : at; i < at + x->dim; i++)
                to[i] = was * so_far[i] + of_part * part[i];
        }
        if (reads)
            tdm_store_row(out->data, out->dtype, t * width, width, merged);
    }
}

enum tdm_status tdm_cpu_merge(struct tdm_executor *executor, const struct tdm_launch *launch,
                              struct tdm_error *err)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct merge x = {
        .launch = launch,
        .heads = params->attention.query_heads,
        .dim = params->pages.head_dim,
        .outputs = launch->op->access[TDM_MERGE_PART].after.content == TDM_OUT_PART,
        .opens = launch->operand[TDM_MERGE_SUM].mode == TDM_WRITE,
    };
    (void)err;
    tdm_cpu_for(executor, (launch->op->tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS, merge_task,
                (void *)&x);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_merge_scratch(const struct tdm_cpu_shape *shape)
{
    const uint64_t width =
        (uint64_t)shape->params->attention.query_heads * shape->params->pages.head_dim;
    unsigned char *thread = NULL;
    tdm_cpu_take(&thread, width, sizeof(float));
    tdm_cpu_take(&thread, width, sizeof(float));
    return (struct tdm_cpu_scratch){.thread_bytes = (uintptr_t)thread};
}
