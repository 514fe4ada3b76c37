/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of attention: a chunk's queries over the slots of pages that it sees. */
#include "executor/cuda/cuda.h"

#include "schedule/layout.h"

static const struct tdm_attention_kind *kind_of(const struct tdm_attend *attend)
{
    const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds;
    while (kind->suits != NULL && !kind->suits(attend))
        kind++;
    return kind;
}

static void take_scratch(unsigned char **scratch, const struct tdm_model *model, uint64_t tokens,
                         struct tdm_attend *attend)
{
    attend->from = tdm_cuda_take(scratch, tokens * sizeof(*attend->from));
    attend->d = tdm_cuda_take(scratch, 2 * tokens * model->query_heads * sizeof(*attend->d));
}

uint64_t tdm_cuda_attention_scratch(const struct tdm_model *model, uint64_t tokens)
{
    struct tdm_attend attend;
    unsigned char *end = NULL;
    take_scratch(&end, model, tokens, &attend);
    return (uintptr_t)end;
}

static struct tdm_attend attend_of(const struct tdm_executor *executor,
                                   const struct tdm_launch *launch)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_model *model = schedule->model;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *pages = &launch->operand[1], *out = &launch->operand[2];
    struct tdm_attend attend = {
        .tokens = op->tokens,
        .first_token = program->chunks[op->chunk].first_token,
        .key_token = program->chunks[op->access[1].before.chunk].first_token,
        .chunk_tokens = schedule->chunk_tokens,
        .page_tokens = schedule->page_tokens,
        .window = model->layer_kinds[op->layer].window,
        .documents = tdm_cuda_documents(executor, launch),
        .query_heads = model->query_heads,
        .kv_heads = model->kv_heads,
        .head_dim = model->head_dim,
        .q = tdm_array_at(&launch->operand[0], 0),
        .pages = tdm_array_at(pages, 0),
        .slot_elements = pages->slot_bytes / tdm_dtype_bytes(pages->dtype),
        .out = tdm_array_at(out, 0),
    };
    void *lse = (unsigned char *)out->data + tdm_lse_offset(schedule, op->tokens);
    unsigned char *scratch = executor->scratch;
    attend.lse = lse;
    take_scratch(&scratch, model, op->tokens, &attend);
    return attend;
}

enum tdm_status tdm_cuda_run_attention(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err)
{
    struct tdm_attend attend = attend_of(executor, launch);
    cudaStream_t stream = tdm_cuda_compute(executor);
    enum tdm_status status = tdm_cuda_attend_from(&attend, stream, err);
    if (status != TDM_OK)
        return status;
    return kind_of(&attend)->forward(&attend, stream, err);
}

enum tdm_status tdm_cuda_run_attention_grad(struct tdm_executor *executor,
                                            const struct tdm_launch *launch, struct tdm_error *err)
{
    struct tdm_attend attend = attend_of(executor, launch);
    const struct tdm_operand *written = &launch->operand[5], *added = &launch->operand[6];
    const struct tdm_operand *gradients = written->data != NULL ? written : added;
    cudaStream_t stream = tdm_cuda_compute(executor);
    attend.d_out = tdm_array_at(&launch->operand[3], 0);
    attend.dq = tdm_array_at(&launch->operand[4], 0);
    attend.written = tdm_array_at(written, 0);
    attend.added = tdm_array_at(added, 0);
    attend.written_slots = written->data != NULL ? written->slots : 0;
    attend.gradient_slot_elements = gradients->slot_bytes / tdm_dtype_bytes(gradients->dtype);
    enum tdm_status status = tdm_cuda_attend_from(&attend, stream, err);
    if (status != TDM_OK)
        return status;
    return kind_of(&attend)->backward(&attend, stream, err);
}
