/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row of K and V, or of their gradients, of the current layer in layer-major order: how many
 * slots it has, and which slot holds a chunk.
 *
 * A sweep processes one sequence at a time. The span is the maximum number of chunks that windows,
 * blocks or documents let a chunk see. A row has one slot for every chunk of the longest sequence,
 * or twice the span if that is fewer. When a sweep has filled the row, the chunks that it still
 * sees (the span less the one that enters) are copied to the other end, and the sweep continues
 * after them. Source and destination of that copy do not overlap, slot ranges never wrap, and less
 * than a span is copied for every span + 1 chunks.
 *
 * A forward sweep enters chunks in ascending order, from the first slot up. A backward sweep enters
 * them in descending order, from the last slot down. The slot of a chunk depends only on the chunk
 * that entered last.
 */
#ifndef TDM_SCHEDULE_KV_ROW_H
#define TDM_SCHEDULE_KV_ROW_H

#include "schedule/program_types.h"

/* The maximum number of chunks that a chunk of any layer sees, itself included; or the chunks of
 * the longest sequence if a shorter span would not shorten a row. Reads only `chunks` and
 * `schedule` of the program. */
uint32_t tdm_kv_span(const struct tdm_program *program);

/* Slots of a row with that span. */
uint32_t tdm_kv_slots(const struct tdm_program *program, uint32_t span);

/* When one rank trains in layer-major order: has the row a slot for every chunk of the step, so
 * that no chunk takes the slot of another one? */
bool tdm_kv_row_is_whole(const struct tdm_program *program);

/* Slot of a chunk in such a row after chunk `entered` of the same sequence entered last. `falling`:
 * in a backward sweep. The chunk must be within the span of `entered`. */
uint32_t tdm_kv_slot(const struct tdm_program *program, uint32_t span, bool falling,
                     uint32_t entered, uint32_t chunk);

/* Chunks [first, end), and the slot of the first one before and after the move. */
struct tdm_kv_move {
    uint32_t first, end, from, to;
};

/* Do chunks move in a layer's row before chunk `reader` enters (with `falling`: before the chunks
 * enter that `reader` is the first to see)? If so, fills *move with the chunks that stay because
 * `reader` sees them too. */
bool tdm_kv_moves(const struct tdm_program *program, uint32_t span, bool falling, uint32_t layer,
                  uint32_t reader, struct tdm_kv_move *move);

#endif
