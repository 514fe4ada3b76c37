/* SPDX-License-Identifier: Apache-2.0 */
/* Searches the longest context, minimum memory and largest budget, by planning at sizes that
 * converge to them. */
#include "planner/objective.h"

#include "base/size.h"
#include "base/units.h"
#include "planner/team_least.h"
#include "planner/team_search.h"

#include <math.h>
#include <string.h>

#define CONTEXT_STEP UINT64_C(1024)
/* Precision of the answers: this, or one part in PARTS. */
#define MIB (UINT64_C(1) << 20)
#define MEMORY_STEP (16 * MIB)
#define PARTS 512u
#define TEAM_PARTS 32u /* of several ranks, whose searches take longer */
/* The first stride: one part in STRIDE of the last good size. Strides double. */
#define STRIDE 16u
#define NEAR_PARTS 64u /* precision of a near context: one part in this number */
#define NEAR_TRIES 3u
#define TEAM_NEAR_MOST 2048u /* units of a near context of several ranks: searches take long */

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

void tdm_objective_found_free(struct tdm_objective_found *found)
{
    tdm_schedule_free(found->schedule);
    tdm_pins_free(&found->pins);
    *found = (struct tdm_objective_found){0};
}

/* Replaces what was found before by `next`. */
static void keep(struct tdm_objective_found *found, struct tdm_objective_found *next)
{
    tdm_objective_found_free(found);
    *found = *next;
    *next = (struct tdm_objective_found){0};
}

static uint32_t ranks_of(const struct tdm_request *request)
{
    return request->ranks > 1 ? request->ranks : 1;
}

/* Of several ranks without a limit of seconds, the schedule that takes the least is the answer:
 * other searches take too long. */
static bool is_by_least(const struct tdm_request *request,
                        const struct tdm_objective_options *options)
{
    return ranks_of(request) > 1 && options->most_seconds <= 0;
}

/* A request as a schedule with its ranks, which the search for several sets late. */
static enum tdm_status make_team(const struct tdm_request *request,
                                 struct tdm_objective_found *found, struct tdm_error *err)
{
    enum tdm_status status = tdm_request_make(request, &found->schedule, &found->pins, err);
    if (status == TDM_OK) {
        found->schedule->ranks = ranks_of(request);
        found->schedule->ranks_per_node = request->ranks_per_node;
    }
    return status;
}

/* The fewest tokens that give every rank a chunk. */
static enum tdm_status shortest_context(const struct tdm_request *request, uint64_t *tokens,
                                        struct tdm_error *err)
{
    struct tdm_request shortest = *request;
    struct tdm_objective_found found = {0};
    shortest.context = ranks_of(request);
    const enum tdm_status status = make_team(&shortest, &found, err);
    if (status == TDM_OK)
        *tokens = tdm_team_shortest_context(ranks_of(request), found.pins.chunk_tokens);
    tdm_objective_found_free(&found);
    return status;
}

enum tdm_status tdm_objective_time(const struct tdm_request *request, enum tdm_effort effort,
                                   struct tdm_objective_found *found, struct tdm_error *err)
{
    *found = (struct tdm_objective_found){0};
    if (ranks_of(request) > 1) {
        enum tdm_status status = tdm_team_search(request, effort, found, err);
        struct tdm_error late;
        if (status == TDM_INFEASIBLE && make_team(request, found, &late) != TDM_OK)
            return tdm_fail(err, late.status, "%s", late.message);
        return status;
    }
    enum tdm_status status = tdm_request_make(request, &found->schedule, &found->pins, err);
    if (status != TDM_OK)
        return status;
    found->pins.brief = effort == TDM_EFFORT_BRIEF;
    found->pins.quick = effort > TDM_EFFORT_BRIEF;
    found->pins.as_tried = effort == TDM_EFFORT_FIT;
    return tdm_candidates_search(found->schedule, &found->pins, &found->search, err);
}

/* A search over sizes of a request: contexts, limits of memory or budgets. */
struct sizes {
    struct tdm_request request; /* with the size that is tried */
    const struct tdm_objective_options *options;
    enum tdm_effort effort;
    bool keeps_misses; /* keeps what does not fit, for the reasons, until a size is good */
    struct tdm_objective_found *found; /* of the last size that was good */
    double seconds;                    /* of the last size; 0: it did not fit */
};

