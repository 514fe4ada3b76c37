/* SPDX-License-Identifier: Apache-2.0 */
/* Slack of RoPE and QK-norm, and of K and V when they are written to pages or read from them. */
#include "tests/support/slack_parts.h"

#include "ops/rope.h"

enum { HEAD_SLACK, HEAD_WEIGHT_SUMS };

/* The operands of an op that rotates heads: its input and, with QK-norm, the norm's input, weights
 * and their gradient. */
struct turn {
    uint32_t from, raw, weight, gradient;
    uint64_t heads, from_stride, raw_stride;
    bool from_pages, back, normed;
};

static struct turn turn_of(const struct tdm_slack *slack)
{
    const struct tdm_model *model = slack_model(slack);
    const struct tdm_op *op = slack->launch->op;
    uint64_t q = (uint64_t)model->query_heads * model->head_dim;
    uint64_t kv = 2 * (uint64_t)model->kv_heads * model->head_dim;
    struct turn turn = {.normed = op->part == TDM_PART_Q_NORM || op->part == TDM_PART_K_NORM};
    switch (op->kind) {
    case TDM_OP_ROPE:
        turn.heads = model->query_heads;
        turn.from = TDM_ROPE_Q;
        turn.from_stride = q;
        turn.weight = TDM_ROPE_WEIGHTS;
        break;
    case TDM_OP_ROPE_GRAD:
        turn.heads = model->query_heads;
        turn.from_stride = turn.raw_stride = q;
        turn.from = TDM_ROPE_GRAD_DQ;
        turn.raw = TDM_ROPE_GRAD_RAW;
        turn.weight = TDM_ROPE_GRAD_WEIGHTS;
        turn.gradient = TDM_ROPE_GRAD_DWEIGHTS;
        turn.back = true;
        break;
    case TDM_OP_KV_WRITE:
        turn.heads = model->kv_heads;
        turn.from = TDM_KV_WRITE_RAW;
        turn.from_stride = kv;
        turn.weight = TDM_KV_WRITE_WEIGHTS;
        break;
    default:
        turn.heads = model->kv_heads;
        turn.from_pages = turn.back = true;
        turn.raw_stride = kv;
        turn.from = TDM_KV_GRAD_READ_DPAGES;
        turn.raw = TDM_KV_GRAD_READ_RAW;
        turn.weight = TDM_KV_GRAD_READ_WEIGHTS;
        turn.gradient = TDM_KV_GRAD_READ_DWEIGHTS;
    }
    return turn;
}

/* Finds the slack of one head. `at` is its first element in the op's input, `raw` in the norm's. */
static void turn_head(struct tdm_slack *slack, const struct turn *turn, uint64_t weight,
                      uint64_t at, uint64_t raw, double factor, double *out)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t dim = slack_model(slack)->head_dim, half = dim / 2;
    double squares = 0, dots = 0, error = slack_sum_error((double)dim);
    const struct tdm_operand *normed = &operand[turn->back ? turn->raw : turn->from];
    for (uint64_t i = 0; i < dim && turn->normed; i++) {
        double x = slack_value(normed, (turn->back ? raw : at) + i);
        squares += x * x;
    }
    double s = 1 / sqrt(squares / (double)dim + slack_model(slack)->norm_epsilon);
    for (uint64_t i = 0; i < dim; i++) {
        uint64_t other = i < half ? i + half : i - half;
        double mine = fabs(slack_value(&operand[turn->from], at + i));
        double its = fabs(slack_value(&operand[turn->from], at + other));
        if (turn->normed && !turn->back) {
            mine *= s * fabs(slack_value(&operand[turn->weight], weight + i));
            its *= s * fabs(slack_value(&operand[turn->weight], weight + other));
        }
        out[i] = factor * (mine + its); /* size of the rotated element */
    }
    for (uint64_t i = 0; i < dim && turn->normed && turn->back; i++) {
        double x = fabs(slack_value(normed, raw + i));
        slack->array[HEAD_WEIGHT_SUMS][i] += out[i] * x * s;
        out[i] *= fabs(slack_value(&operand[turn->weight], weight + i));
        dots += out[i] * x;
    }
    for (uint64_t i = 0; i < dim; i++) {
        if (turn->normed && turn->back)
            out[i] =
                s * out[i] + s * s * s / (double)dim * dots * fabs(slack_value(normed, raw + i));
        out[i] *= turn->normed ? 2 * error : 8 * UNIT;
    }
}

bool slack_begin_turn(struct tdm_slack *slack)
{
    const struct tdm_model *model = slack_model(slack);
    const struct tdm_op *op = slack->launch->op;
    struct turn turn = turn_of(slack);
    uint64_t dim = model->head_dim, weight = 0;
    double *heads = slack_take(slack, HEAD_SLACK, op->tokens * turn.heads * dim), factor;
    double *sums = slack_take(slack, HEAD_WEIGHT_SUMS, dim),
           *frequencies = slack_take(slack, 2, dim);
    if (heads == NULL || sums == NULL || frequencies == NULL)
        return false;
    tdm_rope_inverse_frequencies(&model->rope, model->head_dim, frequencies, &factor);
    if (turn.normed)
        weight = tdm_model_tensor(model, op->layer,
                                  op->part == TDM_PART_Q_NORM ? TDM_ROLE_Q_NORM : TDM_ROLE_K_NORM)
                     ->offset;
    for (uint64_t t = 0; t < op->tokens; t++)
        for (uint64_t h = 0; h < turn.heads; h++) {
            uint64_t at = turn.from_pages ? slack_page_element(slack, t) : t * turn.from_stride;
            turn_head(slack, &turn, weight, at + h * dim, t * turn.raw_stride + h * dim, factor,
                      heads + (t * turn.heads + h) * dim);
        }
    return true;
}

double slack_of_turn(const struct tdm_slack *slack, const struct tdm_written *piece,
                     uint64_t element)
{
    const struct tdm_schedule *schedule = slack->launch->program->schedule;
    const struct tdm_op *op = slack->launch->op;
    struct turn turn = turn_of(slack);
    uint64_t width = turn.heads * schedule->model->head_dim;
    if (turn.back && turn.normed && piece->operand == turn.gradient) {
        const struct tdm_operand *dw = &slack->launch->operand[turn.gradient];
        double before = slack_adds(dw) ? slack_value(dw, piece->tensor->offset + element) : 0;
        double terms = (double)(op->tokens * turn.heads + schedule->model->head_dim);
        return 2 * slack_sum_error(terms) *
               (slack->array[HEAD_WEIGHT_SUMS][element] + fabs(before));
    }
    uint64_t t = element / width, column = element % width;
    if (op->kind == TDM_OP_KV_WRITE) {
        uint64_t page = element / tdm_page_elements(schedule);
        uint64_t in_page = element % tdm_page_elements(schedule);
        if (in_page >= tdm_page_plane_elements(schedule))
            return EXACT; /* V is copied */
        t = page * schedule->page_tokens + in_page / width;
        column = in_page % width;
    } else if (op->kind == TDM_OP_KV_GRAD_READ) {
        t = element / (2 * width);
        column = element % (2 * width);
    }
    return t < op->tokens && column < width ? slack->array[HEAD_SLACK][t * width + column] : EXACT;
}
