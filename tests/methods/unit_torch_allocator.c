/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the model of PyTorch's caching allocator, on cases counted by hand. */
#include "methods/torch/allocator.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define PLENTY (UINT64_C(1) << 40)

static struct tdm_torch_allocator *new_allocator(uint64_t capacity, bool expandable)
{
    struct tdm_torch_allocator *allocator = NULL;
    assert_int_equal(tdm_torch_allocator_create(capacity, expandable, &allocator, NULL), TDM_OK);
    return allocator;
}

static struct tdm_torch_block *take(struct tdm_torch_allocator *a, uint64_t bytes)
{
    struct tdm_torch_block *block = NULL;
    assert_int_equal(tdm_torch_malloc(a, 0, bytes, &block), TDM_OK);
    return block;
}

static void expect(const struct tdm_torch_allocator *a, uint64_t allocated, uint64_t reserved)
{
    assert_int_equal(tdm_torch_current(a).allocated, allocated);
    assert_int_equal(tdm_torch_current(a).reserved, reserved);
}

/* Sizes are rounded to 512 B. 1 MiB is the largest small size. Segments have 20 MiB; from 10 MiB
 * on, blocks have their own segments. */
static void rounds_and_segments(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(PLENTY, false);
    take(a, 1);
    expect(a, 512, 2 * MIB);
    take(a, 513);
    expect(a, 512 + 1024, 2 * MIB);
    take(a, MIB);
    expect(a, 1536 + MIB, 2 * MIB);
    take(a, MIB); /* the segment has 1 MiB - 1536 left */
    expect(a, 1536 + 2 * MIB, 4 * MIB);
    take(a, MIB + 1);
    expect(a, 1536 + 3 * MIB + 512, 24 * MIB);
    take(a, 10 * MIB); /* fits in what is left of the 20 MiB */
    expect(a, 1536 + 13 * MIB + 512, 24 * MIB);
    take(a, 11 * MIB); /* a segment of its own, and 1 MiB that is not split off */
    expect(a, 1536 + 25 * MIB + 512, 36 * MIB);
    assert_int_equal(tdm_torch_current(a).requested, 1 + 513 + 3 * MIB + 1 + 21 * MIB);
    tdm_torch_allocator_free(a);
}

/* The smallest block that is large enough is used. A rest of 1 MiB or less counts with it. */
static void fits_best(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(PLENTY, false);
    struct tdm_torch_block *large = take(a, 40 * MIB), *middle = take(a, 30 * MIB);
    tdm_torch_free(a, large);
    tdm_torch_free(a, middle);
    expect(a, 0, 70 * MIB);
    struct tdm_torch_block *block = take(a, 29 * MIB);
    expect(a, 30 * MIB, 70 * MIB);
    assert_int_equal(tdm_torch_block_bytes(block), 30 * MIB);
    block = take(a, 38 * MIB);
    expect(a, 68 * MIB, 70 * MIB);
    tdm_torch_free(a, block);
    take(a, 40 * MIB); /* both parts are merged again */
    expect(a, 70 * MIB, 70 * MIB);
    tdm_torch_allocator_free(a);
}

static void merges_neighbours(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(PLENTY, false);
    struct tdm_torch_block *first = take(a, 6 * MIB), *second = take(a, 6 * MIB),
                           *third = take(a, 6 * MIB);
    expect(a, 18 * MIB, 20 * MIB);
    tdm_torch_free(a, first);
    tdm_torch_free(a, third);
    take(a, 12 * MIB); /* neither 6 nor 8 MiB are enough */
    expect(a, 18 * MIB, 32 * MIB);
    tdm_torch_free(a, second);
    take(a, 20 * MIB);
    expect(a, 32 * MIB, 32 * MIB);
    tdm_torch_allocator_free(a);
}

static void has_peaks(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(PLENTY, false);
    struct tdm_torch_block *block = take(a, 12 * MIB - 1);
    tdm_torch_free(a, block);
    assert_int_equal(tdm_torch_peak(a).allocated, 12 * MIB);
    assert_int_equal(tdm_torch_peak(a).requested, 12 * MIB - 1);
    tdm_torch_reset_peak(a);
    assert_int_equal(tdm_torch_peak(a).allocated, 0);
    assert_int_equal(tdm_torch_peak(a).reserved, 12 * MIB);
    tdm_torch_allocator_free(a);
}

