/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule: the decisions about one training step, a few KB of JSON.
 *
 * For a model, the lengths of the step's sequences and a machine, it defines the loop nest (order,
 * list of groups, chunk size), what is kept or held and where, dtypes, the LM-head tile and the
 * optimizer. program.h expands it. The file contains the model's config and the machine's
 * description, so that it can be lowered, simulated and plotted by itself.
 */
#ifndef TDM_SCHEDULE_SCHEDULE_H
#define TDM_SCHEDULE_SCHEDULE_H

#include "base/dtype.h"
#include "base/status.h"
#include "machines/machine.h"
#include "models/model.h"
#include "ops/selector.h"
#include "schedule/residuals.h"
#include "schedule/sequence.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TDM_SCHEDULE_FORMAT "tidemark-schedule-2"

/* The purpose of a step: `evaluate` runs forward to the loss and changes no state. */
enum tdm_purpose { TDM_TRAIN, TDM_EVALUATE, TDM_PURPOSES };

enum tdm_order { TDM_LAYER_MAJOR, TDM_CHUNK_MAJOR, TDM_ORDERS };

/* K and V of a layer between its forward and its backward: recomputed by a sweep, or kept. */
enum tdm_kv { TDM_KV_RECOMPUTE, TDM_KV_KEEP, TDM_KVS };

/* The state that each keeps besides the weights: optimizer.h. */
enum tdm_optimizer {
    TDM_OPTIMIZER_NONE, /* gradients only */
    TDM_OPTIMIZER_ADAMW,
    TDM_OPTIMIZER_ADAMW_BF16_MOMENTS,
    TDM_OPTIMIZER_ADAMW_BF16,
    TDM_OPTIMIZER_SGD,
    TDM_OPTIMIZERS
};

/* Which rank has which chunk: ranks.h. */
enum tdm_deal { TDM_DEAL_SNAKE, TDM_DEAL_STRIPES, TDM_DEAL_CONTIGUOUS, TDM_DEAL_GREEDY, TDM_DEALS };
#define TDM_DEAL_NAMES "snake, stripes, contiguous or greedy"

/* What several ranks exchange so that queries see K and V of all ranks: K and V of every chunk and
 * shares of their gradients; or the heads of attention, of which every rank has a part for all
 * chunks; or K and V and sums of their gradients, which go around from rank to rank; or K and V in
 * the forward, and in the backward queries and sums of their gradients, which go around. Or heads
 * and another: ranks in a row divide the heads, and those of all rows with the same heads gather K
 * and V, or pass them around, or queries. */
enum tdm_exchange_kind {
    TDM_EXCHANGE_GATHER,
    TDM_EXCHANGE_HEADS,
    TDM_EXCHANGE_RING,
    TDM_EXCHANGE_QUERIES,
    TDM_EXCHANGE_HEADS_GATHER,
    TDM_EXCHANGE_HEADS_RING,
    TDM_EXCHANGE_HEADS_QUERIES,
    TDM_EXCHANGES
};
#define TDM_EXCHANGE_NAMES "gather, heads, ring, queries, heads+gather, heads+ring or heads+queries"
#define TDM_EXCHANGE_ROW_NAMES "heads+gather, heads+ring or heads+queries"

const char *tdm_purpose_name(enum tdm_purpose pass); /* "train", "evaluate" */
bool tdm_purpose_parse(const char *name, enum tdm_purpose *pass);
const char *tdm_order_name(enum tdm_order order);             /* "layer-major", "chunk-major" */
const char *tdm_optimizer_name(enum tdm_optimizer optimizer); /* "none", "adamw", ... */
bool tdm_order_parse(const char *name, enum tdm_order *order);
const char *tdm_kv_name(enum tdm_kv kv); /* "recompute", "keep" */
bool tdm_kv_parse(const char *name, enum tdm_kv *kv);
const char *tdm_deal_name(enum tdm_deal deal); /* "snake", "stripes", ... */
bool tdm_deal_parse(const char *name, enum tdm_deal *deal);
const char *tdm_exchange_kind_name(enum tdm_exchange_kind exchange); /* "gather", ... */
bool tdm_exchange_kind_parse(const char *name, enum tdm_exchange_kind *exchange);
/* Do ranks in a row divide the heads, while rows exchange something else? */
bool tdm_exchange_kind_has_rows(enum tdm_exchange_kind exchange);
bool tdm_optimizer_parse(const char *name, enum tdm_optimizer *optimizer);

