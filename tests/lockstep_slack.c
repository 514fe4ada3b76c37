/* SPDX-License-Identifier: Apache-2.0 */
/* Slack: bounds for the elements that ops write, from their operands. */
#include "tests/lockstep_slack.h"

#include "schedule/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNIT 0x1p-24 /* of fp32, half a unit in the last place of 1 */
#define ROUNDED_BF16 \
    0x1p-8 /* what rounding to bf16 changes at most: half a unit in the last place */
#define EXACT (-1.0)
#define LEAST_EXP 2e-35 /* exponentials below it are 0 on the cpu: executor/cpu/exp.h */

/* Relative to the sum of the terms' sizes. */
static double sum_error(double terms)
{
    return (8 + 2 * sqrt(terms)) * UNIT;
}

/* Tensor cores add products in fp32 but cut off where other units round, a bit or two further down. */
static double product_error(double terms, enum tdm_dtype factors)
{
    return sum_error(terms) * (factors == TDM_DTYPE_BF16 ? 4 : 1);
}

static double value_at(const struct tdm_operand *operand, uint64_t element)
{
    const void *at = tdm_operand_at(operand, element);
    float single;
    double wide;
    uint16_t half;
    switch (operand->dtype) {
    case TDM_DTYPE_FP32:
        memcpy(&single, at, sizeof(single));
        return (double)single;
    case TDM_DTYPE_BF16:
        memcpy(&half, at, sizeof(half));
        return (double)tdm_bf16_to_float(half);
    case TDM_DTYPE_FP64:
        memcpy(&wide, at, sizeof(wide));
        return wide;
    default:
        return NAN;
    }
}

static bool adds(const struct tdm_operand *operand)
{
    return operand->mode == TDM_ACCUMULATE;
}

/* ---- arrays of sizes ---- */

/* Takes an array of zeros, with one more than `count`. */
static double *take(struct tdm_slack *slack, int number, uint64_t count)
{
    slack->array[number] = calloc(count + 1, sizeof(double));
    return slack->array[number];
}

/* A matrix of an operand. */
struct view {
    const struct tdm_operand *operand;
    uint64_t first, rows, columns, stride;
};

/* Adds squares of rows to rows[], of columns to columns[]; either may be NULL. */
static void add_squares(const struct view *x, double *rows, double *columns)
{
    for (uint64_t r = 0; r < x->rows; r++)
        for (uint64_t c = 0; c < x->columns; c++) {
            double value = value_at(x->operand, x->first + r * x->stride + c);
            if (rows != NULL)
                rows[r] += value * value;
            if (columns != NULL)
                columns[c] += value * value;
        }
}

static void take_roots(double *squares, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        squares[i] = sqrt(squares[i]);
}

static const struct tdm_model *model_of(const struct tdm_slack *slack)
{
    return slack->launch->program->schedule->model;
}

/* ---- products ---- */

enum { INPUT_NORMS, WEIGHT_NORMS, BIAS_SUMS };

static bool begin_product(struct tdm_slack *slack)
{
    const struct tdm_product_part *part = &slack->part;
    const struct tdm_op *op = slack->launch->op;
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t tokens = op->tokens, inputs = part->inputs, outputs = part->outputs;
    bool forward = op->kind == TDM_OP_PRODUCT, of_weight = op->kind == TDM_OP_PRODUCT_GRAD_WEIGHT;
    uint64_t most = tokens + inputs + outputs;
    double *first = take(slack, INPUT_NORMS, most), *second = take(slack, WEIGHT_NORMS, most);
    double *sums = take(slack, BIAS_SUMS, outputs);
    if (first == NULL || second == NULL || sums == NULL)
        return false;
    if (of_weight) { /* columns of x and of dy */
        struct view x = {&operand[0], 0, tokens, inputs, inputs};
        struct view dy = {&operand[1], 0, tokens, outputs, outputs};
        add_squares(&x, NULL, first);
        add_squares(&dy, NULL, second);
        for (uint64_t t = 0; t < tokens; t++)
            for (uint64_t j = 0; j < outputs; j++)
                sums[j] += fabs(value_at(&operand[1], t * outputs + j));
    } else { /* rows of what comes in, and rows or columns of the weights */
        uint64_t width = forward ? inputs : outputs, row = 0;
        struct view x = {&operand[0], 0, tokens, width, width};
        add_squares(&x, first, NULL);
        for (uint32_t i = 0; i < part->count; i++) {
            struct view w = {&operand[1], part->matrix[i]->offset, part->matrix[i]->rows, inputs,
                             inputs};
            add_squares(&w, forward ? second + row : NULL, forward ? NULL : second);
            row += part->matrix[i]->rows;
        }
    }
    take_roots(first, most);
    take_roots(second, most);
    double terms = (double)(forward ? inputs : of_weight ? tokens : outputs);
    slack->relative = product_error(terms, operand[0].dtype);
    return true;
}

