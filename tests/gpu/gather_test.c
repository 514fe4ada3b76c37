/* SPDX-License-Identifier: Apache-2.0 */
/* Tests attention that gathers its pages from the host, on the cuda backend
 * (tests/support/gather_cases.h): small cases in fp32 on CUDA cores, large ones in bf16 on tensor
 * cores. TDM_CASES=N TDM_SEED=S runs cases S to S + N - 1. */
#include "executor/backends.h"
#include "tests/support/gather_cases.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/random_schedule.h"

#define BASE_SEED 91000u

/* Bounds relative to the norm of all gradients. One more rounding of a sum to bf16 changes its
 * results by 2^-9. */
#define ROUNDING_FP32 1e-5
#define ROUNDING_BF16 1e-2

static void run_case(struct gpu_test *test, const struct tdm_backend *backend, uint64_t seed,
                     uint64_t *batched)
{
    char text[768];
    bool large = seed % 2 == 1;
    struct tdm_schedule *schedule = NULL;
    struct tdm_gather_outcome outcome = {0};
    struct tdm_error err = {0};
    enum tdm_status status = tdm_gather_case(seed, large, &schedule, &err);
    if (status == TDM_OK)
        status = tdm_gather_compare(schedule, backend, seed, &outcome, &err);
    bool passed = status == TDM_OK && outcome.same && outcome.same_losses &&
                  outcome.error <= (large ? ROUNDING_BF16 : ROUNDING_FP32);
    *batched += outcome.batched;
    gpu_test_case(test, passed,
                  "seed %llu %s%s: with a buffer for all %s; with the least losses %s, off by %.1e",
                  (unsigned long long)seed, large ? "large" : "small",
                  outcome.batched ? ", in batches" : "", outcome.same ? "the same" : "differs",
                  outcome.same_losses ? "the same" : "differ", outcome.error);
    if (!passed)
        printf("# %s\n# %s\n", status == TDM_OK ? "" : err.message,
               schedule == NULL ? "" : tdm_schedule_describe(schedule, text, sizeof(text)));
    tdm_schedule_free(schedule);
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    struct tdm_error err = {0};
    const struct tdm_backend *backend;
    uint64_t cases = tdm_case_count(20, 60), batched = 0;
    if (tdm_backend_find(gpu_test_backend(), &backend, &err) != TDM_OK) {
        printf("Bail out! %s\n", err.message);
        return 1;
    }
    for (uint64_t i = 0; i < cases; i++)
        run_case(&test, backend, tdm_case_seed(BASE_SEED, i), &batched);
    if (cases >= 20)
        gpu_test_case(&test, batched >= cases / 8, "%llu of %llu cases ran in batches",
                      (unsigned long long)batched, (unsigned long long)cases);
    return gpu_test_end(&test);
}
