/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the estimates: a group with its splits resolved, and questions that both seconds and
 * bytes ask about it. */
#ifndef TDM_PLANNER_ESTIMATE_SPAN_H
#define TDM_PLANNER_ESTIMATE_SPAN_H

#include "planner/estimate_parts.h"

/* A group with its splits resolved: attention outputs are kept for chunks from `kept` on (`chunks`:
 * none), and held for chunks [held, kept). */
struct span {
    uint32_t first, top; /* layers */
    uint32_t kept, held;
    uint32_t near; /* from this chunk on what is held is on the device */
    bool last;
    const struct tdm_group *group;
};

static inline struct span span_of_group(const struct tdm_estimator *e,
                                        const struct tdm_group *group, uint32_t first, bool last)
{
    struct span span = {.first = first,
                        .top = first + group->layers - 1,
                        .kept = e->chunks,
                        .held = e->chunks,
                        .near = tdm_held_near_from(group, e->chunks),
                        .last = last,
                        .group = group};
    if (tdm_set_has(group->kept, TDM_STORE_ATTENTION) && group->kept_from_chunk < e->chunks)
        span.kept = group->kept_from_chunk;
    span.held = span.kept;
    if (tdm_set_has(group->held, TDM_STORE_ATTENTION) && group->held_from_chunk < span.kept)
        span.held = group->held_from_chunk;
    return span;
}

static inline struct span span_of(const struct tdm_estimator *e,
                                  const struct tdm_schedule *schedule, uint32_t number,
                                  uint32_t first)
{
    return span_of_group(e, &schedule->groups[number], first, number + 1 == schedule->group_count);
}

/* The splits of one layer of a group. In chunk-major order the first forward of the last layer
 * makes only its K and V, so it has nothing to keep; it runs again, and its outputs can be held. */
static inline struct span span_of_layer(const struct tdm_estimator *e, const struct span *group,
                                        enum tdm_order order, uint32_t layer)
{
    struct span span = *group;
    if (order == TDM_CHUNK_MAJOR && span.last && layer == span.top) {
        span.kept = span.held = e->chunks;
        if (tdm_set_has(span.group->held, TDM_STORE_ATTENTION) &&
            span.group->held_from_chunk < e->chunks)
            span.held = span.group->held_from_chunk;
    }
    return span;
}

/* Does a layer run forward again in the backward? */
static inline bool runs_again(const struct span *span, enum tdm_order order, uint32_t layer)
{
    return layer < span->top || (order == TDM_CHUNK_MAJOR && span->last);
}

/* Bytes of a chunk in a set, without its input. */
static inline uint64_t set_bytes(const struct tdm_estimator *e, enum tdm_set set)
{
    return e->set[set];
}

/* The chunk from which gate and up are held in addition to a kept attention output. */
static inline uint32_t products_from(const struct tdm_estimator *e, const struct span *span)
{
    const struct tdm_group *group = span->group;
    if (!tdm_set_has(group->held, TDM_STORE_GATE_UP) || tdm_set_has(group->kept, TDM_STORE_GATE_UP))
        return e->chunks;
    return group->held_from_chunk > span->kept
               ? (uint32_t)smaller(group->held_from_chunk, e->chunks)
               : span->kept;
}

/* Bits of the stores of a set, apart from K and V. */
static inline unsigned bits_of(enum tdm_set set)
{
    return tdm_set_stores[set] & ((1u << TDM_STORES) - 1);
}

/* Backward workspace of a layer that is saved when stores of its chunk are present. */
static inline uint64_t spared_bytes(const struct tdm_estimator *e, uint32_t layer, unsigned bits)
{
    return e->store_sums[e->base->model->layer_kinds[layer].qk_norm ? 1 : 0][bits];
}

static inline bool keeps_kv(const struct span *span)
{
    return span->group->kv == TDM_KV_KEEP;
}

static inline bool far_kv(const struct span *span)
{
    return keeps_kv(span) && tdm_is_far(span->group->kv_place);
}

/* In layer-major order, does a layer have its own row of K and V? The row is counted as kept. */
static inline bool own_kv(const struct span *span)
{
    return keeps_kv(span) && !tdm_is_far(span->group->kv_place);
}

/* Bytes that a layer's attention gathers for the chunks before a chunk. */
static inline const struct gathered *gathered_before(const struct tdm_estimator *e, uint32_t layer,
                                                     uint32_t chunk)
{
    return &e->gathered_before[(size_t)e->kind_of[layer] * ((size_t)e->chunks + 1) + chunk];
}

/* Does a layer gather, in chunk-major order with K and V on the host? */
static inline bool gathers(const struct tdm_estimator *e, uint32_t layer)
{
    return gathered_before(e, layer, e->chunks)->kv > 0;
}

#endif
