/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Divides the relaxation's program into parts, as branch and bound does: what is whole in a
 * schedule is whole in each part, and every schedule is in one of the parts.
 *
 * Four things are whole. The ring of moments has one slot, or at least two. Where anything of a
 * kind passes between host and device, its ring is there for a whole phase; where there is no ring,
 * nothing of the kind is at the far place. And where a layer's state is at home on the host, its
 * ring has a whole slot; where it has none, all layers are at home on the device. Where layers are
 * updated on the host, others have all their state on the device, or pass. The part with the
 * smallest bound is divided next. A part begins with the prices of the one that was divided: they
 * bound it too. No part is believed to be empty because no column fits yet: memory beyond the limit
 * has a price, which rises until columns are found that fit, or until the bound of the part is
 * beyond what is asked for.
 */
#include "planner/relaxation_parts.h"

#include <stdlib.h>
#include <string.h>

/* A share of a slot or of a group that is taken for none, or for one. */
#define LITTLE 0.02

/* Solutions of a part before another one may be worth more; turns, until it is divided as it is;
 * the least share of what is asked for that a turn must gain. */
#define SOLUTIONS_OF_TURN 8u
#define MOST_TURNS 4u
#define LAST_TURN 8u
#define LEAST_GAIN 0.15

/* The least share that dividing must promise. */
#define LEAST_PROMISE 0.03

/* Prices of memory beyond the limit, over that of memory within: the first, and how much it rises
 * when a turn ends beyond the limit. */
#define FIRST_PRICE 4.0
#define PRICE_STEP 6.0

/* What is whole: rings of what is at the far place, rings of states, and slots of moments. */
enum { HOMES = TDM_FAR_KINDS, PASSING = HOMES + TDM_STATE_MOMENTS + 1, SLOTS, CHOICES };

/* Absent: no such ring, or one slot. Present: a ring, or more slots. */
enum choice { OPEN, ABSENT, PRESENT };

/* A part, and what is known of it: its own bound and prices, or those of a larger one. */
struct part {
    enum choice choice[CHOICES];
    unsigned turns;
    bool is_done;        /* no solution divides it */
    bool is_slow;        /* its last turn gained little */
    double excess_price; /* of the next turn; 0: that of the program */
    double bound_seconds, *centre;
    struct tdm_relaxed relaxed;
};

struct division {
    struct tdm_relaxation *r;
    struct tdm_enough enough; /* `solutions`: of each turn */
    double most_slots;
    enum choice way; /* of the part that began last */
    unsigned most_solutions, first_solution;
    struct part *parts; /* [count] */
    unsigned count, capacity;
};

static enum tdm_status no_memory(struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the relaxation");
}

/* ---- rings ---- */

static bool by_layer(const struct tdm_relaxation *r)
{
    return r->pricing.order == TDM_LAYER_MAJOR;
}

/* The ring that is there wherever that of `kind` is, or TDM_FAR_KINDS: held stores are at the place
 * of held inputs, which are fetched through the slots of inputs; richer sets have the stores of
 * poorer ones. */
static int needed_with(int kind)
{
    switch (kind) {
    case TDM_FAR_INNER:
        return TDM_FAR_INPUT;
    case TDM_FAR_KEPT + TDM_STORE_Q:
        return TDM_FAR_KEPT + TDM_STORE_ATTENTION;
    case TDM_FAR_KEPT + TDM_STORE_GATE_UP:
        return TDM_FAR_KEPT + TDM_STORE_Q;
    case TDM_FAR_HELD + TDM_STORE_ATTENTION:
    case TDM_FAR_HELD + TDM_STORE_GATE_UP: /* also where attention outputs are kept */
        return TDM_FAR_INNER;
    case TDM_FAR_HELD + TDM_STORE_Q:
        return TDM_FAR_HELD + TDM_STORE_ATTENTION;
    default:
        return TDM_FAR_KINDS;
    }
}

/* Makes the choices that follow from others. */
static void complete(const struct tdm_relaxation *r, enum choice choice[CHOICES])
{
    for (bool changed = true; changed;) {
        changed = false;
        for (int kind = 0; kind < TDM_FAR_KINDS; kind++) {
            const int other = needed_with(kind);
            if (other == TDM_FAR_KINDS || (!by_layer(r) && kind == TDM_FAR_INNER))
                continue;
            if (choice[kind] == PRESENT && choice[other] == OPEN) {
                choice[other] = PRESENT;
                changed = true;
            }
            if (choice[other] == ABSENT && choice[kind] == OPEN) {
                choice[kind] = ABSENT;
                changed = true;
            }
        }
    }
}