/* Column of a part's outputs at which a tensor's begin, and whether it is a bias. */
static uint64_t column_of(const struct tdm_product_part *part, const struct tdm_tensor *tensor,
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

/* What rounding a product to bf16 before it is added to something adds: some of cuBLASLt's kernels round
 * both the product and the sum, where the result is bf16. */
static double rounded_before(enum tdm_dtype result, double due, double addend)
{
    return result == TDM_DTYPE_BF16 ? ROUNDED_BF16 * fabs(due - addend) : 0;
}

static double of_product(const struct tdm_slack *slack, const struct tdm_tensor *tensor,
                         uint64_t element, double due)
{
    const struct tdm_product_part *part = &slack->part;
    const struct tdm_launch *launch = slack->launch;
    const struct tdm_operand *operand = launch->operand;
    const double *first = slack->array[INPUT_NORMS], *second = slack->array[WEIGHT_NORMS];
    bool is_bias = false;
    uint64_t column;
    double size, before;
    switch (launch->op->kind) {
    case TDM_OP_PRODUCT:
        column = element % part->outputs;
        size = first[element / part->outputs] * second[column];
        before = operand[3].data != NULL ? value_at(&operand[3], element) : 0;
        for (uint32_t i = 0; i < part->count; i++) {
            if (part->bias[i] != NULL && column < part->matrix[i]->rows)
                before = value_at(&operand[1], part->bias[i]->offset + column);
            column -= column < part->matrix[i]->rows ? column : part->matrix[i]->rows;
        }
        break;
    case TDM_OP_PRODUCT_GRAD_INPUT:
        size = first[element / part->inputs] * second[element % part->inputs];
        before = adds(&operand[2]) ? value_at(&operand[2], element) : 0;
        break;
    default:
        column = column_of(part, tensor, &is_bias);
        before = adds(&operand[2]) ? value_at(&operand[2], tensor->offset + element) : 0;
        size = is_bias ? slack->array[BIAS_SUMS][column + element]
                       : first[element % part->inputs] * second[column + element / part->inputs];
    }
    return slack->relative * (size + fabs(before)) +
           (before != 0 ? rounded_before(operand[2].dtype, due, before) : 0);
}

/* ---- norms ---- */

enum { SCALES, SLOPES, WEIGHT_SUMS };

static const struct tdm_tensor *norm_tensor(const struct tdm_slack *slack)
{
    const struct tdm_model *model = model_of(slack);
    const struct tdm_op *op = slack->launch->op;
    if (op->part == TDM_PART_FINAL_NORM)
        return tdm_model_tensor(model, tdm_model_head_unit(model), TDM_ROLE_FINAL_NORM);
    return tdm_model_tensor(model, op->layer,
                            op->part == TDM_PART_MLP_NORM ? TDM_ROLE_MLP_NORM
                                                          : TDM_ROLE_ATTENTION_NORM);
}

/* With s = 1 / sqrt(mean(x^2) + epsilon), terms of the gradients as in executor/cpu/norm.c. */
static bool begin_norm_grad(struct tdm_slack *slack)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t hidden = model_of(slack)->hidden, tokens = slack->launch->op->tokens;
    uint64_t weight = norm_tensor(slack)->offset;
    double *scales = take(slack, SCALES, tokens), *slopes = take(slack, SLOPES, tokens);
    double *sums = take(slack, WEIGHT_SUMS, hidden);
    if (scales == NULL || slopes == NULL || sums == NULL)
        return false;
    for (uint64_t t = 0; t < tokens; t++) {
        double squares = 0, dots = 0;
        for (uint64_t i = 0; i < hidden; i++) {
            double x = value_at(&operand[0], t * hidden + i);
            double dy = value_at(&operand[2], t * hidden + i);
            squares += x * x;
            dots += fabs(value_at(&operand[1], weight + i) * dy * x);
        }
        double s = 1 / sqrt(squares / (double)hidden + model_of(slack)->norm_epsilon);
        scales[t] = s;
        slopes[t] = s * s * s / (double)hidden * dots;
        for (uint64_t i = 0; i < hidden; i++)
            sums[i] += fabs(value_at(&operand[0], t * hidden + i) *
                            value_at(&operand[2], t * hidden + i)) *
                       s;
    }
    slack->relative = 2 * sum_error((double)hidden);
    return true;
}

static double of_norm_grad(const struct tdm_slack *slack, const struct tdm_written *piece,
                           uint64_t element)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t hidden = model_of(slack)->hidden, t = element / hidden, i = element % hidden;
    if (piece->operand == 4) {
        double before =
            adds(&operand[4]) ? value_at(&operand[4], piece->tensor->offset + element) : 0;
        double relative = slack->relative + sum_error((double)slack->launch->op->tokens);
        return relative * (slack->array[WEIGHT_SUMS][element] + fabs(before));
    }
    double w = value_at(&operand[1], norm_tensor(slack)->offset + i);
    double size = fabs(slack->array[SCALES][t] * w * value_at(&operand[2], element)) +
                  slack->array[SLOPES][t] * fabs(value_at(&operand[0], element));
    double before = adds(&operand[3]) ? value_at(&operand[3], element) : 0;
    return slack->relative * (size + fabs(before));
}

/* ---- RoPE ---- */

enum { HEAD_SLACK, HEAD_WEIGHT_SUMS };

