/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the validator. One fault is planted in each copy of a correct random program. The
 * validator must catch every planted fault.
 *
 * A fault changes items before the order of ops is derived from them, as a mistake in the lowering
 * would. Ops are then renumbered, so that the count does not reveal the fault. A fault of order
 * changes the waits. If a mistake in the lowering would also give wrong tags, the fault changes the
 * tags in the same way. Planting checks what slots hold, so that no harmless fault is planted. For
 * example, a copy is dropped only if its destination holds something else.
 *
 * The faults are in tests/schedule/faults/.
 */
#include "schedule/cost.h"
#include "tests/schedule/faults/trial.h"
#include "tests/support/random_schedule.h"
#include "tests/support/recording.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#define BASE_SEED 4000
#define BASE_SEED_OF_TEAMS 44000
#define MOST_FAULTS 256
#define NEEDED 20 /* programs of the long form in which each fault must be planted */

static const struct fault *const tables[] = {
    faults_of_memory, faults_of_copies, faults_of_host,    faults_of_ranges,
    faults_of_ops,    faults_of_lists,  faults_of_team,    faults_of_team_state,
    faults_of_heads,  faults_of_rings,  faults_of_queries,
};

/* How often a fault was planted and caught. */
static struct count {
    const struct fault *fault;
    uint64_t planted, caught;
    char example[256]; /* the validator's last message */
} counts[MOST_FAULTS];

/* Lists the faults of all tables in `counts`; returns their number. */
static size_t list_faults(void)
{
    size_t count = 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        for (const struct fault *fault = tables[i]; fault->name != NULL; fault++) {
            assert_true(count < MOST_FAULTS);
            counts[count++].fault = fault;
        }
    return count;
}

static void must(uint64_t seed, enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err->message);
}

/* The order tracker trusts accesses. It is not given an op with an access outside its buffer, and
 * the validator gets no waits for that op. */
static bool inside_buffers(const struct tdm_recording *r, const struct tdm_item *item)
{
    for (uint32_t a = 0; item->kind == TDM_RUN && a < item->op->access_count; a++) {
        const struct tdm_access *access = &item->op->access[a];
        if (access->buffer != TDM_NONE &&
            (uint64_t)access->first_slot + access->slots > r->program.buffers[access->buffer].slots)
            return false;
    }
    return true;
}

static enum tdm_status validate(const struct trial *t, struct tdm_waits *waits_seen,
                                struct tdm_error *err)
{
    struct tdm_order_tracker *order = NULL;
    struct tdm_validator *validator = NULL;
    enum tdm_status status = tdm_order_new(&t->r.program, &order, err);
    if (status == TDM_OK)
        status = tdm_validator_new(&t->r.program, t->capacity, &validator, err);
    for (size_t i = 0; i < t->r.count && status == TDM_OK; i++) {
        struct tdm_item item = tdm_recording_item(&t->r, i);
        struct tdm_waits waits = {0};
        bool inside = inside_buffers(&t->r, &item);
        if (inside)
            tdm_order_push(order, &item, &waits);
        if (waits_seen != NULL)
            waits_seen[i] = waits;
        if (i == t->wait_item)
            waits.lane_position[t->wait_lane] = t->wait;
        status = tdm_validator_push(validator, &item, inside ? &waits : NULL, err);
    }
    if (status == TDM_OK)
        status = tdm_validator_finish(validator, err);
    tdm_validator_free(validator);
    tdm_order_free(order);
    return status;
}

/* Plants a fault where the trial's program has a place for it. The validator must find it. */
static void plant(uint64_t seed, struct count *count, struct trial *t)
{
    const struct fault *fault = count->fault;
    struct tdm_error err;
    if ((fault->of_team && t->r.program.ranks == 1) || !fault->plant(t))
        return;
    count->planted++;
    for (size_t i = 0; i < t->r.count && !fault->of_cost; i++)
        if (t->r.items[i].item.kind == TDM_RUN) /* costs of a mistake in the lowering match it */
            tdm_op_cost(&t->r.program, &t->r.items[i].op);
    if (validate(t, NULL, &err) == TDM_OK) {
        print_error("seed %llu: %s: not caught\n", (unsigned long long)seed, fault->name);
        return;
    }
    assert_int_equal(err.status, TDM_INPUT);
    count->caught++;
    snprintf(count->example, sizeof(count->example), "%.250s", err.message);
}

