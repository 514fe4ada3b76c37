/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark plan`: finds the fastest schedule that fits; prints it as a table or as JSON, and
 * writes it to a file. */
#include "commands/cmd.h"

#include "base/file.h"
#include "base/json.h"
#include "base/ticker.h"
#include "base/units.h"
#include "ops/kernels.h"
#include "commands/common_options.h"
#include "commands/explain.h"
#include "commands/plan_arguments.h"
#include "commands/prediction.h"
#include "commands/print.h"
#include "commands/schedule_table.h"
#include "planner/shortage.h"
#include "commands/weights_report.h"
#include "planner/recipes.h"
#include "schedule/gather.h"
#include "schedule/optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Consumes the reference to `predicted`. NULL: out of memory when it was made. */
static enum tdm_status write_schedule(const struct tdm_plan_arguments *a,
                                      const struct tdm_schedule *schedule, json_t *predicted,
                                      struct tdm_error *err)
{
    json_t *root;
    if (predicted == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the schedule's JSON");
    enum tdm_status status = tdm_schedule_to_json(schedule, predicted, &root, err);
    json_decref(predicted);
    if (status != TDM_OK)
        return status;
    char *text = tdm_json_dump(root, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    json_decref(root);
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the schedule's JSON");
    size_t length = strlen(text);
    text[length] = '\n'; /* replaces the terminating zero */
    status = tdm_file_write(a->output, text, length + 1, a->force, err);
    free(text);
    return status;
}

static enum tdm_status print_json(const struct tdm_plan_arguments *a,
                                  const struct tdm_objective_found *found,
                                  const struct tdm_weights *weights, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = found->schedule;
    json_t *schedule_json;
    enum tdm_status status = tdm_schedule_to_json(schedule, NULL, &schedule_json, err);
    if (status != TDM_OK)
        return status;
    json_t *root = tdm_prediction_json(schedule, &found->search.simulation);
    tdm_json_set(&root, "fits", json_true());
    tdm_json_set(&root, "objective", json_string(tdm_objective_name(a->objective)));
    tdm_json_set(&root, "context", json_integer((json_int_t)schedule->sequences[0].tokens));
    tdm_json_set(&root, "memory_bytes", json_integer((json_int_t)schedule->memory_bytes));
    tdm_json_set(&root, "host_memory_bytes", json_integer((json_int_t)schedule->host_memory_bytes));
    tdm_json_set(&root, "margin", json_real(a->request.has_memory ? 0 : a->request.margin));
    tdm_bound_json(&root, &found->search);
    tdm_json_set(&root, "search", tdm_search_counts_json(&found->search.counts));
    tdm_json_set(&root, "weights", tdm_weights_json(weights));
    tdm_json_set(&root, "schedule", schedule_json);
    return tdm_print_json(root, err);
}

static json_t *count_or_null(uint64_t count)
{
    return count == 0 ? json_null() : json_integer((json_int_t)count);
}

/* The kinds of state that are enough if they move to the host. */
static json_t *streamed_json(const struct tdm_shortage *shortage)
{
    json_t *list = json_array();
    for (int state = 0; state < TDM_STATES; state++)
        if (shortage->streamed[state])
            tdm_json_add(&list, json_string(tdm_state_name((enum tdm_state)state)));
    return list;
}

static enum tdm_status print_shortage_json(const struct tdm_shortage *shortage,
                                           const struct tdm_topology *topology,
                                           const struct tdm_search *search,
                                           const struct tdm_error *reason, struct tdm_error *err)
{
    enum tdm_place far = topology->far;
    return tdm_print_json(
        json_pack("{s:b, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "fits",
                  0, "message", reason->message, "hint", reason->hint, "binding",
                  tdm_binding_name(shortage->binding), "memory_bytes",
                  json_integer((json_int_t)shortage->limit_bytes[TDM_DEVICE]), "host_memory_bytes",
                  json_integer((json_int_t)shortage->limit_bytes[far]), "needed_memory_bytes",
                  count_or_null(shortage->needed_bytes[TDM_DEVICE]), "missing_bytes",
                  count_or_null(tdm_shortage_missing(shortage, TDM_DEVICE)),
                  "needed_host_memory_bytes", count_or_null(shortage->needed_bytes[far]),
                  "missing_host_bytes", count_or_null(tdm_shortage_missing(shortage, far)),
                  "longest_context", count_or_null(shortage->longest_context),
                  "needed_memory_without_optimizer_bytes",
                  count_or_null(shortage->without_optimizer_bytes), "enough_on_host",
                  streamed_json(shortage), "search", tdm_search_counts_json(&search->counts)),
        err);
}

/* Prints the reason in `err` as JSON. `err` changes only if printing fails. */
static enum tdm_status print_refusal(struct tdm_error *err)
{
    enum tdm_status printed = tdm_print_json(
        json_pack("{s:b, s:s, s:s}", "fits", 0, "message", err->message, "hint", err->hint), err);
    return printed == TDM_OK ? TDM_INFEASIBLE : printed;
}

/* Explains what memory is missing. Returns TDM_INFEASIBLE unless another error occurs. */
static enum tdm_status explain_shortage(const struct tdm_plan_arguments *a,
                                        struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                        const struct tdm_search *search, struct tdm_error *err)
{
    struct tdm_shortage shortage;
    struct tdm_error reason = {0};
    struct tdm_ticker ticker;
    tdm_ticker_begin(&ticker, stderr, "looking for what would fit");
    enum tdm_status status = tdm_shortage_find(schedule, pins, &shortage, err);
    tdm_ticker_end(&ticker);
    if (status != TDM_OK)
        return status;
    tdm_shortage_fail(&shortage, schedule, &reason);
    if (a->json)
        status = print_shortage_json(&shortage, &schedule->machine->topology, search, &reason, err);
    if (status != TDM_OK)
        return status;
    *err = reason;
    return TDM_INFEASIBLE;
}

static void say_context(void *self, uint64_t size, bool good)
{
    char tokens[TDM_FORMAT_SIZE];
    tdm_ticker_say(self, "%s tokens: %s", tdm_format_tokens(size, tokens),
                   good ? "yes" : "too many");
}

static void say_memory(void *self, uint64_t size, bool good)
{
    char bytes[TDM_FORMAT_SIZE];
    tdm_ticker_say(self, "%s: %s", tdm_format_bytes(size, bytes), good ? "yes" : "too little");
}

static void say_budget(void *self, uint64_t size, bool good)
{
    char tokens[TDM_FORMAT_SIZE];
    tdm_ticker_say(self, "budget of %s tokens: %s", tdm_format_tokens(size, tokens),
                   good ? "yes" : "too slow or too large");
}

static enum tdm_status find(const struct tdm_plan_arguments *a, struct tdm_objective_found *found,
                            struct tdm_error *err)
{
    struct tdm_ticker ticker;
    struct tdm_objective_options options = {.most_seconds = a->step_seconds, .self = &ticker};
    enum tdm_status status;
    tdm_ticker_begin(&ticker, stderr, "looking for the fastest schedule that fits");
    switch (a->objective) {
    case TDM_OBJECTIVE_CONTEXT:
        options.tried = say_context;
        status = tdm_objective_context(&a->request, &options, found, err);
        break;
    case TDM_OBJECTIVE_MEMORY:
        options.tried = say_memory;
        status = tdm_objective_memory(&a->request, &options, found, err);
        break;
    default:
        options.tried = say_budget;
        status = a->request.budget == TDM_BUDGET_AUTO
                     ? tdm_objective_budget(&a->request, &options, found, err)
                     : tdm_objective_time(&a->request, TDM_EFFORT_FULL, found, err);
    }
    tdm_ticker_end(&ticker);
    return status;
}

static void print_answer(FILE *out, const struct tdm_plan_arguments *a,
                         const struct tdm_objective_found *found)
{
    char text[TDM_FORMAT_SIZE], digits[TDM_DIGITS_SIZE];
    uint64_t tokens = found->schedule->sequences[0].tokens;
    uint64_t bytes = found->schedule->memory_bytes;
    if (a->objective == TDM_OBJECTIVE_CONTEXT)
        fprintf(out, "longest context    %s tokens (%s)", tdm_format_tokens(tokens, text),
                tdm_format_digits(tokens, digits));
    else if (a->objective == TDM_OBJECTIVE_MEMORY)
        fprintf(out, "least memory       %s (--memory %" PRIu64 "M)", tdm_format_bytes(bytes, text),
                bytes >> 20);
    else if (a->request.budget == TDM_BUDGET_AUTO &&
             found->schedule->selector.kind == TDM_SELECT_DENSE)
        fprintf(out, "largest budget     dense");
    else if (a->request.budget == TDM_BUDGET_AUTO)
        fprintf(out, "largest budget     %s tokens (--budget %" PRIu64 ")",
                tdm_format_tokens(found->schedule->selector.budget, text),
                found->schedule->selector.budget);
    else
        return;
    if (a->step_seconds > 0)
        fprintf(out, " with steps of at most %s", tdm_format_seconds(a->step_seconds, text));
    if (found->proved_bytes > 0)
        fprintf(out, "\n                   no schedule of the kinds searched takes less than %s",
                tdm_format_bytes(found->proved_bytes, text));
    fprintf(out, "\n\n");
}

static enum tdm_status print_plan(const struct tdm_plan_arguments *a,
                                  struct tdm_objective_found *found,
                                  const struct tdm_weights *weights, struct tdm_error *err)
{
    if (a->json)
        return print_json(a, found, weights, err);
    /* with the schedule on stdout, the table goes to stderr */
    FILE *out = a->output != NULL && strcmp(a->output, "-") == 0 ? stderr : stdout;
    print_answer(out, a, found);
    tdm_weights_line(out, "weights    ", weights);
    tdm_schedule_table(out, found->schedule, &found->search.simulation);
    tdm_bound_lines(out, &found->schedule->machine->topology, &found->search);
    if (a->explain)
        tdm_explain(out, found->schedule, &found->search);
    tdm_search_line(out, &found->search.counts);
    return TDM_OK;
}

/* rings.gather is an expert setting. Tell the user if it has no effect. */
static void note_gather(const struct tdm_schedule *schedule)
{
    if (schedule->rings.gather > 0 && !tdm_gathers_at_all(schedule))
        fprintf(stderr,
                "note: no layer gathers pages, so rings.gather changes nothing: page lists, order "
                "chunk-major, K and V on the host and more than one chunk are needed\n");
}

/* True if the model gives every layer a window. A selector does not change such layers. */
static bool has_windows_alone(const struct tdm_model *model)
{
    uint32_t layer = 0;
    while (layer < model->layers && model->layer_kinds[layer].window > 0)
        layer++;
    return layer == model->layers;
}

static void note_budget(const struct tdm_schedule *schedule)
{
    uint64_t longest = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        for (uint32_t d = 0; d < schedule->sequences[s].document_count; d++) {
            uint64_t end = tdm_document_end(&schedule->sequences[s], d);
            uint64_t start = tdm_document_start(&schedule->sequences[s], d);
            uint64_t chunk = (end - 1) / schedule->chunk_tokens * schedule->chunk_tokens;
            if (chunk > start && chunk - start > longest)
                longest = chunk - start; /* tokens of the document before its last chunk */
        }
    if (schedule->selector.kind == TDM_SELECT_DENSE || longest <= schedule->selector.budget)
        fprintf(stderr,
                "note: the budget covers all that lies before a chunk: attention is dense\n");
}

static void note_selection(const struct tdm_plan_arguments *a, const struct tdm_schedule *schedule)
{
    bool budget = a->request.budget == TDM_BUDGET_TOKENS;
    if ((budget || schedule->selector.kind != TDM_SELECT_DENSE) &&
        has_windows_alone(schedule->model))
        fprintf(stderr, "note: all layers of %s have a window: the %s changes nothing\n",
                schedule->model->name, budget ? "budget" : "selector");
    else if (budget)
        note_budget(schedule);
    note_gather(schedule);
}

/* A backend refuses a schedule that it cannot run only when the run starts. Warn when planning. */
static void note_kernels(tdm_kinds kinds)
{
    char line[TDM_LACKS_TEXT];
    for (const struct tdm_kernels *kernels = tdm_kernels; kernels->backend != NULL; kernels++)
        if (tdm_kernels_lack(kernels, kinds, line))
            fprintf(stderr, "note: %s: it will refuse this schedule\n", line);
}

/* Above this gap, print that the limited search may be the reason. */
#define WIDE_GAP 0.05

static void note_search(const struct tdm_search *search)
{
    if (search->counts.recipes_alone && search->gap > WIDE_GAP)
        fprintf(
            stderr,
            "note: what --set fixes leaves only standard nests to choose from; a faster one may exist\n");
}

static enum tdm_status plan(const struct tdm_plan_arguments *a, struct tdm_error *err)
{
    struct tdm_objective_found found = {0};
    struct tdm_weights *weights = NULL;
    enum tdm_status status = find(a, &found, err);
    if (found.schedule != NULL)
        tdm_warn_machine(a->request.machine != NULL ? a->request.machine : a->request.like_path,
                         found.schedule->machine);
    if (status == TDM_OK) {
        note_selection(a, found.schedule);
        note_kernels(found.search.simulation.kinds);
        if (a->request.preset ==
            NULL) /* a preset fixes the other system's choices, so the note would not help */
            note_search(&found.search);
    }
    if (status == TDM_INFEASIBLE && found.schedule != NULL && found.schedule->ranks == 1 &&
        tdm_search_space_check(found.schedule, &found.pins, err) == TDM_OK)
        status = explain_shortage(a, found.schedule, &found.pins, &found.search, err);
    else if (status == TDM_INFEASIBLE && a->json) /* fits in memory, but not in the time limit */
        status = print_refusal(err);
    if (status == TDM_OK && a->request.model != NULL)
        status = tdm_weights_beside(a->request.model, found.schedule->model, &weights, err);
    if (status == TDM_OK && a->output != NULL)
        status = write_schedule(a, found.schedule,
                                tdm_prediction_json(found.schedule, &found.search.simulation), err);
    if (status == TDM_OK)
        status = print_plan(a, &found, weights, err);
    tdm_weights_close(weights);
    tdm_pins_free(&found.pins);
    tdm_schedule_free(found.schedule);
    return status;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct tdm_plan_arguments arguments = {
        .request = {.sequences = 1, .margin = TDM_MARGIN, .optimizer = TDM_OPTIMIZER_ADAMW}};
    bool help;
    enum tdm_status status = tdm_plan_arguments_read(argc, argv, &arguments, &help, err);
    if (status == TDM_OK && !help) {
        const struct tdm_sweep_report report = {
            .json = arguments.json, .picture = arguments.output, .force = arguments.force};
        status = arguments.sweeps
                     ? tdm_sweep_report(&arguments.request, &arguments.sweep, &report, err)
                     : plan(&arguments, err);
    }
    tdm_schedule_free(arguments.training);
    return status;
}

const struct tdm_command tdm_cmd_plan = {
    .name = "plan",
    .usage = "plan MODEL --context N [options]",
    .summary = "find the fastest schedule of a training step that fits the memory",
    .options = tdm_plan_options,
    .lists = tdm_plan_lists,
    .notes = "MODEL is a shipped name, a config.json of Hugging Face, or a directory that holds "
             "one. Weights (safetensors) in that directory are checked against it; only their "
             "headers are read. Sizes are 1024-based: 80G and 80GiB are the same; so are tokens: "
             "256K is 262,144. When nothing fits, the exit status is 3, and what would help is "
             "said with numbers.\n"
             "\n"
             "Examples:\n"
             "  tidemark plan qwen2.5-7b --context 256K\n"
             "  tidemark plan qwen2.5-7b --sweep context=8K..4M -o sweep.png\n"
             "  tidemark plan qwen2.5-7b --objective context --memory 80G --step-time 60\n"
             "  tidemark plan qwen2.5-7b --context 256K --memory 100G --host-memory 20G -o "
             "plan.json\n"
             "  tidemark plan --pass evaluate --like plan.json --context 64K -o evaluate.json\n"
             "  tidemark plan byte-1m --context 2048 --machine local --set chunk=256 --set "
             "groups=2\n",
    .arguments = TDM_VALUES_MODELS,
    .refused = tdm_training_explain,
    .run = run,
};
