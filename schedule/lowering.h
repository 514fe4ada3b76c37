/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal to schedule/: the buffers that a schedule declares, and the lowering over them.
 *
 * Buffers are declared once per program (buffers.c). lower.c goes through the nest and turns bodies
 * into items. program.c runs it twice.
 */
#ifndef TDM_SCHEDULE_LOWERING_H
#define TDM_SCHEDULE_LOWERING_H

#include "schedule/program_types.h"

/* A slot of a buffer. */
struct tdm_ref {
    uint32_t buffer, slot;
};

static const struct tdm_ref tdm_nowhere = {TDM_NONE, 0};

/* Rows of units: the layers on the device share one row, those on the host another. Embedding and
 * head have buffers of their own. */
enum tdm_unit_row {
    TDM_ROW_LAYERS,
    TDM_ROW_HOST_LAYERS,
    TDM_ROW_EMBEDDING,
    TDM_ROW_HEAD,
    TDM_UNIT_ROWS
};

/* Contents of a unit, as indices: weights, master, both moments, gradient. */
#define TDM_UNIT_CONTENTS (TDM_UNIT_GRADIENT - TDM_UNIT_WEIGHTS + 1)

/* Buffer numbers by purpose; TDM_NONE if this schedule has no such buffer. Arrays by layer or group
 * are owned. In layer-major order all layers name the same kv and dkv buffer. */
struct tdm_layout {
    uint32_t layer_count;
    uint32_t tokens, loss, norms;
    /* by content - TDM_UNIT_WEIGHTS: homes of units, and the device buffers that stage those at
     * home on the host: a ring for the layers, one slot each for embedding and head */
    uint32_t home[TDM_UNIT_CONTENTS][TDM_UNIT_ROWS];
    uint32_t staged[TDM_UNIT_CONTENTS][TDM_UNIT_ROWS];
    /* where gradients are summed; a tied one goes to tied_home if embedding gradients are at home
     * on the host */
    uint32_t embedding_gradient, head_gradient, tied_gradient, tied_home, staged_tied;
    /* on the host: gradients of units that are updated there (a ring for the layers, one slot each
     * for embedding and head), and their norms */
    uint32_t host_gradient[TDM_UNIT_ROWS], host_tied, host_norms;
    uint32_t stream; /* X between layers in the forward (layer-major, or without a backward), DX
                      * in the backward */
    uint32_t stream_slots;         /* one per chunk, or 1 if chunks are processed one at a time */
    uint32_t work[TDM_CONTENTS];   /* workspace of one slot */
    uint32_t fetched_x, stashed_x; /* staging rings */
    uint32_t ahead_x;              /* input of which K and V are made ahead (nest.h) */
    uint32_t fetched[TDM_STORES], stashed[TDM_STORES];

    uint32_t *input;          /* [groups] stored input; the first group has none */
    uint32_t *layer_gradient; /* [layers] */
    uint32_t *layer_gradient_slot;
    uint32_t *gradient_home; /* [layers] where gradients stay; TDM_NONE if they do not */
    uint32_t *kv;     /* [layers] row for one sweep, shared by the layers; in chunk-major kv_rows */
    uint32_t kv_span; /* layer-major: span of that row and of the row of gradients (kv_row.h) */
    uint32_t *own_kv; /* [layers] row of a layer whose K and V outlive a sweep on the device */
    uint32_t *host_kv;    /* [layers] K and V kept on the host */
    uint32_t *dkv;        /* [layers] */
    uint32_t visiting_kv; /* chunks of other ranks, one at a time, that go around a ring */
    uint32_t *means; /* [layers] page means of a voting selector; layer-major: shared by layers */
    uint32_t *lists; /* [layers] page lists kept for the backward; slot: chunk, or 0 if they live
                        for one chunk */
    /* [layers] chunk-major, for layers whose gradients of K and V are on the host between the
     * chunks that add to them: the slot of each chunk there, for chunks that a later one sees; NULL
     * for other layers. Owned. */
    uint32_t **far_slot;
    uint32_t *host_dkv;              /* [layers] the buffers of those gradients */
    uint32_t kv_rows[TDM_MAX_RING];  /* chunk-major: rows that layers share whose K and V ... */
    uint32_t dkv_rows[TDM_MAX_RING]; /* ... or whose gradients are on the host */
    uint32_t *kept[TDM_STORES];      /* [layers] slot: tdm_rank_slot() from kept_from_chunk */
    uint32_t *held[TDM_STORES];      /* [layers] slot: likewise, or 0 in chunk-major */
    uint32_t *held_input;            /* [layers] slot: chunk, or 0 in chunk-major */
    /* [layers] the same on the device, of chunks from tdm_held_near_from() on, where the two above
     * are at another place; slot: from that chunk on, or where it is later from held_from_chunk */
    uint32_t *held_near[TDM_STORES], *held_input_near;
    uint32_t *group_of;        /* [layers] */
    uint32_t *tile_base;       /* [chunks + 1] LM-head tiles before a chunk */
    uint32_t vocabulary_tiles; /* number of tiles that the vocabulary is cut into */

    /* What streams through the rings of units, in order: the layers whose weights bodies use, and
     * the units that are updated, each as often as it has slices. Owned. */
    uint32_t *visits, *updates;
    uint32_t visit_count, update_count;
};

/* The kind of state that a content of units belongs to. */
enum tdm_state tdm_state_of(enum tdm_content content);

/* Home of a unit's content; tdm_nowhere if this schedule has none. */
struct tdm_ref tdm_home_of(const struct tdm_program *program, enum tdm_content content,
                           uint32_t unit);

/* Is that home on the host, so that the content must be staged for use? */
bool tdm_home_is_far(const struct tdm_program *program, enum tdm_content content, uint32_t unit);

/* Must a unit's weights be brought to a staging buffer for their use: because their home is
 * elsewhere, or has only a part of them? */
bool tdm_weights_staged(const struct tdm_program *program, uint32_t unit);

/* Fills program->buffers and program->layout for a program whose schedule and chunks are set. */
enum tdm_status tdm_buffers_declare(struct tdm_program *program, struct tdm_error *err);
void tdm_layout_free(struct tdm_layout *layout);

/* Does a layer keep (hold) this store of a chunk? A store that is kept is not also held. */
bool tdm_store_kept(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk);
bool tdm_store_held(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk);

/* Number of bodies by which fetches run ahead: the schedule's prefetch, but less than the number of
 * chunks, so that a fetch never overtakes the op that writes its source. */
uint32_t tdm_prefetch_depth(const struct tdm_program *program);

/* Does a unit's complete gradient leave the buffer in which it was summed: because it goes to its
 * home on the host, or because it has been used? */
bool tdm_gradient_is_transient(const struct tdm_program *program, uint32_t unit);

/* Must a unit's gradient be copied to the host for an update there? No if its home is the host. */
bool tdm_gradient_visits_host(const struct tdm_program *program, uint32_t unit);

/* Emits the items of one step of program->rank. */
enum tdm_status tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                          struct tdm_error *err);

/* The same allocations and frees without the ops between them, which is several times as fast. */
enum tdm_status tdm_lower_lives(const struct tdm_program *program, tdm_sink sink, void *self,
                                struct tdm_error *err);

#endif
