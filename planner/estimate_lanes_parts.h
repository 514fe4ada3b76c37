/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the estimate by lanes: the clocks of a step, its bodies, and what each file does.
 *
 * estimate_lanes.c describes the estimate, and runs the bodies. estimate_lanes_nest.c takes them
 * from the nest. estimate_lanes_state.c fetches weights, masters and moments and updates
 * units. estimate_lanes_bodies.c runs the bodies of layers and head. */
#ifndef TDM_PLANNER_ESTIMATE_LANES_PARTS_H
#define TDM_PLANNER_ESTIMATE_LANES_PARTS_H

#include "planner/estimate_lanes.h"
#include "planner/estimate_span.h"
#include "schedule/streams.h"

#define SLOTS 32u   /* more than any ring of layers has */
#define CONTENTS 3u /* of the optimizer: master, two moments */

/* What a body reads its input for: numbers of lane_layer.far_input. */
enum { INPUT_OF_FIRST, INPUT_OF_LATER, INPUT_OF_KV, INPUT_READERS };

/* A body of the nest (schedule/nest.h), and what it fetched. */
struct lane_body {
    uint8_t kind, pass, phase; /* enum tdm_body_kind, tdm_pass, tdm_phase */
    uint8_t reader;            /* of its input, as above */
    uint8_t fetches;           /* bits of the stores that it fetched; bit TDM_STORES: the input */
    uint32_t group, layer, chunk;
    double fetched; /* end of its chunk fetches */
    bool ahead;     /* makes K and V ahead (schedule/nest.h) */
};
#define BIT_OF_INPUT (1u << TDM_STORES)

/* A chunk of a layer: bits of the stores that the forward keeps, that a rerun holds, and those of
 * both that are on the host. */
struct lane_stored {
    uint8_t kept, held, far;
};

#define HAS(mask, store) (((mask) >> (store)) & 1u)

/* Seconds of a layer's chunks, [chunks] each: beside attention, and of it; and how many times
 * longer than the forward of a chunk's attention its gradient takes. */
struct lane_times {
    const struct layer_cost *cost;
    const double *attention;
    double attention_grad;
};

/* Seconds of a copy to the device, or to the host, if no other is beside it. */
struct lane_copy {
    double in, out;
};

/* Those of the contents of a chunk. */
struct lane_chunk {
    struct lane_copy x, kv, store[TDM_STORES];
};

/* What a layer does in the schedule, the same for all its chunks. */
struct lane_layer {
    bool far_input[INPUT_READERS]; /* is its input fetched from the host? */
    bool sends[2];                 /* its output, to the host: in the first pass, and in others */
    /* places of chunks from which on inputs are not fetched, and outputs not sent but in the first
     * pass */
    uint32_t near_input, near_output;
    bool into_row; /* layer-major: in the first pass, into the row of the stream */
    bool keeps_kv, far_kv, holds_kv;
};

/* Least seconds that are computed from the beginning of a group in the forward on, and in the
 * backward. */
struct lane_rest {
    double forward, backward;
};

/* A group as it was prepared last: what its layers do depends on nothing else. */
struct lane_group {
    struct tdm_group group;
    enum tdm_order order;
    enum tdm_place above; /* of the input of the group above */
    bool last;
};

/* A ring of chunk slots, in the order of their use. */
struct lane_ring {
    double *free; /* [slots]: when each slot is free */
    uint32_t next, released, slots;
};
#define RINGS (2 * TDM_STORES + 3)

