/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of plots. Thinning loses no peak and no time, schedules and traces are recognized and read,
 * and the driver leaves a complete picture or a message, and nothing else. */
#include "models/model.h"
#include "simulator/simulate.h"
#include "plots/plot.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "tests/support/pictures.h"
#include "traces/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[512]; /* an empty folder for this test */
static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static const char *in_folder(const char *name, char out[768])
{
    snprintf(out, 768, "%s/%s", folder, name);
    return out;
}

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static int count_entries(const char *path)
{
    int entries = 0;
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while (readdir(directory) != NULL)
        entries++;
    closedir(directory);
    return entries - 2;
}

static void remove_tree(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        unlink(path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char inner[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name);
        remove_tree(inner);
    }
    closedir(directory);
    rmdir(path);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static size_t read_begin(const char *path, unsigned char *begin, size_t bytes)
{
    FILE *file = fopen(path, "rbe");
    assert_non_null(file);
    size_t got = fread(begin, 1, bytes, file);
    fclose(file);
    return got;
}

/* Timelines. */

static void add_value(struct tdm_timeline *timeline, uint64_t op_number, double seconds, int place,
                      int category, uint64_t bytes)
{
    struct tdm_timeline_change change = {.op_number = op_number,
                                         .bytes = bytes,
                                         .seconds = seconds,
                                         .place = (enum tdm_place)place,
                                         .category = (enum tdm_category)category};
    assert_int_equal(tdm_timeline_add_change(&timeline->values, &change, NULL), TDM_OK);
}

static void add_allocation(struct tdm_timeline *timeline, uint64_t op_number, double seconds,
                           int place, uint64_t bytes)
{
    struct tdm_timeline_change change = {
        .op_number = op_number, .bytes = bytes, .seconds = seconds, .place = (enum tdm_place)place};
    assert_int_equal(tdm_timeline_add_change(&timeline->allocations, &change, NULL), TDM_OK);
}

static void add_op(struct tdm_timeline *timeline, int kind, int phase, int lane, double start,
                   double end)
{
    struct tdm_timeline_op op = {.number = timeline->op_count,
                                 .start = start,
                                 .end = end,
                                 .kind = (enum tdm_op_kind)kind,
                                 .phase = (enum tdm_phase)phase,
                                 .lane = (enum tdm_lane)lane,
                                 .layer = TDM_NONE,
                                 .chunk = TDM_NONE};
    assert_int_equal(tdm_timeline_add_op(timeline, &op, NULL), TDM_OK);
}

static uint64_t total(const uint64_t categories[TDM_CATEGORIES])
{
    uint64_t bytes = 0;
    for (int category = 0; category < TDM_CATEGORIES; category++)
        bytes += categories[category];
    return bytes;
}

static void assert_seconds(const struct tdm_timeline_change *change, double seconds)
{
    if (fabs(change->seconds - seconds) > 1e-12)
        fail_msg("op %llu at %g, not %g", (unsigned long long)change->op_number, change->seconds,
                 seconds);
}

/* A copy that runs ahead counts when the compute lane gets there. A copy that lags does not hold up
 * the compute lane. */
static void test_clock(void **state)
{
    (void)state;
    static const struct {
        enum tdm_lane lane;
        double start, seconds; /* seconds: the time that the op is given */
    } ops[] = {
        {TDM_LANE_H2D, 0.5, 0},    /* the first op: the beginning of the step */
        {TDM_LANE_COMPUTE, 1, 1},  /* as it starts */
        {TDM_LANE_H2D, 0.7, 1},    /* ahead: after the one before it */
        {TDM_LANE_H2D, 1.5, 1.5},  /* beside the one before it */
        {TDM_LANE_D2H, 9, 2},      /* late: with the next one of the compute lane */
        {TDM_LANE_COMPUTE, 2, 2},  /* as it starts */
        {TDM_LANE_COMPUTE, 4, 4},  /* as it starts */
        {TDM_LANE_D2H, 6, 6},      /* after the compute lane's last one */
        {TDM_LANE_HOST, 5, 6},     /* after the one before it */
        {TDM_LANE_HOST, 7.5, 7.5}, /* as it starts */
    };
    enum { OPS = sizeof(ops) / sizeof(ops[0]) };
    struct tdm_timeline timeline = {0};
    for (int i = 0; i < OPS; i++) {
        add_op(&timeline, TDM_OP_COPY, TDM_FORWARD, ops[i].lane, ops[i].start, ops[i].start + 0.1);
        for (int category = 0; category < 2; category++)
            add_value(&timeline, (uint64_t)i, -1, TDM_DEVICE, category, 1);
        if (i % 3 == 0)
            add_allocation(&timeline, (uint64_t)i, -1, TDM_HOST, 1);
    }
    tdm_timeline_clock(&timeline);
    for (size_t i = 0; i < timeline.values.count; i++)
        assert_seconds(&timeline.values.change[i], ops[i / 2].seconds);
    for (size_t i = 0; i < timeline.allocations.count; i++)
        assert_seconds(&timeline.allocations.change[i], ops[3 * i].seconds);
    assert_true(tdm_timeline_op(&timeline, 4) == &timeline.ops[4]);
    assert_null(tdm_timeline_op(&timeline, OPS));
    timeline.ops[4].number = 3; /* a step that was cut short lacks some ops */
    timeline.ops[3].number = 2;
    timeline.ops[2].number = 1;
    timeline.ops[1].number = 0;
    assert_null(tdm_timeline_op(&timeline, 4));
    tdm_timeline_free(&timeline);
}

/* Checks by brute force that every column shows the op in it at which values take most of the
 * place, and the most that is allocated. */
static void test_thin_memory(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        enum { MOMENTS = 600, COLUMNS = 37 };
        struct tdm_timeline timeline = {0};
        struct tdm_column *columns;
        struct tdm_timeline_peak peak;
        uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES] = {{0}};
        uint64_t most[TDM_MAX_PLACES][COLUMNS] = {{0}};
        uint64_t allocated = 0, most_allocated[COLUMNS] = {0};
        double end = 10;
        double seconds = 0;
        int column = 0;
        for (int moment = 0; moment < MOMENTS; moment++) {
            seconds += draw(4) == 0 ? (double)draw(100) / 2000 : 0;
            int target = (int)(seconds / end * COLUMNS);
            assert_true(target < COLUMNS);
            while (column < target) {
                column++;
                most_allocated[column] = allocated;
                for (int place = 0; place < TDM_PLACES; place++)
                    most[place][column] = total(live[place]);
            }
            allocated = draw(1000000);
            add_allocation(&timeline, (uint64_t)moment, seconds, TDM_HOST, allocated);
            if (allocated > most_allocated[column])
                most_allocated[column] = allocated;
            for (int place = 0; place < TDM_PLACES; place++) {
                int category = (int)draw(TDM_CATEGORIES);
                live[place][category] = draw(1000000);
                add_value(&timeline, (uint64_t)moment, seconds, place, category,
                          live[place][category]);
                if (total(live[place]) > most[place][column])
                    most[place][column] = total(live[place]);
            }
        }
        while (++column < COLUMNS) {
            most_allocated[column] = allocated;
            for (int place = 0; place < TDM_PLACES; place++)
                most[place][column] = total(live[place]);
        }

        assert_int_equal(tdm_timeline_thin(&timeline, end, COLUMNS, &columns, NULL), TDM_OK);
        for (int i = 0; i < COLUMNS; i++)
            assert_int_equal(columns[i].allocated_bytes[TDM_HOST], most_allocated[i]);
        for (int place = 0; place < TDM_PLACES; place++) {
            bool there = false;
            tdm_timeline_find_peak(&timeline, (enum tdm_place)place, &peak);
            assert_true(peak.known);
            for (int i = 0; i < COLUMNS; i++) {
                assert_int_equal(total(columns[i].value_bytes[place]), most[place][i]);
                assert_true(most[place][i] <= peak.value_bytes);
                there = there || memcmp(columns[i].value_bytes[place], peak.categories,
                                        sizeof(peak.categories)) == 0;
            }
            assert_true(there);
        }
        free(columns);
        tdm_timeline_free(&timeline);
    }
}

