/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of teams: ranks that show each other their ops, ranks at different ops, and a failure at
 * any op of any rank, which ends the step of all. */
#include "executor/arenas.h"
#include "executor/backends.h"
#include "executor/forecast.h"
#include "executor/state.h"
#include "executor/team_walk.h"
#include "ops/team.h"
#include "schedule/learning_rate.h"
#include "schedule/program.h"
#include "tests/support/hindered.h"
#include "tests/support/random_schedule.h"
#include "tests/support/step_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RANKS_MOST = 64, OPS = 200 };
#define BASE_SEED 64000u
#define LONGEST_END 5.0 /* seconds from a failure to the end of the step */

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- ranks that show each other their ops ---- */

/* A rank that enters ops numbered from 0; `strays` has another kind of op at `strays_at`. */
struct member {
    struct tdm_team *team;
    struct tdm_program program;
    uint32_t strays_at, fails_at, done;
    bool wrong;
    enum tdm_status status;
    struct tdm_error err;
};

/* Looks at what all ranks show, as an op would. */
static void look(struct member *m, uint32_t number)
{
    for (uint32_t rank = 0; rank < m->program.ranks; rank++) {
        const struct tdm_launch *launch = tdm_team_shown(m->team, rank);
        uintptr_t executor = (uintptr_t)tdm_team_executor(m->team, rank);
        m->wrong = m->wrong || launch->op->number != number || launch->program->rank != rank ||
                   launch->op->kind != TDM_OP_GATHER || executor != rank + 1;
    }
}

static enum tdm_status enter(struct member *m, uint32_t number)
{
    /* both are gone when the function returns, as those of the walk */
    const struct tdm_op op = {.number = number,
                              .kind = number == m->strays_at ? TDM_OP_REDUCE : TDM_OP_GATHER,
                              .layer = number % 7};
    const struct tdm_launch launch = {.program = &m->program, .op = &op, .team = m->team};
    struct tdm_executor *executor = (struct tdm_executor *)(uintptr_t)(m->program.rank + 1);
    if (number == m->fails_at)
        return tdm_fail(&m->err, TDM_IO, "op %u fails", number);
    enum tdm_status status = tdm_team_enter(m->team, &launch, executor, &m->err);
    if (status != TDM_OK)
        return status;
    look(m, number);
    return tdm_team_meet(m->team, m->program.rank, &m->err);
}

static void *run_member(void *self)
{
    struct member *m = self;
    for (uint32_t i = 0; i < OPS && m->status == TDM_OK; i++) {
        m->status = enter(m, i);
        m->done += m->status == TDM_OK;
    }
    if (m->status != TDM_OK)
        tdm_team_fail(m->team, m->program.rank);
    return NULL;
}

static struct member members[RANKS_MOST];

static void run_members(struct tdm_team *team, uint32_t ranks)
{
    pthread_t threads[RANKS_MOST];
    tdm_team_reset(team);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        members[rank].team = team;
        members[rank].program = (struct tdm_program){.ranks = ranks, .rank = rank};
        assert_int_equal(pthread_create(&threads[rank], NULL, run_member, &members[rank]), 0);
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        pthread_join(threads[rank], NULL);
}

static void begin(void)
{
    memset(members, 0, sizeof(members));
    for (uint32_t rank = 0; rank < RANKS_MOST; rank++)
        members[rank].strays_at = members[rank].fails_at = UINT32_MAX;
}

