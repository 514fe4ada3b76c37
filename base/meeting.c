/* SPDX-License-Identifier: Apache-2.0 */
/* A meeting point: a barrier that can be left. */
#include "base/meeting.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define YIELDS 32u

struct tdm_meeting {
    uint32_t members, late_seconds;
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    uint32_t here;   /* members that wait */
    uint64_t number; /* of the meeting that they wait for */
    uint64_t *seen;  /* [members] meetings that each has come to */
    uint32_t failed;
    bool lost; /* it did not come in time */
};

enum tdm_status tdm_meeting_new(uint32_t members, uint32_t late_seconds, struct tdm_meeting **out,
                                struct tdm_error *err)
{
    struct tdm_meeting *meeting = calloc(1, sizeof(*meeting));
    pthread_condattr_t clock;
    if (meeting != NULL)
        meeting->seen = calloc(members, sizeof(*meeting->seen));
    if (meeting == NULL || meeting->seen == NULL) {
        free(meeting);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u threads", members);
    }
    meeting->members = members;
    meeting->late_seconds = late_seconds;
    meeting->failed = TDM_NOBODY;
    pthread_mutex_init(&meeting->lock, NULL); /* neither fails without attributes of its own */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&meeting->all_here, &clock);
    pthread_condattr_destroy(&clock);
    *out = meeting;
    return TDM_OK;
}

void tdm_meeting_free(struct tdm_meeting *meeting)
{
    if (meeting == NULL)
        return;
    pthread_cond_destroy(&meeting->all_here);
    pthread_mutex_destroy(&meeting->lock);
    free(meeting->seen);
    free(meeting);
}

void tdm_meeting_reset(struct tdm_meeting *meeting)
{
    pthread_mutex_lock(&meeting->lock);
    meeting->failed = TDM_NOBODY;
    meeting->lost = false;
    meeting->here = 0;
    for (uint32_t i = 0; i < meeting->members; i++)
        meeting->seen[i] = meeting->number;
    pthread_mutex_unlock(&meeting->lock);
}

/* Notes that a member is lost: the first one that has not come. */
static void note_lost(struct tdm_meeting *meeting)
{
    for (uint32_t i = 0; i < meeting->members && meeting->failed == TDM_NOBODY; i++)
        if (meeting->seen[i] <= meeting->number) {
            meeting->failed = i;
            meeting->lost = true;
        }
    pthread_cond_broadcast(&meeting->all_here);
}

/* Waits, with the lock, until the meeting is over or somebody has failed. */
static void wait_for_all(struct tdm_meeting *meeting, uint32_t member, double late_seconds)
{
    const uint64_t number = meeting->number;
    struct timespec late;
    clock_gettime(CLOCK_MONOTONIC, &late);
    late.tv_nsec += (long)(1e9 * (late_seconds - floor(late_seconds)));
    late.tv_sec += (time_t)late_seconds + late.tv_nsec / 1000000000;
    late.tv_nsec %= 1000000000;
    meeting->seen[member] = number + 1;
    if (++meeting->here == meeting->members) {
        meeting->here = 0;
        meeting->number++;
        pthread_cond_broadcast(&meeting->all_here);
        return;
    }
    /* Others are often about to come, and to sleep takes longer than that. */
    for (unsigned i = 0; i < YIELDS && meeting->number == number && meeting->failed == TDM_NOBODY;
         i++) {
        pthread_mutex_unlock(&meeting->lock);
        sched_yield();
        pthread_mutex_lock(&meeting->lock);
    }
    while (meeting->number == number && meeting->failed == TDM_NOBODY) {
        if (late_seconds == 0)
            pthread_cond_wait(&meeting->all_here, &meeting->lock);
        else if (pthread_cond_timedwait(&meeting->all_here, &meeting->lock, &late) == ETIMEDOUT &&
                 meeting->number == number)
            note_lost(meeting);
    }
}

enum tdm_status tdm_meeting_wait_for(struct tdm_meeting *meeting, uint32_t member,
                                     double late_seconds, struct tdm_error *err)
{
    pthread_mutex_lock(&meeting->lock);
    const uint64_t number = meeting->number;
    if (meeting->failed == TDM_NOBODY)
        wait_for_all(meeting, member, late_seconds);
    bool over = meeting->number != number;
    bool lost = meeting->lost;
    uint32_t failed = meeting->failed;
    pthread_mutex_unlock(&meeting->lock);
    if (over)
        return TDM_OK;
    return lost ? tdm_fail(err, TDM_INTERRUPTED,
                           "rank %u has not come to where another rank has waited %.0f s for it",
                           failed, late_seconds)
                : tdm_fail(err, TDM_INTERRUPTED, "rank %u stops, because rank %u has failed",
                           member, failed);
}

enum tdm_status tdm_meeting_wait(struct tdm_meeting *meeting, uint32_t member,
                                 struct tdm_error *err)
{
    return tdm_meeting_wait_for(meeting, member, meeting->late_seconds, err);
}

void tdm_meeting_fail(struct tdm_meeting *meeting, uint32_t member)
{
    pthread_mutex_lock(&meeting->lock);
    if (meeting->failed == TDM_NOBODY)
        meeting->failed = member;
    pthread_cond_broadcast(&meeting->all_here);
    pthread_mutex_unlock(&meeting->lock);
}

uint32_t tdm_meeting_failed(struct tdm_meeting *meeting)
{
    pthread_mutex_lock(&meeting->lock);
    uint32_t failed = meeting->failed;
    pthread_mutex_unlock(&meeting->lock);
    return failed;
}

uint32_t tdm_meeting_lost(struct tdm_meeting *meeting)
{
    pthread_mutex_lock(&meeting->lock);
    uint32_t lost = meeting->lost ? meeting->failed : TDM_NOBODY;
    pthread_mutex_unlock(&meeting->lock);
    return lost;
}
