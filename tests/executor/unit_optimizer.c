/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the optimizers on the cpu backend. Steps are compared with the textbook in double, with
 * two gradients of a tied tensor, and with gradients clipped by their norms. A master kept as
 * weight and remainder must have the bits of a plain fp32 master. Stochastic rounding must be exact
 * in its odds, without bias over many steps, and repeatable. Vectors of any width must give the
 * bits of narrow ones. */
#include "tests/support/cpu_fixture.h"

#include "executor/batch.h"
#include "executor/cpu/cpu.h"
#include "executor/host_optimizer.h"
#include "executor/random.h"
#include "executor/remainder.h"
#include "executor/stochastic.h"
#include "ops/update.h"
#include "schedule/optimizer.h"
#include "tests/support/bf16.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct shape tiny = {
    .hidden = 130,
    .intermediate = 190,
    .query_heads = 4,
    .kv_heads = 2,
    .head_dim = 6,
    .vocabulary = 17,
    .bias = true,
    .page_tokens = 16,
    .chunk_tokens = 8,
    .tile_tokens = 8,
    .sequences = 1,
    .sequence_tokens = {8},
    .dtypes = {.weights = TDM_DTYPE_FP32, .logits = TDM_DTYPE_FP32},
};

static void optimizer_op(struct bench *bench, uint32_t unit, struct cell *weights,
                         struct cell *gradient, struct cell *master, struct cell *moment1,
                         struct cell *moment2, struct cell *norms, struct cell *second)
{
    bench_op(bench, TDM_OP_OPTIMIZER, TDM_PART_ALL, unit, TDM_NONE, 0);
    bench_operand(bench, TDM_OPTIMIZER_WEIGHTS, weights, TDM_ACCUMULATE);
    bench_operand(bench, TDM_OPTIMIZER_GRADIENT, gradient, TDM_READ);
    if (master != NULL)
        bench_operand(bench, TDM_OPTIMIZER_MASTER, master, TDM_ACCUMULATE);
    if (moment1 != NULL) {
        bench_operand(bench, TDM_OPTIMIZER_MOMENT1, moment1, TDM_ACCUMULATE);
        bench_operand(bench, TDM_OPTIMIZER_MOMENT2, moment2, TDM_ACCUMULATE);
    }
    if (norms != NULL) {
        bench_operand(bench, TDM_OPTIMIZER_NORMS, norms, TDM_READ);
        bench_slots(bench, TDM_OPTIMIZER_NORMS, 0, (uint32_t)norms->count, sizeof(double));
    }
    if (second != NULL)
        bench_operand(bench, TDM_OPTIMIZER_TIED, second, TDM_READ);
    bench_run(bench);
}

static void norm_op(struct bench *bench, uint32_t unit, struct cell *gradient, struct cell *norm,
                    struct cell *second)
{
    bench_op(bench, TDM_OP_GRADIENT_NORM, TDM_PART_ALL, unit, TDM_NONE, 0);
    bench_operand(bench, TDM_GRADIENT_NORM_GRADIENT, gradient, TDM_READ);
    bench_operand(bench, TDM_GRADIENT_NORM_NORM, norm, TDM_WRITE);
    if (second != NULL)
        bench_operand(bench, TDM_GRADIENT_NORM_TIED, second, TDM_READ);
    bench_run(bench);
}

static double sum_of_squares(const struct bench *bench, uint32_t unit, const double *values)
{
    const struct tdm_unit *layout = &bench->model->units[unit];
    double squares = 0;
    for (uint32_t k = 0; k < layout->tensor_count; k++) {
        const struct tdm_tensor *tensor = &bench->model->tensors[layout->first_tensor + k];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->elements; i++)
            squares += values[i] * values[i];
    }
    return squares;
}

/* One step of a unit's values in double, with the gradient multiplied by `scale`. */
static void reference_step(const struct bench *bench, uint32_t unit, const double *gradient,
                           double scale, double *weight, double *moment1, double *moment2)
{
    const struct tdm_optimizer_settings *s = &bench->schedule.optimizer;
    const struct tdm_unit *layout = &bench->model->units[unit];
    double t = (double)bench->step.number, rate = bench->step.learning_rate;
    for (uint32_t k = 0; k < layout->tensor_count; k++) {
        const struct tdm_tensor *tensor = &bench->model->tensors[layout->first_tensor + k];
        double decay = s->decayed >> tdm_role_kind(tensor->role) & 1 ? s->weight_decay : 0;
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->elements; i++) {
            double g = scale * gradient[i];
            if (s->kind == TDM_OPTIMIZER_SGD) {
                weight[i] -= rate * (g + decay * weight[i]);
                continue;
            }
            moment1[i] = s->beta1 * moment1[i] + (1 - s->beta1) * g;
            moment2[i] = s->beta2 * moment2[i] + (1 - s->beta2) * g * g;
            double m = moment1[i] / (1 - pow(s->beta1, t)), v = moment2[i] / (1 - pow(s->beta2, t));
            weight[i] -= rate * (m / (sqrt(v) + s->epsilon) + decay * weight[i]);
        }
    }
}

