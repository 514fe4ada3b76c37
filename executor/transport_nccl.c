/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of NCCL: for GPUs that cannot read each other's memory, and between nodes. Pieces
 * are sent and received in one group for each phase, on the stream of the op's lane. What is only
 * read arrives in staging memory, piece by piece (tdm_team_window_bytes()), so that it is small.
 *
 * Ranks of one process meet before each phase, as in transport_shared.c: that finds ranks at
 * different ops and ranks that do not come, and keeps a rank that has failed from leaving others in
 * a kernel. After a failure the communicators are aborted, which ends their kernels.
 */
#include "executor/nccl.h"
#include "executor/processes.h"
#include "executor/team.h"

#include <stdatomic.h>
#include <stdlib.h>

struct link {
    const struct tdm_nccl *nccl;
    tdm_nccl_comm comm; /* NULL: none yet */
    atomic_bool aborted;
    const struct tdm_team_verbs *verbs;
    struct tdm_executor *executor;
    unsigned char *staging[TDM_MAX_LANES]; /* each lane has its own */
    uint64_t staging_bytes;
};

static enum tdm_status check(const struct tdm_nccl *nccl, int result, const char *call,
                             struct tdm_error *err)
{
    return result == TDM_NCCL_SUCCESS || result == TDM_NCCL_IN_PROGRESS
               ? TDM_OK
               : tdm_fail(err, TDM_IO, "NCCL: %s: %s", call, nccl->explain(result));
}

/* ---- opening ---- */

/* Makes the id of the ranks' communicator in one process, for all. */
static enum tdm_status make_id(struct tdm_team *team, struct tdm_error *err)
{
    struct tdm_processes *processes = tdm_team_processes(team);
    const struct tdm_nccl *nccl;
    struct tdm_nccl_id id = {{0}};
    enum tdm_status status = tdm_nccl_load(&nccl, err);
    if (status == TDM_OK && tdm_processes_number(processes) == 0)
        status = check(nccl, nccl->unique_id(&id), "ncclGetUniqueId", err);
    if (status == TDM_OK)
        status = tdm_processes_broadcast(processes, 0, &id, sizeof(id), err);
    if (status == TDM_OK)
        tdm_team_set_id(team, &id, sizeof(id));
    return status;
}

static void close_link(void *self)
{
    struct link *link = self;
    if (link == NULL)
        return;
    if (link->comm != NULL && !atomic_load(&link->aborted))
        (void)link->nccl->comm_destroy(link->comm);
    for (uint32_t lane = 0; lane < TDM_MAX_LANES; lane++)
        if (link->staging[lane] != NULL)
            link->verbs->give_back(link->executor, link->staging[lane]);
    free(link);
}

/* Sends a byte to every rank and receives one, so that NCCL takes its memory before the first step.
 */
static enum tdm_status warm_up(const struct link *link, const struct tdm_team_needs *needs,
                               struct tdm_error *err)
{
    const struct tdm_nccl *nccl = link->nccl;
    void *stream = link->verbs->stream(link->executor, TDM_LANE_COMPUTE);
    unsigned char *bytes = NULL;
    enum tdm_status status =
        link->verbs->take(link->executor, 2 * (uint64_t)needs->ranks, (void **)&bytes, err);
    if (status != TDM_OK)
        return status;
    status = check(nccl, nccl->group_start(), "ncclGroupStart", err);
    for (uint32_t rank = 0; rank < needs->ranks && status == TDM_OK; rank++) {
        if (rank == needs->rank)
            continue;
        status =
            check(nccl, nccl->send(bytes + rank, 1, TDM_NCCL_UINT8, (int)rank, link->comm, stream),
                  "ncclSend", err);
        if (status == TDM_OK)
            status = check(nccl,
                           nccl->receive(bytes + needs->ranks + rank, 1, TDM_NCCL_UINT8, (int)rank,
                                         link->comm, stream),
                           "ncclRecv", err);
    }
    enum tdm_status ended =
        check(nccl, nccl->group_end(), "ncclGroupEnd", status == TDM_OK ? err : NULL);
    status = status == TDM_OK ? ended : status;
    ended = link->verbs->drain(link->executor, status == TDM_OK ? err : NULL);
    link->verbs->give_back(link->executor, bytes);
    return status == TDM_OK ? ended : status;
}

