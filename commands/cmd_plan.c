/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark plan`: the fastest schedule that fits, as a table, as JSON, as a file. */
#include "commands/cmd.h"

#include "base/file.h"
#include "base/inputs.h"
#include "base/json.h"
#include "base/ticker.h"
#include "base/units.h"
#include "ops/kernels.h"
#include "commands/explain.h"
#include "commands/model_inputs.h"
#include "planner/objective.h"
#include "commands/prediction.h"
#include "commands/print.h"
#include "commands/schedule_table.h"
#include "planner/shortage.h"
#include "commands/sweep_report.h"
#include "commands/weights_report.h"
#include "planner/recipes.h"
#include "schedule/gather.h"
#include "schedule/optimizer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
    struct tdm_request request;
    enum tdm_objective objective;
    double step_seconds; /* the most; 0: any */
    bool sweeps;
    struct tdm_sweep sweep;
    const char *output;
    const char *state_option;      /* the first that says what --like does; NULL: none */
    struct tdm_schedule *training; /* of --like; NULL: none */
    bool has_margin, force, json, done, explain;
};

static enum tdm_status read_heuristic(const char *name, unsigned *without, struct tdm_error *err)
{
    for (int i = 0; i < TDM_HEURISTICS; i++)
        if (strcmp(name, tdm_heuristic_name((enum tdm_heuristic)i)) == 0) {
            *without |= 1u << i;
            return TDM_OK;
        }
    return tdm_fail(
        err, TDM_USAGE,
        "--without: \"%s\" is not known; enumeration, rounding, structure, fine or polish is due",
        name);
}

static enum tdm_status read_step_time(const char *text, double *seconds, struct tdm_error *err)
{
    char *end;
    errno = 0;
    *seconds = strtod(text, &end);
    if (end != text && *end == '\0' && errno == 0 && isfinite(*seconds) && *seconds > 0 &&
        strpbrk(text, "xX ") == NULL)
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--step-time: \"%s\" is not a number of seconds above 0", text);
}

/* "dense", "auto" or tokens. */
static enum tdm_status read_budget(const char *text, struct tdm_request *r, struct tdm_error *err)
{
    r->budget = strcmp(text, "dense") == 0  ? TDM_BUDGET_DENSE
                : strcmp(text, "auto") == 0 ? TDM_BUDGET_AUTO
                                            : TDM_BUDGET_TOKENS;
    return r->budget == TDM_BUDGET_TOKENS && strcmp(text, "0") != 0
               ? tdm_parse_tokens(text, "--budget", &r->budget_tokens, err)
               : TDM_OK;
}

static enum tdm_status read_option(int option, struct arguments *a, struct tdm_error *err)
{
    struct tdm_request *r = &a->request;
    enum tdm_status status;
    if ((option == 'O' || option == 'C') && a->state_option == NULL)
        a->state_option = option == 'O' ? "--optimizer" : "--clip";
    switch (option) {
    case 'c':
        status = tdm_parse_tokens(optarg, "--context", &r->context, err);
        if (status == TDM_OK && r->context > TDM_LONGEST_CONTEXT)
            return tdm_fail(err, TDM_USAGE, "--context: \"%s\" is more than 256M tokens", optarg);
        return status;
    case 'M':
        r->machine = optarg;
        return TDM_OK;
    case 'm':
        r->has_memory = true;
        return tdm_parse_bytes(optarg, "--memory", &r->memory_bytes, err);
    case 'x':
        a->has_margin = true;
        return tdm_margin_parse(optarg, &r->margin, err);
    case 'H':
        r->has_host_memory = true;
        return tdm_host_memory_parse(optarg, &r->host_memory_bytes, err);
    case 'n':
        return tdm_parse_count(optarg, "--batch", 1, TDM_MOST_SEQUENCES, &r->sequences, err);
    case 'O':
        if (tdm_optimizer_parse(optarg, &r->optimizer))
            return TDM_OK;
        return tdm_fail(err, TDM_USAGE, "--optimizer: \"%s\" is not known; %s is due", optarg,
                        TDM_OPTIMIZER_NAMES);
    case 'p':
        if (tdm_purpose_parse(optarg, &r->pass))
            return TDM_OK;
        return tdm_fail(err, TDM_USAGE, "--pass: \"%s\" is not known; use train or evaluate",
                        optarg);
    case 'k':
        r->like_path = optarg;
        return TDM_OK;
    case 'C':
        if (tdm_clip_parse(optarg, &r->clip))
            return TDM_OK;
        return tdm_fail(err, TDM_USAGE, "--clip: \"%s\" is not known; it must be %s", optarg,
                        TDM_CLIP_NAMES);
    case 'B':
        return read_budget(optarg, r, err);
    case 'b':
        if (tdm_objective_parse(optarg, &a->objective))
            return TDM_OK;
        return tdm_fail(err, TDM_USAGE, "--objective: \"%s\" is not known; %s is due", optarg,
                        TDM_OBJECTIVE_NAMES);
    case 't':
        return read_step_time(optarg, &a->step_seconds, err);
    case 'w':
        a->sweeps = true;
        return tdm_sweep_parse(optarg, &a->sweep, err);
    case 'P':
        return tdm_preset_find(optarg, &r->preset, err);
    case 's':
        if (r->pair_count == TDM_MOST_PAIRS)
            return tdm_fail(err, TDM_USAGE, "--set is given more than %u times", TDM_MOST_PAIRS);
        r->pairs[r->pair_count++] = optarg;
        return TDM_OK;
    case 'e':
        a->explain = true;
        return TDM_OK;
    case 'l':
        r->program_path = optarg;
        return TDM_OK;
    case 'W':
        return read_heuristic(optarg, &r->without, err);
    case 'o':
        a->output = optarg;
        return TDM_OK;
    case 'f':
        a->force = true;
        return TDM_OK;
    case 'j':
        a->json = true;
        return TDM_OK;
    default:
        return TDM_INTERNAL;
    }
}

/* Options that only together make sense. */
static enum tdm_status check_sweep(const struct arguments *a, struct tdm_error *err)
{
    const bool given[TDM_SWEEP_AXES] = {a->request.context != 0, a->request.has_memory,
                                        a->request.has_host_memory};
    if (a->objective != TDM_OBJECTIVE_TIME)
        return tdm_fail(err, TDM_USAGE, "plan: --sweep goes with --objective time alone");
    if (given[a->sweep.axis])
        return tdm_fail(err, TDM_USAGE, "plan: --sweep %s and --%s are about the same",
                        tdm_sweep_axis_name(a->sweep.axis), tdm_sweep_axis_name(a->sweep.axis));
    if (a->output != NULL && strcmp(a->output, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "plan: a sweep's picture cannot be written to stdout");
    return TDM_OK;
}

static enum tdm_status check_program(const struct arguments *a, struct tdm_error *err)
{
    const char *path = a->request.program_path;
    if (a->sweeps && (path != NULL || a->explain))
        return tdm_fail(err, TDM_USAGE, "plan: --%s is about one plan, and --sweep makes many",
                        path != NULL ? "write-lp" : "explain");
    if (path == NULL)
        return TDM_OK;
    if (a->request.pass == TDM_EVALUATE)
        return tdm_fail(err, TDM_USAGE,
                        "plan: --write-lp: an evaluation has no linear program; all its schedules "
                        "are looked at");
    if (strcmp(path, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "plan: --write-lp writes a file, not stdout");
    if (a->output != NULL && tdm_path_within(path, a->output))
        return tdm_fail(err, TDM_USAGE, "plan: -o and --write-lp name the same file");
    return tdm_file_check(path, a->force, err);
}

/* Reads the schedule that trains, where one is given. */
static enum tdm_status read_like(struct arguments *a, struct tdm_error *err)
{
    struct tdm_request *r = &a->request;
    if (r->like_path == NULL)
        return TDM_OK;
    if (r->pass != TDM_EVALUATE)
        return tdm_fail(err, TDM_USAGE, "plan: --like goes with --pass evaluate");
    if (a->sweeps || a->objective != TDM_OBJECTIVE_TIME || r->budget == TDM_BUDGET_AUTO)
        return tdm_fail(err, TDM_USAGE,
                        "plan: --like goes with neither --sweep nor --objective nor --budget auto");
    if (a->state_option != NULL)
        return tdm_fail(err, TDM_USAGE, "plan: %s: the optimizer is that of --like %s",
                        a->state_option, r->like_path);
    enum tdm_status status = tdm_schedule_load(r->like_path, &a->training, err);
    if (status != TDM_OK)
        return status;
    if (a->training->pass != TDM_TRAIN)
        return tdm_fail(err, TDM_USAGE, "plan: --like %s: is a schedule that evaluates",
                        r->like_path);
    r->like = a->training;
    if (r->context == 0)
        r->context = a->training->sequences[0].tokens;
    return TDM_OK;
}

static enum tdm_status check_objective(const struct arguments *a, struct tdm_error *err)
{
    enum tdm_status status = a->sweeps ? check_sweep(a, err) : TDM_OK;
    if (status != TDM_OK)
        return status;
    bool says_memory = a->request.has_memory || (a->sweeps && a->sweep.axis == TDM_SWEEP_MEMORY);
    if (a->has_margin && says_memory) {
        tdm_fail(err, TDM_USAGE, "plan: --margin and --%s both say how much may be used",
                 a->request.has_memory ? "memory" : "sweep memory");
        return tdm_hint(err, "memory that is said is used as it is; leave --margin out");
    }
    if (a->objective == TDM_OBJECTIVE_CONTEXT && a->request.context != 0)
        return tdm_fail(err, TDM_USAGE,
                        "plan: --objective context finds the context, and --context gives one");
    bool finds_context =
        a->objective == TDM_OBJECTIVE_CONTEXT || (a->sweeps && a->sweep.axis == TDM_SWEEP_CONTEXT);
    if (!finds_context && a->request.context == 0) {
        tdm_fail(err, TDM_USAGE, "plan: --context is missing");
        return tdm_hint(err, "for example --context 256K");
    }
    bool finds_budget = a->request.budget == TDM_BUDGET_AUTO;
    if (a->objective == TDM_OBJECTIVE_TIME && a->step_seconds > 0 && !finds_budget) {
        tdm_fail(err, TDM_USAGE, "plan: --step-time is a limit beside another objective");
        return tdm_hint(err, "add --objective context, --objective memory or --budget auto");
    }
    if (finds_budget && a->step_seconds == 0) {
        tdm_fail(err, TDM_USAGE, "plan: --budget auto needs --step-time");
        return tdm_hint(err, "for example --step-time 60");
    }
    if (finds_budget && (a->objective != TDM_OBJECTIVE_TIME || a->sweeps))
        return tdm_fail(err, TDM_USAGE,
                        "plan: --budget auto goes with neither --objective nor --sweep");
    return TDM_OK;
}

static enum tdm_status read_arguments(int argc, char **argv, struct arguments *a,
                                      struct tdm_error *err)
{
    static const struct option options[] = {{"context", required_argument, NULL, 'c'},
                                            {"machine", required_argument, NULL, 'M'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"margin", required_argument, NULL, 'x'},
                                            {"host-memory", required_argument, NULL, 'H'},
                                            {"batch", required_argument, NULL, 'n'},
                                            {"optimizer", required_argument, NULL, 'O'},
                                            {"pass", required_argument, NULL, 'p'},
                                            {"like", required_argument, NULL, 'k'},
                                            {"budget", required_argument, NULL, 'B'},
                                            {"clip", required_argument, NULL, 'C'},
                                            {"objective", required_argument, NULL, 'b'},
                                            {"step-time", required_argument, NULL, 't'},
                                            {"sweep", required_argument, NULL, 'w'},
                                            {"preset", required_argument, NULL, 'P'},
                                            {"set", required_argument, NULL, 's'},
                                            {"explain", no_argument, NULL, 'e'},
                                            {"write-lp", required_argument, NULL, 'l'},
                                            {"without", required_argument, NULL, 'W'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"force", no_argument, NULL, 'f'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    enum tdm_status status;
    static const int repeatable[] = {'s', 'W', 0};
    static const struct tdm_renamed_option renamed[] = {{"sequences", "batch"}, {NULL, NULL}};
    struct tdm_options o = {.command = "plan",
                            .letters = ":ho:",
                            .names = options,
                            .repeatable = repeatable,
                            .renamed = renamed};
    int option;
    while ((status = tdm_options_next(&o, argc, argv, &option, err)) == TDM_OK && option != -1) {
        if (option == 'h') {
            tdm_cmd_print_help(&tdm_cmd_plan);
            a->done = true;
            return TDM_OK;
        }
        status = read_option(option, a, err);
        if (status != TDM_OK)
            return status;
    }
    if (status == TDM_OK)
        status = read_like(a, err);
    if (status != TDM_OK)
        return status;
    if (argc - optind != 1 && !(argc == optind && a->request.like != NULL)) {
        tdm_fail(err, TDM_USAGE,
                 optind == argc ? "plan: no model is named" : "plan: takes one model only");
        return tdm_hint(err, "usage: tidemark %s", tdm_cmd_plan.usage);
    }
    status = check_objective(a, err);
    if (status == TDM_OK)
        status = check_program(a, err);
    if (status != TDM_OK)
        return status;
    if (a->json && a->output != NULL && strcmp(a->output, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "plan: --json and -o - would both write to stdout");
    if (optind < argc)
        a->request.model = argv[optind];
    if (a->request.machine == NULL && a->request.like == NULL)
        a->request.machine = "h200";
    const struct tdm_input like = {.option = "--like", .path = a->request.like_path};
    status = tdm_inputs_spare(&like, 1, "plan: -o", a->output, err);
    if (status != TDM_OK)
        return status;
    status =
        tdm_model_inputs_spare(a->request.model, a->request.machine, "plan: -o", a->output, err);
    if (status == TDM_OK)
        status = tdm_model_inputs_spare(a->request.model, a->request.machine, "plan: --write-lp",
                                        a->request.program_path, err);
    return status == TDM_OK && a->output != NULL ? tdm_file_check(a->output, a->force, err)
                                                 : status;
}

/* Takes away the reference to `predicted`; NULL: memory ran out for it. */
static enum tdm_status write_schedule(const struct arguments *a,
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
    text[length] = '\n'; /* in place of the zero */
    status = tdm_file_write(a->output, text, length + 1, a->force, err);
    free(text);
    return status;
}

static enum tdm_status print_json(const struct arguments *a,
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

/* Kinds of state that are enough on the host. */
static json_t *streamed_json(const struct tdm_shortage *shortage)
{
    json_t *list = json_array();
    for (int state = 0; state < TDM_STATES; state++)
        if (shortage->streamed[state])
            tdm_json_add(&list, json_string(tdm_state_name((enum tdm_state)state)));
    return list;
}

static enum tdm_status print_shortage_json(const struct tdm_shortage *shortage,
                                           const struct tdm_search *search,
                                           const struct tdm_error *reason, struct tdm_error *err)
{
    uint64_t needed = shortage->needed_bytes[TDM_DEVICE];
    uint64_t host_needed = shortage->needed_bytes[TDM_HOST];
    uint64_t limit = shortage->limit_bytes[TDM_DEVICE];
    uint64_t host_limit = shortage->limit_bytes[TDM_HOST];
    return tdm_print_json(
        json_pack("{s:b, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "fits",
                  0, "message", reason->message, "hint", reason->hint, "binding",
                  tdm_binding_name(shortage->binding), "memory_bytes",
                  json_integer((json_int_t)limit), "host_memory_bytes",
                  json_integer((json_int_t)host_limit), "needed_memory_bytes",
                  count_or_null(needed), "missing_bytes",
                  count_or_null(needed > limit ? needed - limit : 0), "needed_host_memory_bytes",
                  count_or_null(host_needed), "missing_host_bytes",
                  count_or_null(host_needed > host_limit ? host_needed - host_limit : 0),
                  "longest_context", count_or_null(shortage->longest_context),
                  "needed_memory_without_optimizer_bytes",
                  count_or_null(shortage->without_optimizer_bytes), "enough_on_host",
                  streamed_json(shortage), "search", tdm_search_counts_json(&search->counts)),
        err);
}

/* Why nothing is good, which stays in `err` unless it cannot be printed. */
static enum tdm_status print_refusal(struct tdm_error *err)
{
    enum tdm_status printed = tdm_print_json(
        json_pack("{s:b, s:s, s:s}", "fits", 0, "message", err->message, "hint", err->hint), err);
    return printed == TDM_OK ? TDM_INFEASIBLE : printed;
}

/* Says what is short; the status is TDM_INFEASIBLE unless something else went wrong. */
static enum tdm_status explain_shortage(const struct arguments *a, struct tdm_schedule *schedule,
                                        const struct tdm_pins *pins,
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
        status = print_shortage_json(&shortage, search, &reason, err);
    if (status != TDM_OK)
        return status;
    *err = reason;
    return TDM_INFEASIBLE;
}

/* The fastest schedule of the request. */
static enum tdm_status find_fastest(const struct tdm_request *request,
                                    struct tdm_objective_found *found, struct tdm_error *err)
{
    enum tdm_status status = tdm_request_make(request, &found->schedule, &found->pins, err);
    return status == TDM_OK
               ? tdm_candidates_search(found->schedule, &found->pins, &found->search, err)
               : status;
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

static enum tdm_status find(const struct arguments *a, struct tdm_objective_found *found,
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
                     : find_fastest(&a->request, found, err);
    }
    tdm_ticker_end(&ticker);
    return status;
}

static void print_answer(FILE *out, const struct arguments *a,
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
    fprintf(out, "\n\n");
}

static enum tdm_status print_plan(const struct arguments *a, struct tdm_objective_found *found,
                                  const struct tdm_weights *weights, struct tdm_error *err)
{
    if (a->json)
        return print_json(a, found, weights, err);
    /* with the schedule itself on stdout the table is for the eyes only */
    FILE *out = a->output != NULL && strcmp(a->output, "-") == 0 ? stderr : stdout;
    print_answer(out, a, found);
    tdm_weights_line(out, "weights    ", weights);
    tdm_schedule_table(out, found->schedule, &found->search.simulation);
    tdm_bound_lines(out, &found->search);
    if (a->explain)
        tdm_explain(out, found->schedule, &found->search);
    tdm_search_line(out, &found->search.counts);
    return TDM_OK;
}

/* rings.gather is there for those who know where it pays; where it does nothing they should hear of
 * it. */
static void note_gather(const struct tdm_schedule *schedule)
{
    if (schedule->rings.gather > 0 && !tdm_gathers_at_all(schedule))
        fprintf(stderr,
                "note: no layer gathers pages, so rings.gather changes nothing: page lists, order "
                "chunk-major, K and V on the host and more than one chunk are due\n");
}

/* Layers to which the model gives a window keep it beside any selector. */
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
                longest = chunk - start; /* before the last chunk that sees it */
        }
    if (schedule->selector.kind == TDM_SELECT_DENSE || longest <= schedule->selector.budget)
        fprintf(stderr,
                "note: the budget covers all that lies before a chunk: attention is dense\n");
}

static void note_selection(const struct arguments *a, const struct tdm_schedule *schedule)
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

/* What a backend cannot run it refuses before the run; whoever plans for it is to hear of it
 * now. */
static void note_kernels(tdm_kinds kinds)
{
    char line[TDM_LACKS_TEXT];
    for (const struct tdm_kernels *kernels = tdm_kernels; kernels->backend != NULL; kernels++)
        if (tdm_kernels_lack(kernels, kinds, line))
            fprintf(stderr, "note: %s: it will refuse this schedule\n", line);
}

/* Of gaps above this it is said that the search may be the reason. */
#define WIDE_GAP 0.05

static void note_search(const struct tdm_search *search)
{
    if (search->counts.recipes_alone && search->gap > WIDE_GAP)
        fprintf(
            stderr,
            "note: what --set fixes leaves only standard nests to choose from; a faster one may exist\n");
}

static enum tdm_status plan(const struct arguments *a, struct tdm_error *err)
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
        if (a->request.preset == NULL) /* which fixes what another system fixes */
            note_search(&found.search);
    }
    if (status == TDM_INFEASIBLE && found.schedule != NULL &&
        tdm_kitchen_check(found.schedule, &found.pins, err) == TDM_OK)
        status = explain_shortage(a, found.schedule, &found.pins, &found.search, err);
    else if (status == TDM_INFEASIBLE && a->json) /* it fits, but not in time */
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
    struct arguments arguments = {
        .request = {.sequences = 1, .margin = TDM_MARGIN, .optimizer = TDM_OPTIMIZER_ADAMW}};
    enum tdm_status status = read_arguments(argc, argv, &arguments, err);
    if (status == TDM_OK && !arguments.done) {
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
    .help =
        "  --context N         tokens of each sequence: 4096, 256K, 1M\n"
        "  --machine MACHINE   a shipped name (tidemark machines), a file that describes one, or local,\n"
        "                      which calibrate measured (default h200)\n"
        "  --memory SIZE       device memory that may be used, driver and libraries included\n"
        "                      (default: all that the machine has, less the margin)\n"
        "  --margin SHARE      memory of the device that must be left over, unless --memory says how much\n"
        "                      may be used: 3% by default, 0 for none\n"
        "  --host-memory SIZE  host memory that may be used, driver and libraries included; less\n"
        "                      than those, or 0, is just those (default: the machine's to plan on)\n"
        "  --batch N           sequences in a step (default 1)\n"
        "  --optimizer KIND    adamw (default), adamw-bf16-moments, adamw-bf16, sgd, or none:\n"
        "                      gradients only\n"
        "  --pass PASS         train (default); evaluate: forward to the loss, to run among steps that\n"
        "                      train, with the same optimizer and dtypes of state (run --evaluate)\n"
        "  --like FILE         with --pass evaluate: fit the schedule FILE that trains. All that both must\n"
        "                      have in common is taken from it; MODEL may then be left out, and machine,\n"
        "                      memory, context and attention are as there if nothing else is asked for\n"
        "  --clip WHAT         scale gradients down to a norm of optimizer.clip_norm: layer (each\n"
        "                      layer's by itself, embedding and head too), global (all by the norm\n"
        "                      of all, so optimizer.when=end) or none (default)\n"
        "  --budget WHAT       sparse attention: tokens that the queries of a page retrieve by page-level\n"
        "                      top-k beside their own chunk (of 4K tokens, if --set says nothing else), a\n"
        "                      multiple of a page; as many as the context or more are dense. auto: the\n"
        "                      largest, to within one part in 64, of which a step takes at most\n"
        "                      --step-time; dense (default): all\n"
        "  --objective WHAT    time (default): the fastest step; context: the longest context that fits,\n"
        "                      without --context; memory: the least device memory that is enough\n"
        "  --step-time S       the longest context, the least memory, or with --budget auto the largest\n"
        "                      budget, of which a step takes at most S seconds\n"
        "  --sweep AXIS=VALUES plan at many values, one row each, and with -o FILE.png (.svg, .pdf) draw\n"
        "                      step time, MFU and peaks, and where each nest takes over; AXIS is\n"
        "                      context, memory or host-memory, VALUES are FROM..TO (contexts double,\n"
        "                      memory has 13 points), FROM..TO:N points, or a list A,B,C\n"
        "  --preset NAME       fix the knobs that another system fixes (below)\n"
        "  --explain           what binds: the rows of the linear program that sets the bound, by how much\n"
        "                      a GiB more lowers it, and why each kind of tensor is where it is\n"
        "  --write-lp FILE     write that linear program in CPLEX LP format, with the groups\n"
        "                      that it came to (the bound is at most its optimum); --force: over an older one\n"
        "  --without HEURISTIC plan without enumeration, rounding, structure, fine or polish, to see what it gains;\n"
        "                      may be repeated\n"
        "  --set KEY=VALUE     fix a knob instead of searching it; may be repeated, a key only once\n"
        "  -o, --output FILE   write the schedule as JSON; - is stdout; of a sweep, the picture\n"
        "  --force             overwrite FILE\n"
        "  --json              one JSON object on stdout, also when nothing fits\n"
        "  --help              this text\n"
        "\n"
        "MODEL is a shipped name, a config.json of Hugging Face, or a directory that holds one. Weights\n"
        "(safetensors) in that directory are checked against it; only their headers are read.\n"
        "Sizes are 1024-based: 80G and 80GiB are the same; so are tokens: 256K is 262,144.\n"
        "When nothing fits, the exit status is 3, and what would help is said with numbers.\n"
        "\n"
        "Presets, of which --set may change a knob:\n"
        "  oomb             chunk by chunk through all layers, K, V and their gradients on the device\n"
        "  oomb-offload     the same, K, V and their gradients on the host\n"
        "  ml_dataflow      layer by layer over all chunks, K, V and attention outputs of the last\n"
        "                   chunks kept\n"
        "  selective        the whole sequence at once, q, K, V, attention outputs, gate and up kept\n"
        "  full-recompute   the whole sequence at once, inputs of layers kept and nothing else\n"
        "  split-50%        layer by layer over all chunks, attention outputs of the later half kept\n"
        "\n"
        "Keys of --set:\n"
        "  order=layer-major|chunk-major   the loop order\n"
        "  groups=N|N,N,...    layers in each group: one size that repeats, or a list that adds up\n"
        "                      to the model's layers, from layer 0 up\n"
        "  chunk=N             tokens in a chunk\n"
        "  inputs=PLACE        where groups' inputs are kept: device or host\n"
        "  attention=none|held|kept        attention outputs: recomputed, held by a group that runs\n"
        "                      forward again, or kept by the forward\n"
        "  kept=SET, held=SET  what is kept, or held, with the attention outputs: attention_output\n"
        "                      (default), qkv (with q, and K, V kept), all (with gate and up), normed\n"
        "                      (with the attention norm's output too)\n"
        "  kv=recompute|keep   K and V between a layer's forward and its backward: made again by a\n"
        "                      sweep (layer-major, default there), or kept\n"
        "  kv_place=PLACE, kv_gradients_place=PLACE        where they are kept; where their gradients\n"
        "                      are in chunk-major order\n"
        "  kept_place=PLACE    where kept attention outputs are\n"
        "  kept_from=N|N%      chunk, or percent of the chunks, from which on they are kept\n"
        "  held_place=PLACE    where groups hold what they hold\n"
        "  head_tile=N         tokens in a tile of the LM head\n"
        "  head_tile_vocabulary=N          entries of the vocabulary in a tile: fewer than all make\n"
        "                      the tile smaller and its logits twice (default: all)\n"
        "  page=N              tokens in a page of K and V (default 128), no more than a chunk has; a chunk\n"
        "                      takes whole pages\n"
        "  selector=KIND       what queries see in the layers to which the model gives no window: dense\n"
        "                      (default), window, block, longformer, bigbird or dilated (top-k is what --budget\n"
        "                      asks for), with selector.NAME=N: window (tokens), block (tokens), global (tokens\n"
        "                      from the document's start, in whole pages), random (pages), dilation (pages),\n"
        "                      seed (default 0)\n"
        "  documents=N|file    pack sequences from documents of N tokens, or from those that the tokens of\n"
        "                      the run have, which attention, RoPE's positions and targets do not cross\n"
        "                      (default: one document)\n"
        "  prefetch=N          bodies by which fetches run ahead, 0 to 16 (default: 8K tokens of them, at least 2)\n"
        "  weights=device|host|N           where weights are at home: on the device, on the host and\n"
        "                      streamed through a ring, or N layers on the device\n"
        "  weights.embedding=PLACE, weights.head=PLACE     where those of embedding and head are\n"
        "  master=, moments=, gradients=   the same of these, with .embedding and .head, too\n"
        "                      (gradients if they stay)\n"
        "  rings.NAME=N        slots of the staging rings, 1 to 16; NAME: weights (layers, default 2),\n"
        "                      optimizer (layers, default 1), stashed (chunks, default 2), kv (rows of\n"
        "                      K and V on the host in chunk-major order, default 2)\n"
        "  rings.gather=N      there, in layers with page lists: attention gathers the pages that its lists\n"
        "                      name from the host, into room for N chunks of them, up to 4096 (default 0:\n"
        "                      whole chunks are fetched)\n"
        "  dtypes.NAME=bf16|fp32           NAME: weights, activations, kv, kv_gradients, gradients,\n"
        "                      logits; moments and master=fp32|remainder16|none, as far as the\n"
        "                      optimizer leaves a choice\n"
        "  optimizer.NAME=X    NAME: learning_rate, beta1, beta2, epsilon, weight_decay,\n"
        "                      warmup_steps; after them optimizer.schedule=constant|linear|cosine\n"
        "                      to final_learning_rate (default 0) over decay_steps; clip_norm\n"
        "                      (default 1)\n"
        "  optimizer.when=layer|end        update a layer as soon as its gradient is complete\n"
        "                      (default; in chunk-major order the group's), or all after the backward\n"
        "  optimizer.on=device|host        where what is at home on the host is updated: on the device,\n"
        "                      to which it comes, or by the host's cores, to which gradients go\n"
        "                      (default: device, unless host is 0.5% faster)\n"
        "\n"
        "Examples:\n"
        "  tidemark plan qwen2.5-7b --context 256K\n"
        "  tidemark plan qwen2.5-7b --sweep context=8K..4M -o sweep.png\n"
        "  tidemark plan qwen2.5-7b --objective context --memory 80G --step-time 60\n"
        "  tidemark plan qwen2.5-7b --context 256K --memory 100G --host-memory 20G -o plan.json\n"
        "  tidemark plan --pass evaluate --like plan.json --context 64K -o evaluate.json\n"
        "  tidemark plan byte-1m --context 2048 --machine local --set chunk=256 --set groups=2\n",
    .run = run,
};
