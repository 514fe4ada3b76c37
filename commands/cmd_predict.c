/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark predict`: what another system would need, by what it says of itself: allocated,
 * reserved, used. */
#include "commands/cmd.h"

#include "base/size.h"
#include "base/ticker.h"
#include "base/units.h"
#include "methods/longest.h"
#include "models/model.h"
#include "planner/margin.h"
#include "commands/model_inputs.h"
#include "commands/own_method.h"
#include "commands/predict_parts.h"
#include "commands/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BATCH 65536u
/* A refusal takes about a tenth of a second in all, its hint what is left of that, or half as long
 * as all before it. */
#define REFUSAL_WORK 1000000u

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

static enum tdm_status parse(int argc, char **argv, struct tdm_predict_request *r, bool *help,
                             struct tdm_error *err)
{
    static const struct option options[] = {{"context", required_argument, NULL, 'c'},
                                            {"method", required_argument, NULL, 'm'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"gpus", required_argument, NULL, 'g'},
                                            {"machine", required_argument, NULL, 'M'},
                                            {"margin", required_argument, NULL, 'x'},
                                            {"set", required_argument, NULL, 's'},
                                            {"optimizer", required_argument, NULL, 'O'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"force", no_argument, NULL, 'f'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"memory", required_argument, NULL, 'D'},
                                            {"host-memory", required_argument, NULL, 'H'},
                                            {NULL, 0, NULL, 0}};
    enum tdm_status status = TDM_OK;
    static const int repeatable[] = {'s', 0};
    static const struct tdm_renamed_option renamed[] = {{"timeline", "output"}, {NULL, NULL}};
    struct tdm_options o = {.command = "predict",
                            .letters = ":ho:",
                            .names = options,
                            .repeatable = repeatable,
                            .renamed = renamed};
    int option;
    while (status == TDM_OK) {
        status = tdm_options_next(&o, argc, argv, &option, err);
        if (status != TDM_OK)
            tdm_settings_explain("predict", argc, argv, err);
        if (status != TDM_OK || option == -1)
            break;
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
            r->memory.has_host = true;
            status = tdm_host_memory_parse(optarg, &r->memory.host_bytes, err);
            break;
        case 'D':
            r->memory.has_device = true;
            status = tdm_parse_bytes(optarg, "--memory", &r->memory.device_bytes, err);
            break;
        case 'x':
            status = tdm_margin_parse(optarg, &r->margin, err);
            break;
        case 's':
            status = tdm_settings_add(&r->set, optarg, err);
            break;
        case 'O':
            if ((size_t)snprintf(r->optimizer_pair, sizeof(r->optimizer_pair), "optimizer=%s",
                                 optarg) >= sizeof(r->optimizer_pair))
                return tdm_fail(err, TDM_USAGE, "--optimizer: \"%.32s...\" is too long", optarg);
            status = tdm_settings_add(&r->set, r->optimizer_pair, err);
            break;
        case 'o':
            r->timeline.path = optarg;
            break;
        case 'f':
            r->timeline.force = true;
            break;
        case 'v':
            r->verbose = true;
            break;
        case 'j':
            r->as_json = true;
            break;
        default:
            *help = true;
            return TDM_OK;
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
    status = tdm_model_inputs_spare(r->model, r->machine, "predict: -o", r->timeline.path, err);
    return status == TDM_OK ? check_timeline(r, err) : status;
}

/* Where it ends, if it does not get through. */
static void say_failure(const struct tdm_predict_answer *a, char *out, size_t out_bytes)
{
    const struct tdm_method_failure *failure = &a->prediction.failure;
    uint64_t weights = tdm_size_add(a->prediction.parameters_bytes,
                                    tdm_torch_runtime_bytes(&a->prediction.runtime));
    if (failure->unmade && weights > a->machine->capacity_bytes[TDM_DEVICE])
        snprintf(out, out_bytes, " (there is no room for the model itself)");
    else if (failure->unmade) /* buffers for gradients, pages for all K and V */
        snprintf(out, out_bytes, " (there is no room for what is made before the first step)");
    else
        snprintf(out, out_bytes, " (step %" PRIu32 " runs out of memory in the %s)", failure->step,
                 tdm_torch_phase_name(failure->phase));
}

static uint64_t hint_work(uint64_t spent)
{
    uint64_t left = spent < REFUSAL_WORK ? REFUSAL_WORK - spent : 0;
    return left > spent / 2 ? left : spent / 2;
}

/* Of a prediction that does not fit: TDM_INFEASIBLE, with what would make it fit. */
static enum tdm_status refuse(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                              struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    char need[TDM_PREDICT_TEXT], failure[96] = "", hint[TDM_REMEDY_TEXT];
    const uint64_t most_work = r->verbose ? 0 : hint_work(p->work + a->longest_work);
    enum tdm_status status =
        tdm_method_remedies(a->method, a->model, a->machine, &a->settings, &a->choices, r->margin,
                            p, a->longest_tokens, most_work, &a->remedies, err);
    if (status != TDM_OK)
        return status;
    if (!p->runs)
        say_failure(a, failure, sizeof(failure));
    tdm_fail(err, TDM_INFEASIBLE, "does not fit: %s%s", tdm_predict_need_text(r, a, need), failure);
    tdm_remedies_text(&a->remedies, hint);
    return tdm_hint(err, "%s%s", hint, a->remedies.complete ? "" : "; --verbose looks further");
}

static enum tdm_status load(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                            struct tdm_error *err)
{
    enum tdm_status status = tdm_method_find(r->method, &a->method, err);
    a->settings.torch.tokens = r->context;
    a->settings.torch.batch = r->batch;
    a->settings.torch.ranks = r->gpus;
    if (status == TDM_OK)
        status =
            tdm_method_apply(a->method, r->set.pairs, r->set.count, &a->settings, &a->choices, err);
    if (status == TDM_OK)
        status = tdm_model_load(r->model, &a->model, err);
    if (status == TDM_OK)
        status = tdm_method_check(a->model, &a->settings, err);
    if (status == TDM_OK)
        status = tdm_machine_load(r->machine, &a->machine, err);
    if (status == TDM_OK)
        status = tdm_machine_give_memory(a->machine, &r->memory, err);
    return status;
}

/* ---- tidemark's own schedule ---- */

static const char *own_verdict(const struct tdm_predict_answer *a, const struct tdm_own_step *step,
                               char out[TDM_PREDICT_TEXT])
{
    char used[TDM_FORMAT_SIZE], device[TDM_FORMAT_SIZE], host[TDM_FORMAT_SIZE];
    snprintf(out, TDM_PREDICT_TEXT, "needs %s of %s, and %s of host memory: fits",
             tdm_format_bytes(step->used_bytes, used),
             tdm_format_bytes(a->machine->capacity_bytes[TDM_DEVICE], device),
             tdm_format_bytes(step->host_bytes, host));
    return out;
}

static const char *own_refusal(const struct tdm_own_miss *miss, char out[TDM_PREDICT_TEXT])
{
    char need[2][TDM_FORMAT_SIZE], has[2][TDM_FORMAT_SIZE], tokens[TDM_FORMAT_SIZE];
    bool both = strcmp(miss->binding, "both") == 0;
    tdm_format_bytes(miss->needed_device_bytes, need[0]);
    tdm_format_bytes(miss->needed_host_bytes, need[1]);
    tdm_format_bytes(miss->device_bytes, has[0]);
    tdm_format_bytes(miss->host_bytes, has[1]);
    int length = 0;
    if (miss->needed_device_bytes > 0)
        length = snprintf(out, TDM_PREDICT_TEXT, "needs %s of %s", need[0], has[0]);
    if (miss->needed_host_bytes > 0)
        length +=
            snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length, "%s%s of %s of host memory",
                     length == 0 ? "needs "
                     : both      ? ", and "
                                 : ", or ",
                     need[1], has[1]);
    if (length == 0)
        length = snprintf(out, TDM_PREDICT_TEXT, "needs more than %s and %s of host memory", has[0],
                          has[1]);
    if (miss->longest_context > 0)
        snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length,
                 ": does not fit; longest context %s",
                 tdm_format_tokens(miss->longest_context, tokens));
    else
        snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length, ": does not fit");
    return out;
}

/* Why it does not fit, in words and with --json; the status is TDM_INFEASIBLE unless something else
 * went wrong. */
static enum tdm_status fail_own(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                struct tdm_own_schedule *own, struct tdm_error *err)
{
    struct tdm_own_miss miss;
    char hint[TDM_REMEDY_TEXT], answer[TDM_PREDICT_TEXT];
    enum tdm_status status = tdm_own_fail(own, &miss, err);
    if (status != TDM_INFEASIBLE)
        return status;
    tdm_own_remedies(&miss,
                     (uint64_t)((double)a->machine->capacity_bytes[TDM_DEVICE] * (1 - r->margin)),
                     &a->remedies);
    if (miss.binding != NULL) {
        tdm_hint(err, "%s", tdm_remedies_text(&a->remedies, hint));
        if (!r->as_json) {
            tdm_predict_print_head(r, a, own_refusal(&miss, answer));
            tdm_predict_print_assumed(r, a);
        }
    }
    if (!r->as_json)
        return status;
    enum tdm_status printed = tdm_print_json(
        tdm_predict_json(r, a,
                         json_pack("{s:b, s:s?, s:s, s:o, s:I, s:I}", "fits", 0, "binding",
                                   miss.binding, "message", err->message, "remedies",
                                   tdm_predict_remedies_json(&a->remedies),
                                   "longest_context_tokens", (json_int_t)a->remedies.longest_tokens,
                                   "host_memory_bytes", (json_int_t)miss.host_memory_bytes)),
        err);
    return printed == TDM_OK ? status : printed;
}

static enum tdm_status answer_own(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                  struct tdm_error *err)
{
    struct tdm_own_schedule *own = NULL;
    if (r->timeline.path != NULL) {
        tdm_fail(err, TDM_USAGE, "predict: -o is of other systems");
        return tdm_hint(err, "tidemark plan -o plan.json, and tidemark plot plan.json, draw it");
    }
    const struct tdm_own_words words =
        tdm_own_words(&a->settings, &a->choices, r->model, r->machine, a->machine, r->margin);
    struct tdm_ticker ticker;
    tdm_ticker_begin(&ticker, stderr, "looking for the fastest schedule that fits");
    enum tdm_status status = tdm_own_find(&words, false, &own, err);
    tdm_ticker_end(&ticker);
    if (status == TDM_INFEASIBLE) {
        status = fail_own(r, a, own, err);
    } else if (status == TDM_OK && r->as_json) {
        status = tdm_print_json(tdm_predict_json(r, a, tdm_own_json(own)), err);
    } else if (status == TDM_OK) {
        struct tdm_own_step step;
        char answer[TDM_PREDICT_TEXT];
        tdm_own_step(own, &step);
        tdm_predict_print_head(r, a, own_verdict(a, &step, answer));
        tdm_own_table(stdout, own);
        tdm_predict_print_assumed(r, a);
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
                                   .device_bytes = a->machine->capacity_bytes[TDM_DEVICE]};
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
        status = tdm_method_timeline(a->model, a->machine, &a->settings,
                                     p->steps[p->highest].number, p->endless, &a->timeline, err);
    return status;
}

/* As text the answer comes before what would help, which takes longer to find. */
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

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct tdm_predict_request r = {.machine = "h200",
                                    .method = "torch",
                                    .batch = 1,
                                    .gpus = 1,
                                    .margin = TDM_MARGIN,
                                    .timeline = {.width = 1600, .height = 900}};
    struct tdm_predict_answer a = {.model = NULL};
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
    free(a.timeline);
    tdm_model_free(a.model);
    tdm_machine_free(a.machine);
    return status;
}

const struct tdm_command tdm_cmd_predict = {
    .name = "predict",
    .usage = "predict MODEL --context N [options]",
    .summary = "what another system would need: peak memory of a GPU, allocated, reserved, used",
    .help =
        "  --context N         tokens of each sequence\n"
        "  --method NAME       the system: tidemark methods lists them; torch by default: PyTorch and Hugging\n"
        "                      Face transformers on one GPU\n"
        "  --batch N           sequences of a GPU's step; 1 by default\n"
        "  --gpus N            GPUs; 1 by default\n"
        "  --machine MACHINE   a shipped name (tidemark machines), a file that describes one, or local, which\n"
        "                      calibrate measured; h200 by default\n"
        "  --memory SIZE       memory of the device, for a card that is not listed\n"
        "  --host-memory SIZE  host memory of a computer, which its GPUs share, up to 8 or gpus_per_node of\n"
        "                      them; by default what a server of such cards has\n"
        "  --margin SHARE      memory of the device that must be left over: 3% by default\n"
        "  --optimizer NAME    the optimizer, by the method's name for it: as --set optimizer=NAME\n"
        "  --set KEY=VALUE     a setting of the method (tidemark methods NAME lists them); may be repeated, a key\n"
        "                      only once\n"
        "  -o, --output FILE   a picture, .png, .svg or .pdf: bytes by category over the allocations and frees of\n"
        "                      the step that needs most; with --json its data too, - for no picture\n"
        "  --force             overwrite FILE\n"
        "  --verbose           all that is assumed; and the hint of what does not fit takes its time\n"
        "  --json              one JSON object on stdout, also when it does not fit\n"
        "  --help              this text\n"
        "\n"
        "The first line is the answer: what is needed, whether it fits, and if not the longest context\n"
        "that does. The table is of what is needed in total, also where a step would run out of memory.\n"
        "allocated is what live tensors take, reserved what the system's allocator holds, used what\n"
        "the driver reports: reserved and the runtime. Settings that are not said are assumed; those that\n"
        "were said but have no effect are noted. When it does not fit, the exit status is 3, and the hint\n"
        "says what would fit: settings, a smaller batch, more host memory, more GPUs or another method,\n"
        "and last what trains something else, as LoRA does. It is looked for within about a tenth of a\n"
        "second of work; with --verbose until all was looked at. --set takes back what the hint says, and\n"
        "settings as users of the systems write them: \"gradient_checkpointing: true\", or several options in\n"
        "one string, \"--recompute-granularity full --sequence-parallel\".\n"
        "The method tidemark is the schedule that plan finds; --set takes the knobs of plan too.\n"
        "\n"
        "Examples:\n"
        "  tidemark predict qwen2.5-7b --context 8K\n"
        "  tidemark predict Qwen/Qwen2.5-7B --context 8K --set checkpointing=on --machine H100\n"
        "  tidemark predict qwen2.5-7b --context 8K --method zero3 --gpus 4\n"
        "  tidemark predict qwen2.5-7b --context 8K -o step.svg\n"
        "  tidemark predict qwen2.5-7b --context 256K --method tidemark --set optimizer=adamw-bf16\n",
    .run = run,
};
