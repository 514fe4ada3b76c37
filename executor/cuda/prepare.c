/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares the first step: one op of every kind and shape runs on zeros.
 *
 * The driver loads a kernel when it is first launched, and may make the whole device wait for that.
 * cuBLASLt chooses an algorithm when it first sees a shape. Here this costs part of a layer's time.
 * In a step it would count as the ops' own time.
 */
#include "executor/cuda/cuda.h"

/* Sets the device arenas to 0, so that tokens, their order and the lengths of lists are valid. */
static enum tdm_status begin_program(struct tdm_executor *executor,
                                     const struct tdm_program *program, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < executor->arena_count && status == TDM_OK; i++)
        if (executor->arenas[i].place == TDM_DEVICE)
            status =
                TDM_CUDA(cudaMemsetAsync(executor->arenas[i].base, 0, executor->arenas[i].bytes,
                                         tdm_cuda_compute(executor)),
                         err);
    executor->prepared = program;
    return status;
}

/* Empties lists whose bytes other ops have used since. */
static enum tdm_status empty_lists(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < launch->op->access_count && status == TDM_OK; i++) {
        const struct tdm_access *access = &launch->op->access[i];
        if (launch->operand[i].data != NULL && access->mode == TDM_READ &&
            access->after.content == TDM_PAGE_LISTS)
            status = TDM_CUDA(cudaMemsetAsync(launch->operand[i].data, 0, access->bytes,
                                              tdm_cuda_compute(executor)),
                              err);
    }
    return status;
}

enum tdm_status tdm_cuda_prepare(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 struct tdm_error *err)
{
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status == TDM_OK && executor->prepared != launch->program)
        status = begin_program(executor, launch->program, err);
    if (status == TDM_OK)
        status = empty_lists(executor, launch, err);
    return status == TDM_OK ? tdm_cuda_launch(executor, launch, err) : status;
}
