/* SPDX-License-Identifier: Apache-2.0 */
/* Slack of the LM head and the loss. The slack of logits determines that of their gradients and of
 * the loss. */
#include "tests/support/slack_parts.h"

#include "ops/head.h"

/* Arrays [tokens, entries] of logits (later the sizes of their gradients) and of gradient slack;
 * norms: of slack and size by row, of columns of the normed rows and the weight, of the normed
 * rows, by entry of weight, slack and size; slack of a row's loss and of logits; relative error of
 * the sum over all entries but the target. */
enum {
    LOGITS,
    GRADIENT_SLACK,
    ROW_SLACK,
    COLUMN_NORMS,
    ROW_NORMS,
    ENTRY_NORMS,
    LOSSES,
    LOGIT_SLACK,
    OTHERS_ERRORS
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
    const struct tdm_model *model = slack_model(slack);
    const struct tdm_op *op = slack->launch->op;
    uint32_t unit = model->tied ? tdm_model_embedding_unit(model) : tdm_model_head_unit(model);
    const struct tdm_tensor *tensor =
        tdm_model_tensor(model, unit, model->tied ? TDM_ROLE_EMBEDDING : TDM_ROLE_HEAD);
    const int32_t *tokens = slack->launch->operand[TDM_HEAD_TOKENS].data;
    return (struct head){
        .tokens = op->tokens,
        .entries = op->entries,
        .hidden = model->hidden,
        .weight = tensor->offset + (uint64_t)op->first_entry * model->hidden,
        .targets = tokens + program->chunks[op->chunk].tokens + op->first_row,
        .per_token = 1.0 / (double)tdm_schedule_trained_tokens(program->schedule),
        .narrow = slack->launch->operand[TDM_HEAD_LOGITS].dtype == TDM_DTYPE_BF16,
    };
}

/* Relative error of exp(-distance) in fp32. The argument is rounded too. */
static double exponent_error(double distance)
{
    return (16 + 6 * distance) * UNIT;
}

/* Sums over a row of logits from which its loss and gradients follow, and their errors. */
struct sums {
    double most, total;   /* the largest logit, sum of exp(logit - most) */
    double others;        /* total without the target */
    double others_error;  /* relative, without the error of `most` */
    double mean_slack;    /* of the logits, weighted by probability */
    double largest_slack; /* of all logits */
    double moved;         /* error of others / total, and of log(total / target) */
};

/* Sums over the op's logits of one row. `target` is an entry, or beyond them. */
static struct sums sum_row(const struct head *x, const double *logits, const double *slacks,
                           uint64_t target)
{
    struct sums sums = {.most = -INFINITY};
    double of_target = target < x->entries ? slacks[target] : 0;
    for (uint64_t v = 0; v < x->entries; v++) {
        slack_raise_to(&sums.most, logits[v]);
        slack_raise_to(&sums.largest_slack, slacks[v]);
    }
    for (uint64_t v = 0; v < x->entries; v++) {
        double distance = sums.most - logits[v], term = exp(-distance);
        double error = slacks[v] + exponent_error(distance);
        sums.total += term;
        sums.mean_slack += term * slacks[v];
        if (v == target)
            continue;
        sums.others += term;
        sums.others_error += term * error;
        sums.moved += term * expm1(error + of_target) + LEAST_EXP;
    }
    double added = slack_sum_error((double)x->entries);
    sums.mean_slack /= sums.total;
    sums.moved = (sums.moved + added * sums.others) / sums.total;
    sums.others_error = sums.others > 0 ? sums.others_error / sums.others + added : added;
    return sums;
}

/* Slack of a loss. If the op has only part of the vocabulary, the target's probability is not known
 * here. The target's slack then counts in full. */
static double loss_slack(const struct tdm_slack *slack, const struct head *x,
                         const struct sums *sums, double of_target)
{
    if (x->entries == slack_model(slack)->vocabulary)
        return sums->moved;
    return sums->moved + expm1(of_target) +
           slack_sum_error((double)x->entries) * (1 + log((double)x->entries));
}

