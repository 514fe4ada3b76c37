/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what is short when no schedule fits, and what would be enough. */
#include "planner/shortage.h"

#include "base/size.h"
#include "base/units.h"
#include "planner/places.h"
#include "planner/team_least.h"
#include "planner/team_choices.h"
#include "schedule/optimizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *tdm_binding_name(enum tdm_binding binding)
{
    static const char *const names[] = {"device", "host", "either", "both"};
    return names[binding];
}

/* ---- the longest context ---- */

static void set_context(struct tdm_schedule *schedule, uint64_t context)
{
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        schedule->sequences[s].tokens = context;
}

/* The search of the longest context. What fits is proved by schedules that were lowered. */
struct contexts {
    struct tdm_schedule *schedule;
    const struct tdm_pins *pins;
    uint64_t step;        /* tokens */
    uint64_t asked;       /* steps, which do not fit */
    uint64_t fits, fails; /* the longest known to fit, and the shortest known not to, in steps */
    uint64_t may;         /* the longest that fits by its estimate, in steps */
    struct tdm_team_memo memo; /* of several ranks */
};

/* Estimates are never too high, so what does not fit by them does not fit. */
static enum tdm_status may_fit(struct contexts *c, uint64_t steps, bool *may, struct tdm_error *err)
{
    uint64_t bytes;
    *may = steps <= c->may;
    if (*may || steps >= c->fails)
        return TDM_OK;
    set_context(c->schedule, steps * c->step);
    enum tdm_status status =
        tdm_candidates_least_estimate(c->schedule, c->pins, TDM_DEVICE, &bytes, err);
    *may = bytes > 0 && bytes <= c->schedule->memory_bytes;
    if (*may)
        c->may = steps;
    else
        c->fails = steps;
    return status;
}

static enum tdm_status context_fits(struct contexts *c, uint64_t steps, bool *fits,
                                    struct tdm_error *err)
{
    *fits = steps <= c->fits;
    if (*fits || steps >= c->fails)
        return TDM_OK;
    set_context(c->schedule, steps * c->step);
    const uint64_t enough = c->schedule->memory_bytes;
    enum tdm_status status =
        c->schedule->ranks > 1
            ? tdm_candidates_enough_of_team(c->schedule, c->pins, enough, false, &c->memo, fits,
                                            err)
            : tdm_candidates_enough(c->schedule, c->pins, TDM_DEVICE, enough, fits, err);
    if (*fits)
        c->fits = steps;
    else
        c->fails = steps;
    return status;
}

/* Of several ranks: by what is known from other contexts. A yes is always right. */
static enum tdm_status fits_alike(struct contexts *c, uint64_t steps, bool *fits,
                                  struct tdm_error *err)
{
    *fits = steps <= c->fits;
    if (*fits || steps >= c->fails)
        return TDM_OK;
    set_context(c->schedule, steps * c->step);
    enum tdm_status status = tdm_candidates_enough_of_team(
        c->schedule, c->pins, c->schedule->memory_bytes, true, &c->memo, fits, err);
    if (*fits)
        c->fits = steps;
    return status;
}

/* Bisection between a context that fits and one that does not, to about a thousandth. *longest and
 * *shortest: what is left of such, in steps. */
static enum tdm_status bisect(struct contexts *c,
                              enum tdm_status (*test)(struct contexts *c, uint64_t steps,
                                                      bool *good, struct tdm_error *err),
                              uint64_t *longest, uint64_t *shortest, struct tdm_error *err)
{
    uint64_t low = 0, high = c->asked;
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && high - low > 1 + low / 1024) {
        const uint64_t middle = low + (high - low) / 2;
        bool good = middle <= c->fits;
        if (!good)
            status = test(c, middle, &good, err);
        if (good)
            low = middle;
        else
            high = middle;
    }
    *longest = low;
    *shortest = high;
    return status;
}

/* Lowers schedules close to the longest context that may fit by the estimates, until one fits: a
 * bisection then has to lower few others, or none. */
static enum tdm_status start_from_estimates(struct contexts *c, struct tdm_error *err)
{
    uint64_t may, not ;
    bool fits = false;
    c->may = c->fits;
    enum tdm_status status = bisect(c, may_fit, &may, &not, err);
    for (uint64_t less = 0; status == TDM_OK && !fits && less < may;
         less = less == 0 ? 1 + may / 256 : 4 * less)
        status = context_fits(c, may - less, &fits, err);
    return status;
}

