/* SPDX-License-Identifier: Apache-2.0 */
/* Team ops, whatever the backend and the transport. */
#include "executor/transport.h"

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

enum tdm_status tdm_team_run(const struct tdm_team_verbs *verbs, struct tdm_executor *executor,
                             const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_transport *transport = tdm_team_transport(launch->team);
    const struct tdm_team_op op = {verbs, executor, launch};
    enum tdm_status status = copy_rows(&op, false, err);
    for (uint32_t phase = 0; phase < tdm_share_phases(launch->op->kind) && status == TDM_OK;
         phase++) {
        struct tdm_exchange *exchange =
            tdm_team_exchange(launch->team, launch->program->rank, phase);
        tdm_share_exchange(launch, phase, exchange);
        status = transport->move(launch->team, &op, exchange, phase, err);
        if (status == TDM_OK && exchange->sum.elements > 0)
            status = verbs->sum(executor, launch, exchange, err);
    }
    if (status == TDM_OK)
        status = copy_rows(&op, true, err);
    return status == TDM_OK ? transport->leave(launch->team, &op, err) : status;
}
