/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark diff`: compares two schedules and their costs. */
#include "commands/cmd.h"

#include "base/json.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/common_options.h"
#include "commands/compare_schedules.h"
#include "commands/prediction.h"
#include "commands/print.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Parts that differ by less than this fraction of their section's total are not shown. */
#define LEAST_SHARE 1e-4

static const char *format_value(enum tdm_cost_unit unit, double value, char out[TDM_FORMAT_SIZE])
{
    switch (unit) {
    case TDM_COST_SECONDS:
        return tdm_format_seconds(value, out);
    case TDM_COST_FLOPS:
        snprintf(out, TDM_FORMAT_SIZE, "%.4g", value);
        return out;
    default:
        return tdm_format_bytes((uint64_t)value, out);
    }
}

static void print_knobs(const struct tdm_comparison *c)
{
    if (c->knob_count == 0)
        printf("all knobs are the same\n");
    size_t width = 0;
    for (size_t i = 0; i < c->knob_count; i++)
        if (strlen(c->knobs[i].name) > width)
            width = strlen(c->knobs[i].name);
    for (size_t i = 0; i < c->knob_count; i++)
        printf("%-*s  %s -> %s\n", (int)width, c->knobs[i].name, c->knobs[i].values[0],
               c->knobs[i].values[1]);
}

static void print_cost(const struct tdm_cost_row *row)
{
    bool total = row->is_total;
    char a[TDM_FORMAT_SIZE], b[TDM_FORMAT_SIZE], size[TDM_FORMAT_SIZE];
    double more = row->values[1] - row->values[0];
    format_value(row->unit, fabs(more), size);
    printf("%s%-*s %12s %12s", total ? "" : "  ", total ? 24 : 22, row->name,
           format_value(row->unit, row->values[0], a), format_value(row->unit, row->values[1], b));
    if (fabs(more) <= 0)
        printf("%13s", "same");
    else
        printf(" %c%11s", more < 0 ? '-' : '+', size);
    if (fabs(more) > 0 && row->values[0] > 0)
        printf(" %+8.1f%%", 100 * more / row->values[0]);
    fputc('\n', stdout);
}

/* Prints the totals, and the parts that differ. A section without a total has its name above its
 * parts. */
static void print_costs(const struct tdm_comparison *c)
{
    const char *section = "";
    double total = 0;
    printf("\n%-24s %12s %12s %12s\n", "", "A", "B", "B - A");
    for (size_t i = 0; i < c->cost_count; i++) {
        const struct tdm_cost_row *row = &c->costs[i];
        if (row->is_total)
            total = fmax(row->values[0], row->values[1]);
        else if (fabs(row->values[1] - row->values[0]) <= LEAST_SHARE * total)
            continue;
        else if (strcmp(section, row->section) != 0)
            printf("%s\n", row->section);
        section = row->section;
        print_cost(row);
    }
}

static json_t *costs_json(const struct tdm_comparison *c)
{
    static const char *const units[] = {"seconds", "flops", "bytes"};
    json_t *list = json_array();
    for (size_t i = 0; i < c->cost_count; i++) {
        const struct tdm_cost_row *row = &c->costs[i];
        json_t *values = json_array();
        for (int side = 0; side < 2; side++)
            tdm_json_add(&values, row->unit == TDM_COST_BYTES
                                      ? json_integer((json_int_t)row->values[side])
                                      : json_real(row->values[side]));
        tdm_json_add(&list, json_pack("{s:s, s:s, s:s, s:o}", "section", row->section, "name",
                                      row->name, "unit", units[row->unit], "values", values));
    }
    return list;
}

static enum tdm_status print_json(const char *const files[2],
                                  const struct tdm_schedule *const schedules[2],
                                  const struct tdm_comparison *c, struct tdm_error *err)
{
    json_t *knobs = json_array();
    for (size_t i = 0; i < c->knob_count; i++)
        tdm_json_add(&knobs, json_pack("{s:s, s:[s, s]}", "name", c->knobs[i].name, "values",
                                       c->knobs[i].values[0], c->knobs[i].values[1]));
    return tdm_print_json(json_pack("{s:[o, o], s:o, s:o, s:[o, o]}", "files",
                                    tdm_json_text(files[0]), tdm_json_text(files[1]), "knobs",
                                    knobs, "costs", costs_json(c), "predicted",
                                    tdm_prediction_json(schedules[0], &c->simulation[0]),
                                    tdm_prediction_json(schedules[1], &c->simulation[1])),
                          err);
}

static enum tdm_status compare(const char *const files[2], bool as_json, struct tdm_error *err)
{
    struct tdm_schedule *schedules[2] = {NULL, NULL};
    struct tdm_comparison comparison = {0};
    struct tdm_ticker ticker;
    tdm_ticker_begin(&ticker, stderr, "simulating both schedules");
    enum tdm_status status = tdm_schedule_load(files[0], &schedules[0], err);
    if (status == TDM_OK)
        status = tdm_schedule_load(files[1], &schedules[1], err);
    const struct tdm_schedule *const both[2] = {schedules[0], schedules[1]};
    if (status == TDM_OK)
        status = tdm_compare_schedules(both, &comparison, err);
    tdm_ticker_end(&ticker);
    if (status == TDM_OK && as_json) {
        status = print_json(files, both, &comparison, err);
    } else if (status == TDM_OK) {
        printf("A  %s\nB  %s\n\n", files[0], files[1]);
        print_knobs(&comparison);
        print_costs(&comparison);
    }
    tdm_comparison_free(&comparison);
    tdm_schedule_free(schedules[0]);
    tdm_schedule_free(schedules[1]);
    return status;
}

static const struct tdm_option options[] = {{.as = &tdm_option_json}, {.name = NULL}};

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    bool as_json = false, help;
    int first;
    enum tdm_status status =
        tdm_options_read(&tdm_cmd_diff, argc, argv, &as_json, &first, &help, err);
    if (status != TDM_OK || help)
        return status;
    if (argc - first != 2) {
        tdm_fail(err, TDM_USAGE, "diff: takes two schedules");
        return tdm_hint(err, "usage: tidemark %s", tdm_cmd_diff.usage);
    }
    const char *const files[2] = {argv[first], argv[first + 1]};
    return compare(files, as_json, err);
}

const struct tdm_command tdm_cmd_diff = {
    .name = "diff",
    .usage = "diff A B [--json]",
    .summary = "in what two schedules differ, and what that costs",
    .options = options,
    .notes = "Lists the knobs that are not the same, then what is predicted of both: seconds by "
             "phase and op kind, FLOPs made again, peaks by category, copies; parts that are the "
             "same are left out. Each is simulated with the machine that it was planned for.\n"
             "\n"
             "Example:\n"
             "  tidemark diff plan.json other.json\n",
    .arguments = TDM_VALUES_FILES,
    .run = run,
};
