/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of presets, objectives, sweeps, nest descriptions, and comparisons of schedules. */
#include "commands/compare_schedules.h"
#include "commands/nest_text.h"
#include "planner/objective.h"
#include "planner/sweep.h"
#include "tests/support/cases.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static struct tdm_request new_request(const char *model, uint64_t context)
{
    return (struct tdm_request){.model = model,
                                .machine = "h200-published",
                                .context = context,
                                .sequences = 1,
                                .optimizer = TDM_OPTIMIZER_ADAMW};
}

/* The step time of the plan found; 0 if nothing fits. The caller frees *schedule. */
static double search(const struct tdm_request *request, struct tdm_schedule **schedule)
{
    struct tdm_pins pins;
    struct tdm_search found = {0};
    struct tdm_error err;
    must(tdm_request_make(request, schedule, &pins, &err), &err);
    enum tdm_status status = tdm_candidates_search(*schedule, &pins, &found, &err);
    tdm_pins_free(&pins);
    if (status == TDM_INFEASIBLE)
        return 0;
    must(status, &err);
    return found.simulation.step_seconds;
}

static struct tdm_schedule *by_hand(uint32_t first)
{
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    struct tdm_error err;
    struct tdm_request request = new_request("llama-3.2-1b", 16384);
    must(tdm_request_make(&request, &schedule, &pins, &err), &err);
    const uint32_t sizes[] = {first, 16 - first};
    must(tdm_schedule_set_groups(schedule, 2, sizes, &err), &err);
    schedule->chunk_tokens = 4096;
    tdm_pins_free(&pins);
    return schedule;
}

/* ---- presets ---- */

static const struct tdm_preset *preset_of(const char *name)
{
    const struct tdm_preset *preset;
    struct tdm_error err;
    must(tdm_preset_find(name, &preset, &err), &err);
    return preset;
}

static struct tdm_schedule *planned_by(const char *preset, uint64_t context)
{
    struct tdm_schedule *schedule;
    struct tdm_request request = new_request("llama-3.2-1b", context);
    request.preset = preset_of(preset);
    assert_true(search(&request, &schedule) > 0);
    return schedule;
}

static void test_presets_are_obeyed(void **state)
{
    (void)state;
    uint64_t context = tdm_case_long() ? 65536 : 16384;
    struct tdm_schedule *s = planned_by("oomb", context);
    assert_int_equal(s->order, TDM_CHUNK_MAJOR);
    assert_int_equal(s->group_count, 1);
    assert_int_equal(s->chunk_tokens, 4096);
    assert_int_equal(s->groups[0].kv_place, TDM_DEVICE);
    assert_int_equal(s->groups[0].kept, TDM_SET_INPUT);
    tdm_schedule_free(s);
    s = planned_by("oomb-offload", context);
    assert_int_equal(s->group_count, 1);
    assert_int_equal(s->groups[0].kv_place, TDM_HOST);
    assert_int_equal(s->groups[0].kv_gradients_place, TDM_HOST);
    tdm_schedule_free(s);
    s = planned_by("ml_dataflow", context);
    assert_int_equal(s->order, TDM_LAYER_MAJOR);
    assert_int_equal(s->group_count, s->model->layers);
    assert_int_equal(s->groups[0].kv, TDM_KV_KEEP);
    assert_int_equal(s->groups[0].kept, TDM_SET_ATTENTION_OUTPUT);
    tdm_schedule_free(s);
    s = planned_by("selective", 8192);
    assert_true(s->chunk_tokens >= 8192);
    assert_int_equal(s->groups[0].kept, TDM_SET_ALL);
    assert_int_equal(s->groups[0].kept_from_chunk, 0);
    tdm_schedule_free(s);
    s = planned_by("full-recompute", context);
    assert_true(s->chunk_tokens >= context);
    assert_int_equal(s->groups[0].kept, TDM_SET_INPUT);
    tdm_schedule_free(s);
    s = planned_by("split-50%", context);
    uint64_t chunks = (context + s->chunk_tokens - 1) / s->chunk_tokens;
    assert_int_equal(s->groups[0].kept, TDM_SET_ATTENTION_OUTPUT);
    assert_int_equal(s->groups[0].kept_from_chunk, (chunks + 1) / 2);
    tdm_schedule_free(s);
}