/* Consecutive layers. The forward stores the input of the first one, and what the fields below
 * say. */
struct tdm_group {
    uint32_t layers;
    /* of the stored input; the input of the first group is the tokens */
    enum tdm_place input_place;
    enum tdm_set kept; /* stored by the forward for the whole step */
    /* checkpoint split; chunks before it keep the input only (see splits_by_position) */
    uint32_t kept_from_chunk;
    enum tdm_place kept_place;
    /* rebuilt when the group runs forward again, stored while the group is processed */
    enum tdm_set held;
    uint32_t held_from_chunk;
    enum tdm_place held_place; /* of inner inputs and of the held set, except K and V */
    /* of so many chunks, the last ones, these are on the device all the same; 0 if that is their
     * place (tdm_held_near_from) */
    uint32_t held_device_chunks;
    enum tdm_kv kv;          /* chunk-major keeps; layer-major holds K and V with set `qkv` */
    enum tdm_place kv_place; /* where they are kept */
    enum tdm_place kv_gradients_place; /* chunk-major only; there they live as long as the group */
};

/* Of a step of so many chunks: the place in it from which on a group holds on the device. */
static inline uint32_t tdm_held_near_from(const struct tdm_group *group, uint32_t chunks)
{
    if (group->held_place == TDM_DEVICE)
        return 0;
    return group->held_device_chunks < chunks ? chunks - group->held_device_chunks : 0;
}

/* State that outlives its use by a layer. Moments are both moments of AdamW. */
enum tdm_state {
    TDM_STATE_WEIGHTS,
    TDM_STATE_MASTER,
    TDM_STATE_MOMENTS,
    TDM_STATE_GRADIENTS,
    TDM_STATES
};

const char *tdm_state_name(enum tdm_state state); /* "weights", "master", "moments", "gradients" */

/* The home of a kind of state. State on the host is copied to the device for its use, and back if
 * it was changed. Layers at home on the host are spread as evenly as possible among the others, and
 * the top layer is one of them, so that copies flow throughout a sweep over the layers. */
struct tdm_home {
    /* layers at home on the device; the others are on the host: tdm_home_far_below() */
    uint32_t device_layers;
    enum tdm_place embedding, head;
};

/* Slots of the staging rings, which are on the device but for one. Rings into which chunks are
 * fetched have prefetch + 1 slots. */
struct tdm_rings {
    uint32_t weights;   /* for layers whose weights are on the host */
    uint32_t optimizer; /* for layers whose masters or moments are on the host */
    /* on the host: for gradients of layers that are updated there. With several, a gradient is sent
     * while layers before it are still updated */
    uint32_t host_gradients;
    uint32_t stashed; /* for chunks of a content on their way to the host */
    /* chunk-major: device rows for K and V, or their gradients, that are on the host */
    uint32_t kv;
    /* size, in chunks, of the device buffer for the pages of K and V that attention gathers from
     * the host by its lists; 0: whole chunks are fetched (gather.h) */
    uint32_t gather;
    /* layer-major, one rank: for an input from the host of which K and V are made ahead (nest.h),
     * 0 or 1; 0: they are not */
    uint32_t ahead;
    /* several ranks: gradients of layers that pass, 1 or 2. With 2 a layer's is summed over the
     * ranks while the next layer goes backward */
    uint32_t gradients;
};

#define TDM_MAX_RANKS 1024u
#define TDM_MAX_HEAD_RANKS 8u /* that divide the heads, of more ranks */
#define TDM_MAX_RING 16u
#define TDM_MAX_GATHER 4096u
#define TDM_DEFAULT_RINGS                                                                     \
    {                                                                                         \
        .weights = 2, .optimizer = 1, .host_gradients = 1, .stashed = 2, .kv = 2, .ahead = 0, \
        .gradients = 1                                                                        \
    }

/* Buffer sizes depend on no other dtypes. */
struct tdm_dtypes {
    enum tdm_dtype weights, master, activations, kv, kv_gradients, gradients, moments, logits;
};

/* The learning rate after warmup: learning_rate.h. */
enum tdm_rate_schedule { TDM_RATE_CONSTANT, TDM_RATE_LINEAR, TDM_RATE_COSINE, TDM_RATE_SCHEDULES };

/* When a unit is updated: as soon as its gradient is complete (layer-major: after its layer's
 * backward; chunk-major: after its group's), or together with all others after the backward. */
enum tdm_when { TDM_WHEN_LAYER, TDM_WHEN_END, TDM_WHENS };

