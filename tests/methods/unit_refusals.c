/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a prediction does not do work that cannot change it, because a refusal makes dozens of
 * predictions: tiles that do what the ones before them did are counted and not run, and the tensors
 * of chunks that are not run are one value. */
#include "methods/chunk/parts.h"
#include "methods/eager/ops.h"
#include "methods/eager/tiles.h"
#include "methods/longest.h"
#include "methods/prediction.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define K UINT64_C(1024)
#define MIB (K * K)

static const struct tdm_gpu_facts hopper = {132, 2048, 32 * MIB, MIB, 90};

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static struct tdm_eager *start(uint64_t device_bytes, struct tdm_torch_allocator **allocator)
{
    struct tdm_error err;
    struct tdm_eager *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    must(tdm_torch_allocator_create(device_bytes, false, allocator, &err), &err);
    tdm_eager_start(m, *allocator, &hopper);
    return m;
}

static void end(struct tdm_eager *m, struct tdm_torch_allocator *allocator)
{
    tdm_eager_end(m);
    tdm_torch_allocator_free(allocator);
    free(m);
}

/* ---- tiles ---- */

#define TILES 1000u

static struct tdm_eager_value *count_run(struct tdm_eager *m, const void *model, uint32_t layer,
                                         struct tdm_eager_value *x)
{
    unsigned *runs = *(unsigned *const *)model;
    (void)layer;
    (*runs)++;
    return tdm_activate(m, TDM_ACTIVATION_SILU, x);
}

/* Runs a tiled function forward and backward on a device that has room for some tiles of the
 * forward. Returns nodes, allocations and frees. */
static uint64_t count_tiles(bool all, unsigned *runs)
{
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = start(24 * MIB, &allocator);
    const struct tdm_function function = {.run = count_run, .model = (const void *)&runs};
    m->runs_all_tiles = all;
    struct tdm_eager_value *x = tdm_value_leaf(m, 8 * K, K, 2, true);
    struct tdm_eager_value *y = tdm_tiled(m, &function, x, TILES);
    tdm_backward(m, y, NULL);
    assert_int_equal(m->status, TDM_INFEASIBLE);
    uint64_t work = m->sequence + m->moment;
    tdm_drop(m, y);
    tdm_drop(m, x);
    end(m, allocator);
    return work;
}

static void failed_tiles_are_counted(void **state)
{
    unsigned runs = 0, all_runs = 0;
    (void)state;
    uint64_t work = count_tiles(false, &runs), all_work = count_tiles(true, &all_runs);
    assert_int_equal(work, all_work);
    assert_true(all_runs > 3 * TILES / 2);
    assert_true(runs < all_runs / 2);
}

/* What a run of a tiled function leaves and took, beside its blocks. */
struct tiled_run {
    uint64_t sequence, moment;
    uint64_t at_peak[TDM_METHOD_CATEGORIES];
    struct tdm_torch_bytes peak, now;
    struct tdm_tensor_group largest[4];
    uint32_t groups;
};

struct product {
    struct tdm_eager_value *weight;
    uint64_t *runs;
};

static struct tdm_eager_value *count_product(struct tdm_eager *m, const void *model, uint32_t layer,
                                             struct tdm_eager_value *x)
{
    const struct product *product = model;
    (void)layer;
    (*product->runs)++;
    struct tdm_eager_value *wide = tdm_value_new(m, x->rows, 3 * x->columns, 2);
    struct tdm_eager_value *y = tdm_linear(m, x, product->weight, NULL, true);
    tdm_drop(m, wide);
    return y;
}

/* The first run leaves holes of several sizes, which the second one fills. */
static uint64_t run_tiled(bool all, bool expandable, uint64_t rows, uint64_t tiles,
                          struct tiled_run *run)
{
    struct tdm_error err;
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    must(tdm_torch_allocator_create(64 * K * MIB, expandable, &allocator, &err), &err);
    tdm_eager_start(m, allocator, &hopper);
    m->runs_all_tiles = all;
    struct tdm_eager_value *weight = tdm_value_leaf(m, K, K, 2, true);
    uint64_t runs = 0;
    const struct product product = {.weight = weight, .runs = &runs};
    const struct tdm_function function = {.run = count_product, .model = &product};
    struct tdm_eager_value *holes[8];
    for (unsigned i = 0; i < 8; i++)
        holes[i] = tdm_value_new(m, K * (3 + 11 * i), K, 2);
    for (unsigned i = 0; i < 8; i += 2)
        tdm_drop(m, holes[i]);
    struct tdm_eager_value *x = tdm_value_leaf(m, rows, K, 2, true);
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_eager_value *y = tdm_tiled(m, &function, x, tiles);
        tdm_backward(m, y, NULL);
        tdm_drop(m, y);
    }
    assert_int_equal(m->status, TDM_OK);
    *run = (struct tiled_run){.sequence = m->sequence,
                              .moment = m->moment,
                              .peak = tdm_torch_peak(allocator),
                              .now = tdm_torch_current(allocator)};
    memcpy(run->at_peak, m->at_peak, sizeof(run->at_peak));
    run->groups = tdm_eager_largest(m, run->largest, 4);
    for (unsigned i = 1; i < 8; i += 2)
        tdm_drop(m, holes[i]);
    tdm_drop(m, x->grad);
    tdm_drop(m, weight->grad);
    tdm_drop(m, x);
    tdm_drop(m, weight);
    end(m, allocator);
    return runs;
}

