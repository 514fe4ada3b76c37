/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the lowering share. Not for use outside schedule/lower*.c.
 *
 * lower_emit.c builds ops operand by operand, lower_where.c knows where a body finds and leaves
 * things, lower_layer.c has the table of a layer forward and lower_layer_ops.c its ops;
 * lower_backward.c, lower_head.c and lower_update.c turn the other bodies into ops, and lower.c
 * allocates and frees around them.
 */
#ifndef TDM_SCHEDULE_LOWER_PARTS_H
#define TDM_SCHEDULE_LOWER_PARTS_H

#include "schedule/layout.h"
#include "schedule/lowering.h"
#include "schedule/nest.h"
#include "schedule/ranks.h"

/* Bodies that the queue can hold; more than any prefetch. */
#define MAX_QUEUE 32u

/* A body in the queue, and where its fetches put what it will read. */
struct tdm_pending {
    struct tdm_body body;
    struct tdm_ref fetched_x, fetched[TDM_STORES];
};

/* What the ring of weights holds: visits in the order of the layout's list, some of them ahead. */
struct tdm_weight_ring {
    uint32_t layer[TDM_MAX_RING];  /* in a slot; TDM_NONE: nothing */
    uint64_t needed[TDM_MAX_RING]; /* 1 + the last visit that was promised the slot */
    uint32_t visit, next;          /* under way; not yet promised a slot */
    uint32_t current;              /* layer under way */
};

/* What the rings of state hold, in the order of the layout's list of updates. */
struct tdm_state_ring {
    uint32_t update, next;    /* due; not yet fetched whole */
    uint32_t content;         /* of that, the next to be fetched */
    uint32_t bodies, fetched; /* since the last update: bodies, contents fetched */
};

struct tdm_lowering {
    const struct tdm_program *program;
    const struct tdm_schedule *schedule;
    const struct tdm_model *model;
    const struct tdm_layout *layout;
    bool layers_alike; /* their parts are at the same places of a slot */
    tdm_sink sink;
    void *self;
    struct tdm_error *err;
    enum tdm_status status; /* once it is not TDM_OK, nothing more is emitted */
    uint64_t op_count;
    struct tdm_op op; /* under construction */

    struct tdm_pending queue[MAX_QUEUE];
    uint32_t queue_first, queue_count, depth;
    uint32_t next_fetched_x, next_stashed_x; /* slots of the staging rings */
    uint32_t next_fetched[TDM_STORES], next_stashed[TDM_STORES];
    struct tdm_weight_ring ring;
    uint32_t kv_row; /* of the rows through which K and V pass */
    struct tdm_state_ring states;
    struct tdm_ref host_gradient; /* of the unit that the host updates next; in a ring it is */
    bool host_gradient_taken;     /* taken when the first of it is sent */
    uint32_t next_host_gradient;  /* of the ring of the layers */
    uint32_t room_users[TDM_UNIT_ROWS]; /* of the rooms for weights of embedding and head */
};

/* ---- lower_emit.c ---- */

/* Items of a buffer; TDM_NONE: nothing to do. */
void tdm_low_alloc(struct tdm_lowering *l, uint32_t buffer);
void tdm_low_release(struct tdm_lowering *l, uint32_t buffer);

/* An op is begun, given its operands in any order, and ended: then it is counted and emitted.
 * Below, `operand` is the number of an operand in the enum of its kind (ops/). Those that it is not
 * given are absent. */
void tdm_low_op_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                      enum tdm_part part);
void tdm_low_op_end(struct tdm_lowering *l);

/* What a slot holds; a running sum has its last contributor too. */
struct tdm_tag tdm_low_tag(enum tdm_content content, uint32_t layer, uint32_t chunk);
struct tdm_tag tdm_low_sum_tag(enum tdm_content content, uint32_t layer, uint32_t chunk,
                               uint32_t contributor);

/* Any operand. */
void tdm_low_access(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref, uint32_t slots,
                    enum tdm_mode mode, uint32_t part, struct tdm_tag before, struct tdm_tag after,
                    uint64_t bytes);

/* Operands of one slot that holds rows of the op's chunk, and the bytes of such a slot. */
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

/* Units: weights as an operand, the slot of a gradient. */
void tdm_low_reads_weights(struct tdm_lowering *l, uint32_t operand, uint32_t unit,
                           enum tdm_part part);
