/* SPDX-License-Identifier: Apache-2.0 */
/* tidemark-executor: runs schedules, and calibrates. Started by tidemark, as git starts its
 * commands. */
#include "base/json.h"
#include "base/options.h"
#include "base/process.h"
#include "base/units.h"
#include "executor/backend.h"
#include "executor/cmd_calibrate.h"
#include "executor/progress.h"
#include "executor/run.h"
#include "models/weights.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: tidemark run SCHEDULE... [options]\n"
    "\n"
    "Trains by one or more schedules that tidemark plan wrote. All memory of a step is taken once,\n"
    "at the planned size, if the GPU and this computer have it free (else exit status 3); several\n"
    "schedules run one after the other in it, each from fresh weights.\n"
    "\n"
    "  --backend NAME     cpu: computes on this machine's cores (default)\n"
    "                     cuda: on an NVIDIA GPU, where the build has CUDA\n"
    "                     null: walks the program and counts, computes nothing\n"
    "  --weights WEIGHTS  random:SEED (default random:0), or a Hugging Face directory: config.json\n"
    "                     and safetensors of bf16, fp16 or fp32. SEED (0 with a directory) also\n"
    "                     chooses where sequences begin and rounds stochastically\n"
    "  --tokens FILE      token ids: a .npy array of whole numbers, llm.c's .bin, or Megatron-LM's .bin\n"
    "                     with its .idx; uint16:FILE or uint32:FILE: such numbers and nothing else;\n"
    "                     bytes:FILE: one token a byte, for which vocabularies of up to 260 need no\n"
    "                     \"bytes:\"; default random tokens. Longer than a sequence of the step\n"
    "  --steps N          steps to train (default 1)\n"
    "  --set KEY=VALUE    train with another setting than the schedule has; may be repeated, a key only\n"
    "                     once. Those that change neither memory nor operations: optimizer.NAME=X with\n"
    "                     learning_rate, schedule, final_learning_rate, decay_steps, warmup_steps,\n"
    "                     beta1, beta2, epsilon, weight_decay, clip_norm\n"
    "  --evaluate FILE    evaluate between steps by this schedule (plan --pass evaluate --like\n"
    "                     SCHEDULE), on the weights that are trained; its optimizer, homes and\n"
    "                     dtypes of state must be the same\n"
    "  --evaluate-every N evaluate after every N-th step, and after the last one; default a tenth of\n"
    "                     the steps\n"
    "  --evaluate-steps N steps of FILE in an evaluation, each on the text that follows (default 1);\n"
    "                     no more than the validation text holds\n"
    "  --validation WHAT  text to evaluate on: a file as for --tokens, or a share of --tokens, its end,\n"
    "                     which is not trained on (default 0.05)\n"
    "  --save DIR         after the last step write the model to a new directory that transformers\n"
    "                     and --weights load; it is read back before it takes its place\n"
    "  --save-every N     write it after every N-th step too, in place of the one before\n"
    "  --save-dtype TYPE  dtype of its files: bf16 or fp32; default that of the schedule's weights;\n"
    "                     fp32 has the precision of the masters\n"
    "  --save-shard SIZE  largest file of it (default 5G): a larger model has shards and an index\n"
    "  --save-gradients DIR\n"
    "                     write the gradients of the last step in fp32, under the names of their\n"
    "                     weights, to gradients.safetensors in a new directory; for schedules\n"
    "                     with --optimizer none\n"
    "  --trace FILE       record the run to this SQLite database\n"
    "  --trace-ops WHICH  op times of: all steps, first, or every:K; default all while they are\n"
    "                     fewer than 2,000,000 and take less than 1% of a step, else first\n"
    "  --force            replace an existing trace, or a directory that holds only saved files;\n"
    "                     what the run reads is never overwritten\n"
    "  --dry-run          read, lower and check the schedules, and headers of weights; say what\n"
    "                     they would take and what is free on the GPU and this computer, and stop\n"
    "                     (exit status 3 if that is too little); nothing is written or removed\n"
    "  --json             print one JSON object about the run on stdout\n"
    "  --help             this text\n"
    "\n"
    "Progress goes to stderr. The first step of a schedule is the measured one: its memory holds a\n"
    "pattern before it and is scanned after it. In a step that takes long it says each few seconds\n"
    "where it is, what is left and what the driver reports of memory, unless TIDEMARK_PROGRESS is no,\n"
    "and the trace has the ops up to there. Ctrl-C, SIGTERM and SIGHUP end a run after the ops that are\n"
    "launched, 2 s or two ops at most as predicted, and leave the trace whole, with how far the step\n"
    "was. What a run that was killed left of a save is removed by the next with that target.\n"
    "\n"
    "examples:\n"
    "  tidemark run plan.json --tokens book.txt --steps 100 --trace run.db\n"
    "  tidemark run a.json b.json --steps 3 --json\n"
    "  tidemark run plan.json --tokens book.txt --steps 500 --evaluate evaluate.json\n"
    "  tidemark run plan.json --weights llama/ --tokens book.txt --steps 50 --save trained/\n"
    "  tidemark run plan.json --backend null --dry-run\n";

