/* SPDX-License-Identifier: Apache-2.0 */
/* The relaxation: finds arcs at prices of its linear program, and adds them in a loop until the
 * program is solved. */
#include "planner/relaxation_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMOOTHING 0.6        /* weight of the best prices so far */
#define MOST_SEARCHES 3u     /* all solutions of a program over those that are counted */
#define MOST_ITERATIONS 5000 /* of the simplex in one solution: most take less than 600 */

static enum tdm_status no_memory(struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the relaxation");
}

/* ---- arcs ---- */

/* Adds an arc with the best choices of its layers at the prices. */
static enum tdm_status add_arc(struct tdm_relaxation *r, uint32_t a, uint32_t b,
                               struct tdm_error *err)
{
    const struct tdm_pricing *p = &r->pricing;
    enum tdm_place place;
    tdm_amounts_clear(p->e, &r->use);
    for (uint32_t j = a; j <= b; j++) {
        tdm_price_layer(p, j, a, b, &r->use, NULL);
        tdm_price_input(p, j, a, b, &r->use, &place);
    }
    tdm_price_group(p, a, b, &r->use);
    return tdm_relaxation_put_arc(r, a, b, err);
}

static bool same_cost(const struct tdm_estimator *e, uint32_t a, uint32_t b)
{
    return e->kind_of[a] == e->kind_of[b] &&
           memcmp(&e->costs[(size_t)a * e->classes], &e->costs[(size_t)b * e->classes],
                  e->classes * sizeof(*e->costs)) == 0;
}

/* The last arc with the same top layer of which the layers were priced: from layer `a` on, whose
 * cost is `lowest`; `all` of them. Both without rows of K and V. */
struct priced_arc {
    uint32_t a;
    double lowest, all;
};

#define ROUNDED 1e-9 /* more than sums are rounded by, of their value */

/* Cost of an arc: its layers, their inputs and the group itself. In a longer arc each layer costs
 * no less, without rows of K and V: one that is more than `enough` by that is not looked at. */
static double price_arc(const struct tdm_relaxation *r, uint32_t a, uint32_t b, double enough,
                        struct priced_arc *priced)
{
    const struct tdm_pricing *p = &r->pricing;
    enum tdm_place place;
    double cost = 0, last = 0, alone = 0, rows = tdm_price_rows(p, b, a, b, NULL, NULL);
    /* a held input costs the same for all layers inside a group */
    const double held = a < b ? (b - a) * tdm_price_input(p, b, a, b, NULL, &place) : 0;
    const double input = tdm_price_input(p, a, a, b, NULL, &place),
                 group = tdm_price_group(p, a, b, NULL);
    if (a > 0 && a + 1 < b && r->is_alike[a + 1]) {
        const double least = priced->all + (priced->a - a) * priced->lowest + held + input + group +
                             (p->e->kinds == 1 ? (b - a + 1) * rows : 0);
        if (least > enough + ROUNDED * fabs(enough))
            return least;
    }
    *priced = (struct priced_arc){.a = a};
    for (uint32_t j = a; j <= b; j++) { /* rows count layer 0 in another way */
        if (j == a || j == b || j == 1 || !r->is_alike[j]) {
            const struct tdm_layer_cost of_layer = tdm_price_layer(p, j, a, b, NULL, NULL);
            if (p->e->kinds > 1)
                rows = tdm_price_rows(p, j, a, b, NULL, NULL);
            last = tdm_layer_cost_sum(&of_layer, rows);
            alone = tdm_layer_cost_sum(&of_layer, 0);
        }
        cost += last;
        priced->all += alone;
        priced->lowest = j == a ? alone : priced->lowest;
    }
    return cost + held + input + group;
}