/* Bytes that the ring of a kind takes in each phase, as tdm_estimate_bytes() counts them, with the
 * fewest slots that a search tries. `other`: the ring of the other kind of the same store is there;
 * what is fetched passes through one. */
static void ring_bytes(const struct tdm_relaxation *r, int kind, bool other,
                       double bytes[TDM_RINGS])
{
    const struct tdm_estimator *e = r->pricing.e;
    const double fetched =
                     (double)smaller(smaller(e->base->prefetch, TDM_LEAST_AHEAD), e->chunks - 1) +
                     1,
                 stashed = (double)smaller(e->base->rings.stashed, e->chunks);
    double *forward = &bytes[TDM_RINGS_FORWARD], *backward = &bytes[TDM_RINGS_BACKWARD];
    *forward = *backward = 0;
    if (kind == TDM_FAR_INPUT) {
        *backward = fetched * (double)e->x;
        *forward = by_layer(r) ? 0 : (fetched + stashed) * (double)e->x;
    } else if (kind == TDM_FAR_INNER) {
        *backward = by_layer(r) ? stashed * (double)e->x : 0;
    } else if (kind < TDM_FAR_HELD) {
        const double store = (double)e->store[kind - TDM_FAR_KEPT];
        *forward = stashed * store;
        *backward = fetched * store;
    } else if (kind < TDM_FAR_KV) {
        *backward = (stashed + (other ? 0 : fetched)) * (double)e->store[kind - TDM_FAR_HELD];
    } else if (kind == TDM_FAR_KV && !tdm_relaxation_gathers(e)) {
        *forward = *backward = (double)e->chunks * (double)e->kv;
    } else if (kind == TDM_FAR_SUMS && !tdm_relaxation_gathers(e)) {
        *backward = (double)e->chunks * (double)e->dkv;
    }
}

/* Is it a held kind whose kept kind has a ring, too? */
static bool shares_ring(const enum choice choice[CHOICES], int kind)
{
    return kind >= TDM_FAR_HELD && kind < TDM_FAR_KV &&
           choice[kind - TDM_FAR_HELD + TDM_FAR_KEPT] == PRESENT;
}

static void limit_row(struct tdm_relaxation *r, int row, double more)
{
    if (row < 0 || r->bounds[row].most >= TDM_UNBOUNDED)
        return;
    r->bounds[row].most -= more;
    tdm_solver_limit_row(r->solver, row, r->bounds[row].least, r->bounds[row].most);
}

static void limit_from(struct tdm_relaxation *r, int row, double least)
{
    r->bounds[row].least = least;
    tdm_solver_limit_row(r->solver, row, least, r->bounds[row].most);
}

/* Lets the rows of the device count rings, in place of those that they count. */
static void count_rings(struct tdm_relaxation *r, const double mib[TDM_RINGS])
{
    const double more = mib[TDM_RINGS_BACKWARD] - r->ring_mib[TDM_RINGS_BACKWARD];
    for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++)
        if (i != r->layers + TDM_AT_FORWARD)
            limit_row(r, r->place[TDM_DEVICE][i], more);
    limit_row(r, r->row[ROW_EMBEDDING], more);
    limit_row(r, r->place[TDM_DEVICE][r->layers + TDM_AT_FORWARD],
              mib[TDM_RINGS_FORWARD] - r->ring_mib[TDM_RINGS_FORWARD]);
    memcpy(r->ring_mib, mib, sizeof(r->ring_mib));
}

/* ---- parts ---- */

static bool is_allowed(const struct tdm_relaxation *r, const struct tdm_arc_column *arc)
{
    for (int kind = 0; kind < TDM_FAR_KINDS; kind++)
        if (arc->far[kind] && r->pricing.is_barred[kind])
            return false;
    return true;
}

