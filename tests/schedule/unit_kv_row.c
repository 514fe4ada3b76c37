/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the row of K and V of the current layer: the chunks that a chunk sees are adjacent in
 * it, whatever is moved; and its length. */
#include "schedule/attend.h"
#include "schedule/kv_row.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>

#define BASE_SEED 9000

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* Follows a sweep over a layer chunk by chunk. `slots` [chunks] is where chunks are. Returns how
 * many times chunks moved. */
static uint32_t follow(const struct tdm_program *program, uint32_t layer, bool falling,
                       uint32_t *slots)
{
    uint32_t n = program->chunk_count, span = tdm_kv_span(program), moved = 0;
    uint32_t count = tdm_kv_slots(program, span);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t reader = falling ? n - 1 - i : i;
        uint32_t first = tdm_attend_first(program, layer, reader);
        uint32_t entered = falling ? first : reader, stays = first, end = reader;
        if (falling) {
            stays = tdm_attend_shared(program, layer, reader);
            end = reader + 1;
        }
        struct tdm_kv_move move = {stays, end, 0, 0};
        if (tdm_kv_moves(program, span, falling, layer, reader, &move)) {
            uint32_t moving = move.end - move.first;
            moved++;
            assert_true(move.from + moving <= count && move.to + moving <= count);
            assert_true(move.from + moving <= move.to || move.to + moving <= move.from);
            assert_int_equal(move.first, stays);
            assert_int_equal(move.end, end);
            for (uint32_t chunk = move.first; chunk < move.end; chunk++) {
                assert_int_equal(slots[chunk], move.from + chunk - move.first);
                slots[chunk] = move.to + chunk - move.first;
            }
        }
        for (uint32_t chunk = falling ? first : reader; chunk < (falling ? stays : reader + 1);
             chunk++)
            slots[chunk] = tdm_kv_slot(program, span, falling, entered, chunk);
        for (uint32_t chunk = first; chunk <= reader; chunk++) {
            assert_int_equal(slots[chunk], slots[first] + chunk - first);
            assert_int_equal(slots[chunk], tdm_kv_slot(program, span, falling, entered, chunk));
            assert_true(slots[chunk] < count);
        }
    }
    return moved;
}

static void test_sweeps(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.max_tokens = 96};
    uint64_t cases = tdm_case_count(100, 1000), moving = 0;
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = NULL;
        struct tdm_program *program = NULL;
        struct tdm_error err;
        uint32_t moved = 0;
        must(tdm_random_schedule(tdm_case_seed(BASE_SEED, n), &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        uint32_t *slots = calloc(program->chunk_count, sizeof(*slots));
        assert_non_null(slots);
        for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
            for (int falling = 0; falling < 2; falling++)
                moved += follow(program, layer, falling != 0, slots);
        moving += moved > 0;
        free(slots);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    print_message("chunks move in %llu of %llu\n", (unsigned long long)moving,
                  (unsigned long long)cases);
    assert_true(moving >= cases / 20);
}

/* Checks that two buffers of a model's step have `slots` slots, in chunks of 4K. */
static void check_slots(const char *name, uint32_t sequences, uint64_t tokens, enum tdm_order order,
                        const char *const buffers[2], uint32_t slots)
{
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_error err;
    const uint64_t no_limit[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX};
    must(tdm_model_load(name, &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_schedule_new(model, machine, tokens, &schedule, &err), &err);
    must(tdm_schedule_set_sequences(schedule, sequences, tokens, &err), &err);
    tdm_schedule_set_order(schedule, order);
    schedule->chunk_tokens = 4096;
    must(tdm_schedule_check(schedule, name, &err), &err);
    must(tdm_program_lower(schedule, &program, &err), &err);
    must(tdm_program_validate(program, no_limit, &err), &err);
    for (int i = 0; i < 2; i++) {
        uint32_t number = tdm_program_find(program, buffers[i]);
        assert_int_not_equal(number, TDM_NONE);
        assert_int_equal(program->buffers[number].slots, slots);
    }
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

/* Mistral's layers see 4,096 tokens, so a chunk of 4K sees at most two chunks. */
static void test_lengths(void **state)
{
    (void)state;
    const char *const row[] = {"kv", "kv_gradients"};
    const char *const own[] = {"kept_kv.layer0", "kv_gradients.layer0"};
    check_slots("mistral-7b-v0.1", 1, 131072, TDM_LAYER_MAJOR, row, 4);
    check_slots("mistral-7b-v0.1", 1, 16384, TDM_LAYER_MAJOR, row, 4);
    check_slots("mistral-7b-v0.1", 1, 12288, TDM_LAYER_MAJOR, row, 3);
    check_slots("mistral-7b-v0.1", 1, 131072, TDM_CHUNK_MAJOR, own, 32);
    check_slots("qwen2.5-7b", 1, 131072, TDM_LAYER_MAJOR, row, 32);
    check_slots("qwen2.5-7b", 8, 16384, TDM_LAYER_MAJOR, row, 4);
    check_slots("qwen2.5-7b", 8, 16384, TDM_CHUNK_MAJOR, own, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweeps),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