static void ranks_show_ops(void **state)
{
    (void)state;
    static const uint32_t counts[] = {2, 3, RANKS_MOST};
    const struct tdm_team_options options = {.transport = &tdm_transport_shared};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct tdm_team *team;
        struct tdm_error err;
        must(tdm_team_new(counts[i], &options, &team, &err), &err);
        /* again and again: all is well, a rank is at another op, a rank fails */
        for (uint32_t turn = 0; turn < 6; turn++) {
            const uint32_t who = (turn * 5 + 1) % counts[i], at = 17 * (turn + 1);
            begin();
            if (turn % 3 == 1)
                members[who].strays_at = at;
            if (turn % 3 == 2)
                members[who].fails_at = at;
            run_members(team, counts[i]);
            assert_int_equal(tdm_team_failed(team) == TDM_NONE, turn % 3 == 0);
            if (turn % 3 == 2)
                assert_int_equal(tdm_team_failed(team), who);
            for (uint32_t rank = 0; rank < counts[i]; rank++) {
                const struct member *m = &members[rank];
                assert_false(m->wrong);
                assert_int_equal(m->done, turn % 3 == 0 ? OPS : at);
                if (turn % 3 == 1) { /* every rank sees it */
                    assert_int_equal(m->status, TDM_INTERNAL);
                    assert_non_null(strstr(m->err.message, " of layer "));
                    assert_non_null(strstr(m->err.message, "rank 0 at "));
                } else if (turn % 3 == 2) {
                    assert_int_equal(m->status, rank == who ? TDM_IO : TDM_INTERRUPTED);
                }
            }
        }
        tdm_team_free(team);
    }
    tdm_team_free(NULL);
}

/* ---- failures in a step ---- */

/* A program and its arenas, as run_steps.c has them, but used again after a failure. */
struct trial {
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_arenas arenas[4];
    struct tdm_team_walk *walk;
    struct tdm_step_data data;
};

static void open_trial(uint64_t seed, const struct tdm_backend *backend, struct trial *t)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS, .ranks = 4};
    struct tdm_error err = {0};
    *t = (struct trial){0};
    must(tdm_random_schedule(seed, &options, &t->schedule, &err), &err);
    must(tdm_program_lower(t->schedule, &t->program, &err), &err);
    assert_true(tdm_step_data_draw(&t->data, t->schedule, seed));
    must(tdm_arenas_take(backend, 1, (const struct tdm_program *const *)&t->program, NULL, NULL,
                         t->arenas, &err),
         &err);
    must(tdm_team_walk_new(t->program, NULL, t->arenas, &t->walk, &err), &err);
    must(tdm_team_walk_prepare(t->walk, &err), &err);
}

static void close_trial(struct trial *t)
{
    tdm_team_walk_free(t->walk);
    tdm_arenas_release(t->arenas, t->program->ranks);
    tdm_step_data_free(&t->data);
    tdm_program_free(t->program);
    tdm_schedule_free(t->schedule);
}

/* Runs the first step over fresh weights. */
static enum tdm_status run_step(struct trial *t, uint64_t seed, double *loss, struct tdm_error *err)
{
    const struct tdm_step step = {.number = 1,
                                  .learning_rate = tdm_learning_rate(&t->schedule->optimizer, 1),
                                  .seed = seed,
                                  .sequences = t->data.sequences,
                                  .trained_tokens = t->data.tokens};
    double norm;
    for (uint32_t rank = 0; rank < t->program->ranks; rank++)
        must(tdm_arenas_fill(&t->arenas[rank], NULL, err), err);
    must(tdm_step_data_write(&t->data, t->arenas, t->program, err), err);
    enum tdm_status status = tdm_team_walk_step(t->walk, &step, NULL, NULL, err);
    if (status == TDM_OK)
        must(tdm_state_read_loss(t->arenas, t->program, loss, &norm, NULL, err), err);
    return status;
}

/* A failure at a random op of a random rank: the step ends soon, with an error that names the rank
 * and says what the op said. The next step is as if nothing had been. */