static void check_decayed(enum tdm_dtype weights, enum tdm_dtype master, enum tdm_dtype gradients,
                          enum tdm_dtype moments, bool tied, enum tdm_clip clip, uint32_t decayed,
                          double bound)
{
    bool sgd = moments == TDM_DTYPE_NONE;
    if (sgd)
        moments = TDM_DTYPE_FP32; /* for cells that are not operands */
    struct bench bench;
    struct shape shape = tiny;
    shape.tied = tied;
    bench_open(&bench, &shape, 7);
    bench.schedule.optimizer.kind = sgd ? TDM_OPTIMIZER_SGD : TDM_OPTIMIZER_ADAMW;
    bench.schedule.optimizer.decayed = decayed;
    tdm_schedule_set_clip(&bench.schedule, clip);
    uint32_t unit = tied ? tdm_model_embedding_unit(bench.model) : 0;
    uint64_t elements = bench.model->units[unit].elements;
    struct cell w = cell_new(&bench, weights, elements, 0.5);
    struct cell high =
        cell_new(&bench, master == TDM_DTYPE_NONE ? TDM_DTYPE_FP32 : master, elements, 0);
    for (uint64_t i = 0; i < elements; i++)
        cell_set(&high, i, cell_get(&w, i));
    struct cell m = cell_new(&bench, moments, elements, 0),
                v = cell_new(&bench, moments, elements, 0);
    struct cell norm = cell_new(&bench, TDM_DTYPE_FP64, 1, NAN);
    struct cell norms = cell_new(&bench, TDM_DTYPE_FP64, 3, 0); /* with those of two other units */
    double *vw = cell_values(&w), *vm = cell_values(&m), *vv = cell_values(&v);
    double *before = cell_values(&w), others = 0;
    if (clip == TDM_CLIP_GLOBAL) {
        cell_set(&norms, 0, 0.5);
        cell_set(&norms, 2, 1.25);
        others = 1.75;
    }
    for (uint64_t step = 1; step <= 4; step++) {
        bench.step = (struct tdm_step){.number = step, .learning_rate = 0.01 / (double)step};
        struct cell g = cell_new(&bench, gradients, elements, 1e-3);
        struct cell second = cell_new(&bench, gradients, elements, 1e-3);
        double *vg = cell_values(&g);
        for (uint64_t i = 0; tied && i < elements; i++)
            vg[i] += cell_get(&second, i);
        double squares = sum_of_squares(&bench, unit, vg), all = sqrt(squares + others), scale = 1;
        if (clip != TDM_CLIP_NONE && step > 1) { /* step 1 stays below the clip norm */
            bench.schedule.optimizer.clip_norm = all / (double)step;
            scale = 1 / (double)step;
        } else if (clip != TDM_CLIP_NONE) {
            bench.schedule.optimizer.clip_norm = 1.5 * all;
        }
        reference_step(&bench, unit, vg, scale, vw, vm, vv);
        norm_op(&bench, unit, &g, &norm, tied ? &second : NULL);
        bench_compare(&bench, "gradient norm", &norm, 0, 1, &squares, 1e-6);
        cell_set(&norms, 1, cell_get(&norm, 0));
        struct cell *given[TDM_CLIPS] = {NULL, &norm, &norms};
        optimizer_op(&bench, unit, &w, &g, master == TDM_DTYPE_NONE ? NULL : &high, sgd ? NULL : &m,
                     sgd ? NULL : &v, given[clip], tied ? &second : NULL);
        free(vg);
        cell_free(&g);
        cell_free(&second);
    }
    const struct tdm_unit *layout = &bench.model->units[unit];
    for (uint32_t k = 0; k < layout->tensor_count; k++) {
        const struct tdm_tensor *tensor = &bench.model->tensors[layout->first_tensor + k];
        uint64_t at = tensor->offset, count = tensor->elements;
        bench_compare(&bench, "weights", &w, at, count, vw + at, bound);
        if (master == TDM_DTYPE_FP32)
            bench_compare(&bench, "master", &high, at, count, vw + at, bound);
        bench_compare(&bench, "moment 1", &m, at, count, vm + at, bound * 10);
        bench_compare(&bench, "moment 2", &v, at, count, vv + at, bound * 10);
    }
    bench_untouched(&bench, &w, before, unit, TDM_PART_ALL);
    struct cell *cells[] = {&w, &high, &m, &v, &norm, &norms};
    for (int i = 0; i < 6; i++)
        cell_free(cells[i]);
    free(vw);
    free(vm);
    free(vv);
    free(before);
    bench_close(&bench);
}

