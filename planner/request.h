/* SPDX-License-Identifier: Apache-2.0 */
/* A request: what is asked of the planner, as it was typed, and as a schedule with pins. */
#ifndef TDM_PLANNER_REQUEST_H
#define TDM_PLANNER_REQUEST_H

#include "base/units.h"
#include "planner/candidates.h"
#include "planner/margin.h"
#include "planner/presets.h"

#define TDM_MOST_SEQUENCES 4096u
#define TDM_MOST_PAIRS 64u

/* Sparse attention: of how many tokens. */
enum tdm_budget { TDM_BUDGET_NONE, TDM_BUDGET_DENSE, TDM_BUDGET_TOKENS, TDM_BUDGET_AUTO };

/* Tokens of a chunk that a query page sees beside its budget, where --set says nothing else. */
#define TDM_BUDGET_CHUNK 4096u

struct tdm_request {
    const char *model, *machine; /* NULL: those of `like` */
    /* A schedule that trains and the file that it was read from, for an evaluation between its
     * steps: what both must have in common is taken from it, and what it may have otherwise too,
     * where nothing else is asked for. NULL: none. */
    const struct tdm_schedule *like;
    const char *like_path;
    const struct tdm_preset *preset;   /* NULL: none */
    const char *pairs[TDM_MOST_PAIRS]; /* of --set */
    size_t pair_count;
    uint64_t context, sequences;
    bool has_memory,
        has_host_memory; /* else all that the machine has, less the margin of the device */
    uint64_t memory_bytes, host_memory_bytes;
    double margin; /* share of the device's memory */
    enum tdm_optimizer optimizer;
    enum tdm_purpose pass;
    enum tdm_clip clip;
    enum tdm_budget budget;
    uint64_t budget_tokens;   /* of TDM_BUDGET_TOKENS; as many as the context has or more: dense */
    bool unchecked;           /* what is found is not validated, as in tdm_pins */
    unsigned without;         /* heuristics that are switched off, as in tdm_pins */
    const char *program_path; /* of --write-lp; NULL: none */
};

/* Model, machine, limits and pins, ready for tdm_candidates_search. On success the caller owns
 * *schedule and what the pins own. TDM_USAGE for what was typed, else what loading a model or
 * machine says. */
enum tdm_status tdm_request_make(const struct tdm_request *request, struct tdm_schedule **schedule,
                                 struct tdm_pins *pins, struct tdm_error *err);

#endif