/* A user's setting overrides the preset's, and a setting that the preset lacks is added. */
static void test_presets_give_way(void **state)
{
    (void)state;
    struct tdm_schedule *schedule;
    struct tdm_request request = new_request("llama-3.2-1b", 65536);
    request.preset = preset_of("oomb");
    request.pairs[request.pair_count++] = "chunk=2K";
    request.pairs[request.pair_count++] = "page=64";
    assert_true(search(&request, &schedule) > 0);
    assert_int_equal(schedule->chunk_tokens, 2048);
    assert_int_equal(schedule->page_tokens, 64);
    assert_int_equal(schedule->group_count, 1);
    tdm_schedule_free(schedule);

    const struct tdm_preset *preset;
    struct tdm_error err;
    assert_int_equal(tdm_preset_find("megatron", &preset, &err), TDM_USAGE);
    assert_non_null(strstr(err.hint, "oomb, "));
}

/* A search without a preset has more choices than any preset, so no preset is faster. */
static void test_no_preset_is_faster(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint64_t context, memory_bytes, host_bytes;
    } cells[] = {
        {"qwen2.5-0.5b", 8192, 30 * GIB, 0},
        {"qwen2.5-7b", 32768, 139 * GIB, 110 * GIB},
        {"qwen2.5-0.5b", 65536, 14 * GIB, 60 * GIB},
        {"llama-3.2-1b", 131072, 40 * GIB, 60 * GIB},
    };
    size_t count = tdm_case_long()        ? sizeof(cells) / sizeof(cells[0])
                   : tdm_case_sanitized() ? 1
                                          : 2;
    unsigned compared = 0;
    for (size_t i = 0; i < count; i++) {
        struct tdm_schedule *schedule;
        struct tdm_request request = new_request(cells[i].model, cells[i].context);
        request.has_memory = request.has_host_memory = true;
        request.memory_bytes = cells[i].memory_bytes;
        request.host_memory_bytes = cells[i].host_bytes;
        double best = search(&request, &schedule);
        tdm_schedule_free(schedule);
        for (const struct tdm_preset *p = tdm_presets(); p->name != NULL; p++) {
            request.preset = p;
            double seconds = search(&request, &schedule);
            tdm_schedule_free(schedule);
            compared += seconds > 0;
            if (seconds > 0 && (best <= 0 || best > seconds * (1 + 1e-3)))
                fail_msg("%s, %llu tokens, %llu GiB: %s takes %.9g s, the planner's %.9g s",
                         cells[i].model, (unsigned long long)cells[i].context,
                         (unsigned long long)(cells[i].memory_bytes / GIB), p->name, seconds, best);
        }
    }
    assert_true(compared >= 3 * count);
}

/* ---- objectives ---- */

static const struct tdm_objective_options any_time = {0};

/* The case for the tests of longest context and least memory: a model that is quick to search, or
 * in the long form one of 1B parameters. */
struct target {
    const char *model;
    uint64_t context, memory_bytes, host_bytes;
    double seconds_of_context, seconds_of_memory; /* limits of the step time */
};

static struct target target(void)
{
    if (tdm_case_long())
        return (struct target){"llama-3.2-1b", 65536, 24 * GIB, 4 * GIB, 5, 3};
    return (struct target){"byte-1m", 16384, 580 * (GIB >> 10), 0, 0.01, 0.01};
}

/* A context that is clearly longer does not fit, or takes too long. */
static void test_longest_context(void **state)
{
    (void)state;
    const struct target of = target();
    for (int timed = 0; timed < 2; timed++) {
        struct tdm_objective_options options = {.most_seconds = timed ? of.seconds_of_context : 0};
        struct tdm_objective_found found;
        struct tdm_schedule *more;
        struct tdm_error err;
        struct tdm_request request = new_request(of.model, 0);
        request.has_memory = request.has_host_memory = true;
        request.memory_bytes = of.memory_bytes;
        request.host_memory_bytes = of.host_bytes;
        must(tdm_objective_context(&request, &options, &found, &err), &err);
        request.context = found.schedule->sequences[0].tokens;
        assert_int_equal(request.context % 1024, 0);
        assert_true(!timed || found.search.simulation.step_seconds <= options.most_seconds);
        assert_true(found.search.simulation.used_peak_bytes[TDM_DEVICE] <= of.memory_bytes);
        request.context = (request.context + request.context / 16) / 16384 * 16384 + 16384;
        double seconds = search(&request, &more);
        assert_true((timed && seconds > options.most_seconds) || seconds <= 0);
        tdm_schedule_free(more);
        tdm_schedule_free(found.schedule);
        tdm_pins_free(&found.pins);
    }
}

