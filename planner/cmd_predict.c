/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark predict`: what another system would need, by what it says of itself: allocated, reserved, used. */
#include "planner/cmd.h"

#include "base/units.h"
#include "models/model.h"
#include "planner/margin.h"
#include "planner/own_method.h"
#include "planner/predict_parts.h"
#include "planner/print.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BATCH 65536u

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
    return r->as_json ? TDM_OK
                      : tdm_fail(err, TDM_USAGE, "predict: --timeline - goes with --json alone");
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
            if (r->pair_count == TDM_METHOD_MOST_KEYS)
                return tdm_fail(err, TDM_USAGE, "predict: more than %u --set",
                                TDM_METHOD_MOST_KEYS);
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

/* What the device has too little of. */
static void say_device(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                       char *out, size_t out_bytes)
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
static enum tdm_status judge(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                             struct tdm_error *err)
{
    const struct tdm_method_prediction *p = &a->prediction;
    char device[192], host[TDM_PREDICT_HOST_TEXT], hint[TDM_REMEDY_TEXT];
    if (p->fits)
        return TDM_OK;
    enum tdm_status status = tdm_method_remedies(a->method, a->model, a->machine, &a->settings,
                                                 &a->choices, r->margin, &a->remedies, err);
    if (status != TDM_OK)
        return status;
    say_device(r, a, device, sizeof(device));
    tdm_predict_host_text(a, host);
    if (p->fits_device)
        tdm_fail(err, TDM_INFEASIBLE, "does not fit: %s", host);
    else
        tdm_fail(err, TDM_INFEASIBLE, "does not fit: %s%s%s", device, p->fits_host ? "" : "; and ",
                 p->fits_host ? "" : host);
    return tdm_hint(err, "%s", tdm_remedies_text(&a->remedies, hint));
}

/* tidemark has a key for it. */
static enum tdm_status add_host_pair(struct tdm_predict_request *r, struct tdm_error *err)
{
    if (r->pair_count == TDM_METHOD_MOST_KEYS)
        return tdm_fail(err, TDM_USAGE, "predict: more than %u --set", TDM_METHOD_MOST_KEYS);
    snprintf(r->host_pair, sizeof(r->host_pair), "host_memory=%" PRIu64, r->host_bytes);
    r->pairs[r->pair_count++] = r->host_pair;
    return TDM_OK;
}

static enum tdm_status load(struct tdm_predict_request *r, struct tdm_predict_answer *a,
                            struct tdm_error *err)
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
static enum tdm_status fail_own(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
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
            tdm_predict_json(r, a,
                             json_pack("{s:b, s:s?, s:s, s:o, s:I, s:I}", "fits", 0, "binding",
                                       miss.binding, "message", err->message, "remedies",
                                       tdm_predict_remedies_json(&a->remedies),
                                       "longest_context_tokens",
                                       (json_int_t)a->remedies.longest_tokens, "host_memory_bytes",
                                       (json_int_t)miss.host_memory_bytes)),
            NULL);
    return status;
}

static enum tdm_status answer_own(const struct tdm_predict_request *r, struct tdm_predict_answer *a,
                                  struct tdm_error *err)
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
        status = tdm_print_json(tdm_predict_json(r, a, tdm_own_json(own)), err);
    } else if (status == TDM_OK) {
        tdm_predict_print_head(r, a);
        struct tdm_own_step step;
        tdm_own_table(stdout, own);
        tdm_own_step(own, &step);
        tdm_predict_print_fits(r, a, step.used_bytes);
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

static enum tdm_status answer_other(const struct tdm_predict_request *r,
                                    struct tdm_predict_answer *a, struct tdm_error *err)
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
        status = tdm_print_json(tdm_predict_json(r, a, tdm_predict_peaks_json(a, err)), err);
    } else if (status == TDM_OK) {
        tdm_predict_print_head(r, a);
        tdm_predict_print_answer(r, a);
    }
    if (status == TDM_OK && draws(r) && a->timeline->count > 0)
        status = draw_timeline(r, a, err);
    else if (status == TDM_OK && draws(r))
        fprintf(stderr, "%s is not drawn: no step begins\n", r->timeline.path);
    free(a->timeline);
    return status == TDM_OK ? judged : status;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct tdm_predict_request r = {.machine = "h200",
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
        "the answer says so; it notes those that were said but have no effect. The last line says that it\n"
        "fits. When it does not, the exit status is 3, and the hint says what would fit: settings, a smaller\n"
        "batch, more host memory, more GPUs or another method, and last what trains something else, as\n"
        "LoRA does.\n"
        "The method tidemark is the schedule that plan finds; --set takes the knobs of plan too.\n"
        "\n"
        "Examples:\n"
        "  tidemark predict qwen2.5-7b --context 8K --method parallel\n"
        "  tidemark predict qwen2.5-7b --context 8K --method parallel --set checkpointing=on\n"
        "  tidemark predict qwen2.5-7b --context 8K --method parallel --timeline step.svg\n"
        "  tidemark predict qwen2.5-7b --context 256K --method tidemark --set optimizer=adamw-bf16\n",
    .run = run,
};
