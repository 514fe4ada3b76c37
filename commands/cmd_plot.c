/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tidemark plot`: draws one step: memory by category over time, with its limit and its peak, and
 * the lanes below. For a trace, draws predicted next to measured.
 */
#include "commands/cmd.h"

#include "base/file.h"
#include "base/inputs.h"
#include "base/output.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/common_options.h"
#include "commands/print.h"
#include "exports/page.h"
#include "plots/loss_plot.h"
#include "plots/plot.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct arguments {
    const char *source;
    struct tdm_picture picture;
    int64_t step;
    uint64_t rank;
    bool loss;
};

static enum tdm_status read_size(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_picture *picture = value;
    char width[16];
    uint64_t pixels[2];
    const char *cross = strchr(text, 'x');
    if (cross == NULL || cross == text || (size_t)(cross - text) >= sizeof(width)) {
        tdm_fail(err, TDM_USAGE, "--size: \"%s\" is not WIDTHxHEIGHT in pixels", text);
        return tdm_hint(err, "for example --size 1600x1000");
    }
    snprintf(width, sizeof(width), "%.*s", (int)(cross - text), text);
    enum tdm_status status = tdm_parse_count(width, "--size: width", TDM_PICTURE_LEAST,
                                             TDM_PICTURE_MOST, &pixels[0], err);
    if (status == TDM_OK)
        status = tdm_parse_count(cross + 1, "--size: height", TDM_PICTURE_LEAST, TDM_PICTURE_MOST,
                                 &pixels[1], err);
    if (status != TDM_OK)
        return status;
    picture->width = (uint32_t)pixels[0];
    picture->height = (uint32_t)pixels[1];
    return TDM_OK;
}

#define PLACE(field) offsetof(struct arguments, field)

static const struct tdm_option options[] = {
    {.as = &tdm_option_output,
     .place = PLACE(picture.path),
     .help =
         "the picture; its suffix says whether PNG, SVG or PDF, or a page for a browser (.html)"},
    {.as = &tdm_option_step,
     .place = PLACE(step),
     .help = "of a trace, show this step; else the last one whose ops were timed and whose memory "
             "was observed; of one that did not end, the ops that had"},
    {.as = &tdm_option_rank,
     .place = PLACE(rank),
     .help = "of several ranks, the one whose memory and lanes are shown; else the lanes of all, "
             "and the memory of rank 0; on a page those of rank 0"},
    {.name = "loss",
     .type = TDM_OPTION_FLAG,
     .place = PLACE(loss),
     .help = "of a trace, draw loss, validation loss and gradient norm by step instead"},
    {.name = "size",
     .word = "WxH",
     .place = PLACE(picture),
     .read = read_size,
     .help = "pixels (default 1600x1000); letters grow with it"},
    {.as = &tdm_option_force, .place = PLACE(picture.force)},
    {.name = NULL}};

static enum tdm_status read_arguments(int argc, char **argv, struct arguments *arguments,
                                      bool *help, struct tdm_error *err)
{
    int first;
    enum tdm_status status =
        tdm_options_read(&tdm_cmd_plot, argc, argv, arguments, &first, help, err);
    if (status != TDM_OK || *help)
        return status;
    if (argc - first != 1) {
        tdm_fail(err, TDM_USAGE,
                 first == argc ? "plot: no schedule or trace is named"
                               : "plot: takes one schedule or trace only");
        return tdm_hint(err, "usage: tidemark %s", tdm_cmd_plot.usage);
    }
    if (arguments->picture.path == NULL) {
        tdm_fail(err, TDM_USAGE, "plot: no -o names the picture");
        return tdm_hint(err, "add -o FILE.png, -o FILE.svg, -o FILE.pdf or -o FILE.html");
    }
    arguments->source = argv[first];
    const struct tdm_input input = {.option = "SCHEDULE|TRACE", .path = arguments->source};
    status = tdm_output_check_name("plot: -o", arguments->picture.path, err);
    return status == TDM_OK ? tdm_inputs_spare(&input, 1, "plot: -o", arguments->picture.path, err)
                            : status;
}

static bool is_page(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && strcmp(dot, ".html") == 0;
}

static enum tdm_status write_page(const struct arguments *arguments, struct tdm_step **step,
                                  struct tdm_ticker *ticker, struct tdm_error *err)
{
    struct tdm_output output;
    enum tdm_status status = tdm_step_read(
        arguments->source, arguments->step,
        arguments->rank == TDM_PLOT_ALL_RANKS ? 0 : (uint32_t)arguments->rank, step, err);
    tdm_ticker_say(ticker, "writing the page");
    if (status == TDM_OK)
        status = tdm_output_begin(arguments->picture.path, arguments->picture.force, &output, err);
    if (status != TDM_OK)
        return status;
    status = tdm_page_write(*step, output.file, err);
    if (status == TDM_OK)
        return tdm_output_commit(&output, err);
    tdm_output_abandon(&output);
    return status;
}

/* What a picture does not show as one may expect it. */
static void note_limits(const struct arguments *arguments, const struct tdm_plot *plot)
{
    const char *path = arguments->picture.path;
    if (plot->unfinished)
        fprintf(stderr,
                "tidemark: %s: step %" PRId64 " did not finish; %s shows the ops that had ended\n",
                arguments->source, plot->step, path);
    if (plot->from_trace && !plot->panels[TDM_MEASURED].known)
        fprintf(stderr,
                "tidemark: %s: no ops of any step were timed; %s shows what was predicted\n",
                arguments->source, path);
    if (plot->panels[TDM_MEASURED].known && plot->timed_ranks < plot->shown_ranks)
        tdm_note_ranks(arguments->source, plot->step, plot->timed_ranks,
                       plot->shown_ranks - plot->timed_ranks, path);
    if (plot->programs > 1)
        fprintf(stderr, "tidemark: %s: holds %zu schedules; %s shows %s\n", arguments->source,
                plot->programs, path, plot->program_name);
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct arguments arguments = {.step = TDM_PLOT_LAST_STEP, .rank = TDM_PLOT_ALL_RANKS};
    struct tdm_step *step = NULL;
    struct tdm_plot *plot = NULL;
    bool help;
    enum tdm_status status = read_arguments(argc, argv, &arguments, &help, err);
    if (status != TDM_OK || help)
        return status;
    const bool page = is_page(arguments.picture.path);
    if (!page && tdm_picture_format(arguments.picture.path) == NULL) {
        tdm_fail(err, TDM_USAGE, "%s: is not the name of a picture or a page",
                 arguments.picture.path);
        return tdm_hint(err, "end the name in .png, .svg, .pdf or .html");
    }
    if (page && arguments.loss)
        return tdm_fail(err, TDM_USAGE, "--loss: a page has the loss beside the step");
    if (arguments.loss &&
        (arguments.step != TDM_PLOT_LAST_STEP || arguments.rank != TDM_PLOT_ALL_RANKS))
        return tdm_fail(err, TDM_USAGE, "--loss: draws all steps, of all ranks together");
    if (page && arguments.picture.width != 0)
        return tdm_fail(err, TDM_USAGE, "--size: a page fills its window, and has no size");
    if (arguments.picture.width == 0) {
        arguments.picture.width = 1600;
        arguments.picture.height = 1000;
    }
    status = page ? tdm_file_check(arguments.picture.path, arguments.picture.force, err)
                  : tdm_picture_check(&arguments.picture, err);
    if (status != TDM_OK)
        return status;
    if (arguments.loss)
        return tdm_loss_plot_draw(arguments.source, &arguments.picture, err);
    struct tdm_ticker ticker;
    tdm_ticker_begin(&ticker, stderr, "reading what is drawn");
    if (page) {
        status = write_page(&arguments, &step, &ticker, err);
    } else {
        status =
            tdm_plot_read(arguments.source, arguments.step, (uint32_t)arguments.rank, &plot, err);
        tdm_ticker_say(&ticker, "drawing");
        if (status == TDM_OK)
            status = tdm_plot_draw(plot, &arguments.picture, err);
    }
    tdm_ticker_end(&ticker);
    if (status == TDM_OK)
        note_limits(&arguments, page ? step->plot : plot);
    tdm_step_free(step);
    tdm_plot_free(plot);
    return status;
}

const struct tdm_command tdm_cmd_plot = {
    .name = "plot",
    .usage = "plot SCHEDULE|TRACE -o FILE.png|svg|pdf|html [--step N] [--rank R] [--loss] "
             "[--size WxH] [--force]",
    .summary = "draw the memory timeline and the lanes of a step",
    .options = options,
    .notes = "Draws which bytes hold values over time, by category, of the device and, where it "
             "is used, of the host: their peak, with the op that runs at it, and above them as a "
             "line what is allocated, and the limit that the schedule was planned for; below, "
             "which share of its time each lane spends on which ops. Of a schedule what is "
             "predicted, of a trace predicted and measured side by side, on one time axis. Needs "
             "gnuplot.\n"
             "\n"
             "A name that ends in .html gives a page that any browser shows without a network: "
             "lanes with every op and what it waited for, memory by category, which value is at "
             "which address of the arenas, and the loss by step. The wheel zooms, dragging moves, "
             "and the pointer tells what is under it. It does not need gnuplot.\n"
             "\n"
             "Examples:\n"
             "  tidemark plot demo/run.db --step 1 -o memory.png\n"
             "  tidemark plot demo/run.db -o run.html\n"
             "  tidemark plot demo/run.db --loss -o loss.png\n",
    .arguments = TDM_VALUES_FILES,
    .run = run,
};
