/* SPDX-License-Identifier: Apache-2.0 */
/* Slack: bounds for the elements that ops write, computed from their operands. Products, norms,
 * SwiGLU and GeGLU are here. */
#include "tests/support/slack_parts.h"

#include "ops/mlp.h"
#include "ops/norm.h"
#include "ops/product.h"

/* ---- products ---- */

enum { INPUT_NORMS, WEIGHT_NORMS, BIAS_SUMS };

static bool begin_product(struct tdm_slack *slack)
{
    const struct tdm_part_tensors *part = &slack->part;
    const struct tdm_op *op = slack->launch->op;
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t tokens = op->tokens, inputs = part->inputs, outputs = part->outputs;
    bool forward = op->kind == TDM_OP_PRODUCT, of_weight = op->kind == TDM_OP_PRODUCT_GRAD_WEIGHT;
    uint64_t most = tokens + inputs + outputs;
    double *first = slack_take(slack, INPUT_NORMS, most),
           *second = slack_take(slack, WEIGHT_NORMS, most);
    double *sums = slack_take(slack, BIAS_SUMS, outputs);
    if (first == NULL || second == NULL || sums == NULL)
        return false;
    if (of_weight) { /* columns of x and of dy */
        struct slack_view x = {&operand[TDM_PRODUCT_GRAD_WEIGHT_X], 0, tokens, inputs, inputs};
        struct slack_view dy = {&operand[TDM_PRODUCT_GRAD_WEIGHT_DOUT], 0, tokens, outputs,
                                outputs};
        slack_add_squares(&x, NULL, first);
        slack_add_squares(&dy, NULL, second);
        for (uint64_t t = 0; t < tokens; t++)
            for (uint64_t j = 0; j < outputs; j++)
                sums[j] +=
                    fabs(slack_value(&operand[TDM_PRODUCT_GRAD_WEIGHT_DOUT], t * outputs + j));
    } else { /* rows of the input, and rows or columns of the weights */
        uint64_t width = forward ? inputs : outputs, row = 0;
        const struct tdm_operand *rows =
            &operand[forward ? TDM_PRODUCT_X : TDM_PRODUCT_GRAD_INPUT_DOUT];
        const struct tdm_operand *weights =
            &operand[forward ? TDM_PRODUCT_WEIGHTS : TDM_PRODUCT_GRAD_INPUT_WEIGHTS];
        struct slack_view x = {rows, 0, tokens, width, width};
        slack_add_squares(&x, first, NULL);
        for (uint32_t i = 0; i < part->count; i++) {
            struct slack_view w = {weights, part->matrix[i]->offset, part->matrix[i]->rows, inputs,
                                   inputs};
            slack_add_squares(&w, forward ? second + row : NULL, forward ? NULL : second);
            row += part->matrix[i]->rows;
        }
    }
    slack_take_roots(first, most);
    slack_take_roots(second, most);
    double terms = (double)(forward ? inputs : of_weight ? tokens : outputs);
    slack->relative = slack_product_error(terms, operand->dtype);
    return true;
}

/* First column of a tensor within a part's outputs; sets *is_bias. */
static uint64_t column_of(const struct tdm_part_tensors *part, const struct tdm_tensor *tensor,
                          bool *is_bias)
{
    uint64_t column = 0;
    for (uint32_t i = 0; i < part->count; i++) {
        *is_bias = part->bias[i] == tensor;
        if (*is_bias || part->matrix[i] == tensor)
            return column;
        column += part->matrix[i]->rows;
    }
    return column;
}

/* The additional error if a product is rounded to bf16 before it is added: some of cuBLASLt's
 * kernels round both the product and the sum if the result is bf16. */
static double rounded_before(enum tdm_dtype result, double due, double addend)
{
    return result == TDM_DTYPE_BF16 ? ROUNDED_BF16 * fabs(due - addend) : 0;
}

static double of_product(const struct tdm_slack *slack, const struct tdm_tensor *tensor,
                         uint64_t element, double due)
{
    const struct tdm_part_tensors *part = &slack->part;
    const struct tdm_launch *launch = slack->launch;
    const struct tdm_operand *operand = launch->operand, *result;
    const double *first = slack->array[INPUT_NORMS], *second = slack->array[WEIGHT_NORMS];
    bool is_bias = false;
    uint64_t column;
    double size, before;
    switch (launch->op->kind) {
    case TDM_OP_PRODUCT:
        column = element % part->outputs;
        size = first[element / part->outputs] * second[column];
        before = operand[TDM_PRODUCT_ADDEND].data != NULL
                     ? slack_value(&operand[TDM_PRODUCT_ADDEND], element)
                     : 0;
        result = &operand[TDM_PRODUCT_OUT];
        for (uint32_t i = 0; i < part->count; i++) {
            if (part->bias[i] != NULL && column < part->matrix[i]->rows)
                before = slack_value(&operand[TDM_PRODUCT_WEIGHTS], part->bias[i]->offset + column);
            column -= column < part->matrix[i]->rows ? column : part->matrix[i]->rows;
        }
        break;
    case TDM_OP_PRODUCT_GRAD_INPUT:
        size = first[element / part->inputs] * second[element % part->inputs];
        result = &operand[TDM_PRODUCT_GRAD_INPUT_DX];
        before = slack_adds(result) ? slack_value(result, element) : 0;
        break;
    default:
        column = column_of(part, tensor, &is_bias);
        result = &operand[TDM_PRODUCT_GRAD_WEIGHT_DWEIGHTS];
        before = slack_adds(result) ? slack_value(result, tensor->offset + element) : 0;
        size = is_bias ? slack->array[BIAS_SUMS][column + element]
                       : first[element % part->inputs] * second[column + element / part->inputs];
    }
    return slack->relative * (size + fabs(before)) +
           (before != 0 ? rounded_before(result->dtype, due, before) : 0);
}

