/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks, gradients and weights in the operands of team ops: who gives which part to whom. */
#include "executor/shares.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/ranks.h"
#include "schedule/slices.h"

_Static_assert(TDM_MAX_HEAD_RANKS <= TDM_TEAM_PHASES, "a phase for each chunk of a set");

/* A range of elements. */
struct range {
    uint64_t first, count;
};

/* The parts of a gradient that ranks sum for all begin at multiples of so many elements from the
 * range's first. */
#define ALIGN_ELEMENTS 64u

/* A content of a chunk in one of the operands of a launch; NULL if none of them has it. */
static void *of_chunk(const struct tdm_launch *launch, enum tdm_content content, uint32_t chunk)
{
    for (uint32_t i = 0; i < launch->op->access_count; i++) {
        const struct tdm_access *access = &launch->op->access[i];
        uint32_t first = access->after.chunk;
        if (access->buffer != TDM_NONE && access->after.content == content && chunk >= first &&
            chunk < first + access->slots)
            return (unsigned char *)launch->operand[i].data +
                   (chunk - first) * launch->operand[i].slot_bytes;
    }
    return NULL;
}

/* The elements of a gradient that a TDM_OP_REDUCE_ALL sums: those of its part of the unit, or all,
 * with the gaps between tensors. */
static struct range summed_range(const struct tdm_launch *launch)
{
    const struct tdm_access *access = &launch->op->access[TDM_REDUCE_ALL_SUM];
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    if (access->after.content != TDM_UNIT_GRADIENT)
        return (struct range){0, access->bytes / tdm_dtype_bytes(sum->dtype)};
    const struct tdm_slice all = tdm_tensors_range(
        launch->program->schedule->model, access->after.layer, (enum tdm_part)access->part);
    return (struct range){all.first, all.elements};
}

/* The part of that range which a rank sums for all. */
static struct range slice_of(struct range range, uint32_t rank, uint32_t ranks)
{
    uint64_t blocks = (range.count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS;
    uint64_t begin = blocks * rank / ranks * ALIGN_ELEMENTS;
    uint64_t end = blocks * (rank + 1) / ranks * ALIGN_ELEMENTS;
    end = end < range.count ? end : range.count;
    begin = begin < end ? begin : end;
    return (struct range){range.first + begin, end - begin};
}

/* Gives a piece to all other ranks. */
static void give_all(const struct tdm_program *program, const void *data, uint64_t bytes,
                     struct tdm_exchange *exchange)
{
    for (uint32_t rank = 0; rank < program->ranks; rank++)
        if (rank != program->rank)
            tdm_exchange_give(exchange, rank, data, bytes);
}

/* The k-th chunk of a round whose heads the ranks of a set have; TDM_NONE: it has fewer. */
static uint32_t chunk_of_set(const struct tdm_launch *launch, uint32_t set, uint32_t k)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_set_chunks chunks =
        tdm_round_set(program, tdm_round_first(program, launch->op->chunk),
                      tdm_round_end(program, launch->op->chunk), set);
    return chunks.first + k < chunks.end ? chunks.first + k : TDM_NONE;
}

/* What is gathered of a chunk of the round goes to the ranks with the same heads in all other sets.
 * In a phase that is one chunk of each set: without sets the rank's own. */
static void gather(const struct tdm_launch *launch, enum tdm_content content, uint32_t phase,
                   struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const uint32_t mine = tdm_rank_set(program, program->rank), sets = tdm_rank_sets(program);
    for (uint32_t set = 0; set < sets; set++) {
        const uint32_t i = chunk_of_set(launch, set, phase);
        void *chunk = i == TDM_NONE ? NULL : of_chunk(launch, content, i);
        const uint64_t bytes = chunk == NULL ? 0 : tdm_chunks_bytes(program, content, i, i + 1);
        for (uint32_t other = 0; other < sets && set == mine; other++)
            if (other != mine)
                tdm_exchange_give(exchange, tdm_rank_like(program, other), chunk, bytes);
        if (set != mine)
            tdm_exchange_take(exchange, tdm_rank_like(program, set), chunk, bytes);
    }
}

/* Shares of the round's chunks go to the ranks with the same heads in the sets that own these,
 * which sum them; in a phase those of one chunk of each set. Nobody else reads the owner's share of
 * its chunk. */
