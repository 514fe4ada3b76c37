/* SPDX-License-Identifier: Apache-2.0 */
/* A simulation's prediction for a schedule, as JSON. */
#include "commands/prediction.h"

#include "base/json.h"
#include "schedule/cost.h"

#include <stdio.h>

static json_t *count(uint64_t number)
{
    return json_integer((json_int_t)number);
}

double tdm_prediction_mfu(const struct tdm_schedule *schedule,
                          const struct tdm_simulation *simulation)
{
    return tdm_model_flops(schedule) /
           (simulation->step_seconds * schedule->machine->peak_flops * schedule->ranks);
}

double tdm_prediction_overhead(const struct tdm_simulation *simulation)
{
    double live = (double)simulation->live_peak_bytes[TDM_DEVICE];
    double arena = (double)simulation->arena_bytes[TDM_DEVICE];
    return live > 0 ? arena / live - 1 : 0;
}

static json_t *bytes_json(const uint64_t bytes[TDM_CATEGORIES])
{
    json_t *object = json_object();
    for (int c = 0; c < TDM_CATEGORIES; c++)
        if (bytes[c] > 0)
            tdm_json_set(&object, tdm_category_name((enum tdm_category)c), count(bytes[c]));
    return object;
}

/* Bytes by category at the peak of a place. Packing overhead counts as the allocator's. */
static json_t *categories_json(const struct tdm_simulation *simulation, enum tdm_place place)
{
    json_t *object = bytes_json(simulation->peak_categories[place]);
    uint64_t packing = simulation->arena_bytes[place] - simulation->live_peak_bytes[place];
    if (packing > 0)
        tdm_json_set(&object, tdm_category_name(TDM_ALLOCATOR), count(packing));
    return object;
}

static json_t *phases_json(const struct tdm_simulation *simulation)
{
    json_t *object = json_object();
    for (int p = 0; p < TDM_PHASES; p++)
        tdm_json_set(&object, tdm_phase_name((enum tdm_phase)p),
                     json_real(simulation->phase_seconds[p]));
    return object;
}

static json_t *lanes_json(const struct tdm_topology *topology,
                          const struct tdm_simulation *simulation)
{
    json_t *object = json_object();
    for (uint32_t lane = 0; lane < topology->lane_count; lane++)
        tdm_json_set(&object, tdm_lane_name(topology, (enum tdm_lane)lane),
                     json_pack("{s:f, s:o}", "busy_seconds", simulation->busy_seconds[lane],
                               "copied_bytes", count(simulation->copied_bytes[lane])));
    return object;
}

/* Sets the member of a place whose name is its prefix, then `name`. */
static void set_of_place(json_t **object, const struct tdm_topology *topology, uint32_t place,
                         const char *name, json_t *value)
{
    char prefix[TDM_PLACE_PREFIX], key[TDM_PLACE_PREFIX + 32];
    snprintf(key, sizeof(key), "%s%s", tdm_place_prefix(topology, (enum tdm_place)place, prefix),
             name);
    tdm_json_set(object, key, value);
}

uint32_t tdm_rank_awaited(const struct tdm_team_use *team, const struct tdm_rank_use *of)
{
    uint32_t most = 0;
    for (uint32_t i = 1; i < team->simulated; i++)
        if (of->wait_for_seconds[i] > of->wait_for_seconds[most])
            most = i;
    return most;
}

static void note_range(double seconds, double *least_seconds, double *most_seconds)
{
    *least_seconds = seconds < *least_seconds ? seconds : *least_seconds;
    *most_seconds = seconds > *most_seconds ? seconds : *most_seconds;
}

void tdm_ranks_waits(const struct tdm_team_use *team, double *least_seconds, double *most_seconds)
{
    *least_seconds = *most_seconds = team->of[0].wait_seconds;
    for (uint32_t i = 1; i < team->simulated; i++)
        note_range(team->of[i].wait_seconds, least_seconds, most_seconds);
}

void tdm_ranks_exposed(const struct tdm_team_use *team, double *least_seconds, double *most_seconds)
{
    *least_seconds = *most_seconds = team->of[0].exposed_seconds;
    for (uint32_t i = 1; i < team->simulated; i++)
        note_range(team->of[i].exposed_seconds, least_seconds, most_seconds);
}

bool tdm_ranks_copy(const struct tdm_team_use *team, uint32_t lane)
{
    for (uint32_t i = 0; i < team->simulated; i++)
        if (lane != TDM_LANE_PEER && team->of[i].copied_bytes[lane] > 0)
            return true;
    return false;
}

