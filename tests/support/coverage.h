/* SPDX-License-Identifier: Apache-2.0 */
/* How many schedules of a test had each thing that a schedule can have, so that none is left
 * out. */
#ifndef TDM_TESTS_COVERAGE_H
#define TDM_TESTS_COVERAGE_H

#include "schedule/schedule.h"

#define TDM_COVERAGE_MOST 96

/* Zero at first. */
struct tdm_coverage {
    const char *names[TDM_COVERAGE_MOST];
    uint64_t schedules[TDM_COVERAGE_MOST];
    uint32_t count;
};

/* Notes what a schedule has: its nest, sets, places, homes, optimizer, model. */
void tdm_coverage_note(struct tdm_coverage *coverage, const struct tdm_schedule *schedule);

/* Notes its head dim and how many query heads have a KV head. */
void tdm_coverage_note_heads(struct tdm_coverage *coverage, const struct tdm_model *model);

/* Prints all of it on one line: "# schedules that had ...". */
void tdm_coverage_print(const struct tdm_coverage *coverage);

/* The next thing that no schedule had, from number *next on, which moves behind it; NULL: no
 * more. */
const char *tdm_coverage_missing(const struct tdm_coverage *coverage, uint32_t *next);

#endif
