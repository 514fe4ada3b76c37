/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of ranks in several processes: messages over MPI, between arenas in the computer's
 * own memory. Ranks of one process send each other messages too. What is only read arrives in
 * staging memory, which is taken once.
 *
 * A wait ends if a rank has failed, if the run is to stop, or if a rank does not come; then its
 * process is asked what it does.
 */
#include "executor/mpi_module.h"
#include "executor/processes.h"
#include "executor/team.h"

#include "base/clock.h"
#include "base/size.h"

#include <stdio.h>
#include <stdlib.h>

/* Tags from here on are of pairs of ranks. */
#define FIRST_TAG 16u

/* A message under way. */
struct flight {
    uint64_t request;
    uint32_t rank; /* the other one */
    bool is_take, done;
};

struct link {
    unsigned char *staging;
    uint64_t staging_bytes;
    struct flight *flights; /* [capacity] */
    uint32_t count, capacity;
};

static void close_link(void *self)
{
    struct link *link = self;
    if (link == NULL)
        return;
    free(link->staging);
    free(link->flights);
    free(link);
}

static enum tdm_status open_link(struct tdm_team *team, const struct tdm_team_needs *needs,
                                 void **out, struct tdm_error *err)
{
    struct link *link = calloc(1, sizeof(*link));
    (void)team;
    if (link != NULL) {
        link->staging_bytes = needs->read_bytes;
        link->capacity = needs->messages;
        link->staging = malloc(needs->read_bytes + 1);
        link->flights = calloc((size_t)needs->messages + 1, sizeof(*link->flights));
    }
    if (link == NULL || link->staging == NULL || link->flights == NULL) {
        close_link(link);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for what other ranks send");
    }
    *out = link;
    return TDM_OK;
}

/* ---- messages ---- */

static int tag_of(uint32_t from, uint32_t to, uint32_t ranks)
{
    return (int)(FIRST_TAG + from * ranks + to);
}

/* Begins to send or to receive a piece, in as many messages as it needs. */
static enum tdm_status begin_piece(struct tdm_processes *processes, struct link *link,
                                   const struct tdm_program *program, const struct tdm_piece *piece,
                                   bool is_take, struct tdm_error *err)
{
    const uint32_t process = tdm_processes_of(processes, program->ranks, piece->rank);
    const int tag = is_take ? tag_of(piece->rank, program->rank, program->ranks)
                            : tag_of(program->rank, piece->rank, program->ranks);
    enum tdm_status status = TDM_OK;
    for (uint64_t at = 0; at < piece->bytes && status == TDM_OK; at += TDM_MPI_MESSAGE_BYTES) {
        const uint64_t bytes = tdm_least(piece->bytes - at, TDM_MPI_MESSAGE_BYTES);
        unsigned char *data = (unsigned char *)piece->data + at;
        struct flight *flight = &link->flights[link->count];
        if (link->count == link->capacity)
            return tdm_fail(err, TDM_INTERNAL, "more messages than were counted");
        *flight = (struct flight){.rank = piece->rank, .is_take = is_take};
        status =
            is_take
                ? tdm_processes_receive(processes, data, bytes, process, tag, &flight->request, err)
                : tdm_processes_send(processes, data, bytes, process, tag, &flight->request, err);
        link->count += status == TDM_OK;
    }
    return status;
}

/* ---- waiting ---- */

/* The first message that is not there: one that is taken, if any. NULL: all are. */
static const struct flight *missing(const struct link *link)
{
    const struct flight *first = NULL;
    for (uint32_t i = 0; i < link->count; i++)
        if (!link->flights[i].done &&
            (first == NULL || (link->flights[i].is_take && !first->is_take)))
            first = &link->flights[i];
    return first;
}

static enum tdm_status test_all(struct tdm_processes *processes, struct link *link,
                                struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < link->count && status == TDM_OK; i++)
        if (!link->flights[i].done)
            status = tdm_processes_test(processes, &link->flights[i].request,
                                        &link->flights[i].done, err);
    return status;
}