/* The same of several ranks by what is known from other contexts: the bisection then has to find
 * out one that does not fit, and rarely more. */
static enum tdm_status start_from_memo(struct contexts *c, struct tdm_error *err)
{
    uint64_t longest, shortest;
    bool fits;
    enum tdm_status status = bisect(c, fits_alike, &longest, &shortest, err);
    return status == TDM_OK ? context_fits(c, shortest, &fits, err) : status;
}

static enum tdm_status longest_context(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                       uint64_t *longest, struct tdm_error *err)
{
    const uint64_t context = schedule->sequences[0].tokens;
    struct tdm_sequence *given = schedule->sequences; /* documents do not change bytes */
    schedule->sequences = tdm_sequences_new(schedule->sequence_count, context);
    if (schedule->sequences == NULL) {
        schedule->sequences = given;
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for sequences");
    }
    const uint64_t shortest =
        tdm_least(tdm_team_shortest_context(schedule->ranks, pins->chunk_tokens), context);
    struct contexts c = {.schedule = schedule, .pins = pins, .step = 1};
    uint64_t fails;
    bool any;
    *longest = 0;
    /* if the least that gives each rank work does not fit, weights and states are too large */
    c.fails = c.asked = context + 1;
    enum tdm_status status = context_fits(&c, shortest, &any, err);
    if (status == TDM_OK && any) {
        c.step = context > 8192 ? 1024 : 1;
        c.fails = c.asked = tdm_size_ceil_div(context, c.step);
        c.fits = shortest / c.step;
        status = schedule->ranks == 1 ? start_from_estimates(&c, err) : start_from_memo(&c, err);
        if (status == TDM_OK)
            status = bisect(&c, context_fits, longest, &fails, err);
        *longest *= c.step;
    }
    tdm_sequences_free(schedule->sequences, schedule->sequence_count);
    schedule->sequences = given;
    return status;
}

/* ---- what is short ---- */

/* Has a search for the least been free to put all state on the host? */
static bool has_streamed(const struct tdm_schedule *schedule, const struct tdm_pins *pins)
{
    bool pinned = tdm_gradients_stay(schedule);
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        pinned |= pins->has_home[state];
    return !pinned;
}

/* Is it enough to move state to the host: masters, moments and gradients that stay, or weights
 * too? */
static enum tdm_status try_streaming(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     struct tdm_shortage *shortage, struct tdm_error *err)
{
    struct tdm_home homes[TDM_STATES];
    bool streamed[TDM_STATES] = {false};
    enum tdm_status status = TDM_OK;
    bool fits = false;
    uint64_t bytes = 0;
    memcpy(homes, schedule->homes, sizeof(homes));
    for (int weights = 0; weights < 2 && status == TDM_OK && !fits; weights++) {
        streamed[TDM_STATE_WEIGHTS] = weights == 1;
        streamed[TDM_STATE_MASTER] = schedule->dtypes.master != TDM_DTYPE_NONE;
        streamed[TDM_STATE_MOMENTS] = schedule->dtypes.moments != TDM_DTYPE_NONE;
        streamed[TDM_STATE_GRADIENTS] = tdm_gradients_stay(schedule);
        for (int state = 0; state < TDM_STATES; state++)
            if (streamed[state])
                tdm_schedule_set_home(schedule, (enum tdm_state)state, 0,
                                      schedule->machine->topology.far);
        status =
            tdm_candidates_enough(schedule, pins, TDM_DEVICE, schedule->memory_bytes, &fits, err);
        if (status == TDM_OK && fits)
            status = tdm_candidates_least(schedule, pins, TDM_DEVICE, &bytes, err);
    }
    memcpy(schedule->homes, homes, sizeof(homes));
    if (fits) {
        memcpy(shortage->streamed, streamed, sizeof(streamed));
        shortage->streamed_bytes = bytes;
    }
    return status;
}

/* The least of the device. A brief search leaves it at the estimate where that is more than the
 * machine's device has, as no remedy names it then. */
static enum tdm_status least_of_device(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                       bool brief, uint64_t *bytes, struct tdm_error *err)
{
    if (brief && schedule->ranks == 1) {
        enum tdm_status status =
            tdm_candidates_least_estimate(schedule, pins, TDM_DEVICE, bytes, err);
        if (status != TDM_OK ||
            *bytes > schedule->machine->topology.places[TDM_DEVICE].capacity_bytes)
            return status;
    }
    return tdm_candidates_least(schedule, pins, TDM_DEVICE, bytes, err);
}

