/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of rates fitted from measured ops: known rates are found again. */
#include "simulator/rate_fit.h"
#include "simulator/simulate.h"
#include "schedule/cost.h"
#include "ops/attention.h"
#include "schedule/program.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A machine whose rates depend on sizes. Its attention is slower on chunks of few tokens. */
static const char description[] =
    "{\"format\": \"tidemark-machine-1\", \"name\": \"m\", \"title\": \"m\", \"source\": \"made up\","
    " \"device_bytes\": 100000000000, \"host_bytes\": 100000000000, \"launch_seconds\": 0,"
    " \"copy_seconds\": 1e-6, \"peak_flops_per_second\": 1e15, \"rates\": {"
    " \"product_flops_per_second\": [[1e6, 1e12], [1e8, 2e13], [1e10, 3e14], [1e12, 7e14]],"
    " \"product_grad_weight_flops_per_second\": [[1e5, 1e14], [1e6, 3e14], [1e7, 6e14]],"
    " \"product_grad_weight_share\": [[128, 0.3], [512, 1], [2048, 1.3]],"
    " \"attention_forward_flops_per_second\": [[64, 1e14], [1024, 3e14], [4096, 5e14]],"
    " \"attention_backward_flops_per_second\": [[64, 5e13], [4096, 4e14]],"
    " \"attention_forward_share\": [[128, 0.4], [512, 1], [2048, 1.2]],"
    " \"attention_backward_share\": [[128, 0.3], [512, 1], [2048, 1.1]],"
    " \"head_tile_share\": [[128, 1], [512, 0.8], [2048, 1.2]],"
    " \"elementwise_bytes_per_second\": 4e12,"
    " \"norm_bytes_per_second\": [[1e4, 1e10], [1e6, 5e11], [1e8, 3e12]],"
    " \"h2d_bytes_per_second\": 5e10, \"d2h_bytes_per_second\": 5e10,"
    " \"both_ways_bytes_per_second\": 9e10}}";

static struct tdm_machine *made_up(void)
{
    struct tdm_machine *machine;
    struct tdm_error err;
    json_t *root = json_loads(description, 0, NULL);
    assert_non_null(root);
    if (tdm_machine_from_json("made up", root, &machine, &err) != TDM_OK)
        fail_msg("%s", err.message);
    json_decref(root);
    return machine;
}

