/* SPDX-License-Identifier: Apache-2.0 */
/* The relaxation's linear program: its rows, the columns that are not arcs, and adding an arc. */
#include "planner/estimate_span.h"
#include "planner/relaxation_parts.h"

#include "base/size.h"
#include "schedule/cost.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Minimum slots of a ring for layers. */
#define LEAST_SLOTS 1.0

static enum tdm_status no_memory(struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the relaxation");
}

/* ---- fixed bytes ---- */

static uint64_t layer_gradient(const struct tdm_estimator *e, uint32_t layer)
{
    const uint64_t *staying = e->staying_below[TDM_DEVICE];
    return e->passing_below[layer + 1] - e->passing_below[layer] + staying[e->layers] -
           staying[layer];
}

/* Bytes of each row without states and arcs. */
static void find_fixed(struct tdm_relaxation *r)
{
    const struct tdm_estimator *e = r->pricing.e;
    const uint32_t top = e->layers - 1;
    bool by_layer = r->pricing.order == TDM_LAYER_MAJOR;
    uint64_t n = e->chunks;
    uint64_t all = e->stateless_bytes[TDM_DEVICE] +
                   e->base->machine->topology.places[TDM_DEVICE].runtime_bytes;
    uint64_t stays = all + e->tied_gradient + e->head_stays[TDM_DEVICE] + n * e->x;
    for (uint32_t layer = 0; layer <= top; layer++) {
        uint64_t work = tdm_least_work(e, layer), bytes = stays;
        if (!by_layer && layer == top)
            work = larger(work, tdm_head_work(e));
        bytes += work;
        if (by_layer)
            bytes += layer_gradient(e, layer) + e->row_slots * (e->kv + e->dkv);
        else
            bytes += e->staying_below[TDM_DEVICE][e->layers] - e->staying_below[TDM_DEVICE][layer];
        r->fixed[TDM_DEVICE][layer] = (double)bytes / TDM_MIB;
        uint64_t far = e->stateless_bytes[e->far] +
                       e->base->machine->topology.places[e->far].runtime_bytes +
                       e->staying_below[e->far][e->layers] - e->staying_below[e->far][layer + 1];
        if (by_layer || layer < top)
            far += e->head_stays[e->far];
        if (!tdm_updates_at_end(e->base))
            far += e->host_slot;
        r->fixed[e->far][layer] = (double)far / TDM_MIB;
    }
    double *device = r->fixed[TDM_DEVICE] + e->layers;
    uint64_t stored = set_bytes(e, TDM_SEARCHED_SET);
    device[TDM_AT_FORWARD] =
        (double)(all +
                 (by_layer ? n * e->x + e->row_slots * e->kv + e->work_forward - stored : 0)) /
        TDM_MIB;
    device[TDM_AT_HEAD] =
        (double)(all + n * e->x + e->tied_gradient + e->head_gradient + tdm_head_work(e)) / TDM_MIB;
    device[TDM_AT_UPDATE] =
        (double)(all + n * e->x + e->tied_gradient + e->head_gradient) / TDM_MIB;
    /* in layer-major order all of this is there when the head is updated */
    const bool in_backward = by_layer && tdm_relaxation_updates_in_backward(e);
    r->fixed[e->far][e->layers + TDM_AT_FORWARD] =
        (double)(e->stateless_bytes[e->far] +
                 e->base->machine->topology.places[e->far].runtime_bytes +
                 (in_backward ? e->host_head + e->host_slot : 0)) /
        TDM_MIB;
}

bool tdm_relaxation_updates_in_backward(const struct tdm_estimator *e)
{
    return e->base->optimizer.kind != TDM_OPTIMIZER_NONE && !tdm_updates_at_end(e->base);
}

/* ---- layers that are updated on the device, beside others that are updated on the host ---- */

/* The most layers whose states up to `last` fit on the device, of those that leave one to the host.
 */
static uint32_t most_near(const struct tdm_relaxation *r, enum tdm_state last,
                          uint64_t device_bytes)
{
    const struct tdm_estimator *e = r->pricing.e;
    uint64_t of_layer = 0, others[TDM_MAX_PLACES] = {0};
    if (!r->is_tied)
        return 0;
    if (r->of_bytes && r->least == TDM_DEVICE)
        return r->layers - 1;
    tdm_estimator_add_states(e, others);
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++) {
        const uint64_t bytes = tdm_estimator_unit_bytes(e, (enum tdm_state)state, 0);
        others[TDM_DEVICE] -= e->base->homes[state].device_layers * bytes;
        of_layer += state <= (int)last ? bytes : 0;
    }
    others[TDM_DEVICE] += e->stateless_bytes[TDM_DEVICE];
    return (uint32_t)smaller(tdm_size_left(device_bytes, others[TDM_DEVICE]) / of_layer,
                             r->layers - 1);
}

/* Seconds of the backward if every passing layer sends masters and moments for so long, and each
 * layer that is not updated on the host saves `r->tied_host` there. */
static double least_backward(const struct tdm_relaxation *r, double host_seconds, double send)
{
    const double tied = fmax(host_seconds - r->most_tied * r->tied_host, 0);
    const double passing = fmax(host_seconds - r->most_passing * r->tied_host,
                                host_seconds * send / (send + r->tied_host));
    return fmin(tied, passing);
}

/* Finds how many layers may have all state on the device, or weights alone, and what each does to
 * the seconds of updates at least. */
static void find_tied(struct tdm_relaxation *r, const bool fixed_homes[TDM_STATES],
                      uint64_t device_bytes)
{
    const bool passes = fixed_homes[TDM_STATE_MASTER] || fixed_homes[TDM_STATE_MOMENTS];
    const struct tdm_estimator *e = r->pricing.e;
    const enum tdm_order order = r->pricing.order;
    const struct tdm_updates none = tdm_estimator_updates(e, r->base_layers);
    double send = 0;
    r->most_tied = passes ? 0 : most_near(r, TDM_STATE_MOMENTS, device_bytes);
    r->most_passing = most_near(r, TDM_STATE_WEIGHTS, device_bytes);
    r->tied_host = 0;
    r->tied_compute = r->most_passing > 0 ? TDM_NO_BOUND : 0;
    for (uint32_t near = 1; near <= r->most_passing; near++) {
        const struct tdm_updates some = tdm_estimator_updates(e, near);
        const double compute = some.optimizer_seconds + some.tail_seconds[order] -
                               none.optimizer_seconds - none.tail_seconds[order];
        r->tied_host = fmax(r->tied_host, (none.host_seconds - some.host_seconds) / near);
        r->tied_compute = fmin(r->tied_compute, compute / near);
    }
    for (int state = TDM_STATE_MASTER; state <= TDM_STATE_MOMENTS; state++)
        send += tdm_relaxation_unit_seconds(e, TDM_LINK_D2H, (enum tdm_state)state, 0);
    r->least_host =
        r->most_passing > 0 ? least_backward(r, none.host_seconds, send) : none.host_seconds;
}

