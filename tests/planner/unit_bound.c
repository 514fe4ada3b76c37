/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the solver and of the bound: no feasible schedule is faster than the bound. */
#include "planner/estimate.h"
#include "planner/relaxation.h"
#include "planner/request.h"
#include "simulator/simulate.h"
#include "planner/solver.h"
#include "planner/team_search.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static void simulate(const struct tdm_schedule *schedule, struct tdm_simulation *simulation)
{
    struct tdm_program *program;
    struct tdm_error err;
    must(tdm_program_lower(schedule, &program, &err), &err);
    must(tdm_simulate(program, NULL, NULL, simulation, &err), &err);
    tdm_program_free(program);
}

/* ---- the solver ---- */

/* Minimizes x + 2 y with x + y >= 3 and x <= 2. Then adds z, which does what y does for less. */
static void test_solver(void **state)
{
    (void)state;
    struct tdm_solver *solver;
    struct tdm_error err;
    int row, x, y, z;
    must(tdm_solver_new("small", &solver, &err), &err);
    must(tdm_solver_row(solver, "need", 3, TDM_UNBOUNDED, &row, &err), &err);
    struct tdm_entry one = {row, 1};
    must(tdm_solver_column(solver, "x", 0, 2, 1, &one, 1, &x, &err), &err);
    must(tdm_solver_column(solver, "y", 0, TDM_UNBOUNDED, 2, &one, 1, &y, &err), &err);
    must(tdm_solver_solve(solver, 1000, &err), &err);
    assert_float_equal(tdm_solver_value(solver), 4, 1e-9);
    assert_float_equal(tdm_solver_column_value(solver, y), 1, 1e-9);
    assert_float_equal(tdm_solver_price(solver, row), 2, 1e-9);
    must(tdm_solver_column(solver, "z", 0, TDM_UNBOUNDED, 1.5, &one, 1, &z, &err), &err);
    must(tdm_solver_solve(solver, 1000, &err), &err);
    assert_float_equal(tdm_solver_value(solver), 3.5, 1e-9);
    tdm_solver_free(solver);

    must(tdm_solver_new("impossible", &solver, &err), &err);
    must(tdm_solver_row(solver, "need", 3, TDM_UNBOUNDED, &row, &err), &err);
    must(tdm_solver_column(solver, "x", 0, 2, 1, &one, 1, &x, &err), &err);
    assert_int_equal(tdm_solver_solve(solver, 1000, &err), TDM_INFEASIBLE);
    tdm_solver_free(solver);
}

/* A program that is not solved within the iterations begins again, from a smaller form: here the
 * rows have one column each, and nothing is left to iterate on. The simplex may go in a circle. */
static void test_solver_begins_again(void **state)
{
    (void)state;
    enum { ROWS = 8 };
    struct tdm_solver *solver;
    struct tdm_error err;
    int rows[ROWS], column;
    must(tdm_solver_new("again", &solver, &err), &err);
    for (int i = 0; i < ROWS; i++) {
        must(tdm_solver_row(solver, "row", i + 1, TDM_UNBOUNDED, &rows[i], &err), &err);
        const struct tdm_entry one = {rows[i], 1};
        must(tdm_solver_column(solver, "x", 0, TDM_UNBOUNDED, 2, &one, 1, &column, &err), &err);
    }
    must(tdm_solver_solve(solver, 1, &err), &err);
    assert_float_equal(tdm_solver_value(solver), ROWS * (ROWS + 1), 1e-9);
    for (int i = 0; i < ROWS; i++)
        assert_float_equal(tdm_solver_price(solver, rows[i]), 2, 1e-9);
    tdm_solver_free(solver);
}

/* A program that exceeds the limit of the solver makes the other programs fail too, but not the
 * process. This is not a lack of memory: the limit is the solver's own. */
