/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark predict`: predicts the memory of another system in that system's own terms: allocated,
 * reserved, used. */
#include "commands/cmd.h"

#include "base/size.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/common_options.h"
#include "commands/from_shape.h"
#include "methods/longest.h"
#include "models/model.h"
#include "planner/margin.h"
#include "commands/answers.h"
#include "commands/model_inputs.h"
#include "commands/own_method.h"
#include "commands/predict_parts.h"
#include "commands/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BATCH 65536u
/* Work limit of a refusal, about 0.1 s. The hint may use the rest of it, or half of the work done
 * before the hint if that is more, up to a limit of its own. */
#define REFUSAL_WORK 1000000u
#define HINT_WORK 2000000u

static bool draws(const struct tdm_predict_request *r)
{
    return r->timeline.path != NULL && strcmp(r->timeline.path, "-") != 0;
}

static enum tdm_status check_timeline(const struct tdm_predict_request *r, struct tdm_error *err)
{
    if (r->timeline.path == NULL)
        return TDM_OK;
    if (draws(r))
        return tdm_picture_check(&r->timeline, err);
    return r->as_json ? TDM_OK : tdm_fail(err, TDM_USAGE, "predict: -o - goes with --json alone");
}

static uint64_t first_said(uint64_t command_line, uint64_t files, uint64_t otherwise)
{
    return command_line != 0 ? command_line : files != 0 ? files : otherwise;
}

static bool serves(const struct tdm_predict_request *r)
{
    return strcmp(r->mode, "serve") == 0;
}

/* Settles mode and method: each mode has its own methods. */
static enum tdm_status check_mode(struct tdm_predict_request *r, struct tdm_error *err)
{
    const struct tdm_method *server = r->method == NULL ? NULL : tdm_serving_find(r->method);
    if (r->mode == NULL)
        r->mode = server != NULL ? "serve" : "train";
    if (!serves(r) && strcmp(r->mode, "train") != 0)
        return tdm_fail(err, TDM_USAGE,
                        "predict: --mode: \"%.64s\" is not known; expected train "
                        "or serve",
                        r->mode);
    if (serves(r) && r->method != NULL && server == NULL)
        return tdm_fail(err, TDM_USAGE,
                        "predict: --mode serve knows the methods vllm and sglang; leave out "
                        "--method for vllm");
    if (!serves(r) && server != NULL)
        return tdm_fail(err, TDM_USAGE, "predict: the method %s serves; leave out --mode train",
                        server->name);
    if (r->method == NULL)
        r->method = serves(r) ? tdm_serving_method.name : "torch";
    return TDM_OK;
}

/* What the files of --from say, where the command line says nothing. */
static enum tdm_status read_files(struct tdm_predict_request *r, struct tdm_error *err)
{
    const struct tdm_from *from = &r->from;
    enum tdm_status status = TDM_OK;
    if (from->count > 0) {
        tdm_from_take_changes(&r->from, &r->set);
        status = tdm_from_read(&r->from, r->gpus, err);
        tdm_from_return_changes(from, &r->set);
    }
    if (r->model == NULL)
        r->model = from->model;
    if (r->method == NULL)
        r->method = from->method;
    r->batch = first_said(r->batch, from->batch, 1);
    r->context = first_said(r->context, from->context, 0);
    r->nodes = first_said(r->nodes, from->nodes, 1);
    r->gpus = first_said(r->gpus, from->gpus, r->nodes);
    return status;
}

/* GPUs are divided evenly among the nodes. */
static enum tdm_status check_nodes(const struct tdm_predict_request *r, struct tdm_error *err)
{
    if (r->gpus % r->nodes == 0)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "predict: --nodes: %" PRIu64 " GPUs are not divided by %" PRIu64 " nodes", r->gpus,
             r->nodes);
    return tdm_hint(err, "--gpus is the number of GPUs of all nodes together");
}

/* A model is named, or a file describes one. */
static enum tdm_status check_named(const struct tdm_predict_request *r, struct tdm_error *err)
{
    if (r->model != NULL || tdm_from_has_shape(&r->from))
        return TDM_OK;
    if (r->from.unnamed == NULL)
        return tdm_fail(err, TDM_USAGE, "predict: no model is named");
    tdm_fail(err, TDM_INPUT, "%s", r->from.unnamed);
    return tdm_hint(err, "mend the file, or name a MODEL beside it");
}

static enum tdm_status parse(int argc, char **argv, struct tdm_predict_request *r, bool *help,
                             struct tdm_error *err)
{
    int first;
    enum tdm_status status = tdm_options_read(&tdm_cmd_predict, argc, argv, r, &first, help, err);
    if (status != TDM_OK || (help != NULL && *help))
        return status;
    if (argc - first > 1)
        return tdm_fail(err, TDM_USAGE, "predict: takes one model only");
    r->model = argc > first ? argv[first] : NULL;
    status = read_files(r, err);
    if (status == TDM_OK)
        status = check_nodes(r, err);
    if (status != TDM_OK)
        return status;
    status = check_mode(r, err);
    if (status != TDM_OK)
        return status;
    status = check_named(r, err);
    if (status != TDM_OK)
        return status;
    if (r->context == 0 && !serves(r))
        return tdm_fail(err, TDM_USAGE, "predict: --context is missing");
    status = tdm_model_inputs_spare(r->model, r->machine, "predict: -o", r->timeline.path, err);
    return status == TDM_OK ? check_timeline(r, err) : status;
}

/* Writes where the step fails, if it does. */
static void say_failure(const struct tdm_predict_answer *a, char *out, size_t out_bytes)
{
    const struct tdm_method_failure *failure = &a->prediction.failure;
    uint64_t weights = tdm_size_add(a->prediction.parameters_bytes,
                                    tdm_torch_runtime_bytes(&a->prediction.runtime));
    if (failure->lacks != NULL)
        snprintf(out, out_bytes, " (step %" PRIu32 " has too few %s in the %s)", failure->step,
                 failure->lacks, tdm_torch_phase_name(failure->phase));
    else if (failure->unmade && weights > a->machine->topology.places[TDM_DEVICE].capacity_bytes)
        snprintf(out, out_bytes, " (there is no room for the model itself)");
    else if (failure->unmade) /* gradient buffers, or pages for all K and V */
        snprintf(out, out_bytes, " (there is no room for what is made before the first step)");
    else
        snprintf(out, out_bytes, " (step %" PRIu32 " runs out of memory in the %s)", failure->step,
                 tdm_torch_phase_name(failure->phase));
}

static uint64_t hint_work(uint64_t spent)
{
    uint64_t left = spent < REFUSAL_WORK ? REFUSAL_WORK - spent : 0;
    const uint64_t half = spent / 2 < HINT_WORK ? spent / 2 : HINT_WORK;
    return left > half ? left : half;
}

/* For a prediction that does not fit: prints what would make it fit and returns TDM_INFEASIBLE. */
static enum tdm_status refuse(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                              struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    char need[TDM_PREDICT_TEXT], failure[128] = "", hint[TDM_REMEDY_TEXT];
    const uint64_t most_work = r->verbose ? 0 : hint_work(p->work + a->longest_work);
    enum tdm_status status =
        tdm_method_remedies(a->method, a->model, a->machine, &a->settings, &a->choices, r->margin,
                            p, a->longest_tokens, most_work, &a->remedies, err);
    if (status != TDM_OK)
        return status;
    if (!p->runs)
        say_failure(a, failure, sizeof(failure));
    tdm_fail(err, TDM_INFEASIBLE, "%s: %s%s",
             p->failure.lacks != NULL ? "does not run" : "does not fit",
             tdm_predict_need_text(r, a, need), failure);
    tdm_remedies_text(&a->remedies, hint);
    return tdm_hint(err, "%s%s", hint, a->remedies.complete ? "" : "; --verbose looks further");
}

/* --nodes says gpus_per_node to methods that have that key. */
static enum tdm_status say_nodes(struct tdm_predict_request *r, const struct tdm_method *method,
                                 struct tdm_error *err)
{
    size_t key;
    const char *value;
    snprintf(r->node_pair, sizeof(r->node_pair), "gpus_per_node=%" PRIu64, r->gpus / r->nodes);
    return r->nodes > 1 && tdm_method_read_pair(method, r->node_pair, &key, &value)
               ? tdm_settings_add(&r->set, r->node_pair, err)
               : TDM_OK;
}

/* MODEL, or the one whose sizes a file says. */
static enum tdm_status load_model(struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                  struct tdm_error *err)
{
    if (r->model == NULL && tdm_method_is_own(a->method))
        return tdm_fail(err, TDM_USAGE, "predict: --method tidemark needs MODEL, a name or a file");
    if (r->model == NULL)
        return tdm_from_make_model(&r->from, &a->model, err);
    enum tdm_status status = tdm_model_load(r->model, &a->model, err);
    return status == TDM_OK ? tdm_from_compare(&r->from, a->model, err) : status;
}

/* A server takes the model's own length where none is said. */
static enum tdm_status take_length(struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                   struct tdm_error *err)
{
    enum tdm_status status = load_model(r, a, err);
    if (status != TDM_OK)
        return status;
    r->context = a->model->max_context;
    return r->context > 0
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE, "predict: --context is missing, and %s does not say one",
                          a->model->name);
}

static enum tdm_status load(struct tdm_predict_request *r, struct tdm_predict_answer *a,
                            struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    a->method = tdm_serving_find(r->method);
    if (a->method == NULL)
        status = tdm_method_find(r->method, &a->method, err);
    if (status == TDM_OK)
        status = say_nodes(r, a->method, err);
    if (status == TDM_OK && r->context == 0)
        status = take_length(r, a, err);
    if (status == TDM_OK)
        status = tdm_from_apply(&r->from, a->method, &r->set, err);
    a->settings.torch.tokens = r->context;
    a->settings.torch.batch = r->batch;
    a->settings.torch.ranks = r->gpus;
    a->settings.torch.gpus_of_a_node = r->nodes > 1 ? r->gpus / r->nodes : 0;
    if (status == TDM_OK)
        status =
            tdm_method_apply(a->method, r->set.pairs, r->set.count, &a->settings, &a->choices, err);
    if (status != TDM_OK)
        return tdm_from_blame(&r->from, a->method, &r->set, err);
    if (a->model == NULL)
        status = load_model(r, a, err);
    if (status == TDM_OK && tdm_method_check(a->model, &a->settings, err) != TDM_OK)
        return tdm_from_blame(&r->from, a->method, &r->set, err);
    if (status == TDM_OK)
        status = tdm_machine_load(r->machine, &a->machine, err);
    if (status == TDM_OK)
        status = tdm_machine_give_memory(a->machine, &r->memory, err);
    return status;
}

/* ---- tidemark's own schedule ---- */

/* The device's memory, and the margin kept of it: none of an amount that --set memory gives. */
struct own_device {
    uint64_t bytes;
    double margin;
};

static struct own_device own_device(const struct tdm_predict_request *r,
                                    const struct tdm_predict_answer *a, uint64_t limit_bytes)
{
    const char *set = tdm_method_value(a->method, &a->choices, "memory");
    if (set != NULL && strcmp(set, "all") != 0)
        return (struct own_device){.bytes = limit_bytes};
    return (struct own_device){.bytes = a->machine->topology.places[TDM_DEVICE].capacity_bytes,
                               .margin = r->margin};
}

static const char *own_verdict(const struct tdm_predict_request *r,
                               const struct tdm_predict_answer *a, const struct tdm_own_step *step,
                               char out[TDM_PREDICT_TEXT])
{
    char used[TDM_FORMAT_SIZE], has[TDM_FORMAT_SIZE], host[2][TDM_FORMAT_SIZE];
    struct own_device device = own_device(r, a, step->device_limit_bytes);
    int length =
        snprintf(out, TDM_PREDICT_TEXT, "needs %s of %s, and %s of %s of host memory: fits",
                 tdm_format_bytes(step->used_bytes, used), tdm_format_bytes(device.bytes, has),
                 tdm_format_bytes(step->host_bytes, host[0]),
                 tdm_format_bytes(step->host_limit_bytes, host[1]));
    if (device.margin > 0)
        snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length, " with a margin of %g%%",
                 100 * device.margin);
    return out;
}

/* "needs 16.50 GiB of 8 GiB" */
static const char *own_need(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                            const struct tdm_own_miss *miss, char out[TDM_PREDICT_TEXT])
{
    char need[2][TDM_FORMAT_SIZE], has[2][TDM_FORMAT_SIZE], margin[48] = "";
    struct own_device device = own_device(r, a, miss->device_bytes);
    bool both = strcmp(miss->binding, "both") == 0;
    tdm_format_bytes(miss->needed_device_bytes, need[0]);
    tdm_format_bytes(miss->needed_host_bytes, need[1]);
    tdm_format_bytes(device.bytes, has[0]);
    tdm_format_bytes(miss->host_bytes, has[1]);
    if (miss->needed_device_bytes <= device.bytes && device.margin > 0)
        snprintf(margin, sizeof(margin), " and a margin of %g%%", 100 * device.margin);
    int length = 0;
    if (miss->needed_device_bytes > 0)
        length = snprintf(out, TDM_PREDICT_TEXT, "needs %s%s of %s", need[0], margin, has[0]);
    if (miss->needed_host_bytes > 0)
        length +=
            snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length, "%s%s of %s of host memory",
                     length == 0 ? "needs "
                     : both      ? ", and "
                                 : ", or ",
                     need[1], has[1]);
    if (length == 0)
        snprintf(out, TDM_PREDICT_TEXT, "needs more than %s and %s of host memory", has[0], has[1]);
    return out;
}

static const char *own_refusal(const struct tdm_predict_request *r,
                               const struct tdm_predict_answer *a, const struct tdm_own_miss *miss,
                               char out[TDM_PREDICT_TEXT])
{
    char tokens[TDM_FORMAT_SIZE];
    size_t length = strlen(own_need(r, a, miss, out));
    if (miss->longest_context > 0)
        snprintf(out + length, TDM_PREDICT_TEXT - length, ": does not fit; longest context %s",
                 tdm_format_tokens(miss->longest_context, tokens));
    else
        snprintf(out + length, TDM_PREDICT_TEXT - length, ": does not fit; no context does");
    return out;
}

/* Finds out why it does not fit. Returns TDM_INFEASIBLE unless another error occurs. */
static enum tdm_status refuse_own(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                  struct tdm_own_schedule *own, struct tdm_own_miss *miss,
                                  struct tdm_error *err)
{
    char hint[TDM_REMEDY_TEXT], need[TDM_PREDICT_TEXT];
    enum tdm_status status = tdm_own_fail(own, miss, err);
    if (status != TDM_INFEASIBLE)
        return status;
    tdm_own_remedies(miss, a->settings.torch.ranks,
                     (uint64_t)((double)a->machine->topology.places[TDM_DEVICE].capacity_bytes *
                                (1 - r->margin)),
                     &a->remedies);
    if (miss->binding != NULL) {
        tdm_fail(err, TDM_INFEASIBLE, "does not fit: %s", own_need(r, a, miss, need));
        tdm_hint(err, "%s", tdm_remedies_text(&a->remedies, hint));
    }
    return status;
}

/* Finds the schedule, or on TDM_INFEASIBLE what is missing. Shows progress on `progress`, unless it
 * is NULL. The caller frees *own, also on failure. */
static enum tdm_status find_own(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                FILE *progress, struct tdm_own_schedule **own,
                                struct tdm_own_miss *miss, struct tdm_error *err)
{
    if (r->timeline.path != NULL) {
        tdm_fail(err, TDM_USAGE, "predict: -o draws predictions of other systems only");
        return tdm_hint(err, "tidemark plan -o plan.json, and tidemark plot plan.json, draw it");
    }
    struct tdm_own_words words =
        tdm_own_words(&a->settings, &a->choices, r->model, r->machine, a->machine, r->margin);
    words.brief = words.ranks > 1 && !r->verbose; /* of several the whole search takes a minute */
    words.brief_refusal = !r->verbose;
    struct tdm_ticker ticker;
    tdm_ticker_begin(&ticker, progress, "looking for the fastest schedule that fits");
    enum tdm_status status = tdm_own_find(&words, false, own, err);
    tdm_ticker_end(&ticker);
    return status == TDM_INFEASIBLE ? refuse_own(r, a, *own, miss, err) : status;
}

/* `miss` and `reason` are of a schedule that was not found. */
static json_t *own_json(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                        const struct tdm_own_schedule *own, bool fits,
                        const struct tdm_own_miss *miss, const struct tdm_error *reason)
{
    if (fits)
        return tdm_predict_json(r, a, tdm_own_json(own));
    return tdm_predict_json(
        r, a,
        json_pack("{s:b, s:s?, s:s, s:b, s:o, s:I, s:I}", "fits", 0, "binding", miss->binding,
                  "message", reason->message, "brief_search", miss->brief, "remedies",
                  tdm_predict_remedies_json(&a->remedies), "longest_context_tokens",
                  (json_int_t)a->remedies.longest_tokens, "host_memory_bytes",
                  (json_int_t)miss->host_memory_bytes));
}

static void print_own(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                      const struct tdm_own_schedule *own, bool fits,
                      const struct tdm_own_miss *miss)
{
    char answer[TDM_PREDICT_TEXT];
    if (fits) {
        struct tdm_own_step step;
        tdm_own_step(own, &step);
        tdm_predict_print_head(r, a, own_verdict(r, a, &step, answer));
        tdm_own_table(stdout, own);
        tdm_predict_print_assumed(r, a);
    } else if (miss->binding != NULL) {
        tdm_predict_print_head(r, a, own_refusal(r, a, miss, answer));
        if (miss->brief)
            printf(
                "%-10s %s\n", "note",
                "a brief search: plan and --verbose search longer, and may find that it needs less");
        tdm_predict_print_assumed(r, a);
    }
}

static enum tdm_status answer_own(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                  struct tdm_error *err)
{
    struct tdm_own_schedule *own = NULL;
    struct tdm_own_miss miss;
    enum tdm_status status = find_own(r, a, stderr, &own, &miss, err);
    if (status == TDM_OK || status == TDM_INFEASIBLE) {
        bool fits = status == TDM_OK;
        if (r->as_json) {
            enum tdm_status printed = tdm_print_json(own_json(r, a, own, fits, &miss, err), err);
            status = printed == TDM_OK ? status : printed;
        } else {
            print_own(r, a, own, fits, &miss);
        }
    }
    tdm_own_free(own);
    return status;
}

/* ---- other systems ---- */

static enum tdm_status draw_timeline(const struct tdm_predict_request *r,
                                     const struct tdm_predict_answer *a, struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    struct tdm_events_plot plot = {.timeline = a->timeline,
                                   .runtime_bytes = tdm_torch_runtime_bytes(&a->prediction.runtime),
                                   .device_bytes =
                                       a->machine->topology.places[TDM_DEVICE].capacity_bytes};
    snprintf(plot.title, sizeof(plot.title), "%s, %s tokens, by %s", a->model->name,
             tdm_format_tokens(r->context, text), a->method->name);
    snprintf(plot.subtitle, sizeof(plot.subtitle), "%s; step %" PRIu32 ", predicted",
             a->machine->title, a->timeline->step);
    return tdm_events_plot_draw(&plot, &r->timeline, err);
}

static enum tdm_status predict_other(const struct tdm_predict_request *r,
                                     struct tdm_predict_answer *a, struct tdm_error *err)
{
    struct tdm_method_prediction *p = &a->prediction;
    enum tdm_status status =
        tdm_method_predict(a->model, a->machine, &a->settings, r->margin, p, err);
    if (status == TDM_OK)
        status = tdm_method_need(a->model, a->machine, &a->settings, p, err);
    if (status == TDM_OK && !p->fits)
        status = tdm_method_longest_below(a->model, a->machine, &a->settings, r->margin, p,
                                          &a->longest_tokens, &a->longest_work, err);
    if (status == TDM_OK && r->timeline.path != NULL)
        status =
            tdm_method_timeline(a->model, a->machine, &a->settings, p->steps[p->highest].number,
                                p->endless, p->run, &a->timeline, err);
    return status;
}

/* As text, the answer is printed before the remedies, because these take longer to find. */
static enum tdm_status answer_other(const struct tdm_predict_request *r,
                                    struct tdm_predict_answer *a, struct tdm_error *err)
{
    char answer[TDM_PREDICT_TEXT];
    enum tdm_status judged, status = predict_other(r, a, err);
    if (status != TDM_OK)
        return status;
    if (!r->as_json) {
        tdm_predict_print_head(r, a, tdm_predict_verdict_text(r, a, answer));
        tdm_predict_print_peaks(a);
        tdm_predict_print_assumed(r, a);
        fflush(stdout);
    }
    judged = a->prediction.fits ? TDM_OK : refuse(r, a, err);
    if (judged != TDM_OK && judged != TDM_INFEASIBLE)
        return judged;
    if (r->as_json)
        status = tdm_print_json(tdm_predict_json(r, a, tdm_predict_peaks_json(a, err)), err);
    if (status == TDM_OK && draws(r) && a->timeline->count > 0)
        status = draw_timeline(r, a, err);
    else if (status == TDM_OK && draws(r))
        fprintf(stderr, "%s is not drawn: no step begins\n", r->timeline.path);
    return status == TDM_OK ? judged : status;
}

static const struct tdm_predict_request defaults = {.mode = NULL,
                                                    .machine = "h200",
                                                    .margin = TDM_MARGIN,
                                                    .timeline = {.width = 1600, .height = 900}};

/* Says which keys of the files were ignored, to those who read. */
static void note_ignored(const struct tdm_predict_request *r)
{
    size_t count = json_array_size(r->from.ignored);
    if (count == 0 || r->as_json)
        return;
    if (!r->verbose) {
        fprintf(stderr, "tidemark: %zu key%s of --from ignored (--verbose lists them)\n", count,
                count == 1 ? "" : "s");
        return;
    }
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "tidemark: ignored: %s\n",
                json_string_value(json_array_get(r->from.ignored, i)));
}

static void free_answer(struct tdm_predict_request *r, struct tdm_predict_answer *a)
{
    tdm_from_free(&r->from);
    free(a->timeline);
    tdm_model_free(a->model);
    tdm_machine_free(a->machine);
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct tdm_predict_request r = defaults;
    struct tdm_predict_answer a = {.model = NULL};
    bool help;
    enum tdm_status status = parse(argc, argv, &r, &help, err);
    if (status != TDM_OK || help) {
        free_answer(&r, &a);
        return status;
    }
    status = load(&r, &a, err);
    if (status == TDM_OK)
        note_ignored(&r);
    if (status == TDM_OK)
        status = serves(&r)                    ? tdm_predict_serve(&r, &a, err)
                 : tdm_method_is_own(a.method) ? answer_own(&r, &a, err)
                                               : answer_other(&r, &a, err);
    free_answer(&r, &a);
    return status;
}

static enum tdm_status own_answer(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                  json_t **answer, struct tdm_error *err)
{
    struct tdm_own_schedule *own = NULL;
    struct tdm_own_miss miss;
    enum tdm_status status = find_own(r, a, NULL, &own, &miss, err);
    if (status == TDM_OK || status == TDM_INFEASIBLE)
        *answer = own_json(r, a, own, status == TDM_OK, &miss, err);
    tdm_own_free(own);
    return status;
}

static enum tdm_status other_answer(const struct tdm_predict_request *r,
                                    struct tdm_predict_answer *a, json_t **answer,
                                    struct tdm_error *err)
{
    enum tdm_status status = predict_other(r, a, err);
    if (status == TDM_OK && !a->prediction.fits)
        status = refuse(r, a, err);
    if (status == TDM_OK || status == TDM_INFEASIBLE)
        *answer = tdm_predict_json(r, a, tdm_predict_peaks_json(a, err));
    return status;
}

enum tdm_status tdm_predict_answer(int argc, char **argv, json_t **answer, struct tdm_error *err)
{
    struct tdm_predict_request r = defaults;
    struct tdm_predict_answer a = {.model = NULL};
    r.as_json = true;
    enum tdm_status status = parse(argc, argv, &r, NULL, err);
    if (status == TDM_OK && draws(&r))
        status = tdm_fail(err, TDM_USAGE,
                          "predict: an answer of this form has no picture; -o - "
                          "adds the timeline");
    if (status == TDM_OK)
        status = load(&r, &a, err);
    if (status == TDM_OK)
        status = serves(&r)                    ? tdm_predict_serve_answer(&r, &a, answer, err)
                 : tdm_method_is_own(a.method) ? own_answer(&r, &a, answer, err)
                                               : other_answer(&r, &a, answer, err);
    free_answer(&r, &a);
    return status;
}

#define PLACE(field) offsetof(struct tdm_predict_request, field)

static enum tdm_status read_from(const char *text, void *value, struct tdm_error *err)
{
    return tdm_from_add(value, text, err);
}

static const struct tdm_option options[] = {
    {.as = &tdm_option_context, .place = PLACE(context)},
    {.as = &tdm_option_method,
     .place = PLACE(method),
     .help = "the system: tidemark methods lists them; torch by default: PyTorch and Hugging Face "
             "transformers on one GPU",
     .details = "A usual name for one will do: hf is torch."},
    {.name = "mode",
     .word = "train|serve",
     .type = TDM_OPTION_TEXT,
     .place = PLACE(mode),
     .help = "a training step, or what an inference server holds: vLLM or SGLang (--method); train "
             "by default",
     .details =
         "Of serve the context is max_model_len and the batch the sequences of that length "
         "that the cache shall hold. The answer is how many it holds, the tokens of the cache, "
         "and the longest context. tidemark methods vllm and tidemark "
         "methods sglang list the settings."},
    {.as = &tdm_option_batch,
     .place = PLACE(batch),
     .high = MOST_BATCH,
     .help = "sequences of a GPU's step; 1 by default"},
    {.as = &tdm_option_gpus, .place = PLACE(gpus)},
    {.name = "nodes",
     .word = "N",
     .type = TDM_OPTION_COUNT,
     .low = 1,
     .high = 65536,
     .place = PLACE(nodes),
     .help = "computers that the GPUs of --gpus are divided among; 1 by default",
     .details = "GPUs of a node share its host memory. Methods with the key gpus_per_node are told "
                "how many a node has."},
    {.as = &tdm_option_machine, .place = PLACE(machine)},
    {.as = &tdm_option_memory, .place = PLACE(memory)},
    {.as = &tdm_option_host_memory,
     .place = PLACE(memory),
     .details = "gpus_per_node counts where the method has that key. What a server has is by the "
                "machine's description, and not what that has to plan on."},
    {.as = &tdm_option_margin,
     .place = PLACE(margin),
     .details = "It fits if the steps get through on a device that has so much less, also if the "
                "allocator must give cached memory back for that."},
    {.as = &tdm_option_method_optimizer, .place = PLACE(set)},
    {.as = &tdm_option_method_setting,
     .place = PLACE(set),
     .details =
         "Settings as users of the systems write them are taken too, as "
         "\"gradient_checkpointing: true\", use_liger_kernel=true or --sequence-parallel, also "
         "several options in one string, as \"--recompute-granularity full "
         "--sequence-parallel\". The method tidemark is the schedule that plan finds, and "
         "takes the knobs of plan's --set too."},
    {.as = &tdm_option_output,
     .formerly = "timeline",
     .place = PLACE(timeline.path),
     .help =
         "a picture, .png, .svg or .pdf: bytes by category over the allocations and frees of the "
         "step that needs most; with --json its data too, - for no picture",
     .details =
         "It has the phases of the step, what the allocator reserves and what the device has. "
         "The data are up to 2,048 points, each the highest of equally many events."},
    {.as = &tdm_option_force, .place = PLACE(timeline.force)},
    {.name = "from",
     .word = "FILE",
     .read = read_from,
     .place = PLACE(from),
     .repeats = true,
     .values = TDM_VALUES_FILES,
     .help =
         "settings of a DeepSpeed, accelerate, Axolotl, LLaMA-Factory, torchtitan, torchtune, LitGPT or NeMo Automodel "
         "config, TrainingArguments or SFTConfig, an adapter_config.json, Megatron-LM's arguments, a "
         "script that launches one, vLLM or SGLang; may be repeated",
     .details =
         "The files are JSON, YAML, TOML or options of a command line (.json, .yaml, .toml, "
         ".args, .sh, or by how they begin). Every key is read, ignored, said not to be modelled, "
         "or refused; --verbose lists what is ignored. What the command line says comes "
         "first, then the files in their order. A file may name the model, the context, the "
         "batch, the GPUs and the nodes too."},
    {.name = "verbose",
     .type = TDM_OPTION_FLAG,
     .place = PLACE(verbose),
     .help = "all that is assumed; and where it does not fit, a longer search for what would help",
     .details = "What would make it fit is then looked for until all was looked at, and the method "
                "tidemark searches as long as plan."},
    {.as = &tdm_option_json,
     .place = PLACE(as_json),
     .help = "one JSON object on stdout, also when it does not fit",
     .details = "binding is device, host or both, whichever is short, and null if it fits; "
                "cached_memory_given_back says that it fits because of that, and "
                "peak_within_margin_bytes what is used then, where peak_bytes is of the whole "
                "device; host_peak_bytes is of the gpus_of_host GPUs that share host_memory_bytes. "
                "Each of remedies has an effect: time, numerics, machine (batch, GPUs, memory or "
                "method) or training."},
    {.name = NULL}};

const struct tdm_command tdm_cmd_predict = {
    .name = "predict",
    .usage = "predict MODEL --context N [options]",
    .summary = "what another system would need: peak memory of a GPU, allocated, reserved, used",
    .options = options,
    .notes = "The first line is the answer: what is needed, whether it fits, and if not the "
             "longest context that does. The table is of what is needed in total, also where a "
             "step would run out of memory. allocated is what live tensors take, reserved what "
             "the system's allocator holds, used what the driver reports: reserved and the "
             "runtime. Settings that are not said are assumed; those that were said but have no "
             "effect are noted. When it does not fit, the exit status is 3, and the hint says "
             "what would fit: settings, a smaller batch, more host memory, more GPUs or another "
             "method, and last what trains something else, as LoRA does. It is looked for within "
             "about a tenth of a second of work; with --verbose until all was looked at. --set "
             "takes back what the hint says, and settings as users of the systems write them: "
             "\"gradient_checkpointing: true\", or several options in one string, "
             "\"--recompute-granularity full --sequence-parallel\". The method tidemark is the "
             "schedule that plan finds, or on several GPUs one that is searched for less long, "
             "unless --verbose is given; --set takes the knobs of plan too.\n"
             "\n"
             "Examples:\n"
             "  tidemark predict qwen2.5-7b --context 8K\n"
             "  tidemark predict Qwen/Qwen2.5-7B --context 8K --set checkpointing=on --machine "
             "H100\n"
             "  tidemark predict qwen2.5-7b --context 8K --method zero3 --gpus 4\n"
             "  tidemark predict qwen2.5-7b --context 8K -o step.svg\n"
             "  tidemark predict qwen2.5-7b --context 256K --method tidemark --set "
             "optimizer=adamw-bf16\n",
    .arguments = TDM_VALUES_MODELS,
    .refused = tdm_settings_explain,
    .run = run,
};
