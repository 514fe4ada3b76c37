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
        fprintf(out, "\nbound\n" ROW "not known: %s\n", "step",
                search->counts.least_alone ? "only the least memory was sought"
                : search->simulation.team.ranks > 1
                    ? "one rank's chunks would be longer, the program too large, or the search "
                      "was cut short"
                    : "the linear program is too large, or the search was cut short");
        return;
    }
    fprintf(out, "\nbound\n" ROW "%s: no schedule %s is faster; the gap is %.2f%%\n", "step",
            tdm_format_seconds(search->bound_seconds, text),
            search->simulation.team.ranks > 1 ? "with chunks of this size"
                                              : "of the kinds searched",
            100 * search->gap);
    for (int place = 0; place < TDM_PLACES; place++)
        /* so steep a slope holds for the first bytes alone, not for a whole GiB */
        if (saved[place] > NOTEWORTHY * step && saved[place] < step / 4)
            fprintf(out, ROW "1 GiB more lowers the bound by %s\n",
                    tdm_place_name(topology, (enum tdm_place)place), saving(saved[place], text));
}

/* A lane's rows together: what a second less of its copies saves, and 1 GB/s more. */
struct lane_words {
    const char *name, *rows[3];
    enum tdm_lane lane;
    enum tdm_link_number link;
};

static const struct lane_words lanes[] = {
    {"computing", {"compute"}, TDM_LANE_COMPUTE, TDM_LINK_H2D},
    {"to the device", {"fetch_forward", "fetch_backward"}, TDM_LANE_H2D, TDM_LINK_H2D},
    {"to the host", {"send_forward", "send_backward", "send_updated"}, TDM_LANE_D2H, TDM_LINK_D2H},
};

static void say_lane(FILE *out, const struct tdm_machine *machine, const struct tdm_search *search,
                     const struct lane_words *words)
{
    const struct tdm_relaxed *binding = &search->binding;
    const struct tdm_simulation *s = &search->simulation;
    double price = 0;
    char text[TDM_FORMAT_SIZE];
    for (unsigned i = 0; i < binding->row_count; i++)
        for (int k = 0; k < 3 && words->rows[k] != NULL; k++)
            if (strcmp(binding->rows[i].name, words->rows[k]) == 0)
                price += binding->rows[i].seconds;
    if (price < NOTEWORTHY)
        return;
    fprintf(out, ROW "%.0f%% of its %s", words->name, 100 * price,
            tdm_format_seconds(s->busy_seconds[words->lane], text));
    if (words->lane != TDM_LANE_COMPUTE) {
        const double rate = tdm_machine_link_rate(machine, words->link) / 1e9;
        fprintf(out, ": 1 GB/s more saves %s",
                saving(price * s->busy_seconds[words->lane] / (rate + 1), text));
    }
    fputc('\n', out);
}

/* Both directions together. */
static void say_both_ways(FILE *out, const struct tdm_machine *machine,
                          const struct tdm_search *search)
{
    const struct tdm_simulation *s = &search->simulation;
    const double rate = tdm_machine_both_ways_rate(machine) / 1e9;
    double price = 0,
           copied = (double)s->copied_bytes[TDM_LANE_H2D] + (double)s->copied_bytes[TDM_LANE_D2H];
    char text[TDM_FORMAT_SIZE];
    for (unsigned i = 0; i < search->binding.row_count; i++)
        if (strncmp(search->binding.rows[i].name, "both_ways", strlen("both_ways")) == 0)
            price += search->binding.rows[i].seconds;
    if (price >= NOTEWORTHY)
        fprintf(out, ROW "%.0f%% of their bytes: 1 GB/s more saves %s\n", "both ways", 100 * price,
                saving(price * copied / 1e9 / (rate * (rate + 1)), text));
}

/* When the memory of a place binds most: its dearest row. */
static void say_moment(FILE *out, const char *row)
{
    static const struct {
        const char *end, *words;
    } moments[] = {
        {"_forward", "at the end of the forward"},
        {"_head", "in the LM head"},
        {"_update", "in the update of the head"},
        {"_embedding", "in the embedding's update"},
        {"_end", "when updates begin"},
    };
    const char *end = strrchr(row, '_');
    for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++)
        if (strcmp(end, moments[i].end) == 0) {
            fprintf(out, "%s\n", moments[i].words);
            return;
        }
    fprintf(out, "when the backward of layer %s begins\n", end + 1);
}

static void say_memory(FILE *out, const struct tdm_topology *topology,
                       const struct tdm_search *search, enum tdm_place place)
{
    const char *name = tdm_place_name(topology, place);
    const double saved = place == TDM_DEVICE ? search->binding.device_seconds_per_gib
                                             : search->binding.host_seconds_per_gib;
    char text[TDM_FORMAT_SIZE], what[48];
    for (unsigned i = 0; i < search->binding.row_count; i++) {
        const struct tdm_binding_row *row = &search->binding.rows[i];
        if (!row->of_bytes || strncmp(row->name, name, strlen(name)) != 0)
            continue;
        snprintf(what, sizeof(what), "%s memory", name);
        fprintf(out, ROW "%s a GiB, most of it ", what, saving(saved, text));
        say_moment(out, row->name); /* rows are in falling order */
        return;
    }
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
    fprintf(
        out,
        ROW "%s on the device, %s on the %s: its memory on the device would be worth %s, a copy "
            "of it takes %s of the link\n",
        tdm_category_name(category), tdm_format_bytes(near, device), tdm_format_bytes(far, host),
        tdm_machine_far(machine)->name,
        saving(search->binding.device_seconds_per_gib * (double)far / (double)(UINT64_C(1) << 30),
               worth),
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

#define MOST_CATEGORIES 4

void tdm_explain(FILE *out, const struct tdm_schedule *schedule, const struct tdm_search *search)
{
    const struct tdm_machine *machine = schedule->machine;
    const uint64_t *far = search->simulation.peak_categories[machine->topology.far];
    bool told[TDM_CATEGORIES] = {[TDM_RUNTIME] = true};
    if (search->simulation.team.ranks > 1) {
        explain_team(out, schedule, &search->simulation);
        return;
    }
    fprintf(out, "\nwhat binds: by how much a unit more of it lowers the bound\n");
    if (search->binding.row_count == 0)
        fprintf(out, ROW "nothing but the computing of the forward\n", "");
    say_memory(out, &machine->topology, search, TDM_DEVICE);
    say_memory(out, &machine->topology, search, machine->topology.far);
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++)
        say_lane(out, machine, search, &lanes[i]);
    say_both_ways(out, machine, search);
    for (int i = 0; i < MOST_CATEGORIES; i++) {
        int most = TDM_RUNTIME;
        for (int category = 0; category < TDM_CATEGORIES; category++)
            if (!told[category] && (told[most] || far[category] > far[most]))
                most = category;
        if (told[most] || far[most] == 0)
            break;
        if (i == 0)
            fprintf(out, "\nwhat is on the %s at its peak\n", tdm_machine_far(machine)->name);
        told[most] = true;
        say_category(out, machine, search, (enum tdm_category)most);
    }
}