static void test_solver_without_memory(void **state)
{
    (void)state;
    enum { ROWS = 4000, MOST = 20000 };
    static struct tdm_entry entries[ROWS];
    struct tdm_solver *small, *large;
    struct tdm_error err;
    int row, column;
    char *text;
    uint64_t bytes;
    must(tdm_solver_new("small", &small, &err), &err);
    must(tdm_solver_row(small, "need", 3, TDM_UNBOUNDED, &row, &err), &err);
    must(tdm_solver_new("large", &large, &err), &err);
    for (int i = 0; i < ROWS; i++) {
        must(tdm_solver_row(large, "row", 0, 1, &row, &err), &err);
        entries[i] = (struct tdm_entry){row, 1};
    }
    enum tdm_status status = TDM_OK;
    for (int i = 0; i < MOST && status == TDM_OK; i++)
        status = tdm_solver_column(large, "column", 0, 1, 1, entries, ROWS, &column, &err);
    assert_int_equal(status, TDM_INTERNAL);
    assert_int_equal(tdm_solver_solve(large, 1000, &err), TDM_INTERNAL);
    assert_int_equal(tdm_solver_solve(small, 1000, &err), TDM_INTERNAL);
    assert_int_equal(tdm_solver_text(small, &text, &bytes, &err), TDM_INTERNAL);
    assert_string_equal(tdm_solver_row_name(small, 0), "");
    tdm_solver_free(small);
    tdm_solver_free(large);
    test_solver(state);
}

/* ---- the bound ---- */

/* Bounds as shares of the times of random schedules, most of which are not the fastest. Over 1600
 * schedules the mean was 0.875, the standard deviation 0.065 and the least 0.66. A bound that omits
 * a part of the step falls below. */
#define MEAN_SHARE 0.865
#define SPREAD 0.07
#define LEAST_SHARE 0.5

/* In every fourth case links are slower by this factor, so that copies take longer than computing.
 * Such steps stall, and are often much longer than their bounds. */
#define SLOWER_LINKS 30

/* In a test of several ranks memory is slower in every fourth case. */
#define SLOWER_MEMORY 3000

/* Makes all copies between device and host slower, so that they take longer than computing. */
static void slow_down_links(struct tdm_schedule *schedule, double factor)
{
    struct tdm_machine *machine = schedule->machine;
    for (uint32_t link = 0; link < machine->topology.link_count; link++) {
        machine->topology.links[link].bytes_per_second /= factor;
        machine->topology.links[link].both_ways_bytes_per_second /= factor;
    }
}

#define GIB (UINT64_C(1) << 30)

/* Solutions in which a bound is made tighter. Bounds are asked for that are this much above the
 * time of a schedule that fits. */
#define TIGHTENING 80u
#define TOO_HIGH 1.02

/* Are some layers updated on the host, and others on the device, where their state is at home? */
static bool is_tied(const struct tdm_schedule *schedule)
{
    const uint32_t near = schedule->homes[TDM_STATE_WEIGHTS].device_layers;
    return schedule->optimizer.on == TDM_HOST && near > 0 && near < schedule->model->layers;
}

/* Do masters and moments of these pass? */
static bool passes(const struct tdm_schedule *schedule)
{
    return is_tied(schedule) && schedule->homes[TDM_STATE_MOMENTS].device_layers == 0;
}

/* Are all layers updated on the device, and embedding or head on the host; or have layers that are
 * updated beside others on the host only one of masters and moments there? No search has such
 * schedules. */
static bool is_never_searched(const struct tdm_schedule *schedule)
{
    const struct tdm_home *homes = schedule->homes;
    return schedule->optimizer.on == TDM_HOST &&
           (homes[TDM_STATE_WEIGHTS].device_layers == schedule->model->layers ||
            (is_tied(schedule) && schedule->dtypes.master != TDM_DTYPE_NONE &&
             homes[TDM_STATE_MASTER].device_layers != homes[TDM_STATE_MOMENTS].device_layers));
}