/* Finds the cheapest path. */
double tdm_relaxation_path(struct tdm_relaxation *r)
{
    r->best[0] = 0;
    for (uint32_t b = 0; b < r->layers; b++) {
        struct priced_arc priced = {b, 0, 0};
        r->best[b + 1] = TDM_NO_BOUND;
        for (uint32_t a = b + 1; a-- > 0;) {
            if (!r->allowed[a * r->layers + b]) {
                priced.lowest = -HUGE_VAL; /* nothing is known of the next one */
                continue;
            }
            const double cost = price_arc(r, a, b, r->best[b + 1] - r->best[a], &priced);
            if (r->best[a] + cost < r->best[b + 1]) {
                r->best[b + 1] = r->best[a] + cost;
                r->from[b + 1] = a;
            }
        }
    }
    return r->best[r->layers];
}

enum tdm_status tdm_relaxation_add_path(struct tdm_relaxation *r, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t k = r->layers; k > 0 && status == TDM_OK; k = r->from[k])
        status = add_arc(r, r->from[k], k - 1, err);
    return status;
}

/* ---- the loop ---- */

/* The solver's prices of all rows, with GLPK's signs: not above 0 for a row with only an upper
 * bound, not below 0 with only a lower bound. True: they are new. */
static bool find_prices(struct tdm_relaxation *r)
{
    bool is_new = false;
    for (int row = 0; row < r->row_count; row++) {
        double price = tdm_solver_price(r->solver, row);
        if ((price > 0 && r->bounds[row].least <= -TDM_UNBOUNDED) ||
            (price < 0 && r->bounds[row].most >= TDM_UNBOUNDED))
            price = 0;
        is_new = is_new || price != r->found[row];
        r->found[row] = price;
    }
    return is_new;
}

void tdm_relaxation_use(struct tdm_relaxation *r, const double *found)
{
    struct tdm_amounts *prices = &r->pricing.prices;
    for (int k = 0; k < TDM_PLANNED_PLACES; k++) {
        enum tdm_place place = tdm_planned_place(r->pricing.e->base, k);
        for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++)
            prices->place[place][i] = tdm_price_at_most(found, r->place[place][i]);
    }
    prices->compute = fmax(found[r->row[ROW_COMPUTE]], 0);
    prices->fetch[TDM_IN_FORWARD] = fmax(found[r->row[ROW_FETCH_FORWARD]], 0);
    prices->fetch[TDM_IN_BACKWARD] = fmax(found[r->row[ROW_FETCH_BACKWARD]], 0);
    prices->send[TDM_IN_FORWARD] = fmax(found[r->row[ROW_SEND_FORWARD]], 0);
    prices->send[TDM_IN_BACKWARD] = fmax(found[r->row[ROW_SEND_BACKWARD]], 0);
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++) {
        prices->both[TDM_IN_FORWARD][bound] = tdm_price_at_least(found, tdm_both_row(r, bound));
        prices->both[TDM_IN_BACKWARD][bound] =
            prices->both[TDM_IN_FORWARD][bound] +
            tdm_price_at_least(found, tdm_both_backward_row(r, bound));
    }
    prices->again = fmax(found[r->row[ROW_AGAIN]], 0);
    tdm_pricing_prepare(&r->pricing);
}

static double reduced_cost(const struct tdm_relaxation *r, const struct tdm_plain_column *column,
                           const double *prices)
{
    double rest = column->cost;
    for (size_t k = 0; k < column->count; k++)
        rest -= prices[r->kept[column->first + k].row] * r->kept[column->first + k].value;
    return rest;
}

/* Value of rows and plain columns at prices. With the cheapest path it is a bound, also for prices
 * between two of the solver's: no reduced cost of an unbounded column is negative there. */
