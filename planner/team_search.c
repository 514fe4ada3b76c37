/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for several ranks, by way of plans for one with more memory. */
#include "planner/team_search.h"

#include "base/size.h"
#include "planner/places.h"
#include "planner/team_choices.h"
#include "planner/team_least.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"

#include <math.h>
#include <stdlib.h>

/* Halvings of the range between the memory that each rank has and that of all together. */
#define HALVINGS 4u

/* Another exchange than a schedule's is tried with all other choices if it takes at most this share
 * more time with the same ones. */
#define EXCHANGE_SLACK 0.03

/* The most chunks of a plan for one rank, which takes time for each: above, its chunks are a power
 * of two times as long as the ranks'. */
#define MOST_CHUNKS 256u

/* Rings are tried for more than this share of the bound; in a search for the first schedule that
 * fits, other exchanges for more than this share of what is computed. */
#define RING_GAP 0.005

/* Above this gap to the bound more is tried. */
#define NARROW_GAP 0.01

/* What the ranks have, and what the plan for one rank gets. */
struct memory {
    uint64_t device_bytes, host_bytes;
};

struct team {
    const struct tdm_request *request;
    struct tdm_objective_found *found; /* the fastest so far; no schedule: none */
    struct memory most;                /* limits of a rank, and of the computer */
    uint64_t host_runtime_bytes;       /* of the latter, once for all ranks */
    uint64_t chunk_tokens;             /* 0: pinned */
    struct memory given;               /* to one rank's plan: that of the fastest so far */
    uint64_t given_chunk_tokens;
    double bound_seconds; /* of schedules with the last chunk size; 0: not known */
    bool bound_is_rough; /* it is of longer chunks, whose attention computes more: no bound of these
                          */
    bool quick;          /* try few candidates */
    bool first;          /* the first that fits is enough, */
    bool fits;           /* and its other choices are not compared */
};

/* Is each rank within the limits of its schedule? */
static bool is_within(const struct tdm_program *program)
{
    const struct tdm_schedule *schedule = program->schedule;
    bool within = true;
    for (uint32_t i = 0; i < schedule->machine->topology.place_count; i++) {
        const enum tdm_place place = (enum tdm_place)i;
        within =
            within && tdm_program_used_bytes(program, place) <= tdm_schedule_limit(schedule, place);
    }
    return within;
}

/* Lowers and simulates a schedule of several ranks. *fits: each rank is within the limits. */
static enum tdm_status simulate(const struct tdm_schedule *schedule,
                                struct tdm_simulation *simulation, bool *fits,
                                struct tdm_error *err)
{
    struct tdm_program *program;
    enum tdm_status status = tdm_program_lower_sample_if(schedule, &program, err);
    *fits = false;
    if (status != TDM_OK)
        return status == TDM_INFEASIBLE ? TDM_OK : status;
    *fits = is_within(program);
    if (*fits)
        status = tdm_simulate(program, NULL, NULL, simulation, err);
    tdm_program_free(program);
    return status;
}

static bool is_same(struct memory a, struct memory b)
{
    return a.device_bytes == b.device_bytes && a.host_bytes == b.host_bytes;
}

/* The memory of all ranks together. */
static struct memory all_memory(const struct team *team)
{
    return (struct memory){tdm_size_mul(team->most.device_bytes, team->request->ranks),
                           team->most.host_bytes};
}

/* What came of a plan: one rank has none with that memory; a rank's part of it fits, or does not.
 */
enum answer { NO_PLAN, FITS, TOO_LARGE };

/* Bytes of the sums to which chunks add: gradients of all units, and dK and dV of all layers. */
static double summed_bytes(const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    double elements = 0, tokens = (double)tdm_schedule_tokens(schedule);
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        elements += (double)model->units[unit].elements;
    if (model->tied) /* it is summed twice */
        elements += (double)model->units[tdm_model_embedding_unit(model)].elements;
    tokens += (double)schedule->sequence_count * (double)schedule->page_tokens; /* whole pages */
    return elements * (double)tdm_dtype_bytes(schedule->dtypes.gradients) +
           2.0 * tokens * model->layers * model->kv_heads * model->head_dim *
               (double)tdm_dtype_bytes(schedule->dtypes.kv_gradients);
}