static volatile sig_atomic_t stop;

static void interrupt(int signal_number)
{
    (void)signal_number;
    stop = 1;
}

#define MOST_PAIRS 32u /* of --set: more than there are keys */

struct arguments {
    struct tdm_run_options run;
    const char *pairs[MOST_PAIRS];
    bool json, help;
};

static enum tdm_status read_weights(const char *text, struct tdm_run_options *run,
                                    struct tdm_error *err)
{
    bool random = strncmp(text, "random:", 7) == 0;
    run->weights_path = random ? NULL : text;
    run->seed = 0;
    if (!random)
        return TDM_OK;
    return tdm_parse_count(text + 7, "--weights random:SEED", 0, INT64_MAX, &run->seed, err);
}

static enum tdm_status read_save_dtype(const char *text, enum tdm_dtype *dtype,
                                       struct tdm_error *err)
{
    if (tdm_dtype_parse(text, dtype) && (*dtype == TDM_DTYPE_BF16 || *dtype == TDM_DTYPE_FP32))
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--save-dtype \"%s\"; bf16 or fp32 is due", text);
}

static enum tdm_status read_shard(const char *text, uint64_t *bytes, struct tdm_error *err)
{
    enum tdm_status status = tdm_parse_bytes(text, "--save-shard", bytes, err);
    if (status == TDM_OK && *bytes == 0)
        return tdm_fail(err, TDM_USAGE, "--save-shard: \"%s\"; at least 1 byte is due", text);
    return status;
}

static enum tdm_status read_trace_ops(const char *text, uint64_t *every, struct tdm_error *err)
{
    if (strcmp(text, "all") == 0) {
        *every = 1;
        return TDM_OK;
    }
    if (strcmp(text, "first") == 0) {
        *every = UINT64_MAX;
        return TDM_OK;
    }
    if (strncmp(text, "every:", 6) == 0)
        return tdm_parse_count(text + 6, "--trace-ops every:K", 1, INT64_MAX, every, err);
    return tdm_fail(err, TDM_USAGE, "--trace-ops \"%s\"; all, first or every:K is due", text);
}

/* A share below 1, or a file. */
static enum tdm_status read_validation(const char *text, struct tdm_run_options *run,
                                       struct tdm_error *err)
{
    char *end;
    double share = strtod(text, &end);
    if (end == text || *end != '\0') {
        run->validation_path = text;
        return TDM_OK;
    }
    run->validation_share = share;
    if (share > 0 && share < 1)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--validation \"%s\"; use a share above 0 and below 1, or a file",
             text);
    return tdm_hint(err, "for example --validation 0.1");
}

/* What is said about an evaluation that there is none of; and what it is by default. */
static enum tdm_status complete_evaluation(struct tdm_run_options *run, struct tdm_error *err)
{
    bool asked = run->validation_path != NULL || run->validation_share > 0;
    const char *option = asked                       ? "--validation"
                         : run->evaluate_every > 0   ? "--evaluate-every"
                         : run->evaluate_windows > 0 ? "--evaluate-steps"
                                                     : NULL;
    if (run->evaluate_path == NULL && option != NULL) {
        tdm_fail(err, TDM_USAGE, "%s is given without --evaluate", option);
        return tdm_hint(err, "tidemark plan --pass evaluate --like SCHEDULE -o evaluate.json "
                             "writes a schedule for --evaluate");
    }
    if (run->validation_share > 0 && run->tokens_path == NULL)
        return tdm_fail(err, TDM_USAGE,
                        "--validation %g is a share of --tokens, which is not given",
                        run->validation_share);
    if (!asked)
        run->validation_share = 0.05;
    if (run->evaluate_every == 0)
        run->evaluate_every = (run->steps + 9) / 10;
    if (run->evaluate_windows == 0)
        run->evaluate_windows = 1;
    return TDM_OK;
}

