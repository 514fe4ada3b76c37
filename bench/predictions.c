/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/predictions: are the predictions right? It plans and runs schedules on a calibrated
 * machine. It compares the step time, the planned and touched bytes of the arena, the bytes that
 * the driver reports, and the time by op kind over all schedules.
 *
 *     bench/predictions --machine FILE [--backend B] [--dir DIR] [--within SECONDS]
 *                       [--quick | ROW...]
 *
 * ROW gives numbers of the table, in the order to run them; by default all rows run. --within: no
 * row begins after that many seconds. --quick: a small model on the cpu backend. Every row is a
 * separate run of two steps. The step time is the second step's; the times by op kind are those of
 * the first, whose ops are timed. A row that cannot be planned or run is reported and left out, and
 * the exit status is then 1. tidemark is found through PATH.
 */
#include "bench/commands.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB 1048576.0
#define ONE " --set order=layer-major --set groups=1"
#define CHUNKS " --set order=chunk-major"
#define GRADIENTS " --optimizer none --set dtypes.gradients=bf16"
#define HOST " --optimizer adamw-bf16 --set weights=host --set moments=host"

struct row {
    const char *model, *context, *what, *plan;
};

static const struct row rows[] = {
    {"qwen2.5-0.5b", "8K", "groups of 1, adamw", ONE " --set chunk=4K"},
    {"qwen2.5-0.5b", "8K", "chunk-major, chunks of 2K", CHUNKS GRADIENTS " --set chunk=2K"},
    {"qwen2.5-0.5b", "16K", "uneven groups, adamw",
     " --set order=layer-major --set groups=8,6,5,3,2 --set chunk=4K"},
    {"qwen2.5-0.5b", "16K", "chunk-major, states on the host", CHUNKS HOST " --set chunk=4K"},
    {"qwen2.5-0.5b", "32K", "groups of 1, adamw", ONE " --set chunk=4K"},
    {"qwen2.5-0.5b", "32K", "uneven groups, states on the host",
     " --set order=layer-major --set groups=8,6,5,3,2" HOST},
    {"qwen2.5-0.5b", "32K", "chunk-major, chunks of 4K", CHUNKS GRADIENTS " --set chunk=4K"},
    {"qwen2.5-0.5b", "64K", "groups of 1, states on the host", ONE HOST " --set chunk=8K"},
    {"qwen2.5-0.5b", "64K", "uneven groups, gradients",
     " --set order=layer-major --set groups=8,6,5,3,2 --set chunk=4K" GRADIENTS},
    {"qwen2.5-0.5b", "64K", "chunk-major", CHUNKS GRADIENTS},
    {"qwen2.5-7b", "8K", "groups of 1, adamw", ONE " --set chunk=4K"},
    {"qwen2.5-7b", "16K", "uneven groups, gradients",
     " --set order=layer-major --set groups=10,8,5,3,2 --set chunk=4K" GRADIENTS},
    {"qwen2.5-7b", "16K", "groups of 1, states on the host", ONE HOST},
    {"qwen2.5-7b", "32K", "groups of 1, inputs on the host",
     ONE GRADIENTS " --set chunk=4K --set inputs=host"},
    {"qwen2.5-7b", "32K", "chunk-major", CHUNKS GRADIENTS " --set chunk=4K"},
    {"qwen2.5-7b", "64K", "groups of 1, gradients, 40 GiB", ONE GRADIENTS " --memory 40G"},
};

static const struct row quick_rows[] = {
    {"byte-1m", "512", "groups of 1", ONE " --set chunk=128"},
    {"byte-1m", "512", "chunk-major", CHUNKS " --set chunk=128"},
    {"byte-1m", "1K", "uneven groups", " --set groups=2,1,1 --set chunk=256"},
    {"byte-1m", "1K", "chunk-major", CHUNKS " --set chunk=256"},
    {"byte-1m", "2K", "groups of 1", ONE " --set chunk=256"},
    {"byte-1m", "2K", "uneven groups, states on the host",
     " --set groups=2,1,1 --set chunk=512 --set weights=host --set moments=host"},
    {"byte-1m", "4K", "groups of 1, gradients", ONE GRADIENTS " --set chunk=512"},
    {"byte-1m", "4K", "chunk-major, gradients", CHUNKS GRADIENTS " --set chunk=512"},
};