/* If memory is full, cached memory is given back, but only in whole segments. */
static void gives_back_and_refuses(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(100 * MIB, false);
    struct tdm_torch_block *half = take(a, 50 * MIB), *other = take(a, 40 * MIB), *none = NULL;
    tdm_torch_free(a, half);
    half = take(a, 60 * MIB);
    expect(a, 100 * MIB, 100 * MIB);
    assert_int_equal(tdm_torch_retries(a), 1);
    assert_int_equal(tdm_torch_malloc(a, 0, 1, &none), TDM_INFEASIBLE);
    expect(a, 100 * MIB, 100 * MIB);
    tdm_torch_free(a, other);
    take(a, 2 * MIB); /* of the 40 MiB */
    assert_int_equal(tdm_torch_malloc(a, 0, 39 * MIB, &none), TDM_INFEASIBLE);
    expect(a, 62 * MIB, 100 * MIB);
    tdm_torch_free(a, half);
    tdm_torch_empty_cache(a);
    expect(a, 2 * MIB, 40 * MIB);
    tdm_torch_allocator_free(a);
}

/* There is one range. It grows by 20 MiB after its free end, and splits at any size. */
static void expands(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(PLENTY, true);
    struct tdm_torch_block *first = take(a, 15 * MIB), *second = take(a, 30 * MIB);
    expect(a, 45 * MIB, 60 * MIB); /* 5 MiB of the first page and 25 MiB more, in two pages */
    tdm_torch_free(a, second);
    take(a, 50 * MIB);
    expect(a, 65 * MIB, 80 * MIB);
    take(a, 100);
    expect(a, 65 * MIB + 512, 82 * MIB);
    tdm_torch_free(a, first);
    tdm_torch_empty_cache(a); /* the pages that a live block touches stay */
    expect(a, 50 * MIB + 512, 82 * MIB);
    tdm_torch_allocator_free(a);
}

static void expands_and_refuses(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(100 * MIB, true);
    struct tdm_torch_block *first = take(a, 40 * MIB), *last = take(a, 40 * MIB), *none = NULL;
    assert_int_equal(tdm_torch_malloc(a, 0, 41 * MIB, &none), TDM_INFEASIBLE);
    tdm_torch_free(a, first);
    /* The pages of the hole are unmapped, and mapped again at the end. */
    struct tdm_torch_block *block = take(a, 60 * MIB);
    assert_int_equal(tdm_torch_block_bytes(block), 60 * MIB);
    expect(a, 100 * MIB, 100 * MIB);
    tdm_torch_free(a, last);
    tdm_torch_free(a, block);
    tdm_torch_empty_cache(a);
    expect(a, 0, 0);
    tdm_torch_allocator_free(a);
}

/* The end of the range can grow, so a block that is larger now is used first. */
static void spares_the_end(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(PLENTY, true);
    struct tdm_torch_block *first = take(a, 12 * MIB);
    take(a, 5 * MIB);
    expect(a, 17 * MIB, 20 * MIB); /* 3 MiB at the end */
    tdm_torch_free(a, first);
    take(a, 2 * MIB);  /* of the 12 MiB */
    take(a, 23 * MIB); /* the end, still 3 MiB, and one more page */
    expect(a, 30 * MIB, 40 * MIB);
    tdm_torch_allocator_free(a);
}

/* A block that one stream freed is not used by another. */
static void keeps_streams_apart(void **state)
{
    (void)state;
    struct tdm_torch_allocator *a = new_allocator(PLENTY, false);
    struct tdm_torch_block *other;
    tdm_torch_free(a, take(a, 30 * MIB));
    assert_int_equal(tdm_torch_malloc(a, 1, 30 * MIB, &other), TDM_OK);
    expect(a, 30 * MIB, 60 * MIB);
    take(a, 30 * MIB);
    expect(a, 60 * MIB, 60 * MIB);
    tdm_torch_allocator_free(a);
}

