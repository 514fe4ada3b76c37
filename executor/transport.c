/* SPDX-License-Identifier: Apache-2.0 */
/* Team ops, whatever the backend and the transport. */
#include "executor/transport.h"

#include "base/size.h"
#include "executor/mpi_module.h"
#include "executor/shares.h"
#include "executor/team.h"

static void add(struct tdm_piece *pieces, uint32_t *count, uint32_t capacity,
                struct tdm_piece piece)
{
    if (piece.bytes > 0 && *count < capacity)
        pieces[(*count)++] = piece;
}

void tdm_exchange_give(struct tdm_exchange *exchange, uint32_t rank, const void *data,
                       uint64_t bytes)
{
    add(exchange->give, &exchange->give_count, exchange->capacity,
        (struct tdm_piece){rank, (void *)data, bytes});
}

void tdm_exchange_take(struct tdm_exchange *exchange, uint32_t rank, void *to, uint64_t bytes)
{
    add(exchange->take, &exchange->take_count, exchange->capacity,
        (struct tdm_piece){rank, to, bytes});
}

enum tdm_status tdm_exchange_stage(struct tdm_exchange *exchange, unsigned char *staging,
                                   uint64_t bytes, struct tdm_error *err)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < exchange->take_count; i++) {
        struct tdm_piece *take = &exchange->take[i];
        if (take->data != NULL)
            continue;
        if (staging == NULL || at + take->bytes > bytes)
            return tdm_fail(err, TDM_INTERNAL, "more bytes to stage than were counted");
        take->data = staging + at;
        at += take->bytes;
    }
    return TDM_OK;
}

uint32_t tdm_exchange_shares(const struct tdm_exchange *exchange, uint32_t own, uint32_t ranks,
                             const void **shares)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (rank == own)
            shares[count++] = exchange->sum.own;
        for (uint32_t i = 0; i < exchange->take_count; i++)
            if (exchange->take[i].rank == rank)
                shares[count++] = exchange->take[i].data;
    }
    return count;
}

static enum tdm_status copy_rows(const struct tdm_team_op *op, bool after, struct tdm_error *err)
{
    struct tdm_row_copy copy;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; status == TDM_OK && tdm_share_rows(op->launch, after, i, &copy); i++)
        status = op->verbs->copy_rows(op->executor, op->launch, &copy, err);
    return status;
}

static uint32_t messages_of(const struct tdm_piece *pieces, uint32_t count)
{
    uint32_t messages = 0;
    for (uint32_t i = 0; i < count; i++)
        messages += (uint32_t)((pieces[i].bytes - 1) / TDM_MPI_MESSAGE_BYTES + 1);
    return messages;
}

void tdm_team_need(const struct tdm_launch *launch, struct tdm_exchange *scratch,
                   struct tdm_team_needs *needs)
{
    for (uint32_t phase = 0; phase < tdm_share_phases(launch); phase++) {
        uint64_t bytes = 0;
        tdm_share_exchange(launch, phase, scratch);
        const uint32_t messages = messages_of(scratch->give, scratch->give_count) +
                                  messages_of(scratch->take, scratch->take_count);
        for (uint32_t i = 0; i < scratch->take_count; i++)
            if (scratch->take[i].data == NULL)
                bytes += tdm_least(scratch->take[i].bytes,
                                   tdm_team_window_bytes(launch->program->ranks));
        if (bytes > 0)
            needs->reading_lanes |= 1u << launch->op->lane;
        needs->read_bytes = bytes > needs->read_bytes ? bytes : needs->read_bytes;
        needs->messages = messages > needs->messages ? messages : needs->messages;
    }
}

/* Cuts the bytes of a window out of pieces. */
static void cut(const struct tdm_piece *pieces, uint32_t count, uint64_t at, uint64_t bytes,
                struct tdm_piece *out, uint32_t *out_count)
{
    *out_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (pieces[i].bytes > at)
            out[(*out_count)++] = (struct tdm_piece){
                pieces[i].rank,
                pieces[i].data == NULL ? NULL : (unsigned char *)pieces[i].data + at,
                tdm_least(bytes, pieces[i].bytes - at)};
}