/* ---- rows ---- */

static enum tdm_status add_row(struct tdm_relaxation *r, const char *name, double least,
                               double most, int *row, struct tdm_error *err)
{
    enum tdm_status status = tdm_solver_row(r->solver, name, least, most, row, err);
    if (status == TDM_OK)
        r->bounds[r->row_count++] = (struct tdm_row_bounds){least, most};
    return status;
}

static const char *place_name(const struct tdm_relaxation *r, enum tdm_place place)
{
    return tdm_place_name(&r->pricing.e->base->machine->topology, place);
}

static enum tdm_status add_place_rows(struct tdm_relaxation *r,
                                      const uint64_t limit_bytes[TDM_MAX_PLACES],
                                      struct tdm_error *err)
{
    static const char *const more[TDM_MORE_ROWS] = {"forward", "head", "update"};
    bool by_layer = r->pricing.order == TDM_LAYER_MAJOR;
    enum tdm_status status = TDM_OK;
    for (int k = 0; k < TDM_PLANNED_PLACES; k++)
        for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS && status == TDM_OK; i++) {
            enum tdm_place place = tdm_planned_place(r->pricing.e->base, k);
            uint32_t other = i - r->layers;
            char name[48];
            r->place[place][i] = -1;
            if (i >= r->layers && other != TDM_AT_FORWARD &&
                (tdm_is_far(place) || !by_layer ||
                 (other == TDM_AT_UPDATE && !tdm_relaxation_updates_in_backward(r->pricing.e))))
                continue;
            if (i < r->layers)
                snprintf(name, sizeof(name), "%s_%u", place_name(r, place), i);
            else
                snprintf(name, sizeof(name), "%s_%s", place_name(r, place), more[other]);
            double most = (double)limit_bytes[place] / TDM_MIB - r->fixed[place][i];
            status = add_row(r, name, -TDM_UNBOUNDED, most, &r->place[place][i], err);
        }
    return status;
}

double tdm_relaxation_ring_bytes(const struct tdm_estimator *e, uint64_t bodies)
{
    return (double)bodies * (double)(e->x + set_bytes(e, TDM_SEARCHED_SET));
}

/* Bytes of K and V that the rings' rows hold. */
static double row_bytes(const struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    return (double)larger(base->prefetch + 1, base->rings.kv * e->chunks) * (double)e->kv;
}

double tdm_relaxation_most_slots(uint32_t slots)
{
    return (double)larger(slots, TDM_MOST_SLOTS);
}

/* Are layers at home on the host updated there? Then the rows count all layers so. */
static bool layers_update_on_host(const struct tdm_estimator *e)
{
    return tdm_is_far(e->base->optimizer.on);
}

bool tdm_relaxation_comes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    return unit < e->layers ? state == TDM_STATE_WEIGHTS || !layers_update_on_host(e)
                            : tdm_estimator_comes(e, state, unit);
}

double tdm_relaxation_sent_bytes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    double least = (double)tdm_estimator_sent_bytes(e, state, unit);
    if (unit >= e->layers || !layers_update_on_host(e))
        return least;
    for (uint32_t layer = 0; layer < e->layers; layer++)
        least = fmin(least, (double)e->gradient_bytes[layer]);
    return state == TDM_STATE_WEIGHTS ? least : 0;
}

static double sent_seconds(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    const struct tdm_machine *machine = e->base->machine;
    double bytes = tdm_relaxation_sent_bytes(e, state, unit);
    return bytes > 0 ? machine->copy_seconds + bytes / tdm_machine_link_rate(machine, TDM_LINK_D2H)
                     : 0;
}

double tdm_relaxation_unit_seconds(const struct tdm_estimator *e, enum tdm_link_number way,
                                   enum tdm_state state, uint32_t unit)
{
    double bytes = (double)tdm_estimator_unit_bytes(e, state, unit);
    return bytes > 0 ? e->base->machine->copy_seconds +
                           bytes / tdm_machine_link_rate(e->base->machine, way)
                     : 0;
}

static double all_attention_grad(const struct tdm_estimator *e)
{
    double seconds = 0;
    for (uint32_t layer = 0; layer < e->layers; layer++)
        seconds += e->attention_grad_seconds[e->kind_of[layer]];
    return seconds;
}

static double forward_seconds(const struct tdm_estimator *e, enum tdm_order order)
{
    double seconds = tdm_estimator_forward_seconds(e);
    uint32_t top = e->layers - 1;
    if (order == TDM_LAYER_MAJOR)
        return seconds;
    for (uint32_t c = 0; c < e->classes; c++) {
        const struct layer_cost *cost = &e->costs[(size_t)top * e->classes + c];
        seconds -= tdm_estimator_count(e, c, 0, e->chunks) * (cost->q + cost->rest);
    }
    return seconds -
           e->attention_before[(size_t)e->kind_of[top] * ((size_t)e->chunks + 1) + e->chunks];
}

/* Seconds of the backward until the first gradient of a layer is complete: the head of all chunks,
 * and the top layer's backward. */
static double seconds_to_gradient(const struct tdm_estimator *e)
{
    const uint32_t top = e->layers - 1;
    double seconds = e->head_seconds;
    for (uint32_t c = 0; c < e->classes; c++)
        seconds += tdm_estimator_count(e, c, 0, e->chunks) *
                   e->costs[(size_t)top * e->classes + c].backward[TDM_SEARCHED_SET];
    return seconds + e->attention_grad_seconds[e->kind_of[top]];
}

/* Seconds of the backward before the first state of a layer or of the embedding is sent. If updates
 * run on the host, gradients are sent part by part, before the top layer's backward ends. */
static double seconds_to_update(const struct tdm_estimator *e)
{
    return tdm_is_far(e->base->optimizer.on) ? e->head_seconds : seconds_to_gradient(e);
}

