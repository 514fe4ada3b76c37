/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the planner: estimates, group lists, the search, shortages, --set, predictions,
 * memos. */
#include "planner/candidates.h"
#include "planner/estimate.h"
#include "planner/group_lists.h"
#include "planner/ladder.h"
#include "planner/memo.h"
#include "planner/objective.h"
#include "planner/recipes.h"
#include "planner/request.h"
#include "commands/prediction.h"
#include "planner/set_keys.h"
#include "planner/shortage.h"
#include "planner/team_least.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"
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

#define GIB ((uint64_t)1 << 30)
#define CASES 400u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* `host_memory_bytes` comes in addition to what the runtime takes. */
static struct tdm_schedule *new_schedule_on(const char *machine_name, const char *name,
                                            uint64_t context, uint64_t memory_bytes,
                                            uint64_t host_memory_bytes)
{
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err;
    must(tdm_model_load(name, &model, &err), &err);
    must(tdm_machine_load(machine_name, &machine, &err), &err);
    must(tdm_schedule_new(model, machine, context, &schedule, &err), &err);
    schedule->memory_bytes = memory_bytes;
    schedule->host_memory_bytes =
        host_memory_bytes + machine->topology.places[TDM_HOST].runtime_bytes;
    return schedule;
}

static struct tdm_schedule *new_schedule(const char *name, uint64_t context, uint64_t memory_bytes,
                                         uint64_t host_memory_bytes)
{
    return new_schedule_on("h200-published", name, context, memory_bytes, host_memory_bytes);
}

/* ---- estimates ---- */

#define MOST_OFF 0.03
#define WORST_OFF 0.15

/* No estimate exceeds what lowering, packing and the simulator find; on average they are near. */
static void test_estimates(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(CASES / 4, CASES);
    double time = 0, memory = 0, counted = 0;
    for (uint64_t i = 0; i < cases; i++) {
        const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS,
                                                   .max_tokens = i % 2 == 0 ? 64 : 4000};
        uint64_t seed = tdm_case_seed(7000, i);
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_estimator *estimator;
        struct tdm_estimate estimate;
        struct tdm_simulation s;
        struct tdm_error err;
        char text[900];
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        struct tdm_schedule base = *schedule;
        /* costs of updates on the host come from the homes of the base */
        for (int k = 0; k < TDM_STATES && schedule->optimizer.on == TDM_DEVICE; k++)
            base.homes[k] = (struct tdm_home){schedule->model->layers, TDM_DEVICE, TDM_DEVICE};
        must(tdm_estimator_new(&base, &estimator, &err), &err);
        tdm_estimator_set_state(estimator, schedule->homes, &schedule->rings);
        tdm_estimate(estimator, schedule, &estimate);
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_simulate(program, NULL, NULL, &s, &err), &err);
        assert_int_equal(tdm_estimator_chunks(estimator), program->chunk_count);
        const struct tdm_place_row *places = schedule->machine->topology.places;
        bool low = estimate.seconds <= s.step_seconds * (1 + 1e-9);
        bool searched = true; /* if not, bytes may be estimated too high (estimate.h) */
        for (uint32_t g = 0; g < schedule->group_count; g++)
            searched = searched && tdm_set_covers(TDM_SEARCHED_SET, schedule->groups[g].kept) &&
                       tdm_set_covers(TDM_SEARCHED_SET, schedule->groups[g].held);
        for (int place = 0; place < TDM_PLACES && searched; place++)
            low = low &&
                  estimate.bytes[place] <= s.live_peak_bytes[place] + places[place].runtime_bytes;
        if (!low)
            fail_msg(
                "TDM_SEED=%" PRIu64 ": estimate %.9g s, %" PRIu64 " B, %" PRIu64
                " B; simulated %.9g s, %" PRIu64 " B, %" PRIu64 " B: %s",
                seed, estimate.seconds, estimate.bytes[TDM_DEVICE], estimate.bytes[TDM_HOST],
                s.step_seconds, s.live_peak_bytes[TDM_DEVICE] + places[TDM_DEVICE].runtime_bytes,
                s.live_peak_bytes[TDM_HOST], tdm_schedule_describe(schedule, text, sizeof(text)));
        counted++;
        time += estimate.seconds / s.step_seconds;
        memory += (double)(estimate.bytes[TDM_DEVICE] - places[TDM_DEVICE].runtime_bytes) /
                  (double)s.live_peak_bytes[TDM_DEVICE];
        tdm_program_free(program);
        tdm_estimator_free(estimator);
        tdm_schedule_free(schedule);
    }
    print_message("estimates over simulated, means of %.0f cases: time %.4f, memory %.4f\n",
                  counted, time / counted, memory / counted);
    if (cases > 1) {
        assert_true(time / counted > 0.85);
        assert_true(memory / counted > 0.94);
    }
}

/* Random homes and rings of a step whose state streams. */
static void draw_homes(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    const uint32_t layers = schedule->model->layers;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        schedule->homes[state] =
            (struct tdm_home){.device_layers = (uint32_t)tdm_dice_roll(dice, 0, layers),
                              .embedding = tdm_dice_chance(dice, 50) ? TDM_HOST : TDM_DEVICE,
                              .head = tdm_dice_chance(dice, 50) ? TDM_HOST : TDM_DEVICE};
    schedule->rings.weights = (uint32_t)tdm_dice_roll(dice, 1, 4);
    schedule->rings.optimizer = (uint32_t)tdm_dice_roll(dice, 1, 4);
    schedule->rings.ahead = schedule->rings.weights % 2;
    schedule->rings.host_gradients = (uint32_t)tdm_dice_roll(dice, 1, 4);
}

/* Where computing waits for copies, likely seconds are near those of the simulator. Packing has
 * much memory here, so they are too long where buffers do not share bytes. */
static void test_likely_seconds(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen2.5-0.5b", "qwen2.5-7b"};
    static const uint32_t sizes[] = {1, 2, 4};
    uint64_t cases = tdm_case_count(20, 100);
    double sum = 0, worst = 0;
    for (uint64_t i = 0; i < cases; i++) {
        struct tdm_schedule *schedule = new_schedule(models[i % 2], 16384, 0, 0);
        struct tdm_estimator *estimator;
        struct tdm_estimate estimate;
        struct tdm_program *program;
        struct tdm_simulation simulation;
        struct tdm_error err;
        struct tdm_dice dice;
        uint32_t layers[64], count = 0;
        tdm_dice_seed(&dice, tdm_case_seed(61000, i));
        for (uint32_t left = schedule->model->layers; left > 0; left -= layers[count++]) {
            layers[count] = sizes[tdm_dice_roll(&dice, 0, 2)];
            layers[count] = layers[count] > left ? left : layers[count];
        }
        must(tdm_schedule_set_groups(schedule, count, layers, &err), &err);
        schedule->chunk_tokens = UINT64_C(4096) << tdm_dice_roll(&dice, 0, 2);
        schedule->head_tile_tokens = 4096;
        schedule->prefetch = 2;
        tdm_schedule_set_order(schedule,
                               tdm_dice_chance(&dice, 50) ? TDM_LAYER_MAJOR : TDM_CHUNK_MAJOR);
        draw_homes(&dice, schedule);
        for (uint32_t g = 0; g < count; g++) {
            struct tdm_group *group = &schedule->groups[g];
            if (g > 0)
                group->input_place = tdm_dice_chance(&dice, 50) ? TDM_HOST : TDM_DEVICE;
            if (tdm_dice_chance(&dice, 20)) {
                group->kv = TDM_KV_KEEP;
                group->kv_place = TDM_HOST;
            }
        }
        must(tdm_estimator_new(schedule, &estimator, &err), &err);
        assert_true(tdm_estimator_knows_lanes(estimator));
        tdm_estimate(estimator, schedule, &estimate);
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
        assert_true(estimate.seconds <= simulation.step_seconds * (1 + 1e-9));
        double off = fabs(estimate.likely_seconds / simulation.step_seconds - 1);
        sum += off;
        worst = off > worst ? off : worst;
        tdm_program_free(program);
        tdm_estimator_free(estimator);
        tdm_schedule_free(schedule);
    }
    print_message("likely seconds of %" PRIu64
                  " steps: off by %.2f%% in the mean, %.2f%% at most\n",
                  cases, 100 * sum / (double)cases, 100 * worst);
    assert_true(sum < MOST_OFF * (double)cases && worst < WORST_OFF);
}

/* Simulated over likely seconds of a schedule, less 1. */
static double off_by(struct tdm_schedule *schedule)
{
    struct tdm_estimator *estimator;
    struct tdm_estimate estimate;
    struct tdm_program *program;
    struct tdm_simulation simulation;
    struct tdm_error err;
    must(tdm_estimator_new(schedule, &estimator, &err), &err);
    tdm_estimate(estimator, schedule, &estimate);
    tdm_estimator_free(estimator);
    must(tdm_program_lower(schedule, &program, &err), &err);
    must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
    tdm_program_free(program);
    /* what is said to be a lower bound is one */
    assert_true(estimate.seconds <= simulation.step_seconds * (1 + 1e-9));
    return simulation.step_seconds / estimate.likely_seconds - 1;
}