/* The homes that a bound of all schedules does not fix. */
static const bool *fixed_homes_of(const struct tdm_schedule *schedule)
{
    static const bool free_homes[TDM_STATES] = {[TDM_STATE_GRADIENTS] = true};
    static const bool all[TDM_STATES] = {true, true, true, true};
    return is_never_searched(schedule) ? all : free_homes;
}

/* The bound for the memory that a schedule uses: of all schedules, or of those with its homes and
 * its list of groups. Made tighter if `enough_seconds` are asked for. */
static void bound_of(const struct tdm_schedule *schedule, const struct tdm_estimator *estimator,
                     const uint64_t used_bytes[TDM_MAX_PLACES], bool own, double enough_seconds,
                     struct tdm_relaxed *relaxed)
{
    static const bool own_homes[TDM_STATES] = {true, true, true, true};
    uint32_t *sizes = calloc(schedule->group_count, sizeof(*sizes));
    const struct tdm_group_list list = {.count = schedule->group_count, .sizes = sizes};
    struct tdm_relaxation *relaxation;
    struct tdm_error err;
    assert_non_null(sizes);
    for (uint32_t g = 0; g < schedule->group_count; g++)
        sizes[g] = schedule->groups[g].layers;
    const struct tdm_group_list *sizes_of = own ? &list : NULL;
    const bool *fixed = own ? own_homes : fixed_homes_of(schedule);
    must(tdm_relaxation_new(estimator, schedule->order, used_bytes, fixed, sizes_of,
                            enough_seconds > 0, &relaxation, &err),
         &err);
    must(tdm_relaxation_solve(relaxation, 1e300, 1e-4, 60, relaxed, &err), &err);
    const double before = relaxed->bound_seconds;
    unsigned made = 0;
    if (enough_seconds > 0)
        must(tdm_relaxation_tighten(relaxation, enough_seconds, 1e-3, TIGHTENING, &made, relaxed,
                                    &err),
             &err);
    assert_true(relaxed->bound_seconds >= before * (1 - 1e-12));
    tdm_relaxation_free(relaxation);
    free(sizes);
}

