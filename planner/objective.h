/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objectives other than time: the longest context that fits, and the minimum device memory that is
 * enough; both optionally with a maximum step time.
 *
 * Both search by strides and bisection, to within 0.2%. Of several ranks they look for the schedule
 * that takes the least device memory (team_least.h); with a maximum step time they search as for
 * one rank, to within 3%, by searches that end with the first that fits. They assume that if a size
 * fits, all smaller ones do, and that more tokens or less memory never make a step faster. The
 * result is a normal plan: searched, lowered, simulated and validated.
 */
#ifndef TDM_PLANNER_OBJECTIVE_H
#define TDM_PLANNER_OBJECTIVE_H

#include "planner/request.h"

enum tdm_objective {
    TDM_OBJECTIVE_TIME, /* the fastest step: tdm_candidates_search() */
    TDM_OBJECTIVE_MEMORY,
    TDM_OBJECTIVE_CONTEXT,
    TDM_OBJECTIVES
};

#define TDM_OBJECTIVE_NAMES "time, memory or context"

const char *tdm_objective_name(enum tdm_objective objective); /* "time", "memory", "context" */
bool tdm_objective_parse(const char *name, enum tdm_objective *objective);

struct tdm_objective_options {
    double most_seconds; /* maximum of a step; 0: no maximum */
    void *self;
    /* Called for every size tried, in tokens or bytes; may be NULL. */
    void (*tried)(void *self, uint64_t size, bool good);
};

/* A result, ready to be printed. */
struct tdm_objective_found {
    struct tdm_schedule
        *schedule;        /* owned by the caller on success, and on TDM_INFEASIBLE if not NULL */
    struct tdm_pins pins; /* the same */
    struct tdm_search search;
    uint64_t proved_bytes; /* of the least memory: no schedule searched takes less; 0: not known */
};

/* Frees what a result owns, and empties it. */
void tdm_objective_found_free(struct tdm_objective_found *found);

/* How long a search may take. */
enum tdm_effort {
    TDM_EFFORT_FULL,
    TDM_EFFORT_BRIEF, /* as in tdm_pins; of several ranks as TDM_EFFORT_FIRST */
    TDM_EFFORT_QUICK, /* as in tdm_pins; of several ranks without the last searches */
    TDM_EFFORT_FIRST, /* the same; of several ranks the first schedule that fits is enough */
    TDM_EFFORT_FIT,   /* the same; and its other choices, which fit, are not compared; of one rank
                         `as_tried`   of tdm_pins */
};

/* The fastest step that fits: of one rank tdm_candidates_search(), of several tdm_team_search().
 * TDM_INFEASIBLE: found->schedule is the request, and of several ranks the message is complete. */
enum tdm_status tdm_objective_time(const struct tdm_request *request, enum tdm_effort effort,
                                   struct tdm_objective_found *found, struct tdm_error *err);

/* The longest context, a multiple of 1K tokens (of 1 token, if 1K is too long), whose step fits
 * request->memory_bytes and host memory and the maximum step time. request->context is ignored.
 * TDM_INFEASIBLE: not even one token fits, and found->schedule is that request, for shortage.h; or
 * its step is too slow, as the message says, and found->schedule is NULL. */
enum tdm_status tdm_objective_context(const struct tdm_request *request,
                                      const struct tdm_objective_options *options,
                                      struct tdm_objective_found *found, struct tdm_error *err);

/* A context near the longest, found faster; of several ranks one that is not longer than 2M tokens:
 * the longest whose minimum memory, estimated from recipes, fits, to one part in 64. Normally one
 * search finds its schedule. `from_context` is known to fit; 0: none is. TDM_INFEASIBLE as above.
 */
enum tdm_status tdm_objective_near_context(const struct tdm_request *request, uint64_t from_context,
                                           struct tdm_objective_found *found,
                                           struct tdm_error *err);

/* The minimum device memory with which a step of the request fits, within the maximum step time and
 * the request's limits. It is stored in schedule->memory_bytes: a search with it finds the same.
 * TDM_INFEASIBLE as above. */
enum tdm_status tdm_objective_memory(const struct tdm_request *request,
                                     const struct tdm_objective_options *options,
                                     struct tdm_objective_found *found, struct tdm_error *err);

/* The largest budget of sparse attention, to within a page or one part in 64, whose fastest step
 * that fits is within the maximum step time; dense if that is. TDM_INFEASIBLE: nothing fits with a
 * budget of one page, and found->schedule is that request; or it takes longer, as the message says,
 * and found->schedule is NULL. */
enum tdm_status tdm_objective_budget(const struct tdm_request *request,
                                     const struct tdm_objective_options *options,
                                     struct tdm_objective_found *found, struct tdm_error *err);

#endif