/* Chunk-major, inputs and sets of some layers go to the host: products wait for slots from which
 * copies are sent. Then updates on the host: gradients of a group are sent while it still
 * computes. */
static void test_likely_seconds_of_waits(void **state)
{
    (void)state;
    struct tdm_error err;
    for (uint32_t layers = 1; layers <= 4; layers += 3) {
        struct tdm_schedule *schedule = new_schedule("qwen2.5-7b", 32768, 0, 0);
        struct tdm_pins pins = {0};
        uint32_t sizes[28];
        for (uint32_t g = 0; g < 28 / layers; g++)
            sizes[g] = layers;
        must(tdm_schedule_set_groups(schedule, 28 / layers, sizes, &err), &err);
        schedule->chunk_tokens = 8192;
        schedule->head_tile_tokens = 4096;
        schedule->prefetch = 2;
        tdm_schedule_set_order(schedule, TDM_CHUNK_MAJOR);
        for (uint32_t g = 0; g < schedule->group_count; g++) {
            struct tdm_group *group = &schedule->groups[g];
            group->input_place = group->kept_place = TDM_HOST;
            group->kept = layers == 1 && g % 3 == 0 ? TDM_SET_ALL : TDM_SET_INPUT;
        }
        if (layers > 1) {
            schedule->optimizer.on = TDM_HOST;
            assert_true(tdm_host_homes(schedule, &pins, schedule->homes, &err));
        }
        const double off = off_by(schedule);
        print_message("groups of %u: off by %.2f%%\n", layers, 100 * off);
        assert_true(fabs(off) < 0.003);
        tdm_schedule_free(schedule);
    }
}

/* Layer-major, layers of several kinds: their stores, K and V go to the host, and their gradients,
 * from one buffer, where some of them are updated. The others have all their state on the device;
 * from the sixth case on, masters and moments pass. */
static void test_likely_seconds_of_gradients(void **state)
{
    (void)state;
    static const uint32_t near[] = {2, 9, 20};
    static const uint64_t contexts[] = {8192, 32768};
    struct tdm_error err;
    for (size_t i = 0; i < 18; i++) {
        const uint32_t layers_near = near[i / 2 % 3], slots = 1 + (uint32_t)(i / 2 + i / 6) % 3;
        struct tdm_schedule *schedule = new_schedule("qwen2.5-7b", contexts[i % 2], 0, 0);
        uint32_t sizes[28];
        for (uint32_t g = 0; g < 28; g++)
            sizes[g] = 1;
        must(tdm_schedule_set_groups(schedule, 28, sizes, &err), &err);
        schedule->chunk_tokens = 8192;
        schedule->head_tile_tokens = 2048;
        schedule->prefetch = 2;
        tdm_schedule_set_order(schedule, TDM_LAYER_MAJOR);
        for (uint32_t g = 0; g < 28; g++) {
            struct tdm_group *group = &schedule->groups[g];
            group->input_place = g % 4 == 1 ? TDM_HOST : TDM_DEVICE;
            group->kept = g % 3 == 0 ? TDM_SET_ALL : TDM_SET_ATTENTION_OUTPUT;
            group->kept_place = g % 6 == 0 ? TDM_HOST : TDM_DEVICE;
            group->kv = TDM_KV_KEEP;
            group->kv_place = g % 4 < 2 ? TDM_HOST : TDM_DEVICE;
        }
        schedule->optimizer.on = TDM_HOST;
        for (int state_of = 0; state_of <= TDM_STATE_MOMENTS; state_of++)
            schedule->homes[state_of] = (struct tdm_home){layers_near, TDM_DEVICE, TDM_DEVICE};
        for (int state_of = TDM_STATE_MASTER; state_of <= TDM_STATE_MOMENTS && i >= 6; state_of++)
            schedule->homes[state_of].device_layers = 0;
        schedule->rings.optimizer = i < 6 ? schedule->rings.optimizer : slots;
        schedule->rings.host_gradients = 1 + (uint32_t)(i + i / 6) % 4;
        const double off = off_by(schedule);
        print_message("%u layers updated on the device%s: off by %.2f%%\n", layers_near,
                      i < 6 ? "" : ", with state from the host", 100 * off);
        assert_true(fabs(off) < 0.009);
        tdm_schedule_free(schedule);
    }
}

/* Small tiles make the head slower, as the estimator of larger ones knows. */
static void test_tile_seconds(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = new_schedule_on("h200", "qwen2.5-7b", 8192, 0, 0);
    struct tdm_estimator *estimator;
    double seconds[2];
    struct tdm_error err;
    const uint32_t layers = schedule->model->layers;
    must(tdm_schedule_set_groups(schedule, 1, &layers, &err), &err);
    schedule->chunk_tokens = 8192;
    for (int small = 0; small < 2; small++) {
        struct tdm_program *program;
        struct tdm_simulation simulation;
        schedule->head_tile_tokens = small ? 1024 : 4096;
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
        seconds[small] = simulation.kind_seconds[TDM_OP_HEAD];
        tdm_program_free(program);
    }
    schedule->head_tile_tokens = 4096;
    must(tdm_estimator_new(schedule, &estimator, &err), &err);
    const double longer = tdm_estimator_tile_seconds(estimator, 1024);
    assert_true(longer > 0);
    assert_float_equal(longer, seconds[1] - seconds[0], 0.02 * longer);
    assert_true(tdm_estimator_tile_seconds(estimator, 4096) <= 0);
    tdm_estimator_free(estimator);
    tdm_schedule_free(schedule);
}

/* ---- lists of groups ---- */

static void test_group_lists(void **state)
{
    (void)state;
    struct tdm_error err;
    for (uint32_t layers = 1; layers <= 130; layers++) {
        struct tdm_group_lists lists;
        must(tdm_group_lists_make(layers, &lists, &err), &err);
        for (uint32_t i = 0; i < lists.count; i++) {
            uint64_t sum = 0;
            for (uint32_t g = 0; g < lists.lists[i].count; g++) {
                assert_true(lists.lists[i].sizes[g] > 0);
                assert_true(g == 0 || lists.lists[i].sizes[g] <= lists.lists[i].sizes[g - 1]);
                sum += lists.lists[i].sizes[g];
            }
            assert_int_equal(sum, layers);
            for (uint32_t k = 0; k < i; k++)
                assert_false(lists.lists[i].count == lists.lists[k].count &&
                             memcmp(lists.lists[i].sizes, lists.lists[k].sizes,
                                    lists.lists[i].count * sizeof(uint32_t)) == 0);
        }
        assert_int_equal(lists.lists[0].count, layers);
        tdm_group_lists_free(&lists);
    }
}

static void test_fixed_groups(void **state)
{
    (void)state;
    struct tdm_error err;
    struct tdm_group_lists lists;
    const uint32_t five[] = {5}, falling[] = {13, 8, 4, 2, 1}, short_by_one[] = {13, 8, 4, 2},
                   large[] = {29};
    must(tdm_group_lists_fixed(28, five, 1, &lists, &err), &err);
    assert_int_equal(lists.count, 1);
    assert_int_equal(lists.lists[0].count, 6);
    assert_int_equal(lists.lists[0].sizes[5], 3);
    tdm_group_lists_free(&lists);
    must(tdm_group_lists_fixed(28, falling, 5, &lists, &err), &err);
    assert_memory_equal(lists.lists[0].sizes, falling, sizeof(falling));
    tdm_group_lists_free(&lists);
    assert_int_equal(tdm_group_lists_fixed(28, short_by_one, 4, &lists, &err), TDM_USAGE);
    assert_int_equal(tdm_group_lists_fixed(28, large, 1, &lists, &err), TDM_USAGE);
    assert_int_equal(tdm_group_lists_fixed(28, five, 0, &lists, &err), TDM_USAGE);
}

/* ---- the search ---- */

/* Searches, and checks the result by lowering it again. Returns the step's seconds, or 0 if nothing
 * fits. */
static double search(struct tdm_schedule *schedule, const struct tdm_pins *pins)
{
    struct tdm_search found;
    struct tdm_program *program;
    struct tdm_simulation again;
    struct tdm_error err;
    enum tdm_status status = tdm_candidates_search(schedule, pins, &found, &err);
    if (status == TDM_INFEASIBLE)
        return 0;
    assert_true(found.counts.examined + found.counts.simulated > 0);
    must(status, &err);
    must(tdm_schedule_check(schedule, "found", &err), &err);
    must(tdm_program_lower(schedule, &program, &err), &err);
    must(tdm_simulate(program, NULL, NULL, &again, &err), &err);
    assert_memory_equal(&again, &found.simulation, sizeof(again));
    assert_true(again.used_peak_bytes[TDM_DEVICE] <= schedule->memory_bytes);
    assert_true(again.used_peak_bytes[TDM_HOST] <= schedule->host_memory_bytes);
    tdm_program_free(program);
    return again.step_seconds;
}

