/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the lowering. Not for use outside schedule/lower*.c.
 *
 * lower_emit.c builds ops operand by operand. lower_where.c finds where a body reads and writes.
 * lower_layer.c has the table of a layer's forward, lower_layer_ops.c its ops. lower_backward.c,
 * lower_head.c and lower_update.c turn the other bodies into ops. lower.c allocates and frees
 * buffers around them.
 */
#ifndef TDM_SCHEDULE_LOWER_PARTS_H
#define TDM_SCHEDULE_LOWER_PARTS_H

#include "schedule/layout.h"
#include "schedule/lowering.h"
#include "schedule/nest.h"
#include "schedule/ranks.h"

/* A set of contents as a mask. */
#define TDM_BIT(content) ((uint64_t)1 << (content))

/* The operands of attention's gradient other than K, V and their gradients. */
struct tdm_attention_refs {
    struct tdm_ref q, out, d_out, d_q, lists;
};

/* A body in the queue, and the destinations of its fetches. */
struct tdm_pending {
    struct tdm_body body;
    struct tdm_ref fetched_x, fetched[TDM_STORES];
    bool runs_ahead; /* counts in queue_chunks */
    bool waits;      /* its input is fetched when the body before it leaves the queue */
};

/* Contents of the ring of weights. Visits are in the order of the layout's list; some are fetched
 * ahead. */
struct tdm_weight_ring {
    uint32_t layer[TDM_MAX_RING];  /* in each slot; TDM_NONE: empty */
    uint64_t needed[TDM_MAX_RING]; /* 1 + the last visit for which the slot is reserved */
    uint32_t visit, next;          /* current visit; first one without a reserved slot */
    uint32_t current;              /* layer of the current visit */
};

/* Contents of the rings of state, in the order of the layout's list of updates. */
struct tdm_state_ring {
    bool open;                /* they are allocated */
    bool layers;              /* state of a layer passes through them */
    bool layers_ended;        /* all layers have gone backward */
    uint32_t update, next;    /* next update to run; first one not completely fetched */
    uint32_t content;         /* next content of update `next` to fetch */
    uint32_t bodies, fetched; /* counts since the last update: bodies, contents fetched */
    uint32_t kept; /* layer whose updated master is still to be sent home; TDM_NONE: none */
};

struct tdm_lowering {
    const struct tdm_program *program;
    const struct tdm_schedule *schedule;
    const struct tdm_model *model;
    const struct tdm_layout *layout;
    bool layers_alike;    /* their parts are at the same offsets in a slot */
    uint32_t rank_chunks; /* the most that a rank has of the step */
    bool whole_row;       /* of tdm_nest_kv_ahead() */
    bool lives_only;      /* only allocations and frees are asked for: ops are left out */
    tdm_sink sink;
    void *self;
    struct tdm_error *err;
    enum tdm_status status; /* once it is not TDM_OK, nothing more is emitted */
    uint64_t op_count;
    struct tdm_op op; /* under construction */

    struct tdm_pending queue[TDM_MOST_QUEUED];
    uint32_t queue_first, queue_count, queue_chunks, depth; /* queue_chunks: bodies of chunks */
    uint32_t next_fetched_x, next_stashed_x;                /* slots of the staging rings */
    uint32_t next_fetched[TDM_STORES], next_stashed[TDM_STORES];
    struct tdm_weight_ring ring;
    uint32_t kv_row; /* next of the rows that stage K and V */
    struct tdm_state_ring states;
    struct tdm_ref host_gradient; /* of the unit that the host updates next; in a ring it is */
    bool host_gradient_taken;     /* taken when the first of it is sent */
    uint32_t next_host_gradient;  /* of the ring of the layers */
    uint32_t staged_users[TDM_UNIT_ROWS]; /* of the staged weights of embedding and head */
};

/* ---- lower_emit.c ---- */

/* Emit the alloc or free of a buffer; TDM_NONE: nothing to do. */
void tdm_low_alloc(struct tdm_lowering *l, uint32_t buffer);
void tdm_low_release(struct tdm_lowering *l, uint32_t buffer);

/* Begin an op, give it operands in any order, then end it: it is then counted and emitted. Below,
 * `operand` is the number of an operand in the enum of its kind (ops/). Operands that are not given
 * are absent. */
void tdm_low_op_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                      enum tdm_part part);
void tdm_low_op_end(struct tdm_lowering *l);