/* A spike of zero length among a million moments is found, in the one column where it was. */
static void test_spike(void **state)
{
    (void)state;
    enum { MOMENTS = 1000000, SPIKE = 765432, COLUMNS = 1430 };
    struct tdm_timeline timeline = {0};
    struct tdm_column *columns;
    struct tdm_timeline_peak peak;
    for (uint64_t moment = 0; moment < MOMENTS; moment++)
        add_value(&timeline, moment, (double)moment, TDM_DEVICE, TDM_WORKSPACE,
                  moment == SPIKE ? 5000 : 1000 + moment % 7);
    timeline.values.change[SPIKE].seconds = timeline.values.change[SPIKE + 1].seconds;
    assert_int_equal(tdm_timeline_thin(&timeline, MOMENTS, COLUMNS, &columns, NULL), TDM_OK);
    tdm_timeline_find_peak(&timeline, TDM_DEVICE, &peak);
    assert_int_equal(peak.value_bytes, 5000);
    assert_int_equal(peak.op_number, SPIKE);
    for (uint64_t i = 0; i < COLUMNS; i++)
        assert_int_equal(total(columns[i].value_bytes[TDM_DEVICE]),
                         i == (uint64_t)(SPIKE + 1) * COLUMNS / MOMENTS ? 5000 : 1006);
    tdm_timeline_find_peak(&timeline, TDM_HOST, &peak);
    assert_false(peak.known);
    free(columns);
    tdm_timeline_free(&timeline);
}

