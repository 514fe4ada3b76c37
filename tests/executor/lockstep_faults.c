/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that the lockstep test catches faults. A cpu backend with one fault, in one op of each
 * kind, runs against the cpu backend. Faults are a result that is off by more than rounding, one
 * that was not written, a byte beyond the operand, and values rounded too narrowly. Differences in
 * the last bits must pass. */
#include "ops/team.h"
#include "executor/backends.h"
#include "tests/support/backend_cases.h"
#include "tests/support/jitter.h"
#include "tests/support/lockstep.h"
#include "tests/support/random_schedule.h"
#include "executor/written.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE_SEED 71000u
#define BEYOND_BYTES 4

enum fault {
    NO_FAULT,
    LAST_BITS, /* of all elements; not a fault */
    OFF,       /* the largest element */
    UNWRITTEN, /* the first element */
    BEYOND,    /* bytes after the last slot */
    NARROW,    /* fp32 rounded to bf16 */
    FAULTS
};

static const char *const fault_names[FAULTS] = {"none",      "last bits", "off",
                                                "unwritten", "beyond",    "narrow"};

/* The planted fault, and how often it was applied. */
static struct {
    enum fault fault;
    enum tdm_op_kind kind;
    uint32_t done;
} planted;

/* The first range that the op wrote in an operand. */
struct target {
    unsigned char *data;
    enum tdm_dtype dtype;
    uint64_t elements;
    uint64_t bytes; /* from data to the end of the operand */
};

static bool find_target(const struct tdm_launch *launch, uint32_t number, struct target *target)
{
    const struct tdm_operand *operand = &launch->operand[number];
    struct tdm_written written[TDM_WRITTEN_MOST];
    if (!tdm_is_written(&launch->op->access[number]) ||
        tdm_list_written(launch, number, 0, written) == 0)
        return false;
    *target = (struct target){(unsigned char *)operand->data + written[0].offset, written[0].dtype,
                              written[0].elements,
                              operand->slots * operand->slot_bytes - written[0].offset};
    return true;
}

static float get(const struct target *target, uint64_t i)
{
    float value;
    uint16_t half;
    if (target->dtype == TDM_DTYPE_FP32) {
        memcpy(&value, target->data + 4 * i, sizeof(value));
        return value;
    }
    memcpy(&half, target->data + 2 * i, sizeof(half));
    return tdm_bf16_to_float(half);
}

static void set(const struct target *target, uint64_t i, float value)
{
    uint16_t half = tdm_float_to_bf16(value);
    if (target->dtype == TDM_DTYPE_FP32)
        memcpy(target->data + 4 * i, &value, sizeof(value));
    else
        memcpy(target->data + 2 * i, &half, sizeof(half));
}

static bool has_values(const struct target *target)
{
    return target->dtype == TDM_DTYPE_FP32 || target->dtype == TDM_DTYPE_BF16;
}

/* Changes what an op wrote over `before`. Returns false if the fault cannot occur there. */
static bool spoil(const struct target *target, const unsigned char *before)
{
    uint64_t largest = 0;
    bool narrowed = false;
    switch (planted.fault) {
    case LAST_BITS:
        for (uint64_t i = 0; i < target->elements && target->dtype == TDM_DTYPE_FP32; i++)
            if (isfinite(get(target, i)) && memcmp(target->data + 4 * i, before + 4 * i, 4) != 0)
                set(target, i, nextafterf(get(target, i), i % 2 == 0 ? INFINITY : -INFINITY));
        return true;
    case OFF:
        if (!has_values(target)) {
            target->data[tdm_dtype_bytes(target->dtype) - 2] ^= 0x10; /* not one of the last bits */
            return true;
        }
        for (uint64_t i = 0; i < target->elements; i++)
            if (isfinite(get(target, i)) &&
                /* or the largest so far is NaN */
                !(fabsf(get(target, i)) <= fabsf(get(target, largest))))
                largest = i;
        set(target, largest, fabsf(get(target, largest)) < 1e-3f ? 1 : 3 * get(target, largest));
        return true;
    case UNWRITTEN:
        memset(target->data, 0xff, tdm_dtype_bytes(target->dtype));
        return true;
    case BEYOND:
        memset(target->data + target->bytes, 0x5a, BEYOND_BYTES); /* may be the next operand */
        return true;
    case NARROW:
        for (uint64_t i = 0; i < target->elements && target->dtype == TDM_DTYPE_FP32; i++) {
            float value = get(target, i), narrow = tdm_bf16_to_float(tdm_float_to_bf16(value));
            narrowed = narrowed || (isfinite(value) && fabsf(value) > 1e-3f && narrow != value);
            if (isfinite(value))
                set(target, i, narrow);
        }
        return narrowed;
    default:
        return false;
    }
}

