/* SPDX-License-Identifier: Apache-2.0 */
/* The relaxation's columns of what is on the device before it is used: copies that run ahead, the
 * slots of rings that they need, and how long the head's update waits for what they leave. */
#include "planner/relaxation_parts.h"

#include "schedule/layout.h"

/* May layers' masters or moments pass through their ring? */
static bool layers_pass(const struct tdm_relaxation *r, enum tdm_state state)
{
    const struct tdm_estimator *e = r->pricing.e;
    return tdm_relaxation_comes(e, state, 0) ||
           (r->is_tied ? r->most_passing : tdm_estimator_passing_layers(e, state)) > 0;
}

/* The same of embedding or head, whose homes are fixed where updates are on the host. */
static bool ends_pass(const struct tdm_relaxation *r, enum tdm_state state, uint32_t unit)
{
    const struct tdm_schedule *base = r->pricing.e->base;
    return tdm_relaxation_comes(r->pricing.e, state, unit) &&
           (!tdm_is_far(base->optimizer.on) || tdm_is_far(tdm_schedule_home(base, state, unit)));
}

/* MiB that one slot of the ring of a state has at most; without layers: for embedding and head
 * alone. */
static double slot_mib_of(const struct tdm_relaxation *r, enum tdm_state state, bool layers)
{
    const struct tdm_estimator *e = r->pricing.e;
    uint64_t most = 0;
    for (uint32_t unit = layers ? 0 : e->layers; unit < e->base->model->unit_count; unit++)
        if (unit < e->layers ? layers_pass(r, state) : ends_pass(r, state, unit))
            most = larger(most, tdm_estimator_slice_bytes(e, state, unit));
    return (double)most / TDM_MIB;
}

double tdm_relaxation_slot_mib(const struct tdm_relaxation *r)
{
    return slot_mib_of(r, TDM_STATE_MASTER, true) + slot_mib_of(r, TDM_STATE_MOMENTS, true);
}

double tdm_relaxation_slot_slows(const struct tdm_relaxation *r)
{
    return tdm_relaxation_slot_mib(r) * TDM_MIB * tdm_relaxation_byte_slows(r->pricing.e);
}

double tdm_relaxation_ends_slot_mib(const struct tdm_relaxation *r)
{
    return slot_mib_of(r, TDM_STATE_MASTER, false) + slot_mib_of(r, TDM_STATE_MOMENTS, false);
}

/* ---- the head's update ---- */

static uint32_t head_unit(const struct tdm_estimator *e)
{
    return tdm_model_head_unit(e->base->model);
}

/* Are masters and moments fetched for updates during the backward? */
static bool state_comes(const struct tdm_estimator *e, enum tdm_state state)
{
    return state != TDM_STATE_WEIGHTS && tdm_relaxation_comes(e, state, 0) &&
           tdm_relaxation_updates_in_backward(e) && !tdm_is_far(e->base->optimizer.on);
}

static double head_slice_mib(const struct tdm_estimator *e, enum tdm_state state)
{
    return state_comes(e, state)
               ? (double)tdm_estimator_slice_bytes(e, state, head_unit(e)) / TDM_MIB
               : 0;
}

static double h2d_seconds(const struct tdm_estimator *e, double mib)
{
    return mib * TDM_MIB / tdm_machine_link_rate(e->base->machine, TDM_LINK_H2D);
}

double tdm_relaxation_first_seconds(const struct tdm_relaxation *r, enum tdm_state state)
{
    const struct tdm_estimator *e = r->pricing.e;
    return r->pricing.order == TDM_LAYER_MAJOR ? h2d_seconds(e, head_slice_mib(e, state)) : 0;
}

/* In chunk-major order the first slot may be filled before the update, and its memory is counted
 * anyway. A head of one slice has only that. */