/* One part in so many is the precision of an answer. */
static uint64_t parts_of(const struct sizes *s)
{
    return ranks_of(&s->request) > 1 && !is_by_least(&s->request, s->options) ? TEAM_PARTS : PARTS;
}

static void tell(const struct sizes *s, uint64_t size, bool good)
{
    if (s->options->tried != NULL)
        s->options->tried(s->options->self, size, good);
}

/* Searches a request. *good: it fits and is fast enough. `found` then has the result. If nothing
 * fits, it has the request, for the reasons. */
static enum tdm_status try_search(const struct sizes *s, struct tdm_objective_found *found,
                                  bool *good, struct tdm_error *err)
{
    const double most_seconds = s->options->most_seconds;
    enum tdm_status status = tdm_objective_time(&s->request, s->effort, found, err);
    *good = status == TDM_OK &&
            (most_seconds <= 0 || found->search.simulation.step_seconds <= most_seconds);
    if (status == TDM_OK || status == TDM_INFEASIBLE)
        return TDM_OK;
    tdm_objective_found_free(found);
    return status;
}

/* Searches s->request, and tells that `size` was tried. */
static enum tdm_status try_size(struct sizes *s, uint64_t size, bool *good, struct tdm_error *err)
{
    struct tdm_objective_found next;
    enum tdm_status status = try_search(s, &next, good, err);
    if (status != TDM_OK)
        return status;
    s->seconds = next.search.simulation.step_seconds;
    if (*good ||
        (s->keeps_misses && s->seconds <= 0 && s->found->search.simulation.step_seconds <= 0))
        keep(s->found, &next);
    tdm_objective_found_free(&next);
    tell(s, size, *good);
    return TDM_OK;
}

/* Of several ranks sizes are tried in haste: searches what was found once more with less of it, and
 * keeps that if it is faster. */
static enum tdm_status search_again(const struct tdm_request *request,
                                    struct tdm_objective_found *found, struct tdm_error *err)
{
    struct tdm_request again = *request;
    struct tdm_objective_found next;
    again.context = found->schedule->sequences[0].tokens;
    again.has_memory = true;
    again.memory_bytes = found->schedule->memory_bytes;
    enum tdm_status status = tdm_objective_time(&again, TDM_EFFORT_QUICK, &next, err);
    if (status == TDM_OK &&
        next.search.simulation.step_seconds < found->search.simulation.step_seconds)
        keep(found, &next);
    tdm_objective_found_free(&next);
    return status == TDM_INFEASIBLE ? TDM_OK : status;
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
    struct sizes sizes;
    uint64_t shortest;    /* tokens: a shorter context leaves a rank without a chunk */
    uint64_t unit;        /* tokens per unit */
    uint64_t least, most; /* units that may be tried */
    /* several ranks: what is known from other contexts, and the fewest units that do not fit by
     * that, and surely; 0: none */
    struct tdm_team_memo memo;
    uint64_t doubted, refused;
};

typedef enum tdm_status (*least_of)(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                    enum tdm_place place, uint64_t *bytes, struct tdm_error *err);

/* The minimum device memory of recipes at a context (TDM_SIZE_MAX: none fits), and the limit. */
static enum tdm_status least_device(struct contexts *c, uint64_t units, least_of least,
                                    uint64_t *bytes, uint64_t *limit, struct tdm_error *err)
{
    struct tdm_objective_found next = {0};
    c->sizes.request.context = units * c->unit;
    enum tdm_status status = tdm_request_make(&c->sizes.request, &next.schedule, &next.pins, err);
    if (status != TDM_OK)
        return status;
    *limit = next.schedule->memory_bytes;
    status = least(next.schedule, &next.pins, TDM_DEVICE, bytes, err);
    if (status == TDM_OK && *bytes == 0)
        *bytes = TDM_SIZE_MAX;
    tdm_objective_found_free(&next);
    return status;
}

/* Does a context fit by the minimum memory of recipes? This is faster than a search, and a yes is
 * always right. */
