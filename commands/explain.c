/* SPDX-License-Identifier: Apache-2.0 */
/* Explains the bound in words: what binds, what more memory saves, why tensors are where they
 * are. */
#include "commands/explain.h"

#include "base/units.h"
#include "schedule/optimizer.h"

#include <string.h>

#define ROW "  %-20s "

/* A saving is significant above this fraction of the step. */
#define NOTEWORTHY 1e-4

static const char *saving(double seconds, char text[TDM_FORMAT_SIZE])
{
    return tdm_format_seconds(seconds, text);
}

void tdm_bound_lines(FILE *out, const struct tdm_topology *topology,
                     const struct tdm_search *search)
{
    char text[TDM_FORMAT_SIZE];
    double step = search->simulation.step_seconds;
    const double saved[TDM_MAX_PLACES] = {search->binding.device_seconds_per_gib,
                                          search->binding.host_seconds_per_gib};
    if (search->bound_seconds <= 0) {
        fprintf(out, "\nbound\n" ROW "not known%s\n", "step",
                search->simulation.team.ranks > 1
                    ? " for several ranks"
                    : ": the linear program is too large, or the search was cut short");
        return;
    }
    fprintf(out,
            "\nbound\n" ROW "%s: no schedule of the kinds searched is faster; the gap is %.2f%%\n",
            "step", tdm_format_seconds(search->bound_seconds, text), 100 * search->gap);
    for (int place = 0; place < TDM_PLACES; place++)
        /* so steep a slope holds for the first bytes alone, not for a whole GiB */
        if (saved[place] > NOTEWORTHY * step && saved[place] < step / 4)
            fprintf(out, ROW "1 GiB more lowers the bound by %s\n",
                    tdm_place_name(topology, (enum tdm_place)place), saving(saved[place], text));
}

/* Describes a constraint of the linear program in words. */
static void say_row(FILE *out, const struct tdm_binding_row *row)
{
    static const struct {
        const char *name, *words;
    } rows[] = {
        {"device_forward", "device memory at the end of the forward"},
        {"device_head", "device memory in the LM head"},
        {"device_update", "device memory in the update of the head"},
        {"device_embedding", "device memory in the update of the embedding"},
        {"device_end", "device memory when updates begin"},
        {"host_forward", "host memory at the end of the forward"},
        {"host_end", "host memory when updates begin"},
        {"compute", "the backward's computing"},
        {"fetch_forward", "copies to the device in the forward"},
        {"fetch_backward", "copies to the device in the backward"},
        {"send_forward", "copies to the host in the forward"},
        {"send_backward", "copies to the host in the backward"},
        {"both_ways", "copies in both directions"},
    };
    char text[TDM_FORMAT_SIZE];
    fprintf(out, ROW, row->name);
    if (row->of_bytes)
        fprintf(out, "%s a GiB: ", saving(row->seconds, text));
    else
        fprintf(out, "%.0f%% of its seconds: ", 100 * row->seconds);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].name, row->name) == 0) {
            fprintf(out, "%s\n", rows[i].words);
            return;
        }
    const char *layer = strrchr(row->name, '_');
    fprintf(out, "%.*s memory when the backward of layer %s begins\n", (int)(layer - row->name),
            row->name, layer + 1);
}

/* Explains the place of a category: the cost of its bytes on the device compared with copying
 * them. */
static void say_category(FILE *out, const struct tdm_machine *machine,
                         const struct tdm_search *search, enum tdm_category category)
{
    char device[TDM_FORMAT_SIZE], host[TDM_FORMAT_SIZE], worth[TDM_FORMAT_SIZE],
        copied[TDM_FORMAT_SIZE];
    const struct tdm_simulation *s = &search->simulation;
    uint64_t near = s->peak_categories[TDM_DEVICE][category];
    uint64_t far = s->peak_categories[machine->topology.far][category];
    double price = search->binding.device_seconds_per_gib;
    if (near + far == 0 || category == TDM_RUNTIME)
        return;
    fprintf(out, ROW, tdm_category_name(category));
    if (far == 0) {
        fprintf(out, "%s on the device: %s\n", tdm_format_bytes(near, device),
                price > NOTEWORTHY * s->step_seconds
                    ? "copying would cost more than the memory is worth, or it is used all the time"
                    : "there is room");
        return;
    }
    fprintf(
        out,
        "%s on the device, %s on the %s: its memory on the device would be worth %s, a copy of it "
        "takes %s of the link\n",
        tdm_format_bytes(near, device), tdm_format_bytes(far, host), tdm_machine_far(machine)->name,
        saving(price * (double)far / (double)(UINT64_C(1) << 30), worth),
        saving((double)far / tdm_machine_link_rate(machine, TDM_LINK_H2D), copied));
}

