/* SPDX-License-Identifier: Apache-2.0 */
/* What an op costs: FLOPs and bytes, and the seconds that a machine's rates make of them. */
#include "schedule/cost.h"

#include "base/size.h"
#include "schedule/attend.h"

/* Weight elements of the matrices of a part. */
static uint64_t part_elements(const struct tdm_model *model, enum tdm_part part)
{
    uint64_t hidden = model->hidden;
    uint64_t q = (uint64_t)model->query_heads * model->head_dim;
    uint64_t kv = (uint64_t)model->kv_heads * model->head_dim;
    switch (part) {
    case TDM_PART_Q:
    case TDM_PART_O:
        return hidden * q;
    case TDM_PART_KV:
        return 2 * hidden * kv;
    case TDM_PART_GATE_UP:
        return 2 * hidden * model->intermediate;
    case TDM_PART_DOWN:
        return hidden * model->intermediate;
    default:
        return 0;
    }
}

static uint64_t access_bytes(const struct tdm_access *access)
{
    if (access->buffer == TDM_NONE)
        return 0;
    return access->mode == TDM_ACCUMULATE ? 2 * access->bytes : access->bytes;
}

void tdm_op_cost(const struct tdm_program *program, struct tdm_op *op)
{
    const struct tdm_model *model = program->schedule->model;
    uint64_t pair_flops = 2 * (uint64_t)model->query_heads * model->head_dim; /* one product */

    op->flops = 0;
    op->bytes = 0;
    for (uint32_t i = 0; i < op->access_count; i++)
        op->bytes += access_bytes(&op->access[i]);

    switch (op->kind) {
    case TDM_OP_PRODUCT:
    case TDM_OP_PRODUCT_GRAD_INPUT:
    case TDM_OP_PRODUCT_GRAD_WEIGHT:
        op->flops = tdm_size_mul(2 * op->tokens, part_elements(model, op->part));
        break;
    case TDM_OP_LOSS: /* logits alone */
        op->flops = tdm_size_mul(2 * op->tokens, (uint64_t)model->hidden * op->entries);
        break;
    case TDM_OP_HEAD: /* logits, then both gradients */
    case TDM_OP_HEAD_GRAD:
        op->flops = tdm_size_mul(6 * op->tokens, (uint64_t)model->hidden * op->entries);
        break;
    case TDM_OP_ATTENTION: /* Q K^T and P V */
        op->flops = tdm_size_mul(2 * pair_flops, tdm_attend_pairs(program, op->layer, op->chunk));
        break;
    case TDM_OP_ATTENTION_GRAD: /* Q K^T again, dO V^T, P^T dO, dS K, dS^T Q */
        op->flops = tdm_size_mul(5 * pair_flops, tdm_attend_pairs(program, op->layer, op->chunk));
        break;
    default:
        break;
    }
}

double tdm_model_flops(const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    double attention = 4.0 * model->query_heads * model->head_dim * tdm_attend_step_pairs(schedule);
    double forward =
        2.0 * (double)tdm_model_matmul_parameters(model) * (double)tdm_schedule_tokens(schedule) +
        attention;
    return schedule->pass == TDM_EVALUATE ? forward : 3.0 * forward;
}

double tdm_op_seconds(const struct tdm_machine *machine, const struct tdm_op *op, bool both_ways)
{
    const double *rate = machine->rate;
    if (op->kind == TDM_OP_COPY && op->lane != TDM_LANE_COMPUTE) {
        double one_way = rate[op->lane == TDM_LANE_H2D ? TDM_RATE_H2D : TDM_RATE_D2H];
        double shared = rate[TDM_RATE_BOTH_WAYS] / 2;
        double used = both_ways && shared < one_way ? shared : one_way;
        return machine->copy_seconds + (double)op->access[0].bytes / used;
    }

    double flops_rate = rate[TDM_RATE_PRODUCT];
    if (op->kind == TDM_OP_ATTENTION)
        flops_rate = rate[TDM_RATE_ATTENTION_FORWARD];
    else if (op->kind == TDM_OP_ATTENTION_GRAD)
        flops_rate = rate[TDM_RATE_ATTENTION_BACKWARD];
    double compute = (double)op->flops / flops_rate;
    double memory = (double)op->bytes / rate[TDM_RATE_ELEMENTWISE];
    double seconds = compute > memory ? compute : memory;
    return seconds > machine->launch_seconds ? seconds : machine->launch_seconds;
}