double tdm_relaxation_stall_seconds(const struct tdm_relaxation *r, enum tdm_state state)
{
    const struct tdm_estimator *e = r->pricing.e;
    if (!state_comes(e, state) || e->slices[head_unit(e)] == 1)
        return 0;
    const double all = tdm_relaxation_unit_seconds(e, TDM_LINK_H2D, state, head_unit(e));
    return r->pricing.order == TDM_LAYER_MAJOR ? all
                                               : all - h2d_seconds(e, head_slice_mib(e, state));
}

double tdm_relaxation_head_update(const struct tdm_relaxation *r)
{
    const struct tdm_estimator *e = r->pricing.e;
    const struct tdm_model *model = e->base->model;
    double all = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        all += (double)model->units[unit].elements;
    return e->updates.optimizer_seconds * (double)model->units[head_unit(e)].elements / all +
           (e->slices[head_unit(e)] + 1.0) * e->base->machine->launch_seconds;
}

/* ---- slots ---- */

double tdm_relaxation_more_slots(const struct tdm_relaxation *r)
{
    return tdm_relaxation_most_slots(r->pricing.e->base->rings.optimizer) - 1;
}

/* MiB of a slot that is there while layers go backward, if layers' state passes through its ring.
 */
static double layer_slot_mib(const struct tdm_relaxation *r, enum tdm_state state)
{
    const struct tdm_estimator *e = r->pricing.e;
    return layers_pass(r, state) ? (double)tdm_estimator_unit_bytes(e, state, 0) / TDM_MIB : 0;
}

static void put_in_layers(struct tdm_relaxation *r, double mib)
{
    for (uint32_t i = 0; i < r->layers && tdm_relaxation_updates_in_backward(r->pricing.e); i++)
        tdm_column_put(r, r->place[TDM_DEVICE][i], mib);
}

/* Seconds that a slot of moments is taken by the copies of a unit: from the beginning of a fetch to
 * the end of the send, on average over both moments. `fetch` is the part before the update. */
struct taken {
    double fetch, all;
};

static struct taken taken_seconds(const struct tdm_estimator *e, double bytes)
{
    const struct tdm_machine *machine = e->base->machine;
    const double first = (double)tdm_content_bytes(e->base, TDM_UNIT_MOMENT1, 0, 0),
                 second = (double)tdm_content_bytes(e->base, TDM_UNIT_MOMENT2, 0, 0);
    struct taken taken = {0, 0};
    if (!(first > 0))
        return taken;
    const double share = first / (first + second);
    const double fetched = second > 0 ? 1 - share / 2 : 1, sent = second > 0 ? (1 + share) / 2 : 1;
    taken.fetch = fetched * bytes / tdm_machine_link_rate(machine, TDM_LINK_H2D);
    taken.all = taken.fetch + sent * bytes / tdm_machine_link_rate(machine, TDM_LINK_D2H);
    return taken;
}

static double d2h_seconds(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    return tdm_relaxation_sent_bytes(e, state, unit) /
           tdm_machine_link_rate(e->base->machine, TDM_LINK_D2H);
}

/* What a unit adds to that with its moments at home on the host, and with these and another state:
 * weights of a layer are sent before its moments, masters too; but where others are updated on the
 * host, masters are fetched after them. */
static double taken_by(const struct tdm_relaxation *r, enum tdm_state state, uint32_t unit)
{
    const struct tdm_estimator *e = r->pricing.e;
    if (!state_comes(e, TDM_STATE_MOMENTS))
        return 0;
    if (state == TDM_STATE_MOMENTS)
        return taken_seconds(e, tdm_relaxation_sent_bytes(e, state, unit)).all;
    if (state == TDM_STATE_MASTER && tdm_is_far(e->base->optimizer.on))
        return h2d_seconds(e, tdm_relaxation_sent_bytes(e, state, unit) / TDM_MIB);
    return state == TDM_STATE_WEIGHTS && unit >= r->layers ? 0 : d2h_seconds(e, state, unit);
}

