/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chrome's trace events ("Trace Event Format", the object form), which Perfetto opens.
 *
 * Phases of events: M names a process or a thread, X is an op with its duration, C a counter, s and
 * f begin and end an arrow. Times are microseconds, with three decimals.
 */
#include "exports/export.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The process of one rank. */
struct chrome {
    struct tdm_export *export;
    const struct tdm_step *step;
    enum tdm_plot_side side;
    FILE *out;
    int64_t lane_free_ns[TDM_MAX_LANES]; /* end of the last op of each lane */
};

static int64_t nanoseconds(double seconds)
{
    return (int64_t)llround(seconds * 1e9);
}

static void write_time(FILE *out, const char *key, int64_t ns)
{
    int64_t size = ns < 0 ? -ns : ns;
    fprintf(out, ",\"%s\":%s%" PRId64 ".%03d", key, ns < 0 ? "-" : "", size / 1000,
            (int)(size % 1000));
}

/* Without memory, so that it cannot fail: tdm_text_shown() leaves whole characters of UTF-8, of
 * which JSON forbids two. */
static void write_string(FILE *out, const char *text)
{
    char shown[TDM_TEXT_SHOWN];
    fputc('"', out);
    for (const char *at = tdm_text_shown(text, shown); *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            fputc('\\', out);
        fputc(*at, out);
    }
    fputc('"', out);
}

/* Begins an event of the rank's process, on the thread of a lane; -1: of no thread. */
static void begin_event(struct chrome *chrome, char phase, int lane)
{
    fprintf(chrome->out, "%s{\"ph\":\"%c\",\"pid\":%" PRIu32, chrome->export->begun ? ",\n" : "\n",
            phase, chrome->step->rank + 1);
    if (lane >= 0)
        fprintf(chrome->out, ",\"tid\":%d", lane + 1);
    chrome->export->begun = true;
}

static void write_names(struct chrome *chrome)
{
    const struct tdm_plot *plot = chrome->step->plot;
    char text[TDM_TEXT_SHOWN];
    if (chrome->side == TDM_MEASURED)
        snprintf(text, sizeof(text), "rank %" PRIu32 ": step %" PRId64 ", measured",
                 chrome->step->rank, plot->step);
    else
        snprintf(text, sizeof(text), "rank %" PRIu32 ": predicted", chrome->step->rank);
    begin_event(chrome, 'M', -1);
    fputs(",\"name\":\"process_name\",\"args\":{\"name\":", chrome->out);
    write_string(chrome->out, text);
    fputs("}}", chrome->out);
    for (uint32_t lane = 0; lane < plot->topology.lane_count; lane++) {
        if ((chrome->step->program->lanes & 1u << lane) == 0)
            continue;
        begin_event(chrome, 'M', (int)lane);
        fprintf(chrome->out, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                tdm_lane_name(&plot->topology, (enum tdm_lane)lane));
        begin_event(chrome, 'M', (int)lane);
        fprintf(chrome->out,
                ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}", lane);
    }
}

/* An op, with what it works on. Measured ops of one lane may overlap by the resolution of a clock;
 * slices of a thread must not. */
static void write_op(struct chrome *chrome, const struct tdm_timeline_op *op)
{
    const struct tdm_step *step = chrome->step;
    const struct tdm_step_op *detail = &step->ops[op->number];
    char name[TDM_STEP_NAME], tensor[TDM_STEP_NAME];
    int64_t start = nanoseconds(op->start), end = nanoseconds(op->end);
    int64_t *lane_free = &chrome->lane_free_ns[op->lane];
    start = start < *lane_free ? *lane_free : start;
    *lane_free = end = end < start ? start : end;
    begin_event(chrome, 'X', (int)op->lane);
    write_time(chrome->out, "ts", start);
    write_time(chrome->out, "dur", end - start);
    fprintf(chrome->out, ",\"name\":\"%s\",\"cat\":\"%s\",\"args\":{\"op\":%" PRIu64,
            tdm_step_op_name(step, op, name), tdm_phase_name(op->phase), op->number);
    if (op->layer < step->plot->schedule->model->layers)
        fprintf(chrome->out, ",\"layer\":%" PRIu32, op->layer + 1);
    if (op->chunk != TDM_NONE)
        fprintf(chrome->out, ",\"chunk\":%" PRIu32, op->chunk + 1);
    if (detail->tensor.buffer != TDM_NONE)
        fprintf(chrome->out, ",\"tensor\":\"%s\",\"buffer\":\"%s\"",
                tdm_step_tensor_name(step, &detail->tensor, tensor),
                step->program->buffers[detail->tensor.buffer].name);
    fprintf(chrome->out, ",\"bytes\":%" PRIu64, detail->bytes);
    if (detail->flops > 0)
        fprintf(chrome->out, ",\"flops\":%" PRIu64, detail->flops);
    const struct tdm_timeline_op *predicted =
        tdm_timeline_op(&step->plot->panels[TDM_PREDICTED].timeline, op->number);
    if (chrome->side == TDM_MEASURED && predicted != NULL)
        write_time(chrome->out, "predicted_us",
                   nanoseconds(predicted->end) - nanoseconds(predicted->start));
    fputs("}}", chrome->out);
}

