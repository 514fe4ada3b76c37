/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks, gradients and weights in the operands of team ops: who gives which part to whom. */
#include "executor/shares.h"

#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/ranks.h"
#include "schedule/slices.h"

/* A range of elements. */
struct range {
    uint64_t first, count;
};

/* The parts of a gradient that ranks sum for all begin at multiples of so many elements from the
 * range's first. */
#define ALIGN_ELEMENTS 64u

/* The bytes of a chunk in one of the operands of a launch; NULL if none of them has it. */
static void *of_chunk(const struct tdm_launch *launch, uint32_t chunk)
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

/* The elements of a gradient that a TDM_OP_REDUCE_ALL sums: those of its part of the unit, or all,
 * with the gaps between tensors. */
static struct range summed_range(const struct tdm_launch *launch)
{
    const struct tdm_access *access = &launch->op->access[TDM_REDUCE_ALL_SUM];
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_unit *unit = &weights->units[access->after.layer];
    uint64_t first = unit->elements, end = 0;
    if (access->after.content != TDM_UNIT_GRADIENT)
        return (struct range){0, access->bytes / tdm_dtype_bytes(sum->dtype)};
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (access->part != TDM_PART_ALL &&
            tdm_part_of(tensor->role) != (enum tdm_part)access->part)
            continue;
        first = tensor->offset < first ? tensor->offset : first;
        end = tensor->offset + tensor->elements;
    }
    return (struct range){first, end > first ? end - first : 0};
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

/* Each rank's chunk of the round goes to all others. */
static void gather(const struct tdm_launch *launch, struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const uint32_t end = tdm_round_end(program, launch->op->chunk);
    for (uint32_t i = tdm_round_first(program, launch->op->chunk); i < end; i++) {
        void *chunk = of_chunk(launch, i);
        const uint64_t bytes = chunk == NULL ? 0 : tdm_chunks_bytes(program, TDM_KVPAGES, i, i + 1);
        if (program->chunks[i].rank == program->rank)
            give_all(program, chunk, bytes, exchange);
        else
            tdm_exchange_take(exchange, program->chunks[i].rank, chunk, bytes);
    }
}

/* Shares of the round's chunks go to the ranks that own these, which sum them. Nobody else reads
 * the owner's share of its chunk. */
static void reduce(const struct tdm_launch *launch, struct tdm_exchange *exchange)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_OWN];
    const uint32_t end = tdm_round_end(program, launch->op->chunk);
    const uint32_t own = tdm_round_own(program, launch->op->chunk);
    for (uint32_t i = tdm_round_first(program, launch->op->chunk); i < end; i++) {
        const void *share = i == own ? NULL : of_chunk(launch, i);
        if (share != NULL)
            tdm_exchange_give(exchange, program->chunks[i].rank, share,
                              tdm_chunks_bytes(program, TDM_DKVPAGES, i, i + 1));
    }
    if (own == TDM_NONE)
        return;
    const uint64_t bytes = tdm_chunks_bytes(program, TDM_DKVPAGES, own, own + 1);
    for (uint32_t rank = 0; rank < program->ranks; rank++)
        if (rank != program->rank && tdm_has_share(program, launch->op->layer, own, rank))
            tdm_exchange_take(exchange, rank, NULL, bytes);
    exchange->sum =
        (struct tdm_share_sum){bytes / tdm_dtype_bytes(sum->dtype), sum->dtype, sum->data};
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

uint32_t tdm_share_phases(enum tdm_op_kind kind)
{
    return kind == TDM_OP_REDUCE_ALL ? 2 : 1;
}

void tdm_share_exchange(const struct tdm_launch *launch, uint32_t phase,
                        struct tdm_exchange *exchange)
{
    exchange->give_count = exchange->take_count = 0;
    exchange->sum = (struct tdm_share_sum){0};
    switch (launch->op->kind) {
    case TDM_OP_GATHER:
        gather(launch, exchange);
        break;
    case TDM_OP_REDUCE:
        reduce(launch, exchange);
        break;
    case TDM_OP_REDUCE_ALL:
        reduce_all(launch, phase, exchange);
        break;
    case TDM_OP_GATHER_ALL:
        gather_all(launch, exchange);
        break;
    default:
        break;
    }
}
