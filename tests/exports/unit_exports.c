/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of exports: what is written follows the published formats (Trace Event Format; the snapshot
 * of torch.cuda.memory and Python's pickle; RFC 4180), and says what the step has: all ops, times,
 * peaks and waits. So does a page. Random schedules, and traces made of them.
 */
#include "exports/export.h"
#include "exports/page.h"
#include "schedule/schedule_check.h"
#include "simulator/simulate.h"
#include "tests/support/random_schedule.h"
#include "tests/support/unpickle.h"
#include "traces/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[512];

/* What is exported. */

static enum tdm_status record(void *self, const struct tdm_op *op, double start, double end,
                              const uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES],
                              struct tdm_error *err)
{
    (void)live;
    struct tdm_trace_op traced = tdm_trace_op_of(op, (int64_t)(start * 1e9), (int64_t)(end * 1e9));
    return tdm_trace_op(self, 0, &traced, err);
}

/* A trace with one step, which took 1.5 times as long as predicted. `reached`: ops that were timed,
 * if it did not end. */
static void write_trace(const char *path, const struct tdm_schedule *schedule, const char *text,
                        uint64_t reached)
{
    static const struct tdm_trace_run run = {.command = "c",
                                             .backend = "cpu",
                                             .where = "here",
                                             .versions = "v",
                                             .started_at = "2025-01-02T03:04:05Z"};
    struct tdm_program *program;
    struct tdm_simulation simulation;
    struct tdm_trace *trace;
    struct tdm_trace_batch *batch;
    struct tdm_error err = {0};
    int64_t id;
    assert_int_equal(tdm_program_lower(schedule, &program, NULL), TDM_OK);
    struct tdm_trace_capacity capacity = {1, program->op_count, 1, 8};
    if (tdm_trace_open(path, true, &run, capacity, &trace, &err) != TDM_OK ||
        tdm_trace_program_begin(trace, "plan", text, program, &id, &err) != TDM_OK ||
        tdm_simulate(program, record, trace, &simulation, &err) != TDM_OK ||
        tdm_trace_program_end(trace, &err) != TDM_OK)
        fail_msg("%s", err.message);
    struct tdm_plot *plot;
    char plan[768];
    snprintf(plan, sizeof(plan), "%s/plan.json", folder);
    assert_int_equal(tdm_plot_read(plan, TDM_PLOT_LAST_STEP, 0, &plot, &err), TDM_OK);
    const struct tdm_timeline *timeline = &plot->panels[TDM_PREDICTED].timeline;
    assert_int_equal(tdm_trace_take(trace, &batch, NULL), TDM_OK);
    batch->program_id = id;
    batch->step = 1;
    batch->seconds = 1;
    batch->loss = 2.5;
    batch->tokens = 64;
    batch->unfinished = reached > 0;
    batch->ops_ended = reached;
    batch->timing_count = reached > 0 ? (size_t)reached : timeline->op_count;
    for (size_t i = 0; i < batch->timing_count; i++)
        batch->timings[i] =
            (struct tdm_trace_timing){i,
                                      (int64_t)llround(timeline->ops[i].start * 1.5e9),
                                      (int64_t)llround(timeline->ops[i].end * 1.5e9),
                                      0,
                                      0,
                                      0};
    tdm_trace_send(trace, batch);
    assert_int_equal(tdm_trace_close(trace, reached > 0 ? NULL : "finished", NULL), TDM_OK);
    tdm_plot_free(plot);
    tdm_program_free(program);
}

/* Writes plan.json of a random schedule for several ranks. */
static void write_plan(uint64_t seed, uint32_t ranks)
{
    const struct tdm_random_options options = {.max_tokens = 96, .ranks = ranks};
    struct tdm_schedule *schedule;
    struct tdm_error err = {0};
    json_t *root;
    char path[768];
    if (tdm_random_schedule(seed, &options, &schedule, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &root, NULL), TDM_OK);
    snprintf(path, sizeof(path), "%s/plan.json", folder);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    tdm_schedule_free(schedule);
}

