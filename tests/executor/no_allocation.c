/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that nothing is allocated during a step on the cpu and null backends.
 *
 * The allocator is wrapped at link time, and every call from our code during a step is counted. A
 * step lasts from the clock that a run reads before the first op to the one after the last. The
 * trace thread is exempt by its name. The BLAS and OpenMP libraries are exempt because their calls
 * do not pass through the wrapper. */
#include "executor/run.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_bool in_step;
static atomic_uint allocations, outside;
static const struct tdm_backend *wrapped;
static unsigned clock_reads;

static void count(void)
{
    char name[32] = "";
    if (!atomic_load(&in_step)) {
        atomic_fetch_add(&outside, 1);
        return;
    }
    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (strcmp(name, "tidemark-trace") != 0)
        atomic_fetch_add(&allocations, 1);
}

/* With -Wl,--wrap the linker sends every call from our objects here. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t entries, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);

void *__wrap_malloc(size_t bytes)
{
    count();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t entries, size_t bytes)
{
    count();
    return __real_calloc(entries, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    count();
    return __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes)
{
    count();
    return __real_posix_memalign(out, alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    count();
    return __real_strdup(text);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    count();
    return __real_mmap(at, bytes, protection, flags, file, offset);
}

/* A run reads the clock just before a step and just after it. */
static int64_t now(struct tdm_executor *executor)
{
    atomic_store(&in_step, ++clock_reads % 2 == 1);
    return wrapped->now(executor);
}

static void planned(void *self, const char *path, const struct tdm_program *program,
                    const struct tdm_amounts *amounts, double predicted_seconds)
{
    (void)self, (void)path, (void)program, (void)amounts, (void)predicted_seconds;
}

static void tokens(void *self, const struct tdm_tokens *text, double entropy)
{
    (void)self, (void)text, (void)entropy;
}

static void moved(void *self, const char *what, uint64_t done, uint64_t elements)
{
    (void)self;
    (void)what;
    (void)done;
    (void)elements;
}

static void stepped(void *self, const struct tdm_program *program, uint64_t step, double loss,
                    double gradient_norm, double seconds)
{
    (void)self, (void)program, (void)step, (void)loss, (void)gradient_norm, (void)seconds;
}

static void evaluated(void *self, uint64_t step, const char *text, double loss,
                      uint64_t token_count, double seconds)
{
    (void)self, (void)step, (void)text, (void)loss, (void)token_count, (void)seconds;
}

static void write_json(const char *path, const struct tdm_schedule *schedule)
{
    struct tdm_error err;
    json_t *json;
    assert_int_equal(tdm_schedule_to_json(schedule, NULL, &json, &err), TDM_OK);
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
}

/* Writes a schedule, and one that evaluates the model that it trains. */
static void write_schedules(const char *path, const char *evaluation_path, uint64_t seed)
{
    struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES};
    struct tdm_schedule *schedule, *evaluation;
    struct tdm_error err;
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_random_evaluation(schedule, seed, 64, &evaluation, &err), TDM_OK);
    write_json(path, schedule);
    write_json(evaluation_path, evaluation);
    tdm_schedule_free(evaluation);
    tdm_schedule_free(schedule);
}

static void run_steps(const char *name)
{
    const struct tdm_run_listener listener = {.planned = planned,
                                              .tokens = tokens,
                                              .moved = moved,
                                              .stepped = stepped,
                                              .evaluated = evaluated};
    const char *scratch = getenv("TDM_SCRATCH") != NULL ? getenv("TDM_SCRATCH") : "/tmp";
    char path[512], evaluation[512], trace[512];
    struct tdm_error err = {0};
    assert_int_equal(tdm_backend_find(name, &wrapped, &err), TDM_OK);
    struct tdm_backend backend = *wrapped;
    backend.now = now;

    snprintf(path, sizeof(path), "%s/no_allocation.json", scratch);
    snprintf(evaluation, sizeof(evaluation), "%s/no_allocation.evaluate.json", scratch);
    snprintf(trace, sizeof(trace), "%s/no_allocation.db", scratch);
    uint64_t cases = tdm_case_count(3, 12);
    for (uint64_t i = 0; i < cases; i++) {
        write_schedules(path, evaluation, tdm_case_seed(7700, i));
        const char *paths[] = {path};
        struct tdm_run_options options = {.schedule_count = 1,
                                          .schedule_paths = paths,
                                          .backend = &backend,
                                          .steps = 3,
                                          .evaluate_path = evaluation,
                                          .evaluate_every = 2,
                                          .evaluate_windows = 2,
                                          .texts = {{.name = "a", .share = 0.5}},
                                          .text_count = 1,
                                          .trace_path = trace,
                                          .force = true,
                                          .command = "test"};
        struct tdm_run_result result;
        clock_reads = 0;
        if (tdm_run(&options, &listener, &result, &err) != TDM_OK)
            fail_msg("%s", err.message);
        assert_int_equal(result.steps, 3);
        assert_int_equal(result.validations[0].evaluations, 2);
    }
    assert_int_equal(atomic_load(&allocations), 0);
    assert_true(atomic_load(&outside) > 0); /* the wrapper does see calls */
    unlink(path);
    unlink(evaluation);
    unlink(trace);
}

static void nothing_is_allocated_in_a_step_of_cpu(void **state)
{
    (void)state;
    run_steps("cpu");
}

static void nothing_is_allocated_in_a_step_of_null(void **state)
{
    (void)state;
    run_steps("null");
}

static void the_wrapper_counts(void **state)
{
    (void)state;
    atomic_store(&in_step, true);
    void *volatile kept = malloc(1); /* volatile keeps the call from being optimised away */
    free(kept);
    atomic_store(&in_step, false);
    assert_int_equal(atomic_exchange(&allocations, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_wrapper_counts),
        cmocka_unit_test(nothing_is_allocated_in_a_step_of_cpu),
        cmocka_unit_test(nothing_is_allocated_in_a_step_of_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
