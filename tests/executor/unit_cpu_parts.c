/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the parts of the cpu backend: GEMM, conversion of rows, exp, normal draws, arenas with
 * their pattern, timings, and the table of backends. */
#include "tests/support/cpu_fixture.h"

#include "executor/backends.h"
#include "executor/convert.h"
#include "executor/cpu/exp.h"
#include "executor/cpu/gemm.h"
#include "executor/random.h"
#include "ops/move.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct shape tiny = {
    .hidden = 8,
    .intermediate = 12,
    .query_heads = 2,
    .kv_heads = 1,
    .head_dim = 4,
    .vocabulary = 11,
    .page_tokens = 4,
    .chunk_tokens = 4,
    .tile_tokens = 4,
    .sequences = 1,
    .sequence_tokens = {10},
    .dtypes = {.weights = TDM_DTYPE_FP32,
               .activations = TDM_DTYPE_FP32,
               .kv = TDM_DTYPE_FP32,
               .kv_gradients = TDM_DTYPE_FP32,
               .gradients = TDM_DTYPE_FP32,
               .moments = TDM_DTYPE_FP32,
               .logits = TDM_DTYPE_FP32},
};

/* Compares our own loops and the library with double, over odd sizes, transposes and strides. */
static void test_gemm(void **unused)
{
    (void)unused;
    static const uint64_t sizes[] = {1, 3, 4, 7, 8, 17, 64, 65, 130, 200};
    struct bench bench = {.random = bench_seed()};
    for (int i = 0; i < 60; i++) {
        uint64_t m = sizes[bench_between(&bench, 0, 9)], n = sizes[bench_between(&bench, 0, 9)];
        uint64_t k = sizes[bench_between(&bench, 0, 9)], stride = n + bench_between(&bench, 0, 3);
        struct cell a = cell_new(&bench, TDM_DTYPE_FP32, m * k, 1);
        struct cell b = cell_new(&bench, TDM_DTYPE_FP32, k * n, 1);
        struct cell c = cell_new(&bench, TDM_DTYPE_FP32, m * stride, 1);
        struct cell plain = cell_new(&bench, TDM_DTYPE_FP32, m * stride, 1);
        bool a_transposed = i & 1, b_transposed = i & 2, add = i & 4;
        memcpy(plain.data, c.data, m * stride * sizeof(float));
        double *want = cell_values(&c);
        for (uint64_t row = 0; row < m; row++)
            for (uint64_t column = 0; column < n; column++) {
                double sum = add ? want[row * stride + column] : 0;
                for (uint64_t p = 0; p < k; p++)
                    sum += cell_get(&a, a_transposed ? p * m + row : row * k + p) *
                           cell_get(&b, b_transposed ? column * k + p : p * n + column);
                want[row * stride + column] = sum;
            }
        struct tdm_factor fa = {a.data, a_transposed ? m : k, a_transposed};
        struct tdm_factor fb = {b.data, b_transposed ? k : n, b_transposed};
        tdm_gemm(m, n, k, fa, fb, add, c.data, stride);
        tdm_gemm_plain(m, n, k, fa, fb, add, plain.data, stride);
        bench_compare(&bench, tdm_gemm_name(), &c, 0, m * stride, want, 3e-6);
        bench_compare(&bench, "own loops", &plain, 0, m * stride, want, 3e-6);
        free(want);
        cell_free(&a);
        cell_free(&b);
        cell_free(&c);
        cell_free(&plain);
    }
}