/* Tags of what a slot holds. The tag of a running sum also names its last contributor. */
struct tdm_tag tdm_low_tag(enum tdm_content content, uint32_t layer, uint32_t chunk);
struct tdm_tag tdm_low_sum_tag(enum tdm_content content, uint32_t layer, uint32_t chunk,
                               uint32_t contributor);
/* The same for the rank's share of a sum over ranks; with one rank that is the sum. */
struct tdm_tag tdm_low_share_tag(const struct tdm_lowering *l, enum tdm_content content,
                                 uint32_t layer, uint32_t chunk, uint32_t contributor);

/* The tag of a unit's gradient, or of its tied part, when it is complete: the sum of all, or with
 * several ranks of the part that the rank updates (tdm_sums_by_part()). */
struct tdm_tag tdm_low_complete_tag(const struct tdm_lowering *l, enum tdm_content content,
                                    uint32_t unit);

/* Sets any operand. */
void tdm_low_access(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref, uint32_t slots,
                    enum tdm_mode mode, uint32_t part, struct tdm_tag before, struct tdm_tag after,
                    uint64_t bytes);

/* Operands of one slot that holds rows of the op's chunk; and the bytes of such a slot. */
uint64_t tdm_low_row_bytes(const struct tdm_lowering *l, enum tdm_content content);
void tdm_low_reads(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref,
                   struct tdm_tag what);
void tdm_low_writes(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref,
                    struct tdm_tag what);
void tdm_low_changes(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref,
                     struct tdm_tag before, struct tdm_tag after);

/* The workspace for a content. */
struct tdm_ref tdm_low_work(const struct tdm_lowering *l, enum tdm_content content);
void tdm_low_alloc_work(struct tdm_lowering *l, enum tdm_content content);
void tdm_low_release_work(struct tdm_lowering *l, enum tdm_content content);

/* Allocates a gradient buffer, unless it outlives the step, as it does without an optimizer. */
void tdm_low_alloc_gradient(struct tdm_lowering *l, uint32_t buffer);
struct tdm_ref tdm_low_gradient_ref(const struct tdm_lowering *l, uint32_t unit);

/* Adds a chunk's contribution to the gradient of a part. The first contribution overwrites
 * (ranks.h). */
void tdm_low_adds_gradient(struct tdm_lowering *l, uint32_t operand, uint32_t unit,
                           enum tdm_part part, uint32_t chunk);
/* The same for the chunk and layer of the op. */
void tdm_low_adds_layer_gradient(struct tdm_lowering *l, uint32_t operand, enum tdm_part part);

/* Sets link and lane of the copy under construction from the places of two buffers: the link
 * between them, or within one place the lane that computes there. The emission fails with TDM_INPUT
 * if the machine has neither. */
void tdm_low_route(struct tdm_lowering *l, uint32_t from, uint32_t to);

/* Copy the contents of a slot; whether a buffer is not on the device; the next slot of a staging
 * ring. */
void tdm_low_copy(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref from,
                  struct tdm_ref to, struct tdm_tag what);
bool tdm_low_is_far(const struct tdm_lowering *l, uint32_t buffer);
struct tdm_ref tdm_low_next_slot(const struct tdm_lowering *l, uint32_t ring, uint32_t *next);

/* Copy one part of a unit between places, or a whole unit between its home and the place of use. */
void tdm_low_copy_part(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                       struct tdm_ref from, struct tdm_ref to, struct tdm_tag what);
void tdm_low_copy_unit(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref from,
                       struct tdm_ref to, struct tdm_tag what);

/* Bytes of a slice of a content of a unit. */
uint64_t tdm_low_slice_bytes(const struct tdm_lowering *l, enum tdm_content content, uint32_t unit,
                             uint32_t slice);

/* ---- lower_stream.c ---- */

/* The device slot in which a unit's weights, master or moments are used. */
struct tdm_ref tdm_low_unit_on_device(const struct tdm_lowering *l, enum tdm_content content,
                                      uint32_t unit);

/* Weights of a unit as an operand. */
void tdm_low_reads_weights(struct tdm_lowering *l, uint32_t operand, uint32_t unit,
                           enum tdm_part part);
/* To be called before a body uses a layer's weights: fetches them, and prefetches those of the next
 * layers. */