double tdm_relaxation_byte_slows(const struct tdm_estimator *e)
{
    const struct tdm_machine *machine = e->base->machine;
    const double rate = fmax(tdm_machine_both_ways_rate(machine),
                             fmax(tdm_machine_link_rate(machine, TDM_LINK_H2D),
                                  tdm_machine_link_rate(machine, TDM_LINK_D2H)));
    return e->seconds_per_copied_byte * rate < 1 - TDM_LEAST_UPDATE_RATE
               ? e->seconds_per_copied_byte
               : 0;
}

/* Seconds by which sending a layer's gradient slows updates on the host. */
static double gradient_slows(const struct tdm_estimator *e)
{
    return tdm_relaxation_byte_slows(e) * (double)e->gradient_bytes[0];
}

/* Seconds of the backward before the host's lane begins to update: a layer, or the head, whose
 * gradient is complete when it was computed for all chunks, and is then sent. */
static double seconds_to_host_update(const struct tdm_estimator *e)
{
    const uint32_t head = tdm_model_head_unit(e->base->model);
    const double layer = seconds_to_gradient(e);
    if (!tdm_updates_on_host(e->base, head) || e->base->model->tied)
        return layer;
    double seconds = e->head_seconds;
    if (!tdm_is_far(e->base->homes[TDM_STATE_GRADIENTS].head)) /* else it is there by then */
        seconds +=
            (double)e->gradient_bytes[head] / tdm_machine_link_rate(e->base->machine, TDM_LINK_D2H);
    return fmin(layer, seconds);
}

/* Is a unit updated later than that? In layer-major order the head is updated first. */
static bool is_updated_late(const struct tdm_relaxation *r, uint32_t unit)
{
    return r->pricing.order == TDM_CHUNK_MAJOR ||
           unit != tdm_model_head_unit(r->pricing.e->base->model);
}

/* Is a unit's state sent home when everything was computed? The embedding is updated last. */
static bool is_sent_last(const struct tdm_estimator *e, uint32_t unit)
{
    return !tdm_is_far(e->base->optimizer.on) && unit == tdm_model_embedding_unit(e->base->model);
}

/* Seconds that its state is sent after that. Slices are sent while later ones are updated; what the
 * update of all slices takes is at most its share of the elements. */
static double seconds_after_all(const struct tdm_relaxation *r, enum tdm_state state, uint32_t unit)
{
    const struct tdm_estimator *e = r->pricing.e;
    const struct tdm_model *model = e->base->model;
    double all = 0, sent = sent_seconds(e, state, unit);
    if (!is_sent_last(e, unit))
        return 0;
    if (state == TDM_STATE_WEIGHTS || tdm_slice_count(e->base, unit) == 1)
        return sent;
    for (uint32_t i = 0; i < model->unit_count; i++)
        all += (double)model->units[i].elements;
    return fmax(sent - e->updates.optimizer_seconds * (double)model->units[unit].elements / all, 0);
}

/* Seconds that its last slice is sent, when everything was computed and fetched. */
static double last_slice_seconds(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    const struct tdm_model *model = e->base->model;
    if (!is_sent_last(e, unit) || state == TDM_STATE_WEIGHTS)
        return 0;
    const double elements = (double)tdm_slice_at(e->base, unit, e->slices[unit] - 1).elements;
    return tdm_relaxation_sent_bytes(e, state, unit) * elements /
           (double)model->units[unit].elements /
           tdm_machine_link_rate(e->base->machine, TDM_LINK_D2H);
}

/* What a unit's state adds to `fetch_backward` and to `both_ways_backward` where it is at home on
 * the host. While the last slice is sent, nothing is fetched, so the link carries less. */
struct in_backward {
    double fetch, both[TDM_BOUNDS_BOTH];
    double updated[TDM_BOUNDS_BOTH]; /* in `both_ways_updated` */
};

static struct in_backward copies_in_backward(const struct tdm_relaxation *r, enum tdm_state state,
                                             uint32_t unit)
{
    const struct tdm_estimator *e = r->pricing.e;
    const bool comes = tdm_relaxation_comes(e, state, unit);
    const struct tdm_pricing *p = &r->pricing;
    const double last = last_slice_seconds(e, state, unit);
    /* in layer-major order the window of `both_ways_backward` begins when the head is done */
    const bool is_there = r->pricing.order == TDM_LAYER_MAJOR && state == TDM_STATE_WEIGHTS &&
                          unit == tdm_model_head_unit(e->base->model);
    const double fetched =
        comes && !is_there ? (double)tdm_estimator_unit_bytes(e, state, unit) : 0;
    /* nothing is sent before the head's first slice is there */
    const double first =
        unit == tdm_model_head_unit(e->base->model) ? tdm_relaxation_first_seconds(r, state) : 0;
    struct in_backward copies = {
        .fetch = (comes ? tdm_relaxation_unit_seconds(e, TDM_LINK_H2D, state, unit) : 0) + last};
    const struct tdm_machine *machine = e->base->machine;
    const double updated = state == TDM_STATE_WEIGHTS ? 0 : fetched;
    for (int i = 0; i < TDM_BOUNDS_BOTH; i++) {
        const double sent =
            tdm_relaxation_sent_bytes(e, state, unit) * p->both_send[i] +
            last * (1 - tdm_machine_link_rate(machine, TDM_LINK_D2H) * p->both_send[i]);
        copies.both[i] =
            fetched * p->both_fetch[i] + sent +
            first * (1 - tdm_machine_link_rate(machine, TDM_LINK_H2D) * p->both_fetch[i]);
        copies.updated[i] = is_updated_late(r, unit) ? updated * p->both_fetch[i] + sent : 0;
    }
    return copies;
}