static void test_thin_lanes(void **state)
{
    (void)state;
    enum { OPS = 5000, COLUMNS = 97 };
    struct tdm_timeline timeline = {0};
    struct tdm_column *columns;
    double spent[TDM_MAX_LANES][TDM_OP_GROUPS] = {{0}};
    double ends[TDM_MAX_LANES] = {0};
    for (int i = 0; i < OPS; i++) {
        int lane = (int)draw(TDM_LANES);
        int kind = (int)draw(TDM_OP_KINDS);
        double start = ends[lane] + (double)draw(3);
        double end = start + (double)draw(9);
        ends[lane] = end;
        spent[lane][tdm_op_group_of((enum tdm_op_kind)kind)] += end - start;
        add_op(&timeline, kind, TDM_FORWARD, lane, start, end);
    }
    double end = tdm_timeline_end(&timeline);
    assert_int_equal(tdm_timeline_thin(&timeline, end, COLUMNS, &columns, NULL), TDM_OK);
    for (int lane = 0; lane < TDM_LANES; lane++) {
        for (int group = 0; group < TDM_OP_GROUPS; group++) {
            double seconds = 0;
            for (int i = 0; i < COLUMNS; i++) {
                assert_true(columns[i].busy[lane][group] >= 0);
                seconds += columns[i].busy[lane][group] * end / COLUMNS;
            }
            assert_true(fabs(seconds - spent[lane][group]) < 1e-6 * end);
        }
    }
    free(columns);
    tdm_timeline_free(&timeline);
}

static void assert_runs(const char *phases, size_t least, const char *expected)
{
    struct tdm_column columns[64] = {{.phases = {0}}};
    struct tdm_phase_run runs[64];
    char seen[256] = "";
    size_t count = strlen(phases);
    for (size_t i = 0; i < count; i++) {
        columns[i].phases[TDM_FORWARD] = phases[i] == 'f';
        columns[i].phases[TDM_BACKWARD] = phases[i] == 'b';
        columns[i].phases[TDM_OPTIMIZER_PHASE] = phases[i] == 'o';
    }
    size_t used = tdm_phase_runs(columns, count, least, runs, 64);
    for (size_t i = 0; i < used; i++)
        snprintf(seen + strlen(seen), sizeof(seen) - strlen(seen), "%c%zu-%zu ",
                 tdm_phase_name(runs[i].phase)[0], runs[i].first, runs[i].last);
    assert_string_equal(seen, expected);
}

static void test_phases(void **state)
{
    (void)state;
    assert_runs("ffffbbbbbb", 1, "f0-3 b4-9 ");
    assert_runs("ff fb bobooboo", 1, "f0-3 b4-11 o12-13 ");
    assert_runs("ffffbbobbobboo", 1, "f0-3 b4-11 o12-13 ");
    assert_runs("ffbbffbb", 1, "f0-1 b2-3 f4-5 b6-7 ");
    assert_runs("fffbfffbbbbo", 2, "f0-6 b7-11 ");
    assert_runs("fbbbbb", 2, "b0-5 ");
    assert_runs("oooo", 1, "o0-3 ");
    assert_runs("    ", 1, "o0-3 ");
}

/* Schedules and traces. */

static struct tdm_schedule *make_schedule(bool host)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err = {0};
    if (tdm_model_load("byte-1m", &model, &err) != TDM_OK ||
        tdm_machine_load("h200-published", &machine, &err) != TDM_OK ||
        tdm_schedule_new(model, machine, 2048, &schedule, &err) != TDM_OK)
        fail_msg("%s", err.message);
    schedule->chunk_tokens = 256;
    schedule->head_tile_tokens = 256;
    for (uint32_t group = 1; group < schedule->group_count && host; group++)
        schedule->groups[group].input_place = TDM_HOST;
    if (tdm_schedule_check(schedule, "test", &err) != TDM_OK)
        fail_msg("%s", err.message);
    return schedule;
}

static void write_schedule(const char *path)
{
    struct tdm_schedule *schedule = make_schedule(true);
    json_t *root;
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &root, NULL), TDM_OK);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    tdm_schedule_free(schedule);
}

static void assert_times_rise(const struct tdm_timeline_changes *changes)
{
    for (size_t i = 1; i < changes->count; i++)
        assert_true(changes->change[i].seconds >= changes->change[i - 1].seconds);
}

static void test_read_schedule(void **state)
{
    (void)state;
    char path[768];
    struct tdm_plot *plot;
    struct tdm_error err = {0};
    struct tdm_program *program;
    struct tdm_simulation simulation;
    write_schedule(in_folder("plan.json", path));
    if (tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err) != TDM_OK)
        fail_msg("%s", err.message);
    struct tdm_schedule *schedule = make_schedule(true);
    assert_int_equal(tdm_program_lower(schedule, &program, NULL), TDM_OK);
    assert_int_equal(tdm_simulate(program, NULL, NULL, &simulation, NULL), TDM_OK);

    const struct tdm_plot_panel *panel = &plot->panels[TDM_PREDICTED];
    assert_true(panel->known);
    assert_false(plot->panels[TDM_MEASURED].known);
    assert_int_equal(panel->timeline.op_count, simulation.op_count);
    assert_true(fabs(panel->end_seconds - simulation.step_seconds) < 1e-12);
    for (int place = 0; place < TDM_PLACES; place++) {
        uint64_t allocated = 0;
        for (size_t i = 0; i < panel->timeline.allocations.count; i++) {
            const struct tdm_timeline_change *change = &panel->timeline.allocations.change[i];
            if (change->place == (enum tdm_place)place && change->bytes > allocated)
                allocated = change->bytes;
        }
        assert_int_equal(allocated, simulation.live_peak_bytes[place]);
        assert_true(panel->peak[place].value_bytes <= allocated);
        assert_true(panel->peak[place].known);
        assert_int_equal(plot->arena_bytes[place], simulation.arena_bytes[place]);
    }
    assert_times_rise(&panel->timeline.values);
    assert_times_rise(&panel->timeline.allocations);
    assert_int_equal(plot->limit_bytes[TDM_DEVICE], schedule->memory_bytes);
    assert_string_equal(plot->title, "byte-1m, context 2K");
    assert_contains(plot->subtitle, "layer-major, 4 groups of 1 layer, chunks of 256 tokens");
    assert_contains(panel->peak_op[TDM_DEVICE], "layer");
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    tdm_plot_free(plot);

    assert_int_equal(tdm_plot_read(path, 3, TDM_PLOT_ALL_RANKS, &plot, &err), TDM_USAGE);
    assert_contains(err.message, "--step");
}

