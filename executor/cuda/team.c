/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Team ops on the cuda backend: copies, sums, and the events by which GPUs of one process wait for
 * each other. These read each other's memory over NVLink or PCIe. All of it is queued on the stream
 * of the op's lane.
 */
#include "executor/cuda/cuda.h"

#include "executor/transport.h"

static cudaStream_t stream_of(const struct tdm_executor *executor, const struct tdm_launch *launch)
{
    return executor->lanes[launch->op->lane].stream;
}

static enum tdm_status copy(struct tdm_executor *executor, const struct tdm_launch *launch,
                            void *to, const void *from, uint64_t bytes, struct tdm_error *err)
{
    return TDM_CUDA(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(executor, launch)), err);
}

static enum tdm_status copy_rows(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 const struct tdm_row_copy *rows, struct tdm_error *err)
{
    return TDM_CUDA(cudaMemcpy2DAsync(rows->to, rows->to_stride_bytes, rows->from,
                                      rows->from_stride_bytes, rows->row_bytes, rows->rows,
                                      cudaMemcpyDeviceToDevice, stream_of(executor, launch)),
                    err);
}

static enum tdm_status sum(struct tdm_executor *executor, const struct tdm_launch *launch,
                           const struct tdm_exchange *exchange, struct tdm_error *err)
{
    struct tdm_cuda_shares shares;
    shares.count =
        tdm_exchange_shares(exchange, launch->program->rank, launch->program->ranks, shares.of);
    return tdm_cuda_sum_shares(&shares, exchange->sum.elements,
                               (struct tdm_array){exchange->sum.own, exchange->sum.dtype},
                               stream_of(executor, launch), err);
}

static enum tdm_status reach(struct tdm_executor *executor, const struct tdm_launch *launch,
                             uint32_t point, struct tdm_error *err)
{
    return TDM_CUDA(cudaEventRecord(executor->team_events[point], stream_of(executor, launch)),
                    err);
}

/* Lets the executor's GPU read the memory of another one. */
static enum tdm_status read_other(struct tdm_executor *executor, int device, struct tdm_error *err)
{
    if (device == executor->device || (executor->reads >> device & 1) != 0)
        return TDM_OK;
    cudaError_t code = cudaDeviceEnablePeerAccess(device, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
    else if (code != cudaSuccess)
        return tdm_cuda_status(code, "access from one GPU to the other's memory", err);
    executor->reads |= UINT64_C(1) << device;
    return TDM_OK;
}

static enum tdm_status follow(struct tdm_executor *executor, const struct tdm_launch *launch,
                              struct tdm_executor *other, uint32_t point, struct tdm_error *err)
{
    enum tdm_status status = read_other(executor, other->device, err);
    return status == TDM_OK ? TDM_CUDA(cudaStreamWaitEvent(stream_of(executor, launch),
                                                           other->team_events[point], 0),
                                       err)
                            : status;
}

static void *stream(const struct tdm_executor *executor, enum tdm_lane lane)
{
    return executor->lanes[lane].stream;
}

static enum tdm_status take(struct tdm_executor *executor, uint64_t bytes, void **memory,
                            struct tdm_error *err)
{
    enum tdm_status status = tdm_cuda_here(executor, err);
    return status == TDM_OK ? TDM_CUDA(cudaMalloc(memory, bytes), err) : status;
}

static void give_back(struct tdm_executor *executor, void *memory)
{
    if (tdm_cuda_here(executor, NULL) == TDM_OK)
        cudaFree(memory);
}

static enum tdm_status drain(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status = tdm_cuda_here(executor, err);
    return status == TDM_OK ? TDM_CUDA(cudaDeviceSynchronize(), err) : status;
}

const struct tdm_team_verbs tdm_cuda_team_verbs = {.copy = copy,
                                                   .copy_rows = copy_rows,
                                                   .sum = sum,
                                                   .reach = reach,
                                                   .follow = follow,
                                                   .here = tdm_cuda_here,
                                                   .stream = stream,
                                                   .take = take,
                                                   .give_back = give_back,
                                                   .drain = drain};

enum tdm_status tdm_cuda_run_team(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    return tdm_team_run(&tdm_cuda_team_verbs, executor, launch, err);
}

enum tdm_status tdm_cuda_open_team(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t point = 0; point <= TDM_TEAM_PHASES && status == TDM_OK; point++)
        status = TDM_CUDA(
            cudaEventCreateWithFlags(&executor->team_events[point], cudaEventDisableTiming), err);
    return status;
}

void tdm_cuda_close_team(struct tdm_executor *executor)
{
    for (uint32_t point = 0; point <= TDM_TEAM_PHASES; point++)
        if (executor->team_events[point] != NULL)
            cudaEventDestroy(executor->team_events[point]);
}