/* Less memory never makes the step faster. */
static void test_tighter_is_never_faster(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint64_t context, from, step;
    } rows[] = {
        {"qwen2.5-0.5b", 8192, 16 * GIB, 4 * GIB}, /* the short form has only this row */
        {"llama-3.2-1b", 65536, 40 * GIB, 5 * GIB},
        {"qwen2.5-0.5b", 262144, 70 * GIB, 10 * GIB},
        {"qwen2.5-7b", 131072, 139 * GIB, 18 * GIB},
    };
    const struct tdm_pins pins = {0};
    size_t count = tdm_case_long() ? sizeof(rows) / sizeof(rows[0]) : 1;
    for (size_t i = 0; i < count; i++)
        for (uint64_t host = tdm_case_long() && i == 0 ? 0 : 60 * GIB; host <= 60 * GIB;
             host += 60 * GIB) {
            struct tdm_schedule *schedule = new_schedule(rows[i].model, rows[i].context, 0, host);
            double before = 0;
            for (uint64_t memory = rows[i].from; memory < GIB * 200; memory -= rows[i].step) {
                schedule->memory_bytes = memory;
                double seconds = search(schedule, &pins);
                if (seconds == 0)
                    break;
                /* with more memory, local search may miss a little that it found with less */
                if (seconds < before * (1 - 0.01))
                    fail_msg("%s, %" PRIu64 " GiB: %.9g s, with more memory %.9g s", rows[i].model,
                             memory / GIB, seconds, before);
                before = seconds;
            }
            assert_true(before > 0);
            tdm_schedule_free(schedule);
        }
}

/* A pin never makes the step faster. */
static void test_pins_never_make_it_faster(void **state)
{
    (void)state;
    static const char *const pairs[] = {
        "order=layer-major", "order=chunk-major", "groups=4",         "groups=13,8,4,2,1",
        "chunk=4K",          "chunk=3000",        "inputs=host",      "attention=none",
        "attention=held",    "attention=kept",    "kept_place=host",  "kept_from=50%",
        "held_place=host",   "head_tile=1024",    "kept_place=device"};
    const struct tdm_pins free_pins = {0};
    struct tdm_schedule *schedule = new_schedule("qwen2.5-7b", 131072, 130 * GIB, 60 * GIB);
    double best = search(schedule, &free_pins);
    assert_true(best > 0);
    const size_t step = tdm_case_long() ? 2 : tdm_case_sanitized() ? 8 : 4;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i += step) {
        struct tdm_pins pins = {0};
        struct tdm_error err;
        must(tdm_set_keys_apply(&pairs[i], 1, schedule, &pins, &err), &err);
        double seconds = search(schedule, &pins);
        if (seconds == 0 || seconds < best * (1 - 0.01))
            fail_msg("%s: %.9g s; free %.9g s", pairs[i], seconds, best);
        tdm_pins_free(&pins);
    }
    tdm_schedule_free(schedule);
}

/* The fastest step for a request in so much memory; `pairs`: of --set, up to NULL, or NULL. */
static double plan(const struct tdm_request *request, double memory_gib, const char *const *pairs)
{
    struct tdm_request asked = *request;
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    struct tdm_error err;
    asked.memory_bytes = (uint64_t)(memory_gib * (double)GIB);
    for (; pairs != NULL && pairs[asked.pair_count] != NULL; asked.pair_count++)
        asked.pairs[asked.pair_count] = pairs[asked.pair_count];
    must(tdm_request_make(&asked, &schedule, &pins, &err), &err);
    const double seconds = search(schedule, &pins);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    assert_true(seconds > 0);
    return seconds;
}

/* Neither a pin nor less memory makes a step in tight memory clearly faster. These did, by 0.6 to
 * 6.1%: the search had embedding and head on the host wherever layers were updated there; and it
 * did not lay out layers by hand at the place of updates that it searched last; and it began with
 * groups of equal sizes alone; and no start had attention outputs, K and V all on the host beside a
 * layer updated on the device; and a ring had one slot less only where a home changed with it; and
 * with one layer more on the device a walk went back to where there is one less. */
#define TIGHT_ALLOWED 0.003
static void test_tight_memory(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint64_t context, host;
        double memory_gib, less_gib; /* 0: no less is tried */
        enum tdm_optimizer optimizer;
        const char *pins[4];
        double missed; /* share by which the pins are known to be faster */
    } rows[] = {
        /* the long form has more than four */
        {"qwen2.5-7b", 32768, 512, 24, 0, TDM_OPTIMIZER_ADAMW, {"weights=0"}, 0},
        {"qwen2.5-7b", 32768, 110, 16, 0, TDM_OPTIMIZER_ADAMW, {"optimizer.on=device"}, 0},
        {"qwen2.5-7b", 524288, 110, 40, 0, TDM_OPTIMIZER_ADAMW, {"groups=7,6,5,4,3,2,1"}, 0},
        {"qwen2.5-14b",
         32768,
         110,
         16,
         0,
         TDM_OPTIMIZER_ADAMW_BF16,
         {"optimizer.on=host", "weights=1", "moments=1"},
         0},
        {"llama-3.1-8b", 8192, 110, 16, 0, TDM_OPTIMIZER_ADAMW, {"moments=0"}, 0},
        {"qwen2.5-7b", 131072, 64, 6, 0, TDM_OPTIMIZER_ADAMW_BF16, {"chunk=4K"}, 0},
        {"llama-3.1-8b", 131072, 110, 12, 0, TDM_OPTIMIZER_ADAMW_BF16, {"moments=0"}, 0},
        {"qwen2.5-14b", 32768, 110, 16, 12, TDM_OPTIMIZER_ADAMW_BF16, {"moments=0"}, 0},
        {"qwen2.5-14b", 262144, 110, 24, 16, TDM_OPTIMIZER_ADAMW_BF16, {"chunk=8K"}, 0.006},
        {"qwen2.5-7b", 262144, 110, 8, 0, TDM_OPTIMIZER_ADAMW, {"rings.weights=1"}, 0.009},
        {"qwen2.5-7b", 8192, 110, 80, 0, TDM_OPTIMIZER_ADAMW, {"moments=20"}, 0},
    };
    const size_t count = tdm_case_long()        ? sizeof(rows) / sizeof(rows[0])
                         : tdm_case_sanitized() ? 1
                                                : 4;
    for (size_t i = 0; i < count; i++) {
        const struct tdm_request request = {.model = rows[i].model,
                                            .machine = "h200",
                                            .optimizer = rows[i].optimizer,
                                            .context = rows[i].context,
                                            .sequences = 1,
                                            .has_memory = true,
                                            .has_host_memory = true,
                                            .host_memory_bytes = rows[i].host * GIB};
        const double free_seconds = plan(&request, rows[i].memory_gib, NULL);
        const double pinned = plan(&request, rows[i].memory_gib, rows[i].pins);
        if (pinned < free_seconds * (1 - fmax(TIGHT_ALLOWED, rows[i].missed)))
            fail_msg("%s, %.0f GiB, %s: %.9g s; free %.9g s", rows[i].model, rows[i].memory_gib,
                     rows[i].pins[0], pinned, free_seconds);
        if (rows[i].less_gib > 0 &&
            plan(&request, rows[i].less_gib, NULL) < free_seconds * (1 - TIGHT_ALLOWED))
            fail_msg("%s: faster in %.0f GiB than in %.0f", rows[i].model, rows[i].less_gib,
                     rows[i].memory_gib);
    }
}

/* If a byte on the device is worth as much as one on the host, the solution of the linear program
 * does not say which state is where. The search must find a plan with all state on the device
 * anyway. (The search gave 10.17 s here, and the pins gave 9.84 s.) */
static void test_homes_are_found(void **state)
{
    (void)state;
    static const char *const pairs[] = {"optimizer.on=device", "chunk=8K", "weights=device",
                                        "master=device", "moments=device"};
    const struct tdm_pins free_pins = {0};
    struct tdm_pins pins = {0};
    struct tdm_error err;
    struct tdm_schedule *schedule =
        new_schedule_on("h200", "qwen2.5-7b", 65536, 135 * GIB, 109 * GIB);
    double best = search(schedule, &free_pins);
    must(tdm_set_keys_apply(pairs, sizeof(pairs) / sizeof(pairs[0]), schedule, &pins, &err), &err);
    double pinned = search(schedule, &pins);
    if (pinned == 0 || best == 0 || best > pinned * (1 + 0.003))
        fail_msg("state on the device: %.9g s; free %.9g s", pinned, best);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
}

/* A quick search is within 10% of the full one, gives no bound, and solves no program. */
static void test_quick(void **state)
{
    (void)state;
    struct tdm_pins pins = {0};
    struct tdm_search full, quick;
    struct tdm_error err;
    struct tdm_schedule *schedule = new_schedule("qwen2.5-0.5b", 65536, 20 * GIB, 10 * GIB);
    must(tdm_candidates_search(schedule, &pins, &full, &err), &err);
    pins.quick = true;
    must(tdm_candidates_search(schedule, &pins, &quick, &err), &err);
    assert_true(full.bound_seconds > 0 && full.counts.programs > 0);
    assert_true(quick.bound_seconds == 0 && quick.counts.programs == 0 && quick.gap == 0);
    assert_true(quick.simulation.step_seconds <= 1.1 * full.simulation.step_seconds);
    assert_true(quick.simulation.used_peak_bytes[TDM_DEVICE] <= schedule->memory_bytes);
    tdm_schedule_free(schedule);
}