/* Lets program and prices be those of a part. */
static void enter(struct tdm_relaxation *r, const enum choice choice[CHOICES], double most_slots)
{
    double mib[TDM_RINGS] = {0}, bytes[TDM_RINGS];
    for (int kind = 0; kind < TDM_FAR_KINDS; kind++) {
        r->pricing.is_barred[kind] = choice[kind] == ABSENT;
        r->pricing.has_ring[kind] = choice[kind] == PRESENT;
        ring_bytes(r, kind, shares_ring(choice, kind), bytes);
        for (int phase = 0; phase < TDM_RINGS && choice[kind] == PRESENT; phase++)
            mib[phase] += bytes[phase] / TDM_MIB;
    }
    count_rings(r, mib);
    for (uint32_t i = 0; i < r->arc_count; i++)
        tdm_solver_limit(r->solver, r->arcs[i].number, 0,
                         is_allowed(r, &r->arcs[i]) ? TDM_UNBOUNDED : 0);
    tdm_relaxation_set_way(r, choice[PASSING] == PRESENT,
                           choice[PASSING] == PRESENT ? r->most_passing : r->most_tied);
    if (!r->is_tied || choice[SLOTS] != OPEN)
        tdm_relaxation_limit(r, r->plain_slots, choice[SLOTS] == PRESENT ? 1 : 0,
                             choice[SLOTS] == ABSENT ? 0 : most_slots);
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++) {
        const enum choice ring = choice[HOMES + state];
        if (!r->is_free[state])
            continue;
        const double layers = r->layers;
        tdm_relaxation_limit(r, r->plain_home[state], ring == ABSENT ? layers : 0,
                             ring == PRESENT ? layers - 1 : layers);
        tdm_relaxation_limit(r, r->plain_less[state], 0, ring == PRESENT ? 0 : most_slots);
        limit_from(r, r->row[ROW_BESIDE + state], ring == PRESENT ? 0 : -layers);
    }
}

static bool has_ring(const struct tdm_relaxation *r, const struct part *part, int kind)
{
    double bytes[TDM_RINGS];
    ring_bytes(r, kind, shares_ring(part->choice, kind), bytes);
    return bytes[TDM_RINGS_FORWARD] + bytes[TDM_RINGS_BACKWARD] > 0;
}

/* How far the last solution takes the choices that its part leaves open: the shares of groups in
 * which something is at the far place, and the part of a second slot. */
static bool find_open(const struct division *d, const struct part *part, double share[CHOICES])
{
    const struct tdm_relaxation *r = d->r;
    const double slots = tdm_relaxation_value(r, r->plain_slots);
    bool any = false;
    memset(share, 0, CHOICES * sizeof(*share));
    for (uint32_t i = 0; i < r->arc_count; i++) {
        const double value = tdm_solver_column_value(r->solver, r->arcs[i].number);
        for (int kind = 0; kind < TDM_FAR_KINDS && value > 0; kind++)
            share[kind] += r->arcs[i].far[kind] ? value : 0;
    }
    for (int kind = 0; kind < TDM_FAR_KINDS; kind++)
        any =
            any || (part->choice[kind] == OPEN && share[kind] > LITTLE && has_ring(r, part, kind));
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++) {
        const double near = tdm_relaxation_value(r, r->plain_home[state]) / r->layers,
                     lacks = near + tdm_relaxation_value(r, r->plain_less[state]);
        if (part->choice[HOMES + state] == OPEN && r->is_free[state] && lacks > LITTLE &&
            near < 1 - LITTLE / r->layers) {
            share[HOMES + state] = lacks;
            any = true;
        }
    }
    if (part->choice[SLOTS] == OPEN && slots > LITTLE && slots < 1 - LITTLE)
        share[SLOTS] = slots;
    return any || share[SLOTS] > 0;
}

static void copy_prices(const struct tdm_relaxation *r, double *to, const double *from)
{
    memcpy(to, from, (size_t)r->row_count * sizeof(double));
}

/* Adds a part, with what is known of the one that it is a part of. */
static enum tdm_status push(struct division *d, const struct part *of, struct tdm_error *err)
{
    if (d->count == d->capacity) {
        struct part *parts = realloc(d->parts, (2 * d->capacity + 16) * sizeof(*parts));
        if (parts == NULL)
            return no_memory(err);
        d->parts = parts;
        d->capacity = 2 * d->capacity + 16;
    }
    struct part *part = &d->parts[d->count];
    *part = *of;
    part->centre = malloc((size_t)d->r->row_count * sizeof(double));
    if (part->centre == NULL)
        return no_memory(err);
    copy_prices(d->r, part->centre, of->centre);
    d->count++;
    return TDM_OK;
}

static bool lacks_memory(const struct tdm_relaxation *r)
{
    return tdm_relaxation_value(r, r->plain_excess[TDM_DEVICE]) > 0 ||
           tdm_relaxation_value(r, r->plain_excess[r->pricing.far]) > 0;
}

static void set_excess_price(struct tdm_relaxation *r, double price)
{
    for (int k = 0; k < TDM_PLANNED_PLACES; k++) {
        enum tdm_place place = tdm_planned_place(r->pricing.e->base, k);
        struct tdm_plain_column *excess = &r->plain[r->plain_excess[place]];
        excess->cost = price;
        tdm_solver_cost(r->solver, excess->number, price);
    }
}

/* The first turn is at the program's price: the bound of a part without schedules is then soon
 * beyond any step. If it is not, prices would jump, so the next turns begin at a lower one. */
