/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what `tidemark report` says of several ranks: times side by side, the slowest, who waited
 * for whom, and what each exchanged. */
#include "commands/report_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void print_pair(double predicted, double measured)
{
    char left[TDM_FORMAT_SIZE], right[TDM_FORMAT_SIZE];
    printf("  %9s %9s", tdm_report_show_seconds(predicted, left),
           tdm_report_show_seconds(measured, right));
}

static void print_times(const struct tdm_program_report *report)
{
    char error[TDM_FORMAT_SIZE];
    printf("\n%-9s  %19s  %19s  %19s  %19s\n", "", "computes", "exchanges", "waits for others",
           "ends");
    printf("%-9s", "rank");
    for (int i = 0; i < 4; i++)
        printf("  %9s %9s", "predicted", "measured");
    printf("  %8s\n", "error");
    for (size_t i = 0; i < report->rank_count; i++) {
        const struct tdm_trace_rank_row *row = &report->ranks[i];
        const struct tdm_trace_rank_times *p = &row->predicted, *m = &row->measured;
        printf("%-9" PRIu32, row->rank);
        print_pair(p->compute_seconds, m->compute_seconds);
        print_pair(p->team_seconds, m->team_seconds);
        print_pair(p->wait_seconds, m->wait_seconds);
        print_pair(p->step_seconds, m->step_seconds);
        printf("  %8s\n",
               tdm_report_show_error(tdm_report_error(p->step_seconds, m->step_seconds), error));
    }
}

static double computes(const struct tdm_trace_rank_row *row, bool measured)
{
    return measured ? row->measured.compute_seconds : row->predicted.compute_seconds;
}

/* The rank that computes longest, and by how much less the one does that computes least. */
static void print_slowest(const struct tdm_program_report *report, bool measured)
{
    const struct tdm_trace_rank_row *most = report->ranks, *least = report->ranks;
    char text[TDM_FORMAT_SIZE];
    for (size_t i = 1; i < report->rank_count; i++) {
        const struct tdm_trace_rank_row *row = &report->ranks[i];
        most = computes(row, measured) > computes(most, measured) ? row : most;
        least = computes(row, measured) < computes(least, measured) ? row : least;
    }
    double slow = computes(most, measured), fast = computes(least, measured);
    if (isnan(slow) || isnan(fast) || !(slow > 0))
        return;
    if (slow - fast < 1e-9 * slow) {
        printf("%-9s  all ranks compute for %s\n", measured ? "measured" : "predicted",
               tdm_report_show_seconds(slow, text));
        return;
    }
    printf("%-9s  rank %" PRIu32 " computes longest, %s; rank %" PRIu32 " %.1f%% less\n",
           measured ? "measured" : "predicted", most->rank, tdm_report_show_seconds(slow, text),
           least->rank, 100 * (slow - fast) / slow);
}

/* Who waited longest for whom; of many ranks the longest waits of each are enough. */
static void print_waits(const struct tdm_program_report *report)
{
    char left[TDM_FORMAT_SIZE], right[TDM_FORMAT_SIZE];
    uint32_t shown = 0, of_rank = UINT32_MAX;
    if (report->rank_wait_count == 0)
        return;
    printf("\n%-9s  %-9s  %10s  %10s\n", "rank", "waits for", "predicted", "measured");
    for (size_t i = 0; i < report->rank_wait_count; i++) {
        const struct tdm_trace_rank_wait *wait = &report->rank_waits[i];
        shown = wait->rank == of_rank ? shown + 1 : 0;
        of_rank = wait->rank;
        if (shown < 3)
            printf("%-9" PRIu32 "  %-9" PRIu32 "  %10s  %10s\n", wait->rank, wait->awaited,
                   tdm_report_show_seconds(wait->predicted_seconds, left),
                   tdm_report_show_seconds(wait->measured_seconds, right));
    }
}

static void print_bytes(const struct tdm_program_report *report)
{
    char text[5][TDM_FORMAT_SIZE], error[TDM_FORMAT_SIZE];
    printf("\n%-9s  %11s  %11s  %11s  %11s  %11s  %8s\n", "rank", "receives", "sends", "copies",
           "planned", "used", "error");
    for (size_t i = 0; i < report->rank_count; i++) {
        const struct tdm_trace_rank_row *row = &report->ranks[i];
        bool known = row->used_bytes > 0;
        uint64_t planned = tdm_report_rank_planned_bytes(report, row);
        printf(
            "%-9" PRIu32 "  %11s  %11s  %11s  %11s  %11s  %8s\n", row->rank,
            tdm_format_bytes(row->received_bytes, text[0]),
            tdm_format_bytes(row->sent_bytes, text[1]),
            tdm_format_bytes(row->copied_bytes, text[2]), tdm_format_bytes(planned, text[3]),
            known ? tdm_format_bytes(row->used_bytes, text[4]) : "-",
            tdm_report_show_error(
                known ? tdm_report_error((double)planned, (double)row->used_bytes) : NAN, error));
    }
}

void tdm_report_print_ranks(const struct tdm_program_report *report)
{
    if (report->rank_count < 2)
        return;
    print_times(report);
    print_slowest(report, false);
    print_slowest(report, true);
    print_waits(report);
    print_bytes(report);
}