/* Where heads that turn come from and, with QK-norm, what was normed, its weights and their gradient. */
struct turn {
    uint32_t from, raw, weight, gradient;
    uint64_t heads, from_stride, raw_stride;
    bool from_pages, back, normed;
};

static struct turn turn_of(const struct tdm_slack *slack)
{
    const struct tdm_model *model = model_of(slack);
    const struct tdm_op *op = slack->launch->op;
    uint64_t q = (uint64_t)model->query_heads * model->head_dim;
    uint64_t kv = 2 * (uint64_t)model->kv_heads * model->head_dim;
    struct turn turn = {.normed = op->part == TDM_PART_Q_NORM || op->part == TDM_PART_K_NORM};
    switch (op->kind) {
    case TDM_OP_ROPE:
        turn.heads = model->query_heads;
        turn.from_stride = q;
        turn.weight = 1;
        break;
    case TDM_OP_ROPE_GRAD:
        turn.heads = model->query_heads;
        turn.from_stride = turn.raw_stride = q;
        turn.raw = 1;
        turn.weight = 2;
        turn.gradient = 3;
        turn.back = true;
        break;
    case TDM_OP_KV_WRITE:
        turn.heads = model->kv_heads;
        turn.from_stride = kv;
        turn.weight = 2;
        break;
    default:
        turn.heads = model->kv_heads;
        turn.from_pages = turn.back = true;
        turn.raw_stride = kv;
        turn.raw = 2;
        turn.weight = 3;
        turn.gradient = 4;
    }
    return turn;
}

/* First element of token t's K in a slot of pages. */
static uint64_t page_element(const struct tdm_slack *slack, uint64_t t)
{
    const struct tdm_schedule *schedule = slack->launch->program->schedule;
    const struct tdm_model *model = schedule->model;
    return t / schedule->page_tokens * tdm_page_elements(schedule) +
           t % schedule->page_tokens * model->kv_heads * model->head_dim;
}

/* Slack of the elements of one head, `at` its first element in what comes in, `raw` in what was normed. */
static void turn_head(struct tdm_slack *slack, const struct turn *turn, uint64_t weight,
                      uint64_t at, uint64_t raw, double factor, double *out)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t dim = model_of(slack)->head_dim, half = dim / 2;
    double squares = 0, dots = 0, error = sum_error((double)dim);
    const struct tdm_operand *normed = &operand[turn->back ? turn->raw : turn->from];
    for (uint64_t i = 0; i < dim && turn->normed; i++) {
        double x = value_at(normed, (turn->back ? raw : at) + i);
        squares += x * x;
    }
    double s = 1 / sqrt(squares / (double)dim + model_of(slack)->norm_epsilon);
    for (uint64_t i = 0; i < dim; i++) {
        uint64_t other = i < half ? i + half : i - half;
        double mine = fabs(value_at(&operand[turn->from], at + i));
        double its = fabs(value_at(&operand[turn->from], at + other));
        if (turn->normed && !turn->back) {
            mine *= s * fabs(value_at(&operand[turn->weight], weight + i));
            its *= s * fabs(value_at(&operand[turn->weight], weight + other));
        }
        out[i] = factor * (mine + its); /* size of what was turned */
    }
    for (uint64_t i = 0; i < dim && turn->normed && turn->back; i++) {
        double x = fabs(value_at(normed, raw + i));
        slack->array[HEAD_WEIGHT_SUMS][i] += out[i] * x * s;
        out[i] *= fabs(value_at(&operand[turn->weight], weight + i));
        dots += out[i] * x;
    }
    for (uint64_t i = 0; i < dim; i++) {
        if (turn->normed && turn->back)
            out[i] = s * out[i] + s * s * s / (double)dim * dots * fabs(value_at(normed, raw + i));
        out[i] *= turn->normed ? 2 * error : 8 * UNIT;
    }
}

static bool begin_turn(struct tdm_slack *slack)
{
    const struct tdm_model *model = model_of(slack);
    const struct tdm_op *op = slack->launch->op;
    struct turn turn = turn_of(slack);
    uint64_t dim = model->head_dim, weight = 0;
    double *heads = take(slack, HEAD_SLACK, op->tokens * turn.heads * dim), factor;
    double *sums = take(slack, HEAD_WEIGHT_SUMS, dim), *frequencies = take(slack, 2, dim);
    if (heads == NULL || sums == NULL || frequencies == NULL)
        return false;
    tdm_rope_inverse_frequencies(model, frequencies, &factor);
    if (turn.normed)
        weight = tdm_model_tensor(model, op->layer,
                                  op->part == TDM_PART_Q_NORM ? TDM_ROLE_Q_NORM : TDM_ROLE_K_NORM)
                     ->offset;
    for (uint64_t t = 0; t < op->tokens; t++)
        for (uint64_t h = 0; h < turn.heads; h++) {
            uint64_t at = turn.from_pages ? page_element(slack, t) : t * turn.from_stride;
            turn_head(slack, &turn, weight, at + h * dim, t * turn.raw_stride + h * dim, factor,
                      heads + (t * turn.heads + h) * dim);
        }
    return true;
}

