/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks in the middle allocate as their neighbours do, with less or more K and V. So only the
 * first and the last few are run. For the others, only K, V and their gradients are allocated: one
 * after the other. They are freed together, so many of them are one value.
 */
#include "methods/chunk/parts.h"

#include <stdlib.h>

#define FIRST_CHUNKS 2u
#define LAST_CHUNKS 3u

bool tdm_chunk_is_run(const struct tdm_chunk_run *run, uint64_t number)
{
    return number < FIRST_CHUNKS || number + LAST_CHUNKS >= run->chunks;
}

uint64_t tdm_chunk_next_run(const struct tdm_chunk_run *run, uint64_t number)
{
    bool skips = number + 1 >= FIRST_CHUNKS && number + 1 + LAST_CHUNKS < run->chunks;
    return skips ? run->chunks - LAST_CHUNKS : number + 1;
}

static void start_row(struct tdm_chunk_run *run, unsigned kind, uint64_t bytes)
{
    struct tdm_eager *m = run->m;
    if (run->row_count == run->row_capacity) {
        uint32_t capacity = run->row_capacity == 0 ? 64 : 2 * run->row_capacity;
        struct tdm_eager_value **rows =
            realloc(run->rows, capacity * sizeof(struct tdm_eager_value *));
        if (rows == NULL)
            tdm_eager_no_memory(m);
        run->rows = rows;
        run->row_capacity = capacity;
    }
    struct tdm_eager_value *row = run->rows[run->row_count++] = tdm_value_new(m, bytes, 1, 1);
    run->row_ends[kind] = (struct chunk_row_end){.row = row, .block = row->storage->block};
    run->row_last = row->storage->block;
}

/* Adds tensors that fill whole segments to the last row. Returns their number. */
static uint64_t add_many(struct tdm_chunk_run *run, uint64_t bytes, uint64_t count)
{
    struct tdm_eager *m = run->m;
    struct tdm_eager_value *row = run->row_count > 0 ? run->rows[run->row_count - 1] : NULL;
    uint64_t added = row == NULL ? 0 : tdm_value_append_many(m, row, &run->row_last, bytes, count);
    if (added > 0)
        run->row_ends[m->category == TDM_METHOD_KV_GRADIENTS] =
            (struct chunk_row_end){.row = row, .block = run->row_last};
    return added;
}

static void add_one(struct tdm_chunk_run *run, uint64_t bytes)
{
    struct tdm_eager *m = run->m;
    unsigned kind = m->category == TDM_METHOD_KV_GRADIENTS;
    for (unsigned i = 0; i < 2; i++) { /* small and large tensors are never adjacent */
        const struct chunk_row_end *end = &run->row_ends[i == 0 ? kind : 1 - kind];
        if (end->row != NULL && tdm_value_extend(m, end->row, end->block, bytes)) {
            run->row_ends[kind] = *end;
            return;
        }
    }
    struct tdm_eager_value *row = run->row_count > 0 ? run->rows[run->row_count - 1] : NULL;
    struct tdm_torch_block *made;
    if (row == NULL || !tdm_value_append(m, row, run->row_last, bytes, &made)) {
        start_row(run, kind, bytes);
    } else if (made != NULL) {
        run->row_ends[kind] = (struct chunk_row_end){.row = row, .block = made};
        run->row_last = made;
    }
}

void tdm_chunk_row_add(struct tdm_chunk_run *run, uint64_t bytes, uint64_t count)
{
    while (count > 0) {
        const uint64_t added = bytes <= TDM_TORCH_FILL_MOST ? add_many(run, bytes, count) : 0;
        if (added == 0)
            add_one(run, bytes);
        count -= added > 0 ? added : 1;
    }
}

void tdm_chunk_rows_drop(struct tdm_chunk_run *run)
{
    for (uint32_t i = 0; i < run->row_count; i++)
        tdm_drop(run->m, run->rows[i]);
    run->row_count = 0;
    run->row_ends[0].row = run->row_ends[1].row = NULL;
}
