/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files that declare buffers share. Not for use outside schedule/buffers*.c.
 *
 * buffers.c declares them in their order; buffers_units.c knows what units have at home and where
 * it is used, buffers_kv.c K and V and what is seen of them, buffers_residuals.c what groups keep
 * and hold; buffers_layout.c makes room for their numbers.
 */
#ifndef TDM_SCHEDULE_BUFFERS_PARTS_H
#define TDM_SCHEDULE_BUFFERS_PARTS_H

#include "schedule/lowering.h"

struct tdm_builder {
    struct tdm_program *program;
    const struct tdm_schedule *schedule;
    const struct tdm_model *model;
    struct tdm_layout *layout;
    uint64_t chunk_capacity; /* tokens of the largest chunk */
    uint32_t buffer_room;    /* that program->buffers has */
    bool out_of_memory;      /* a buffer is missing: the program is of no use */
};

/* ---- buffers.c ---- */

/* Adds a buffer of `slots` slots for `content`; returns its number. Out of memory: notes it in the
 * builder and returns the first buffer's, so that declaring goes on; there is room for one when it
 * begins. The array of buffers may move. */
uint32_t tdm_declare(struct tdm_builder *b, enum tdm_place place, enum tdm_category category,
                     enum tdm_axis axis, enum tdm_content content, uint32_t unit, uint64_t tokens,
                     uint32_t slots, const char *format, ...)
    __attribute__((format(printf, 9, 10)));

/* A buffer outlives the step, and its first slot holds this before it. Returns its number. */
uint32_t tdm_declare_resident(struct tdm_builder *b, uint32_t number, enum tdm_content content,
                              uint32_t layer, uint32_t chunk);

/* ---- buffers_layout.c ---- */

/* For a program whose schedule and chunks are set: of buffers there are none yet. NULL: out of
 * memory. */
struct tdm_layout *tdm_layout_new(const struct tdm_program *program);

/* ---- buffers_units.c ---- */

/* Weights, masters and moments: at home, and where on the device those of the host are used. */
void tdm_declare_state(struct tdm_builder *b);
/* Where gradients are summed: at home where that is the device and they stay there; else one
 * layer's (layer-major) or one group's (chunk-major) at a time. */
void tdm_declare_gradients(struct tdm_builder *b);
/* On the host: what updates there read of the device. */
void tdm_declare_host_updates(struct tdm_builder *b);

/* ---- buffers_kv.c ---- */

/* Rows of K, V and their gradients. False: out of memory. */
bool tdm_declare_kv(struct tdm_builder *b);
/* Where pages win by a vote: their means, and the lists that the forward keeps for the backward. */
void tdm_declare_lists(struct tdm_builder *b);

/* ---- buffers_residuals.c ---- */

/* Does a layer run forward again with its group? In chunk-major order the last layer of all does
 * too: its output comes then. */
bool tdm_layer_runs_again(const struct tdm_builder *b, uint32_t layer);

/* What groups keep and hold; and, after that, staging rings on the device for what of it lives on
 * the host. */
void tdm_declare_stores(struct tdm_builder *b);
void tdm_declare_rings(struct tdm_builder *b);

#endif
