/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of cross entropy where one logit dominates: in the cpu backend's LM head, with the
 * vocabulary in one tile and in several, and in the reference.
 *
 * If the target's probability p is nearly 1, its loss log(1 / p) and its gradient p - 1 are as
 * small as the sum of all other probabilities. Both must be right relative to their own size. */
#include "tests/support/cpu_fixture.h"

#include "ops/head.h"
#include "tests/reference/operations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

/* For each row, the logit of the target (the others lie between -1 and 1), and its entry. */
static const double ahead[] = {3, 12, 17.5, 30, 50, 78, -1, -40};
static const uint32_t target[] = {0, 22, 11, 7, 8, 15, 3, 22};

enum { ROWS = sizeof(ahead) / sizeof(ahead[0]), VOCABULARY = 23, TILE = 8, TOKENS = ROWS + 2 };

/* The expected loss of a row, and its gradients. */
struct due {
    double loss, gradients[VOCABULARY];
};

/* Logits other than the target's lie between -1 and 1. All are exact in fp32. */
static double logit(uint64_t row, uint64_t entry)
{
    return entry == target[row] ? ahead[row] : (double)((entry * 5 + row) % 9) / 4 - 1;
}

static struct due due_of(uint64_t row)
{
    struct due due;
    double rest = 0;
    for (uint64_t v = 0; v < VOCABULARY; v++)
        rest += v == target[row] ? 0 : exp(logit(row, v) - ahead[row]);
    due.loss = log1p(rest);
    for (uint64_t v = 0; v < VOCABULARY; v++)
        due.gradients[v] = exp(logit(row, v) - ahead[row]) / (1 + rest);
    due.gradients[target[row]] = -rest / (1 + rest);
    return due;
}

static void check(const char *what, uint64_t row, double found, double due, double bound)
{
    if (!(fabs(found - due) <= bound * fabs(due)))
        fail_msg("%s of row %u, whose target is ahead by %g: %.9g, should be %.9g", what,
                 (unsigned)row, ahead[row], found, due);
}

static void test_referee(void **unused)
{
    double logits[ROWS * VOCABULARY], losses[ROWS];
    (void)unused;
    for (uint64_t i = 0; i < ROWS * VOCABULARY; i++)
        logits[i] = logit(i / VOCABULARY, i % VOCABULARY);
    tdm_reference_cross_entropy(ROWS, VOCABULARY, logits, target, losses);
    tdm_reference_cross_entropy_backward(ROWS, VOCABULARY, target, 0.5, logits);
    for (uint64_t t = 0; t < ROWS; t++) {
        struct due due = due_of(t);
        check("loss", t, losses[t], due.loss, 1e-13);
        for (uint64_t v = 0; v < VOCABULARY; v++)
            check("gradient", t, logits[t * VOCABULARY + v], 0.5 * due.gradients[v], 1e-13);
    }
}

/* ---- the LM head ---- */

struct head {
    struct bench bench;
    struct cell x, ids, w, logits, dw, lse, sum, loss;
};

/* Row t of x selects column t of the weight, which holds the logits of row t. */
static void open_head(struct head *h)
{
    const struct shape shape = {.hidden = ROWS,
                                .intermediate = 4,
                                .query_heads = 1,
                                .kv_heads = 1,
                                .head_dim = 4,
                                .vocabulary = VOCABULARY,
                                .page_tokens = 4,
                                .chunk_tokens = TOKENS,
                                .tile_tokens = 1,
                                .sequences = 1,
                                .sequence_tokens = {TOKENS},
                                .dtypes = {.weights = TDM_DTYPE_FP32,
                                           .activations = TDM_DTYPE_FP32,
                                           .kv = TDM_DTYPE_FP32,
                                           .kv_gradients = TDM_DTYPE_FP32,
                                           .gradients = TDM_DTYPE_FP32,
                                           .moments = TDM_DTYPE_FP32,
                                           .logits = TDM_DTYPE_FP32}};
    struct bench *bench = &h->bench;
    bench_open(bench, &shape, 1);
    uint32_t unit = tdm_model_head_unit(bench->model);
    uint64_t elements = bench->model->units[unit].elements;
    uint64_t offset = bench_tensor(bench, unit, TDM_ROLE_HEAD)->offset;
    h->x = cell_new(bench, TDM_DTYPE_FP32, TOKENS * ROWS, 0);
    h->ids = cell_new(bench, TDM_DTYPE_INT32, 2 * TOKENS, 0);
    h->w = cell_new(bench, TDM_DTYPE_FP32, elements, 0);
    h->logits = cell_new(bench, TDM_DTYPE_FP32, VOCABULARY, NAN);
    h->dw = cell_new(bench, TDM_DTYPE_FP32, elements, 0);
    h->lse = cell_new(bench, TDM_DTYPE_FP64, 3, NAN);
    h->sum = cell_new(bench, TDM_DTYPE_FP32, ROWS, NAN);
    h->loss = cell_new(bench, TDM_DTYPE_FP64, 1, NAN);
    for (uint64_t t = 0; t < ROWS; t++) {
        cell_set(&h->x, t * ROWS + t, 1);
        cell_set(&h->ids, TOKENS + t, target[t]);
        for (uint64_t v = 0; v < VOCABULARY; v++)
            cell_set(&h->w, offset + v * ROWS + t, logit(t, v));
    }
}