double tdm_team_bound(const struct tdm_schedule *schedule, uint32_t ranks, double seconds)
{
    const double opened =
        schedule->pass == TDM_TRAIN
            ? (ranks - 1) * summed_bytes(schedule) / schedule->machine->rate[TDM_RATE_ELEMENTWISE]
            : 0;
    return fmax(seconds - opened, 0) / ranks;
}

/* ---- what only several ranks choose ---- */

/* Simulates a schedule with every choice that is free, and leaves it with the one that is fastest
 * and fits; `first`: with the first that fits. */
static enum tdm_status simulate_choices(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                        bool first, struct tdm_simulation *simulation, bool *fits,
                                        struct tdm_error *err)
{
    static const struct tdm_team_choice choices[] = {{2, false}, {1, false}, {2, true}, {1, true}};
    const struct tdm_rings rings = schedule->rings;
    const struct tdm_team_choice *best = NULL;
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]) && status == TDM_OK; i++) {
        if (first && best != NULL)
            break;
        struct tdm_simulation each;
        bool fit = false;
        if (!tdm_team_may_choose(schedule, pins, &choices[i]))
            continue;
        schedule->rings = rings;
        tdm_team_choose(schedule, pins, &choices[i]);
        status = tdm_schedule_check(schedule, "--set", err);
        if (status != TDM_OK)
            status = err->status = TDM_USAGE; /* what is chosen here is legal for any request */
        if (status == TDM_OK)
            status = simulate(schedule, &each, &fit, err);
        if (status != TDM_OK || !fit ||
            (best != NULL && each.step_seconds >= simulation->step_seconds))
            continue;
        best = &choices[i];
        *simulation = each;
    }
    *fits = best != NULL;
    schedule->rings = rings;
    schedule->sliced_weights = false;
    if (best != NULL)
        tdm_team_choose(schedule, pins, best);
    return status;
}

/* Gives a schedule another exchange, with the choices that are best for it, if that is legal, fits,
 * and takes less time than `seconds`. */
static enum tdm_status try_exchange(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                    bool first, enum tdm_exchange_kind exchange, double seconds,
                                    struct tdm_simulation *simulation, bool *taken,
                                    struct tdm_error *err)
{
    const enum tdm_exchange_kind before = schedule->exchange;
    const uint32_t head_ranks = schedule->head_ranks;
    const struct tdm_rings rings = schedule->rings;
    const bool sliced_weights = schedule->sliced_weights;
    struct tdm_simulation tried = {0};
    struct tdm_error refusal;
    enum tdm_status status = TDM_OK;
    bool fits = false;
    tdm_team_set_exchange(schedule, exchange, 0);
    if (tdm_team_tries_exchange(schedule) &&
        tdm_schedule_check(schedule, "plan", &refusal) == TDM_OK)
        status = simulate_choices(schedule, pins, first, &tried, &fits, err);
    *taken = fits && tried.step_seconds < seconds;
    if (*taken) {
        *simulation = tried;
        return status;
    }
    tdm_team_set_exchange(schedule, before, head_ranks);
    schedule->rings = rings;
    schedule->sliced_weights = sliced_weights;
    return status;
}

/* ---- plans of one rank ---- */

/* How many chunks of the ranks are one of the plan for one rank. Splits are the same share of the
 * chunks then, which holds for one sequence, and lists of pages depend on the size. */
static uint32_t joined_chunks(const struct team *team, const struct tdm_schedule *schedule,
                              const struct tdm_pins *pins)
{
    uint32_t joined = 1;
    if (team->chunk_tokens == 0 || pins->kept_from_unit == TDM_SPLIT_CHUNK ||
        schedule->sequence_count > 1 || schedule->selector.kind != TDM_SELECT_DENSE)
        return joined;
    while (tdm_size_ceil_div(team->request->context, tdm_size_mul(joined, team->chunk_tokens)) >
           MOST_CHUNKS)
        joined *= 2;
    return joined;
}

