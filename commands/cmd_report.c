/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tidemark report`: compares predicted with measured values from a trace: memory by category at
 * the peak, time by phase and op kind, time by kind alone, stalls by lane and by cause. Reads
 * everything before it prints the first line.
 */
#include "commands/cmd.h"

#include "base/file.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/common_options.h"
#include "commands/report_parts.h"
#include "traces/create.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

struct arguments {
    int64_t step;
    uint64_t rank;
    bool json, watch;
};

#define CLEAR_SCREEN "\033[H\033[2J"

/* How often a trace that is watched is read. */
#define WATCH_SECONDS 1

/* What a report showed last. */
struct shown {
    size_t steps; /* finished */
    bool begun, ended;
    bool cut; /* no run writes the trace, and it does not say how its run ended */
};

/* Prints a report, or, if `shown` has been shown and nothing has ended since, nothing. `lives`: a
 * run wrote the trace just before. */
static enum tdm_status print_report(const char *path, const struct arguments *a, bool lives,
                                    struct shown *shown, struct tdm_error *err)
{
    struct tdm_report report = {.path = path, .step = a->step, .rank = (uint32_t)a->rank};
    struct tdm_trace_reader *reader;
    struct tdm_ticker ticker;
    enum tdm_status status = tdm_trace_reader_open(path, &reader, err);
    if (status != TDM_OK)
        return status;
    if (!shown->begun)
        tdm_ticker_begin(&ticker, stderr, "reading the trace");
    status = tdm_report_read(reader, &report, err);
    if (!shown->begun)
        tdm_ticker_end(&ticker);
    if (a->watch && lives && report.without && report.run->ending == NULL)
        status = TDM_OK; /* it may come */
    const bool ended = status == TDM_OK && report.run->ending != NULL;
    const bool same = report.without || (shown->begun && shown->steps == report.steps && !ended);
    if (status == TDM_OK && !same && shown->begun)
        fputs(isatty(STDOUT_FILENO) ? CLEAR_SCREEN : "\n", stdout);
    if (status == TDM_OK && !same && a->json)
        status = tdm_report_print_json(&report, err);
    else if (status == TDM_OK && !same)
        tdm_report_print_text(&report);
    if (!report.without)
        *shown = (struct shown){.steps = report.steps,
                                .begun = true,
                                .ended = ended,
                                .cut = status == TDM_OK && !ended && !lives};
    tdm_report_free(&report);
    tdm_trace_reader_close(reader);
    return status == TDM_OK ? tdm_stdout_end(err) : status;
}

/* Prints a report, and with --watch others until the run has ended, or was killed. */
static enum tdm_status print_reports(const char *path, const struct arguments *a,
                                     struct tdm_error *err)
{
    const struct timespec pause = {.tv_sec = WATCH_SECONDS};
    struct shown shown = {.begun = false};
    enum tdm_status status = print_report(path, a, tdm_trace_is_written(path), &shown, err);
    while (status == TDM_OK && a->watch && !shown.ended && !shown.cut) {
        nanosleep(&pause, NULL);
        const bool lives = tdm_trace_is_written(path);
        status = print_report(path, a, lives, &shown, err);
    }
    if (status == TDM_OK && a->watch && shown.cut)
        fprintf(stderr, "tidemark: %s: the run that wrote it was killed\n", path);
    return status;
}

static const struct tdm_option options[] = {
    {.as = &tdm_option_step,
     .place = offsetof(struct arguments, step),
     .help = "report this step only; else all: the highest peak, mean times"},
    {.as = &tdm_option_rank,
     .place = offsetof(struct arguments, rank),
     .help = "of several ranks, the one whose memory, times, lanes and waits are reported; 0 by "
             "default"},
    {.name = "watch",
     .type = TDM_OPTION_FLAG,
     .place = offsetof(struct arguments, watch),
     .help =
         "report when the first step has ended, and again after each other one, until the run ends "
         "or is killed"},
    {.as = &tdm_option_json, .place = offsetof(struct arguments, json)},
    {.name = NULL}};

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct arguments a = {.step = TDM_TRACE_EVERY_STEP};
    int first;
    bool help;
    enum tdm_status status = tdm_options_read(&tdm_cmd_report, argc, argv, &a, &first, &help, err);
    if (status != TDM_OK || help)
        return status;
    if (first + 1 != argc) {
        tdm_fail(err, TDM_USAGE,
                 first == argc ? "report: no trace is named" : "report: takes one trace only");
        return tdm_hint(err, "usage: tidemark %s", tdm_cmd_report.usage);
    }
    return print_reports(argv[first], &a, err);
}

const struct tdm_command tdm_cmd_report = {
    .name = "report",
    .usage = "report TRACE [--step N] [--rank R] [--watch] [--json]",
    .summary = "predicted against measured: memory at the peak, time by op kind, stalls",
    .options = options,
    .notes =
        "TRACE is what `tidemark run --trace FILE` wrote. Of the memory taken, `used` is "
        "what the driver or the system reports, and `allocated` what buffers have by plan, "
        "which are taken whole. A byte holds a value from the op that writes it to the last "
        "one that uses it, in program order: predicted from the program, measured at the "
        "launches. Both are the same bytes if the run did what was planned. They are given "
        "by category, each at its own peak and at the peak of the place. The error says by "
        "how much the prediction is too large, in percent of what was measured, or how many "
        "times that it is; the ratio is predicted over measured. A lane "
        "is stalled while it is idle before its last op ends. What the compute lane waited "
        "for is named, of the last timed step: the op that ended last before it went on, at "
        "the step's end what ended it, or the host, where it launched too late (lane null in "
        "JSON). A wrong rate shows at the top of the op kinds; tidemark calibrate --from "
        "TRACE corrects it. Of a step that did not end: how far it was, and if there is no "
        "other step times, lanes and waits of the ops that had ended. Selection: (query, "
        "key) pairs that page lists have room for, and held (counted on cpu); bytes that "
        "attention gathers from the host and sends back, by chance and in truth; bytes of "
        "page lists and means. Of several ranks, what each computes, exchanges and waits in team "
        "ops (a rank waits from when it is ready for one until the last rank is), for whom it "
        "waits, what it receives, sends and copies, and what its device has in use.\n"
        "\n"
        "Example:\n"
        "  tidemark report demo/run.db --step 100\n",
    .arguments = TDM_VALUES_FILES,
    .run = run,
};