/* With the least memory a search finds the same; with 1/16 less nothing fits, or it is too slow. */
static void test_least_memory(void **state)
{
    (void)state;
    const struct target of = target();
    for (int timed = 0; timed < 2; timed++) {
        struct tdm_objective_options options = {.most_seconds = timed ? of.seconds_of_memory : 0};
        struct tdm_objective_found found;
        struct tdm_schedule *again;
        struct tdm_error err;
        struct tdm_request request = new_request(of.model, of.context);
        request.has_host_memory = true;
        request.host_memory_bytes = of.host_bytes;
        must(tdm_objective_memory(&request, &options, &found, &err), &err);
        request.has_memory = true;
        request.memory_bytes = found.schedule->memory_bytes;
        assert_true(found.search.simulation.used_peak_bytes[TDM_DEVICE] <= request.memory_bytes);
        double seconds = search(&request, &again), due = found.search.simulation.step_seconds;
        assert_true(fabs(seconds - due) <= 0);
        tdm_schedule_free(again);
        request.memory_bytes -= request.memory_bytes / 16;
        seconds = search(&request, &again);
        assert_true((timed && seconds > options.most_seconds) || seconds <= 0);
        tdm_schedule_free(again);
        tdm_schedule_free(found.schedule);
        tdm_pins_free(&found.pins);
    }
}

static void test_objectives_out_of_reach(void **state)
{
    (void)state;
    struct tdm_objective_options soon = {.most_seconds = 1e-6};
    struct tdm_objective_found found;
    struct tdm_error err;
    const struct target of = target();
    struct tdm_request request = new_request(of.model, of.context);
    assert_int_equal(tdm_objective_memory(&request, &soon, &found, &err), TDM_INFEASIBLE);
    assert_null(found.schedule);
    /* The search runs at the longest context that fits. These limits make it short. */
    if (!tdm_case_long()) {
        request.has_memory = request.has_host_memory = true;
        request.memory_bytes = of.memory_bytes;
        request.host_memory_bytes = of.host_bytes;
    }
    assert_int_equal(tdm_objective_context(&request, &soon, &found, &err), TDM_INFEASIBLE);
    assert_null(found.schedule);
    request.has_memory = true;
    request.memory_bytes = tdm_case_long() ? GIB : 529 * (GIB >> 10);
    assert_int_equal(tdm_objective_context(&request, &any_time, &found, &err), TDM_INFEASIBLE);
    assert_non_null(found.schedule); /* it is kept to explain why */
    tdm_schedule_free(found.schedule);
    tdm_pins_free(&found.pins);
}

/* ---- sweeps ---- */