static void a_failure_ends_the_step(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(40, 300), teams = 0;
    double longest = 0;
    for (uint64_t i = 0; i < cases; i++) {
        const uint64_t seed = tdm_case_seed(BASE_SEED, i);
        struct tdm_hindrance hindrance = {
            .seed = seed, .percent = 5, .longest_nanoseconds = 100000, .fails = TDM_NONE};
        struct trial t;
        struct tdm_error err = {0};
        struct tdm_dice dice;
        double before, after;
        char due[80];
        tdm_dice_seed(&dice, seed);
        open_trial(seed, tdm_hindered(&hindrance), &t);
        must(run_step(&t, seed, &before, &err), &err);

        hindrance.fails = (uint32_t)tdm_dice_roll(&dice, 0, t.program->ranks - 1);
        hindrance.at_op = tdm_dice_roll(&dice, 0, t.program->counts[hindrance.fails].ops - 1);
        hindrance.of_step = 1;
        hindrance.late_nanoseconds = seed % 2 == 0 ? 0 : 2000000;
        (void)tdm_hindered(&hindrance);
        enum tdm_status status = run_step(&t, seed, &after, &err);
        double seconds = now_seconds() - tdm_hindered_failed_seconds();
        longest = seconds > longest ? seconds : longest;
        if (t.program->ranks > 1)
            snprintf(due, sizeof(due), "rank %u: op %llu fails", hindrance.fails,
                     (unsigned long long)hindrance.at_op);
        else
            snprintf(due, sizeof(due), "op %llu fails", (unsigned long long)hindrance.at_op);
        if (status != TDM_IO || strcmp(err.message, due) != 0 || seconds > LONGEST_END) {
            tdm_case_again("executor/unit_team", seed);
            fail_msg("seed %llu: \"%s\" after %.1f s, expected \"%s\"", (unsigned long long)seed,
                     status == TDM_OK ? "" : err.message, seconds, due);
        }
        hindrance.fails = TDM_NONE;
        (void)tdm_hindered(&hindrance);
        must(run_step(&t, seed, &after, &err), &err);
        assert_memory_equal(&before, &after, sizeof(before));
        teams += t.program->ranks > 1;
        close_trial(&t);
    }
    print_message("the longest time from a failure to the end of its step: %.3f s\n", longest);
    assert_true(tdm_case_enough("cases have several ranks", teams, cases, 0.4));
}

/* A rank that does not come to where the others wait: all end with a sentence that names it and
 * what it does, while it is still at it: it is released after that. Then what it uses is not freed
 * before it ends. */
static void a_rank_is_lost(void **state)
{
    (void)state;
    const struct tdm_team_options patient = {.transport = &tdm_transport_shared, .late_seconds = 2};
    static atomic_bool released;
    struct tdm_hindrance hindrance = {.fails = TDM_NONE, .of_step = 1, .released = &released};
    uint64_t seed = BASE_SEED;
    struct trial t;
    struct tdm_error err = {0};
    char due[64];
    double loss;
    atomic_store(&released, false);
    for (open_trial(seed, tdm_hindered(&hindrance), &t); t.program->ranks < 3;
         open_trial(++seed, tdm_hindered(&hindrance), &t))
        close_trial(&t);
    tdm_team_walk_free(t.walk);
    must(tdm_team_walk_open(t.program, NULL, t.arenas, &patient, &t.walk, &err), &err);
    hindrance.fails = 2;
    (void)tdm_hindered(&hindrance);
    assert_int_equal(run_step(&t, seed, &loss, &err), TDM_IO);
    snprintf(due, sizeof(due), "rank 2 has not reached ");
    assert_int_equal(strncmp(err.message, due, strlen(due)), 0);
    assert_non_null(strstr(err.message, "; it has been at "));
    assert_true(tdm_team_walk_hangs(t.walk));
    tdm_team_walk_free(t.walk); /* nothing happens */
    atomic_store(&released, true);
    while (tdm_team_walk_hangs(t.walk))
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    close_trial(&t);
}

static uint32_t arenas_left; /* before one cannot be taken */

static enum tdm_status short_arena(struct tdm_executor *executor, enum tdm_place place,
                                   uint64_t bytes, void **base, struct tdm_error *err)
{
    return arenas_left-- == 0 ? tdm_fail(err, TDM_NO_MEMORY, "no memory for an arena")
                              : tdm_cpu_backend.arena(executor, place, bytes, base, err);
}