static double of_turn(const struct tdm_slack *slack, const struct tdm_written *piece,
                      uint64_t element)
{
    const struct tdm_schedule *schedule = slack->launch->program->schedule;
    const struct tdm_op *op = slack->launch->op;
    struct turn turn = turn_of(slack);
    uint64_t width = turn.heads * schedule->model->head_dim;
    if (turn.back && turn.normed && piece->operand == turn.gradient) {
        const struct tdm_operand *dw = &slack->launch->operand[turn.gradient];
        double before = adds(dw) ? value_at(dw, piece->tensor->offset + element) : 0;
        double terms = (double)(op->tokens * turn.heads + schedule->model->head_dim);
        return 2 * sum_error(terms) * (slack->array[HEAD_WEIGHT_SUMS][element] + fabs(before));
    }
    uint64_t t = element / width, column = element % width;
    if (op->kind == TDM_OP_KV_WRITE) {
        uint64_t page = element / tdm_page_elements(schedule);
        uint64_t in_page = element % tdm_page_elements(schedule);
        if (in_page >= tdm_page_plane_elements(schedule))
            return EXACT; /* V is moved */
        t = page * schedule->page_tokens + in_page / width;
        column = in_page % width;
    } else if (op->kind == TDM_OP_KV_GRAD_READ) {
        t = element / (2 * width);
        column = element % (2 * width);
    }
    return t < op->tokens && column < width ? slack->array[HEAD_SLACK][t * width + column] : EXACT;
}

/* ---- attention ---- */

/* Slack of a row's scores and what else a row has; largest sizes of a KV head; sums of the probabilities of
 * a key over the rows that see it. */
enum { SCORES, ROW_GRADIENTS, KEY_NORMS, KEYS, VALUES, ROWS, KEY_SUMS, OUT_GRADIENTS };

struct heads {
    uint64_t tokens, query_heads, kv_heads, dim, ratio, keys;
    double scale;
    double rounded; /* what rounding probabilities to bf16 can add */
};

static struct heads heads_of(const struct tdm_slack *slack)
{
    const struct tdm_program *program = slack->launch->program;
    const struct tdm_model *model = model_of(slack);
    const struct tdm_access *pages = &slack->launch->op->access[1];
    const struct tdm_operand *operand = slack->launch->operand;
    struct heads x = {slack->launch->op->tokens,
                      model->query_heads,
                      model->kv_heads,
                      model->head_dim,
                      model->query_heads / model->kv_heads,
                      0,
                      1 / sqrt((double)model->head_dim),
                      0};
    for (uint32_t i = 0; i < pages->slots; i++)
        x.keys += program->chunks[pages->before.chunk + i].tokens;
    /* tensor cores take the probabilities, and their gradients, in bf16 */
    if (operand[0].dtype == TDM_DTYPE_BF16 && operand[1].dtype == TDM_DTYPE_BF16)
        x.rounded = ROUNDED_BF16;
    return x;
}

static void raise_to(double *most, double value)
{
    *most = value > *most ? value : *most;
}

/* Largest norms and elements of K and V of each KV head: [kv_heads] and [kv_heads, dim]. */
static void find_keys(struct tdm_slack *slack, const struct heads *x)
{
    const struct tdm_program *program = slack->launch->program;
    const struct tdm_access *access = &slack->launch->op->access[1];
    const struct tdm_operand *pages = &slack->launch->operand[1];
    uint64_t plane = tdm_page_plane_elements(program->schedule);
    double *norms = slack->array[KEY_NORMS]; /* of K, then of V */
    for (uint32_t slot = 0; slot < access->slots; slot++) {
        uint64_t tokens = program->chunks[access->before.chunk + slot].tokens;
        uint64_t first = slot * (pages->slot_bytes / tdm_dtype_bytes(pages->dtype));
        for (uint64_t t = 0; t < tokens; t++)
            for (uint64_t g = 0; g < x->kv_heads; g++) {
                uint64_t at = first + page_element(slack, t) + g * x->dim;
                double of_k = 0, of_v = 0;
                for (uint64_t i = 0; i < x->dim; i++) {
                    double k = value_at(pages, at + i), v = value_at(pages, at + plane + i);
                    of_k += k * k;
                    of_v += v * v;
                    raise_to(&slack->array[KEYS][g * x->dim + i], fabs(k));
                    raise_to(&slack->array[VALUES][g * x->dim + i], fabs(v));
                }
                raise_to(&norms[g], sqrt(of_k));
                raise_to(&norms[x->kv_heads + g], sqrt(of_v));
            }
    }
}

/* Scores q k / sqrt(dim), and so logarithms of probabilities, are right to this; and dP - D of a row are at
 * most so large. */
