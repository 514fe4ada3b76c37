/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of groups for steps that compute again because memory is short.
 *
 * When a group goes backward, what it holds is there together with what the groups below it stored:
 * their inputs, and what they keep. So the best list is a path: from layer 0 up, and from no bytes
 * below to more, with a group from one layer to another in each step, which holds as much as is
 * left. A dynamic program over layers and bytes finds the cheapest one, if the memory of both
 * places is one: a group that holds on the host can hold the last chunks on the device, so that
 * little is left at either place.
 */
#include "planner/estimate_parts.h"
#include "planner/rounding_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes below are counted in units: all that there are in so many; in fewer where the seconds of
 * each group are found by themselves, as layers differ. */
#define MOST_UNITS 320u
#define FEW_UNITS 40u

/* Parts of the chunks that a group keeps: the last ones, whose attention takes longest. */
static const double splits[] = {0, 1.0 / 32, 1.0 / 16, 1.0 / 8, 3.0 / 16, 1.0 / 4, 1.0 / 2, 1};
#define SPLITS (sizeof(splits) / sizeof(splits[0]))

static const enum tdm_set held_sets[] = {TDM_SET_INPUT, TDM_SET_ATTENTION_OUTPUT, TDM_SET_QKV,
                                         TDM_SET_ALL};
#define HELD_SETS (sizeof(held_sets) / sizeof(held_sets[0]))

/* Where layers differ, so many of these are looked at. */
#define FEW_SPLITS 2u
#define FEW_HELD_SETS 2u

/* Where a group is: with the first layer, with the last one, or between them. */
enum { AT_BOTTOM, AT_TOP, BETWEEN, POSITIONS };

/* What a group stores: by numbers of `splits` and `held_sets`, and from which chunk on it holds. */
struct stores {
    size_t split, set;
    uint32_t held_from;
};

/* The cheapest list of the layers below, with so many units stored: its last group. */
struct step {
    double seconds;
    uint32_t first, units; /* of the step before */
    struct stores stores;
};

struct stack {
    struct tdm_local_search *s;
    const struct tdm_estimator *e;
    enum tdm_place far;
    uint32_t layers, chunks, units;
    size_t split_count, set_count;
    uint32_t kept_from[SPLITS];
    double memory[TDM_MAX_PLACES]; /* bytes that are left for what groups store */
    double more;                   /* bytes that the host has besides, once the head was updated */
    /* bytes: both places, a unit; of a chunk of a layer: its input, its attention output */
    double all, unit, input, output;
    struct step *steps; /* [layers + 1][units + 1] */
    /* seconds of groups that are known, if all layers cost the same, else NULL; 0: not known.
     * [POSITIONS][layers + 1][SPLITS][HELD_SETS][chunks + 1] */
    double *known;
};

static struct step *step_at(const struct stack *t, uint32_t layer, uint32_t units)
{
    return &t->steps[(size_t)layer * (t->units + 1) + units];
}

/* A group with its stores on the host, and chunks on the device as far as that has memory. */
static struct tdm_group group_of(const struct stack *t, uint32_t layers,
                                 const struct stores *stores)
{
    struct tdm_group group = {.layers = layers,
                              .input_place = t->far,
                              .kept_place = t->far,
                              .held = held_sets[stores->set],
                              .held_from_chunk = stores->held_from,
                              .kv = TDM_KV_RECOMPUTE};
    if (t->kept_from[stores->split] < t->chunks) {
        group.kept = TDM_SET_ATTENTION_OUTPUT;
        group.kept_from_chunk = t->kept_from[stores->split];
    }
    if (layers > 1) {
        group.held_place = t->far;
        group.held_device_chunks = (uint32_t)(t->chunks * t->memory[TDM_DEVICE] / t->all);
    }
    return group;
}

/* Finds the memory that is left if nothing but inputs is stored, with the rings for what is held on
 * the host. False: nothing is. */