struct tdm_lanes {
    uint32_t most_bodies; /* 0: the step has too many bodies for this estimate */
    /* the bodies of the nest with this order and these groups; none: nothing is listed */
    struct lane_body *bodies;
    uint32_t body_count;
    enum tdm_order order;
    uint32_t group_count, *group_layers;  /* [layers] */
    uint32_t *streaming, streaming_count; /* bodies with which something may stream */
    bool *listed_ahead;                   /* [layers]: kv_ahead of the estimator */
    uint32_t last_layer;                  /* while listing: that the last body used */
    struct tdm_streams streams;
    uint32_t *slices, *passing_slices; /* [units]: number, and if state passes */
    uint32_t *first_slice;             /* [units]: number of slices of the units before */
    double *slice_shares;              /* of all slices: parts of their units' elements */
    double *shares;                    /* of their units' elements that streams.updates change */
    struct lane_stored *stored;        /* [layers * chunks] */
    struct lane_group *prepared;       /* [layers]: the group that begins there; 0 layers: none */
    double *x_sent, *stored_sent; /* [layers * chunks]: when inputs and stores are on the host */
    double *stream_free;          /* [chunks]: until then a copy reads the row of the stream */
    double *slots;                /* of rings */
    double *gradient_made;        /* [layers]: when the last body was computed that adds to it, */
    double *gradient_begun;       /* [layers]: and when that has added to its first parts */
    double *kv_sent;              /* [layers]: when the last chunk's K and V are on the host */
    uint32_t *far_rows;           /* [layers]: number of lower layers with K and V on the host */
    /* of `homes`, if has_homes; the streams too, if has_streams */
    struct tdm_home homes[TDM_STATES];
    bool has_homes, has_streams;
    uint32_t master;           /* number of the master among contents (tdm_streamed_state()) */
    uint64_t passes[CONTENTS]; /* slices whose state passes through the rings */
    bool layers_pass;          /* some are of layers */
    double gradient_bytes;     /* of all units */
    /* [units]: is a state at home on the host, not empty, and fetched from there? */
    bool *far[TDM_STATE_MOMENTS + 1];
    struct span *spans;           /* [layers]: of the layer's group */
    struct lane_layer *of_layers; /* [layers] */
    struct lane_times *times;     /* [layers] */
    struct layer_cost *costs;     /* [layers * chunks]: memory for the times */
    double *attention;            /* the same */
    struct lane_chunk *of_chunks; /* [chunks] */
    uint8_t read_again;           /* bits of the stores that a rerun reads */
    struct lane_rest *rest;       /* [layers]: of groups */
};

/* The clocks of a step. */
struct lane_clocks {
    const struct tdm_estimator *e;
    const struct tdm_schedule *schedule;
    struct tdm_lanes *m; /* memory */
    uint32_t n, layers, depth;
    bool by_layer, trains;
    double enough; /* a step of so many seconds need not be run to its end */
    double copy_seconds, to_device, to_host; /* the latter two a byte, alone */
    /* how much longer copies to the device and to the host take beside each other, [1] while the
     * host updates */
    double device_slower[2], host_slower[2];
    double compute, h2d, d2h, host;
    struct lane_ring fetched_x, ahead_x, fetched[TDM_STORES], stashed_x, stashed[TDM_STORES];

    /* the ring of weights, as in lower_stream.c */
    uint32_t next_visit, visit, current;
    uint32_t slot; /* with the weights of the current layer; SLOTS: they are not there */
    uint32_t ring_layer[SLOTS], ring_needed[SLOTS];
    double ring_free[SLOTS], ring_ready[SLOTS];
    /* rings of masters and moments, as there */
    uint32_t update, next_update, next_content, passed, fetched_contents;
    uint32_t state_slots[CONTENTS];
    double state_free[CONTENTS][SLOTS], state_ready[CONTENTS][SLOTS];
    uint32_t last_update; /* the layer, whose master is still on the device if `keeps`, */
    bool keeps;
    double updated;                /* since then */
    bool states_open, layers_pass; /* the rings are there; state of layers passes through them */
    /* weights of embedding [0] and head [1], while they have users */
    uint32_t users[2];
    double unit_ready[2];
    /* updates on the host */
    double gradient_free, mlp_gradient_free; /* when a gradient, and its MLP's parts, are sent */
    double host_free[SLOTS];
    uint32_t host_gradients;
    double link_seconds; /* of all copies so far, alone */
    /* the host's lane since it was idle: its first update, all of them alone, and link_seconds and
     * the end of copies then; seconds of copies in a second since */
    double host_begin, host_work, link_begin, link_until, link_busy;
    double sums_sent;
    double kv_ready, kv_free; /* layer-major: K and V from the host, and the row that they enter, */
    double row_sent;          /* and when all those on their way to the host have left it */
    double row_free[SLOTS];   /* chunk-major: rows for K and V that are on the host */
};

/* ---- copies ---- */

/* The end of a copy that takes `seconds` alone. While the other direction is busy, up to its clock,
 * both are slower, so its clock moves too. */
static inline double share_link(double start, double seconds, double slower, double *other,
                                double other_slower)
{
    const double rest = *other - start, together = seconds * slower;
    if (rest <= 0)
        return start + seconds;
    if (together <= rest * other_slower) {
        *other += together * (1 - 1 / other_slower);
        return start + together;
    }
    *other = start + rest * other_slower;
    return *other + seconds - rest * other_slower / slower;
}

