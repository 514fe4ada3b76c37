/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of `tidemark report`: what a trace contains about a run, derived figures for
 * both output forms, and the forms. Only for commands/cmd_report.c and commands/report_*.c. */
#ifndef TDM_COMMANDS_REPORT_PARTS_H
#define TDM_COMMANDS_REPORT_PARTS_H

#include "base/units.h"
#include "traces/reader.h"
#include "traces/waits.h"

/* The report of one program. */
struct tdm_program_report {
    const struct tdm_topology *topology; /* for place and lane names; owned by the reader */
    struct tdm_trace_program_row program;
    /* Of the requested steps. */
    size_t steps, timed_steps;
    struct tdm_trace_step_row first, last;
    int64_t last_timed; /* TDM_TRACE_EVERY_STEP: none */
    double seconds;
    uint64_t tokens;
    const struct tdm_trace_unfinished_row *unfinished; /* NULL: none; borrowed from the report */
    struct tdm_trace_peaks peaks;
    struct tdm_trace_arena_row arenas[TDM_MAX_PLACES];
    bool scanned[TDM_MAX_PLACES];
    uint64_t used_bytes[TDM_MAX_PLACES];
    uint32_t sharers[TDM_MAX_PLACES]; /* arenas in the memory that was sampled */
    bool sampled[TDM_MAX_PLACES];
    struct tdm_trace_time_row *times;
    size_t time_count;
    struct tdm_trace_lane_row *lanes;
    size_t lane_count;
    /* Of the last timed step among the requested ones, or of the unfinished step. */
    struct tdm_trace_wait *waits;
    size_t wait_count;
    struct tdm_trace_selection selection;
    /* Of several ranks, else none: what each does in a step, and for whom it waits. */
    struct tdm_trace_rank_row *ranks;
    size_t rank_count;
    struct tdm_trace_rank_wait *rank_waits;
    size_t rank_wait_count;
    /* Evaluations of its weights after the requested steps. Borrowed from the report. */
    const struct tdm_trace_evaluation_row *evaluations;
    size_t evaluation_count;
    size_t evaluated; /* evaluations that this program ran, and their total seconds */
    double evaluated_seconds;
};

struct tdm_report {
    const char *path;
    const struct tdm_trace_run_info *run;
    int64_t step;  /* or TDM_TRACE_EVERY_STEP */
    uint32_t rank; /* whose memory, times, lanes and waits these are */
    size_t steps;  /* finished steps of all programs */
    bool without;  /* no step that is asked for was there, so reading failed */
    struct tdm_program_report *programs;
    size_t program_count;
    struct tdm_trace_unfinished_row *unfinished;
    struct tdm_trace_evaluation_row *evaluations;
};

/* ---- what a trace says (report_read.c) ---- */

/* Fills a report. The caller sets path, step and rank and zeroes the rest. Fails if the trace has
 * nothing of what was requested. The caller frees the report, also on failure, and must not use it
 * after closing the reader. */
enum tdm_status tdm_report_read(struct tdm_trace_reader *reader, struct tdm_report *report,
                                struct tdm_error *err);
void tdm_report_free(struct tdm_report *report);

/* Was anything of this program requested? */
bool tdm_report_shows(const struct tdm_report *report, const struct tdm_program_report *program);

/* Is an unfinished, timed step all that the trace has of this program? */
bool tdm_report_only_unfinished(const struct tdm_program_report *report);

/* The arena plus the memory outside it; of host memory, the arenas of all ranks. */
uint64_t tdm_report_predicted_used_bytes(const struct tdm_program_report *report, int place);
/* The same of the device that a rank has, with the arenas of all ranks on it. */
uint64_t tdm_report_rank_planned_bytes(const struct tdm_program_report *report,
                                       const struct tdm_trace_rank_row *row);

/* Of the requested steps. NAN: there are none. */
double tdm_report_step_seconds(const struct tdm_program_report *report);
double tdm_report_tokens_per_second(const struct tdm_program_report *report);

/* Relative error: 0.1 means that the prediction is 10% too large. NAN: nothing was measured. */
double tdm_report_error(double predicted, double measured);

/* ---- as text, on stdout (report_text.c, report_ranks.c) ---- */

/* "12.3 ms", "-" of NAN. Returns `out`, or a constant. */
const char *tdm_report_show_seconds(double seconds, char out[TDM_FORMAT_SIZE]);
/* "+1.5%", "-" of NAN. */
const char *tdm_report_show_error(double error, char out[TDM_FORMAT_SIZE]);

/* Several ranks side by side; nothing of one. */
void tdm_report_print_ranks(const struct tdm_program_report *report);

void tdm_report_print_text(const struct tdm_report *report);

/* ---- as JSON, on stdout (report_json.c) ---- */

enum tdm_status tdm_report_print_json(const struct tdm_report *report, struct tdm_error *err);

#endif