/* Writes plan.json and run.db of a random schedule. */
static void write_sources(uint64_t seed, bool unfinished)
{
    const struct tdm_random_options options = {.max_tokens = 96};
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_error err = {0};
    json_t *root;
    char path[768];
    if (tdm_random_schedule(seed, &options, &schedule, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &root, NULL), TDM_OK);
    snprintf(path, sizeof(path), "%s/plan.json", folder);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    char *text = json_dumps(root, 0);
    assert_int_equal(tdm_program_lower(schedule, &program, NULL), TDM_OK);
    snprintf(path, sizeof(path), "%s/run.db", folder);
    write_trace(path, schedule, text, unfinished ? program->op_count / 2 : 0);
    tdm_program_free(program);
    free(text);
    json_decref(root);
    tdm_schedule_free(schedule);
}

static struct tdm_step *read_step(const char *name, uint32_t rank)
{
    struct tdm_step *step;
    struct tdm_error err = {0};
    char path[768];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (tdm_step_read(path, TDM_PLOT_LAST_STEP, rank, &step, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return step;
}

/* What a format writes of the rank of a step. */
static char *written(const struct tdm_step *step, const struct tdm_export_format *format,
                     size_t *bytes)
{
    char *text = NULL, path[768];
    struct tdm_export_gaps gaps;
    struct tdm_error err = {0};
    FILE *out = open_memstream(&text, bytes);
    assert_non_null(out);
    snprintf(path, sizeof(path), "%s/%s", folder, step->plot->from_trace ? "run.db" : "plan.json");
    const struct tdm_export_source source = {path, TDM_PLOT_LAST_STEP, step->rank};
    if (tdm_export_write(format, &source, out, &gaps, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(gaps.unfinished, step->plot->unfinished);
    fclose(out);
    return text;
}

/* Chrome. */

struct slice {
    int64_t start_ns, end_ns;
    int64_t tid;
};

static int64_t time_of(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    assert_true(json_is_number(value));
    assert_true(json_number_value(value) >= 0);
    return llround(json_number_value(value) * 1000);
}

static const char *word_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_string(value));
    return json_string_value(value);
}

static uint64_t count_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    assert_true(json_integer_value(value) >= 0);
    return (uint64_t)json_integer_value(value);
}

/* The slice of an op; checks the event. */
static void check_slice(const struct tdm_step *step, const json_t *event, struct slice *slices)
{
    const json_t *args = json_object_get(event, "args");
    uint64_t number = count_of(args, "op");
    assert_true(number < step->op_count);
    assert_int_equal(slices[number].tid, 0); /* once */
    slices[number] =
        (struct slice){time_of(event, "ts"), time_of(event, "ts") + time_of(event, "dur"),
                       (int64_t)count_of(event, "tid")};
    const struct tdm_timeline *timeline = &step->plot->panels[tdm_step_side(step)].timeline;
    const struct tdm_timeline_op *op = tdm_timeline_op(timeline, number);
    assert_non_null(op);
    assert_int_equal(slices[number].tid, op->lane + 1);
    assert_true(llabs(slices[number].start_ns - llround(op->start * 1e9)) <= 1);
    assert_int_equal(count_of(args, "bytes"), step->ops[number].bytes);
    assert_string_equal(word_of(event, "cat"), tdm_phase_name(op->phase));
    assert_true(strncmp(word_of(event, "name"), tdm_op_kind_name(op->kind),
                        strlen(tdm_op_kind_name(op->kind))) == 0);
}

static int by_thread(const void *left, const void *right)
{
    const struct slice *a = left, *b = right;
    if (a->tid != b->tid)
        return (a->tid > b->tid) - (a->tid < b->tid);
    if (a->start_ns != b->start_ns)
        return (a->start_ns > b->start_ns) - (a->start_ns < b->start_ns);
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

static bool holds(const struct slice *slice, const json_t *event)
{
    int64_t at = time_of(event, "ts");
    return (int64_t)count_of(event, "tid") == slice->tid && slice->start_ns <= at &&
           at <= slice->end_ns;
}

struct counters {
    uint64_t now[TDM_MAX_PLACES][TDM_CATEGORIES], most[TDM_MAX_PLACES], allocated[TDM_MAX_PLACES];
    int64_t last_ns[TDM_MAX_PLACES][TDM_CATEGORIES];
};

static void take_counter(const struct tdm_step *step, const json_t *event, struct counters *seen)
{
    uint64_t bytes = count_of(json_object_get(event, "args"), "bytes");
    const char *name = word_of(event, "name"), *of = strchr(name, ' ');
    assert_non_null(of);
    for (uint32_t place = 0; place < step->plot->topology.place_count; place++) {
        const char *word = tdm_place_name(&step->plot->topology, (enum tdm_place)place);
        if (strncmp(name, word, strlen(word)) != 0 || name[strlen(word)] != ' ')
            continue;
        if (strcmp(of + 1, "allocated") == 0) {
            if (bytes > seen->allocated[place])
                seen->allocated[place] = bytes;
            return;
        }
        for (int category = 0; category < TDM_CATEGORIES; category++) {
            if (strcmp(of + 1, tdm_category_name((enum tdm_category)category)) != 0)
                continue;
            assert_true(time_of(event, "ts") >= seen->last_ns[place][category]);
            seen->last_ns[place][category] = time_of(event, "ts");
            seen->now[place][category] = bytes;
            return;
        }
    }
    fail_msg("a counter %s", name);
}

/* The most that all categories of a place have together: checked when an op's changes are all
 * there, so after each of them it may be less. */
static void note_most(struct counters *seen)
{
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
        uint64_t sum = 0;
        for (int category = 0; category < TDM_CATEGORIES; category++)
            sum += seen->now[place][category];
        if (sum > seen->most[place])
            seen->most[place] = sum;
    }
}

static void check_chrome(const struct tdm_step *step, size_t *arrows)
{
    size_t bytes, ops = 0, begins = 0, ends = 0, i;
    char *text = written(step, &tdm_export_chrome, &bytes);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error), *event;
    if (root == NULL)
        fail_msg("line %d: %s", error.line, error.text);
    const json_t *events = json_object_get(root, "traceEvents");
    assert_true(json_is_array(events));
    assert_string_equal(word_of(root, "displayTimeUnit"), "ms");
    struct slice *slices = calloc(step->op_count, sizeof(*slices));
    struct counters counters = {0};
    json_array_foreach(events, i, event)
    {
        const char *phase = word_of(event, "ph");
        assert_int_equal(strlen(phase), 1);
        assert_int_equal(count_of(event, "pid"), step->rank + 1);
        switch (phase[0]) {
        case 'M':
            assert_true(strcmp(word_of(event, "name"), "process_name") == 0 ||
                        count_of(event, "tid") > 0);
            break;
        case 'X':
            check_slice(step, event, slices);
            ops++;
            break;
        case 'C':
            take_counter(step, event, &counters);
            note_most(&counters);
            break;
        case 's':
        case 'f': {
            const uint32_t to = (uint32_t)count_of(event, "id"); /* and the rank */
            const uint32_t from = step->ops[to].waited_for[tdm_step_side(step)];
            assert_true(from < step->op_count);
            assert_true(holds(&slices[phase[0] == 's' ? from : to], event));
            assert_true(slices[from].tid != slices[to].tid);
            assert_true(slices[from].end_ns <= slices[to].start_ns + 1);
            if (phase[0] == 'f')
                assert_string_equal(word_of(event, "bp"), "e");
            *(phase[0] == 's' ? &begins : &ends) += 1;
            break;
        }
        default:
            fail_msg("an event of phase %s", phase);
        }
    }
    const struct tdm_plot_panel *panel = &step->plot->panels[tdm_step_side(step)];
    assert_int_equal(ops, panel->timeline.op_count);
    assert_int_equal(begins, ends);
    *arrows += begins;
    qsort(slices, step->op_count, sizeof(*slices), by_thread);
    for (uint32_t op = 1; op < step->op_count; op++)
        if (slices[op].tid == slices[op - 1].tid && slices[op].tid != 0)
            assert_true(slices[op].start_ns >= slices[op - 1].end_ns);
    for (int place = 0; place < (int)TDM_MAX_PLACES && panel->timeline.values.count > 0; place++)
        assert_true(counters.most[place] >= panel->peak[place].value_bytes);
    /* an allocation may come before the op that uses it, and its place's peak with it */
    for (uint32_t place = 0; place < step->plot->topology.place_count && !step->plot->from_trace;
         place++)
        assert_in_range(counters.allocated[place], panel->peak[place].value_bytes,
                        step->program->live_peak_bytes[place]);
    free(slices);
    json_decref(root);
    free(text);
}

