/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the answer of `tidemark report` as JSON. Device keys are plain ("peak_bytes"). Keys of
 * other places have the place's name as a prefix. */
#include "commands/report_parts.h"

#include "base/json.h"
#include "commands/kind_times.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

static json_t *json_seconds(double seconds)
{
    return isfinite(seconds) ? json_real(seconds) : json_null();
}

static json_t *json_bytes(bool known, uint64_t bytes)
{
    return known ? json_integer((json_int_t)bytes) : json_null();
}

static void set_of_place(json_t **object, const struct tdm_program_report *report, int place,
                         const char *key, json_t *value)
{
    char name[64];
    const char *prefix =
        place == TDM_DEVICE ? "" : tdm_place_name(report->topology, (enum tdm_place)place);
    snprintf(name, sizeof(name), "%s%s%s", prefix, prefix[0] == '\0' ? "" : "_", key);
    tdm_json_set(object, name, value);
}

static json_t *json_categories(const uint64_t bytes[TDM_CATEGORIES])
{
    json_t *object = json_object();
    for (int category = 0; category < TDM_CATEGORIES; category++)
        if (bytes[category] != 0)
            tdm_json_set(&object, tdm_category_name((enum tdm_category)category),
                         json_integer((json_int_t)bytes[category]));
    return object;
}

/* Bytes that hold values: their peak, each category's part of it, and each category's own peak. */
static void set_values(json_t **object, const struct tdm_program_report *report, int place,
                       const struct tdm_trace_peak *peak)
{
    set_of_place(object, report, place, "peak_value_bytes",
                 json_bytes(peak->known, peak->value_bytes));
    set_of_place(object, report, place, "categories",
                 peak->known ? json_categories(peak->at_peak) : json_null());
    set_of_place(object, report, place, "category_peaks",
                 peak->known ? json_categories(peak->most) : json_null());
}

static json_t *json_predicted(const struct tdm_program_report *report)
{
    json_t *object = json_object();
    tdm_json_set(&object, "step_seconds", json_seconds(report->program.predicted_seconds));
    for (int place = 0; place < (int)report->topology->place_count; place++) {
        set_of_place(&object, report, place, "peak_bytes",
                     json_bytes(true, tdm_report_predicted_used_bytes(report, place)));
        set_of_place(&object, report, place, "peak_reserved_bytes",
                     json_bytes(true, report->program.arena_bytes[place]));
        set_of_place(&object, report, place, "peak_allocated_bytes",
                     json_bytes(true, report->program.live_peak_bytes[place]));
        set_values(&object, report, place, &report->peaks.predicted[place]);
    }
    return object;
}

static json_t *json_measured(const struct tdm_program_report *report)
{
    json_t *object = json_object();
    tdm_json_set(&object, "step_seconds", json_seconds(tdm_report_step_seconds(report)));
    for (int place = 0; place < (int)report->topology->place_count; place++) {
        const struct tdm_trace_arena_row *arena = &report->arenas[place];
        bool scanned = report->scanned[place];
        set_of_place(&object, report, place, "peak_bytes",
                     json_bytes(report->sampled[place], report->used_bytes[place]));
        set_of_place(&object, report, place, "peak_reserved_bytes",
                     json_bytes(scanned, arena->planned_bytes));
        set_of_place(&object, report, place, "touched_bytes",
                     json_bytes(scanned, arena->touched_bytes));
        set_of_place(&object, report, place, "highest_byte",
                     json_bytes(scanned, arena->highest_byte));
        set_values(&object, report, place, &report->peaks.measured[place]);
    }
    return object;
}

static json_t *json_times(const struct tdm_program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->time_count; i++) {
        const struct tdm_trace_time_row *row = &report->times[i];
        tdm_json_add(
            &array, json_pack("{s:s, s:s, s:I, s:o, s:o, s:o}", "phase", tdm_phase_name(row->phase),
                              "kind", tdm_op_kind_name(row->kind), "ops", (json_int_t)row->ops,
                              "predicted_seconds", json_seconds(row->predicted_seconds),
                              "measured_seconds", json_seconds(row->measured_seconds), "error",
                              json_seconds(tdm_report_error(row->predicted_seconds,
                                                            row->measured_seconds))));
    }
    return array;
}