static enum tdm_status fits_surely(struct contexts *c, uint64_t units, bool *fits,
                                   struct tdm_error *err)
{
    struct sizes *s = &c->sizes;
    struct tdm_objective_found next = {0};
    s->request.context = units * c->unit;
    *fits = false;
    enum tdm_status status = make_team(&s->request, &next, err);
    if (status == TDM_OK)
        status = tdm_candidates_enough(next.schedule, &next.pins, TDM_DEVICE,
                                       next.schedule->memory_bytes, fits, err);
    tdm_objective_found_free(&next);
    return status;
}

/* Looks for a schedule of several ranks that fits, and keeps it. A yes is always right. `alike`: by
 * what is known from other contexts, if that is of use. *sure: it was not. */
static enum tdm_status find_of_team(struct contexts *c, uint64_t units, bool alike, bool *fits,
                                    bool *sure, struct tdm_error *err)
{
    struct sizes *s = &c->sizes;
    struct tdm_objective_found next = {0};
    uint64_t bytes = TDM_SIZE_MAX;
    bool tried = false;
    s->request.context = units * c->unit;
    enum tdm_status status = make_team(&s->request, &next, err);
    if (status != TDM_OK)
        return status;
    const uint64_t limit = next.schedule->memory_bytes;
    if (alike)
        status = tdm_team_least_alike(next.schedule, &next.pins, TDM_DEVICE, limit, &c->memo,
                                      &tried, &bytes, err);
    if (!tried)
        status =
            tdm_team_least(next.schedule, &next.pins, TDM_DEVICE, limit, &c->memo, &bytes, err);
    *sure = !tried;
    *fits = status == TDM_OK && bytes <= limit;
    if (*fits)
        keep(s->found, &next);
    tdm_objective_found_free(&next);
    if (status == TDM_OK || status == TDM_INFEASIBLE) {
        tell(s, s->request.context, *fits);
        return TDM_OK;
    }
    return status;
}

/* Does a context fit several ranks? */
static enum tdm_status fits_team(struct contexts *c, uint64_t units, bool *fits,
                                 struct tdm_error *err)
{
    bool sure = true;
    *fits = false;
    if (c->refused > 0 && units >= c->refused)
        return TDM_OK;
    enum tdm_status status = find_of_team(c, units, true, fits, &sure, err);
    if (!*fits)
        *(sure ? &c->refused : &c->doubted) = units;
    return status;
}

static enum tdm_status try_context(struct contexts *c, uint64_t units, bool *good,
                                   struct tdm_error *err)
{
    c->sizes.request.context = units * c->unit;
    return try_size(&c->sizes, c->sizes.request.context, good, err);
}

/* A number near `value` in (low, high), a multiple of the largest power of two that the distance
 * allows: chunks divide round contexts evenly, so no bytes are wasted on a partial chunk. */
static uint64_t round_between(uint64_t low, uint64_t value, uint64_t high)
{
    uint64_t grain = 1;
    while (4 * grain <= high - low)
        grain *= 2;
    uint64_t round = (value + grain / 2) / grain * grain;
    while (round <= low)
        round += grain;
    while (round >= high)
        round -= grain;
    return round;
}

typedef enum tdm_status (*context_test)(struct contexts *c, uint64_t units, bool *good,
                                        struct tdm_error *err);

/* Bisects the ratio between a context that is good (0: no tokens) and one that is not. */
static enum tdm_status narrow(struct contexts *c, context_test test, uint64_t *low, uint64_t high,
                              struct tdm_error *err)
{
    const uint64_t parts = parts_of(&c->sizes);
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && high - *low > 1 + *low / parts) {
        uint64_t middle = (uint64_t)sqrt((double)(*low > 0 ? *low : 1) * (double)high);
        bool good;
        middle = round_between(*low, middle, high);
        status = test(c, middle, &good, err);
        if (status == TDM_OK)
            *(good ? low : &high) = middle;
    }
    return status;
}

/* Goes up from a good context with doubling strides, then bisects. */
static enum tdm_status widen(struct contexts *c, context_test test, uint64_t *low,
                             struct tdm_error *err)
{
    const uint64_t first = *low / STRIDE;
    for (uint64_t stride = 1 + first; *low < c->most; stride *= 2) {
        uint64_t next = stride < c->most - *low ? *low + stride : c->most;
        bool good;
        next = round_between(*low, next, next + 1 + stride / 2);
        enum tdm_status status = test(c, next, &good, err);
        if (status != TDM_OK)
            return status;
        if (!good)
            return narrow(c, test, low, next, err);
        *low = next;
    }
    return TDM_OK;
}