static void reduce(const struct tdm_launch *launch, uint32_t phase, struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_OWN];
    const uint32_t mine = tdm_rank_set(program, program->rank), sets = tdm_rank_sets(program);
    const uint32_t own = chunk_of_set(launch, mine, phase);
    for (uint32_t set = 0; set < sets; set++) {
        const uint32_t i = set == mine ? TDM_NONE : chunk_of_set(launch, set, phase);
        const void *share = i == TDM_NONE ? NULL : of_chunk(launch, TDM_DKVPAGES, i);
        if (share != NULL)
            tdm_exchange_give(exchange, tdm_rank_like(program, set), share,
                              tdm_chunks_bytes(program, TDM_DKVPAGES, i, i + 1));
    }
    if (own == TDM_NONE)
        return;
    const uint64_t bytes = tdm_chunks_bytes(program, TDM_DKVPAGES, own, own + 1);
    for (uint32_t set = 0; set < sets; set++)
        if (set != mine && tdm_has_share(program, launch->op->layer, own, set))
            tdm_exchange_take(exchange, tdm_rank_like(program, set), NULL, bytes);
    exchange->sum = (struct tdm_share_sum){bytes / tdm_dtype_bytes(sum->dtype), sum->dtype,
                                           of_chunk(launch, TDM_DKVPAGES, own)};
}

/* First each rank sums a slice, which it alone then writes; then all copy the others' slices. */
static void reduce_all(const struct tdm_launch *launch, uint32_t phase,
                       struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const struct range all = summed_range(launch);
    const struct range mine = slice_of(all, program->rank, program->ranks);
    const uint64_t size = tdm_dtype_bytes(sum->dtype);
    for (uint32_t rank = 0; rank < program->ranks; rank++) {
        const struct range theirs = slice_of(all, rank, program->ranks);
        if (rank == program->rank)
            continue;
        if (phase == 0) {
            tdm_exchange_give(exchange, rank, tdm_operand_at(sum, theirs.first),
                              theirs.count * size);
            tdm_exchange_take(exchange, rank, NULL, mine.count * size);
        } else {
            tdm_exchange_give(exchange, rank, tdm_operand_at(sum, mine.first), mine.count * size);
            tdm_exchange_take(exchange, rank, tdm_operand_at(sum, theirs.first),
                              theirs.count * size);
        }
    }
    if (phase == 0)
        exchange->sum =
            (struct tdm_share_sum){mine.count, sum->dtype, tdm_operand_at(sum, mine.first)};
}

/* Each rank sums its part, and nobody reads its share of that. */
static void reduce_scatter(const struct tdm_launch *launch, struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_access *access = &launch->op->access[TDM_REDUCE_SCATTER_SUM];
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_SCATTER_SUM];
    const enum tdm_part part = access->after.content == TDM_UNIT_GRADIENT
                                   ? (enum tdm_part)access->part
                                   : TDM_PART_EMBEDDING;
    const uint64_t size = tdm_dtype_bytes(sum->dtype);
    const struct tdm_slice mine =
        tdm_rank_range(program->schedule, access->after.layer, part, program->rank);
    for (uint32_t rank = 0; rank < program->ranks; rank++) {
        const struct tdm_slice theirs =
            tdm_rank_range(program->schedule, access->after.layer, part, rank);
        if (rank == program->rank)
            continue;
        tdm_exchange_give(exchange, rank, tdm_operand_at(sum, theirs.first),
                          theirs.elements * size);
        tdm_exchange_take(exchange, rank, NULL, mine.elements * size);
    }
    exchange->sum =
        (struct tdm_share_sum){mine.elements, sum->dtype, tdm_operand_at(sum, mine.first)};
}

/* The parts of the weights that each rank has updated go to all others. */
static void gather_all(const struct tdm_launch *launch, struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_operand *weights = &launch->operand[TDM_GATHER_ALL_WEIGHTS];
    const uint64_t size = tdm_dtype_bytes(weights->dtype);
    for (uint32_t rank = 0; rank < program->ranks; rank++) {
        const struct tdm_slice part = tdm_rank_part(program->schedule, launch->op->layer, rank);
        void *data = tdm_operand_at(weights, part.first);
        if (rank == program->rank)
            give_all(program, data, part.elements * size, exchange);
        else
            tdm_exchange_take(exchange, rank, data, part.elements * size);
    }
}

/* ---- exchanges of heads ---- */

/* Does it give back the heads of its chunk to each rank? */
static bool gives_back(const struct tdm_launch *launch)
{
    return launch->op->access[TDM_ALL_TO_ALL_HEADS].mode == TDM_READ;
}

