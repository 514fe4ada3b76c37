/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost of a layer of a group at given prices, if each of its chunks makes its best choice.
 *
 * A price is seconds per MiB of a row, or per second of a lane. Costs add up over stores and
 * chunks, so each choice is independent. Attention outputs are kept, held or recomputed (0, 1 or 2
 * more runs of the chunk's attention). Each option is linear in the attention's seconds, so two
 * thresholds divide the chunks of a class. q and the products of the MLP are kept, held or
 * recomputed. K and V are kept, held or swept.
 */
#include "planner/estimate_span.h"
#include "planner/relaxation_parts.h"

#include "schedule/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEVER 1e200

/* When something is live: in the rows of layers from..to; at the end of the forward; in the head
 * and its update. */
struct life {
    uint32_t from, to;
    bool forward, stays;
};

static enum tdm_status no_memory(struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the relaxation");
}

enum tdm_status tdm_amounts_new(const struct tdm_estimator *e, struct tdm_amounts *amounts,
                                struct tdm_error *err)
{
    *amounts = (struct tdm_amounts){0};
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        double **rows = &amounts->place[tdm_planned_place(e->base, i)];
        *rows = calloc((size_t)e->layers + TDM_MORE_ROWS, sizeof(double));
        if (*rows == NULL) {
            tdm_amounts_free(amounts);
            return no_memory(err);
        }
    }
    return TDM_OK;
}

void tdm_amounts_clear(const struct tdm_estimator *e, struct tdm_amounts *amounts)
{
    struct tdm_amounts empty = {0};
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        enum tdm_place place = tdm_planned_place(e->base, i);
        empty.place[place] = amounts->place[place];
        memset(empty.place[place], 0, ((size_t)e->layers + TDM_MORE_ROWS) * sizeof(double));
    }
    *amounts = empty;
}

void tdm_amounts_free(struct tdm_amounts *amounts)
{
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        free(amounts->place[place]);
    *amounts = (struct tdm_amounts){0};
}

/* ---- chunks by the seconds of their attention ---- */

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool fill_list(const struct tdm_estimator *e, uint32_t kind, uint32_t class,
                      struct tdm_attention_list *list)
{
    const double *before = e->attention_before + kind * ((size_t)e->chunks + 1);
    uint32_t count = tdm_estimator_count(e, class, 0, e->chunks);
    list->seconds = malloc(((size_t)count + 1) * sizeof(double));
    list->before = malloc(((size_t)count + 1) * sizeof(double));
    if (list->seconds == NULL || list->before == NULL)
        return false;
    for (uint32_t i = 0; i < e->chunks; i++)
        if (tdm_estimator_count(e, class, i, i + 1) > 0)
            list->seconds[list->count++] = before[i + 1] - before[i];
    qsort(list->seconds, list->count, sizeof(double), rising);
    list->before[0] = 0;
    for (uint32_t i = 0; i < list->count; i++)
        list->before[i + 1] = list->before[i] + list->seconds[i];
    return true;
}

static uint32_t chunks_of_class(const struct tdm_estimator *e, uint32_t class)
{
    return tdm_estimator_count(e, class, 0, e->chunks);
}

/* Seconds of a layer's backward over all chunks that no choice changes. */
static double fixed_seconds(const struct tdm_estimator *e, uint32_t layer, bool again)
{
    double fixed = 0;
    for (uint32_t c = 0; c < e->classes; c++) {
        const struct layer_cost *cost = &e->costs[(size_t)layer * e->classes + c];
        double seconds = cost->backward[TDM_SET_ATTENTION_OUTPUT];
        seconds += again ? cost->embed + cost->rest : 0;
        fixed += chunks_of_class(e, c) * seconds;
    }
    return fixed;
}

/* While both directions are busy each has its rate beside the other. So the link carries rates
 * between these two and those of one direction alone. The lines from these two to one and to the
 * other bound them: on a line a second has bytes to the device / fetch + bytes to the host / send.
 * Where the two rates are so low that one direction after the other carries more, the line between
 * those of one direction alone bounds all of it. */
struct line {
    double fetch, send; /* seconds per byte */
};

static void find_lines(const double alone[2], const double beside[2], struct line lines[2])
{
    const double fetch = 1 / alone[0], send = 1 / alone[1];
    lines[0] = (struct line){fetch, fmin((1 - beside[0] / alone[0]) / beside[1], send)};
    lines[1] = (struct line){fmin((1 - beside[1] / alone[1]) / beside[0], fetch), send};
}

/* Beside updates on the host the two rates are lower, and so are the lines. Each of these is also
 * drawn through the rates without updates: there a second carries `most` times as much, and while
 * the host updates, the link does without 1 - 1 / most of a second. */
static void share_link(struct tdm_pricing *pricing)
{
    const struct tdm_machine *machine = pricing->e->base->machine;
    const double alone[2] = {tdm_machine_link_rate(machine, TDM_LINK_H2D),
                             tdm_machine_link_rate(machine, TDM_LINK_D2H)};
    const double beside[2] = {tdm_machine_rate_beside(machine, TDM_LINK_H2D),
                              tdm_machine_rate_beside(machine, TDM_LINK_D2H)};
    const double updating[2] = {tdm_machine_rate_beside_updates(machine, TDM_LINK_H2D),
                                tdm_machine_rate_beside_updates(machine, TDM_LINK_D2H)};
    struct line lines[TDM_BOUNDS_BOTH];
    find_lines(alone, beside, lines);
    find_lines(alone, updating, lines + 2);
    for (int i = 2; i < TDM_BOUNDS_BOTH; i++) {
        const double most = fmax(beside[0] * lines[i].fetch + beside[1] * lines[i].send, 1);
        lines[i].fetch /= most;
        lines[i].send /= most;
        pricing->slowed_by_updates[i - 2] =
            pricing->e->seconds_per_copied_byte > 0 ? 1 - 1 / most : 0;
    }
    for (int i = 0; i < TDM_BOUNDS_BOTH; i++) {
        pricing->both_fetch[i] = lines[i].fetch;
        pricing->both_send[i] = lines[i].send;
    }
}