/* A schedule fits in the memory it uses, so the bound for that memory is not above its time. */
static void test_bound(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(100, 2000), tied = 0;
    struct tdm_prices prices[2] = {{.of_rows = NULL}};
    double sum = 0, counted = 0;
    for (uint64_t i = 0; i < cases; i++) {
        const struct tdm_random_options options = {.pass = TDM_RANDOM_TRAIN,
                                                   .max_tokens = i % 2 == 0 ? 64 : 4000};
        uint64_t seed = tdm_case_seed(31000, i);
        struct tdm_schedule *schedule;
        struct tdm_estimator *estimator;
        struct tdm_relaxed relaxed, own;
        struct tdm_simulation s;
        struct tdm_error err;
        char text[256];
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        const bool copies = i % 4 == 3;
        if (copies)
            slow_down_links(schedule, SLOWER_LINKS);
        tied += is_tied(schedule);
        simulate(schedule, &s);
        must(tdm_estimator_new(schedule, &estimator, &err), &err);
        bound_of(schedule, estimator, s.used_peak_bytes, false,
                 i % 2 == 0 ? TOO_HIGH * s.step_seconds : 0, &relaxed);
        bound_of(schedule, estimator, s.used_peak_bytes, true, TOO_HIGH * s.step_seconds, &own);
        double richer_seconds = tdm_estimator_richer_seconds(estimator);
        if (fmax(relaxed.bound_seconds, own.bound_seconds) - richer_seconds >
            s.step_seconds * (1 + 1e-9))
            fail_msg("TDM_SEED=%" PRIu64 ": bound %.9g s, with its homes and groups %.9g s, "
                     "simulated %.9g s: %s",
                     seed, relaxed.bound_seconds, own.bound_seconds, s.step_seconds,
                     tdm_schedule_describe(schedule, text, sizeof(text)));
        double floor_seconds = -1;
        must(tdm_relaxation_floor(estimator, schedule->order, s.used_peak_bytes,
                                  fixed_homes_of(schedule), NULL, &floor_seconds, &err),
             &err);
        if (!(floor_seconds > 0 && floor_seconds <= relaxed.bound_seconds * (1 + 1e-3) &&
              floor_seconds - richer_seconds <= s.step_seconds * (1 + 1e-9)))
            fail_msg("TDM_SEED=%" PRIu64 ": floor %.9g s, bound %.9g s, simulated %.9g s: %s", seed,
                     floor_seconds, relaxed.bound_seconds, s.step_seconds,
                     tdm_schedule_describe(schedule, text, sizeof(text)));
        for (int place = 0; place < 2; place++) {
            const enum tdm_place of = place == 0 ? TDM_DEVICE : TDM_HOST;
            const uint64_t used = s.used_peak_bytes[of];
            uint64_t bytes = 0, half = 0;
            must(tdm_relaxation_least(estimator, schedule->order, s.used_peak_bytes,
                                      fixed_homes_of(schedule), NULL, of, TDM_SIZE_MAX, NULL,
                                      &bytes, &err),
                 &err);
            /* prices of another schedule's program may be enough */
            must(tdm_relaxation_least(estimator, schedule->order, s.used_peak_bytes,
                                      fixed_homes_of(schedule), NULL, of, used / 2, &prices[place],
                                      &half, &err),
                 &err);
            if (bytes == 0 || bytes > used || half > used)
                fail_msg("TDM_SEED=%" PRIu64 ": at least %" PRIu64 " or %" PRIu64
                         " bytes, used %" PRIu64 ": %s",
                         seed, bytes, half, used,
                         tdm_schedule_describe(schedule, text, sizeof(text)));
        }
        assert_true(relaxed.solved);
        double share = relaxed.bound_seconds / s.step_seconds;
        if (!(share >= (copies ? 0 : LEAST_SHARE)))
            fail_msg("TDM_SEED=%" PRIu64 ": the bound is %.3f of the simulated time: %s", seed,
                     share, tdm_schedule_describe(schedule, text, sizeof(text)));
        sum += copies ? 0 : share;
        counted += copies ? 0 : 1;
        tdm_estimator_free(estimator);
        tdm_schedule_free(schedule);
    }
    free(prices[0].of_rows);
    free(prices[1].of_rows);
    assert_true(tdm_case_enough("update layers at both places", tied, cases, 0.02));
    double mean = sum / counted;
    print_message("bounds over simulated times of random schedules, mean of %.0f: %.3f\n", counted,
                  mean);
    assert_true(mean >= MEAN_SHARE - 4 * SPREAD / sqrt(counted));
}

/* ---- the bound of a large model whose state streams ---- */

static enum tdm_place random_place(struct tdm_dice *dice)
{
    return tdm_dice_chance(dice, 60) ? TDM_DEVICE : TDM_HOST;
}