static double plain_value(const struct tdm_relaxation *r, const double *prices)
{
    double value = 0;
    for (int row = 0; row < r->row_count; row++) {
        double price = prices[row];
        if (row >= r->node[0] && row < r->node[0] + (int)r->layers) /* every path satisfies these */
            continue;
        if (price > 0)
            value += price * r->bounds[row].least;
        else if (price < 0)
            value += price * r->bounds[row].most;
    }
    for (uint32_t i = 0; i < r->plain_count; i++) {
        const struct tdm_plain_column *column = &r->plain[i];
        double rest = reduced_cost(r, column, prices);
        if (rest < 0 && column->most >= TDM_UNBOUNDED)
            rest = 0; /* the solver's tolerance */
        value += rest * (rest > 0 ? column->least : column->most);
    }
    return value;
}

static bool is_arc_of(const uint32_t *ends, uint32_t count, uint32_t a, uint32_t b)
{
    bool begins = a == 0, ends_there = false;
    for (uint32_t i = 0; i < count; i++) {
        begins |= ends[i] == a;
        ends_there |= ends[i] == b + 1;
    }
    if (!begins || !ends_there)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (ends[i] > a && ends[i] < b + 1)
            return false;
    return true;
}

static bool allow_arcs(struct tdm_relaxation *r, const struct tdm_group_list *sizes)
{
    uint32_t *ends = calloc((size_t)r->layers + 1, sizeof(*ends)), end = 0;
    if (ends == NULL)
        return false;
    for (uint32_t i = 0; sizes != NULL && i < sizes->count; i++)
        ends[i] = end += sizes->sizes[i];
    for (uint32_t a = 0; a < r->layers; a++)
        for (uint32_t b = a; b < r->layers; b++)
            r->allowed[a * r->layers + b] = sizes == NULL || is_arc_of(ends, sizes->count, a, b);
    free(ends);
    return true;
}

static enum tdm_status take_memory(struct tdm_relaxation *r, const struct tdm_group_list *sizes,
                                   struct tdm_error *err)
{
    const struct tdm_estimator *e = r->pricing.e;
    size_t rows = (size_t)r->layers + TDM_MORE_ROWS;
    bool ok = (r->node = calloc(rows, sizeof(int))) != NULL;
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        enum tdm_place place = tdm_planned_place(e->base, i);
        ok = (r->place[place] = calloc(rows, sizeof(int))) != NULL && ok;
        ok = (r->fixed[place] = calloc(rows, sizeof(double))) != NULL && ok;
    }
    ok = (r->allowed = calloc((size_t)r->layers * r->layers + 1, sizeof(bool))) != NULL && ok;
    ok = (r->is_alike = calloc(rows, sizeof(bool))) != NULL && ok;
    for (uint32_t layer = 1; layer < r->layers && ok; layer++)
        r->is_alike[layer] = same_cost(e, layer - 1, layer);
    ok = (r->best = calloc(rows, sizeof(double))) != NULL && ok;
    ok = (r->from = calloc(rows, sizeof(uint32_t))) != NULL && ok;
    size_t all_rows = 3 * rows + ROWS;
    ok = (r->entries = calloc(all_rows, sizeof(*r->entries))) != NULL && ok;
    ok = (r->entry_of = calloc(all_rows, sizeof(*r->entry_of))) != NULL && ok;
    ok = (r->bounds = calloc(all_rows, sizeof(*r->bounds))) != NULL && ok;
    ok = (r->kept = calloc(TDM_MOST_PLAIN * all_rows, sizeof(*r->kept))) != NULL && ok;
    ok = (r->found = calloc(all_rows, sizeof(double))) != NULL && ok;
    ok = (r->centre = calloc(all_rows, sizeof(double))) != NULL && ok;
    ok = (r->tried = calloc(all_rows, sizeof(double))) != NULL && ok;
    ok = ok && allow_arcs(r, sizes);
    return ok ? tdm_amounts_new(e, &r->use, err) : no_memory(err);
}

/* Adds the first paths, so that the program begins near a solution: the best ones if a byte costs
 * the same during the whole step, from what nobody pays down to almost nothing, at the far place 0,
 * 1 or 4 times as much. Fewer of them if prices of a similar program are known. */
