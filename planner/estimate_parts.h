/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the estimates: the contents of an estimator. estimator.c makes it, with the costs of
 * a small step (estimate_costs.c), the bytes of states (estimate_state.c) and the attention of the
 * chunks (estimate_chunks.c). estimate_seconds.c, estimate_bytes.c and, for a pass that only
 * evaluates, estimate_evaluate.c read it. */
#ifndef TDM_PLANNER_ESTIMATE_PARTS_H
#define TDM_PLANNER_ESTIMATE_PARTS_H

#include "planner/estimate.h"
#include "planner/places.h"
#include "schedule/program.h"

/* Seconds of the parts of a layer for one chunk, without attention itself. */
struct layer_cost {
    double embed; /* layer 0: its input is computed from the tokens each time it is needed */
    double norm, q, kv;
    double rest;              /* from the attention output to the layer's output */
    double mlp_norm, gate_up; /* parts of `rest` that the set `all` saves: both, or only the product
                                 in a backward */
    double
        backward[TDM_SETS]; /* backward that recomputes what each set lacks; K and V are present */
};

/* Seconds of computing and copying of one sweep over a layer. */
struct sweep {
    double compute, fetch, send;
};

/* The sweeps of a layer. In chunk-major order the sweeps of a group are stored at its top layer. */
struct layer_sweeps {
    struct sweep forward, again, kv, backward;
};

/* Copies of state during a layer's sweep. */
struct state_copies {
    double fetch, send, slack;
    double alone; /* part that no computing overlaps: two layers share one slot for weights */
};

/* Seconds of a unit's norm and update. */
struct update_cost {
    double host, compute; /* on the host's lane, on the compute lane */
};

/* Seconds of all updates on the host's and on the compute lane, and of those on the host that no
 * computing hides. */
struct tdm_updates {
    double host_seconds, optimizer_seconds, tail_seconds[TDM_ORDERS];
};

/* Layer-major order: seconds of the copies inside the rows of the current layer: of K and V in an
 * upward or downward sweep, and of their gradients downward. */
struct row_moves {
    double rising, falling, gradients;
    bool apart; /* downward, K and V of all chunks are made before the first backward */
};

/* Bytes of K and V, and of their gradients, that attention itself copies from the host. */
struct gathered {
    uint64_t kv, sums;
};

#define LOGIT_TILES 8u

struct tdm_estimator {
    const struct tdm_schedule *base; /* points to `own` */
    struct tdm_schedule own;         /* a shallow copy, with its own homes */
    bool untimed;                    /* for bytes alone: all seconds are 0 */
    uint32_t layers, chunks;
    struct tdm_chunk *chunk_list; /* [chunks] */
    /* [chunks]: the chunk at a place of tdm_chunks_place(); in that order are all sums over the
     * chunks before a chunk, since splits of groups count so */
    uint32_t *chunk_at;
    enum tdm_place far; /* of the machine */