/* The longest context, in units, that fits by the estimate of recipes. Extrapolates linearly from
 * the last two estimates. */
static enum tdm_status find_near(struct contexts *c, uint64_t low, uint64_t *units,
                                 struct tdm_error *err)
{
    uint64_t high = 0, next = low > 0 ? low : 1;
    double last_units = 0, last_bytes = 0;
    while ((high == 0 || high > low + 1 + low / NEAR_PARTS) && low < c->most) {
        uint64_t bytes, limit;
        enum tdm_status status =
            least_device(c, next, tdm_candidates_least_estimate, &bytes, &limit, err);
        if (status != TDM_OK)
            return status;
        if (bytes > limit)
            high = next;
        else
            low = next > low ? next : low;
        double rise = ((double)bytes - last_bytes) / ((double)next - last_units);
        last_units = (double)next;
        last_bytes = (double)bytes;
        double meets = last_units + ((double)limit - last_bytes) / rise;
        uint64_t most = high > 0 ? high : low > c->most / 16 ? c->most + 1 : 16 * low + 16;
        next = rise > 0 && meets > (double)low && meets < (double)most ? (uint64_t)meets
                                                                       : low + (most - low) / 2;
        next = round_between(low, next > low ? next : low + 1, most);
    }
    *units = low;
    return TDM_OK;
}

/* The longest context for which several ranks have a schedule, in units; less than the least: none.
 * What does not fit by what is known from other contexts may fit after all, so the shortest such is
 * tried surely. */
static enum tdm_status longest_of_team(struct contexts *c, uint64_t *units, struct tdm_error *err)
{
    c->memo.chunk_tokens = 0;
    c->doubted = c->refused = 0;
    enum tdm_status status = widen(c, fits_team, units, err);
    while (status == TDM_OK && c->doubted > *units) {
        const uint64_t doubted = c->doubted;
        bool fits, sure;
        status = find_of_team(c, doubted, false, &fits, &sure, err);
        if (status != TDM_OK || !fits)
            break;
        *units = doubted;
        status = widen(c, fits_team, units, err);
    }
    return status == TDM_OK && *units >= c->least ? tdm_team_complete(c->sizes.found, err) : status;
}

/* The longest context by searches, in units; less than the least: none is good. */
static enum tdm_status longest_by_search(struct contexts *c, uint64_t *units, struct tdm_error *err)
{
    uint64_t first = *units;
    bool good;
    enum tdm_status status = widen(c, fits_surely, &first, err);
    first = tdm_most(first, c->least);
    if (status == TDM_OK)
        status = try_context(c, first, &good, err);
    if (status != TDM_OK)
        return status;
    if (!good)
        return narrow(c, try_context, units, first, err);
    *units = first;
    return widen(c, try_context, units, err);
}

/* The longest context in units of `unit` tokens, at most `most` units. *units: 0 if none is
 * good. */
static enum tdm_status longest(struct contexts *c, uint64_t unit, uint64_t most, uint64_t *units,
                               struct tdm_error *err)
{
    c->unit = unit;
    c->least = tdm_size_ceil_div(c->shortest, unit);
    c->most = most;
    *units = 0;
    if (c->least > most)
        return TDM_OK;
    *units = c->least - 1;
    enum tdm_status status = is_by_least(&c->sizes.request, c->sizes.options)
                                 ? longest_of_team(c, units, err)
                                 : longest_by_search(c, units, err);
    if (*units < c->least)
        *units = 0;
    return status;
}

