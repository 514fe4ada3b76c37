/* SPDX-License-Identifier: Apache-2.0 */
/* Travel: a walk that also accepts slightly slower points, and so leaves local optima. */
#include "planner/rounding_parts.h"

#include <math.h>
#include <string.h>

/*
 * A longer search, which leaves local optima. From the current point it goes to one that differs in
 * a few moves, if that is not much slower; at first by up to limits->slower, in the end not at all.
 * Moves come in one fixed scrambled order, so the same request gives the same plan.
 */
#define LEAST_POINTS 150u  /* of a walk, however long an estimate takes */
#define PATIENCE 0.6       /* the walk ends after this share of its points without a gain, */
#define WORTH_WAITING 1e-4 /* of this share of the cost */
#define MORE_MOVES 0.45    /* share of points that differ in one move more */
/* where points are measured: likely seconds of one that is worth it, over those of the current one
 */
#define PROMISING 1.01
#define SCRAMBLE 6364136223846793005u
#define KINDS_OF_MOVES 16u /* of which: */
#define OF_SETTINGS 7u
#define OF_COPIES 1u
#define OF_BOUNDARIES 3u
#define CORNERS 16u /* one in so many changes of homes moves all of a state */

/* The next number of the scrambled order, below `below`. */
static uint32_t draw(struct tdm_local_search *s, uint32_t below)
{
    s->scramble = s->scramble * SCRAMBLE + 1442695040888963407u;
    return (uint32_t)(((s->scramble >> 33) * below) >> 31);
}

/* One setting of a group, of some groups or of all. */
static void travel_settings(struct tdm_local_search *s)
{
    const uint32_t chunks = tdm_estimator_chunks(s->estimator), count = s->point.group_count;
    uint32_t from = draw(s, count), to = from + 1, range = draw(s, 4);
    if (range == 0) {
        from = 0;
        to = count;
    } else if (range == 1) {
        to += draw(s, count - from);
    }
    size_t move = draw(s, 2) == 0 ? draw(s, 2 * STEPS) : 2 * STEPS + draw(s, MOVES);
    for (uint32_t g = from; g < to; g++)
        tdm_rounding_move_group(s, &s->point.groups[g], move, chunks);
}

/* A group gets the settings of another; half of the time, that one gets its own. */
static void travel_copy(struct tdm_local_search *s)
{
    struct tdm_group *a = &s->point.groups[draw(s, s->point.group_count)];
    struct tdm_group *b = &s->point.groups[draw(s, s->point.group_count)], settings = *a;
    const uint32_t layers = a->layers;
    settings.layers = b->layers;
    if (draw(s, CORNERS) == 0) {
        *a = *b;
        a->layers = layers;
    }
    *b = settings;
}

/* Cuts a group, or moves a layer to the group above or below. */
static void travel_boundary(struct tdm_local_search *s)
{
    const uint32_t layers = s->space->schedule->model->layers;
    uint32_t g = draw(s, s->point.group_count), what = draw(s, 5);
    const struct tdm_group *group = &s->point.groups[g];
    if (s->limits->fixed_groups)
        return;
    if (what < 2 && group->layers >= 2 && s->point.group_count < layers) {
        tdm_rounding_cut_group(s, g, 1 + draw(s, group->layers - 1));
    } else if (g + 1 < s->point.group_count) {
        tdm_rounding_move_layer(s, g, draw(s, 2) == 0);
    }
}

/* All of a state at one place, embedding and head at another or the same; then as much of some
 * state on the device as fits. */
static void travel_corner(struct tdm_local_search *s)
{
    const enum tdm_place far_place = tdm_far_place(s->space->schedule);
    const uint32_t layers = s->space->schedule->model->layers,
                   state = draw(s, TDM_STATE_MOMENTS + 1);
    const uint32_t where = draw(s, 4), with = draw(s, FILLS);
    const enum tdm_place ends = where / 2 == 0 ? TDM_DEVICE : far_place;
    if (s->limits->fixed_homes[state])
        return;
    if (s->limits->tied)
        tdm_rounding_set_layers(s, (int)state, where % 2 == 0 ? layers : 0);
    else
        s->point.homes[state] = (struct tdm_home){where % 2 == 0 ? layers : 0, ends, ends};
    if (with < FILL_NOTHING && !s->limits->fixed_homes[with])
        tdm_rounding_fill(s, (int)with);
}

/* A home or a ring, often with what fills the memory again. */
static void travel_home(struct tdm_local_search *s)
{
    if (draw(s, CORNERS) == 0) {
        travel_corner(s);
        return;
    }
    int state, with = (int)draw(s, FILLS + 1);
    if (tdm_rounding_change_home(s, draw(s, s->limits->deep ? HOME_CHANGES : STASHED_CHANGES),
                                 &state) &&
        with < FILL_NOTHING && with != state && !s->limits->fixed_homes[with])
        tdm_rounding_fill(s, with);
}

static void travel_once(struct tdm_local_search *s)
{
    do {
        uint32_t what = draw(s, KINDS_OF_MOVES);
        if (what < OF_SETTINGS)
            travel_settings(s);
        else if (what < OF_SETTINGS + OF_COPIES)
            travel_copy(s);
        else if (what < OF_SETTINGS + OF_COPIES + OF_BOUNDARIES)
            travel_boundary(s);
        else
            travel_home(s);
    } while (draw(s, 1000) < (uint32_t)(1000 * MORE_MOVES));
}

enum tdm_status tdm_rounding_travel(struct tdm_local_search *s, struct tdm_error *err)
{
    struct tdm_rounded here;
    double here_cost = s->best_cost, here_likely = s->best->likely_seconds;
    if (!tdm_rounded_duplicate(s->space, s->best, &here))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    const unsigned affordable =
        tdm_rounding_affordable(s->space, s->best->size, true, s->limits->travelled);
    const unsigned count = affordable < LEAST_POINTS && LEAST_POINTS < s->limits->travelled
                               ? LEAST_POINTS
                               : affordable;
    s->scramble = 1 + s->limits->walk;
    const unsigned patience = (unsigned)(PATIENCE * count);
    unsigned improved = 0;
    for (unsigned i = 0; i < count && i - improved <= patience; i++) {
        double left = (double)(count - i) / count;
        tdm_rounded_copy(&s->point, &here);
        travel_once(s);
        if (!tdm_rounding_fits(s))
            continue;
        const double most = here_cost * (1 + s->limits->slower * left * left);
        s->enough = s->measure == NULL ? most : PROMISING * here_likely;
        double cost = tdm_rounding_cost_of(s);
        if (s->measure != NULL) {
            cost = TDM_UNMEASURED;
            if (s->point.fits && s->point.likely_seconds < s->enough &&
                !s->measure(s->self, &s->point, &cost))
                break;
        }
        if (!s->point.fits || cost >= most)
            continue;
        here_cost = cost;
        here_likely = s->point.likely_seconds;
        tdm_rounded_copy(&here, &s->point);
        if (cost < s->best_cost * (1 - 1e-9)) {
            if (cost < s->best_cost * (1 - WORTH_WAITING))
                improved = i;
            s->best_cost = cost;
            tdm_rounded_copy(s->best, &s->point);
        }
    }
    s->enough = HUGE_VAL;
    tdm_rounded_copy(&s->point, s->best);
    tdm_rounded_free(&here);
    return TDM_OK;
}