    /* Chunks are classified by length. The last chunk, which begins every sum of gradients, has its
     * own class. */
    uint32_t classes;
    uint32_t *class_before;   /* [classes][chunks + 1]: chunks of a class before a chunk */
    struct layer_cost *costs; /* [layers][classes] */
    /* Layers with equal costs share one row of sums over the chunks before a chunk. */
    uint32_t *row_of;                /* [layers] */
    struct layer_cost *costs_before; /* [rows][chunks + 1] */
    /* Layers are classified into kinds by their window. */
    uint32_t kinds;
    uint32_t *kind_of;        /* [layers] */
    double *attention_before; /* [kinds][chunks + 1]: seconds of attention of the chunks before */
    double *attention_grad_seconds; /* [kinds] */
    uint64_t *seen_chunks;          /* [kinds]: total over all chunks of the number each attends to,
                                       including itself */
    /* [kinds][chunks + 1]: sums over the chunks before, where attention gathers from the host; else
     * 0. gather_work is the workspace for it */
    struct gathered *gathered_before;
    uint64_t gather_work;
    struct row_moves *moves; /* [kinds] */
    uint64_t row_slots; /* layer-major: slots in the rows of K and V, and of their gradients, of the
                           current layer */
    double head_seconds;
    struct tdm_updates updates; /* with the current homes */
    /* [units], if layers are updated on the host: there, and of layers on the device; or NULL */
    struct update_cost *far_updates, *near_updates;
    double seconds_per_copied_byte; /* that updates there take longer */
    /* host lane: the embedding's update, which is the last. last_norm_seconds: compute lane, the
     * gradient norms of layer 0 and embedding */
    double last_host_seconds, last_norm_seconds;
    /* host lane, during the forward: the embedding's rows that no token uses */
    double early_host_seconds;
    /* for an embedding updated on the host: seconds at the start, when its weights are fetched
     * before anything computes */
    double lead_seconds;
    uint64_t longest_tokens;      /* of the longest chunk */
    uint64_t logits[LOGIT_TILES]; /* bytes with the base's LM-head tile, halved so many times */
    double
        *tokens_before; /* [chunks + 1]: tokens of the chunks before, in units of longest_tokens */
    struct layer_sweeps *sweeps; /* [layers]: of the current estimate */
    bool *kv_ahead;              /* [layers]: of the current estimate, tdm_nest_kv_ahead() */
    struct tdm_lanes *memory;    /* for estimate_lanes.c */

    uint64_t *unit_bytes[TDM_STATES]; /* [units]: tdm_estimator_unit_bytes() */
    /* [units]: tdm_estimator_slice_bytes(); at home, where slices have slots of one size */
    uint64_t *slice_bytes[TDM_STATES], *home_bytes[TDM_STATES];
    uint64_t *gradient_bytes; /* [units] */
    uint32_t *slices;         /* [units]: in which masters and moments pass (slices.h) */
    /* weights, optimizer states, tokens, and without an optimizer also gradients; the second
     * excludes these states */
    uint64_t resident_bytes[TDM_MAX_PLACES], stateless_bytes[TDM_MAX_PLACES];
    /* device bytes for state whose home is the host: ring of weights (whole step), rings of masters
     * and moments (while layers go backward), buffers for the weights of head (with a tied
     * embedding) and of embedding */
    uint64_t weight_ring, state_rings, head_buffer, embedding_buffer;
    /* rings of masters and moments, if theirs pass through them, during their update */
    uint64_t head_update, embedding_update;
    /* what updates after the backward fetch besides */
    uint64_t head_fetched, embedding_fetched;
    /* host bytes for gradients that are used there: of layers (while there are updates; and one
     * slot of these), head and embedding */
    uint64_t host_ring, host_slot, host_head, host_embedding;
    uint64_t work_forward, work_backward, work_backward_first, work_head;
    uint64_t x, kv, dkv, lists, means, store[TDM_STORES]; /* bytes of a chunk's slot */
    uint64_t set[TDM_SETS]; /* of the stores of a set, without the input */
    /* of stores, by their bits; and where heads are normed, so that q also has its product, the
     * workspace that they save in a backward */
    uint64_t store_sums[2][1u << TDM_STORES];
    uint64_t *votes_below; /* [layers + 1]: number of lower layers whose queries vote for pages */

    /* Gradients that are not resident, [layers + 1]: bytes of the layers below a layer. Transient
     * gradients are on the device while their layer (in chunk-major order: their group) goes
     * backward. Gradients that stay until the end of the backward are allocated while their layer
     * goes backward, on the device, or on the host once they are complete. */
    uint64_t *passing_below, *staying_below[TDM_MAX_PLACES];
    struct tdm_home noted_gradients; /* home of gradients for which they were computed */
    bool has_noted_gradients;
    /* of the head from its first tile on; of the embedding from layer 0 on */
    uint64_t head_gradient, embedding_gradient, tied_gradient;
    uint64_t head_stays[TDM_MAX_PLACES],
        embedding_stays[TDM_MAX_PLACES]; /* the part of these that stays; a tied gradient is counted
                                            with both */
};

