/* SPDX-License-Identifier: Apache-2.0 */
/* Counts how many schedules of a test had each feature of schedules, so that none is missed. */
#ifndef TDM_TESTS_COVERAGE_H
#define TDM_TESTS_COVERAGE_H

#include "schedule/schedule.h"

#define TDM_COVERAGE_MOST 96

/* Must be zero at first. */
struct tdm_coverage {
    const char *names[TDM_COVERAGE_MOST];
    uint64_t schedules[TDM_COVERAGE_MOST];
    uint32_t count;
};

/* Counts the features of a schedule: its nest, sets, places, homes, optimizer, model. */
void tdm_coverage_note(struct tdm_coverage *coverage, const struct tdm_schedule *schedule);

/* Counts the model's head dim and its number of query heads per KV head. */
void tdm_coverage_note_heads(struct tdm_coverage *coverage, const struct tdm_model *model);

/* Prints all counts on one line: "# schedules that had ...". */
void tdm_coverage_print(const struct tdm_coverage *coverage);

/* Returns the next feature that no schedule had, from number *next on, and moves *next after it.
 * NULL: no more. */
const char *tdm_coverage_missing(const struct tdm_coverage *coverage, uint32_t *next);

#endif
