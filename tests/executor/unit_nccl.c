/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the transport of NCCL, on the cpu backend with a library that moves the host's memory
 * (tests/support/fake_nccl.c): the same bits as without it, libraries that are missing or of
 * another version, calls that fail, and ranks that do not come. */
#include "base/digest.h"
#include "executor/arenas.h"
#include "executor/backends.h"
#include "executor/nccl.h"
#include "executor/state.h"
#include "executor/team_walk.h"
#include "schedule/learning_rate.h"
#include "schedule/program.h"
#include "tests/support/hindered.h"
#include "tests/support/random_schedule.h"
#include "tests/support/step_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BASE_SEED 71000u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* A program of several ranks and its arenas. */
struct trial {
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_arenas arenas[4];
    struct tdm_step_data data;
};

static bool open_trial(uint64_t seed, const struct tdm_backend *backend, struct trial *t)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_TRAIN, .ranks = 4};
    struct tdm_error err = {0};
    *t = (struct trial){0};
    must(tdm_random_schedule(seed, &options, &t->schedule, &err), &err);
    if (t->schedule->ranks == 1) {
        tdm_schedule_free(t->schedule);
        return false;
    }
    must(tdm_program_lower(t->schedule, &t->program, &err), &err);
    assert_true(tdm_step_data_draw(&t->data, t->schedule, seed));
    must(tdm_arenas_take(backend, 1, (const struct tdm_program *const *)&t->program, NULL, NULL,
                         t->arenas, &err),
         &err);
    return true;
}

static void close_trial(struct trial *t)
{
    tdm_arenas_release(t->arenas, t->program->ranks);
    tdm_step_data_free(&t->data);
    tdm_program_free(t->program);
    tdm_schedule_free(t->schedule);
}

/* What a step leaves: its loss, and all bytes of the ranks' device arenas. */
struct left {
    double loss;
    uint64_t digest;
};

static enum tdm_status run_step(struct trial *t, const struct tdm_transport *transport,
                                uint64_t seed, struct left *left, struct tdm_error *err)
{
    const struct tdm_team_options options = {.transport = transport, .late_seconds = 0.3};
    const struct tdm_step step = {.number = 1,
                                  .learning_rate = tdm_learning_rate(&t->schedule->optimizer, 1),
                                  .seed = seed,
                                  .sequences = t->data.sequences,
                                  .trained_tokens = t->data.tokens};
    struct tdm_team_walk *walk = NULL;
    double norm;
    /* zeros: what lies between values is summed with them, and sums of two NaN may be either */
    for (uint32_t rank = 0; rank < t->program->ranks; rank++)
        for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
            if (t->arenas[rank].base[place] != NULL)
                memset(t->arenas[rank].base[place], 0, t->arenas[rank].bytes[place]);
    must(tdm_step_data_write(&t->data, t->arenas, t->program, err), err);
    enum tdm_status status = tdm_team_walk_open(t->program, NULL, t->arenas, &options, &walk, err);
    if (status == TDM_OK)
        status = tdm_team_walk_step(walk, &step, NULL, NULL, err);
    while (tdm_team_walk_hangs(walk))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    tdm_team_walk_free(walk);
    if (status != TDM_OK)
        return status;
    left->digest = 0;
    must(tdm_state_read_loss(t->arenas, t->program, &left->loss, &norm, NULL, err), err);
    for (uint32_t rank = 0; rank < t->program->ranks; rank++)
        for (uint32_t place = 0; place < TDM_MAX_PLACES; place++) {
            struct tdm_checksum sum = {.sum = left->digest};
            tdm_checksum_add(&sum, t->arenas[rank].base[place], t->arenas[rank].bytes[place]);
            left->digest = tdm_checksum_value(&sum);
        }
    return TDM_OK;
}

/* All bytes that a step leaves in the arenas are those of ranks that read each other's memory. */
static void same_bits(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(30, 200), teams = 0;
    for (uint64_t i = 0; i < cases; i++) {
        const uint64_t seed = tdm_case_seed(BASE_SEED, i);
        struct tdm_hindrance pauses = {
            .seed = seed, .percent = 5, .longest_nanoseconds = 100000, .fails = TDM_NONE};
        struct trial t;
        struct tdm_error err = {0};
        struct left shared, nccl;
        struct tdm_transport narrow = tdm_transport_nccl; /* many windows for each sum */
        narrow.window_bytes = seed % 2 == 0 ? 64 : tdm_transport_nccl.window_bytes;
        if (!open_trial(seed, tdm_hindered(&pauses), &t))
            continue;
        must(run_step(&t, &tdm_transport_shared, seed, &shared, &err), &err);
        must(run_step(&t, &narrow, seed, &nccl, &err), &err);
        if (memcmp(&shared, &nccl, sizeof(shared)) != 0) {
            tdm_case_again("executor/unit_nccl", seed);
            fail_msg("seed %llu: other bits", (unsigned long long)seed);
        }
        teams++;
        close_trial(&t);
    }
    assert_true(tdm_case_enough("cases have several ranks", teams, cases, 0.4));
}

/* A trial of at least 3 ranks. */
static void open_three(const struct tdm_backend *backend, struct trial *t, uint64_t *seed)
{
    for (*seed = BASE_SEED; !open_trial(*seed, backend, t) || t->program->ranks < 3; ++*seed)
        if (t->program != NULL)
            close_trial(t);
}