static enum tdm_status add_rows(struct tdm_relaxation *r,
                                const uint64_t limit_bytes[TDM_MAX_PLACES], struct tdm_error *err)
{
    const struct tdm_estimator *e = r->pricing.e;
    const struct tdm_schedule *base = e->base;
    const bool by_layer = r->pricing.order == TDM_LAYER_MAJOR;
    uint64_t n = e->chunks;
    double device = (double)limit_bytes[TDM_DEVICE] / TDM_MIB -
                    (double)(e->stateless_bytes[TDM_DEVICE] +
                             base->machine->topology.places[TDM_DEVICE].runtime_bytes) /
                        TDM_MIB;
    double far = (double)limit_bytes[e->far] / TDM_MIB -
                 (double)(e->stateless_bytes[e->far] +
                          base->machine->topology.places[e->far].runtime_bytes) /
                     TDM_MIB;
    double embedding = (double)(e->x + e->tied_gradient + e->embedding_gradient) / TDM_MIB;
    double ends[TDM_MAX_PLACES];
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        ends[place] = (double)(e->staying_below[place][e->layers] + e->head_stays[place] +
                               e->embedding_stays[place]) /
                      TDM_MIB;
    bool at_end = tdm_updates_at_end(base);
    /* In the backward's rows: K and V in rows; weights in one slot of the ring, which are needed
     * again; the fixed times of all that runs ahead. `ahead_*` are the rest. */
    const double turn = row_bytes(e) + (double)tdm_estimator_unit_bytes(e, TDM_STATE_WEIGHTS, 0);
    const double copies = 5 * (double)larger(base->prefetch + 1, base->rings.kv * n) +
                          tdm_relaxation_most_slots(base->rings.weights) +
                          3 * tdm_relaxation_most_slots(base->rings.optimizer);
    const double fetched = turn / tdm_machine_link_rate(base->machine, TDM_LINK_H2D) +
                           copies * base->machine->copy_seconds;
    const double all_turn = turn + tdm_relaxation_ring_bytes(e, base->prefetch + 1);
    const double *both = r->pricing.both_fetch;
    /* what waits for its copy to the host: slots, the stream, rows of K and V */
    const uint64_t stashed =
        larger(base->rings.stashed, n < TDM_MOST_STASHED ? n : TDM_MOST_STASHED);
    const double sent =
        (tdm_relaxation_ring_bytes(e, stashed) + (double)n * (double)e->x + row_bytes(e)) /
            tdm_machine_link_rate(base->machine, TDM_LINK_D2H) +
        5 * (double)(stashed + n) * base->machine->copy_seconds;
    /* in layer-major order, nothing is sent in the backward before the head is done */
    const double head = by_layer ? e->head_seconds : 0;
    /* before that, no update is made, and what was fetched for one is in slots */
    const double in_slots = tdm_relaxation_slot_mib(r) * TDM_MIB;
    const double updating = by_layer ? e->head_seconds : seconds_to_update(e);
    const struct tdm_updates updates = tdm_estimator_updates(e, r->base_layers);
    double backward = e->head_seconds + updates.optimizer_seconds +
                      updates.tail_seconds[r->pricing.order] + all_attention_grad(e);
    const bool on_host = tdm_is_far(base->optimizer.on);
    /* where layers are updated on the host, slots cost nothing if none passes; embedding and head
     * may */
    const double unused = r->is_tied ? r->layers * tdm_relaxation_unused_slots(r) : 0;
    const double of_ends = r->is_tied ? tdm_relaxation_ends_slot_mib(r) : 0;
    /* Host memory serves updates and copies. All gradients but those of the head and of the top
     * layer are sent once updates there can begin. */
    const double slowed = gradient_slows(e) * later(r->layers - r->base_layers - 1.0, 0);
    const double *slows = r->pricing.slowed_by_updates;
    const struct {
        const char *name;
        double least, most;
    } rows[ROWS] = {
        [ROW_EMBEDDING] = {"device_embedding", -TDM_UNBOUNDED,
                           tdm_relaxation_updates_in_backward(e) ? device - embedding
                                                                 : TDM_UNBOUNDED},
        [ROW_END] = {"device_end", -TDM_UNBOUNDED,
                     at_end ? device - ends[TDM_DEVICE] : TDM_UNBOUNDED},
        [ROW_FAR_END] = {"host_end", -TDM_UNBOUNDED, at_end ? far - ends[e->far] : TDM_UNBOUNDED},
        [ROW_COMPUTE] = {"compute", backward, TDM_UNBOUNDED},
        [ROW_FETCH_FORWARD] = {"fetch_forward", 0, TDM_UNBOUNDED},
        [ROW_FETCH_BACKWARD] = {"fetch_backward", -fetched, TDM_UNBOUNDED},
        [ROW_SEND_FORWARD] = {"send_forward", -sent, TDM_UNBOUNDED},
        [ROW_SEND_BACKWARD] = {"send_backward", head, TDM_UNBOUNDED},
        [ROW_SEND_UPDATED] = {"send_updated", seconds_to_update(e), TDM_UNBOUNDED},
        [ROW_BOTH] = {"both_ways_fetch", -all_turn * both[0], TDM_UNBOUNDED},
        [ROW_BOTH_LAST] = {"both_ways_send", -all_turn * both[1], TDM_UNBOUNDED},
        [ROW_BOTH_BACKWARD] = {"both_ways_backward_fetch", head - turn * both[0], TDM_UNBOUNDED},
        [ROW_BOTH_BACKWARD_LAST] = {"both_ways_backward_send", head - turn * both[1],
                                    TDM_UNBOUNDED},
        [ROW_SLOWED] = {"both_ways_slowed_fetch",
                        head - turn * both[2] + slows[0] * updates.host_seconds, TDM_UNBOUNDED},
        [ROW_SLOWED_LAST] = {"both_ways_slowed_send",
                             head - turn * both[3] + slows[1] * updates.host_seconds,
                             TDM_UNBOUNDED},
        [ROW_BOTH_UPDATED] = {"both_ways_updated_fetch", updating - in_slots * both[0],
                              TDM_UNBOUNDED},
        [ROW_BOTH_UPDATED_LAST] = {"both_ways_updated_send", updating - in_slots * both[1],
                                   TDM_UNBOUNDED},
        [ROW_AGAIN] = {"refetched", 0, TDM_UNBOUNDED},
        [ROW_SLOTS_FORWARD] = {"slots_forward", -of_ends, TDM_UNBOUNDED},
        [ROW_SLOTS_HEAD] = {"slots_head", -of_ends, TDM_UNBOUNDED},
        [ROW_UNUSED_MASTER] = {"unused_master", -unused, TDM_UNBOUNDED},
        [ROW_UNUSED_MOMENTS] = {"unused_moments", -unused, TDM_UNBOUNDED},
        [ROW_LESS_MASTER] = {"less_master", 0, TDM_UNBOUNDED},
        [ROW_LESS_MOMENTS] = {"less_moments", 0, TDM_UNBOUNDED},
        [ROW_BESIDE + TDM_STATE_WEIGHTS] = {"weights_beside", -(double)r->layers, TDM_UNBOUNDED},
        [ROW_BESIDE + TDM_STATE_MASTER] = {"master_beside", -(double)r->layers, TDM_UNBOUNDED},
        [ROW_BESIDE + TDM_STATE_MOMENTS] = {"moments_beside", -(double)r->layers, TDM_UNBOUNDED},
        [ROW_TAKEN] = {"taken", updating - tdm_relaxation_taken_ahead(r), TDM_UNBOUNDED},
        [ROW_HOST_UPDATES] = {"host_updates",
                              seconds_to_host_update(e) + updates.host_seconds + slowed,
                              TDM_UNBOUNDED},
        [ROW_STALL] = {"stall", -tdm_relaxation_head_update(r), TDM_UNBOUNDED},
    };
    enum tdm_status status = TDM_OK;
    for (uint32_t k = 0; k < r->layers && status == TDM_OK; k++) {
        char name[32];
        snprintf(name, sizeof(name), "node_%u", k);
        status = add_row(r, name, k == 0 ? 1 : 0, k == 0 ? 1 : 0, &r->node[k], err);
    }
    if (status == TDM_OK)
        status = add_place_rows(r, limit_bytes, err);
    for (int k = 0; k < ROWS && status == TDM_OK; k++) {
        /* what limits updates comes in one place: prices of a program with updates elsewhere are a
         * start for this one */
        const int i = on_host && k == ROW_TAKEN          ? ROW_HOST_UPDATES
                      : on_host && k == ROW_HOST_UPDATES ? ROW_TAKEN
                                                         : k;
        const bool is_there = k < ROW_HOST_UPDATES    ? true
                              : k == ROW_HOST_UPDATES ? on_host
                              : k <= ROW_SLOWED_LAST  ? on_host && slows[k - ROW_SLOWED] > 0
                                                      : r->is_tight;
        r->row[i] = -1;
        if (is_there)
            status = add_row(r, rows[i].name, rows[i].least, rows[i].most, &r->row[i], err);
    }
    return status;
}

