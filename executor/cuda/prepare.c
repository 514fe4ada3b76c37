/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepares the first step: one op of every kind and shape runs on zeros.
 *
 * The driver loads a kernel when it is first launched, and may make the whole device wait for that.
 * cuBLASLt chooses an algorithm when it first sees a shape. Here this costs part of a layer's time.
 * In a step it would count as the ops' own time.
 */
#include "executor/cuda/cuda.h"

#include "ops/select.h"

#include <string.h>

/* Does a selection vote? Its kernels run only then. */
static bool votes(const struct tdm_launch *launch)
{
    struct tdm_page_rule rule =
        tdm_page_rule_of(&tdm_launch_params(launch)->pages, launch->op->layer);
    uint64_t pages = launch->operand[TDM_SELECT_MEANS].slots * tdm_pages_of_chunk(&rule);
    return launch->operand[TDM_SELECT_MEANS].data != NULL &&
           pages > rule.selector.budget / rule.page_tokens;
}

static struct tdm_cuda_like like_of(const struct tdm_launch *launch)
{
    const struct tdm_op *op = launch->op;
    struct tdm_cuda_like like;
    memset(&like, 0, sizeof(like)); /* compared byte by byte */
    like.kind = (uint32_t)op->kind;
    like.part = (uint32_t)op->part;
    like.tokens = op->tokens;
    like.entries = op->kind == TDM_OP_SELECT ? votes(launch) : op->entries;
    for (uint32_t i = 0; i < op->access_count; i++)
        if (launch->operand[i].data != NULL)
            like.operands |= (uint64_t)(1 + launch->operand[i].mode) << (8 * i);
    return like;
}

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
    executor->like_count = 0;
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
    struct tdm_cuda_like like = like_of(launch);
    enum tdm_status status = TDM_OK;
    if (launch->op->lane != TDM_LANE_COMPUTE)
        return TDM_OK;
    if (executor->prepared != launch->program)
        status = begin_program(executor, launch->program, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t i = 0; i < executor->like_count; i++)
        if (memcmp(&executor->likes[i], &like, sizeof(like)) == 0)
            return TDM_OK;
    if (executor->like_count == TDM_CUDA_LIKES)
        return TDM_OK; /* it is prepared in the step */
    executor->likes[executor->like_count++] = like;
    status = empty_lists(executor, launch, err);
    return status == TDM_OK ? tdm_cuda_launch(executor, launch, err) : status;
}
