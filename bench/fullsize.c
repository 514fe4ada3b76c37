/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/fullsize: full-parameter training of 7B models at 128K to 512K tokens with little device
 * and host memory. It plans and runs one step of each row. It compares the step time and the bytes
 * that the driver reports with the plan, and with the row that has all of the machine.
 *
 *     bench/fullsize [--machine M] [--backend B] [--dir DIR] [--plan | --report] [--list | ROW...]
 *
 * ROW is a name in the table that --list prints; by default all rows run. --plan only plans.
 * --report only reads the traces that earlier calls left in DIR, so that rows can run one by one or
 * detached; it leaves out rows that are only planned. The column `host` shows what the system
 * reported if the row ran, else the planned bytes. The exit status is 1 if a row cannot be planned
 * or run, if its trace belongs to something else or its step did not finish, or if it misses its
 * targets. tidemark is found through PATH.
 *
 * The rows named `all` use all of the machine; slowdowns are relative to them. The peer is
 * als244/ml_dataflow on an H200, at its best for the context (128K: 30.8 s with 109 GiB of host
 * memory and 128.8 of the device; 256K: 101.2 s with 159 and 128.9).
 */
#include "bench/commands.h"

#include "base/units.h"
#include "traces/reader.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define ALL " --memory 138G --host-memory 110G"
#define BF16_MOMENTS " --optimizer adamw-bf16-moments"
#define BF16 " --optimizer adamw-bf16"
#define FAR_STATES " --set weights=host --set moments=host --set master=host"
#define QKV_KEPT                                                                                \
    " --set order=layer-major --set groups=1 --set chunk=8K --set kv=keep --set attention=kept" \
    " --set kept=qkv --set kept_from=0 --set weights=device --set moments=device"               \
    " --set master=device"

struct row {
    const char *name, *model, *context, *plan, *runs; /* runs NULL: it is only planned */
    const char *reference;                            /* the row it is compared with, or NULL */
    double most_slower;                               /* a target: 0.08 is 8% slower; NAN: none */
    double device_gib, host_gib;                      /* targets: at most these; NAN: none */
    double peer_seconds;                              /* NAN: none */
};

