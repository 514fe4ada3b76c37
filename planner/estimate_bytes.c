/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of an estimate: sums of what is live together.
 *
 * The peak is at one of a few moments: the end of the forward, the LM head, the first backward
 * chunk of a group's top or lowest layer, the updates of head and embedding, or the updates of all
 * units at the end.
 */
#include "planner/estimate_span.h"

#include "schedule/nest.h"
#include "schedule/optimizer.h"

/* Bits of the stores that are kept or held for all chunks of a layer, so that no backward computes
 * them in workspace. */
static unsigned all_stored(const struct tdm_estimator *e, const struct span *span, bool again)
{
    const unsigned all = (1u << TDM_STORES) - 1, gate_up = 1u << TDM_STORE_GATE_UP;
    const unsigned kept = bits_of(span->group->kept), held = again ? bits_of(span->group->held) : 0;
    const unsigned early = span->kept == 0 ? all : span->held == 0 ? held : 0;
    const unsigned stored = early & (span->kept == e->chunks ? all : kept);
    if ((held & ~kept & gate_up) == 0)
        return stored;
    /* held for kept chunks too */
    return span->group->held_from_chunk == 0 ? stored | gate_up : stored & ~gate_up;
}

/* Workspace of a layer's backward. */
static uint64_t backward_work(const struct tdm_estimator *e, const struct span *group,
                              enum tdm_order order, uint32_t layer)
{
    struct span span = span_of_layer(e, group, order, layer);
    bool again = runs_again(&span, order, layer);
    uint64_t work = layer == 0 ? e->work_backward_first : e->work_backward;
    return work - spared_bytes(e, layer, all_stored(e, &span, again));
}

/* Bytes stored so far, from the lowest group up: what all layers keep, and inputs of groups. */
struct stored {
    uint64_t kept[TDM_MAX_PLACES], inputs[TDM_MAX_PLACES];
    /* chunk-major order; in layer-major order part of `kept` */
    uint64_t kv[TDM_MAX_PLACES];
};

/* Rows that layers use in turn, in chunk-major order. */
struct rows {
    uint64_t layers;
    /* a layer that uses the row needs a slot for every chunk: its attention does not gather
     * pages */
    bool whole[TDM_MAX_RING];
};

static void add_layer(struct rows *rows, const struct tdm_schedule *schedule, bool gathers)
{
    rows->whole[rows->layers++ % schedule->rings.kv] |= !gathers;
}

static uint64_t row_slots(const struct rows *rows, const struct tdm_schedule *schedule,
                          uint64_t chunks)
{
    uint64_t slots = 0;
    for (uint64_t row = 0; row < smaller(rows->layers, schedule->rings.kv); row++)
        slots += rows->whole[row] ? chunks : 1;
    return slots;
}

/* Staging rings that a schedule needs. */
struct needs {
    bool inputs, inner;  /* stored inputs of groups, and of inner layers */
    unsigned kept, held; /* bits of the stores besides the input */
    /* layers with K and V, or their gradients, on the host */
    struct rows far_kv, far_gradients;
};

static struct needs needs_of(const struct tdm_estimator *e, const struct tdm_schedule *schedule)
{
    struct needs needs = {0};
    bool by_chunk = schedule->order == TDM_CHUNK_MAJOR;
    uint32_t first = 0;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct span span = span_of(e, schedule, g, first);
        const struct tdm_group *group = span.group;
        bool keeps = !by_chunk || !span.last || group->layers > 1;
        bool holds = !by_chunk && group->layers > 1 && span.near > 0;
        needs.inputs |= g > 0 && tdm_is_far(group->input_place);
        needs.inner |= holds;
        const unsigned kept = bits_of(group->kept), held = bits_of(group->held);
        const unsigned beside = held & ~kept & (1u << TDM_STORE_GATE_UP); /* held for all chunks */
        if (keeps && span.kept < e->chunks && tdm_is_far(group->kept_place))
            needs.kept |= kept;
        if (holds && group->held_from_chunk < smaller(span.kept, span.near))
            needs.held |= held;
        else if (holds && larger(group->held_from_chunk, span.kept) < span.near)
            needs.held |= beside;
        for (uint32_t layer = first; layer <= span.top && by_chunk; layer++) {
            if (far_kv(&span))
                add_layer(&needs.far_kv, schedule, gathers(e, layer));
            if (tdm_is_far(group->kv_gradients_place))
                add_layer(&needs.far_gradients, schedule, far_kv(&span) && gathers(e, layer));
        }
        first += group->layers;
    }
    return needs;
}