/* ---- columns ---- */

void tdm_column_put(struct tdm_relaxation *r, int row, double value)
{
    if (row < 0 || !(value > 0 || value < 0))
        return;
    if (r->entry_of[row] == 0) {
        r->entries[r->entry_count] = (struct tdm_entry){row, 0};
        r->entry_of[row] = ++r->entry_count;
    }
    r->entries[r->entry_of[row] - 1].value += value;
}

/* Ends the column. Returns the number of its entries. */
static size_t take_column(struct tdm_relaxation *r)
{
    const size_t count = r->entry_count;
    for (; r->entry_count > 0; r->entry_count--)
        r->entry_of[r->entries[r->entry_count - 1].row] = 0;
    return count;
}

enum tdm_status tdm_column_add(struct tdm_relaxation *r, const char *name, double least,
                               double most, double cost, struct tdm_error *err)
{
    struct tdm_plain_column *plain = &r->plain[r->plain_count++];
    const size_t count = take_column(r);
    *plain = (struct tdm_plain_column){
        .least = least, .most = most, .cost = cost, .first = r->kept_count, .count = count};
    memcpy(r->kept + r->kept_count, r->entries, count * sizeof(*r->entries));
    r->kept_count += count;
    return tdm_solver_column(r->solver, name, least, most, cost, r->entries, count, &plain->number,
                             err);
}

void tdm_relaxation_limit(struct tdm_relaxation *r, uint32_t plain, double least, double most)
{
    if (plain == 0)
        return;
    r->plain[plain].least = least;
    r->plain[plain].most = most;
    tdm_solver_limit(r->solver, r->plain[plain].number, least, most);
}

double tdm_relaxation_value(const struct tdm_relaxation *r, uint32_t plain)
{
    return plain == 0 ? 0 : tdm_solver_column_value(r->solver, r->plain[plain].number);
}

static enum tdm_status add_phases(struct tdm_relaxation *r, struct tdm_error *err)
{
    static const int of_forward[] = {ROW_FETCH_FORWARD, ROW_SEND_FORWARD, ROW_BOTH, ROW_BOTH_LAST};
    static const int of_backward[] = {
        ROW_COMPUTE,      ROW_FETCH_BACKWARD,    ROW_SEND_BACKWARD, ROW_SEND_UPDATED,
        ROW_BOTH,         ROW_BOTH_LAST,         ROW_BOTH_BACKWARD, ROW_BOTH_BACKWARD_LAST,
        ROW_BOTH_UPDATED, ROW_BOTH_UPDATED_LAST, ROW_TAKEN,         ROW_HOST_UPDATES,
        ROW_SLOWED,       ROW_SLOWED_LAST,
    };
    const double cost = r->of_bytes ? 0 : 1;
    for (size_t i = 0; i < sizeof(of_forward) / sizeof(of_forward[0]); i++)
        tdm_column_put(r, r->row[of_forward[i]], 1);
    enum tdm_status status = tdm_column_add(
        r, "forward", forward_seconds(r->pricing.e, r->pricing.order) + r->pricing.e->lead_seconds,
        TDM_UNBOUNDED, cost, err);
    for (size_t i = 0; i < sizeof(of_backward) / sizeof(of_backward[0]); i++)
        tdm_column_put(r, r->row[of_backward[i]], 1);
    return status == TDM_OK ? tdm_column_add(r, "backward", r->least_host, TDM_UNBOUNDED, cost, err)
                            : status;
}

/* Adds columns for memory beyond the limits, at a price per MiB that no schedule pays. If bytes are
 * minimised, the limit is 0 and a MiB costs 1; at the other place it costs this: */
#define PRICE_OF_OTHER 100.0

static enum tdm_status add_excess(struct tdm_relaxation *r, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    double price = r->excess_price = 0.1 * tdm_estimator_forward_seconds(r->pricing.e);
    for (int k = 0; k < TDM_PLANNED_PLACES && status == TDM_OK; k++) {
        enum tdm_place place = tdm_planned_place(r->pricing.e->base, k);
        char name[32];
        if (r->of_bytes)
            price = place == r->least ? 1 : PRICE_OF_OTHER;
        for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++)
            tdm_column_put(r, r->place[place][i], -1);
        tdm_column_put(r, r->row[tdm_is_far(place) ? ROW_FAR_END : ROW_END], -1);
        if (!tdm_is_far(place))
            tdm_column_put(r, r->row[ROW_EMBEDDING], -1);
        snprintf(name, sizeof(name), "excess_%s", place_name(r, place));
        r->plain_excess[place] = r->plain_count;
        status = tdm_column_add(r, name, 0, TDM_UNBOUNDED, price, err);
    }
    return status;
}

bool tdm_relaxation_has_ring(const struct tdm_relaxation *r, enum tdm_state state, uint32_t row)
{
    const struct tdm_estimator *e = r->pricing.e;
    if (state == TDM_STATE_WEIGHTS)
        return true;
    return tdm_relaxation_comes(e, state, 0) && row < r->layers && !tdm_updates_at_end(e->base);
}

