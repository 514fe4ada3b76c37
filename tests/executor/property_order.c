/* SPDX-License-Identifier: Apache-2.0 */
/* Property: every order of the ops that the derived order permits leaves the same bits.
 *
 * The ops of a random program run on the cpu backend one by one: in program order, and in random
 * orders. These keep only what executors keep: the order of each lane, and the waits that
 * schedule/order.h derives. Nothing else holds an op back, so it runs too early if a wait is
 * missing. Memory without a live value is poisoned with NaN: all of it at the start of every step,
 * and each slot (or part of a unit) after the last use of its value, even while its buffer is
 * allocated. An op that reads too late, too early, or what was never written computes with
 * poison. */
#include "executor/walk.h"
#include "schedule/kv_row.h"
#include "schedule/nest.h"
#include "schedule/operands.h"
#include "schedule/optimizer.h"
#include "schedule/order.h"
#include "schedule/program.h"
#include "schedule/tags.h"
#include "tests/support/execution.h"
#include "tests/support/random_schedule.h"
#include "tests/support/recording.h"
#include "tests/support/slot_tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2, DRAWS = 4, MOST_OPS = 6000, BASE_SEED = 52000 };

/* What a slot, or a part of a unit in it, holds from one write to the next. */
struct value {
    uint32_t buffer, slot, part;
    uint32_t unit, slice; /* TDM_NONE: the whole slot; all of the unit */
    uint32_t uses, left;
    bool kept; /* it outlives the step */
};

/* An op as it is launched. */
struct launch {
    const struct tdm_op *op;
    struct tdm_waits waits;
    size_t first_use, uses; /* in the list of uses */
};

struct script {
    struct tdm_recording recording;
    struct launch *launches; /* in program order */
    size_t count;
    size_t *lanes[TDM_MAX_LANES]; /* numbers of their launches */
    size_t lane_count[TDM_MAX_LANES];
    struct value *values;
    size_t value_count, value_capacity;
    size_t *uses; /* values */
    size_t use_count, use_capacity;
};

/* ---- values ---- */

static void *grow(void *array, size_t count, size_t *capacity, size_t bytes)
{
    if (count < *capacity)
        return array;
    *capacity = 2 * *capacity + 256;
    array = realloc(array, *capacity * bytes);
    assert_non_null(array);
    return array;
}

/* Does another operand of the op need what this one overwrites? */
static bool works_in_place(const struct tdm_op *op, const struct tdm_access *write, uint32_t slot)
{
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access != write && access->buffer == write->buffer && access->mode != TDM_WRITE &&
            slot >= access->first_slot && slot - access->first_slot < access->slots)
            return true;
    }
    return false;
}

/* Notes an access to one slot, or to one part of a unit in it. `*current` is the value there now;
 * SIZE_MAX: none. */
static void use(struct script *s, const struct tdm_op *op, const struct tdm_access *access,
                uint32_t slot, uint32_t part, bool of_unit, size_t *current)
{
    bool fresh = access->mode == TDM_WRITE && !works_in_place(op, access, slot);
    if (*current == SIZE_MAX || fresh) {
        s->values = grow(s->values, s->value_count, &s->value_capacity, sizeof(*s->values));
        *current = s->value_count++;
        s->values[*current] =
            (struct value){.buffer = access->buffer,
                           .slot = slot,
                           .part = part,
                           .unit = of_unit ? access->after.layer : TDM_NONE,
                           .slice = tdm_tag_at(access->after, slot - access->first_slot).chunk};
    }
    s->values[*current].uses++;
    s->uses = grow(s->uses, s->use_count, &s->use_capacity, sizeof(*s->uses));
    s->uses[s->use_count++] = *current;
}

static void use_all(struct script *s, const struct tdm_op *op, size_t *const *current)
{
    for (uint32_t a = 0; a < op->access_count; a++) {
        const struct tdm_access *access = &op->access[a];
        if (access->buffer == TDM_NONE)
            continue;
        bool of_unit = tdm_content_is_of_unit(access->after.content);
        uint32_t first = of_unit && access->part < TDM_PARTS ? access->part : 0;
        uint32_t end = !of_unit ? 1 : access->part < TDM_PARTS ? first + 1 : (uint32_t)TDM_PARTS;
        for (uint32_t k = 0; k < access->slots; k++)
            for (uint32_t part = first; part < end; part++) {
                uint32_t slot = access->first_slot + k;
                use(s, op, access, slot, part, of_unit,
                    &current[access->buffer][(size_t)slot * TDM_PARTS + part]);
            }
    }
}