static void check_steps(enum tdm_dtype weights, enum tdm_dtype master, enum tdm_dtype gradients,
                        enum tdm_dtype moments, bool tied, enum tdm_clip clip, double bound)
{
    check_decayed(weights, master, gradients, moments, tied, clip, TDM_DECAYED_DEFAULT, bound);
}

/* Each kind of tensor decays, or does not. */
static void test_decayed(void **unused)
{
    (void)unused;
    for (uint32_t decayed = 0; decayed < 1u << TDM_TENSOR_KINDS; decayed++)
        for (int sgd = 0; sgd < 2; sgd++)
            for (int tied = 0; tied < 2; tied++)
                check_decayed(TDM_DTYPE_FP32, TDM_DTYPE_NONE, TDM_DTYPE_FP32,
                              sgd ? TDM_DTYPE_NONE : TDM_DTYPE_FP32, tied, TDM_CLIP_NONE, decayed,
                              1e-6);
}

/* What decays, as text and back. */
static void test_decayed_texts(void **unused)
{
    (void)unused;
    char text[TDM_DECAYED_TEXT];
    uint32_t decayed;
    for (uint32_t bits = 0; bits < 1u << TDM_TENSOR_KINDS; bits++) {
        assert_true(tdm_decayed_parse(tdm_decayed_text(bits, text), &decayed));
        assert_int_equal(decayed, bits);
    }
    assert_string_equal(tdm_decayed_text(TDM_DECAYED_DEFAULT, text), TDM_DECAYED_DEFAULT_TEXT);
    assert_true(tdm_decayed_parse("all", &decayed));
    assert_int_equal(decayed, 15);
    static const char *const wrong[] = {
        "", "norm", "norms+", "+norms", "norms,biases", "Norms", "norms+norms", "all+norms"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(tdm_decayed_parse(wrong[i], &decayed));
}

/* Values stored in fp32 show the scale to the last digits, whatever is stored beside them. */
static void test_clipping(void **unused)
{
    (void)unused;
    enum tdm_dtype fp32 = TDM_DTYPE_FP32, bf16 = TDM_DTYPE_BF16, none = TDM_DTYPE_NONE;
    for (int clip = TDM_CLIP_LAYER; clip < TDM_CLIPS; clip++)
        for (int tied = 0; tied < 2; tied++) {
            check_steps(fp32, none, fp32, fp32, tied, (enum tdm_clip)clip, 1e-6);
            check_steps(fp32, none, bf16, none, tied, (enum tdm_clip)clip, 1e-6);
            check_steps(bf16, fp32, fp32, none, tied, (enum tdm_clip)clip, 1e-6);
        }
}

static void test_steps(void **unused)
{
    (void)unused;
    enum tdm_dtype fp32 = TDM_DTYPE_FP32, bf16 = TDM_DTYPE_BF16, none = TDM_DTYPE_NONE;
    check_steps(fp32, none, fp32, fp32, false, TDM_CLIP_NONE, 1e-6);
    check_steps(fp32, none, fp32, fp32, true, TDM_CLIP_NONE, 1e-6);
    check_steps(fp32, none, bf16, fp32, true, TDM_CLIP_NONE, 1e-6);
    check_steps(bf16, fp32, fp32, fp32, false, TDM_CLIP_NONE, 1e-6);
    check_steps(TDM_DTYPE_FP16, fp32, fp32, fp32, false, TDM_CLIP_NONE, 1e-6);
    check_steps(fp32, none, fp32, bf16, false, TDM_CLIP_NONE, 2e-3);
    check_steps(bf16, none, fp32, bf16, false, TDM_CLIP_NONE,
                2e-2); /* four roundings of the weight */
    check_steps(fp32, none, fp32, none, false, TDM_CLIP_NONE, 1e-6);
    check_steps(fp32, none, fp32, none, true, TDM_CLIP_NONE, 1e-6);
    check_steps(bf16, fp32, fp32, none, false, TDM_CLIP_NONE, 1e-6);
    check_steps(bf16, none, fp32, none, true, TDM_CLIP_NONE, 2e-2);
}

/* A weight and a remainder train to the bits of a plain fp32 master and its rounded weight. */
static void test_remainder_steps(void **unused)
{
    (void)unused;
    struct bench bench;
    bench_open(&bench, &tiny, bench_seed());
    uint64_t elements = bench.model->units[0].elements;
    struct cell plain = cell_new(&bench, TDM_DTYPE_FP32, elements, 1);
    struct cell w = cell_new(&bench, TDM_DTYPE_BF16, elements, 0);
    struct cell w_split = cell_new(&bench, TDM_DTYPE_BF16, elements, 0);
    struct cell low = cell_new(&bench, TDM_DTYPE_BF16, elements, 0);
    struct cell m = cell_new(&bench, TDM_DTYPE_FP32, elements, 0);
    struct cell v = cell_new(&bench, TDM_DTYPE_FP32, elements, 0);
    struct cell m_split = cell_new(&bench, TDM_DTYPE_FP32, elements, 0);
    struct cell v_split = cell_new(&bench, TDM_DTYPE_FP32, elements, 0);
    low.dtype = TDM_DTYPE_REMAINDER16;
    float *master = plain.data;
    uint16_t *weight = w_split.data, *remainder = low.data;
    for (uint64_t i = 0; i < elements; i++) {
        if (i % 5 == 0) { /* ties between two bf16 values, rounding up and down */
            uint32_t bits = (uint32_t)bench_next(&bench) % 0x4000u << 16 | 0x8000u;
            memcpy(&master[i], &bits, sizeof(bits));
        }
        tdm_master_split(master[i], &weight[i], &remainder[i]);
    }
    for (uint64_t step = 1; step <= 200; step++) {
        bench.step = (struct tdm_step){.number = step, .learning_rate = 1e-3};
        struct cell g = cell_new(&bench, TDM_DTYPE_FP32, elements, 1e-2);
        optimizer_op(&bench, 0, &w, &g, &plain, &m, &v, NULL, NULL);
        optimizer_op(&bench, 0, &w_split, &g, &low, &m_split, &v_split, NULL, NULL);
        cell_free(&g);
        const struct tdm_unit *layout = &bench.model->units[0];
        for (uint32_t k = 0; k < layout->tensor_count; k++) {
            const struct tdm_tensor *tensor = &bench.model->tensors[layout->first_tensor + k];
            for (uint64_t i = tensor->offset; i < tensor->offset + tensor->elements; i++) {
                float joined = tdm_master_join(weight[i], remainder[i]);
                assert_memory_equal(&joined, &master[i], sizeof(joined));
                assert_int_equal(weight[i], ((uint16_t *)w.data)[i]);
            }
        }
    }
    struct cell *cells[] = {&plain, &w, &w_split, &low, &m, &v, &m_split, &v_split};
    for (int i = 0; i < 8; i++)
        cell_free(cells[i]);
    bench_close(&bench);
}

/* Bit patterns over all of fp32, and those at and below ties, are restored from their halves. */
static void test_remainder_bits(void **unused)
{
    (void)unused;
    for (uint64_t pattern = 0; pattern <= UINT32_MAX; pattern += 0x1fff) {
        for (int64_t near = -1; near <= 1; near++) {
            uint32_t bits = (uint32_t)((pattern & 0xffff0000u) + 0x8000u + (uint64_t)near);
            bits = near == 1 ? (uint32_t)pattern : bits;
            float master, joined;
            uint16_t weight, remainder;
            memcpy(&master, &bits, sizeof(master));
            tdm_master_split(master, &weight, &remainder);
            joined = tdm_master_join(weight, remainder);
            if (isnan(master)) {
                assert_true(isnan(joined) && isnan(tdm_bf16_to_float(weight)));
                continue;
            }
            assert_memory_equal(&joined, &master, sizeof(master));
            assert_int_equal(weight, tdm_master_weight(master));
            if ((bits & 0xffffu) != 0x8000u) /* not a tie: rounded to nearest */
                assert_int_equal(weight, tdm_float_to_bf16(master));
        }
    }
}

/* Of all 2^16 random shares, as many round away from zero as the value of the bits cut off, so
 * their mean is the value itself. Covers both signs, subnormals, and values that must stay: bf16
 * values and infinities. */
static void test_stochastic_exact(void **unused)
{
    (void)unused;
    static const uint32_t patterns[] = {0x3f800000, 0x3f800001, 0x3f807fff, 0x3f808000, 0x3f80ffff,
                                        0xbe123456, 0x00000001, 0x80001234, 0x7f7e0123, 0x7f800000,
                                        0xff800000, 0x00000000, 0x3fffabcd};
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++) {
        uint32_t away = 0;
        float value;
        memcpy(&value, &patterns[p], sizeof(value));
        for (uint32_t random = 0; random < 65536; random++) {
            uint16_t rounded = tdm_bf16_stochastic(value, random);
            uint16_t below = (uint16_t)(patterns[p] >> 16);
            assert_true(rounded == below || rounded == below + 1);
            away += rounded != below;
            if (isfinite(value))
                assert_true((double)tdm_bf16_to_float(rounded) == bf16_stochastic(value, random));
        }
        assert_int_equal(away, patterns[p] & 0xffff);
    }
    float nan = NAN;
    assert_true(isnan(tdm_bf16_to_float(tdm_bf16_stochastic(nan, 0xffff))));
}