static double next_price(const struct tdm_relaxation *r, const struct part *part)
{
    const double most = r->excess_price, near = tdm_relaxation_place_price(r, TDM_DEVICE),
                 far = tdm_relaxation_place_price(r, r->pricing.far);
    if (part->turns == 0)
        return fmin(fmax(FIRST_PRICE * fmax(near, far), 1e-6 * most), most);
    return lacks_memory(r) ? fmin(PRICE_STEP * part->excess_price, most) : part->excess_price;
}

/* Lets program and prices be those of a part, and looks at its bound there. Where the part before
 * was of the other way, its prices may be better. */
static void begin(struct division *d, struct part *part)
{
    struct tdm_relaxation *r = d->r;
    const bool turns = part->choice[PASSING] != d->way;
    d->way = part->choice[PASSING];
    enter(r, part->choice, d->most_slots);
    copy_prices(r, r->found, turns ? r->centre : part->centre);
    r->bound_seconds = 0;
    tdm_relaxation_try(r, 0);
    copy_prices(r, r->found, part->centre);
    if (turns)
        tdm_relaxation_try(r, 0);
    else
        copy_prices(r, r->centre, part->centre);
    part->bound_seconds = fmax(part->bound_seconds, r->bound_seconds);
}

/* One turn of a part. If the solver gives up, its bound is what was found before. */
static enum tdm_status take_turn(struct division *d, struct part *part, struct tdm_error *err)
{
    struct tdm_relaxation *r = d->r;
    struct tdm_enough enough = d->enough;
    const double before = part->bound_seconds;
    begin(d, part);
    if (part->bound_seconds >= enough.seconds)
        return TDM_OK;
    enough.solutions = part->turns == 0 ? 1 : SOLUTIONS_OF_TURN;
    set_excess_price(r, part->turns == 0 ? r->excess_price : part->excess_price);
    enum tdm_status status = tdm_relaxation_add_path(r, err);
    if (status == TDM_OK)
        status = tdm_relaxation_iterate(r, &enough, err);
    set_excess_price(r, r->excess_price);
    if (status != TDM_OK) {
        part->is_done = true;
        return status == TDM_NO_MEMORY ? status : TDM_OK;
    }
    if (r->bound_seconds > part->bound_seconds) {
        part->bound_seconds = r->bound_seconds;
        copy_prices(r, part->centre, r->centre);
    }
    part->relaxed = r->relaxed;
    part->is_slow = part->turns > 0 && part->bound_seconds - before <
                                           LEAST_GAIN * (enough.seconds - part->bound_seconds);
    part->excess_price = next_price(r, part);
    part->turns++;
    return TDM_OK;
}

/* Divides a part by a choice. */
static enum tdm_status divide(struct division *d, const struct part *part, int by,
                              struct tdm_error *err)
{
    static const enum choice choices[] = {PRESENT, ABSENT};
    enum tdm_status status = TDM_OK;
    for (int i = 0; i < 2 && status == TDM_OK; i++) {
        struct part of = *part;
        of.turns = 0;
        of.choice[by] = choices[i];
        complete(d->r, of.choice);
        status = push(d, &of, err);
    }
    return status;
}

/* The bound of a part with one more choice, after a short look. */
static enum tdm_status look(struct division *d, const struct part *part, int by, enum choice choice,
                            double *bound_seconds, struct tdm_error *err)
{
    struct part of = *part;
    of.turns = 0;
    of.choice[by] = choice;
    complete(d->r, of.choice);
    of.centre = malloc((size_t)d->r->row_count * sizeof(double));
    if (of.centre == NULL)
        return no_memory(err);
    copy_prices(d->r, of.centre, part->centre);
    enum tdm_status status = take_turn(d, &of, err);
    *bound_seconds = of.bound_seconds;
    free(of.centre);
    return status;
}

/* Looks at each choice that a part leaves open. Where one way is no longer of interest, the part
 * takes the other one; *by: if there is no such choice, the one that gains most, or CHOICES if none
 * gains much. */