enum tdm_status tdm_pricing_open(const struct tdm_estimator *e, enum tdm_order order,
                                 struct tdm_pricing *pricing, struct tdm_error *err)
{
    *pricing = (struct tdm_pricing){.e = e, .order = order, .far = e->far};
    share_link(pricing);
    enum tdm_status status = tdm_amounts_new(e, &pricing->prices, err);
    if (status != TDM_OK)
        return status;
    pricing->lists = calloc((size_t)e->kinds * e->classes + 1, sizeof(*pricing->lists));
    bool ok = pricing->lists != NULL;
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        double **from = &pricing->from[tdm_planned_place(e->base, i)];
        ok = (*from = calloc((size_t)e->layers + 1, sizeof(double))) != NULL && ok;
        from = &pricing->from_fixed[tdm_planned_place(e->base, i)];
        ok = (*from = calloc((size_t)e->layers + 1, sizeof(double))) != NULL && ok;
    }
    for (uint32_t kind = 0; kind < e->kinds && ok; kind++)
        for (uint32_t c = 0; c < e->classes && ok; c++)
            ok = fill_list(e, kind, c, &pricing->lists[kind * e->classes + c]);
    pricing->class_chunks = calloc((size_t)e->classes + 1, sizeof(double));
    ok = pricing->class_chunks != NULL && ok;
    for (uint32_t c = 0; c < e->classes && ok; c++)
        pricing->class_chunks[c] = chunks_of_class(e, c);
    for (int again = 0; again < 2; again++) {
        double *seconds = calloc((size_t)e->layers + 1, sizeof(double));
        for (uint32_t layer = 0; layer < e->layers && seconds != NULL; layer++)
            seconds[layer] = fixed_seconds(e, layer, again);
        pricing->fixed_seconds[again] = seconds;
        ok = seconds != NULL && ok;
    }
    return ok ? TDM_OK : no_memory(err);
}

void tdm_pricing_close(struct tdm_pricing *pricing)
{
    for (uint32_t i = 0; pricing->lists != NULL && i < pricing->e->kinds * pricing->e->classes;
         i++) {
        free(pricing->lists[i].seconds);
        free(pricing->lists[i].before);
    }
    free(pricing->lists);
    free(pricing->class_chunks);
    free(pricing->fixed_seconds[0]);
    free(pricing->fixed_seconds[1]);
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++) {
        free(pricing->from[place]);
        free(pricing->from_fixed[place]);
    }
    tdm_amounts_free(&pricing->prices);
    pricing->lists = NULL;
}

/* ---- prices of bytes and copies ---- */

/* Price per MiB of a life at a place. */
static double price_of(const struct tdm_pricing *p, enum tdm_place place, struct life life)
{
    const double *more = p->prices.place[place] + p->e->layers;
    const double *from = p->from[place];
    double price = life.from <= life.to ? from[life.from] - from[life.to + 1] : 0;
    price += life.forward ? more[TDM_AT_FORWARD] : 0;
    return price + (life.stays ? more[TDM_AT_HEAD] + more[TDM_AT_UPDATE] : 0);
}

static void add_life(const struct tdm_pricing *p, struct tdm_amounts *use, enum tdm_place place,
                     struct life life, double mib)
{
    double *rows = use->place[place], *more = rows + p->e->layers;
    for (uint32_t layer = life.from; layer <= life.to && life.from <= life.to; layer++)
        rows[layer] += mib;
    more[TDM_AT_FORWARD] += life.forward ? mib : 0;
    more[TDM_AT_HEAD] += life.stays ? mib : 0;
    more[TDM_AT_UPDATE] += life.stays ? mib : 0;
}

static double copy_seconds(const struct tdm_pricing *p, enum tdm_link_number way, double bytes)
{
    const struct tdm_machine *machine = p->e->base->machine;
    return machine->copy_seconds + bytes / tdm_machine_link_rate(machine, way);
}

/* Price of a copy to the device, or to the host, in a phase. */
static double price_fetch(const struct tdm_pricing *p, int phase, double bytes)
{
    return p->prices.fetch[phase] * copy_seconds(p, TDM_LINK_H2D, bytes) +
           bytes * p->price_fetch[phase];
}

static double price_send(const struct tdm_pricing *p, int phase, double bytes)
{
    return p->prices.send[phase] * copy_seconds(p, TDM_LINK_D2H, bytes) +
           bytes * p->price_send[phase];
}

