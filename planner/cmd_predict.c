/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark predict`: what another system would need, by what it says of itself: allocated, reserved, used. */
#include "planner/cmd.h"

#include "base/units.h"
#include "methods/remedy.h"
#include "methods/timeline.h"
#include "models/model.h"
#include "planner/margin.h"
#include "planner/own_method.h"
#include "planner/print.h"
#include "plots/events_plot.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PAIRS TDM_METHOD_MOST_KEYS
#define MOST_BATCH 65536u

struct request {
    const char *model, *machine, *method;
    uint64_t context, batch, gpus;
    const char *host_memory; /* NULL: what the machine has to plan on */
    uint64_t host_bytes;
    char host_pair[48];
    double margin;
    const char *pairs[MOST_PAIRS];
    size_t pair_count;
    struct tdm_picture timeline; /* its path: NULL: none; "-": no picture, but in JSON */
    bool as_json;
};

struct answer {
    struct tdm_model *model;
    struct tdm_machine *machine;
    const struct tdm_method *method;
    struct tdm_method_settings settings;
    struct tdm_method_choices choices;
    struct tdm_method_prediction prediction;
    struct tdm_remedies remedies;         /* none where it fits */
    struct tdm_method_timeline *timeline; /* NULL: was not asked for */
};

static bool draws(const struct request *r)
{
    return r->timeline.path != NULL && strcmp(r->timeline.path, "-") != 0;
}

static enum tdm_status check_timeline(const struct request *r, struct tdm_error *err)
{
    if (r->timeline.path == NULL)
        return TDM_OK;
    if (draws(r))
        return tdm_picture_check(&r->timeline, err);
    return r->as_json ? TDM_OK
                      : tdm_fail(err, TDM_USAGE, "predict: --timeline - goes with --json alone");
}

static enum tdm_status parse(int argc, char **argv, struct request *r, bool *help,
                             struct tdm_error *err)
{
    static const struct option options[] = {{"context", required_argument, NULL, 'c'},
                                            {"method", required_argument, NULL, 'm'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"gpus", required_argument, NULL, 'g'},
                                            {"machine", required_argument, NULL, 'M'},
                                            {"margin", required_argument, NULL, 'x'},
                                            {"set", required_argument, NULL, 's'},
                                            {"timeline", required_argument, NULL, 't'},
                                            {"force", no_argument, NULL, 'f'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"host-memory", required_argument, NULL, 'H'},
                                            {NULL, 0, NULL, 0}};
    enum tdm_status status = TDM_OK;
    opterr = 0;
    optind = 0;
    for (int option;
         status == TDM_OK && (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        switch (option) {
        case 'c':
            status = tdm_parse_tokens(optarg, "--context", &r->context, err);
            if (status == TDM_OK && r->context > TDM_LONGEST_CONTEXT)
                status =
                    tdm_fail(err, TDM_USAGE, "--context: \"%s\" is more than 256M tokens", optarg);
            break;
        case 'm':
            r->method = optarg;
            break;
        case 'b':
            status = tdm_parse_count(optarg, "--batch", 1, MOST_BATCH, &r->batch, err);
            break;
        case 'g':
            status = tdm_parse_count(optarg, "--gpus", 1, MOST_BATCH, &r->gpus, err);
            break;
        case 'M':
            r->machine = optarg;
            break;
        case 'H':
            r->host_memory = optarg;
            status = tdm_host_memory_parse(optarg, &r->host_bytes, err);
            break;
        case 'x':
            status = tdm_margin_parse(optarg, &r->margin, err);
            break;
        case 's':
            if (r->pair_count == MOST_PAIRS)
                return tdm_fail(err, TDM_USAGE, "predict: more than %u --set", MOST_PAIRS);
            r->pairs[r->pair_count++] = optarg;
            break;
        case 't':
            r->timeline.path = optarg;
            break;
        case 'f':
            r->timeline.force = true;
            break;
        case 'j':
            r->as_json = true;
            break;
        case 'h':
            *help = true;
            return TDM_OK;
        default:
            return tdm_cmd_bad_option(&tdm_cmd_predict, argc, argv, option, err);
        }
    }
    if (status != TDM_OK)
        return status;
    if (argc - optind != 1)
        return tdm_fail(err, TDM_USAGE, "predict: %s",
                        argc == optind ? "no model is named" : "takes one model only");
    r->model = argv[optind];
    if (r->context == 0)
        return tdm_fail(err, TDM_USAGE, "predict: --context is missing");
    if (r->method == NULL) {
        tdm_fail(err, TDM_USAGE, "predict: --method is missing");
        return tdm_hint(err, "tidemark methods lists them");
    }
    return check_timeline(r, err);
}

/* ---- as text ---- */

static void print_row(const char *name, const struct answer *a, unsigned indent,
                      uint64_t (*bytes)(const struct answer *a, const struct tdm_method_step *step,
                                        unsigned which),
                      unsigned which)
{
    char text[TDM_FORMAT_SIZE];
    bool any = false;
    for (uint32_t i = 0; i < a->prediction.count; i++)
        any |= bytes(a, &a->prediction.steps[i], which) > 0;
    if (!any)
        return;
    printf("%*s%-*s", (int)indent, "", (int)(24 - indent), name);
    for (uint32_t i = 0; i < a->prediction.count; i++)
        printf(" %12s", tdm_format_bytes(bytes(a, &a->prediction.steps[i], which), text));
    putchar('\n');
}

static uint64_t of_category(const struct answer *a, const struct tdm_method_step *step,
                            unsigned which)
{
    (void)a;
    return step->torch.categories[which];
}

#define HOST_TEXT 160

enum total { ALLOCATED, RESERVED, CACHED, RUNTIME, USED, HOST };

static uint64_t of_total(const struct answer *a, const struct tdm_method_step *step, unsigned which)
{
    const struct tdm_torch_bytes *peak = &step->torch.peak;
    const uint64_t totals[] = {[ALLOCATED] = peak->allocated,
                               [RESERVED] = peak->reserved,
                               [CACHED] = peak->reserved - peak->allocated,
                               [RUNTIME] = tdm_torch_runtime_bytes(&a->prediction.runtime),
                               [USED] = step->used_bytes,
                               [HOST] = step->torch.host_bytes};
    return totals[which];
}

static void print_settings(const struct answer *a)
{
    const struct tdm_method_key *key;
    const char *assumption = tdm_method_assumption(a->model, &a->settings);
    const char *head = "settings";
    for (size_t k = 0; (key = tdm_method_key(a->method, k)) != NULL; k++) {
        const char *said = a->choices.said[k];
        if (said == NULL && key->assumed == NULL)
            continue;
        printf("%-10s %s=%s%s\n", head, key->name, said != NULL ? said : key->assumed,
               said != NULL ? "" : " (assumed)");
        head = "";
    }
    if (assumption != NULL)
        printf("%-10s %s\n", "assumed", assumption);
}

/* What a GPU has of a sequence. */
static void print_division(const struct request *r, const struct answer *a)
{
    const struct tdm_context *c = &a->settings.torch.context;
    uint64_t padded = tdm_context_padded_tokens(c, r->context);
    char digits[TDM_DIGITS_SIZE];
    printf("%-10s ", "a GPU");
    if (padded != r->context)
        printf("padded to %s, ", tdm_format_digits(padded, digits));
    printf("%s tokens", tdm_format_digits(tdm_context_local_tokens(c, r->context), digits));
    printf(" of a sequence over %" PRIu64 " GPUs", c->ranks);
    if (c->ring_degree > 1 && c->ulysses_degree > 1)
        printf("; rings of %" PRIu64 " GPUs, all-to-all among %" PRIu64, c->ring_degree,
               c->ulysses_degree);
    putchar('\n');
}

static void print_head(const struct request *r, const struct answer *a)
{
    char digits[TDM_DIGITS_SIZE], text[TDM_FORMAT_SIZE];
    printf("%-10s %s: %s parameters, %" PRIu32 " layers\n", "model", a->model->name,
           tdm_format_digits(a->model->parameters, digits), a->model->layers);
    printf("%-10s %s: %s\n", "method", a->method->name, a->method->summary);
    printf("%-10s %" PRIu64 " sequence%s%s of %s tokens (%s)\n", "step", r->batch,
           r->batch == 1 ? "" : "s",
           a->method->divides_sequence ? " a group of GPUs"
           : r->gpus > 1               ? " a GPU"
                                       : "",
           tdm_format_tokens(r->context, text), tdm_format_digits(r->context, digits));
    if (a->settings.torch.context.ranks > 0)
        print_division(r, a);
    printf("%-10s %s: %s\n", "machine", a->machine->name, a->machine->title);
    print_settings(a);
    putchar('\n');
}

/* Of the step that needs most. */
static void print_largest(const struct tdm_torch_step *step)
{
    char name[TDM_LABEL_BYTES], text[TDM_FORMAT_SIZE];
    if (step->largest_count > 0)
        printf("%-52s %12s %8s  %s\n", "largest at the peak", "bytes", "tensors", "category");
    for (uint32_t i = 0; i < step->largest_count; i++) {
        const struct tdm_tensor_group *group = &step->largest[i];
        printf("  %-50s %12s %8" PRIu32 "  %s\n", tdm_label_format(&group->label, name),
               tdm_format_bytes(group->bytes, text), group->count,
               tdm_method_category_name(group->category));
    }
    if (step->largest_count > 0)
        putchar('\n');
}

/* "8 GPUs of a computer take 343.75 GiB of 110 GiB of host memory" */
static const char *host_text(const struct answer *a, char out[HOST_TEXT])
{
    const struct tdm_method_prediction *p = &a->prediction;
    char gpus[48], peak[TDM_FORMAT_SIZE], has[TDM_FORMAT_SIZE];
    snprintf(gpus, sizeof(gpus), "%" PRIu64 " GPUs of a computer take ", p->host_gpus);
    snprintf(out, HOST_TEXT, "%s%s of %s of host memory", p->host_gpus > 1 ? gpus : "it takes ",
             tdm_format_bytes(p->host_peak_bytes, peak),
             tdm_format_bytes(a->machine->capacity_bytes[TDM_HOST], has));
    return out;
}

static void print_fits(const struct request *r, const struct answer *a, uint64_t used_bytes)
{
    const struct tdm_method_prediction *p = &a->prediction;
    char used[TDM_FORMAT_SIZE], device[TDM_FORMAT_SIZE], host[HOST_TEXT];
    tdm_format_bytes(used_bytes, used);
    tdm_format_bytes(a->machine->capacity_bytes[TDM_DEVICE], device);
    printf("fits       %s of %s used, %g%% margin kept\n", used, device, 100 * r->margin);
    if (p->gives_back)
        printf(
            "%-10s with cached memory given back to the driver; above, with the whole device, it "
            "is kept\n",
            "");
    if (p->host_peak_bytes > 0)
        printf("%-10s %s\n", "", host_text(a, host));
}

static void print_answer(const struct request *r, const struct answer *a)
{
    const struct tdm_method_prediction *p = &a->prediction;
    char head[32];
    printf("%-24s", "peak of a GPU");
    for (uint32_t i = 0; i < p->count; i++) {
        snprintf(head, sizeof(head), "step %" PRIu32, p->steps[i].number);
        printf(" %12s", head);
    }
    putchar('\n');
    print_row("used", a, 2, of_total, USED);
    print_row("reserved", a, 4, of_total, RESERVED);
    print_row("allocated", a, 6, of_total, ALLOCATED);
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        print_row(tdm_method_category_name((enum tdm_method_category)c), a, 8, of_category, c);
    print_row("allocator", a, 6, of_total, CACHED);
    print_row("runtime", a, 4, of_total, RUNTIME);
    print_row("host memory", a, 2, of_total, HOST);
    printf("%-24s", "  in phase");
    for (uint32_t i = 0; i < p->count; i++)
        printf(" %12s", tdm_torch_phase_name(p->steps[i].torch.peak_phase));
    printf("\n\n");
    print_largest(&p->steps[p->highest].torch);
    if (p->fits)
        print_fits(r, a, p->kept_bytes);
}

/* ---- as JSON ---- */

static json_t *categories_json(const struct answer *a, const struct tdm_method_step *step)
{
    json_t *object = json_object();
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        json_object_set_new(object, tdm_method_category_name((enum tdm_method_category)c),
                            json_integer((json_int_t)step->torch.categories[c]));
    json_object_set_new(object, "allocator", json_integer((json_int_t)of_total(a, step, CACHED)));
    json_object_set_new(object, "runtime", json_integer((json_int_t)of_total(a, step, RUNTIME)));
    return object;
}

static json_t *largest_json(const struct tdm_torch_step *step)
{
    json_t *list = json_array();
    char name[TDM_LABEL_BYTES];
    for (uint32_t i = 0; i < step->largest_count; i++) {
        const struct tdm_tensor_group *group = &step->largest[i];
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:I, s:s}", "name", tdm_label_format(&group->label, name),
                            "bytes", (json_int_t)group->bytes, "tensors", (json_int_t)group->count,
                            "category", tdm_method_category_name(group->category)));
    }
    return list;
}

/* Points as lists: the event, its phase, bytes of the categories in their order, reserved bytes. */
static json_t *timeline_json(const struct tdm_method_timeline *t)
{
    json_t *categories = json_array(), *points = json_array();
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        json_array_append_new(categories,
                              json_string(tdm_method_category_name((enum tdm_method_category)c)));
    for (uint32_t i = 0; i < t->count; i++) {
        const struct tdm_timeline_point *point = &t->points[i];
        json_t *live = json_array();
        for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
            json_array_append_new(live, json_integer((json_int_t)point->live_bytes[c]));
        json_array_append_new(points, json_pack("[I, s, o, I]", (json_int_t)point->event,
                                                tdm_torch_phase_name(point->phase), live,
                                                (json_int_t)point->reserved_bytes));
    }
    return json_pack("{s:I, s:I, s:I, s:o, s:o}", "step", (json_int_t)t->step, "events",
                     (json_int_t)t->events, "events_of_a_point", (json_int_t)t->stretch,
                     "categories", categories, "points", points);
}

static json_t *step_json(const struct answer *a, const struct tdm_method_step *step)
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
    json_object_set_new(object, "largest", largest_json(t));
    if (t->failed)
        json_object_set_new(object, "failed_phase",
                            json_string(tdm_torch_phase_name(t->failed_phase)));
    for (unsigned p = 0; p < TDM_TORCH_PHASES; p++) {
        char key[64];
        snprintf(key, sizeof(key), "%s_end_allocated_bytes",
                 tdm_torch_phase_name((enum tdm_torch_phase)p));
        json_object_set_new(object, key, json_integer((json_int_t)t->end_bytes[p]));
    }
    return object;
}

/* What was asked, beside the method's answer, whose reference is taken. */
static json_t *answer_json(const struct request *r, const struct answer *a, json_t *predicted)
{
    json_t *settings = json_object(), *assumed = json_array();
    const char *assumption = tdm_method_assumption(a->model, &a->settings);
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(a->method, k)) != NULL; k++) {
        const char *said = a->choices.said[k];
        if (said == NULL && key->assumed == NULL)
            continue;
        json_object_set_new(settings, key->name, json_string(said != NULL ? said : key->assumed));
        if (said == NULL)
            json_array_append_new(assumed, json_string(key->name));
    }
    json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "model",
                             a->model->name, "method", a->method->name, "machine", a->machine->name,
                             "context", (json_int_t)r->context, "batch", (json_int_t)r->batch,
                             "gpus", (json_int_t)r->gpus, "device_bytes",
                              (json_int_t)a->machine->capacity_bytes[TDM_DEVICE],
                              "host_memory_bytes", (json_int_t)a->machine->capacity_bytes[TDM_HOST],
                              "margin", r->margin, "settings", settings, "assumed", assumed);
    if (assumption != NULL)
        json_object_set_new(root, "assumption", json_string(assumption));
    if (root != NULL && predicted != NULL)
        json_object_update(root, predicted);
    json_decref(predicted);
    return root;
}

static json_t *remedies_json(const struct tdm_remedies *remedies)
{
    json_t *list = json_array();
    for (size_t i = 0; i < remedies->count; i++) {
        const struct tdm_remedy *remedy = &remedies->list[i];
        json_t *changes = json_array();
        for (size_t c = 0; c < remedy->count; c++)
            json_array_append_new(
                changes, json_pack("{s:s, s:s, s:s}", "key", remedy->changes[c].key, "value",
                                   remedy->changes[c].value, "words", remedy->changes[c].words));
        json_array_append_new(list,
                              json_pack("{s:o, s:s, s:I, s:b, s:I, s:I}", "changes", changes,
                                        "effect", tdm_effect_name(remedy->effect), "peak_bytes",
                                        (json_int_t)remedy->peak_bytes, "cached_memory_given_back",
                                        (int)remedy->gives_back, "peak_within_margin_bytes",
                                        (json_int_t)remedy->kept_bytes, "host_peak_bytes",
                                        (json_int_t)remedy->host_peak_bytes));
    }
    return list;
}

/* The limit that is passed, in the words of plan; NULL: none is. */
static const char *binding_of(const struct tdm_method_prediction *p)
{
    if (p->fits)
        return NULL;
    if (p->fits_device)
        return "host";
    return p->fits_host ? "device" : "both";
}

/* `err`: why it does not fit. */
static void add_verdict(json_t *root, const struct answer *a, const struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    json_object_set_new(root, "cached_memory_given_back", json_boolean(p->gives_back));
    json_object_set_new(root, "peak_within_margin_bytes",
                        p->fits_device ? json_integer((json_int_t)p->kept_bytes) : json_null());
    json_object_set_new(root, "host_peak_bytes", json_integer((json_int_t)p->host_peak_bytes));
    json_object_set_new(root, "gpus_of_host", json_integer((json_int_t)p->host_gpus));
    json_object_set_new(root, "binding", json_pack("s?", binding_of(p)));
    if (p->fits)
        return;
    json_object_set_new(root, "message", json_string(err->message));
    json_object_set_new(root, "remedies", remedies_json(&a->remedies));
    json_object_set_new(root, "longest_context_tokens",
                        json_integer((json_int_t)a->remedies.longest_tokens));
}

static json_t *prediction_json(const struct answer *a, const struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    const struct tdm_method_step *highest = &p->steps[p->highest];
    json_t *steps = json_array();
    for (uint32_t i = 0; i < p->count; i++)
        json_array_append_new(steps, step_json(a, &p->steps[i]));
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:b, s:b, s:o, s:o}", "weights_bytes",
        (json_int_t)p->parameters_bytes, "peak_bytes", (json_int_t)highest->used_bytes,
        "peak_reserved_bytes", (json_int_t)highest->torch.peak.reserved, "peak_allocated_bytes",
        (json_int_t)highest->torch.peak.allocated, "runs", (int)p->runs, "fits", (int)p->fits,
        "categories", categories_json(a, highest), "steps", steps);
    if (root != NULL)
        add_verdict(root, a, err);
    if (root != NULL && a->timeline != NULL)
        json_object_set_new(root, "timeline", timeline_json(a->timeline));
    return root;
}

/* What the device has too little of. */
static void say_device(const struct request *r, const struct answer *a, char *out, size_t out_bytes)
{
    const struct tdm_method_prediction *p = &a->prediction;
    const struct tdm_method_step *step = &p->steps[p->highest];
    char used[TDM_FORMAT_SIZE], device[TDM_FORMAT_SIZE];
    tdm_format_bytes(step->used_bytes, used);
    tdm_format_bytes(a->machine->capacity_bytes[TDM_DEVICE], device);
    if (step->torch.unmade)
        snprintf(out, out_bytes, "there is no room for the model itself, with %s of %s in use",
                 used, device);
    else if (!p->runs)
        snprintf(out, out_bytes,
                 "step %" PRIu32 " runs out of memory in the %s, with %s of %s in use",
                 step->number, tdm_torch_phase_name(step->torch.failed_phase), used, device);
    else
        snprintf(out, out_bytes,
                 "step %" PRIu32 " takes %s of %s, which is not within the margin of %g%%",
                 step->number, used, device, 100 * r->margin);
}

/* TDM_INFEASIBLE, with what would make it fit, if it does not. */
static enum tdm_status judge(const struct request *r, struct answer *a, struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    char device[192], host[HOST_TEXT], hint[TDM_REMEDY_TEXT];
    if (p->fits)
        return TDM_OK;
    enum tdm_status status = tdm_method_remedies(a->method, a->model, a->machine, &a->settings,
                                                 &a->choices, r->margin, &a->remedies, err);
    if (status != TDM_OK)
        return status;
    say_device(r, a, device, sizeof(device));
    host_text(a, host);
    if (p->fits_device)
        tdm_fail(err, TDM_INFEASIBLE, "does not fit: %s", host);
    else
        tdm_fail(err, TDM_INFEASIBLE, "does not fit: %s%s%s", device, p->fits_host ? "" : "; and ",
                 p->fits_host ? "" : host);
    return tdm_hint(err, "%s", tdm_remedies_text(&a->remedies, hint));
}

/* tidemark has a key for it. */
static enum tdm_status add_host_pair(struct request *r, struct tdm_error *err)
{
    if (r->pair_count == MOST_PAIRS)
        return tdm_fail(err, TDM_USAGE, "predict: more than %u --set", MOST_PAIRS);
    snprintf(r->host_pair, sizeof(r->host_pair), "host_memory=%" PRIu64, r->host_bytes);
    r->pairs[r->pair_count++] = r->host_pair;
    return TDM_OK;
}

static enum tdm_status load(struct request *r, struct answer *a, struct tdm_error *err)
{
    enum tdm_status status = tdm_method_find(r->method, &a->method, err);
    if (status == TDM_OK && r->host_memory != NULL && tdm_method_is_own(a->method))
        status = add_host_pair(r, err);
    a->settings.torch.tokens = r->context;
    a->settings.torch.batch = r->batch;
    a->settings.torch.ranks = r->gpus;
    if (status == TDM_OK)
        status =
            tdm_method_apply(a->method, r->pairs, r->pair_count, &a->settings, &a->choices, err);
    if (status == TDM_OK)
        status = tdm_model_load(r->model, &a->model, err);
    if (status == TDM_OK)
        status = tdm_method_check(a->model, &a->settings, err);
    if (status == TDM_OK)
        status = tdm_machine_load(r->machine, &a->machine, err);
    if (status == TDM_OK && r->host_memory != NULL)
        a->machine->capacity_bytes[TDM_HOST] = r->host_bytes;
    return status;
}

/* ---- tidemark's own schedule ---- */

/* Why it does not fit, in words and with --json; the status is TDM_INFEASIBLE unless something else went wrong. */
static enum tdm_status fail_own(const struct request *r, struct answer *a,
                                struct tdm_own_schedule *own, struct tdm_error *err)
{
    struct tdm_own_miss miss;
    char hint[TDM_REMEDY_TEXT];
    enum tdm_status status = tdm_own_fail(own, &miss, err);
    if (status != TDM_INFEASIBLE)
        return status;
    tdm_own_remedies(&miss,
                     (uint64_t)((double)a->machine->capacity_bytes[TDM_DEVICE] * (1 - r->margin)),
                     &a->remedies);
    if (miss.binding != NULL)
        tdm_hint(err, "%s", tdm_remedies_text(&a->remedies, hint));
    if (r->as_json)
        tdm_print_json(
            answer_json(r, a,
                        json_pack("{s:b, s:s?, s:s, s:o, s:I, s:I}", "fits", 0, "binding",
                                  miss.binding, "message", err->message, "remedies",
                                  remedies_json(&a->remedies), "longest_context_tokens",
                                  (json_int_t)a->remedies.longest_tokens, "host_memory_bytes",
                                  (json_int_t)miss.host_memory_bytes)),
            NULL);
    return status;
}

static enum tdm_status answer_own(const struct request *r, struct answer *a, struct tdm_error *err)
{
    struct tdm_own_schedule *own = NULL;
    if (r->timeline.path != NULL) {
        tdm_fail(err, TDM_USAGE, "predict: --timeline is of other systems");
        return tdm_hint(err, "tidemark plan -o plan.json, and tidemark plot plan.json, draw it");
    }
    const struct tdm_own_words words =
        tdm_own_words(&a->settings, &a->choices, r->model, r->machine, r->margin);
    enum tdm_status status = tdm_own_find(&words, false, &own, err);
    if (status == TDM_INFEASIBLE) {
        status = fail_own(r, a, own, err);
    } else if (status == TDM_OK && r->as_json) {
        status = tdm_print_json(answer_json(r, a, tdm_own_json(own)), err);
    } else if (status == TDM_OK) {
        print_head(r, a);
        struct tdm_own_step step;
        tdm_own_table(stdout, own);
        tdm_own_step(own, &step);
        print_fits(r, a, step.used_bytes);
    }
    tdm_own_free(own);
    return status;
}

/* ---- other systems ---- */

static enum tdm_status draw_timeline(const struct request *r, const struct answer *a,
                                     struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    struct tdm_events_plot plot = {.timeline = a->timeline,
                                   .runtime_bytes = tdm_torch_runtime_bytes(&a->prediction.runtime),
                                   .device_bytes = a->machine->capacity_bytes[TDM_DEVICE]};
    snprintf(plot.title, sizeof(plot.title), "%s, %s tokens, by %s", a->model->name,
             tdm_format_tokens(r->context, text), a->method->name);
    snprintf(plot.subtitle, sizeof(plot.subtitle), "%s; step %" PRIu32 ", predicted",
             a->machine->title, a->timeline->step);
    return tdm_events_plot_draw(&plot, &r->timeline, err);
}

static enum tdm_status answer_other(const struct request *r, struct answer *a,
                                    struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    enum tdm_status status =
        tdm_method_predict(a->model, a->machine, &a->settings, r->margin, &a->prediction, err);
    if (status == TDM_OK && r->timeline.path != NULL)
        status = tdm_method_timeline(a->model, a->machine, &a->settings,
                                     p->steps[p->highest].number, &a->timeline, err);
    const enum tdm_status judged = status == TDM_OK ? judge(r, a, err) : status;
    if (status == TDM_OK && judged != TDM_INFEASIBLE)
        status = judged;
    if (status == TDM_OK && r->as_json) {
        status = tdm_print_json(answer_json(r, a, prediction_json(a, err)), err);
    } else if (status == TDM_OK) {
        print_head(r, a);
        print_answer(r, a);
    }
    if (status == TDM_OK && draws(r) && a->timeline->count > 0) /* else no step began */
        status = draw_timeline(r, a, err);
    free(a->timeline);
    return status == TDM_OK ? judged : status;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct request r = {.machine = "h200",
                        .batch = 1,
                        .gpus = 1,
                        .margin = TDM_MARGIN,
                        .timeline = {.width = 1600, .height = 900}};
    struct answer a = {.model = NULL};
    bool help = false;
    enum tdm_status status = parse(argc, argv, &r, &help, err);
    if (status != TDM_OK)
        return status;
    if (help) {
        tdm_cmd_print_help(&tdm_cmd_predict);
        return TDM_OK;
    }
    status = load(&r, &a, err);
    if (status == TDM_OK)
        status = tdm_method_is_own(a.method) ? answer_own(&r, &a, err) : answer_other(&r, &a, err);
    tdm_model_free(a.model);
    tdm_machine_free(a.machine);
    return status;
}

const struct tdm_command tdm_cmd_predict = {
    .name = "predict",
    .usage = "predict MODEL --context N --method NAME [options]",
    .summary = "what another system would need: peak memory of a GPU, allocated, reserved, used",
    .help =
        "  --context N         tokens of each sequence\n"
        "  --method NAME       the system: tidemark methods lists them\n"
        "  --batch N           sequences of a GPU's step; 1 by default\n"
        "  --gpus N            GPUs; 1 by default\n"
        "  --machine MACHINE   a shipped name, a file that describes one, or local; h200 by default\n"
        "  --host-memory SIZE  host memory of a computer, which its GPUs share, up to 8 or gpus_per_node of\n"
        "                      them; what the machine has to plan on by default\n"
        "  --margin SHARE      memory of the device that must be left over: 3% by default\n"
        "  --set KEY=VALUE     a setting of the method; may be repeated, a key only once\n"
        "  --timeline FILE     a picture, .png or .svg: bytes by category over the allocations and frees of\n"
        "                      the step that needs most; with --json its data too, - for no picture\n"
        "  --force             overwrite FILE\n"
        "  --json              one JSON object on stdout, also when it does not fit\n"
        "  --help              this text\n"
        "\n"
        "allocated is what live tensors take, reserved what the system's allocator holds, used what\n"
        "the driver reports: reserved and the runtime. Settings that are not said are assumed, and\n"
        "the answer says so. The last line says that it fits. When it does not, the exit status is 3, and\n"
        "the hint says what would fit: settings, a smaller batch, more host memory, more GPUs or another\n"
        "method, and last what trains something else, as LoRA does.\n"
        "The method tidemark is the schedule that plan finds; --set takes the knobs of plan too.\n"
        "\n"
        "Examples:\n"
        "  tidemark predict qwen2.5-7b --context 8K --method parallel\n"
        "  tidemark predict qwen2.5-7b --context 8K --method parallel --set checkpointing=on\n"
        "  tidemark predict qwen2.5-7b --context 8K --method parallel --timeline step.svg\n"
        "  tidemark predict qwen2.5-7b --context 256K --method tidemark --set optimizer=adamw-bf16\n",
    .run = run,
};