double tdm_relaxation_taken_less(const struct tdm_relaxation *r, enum tdm_state state,
                                 uint32_t unit)
{
    double less = taken_by(r, state, unit);
    for (int other = 0; other < TDM_STATE_MOMENTS && state == TDM_STATE_MOMENTS; other++)
        less += taken_by(r, (enum tdm_state)other, unit);
    return less;
}

double tdm_relaxation_taken(const struct tdm_relaxation *r)
{
    const uint32_t units[] = {0, head_unit(r->pricing.e),
                              tdm_model_embedding_unit(r->pricing.e->base->model)};
    double all = 0;
    for (int k = 0; k < 3; k++)
        all += (k == 0 ? r->layers : 1) * tdm_relaxation_taken_less(r, TDM_STATE_MOMENTS, units[k]);
    return all;
}

double tdm_relaxation_taken_passing(const struct tdm_relaxation *r)
{
    const struct tdm_estimator *e = r->pricing.e;
    const double moments = (double)tdm_estimator_unit_bytes(e, TDM_STATE_MOMENTS, 0),
                 masters = (double)tdm_estimator_unit_bytes(e, TDM_STATE_MASTER, 0);
    return !tdm_relaxation_updates_in_backward(e)
               ? 0
               : taken_seconds(e, moments).all +
                     masters / tdm_machine_link_rate(e->base->machine, TDM_LINK_H2D);
}

double tdm_relaxation_taken_ahead(const struct tdm_relaxation *r)
{
    const struct tdm_estimator *e = r->pricing.e;
    return taken_seconds(e, slot_mib_of(r, TDM_STATE_MOMENTS, true) * TDM_MIB).fetch +
           (tdm_is_far(e->base->optimizer.on)
                ? h2d_seconds(e, slot_mib_of(r, TDM_STATE_MASTER, true))
                : 0);
}

double tdm_relaxation_unused_slots(const struct tdm_relaxation *r)
{
    return tdm_relaxation_more_slots(r) / r->layers;
}

/* Adds the columns of slots beyond the first, and of those of a state that no layer passes: they
 * are not there while layers go backward. */
static enum tdm_status add_slots(struct tdm_relaxation *r, struct tdm_error *err)
{
    static const struct {
        enum tdm_state state;
        const char *name;
        int unused, less;
    } unused[] = {
        {TDM_STATE_MASTER, "slots_no_master", ROW_UNUSED_MASTER, ROW_LESS_MASTER},
        {TDM_STATE_MOMENTS, "slots_no_moments", ROW_UNUSED_MOMENTS, ROW_LESS_MOMENTS},
    };
    const struct tdm_estimator *e = r->pricing.e;
    const double slice = head_slice_mib(e, TDM_STATE_MASTER) + head_slice_mib(e, TDM_STATE_MOMENTS);
    put_in_layers(r, layer_slot_mib(r, TDM_STATE_MASTER) + layer_slot_mib(r, TDM_STATE_MOMENTS));
    tdm_column_put(r, r->row[ROW_SLOTS_FORWARD], tdm_relaxation_slot_mib(r));
    tdm_column_put(r, r->row[ROW_SLOTS_HEAD], tdm_relaxation_slot_mib(r));
    tdm_column_put(r, r->row[ROW_TAKEN],
                   (tdm_relaxation_taken(r) + r->most_passing * tdm_relaxation_taken_passing(r)) /
                       2);
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++)
        tdm_column_put(r, tdm_both_updated_row(r, bound),
                       tdm_relaxation_slot_mib(r) * TDM_MIB * r->pricing.both_fetch[bound]);
    if (r->pricing.order == TDM_CHUNK_MAJOR)
        tdm_column_put(r, r->row[ROW_STALL], h2d_seconds(e, slice));
    for (int k = 0; k < 2; k++)
        tdm_column_put(r, r->row[unused[k].less], 1);
    r->plain_slots = r->plain_count;
    tdm_column_put(r, r->row[ROW_HOST_UPDATES], tdm_relaxation_slot_slows(r));
    enum tdm_status status = tdm_column_add(r, "slots", 0, tdm_relaxation_more_slots(r), 0, err);
    for (int k = 0; k < 2 && status == TDM_OK; k++) {
        put_in_layers(r, -layer_slot_mib(r, unused[k].state));
        tdm_column_put(r, r->row[unused[k].unused], -1);
        tdm_column_put(r, r->row[unused[k].less], -1);
        r->plain_less[unused[k].state] = r->plain_count;
        status = tdm_column_add(r, unused[k].name, 0, tdm_relaxation_more_slots(r), 0, err);
    }
    return status;
}

