/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the answer of `tidemark predict` as JSON. */
#include "commands/predict_parts.h"

#include "base/json.h"

#include <stdio.h>

static json_t *categories_json(const struct tdm_predict_answer *a,
                               const struct tdm_method_step *step)
{
    json_t *object = json_object();
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        tdm_json_set(&object, tdm_method_category_name((enum tdm_method_category)c),
                     json_integer((json_int_t)step->torch.categories[c]));
    tdm_json_set(&object, "allocator", json_integer((json_int_t)tdm_method_cached_bytes(step)));
    tdm_json_set(&object, "runtime",
                 json_integer((json_int_t)tdm_torch_runtime_bytes(&a->prediction.runtime)));
    return object;
}

static json_t *largest_json(const struct tdm_torch_step *step)
{
    json_t *list = json_array();
    char name[TDM_LABEL_BYTES];
    for (uint32_t i = 0; i < step->largest_count; i++) {
        const struct tdm_tensor_group *group = &step->largest[i];
        tdm_json_add(&list, json_pack("{s:s, s:I, s:I, s:s}", "name",
                                      tdm_label_format(&group->label, name), "bytes",
                                      (json_int_t)group->bytes, "tensors", (json_int_t)group->count,
                                      "category", tdm_method_category_name(group->category)));
    }
    return list;
}

/* Points as lists: the event, its phase, bytes per category in order, reserved bytes. */
static json_t *timeline_json(const struct tdm_method_timeline *t)
{
    json_t *categories = json_array(), *points = json_array();
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        tdm_json_add(&categories,
                     json_string(tdm_method_category_name((enum tdm_method_category)c)));
    for (uint32_t i = 0; i < t->count; i++) {
        const struct tdm_timeline_point *point = &t->points[i];
        json_t *live = json_array();
        for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
            tdm_json_add(&live, json_integer((json_int_t)point->live_bytes[c]));
        tdm_json_add(&points, json_pack("[I, s, o, I]", (json_int_t)point->event,
                                        tdm_torch_phase_name(point->phase), live,
                                        (json_int_t)point->reserved_bytes));
    }
    return json_pack("{s:I, s:I, s:I, s:o, s:o}", "step", (json_int_t)t->step, "events",
                     (json_int_t)t->events, "events_of_a_point", (json_int_t)t->stretch,
                     "categories", categories, "points", points);
}

/* Peaks of the phases that the step reached; used bytes as the driver reports them. */
static json_t *phases_json(const struct tdm_predict_answer *a, const struct tdm_torch_step *step)
{
    json_t *object = json_object();
    for (unsigned p = 0; p < TDM_TORCH_PHASES; p++) {
        const struct tdm_torch_bytes *peak = &step->phases[p];
        if (peak->reserved == 0)
            continue;
        uint64_t used = peak->reserved + tdm_torch_runtime_bytes(&a->prediction.runtime);
        tdm_json_set(&object, tdm_torch_phase_name((enum tdm_torch_phase)p),
                     json_pack("{s:I, s:I, s:I}", "peak_bytes", (json_int_t)used,
                               "peak_reserved_bytes", (json_int_t)peak->reserved,
                               "peak_allocated_bytes", (json_int_t)peak->allocated));
    }
    return object;
}

static json_t *step_json(const struct tdm_predict_answer *a, const struct tdm_method_step *step)
{
    const struct tdm_torch_step *t = &step->torch;
    json_t *object = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:o}", "step",
        (json_int_t)step->number, "before_allocated_bytes", (json_int_t)t->before_bytes,
        "peak_bytes", (json_int_t)step->used_bytes, "end_used_bytes",
        (json_int_t)step->end_used_bytes, "peak_reserved_bytes", (json_int_t)t->peak.reserved,
        "peak_allocated_bytes", (json_int_t)t->peak.allocated, "peak_requested_bytes",
        (json_int_t)t->peak.requested, "host_bytes", (json_int_t)t->host_bytes, "alloc_retries",
        (json_int_t)t->retries, "peak_phase", tdm_torch_phase_name(t->peak_phase), "runs",
        !t->failed, "categories", categories_json(a, step));
    tdm_json_set(&object, "largest", largest_json(t));
    tdm_json_set(&object, "phases", phases_json(a, t));
    if (t->failed)
        tdm_json_set(&object, "failed_phase", json_string(tdm_torch_phase_name(t->failed_phase)));
    for (unsigned p = 0; p < TDM_TORCH_PHASES; p++) {
        char key[64];
        snprintf(key, sizeof(key), "%s_end_allocated_bytes",
                 tdm_torch_phase_name((enum tdm_torch_phase)p));
        tdm_json_set(&object, key, json_integer((json_int_t)t->end_bytes[p]));
    }
    return object;
}

json_t *tdm_predict_remedies_json(const struct tdm_remedies *remedies)
{
    json_t *list = json_array();
    for (size_t i = 0; i < remedies->count; i++) {
        const struct tdm_remedy *remedy = &remedies->list[i];
        json_t *changes = json_array();
        for (size_t c = 0; c < remedy->count; c++)
            tdm_json_add(&changes,
                         json_pack("{s:s, s:s, s:s}", "key", remedy->changes[c].key, "value",
                                   remedy->changes[c].value, "words", remedy->changes[c].words));
        tdm_json_add(&list, json_pack("{s:o, s:s, s:I, s:b, s:I, s:I}", "changes", changes,
                                      "effect", tdm_effect_name(remedy->effect), "peak_bytes",
                                      (json_int_t)remedy->peak_bytes, "cached_memory_given_back",
                                      (int)remedy->gives_back, "peak_within_margin_bytes",
                                      (json_int_t)remedy->kept_bytes, "host_peak_bytes",
                                      (json_int_t)remedy->host_peak_bytes));
    }
    return list;
}