/* The same of a directory to save to. */
static enum tdm_status complete_saving(struct tdm_run_options *run, struct tdm_error *err)
{
    const char *option = run->save_every > 0                 ? "--save-every"
                         : run->save_dtype != TDM_DTYPE_NONE ? "--save-dtype"
                         : run->shard_bytes > 0              ? "--save-shard"
                                                             : NULL;
    if (run->save_path == NULL && option != NULL)
        return tdm_fail(err, TDM_USAGE, "%s is given without --save", option);
    if (run->shard_bytes == 0)
        run->shard_bytes = TDM_SHARD_BYTES;
    return TDM_OK;
}

static enum tdm_status read_arguments(int argc, char **argv, struct arguments *arguments,
                                      struct tdm_error *err)
{
    enum {
        BACKEND = 256,
        WEIGHTS,
        TOKENS,
        STEPS,
        SET,
        EVALUATE,
        EVALUATE_EVERY,
        EVALUATE_STEPS,
        VALIDATION,
        SAVE,
        SAVE_EVERY,
        SAVE_DTYPE,
        SAVE_SHARD,
        SAVE_GRADIENTS,
        TRACE,
        TRACE_OPS,
        FORCE,
        DRY_RUN,
        JSON
    };
    static const struct option options[] = {
        {"backend", required_argument, NULL, BACKEND},
        {"weights", required_argument, NULL, WEIGHTS},
        {"tokens", required_argument, NULL, TOKENS},
        {"steps", required_argument, NULL, STEPS},
        {"set", required_argument, NULL, SET},
        {"evaluate", required_argument, NULL, EVALUATE},
        {"evaluate-every", required_argument, NULL, EVALUATE_EVERY},
        {"evaluate-steps", required_argument, NULL, EVALUATE_STEPS},
        {"validation", required_argument, NULL, VALIDATION},
        {"save", required_argument, NULL, SAVE},
        {"save-every", required_argument, NULL, SAVE_EVERY},
        {"save-dtype", required_argument, NULL, SAVE_DTYPE},
        {"save-shard", required_argument, NULL, SAVE_SHARD},
        {"save-gradients", required_argument, NULL, SAVE_GRADIENTS},
        {"trace", required_argument, NULL, TRACE},
        {"trace-ops", required_argument, NULL, TRACE_OPS},
        {"force", no_argument, NULL, FORCE},
        {"dry-run", no_argument, NULL, DRY_RUN},
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    struct tdm_run_options *run = &arguments->run;
    const char *backend = "cpu";
    enum tdm_status status = TDM_OK;
    int option;

    run->steps = 1;
    static const int repeatable[] = {SET, 0};
    struct tdm_options o = {
        .command = "run", .letters = ":h", .names = options, .repeatable = repeatable};
    while (status == TDM_OK &&
           (status = tdm_options_next(&o, argc, argv, &option, err)) == TDM_OK && option != -1)
        switch (option) {
        case BACKEND:
            backend = optarg;
            break;
        case WEIGHTS:
            status = read_weights(optarg, run, err);
            break;
        case TOKENS:
            run->tokens_path = optarg;
            break;
        case STEPS:
            status = tdm_parse_count(optarg, "--steps", 1, (uint64_t)1 << 40, &run->steps, err);
            break;
        case SET:
            if (run->pair_count == MOST_PAIRS)
                return tdm_fail(err, TDM_USAGE, "--set is given more than %u times", MOST_PAIRS);
            arguments->pairs[run->pair_count++] = optarg;
            run->pairs = arguments->pairs;
            break;
        case EVALUATE:
            run->evaluate_path = optarg;
            break;
        case EVALUATE_EVERY:
            status = tdm_parse_count(optarg, "--evaluate-every", 1, (uint64_t)1 << 40,
                                     &run->evaluate_every, err);
            break;
        case EVALUATE_STEPS:
            status = tdm_parse_count(optarg, "--evaluate-steps", 1, (uint64_t)1 << 40,
                                     &run->evaluate_windows, err);
            break;
        case VALIDATION:
            status = read_validation(optarg, run, err);
            break;
        case SAVE:
            run->save_path = optarg;
            break;
        case SAVE_EVERY:
            status = tdm_parse_count(optarg, "--save-every", 1, (uint64_t)1 << 40, &run->save_every,
                                     err);
            break;
        case SAVE_DTYPE:
            status = read_save_dtype(optarg, &run->save_dtype, err);
            break;
        case SAVE_SHARD:
            status = read_shard(optarg, &run->shard_bytes, err);
            break;
        case SAVE_GRADIENTS:
            run->gradients_path = optarg;
            break;
        case TRACE:
            run->trace_path = optarg;
            break;
        case TRACE_OPS:
            status = read_trace_ops(optarg, &run->timed_every, err);
            break;
        case FORCE:
            run->force = true;
            break;
        case DRY_RUN:
            run->dry_run = true;
            break;
        case JSON:
            arguments->json = true;
            break;
        default: /* help */
            arguments->help = true;
            return TDM_OK;
        }
    if (status != TDM_OK)
        return status;
    if (optind == argc) {
        tdm_fail(err, TDM_USAGE, "run needs a schedule");
        return tdm_hint(err, "tidemark plan MODEL --context N -o plan.json writes one");
    }
    run->schedule_count = (uint32_t)(argc - optind);
    run->schedule_paths = (const char *const *)(argv + optind);
    run->stop = &stop;
    status = complete_saving(run, err);
    if (status == TDM_OK)
        status = complete_evaluation(run, err);
    if (status != TDM_OK)
        return status;
    return tdm_backend_find(backend, &run->backend, err);
}

/* The command as typed, for the trace; malloc'ed. */
static char *join(int argc, char **argv)
{
    size_t bytes = sizeof("tidemark");
    for (int i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    char *text = malloc(bytes);
    if (text == NULL)
        return NULL;
    char *end = stpcpy(text, "tidemark");
    for (int i = 0; i < argc; i++)
        end = stpcpy(stpcpy(end, " "), argv[i]);
    return text;
}

static json_t *validation_json(const struct tdm_run_validation *validation)
{
    json_t *object = json_pack(
        "{s:I, s:I, s:I, s:I, s:f}", "evaluations", (json_int_t)validation->evaluations, "tokens",
        (json_int_t)validation->tokens, "last_step", (json_int_t)validation->last_step, "best_step",
        (json_int_t)validation->best_step, "seconds", validation->seconds);
    if (!isnan(validation->last_loss)) { /* else nothing is computed */
        tdm_json_set(&object, "last_loss", json_real(validation->last_loss));
        tdm_json_set(&object, "best_loss", json_real(validation->best_loss));
    }
    return object;
}

static enum tdm_status print_json(const struct arguments *arguments,
                                  const struct tdm_run_result *results, enum tdm_status status,
                                  struct tdm_error *err)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < arguments->run.schedule_count; i++) {
        const struct tdm_run_result *result = &results[i];
        json_t *arenas = json_object();
        bool ran = result->steps > 0;
        bool computed = !isnan(result->first_loss);
        for (uint32_t place = 0; place < result->topology.place_count; place++) {
            const struct tdm_trace_arena *arena = &result->arenas[place];
            json_t *bytes = json_pack("{s:I}", "planned_bytes", (json_int_t)arena->planned_bytes);
            if (computed) {
                tdm_json_set(&bytes, "touched_bytes",
                             json_integer((json_int_t)arena->touched_bytes));
                tdm_json_set(&bytes, "highest_byte", json_integer((json_int_t)arena->highest_byte));
            }
            tdm_json_set(&arenas, tdm_place_name(&result->topology, (enum tdm_place)place), bytes);
        }
        json_t *object = json_pack("{s:o, s:I, s:f, s:o}", "schedule",
                                   tdm_json_text(arguments->run.schedule_paths[i]), "steps",
                                   (json_int_t)result->steps, "predicted_step_seconds",
                                   result->predicted_step_seconds, "arenas", arenas);
        if (ran) {
            tdm_json_set(&object, "tokens", json_integer((json_int_t)result->tokens));
            tdm_json_set(&object, "seconds", json_real(result->seconds));
            tdm_json_set(&object, "outside_bytes", json_integer((json_int_t)result->outside_bytes));
        }
        if (result->device_used_bytes > 0) {
            tdm_json_set(&object, "device_used_bytes",
                         json_integer((json_int_t)result->device_used_bytes));
            tdm_json_set(&object, "device_planned_bytes",
                         json_integer((json_int_t)result->device_planned_bytes));
        }
        if (computed) {
            tdm_json_set(&object, "first_loss", json_real(result->first_loss));
            tdm_json_set(&object, "late_loss", json_real(result->late_loss));
            tdm_json_set(&object, "unigram_entropy", json_real(result->unigram_entropy));
        }
        if (result->validation.evaluations > 0)
            tdm_json_set(&object, "validation", validation_json(&result->validation));
        tdm_json_add(&array, object);
    }
    json_t *root = json_pack("{s:s, s:b, s:b, s:o}", "backend", arguments->run.backend->name,
                             "fits", status != TDM_INFEASIBLE, "finished",
                             status == TDM_OK && !arguments->run.dry_run, "runs", array);
    return tdm_json_write(stdout, true, root, err);
}

