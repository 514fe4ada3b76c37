/* SPDX-License-Identifier: Apache-2.0 */
/* A simulation's prediction for a schedule, as JSON. */
#include "commands/prediction.h"

#include "base/json.h"
#include "schedule/cost.h"

static json_t *count(uint64_t number)
{
    return json_integer((json_int_t)number);
}

double tdm_prediction_mfu(const struct tdm_schedule *schedule,
                          const struct tdm_simulation *simulation)
{
    return tdm_model_flops(schedule) / (simulation->step_seconds * schedule->machine->peak_flops);
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

json_t *tdm_prediction_json(const struct tdm_schedule *schedule,
                            const struct tdm_simulation *simulation)
{
    const struct tdm_simulation *s = simulation;
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:o, s:f, s:f, s:f, s:f, s:o, s:o, s:o,"
        " s:o, s:o, s:o, s:o, s:o, s:b, s:s}",
        "peak_bytes", count(s->used_peak_bytes[TDM_DEVICE]), "peak_allocated_bytes",
        count(s->live_peak_bytes[TDM_DEVICE]), "peak_reserved_bytes",
        count(s->arena_bytes[TDM_DEVICE]), "host_peak_bytes", count(s->used_peak_bytes[TDM_HOST]),
        "host_peak_allocated_bytes", count(s->live_peak_bytes[TDM_HOST]),
        "host_peak_reserved_bytes", count(s->arena_bytes[TDM_HOST]), "step_seconds",
        s->step_seconds, "phase_seconds", phases_json(s), "stall_seconds", s->stall_seconds,
        "tokens_per_second", (double)tdm_schedule_tokens(schedule) / s->step_seconds, "mfu",
        tdm_prediction_mfu(schedule, s), "packing_overhead", tdm_prediction_overhead(s), "lanes",
        lanes_json(&schedule->machine->topology, s), "categories", categories_json(s, TDM_DEVICE),
        "host_categories", categories_json(s, TDM_HOST), "category_peaks",
        bytes_json(s->category_peaks[TDM_DEVICE]), "host_category_peaks",
        bytes_json(s->category_peaks[TDM_HOST]), "ops", count(s->op_count), "page_list_bytes",
        count(s->peak_list_bytes), "page_mean_bytes", count(s->peak_mean_bytes), "rates_measured",
        (int)schedule->machine->measured, "rates_source", schedule->machine->source);
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
