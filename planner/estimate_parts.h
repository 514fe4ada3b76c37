/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the estimates: what an estimator knows. estimate_costs.c finds it out;
 * estimate_seconds.c, estimate_bytes.c and, for a pass that only evaluates, estimate_evaluate.c use
 * it. */
#ifndef TDM_PLANNER_ESTIMATE_PARTS_H
#define TDM_PLANNER_ESTIMATE_PARTS_H

#include "planner/estimate.h"

/* Seconds of the parts of a layer for one chunk, attention itself left out. */
struct layer_cost {
    double embed; /* layer 0: its input is made from the tokens whenever it is needed */
    double norm, q, kv;
    double rest; /* from the attention output to the layer's output */
    double mlp_norm,
        gate_up; /* of the rest, what the set `all` saves: both, or the product in a backward */
    double backward[TDM_SETS]; /* backward with what is made again where a set is there; K, V are */
};

/* What a sweep over a layer computes and copies, seconds. */
struct sweep {
    double compute, fetch, send;
};

/* The sweeps of a layer; in chunk-major order a group's are with its top layer. */
struct layer_sweeps {
    struct sweep forward, again, kv, backward;
};

/* Copies of state beside a layer's sweep. */
struct state_copies {
    double fetch, send, slack;
    double alone; /* of these, beside no computing: one slot for the weights of two layers */
    bool in_turn; /* one slot: what comes waits for what goes */
};

/* Layer-major: seconds of the copies inside the rows of a layer under way, of K and V in a sweep
 * upward or downward, of their gradients downward. */
struct row_moves {
    double rising, falling, gradients;
    bool apart; /* downward, K and V of all chunks are made before the first backward */
};

/* Bytes of K and V, and of their gradients, that attention itself moves from the host. */
struct gathered {
    uint64_t kv, sums;
};

struct tdm_estimator {
    const struct tdm_schedule *base; /* `own` */
    struct tdm_schedule own;         /* a shallow copy, for homes of its own */
    uint32_t layers, chunks;

    /* Chunks are of a few classes: by length, and the last one, which begins every sum of
     * gradients, in a class of its own. */
    uint32_t classes;
    uint32_t *class_before;   /* [classes][chunks + 1] chunks of a class before a chunk */
    struct layer_cost *costs; /* [layers][classes] */
    /* Layers with the same costs have one row of their sums over the chunks before a chunk. */
    uint32_t *row_of;                /* [layers] */
    struct layer_cost *costs_before; /* [rows][chunks + 1] */
    /* Layers are of a few kinds by their window. */
    uint32_t kinds;
    uint32_t *kind_of;        /* [layers] */
    double *attention_before; /* [kinds][chunks + 1] seconds of attention of the chunks before */
    double *attention_grad_seconds; /* [kinds] */
    uint64_t *seen_chunks; /* [kinds] of all chunks, how many each attends to, itself included */
    /* [kinds][chunks + 1] of the chunks before, where attention gathers from the host; else 0; and
     * room for it */
    struct gathered *gathered_before;
    uint64_t gather_work;
    struct row_moves *moves; /* [kinds] */
    uint64_t row_slots; /* layer-major: of the rows of K and V, and of their gradients, under way */
    double head_seconds, optimizer_seconds; /* of the whole step, on the compute lane */
    /* of the host's lane: all its updates, the embedding's, which is the last; and of what the
     * compute lane does, the norms of layer 0 and embedding */
    double host_seconds, last_host_seconds, last_norm_seconds;
    /* where the embedding is updated on the host: its weights come before anything computes, and
     * its gradient goes and is used when nothing computes any more but norms, of more layers in
     * chunk-major order */
    double lead_seconds, tail_seconds[TDM_ORDERS];
    uint64_t longest_tokens; /* of a chunk */
    double *tokens_before;   /* [chunks + 1] of the chunks before, in those */
    struct state_copies *before_forward, *around_backward; /* [layers] */
    double exposed_seconds;                                /* copies of embedding and head */
    struct layer_sweeps *sweeps;                           /* [layers] of the estimate under way */

    uint64_t *unit_bytes[TDM_STATES]; /* [units]: tdm_estimator_unit_bytes() */
    uint64_t *gradient_bytes;         /* [units] */
    /* weights, optimizer states, tokens; without optimizer gradients too; and all but these
     * states */
    uint64_t resident_bytes[TDM_MAX_PLACES], stateless_bytes[TDM_MAX_PLACES];
    /* on the device, for state whose home is the host: rings of weights (all the step) and of
     * masters and moments (while layers go backward), rooms for weights of head (with a tied
     * embedding) and embedding */
    uint64_t weight_ring, state_rings, head_room, embedding_room;
    uint64_t head_update,
        embedding_update; /* rooms for their masters and moments, in their update */
    /* on the host, for gradients that are used there: of layers, while there are updates, head and
     * embedding */
    uint64_t host_ring, host_head, host_embedding;
    uint64_t work_forward, work_backward, work_backward_first, work_head;
    uint64_t x, kv, dkv, lists, means, store[TDM_STORES]; /* bytes of a chunk's slot */
    uint64_t *votes_below; /* [layers + 1]: layers below a layer whose queries vote for pages */

    /* Gradients that are not resident, [layers + 1]: bytes of the layers below a layer. Those that
     * pass are on the device while their layer, or in chunk-major order their group, goes backward;
     * those that stay until the end of the backward are born there, on the device or, when they are
     * complete, on the host. */
    uint64_t *passing_below, *staying_below[TDM_MAX_PLACES];
    /* of the head from its first tile on, of the embedding from layer 0 on */
    uint64_t head_gradient, embedding_gradient, tied_gradient;
    uint64_t head_stays[TDM_MAX_PLACES],
        embedding_stays[TDM_MAX_PLACES]; /* of these; a tied one with both */
};

/* Bytes at home at a place: of a unit, a layer or embedding or head, what the optimizer and the
 * forward keep of it in a state; gradients only where they are resident. */
uint64_t tdm_estimator_unit_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit);

/* Bytes that go to the host of a unit whose state is at home there, in a state: what changed, or
 * for an update there its gradient, which is said to be of its weights; and does what the state has
 * there come to the device? */
uint64_t tdm_estimator_sent_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit);
bool tdm_estimator_comes(const struct tdm_estimator *e, enum tdm_state state);

/* How many of the chunks [from, to) are of a class. */
uint32_t tdm_estimator_count(const struct tdm_estimator *e, uint32_t c, uint32_t from, uint32_t to);

/* Copies of state for the homes as they are; after every change of them. */
void tdm_estimate_note_state(struct tdm_estimator *e);

/* Seconds of the step that tdm_estimate_seconds() was asked about last, with waits for copies. */
double tdm_estimate_waiting(const struct tdm_estimator *e);

/* The two halves of tdm_estimate() for a schedule that trains, into what is zero before. Of the
 * seconds all but the likely ones; of the device's bytes those without a tile of logits, and those
 * beside it. */
void tdm_estimate_seconds(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          struct tdm_estimate *estimate);
void tdm_estimate_bytes(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                        struct tdm_estimate *estimate);

/* Both, for one whose pass is `evaluate`. */
void tdm_estimate_evaluate(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                           struct tdm_estimate *estimate);

static inline double later(double a, double b)
{
    return a > b ? a : b;
}

static inline uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

#endif