#define MOST_ROWS 32u
#define MOST_KINDS 64u

struct kind {
    char name[40];
    double predicted, measured;
};

struct bench {
    const char *machine, *backend, *folder;
    double within_seconds;
    const struct row *rows;
    size_t row_count, measured;
    double step_errors[MOST_ROWS]; /* 0.1: the prediction is 10% off */
    double used_errors[MOST_ROWS];
    size_t used_count, beyond; /* beyond: rows that touched a byte outside the planned arena */
    struct kind kinds[MOST_KINDS];
    size_t kind_count;
};

static void add_kinds(struct bench *bench, const json_t *times)
{
    size_t i;
    json_t *time;
    json_array_foreach(times, i, time)
    {
        const char *name = json_string_value(json_object_get(time, "kind"));
        size_t k = 0;
        while (k < bench->kind_count && strcmp(bench->kinds[k].name, name) != 0)
            k++;
        if (k == MOST_KINDS)
            continue;
        if (k == bench->kind_count)
            snprintf(bench->kinds[bench->kind_count++].name, sizeof(bench->kinds[0].name), "%s",
                     name);
        bench->kinds[k].predicted += tdm_bench_number(time, "predicted_seconds");
        bench->kinds[k].measured += tdm_bench_number(time, "measured_seconds");
    }
}

/* Takes a row's figures from two reports: the step time from the second step's; the bytes touched
 * and the op times from the first step's. */
static void note_row(struct bench *bench, const struct row *row, const json_t *first,
                     const json_t *second)
{
    const json_t *program = json_array_get(json_object_get(first, "programs"), 0);
    const json_t *predicted = json_object_get(program, "predicted");
    const json_t *measured = json_object_get(program, "measured");
    const json_t *later = json_array_get(json_object_get(second, "programs"), 0);
    double seconds = tdm_bench_number(json_object_get(later, "measured"), "step_seconds");
    double due = tdm_bench_number(predicted, "step_seconds");
    double planned = tdm_bench_number(predicted, "peak_reserved_bytes");
    double used = tdm_bench_number(measured, "peak_bytes");
    double used_planned = tdm_bench_number(predicted, "peak_bytes");
    printf("%-13s%-6s%-36s%9.3f%9.3f%+7.1f%%%11.1f%11.1f", row->model, row->context, row->what, due,
           seconds, 100 * (due / seconds - 1), planned / MIB,
           tdm_bench_number(measured, "touched_bytes") / MIB);
    bench->step_errors[bench->measured++] = fabs(due / seconds - 1);
    bench->beyond += tdm_bench_number(measured, "highest_byte") > planned;
    if (used > 0) {
        printf("%10.0f%10.0f%+7.2f%%", used_planned / MIB, used / MIB,
               100 * (used_planned / used - 1));
        bench->used_errors[bench->used_count++] = fabs(used_planned / used - 1);
    }
    putchar('\n');
    fflush(stdout);
    add_kinds(bench, json_object_get(program, "times"));
}