static void test_sweep_values(void **state)
{
    (void)state;
    struct tdm_sweep sweep;
    struct tdm_error err;
    must(tdm_sweep_parse("context=8K..100K", &sweep, &err), &err);
    const uint64_t doubled[] = {8192, 16384, 32768, 65536, 102400};
    assert_int_equal(sweep.axis, TDM_SWEEP_CONTEXT);
    assert_int_equal(sweep.count, 5);
    assert_memory_equal(sweep.values, doubled, sizeof(doubled));
    must(tdm_sweep_parse("context=1K..1M:3", &sweep, &err), &err);
    const uint64_t spread[] = {1024, 32768, 1048576};
    assert_int_equal(sweep.count, 3);
    assert_memory_equal(sweep.values, spread, sizeof(spread));
    must(tdm_sweep_parse("memory=8G..20G", &sweep, &err), &err);
    assert_int_equal(sweep.axis, TDM_SWEEP_MEMORY);
    assert_int_equal(sweep.count, 13);
    assert_int_equal(sweep.values[1], 9 * GIB);
    must(tdm_sweep_parse("host-memory=3G,0,1G,3G", &sweep, &err), &err);
    const uint64_t sorted[] = {0, GIB, 3 * GIB};
    assert_int_equal(sweep.axis, TDM_SWEEP_HOST_MEMORY);
    assert_int_equal(sweep.count, 3);
    assert_memory_equal(sweep.values, sorted, sizeof(sorted));

    static const char *const bad[] = {"",
                                      "context",
                                      "context=",
                                      "=1K..2K",
                                      "contexts=1K..2K",
                                      "context=1K..",
                                      "context=..2K",
                                      "context=2K..2K",
                                      "context=0..2K",
                                      "context=1K..2K:",
                                      "context=1K..2K:1",
                                      "context=1K..2K:257",
                                      "context=1K,,2K",
                                      "context=1K..300M",
                                      "memory=-1",
                                      "memory=8G..20GB"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (tdm_sweep_parse(bad[i], &sweep, &err) != TDM_USAGE)
            fail_msg("%s is not refused", bad[i]);
}

static volatile sig_atomic_t enough;

static void stop_after_two(void *self, size_t done, size_t count,
                           const struct tdm_sweep_point *point)
{
    (void)self;
    (void)count;
    (void)point;
    enough = done == 2;
}

/* More memory never makes the step slower. A point that does not fit reports the memory that it
 * needs. A sweep that is stopped keeps the points that it has. */
static void test_sweep(void **state)
{
    (void)state;
    struct tdm_sweep sweep;
    struct tdm_sweep_result result;
    struct tdm_error err;
    const struct tdm_sweep_options all = {0};
    struct tdm_request request = new_request("qwen2.5-0.5b", 16384);
    request.has_host_memory = true;
    request.host_memory_bytes = 2 * GIB;
    must(tdm_sweep_parse("memory=2G,11G,14G,17G,1000G", &sweep, &err), &err);
    must(tdm_sweep_run(&request, &sweep, &all, &result, &err), &err);
    assert_int_equal(result.count, 5);
    assert_null(result.points[0].schedule);
    assert_true(result.points[0].needed_device_bytes > 2 * GIB);
    assert_int_equal(
        /* All of the machine's memory. */
        result.points[4].value,
        result.points[4].schedule->machine->topology.places[TDM_DEVICE].capacity_bytes);
    for (size_t i = 2; i < result.count; i++)
        assert_true(result.points[i].search.simulation.step_seconds <=
                    result.points[i - 1].search.simulation.step_seconds);
    tdm_sweep_result_free(&result);

    const struct tdm_sweep_options stopped = {.stop = &enough, .planned = stop_after_two};
    assert_int_equal(tdm_sweep_run(&request, &sweep, &stopped, &result, &err), TDM_INTERRUPTED);
    assert_int_equal(result.count, 2);
    tdm_sweep_result_free(&result);
}

/* On tight memory searches find a faster schedule with less memory now and then. The point with
 * more takes it over, whole: it takes as long, and fits. */
static void test_more_memory_is_never_slower(void **state)
{
    (void)state;
    struct tdm_sweep sweep;
    struct tdm_sweep_result result;
    struct tdm_error err;
    const struct tdm_sweep_options all = {0};
    struct tdm_request request = new_request("qwen2.5-0.5b", 32768);
    request.has_host_memory = true;
    request.host_memory_bytes = 16 * GIB;
    must(tdm_sweep_parse("memory=5G..9G:9", &sweep, &err), &err);
    must(tdm_sweep_run(&request, &sweep, &all, &result, &err), &err);
    for (size_t i = 0; i < result.count; i++) {
        const struct tdm_sweep_point *point = &result.points[i];
        const double step = point->search.simulation.step_seconds;
        struct tdm_program *program;
        struct tdm_simulation simulation;
        assert_non_null(point->schedule);
        assert_true(i == 0 || step <= point[-1].search.simulation.step_seconds);
        must(tdm_program_lower(point->schedule, &program, &err), &err);
        must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
        assert_float_equal(simulation.step_seconds, step, 1e-9 * step);
        assert_true(simulation.used_peak_bytes[TDM_DEVICE] <= point->value);
        tdm_program_free(program);
    }
    tdm_sweep_result_free(&result);
}

/* ---- nest descriptions ---- */

static void test_nest_texts(void **state)
{
    (void)state;
    char text[TDM_NEST_TEXT];
    struct tdm_schedule *s = by_hand(8);
    assert_string_equal(tdm_nest_groups(s, text), "2 x 8");
    assert_string_equal(tdm_nest_kept(s, text), "-");
    assert_string_equal(tdm_nest_held(s, text), "inputs device");
    assert_string_equal(tdm_nest_on_host(s, text), "-");
    assert_string_equal(tdm_nest_name(s, text), "layer-major, 2 groups of 8, attention recomputed");
    s->groups[0].held = s->groups[1].held = TDM_SET_ATTENTION_OUTPUT;
    assert_string_equal(tdm_nest_name(s, text), "layer-major, 2 groups of 8, attention held");
    s->groups[0].held_place = TDM_HOST;
    assert_string_equal(
        tdm_nest_held(s, text),
        "inputs 50% device, inputs 50% host, attention 50% device, attention 50% host");
    s->groups[0].held_device_chunks = 1; /* of 4 */
    assert_string_equal(
        tdm_nest_held(s, text),
        "inputs 62% device, inputs 38% host, attention 62% device, attention 38% host");
    s->groups[0].held_device_chunks = 0;
    s->groups[0].kept = TDM_SET_ALL;
    s->groups[1].kept = TDM_SET_ATTENTION_OUTPUT;
    s->groups[1].kept_from_chunk = 1;
    s->groups[1].kept_place = TDM_HOST;
    assert_string_equal(tdm_nest_kept(s, text), "all 50% device, attention 38% host");
    assert_string_equal(tdm_nest_name(s, text), "layer-major, 2 groups of 8, all kept in part");
    s->groups[1].input_place = TDM_HOST;
    tdm_schedule_set_home(s, TDM_STATE_MOMENTS, 4, TDM_DEVICE);
    tdm_schedule_set_home(s, TDM_STATE_WEIGHTS, 0, TDM_HOST);
    s->homes[TDM_STATE_MASTER].head = TDM_HOST;
    assert_string_equal(tdm_nest_on_host(s, text),
                        "inputs, weights, master of head, moments 12/16");
    tdm_schedule_free(s);
}

/* ---- comparisons ---- */

static const struct tdm_knob_difference *find_knob(const struct tdm_comparison *c, const char *name)
{
    for (size_t i = 0; i < c->knob_count; i++)
        if (strcmp(c->knobs[i].name, name) == 0)
            return &c->knobs[i];
    fail_msg("%s does not differ", name);
    return NULL;
}

static const struct tdm_cost_row *find_cost(const struct tdm_comparison *c, const char *section,
                                            const char *name)
{
    for (size_t i = 0; i < c->cost_count; i++)
        if (strcmp(c->costs[i].section, section) == 0 && strcmp(c->costs[i].name, name) == 0)
            return &c->costs[i];
    fail_msg("%s has no %s", section, name);
    return NULL;
}

static void test_compare(void **state)
{
    (void)state;
    struct tdm_schedule *a = by_hand(8), *b = by_hand(10);
    const struct tdm_schedule *const same[2] = {a, a}, *const both[2] = {a, b};
    struct tdm_comparison c;
    struct tdm_error err;
    must(tdm_compare_schedules(same, &c, &err), &err);
    assert_int_equal(c.knob_count, 0);
    for (size_t i = 0; i < c.cost_count; i++)
        assert_true(fabs(c.costs[i].values[0] - c.costs[i].values[1]) <= 0);
    tdm_comparison_free(&c);

    b->groups[0].input_place = TDM_HOST;
    b->groups[1].kept = TDM_SET_ATTENTION_OUTPUT;
    b->groups[1].kept_from_chunk = 2;
    b->head_tile_tokens = 512;
    must(tdm_compare_schedules(both, &c, &err), &err);
    assert_int_equal(c.knob_count, 5);
    const struct tdm_knob_difference *knob = find_knob(&c, "groups.layers");
    assert_string_equal(knob->values[0], "8 x2");
    assert_string_equal(knob->values[1], "10, 6");
    knob = find_knob(&c, "groups.kept");
    assert_string_equal(knob->values[0], "input");
    assert_string_equal(knob->values[1], "input, attention_output");
    knob = find_knob(&c, "groups.input_place");
    assert_string_equal(knob->values[1], "host, device");
    find_knob(&c, "groups.kept_from_chunk");
    find_knob(&c, "head_tile_tokens");

    /* the parts add up to the total, and what is kept is not recomputed */
    const struct tdm_cost_row *total = find_cost(&c, "device peak", "device peak");
    double sums[2] = {0, 0};
    for (size_t i = 0; i < c.cost_count; i++)
        for (int side = 0; side < 2; side++)
            if (strcmp(c.costs[i].section, "device peak") == 0 && &c.costs[i] != total)
                sums[side] += c.costs[i].values[side];
    for (int side = 0; side < 2; side++)
        assert_true(fabs(sums[side] - total->values[side]) < 1);
    const struct tdm_cost_row *again = find_cost(&c, "FLOPs", "recomputed attention");
    assert_true(again->values[1] < again->values[0] && again->values[1] > 0);
    tdm_comparison_free(&c);
    tdm_schedule_free(a);
    tdm_schedule_free(b);
}

/* A machine with another place: each link has its own bytes, also links of one lane. */
#define LINKS                                                                       \
    "{\"places\": [{\"name\": \"second\", \"bytes\": 1099511627776}],"              \
    " \"links\": [{\"from\": \"second\", \"to\": \"device\", \"lane\": \"second\"," \
    "              \"bytes_per_second\": 3e11},"                                    \
    "             {\"from\": \"device\", \"to\": \"second\", \"lane\": \"second\"," \
    "              \"bytes_per_second\": 3e11}]}"

static void test_compare_places(void **state)
{
    (void)state;
    struct tdm_schedule *a = by_hand(8), *b = by_hand(8);
    const struct tdm_schedule *const both[2] = {a, b};
    struct tdm_machine *machine;
    struct tdm_comparison c;
    struct tdm_error err;
    enum tdm_place second;
    json_t *tables, *description = json_deep_copy(b->machine->description);
    must(tdm_json_parse("links", LINKS, strlen(LINKS), &tables, &err), &err);
    assert_int_equal(json_object_update(description, tables), 0);
    must(tdm_machine_from_json("links", description, &machine, &err), &err);
    json_decref(tables);
    json_decref(description);
    tdm_machine_free(b->machine);
    b->machine = machine;
    assert_true(tdm_place_parse(&machine->topology, "second", &second));
    for (uint32_t g = 0; g < a->group_count; g++) {
        a->groups[g].input_place = TDM_HOST;
        b->groups[g].input_place = second;
    }

    /* the same bytes, over other links and in another place */
    must(tdm_compare_schedules(both, &c, &err), &err);
    const struct tdm_cost_row *total = find_cost(&c, "copied", "copied");
    assert_true(total->values[0] > 0 && fabs(total->values[0] - total->values[1]) < 1);
    static const char *const directions[2][2] = {{"host to device", "second to device"},
                                                 {"device to host", "device to second"}};
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        const struct tdm_cost_row *host = find_cost(&c, "copied", directions[i][0]);
        const struct tdm_cost_row *other = find_cost(&c, "copied", directions[i][1]);
        assert_true(fabs(other->values[0]) <= 0 && other->values[1] > 0);
        assert_true(fabs(host->values[0] - host->values[1] - other->values[1]) < 1);
        sum += host->values[1] + other->values[1];
    }
    assert_true(fabs(sum - total->values[1]) < 1);
    const struct tdm_cost_row *peak = find_cost(&c, "second peak", "second peak");
    assert_true(fabs(peak->values[0]) <= 0 && peak->values[1] > 0);
    tdm_comparison_free(&c);
    tdm_schedule_free(a);
    tdm_schedule_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_are_obeyed),
        cmocka_unit_test(test_presets_give_way),
        cmocka_unit_test(test_no_preset_is_faster),
        cmocka_unit_test(test_longest_context),
        cmocka_unit_test(test_least_memory),
        cmocka_unit_test(test_objectives_out_of_reach),
        cmocka_unit_test(test_sweep_values),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_more_memory_is_never_slower),
        cmocka_unit_test(test_nest_texts),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_compare_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
