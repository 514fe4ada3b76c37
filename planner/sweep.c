/* SPDX-License-Identifier: Apache-2.0 */
/* A sweep: reads the points and plans them. */
#include "planner/ladder.h"
#include "planner/sweep.h"

#include "base/units.h"
#include "planner/objective.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVEN_POINTS 13u /* default for memory */
#define CONTEXT_GRAIN UINT64_C(1024)
#define MEMORY_GRAIN (UINT64_C(1) << 26)

static const char *const axes[TDM_SWEEP_AXES] = {"context", "memory", "host-memory"};

const char *tdm_sweep_axis_name(enum tdm_sweep_axis axis)
{
    return axes[axis];
}

/* ---- points ---- */

static enum tdm_status read_value(const struct tdm_sweep *sweep, const char *text, uint64_t *value,
                                  struct tdm_error *err)
{
    char what[32];
    snprintf(what, sizeof(what), "--sweep %s", axes[sweep->axis]);
    if (sweep->axis != TDM_SWEEP_CONTEXT)
        return tdm_parse_bytes(text, what, value, err);
    enum tdm_status status = tdm_parse_tokens(text, what, value, err);
    if (status == TDM_OK && *value > TDM_LONGEST_CONTEXT)
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is more than 256M tokens", what, text);
    return status;
}

/* Adds a value above the last one. Values that rounding made equal are added once. */
static void add_value(struct tdm_sweep *sweep, uint64_t value)
{
    if (sweep->count == 0 || value > sweep->values[sweep->count - 1])
        sweep->values[sweep->count++] = value;
}

