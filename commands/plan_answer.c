/* SPDX-License-Identifier: Apache-2.0 */
/* The answer of `tidemark plan`: the search, what is short if nothing fits, and both as JSON. */
#include "commands/plan_answer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/answers.h"
#include "commands/prediction.h"
#include "commands/weights_report.h"
#include "planner/recipes.h"

#include <stdlib.h>
#include <string.h>

/* ---- the search ---- */

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

enum tdm_status tdm_plan_search(const struct tdm_plan_arguments *a, FILE *progress,
                                struct tdm_objective_found *found, struct tdm_error *err)
{
    struct tdm_ticker ticker;
    struct tdm_objective_options options = {.most_seconds = a->step_seconds, .self = &ticker};
    enum tdm_status status;
    tdm_ticker_begin(&ticker, progress, "looking for the fastest schedule that fits");
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

/* What memory is missing. Returns TDM_INFEASIBLE unless another error occurs. */
static enum tdm_status find_shortage(struct tdm_plan_result *result, FILE *progress,
                                     struct tdm_error *err)
{
    struct tdm_objective_found *found = &result->found;
    struct tdm_ticker ticker;
    tdm_ticker_begin(&ticker, progress, "looking for what would fit");
    enum tdm_status status =
        tdm_shortage_find(found->schedule, &found->pins, false, &result->shortage, err);
    if (status == TDM_OK)
        status = tdm_shortage_prove(found->schedule, &found->pins, &result->shortage, err);
    tdm_ticker_end(&ticker);
    result->has_shortage = status == TDM_OK;
    return status == TDM_OK ? tdm_shortage_fail(&result->shortage, found->schedule, err) : status;
}

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

enum tdm_status tdm_plan_finish(const struct tdm_plan_arguments *a, enum tdm_status searched,
                                FILE *progress, struct tdm_plan_result *result,
                                struct tdm_error *err)
{
    struct tdm_objective_found *found = &result->found;
    enum tdm_status status = searched;
    if (status == TDM_INFEASIBLE && found->schedule != NULL &&
        tdm_search_space_check(found->schedule, &found->pins, err) == TDM_OK)
        return find_shortage(result, progress, err);
    if (status == TDM_OK && a->request.model != NULL)
        status =
            tdm_weights_beside(a->request.model, found->schedule->model, &result->weights, err);
    if (status == TDM_OK && a->output != NULL)
        status =
            write_schedule(a, found->schedule,
                           tdm_prediction_json(found->schedule, &found->search.simulation), err);
    return status;
}

void tdm_plan_result_free(struct tdm_plan_result *result)
{
    tdm_weights_close(result->weights);
    tdm_pins_free(&result->found.pins);
    tdm_schedule_free(result->found.schedule);
}

/* ---- as JSON ---- */

static enum tdm_status plan_json(const struct tdm_plan_arguments *a,
                                 const struct tdm_plan_result *result, json_t **answer,
                                 struct tdm_error *err)
{
    const struct tdm_objective_found *found = &result->found;
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
    tdm_json_set(&root, "weights", tdm_weights_json(result->weights));
    tdm_json_set(&root, "schedule", schedule_json);
    *answer = root;
    return TDM_OK;
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

static json_t *shortage_json(const struct tdm_plan_result *result, const struct tdm_error *reason)
{
    const struct tdm_shortage *shortage = &result->shortage;
    enum tdm_place far = result->found.schedule->machine->topology.far;
    return json_pack(
        "{s:b, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "fits", 0,
        "message", reason->message, "hint", reason->hint, "binding",
        tdm_binding_name(shortage->binding), "memory_bytes",
        json_integer((json_int_t)shortage->limit_bytes[TDM_DEVICE]), "host_memory_bytes",
        json_integer((json_int_t)shortage->limit_bytes[far]), "needed_memory_bytes",
        count_or_null(shortage->needed_bytes[TDM_DEVICE]), "missing_bytes",
        count_or_null(tdm_shortage_missing(shortage, TDM_DEVICE)), "needed_host_memory_bytes",
        count_or_null(shortage->needed_bytes[far]), "missing_host_bytes",
        count_or_null(tdm_shortage_missing(shortage, far)), "longest_context",
        count_or_null(shortage->longest_context), "needed_memory_without_optimizer_bytes",
        count_or_null(shortage->without_optimizer_bytes), "enough_on_host", streamed_json(shortage),
        "search", tdm_search_counts_json(&result->found.search.counts));
}

enum tdm_status tdm_plan_result_json(const struct tdm_plan_arguments *a,
                                     const struct tdm_plan_result *result, enum tdm_status finished,
                                     const struct tdm_error *reason, json_t **answer,
                                     struct tdm_error *err)
{
    if (finished == TDM_OK)
        return plan_json(a, result, answer, err);
    *answer = result->has_shortage ? shortage_json(result, reason)
                                   : json_pack("{s:b, s:s, s:s}", "fits", 0, "message",
                                               reason->message, "hint", reason->hint);
    return TDM_OK;
}

static enum tdm_status answer_quietly(const struct tdm_plan_arguments *a, json_t **answer,
                                      struct tdm_error *err)
{
    struct tdm_plan_result result = {0};
    struct tdm_error failure;
    if (a->sweeps)
        return tdm_fail(err, TDM_USAGE, "plan: --sweep has no answer of this form");
    enum tdm_status status = tdm_plan_search(a, NULL, &result.found, err);
    status = tdm_plan_finish(a, status, NULL, &result, err);
    if (status == TDM_OK || status == TDM_INFEASIBLE) {
        enum tdm_status made = tdm_plan_result_json(a, &result, status, err, answer, &failure);
        if (made != TDM_OK) {
            status = made;
            *err = failure;
        }
    }
    tdm_plan_result_free(&result);
    return status;
}

enum tdm_status tdm_plan_answer(int argc, char **argv, json_t **answer, struct tdm_error *err)
{
    struct tdm_plan_arguments arguments = tdm_plan_defaults;
    arguments.json = true;
    enum tdm_status status = tdm_plan_arguments_read(argc, argv, &arguments, NULL, err);
    if (status == TDM_OK)
        status = answer_quietly(&arguments, answer, err);
    tdm_schedule_free(arguments.training);
    return status;
}
