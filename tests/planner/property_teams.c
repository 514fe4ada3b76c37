/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: what a plan says is what its file gives. A random model is planned for one to four
 * ranks, with limits from tight to ample and random choices pinned. The schedule is written as
 * JSON, read back and lowered: every place takes what the plan said and at most its limit, and the
 * step takes the simulated time, to the bit.
 */
#include "base/size.h"
#include "planner/objective.h"
#include "schedule/program.h"
#include "simulator/simulate.h"
#include "tests/support/random_schedule.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BASE_SEED = 56000, MOST_RANKS = 4 };

/* A request, and what its pointers point to. */
struct setting {
    struct tdm_request request;
    char directory[512], config[600];
    enum tdm_effort effort;
};

/* What the cases had. */
struct counts {
    uint64_t plans, refused, ranks[MOST_RANKS + 1], nodes, pinned, tight;
    uint64_t sliced, host, exchanges[TDM_EXCHANGES];
};

/* A model of Llama's kind whose weights and activations are both a good part of the memory. */
static void write_model(struct tdm_dice *dice, struct setting *s)
{
    const char *given = getenv("TDM_SCRATCH");
    snprintf(s->directory, sizeof(s->directory), "%s/teams.XXXXXX", given == NULL ? "/tmp" : given);
    assert_non_null(mkdtemp(s->directory));
    snprintf(s->config, sizeof(s->config), "%s/config.json", s->directory);
    const uint64_t head_dim = UINT64_C(64) << tdm_dice_roll(dice, 0, 1);
    const uint64_t kv_heads = UINT64_C(1) << tdm_dice_roll(dice, 0, 3);
    const uint64_t heads = kv_heads * tdm_dice_roll(dice, 1, 32 / kv_heads);
    json_t *root =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:s}", "model_type",
                  "llama", "hidden_size", (json_int_t)(heads * head_dim), "intermediate_size",
                  (json_int_t)(heads * head_dim * tdm_dice_roll(dice, 2, 4)), "num_hidden_layers",
                  (json_int_t)tdm_dice_roll(dice, 2, 5), "num_attention_heads", (json_int_t)heads,
                  "num_key_value_heads", (json_int_t)kv_heads, "head_dim", (json_int_t)head_dim,
                  "vocab_size", (json_int_t)(UINT64_C(256) << tdm_dice_roll(dice, 0, 8)),
                  "tie_word_embeddings", (int)tdm_dice_chance(dice, 30), "rms_norm_eps", 1e-5,
                  "rope_theta", 1e4, "hidden_act", "silu");
    assert_non_null(root);
    assert_int_equal(json_dump_file(root, s->config, 0), 0);
    json_decref(root);
}

static void pin(struct setting *s, const char *pair)
{
    s->request.pairs[s->request.pair_count++] = pair;
}

static void draw_pins(struct tdm_dice *dice, struct setting *s)
{
    static const char *const exchanges[] = {"exchange=gather", "exchange=ring", "exchange=queries"};
    static const char *const some[] = {
        "weights.sliced=yes", "weights.sliced=no", "rings.gradients=1", "rings.gradients=2",
        "deal=stripes",       "kv=keep",           "attention=none",    "prefetch=1",
        "groups=1",           "kept=all"};
    if (tdm_dice_chance(dice, 60))
        return;
    if (tdm_dice_chance(dice, 50))
        pin(s, exchanges[tdm_dice_roll(dice, 0, 2)]);
    if (tdm_dice_chance(dice, 70))
        pin(s, some[tdm_dice_roll(dice, 0, sizeof some / sizeof some[0] - 1)]);
    if (tdm_dice_chance(dice, 30))
        pin(s, "chunk=256");
}

