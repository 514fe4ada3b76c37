/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files that declare buffers. Not for use outside schedule/buffers*.c.
 *
 * buffers.c declares all buffers in their order; buffers_declare.c adds one. buffers_units.c
 * declares the state of units, at home and where it is used. buffers_kv.c declares K and V and the
 * page lists. buffers_residuals.c declares what groups keep and hold. buffers_layout.c allocates
 * the arrays of buffer numbers.
 */
#ifndef TDM_SCHEDULE_BUFFERS_PARTS_H
#define TDM_SCHEDULE_BUFFERS_PARTS_H

#include "schedule/lowering.h"

struct tdm_builder {
    struct tdm_program *program;
    const struct tdm_schedule *schedule;
    const struct tdm_model *model;
    struct tdm_layout *layout;
    uint64_t chunk_capacity;  /* tokens of the largest chunk */
    uint32_t buffer_capacity; /* allocated size of program->buffers */
    bool out_of_memory;       /* a buffer is missing: the program is unusable */
};

/* ---- buffers_declare.c ---- */

/* Reserves capacity for one more buffer. False: out of memory. */
bool tdm_builder_grow(struct tdm_builder *b);

/* Adds a buffer of `slots` slots for `content` and returns its number. If memory runs out, it
 * records that in the builder and returns the number of the first buffer, so that declaring can go
 * on; the array always has at least one entry. The array of buffers may move. */
uint32_t tdm_declare(struct tdm_builder *b, enum tdm_place place, enum tdm_category category,
                     enum tdm_axis axis, enum tdm_content content, uint32_t unit, uint64_t tokens,
                     uint32_t slots, const char *format, ...)
    __attribute__((format(printf, 9, 10)));

/* Gives a buffer `slots` slots, each for a slice of a unit. */
void tdm_declare_slices(struct tdm_builder *b, uint32_t number, uint32_t unit, uint32_t slots);

/* Marks a buffer as resident: it outlives the step, and its first slot holds this content before
 * the first step. Returns its number. */
uint32_t tdm_declare_resident(struct tdm_builder *b, uint32_t number, enum tdm_content content,
                              uint32_t layer, uint32_t chunk);

/* ---- buffers_layout.c ---- */

/* For a program whose schedule and chunks are set and whose buffers are not declared yet. NULL: out
 * of memory. */
struct tdm_layout *tdm_layout_new(const struct tdm_program *program);

/* ---- buffers_units.c ---- */

/* Weights, masters and moments: their homes, and the device buffers that stage those at home on the
 * host. */
void tdm_declare_state(struct tdm_builder *b);
/* Where gradients are summed. If their home is the device and they stay there, they are summed at
 * home; otherwise one layer's (layer-major) or one group's (chunk-major) at a time. */
void tdm_declare_gradients(struct tdm_builder *b);
/* Host buffers for the device data that updates on the host read. */
void tdm_declare_host_updates(struct tdm_builder *b);

/* ---- buffers_kv.c ---- */

/* Rows of K, V and their gradients. False: out of memory. */
bool tdm_declare_kv(struct tdm_builder *b);
/* For a selector that votes: page means, and the lists that the forward keeps for the backward. */
void tdm_declare_lists(struct tdm_builder *b);

/* ---- buffers_residuals.c ---- */

/* Does a layer run forward again with its group? In chunk-major order the last layer of the model
 * does too, because its output is first computed then. */
bool tdm_layer_runs_again(const struct tdm_builder *b, uint32_t layer);

/* Buffers for what groups keep and hold. Declare them first; the device staging rings for their
 * parts on the host follow. */
void tdm_declare_stores(struct tdm_builder *b);
void tdm_declare_rings(struct tdm_builder *b);

#endif