/* Allocates a buffer of gradients unless it outlives the step, as without an optimizer. */
void tdm_low_alloc_gradient(struct tdm_lowering *l, uint32_t buffer);
struct tdm_ref tdm_low_gradient_ref(const struct tdm_lowering *l, uint32_t unit);

/* Adds a chunk's contribution to a part's gradient; the first one overwrites (ranks.h). */
void tdm_low_adds_gradient(struct tdm_lowering *l, uint32_t operand, uint32_t unit,
                           enum tdm_part part, uint32_t chunk);
/* The same by the op's chunk, of the op's layer. */
void tdm_low_adds_layer_gradient(struct tdm_lowering *l, uint32_t operand, enum tdm_part part);

/* Sets link and lane of a copy under construction by the places of two buffers: that of the link
 * between them, or in one place the lane that computes there. The emission fails with TDM_INPUT if
 * the machine has neither. */
void tdm_low_route(struct tdm_lowering *l, uint32_t from, uint32_t to);

/* A copy of what a slot holds; is a buffer at another place than the device; the next slot of a
 * staging ring. */
void tdm_low_copy(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref from,
                  struct tdm_ref to, struct tdm_tag what);
bool tdm_low_is_far(const struct tdm_lowering *l, uint32_t buffer);
struct tdm_ref tdm_low_next_slot(const struct tdm_lowering *l, uint32_t ring, uint32_t *next);

/* A part of a unit between places; a whole unit between its home and where it is used. */
void tdm_low_copy_part(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                       struct tdm_ref from, struct tdm_ref to, struct tdm_tag what);
void tdm_low_copy_unit(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref from,
                       struct tdm_ref to, struct tdm_tag what);

/* ---- lower_stream.c ---- */

/* Where a unit's weights, master or moments can be used on the device. */
struct tdm_ref tdm_low_unit_on_device(const struct tdm_lowering *l, enum tdm_content content,
                                      uint32_t unit);

/* A body is about to use a layer's weights: they come, and those of the next layers ahead. */
void tdm_low_visit(struct tdm_lowering *l, const struct tdm_body *body, uint32_t layer);

/* Weights of embedding or head are used from here on, and no longer. */
void tdm_low_enter_room(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit);
void tdm_low_leave_room(struct tdm_lowering *l, uint32_t unit);

/* A body of layers begins: some of the state that the next updates change is fetched beside it. */
void tdm_low_stream_body(struct tdm_lowering *l, const struct tdm_body *body);

/* Around the update of a unit: what it changes comes, and goes home. */
void tdm_low_update_begin(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit);
void tdm_low_update_end(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit);

/* The ring of weights, all the step; the rings of state, in a phase of updates. */
void tdm_low_stream_phase(struct tdm_lowering *l, const struct tdm_body *body, bool begin);

