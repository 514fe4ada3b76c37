/* SPDX-License-Identifier: Apache-2.0 */
/* Reads homes, prices, binding rows and groups from a solution of the relaxation. */
#include "planner/relaxation_parts.h"

#include <stdio.h>

void tdm_relaxation_read(struct tdm_relaxation *r)
{
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++) {
        r->relaxed.device_layers[state] = tdm_relaxation_value(r, r->plain_home[state]);
        r->relaxed.embedding[state] = tdm_relaxation_value(r, r->plain_embedding[state]);
        r->relaxed.head[state] = tdm_relaxation_value(r, r->plain_head[state]);
    }
    r->relaxed.device_layers[TDM_STATE_WEIGHTS] += tdm_relaxation_value(r, r->plain_passing);
}

double tdm_relaxation_place_price(const struct tdm_relaxation *r, enum tdm_place place)
{
    const double *prices = r->centre;
    double price = tdm_price_at_most(prices, r->row[tdm_is_far(place) ? ROW_FAR_END : ROW_END]);
    for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++)
        price += tdm_price_at_most(prices, r->place[place][i]);
    return tdm_is_far(place) ? price : price + tdm_price_at_most(prices, r->row[ROW_EMBEDDING]);
}

static void add_binding(struct tdm_relaxed *relaxed, const char *name, bool of_bytes,
                        double seconds)
{
    unsigned at = relaxed->row_count;
    if (seconds <= 1e-12 || name[0] == '\0')
        return;
    for (; at > 0 && relaxed->rows[at - 1].seconds < seconds; at--)
        if (at < TDM_BINDING_ROWS)
            relaxed->rows[at] = relaxed->rows[at - 1];
    if (at == TDM_BINDING_ROWS)
        return;
    struct tdm_binding_row *row = &relaxed->rows[at];
    *row = (struct tdm_binding_row){.of_bytes = of_bytes, .seconds = seconds};
    snprintf(row->name, sizeof(row->name), "%s", name);
    relaxed->row_count += relaxed->row_count < TDM_BINDING_ROWS;
}

/* Collects the rows that bind at the best prices. */
static void find_binding(const struct tdm_relaxation *r, struct tdm_relaxed *relaxed)
{
    relaxed->row_count = 0;
    for (int k = 0; k < TDM_PLANNED_PLACES; k++)
        for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++) {
            enum tdm_place place = tdm_planned_place(r->pricing.e->base, k);
            if (r->place[place][i] >= 0)
                add_binding(relaxed, tdm_solver_row_name(r->solver, r->place[place][i]), true,
                            1024 * tdm_price_at_most(r->centre, r->place[place][i]));
        }
    for (int i = ROW_EMBEDDING; i <= ROW_FAR_END; i++)
        add_binding(relaxed, tdm_solver_row_name(r->solver, r->row[i]), true,
                    1024 * tdm_price_at_most(r->centre, r->row[i]));
    for (int i = ROW_COMPUTE; i <= ROW_BOTH_UPDATED_LAST; i++)
        if ((i <= ROW_BOTH_BACKWARD_LAST || i >= ROW_SLOWED) && r->row[i] >= 0)
            add_binding(relaxed, tdm_solver_row_name(r->solver, r->row[i]), false,
                        fmax(r->centre[r->row[i]], 0));
}

void tdm_relaxation_weigh(struct tdm_relaxation *r)
{
    r->relaxed.bound_seconds = r->bound_seconds;
    r->relaxed.passing = r->is_passing;
    r->relaxed.device_seconds_per_gib = 1024 * tdm_relaxation_place_price(r, TDM_DEVICE);
    r->relaxed.host_seconds_per_gib = 1024 * tdm_relaxation_place_price(r, r->pricing.far);
    find_binding(r, &r->relaxed);
}

enum tdm_status tdm_relaxation_text(const struct tdm_relaxation *r, char **text, uint64_t *bytes,
                                    struct tdm_error *err)
{
    return tdm_solver_text(r->solver, text, bytes, err);
}

/* ---- groups by prices ---- */

static double sum_of(const double of[TDM_MAX_PLACES])
{
    double sum = 0;
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        sum += of[place];
    return sum;
}

