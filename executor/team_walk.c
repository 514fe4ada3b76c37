/* SPDX-License-Identifier: Apache-2.0 */
/* The walks of all ranks, and their threads. */
#include "executor/team_walk.h"

#include "schedule/program.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* A rank, and the step that its thread runs. */
struct member {
    struct tdm_program program; /* as this rank runs it */
    struct tdm_walk *walk;
    struct tdm_team *team;
    const struct tdm_step *step;
    struct tdm_observer *observer;
    const volatile sig_atomic_t *stop;
    enum tdm_status status;
    struct tdm_error err;
};

struct tdm_team_walk {
    uint32_t ranks;
    struct tdm_team *team; /* NULL: one rank */
    struct member *members;
};

enum tdm_status tdm_team_walk_new(const struct tdm_program *program,
                                  struct tdm_forecast *const *forecasts,
                                  const struct tdm_arenas *arenas, struct tdm_team_walk **out,
                                  struct tdm_error *err)
{
    struct tdm_team_walk *team = calloc(1, sizeof(*team));
    enum tdm_status status = TDM_OK;
    if (team != NULL)
        team->members = calloc(program->ranks, sizeof(*team->members));
    if (team == NULL || team->members == NULL) {
        free(team);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", program->ranks);
    }
    team->ranks = program->ranks;
    if (team->ranks > 1)
        status = tdm_team_new(team->ranks, &tdm_transport_shared, &team->team, err);
    for (uint32_t rank = 0; rank < team->ranks && status == TDM_OK; rank++) {
        struct member *member = &team->members[rank];
        member->program = tdm_program_of_rank(program, rank);
        member->team = team->team;
        status = tdm_walk_new(&member->program, forecasts == NULL ? NULL : forecasts[rank],
                              &arenas[rank], &member->walk, err);
        if (status == TDM_OK)
            tdm_walk_join(member->walk, team->team);
    }
    if (status != TDM_OK) {
        tdm_team_walk_free(team);
        return status;
    }
    *out = team;
    return TDM_OK;
}

void tdm_team_walk_free(struct tdm_team_walk *team)
{
    if (team == NULL)
        return;
    for (uint32_t rank = 0; rank < team->ranks; rank++)
        tdm_walk_free(team->members[rank].walk);
    tdm_team_free(team->team);
    free(team->members);
    free(team);
}

struct tdm_walk *tdm_team_walk_of(const struct tdm_team_walk *team, uint32_t rank)
{
    return team->members[rank].walk;
}

const struct tdm_program *tdm_team_walk_program(const struct tdm_team_walk *team, uint32_t rank)
{
    return &team->members[rank].program;
}

enum tdm_status tdm_team_walk_prepare(struct tdm_team_walk *team, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; rank < team->ranks && status == TDM_OK; rank++)
        status = tdm_walk_prepare(team->members[rank].walk, err);
    return status;
}

static void *run_member(void *self)
{
    struct member *member = self;
    member->status =
        tdm_walk_step(member->walk, member->step, member->observer, member->stop, &member->err);
    if (member->status != TDM_OK && member->team != NULL)
        tdm_team_fail(member->team, member->program.rank);
    return NULL;
}

/* The error of the rank that failed first, with its number. */
static enum tdm_status first_failure(const struct tdm_team_walk *team, struct tdm_error *err)
{
    if (team->ranks == 1) {
        if (team->members[0].status != TDM_OK && err != NULL)
            *err = team->members[0].err;
        return team->members[0].status;
    }
    uint32_t failed = tdm_team_failed(team->team);
    if (failed == TDM_NONE)
        return TDM_OK;
    /* A rank that others took to be lost may have come to its end: then one of them tells. */
    for (uint32_t i = 1; i < team->ranks && team->members[failed].status == TDM_OK; i++)
        failed = (failed + 1) % team->ranks;
    if (err == NULL)
        return team->members[failed].status;
    *err = team->members[failed].err;
    char rank[32];
    snprintf(rank, sizeof(rank), "rank %u", failed);
    return tdm_about(err, rank);
}

enum tdm_status tdm_team_walk_step(struct tdm_team_walk *team, const struct tdm_step *step,
                                   struct tdm_observer *const *observers,
                                   const volatile sig_atomic_t *stop, struct tdm_error *err)
{
    pthread_t threads[TDM_MAX_RANKS];
    uint32_t started = 1;
    if (team->team != NULL)
        tdm_team_reset(team->team);
    for (uint32_t rank = 0; rank < team->ranks; rank++) {
        struct member *member = &team->members[rank];
        member->step = step;
        member->observer = observers == NULL ? NULL : observers[rank];
        member->stop = stop;
        member->status = TDM_OK;
    }
    while (started < team->ranks &&
           pthread_create(&threads[started], NULL, run_member, &team->members[started]) == 0)
        started++;
    bool all = started == team->ranks;
    if (all)
        (void)run_member(&team->members[0]);
    else
        tdm_team_fail(team->team, 0);
    for (uint32_t rank = 1; rank < started; rank++)
        pthread_join(threads[rank], NULL);
    return all ? first_failure(team, err)
               : tdm_fail(err, TDM_NO_MEMORY, "no thread for rank %u of %u", started, team->ranks);
}