/* A rank does not come. If it waits for another one itself, that one is lost, and so on. */
static enum tdm_status lose(struct tdm_team *team, const struct tdm_program *program, uint32_t lost,
                            struct tdm_error *err)
{
    struct tdm_processes *processes = tdm_team_processes(team);
    char where[TDM_TEAM_WHERE] = "where its process does not answer";
    uint32_t waits_for = TDM_NONE;
    for (uint32_t asked = 0; asked < program->ranks; asked++) {
        char there[TDM_TEAM_WHERE];
        const uint32_t process = tdm_processes_of(processes, program->ranks, lost);
        if (process == tdm_processes_number(processes))
            tdm_team_describe(team, lost, &waits_for, there);
        else if (!tdm_processes_ask(processes, process, lost, &waits_for, there, sizeof(there)))
            break;
        snprintf(where, sizeof(where), "%s", there);
        if (waits_for == TDM_NONE || waits_for == program->rank)
            break;
        lost = waits_for;
        snprintf(where, sizeof(where), "where its process does not answer");
    }
    if (tdm_processes_failed(processes, err)) /* somebody else was faster */
        return TDM_INTERRUPTED;
    return tdm_team_lose(team, program->rank, lost, where, err);
}

/* Looks whether the wait must end before the messages are there. */
static enum tdm_status look(struct tdm_team *team, const struct tdm_program *program,
                            uint32_t awaited, struct tdm_error *err)
{
    const uint32_t failed = tdm_team_failed(team);
    if (failed != TDM_NONE)
        return tdm_fail(err, TDM_INTERRUPTED, "rank %u stops, because rank %u has failed",
                        program->rank, failed);
    if (tdm_processes_stopped(tdm_team_processes(team)))
        return tdm_fail(err, TDM_INTERRUPTED, "interrupted while rank %u waited for rank %u",
                        program->rank, awaited);
    return TDM_OK;
}

static enum tdm_status wait_all(struct tdm_team *team, const struct tdm_program *program,
                                struct link *link, struct tdm_error *err)
{
    struct tdm_processes *processes = tdm_team_processes(team);
    const double until = tdm_now_seconds() + tdm_team_patience(team, program->rank);
    const struct flight *first = NULL;
    enum tdm_status status = test_all(processes, link, err);
    uint32_t polls = 0, awaited = TDM_NONE;
    while (status == TDM_OK && (first = missing(link)) != NULL) {
        if (first->rank != awaited)
            tdm_team_waits(team, program->rank, awaited = first->rank);
        status = look(team, program, awaited, err);
        if (status == TDM_OK && tdm_now_seconds() >= until)
            status = lose(team, program, awaited, err);
        tdm_processes_rest(&polls);
        if (status == TDM_OK)
            status = test_all(processes, link, err);
    }
    tdm_team_goes_on(team, program->rank);
    return status;
}

static enum tdm_status move(struct tdm_team *team, const struct tdm_team_op *op,
                            struct tdm_exchange *exchange, uint32_t phase, uint32_t window,
                            struct tdm_error *err)
{
    const struct tdm_program *program = op->launch->program;
    struct tdm_processes *processes = tdm_team_processes(team);
    struct link *link = tdm_team_link(team, program->rank);
    (void)phase;
    (void)window;
    tdm_team_show(team, op->launch, op->executor);
    link->count = 0;
    enum tdm_status status = tdm_exchange_stage(exchange, link->staging, link->staging_bytes, err);
    for (uint32_t i = 0; i < exchange->take_count && status == TDM_OK; i++)
        status = begin_piece(processes, link, program, &exchange->take[i], true, err);
    for (uint32_t i = 0; i < exchange->give_count && status == TDM_OK; i++)
        status = begin_piece(processes, link, program, &exchange->give[i], false, err);
    return status == TDM_OK ? wait_all(team, program, link, err) : status;
}

/* What was given has been sent when move() returns. */
static enum tdm_status leave(struct tdm_team *team, const struct tdm_team_op *op,
                             struct tdm_error *err)
{
    (void)team;
    (void)op;
    (void)err;
    return TDM_OK;
}

const struct tdm_transport tdm_transport_mpi = {
    .name = "mpi",
    .window_bytes = TDM_TEAM_STAGING_BYTES,
    .open = open_link,
    .close = close_link,
    .move = move,
    .leave = leave,
};