static enum tdm_status open_link(struct tdm_team *team, const struct tdm_team_needs *needs,
                                 void **out, struct tdm_error *err)
{
    struct link *link = calloc(1, sizeof(*link));
    struct tdm_nccl_id id;
    if (link == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a communicator");
    link->verbs = needs->verbs;
    link->executor = needs->executor;
    /* as much as is planned, however little a small model needs */
    link->staging_bytes = (needs->ranks - 1) * tdm_team_window_bytes(needs->ranks);
    tdm_team_get_id(team, &id, sizeof(id));
    enum tdm_status status = tdm_nccl_load(&link->nccl, err);
    if (status == TDM_OK)
        status = link->verbs->here(link->executor, err);
    if (status == TDM_OK)
        status =
            check(link->nccl,
                  link->nccl->comm_init_rank(&link->comm, (int)needs->ranks, id, (int)needs->rank),
                  "ncclCommInitRank", err);
    if (status == TDM_OK)
        status = warm_up(link, needs, err);
    for (uint32_t lane = 0; lane < TDM_MAX_LANES && status == TDM_OK; lane++)
        if ((needs->reading_lanes >> lane & 1) != 0)
            status = link->verbs->take(link->executor, link->staging_bytes,
                                       (void **)&link->staging[lane], err);
    if (status != TDM_OK) {
        close_link(link);
        return status;
    }
    *out = link;
    return TDM_OK;
}

static void abort_link(void *self)
{
    struct link *link = self;
    if (link != NULL && link->comm != NULL && !atomic_exchange(&link->aborted, true))
        (void)link->nccl->comm_abort(link->comm);
}

/* ---- moving ---- */

/* Ranks of one process meet; with several processes NCCL alone makes them wait. */
static enum tdm_status meet(struct tdm_team *team, const struct tdm_team_op *op, bool first,
                            struct tdm_error *err)
{
    const uint32_t own = op->launch->program->rank;
    if (tdm_processes_count(tdm_team_processes(team)) == 1)
        return first ? tdm_team_enter(team, op->launch, op->executor, err)
                     : tdm_team_meet(team, own, err);
    const uint32_t failed = tdm_team_failed(team);
    tdm_team_show(team, op->launch, op->executor);
    tdm_team_goes_on(team, own);
    return failed == TDM_NONE ? TDM_OK
                              : tdm_fail(err, TDM_INTERRUPTED,
                                         "rank %u stops, because rank %u has failed", own, failed);
}

static enum tdm_status queue(const struct link *link, const struct tdm_exchange *exchange,
                             void *stream, struct tdm_error *err)
{
    const struct tdm_nccl *nccl = link->nccl;
    enum tdm_status status = check(nccl, nccl->group_start(), "ncclGroupStart", err);
    if (status != TDM_OK)
        return status;
    for (uint32_t i = 0; i < exchange->give_count && status == TDM_OK; i++) {
        const struct tdm_piece *give = &exchange->give[i];
        status = check(nccl,
                       nccl->send(give->data, give->bytes, TDM_NCCL_UINT8, (int)give->rank,
                                  link->comm, stream),
                       "ncclSend", err);
    }
    for (uint32_t i = 0; i < exchange->take_count && status == TDM_OK; i++) {
        const struct tdm_piece *take = &exchange->take[i];
        status = check(nccl,
                       nccl->receive(take->data, take->bytes, TDM_NCCL_UINT8, (int)take->rank,
                                     link->comm, stream),
                       "ncclRecv", err);
    }
    enum tdm_status ended =
        check(nccl, nccl->group_end(), "ncclGroupEnd", status == TDM_OK ? err : NULL);
    return status == TDM_OK ? ended : status;
}

static enum tdm_status move(struct tdm_team *team, const struct tdm_team_op *op,
                            struct tdm_exchange *exchange, uint32_t phase, uint32_t window,
                            struct tdm_error *err)
{
    const enum tdm_lane lane = op->launch->op->lane;
    const struct link *link = tdm_team_link(team, op->launch->program->rank);
    int error = TDM_NCCL_SUCCESS;
    enum tdm_status status =
        tdm_exchange_stage(exchange, link->staging[lane], link->staging_bytes, err);
    if (status == TDM_OK && atomic_load(&link->aborted))
        status = tdm_fail(err, TDM_INTERRUPTED, "the ranks' communicators were aborted");
    if (status == TDM_OK && window == 0)
        status = meet(team, op, phase == 0, err);
    if (status == TDM_OK)
        status = check(link->nccl, link->nccl->comm_error(link->comm, &error),
                       "ncclCommGetAsyncError", err);
    if (status == TDM_OK)
        status = check(link->nccl, error, "an earlier transfer", err);
    return status == TDM_OK ? queue(link, exchange, link->verbs->stream(op->executor, lane), err)
                            : status;
}

/* Later work of the lane comes after the transfers. But others may still look at what this rank
 * shows. */
static enum tdm_status leave(struct tdm_team *team, const struct tdm_team_op *op,
                             struct tdm_error *err)
{
    return tdm_processes_count(tdm_team_processes(team)) == 1
               ? tdm_team_meet(team, op->launch->program->rank, err)
               : TDM_OK;
}

const struct tdm_transport tdm_transport_nccl = {
    .name = "nccl",
    .window_bytes = TDM_TEAM_STAGING_BYTES,
    .begin = make_id,
    .open = open_link,
    .close = close_link,
    .abort = abort_link,
    .move = move,
    .leave = leave,
};