void tdm_low_visit(struct tdm_lowering *l, const struct tdm_body *body, uint32_t layer);

/* Begin and end of the use of the weights of embedding or head. If their home is elsewhere, they
 * are copied to a staging buffer at the first use, which is released after the last. */
void tdm_low_stage_weights(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit);
void tdm_low_unstage_weights(struct tdm_lowering *l, uint32_t unit);

/* To be called when a body of layers begins: fetches some of the state for the next updates
 * meanwhile. */
void tdm_low_stream_body(struct tdm_lowering *l, const struct tdm_body *body);

/* In how many slices the device updates a unit: one, unless some of its state passes through the
 * rings. */
uint32_t tdm_low_update_slices(const struct tdm_lowering *l, uint32_t unit);

/* Before and after the update of a slice of a unit: fetches the state that it changes, then sends
 * it home. Slices are updated in their order. */
void tdm_low_update_begin(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit,
                          uint32_t slice);
void tdm_low_update_end(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit,
                        uint32_t slice);

/* Allocate and free the ring of weights for the whole step, and the rings of state for a phase of
 * updates. */
void tdm_low_stream_phase(struct tdm_lowering *l, const struct tdm_body *body, bool begin);

/* Before the first update of a layer, allocates the rings of state if layers need them and they are
 * not there yet, and fills them. */
void tdm_low_open_states(struct tdm_lowering *l, const struct tdm_body *body);
/* After the last update of a layer, frees the rings unless the embedding needs them too. */
void tdm_low_end_layers(struct tdm_lowering *l);

/* ---- lower_where.c ---- */

/* Does X pass through the stream buffer from layer to layer in the first forward? */
bool tdm_low_streams_x(const struct tdm_lowering *l);
/* Queries of the schedule: the order, the position of a layer in its group; and the stream slot of
 * a chunk. */
bool tdm_low_layer_major(const struct tdm_lowering *l);
bool tdm_low_first_of_group(const struct tdm_lowering *l, uint32_t layer);
bool tdm_low_top_of_group(const struct tdm_lowering *l, uint32_t layer);
struct tdm_ref tdm_low_stream_ref(const struct tdm_lowering *l, uint32_t chunk);

/* Home of the stored X of a body's layer; tdm_nowhere if it is not stored (it is embedded from
 * tokens, or passes through the forward). */
struct tdm_ref tdm_low_stored_x(const struct tdm_lowering *l, const struct tdm_body *body);
/* Does a store of a body's chunk exist before the body runs? */
bool tdm_low_is_there(const struct tdm_lowering *l, const struct tdm_body *body,
                      enum tdm_store store);

/* tdm_low_source(): where such a store can be read on the device. tdm_low_target(): where a body
 * writes a store that it makes: its home, a staging ring, or the workspace, which is then allocated
 * and *work set. */
struct tdm_ref tdm_low_source(const struct tdm_lowering *l, const struct tdm_pending *pending,
                              enum tdm_store store);
struct tdm_ref tdm_low_target(struct tdm_lowering *l, const struct tdm_body *body,
                              enum tdm_store store, bool *work);

/* The body has completed a store at `at`: copies it to the host if its home is there. */
void tdm_low_stash(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_store store,
                   struct tdm_ref at);

/* Does a body make K and V of a layer between the bodies of the layer above (nest.h)? */
bool tdm_low_makes_ahead(const struct tdm_lowering *l, const struct tdm_body *body);

/* Emits the copies of everything that a body will read from the host. `read`, `made`: contents of
 * its layer and chunk (tdm_low_reads_of_body()). */
void tdm_low_fetch(struct tdm_lowering *l, struct tdm_pending *pending, uint64_t read,
                   uint64_t made);
/* Where a forward writes the next layer's input on the device. *home: where it must be copied from
 * there. */
struct tdm_ref tdm_low_output_of(struct tdm_lowering *l, const struct tdm_body *body,
                                 struct tdm_ref *home);

/* ---- lower_kv.c ---- */

/* How K and V of a body's chunk get into the row that its attention reads. */
enum tdm_kv_step {
    TDM_KV_THERE, /* already there, or not needed */
    TDM_KV_MAKE,  /* computed: norm, KV product */
    TDM_KV_FETCH, /* copied from the host */
};
enum tdm_kv_step tdm_low_kv_step(const struct tdm_lowering *l, const struct tdm_body *body);