struct recording {
    struct tdm_trace *trace;
    uint64_t ops, last_live;
};

static enum tdm_status record(void *self, const struct tdm_op *op, double start, double end,
                              const uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES],
                              struct tdm_error *err)
{
    struct recording *recording = self;
    struct tdm_trace_op traced = tdm_trace_op_of(op, (int64_t)(start * 1e9), (int64_t)(end * 1e9));
    enum tdm_status status = tdm_trace_op(recording->trace, 0, &traced, err);
    if (status == TDM_OK && live[0][TDM_WORKSPACE] != recording->last_live) {
        recording->last_live = live[0][TDM_WORKSPACE];
        const struct tdm_values_change change = {op->number, TDM_DEVICE, TDM_WORKSPACE,
                                                 recording->last_live};
        status = tdm_trace_memory(recording->trace, 0, &change, err);
        if (status == TDM_OK)
            status = tdm_trace_allocation(recording->trace, 0, op->number, TDM_DEVICE,
                                          recording->last_live + 1000, err);
    }
    recording->ops++;
    return status;
}

/* Step 1 is timed and observed, step 2 timed, step 3 neither. */
static void write_trace(const char *path, uint64_t steps)
{
    static const struct tdm_trace_run run = {.command = "it's \"this\"",
                                             .backend = "cpu",
                                             .where = "here 'n' there",
                                             .versions = "tidemark",
                                             .started_at = "2025-01-02T03:04:05Z"};
    struct tdm_schedule *schedule = make_schedule(false);
    struct tdm_program *program;
    struct tdm_simulation simulation;
    struct tdm_error err = {0};
    struct recording recording = {0};
    json_t *root;
    int64_t id;
    assert_int_equal(tdm_program_lower(schedule, &program, NULL), TDM_OK);
    struct tdm_trace_capacity capacity = {1, program->op_count, 1, 8};
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &root, NULL), TDM_OK);
    char *text = json_dumps(root, 0);
    if (tdm_trace_open(path, true, &run, capacity, &recording.trace, &err) != TDM_OK ||
        tdm_trace_program_begin(recording.trace, "plan", text, program, &id, &err) != TDM_OK ||
        tdm_simulate(program, record, &recording, &simulation, &err) != TDM_OK ||
        tdm_trace_program_end(recording.trace, &err) != TDM_OK)
        fail_msg("%s", err.message);
    for (uint64_t step = 1; step <= steps; step++) {
        struct tdm_trace_batch *batch;
        assert_int_equal(tdm_trace_take(recording.trace, &batch, NULL), TDM_OK);
        batch->program_id = id;
        batch->step = step;
        batch->seconds = 1;
        batch->timing_count = step <= 2 ? (size_t)recording.ops : 0;
        for (size_t i = 0; i < batch->timing_count; i++)
            batch->timings[i] =
                (struct tdm_trace_timing){i, (int64_t)i * 1000, 1000 + (int64_t)i * 1000, 0, 0, 0};
        batch->observed_count = step == 1 ? 3 : 0;
        for (size_t i = 0; i < batch->observed_count; i++)
            batch->observed[i] =
                (struct tdm_values_change){i * 100, TDM_DEVICE, TDM_KV, i == 1 ? 123456789 : 1000};
        batch->used[batch->used_count++] = (struct tdm_trace_used){5, TDM_HOST, 777 + step, 1};
        tdm_trace_send(recording.trace, batch);
    }
    assert_int_equal(tdm_trace_close(recording.trace, "finished", NULL), TDM_OK);
    free(text);
    json_decref(root);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