/* The rank that computes longest. */
static const struct tdm_rank_use *slowest(const struct tdm_team_use *team)
{
    const struct tdm_rank_use *most = &team->of[0];
    for (uint32_t i = 1; i < team->simulated; i++)
        if (team->of[i].compute_seconds > most->compute_seconds)
            most = &team->of[i];
    return most;
}

/* Explains a step of several ranks, which has no linear program: what its slowest rank does, and
 * how much of the memory is used, by category. */
static void explain_team(FILE *out, const struct tdm_schedule *schedule,
                         const struct tdm_simulation *s)
{
    const struct tdm_topology *topology = &schedule->machine->topology;
    const struct tdm_rank_use *rank = slowest(&s->team);
    const double step = s->step_seconds;
    const double left = step - rank->compute_seconds - rank->exposed_seconds;
    const double other = left > NOTEWORTHY * step ? left : 0;
    char used[TDM_FORMAT_SIZE], limit[TDM_FORMAT_SIZE];
    fprintf(out, "\nwhat the step takes, on rank %u, which computes longest\n", rank->rank);
    fprintf(out, ROW "%s, %.1f%% of the step\n", "computing",
            tdm_format_seconds(rank->compute_seconds, used), 100 * rank->compute_seconds / step);
    fprintf(out, ROW "%s, %.1f%%: of %s that it exchanges\n", "exposed exchanges",
            tdm_format_seconds(rank->exposed_seconds, used), 100 * rank->exposed_seconds / step,
            tdm_format_seconds(rank->team_seconds, limit));
    fprintf(out, ROW "%s, %.1f%%\n", "copies, other waits", tdm_format_seconds(other, used),
            100 * other / step);
    for (uint32_t place = 0; place < topology->place_count; place++) {
        uint64_t sharers = tdm_schedule_sharers(schedule, (enum tdm_place)place);
        if (s->used_peak_bytes[place] == 0)
            continue;
        fprintf(out, "\n%s memory, %s of %s\n", topology->places[place].name,
                tdm_format_bytes(s->used_peak_bytes[place], used),
                tdm_format_bytes(tdm_schedule_limit(schedule, (enum tdm_place)place), limit));
        for (int c = 0; c < TDM_CATEGORIES; c++)
            if (s->peak_categories[place][c] > 0 && c != TDM_RUNTIME)
                fprintf(out, ROW "%s%s\n", tdm_category_name((enum tdm_category)c),
                        tdm_format_bytes(s->peak_categories[place][c] * sharers, used),
                        sharers > 1 ? " of all ranks" : "");
    }
}

void tdm_explain(FILE *out, const struct tdm_schedule *schedule, const struct tdm_search *search)
{
    if (search->simulation.team.ranks > 1) {
        explain_team(out, schedule, &search->simulation);
        return;
    }
    const struct tdm_relaxed *binding = &search->binding;
    fprintf(out, "\nwhat binds: by how much a unit more of it lowers the bound\n");
    if (binding->row_count == 0)
        fprintf(out, ROW "nothing but the computing of the forward\n", "");
    for (unsigned i = 0; i < binding->row_count; i++)
        say_row(out, &binding->rows[i]);
    fprintf(out, "\nwhere it is at the peaks\n");
    for (int category = 0; category < TDM_CATEGORIES; category++)
        say_category(out, schedule->machine, search, (enum tdm_category)category);
}
