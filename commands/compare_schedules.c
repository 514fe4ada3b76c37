/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares two schedules. Knobs are the fields of the schedules' JSON, so new fields are included
 * automatically. Costs are the simulator's.
 */
#include "commands/compare_schedules.h"

#include "base/text.h"
#include "schedule/cost.h"
#include "schedule/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- knobs ---- */

static enum tdm_status
add_knob(struct tdm_comparison *c, const char *name,
         char values[2][sizeof(((struct tdm_knob_difference *)0)->values[0])],
         struct tdm_error *err)
{
    if (c->knob_count == c->knob_capacity) {
        size_t capacity = c->knob_capacity == 0 ? 16 : 2 * c->knob_capacity;
        struct tdm_knob_difference *moved = realloc(c->knobs, capacity * sizeof(*moved));
        if (moved == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for what differs");
        c->knobs = moved;
        c->knob_capacity = capacity;
    }
    struct tdm_knob_difference *knob = &c->knobs[c->knob_count++];
    snprintf(knob->name, sizeof(knob->name), "%s", name);
    memcpy(knob->values, values, sizeof(knob->values));
    tdm_text_clean(knob->name);
    for (int side = 0; side < 2; side++)
        tdm_text_clean(knob->values[side]);
    return TDM_OK;
}

static void write_scalar(const json_t *value, char *out, size_t bytes)
{
    if (json_is_string(value)) {
        snprintf(out, bytes, "%s", json_string_value(value));
    } else if (json_is_number(value)) {
        snprintf(out, bytes, "%.12g", json_number_value(value));
    } else {
        snprintf(out, bytes, "%s",
                 json_is_true(value)     ? "true"
                 : json_is_false(value)  ? "false"
                 : json_is_object(value) ? "{...}"
                 : json_is_array(value)  ? "[...]"
                                         : "null");
    }
}

/* Appends `text` with its repeat count. Returns false if it does not fit. */
static bool append_run(const char *text, size_t times, char *out, size_t bytes)
{
    char run[96];
    size_t used = strlen(out);
    if (times > 1)
        snprintf(run, sizeof(run), "%.72s x%zu", text, times);
    else
        snprintf(run, sizeof(run), "%.72s", text);
    if (used + strlen(run) + 8 > bytes) {
        snprintf(out + used, bytes - used, ", ...");
        return false;
    }
    snprintf(out + used, bytes - used, "%s%s", used == 0 ? "" : ", ", run);
    return true;
}

/* Writes a list as runs. With `key`, writes that field of every member. */
static void write_runs(const json_t *list, const char *key, char *out, size_t bytes)
{
    char run[96] = "", text[96];
    size_t times = 0;
    out[0] = '\0';
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *member = json_array_get(list, i);
        write_scalar(key == NULL ? member : json_object_get(member, key), text, sizeof(text));
        if (times > 0 && strcmp(text, run) != 0) {
            if (!append_run(run, times, out, bytes))
                return;
            times = 0;
        }
        memcpy(run, text, sizeof(run));
        times++;
    }
    if (times > 0)
        append_run(run, times, out, bytes);
}

struct walk {
    struct tdm_comparison *comparison;
    struct tdm_error *err;
};

static enum tdm_status compare_values(struct walk *walk, const char *name, json_t *const values[2]);

/* Compares all fields that at least one of two objects has. */
static enum tdm_status compare_objects(struct walk *walk, const char *name,
                                       json_t *const objects[2])
{
    enum tdm_status status = TDM_OK;
    for (int side = 0; side < 2; side++) {
        const char *key;
        json_t *value;
        json_object_foreach(objects[side], key, value)
        {
            json_t *pair[2] = {json_object_get(objects[0], key), json_object_get(objects[1], key)};
            char path[80];
            if (side == 1 && pair[0] != NULL) /* already compared with the first object */
                continue;
            snprintf(path, sizeof(path), "%.38s%s%.39s", name, *name == '\0' ? "" : ".", key);
            if (status == TDM_OK)
                status = compare_values(walk, path, pair);
        }
    }
    return status;
}