/* The row of K and V of a layer in a pass. */
uint32_t tdm_low_kv_row(const struct tdm_lowering *l, uint32_t layer, enum tdm_pass pass);

/* Where a body writes the K and V that it makes; and the row, at home or on the device, in which
 * attention finds those of all chunks that the body's chunk sees. */
struct tdm_ref tdm_low_made_kv(const struct tdm_lowering *l, const struct tdm_body *body);
uint32_t tdm_low_seen_kv(const struct tdm_lowering *l, const struct tdm_body *body);

/* The row of dK, dV to which attention adds; and where the complete dK, dV of a body's chunk can be
 * read on the device. If their home is the host they are fetched now. */
uint32_t tdm_low_seen_dkv(const struct tdm_lowering *l, uint32_t layer);
struct tdm_ref tdm_low_finished_dkv(struct tdm_lowering *l, const struct tdm_body *body);

/* The slot of a chunk in a row of K and V or of their gradients, as of the current body. */
struct tdm_ref tdm_low_kv_ref(const struct tdm_lowering *l, const struct tdm_body *body,
                              uint32_t row, uint32_t chunk);

/* Chunks [first, end) as an operand, in such a row or in one with a slot for every chunk. The tags
 * are those of `first`. The operand is absent if there are no chunks. */
void tdm_low_chunks(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                    uint32_t row, uint32_t first, uint32_t end, enum tdm_mode mode,
                    struct tdm_tag before, struct tdm_tag after);

/* Before a backward adds to the gradients of K and V of chunks that no earlier backward body saw:
 * if the row is full, moves the chunks that are still seen. */
void tdm_low_dkv_move_if_full(struct tdm_lowering *l, const struct tdm_body *body);

/* Fetches K and V of a body's chunk from the host, in chunk-major order with everything that it
 * sees. */
void tdm_low_kv_fetch(struct tdm_lowering *l, const struct tdm_body *body);

/* Before and after a body makes the K and V of its chunk in `made`: makes space in the row, and
 * sends them home. */
void tdm_low_kv_enter(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref made);
void tdm_low_kv_send(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref made);

/* Gradients of K and V whose home is the host: fetch those that later chunks have added to, and
 * send them back. */
void tdm_low_dkv_fetch(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_dkv_send(struct tdm_lowering *l, const struct tdm_body *body);

/* ---- lower_team.c ---- */

/* Begins an op of the round of a body's chunk, for chunks [first, end) of it. */
void tdm_low_round_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                         uint32_t first, uint32_t end);

/* The chunk after those of a body's round whose bodies make the output of attention. These are the
 * first ones, because later chunks are those for which it is stored. */
uint32_t tdm_low_attention_end(const struct tdm_lowering *l, const struct tdm_body *body);

/* With several ranks: exchanges the K and V of the round of a body's chunk, as far as bodies of its
 * layer and pass make them; and, if they gather, reduces the shares of the round's dK and dV. All
 * ranks call them in the same order, also those without a chunk in the round. */
void tdm_low_exchange_kv(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_reduce(struct tdm_lowering *l, const struct tdm_body *body);

/* May other ranks' chunks add to this rank's sums of dK and dV before its own do? Then the sums
 * begin with the layer's backward. */
bool tdm_low_ranks_add_first(const struct tdm_lowering *l);

/* Sums the shares of the gradient of a body's unit over the ranks; and their sums of squares. */
void tdm_low_reduce_gradient(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_reduce_norm(struct tdm_lowering *l, const struct tdm_body *body);

/* Gathers the weights of a body's unit at `at`, where each rank has its part: as the step found it
 * (`contributor` TDM_NONE), or updated (0). */
void tdm_low_gather_weights(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref at,
                            uint32_t contributor);

/* ---- lower_heads.c ---- */

/* If ranks divide the heads of attention. Where a body's own chunk has its K and V of all heads;
 * and the exchange of those of chunks [first, end) of its round. */
struct tdm_ref tdm_low_own_kv(const struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_heads_kv(struct tdm_lowering *l, const struct tdm_body *body, uint32_t first,
                      uint32_t end);

/* Attention of the chunks of a body's round whose bodies make it; all ranks call it, also those
 * whose chunk needs none. `q`, `output`: of the rank's own chunk, if its body makes it. */
void tdm_low_heads_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                             struct tdm_ref output);

/* Gives each rank of a set dK and dV of its own chunk of a round, of which the ranks have the sums
 * of their heads. */
void tdm_low_heads_dkv(struct tdm_lowering *l, const struct tdm_body *body);

/* The gradient of attention of all chunks of a body's round. `own` are the operands of the rank's
 * own chunk; NULL if it has none in the round. Allocates the workspace of its dK and dV. */
void tdm_low_heads_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                                  const struct tdm_attention_refs *own);

/* ---- lower_ring.c ---- */

/* If K and V go around a ring: attention of the chunks of a body's round whose bodies make it, and
 * its gradient. The operands are of the rank's own chunk, or, if ranks divide the heads, of its
 * heads of the first chunk of its set; others of these have the slots behind. If there is none they
 * are not read. */
void tdm_low_ring_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                            struct tdm_ref output);
void tdm_low_ring_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                                 const struct tdm_attention_refs *own);