/* Bytes of the rings in the forward, and in the backward without those of masters and moments. */
static void add_rings(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                      uint64_t *forward, uint64_t *backward)
{
    struct needs needs = needs_of(e, schedule);
    uint64_t fetch_slots = smaller(schedule->prefetch, e->chunks - 1) + 1;
    uint64_t stash_slots = smaller(schedule->rings.stashed, e->chunks);
    uint64_t rows = row_slots(&needs.far_kv, schedule, e->chunks) * e->kv;
    *forward = e->weight_ring + rows;
    *backward =
        e->weight_ring + rows + row_slots(&needs.far_gradients, schedule, e->chunks) * e->dkv;
    if (needs.inputs || needs.inner)
        *backward += fetch_slots * e->x;
    if (needs.inner)
        *backward += stash_slots * e->x;
    if (schedule->order == TDM_LAYER_MAJOR && (needs.inputs || needs.inner) &&
        tdm_nest_any_kv_ahead(schedule, e->row_slots == e->chunks, NULL))
        *backward += e->x;
    if (needs.inputs && schedule->order == TDM_CHUNK_MAJOR)
        *forward += (fetch_slots + stash_slots) * e->x;
    *backward += fetch_slots * e->store_sums[0][needs.kept | needs.held];
    *backward += stash_slots * e->store_sums[0][needs.held];
    *forward += stash_slots * e->store_sums[0][needs.kept];
}

/* The rings of masters and moments, while layers go backward. */
static uint64_t state_rings(const struct tdm_estimator *e)
{
    return tdm_updates_at_end(e->base) ? 0 : e->state_rings;
}

/* Host ring for gradients that are used there, during the backward. */
static uint64_t host_ring(const struct tdm_estimator *e)
{
    return tdm_updates_at_end(e->base) ? 0 : e->host_ring;
}

static void raise_to(uint64_t *most, uint64_t bytes)
{
    *most = larger(*most, bytes);
}

/* Device bytes of gradients while `layer` goes backward: transient ones up to layer `top`, and
 * those that stay of all layers from `layer` up. */
static uint64_t layer_gradients(const struct tdm_estimator *e, uint32_t layer, uint32_t top)
{
    const uint64_t *staying = e->staying_below[TDM_DEVICE];
    return e->passing_below[top + 1] - e->passing_below[layer] + staying[e->layers] -
           staying[layer];
}

/* The embedding's gradient, if it is not computed apart (tdm_nest_embeds_apart), is allocated after
 * the first backward of layer 0. It is live with the workspace of the second one, if there is
 * one. */
static uint64_t beside_embedding_gradient(const struct tdm_estimator *e, uint64_t work)
{
    return larger(e->chunks > 1 ? e->embedding_gradient + work : work, e->embedding_gradient);
}

/* Bytes that are there while layers go backward in layer-major order, whatever is stored. */
struct sweeping {
    uint64_t device, far;
};

static struct sweeping sweeping_of(const struct tdm_estimator *e, uint64_t rings)
{
    return (struct sweeping){.device = e->resident_bytes[TDM_DEVICE] + rings + state_rings(e) +
                                       e->tied_gradient + e->head_stays[TDM_DEVICE] +
                                       e->chunks * e->x + e->row_slots * e->dkv,
                             .far = e->head_stays[e->far] + host_ring(e)};
}

/* Device bytes of a layer's backward in layer-major order, without what is stored. */
static uint64_t sweep_bytes(const struct tdm_estimator *e, const struct span *span,
                            const struct sweeping *sweeping, uint32_t layer)
{
    uint64_t work = backward_work(e, span, TDM_LAYER_MAJOR, layer);
    if (layer == 0)
        work += e->embedding_buffer;
    return sweeping->device + layer_gradients(e, layer, layer) +
           (own_kv(span) ? 0 : e->row_slots * e->kv) + work;
}