static const struct row rows[] = {
    {"128k-all", "qwen2.5-7b", "128K", ALL BF16_MOMENTS, "yes", NULL, NAN, NAN, 110, 30.8},
    {"128k-16g", "qwen2.5-7b", "128K", " --memory 16G --host-memory 100G" BF16_MOMENTS, "yes",
     "128k-all", 0.08, 16, 100, 30.8},
    {"128k-16g-host64g", "qwen2.5-7b", "128K", " --memory 16G --host-memory 64G" BF16, "yes",
     "128k-all", 0.15, 16, 64, 30.8},
    {"128k-12g", "qwen2.5-7b", "128K", " --memory 12G --host-memory 64G" BF16, "yes", "128k-all",
     NAN, 12, 64, 30.8},
    {"128k-8g", "qwen2.5-7b", "128K", " --memory 8G --host-memory 64G" BF16, "yes", "128k-all", NAN,
     8, 64, 30.8},
    {"128k-7g", "qwen2.5-7b", "128K", " --memory 7G --host-memory 64G" BF16, "yes", "128k-all", NAN,
     7, 64, 30.8},
    {"128k-6g", "qwen2.5-7b", "128K", " --memory 6G --host-memory 64G" BF16, "yes", "128k-all", NAN,
     6, 64, 30.8},
    {"128k-5.5g", "qwen2.5-7b", "128K", " --memory 5632M --host-memory 64G" BF16, "yes", "128k-all",
     NAN, 5.5, 64, 30.8},
    {"128k-least", "qwen2.5-7b", "128K", " --objective memory --host-memory 64G" BF16, NULL,
     "128k-all", NAN, NAN, 64, 30.8},
    {"128k-streamed", "qwen2.5-7b", "128K", ALL BF16_MOMENTS FAR_STATES, "yes", "128k-all", 0.03,
     NAN, 110, 30.8},
    {"256k-12g", "qwen2.5-7b", "256K", " --memory 12G --host-memory 100G" BF16, "yes", NULL, NAN,
     12, 100, 101.2},
    {"256k-host64g", "qwen2.5-7b", "256K", " --memory 138G --host-memory 64G" BF16_MOMENTS, "yes",
     NULL, NAN, NAN, 64, 101.2},
    {"512k-all", "qwen2.5-7b", "512K", ALL BF16_MOMENTS, "yes", NULL, NAN, NAN, 110, NAN},
    {"64k-device", "qwen2.5-7b", "64K",
     ALL BF16_MOMENTS QKV_KEPT " --set kv_place=device --set kept_place=device"
                               " --set inputs=device",
     "yes", NULL, NAN, NAN, 110, 10.47},
    {"64k-residuals-host", "qwen2.5-7b", "64K",
     ALL BF16_MOMENTS QKV_KEPT " --set kv_place=host --set kept_place=host --set inputs=host",
     "yes", "64k-device", 0.03, NAN, 110, 10.47},
    {"14b-64k", "qwen2.5-14b", "64K", ALL BF16, "yes", NULL, NAN, NAN, 110, NAN},
    {"14b-longest", "qwen2.5-14b", NULL, ALL BF16 " --objective context", NULL, NULL, NAN, NAN, 110,
     NAN},
    {"32b-longest", "qwen2.5-32b", NULL, ALL BF16 " --objective context", NULL, NULL, NAN, NAN, 110,
     NAN},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

struct options {
    const char *machine, *backend, *folder;
    bool plan_only, report_only;
};

struct figures {
    bool planned, measured;
    double context, used, host, seconds;                   /* as planned */
    double driver_used, host_used, taken_seconds, stalled; /* as measured; NAN: not */
    char failure[1280];                                    /* "" if there is none in words */
};

/* NAN if the value is null. */
static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void read_plan(struct figures *figures, const json_t *plan)
{
    figures->planned = true;
    figures->context = tdm_bench_number(plan, "context");
    figures->used = tdm_bench_number(plan, "peak_bytes");
    figures->host = tdm_bench_number(plan, "host_peak_bytes");
    figures->seconds = tdm_bench_number(plan, "step_seconds");
}

/* Seconds that the compute lane stalled. */
static double stalled_seconds(const json_t *program)
{
    size_t i;
    json_t *lane;
    json_array_foreach(json_object_get(program, "lanes"), i, lane)
    {
        if (strcmp(json_string_value(json_object_get(lane, "lane")), "compute") == 0)
            return number_of(lane, "measured_stall_seconds");
    }
    return NAN;
}

/* Fails if the step did not finish. */
static int read_report(struct figures *figures, const json_t *report)
{
    const json_t *program = json_array_get(json_object_get(report, "programs"), 0);
    const json_t *predicted = json_object_get(program, "predicted");
    const json_t *measured = json_object_get(program, "measured");
    const json_t *unfinished = json_object_get(program, "unfinished");
    if (json_is_object(unfinished)) {
        snprintf(figures->failure, sizeof(figures->failure), "unfinished, %.0f%% after %.0f s",
                 100 * tdm_bench_number(unfinished, "predicted_seconds") /
                     tdm_bench_number(predicted, "step_seconds"),
                 tdm_bench_number(unfinished, "seconds"));
        return 1;
    }
    figures->planned = figures->measured = true;
    figures->context = tdm_bench_number(program, "tokens");
    figures->used = tdm_bench_number(predicted, "peak_bytes");
    figures->host = tdm_bench_number(predicted, "host_peak_bytes");
    figures->seconds = tdm_bench_number(predicted, "step_seconds");
    figures->driver_used = number_of(measured, "peak_bytes");
    figures->host_used = number_of(measured, "host_peak_bytes");
    figures->taken_seconds = number_of(measured, "step_seconds");
    figures->stalled = stalled_seconds(program);
    return 0;
}

/* Does the schedule have the value that the row's plan gives for the option? If the plan does not
 * have the option, any value is right. */
static bool is_asked(const struct row *row, const char *option, const json_t *schedule,
                     const char *key)
{
    char word[32];
    uint64_t bytes;
    const char *at = strstr(row->plan, option);
    const json_t *value = json_object_get(schedule, key);
    if (at == NULL)
        return true;
    if (sscanf(at + strlen(option), "%31s", word) != 1)
        return false;
    if (json_is_string(value))
        return strcmp(json_string_value(value), word) == 0;
    return tdm_parse_bytes(word, option, &bytes, NULL) == TDM_OK &&
           json_integer_value(value) == (json_int_t)bytes;
}

/* Was the schedule planned for the row? Writes what it was planned for to `is`. */
static bool is_of_row(const struct row *row, const char *schedule, char *is, size_t size)
{
    json_t *json = json_loads(schedule, 0, NULL);
    const json_t *sequences = json_object_get(json, "sequences");
    const char *model = json_string_value(json_object_get(json_object_get(json, "model"), "name"));
    uint64_t context = 0, tokens = 0;
    char text[TDM_FORMAT_SIZE];
    bool same = model != NULL && strcmp(model, row->model) == 0 &&
                tdm_parse_tokens(row->context, "context", &context, NULL) == TDM_OK &&
                json_array_size(sequences) == 1 &&
                json_integer_value(json_array_get(sequences, 0)) == (json_int_t)context &&
                is_asked(row, " --memory ", json, "memory_bytes") &&
                is_asked(row, " --host-memory ", json, "host_memory_bytes") &&
                is_asked(row, " --optimizer ", json_object_get(json, "optimizer"), "kind");
    for (size_t i = 0; i < json_array_size(sequences); i++)
        tokens += (uint64_t)json_integer_value(json_array_get(sequences, i));
    snprintf(is, size, "%s at %s", model == NULL ? "an unknown model" : model,
             tdm_format_tokens(tokens, text));
    json_decref(json);
    return same;
}

/* Refuses a trace that does not belong to the row. */
static int check_trace(const struct options *options, const struct row *row, const char *stem,
                       struct figures *figures)
{
    char path[1100], is[128] = "no program at all";
    struct tdm_trace_reader *reader;
    struct tdm_trace_program_row *programs = NULL;
    size_t count = 0;
    char *schedule = NULL;
    struct tdm_error err = {0};
    snprintf(path, sizeof(path), "%s.db", stem);
    if (tdm_trace_reader_open(path, &reader, &err) != TDM_OK) {
        snprintf(figures->failure, sizeof(figures->failure), "%s", err.message);
        return 1;
    }
    const char *backend = tdm_trace_reader_run(reader)->backend;
    enum tdm_status status = tdm_trace_read_programs(reader, &programs, &count, &err);
    if (status == TDM_OK && count > 0)
        status = tdm_trace_read_schedule(reader, programs[0].program, &schedule, &err);
    if (status != TDM_OK)
        snprintf(figures->failure, sizeof(figures->failure), "%s", err.message);
    else if (schedule == NULL || !is_of_row(row, schedule, is, sizeof(is)))
        snprintf(figures->failure, sizeof(figures->failure),
                 "%s is of a plan of %s, not of the row's: %s --context %s%s", path, is, row->model,
                 row->context, row->plan);
    else if (strcmp(backend, options->backend) != 0)
        snprintf(figures->failure, sizeof(figures->failure),
                 "%s is of backend %s, not of --backend %s", path, backend, options->backend);
    free(schedule);
    free(programs);
    tdm_trace_reader_close(reader);
    return figures->failure[0] == '\0' ? 0 : 1;
}

static int plan_row(const struct options *options, const struct row *row, const char *stem,
                    struct figures *figures)
{
    char arguments[1024], context[64] = "";
    int status;
    if (row->context != NULL)
        snprintf(context, sizeof(context), "--context %s", row->context);
    snprintf(arguments, sizeof(arguments), "%s %s --machine '%s' %s", row->model, context,
             options->machine, row->plan);
    json_t *plan = tdm_bench_plan(stem, arguments, &status);
    if (plan != NULL && status == 0)
        read_plan(figures, plan);
    json_decref(plan);
    return status;
}

static int measure(const struct options *options, const struct row *row, struct figures *figures)
{
    char stem[1024], arguments[256];
    int status;
    snprintf(stem, sizeof(stem), "%s/%s", options->folder, row->name);
    if (options->report_only)
        status = check_trace(options, row, stem, figures);
    else
        status = plan_row(options, row, stem, figures);
    if (status != 0 || options->plan_only || row->runs == NULL)
        return status;
    if (!options->report_only) {
        snprintf(arguments, sizeof(arguments), "--backend %s --steps 1 --trace-ops all",
                 options->backend);
        status = tdm_bench_run(stem, arguments);
    }
    json_t *report = status == 0 ? tdm_bench_report(stem, 1) : NULL;
    if (status == 0)
        status = report == NULL ? 1 : read_report(figures, report);
    json_decref(report);
    return status;
}

static double seconds_of(const struct figures *figures)
{
    return figures->measured ? figures->taken_seconds : figures->seconds;
}

static const struct figures *find_reference(const struct row *row, const struct figures *all)
{
    for (size_t i = 0; i < ROWS && row->reference != NULL; i++)
        if (strcmp(rows[i].name, row->reference) == 0 && all[i].planned &&
            all[i].measured == all[row - rows].measured)
            return &all[i];
    return NULL;
}

/* The target that is missed; NULL: none. */
static const char *missed(const struct row *row, const struct figures *figures, double slower)
{
    double used = figures->measured ? figures->driver_used : figures->used;
    if (used > row->device_gib * GIB)
        return "device memory";
    if (figures->host > row->host_gib * GIB ||
        (figures->measured && figures->host_used > row->host_gib * GIB))
        return "host memory";
    if (slower > row->most_slower)
        return "time";
    if (figures->measured && fabs(figures->seconds / figures->taken_seconds - 1) > 0.08)
        return "predicted time";
    if (figures->measured && fabs(figures->used / figures->driver_used - 1) > 0.005)
        return "predicted memory";
    return NULL;
}

static void print_number(int width, double number)
{
    if (isnan(number))
        printf("%*s", width, "-");
    else
        printf("%*.2f", width, number);
}

/* Prints a row. Returns false if it misses a target. */
static bool print_row(const struct row *row, const struct figures *figures,
                      const struct figures *all)
{
    const struct figures *reference = find_reference(row, all);
    double slower = reference == NULL ? NAN : seconds_of(figures) / seconds_of(reference) - 1;
    const char *miss = missed(row, figures, slower);
    printf("%-20s%7.0fK%9.2f", row->name, figures->context / 1024, figures->used / GIB);
    print_number(9, figures->measured ? figures->driver_used / GIB : NAN);
    print_number(9, (figures->measured ? figures->host_used : figures->host) / GIB);
    print_number(10, figures->seconds);
    print_number(10, figures->measured ? figures->taken_seconds : NAN);
    if (figures->measured)
        printf("%+7.1f%%", 100 * (figures->seconds / figures->taken_seconds - 1));
    else
        printf("%8s", "-");
    print_number(9, figures->measured ? figures->stalled : NAN);
    if (isnan(slower))
        printf("%9s", "-");
    else
        printf("%+8.1f%%", 100 * slower);
    if (isnan(row->peer_seconds))
        printf("%8s", "-");
    else
        printf("%7.0f%%", 100 * row->peer_seconds / seconds_of(figures));
    printf("  %s%s", miss == NULL ? "as asked" : "missed: ", miss == NULL ? "" : miss);
    if (miss == NULL && !isnan(row->most_slower) && isnan(slower))
        printf(", but not compared: %s is not there", row->reference);
    putchar('\n');
    return miss == NULL;
}

static bool read_options(int argc, char **argv, struct options *options, bool *list, bool *help,
                         int *first)
{
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--plan") == 0)
            options->plan_only = true;
        else if (strcmp(argv[i], "--report") == 0)
            options->report_only = true;
        else if (strcmp(argv[i], "--list") == 0)
            *list = true;
        else if (strcmp(argv[i], "--help") == 0)
            *help = true;
        else if (i + 1 == argc)
            return false;
        else if (strcmp(argv[i], "--machine") == 0)
            options->machine = argv[++i];
        else if (strcmp(argv[i], "--backend") == 0)
            options->backend = argv[++i];
        else if (strcmp(argv[i], "--dir") == 0)
            options->folder = argv[++i];
        else
            return false;
    }
    *first = i;
    for (int k = i; k < argc; k++) {
        size_t row = 0;
        while (row < ROWS && strcmp(rows[row].name, argv[k]) != 0)
            row++;
        if (row == ROWS)
            return false;
    }
    return !(options->plan_only && options->report_only);
}