/* A row is converted as its elements are one by one. */
static void test_convert(void **unused)
{
    (void)unused;
    enum { COUNT = 4099 };
    float *row = malloc(COUNT * sizeof(float)), *back = malloc(COUNT * sizeof(float));
    uint16_t *stored = malloc(COUNT * sizeof(uint16_t));
    assert_true(row != NULL && back != NULL && stored != NULL);
    struct bench bench = {.random = bench_seed()};
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < COUNT; i++) {
            uint32_t bits = (uint32_t)bench_next(&bench);
            if (i % 3 == 0)
                bits = (bits & 0xffff0000u) | 0x8000u; /* ties */
            memcpy(&row[i], &bits, sizeof(bits));
        }
        tdm_store_row(stored, TDM_DTYPE_BF16, 1, COUNT - 1, row);
        for (int i = 0; i < COUNT - 1; i++)
            assert_int_equal(stored[i + 1], tdm_float_to_bf16(row[i]));
        tdm_load_row(stored, TDM_DTYPE_BF16, 1, COUNT - 1, back);
        for (int i = 0; i < COUNT - 1; i++) {
            float one = tdm_bf16_to_float(stored[i + 1]);
            assert_memory_equal(&one, &back[i], sizeof(one));
        }
        tdm_store_row(stored, TDM_DTYPE_FP16, 0, COUNT, row);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(stored[i], tdm_float_to_fp16(row[i]));
    }
    free(row);
    free(back);
    free(stored);
}

static void test_exp(void **unused)
{
    (void)unused;
    double worst = 0;
    for (float x = TDM_EXP_LEAST; x < 88.0f; x += 0.00137f)
        worst = fmax(worst, fabs((double)tdm_exp(x) / exp((double)x) - 1));
    print_message("# largest relative error of exp %.2g\n", worst);
    assert_true(worst < 1.5e-7);
    assert_true(tdm_exp(0) == 1.0f && tdm_exp(-INFINITY) == 0.0f && tdm_exp(-100) == 0.0f);
    assert_true(tdm_exp(1000) == tdm_exp(88) && isnan(tdm_exp(NAN)));
}

/* Mean, variance, fourth moment and the share beyond the ziggurat are right to 5 standard
 * errors. */
static void test_normal(void **unused)
{
    (void)unused;
    enum { DRAWS = 2000000 };
    struct tdm_normal normal;
    double sums[3] = {0}, beyond = 0.0;
    const double tail = 3.6541528853610088, share = erfc(tail / sqrt(2.0));
    uint64_t stream = tdm_random_stream(7, 0, 3);
    tdm_normal_open(&normal);
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = tdm_normal_draw(&normal, tdm_random_draw(stream, i));
        sums[0] += x / DRAWS;
        sums[1] += x * x / DRAWS;
        sums[2] += x * x * x * x / DRAWS;
        beyond += fabs(x) > tail;
    }
    assert_true(fabs(sums[0]) < 5.0 / sqrt(DRAWS));
    assert_true(fabs(sums[1] - 1.0) < 5.0 * sqrt(2.0 / DRAWS));
    assert_true(fabs(sums[2] - 3.0) < 5.0 * sqrt(96.0 / DRAWS));
    assert_true(fabs(beyond - share * DRAWS) < 5.0 * sqrt(share * DRAWS));
}

static void test_arenas(void **unused)
{
    (void)unused;
    struct tdm_error err = {0};
    struct bench bench;
    bench_open(&bench, &tiny, 1);
    struct tdm_executor *executor = bench.executor;
    const struct tdm_backend *cpu = &tdm_cpu_backend;
    void *base[TDM_MAX_PLACES];
    uint64_t bytes = (5 << 20) + 24, touched = 1, highest = 1;
    for (int place = 0; place < TDM_PLACES; place++) {
        assert_int_equal(TDM_OK, cpu->arena(executor, place, bytes, &base[place], &err));
        assert_true((uintptr_t)base[place] % 4096 == 0);
        /* two pieces make one pattern */
        assert_int_equal(TDM_OK, cpu->fill(executor, base[place], 0, 3 << 20, &err));
        assert_int_equal(TDM_OK,
                         cpu->fill(executor, base[place], 3 << 20, bytes - (3 << 20), &err));
    }
    assert_int_equal(TDM_OK, cpu->scan(executor, base[0], bytes, &touched, &highest, &err));
    assert_true(touched == 0 && highest == 0);
    const char text[] = "seven or so";
    assert_int_equal(TDM_OK, cpu->upload(executor, (char *)base[0] + 1001, text, 12, &err));
    memset((char *)base[0] + (4 << 20), 0, 64);
    assert_int_equal(TDM_OK, cpu->scan(executor, base[0], bytes, &touched, &highest, &err));
    assert_true(touched == 16 + 64 && highest == (4 << 20) + 64);
    char back[12];
    assert_int_equal(TDM_OK, cpu->download(executor, back, (char *)base[0] + 1001, 12, &err));
    assert_string_equal(back, text);
    /* a copy of untouched bytes counts as touched */
    memcpy((char *)base[1] + 4096, (char *)base[1] + (1 << 20), 4096);
    assert_int_equal(TDM_OK, cpu->scan(executor, base[1], bytes, &touched, &highest, &err));
    assert_true(touched == 4096 && highest == 8192);

    assert_int_equal(TDM_NO_MEMORY,
                     cpu->arena(executor, TDM_HOST, (uint64_t)1 << 50, &base[1], &err));
    assert_non_null(strstr(err.message, "host arena of"));
    assert_int_equal(TDM_NO_MEMORY, cpu->arena(executor, TDM_HOST, UINT64_MAX, &base[1], &err));
    assert_true(cpu->outside_bytes(executor) > 0);
    bench_close(&bench);
}