static enum tdm_status run_spoiled(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    struct target target[TDM_OPERANDS];
    unsigned char *before[TDM_OPERANDS] = {NULL};
    bool all = planted.fault == LAST_BITS;
    bool spoils =
        all ? !tdm_jitter_spares(op->kind) : op->kind == planted.kind && planted.done == 0;
    /* Bounds are narrow only if no operand is bf16. */
    for (uint32_t i = 0; i < op->access_count; i++)
        spoils = spoils && (planted.fault != NARROW || launch->operand[i].dtype != TDM_DTYPE_BF16);
    for (uint32_t i = 0; i < op->access_count && spoils; i++) {
        if (!find_target(launch, i, &target[i]))
            continue;
        before[i] = malloc(target[i].bytes);
        assert_non_null(before[i]);
        memcpy(before[i], target[i].data, target[i].bytes);
    }
    enum tdm_status status = tdm_cpu_backend.run[op->kind](executor, launch, err);
    for (uint32_t i = 0; i < op->access_count; i++) {
        if (before[i] != NULL && (all || planted.done == 0))
            planted.done += spoil(&target[i], before[i]);
        free(before[i]);
    }
    return status;
}

/* Runs a case with a fault. Returns true if the fault was applied. */
static bool run_fault(enum fault fault, enum tdm_op_kind kind, enum tdm_case of, uint64_t seed,
                      struct tdm_lockstep *lockstep)
{
    struct tdm_backend backend = tdm_cpu_backend;
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err = {0};
    for (int i = 0; i < TDM_OP_KINDS; i++)
        backend.run[i] = run_spoiled;
    planted.fault = fault;
    planted.kind = kind;
    planted.done = 0;
    if (tdm_backend_case(of, seed, &schedule, &err) != TDM_OK ||
        tdm_lockstep_run(schedule, &backend, seed, 1, lockstep, &err) != TDM_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.message);
    tdm_schedule_free(schedule);
    return planted.done > 0;
}

/* Tries every fault in every kind of op, in the first case where it can occur. */
static void faults_are_caught(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(40, 120);
    for (int fault = OFF; fault < FAULTS; fault++)
        for (int kind = 0; kind < TDM_OP_KINDS; kind++) {
            bool found = false;
            if ((TDM_RANKS_KINDS & TDM_KIND(kind)) !=
                0) /* backends run in lockstep with one rank */
                continue;
            for (uint64_t i = 0; i < cases && !found; i++) {
                uint64_t seed = BASE_SEED + i;
                struct tdm_lockstep lockstep = {0};
                found = run_fault((enum fault)fault, (enum tdm_op_kind)kind, TDM_CASE_SMALL, seed,
                                  &lockstep);
                if (found && lockstep.wrong == 0)
                    fail_msg("seed %llu: %s in %s is not caught", (unsigned long long)seed,
                             fault_names[fault], tdm_op_kind_name((enum tdm_op_kind)kind));
            }
            if (!found && fault != NARROW)
                fail_msg("no case had %s in %s", fault_names[fault],
                         tdm_op_kind_name((enum tdm_op_kind)kind));
        }
}

static void last_bits_pass(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(8, 30);
    for (uint64_t i = 0; i < cases; i++) {
        struct tdm_lockstep lockstep = {0};
        uint64_t seed = tdm_case_seed(BASE_SEED, i);
        enum tdm_case of = i % 4 == 3 ? TDM_CASE_WIDE : TDM_CASE_SMALL;
        run_fault(LAST_BITS, TDM_OP_KINDS, of, seed, &lockstep);
        if (lockstep.wrong > 0)
            fail_msg("seed %llu %s: %s", (unsigned long long)seed, tdm_case_name(of),
                     lockstep.first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_bits_pass),
        cmocka_unit_test(faults_are_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