/* Takes steps of 2^-12, a 32nd of a bf16 unit of the weights, whose sum is known. Rounding to
 * nearest would lose all of them. The mean error of n elements after k steps is within six standard
 * deviations of 0. One standard deviation of an element is at most sqrt(k) / 2 units. */
static void check_unbiased(enum tdm_optimizer kind)
{
    struct bench bench;
    uint64_t steps = 64;
    bench_open(&bench, &tiny, 11);
    bench.schedule.optimizer.kind = kind;
    bench.schedule.optimizer.weight_decay = 0;
    uint64_t elements = bench.model->units[0].elements;
    bool adamw = kind == TDM_OPTIMIZER_ADAMW_BF16;
    struct cell w = cell_new(&bench, TDM_DTYPE_BF16, elements, 0);
    struct cell g = cell_new(&bench, TDM_DTYPE_FP32, elements, 0);
    struct cell m = cell_new(&bench, TDM_DTYPE_BF16, elements, 0);
    struct cell v = cell_new(&bench, TDM_DTYPE_BF16, elements, 0);
    for (uint64_t i = 0; i < elements; i++) {
        cell_set(&w, i, i % 2 == 0 ? 1.5 : -1.5);
        cell_set(&g, i, -1); /* AdamW's update for it is 1 too */
        if (adamw) {         /* as after many steps with it */
            cell_set(&m, i, -1);
            cell_set(&v, i, 1);
        }
    }
    for (uint64_t step = 1; step <= steps; step++) {
        /* a late step, where the corrections for the first steps have vanished */
        bench.step = (struct tdm_step){.number = 100000 + step, .learning_rate = 0x1p-12};
        bench.step.seed = 3;
        optimizer_op(&bench, 0, &w, &g, NULL, adamw ? &m : NULL, adamw ? &v : NULL, NULL, NULL);
    }
    const struct tdm_unit *layout = &bench.model->units[0];
    double error = 0, count = 0, unit = bf16_unit(1.5);
    for (uint32_t k = 0; k < layout->tensor_count; k++) {
        const struct tdm_tensor *tensor = &bench.model->tensors[layout->first_tensor + k];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->elements; i++) {
            double start = i % 2 == 0 ? 1.5 : -1.5;
            error += cell_get(&w, i) - (start + 0x1p-12 * (double)steps);
            count += 1;
        }
    }
    assert_true(fabs(error / count) < 6 * 0.5 * sqrt((double)steps / count) * unit);
    assert_true(0x1p-12 * (double)steps > 20 * 6 * 0.5 * sqrt((double)steps / count) * unit);
    struct cell *cells[] = {&w, &g, &m, &v};
    for (int i = 0; i < 4; i++)
        cell_free(cells[i]);
    bench_close(&bench);
}