static bool find_memory(struct stack *t)
{
    struct tdm_local_search *s = t->s;
    struct tdm_rounded *point = &s->point;
    point->group_count = t->layers - 1;
    for (uint32_t g = 0; g < point->group_count; g++)
        point->groups[g] =
            (struct tdm_group){.layers = 1, .input_place = t->far, .kv = TDM_KV_RECOMPUTE};
    point->groups->layers = 2;
    point->groups->held = TDM_SET_ATTENTION_OUTPUT;
    point->groups->held_from_chunk = t->chunks - 1;
    point->groups->held_place = t->far;
    const struct tdm_estimate estimate = tdm_rounding_size_up(s);
    t->all = 0;
    t->more = (double)t->e->host_head;
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
        t->memory[place] = (double)s->limits->bytes[place] - (double)s->limits->reserve[place] -
                           (double)estimate.bytes[place];
        if (place == (int)t->far)
            t->memory[place] += (point->group_count - 1) * (t->input * t->chunks);
        t->all += t->memory[place];
    }
    return t->memory[TDM_DEVICE] > 0 && t->memory[t->far] > 0;
}

/* Seconds of a group of the layers [first, end). */
static double seconds_of(const struct stack *t, uint32_t first, uint32_t end,
                         const struct stores *stores)
{
    static const struct stores nothing = {0};
    const int position = first == 0 ? AT_BOTTOM : end == t->layers ? AT_TOP : BETWEEN;
    const size_t of_size = (size_t)position * (t->layers + 1) + (end - first);
    double *known = NULL;
    if (t->known != NULL)
        known = &t->known[((of_size * SPLITS + stores->split) * HELD_SETS + stores->set) *
                              (t->chunks + 1) +
                          stores->held_from];
    if (known != NULL && *known > 0)
        return *known;
    const struct tdm_group groups[2] = {group_of(t, end - first, stores), group_of(t, 1, &nothing)};
    const double seconds = tdm_estimate_group(t->e, groups, first);
    if (known != NULL)
        *known = seconds;
    return seconds;
}

/* Goes on from a step with a group of layers [first, end) that keeps a part, and holds what fits.
 * False: it does not fit. */
static bool go_to(const struct stack *t, uint32_t first, uint32_t end, uint32_t units, size_t split)
{
    const struct step *from = step_at(t, first, units);
    const uint32_t above = end - first - 1, kept_from = t->kept_from[split];
    const double stored = (first > 0 ? t->input * t->chunks : 0) +
                          (end - first) * t->output * (t->chunks - kept_from);
    const double left = t->all - units * t->unit - stored;
    const double for_held = left + t->more - above * t->input * t->chunks;
    const uint32_t to = units + (uint32_t)ceil(stored / t->unit - 1e-6);
    if (left < 0 || for_held < 0 || to > t->units)
        return false;
    struct step *step = step_at(t, end, to);
    for (size_t set = 0; set < (above > 0 && kept_from > 0 ? t->set_count : 1); set++) {
        struct stores stores = {split, set, 0};
        if (set > 0) {
            const double held = for_held / (above * (double)t->e->set[held_sets[set]]);
            if (held < 1)
                break;
            stores.held_from = kept_from - (uint32_t)fmin(held, kept_from);
        }
        const double seconds = from->seconds + seconds_of(t, first, end, &stores);
        if (seconds < step->seconds)
            *step = (struct step){seconds, first, units, stores};
    }
    return true;
}

static void go_on(const struct stack *t, uint32_t first, uint32_t units)
{
    for (uint32_t end = first + 1; end <= t->layers; end++)
        for (size_t split = 0; split < t->split_count; split++) {
            if (split > 0 && t->kept_from[split] == t->kept_from[split - 1])
                continue;
            if (go_to(t, first, end, units, split))
                continue;
            if (split == 0)
                return;
            break;
        }
}

/* Finds the cheapest steps to all layers. Returns the last one's units; units + 1: there is none.
 */
static uint32_t find_steps(struct stack *t)
{
    uint32_t best = t->units + 1;
    for (uint32_t layer = 0; layer <= t->layers; layer++)
        for (uint32_t units = 0; units <= t->units; units++)
            step_at(t, layer, units)->seconds = HUGE_VAL;
    step_at(t, 0, 0)->seconds = 0;
    for (uint32_t layer = 0; layer <= t->layers; layer++) {
        double least = HUGE_VAL; /* with fewer units */
        for (uint32_t units = 0; units <= t->units; units++) {
            if (step_at(t, layer, units)->seconds >= least)
                continue;
            least = step_at(t, layer, units)->seconds;
            if (layer < t->layers)
                go_on(t, layer, units);
            else
                best = units;
        }
    }
    return best;
}