/* Memory snapshots. */

struct block {
    uint64_t addr, size;
};

struct blocks {
    struct block *block; /* by address */
    size_t count, capacity;
    uint64_t bytes;
};

/* The first block at or above an address. */
static size_t find_block(const struct blocks *blocks, uint64_t addr)
{
    size_t low = 0, high = blocks->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (blocks->block[middle].addr < addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void add_block(struct blocks *blocks, uint64_t addr, uint64_t size)
{
    size_t at = find_block(blocks, addr);
    if (at > 0)
        assert_true(blocks->block[at - 1].addr + blocks->block[at - 1].size <= addr);
    if (at < blocks->count)
        assert_true(addr + size <= blocks->block[at].addr);
    if (blocks->count == blocks->capacity) {
        blocks->capacity = blocks->capacity == 0 ? 64 : 2 * blocks->capacity;
        blocks->block = realloc(blocks->block, blocks->capacity * sizeof(*blocks->block));
        assert_non_null(blocks->block);
    }
    memmove(&blocks->block[at + 1], &blocks->block[at],
            (blocks->count - at) * sizeof(*blocks->block));
    blocks->block[at] = (struct block){addr, size};
    blocks->count++;
    blocks->bytes += size;
}

static void remove_block(struct blocks *blocks, uint64_t addr, uint64_t size)
{
    size_t at = find_block(blocks, addr);
    assert_true(at < blocks->count && blocks->block[at].addr == addr);
    assert_int_equal(blocks->block[at].size, size);
    memmove(&blocks->block[at], &blocks->block[at + 1],
            (blocks->count - at - 1) * sizeof(*blocks->block));
    blocks->count--;
    blocks->bytes -= size;
}

static void check_frames(const json_t *frames, size_t least)
{
    size_t i;
    json_t *frame;
    assert_true(json_is_array(frames));
    assert_true(json_array_size(frames) >= least);
    json_array_foreach(frames, i, frame)
    {
        assert_int_equal(json_object_size(frame), 3);
        assert_true(strlen(word_of(frame, "filename")) > 0);
        assert_true(strlen(word_of(frame, "name")) > 0);
        (void)count_of(frame, "line");
    }
    if (least > 0)
        assert_string_equal(word_of(json_array_get(frames, 0), "filename"), "tensor");
}

/* The blocks of a segment cover it, and the active ones are those that the trace left. */
static void check_segment(const struct tdm_step *step, const json_t *segment,
                          const struct blocks *left)
{
    const uint64_t device = count_of(segment, "device");
    uint64_t at = count_of(segment, "address"), active = 0;
    size_t i, live = 0;
    json_t *block;
    assert_int_equal(count_of(segment, "total_size"), step->program->arena_bytes[device]);
    assert_int_equal(count_of(segment, "stream"), 0);
    assert_string_equal(word_of(segment, "segment_type"), "large");
    assert_true(json_is_false(json_object_get(segment, "is_expandable")));
    check_frames(json_object_get(segment, "frames"), 0);
    json_array_foreach(json_object_get(segment, "blocks"), i, block)
    {
        assert_int_equal(count_of(block, "address"), at);
        at += count_of(block, "size");
        if (strcmp(word_of(block, "state"), "inactive") == 0) {
            check_frames(json_object_get(block, "frames"), 0);
            continue;
        }
        assert_string_equal(word_of(block, "state"), "active_allocated");
        check_frames(json_object_get(block, "frames"), 3);
        assert_true(live < left->count);
        assert_int_equal(left->block[live].addr, count_of(block, "address"));
        assert_int_equal(left->block[live].size, count_of(block, "size"));
        assert_int_equal(count_of(block, "requested_size"), count_of(block, "size"));
        active += count_of(block, "size");
        live++;
    }
    assert_int_equal(live, left->count);
    assert_int_equal(at, count_of(segment, "address") + count_of(segment, "total_size"));
    assert_int_equal(active, count_of(segment, "allocated_size"));
    assert_int_equal(active, count_of(segment, "active_size"));
}

/* Blocks do not overlap, what is freed was allocated, and the most bytes are the step's peak. */
static void check_device(const struct tdm_step *step, const json_t *events, size_t device,
                         struct blocks *blocks)
{
    size_t i;
    json_t *event;
    uint64_t most = 0, last_us = 0, base = UINT64_C(1) << 32;
    const json_t *requested = NULL;
    json_array_foreach(events, i, event)
    {
        const char *action = word_of(event, "action");
        uint64_t addr = count_of(event, "addr"), size = count_of(event, "size");
        assert_int_equal(json_object_size(event), 6);
        assert_int_equal(count_of(event, "stream"), 0);
        assert_true(count_of(event, "time_us") >= last_us);
        last_us = count_of(event, "time_us");
        check_frames(json_object_get(event, "frames"), 3);
        assert_true(addr >= base && addr + size <= base + step->program->arena_bytes[device]);
        if (strcmp(action, "free_completed") == 0) {
            assert_non_null(requested);
            assert_int_equal(count_of(requested, "addr"), addr);
            remove_block(blocks, addr, size);
        } else if (strcmp(action, "alloc") == 0) {
            add_block(blocks, addr, size);
        } else {
            assert_string_equal(action, "free_requested");
        }
        requested = strcmp(action, "free_requested") == 0 ? event : NULL;
        most = blocks->bytes > most ? blocks->bytes : most;
    }
    if (step->plot->panels[TDM_PREDICTED].timeline.values.count > 0) /* of a schedule */
        assert_int_equal(most, step->plot->panels[TDM_PREDICTED].peak[device].value_bytes);
}

static void check_memory_viz(const struct tdm_step *step)
{
    size_t bytes, i;
    const char *why;
    json_t *segment;
    char *text = written(step, &tdm_export_memory_viz, &bytes);
    json_t *root = tdm_unpickle((const unsigned char *)text, bytes, &why);
    if (root == NULL)
        fail_msg("%s", why);
    const json_t *traces = json_object_get(root, "device_traces");
    assert_int_equal(json_array_size(traces), step->plot->topology.place_count);
    struct blocks blocks[TDM_MAX_PLACES] = {{0}};
    for (size_t device = 0; device < json_array_size(traces); device++)
        check_device(step, json_array_get(traces, device), device, &blocks[device]);
    json_array_foreach(json_object_get(root, "segments"), i, segment)
    {
        uint64_t device = count_of(segment, "device");
        assert_true(device < json_array_size(traces));
        check_segment(step, segment, &blocks[device]);
    }
    assert_true(i > 0);
    for (size_t device = 0; device < TDM_MAX_PLACES; device++)
        free(blocks[device].block);
    json_decref(root);
    free(text);
}

/* Comma-separated values. */

/* A comma between quotes belongs to its field; a quote begins or ends a field. */
static size_t fields_of(const char *line, size_t length)
{
    size_t fields = 1;
    bool quoted = false;
    for (size_t i = 0; i < length; i++) {
        assert_true(line[i] != '\r');
        if (line[i] == '"') {
            assert_true(quoted ? i + 1 == length || line[i + 1] == ','
                               : i == 0 || line[i - 1] == ',');
            quoted = !quoted;
        }
        fields += line[i] == ',' && !quoted;
    }
    assert_false(quoted);
    return fields;
}

static void check_csv(const struct tdm_step *step)
{
    size_t bytes, rows = 0, fields = 0;
    char *text = written(step, &tdm_export_csv, &bytes);
    assert_int_equal(strlen(text), bytes);
    assert_true(bytes > 0 && text[bytes - 1] == '\n');
    for (char *line = text; *line != '\0'; rows++) {
        size_t length = strcspn(line, "\n");
        size_t here = fields_of(line, length);
        if (rows == 0)
            fields = here;
        else
            assert_int_equal(strtoull(strchr(line, ',') + 1, NULL, 10), rows - 1);
        if (here != fields)
            fail_msg("%zu fields, not %zu: %.*s", here, fields, (int)length, line);
        line += length + 1;
    }
    assert_int_equal(fields, 22);
    assert_int_equal(rows, step->op_count + 1);
    free(text);
}

/* Pages. */

/* The bytes of an array of a page; the caller frees them. */
static unsigned char *array_of(const char *page, const char *id, size_t *count)
{
    char tag[96];
    snprintf(tag, sizeof(tag), " id=\"%s\" ", id);
    const char *at = strstr(page, tag);
    assert_non_null(at);
    const char *counted = strstr(at, "data-count=\"");
    assert_non_null(counted);
    *count = strtoull(counted + strlen("data-count=\""), NULL, 10);
    at = strchr(at, '>') + 1;
    size_t length = strcspn(at, "<");
    assert_int_equal(length % 4, 0);
    unsigned char *bytes = calloc(1, length / 4 * 3 + 8);
    for (size_t i = 0; i < length; i++) {
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *digit = strchr(digits, at[i]);
        assert_non_null(digit);
        const unsigned bits = (unsigned)(digit - digits);
        for (unsigned bit = 0; bit < 6; bit++)
            if (bits >> (5 - bit) & 1)
                bytes[(i * 6 + bit) / 8] |= (unsigned char)(0x80 >> (i * 6 + bit) % 8);
    }
    return bytes;
}

static void check_page(const struct tdm_step *step)
{
    size_t bytes, count;
    char *page = NULL;
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    assert_int_equal(tdm_page_write(step, out, NULL), TDM_OK);
    fclose(out);
    assert_int_equal(strlen(page), bytes);
    assert_null(strstr(page, "://"));
    char *facts = strstr(page, "id=\"facts\">");
    assert_non_null(facts);
    facts += strlen("id=\"facts\">");
    json_t *root = json_loadb(facts, strcspn(facts, "<"), 0, NULL);
    assert_non_null(root);
    assert_string_equal(word_of(root, "title"), step->plot->title);
    assert_int_equal(json_array_size(json_object_get(root, "sides")),
                     1 + step->plot->panels[TDM_MEASURED].known);
    assert_int_equal(json_array_size(json_object_get(root, "steps")), step->step_count);
    unsigned char *kinds = array_of(page, "op_kind", &count);
    assert_int_equal(count, step->op_count);
    unsigned char *offsets = array_of(page, "life_offset", &count);
    assert_int_equal(count, step->life_count);
    unsigned char *starts = array_of(page, "op_start0", &count);
    assert_int_equal(count, step->op_count);
    const struct tdm_timeline_op *ops = step->plot->panels[TDM_PREDICTED].timeline.ops;
    for (uint32_t op = 0; op < step->op_count; op++) {
        double start;
        memcpy(&start, starts + 8 * (size_t)op, 8);
        assert_int_equal(kinds[op], ops[op].kind);
        assert_true(start == ops[op].start);
    }
    for (size_t i = 0; i < step->life_count; i++) {
        double offset;
        memcpy(&offset, offsets + 8 * i, 8);
        assert_true(offset == (double)step->lives[i].offset);
    }
    free(kinds);
    free(offsets);
    free(starts);
    json_decref(root);
    free(page);
}

static void test_formats(void **state)
{
    (void)state;
    const uint64_t cases = tdm_case_count(10, 50);
    size_t arrows = 0, unfinished = 0;
    for (uint64_t number = 0; number < cases; number++) {
        uint64_t seed = tdm_case_seed(97000, number);
        write_sources(seed, number % 4 == 3);
        static const char *const names[] = {"plan.json", "run.db"};
        for (int i = 0; i < 2; i++) {
            struct tdm_step *step = read_step(names[i], 0);
            assert_int_equal(step->plot->panels[TDM_MEASURED].known, i == 1);
            unfinished += step->plot->unfinished;
            check_chrome(step, &arrows);
            check_memory_viz(step);
            check_csv(step);
            check_page(step);
            assert_int_equal(step->step_count, i == 1 && number % 4 != 3);
            tdm_step_free(step);
        }
    }
    assert_true(arrows > 5 * cases);
    assert_true(unfinished > 0 || cases < 4);
}

/* Several ranks: each by itself, and all in one file. */
static void test_ranks(void **state)
{
    (void)state;
    size_t arrows = 0, bytes, i;
    for (uint64_t number = 0; number < 3; number++) {
        const char *why;
        json_t *event, *segment;
        uint64_t slices[4] = {0}, devices = 0;
        struct tdm_export_gaps gaps;
        struct tdm_error err = {0};
        write_plan(tdm_case_seed(97500, number), 3);
        struct tdm_step *step = read_step("plan.json", 0);
        const uint32_t ranks = step->ranks, places = step->plot->topology.place_count;
        assert_in_range(ranks, 2, 3);
        uint64_t ops[4] = {step->op_count};
        for (uint32_t rank = 0; rank < ranks; rank++) {
            tdm_step_free(step);
            step = read_step("plan.json", rank);
            ops[rank] = step->op_count;
            check_chrome(step, &arrows);
            check_memory_viz(step);
            check_csv(step);
            check_page(step);
        }
        tdm_step_free(step);
        char path[768], *text = NULL;
        snprintf(path, sizeof(path), "%s/plan.json", folder);
        const struct tdm_export_source source = {path, TDM_PLOT_LAST_STEP, TDM_PLOT_ALL_RANKS};
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(tdm_export_write(&tdm_export_chrome, &source, out, &gaps, &err), TDM_OK);
        fclose(out);
        json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(root);
        json_array_foreach(json_object_get(root, "traceEvents"), i, event)
        {
            assert_in_range(count_of(event, "pid"), 1, ranks);
            slices[count_of(event, "pid") - 1] += word_of(event, "ph")[0] == 'X';
        }
        assert_memory_equal(slices, ops, ranks * sizeof(ops[0]));
        json_decref(root);
        free(text);
        text = NULL;
        out = open_memstream(&text, &bytes);
        assert_int_equal(tdm_export_write(&tdm_export_memory_viz, &source, out, &gaps, &err),
                         TDM_OK);
        fclose(out);
        root = tdm_unpickle((const unsigned char *)text, bytes, &why);
        assert_non_null(root);
        assert_int_equal(json_array_size(json_object_get(root, "device_traces")), ranks * places);
        json_array_foreach(json_object_get(root, "segments"), i, segment)
        {
            assert_true(count_of(segment, "device") < ranks * places);
            devices |= UINT64_C(1) << count_of(segment, "device");
        }
        for (uint32_t rank = 0; rank < ranks; rank++)
            assert_true(devices >> (rank * places) & 1);
        json_decref(root);
        free(text);
    }
}

/* A trace of other ops than its schedule's program is refused. */
/* Jansson's allocations until one fails; 0: none does. */
static uint64_t until_failure;

static void *allocate(size_t bytes)
{
    return until_failure > 0 && --until_failure == 0 ? NULL : malloc(bytes);
}

/* The page of a step while Jansson's n-th allocation fails (0: none): malloc'ed; NULL: it is
 * refused for lack of memory. *reached: that many were made. */
static char *page_without_memory(const struct tdm_step *step, uint64_t n, bool *reached)
{
    size_t bytes;
    char *page = NULL;
    struct tdm_error err;
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    until_failure = n;
    enum tdm_status status = tdm_page_write(step, out, &err);
    *reached = until_failure == 0;
    until_failure = 0;
    fclose(out);
    if (status == TDM_OK)
        return page;
    assert_int_equal(status, TDM_NO_MEMORY);
    free(page);
    return NULL;
}

/* If memory runs out at any moment, a page is refused or whole. */
static void test_page_without_memory(void **state)
{
    (void)state;
    char path[768];
    struct tdm_step *step;
    struct tdm_error err;
    json_malloc_t before_malloc;
    json_free_t before_free;
    bool reached = true;
    unsigned refused = 0;
    write_sources(97001, false);
    snprintf(path, sizeof(path), "%s/run.db", folder);
    assert_int_equal(tdm_step_read(path, TDM_PLOT_LAST_STEP, 0, &step, &err), TDM_OK);
    json_get_alloc_funcs(&before_malloc, &before_free);
    json_set_alloc_funcs(allocate, free);
    char *whole = page_without_memory(step, 0, &reached);
    assert_non_null(whole);
    reached = true;
    for (uint64_t n = 1; reached; n += 1 + n / 64) {
        char *page = page_without_memory(step, n, &reached);
        refused += page == NULL;
        assert_true(page == NULL || strcmp(page, whole) == 0);
        free(page);
    }
    json_set_alloc_funcs(before_malloc, before_free);
    assert_true(refused > 100);
    free(whole);
    tdm_step_free(step);
}

static void test_other_ops(void **state)
{
    (void)state;
    struct tdm_step *step;
    struct tdm_error err = {0};
    char path[768], command[2048];
    if (system("sqlite3 --version >/dev/null 2>&1") != 0)
        skip();
    write_sources(97001, false);
    snprintf(path, sizeof(path), "%s/run.db", folder);
    snprintf(command, sizeof(command),
             "sqlite3 '%s' \"update op set kind = 'zero' where number = 7\"", path);
    assert_int_equal(system(command), 0);
    assert_int_equal(tdm_step_read(path, TDM_PLOT_LAST_STEP, 0, &step, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "op 7 is not the one"));
    assert_non_null(strstr(err.hint, "another version"));
}

static int remove_sources(void **state)
{
    (void)state;
    char path[768];
    snprintf(path, sizeof(path), "%s/plan.json", folder);
    unlink(path);
    snprintf(path, sizeof(path), "%s/run.db", folder);
    unlink(path);
    return 0;
}

int main(void)
{
    const char *scratch = getenv("TDM_SCRATCH");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_formats, remove_sources),
        cmocka_unit_test_teardown(test_ranks, remove_sources),
        cmocka_unit_test_teardown(test_page_without_memory, remove_sources),
        cmocka_unit_test_teardown(test_other_ops, remove_sources)};
    snprintf(folder, sizeof(folder), "%s", scratch != NULL ? scratch : ".");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
