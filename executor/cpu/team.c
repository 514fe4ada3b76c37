/* SPDX-License-Identifier: Apache-2.0 */
/* Team ops on the cpu backend: copies and sums. */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "executor/transport.h"

#include <stdlib.h>
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
    for (uint64_t i = 0; i < due->elements && due->dtype == TDM_DTYPE_FP64; i++) {
        double squares = ((const double *)shares[0])[i];
        for (uint32_t share = 1; share < count; share++)
            squares += ((const double *)shares[share])[i];
        ((double *)due->own)[i] = squares;
    }
    for (uint64_t at = 0; at < due->elements && due->dtype != TDM_DTYPE_FP64; at += BLOCK) {
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

static enum tdm_status here(const struct tdm_executor *executor, struct tdm_error *err)
{
    (void)executor;
    (void)err;
    return TDM_OK;
}

static void *stream(const struct tdm_executor *executor, enum tdm_lane lane)
{
    (void)executor;
    (void)lane;
    return NULL;
}

static enum tdm_status take(struct tdm_executor *executor, uint64_t bytes, void **memory,
                            struct tdm_error *err)
{
    void *taken = malloc(bytes + 1);
    (void)executor;
    if (taken == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for what other ranks send");
    *memory = taken;
    return TDM_OK;
}

static void give_back(struct tdm_executor *executor, void *memory)
{
    (void)executor;
    free(memory);
}

static enum tdm_status drain(struct tdm_executor *executor, struct tdm_error *err)
{
    (void)executor;
    (void)err;
    return TDM_OK;
}

const struct tdm_team_verbs tdm_cpu_team_verbs = {.copy = copy,
                                                  .copy_rows = copy_rows,
                                                  .sum = sum,
                                                  .here = here,
                                                  .stream = stream,
                                                  .take = take,
                                                  .give_back = give_back,
                                                  .drain = drain};

enum tdm_status tdm_cpu_team(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    return tdm_team_run(&tdm_cpu_team_verbs, executor, launch, err);
}