/* Host bytes of gradients of layers above `top`, which are complete. */
static uint64_t host_gradients(const struct tdm_estimator *e, uint32_t top)
{
    const uint64_t *staying = e->staying_below[e->far];
    return staying[e->layers] - staying[top + 1];
}

/* Bytes that a layer of a group holds of the chunks [from, to) beside its input, in layer-major
 * order. */
static uint64_t held_bytes(const struct tdm_estimator *e, const struct span *span, uint32_t from,
                           uint32_t to)
{
    return tdm_size_left(smaller(span->kept, to), larger(span->held, from)) *
               set_bytes(e, span->group->held) +
           tdm_size_left(to, larger(products_from(e, span), from)) * e->store[TDM_STORE_GATE_UP];
}

/* Bytes of the page lists that are kept for layers [first, end). */
static uint64_t lists_bytes(const struct tdm_estimator *e, uint32_t first, uint64_t end)
{
    return first < end ? (e->votes_below[end] - e->votes_below[first]) * e->chunks * e->lists : 0;
}

/* Page means of the last layer: live in the forward's last sweep, or in chunk-major order until its
 * lists are made. */
static uint64_t means_bytes(const struct tdm_estimator *e)
{
    bool votes = e->votes_below[e->layers] > e->votes_below[e->layers - 1];
    return votes ? e->chunks * e->means : 0;
}

/* Moments of a group in layer-major order: the first backward chunk of its top layer and of its
 * lowest one. */
static void layer_major_moments(const struct tdm_estimator *e, const struct span *span,
                                const struct stored *stored, const struct sweeping *sweeping,
                                struct tdm_estimate *estimate)
{
    uint64_t n = e->chunks, above = span->top - span->first;
    uint64_t kept = (n - span->kept) * set_bytes(e, span->group->kept);
    const uint64_t outputs = held_bytes(e, span, span->near, e->chunks),
                   held = (n - span->near) * e->x + outputs,
                   far_held = span->near * e->x + held_bytes(e, span, 0, span->near);
    /* inner layers that hold K and V have their own rows, on the device */
    uint64_t rows = !keeps_kv(span) && tdm_set_has(span->group->held, TDM_STORE_KV) ? n * e->kv : 0;
    bool far_kept = tdm_is_far(span->group->kept_place);
    uint64_t device = stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE];
    raise_to(&estimate->body_bytes,
             sweep_bytes(e, span, sweeping, span->top) + device + above * (rows + held));
    raise_to(&estimate->bytes[e->far], stored->kept[e->far] + stored->inputs[e->far] +
                                           above * far_held + host_gradients(e, span->top) +
                                           sweeping->far);
    if (above > 0)
        raise_to(&estimate->body_bytes, sweep_bytes(e, span, sweeping, span->first) + device -
                                            (far_kept ? 0 : above * kept) -
                                            lists_bytes(e, span->first + 1, span->top + 1) -
                                            (own_kv(span) ? above * n * e->kv : 0) +
                                            (rows > 0 ? rows - e->row_slots * e->kv : 0) + outputs);
}

/* Space for weights of embedding and head in chunk-major order, while the group that uses them
 * runs. */
static uint64_t group_buffers(const struct tdm_estimator *e, const struct span *span)
{
    if (span->last)
        return e->base->model->tied ? e->head_buffer
                                    : e->head_buffer + (span->first == 0 ? e->embedding_buffer : 0);
    return span->first == 0 ? e->embedding_buffer : 0;
}

/* Moments of a group in chunk-major order: K and V of all layers up to its top are live, and dK, dV
 * and gradients of its own layers. */
