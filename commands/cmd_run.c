/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark run`: its options. tidemark-executor runs it (executor_run.c), because only that
 * program has the backends. */
#include "commands/run_arguments.h"

#include "base/units.h"
#include "commands/cmd.h"
#include "commands/common_options.h"
#include "commands/run_texts.h"
#include "models/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STEPS (UINT64_C(1) << 40)

/* ---- values with a custom parser ---- */

static enum tdm_status read_weights(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_run_options *run = value;
    bool random = strncmp(text, "random:", 7) == 0;
    run->weights_path = random ? NULL : text;
    run->seed = 0;
    run->seed_given = true;
    if (!random)
        return TDM_OK;
    return tdm_parse_count(text + 7, "--weights random:SEED", 0, INT64_MAX, &run->seed, err);
}

static enum tdm_status read_save_dtype(const char *text, void *value, struct tdm_error *err)
{
    enum tdm_dtype *dtype = value;
    if (tdm_dtype_parse(text, dtype) && (*dtype == TDM_DTYPE_BF16 || *dtype == TDM_DTYPE_FP32))
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--save-dtype \"%s\"; expected bf16 or fp32", text);
}

static enum tdm_status read_shard(const char *text, void *value, struct tdm_error *err)
{
    uint64_t *bytes = value;
    enum tdm_status status = tdm_parse_bytes(text, "--save-shard", bytes, err);
    if (status == TDM_OK && *bytes == 0)
        return tdm_fail(err, TDM_USAGE, "--save-shard: \"%s\"; expected at least 1 byte", text);
    return status;
}

static enum tdm_status read_trace_ops(const char *text, void *value, struct tdm_error *err)
{
    uint64_t *every = value;
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
    return tdm_fail(err, TDM_USAGE, "--trace-ops \"%s\"; expected all, first or every:K", text);
}

/* A time: "90", "90s", "10m", "2h". */
static enum tdm_status read_within(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_run_options *run = value;
    char *end;
    double number = strtod(text, &end);
    const double unit = strcmp(end, "m") == 0 ? 60 : strcmp(end, "h") == 0 ? 3600 : 1;
    const bool known = end[0] == '\0' || (strchr("smh", end[0]) != NULL && end[1] == '\0');
    run->saves_within = true;
    run->within_seconds = number * unit;
    if (end != text && known && number >= 0 && number <= 1e9)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--save-within \"%.64s\"; expected a time", text);
    return tdm_hint(err, "for example --save-within 10m; 90s, 90 and 2h are times too");
}

static enum tdm_status read_pair(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_run_arguments *a = value;
    if (a->run.pair_count == TDM_RUN_MOST_PAIRS)
        return tdm_fail(err, TDM_USAGE, "--set is given more than %u times", TDM_RUN_MOST_PAIRS);
    a->pairs[a->run.pair_count++] = text;
    a->run.pairs = a->pairs;
    return TDM_OK;
}

/* Numbers of devices: "0,1". */
static enum tdm_status read_devices(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_run_arguments *a = value;
    char number[16];
    const char *at = text;
    a->run.device_count = 0;
    a->run.devices = a->devices;
    do {
        size_t length = strcspn(at, ",");
        uint64_t device = 0;
        if (length == 0 || length >= sizeof(number) || a->run.device_count == TDM_MAX_RANKS)
            return tdm_fail(err, TDM_USAGE, "--devices \"%s\"; expected numbers of devices, as 0,1",
                            text);
        memcpy(number, at, length);
        number[length] = '\0';
        enum tdm_status status =
            tdm_parse_count(number, "--devices", 0, TDM_MAX_RANKS - 1, &device, err);
        if (status != TDM_OK)
            return status;
        a->devices[a->run.device_count++] = (uint32_t)device;
        at += length;
    } while (*at++ == ',');
    return TDM_OK;
}

static enum tdm_status read_order(const char *text, void *value, struct tdm_error *err)
{
    const char *name;
    for (int order = 0; (name = tdm_text_order_name((enum tdm_text_order)order)) != NULL; order++) {
        if (strcmp(text, name) != 0)
            continue;
        *(enum tdm_text_order *)value = (enum tdm_text_order)order;
        return TDM_OK;
    }
    return tdm_fail(err, TDM_USAGE, "--order \"%.64s\"; expected random, shuffled or packed", text);
}

/* ---- the table ---- */

#define PLACE(field) offsetof(struct tdm_run_arguments, field)

static const struct tdm_option options[] = {
    {.as = &tdm_option_backend,
     .place = PLACE(backend),
     .help = "cpu (default): computes on this machine's cores; cuda: on an NVIDIA GPU, where the "
             "build has CUDA; null: walks the program and counts, computes nothing",
     .values = TDM_VALUES_NAMES,
     .names = "cpu, cuda or null"},
    {.name = "devices",
     .word = "LIST",
     .place = 0,
     .read = read_devices,
     .help =
         "of a schedule for several ranks: the number of the device of each rank of this "
         "process, as 0,1; ranks may share one (0,0); by default the first has device 0, and so "
         "on"},
    {.name = "transport",
     .word = "NAME",
     .place = PLACE(transport),
     .help = "of a schedule for several ranks, how bytes get from rank to rank: shared: each reads "
             "the memory of the others, in one process; nccl: by NCCL, between GPUs; mpi: "
             "messages, between processes that mpirun started, of cpu; by default what fits",
     .details = "mpirun -n N tidemark run SCHEDULE divides the ranks among N processes, one a "
                "node. All read the same files; the first one prints and writes the trace. "
                "Checkpoints are written by all, to one directory. "
                "Before memory is taken they compare schedules, texts, versions and cards. A rank "
                "that does not come to where others wait is given up after 30 s (TIDEMARK_LATE in "
                "the environment changes that), or after ten times what it should need.",
     .values = TDM_VALUES_NAMES,
     .names = "shared, nccl or mpi"},
    {.name = "weights",
     .word = "WEIGHTS",
     .place = PLACE(run),
     .read = read_weights,
     .help = "random:SEED (default random:0), or a Hugging Face directory: config.json and "
             "safetensors of bf16, fp16 or fp32. SEED (0 with a directory) also chooses where "
             "sequences begin and rounds stochastically",
     .details =
         "config.json must describe the model of the schedules; the weights are in "
         "model.safetensors, or in shards with model.safetensors.index.json. Values are "
         "rounded once, to what the schedule stores; masters, where it has them, are those of "
         "the files exactly. What is rounded stochastically is what the optimizer stores "
         "without a wider copy.",
     .values = TDM_VALUES_FOLDERS},
    {.name = "tokens",
     .word = "FILE",
     .place = PLACE(run.tokens_path),
     .help =
         "token ids: a .npy array of whole numbers, llm.c's .bin, Megatron-LM's .bin with its "
         ".idx, or .jsonl: a document a line, {\"tokens\": [5, 2]} or {\"prompt\": [5], "
         "\"completion\": [2]}, of which completions are trained on; uint16:FILE or uint32:FILE: such numbers and nothing else; bytes:FILE: one token "
         "a byte, for which vocabularies of up to 260 need no \"bytes:\"; several with commas "
         "between them, or a quoted pattern, are one text; default random tokens. "
         "Longer than a sequence of the step",
     .details =
         "What a file holds is told by its contents: an array of NumPy (.npy) with one "
         "dimension of little-endian whole numbers of 1, 2, 4 or 8 bytes; data of llm.c, which "
         "begins with 20240520 (GPT-2's, uint16) or 20240801 (Llama 3's, uint32); data of "
         "Megatron-LM, of which FILE is PREFIX.bin, PREFIX.idx or PREFIX. Other files are "
         "refused, but for models of a vocabulary of up to 260 entries. Numbers of uint16: and "
         "uint32: are little-endian, from the first byte on. Every id must be in the model's "
         "vocabulary. Where the schedule says of how many tokens documents are, the file may "
         "be as short as one. A file of up to 4 GiB is read.",
     .values = TDM_VALUES_FILES},
    {.name = "mask",
     .word = "WHAT",
     .place = PLACE(run.mask_path),
     .help = "a number for each of --tokens, in the same formats (a file of no known format is "
             "bytes): tokens where it is 0 are read, but not trained on",
     .values = TDM_VALUES_FILES},
    {.name = "order",
     .word = "ORDER",
     .place = PLACE(run.order),
     .read = read_order,
     .help = "random (default): each sequence begins at a random place of the text; shuffled: each "
             "part of the text once, in an order that the seed gives, before any comes again; "
             "packed: the same for sequences that whole documents are packed into, of a plan with "
             "documents=file",
     .values = TDM_VALUES_NAMES,
     .names = "random, shuffled or packed"},
    {.name = "steps",
     .word = "N",
     .type = TDM_OPTION_COUNT,
     .low = 1,
     .high = MOST_STEPS,
     .place = PLACE(run.steps),
     .help = "step to reach, counted from the start of the training (default 1)"},
    {.as = &tdm_option_set,
     .read = read_pair,
     .help =
         "train with another setting than the schedule has; may be repeated, a key only once. "
         "Those that change neither memory nor operations: optimizer.NAME=X, or NAME=X, with "
         "learning_rate, schedule, final_learning_rate, decay_steps, warmup_steps, beta1, beta2, "
         "epsilon, weight_decay, decayed, clip_norm",
     .details = "A trace records the schedule as it was run."},
    {.name = "evaluate",
     .word = "FILE",
     .place = PLACE(run.evaluate_path),
     .help =
         "evaluate between steps by this schedule (plan --pass evaluate --like SCHEDULE), on the "
         "weights that are trained; its optimizer, homes and dtypes of state must be the same",
     .details = "It uses the same memory.",
     .values = TDM_VALUES_FILES},
    {.name = "evaluate-every",
     .word = "N",
     .type = TDM_OPTION_COUNT,
     .low = 1,
     .high = MOST_STEPS,
     .place = PLACE(run.evaluate_every),
     .help =
         "evaluate after every N-th step, and after the last one; default a tenth of the steps"},
    {.name = "evaluate-steps",
     .word = "N",
     .type = TDM_OPTION_COUNT,
     .low = 1,
     .high = MOST_STEPS,
     .place = PLACE(run.evaluate_windows),
     .help = "steps of FILE in an evaluation, each on the text that follows (default 1); no more "
             "than the validation text holds"},
    {.name = "validation",
     .word = "[NAME=]WHAT",
     .repeats = true,
     .place = PLACE(run),
     .read = tdm_run_text_read,
     .help =
         "text to evaluate on: a file as for --tokens, or a share of --tokens, its end, which is "
         "not trained on (default 0.05); may be repeated: a loss for each, by NAME (default: the "
         "file's)",
     .values = TDM_VALUES_FILES},
    {.name = "save",
     .word = "DIR",
     .place = PLACE(run.save_path),
     .help =
         "after the last step write the model to a new directory that transformers and --weights "
         "load; it is read back before it takes its place",
     .details = "It has config.json and safetensors; headers, sizes and a checksum of the data are "
                "compared. Tokenizer and generation files of --weights DIR, or of the checkpoint, "
                "are copied.",
     .values = TDM_VALUES_FOLDERS},
    {.name = "save-every",
     .word = "N",
     .type = TDM_OPTION_COUNT,
     .low = 1,
     .high = MOST_STEPS,
     .place = PLACE(run.save_every),
     .help =
         "write checkpoints to the directory of --save, after every N-th step and the last one: "
         "step-N, from which --resume goes on exactly, and which is a model too; latest is a "
         "link to the newest",
     .details = "Beside the model it has masters, moments, the losses so far and what decides the "
                "next steps, each with a checksum."},
    {.name = "save-keep",
     .word = "K",
     .type = TDM_OPTION_COUNT,
     .low = 1,
     .high = MOST_STEPS,
     .place = PLACE(run.save_keep),
     .help = "checkpoints that stay (default 1); an older one is removed when a newer one was read "
             "back"},
    {.name = "save-within",
     .word = "TIME",
     .place = PLACE(run),
     .read = read_within,
     .help = "write a checkpoint also within a step, in its backward where a layer ends, when the "
             "last one is TIME old (10m) or the run is to stop; a resume with the same schedule "
             "finishes the step with the same bits",
     .details = "It is in within-N of the directory, until step N is saved. It has the memory that "
                "the rest of the step needs, a file for each rank; the run, and a dry run, say how "
                "much that is."},
    {.name = "resume",
     .word = "DIR",
     .place = PLACE(run.resume_path),
     .help = "go on exactly from the latest checkpoint of a directory that --save-every wrote, or "
             "from one of its step-N, up to step --steps",
     .details =
         "The schedule may be another one for the same model, optimizer and sequences: what "
         "it keeps where, its groups, order and prefetch change no bit; other chunks, ranks, "
         "dtypes or another backend round sums otherwise, and it is said. Another model, "
         "optimizer, text or seed is refused. A setting differs only if --set says so.",
     .values = TDM_VALUES_FOLDERS},
    {.name = "save-dtype",
     .word = "TYPE",
     .place = PLACE(run.save_dtype),
     .read = read_save_dtype,
     .help =
         "dtype of its files: bf16 or fp32; default that of the schedule's weights; fp32 has the "
         "precision of the masters",
     .values = TDM_VALUES_NAMES,
     .names = "bf16 or fp32"},
    {.name = "save-shard",
     .word = "SIZE",
     .place = PLACE(run.shard_bytes),
     .read = read_shard,
     .help = "largest file of it (default 5G): a larger model has shards and an index"},
    {.name = "save-gradients",
     .word = "DIR",
     .place = PLACE(run.gradients_path),
     .help = "write the gradients of the last step in fp32, under the names of their weights, to "
             "gradients.safetensors in a new directory; for schedules with --optimizer none",
     .details = "Large ones are shards with an index.",
     .values = TDM_VALUES_FOLDERS},
    {.name = "trace",
     .word = "FILE",
     .place = PLACE(run.trace_path),
     .help = "record the run to this SQLite database",
     .values = TDM_VALUES_FILES},
    {.name = "trace-ops",
     .word = "WHICH",
     .place = PLACE(run.timed_every),
     .read = read_trace_ops,
     .help = "op times of: all steps, first, or every:K; default all while they are fewer than "
             "2,000,000 and take less than 1% of a step, else first",
     .values = TDM_VALUES_NAMES,
     .names = "all, first or every:"},
    {.name = "log",
     .word = "DIR",
     .place = PLACE(run.log_path),
     .help =
         "write a row a step to DIR/train.csv and DIR/gradient_norms.csv (by part of the model), "
         "and a row an evaluation to DIR/validation.csv, and all to an event file of TensorBoard "
         "there; they can be read while the run goes on",
     .details =
         "Loss, gradient norm, learning rate, seconds, tokens/s, MFU, used memory. A resumed "
         "run with the same directory goes on after the step that it goes on from.",
     .values = TDM_VALUES_FOLDERS},
    {.name = "check-finite",
     .type = TDM_OPTION_FLAG,
     .place = PLACE(run.check_finite),
     .help =
         "if a loss or gradient norm is not a number, or a weight to save is not finite, run the "
         "steps since the last checkpoint again, op by op, and name the first op whose output is "
         "not finite",
     .details =
         "Without checkpoints all steps of the run. An op then waits for the one before it."},
    {.as = &tdm_option_force,
     .place = PLACE(run.force),
     .help =
         "replace an existing trace, log, or directory that holds only saved files; what the run "
         "reads is never overwritten"},
    {.name = "dry-run",
     .type = TDM_OPTION_FLAG,
     .place = PLACE(run.dry_run),
     .help =
         "read, lower and check the schedules, and headers of weights; say what they would take "
         "and what is free on the GPU and this computer, and stop (exit status 3 if that is too "
         "little); nothing is written or removed",
     .details = "Where there is no GPU, nothing is known of its memory."},
    {.as = &tdm_option_json,
     .place = PLACE(json),
     .help = "print one JSON object about the run on stdout"},
    {.name = NULL}};

const struct tdm_command tdm_cmd_run = {
    .name = "run",
    .usage = "run SCHEDULE... [options]",
    .summary = "train by schedules that plan wrote",
    .options = options,
    .notes =
        "All memory of a step is taken once, at the planned size, if the GPU and this "
        "computer have it free (else exit status 3); several schedules run one after the "
        "other in it, each from fresh weights. Progress goes to stderr. The first step of a "
        "schedule is the measured one: its memory holds a pattern before it and is scanned "
        "after it. In a step that takes long it says each few seconds where it is, what is "
        "left and what the driver reports of memory, unless TIDEMARK_PROGRESS is no, and the "
        "trace has the ops up to there. Ctrl-C, SIGTERM and SIGHUP end a run after the ops "
        "that are launched, 2 s or two ops at most as predicted, and leave the trace whole, "
        "with how far the step was. With --save-every they let the step end and save it, and "
        "say how long that takes; a second signal ends the run in the step, and a third kills. "
        "SIGUSR1 saves a checkpoint after the step, and the run goes on. What a run that was "
        "killed left of a save is removed by the next with that target.\n"
        "\n"
        "Examples:\n"
        "  tidemark run plan.json --tokens book.txt --steps 100 --trace run.db\n"
        "  tidemark run a.json b.json --steps 3 --json\n"
        "  tidemark run plan.json --tokens book.txt --steps 500 --evaluate evaluate.json\n"
        "  tidemark run plan.json --weights llama/ --tokens book.txt --steps 50 --save "
        "trained/\n"
        "  tidemark run plan.json --tokens book.txt --steps 500 --save saves --save-every 50\n"
        "  tidemark run plan.json --tokens book.txt --steps 500 --save saves --save-every 50 "
        "--resume saves\n"
        "  tidemark run plan.json --backend null --dry-run\n",
    .arguments = TDM_VALUES_FILES,
    .refused = tdm_training_explain,
};

/* ---- checks of combinations ---- */

/* Refuses evaluation options without --evaluate, and fills in the defaults. */
static enum tdm_status complete_evaluation(struct tdm_run_options *run, struct tdm_error *err)
{
    const char *option = run->text_count > 0         ? "--validation"
                         : run->evaluate_every > 0   ? "--evaluate-every"
                         : run->evaluate_windows > 0 ? "--evaluate-steps"
                                                     : NULL;
    if (run->evaluate_path == NULL && option != NULL) {
        tdm_fail(err, TDM_USAGE, "%s is given without --evaluate", option);
        return tdm_hint(err, "tidemark plan --pass evaluate --like SCHEDULE -o evaluate.json "
                             "writes a schedule for --evaluate");
    }
    for (uint32_t i = 0; i < run->text_count; i++)
        if (run->texts[i].path == NULL && run->tokens_path == NULL)
            return tdm_fail(err, TDM_USAGE,
                            "--validation %g is a share of --tokens, which is not given",
                            run->texts[i].share);
    if (run->text_count == 0)
        run->texts[run->text_count++].share = 0.05;
    if (run->evaluate_every == 0)
        run->evaluate_every = (run->steps + 9) / 10;
    if (run->evaluate_windows == 0)
        run->evaluate_windows = 1;
    return tdm_run_texts_name(run, err);
}

/* The same for the --save options. */
static enum tdm_status complete_saving(struct tdm_run_options *run, struct tdm_error *err)
{
    const char *option = run->save_every > 0                 ? "--save-every"
                         : run->saves_within                 ? "--save-within"
                         : run->save_keep > 0                ? "--save-keep"
                         : run->save_dtype != TDM_DTYPE_NONE ? "--save-dtype"
                         : run->shard_bytes > 0              ? "--save-shard"
                                                             : NULL;
    if (run->save_path == NULL && option != NULL)
        return tdm_fail(err, TDM_USAGE, "%s is given without --save", option);
    if (run->save_keep > 0 && run->save_every == 0)
        return tdm_fail(err, TDM_USAGE, "--save-keep is given without --save-every");
    if (run->saves_within && run->save_every == 0)
        return tdm_fail(err, TDM_USAGE, "--save-within is given without --save-every");
    if (run->save_keep == 0)
        run->save_keep = 1;
    if (run->shard_bytes == 0)
        run->shard_bytes = TDM_SHARD_BYTES;
    return TDM_OK;
}

enum tdm_status tdm_run_arguments_read(int argc, char **argv, struct tdm_run_arguments *a,
                                       bool *help, struct tdm_error *err)
{
    int first;
    *a = (struct tdm_run_arguments){.backend = "cpu", .run = {.steps = 1}};
    enum tdm_status status = tdm_options_read(&tdm_cmd_run, argc, argv, a, &first, help, err);
    if (status != TDM_OK || *help)
        return status;
    if (first == argc) {
        tdm_fail(err, TDM_USAGE, "run needs a schedule");
        return tdm_hint(err, "tidemark plan MODEL --context N -o plan.json writes one");
    }
    a->run.schedule_count = (uint32_t)(argc - first);
    a->run.schedule_paths = (const char *const *)(argv + first);
    status = complete_saving(&a->run, err);
    return status == TDM_OK ? complete_evaluation(&a->run, err) : status;
}
