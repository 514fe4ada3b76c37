/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objectives other than time: the longest context that fits, the least device memory that is
 * enough, each if asked with steps that take at most so long.
 *
 * Both look by strides and bisection, to within 0.2%, as if what fits at a size fits at all smaller
 * ones, and a step never got faster with more tokens or less memory. What comes out is a plan like
 * any other: searched, lowered, simulated and validated.
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
    double most_seconds; /* of a step; 0: any */
    bool quick;          /* as of tdm_pins */
    void *self;
    /* Is told of every size that was tried, tokens or bytes; may be NULL. */
    void (*tried)(void *self, uint64_t size, bool good);
};

/* What was found, ready to be printed. */
struct tdm_objective_found {
    struct tdm_schedule
        *schedule;        /* owned by the caller on success, and on TDM_INFEASIBLE if not NULL */
    struct tdm_pins pins; /* the same */
    struct tdm_search search;
};

/* The longest context, a multiple of 1K tokens (of 1 token, where 1K is too long), of which a step
 * fits request->memory_bytes and host memory and takes no longer than asked; request->context is
 * not read. TDM_INFEASIBLE: not even one token fits, and found->schedule is that request, for
 * shortage.h; or it takes longer, as the message says, and found->schedule is NULL. */
enum tdm_status tdm_objective_context(const struct tdm_request *request,
                                      const struct tdm_objective_options *options,
                                      struct tdm_objective_found *found, struct tdm_error *err);

/* A context near the longest, found faster: the longest of which the estimated least memory of
 * recipes is enough, to one part in 64, with one search for its schedule. `from_context` is known
 * to fit; 0: none is. TDM_INFEASIBLE as above. */
enum tdm_status tdm_objective_near_context(const struct tdm_request *request, uint64_t from_context,
                                           struct tdm_objective_found *found,
                                           struct tdm_error *err);

/* The least device memory with which a step of the request fits, and takes no longer than asked;
 * limits of the request hold. It is schedule->memory_bytes: a search with it finds the same.
 * TDM_INFEASIBLE as above. */
enum tdm_status tdm_objective_memory(const struct tdm_request *request,
                                     const struct tdm_objective_options *options,
                                     struct tdm_objective_found *found, struct tdm_error *err);

/* The largest budget of sparse attention, to within a page or one part in 64, with which the
 * fastest step that fits takes no longer than asked; dense if that does. TDM_INFEASIBLE: nothing
 * fits with a budget of one page, and found->schedule is that request; or it takes longer, as the
 * message says, and found->schedule is NULL. */
enum tdm_status tdm_objective_budget(const struct tdm_request *request,
                                     const struct tdm_objective_options *options,
                                     struct tdm_objective_found *found, struct tdm_error *err);

#endif