static void close_head(struct head *h)
{
    struct cell *cells[] = {&h->x, &h->ids, &h->w, &h->logits, &h->dw, &h->lse, &h->sum, &h->loss};
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
        cell_free(cells[i]);
    bench_close(&h->bench);
}

/* Begins an op on entries [first, end) of one row. */
static void head_op(struct head *h, enum tdm_op_kind kind, uint64_t row, uint64_t first,
                    uint64_t end)
{
    struct bench *bench = &h->bench;
    bench_op(bench, kind, TDM_PART_HEAD, bench->model->layers, 0, 1);
    bench->op.first_row = row;
    bench->op.first_entry = (uint32_t)first;
    bench->op.entries = (uint32_t)(end - first);
    bench_operand(bench, TDM_HEAD_ROWS, &h->x, kind == TDM_OP_HEAD ? TDM_ACCUMULATE : TDM_READ);
    bench_operand(bench, TDM_HEAD_TOKENS, &h->ids, TDM_READ);
    bench_operand(bench, TDM_HEAD_WEIGHTS, &h->w, TDM_READ);
    bench_operand(bench, TDM_HEAD_LOGITS, &h->logits, TDM_WRITE);
}

static void check_loss(const struct head *h, uint64_t row)
{
    double per_token = 1 / (double)tdm_schedule_trained_tokens(&h->bench.schedule);
    check("loss", row, cell_get(&h->loss, 0), due_of(row).loss * per_token, 1e-6);
}

/* Checks that the logits of entries [first, end) were replaced by their gradients. */
static void check_gradients(const struct head *h, uint64_t row, uint64_t first, uint64_t end)
{
    double per_token = 1 / (double)tdm_schedule_trained_tokens(&h->bench.schedule);
    struct due due = due_of(row);
    for (uint64_t v = first; v < end; v++)
        check("gradient", row, cell_get(&h->logits, v - first), due.gradients[v] * per_token, 1e-6);
}

static void test_one_tile(void **unused)
{
    struct head h;
    (void)unused;
    open_head(&h);
    for (uint64_t t = 0; t < ROWS; t++) {
        head_op(&h, TDM_OP_HEAD, t, 0, VOCABULARY);
        bench_operand(&h.bench, TDM_HEAD_DWEIGHTS, &h.dw, TDM_WRITE);
        bench_operand(&h.bench, TDM_HEAD_LOSS, &h.loss, TDM_WRITE);
        bench_run(&h.bench);
        check_loss(&h, t);
        check_gradients(&h, t, 0, VOCABULARY);
    }
    close_head(&h);
}

static void test_tiles(void **unused)
{
    struct head h;
    (void)unused;
    open_head(&h);
    for (uint64_t t = 0; t < ROWS; t++) {
        for (uint64_t first = 0; first < VOCABULARY; first += TILE) {
            uint64_t end = first + TILE < VOCABULARY ? first + TILE : VOCABULARY;
            head_op(&h, TDM_OP_LOSS, t, first, end);
            bench_operand(&h.bench, TDM_LOSS_LSE, &h.lse, first == 0 ? TDM_WRITE : TDM_ACCUMULATE);
            if (end == VOCABULARY)
                bench_operand(&h.bench, TDM_LOSS_LOSS, &h.loss, TDM_WRITE);
            bench_run(&h.bench);
        }
        check_loss(&h, t);
        for (uint64_t first = 0; first < VOCABULARY; first += TILE) {
            uint64_t end = first + TILE < VOCABULARY ? first + TILE : VOCABULARY;
            head_op(&h, TDM_OP_HEAD_GRAD, t, first, end);
            bench_operand(&h.bench, TDM_HEAD_GRAD_DWEIGHTS, &h.dw, TDM_ACCUMULATE);
            bench_operand(&h.bench, TDM_HEAD_GRAD_LSE, &h.lse, TDM_READ);
            bench_operand(&h.bench, TDM_HEAD_GRAD_SUM, &h.sum,
                          first == 0 ? TDM_WRITE : TDM_ACCUMULATE);
            bench_run(&h.bench);
            check_gradients(&h, t, first, end);
        }
    }
    close_head(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_referee),
        cmocka_unit_test(test_one_tile),
        cmocka_unit_test(test_tiles),
    };
    return cmocka_run_group_tests_name("cross entropy", tests, NULL, NULL);
}
