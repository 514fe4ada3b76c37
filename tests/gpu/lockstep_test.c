/* SPDX-License-Identifier: Apache-2.0 */
/* Compares every op of the cuda backend with the cpu backend, one by one
 * (tests/support/lockstep.h). Random models and schedules are small, wide and large in turn. A
 * table at the end shows what was seen of every kind of op; a kind that no case had fails.
 * TDM_CASES=N TDM_SEED=S runs cases S to S + N - 1, TDM_CASE=small (wide, large) makes all of them
 * small ones; TDM_BACKEND=cpu compares the cpu backend with itself, without a GPU. */
#include "ops/team.h"
#include "tests/support/backend_cases.h"
#include "tests/support/coverage.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/lockstep.h"
#include "tests/support/random_schedule.h"

#include <math.h>
#include <string.h>

#define BASE_SEED 20261121u
#define ONCE_ROUNDED 0.02
#define LEAST_TO_JUDGE 10000u /* elements */

static void run_case(struct gpu_test *test, const struct tdm_backend *backend, enum tdm_case kind,
                     uint64_t seed, struct tdm_lockstep *all, struct tdm_coverage *coverage)
{
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err = {0};
    struct tdm_lockstep here = {0};
    char text[600];
    enum tdm_status status = tdm_backend_case(kind, seed, &schedule, &err);
    if (status != TDM_OK) {
        gpu_test_case(test, false, "seed %llu %s: %s", (unsigned long long)seed,
                      tdm_case_name(kind), err.message);
        return;
    }
    tdm_coverage_note_heads(coverage, schedule->model);
    tdm_coverage_note(coverage, schedule);
    uint32_t steps = schedule->optimizer.kind == TDM_OPTIMIZER_NONE ? 1 : 2;
    status = tdm_lockstep_run(schedule, backend, seed, steps, &here, &err);
    uint64_t ops = 0;
    double worst = 0;
    for (int i = 0; i < TDM_OP_KINDS; i++) {
        ops += here.kinds[i].ops;
        if (here.kinds[i].worst > worst)
            worst = here.kinds[i].worst;
    }
    tdm_lockstep_add(all, &here);
    gpu_test_case(test, status == TDM_OK && here.wrong == 0,
                  "seed %llu %s: %llu ops, worst difference %.2f of its bound",
                  (unsigned long long)seed, tdm_case_name(kind), (unsigned long long)ops, worst);
    if (status != TDM_OK)
        printf("# %s\n", err.message);
    if (here.wrong > 0)
        printf("# %llu wrong, first %s\n", (unsigned long long)here.wrong, here.first);
    if (status != TDM_OK || here.wrong > 0)
        printf("# %s\n", tdm_schedule_describe(schedule, text, sizeof(text)));
    tdm_schedule_free(schedule);
}

/* The error of all elements together, relative to the expected result. */
static double error_of(const struct tdm_lockstep_elements *elements)
{
    return elements->size > 0 ? sqrt(elements->off / elements->size) : 0;
}

static double share_of(const struct tdm_lockstep_elements *elements)
{
    return elements->bounded > 0 ? (double)elements->differ / (double)elements->bounded : 0;
}

/* The share of bf16 results that may be rounded to the other neighbour. An op that computes in fp32
 * and rounds once has few; one that rounds twice has a fifth or more. Some ops round twice on
 * purpose: attention rounds probabilities, cuBLASLt rounds the products that it adds to bf16, and
 * the LM head continues with rounded logits. */
static double share_allowed(enum tdm_op_kind kind)
{
    switch (kind) {
    case TDM_OP_ATTENTION:
    case TDM_OP_ATTENTION_GRAD:
    case TDM_OP_PRODUCT_GRAD_INPUT:
    case TDM_OP_PRODUCT_GRAD_WEIGHT:
    case TDM_OP_HEAD:
    case TDM_OP_HEAD_GRAD:
        return 1;
    default:
        return ONCE_ROUNDED;
    }
}

/* Reports what was seen of every kind of op. All kinds of one rank must have been seen. */
static void report(struct gpu_test *test, const struct tdm_lockstep *all)
{
    printf("# %-20s %7s %10s %6s %14s %20s\n", "op", "ops", "elements", "worst", "bf16: differ",
           "others: differ");
    for (int i = 0; i < TDM_OP_KINDS; i++) {
        const struct tdm_lockstep_kind *kind = &all->kinds[i];
        const char *name = tdm_op_kind_name((enum tdm_op_kind)i);
        double share = share_of(&kind->bf16);
        printf("# %-20s %7llu %10llu %6.2f %8.3f%% %8.1e %8.3f%% %8.1e\n", name,
               (unsigned long long)kind->ops, (unsigned long long)kind->elements, kind->worst,
               100 * share, error_of(&kind->bf16), 100 * share_of(&kind->others),
               error_of(&kind->others));
        if (kind->ops == 0 && (TDM_RANKS_KINDS & TDM_KIND(i)) == 0) /* of ranks: ranks_test.c */
            gpu_test_case(test, false, "no case has %s", name);
        if (kind->bf16.bounded >= LEAST_TO_JUDGE && !(share <= share_allowed((enum tdm_op_kind)i)))
            gpu_test_case(test, false, "%.1f%% of the bf16 results of %s are rounded otherwise",
                          100 * share, name);
    }
}

static void report_coverage(struct gpu_test *test, const struct tdm_coverage *coverage)
{
    const char *missing;
    uint32_t next = 0;
    tdm_coverage_print(coverage);
    while ((missing = tdm_coverage_missing(coverage, &next)) != NULL)
        gpu_test_case(test, false, "no schedule had: %s", missing);
}

int main(void)
{
    const char *name = gpu_test_backend();
    struct gpu_test test = gpu_test_begin();
    struct tdm_lockstep all = {0};
    struct tdm_coverage coverage = {0};
    struct tdm_error err = {0};
    const struct tdm_backend *backend;
    uint64_t cases = tdm_case_count(9, 60);
    if (tdm_backend_find(name, &backend, &err) != TDM_OK) {
        printf("Bail out! %s\n", err.message);
        return 1;
    }
    for (uint64_t i = 0; i < cases; i++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, i);
        run_case(&test, backend, tdm_case_of(seed), seed, &all, &coverage);
    }
    if (cases >= 9)
        report(&test, &all);
    if (cases >= 60)
        report_coverage(&test, &coverage);
    return gpu_test_end(&test);
}