void tdm_pricing_prepare(struct tdm_pricing *pricing)
{
    for (int phase = 0; phase < TDM_IN_PHASES; phase++) {
        pricing->price_fetch[phase] = pricing->price_send[phase] = 0;
        for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++) {
            const double both = pricing->prices.both[phase][bound];
            pricing->price_fetch[phase] += both * pricing->both_fetch[bound];
            pricing->price_send[phase] += both * pricing->both_send[bound];
        }
    }
    for (int s = 0; s < TDM_STORES; s++) {
        const double bytes = (double)pricing->e->store[s];
        pricing->copies[s] =
            (struct tdm_store_copies){.stash = price_send(pricing, TDM_IN_FORWARD, bytes),
                                      .hold = price_send(pricing, TDM_IN_BACKWARD, bytes),
                                      .fetch = price_fetch(pricing, TDM_IN_BACKWARD, bytes)};
    }
    for (int i = 0; i < TDM_PLANNED_PLACES; i++) {
        enum tdm_place place = tdm_planned_place(pricing->e->base, i);
        const double *price = pricing->prices.place[place];
        const double *fixed = pricing->fixed[place];
        double *from = pricing->from[place], *from_fixed = pricing->from_fixed[place];
        from[pricing->e->layers] = from_fixed[pricing->e->layers] = 0;
        for (uint32_t layer = pricing->e->layers; layer-- > 0;) {
            from[layer] = from[layer + 1] + price[layer];
            from_fixed[layer] = from_fixed[layer + 1] + price[layer] * fixed[layer];
        }
    }
}

/* Notes bytes that go to the device or to the host: `seconds` are of a byte, by both bounds. */
static void add_both(struct tdm_amounts *use, int phase, double bytes,
                     const double seconds[TDM_BOUNDS_BOTH])
{
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++)
        use->both[phase][bound] += bytes * seconds[bound];
}

static void add_fetch(const struct tdm_pricing *p, struct tdm_amounts *use, int phase, double count,
                      double bytes)
{
    use->fetch[phase] += count * copy_seconds(p, TDM_LINK_H2D, bytes);
    add_both(use, phase, count * bytes, p->both_fetch);
}

static void add_send(const struct tdm_pricing *p, struct tdm_amounts *use, int phase, double count,
                     double bytes)
{
    use->send[phase] += count * copy_seconds(p, TDM_LINK_D2H, bytes);
    add_both(use, phase, count * bytes, p->both_send);
}

/* ---- a layer of an arc ---- */

/* Options for K and V of a chunk: swept again, kept on the device, kept on the host, held. */
enum { KV_SWEPT, KV_NEAR, KV_FAR, KV_HELD, KV_WAYS };

/* A layer in its group, with the prices of its bytes. */
struct member {
    const struct tdm_pricing *p;
    uint32_t layer;
    bool by_layer, again, keeps;
    struct life work; /* where its workspace may bind */
    struct life kept, held, kv_kept, kv_held;
    /* layer-major: bytes of a chunk in a row of the layer's own, beyond the row of the current
     * layer, which is always counted */
    struct life row_kept, row_held;
    double bytes[TDM_STORES], kv_bytes, row_bytes;
    double reads[TDM_STORES]; /* fetches of a kept chunk from the host */
    double kept_price[TDM_STORES], held_price[TDM_STORES]; /* of a chunk, at the cheaper place */
    enum tdm_place kept_place[TDM_STORES], held_place[TDM_STORES];
    double kv_price[KV_WAYS]; /* layer-major order: of the bytes of a chunk's K and V */
};

static void price_kv_bytes(struct member *m)
{
    const struct tdm_pricing *p = m->p;
    double mib = m->kv_bytes / TDM_MIB, row_mib = m->row_bytes / TDM_MIB;
    m->kv_price[KV_SWEPT] = 0;
    m->kv_price[KV_NEAR] =
        mib * price_of(p, TDM_DEVICE, m->kv_kept) + row_mib * price_of(p, TDM_DEVICE, m->row_kept);
    m->kv_price[KV_FAR] = mib * price_of(p, p->far, m->kept) +
                          price_send(p, TDM_IN_FORWARD, m->kv_bytes) +
                          price_fetch(p, TDM_IN_BACKWARD, m->kv_bytes);
    m->kv_price[KV_HELD] = !m->again ? NEVER
                                     : mib * price_of(p, TDM_DEVICE, m->kv_held) +
                                           row_mib * price_of(p, TDM_DEVICE, m->row_held);
}

/* In layer-major order: the lowest row, other than row 0, where a group from layer `a` counts. */
static uint32_t lowest_row(uint32_t a)
{
    return a > 0 ? a : 1;
}