static void test_read_trace(void **state)
{
    (void)state;
    char path[768];
    struct tdm_plot *plot;
    struct tdm_error err = {0};
    write_trace(in_folder("run.db", path), 3);
    if (tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err) != TDM_OK)
        fail_msg("%s", err.message);
    const struct tdm_plot_panel *measured = &plot->panels[TDM_MEASURED];
    assert_true(plot->from_trace && plot->panels[TDM_PREDICTED].known && measured->known);
    assert_int_equal(plot->step, 1);
    assert_int_equal(measured->peak[TDM_DEVICE].value_bytes, 123456789);
    assert_int_equal(measured->peak[TDM_DEVICE].op_number, 100);
    assert_true(fabs(measured->peak[TDM_DEVICE].seconds - 1e-4) < 1e-12);
    assert_int_equal(measured->timeline.allocations.count,
                     plot->panels[TDM_PREDICTED].timeline.allocations.count);
    assert_true(measured->timeline.allocations.count > 10);
    assert_int_equal(plot->used_bytes[TDM_HOST], 778);
    assert_int_equal(plot->used_bytes[TDM_DEVICE], 0);
    assert_int_equal(measured->timeline.op_count, plot->panels[TDM_PREDICTED].timeline.op_count);
    assert_contains(plot->subtitle, "measured on here 'n' there, backend cpu");
    tdm_plot_free(plot);

    assert_int_equal(tdm_plot_read(path, 2, TDM_PLOT_ALL_RANKS, &plot, &err), TDM_OK);
    assert_int_equal(plot->step, 2);
    assert_false(plot->panels[TDM_MEASURED].peak[TDM_DEVICE].known);
    tdm_plot_free(plot);

    assert_int_equal(tdm_plot_read(path, 3, TDM_PLOT_ALL_RANKS, &plot, &err), TDM_USAGE);
    assert_contains(err.message, "has no op times of step 3");
    assert_contains(err.hint, "timed is 2");
    assert_int_equal(tdm_plot_read(path, 4, TDM_PLOT_ALL_RANKS, &plot, &err), TDM_USAGE);
    assert_contains(err.message, "holds no step 4");

    write_trace(path, 0);
    assert_int_equal(tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err),
                     TDM_OK);
    assert_true(plot->from_trace && plot->panels[TDM_PREDICTED].known);
    assert_false(plot->panels[TDM_MEASURED].known);
    tdm_plot_free(plot);
}

static void test_read_neither(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "hello", "[1]", "   \n", "SQLite format 3"};
    char path[768];
    struct tdm_plot *plot;
    struct tdm_error err = {0};
    in_folder("neither", path);
    assert_int_equal(tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err),
                     TDM_IO);
    assert_int_equal(tdm_plot_read(folder, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err),
                     TDM_IO);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_file(path, texts[i]);
        assert_int_equal(tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err),
                         TDM_INPUT);
        assert_contains(err.message, "neither a schedule nor a trace");
    }
    write_file(path, "{\"format\": 3}");
    assert_int_equal(tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err),
                     TDM_INPUT);
    assert_contains(err.message, path);
}

/* The driver. A temporary directory of its own shows what it leaves behind. */

