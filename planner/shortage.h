/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is short when no schedule fits, and the remedies, each with a number that is enough.
 *
 * Every number that a remedy names is proved by a schedule that was lowered and packed within it.
 */
#ifndef TDM_PLANNER_SHORTAGE_H
#define TDM_PLANNER_SHORTAGE_H

#include "planner/candidates.h"
#include "planner/ways.h"

enum tdm_binding {
    TDM_BINDING_DEVICE, /* no amount of host memory helps */
    TDM_BINDING_HOST,   /* no amount of device memory helps */
    TDM_BINDING_EITHER, /* more of one of them is enough */
    TDM_BINDING_BOTH,   /* more of both is needed */
};

struct tdm_shortage {
    enum tdm_binding binding;
    uint64_t limit_bytes[TDM_MAX_PLACES];
    /* Used bytes with which it fits, with the other place's limit kept (binding both: the two
     * together); 0: no amount is enough. */
    uint64_t needed_bytes[TDM_MAX_PLACES];
    /* Every schedule searched takes at least so much, with the other place's limit kept; 0: no more
     * than the limit, or not known, as before tdm_shortage_prove() */
    uint64_t proved_bytes[TDM_MAX_PLACES];
    uint64_t longest_context; /* tokens of each sequence that fit; 0: none, or not requested */
    bool has_optimizer;       /* running without an optimizer can help */
    uint64_t without_optimizer_bytes; /* device bytes needed with --optimizer none; 0: no amount is
                                         enough */
    /* The smallest choice of state that is enough when its home moves to the host; all false: no
     * choice is enough. */
    bool streamed[TDM_STATES];
    uint64_t streamed_bytes; /* device bytes needed then */
    /* If nothing is enough so: device bytes needed with all gradients that stay on the host; 0: no
     * amount is enough, or it is not less than without */
    uint64_t far_gradients_bytes;
};

const char *tdm_binding_name(enum tdm_binding binding); /* "device", "host", "either", "both" */

/* What binds if so much of the device and of the far place is enough, each alone (0: no amount). */
enum tdm_binding tdm_binding_of(uint64_t device_bytes, uint64_t far_bytes);

/* What is known before a search for a schedule that fits. */
enum tdm_foreseen {
    TDM_MAY_FIT,
    TDM_SURELY_MISSES,  /* linear programs prove that no schedule fits */
    TDM_CLEARLY_MISSES, /* estimates miss the device's limit by so much that no search would find
                           one */
};

/* What tdm_candidates_search would find for the step of one rank; of others, it may fit. `brief`: a
 * clear miss is enough, and is not proved. Of the schedule only the nest changes. Fails as the
 * search does. */
enum tdm_status tdm_shortage_foresee(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     bool brief, enum tdm_foreseen *foreseen,
                                     struct tdm_error *err);

/* For a schedule and pins with which tdm_candidates_search found nothing, or would find nothing. Of
 * the schedule only the nest changes. `brief`: of one rank, device bytes that are more than the
 * machine's device has are estimates, which are not too high. Fails only as the search does;
 * TDM_INFEASIBLE is not a failure here. */
enum tdm_status tdm_shortage_find(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                  bool brief, struct tdm_shortage *shortage, struct tdm_error *err);

/* Sets proved_bytes of a shortage that tdm_shortage_find() found for the same schedule and pins.
 * Linear programs prove it, which may take as long as all of that. Fails as the search does. */
enum tdm_status tdm_shortage_prove(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                   struct tdm_shortage *shortage, struct tdm_error *err);

/* By how much the limit of a place is too small; 0 if no amount is enough. */
uint64_t tdm_shortage_missing(const struct tdm_shortage *shortage, enum tdm_place place);

/* Lists remedies for the schedule's machine, each sufficient by itself; returns their number. */
size_t tdm_shortage_ways(const struct tdm_shortage *shortage, const struct tdm_schedule *schedule,
                         struct tdm_shortage_way ways[TDM_SHORTAGE_WAYS]);

/* Fills err with TDM_INFEASIBLE: what binds, and by how much the best schedule misses; the hint
 * lists remedies. Returns TDM_INFEASIBLE. */
enum tdm_status tdm_shortage_fail(const struct tdm_shortage *shortage,
                                  const struct tdm_schedule *schedule, struct tdm_error *err);

#endif