static struct member member_of(const struct tdm_pricing *p, uint32_t j, uint32_t a, uint32_t b)
{
    const struct tdm_estimator *e = p->e;
    const uint32_t top = e->layers - 1;
    struct member m = {
        .p = p, .layer = j, .by_layer = p->order == TDM_LAYER_MAJOR, .kv_bytes = (double)e->kv};
    m.again = j < b || (!m.by_layer && b == top);
    m.keeps = m.by_layer || j < top;
    if (m.by_layer) {
        /* rows count what is live at the group's top layer, where it holds most; row 0 is as it is
         */
        const uint32_t low = j == 0 ? 0 : lowest_row(a), inner = j == 0 ? 1 : low;
        const struct life own = {low, j == 0 ? 0 : b, false, false}, nowhere = {1, 0, false, false};
        m.kept = (struct life){low, top, true, true};
        m.kv_kept = (struct life){j < b ? inner : j + 1, top, j < top, true};
        m.held = (struct life){low, b, false, false};
        m.kv_held = (struct life){inner, b, false, false};
        m.row_held = j == b || j == 0 ? own : nowhere;
        m.row_kept = m.row_held;
        m.row_kept.forward = j == top;
        m.work = m.row_held;
        m.row_bytes = (double)e->kv * (double)(e->chunks - e->row_slots) / e->chunks;
    } else {
        m.kept = m.kv_kept = (struct life){a, top, true, false};
        m.held = m.kv_held = (struct life){a, b, false, false};
        /* the row of the last group counts the head's workspace, which is not live with a layer's
         */
        const bool binds = j == b && !(b == top && tdm_head_work(e) > tdm_least_work(e, top));
        m.work = binds ? (struct life){b, b, false, false} : (struct life){1, 0, false, false};
    }
    const double kept_near = price_of(p, TDM_DEVICE, m.kept),
                 kept_far = price_of(p, p->far, m.kept);
    const double held_near = price_of(p, TDM_DEVICE, m.held),
                 held_far = price_of(p, p->far, m.held);
    for (int s = 0; s < TDM_STORES; s++) {
        const struct tdm_store_copies *copies = &p->copies[s];
        double bytes = (double)e->store[s], mib = bytes / TDM_MIB;
        m.bytes[s] = bytes;
        bool rerun =
            (int)tdm_store_type((enum tdm_store)s)->needed_without == s; /* the rerun reads it */
        m.reads[s] = m.again && rerun ? 2 : 1;
        double near = mib * kept_near;
        double far = p->is_barred[TDM_FAR_KEPT + s]
                         ? NEVER
                         : mib * kept_far + copies->stash + m.reads[s] * copies->fetch;
        m.kept_place[s] = far < near ? p->far : TDM_DEVICE;
        m.kept_price[s] = !m.keeps ? NEVER : far < near ? far : near;
        near = mib * held_near;
        far = mib * held_far + copies->hold + copies->fetch;
        m.held_place[s] =
            m.by_layer && far < near && !p->is_barred[TDM_FAR_HELD + s] ? p->far : TDM_DEVICE;
        m.held_price[s] = tdm_is_far(m.held_place[s]) ? far : near;
    }
    if (m.by_layer)
        price_kv_bytes(&m);
    return m;
}

static void use_kept(const struct member *m, struct tdm_amounts *use, int s, double count)
{
    add_life(m->p, use, m->kept_place[s], m->kept, count * m->bytes[s] / TDM_MIB);
    if (tdm_is_far(m->kept_place[s])) {
        use->far[TDM_FAR_KEPT + s] |= count > 0;
        add_send(m->p, use, TDM_IN_FORWARD, count, m->bytes[s]);
        add_fetch(m->p, use, TDM_IN_BACKWARD, count * m->reads[s], m->bytes[s]);
    }
}

static void use_held(const struct member *m, struct tdm_amounts *use, int s, double count)
{
    add_life(m->p, use, m->held_place[s], m->held, count * m->bytes[s] / TDM_MIB);
    if (tdm_is_far(m->held_place[s])) {
        use->far[TDM_FAR_HELD + s] |= count > 0;
        add_send(m->p, use, TDM_IN_BACKWARD, count, m->bytes[s]);
        add_fetch(m->p, use, TDM_IN_BACKWARD, count, m->bytes[s]);
    }
}

static const struct layer_cost *cost_of(const struct member *m, uint32_t class)
{
    return &m->p->e->costs[(size_t)m->layer * m->p->e->classes + class];
}

static double work_price(const struct member *m)
{
    return price_of(m->p, TDM_DEVICE, m->work);
}

static void use_work(const struct member *m, struct tdm_amounts *use, double bytes)
{
    add_life(m->p, use, TDM_DEVICE, m->work, bytes / TDM_MIB);
}

/* ---- stores other than the attention output ---- */

/* Seconds saved for a chunk that has a store. */
static double saved(const struct member *m, int s, const struct layer_cost *cost, bool kept)
{
    enum tdm_set set = tdm_set_with((enum tdm_store)s);
    double seconds = cost->backward[tdm_set_poorer(set)] - cost->backward[set];
    bool rerun = kept && m->again && s == TDM_STORE_GATE_UP; /* the rerun saves too */
    return rerun ? seconds + cost->mlp_norm + cost->gate_up : seconds;
}

/* Workspace bytes that a store saves. */
static double spared_work(const struct member *m, int s)
{
    return (double)spared_bytes(m->p->e, m->layer, 1u << s);
}

/* The best option for chunks of a class: keep (1), hold (2) or neither (0). In chunk-major order
 * everything held shares one slot, which is charged once. */
static int best_way(const struct member *m, int s, uint32_t class, bool may_hold, double *cost)
{
    const struct layer_cost *c = cost_of(m, class);
    double kept = m->kept_price[s] - m->p->prices.compute * saved(m, s, c, true);
    double held =
        (m->by_layer ? m->held_price[s] : 0) - m->p->prices.compute * saved(m, s, c, false);
    int way = 0;
    *cost = 0;
    if (kept < *cost) {
        *cost = kept;
        way = 1;
    }
    if (may_hold && held < *cost) {
        *cost = held;
        way = 2;
    }
    return way;
}

/* Cost of a store over all chunks, with or without a slot to hold, and how many chunks store it. */
static double sum_ways(const struct member *m, int s, bool may_hold, double *stored)
{
    double cost, sum = may_hold && !m->by_layer ? m->held_price[s] : 0;
    *stored = may_hold && !m->by_layer ? 1 : 0;
    for (uint32_t c = 0; c < m->p->e->classes; c++) {
        double count = m->p->class_chunks[c];
        *stored += best_way(m, s, c, may_hold, &cost) > 0 ? count : 0;
        sum += count * cost;
    }
    return sum;
}

