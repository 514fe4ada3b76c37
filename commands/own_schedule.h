/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidemark's own schedule as one method among those of other systems, in plain words and figures:
 * what was said of it becomes a request to the planner, and the planner's answer what predict and
 * compare show.
 */
#ifndef TDM_COMMANDS_OWN_SCHEDULE_H
#define TDM_COMMANDS_OWN_SCHEDULE_H

#include "base/status.h"
#include "planner/ways.h"
#include "schedule/category.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The values of its keys (methods/keys_planned.c), and what else is asked; all borrowed. */
struct tdm_own_words {
    const char *model, *machine;
    uint64_t context, batch;
    double margin; /* of the device's memory, left over where `memory` is "all" */
    uint64_t device_bytes,
        host_bytes; /* that there are, where `memory` and `host_memory` are "all" */
    const char *objective, *optimizer, *budget, *memory, *host_memory;
    const char *const *pairs; /* of plan's --set */
    size_t pair_count;
};

struct tdm_own_schedule;

/* Can it be asked so? TDM_USAGE, or what loading model and machine says. */
enum tdm_status tdm_own_check(const struct tdm_own_words *words, struct tdm_error *err);

/* Plans it for the context, or for one near the longest that fits, for which simple schedules have
 * room; plan --objective context may find a tenth more. The caller frees *own, on TDM_INFEASIBLE
 * too: nothing fits, and tdm_own_fail() says why. */
enum tdm_status tdm_own_find(const struct tdm_own_words *words, bool longest,
                             struct tdm_own_schedule **own, struct tdm_error *err);
void tdm_own_free(struct tdm_own_schedule *own);

/* A step of what was found; all steps are alike, as the arenas are taken before the first. */
struct tdm_own_step {
    uint64_t context, sequences;
    uint64_t used_bytes, reserved_bytes, allocated_bytes; /* at the device's peak */
    uint64_t host_bytes;
    uint64_t categories[TDM_CATEGORIES]; /* they add up to used_bytes */
    double product_flops, attention_flops, moved_bytes;
    double step_seconds;
};

void tdm_own_step(const struct tdm_own_schedule *own, struct tdm_own_step *step);

/* The rows of predict. */
void tdm_own_table(FILE *out, const struct tdm_own_schedule *own);

/* What is predicted, as plan says it, and a list of the one step that all are like. NULL: memory
 * ran out. */
json_t *tdm_own_json(const struct tdm_own_schedule *own);

/* What is short, and what would help. */
struct tdm_own_miss {
    const char *binding; /* as plan says it; NULL: nothing could be asked for */
    /* What there is, and what is enough beside what there is of the other memory (together, if the
     * binding is both); 0: no amount is. */
    uint64_t device_bytes, host_bytes, needed_device_bytes, needed_host_bytes;
    uint64_t longest_context; /* 0: none, or not known */
    uint64_t host_memory_bytes;
    struct tdm_shortage_way ways[TDM_SHORTAGE_WAYS];
    size_t way_count;
};

/* Why nothing fits, with a hint for plan: TDM_INFEASIBLE, or what else went wrong. */
enum tdm_status tdm_own_fail(struct tdm_own_schedule *own, struct tdm_own_miss *miss,
                             struct tdm_error *err);

#endif
