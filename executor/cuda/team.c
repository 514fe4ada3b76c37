/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Team ops between GPUs of one process: each reads the others' arenas, over NVLink or PCIe.
 *
 * The ranks' threads meet while they queue an op; the GPUs meet by events. A stream waits until the
 * streams of all other ranks have come to the op, reads their memory, and goes on when they have
 * read too. So nothing is staged, and no library takes memory for it.
 */
#include "executor/cuda/cuda.h"

#include "executor/shares.h"
#include "executor/team.h"
#include "ops/team.h"
#include "schedule/slices.h"

/* Records that the rank's stream has come this far, and lets it wait until the streams of all ranks
 * have. All ranks call it at the same points of an op. */
static enum tdm_status meet(struct tdm_executor *executor, const struct tdm_launch *launch,
                            enum tdm_team_point point, struct tdm_error *err)
{
    const uint32_t own = launch->program->rank;
    cudaStream_t stream = executor->lanes[launch->op->lane].stream;
    enum tdm_status status = TDM_CUDA(cudaEventRecord(executor->team_events[point], stream), err);
    if (status == TDM_OK) /* the others must not wait for an older record of the event */
        status = point == TDM_TEAM_COME ? tdm_team_enter(launch->team, launch, executor, err)
                                        : tdm_team_meet(launch->team, own, err);
    for (uint32_t rank = 0; rank < launch->program->ranks && status == TDM_OK; rank++)
        if (rank != own)
            status =
                TDM_CUDA(cudaStreamWaitEvent(
                             stream, tdm_team_executor(launch->team, rank)->team_events[point], 0),
                         err);
    return status;
}

/* Begins an op: all ranks are here, and the GPU may read their memory. */
static enum tdm_status begin(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    enum tdm_status status = meet(executor, launch, TDM_TEAM_COME, err);
    if (executor->reads_others || status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < launch->program->ranks && status == TDM_OK; rank++) {
        int device = tdm_team_executor(launch->team, rank)->device;
        if (device == executor->device)
            continue;
        cudaError_t code = cudaDeviceEnablePeerAccess(device, 0);
        if (code == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else if (code != cudaSuccess)
            status = tdm_cuda_status(code, "access from one GPU to the other's memory", err);
    }
    executor->reads_others = status == TDM_OK;
    return status;
}

enum tdm_status tdm_cuda_run_gather_round(struct tdm_executor *executor,
                                          const struct tdm_launch *launch, struct tdm_error *err)
{
    const uint32_t own = launch->program->rank;
    enum tdm_status status = begin(executor, launch, err);
    for (uint32_t rank = 0; rank < launch->program->ranks && status == TDM_OK; rank++) {
        const struct tdm_launch *other = tdm_team_shown(launch->team, rank);
        const struct tdm_access *chunk = &other->op->access[TDM_GATHER_OWN];
        void *to = rank == own || chunk->buffer == TDM_NONE
                       ? NULL
                       : tdm_share_of_chunk(launch, chunk->after.chunk);
        if (to != NULL)
            status = TDM_CUDA(
                cudaMemcpyAsync(to, other->operand[TDM_GATHER_OWN].data,
                                tdm_share_chunk_bytes(launch, TDM_KVPAGES, chunk->after.chunk),
                                cudaMemcpyDeviceToDevice, tdm_cuda_compute(executor)),
                err);
    }
    return status == TDM_OK ? meet(executor, launch, TDM_TEAM_READ, err) : status;
}

enum tdm_status tdm_cuda_run_reduce(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    const struct tdm_access *own = &launch->op->access[TDM_REDUCE_OWN];
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_OWN];
    struct tdm_cuda_shares shares = {.count = 0};
    enum tdm_status status = begin(executor, launch, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < launch->program->ranks && own->buffer != TDM_NONE; rank++) {
        const void *share =
            tdm_share_of_chunk(tdm_team_shown(launch->team, rank), own->after.chunk);
        if (share != NULL)
            shares.of[shares.count++] = share;
    }
    if (own->buffer != TDM_NONE)
        status = tdm_cuda_sum_shares(&shares, 0, own->bytes / tdm_dtype_bytes(sum->dtype),
                                     (struct tdm_array){sum->data, sum->dtype},
                                     tdm_cuda_compute(executor), err);
    return status == TDM_OK ? meet(executor, launch, TDM_TEAM_READ, err) : status;
}