static json_t *json_kinds(const struct tdm_program_report *report)
{
    struct tdm_kind_time kinds[TDM_OP_KINDS];
    size_t count = tdm_kind_times(report->times, report->time_count, kinds);
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        tdm_json_add(&array,
                     json_pack("{s:s, s:I, s:f, s:f, s:o}", "kind", tdm_op_kind_name(kinds[i].kind),
                               "ops", (json_int_t)kinds[i].ops, "predicted_seconds",
                               kinds[i].predicted_seconds, "measured_seconds",
                               kinds[i].measured_seconds, "ratio",
                               json_seconds(tdm_kind_ratio(&kinds[i]))));
    return array;
}

static json_t *json_selection(const struct tdm_program_report *report)
{
    const struct tdm_trace_selection *s = &report->selection;
    if (s->ops == 0)
        return json_null();
    return json_pack(
        "{s:I, s:I, s:o, s:I, s:o, s:I, s:o, s:I, s:o}", "ops", (json_int_t)s->ops, "room_pairs",
        (json_int_t)s->room_pairs, "held_pairs",
        isnan(s->held_pairs) ? json_null() : json_integer((json_int_t)llround(s->held_pairs)),
        "gathered_bytes", (json_int_t)s->gathered_bytes, "held_gathered_bytes",
        isnan(s->held_gathered_bytes) ? json_null()
                                      : json_integer((json_int_t)llround(s->held_gathered_bytes)),
        "page_list_bytes", (json_int_t)s->list_bytes, "touched_page_list_bytes",
        json_bytes(s->touched, s->touched_list_bytes), "page_mean_bytes", (json_int_t)s->mean_bytes,
        "touched_page_mean_bytes", json_bytes(s->touched, s->touched_mean_bytes));
}

static json_t *json_lanes(const struct tdm_program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->lane_count; i++) {
        const struct tdm_trace_lane_row *row = &report->lanes[i];
        tdm_json_add(
            &array, json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "lane",
                              tdm_lane_name(report->topology, row->lane), "ops",
                              (json_int_t)row->ops, "copied_bytes", (json_int_t)row->copied_bytes,
                              "predicted_busy_seconds", json_seconds(row->predicted_busy_seconds),
                              "predicted_stall_seconds", json_seconds(row->predicted_stall_seconds),
                              "measured_busy_seconds", json_seconds(row->measured_busy_seconds),
                              "measured_stall_seconds", json_seconds(row->measured_stall_seconds)));
    }
    return array;
}

static json_t *json_waits(const struct tdm_program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->wait_count; i++) {
        const struct tdm_trace_wait *wait = &report->waits[i];
        tdm_json_add(
            &array,
            json_pack(
                "{s:s, s:o, s:o, s:o, s:I, s:o, s:o}", "phase", tdm_phase_name(wait->phase), "lane",
                wait->launch ? json_null()
                             : json_string(tdm_lane_name(report->topology, wait->lane)),
                "kind", wait->launch ? json_null() : json_string(tdm_op_kind_name(wait->kind)),
                "content",
                wait->content == TDM_EMPTY ? json_null()
                                           : json_string(tdm_content_name(wait->content)),
                "waits", (json_int_t)wait->waits, "predicted_seconds",
                json_seconds(wait->predicted_seconds), "measured_seconds",
                json_seconds(wait->measured_seconds)));
    }
    return array;
}

static json_t *json_evaluations(const struct tdm_program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->evaluation_count; i++) {
        const struct tdm_trace_evaluation_row *row = &report->evaluations[i];
        tdm_json_add(&array,
                     json_pack("{s:I, s:o, s:o, s:I, s:f}", "step", (json_int_t)row->step, "text",
                               tdm_json_text(row->text), "loss", json_seconds(row->loss), "tokens",
                               (json_int_t)row->tokens, "seconds", row->seconds));
    }
    return array;
}

static json_t *json_unfinished(const struct tdm_program_report *report)
{
    const struct tdm_trace_unfinished_row *row = report->unfinished;
    if (row == NULL)
        return json_null();
    bool some = row->ops > 0;
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:I, s:f, s:f}", "step", (json_int_t)row->step,
                     "op_number", some ? json_integer((json_int_t)row->ops - 1) : json_null(),
                     "phase", some ? json_string(tdm_phase_name(row->phase)) : json_null(), "layer",
                     row->layer != TDM_NONE ? json_integer(row->layer) : json_null(), "chunk",
                     row->chunk != TDM_NONE ? json_integer(row->chunk) : json_null(), "ops",
                     (json_int_t)report->program.ops, "seconds", row->seconds, "predicted_seconds",
                     row->predicted_seconds);
}

