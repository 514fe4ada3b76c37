/* SPDX-License-Identifier: Apache-2.0 */
/* What each of several ranks does in a step, as a table. */
#include "commands/ranks_table.h"

#include "base/units.h"
#include "commands/prediction.h"

static void print_rank(FILE *out, const struct tdm_topology *topology,
                       const struct tdm_team_use *team, const struct tdm_rank_use *rank)
{
    char a[TDM_FORMAT_SIZE], b[TDM_FORMAT_SIZE], c[TDM_FORMAT_SIZE], title[32], last[32] = "-";
    if (rank->wait_seconds > 0)
        snprintf(last, sizeof(last), "rank %u", team->of[tdm_rank_awaited(team, rank)].rank);
    snprintf(title, sizeof(title), "rank %u", rank->rank);
    fprintf(out, "    %-18s %-10s %-10s %-10s", title, tdm_format_seconds(rank->compute_seconds, a),
            tdm_format_seconds(rank->team_seconds, b),
            tdm_format_seconds(rank->exposed_seconds, c));
    fprintf(out, " %-10s %-10s", tdm_format_seconds(rank->wait_seconds, a), last);
    fprintf(out, " %-12s %s", tdm_format_bytes(rank->received_bytes, a),
            tdm_format_bytes(rank->sent_bytes, b));
    for (uint32_t lane = 0; lane < topology->lane_count; lane++)
        if (tdm_ranks_copy(team, lane))
            fprintf(out, "   %s", tdm_format_bytes(rank->copied_bytes[lane], a));
    fputc('\n', out);
}

void tdm_ranks_table(FILE *out, const struct tdm_topology *topology,
                     const struct tdm_team_use *team)
{
    char bytes[TDM_FORMAT_SIZE], busy[TDM_FORMAT_SIZE], least_text[TDM_FORMAT_SIZE],
        most_text[TDM_FORMAT_SIZE];
    double least, most;
    if (team->ranks <= 1)
        return;
    tdm_ranks_exposed(team, &least, &most);
    fprintf(out, "  %-20s %s by rank 0 in %s; ranks wait %s to %s for it\n", "from other ranks",
            tdm_format_bytes(team->of[0].received_bytes, bytes),
            tdm_format_seconds(team->of[0].team_seconds, busy),
            tdm_format_seconds(least, least_text), tdm_format_seconds(most, most_text));
    fprintf(out, "    %-18s %-10s %-10s %-10s %-10s %-10s %-12s %s", "", "computes", "exchanges",
            "exposed", "waits", "most for", "receives", "sends");
    for (uint32_t lane = 0; lane < topology->lane_count; lane++)
        if (tdm_ranks_copy(team, lane))
            fprintf(out, "   on %s", tdm_lane_name(topology, (enum tdm_lane)lane));
    fputc('\n', out);
    for (uint32_t i = 0; i < team->simulated; i++)
        print_rank(out, topology, team, &team->of[i]);
    if (team->simulated < team->ranks)
        fprintf(out, "    %-18s the first, and those whose attention costs least and most\n",
                "of all these");
}
