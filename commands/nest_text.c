/* SPDX-License-Identifier: Apache-2.0 */
/* Short descriptions of a schedule's loop nest. */
#include "commands/nest_text.h"

#include "base/size.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Appends text, after a comma if `out` is not empty. */
static void add(char out[TDM_NEST_TEXT], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add(char out[TDM_NEST_TEXT], const char *format, ...)
{
    va_list args;
    size_t used = strlen(out);
    if (used > 0 && used + 3 < TDM_NEST_TEXT) {
        memcpy(out + used, ", ", 3);
        used += 2;
    }
    va_start(args, format);
    vsnprintf(out + used, TDM_NEST_TEXT - used, format, args);
    va_end(args);
}

static uint64_t chunk_count(const struct tdm_schedule *schedule)
{
    uint64_t count = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        count = tdm_size_add(
            count, tdm_size_ceil_div(schedule->sequences[s].tokens, schedule->chunk_tokens));
    return count;
}

static bool same_sizes(const struct tdm_schedule *schedule)
{
    for (uint32_t g = 1; g < schedule->group_count; g++)
        if (schedule->groups[g].layers != schedule->groups[0].layers)
            return false;
    return true;
}

const char *tdm_nest_groups(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT])
{
    out[0] = '\0';
    if (same_sizes(schedule)) {
        add(out, "%u x %u", schedule->group_count, schedule->groups[0].layers);
        return out;
    }
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        size_t used = strlen(out);
        if (used + 16 > TDM_NEST_TEXT) {
            snprintf(out + used, TDM_NEST_TEXT - used, "...");
            break;
        }
        snprintf(out + used, TDM_NEST_TEXT - used, "%s%u", g == 0 ? "" : ",",
                 schedule->groups[g].layers);
    }
    return out;
}

/* Fractions of all chunks of all layers. */
struct shares {
    double of[TDM_SETS][TDM_MAX_PLACES];
};

static struct shares kept_shares(const struct tdm_schedule *schedule)
{
    struct shares shares = {0};
    double chunks = (double)chunk_count(schedule), layers = schedule->model->layers;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        const struct tdm_group *group = &schedule->groups[g];
        double from = group->kept_from_chunk < chunks ? group->kept_from_chunk : chunks;
        shares.of[group->kept][group->kept_place] +=
            group->layers / layers * (chunks - from) / chunks;
    }
    return shares;
}

/* Fractions of the layers that can hold: those whose group recomputes its forward. In layer-major
 * order the top layer of each group is excluded. `inputs`: of what they hold without a set. */
static struct shares held_shares(const struct tdm_schedule *schedule, bool inputs, double *able)
{
    struct shares shares = {0};
    double chunks = (double)chunk_count(schedule);
    *able = 0;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        const struct tdm_group *group = &schedule->groups[g];
        const enum tdm_set set = inputs ? TDM_SET_INPUT : group->held;
        const double first = inputs ? 0 : group->held_from_chunk;
        const double held = first < chunks ? chunks - first : 0;
        const double near = group->held_device_chunks < held ? group->held_device_chunks : held;
        double layers =
            schedule->order == TDM_LAYER_MAJOR ? group->layers - 1.0 : (double)group->layers;
        *able += layers;
        shares.of[set][TDM_DEVICE] += layers * near / chunks;
        shares.of[set][group->held_place] += layers * (held - near) / chunks;
    }
    for (int set = 0; set<TDM_SETS && * able> 0; set++)
        for (uint32_t place = 0; place < schedule->machine->topology.place_count; place++)
            shares.of[set][place] /= *able;
    return shares;
}

/* Adds the shares of a set, by place. */
static void add_set(const struct tdm_schedule *schedule, const struct shares *shares, int set,
                    char out[TDM_NEST_TEXT])
{
    for (uint32_t place = 0; place < schedule->machine->topology.place_count; place++) {
        double share = shares->of[set][place];
        const char *name = tdm_place_name(&schedule->machine->topology, (enum tdm_place)place);
        if (share > 0.995)
            add(out, "%s %s", tdm_set_short_name((enum tdm_set)set), name);
        else if (share > 0)
            add(out, "%s %.0f%% %s", tdm_set_short_name((enum tdm_set)set),
                share < 0.01 ? 1 : 100 * share, name);
    }
}