/* Takes bytes of the memory of a place, the host's first. */
static enum tdm_place take_memory(const struct stack *t, double memory[TDM_MAX_PLACES],
                                  double bytes)
{
    const enum tdm_place place = memory[t->far] >= bytes ? t->far : TDM_DEVICE;
    memory[place] -= bytes;
    return place;
}

/* Writes the list that ends with a step into the point: inputs on the host as far as they fit, from
 * the lowest group up, since these are there longest; then what is kept. */
static void take_list(const struct stack *t, uint32_t units)
{
    struct tdm_rounded *point = &t->s->point;
    double memory[TDM_MAX_PLACES];
    uint32_t count = 0;
    memcpy(memory, t->memory, sizeof(memory));
    for (uint32_t layer = t->layers; layer > 0; count++) {
        const struct step *step = step_at(t, layer, units);
        point->groups[t->layers - 1 - count] = group_of(t, layer - step->first, &step->stores);
        layer = step->first;
        units = step->units;
    }
    memmove(point->groups, point->groups + t->layers - count, count * sizeof(*point->groups));
    point->group_count = count;
    for (uint32_t g = 1; g < count; g++)
        point->groups[g].input_place = take_memory(t, memory, t->input * t->chunks);
    for (uint32_t g = 0; g < count; g++) {
        struct tdm_group *group = &point->groups[g];
        const double of_chunk = group->layers * t->output;
        const uint32_t kept = group->kept == TDM_SET_INPUT ? 0 : t->chunks - group->kept_from_chunk;
        if (kept == 0)
            continue;
        group->kept_place = take_memory(t, memory, kept * of_chunk);
        if (memory[group->kept_place] < 0) { /* as many chunks as fit */
            group->kept_from_chunk +=
                (uint32_t)fmin(ceil(-memory[group->kept_place] / of_chunk), kept);
            memory[group->kept_place] = 0;
        }
    }
}

/* Do all layers cost the same, so that a group's seconds do not depend on where it is? */
static bool are_alike(const struct stack *t)
{
    for (uint32_t layer = 2; layer < t->layers; layer++) /* the first one embeds */
        if (t->e->row_of[layer] != t->e->row_of[1] || t->e->kind_of[layer] != t->e->kind_of[1])
            return false;
    return t->layers > 2 && t->e->kind_of[0] == t->e->kind_of[1];
}

/* Writes the best list into the point. False: none fits, or memory ran out. */
static bool find_list(struct stack *t)
{
    const bool alike = are_alike(t);
    const size_t sizes = (size_t)POSITIONS * (t->layers + 1);
    for (size_t i = 0; i < SPLITS; i++)
        t->kept_from[i] = t->chunks - (uint32_t)(splits[i] * t->chunks);
    t->units = alike ? MOST_UNITS : FEW_UNITS;
    t->split_count = alike ? SPLITS : FEW_SPLITS;
    t->set_count = alike ? HELD_SETS : FEW_HELD_SETS;
    t->unit = t->all / t->units;
    t->steps = calloc((size_t)(t->layers + 1) * (t->units + 1), sizeof(*t->steps));
    t->known =
        alike ? calloc(sizes * SPLITS * HELD_SETS * (t->chunks + 1), sizeof(*t->known)) : NULL;
    t->s->no_memory |= t->steps == NULL || (alike && t->known == NULL);
    const uint32_t units = t->s->no_memory ? UINT32_MAX : find_steps(t);
    if (units <= t->units)
        take_list(t, units);
    free(t->known);
    free(t->steps);
    return units <= t->units;
}

bool tdm_rounding_stack(struct tdm_local_search *s)
{
    struct stack t = {.s = s,
                      .e = s->estimator,
                      .far = tdm_far_place(s->space->schedule),
                      .layers = s->space->schedule->model->layers,
                      .chunks = tdm_estimator_chunks(s->estimator),
                      .input = (double)s->estimator->x,
                      .output = (double)s->estimator->set[TDM_SET_ATTENTION_OUTPUT]};
    if (s->point.order != TDM_LAYER_MAJOR || t.layers < 3 || !find_memory(&t) || !find_list(&t)) {
        tdm_rounded_copy(&s->point, s->best);
        return false;
    }
    tdm_rounding_hold(s);
    return tdm_rounding_decide(s);
}