static void test_stochastic_unbiased(void **unused)
{
    (void)unused;
    check_unbiased(TDM_OPTIMIZER_SGD);
    check_unbiased(TDM_OPTIMIZER_ADAMW_BF16);
}

/* Weights and moments after one AdamW step of unit 0 from the same state; the caller frees them. */
static void bf16_step(uint64_t seed, uint64_t step, uint32_t threads, uint16_t *out[3],
                      uint64_t *elements)
{
    struct bench bench;
    bench_open(&bench, &tiny, 13);
    bench.executor->threads = threads < bench.executor->threads ? threads : bench.executor->threads;
    *elements = bench.model->units[0].elements;
    struct cell g = cell_new(&bench, TDM_DTYPE_FP32, *elements, 1);
    struct cell cells[3];
    for (int i = 0; i < 3; i++)
        cells[i] = cell_new(&bench, TDM_DTYPE_BF16, *elements, i == 0 ? 1 : 0);
    bench.step = (struct tdm_step){.number = step, .learning_rate = 1e-3, .seed = seed};
    optimizer_op(&bench, 0, &cells[0], &g, NULL, &cells[1], &cells[2], NULL, NULL);
    for (int i = 0; i < 3; i++) {
        out[i] = malloc(*elements * sizeof(uint16_t));
        assert_non_null(out[i]);
        memcpy(out[i], cells[i].data, *elements * sizeof(uint16_t));
        cell_free(&cells[i]);
    }
    cell_free(&g);
    bench_close(&bench);
}