/* Draws homes, rings, order, groups, and what they store and where. */
static void draw(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    const uint32_t layers = schedule->model->layers;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++) {
        const uint64_t some = tdm_dice_roll(dice, 0, layers), way = tdm_dice_roll(dice, 0, 3);
        schedule->homes[state] = (struct tdm_home){.device_layers = (uint32_t)(way == 0   ? 0
                                                                               : way == 1 ? layers
                                                                                          : some),
                                                   .embedding = random_place(dice),
                                                   .head = random_place(dice)};
    }
    if (tdm_dice_chance(dice, 50)) { /* layers are updated where all their state is, or weights */
        const bool passing = tdm_dice_chance(dice, 60);
        schedule->optimizer.on = TDM_HOST;
        schedule->homes[TDM_STATE_WEIGHTS].device_layers %= layers;
        for (int state = TDM_STATE_MASTER; state <= TDM_STATE_MOMENTS; state++)
            schedule->homes[state] = schedule->homes[TDM_STATE_WEIGHTS];
        for (int state = TDM_STATE_MASTER; state <= TDM_STATE_MOMENTS && passing; state++)
            schedule->homes[state].device_layers = 0;
    }
    schedule->rings.weights = (uint32_t)tdm_dice_roll(dice, 1, 4);
    schedule->rings.optimizer = (uint32_t)tdm_dice_roll(dice, 1, 4);
    schedule->rings.ahead = schedule->rings.weights % 2;
    schedule->rings.host_gradients = (uint32_t)tdm_dice_roll(dice, 1, 4);
    schedule->order = tdm_dice_chance(dice, 60) ? TDM_LAYER_MAJOR : TDM_CHUNK_MAJOR;
    schedule->chunk_tokens = UINT64_C(1024) << tdm_dice_roll(dice, 1, 3);
    const bool by_layer = schedule->order == TDM_LAYER_MAJOR;
    const uint64_t most = UINT64_C(1) << tdm_dice_roll(dice, 0, 5);
    struct tdm_group *groups = calloc(layers, sizeof(*groups));
    assert_non_null(groups);
    free(schedule->groups);
    schedule->groups = groups;
    schedule->group_count = 0;
    for (uint32_t left = layers; left > 0; left -= groups[schedule->group_count++].layers) {
        struct tdm_group *group = &groups[schedule->group_count];
        const uint64_t drawn = tdm_dice_roll(dice, 1, most);
        const bool keeps = tdm_dice_chance(dice, 50);
        *group = (struct tdm_group){
            .layers = (uint32_t)(drawn < left ? drawn : left),
            .input_place = random_place(dice),
            .kept = keeps ? (enum tdm_set)tdm_dice_roll(dice, TDM_SET_INPUT, TDM_SET_ALL)
                          : TDM_SET_INPUT,
            .kept_place = random_place(dice),
            .held_place = by_layer ? random_place(dice) : TDM_DEVICE,
            .kv = !by_layer || keeps ? TDM_KV_KEEP : TDM_KV_RECOMPUTE};
    }
}

/* Makes links up to three times slower, and copies both ways beside updates on the host slower than
 * that: down to a tenth, where one direction after the other carries more. */
static void slow_beside_updates(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    struct tdm_machine *machine = schedule->machine;
    slow_down_links(schedule, (double)tdm_dice_roll(dice, 10, 30) / 10);
    machine->host_bytes_per_copied_byte = (double)tdm_dice_roll(dice, 1, 30) / 100;
    for (uint32_t link = TDM_LINK_H2D; link <= TDM_LINK_D2H; link++)
        machine->topology.links[link].beside_updates_bytes_per_second =
            machine->topology.links[link].bytes_per_second * (double)tdm_dice_roll(dice, 1, 10) /
            10;
    machine->h2d_beside_updates =
        machine->topology.links[TDM_LINK_H2D].beside_updates_bytes_per_second;
    machine->d2h_beside_updates =
        machine->topology.links[TDM_LINK_D2H].beside_updates_bytes_per_second;
}