/* Divides the chunks of a plan for one rank into those of the ranks. */
static void divide_chunks(struct tdm_schedule *schedule, uint32_t joined)
{
    schedule->chunk_tokens /= joined;
    for (uint32_t group = 0; group < schedule->group_count; group++) {
        schedule->groups[group].kept_from_chunk *= joined;
        schedule->groups[group].held_from_chunk *= joined;
        schedule->groups[group].held_device_chunks *= joined;
    }
}

/* The plan for one rank has the slots of all ranks that share the host's memory. */
static void share_host_gradients(struct tdm_schedule *schedule)
{
    uint32_t *slots = &schedule->rings.host_gradients;
    *slots /= tdm_schedule_sharers(schedule, tdm_far_place(schedule));
    *slots += *slots == 0;
}

/* Plans with some memory for one rank, and tries the result with all. Keeps it if it fits and is
 * the fastest. */
static enum tdm_status try(struct team *team, struct memory memory, enum answer *answer,
                           struct tdm_error *err)
{
    /* these take less memory for K and V; a ring the least, but more time */
    static const enum tdm_exchange_kind smaller[] = {TDM_EXCHANGE_HEADS, TDM_EXCHANGE_HEADS_GATHER,
                                                     TDM_EXCHANGE_HEADS_RING, TDM_EXCHANGE_RING};
    struct tdm_objective_found tried = {0};
    bool fits = false;
    *answer = NO_PLAN;
    enum tdm_status status = tdm_request_make(team->request, &tried.schedule, &tried.pins, err);
    if (status != TDM_OK)
        return status;
    struct tdm_schedule *schedule = tried.schedule;
    schedule->memory_bytes = memory.device_bytes;
    schedule->host_memory_bytes = memory.host_bytes;
    tried.pins.has_order = tried.pins.unchecked = true;
    tried.pins.quick = team->quick;
    tried.pins.effort = 1; /* its own searches with other memory */
    tried.pins.has_update_place |= tried.pins.weight_slices; /* the host updates whole weights */
    const uint32_t joined = joined_chunks(team, schedule, &tried.pins);
    if (team->chunk_tokens != 0)
        tried.pins.chunk_tokens = tdm_size_mul(joined, team->chunk_tokens);
    status = tdm_candidates_search(schedule, &tried.pins, &tried.search, err);
    if (status == TDM_INFEASIBLE) {
        tdm_objective_found_free(&tried);
        return TDM_OK;
    }
    if (is_same(memory, all_memory(team))) {
        team->bound_seconds =
            tdm_team_bound(schedule, team->request->ranks, tried.search.bound_seconds);
        team->bound_is_rough = joined > 1;
    }
    divide_chunks(schedule, joined);
    if (team->chunk_tokens != 0)
        tried.pins.chunk_tokens = team->chunk_tokens;
    schedule->packed_bytes = 0; /* ranks have other buffers */
    schedule->ranks = team->request->ranks;
    schedule->ranks_per_node = team->request->ranks_per_node;
    if (!tried.pins.has_host_gradients)
        share_host_gradients(schedule);
    schedule->memory_bytes = team->most.device_bytes;
    schedule->host_memory_bytes = team->most.host_bytes;
    tdm_team_set_exchange(schedule, schedule->exchange, schedule->head_ranks);
    if (status == TDM_OK)
        status = simulate_choices(schedule, &tried.pins, team->fits, &tried.search.simulation,
                                  &fits, err);
    for (size_t i = 0; i < sizeof(smaller) / sizeof(smaller[0]) && status == TDM_OK; i++)
        if (!fits && !tried.pins.has_exchange)
            status = try_exchange(schedule, &tried.pins, team->fits, smaller[i], INFINITY,
                                  &tried.search.simulation, &fits, err);
    *answer = fits ? FITS : TOO_LARGE;
    const struct tdm_simulation *best = &team->found->search.simulation;
    if (status != TDM_OK || !fits ||
        (team->found->schedule != NULL &&
         best->step_seconds <= tried.search.simulation.step_seconds)) {
        tdm_objective_found_free(&tried);
        return status;
    }
    tdm_objective_found_free(team->found);
    tried.search.bound_seconds = tried.search.gap = 0; /* they are of one rank, */
    tried.search.binding = (struct tdm_relaxed){0};    /* and so is what binds it */
    *team->found = tried;
    team->given = memory;
    team->given_chunk_tokens = team->chunk_tokens;
    return TDM_OK;
}