/* ---- norms ---- */

enum { SCALES, SLOPES, WEIGHT_SUMS };

static const struct tdm_tensor *norm_tensor(const struct tdm_slack *slack)
{
    const struct tdm_model *model = slack_model(slack);
    const struct tdm_op *op = slack->launch->op;
    if (op->part == TDM_PART_FINAL_NORM)
        return tdm_model_tensor(model, tdm_model_head_unit(model), TDM_ROLE_FINAL_NORM);
    return tdm_model_tensor(model, op->layer,
                            op->part == TDM_PART_MLP_NORM ? TDM_ROLE_MLP_NORM
                                                          : TDM_ROLE_ATTENTION_NORM);
}

/* Sums of sizes of the gradients' terms in executor/cpu/norm.c; s = 1 / sqrt(mean(x^2) +
 * epsilon). */
static bool begin_norm_grad(struct tdm_slack *slack)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t hidden = slack_model(slack)->hidden, tokens = slack->launch->op->tokens;
    uint64_t weight = norm_tensor(slack)->offset;
    double *scales = slack_take(slack, SCALES, tokens), *slopes = slack_take(slack, SLOPES, tokens);
    double *sums = slack_take(slack, WEIGHT_SUMS, hidden);
    if (scales == NULL || slopes == NULL || sums == NULL)
        return false;
    for (uint64_t t = 0; t < tokens; t++) {
        double squares = 0, dots = 0;
        for (uint64_t i = 0; i < hidden; i++) {
            double x = slack_value(&operand[TDM_NORM_GRAD_X], t * hidden + i);
            double dy = slack_value(&operand[TDM_NORM_GRAD_DOUT], t * hidden + i);
            squares += x * x;
            dots += fabs(slack_value(&operand[TDM_NORM_GRAD_WEIGHTS], weight + i) * dy * x);
        }
        double s = 1 / sqrt(squares / (double)hidden + slack_model(slack)->norm_epsilon);
        scales[t] = s;
        slopes[t] = s * s * s / (double)hidden * dots;
        for (uint64_t i = 0; i < hidden; i++)
            sums[i] += fabs(slack_value(&operand[TDM_NORM_GRAD_X], t * hidden + i) *
                            slack_value(&operand[TDM_NORM_GRAD_DOUT], t * hidden + i)) *
                       s;
    }
    slack->relative = 2 * slack_sum_error((double)hidden);
    return true;
}

static double of_norm_grad(const struct tdm_slack *slack, const struct tdm_written *piece,
                           uint64_t element)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t hidden = slack_model(slack)->hidden, t = element / hidden, i = element % hidden;
    if (piece->operand == TDM_NORM_GRAD_DWEIGHTS) {
        double before =
            slack_adds(&operand[TDM_NORM_GRAD_DWEIGHTS])
                ? slack_value(&operand[TDM_NORM_GRAD_DWEIGHTS], piece->tensor->offset + element)
                : 0;
        double relative = slack->relative + slack_sum_error((double)slack->launch->op->tokens);
        return relative * (slack->array[WEIGHT_SUMS][element] + fabs(before));
    }
    double w = slack_value(&operand[TDM_NORM_GRAD_WEIGHTS], norm_tensor(slack)->offset + i);
    double size =
        fabs(slack->array[SCALES][t] * w * slack_value(&operand[TDM_NORM_GRAD_DOUT], element)) +
        slack->array[SLOPES][t] * fabs(slack_value(&operand[TDM_NORM_GRAD_X], element));
    double before = slack_adds(&operand[TDM_NORM_GRAD_DX])
                        ? slack_value(&operand[TDM_NORM_GRAD_DX], element)
                        : 0;
    return slack->relative * (size + fabs(before));
}

/* ---- SwiGLU, GeGLU ---- */