static enum tdm_status add_first_paths(struct tdm_relaxation *r, struct tdm_error *err)
{
    static const double far_shares[] = {1, 0, 4};
    const struct tdm_estimator *e = r->pricing.e;
    struct tdm_amounts *prices = &r->pricing.prices;
    const double forward = tdm_estimator_forward_seconds(e);
    const double most = forward > 0 ? forward / 1024 : 1; /* per MiB: a forward per GiB */
    const unsigned shares = r->is_warm ? 1 : 3;
    const double step = r->is_warm || r->of_bytes ? 64 : 8;
    enum tdm_status status = TDM_OK;
    for (unsigned share = 0; share < shares; share++)
        for (double price = most; price > most * 1e-6 && status == TDM_OK; price /= step) {
            tdm_amounts_clear(e, prices);
            prices->compute = 1;
            for (uint32_t layer = 0; layer < r->layers; layer++) {
                prices->place[TDM_DEVICE][layer] = price / r->layers;
                prices->place[e->far][layer] = price / r->layers * far_shares[share];
            }
            tdm_pricing_prepare(&r->pricing);
            tdm_relaxation_path(r);
            status = tdm_relaxation_add_path(r, err);
        }
    return status;
}

/* `least`: the place whose bytes are minimised, or NULL. */
static enum tdm_status new_relaxation(const struct tdm_estimator *e, enum tdm_order order,
                                      const uint64_t limit_bytes[TDM_MAX_PLACES],
                                      const bool fixed_homes[TDM_STATES],
                                      const struct tdm_group_list *sizes,
                                      const enum tdm_place *least, bool tight,
                                      struct tdm_relaxation **out, struct tdm_error *err)
{
    struct tdm_relaxation *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return no_memory(err);
    r->layers = e->layers;
    r->is_tight = tight;
    r->of_bytes = least != NULL;
    r->least = least != NULL ? *least : TDM_DEVICE;
    enum tdm_status status = tdm_pricing_open(e, order, &r->pricing, err);
    if (status == TDM_OK)
        status = take_memory(r, sizes, err);
    if (status == TDM_OK)
        status = tdm_solver_new("tidemark", &r->solver, err);
    if (status == TDM_OK)
        status = tdm_relaxation_lay(r, limit_bytes, fixed_homes, err);
    if (status != TDM_OK) {
        tdm_relaxation_free(r);
        return status;
    }
    *out = r;
    return TDM_OK;
}

enum tdm_status tdm_relaxation_new(const struct tdm_estimator *e, enum tdm_order order,
                                   const uint64_t limit_bytes[TDM_MAX_PLACES],
                                   const bool fixed_homes[TDM_STATES],
                                   const struct tdm_group_list *sizes, bool tight,
                                   struct tdm_relaxation **out, struct tdm_error *err)
{
    return new_relaxation(e, order, limit_bytes, fixed_homes, sizes, NULL, tight, out, err);
}

void tdm_relaxation_free(struct tdm_relaxation *r)
{
    if (r == NULL)
        return;
    tdm_pricing_close(&r->pricing);
    tdm_solver_free(r->solver);
    free(r->node);
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
        free(r->place[place]);
        free(r->fixed[place]);
    }
    free(r->allowed);
    free(r->is_alike);
    free(r->best);
    free(r->from);
    free(r->entry_of);
    free(r->entries);
    free(r->arcs);
    free(r->bounds);
    free(r->kept);
    free(r->found);
    free(r->centre);
    free(r->other_centre);
    free(r->tried);
    tdm_amounts_free(&r->use);
    free(r);
}

/* Tries prices `weight` of the way from the solver's to the best so far, and keeps them if their
 * bound is better. Prices that jump between corners find arcs that are useless a step later. */