/* A rank's part of the host's memory: what the runtime takes, it takes once. */
static uint64_t host_part(const struct team *team)
{
    uint64_t all = team->most.host_bytes, runtime = tdm_least(all, team->host_runtime_bytes);
    const uint32_t sharers =
        team->request->ranks_per_node == 0 ? team->request->ranks : team->request->ranks_per_node;
    return runtime + (all - runtime) / sharers;
}

/* The memory at share `part` of HALVINGS' finest step between both. */
static struct memory between(struct memory low, struct memory high, uint32_t part)
{
    const uint32_t all = 1u << HALVINGS;
    return (struct memory){low.device_bytes + (high.device_bytes - low.device_bytes) / all * part,
                           low.host_bytes + (high.host_bytes - low.host_bytes) / all * part};
}

/* Plans with the most memory from `low` to `high` with which the ranks stay within their limits.
 * With too little memory there is no plan for one rank, either. */
static enum tdm_status bisect(struct team *team, struct memory low, struct memory high,
                              struct tdm_error *err)
{
    uint32_t least = 0, most = 1u << HALVINGS;
    enum tdm_status status = TDM_OK;
    while (most - least > 1 && status == TDM_OK) {
        uint32_t part = (least + most) / 2;
        enum answer answer;
        status = try(team, between(low, high, part), &answer, err);
        if (answer == TOO_LARGE)
            most = part;
        else
            least = part;
    }
    return status;
}

/* Is the fastest so far well above a bound that is known? */
static bool is_far_from_bound(const struct team *team)
{
    return !team->quick && team->bound_seconds > 0 &&
           team->found->search.simulation.step_seconds > (1 + NARROW_GAP) * team->bound_seconds;
}

/* The fastest schedule with chunks of one size. One with the memory of all ranks has the fewest
 * transfers for one rank. If a rank's part of it does not fit, more of one memory alone is tried,
 * and what lies between where it stops to fit. A plan with a rank's memory surely fits. */
static enum tdm_status search_size(struct team *team, struct tdm_error *err)
{
    const struct memory low = {team->most.device_bytes, host_part(team)};
    const struct memory high = all_memory(team);
    enum { LOW, DEVICE, HOST, HIGH, CORNERS };
    const struct memory corners[CORNERS] = {
        low, {high.device_bytes, low.host_bytes}, {low.device_bytes, high.host_bytes}, high};
    static const uint8_t edges[][2] = {
        {LOW, HIGH}, {LOW, DEVICE}, {LOW, HOST}, {DEVICE, HIGH}, {HOST, HIGH}};
    enum answer answers[CORNERS] = {NO_PLAN};
    enum tdm_status status = try(team, high, &answers[HIGH], err);
    if (answers[HIGH] == FITS) /* less memory seldom gives a faster plan: by other homes of state */
        for (uint32_t i = LOW; i < HIGH && status == TDM_OK && is_far_from_bound(team); i++)
            status = try(team, corners[i], &answers[i], err);
    if (answers[HIGH] != TOO_LARGE)
        return status;
    for (uint32_t i = HIGH; i-- > LOW && status == TDM_OK;) {
        /* less of both gives no faster one; a quick search has told where more of one does */
        if (!team->quick || (i == LOW && (answers[DEVICE] == FITS || answers[HOST] == FITS))) {
            answers[i] = FITS;
            continue;
        }
        status = try(team, corners[i], &answers[i], err);
        if (team->first && answers[i] == FITS)
            return status;
    }
    size_t edge_count = team->quick ? sizeof edges / sizeof edges[0] : 1;
    for (size_t i = 0; i < edge_count && status == TDM_OK; i++)
        if (answers[edges[i][0]] != TOO_LARGE && answers[edges[i][1]] == TOO_LARGE)
            status = bisect(team, corners[edges[i][0]], corners[edges[i][1]], err);
    return status;
}