/* The rings of state, from before the first update of a layer to after the last. */
void tdm_low_open_states(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_close_states(struct tdm_lowering *l);

/* ---- lower_where.c ---- */

/* Does X run through the stream from layer to layer in the first forward? */
bool tdm_low_streams_x(const struct tdm_lowering *l);
/* What the schedule says of an order, a layer, the stream of X between layers. */
bool tdm_low_layer_major(const struct tdm_lowering *l);
bool tdm_low_first_of_group(const struct tdm_lowering *l, uint32_t layer);
bool tdm_low_top_of_group(const struct tdm_lowering *l, uint32_t layer);
struct tdm_ref tdm_low_stream_ref(const struct tdm_lowering *l, uint32_t chunk);

/* Where the stored X of a body's layer is at home; tdm_nowhere if it is not stored:
 * tokens, or on its way through the forward. */
struct tdm_ref tdm_low_stored_x(const struct tdm_lowering *l, const struct tdm_body *body);
/* Is a store of a body's chunk there before the body runs? */
bool tdm_low_is_there(const struct tdm_lowering *l, const struct tdm_body *body,
                      enum tdm_store store);

/* Where it can be read on the device then; for one that the body makes, where it writes it: at its
 * home, in a staging ring, or in the workspace, which is allocated then and *work set. */
struct tdm_ref tdm_low_source(const struct tdm_lowering *l, const struct tdm_pending *pending,
                              enum tdm_store store);
struct tdm_ref tdm_low_target(struct tdm_lowering *l, const struct tdm_body *body,
                              enum tdm_store store, bool *work);

/* A store that the body made at `at` is complete: copies it to the host if it belongs there. */
void tdm_low_stash(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_store store,
                   struct tdm_ref at);

/* Emits the copies of what a body will read from the host. */
void tdm_low_fetch(struct tdm_lowering *l, struct tdm_pending *pending);
/* Where a forward writes the next layer's input on the device. *home: where it must go from
 * there. */
struct tdm_ref tdm_low_output_of(struct tdm_lowering *l, const struct tdm_body *body,
                                 struct tdm_ref *home);

/* ---- lower_kv.c ---- */

/* How a body comes by K and V of its chunk in the row that its attention reads. */
enum tdm_kv_step {
    TDM_KV_THERE, /* they are there, or nobody asks */
    TDM_KV_MAKE,  /* norm, KV product */
    TDM_KV_FETCH, /* a copy from the host */
};
enum tdm_kv_step tdm_low_kv_step(const struct tdm_lowering *l, const struct tdm_body *body);

/* The row of K and V of a layer in a pass. */
uint32_t tdm_low_kv_row(const struct tdm_lowering *l, uint32_t layer, enum tdm_pass pass);

/* Where a body leaves the K and V that it makes, and the row, at home or on the device, in which
 * attention finds those of all chunks that its own sees. */
struct tdm_ref tdm_low_made_kv(const struct tdm_lowering *l, const struct tdm_body *body);
uint32_t tdm_low_seen_kv(const struct tdm_lowering *l, const struct tdm_body *body);

/* The row to whose dK, dV attention adds; where those of a body's chunk, complete, can be read on
 * the device: from their home on the host they are fetched now. */
uint32_t tdm_low_seen_dkv(const struct tdm_lowering *l, uint32_t layer);
struct tdm_ref tdm_low_finished_dkv(struct tdm_lowering *l, const struct tdm_body *body);

/* The slot of a chunk, in a row of K and V or of their gradients, while a body is under way. */
struct tdm_ref tdm_low_kv_ref(const struct tdm_lowering *l, const struct tdm_body *body,
                              uint32_t row, uint32_t chunk);

/* Chunks [first, end) in such a row, or in one with a slot for every chunk, as an operand; the tags
 * are those of `first`. Absent if there are none. */
void tdm_low_chunks(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                    uint32_t row, uint32_t first, uint32_t end, enum tdm_mode mode,
                    struct tdm_tag before, struct tdm_tag after);

/* Before a backward adds to the gradients of K and V of chunks that none before it saw: what it
 * still sees moves, in a row that is full. */
void tdm_low_dkv_make_room(struct tdm_lowering *l, const struct tdm_body *body);

/* K and V of a body's chunk from the host, with all that it sees in chunk-major order; or made,
 * from the normed input. */
void tdm_low_kv_fetch(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_kv_product(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed);

/* Gradients of K and V that are at home on the host: those that later chunks have added to, and
 * back. */
void tdm_low_dkv_fetch(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_dkv_send(struct tdm_lowering *l, const struct tdm_body *body);

/* ---- lower_lists.c ---- */

/* Does the first forward of a layer make attention? */
bool tdm_low_first_selects(const struct tdm_lowering *l, uint32_t layer);

/* The means of the pages of a layer: from when its K is first made; they go when the first forward
 * has used them, or, where that makes K and V alone, the backward. */
void tdm_low_alloc_means(struct tdm_lowering *l, uint32_t layer);
void tdm_low_release_means(struct tdm_lowering *l, uint32_t layer, bool backward);

/* Means of the K that a body has just made, where they are asked for. */
void tdm_low_page_means(struct tdm_lowering *l, const struct tdm_body *body);

/* The page lists of a body's chunk: kept, or made by its q; nowhere if the layer has none. *work:
 * in the workspace, which the caller releases. */
struct tdm_ref tdm_low_lists(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                             bool *work);
/* As an operand, if there are any. */
void tdm_low_reads_lists(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                         struct tdm_ref lists);

/* ---- lower_layer_ops.c ---- */

/* The input of a body's layer: where it can be read on the device. Sets *embedded if it was made in
 * the workspace, which the caller releases. */
struct tdm_ref tdm_low_input_of(struct tdm_lowering *l, const struct tdm_pending *pending,
                                bool *embedded);

/* Ops between places that have room. Sources and targets are followed by what they hold. */
void tdm_low_norm(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                  struct tdm_ref x, enum tdm_content from, struct tdm_ref output,
                  enum tdm_content to);
/* output = [addend +] input * weights^T. */
void tdm_low_product(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                     struct tdm_ref input, enum tdm_content from, struct tdm_ref output,
                     struct tdm_tag made, struct tdm_ref addend, enum tdm_content added);
/* q from the normed input, into `q`. With QK-norm the product itself is made in the workspace, and
 * stays there for a backward. */
void tdm_low_q_product(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed,
                       struct tdm_ref q);
/* Are the heads of q and k of a body's layer normed? */
bool tdm_low_qk_norm(const struct tdm_lowering *l, const struct tdm_body *body);
/* The products alone, into workspaces that are allocated here. */
void tdm_low_q_raw(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed);
void tdm_low_kv_raw(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref normed);
void tdm_low_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                       struct tdm_ref output, struct tdm_ref lists);
void tdm_low_activation(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref gate_up,
                        struct tdm_ref output);

/* ---- lower_layer.c ---- */

/* A set of contents as a mask. */
#define TDM_BIT(content) ((uint64_t)1 << (content))

/* What a layer computes of a chunk, while a body is under way. */
struct tdm_values {
    const struct tdm_pending *pending;
    uint64_t made;                   /* by this body */
    uint64_t work;                   /* in the workspace, and not yet released */
    struct tdm_ref at[TDM_CONTENTS]; /* where they can be read on the device */
};

/* What a body of layers reads of its layer and chunk, and of that what it makes before. */
uint64_t tdm_low_reads_of_body(const struct tdm_lowering *l, const struct tdm_body *body,
                               uint64_t *made);

/* Finds what is there, and the input, which may be embedded now; makes the rest. What neither the
 * body's last ops nor a gradient reads is released on the way, all else by the caller. */
void tdm_low_values_begin(struct tdm_lowering *l, const struct tdm_pending *pending,
                          struct tdm_values *v);
void tdm_low_values_make(struct tdm_lowering *l, struct tdm_values *v);

/* Releases the workspace of a value, if it is in one. */
void tdm_low_value_free(struct tdm_lowering *l, struct tdm_values *v, enum tdm_content content);

/* Bodies. */
void tdm_low_forward_body(struct tdm_lowering *l, const struct tdm_pending *pending);
void tdm_low_kv_body(struct tdm_lowering *l, const struct tdm_pending *pending);

/* ---- lower_head.c ---- */

/* Final norm, LM head and loss, forward alone. */
void tdm_low_loss_body(struct tdm_lowering *l, const struct tdm_body *body);
/* Final norm, LM head and loss: a row of the last X becomes the same row of its gradient. */
void tdm_low_head_body(struct tdm_lowering *l, const struct tdm_body *body);

/* ---- lower_backward.c ---- */

/* Recompute of what is not there, and backward; a chunk's share of the embedding's gradient. */
void tdm_low_backward_body(struct tdm_lowering *l, const struct tdm_pending *pending);
void tdm_low_embedding_body(struct tdm_lowering *l, const struct tdm_body *body);

/* ---- lower_update.c ---- */

/* Norm of a unit's gradient; its update, on the device or on the host. */
void tdm_low_gradient_norm_body(struct tdm_lowering *l, const struct tdm_body *body);
void tdm_low_optimizer_body(struct tdm_lowering *l, const struct tdm_body *body);

/* After an op of a layer's backward that added to the gradient of a part: if none will add to it
 * after, and the host updates the layer as soon as its gradient is there, the part goes there
 * now. */
void tdm_low_send_part(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part);

/* Does the buffer of a layer's gradient stay allocated until the layer below, in the same group,
 * sums in it? Freed in between, its bytes could go to another buffer, whose first op would wait for
 * all copies out of it. Peaks do not rise: the backwards of both layers have it. */
bool tdm_low_gradient_goes_on(const struct tdm_lowering *l, uint32_t layer);

/* Buffers of a phase for what goes to the host for its updates. */
void tdm_low_host_update_phase(struct tdm_lowering *l, const struct tdm_body *body, bool begin);

#endif
