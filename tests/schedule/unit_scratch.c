/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of scratch: large enough for the arrays of kernels, and counted like other buffers. */
#include "base/size.h"
#include "models/model.h"
#include "simulator/simulate.h"
#include "schedule/params.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>

static struct tdm_schedule *schedule_of(const char *name, uint64_t chunk_tokens)
{
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err;
    assert_int_equal(tdm_model_load(name, &model, &err), TDM_OK);
    assert_int_equal(tdm_machine_load("h200-published", &machine, &err), TDM_OK);
    assert_int_equal(tdm_schedule_new(model, machine, 131072, &schedule, &err), TDM_OK);
    schedule->chunk_tokens = chunk_tokens;
    assert_int_equal(tdm_schedule_check(schedule, name, &err), TDM_OK);
    return schedule;
}

static struct tdm_program *program_of(const struct tdm_schedule *schedule)
{
    struct tdm_program *program;
    struct tdm_error err;
    assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
    return program;
}

static void test_bytes(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = schedule_of("qwen2.5-7b", 4096);
    uint64_t few = tdm_scratch_bytes(schedule, 128), many = tdm_scratch_bytes(schedule, 1 << 20);
    assert_true(few > 0 && few < many);
    /* attention: the first token that each row sees, two values for each of 28 query heads, sums of
     * dQ, and counters of their tiles */
    uint64_t turns = 2 * 28 * ((uint64_t)1 << 20) / 64 + 131072 / 128 * 4 + 1;
    assert_int_equal(many, ((uint64_t)1 << 20) * (8 + 2 * 4 * 28 + 28 * 128 * 4) +
                               tdm_size_align(4 * turns, 256));
    schedule->pass = TDM_EVALUATE; /* without dQ, but with results of parts of the keys */
    assert_int_equal(tdm_scratch_bytes(schedule, 1 << 20),
                     ((uint64_t)1 << 20) * (8 + 2 * 4 * 28) + 4 * 132 * 128 * 128 * 4);
    schedule->pass = TDM_TRAIN;
    schedule->dtypes.activations = TDM_DTYPE_FP32; /* no kernel sums dQ in scratch */
    assert_int_equal(tdm_scratch_bytes(schedule, 1 << 20), ((uint64_t)1 << 20) * (8 + 2 * 4 * 28));
    schedule->dtypes.activations = TDM_DTYPE_BF16;
    assert_int_equal(tdm_scratch_bytes(schedule, UINT64_MAX / 8), TDM_SIZE_MAX);
    tdm_schedule_free(schedule);
}

/* Lists take scratch only if some layer makes them; none does if all layers have windows. */
static void test_lists(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = schedule_of("mistral-7b-v0.1", 4096);
    uint64_t dense = tdm_scratch_bytes(schedule, 131072);
    schedule->selector = (struct tdm_selector){.kind = TDM_SELECT_TOP_K, .budget = 4096};
    assert_int_equal(tdm_schedule_lists(schedule), TDM_SELECT_DENSE);
    assert_int_equal(tdm_scratch_bytes(schedule, 131072), dense);
    schedule->model->layer_kinds[1].window = 0;
    assert_int_equal(tdm_schedule_lists(schedule), TDM_SELECT_TOP_K);
    assert_true(tdm_scratch_bytes(schedule, 131072) > dense);
    tdm_schedule_free(schedule);
}

