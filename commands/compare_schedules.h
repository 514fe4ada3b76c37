/* SPDX-License-Identifier: Apache-2.0 */
/* Two schedules side by side: the knobs in which they differ, and what the simulator counts of
 * each. */
#ifndef TDM_COMMANDS_COMPARE_SCHEDULES_H
#define TDM_COMMANDS_COMPARE_SCHEDULES_H

#include "simulator/simulate.h"

#include <stdbool.h>
#include <stddef.h>

/* A knob that is not the same: a field of the schedule's JSON, "groups.kept_from_chunk". Of lists
 * the values are runs: "host x3, device". "-": the schedule has no such field. */
struct tdm_knob_difference {
    char name[80];
    char values[2][160];
};

enum tdm_cost_unit { TDM_COST_SECONDS, TDM_COST_FLOPS, TDM_COST_BYTES };

/* A figure of both: a total of its section ("step", "device peak"), or a part of it. */
struct tdm_cost_row {
    const char *section; /* static */
    const char *name;    /* static; the same as `section`: its total */
    enum tdm_cost_unit unit;
    double values[2];
};

struct tdm_comparison {
    struct tdm_simulation simulation[2];
    struct tdm_knob_difference *knobs;
    size_t knob_count, knob_room;
    struct tdm_cost_row *costs; /* section after section; what is zero in both is left out */
    size_t cost_count, cost_room;
};

/* Lowers and simulates both, each with the machine that it names, and lists what differs. The
 * caller frees *comparison. */
enum tdm_status tdm_compare_schedules(const struct tdm_schedule *const schedules[2],
                                      struct tdm_comparison *comparison, struct tdm_error *err);
void tdm_comparison_free(struct tdm_comparison *comparison);

#endif
