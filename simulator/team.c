/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a program on one clock. */
#include "simulator/team.h"

#include "base/meeting.h"
#include "schedule/ranks_sample.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

struct tdm_team_clock {
    struct tdm_meeting *meeting;
    uint32_t members;
    /* [members] each, by turns: a member that is ready for the next op must not overwrite what
     * another still reads */
    double *ready[2];
    unsigned *turn; /* [members] */
};

struct member {
    struct tdm_program program; /* as its rank runs it */
    struct tdm_team_clock *clock;
    uint32_t number;
    tdm_simulated see;
    void *self;
    struct tdm_simulation simulation;
    enum tdm_status status;
    struct tdm_error err;
};

enum tdm_status tdm_team_clock_meet(struct tdm_team_clock *clock, uint32_t member, double *seconds,
                                    uint32_t *last, struct tdm_error *err)
{
    double *ready = clock->ready[clock->turn[member]];
    clock->turn[member] ^= 1;
    ready[member] = *seconds;
    enum tdm_status status = tdm_meeting_wait(clock->meeting, member, err);
    *last = member;
    for (uint32_t i = 0; i < clock->members && status == TDM_OK; i++) {
        if (ready[i] <= *seconds)
            continue;
        *seconds = ready[i];
        *last = i;
    }
    return status;
}

static void *run_member(void *self)
{
    struct member *m = self;
    m->status = tdm_simulate_rank(&m->program, m->clock, m->number, m->see, m->self, &m->simulation,
                                  &m->err);
    if (m->status != TDM_OK)
        tdm_meeting_fail(m->clock->meeting, m->number);
    return NULL;
}

/* Runs the members, the first one here. */
static enum tdm_status run_members(struct member *members, uint32_t count, struct tdm_error *err)
{
    pthread_t threads[TDM_MAX_RANKS];
    struct tdm_meeting *meeting = members[0].clock->meeting;
    uint32_t started = 1;
    while (started < count &&
           pthread_create(&threads[started], NULL, run_member, &members[started]) == 0)
        started++;
    bool all = started == count;
    if (all)
        (void)run_member(&members[0]);
    else
        tdm_meeting_fail(meeting, 0);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(threads[i], NULL);
    if (!all)
        return tdm_fail(err, TDM_NO_MEMORY, "no thread to simulate rank %u",
                        members[started].program.rank);
    uint32_t failed = tdm_meeting_failed(meeting);
    if (failed == TDM_NOBODY)
        return TDM_OK;
    if (err != NULL)
        *err = members[failed].err;
    return members[failed].status;
}

/* Rank 0's results, with those of all where they are one number. */
static void combine(const struct member *members, uint32_t count, struct tdm_simulation *out)
{
    *out = members[0].simulation;
    out->team.ranks = members[0].program.ranks;
    out->team.simulated = count < TDM_SIMULATED_RANKS ? count : TDM_SIMULATED_RANKS;
    for (uint32_t i = 1; i < count; i++) {
        const struct tdm_simulation *s = &members[i].simulation;
        if (s->step_seconds > out->step_seconds)
            out->step_seconds = s->step_seconds;
        if (i < TDM_SIMULATED_RANKS)
            out->team.of[i] = s->team.of[0];
    }
}

static enum tdm_status new_clock(uint32_t members, struct tdm_team_clock *clock,
                                 struct tdm_error *err)
{
    *clock = (struct tdm_team_clock){.members = members};
    clock->ready[0] = calloc(2 * (size_t)members, sizeof(double));
    clock->turn = calloc(members, sizeof(*clock->turn));
    if (clock->ready[0] == NULL || clock->turn == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", members);
    clock->ready[1] = clock->ready[0] + members;
    return tdm_meeting_new(members, 0, &clock->meeting, err);
}

static void free_clock(const struct tdm_team_clock *clock)
{
    tdm_meeting_free(clock->meeting);
    free(clock->ready[0]);
    free(clock->turn);
}

enum tdm_status tdm_simulate_team(const struct tdm_program *program, tdm_simulated see,
                                  void *const *selves, uint32_t seen,
                                  struct tdm_simulation *simulation, struct tdm_error *err)
{
    uint32_t ranks[TDM_SIMULATED_RANKS];
    const bool all = seen == program->ranks;
    const uint32_t count = all ? program->ranks : tdm_ranks_simulated(program, ranks);
    struct tdm_team_clock clock;
    struct member *members = calloc(count, sizeof(*members));
    enum tdm_status status = new_clock(count, &clock, err);
    if (status == TDM_OK && members == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", count);
    for (uint32_t i = 0; i < count && status == TDM_OK; i++)
        members[i] = (struct member){.program = tdm_program_of_rank(program, all ? i : ranks[i]),
                                     .clock = &clock,
                                     .number = i,
                                     .see = i < seen ? see : NULL,
                                     .self = i < seen ? selves[i] : NULL};
    if (status == TDM_OK)
        status = run_members(members, count, err);
    if (status == TDM_OK)
        combine(members, count, simulation);
    free_clock(&clock);
    free(members);
    return status;
}