static enum tdm_status find_context(const struct tdm_request *request,
                                    const struct tdm_objective_options *options,
                                    enum tdm_effort effort, struct tdm_objective_found *found,
                                    struct tdm_error *err)
{
    struct contexts c = {
        .sizes = {.request = *request, .options = options, .effort = effort, .found = found}};
    uint64_t units = 0;
    *found = (struct tdm_objective_found){0};
    enum tdm_status status = shortest_context(request, &c.shortest, err);
    if (status == TDM_OK)
        status = longest(&c, CONTEXT_STEP, TDM_LONGEST_CONTEXT / CONTEXT_STEP, &units, err);
    if (status == TDM_OK && units == 0)
        status = longest(&c, 1, CONTEXT_STEP - 1, &units, err);
    if (status == TDM_OK && units == 0) {
        bool good;
        c.sizes.request.context = c.shortest;
        status = try_search(&c.sizes, found, &good, err);
        const double seconds = found->search.simulation.step_seconds;
        if (status != TDM_OK || seconds <= 0)
            return status == TDM_OK ? tdm_fail(err, TDM_INFEASIBLE, "no context fits") : status;
        tdm_objective_found_free(found);
        return too_slow(seconds, options->most_seconds,
                        ranks_of(request) > 1 ? "a chunk for each rank" : "a single token", err);
    }
    if (status == TDM_OK && ranks_of(request) > 1 && !is_by_least(request, options))
        status = search_again(&c.sizes.request, found, err);
    if (status != TDM_OK)
        tdm_objective_found_free(found);
    return status;
}

enum tdm_status tdm_objective_context(const struct tdm_request *request,
                                      const struct tdm_objective_options *options,
                                      struct tdm_objective_found *found, struct tdm_error *err)
{
    return find_context(request, options,
                        ranks_of(request) > 1 ? TDM_EFFORT_FIRST : TDM_EFFORT_FULL, found, err);
}

/* A context that fits several ranks, from the estimate for one: as many times as long as there are
 * ranks, or less; where host memory is short, which they share, shorter. */
static enum tdm_status near_context_of_team(struct contexts *c, struct tdm_error *err)
{
    const double ranks = ranks_of(&c->sizes.request);
    const double shares[] = {ranks, 0.75 * ranks, 0.5 * ranks, 1, 0.75, 0.5, 0.25};
    uint64_t units;
    bool good = false;
    enum tdm_status status = shortest_context(&c->sizes.request, &c->shortest, err);
    if (status == TDM_OK)
        status = find_near(c, 0, &units, err);
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]) && status == TDM_OK && !good; i++) {
        double wanted = shares[i] * (double)units;
        uint64_t tried = wanted < TEAM_NEAR_MOST ? (uint64_t)wanted : TEAM_NEAR_MOST;
        if (tried * c->unit >= c->shortest)
            status = try_context(c, tried, &good, err);
    }
    if (status != TDM_OK || good)
        return status;
    c->sizes.request.context = c->shortest;
    status = make_team(&c->sizes.request, c->sizes.found, err);
    return status == TDM_OK ? tdm_fail(err, TDM_INFEASIBLE, "no context fits") : status;
}

enum tdm_status tdm_objective_near_context(const struct tdm_request *request, uint64_t from_context,
                                           struct tdm_objective_found *found, struct tdm_error *err)
{
    static const struct tdm_objective_options options = {0};
    struct contexts c = {.sizes = {.request = *request,
                                   .options = &options,
                                   .effort = TDM_EFFORT_FIT,
                                   .found = found},
                         .unit = CONTEXT_STEP,
                         .most = TDM_LONGEST_CONTEXT / CONTEXT_STEP};
    uint64_t units;
    bool good = false;
    *found = (struct tdm_objective_found){0};
    if (ranks_of(request) > 1)
        return near_context_of_team(&c, err);
    enum tdm_status status = find_near(&c, from_context / CONTEXT_STEP, &units, err);
    for (unsigned tries = 0; status == TDM_OK && !good && units > 0 && tries < NEAR_TRIES;
         tries++) {
        status = try_context(&c, units, &good, err);
        units -= units / NEAR_PARTS;
    }
    return status == TDM_OK && !good ? find_context(request, &options, TDM_EFFORT_FIT, found, err)
                                     : status;
}

/* ---- the least memory ---- */

struct memories {
    struct sizes sizes;
    uint64_t runtime_bytes;   /* of driver and libraries: no limit up to this is good */
    enum tdm_effort found_by; /* the search that found the result */
};

/* Searches with a limit in whole MiB, which a user can type. */
static enum tdm_status try_memory(struct memories *m, uint64_t memory_bytes, bool *good,
                                  struct tdm_error *err)
{
    struct tdm_request *request = &m->sizes.request;
    request->has_memory = true;
    request->memory_bytes = tdm_size_align(memory_bytes, MIB);
    *good = false;
    if (request->memory_bytes <= m->runtime_bytes)
        return TDM_OK;
    enum tdm_status status = try_size(&m->sizes, request->memory_bytes, good, err);
    if (*good)
        m->found_by = m->sizes.effort;
    return status;
}

