/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a sweep, or one for each value of another, as tables, as JSON or as a picture. */
#include "commands/sweep_report.h"

#include "base/json.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/nest_text.h"
#include "commands/prediction.h"
#include "commands/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t stop;

static void note_stop(int signal)
{
    (void)signal;
    stop = 1;
}

/* ---- texts ---- */

/* The sweeps that were run: one, or one for each value of `lines`. */
struct sweeps {
    const struct tdm_sweep *lines; /* NULL: one sweep */
    size_t count;                  /* results; fewer than asked for if it was stopped */
    struct tdm_sweep_result results[TDM_FRONTIER_MOST];
};

static const char *format_value(enum tdm_sweep_axis axis, uint64_t value, char out[TDM_FORMAT_SIZE])
{
    return axis == TDM_SWEEP_CONTEXT ? tdm_format_tokens(value, out) : tdm_format_bytes(value, out);
}

/* "device memory: 153.93 GiB would do". */
static void say_shortage(const struct tdm_sweep_point *point, char *out, size_t bytes)
{
    char device[TDM_FORMAT_SIZE], host[TDM_FORMAT_SIZE];
    tdm_format_bytes(point->needed_device_bytes, device);
    tdm_format_bytes(point->needed_far_bytes, host);
    switch (point->binding) {
    case TDM_BINDING_DEVICE:
        snprintf(out, bytes, "device memory: %s is enough", device);
        break;
    case TDM_BINDING_HOST:
        snprintf(out, bytes, "host memory: %s is enough", host);
        break;
    case TDM_BINDING_EITHER:
        snprintf(out, bytes, "%s of device or %s of host memory is enough", device, host);
        break;
    default:
        snprintf(out, bytes, "device and host memory are both short");
    }
}

/* ---- the table ---- */

enum { ORDER, GROUPS, CHUNK, KEPT, HELD, ON_HOST, STEP, GAP, RATE, MFU, DEVICE, HOST, COLUMNS };

static const struct {
    const char *title;
    bool left; /* alignment */
} columns[COLUMNS] = {{"order", true}, {"groups", true},  {"chunk", false},
                      {"kept", true},  {"held", true},    {"on the host", true},
                      {"step", false}, {"gap", false},    {"tokens/s", false},
                      {"MFU", false},  {"device", false}, {"host", false}};

struct row {
    char value[TDM_FORMAT_SIZE];
    char cells[COLUMNS][TDM_NEST_TEXT];
};

static void fill_row(enum tdm_sweep_axis axis, const struct tdm_sweep_point *point, struct row *row)
{
    const struct tdm_schedule *schedule = point->schedule;
    const struct tdm_simulation *s = &point->search.simulation;
    char text[TDM_FORMAT_SIZE];
    format_value(axis, point->value, row->value);
    if (schedule == NULL)
        return;
    uint64_t longest = schedule->sequences[0].tokens;
    double rate = (double)tdm_schedule_tokens(schedule) / s->step_seconds;
    snprintf(row->cells[ORDER], TDM_NEST_TEXT, "%s", tdm_order_name(schedule->order));
    tdm_nest_groups(schedule, row->cells[GROUPS]);
    snprintf(row->cells[CHUNK], TDM_NEST_TEXT, "%s",
             tdm_format_tokens(schedule->chunk_tokens < longest ? schedule->chunk_tokens : longest,
                               text));
    tdm_nest_kept(schedule, row->cells[KEPT]);
    tdm_nest_held(schedule, row->cells[HELD]);
    tdm_nest_on_host(schedule, row->cells[ON_HOST]);
    snprintf(row->cells[STEP], TDM_NEST_TEXT, "%s", tdm_format_seconds(s->step_seconds, text));
    if (point->search.bound_seconds > 0)
        snprintf(row->cells[GAP], TDM_NEST_TEXT, "%.2f%%", 100 * point->search.gap);
    snprintf(row->cells[RATE], TDM_NEST_TEXT, "%s",
             tdm_format_digits((uint64_t)(rate + 0.5), text));
    snprintf(row->cells[MFU], TDM_NEST_TEXT, "%.1f%%", 100 * tdm_prediction_mfu(schedule, s));
    snprintf(row->cells[DEVICE], TDM_NEST_TEXT, "%s",
             tdm_format_bytes(s->used_peak_bytes[TDM_DEVICE], text));
    snprintf(row->cells[HOST], TDM_NEST_TEXT, "%s",
             tdm_format_bytes(s->used_peak_bytes[schedule->machine->topology.far], text));
}

