/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder: its rungs, and the fastest schedule of those within a limit. */
#include "planner/ladder.h"

#include "planner/candidates_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RUNGS_LOG2 4u             /* of an octave */
#define LEAST_LOG2 20u            /* the lowest rung: 1 MiB beside the runtime */
#define RUNGS (28u << RUNGS_LOG2) /* up to 256 TiB */
#define MOST_EMPTY 2u             /* rungs in a row where nothing fits, until the search ends */

/* A schedule of a ladder: of its step only what a search chooses. */
struct found {
    uint64_t bytes;              /* of device memory with which it was found */
    struct tdm_schedule choices; /* with groups of its own */
    struct tdm_simulation simulation;
};

/* What was found from a rung up to the next one; the later, the faster. */
struct rung {
    bool is_searched;
    double bound_seconds; /* no schedule within the rung's bytes is faster; 0: not known */
    size_t count;
    struct found found[TDM_CLIMBS + 1];
};

struct tdm_ladder {
    struct rung *rungs[RUNGS]; /* NULL: not searched */
};

struct tdm_ladder *tdm_ladder_new(void)
{
    return calloc(1, sizeof(struct tdm_ladder));
}

static void free_rung(struct rung *rung)
{
    for (size_t i = 0; rung != NULL && i < rung->count; i++)
        free(rung->found[i].choices.groups);
    free(rung);
}

void tdm_ladder_free(struct tdm_ladder *ladder)
{
    for (unsigned i = 0; ladder != NULL && i < RUNGS; i++)
        free_rung(ladder->rungs[i]);
    free(ladder);
}

/* ---- a rung ---- */

/* Bytes of a rung and of the steps above it, without the runtime. */
static uint64_t arena_of(unsigned rung, unsigned step)
{
    const uint64_t first = UINT64_C(1) << RUNGS_LOG2, at = first + rung % first;
    const unsigned octave = (rung >> RUNGS_LOG2) + LEAST_LOG2 - RUNGS_LOG2;
    return (at << octave) + (UINT64_C(1) << octave) / (TDM_CLIMBS + 1) * step;
}

static uint64_t runtime_of(const struct tdm_schedule *schedule)
{
    return schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
}

/* How many rungs are within a limit. */
static unsigned rungs_within(const struct tdm_schedule *schedule, uint64_t limit)
{
    unsigned count = 0;
    while (count < RUNGS && arena_of(count, 0) + runtime_of(schedule) <= limit)
        count++;
    return count;
}