static bool measure(struct bench *bench, size_t i)
{
    const struct row *row = &bench->rows[i];
    char stem[1024], arguments[1024];
    int status;
    snprintf(stem, sizeof(stem), "%s/%zu", bench->folder, i);
    snprintf(arguments, sizeof(arguments), "%s --context %s --machine '%s' %s", row->model,
             row->context, bench->machine, row->plan);
    json_decref(tdm_bench_plan(stem, arguments, &status));
    if (status == 0) {
        snprintf(arguments, sizeof(arguments),
                 "--backend %s --steps 2 --trace-ops first 2>/dev/null", bench->backend);
        status = tdm_bench_run(stem, arguments);
    }
    json_t *first = status == 0 ? tdm_bench_report(stem, 1) : NULL;
    json_t *second = status == 0 ? tdm_bench_report(stem, 2) : NULL;
    bool done = first != NULL && second != NULL;
    if (done)
        note_row(bench, row, first, second);
    else
        printf("%-13s%-6s%-36s failed: exit status %d\n", row->model, row->context, row->what,
               status);
    json_decref(first);
    json_decref(second);
    return done;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_measured(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;
    return (x->measured < y->measured) - (x->measured > y->measured);
}

static void print_errors(const char *what, double *errors, size_t count)
{
    if (count == 0)
        return;
    qsort(errors, count, sizeof(*errors), by_size);
    double median = (errors[(count - 1) / 2] + errors[count / 2]) / 2;
    printf("%s: median error %.2f%%, worst %.2f%%, of %zu schedules\n", what, 100 * median,
           100 * errors[count - 1], count);
}

static void print_summary(struct bench *bench)
{
    double all = 0;
    print_errors("step time", bench->step_errors, bench->measured);
    print_errors("used bytes", bench->used_errors, bench->used_count);
    printf("arena: %zu of %zu schedules touched a byte beyond the plan\n", bench->beyond,
           bench->measured);
    qsort(bench->kinds, bench->kind_count, sizeof(bench->kinds[0]), by_measured);
    for (size_t i = 0; i < bench->kind_count; i++)
        all += bench->kinds[i].measured;
    printf("%-22s%12s%12s%9s\n", "op kind, all schedules", "predicted", "measured", "ratio");
    for (size_t i = 0; i < bench->kind_count; i++)
        if (bench->kinds[i].measured > 0.002 * all)
            printf("%-22s%10.1fms%10.1fms%9.3f\n", bench->kinds[i].name,
                   1e3 * bench->kinds[i].predicted, 1e3 * bench->kinds[i].measured,
                   bench->kinds[i].predicted / bench->kinds[i].measured);
}

static bool read_options(int argc, char **argv, struct bench *bench, int *first)
{
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            bench->rows = quick_rows;
            bench->row_count = sizeof(quick_rows) / sizeof(quick_rows[0]);
            bench->backend = "cpu";
            continue;
        }
        if (i + 1 == argc)
            return false;
        const char *value = argv[++i];
        if (strcmp(argv[i - 1], "--machine") == 0)
            bench->machine = value;
        else if (strcmp(argv[i - 1], "--backend") == 0)
            bench->backend = value;
        else if (strcmp(argv[i - 1], "--dir") == 0)
            bench->folder = value;
        else if (strcmp(argv[i - 1], "--within") == 0)
            bench->within_seconds = atof(value);
        else
            return false;
    }
    *first = i;
    for (int k = i; k < argc; k++) {
        char *end;
        if (argv[k][0] < '0' || argv[k][0] > '9' ||
            strtoul(argv[k], &end, 10) >= bench->row_count || *end != '\0')
            return false;
    }
    return bench->machine != NULL;
}

int main(int argc, char **argv)
{
    static struct bench bench = {.backend = "cuda",
                                 .folder = ".",
                                 .within_seconds = INFINITY,
                                 .rows = rows,
                                 .row_count = sizeof(rows) / sizeof(rows[0])};
    int first = 1;
    time_t start = time(NULL);
    bool complete = true;
    if (!read_options(argc, argv, &bench, &first)) {
        fprintf(stderr, "usage: bench/predictions --machine FILE [--backend B] [--dir DIR] "
                        "[--within SECONDS] [--quick | ROW...]\n"
                        "FILE is what tidemark calibrate wrote; tidemark is looked for on PATH\n");
        return 2;
    }
    printf("%-13s%-6s%-36s%9s%9s%8s%11s%11s%10s%10s%8s\n", "model", "tokens", "schedule", "s plan",
           "s taken", "error", "MiB arena", "touched", "MiB used", "by driver", "error");
    size_t count = first == argc ? bench.row_count : (size_t)(argc - first);
    for (size_t k = 0; k < count && k < MOST_ROWS; k++) {
        size_t row = first == argc ? k : (size_t)atol(argv[first + (int)k]);
        if (difftime(time(NULL), start) > bench.within_seconds)
            printf("row %zu is left out: it is late\n", row);
        else
            complete = measure(&bench, row) && complete;
    }
    print_summary(&bench);
    return complete ? 0 : 1;
}