/* A brief search takes a tenth longer steps at most, and lowers fewer schedules; one that only has
 * to fit lowers a single one, and packs it within the limits. */
static void test_brief(void **state)
{
    (void)state;
    const struct tdm_request request = {.model = "qwen2.5-0.5b",
                                        .machine = "h200-published",
                                        .context = 65536,
                                        .sequences = 1,
                                        .has_memory = true,
                                        .memory_bytes = 20 * GIB,
                                        .unchecked = true};
    static const enum tdm_effort efforts[] = {TDM_EFFORT_FULL, TDM_EFFORT_BRIEF, TDM_EFFORT_FIT};
    struct tdm_search searches[3];
    for (size_t i = 0; i < 3; i++) {
        struct tdm_objective_found found;
        struct tdm_error err;
        must(tdm_objective_time(&request, efforts[i], &found, &err), &err);
        searches[i] = found.search;
        assert_true(found.search.simulation.used_peak_bytes[TDM_DEVICE] <= 20 * GIB);
        tdm_objective_found_free(&found);
    }
    const struct tdm_search *full = &searches[0], *brief = &searches[1], *fit = &searches[2];
    assert_true(brief->simulation.step_seconds <= 1.1 * full->simulation.step_seconds);
    assert_true(brief->counts.lowered < full->counts.lowered);
    assert_true(brief->bound_seconds > 0 && brief->bound_seconds <= full->bound_seconds);
    assert_int_equal(fit->counts.lowered, fit->counts.simulated);
}

/* The search returns what is pinned. */
static void test_pins_are_obeyed(void **state)
{
    (void)state;
    static const char *const pairs[] = {"order=layer-major",
                                        "groups=9,8,6,5",
                                        "chunk=4K",
                                        "inputs=host",
                                        "attention=kept",
                                        "kept_place=host",
                                        "kept_from=25%",
                                        "held_place=host",
                                        "head_tile=512",
                                        "head_tile_vocabulary=16K",
                                        "page=64",
                                        "prefetch=3",
                                        "dtypes.kv_gradients=bf16",
                                        "optimizer.learning_rate=1e-4"};
    static const uint32_t sizes[] = {9, 8, 6, 5};
    struct tdm_pins pins = {0};
    struct tdm_error err;
    struct tdm_schedule *schedule = new_schedule("qwen2.5-7b", 131072, 130 * GIB, 100 * GIB);
    must(tdm_set_keys_apply(pairs, sizeof(pairs) / sizeof(pairs[0]), schedule, &pins, &err), &err);
    assert_true(search(schedule, &pins) > 0);
    assert_int_equal(schedule->order, TDM_LAYER_MAJOR);
    assert_int_equal(schedule->chunk_tokens, 4096);
    assert_int_equal(schedule->head_tile_tokens, 512);
    assert_int_equal(schedule->head_tile_vocabulary, 16384);
    assert_int_equal(schedule->page_tokens, 64);
    assert_int_equal(schedule->prefetch, 3);
    assert_int_equal(schedule->dtypes.kv_gradients, TDM_DTYPE_BF16);
    assert_true(schedule->optimizer.learning_rate > 0.99e-4 &&
                schedule->optimizer.learning_rate < 1.01e-4);
    assert_int_equal(schedule->group_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(schedule->groups[i].layers, sizes[i]);
        assert_int_equal(schedule->groups[i].input_place, TDM_HOST);
        assert_int_equal(schedule->groups[i].kept, TDM_SET_ATTENTION_OUTPUT);
        assert_int_equal(schedule->groups[i].kept_place, TDM_HOST);
        assert_int_equal(schedule->groups[i].kept_from_chunk, 8);
        assert_int_equal(schedule->groups[i].held_place, TDM_HOST);
    }
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
}

/* Walks change rings and how far fetches run ahead, but not what is pinned. */
static void test_rings_are_obeyed(void **state)
{
    (void)state;
    static const char *const pairs[] = {"rings.optimizer=3", "rings.weights=1", "rings.stashed=5",
                                        "prefetch=4"};
    for (size_t count = 3; count <= 4; count++) {
        struct tdm_pins pins = {0};
        struct tdm_error err;
        struct tdm_schedule *schedule =
            new_schedule_on("h200", "qwen2.5-7b", 65536, 12 * GIB, 109 * GIB);
        must(tdm_set_keys_apply(pairs, count, schedule, &pins, &err), &err);
        assert_true(search(schedule, &pins) > 0);
        assert_int_equal(schedule->rings.optimizer, 3);
        assert_int_equal(schedule->rings.weights, 1);
        assert_int_equal(schedule->rings.stashed, 5);
        assert_int_equal(schedule->rings.ahead, 0);
        assert_true(count < 4 || schedule->prefetch == 4);
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
}

/* A pin of one ring leaves the others to the search: with the slots that a search found, the plan
 * is as fast. */
static void test_rings_are_pinned_alone(void **state)
{
    (void)state;
    static const char *const keys[] = {NULL, "rings.weights=3", "rings.optimizer=2",
                                       "rings.stashed=2", "rings.kv=2"};
    double seconds[sizeof(keys) / sizeof(keys[0])];
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *const pairs[] = {"optimizer.on=device", keys[i]};
        struct tdm_pins pins = {0};
        struct tdm_error err;
        struct tdm_schedule *schedule =
            new_schedule_on("h200", "qwen2.5-7b", 8192, 24 * GIB, 110 * GIB);
        must(tdm_set_keys_apply(pairs, i == 0 ? 1 : 2, schedule, &pins, &err), &err);
        seconds[i] = search(schedule, &pins);
        const struct tdm_rings *rings = &schedule->rings;
        print_message("%s: %.4f s with rings of %u, %u, %u, %u\n", i == 0 ? "free" : keys[i],
                      seconds[i], rings->weights, rings->optimizer, rings->stashed, rings->kv);
        assert_true(i > 1 || rings->weights == 3);
        assert_true((i > 0 && i != 2) || rings->optimizer == 2);
        assert_true(rings->stashed == 2 && rings->kv == 2);
        assert_true(seconds[i] < 1.003 * seconds[0]);
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
}

/* K and V that a user wants ahead: they are where a schedule can make them, and where it cannot,
 * for want of a second slot of weights, it does not say so. */
static void test_ahead_is_true(void **state)
{
    (void)state;
    static const char *const pairs[] = {"rings.ahead=1", "inputs=host", "kv=recompute", "weights=0",
                                        "rings.weights=1"};
    for (size_t count = 4; count <= 5; count++) {
        struct tdm_pins pins = {0};
        struct tdm_error err;
        struct tdm_schedule *schedule =
            new_schedule_on("h200", "qwen2.5-7b", 65536, 24 * GIB, 109 * GIB);
        must(tdm_set_keys_apply(pairs, count, schedule, &pins, &err), &err);
        assert_true(search(schedule, &pins) > 0);
        assert_int_equal(schedule->rings.weights, count == 4 ? 2 : 1);
        assert_int_equal(schedule->rings.ahead, count == 4 ? 1 : 0);
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
}

static void test_stores_are_obeyed(void **state)
{
    (void)state;
    static const struct {
        const char *pair;
        enum tdm_set kept, held;
        bool any_held;
    } rows[] = {{"attention=none", TDM_SET_INPUT, TDM_SET_INPUT, false},
                {"attention=held", TDM_SET_INPUT, TDM_SET_ATTENTION_OUTPUT, false},
                {"attention=kept", TDM_SET_ATTENTION_OUTPUT, TDM_SET_INPUT, true}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int order = 0; order < TDM_ORDERS; order++) {
            struct tdm_pins pins = {.has_order = true, .order = (enum tdm_order)order};
            struct tdm_error err;
            struct tdm_schedule *schedule =
                new_schedule("llama-3.2-1b", 65536, 100 * GIB, 50 * GIB);
            must(tdm_set_keys_apply(&rows[i].pair, 1, schedule, &pins, &err), &err);
            assert_true(search(schedule, &pins) > 0);
            assert_int_equal(schedule->order, order);
            for (uint32_t g = 0; g < schedule->group_count; g++) {
                assert_int_equal(schedule->groups[g].kept, rows[i].kept);
                if (!rows[i].any_held)
                    assert_int_equal(schedule->groups[g].held, rows[i].held);
            }
            tdm_schedule_free(schedule);
        }
}

/* Contexts that are small, odd or very long; several sequences. */
static void test_extremes(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint64_t context;
        uint32_t sequences;
    } rows[] = {{"byte-1m", 1, 1},         {"byte-1m", 7, 5},          {"byte-1m", 2048, 1},
                {"byte-1m", 1048577, 1},   {"byte-1m", 100, 1500},     {"qwen2.5-0.5b", 1025, 3},
                {"llama-3.2-1b", 9999, 2}, {"qwen2.5-0.5b", 400000, 1}};
    const struct tdm_pins pins = {0};
    size_t count = sizeof(rows) / sizeof(rows[0]) - (tdm_case_long() ? 0 : 1);
    for (size_t i = 0; i < count; i++) {
        struct tdm_schedule *schedule =
            new_schedule(rows[i].model, rows[i].context, 139 * GIB, 100 * GIB);
        struct tdm_error err;
        must(tdm_schedule_set_sequences(schedule, rows[i].sequences, rows[i].context, &err), &err);
        assert_true(search(schedule, &pins) > 0);
        assert_true(schedule->chunk_tokens <= rows[i].context);
        tdm_schedule_free(schedule);
    }
}

/* ---- shortages ---- */

/* Checks that every number of a shortage is enough, and that a little less device memory is not. */
static void check_shortage(const char *model, uint64_t context, uint64_t memory_bytes,
                           uint64_t host_memory_bytes, const char *pair, enum tdm_binding binding)
{
    struct tdm_schedule *schedule = new_schedule(model, context, memory_bytes, host_memory_bytes);
    const uint64_t host_limit_bytes = schedule->host_memory_bytes;
    struct tdm_pins pins = {0};
    struct tdm_shortage shortage;
    struct tdm_error err;
    if (pair != NULL)
        must(tdm_set_keys_apply(&pair, 1, schedule, &pins, &err), &err);
    assert_true(search(schedule, &pins) == 0);
    must(tdm_shortage_find(schedule, &pins, false, &shortage, &err), &err);
    must(tdm_shortage_prove(schedule, &pins, &shortage, &err), &err);
    assert_int_equal(shortage.binding, binding);
    assert_int_equal(schedule->memory_bytes, memory_bytes);
    assert_int_equal(schedule->host_memory_bytes, host_limit_bytes);
    assert_int_equal(schedule->sequences[0].tokens, context);
    assert_int_equal(schedule->optimizer.kind, TDM_OPTIMIZER_ADAMW);
    assert_int_equal(tdm_shortage_fail(&shortage, schedule, &err), TDM_INFEASIBLE);
    assert_true(err.message[0] != '\0');
    char hint[sizeof(err.hint)];
    memcpy(hint, err.hint, sizeof(hint));

    const uint64_t *needed = shortage.needed_bytes;
    if (binding == TDM_BINDING_BOTH) {
        schedule->memory_bytes = needed[TDM_DEVICE];
        schedule->host_memory_bytes = needed[TDM_HOST];
        assert_true(search(schedule, &pins) > 0);
        schedule->host_memory_bytes = host_limit_bytes;
    }
    if (binding == TDM_BINDING_DEVICE || binding == TDM_BINDING_EITHER) {
        schedule->memory_bytes = needed[TDM_DEVICE];
        assert_true(needed[TDM_DEVICE] > memory_bytes);
        assert_true(search(schedule, &pins) > 0);
        schedule->memory_bytes = needed[TDM_DEVICE] - needed[TDM_DEVICE] / 200;
        assert_true(search(schedule, &pins) == 0);
    }
    schedule->memory_bytes = memory_bytes;
    if (binding == TDM_BINDING_HOST || binding == TDM_BINDING_EITHER) {
        schedule->host_memory_bytes = needed[TDM_HOST];
        assert_true(needed[TDM_HOST] > host_limit_bytes);
        assert_true(search(schedule, &pins) > 0);
    }
    schedule->host_memory_bytes = host_limit_bytes;
    if (shortage.longest_context > 0) {
        schedule->sequences[0].tokens = shortage.longest_context;
        assert_true(search(schedule, &pins) > 0);
        schedule->sequences[0].tokens = context;
    }
    bool streamed = false;
    for (int state = 0; state < TDM_STATES; state++)
        streamed |= shortage.streamed[state];
    if (streamed) { /* then it fits as it is */
        struct tdm_home homes[TDM_STATES];
        memcpy(homes, schedule->homes, sizeof(homes));
        for (int state = 0; state < TDM_STATES; state++)
            if (shortage.streamed[state])
                tdm_schedule_set_home(schedule, (enum tdm_state)state, 0, TDM_HOST);
        assert_true(search(schedule, &pins) > 0);
        memcpy(schedule->homes, homes, sizeof(homes));
    }
    assert_true(pair == NULL || strcmp(pair, "optimizer.when=end") != 0 ||
                strstr(hint, "--set gradients=host with --memory ") != NULL);
    if (shortage.far_gradients_bytes > 0) { /* not by itself, but with so much device memory */
        const struct tdm_home home = schedule->homes[TDM_STATE_GRADIENTS];
        assert_true(!streamed && shortage.far_gradients_bytes < needed[TDM_DEVICE]);
        tdm_schedule_set_home(schedule, TDM_STATE_GRADIENTS, 0, TDM_HOST);
        schedule->memory_bytes = shortage.far_gradients_bytes;
        assert_true(search(schedule, &pins) > 0);
        schedule->homes[TDM_STATE_GRADIENTS] = home;
        schedule->memory_bytes = memory_bytes;
    }
    if (shortage.without_optimizer_bytes > 0) {
        tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_NONE);
        schedule->memory_bytes = shortage.without_optimizer_bytes;
        assert_true(search(schedule, &pins) > 0);
    }
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
}

