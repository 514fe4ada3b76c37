/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a backend is not opened for ops, sizes or dtypes for which it has no kernel. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/arenas.h"
#include "executor/backends.h"
#include "ops/kernels.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

enum { PROGRAMS = 45 };

static enum tdm_status open_nothing(uint32_t count, const struct tdm_program *const *programs,
                                    uint32_t device, struct tdm_executor **executor,
                                    struct tdm_error *err)
{
    (void)count;
    (void)programs;
    (void)device;
    (void)executor;
    (void)err;
    fail_msg("a backend was opened for a program that it cannot run");
    return TDM_INTERNAL;
}

static enum tdm_status note_kind(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    bool *has = self;
    (void)err;
    if (item->kind == TDM_RUN)
        has[item->op->kind] = true;
    return TDM_OK;
}

static tdm_kinds bits_of(const bool has[TDM_OP_KINDS])
{
    tdm_kinds kinds = 0;
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        kinds |= has[kind] ? TDM_KIND(kind) : 0;
    return kinds;
}

static void test_kinds(void **unused)
{
    bool seen[TDM_OP_KINDS] = {false};
    struct tdm_error err;
    (void)unused;
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS,
                                                   .ranks = seed % 3 == 0 ? 3 : 0};
        bool has[TDM_OP_KINDS] = {false};
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_arenas arenas;
        struct tdm_free_memory memory;
        assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
        assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
        for (uint32_t rank = 0; rank < program->ranks; rank++) {
            const struct tdm_program view = tdm_program_of_rank(program, rank);
            assert_int_equal(tdm_program_emit(&view, note_kind, has, &err), TDM_OK);
        }
        const struct tdm_program *const programs[] = {program};
        assert_int_equal(program->kinds, bits_of(has));
        for (int kind = 0; kind < TDM_OP_KINDS; kind++) {
            struct tdm_backend backend = tdm_cpu_backend;
            backend.run[kind] = NULL;
            if (!has[kind]) {
                assert_int_equal(tdm_backend_check(&backend, 1, programs, &err), TDM_OK);
                continue;
            }
            backend.open = open_nothing;
            seen[kind] = true;
            assert_int_equal(tdm_arenas_check(&backend, 1, programs, &memory, &err), TDM_INPUT);
            assert_int_equal(tdm_arenas_take(&backend, 1, programs, NULL, NULL, &arenas, &err),
                             TDM_INPUT);
            assert_non_null(strstr(err.message, "the cpu backend has no kernel for "));
            assert_non_null(strstr(err.message, tdm_op_kind_name((enum tdm_op_kind)kind)));
        }
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        if (!seen[kind])
            fail_msg("no program had %s", tdm_op_kind_name((enum tdm_op_kind)kind));
}

/* The list of a backend's kernels, for programs that do not link the backend, matches its table. */
static void test_lists(void **unused)
{
    char line[TDM_LACKS_TEXT], text[TDM_KINDS_TEXT];
    (void)unused;
    for (const struct tdm_kernels *kernels = tdm_kernels; kernels->backend != NULL; kernels++) {
        const struct tdm_backend *backend;
        struct tdm_error err;
        bool has[TDM_OP_KINDS];
        if (tdm_backend_find(kernels->backend, &backend, &err) != TDM_OK)
            continue;
        for (int kind = 0; kind < TDM_OP_KINDS; kind++)
            has[kind] = backend->run[kind] != NULL;
        assert_int_equal(kernels->kinds, bits_of(has));
    }
    const tdm_kinds lost = TDM_KIND(TDM_OP_SELECT) | TDM_KIND(TDM_OP_LOSS);
    const struct tdm_kernels made_up = {"made-up", TDM_ALL_KINDS & ~lost};
    assert_false(tdm_kernels_lack(&made_up, TDM_ALL_KINDS & ~lost, line));
    assert_true(tdm_kernels_lack(&made_up, TDM_ALL_KINDS & ~TDM_KIND(TDM_OP_LOSS), line));
    assert_string_equal(line, "the made-up backend has no kernel for select");
    assert_true(tdm_kernels_lack(&made_up, TDM_ALL_KINDS, line));
    assert_string_equal(line, "the made-up backend has no kernel for select, loss");
    const struct tdm_kernels nothing = {"made-up", 0}; /* the longest line */
    assert_true(tdm_kernels_lack(&nothing, TDM_ALL_KINDS, line));
    assert_non_null(strstr(line, "zero, embed, "));
    assert_non_null(strstr(line, ", optimizer"));
    assert_string_equal(tdm_kinds_show(0, text), "");
}

/* GPU kernels have limits on sizes and dtypes. The check needs no device. */
static void test_cuda(void **unused)
{
    (void)unused;
#ifndef HAVE_CUDA
    skip();
#else
    const struct tdm_random_options options = {.pass = TDM_RANDOM_TRAIN};
    struct tdm_schedule *schedule;
    struct tdm_program *program;
    struct tdm_free_memory memory;
    struct tdm_error err;
    assert_int_equal(tdm_random_schedule(1, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
    const struct tdm_program *const programs[] = {program};
    struct tdm_backend backend = tdm_cuda_backend;
    backend.open = open_nothing;
    assert_int_equal(tdm_backend_check(&backend, 1, programs, &err), TDM_OK);

    struct tdm_params params = program->params;
    program->params.norm.hidden = 1 << 20;
    assert_int_equal(tdm_arenas_check(&backend, 1, programs, &memory, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "hidden size"));
    assert_non_null(strstr(err.hint, "--backend cpu"));
    program->params = params;
    program->params.pages.head_dim = 1 << 12;
    assert_int_equal(tdm_arenas_check(&backend, 1, programs, &memory, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "head dim"));
    program->params = params;
    program->buffers[tdm_program_find(program, "stream")].dtype = TDM_DTYPE_FP16;
    assert_int_equal(tdm_arenas_check(&backend, 1, programs, &memory, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "no kernels for stream in fp16"));
    tdm_program_free(program);
    tdm_schedule_free(schedule);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_cuda),
    };
    return cmocka_run_group_tests_name("backends", tests, NULL, NULL);
}