static void new_script(const struct tdm_program *program, struct script *s)
{
    struct tdm_order_tracker *order;
    struct tdm_error err;
    *s = (struct script){0};
    assert_int_equal(tdm_recording_new(program, &s->recording, &err), TDM_OK);
    assert_int_equal(tdm_order_new(program, &order, &err), TDM_OK);
    s->launches = calloc(program->op_count + 1, sizeof(*s->launches));
    size_t **current = calloc((size_t)program->buffer_count + 1, sizeof(*current));
    assert_true(s->launches != NULL && current != NULL);
    for (int lane = 0; lane < TDM_LANES; lane++) {
        s->lanes[lane] = calloc(program->op_count + 1, sizeof(size_t));
        assert_non_null(s->lanes[lane]);
    }
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        current[i] = calloc((size_t)program->buffers[i].slots * TDM_PARTS, sizeof(size_t));
        assert_non_null(current[i]);
    }

    for (size_t i = 0; i < s->recording.count; i++) {
        struct tdm_item item = tdm_recording_item(&s->recording, i);
        struct tdm_waits waits;
        tdm_order_push(order, &item, &waits);
        if (item.kind == TDM_ALLOC) /* forget what it held before */
            memset(current[item.buffer], 0xff,
                   (size_t)program->buffers[item.buffer].slots * TDM_PARTS * sizeof(size_t));
        if (item.kind != TDM_RUN)
            continue;
        struct launch *launch = &s->launches[s->count];
        *launch = (struct launch){.op = item.op, .waits = waits, .first_use = s->use_count};
        s->lanes[item.op->lane][s->lane_count[item.op->lane]++] = s->count++;
        use_all(s, item.op, current);
        launch->uses = s->use_count - launch->first_use;
    }
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        for (size_t k = 0; k < (size_t)program->buffers[i].slots * TDM_PARTS; k++)
            if (program->buffers[i].resident && current[i][k] != SIZE_MAX)
                s->values[current[i][k]].kept = true;
        free(current[i]);
    }
    free(current);
    tdm_order_free(order);
}

static void free_script(struct script *s)
{
    for (int lane = 0; lane < TDM_LANES; lane++)
        free(s->lanes[lane]);
    free(s->launches);
    free(s->values);
    free(s->uses);
    tdm_recording_free(&s->recording);
}

/* ---- poison ---- */

static void poison_value(struct tdm_execution *e, const struct value *value)
{
    const struct tdm_model *model = e->program->schedule->model;
    const struct tdm_buffer *buffer = &e->program->buffers[value->buffer];
    unsigned char *slot = tdm_arenas_slot(&e->arenas, buffer, value->slot);
    if (value->unit == TDM_NONE) {
        memset(slot, TDM_POISON, buffer->slot_bytes);
        return;
    }
    const struct tdm_unit *unit = &model->units[value->unit];
    uint64_t bytes = tdm_dtype_bytes(buffer->dtype);
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + i];
        uint64_t at, elements = tdm_slot_elements(e->program->schedule, tensor, value->slice, &at);
        if (tdm_part_of(tensor->role) == (enum tdm_part)value->part)
            memset(slot + at * bytes, TDM_POISON, elements * bytes);
    }
}

/* Poisons all memory that holds nothing from the step before. */
static void poison_begin(struct tdm_execution *e)
{
    const struct tdm_program *program = e->program;
    for (int place = 0; place < TDM_PLACES; place++) {
        uint64_t size = e->arenas.bytes[place];
        unsigned char *base = e->arenas.base[place], *kept = calloc(size + 1, 1);
        assert_non_null(kept);
        for (uint32_t i = 0; i < program->buffer_count; i++) {
            const struct tdm_buffer *buffer = &program->buffers[i];
            if (buffer->resident && buffer->place == (enum tdm_place)place &&
                buffer->initial.content != TDM_EMPTY)
                memset(kept + buffer->offset, 1, buffer->bytes);
        }
        for (uint64_t i = 0; i < size; i++)
            if (!kept[i])
                base[i] = TDM_POISON;
        free(kept);
    }
}