static void test_shortages(void **state)
{
    (void)state;
    check_shortage("byte-1m", 5000, 0, 0, NULL, TDM_BINDING_DEVICE);
    check_shortage("byte-1m", 16384, 550 * (GIB >> 10), 0, NULL, TDM_BINDING_EITHER);
    check_shortage("byte-1m", 4096, 529 * (GIB >> 10), GIB, "optimizer.when=end",
                   TDM_BINDING_DEVICE);
    if (!tdm_case_long())
        return;
    check_shortage("byte-1m", 65536, 600 * (GIB >> 10), 0, NULL, TDM_BINDING_EITHER);
    check_shortage("qwen2.5-7b", 262144, 80 * GIB, 0, NULL, TDM_BINDING_EITHER);
    check_shortage("qwen2.5-7b", 65536, 90 * GIB, GIB, "order=layer-major", TDM_BINDING_EITHER);
    check_shortage("qwen2.5-0.5b", 131072, 8 * GIB, 0, NULL, TDM_BINDING_EITHER);
}

static void test_shortage_of_host(void **state)
{
    (void)state;
    static const char *const pairs[] = {"inputs=host", "groups=1", "order=layer-major"};
    const uint64_t memory[] = {139 * GIB, 5 * GIB};
    const enum tdm_binding bindings[] = {TDM_BINDING_HOST, TDM_BINDING_BOTH};
    for (int i = 0; i < (tdm_case_long() ? 2 : 1); i++) {
        struct tdm_pins pins = {0};
        struct tdm_error err;
        struct tdm_shortage shortage;
        struct tdm_schedule *schedule = new_schedule("qwen2.5-7b", 262144, memory[i], GIB);
        must(tdm_set_keys_apply(pairs, 3, schedule, &pins, &err), &err);
        assert_true(search(schedule, &pins) == 0);
        must(tdm_shortage_find(schedule, &pins, false, &shortage, &err), &err);
        assert_int_equal(shortage.binding, bindings[i]);
        if (i == 1)
            schedule->memory_bytes = shortage.needed_bytes[TDM_DEVICE];
        schedule->host_memory_bytes = shortage.needed_bytes[TDM_HOST];
        assert_true(search(schedule, &pins) > 0);
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
}

/* Where both places together cannot hold the state, what is proved is told by the state alone, so
 * that the refusal needs no linear program, which would prove a little more. */
static void test_hopeless_shortage(void **state)
{
    (void)state;
    struct tdm_pins pins = {0};
    struct tdm_error err;
    struct tdm_shortage shortage;
    struct tdm_schedule *schedule = new_schedule("qwen2.5-7b", 8192, 16 * GIB, 20 * GIB);
    const struct tdm_place_row *places = schedule->machine->topology.places;
    const uint64_t resident_bytes = 12 * schedule->model->parameters +
                                    places[TDM_DEVICE].runtime_bytes +
                                    places[TDM_HOST].runtime_bytes;
    assert_true(search(schedule, &pins) == 0);
    must(tdm_shortage_find(schedule, &pins, false, &shortage, &err), &err);
    assert_int_equal(shortage.binding, TDM_BINDING_EITHER);
    const enum tdm_place each[] = {TDM_DEVICE, TDM_HOST};
    for (int i = 0; i < 2; i++) /* nothing is proved unasked: predict does not say it */
        assert_int_equal(shortage.proved_bytes[each[i]], 0);
    must(tdm_shortage_prove(schedule, &pins, &shortage, &err), &err);
    for (int i = 0; i < 2; i++) {
        const uint64_t other_bytes = shortage.limit_bytes[each[1 - i]];
        assert_int_equal(shortage.proved_bytes[each[i]], resident_bytes - other_bytes);
        assert_true(shortage.proved_bytes[each[i]] <= shortage.needed_bytes[each[i]]);
    }
    assert_int_equal(shortage.longest_context, 0);
    for (int s = 0; s < TDM_STATES; s++)
        assert_false(shortage.streamed[s]);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
}

/* Plans a request of several ranks. Does it fit? */
static bool ranks_fit(const struct tdm_request *request, struct tdm_objective_found *found)
{
    struct tdm_error err;
    enum tdm_status status = tdm_objective_time(request, TDM_EFFORT_FIT, found, &err);
    if (status != TDM_INFEASIBLE)
        must(status, &err);
    return status == TDM_OK;
}

static bool ranks_fit_within(struct tdm_request request, uint64_t context, uint64_t memory_bytes,
                             uint64_t host_memory_bytes)
{
    struct tdm_objective_found found;
    request.context = context;
    request.memory_bytes = memory_bytes;
    request.host_memory_bytes = host_memory_bytes;
    const bool fits = ranks_fit(&request, &found);
    if (fits) {
        assert_true(found.search.simulation.used_peak_bytes[TDM_DEVICE] <= memory_bytes);
        assert_true(found.search.simulation.used_peak_bytes[TDM_HOST] <= host_memory_bytes);
    }
    tdm_pins_free(&found.pins);
    tdm_schedule_free(found.schedule);
    return fits;
}

/* Every number of a shortage of several ranks is enough for a plan, also where ranks of a node
 * share its host memory; and half a percent less of the device is not. */
static void test_shortages_of_ranks(void **state)
{
    (void)state;
    static const char *const pairs[] = {"exchange=ring"};
    const struct {
        uint32_t ranks, ranks_per_node;
        uint64_t memory_kib, host_kib; /* of the host beside its runtime */
        size_t pairs;
    } cases[] = {{2, 0, 540 << 10, 0, 0}, {3, 0, 540 << 10, 6 << 10, 1}, {4, 2, 540 << 10, 0, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_request request = {.model = "byte-1m",
                                      .machine = "h200-published",
                                      .context = 32768,
                                      .sequences = 1,
                                      .ranks = cases[i].ranks,
                                      .ranks_per_node = cases[i].ranks_per_node,
                                      .optimizer = TDM_OPTIMIZER_ADAMW,
                                      .pairs = {pairs[0]},
                                      .pair_count = cases[i].pairs,
                                      .has_memory = true,
                                      .has_host_memory = true,
                                      .memory_bytes = cases[i].memory_kib << 10,
                                      .host_memory_bytes = cases[i].host_kib << 10};
        struct tdm_objective_found found;
        struct tdm_shortage shortage;
        struct tdm_error err;
        request.host_memory_bytes += (uint64_t)464 << 20;
        assert_false(ranks_fit(&request, &found));
        must(tdm_shortage_find(found.schedule, &found.pins, false, &shortage, &err), &err);
        assert_int_equal(found.schedule->ranks, cases[i].ranks);
        tdm_pins_free(&found.pins);
        tdm_schedule_free(found.schedule);
        const uint64_t device = shortage.needed_bytes[TDM_DEVICE];
        const uint64_t host = shortage.needed_bytes[TDM_HOST];
        assert_true(device > request.memory_bytes);
        assert_true(ranks_fit_within(request, request.context, device, request.host_memory_bytes));
        assert_false(ranks_fit_within(request, request.context, device - device / 200,
                                      request.host_memory_bytes));
        if (host > 0)
            assert_true(ranks_fit_within(request, request.context, request.memory_bytes, host));
        if (shortage.longest_context > 0)
            assert_true(ranks_fit_within(request, shortage.longest_context, request.memory_bytes,
                                         request.host_memory_bytes));
        if (shortage.without_optimizer_bytes > 0) {
            request.optimizer = TDM_OPTIMIZER_NONE;
            assert_true(ranks_fit_within(request, request.context, shortage.without_optimizer_bytes,
                                         request.host_memory_bytes));
        }
    }
}

/* Does a request of several ranks fit with `context` tokens, by the least memory and by nothing
 * that is known from other contexts? */
static bool ranks_have_least(struct tdm_request request, uint64_t context)
{
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    struct tdm_team_memo memo;
    struct tdm_error err;
    uint64_t bytes = 0;
    request.context = context;
    must(tdm_request_make(&request, &schedule, &pins, &err), &err);
    schedule->ranks = request.ranks;
    enum tdm_status status =
        tdm_team_least(schedule, &pins, TDM_DEVICE, schedule->memory_bytes, &memo, &bytes, &err);
    const bool fits = status == TDM_OK && bytes <= schedule->memory_bytes;
    if (status != TDM_INFEASIBLE)
        must(status, &err);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    return fits;
}

/* The longest context of several ranks, found with what is known from other contexts, is one that
 * fits without; the next size, of one part in 512, does not. */
static void test_contexts_of_ranks(void **state)
{
    (void)state;
    /* contexts that leave one of 3 ranks without such a chunk are passed over */
    static const char *const pairs[] = {"chunk=4096", "exchange=gather"};
    const struct {
        uint32_t ranks;
        uint64_t memory_mib, host_mib; /* beside their runtimes */
        size_t pairs;
    } cases[] = {{2, 64, 0, 0},  {2, 40, 30, 0}, {3, 64, 50, 0},
                 {4, 96, 20, 0}, {3, 64, 50, 1}, {2, 64, 100, 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_request request = {.model = "byte-1m",
                                      .machine = "h200-published",
                                      .sequences = 1,
                                      .ranks = cases[i].ranks,
                                      .optimizer = TDM_OPTIMIZER_ADAMW,
                                      .pairs = {pairs[0], pairs[1]},
                                      .pair_count = cases[i].pairs,
                                      .has_memory = true,
                                      .has_host_memory = true,
                                      .memory_bytes = (cases[i].memory_mib + 528) << 20,
                                      .host_memory_bytes = (cases[i].host_mib + 464) << 20};
        const struct tdm_objective_options options = {0};
        struct tdm_objective_found found;
        struct tdm_error err;
        must(tdm_objective_context(&request, &options, &found, &err), &err);
        const uint64_t units = tdm_schedule_tokens(found.schedule) / 1024;
        const uint64_t next = units + 1 + units / 512;
        assert_true(units > 1);
        assert_true(found.search.simulation.used_peak_bytes[TDM_DEVICE] <= request.memory_bytes);
        assert_true(found.search.simulation.used_peak_bytes[TDM_HOST] <= request.host_memory_bytes);
        assert_true(ranks_have_least(request, 1024 * units));
        assert_false(ranks_have_least(request, 1024 * next));
        tdm_objective_found_free(&found);
    }
}

/* What is known from one context serves one with the same chunks alone. */
static void test_team_memo(void **state)
{
    (void)state;
    const uint64_t contexts[] = {1048576, 1310720, 32768};
    struct tdm_team_memo memo = {0};
    for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
        struct tdm_pins pins = {0};
        struct tdm_error err;
        uint64_t bytes = 0, alike_bytes = 0;
        bool tried = true;
        struct tdm_schedule *schedule = new_schedule("byte-1m", contexts[i], 139 * GIB, GIB);
        schedule->ranks = 2;
        must(
            tdm_team_least_alike(schedule, &pins, TDM_DEVICE, 0, &memo, &tried, &alike_bytes, &err),
            &err);
        assert_int_equal(tried, i == 1);
        must(tdm_team_least(schedule, &pins, TDM_DEVICE, 0, &memo, &bytes, &err), &err);
        if (tried) /* it may miss the least, but not by much */
            assert_true(alike_bytes >= bytes && alike_bytes <= bytes + bytes / 100);
        assert_true(memo.chunk_tokens > 0);
        tdm_schedule_free(schedule);
    }
}

/* Rings are tried unless they would take long to lower: then, with as many chunks, the layers have
 * no windows. */
static void test_rings_tried(void **state)
{
    (void)state;
    const struct {
        const char *model;
        uint64_t context, chunk_tokens;
        uint32_t ranks;
        bool tried;
    } cases[] = {{"qwen2.5-7b", 131072, 8192, 2, true},
                 {"qwen2.5-7b", 131072, 8192, 17, false},
                 {"qwen2.5-7b", 1048576, 8192, 8, true},
                 {"qwen2.5-7b", 5029888, 8192, 2, false},
                 {"mistral-7b-v0.1", 5029888, 8192, 2, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_schedule *schedule =
            new_schedule(cases[i].model, cases[i].context, 139 * GIB, GIB);
        schedule->ranks = cases[i].ranks;
        schedule->chunk_tokens = cases[i].chunk_tokens;
        tdm_team_set_exchange(schedule, TDM_EXCHANGE_RING, 0);
        assert_true(tdm_team_tries_exchange(schedule) == cases[i].tried);
        tdm_team_set_exchange(schedule, TDM_EXCHANGE_GATHER, 0);
        assert_true(tdm_team_tries_exchange(schedule));
        tdm_schedule_free(schedule);
    }
}

/* ---- updates on the host ---- */

/* With little device memory, updates on the host are faster. A search that may choose finds what
 * the better search with a pinned place finds, and its bound holds for both. Updates on the host
 * with moments pinned to the device are refused. */
static void test_update_place(void **state)
{
    (void)state;
    static const char *const pairs[] = {"optimizer.on=device", "optimizer.on=host"};
    double seconds[3], bound = 0;
    for (int i = 0; i < 3; i++) { /* on the device, on the host, free */
        struct tdm_pins pins = {0};
        struct tdm_search found;
        struct tdm_error err;
        struct tdm_schedule *schedule = tdm_case_long()
                                            ? new_schedule("qwen2.5-0.5b", 65536, 3 * GIB, 12 * GIB)
                                            : new_schedule("byte-1m", 4096, 545 * (GIB >> 10), GIB);
        tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_ADAMW_BF16_MOMENTS);
        if (i < 2)
            must(tdm_set_keys_apply(&pairs[i], 1, schedule, &pins, &err), &err);
        must(tdm_candidates_search(schedule, &pins, &found, &err), &err);
        seconds[i] = found.simulation.step_seconds;
        bound = found.bound_seconds;
        assert_true(i == 2 || schedule->optimizer.on == (i == 0 ? TDM_DEVICE : TDM_HOST));
        if (i > 0)
            assert_true((schedule->optimizer.on == TDM_HOST) ==
                        (found.simulation.busy_seconds[TDM_LANE_HOST] > 0));
        if (i == 1) {
            pins.has_home[TDM_STATE_MOMENTS] = true;
            tdm_schedule_set_home(schedule, TDM_STATE_MOMENTS, schedule->model->layers, TDM_DEVICE);
            assert_int_equal(tdm_candidates_search(schedule, &pins, &found, &err), TDM_USAGE);
        }
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
    print_message("updates on the device %.6f s, on the host %.6f s, free %.6f s\n", seconds[0],
                  seconds[1], seconds[2]);
    /* a search of one place has more starts; the host is not taken for less than a millisecond, or
     * 0.3% of the step */
    const double on_host = seconds[1] + fmax(1e-3, 3e-3 * seconds[0]);
    assert_true(seconds[2] <= fmin(seconds[0], on_host) * 1.001);
    assert_true(bound <= fmin(seconds[0], seconds[1]) * (1 + 1e-9));
}

/* Where state streams behind a short step, link and host's cores share the updates: some layers
 * have their weights on the device, and masters and moments pass. That is faster than updates on
 * the device alone, and the bound holds. */
static void test_state_passes(void **state)
{
    (void)state;
    static const char *const keys[] = {"chunk=8K", "order=layer-major", "optimizer.on=device"};
    double seconds[2];
    for (int i = 0; i < 2; i++) { /* both places, the device */
        struct tdm_pins pins = {0};
        struct tdm_search found;
        struct tdm_error err;
        struct tdm_schedule *schedule =
            new_schedule_on("h200", "qwen2.5-7b", 8192, 24 * GIB, 110 * GIB);
        const struct tdm_home *homes = schedule->homes;
        must(tdm_set_keys_apply(keys, 2 + (size_t)i, schedule, &pins, &err), &err);
        must(tdm_candidates_search(schedule, &pins, &found, &err), &err);
        seconds[i] = found.simulation.step_seconds;
        assert_true(found.bound_seconds > 0 && found.bound_seconds <= seconds[i]);
        if (i == 0) {
            assert_int_equal(schedule->optimizer.on, TDM_HOST);
            assert_in_range(homes[TDM_STATE_WEIGHTS].device_layers, 1, schedule->model->layers - 1);
            assert_int_equal(homes[TDM_STATE_MOMENTS].device_layers, 0);
            /* host memory is ample: more gradients wait there than states on the device */
            assert_true(schedule->rings.host_gradients > schedule->rings.optimizer);
        }
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
    print_message("updates at both places %.4f s, on the device %.4f s\n", seconds[0], seconds[1]);
    assert_true(seconds[0] < 0.95 * seconds[1]);
}

/* The same plan is found, within a percent, where a pin fixes one state's homes as a search found
 * them: moments on the host leave the weights free, and weights on the device need not bring
 * masters and moments there. The bounds hold for all. */
static void test_state_passes_pinned(void **state)
{
    (void)state;
    static const char *const keys[] = {"chunk=8K", "order=layer-major", "optimizer.on=host"};
    struct tdm_home found_homes[TDM_STATES];
    double free_seconds = 0;
    for (int pinned = -1; pinned <= TDM_STATE_MOMENTS; pinned++) {
        struct tdm_pins pins = {0};
        struct tdm_search found;
        struct tdm_error err;
        struct tdm_schedule *schedule =
            new_schedule_on("h200", "qwen2.5-7b", 8192, 24 * GIB, 110 * GIB);
        must(tdm_set_keys_apply(keys, sizeof(keys) / sizeof(keys[0]), schedule, &pins, &err), &err);
        if (pinned >= 0) {
            pins.has_home[pinned] = true;
            schedule->homes[pinned] = found_homes[pinned];
        }
        must(tdm_candidates_search(schedule, &pins, &found, &err), &err);
        const double seconds = found.simulation.step_seconds;
        print_message("%s pinned: %.4f s, bound %.4f s\n",
                      pinned < 0 ? "nothing" : tdm_state_name((enum tdm_state)pinned), seconds,
                      found.bound_seconds);
        assert_true(found.bound_seconds <= seconds);
        if (pinned < 0) {
            memcpy(found_homes, schedule->homes, sizeof(found_homes));
            assert_in_range(found_homes[TDM_STATE_WEIGHTS].device_layers, 1,
                            schedule->model->layers - 1);
            assert_int_equal(found_homes[TDM_STATE_MOMENTS].device_layers, 0);
            free_seconds = seconds;
        } else {
            assert_memory_equal(&schedule->homes[pinned], &found_homes[pinned],
                                sizeof(found_homes[pinned]));
            assert_true(seconds < 1.01 * free_seconds);
            assert_true(found.bound_seconds <= free_seconds);
        }
        tdm_pins_free(&pins);
        tdm_schedule_free(schedule);
    }
}

/* ---- the ladder ---- */

/* Plans a limit with a ladder; the plan fits, and takes what the search says. */
static double plan_with_ladder(struct tdm_ladder *ladder, uint64_t memory_bytes)
{
    struct tdm_pins pins = {.effort = 2, .ladder = ladder};
    struct tdm_search found = {0};
    struct tdm_simulation simulation;
    struct tdm_program *program;
    struct tdm_error err;
    struct tdm_schedule *schedule = new_schedule("byte-1m", 4096, memory_bytes, GIB);
    if (!tdm_case_long()) { /* in less time */
        pins.without = 1u << TDM_POLISH;
        pins.chunk_tokens = 4096;
        pins.has_update_place = pins.has_order = true;
    }
    must(tdm_candidates_search(schedule, &pins, &found, &err), &err);
    assert_int_equal(schedule->memory_bytes, memory_bytes);
    must(tdm_program_lower(schedule, &program, &err), &err);
    must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
    assert_float_equal(simulation.step_seconds, found.simulation.step_seconds,
                       1e-9 * simulation.step_seconds);
    assert_true(simulation.used_peak_bytes[TDM_DEVICE] <= memory_bytes);
    assert_true(found.bound_seconds <= found.simulation.step_seconds);
    assert_true(found.beyond_seconds <= 1e-6 * found.simulation.step_seconds);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    return found.simulation.step_seconds;
}

/* With --effort 2 more memory is never slower, not by any share of a step. What a ladder remembers
 * of other limits changes no plan. */
static void test_ladder(void **state)
{
    (void)state;
    const uint64_t mib = GIB >> 10, last = 588 * mib;
    const uint64_t first = (tdm_case_long() ? 556 : 582) * mib;
    const uint64_t step = (last - first) / (tdm_case_long() ? 8 : tdm_case_sanitized() ? 1 : 3);
    struct tdm_ladder *ladder = tdm_ladder_new();
    double before = HUGE_VAL, seconds = 0;
    assert_non_null(ladder);
    for (uint64_t memory = first; memory <= last; memory += step) {
        seconds = plan_with_ladder(ladder, memory);
        assert_true(seconds <= before);
        before = seconds;
    }
    if (tdm_case_long())
        assert_true(fabs(plan_with_ladder(NULL, last) - seconds) <= 0);
    tdm_ladder_free(ladder);
}

/* ---- --set ---- */

static void test_set_keys_good(void **state)
{
    (void)state;
    static const char *const pairs[] = {"groups=4",
                                        "kept_from=12",
                                        "chunk=256K",
                                        "dtypes.weights=fp32",
                                        "optimizer.warmup_steps=10",
                                        "documents=600"};
    struct tdm_pins pins = {0};
    struct tdm_error err;
    struct tdm_schedule *schedule = new_schedule("byte-1m", 2048, GIB, GIB);
    must(tdm_set_keys_apply(pairs, 6, schedule, &pins, &err), &err);
    assert_int_equal(pins.group_count, 1);
    assert_int_equal(pins.groups[0], 4);
    assert_int_equal(pins.kept_from_unit, TDM_SPLIT_CHUNK);
    assert_int_equal(pins.kept_from, 12);
    assert_int_equal(pins.attention, TDM_ATTENTION_KEPT); /* follows from kept_from */
    assert_int_equal(pins.chunk_tokens, 262144);
    assert_int_equal(schedule->dtypes.master, TDM_DTYPE_NONE); /* follows from fp32 weights */
    assert_int_equal(schedule->optimizer.warmup_steps, 10);
    assert_int_equal(schedule->sequences[0].document_count, 4);
    assert_int_equal(schedule->sequences[0].document_starts[3], 1800);
    must(tdm_schedule_check(schedule, "set", &err), &err);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
}

static void test_set_keys_bad(void **state)
{
    (void)state;
    static const struct {
        const char *pairs[2], *message;
    } bad[] = {
        {{"", NULL}, "KEY=VALUE"},
        {{"=", NULL}, "KEY=VALUE"},
        {{"=4", NULL}, "KEY=VALUE"},
        {{"groups", NULL}, "KEY=VALUE"},
        {{"grops=4", NULL}, "unknown key \"grops\""},
        {{"Groups=4", NULL}, "unknown key"},
        {{" groups=4", NULL}, "unknown key"},
        {{"groups=", NULL}, "--set groups"},
        {{"groups=0", NULL}, "--set groups"},
        {{"groups=5", NULL}, "byte-1m has 4"},
        {{"groups=2,1", NULL}, "adds up to 3"},
        {{"groups=2,,2", NULL}, "--set groups"},
        {{"groups=2,2,", NULL}, "--set groups"},
        {{"groups=-2,6", NULL}, "--set groups"},
        {{"groups=two", NULL}, "--set groups"},
        {{"groups=99999999999999999999", NULL}, "--set groups"},
        {{"groups=2147483647,2147483647", NULL}, "adds up to"},
        {{"chunk=0", NULL}, "--set chunk"},
        {{"chunk=-1", NULL}, "--set chunk"},
        {{"chunk=4G", NULL}, "--set chunk"},
        {{"chunk=1.5", NULL}, "--set chunk"},
        {{"chunk=4K", "chunk=4K"}, "given twice"},
        {{"page=128K", NULL}, "64K tokens"},
        {{"optimizer.on=gpu", NULL}, "device or host"},
        {{"documents=0", NULL}, "--set documents"},
        {{"documents=long", NULL}, "--set documents"},
        {{"page=0", NULL}, "--set page"},
        {{"prefetch=17", NULL}, "0 to 16"},
        {{"head_tile=big", NULL}, "--set head_tile"},
        {{"head_tile_vocabulary=0", NULL}, "--set head_tile_vocabulary"},
        {{"head_tile_vocabulary=8G", NULL}, "--set head_tile_vocabulary"},
        {{"order=layer", NULL}, "layer-major or chunk-major"},
        {{"inputs=disk", NULL}, "device or host"},
        {{"attention=yes", NULL}, "none, held or kept"},
        {{"kept_from=101%", NULL}, "--set kept_from"},
        {{"kept_from=%", NULL}, "--set kept_from"},
        {{"kept_from=4K", NULL}, "--set kept_from"},
        {{"kept_from=123456789012345678901234567890", NULL}, "--set kept_from"},
        {{"kept_from=3", "attention=held"}, "need attention=kept"},
        {{"attention=none", "kept_place=host"}, "need attention=kept"},
        {{"held=all", "attention=none"}, "held needs attention=held"},
        {{"held_place=host", "order=chunk-major"}, "order=layer-major"},
        {{"dtypes.kv=int4", NULL}, "bf16 or fp32"},
        {{"dtypes.foo=bf16", NULL}, "unknown key"},
        {{"optimizer.beta1=", NULL}, "not a number"},
        {{"optimizer.beta1=0.9x", NULL}, "not a number"},
        {{"optimizer.beta1=nan", NULL}, "not a number"},
        {{"optimizer.learning_rate=1e999", NULL}, "not a number"},
        {{"optimizer.learning_rate=0x1", NULL}, "not a number"},
        {{"optimizer.warmup_steps=-1", NULL}, "--set optimizer.warmup_steps"},
        {{"optimizer.schedule=step", NULL}, "expected constant, linear or cosine"},
        {{"optimizer.decay_steps=1.5", NULL}, "--set optimizer.decay_steps"},
    };
    struct tdm_schedule *schedule = new_schedule("byte-1m", 2048, GIB, GIB);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct tdm_pins pins = {0};
        struct tdm_error err = {0};
        size_t count = bad[i].pairs[1] == NULL ? 1 : 2;
        enum tdm_status status = tdm_set_keys_apply(bad[i].pairs, count, schedule, &pins, &err);
        if (status != TDM_USAGE || strstr(err.message, bad[i].message) == NULL)
            fail_msg("%s %s: status %d, \"%s\"", bad[i].pairs[0], count == 2 ? bad[i].pairs[1] : "",
                     (int)status, err.message);
        tdm_pins_free(&pins);
    }
    tdm_schedule_free(schedule);
}

/* Too many chunks are refused before anything is allocated for them. */
static void test_too_many_chunks(void **state)
{
    (void)state;
    struct tdm_pins pins = {.chunk_tokens = 1};
    struct tdm_search found;
    struct tdm_error err;
    struct tdm_schedule *schedule = new_schedule("byte-1m", (uint64_t)1 << 28, GIB, GIB);
    assert_int_equal(tdm_candidates_search(schedule, &pins, &found, &err), TDM_USAGE);
    tdm_schedule_free(schedule);
}

/* ---- prediction ---- */

static void test_prediction_json(void **state)
{
    (void)state;
    const struct tdm_pins pins = {0};
    struct tdm_search found;
    struct tdm_error err;
    struct tdm_schedule *schedule = new_schedule("qwen2.5-0.5b", 65536, 20 * GIB, 10 * GIB);
    must(tdm_candidates_search(schedule, &pins, &found, &err), &err);
    json_t *root = tdm_prediction_json(schedule, &found.simulation);
    assert_non_null(root);
    json_int_t sum = 0;
    const char *name;
    json_t *bytes;
    json_object_foreach(json_object_get(root, "categories"), name, bytes)
    {
        sum += json_integer_value(bytes);
    }
    json_int_t peak = json_integer_value(json_object_get(root, "peak_bytes"));
    assert_int_equal(sum, peak); /* packing counts as the allocator's */
    double mfu = json_real_value(json_object_get(root, "mfu"));
    assert_true(mfu > 0.05 && mfu < 1);
    json_decref(root);
    tdm_schedule_free(schedule);
}

/* A memo returns what was noted for a key, or nothing: never the value of another key. */
static void test_memo(void **state)
{
    (void)state;
    enum { KEYS = 1000, PLACES_LOG2 = 8 };
    struct tdm_memo *memo = tdm_memo_new(sizeof(uint32_t), PLACES_LOG2);
    uint32_t value, known = 0;
    assert_non_null(memo);
    for (uint32_t i = 0; i < KEYS; i++) {
        struct tdm_memo_key key = tdm_memo_mix_pair(TDM_MEMO_NOTHING, 0, i);
        assert_false(tdm_memo_find(memo, key, &value));
        tdm_memo_note(memo, key, &i);
        assert_true(tdm_memo_find(memo, key, &value));
        assert_int_equal(value, i);
        assert_false(tdm_memo_find(NULL, key, &value));
        tdm_memo_note(NULL, key, &i);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        if (!tdm_memo_find(memo, tdm_memo_mix_pair(TDM_MEMO_NOTHING, 0, i), &value))
            continue;
        assert_int_equal(value, i);
        known++;
    }
    assert_in_range(known, (1 << PLACES_LOG2) * 3 / 4, 1 << PLACES_LOG2);
    tdm_memo_free(memo);
    tdm_memo_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memo),
        cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_likely_seconds),
        cmocka_unit_test(test_likely_seconds_of_waits),
        cmocka_unit_test(test_likely_seconds_of_gradients),
        cmocka_unit_test(test_tile_seconds),
        cmocka_unit_test(test_group_lists),
        cmocka_unit_test(test_fixed_groups),
        cmocka_unit_test(test_tighter_is_never_faster),
        cmocka_unit_test(test_pins_never_make_it_faster),
        cmocka_unit_test(test_tight_memory),
        cmocka_unit_test(test_homes_are_found),
        cmocka_unit_test(test_quick),
        cmocka_unit_test(test_pins_are_obeyed),
        cmocka_unit_test(test_rings_are_obeyed),
        cmocka_unit_test(test_rings_are_pinned_alone),
        cmocka_unit_test(test_ahead_is_true),
        cmocka_unit_test(test_stores_are_obeyed),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_shortages),
        cmocka_unit_test(test_shortage_of_host),
        cmocka_unit_test(test_hopeless_shortage),
        cmocka_unit_test(test_brief),
        cmocka_unit_test(test_shortages_of_ranks),
        cmocka_unit_test(test_contexts_of_ranks),
        cmocka_unit_test(test_team_memo),
        cmocka_unit_test(test_rings_tried),
        cmocka_unit_test(test_set_keys_good),
        cmocka_unit_test(test_set_keys_bad),
        cmocka_unit_test(test_update_place),
        cmocka_unit_test(test_state_passes),
        cmocka_unit_test(test_state_passes_pinned),
        cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_too_many_chunks),
        cmocka_unit_test(test_prediction_json),
    };
    return cmocka_run_group_tests_name("planner", tests, NULL, NULL);
}