/* Do gradients that stay on the host, where no search puts them by itself, save device memory? */
static enum tdm_status try_far_gradients(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                         bool brief, struct tdm_shortage *shortage,
                                         struct tdm_error *err)
{
    struct tdm_home *home = &schedule->homes[TDM_STATE_GRADIENTS];
    const struct tdm_home given = *home;
    const uint64_t needed = shortage->needed_bytes[TDM_DEVICE];
    uint64_t bytes = 0;
    if (!tdm_gradients_stay(schedule) || pins->has_home[TDM_STATE_GRADIENTS] ||
        shortage->streamed[TDM_STATE_GRADIENTS])
        return TDM_OK;
    tdm_schedule_set_home(schedule, TDM_STATE_GRADIENTS, 0, schedule->machine->topology.far);
    enum tdm_status status = least_of_device(schedule, pins, brief, &bytes, err);
    *home = given;
    if (status == TDM_OK && (needed == 0 || bytes < needed))
        shortage->far_gradients_bytes = bytes;
    return status;
}

enum tdm_binding tdm_binding_of(uint64_t device_bytes, uint64_t far_bytes)
{
    if (device_bytes == 0)
        return far_bytes == 0 ? TDM_BINDING_BOTH : TDM_BINDING_HOST;
    return far_bytes == 0 ? TDM_BINDING_DEVICE : TDM_BINDING_EITHER;
}

/* What every schedule of one rank takes at both places together: state and runtimes. */
static uint64_t resident_bytes(const struct tdm_schedule *schedule)
{
    return tdm_size_add(tdm_size_add(tdm_schedule_state_bytes(schedule),
                                     schedule->machine->topology.places[TDM_DEVICE].runtime_bytes),
                        tdm_machine_far(schedule->machine)->runtime_bytes);
}

/* Can the limits of both places together not even hold that? */
static bool is_hopeless(const struct tdm_schedule *schedule)
{
    return schedule->ranks == 1 &&
           resident_bytes(schedule) >
               tdm_size_add(schedule->memory_bytes, schedule->host_memory_bytes);
}

/* What is proved about the bytes of a place, if that is more than its limit. Where the limits are
 * hopeless, a linear program would take seconds to prove little more than what the state and the
 * other limit tell. */
static enum tdm_status prove(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                             enum tdm_place place, struct tdm_shortage *shortage,
                             struct tdm_error *err)
{
    uint64_t bytes;
    if (is_hopeless(schedule)) {
        shortage->proved_bytes[place] =
            resident_bytes(schedule) - shortage->limit_bytes[tdm_other_place(schedule, place)];
        return TDM_OK;
    }
    enum tdm_status status = tdm_candidates_least_proved(schedule, pins, place, &bytes, err);
    if (status == TDM_OK && bytes > shortage->limit_bytes[place])
        shortage->proved_bytes[place] = bytes;
    return status;
}

/* A miss by this factor is clear: what a search finds beside recipes saves far less. */
#define CLEAR 1.5

enum tdm_status tdm_shortage_foresee(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     bool brief, enum tdm_foreseen *foreseen, struct tdm_error *err)
{
    const uint64_t limit_bytes = schedule->memory_bytes;
    uint64_t bytes;
    bool is_proved = false;
    *foreseen = TDM_MAY_FIT;
    if (schedule->ranks > 1 || schedule->pass != TDM_TRAIN)
        return TDM_OK;
    enum tdm_status status = tdm_candidates_least_estimate(schedule, pins, TDM_DEVICE, &bytes, err);
    if (status == TDM_OK && brief && (double)bytes > CLEAR * (double)limit_bytes)
        *foreseen = TDM_CLEARLY_MISSES;
    else if (status == TDM_OK && bytes > limit_bytes && !is_hopeless(schedule))
        status =
            tdm_candidates_prove_more(schedule, pins, TDM_DEVICE, limit_bytes, &is_proved, err);
    if (is_proved)
        *foreseen = TDM_SURELY_MISSES;
    return status;
}