/* Compares lists of objects field by field. Each field is the list of its values as runs. */
static enum tdm_status compare_lists(struct walk *walk, const char *name, json_t *const lists[2])
{
    const char *key;
    json_t *value;
    enum tdm_status status = TDM_OK;
    json_object_foreach(json_array_get(lists[0], 0), key, value)
    {
        char texts[2][160], path[80];
        for (int side = 0; side < 2; side++)
            write_runs(lists[side], key, texts[side], sizeof(texts[side]));
        snprintf(path, sizeof(path), "%.38s.%.39s", name, key);
        /* treat "host x28" and "host x5" as equal: one value for all groups */
        char one[2][160];
        for (int side = 0; side < 2; side++) {
            snprintf(one[side], sizeof(one[side]), "%s", texts[side]);
            if (strchr(one[side], ',') == NULL && strcmp(key, "layers") != 0 &&
                strstr(one[side], " x") != NULL)
                *strstr(one[side], " x") = '\0';
        }
        if (status == TDM_OK && strcmp(one[0], one[1]) != 0)
            status = add_knob(walk->comparison, path, one, walk->err);
    }
    return status;
}

static enum tdm_status compare_values(struct walk *walk, const char *name, json_t *const values[2])
{
    char texts[2][160];
    if (values[0] != NULL && values[1] != NULL && json_equal(values[0], values[1]))
        return TDM_OK;
    if (json_is_object(values[0]) && json_is_object(values[1]))
        return compare_objects(walk, name, values);
    if (json_is_object(json_array_get(values[0], 0)) &&
        json_is_object(json_array_get(values[1], 0)))
        return compare_lists(walk, name, values);
    for (int side = 0; side < 2; side++) {
        if (values[side] == NULL)
            snprintf(texts[side], sizeof(texts[side]), "-");
        else if (json_is_array(values[side]))
            write_runs(values[side], NULL, texts[side], sizeof(texts[side]));
        else
            write_scalar(values[side], texts[side], sizeof(texts[side]));
    }
    return add_knob(walk->comparison, name, texts, walk->err);
}

/* The schedule's JSON without fields that do not affect a step. */
static enum tdm_status knobs_of(const struct tdm_schedule *schedule, json_t **out,
                                struct tdm_error *err)
{
    enum tdm_status status = tdm_schedule_to_json(schedule, NULL, out, err);
    if (status != TDM_OK)
        return status;
    static const char *const dull[] = {"notes", "title", "source", "format"};
    json_object_del(*out, "format");
    json_object_del(json_object_get(*out, "model"), "config");
    for (size_t i = 0; i < sizeof(dull) / sizeof(dull[0]); i++)
        json_object_del(json_object_get(*out, "machine"), dull[i]);
    return TDM_OK;
}

static enum tdm_status compare_knobs(const struct tdm_schedule *const schedules[2],
                                     struct tdm_comparison *comparison, struct tdm_error *err)
{
    json_t *knobs[2] = {NULL, NULL};
    struct walk walk = {comparison, err};
    enum tdm_status status = knobs_of(schedules[0], &knobs[0], err);
    if (status == TDM_OK)
        status = knobs_of(schedules[1], &knobs[1], err);
    if (status == TDM_OK)
        status = compare_objects(&walk, "", knobs);
    json_decref(knobs[0]);
    json_decref(knobs[1]);
    return status;
}

/* ---- costs ---- */