static void use_ways(const struct member *m, int s, bool may_hold, struct tdm_amounts *use,
                     double kept[TDM_MAX_PLACES], double held[TDM_MAX_PLACES])
{
    double cost;
    if (may_hold && !m->by_layer && use != NULL)
        use_held(m, use, s, 1);
    for (uint32_t c = 0; c < m->p->e->classes; c++) {
        double count = m->p->class_chunks[c];
        int way = best_way(m, s, c, may_hold, &cost);
        if (way == 0)
            continue;
        if (way == 1)
            kept[m->kept_place[s]] += count;
        else
            held[m->held_place[s]] += count;
        if (use == NULL)
            continue;
        use->compute -= count * saved(m, s, cost_of(m, c), way == 1);
        if (way == 1)
            use_kept(m, use, s, count);
        else if (m->by_layer)
            use_held(m, use, s, count);
    }
}

/* Minimum cost of storing one chunk, even if it does not pay by itself: it saves the workspace. */
static double price_token(const struct member *m, int s)
{
    double least = NEVER;
    for (uint32_t c = 0; c < m->p->e->classes; c++) {
        double kept = m->kept_price[s] - m->p->prices.compute * saved(m, s, cost_of(m, c), true);
        double held =
            m->again ? m->held_price[s] - m->p->prices.compute * saved(m, s, cost_of(m, c), false)
                     : NEVER;
        least = fmin(least, fmin(kept, held));
    }
    return least;
}

static double price_store(const struct member *m, int s, struct tdm_amounts *use,
                          double kept[TDM_MAX_PLACES], double held[TDM_MAX_PLACES])
{
    double stored, other_stored, work = work_price(m) * spared_work(m, s) / TDM_MIB;
    bool hold = m->again;
    double cost = sum_ways(m, s, hold, &stored);
    cost += stored > 0 ? 0 : work;
    if (hold && !m->by_layer) { /* without a slot */
        double other = sum_ways(m, s, false, &other_stored);
        other += other_stored > 0 ? 0 : work;
        if (other <= cost) {
            cost = other;
            stored = other_stored;
            hold = false;
        }
    }
    /* the bound includes the option of a single stored chunk; columns do not */
    if (use == NULL && kept == NULL)
        return stored > 0 ? cost : fmin(cost, price_token(m, s));
    use_ways(m, s, hold, use, kept, held);
    if (use != NULL && stored <= 0)
        use_work(m, use, spared_work(m, s));
    return cost;
}

/* ---- K and V ---- */

/* Cost of K and V of a chunk in layer-major order. `made`: attention runs again in the rerun, and
 * needs K and V. */
static double price_kv(const struct member *m, const struct layer_cost *cost, bool made, int way)
{
    double seconds = 0;
    if (m->again && (made || way == KV_HELD))
        seconds += cost->norm;
    if (m->again && (way == KV_HELD || (made && way == KV_SWEPT)))
        seconds += cost->kv;
    if (way == KV_SWEPT)
        seconds += cost->embed + cost->norm + cost->kv;
    return m->kv_price[way] + m->p->prices.compute * seconds;
}

static void use_kv(const struct member *m, const struct layer_cost *cost, bool made, int way,
                   double count, struct tdm_amounts *use)
{
    double mib = count * m->kv_bytes / TDM_MIB, row_mib = count * m->row_bytes / TDM_MIB;
    if (m->again && (made || way == KV_HELD))
        use->compute += count * cost->norm;
    if (m->again && (way == KV_HELD || (made && way == KV_SWEPT)))
        use->compute += count * cost->kv;
    switch (way) {
    case KV_SWEPT:
        use->compute += count * (cost->embed + cost->norm + cost->kv);
        break;
    case KV_NEAR:
        add_life(m->p, use, TDM_DEVICE, m->kv_kept, mib);
        add_life(m->p, use, TDM_DEVICE, m->row_kept, row_mib);
        break;
    case KV_FAR:
        add_life(m->p, use, m->p->far, m->kept, mib);
        add_send(m->p, use, TDM_IN_FORWARD, count, m->kv_bytes);
        add_fetch(m->p, use, TDM_IN_BACKWARD, count, m->kv_bytes);
        break;
    default:
        add_life(m->p, use, TDM_DEVICE, m->kv_held, mib);
        add_life(m->p, use, TDM_DEVICE, m->row_held, row_mib);
    }
}

static int best_kv(const struct member *m, const struct layer_cost *cost, bool made, double *price)
{
    int best = KV_SWEPT;
    *price = price_kv(m, cost, made, KV_SWEPT);
    for (int way = KV_NEAR; way < KV_WAYS; way++) {
        double other = price_kv(m, cost, made, way);
        if (other < *price) {
            *price = other;
            best = way;
        }
    }
    return best;
}

/* In chunk-major order K and V of all chunks are kept. Their gradients live as long as the
 * group. */
