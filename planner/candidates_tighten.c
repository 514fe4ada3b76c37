/* SPDX-License-Identifier: Apache-2.0 */
/* Tightens the bound of a search when its schedule is known: programs whose bounds are below its
 * step are solved again, and what is whole in a schedule becomes whole. */
#include "planner/candidates_parts.h"

#include <math.h>

/* A bound this close to the step is left as it is. */
#define CLOSE_ENOUGH 0.01

/* Solutions of all programs: so many over the square of the number of layers, but not more than the
 * most. The seconds of a solution rise like that square, or faster: 5 ms for 28 layers. */
#define ALL_SOLUTIONS 56000u
#define MOST_SOLUTIONS 200u

/* Where the step is still this far above the bound then, so many times as many follow. */
#define STILL_FAR 0.05
#define MORE_SOLUTIONS 2u

/* The winner's own program limits the bound of all. Of others, so much of its gap is asked for
 * beyond its bound. */
#define MORE 0.2

/* Solutions of one program before it is divided, and while it is; their tolerance. */
#define FIRST_SOLUTIONS 4u
#define TOLERANCE 1e-3

/* Finds the program with the lowest bound. False: that was tightened already. */
static bool find_lowest(const struct tdm_candidates *run, bool done[TDM_ORDERS][TDM_BASES],
                        int *order, uint32_t *size)
{
    double least = NO_BOUND;
    bool found = false;
    for (int o = 0; o < TDM_ORDERS; o++)
        for (uint32_t i = 0; i < run->space.size_count; i++)
            if (run->least_seconds[o][i] < least) {
                least = run->least_seconds[o][i];
                found = !done[o][i];
                *order = o;
                *size = i;
            }
    return found;
}

/* Tightens one program, until its bound is `enough` seconds for schedules with any sets. */
static enum tdm_status tighten(struct tdm_candidates *run, enum tdm_order order, uint32_t size,
                               double enough, unsigned *left, struct tdm_error *err)
{
    const struct tdm_search_space *space = &run->space;
    const double saves = tdm_candidates_richer_seconds(run, size);
    const struct tdm_prices *prices = &run->prices[order][size];
    struct tdm_relaxation *relaxation;
    struct tdm_relaxed relaxed;
    bool fixed[TDM_STATES];
    unsigned made = 0;
    /* rings with the fewest slots that a search tries */
    tdm_estimator_set_state(space->estimators[size], space->bases[size].homes,
                            &space->bases[size].rings);
    tdm_candidates_program_homes(run, size, fixed);
    enum tdm_status status =
        tdm_relaxation_new(space->estimators[size], order, run->limit_bytes, fixed,
                           tdm_candidates_pinned_list(run), true, &relaxation, err);
    if (status == TDM_INTERNAL) /* too large for the solver */
        *left = 0;
    if (status != TDM_OK)
        return status == TDM_INTERNAL ? TDM_OK : status;
    if (prices->of_rows == NULL && run->last[order] != NULL)
        prices = run->last[order];
    tdm_relaxation_warm(relaxation, prices);
    status =
        tdm_relaxation_solve(relaxation, enough + saves, TOLERANCE, FIRST_SOLUTIONS, &relaxed, err);
    if (status == TDM_OK && relaxed.bound_seconds < enough + saves && relaxed.solved)
        status = tdm_relaxation_tighten(relaxation, enough + saves, TOLERANCE, *left, &made,
                                        &relaxed, err);
    if (status == TDM_OK && relaxed.bound_seconds - saves > run->least_seconds[order][size]) {
        run->least_seconds[order][size] = relaxed.bound_seconds - saves;
        run->tightened[order][size] = relaxed;
    }
    *left -= made < *left ? made : *left;
    tdm_relaxation_free(relaxation);
    return status;
}

enum tdm_status tdm_candidates_tighten(struct tdm_candidates *run, struct tdm_error *err)
{
    const double step = run->simulation.step_seconds;
    const struct tdm_rounded *winner = run->winner;
    const unsigned layers = run->space.schedule->model->layers,
                   all = ALL_SOLUTIONS / (layers * layers);
    unsigned left = all < MOST_SOLUTIONS ? all : MOST_SOLUTIONS, more = MORE_SOLUTIONS * left;
    bool done[TDM_ORDERS][TDM_BASES] = {0};
    double least = tdm_candidates_bound_of_all(run);
    enum tdm_status status = TDM_OK;
    int order = 0;
    uint32_t size = 0;
    if (least <= 0 || step <= (1 + CLOSE_ENOUGH) * least)
        return TDM_OK;
    while (status == TDM_OK && left > 0 && find_lowest(run, done, &order, &size)) {
        const double own = run->least_seconds[winner->order][winner->size],
                     *seconds = &run->least_seconds[order][size], before = *seconds;
        const bool is_own = order == (int)winner->order && size == winner->size;
        const double enough = is_own ? step : fmin(own + MORE * (step - own), step);
        status = tighten(run, (enum tdm_order)order, size, enough, &left, err);
        if (left > 0)
            done[order][size] = is_own || *seconds < own || *seconds <= before;
        else if (step > (1 + STILL_FAR) * tdm_candidates_bound_of_all(run)) {
            left = more;
            more = 0;
        }
    }
    if (status == TDM_OK) {
        find_lowest(run, done, &order, &size);
        if (run->tightened[order][size].solved)
            run->binding = run->tightened[order][size];
    }
    return status;
}