enum tdm_status tdm_relaxation_lay_ring(struct tdm_relaxation *r, struct tdm_error *err)
{
    put_in_layers(r, layer_slot_mib(r, TDM_STATE_MASTER) + layer_slot_mib(r, TDM_STATE_MOMENTS));
    tdm_column_put(r, r->row[ROW_UNUSED_MASTER], -tdm_relaxation_more_slots(r));
    tdm_column_put(r, r->row[ROW_UNUSED_MOMENTS], -tdm_relaxation_more_slots(r));
    tdm_column_put(r, r->row[ROW_SLOTS_FORWARD], tdm_relaxation_slot_mib(r));
    tdm_column_put(r, r->row[ROW_SLOTS_HEAD], tdm_relaxation_slot_mib(r));
    tdm_column_put(r, r->row[ROW_HOST_UPDATES], tdm_relaxation_slot_slows(r));
    r->plain_ring = r->plain_count;
    return tdm_column_add(r, "ring", 0, 1, 0, err);
}

static enum tdm_status add_stall(struct tdm_relaxation *r, struct tdm_error *err)
{
    tdm_column_put(r, r->row[ROW_STALL], 1);
    tdm_column_put(r, r->row[ROW_COMPUTE], -1);
    return tdm_column_add(r, "stall", 0, TDM_UNBOUNDED, 0, err);
}

/* ---- what runs ahead ---- */

/* Columns of MiB that are on the device before they are used, `ahead_*` at the end of the forward,
 * `there_*` at the end of the head: weights of the head; inputs and sets of the first bodies;
 * contents of the first slot of the rings of masters and moments, which the rows of the backward
 * count already, and of more slots. */
struct ahead {
    const char *name;
    double most;
    bool at_forward, at_head;
    int slots; /* row of the slots that it needs, or -1 */
    /* seconds per byte less in `fetch_backward` and in `both_ways_backward` */
    double fetch;
    const double *both; /* or NULL */
    bool of_head;       /* counts in `stall` */
};

static enum tdm_status add_ahead(struct tdm_relaxation *r, const struct ahead *ahead,
                                 struct tdm_error *err)
{
    const struct tdm_estimator *e = r->pricing.e;
    tdm_column_put(r, r->place[TDM_DEVICE][r->layers + TDM_AT_FORWARD], ahead->at_forward);
    tdm_column_put(r, r->place[TDM_DEVICE][r->layers + TDM_AT_HEAD], ahead->at_head);
    if (ahead->slots >= 0)
        tdm_column_put(r, r->row[ahead->slots], -1);
    tdm_column_put(r, r->row[ROW_FETCH_BACKWARD], TDM_MIB * ahead->fetch);
    for (int bound = 0; bound < TDM_BOUNDS_BOTH && ahead->both != NULL; bound++)
        tdm_column_put(r, tdm_both_backward_row(r, bound), TDM_MIB * ahead->both[bound]);
    if (ahead->of_head)
        tdm_column_put(r, r->row[ROW_STALL], h2d_seconds(e, 1));
    return tdm_column_add(r, ahead->name, 0, ahead->most, 0, err);
}