double tdm_price_rows(const struct tdm_pricing *p, uint32_t j, uint32_t a, uint32_t b,
                      struct tdm_amounts *use, struct tdm_choice *choice)
{
    if (p->order == TDM_LAYER_MAJOR)
        return 0;
    const struct tdm_estimator *e = p->e;
    const struct life kept = {a, e->layers - 1, true, false}, held = {a, b, false, false};
    size_t row = (size_t)e->chunks + 1;
    /* then no prefixes are fetched */
    bool gathers = e->gathered_before[(e->kind_of[j] + 1) * row - 1].kv > 0;
    double n = e->chunks, seen = gathers ? n : (double)e->seen_chunks[e->kind_of[j]];
    double bytes = (double)e->kv, sums = (double)e->dkv;
    double mib = n * bytes / TDM_MIB, sum_mib = n * sums / TDM_MIB;
    double ring = 1.0 / (b - a + 1); /* share of one row, which the group's layers share */
    if (gathers)                     /* the row has one slot, and attention copies what it needs */
        ring = 0;
    const double kv_ring = p->has_ring[TDM_FAR_KV] ? 0 : ring,
                 sum_ring = p->has_ring[TDM_FAR_SUMS] ? 0 : ring;
    double fetch = gathers ? 0 : 1 / tdm_machine_link_rate(e->base->machine, TDM_LINK_H2D);
    double send = 1 / tdm_machine_link_rate(e->base->machine, TDM_LINK_D2H);
    const double held_price = price_of(p, TDM_DEVICE, held);
    double near = mib * price_of(p, TDM_DEVICE, kept);
    double far =
        mib * (price_of(p, p->far, kept) + kv_ring * held_price) +
        n * price_send(p, TDM_IN_FORWARD, bytes) +
        (p->prices.fetch[TDM_IN_FORWARD] * (seen - n) + p->prices.fetch[TDM_IN_BACKWARD] * seen) *
            bytes * fetch +
        ((seen - n) * p->price_fetch[TDM_IN_FORWARD] + seen * p->price_fetch[TDM_IN_BACKWARD]) *
            bytes;
    double sum_near = sum_mib * held_price;
    double sum_far = sum_mib * sum_ring * held_price +
                     (seen - n) * sums *
                         (p->prices.send[TDM_IN_BACKWARD] * send + p->price_send[TDM_IN_BACKWARD]);
    far = p->is_barred[TDM_FAR_KV] ? NEVER : far;
    sum_far = p->is_barred[TDM_FAR_SUMS] ? NEVER : sum_far;
    bool is_far = far < near, sum_is_far = sum_far < sum_near;
    if (choice != NULL) {
        choice->kv_kept[is_far ? p->far : TDM_DEVICE] = n;
        choice->far_kv_gradients = sum_is_far ? 1 : 0;
    }
    if (use != NULL && is_far) {
        use->far[TDM_FAR_KV] = true;
        add_life(p, use, p->far, kept, mib);
        add_life(p, use, TDM_DEVICE, held, mib * kv_ring);
        add_send(p, use, TDM_IN_FORWARD, n, bytes);
        use->fetch[TDM_IN_FORWARD] += (seen - n) * bytes * fetch;
        use->fetch[TDM_IN_BACKWARD] += seen * bytes * fetch;
        add_both(use, TDM_IN_FORWARD, (seen - n) * bytes, p->both_fetch);
        add_both(use, TDM_IN_BACKWARD, seen * bytes, p->both_fetch);
    } else if (use != NULL) {
        add_life(p, use, TDM_DEVICE, kept, mib);
    }
    if (use != NULL && sum_is_far) {
        use->far[TDM_FAR_SUMS] = true;
        add_life(p, use, TDM_DEVICE, held, sum_mib * sum_ring);
        use->send[TDM_IN_BACKWARD] += (seen - n) * sums * send;
        add_both(use, TDM_IN_BACKWARD, (seen - n) * sums, p->both_send);
    } else if (use != NULL) {
        add_life(p, use, TDM_DEVICE, held, sum_mib);
    }
    return fmin(near, far) + fmin(sum_near, sum_far);
}

/* ---- attention ---- */

/* Options of a chunk: how often its attention runs in the backward. */
enum { RUNS = 3 };

/* Costs of a class of chunks beside attention itself, by number of runs. */
struct lines {
    double cost[RUNS];
    int kv[RUNS];
};

/* `slot`: chunk-major order with a slot to hold. */
static struct lines lines_of(const struct member *m, uint32_t class, bool slot)
{
    const struct layer_cost *cost = cost_of(m, class);
    double compute = m->p->prices.compute;
    struct lines lines;
    for (int runs = 0; runs < RUNS; runs++) {
        bool made = runs > 0; /* run again, with norm and q */
        double price = 0;
        if (runs == RUNS - 1) { /* beside attention the same cost as one run */
            lines.kv[runs] = lines.kv[runs - 1];
            lines.cost[runs] = lines.cost[runs - 1];
            continue;
        }
        lines.kv[runs] = KV_NEAR;
        if (m->by_layer)
            lines.kv[runs] = best_kv(m, cost, made, &price);
        else if (m->again && made)
            price = compute * cost->norm;
        if (m->again && made)
            price += compute * cost->q;
        lines.cost[runs] = price;
    }
    lines.cost[0] += m->kept_price[TDM_STORE_ATTENTION];
    if (m->again)
        lines.cost[1] += m->by_layer ? m->held_price[TDM_STORE_ATTENTION] : slot ? 0 : NEVER;
    else
        lines.cost[2] = NEVER;
    return lines;
}