static void find_rows(struct tdm_slack *slack, const struct heads *x, bool back)
{
    const struct tdm_operand *operand = slack->launch->operand;
    double error = product_error((double)x->dim, operand[0].dtype) + 16 * UNIT;
    const double *norms = slack->array[KEY_NORMS];
    uint64_t rows = x->tokens * x->query_heads; /* behind them the largest */
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t g = row % x->query_heads / x->ratio;
        double q = 0, d = 0, o = 0;
        for (uint64_t i = 0; i < x->dim; i++) {
            double of_q = value_at(&operand[0], row * x->dim + i);
            q += of_q * of_q;
            raise_to(&slack->array[ROWS][g * x->dim + i], fabs(of_q));
            if (!back)
                continue;
            double of_o = value_at(&operand[2], row * x->dim + i);
            double of_d = value_at(&operand[3], row * x->dim + i);
            o += of_o * of_o;
            d += of_d * of_d;
            raise_to(&slack->array[OUT_GRADIENTS][g * x->dim + i], fabs(of_d));
        }
        slack->array[SCORES][row] = error * (sqrt(q) * norms[g] * x->scale + 1);
        slack->array[ROW_GRADIENTS][row] = sqrt(d) * (norms[x->kv_heads + g] + sqrt(o));
        raise_to(&slack->array[SCORES][rows], slack->array[SCORES][row]);
        raise_to(&slack->array[ROW_GRADIENTS][rows], slack->array[ROW_GRADIENTS][row]);
    }
}

/* Sums of the probabilities of every key: dV of gradients that are all one. */
static bool find_key_sums(struct tdm_slack *slack, const struct heads *x, struct tdm_error *err)
{
    const struct tdm_program *program = slack->launch->program;
    struct tdm_launch launch = *slack->launch;
    uint64_t elements = x->tokens * x->query_heads * x->dim;
    unsigned char *ones = calloc(elements, sizeof(float)), *dq = calloc(elements, sizeof(float));
    unsigned char *pages[2] = {NULL, NULL};
    bool done = ones != NULL && dq != NULL;
    for (uint64_t i = 0; i < elements && done; i++) {
        const float one = 1;
        const uint16_t half = tdm_float_to_bf16(one);
        if (launch.operand[3].dtype == TDM_DTYPE_FP32)
            memcpy(ones + i * sizeof(one), &one, sizeof(one));
        else
            memcpy(ones + i * sizeof(half), &half, sizeof(half));
    }
    launch.operand[3].data = ones;
    launch.operand[4].data = dq;
    for (uint32_t i = 0; i < 2 && done; i++) {
        struct tdm_operand *operand = &launch.operand[5 + i];
        if (operand->data == NULL)
            continue;
        pages[i] = calloc(operand->slots, operand->slot_bytes);
        done = pages[i] != NULL;
        operand->data = pages[i];
    }
    const struct tdm_arenas *cpu = slack->cpu;
    done = done && cpu->backend->run[TDM_OP_ATTENTION_GRAD](cpu->executor, &launch, err) == TDM_OK;

    uint64_t key = 0;
    for (uint32_t i = 0; i < 2 && done; i++) {
        const struct tdm_operand *operand = &launch.operand[5 + i];
        uint32_t first = slack->launch->op->access[5 + i].after.chunk;
        for (uint32_t slot = 0; slot < operand->slots && operand->data != NULL; slot++)
            for (uint64_t t = 0; t < program->chunks[first + slot].tokens; t++, key++)
                for (uint64_t g = 0; g < x->kv_heads; g++)
                    slack->array[KEY_SUMS][key * x->kv_heads + g] = value_at(
                        operand, slot * (operand->slot_bytes / tdm_dtype_bytes(operand->dtype)) +
                                     tdm_page_plane_elements(program->schedule) +
                                     page_element(slack, t) + g * x->dim);
    }
    free(ones);
    free(dq);
    free(pages[0]);
    free(pages[1]);
    return done;
}

static bool begin_attention(struct tdm_slack *slack, struct tdm_error *err)
{
    struct heads x = heads_of(slack);
    bool back = slack->launch->op->kind == TDM_OP_ATTENTION_GRAD, taken = true;
    uint64_t rows = x.tokens * x.query_heads, columns = x.kv_heads * x.dim;
    const uint64_t counts[TDM_SLACK_ARRAYS] = {rows + 1, rows + 1, 2 * x.kv_heads,      columns,
                                               columns,  columns,  x.keys * x.kv_heads, columns};
    for (int i = 0; i < TDM_SLACK_ARRAYS; i++)
        taken = take(slack, i, counts[i]) != NULL && taken;
    if (!taken)
        return false;
    find_keys(slack, &x);
    find_rows(slack, &x, back);
    return !back || find_key_sums(slack, &x, err);
}

static double of_attention(const struct tdm_slack *slack, const struct tdm_written *piece,
                           uint64_t element)
{
    struct heads x = heads_of(slack);
    uint64_t row = piece->lse ? element : element / x.dim;
    if (row >= x.tokens * x.query_heads)
        return EXACT;
    double scores = slack->array[SCORES][row];
    if (piece->lse)
        return scores + sum_error((double)x.keys) * (1 + log((double)x.keys + 1));
    uint64_t g = row % x.query_heads / x.ratio;
    double relative =
        2 * scores + product_error((double)x.keys, slack->launch->operand[1].dtype) + x.rounded;
    return relative * slack->array[VALUES][g * x.dim + element % x.dim];
}

