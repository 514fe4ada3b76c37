/* SPDX-License-Identifier: Apache-2.0 */
/* The longest context, the least memory: bisection over plans. */
#include "planner/objective.h"

#include "base/units.h"

#include <string.h>

#define CONTEXT_STEP UINT64_C(1024)
/* Least memory for a limit of time is found to within this, or one part in MEMORY_PARTS. */
#define MEMORY_STEP (UINT64_C(16) << 20)
#define MEMORY_PARTS 512u
/* Where a search does not find what the least was proved with, it gets more: one part in 1024, 512, ... */
#define MARGINS 7u

static const char *const names[TDM_OBJECTIVES] = {"time", "memory", "context"};

const char *tdm_objective_name(enum tdm_objective objective)
{
    return names[objective];
}

bool tdm_objective_parse(const char *name, enum tdm_objective *objective)
{
    for (int i = 0; i < TDM_OBJECTIVES; i++)
        if (strcmp(names[i], name) == 0) {
            *objective = (enum tdm_objective)i;
            return true;
        }
    return false;
}

static void drop(struct tdm_objective_found *found)
{
    tdm_schedule_free(found->schedule);
    tdm_pins_free(&found->pins);
    *found = (struct tdm_objective_found){0};
}

/* Puts `next` in the place of what was found before. */
static void keep(struct tdm_objective_found *found, struct tdm_objective_found *next)
{
    drop(found);
    *found = *next;
    *next = (struct tdm_objective_found){0};
}

/* Searches a request. *good: it fits and is fast enough; what was found stays in `found` then, and
 * where nothing fits too, for the reasons. */
static enum tdm_status try_search(const struct tdm_request *request,
                                  const struct tdm_objective_options *options,
                                  struct tdm_objective_found *found, bool *good,
                                  struct tdm_error *err)
{
    *found = (struct tdm_objective_found){0};
    *good = false;
    enum tdm_status status = tdm_request_make(request, &found->schedule, &found->pins, err);
    if (status != TDM_OK)
        return status;
    status = tdm_candidates_search(found->schedule, &found->pins, &found->search, err);
    if (status == TDM_INFEASIBLE)
        return TDM_OK;
    if (status != TDM_OK) {
        drop(found);
        return status;
    }
    *good = options->most_seconds <= 0 ||
            found->search.simulation.step_seconds <= options->most_seconds;
    return TDM_OK;
}

static void tell(const struct tdm_objective_options *options, uint64_t size, bool good)
{
    if (options->tried != NULL)
        options->tried(options->self, size, good);
}

static enum tdm_status too_slow(double seconds, double most_seconds, const char *what,
                                struct tdm_error *err)
{
    char takes[TDM_FORMAT_SIZE], may[TDM_FORMAT_SIZE];
    tdm_fail(err, TDM_INFEASIBLE, "%s takes %s a step, more than the %s of --step-time", what,
             tdm_format_seconds(seconds, takes), tdm_format_seconds(most_seconds, may));
    return tdm_hint(err, "--step-time %.3g is enough", seconds * 1.01);
}

/* ---- the longest context ---- */

struct contexts {
    struct tdm_request request; /* its context varies */
    const struct tdm_objective_options *options;
    struct tdm_objective_found *found; /* of the longest context that was good */
    bool quick;                        /* ask for memory alone, which is faster than a search */
    uint64_t unit;                     /* tokens that `low` and `high` count */
};

/* Is a context good? By a search it stays in `found`. */
static enum tdm_status try_context(struct contexts *c, uint64_t units, bool *good,
                                   struct tdm_error *err)
{
    struct tdm_objective_found next;
    enum tdm_status status;
    c->request.context = units * c->unit;
    if (c->quick) {
        uint64_t bytes;
        next = (struct tdm_objective_found){0};
        status = tdm_request_make(&c->request, &next.schedule, &next.pins, err);
        if (status == TDM_OK)
            status = tdm_candidates_least(next.schedule, &next.pins, TDM_DEVICE, &bytes, err);
        *good = status == TDM_OK && bytes <= next.schedule->memory_bytes;
        status = status == TDM_INFEASIBLE ? TDM_OK : status;
    } else {
        status = try_search(&c->request, c->options, &next, good, err);
        if (status == TDM_OK && *good)
            keep(c->found, &next);
    }
    drop(&next);
    if (status == TDM_OK)
        tell(c->options, c->request.context, *good);
    return status;
}

/* The most units that are good, 0 if none is; *high is known not to be, 0 if that is not known. */
static enum tdm_status most_units(struct contexts *c, uint64_t *low, uint64_t *high,
                                  struct tdm_error *err)
{
    uint64_t most = TDM_LONGEST_CONTEXT / c->unit;
    enum tdm_status status = TDM_OK;
    *low = 0;
    for (uint64_t next = 1; *high == 0 && status == TDM_OK; next *= 2) {
        bool good = false;
        if (next > most)
            *high = most + 1;
        else
            status = try_context(c, next, &good, err);
        *(good ? low : high) = good || next <= most ? next : *high;
    }
    while (status == TDM_OK && *high - *low > 1) {
        uint64_t middle = *low + (*high - *low) / 2;
        bool good;
        status = try_context(c, middle, &good, err);
        if (status == TDM_OK)
            *(good ? low : high) = middle;
    }
    return status;
}