static void draw_setting(uint64_t seed, struct tdm_dice *dice, struct setting *s)
{
    static const enum tdm_optimizer optimizers[] = {TDM_OPTIMIZER_ADAMW,
                                                    TDM_OPTIMIZER_ADAMW_BF16_MOMENTS,
                                                    TDM_OPTIMIZER_SGD, TDM_OPTIMIZER_NONE};
    *s = (struct setting){0};
    tdm_dice_seed(dice, seed);
    write_model(dice, s);
    s->request = (struct tdm_request){.model = s->directory,
                                      .machine = tdm_dice_chance(dice, 70) ? "h200" : "rtx-4090",
                                      .optimizer = optimizers[tdm_dice_roll(dice, 0, 3)],
                                      .context = UINT64_C(1024) << tdm_dice_roll(dice, 0, 2),
                                      .sequences = tdm_dice_chance(dice, 80) ? 1 : 2,
                                      .ranks = (uint32_t)tdm_dice_roll(dice, 1, MOST_RANKS)};
    if (s->request.ranks == 4 && tdm_dice_chance(dice, 40))
        s->request.ranks_per_node = 2;
    if (s->request.optimizer != TDM_OPTIMIZER_NONE && tdm_dice_chance(dice, 20))
        s->request.clip = TDM_CLIP_LAYER;
    s->effort = tdm_dice_chance(dice, 40)   ? TDM_EFFORT_FULL
                : tdm_dice_chance(dice, 50) ? TDM_EFFORT_QUICK
                                            : TDM_EFFORT_FIRST;
    if (s->request.ranks > 1)
        draw_pins(dice, s);
}

/* Limits between a small part of what a plan with ample memory takes, and more than that. */
static void draw_limits(struct tdm_dice *dice, struct setting *s, uint64_t seed)
{
    struct tdm_objective_found ample;
    struct tdm_error err;
    s->request.has_host_memory = true;
    s->request.host_memory_bytes = UINT64_C(1) << 36;
    enum tdm_status status = tdm_objective_time(&s->request, TDM_EFFORT_FIRST, &ample, &err);
    if (status != TDM_OK)
        fail_msg("TDM_SEED=%" PRIu64 ": with ample memory: %s", seed, err.message);
    const struct tdm_topology *topology = &ample.schedule->machine->topology;
    const uint64_t runtime = topology->places[TDM_DEVICE].runtime_bytes;
    const uint64_t host_runtime = topology->places[topology->far].runtime_bytes;
    const uint64_t arena = ample.search.simulation.used_peak_bytes[TDM_DEVICE] - runtime;
    s->request.has_memory = true;
    s->request.memory_bytes = runtime + arena / 100 * tdm_dice_roll(dice, 15, 115);
    if (tdm_dice_chance(dice, 60))
        s->request.host_memory_bytes = host_runtime + arena / 100 * tdm_dice_roll(dice, 0, 200);
    tdm_pins_free(&ample.pins);
    tdm_schedule_free(ample.schedule);
}

/* Writes a schedule as JSON and reads it back. */
static struct tdm_schedule *read_back(const struct tdm_schedule *schedule)
{
    struct tdm_schedule *again;
    struct tdm_error err;
    json_t *root;
    if (tdm_schedule_to_json(schedule, NULL, &root, &err) != TDM_OK ||
        tdm_schedule_from_json("plan", root, &again, &err) != TDM_OK)
        fail_msg("%s", err.message);
    json_decref(root);
    return again;
}

