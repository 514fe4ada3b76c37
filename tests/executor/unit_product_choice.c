/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the kernels that cuBLASLt proposes is taken: of real lists, what was fastest when each
 * kernel was held on an H200; and odd lists. Tiles have their numbers in cuBLASLt. */
#include "executor/cuda/product_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum {
    T128X128 = 20,
    T128X256 = 23,
    T256X128 = 24,
    T176X128 = 201,
    T192X192 = 209,
    T320X128 = 248
};

/* Qwen2.5-7B, first proposals of cuBLASLt 13.1 for an H200. */
static void the_fastest_when_held(void **state)
{
    static const struct {
        uint64_t m, n, k;
        uint32_t tile;
        struct tdm_product_kernel proposals[4];
    } cases[] = {
        /* q, 4K tokens: 654 TFLOP/s; 646, 636 and 625 of the others */
        {4096,
         3584,
         3584,
         T128X128,
         {{T320X128, 1, 2.91f}, {T128X128, 1, 6.79f}, {T256X128, 1, 3.39f}, {31, 1, 4.61f}}},
        /* gate and up, 8K: 689; 659, 676 and 668 */
        {8192,
         37888,
         3584,
         T176X128,
         {{T320X128, 1, 57.7f},
          {T256X128, 1, 71.76f},
          {T128X256, 1, 71.76f},
          {T176X128, 1, 104.73f}}},
        /* input of down, 8K: 671; 640 */
        {8192,
         18944,
         3584,
         T256X128,
         {{T192X192, 1, 32.25f}, {T256X128, 1, 35.88f}, {31, 1, 48.0f}, {T320X128, 1, 29.09f}}},
        /* down, 8K: the first, 678; 655 and 641 */
        {8192,
         3584,
         18944,
         T256X128,
         {{T256X128, 1, 6.79f}, {T128X128, 1, 13.58f}, {T320X128, 1, 5.82f}, {31, 1, 9.21f}}},
        /* input of k and v, 8K: 602; 556. Few steps of depth */
        {8192,
         3584,
         1024,
         T128X128,
         {{T256X128, 1, 6.79f}, {T128X256, 1, 6.79f}, {T320X128, 1, 5.82f}, {T128X128, 1, 13.58f}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint32_t taken =
            tdm_product_choose(cases[i].m, cases[i].n, cases[i].k, 4, cases[i].proposals);
        assert_in_range(taken, 0, 3);
        assert_int_equal(cases[i].proposals[taken].tile, cases[i].tile);
    }
}

static void odd_lists(void **state)
{
    const struct tdm_product_kernel split[] = {{T320X128, 1, 2.9f}, {T256X128, 2, 4.0f}},
                                    unknown[] = {{T256X128, 1, 4.0f}, {9999, 1, 4.0f}},
                                    no_waves[] = {{9999, 1, 0.0f}, {T256X128, 1, 0.0f}};
    (void)state;
    assert_int_equal(tdm_product_choose(8192, 8192, 8192, 1, split), 0);
    assert_int_equal(tdm_product_choose(8192, 8192, 8192, 2, split), 0);
    assert_int_equal(tdm_product_choose(8192, 8192, 8192, 2, unknown), 0);
    assert_int_equal(tdm_product_choose(8192, 8192, 8192, 2, no_waves), 1);
    assert_int_equal(tdm_product_choose(512, 512, 512, 2, no_waves), 0); /* too small to matter */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_fastest_when_held),
                                       cmocka_unit_test(odd_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