static uint64_t used_bytes(const struct tdm_objective_found *found)
{
    return found->search.simulation.used_peak_bytes[TDM_DEVICE];
}

/* Goes down from what `found` uses with doubling strides, then bisects between good and bad
 * limits. */
static enum tdm_status lessen(struct memories *m, struct tdm_error *err)
{
    uint64_t high = used_bytes(m->sizes.found), low = 0, stride = high / STRIDE;
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && high > low &&
           high - low > tdm_most(high / parts_of(&m->sizes), MEMORY_STEP)) {
        uint64_t next = low > 0 || stride >= high ? low + (high - low) / 2 : high - stride;
        bool good;
        status = try_memory(m, next, &good, err);
        if (good)
            high = used_bytes(m->sizes.found);
        else
            low = next;
        stride = stride < high ? 2 * stride : stride;
    }
    return status;
}

/* Lowers the limit to what the last plan uses; a search with that limit may use still less. */
static enum tdm_status settle(struct memories *m, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    bool good = true;
    while (status == TDM_OK && good &&
           tdm_size_align(used_bytes(m->sizes.found), MIB) < m->sizes.found->schedule->memory_bytes)
        status = try_memory(m, used_bytes(m->sizes.found), &good, err);
    return status;
}

/* Starts from what the fastest plan uses, or from the minimum with which recipes fit, if that is
 * less and a search succeeds. */
static enum tdm_status begin_low(struct memories *m, struct tdm_error *err)
{
    const enum tdm_effort effort = m->sizes.effort;
    struct tdm_objective_found probe = {0};
    uint64_t least;
    bool good;
    m->sizes.effort = TDM_EFFORT_FIRST; /* only what is used matters */
    enum tdm_status status = tdm_request_make(&m->sizes.request, &probe.schedule, &probe.pins, err);
    if (status == TDM_OK && used_bytes(m->sizes.found) + MIB < probe.schedule->memory_bytes)
        status = try_memory(m, used_bytes(m->sizes.found), &good, err);
    m->sizes.effort = effort;
    if (status == TDM_OK)
        status = tdm_candidates_least(probe.schedule, &probe.pins, TDM_DEVICE, &least, err);
    tdm_objective_found_free(&probe);
    if (status == TDM_OK && least > 0 && least < used_bytes(m->sizes.found))
        status = try_memory(m, least, &good, err);
    return status;
}

/* What no schedule is below. */
static enum tdm_status prove(struct memories *m, struct tdm_error *err)
{
    struct tdm_objective_found probe = {0};
    m->sizes.request.memory_bytes =
        m->sizes.found->schedule->memory_bytes; /* not the last one tried */
    enum tdm_status status = tdm_request_make(&m->sizes.request, &probe.schedule, &probe.pins, err);
    if (status == TDM_OK)
        status = tdm_candidates_least_proved(probe.schedule, &probe.pins, TDM_DEVICE,
                                             &m->sizes.found->proved_bytes, err);
    tdm_objective_found_free(&probe);
    return status;
}

/* Of several ranks: the schedule with the least memory of recipes. */
static enum tdm_status least_of_team(const struct sizes *s, struct tdm_error *err)
{
    struct tdm_objective_found *found = s->found;
    struct tdm_team_memo memo;
    uint64_t bytes = 0;
    enum tdm_status status = make_team(&s->request, found, err);
    if (status != TDM_OK)
        return status;
    struct tdm_schedule *schedule = found->schedule;
    status = tdm_team_least(schedule, &found->pins, TDM_DEVICE, 0, &memo, &bytes, err);
    if (status == TDM_INFEASIBLE || (status == TDM_OK && bytes > schedule->memory_bytes)) {
        tdm_objective_found_free(found);
        status = make_team(&s->request, found, err); /* the caller explains why */
        return status == TDM_OK ? tdm_fail(err, TDM_INFEASIBLE, "no schedule fits") : status;
    }
    if (status == TDM_OK) {
        schedule->memory_bytes = tdm_least(schedule->memory_bytes, tdm_size_align(bytes, MIB));
        status = tdm_team_complete(found, err);
        tell(s, schedule->memory_bytes, status == TDM_OK);
    }
    if (status != TDM_OK)
        tdm_objective_found_free(found);
    return status;
}