static enum tdm_status too_many(const char *text, struct tdm_error *err)
{
    return tdm_fail(err, TDM_USAGE, "--sweep: \"%s\" asks for more than %u points", text,
                    TDM_SWEEP_MOST);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static enum tdm_status read_list(char *values, const char *text, struct tdm_sweep *sweep,
                                 struct tdm_error *err)
{
    uint64_t list[TDM_SWEEP_MOST] = {0};
    size_t count = 0;
    for (char *rest = values; rest != NULL;) {
        const char *item = strsep(&rest, ",");
        if (count == TDM_SWEEP_MOST)
            return too_many(text, err);
        enum tdm_status status = read_value(sweep, item, &list[count++], err);
        if (status != TDM_OK)
            return status;
    }
    qsort(list, count, sizeof(list[0]), by_value);
    for (size_t i = 0; i < count; i++)
        add_value(sweep, list[i]);
    return TDM_OK;
}

/* Rounds to a multiple of `grain` if the value is at least 16 of them. */
static uint64_t rounded(double value, uint64_t grain)
{
    return value >= 16.0 * (double)grain ? (uint64_t)(value / (double)grain + 0.5) * grain
                                         : (uint64_t)(value + 0.5);
}

static void fill_range(struct tdm_sweep *sweep, uint64_t from, uint64_t to, uint64_t points)
{
    bool tokens = sweep->axis == TDM_SWEEP_CONTEXT;
    if (tokens && points == 0)
        for (uint64_t value = from; value < to; value *= 2)
            add_value(sweep, value);
    for (uint64_t i = 0; i + 1 < points; i++) {
        double share = (double)i / (double)(points - 1);
        double value = tokens ? (double)from * pow((double)to / (double)from, share)
                              : (double)from + share * (double)(to - from);
        add_value(sweep, i == 0 ? from : rounded(value, tokens ? CONTEXT_GRAIN : MEMORY_GRAIN));
    }
    add_value(sweep, to);
}

/* Reads FROM..TO or FROM..TO:N. `dots` is in `values`. */
static enum tdm_status read_range(char *values, char *dots, const char *text,
                                  struct tdm_sweep *sweep, struct tdm_error *err)
{
    uint64_t from, to, points = sweep->axis == TDM_SWEEP_CONTEXT ? 0 : EVEN_POINTS;
    char *colon = strchr(dots, ':');
    *dots = '\0';
    if (colon != NULL)
        *colon = '\0';
    enum tdm_status status = read_value(sweep, values, &from, err);
    if (status == TDM_OK)
        status = read_value(sweep, dots + 2, &to, err);
    if (status == TDM_OK && colon != NULL)
        status = tdm_parse_count(colon + 1, "--sweep: points", 2, TDM_SWEEP_MOST, &points, err);
    if (status != TDM_OK)
        return status;
    if (from >= to)
        return tdm_fail(err, TDM_USAGE, "--sweep: \"%s\" does not rise", text);
    fill_range(sweep, from, to, points);
    return TDM_OK;
}

enum tdm_status tdm_sweep_parse(const char *text, struct tdm_sweep *sweep, struct tdm_error *err)
{
    const char *equals = strchr(text, '=');
    size_t length = equals == NULL ? 0 : (size_t)(equals - text);
    int axis = 0;
    while (axis < TDM_SWEEP_AXES &&
           !(strlen(axes[axis]) == length && memcmp(axes[axis], text, length) == 0))
        axis++;
    if (axis == TDM_SWEEP_AXES) {
        tdm_fail(err, TDM_USAGE, "--sweep: \"%s\" is not AXIS=VALUES", text);
        return tdm_hint(err, "for example context=8K..4M, memory=24G..140G:20, host-memory=0,64G");
    }
    *sweep = (struct tdm_sweep){.axis = (enum tdm_sweep_axis)axis};
    char *values = strdup(equals + 1);
    if (values == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for --sweep");
    char *dots = strstr(values, "..");
    enum tdm_status status = dots != NULL ? read_range(values, dots, text, sweep, err)
                                          : read_list(values, text, sweep, err);
    free(values);
    return status;
}

/* ---- plans ---- */

void tdm_sweep_set(struct tdm_request *request, enum tdm_sweep_axis axis, uint64_t value)
{
    switch (axis) {
    case TDM_SWEEP_CONTEXT:
        request->context = value;
        break;
    case TDM_SWEEP_MEMORY:
        request->has_memory = true;
        request->memory_bytes = value;
        break;
    default:
        request->has_host_memory = true;
        request->host_memory_bytes = value;
    }
}

/* Finds what is short, and how much is enough with the other place's limit kept. */
static enum tdm_status find_shortage(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     struct tdm_sweep_point *point, struct tdm_error *err)
{
    enum tdm_status status =
        tdm_candidates_least(schedule, pins, TDM_DEVICE, &point->needed_device_bytes, err);
    if (status == TDM_OK)
        status = tdm_candidates_least(schedule, pins, schedule->machine->topology.far,
                                      &point->needed_far_bytes, err);
    point->binding = tdm_binding_of(point->needed_device_bytes, point->needed_far_bytes);
    return status;
}

/* Takes over the schedule of a point with less memory, if there is one, if it is faster: it fits
 * here too. */
static void take_over(struct tdm_schedule *schedule, const struct tdm_sweep_point *below,
                      enum tdm_status *status, struct tdm_search *search)
{
    if (schedule == NULL || below == NULL)
        return;
    const double step = below->search.simulation.step_seconds;
    if (below->schedule == NULL || (*status != TDM_OK && *status != TDM_INFEASIBLE) ||
        (*status == TDM_OK && search->simulation.step_seconds <= step))
        return;
    tdm_copy_choices(schedule, below->schedule);
    search->simulation = below->search.simulation;
    tdm_search_set_bound(search, search->bound_seconds);
    *status = TDM_OK;
}

/* `below`: points with less memory, or NULL. */
static enum tdm_status plan_point(const struct tdm_request *request,
                                  const struct tdm_sweep_point *const below[2],
                                  struct tdm_sweep_point *point, struct tdm_error *err)
{
    struct tdm_objective_found found;
    enum tdm_status status = tdm_objective_time(request, TDM_EFFORT_FULL, &found, err);
    point->search = found.search;
    for (int i = 0; i < 2; i++)
        take_over(found.schedule, below[i], &status, &point->search);
    if (status == TDM_INFEASIBLE) {
        status = find_shortage(found.schedule, &found.pins, point, err);
    } else if (status == TDM_OK) {
        point->schedule = found.schedule;
        found.schedule = NULL;
    }
    tdm_schedule_free(found.schedule);
    tdm_pins_free(&found.pins);
    return status;
}

/* Reduces values above the machine's memory to that memory. */
static enum tdm_status clamp(const struct tdm_request *request, struct tdm_sweep *sweep,
                             struct tdm_error *err)
{
    struct tdm_machine *machine;
    enum tdm_status status = tdm_machine_load(request->machine, &machine, err);
    if (status != TDM_OK)
        return status;
    uint64_t capacity = machine->topology.places[TDM_DEVICE].capacity_bytes;
    tdm_machine_free(machine);
    struct tdm_sweep given = *sweep;
    sweep->count = 0;
    for (size_t i = 0; i < given.count; i++)
        add_value(sweep, given.values[i] < capacity ? given.values[i] : capacity);
    return TDM_OK;
}

enum tdm_status tdm_sweep_run(const struct tdm_request *asked, const struct tdm_sweep *given,
                              const struct tdm_sweep_options *options,
                              struct tdm_sweep_result *result, struct tdm_error *err)
{
    struct tdm_request request = *asked;
    struct tdm_sweep sweep = *given;
    enum tdm_status status = TDM_OK;
    *result = (struct tdm_sweep_result){.axis = sweep.axis};
    if (sweep.axis == TDM_SWEEP_MEMORY)
        status = clamp(asked, &sweep, err);
    result->points = calloc(sweep.count + 1, sizeof(*result->points));
    if (result->points == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu points", sweep.count);
    request.ladder = sweep.axis == TDM_SWEEP_MEMORY ? tdm_ladder_new() : NULL;
    while (result->count < sweep.count && status == TDM_OK) {
        struct tdm_sweep_point *point = &result->points[result->count];
        if (options->stop != NULL && *options->stop != 0) {
            status = tdm_fail(err, TDM_INTERRUPTED, "interrupted after %zu of %zu points",
                              result->count, sweep.count);
            break;
        }
        point->value = sweep.values[result->count];
        tdm_sweep_set(&request, sweep.axis, point->value);
        const bool has_below = result->count > 0 && sweep.axis != TDM_SWEEP_CONTEXT;
        const bool has_less = options->less != NULL && result->count < options->less->count;
        const struct tdm_sweep_point *const below[2] = {
            has_below ? point - 1 : NULL, has_less ? &options->less->points[result->count] : NULL};
        status = plan_point(&request, below, point, err);
        if (status != TDM_OK)
            break;
        result->count++;
        if (options->planned != NULL)
            options->planned(options->self, result->count, sweep.count, point);
    }
    tdm_ladder_free(request.ladder);
    return status;
}

void tdm_sweep_result_free(struct tdm_sweep_result *result)
{
    for (size_t i = 0; i < result->count; i++)
        tdm_schedule_free(result->points[i].schedule);
    free(result->points);
    *result = (struct tdm_sweep_result){0};
}
