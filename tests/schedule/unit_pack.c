/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of packing: valid and repeatable on random live ranges, as small as the best of all orders
 * on small instances, and smaller than greedy where greedy fails.
 */
#include "base/size.h"
#include "schedule/pack.h"
#include "schedule/pack_search.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE_SEED 2000

static void must(uint64_t seed, enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err->message);
}

/* ---- random live ranges ---- */

enum { MOST_BUFFERS = 60, MOMENTS = 40 };

/* Random buffers. Each is live in a random range of the moments, or in several ranges. */
static void random_ranges(struct tdm_dice *dice, uint32_t count, bool live[][MOMENTS])
{
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t stretches = tdm_dice_chance(dice, 70) ? 1 : 3; stretches > 0; stretches--) {
            uint64_t first = tdm_dice_roll(dice, 0, MOMENTS - 1);
            uint64_t last = tdm_dice_roll(dice, first, MOMENTS - 1);
            for (uint64_t moment = first; moment <= last; moment++)
                live[i][moment] = true;
        }
}

static bool meet(const bool *a, const bool *b)
{
    for (int moment = 0; moment < MOMENTS; moment++)
        if (a[moment] && b[moment])
            return true;
    return false;
}

struct instance {
    uint32_t count;
    uint64_t align, bytes[MOST_BUFFERS];
    bool live[MOST_BUFFERS][MOMENTS];
    struct tdm_conflicts conflicts;
    uint64_t peak; /* of live bytes */
};

/* An instance of at least `fewest` buffers. The caller frees x->conflicts. */
static void draw_instance(uint64_t seed, uint64_t fewest, struct instance *x)
{
    struct tdm_dice dice;
    struct tdm_error err;
    tdm_dice_seed(&dice, seed);
    *x = (struct instance){.count = (uint32_t)tdm_dice_roll(&dice, fewest, MOST_BUFFERS)};
    x->align = (uint64_t)1 << tdm_dice_roll(&dice, 0, 9);
    random_ranges(&dice, x->count, x->live);
    for (uint32_t i = 0; i < x->count; i++) /* some have 0 bytes, like buffers of another place */
        x->bytes[i] = tdm_dice_chance(&dice, 10) ? 0 : tdm_dice_roll(&dice, 1, 20000);

    must(seed, tdm_conflicts_new(x->count, &x->conflicts, &err), &err);
    for (int moment = 0; moment < MOMENTS; moment++) {
        uint64_t now[1] = {0}, sum = 0;
        for (uint32_t i = 0; i < x->count; i++)
            if (x->live[i][moment]) {
                tdm_conflicts_add(&x->conflicts, i, now);
                now[0] |= (uint64_t)1 << i;
                sum += (x->bytes[i] + x->align - 1) / x->align * x->align;
            }
        x->peak = sum > x->peak ? sum : x->peak;
    }
}

/* Packs one instance. Returns (arena - live peak) / live peak. */
static double pack_instance(uint64_t seed)
{
    static struct instance x;
    struct tdm_error err;
    uint64_t offsets[MOST_BUFFERS], again[MOST_BUFFERS];
    uint64_t arena = 0, same = 0;
    draw_instance(seed, 0, &x);
    const uint64_t *bytes = x.bytes, align = x.align, peak = x.peak;
    must(seed,
         tdm_pack(&x.conflicts, bytes, align, peak, TDM_SIZE_MAX, TDM_PACK_EFFORT, offsets, &arena,
                  &err),
         &err);
    must(seed,
         tdm_pack(&x.conflicts, bytes, align, peak, TDM_SIZE_MAX, TDM_PACK_EFFORT, again, &same,
                  &err),
         &err);
    assert_int_equal(same, arena);

    uint64_t highest = 0;
    for (uint32_t a = 0; a < x.count; a++) {
        for (uint32_t b = 0; b < x.count; b++)
            assert_int_equal(tdm_conflicts_test(&x.conflicts, a, b),
                             a != b && meet(x.live[a], x.live[b]));
        if (bytes[a] == 0)
            continue;
        assert_int_equal(offsets[a], again[a]);
        assert_int_equal(offsets[a] % align, 0);
        highest = offsets[a] + bytes[a] > highest ? offsets[a] + bytes[a] : highest;
        for (uint32_t b = 0; b < a; b++)
            if (bytes[b] > 0 && meet(x.live[a], x.live[b]) && offsets[a] < offsets[b] + bytes[b] &&
                offsets[b] < offsets[a] + bytes[a])
                fail_msg("seed %llu: buffers %u and %u overlap", (unsigned long long)seed, a, b);
    }
    if (arena < peak || arena < highest || arena >= highest + align)
        fail_msg("seed %llu: arena of %llu, buffers end at %llu, live peak %llu",
                 (unsigned long long)seed, (unsigned long long)arena, (unsigned long long)highest,
                 (unsigned long long)peak);
    tdm_conflicts_free(&x.conflicts);
    return peak == 0 ? 0 : (double)(arena - peak) / (double)peak;
}