/* Bytes of one rank's heads of a chunk. */
static uint64_t part_bytes(const struct tdm_launch *launch, uint32_t chunk)
{
    const enum tdm_content heads = launch->op->access[TDM_ALL_TO_ALL_HEADS].after.content;
    return tdm_chunks_bytes(launch->program, heads, chunk, chunk + 1);
}

/* The rank's heads of a chunk, and the heads of its own chunk that another rank has. */
static void *heads_of(const struct tdm_launch *launch, uint32_t chunk)
{
    const struct tdm_operand *heads = &launch->operand[TDM_ALL_TO_ALL_HEADS];
    const uint32_t first = launch->op->access[TDM_ALL_TO_ALL_HEADS].after.chunk;
    return (unsigned char *)heads->data + (chunk - first) * heads->slot_bytes;
}

static uint32_t first_of_set(const struct tdm_launch *launch)
{
    const uint32_t parts = tdm_schedule_head_parts(launch->program->schedule);
    return launch->program->rank / parts * parts;
}

static void *parted_of(const struct tdm_launch *launch, uint32_t rank)
{
    const uint32_t own = launch->op->access[TDM_ALL_TO_ALL_CHUNK].after.chunk;
    const uint32_t before = rank < launch->program->rank ? rank - first_of_set(launch)
                                                         : rank - first_of_set(launch) - 1;
    return (unsigned char *)launch->operand[TDM_ALL_TO_ALL_PARTED].data +
           before * part_bytes(launch, own);
}

/* Every rank sends each other rank of its set that one's heads of its own chunk, or gets them back.
 */
static void all_to_all(const struct tdm_launch *launch, struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_access *heads = &launch->op->access[TDM_ALL_TO_ALL_HEADS];
    const struct tdm_access *own = &launch->op->access[TDM_ALL_TO_ALL_CHUNK];
    const bool back = gives_back(launch);
    for (uint32_t k = 0; k < heads->slots; k++) {
        const uint32_t chunk = heads->after.chunk + k, rank = program->chunks[chunk].rank;
        if (rank != program->rank && back)
            tdm_exchange_give(exchange, rank, heads_of(launch, chunk), part_bytes(launch, chunk));
        else if (rank != program->rank)
            tdm_exchange_take(exchange, rank, heads_of(launch, chunk), part_bytes(launch, chunk));
    }
    const uint32_t first = first_of_set(launch);
    const uint32_t end = first + tdm_schedule_head_parts(program->schedule);
    for (uint32_t rank = first; rank < end && own->buffer != TDM_NONE; rank++) {
        const uint64_t bytes = part_bytes(launch, own->after.chunk);
        if (rank != program->rank && back)
            tdm_exchange_take(exchange, rank, parted_of(launch, rank), bytes);
        else if (rank != program->rank)
            tdm_exchange_give(exchange, rank, parted_of(launch, rank), bytes);
    }
}

/* An array of a chunk: rows of the heads of one rank, or of all. */
struct rows {
    uint64_t count, bytes;              /* bytes of one rank's heads in a row */
    uint64_t whole_offset, part_offset; /* where the array begins, in bytes */
};

/* The arrays of a chunk of `tokens` tokens; returns their number. Pages are planes of K and V; an
 * attention output is followed by its LSE. */
static uint32_t rows_of(const struct tdm_launch *launch, uint64_t tokens, struct rows rows[2])
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_pages_params *pages = &params->pages;
    const enum tdm_content content = launch->op->access[TDM_ALL_TO_ALL_HEADS].after.content;
    const enum tdm_dtype dtype = launch->operand[TDM_ALL_TO_ALL_HEADS].dtype;
    const uint64_t parts = tdm_schedule_head_parts(launch->program->schedule);
    const uint64_t of_head = pages->head_dim * tdm_dtype_bytes(dtype);
    const uint64_t heads = params->attention.query_heads;
    const uint64_t elements = tokens * heads * pages->head_dim;
    if (content == TDM_KVPAGES || content == TDM_DKVPAGES) {
        uint64_t all = tdm_size_ceil_div(tokens, pages->page_tokens) * pages->page_tokens;
        rows[0] = (struct rows){.count = 2 * all, .bytes = pages->kv_heads * of_head};
        return 1;
    }
    rows[0] = (struct rows){.count = tokens, .bytes = heads * of_head};
    rows[1] = (struct rows){
        .count = tokens,
        .bytes = heads * sizeof(float),
        .whole_offset = tdm_lse_bytes_at(elements * parts, dtype),
        .part_offset = tdm_lse_bytes_at(elements, dtype),
    };
    return content == TDM_HEADS_OUT ? 2 : 1;
}