void tdm_relaxation_try(struct tdm_relaxation *r, double weight)
{
    for (int row = 0; row < r->row_count; row++)
        r->tried[row] = weight * r->centre[row] + (1 - weight) * r->found[row];
    tdm_relaxation_use(r, r->tried);
    double bound = plain_value(r, r->tried) + tdm_relaxation_path(r);
    if (bound > r->bound_seconds) {
        r->bound_seconds = bound;
        memcpy(r->centre, r->tried, (size_t)r->row_count * sizeof(double));
    }
}

/* Sets all prices to 0, except `compute` for a second of computing in the backward. */
static void price_computing(struct tdm_relaxation *r, double compute)
{
    memset(r->found, 0, (size_t)r->row_count * sizeof(double));
    r->found[r->row[ROW_COMPUTE]] = compute;
}

/* Tries prices at which memory and copies are free. */
static void try_computing(struct tdm_relaxation *r)
{
    price_computing(r, 1);
    tdm_relaxation_try(r, 0);
}

/* Few solutions can leave a bound below that of computing. The prices stay: they say what binds. */
static void raise_to_computing(struct tdm_relaxation *r)
{
    price_computing(r, 1);
    tdm_relaxation_use(r, r->found);
    r->bound_seconds = fmax(r->bound_seconds, plain_value(r, r->found) + tdm_relaxation_path(r));
}

enum tdm_status tdm_relaxation_floor(const struct tdm_estimator *e, enum tdm_order order,
                                     const uint64_t limit_bytes[TDM_MAX_PLACES],
                                     const bool fixed_homes[TDM_STATES],
                                     const struct tdm_group_list *sizes, double *floor_seconds,
                                     struct tdm_error *err)
{
    struct tdm_relaxation *r;
    enum tdm_status status =
        tdm_relaxation_new(e, order, limit_bytes, fixed_homes, sizes, false, &r, err);
    if (status != TDM_OK)
        return status;
    try_computing(r);
    /* only the minimum of each phase remains: updates on the host take their time */
    price_computing(r, 0);
    tdm_relaxation_try(r, 0);
    *floor_seconds = r->bound_seconds;
    tdm_relaxation_free(r);
    return TDM_OK;
}

#define DUAL 1e-6 /* the solver's tolerance for reduced costs, and more */

/* Do the prices of another program make a bound of this one? Those of the same program do. */
static bool bound_this(const struct tdm_relaxation *r, const double *prices)
{
    for (uint32_t i = 0; i < r->plain_count; i++)
        if (r->plain[i].most >= TDM_UNBOUNDED && reduced_cost(r, &r->plain[i], prices) < -DUAL)
            return false;
    return true;
}

/* Tries prices of a similar program first. */
static enum tdm_status try_warm(struct tdm_relaxation *r, struct tdm_error *err)
{
    if (!r->is_warm)
        return TDM_OK;
    r->is_warm = false;
    if (!bound_this(r, r->found))
        return TDM_OK;
    tdm_relaxation_try(r, 0);
    return tdm_relaxation_add_path(r, err);
}

/* *goes_on: prices or bound changed, so that another solution could find something. */
static enum tdm_status solve_once(struct tdm_relaxation *r, double *value, bool *goes_on,
                                  struct tdm_error *err)
{
    double before = r->bound_seconds;
    r->solutions++;
    enum tdm_status status = tdm_solver_solve(r->solver, MOST_ITERATIONS, err);
    if (status != TDM_OK)
        return status;
    *value = tdm_solver_value(r->solver);
    tdm_relaxation_read(r);
    *goes_on = find_prices(r);
    tdm_relaxation_try(r, before > 0 ? SMOOTHING : 0);
    if (before > 0 && r->bound_seconds <= before) { /* try the solver's own prices too */
        status = tdm_relaxation_add_path(r, err);
        if (status == TDM_OK)
            tdm_relaxation_try(r, 0);
    }
    *goes_on = *goes_on || r->bound_seconds > before;
    return status == TDM_OK ? tdm_relaxation_add_path(r, err) : status;
}