/* Bytes at its home of a unit (a layer, embedding or head) in a state, as kept by the optimizer and
 * the forward. Gradients count only where they are resident. */
uint64_t tdm_estimator_unit_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit);

/* Bytes sent to the host for a unit whose state is at home there: what changed or, if it is updated
 * there, its gradient, which is counted with the weights. tdm_estimator_comes(): is state at home
 * on the host fetched to the device? tdm_estimator_passing_layers(): layers whose masters or
 * moments are. */
uint64_t tdm_estimator_sent_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                  uint32_t unit);

/* Bytes of a unit's state that pass at a time: of a slice (schedule/slices.h). */
uint64_t tdm_estimator_slice_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                   uint32_t unit);
bool tdm_estimator_comes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit);
uint32_t tdm_estimator_passing_layers(const struct tdm_estimator *e, enum tdm_state state);

/* The seconds of updates with so many layers' state at home on the device, embedding and head as
 * they are. Without updates on the host they do not depend on it. */
struct tdm_updates tdm_estimator_updates(const struct tdm_estimator *e, uint32_t device_layers);

/* Number of chunks of class `c` in [from, to). */
uint32_t tdm_estimator_count(const struct tdm_estimator *e, uint32_t c, uint32_t from, uint32_t to);

/* ---- making an estimator ---- */

/* Chunks of a sequence. */
uint64_t tdm_estimator_chunks_of(const struct tdm_schedule *schedule, uint32_t sequence);

/* Assigns all chunks to classes and times their attention. `lengths` has space for two classes per
 * sequence and one more. *class_list is [chunks]; the caller frees it. */
enum tdm_status tdm_estimator_walk_chunks(struct tdm_estimator *e, uint64_t *lengths,
                                          uint32_t **class_list, struct tdm_error *err);

/* Counts the chunks of each class. `class_list` is [chunks]. */
enum tdm_status tdm_estimator_count_classes(struct tdm_estimator *e, const uint32_t *class_list,
                                            struct tdm_error *err);

/* Takes the costs of a chunk of each class from small steps. `lengths`: tokens of a chunk of each
 * class. `like`: as of tdm_estimator_new_like(). */
enum tdm_status tdm_estimator_find_costs(struct tdm_estimator *e, const struct tdm_estimator *like,
                                         const uint64_t *lengths, struct tdm_error *err);

/* Sums of costs, one row for all layers with equal costs. `class_list` is [chunks]. */
enum tdm_status tdm_estimator_sum_layers(struct tdm_estimator *e, const uint32_t *class_list,
                                         struct tdm_error *err);

/* Tables of the sizes of states, which do not depend on homes. Layers share slots of one size, so
 * each counts as the largest, except with its gradients. */
bool tdm_estimator_note_units(struct tdm_estimator *e);

/* Adds all states at their homes. */
void tdm_estimator_add_states(const struct tdm_estimator *e, uint64_t bytes[TDM_MAX_PLACES]);

/* Computes what depends on the homes. */
void tdm_estimator_note_homes(struct tdm_estimator *e);

/* ---- estimating ---- */

/* Seconds of the last step passed to tdm_estimate_seconds(), with waits for copies. */
double tdm_estimate_waiting(const struct tdm_estimator *e);

/* The two halves of tdm_estimate() for a schedule that trains. `estimate` must be zero before.
 * tdm_estimate_seconds() fills all seconds except the likely ones; tdm_estimate_bytes() fills the
 * device's bytes without a tile of logits, and those besides it. */
void tdm_estimate_seconds(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                          struct tdm_estimate *estimate);
void tdm_estimate_bytes(const struct tdm_estimator *e, const struct tdm_schedule *schedule,
                        struct tdm_estimate *estimate);

/* Both halves, for a schedule whose pass is `evaluate`. */
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

/* Seconds of a group by itself, from layer `first` on, in layer-major order, forward and backward:
 * each sweep takes as long as its computing or its copies. groups[1]: the group above, if there is
 * one. */
double tdm_estimate_group(const struct tdm_estimator *estimator, const struct tdm_group *groups,
                          uint32_t first);

#endif
