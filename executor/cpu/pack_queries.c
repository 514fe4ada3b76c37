/* SPDX-License-Identifier: Apache-2.0 */
/* Packs the queries of a chunk for other ranks: Q, dO and LSE as they are, and D = rowsum(dO * O)
 * as the gradient of attention computes it. */
#include "executor/cpu/attention.h"

#include "executor/convert.h"
#include "ops/attention.h"

#include <string.h>

static void pack_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct tdm_launch *launch = context;
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_operand *q = &launch->operand[TDM_PACK_QUERIES_Q],
                             *out = &launch->operand[TDM_PACK_QUERIES_O],
                             *d_out = &launch->operand[TDM_PACK_QUERIES_DO];
    const uint64_t heads = params->attention.query_heads, dim = params->pages.head_dim;
    const uint64_t width = heads * dim, tokens = launch->op->tokens;
    const uint64_t begin = index * TDM_TASK_ROWS, end = tdm_least(tokens, begin + TDM_TASK_ROWS);
    const struct tdm_queries_at at = tdm_queries_at(tokens * width, tokens * heads, q->dtype);
    const uint64_t row_bytes = width * tdm_dtype_bytes(q->dtype), first = begin * row_bytes;
    unsigned char *to = launch->operand[TDM_PACK_QUERIES_OUT].data, *scratch = thread_scratch;
    const void *from_lse =
        (const unsigned char *)out->data + tdm_lse_bytes_at(tokens * width, out->dtype);
    const float *lse = from_lse;
    void *to_lse = to + at.lse, *to_dots = to + at.dots;
    float *packed_lse = to_lse, *dots = to_dots;
    float *o_row = tdm_cpu_take(&scratch, width, sizeof(float));
    float *d_row = tdm_cpu_take(&scratch, width, sizeof(float));

    memcpy(to + first, (const unsigned char *)q->data + first, (end - begin) * row_bytes);
    memcpy(to + at.d_out + first, (const unsigned char *)d_out->data + first,
           (end - begin) * row_bytes);
    memcpy(packed_lse + begin * heads, lse + begin * heads, (end - begin) * heads * sizeof(float));
    for (uint64_t t = begin; t < end; t++) {
        const float *o = tdm_view_row(out->data, out->dtype, t * width, width, o_row);
        const float *d = tdm_view_row(d_out->data, d_out->dtype, t * width, width, d_row);
        for (uint64_t head = 0; head < heads; head++)
            dots[t * heads + head] = tdm_cpu_dot(d + head * dim, o + head * dim, dim);
    }
}

enum tdm_status tdm_cpu_pack_queries(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     struct tdm_error *err)
{
    (void)err;
    tdm_cpu_for(executor, (launch->op->tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS, pack_task,
                (void *)launch);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_pack_queries_scratch(const struct tdm_cpu_shape *shape)
{
    return tdm_cpu_merge_scratch(shape); /* two rows too */
}