enum tdm_status tdm_shortage_find(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                  bool brief, struct tdm_shortage *out, struct tdm_error *err)
{
    enum tdm_place far = schedule->machine->topology.far;
    struct tdm_shortage shortage = {.has_optimizer =
                                        schedule->optimizer.kind != TDM_OPTIMIZER_NONE &&
                                        schedule->pass == TDM_TRAIN};
    uint64_t *needed = shortage.needed_bytes;
    shortage.limit_bytes[TDM_DEVICE] = schedule->memory_bytes;
    shortage.limit_bytes[far] = schedule->host_memory_bytes;
    bool alike = true;
    for (uint32_t s = 1; s < schedule->sequence_count; s++)
        alike &= schedule->sequences[s].tokens == schedule->sequences[0].tokens;

    enum tdm_status status = least_of_device(schedule, pins, brief, &needed[TDM_DEVICE], err);
    if (status == TDM_OK)
        status = tdm_candidates_least(schedule, pins, far, &needed[far], err);
    if (status == TDM_OK && alike)
        status = longest_context(schedule, pins, &shortage.longest_context, err);
    if (status == TDM_OK && shortage.has_optimizer) {
        struct tdm_optimizer_settings settings = schedule->optimizer;
        struct tdm_dtypes dtypes = schedule->dtypes;
        tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_NONE);
        status = least_of_device(schedule, pins, brief, &shortage.without_optimizer_bytes, err);
        schedule->optimizer = settings;
        schedule->dtypes = dtypes;
    }
    const bool fits_streamed =
        needed[TDM_DEVICE] > 0 && needed[TDM_DEVICE] <= schedule->memory_bytes;
    if (status == TDM_OK && schedule->pass == TDM_TRAIN && !is_hopeless(schedule) &&
        (fits_streamed || !has_streamed(schedule, pins)))
        status = try_streaming(schedule, pins, &shortage, err);
    if (status == TDM_OK && schedule->pass == TDM_TRAIN && !is_hopeless(schedule))
        status = try_far_gradients(schedule, pins, brief, &shortage, err);
    shortage.binding = tdm_binding_of(needed[TDM_DEVICE], needed[far]);
    if (status == TDM_OK && shortage.binding == TDM_BINDING_BOTH) {
        /* find a sufficient pair: the minimum on the device, and what the host needs with it */
        schedule->host_memory_bytes = TDM_SIZE_MAX;
        status = tdm_candidates_least(schedule, pins, TDM_DEVICE, &needed[TDM_DEVICE], err);
        schedule->memory_bytes = needed[TDM_DEVICE];
        if (status == TDM_OK)
            status = tdm_candidates_least(schedule, pins, far, &needed[far], err);
    }
    schedule->memory_bytes = shortage.limit_bytes[TDM_DEVICE];
    schedule->host_memory_bytes = shortage.limit_bytes[far];
    if (status == TDM_OK)
        *out = shortage;
    return status;
}

enum tdm_status tdm_shortage_prove(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                   struct tdm_shortage *shortage, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (shortage->binding != TDM_BINDING_HOST)
        status = prove(schedule, pins, TDM_DEVICE, shortage, err);
    if (status == TDM_OK && shortage->binding != TDM_BINDING_DEVICE)
        status = prove(schedule, pins, schedule->machine->topology.far, shortage, err);
    return status;
}

uint64_t tdm_shortage_missing(const struct tdm_shortage *shortage, enum tdm_place place)
{
    uint64_t needed = shortage->needed_bytes[place], limit = shortage->limit_bytes[place];
    return needed > limit ? needed - limit : 0;
}

/* "the least that a quick search finds is ..." */
static void say_short(const struct tdm_shortage *shortage, const struct tdm_schedule *schedule,
                      enum tdm_place place, char *out, size_t out_bytes)
{
    const struct tdm_topology *topology = &schedule->machine->topology;
    const char *of = schedule->ranks == 1                         ? ""
                     : tdm_schedule_sharers(schedule, place) == 1 ? " of each rank"
                     : schedule->ranks_per_node == 0              ? " of all ranks"
                                                                  : " of each node";
    char limit[TDM_FORMAT_SIZE], gap[TDM_FORMAT_SIZE], needed[TDM_FORMAT_SIZE];
    char size[TDM_FORMAT_SIZE], proved[64] = "";
    if (shortage->proved_bytes[place] > 0)
        snprintf(proved, sizeof(proved), " (none takes less than %s)",
                 tdm_format_bytes(shortage->proved_bytes[place], size));
    snprintf(
        out, out_bytes,
        "the least that a quick search finds is %s of %s memory%s%s, %s more than the %s given",
        tdm_format_bytes(shortage->needed_bytes[place], needed), tdm_place_name(topology, place),
        of, proved, tdm_format_bytes(tdm_shortage_missing(shortage, place), gap),
        tdm_format_bytes(shortage->limit_bytes[place], limit));
}

