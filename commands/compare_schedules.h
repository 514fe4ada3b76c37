/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two schedules: the knobs that differ, and the simulated costs of each. */
#ifndef TDM_COMMANDS_COMPARE_SCHEDULES_H
#define TDM_COMMANDS_COMPARE_SCHEDULES_H

#include "simulator/simulate.h"

#include <stdbool.h>
#include <stddef.h>

/* A knob that differs: a field of the schedule's JSON, such as "groups.kept_from_chunk". List
 * values are run-length encoded: "host x3, device". "-": the schedule has no such field. */
struct tdm_knob_difference {
    char name[80];
    char values[2][160];
};

enum tdm_cost_unit { TDM_COST_SECONDS, TDM_COST_FLOPS, TDM_COST_BYTES };

/* One cost of both schedules: the total of a section ("step", "device peak"), or one part of it. */
struct tdm_cost_row {
    char section[24]; /* "copied" */
    char name[48];    /* "host to device"; for the total the name of the section */
    bool is_total;
    enum tdm_cost_unit unit;
    double values[2];
};

struct tdm_comparison {
    struct tdm_simulation simulation[2];
    struct tdm_knob_difference *knobs;
    size_t knob_count, knob_capacity;
    struct tdm_cost_row *costs; /* grouped by section; rows that are zero in both are omitted */
    size_t cost_count, cost_capacity;
};

/* Lowers and simulates both schedules, each on the machine that it names, and lists the
 * differences. The caller frees *comparison. */
enum tdm_status tdm_compare_schedules(const struct tdm_schedule *const schedules[2],
                                      struct tdm_comparison *comparison, struct tdm_error *err);
void tdm_comparison_free(struct tdm_comparison *comparison);

#endif