static enum tdm_status search_sizes(struct team *team, bool pinned, struct tdm_error *err)
{
    uint64_t tokens = pinned
                          ? 0
                          : tdm_team_longest_chunk(team->request->context, team->request->sequences,
                                                   team->request->ranks);
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < (pinned ? 1 : TDM_TEAM_SIZES) && status == TDM_OK; i++) {
        if (team->first && team->found->schedule != NULL)
            break;
        team->chunk_tokens = tokens;
        if (i == 0 || tokens >= TDM_TEAM_SHORTEST_CHUNK)
            status = search_size(team, err);
        tokens /= 2;
    }
    return status;
}

/* Where no plan for one rank fits the ranks: the schedule that takes the least device memory. */
static enum tdm_status take_least(struct team *team, struct tdm_error *err)
{
    struct tdm_objective_found tried = {0};
    struct tdm_team_memo memo;
    uint64_t bytes = 0;
    bool fits = false;
    enum tdm_status status = tdm_request_make(team->request, &tried.schedule, &tried.pins, err);
    if (status != TDM_OK)
        return status;
    tried.schedule->ranks = team->request->ranks;
    tried.schedule->ranks_per_node = team->request->ranks_per_node;
    status = tdm_team_least(tried.schedule, &tried.pins, TDM_DEVICE, team->most.device_bytes, &memo,
                            &bytes, err);
    if (status == TDM_OK && bytes <= team->most.device_bytes)
        status = simulate(tried.schedule, &tried.search.simulation, &fits, err);
    tried.search.counts.least_alone = true;
    if (status == TDM_OK && fits)
        *team->found = tried;
    else
        tdm_objective_found_free(&tried);
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

/* Searches once more, without haste: with the chunks and the memory that gave the fastest schedule,
 * and then with other memory, which a quick search does not always make use of. */
static enum tdm_status search_fully(struct team *team, struct tdm_error *err)
{
    enum answer answer;
    team->quick = false;
    team->bound_seconds = 0;
    team->chunk_tokens = team->given_chunk_tokens;
    enum tdm_status status = TDM_OK;
    if (!is_same(team->given, all_memory(team))) /* else it is tried first */
        status = try(team, team->given, &answer, err);
    return status == TDM_OK ? search_size(team, err) : status;
}

/* Can a schedule with another exchange be about as fast as one that takes `seconds`? Simulates it
 * with the other choices as they are; `no_rings`: not if it is a ring. */
static enum tdm_status may_be_fast(struct tdm_schedule *schedule, enum tdm_exchange_kind exchange,
                                   bool no_rings, double seconds, bool *may, struct tdm_error *err)
{
    const enum tdm_exchange_kind before = schedule->exchange;
    const uint32_t head_ranks = schedule->head_ranks;
    struct tdm_simulation tried = {0};
    struct tdm_error refusal;
    enum tdm_status status = TDM_OK;
    *may = false;
    tdm_team_set_exchange(schedule, exchange, 0);
    if (!(no_rings && tdm_schedule_rings(schedule)) && tdm_team_tries_exchange(schedule) &&
        tdm_schedule_check(schedule, "plan", &refusal) == TDM_OK)
        status = simulate(schedule, &tried, may, err);
    tdm_team_set_exchange(schedule, before, head_ranks);
    *may = *may && tried.step_seconds < seconds * (1 + EXCHANGE_SLACK);
    return status;
}

/* What the busiest rank computes, with which no exchange overlaps completely. */
static double computed_seconds(const struct tdm_simulation *simulation)
{
    double most = 0;
    for (uint32_t i = 0; i < simulation->team.simulated; i++)
        most = fmax(most, simulation->team.of[i].compute_seconds);
    return most;
}

/* Takes the fastest exchange for what was found, unless it was asked for. Rings take long to
 * simulate, and are left out next to `bound_seconds` (0: not known), below which none is. `first`:
 * they are left out, and nothing is tried next to what is computed, which an exchange hardly
 * changes. */
static enum tdm_status choose_exchange(struct tdm_objective_found *found, double bound_seconds,
                                       bool first, struct tdm_error *err)
{
    struct tdm_simulation *simulation = &found->search.simulation;
    enum tdm_status status = TDM_OK;
    for (int i = 0; i < TDM_EXCHANGES && !found->pins.has_exchange && status == TDM_OK; i++) {
        const enum tdm_exchange_kind exchange = (enum tdm_exchange_kind)i;
        const bool near = simulation->step_seconds < bound_seconds * (1 + RING_GAP);
        if (first && simulation->step_seconds < computed_seconds(simulation) * (1 + RING_GAP))
            break;
        bool may = false;
        if (found->schedule->exchange != exchange)
            status = may_be_fast(found->schedule, exchange, near || first, simulation->step_seconds,
                                 &may, err);
        if (may && status == TDM_OK)
            status = try_exchange(found->schedule, &found->pins, false, exchange,
                                  simulation->step_seconds, simulation, &may, err);
    }
    return status;
}

/* Is a program the one that was simulated, by its ops and its memory? */
static bool is_simulated(const struct tdm_program *program, const struct tdm_simulation *simulation)
{
    bool same = program->op_count == simulation->op_count;
    for (uint32_t i = 0; i < program->schedule->machine->topology.place_count; i++)
        same = same &&
               tdm_program_used_bytes(program, (enum tdm_place)i) == simulation->used_peak_bytes[i];
    return same;
}

/* Validates the schedule as its file will be lowered: the search changes its choices and simulates
 * them in turns, and could leave others than those that it reports. */
static enum tdm_status validate(const struct tdm_objective_found *found, struct tdm_error *err)
{
    struct tdm_program *program;
    enum tdm_status status = tdm_program_lower_sample(found->schedule, &program, err);
    if (status != TDM_OK)
        return status;
    if (!is_simulated(program, &found->search.simulation))
        status = tdm_fail(err, TDM_INTERNAL, "the schedule found is not the one simulated");
    else if (!is_within(program))
        status = tdm_fail(err, TDM_INTERNAL, "the schedule found does not fit");
    else
        status = tdm_program_validate(program, program->arena_bytes, err);
    tdm_program_free(program);
    return status;
}

enum tdm_status tdm_team_complete(struct tdm_objective_found *found, struct tdm_error *err)
{
    bool fits = false;
    enum tdm_status status = simulate(found->schedule, &found->search.simulation, &fits, err);
    found->search.counts.least_alone = true;
    if (status == TDM_OK && !fits)
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits %u ranks", found->schedule->ranks);
    if (status == TDM_OK)
        status = choose_exchange(found, 0, false, err);
    if (status == TDM_OK)
        status = validate(found, err);
    tdm_search_set_bound(&found->search, 0);
    return status;
}

enum tdm_status tdm_team_search(const struct tdm_request *request, enum tdm_effort effort,
                                struct tdm_objective_found *found, struct tdm_error *err)
{
    struct team team = {.request = request,
                        .found = found,
                        .quick = true,
                        .first = effort != TDM_EFFORT_FULL && effort != TDM_EFFORT_QUICK,
                        .fits = effort == TDM_EFFORT_FIT};
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    *found = (struct tdm_objective_found){0};
    enum tdm_status status = tdm_request_make(request, &schedule, &pins, err);
    if (status != TDM_OK)
        return status;
    team.most = (struct memory){schedule->memory_bytes, schedule->host_memory_bytes};
    const struct tdm_topology *topology = &schedule->machine->topology;
    team.host_runtime_bytes = topology->places[topology->far].runtime_bytes;
    bool pinned = pins.chunk_tokens != 0;
    status = tdm_team_check_pins(schedule, &pins, err);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    if (status == TDM_OK)
        status = search_sizes(&team, pinned, err);
    if (status == TDM_OK && found->schedule != NULL && effort == TDM_EFFORT_FULL)
        status = search_fully(&team, err);
    if (status == TDM_OK && found->schedule == NULL)
        status = take_least(&team, err);
    if (status == TDM_OK && found->schedule != NULL && !team.fits)
        status = choose_exchange(found, team.bound_seconds, team.first, err);
    if (status == TDM_OK && found->schedule != NULL)
        tdm_search_set_bound(&found->search, effort == TDM_EFFORT_FULL && !team.bound_is_rough
                                                 ? team.bound_seconds
                                                 : 0);
    if (status == TDM_OK)
        status = found->schedule == NULL
                     ? tdm_fail(err, TDM_INFEASIBLE, "no schedule fits %u ranks", request->ranks)
                     : validate(found, err);
    if (status != TDM_OK)
        tdm_objective_found_free(found);
    return status;
}