/* Compares a plan with what its file gives. */
static void check_plan(uint64_t seed, const struct setting *s,
                       const struct tdm_objective_found *found)
{
    const struct tdm_simulation *said = &found->search.simulation;
    struct tdm_schedule *schedule = read_back(found->schedule);
    const struct tdm_topology *topology = &schedule->machine->topology;
    struct tdm_program *program;
    struct tdm_simulation simulation;
    struct tdm_error err;
    char text[1024];
    tdm_schedule_describe(schedule, text, sizeof(text));
    if (tdm_program_lower(schedule, &program, &err) != TDM_OK ||
        tdm_simulate(program, NULL, NULL, &simulation, &err) != TDM_OK)
        fail_msg("TDM_SEED=%" PRIu64 ": %s: %s", seed, err.message, text);
    for (uint32_t place = 0; place < topology->place_count; place++) {
        const uint64_t used =
            topology->places[place].runtime_bytes +
            program->arena_bytes[place] * tdm_schedule_sharers(schedule, (enum tdm_place)place);
        const uint64_t limit = tdm_schedule_limit(schedule, (enum tdm_place)place);
        if (used != said->used_peak_bytes[place] || used > limit ||
            simulation.used_peak_bytes[place] != used)
            fail_msg("TDM_SEED=%" PRIu64 ": of the %s %" PRIu64 " bytes are used, the plan says "
                     "%" PRIu64 ", allowed are %" PRIu64 ": %s",
                     seed, tdm_place_name(topology, (enum tdm_place)place), used,
                     said->used_peak_bytes[place], limit, text);
    }
    assert_int_equal(schedule->memory_bytes, s->request.memory_bytes);
    if (simulation.op_count != said->op_count || simulation.step_seconds != said->step_seconds)
        fail_msg("TDM_SEED=%" PRIu64 ": %" PRIu64 " ops take %.17g s, the plan says %" PRIu64
                 " and %.17g s: %s",
                 seed, simulation.op_count, simulation.step_seconds, said->op_count,
                 said->step_seconds, text);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

static void count(struct counts *counts, const struct setting *s,
                  const struct tdm_objective_found *found)
{
    const struct tdm_schedule *schedule = found->schedule;
    const struct tdm_simulation *said = &found->search.simulation;
    counts->plans++;
    counts->ranks[schedule->ranks]++;
    counts->nodes += schedule->ranks_per_node != 0;
    counts->pinned += s->request.pair_count > 0;
    counts->tight +=
        said->used_peak_bytes[TDM_DEVICE] > schedule->memory_bytes - schedule->memory_bytes / 100;
    counts->host += said->arena_bytes[TDM_HOST] > 0;
    if (schedule->ranks > 1) {
        counts->sliced += schedule->sliced_weights;
        counts->exchanges[schedule->exchange]++;
    }
}

/* Plans a setting, and compares what fits. */
static void plan(uint64_t seed, const struct setting *s, struct counts *counts)
{
    struct tdm_objective_found found;
    struct tdm_error err;
    enum tdm_status status = tdm_objective_time(&s->request, s->effort, &found, &err);
    if (status == TDM_INFEASIBLE)
        counts->refused++;
    else if (status != TDM_OK)
        fail_msg("TDM_SEED=%" PRIu64 ": %s", seed, err.message);
    else {
        check_plan(seed, s, &found);
        count(counts, s, &found);
    }
    tdm_pins_free(&found.pins);
    tdm_schedule_free(found.schedule);
}

/* Here weights must be in slices, and another exchange is tried that is not faster. It once left
 * whole weights, which do not fit. */
static void an_exchange_that_is_not_taken_changes_nothing(void **state)
{
    (void)state;
    struct counts counts = {0};
    const struct setting s = {.request = {.model = "qwen2.5-7b",
                                          .machine = "h200",
                                          .optimizer = TDM_OPTIMIZER_ADAMW_BF16_MOMENTS,
                                          .context = 32768,
                                          .sequences = 1,
                                          .ranks = 2,
                                          .has_memory = true,
                                          .memory_bytes = UINT64_C(70) << 30,
                                          .has_host_memory = true,
                                          .host_memory_bytes = UINT64_C(32) << 30}};
    plan(0, &s, &counts);
    assert_true(counts.plans == 1 && counts.sliced == 1);
}

static void run_case(uint64_t seed, struct counts *counts)
{
    struct setting s;
    struct tdm_dice dice;
    draw_setting(seed, &dice, &s);
    draw_limits(&dice, &s, seed);
    plan(seed, &s, counts);
    unlink(s.config);
    rmdir(s.directory);
}

static void files_give_what_plans_say(void **state)
{
    (void)state;
    const uint64_t cases = tdm_case_count(20, 110);
    struct counts counts = {0};
    for (uint64_t n = 0; n < cases; n++)
        run_case(tdm_case_seed(BASE_SEED, n), &counts);
    const uint64_t teams = counts.plans - counts.ranks[1];
    print_message("%" PRIu64 " plans compared with their files, %" PRIu64 " settings did not fit; "
                  "of 1 to 4 ranks %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "\n",
                  counts.plans, counts.refused, counts.ranks[1], counts.ranks[2], counts.ranks[3],
                  counts.ranks[4]);
    for (int exchange = 0; exchange < TDM_EXCHANGES; exchange++)
        print_message("%" PRIu64 " with the exchange %s\n", counts.exchanges[exchange],
                      tdm_exchange_kind_name((enum tdm_exchange_kind)exchange));
    assert_true(tdm_case_enough("settings fit", counts.plans, cases, 0.15));
    assert_true(tdm_case_enough("plans have several ranks", teams, counts.plans, 0.25));
    assert_true(tdm_case_enough("of them have slices of weights", counts.sliced, teams, 0.1));
    assert_true(tdm_case_enough("plans use host memory", counts.host, counts.plans, 0.2));
    assert_true(
        tdm_case_enough("plans are within 1% of their limit", counts.tight, counts.plans, 0.1));
    assert_true(tdm_case_enough("plans have pins", counts.pinned, counts.plans, 0.1));
    assert_true(tdm_case_enough("plans have nodes", counts.nodes, counts.plans, 0.02));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exchange_that_is_not_taken_changes_nothing),
        cmocka_unit_test(files_give_what_plans_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