static json_t *json_rank_times(const struct tdm_trace_rank_times *times)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "step_seconds", json_seconds(times->step_seconds),
                     "compute_seconds", json_seconds(times->compute_seconds), "exchange_seconds",
                     json_seconds(times->team_seconds), "wait_seconds",
                     json_seconds(times->wait_seconds));
}

static json_t *json_rank_waits(const struct tdm_program_report *report, uint32_t rank)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->rank_wait_count; i++) {
        const struct tdm_trace_rank_wait *wait = &report->rank_waits[i];
        if (wait->rank == rank)
            tdm_json_add(&array,
                         json_pack("{s:I, s:o, s:o}", "rank", (json_int_t)wait->awaited,
                                   "predicted_seconds", json_seconds(wait->predicted_seconds),
                                   "measured_seconds", json_seconds(wait->measured_seconds)));
    }
    return array;
}

static json_t *json_ranks(const struct tdm_program_report *report)
{
    json_t *array = json_array();
    for (size_t i = 0; i < report->rank_count; i++) {
        const struct tdm_trace_rank_row *row = &report->ranks[i];
        tdm_json_add(
            &array,
            json_pack("{s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "rank",
                      (json_int_t)row->rank, "ops", (json_int_t)row->ops, "predicted",
                      json_rank_times(&row->predicted), "measured", json_rank_times(&row->measured),
                      "received_bytes", (json_int_t)row->received_bytes, "sent_bytes",
                      (json_int_t)row->sent_bytes, "copied_bytes", (json_int_t)row->copied_bytes,
                      "planned_bytes", (json_int_t)tdm_report_rank_planned_bytes(report, row),
                      "used_bytes",
                      row->used_bytes > 0 ? json_integer((json_int_t)row->used_bytes) : json_null(),
                      "waits_for", json_rank_waits(report, row->rank)));
    }
    return array;
}

static json_t *json_program(const struct tdm_program_report *report)
{
    json_t *object = json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:o}", "name", tdm_json_text(report->program.name), "ops",
        (json_int_t)report->program.ops, "steps", (json_int_t)report->steps, "timed_steps",
        (json_int_t)report->timed_steps, "tokens", (json_int_t)report->tokens, "tokens_per_second",
        json_seconds(tdm_report_tokens_per_second(report)));
    bool some = report->steps > 0;
    tdm_json_set(&object, "first_step", some ? json_integer(report->first.step) : json_null());
    tdm_json_set(&object, "last_step", some ? json_integer(report->last.step) : json_null());
    tdm_json_set(&object, "first_loss", json_seconds(some ? report->first.loss : NAN));
    tdm_json_set(&object, "last_loss", json_seconds(some ? report->last.loss : NAN));
    tdm_json_set(&object, "unfinished", json_unfinished(report));
    tdm_json_set(&object, "evaluations", json_evaluations(report));
    tdm_json_set(&object, "predicted", json_predicted(report));
    tdm_json_set(&object, "measured", json_measured(report));
    tdm_json_set(&object, "times", json_times(report));
    tdm_json_set(&object, "kinds", json_kinds(report));
    tdm_json_set(&object, "selection", json_selection(report));
    tdm_json_set(&object, "lanes", json_lanes(report));
    tdm_json_set(&object, "waits", json_waits(report));
    if (report->program.ranks > 1)
        tdm_json_set(&object, "ranks", json_ranks(report));
    return object;
}

enum tdm_status tdm_report_print_json(const struct tdm_report *report, struct tdm_error *err)
{
    const struct tdm_trace_run_info *run = report->run;
    json_t *programs = json_array();
    for (size_t i = 0; i < report->program_count; i++)
        if (tdm_report_shows(report, &report->programs[i]))
            tdm_json_add(&programs, json_program(&report->programs[i]));
    json_t *root = json_pack(
        "{s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o}", "trace",
        tdm_json_text(report->path), "host_pinned_bytes", (json_int_t)run->pinned_bytes,
        "host_pageable_bytes", (json_int_t)run->pageable_bytes, "command",
        tdm_json_text(run->command), "backend", tdm_json_text(run->backend), "ran_on",
        tdm_json_text(run->ran_on), "versions", tdm_json_text(run->versions), "started_at",
        tdm_json_text(run->started_at), "resumed_from", tdm_json_text(run->resumed_from),
        "ended_at", tdm_json_text(run->ended_at), "ending", tdm_json_text(run->ending), "steps",
        (json_int_t)report->steps, "programs", programs);
    return tdm_json_write(stdout, false, root, err);
}