/* The same seed and step round the same way, on one thread and on all. Other seeds do not. */
static void test_stochastic_repeats(void **unused)
{
    (void)unused;
    static const struct {
        uint64_t seed, step;
        uint32_t threads;
        bool same;
    } table[] = {{5, 7, 1, true}, {6, 7, 64, false}, {4294967301, 7, 64, false}};
    uint16_t *first[3], *other[3];
    uint64_t elements;
    bf16_step(5, 7, 64, first, &elements);
    for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
        bf16_step(table[k].seed, table[k].step, table[k].threads, other, &elements);
        for (int i = 0; i < 3; i++) {
            uint64_t differ = 0;
            for (uint64_t e = 0; e < elements; e++)
                differ += first[i][e] != other[i][e];
            assert_true(table[k].same ? differ == 0 : differ > elements / 10);
            free(other[i]);
        }
    }
    for (int i = 0; i < 3; i++)
        free(first[i]);
}

/* Updates unit 0 in slices of 768 elements, each with its share of masters and moments alone. */
static void run_in_slices(struct bench *bench, uint32_t width)
{
    const uint64_t elements = bench->op.elements, each = 768;
    struct tdm_operand *operand = bench->launch.operand;
    const struct tdm_operand whole[] = {operand[TDM_OPTIMIZER_MASTER],
                                        operand[TDM_OPTIMIZER_MOMENT1],
                                        operand[TDM_OPTIMIZER_MOMENT2]};
    assert_true(elements > 3 * each);
    bench->op.slices = (uint32_t)((elements + each - 1) / each);
    for (bench->op.slice = 0; bench->op.slice < bench->op.slices; bench->op.slice++) {
        uint64_t first = bench->op.slice * each;
        bench->op.first_element = first;
        bench->op.elements = elements - first < each ? elements - first : each;
        for (int i = 0; i < 3; i++)
            if (whole[i].data != NULL)
                operand[TDM_OPTIMIZER_MASTER + i].data =
                    (char *)whole[i].data + first * tdm_dtype_bytes(whole[i].dtype);
        struct tdm_host_update update = tdm_host_update_of(&bench->launch);
        update.width = width;
        tdm_host_update_run(&update, 1);
    }
}

enum { CELLS = 4 }; /* changed by a step: weights, master, moments */

static bool row_is_used(uint64_t row)
{
    return row % 7 < 3 || row / 64 == 2;
}

/* Only rows of the embedding that are used, or only the others, have other bytes than `before`:
 * counts them. Not all have: the rounding of a weight may leave it as it was. */
static uint64_t count_changed(const struct cell *cell, const unsigned char *before,
                              uint64_t columns, bool used)
{
    const uint64_t bytes = columns * tdm_dtype_bytes(cell->dtype);
    uint64_t changed = 0;
    for (uint64_t row = 0; row < cell->count / columns; row++) {
        const unsigned char *data = cell->data;
        const bool is = memcmp(data + row * bytes, before + row * bytes, bytes) != 0;
        assert_true(!is || row_is_used(row) == used);
        changed += is;
    }
    return changed;
}

/* Updates the rows of an embedding in two halves, as during the forward, without a gradient, and at
 * the end. Each leaves the rows of the other one alone. */
static void run_by_rows(struct bench *bench, const struct cell cells[CELLS],
                        unsigned char *const before[CELLS], uint32_t width, uint32_t threads)
{
    struct tdm_operand *operand = bench->launch.operand;
    const struct tdm_operand gradient = operand[TDM_OPTIMIZER_GRADIENT];
    const struct tdm_operand norms = operand[TDM_OPTIMIZER_NORMS];
    const uint64_t columns = bench->model->hidden;
    for (int half = 0; half < 2; half++) {
        const bool used = half == 1;
        bench->op.rows = used ? TDM_ROWS_USED : TDM_ROWS_UNUSED;
        operand[TDM_OPTIMIZER_GRADIENT] = used ? gradient : (struct tdm_operand){0};
        operand[TDM_OPTIMIZER_NORMS] = used ? norms : (struct tdm_operand){0};
        struct tdm_host_update update = tdm_host_update_of(&bench->launch);
        update.width = width;
        tdm_host_update_run(&update, threads);
        uint64_t changed = 0;
        for (int i = 0; i < CELLS && !used; i++)
            changed += count_changed(&cells[i], before[i], columns, false);
        assert_true(used || changed > 0);
    }
    bench->op.rows = TDM_ROWS_ALL;
}

