/* SPDX-License-Identifier: Apache-2.0 */
/* Team ops on the cpu backend: copies and sums. */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "executor/transport.h"

#include <string.h>

/* Elements that are summed at a time. */
enum { BLOCK = 4096 };

static enum tdm_status copy(struct tdm_executor *executor, const struct tdm_launch *launch,
                            void *to, const void *from, uint64_t bytes, struct tdm_error *err)
{
    (void)executor;
    (void)launch;
    (void)err;
    memcpy(to, from, bytes);
    return TDM_OK;
}

static enum tdm_status copy_rows(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 const struct tdm_row_copy *rows, struct tdm_error *err)
{
    (void)executor;
    (void)launch;
    (void)err;
    for (uint64_t row = 0; row < rows->rows; row++)
        memcpy((unsigned char *)rows->to + row * rows->to_stride_bytes,
               (const unsigned char *)rows->from + row * rows->from_stride_bytes, rows->row_bytes);
    return TDM_OK;
}

static enum tdm_status sum(struct tdm_executor *executor, const struct tdm_launch *launch,
                           const struct tdm_exchange *exchange, struct tdm_error *err)
{
    const void *shares[TDM_MAX_RANKS];
    const struct tdm_share_sum *due = &exchange->sum;
    const uint32_t count =
        tdm_exchange_shares(exchange, launch->program->rank, launch->program->ranks, shares);
    float total[BLOCK], row[BLOCK];
    (void)executor;
    (void)err;
    for (uint64_t at = 0; at < due->elements; at += BLOCK) {
        const uint64_t block = tdm_least(BLOCK, due->elements - at);
        tdm_load_row(shares[0], due->dtype, at, block, total);
        for (uint32_t share = 1; share < count; share++) {
            tdm_load_row(shares[share], due->dtype, at, block, row);
            for (uint64_t i = 0; i < block; i++)
                total[i] += row[i];
        }
        tdm_store_row(due->own, due->dtype, at, block, total);
    }
    return TDM_OK;
}

enum tdm_status tdm_cpu_team(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    static const struct tdm_team_verbs verbs = {.copy = copy, .copy_rows = copy_rows, .sum = sum};
    return tdm_team_run(&verbs, executor, launch, err);
}