static enum tdm_status add_all_ahead(struct tdm_relaxation *r, struct tdm_error *err)
{
    const struct tdm_estimator *e = r->pricing.e;
    const bool by_layer = r->pricing.order == TDM_LAYER_MAJOR;
    const double head =
        (double)tdm_estimator_unit_bytes(e, TDM_STATE_WEIGHTS, head_unit(e)) / TDM_MIB;
    const double bodies = tdm_relaxation_ring_bytes(e, e->base->prefetch + 1) / TDM_MIB;
    const double slot = tdm_relaxation_slot_mib(r), slots = tdm_relaxation_more_slots(r) * slot;
    const double slice = head_slice_mib(e, TDM_STATE_MASTER) + head_slice_mib(e, TDM_STATE_MOMENTS);
    const double fetch = 1 / tdm_machine_link_rate(e->base->machine, TDM_LINK_H2D);
    const double alone[TDM_BOUNDS_BOTH] = {fetch, fetch, fetch, fetch};
    const double *both = r->pricing.both_fetch, *by_chunk = by_layer ? NULL : both;
    /* elsewhere the first slot is there; `states` counts it */
    const int first[] = {r->is_tied ? ROW_SLOTS_FORWARD : -1, r->is_tied ? ROW_SLOTS_HEAD : -1};
    const struct ahead ahead[] = {
        {"ahead_head", head, true, false, -1, fetch, by_chunk, false},
        {"ahead_bodies", bodies, true, false, -1, fetch, by_chunk, false},
        {"ahead_slot", slot, true, false, first[0], fetch, by_chunk, false},
        {"ahead_slots", slots, true, false, ROW_SLOTS_FORWARD, fetch, by_chunk, false},
        /* in layer-major order alone; while the first slice is fetched nothing is sent */
        {"there_bodies", bodies, false, true, -1, 0, both, false},
        {"there_slice", slice, false, true, -1, 0, alone, true},
        {"there_slot", slot - slice, false, true, first[1], 0, both, true},
        {"there_slots", slots, false, true, ROW_SLOTS_HEAD, 0, both, true},
    };
    enum tdm_status status = TDM_OK;
    for (size_t k = 0; k < sizeof(ahead) / sizeof(ahead[0]) && status == TDM_OK; k++)
        if (ahead[k].at_forward || by_layer)
            status = add_ahead(r, &ahead[k], err);
    return status;
}

/* Adds the column of MiB of layers' weights that stay in the ring from the forward, in slots beyond
 * the first. */
static enum tdm_status add_ahead_weights(struct tdm_relaxation *r, struct tdm_error *err)
{
    const struct tdm_estimator *e = r->pricing.e;
    const double slot = (double)tdm_estimator_unit_bytes(e, TDM_STATE_WEIGHTS, 0) / TDM_MIB;
    for (uint32_t i = 0; i < r->layers + TDM_MORE_ROWS; i++)
        tdm_column_put(r, r->place[TDM_DEVICE][i], 1);
    tdm_column_put(r, r->row[ROW_FETCH_BACKWARD],
                   TDM_MIB / tdm_machine_link_rate(e->base->machine, TDM_LINK_H2D));
    for (int bound = 0; bound < TDM_BOUNDS_BOTH; bound++) {
        const double seconds = TDM_MIB * r->pricing.both_fetch[bound];
        tdm_column_put(r, tdm_both_row(r, bound), seconds);
        tdm_column_put(r, tdm_both_backward_row(r, bound), seconds);
    }
    return tdm_column_add(r, "ahead_weights", 0,
                          (tdm_relaxation_most_slots(e->base->rings.weights) - 1) * slot, 0, err);
}

enum tdm_status tdm_relaxation_lay_ahead(struct tdm_relaxation *r, struct tdm_error *err)
{
    enum tdm_status status = add_all_ahead(r, err);
    if (status == TDM_OK)
        status = add_ahead_weights(r, err);
    if (status == TDM_OK)
        status = add_slots(r, err);
    return status == TDM_OK ? add_stall(r, err) : status;
}