/* Gradients are scaled down so that their norm is at most clip_norm: not at all, each unit by its
 * own norm, or all units by the norm over all of them. */
enum tdm_clip { TDM_CLIP_NONE, TDM_CLIP_LAYER, TDM_CLIP_GLOBAL, TDM_CLIPS };

struct tdm_optimizer_settings {
    enum tdm_optimizer kind;
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    uint32_t decayed;      /* what decays: a bit for each enum tdm_tensor_kind */
    uint64_t warmup_steps; /* linear from 0 */
    enum tdm_rate_schedule rate_schedule;
    uint64_t decay_steps; /* after warmup; 0 if constant */
    double final_learning_rate;
    enum tdm_when when;
    /* where units whose home is not the device are updated: on the device, to which they are
     * fetched, or at home, if a lane computes there; then their gradients are sent there
     * (tdm_updates_on_host) */
    enum tdm_place on;
    enum tdm_clip clip;
    double clip_norm; /* 0 if nothing is clipped */
};

struct tdm_schedule {
    struct tdm_model *model;     /* owned */
    struct tdm_machine *machine; /* owned: what it was planned for */
    uint64_t memory_bytes;       /* limit on used device bytes for which it was planned */
    uint64_t host_memory_bytes;
    /* host memory of a run beside this limit: a snapshot of the state, from which a checkpoint is
     * written while the next step computes; 0: none */
    uint64_t snapshot_bytes;

    uint32_t ranks;          /* devices that share the step, each with these limits: ranks.h */
    uint32_t ranks_per_node; /* that share a host's memory; 0: all */
    enum tdm_deal deal;
    enum tdm_exchange_kind exchange;
    uint32_t head_ranks; /* with heads and another: ranks in a row that divide the heads; else 0 */

    uint32_t sequence_count;
    struct tdm_sequence *sequences; /* [sequence_count] */
    /* the text of a run determines where documents begin; here each sequence is one document */
    bool documents_of_text;
    /* splits of groups count chunks by their position in their sequence: the first chunks of all
     * sequences, then the second ones. Else in the order in which the forward computes them. */
    bool splits_by_position;

    enum tdm_purpose pass;
    enum tdm_order order;
    uint32_t group_count;
    struct tdm_group *groups; /* from layer 0 up; sizes add up to the model's layers */
    uint64_t chunk_tokens;
    uint64_t page_tokens;
    struct tdm_selector selector; /* for layers to which the model gives no window */
    /* rows of an LM-head tile; more than a chunk has: the whole chunk */
    uint64_t head_tile_tokens;
    /* vocabulary entries of an LM-head tile; if not fewer than all: forward and backward in one
     * op */
    uint64_t head_tile_vocabulary;
    uint32_t prefetch; /* bodies by which a fetch runs ahead of its use; 0: none */
    /* the device's arena is good enough with so many bytes, or its limit if that is less, and is
     * not packed tighter: who waits for whom depends on which buffers share bytes, so a larger
     * arena can be faster; 0: as few bytes as are found */
    uint64_t packed_bytes;
    struct tdm_home homes[TDM_STATES];
    /* several ranks: each has its part of the weights at home (slices.h), and all gather a unit
     * when they use it; otherwise each rank has whole units at home */
    bool sliced_weights;
    struct tdm_rings rings;
    struct tdm_dtypes dtypes;
    struct tdm_optimizer_settings optimizer;
};

/* A schedule with the defaults from which every planner starts: one sequence of `context` tokens,
 * layer-major, groups of one, inputs on the device, bf16 with fp32 sums, AdamW. Takes ownership of
 * model and machine only on success. */
enum tdm_status tdm_schedule_new(struct tdm_model *model, struct tdm_machine *machine,
                                 uint64_t context, struct tdm_schedule **schedule,
                                 struct tdm_error *err);

/* Replaces the groups by `count` groups of the given sizes, each with the default settings (all on
 * the device, set `input`). */
enum tdm_status tdm_schedule_set_groups(struct tdm_schedule *schedule, uint32_t count,
                                        const uint32_t *layers, struct tdm_error *err);

void tdm_schedule_free(struct tdm_schedule *schedule);

/* JSON of a schedule (new reference) and back. Reading checks the format, that the digest matches
 * the config in the file, every field, and then runs tdm_schedule_check(). `predicted` (may be
 * NULL, borrowed) is stored in the file and ignored when reading. */
enum tdm_status tdm_schedule_to_json(const struct tdm_schedule *schedule, const json_t *predicted,
                                     json_t **root, struct tdm_error *err);