static double of_attention_grad(const struct tdm_slack *slack, const struct tdm_written *piece,
                                uint64_t element)
{
    const struct tdm_program *program = slack->launch->program;
    const struct tdm_operand *operand = &slack->launch->operand[piece->operand];
    struct heads x = heads_of(slack);
    double error = product_error((double)(x.keys + x.tokens * x.ratio + x.dim),
                                 slack->launch->operand[0].dtype) +
                   x.rounded;
    if (piece->operand == 4) {
        uint64_t row = element / x.dim, g = row % x.query_heads / x.ratio;
        if (row >= x.tokens * x.query_heads)
            return EXACT;
        return x.scale * (2 * slack->array[SCORES][row] + error) *
               slack->array[ROW_GRADIENTS][row] * slack->array[KEYS][g * x.dim + element % x.dim];
    }
    /* a key's, in the slots that are written, or added to behind these */
    const struct tdm_access *access = &slack->launch->op->access[piece->operand];
    uint32_t first_chunk = slack->launch->op->access[1].before.chunk;
    uint32_t chunk = access->after.chunk + piece->slot;
    uint64_t page = element / tdm_page_elements(program->schedule);
    uint64_t in_page = element % tdm_page_elements(program->schedule);
    uint64_t plane = tdm_page_plane_elements(program->schedule), width = x.kv_heads * x.dim;
    bool of_v = in_page >= plane;
    uint64_t t = page * program->schedule->page_tokens + in_page % plane / width;
    uint64_t column = in_page % plane % width, key = t;
    if (t >= program->chunks[chunk].tokens)
        return EXACT;
    for (uint32_t i = first_chunk; i < chunk; i++)
        key += program->chunks[i].tokens;
    double sum = slack->array[KEY_SUMS][key * x.kv_heads + column / x.dim];
    double scores = slack->array[SCORES][x.tokens * x.query_heads];
    double rows = slack->array[ROW_GRADIENTS][x.tokens * x.query_heads];
    uint64_t at = piece->slot * (operand->slot_bytes / tdm_dtype_bytes(operand->dtype)) + element;
    double before = adds(operand) ? fabs(value_at(operand, at)) : 0;
    double size =
        of_v ? slack->array[OUT_GRADIENTS][column] : x.scale * rows * slack->array[ROWS][column];
    return (2 * scores + error) * sum * size + 4 * UNIT * before;
}

/* ---- SwiGLU ---- */

static double of_swiglu(const struct tdm_slack *slack, uint64_t element)
{
    const struct tdm_operand *operand = slack->launch->operand;
    uint64_t columns = model_of(slack)->intermediate, tokens = slack->launch->op->tokens;
    bool back = slack->launch->op->kind == TDM_OP_SWIGLU_GRAD;
    uint64_t width = back ? 2 * columns : columns;
    uint64_t t = element / width, column = element % width % columns;
    if (t >= tokens)
        return EXACT;
    double gate = value_at(&operand[0], t * 2 * columns + column);
    double up = value_at(&operand[0], t * 2 * columns + columns + column);
    double s = 1 / (1 + exp(-gate)), error = (8 + 2 * fabs(gate)) * UNIT;
    if (!back)
        return error * fabs(gate * s * up);
    double d = value_at(&operand[1], t * columns + column);
    return error * fabs(d) *
           (element % width < columns ? fabs(up) * s * (1 + fabs(gate) * (1 - s)) : fabs(gate) * s);
}

/* ---- LM head ---- */

/* Of logits [tokens, entries]: their gradients' sizes and slack, by row and by entry; of the normed rows by
 * column; of a row's loss; of a row's largest logit. */
enum {
    LOGITS,
    GRADIENT_SLACK,
    ROW_SLACK,
    COLUMN_NORMS,
    ROW_NORMS,
    ENTRY_NORMS,
    LOSSES,
    LOGIT_SLACK
};

struct head {
    uint64_t tokens, entries, hidden, weight; /* weight: first element of the op's entries */
    const int32_t *targets;
    double per_token;
    bool narrow; /* logits are rounded to bf16 */
};

static struct head head_of(const struct tdm_slack *slack)
{
    const struct tdm_program *program = slack->launch->program;
    const struct tdm_model *model = model_of(slack);
    const struct tdm_op *op = slack->launch->op;
    uint32_t unit = model->tied ? tdm_model_embedding_unit(model) : tdm_model_head_unit(model);
    const struct tdm_tensor *tensor =
        tdm_model_tensor(model, unit, model->tied ? TDM_ROLE_EMBEDDING : TDM_ROLE_HEAD);
    const int32_t *tokens = slack->launch->operand[1].data;
    return (struct head){
        .tokens = op->tokens,
        .entries = op->entries,
        .hidden = model->hidden,
        .weight = tensor->offset + (uint64_t)op->first_entry * model->hidden,
        .targets = tokens + program->chunks[op->chunk].tokens + op->first_row,
        .per_token = 1.0 / (double)tdm_schedule_trained_tokens(program->schedule),
        .narrow = slack->launch->operand[3].dtype == TDM_DTYPE_BF16,
    };
}