/* Notes a schedule that a search from a rung found. */
static enum tdm_status note(void *self, uint64_t bytes, const struct tdm_schedule *schedule,
                            const struct tdm_simulation *simulation, struct tdm_error *err)
{
    struct rung *rung = self;
    struct found *found = &rung->found[rung->count];
    if (rung->count > 0 && simulation->step_seconds >= found[-1].simulation.step_seconds)
        return TDM_OK;
    *found = (struct found){.bytes = bytes, .simulation = *simulation};
    found->choices.groups = calloc(schedule->group_count, sizeof(*schedule->groups));
    if (found->choices.groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    tdm_copy_choices(&found->choices, schedule);
    rung->count++;
    return TDM_OK;
}

static void add_counts(struct tdm_search_counts *to, const struct tdm_search_counts *counts)
{
    to->examined += counts->examined;
    to->too_large += counts->too_large;
    to->too_slow += counts->too_slow;
    to->lowered += counts->lowered;
    to->simulated += counts->simulated;
    to->programs += counts->programs;
    to->rounded += counts->rounded;
}

/* Searches from a rung up to the next one. If nothing fits the rung, its first step above it where
 * something does is the first. */
static enum tdm_status search_rung(unsigned number, struct tdm_schedule *schedule,
                                   const struct tdm_pins *pins, struct rung *rung,
                                   struct tdm_search_counts *counts, struct tdm_error *err)
{
    struct tdm_climb climb = {.found = note, .self = rung};
    enum tdm_status status = TDM_INFEASIBLE;
    for (unsigned i = 0; i <= TDM_CLIMBS; i++)
        climb.bytes[i] = arena_of(number, i) + runtime_of(schedule);
    for (climb.first = 0; climb.first <= TDM_CLIMBS && status == TDM_INFEASIBLE; climb.first++) {
        struct tdm_search search = {0};
        schedule->memory_bytes = climb.bytes[climb.first];
        status = tdm_candidates_climb(schedule, pins, &climb, &search, err);
        add_counts(counts, &search.counts);
        if (climb.first == 0)
            rung->bound_seconds = search.bound_seconds;
        if (status == TDM_INFEASIBLE && search.bound_seconds >= NO_BOUND)
            break; /* nor with a little more */
    }
    rung->is_searched = status == TDM_OK || status == TDM_INFEASIBLE;
    return rung->is_searched ? TDM_OK : status;
}

/* ---- all rungs ---- */

/* The fastest schedule of a rung within a limit; `best` if it has none that is faster. */
static const struct found *fastest(const struct rung *rung, uint64_t limit,
                                   const struct found *best)
{
    for (size_t i = 0; i < rung->count; i++)
        if (rung->found[i].bytes <= limit &&
            (best == NULL ||
             rung->found[i].simulation.step_seconds < best->simulation.step_seconds))
            best = &rung->found[i];
    return best;
}

/* Finds the fastest schedule of the rungs within `limit`, where no schedule is faster than
 * `bound_seconds`. *best: NULL if nothing fits. */
static enum tdm_status descend(struct tdm_ladder *ladder, struct tdm_schedule *schedule,
                               const struct tdm_pins *pins, uint64_t limit, double bound_seconds,
                               const struct found **best, struct tdm_search_counts *counts,
                               struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    unsigned empty = 0;
    *best = NULL;
    for (unsigned next = rungs_within(schedule, limit); next > 0 && status == TDM_OK; next--) {
        struct rung **rung = &ladder->rungs[next - 1];
        if (*best != NULL ? bound_seconds >= (*best)->simulation.step_seconds : empty == MOST_EMPTY)
            break;
        if (*rung == NULL && (*rung = calloc(1, sizeof(**rung))) == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a ladder");
        if (!(*rung)->is_searched)
            status = search_rung(next - 1, schedule, pins, *rung, counts, err);
        *best = fastest(*rung, limit, *best);
        empty = (*rung)->count == 0 ? empty + 1 : 0;
        bound_seconds = fmax(bound_seconds, (*rung)->bound_seconds);
    }
    return status;
}

/* Searches with a ladder, after a search of the limit alone, which gave the bound. */
static enum tdm_status search_with(struct tdm_ladder *ladder, struct tdm_schedule *schedule,
                                   const struct tdm_pins *pins, struct tdm_search *search,
                                   enum tdm_status status, struct tdm_error *err)
{
    const uint64_t limit = schedule->memory_bytes;
    const struct found *best;
    struct tdm_pins of_rungs = *pins;
    of_rungs.program_path = NULL; /* the linear program that is written is the limit's */
    struct rung alone = {0};
    struct tdm_error late;
    enum tdm_status failed =
        status == TDM_OK ? note(&alone, limit, schedule, &search->simulation, &late) : TDM_OK;
    if (failed == TDM_OK)
        failed = descend(ladder, schedule, &of_rungs, limit, search->bound_seconds, &best,
                         &search->counts, &late);
    schedule->memory_bytes = limit;
    if (failed != TDM_OK) {
        *err = late;
    } else if (best != NULL || alone.count > 0) {
        best = best != NULL ? best : &alone.found[0];
        tdm_copy_choices(schedule, &best->choices);
        search->simulation = best->simulation;
        search->bound_seconds = fmin(search->bound_seconds, best->simulation.step_seconds);
        search->gap = best->simulation.step_seconds / search->bound_seconds - 1;
        status = TDM_OK;
    }
    for (size_t i = 0; i < alone.count; i++)
        free(alone.found[i].choices.groups);
    return failed != TDM_OK ? failed : status;
}

enum tdm_status tdm_ladder_search(struct tdm_ladder *ladder, struct tdm_schedule *schedule,
                                  const struct tdm_pins *pins, struct tdm_search *search,
                                  struct tdm_error *err)
{
    enum tdm_status status = tdm_candidates_climb(schedule, pins, NULL, search, err);
    if ((status != TDM_OK && status != TDM_INFEASIBLE) || pins->quick ||
        search->counts.recipes_alone || !(search->bound_seconds > 0) ||
        schedule->pass != TDM_TRAIN || search->bound_seconds >= NO_BOUND)
        return status;
    struct tdm_ladder *own = ladder == NULL ? tdm_ladder_new() : NULL;
    if (ladder == NULL && own == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a ladder");
    status = search_with(ladder == NULL ? own : ladder, schedule, pins, search, status, err);
    tdm_ladder_free(own);
    return status;
}