static json_t *by_rank(const struct tdm_topology *topology, const struct tdm_team_use *team)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < team->simulated; i++) {
        const struct tdm_rank_use *rank = &team->of[i];
        bool waits = rank->wait_seconds > 0;
        json_t *copied = json_object();
        for (uint32_t lane = 0; lane < topology->lane_count; lane++)
            if (tdm_ranks_copy(team, lane))
                tdm_json_set(&copied, tdm_lane_name(topology, (enum tdm_lane)lane),
                             json_integer((json_int_t)rank->copied_bytes[lane]));
        tdm_json_add(&array,
                     json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:I, s:I, s:o}", "rank",
                               (int)rank->rank, "step_seconds", rank->step_seconds,
                               "compute_seconds", rank->compute_seconds, "exchange_seconds",
                               rank->team_seconds, "exposed_seconds", rank->exposed_seconds,
                               "wait_seconds", rank->wait_seconds, "waits_most_for",
                               waits ? json_integer(team->of[tdm_rank_awaited(team, rank)].rank)
                                     : json_null(),
                               "received_bytes", (json_int_t)rank->received_bytes, "sent_bytes",
                               (json_int_t)rank->sent_bytes, "copied_bytes", copied));
    }
    return array;
}

/* Of several ranks: what rank 0 exchanges with the others in a step, how long team ops wait for
 * ranks that are not ready, and how long ranks wait for team ops. */
static json_t *ranks_json(const struct tdm_schedule *schedule, const struct tdm_simulation *s)
{
    double least, most, least_exposed, most_exposed;
    tdm_ranks_waits(&s->team, &least, &most);
    tdm_ranks_exposed(&s->team, &least_exposed, &most_exposed);
    return json_pack("{s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:o}", "count", count(schedule->ranks),
                     "received_bytes", count(s->team.of[0].received_bytes), "sent_bytes",
                     count(s->team.of[0].sent_bytes), "least_wait_seconds", least,
                     "most_wait_seconds", most, "least_exposed_seconds", least_exposed,
                     "most_exposed_seconds", most_exposed, "by_rank",
                     by_rank(&schedule->machine->topology, &s->team));
}

json_t *tdm_prediction_json(const struct tdm_schedule *schedule,
                            const struct tdm_simulation *simulation)
{
    const struct tdm_simulation *s = simulation;
    const struct tdm_topology *topology = &schedule->machine->topology;
    json_t *object = json_object();
    for (uint32_t place = 0; place < topology->place_count; place++) {
        set_of_place(&object, topology, place, "peak_bytes", count(s->used_peak_bytes[place]));
        set_of_place(&object, topology, place, "peak_allocated_bytes",
                     count(s->live_peak_bytes[place]));
        set_of_place(&object, topology, place, "peak_reserved_bytes", count(s->arena_bytes[place]));
    }
    tdm_json_set(&object, "step_seconds", json_real(s->step_seconds));
    tdm_json_set(&object, "phase_seconds", phases_json(s));
    tdm_json_set(&object, "stall_seconds", json_real(s->stall_seconds));
    tdm_json_set(&object, "tokens_per_second",
                 json_real((double)tdm_schedule_tokens(schedule) / s->step_seconds));
    tdm_json_set(&object, "mfu", json_real(tdm_prediction_mfu(schedule, s)));
    tdm_json_set(&object, "packing_overhead", json_real(tdm_prediction_overhead(s)));
    tdm_json_set(&object, "lanes", lanes_json(topology, s));
    for (uint32_t place = 0; place < topology->place_count; place++)
        set_of_place(&object, topology, place, "categories",
                     categories_json(s, (enum tdm_place)place));
    for (uint32_t place = 0; place < topology->place_count; place++)
        set_of_place(&object, topology, place, "category_peaks",
                     bytes_json(s->category_peaks[place]));
    if (schedule->ranks > 1)
        tdm_json_set(&object, "ranks", ranks_json(schedule, s));
    tdm_json_set(&object, "ops", count(s->op_count));
    tdm_json_set(&object, "page_list_bytes", count(s->peak_list_bytes));
    tdm_json_set(&object, "page_mean_bytes", count(s->peak_mean_bytes));
    tdm_json_set(&object, "rates_measured", json_boolean(schedule->machine->measured));
    tdm_json_set(&object, "rates_source", json_string(schedule->machine->source));
    return object;
}

static json_t *known(bool is_known, double value)
{
    return is_known ? json_real(value) : json_null();
}

void tdm_bound_json(json_t **root, const struct tdm_search *search)
{
    bool is_known = search->bound_seconds > 0;
    tdm_json_set(root, "bound_seconds", known(is_known, search->bound_seconds));
    tdm_json_set(root, "gap", known(is_known, search->gap));
    tdm_json_set(root, "saved_seconds_per_gib",
                 json_pack("{s:f, s:f}", "device", search->binding.device_seconds_per_gib, "host",
                           search->binding.host_seconds_per_gib));
    json_t *rows = json_array();
    for (unsigned i = 0; i < search->binding.row_count; i++) {
        const struct tdm_binding_row *row = &search->binding.rows[i];
        tdm_json_add(&rows, json_pack("{s:s, s:f}", "row", row->name,
                                      row->of_bytes ? "seconds_per_gib" : "share", row->seconds));
    }
    tdm_json_set(root, "binding_rows", rows);
}

json_t *tdm_search_counts_json(const struct tdm_search_counts *counts)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "examined",
                     count(counts->examined), "pruned_by_memory", count(counts->too_large),
                     "pruned_by_time", count(counts->too_slow), "lowered", count(counts->lowered),
                     "simulated", count(counts->simulated), "programs", count(counts->programs),
                     "rounded", count(counts->rounded), "complete", counts->complete);
}