static void say_what_is_short(const struct tdm_shortage *shortage,
                              const struct tdm_schedule *schedule, struct tdm_error *err)
{
    const struct tdm_topology *topology = &schedule->machine->topology;
    char device[256], host[256], limit[TDM_FORMAT_SIZE], other[TDM_FORMAT_SIZE];
    say_short(shortage, schedule, TDM_DEVICE, device, sizeof(device));
    say_short(shortage, schedule, topology->far, host, sizeof(host));
    tdm_format_bytes(shortage->limit_bytes[TDM_DEVICE], limit);
    tdm_format_bytes(shortage->limit_bytes[topology->far], other);
    switch (shortage->binding) {
    case TDM_BINDING_DEVICE:
        tdm_fail(err, TDM_INFEASIBLE, "no schedule fits: device memory binds: %s", device);
        break;
    case TDM_BINDING_HOST:
        tdm_fail(err, TDM_INFEASIBLE, "no schedule fits: host memory binds: %s", host);
        break;
    case TDM_BINDING_EITHER:
        tdm_fail(err, TDM_INFEASIBLE,
                 "no schedule fits: with %s of host memory, %s; with %s of device memory, %s",
                 other, device, limit, host);
        break;
    case TDM_BINDING_BOTH:
        tdm_fail(err, TDM_INFEASIBLE, "no schedule fits: both memories are short: %s; and %s",
                 device, host);
        break;
    }
}

static void put_change(struct tdm_shortage_way *way, const char *key, const char *value)
{
    way->changes[way->count].key = key;
    snprintf(way->changes[way->count].value, sizeof(way->changes[0].value), "%s", value);
    way->count++;
}

static void put_size(struct tdm_shortage_way *way, const char *key, uint64_t bytes)
{
    char size[TDM_FORMAT_SIZE];
    put_change(way, key, tdm_format_enough_bytes(bytes, size));
}

/* Adds remedies: more memory of one place, or of both. */
static size_t put_limits(const struct tdm_shortage *shortage, const struct tdm_machine *machine,
                         struct tdm_shortage_way ways[2])
{
    size_t count = 0;
    uint64_t device = shortage->needed_bytes[TDM_DEVICE];
    uint64_t host = shortage->needed_bytes[machine->topology.far];
    bool both = shortage->binding == TDM_BINDING_BOTH;
    if (device != 0 && device <= machine->topology.places[TDM_DEVICE].capacity_bytes) {
        ways[count].device_bytes = device;
        put_size(&ways[count], "memory", device);
        if (both) {
            ways[count].host_bytes = host;
            put_size(&ways[count], "host_memory", host);
        }
        count++;
    }
    if (host != 0 && !both) {
        ways[count].host_bytes = host;
        put_size(&ways[count++], "host_memory", host);
    }
    return count;
}

/* Adds a remedy: no optimizer, if that is enough or needs less memory. */
static size_t put_no_optimizer(const struct tdm_shortage *shortage,
                               const struct tdm_machine *machine, struct tdm_shortage_way *way)
{
    uint64_t without = shortage->without_optimizer_bytes;
    bool enough = without <= shortage->limit_bytes[TDM_DEVICE];
    if (without == 0 ||
        (!enough && (without >= shortage->needed_bytes[TDM_DEVICE] ||
                     without > machine->topology.places[TDM_DEVICE].capacity_bytes)))
        return 0;
    way->device_bytes = without;
    put_change(way, "optimizer", "none");
    if (!enough)
        put_size(way, "memory", without);
    return 1;
}

static size_t put_streaming(const struct tdm_shortage *shortage, struct tdm_shortage_way *way)
{
    way->device_bytes = shortage->streamed_bytes;
    for (int state = 0; state < TDM_STATES; state++)
        if (shortage->streamed[state])
            put_change(way, tdm_state_name((enum tdm_state)state), "host");
    return way->count > 0;
}

