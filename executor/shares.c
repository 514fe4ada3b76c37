/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks and gradients in the operands of team ops. */
#include "executor/shares.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"

void *tdm_share_of_chunk(const struct tdm_launch *launch, uint32_t chunk)
{
    for (uint32_t i = 0; i < launch->op->access_count; i++) {
        const struct tdm_access *access = &launch->op->access[i];
        uint32_t first = access->after.chunk;
        if (access->buffer != TDM_NONE && chunk >= first && chunk < first + access->slots)
            return (unsigned char *)launch->operand[i].data +
                   (chunk - first) * launch->operand[i].slot_bytes;
    }
    return NULL;
}

uint64_t tdm_share_chunk_bytes(const struct tdm_launch *launch, enum tdm_content content,
                               uint32_t chunk)
{
    return tdm_chunks_bytes(launch->program, content, chunk, chunk + 1);
}

struct tdm_range tdm_share_range(const struct tdm_launch *launch)
{
    const struct tdm_access *access = &launch->op->access[TDM_REDUCE_ALL_SUM];
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_unit *unit = &weights->units[access->after.layer];
    uint64_t first = unit->elements, end = 0;
    if (access->after.content != TDM_UNIT_GRADIENT)
        return (struct tdm_range){0, access->bytes / tdm_dtype_bytes(sum->dtype)};
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (access->part != TDM_PART_ALL &&
            tdm_part_of(tensor->role) != (enum tdm_part)access->part)
            continue;
        first = tensor->offset < first ? tensor->offset : first;
        end = tensor->offset + tensor->elements;
    }
    return (struct tdm_range){first, end > first ? end - first : 0};
}

struct tdm_range tdm_share_slice(struct tdm_range range, uint32_t rank, uint32_t ranks)
{
    uint64_t blocks = (range.count + TDM_SHARE_ALIGN - 1) / TDM_SHARE_ALIGN;
    uint64_t begin = blocks * rank / ranks * TDM_SHARE_ALIGN;
    uint64_t end = blocks * (rank + 1) / ranks * TDM_SHARE_ALIGN;
    end = end < range.count ? end : range.count;
    begin = begin < end ? begin : end;
    return (struct tdm_range){range.first + begin, end - begin};
}

/* One array of a chunk: rows of the heads of all ranks, or of one. */
struct rows {
    uint64_t count, part_bytes;         /* of a row: those of one rank */
    uint64_t whole_offset, part_offset; /* of the array in a slot, in bytes */
};

/* The arrays of a chunk of `tokens` tokens. Returns their number. */
static uint32_t rows_of(const struct tdm_launch *launch, uint64_t tokens, struct rows rows[])
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_pages_params *pages = &params->pages;
    const enum tdm_content content = launch->op->access[TDM_ALL_TO_ALL_HEADS].after.content;
    const enum tdm_dtype dtype = launch->operand[TDM_ALL_TO_ALL_HEADS].dtype;
    const uint64_t of_head = pages->head_dim * tdm_dtype_bytes(dtype);
    const uint64_t heads = params->attention.query_heads, ranks = launch->program->ranks;
    if (content == TDM_KVPAGES || content == TDM_DKVPAGES) { /* planes of K and V of whole pages */
        uint64_t page_rows = 2 * pages->page_tokens;
        rows[0] = (struct rows){.count = tdm_size_ceil_div(tokens, pages->page_tokens) * page_rows,
                                .part_bytes = pages->kv_heads * of_head};
        return 1;
    }
    rows[0] = (struct rows){.count = tokens, .part_bytes = heads * of_head};
    if (content != TDM_HEADS_OUT)
        return 1;
    const uint64_t elements = tokens * heads * pages->head_dim;
    rows[1] = (struct rows){.count = tokens,
                            .part_bytes = heads * sizeof(float),
                            .whole_offset = tdm_lse_bytes_at(elements * ranks, dtype),
                            .part_offset = tdm_lse_bytes_at(elements, dtype)};
    return 2;
}

uint32_t tdm_share_heads(const struct tdm_launch *launch, const struct tdm_launch *other,
                         struct tdm_row_copy copies[TDM_ROW_COPIES])
{
    const bool back = launch->op->access[TDM_ALL_TO_ALL_HEADS].mode == TDM_READ;
    /* the rank with the whole chunk, and the one with a part of its heads */
    const struct tdm_launch *owner = back ? launch : other, *partner = back ? other : launch;
    const struct tdm_access *chunk = &owner->op->access[TDM_ALL_TO_ALL_CHUNK];
    const struct tdm_operand *heads = &partner->operand[TDM_ALL_TO_ALL_HEADS];
    struct rows rows[TDM_ROW_COPIES];
    if (chunk->buffer == TDM_NONE)
        return 0;
    const uint32_t number = chunk->after.chunk;
    unsigned char *whole = owner->operand[TDM_ALL_TO_ALL_CHUNK].data;
    unsigned char *part =
        (unsigned char *)heads->data +
        (number - partner->op->access[TDM_ALL_TO_ALL_HEADS].after.chunk) * heads->slot_bytes;
    uint32_t count = rows_of(launch, launch->program->chunks[number].tokens, rows);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t row_bytes = rows[i].part_bytes * launch->program->ranks;
        unsigned char *in_whole =
            whole + rows[i].whole_offset + partner->program->rank * rows[i].part_bytes;
        unsigned char *in_part = part + rows[i].part_offset;
        copies[i] =
            (struct tdm_row_copy){.to = back ? in_whole : in_part,
                                  .from = back ? in_part : in_whole,
                                  .to_stride_bytes = back ? row_bytes : rows[i].part_bytes,
                                  .from_stride_bytes = back ? rows[i].part_bytes : row_bytes,
                                  .row_bytes = rows[i].part_bytes,
                                  .rows = rows[i].count};
    }
    return count;
}