static void same_run(const struct tiled_run *a, const struct tiled_run *b)
{
    assert_int_equal(a->sequence, b->sequence);
    assert_int_equal(a->moment, b->moment);
    assert_memory_equal(a->at_peak, b->at_peak, sizeof(a->at_peak));
    assert_memory_equal(&a->peak, &b->peak, sizeof(a->peak));
    assert_memory_equal(&a->now, &b->now, sizeof(a->now));
    assert_int_equal(a->groups, b->groups);
    for (uint32_t i = 0; i < a->groups; i++) {
        assert_int_equal(a->largest[i].bytes, b->largest[i].bytes);
        assert_int_equal(a->largest[i].count, b->largest[i].count);
    }
}

/* Whatever the sizes, the peaks and all counts are those of a run of all tiles. Of 2,000 tiles, in
 * two forwards and two backwards, most are not run: segments that one forward takes one by one, or
 * maps page by page, another one takes at once, or the other way round. */
static void tiles_alike_are_counted(void **state)
{
    static const uint64_t rows[] = {100, 2000, 2048, 20000, 31337, 65536, 400000, 1000000};
    static const uint64_t tiles[] = {1, 2, 3, 4, 5, 7, 50, 500};
    (void)state;
    for (unsigned e = 0; e < 2; e++) {
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++)
            for (size_t t = 0; t < sizeof(tiles) / sizeof(tiles[0]); t++) {
                struct tiled_run all, some;
                uint64_t most = run_tiled(true, e == 1, rows[r], tiles[t], &all);
                assert_true(run_tiled(false, e == 1, rows[r], tiles[t], &some) <= most);
                same_run(&all, &some);
            }
        struct tiled_run run;
        assert_true(run_tiled(false, e == 1, 4000000, 500, &run) < 700);
    }
}

/* ---- steps whose tiles gather parameters, or reduce gradients ---- */

static void count_event(void *context, const struct tdm_torch_event *event)
{
    (void)event;
    (*(uint64_t *)context)++;
}

/* With an observer every tile is run. */
static void steps_of_tiles_are_the_same(void **state)
{
    static const struct {
        const char *method;
        uint64_t tokens;
        const char *pairs[2];
    } cases[] = {
        {"alst", 64 * K, {"tiled_mlp_compute=auto"}},
        {"alst", 200 * K, {"tiled_mlp_compute=500", "tiled_logits=100"}},
        {"alst", 96 * K, {"tiled_mlp_compute=40", "stage3_max_live_parameters=30000000"}},
        {"alst", 96 * K, {"tiled_mlp_compute=40", "stage3_max_reuse_distance=1000000"}},
        {"alst", 96 * K, {"tiled_mlp_compute=40", "offload_param=cpu"}},
        {"alst", 96 * K, {"tiled_mlp_compute=40", "allocator_conf=default"}},
        {"zero2", 32 * K, {"tiled_mlp_compute=40", "offload_optimizer=cpu"}},
    };
    const struct tdm_method *method;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("qwen2.5-0.5b", &model, &err), &err);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_method_settings settings = {
            .torch = {.tokens = cases[i].tokens, .batch = 1, .ranks = 2}};
        struct tdm_method_choices choices;
        struct tdm_torch_run quick, whole;
        uint64_t events = 0;
        const struct tdm_torch_observer observer = {.event = count_event, .context = &events};
        const struct tdm_torch_device device = {
            .gpu = hopper, .capacity_bytes = 120 * K * MIB, .limit_bytes = 120 * K * MIB};
        must(tdm_method_find(cases[i].method, &method, &err), &err);
        must(tdm_method_apply(method, cases[i].pairs, cases[i].pairs[1] != NULL ? 2 : 1, &settings,
                              &choices, &err),
             &err);
        must(tdm_method_check(model, &settings, &err), &err);
        must(tdm_torch_run(model, &settings, &device, TDM_TORCH_STEPS, NULL, &quick, &err), &err);
        must(tdm_torch_run(model, &settings, &device, TDM_TORCH_STEPS, &observer, &whole, &err),
             &err);
        assert_true(events > 0);
        assert_int_equal(quick.work, whole.work);
        assert_int_equal(whole.skipped, 0);
        assert_true(quick.skipped > quick.work / 4);
        assert_int_equal(quick.steps, whole.steps);
        for (uint32_t s = 0; s < quick.steps; s++) {
            const struct tdm_torch_step *a = &quick.step[s], *b = &whole.step[s];
            assert_memory_equal(&a->peak, &b->peak, sizeof(a->peak));
            assert_memory_equal(a->end_bytes, b->end_bytes, sizeof(a->end_bytes));
            assert_memory_equal(a->categories, b->categories, sizeof(a->categories));
            assert_int_equal(a->failed, b->failed);
            assert_int_equal(a->host_bytes, b->host_bytes);
            assert_int_equal(a->largest_count, b->largest_count);
            for (uint32_t g = 0; g < a->largest_count; g++)
                assert_int_equal(a->largest[g].bytes, b->largest[g].bytes);
        }
    }
    tdm_model_free(model);
}