/* Finds the slack of the logits of a row, and of their gradients. */
static void find_row(struct tdm_slack *slack, const struct head *x, uint64_t t, const double *rows,
                     const double *entries)
{
    const struct tdm_operand *operand = slack->launch->operand;
    const struct tdm_op *op = slack->launch->op;
    double *logits = slack->array[LOGITS] + t * x->entries;
    double *gradients = slack->array[GRADIENT_SLACK] + t * x->entries;
    double *slacks = slack->array[LOGIT_SLACK] + t * x->entries;
    double error = slack_product_error((double)x->hidden, operand[TDM_HEAD_ROWS].dtype);
    for (uint64_t v = 0; v < x->entries; v++) {
        slacks[v] = error * rows[t] * entries[v];
        if (x->narrow) /* rounded to either neighbour */
            slacks[v] += 2 * ROUNDED_BF16 * (fabs(logits[v]) + slacks[v]);
    }
    uint64_t target = (uint64_t)(uint32_t)x->targets[t] - op->first_entry;
    double of_target = target < x->entries ? slacks[target] : 0;
    struct sums sums = sum_row(x, logits, slacks, target);
    slack->array[OTHERS_ERRORS][t] = sums.others_error;
    slack->array[LOSSES][t] = loss_slack(slack, x, &sums, of_target);
    if (op->kind == TDM_OP_HEAD_GRAD) { /* of the whole vocabulary, with the same bits */
        const double *lse = (const double *)operand[TDM_HEAD_GRAD_LSE].data + 3 * t;
        sums = (struct sums){.most = lse[0], .others = lse[1]};
        sums.total = lse[1] + exp(lse[2] - lse[0]);
    }
    for (uint64_t v = 0; v < x->entries; v++) {
        double p = exp(logits[v] - sums.most) / sums.total, rest = sums.others / sums.total;
        double most_p = fmin(1, p * exp(of_target + sums.largest_slack));
        double each =
            v == target
                ? most_p * sums.moved + 16 * UNIT * rest
                : p * (slacks[v] + sums.mean_slack + exponent_error(fabs(logits[v] - sums.most)));
        gradients[v] = x->per_token * (each + LEAST_EXP);
        logits[v] = x->per_token * (v == target ? rest : p); /* now the gradient's size */
        if (x->narrow)
            gradients[v] += 2 * ROUNDED_BF16 * (logits[v] + gradients[v]);
    }
}

bool slack_begin_head(struct tdm_slack *slack)
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
                                               x.tokens * x.entries,
                                               x.tokens};
    for (int i = 0; i < TDM_SLACK_ARRAYS; i++)
        if (slack_take(slack, i, counts[i]) == NULL)
            return false;
    struct slack_view normed = {&operand[TDM_HEAD_ROWS], first, x.tokens, x.hidden, x.hidden};
    struct slack_view weight = {&operand[TDM_HEAD_WEIGHTS], x.weight, x.entries, x.hidden,
                                x.hidden};
    double *rows = slack->array[ROW_NORMS], *entries = slack->array[ENTRY_NORMS];
    double *columns = slack->array[COLUMN_NORMS]; /* of the rows, then of the weight */
    slack_add_squares(&normed, rows, columns);
    slack_add_squares(&weight, entries, columns + x.hidden);
    slack_take_roots(rows, x.tokens);
    slack_take_roots(entries, x.entries);
    slack_take_roots(columns, 2 * x.hidden);
    for (uint64_t t = 0; t < x.tokens; t++) {
        if (x.targets[t] < 0)
            continue;
        for (uint64_t v = 0; v < x.entries; v++)
            for (uint64_t i = 0; i < x.hidden; i++)
                slack->array[LOGITS][t * x.entries + v] +=
                    slack_value(&operand[TDM_HEAD_ROWS], first + t * x.hidden + i) *
                    slack_value(&operand[TDM_HEAD_WEIGHTS], x.weight + v * x.hidden + i);
        find_row(slack, &x, t, rows, entries);
        for (uint64_t v = 0; v < x.entries; v++) { /* squares of slack and size, by row and entry */
            double each = slack->array[GRADIENT_SLACK][t * x.entries + v];
            double size = slack->array[LOGITS][t * x.entries + v];
            slack->array[ROW_SLACK][t] += each * each;
            slack->array[ROW_SLACK][x.tokens + t] += size * size;
            entries[x.entries + v] += each * each;
            entries[2 * x.entries + v] += size * size;
        }
    }
    slack_take_roots(slack->array[ROW_SLACK], 2 * x.tokens);
    slack_take_roots(entries + x.entries, 2 * x.entries);
    return true;
}

