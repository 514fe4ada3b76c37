/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LM head and loss of a tile of tokens, forward and backward in one op: logits, cross entropy, and
 * the gradients of the weights and of the normed rows, which they overwrite. Only one tile of the
 * logits exists at a time. The loss is the mean over the tokens of the step that have a target, so
 * every gradient is divided by their number. A target of -1 means none. TDM_OP_LOSS does the same
 * without gradients. Where a tile has only a part of the vocabulary, TDM_OP_LOSS adds up the sums
 * of its rows, and TDM_OP_HEAD_GRAD reads them and adds up the gradients of the rows in fp32.
 */
#include "executor/cpu/multiply.h"

#include "executor/convert.h"
#include "executor/cpu/exp.h"
#include "ops/head.h"
#include "schedule/layout.h"

#include <math.h>
#include <string.h>

enum { TASK_ROWS = 4, BLOCK = 1024, LANES = 16 }; /* rows of a task, columns at a time */

struct row;

struct head {
    const struct tdm_launch *launch;
    const struct tdm_operand *logits;
    const int32_t *targets;        /* of the tile */
    uint64_t first_entry, entries; /* of the vocabulary */
    double per_token;              /* 1 / tokens of the step that have a target */
    double *losses;                /* [rows of the tile] */
    struct row *rows;              /* [rows of the tile]; NULL: the vocabulary is in one tile */
    bool sums_are_there;           /* `rows` has the sums over the whole vocabulary */
    bool adds;                     /* to the sums in `rows` */
    bool backward;                 /* logits become their gradients */
};

static float largest(const float *x, uint64_t count, float most)
{
    float lane[LANES];
    uint64_t i = 0;
    for (int j = 0; j < LANES; j++)
        lane[j] = most;
    for (; i + LANES <= count; i += LANES) {
        TDM_SIMD
        for (int j = 0; j < LANES; j++)
            lane[j] = tdm_choose(x[i + j] > lane[j], x[i + j], lane[j]);
    }
    for (; i < count; i++)
        most = x[i] > most ? x[i] : most;
    for (int j = 0; j < LANES; j++)
        most = lane[j] > most ? lane[j] : most;
    return most;
}

/* Sum of exp(x - most), in lanes of double so that the order is fixed. */
static double sum_exp(const float *x, uint64_t count, float most)
{
    double lane[LANES] = {0}, sum = 0;
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        TDM_SIMD
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)tdm_exp(x[i + j] - most);
    }
    for (; i < count; i++)
        sum += (double)tdm_exp(x[i] - most);
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

/* A row's loss and gradient follow from these, which cover the vocabulary so far. The sum leaves
 * out the target: where its probability p is nearly 1, log(1 / p) and 1 - p follow from the others
 * without cancellation. */
struct row {
    double most;   /* the largest logit, the target's too */
    double others; /* sum of exp(logit - most) over all but the target */
    double target; /* logit of the target; 0 until it is read */
};

/* Does row t have its target among the op's entries? */
static bool has_target(const struct head *x, uint64_t t)
{
    return x->targets[t] >= 0 && (uint64_t)x->targets[t] - x->first_entry < x->entries;
}

/* Sum of exp(logit - most) over logits [first, end) of the op. */
static double sum_logits(const struct tdm_operand *logits, uint64_t first, uint64_t end, float most)
{
    float block[BLOCK];
    double sum = 0;
    for (uint64_t at = first; at < end; at += BLOCK) {
        uint64_t count = tdm_least(BLOCK, end - at);
        sum += sum_exp(tdm_view_row(logits->data, logits->dtype, at, count, block), count, most);
    }
    return sum;
}

/* Sums the op's logits of row t. */
static struct row sum_row(const struct head *x, uint64_t t)
{
    const struct tdm_operand *logits = x->logits;
    struct row row = {0};
    float most = -INFINITY, block[BLOCK], at_target;
    uint64_t first = t * x->entries, end = first + x->entries;
    for (uint64_t at = first; at < end; at += BLOCK) {
        uint64_t count = tdm_least(BLOCK, end - at);
        most = largest(tdm_view_row(logits->data, logits->dtype, at, count, block), count, most);
    }
    row.most = (double)most;
    if (!has_target(x, t)) {
        row.others = sum_logits(logits, first, end, most);
        return row;
    }
    uint64_t target = first + (uint64_t)x->targets[t] - x->first_entry;
    tdm_load_row(logits->data, logits->dtype, target, 1, &at_target);
    row.target = (double)at_target;
    row.others =
        sum_logits(logits, first, target, most) + sum_logits(logits, target + 1, end, most);
    return row;
}

static struct row join_rows(struct row a, struct row b)
{
    double most = a.most > b.most ? a.most : b.most;
    return (struct row){most, a.others * exp(a.most - most) + b.others * exp(b.most - most),
                        a.target + b.target};
}