static enum tdm_status take_sides(struct division *d, struct part *part,
                                  const double share[CHOICES], bool *changed, int *by,
                                  struct tdm_error *err)
{
    double most = part->bound_seconds + LEAST_PROMISE * (d->enough.seconds - part->bound_seconds);
    *changed = false;
    *by = CHOICES;
    for (int kind = 0; kind < SLOTS; kind++) {
        double with, without;
        if (part->choice[kind] != OPEN || share[kind] <= LITTLE ||
            (kind < HOMES && !has_ring(d->r, part, kind)))
            continue;
        enum tdm_status status = look(d, part, kind, PRESENT, &with, err);
        if (status != TDM_OK)
            return status;
        if (with >= d->enough.seconds) {
            part->choice[kind] = ABSENT;
            *changed = true;
        } else {
            status = look(d, part, kind, ABSENT, &without, err);
            if (status != TDM_OK)
                return status;
            if (without >= d->enough.seconds) {
                part->choice[kind] = PRESENT;
                *changed = true;
            } else if (fmin(with, without) > most) {
                most = fmin(with, without);
                *by = kind;
            }
        }
        complete(d->r, part->choice);
    }
    if (*by == CHOICES && share[SLOTS] > 0)
        *by = SLOTS;
    return TDM_OK;
}

static unsigned find_least(const struct division *d)
{
    unsigned least = 0;
    for (unsigned i = 1; i < d->count; i++)
        if (d->parts[i].bound_seconds < d->parts[least].bound_seconds)
            least = i;
    return least;
}

/* Is a part solved as well as it is worth, so that it is divided next? */
static bool is_solved(const struct division *d, const struct part *part)
{
    return part->turns >= MOST_TURNS || part->is_slow ||
           (d->r->is_converged && !lacks_memory(d->r));
}

static bool is_over(const struct division *d)
{
    return d->r->solutions - d->first_solution >= d->most_solutions;
}

/* Takes sides in a solved part, and divides it if that changes nothing. */
static enum tdm_status go_on(struct division *d, unsigned at, struct tdm_error *err)
{
    struct tdm_relaxation *r = d->r;
    struct part *part = &d->parts[at];
    double share[CHOICES];
    bool changed;
    int by;
    if (!find_open(d, part, share)) {
        part->is_done = (r->is_converged && !lacks_memory(r)) || part->turns >= LAST_TURN;
        return TDM_OK;
    }
    enum tdm_status status = take_sides(d, part, share, &changed, &by, err);
    part->turns = 0;
    if (status != TDM_OK || changed)
        return status;
    if (by == CHOICES) {
        part->is_done = true;
        return TDM_OK;
    }
    struct part divided = *part;
    *part = d->parts[--d->count];
    status = divide(d, &divided, by, err);
    free(divided.centre);
    return status;
}

/* Gives turns to the part with the smallest bound, and goes on with it when it is solved. */
static enum tdm_status solve_parts(struct division *d, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    bool is_whole = true; /* the first one, which is solved */
    while (status == TDM_OK && !is_over(d)) {
        const unsigned at = find_least(d);
        struct part *part = &d->parts[at];
        if (part->is_done || part->bound_seconds >= d->enough.seconds)
            break;
        if (!is_whole)
            status = take_turn(d, part, err);
        if (status == TDM_OK && !part->is_done && part->bound_seconds < d->enough.seconds &&
            (is_whole || is_solved(d, part)))
            status = go_on(d, at, err);
        is_whole = false;
    }
    return status;
}

enum tdm_status tdm_relaxation_divide(struct tdm_relaxation *r, const struct tdm_enough *enough,
                                      unsigned most, struct tdm_error *err)
{
    struct division d = {.r = r,
                         .enough = *enough,
                         .most_slots = tdm_relaxation_more_slots(r),
                         .way = r->is_passing ? PRESENT
                                : r->is_tied  ? ABSENT
                                              : OPEN,
                         .most_solutions = most,
                         .first_solution = r->solutions};
    struct part whole = {
        .bound_seconds = r->bound_seconds, .centre = r->centre, .relaxed = r->relaxed};
    const bool has_ways = r->is_tied && r->most_passing > 0;
    whole.choice[PASSING] = d.way;
    struct part other = whole;
    other.choice[PASSING] = r->is_passing ? ABSENT : PRESENT;
    other.bound_seconds = r->other_seconds;
    other.centre = r->other_centre != NULL ? r->other_centre : r->centre;
    enum tdm_status status = push(&d, &whole, err);
    if (status == TDM_OK && has_ways)
        status = push(&d, &other, err);
    if (status == TDM_OK)
        status = solve_parts(&d, err);
    if (status == TDM_OK) {
        const struct part *least = &d.parts[find_least(&d)];
        enter(r, whole.choice, d.most_slots);
        /* of parts that were left aside only this is known */
        r->bound_seconds = fmin(least->bound_seconds, fmax(enough->seconds, whole.bound_seconds));
        r->relaxed = least->relaxed;
        copy_prices(r, r->centre, least->centre);
    }
    while (d.count > 0)
        free(d.parts[--d.count].centre);
    free(d.parts);
    return status;
}