static void print_list(void)
{
    for (size_t i = 0; i < ROWS; i++)
        printf("%-20stidemark plan %s%s%s%s\n", rows[i].name, rows[i].model,
               rows[i].context == NULL ? "" : " --context ",
               rows[i].context == NULL ? "" : rows[i].context, rows[i].plan);
}

static void print_usage(FILE *out)
{
    fprintf(out, "usage: bench/fullsize [--machine M] [--backend B] [--dir DIR] "
                 "[--plan | --report] [--list | ROW...]\n"
                 "ROW is a name of --list; tidemark is looked for on PATH\n");
}

int main(int argc, char **argv)
{
    struct options options = {.machine = "h200", .backend = "cuda", .folder = "."};
    struct figures figures[ROWS] = {{0}};
    bool list = false, help = false, met = true;
    int first = 1;
    if (!read_options(argc, argv, &options, &list, &help, &first)) {
        print_usage(stderr);
        return 2;
    }
    if (help)
        print_usage(stdout);
    else if (list)
        print_list();
    if (help || list)
        return 0;
    printf("%-20s%8s%9s%9s%9s%10s%10s%8s%9s%9s%8s\n", "row", "tokens", "GiB plan", "used", "host",
           "s plan", "s taken", "error", "stalled", "slower", "peer");
    for (size_t i = 0; i < ROWS; i++) {
        bool chosen = first == argc;
        for (int k = first; k < argc; k++)
            chosen = chosen || strcmp(argv[k], rows[i].name) == 0;
        if (!chosen || (options.report_only && rows[i].runs == NULL))
            continue;
        int status = measure(&options, &rows[i], &figures[i]);
        if (status == 0)
            met = print_row(&rows[i], &figures[i], figures) && met;
        else if (figures[i].failure[0] != '\0')
            printf("%-20s%s\n", rows[i].name, figures[i].failure);
        else
            printf("%-20sfailed: exit status %d\n", rows[i].name, status);
        met = met && status == 0;
        fflush(stdout);
    }
    if (ferror(stdout) || fclose(stdout) != 0) {
        fprintf(stderr, "bench/fullsize: the table cannot be written to standard output\n");
        return 1;
    }
    return met ? 0 : 1;
}