enum tdm_status tdm_relaxation_iterate(struct tdm_relaxation *r, const struct tdm_enough *enough,
                                       struct tdm_error *err)
{
    double value = TDM_NO_BOUND;
    bool goes_on = true;
    enum tdm_status status = TDM_OK;
    /* until columns are there that fit, prices bound nothing: these solutions are not counted */
    unsigned counted = 0;
    for (unsigned i = 0;
         i < MOST_SEARCHES * enough->solutions && counted < enough->solutions && status == TDM_OK;
         i++) {
        if (i > 0 && r->bound_seconds >= enough->seconds)
            break;
        counted += r->bound_seconds > 0;
        status = solve_once(r, &value, &goes_on, err);
        r->relaxed.solved = r->relaxed.solved || status == TDM_OK;
        r->is_converged = r->bound_seconds >= value * (1 - enough->tolerance);
        if (r->is_converged || !goes_on)
            break;
    }
    return status;
}

/* ---- slots are whole ---- */

/* A share of a slot that is taken for none or for one. */
#define LITTLE 0.02

/* Solves with other limits of a plain column, from the best prices so far: they bound that program
 * too. */
static enum tdm_status solve_within(struct tdm_relaxation *r, uint32_t plain, double least,
                                    double most, const struct tdm_enough *enough,
                                    struct tdm_error *err)
{
    tdm_relaxation_limit(r, plain, least, most);
    memcpy(r->found, r->centre, (size_t)r->row_count * sizeof(double));
    r->bound_seconds = 0;
    tdm_relaxation_try(r, 0);
    return tdm_relaxation_iterate(r, enough, err);
}

/* A result, to go back to it. */
struct result {
    struct tdm_relaxed relaxed;
    struct tdm_plain_column slots;
    double bound_seconds, *centre;
};

static bool keep_result(const struct tdm_relaxation *r, struct result *result)
{
    *result = (struct result){.relaxed = r->relaxed,
                              .slots = r->plain[r->plain_slots],
                              .bound_seconds = r->bound_seconds,
                              .centre = malloc((size_t)r->row_count * sizeof(double))};
    if (result->centre != NULL)
        memcpy(result->centre, r->centre, (size_t)r->row_count * sizeof(double));
    return result->centre != NULL;
}

static void go_back(struct tdm_relaxation *r, const struct result *result)
{
    r->relaxed = result->relaxed;
    tdm_relaxation_limit(r, r->plain_slots, result->slots.least, result->slots.most);
    r->bound_seconds = result->bound_seconds;
    memcpy(r->centre, result->centre, (size_t)r->row_count * sizeof(double));
}

/* Where the solution has a part of a slot more than one, either there is one slot, or there are at
 * least two: the smaller bound of both programs is a bound. Where the solver gives up in the second
 * one, what it has found so far is. */
static enum tdm_status branch_on_slots(struct tdm_relaxation *r, const struct tdm_enough *enough,
                                       struct tdm_error *err)
{
    const double slots = tdm_relaxation_value(r, r->plain_slots);
    struct tdm_enough rest = *enough;
    struct result all = {.centre = NULL}, more = {.centre = NULL};
    if (r->of_bytes || r->is_tied || slots < LITTLE || slots > 1 - LITTLE ||
        r->bound_seconds >= enough->seconds)
        return TDM_OK;
    enum tdm_status status = keep_result(r, &all) ? TDM_OK : no_memory(err);
    if (status == TDM_OK)
        status = solve_within(r, r->plain_slots, 1, all.slots.most, enough, err);
    if (status == TDM_OK)
        status = keep_result(r, &more) ? TDM_OK : no_memory(err);
    if (status == TDM_OK) {
        rest.seconds = fmin(more.bound_seconds, enough->seconds);
        status = solve_within(r, r->plain_slots, 0, 0, &rest, err);
        if (r->bound_seconds > more.bound_seconds)
            go_back(r, &more);
    } else if (all.centre != NULL) { /* the second part has no bound */
        go_back(r, &all);
    }
    if (all.centre != NULL && r->bound_seconds < all.bound_seconds)
        go_back(r, &all);
    free(all.centre);
    free(more.centre);
    return status;
}