/* Each rank sums a slice, which it alone writes, and copies the slices of the others when all are
 * summed. */
enum tdm_status tdm_cuda_run_reduce_all(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err)
{
    const uint32_t ranks = launch->program->ranks, own = launch->program->rank;
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const struct tdm_range all = tdm_share_range(launch);
    const struct tdm_range mine = tdm_share_slice(all, own, ranks);
    const uint64_t size = tdm_dtype_bytes(sum->dtype);
    struct tdm_cuda_shares shares = {.count = ranks};
    enum tdm_status status = begin(executor, launch, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < ranks; rank++)
        shares.of[rank] = tdm_team_shown(launch->team, rank)->operand[TDM_REDUCE_ALL_SUM].data;
    status = tdm_cuda_sum_shares(&shares, mine.first, mine.count,
                                 (struct tdm_array){sum->data, sum->dtype},
                                 tdm_cuda_compute(executor), err);
    if (status == TDM_OK)
        status = meet(executor, launch, TDM_TEAM_SUMMED, err);
    for (uint32_t rank = 0; rank < ranks && status == TDM_OK; rank++) {
        const struct tdm_range slice = tdm_share_slice(all, rank, ranks);
        const uint64_t at = slice.first * size;
        if (rank != own && slice.count > 0)
            status =
                TDM_CUDA(cudaMemcpyAsync((char *)sum->data + at, (const char *)shares.of[rank] + at,
                                         slice.count * size, cudaMemcpyDeviceToDevice,
                                         tdm_cuda_compute(executor)),
                         err);
    }
    return status == TDM_OK ? meet(executor, launch, TDM_TEAM_READ, err) : status;
}

/* Copies the parts of the weights that the other ranks have updated, on the lane of the updates. */
enum tdm_status tdm_cuda_run_gather_all(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_operand *weights = &launch->operand[TDM_GATHER_ALL_WEIGHTS];
    cudaStream_t stream = executor->lanes[launch->op->lane].stream;
    enum tdm_status status = begin(executor, launch, err);
    for (uint32_t rank = 0; rank < launch->program->ranks && status == TDM_OK; rank++) {
        const struct tdm_slice part =
            tdm_rank_part(launch->program->schedule, launch->op->layer, rank);
        const struct tdm_launch *other = tdm_team_shown(launch->team, rank);
        if (rank != launch->program->rank && part.elements > 0)
            status = TDM_CUDA(
                cudaMemcpyAsync(tdm_operand_at(weights, part.first),
                                tdm_operand_at(&other->operand[TDM_GATHER_ALL_WEIGHTS], part.first),
                                part.elements * tdm_dtype_bytes(weights->dtype), cudaMemcpyDefault,
                                stream),
                err);
    }
    return status == TDM_OK ? meet(executor, launch, TDM_TEAM_READ, err) : status;
}

/* Takes from each rank the own heads of its chunk, or a part of the heads of the own chunk. */
enum tdm_status tdm_cuda_run_all_to_all(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err)
{
    cudaStream_t stream = executor->lanes[launch->op->lane].stream;
    struct tdm_row_copy copies[TDM_ROW_COPIES];
    enum tdm_status status = begin(executor, launch, err);
    for (uint32_t rank = 0; rank < launch->program->ranks && status == TDM_OK; rank++) {
        uint32_t count = tdm_share_heads(launch, tdm_team_shown(launch->team, rank), copies);
        for (uint32_t i = 0; i < count && status == TDM_OK; i++)
            status =
                TDM_CUDA(cudaMemcpy2DAsync(copies[i].to, copies[i].to_stride_bytes, copies[i].from,
                                           copies[i].from_stride_bytes, copies[i].row_bytes,
                                           copies[i].rows, cudaMemcpyDeviceToDevice, stream),
                         err);
    }
    return status == TDM_OK ? meet(executor, launch, TDM_TEAM_READ, err) : status;
}

enum tdm_status tdm_cuda_open_team(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int point = 0; point < TDM_TEAM_POINTS && status == TDM_OK; point++)
        status = TDM_CUDA(
            cudaEventCreateWithFlags(&executor->team_events[point], cudaEventDisableTiming), err);
    return status;
}

void tdm_cuda_close_team(struct tdm_executor *executor)
{
    for (int point = 0; point < TDM_TEAM_POINTS; point++)
        if (executor->team_events[point] != NULL)
            cudaEventDestroy(executor->team_events[point]);
}