/* Sum of exp(logit - most) over the vocabulary. */
static double total_of(const struct row *row)
{
    return row->others + exp(row->target - row->most);
}

/* log(1 / p) of the target, as a sum of terms that are not negative. */
static double loss_of(const struct row *row)
{
    return row->target >= row->most ? log1p(row->others)
                                    : row->most - row->target + log(total_of(row));
}

/* Replaces the op's logits of row t by their gradients. */
static void turn_row(const struct head *x, uint64_t t, const struct row *row)
{
    const struct tdm_operand *logits = x->logits;
    uint64_t first = t * x->entries;
    double total = total_of(row);
    float block[BLOCK], most = (float)row->most, scale = (float)(x->per_token / total);
    for (uint64_t c = 0; c < x->entries; c += BLOCK) {
        uint64_t count = tdm_least(BLOCK, x->entries - c);
        tdm_load_row(logits->data, logits->dtype, first + c, count, block);
        TDM_SIMD
        for (uint64_t j = 0; j < count; j++)
            block[j] = tdm_exp(block[j] - most) * scale;
        tdm_store_row(logits->data, logits->dtype, first + c, count, block);
    }
    if (!has_target(x, t))
        return;
    float d_target = (float)(-row->others / total * x->per_token); /* p - 1 */
    tdm_store_row(logits->data, logits->dtype, first + (uint64_t)x->targets[t] - x->first_entry, 1,
                  &d_target);
}

/* Computes the sums and the losses of rows of logits. In the backward, replaces the logits by their
 * gradients. */
static void softmax_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct head *x = context;
    uint64_t row_bytes = x->entries * tdm_dtype_bytes(x->logits->dtype);
    (void)thread_scratch;
    uint64_t end = tdm_least(x->launch->op->tokens, (index + 1) * TASK_ROWS);
    for (uint64_t t = index * TASK_ROWS; t < end; t++) {
        if (x->targets[t] < 0) {
            memset(tdm_operand_at(x->logits, t * x->entries), 0, row_bytes);
            x->losses[t] = 0;
            if (x->rows != NULL)
                x->rows[t] = (struct row){0};
            continue;
        }
        struct row row = x->sums_are_there ? x->rows[t] : sum_row(x, t);
        if (x->adds)
            row = join_rows(x->rows[t], row);
        if (x->rows != NULL)
            x->rows[t] = row;
        x->losses[t] = loss_of(&row);
        if (x->backward)
            turn_row(x, t, &row);
    }
}

/* Every token has a target, except the last of a document that ends in the sequence; but a step
 * with targets of its own may have none anywhere, and a document of a text may predict the first
 * token of the next one. */
static enum tdm_status check_targets(const struct tdm_launch *launch, const int32_t *targets,
                                     struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    const struct tdm_chunk *chunk = &launch->program->chunks[op->chunk];
    const struct tdm_sequence *sequence = tdm_launch_sequence(launch);
    bool own = launch->step->trained_tokens > 0;
    enum tdm_status status = TDM_OK;
    for (uint64_t t = 0; t < op->tokens && status == TDM_OK; t++) {
        uint64_t token = chunk->first_token + op->first_row + t;
        bool none = targets[t] == TDM_NO_TARGET;
        if (own ? !none : tdm_sequence_trains(sequence, token))
            status = tdm_cpu_check_tokens(launch, &targets[t], 1, err);
        else if (!none)
            status = tdm_fail(err, TDM_INPUT,
                              "token %llu of sequence %u ends a document and has target %d; %d is "
                              "due",
                              (unsigned long long)token, chunk->sequence, (int)targets[t],
                              TDM_NO_TARGET);
    }
    return status;
}

/* Matrices of a tile: rows [tokens, hidden], its part of the weight [entries, hidden], logits. */
struct products {
    struct tdm_matrix rows, weight, logits;
};

static struct tdm_matrix transposed(struct tdm_matrix matrix)
{
    matrix.transposed = true;
    return matrix;
}

static void multiply(struct tdm_executor *executor, uint64_t m, uint64_t n, uint64_t k,
                     struct tdm_matrix a, struct tdm_matrix b, bool add, struct tdm_matrix c)
{
    struct tdm_multiplication product = {.m = m, .n = n, .c = c, .add = add, .terms = 1};
    product.term[0].k = k;
    product.term[0].a = a;
    product.term[0].b = b;
    tdm_multiply(executor, 1, &product);
}

static void add_loss(const struct head *x, const struct tdm_operand *loss)
{
    double sum = 0, *total = loss->data;
    for (uint64_t t = 0; t < x->launch->op->tokens; t++)
        sum += x->losses[t];
    *total = (loss->mode == TDM_ACCUMULATE ? *total : 0.0) + sum * x->per_token;
}

/* The gradients of the rows, summed over the vocabulary, overwrite the normed rows. */
struct sums {
    const struct tdm_operand *from;
    struct tdm_matrix to;
    uint64_t rows, columns;
};

