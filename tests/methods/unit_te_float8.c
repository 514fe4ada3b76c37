/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of Transformer Engine's te.Linear with products of 8 bits: what a forward keeps and its
 * backward adds, by hand, from module/linear.py of TransformerEngine 2.11. */
#include "methods/eager/te_float8.h"
#include "methods/prediction.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define SCALE 512u /* what a scale takes */

static struct tdm_eager *start(uint32_t capability, struct tdm_torch_allocator **allocator)
{
    const struct tdm_gpu_facts gpu = {132, 2048, 32 * MIB, MIB, capability};
    struct tdm_eager *m = calloc(1, sizeof(*m));
    struct tdm_error err;
    assert_non_null(m);
    if (tdm_torch_allocator_create(UINT64_C(1) << 34, true, allocator, &err) != TDM_OK)
        fail_msg("%s", err.message);
    tdm_eager_start(m, *allocator, &gpu);
    m->grad_enabled = true;
    return m;
}

static uint64_t live(struct tdm_torch_allocator *allocator)
{
    return tdm_torch_current(allocator).allocated;
}

/* x of 1,024 x 4,096 in bf16 is 8 MiB, the weight of 2,048 x 4,096 is 16 MiB and 8 MiB in 8 bits, y
 * 4 MiB. */
static void a_linear_keeps_8_bits(void **unused)
{
    static const struct {
        uint32_t capability;
        bool trained;
        uint64_t workspace, kept, kept_scales;
    } cases[] = {
        /* y; x's transpose; the weight and its transpose */
        {90, true, 32 * MIB + 1024, (4 + 4 + 8 + 8) * MIB, 2},
        {89, true, 4 * MIB, (4 + 4 + 8 + 8) * MIB, 2},
        /* Blackwell has no transposes. */
        {100, true, 32 * MIB + 1024, (4 + 4 + 8) * MIB, 2},
        /* A frozen weight does not need x. */
        {90, false, 32 * MIB + 1024, (4 + 8 + 8) * MIB, 1},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_torch_allocator *allocator;
        struct tdm_eager *m = start(cases[i].capability, &allocator);
        struct tdm_eager_value *x = tdm_value_leaf(m, 1024, 4096, 2, true);
        struct tdm_eager_value *weight = tdm_value_leaf(m, 2048, 4096, 2, cases[i].trained);
        uint64_t before = live(allocator);
        struct tdm_eager_value *y = tdm_te_linear(m, x, weight, NULL);
        uint64_t workspace = cases[i].workspace, scales = cases[i].kept_scales * SCALE;
        assert_int_equal(live(allocator) - before, workspace + cases[i].kept + scales);
        /* The gradient of y, 4 MiB, in 8 bits and their transpose, dX and dW. */
        struct tdm_eager_value *gradient = tdm_value_like(m, y);
        tdm_eager_reset_peak(m);
        uint64_t held = live(allocator);
        tdm_backward(m, y, gradient);
        uint64_t bits = cases[i].capability == 100 || !cases[i].trained ? 2 * MIB : 4 * MIB;
        uint64_t made = 8 * MIB + (cases[i].trained ? 16 * MIB : 0);
        assert_int_equal(tdm_torch_peak(allocator).allocated - held, bits + SCALE + made);
        tdm_drop(m, gradient);
        tdm_drop(m, y);
        assert_int_equal(live(allocator) - before, workspace + made);
        assert_int_equal(m->status, TDM_OK);
        tdm_drop(m, x);
        tdm_drop(m, weight);
        tdm_eager_end(m);
        tdm_torch_allocator_free(allocator);
        free(m);
    }
}

/* Without gradients nothing stays, and no transposes are made: x and the weight in 8 bits and y. */
static void a_linear_without_gradients_keeps_nothing(void **unused)
{
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = start(90, &allocator);
    (void)unused;
    m->grad_enabled = false;
    struct tdm_eager_value *x = tdm_value_leaf(m, 1024, 4096, 2, true);
    struct tdm_eager_value *weight = tdm_value_leaf(m, 2048, 4096, 2, true);
    uint64_t before = live(allocator), workspace = 32 * MIB + 1024;
    struct tdm_eager_value *y = tdm_te_linear(m, x, weight, NULL);
    assert_int_equal(live(allocator) - before, workspace + 4 * MIB);
    assert_int_equal(tdm_torch_peak(allocator).allocated - before,
                     workspace + (4 + 4 + 8) * MIB + 2 * SCALE);
    tdm_drop(m, y);
    tdm_drop(m, x);
    tdm_drop(m, weight);
    tdm_eager_end(m);
    tdm_torch_allocator_free(allocator);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_keeps_8_bits),
        cmocka_unit_test(a_linear_without_gradients_keeps_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
