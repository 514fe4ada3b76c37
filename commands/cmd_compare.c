/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark compare`: memory, longest context, bytes sent and rough step time of methods. */
#include "commands/cmd.h"

#include "base/json.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/common_options.h"
#include "commands/compare_methods.h"
#include "commands/contexts.h"
#include "planner/margin.h"
#include "commands/model_inputs.h"
#include "commands/print.h"
#include "plots/compare_plot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BATCH 4096u

struct arguments {
    struct tdm_compare_request request;
    struct tdm_picture picture; /* path NULL: none */
    bool json;
};

/* ---- the request ---- */

static enum tdm_status read_contexts(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_compare_request *r = value;
    return tdm_contexts_parse(text, r->contexts, TDM_COMPARED_CONTEXTS, &r->context_count, err);
}

static enum tdm_status add_method(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_compare_request *r = value;
    if (r->name_count == TDM_METHOD_MOST_KEYS)
        return tdm_fail(err, TDM_USAGE, "compare: more than %u --method", TDM_METHOD_MOST_KEYS);
    r->names[r->name_count++] = text;
    return TDM_OK;
}

static enum tdm_status parse(int argc, char **argv, struct arguments *a, bool *help,
                             struct tdm_error *err)
{
    int first;
    enum tdm_status status = tdm_options_read(&tdm_cmd_compare, argc, argv, a, &first, help, err);
    if (status != TDM_OK || *help)
        return status;
    if (argc - first != 1)
        return tdm_fail(err, TDM_USAGE, "compare: %s",
                        argc == first ? "no model is named" : "takes one model only");
    if (a->request.context_count == 0) {
        tdm_fail(err, TDM_USAGE, "compare: --context is missing");
        return tdm_hint(err, "for example --context 8K..128K");
    }
    a->request.model = argv[first];
    status = tdm_model_inputs_spare(a->request.model, a->request.machine, "compare: --output",
                                    a->picture.path, err);
    return status != TDM_OK || a->picture.path == NULL ? status
                                                       : tdm_picture_check(&a->picture, err);
}

/* ---- as text ---- */

static void print_head(const struct tdm_compare_request *r, const struct tdm_methods_comparison *c)
{
    const struct tdm_machine *machine = c->machine;
    char digits[TDM_DIGITS_SIZE], text[TDM_FORMAT_SIZE], sized[TDM_FORMAT_SIZE];
    char note[TDM_RATES_NOTE_SIZE];
    char source[TDM_HOST_SOURCE_BYTES];
    printf("%-10s %s: %s parameters, %" PRIu32 " layers\n", "model", c->model->name,
           tdm_format_digits(c->model->parameters, digits), c->model->layers);
    tdm_format_bytes(machine->topology.places[TDM_DEVICE].capacity_bytes, text);
    tdm_format_bytes(tdm_machine_far(machine)->capacity_bytes, sized);
    printf("%-10s %s: %s, %s; a margin of %g%%\n", "machine", machine->name, machine->title, text,
           100 * r->margin);
    printf("%-10s %s, %s\n", "host", sized, tdm_host_source(machine, &r->memory, source));
    printf("%-10s %" PRIu64 "; of a step %" PRIu64
           " sequence%s, on every GPU where each has its own\n",
           "gpus", r->gpus, r->batch, r->batch == 1 ? "" : "s");
    bool noted = tdm_rates_note(machine, note);
    if (noted)
        printf("%-10s %s\n", "rates", note);
    tdm_format_bytes((uint64_t)c->links.node_bytes_per_second, text);
    tdm_format_bytes((uint64_t)tdm_machine_both_ways_rate(machine), sized);
    printf("%-10s products %.0f TFLOP/s, attention %.0f and backward %.0f; ", noted ? "" : "rates",
           machine->rate[TDM_RATE_PRODUCT] / 1e12, machine->rate[TDM_RATE_ATTENTION_FORWARD] / 1e12,
           machine->rate[TDM_RATE_ATTENTION_BACKWARD] / 1e12);
    printf("%s/s between GPUs%s, %s/s with the host\n", text,
           machine->peer_rate > 0 ? "" : " (assumed)", sized);
    if (r->gpus > c->links.gpus_per_node)
        printf("%-10s %" PRIu64 " GPUs each%s, %s/s between them%s\n", "nodes",
               c->links.gpus_per_node, c->nodes_are_assumed ? " (assumed)" : "",
               tdm_format_bytes((uint64_t)c->links.network_bytes_per_second, text),
               machine->network_rate > 0 ? "" : " (assumed)");
    for (size_t i = 0; i < c->count; i++) {
        const struct tdm_compared *row = c->rows[i];
        printf("%-10s %s:", i == 0 ? "settings" : "", row->method->name);
        for (size_t k = 0; k < row->text_count; k++)
            printf(" %s", row->texts[k]);
        printf("%s\n", row->text_count == 0 ? " as predict assumes them" : "");
    }
}

typedef void (*cell)(const struct tdm_compared_point *point, char out[TDM_FORMAT_SIZE]);

static void peak_cell(const struct tdm_compared_point *point, char out[TDM_FORMAT_SIZE])
{
    tdm_format_bytes(point->used_bytes, out);
}

static void host_cell(const struct tdm_compared_point *point, char out[TDM_FORMAT_SIZE])
{
    tdm_format_bytes(point->host_bytes, out);
}

static void sent_cell(const struct tdm_compared_point *point, char out[TDM_FORMAT_SIZE])
{
    tdm_format_bytes((uint64_t)tdm_method_sent_bytes(&point->cost), out);
}

static void moved_cell(const struct tdm_compared_point *point, char out[TDM_FORMAT_SIZE])
{
    tdm_format_bytes((uint64_t)point->cost.host_bytes, out);
}

static void seconds_cell(const struct tdm_compared_point *point, char out[TDM_FORMAT_SIZE])
{
    tdm_format_seconds(point->step_seconds, out);
}

static void rate_cell(const struct tdm_compared_point *point, char out[TDM_FORMAT_SIZE])
{
    double rate = point->step_seconds > 0 ? tdm_compared_rate(point) : 0;
    tdm_format_digits((uint64_t)(rate + 0.5), out);
}

static void print_cell(const struct tdm_compared_point *point, cell of)
{
    char text[TDM_FORMAT_SIZE] = "-";
    if (point->fits)
        of(point, text);
    printf(" %10s", text);
}

/* Does the method use any of it, at some context? */
static bool has_some(const struct tdm_compare_request *r, const struct tdm_compared *row, cell of)
{
    static const struct tdm_compared_point nothing;
    char none[TDM_FORMAT_SIZE], text[TDM_FORMAT_SIZE];
    of(&nothing, none);
    for (size_t i = 0; i <= r->context_count && row->refused[0] == '\0'; i++) {
        of(i < r->context_count ? &row->points[i] : &row->longest, text);
        if (strcmp(text, none) != 0)
            return true;
    }
    return false;
}

/* Prints one figure by context and at the longest one, for the methods that have it. */
static void print_block(const char *title, const struct tdm_compare_request *r,
                        const struct tdm_methods_comparison *c, cell of)
{
    char text[TDM_FORMAT_SIZE];
    bool any = false;
    for (size_t m = 0; m < c->count; m++) {
        const struct tdm_compared *row = c->rows[m];
        if (!has_some(r, row, of))
            continue;
        if (!any) {
            printf("\n%-24s", title);
            for (size_t i = 0; i < r->context_count; i++)
                printf(" %10s", tdm_format_tokens(r->contexts[i], text));
            printf(" %10s\n", "longest");
        }
        any = true;
        printf("  %-22s", row->method->name);
        for (size_t i = 0; i < r->context_count; i++)
            print_cell(&row->points[i], of);
        print_cell(&row->longest, of);
        putchar('\n');
    }
}

/* Says why a peak may be within the margin though its figure is not. */
static void print_given_back(const struct tdm_compare_request *r,
                             const struct tdm_methods_comparison *c)
{
    const uint64_t device = c->machine->topology.places[TDM_DEVICE].capacity_bytes;
    char text[TDM_FORMAT_SIZE];
    bool any = false;
    for (size_t m = 0; m < c->count; m++)
        for (size_t i = 0; i <= r->context_count; i++) {
            const struct tdm_compared *row = c->rows[m];
            const struct tdm_compared_point *point =
                i < r->context_count ? &row->points[i] : &row->longest;
            any = any || (point->fits && point->enough_bytes < point->used_bytes);
        }
    if (any)
        printf(
            "  Above %s, which the margin leaves, PyTorch gives cached memory back when it must,\n"
            "  and what it then keeps is enough.\n",
            tdm_format_bytes((uint64_t)((1 - r->margin) * (double)device), text));
}

static void print_reach(const struct tdm_methods_comparison *c)
{
    char tokens[TDM_FORMAT_SIZE], digits[TDM_DIGITS_SIZE];
    printf("\nlongest context\n");
    for (size_t m = 0; m < c->count; m++) {
        const struct tdm_compared *row = c->rows[m];
        printf("  %2zu. %-18s", m + 1, row->method->name);
        if (row->refused[0] != '\0')
            printf(" cannot run: %s\n", row->refused);
        else if (!row->longest.fits)
            printf(" none fits\n");
        else
            printf(" %10s tokens (%s)\n", tdm_format_tokens(row->longest.context, tokens),
                   tdm_format_digits(row->longest.context, digits));
    }
}

static void print_all(const struct tdm_compare_request *r, const struct tdm_methods_comparison *c)
{
    print_head(r, c);
    print_reach(c);
    print_block("peak of a GPU, used", r, c, peak_cell);
    print_given_back(r, c);
    print_block("step, roughly", r, c, seconds_cell);
    print_block("tokens/s of all GPUs", r, c, rate_cell);
    print_block("sent by a GPU, a step", r, c, sent_cell);
    print_block("host memory", r, c, host_cell);
    print_block("moved to and from it", r, c, moved_cell);
    printf(
        "\n-: does not fit. Steps are rough: products, attention and what moves, at the rates above; of\n"
        "tidemark that of its simulated schedule, which counts all operations.\n");
    if (r->gpus > 1)
        printf("tidemark: %" PRIu64
               " GPUs of one computer, which share its host memory; each has all "
               "weights. Its\ncontext is not searched beyond 2M tokens.\n",
               tdm_compared_own_gpus(r, c));
}

/* ---- as JSON ---- */

static json_t *point_json(const struct tdm_compared_point *point)
{
    if (point->context == 0)
        return json_null();
    json_t *object =
        json_pack("{s:I, s:b}", "context", (json_int_t)point->context, "fits", (int)point->fits);
    if (point->used_bytes == 0)
        return object;
    json_t *categories = json_object();
    for (unsigned i = 0; i < TDM_CATEGORIES; i++)
        if (point->categories[i] > 0)
            tdm_json_set(&categories, tdm_category_name((enum tdm_category)i),
                         json_integer((json_int_t)point->categories[i]));
    json_t *more = json_pack(
        "{s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "peak_bytes",
        (json_int_t)point->used_bytes, "enough_bytes", (json_int_t)point->enough_bytes,
        "host_bytes", (json_int_t)point->host_bytes, "categories", categories, "sent_bytes",
        tdm_method_sent_bytes(&point->cost), "exposed_bytes",
        tdm_traffic_bytes(&point->cost.exposed), "host_moved_bytes", point->cost.host_bytes,
        "product_flops", point->cost.product_flops, "attention_flops", point->cost.attention_flops,
        "step_seconds", point->step_seconds, "tokens_per_second", tdm_compared_rate(point));
    tdm_json_merge(&object, more);
    return object;
}

static json_t *row_json(const struct tdm_compare_request *r, const struct tdm_compared *row)
{
    const struct tdm_method_key *key;
    json_t *settings = json_object(), *assumed = json_array(), *points = json_array();
    for (size_t k = 0; (key = tdm_method_key(row->method, k)) != NULL; k++) {
        const char *value = tdm_method_value(row->method, &row->choices, key->name);
        if (value == NULL)
            continue;
        tdm_json_set(&settings, key->name, json_string(value));
        if (row->choices.said[k] == NULL)
            tdm_json_add(&assumed, json_string(key->name));
    }
    for (size_t i = 0; i < r->context_count && row->refused[0] == '\0'; i++)
        tdm_json_add(&points, point_json(&row->points[i]));
    json_t *object =
        json_pack("{s:s, s:o, s:o, s:o, s:o}", "method", row->method->name, "settings", settings,
                  "assumed", assumed, "points", points, "longest", point_json(&row->longest));
    if (row->refused[0] != '\0')
        tdm_json_set(&object, "refused", json_string(row->refused));
    return object;
}

static enum tdm_status print_json(const struct tdm_compare_request *r,
                                  const struct tdm_methods_comparison *c, struct tdm_error *err)
{
    json_t *methods = json_array();
    for (size_t i = 0; i < c->count; i++)
        tdm_json_add(&methods, row_json(r, c->rows[i]));
    return tdm_print_json(
        json_pack("{s:s, s:s, s:b, s:s, s:I, s:I, s:f, s:f, s:I, s:f, s:I, s:I, s:o}", "model",
                  c->model->name, "machine", c->machine->name, "rates_measured",
                  (int)c->machine->measured, "rates_source", c->machine->source, "gpus",
                  (json_int_t)r->gpus, "gpus_per_node", (json_int_t)c->links.gpus_per_node,
                  "peer_bytes_per_second", c->links.node_bytes_per_second,
                  "network_bytes_per_second", c->links.network_bytes_per_second, "batch",
                  (json_int_t)r->batch, "margin", r->margin, "device_bytes",
                  (json_int_t)c->machine->topology.places[TDM_DEVICE].capacity_bytes,
                  "host_memory_bytes", (json_int_t)tdm_machine_far(c->machine)->capacity_bytes,
                  "methods", methods),
        err);
}

/* ---- the picture ---- */

/* The points that fit, by ascending context. */
static void add_dots(const struct tdm_compare_request *r, const struct tdm_compared *row,
                     struct tdm_compare_line *line)
{
    for (size_t i = 0; i <= r->context_count; i++) {
        const struct tdm_compared_point *point =
            i < r->context_count ? &row->points[i] : &row->longest;
        uint64_t last = line->dot_count == 0 ? 0 : line->dots[line->dot_count - 1].context;
        if (point->fits && point->context > last)
            line->dots[line->dot_count++] =
                (struct tdm_compare_dot){point->context, point->used_bytes};
    }
}

static enum tdm_status draw(const struct tdm_compare_request *r,
                            const struct tdm_methods_comparison *c,
                            const struct tdm_picture *picture, struct tdm_error *err)
{
    size_t common = tdm_compared_common(c, r);
    bool any_dot = false;
    struct tdm_compare_plot plot = {.bar_context = r->contexts[common],
                                    .device_bytes =
                                        c->machine->topology.places[TDM_DEVICE].capacity_bytes};
    plot.lines = calloc(c->count + 1, sizeof(*plot.lines));
    if (plot.lines == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu methods", c->count);
    for (size_t m = 0; m < c->count; m++) {
        const struct tdm_compared *row = c->rows[m];
        if (row->refused[0] != '\0')
            continue;
        struct tdm_compare_line *line = &plot.lines[plot.count++];
        line->name = row->method->name;
        line->has_bar = row->points[common].fits;
        memcpy(line->categories, row->points[common].categories, sizeof(line->categories));
        add_dots(r, row, line);
        any_dot |= line->dot_count > 0;
    }
    snprintf(plot.title, sizeof(plot.title), "%s: what a step takes", c->model->name);
    char own[64] = "";
    if (tdm_compared_own_gpus(r, c) < r->gpus)
        snprintf(own, sizeof(own), ", tidemark on %" PRIu64 " of them",
                 tdm_compared_own_gpus(r, c));
    snprintf(plot.subtitle, sizeof(plot.subtitle),
             "%s, %" PRIu64 " GPU%s%s, %" PRIu64 " sequence%s; predicted, with a margin of %g%%",
             c->machine->title, r->gpus, r->gpus == 1 ? "" : "s", own, r->batch,
             r->batch == 1 ? "" : "s", 100 * r->margin);
    enum tdm_status status =
        any_dot ? tdm_compare_plot_draw(&plot, picture, err)
                : tdm_fail(err, TDM_INFEASIBLE, "no method fits: there is nothing to draw");
    free(plot.lines);
    return status;
}

/* ---- run ---- */

static void say_going(void *self, const char *method, uint64_t context)
{
    char text[TDM_FORMAT_SIZE];
    if (context == 0)
        tdm_ticker_say(self, "%s: the longest context", method);
    else
        tdm_ticker_say(self, "%s: %s tokens", method, tdm_format_tokens(context, text));
}

/* Fails if no method can run, or if none fits at any context. */
static enum tdm_status judge(const struct tdm_methods_comparison *c, struct tdm_error *err)
{
    bool any_runs = false, any_fits = false;
    for (size_t i = 0; i < c->count; i++) {
        any_runs |= c->rows[i]->refused[0] == '\0';
        any_fits |= c->rows[i]->longest.fits;
    }
    if (!any_runs)
        return tdm_fail(
            err, TDM_INPUT,
            "compare: no method can run with these settings; each line gives the reason");
    return any_fits ? TDM_OK
                    : tdm_fail(err, TDM_INFEASIBLE,
                               "compare: no method fits, however short the context");
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct arguments a = {
        .request = {.machine = "h200", .batch = 1, .gpus = 1, .margin = TDM_MARGIN},
        .picture = {.width = 1600, .height = 900}};
    struct tdm_methods_comparison comparison = {0};
    struct tdm_ticker ticker;
    bool help;
    enum tdm_status status = parse(argc, argv, &a, &help, err);
    if (status != TDM_OK || help)
        return status;
    a.request.self = &ticker;
    a.request.going = say_going;
    tdm_ticker_begin(&ticker, stderr, "reading the model");
    status = tdm_compare_methods(&a.request, &comparison, err);
    tdm_ticker_end(&ticker);
    if (status == TDM_OK && a.json)
        status = print_json(&a.request, &comparison, err);
    else if (status == TDM_OK)
        print_all(&a.request, &comparison);
    if (status == TDM_OK && a.picture.path != NULL)
        status = draw(&a.request, &comparison, &a.picture, err);
    if (status == TDM_OK)
        status = judge(&comparison, err);
    tdm_methods_comparison_free(&comparison);
    return status;
}

#define PLACE(field) offsetof(struct arguments, field)

static const struct tdm_option options[] = {
    {.as = &tdm_option_context,
     .word = "A..B",
     .place = PLACE(request),
     .read = read_contexts,
     .help = "contexts, doubling from A to B; or a list A,B,C"},
    {.as = &tdm_option_gpus,
     .place = PLACE(request.gpus),
     .help = "GPUs; 1 by default: methods that can run on so many are compared"},
    {.as = &tdm_option_batch,
     .place = PLACE(request.batch),
     .high = MOST_BATCH,
     .help = "sequences of a step, of every GPU where each has its own; 1 by default"},
    {.as = &tdm_option_machine, .place = PLACE(request.machine)},
    {.as = &tdm_option_memory, .place = PLACE(request.memory)},
    {.as = &tdm_option_host_memory, .place = PLACE(request.memory)},
    {.as = &tdm_option_margin, .place = PLACE(request.margin)},
    {.as = &tdm_option_method,
     .place = PLACE(request),
     .read = add_method,
     .repeats = true,
     .help = "this method alone; may be repeated"},
    {.as = &tdm_option_method_optimizer,
     .place = PLACE(request.set),
     .help = "the optimizer of every method that has one of that name: as --set optimizer=NAME"},
    {.as = &tdm_option_method_setting,
     .place = PLACE(request.set),
     .help = "a setting, of every method that takes it; may be repeated, a key only once; "
             "gpus_per_node=N, else as the machine has it, holds for what all of them send"},
    {.as = &tdm_option_output,
     .place = PLACE(picture.path),
     .help = "a picture, .png, .svg or .pdf: categories side by side, peaks by context",
     .details =
         "The categories are what each method holds at the largest context at which all fit, "
         "stacked; beside the peaks is what the device has."},
    {.as = &tdm_option_force, .place = PLACE(picture.force)},
    {.as = &tdm_option_json, .place = PLACE(json)},
    {.name = NULL}};

const struct tdm_command tdm_cmd_compare = {
    .name = "compare",
    .usage = "compare MODEL --context A..B [options]",
    .summary = "methods side by side: peak by context, longest context, bytes sent, rough step",
    .options = options,
    .notes =
        "Peaks are those of predict. Of tidemark they are those of a schedule that is searched for "
        "less long than by plan, whose steps may be 1% shorter, on at most the GPUs of one "
        "computer; its longest "
        "context is one near the longest (plan --objective context may find a tenth more), "
        "and of several GPUs not searched beyond 2M tokens. "
        "Where nothing is said layers are checkpointed; AdamW's states are in bf16, or in "
        "fp32 where the system keeps them so; all else is as predict assumes it. Seconds of "
        "a step are rough, and for ranking: what spans nodes waits for the network. Exit "
        "status 1: none of the methods can run so; 3: none fits. Pictures need gnuplot.\n"
        "\n"
        "Examples:\n"
        "  tidemark compare qwen2.5-7b --context 8K..128K\n"
        "  tidemark compare llama-3.1-8b --context 8K..64K --gpus 8 -o compare.svg\n",
    .arguments = TDM_VALUES_MODELS,
    .refused = tdm_settings_explain,
    .run = run,
};