/* A rank whose device is short of memory is named, and what the others have taken is released. */
static void a_rank_is_short_of_memory(void **state)
{
    (void)state;
    struct tdm_backend backend = tdm_cpu_backend;
    const struct tdm_hindrance none = {.fails = TDM_NONE};
    uint64_t seed = BASE_SEED;
    struct trial t;
    for (open_trial(seed, tdm_hindered(&none), &t); t.program->ranks < 3;
         open_trial(++seed, tdm_hindered(&none), &t))
        close_trial(&t);
    backend.arena = short_arena;
    uint32_t places = 0;
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
        places += t.program->arena_bytes[place] > 0;
    for (uint32_t rank = 0; rank < t.program->ranks; rank++) {
        struct tdm_arenas arenas[4] = {0};
        struct tdm_error err = {0};
        char due[64];
        arenas_left = rank * places;
        assert_int_equal(tdm_arenas_take(&backend, 1, (const struct tdm_program *const *)&t.program,
                                         NULL, NULL, arenas, &err),
                         TDM_NO_MEMORY);
        snprintf(due, sizeof(due), "rank %u: no memory for an arena", rank);
        assert_string_equal(err.message, due);
        for (uint32_t i = 0; i < 4; i++)
            assert_null(arenas[i].executor);
    }
    close_trial(&t);
}

/* Whoever asks the run to stop, all ranks stop. */
static void all_ranks_stop(void **state)
{
    (void)state;
    static const struct tdm_hindrance none = {.fails = TDM_NONE};
    const volatile sig_atomic_t stop = 1;
    const struct tdm_step step = {.number = 1};
    uint64_t teams = 0;
    for (uint64_t seed = BASE_SEED; seed < BASE_SEED + 10; seed++) {
        struct trial t;
        struct tdm_error err;
        open_trial(seed, tdm_hindered(&none), &t);
        assert_int_equal(tdm_team_walk_step(t.walk, &step, NULL, &stop, &err), TDM_INTERRUPTED);
        assert_non_null(strstr(err.message, "interrupted in step 1, before op 1 of "));
        teams += t.program->ranks > 1;
        close_trial(&t);
    }
    assert_true(teams >= 5);
}

static bool threads_are_refused;

/* With -Wl,--wrap the linker sends every call from our objects here. */
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *self);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *self);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *self)
{
    return threads_are_refused ? EAGAIN : __real_pthread_create(thread, attributes, start, self);
}

/* Ranks that cannot be simulated leave no forecasts, of which a run would free parts again. */
static void a_simulation_fails(void **state)
{
    (void)state;
    const struct tdm_hindrance none = {.fails = TDM_NONE};
    uint64_t seed = BASE_SEED;
    struct trial t;
    struct tdm_forecast *forecasts[4] = {NULL};
    struct tdm_error err = {0};
    for (open_trial(seed, tdm_hindered(&none), &t); t.program->ranks < 3;
         open_trial(++seed, tdm_hindered(&none), &t))
        close_trial(&t);
    threads_are_refused = true;
    assert_int_equal(tdm_forecast_team(t.program, true, forecasts, &err), TDM_NO_MEMORY);
    threads_are_refused = false;
    assert_string_equal(err.message, "no thread to simulate rank 1");
    for (uint32_t i = 0; i < 4; i++)
        assert_null(forecasts[i]);
    must(tdm_forecast_team(t.program, true, forecasts, &err), &err);
    for (uint32_t i = 0; i < 4; i++)
        tdm_forecast_free(forecasts[i]);
    close_trial(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_show_ops),     cmocka_unit_test(a_failure_ends_the_step),
        cmocka_unit_test(a_rank_is_lost),     cmocka_unit_test(a_rank_is_short_of_memory),
        cmocka_unit_test(a_simulation_fails), cmocka_unit_test(all_ranks_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