/* The limit that is exceeded, in plan's words. NULL: none. */
static const char *binding_of(const struct tdm_method_prediction *p)
{
    if (p->fits || p->failure.lacks != NULL)
        return NULL;
    if (p->fits_device)
        return "host";
    return p->fits_host ? "device" : "both";
}

/* `err`: why it does not fit. */
static void add_verdict(json_t **root, const struct tdm_predict_answer *a,
                        const struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    tdm_json_set(root, "last_gpu", json_boolean(p->run == TDM_RUN_LAST));
    tdm_json_set(root, "middle_gpu", json_boolean(p->run == TDM_RUN_BETWEEN));
    tdm_json_set(root, "cached_memory_given_back", json_boolean(p->gives_back));
    tdm_json_set(root, "peak_within_margin_bytes",
                 p->fits_device ? json_integer((json_int_t)p->kept_bytes) : json_null());
    tdm_json_set(root, "host_peak_bytes", json_integer((json_int_t)p->host_peak_bytes));
    tdm_json_set(root, "gpus_of_host", json_integer((json_int_t)p->host_gpus));
    tdm_json_set(root, "binding", json_pack("s?", binding_of(p)));
    if (!p->runs)
        tdm_json_set(root, "failure",
                     json_pack("{s:I, s:s, s:b, s:I}", "step", (json_int_t)p->failure.step, "phase",
                               tdm_torch_phase_name(p->failure.phase), "model_has_room",
                               (int)!p->failure.unmade, "used_bytes",
                               (json_int_t)p->failure.used_bytes));
    if (p->fits)
        return;
    tdm_json_set(root, "message", json_string(err->message));
    tdm_json_set(root, "remedies", tdm_predict_remedies_json(&a->remedies));
    tdm_json_set(root, "remedies_complete", json_boolean(a->remedies.complete));
    tdm_json_set(root, "longest_context_tokens", json_integer((json_int_t)a->longest_tokens));
}

json_t *tdm_predict_peaks_json(const struct tdm_predict_answer *a, const struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    const struct tdm_method_step *highest = &p->steps[p->highest];
    json_t *steps = json_array();
    for (uint32_t i = 0; i < p->count; i++)
        tdm_json_add(&steps, step_json(a, &p->steps[i]));
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:b, s:b, s:o, s:o}", "weights_bytes",
        (json_int_t)p->parameters_bytes, "peak_bytes", (json_int_t)highest->used_bytes,
        "peak_reserved_bytes", (json_int_t)highest->torch.peak.reserved, "peak_allocated_bytes",
        (json_int_t)highest->torch.peak.allocated, "runs", (int)p->runs, "fits", (int)p->fits,
        "categories", categories_json(a, highest), "steps", steps);
    add_verdict(&root, a, err);
    if (a->timeline != NULL)
        tdm_json_set(&root, "timeline", timeline_json(a->timeline));
    return root;
}

json_t *tdm_predict_json(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                         json_t *predicted)
{
    json_t *settings = json_object(), *assumed = json_array(), *vain = json_array(),
           *unmeasured = json_array();
    const struct tdm_key_case c = tdm_predict_case(a);
    const char *assumption = tdm_method_assumption(a->model, &a->settings);
    char text[TDM_KEY_TEXT];
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(a->method, k)) != NULL; k++) {
        const char *said = a->choices.said[k];
        const char *value = said != NULL ? said : tdm_key_assumed(key, &c, text);
        if (value == NULL)
            continue;
        tdm_json_set(&settings, key->name, json_string(value));
        if (tdm_key_unmet(key, &c) == NULL && tdm_key_is_unmeasured(key, value))
            tdm_json_add(&unmeasured, json_sprintf("%s=%s", key->name, value));
        if (said == NULL)
            tdm_json_add(&assumed, json_string(key->name));
        else if (tdm_key_without_effect(key, &c, text) != NULL)
            tdm_json_add(&vain, json_pack("{s:s, s:s}", "key", key->name, "words", text));
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o}", "format",
        TDM_PREDICTION_FORMAT, "model", a->model->name, "method", a->method->name, "machine",
        a->machine->name, "context", (json_int_t)r->context, "batch", (json_int_t)r->batch, "gpus",
        (json_int_t)r->gpus, "nodes", (json_int_t)r->nodes, "device_bytes",
        (json_int_t)a->machine->topology.places[TDM_DEVICE].capacity_bytes, "host_memory_bytes",
        (json_int_t)tdm_machine_far(a->machine)->capacity_bytes, "margin", r->margin, "settings",
        settings, "assumed", assumed, "without_effect", vain);
    tdm_json_set(&root, "not_measured", unmeasured);
    tdm_json_set(&root, "host_memory_assumed", json_boolean(!r->memory.has_host));
    if (assumption != NULL)
        tdm_json_set(&root, "assumption", json_string(assumption));
    if (r->from.count > 0)
        tdm_json_set(&root, "from",
                     json_pack("{s:O, s:O, s:O}", "read", r->from.pairs, "ignored", r->from.ignored,
                               "not_modelled", r->from.lacking));
    tdm_json_merge(&root, predicted);
    return root;
}