static void store_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct sums *x = context;
    uint64_t end = tdm_least(x->rows, (index + 1) * TDM_TASK_ROWS);
    (void)thread_scratch;
    for (uint64_t t = index * TDM_TASK_ROWS; t < end; t++)
        tdm_store_row(x->to.data, x->to.dtype, t * x->columns, x->columns,
                      (const float *)x->from->data + t * x->columns);
}

/* The gradient of the rows: stored at once, or summed over the vocabulary's tiles and then
 * stored. */
static void rows_gradient(struct tdm_executor *executor, const struct tdm_launch *launch,
                          const struct products *p)
{
    const struct tdm_op *op = launch->op;
    uint64_t hidden = tdm_launch_params(launch)->head.hidden;
    if (op->kind == TDM_OP_HEAD) {
        multiply(executor, op->tokens, hidden, op->entries, p->logits, p->weight, false, p->rows);
        return;
    }
    const struct tdm_operand *sum = &launch->operand[TDM_HEAD_GRAD_SUM];
    struct tdm_matrix to = {sum->data, sum->dtype, hidden, false};
    multiply(executor, op->tokens, hidden, op->entries, p->logits, p->weight,
             sum->mode == TDM_ACCUMULATE, to);
    struct sums sums = {sum, p->rows, op->tokens, hidden};
    if (launch->operand[TDM_HEAD_ROWS].mode == TDM_ACCUMULATE)
        tdm_cpu_for(executor, (op->tokens + TDM_TASK_ROWS - 1) / TDM_TASK_ROWS, store_task, &sums);
}

enum tdm_status tdm_cpu_head(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *normed = &launch->operand[TDM_HEAD_ROWS],
                             *tokens = &launch->operand[TDM_HEAD_TOKENS];
    const struct tdm_operand *w = &launch->operand[TDM_HEAD_WEIGHTS],
                             *logits = &launch->operand[TDM_HEAD_LOGITS];
    const struct tdm_operand *dw = &launch->operand[TDM_HEAD_DWEIGHTS];
    const struct tdm_operand *sums =
        &launch->operand[op->kind == TDM_OP_LOSS ? TDM_LOSS_LSE : TDM_HEAD_GRAD_LSE];
    uint64_t hidden = tdm_launch_params(launch)->head.hidden;
    uint64_t at = tdm_launch_tensors(launch).matrix[0]->offset + op->first_entry * hidden;
    uint64_t chunk_tokens = launch->program->chunks[op->chunk].tokens;

    unsigned char *scratch = executor->shared_scratch;
    struct head x = {
        .launch = launch,
        .logits = logits,
        .targets = (const int32_t *)tokens->data + chunk_tokens + op->first_row,
        .first_entry = op->first_entry,
        .entries = op->entries,
        .per_token = 1.0 / (double)tdm_launch_trained_tokens(launch),
        .losses = tdm_cpu_take(&scratch, op->tokens, sizeof(double)),
        .rows = op->kind == TDM_OP_HEAD ? NULL : sums->data,
        .sums_are_there = op->kind == TDM_OP_HEAD_GRAD,
        .adds = op->kind == TDM_OP_LOSS && sums->data != NULL && sums->mode == TDM_ACCUMULATE,
        .backward = op->kind != TDM_OP_LOSS,
    };
    enum tdm_status status = check_targets(launch, x.targets, err);
    if (status != TDM_OK)
        return status;

    struct products p = {
        {tdm_operand_at(normed, op->first_row * hidden), normed->dtype, hidden, false},
        {tdm_operand_at(w, at), w->dtype, hidden, false},
        {logits->data, logits->dtype, op->entries, false}};
    multiply(executor, op->tokens, op->entries, hidden, p.rows, transposed(p.weight), false,
             p.logits);
    tdm_cpu_for(executor, (op->tokens + TASK_ROWS - 1) / TASK_ROWS, softmax_task, &x);
    if (op->kind != TDM_OP_HEAD_GRAD && launch->operand[TDM_HEAD_LOSS].data != NULL)
        add_loss(&x, &launch->operand[TDM_HEAD_LOSS]);
    if (!x.backward)
        return TDM_OK;

    struct tdm_matrix to_weight = {tdm_operand_at(dw, at), dw->dtype, hidden, false};
    bool add =
        op->kind == TDM_OP_HEAD ? dw->mode == TDM_ACCUMULATE : !tdm_head_opens(launch->program, op);
    multiply(executor, op->entries, hidden, op->tokens, transposed(p.logits), p.rows, add,
             to_weight);
    rows_gradient(executor, launch, &p);
    return TDM_OK;
}

struct tdm_cpu_scratch tdm_cpu_head_scratch(const struct tdm_cpu_shape *shape)
{
    return (struct tdm_cpu_scratch){.shared_bytes = shape->chunk_tokens * sizeof(double) + 64};
}