/* What an interrupted run leaves: its trace, and the weights that it saved last. */
static void hint_what_is_left(const struct tdm_run_options *run,
                              const struct tdm_run_result *result, struct tdm_error *err)
{
    uint64_t saved = run->save_path == NULL || run->save_every == 0
                         ? 0
                         : result->steps / run->save_every * run->save_every;
    if (saved > 0 && run->trace_path != NULL)
        tdm_hint(err,
                 "%s has the weights after step %" PRIu64
                 "; what was measured so far is in %s (tidemark report)",
                 run->save_path, saved, run->trace_path);
    else if (saved > 0)
        tdm_hint(err, "%s has the weights after step %" PRIu64, run->save_path, saved);
    else if (run->trace_path != NULL)
        tdm_hint(err, "what was measured so far is in %s; tidemark report shows it",
                 run->trace_path);
}

static enum tdm_status run_command(int argc, char **argv, struct tdm_error *err)
{
    struct arguments arguments = {0};
    char *command = join(argc, argv);
    enum tdm_status status = read_arguments(argc, argv, &arguments, err);
    if (status == TDM_OK && arguments.help)
        fputs(help, stdout);
    if (status != TDM_OK || arguments.help) {
        free(command);
        return status;
    }
    arguments.run.command = command;

    struct tdm_run_result *results =
        calloc((size_t)arguments.run.schedule_count + 1, sizeof(*results));
    if (results == NULL) {
        free(command);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u schedules",
                        arguments.run.schedule_count);
    }
    struct tdm_progress progress;
    struct tdm_ticker ticker;
    tdm_progress_begin(&progress, stderr, arguments.run.steps);
    progress.waiting = &ticker;
    tdm_ticker_begin(&ticker, stderr, "reading and checking the schedules");
    struct tdm_run_listener listener = tdm_progress_listener(&progress);
    status = tdm_run(&arguments.run, &listener, results, err);
    tdm_progress_end(&progress, &arguments.run, results, status);
    enum tdm_status printed = TDM_OK;
    if (arguments.json &&
        (status == TDM_OK || status == TDM_INTERRUPTED || status == TDM_INFEASIBLE))
        printed = print_json(&arguments, results, status, err);
    if (printed != TDM_OK)
        status = printed;
    if (status == TDM_INTERRUPTED && results[0].begun)
        hint_what_is_left(&arguments.run, &results[0], err);
    free(results);
    free(command);
    return status;
}

static enum tdm_status start(int argc, char **argv, struct tdm_error *err)
{
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESETHAND};
    enum tdm_status status = tdm_process_begin(err);
    if (status != TDM_OK)
        return status;
    struct sigaction hangup;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* a terminal that goes away ends a run like SIGTERM, but not one that nohup started */
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    if (argc >= 2 && strcmp(argv[1], "run") == 0)
        return run_command(argc - 1, argv + 1, err);
    if (argc >= 2 && strcmp(argv[1], "calibrate") == 0)
        return tdm_cmd_calibrate(argc - 1, argv + 1, &stop, err);
    return tdm_fail(err, TDM_USAGE,
                    "tidemark-executor is started by tidemark run and tidemark calibrate");
}

int main(int argc, char **argv)
{
    struct tdm_error err = {0};
    enum tdm_status status = start(argc, argv, &err);
    if (status == TDM_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = tdm_fail(&err, TDM_IO, "writing to stdout failed");
    if (status != TDM_OK) {
        fprintf(stderr, "tidemark: %s\n", err.message);
        if (err.hint[0] != '\0')
            fprintf(stderr, "hint: %s\n", err.hint);
    }
    return tdm_exit_code(status);
}