/* ---- orders ---- */

/* How a draw chooses among the lanes whose next op may start. */
enum taste { PROGRAM_ORDER, COPIES_FIRST, COPIES_LAST, ANY_LANE };

struct progress {
    size_t done[TDM_MAX_LANES];
};

static bool may_start(const struct script *s, const struct progress *progress, int lane)
{
    if (progress->done[lane] == s->lane_count[lane])
        return false;
    const struct tdm_waits *waits = &s->launches[s->lanes[lane][progress->done[lane]]].waits;
    for (int other = 0; other < TDM_LANES; other++)
        if (other != lane && waits->lane_position[other] > progress->done[other])
            return false;
    return true;
}

/* The lane to continue with; TDM_LANES if none may start. */
static int choose(const struct script *s, const struct progress *progress, enum taste taste,
                  struct tdm_dice *dice)
{
    int ready[TDM_MAX_LANES], count = 0, best = TDM_LANES;
    for (int lane = 0; lane < TDM_LANES; lane++)
        if (may_start(s, progress, lane))
            ready[count++] = lane;
    if (count == 0)
        return TDM_LANES;
    /* sometimes any lane is chosen */
    if (taste == ANY_LANE || (taste != PROGRAM_ORDER && tdm_dice_chance(dice, 15)))
        return ready[tdm_dice_roll(dice, 0, (uint64_t)count - 1)];
    for (int i = 0; i < count; i++) {
        int lane = ready[i];
        bool better = best == TDM_LANES;
        if (!better && taste == PROGRAM_ORDER)
            better = s->lanes[lane][progress->done[lane]] < s->lanes[best][progress->done[best]];
        else if (!better)
            better = (taste == COPIES_FIRST) == (best == TDM_LANE_COMPUTE);
        if (better)
            best = lane;
    }
    return best;
}

static enum tdm_status run_launch(struct tdm_execution *e, struct script *s, size_t number,
                                  const struct tdm_step *step, struct tdm_error *err)
{
    const struct launch *launch = &s->launches[number];
    enum tdm_status status = tdm_execution_launch(e, launch->op, step, err);
    for (size_t i = 0; i < launch->uses; i++) {
        struct value *value = &s->values[s->uses[launch->first_use + i]];
        if (--value->left == 0 && !value->kept)
            poison_value(e, value);
    }
    return status;
}

/* Adds to *moved the ops that run after an op that follows them in the program. */
static enum tdm_status run_step(struct tdm_execution *e, struct script *s, enum taste taste,
                                struct tdm_dice *dice, const struct tdm_step *step, size_t *moved,
                                struct tdm_error *err)
{
    struct progress progress = {0};
    size_t furthest = 0;
    poison_begin(e);
    for (size_t i = 0; i < s->value_count; i++)
        s->values[i].left = s->values[i].uses;
    for (size_t i = 0; i < s->count; i++) {
        int lane = choose(s, &progress, taste, dice);
        if (lane == TDM_LANES)
            return tdm_fail(err, TDM_INTERNAL, "the lanes wait for each other");
        size_t number = s->lanes[lane][progress.done[lane]++];
        *moved += number < furthest;
        furthest = number > furthest ? number : furthest;
        enum tdm_status status = run_launch(e, s, number, step, err);
        if (status != TDM_OK)
            return status;
    }
    return TDM_OK;
}

/* Runs all steps. Returns the state after them, which the caller frees; NULL if a step failed. If
 * `s` is NULL, the executor's own order is used, without poison during the steps. */
static unsigned char *run_steps(struct tdm_execution *e, struct script *s, enum taste taste,
                                uint64_t seed, uint64_t *bytes, size_t *moved,
                                struct tdm_error *err)
{
    struct tdm_walk *walk = NULL;
    struct tdm_step step;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed);
    enum tdm_status status = tdm_execution_begin(e, TDM_POISON, err);
    if (status == TDM_OK && s == NULL)
        status = tdm_walk_new(e->program, NULL, &e->arenas, &walk, err);
    for (uint64_t i = 1; i <= STEPS && status == TDM_OK; i++) {
        status = tdm_execution_step(e, i, &step, err);
        if (status == TDM_OK)
            status = s == NULL ? tdm_walk_step(walk, &step, NULL, NULL, err)
                               : run_step(e, s, taste, &dice, &step, moved, err);
    }
    tdm_walk_free(walk);
    return status == TDM_OK ? tdm_execution_state(e, bytes) : NULL;
}