/* Goes on in one of both ways (tdm_relaxation_set_way()), if it promises less than so many seconds
 * at the prices of the solution before, also where the solver gave that up. */
static enum tdm_status go_way(struct tdm_relaxation *r, bool passing, double seconds,
                              const struct tdm_enough *enough, struct tdm_error *err)
{
    const struct tdm_enough nothing = {0};
    tdm_relaxation_set_way(r, passing, passing ? r->most_passing : r->most_tied);
    enum tdm_status status =
        solve_within(r, r->plain_slots, 0, r->plain[r->plain_slots].most, &nothing, err);
    return status == TDM_OK && r->bound_seconds < seconds ? tdm_relaxation_iterate(r, enough, err)
                                                          : status;
}

/* Solves without layers on the device, where updates are on the host; then with all state of some;
 * then with the weights of some, whose other state passes. The bound is the smaller one of both
 * ways, and the program is left in that. */
static enum tdm_status solve_tied(struct tdm_relaxation *r, const struct tdm_enough *enough,
                                  struct tdm_error *err)
{
    struct tdm_enough less = *enough;
    struct result tied;
    tdm_relaxation_set_way(r, false, 0);
    enum tdm_status status = tdm_relaxation_iterate(r, enough, err);
    if (!r->is_tied || status == TDM_NO_MEMORY)
        return status;
    status = go_way(r, false, r->bound_seconds, enough, err);
    if (status == TDM_NO_MEMORY || r->most_passing == 0)
        return status;
    if (!keep_result(r, &tied))
        return no_memory(err);
    less.seconds = fmin(less.seconds, tied.bound_seconds);
    status = go_way(r, true, less.seconds, &less, err);
    r->is_passing = r->bound_seconds < tied.bound_seconds;
    r->other_seconds = r->is_passing ? tied.bound_seconds : r->bound_seconds;
    if (!r->is_passing) {
        tdm_relaxation_set_way(r, false, r->most_tied);
        go_back(r, &tied);
        free(tied.centre);
        return status;
    }
    free(r->other_centre);
    r->other_centre = tied.centre;
    memcpy(r->other_layers, tied.relaxed.device_layers, sizeof(r->other_layers));
    return status;
}

enum tdm_status tdm_relaxation_solve(struct tdm_relaxation *r, double enough_seconds,
                                     double tolerance, unsigned most, struct tdm_relaxed *relaxed,
                                     struct tdm_error *err)
{
    const struct tdm_enough enough = {enough_seconds, tolerance, most};
    enum tdm_status status = r->arc_count == 0 ? add_first_paths(r, err) : TDM_OK;
    if (status == TDM_OK)
        status = try_warm(r, err);
    r->relaxed.solved = false;
    if (status == TDM_OK)
        status = solve_tied(r, &enough, err);
    if (status == TDM_OK && !r->is_tight)
        status = branch_on_slots(r, &enough, err);
    if (status == TDM_NO_MEMORY)
        return status;
    if (r->bound_seconds <= 0 &&
        !r->of_bytes) /* no solver prices gave a bound; that of computing does */
        try_computing(r);
    else if (!r->of_bytes && !r->is_converged)
        raise_to_computing(r);
    tdm_relaxation_weigh(r);
    *relaxed = r->relaxed;
    return TDM_OK;
}

#define MOST_SOLUTIONS 60u /* of a program that minimises bytes */
#define TOLERANCE 1e-3     /* of its bound */

