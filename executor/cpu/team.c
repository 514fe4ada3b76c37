/* SPDX-License-Identifier: Apache-2.0 */
/* Team ops between ranks that are threads of one process: each reads the others' arenas. */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "executor/shares.h"
#include "executor/team.h"
#include "ops/team.h"
#include "schedule/slices.h"

#include <string.h>

/* Elements that are summed at a time. */
enum { BLOCK = 4096 };

/* Copies the own chunks of all other ranks. */
static void copy_others(const struct tdm_launch *launch)
{
    for (uint32_t rank = 0; rank < launch->program->ranks; rank++) {
        const struct tdm_launch *other = tdm_team_shown(launch->team, rank);
        const struct tdm_access *own = &other->op->access[TDM_GATHER_OWN];
        if (rank == launch->program->rank || own->buffer == TDM_NONE)
            continue;
        void *to = tdm_share_of_chunk(launch, own->after.chunk);
        if (to != NULL)
            memcpy(to, other->operand[TDM_GATHER_OWN].data,
                   tdm_share_chunk_bytes(launch, TDM_KVPAGES, own->after.chunk));
    }
}

enum tdm_status tdm_cpu_gather_round(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     struct tdm_error *err)
{
    enum tdm_status status = tdm_team_enter(launch->team, launch, executor, err);
    if (status != TDM_OK)
        return status;
    copy_others(launch);
    return tdm_team_meet(launch->team, launch->program->rank, err);
}

/* Sums a range of the shares of all ranks, in rank order in fp32, into `out`. A share may be NULL:
 * the rank has none. */
static void sum_shares(const unsigned char *const *shares, uint32_t ranks, enum tdm_dtype dtype,
                       struct tdm_range range, unsigned char *out)
{
    float sum[BLOCK], row[BLOCK];
    for (uint64_t at = 0; at < range.count; at += BLOCK) {
        uint64_t block = tdm_least(BLOCK, range.count - at);
        bool begun = false;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            if (shares[rank] == NULL)
                continue;
            tdm_load_row(shares[rank], dtype, range.first + at, block, row);
            for (uint64_t i = 0; i < block; i++)
                sum[i] = begun ? sum[i] + row[i] : row[i];
            begun = true;
        }
        tdm_store_row(out, dtype, range.first + at, block, sum);
    }
}

/* Only the owner of a chunk writes its sums, and nobody else reads the owner's share of it. */
enum tdm_status tdm_cpu_reduce(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err)
{
    const uint32_t ranks = launch->program->ranks;
    const struct tdm_access *own = &launch->op->access[TDM_REDUCE_OWN];
    const unsigned char *shares[TDM_MAX_RANKS] = {NULL};
    enum tdm_status status = tdm_team_enter(launch->team, launch, executor, err);
    if (status != TDM_OK)
        return status;
    if (own->buffer != TDM_NONE) {
        const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_OWN];
        for (uint32_t rank = 0; rank < ranks; rank++)
            shares[rank] = tdm_share_of_chunk(tdm_team_shown(launch->team, rank), own->after.chunk);
        sum_shares(shares, ranks, sum->dtype,
                   (struct tdm_range){0, own->bytes / tdm_dtype_bytes(sum->dtype)}, sum->data);
    }
    return tdm_team_meet(launch->team, launch->program->rank, err);
}

/* Each rank sums a slice, which it alone then writes, and copies the others' slices when all are
 * summed. */
enum tdm_status tdm_cpu_reduce_all(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    const uint32_t ranks = launch->program->ranks, own = launch->program->rank;
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const uint64_t size = tdm_dtype_bytes(sum->dtype);
    const struct tdm_range all = tdm_share_range(launch);
    const unsigned char *shares[TDM_MAX_RANKS] = {NULL};
    enum tdm_status status = tdm_team_enter(launch->team, launch, executor, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < ranks; rank++)
        shares[rank] = tdm_team_shown(launch->team, rank)->operand[TDM_REDUCE_ALL_SUM].data;
    sum_shares(shares, ranks, sum->dtype, tdm_share_slice(all, own, ranks), sum->data);
    status = tdm_team_meet(launch->team, own, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct tdm_range slice = tdm_share_slice(all, rank, ranks);
        if (rank != own)
            memcpy((unsigned char *)sum->data + slice.first * size,
                   shares[rank] + slice.first * size, slice.count * size);
    }
    return tdm_team_meet(launch->team, own, err);
}

/* Copies the parts of the weights that the other ranks have updated. */
enum tdm_status tdm_cpu_gather_all(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    const struct tdm_operand *weights = &launch->operand[TDM_GATHER_ALL_WEIGHTS];
    const uint64_t size = tdm_dtype_bytes(weights->dtype);
    enum tdm_status status = tdm_team_enter(launch->team, launch, executor, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < launch->program->ranks; rank++) {
        const struct tdm_slice part =
            tdm_rank_part(launch->program->schedule, launch->op->layer, rank);
        const struct tdm_launch *other = tdm_team_shown(launch->team, rank);
        if (rank != launch->program->rank && part.elements > 0)
            memcpy(tdm_operand_at(weights, part.first),
                   tdm_operand_at(&other->operand[TDM_GATHER_ALL_WEIGHTS], part.first),
                   part.elements * size);
    }
    return tdm_team_meet(launch->team, launch->program->rank, err);
}

/* Takes from each rank the own heads of its chunk, or a part of the heads of the own chunk. */
enum tdm_status tdm_cpu_all_to_all(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    struct tdm_row_copy copies[TDM_ROW_COPIES];
    enum tdm_status status = tdm_team_enter(launch->team, launch, executor, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < launch->program->ranks; rank++) {
        uint32_t count = tdm_share_heads(launch, tdm_team_shown(launch->team, rank), copies);
        for (uint32_t i = 0; i < count; i++)
            for (uint64_t row = 0; row < copies[i].rows; row++)
                memcpy((unsigned char *)copies[i].to + row * copies[i].to_stride_bytes,
                       (const unsigned char *)copies[i].from + row * copies[i].from_stride_bytes,
                       copies[i].row_bytes);
    }
    return tdm_team_meet(launch->team, launch->program->rank, err);
}