static size_t wider(size_t width, const char *text)
{
    return strlen(text) > width ? strlen(text) : width;
}

/* The schedule of the first point that fits; NULL: none does. */
static const struct tdm_schedule *any_schedule(const struct sweeps *sweeps)
{
    for (size_t i = 0; i < sweeps->count; i++)
        for (size_t k = 0; k < sweeps->results[i].count; k++)
            if (sweeps->results[i].points[k].schedule != NULL)
                return sweeps->results[i].points[k].schedule;
    return NULL;
}

/* Prints a note if the rates were not measured. */
static void print_rates(const struct sweeps *sweeps)
{
    char note[TDM_RATES_NOTE_SIZE];
    const struct tdm_schedule *schedule = any_schedule(sweeps);
    if (schedule != NULL && tdm_schedule_rates_note(schedule, note))
        printf("rates %s\n", note);
}

static enum tdm_status print_table(const struct tdm_sweep_result *result, struct tdm_error *err)
{
    size_t widths[COLUMNS], first = strlen(tdm_sweep_axis_name(result->axis));
    struct row *rows = calloc(result->count + 1, sizeof(*rows));
    if (rows == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu rows", result->count);
    for (int c = 0; c < COLUMNS; c++)
        widths[c] = strlen(columns[c].title);
    for (size_t i = 0; i < result->count; i++) {
        fill_row(result->axis, &result->points[i], &rows[i]);
        first = wider(first, rows[i].value);
        for (int c = 0; c < COLUMNS; c++)
            widths[c] = wider(widths[c], rows[i].cells[c]);
    }
    printf("%*s", (int)first, tdm_sweep_axis_name(result->axis));
    for (int c = 0; c < COLUMNS; c++)
        printf("  %*s", columns[c].left ? -(int)widths[c] : (int)widths[c], columns[c].title);
    printf("\n");
    for (size_t i = 0; i < result->count; i++) {
        const struct tdm_sweep_point *point = &result->points[i];
        printf("%*s", (int)first, rows[i].value);
        if (point->schedule == NULL) {
            char text[128];
            say_shortage(point, text, sizeof(text));
            printf("  does not fit; %s\n", text);
            continue;
        }
        for (int c = 0; c < COLUMNS; c++)
            printf("  %*s", columns[c].left ? -(int)widths[c] : (int)widths[c], rows[i].cells[c]);
        printf("\n");
    }
    free(rows);
    return TDM_OK;
}

static enum tdm_status print_tables(const struct sweeps *sweeps, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    char value[TDM_FORMAT_SIZE];
    print_rates(sweeps);
    for (size_t i = 0; i < sweeps->count && status == TDM_OK; i++) {
        if (sweeps->lines != NULL)
            printf("%s%s %s\n", i == 0 ? "" : "\n", tdm_sweep_axis_name(sweeps->lines->axis),
                   format_value(sweeps->lines->axis, sweeps->lines->values[i], value));
        status = print_table(&sweeps->results[i], err);
    }
    return status;
}

/* ---- JSON ---- */

static const char *const axis_keys[TDM_SWEEP_AXES] = {"context", "memory_bytes",
                                                      "host_memory_bytes"};

static json_t *count_or_null(uint64_t count)
{
    return count == 0 ? json_null() : json_integer((json_int_t)count);
}

static json_t *groups_json(const struct tdm_schedule *schedule)
{
    json_t *list = json_array();
    for (uint32_t g = 0; g < schedule->group_count; g++)
        tdm_json_add(&list, json_integer(schedule->groups[g].layers));
    return list;
}

static json_t *point_json(enum tdm_sweep_axis axis, const struct tdm_sweep_point *point)
{
    const struct tdm_schedule *schedule = point->schedule;
    char kept[TDM_NEST_TEXT], held[TDM_NEST_TEXT], on_host[TDM_NEST_TEXT];
    json_t *object;
    if (schedule == NULL) {
        object = json_pack("{s:b, s:s, s:o, s:o}", "fits", 0, "binding",
                           tdm_binding_name(point->binding), "needed_memory_bytes",
                           count_or_null(point->needed_device_bytes), "needed_host_memory_bytes",
                           count_or_null(point->needed_far_bytes));
    } else {
        object = tdm_prediction_json(schedule, &point->search.simulation);
        json_t *nest = json_pack(
            "{s:s, s:o, s:I, s:s, s:s, s:s}", "order", tdm_order_name(schedule->order), "groups",
            groups_json(schedule), "chunk_tokens", (json_int_t)schedule->chunk_tokens, "kept",
            tdm_nest_kept(schedule, kept), "held", tdm_nest_held(schedule, held), "on_host",
            tdm_nest_on_host(schedule, on_host));
        tdm_json_set(&object, "fits", json_true());
        tdm_json_set(&object, "bound_seconds", json_real(point->search.bound_seconds));
        tdm_json_set(&object, "gap", json_real(point->search.gap));
        tdm_json_set(&object, "nest", nest);
    }
    tdm_json_set(&object, axis_keys[axis], json_integer((json_int_t)point->value));
    return object;
}

static enum tdm_status print_json(const struct sweeps *sweeps, bool complete, struct tdm_error *err)
{
    const struct tdm_sweep *lines = sweeps->lines;
    const enum tdm_sweep_axis axis = sweeps->results[0].axis;
    json_t *points = json_array();
    for (size_t i = 0; i < sweeps->count; i++)
        for (size_t k = 0; k < sweeps->results[i].count; k++) {
            json_t *point = point_json(axis, &sweeps->results[i].points[k]);
            if (lines != NULL)
                tdm_json_set(&point, axis_keys[lines->axis],
                             json_integer((json_int_t)lines->values[i]));
            tdm_json_add(&points, point);
        }
    json_t *root = json_pack("{s:s, s:b, s:o}", "sweep", tdm_sweep_axis_name(axis), "complete",
                             (int)complete, "points", points);
    if (lines != NULL)
        tdm_json_set(&root, "lines", json_string(tdm_sweep_axis_name(lines->axis)));
    return tdm_print_json(root, err);
}

/* ---- the picture ---- */

static const char *const x_titles[TDM_SWEEP_AXES] = {"context (tokens)",
                                                     "device memory that may be used (GiB)",
                                                     "host memory that may be used (GiB)"};

/* Titles of a picture; `schedule` is of a point that fits. */
static void write_titles(const struct sweeps *sweeps, const struct tdm_schedule *schedule,
                         char title[160], char subtitle[320])
{
    static const char *const by[TDM_SWEEP_AXES] = {"context", "device memory", "host memory"};
    const enum tdm_sweep_axis axis = sweeps->results[0].axis;
    bool varies[TDM_SWEEP_AXES] = {false};
    char text[3][TDM_FORMAT_SIZE];
    varies[axis] = true;
    if (sweeps->lines != NULL)
        varies[sweeps->lines->axis] = true;
    tdm_format_tokens(schedule->sequences[0].tokens, text[0]);
    tdm_format_bytes(schedule->memory_bytes, text[1]);
    tdm_format_bytes(schedule->host_memory_bytes, text[2]);
    int used = snprintf(title, 160, "%s", schedule->model->name);
    if (!varies[TDM_SWEEP_CONTEXT])
        used += snprintf(title + used, 160 - (size_t)used, ", %s tokens", text[0]);
    used += snprintf(title + used, 160 - (size_t)used, ", by %s", by[axis]);
    if (sweeps->lines != NULL)
        snprintf(title + used, 160 - (size_t)used, " and %s", by[sweeps->lines->axis]);
    used = snprintf(subtitle, 320, "%s", schedule->machine->title);
    for (int place = 0; place < TDM_PLACES; place++)
        if (!varies[TDM_SWEEP_MEMORY + place])
            used +=
                snprintf(subtitle + used, 320 - (size_t)used, ", %s of %s memory", text[1 + place],
                         tdm_place_name(&schedule->machine->topology, (enum tdm_place)place));
    snprintf(subtitle + used, 320 - (size_t)used, ", optimizer %s; predicted",
             tdm_optimizer_name(schedule->optimizer.kind));
}

/* A new list of dots, which the caller frees; NULL: out of memory. */
static struct tdm_sweep_dot *dots_of(const struct tdm_sweep_result *result)
{
    struct tdm_sweep_dot *dots = calloc(result->count + 1, sizeof(*dots));
    for (size_t i = 0; i < result->count && dots != NULL; i++) {
        const struct tdm_sweep_point *point = &result->points[i];
        const struct tdm_simulation *s = &point->search.simulation;
        struct tdm_sweep_dot *dot = &dots[i];
        dot->x = result->axis == TDM_SWEEP_CONTEXT
                     ? (double)point->value
                     : (double)point->value / (double)(UINT64_C(1) << 30);
        dot->fits = point->schedule != NULL;
        if (!dot->fits)
            continue;
        dot->step_seconds = s->step_seconds;
        dot->bound_seconds = point->search.bound_seconds;
        dot->mfu = tdm_prediction_mfu(point->schedule, s);
        for (int place = 0; place < TDM_PLACES; place++)
            dot->limit_bytes[place] = tdm_schedule_limit(point->schedule, (enum tdm_place)place);
        memcpy(dot->peak_bytes, s->used_peak_bytes, sizeof(dot->peak_bytes));
        tdm_nest_name(point->schedule, dot->nest);
    }
    return dots;
}

/* Draws a sweep. */
static enum tdm_status draw_one(const struct sweeps *sweeps, const struct tdm_picture *picture,
                                struct tdm_error *err)
{
    const struct tdm_sweep_result *result = &sweeps->results[0];
    struct tdm_sweep_plot plot = {.count = result->count,
                                  .x_title = x_titles[result->axis],
                                  .tokens = result->axis == TDM_SWEEP_CONTEXT,
                                  .dots = dots_of(result)};
    if (plot.dots == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu points", result->count);
    write_titles(sweeps, any_schedule(sweeps), plot.title, plot.subtitle);
    enum tdm_status status = tdm_sweep_plot_draw(&plot, picture, err);
    free(plot.dots);
    return status;
}

/* Draws a sweep for each value of another. */
static enum tdm_status draw_lines(const struct sweeps *sweeps, const struct tdm_picture *picture,
                                  struct tdm_error *err)
{
    static const char *const of[TDM_SWEEP_AXES] = {"tokens", "of device memory", "of host memory"};
    const enum tdm_sweep_axis axis = sweeps->results[0].axis;
    struct tdm_frontier_plot plot = {
        .count = sweeps->count, .x_title = x_titles[axis], .tokens = axis == TDM_SWEEP_CONTEXT};
    char value[TDM_FORMAT_SIZE];
    enum tdm_status status = TDM_OK;
    write_titles(sweeps, any_schedule(sweeps), plot.title, plot.subtitle);
    for (size_t i = 0; i < sweeps->count; i++) {
        struct tdm_frontier_line *line = &plot.lines[i];
        line->count = sweeps->results[i].count;
        line->dots = dots_of(&sweeps->results[i]);
        snprintf(line->name, sizeof(line->name), "%s %s",
                 format_value(sweeps->lines->axis, sweeps->lines->values[i], value),
                 of[sweeps->lines->axis]);
        if (line->dots == NULL)
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu points", line->count);
    }
    if (status == TDM_OK)
        status = tdm_frontier_plot_draw(&plot, picture, err);
    for (size_t i = 0; i < sweeps->count; i++)
        free(plot.lines[i].dots);
    return status;
}

/* ---- all of it ---- */

struct progress {
    struct tdm_ticker ticker;
    enum tdm_sweep_axis axis;
    size_t before, all; /* points of the sweeps before, and of all */
};

static void say_planned(void *self, size_t done, size_t count, const struct tdm_sweep_point *point)
{
    struct progress *progress = self;
    char value[TDM_FORMAT_SIZE], seconds[TDM_FORMAT_SIZE];
    (void)count;
    tdm_ticker_say(&progress->ticker, "%zu of %zu points; %s: %s", progress->before + done,
                   progress->all, format_value(progress->axis, point->value, value),
                   point->schedule == NULL
                       ? "does not fit"
                       : tdm_format_seconds(point->search.simulation.step_seconds, seconds));
}

/* Runs the sweep for each value of sweeps->lines, or once. */
static enum tdm_status run_sweeps(const struct tdm_request *asked, const struct tdm_sweep *sweep,
                                  struct progress *progress, struct sweeps *sweeps,
                                  struct tdm_error *err)
{
    const struct tdm_sweep *lines = sweeps->lines;
    const size_t count = lines == NULL ? 1 : lines->count;
    struct tdm_request request = *asked;
    enum tdm_status status = TDM_OK;
    progress->all = count * sweep->count;
    while (sweeps->count < count && status == TDM_OK) {
        const size_t i = sweeps->count++;
        struct tdm_sweep_options options = {
            .stop = &stop, .self = progress, .planned = say_planned};
        if (lines != NULL)
            tdm_sweep_set(&request, lines->axis, lines->values[i]);
        if (i > 0 && lines->axis != TDM_SWEEP_CONTEXT)
            options.less = &sweeps->results[i - 1];
        status = tdm_sweep_run(&request, sweep, &options, &sweeps->results[i], err);
        progress->before += sweep->count;
    }
    return status;
}

static enum tdm_status run(const struct tdm_request *request, const struct tdm_sweep *sweep,
                           struct sweeps *sweeps, struct tdm_error *err)
{
    struct progress progress = {.axis = sweep->axis};
    struct sigaction action = {.sa_handler = note_stop}, before;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESETHAND; /* a second Ctrl-C kills the process */
    sigaction(SIGINT, &action, &before);
    tdm_ticker_begin(&progress.ticker, stderr, "planning the first point");
    enum tdm_status status = run_sweeps(request, sweep, &progress, sweeps, err);
    tdm_ticker_end(&progress.ticker);
    sigaction(SIGINT, &before, NULL);
    return status;
}

enum tdm_status tdm_sweep_report(const struct tdm_request *request, const struct tdm_sweep *sweep,
                                 const struct tdm_sweep *lines,
                                 const struct tdm_sweep_report *report, struct tdm_error *err)
{
    const struct tdm_picture picture = {
        .path = report->picture, .force = report->force, .width = 1600, .height = 1100};
    struct sweeps sweeps = {.lines = lines};
    enum tdm_status status = TDM_OK;
    if (report->picture != NULL) /* check before minutes of planning */
        status = tdm_picture_check(&picture, err);
    if (status != TDM_OK)
        return status;
    status = run(request, sweep, &sweeps, err);
    const bool complete = status == TDM_OK;
    if (complete || (status == TDM_INTERRUPTED && sweeps.results[0].count > 0)) {
        struct tdm_error later;
        enum tdm_status printed =
            report->json ? print_json(&sweeps, complete, &later) : print_tables(&sweeps, &later);
        if (printed != TDM_OK) {
            *err = later;
            status = printed;
        }
    }
    if (status == TDM_OK && any_schedule(&sweeps) == NULL)
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits at any point");
    if (status == TDM_OK && report->picture != NULL)
        status = (lines == NULL ? draw_one : draw_lines)(&sweeps, &picture, err);
    for (size_t i = 0; i < sweeps.count; i++)
        tdm_sweep_result_free(&sweeps.results[i]);
    return status;
}