/* Number of chunks in a list whose attention is below a threshold. */
static uint32_t below(const struct tdm_attention_list *list, double seconds)
{
    uint32_t low = 0, high = list->count;
    if (high == 0 || list->seconds[0] >= seconds)
        return 0;
    if (list->seconds[high - 1] < seconds)
        return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (list->seconds[middle] < seconds)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Of the chunks in rising order, the first `cut[1]` run twice; those from `cut[0]` on do not run
 * again. */
static double cut_class(const struct member *m, uint32_t class, const struct lines *lines,
                        uint32_t cut[2])
{
    const struct tdm_estimator *e = m->p->e;
    const struct tdm_attention_list *list = &m->p->lists[e->kind_of[m->layer] * e->classes + class];
    double compute = fmax(m->p->prices.compute, 1e-15);
    double to_none = (lines->cost[0] - lines->cost[1]) / compute;
    double to_one = (lines->cost[1] - lines->cost[2]) / compute;
    if (to_one > to_none) /* one run never pays */
        to_one = to_none = (lines->cost[0] - lines->cost[2]) / (2 * compute);
    cut[0] = below(list, to_none);
    cut[1] = below(list, to_one);
    double seconds = list->before[cut[0]] + list->before[cut[1]];
    double cost = m->p->prices.compute * seconds;
    cost += (list->count - cut[0]) == 0 ? 0 : (list->count - cut[0]) * lines->cost[0];
    cost += cut[0] == cut[1] ? 0 : (cut[0] - cut[1]) * lines->cost[1];
    return cost + (cut[1] == 0 ? 0 : cut[1] * lines->cost[2]);
}

/* Sums all classes. costs[1]: no attention is computed in the workspace of the backward. */
static void cut_all(const struct member *m, bool slot, double costs[2], bool spares[2])
{
    uint32_t cut[2];
    costs[0] = costs[1] = slot ? m->held_price[TDM_STORE_ATTENTION] : 0;
    spares[0] = spares[1] = true;
    for (uint32_t c = 0; c < m->p->e->classes; c++) {
        struct lines lines = lines_of(m, c, slot);
        costs[0] += cut_class(m, c, &lines, cut);
        spares[0] = spares[0] && (m->again ? cut[1] : cut[0]) == 0;
        lines.cost[m->again ? 2 : 1] = NEVER;
        costs[1] += cut_class(m, c, &lines, cut);
        spares[1] = spares[1] && (m->again ? cut[1] : cut[0]) == 0;
    }
    if (spares[0]) { /* that holds already */
        costs[1] = costs[0];
        spares[1] = true;
    }
}

static void use_cuts(const struct member *m, bool slot, bool spare, struct tdm_amounts *use,
                     struct tdm_choice *choice)
{
    const struct tdm_estimator *e = m->p->e;
    uint32_t cut[2];
    if (slot && use != NULL)
        use_held(m, use, TDM_STORE_ATTENTION, 1);
    for (uint32_t c = 0; c < e->classes; c++) {
        const struct tdm_attention_list *list = &m->p->lists[e->kind_of[m->layer] * e->classes + c];
        const struct layer_cost *cost = cost_of(m, c);
        struct lines lines = lines_of(m, c, slot);
        if (spare)
            lines.cost[m->again ? 2 : 1] = NEVER;
        cut_class(m, c, &lines, cut);
        double counts[RUNS] = {list->count - cut[0], cut[0] - cut[1], cut[1]};
        if (choice != NULL) {
            choice->kept[TDM_STORE_ATTENTION][m->kept_place[TDM_STORE_ATTENTION]] += counts[0];
            if (m->again)
                choice->held[TDM_STORE_ATTENTION][m->held_place[TDM_STORE_ATTENTION]] += counts[1];
            for (int runs = 0; runs < RUNS && m->by_layer; runs++) {
                int way = lines.kv[runs];
                choice->kv_held += way == KV_HELD ? counts[runs] : 0;
                if (way == KV_NEAR || way == KV_FAR)
                    choice->kv_kept[way == KV_FAR ? m->p->far : TDM_DEVICE] += counts[runs];
            }
        }
        if (use == NULL)
            continue;
        use->compute += list->before[cut[0]] + list->before[cut[1]];
        use_kept(m, use, TDM_STORE_ATTENTION, counts[0]);
        if (m->again && m->by_layer)
            use_held(m, use, TDM_STORE_ATTENTION, counts[1]);
        for (int runs = 0; runs < RUNS; runs++) {
            bool made = runs > 0;
            if (m->again && made)
                use->compute += counts[runs] * (cost->q + (m->by_layer ? 0 : cost->norm));
            if (m->by_layer)
                use_kv(m, cost, made, lines.kv[runs], counts[runs], use);
        }
    }
}

static double price_attention(const struct member *m, struct tdm_amounts *use,
                              struct tdm_choice *choice)
{
    double work = work_price(m) * m->bytes[TDM_STORE_ATTENTION] / TDM_MIB, best = NEVER;
    bool slots = m->again && !m->by_layer, best_slot = false, best_spare = false,
         best_spares = true;
    for (int slot = 0; slot <= (slots ? 1 : 0); slot++) {
        double costs[2];
        bool spares[2];
        cut_all(m, slot, costs, spares);
        for (int spare = 0; spare < 2; spare++) {
            double cost = costs[spare] + (spares[spare] ? 0 : work);
            if (cost < best) {
                best = cost;
                best_slot = slot;
                best_spare = spare;
                best_spares = spares[spare];
            }
        }
    }
    if (use != NULL || choice != NULL)
        use_cuts(m, best_slot, best_spare, use, choice);
    if (use != NULL && !best_spares)
        use_work(m, use, m->bytes[TDM_STORE_ATTENTION]);
    return best;
}

struct tdm_layer_cost tdm_price_layer(const struct tdm_pricing *p, uint32_t j, uint32_t a,
                                      uint32_t b, struct tdm_amounts *use,
                                      struct tdm_choice *choice)
{
    struct member m = member_of(p, j, a, b);
    struct tdm_choice none = {0}, *chosen = choice != NULL ? choice : &none;
    bool wanted = use != NULL || choice != NULL;
    double fixed = p->fixed_seconds[m.again][j];
    if (use != NULL)
        use->compute += fixed;
    struct tdm_layer_cost cost = {.fixed =
                                      p->prices.compute * fixed + price_attention(&m, use, choice)};
    if (wanted)
        tdm_price_rows(p, j, a, b, use, choice);
    for (int s = 0; s < TDM_STORES; s++)
        if (s != TDM_STORE_ATTENTION && tdm_set_has(TDM_SEARCHED_SET, (enum tdm_store)s))
            cost.stores[s] =
                price_store(&m, s, use, wanted ? chosen->kept[s] : NULL, chosen->held[s]);
    return cost;
}

/* ---- inputs, groups ---- */

double tdm_price_input(const struct tdm_pricing *p, uint32_t j, uint32_t a, uint32_t b,
                       struct tdm_amounts *use, enum tdm_place *place)
{
    const struct tdm_estimator *e = p->e;
    bool by_layer = p->order == TDM_LAYER_MAJOR, stored = j == a;
    double n = e->chunks, bytes = (double)e->x, mib = n * bytes / TDM_MIB;
    double reads = j < b || (!by_layer && b == e->layers - 1) ? 2 : 1;
    int phase = stored ? TDM_IN_FORWARD : TDM_IN_BACKWARD;
    struct life life = {by_layer ? lowest_row(a) : j, b, false, false};
    *place = TDM_DEVICE;
    if (stored && a == 0)
        return 0; /* the tokens */
    if (stored)
        life = (struct life){a, e->layers - 1, true, by_layer};
    if (!stored && !by_layer) { /* one slot */
        mib /= n;
        life.from = a;
        if (use != NULL)
            add_life(p, use, TDM_DEVICE, life, mib);
        return mib * price_of(p, TDM_DEVICE, life);
    }
    double near = mib * price_of(p, TDM_DEVICE, life);
    double far = mib * price_of(p, p->far, life) +
                 n * (price_send(p, phase, bytes) + reads * price_fetch(p, TDM_IN_BACKWARD, bytes));
    const int kind = stored ? TDM_FAR_INPUT : TDM_FAR_INNER;
    far = p->is_barred[kind] ? NEVER : far;
    if (far < near)
        *place = p->far;
    if (use != NULL) {
        add_life(p, use, *place, life, mib);
        if (tdm_is_far(*place)) {
            use->far[kind] = true;
            add_send(p, use, phase, n, bytes);
            add_fetch(p, use, TDM_IN_BACKWARD, n * reads, bytes);
        }
    }
    return fmin(near, far);
}

/* In layer-major order the rows of a group's inner layers count what is there in the row of its top
 * layer, so also what no choice changes there. */
static double price_fixed(const struct tdm_pricing *p, uint32_t a, uint32_t b,
                          struct tdm_amounts *use)
{
    const uint32_t low = lowest_row(a);
    double price = 0;
    for (int i = 0; i < TDM_PLANNED_PLACES && low < b; i++) {
        enum tdm_place place = tdm_planned_place(p->e->base, i);
        const double *fixed = p->fixed[place];
        price += (p->from[place][low] - p->from[place][b]) * fixed[b] -
                 (p->from_fixed[place][low] - p->from_fixed[place][b]);
        for (uint32_t row = low; row < b && use != NULL; row++)
            use->place[place][row] += fixed[b] - fixed[row];
    }
    return price;
}

double tdm_price_group(const struct tdm_pricing *p, uint32_t a, uint32_t b, struct tdm_amounts *use)
{
    const struct tdm_estimator *e = p->e;
    double again = b - a, price = p->prices.again * again;
    if (use != NULL)
        use->again += again;
    if (p->order == TDM_LAYER_MAJOR)
        return price + price_fixed(p, a, b, use);
    double mib = (double)(e->passing_below[b + 1] - e->passing_below[a]) / TDM_MIB;
    struct life life = {a, b, false, false};
    if (b == e->layers - 1)
        mib += (double)(e->head_gradient - e->head_stays[TDM_DEVICE]) / TDM_MIB;
    if (a == 0 && b == e->layers - 1) /* one group: X passes through one slot */
        mib -= (double)(e->chunks - 1) * (double)e->x / TDM_MIB;
    if (use != NULL)
        add_life(p, use, TDM_DEVICE, life, mib);
    return price + mib * price_of(p, TDM_DEVICE, life);
}

bool tdm_relaxation_gathers(const struct tdm_estimator *e)
{
    for (uint32_t layer = 0; layer < e->layers; layer++)
        if (gathers(e, layer))
            return true;
    return false;
}

uint64_t tdm_least_work(const struct tdm_estimator *e, uint32_t layer)
{
    uint64_t work = layer == 0 ? e->work_backward_first : e->work_backward;
    return work - spared_bytes(e, layer, bits_of(TDM_SEARCHED_SET));
}

uint64_t tdm_head_work(const struct tdm_estimator *e)
{
    uint64_t tile = e->base->head_tile_tokens;
    while (tile >= 2 * TDM_LEAST_TILE)
        tile = (tile + 1) / 2;
    return e->work_head + tdm_estimate_logits(e, tile);
}