/* Bounds of schedules that are drawn; where `slows`, beside slow copies. */
static void check_streams(const struct tdm_request *request, uint64_t first_seed, uint64_t cases,
                          bool slows)
{
    uint64_t tied = 0, passing = 0;
    double sum = 0;
    for (uint64_t i = 0; i < cases; i++) {
        uint64_t seed = tdm_case_seed(first_seed, i);
        struct tdm_schedule *schedule;
        struct tdm_estimator *estimator;
        struct tdm_pins pins;
        struct tdm_relaxed relaxed, own;
        struct tdm_simulation s;
        struct tdm_dice dice;
        struct tdm_error err;
        tdm_dice_seed(&dice, seed);
        must(tdm_request_make(request, &schedule, &pins, &err), &err);
        draw(&dice, schedule);
        if (schedule->chunk_tokens > request->context)
            schedule->chunk_tokens = request->context;
        if (slows)
            slow_beside_updates(&dice, schedule);
        tied += is_tied(schedule);
        passing += passes(schedule);
        simulate(schedule, &s);
        must(tdm_estimator_new(schedule, &estimator, &err), &err);
        bound_of(schedule, estimator, s.used_peak_bytes, false, TOO_HIGH * s.step_seconds,
                 &relaxed);
        bound_of(schedule, estimator, s.used_peak_bytes, true, TOO_HIGH * s.step_seconds, &own);
        if (fmax(relaxed.bound_seconds, own.bound_seconds) -
                tdm_estimator_richer_seconds(estimator) >
            s.step_seconds * (1 + 1e-9))
            fail_msg("TDM_SEED=%" PRIu64 ": bound %.9g s, with its homes and groups %.9g s, "
                     "simulated %.9g s",
                     seed, relaxed.bound_seconds, own.bound_seconds, s.step_seconds);
        sum += own.bound_seconds / s.step_seconds;
        tdm_estimator_free(estimator);
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
    assert_true(tdm_case_enough("update layers at both places", tied, cases, 0.1));
    assert_true(tdm_case_enough("update layers on the device whose state passes beside others on "
                                "the host",
                                passing, cases, 0.05));
    print_message("bounds with their homes and groups over simulated times, mean of %.0f: %.3f\n",
                  (double)cases, sum / (double)cases);
}

/* Copies of the small models above take little time. Here they are most of the step. */
static void test_bound_of_streams(void **state)
{
    (void)state;
    const struct tdm_request request = {.model = "qwen2.5-7b",
                                        .machine = "h200",
                                        .optimizer = TDM_OPTIMIZER_ADAMW,
                                        .context = 8192,
                                        .sequences = 1};
    check_streams(&request, 47000, tdm_case_count(12, 400), false);
}

/* Here all but copies and updates on the host is short. */
static void test_bound_beside_updates(void **state)
{
    (void)state;
    const struct tdm_request request = {.model = "qwen2.5-0.5b",
                                        .machine = "h200",
                                        .optimizer = TDM_OPTIMIZER_ADAMW,
                                        .context = 256,
                                        .sequences = 1};
    check_streams(&request, 48040, tdm_case_count(40, 400), true);
}

/* Groups hold most when their top layers begin to go backward. A mean of lists of groups that end
 * elsewhere holds less at every moment, but no schedule is such a mean. Where the program allowed
 * it, the bound was 0.8930 of this step's time; 0.9007 since. */
#define TIGHT_SHARE 0.897
static void test_bound_of_groups(void **state)
{
    (void)state;
    const struct tdm_request request = {.model = "qwen2.5-7b",
                                        .machine = "h200",
                                        .optimizer = TDM_OPTIMIZER_ADAMW,
                                        .context = 131072,
                                        .sequences = 1};
    struct tdm_schedule *schedule;
    struct tdm_estimator *estimator;
    struct tdm_pins pins;
    struct tdm_relaxed relaxed;
    struct tdm_simulation s;
    struct tdm_error err;
    must(tdm_request_make(&request, &schedule, &pins, &err), &err);
    const uint32_t layers = schedule->model->layers, size = 4;
    struct tdm_group *groups = calloc(layers, sizeof(*groups));
    assert_non_null(groups);
    free(schedule->groups);
    schedule->groups = groups;
    schedule->group_count = layers / size;
    for (uint32_t g = 0; g < schedule->group_count; g++)
        groups[g] = (struct tdm_group){.layers = size,
                                       .input_place = TDM_HOST,
                                       .held = TDM_SET_ATTENTION_OUTPUT,
                                       .held_place = TDM_HOST};
    for (int kept = 0; kept <= TDM_STATE_MOMENTS; kept++)
        schedule->homes[kept] = (struct tdm_home){0, TDM_HOST, TDM_HOST};
    schedule->order = TDM_LAYER_MAJOR;
    schedule->chunk_tokens = 8192;
    simulate(schedule, &s);
    must(tdm_estimator_new(schedule, &estimator, &err), &err);
    bound_of(schedule, estimator, s.used_peak_bytes, false, 0, &relaxed);
    const double share = relaxed.bound_seconds / s.step_seconds;
    print_message("bound over simulated time of a step that holds much: %.4f\n", share);
    assert_true(share <= 1 && share >= TIGHT_SHARE);
    tdm_estimator_free(estimator);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
}

/* Rings of chunks on the host take memory as a whole. Where a program counts none of them, its
 * bound is 3.837 s; 3.861 s with each way of having them or not. */
#define WITHOUT_RINGS 3.85
#define WITH_RINGS 3.855
static void test_bound_of_rings(void **state)
{
    (void)state;
    const struct tdm_request request = {.model = "qwen2.5-7b",
                                        .machine = "h200",
                                        .optimizer = TDM_OPTIMIZER_ADAMW,
                                        .context = 32768,
                                        .sequences = 1};
    static const bool free_homes[TDM_STATES] = {[TDM_STATE_GRADIENTS] = true};
    const uint64_t limits[TDM_MAX_PLACES] = {[TDM_DEVICE] = 16 * GIB, [TDM_HOST] = 110 * GIB};
    struct tdm_schedule *schedule;
    struct tdm_estimator *estimator;
    struct tdm_pins pins;
    struct tdm_relaxation *relaxation;
    struct tdm_relaxed before, after;
    struct tdm_error err;
    unsigned made = 0;
    must(tdm_request_make(&request, &schedule, &pins, &err), &err);
    schedule->chunk_tokens = 8192;
    must(tdm_estimator_new(schedule, &estimator, &err), &err);
    must(tdm_relaxation_new(estimator, TDM_LAYER_MAJOR, limits, free_homes, NULL, false,
                            &relaxation, &err),
         &err);
    must(tdm_relaxation_solve(relaxation, 1e300, 1e-3, 60, &before, &err), &err);
    tdm_relaxation_free(relaxation);
    must(tdm_relaxation_new(estimator, TDM_LAYER_MAJOR, limits, free_homes, NULL, true, &relaxation,
                            &err),
         &err);
    must(tdm_relaxation_solve(relaxation, 1e300, 1e-3, 60, &after, &err), &err);
    must(tdm_relaxation_tighten(relaxation, 4.0, 1e-3, 100, &made, &after, &err), &err);
    tdm_relaxation_free(relaxation);
    print_message("bound without and with rings: %.4f s, %.4f s, %u solutions\n",
                  before.bound_seconds, after.bound_seconds, made);
    assert_true(before.bound_seconds <= WITHOUT_RINGS && after.bound_seconds >= WITH_RINGS);
    tdm_estimator_free(estimator);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
}

/* The bound of several ranks is that of one with the memory of all, divided by their number. No
 * schedule of theirs is faster. */
static void test_bound_of_ranks(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(60, 400), teams = 0, exchanges[TDM_EXCHANGES] = {0};
    double sum = 0;
    for (uint64_t i = 0; i < cases; i++) {
        const struct tdm_random_options options = {
            .pass = TDM_RANDOM_TRAIN, .max_tokens = i % 2 == 0 ? 64 : 2000, .ranks = 4};
        uint64_t seed = tdm_case_seed(47000, i), bytes[TDM_MAX_PLACES];
        struct tdm_schedule *schedule;
        struct tdm_estimator *estimator;
        struct tdm_relaxation *relaxation;
        struct tdm_relaxed relaxed;
        struct tdm_simulation s;
        struct tdm_error err;
        char text[256];
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        const uint32_t ranks = schedule->ranks;
        if (i % 4 == 3) /* memory limits most ops */
            schedule->machine->rate[TDM_RATE_ELEMENTWISE] /= SLOWER_MEMORY;
        if (ranks == 1) {
            tdm_schedule_free(schedule);
            continue;
        }
        simulate(schedule, &s);
        tdm_schedule_describe(schedule, text, sizeof(text));
        exchanges[schedule->exchange]++;
        for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
            bytes[place] = ranks * s.used_peak_bytes[place];
        schedule->ranks = schedule->rings.gradients = 1;
        schedule->sliced_weights = false;
        must(tdm_estimator_new(schedule, &estimator, &err), &err);
        must(tdm_relaxation_new(estimator, schedule->order, bytes, fixed_homes_of(schedule), NULL,
                                false, &relaxation, &err),
             &err);
        must(tdm_relaxation_solve(relaxation, 1e300, 1e-4, 60, &relaxed, &err), &err);
        const double bound = tdm_team_bound(
            schedule, ranks, relaxed.bound_seconds - tdm_estimator_richer_seconds(estimator));
        if (bound > s.step_seconds * (1 + 1e-9))
            fail_msg("TDM_SEED=%" PRIu64 ": bound %.9g s, %u ranks %.9g s: %s", seed, bound, ranks,
                     s.step_seconds, text);
        sum += bound / s.step_seconds;
        teams++;
        tdm_relaxation_free(relaxation);
        tdm_estimator_free(estimator);
        tdm_schedule_free(schedule);
    }
    print_message("bounds over simulated times of several ranks, mean of %" PRIu64 ": %.3f\n",
                  teams, sum / (double)teams);
    assert_true(tdm_case_enough("have several ranks", teams, cases, 0.5));
    for (int i = 0; i < TDM_EXCHANGES; i++)
        assert_true(tdm_case_enough("use an exchange", exchanges[i], cases, 0.03));
}

/* Where memory limits the gradients of weights, eight ranks take less than an eighth of what one
 * does, because each begins its sums without reading; and no less than the bound. */
static void test_ranks_begin_sums(void **state)
{
    (void)state;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_simulation one, several;
    struct tdm_error err;
    must(tdm_model_load("byte-100m", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_schedule_new(model, machine, 16384, &schedule, &err), &err);
    schedule->chunk_tokens = 512;
    schedule->selector = (struct tdm_selector){.kind = TDM_SELECT_BLOCK, .block = 512};
    schedule->optimizer.kind = TDM_OPTIMIZER_NONE;
    schedule->dtypes.master = schedule->dtypes.moments = TDM_DTYPE_NONE;
    machine->launch_seconds = 0;
    machine->rate[TDM_RATE_ELEMENTWISE] /= 30;
    machine->topology.links[TDM_LINK_PEER].bytes_per_second = 1e30;
    machine->topology.links[TDM_LINK_PEER].both_ways_bytes_per_second = 1e30;
    simulate(schedule, &one);
    schedule->ranks = 8;
    simulate(schedule, &several);
    print_message("8 ranks take %.9g s, an eighth of one rank's step is %.9g s\n",
                  several.step_seconds, one.step_seconds / 8);
    assert_true(several.step_seconds < one.step_seconds / 8);
    assert_true(tdm_team_bound(schedule, 8, one.step_seconds) <= several.step_seconds);
    assert_true(tdm_team_bound(schedule, 8, one.step_seconds) > 0.5 * several.step_seconds);
    schedule->pass = TDM_EVALUATE; /* which has no sums */
    assert_true(tdm_team_bound(schedule, 8, 1) == 1.0 / 8);
    tdm_schedule_free(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_solver),
        cmocka_unit_test(test_solver_begins_again),
        cmocka_unit_test(test_solver_without_memory),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_bound_of_streams),
        cmocka_unit_test(test_bound_beside_updates),
        cmocka_unit_test(test_bound_of_groups),
        cmocka_unit_test(test_bound_of_rings),
        cmocka_unit_test(test_bound_of_ranks),
        cmocka_unit_test(test_ranks_begin_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