static void add_shares(const struct tdm_schedule *schedule, const struct shares *shares,
                       char out[TDM_NEST_TEXT])
{
    for (int set = TDM_SETS - 1; set > TDM_SET_INPUT; set--)
        add_set(schedule, shares, set, out);
}

static const char *or_nothing(char out[TDM_NEST_TEXT])
{
    if (out[0] == '\0')
        memcpy(out, "-", 2);
    return out;
}

const char *tdm_nest_kept(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT])
{
    struct shares shares = kept_shares(schedule);
    out[0] = '\0';
    add_shares(schedule, &shares, out);
    return or_nothing(out);
}

const char *tdm_nest_held(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT])
{
    double able;
    const struct shares inputs = held_shares(schedule, true, &able),
                        shares = held_shares(schedule, false, &able);
    out[0] = '\0';
    if (schedule->order == TDM_LAYER_MAJOR && able > 0)
        add_set(schedule, &inputs, TDM_SET_INPUT, out);
    if (able > 0)
        add_shares(schedule, &shares, out);
    return or_nothing(out);
}

const char *tdm_nest_on_host(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT])
{
    uint32_t layers = schedule->model->layers, inputs = 0, kv = 0, gradients = 0;
    out[0] = '\0';
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        const struct tdm_group *group = &schedule->groups[g];
        inputs += g > 0 && group->input_place != TDM_DEVICE;
        kv += group->kv == TDM_KV_KEEP && group->kv_place != TDM_DEVICE;
        gradients += group->kv_gradients_place != TDM_DEVICE;
    }
    if (inputs > 0)
        add(out, "inputs");
    if (kv > 0)
        add(out, "K, V");
    if (gradients > 0)
        add(out, "dK, dV");
    for (int state = 0; state < TDM_STATES; state++) {
        const struct tdm_home *home = &schedule->homes[state];
        const char *name = tdm_state_name((enum tdm_state)state);
        uint32_t away = layers - home->device_layers;
        if (away == layers)
            add(out, "%s", name);
        else if (away > 0)
            add(out, "%s %u/%u", name, away, layers);
        else if (home->embedding != TDM_DEVICE || home->head != TDM_DEVICE)
            add(out, "%s of %s", name, home->head != TDM_DEVICE ? "head" : "embedding");
    }
    return or_nothing(out);
}

#define ALL 0.995 /* shares from here on count as all */

/* Appends what is kept of the most bodies: "attention kept", "all kept in part"; "q, K, V or more
 * kept" if all bodies keep at least that; or "attention held", "attention recomputed". */
static void add_stores(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT])
{
    double able, kept = 0, held = 0, most = 0;
    struct shares k = kept_shares(schedule), h = held_shares(schedule, false, &able);
    enum tdm_set largest = TDM_SET_ATTENTION_OUTPUT, poorest = TDM_SETS;
    for (int set = TDM_SET_ATTENTION_OUTPUT; set < TDM_SETS; set++) {
        double share = 0;
        for (uint32_t place = 0; place < schedule->machine->topology.place_count; place++) {
            share += k.of[set][place];
            held += h.of[set][place];
        }
        kept += share;
        if (share > 0 && poorest == TDM_SETS)
            poorest = (enum tdm_set)set;
        if (share > most) {
            most = share;
            largest = (enum tdm_set)set;
        }
    }
    if (kept > ALL && most <= ALL)
        add(out, "%s or more kept", tdm_set_short_name(poorest));
    else if (kept > 0)
        add(out, "%s kept%s", tdm_set_short_name(largest), most > ALL ? "" : " in part");
    else
        add(out, "attention %s", able > 0 && held > 0 ? "held" : "recomputed");
}

const char *tdm_nest_name(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT])
{
    char sizes[TDM_NEST_TEXT];
    out[0] = '\0';
    add(out, "%s", tdm_order_name(schedule->order));
    if (schedule->group_count == 1)
        add(out, "one group");
    else if (same_sizes(schedule))
        add(out, "%u groups of %u", schedule->group_count, schedule->groups[0].layers);
    else
        add(out, "groups of %.40s", tdm_nest_groups(schedule, sizes));
    if (schedule->pass == TDM_TRAIN)
        add_stores(schedule, out);
    return out;
}
