/* SPDX-License-Identifier: Apache-2.0 */
/* Tests steps of several ranks on the cuda backend: random models and schedules for 2 to 4 ranks,
 * which share the GPUs of the computer in turn (on one GPU, all of them).
 *
 * The loss of the first step has the bits of one rank with the same chunks; where ranks divide the
 * heads, it is near that. Gradients, or weights after three steps, are those of one rank but for
 * rounding: dK, dV and gradients are summed in other groups. The same ranks run again, all on one
 * GPU where they read each other's memory, and a schedule that differs only in its nest, sets and
 * places, have the same bits. Arenas must not be touched beyond the plan; half of the cases run in
 * arenas full of NaN.
 *
 * The random models are too small for the fastest kernels. So some rings of another kind follow, of
 * models for which these are made (tdm_ring_case). Their gradients are those of the cpu backend,
 * too.
 *
 * TDM_CASES=N TDM_SEED=S runs cases S to S + N - 1; TDM_BACKEND=cpu tests the test without a GPU.
 * TDM_TRANSPORT=nccl joins the ranks by NCCL, which wants a GPU for each: no more than there are.
 */
#include "executor/backends.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/backend_cases.h"
#include "tests/support/random_schedule.h"
#include "tests/support/run_steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BASE_SEED 20261124u
#define CASES 48u
#define CASES_LEAST 30u /* of several ranks, of CASES seeds */
#define RING_CASES 8u
#define RANKS_MOST 4u
/* Largest norm of the difference, as a share of the norm of what is compared. */
#define BOUND_FP32 1e-4
#define BOUND_BF16 5e-2

/* The most ranks of a case. */
static uint32_t ranks_most(const struct tdm_backend *backend)
{
    const char *transport = getenv("TDM_TRANSPORT");
    uint32_t devices = RANKS_MOST;
    if (transport == NULL || strcmp(transport, "nccl") != 0 || backend->devices == NULL ||
        backend->devices(&devices, NULL) != TDM_OK)
        return RANKS_MOST;
    return devices < RANKS_MOST ? devices : RANKS_MOST;
}

/* A schedule of several ranks; NULL if the seed's case cannot be one. */
static struct tdm_schedule *draw(uint64_t seed, const struct tdm_backend *backend,
                                 struct tdm_error *err)
{
    const bool narrow = seed % 3 != 0;
    const struct tdm_random_options options = {
        .dtypes = narrow ? TDM_RANDOM_MIXED : TDM_RANDOM_FP32_ACTIVATIONS,
        .pass = seed % 7 == 0 ? TDM_RANDOM_EVALUATE : TDM_RANDOM_TRAIN,
        .max_tokens = seed % 4 == 0 ? 1000 : 200,
        .ranks = ranks_most(backend)};
    struct tdm_schedule *schedule = NULL;
    if (tdm_random_schedule(seed, &options, &schedule, err) != TDM_OK)
        return NULL;
    if (schedule->ranks > 1)
        return schedule;
    tdm_schedule_free(schedule);
    return NULL;
}

/* Norm of the difference of all values of the last step, as a share of their norm. */
static double difference(const struct tdm_steps *got, const struct tdm_steps *due)
{
    double worst = 0;
    for (int what = 0; what < TDM_LEFTS; what++) {
        const float *a = tdm_steps_values(got, got->steps - 1, (enum tdm_left)what);
        const float *b = tdm_steps_values(due, due->steps - 1, (enum tdm_left)what);
        double error = 0, size = 0;
        for (size_t i = 0; i < due->count; i++) {
            error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            size += (double)b[i] * b[i];
        }
        double share = error == 0 ? 0 : sqrt(error / fmax(size, 1e-30));
        worst = share <= worst ? worst : share; /* a NaN is the worst */
    }
    return worst;
}

/* Runs the ranks on one device, where they read each other's memory, whatever joins them else. */
static enum tdm_status run_on_one(const struct tdm_schedule *schedule,
                                  const struct tdm_backend *backend,
                                  const struct tdm_step_data *data, uint64_t seed, bool poisoned,
                                  struct tdm_steps *steps, struct tdm_error *err)
{
    const char *transport = getenv("TDM_TRANSPORT");
    char kept[64] = "";
    if (transport != NULL)
        snprintf(kept, sizeof(kept), "%s", transport);
    unsetenv("TDM_TRANSPORT");
    setenv("TDM_DEVICES", "1", 1);
    enum tdm_status status = tdm_steps_run(schedule, backend, data, seed, poisoned, steps, err);
    unsetenv("TDM_DEVICES");
    if (transport != NULL)
        setenv("TDM_TRANSPORT", kept, 1);
    return status;
}