static void chunk_major_moments(const struct tdm_estimator *e, const struct span *span,
                                const struct stored *stored, uint64_t rings, bool one_group,
                                struct tdm_estimate *estimate)
{
    uint64_t n = e->chunks, layers = span->top - span->first + 1;
    uint64_t held = (layers - 1) * e->x;
    for (uint32_t layer = span->first; layer <= span->top; layer++) {
        struct span own = span_of_layer(e, span, TDM_CHUNK_MAJOR, layer);
        if (runs_again(&own, TDM_CHUNK_MAJOR, layer) && own.held < own.kept)
            held += set_bytes(e, span->group->held);
        else if (runs_again(&own, TDM_CHUNK_MAJOR, layer) && products_from(e, &own) < e->chunks)
            held += e->store[TDM_STORE_GATE_UP];
    }
    bool any = false;
    for (uint32_t layer = span->first; layer <= span->top; layer++)
        any = any || (far_kv(span) && gathers(e, layer));
    uint64_t kv = stored->kv[TDM_DEVICE] + (any ? e->gather_work : 0);
    uint64_t dkv = tdm_is_far(span->group->kv_gradients_place) ? 0 : layers * n * e->dkv;
    uint64_t group =
        e->resident_bytes[TDM_DEVICE] + rings + state_rings(e) + e->tied_gradient +
        (one_group ? 1 : n) * e->x + (span->last ? e->head_gradient : e->head_stays[TDM_DEVICE]) +
        group_buffers(e, span) + kv + dkv + layer_gradients(e, span->first, span->top) + held +
        stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE] + (span->last ? means_bytes(e) : 0);
    raise_to(&estimate->body_bytes, group + backward_work(e, span, TDM_CHUNK_MAJOR, span->top));
    if (one_group)
        raise_to(&estimate->body_bytes,
                 group + beside_embedding_gradient(e, backward_work(e, span, TDM_CHUNK_MAJOR, 0)));
    if (span->last)
        raise_to(&estimate->head_bytes, group + e->work_head);
    raise_to(&estimate->bytes[e->far], stored->kept[e->far] + stored->inputs[e->far] +
                                           stored->kv[e->far] +
                                           (span->last ? 0 : e->head_stays[e->far]) +
                                           host_gradients(e, span->top) + host_ring(e));
}

/* The end of the forward and, in layer-major order, the head after it. */
static void forward_moments(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                            const struct stored *stored, uint64_t forward_rings,
                            uint64_t backward_rings, struct tdm_estimate *estimate)
{
    uint64_t n = e->chunks;
    uint64_t all =
        e->resident_bytes[TDM_DEVICE] + stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE];
    if (schedule->order == TDM_CHUNK_MAJOR) {
        /* the last layer computes only its K and V, which takes little workspace */
        raise_to(&estimate->body_bytes,
                 all + forward_rings + stored->kv[TDM_DEVICE] + means_bytes(e));
        return;
    }
    /* if the last layer keeps all chunks, attention writes directly to the kept slots */
    const struct tdm_group *last = &schedule->groups[schedule->group_count - 1];
    bool keeps = tdm_set_has(last->kept, TDM_STORE_ATTENTION) && last->kept_from_chunk == 0;
    uint64_t work = e->work_forward - (keeps ? set_bytes(e, last->kept) : 0);
    if (keeps && tdm_set_has(last->kept, TDM_STORE_NORMED)) /* no longer in the workspace */
        work += e->store[TDM_STORE_NORMED];
    bool own_kv = last->kv == TDM_KV_KEEP && !tdm_is_far(last->kv_place);
    raise_to(&estimate->body_bytes, all + forward_rings + means_bytes(e) + n * e->x +
                                        (own_kv ? 0 : e->row_slots * e->kv) + work);
    raise_to(&estimate->head_bytes, all + backward_rings + n * e->x + e->tied_gradient +
                                        e->head_gradient + e->work_head + e->head_buffer);
}

/* Updates of head and embedding in the backward, which need space for state from the host.
 * `stored`: what is still live when the head is updated. */