/* Does the device have rings for updates after the backward, and buffers for updates of embedding
 * and head? */
static bool has_rings_at_end(const struct tdm_estimator *e)
{
    return !tdm_is_far(e->base->optimizer.on);
}

/* MiB in row `i` for a state of embedding or head at home on the host: its weights while they are
 * used; the ring's slot for its masters and moments in its update. */
static double buffer_mib(const struct tdm_relaxation *r, enum tdm_state state, bool head,
                         uint32_t i)
{
    const struct tdm_estimator *e = r->pricing.e;
    const struct tdm_model *model = e->base->model;
    uint32_t unit = head ? tdm_model_head_unit(model) : tdm_model_embedding_unit(model);
    bool weights = state == TDM_STATE_WEIGHTS;
    bool in_update = head && i == r->layers + TDM_AT_UPDATE && has_rings_at_end(e);
    bool in_use = weights && (head ? i == r->layers + TDM_AT_HEAD
                                   : i == 0 && r->pricing.order == TDM_LAYER_MAJOR);
    if (!in_update && !in_use)
        return 0;
    return (double)(weights ? tdm_estimator_unit_bytes(e, state, unit)
                            : tdm_estimator_slice_bytes(e, state, unit)) /
           TDM_MIB;
}

/* The same in the row of the embedding's update. */
static double buffer_mib_at_embedding(const struct tdm_relaxation *r, enum tdm_state state,
                                      bool head)
{
    const struct tdm_estimator *e = r->pricing.e;
    uint32_t unit = tdm_model_embedding_unit(e->base->model);
    if (head || !has_rings_at_end(e))
        return 0;
    return (double)(state == TDM_STATE_WEIGHTS ? tdm_estimator_unit_bytes(e, state, unit)
                                               : tdm_estimator_slice_bytes(e, state, unit)) /
           TDM_MIB;
}

static double unit_mib(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    return (double)tdm_estimator_unit_bytes(e, state, unit) / TDM_MIB;
}

/* Puts MiB of a state: on the device, where its ring for layers is not counted and where it is, and
 * on the host. */
static void put_bytes(struct tdm_relaxation *r, enum tdm_state state, double device_mib,
                      double ring_mib, double far_mib)
{
    const struct tdm_estimator *e = r->pricing.e;
    for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++) {
        tdm_column_put(r, r->place[TDM_DEVICE][i],
                       tdm_relaxation_has_ring(r, state, i) ? ring_mib : device_mib);
        tdm_column_put(r, r->place[e->far][i], far_mib);
    }
    tdm_column_put(r, r->row[ROW_EMBEDDING], state == TDM_STATE_WEIGHTS ? ring_mib : device_mib);
    tdm_column_put(r, r->row[ROW_END], has_rings_at_end(e) ? ring_mib : device_mib);
    tdm_column_put(r, r->row[ROW_FAR_END], far_mib);
}

/* Puts the copies of a unit's state at home on the host, `times` times. */
static void put_copies(struct tdm_relaxation *r, enum tdm_state state, uint32_t unit, double times)
{
    const struct tdm_estimator *e = r->pricing.e;
    const double bytes = (double)tdm_estimator_unit_bytes(e, state, unit);
    const double sent = sent_seconds(e, state, unit);
    const bool in_forward =
        state == TDM_STATE_WEIGHTS && unit != tdm_model_head_unit(e->base->model);
    const double fetches = (in_forward ? 1 : 0) + (tdm_relaxation_comes(e, state, unit) ? 1 : 0);
    const struct in_backward backward = copies_in_backward(r, state, unit);
    if (in_forward)
        tdm_column_put(r, r->row[ROW_FETCH_FORWARD],
                       -times * tdm_relaxation_unit_seconds(e, TDM_LINK_H2D, state, unit));
    tdm_column_put(r, r->row[ROW_FETCH_BACKWARD], -times * backward.fetch);
    tdm_column_put(r, r->row[ROW_SEND_BACKWARD], -times * sent);
    tdm_column_put(r, r->row[ROW_SEND_UPDATED], is_updated_late(r, unit) ? -times * sent : 0);
    tdm_column_put(r, r->row[ROW_COMPUTE], -times * seconds_after_all(r, state, unit));
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++) {
        const double both = fetches * bytes * r->pricing.both_fetch[bound] +
                            tdm_relaxation_sent_bytes(e, state, unit) * r->pricing.both_send[bound];
        tdm_column_put(r, tdm_both_row(r, bound), -times * both);
        tdm_column_put(r, tdm_both_backward_row(r, bound), -times * backward.both[bound]);
        tdm_column_put(r, tdm_both_updated_row(r, bound), -times * backward.updated[bound]);
    }
}

/* Puts what it changes if a unit's state is at home on the device instead. `ring`: the part of a
 * slot of its ring that is not there then. */
static void put_near(struct tdm_relaxation *r, enum tdm_state state, uint32_t unit, double ring)
{
    const double mib = unit_mib(r->pricing.e, state, unit);
    put_bytes(r, state, mib, mib * (1 - ring), -mib);
    put_copies(r, state, unit, -1);
    tdm_column_put(r, r->row[ROW_TAKEN], tdm_relaxation_taken_less(r, state, unit));
}

/* Puts the buffers of embedding or head, and the wait for its state, `times` times. */
static void put_buffers(struct tdm_relaxation *r, enum tdm_state state, bool head, double times)
{
    for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++)
        tdm_column_put(r, r->place[TDM_DEVICE][i], times * buffer_mib(r, state, head, i));
    tdm_column_put(r, r->row[ROW_EMBEDDING], times * buffer_mib_at_embedding(r, state, head));
    if (head)
        tdm_column_put(r, r->row[ROW_STALL], -times * tdm_relaxation_stall_seconds(r, state));
}

/* Adds the column of layers at home on the device beside which there is a ring. Where some layers
 * pass it, it is there as a whole, and the column of layers is counted with a part of it. */
static enum tdm_status add_beside(struct tdm_relaxation *r, enum tdm_state state,
                                  struct tdm_error *err)
{
    char name[48];
    put_bytes(r, state, 0, LEAST_SLOTS * unit_mib(r->pricing.e, state, 0) / r->layers, 0);
    tdm_column_put(r, r->row[ROW_BESIDE + (int)state], 1);
    snprintf(name, sizeof(name), "%s_beside_ring", tdm_state_name(state));
    return tdm_column_add(r, name, 0, TDM_UNBOUNDED, 0, err);
}

