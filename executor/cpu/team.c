/* SPDX-License-Identifier: Apache-2.0 */
/* Team ops between ranks that are threads of one process: each reads the others' arenas. */
#include "executor/cpu/cpu.h"

#include "executor/convert.h"
#include "executor/team.h"
#include "ops/team.h"
#include "schedule/layout.h"

#include <string.h>

/* Elements that are summed at a time. */
enum { BLOCK = 4096 };

/* ---- gather ---- */

/* Finds a chunk among the operands of a rank's launch: its slot and bytes; NULL if none of them has
 * it. */
static unsigned char *find_chunk(const struct tdm_launch *launch, uint32_t chunk)
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

static uint64_t chunk_bytes(const struct tdm_launch *launch, enum tdm_content content,
                            uint32_t chunk)
{
    return tdm_chunks_bytes(launch->program, content, chunk, chunk + 1);
}

/* Copies the own chunks of all other ranks. */
static void copy_others(const struct tdm_launch *launch)
{
    const struct tdm_team *team = launch->team;
    for (uint32_t rank = 0; rank < launch->program->ranks; rank++) {
        const struct tdm_launch *other = tdm_team_shown(team, rank);
        const struct tdm_access *own = &other->op->access[TDM_GATHER_OWN];
        if (rank == launch->program->rank || own->buffer == TDM_NONE)
            continue;
        unsigned char *to = find_chunk(launch, own->after.chunk);
        if (to != NULL)
            memcpy(to, other->operand[TDM_GATHER_OWN].data,
                   chunk_bytes(launch, TDM_KVPAGES, own->after.chunk));
    }
}

enum tdm_status tdm_cpu_gather_round(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     struct tdm_error *err)
{
    (void)executor;
    enum tdm_status status = tdm_team_enter(launch->team, launch, err);
    if (status != TDM_OK)
        return status;
    copy_others(launch);
    return tdm_team_meet(launch->team, launch->program->rank, err);
}

/* ---- sums over ranks ---- */

/* Sums `count` elements of the shares of all ranks, in rank order in fp32, into `out`. A share may
 * be NULL: the rank has none. */
static void sum_shares(const unsigned char *const *shares, uint32_t ranks, enum tdm_dtype dtype,
                       uint64_t first, uint64_t count, unsigned char *out)
{
    float sum[BLOCK], row[BLOCK];
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint64_t block = tdm_least(BLOCK, count - at);
        bool begun = false;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            if (shares[rank] == NULL)
                continue;
            tdm_load_row(shares[rank], dtype, first + at, block, row);
            for (uint64_t i = 0; i < block; i++)
                sum[i] = begun ? sum[i] + row[i] : row[i];
            begun = true;
        }
        tdm_store_row(out, dtype, first + at, block, sum);
    }
}

/* Only the owner of a chunk writes its sums, and nobody else reads the owner's share of it. */
enum tdm_status tdm_cpu_reduce(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err)
{
    const uint32_t ranks = launch->program->ranks;
    const struct tdm_access *own = &launch->op->access[TDM_REDUCE_OWN];
    const unsigned char *shares[TDM_MAX_RANKS] = {NULL};
    (void)executor;
    enum tdm_status status = tdm_team_enter(launch->team, launch, err);
    if (status != TDM_OK)
        return status;
    if (own->buffer != TDM_NONE) {
        const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_OWN];
        for (uint32_t rank = 0; rank < ranks; rank++)
            shares[rank] = find_chunk(tdm_team_shown(launch->team, rank), own->after.chunk);
        sum_shares(shares, ranks, sum->dtype, 0, own->bytes / tdm_dtype_bytes(sum->dtype),
                   sum->data);
    }
    return tdm_team_meet(launch->team, launch->program->rank, err);
}

/* The elements of a gradient that an op sums: those of its part of the unit, or all, with the gaps
 * between tensors. */
static void gradient_range(const struct tdm_launch *launch, uint64_t *first, uint64_t *count)
{
    const struct tdm_access *access = &launch->op->access[TDM_REDUCE_ALL_SUM];
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_unit *unit = &weights->units[access->after.layer];
    uint64_t end = 0;
    *first = 0;
    *count = access->bytes / tdm_dtype_bytes(sum->dtype);
    if (access->after.content != TDM_UNIT_GRADIENT)
        return;
    *first = unit->elements;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (access->part != TDM_PART_ALL &&
            tdm_part_of(tensor->role) != (enum tdm_part)access->part)
            continue;
        *first = tensor->offset < *first ? tensor->offset : *first;
        end = tensor->offset + tensor->elements;
    }
    *count = end > *first ? end - *first : 0;
}

/* Each rank sums a slice, which it alone then writes, and copies the others' slices when all are
 * summed. */
enum tdm_status tdm_cpu_reduce_all(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    const uint32_t ranks = launch->program->ranks, own = launch->program->rank;
    const struct tdm_operand *sum = &launch->operand[TDM_REDUCE_ALL_SUM];
    const uint64_t size = tdm_dtype_bytes(sum->dtype);
    const unsigned char *shares[TDM_MAX_RANKS] = {NULL};
    uint64_t first, count;
    (void)executor;
    gradient_range(launch, &first, &count);
    enum tdm_status status = tdm_team_enter(launch->team, launch, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < ranks; rank++)
        shares[rank] = tdm_team_shown(launch->team, rank)->operand[TDM_REDUCE_ALL_SUM].data;
    uint64_t begin = count * own / ranks, end = count * (own + 1) / ranks;
    sum_shares(shares, ranks, sum->dtype, first + begin, end - begin, sum->data);
    status = tdm_team_meet(launch->team, own, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        begin = first + count * rank / ranks;
        end = first + count * (rank + 1) / ranks;
        if (rank != own)
            memcpy((unsigned char *)sum->data + begin * size, shares[rank] + begin * size,
                   (end - begin) * size);
    }
    return tdm_team_meet(launch->team, own, err);
}