/* Returns the number of ops that moved, or SIZE_MAX after printing a failure. */
static size_t run_case(uint64_t seed, struct tdm_schedule *schedule, struct tdm_execution *e)
{
    static const char *const tastes[] = {"program order", "copies first", "copies last",
                                         "any lane"};
    struct script script;
    struct tdm_error err;
    uint64_t bytes, again;
    size_t moved = 0;
    char text[768];
    bool passed = true;
    unsigned char *due = run_steps(e, NULL, PROGRAM_ORDER, seed, &bytes, &moved, &err);
    if (due == NULL)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.message);
    new_script(e->program, &script);
    for (int draw = 0; draw < DRAWS && passed; draw++) {
        err = (struct tdm_error){0};
        unsigned char *found =
            run_steps(e, &script, (enum taste)draw, seed + (uint64_t)draw, &again, &moved, &err);
        passed = found != NULL && again == bytes && memcmp(found, due, bytes) == 0;
        if (!passed) {
            fprintf(stderr, "seed %llu, %s: %s\n  %s\n", (unsigned long long)seed, tastes[draw],
                    found == NULL ? err.message : "other bits than by the walk",
                    tdm_schedule_describe(schedule, text, sizeof(text)));
            tdm_case_again("executor/property_order", seed);
        }
        free(found);
    }
    free(due);
    free_script(&script);
    return passed ? moved : SIZE_MAX;
}

/* Counts over the cases of a test. */
struct tally {
    uint64_t drawn, ran, reordered, failed, moved, apart, ahead;
};

/* Draws the program of a seed and, unless it has too many ops, runs it. */
static void try_seed(uint64_t seed, struct tally *tally)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS, .max_tokens = 32};
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    struct tdm_execution e;
    struct tdm_error err;
    tally->drawn++;
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_random_favour(seed, schedule, &err), TDM_OK);
    assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
    if (program->op_count <= MOST_OPS) {
        if (tdm_execution_open(program, "cpu", seed, &e, &err) != TDM_OK)
            fail_msg("%s", err.message);
        size_t out_of_order = run_case(seed, schedule, &e);
        bool failed = out_of_order == SIZE_MAX;
        tally->ran++;
        tally->apart += tdm_updates_rows_apart(schedule);
        tally->ahead += tdm_nest_any_kv_ahead(schedule, tdm_kv_row_is_whole(program), NULL);
        tally->failed += failed;
        tally->reordered += !failed && out_of_order > 0;
        tally->moved += failed ? 0 : out_of_order;
        tdm_execution_close(&e);
    } else {
        tdm_program_free(program);
    }
    tdm_schedule_free(schedule);
}

static void orders_that_are_permitted_leave_the_same_bits(void **state)
{
    (void)state;
    struct tally tally = {0};
    uint64_t cases = tdm_case_count(20, 120);
    for (uint64_t n = 0; n < cases; n++)
        try_seed(tdm_case_seed(BASE_SEED, n), &tally);
    print_message(
        "%llu programs from seed %llu, each in %d orders: %llu ops ran before one that is "
        "before them in the program\n",
        (unsigned long long)tally.ran, (unsigned long long)tdm_case_seed(BASE_SEED, 0), (int)DRAWS,
        (unsigned long long)tally.moved);
    assert_int_equal(tally.failed, 0);
    assert_true(tdm_case_enough("programs had few enough ops to run", tally.ran, cases, 0.8));
    assert_true(tdm_case_enough("programs had ops out of order", tally.reordered, cases, 0.3));
    assert_true(tdm_case_enough("programs update rows apart", tally.apart, cases, 0.02));
    assert_true(tdm_case_enough("programs make K and V ahead", tally.ahead, cases, 0.02));
}

/* In these cases, the head's part of a tied gradient is copied back from the host with the padding
 * after its last element. */
static void padding_is_not_compared(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {1795377532, 1795377981};
    struct tally tally = {0};
    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++)
        try_seed(seeds[i], &tally);
    assert_int_equal(tally.ran, sizeof(seeds) / sizeof(seeds[0]));
    assert_int_equal(tally.failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_that_are_permitted_leave_the_same_bits),
        cmocka_unit_test(padding_is_not_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