static void test_timings(void **unused)
{
    (void)unused;
    struct bench bench;
    bench_open(&bench, &tiny, 1);
    struct cell from = cell_new(&bench, TDM_DTYPE_FP32, 100, 1);
    struct cell to = cell_new(&bench, TDM_DTYPE_FP32, 100, 1);
    struct tdm_timing *timings = malloc(5000 * sizeof(*timings));
    assert_non_null(timings);
    int64_t before = tdm_cpu_backend.now(bench.executor);
    for (uint64_t i = 0; i < 3000; i++) {
        bench_op(&bench, TDM_OP_COPY, 0, TDM_NONE, TDM_NONE, 0);
        bench.op.number = i;
        bench_operand(&bench, TDM_COPY_FROM, &from, TDM_READ);
        bench_operand(&bench, TDM_COPY_TO, &to, TDM_WRITE);
        bench_run(&bench);
        if (i == 9) {
            assert_int_equal(4, tdm_cpu_backend.reap(bench.executor, timings, 4));
            assert_int_equal(6, tdm_cpu_backend.reap(bench.executor, timings + 4, 100));
            for (uint64_t k = 0; k < 10; k++) {
                assert_int_equal(k, timings[k].op_number);
                assert_true(timings[k].start_ns >= before);
                assert_true(timings[k].end_ns >= timings[k].start_ns);
                before = timings[k].end_ns;
            }
        }
    }
    /* the ring overflowed and holds the newest timings */
    size_t count = tdm_cpu_backend.reap(bench.executor, timings, 5000);
    assert_true(count >= 1000 && count < 3000);
    for (size_t k = 0; k < count; k++)
        assert_int_equal(3000 - count + k, timings[k].op_number);
    assert_int_equal(0, tdm_cpu_backend.reap(bench.executor, timings, 5000));
    free(timings);
    cell_free(&from);
    cell_free(&to);
    bench_close(&bench);
}

static void test_table(void **unused)
{
    (void)unused;
    struct tdm_error err = {0};
    const struct tdm_backend *backend = NULL;
    assert_int_equal(TDM_OK, tdm_backend_find("cpu", &backend, &err));
    assert_ptr_equal(backend, &tdm_cpu_backend);
    assert_int_equal(TDM_OK, tdm_backend_find("null", &backend, &err));
    assert_false(backend->executes);
    assert_int_equal(TDM_USAGE, tdm_backend_find("abacus", &backend, &err));
    assert_non_null(strstr(err.message, "null"));
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        assert_true(tdm_cpu_backend.run[kind] != NULL && tdm_null_backend.run[kind] != NULL);

    struct tdm_executor *executor = NULL;
    void *base = &base;
    assert_int_equal(TDM_OK, backend->open(0, NULL, 0, &executor, &err));
    assert_int_equal(TDM_OK, backend->arena(executor, TDM_DEVICE, (uint64_t)1 << 60, &base, &err));
    assert_null(base);
    assert_int_equal(TDM_OK, backend->run[0](executor, NULL, &err));
    backend->close(executor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),   cmocka_unit_test(test_convert),
        cmocka_unit_test(test_exp),    cmocka_unit_test(test_normal),
        cmocka_unit_test(test_arenas), cmocka_unit_test(test_timings),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests_name("cpu parts", tests, NULL, NULL);
}
