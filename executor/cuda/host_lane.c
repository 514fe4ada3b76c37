/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lane of the host: updates of units on the host's cores. The driver calls an update, like any
 * other work of a stream, when everything it waits for has ended. The host goes on launching
 * meanwhile. A call does not use CUDA itself.
 */
#include "executor/cuda/cuda.h"

#include <stdlib.h>

static void CUDART_CB call_update(void *call)
{
    const struct tdm_cuda_call *due = call;
    tdm_host_update_run(&due->update, due->threads);
}

static void CUDART_CB call_warm_up(void *call)
{
    const struct tdm_cuda_call *due = call;
    tdm_host_update_warm_up(due->threads);
}

/* The arguments are in a ring with as many entries as the lane's marks, which the host does not
 * overtake. */
enum tdm_status tdm_cuda_run_host_update(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err)
{
    struct tdm_cuda_lane *lane = &executor->lanes[TDM_LANE_HOST];
    if (executor->calls == NULL)
        return tdm_fail(err, TDM_INTERNAL,
                        "the cuda backend was opened without updates on the host");
    struct tdm_cuda_call *call = &executor->calls[lane->position % TDM_CUDA_RING];
    call->update = tdm_host_update_of(launch);
    return TDM_CUDA(cudaLaunchHostFunc(lane->stream, call_update, call), err);
}

enum tdm_status tdm_cuda_open_host_lane(struct tdm_executor *executor, uint32_t count,
                                        const struct tdm_program *const *programs,
                                        struct tdm_error *err)
{
    cudaStream_t stream = executor->lanes[TDM_LANE_HOST].stream;
    bool used = false;
    for (uint32_t i = 0; i < count; i++)
        used = used || programs[i]->params.update.on_host;
    if (!used)
        return TDM_OK;
    executor->calls = calloc(TDM_CUDA_RING, sizeof(*executor->calls));
    if (executor->calls == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for updates on the host");
    for (uint32_t i = 0; i < TDM_CUDA_RING; i++)
        executor->calls[i].threads = tdm_host_update_threads(TDM_HOST_SPARE_CORES);
    enum tdm_status status =
        TDM_CUDA(cudaLaunchHostFunc(stream, call_warm_up, executor->calls), err);
    return status == TDM_OK ? TDM_CUDA(cudaStreamSynchronize(stream), err) : status;
}