static void test_packing(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(100, 500), worst_seed = 0;
    double worst = 0, sum = 0;
    for (uint64_t n = 0; n < cases; n++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, n);
        double over = pack_instance(seed);
        sum += over;
        if (over > worst) {
            worst = over;
            worst_seed = seed;
        }
    }
    print_message("%llu random instances from seed %d: arena over live peak mean %.2f%%, worst "
                  "%.2f%% (seed %llu)\n",
                  (unsigned long long)cases, BASE_SEED, 100 * sum / (double)cases, 100 * worst,
                  (unsigned long long)worst_seed);
}

/* ---- no more than is of use ---- */

/* Who looks for less than some bytes gets the same arena wherever it is less, else one that is not,
 * with all buffers in it. */
static void test_below(void **state)
{
    (void)state;
    static struct instance x;
    uint64_t cases = tdm_case_count(300, 3000), offsets[MOST_BUFFERS], ended = 0;
    for (uint64_t n = 0; n < cases; n++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, n), arena, found;
        struct tdm_error err;
        draw_instance(seed, MOST_BUFFERS / 2, &x);
        must(seed,
             tdm_pack(&x.conflicts, x.bytes, x.align, x.peak, TDM_SIZE_MAX, TDM_PACK_EFFORT,
                      offsets, &arena, &err),
             &err);
        for (int more = 0; more < 2; more++) {
            must(seed,
                 tdm_pack_below(&x.conflicts, x.bytes, x.align, x.peak, TDM_SIZE_MAX,
                                arena + (uint64_t)more, TDM_PACK_EFFORT, offsets, &found, &err),
                 &err);
            if (more == 1)
                assert_int_equal(found, arena);
            else
                assert_true(found >= arena);
            ended += found > arena;
            for (uint32_t a = 0; a < x.count; a++)
                assert_true(x.bytes[a] == 0 || offsets[a] + x.bytes[a] <= found);
        }
        tdm_conflicts_free(&x.conflicts);
    }
    assert_true(tdm_case_enough("instances were not searched to the end", ended, cases, 0.01));
}

/* ---- a capacity ---- */

enum { CAPACITIES = 24 }; /* tried per instance, between its live peak and its arena */

#define LITTLE_EFFORT 200000u /* small, so that the search for the live peak often fails */

/* Packing with the live peak as goal stays within a capacity wherever packing with the capacity as
 * goal does, even if its own search ended above the capacity. */
static void test_capacity(void **state)
{
    (void)state;
    static struct instance x;
    uint64_t cases = tdm_case_count(300, 900), offsets[MOST_BUFFERS], missed = 0;
    for (uint64_t n = 0; n < cases; n++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, n), arena, quick, both;
        bool had_missed = false;
        struct tdm_error err;
        draw_instance(seed, MOST_BUFFERS / 2, &x);
        must(seed,
             tdm_pack(&x.conflicts, x.bytes, x.align, x.peak, TDM_SIZE_MAX, LITTLE_EFFORT, offsets,
                      &arena, &err),
             &err);
        for (uint64_t i = 0; i < CAPACITIES && arena > x.peak; i++) {
            uint64_t capacity = x.peak + (arena - x.peak) * i / CAPACITIES;
            must(seed,
                 tdm_pack(&x.conflicts, x.bytes, x.align, capacity, capacity, LITTLE_EFFORT,
                          offsets, &quick, &err),
                 &err);
            must(seed,
                 tdm_pack(&x.conflicts, x.bytes, x.align, x.peak, capacity, LITTLE_EFFORT, offsets,
                          &both, &err),
                 &err);
            if (both != arena && both > capacity)
                fail_msg("seed %llu: the arena is %llu without a limit, %llu with a limit of %llu",
                         (unsigned long long)seed, (unsigned long long)arena,
                         (unsigned long long)both, (unsigned long long)capacity);
            if (quick <= capacity && both > capacity)
                fail_msg("seed %llu: %llu bytes for a capacity of %llu, %llu if that is the goal",
                         (unsigned long long)seed, (unsigned long long)both,
                         (unsigned long long)capacity, (unsigned long long)quick);
            for (uint32_t a = 0; a < x.count; a++)
                for (uint32_t b = 0; b < a; b++)
                    if (x.bytes[a] > 0 && x.bytes[b] > 0 && meet(x.live[a], x.live[b]) &&
                        offsets[a] < offsets[b] + x.bytes[b] &&
                        offsets[b] < offsets[a] + x.bytes[a])
                        fail_msg("seed %llu: buffers %u and %u overlap", (unsigned long long)seed,
                                 a, b);
            had_missed = had_missed || quick <= capacity;
        }
        missed += had_missed;
        tdm_conflicts_free(&x.conflicts);
    }
    assert_true(tdm_case_enough("instances fit what a search for the live peak missed", missed,
                                cases, 0.02));
}

/* ---- the least arena ---- */

enum { FEW = 6 };

