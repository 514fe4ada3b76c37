/* SPDX-License-Identifier: Apache-2.0 */
/* Team ops of all ranks, one beside the other. */
#include "schedule/team_check.h"

#include "ops/team.h"

#include <stdlib.h>

/* A team op as rank 0 runs it; bytes are summed over the ranks. */
struct team_op {
    enum tdm_op_kind kind;
    enum tdm_part part;
    uint32_t layer, chunk, lap, hops, queries;
    uint64_t tokens;
    enum tdm_content exchanged;
    uint64_t sent_bytes, fetched_bytes;
    uint64_t sent_marks, received_marks; /* of hops, summed over the ranks */
};

struct tdm_team_check {
    struct team_op *ops;
    size_t count, capacity;
    size_t next; /* of the rank under way */
    uint32_t rank, ranks, row;
};

enum tdm_status tdm_team_check_new(uint32_t ranks, uint32_t row, struct tdm_team_check **out,
                                   struct tdm_error *err)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for team ops");
    (*out)->ranks = ranks;
    (*out)->row = row;
    return TDM_OK;
}

void tdm_team_check_free(struct tdm_team_check *check)
{
    if (check != NULL)
        free(check->ops);
    free(check);
}

void tdm_team_check_rank(struct tdm_team_check *check, uint32_t rank)
{
    check->rank = rank;
    check->next = 0;
}

enum tdm_content tdm_team_exchanged(const struct tdm_op *op)
{
    const struct tdm_access *heads = &op->access[TDM_ALL_TO_ALL_HEADS];
    return op->kind == TDM_OP_ALL_TO_ALL && heads->buffer != TDM_NONE ? heads->after.content
                                                                      : TDM_EMPTY;
}

static enum tdm_status add(struct tdm_team_check *check, const struct tdm_op *op,
                           struct tdm_error *err)
{
    if (check->count == check->capacity) {
        size_t capacity = check->capacity == 0 ? 256 : 2 * check->capacity;
        struct team_op *ops = realloc(check->ops, capacity * sizeof(*ops));
        if (ops == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu team ops", capacity);
        check->ops = ops;
        check->capacity = capacity;
    }
    check->ops[check->count++] = (struct team_op){.kind = op->kind,
                                                  .part = op->part,
                                                  .layer = op->layer,
                                                  .chunk = op->chunk,
                                                  .lap = op->lap,
                                                  .hops = op->hops,
                                                  .queries = op->queries,
                                                  .tokens = op->tokens,
                                                  .exchanged = tdm_team_exchanged(op)};
    return TDM_OK;
}

/* A number for what goes from a rank to the next, which differs in any part. */
static uint64_t mark_of(const struct tdm_access *access, uint32_t from)
{
    const uint64_t parts[] = {access->after.content == TDM_QUERIES, access->after.chunk, from,
                              access->bytes};
    uint64_t mark = 1;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        mark = (mark ^ parts[i]) * UINT64_C(0x9e3779b97f4a7c15);
        mark ^= mark >> 29;
    }
    return mark;
}

/* What a rank sends in a hop is what the next one receives, with rows the one at its place in the
 * next row: queries or not, of the same chunk, on the same edge. */
static void take_marks(const struct tdm_team_check *check, const struct tdm_op *op,
                       struct team_op *due)
{
    const struct tdm_access *sent = &op->access[TDM_HOP_SENT],
                            *received = &op->access[TDM_HOP_RECEIVED];
    if (op->kind != TDM_OP_HOP && op->kind != TDM_OP_HOP_SUM)
        return;
    if (sent->buffer != TDM_NONE)
        due->sent_marks += mark_of(sent, check->rank);
    if (received->buffer != TDM_NONE)
        due->received_marks +=
            mark_of(received, (check->rank + check->ranks - check->row) % check->ranks);
}

enum tdm_status tdm_team_check_take(struct tdm_team_check *check, const struct tdm_item *item,
                                    struct tdm_error *err)
{
    if (item->kind != TDM_RUN || (TDM_TEAM_KINDS & TDM_KIND(item->op->kind)) == 0)
        return TDM_OK;
    const struct tdm_op *op = item->op;
    enum tdm_status status = check->rank == 0 ? add(check, op, err) : TDM_OK;
    if (status != TDM_OK)
        return status;
    if (check->next == check->count)
        return tdm_fail(err, TDM_INPUT, "rank %u runs more team ops than rank 0: op %llu (%s)",
                        check->rank, (unsigned long long)op->number, tdm_op_kind_name(op->kind));
    struct team_op *due = &check->ops[check->next++];
    const enum tdm_content exchanged = tdm_team_exchanged(op); /* TDM_EMPTY: none on this rank */
    if (op->kind != due->kind || op->part != due->part || op->layer != due->layer ||
        op->chunk != due->chunk || op->tokens != due->tokens || op->lap != due->lap ||
        op->hops != due->hops || op->queries != due->queries ||
        (exchanged != TDM_EMPTY && due->exchanged != TDM_EMPTY && exchanged != due->exchanged))
        return tdm_fail(err, TDM_INPUT,
                        "op %llu of rank %u is %s of layer %d, chunk %d; rank 0 runs %s of layer "
                        "%d, chunk %d",
                        (unsigned long long)op->number, check->rank, tdm_op_kind_name(op->kind),
                        (int)op->layer, (int)op->chunk, tdm_op_kind_name(due->kind),
                        (int)due->layer, (int)due->chunk);
    due->exchanged = due->exchanged == TDM_EMPTY ? exchanged : due->exchanged;
    due->sent_bytes += op->sent_bytes;
    due->fetched_bytes += op->fetched_bytes;
    take_marks(check, op, due);
    return TDM_OK;
}

enum tdm_status tdm_team_check_rank_end(const struct tdm_team_check *check, struct tdm_error *err)
{
    return check->next == check->count
               ? TDM_OK
               : tdm_fail(err, TDM_INPUT, "rank %u runs %zu team ops, rank 0 %zu", check->rank,
                          check->next, check->count);
}

enum tdm_status tdm_team_check_finish(const struct tdm_team_check *check, struct tdm_error *err)
{
    for (size_t i = 0; i < check->count; i++) {
        const struct team_op *op = &check->ops[i];
        if (op->sent_bytes != op->fetched_bytes)
            return tdm_fail(err, TDM_INPUT,
                            "ranks send %llu bytes and receive %llu in %s of layer %d, chunk %d",
                            (unsigned long long)op->sent_bytes,
                            (unsigned long long)op->fetched_bytes, tdm_op_kind_name(op->kind),
                            (int)op->layer, (int)op->chunk);
        if (op->sent_marks != op->received_marks)
            return tdm_fail(err, TDM_INPUT,
                            "a rank receives another chunk than the one before it sends in %s of "
                            "layer %d, chunk %d",
                            tdm_op_kind_name(op->kind), (int)op->layer, (int)op->chunk);
    }
    return TDM_OK;
}
