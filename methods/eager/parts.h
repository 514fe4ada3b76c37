/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of eager mode share. Not for use outside methods/eager/. */
#ifndef TDM_METHODS_EAGER_PARTS_H
#define TDM_METHODS_EAGER_PARTS_H

#include "methods/eager/eager.h"

/* Accumulates the gradient of a leaf (backward.c). */
extern const struct tdm_eager_op tdm_accumulate_op;

/* ---- values and nodes (eager.c) ---- */

void tdm_storage_set_category(struct tdm_eager *m, struct tdm_storage *storage,
                              enum tdm_method_category category);
void tdm_node_release_saved(struct tdm_eager *m, struct tdm_node *node);

/* ---- what is live at the peak (peak.c) ---- */

/* Call these after a storage gets its block, before it loses the block, before its category
 * changes, and at a new peak. */
void tdm_peak_enter(struct tdm_eager *m, struct tdm_storage *storage);
void tdm_peak_leave(struct tdm_eager *m, struct tdm_storage *storage);
void tdm_peak_change(struct tdm_eager *m, struct tdm_storage *storage);
void tdm_peak_note(struct tdm_eager *m);

/* ---- checkpointed functions (checkpoint.c) ---- */

/* A frame with one reference; NULL if memory ran out. */
struct tdm_frame *tdm_frame_new(struct tdm_eager *m, const struct tdm_function *function);
void tdm_frame_drop(struct tdm_eager *m, struct tdm_frame *frame);
/* While a function runs again: keeps the value that its next node saves. */
void tdm_frame_save_again(struct tdm_eager *m, struct tdm_frame *frame,
                          struct tdm_eager_value *value);

#endif