/* A call fails on a rank: the step ends at once for all, and the error names the rank and the
 * call. */
static void calls_fail(void **state)
{
    (void)state;
    static const char *const fails[] = {"send:1:1", "send:1:4", "send:2:9"};
    const struct tdm_hindrance none = {.fails = TDM_NONE};
    struct trial t;
    uint64_t seed;
    open_three(tdm_hindered(&none), &t, &seed);
    for (size_t i = 0; i < sizeof(fails) / sizeof(fails[0]); i++) {
        struct tdm_error err = {0};
        struct left left;
        char due[64];
        setenv("FAKE_NCCL_FAILS", fails[i], 1);
        time_t began = time(NULL);
        assert_int_equal(run_step(&t, &tdm_transport_nccl, seed, &left, &err), TDM_IO);
        assert_true(time(NULL) - began < 5);
        snprintf(due, sizeof(due), "rank %c: NCCL: ncclSend: unhandled system error", fails[i][5]);
        assert_string_equal(err.message, due);
    }
    unsetenv("FAKE_NCCL_FAILS");
    close_trial(&t);
}

/* A rank does not come to an op: it is named. Its communicator is aborted, so that nobody waits in
 * a transfer for ever. */
static void a_rank_is_lost(void **state)
{
    (void)state;
    struct tdm_hindrance hindrance = {.fails = TDM_NONE, .of_step = 1};
    struct tdm_error err = {0};
    struct left left;
    struct trial t;
    uint64_t seed;
    open_three(tdm_hindered(&hindrance), &t, &seed);
    hindrance.fails = 1;
    hindrance.late_nanoseconds = UINT64_C(2500000000);
    (void)tdm_hindered(&hindrance);
    assert_int_equal(run_step(&t, &tdm_transport_nccl, seed, &left, &err), TDM_IO);
    assert_int_equal(strncmp(err.message, "rank 1 has not reached ", 23), 0);
    close_trial(&t);
}

/* Loads NCCL in a process of its own: it is loaded once. Returns what the error says. */
static void load(const char *library, const char *version, char *out, size_t out_bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        const struct tdm_nccl *nccl;
        struct tdm_error err = {0};
        setenv("TIDEMARK_NCCL", library, 1);
        setenv("FAKE_NCCL_VERSION", version, 1);
        char text[1024];
        int length =
            tdm_nccl_load(&nccl, &err) == TDM_OK
                ? snprintf(text, sizeof(text), "version %d, multicast %s, buffers %s %s %s, LL %s",
                           nccl->version, getenv("NCCL_NVLS_ENABLE"), getenv("NCCL_BUFFSIZE"),
                           getenv("NCCL_LL_BUFFSIZE"), getenv("NCCL_LL128_BUFFSIZE"),
                           getenv("NCCL_P2P_LL_THRESHOLD"))
                : snprintf(text, sizeof(text), "%.300s; hint: %.300s", err.message, err.hint);
        _exit(write(ends[1], text, (size_t)length) == length ? 0 : 1);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], out, out_bytes - 1);
    close(ends[0]);
    waitpid(child, NULL, 0);
    assert_true(length > 0);
    out[length] = '\0';
}

static void versions(void **state)
{
    (void)state;
    const char *library = getenv("TIDEMARK_NCCL");
    char text[1024];
    setenv("NCCL_BUFFSIZE", "8388608", 1); /* plans do not count a user's own */
    load(library, "22807", text, sizeof(text));
    assert_string_equal(text, "version 22807, multicast 0, buffers 1572864 122880 122880, LL 0");
    load(library, "21212", text, sizeof(text));
    assert_non_null(strstr(text, "version number 21212, not 21300 to 29999; hint: install NCCL"));
    load(library, "30000", text, sizeof(text));
    assert_non_null(strstr(text, "version number 30000, not"));
    load("/none/libnccl.so.2", "22807", text, sizeof(text));
    assert_non_null(strstr(text, "NCCL cannot be loaded: /none/libnccl.so.2"));
    assert_non_null(strstr(text, "nvidia-nccl-cu13"));
    load("libm.so.6", "22807", text, sizeof(text));
    assert_non_null(strstr(text, "the NCCL that was found has no nccl"));
}

/* Staging memory is the same for few and many ranks, and a piece has whole elements. */
static void staging_is_bounded(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 1024; ranks++) {
        const uint64_t window = tdm_team_window_bytes(ranks);
        assert_int_equal(window % 512, 0);
        assert_true(window == TDM_TEAM_LEAST_WINDOW_BYTES ||
                    ((ranks - 1) * window <= TDM_TEAM_STAGING_BYTES &&
                     (ranks - 1) * (window + 512) > TDM_TEAM_STAGING_BYTES));
    }
    assert_int_equal(tdm_team_window_bytes(2), TDM_TEAM_STAGING_BYTES);
    assert_int_equal(tdm_team_window_bytes(1024), TDM_TEAM_LEAST_WINDOW_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions), /* before this process has threads */
        cmocka_unit_test(staging_is_bounded), cmocka_unit_test(same_bits),
        cmocka_unit_test(calls_fail),         cmocka_unit_test(a_rank_is_lost),
    };
    const char *builddir = getenv("TDM_BUILDDIR");
    char path[4096];
    snprintf(path, sizeof(path), "%s/tests/support/fake_nccl.so",
             builddir == NULL ? "." : builddir);
    setenv("TIDEMARK_NCCL", path, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
