/* SPDX-License-Identifier: Apache-2.0 */
/* A request to the planner, as typed, and its conversion to a schedule with pins. */
#ifndef TDM_PLANNER_REQUEST_H
#define TDM_PLANNER_REQUEST_H

#include "base/units.h"
#include "planner/candidates.h"
#include "planner/margin.h"
#include "planner/presets.h"

#define TDM_MOST_SEQUENCES 4096u
#define TDM_MOST_PAIRS 64u

/* Budget of sparse attention. */
enum tdm_budget { TDM_BUDGET_NONE, TDM_BUDGET_DENSE, TDM_BUDGET_TOKENS, TDM_BUDGET_AUTO };

/* Default chunk tokens that a query page sees in addition to its budget. */
#define TDM_BUDGET_CHUNK 4096u

struct tdm_request {
    const char *model, *machine; /* NULL: those of `like` */
    /* A training schedule and the file it was read from, for an evaluation between its steps. What
     * both must share is copied from it, and so is everything that the request does not set. NULL:
     * none. */
    const struct tdm_schedule *like;
    const char *like_path;
    const struct tdm_preset *preset;   /* NULL: none */
    const char *pairs[TDM_MOST_PAIRS]; /* of --set */
    size_t pair_count;
    uint64_t context, sequences;
    uint32_t ranks;                                                         /* 0: one */
    uint32_t ranks_per_node;                                                /* 0: all */
    enum { TDM_JOINED_AS_FITS, TDM_JOINED_SHARED, TDM_JOINED_NCCL } joined; /* of --transport */
    uint32_t channels; /* of NCCL; 0: TDM_NCCL_CHANNELS */
    bool has_memory,
        has_host_memory; /* false: all of the machine's memory, less the device's margin */
    uint64_t memory_bytes, host_memory_bytes;
    double margin; /* share of the device's memory */
    enum tdm_optimizer optimizer;
    enum tdm_purpose pass;
    enum tdm_clip clip;
    bool snapshot; /* leave host memory for a snapshot of the state */
    enum tdm_budget budget;
    uint64_t budget_tokens;    /* for TDM_BUDGET_TOKENS; at least the context's length: dense */
    bool unchecked;            /* do not validate the result, as in tdm_pins */
    unsigned without;          /* disabled heuristics, as in tdm_pins */
    uint64_t effort;           /* as in tdm_pins */
    struct tdm_ladder *ladder; /* the same; borrowed */
    const char *program_path;  /* of --write-lp; NULL: none */
};

/* Loads model and machine and makes limits and pins, ready for tdm_candidates_search. On success
 * the caller owns *schedule and what the pins own. TDM_USAGE: a typed value is wrong. Otherwise the
 * errors of loading a model or machine. */
enum tdm_status tdm_request_make(const struct tdm_request *request, struct tdm_schedule **schedule,
                                 struct tdm_pins *pins, struct tdm_error *err);

#endif