/* An arrow from the op that was waited for. It binds to the slices that hold its two times. */
static void write_arrow(struct chrome *chrome, const struct tdm_timeline_op *op)
{
    const struct tdm_timeline *timeline = &chrome->step->plot->panels[chrome->side].timeline;
    uint32_t number = chrome->step->ops[op->number].waited_for[chrome->side];
    const struct tdm_timeline_op *from =
        number == TDM_NO_OP ? NULL : tdm_timeline_op(timeline, number);
    if (from == NULL)
        return;
    const struct tdm_timeline_op *ends[] = {from, op};
    for (int i = 0; i < 2; i++) {
        begin_event(chrome, i == 0 ? 's' : 'f', (int)ends[i]->lane);
        /* in whole nanoseconds inside the slice, also where slices were moved apart */
        int64_t start = nanoseconds(ends[i]->start), end = nanoseconds(ends[i]->end);
        write_time(chrome->out, "ts", start + (end - start) / 2);
        fprintf(chrome->out, ",\"name\":\"wait\",\"cat\":\"wait\",\"id\":%" PRIu64 "%s}",
                (uint64_t)chrome->step->rank << 32 | op->number, i == 0 ? "" : ",\"bp\":\"e\"");
    }
}

static void write_counter(struct chrome *chrome, const char *place, const char *of, double seconds,
                          uint64_t bytes)
{
    begin_event(chrome, 'C', -1);
    write_time(chrome->out, "ts", nanoseconds(seconds));
    fprintf(chrome->out, ",\"name\":\"%s %s\",\"args\":{\"bytes\":%" PRIu64 "}}", place, of, bytes);
}

/* Values change by category, allocations for a place as a whole. */
static void write_counters(struct chrome *chrome, const struct tdm_timeline_changes *changes,
                           bool of_values)
{
    const struct tdm_topology *topology = &chrome->step->plot->topology;
    for (size_t i = 0; i < changes->count && !ferror(chrome->out); i++) {
        const struct tdm_timeline_change *change = &changes->change[i];
        write_counter(chrome, tdm_place_name(topology, change->place),
                      of_values ? tdm_category_name(change->category) : "allocated",
                      change->seconds, change->bytes);
    }
}

static enum tdm_status begin(struct tdm_export *export, const struct tdm_step *step,
                             struct tdm_error *err)
{
    (void)err;
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":", export->out);
    write_string(export->out, step->plot->title);
    fputs(",\"subtitle\":", export->out);
    write_string(export->out, step->plot->subtitle);
    fputs("},\"traceEvents\":[", export->out);
    return TDM_OK;
}

static enum tdm_status write_rank(struct tdm_export *export, const struct tdm_step *step,
                                  unsigned pass, struct tdm_error *err)
{
    struct chrome chrome = {
        .export = export, .step = step, .side = tdm_step_side(step), .out = export->out};
    const struct tdm_timeline *timeline = &step->plot->panels[chrome.side].timeline;
    (void)pass;
    (void)err;
    write_names(&chrome);
    for (size_t i = 0; i < timeline->op_count && !ferror(export->out); i++) {
        write_op(&chrome, &timeline->ops[i]);
        write_arrow(&chrome, &timeline->ops[i]);
    }
    write_counters(&chrome, &timeline->values, true);
    write_counters(&chrome, &timeline->allocations, false);
    return TDM_OK;
}

static void end(struct tdm_export *export)
{
    fputs("\n]}\n", export->out);
}

const struct tdm_export_format tdm_export_chrome = {
    .name = "chrome", .passes = 1, .begin = begin, .write = write_rank, .end = end};