static struct tdm_program *lower(uint64_t context, uint64_t chunk, struct tdm_schedule **schedule)
{
    struct tdm_model *model;
    struct tdm_program *program;
    struct tdm_error err;
    if (tdm_model_load("byte-100m", &model, &err) != TDM_OK ||
        tdm_schedule_new(model, made_up(), context, schedule, &err) != TDM_OK)
        fail_msg("%s", err.message);
    (*schedule)->chunk_tokens = chunk;
    if (tdm_program_lower(*schedule, &program, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return program;
}

struct measuring {
    const struct tdm_machine *machine;
    struct tdm_rate_fit *fit;
    double overhead;
    uint64_t ops;
};

/* Adds ops with their predicted time plus overhead, three times as much for every 17th. */
static enum tdm_status measure(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct measuring *m = self;
    if (item->kind != TDM_RUN)
        return TDM_OK;
    double seconds = tdm_op_seconds(m->machine, item->op);
    if (m->ops++ % 17 == 4)
        seconds *= 3;
    return tdm_rate_fit_add(m->fit, m->machine, item->op, seconds + m->overhead, err);
}

static void note_program(struct measuring *m, uint64_t context, uint64_t chunk)
{
    struct tdm_schedule *schedule;
    struct tdm_program *program = lower(context, chunk, &schedule);
    assert_int_equal(tdm_program_emit(program, measure, m, NULL), TDM_OK);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

/* Rates fitted on some sizes predict a step of a size between them. */
static void test_rates_come_back(void **state)
{
    (void)state;
    struct tdm_machine *machine = made_up(), *fitted = made_up();
    struct measuring m = {.machine = machine, .overhead = 2e-6};
    bool known[TDM_RATES];
    struct tdm_simulation due, got;
    assert_int_equal(tdm_rate_fit_new(&m.fit, NULL), TDM_OK);
    note_program(&m, 4096, 512);
    note_program(&m, 1024, 128);
    note_program(&m, 4096, 2048);
    tdm_rate_fit_set_overhead(m.fit, m.overhead);
    for (unsigned i = 0; i < TDM_RATES; i++)
        fitted->table[i] = (struct tdm_rate_table){.of = (enum tdm_rate)i, .count = 1, .rate = {1}};
    tdm_rate_fit_tables(m.fit, false, fitted->table, known);
    for (unsigned i = 0; i < TDM_RATES; i++)
        if (known[i])
            fitted->rate[i] = tdm_rate_most(&fitted->table[i]);
    assert_true(known[TDM_RATE_PRODUCT] && known[TDM_RATE_NORM] && known[TDM_RATE_OPTIMIZER]);
    assert_true(known[TDM_RATE_NARROW_ATTENTION_FORWARD] || known[TDM_RATE_ATTENTION_FORWARD]);
    assert_false(known[TDM_RATE_H2D] || known[TDM_RATE_ELEMENTWISE]);

    struct tdm_schedule *schedule;
    struct tdm_program *program = lower(4096, 1024, &schedule);
    assert_int_equal(tdm_simulate(program, NULL, NULL, &due, NULL), TDM_OK);
    struct tdm_machine *own = schedule->machine;
    schedule->machine = fitted;
    assert_int_equal(tdm_simulate(program, NULL, NULL, &got, NULL), TDM_OK);
    schedule->machine = own;
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        if (due.kind_seconds[kind] > 0.01 * due.step_seconds &&
            fabs(got.kind_seconds[kind] / due.kind_seconds[kind] - 1) > 0.15)
            fail_msg("%s: %g s, %g are due", tdm_op_kind_name((enum tdm_op_kind)kind),
                     got.kind_seconds[kind], due.kind_seconds[kind]);
    /* the made-up products' rates follow FLOPs, the fitted ones FLOPs per token and tokens */
    if (fabs(got.step_seconds / due.step_seconds - 1) > 0.07)
        fail_msg("%g s a step, %g are due", got.step_seconds, due.step_seconds);

    struct tdm_rate_total totals[TDM_RATES];
    tdm_rate_fit_totals(m.fit, machine, totals);
    assert_true(totals[TDM_RATE_PRODUCT].ops > 0);
    assert_true(totals[TDM_RATE_PRODUCT].measured_seconds >
                totals[TDM_RATE_PRODUCT].predicted_seconds); /* because of the tripled ones */
    assert_true(tdm_rate_fit_least_seconds(m.fit) > 0);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    tdm_rate_fit_free(m.fit);
    tdm_machine_free(machine);
    tdm_machine_free(fitted);
}

/* A correction replaces measured rates, scales those not measured, and keeps shares unchanged. */
static void test_correction(void **state)
{
    (void)state;
    struct tdm_machine *machine = made_up();
    struct measuring m = {.machine = machine};
    bool known[TDM_RATES];
    struct tdm_rate_table tables[TDM_RATES];
    assert_int_equal(tdm_rate_fit_new(&m.fit, NULL), TDM_OK);
    note_program(&m, 4096, 512);
    memcpy(tables, machine->table, sizeof(tables));
    struct tdm_rate_table *products = &tables[TDM_RATE_PRODUCT];
    for (uint32_t i = 0; i < products->count; i++)
        products->rate[i] /= 2;
    tdm_rate_fit_tables(m.fit, true, tables, known);
    for (uint32_t i = 0; i < products->count; i++) {
        double due = tdm_rate_at(&machine->table[TDM_RATE_PRODUCT], products->size[i]);
        if (fabs(products->rate[i] / due - 1) > 0.1)
            fail_msg("size %g: %g, %g is due", products->size[i], products->rate[i], due);
    }
    assert_true(products->size[products->count - 1] >= 1e12);
    assert_memory_equal(&tables[TDM_RATE_ATTENTION_FORWARD_SHARE],
                        &machine->table[TDM_RATE_ATTENTION_FORWARD_SHARE], sizeof(tables[0]));
    tdm_rate_fit_free(m.fit);
    tdm_machine_free(machine);
}

/* Adds a wrong table for a refined rate. */
static void refine(struct tdm_machine *machine, enum tdm_rate rate)
{
    machine->table[rate] = (struct tdm_rate_table){.of = rate};
    tdm_rate_add(&machine->table[rate], 1e5, 1e12);
    tdm_rate_add(&machine->table[rate], 1e7, 2e12);
}

/* A refined rate is used and corrected where the machine describes it. Corrections add none. */
static void test_refined(void **state)
{
    (void)state;
    struct tdm_machine *machine = made_up();
    struct measuring m = {.machine = machine};
    bool known[TDM_RATES];
    struct tdm_rate_table tables[TDM_RATES];
    struct tdm_rate_total plain[TDM_RATES], refined[TDM_RATES];
    assert_int_equal(tdm_rate_fit_new(&m.fit, NULL), TDM_OK);
    note_program(&m, 4096, 512);
    tdm_rate_fit_totals(m.fit, machine, plain);
    assert_int_equal(plain[TDM_RATE_PRODUCT_O].ops, 0);

    refine(machine, TDM_RATE_PRODUCT_O);
    tdm_rate_fit_totals(m.fit, machine, refined);
    size_t ops = refined[TDM_RATE_PRODUCT_O].ops;
    assert_true(ops > 0);
    assert_int_equal(refined[TDM_RATE_PRODUCT].ops + ops, plain[TDM_RATE_PRODUCT].ops);
    assert_true(refined[TDM_RATE_PRODUCT].predicted_seconds <
                plain[TDM_RATE_PRODUCT].predicted_seconds);

    memcpy(tables, machine->table, sizeof(tables));
    tdm_rate_fit_tables(m.fit, true, tables, known);
    assert_true(known[TDM_RATE_PRODUCT_O] && known[TDM_RATE_PRODUCT]);
    assert_false(known[TDM_RATE_PRODUCT_DOWN] || known[TDM_RATE_PRODUCT_GRAD_WEIGHT_O]);
    memcpy(machine->table, tables, sizeof(tables));
    tdm_rate_fit_totals(m.fit, machine, refined);
    const struct tdm_rate_total *total = &refined[TDM_RATE_PRODUCT_O];
    if (fabs(total->predicted_seconds / total->measured_seconds - 1) > 0.15)
        fail_msg("%g s, %g were measured", total->predicted_seconds, total->measured_seconds);
    tdm_rate_fit_free(m.fit);
    tdm_machine_free(machine);
}

/* Seconds of the last op of every kind and part on the first chunk. */
struct seconds {
    const struct tdm_machine *machine;
    double of[TDM_OP_KINDS][TDM_PARTS];
};

static enum tdm_status note_seconds(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct seconds *seconds = self;
    (void)err;
    if (item->kind == TDM_RUN && item->op->part < TDM_PARTS && item->op->chunk == 0)
        seconds->of[item->op->kind][item->op->part] = tdm_op_seconds(seconds->machine, item->op);
    return TDM_OK;
}

/* More tokens never take less time, however steep the tables are. */
static void test_time_does_not_fall(void **state)
{
    (void)state;
    struct tdm_machine *machine = made_up();
    struct seconds before = {.machine = machine};
    struct tdm_rate_table steep = {0};
    for (double size = 1; size < 1e15; size *= 4)
        tdm_rate_add(&steep, size, size); /* every size takes the same time */
    for (unsigned i = 0; i < TDM_RATES; i++) {
        steep.of = (enum tdm_rate)i;
        if (tdm_rate_size_name((enum tdm_rate)i) != NULL)
            machine->table[i] = steep;
    }
    for (uint64_t chunk = 16; chunk <= 4096; chunk = chunk * 3 / 2) {
        struct tdm_schedule *schedule;
        struct tdm_program *program = lower(4096, chunk, &schedule);
        struct seconds now = {.machine = machine};
        assert_int_equal(tdm_program_emit(program, note_seconds, &now, NULL), TDM_OK);
        for (int kind = 0; kind < TDM_OP_KINDS; kind++)
            for (int part = 0; part < TDM_PARTS; part++)
                if (now.of[kind][part] < before.of[kind][part] * (1 - 1e-9))
                    fail_msg("%s of %s: %g s for chunks of %llu tokens, %g s for fewer",
                             tdm_op_kind_name((enum tdm_op_kind)kind),
                             tdm_part_name((enum tdm_part)part), now.of[kind][part],
                             (unsigned long long)chunk, before.of[kind][part]);
        before = now;
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    tdm_machine_free(machine);
}

/* The share of LM-head tiles that is read never falls. */
static void test_head_share(void **state)
{
    (void)state;
    static const double raised[] = {1, 1, 1.2};
    struct tdm_machine *machine = made_up();
    const struct tdm_rate_table *share = &machine->table[TDM_RATE_HEAD_TILE_SHARE];
    assert_int_equal(share->count, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(fabs(share->rate[i] - raised[i]) < 1e-9);
    assert_true(fabs(tdm_rate_at(share, 256) - 1) < 1e-9);
    tdm_machine_free(machine);
}

struct list_ops {
    const struct tdm_machine *with, *without; /* shares of lists */
    struct tdm_rate_fit *fit;
    unsigned of_lists, others;
};

static enum tdm_status compare_lists(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct list_ops *ops = self;
    const bool attention = item->kind == TDM_RUN && (item->op->kind == TDM_OP_ATTENTION ||
                                                     item->op->kind == TDM_OP_ATTENTION_GRAD);
    if (!attention)
        return TDM_OK;
    const double share = !item->op->by_lists ? 1 : item->op->kind == TDM_OP_ATTENTION ? 0.5 : 0.25;
    const double with = tdm_op_seconds(ops->with, item->op);
    const double without = tdm_op_seconds(ops->without, item->op);
    assert_true(fabs(share * with / without - 1) < 1e-9);
    ops->of_lists += item->op->by_lists;
    ops->others += !item->op->by_lists;
    return tdm_rate_fit_add(ops->fit, ops->with, item->op, with, err);
}

static enum tdm_status compare_visits(void *self, const struct tdm_item *item,
                                      struct tdm_error *err)
{
    struct list_ops *ops = self;
    (void)err;
    if (item->kind != TDM_RUN ||
        (item->op->kind != TDM_OP_ATTENTION && item->op->kind != TDM_OP_ATTENTION_GRAD))
        return TDM_OK;
    const struct tdm_op *op = item->op;
    for (uint32_t head_dim = 64; head_dim <= 128; head_dim += 64) {
        struct tdm_op with_heads = *op;
        double share = !op->visits ? 1 : op->kind == TDM_OP_ATTENTION ? 0.5 : 0.25;
        share *= op->visits && head_dim == 64 ? 1.5 : 1;
        with_heads.head_dim = head_dim;
        assert_true(fabs(share * tdm_op_seconds(ops->with, &with_heads) /
                             tdm_op_seconds(ops->without, &with_heads) -
                         1) < 1e-9);
    }
    assert_true(op->visits == (op->access[TDM_ATTENTION_KV].before.chunk != op->chunk));
    ops->of_lists += op->visits;
    ops->others += !op->visits;
    return TDM_OK;
}

struct block_ops {
    const struct tdm_machine *with, *without; /* a number of multiprocessors */
    double longest;                           /* seconds, of an op with fewer keys */
    unsigned doubled, longer, others;
};

static enum tdm_status compare_blocks(void *self, const struct tdm_item *item,
                                      struct tdm_error *err)
{
    struct block_ops *ops = self;
    (void)err;
    if (item->kind != TDM_RUN || item->op->kind != TDM_OP_ATTENTION_GRAD)
        return TDM_OK;
    struct tdm_op op = *item->op;
    const double seconds = tdm_op_seconds(ops->with, &op);
    const double all = tdm_op_seconds(ops->without, &op);
    const double mean = (double)op.pairs / (double)op.tokens; /* keys */
    assert_int_equal(op.kv_heads, 2);
    assert_true(tdm_op_has_few_blocks(ops->with, &op) == (seconds > all));
    assert_false(tdm_op_has_few_blocks(ops->without, &op));
    assert_true(seconds >= all * (1 - 1e-12));
    if (op.chunk == 0 || mean > 3 * 4224) {
        assert_true(fabs(seconds / all - 1) < 1e-9);
    } else if (mean <= 4224) { /* as long as with 4 KV heads */
        assert_true(fabs(seconds / all - 2) < 1e-9);
        ops->doubled++;
    }
    ops->longer += seconds > all * (1 + 1e-9);
    ops->others += seconds <= all * (1 + 1e-9);
    op.kv_heads = 4;
    assert_true(fabs(tdm_op_seconds(ops->with, &op) / all - 1) < 1e-9);
    /* chunks come in reverse: fewer keys never take longer */
    assert_true(ops->longest <= 0 || seconds <= ops->longest * (1 + 1e-9));
    ops->longest = op.chunk == 0 ? 0 : seconds;
    return TDM_OK;
}

/* With half the KV heads that rates were measured with, and keys for fewer blocks than there are
 * multiprocessors, the backward of attention is no faster. */
static void test_few_blocks(void **state)
{
    (void)state;
    struct tdm_machine *with = made_up(), *without = made_up();
    struct block_ops ops = {.with = with, .without = without};
    struct tdm_schedule *schedule;
    with->multiprocessors = 132;
    struct tdm_program *program = lower(32768, 2048, &schedule);
    assert_int_equal(tdm_program_emit(program, compare_blocks, &ops, NULL), TDM_OK);
    assert_true(ops.doubled > 0 && ops.longer > ops.doubled && ops.others > 0);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    tdm_machine_free(with);
    tdm_machine_free(without);
}

/* In rings of ranks attention between a chunk and another takes a share of the dense rate, another
 * with narrow heads. */
static void test_visits(void **state)
{
    (void)state;
    struct tdm_machine *with = made_up(), *without = made_up();
    with->table[TDM_RATE_ATTENTION_FORWARD_VISITS_SHARE].rate[0] = 0.5;
    with->table[TDM_RATE_ATTENTION_BACKWARD_VISITS_SHARE].rate[0] = 0.25;
    with->table[TDM_RATE_NARROW_ATTENTION_FORWARD_VISITS_SHARE].rate[0] = 0.75;
    with->table[TDM_RATE_NARROW_ATTENTION_BACKWARD_VISITS_SHARE].rate[0] = 0.375;
    for (int queries = 0; queries < 2; queries++) {
        struct list_ops ops = {.with = with, .without = without};
        struct tdm_schedule *schedule;
        struct tdm_program *program = lower(16384, 2048, &schedule);
        tdm_program_free(program);
        schedule->ranks = 2;
        schedule->exchange = queries ? TDM_EXCHANGE_QUERIES : TDM_EXCHANGE_RING;
        assert_int_equal(tdm_program_lower(schedule, &program, NULL), TDM_OK);
        assert_int_equal(tdm_program_emit(program, compare_visits, &ops, NULL), TDM_OK);
        assert_true(ops.of_lists > 0 && ops.others > 0);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    tdm_machine_free(with);
    tdm_machine_free(without);
}

struct fp32_ops {
    const struct tdm_machine *with, *without; /* rates of fp32 */
    struct tdm_rate_fit *fit;
    uint64_t of_fp32, multiply;
};

/* The made-up rate of fp32, which is the same for all sizes. */
#define OF_FP32 1e11

static enum tdm_status compare_fp32(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct fp32_ops *ops = self;
    if (item->kind != TDM_RUN)
        return TDM_OK;
    const double seconds = tdm_op_seconds(ops->with, item->op);
    struct tdm_op as_bf16 = *item->op;
    as_bf16.fp32 = false;
    if (item->op->fp32)
        assert_true(fabs(seconds * OF_FP32 / (double)item->op->flops - 1) < 1e-9);
    assert_true(tdm_op_seconds(ops->without, item->op) == /* bf16 stands in */
                tdm_op_seconds(ops->without, &as_bf16));
    ops->of_fp32 += item->op->fp32;
    ops->multiply += item->op->flops > 0;
    return tdm_rate_fit_add(ops->fit, ops->with, item->op, seconds, err);
}

/* Products, attention and LM head of fp32 values have rates of their own, which are fitted to
 * them. */
static void test_fp32(void **state)
{
    (void)state;
    struct tdm_machine *with = made_up(), *without = made_up();
    struct fp32_ops ops = {.with = with, .without = without};
    static struct tdm_rate_table tables[TDM_RATES];
    bool known[TDM_RATES];
    for (unsigned i = 0; i < TDM_RATES; i++)
        if (tdm_rate_is_fp32((enum tdm_rate)i)) {
            with->table[i] = (struct tdm_rate_table){.of = (enum tdm_rate)i};
            tdm_rate_add(&with->table[i], 1, OF_FP32);
        }
    for (int fp32 = 0; fp32 < 2; fp32++) {
        struct tdm_schedule *schedule;
        struct tdm_program *program = lower(2048, 512, &schedule);
        if (fp32) {
            tdm_program_free(program);
            schedule->dtypes.activations = schedule->dtypes.kv = TDM_DTYPE_FP32;
            assert_int_equal(tdm_program_lower(schedule, &program, NULL), TDM_OK);
        }
        ops.of_fp32 = ops.multiply = 0;
        assert_int_equal(tdm_rate_fit_new(&ops.fit, NULL), TDM_OK);
        assert_int_equal(tdm_program_emit(program, compare_fp32, &ops, NULL), TDM_OK);
        assert_true(ops.multiply > 0);
        assert_int_equal(ops.of_fp32, fp32 ? ops.multiply : 0);
        tdm_rate_fit_tables(ops.fit, false, tables, known);
        for (unsigned i = 0; i < TDM_RATES; i++)
            if (tdm_rate_is_fp32((enum tdm_rate)i)) {
                assert_int_equal(known[i], fp32);
                assert_true(!fp32 || fabs(tdm_rate_most(&tables[i]) / OF_FP32 - 1) < 1e-9);
            }
        assert_true(known[TDM_RATE_PRODUCT] == !fp32);
        tdm_rate_fit_free(ops.fit);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    tdm_machine_free(with);
    tdm_machine_free(without);
}

/* A team op takes its fixed time, and what its bytes take. */
static void test_peer_seconds(void **state)
{
    (void)state;
    struct tdm_machine *slow = made_up(), *fast = made_up();
    const struct tdm_op op = {
        .kind = TDM_OP_GATHER, .lane = TDM_LANE_PEER, .link = TDM_LINK_PEER, .fetched_bytes = 1000};
    assert_true(fast->peer_seconds == fast->launch_seconds); /* its default */
    slow->peer_seconds = fast->peer_seconds + 3;
    assert_true(fabs(tdm_op_seconds(slow, &op) - tdm_op_seconds(fast, &op) - 3) < 1e-9);
    tdm_machine_free(slow);
    tdm_machine_free(fast);
}

/* Attention over lists takes a share of the dense rate, and no rate is fitted to it. */
static void test_lists(void **state)
{
    (void)state;
    struct tdm_machine *with = made_up(), *without = made_up();
    struct list_ops ops = {.with = with, .without = without};
    struct tdm_rate_table *forward = &with->table[TDM_RATE_ATTENTION_FORWARD_LISTS_SHARE],
                          *backward = &with->table[TDM_RATE_ATTENTION_BACKWARD_LISTS_SHARE];
    struct tdm_rate_table tables[TDM_RATES];
    bool known[TDM_RATES];
    forward->rate[0] = 0.5;
    backward->rate[0] = 0.25;
    assert_int_equal(forward->count, 1);
    assert_int_equal(backward->count, 1);
    for (int by_lists = 1; by_lists >= 0; by_lists--) {
        struct tdm_schedule *schedule;
        struct tdm_program *program = lower(8192, 2048, &schedule);
        if (by_lists) {
            tdm_program_free(program);
            schedule->page_tokens = 128;
            schedule->selector =
                (struct tdm_selector){.kind = TDM_SELECT_TOP_K, .budget = 1024, .window = 128};
            assert_int_equal(tdm_program_lower(schedule, &program, NULL), TDM_OK);
        }
        ops.of_lists = ops.others = 0;
        assert_int_equal(tdm_rate_fit_new(&ops.fit, NULL), TDM_OK);
        assert_int_equal(tdm_program_emit(program, compare_lists, &ops, NULL), TDM_OK);
        tdm_rate_fit_tables(ops.fit, false, tables, known);
        assert_true((by_lists ? ops.of_lists : ops.others) > 0);
        assert_int_equal(by_lists ? ops.others : ops.of_lists, 0);
        const bool fitted =
            known[TDM_RATE_NARROW_ATTENTION_BACKWARD] || known[TDM_RATE_ATTENTION_BACKWARD];
        assert_true(fitted == !by_lists);
        tdm_rate_fit_free(ops.fit);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    tdm_machine_free(with);
    tdm_machine_free(without);
}

/* Without measured ops, no rate is known. */
static void test_nothing(void **state)
{
    (void)state;
    struct tdm_rate_fit *fit;
    struct tdm_rate_table tables[TDM_RATES];
    bool known[TDM_RATES];
    struct tdm_machine *machine = made_up();
    struct tdm_op op = {.kind = TDM_OP_COPY, .lane = TDM_LANE_H2D, .bytes = 10};
    assert_int_equal(tdm_rate_fit_new(&fit, NULL), TDM_OK);
    /* no op of the compute lane */
    assert_int_equal(tdm_rate_fit_add(fit, machine, &op, 1, NULL), TDM_OK);
    tdm_machine_free(machine);
    tdm_rate_fit_tables(fit, false, tables, known);
    for (unsigned i = 0; i < TDM_RATES; i++)
        assert_false(known[i]);
    assert_true(tdm_rate_fit_least_seconds(fit) <= 0);
    tdm_rate_fit_free(fit);
    tdm_rate_fit_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_come_back),
        cmocka_unit_test(test_correction),
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_peer_seconds),
        cmocka_unit_test(test_refined),
        cmocka_unit_test(test_time_does_not_fall),
        cmocka_unit_test(test_head_share),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_visits),
        cmocka_unit_test(test_few_blocks),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