/* In units of `unit` tokens; *units: 0 if none is good. */
static enum tdm_status longest(struct contexts *c, uint64_t unit, uint64_t *units,
                               struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    uint64_t high = unit == 1 ? CONTEXT_STEP : 0;
    bool good = false;
    c->unit = unit;
    *units = 0;
    c->quick = c->options->most_seconds <= 0;
    if (c->quick) {
        status = most_units(c, units, &high, err);
        c->quick = false;
        if (status == TDM_OK && *units > 0)
            status = try_context(c, *units, &good, err);
        if (status != TDM_OK || good || *units == 0)
            return status;
        high = *units; /* the search does not find what was proved: by searches then */
    }
    return most_units(c, units, &high, err);
}

enum tdm_status tdm_objective_context(const struct tdm_request *request,
                                      const struct tdm_objective_options *options,
                                      struct tdm_objective_found *found, struct tdm_error *err)
{
    struct contexts c = {.request = *request, .options = options, .found = found};
    uint64_t units;
    *found = (struct tdm_objective_found){0};
    enum tdm_status status = longest(&c, CONTEXT_STEP, &units, err);
    if (status == TDM_OK && units == 0)
        status = longest(&c, 1, &units, err);
    if (status == TDM_OK && units == 0) {
        struct tdm_objective_found one;
        bool good;
        c.request.context = 1;
        status = try_search(&c.request, options, &one, &good, err);
        if (status == TDM_OK && one.search.simulation.step_seconds > 0) {
            status = too_slow(one.search.simulation.step_seconds, options->most_seconds,
                              "a single token", err);
            drop(&one);
        } else if (status == TDM_OK) {
            keep(found, &one);
            status = tdm_fail(err, TDM_INFEASIBLE, "no context fits");
        }
        return status;
    }
    if (status != TDM_OK)
        drop(found);
    return status;
}

/* ---- the least memory ---- */

/* A search with `memory_bytes`; if it is good it stays in `found`. */
static enum tdm_status try_memory(struct tdm_request *request,
                                  const struct tdm_objective_options *options,
                                  uint64_t memory_bytes, struct tdm_objective_found *found,
                                  bool *good, struct tdm_error *err)
{
    struct tdm_objective_found next;
    request->has_memory = true;
    request->memory_bytes = memory_bytes;
    enum tdm_status status = try_search(request, options, &next, good, err);
    if (status != TDM_OK)
        return status;
    tell(options, memory_bytes, *good);
    if (*good)
        keep(found, &next);
    drop(&next);
    return TDM_OK;
}

static uint64_t used_bytes(const struct tdm_objective_found *found)
{
    return found->search.simulation.used_peak_bytes[TDM_DEVICE];
}

/* From the least with which anything fits upwards, until a search finds something. */
static enum tdm_status least_that_fits(struct tdm_request *request,
                                       const struct tdm_objective_options *options, uint64_t least,
                                       uint64_t most, struct tdm_objective_found *found,
                                       struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    bool good = false;
    for (unsigned i = 0; i <= MARGINS && status == TDM_OK && !good; i++) {
        uint64_t memory = i == 0 ? least : least + (least >> (11 - i));
        status = try_memory(request, options, memory < most ? memory : most, found, &good, err);
    }
    if (status == TDM_OK && !good)
        status = try_memory(request, options, most, found, &good, err);
    return status;
}

/* Between the least that fits and what `found` uses, which is fast enough. */
static enum tdm_status least_that_is_fast(struct tdm_request *request,
                                          const struct tdm_objective_options *options,
                                          uint64_t least, struct tdm_objective_found *found,
                                          struct tdm_error *err)
{
    uint64_t low = least, high = used_bytes(found);
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && high > low &&
           high - low > (high / MEMORY_PARTS > MEMORY_STEP ? high / MEMORY_PARTS : MEMORY_STEP)) {
        uint64_t middle = low + (high - low) / 2;
        bool good;
        status = try_memory(request, options, middle, found, &good, err);
        if (good)
            high = used_bytes(found);
        else
            low = middle;
    }
    return status;
}

enum tdm_status tdm_objective_memory(const struct tdm_request *request,
                                     const struct tdm_objective_options *options,
                                     struct tdm_objective_found *found, struct tdm_error *err)
{
    struct tdm_request asked = *request;
    struct tdm_objective_found first;
    uint64_t least = 0, most;
    bool good;
    *found = (struct tdm_objective_found){0};
    enum tdm_status status = try_search(&asked, options, &first, &good, err);
    if (status != TDM_OK)
        return status;
    most = first.schedule->memory_bytes;
    if (!good && first.search.simulation.step_seconds > 0) {
        status = too_slow(first.search.simulation.step_seconds, options->most_seconds,
                          "the fastest schedule that fits", err);
        drop(&first);
        return status;
    }
    keep(found, &first);
    if (!good) /* the caller says why */
        return tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");

    struct tdm_objective_found probe = {0};
    status = tdm_request_make(&asked, &probe.schedule, &probe.pins, err);
    if (status == TDM_OK)
        status = tdm_candidates_least(probe.schedule, &probe.pins, TDM_DEVICE, &least, err);
    drop(&probe);
    if (status == TDM_OK && options->most_seconds > 0)
        status = least_that_is_fast(&asked, options, least, found, err);
    else if (status == TDM_OK)
        status = least_that_fits(&asked, options, least, most, found, err);
    if (status != TDM_OK) {
        drop(found);
        return status;
    }
    found->schedule->memory_bytes = used_bytes(found);
    return TDM_OK;
}