enum tdm_status tdm_objective_memory(const struct tdm_request *request,
                                     const struct tdm_objective_options *options,
                                     struct tdm_objective_found *found, struct tdm_error *err)
{
    const bool team = ranks_of(request) > 1;
    struct memories m = {
        .sizes = {
            .request = *request, .options = options, .effort = TDM_EFFORT_FIRST, .found = found}};
    bool good;
    *found = (struct tdm_objective_found){0};
    if (is_by_least(request, options))
        return least_of_team(&m.sizes, err);
    /* the fastest schedule, of which only what it uses matters: a quick search is enough, unless
     * its result takes too long or nothing fits */
    enum tdm_status status = try_search(&m.sizes, found, &good, err);
    if (status == TDM_OK && !good && !team) {
        tdm_objective_found_free(found);
        m.sizes.effort = TDM_EFFORT_FULL;
        status = try_search(&m.sizes, found, &good, err);
    }
    if (status != TDM_OK)
        return status;
    const double seconds = found->search.simulation.step_seconds;
    if (!good && seconds > 0) {
        tdm_objective_found_free(found);
        return too_slow(seconds, options->most_seconds, "the fastest schedule that fits", err);
    }
    if (!good) /* the caller explains why */
        return tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");
    m.runtime_bytes = found->schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
    m.found_by = TDM_EFFORT_FIRST;
    m.sizes.effort = team ? TDM_EFFORT_FIRST : TDM_EFFORT_FULL;
    status = begin_low(&m, err);
    if (status == TDM_OK)
        status = lessen(&m, err);
    if (status == TDM_OK)
        status = settle(&m, err);
    if (status == TDM_OK && m.found_by != m.sizes.effort) /* a full search may be faster */
        status = try_memory(&m, found->schedule->memory_bytes, &good, err);
    if (status == TDM_OK)
        status = team ? search_again(request, found, err) : prove(&m, err);
    if (status != TDM_OK)
        tdm_objective_found_free(found);
    return status;
}

/* ---- the largest budget ---- */

/* Searches with a budget of `pages`; 0: dense. */
static enum tdm_status try_budget(struct sizes *s, uint64_t pages, uint64_t page_tokens, bool *good,
                                  struct tdm_error *err)
{
    s->request.budget = pages == 0 ? TDM_BUDGET_DENSE : TDM_BUDGET_TOKENS;
    s->request.budget_tokens = pages * page_tokens;
    return try_size(s, pages == 0 ? s->request.context : s->request.budget_tokens, good, err);
}

enum tdm_status tdm_objective_budget(const struct tdm_request *request,
                                     const struct tdm_objective_options *options,
                                     struct tdm_objective_found *found, struct tdm_error *err)
{
    struct sizes s = {
        .request = *request, .options = options, .keeps_misses = true, .found = found};
    bool good;
    *found = (struct tdm_objective_found){0};
    s.request.budget = TDM_BUDGET_DENSE;
    enum tdm_status status = tdm_request_make(&s.request, &found->schedule, &found->pins, err);
    if (status != TDM_OK)
        return status;
    const uint64_t page = found->schedule->page_tokens;
    status = try_budget(&s, 0, page, &good, err);
    if (status != TDM_OK || good)
        return status;
    uint64_t low = 1, high = tdm_size_ceil_div(request->context, page);
    if (high > 1)
        status = try_budget(&s, low, page, &good, err);
    if (status == TDM_OK && !good && s.seconds > 0) {
        tdm_objective_found_free(found);
        return too_slow(s.seconds, options->most_seconds,
                        high > 1 ? "a budget of one page" : "a step", err);
    }
    if (status == TDM_OK && !good)
        return tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");
    while (status == TDM_OK && high - low > 1 + low / 64) {
        uint64_t middle = (uint64_t)sqrt((double)low * (double)high);
        middle = middle <= low ? low + 1 : middle;
        status = try_budget(&s, middle, page, &good, err);
        *(good ? &low : &high) = middle;
    }
    if (status != TDM_OK)
        tdm_objective_found_free(found);
    return status;
}