static enum tdm_status add_cost(struct tdm_comparison *c, const char *section, const char *name,
                                enum tdm_cost_unit unit, double a, double b, struct tdm_error *err)
{
    bool is_total = strcmp(section, name) == 0;
    if (a <= 0 && b <= 0 && !is_total)
        return TDM_OK;
    if (c->cost_count == c->cost_capacity) {
        size_t capacity = c->cost_capacity == 0 ? 64 : 2 * c->cost_capacity;
        struct tdm_cost_row *moved = realloc(c->costs, capacity * sizeof(*moved));
        if (moved == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for what differs");
        c->costs = moved;
        c->cost_capacity = capacity;
    }
    struct tdm_cost_row *row = &c->costs[c->cost_count++];
    *row = (struct tdm_cost_row){.is_total = is_total, .unit = unit, .values = {a, b}};
    snprintf(row->section, sizeof(row->section), "%s", section);
    snprintf(row->name, sizeof(row->name), "%s", name);
    return TDM_OK;
}

static enum tdm_status add_seconds(struct tdm_comparison *c, struct tdm_error *err)
{
    const struct tdm_simulation *a = &c->simulation[0], *b = &c->simulation[1];
    static const char *const step = "step", *const kinds = "op kinds";
    enum tdm_status status =
        add_cost(c, step, step, TDM_COST_SECONDS, a->step_seconds, b->step_seconds, err);
    for (int p = 0; p < TDM_PHASES && status == TDM_OK; p++)
        status = add_cost(c, step, tdm_phase_name((enum tdm_phase)p), TDM_COST_SECONDS,
                          a->phase_seconds[p], b->phase_seconds[p], err);
    if (status == TDM_OK)
        status =
            add_cost(c, step, "stalls", TDM_COST_SECONDS, a->stall_seconds, b->stall_seconds, err);
    for (int k = 0; k < TDM_OP_KINDS && status == TDM_OK; k++)
        status = add_cost(c, kinds, tdm_op_kind_name((enum tdm_op_kind)k), TDM_COST_SECONDS,
                          a->kind_seconds[k], b->kind_seconds[k], err);
    return status;
}

/* FLOPs above those of a step that keeps everything. */
static double recomputed(const struct tdm_schedule *schedule, const struct tdm_simulation *s,
                         bool attention)
{
    double passes = schedule->pass == TDM_EVALUATE ? 1 : 3;
    double products = 2 * (double)tdm_model_active_matmul_parameters(schedule->model) *
                      (double)tdm_schedule_tokens(schedule);
    double forward = tdm_model_flops(schedule) / passes - products;
    double more =
        attention ? s->attention_forward_flops - forward : s->product_flops - passes * products;
    return more > 0.5 ? more : 0;
}

static enum tdm_status add_flops(struct tdm_comparison *c,
                                 const struct tdm_schedule *const schedules[2],
                                 struct tdm_error *err)
{
    static const char *const all = "FLOPs";
    const struct tdm_simulation *s = c->simulation;
    enum tdm_status status = add_cost(c, all, all, TDM_COST_FLOPS, s[0].flops, s[1].flops, err);
    for (int attention = 0; attention < 2 && status == TDM_OK; attention++)
        status = add_cost(c, all, attention ? "recomputed attention" : "recomputed products",
                          TDM_COST_FLOPS, recomputed(schedules[0], &s[0], attention),
                          recomputed(schedules[1], &s[1], attention), err);
    return status;
}

/* A place by name: the schedules may be for machines with other tables. `number`: its row in the
 * table of each; ABSENT: the machine has no such place. */
#define ABSENT UINT32_MAX
struct named_place {
    const char *name;
    uint32_t number[2];
};

static double of_place(const struct named_place *row, int side, const uint64_t bytes[])
{
    return row->number[side] == ABSENT ? 0 : (double)bytes[row->number[side]];
}

static enum tdm_status add_peak(struct tdm_comparison *c, const struct named_place *place,
                                struct tdm_error *err)
{
    const struct tdm_simulation *s = c->simulation;
    char peak[TDM_ROW_NAME + 8];
    double packing[2] = {0, 0};
    snprintf(peak, sizeof(peak), "%s peak", place->name);
    enum tdm_status status =
        add_cost(c, peak, peak, TDM_COST_BYTES, of_place(place, 0, s[0].used_peak_bytes),
                 of_place(place, 1, s[1].used_peak_bytes), err);
    for (int i = 0; i < TDM_CATEGORIES && status == TDM_OK; i++) {
        double bytes[2] = {0, 0};
        for (int side = 0; side < 2; side++)
            if (place->number[side] != ABSENT)
                bytes[side] = (double)s[side].peak_categories[place->number[side]][i];
        status = add_cost(c, peak, tdm_category_name((enum tdm_category)i), TDM_COST_BYTES,
                          bytes[0], bytes[1], err);
    }
    for (int side = 0; side < 2; side++)
        packing[side] = of_place(place, side, s[side].arena_bytes) -
                        of_place(place, side, s[side].live_peak_bytes);
    return status == TDM_OK
               ? add_cost(c, peak, "packing", TDM_COST_BYTES, packing[0], packing[1], err)
               : status;
}

static enum tdm_status add_peaks(struct tdm_comparison *c,
                                 const struct tdm_topology *const topologies[2],
                                 struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < topologies[side]->place_count && status == TDM_OK; i++) {
            struct named_place place = {.name = topologies[side]->places[i].name,
                                        .number = {ABSENT, ABSENT}};
            enum tdm_place number;
            for (int other = 0; other < 2; other++)
                if (tdm_place_parse(topologies[other], place.name, &number))
                    place.number[other] = number;
            if (side == 0 || place.number[0] == ABSENT)
                status = add_peak(c, &place, err);
        }
    return status;
}