/* Slack of a logit and of its gradient, row by row. */
static void find_row(struct tdm_slack *slack, const struct head *x, uint64_t t, const double *rows,
                     const double *entries)
{
    const struct tdm_operand *operand = slack->launch->operand;
    double *logits = slack->array[LOGITS] + t * x->entries;
    double *gradients = slack->array[GRADIENT_SLACK] + t * x->entries;
    double *slacks = slack->array[LOGIT_SLACK] + t * x->entries;
    double error = product_error((double)x->hidden, operand[0].dtype), most = -INFINITY, sum = 0;
    double mean = 0;
    for (uint64_t v = 0; v < x->entries; v++) {
        slacks[v] = error * rows[t] * entries[v];
        if (x->narrow) /* to one neighbour or the other */
            slacks[v] += 2 * ROUNDED_BF16 * (fabs(logits[v]) + slacks[v]);
        raise_to(&most, logits[v]);
    }
    if (slack->launch->op->kind == TDM_OP_HEAD_GRAD) { /* of the whole vocabulary, and the same */
        const double *lse = (const double *)operand[5].data + 3 * t;
        most = lse[0];
        sum = lse[1];
    } else {
        for (uint64_t v = 0; v < x->entries; v++)
            sum += exp(logits[v] - most);
        for (uint64_t v = 0; v < x->entries; v++)
            mean += exp(logits[v] - most) / sum * slacks[v];
    }
    uint64_t target = (uint64_t)(uint32_t)x->targets[t] - slack->launch->op->first_entry;
    for (uint64_t v = 0; v < x->entries; v++) {
        double p = exp(logits[v] - most) / sum;
        double exponent = (16 + 4 * fabs(logits[v] - most)) * UNIT;
        gradients[v] = x->per_token * (p * (slacks[v] + mean + exponent) + LEAST_EXP +
                                       (v == target ? 16 * UNIT * fabs(1 - p) : 0));
        logits[v] = x->per_token * (v == target ? fabs(1 - p) : p); /* the gradient's size */
        if (x->narrow)
            gradients[v] += 2 * ROUNDED_BF16 * (logits[v] + gradients[v]);
    }
    double of_target = target < x->entries ? slacks[target] : 0;
    slack->array[LOSSES][t] =
        mean + of_target + sum_error((double)x->entries) * (1 + log((double)x->entries));
}

static bool begin_head(struct tdm_slack *slack)
{
    const struct tdm_operand *operand = slack->launch->operand;
    struct head x = head_of(slack);
    uint64_t most = x.tokens + x.hidden + x.entries,
             first = slack->launch->op->first_row * x.hidden;
    const uint64_t counts[TDM_SLACK_ARRAYS] = {x.tokens * x.entries,
                                               x.tokens * x.entries,
                                               2 * x.tokens,
                                               2 * x.hidden,
                                               most,
                                               3 * x.entries,
                                               x.tokens,
                                               x.tokens * x.entries};
    for (int i = 0; i < TDM_SLACK_ARRAYS; i++)
        if (take(slack, i, counts[i]) == NULL)
            return false;
    struct view normed = {&operand[0], first, x.tokens, x.hidden, x.hidden};
    struct view weight = {&operand[2], x.weight, x.entries, x.hidden, x.hidden};
    double *rows = slack->array[ROW_NORMS], *entries = slack->array[ENTRY_NORMS];
    double *columns = slack->array[COLUMN_NORMS]; /* of the rows, then of the weight */
    add_squares(&normed, rows, columns);
    add_squares(&weight, entries, columns + x.hidden);
    take_roots(rows, x.tokens);
    take_roots(entries, x.entries);
    take_roots(columns, 2 * x.hidden);
    for (uint64_t t = 0; t < x.tokens; t++) {
        if (x.targets[t] < 0)
            continue;
        for (uint64_t v = 0; v < x.entries; v++)
            for (uint64_t i = 0; i < x.hidden; i++)
                slack->array[LOGITS][t * x.entries + v] +=
                    value_at(&operand[0], first + t * x.hidden + i) *
                    value_at(&operand[2], x.weight + v * x.hidden + i);
        find_row(slack, &x, t, rows, entries);
        for (uint64_t v = 0; v < x.entries; v++) { /* slack, and size, of rows and of entries */
            double each = slack->array[GRADIENT_SLACK][t * x.entries + v];
            double size = slack->array[LOGITS][t * x.entries + v];
            slack->array[ROW_SLACK][t] += each * each;
            slack->array[ROW_SLACK][x.tokens + t] += size * size;
            entries[x.entries + v] += each * each;
            entries[2 * x.entries + v] += size * size;
        }
    }
    take_roots(slack->array[ROW_SLACK], 2 * x.tokens);
    take_roots(entries + x.entries, 2 * x.entries);
    return true;
}

/* Of a sum over the vocabulary: what the factors' slack makes, and the sum itself. */
static double of_head_rows(const struct tdm_slack *slack, const struct head *x, uint64_t element)
{
    uint64_t t = element / x->hidden, i = element % x->hidden;
    if (t >= x->tokens)
        return EXACT;
    double error = product_error((double)x->entries, slack->launch->operand[3].dtype);
    return (slack->array[ROW_SLACK][t] + error * slack->array[ROW_SLACK][x->tokens + t]) *
           slack->array[COLUMN_NORMS][x->hidden + i];
}

