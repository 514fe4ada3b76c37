/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ladder: plans that more device memory never makes slower.
 *
 * A search finds its schedule by local search, so a search with a little more memory can end at a
 * slower one. The ladder searches at rungs of device memory that do not depend on the limit: 16 an
 * octave by a search of its own, and 8 steps above each by a walk from the best schedule so far.
 * The plan for a limit is the fastest schedule of all rungs within it. With more memory that is the
 * fastest of a larger set, so it is never slower. A rung whose bound is not below the best step is
 * not searched, nor is one below it: neither can have a faster schedule.
 */
#ifndef TDM_PLANNER_LADDER_H
#define TDM_PLANNER_LADDER_H

#include "planner/candidates.h"

/* Makes a ladder that remembers its rungs, for searches of one step that differ only in the device
 * memory. The caller owns it. NULL: out of memory. */
struct tdm_ladder *tdm_ladder_new(void);
void tdm_ladder_free(struct tdm_ladder *ladder);

/* tdm_candidates_search() with the ladder. `ladder` may be NULL: nothing is remembered. Where the
 * search has no bound, or only recipes are candidates, it is a search like any other. The bound is
 * that of the limit. */
enum tdm_status tdm_ladder_search(struct tdm_ladder *ladder, struct tdm_schedule *schedule,
                                  const struct tdm_pins *pins, struct tdm_search *search,
                                  struct tdm_error *err);

#endif
