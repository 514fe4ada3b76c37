/* SPDX-License-Identifier: Apache-2.0 */
/* A run whose loss is not a number names the op that wrote the first value that is not finite: here
 * one that was planted in the output of a random op of a random schedule, with and without
 * checkpoints. */
#include "executor/backends.h"
#include "executor/run.h"
#include "executor/written.h"
#include "tests/support/quiet_run.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BASE_SEED 4711u
#define STEPS 4u
#define SPOILED_STEP 3u

/* The op that is spoiled: the first one from this number on that writes fp32 or bf16. */
static uint64_t from_op, spoiled_op;
static bool spoils;

static enum tdm_status run_op(struct tdm_executor *executor, const struct tdm_launch *launch,
                              struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    enum tdm_status status = tdm_cpu_backend.run[op->kind](executor, launch, err);
    if (!spoils || launch->step->number != SPOILED_STEP || op->number < from_op ||
        (spoiled_op != UINT64_MAX && op->number != spoiled_op))
        return status;
    for (uint32_t i = 0; i < op->access_count && op->kind != TDM_OP_COPY; i++) {
        const struct tdm_operand *operand = &launch->operand[i];
        struct tdm_written written[TDM_WRITTEN_MOST];
        if (operand->data == NULL || !tdm_is_written(&op->access[i]) ||
            (operand->dtype != TDM_DTYPE_FP32 && operand->dtype != TDM_DTYPE_BF16) ||
            tdm_list_written(launch, i, 0, written) == 0)
            continue;
        const uint32_t nan = 0x7fc07fc0u; /* in both dtypes */
        memcpy((unsigned char *)operand->data + written[0].offset, &nan,
               tdm_dtype_bytes(operand->dtype));
        spoiled_op = op->number;
        break;
    }
    return status;
}

/* Trains with a planted value. Adds to *ended the runs that it ended. */
static bool run_case(uint64_t seed, uint64_t *ended)
{
    const struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES, .max_tokens = 48};
    struct tdm_backend backend = tdm_cpu_backend;
    struct tdm_schedule *schedule;
    struct tdm_run_result result;
    struct tdm_error err = {0};
    const char *path = "finite.json";
    char differences[512], due[64];
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        backend.run[kind] = tdm_cpu_backend.run[kind] == NULL ? NULL : run_op;
    assert_int_equal(system("rm -rf saves"), 0);
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
    assert_true(tdm_quiet_schedule(schedule, path));
    tdm_schedule_free(schedule);
    const struct tdm_run_options run = {.schedule_count = 1,
                                        .schedule_paths = &path,
                                        .backend = &backend,
                                        .steps = STEPS,
                                        .seed = seed,
                                        .save_path = seed % 2 == 0 ? "saves" : NULL,
                                        .save_every = seed % 2 == 0 ? 1 : 0,
                                        .save_keep = 1,
                                        .shard_bytes = 1 << 20,
                                        .check_finite = true,
                                        .command = "tidemark run"};
    const struct tdm_run_listener listener = tdm_quiet_listener(differences);
    from_op = seed * 37 % 200;
    spoiled_op = UINT64_MAX;
    spoils = true;
    enum tdm_status status = tdm_run(&run, &listener, &result, &err);
    if (status ==
        TDM_OK) /* the value was overwritten, or is of no account; or there is no such op */
        return true;
    ++*ended;
    snprintf(due, sizeof(due), ": op %llu of ", (unsigned long long)spoiled_op + 1);
    if (status == TDM_INPUT && strstr(err.message, due) != NULL &&
        strstr(err.message, "of step 3, ") != NULL)
        return true;
    fprintf(stderr, "seed %llu: op %llu was spoiled: \"%s\"\n", (unsigned long long)seed,
            (unsigned long long)spoiled_op + 1, err.message);
    tdm_case_again("executor/unit_finite", seed);
    return false;
}

static void the_first_op_is_named(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(30, 300), failed = 0, ended = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !run_case(tdm_case_seed(BASE_SEED, i), &ended);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("runs were ended by the planted value", ended, cases, 0.3));
}

static int enter_scratch(void **state)
{
    (void)state;
    const char *scratch = getenv("TDM_SCRATCH");
    return scratch != NULL && chdir(scratch) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_op_is_named)};
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
