/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks in the middle allocate as their neighbours do, with less or more K and V. So only the
 * first and the last few are run. For the others, only K, V and their gradients are allocated: one
 * after the other. They are freed together, so adjacent ones are one value.
 */
#include "methods/chunk/parts.h"

#include <stdlib.h>

#define FIRST_CHUNKS 2u
#define LAST_CHUNKS 3u

bool tdm_chunk_is_run(const struct tdm_chunk_run *run, uint64_t number)
{
    return number < FIRST_CHUNKS || number + LAST_CHUNKS >= run->chunks;
}

void tdm_chunk_row_add(struct tdm_chunk_run *run, uint64_t bytes)
{
    struct tdm_eager *m = run->m;
    unsigned kind = m->category == TDM_METHOD_KV_GRADIENTS;
    for (unsigned i = 0; i < 2; i++) { /* small and large tensors are never adjacent */
        struct tdm_eager_value *end = run->row_ends[i == 0 ? kind : 1 - kind];
        if (end != NULL && tdm_value_extend(m, end, bytes)) {
            run->row_ends[kind] = end;
            return;
        }
    }
    if (run->row_count == run->row_room) {
        uint32_t room = run->row_room == 0 ? 64 : 2 * run->row_room;
        struct tdm_eager_value **rows = realloc(run->rows, room * sizeof(struct tdm_eager_value *));
        if (rows == NULL) {
            m->status = TDM_NO_MEMORY;
            return;
        }
        run->rows = rows;
        run->row_room = room;
    }
    run->row_ends[kind] = run->rows[run->row_count++] = tdm_value_new(m, bytes, 1, 1);
}

void tdm_chunk_rows_drop(struct tdm_chunk_run *run)
{
    for (uint32_t i = 0; i < run->row_count; i++)
        tdm_drop(run->m, run->rows[i]);
    run->row_count = 0;
    run->row_ends[0] = run->row_ends[1] = NULL;
}
