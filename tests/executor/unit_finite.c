/* SPDX-License-Identifier: Apache-2.0 */
/* A run whose loss is not a number names the op that wrote the first value that is not finite: here
 * one that was planted in the output of a random op of a random schedule, with and without
 * checkpoints. Where it was planted in the last step, a model is saved whole or not at all. */
#include "executor/backends.h"
#include "executor/run.h"
#include "executor/written.h"
#include "models/weights.h"
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

/* The op that is spoiled: the first one from this number on that writes fp32 or bf16. With `late`
 * it is the number among the ops of the optimizer. */
static uint64_t from_op, spoiled_op, spoiled_step, late_ops;
static bool spoils, late;

static bool is_before(const struct tdm_op *op)
{
    if (!late)
        return op->number < from_op;
    return op->phase != TDM_OPTIMIZER_PHASE || late_ops++ < from_op;
}

static enum tdm_status run_op(struct tdm_executor *executor, const struct tdm_launch *launch,
                              struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    enum tdm_status status = tdm_cpu_backend.run[op->kind](executor, launch, err);
    if (!spoils || launch->step->number != spoiled_step ||
        (spoiled_op == UINT64_MAX ? is_before(op) : op->number != spoiled_op))
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

/* Is the model in a directory whole? */
static bool is_finite(const char *directory, const struct tdm_model *model)
{
    struct tdm_weights *weights;
    struct tdm_error err = {0};
    enum tdm_status status = tdm_weights_open(directory, model, &weights, &err);
    assert_int_equal(status, TDM_OK);
    for (uint32_t i = 0; i < model->tensor_count && status == TDM_OK; i++) {
        const uint64_t count = model->tensors[i].elements;
        float *values = malloc(count * sizeof(*values));
        assert_non_null(values);
        status = tdm_weights_read(weights, i, 0, count, values, &err);
        free(values);
    }
    tdm_weights_close(weights);
    return status == TDM_OK;
}

/* Trains by a random schedule, with a value that is planted. *whole: a model was saved and is
 * finite, or there is none; of checkpoints it says nothing. */
static enum tdm_status train(uint64_t seed, const char *saves, bool checkpoints, bool *whole,
                             struct tdm_error *err)
{
    const struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES, .max_tokens = 48};
    struct tdm_backend backend = tdm_cpu_backend;
    struct tdm_schedule *schedule;
    struct tdm_run_result result;
    const char *path = "finite.json";
    char differences[512];
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        backend.run[kind] = tdm_cpu_backend.run[kind] == NULL ? NULL : run_op;
    assert_int_equal(system("rm -rf saves"), 0);
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, err), TDM_OK);
    assert_true(tdm_quiet_schedule(schedule, path));
    const struct tdm_run_options run = {.schedule_count = 1,
                                        .schedule_paths = &path,
                                        .backend = &backend,
                                        .steps = STEPS,
                                        .seed = seed,
                                        .save_path = saves,
                                        .save_every = checkpoints ? 1 : 0,
                                        .save_keep = 1,
                                        .shard_bytes = 1 << 20,
                                        .check_finite = true,
                                        .command = "tidemark run"};
    const struct tdm_run_listener listener = tdm_quiet_listener(differences);
    spoiled_op = UINT64_MAX;
    spoils = true;
    enum tdm_status status = tdm_run(&run, &listener, &result, err);
    *whole = access("saves/config.json", F_OK) != 0 || is_finite(saves, schedule->model);
    tdm_schedule_free(schedule);
    return status;
}

/* Does the message name the op that was spoiled? */
static bool names_op(uint64_t seed, enum tdm_status status, const struct tdm_error *err)
{
    char due[64], step[32];
    snprintf(due, sizeof(due), ": op %llu of ", (unsigned long long)spoiled_op + 1);
    snprintf(step, sizeof(step), "of step %llu, ", (unsigned long long)spoiled_step);
    if (status == TDM_INPUT && strstr(err->message, due) != NULL &&
        strstr(err->message, step) != NULL)
        return true;
    fprintf(stderr, "seed %llu: op %llu was spoiled: \"%s\"\n", (unsigned long long)seed,
            (unsigned long long)spoiled_op + 1, err->message);
    tdm_case_again("executor/unit_finite", seed);
    return false;
}

/* Plants a value in the middle of a training. Adds to *ended the runs that it ended. */
static bool run_case(uint64_t seed, uint64_t *ended)
{
    struct tdm_error err = {0};
    bool whole;
    const bool checkpoints = seed % 2 == 0;
    from_op = seed * 37 % 200;
    spoiled_step = 3;
    enum tdm_status status = train(seed, checkpoints ? "saves" : NULL, checkpoints, &whole, &err);
    if (status ==
        TDM_OK) /* the value was overwritten, or is of no account; or there is no such op */
        return true;
    ++*ended;
    return names_op(seed, status, &err);
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

/* Plants a value late in the last step. Adds to *ended the runs that it ended. */
static bool run_last(uint64_t seed, uint64_t *ended)
{
    struct tdm_error err = {0};
    bool whole;
    spoiled_step = STEPS;
    from_op = seed % 6;
    late_ops = 0;
    late = true;
    enum tdm_status status = train(seed, "saves", false, &whole, &err);
    late = false;
    *ended += status != TDM_OK;
    if (!whole) {
        fprintf(stderr, "seed %llu: status %d, op %llu was spoiled\n", (unsigned long long)seed,
                (int)status, (unsigned long long)spoiled_op + 1);
        tdm_case_again("executor/unit_finite", seed);
    }
    return whole && (status == TDM_OK || names_op(seed, status, &err));
}

static void a_model_is_saved_if_it_is_finite(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(20, 200), failed = 0, ended = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !run_last(tdm_case_seed(BASE_SEED, i), &ended);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("saves were refused", ended, cases, 0.3));
}

static int enter_scratch(void **state)
{
    (void)state;
    const char *scratch = getenv("TDM_SCRATCH");
    return scratch != NULL && chdir(scratch) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_op_is_named),
                                       cmocka_unit_test(a_model_is_saved_if_it_is_finite)};
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
