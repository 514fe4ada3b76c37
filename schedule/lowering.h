/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal to schedule/: the buffers that a schedule declares, and the lowering over them.
 *
 * Buffers are declared once per program (buffers.c); lower.c walks the nest and turns bodies into
 * items. program.c runs it twice.
 */
#ifndef TDM_SCHEDULE_LOWERING_H
#define TDM_SCHEDULE_LOWERING_H

#include "schedule/program.h"

/* Where a unit's tensors are: the layers share a row, embedding and head have buffers of their own. */
enum tdm_unit_row { TDM_ROW_LAYERS, TDM_ROW_EMBEDDING, TDM_ROW_HEAD, TDM_UNIT_ROWS };

/* What a chunk of a layer may keep or hold beside its input, one buffer each. */
enum tdm_store { TDM_STORE_ATTENTION, TDM_STORE_Q, TDM_STORE_GATE_UP, TDM_STORES };

/* The content of a store, and the least residual set that has it. */
enum tdm_content tdm_store_content(enum tdm_store store);
enum tdm_set tdm_store_set(enum tdm_store store);

/* Numbers of the buffers by what they are for; TDM_NONE where this schedule has none. Arrays by layer
 * or group are owned. In layer-major order all layers name the same
 * kv and dkv buffer. */
struct tdm_layout {
    uint32_t tokens, loss, norms;
    uint32_t weights[TDM_UNIT_ROWS], master[TDM_UNIT_ROWS], moment1[TDM_UNIT_ROWS],
        moment2[TDM_UNIT_ROWS];
    uint32_t embedding_gradient, head_gradient, tied_gradient;
    uint32_t stream; /* X between layers in the forward (layer-major, or without a backward), DX
                            * in the backward */
    uint32_t stream_slots;         /* one a chunk, or 1 where one chunk at a time is under way */
    uint32_t work[TDM_CONTENTS];   /* workspace of one slot */
    uint32_t fetched_x, stashed_x; /* staging rings */
    uint32_t fetched[TDM_STORES], stashed[TDM_STORES];

    uint32_t *input;          /* [groups] stored input; the first group has none */
    uint32_t *layer_gradient; /* [layers] */
    uint32_t *layer_gradient_slot;
    uint32_t *kv;      /* [layers] row for one sweep, shared by the layers; none in chunk-major */
    uint32_t *own_kv;  /* [layers] row of a layer whose K and V outlive a sweep on the device */
    uint32_t *host_kv; /* [layers] K and V kept on the host */
    uint32_t *dkv;     /* [layers] */
    uint32_t *kept[TDM_STORES]; /* [layers] slot of a chunk: chunk - kept_from_chunk */
    uint32_t *held[TDM_STORES]; /* [layers] slot: chunk - held_from_chunk, or 0 in chunk-major */
    uint32_t *held_input;       /* [layers] slot: chunk, or 0 in chunk-major */
    uint32_t *group_of;         /* [layers] */
    uint32_t *tile_base;        /* [chunks + 1] LM-head tiles before a chunk */
};

/* Bytes of the tensors of one part (TDM_PART_ALL: of all) of a unit, at a dtype. */
uint64_t tdm_part_bytes(const struct tdm_model *model, uint32_t unit, enum tdm_part part,
                        enum tdm_dtype dtype);

/* Row and slot of a unit in the per-unit buffers. */
enum tdm_unit_row tdm_unit_row_of(const struct tdm_model *model, uint32_t unit, uint32_t *slot);

/* Fills program->buffers and program->layout for a program whose schedule and chunks are set. */
enum tdm_status tdm_buffers_declare(struct tdm_program *program, struct tdm_error *err);
void tdm_layout_free(struct tdm_layout *layout);

/* Does a layer keep (hold) this store of a chunk? What is kept is not held too. */
bool tdm_store_kept(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk);
bool tdm_store_held(const struct tdm_program *program, enum tdm_store store, uint32_t layer,
                    uint32_t chunk);

/* Bodies by which fetches run ahead: the schedule's prefetch, but fewer than the chunks, so that a
 * fetch never overtakes the op that writes its source. */
uint32_t tdm_prefetch_depth(const struct tdm_program *program);

/* Emits the items of one step. */
enum tdm_status tdm_lower(const struct tdm_program *program, tdm_sink sink, void *self,
                          struct tdm_error *err);

#endif