/* Random conflicts of a few buffers. They need not come from intervals. */
static void random_conflicts(struct tdm_dice *dice, uint32_t count, struct tdm_conflicts *conflicts)
{
    unsigned percent = (unsigned)tdm_dice_roll(dice, 20, 90);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t live = 0;
        for (uint32_t j = 0; j < i; j++)
            if (tdm_dice_chance(dice, percent))
                live |= (uint64_t)1 << j;
        tdm_conflicts_add(conflicts, i, &live);
    }
}

/* The least arena over all orders of placing buffers, each just above the conflicting buffers
 * placed before it. `placed`: those that have offsets. */
static uint64_t least_arena(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                            uint64_t *offsets, unsigned placed, uint64_t arena)
{
    uint64_t least = UINT64_MAX;
    if (placed == (1u << conflicts->count) - 1)
        return arena;
    for (uint32_t i = 0; i < conflicts->count; i++) {
        if (placed >> i & 1)
            continue;
        uint64_t at = 0;
        for (uint32_t j = 0; j < conflicts->count; j++) /* above them all: some order is optimal */
            if ((placed >> j & 1) && tdm_conflicts_test(conflicts, i, j) &&
                offsets[j] + bytes[j] > at)
                at = offsets[j] + bytes[j];
        offsets[i] = at;
        uint64_t end = at + bytes[i];
        uint64_t found =
            least_arena(conflicts, bytes, offsets, placed | 1u << i, end > arena ? end : arena);
        least = found < least ? found : least;
    }
    return least;
}

/* The search finds the least arena, and proves that one byte less is too little. */
static void test_least(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(100, 1000);
    for (uint64_t n = 0; n < cases; n++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, n), bytes[FEW], offsets[FEW];
        uint64_t steps = TDM_PACK_EFFORT;
        struct tdm_dice dice;
        struct tdm_conflicts conflicts;
        struct tdm_error err;
        struct tdm_pack_search *search = NULL;
        enum tdm_pack_answer enough, too_little;
        tdm_dice_seed(&dice, seed);
        must(seed, tdm_conflicts_new(FEW, &conflicts, &err), &err);
        random_conflicts(&dice, FEW, &conflicts);
        for (uint32_t i = 0; i < FEW; i++)
            bytes[i] = tdm_dice_roll(&dice, 1, 7);
        uint64_t least = least_arena(&conflicts, bytes, offsets, 0, 0);
        must(seed, tdm_pack_search_new(&conflicts, bytes, &steps, &search, &err), &err);
        must(seed, tdm_pack_search_run(search, least - 1, &steps, offsets, &too_little, &err),
             &err);
        must(seed, tdm_pack_search_run(search, least, &steps, offsets, &enough, &err), &err);
        if (enough != TDM_PACK_FOUND || too_little != TDM_PACK_NONE ||
            tdm_pack_search_bound(search) > least)
            fail_msg("seed %llu: %llu bytes are the least; answers %d there, %d below",
                     (unsigned long long)seed, (unsigned long long)least, (int)enough,
                     (int)too_little);
        for (uint32_t a = 0; a < FEW; a++)
            for (uint32_t b = 0; b < FEW; b++)
                if (tdm_conflicts_test(&conflicts, a, b) && offsets[a] < offsets[b] + bytes[b] &&
                    offsets[b] < offsets[a] + bytes[a])
                    fail_msg("seed %llu: buffers %u and %u overlap", (unsigned long long)seed, a,
                             b);
        tdm_pack_search_free(search);
        tdm_conflicts_free(&conflicts);
    }
}

/* Six buffers with a live peak of 9. No greedy order that is tried packs them below 10. */
static void test_greedy_fails(void **state)
{
    (void)state;
    static const struct {
        int lower, upper;
    } lives[FEW] = {{5, 6}, {2, 6}, {4, 8}, {0, 4}, {1, 5}, {0, 4}};
    static const uint64_t bytes[FEW] = {5, 2, 2, 5, 1, 1};
    struct tdm_conflicts conflicts;
    struct tdm_error err;
    uint64_t offsets[FEW], arena = 0;
    must(0, tdm_conflicts_new(FEW, &conflicts, &err), &err);
    for (uint32_t i = 0; i < FEW; i++) {
        uint64_t live = 0;
        for (uint32_t j = 0; j < i; j++)
            if (lives[i].lower < lives[j].upper && lives[j].lower < lives[i].upper)
                live |= (uint64_t)1 << j;
        tdm_conflicts_add(&conflicts, i, &live);
    }
    must(0, tdm_pack(&conflicts, bytes, 1, 9, TDM_SIZE_MAX, 0, offsets, &arena, &err), &err);
    assert_int_equal(arena, 10);
    must(0, tdm_pack(&conflicts, bytes, 1, 9, TDM_SIZE_MAX, TDM_PACK_EFFORT, offsets, &arena, &err),
         &err);
    assert_int_equal(arena, 9);
    tdm_conflicts_free(&conflicts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packing),      cmocka_unit_test(test_below),
        cmocka_unit_test(test_capacity),     cmocka_unit_test(test_least),
        cmocka_unit_test(test_greedy_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
