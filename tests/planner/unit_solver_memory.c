/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of failures of the solver. If it has no memory, planning fails; it never returns a plan
 * whose bound is not known or whose linear program was not written. If the solver gives up, the
 * bound is what was found before. */
#include "planner/candidates.h"
#include "planner/request.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <glpk.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Calls of the solver, and the call in which it runs out of memory. Calls of the simplex method,
 * and the first one in which it gives up. 0: none. */
static unsigned calls, failing, solutions, giving;

int __real_glp_add_rows(glp_prob *problem, int count);
int __wrap_glp_add_rows(glp_prob *problem, int count);
int __real_glp_add_cols(glp_prob *problem, int count);
int __wrap_glp_add_cols(glp_prob *problem, int count);
int __real_glp_simplex(glp_prob *problem, const glp_smcp *how);
int __wrap_glp_simplex(glp_prob *problem, const glp_smcp *how);

/* If GLPK has no memory, it calls the hook for errors. */
static void count_call(void)
{
    if (++calls == failing)
        glp_error("no memory, as the test has it\n");
}

int __wrap_glp_add_rows(glp_prob *problem, int count)
{
    count_call();
    return __real_glp_add_rows(problem, count);
}

int __wrap_glp_add_cols(glp_prob *problem, int count)
{
    count_call();
    return __real_glp_add_cols(problem, count);
}

int __wrap_glp_simplex(glp_prob *problem, const glp_smcp *how)
{
    count_call();
    return giving > 0 && ++solutions >= giving ? GLP_EFAIL : __real_glp_simplex(problem, how);
}

static const char *program_path(void)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/program.lp", getenv("TDM_SCRATCH"));
    return path;
}

/* Runs a small search that writes its linear program. */
static enum tdm_status search(struct tdm_search *found, struct tdm_error *err)
{
    const struct tdm_request request = {
        .model = "qwen2.5-0.5b",
        .machine = "h200",
        .context = 16384,
        .sequences = 1,
        .pairs = {"chunk=4K", "order=layer-major"},
        .pair_count = 2,
        .without = 1u << TDM_POLISH | 1u << TDM_FINE,
        .program_path = program_path(),
    };
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    unlink(program_path());
    enum tdm_status status = tdm_request_make(&request, &schedule, &pins, err);
    assert_int_equal(status, TDM_OK);
    calls = solutions = 0;
    status = tdm_candidates_search(schedule, &pins, found, err);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    return status;
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    struct tdm_search due, found;
    struct tdm_error err;
    assert_int_equal(search(&due, &err), TDM_OK);
    assert_true(due.bound_seconds > 0);
    assert_int_equal(access(program_path(), F_OK), 0);
    unsigned count = calls, stride = 1 + count / 40;
    for (failing = 1; failing <= count; failing += stride) {
        assert_int_equal(search(&found, &err), TDM_NO_MEMORY);
        assert_string_equal(err.message, "the solver stopped: it is out of memory");
    }
    failing = 0;
    assert_int_equal(search(&found, &err), TDM_OK); /* as before */
    assert_true(found.bound_seconds >= due.bound_seconds &&
                found.bound_seconds <= due.bound_seconds);
}

static void giving_up_leaves_a_bound(void **state)
{
    (void)state;
    struct tdm_search due, found;
    struct tdm_error err;
    assert_int_equal(search(&due, &err), TDM_OK);
    for (giving = 1; giving < 8; giving += 3) {
        assert_int_equal(search(&found, &err), TDM_OK);
        assert_true(found.bound_seconds > 0);
        assert_true(found.bound_seconds <= found.simulation.step_seconds);
        assert_int_equal(access(program_path(), F_OK), 0);
    }
    giving = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory_is_an_error),
        cmocka_unit_test(giving_up_leaves_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
