/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a sweep as a table, as JSON or as a picture. */
#include "commands/sweep_report.h"

#include "base/json.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/nest_text.h"
#include "commands/prediction.h"
#include "commands/print.h"
#include "plots/sweep_plot.h"

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

/* Prints a note first if the rates were not measured. */
static void print_rates(const struct tdm_sweep_result *result)
{
    char note[TDM_RATES_NOTE_SIZE];
    size_t i = 0;
    while (i < result->count && result->points[i].schedule == NULL)
        i++;
    if (i < result->count && tdm_rates_note(result->points[i].schedule->machine, note))
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
    print_rates(result);
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

/* ---- JSON ---- */

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
    static const char *const keys[TDM_SWEEP_AXES] = {"context", "memory_bytes",
                                                     "host_memory_bytes"};
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
    tdm_json_set(&object, keys[axis], json_integer((json_int_t)point->value));
    return object;
}

static enum tdm_status print_json(const struct tdm_sweep_result *result, bool complete,
                                  struct tdm_error *err)
{
    json_t *points = json_array();
    for (size_t i = 0; i < result->count; i++)
        tdm_json_add(&points, point_json(result->axis, &result->points[i]));
    return tdm_print_json(json_pack("{s:s, s:b, s:o}", "sweep", tdm_sweep_axis_name(result->axis),
                                    "complete", (int)complete, "points", points),
                          err);
}

/* ---- the picture ---- */

/* `schedule`: of a point that fits. */
static void write_titles(const struct tdm_sweep_result *result, const struct tdm_schedule *schedule,
                         struct tdm_sweep_plot *plot)
{
    static const char *const x_titles[TDM_SWEEP_AXES] = {"context (tokens)",
                                                         "device memory that may be used (GiB)",
                                                         "host memory that may be used (GiB)"};
    char text[3][TDM_FORMAT_SIZE];
    plot->x_title = x_titles[result->axis];
    tdm_format_tokens(schedule->sequences[0].tokens, text[0]);
    tdm_format_bytes(schedule->memory_bytes, text[1]);
    tdm_format_bytes(schedule->host_memory_bytes, text[2]);
    if (plot->tokens)
        snprintf(plot->title, sizeof(plot->title), "%s, by context", schedule->model->name);
    else
        snprintf(plot->title, sizeof(plot->title), "%s, %s tokens, by %s memory",
                 schedule->model->name, text[0],
                 result->axis == TDM_SWEEP_MEMORY ? "device" : "host");
    snprintf(plot->subtitle, sizeof(plot->subtitle), "%s", schedule->machine->title);
    for (int place = 0; place < TDM_PLACES; place++) {
        size_t used = strlen(plot->subtitle);
        if ((int)result->axis - TDM_SWEEP_MEMORY != place)
            snprintf(plot->subtitle + used, sizeof(plot->subtitle) - used, ", %s of %s memory",
                     text[1 + place],
                     tdm_place_name(&schedule->machine->topology, (enum tdm_place)place));
    }
    size_t used = strlen(plot->subtitle);
    snprintf(plot->subtitle + used, sizeof(plot->subtitle) - used, ", optimizer %s; predicted",
             tdm_optimizer_name(schedule->optimizer.kind));
}

static enum tdm_status draw(const struct tdm_sweep_result *result,
                            const struct tdm_picture *picture, struct tdm_error *err)
{
    struct tdm_sweep_plot plot = {.count = result->count,
                                  .tokens = result->axis == TDM_SWEEP_CONTEXT};
    plot.dots = calloc(result->count + 1, sizeof(*plot.dots));
    if (plot.dots == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu points", result->count);
    for (size_t i = 0; i < result->count; i++) {
        const struct tdm_sweep_point *point = &result->points[i];
        const struct tdm_simulation *s = &point->search.simulation;
        struct tdm_sweep_dot *dot = &plot.dots[i];
        dot->x =
            plot.tokens ? (double)point->value : (double)point->value / (double)(UINT64_C(1) << 30);
        dot->fits = point->schedule != NULL;
        if (!dot->fits)
            continue;
        write_titles(result, point->schedule, &plot);
        dot->step_seconds = s->step_seconds;
        dot->mfu = tdm_prediction_mfu(point->schedule, s);
        for (int place = 0; place < TDM_PLACES; place++)
            dot->limit_bytes[place] = tdm_schedule_limit(point->schedule, (enum tdm_place)place);
        memcpy(dot->peak_bytes, s->used_peak_bytes, sizeof(dot->peak_bytes));
        tdm_nest_name(point->schedule, dot->nest);
    }
    enum tdm_status status = tdm_sweep_plot_draw(&plot, picture, err);
    free(plot.dots);
    return status;
}

/* ---- all of it ---- */

struct progress {
    struct tdm_ticker ticker;
    enum tdm_sweep_axis axis;
};

static void say_planned(void *self, size_t done, size_t count, const struct tdm_sweep_point *point)
{
    struct progress *progress = self;
    char value[TDM_FORMAT_SIZE], seconds[TDM_FORMAT_SIZE];
    tdm_ticker_say(&progress->ticker, "%zu of %zu points; %s: %s", done, count,
                   format_value(progress->axis, point->value, value),
                   point->schedule == NULL
                       ? "does not fit"
                       : tdm_format_seconds(point->search.simulation.step_seconds, seconds));
}

static enum tdm_status run(const struct tdm_request *request, const struct tdm_sweep *sweep,
                           struct tdm_sweep_result *result, struct tdm_error *err)
{
    struct progress progress = {.axis = sweep->axis};
    const struct tdm_sweep_options options = {
        .stop = &stop, .self = &progress, .planned = say_planned};
    struct sigaction action = {.sa_handler = note_stop}, before;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESETHAND; /* a second Ctrl-C kills the process */
    sigaction(SIGINT, &action, &before);
    tdm_ticker_begin(&progress.ticker, stderr, "planning the first point");
    enum tdm_status status = tdm_sweep_run(request, sweep, &options, result, err);
    tdm_ticker_end(&progress.ticker);
    sigaction(SIGINT, &before, NULL);
    return status;
}

enum tdm_status tdm_sweep_report(const struct tdm_request *request, const struct tdm_sweep *sweep,
                                 const struct tdm_sweep_report *report, struct tdm_error *err)
{
    const struct tdm_picture picture = {
        .path = report->picture, .force = report->force, .width = 1600, .height = 1100};
    struct tdm_sweep_result result = {0};
    enum tdm_status status = TDM_OK;
    if (report->picture != NULL) /* check before minutes of planning */
        status = tdm_picture_check(&picture, err);
    if (status != TDM_OK)
        return status;
    status = run(request, sweep, &result, err);
    bool complete = status == TDM_OK, any = false;
    for (size_t i = 0; i < result.count; i++)
        any |= result.points[i].schedule != NULL;
    if (complete || (status == TDM_INTERRUPTED && result.count > 0)) {
        struct tdm_error later;
        enum tdm_status printed =
            report->json ? print_json(&result, complete, &later) : print_table(&result, &later);
        if (printed != TDM_OK) {
            *err = later;
            status = printed;
        }
    }
    if (status == TDM_OK && !any)
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits at any point");
    if (status == TDM_OK && report->picture != NULL)
        status = draw(&result, &picture, err);
    tdm_sweep_result_free(&result);
    return status;
}