bool tdm_share_rows(const struct tdm_launch *launch, bool after, uint32_t number,
                    struct tdm_row_copy *copy)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_access *own = &launch->op->access[TDM_ALL_TO_ALL_CHUNK];
    struct rows rows[2];
    if (launch->op->kind != TDM_OP_ALL_TO_ALL || own->buffer == TDM_NONE ||
        gives_back(launch) != after)
        return false;
    const uint32_t chunk = own->after.chunk;
    const uint32_t arrays = rows_of(launch, program->chunks[chunk].tokens, rows);
    const uint32_t part_number = number / arrays, rank = first_of_set(launch) + part_number;
    const uint32_t parts = tdm_schedule_head_parts(program->schedule);
    if (part_number >= parts)
        return false;
    const struct rows *array = &rows[number % arrays];
    unsigned char *whole = (unsigned char *)launch->operand[TDM_ALL_TO_ALL_CHUNK].data +
                           array->whole_offset + part_number * array->bytes;
    unsigned char *part = rank == program->rank ? heads_of(launch, chunk) : parted_of(launch, rank);
    part += array->part_offset;
    const uint64_t stride_bytes = array->bytes * parts;
    *copy = (struct tdm_row_copy){.to = after ? whole : part,
                                  .from = after ? part : whole,
                                  .to_stride_bytes = after ? stride_bytes : array->bytes,
                                  .from_stride_bytes = after ? array->bytes : stride_bytes,
                                  .row_bytes = array->bytes,
                                  .rows = array->count};
    return true;
}

/* ---- rings ---- */

/* A chunk goes to the next rank, with sets to the one with the same heads in the next set, and
 * another one comes from the rank before: it is written, or added to what is there. */
static void hop(const struct tdm_launch *launch, struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const uint32_t sets = tdm_rank_sets(program), own = tdm_rank_set(program, program->rank);
    const struct tdm_access *sent = &launch->op->access[TDM_HOP_SENT],
                            *received = &launch->op->access[TDM_HOP_RECEIVED];
    const struct tdm_operand *to = &launch->operand[TDM_HOP_RECEIVED];
    if (sent->buffer != TDM_NONE)
        tdm_exchange_give(exchange, tdm_rank_like(program, (own + 1) % sets),
                          launch->operand[TDM_HOP_SENT].data, sent->bytes);
    if (received->buffer == TDM_NONE)
        return;
    const bool adds = received->mode == TDM_ACCUMULATE;
    tdm_exchange_take(exchange, tdm_rank_like(program, (own + sets - 1) % sets),
                      adds ? NULL : to->data, received->bytes);
    if (adds)
        exchange->sum = (struct tdm_share_sum){received->bytes / tdm_dtype_bytes(to->dtype),
                                               to->dtype, to->data};
}

uint32_t tdm_share_phases(const struct tdm_launch *launch)
{
    switch (launch->op->kind) {
    case TDM_OP_REDUCE_ALL:
        return 2;
    case TDM_OP_GATHER:
    case TDM_OP_REDUCE: /* a chunk of each set at a time */
        return tdm_schedule_head_parts(launch->program->schedule);
    default:
        return 1;
    }
}

void tdm_share_exchange(const struct tdm_launch *launch, uint32_t phase,
                        struct tdm_exchange *exchange)
{
    exchange->give_count = exchange->take_count = 0;
    exchange->sum = (struct tdm_share_sum){0};
    switch (launch->op->kind) {
    case TDM_OP_GATHER:
        gather(launch, TDM_KVPAGES, phase, exchange);
        gather(launch, TDM_PAGE_MEANS, phase, exchange);
        break;
    case TDM_OP_REDUCE:
        reduce(launch, phase, exchange);
        break;
    case TDM_OP_REDUCE_ALL:
        reduce_all(launch, phase, exchange);
        break;
    case TDM_OP_REDUCE_SCATTER:
        reduce_scatter(launch, exchange);
        break;
    case TDM_OP_GATHER_ALL:
        gather_all(launch, exchange);
        break;
    case TDM_OP_ALL_TO_ALL:
        all_to_all(launch, exchange);
        break;
    case TDM_OP_HOP:
    case TDM_OP_HOP_SUM: /* the same operands */
        hop(launch, exchange);
        break;
    default:
        break;
    }
}