static uint64_t longest(const struct tdm_exchange *exchange)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < exchange->give_count; i++)
        bytes = tdm_most(bytes, exchange->give[i].bytes);
    for (uint32_t i = 0; i < exchange->take_count; i++)
        bytes = tdm_most(bytes, exchange->take[i].bytes);
    return bytes;
}

static enum tdm_status move_and_sum(const struct tdm_transport *transport,
                                    const struct tdm_team_op *op, struct tdm_exchange *exchange,
                                    uint32_t phase, uint32_t window, struct tdm_error *err)
{
    enum tdm_status status = transport->move(op->launch->team, op, exchange, phase, window, err);
    return status == TDM_OK && exchange->sum.elements > 0
               ? op->verbs->sum(op->executor, op->launch, exchange, err)
               : status;
}

/* Runs a phase that sums what is staged, window by window. Ranks may have more of them than others:
 * what a pair of ranks exchanges is cut in the same way on both. */
static enum tdm_status run_windows(const struct tdm_transport *transport,
                                   const struct tdm_team_op *op, const struct tdm_exchange *all,
                                   uint32_t phase, struct tdm_error *err)
{
    struct tdm_exchange *part =
        tdm_team_exchange(op->launch->team, op->launch->program->rank, TDM_TEAM_PHASES);
    const uint64_t bytes =
        tdm_least(transport->window_bytes, tdm_team_window_bytes(op->launch->program->ranks));
    const uint64_t end = longest(all);
    const uint64_t size = all->sum.elements > 0 ? tdm_dtype_bytes(all->sum.dtype) : 1;
    enum tdm_status status = TDM_OK;
    uint32_t window = 0;
    do {
        const uint64_t at = window * bytes, done = at / size;
        cut(all->give, all->give_count, at, bytes, part->give, &part->give_count);
        cut(all->take, all->take_count, at, bytes, part->take, &part->take_count);
        part->sum = (struct tdm_share_sum){0};
        if (all->sum.elements > done)
            part->sum = (struct tdm_share_sum){tdm_least(bytes / size, all->sum.elements - done),
                                               all->sum.dtype, (unsigned char *)all->sum.own + at};
        status = move_and_sum(transport, op, part, phase, window, err);
    } while (status == TDM_OK && ++window * bytes < end);
    return status;
}

/* Is something only read in this phase, on any rank? All ranks must answer alike, so the kind of op
 * decides. */
static bool reads(enum tdm_op_kind kind, uint32_t phase)
{
    return kind == TDM_OP_REDUCE || kind == TDM_OP_REDUCE_SCATTER || kind == TDM_OP_HOP_SUM ||
           (kind == TDM_OP_REDUCE_ALL && phase == 0);
}

/* Does a rank only read something in this phase? */
static bool reads_some(const struct tdm_exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->take_count; i++)
        if (exchange->take[i].data == NULL)
            return true;
    return false;
}

enum tdm_status tdm_team_run(const struct tdm_team_verbs *verbs, struct tdm_executor *executor,
                             const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_transport *transport = tdm_team_transport(launch->team);
    const struct tdm_team_op op = {verbs, executor, launch};
    enum tdm_status status = copy_rows(&op, false, err);
    for (uint32_t phase = 0; phase < tdm_share_phases(launch) && status == TDM_OK; phase++) {
        struct tdm_exchange *exchange =
            tdm_team_exchange(launch->team, launch->program->rank, phase);
        tdm_share_exchange(launch, phase, exchange);
        const bool windows = transport->window_bytes > 0;
        if (windows && reads(launch->op->kind, phase))
            status = run_windows(transport, &op, exchange, phase, err);
        else if (windows && reads_some(exchange))
            status = tdm_fail(err, TDM_INTERNAL, "%s is not known to read shares of other ranks",
                              tdm_op_type(launch->op->kind)->name);
        else
            status = move_and_sum(transport, &op, exchange, phase, 0, err);
    }
    if (status == TDM_OK)
        status = copy_rows(&op, true, err);
    return status == TDM_OK ? transport->leave(launch->team, &op, err) : status;
}