static double of_swiglu(const struct tdm_slack *slack, const struct tdm_written *piece,
                        uint64_t element)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t columns = slack_model(slack)->intermediate, tokens = slack->launch->op->tokens;
    bool back =
        slack->launch->op->kind == TDM_OP_SWIGLU_GRAD && piece->operand == TDM_SWIGLU_GRAD_GATE_UP;
    uint64_t width = back ? 2 * columns : columns;
    uint64_t t = element / width, column = element % width % columns;
    if (t >= tokens)
        return EXACT;
    double gate = slack_value(&operand[TDM_SWIGLU_GATE_UP], t * 2 * columns + column);
    double up = slack_value(&operand[TDM_SWIGLU_GATE_UP], t * 2 * columns + columns + column);
    const struct tdm_gate *of = &tdm_launch_params(slack->launch)->mlp.gate;
    double square = gate * gate, slope = of->linear + 3 * (double)of->cubic * square;
    double s = 1 / (1 + exp(-gate * (of->linear + of->cubic * square)));
    /* the polynomial of GeGLU has its own rounding errors */
    double error = (8 + (of->cubic > 0 ? 6 : 2) * fabs(gate) * slope) * UNIT;
    if (!back)
        return error * fabs(gate * s * up);
    double d = slack_value(&operand[TDM_SWIGLU_GRAD_DOUT], t * columns + column);
    return error * fabs(d) *
           (element % width < columns ? fabs(up) * s * (1 + fabs(gate) * (1 - s) * slope)
                                      : fabs(gate) * s);
}

/* ---- all ops ---- */

enum tdm_status tdm_slack_begin(struct tdm_slack *slack, const struct tdm_launch *launch,
                                const struct tdm_arenas *cpu, struct tdm_error *err)
{
    struct tdm_multiplication multiplications[2];
    uint32_t count;
    *slack = (struct tdm_slack){.launch = launch, .cpu = cpu};
    enum tdm_status status = TDM_OK;
    bool done = true;
    switch (launch->op->kind) {
    case TDM_OP_PRODUCT:
    case TDM_OP_PRODUCT_GRAD_INPUT:
    case TDM_OP_PRODUCT_GRAD_WEIGHT:
        status = tdm_products_plan(launch, &slack->part, multiplications, &count, err);
        done = status == TDM_OK && begin_product(slack);
        break;
    case TDM_OP_NORM_GRAD:
        done = begin_norm_grad(slack);
        break;
    case TDM_OP_ROPE:
    case TDM_OP_ROPE_GRAD:
    case TDM_OP_KV_WRITE:
    case TDM_OP_KV_GRAD_READ:
        done = slack_begin_turn(slack);
        break;
    case TDM_OP_ATTENTION:
    case TDM_OP_ATTENTION_GRAD:
        done = slack_begin_attention(slack, err);
        break;
    case TDM_OP_SELECT:
        done = slack_begin_select(slack);
        break;
    case TDM_OP_HEAD:
    case TDM_OP_LOSS:
    case TDM_OP_HEAD_GRAD:
        done = slack_begin_head(slack);
        break;
    default:
        break;
    }
    if (!done && status == TDM_OK)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the bounds of an op");
    return status;
}

void tdm_slack_end(struct tdm_slack *slack)
{
    for (int i = 0; i < TDM_SLACK_ARRAYS; i++)
        free(slack->array[i]);
    *slack = (struct tdm_slack){0};
}

double tdm_slack_of(const struct tdm_slack *slack, const struct tdm_written *piece,
                    uint64_t element, double due)
{
    const struct tdm_launch *launch = slack->launch;
    switch (launch->op->kind) {
    case TDM_OP_PRODUCT:
    case TDM_OP_PRODUCT_GRAD_INPUT:
    case TDM_OP_PRODUCT_GRAD_WEIGHT:
        return of_product(slack, piece->tensor, element, due);
    case TDM_OP_NORM:
        return slack_sum_error((double)slack_model(slack)->hidden) * fabs(due);
    case TDM_OP_NORM_GRAD:
        return of_norm_grad(slack, piece, element);
    case TDM_OP_ROPE:
    case TDM_OP_ROPE_GRAD:
    case TDM_OP_KV_WRITE:
    case TDM_OP_KV_GRAD_READ:
        return slack_of_turn(slack, piece, element);
    case TDM_OP_PAGE_MEANS:
        return slack_of_means(slack, element);
    case TDM_OP_SELECT:
        return slack_of_select(slack, element);
    case TDM_OP_ATTENTION:
        return slack_of_attention(slack, piece, element);
    case TDM_OP_ATTENTION_GRAD:
        return slack_of_attention_grad(slack, piece, element);
    case TDM_OP_SWIGLU:
    case TDM_OP_SWIGLU_GRAD:
        return of_swiglu(slack, piece, element);
    case TDM_OP_HEAD:
    case TDM_OP_LOSS:
    case TDM_OP_HEAD_GRAD:
        return slack_of_head(slack, piece, element, due);
    case TDM_OP_GRADIENT_NORM: /* both sum in double */
        return 1e-12 * fabs(due);
    case TDM_OP_SORT_TOKENS: /* the second half is workspace of the sort */
        return element < launch->op->tokens ? EXACT : INFINITY;
    default:
        return EXACT;
    }
}