/* ---- chunks ---- */

/* What a forward and a backward of chunks took to simulate. */
struct chunk_work {
    uint32_t rows;
    uint64_t blocks, segments; /* of 2 MiB, all that is reserved */
};

static struct chunk_work run_chunks(const char *name, uint64_t tokens)
{
    struct chunk_work work;
    struct tdm_method_settings settings = {.torch = {.tokens = tokens, .batch = 1, .ranks = 1}};
    struct tdm_method_choices choices;
    const struct tdm_method *method;
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = start(UINT64_C(1) << 40, &allocator);
    struct tdm_model *model;
    struct tdm_error err;
    void *state;
    must(tdm_method_find(name, &method, &err), &err);
    must(tdm_method_apply(method, NULL, 0, &settings, &choices, &err), &err);
    must(tdm_model_load("qwen2.5-0.5b", &model, &err), &err);
    must(method->system->create(m, model, &settings, &state, &err), &err);
    method->system->phases[TDM_PHASE_FORWARD](state);
    assert_int_equal(m->status, TDM_OK);
    work.rows = ((const struct tdm_chunk_run *)state)->row_count;
    method->system->phases[TDM_PHASE_BACKWARD](state);
    assert_int_equal(m->status, TDM_OK);
    work.segments = tdm_torch_current(allocator).reserved / (2 * MIB);
    work.blocks = tdm_torch_blocks_made(allocator);
    method->system->free(state);
    tdm_model_free(model);
    end(m, allocator);
    return work;
}

static void chunks_that_are_not_run_are_one_value(void **state)
{
    (void)state;
    assert_int_equal(run_chunks("oomb", 512 * K).rows, 1);
    assert_int_equal(run_chunks("seco", 512 * K).rows, 1);
}

/* Of segments that are neighbours, in use or free, there are few blocks. */
static void segments_of_chunks_share_blocks(void **state)
{
    static const char *const names[] = {"oomb", "seco"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const struct chunk_work some = run_chunks(names[i], 1024 * K),
                                more = run_chunks(names[i], 4096 * K);
        const uint64_t segments = more.segments - some.segments, blocks = more.blocks - some.blocks;
        assert_true(segments > 30000);
        if (blocks > segments / 4)
            fail_msg("%s: %" PRIu64 " blocks for %" PRIu64 " segments", names[i], blocks, segments);
    }
}

/* ---- tensors that fill whole segments ---- */

static uint64_t draw(uint64_t *random)
{
    *random = *random * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *random >> 33;
}

/* Adds tensors to a row, those that fill whole segments at once if `many`. Returns the number of
 * these. */
static uint64_t add_tensors(struct tdm_eager *m, struct tdm_eager_value *row,
                            struct tdm_torch_block **last, uint64_t bytes, uint64_t count,
                            bool many)
{
    uint64_t filled = 0;
    for (uint64_t left = count; left > 0;) {
        struct tdm_torch_block *made = NULL;
        const uint64_t at_once = many ? tdm_value_append_many(m, row, last, bytes, left) : 0;
        filled += at_once;
        left -= at_once > 0 ? at_once : 1;
        if (at_once > 0 || tdm_value_extend(m, row, *last, bytes))
            continue;
        if (!tdm_value_append(m, row, *last, bytes, &made) || made == NULL)
            break;
        *last = made;
    }
    return filled;
}