/* Where K and V of one of the rank's own chunks are, and their gradients. */
struct tdm_ref tdm_low_kv_at_home(const struct tdm_lowering *l, const struct tdm_body *body,
                                  uint32_t chunk);
struct tdm_ref tdm_low_dkv_at_home(const struct tdm_lowering *l, const struct tdm_body *body,
                                   uint32_t chunk);

/* Begins a hop in a lap of the round that begins with chunk `first`: what goes around is then
 * `hops` sets from its own. `queries`: the first chunk of the round whose queries see it. */
void tdm_low_hop_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                       uint32_t first, uint32_t lap, uint32_t hops, uint32_t queries);

/* An operand of one slot, for the chunk of `after`. */
void tdm_low_of_chunk(struct tdm_lowering *l, uint32_t operand, struct tdm_ref at,
                      enum tdm_mode mode, struct tdm_tag before, struct tdm_tag after);

/* ---- lower_queries.c ---- */

/* If queries go around in the backward: what tdm_low_ring_attention_grad() does. */
void tdm_low_queries_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                                    const struct tdm_attention_refs *own);

/* ---- lower_lists.c ---- */

/* Does the first forward of a layer compute attention? */
bool tdm_low_first_selects(const struct tdm_lowering *l, uint32_t layer);

/* Page means of a layer: allocated when its K is first computed. Freed after the first forward has
 * used them, or after the backward if the first forward computes only K and V. */
void tdm_low_alloc_means(struct tdm_lowering *l, uint32_t layer);
void tdm_low_release_means(struct tdm_lowering *l, uint32_t layer, bool backward);

/* Are page means of the K that bodies like this one make needed? And computes them for the K that a
 * body has just made, if they are. */
bool tdm_low_makes_means(const struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_page_means(struct tdm_lowering *l, const struct tdm_body *body);

/* The page lists of a body's chunk: kept ones, or made now from its q; tdm_nowhere if the layer has
 * none. *work: they are in the workspace, which the caller releases. */
struct tdm_ref tdm_low_lists(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                             bool *work);
/* As an operand, if there are any. */
void tdm_low_reads_lists(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                         struct tdm_ref lists);

/* ---- lower_layer_ops.c ---- */

/* Where the input of a body's layer can be read on the device. Sets *embedded if it was made in the
 * workspace, which the caller releases. */
struct tdm_ref tdm_low_input_of(struct tdm_lowering *l, const struct tdm_pending *pending,
                                bool *embedded);

/* Ops whose sources and targets are allocated. Each slot is followed by the content in it. */
void tdm_low_norm(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                  struct tdm_ref x, enum tdm_content from, struct tdm_ref output,
                  enum tdm_content to);
/* output = [addend +] input * weights^T. */
void tdm_low_product(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                     struct tdm_ref input, enum tdm_content from, struct tdm_ref output,
                     struct tdm_tag made, struct tdm_ref addend, enum tdm_content added);
/* q from the normed input, into `q`. With QK-norm the raw product is made in the workspace and
 * stays there for a backward. */
void tdm_low_q_product(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed,
                       struct tdm_ref q);
/* Are the heads of q and k of a body's layer normed? */
bool tdm_low_qk_norm(const struct tdm_lowering *l, const struct tdm_body *body);
/* The raw products, into workspaces that are allocated here. */
void tdm_low_q_raw(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed);
void tdm_low_kv_raw(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed);
/* K and V of a body's chunk from the normed input. */
void tdm_low_kv_product(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed);
void tdm_low_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                       struct tdm_ref output, struct tdm_ref lists);
void tdm_low_activation(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref gate_up,
                        struct tdm_ref output);