/* Puts a layer's state at home on the device. Rows already count all layers as if none were. */
static void put_home(struct tdm_relaxation *r, enum tdm_state state, double ring)
{
    put_near(r, state, 0, ring);
    if (state == TDM_STATE_WEIGHTS)
        tdm_column_put(r, r->row[ROW_AGAIN], 1);
    else
        tdm_column_put(r,
                       r->row[state == TDM_STATE_MASTER ? ROW_UNUSED_MASTER : ROW_UNUSED_MOMENTS],
                       tdm_relaxation_unused_slots(r));
    r->plain_home[state] = r->plain_count;
}

/* Adds the column of layers at home on the device. */
static enum tdm_status add_home(struct tdm_relaxation *r, enum tdm_state state, bool fixed,
                                struct tdm_error *err)
{
    const double layers = r->layers, base = r->pricing.e->base->homes[state].device_layers;
    put_home(r, state, LEAST_SLOTS / layers);
    tdm_column_put(r, r->row[ROW_BESIDE + (int)state], -1);
    r->is_free[state] = !fixed;
    return tdm_column_add(r, tdm_state_name(state), fixed ? base : 0, fixed ? base : layers, 0,
                          err);
}

/* Puts what it changes if a layer is updated on the device, beside others on the host. */
static void put_not_on_host(struct tdm_relaxation *r)
{
    tdm_column_put(r, r->row[ROW_HOST_UPDATES], r->tied_host + gradient_slows(r->pricing.e));
    for (int i = 0; i < 2; i++)
        tdm_column_put(r, r->row[ROW_SLOWED + i], r->pricing.slowed_by_updates[i] * r->tied_host);
    tdm_column_put(r, r->row[ROW_COMPUTE], -r->tied_compute);
}

/* Adds the column of layers with all their state at home on the device, where they are then
 * updated, beside others that are updated on the host. At least one is: the ring of weights is
 * there as a whole. */
static enum tdm_status add_tied(struct tdm_relaxation *r, struct tdm_error *err)
{
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        put_home(r, (enum tdm_state)state, 0);
    put_not_on_host(r);
    r->plain_tied = r->plain_count;
    return tdm_column_add(r, "tied", 0, r->most_tied, 0, err);
}

/* Puts the copies of a layer's masters or moments in both directions where layers at home on the
 * host are updated there, `times` times. */
static void put_passing(struct tdm_relaxation *r, enum tdm_state state, double times)
{
    const struct tdm_estimator *e = r->pricing.e;
    const double bytes = (double)tdm_estimator_unit_bytes(e, state, 0);
    const double fetch = tdm_relaxation_unit_seconds(e, TDM_LINK_H2D, state, 0);
    const double send = tdm_relaxation_unit_seconds(e, TDM_LINK_D2H, state, 0);
    tdm_column_put(r, r->row[ROW_HOST_UPDATES], -times * 2 * bytes * tdm_relaxation_byte_slows(e));
    tdm_column_put(r, r->row[ROW_FETCH_BACKWARD], -times * fetch);
    tdm_column_put(r, r->row[ROW_SEND_BACKWARD], -times * send);
    tdm_column_put(r, r->row[ROW_SEND_UPDATED], -times * send);
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++) {
        const double both =
            times * bytes * (r->pricing.both_fetch[bound] + r->pricing.both_send[bound]);
        tdm_column_put(r, tdm_both_row(r, bound), -both);
        tdm_column_put(r, tdm_both_backward_row(r, bound), -both);
        tdm_column_put(r, tdm_both_updated_row(r, bound), -both);
    }
}

/* Adds the column of layers with their weights at home on the device, where they are then updated,
 * and masters and moments on the host, from where these pass. */
static enum tdm_status add_passing(struct tdm_relaxation *r, struct tdm_error *err)
{
    put_near(r, TDM_STATE_WEIGHTS, 0, 0);
    tdm_column_put(r, r->row[ROW_AGAIN], 1);
    for (int state = TDM_STATE_MASTER; state <= TDM_STATE_MOMENTS; state++)
        put_passing(r, (enum tdm_state)state, 1);
    tdm_column_put(r, r->row[ROW_TAKEN], -tdm_relaxation_taken_passing(r));
    put_not_on_host(r);
    r->plain_passing = r->plain_count;
    return tdm_column_add(r, "passing", 0, r->most_passing, 0, err);
}

void tdm_relaxation_set_way(struct tdm_relaxation *r, bool passing, uint32_t most)
{
    const bool any = passing || tdm_relaxation_ends_slot_mib(r) > 0;
    if (!r->is_tied)
        return;
    tdm_relaxation_limit(r, r->plain_slots, 0, any ? tdm_relaxation_more_slots(r) : 0);
    tdm_relaxation_limit(r, r->plain_tied, 0, passing ? 0 : most);
    tdm_relaxation_limit(r, r->plain_passing, passing ? 1 : 0, passing ? most : 0);
    tdm_relaxation_limit(r, r->plain_ring, passing ? 1 : 0, passing ? 1 : 0);
}

/* Adds the column of embedding or head at home on the device. */
static enum tdm_status add_share(struct tdm_relaxation *r, enum tdm_state state, bool head,
                                 bool fixed, struct tdm_error *err)
{
    const struct tdm_schedule *base = r->pricing.e->base;
    char name[48];
    put_near(r, state,
             head ? tdm_model_head_unit(base->model) : tdm_model_embedding_unit(base->model), 0);
    put_buffers(r, state, head, -1);
    snprintf(name, sizeof(name), "%s_%s", tdm_state_name(state), head ? "head" : "embedding");
    bool near = !tdm_is_far(head ? base->homes[state].head : base->homes[state].embedding);
    double least = fixed && near ? 1 : 0, most = fixed && !near ? 0 : 1;
    (head ? r->plain_head : r->plain_embedding)[state] = r->plain_count;
    return tdm_column_add(r, name, least, most, 0, err);
}