static size_t put_far_gradients(const struct tdm_shortage *shortage,
                                const struct tdm_machine *machine, struct tdm_shortage_way *way)
{
    const uint64_t bytes = shortage->far_gradients_bytes;
    if (bytes == 0 || bytes > machine->topology.places[TDM_DEVICE].capacity_bytes)
        return 0;
    way->device_bytes = bytes;
    put_change(way, tdm_state_name(TDM_STATE_GRADIENTS), "host");
    if (bytes > shortage->limit_bytes[TDM_DEVICE])
        put_size(way, "memory", bytes);
    return 1;
}

size_t tdm_shortage_ways(const struct tdm_shortage *shortage, const struct tdm_schedule *schedule,
                         struct tdm_shortage_way ways[TDM_SHORTAGE_WAYS])
{
    char tokens[TDM_FORMAT_SIZE];
    const struct tdm_machine *machine = schedule->machine;
    for (size_t i = 0; i < TDM_SHORTAGE_WAYS; i++)
        ways[i] =
            (struct tdm_shortage_way){.device_bytes = shortage->limit_bytes[TDM_DEVICE],
                                      .host_bytes = shortage->limit_bytes[machine->topology.far]};
    size_t count = put_limits(shortage, machine, ways);
    if (shortage->longest_context != 0)
        put_change(&ways[count++], "context", tdm_format_tokens(shortage->longest_context, tokens));
    count += put_no_optimizer(shortage, machine, &ways[count]);
    count += put_streaming(shortage, &ways[count]); /* one of both */
    count += put_far_gradients(shortage, machine, &ways[count]);
    return count;
}

static void add_text(char *text, size_t bytes, const char *change)
{
    size_t used = strlen(text);
    if (used + strlen(change) + 4 < bytes)
        snprintf(text + used, bytes - used, "%s%s", used == 0 ? "" : "; ", change);
}

/* A remedy as options of plan: "--optimizer none with --memory 12.50G". */
static void say_way(const struct tdm_shortage_way *way, char *out, size_t out_bytes)
{
    static const struct {
        const char *key, *option;
    } options[] = {{"memory", "--memory "},
                   {"host_memory", "--host-memory "},
                   {"context", "--context "},
                   {"optimizer", "--optimizer "}};
    out[0] = '\0';
    for (size_t c = 0; c < way->count; c++) {
        const char *key = way->changes[c].key, *option = NULL;
        for (size_t o = 0; o < sizeof(options) / sizeof(options[0]); o++)
            if (strcmp(options[o].key, key) == 0)
                option = options[o].option;
        size_t used = strlen(out);
        if (option != NULL)
            snprintf(out + used, out_bytes - used, "%s%s%s", used > 0 ? " with " : "", option,
                     way->changes[c].value);
        else
            snprintf(out + used, out_bytes - used, "%s--set %s=%s", used > 0 ? " " : "", key,
                     way->changes[c].value);
    }
}

static void say_what_helps(const struct tdm_shortage *shortage, const struct tdm_schedule *schedule,
                           struct tdm_error *err)
{
    char text[448] = "", change[128], size[TDM_FORMAT_SIZE];
    struct tdm_shortage_way ways[TDM_SHORTAGE_WAYS];
    const struct tdm_machine *machine = schedule->machine;
    uint64_t device = shortage->needed_bytes[TDM_DEVICE];
    size_t count = tdm_shortage_ways(shortage, schedule, ways);
    if (device > machine->topology.places[TDM_DEVICE].capacity_bytes) {
        snprintf(change, sizeof(change), "a machine with %s of device memory (%s has %.2f GiB)",
                 tdm_format_enough_bytes(device, size), machine->name,
                 (double)machine->topology.places[TDM_DEVICE].capacity_bytes / (1 << 30));
        add_text(text, sizeof(text), change);
    }
    for (size_t i = 0; i < count; i++) {
        say_way(&ways[i], change, sizeof(change));
        add_text(text, sizeof(text), change);
    }
    if (text[0] != '\0')
        tdm_hint(err, "any one of these is enough: %s", text);
}

enum tdm_status tdm_shortage_fail(const struct tdm_shortage *shortage,
                                  const struct tdm_schedule *schedule, struct tdm_error *err)
{
    say_what_is_short(shortage, schedule, err);
    say_what_helps(shortage, schedule, err);
    return TDM_INFEASIBLE;
}