/* With random sizes the sums hold, and all memory is given back. */
static void keeps_count(void **state)
{
    (void)state;
    enum { HELD = 300 };
    for (unsigned expandable = 0; expandable < 2; expandable++) {
        struct tdm_torch_allocator *a = new_allocator(PLENTY, expandable);
        struct tdm_torch_block *held[HELD] = {0};
        uint64_t sum = 0, random = 7;
        for (unsigned i = 0; i < 20000; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            unsigned slot = (unsigned)(random >> 33) % HELD;
            if (held[slot] != NULL) {
                sum -= tdm_torch_block_bytes(held[slot]);
                tdm_torch_free(a, held[slot]);
                held[slot] = NULL;
            } else {
                held[slot] = take(a, (random >> 20) % (UINT64_C(1) << (random >> 59)) + 1);
                sum += tdm_torch_block_bytes(held[slot]);
            }
            assert_int_equal(tdm_torch_current(a).allocated, sum);
            assert_true(tdm_torch_current(a).reserved >= sum);
        }
        for (unsigned i = 0; i < HELD; i++)
            tdm_torch_free(a, held[i]);
        tdm_torch_empty_cache(a);
        expect(a, 0, 0);
        tdm_torch_allocator_free(a);
    }
}

#define ROWS 40u
#define OF_A_ROW 12u

/* Allocator `a` extends the block before a new one if it can; `b` allocates every block. All counts
 * are the same, also after other blocks were allocated and rows were freed. */
static void rows_are_as_their_blocks(void **state)
{
    struct tdm_torch_allocator *a = new_allocator(300 * MIB, false),
                               *b = new_allocator(300 * MIB, false);
    struct tdm_torch_block *rows[ROWS][OF_A_ROW] = {{NULL}}, *alone[ROWS][OF_A_ROW] = {{NULL}};
    uint32_t random = 7, extended = 0;
    (void)state;
    for (unsigned turn = 0; turn < 4000; turn++) {
        unsigned row = (random = random * 1664525u + 1013904223u) >> 8 & 31;
        unsigned in_row = 0, kind = random >> 16 & 3;
        for (unsigned i = 0; i < OF_A_ROW; i++) { /* frees a row, or allocates it below */
            tdm_torch_free(a, rows[row][i]);
            tdm_torch_free(b, alone[row][i]);
            if (alone[row][i] != NULL)
                in_row++;
            rows[row][i] = alone[row][i] = NULL;
        }
        for (unsigned i = 0, end = OF_A_ROW; i < OF_A_ROW && in_row == 0; i++) {
            uint64_t bytes = kind == 0 ? 700 + i % 3 * 512 : (kind == 1 ? 300000 : 1500000 + 7 * i);
            struct tdm_torch_block *block = NULL;
            enum tdm_status status = tdm_torch_malloc(b, 0, bytes, &alone[row][i]);
            if (end < OF_A_ROW && tdm_torch_extend(a, rows[row][end], 0, bytes))
                extended++;
            else if (tdm_torch_malloc(a, 0, bytes, &block) == TDM_OK)
                rows[row][end = i] = block;
            else
                assert_int_equal(status, TDM_INFEASIBLE);
        }
        struct tdm_torch_bytes x = tdm_torch_current(a), y = tdm_torch_current(b);
        assert_memory_equal(&x, &y, sizeof(x));
        x = tdm_torch_peak(a);
        y = tdm_torch_peak(b);
        assert_memory_equal(&x, &y, sizeof(x));
        assert_int_equal(tdm_torch_retries(a), tdm_torch_retries(b));
    }
    assert_true(extended > 1000);
    tdm_torch_allocator_free(a);
    tdm_torch_allocator_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_and_segments),      cmocka_unit_test(fits_best),
        cmocka_unit_test(merges_neighbours),        cmocka_unit_test(has_peaks),
        cmocka_unit_test(gives_back_and_refuses),   cmocka_unit_test(expands),
        cmocka_unit_test(expands_and_refuses),      cmocka_unit_test(keeps_count),
        cmocka_unit_test(spares_the_end),           cmocka_unit_test(keeps_streams_apart),
        cmocka_unit_test(rows_are_as_their_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