/* Do the prices of another program prove enough, in both ways of solve_tied()? */
static bool is_enough_at(struct tdm_relaxation *r, double enough)
{
    const unsigned ways = r->is_tied && r->most_passing > 0 ? 2 : 1;
    bool is_enough = true;
    double least = HUGE_VAL;
    for (unsigned way = 0; way < ways && is_enough; way++) {
        tdm_relaxation_set_way(r, way > 0, way > 0 ? r->most_passing : r->most_tied);
        r->bound_seconds = 0;
        tdm_relaxation_try(r, 0);
        least = fmin(least, r->bound_seconds);
        is_enough = least >= enough;
    }
    r->bound_seconds = is_enough ? least : 0;
    return is_enough;
}

enum tdm_status tdm_relaxation_least(const struct tdm_estimator *e, enum tdm_order order,
                                     const uint64_t limit_bytes[TDM_MAX_PLACES],
                                     const bool fixed_homes[TDM_STATES],
                                     const struct tdm_group_list *sizes, enum tdm_place place,
                                     uint64_t enough, struct tdm_prices *prices, uint64_t *bytes,
                                     struct tdm_error *err)
{
    struct tdm_relaxation *r;
    struct tdm_relaxed relaxed;
    uint64_t limits[TDM_MAX_PLACES];
    const double enough_mib = (double)enough / TDM_MIB;
    memcpy(limits, limit_bytes, sizeof(limits));
    limits[place] = 0;
    enum tdm_status status =
        new_relaxation(e, order, limits, fixed_homes, sizes, &place, false, &r, err);
    if (status != TDM_OK)
        return status;
    if (prices != NULL)
        tdm_relaxation_warm(r, prices);
    r->is_warm = r->is_warm && bound_this(r, r->found);
    if (!r->is_warm || !is_enough_at(r, enough_mib)) {
        status = tdm_relaxation_solve(r, enough_mib, TOLERANCE, MOST_SOLUTIONS, &relaxed, err);
        if (status == TDM_OK && prices != NULL) {
            free(prices->of_rows);
            *prices = tdm_relaxation_prices(r);
        }
    }
    if (status == TDM_OK)
        *bytes = (uint64_t)(r->bound_seconds * TDM_MIB);
    tdm_relaxation_free(r);
    return status;
}

bool tdm_relaxation_turn(struct tdm_relaxation *r, struct tdm_relaxed *relaxed)
{
    if (r->other_centre == NULL)
        return false;
    memcpy(r->centre, r->other_centre, (size_t)r->row_count * sizeof(double));
    memcpy(relaxed->device_layers, r->other_layers, sizeof(r->other_layers));
    return true;
}

struct tdm_prices tdm_relaxation_prices(const struct tdm_relaxation *r)
{
    struct tdm_prices prices = {r->row_count, malloc((size_t)r->row_count * sizeof(double))};
    if (prices.of_rows != NULL)
        memcpy(prices.of_rows, r->centre, (size_t)r->row_count * sizeof(double));
    return prices;
}

void tdm_relaxation_warm(struct tdm_relaxation *r, const struct tdm_prices *prices)
{
    /* a tight program has some rows more, at the end */
    if (prices->of_rows == NULL || r->row_count < prices->count)
        return;
    memset(r->found, 0, (size_t)r->row_count * sizeof(double));
    memcpy(r->found, prices->of_rows, (size_t)prices->count * sizeof(double));
    r->is_warm = true;
}

enum tdm_status tdm_relaxation_tighten(struct tdm_relaxation *r, double enough_seconds,
                                       double tolerance, unsigned most, unsigned *made,
                                       struct tdm_relaxed *relaxed, struct tdm_error *err)
{
    const struct tdm_enough enough = {enough_seconds, tolerance, most};
    const unsigned before = r->solutions;
    enum tdm_status status = tdm_relaxation_divide(r, &enough, most, err);
    *made = r->solutions - before;
    if (status == TDM_NO_MEMORY)
        return status;
    tdm_relaxation_weigh(r);
    *relaxed = r->relaxed;
    return TDM_OK;
}