static struct tdm_plot *plot_to_draw(void)
{
    char path[768];
    struct tdm_plot *plot;
    struct tdm_error err = {0};
    write_trace(in_folder("run.db", path), 1);
    if (tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return plot;
}

static void assert_nothing_left(void)
{
    char path[768];
    assert_int_equal(count_entries(in_folder("tmp", path)), 0);
}

static void test_draw(void **state)
{
    (void)state;
    if (system("gnuplot --version >/dev/null 2>&1") != 0)
        skip();
    struct tdm_error err = {0};
    struct tdm_plot *plot = plot_to_draw();
    char png[768];
    char svg[768];
    unsigned char begin[4096] = {0};
    struct stat info;
    struct tdm_picture picture = {in_folder("a.png", png), false, 1200, 700};
    if (tdm_plot_draw(plot, &picture, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_nothing_left();
    assert_int_equal(read_begin(png, begin, 24), 24);
    assert_memory_equal(begin, "\x89PNG\r\n\x1a\n", 8);
    assert_memory_equal(begin + 16, "\x00\x00\x04\xb0\x00\x00\x02\xbc", 8); /* 1200 x 700 */
    assert_int_equal(stat(png, &info), 0);
    assert_in_range(info.st_size, 10000, 1000000);

    picture = (struct tdm_picture){in_folder("a.svg", svg), false, 1600, 1000};
    if (tdm_plot_draw(plot, &picture, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_true(read_begin(svg, begin, sizeof(begin) - 1) > 4000);
    assert_contains((const char *)begin, "<svg");
    assert_contains((const char *)begin, "viewBox=\"0 0 1600 1000\"");
    assert_int_equal(stat(svg, &info), 0);
    assert_in_range(info.st_size, 10000, 3000000);

    picture = (struct tdm_picture){in_folder("a.pdf", svg), false, 1600, 1000};
    if (tdm_plot_draw(plot, &picture, &err) != TDM_OK)
        fail_msg("%s", err.message);
    read_begin(svg, begin, 5);
    assert_memory_equal(begin, "%PDF-", 5);
    assert_int_equal(stat(svg, &info), 0);
    assert_in_range(info.st_size, 10000, 1000000);

    picture = (struct tdm_picture){png, true, 800, 500}; /* over the old one */
    assert_int_equal(tdm_plot_draw(plot, &picture, &err), TDM_OK);
    read_begin(png, begin, 24);
    assert_memory_equal(begin + 16, "\x00\x00\x03\x20\x00\x00\x01\xf4", 8);
    assert_nothing_left();
    tdm_plot_free(plot);
}

/* The legend of a trace's picture lists what is in its stacks, in their order, and both panels end
 * at the same time. */
static void test_legend(void **state)
{
    (void)state;
    static const char *const order[] = {"runtime (modelled)", "KV", "workspace", "allocated", NULL};
    if (system("gnuplot --version >/dev/null 2>&1") != 0)
        skip();
    struct tdm_error err = {0};
    struct tdm_plot *plot = plot_to_draw();
    char path[768], word[64];
    const struct tdm_picture picture = {in_folder("legend.svg", path), true, 1600, 1000};
    if (tdm_plot_draw(plot, &picture, &err) != TDM_OK)
        fail_msg("%s", err.message);
    char *text = tdm_picture_text_of(path), *from = text;
    for (size_t i = 0; order[i] != NULL; i++) {
        snprintf(word, sizeof(word), ">%s<", order[i]);
        from = strstr(from, word);
        if (from == NULL)
            fail_msg("\"%s\" is not in the legend behind the one before it", order[i]);
    }
    assert_null(strstr(text, "own scale"));
    free(text);
    tdm_plot_free(plot);
}

/* A plot of three ranks has the lanes of all, and the memory of one; a plot of one of them has its
 * lanes alone. */
static void test_ranks(void **state)
{
    (void)state;
    char path[768], svg[768];
    struct tdm_plot *plot;
    struct tdm_error err = {0};
    struct tdm_schedule *schedule = make_schedule(false);
    json_t *root;
    schedule->ranks = 3;
    assert_int_equal(tdm_schedule_check(schedule, "test", &err), TDM_OK);
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &root, NULL), TDM_OK);
    assert_int_equal(json_dump_file(root, in_folder("three.json", path), 0), 0);
    json_decref(root);
    tdm_schedule_free(schedule);
    for (uint32_t rank = 0; rank <= 3; rank++) {
        bool all = rank == 3;
        if (tdm_plot_read(path, TDM_PLOT_LAST_STEP, all ? TDM_PLOT_ALL_RANKS : rank, &plot, &err) !=
            TDM_OK)
            fail_msg("%s", err.message);
        const struct tdm_plot_panel *panel = &plot->panels[TDM_PREDICTED];
        assert_int_equal(plot->rank, all ? 0 : rank);
        assert_int_equal(plot->shown_ranks, all ? 3 : 1);
        assert_true((panel->ranks != NULL) == all);
        assert_true(panel->timeline.op_count > 0 && panel->timeline.values.count > 0);
        for (uint32_t i = 0; i < 3 && all; i++)
            assert_true(panel->ranks[i].op_count > 0);
        /* of 8 chunks, rank 2 has two, and so fewer ops than rank 0, which has three */
        assert_true(!all || panel->ranks[2].op_count < panel->ranks[0].op_count);
        assert_contains(plot->title,
                        all ? "3 ranks, memory of rank 0" : "3 ranks, memory and lanes of rank");
        if (all && system("gnuplot --version >/dev/null 2>&1") == 0) {
            const struct tdm_picture picture = {in_folder("ranks.svg", svg), true, 1600, 1000};
            if (tdm_plot_draw(plot, &picture, &err) != TDM_OK)
                fail_msg("%s", err.message);
            char *text = tdm_picture_text_of(svg);
            assert_contains(text, ">0:compute<");
            assert_contains(text, ">2:compute<");
            assert_contains(text, ">exchange of ranks<");
            free(text);
        }
        tdm_plot_free(plot);
    }
    assert_int_equal(tdm_plot_read(path, TDM_PLOT_LAST_STEP, 3, &plot, &err), TDM_USAGE);
    assert_contains(err.message, "no rank 3");
}

#define TWO_MORE                                                                             \
    "{\"places\": [{\"name\": \"second\", \"bytes\": 1099511627776},"                        \
    "              {\"name\": \"third\", \"bytes\": 1099511627776}],"                        \
    " \"links\": [{\"from\": \"second\", \"to\": \"device\", \"lane\": \"second_to_first\"," \
    "              \"bytes_per_second\": 3e11},"                                             \
    "             {\"from\": \"device\", \"to\": \"second\", \"lane\": \"to_second\","       \
    "              \"bytes_per_second\": 3e11},"                                             \
    "             {\"from\": \"third\", \"to\": \"device\", \"lane\": \"from_third\","       \
    "              \"bytes_per_second\": 3e11},"                                             \
    "             {\"from\": \"device\", \"to\": \"third\", \"lane\": \"to_third\","         \
    "              \"bytes_per_second\": 3e11}]}"

/* Writes a schedule of a machine with two more places, which has inputs of groups at all of them.
 */
static void write_schedule_of_places(const char *path)
{
    struct tdm_schedule *schedule = make_schedule(true);
    struct tdm_error err = {0};
    struct tdm_machine *machine;
    json_t *root, *tables, *description = json_deep_copy(schedule->machine->description);
    assert_int_equal(tdm_json_parse("tables", TWO_MORE, strlen(TWO_MORE), &tables, &err), TDM_OK);
    assert_int_equal(json_object_update(description, tables), 0);
    if (tdm_machine_from_json("tables", description, &machine, &err) != TDM_OK)
        fail_msg("%s", err.message);
    json_decref(tables);
    json_decref(description);
    tdm_machine_free(schedule->machine);
    schedule->machine = machine;
    assert_int_equal(schedule->group_count, 4);
    for (uint32_t group = 1; group < 4; group++)
        schedule->groups[group].input_place = (enum tdm_place)group; /* host, second, third */
    if (tdm_schedule_check(schedule, "test", &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &root, NULL), TDM_OK);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    tdm_schedule_free(schedule);
}

/* Finds where in an SVG picture a text that begins so stands. */
static void find_text(const char *svg, const char *begin, double *x, double *y)
{
    char word[64];
    snprintf(word, sizeof(word), "<text>%s", begin);
    const char *text = strstr(svg, word);
    if (text == NULL)
        fail_msg("\"%s\" is not in the picture", begin);
    while (text > svg && strncmp(text, "translate(", 10) != 0)
        text--;
    assert_int_equal(sscanf(text, "translate(%lf,%lf)", x, y), 2);
}

/* Each place has a panel of its own below the device's, and names of lanes are not cut. */
static void test_places(void **state)
{
    (void)state;
    static const char *const captions[] = {"host (", "second (", "third (", "compute"};
    static const char *const lanes[] = {"compute", "second_to_first"};
    if (system("gnuplot --version >/dev/null 2>&1") != 0)
        skip();
    char path[768];
    struct tdm_error err = {0};
    struct tdm_plot *plot;
    double x, y, above = 0;
    write_schedule_of_places(in_folder("places.json", path));
    if (tdm_plot_read(path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS, &plot, &err) != TDM_OK)
        fail_msg("%s", err.message);
    const struct tdm_picture picture = {in_folder("places.svg", path), true, 1600, 1000};
    if (tdm_plot_draw(plot, &picture, &err) != TDM_OK)
        fail_msg("%s", err.message);
    char *text = tdm_picture_text_of(path);
    for (size_t i = 0; i < sizeof(captions) / sizeof(captions[0]); i++) {
        find_text(text, captions[i], &x, &y);
        if (y < above + 60)
            fail_msg("\"%s\" is at %.0f, and what is above it at %.0f", captions[i], y, above);
        above = y;
    }
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        find_text(text, lanes[i], &x, &y);
        if (x < 9 * (double)strlen(lanes[i])) /* where it ends; letters of 16 pixels height */
            fail_msg("\"%s\" ends at %.0f, so its begin is cut", lanes[i], x);
    }
    free(text);
    tdm_plot_free(plot);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "a.jpg", "a.PNG", ".png", "a.png/b", "-", "a.svg.gz"};
    struct tdm_error err = {0};
    char path[768];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct tdm_picture picture = {in_folder(names[i], path), true, 800, 500};
        assert_int_equal(tdm_picture_check(&picture, &err), TDM_USAGE);
        assert_contains(err.hint, ".png, .svg or .pdf");
    }
    struct tdm_picture picture = {in_folder("there.svg", path), false, 800, 500};
    assert_int_equal(tdm_picture_check(&picture, &err), TDM_OK);
    write_file(path, "old");
    assert_int_equal(tdm_picture_check(&picture, &err), TDM_USAGE);
    assert_contains(err.hint, "--force");
    picture.force = true;
    assert_int_equal(tdm_picture_check(&picture, &err), TDM_OK);
}