/* `cpu`: the backend whose results are to be the same but for rounding; NULL: none. */
static void run_case(struct gpu_test *test, const struct tdm_backend *backend,
                     const struct tdm_backend *cpu, uint64_t seed, struct tdm_schedule *schedule)
{
    struct tdm_step_data data = {0};
    struct tdm_steps team = {0}, again = {0}, other = {0}, one = {0}, on_cpu = {0};
    struct tdm_schedule *variant = NULL;
    struct tdm_error err = {0};
    const uint32_t ranks = schedule->ranks;
    /* weights in bf16 differ by a last place after a step, and all that they give with them */
    const bool poisoned = seed % 2 == 0,
               fp32 = cpu == NULL && seed % 3 == 0 && schedule->dtypes.weights == TDM_DTYPE_FP32;
    bool passed =
        tdm_step_data_draw(&data, schedule, seed) &&
        tdm_random_variant(schedule, seed, &variant, &err) == TDM_OK &&
        tdm_steps_run(schedule, backend, &data, seed, poisoned, &team, &err) == TDM_OK &&
        run_on_one(schedule, backend, &data, seed, !poisoned, &again, &err) == TDM_OK &&
        tdm_steps_run(variant, backend, &data, seed, poisoned, &other, &err) == TDM_OK &&
        (cpu == NULL || run_on_one(schedule, cpu, &data, seed, poisoned, &on_cpu, &err) == TDM_OK);
    /* fewer heads may divide the keys of a query in another way, and so does a ring */
    const bool divided = schedule->exchange != TDM_EXCHANGE_GATHER;
    schedule->ranks = 1;
    schedule->rings.gradients = 1;
    schedule->sliced_weights = false;
    passed =
        passed && tdm_steps_run(schedule, backend, &data, seed, poisoned, &one, &err) == TDM_OK;
    bool repeats = passed && tdm_steps_same(&team, &again);
    bool alike = passed && tdm_steps_same(&team, &other);
    bool loss = passed && (memcmp(&team.losses[0], &one.losses[0], sizeof(one.losses[0])) == 0 ||
                           (divided && fabs(team.losses[0] - one.losses[0]) <
                                           (fp32 ? BOUND_FP32 : BOUND_BF16) * fabs(one.losses[0])));
    double off = passed ? difference(&team, &one) : INFINITY;
    double off_cpu = passed && cpu != NULL ? difference(&team, &on_cpu) : passed ? 0 : INFINITY;
    passed = repeats && alike && loss && off <= (fp32 ? BOUND_FP32 : BOUND_BF16) &&
             off_cpu <= BOUND_BF16;
    gpu_test_case(test, passed, "seed %llu: %u ranks, %s, off by %.1e, from cpu by %.1e%s%s%s%s%s",
                  (unsigned long long)seed, ranks, tdm_exchange_kind_name(schedule->exchange), off,
                  off_cpu, repeats ? "" : ", does not repeat", alike ? "" : ", the variant differs",
                  loss ? "" : ", another loss", err.message[0] == '\0' ? "" : ": ", err.message);
    tdm_steps_free(&team);
    tdm_steps_free(&again);
    tdm_steps_free(&other);
    tdm_steps_free(&one);
    tdm_steps_free(&on_cpu);
    tdm_schedule_free(variant);
    tdm_step_data_free(&data);
}

/* Rings of models for which the fastest kernels are made. */
static void run_rings(struct gpu_test *test, const struct tdm_backend *backend, uint64_t first,
                      uint64_t count)
{
    const struct tdm_backend *cpu;
    struct tdm_error err = {0};
    const uint32_t most = ranks_most(backend) < 3 ? ranks_most(backend) : 3;
    if (tdm_backend_find("cpu", &cpu, &err) != TDM_OK) {
        gpu_test_case(test, false, "%s", err.message);
        return;
    }
    for (uint64_t seed = first; most > 1 && seed < first + count; seed++) {
        struct tdm_schedule *schedule = NULL;
        if (tdm_ring_case(seed, most, &schedule, &err) != TDM_OK) {
            gpu_test_case(test, false, "seed %llu, a ring: %s", (unsigned long long)seed,
                          err.message);
            continue;
        }
        run_case(test, backend, cpu, seed, schedule);
        tdm_schedule_free(schedule);
    }
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    const struct tdm_backend *backend;
    struct tdm_error err = {0};
    const char *cases = getenv("TDM_CASES"), *seed = getenv("TDM_SEED");
    uint64_t first = seed == NULL ? BASE_SEED : test.seed, ran = 0;
    uint64_t count = cases == NULL ? CASES : strtoull(cases, NULL, 0);
    unsigned exchanged[TDM_EXCHANGES] = {0}; /* cases by their exchange */
    if (tdm_backend_find(gpu_test_backend(), &backend, &err) != TDM_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    for (uint64_t i = 0; i < count; i++) {
        struct tdm_schedule *schedule = draw(first + i, backend, &err);
        if (schedule == NULL)
            continue;
        exchanged[schedule->exchange]++;
        run_case(&test, backend, NULL, first + i, schedule);
        tdm_schedule_free(schedule);
        ran++;
    }
    if (cases == NULL && seed == NULL) {
        bool all = ran >= CASES_LEAST;
        for (int i = 0; i < TDM_EXCHANGES; i++)
            all = all && (exchanged[i] > 0 ||
                          /* it takes two rows of two ranks */
                          (tdm_exchange_kind_has_rows((enum tdm_exchange_kind)i) &&
                           ranks_most(backend) < 4));
        gpu_test_case(&test, all, "%llu of %llu cases have several ranks, and each exchange some",
                      (unsigned long long)ran, (unsigned long long)count);
    }
    run_rings(&test, backend, first, count < RING_CASES ? count : RING_CASES);
    return gpu_test_end(&test);
}