static void plant_all(uint64_t seed, size_t fault_count, const struct tdm_recording *correct)
{
    struct tdm_waits *waits = calloc(correct->count + 2, sizeof(*waits));
    struct tdm_dice dice;
    struct tdm_error err;
    tdm_dice_seed(&dice, seed);
    assert_non_null(waits);
    for (size_t f = 0; f <= fault_count; f++) { /* the first round plants no fault */
        struct trial t = {.dice = &dice, .wait_item = SIZE_MAX, .waits = waits};
        memcpy(t.capacity, correct->program.arena_bytes, sizeof(t.capacity));
        must(seed, tdm_recording_copy(correct, &t.r, &err), &err);
        if (f == 0)
            must(seed, validate(&t, waits, &err), &err);
        else
            plant(seed, &counts[f - 1], &t);
        tdm_recording_free(&t.r);
    }
    free(waits);
}

/* Do K and V move in their rows, are they gathered from the host, are gradients sent by part, are
 * rows of the embedding updated apart, or do ranks pass around what they add up? Few programs do
 * any of these. */
static bool is_rare(const struct tdm_recording *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct tdm_op *op = &r->items[i].op;
        bool moves = op->kind == TDM_OP_COPY && op->lane == TDM_LANE_COMPUTE;
        if (r->items[i].item.kind == TDM_RUN &&
            (moves || op->fetched_bytes > 0 || is_copy_of_part(&r->program, op) ||
             op->rows != TDM_ROWS_ALL || op->kind == TDM_OP_HOP_SUM))
            return true;
    }
    return false;
}

/* Plants all faults in random programs; returns their number. With `ranks` each program is that of
 * a random rank of up to as many. */
static uint64_t plant_in_programs(size_t fault_count, uint64_t base, uint32_t ranks, uint64_t cases,
                                  uint64_t rare)
{
    const struct tdm_random_options options = {
        .pass = TDM_RANDOM_ANY_PASS, .max_tokens = 40, .ranks = ranks};
    uint64_t programs = 0;
    for (uint64_t n = 0; n < cases + rare; n++) {
        uint64_t seed = tdm_case_seed(base, n);
        struct tdm_schedule *schedule = NULL;
        struct tdm_program *program = NULL;
        struct tdm_recording recording;
        struct tdm_error err;
        must(seed, tdm_random_schedule(seed, &options, &schedule, &err), &err);
        if (n >= cases && n % 2 == 0)
            tdm_random_to_host(schedule);
        must(seed, tdm_program_lower(schedule, &program, &err), &err);
        const struct tdm_program view =
            tdm_program_of_rank(program, (uint32_t)(seed % program->ranks));
        if (view.op_count <= 4000) {
            must(seed, tdm_recording_new(&view, &recording, &err), &err);
            if (n < cases || is_rare(&recording)) {
                plant_all(seed, fault_count, &recording);
                programs++;
            }
            tdm_recording_free(&recording);
        }
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    return programs;
}

static void test_faults(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(10, 200), planted = 0, caught = 0;
    size_t fault_count = list_faults();
    uint64_t programs = plant_in_programs(fault_count, BASE_SEED, 0, cases, 7 * cases);
    programs += plant_in_programs(fault_count, BASE_SEED_OF_TEAMS, 4, 3 * cases, 2 * cases);

    print_message("%llu programs from seed %d; planted, caught:\n", (unsigned long long)programs,
                  BASE_SEED);
    uint64_t kinds = 0;
    for (size_t f = 0; f < fault_count; f++) {
        print_message("%5llu %5llu  %s (%s)\n", (unsigned long long)counts[f].planted,
                      (unsigned long long)counts[f].caught, counts[f].fault->name,
                      counts[f].example);
        planted += counts[f].planted;
        caught += counts[f].caught;
        kinds += counts[f].planted >= NEEDED && counts[f].caught == counts[f].planted;
    }
    print_message("%llu of %zu kinds caught every time in %d programs or more; %llu planted, %llu "
                  "caught\n",
                  (unsigned long long)kinds, fault_count, NEEDED, (unsigned long long)planted,
                  (unsigned long long)caught);
    assert_int_equal(planted, caught);
    if (cases >= 200)
        assert_int_equal(kinds, fault_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
