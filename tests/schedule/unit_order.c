/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the order of ops: compares waits with those derived from all pairs of accesses.
 */
#include "schedule/order.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"
#include "tests/support/recording.h"

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

static bool same_bytes(const struct tdm_buffer *a, const struct tdm_buffer *b)
{
    return a->place == b->place && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

/* Must access `early` be complete before `late`? `born` is the item that allocated the buffer of
 * `late`. Any access to the same bytes before that item must be complete. */
static bool conflict(const struct tdm_recording *recording, size_t early_item,
                     const struct tdm_access *early, const struct tdm_access *late, size_t born)
{
    const struct tdm_buffer *buffers = recording->program.buffers;
    if (early->buffer == TDM_NONE || late->buffer == TDM_NONE)
        return false;
    if (early_item < born)
        return same_bytes(&buffers[early->buffer], &buffers[late->buffer]);
    bool apart = early->buffer == late->buffer && buffers[late->buffer].by_part &&
                 early->part < TDM_PARTS && late->part < TDM_PARTS && early->part != late->part;
    if (apart && tdm_model_layers_alike(recording->program.schedule->model))
        return false;
    return early->buffer == late->buffer && (early->mode != TDM_READ || late->mode != TDM_READ) &&
           early->first_slot < late->first_slot + late->slots &&
           late->first_slot < early->first_slot + early->slots;
}

static bool ops_conflict(const struct tdm_recording *recording, const size_t *born, size_t early,
                         size_t late)
{
    const struct tdm_op *a = &recording->items[early].op, *b = &recording->items[late].op;
    for (uint32_t i = 0; i < a->access_count; i++)
        for (uint32_t j = 0; j < b->access_count; j++)
            if (b->access[j].buffer != TDM_NONE &&
                conflict(recording, early, &a->access[i], &b->access[j], born[b->access[j].buffer]))
                return true;
    return false;
}

/* Checks the waits of every op of a program: for each other lane, the last op that it conflicts
 * with, unless its own lane has already waited for that op. Returns the number of waits. */
static uint64_t check_order(uint64_t seed, const struct tdm_recording *recording)
{
    size_t count = recording->count;
    size_t *born = calloc(recording->program.buffer_count, sizeof(*born));
    uint64_t *position = calloc(count, sizeof(*position));
    uint64_t on_lane[TDM_MAX_LANES] = {0}, passed[TDM_MAX_LANES][TDM_MAX_LANES] = {{0}},
             waits_seen = 0;
    struct tdm_order_tracker *order = NULL;
    struct tdm_error err;
    assert_non_null(born);
    assert_non_null(position);
    must(seed, tdm_order_new(&recording->program, &order, &err), &err);
    for (int round = 0; round < 2; round++) { /* the second round follows a reset */
        memset(on_lane, 0, sizeof(on_lane));
        memset(passed, 0, sizeof(passed));
        for (size_t i = 0; i < count; i++) {
            struct tdm_item item = tdm_recording_item(recording, i);
            struct tdm_waits waits;
            tdm_order_push(order, &item, &waits);
            if (item.kind == TDM_ALLOC)
                born[item.buffer] = i;
            if (item.kind != TDM_RUN)
                continue;
            int lane = (int)item.op->lane;
            uint64_t due[TDM_MAX_LANES] = {0};
            position[i] = ++on_lane[lane];
            for (size_t early = 0; early < i; early++) {
                const struct tdm_recorded *other = &recording->items[early];
                if (other->item.kind == TDM_RUN && (int)other->op.lane != lane &&
                    position[early] > due[other->op.lane] &&
                    ops_conflict(recording, born, early, i))
                    due[other->op.lane] = position[early];
            }
            assert_int_equal(waits.position, position[i]);
            for (int other = 0; other < TDM_LANES; other++) {
                uint64_t expected = due[other] > passed[lane][other] ? due[other] : 0;
                if (waits.lane_position[other] != expected)
                    fail_msg("seed %llu: op %llu (%s) waits for op %llu of lane %s, due is %llu",
                             (unsigned long long)seed, (unsigned long long)item.op->number,
                             tdm_op_kind_name(item.op->kind),
                             (unsigned long long)waits.lane_position[other],
                             tdm_lane_name(&recording->program.schedule->machine->topology,
                                           (enum tdm_lane)other),
                             (unsigned long long)expected);
                if (expected > 0) {
                    passed[lane][other] = expected;
                    waits_seen++;
                }
            }
        }
        tdm_order_reset(order);
    }
    tdm_order_free(order);
    free(born);
    free(position);
    return waits_seen / 2;
}

static void test_order(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS, .max_tokens = 12};
    uint64_t cases = tdm_case_count(25, 150), waits = 0, checked = 0;
    for (uint64_t n = 0; n < cases; n++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, n);
        struct tdm_schedule *schedule = NULL;
        struct tdm_program *program = NULL;
        struct tdm_recording recording;
        struct tdm_error err;
        must(seed, tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(seed, tdm_program_lower(schedule, &program, &err), &err);
        if (program->op_count <= 2500) { /* the comparison is quadratic */
            must(seed, tdm_recording_new(program, &recording, &err), &err);
            waits += check_order(seed, &recording);
            checked++;
            tdm_recording_free(&recording);
        }
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    print_message("%llu programs from seed %d, %llu waits\n", (unsigned long long)checked,
                  BASE_SEED, (unsigned long long)waits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