/* Rows of tensors between other tensors, which come and go and leave holes of all sizes. */
static uint64_t run_rows(uint64_t seed, bool many, struct tiled_run *run)
{
    static const uint64_t sizes[] = {MIB, MIB / 2, MIB / 4, 700000, 3 * MIB, MIB - 100, 4000};
    enum { VALUES = 24, SIZES = sizeof(sizes) / sizeof(sizes[0]) };
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = start((300 + seed % 3 * 500) * MIB, &allocator);
    struct tdm_eager_value *values[VALUES] = {NULL};
    uint64_t random = seed, filled = 0;
    m->most_moments = seed % 5 == 0 ? 1000 + draw(&random) % 4000 : 0;
    for (unsigned turn = 0; turn < 600 && m->status == TDM_OK; turn++) {
        const uint64_t at = draw(&random) % VALUES, bytes = sizes[draw(&random) % SIZES],
                       count = draw(&random) % 60;
        m->category = draw(&random) % 2 == 0 ? TDM_METHOD_KV : TDM_METHOD_KV_GRADIENTS;
        tdm_label(m, m->category == TDM_METHOD_KV ? "one" : "other");
        if (values[at] != NULL) {
            tdm_drop(m, values[at]);
            values[at] = NULL;
            continue;
        }
        values[at] = tdm_value_new(m, bytes, 1, 1);
        struct tdm_torch_block *last = values[at]->storage->block;
        for (unsigned part = 0; part < 2 && at % 2 == 0 && m->status == TDM_OK; part++)
            filled += add_tensors(m, values[at], &last, sizes[(turn + part) % SIZES], count, many);
        if (turn % 100 == 50)
            tdm_eager_reset_peak(m);
    }
    *run = (struct tiled_run){.sequence = (uint64_t)m->status,
                              .moment = m->moment,
                              .peak = tdm_torch_peak(allocator),
                              .now = tdm_torch_current(allocator)};
    memcpy(run->at_peak, m->at_peak, sizeof(run->at_peak));
    run->groups = tdm_eager_largest(m, run->largest, 4);
    for (unsigned i = 0; i < VALUES; i++)
        tdm_drop(m, values[i]);
    end(m, allocator);
    return filled;
}

static void many_tensors_are_as_one_by_one(void **state)
{
    uint64_t filled = 0;
    unsigned failed = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct tiled_run many, single;
        filled += run_rows(seed, true, &many);
        (void)run_rows(seed, false, &single);
        same_run(&single, &many);
        failed += single.sequence != TDM_OK;
    }
    if (filled < 10000 || failed < 10 || failed > 50)
        fail_msg("%" PRIu64 " tensors at once, %u of 60 runs failed", filled, failed);
}

/* ---- all methods ---- */

#define MARGIN 0.03

/* The work before remedies are looked for: of the step that was asked for, of its need, and of the
 * longest context that fits. Ten million take a second of a core. Chunk by chunk a step is ten
 * times as much. */
static void work_of_refusals_is_bounded(void **state)
{
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    unsigned refused = 0;
    (void)state;
    must(tdm_model_load("llama-3.1-8b", &model, &err), &err);
    must(tdm_machine_load("rtx-4090", &machine, &err), &err);
    for (const struct tdm_method *method = tdm_methods(); method->name != NULL; method++) {
        struct tdm_method_settings settings = {
            .torch = {.tokens = 512 * K, .batch = 1, .ranks = method->most_gpus == 1 ? 1 : 8}};
        struct tdm_method_choices choices;
        struct tdm_method_prediction p;
        uint64_t tokens, work = 0;
        if (method->system == NULL)
            continue;
        must(tdm_method_apply(method, NULL, 0, &settings, &choices, &err), &err);
        if (tdm_method_check(model, &settings, NULL) != TDM_OK)
            continue;
        must(tdm_method_predict(model, machine, &settings, MARGIN, &p, &err), &err);
        if (p.fits)
            continue;
        must(tdm_method_need(model, machine, &settings, &p, &err), &err);
        must(tdm_method_longest_below(model, machine, &settings, MARGIN, &p, &tokens, &work, &err),
             &err);
        work += p.work;
        const uint64_t most = method->system == &tdm_chunk_system ? 5000000 : 800000;
        if (work > most)
            fail_msg("%s: %" PRIu64 " of work before remedies", method->name, work);
        refused++;
    }
    assert_true(refused >= 15);
    tdm_machine_free(machine);
    tdm_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_tiles_are_counted),
        cmocka_unit_test(tiles_alike_are_counted),
        cmocka_unit_test(steps_of_tiles_are_the_same),
        cmocka_unit_test(chunks_that_are_not_run_are_one_value),
        cmocka_unit_test(segments_of_chunks_share_blocks),
        cmocka_unit_test(many_tensors_are_as_one_by_one),
        cmocka_unit_test(work_of_refusals_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
