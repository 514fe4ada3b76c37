/* SPDX-License-Identifier: Apache-2.0 */
/* The ops that work row by row: embedding, norms, RoPE, SwiGLU; gradient norms; and the
 * optimizer. */
#include "executor/cuda/cuda.h"
#include "executor/cuda/norm.h"
#include "executor/random.h"
#include "ops/embed.h"
#include "ops/mlp.h"
#include "ops/move.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/update.h"

#include <math.h>

static struct tdm_array whole(const struct tdm_operand *operand)
{
    return tdm_array_at(operand, 0);
}

static bool adds(const struct tdm_operand *operand)
{
    return operand->mode == TDM_ACCUMULATE;
}

/* ---- embedding ---- */

enum tdm_status tdm_cuda_run_embed(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    const struct tdm_embed_params *params = &tdm_launch_params(launch)->embed;
    const struct tdm_operand *operand = launch->operand;
    uint64_t offset = tdm_launch_tensors(launch).matrix[0]->offset;
    return tdm_cuda_embed(operand[TDM_EMBED_TOKENS].data,
                          tdm_array_at(&operand[TDM_EMBED_WEIGHTS], offset), launch->op->tokens,
                          params->vocabulary, params->hidden, whole(&operand[TDM_EMBED_OUT]),
                          executor->fault, tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_sort_tokens(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err)
{
    return tdm_cuda_sort_tokens(launch->operand[TDM_SORT_TOKENS_TOKENS].data, launch->op->tokens,
                                launch->operand[TDM_SORT_TOKENS_ORDER].data,
                                tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_embed_grad(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_embed_params *params = &tdm_launch_params(launch)->embed;
    const struct tdm_operand *operand = launch->operand;
    uint64_t offset = tdm_launch_tensors(launch).matrix[0]->offset;
    return tdm_cuda_embed_grad(
        operand[TDM_EMBED_GRAD_TOKENS].data, operand[TDM_EMBED_GRAD_ORDER].data,
        whole(&operand[TDM_EMBED_GRAD_DOUT]), launch->op->tokens, params->vocabulary,
        params->hidden, tdm_array_at(&operand[TDM_EMBED_GRAD_DWEIGHTS], offset),
        tdm_cuda_compute(executor), err);
}

/* ---- norms ---- */

static enum tdm_status norm_tensor(const struct tdm_launch *launch, uint64_t *offset,
                                   struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    const struct tdm_tensor *tensor = tdm_launch_tensors(launch).matrix[0];
    if (tensor == NULL)
        return tdm_fail(err, TDM_INTERNAL, "op %llu: no norm in part %d of unit %u",
                        (unsigned long long)op->number, (int)op->part, op->layer);
    *offset = tensor->offset;
    return TDM_OK;
}

enum tdm_status tdm_cuda_run_norm(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    const struct tdm_norm_params *params = &tdm_launch_params(launch)->norm;
    const struct tdm_operand *x = &launch->operand[TDM_NORM_X],
                             *w = &launch->operand[TDM_NORM_WEIGHTS];
    uint64_t offset;
    enum tdm_status status = norm_tensor(launch, &offset, err);
    if (status != TDM_OK)
        return status;
    return (x->dtype == TDM_DTYPE_FP32 ? tdm_cuda_rms_norm_fp32 : tdm_cuda_rms_norm)(
        x->data, tdm_operand_at(w, offset), w->dtype, launch->op->tokens, params->hidden,
        (float)params->epsilon, launch->operand[TDM_NORM_OUT].data, tdm_cuda_compute(executor),
        err);
}

enum tdm_status tdm_cuda_run_norm_grad(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_norm_params *params = &tdm_launch_params(launch)->norm;
    const struct tdm_operand *operand = launch->operand;
    uint64_t offset;
    enum tdm_status status = norm_tensor(launch, &offset, err);
    if (status != TDM_OK)
        return status;
    const struct tdm_norm_grad norm = {.rows = launch->op->tokens,
                                       .hidden = params->hidden,
                                       .epsilon = (float)params->epsilon,
                                       .x = whole(&operand[TDM_NORM_GRAD_X]),
                                       .dy = whole(&operand[TDM_NORM_GRAD_DOUT]),
                                       .weight =
                                           tdm_array_at(&operand[TDM_NORM_GRAD_WEIGHTS], offset),
                                       .dx = whole(&operand[TDM_NORM_GRAD_DX]),
                                       .dw = tdm_array_at(&operand[TDM_NORM_GRAD_DWEIGHTS], offset),
                                       .add_input = adds(&operand[TDM_NORM_GRAD_DX]),
                                       .add_weight = adds(&operand[TDM_NORM_GRAD_DWEIGHTS]),
                                       .partial = executor->scratch};
    return tdm_cuda_rms_norm_grad(&norm, tdm_cuda_compute(executor), err);
}

/* ---- RoPE ---- */

/* The common part of all rotations of an op's chunk. `weights`: the operand of QK-norm's weights,
 * which may be absent. */
static struct tdm_turn turn_of(const struct tdm_executor *executor, const struct tdm_launch *launch,
                               uint32_t heads, uint32_t weights, bool back)
{
    const struct tdm_rope_params *params = &tdm_launch_params(launch)->rope;
    const struct tdm_op *op = launch->op;
    struct tdm_turn turn = {.tokens = op->tokens,
                            .first_token = launch->program->chunks[op->chunk].first_token,
                            .documents = tdm_cuda_documents(executor, launch),
                            .heads = heads,
                            .head_dim = params->head_dim,
                            .back = back,
                            .frequencies = executor->frequencies,
                            .factor = executor->rope_factor,
                            .epsilon = (float)params->norm_epsilon};
    if (launch->operand[weights].data != NULL) {
        const struct tdm_tensor *tensor = tdm_launch_tensors(launch).matrix[0];
        turn.weight = tdm_array_at(&launch->operand[weights], tensor->offset);
    }
    return turn;
}

/* Sets where the gradient of QK-norm's weights goes, if there are any. */
static void norm_back(const struct tdm_launch *launch, uint32_t dweights, struct tdm_turn *turn)
{
    const struct tdm_operand *dw = &launch->operand[dweights];
    if (turn->weight.data == NULL)
        return;
    turn->dw = tdm_array_at(dw, tdm_launch_tensors(launch).matrix[0]->offset);
    turn->add_weight = adds(dw);
}

/* Rows of `heads` heads. */
static struct tdm_heads rows_of(const struct tdm_launch *launch, uint32_t operand, uint64_t heads)
{
    return (struct tdm_heads){.array = whole(&launch->operand[operand]),
                              .stride = heads * tdm_launch_params(launch)->rope.head_dim};
}

static struct tdm_heads pages_of(const struct tdm_launch *launch, uint32_t operand)
{
    return (struct tdm_heads){.array = whole(&launch->operand[operand]),
                              .page_tokens = tdm_launch_params(launch)->pages.page_tokens};
}

enum tdm_status tdm_cuda_run_rope(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    uint32_t heads = tdm_launch_params(launch)->rope.query_heads;
    struct tdm_turn turn = turn_of(executor, launch, heads, TDM_ROPE_WEIGHTS, false);
    turn.from = rows_of(launch, TDM_ROPE_Q, heads);
    turn.to = rows_of(launch, turn.weight.data != NULL ? TDM_ROPE_OUT : TDM_ROPE_Q, heads);
    return tdm_cuda_turn(&turn, executor->scratch, tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_rope_grad(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err)
{
    uint32_t heads = tdm_launch_params(launch)->rope.query_heads;
    struct tdm_turn turn = turn_of(executor, launch, heads, TDM_ROPE_GRAD_WEIGHTS, true);
    turn.from = turn.to = rows_of(launch, TDM_ROPE_GRAD_DQ, heads);
    turn.raw = rows_of(launch, TDM_ROPE_GRAD_RAW, heads);
    norm_back(launch, TDM_ROPE_GRAD_DWEIGHTS, &turn);
    return tdm_cuda_turn(&turn, executor->scratch, tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_kv_write(struct tdm_executor *executor,
                                      const struct tdm_launch *launch, struct tdm_error *err)
{
    uint32_t heads = tdm_launch_params(launch)->rope.kv_heads;
    struct tdm_turn turn = turn_of(executor, launch, heads, TDM_KV_WRITE_WEIGHTS, false);
    turn.straight = heads;
    turn.from = rows_of(launch, TDM_KV_WRITE_RAW, 2 * (uint64_t)heads);
    turn.to = pages_of(launch, TDM_KV_WRITE_PAGES);
    return tdm_cuda_turn(&turn, executor->scratch, tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_kv_grad_read(struct tdm_executor *executor,
                                          const struct tdm_launch *launch, struct tdm_error *err)
{
    uint32_t heads = tdm_launch_params(launch)->rope.kv_heads;
    struct tdm_turn turn = turn_of(executor, launch, heads, TDM_KV_GRAD_READ_WEIGHTS, true);
    turn.straight = heads;
    turn.from = pages_of(launch, TDM_KV_GRAD_READ_DPAGES);
    turn.to = rows_of(launch, TDM_KV_GRAD_READ_DRAW, 2 * (uint64_t)heads);
    turn.raw = rows_of(launch, TDM_KV_GRAD_READ_RAW, 2 * (uint64_t)heads);
    norm_back(launch, TDM_KV_GRAD_READ_DWEIGHTS, &turn);
    return tdm_cuda_turn(&turn, executor->scratch, tdm_cuda_compute(executor), err);
}

/* ---- SwiGLU, GeGLU ---- */

enum tdm_status tdm_cuda_run_swiglu(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    const struct tdm_mlp_params *mlp = &tdm_launch_params(launch)->mlp;
    return tdm_cuda_swiglu(whole(&launch->operand[TDM_SWIGLU_GATE_UP]), launch->op->tokens,
                           mlp->intermediate, mlp->gate, whole(&launch->operand[TDM_SWIGLU_OUT]),
                           tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_swiglu_grad(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_mlp_params *mlp = &tdm_launch_params(launch)->mlp;
    return tdm_cuda_swiglu_grad(whole(&launch->operand[TDM_SWIGLU_GRAD_GATE_UP]),
                                whole(&launch->operand[TDM_SWIGLU_GRAD_DOUT]), launch->op->tokens,
                                mlp->intermediate, mlp->gate, tdm_cuda_compute(executor), err);
}

/* ---- gradient norms and the optimizer ---- */

enum tdm_status tdm_cuda_run_gradient_norm(struct tdm_executor *executor,
                                           const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_unit *unit = &weights->units[launch->op->layer];
    const struct tdm_operand *operand = launch->operand;
    cudaStream_t stream = tdm_cuda_compute(executor);
    double *squares = executor->scratch;
    /* of a rank's part */
    const uint64_t begin = launch->op->slices > 0 ? launch->op->first_element : 0;
    const uint64_t end = launch->op->slices > 0 ? begin + launch->op->elements : unit->elements;
    uint64_t blocks = 0;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < unit->tensor_count && status == TDM_OK; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        const uint64_t first = tdm_most(begin, tensor->offset);
        const uint64_t last = tdm_least(end, tensor->offset + tensor->elements);
        if (first >= last)
            continue;
        status = tdm_cuda_squares(tdm_array_at(&operand[TDM_GRADIENT_NORM_GRADIENT], first),
                                  tdm_array_at(&operand[TDM_GRADIENT_NORM_TIED], first),
                                  last - first, squares + blocks, stream, err);
        blocks += tdm_cuda_square_blocks(last - first);
    }
    if (status != TDM_OK)
        return status;
    return tdm_cuda_sum_values(squares, blocks, 1.0, false, operand[TDM_GRADIENT_NORM_NORM].data,
                               stream, err);
}

enum tdm_status tdm_cuda_run_optimizer(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err)
{
    if (launch->op->lane == TDM_LANE_HOST)
        return tdm_cuda_run_host_update(executor, launch, err);
    /* the same values on host and device */
    const struct tdm_host_update x = tdm_host_update_of(launch);
    const struct tdm_operand *operand = x.operand, *norms = &operand[TDM_OPTIMIZER_NORMS];
    struct tdm_update update = {
        .adamw = x.adamw,
        .beta1 = x.beta1,
        .beta2 = x.beta2,
        .rest1 = x.rest1,
        .rest2 = x.rest2,
        .step_rate = x.step_rate,
        .root_scale = x.root_scale,
        .epsilon = x.epsilon,
        .rate = x.rate,
        .norms = norms->data,
        .norm_count = norms->data != NULL ? norms->slots : 0,
        .norm_stride = norms->slot_bytes / sizeof(double),
        .clip_norm = x.clip_norm,
    };
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < x.unit->tensor_count && status == TDM_OK; i++) {
        uint32_t number_of_tensor = x.unit->first_tensor + i;
        const struct tdm_tensor *tensor = &x.tensors[number_of_tensor];
        const uint64_t first = tdm_most(x.first, tensor->offset);
        const uint64_t end = tdm_least(x.end, tensor->offset + tensor->elements);
        if (first >= end)
            continue;
        update.elements = end - first;
        update.first = first - tensor->offset;
        update.weights = tdm_array_at(&operand[TDM_OPTIMIZER_WEIGHTS], first);
        update.gradient = tdm_array_at(&operand[TDM_OPTIMIZER_GRADIENT], first);
        update.second_gradient = tdm_array_at(&operand[TDM_OPTIMIZER_TIED], first);
        update.master = tdm_array_at(&operand[TDM_OPTIMIZER_MASTER], first);
        update.moment1 = tdm_array_at(&operand[TDM_OPTIMIZER_MOMENT1], first);
        update.moment2 = tdm_array_at(&operand[TDM_OPTIMIZER_MOMENT2], first);
        update.decay = tdm_decays(x.decayed, tensor->role) ? x.decay : 0.0f;
        update.random_stream = tdm_random_stream(x.seed, x.step, number_of_tensor);
        status = tdm_cuda_update(&update, tdm_cuda_compute(executor), err);
    }
    return status;
}
