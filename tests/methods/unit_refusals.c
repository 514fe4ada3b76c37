/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a prediction does not do work that cannot change it, because a refusal makes dozens of
 * predictions: tiles after a failure are counted and not run, and the tensors of chunks that are
 * not run are one value. */
#include "methods/chunk/parts.h"
#include "methods/eager/ops.h"
#include "methods/eager/tiles.h"
#include "methods/prediction.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

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
    m->counts_modules = all;
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

/* ---- chunks ---- */

static uint32_t rows_of(const char *name, uint64_t tokens)
{
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
    uint32_t rows = ((const struct tdm_chunk_run *)state)->row_count;
    method->system->free(state);
    tdm_model_free(model);
    end(m, allocator);
    return rows;
}

static void chunks_that_are_not_run_are_one_value(void **state)
{
    (void)state;
    assert_int_equal(rows_of("oomb", 512 * K), 1);
    assert_int_equal(rows_of("seco", 512 * K), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_tiles_are_counted),
        cmocka_unit_test(chunks_that_are_not_run_are_one_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
