/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark export`: writes a step of a schedule or a trace in a format of another tool. */
#include "commands/cmd.h"

#include "base/inputs.h"
#include "base/names.h"
#include "base/output.h"
#include "base/ticker.h"
#include "commands/common_options.h"
#include "commands/print.h"
#include "exports/export.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct arguments {
    const char *source, *output;
    const struct tdm_export_format *format;
    int64_t step;
    uint64_t rank;
    bool force;
};

static const char *nth_format(size_t index)
{
    return tdm_export_formats[index] == NULL ? NULL : tdm_export_formats[index]->name;
}

static enum tdm_status read_format(const char *text, void *value, struct tdm_error *err)
{
    const char *names[8] = {NULL};
    char suggestion[TDM_SUGGESTION_BYTES];
    for (size_t i = 0; tdm_export_formats[i] != NULL; i++) {
        names[i] = tdm_export_formats[i]->name;
        if (strcmp(text, names[i]) != 0)
            continue;
        *(const struct tdm_export_format **)value = tdm_export_formats[i];
        return TDM_OK;
    }
    tdm_fail(err, TDM_USAGE, "--format: unknown format \"%.64s\"", text);
    return tdm_hint(err, "%sformats: chrome, memory-viz, csv",
                    tdm_name_suggest(text, names, suggestion));
}

#define PLACE(field) offsetof(struct arguments, field)

static const struct tdm_option options[] = {
    {.name = "format",
     .word = "NAME",
     .place = PLACE(format),
     .read = read_format,
     .help = "chrome, memory-viz or csv",
     .values = TDM_VALUES_NAMES,
     .nth_name = nth_format},
    {.as = &tdm_option_output, .place = PLACE(output), .help = "the file; else stdout"},
    {.as = &tdm_option_step,
     .place = PLACE(step),
     .help = "of a trace, this step; else the last one whose ops were timed and whose memory was "
             "observed; of one that did not end, the ops that had"},
    {.as = &tdm_option_rank, .place = PLACE(rank), .help = "of several ranks, this one; else all"},
    {.as = &tdm_option_force, .place = PLACE(force)},
    {.name = NULL}};

static enum tdm_status read_arguments(int argc, char **argv, struct arguments *arguments,
                                      bool *help, struct tdm_error *err)
{
    int first;
    enum tdm_status status =
        tdm_options_read(&tdm_cmd_export, argc, argv, arguments, &first, help, err);
    if (status != TDM_OK || *help)
        return status;
    if (argc - first != 1) {
        tdm_fail(err, TDM_USAGE,
                 first == argc ? "export: no schedule or trace is named"
                               : "export: takes one schedule or trace only");
        return tdm_hint(err, "usage: tidemark %s", tdm_cmd_export.usage);
    }
    if (arguments->format == NULL) {
        tdm_fail(err, TDM_USAGE, "export: no --format is named");
        return tdm_hint(err, "add --format chrome, --format memory-viz or --format csv");
    }
    arguments->source = argv[first];
    const struct tdm_input input = {.option = "SCHEDULE|TRACE", .path = arguments->source};
    status = tdm_output_check_name("export: -o", arguments->output, err);
    if (status == TDM_OK)
        status = tdm_inputs_spare(&input, 1, "export: -o", arguments->output, err);
    if (arguments->output == NULL)
        arguments->output = "-";
    if (status == TDM_OK && arguments->format->binary && strcmp(arguments->output, "-") == 0 &&
        isatty(STDOUT_FILENO)) {
        tdm_fail(err, TDM_USAGE, "export: %s is binary, and stdout is a terminal",
                 arguments->format->name);
        return tdm_hint(err, "add -o FILE");
    }
    return status;
}

static enum tdm_status write_file(const struct arguments *arguments, struct tdm_export_gaps *gaps,
                                  struct tdm_error *err)
{
    const struct tdm_export_source source = {
        .path = arguments->source, .step = arguments->step, .rank = (uint32_t)arguments->rank};
    struct tdm_output output;
    enum tdm_status status = tdm_output_begin(arguments->output, arguments->force, &output, err);
    if (status != TDM_OK)
        return status;
    status = tdm_export_write(arguments->format, &source, output.file, gaps, err);
    if (status == TDM_OK)
        return tdm_output_commit(&output, err);
    tdm_output_abandon(&output);
    return status;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct arguments arguments = {.step = TDM_PLOT_LAST_STEP, .rank = TDM_PLOT_ALL_RANKS};
    struct tdm_export_gaps gaps = {.unfinished = false};
    bool help;
    enum tdm_status status = read_arguments(argc, argv, &arguments, &help, err);
    if (status != TDM_OK || help)
        return status;
    struct tdm_ticker ticker;
    tdm_ticker_begin(&ticker, stderr, "reading and writing the step");
    status = write_file(&arguments, &gaps, err);
    tdm_ticker_end(&ticker);
    if (status == TDM_OK && gaps.unfinished)
        fprintf(stderr, "tidemark: %s: the step did not finish; %s has the ops that had ended\n",
                arguments.source, arguments.format->name);
    if (status == TDM_OK && gaps.without > 0)
        tdm_note_ranks(arguments.source, gaps.step, gaps.ranks, gaps.without,
                       arguments.format->name);
    return status;
}

const struct tdm_command tdm_cmd_export = {
    .name = "export",
    .usage = "export SCHEDULE|TRACE --format chrome|memory-viz|csv [-o FILE] [--step N] [--rank R] "
             "[--force]",
    .summary = "a step in a format of another tool: Perfetto, PyTorch's memory viewer, tables",
    .options = options,
    .notes =
        "Of a trace the times are those measured in one step, of a schedule those predicted.\n"
        "\n"
        "chrome: Chrome's trace events, for https://ui.perfetto.dev or chrome://tracing. A process "
        "is a rank, a thread a lane. An op tells its layer, chunk, tensor, bytes and FLOPs. "
        "Counters have the bytes that hold values, by place and category, and those that are "
        "allocated. An arrow leads to an op from the op of another lane for which its own lane "
        "was idle.\n"
        "\n"
        "memory-viz: a pickled snapshot for https://pytorch.org/memory_viz, as "
        "torch.cuda.memory._snapshot() makes it. Device 0 is the device, 1 the host; of several "
        "ranks the next two are those of rank 1, and so on. An arena is "
        "a segment, and each value a block in it, from its first op to its last one. The frames "
        "of a block name its tensor and layer, its buffer and slot, its category, and the op that "
        "made it.\n"
        "\n"
        "csv: a header and a row for each op; layers, chunks and ops count from 0 as in the "
        "trace, times are nanoseconds from the begin of the step, predicted and measured.\n"
        "\n"
        "Example:\n"
        "  tidemark export demo/run.db --format chrome -o run.json\n",
    .arguments = TDM_VALUES_FILES,
    .run = run,
};
