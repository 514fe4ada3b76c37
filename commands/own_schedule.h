/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidemark's own schedule as one method among those of other systems. The settings become a
 * request to the planner, and the planner's answer becomes the figures of predict and compare.
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

/* The values of its keys (methods/keys_planned.c), and the rest of the request. All pointers are
 * borrowed. */
struct tdm_own_words {
    const char *model, *machine;
    uint64_t context, batch;
    uint32_t ranks;     /* GPUs of one computer, each with device_bytes; host_bytes are of all */
    bool brief;         /* search less: TDM_EFFORT_BRIEF */
    bool brief_refusal; /* of one rank, refuse what clearly misses without a search */
    double margin;      /* fraction of the device's memory to leave free if `memory` is "all" */
    uint64_t device_bytes,
        host_bytes; /* available memory, if `memory` and `host_memory` are "all" */
    const char *objective, *optimizer, *budget, *memory, *host_memory;
    const char *const *pairs; /* for plan's --set */
    size_t pair_count;
};

struct tdm_own_schedule;

/* Checks whether the request is valid. Fails with TDM_USAGE, or with the error of loading the model
 * or machine. */
enum tdm_status tdm_own_check(const struct tdm_own_words *words, struct tdm_error *err);

/* Plans a schedule for the context, or, if `longest`, for a context close to the longest that fits.
 * The latter tries simple schedules only; plan --objective context may find a tenth more. Of
 * several ranks it is not searched beyond 2M tokens. The caller frees *own, also after
 * TDM_INFEASIBLE. That status means that nothing fits; tdm_own_fail() gives the reason. */
enum tdm_status tdm_own_find(const struct tdm_own_words *words, bool longest,
                             struct tdm_own_schedule **own, struct tdm_error *err);
void tdm_own_free(struct tdm_own_schedule *own);

/* One step of the schedule. All steps are alike, because the arenas are allocated before the
 * first. */
struct tdm_own_step {
    uint64_t context, sequences;
    uint64_t used_bytes, reserved_bytes, allocated_bytes; /* at the device's peak */
    uint64_t host_bytes;                                  /* of all ranks */
    uint64_t device_limit_bytes, host_limit_bytes;        /* that the planner was given */
    uint64_t categories[TDM_CATEGORIES];                  /* sum: used_bytes */
    double product_flops, attention_flops, moved_bytes; /* of rank 0; moved: to and from the host */
    double sent_bytes;                                  /* to other ranks */
    double step_seconds;
};

void tdm_own_step(const struct tdm_own_schedule *own, struct tdm_own_step *step);

/* Prints the rows of predict. */
void tdm_own_table(FILE *out, const struct tdm_own_schedule *own);

/* The prediction in plan's format, plus a list with the one step that represents all. NULL: out of
 * memory. */
json_t *tdm_own_json(const struct tdm_own_schedule *own);

/* What memory is missing, and what would be enough. */
struct tdm_own_miss {
    const char *binding; /* in plan's words; NULL: no request could be made */
    /* The available memory, and the amount that is enough given the available amount of the
     * other memory. If the binding is both, the two amounts are enough together. 0: no amount is
     * enough. */
    uint64_t device_bytes, host_bytes, needed_device_bytes, needed_host_bytes;
    uint64_t longest_context; /* 0: none, or unknown */
    bool brief;               /* a brief search found these */
    uint64_t host_memory_bytes;
    struct tdm_shortage_way ways[TDM_SHORTAGE_WAYS];
    size_t way_count;
};

/* Fills err with the reason that nothing fits, and with a hint to use plan. Returns TDM_INFEASIBLE,
 * or the status of another error. */
enum tdm_status tdm_own_fail(struct tdm_own_schedule *own, struct tdm_own_miss *miss,
                             struct tdm_error *err);

#endif