/* Draws with `script` as the first gnuplot in PATH; NULL: without any gnuplot in PATH. */
static enum tdm_status draw_with(const char *script, const char *output, struct tdm_error *err)
{
    char path[768];
    char program[1024];
    char picture_path[768];
    char *old = strdup(getenv("PATH"));
    struct tdm_plot *plot = plot_to_draw();
    struct tdm_picture picture = {in_folder(output, picture_path), true, 1600, 1000};
    mkdir(in_folder("bin", path), 0700);
    if (script != NULL) {
        snprintf(program, sizeof(program), "%s/gnuplot", path);
        write_file(program, script);
        chmod(program, 0700);
    }
    snprintf(program, sizeof(program), "%s%s%s", path, script == NULL ? "" : ":",
             script == NULL ? "" : old);
    setenv("PATH", program, 1);
    enum tdm_status status = tdm_plot_draw(plot, &picture, err);
    setenv("PATH", old, 1);
    free(old);
    tdm_plot_free(plot);
    assert_nothing_left();
    return status;
}

static void test_gnuplot_fails(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    char path[768];
    assert_int_equal(draw_with(NULL, "a.png", &err), TDM_IO);
    assert_contains(err.hint, "gnuplot-nox");

    assert_int_equal(draw_with("#!/bin/sh\n"
                               "printf '\\nset x\\n   ^\\n\"f.gp\" line 3: bad x\\nmore\\n' >&2\n"
                               "exit 1\n",
                               "a.png", &err),
                     TDM_IO);
    assert_string_equal(err.message, "gnuplot failed: \"f.gp\" line 3: bad x");
    assert_int_equal(draw_with("#!/bin/sh\nexit 3\n", "a.png", &err), TDM_IO);
    assert_contains(err.message, "it printed nothing");
    assert_int_equal(draw_with("#!/bin/sh\nkill -9 $$\n", "a.png", &err), TDM_IO);
    assert_contains(err.message, "signal 9");
    assert_int_equal(draw_with("#!/bin/sh\nexit 0\n", "a.png", &err), TDM_IO); /* no picture */
    assert_int_not_equal(access(in_folder("a.png", path), F_OK), 0);

    /* it ends with 0 though its disk was full, or a file of points could not be read */
    assert_int_equal(draw_with("#!/bin/sh\necho '<svg>' >\"${2%/*}/picture\"\n", "a.svg", &err),
                     TDM_IO);
    assert_contains(err.message, "only a part");
    assert_int_equal(
        draw_with("#!/bin/sh\necho '</svg>' >\"${2%/*}/picture\"\n"
                  "echo '\"f.gp\" line 3: warning: Cannot find or open file \"device_1\"'\n",
                  "a.svg", &err),
        TDM_IO);
    assert_contains(err.message, "Cannot find or open file");
    assert_int_not_equal(access(in_folder("a.svg", path), F_OK), 0);
}