/* The link between places of these names, or TDM_NO_LINK. */
static uint32_t link_between(const struct tdm_topology *topology, const char *from, const char *to)
{
    enum tdm_place begin, end;
    return tdm_place_parse(topology, from, &begin) && tdm_place_parse(topology, to, &end)
               ? tdm_link_find(topology, begin, end)
               : TDM_NO_LINK;
}

/* Adds the bytes that were copied over each link, by the places that it connects. */
static enum tdm_status add_links(struct tdm_comparison *c, const char *section,
                                 const struct tdm_topology *const topologies[2],
                                 struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    bool more = topologies[0]->link_count > TDM_LINKS || topologies[1]->link_count > TDM_LINKS;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < topologies[side]->link_count && status == TDM_OK; i++) {
            const struct tdm_link *link = &topologies[side]->links[i];
            const char *from = tdm_place_name(topologies[side], link->from);
            const char *to = tdm_place_name(topologies[side], link->to);
            char name[2 * TDM_ROW_NAME + 8];
            double bytes[2] = {0, 0};
            bool in_first = link_between(topologies[0], from, to) != TDM_NO_LINK;
            if (side == 1 && in_first)
                continue;
            for (int s = 0; s < 2; s++) {
                uint32_t number = link_between(topologies[s], from, to);
                if (number != TDM_NO_LINK)
                    bytes[s] = (double)c->simulation[s].links[number].bytes;
            }
            if (i == TDM_LINK_PEER)
                snprintf(name, sizeof(name), "between ranks");
            else
                snprintf(name, sizeof(name), "%s%sto %s", more ? from : "", more ? " " : "", to);
            status = add_cost(c, section, name, TDM_COST_BYTES, bytes[0], bytes[1], err);
        }
    return status;
}

static enum tdm_status add_copies(struct tdm_comparison *c,
                                  const struct tdm_topology *const topologies[2],
                                  struct tdm_error *err)
{
    static const char *const copied = "copied";
    double bytes[2] = {0, 0};
    for (int side = 0; side < 2; side++)
        for (uint32_t link = 0; link < topologies[side]->link_count; link++)
            bytes[side] += (double)c->simulation[side].links[link].bytes;
    enum tdm_status status = add_cost(c, copied, copied, TDM_COST_BYTES, bytes[0], bytes[1], err);
    return status == TDM_OK ? add_links(c, copied, topologies, err) : status;
}

static enum tdm_status simulate(const struct tdm_schedule *schedule,
                                struct tdm_simulation *simulation, struct tdm_error *err)
{
    struct tdm_program *program = NULL;
    enum tdm_status status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_simulate(program, NULL, NULL, simulation, err);
    tdm_program_free(program);
    return status;
}

enum tdm_status tdm_compare_schedules(const struct tdm_schedule *const schedules[2],
                                      struct tdm_comparison *out, struct tdm_error *err)
{
    const struct tdm_topology *const topologies[2] = {&schedules[0]->machine->topology,
                                                      &schedules[1]->machine->topology};
    struct tdm_comparison comparison = {0};
    enum tdm_status status = simulate(schedules[0], &comparison.simulation[0], err);
    if (status == TDM_OK)
        status = simulate(schedules[1], &comparison.simulation[1], err);
    if (status == TDM_OK)
        status = compare_knobs(schedules, &comparison, err);
    if (status == TDM_OK)
        status = add_seconds(&comparison, err);
    if (status == TDM_OK)
        status = add_flops(&comparison, schedules, err);
    if (status == TDM_OK)
        status = add_peaks(&comparison, topologies, err);
    if (status == TDM_OK)
        status = add_copies(&comparison, topologies, err);
    if (status != TDM_OK) {
        tdm_comparison_free(&comparison);
        return status;
    }
    *out = comparison;
    return TDM_OK;
}

void tdm_comparison_free(struct tdm_comparison *comparison)
{
    free(comparison->knobs);
    free(comparison->costs);
    *comparison = (struct tdm_comparison){0};
}