/* A step of a kind of optimizer gives the same bits with vectors of all widths, on one thread and
 * on three. `rows` > 0: and of an embedding of as many rows, which are updated apart. */
static void check_widths(enum tdm_optimizer kind, enum tdm_dtype master, enum tdm_dtype gradients,
                         bool clips, uint32_t rows, uint32_t columns)
{
    const bool by_rows = rows > 0;
    static const int operand[CELLS] = {TDM_OPTIMIZER_WEIGHTS, TDM_OPTIMIZER_MASTER,
                                       TDM_OPTIMIZER_MOMENT1, TDM_OPTIMIZER_MOMENT2};
    struct bench bench;
    struct shape shape = tiny;
    /* as long as it must be, so that a sanitizer sees what is read beyond */
    uint64_t *used_rows = calloc(tdm_token_set_words(rows) + 1 - by_rows, sizeof(*used_rows));
    unsigned char *before[CELLS], *narrow[CELLS] = {NULL};
    assert_non_null(used_rows);
    if (by_rows) {
        shape.vocabulary = rows;
        shape.hidden = columns;
    }
    bench_open(&bench, &shape, 17);
    const uint32_t unit = by_rows ? tdm_model_embedding_unit(bench.model) : 0;
    bench.schedule.dtypes.weights = TDM_DTYPE_BF16;
    tdm_schedule_set_optimizer(&bench.schedule, kind);
    bench.schedule.optimizer.decayed = TDM_DECAYED_DEFAULT;
    bench.schedule.optimizer.weight_decay = 0.5; /* so that rows without a gradient change */
    bench.schedule.dtypes.master = master;
    tdm_schedule_set_clip(&bench.schedule, clips ? TDM_CLIP_LAYER : TDM_CLIP_NONE);
    bench.step = (struct tdm_step){.number = 3, .learning_rate = 1e-3, .seed = 9};
    enum tdm_dtype moments = bench.schedule.dtypes.moments;
    bool has[CELLS] = {true, master != TDM_DTYPE_NONE, moments != TDM_DTYPE_NONE,
                       moments != TDM_DTYPE_NONE};
    uint64_t elements = bench.model->units[unit].elements;
    struct cell cells[CELLS] = {cell_new(&bench, TDM_DTYPE_BF16, elements, 1),
                                cell_new(&bench, TDM_DTYPE_BF16, elements, 1),
                                cell_new(&bench, has[2] ? moments : TDM_DTYPE_FP32, elements, 1),
                                cell_new(&bench, has[3] ? moments : TDM_DTYPE_FP32, elements, 1)};
    if (master == TDM_DTYPE_FP32) {
        cell_free(&cells[1]);
        cells[1] = cell_new(&bench, TDM_DTYPE_FP32, elements, 1);
    }
    for (uint64_t i = 0; i < elements; i++)
        cell_set(&cells[3], i, fabs(cell_get(&cells[3], i)));
    struct cell gradient = cell_new(&bench, gradients, elements, 1);
    for (uint64_t row = 0; by_rows && row < shape.vocabulary; row++) {
        used_rows[row / 64] |= (uint64_t)row_is_used(row) << row % 64;
        for (uint64_t i = 0; i < shape.hidden && !row_is_used(row); i++)
            cell_set(&gradient, row * shape.hidden + i, 0);
    }
    bench.step.used_rows = used_rows;
    struct cell norm = cell_new(&bench, TDM_DTYPE_FP64, 1, 0);
    cell_set(&norm, 0, 49);
    bench_op(&bench, TDM_OP_OPTIMIZER, TDM_PART_ALL, unit, TDM_NONE, 0);
    bench_operand(&bench, TDM_OPTIMIZER_GRADIENT, &gradient, TDM_READ);
    if (clips)
        bench_operand(&bench, TDM_OPTIMIZER_NORMS, &norm, TDM_READ);
    for (int i = 0; i < CELLS; i++) {
        uint64_t bytes = elements * tdm_dtype_bytes(cells[i].dtype);
        before[i] = malloc(bytes);
        assert_non_null(before[i]);
        memcpy(before[i], cells[i].data, bytes);
        if (has[i])
            bench_operand(&bench, (uint32_t)operand[i], &cells[i], TDM_ACCUMULATE);
    }
    if (has[1])
        bench.launch.operand[TDM_OPTIMIZER_MASTER].dtype = master; /* remainders have 16 bits */
    for (uint32_t width = 0; width < 2 * tdm_host_update_widths(); width++) {
        struct tdm_host_update update = tdm_host_update_of(&bench.launch);
        assert_int_equal(update.width, tdm_host_update_widths() - 1);
        update.width = width / 2;
        for (int i = 0; i < CELLS; i++)
            memcpy(cells[i].data, before[i], elements * tdm_dtype_bytes(cells[i].dtype));
        if (by_rows && width > 0)
            run_by_rows(&bench, cells, before, update.width, width % 2 == 0 ? 1 : 3);
        else if (by_rows || width + 1 < 2 * tdm_host_update_widths())
            tdm_host_update_run(&update, width % 2 == 0 ? 1 : 3);
        else
            run_in_slices(&bench, update.width);
        for (int i = 0; i < CELLS; i++) {
            uint64_t bytes = elements * tdm_dtype_bytes(cells[i].dtype);
            if (width > 0) {
                assert_memory_equal(cells[i].data, narrow[i], bytes);
                continue;
            }
            narrow[i] = malloc(bytes);
            assert_non_null(narrow[i]);
            memcpy(narrow[i], cells[i].data, bytes);
            assert_true((memcmp(narrow[i], before[i], bytes) != 0) == has[i]);
        }
    }
    for (int i = 0; i < CELLS; i++) {
        free(before[i]);
        free(narrow[i]);
        cell_free(&cells[i]);
    }
    cell_free(&gradient);
    cell_free(&norm);
    bench_close(&bench);
    free(used_rows);
}