/* The place with most; the device, if both have as much. */
static enum tdm_place most_at(enum tdm_place far, const double of[TDM_MAX_PLACES])
{
    return of[far] > of[TDM_DEVICE] ? far : TDM_DEVICE;
}

static void add_choice(struct tdm_choice *sum, const struct tdm_choice *choice)
{
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
        for (int store = 0; store < TDM_STORES; store++) {
            sum->kept[store][place] += choice->kept[store][place];
            sum->held[store][place] += choice->held[store][place];
        }
        sum->kv_kept[place] += choice->kv_kept[place];
    }
    sum->kv_held += choice->kv_held;
    sum->far_kv_gradients += choice->far_kv_gradients;
}

/* The richest set that at least half of the chunks with an attention output store. */
static enum tdm_set set_of(const double stored[TDM_STORES][TDM_MAX_PLACES], double layers)
{
    enum tdm_set richest = TDM_SET_INPUT;
    double attention = sum_of(stored[TDM_STORE_ATTENTION]) / layers;
    for (int store = 0; store < TDM_STORES && attention >= 0.5; store++) {
        enum tdm_set set = tdm_set_with((enum tdm_store)store);
        if (sum_of(stored[store]) / layers >= attention / 2 && !tdm_set_covers(richest, set))
            richest = set;
    }
    return richest;
}

static uint32_t split(uint32_t chunks, double stored)
{
    double from = chunks - stored;
    return from <= 0 ? 0 : (uint32_t)(from + 0.5);
}

/* The settings of a group (a, b) nearest to what its layers choose at the prices: averages over the
 * layers that had the choice. */
static struct tdm_group group_of(const struct tdm_relaxation *r, uint32_t a, uint32_t b)
{
    const struct tdm_pricing *p = &r->pricing;
    uint32_t n = p->e->chunks;
    struct tdm_choice sum = {0}, choice;
    struct tdm_group group = {.layers = b - a + 1};
    double layers = b - a + 1, inner = b > a ? b - a : 1;
    enum tdm_place place;
    for (uint32_t j = a; j <= b; j++) {
        choice = (struct tdm_choice){0};
        tdm_price_layer(p, j, a, b, NULL, &choice);
        add_choice(&sum, &choice);
    }
    tdm_price_input(p, a, a, b, NULL, &group.input_place);
    double kept = sum_of(sum.kept[TDM_STORE_ATTENTION]) / layers;
    group.kept = set_of(sum.kept, layers);
    group.kept_from_chunk = group.kept == TDM_SET_INPUT ? 0 : split(n, kept);
    group.kept_place = most_at(p->far, sum.kept[TDM_STORE_ATTENTION]);
    double held = sum_of(sum.held[TDM_STORE_ATTENTION]) / inner;
    group.held = set_of(sum.held, inner);
    if (group.held != TDM_SET_INPUT)
        group.held_from_chunk = split(n, kept + held);
    if (p->order == TDM_CHUNK_MAJOR) {
        group.kv = TDM_KV_KEEP;
        group.kv_place = most_at(p->far, sum.kv_kept);
        group.kv_gradients_place = sum.far_kv_gradients > layers / 2 ? p->far : TDM_DEVICE;
        return group;
    }
    if (b > a) {
        tdm_price_input(p, b, a, b, NULL, &place);
        group.held_place = place;
    }
    if (tdm_set_has(group.kept, TDM_STORE_KV) || sum_of(sum.kv_kept) > layers * n / 2) {
        group.kv = TDM_KV_KEEP;
        group.kv_place = most_at(p->far, sum.kv_kept);
    }
    return group;
}

void tdm_relaxation_groups(struct tdm_relaxation *r, struct tdm_group *groups, uint32_t *count)
{
    uint32_t at;
    tdm_relaxation_use(r, r->centre);
    tdm_relaxation_path(r);
    *count = 0;
    for (uint32_t k = r->layers; k > 0; k = r->from[k])
        ++*count;
    at = *count;
    for (uint32_t k = r->layers; k > 0; k = r->from[k])
        groups[--at] = group_of(r, r->from[k], k - 1);
}