/* Scratch is counted like other buffers: in the arena, as workspace, at the peak. */
static void test_is_counted(void **state)
{
    (void)state;
    struct tdm_error err;
    struct tdm_simulation simulation;
    struct tdm_schedule *schedule = schedule_of("qwen2.5-0.5b", 4096);
    struct tdm_program *program = program_of(schedule);
    const struct tdm_buffer *scratch = &program->buffers[program->scratch];
    assert_true(scratch->used && !scratch->resident && scratch->place == TDM_DEVICE);
    assert_true(scratch->bytes >= tdm_scratch_bytes(schedule, 4096));
    assert_true(scratch->offset + scratch->bytes <= program->arena_bytes[TDM_DEVICE]);
    assert_int_equal(tdm_simulate(program, NULL, NULL, &simulation, &err), TDM_OK);
    assert_true(simulation.peak_categories[TDM_DEVICE][TDM_WORKSPACE] >= scratch->bytes);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

/* Bytes from `at`, the beginning of an array, to the beginning of the next array. */
static uint64_t bytes_to_next(uint64_t at, const uint64_t *begins, size_t count)
{
    uint64_t next = TDM_SIZE_MAX;
    for (size_t i = 0; i < count; i++)
        if (begins[i] > at && begins[i] < next)
            next = begins[i];
    return next - at;
}

/* The arrays of attention's scratch are as large as its kernels need, also with lists and with
 * gathered pages; so are those of a vote. */
static void check_arrays(const struct tdm_schedule *schedule, uint64_t tokens)
{
    struct tdm_params params;
    tdm_params_fill(schedule, &params);
    const struct tdm_pages_params *pages = &params.pages;
    const struct tdm_gather_params *gather = &params.attention.gather;
    struct tdm_attention_scratch x = tdm_attention_scratch(&params, tokens);
    struct tdm_vote_scratch vote = tdm_vote_scratch(&params, tokens);
    uint64_t heads = params.attention.query_heads, rows = (tokens + 63) / 64 * 64;
    uint64_t query_pages = tdm_size_ceil_div(tokens, pages->page_tokens), lists = pages->lists;
    uint64_t words = tdm_size_ceil_div(tokens, 32 * pages->page_tokens);
    const uint64_t begins[] = {x.from,  x.d,      x.dq_sums,   x.turns,  x.start, x.readers,
                               x.order, x.pages,  x.gradients, x.listed, x.table, x.sight,
                               x.begin, x.bounds, x.ends,      x.bytes};
    const struct {
        uint64_t at, bytes;
    } due[] = {
        {x.from, 4 * tokens},
        {x.d, 2 * 4 * rows * heads},
        {x.dq_sums, 4 * rows * heads * pages->head_dim},
        {x.turns, 4 * (2 * heads * (rows / 64) + pages->longest_pages * pages->kv_heads + 1)},
        {x.start, 4 * tokens},
        {x.readers, 2 * 4 * pages->longest_pages * lists * words},
        {x.order, 4 * pages->longest_pages * lists},
        {x.pages, gather->pages * pages->page_elements * 2},
        {x.gradients, gather->pages * pages->page_elements * 4},
        {x.listed, 4 * query_pages * lists * (1 + pages->list_capacity)},
        {x.table, 4 * lists * gather->pages},
        {x.sight, 4 * lists * tokens},
        {x.begin, 4 * lists * tokens},
        {x.bounds, 4 * (tdm_gather_batches(&params, tokens) + 1)},
        {x.ends, 4 * 3 * lists},
    };
    assert_true(gather->pages > 0 && params.attention.sums_dq && !params.attention.divides_keys);
    for (size_t i = 0; i < sizeof(due) / sizeof(due[0]); i++) {
        assert_int_equal(due[i].at % 256, 0);
        assert_true(due[i].at < x.bytes);
        assert_true(bytes_to_next(due[i].at, begins, sizeof(begins) / sizeof(begins[0])) >=
                    due[i].bytes);
    }
    assert_true(vote.votes - vote.lse >= 2 * 4 * tokens * heads);
    assert_true(vote.bytes - vote.votes >=
                4 * query_pages * pages->longest_pages * pages->kv_heads);
    assert_true(tdm_scratch_bytes(schedule, tokens) >= x.bytes);
    assert_true(tdm_scratch_bytes(schedule, tokens) >= vote.bytes);
}

static void test_arrays(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = schedule_of("qwen2.5-7b", 4096);
    schedule->selector = (struct tdm_selector){.kind = TDM_SELECT_TOP_K, .budget = 4096};
    tdm_schedule_set_order(schedule, TDM_CHUNK_MAJOR);
    schedule->rings.gather = 2;
    for (uint32_t i = 0; i < schedule->group_count; i++)
        schedule->groups[i].kv_place = schedule->groups[i].kv_gradients_place = TDM_HOST;
    for (uint64_t tokens = 1; tokens <= 4096; tokens = 3 * tokens + 7)
        check_arrays(schedule, tokens);
    tdm_schedule_free(schedule);
}

static void test_most_keys(void **state)
{
    (void)state;
    assert_int_equal(tdm_attend_most_keys(32768, 0, 2), 32768);
    assert_int_equal(tdm_attend_most_keys(32768, 4096, 2), 4096 + 256);
    assert_int_equal(tdm_attend_most_keys(32768, 32768 - 100, 1), 32768);
    assert_int_equal(tdm_attend_most_keys(100, 4096, 2), 100);
    assert_int_equal(tdm_attend_most_keys(32768, UINT64_MAX, 2), 32768);
}

/* Scratch has space for the results of all parts, in a step that trains and in an evaluation, and
 * for their LSEs. Fewer than all items are divided, into parts that are long enough. */
static void test_parts(void **state)
{
    (void)state;
    int divided = 0;
    for (int i = 0; i < 2; i++) {
        struct tdm_schedule *schedule = schedule_of(i == 0 ? "qwen2.5-7b" : "qwen2.5-0.5b", 65536);
        for (int pass = 0; pass < 2; pass++) {
            struct tdm_params params;
            schedule->pass = pass == 0 ? TDM_TRAIN : TDM_EVALUATE;
            tdm_params_fill(schedule, &params);
            const uint64_t heads = params.attention.query_heads, kv = params.pages.kv_heads;
            const uint64_t dim = params.pages.head_dim, tiles = dim == 128 ? 2 : 1;
            assert_true(params.attention.divides_keys);
            for (uint64_t tokens = 1; tokens <= 16384; tokens += tokens / 9 + 1) {
                struct tdm_attention_scratch x = tdm_attention_scratch(&params, tokens);
                uint64_t rows = tdm_size_ceil_div(tokens, 128), steps = 65536 / 176;
                uint64_t items = kv * tdm_size_ceil_div(rows * (heads / kv), tiles);
                struct tdm_attend_split split =
                    tdm_attend_split_of(items, tiles, steps, tdm_attend_part_tiles(tokens, heads));
                uint64_t parts = (items - split.whole) * split.parts * tiles;
                uint64_t end = pass == 0 ? x.turns : x.bytes;
                assert_true(split.parts == 1 || split.whole >= 132 / tiles);
                assert_true(split.parts > 1 ? split.whole % (132 / tiles) == 0
                                            : split.whole == items);
                assert_true(split.parts * 8 <= steps);
                assert_true(end - x.parts >= parts * 128 * dim * 4 || split.parts == 1);
                assert_true(x.dq_sums == 0 || x.dq_sums == x.parts);
                assert_true((pass == 0 ? x.dq_sums : x.parts) - x.d >= parts * 128 * 4 ||
                            split.parts == 1);
                divided += split.parts > 1;
            }
        }
        tdm_schedule_free(schedule);
    }
    assert_true(divided > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),      cmocka_unit_test(test_lists),
        cmocka_unit_test(test_is_counted), cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_most_keys),  cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