/* Slack of a sum over the vocabulary: from the slack of its factors, and from the summation. */
static double of_head_rows(const struct tdm_slack *slack, const struct head *x, uint64_t element)
{
    uint64_t t = element / x->hidden, i = element % x->hidden;
    if (t >= x->tokens)
        return EXACT;
    double error =
        slack_product_error((double)x->entries, slack->launch->operand[TDM_HEAD_LOGITS].dtype);
    return (slack->array[ROW_SLACK][t] + error * slack->array[ROW_SLACK][x->tokens + t]) *
           slack->array[COLUMN_NORMS][x->hidden + i];
}

static double of_head_weight(const struct tdm_slack *slack, const struct head *x, uint64_t element)
{
    uint64_t first = x->weight - slack->launch->op->first_entry * x->hidden; /* of the tensor */
    uint64_t v = element / x->hidden - slack->launch->op->first_entry;
    if (element / x->hidden < slack->launch->op->first_entry || v >= x->entries)
        return EXACT;
    const struct tdm_operand *dw = &slack->launch->operand[TDM_HEAD_DWEIGHTS];
    const double *entries = slack->array[ENTRY_NORMS];
    double error =
        slack_product_error((double)x->tokens, slack->launch->operand[TDM_HEAD_LOGITS].dtype);
    bool add = slack->launch->op->kind == TDM_OP_HEAD
                   ? slack_adds(dw)
                   : !tdm_head_opens(slack->launch->program, slack->launch->op);
    double before = add ? fabs(slack_value(dw, first + element)) : 0;
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

/* Slack of the largest logit, the sum of the other exponentials, or the target's logit, each
 * combined with the row's values so far, whose bits are given. */
static double of_lse(const struct tdm_slack *slack, const struct head *x, uint64_t element,
                     double due)
{
    uint64_t t = element / 3;
    double most = 0;
    if (t >= x->tokens)
        return EXACT;
    for (uint64_t v = 0; v < x->entries; v++)
        slack_raise_to(&most, slack->array[LOGIT_SLACK][t * x->entries + v]);
    if (element % 3 != 1)
        return most;
    return (2 * most + slack->array[OTHERS_ERRORS][t]) * fabs(due) + (double)x->entries * LEAST_EXP;
}

double slack_of_head(const struct tdm_slack *slack, const struct tdm_written *piece,
                     uint64_t element, double due)
{
    const struct tdm_op *op = slack->launch->op;
    const struct tdm_operand *operand = slack->launch->operand;
    struct head x = head_of(slack);
    if (piece->operand == TDM_HEAD_ROWS) {
        uint64_t first = op->first_row * x.hidden;
        double added = 4 * UNIT * fabs(due); /* error of the sum over tiles of the vocabulary */
        return element < first ? EXACT : of_head_rows(slack, &x, element - first) + added;
    }
    if (piece->operand == TDM_HEAD_LOGITS)
        return of_logit(slack, &x, element);
    if (op->kind == TDM_OP_HEAD_GRAD && piece->operand == TDM_HEAD_GRAD_SUM)
        return of_head_rows(slack, &x, element) +
               4 * UNIT *
                   (slack_adds(&operand[TDM_HEAD_GRAD_SUM])
                        ? fabs(slack_value(&operand[TDM_HEAD_GRAD_SUM], element))
                        : 0);
    if (op->kind != TDM_OP_LOSS && piece->operand == TDM_HEAD_DWEIGHTS)
        return of_head_weight(slack, &x, element);
    if (op->kind == TDM_OP_LOSS && piece->operand == TDM_LOSS_LSE)
        return of_lse(slack, &x, element, due);
    double losses = 0; /* with part of the vocabulary, the sums so far are given */
    for (uint64_t t = 0; t < x.tokens; t++)
        losses += x.targets[t] < 0 ? 0 : slack->array[LOSSES][t];
    return losses * x.per_token + 1e-12 * fabs(due);
}