enum tdm_status tdm_schedule_from_json(const char *file, const json_t *root,
                                       struct tdm_schedule **schedule, struct tdm_error *err);
enum tdm_status tdm_schedule_load(const char *path, struct tdm_schedule **schedule,
                                  struct tdm_error *err);

/* Gives all groups the settings that the pass `evaluate` requires: it stores nothing for a
 * backward. */
void tdm_schedule_set_evaluate(struct tdm_schedule *schedule);

/* Replaces the sequences by `count` sequences of `tokens` tokens, each of one document. */
enum tdm_status tdm_schedule_set_sequences(struct tdm_schedule *schedule, uint32_t count,
                                           uint64_t tokens, struct tdm_error *err);

/* Tokens of all sequences of the step; and those of them that have a target. */
uint64_t tdm_schedule_tokens(const struct tdm_schedule *schedule);
uint64_t tdm_schedule_trained_tokens(const struct tdm_schedule *schedule);

/* The limit on used bytes of a place for which it was planned: the schedule's own limit for device
 * and host, the whole capacity for other places. */
uint64_t tdm_schedule_limit(const struct tdm_schedule *schedule, enum tdm_place place);

/* Ranks whose arenas at a place are in the same memory: all of a node, if it is the computer's own;
 * else one. */
uint32_t tdm_schedule_sharers(const struct tdm_schedule *schedule, enum tdm_place place);

/* Sets the order, and for all groups the default handling of K and V in that order: layer-major
 * recomputes them, chunk-major keeps them on the device. */
void tdm_schedule_set_order(struct tdm_schedule *schedule, enum tdm_order order);

/* Does one step leave state of this kind to the next? Weights; master and moments if the optimizer
 * has them. */
bool tdm_schedule_keeps(const struct tdm_schedule *schedule, enum tdm_state state);

/* Bytes of the state that one step leaves to the next, of all ranks together: of a snapshot. */
uint64_t tdm_schedule_state_bytes(const struct tdm_schedule *schedule);

/* The home of a unit's state of a kind. */
enum tdm_place tdm_schedule_home(const struct tdm_schedule *schedule, enum tdm_state state,
                                 uint32_t unit);

/* Number of layers below `layer` that are at home on the host, in a model of `layers` layers. */
uint32_t tdm_home_far_below(const struct tdm_home *home, uint32_t layers, uint32_t layer);

/* The index of `layer` among the layers with the same home, counted from below. And the inverse:
 * the layer with index `slot` among those whose home is `place`. */
uint32_t tdm_home_slot(const struct tdm_home *home, uint32_t layers, uint32_t layer);
uint32_t tdm_home_layer(const struct tdm_home *home, uint32_t layers, enum tdm_place place,
                        uint32_t slot);

/* Sets the home of a kind of state: `device_layers` layers, embedding and head at `rest`. */
void tdm_schedule_set_home(struct tdm_schedule *schedule, enum tdm_state state,
                           uint32_t device_layers, enum tdm_place rest);

/* What a layer's queries see: by the model's window if it has one, else by the schedule's
 * selector. */
struct tdm_page_rule tdm_schedule_page_rule(const struct tdm_schedule *schedule, uint32_t layer);

/* The selector by which layers list pages. TDM_SELECT_DENSE if no layer does: the schedule's
 * selector makes no lists, or the model gives windows to all layers. */
enum tdm_selector_kind tdm_schedule_lists(const struct tdm_schedule *schedule);

/* Ranks among which the heads of attention are divided: all, some in a row, or, where each has all
 * heads, one. */
uint32_t tdm_schedule_head_parts(const struct tdm_schedule *schedule);

/* Do ranks divide the heads of attention? Do they gather K and V in rounds? */
bool tdm_schedule_divides_heads(const struct tdm_schedule *schedule);
bool tdm_schedule_gathers(const struct tdm_schedule *schedule);

/* Do K and V go around a ring of ranks, so that attention takes one chunk of them at a time? And in
 * the backward queries instead? */
bool tdm_schedule_rings(const struct tdm_schedule *schedule);
bool tdm_schedule_passes_queries(const struct tdm_schedule *schedule);

/* Group of a layer. */
uint32_t tdm_schedule_group_of(const struct tdm_schedule *schedule, uint32_t layer);

/* First layer of a group. */
uint32_t tdm_schedule_first_layer(const struct tdm_schedule *schedule, uint32_t group);

#endif