static double of_head_weight(const struct tdm_slack *slack, const struct head *x, uint64_t element)
{
    uint64_t first = x->weight - slack->launch->op->first_entry * x->hidden; /* the tensor's */
    uint64_t v = element / x->hidden - slack->launch->op->first_entry;
    if (element / x->hidden < slack->launch->op->first_entry || v >= x->entries)
        return EXACT;
    const struct tdm_operand *dw = &slack->launch->operand[4];
    const double *entries = slack->array[ENTRY_NORMS];
    double error = product_error((double)x->tokens, slack->launch->operand[3].dtype);
    bool add = slack->launch->op->kind == TDM_OP_HEAD
                   ? adds(dw)
                   : !tdm_head_opens(slack->launch->program, slack->launch->op);
    double before = add ? fabs(value_at(dw, first + element)) : 0;
    return (entries[x->entries + v] + error * entries[2 * x->entries + v]) *
               slack->array[COLUMN_NORMS][element % x->hidden] +
           4 * UNIT * before;
}

static double of_logit(const struct tdm_slack *slack, const struct head *x, uint64_t element)
{
    uint64_t t = element / x->entries;
    if (t >= x->tokens)
        return EXACT;
    if (slack->launch->op->kind != TDM_OP_LOSS)
        return slack->array[GRADIENT_SLACK][element];
    return x->targets[t] < 0 ? INFINITY : slack->array[LOGIT_SLACK][element];
}

/* Largest logit, sum of exponentials, logit of the target: together with those of a row so far, of which
 * the bits are given. */
static double of_lse(const struct tdm_slack *slack, const struct head *x, uint64_t element,
                     double due)
{
    uint64_t t = element / 3;
    double most = 0;
    if (t >= x->tokens)
        return EXACT;
    for (uint64_t v = 0; v < x->entries; v++)
        raise_to(&most, slack->array[LOGIT_SLACK][t * x->entries + v]);
    return element % 3 == 1 ? (2 * most + sum_error((double)x->entries)) * fabs(due) : most;
}

static double of_head(const struct tdm_slack *slack, const struct tdm_written *piece,
                      uint64_t element, double due)
{
    const struct tdm_op *op = slack->launch->op;
    const struct tdm_operand *operand = slack->launch->operand;
    struct head x = head_of(slack);
    if (piece->operand == 0) {
        uint64_t first = op->first_row * x.hidden;
        double added = 4 * UNIT * fabs(due); /* of a sum over tiles of the vocabulary */
        return element < first ? EXACT : of_head_rows(slack, &x, element - first) + added;
    }
    if (piece->operand == 3)
        return of_logit(slack, &x, element);
    if (op->kind == TDM_OP_HEAD_GRAD && piece->operand == 6)
        return of_head_rows(slack, &x, element) +
               4 * UNIT * (adds(&operand[6]) ? fabs(value_at(&operand[6], element)) : 0);
    if (op->kind != TDM_OP_LOSS && piece->operand == 4)
        return of_head_weight(slack, &x, element);
    if (op->kind == TDM_OP_LOSS && piece->operand == 4)
        return of_lse(slack, &x, element, due);
    double losses = 0; /* with parts of the vocabulary the sums so far are given */
    for (uint64_t t = 0; t < x.tokens; t++)
        losses += x.targets[t] < 0 ? 0 : slack->array[LOSSES][t];
    return losses * x.per_token + 1e-12 * fabs(due);
}

/* ---- all ---- */

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
        done = begin_turn(slack);
        break;
    case TDM_OP_ATTENTION:
    case TDM_OP_ATTENTION_GRAD:
        done = begin_attention(slack, err);
        break;
    case TDM_OP_HEAD:
    case TDM_OP_LOSS:
    case TDM_OP_HEAD_GRAD:
        done = begin_head(slack);
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
        return sum_error((double)model_of(slack)->hidden) * fabs(due);
    case TDM_OP_NORM_GRAD:
        return of_norm_grad(slack, piece, element);
    case TDM_OP_ROPE:
    case TDM_OP_ROPE_GRAD:
    case TDM_OP_KV_WRITE:
    case TDM_OP_KV_GRAD_READ:
        return of_turn(slack, piece, element);
    case TDM_OP_ATTENTION:
        return of_attention(slack, piece, element);
    case TDM_OP_ATTENTION_GRAD:
        return of_attention_grad(slack, piece, element);
    case TDM_OP_SWIGLU:
    case TDM_OP_SWIGLU_GRAD:
        return of_swiglu(slack, element);
    case TDM_OP_HEAD:
    case TDM_OP_LOSS:
    case TDM_OP_HEAD_GRAD:
        return of_head(slack, piece, element, due);
    case TDM_OP_GRADIENT_NORM: /* a sum in double on both */
        return 1e-12 * fabs(due);
    case TDM_OP_SORT_TOKENS: /* the second half is for whoever needs it */
        return element < launch->op->tokens ? EXACT : INFINITY;
    default:
        return EXACT;
    }
}
