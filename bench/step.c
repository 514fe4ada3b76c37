/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/step: predicted and measured steps of Qwen2.5-7B on a GPU, through the commands of
 * tidemark. For every row of the table it plans, runs some steps, and reads the report of the last
 * one.
 *
 *     bench/step [--machine M] [--backend B] [--model M] [--steps N] [--dir DIR] [--list | ROW...]
 *
 * ROW gives numbers from the table that --list prints; by default all rows run. A row that cannot
 * be planned or run is reported and left out. tidemark is found through PATH.
 *
 * The floor is the time of the schedule's products, attention and head, recomputation included, at
 * the rates of the machine description (h200-published: 720 TFLOP/s for products, 650 forward and
 * 600 backward for attention). The share is floor over measured time.
 */
#include "bench/commands.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0
#define GRADIENTS "--optimizer none --memory 40G --host-memory 100G --set dtypes.gradients=bf16"
#define ADAMW "--optimizer adamw --memory 130G --host-memory 100G"

struct row {
    const char *context, *what, *plan;
};

static const struct row rows[] = {
    {"8K", "gradients, layer-major", GRADIENTS " --set order=layer-major"},
    {"32K", "gradients, layer-major", GRADIENTS " --set order=layer-major"},
    {"32K", "gradients, layer-major, groups 10,8,5,3,2",
     GRADIENTS " --set order=layer-major --set groups=10,8,5,3,2"},
    {"32K", "gradients, chunk-major", GRADIENTS " --set order=chunk-major"},
    {"32K", "gradients, parallel", GRADIENTS " --set order=layer-major --set chunk=32K"},
    {"64K", "gradients, layer-major", GRADIENTS " --set order=layer-major"},
    {"128K", "gradients, layer-major", GRADIENTS " --set order=layer-major"},
    {"8K", "adamw, layer-major", ADAMW " --set order=layer-major"},
    {"32K", "adamw, layer-major", ADAMW " --set order=layer-major"},
    {"64K", "adamw, layer-major", ADAMW " --set order=layer-major"},
    {"128K", "adamw, layer-major", ADAMW " --set order=layer-major"},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* Steps of other systems, on the same kind of card (H200). */
static const char *const others[] = {
    "32K     gradients, PyTorch, FlashAttention, layer checkpoints    64867 MiB    6.96 s",
    "64K     gradients, PyTorch, FlashAttention, layer checkpoints   100548 MiB   21.0 s",
    "32K     gradients, OOMB                                          37223 MiB   43 s",
    "64K     adamw, als244/ml_dataflow, 96 to 109 GiB of host                     10.47 s",
    "128K    adamw, als244/ml_dataflow, 96 to 109 GiB of host                     30.8 s",
};

struct options {
    const char *machine, *backend, *model, *folder;
    unsigned steps;
};

/* Does the floor count this kind of op? */
static bool is_in_floor(const char *kind)
{
    return strncmp(kind, "product", 7) == 0 || strncmp(kind, "attention", 9) == 0 ||
           strcmp(kind, "head") == 0;
}

static void print_kinds(const json_t *times, double step_seconds)
{
    size_t i;
    json_t *time;
    printf("    %-10s%-22s%10s%12s%12s%8s\n", "phase", "kind", "ops", "predicted", "measured",
           "share");
    json_array_foreach(times, i, time)
    {
        double measured = tdm_bench_number(time, "measured_seconds");
        if (measured < 0.002 * step_seconds)
            continue;
        printf("    %-10s%-22s%10.0f%10.1fms%10.1fms%7.1f%%\n",
               json_string_value(json_object_get(time, "phase")),
               json_string_value(json_object_get(time, "kind")), tdm_bench_number(time, "ops"),
               1e3 * tdm_bench_number(time, "predicted_seconds"), 1e3 * measured,
               100.0 * measured / step_seconds);
    }
}

static void print_row(const struct row *row, const json_t *report)
{
    const json_t *program = json_array_get(json_object_get(report, "programs"), 0);
    const json_t *predicted = json_object_get(program, "predicted");
    const json_t *measured = json_object_get(program, "measured");
    const json_t *times = json_object_get(program, "times");
    double floor_seconds = 0.0, seconds = tdm_bench_number(measured, "step_seconds");
    size_t i;
    json_t *time;
    json_array_foreach(times, i, time)
    {
        if (is_in_floor(json_string_value(json_object_get(time, "kind"))))
            floor_seconds += tdm_bench_number(time, "predicted_seconds");
    }
    printf("%-8s%-44s%10.0f%10.0f%10.0f%10.2f%10.2f%10.2f%7.1f%%\n", row->context, row->what,
           tdm_bench_number(predicted, "peak_bytes") / MIB,
           tdm_bench_number(measured, "peak_bytes") / MIB,
           tdm_bench_number(predicted, "host_peak_bytes") / MIB,
           tdm_bench_number(predicted, "step_seconds"), seconds, floor_seconds,
           100.0 * floor_seconds / seconds);
    print_kinds(times, seconds);
    fflush(stdout);
}

/* Plans, runs, and prints the report. */
static bool measure(const struct options *options, size_t i)
{
    const struct row *row = &rows[i];
    char stem[1024], arguments[1024];
    int status;
    snprintf(stem, sizeof(stem), "%s/%zu", options->folder, i);
    snprintf(arguments, sizeof(arguments), "%s --context %s --machine %s %s", options->model,
             row->context, options->machine, row->plan);
    json_decref(tdm_bench_plan(stem, arguments, &status));
    if (status == 0) {
        snprintf(arguments, sizeof(arguments), "--backend %s --steps %u --trace-ops all",
                 options->backend, options->steps);
        status = tdm_bench_run(stem, arguments);
    }
    if (status != 0) {
        printf("%-8s%-44s failed: exit status %d\n", row->context, row->what, status);
        return false;
    }
    json_t *report = tdm_bench_report(stem, options->steps);
    if (report != NULL)
        print_row(row, report);
    json_decref(report);
    return report != NULL;
}

static bool read_options(int argc, char **argv, struct options *options, bool *list, int *first)
{
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--machine") == 0)
            options->machine = value;
        else if (strcmp(argv[i], "--backend") == 0)
            options->backend = value;
        else if (strcmp(argv[i], "--model") == 0)
            options->model = value;
        else if (strcmp(argv[i], "--dir") == 0)
            options->folder = value;
        else if (strcmp(argv[i], "--steps") == 0 && atoi(value) > 0)
            options->steps = (unsigned)atoi(value);
        else
            return false;
    }
    *list = i + 1 == argc && strcmp(argv[i], "--list") == 0;
    *first = i;
    for (int k = i; k < argc && !*list; k++) {
        char *end;
        if (argv[k][0] < '0' || argv[k][0] > '9' || strtoul(argv[k], &end, 10) >= ROWS || *end != 0)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options options = {"h200", "cuda", "qwen2.5-7b", ".", 2};
    bool list = false;
    int first = 1, failed = 0;
    if (!read_options(argc, argv, &options, &list, &first)) {
        fprintf(stderr, "usage: bench/step [--machine M] [--backend B] [--model M] [--steps N] "
                        "[--dir DIR] [--list | ROW...]\n"
                        "ROW is a number of --list; tidemark is looked for on PATH\n");
        return 2;
    }
    if (list) {
        for (size_t i = 0; i < ROWS; i++)
            printf("%2zu  %-8s%-44s%s\n", i, rows[i].context, rows[i].what, rows[i].plan);
        return 0;
    }
    printf("%s on %s, step %u\n", options.model, options.machine, options.steps);
    printf("%-8s%-44s%10s%10s%10s%10s%10s%10s%8s\n", "tokens", "step", "MiB plan", "MiB used",
           "MiB host", "s plan", "s taken", "s floor", "share");
    for (size_t i = 0; i < ROWS; i++) {
        bool chosen = first == argc;
        for (int k = first; k < argc; k++)
            chosen = chosen || (size_t)atol(argv[k]) == i;
        if (chosen && !measure(&options, i))
            failed = 1;
    }
    puts("Others, on an H200:");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        puts(others[i]);
    return failed;
}