static void test_widths(void **unused)
{
    (void)unused;
    const enum tdm_dtype split = TDM_DTYPE_REMAINDER16, wide = TDM_DTYPE_FP32;
    const enum tdm_dtype narrow = TDM_DTYPE_BF16, none = TDM_DTYPE_NONE;
    /* tasks of threads that end within words of the set; padding that is longer than a row */
    static const uint32_t shapes[][2] = {{0, 0}, {517, 130}, {64, 9}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint32_t rows = shapes[i][0], columns = shapes[i][1];
        check_widths(TDM_OPTIMIZER_ADAMW, split, wide, true, rows, columns);
        check_widths(TDM_OPTIMIZER_ADAMW, wide, narrow, false, rows, columns);
        check_widths(TDM_OPTIMIZER_ADAMW_BF16_MOMENTS, split, wide, false, rows, columns);
        check_widths(TDM_OPTIMIZER_ADAMW_BF16, none, wide, true, rows, columns);
        check_widths(TDM_OPTIMIZER_SGD, none, narrow, true, rows, columns);
        check_widths(TDM_OPTIMIZER_SGD, split, wide, false, rows, columns);
    }
}

/* Random numbers of neighbouring seeds, steps, tensors and elements are independent, and so are the
 * shares of one number: every bit of their differences is set half of the time. */
static void test_random_streams(void **unused)
{
    (void)unused;
    enum { DRAWS = 4096 };
    for (int which = 0; which < 4; which++) {
        int set[64] = {0};
        for (uint64_t i = 0; i < DRAWS; i++) {
            uint64_t at[4] = {i, i + 1, i / 7, i * 3};
            uint64_t bits = tdm_random_bits(at[0], at[1], at[2], at[3]);
            at[which]++;
            bits ^= tdm_random_bits(at[0], at[1], at[2], at[3]);
            for (int b = 0; b < 64; b++)
                set[b] += bits >> b & 1;
        }
        for (int b = 0; b < 64; b++) /* six standard deviations */
            assert_true(abs(set[b] - DRAWS / 2) < 6 * 32);
    }
    assert_true(tdm_random_bits(1, 2, 3, 4) == tdm_random_draw(tdm_random_stream(1, 2, 3), 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_decayed),
        cmocka_unit_test(test_decayed_texts),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_remainder_steps),
        cmocka_unit_test(test_remainder_bits),
        cmocka_unit_test(test_stochastic_exact),
        cmocka_unit_test(test_stochastic_unbiased),
        cmocka_unit_test(test_stochastic_repeats),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_random_streams),
    };
    return cmocka_run_group_tests_name("optimizer", tests, NULL, NULL);
}