/* ---- lower_layer.c ---- */

/* The values of a layer for a chunk, while a body runs. */
struct tdm_values {
    const struct tdm_pending *pending;
    uint64_t made;                   /* made by this body */
    uint64_t work;                   /* allocated in the workspace */
    struct tdm_ref at[TDM_CONTENTS]; /* where they can be read on the device */
};

/* A content as attention has it: if ranks divide the heads, the rank's heads of q, of the output
 * and of their gradients. */
enum tdm_content tdm_low_attended(const struct tdm_lowering *l, enum tdm_content content);

/* The contents that a body of layers reads of its layer and chunk. *made: those of them that it
 * must make first. */
uint64_t tdm_low_reads_of_body(const struct tdm_lowering *l, const struct tdm_body *body,
                               uint64_t *made);

/* tdm_low_values_begin() finds existing values and the input, which may be embedded now;
 * tdm_low_values_make() makes the rest. Values that neither the body's last ops nor a gradient
 * reads are released on the way; the caller releases all others. */
void tdm_low_values_begin(struct tdm_lowering *l, const struct tdm_pending *pending,
                          struct tdm_values *v);
void tdm_low_values_make(struct tdm_lowering *l, struct tdm_values *v);

/* What a rank does for the attention of a body's round whose output its own body does not make. */
void tdm_low_attention_of_others(struct tdm_lowering *l, const struct tdm_body *body);

/* Releases the workspace of a value, if it is in one. */
void tdm_low_value_free(struct tdm_lowering *l, struct tdm_values *v, enum tdm_content content);

/* Bodies. */
void tdm_low_forward_body(struct tdm_lowering *l, const struct tdm_pending *pending);
void tdm_low_kv_body(struct tdm_lowering *l, const struct tdm_pending *pending);

/* ---- lower_head.c ---- */

/* Final norm, LM head and loss, forward alone. */
void tdm_low_loss_body(struct tdm_lowering *l, const struct tdm_body *body);
/* Final norm, LM head and loss, forward and backward: each row of the last X is replaced by its
 * gradient. */
void tdm_low_head_body(struct tdm_lowering *l, const struct tdm_body *body);

/* ---- lower_backward.c ---- */

/* Recompute of missing values, and backward; a chunk's contribution to the gradient of the
 * embedding. */
void tdm_low_backward_body(struct tdm_lowering *l, const struct tdm_pending *pending);
/* If ranks gather K and V, the second half of it. */
void tdm_low_backward_kv_body(struct tdm_lowering *l, const struct tdm_pending *pending);
void tdm_low_embedding_body(struct tdm_lowering *l, const struct tdm_body *body);
/* The gradient of attention of a body's chunk. */
void tdm_low_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                            const struct tdm_attention_refs *refs);

/* ---- lower_update.c ---- */

/* Updates the rows of the embedding that no token of the step uses, if they are updated apart, once
 * its weights were fetched for the forward. */
void tdm_low_update_unused(struct tdm_lowering *l);

/* Norm of a unit's gradient; update of a unit, on the device or on the host. */
void tdm_low_gradient_norm_body(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_optimizer_body(struct tdm_lowering *l, const struct tdm_body *body);

/* To be called after an op of a layer's backward that added to the gradient of a part. Sends the
 * part to the host now if it is complete and the host updates the layer as soon as its gradient
 * arrives. */
void tdm_low_send_part(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part);

/* Does the buffer of a layer's gradient stay allocated until a lower layer uses it for its own? If
 * it were freed, another buffer could take its bytes, and the first op on that would wait for all
 * copies out of it. Keeping it does not raise the peak: the backwards of both layers need it. And
 * is it there already, because an upper layer's gradient was in it? */
bool tdm_low_gradient_goes_on(const struct tdm_lowering *l, uint32_t layer);
bool tdm_low_gradient_came_on(const struct tdm_lowering *l, uint32_t layer);

/* Allocate or free a phase's buffers for data that goes to the host for its updates. */
void tdm_low_host_update_phase(struct tdm_lowering *l, const struct tdm_body *body, bool begin);

#endif