/* What gnuplot creates is moved unchanged. Moving it into a missing directory fails. */
static void test_unwritable(void **state)
{
    (void)state;
    static const char script[] = "#!/bin/sh\necho 'picture</svg>' >\"${2%/*}/picture\"\n";
    struct tdm_error err = {0};
    char path[768];
    unsigned char begin[16] = {0};
    assert_int_equal(draw_with(script, "a.svg", &err), TDM_OK);
    read_begin(in_folder("a.svg", path), begin, sizeof(begin) - 1);
    assert_string_equal((const char *)begin, "picture</svg>\n");
    assert_int_equal(draw_with(script, "none/a.svg", &err), TDM_IO);
    assert_contains(err.message, "none/a.svg");

    setenv("TMPDIR", in_folder("no-such", path), 1);
    struct tdm_plot *plot = plot_to_draw();
    struct tdm_picture picture = {in_folder("b.png", path), false, 1600, 1000};
    assert_int_equal(tdm_plot_draw(plot, &picture, &err), TDM_IO);
    assert_contains(err.hint, "TMPDIR");
    tdm_plot_free(plot);
}

/* gnuplot reads little data, however many ops a step has. */
static void test_data_is_small(void **state)
{
    (void)state;
    struct tdm_plot plot = {.title = "many", .subtitle = "ops"};
    tdm_topology_begin(&plot.topology);
    struct tdm_plot_panel *panel = &plot.panels[TDM_PREDICTED];
    struct tdm_error err = {0};
    enum { OPS = 300000 };
    char path[768];
    char program[1024];
    char script[2048];
    char *old = strdup(getenv("PATH"));
    for (int i = 0; i < OPS; i++) {
        add_op(&panel->timeline, (int)draw(TDM_OP_KINDS), i < OPS / 2 ? TDM_FORWARD : TDM_BACKWARD,
               TDM_LANE_COMPUTE, i, i + 0.9);
        add_value(&panel->timeline, (uint64_t)i, i, TDM_DEVICE, (int)draw(TDM_CATEGORIES),
                  draw(1000000000));
        add_allocation(&panel->timeline, (uint64_t)i, i, TDM_DEVICE, draw(1000000000));
    }
    panel->known = true;
    panel->end_seconds = OPS;
    tdm_timeline_find_peak(&panel->timeline, TDM_DEVICE, &panel->peak[TDM_DEVICE]);

    in_folder("size", path);
    snprintf(script, sizeof(script),
             "#!/bin/sh\ncat \"${2%%/*}\"/* | wc -c >'%s'\necho '</svg>' >\"${2%%/*}/picture\"\n",
             path);
    snprintf(program, sizeof(program), "%s/bin", folder);
    mkdir(program, 0700);
    snprintf(program, sizeof(program), "%s/bin/gnuplot", folder);
    write_file(program, script);
    chmod(program, 0700);
    snprintf(program, sizeof(program), "%s/bin:%s", folder, old);
    setenv("PATH", program, 1);
    struct tdm_picture picture = {in_folder("many.svg", script), false, 1600, 1000};
    enum tdm_status status = tdm_plot_draw(&plot, &picture, &err);
    setenv("PATH", old, 1);
    free(old);
    tdm_timeline_free(&panel->timeline);
    if (status != TDM_OK)
        fail_msg("%s", err.message);

    unsigned char text[32] = {0};
    read_begin(path, text, sizeof(text) - 1);
    assert_in_range(strtoul((const char *)text, NULL, 10), 1000, 1500000);
}

static int setup_folder(void **state)
{
    (void)state;
    char path[768];
    mkdir(folder, 0700);
    mkdir(in_folder("tmp", path), 0700);
    return setenv("TMPDIR", path, 1);
}

static int teardown_folder(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_thin_memory),
        cmocka_unit_test(test_spike),
        cmocka_unit_test(test_thin_lanes),
        cmocka_unit_test(test_phases),
        cmocka_unit_test_setup_teardown(test_read_schedule, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_read_trace, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_read_neither, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_draw, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_legend, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_ranks, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_places, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_refused, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_gnuplot_fails, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_unwritable, setup_folder, teardown_folder),
        cmocka_unit_test_setup_teardown(test_data_is_small, setup_folder, teardown_folder),
    };
    const char *scratch = getenv("TDM_SCRATCH");
    const char *given = getenv("TDM_SEED");
    snprintf(folder, sizeof(folder), "%s/plots", scratch == NULL ? "/tmp" : scratch);
    seed = given == NULL ? 20240607 : strtoull(given, NULL, 10);
    print_message("# TDM_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests_name("plots", tests, NULL, NULL);
}
