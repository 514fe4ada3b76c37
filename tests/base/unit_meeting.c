/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of base/meeting: threads that meet many times, one that fails, one that does not come, and
 * a meeting point that is used again. */
#include "base/meeting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MEMBERS_MOST = 64 };

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void sleep_for(double seconds)
{
    const struct timespec pause = {(time_t)seconds,
                                   (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&pause, NULL);
}

/* A thread, and what became of it. */
struct member {
    struct tdm_meeting *meeting;
    uint32_t number, members, meetings;
    uint32_t leaves_at; /* the meeting before which it fails, or stays away */
    bool fails;         /* it says so */
    double stays_away;  /* seconds; then it comes */
    uint64_t *written;  /* [members] not atomic: what all write before a meeting is seen after it */
    uint32_t met;
    bool wrong;
    enum tdm_status status;
    struct tdm_error err;
};

/* Every member writes its own number, and after a meeting reads those of all. */
static void *meet(void *self)
{
    struct member *m = self;
    for (uint32_t i = 0; i < m->meetings && m->status == TDM_OK; i++) {
        if (i == m->leaves_at && m->fails) {
            m->status = tdm_fail(&m->err, TDM_IO, "member %u fails", m->number);
            tdm_meeting_fail(m->meeting, m->number);
            break;
        }
        if (i == m->leaves_at)
            sleep_for(m->stays_away);
        m->written[m->number] = i + 1;
        m->status = tdm_meeting_wait(m->meeting, m->number, &m->err);
        if (m->status != TDM_OK)
            break;
        for (uint32_t k = 0; k < m->members; k++)
            m->wrong = m->wrong || m->written[k] != i + 1;
        m->met++;
        m->status = tdm_meeting_wait(m->meeting, m->number, &m->err); /* all have read */
    }
    return NULL;
}

/* Lets `members` threads meet. Returns the seconds until all are back. */
static double meet_all(struct tdm_meeting *meeting, struct member members[MEMBERS_MOST],
                       uint32_t count, uint32_t meetings)
{
    static uint64_t written[MEMBERS_MOST];
    pthread_t threads[MEMBERS_MOST];
    double began = now_seconds();
    memset(written, 0, sizeof(written));
    for (uint32_t i = 0; i < count; i++) {
        struct member *m = &members[i];
        m->meeting = meeting;
        m->number = i;
        m->members = count;
        m->meetings = meetings;
        m->written = written;
        assert_int_equal(pthread_create(&threads[i], NULL, meet, m), 0);
    }
    for (uint32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return now_seconds() - began;
}

static void stay(struct member members[MEMBERS_MOST])
{
    for (uint32_t i = 0; i < MEMBERS_MOST; i++)
        members[i] = (struct member){.leaves_at = UINT32_MAX};
}

static struct tdm_meeting *open_meeting(uint32_t members, uint32_t late_seconds)
{
    struct tdm_meeting *meeting;
    struct tdm_error err;
    assert_int_equal(tdm_meeting_new(members, late_seconds, &meeting, &err), TDM_OK);
    return meeting;
}

/* All meet, however often, and see what the others wrote before. */
static void all_meet(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 3, 8, MEMBERS_MOST};
    static const uint32_t meetings[] = {20000, 5000, 3000, 1000, 100};
    static struct member members[MEMBERS_MOST];
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct tdm_meeting *meeting = open_meeting(counts[i], 60);
        stay(members);
        meet_all(meeting, members, counts[i], meetings[i]);
        for (uint32_t k = 0; k < counts[i]; k++) {
            assert_int_equal(members[k].status, TDM_OK);
            assert_int_equal(members[k].met, meetings[i]);
            assert_false(members[k].wrong);
        }
        assert_int_equal(tdm_meeting_failed(meeting), TDM_NOBODY);
        tdm_meeting_free(meeting);
    }
}

/* One fails: the others leave at once, and know who it was. Then all meet again. */
static void one_fails(void **state)
{
    (void)state;
    static struct member members[MEMBERS_MOST];
    static const uint32_t counts[] = {2, 5, MEMBERS_MOST};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct tdm_meeting *meeting = open_meeting(counts[i], 0);
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t who = (round * 7 + 1) % counts[i];
            bool fails = round % 2 == 0;
            stay(members);
            members[who].fails = fails;
            members[who].leaves_at = fails ? 3 * round : UINT32_MAX;
            tdm_meeting_reset(meeting);
            assert_true(meet_all(meeting, members, counts[i], 30) < 5);
            assert_int_equal(tdm_meeting_failed(meeting), fails ? who : TDM_NOBODY);
            for (uint32_t k = 0; k < counts[i]; k++) {
                char named[32];
                snprintf(named, sizeof(named), "rank %u has failed", who);
                assert_false(members[k].wrong);
                assert_int_equal(members[k].met, fails ? 3 * round : 30);
                assert_int_equal(members[k].status, !fails     ? TDM_OK
                                                    : k == who ? TDM_IO
                                                               : TDM_INTERRUPTED);
                if (fails && k != who)
                    assert_non_null(strstr(members[k].err.message, named));
            }
        }
        tdm_meeting_free(meeting);
    }
}

/* Of several that fail the first is named. */
static void first_is_named(void **state)
{
    (void)state;
    struct tdm_meeting *meeting = open_meeting(4, 0);
    struct tdm_error err;
    tdm_meeting_fail(meeting, 2);
    tdm_meeting_fail(meeting, 1);
    assert_int_equal(tdm_meeting_failed(meeting), 2);
    assert_int_equal(tdm_meeting_wait(meeting, 3, &err), TDM_INTERRUPTED);
    assert_string_equal(err.message, "rank 3 stops, because rank 2 has failed");
    tdm_meeting_reset(meeting);
    assert_int_equal(tdm_meeting_failed(meeting), TDM_NOBODY);
    tdm_meeting_free(meeting);
}

/* One comes too late: the others leave when its time is over, and it leaves when it comes. */
static void one_is_lost(void **state)
{
    (void)state;
    static struct member members[MEMBERS_MOST];
    struct tdm_meeting *meeting = open_meeting(8, 1);
    for (uint32_t again = 0; again < 2; again++) {
        stay(members);
        members[5].leaves_at = 4;
        members[5].stays_away = 1.6;
        tdm_meeting_reset(meeting);
        assert_true(meet_all(meeting, members, 8, 10) >= 1);
        assert_int_equal(tdm_meeting_failed(meeting), 5);
        for (uint32_t k = 0; k < 8; k++) {
            assert_int_equal(members[k].status, TDM_INTERRUPTED);
            assert_int_equal(members[k].met, 4);
            assert_string_equal(members[k].err.message,
                                "rank 5 has not come to where another rank has waited 1 s for it");
        }
    }
    /* shorter than the limit, it is waited for */
    stay(members);
    members[5].leaves_at = 4;
    members[5].stays_away = 0.3;
    tdm_meeting_reset(meeting);
    meet_all(meeting, members, 8, 10);
    for (uint32_t k = 0; k < 8; k++)
        assert_int_equal(members[k].met, 10);
    tdm_meeting_free(meeting);
    tdm_meeting_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_meet),
        cmocka_unit_test(one_fails),
        cmocka_unit_test(first_is_named),
        cmocka_unit_test(one_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