/* Adds the column of all states when none is at home on the device; it is always 1. */
static enum tdm_status add_all_far(struct tdm_relaxation *r, struct tdm_error *err)
{
    const struct tdm_estimator *e = r->pricing.e;
    const uint32_t units[] = {tdm_model_embedding_unit(e->base->model),
                              tdm_model_head_unit(e->base->model)};
    for (int s = 0; s <= TDM_STATE_MOMENTS; s++) {
        const enum tdm_state state = (enum tdm_state)s;
        const double mib = unit_mib(e, state, 0);
        put_bytes(r, state, 0, LEAST_SLOTS * mib, r->layers * mib);
        for (uint32_t layer = 0; layer < r->layers; layer++)
            put_copies(r, state, 0, 1);
        for (int head = 0; head < 2; head++) {
            put_bytes(r, state, 0, 0, unit_mib(e, state, units[head]));
            put_copies(r, state, units[head], 1);
            put_buffers(r, state, head, 1);
        }
        if (!r->is_tied && s != TDM_STATE_WEIGHTS && layers_update_on_host(e) &&
            tdm_estimator_passing_layers(e, state) > 0) {
            put_passing(r, state, tdm_estimator_passing_layers(e, state));
            tdm_column_put(r, r->row[ROW_HOST_UPDATES], tdm_relaxation_slot_slows(r));
        }
    }
    tdm_column_put(r, r->row[ROW_TAKEN], -tdm_relaxation_taken(r));
    return tdm_column_add(r, "states", 1, 1, 0, err);
}

/* Adds the column of layers whose weights are fetched again for a rerun. */
static enum tdm_status add_refetched(struct tdm_relaxation *r, struct tdm_error *err)
{
    const struct tdm_estimator *e = r->pricing.e;
    tdm_column_put(r, r->row[ROW_AGAIN], 1);
    tdm_column_put(r, r->row[ROW_FETCH_BACKWARD],
                   -tdm_relaxation_unit_seconds(e, TDM_LINK_H2D, TDM_STATE_WEIGHTS, 0));
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++) {
        const double seconds = (double)tdm_estimator_unit_bytes(e, TDM_STATE_WEIGHTS, 0) *
                               r->pricing.both_fetch[bound];
        tdm_column_put(r, tdm_both_row(r, bound), -seconds);
        tdm_column_put(r, tdm_both_backward_row(r, bound), -seconds);
    }
    return tdm_column_add(r, "refetched", 0, TDM_UNBOUNDED, 0, err);
}

static enum tdm_status add_columns(struct tdm_relaxation *r, const bool fixed_homes[TDM_STATES],
                                   struct tdm_error *err)
{
    enum tdm_status status = add_phases(r, err);
    if (status == TDM_OK)
        status = add_excess(r, err);
    if (status == TDM_OK)
        status = add_all_far(r, err);
    if (status == TDM_OK)
        status = add_refetched(r, err);
    if (status == TDM_OK)
        status = tdm_relaxation_lay_ahead(r, err);
    for (int state = 0; state <= TDM_STATE_MOMENTS && status == TDM_OK; state++) {
        const bool fixed = fixed_homes[state] || r->is_tied;
        if (!r->is_tied)
            status = add_home(r, (enum tdm_state)state, fixed, err);
        if (status == TDM_OK && r->is_tight && !r->is_tied)
            status = add_beside(r, (enum tdm_state)state, err);
        for (int head = 0; head < 2 && status == TDM_OK; head++)
            status = add_share(r, (enum tdm_state)state, head, fixed, err);
    }
    if (status == TDM_OK && r->is_tied)
        status = add_tied(r, err);
    if (status == TDM_OK && r->is_tied)
        status = add_passing(r, err);
    if (status == TDM_OK && r->is_tied)
        status = tdm_relaxation_lay_ring(r, err);
    return status;
}

enum tdm_status tdm_relaxation_lay(struct tdm_relaxation *r,
                                   const uint64_t limit_bytes[TDM_MAX_PLACES],
                                   const bool fixed_homes[TDM_STATES], struct tdm_error *err)
{
    const struct tdm_schedule *base = r->pricing.e->base;
    r->is_tied = tdm_is_far(base->optimizer.on) && !fixed_homes[TDM_STATE_WEIGHTS];
    r->base_layers = r->is_tied ? 0 : base->homes[TDM_STATE_WEIGHTS].device_layers;
    find_fixed(r);
    find_tied(r, fixed_homes, limit_bytes[TDM_DEVICE]);
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        r->pricing.fixed[place] = r->fixed[place];
    enum tdm_status status = add_rows(r, limit_bytes, err);
    return status == TDM_OK ? add_columns(r, fixed_homes, err) : status;
}

enum tdm_status tdm_relaxation_put_arc(struct tdm_relaxation *r, uint32_t a, uint32_t b,
                                       struct tdm_error *err)
{
    char name[48];
    if (r->arc_count == r->arc_capacity) {
        const uint32_t capacity = 2 * r->arc_capacity + 256;
        struct tdm_arc_column *arcs = realloc(r->arcs, capacity * sizeof(*arcs));
        if (arcs == NULL)
            return no_memory(err);
        r->arcs = arcs;
        r->arc_capacity = capacity;
    }
    tdm_column_put(r, r->node[a], 1);
    tdm_column_put(r, b + 1 < r->layers ? r->node[b + 1] : -1, -1);
    for (int k = 0; k < TDM_PLANNED_PLACES; k++) {
        enum tdm_place place = tdm_planned_place(r->pricing.e->base, k);
        for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++)
            tdm_column_put(r, r->place[place][i], r->use.place[place][i]);
    }
    tdm_column_put(r, r->row[ROW_COMPUTE], -r->use.compute);
    tdm_column_put(r, r->row[ROW_FETCH_FORWARD], -r->use.fetch[TDM_IN_FORWARD]);
    tdm_column_put(r, r->row[ROW_FETCH_BACKWARD], -r->use.fetch[TDM_IN_BACKWARD]);
    tdm_column_put(r, r->row[ROW_SEND_FORWARD], -r->use.send[TDM_IN_FORWARD]);
    tdm_column_put(r, r->row[ROW_SEND_BACKWARD], -r->use.send[TDM_IN_BACKWARD]);
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++) {
        const double backward = r->use.both[TDM_IN_BACKWARD][bound];
        tdm_column_put(r, tdm_both_row(r, bound), -r->use.both[TDM_IN_FORWARD][bound] - backward);
        tdm_column_put(r, tdm_both_backward_row(r, bound), -backward);
    }
    tdm_column_put(r, r->row[ROW_AGAIN], -r->use.again);
    struct tdm_arc_column *arc = &r->arcs[r->arc_count];
    memcpy(arc->far, r->use.far, sizeof(arc->far));
    snprintf(name, sizeof(name), "arc_%u_%u_%u", a, b, r->arc_count);
    enum tdm_status status = tdm_solver_column(r->solver, name, 0, TDM_UNBOUNDED, 0, r->entries,
                                               take_column(r), &arc->number, err);
    r->arc_count += status == TDM_OK;
    return status;
}