static void update_moments(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                           const struct stored *stored, uint64_t rings,
                           struct tdm_estimate *estimate)
{
    uint64_t slots = tdm_nest_embeds_apart(schedule) ? e->chunks : 1;
    uint64_t all = e->resident_bytes[TDM_DEVICE] + rings + e->tied_gradient;
    uint64_t kept = stored->kept[TDM_DEVICE] + stored->inputs[TDM_DEVICE] + stored->kv[TDM_DEVICE];
    uint64_t staying = e->staying_below[TDM_DEVICE][e->layers] + e->head_stays[TDM_DEVICE];
    raise_to(&estimate->body_bytes, all + staying + e->embedding_gradient + slots * e->x);
    if (tdm_updates_at_end(e->base) || schedule->optimizer.kind == TDM_OPTIMIZER_NONE)
        return;
    /* an update on the host needs no weights on the device */
    uint32_t embedding = tdm_model_embedding_unit(e->base->model);
    uint64_t buffer = tdm_updates_on_host(e->base, embedding) ? 0 : e->embedding_buffer;
    raise_to(&estimate->body_bytes, all + e->embedding_gradient + buffer + e->embedding_update);
    uint64_t state = e->head_update;
    if (schedule->order == TDM_CHUNK_MAJOR) /* layers have already gone backward */
        state = larger(state, state_rings(e));
    raise_to(&estimate->body_bytes,
             all + state + slots * e->x + e->head_gradient + e->head_buffer + kept);
    raise_to(&estimate->bytes[e->far], e->host_ring + e->host_embedding);
    raise_to(&estimate->bytes[e->far], e->host_ring + e->host_head + stored->kept[e->far] +
                                           stored->inputs[e->far] + stored->kv[e->far]);
}

/* Updates after the backward begin with all gradients live. */
static void end_moments(const struct tdm_estimator *e, struct tdm_estimate *estimate)
{
    uint64_t gradients[TDM_MAX_PLACES];
    if (!tdm_updates_at_end(e->base))
        return;
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        gradients[place] =
            e->staying_below[place][e->layers] + e->head_stays[place] + e->embedding_stays[place];
    uint64_t weights = tdm_is_far(e->base->optimizer.on) ? 0 : e->weight_ring;
    uint64_t all = e->resident_bytes[TDM_DEVICE] + weights + e->state_rings;
    /* the head is updated first, the embedding last */
    raise_to(&estimate->body_bytes, all + gradients[TDM_DEVICE] + e->head_fetched);
    raise_to(&estimate->body_bytes, all + e->embedding_stays[TDM_DEVICE] + e->embedding_fetched);
    raise_to(&estimate->bytes[e->far], gradients[e->far] + e->host_ring + e->host_head);
    raise_to(&estimate->bytes[e->far], e->host_ring + e->host_embedding);
}

void tdm_estimate_bytes(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                        struct tdm_estimate *estimate)
{
    const struct tdm_place_row *places = schedule->machine->topology.places;
    struct stored stored = {0}, below = {0}; /* `below`: without the last group */
    uint64_t forward_rings, backward_rings;
    bool by_layer = schedule->order == TDM_LAYER_MAJOR;
    add_rings(e, schedule, &forward_rings, &backward_rings);
    const struct sweeping sweeping = sweeping_of(e, backward_rings);
    uint32_t first = 0;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct span span = span_of(e, schedule, g, first);
        const struct tdm_group *group = span.group;
        below = stored;
        uint64_t keeping = span.last && !by_layer ? group->layers - 1 : group->layers;
        stored.kept[group->kept_place] +=
            keeping * (e->chunks - span.kept) * set_bytes(e, group->kept);
        stored.kept[TDM_DEVICE] += lists_bytes(e, first, first + keeping);
        if (group->kv == TDM_KV_KEEP)
            *(by_layer ? &stored.kept[group->kv_place] : &stored.kv[group->kv_place]) +=
                group->layers * e->chunks * e->kv;
        if (g > 0)
            stored.inputs[group->input_place] += e->chunks * e->x;
        if (by_layer) {
            layer_major_moments(e, &span, &stored, &sweeping, estimate);
        } else {
            chunk_major_moments(e, &span, &stored, backward_rings, schedule->group_count == 1,
                                estimate);
        }
        first += group->layers;
    }
    forward_moments(e, schedule, &stored, forward_rings, backward_rings, estimate);
    update_moments(e, schedule, by_layer ? &stored : &below, backward_rings, estimate);
    end_moments(e, estimate);

    estimate->bytes[e->far] += e->resident_bytes[e->far] + places[e->far].runtime_bytes;
    estimate->body_bytes += places[TDM_DEVICE].runtime_bytes;
    estimate->head_bytes += places[TDM_DEVICE].runtime_bytes;
}