/* Does the host update when a copy starts, as far as is known? */
static inline bool beside_updates(const struct lane_clocks *c, double start)
{
    return start < c->host && start >= c->host_begin;
}

/* A copy that takes `seconds` alone. */
static inline double copy_in(struct lane_clocks *c, double ready, double seconds)
{
    const double start = later(c->h2d, ready);
    const bool beside = beside_updates(c, start);
    c->link_seconds += seconds;
    return c->h2d = share_link(start, seconds, c->device_slower[beside], &c->d2h,
                               c->host_slower[beside]);
}

static inline double copy_out(struct lane_clocks *c, double ready, double seconds)
{
    const double start = later(c->d2h, ready);
    const bool beside = beside_updates(c, start);
    c->link_seconds += seconds;
    return c->d2h = share_link(start, seconds, c->host_slower[beside], &c->h2d,
                               c->device_slower[beside]);
}

static inline double copy_to_device(struct lane_clocks *c, double ready, double bytes)
{
    return copy_in(c, ready, c->copy_seconds + bytes * c->to_device);
}

static inline double copy_to_host(struct lane_clocks *c, double ready, double bytes)
{
    return copy_out(c, ready, c->copy_seconds + bytes * c->to_host);
}

static inline double *take_slot(struct lane_ring *ring)
{
    double *slot = &ring->free[ring->next];
    ring->next = ring->next + 1 == ring->slots ? 0 : ring->next + 1;
    return slot;
}

static inline void release_slot(struct lane_ring *ring, double at)
{
    ring->free[ring->released] = at;
    ring->released = ring->released + 1 == ring->slots ? 0 : ring->released + 1;
}

/* ---- estimate_lanes_state.c ---- */

/* As tdm_low_visit(). Most bodies are of the current layer, so the check is made here. */
void tdm_lanes_next_layer(struct lane_clocks *c, uint32_t layer);

static inline void visit_layer(struct lane_clocks *c, uint32_t layer)
{
    if (layer != c->current)
        tdm_lanes_next_layer(c, layer);
}

/* When the current layer's weights are on the device. */
static inline double weights_ready(const struct lane_clocks *c)
{
    return c->slot < SLOTS ? c->ring_ready[c->slot] : 0;
}

/* Their slot is in use until then. */
static inline void use_weights(struct lane_clocks *c, double until)
{
    if (c->slot < SLOTS)
        c->ring_free[c->slot] = later(c->ring_free[c->slot], until);
}

/* Has a unit masters or moments at home on the host? */
bool tdm_lanes_has_far_state(const struct lane_clocks *c, uint32_t unit);

/* Opens the rings of masters and moments, and fills them. */
void tdm_lanes_open_states(struct lane_clocks *c);

/* As tdm_low_stream_body(): the contents of a slot are fetched one by one. */
void tdm_lanes_fetch_states(struct lane_clocks *c, uint32_t layer);

static inline void stream_states(struct lane_clocks *c, uint32_t layer)
{
    if (c->states_open && c->next_update < c->m->streams.updates.count)
        tdm_lanes_fetch_states(c, layer);
}

/* The unit of the head, or of the embedding. */
uint32_t tdm_lanes_end_unit(const struct lane_clocks *c, int head);

/* Weights of head or embedding come with the first of their users. */
void tdm_lanes_begin_use(struct lane_clocks *c, int head);

/* One user less. */
void tdm_lanes_end_use(struct lane_clocks *c, int head);

/* Begins or ends the use of the head; with a tied embedding, of both. */
void tdm_lanes_use_head(struct lane_clocks *c, bool begin);

/* Updates a unit at its place, and sends its state home. */
void tdm_lanes_update(struct lane_clocks *c, uint32_t unit);

/* ---- estimate_lanes_bodies.c ---- */

/* Runs all bodies in turn, each as soon as those that fetch ahead of it are in the queue. False: it
 * ended early, with what the step takes at least on the compute clock. */
bool tdm_lanes_run(struct lane_clocks *c);

/* ---- estimate_lanes_nest.c ---- */

/* Lists the bodies of the schedule's nest, unless they are listed. False: they are too many. */
bool tdm_lanes_list(struct lane_clocks *c);

/* Finds what streams with these bodies. False: out of memory. */
bool tdm_lanes_plan_streams(struct lane_clocks *c);

#endif
