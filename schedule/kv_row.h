/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row of K and V, or of their gradients, of the layer under way in layer-major order: how many
 * slots it has, and which of them holds a chunk.
 *
 * A sweep sees one sequence at a time, and of it no more chunks than the windows of the layers,
 * blocks or documents let a chunk see: the span. So a row has a slot for every chunk of the longest
 * sequence, or where that is more, twice the span. Then a sweep that has filled the row goes on at
 * its other end, behind a copy of the chunks that it still sees: a span less the one that enters.
 * Source and destination of that copy do not overlap, nobody's slots wrap, and a copy moves less
 * than a span in every span and one chunks.
 *
 * A forward sweep enters chunks in rising order, from the first slot on; a backward sweep in
 * falling order, from the last slot down. Which slot a chunk has follows from the chunk that
 * entered last.
 */
#ifndef TDM_SCHEDULE_KV_ROW_H
#define TDM_SCHEDULE_KV_ROW_H

#include "schedule/program.h"

/* Most chunks that a chunk of any layer sees, itself included, or the chunks of the longest
 * sequence if it would not shorten a row. `chunks` and `schedule` of the program are read. */
uint32_t tdm_kv_span(const struct tdm_program *program);

/* Slots of a row of that span. */
uint32_t tdm_kv_slots(const struct tdm_program *program, uint32_t span);

/* Slot of a chunk in such a row, after chunk `entered`, of the same sequence, was the last to
 * enter; `falling`: in a backward sweep. The chunk is no farther from it than the span. */
uint32_t tdm_kv_slot(const struct tdm_program *program, uint32_t span, bool falling,
                     uint32_t entered, uint32_t chunk);

/* Chunks [first, end) and the slots of the first of them before and after. */
struct tdm_kv_move {
    uint32_t first, end, from, to;
};

/* Do chunks move in a layer's row before its chunk `reader` enters (`falling`: before those enter
 * that `reader` is the first to see)? If so, fills *move: what stays, because `reader` sees it
 * too. */
bool tdm_kv_moves(const struct tdm_program *program, uint32_t span, bool falling, uint32_t layer,
                  uint32_t reader, struct tdm_kv_move *move);

#endif
