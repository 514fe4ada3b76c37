/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark plan`: finds the fastest schedule that fits; prints it as a table or as JSON, and
 * writes it to a file. */
#include "commands/cmd.h"

#include "base/units.h"
#include "ops/kernels.h"
#include "commands/common_options.h"
#include "commands/explain.h"
#include "commands/plan_answer.h"
#include "commands/print.h"
#include "commands/schedule_table.h"
#include "commands/weights_report.h"
#include "planner/recipes.h"
#include "schedule/gather.h"
#include "schedule/optimizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

static void print_plan(const struct tdm_plan_arguments *a, struct tdm_plan_result *result)
{
    struct tdm_objective_found *found = &result->found;
    /* with the schedule on stdout, the table goes to stderr */
    FILE *out = a->output != NULL && strcmp(a->output, "-") == 0 ? stderr : stdout;
    print_answer(out, a, found);
    tdm_weights_line(out, "weights    ", result->weights);
    tdm_schedule_table(out, found->schedule, &found->search.simulation);
    tdm_bound_lines(out, &found->schedule->machine->topology, &found->search);
    if (a->explain)
        tdm_explain(out, found->schedule, &found->search);
    tdm_search_line(out, &found->search.counts);
}

/* `reason`: why nothing fits, if `finished` is TDM_INFEASIBLE. It is overwritten only if printing
 * fails. */
static enum tdm_status print_json(const struct tdm_plan_arguments *a,
                                  const struct tdm_plan_result *result, enum tdm_status finished,
                                  struct tdm_error *reason)
{
    struct tdm_error failure;
    json_t *answer;
    enum tdm_status status = tdm_plan_result_json(a, result, finished, reason, &answer, &failure);
    if (status == TDM_OK)
        status = tdm_print_json(answer, &failure);
    if (status == TDM_OK)
        return finished;
    *reason = failure;
    return status;
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

/* Above this gap, and where it is so many seconds, print that the limited search may be the reason.
 */
#define WIDE_GAP 0.05
#define WIDE_GAP_SECONDS 1e-3

static void note_search(const struct tdm_search *search)
{
    if (search->counts.recipes_alone && search->gap > WIDE_GAP &&
        search->simulation.step_seconds - search->bound_seconds > WIDE_GAP_SECONDS &&
        search->simulation.team.ranks <= 1) /* theirs includes exchanges */
        fprintf(
            stderr,
            "note: what --set fixes leaves only standard nests to choose from; a faster one may exist\n");
}

static enum tdm_status plan(const struct tdm_plan_arguments *a, struct tdm_error *err)
{
    struct tdm_plan_result result = {0};
    struct tdm_objective_found *found = &result.found;
    enum tdm_status status = tdm_plan_search(a, stderr, found, err);
    if (found->schedule != NULL)
        tdm_warn_machine(a->request.machine != NULL ? a->request.machine : a->request.like_path,
                         found->schedule->machine);
    if (status == TDM_OK) {
        note_selection(a, found->schedule);
        note_kernels(found->search.simulation.kinds);
        if (a->request.preset ==
            NULL) /* a preset fixes the other system's choices, so the note would not help */
            note_search(&found->search);
    }
    status = tdm_plan_finish(a, status, stderr, &result, err);
    if (a->json && (status == TDM_OK || status == TDM_INFEASIBLE))
        status = print_json(a, &result, status, err);
    else if (status == TDM_OK)
        print_plan(a, &result);
    tdm_plan_result_free(&result);
    return status;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct tdm_plan_arguments arguments = tdm_plan_defaults;
    bool help;
    enum tdm_status status = tdm_plan_arguments_read(argc, argv, &arguments, &help, err);
    if (status == TDM_OK && !help) {
        const struct tdm_sweep_report report = {
            .json = arguments.json, .picture = arguments.output, .force = arguments.force};
        status = arguments.sweeps
                     ? tdm_sweep_report(&arguments.request, &arguments.sweep,
                                        arguments.lines.count > 0 ? &arguments.lines : NULL,
                                        &report, err)
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
             "  tidemark plan qwen2.5-7b --context 32K --sweep memory=6G..139G "
             "--sweep host-memory=48G,64G,110G -o frontier.png\n"
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
