/* SPDX-License-Identifier: Apache-2.0 */
/* Tests whole steps on the cuda backend: random models and schedules of every nest, set, place and
 * optimizer, with the same weights and tokens as on the cpu backend.
 *
 * Without an optimizer the gradients of one step are compared. With one, the weights (masters if
 * there are any) and moments after three steps are compared. The same schedule run again, and one
 * that differs only in its nest, sets and places, must give the same bits on the GPU, with copies
 * under way on both lanes. Arenas must not be touched beyond the plan. Half of the cases run in
 * arenas full of NaN.
 *
 * How far correct results may differ is measured for each case. A cpu backend that rounds
 * differently (tests/support/jitter.h) moves away from the cpu's results by an amount that depends
 * on the case, because one bf16 activation that is rounded to the other side changes all that
 * follow from it. The GPU may differ SENSITIVITIES times as much. In a sensitive case this bound is
 * weak. Therefore, over all cases of a kind, most losses, norms and tensors of each role must be
 * close. The lockstep test checks single ops.
 *
 * The error of a tensor is the norm of the difference over the norm of the cpu backend's result (of
 * its change, if it was updated). This norm counts as at least 3% of what is typical for the model.
 * TDM_CASES=N TDM_SEED=S runs cases S to S + N - 1, TDM_CASE=small (wide, large) makes all of them
 * small ones; TDM_BACKEND=cpu compares the cpu backend with itself, without a GPU. */
#include "executor/backends.h"
#include "tests/support/backend_cases.h"
#include "tests/support/coverage.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/jitter.h"
#include "tests/support/random_schedule.h"
#include "tests/support/run_steps.h"

#include <math.h>
#include <string.h>

#define BASE_SEED 20261121u
#define MOVED 2 /* runs that round differently */
#define SENSITIVITIES 8.0
/* Errors below this are always allowed. */
#define FLOOR_FP32 5e-5
#define FLOOR_BF16 2e-3
/* At least this share of the cases of a kind, and of the tensors of a role, have errors within the
 * bounds below. */
#define SHARE 0.8
#define CLOSE_LOSS_FP32 1e-6
#define CLOSE_TENSOR_FP32 2e-5
#define CLOSE_LOSS_BF16 2e-3
#define CLOSE_TENSOR_BF16 3e-2
#define CASES_LEAST 20 /* fewest cases to judge by shares */

/* The differences between the results of two runs. */
struct errors {
    double loss, norm, tensor;
    enum tdm_role role; /* of the worst tensor */
    enum tdm_left what;
    double roles[TDM_ROLES]; /* worst tensor of each role; NAN if there is none */
};

/* Results of the cases in fp32 or in bf16. */
struct tally {
    uint64_t cases, close; /* by loss and norm */
    uint64_t roles[TDM_ROLES], close_roles[TDM_ROLES];
    double worst_share; /* largest error as a share of what is allowed */
    /* Cases that gave the same bits twice, with copies under way beside compute. */
    uint64_t overlapped;
};

/* ---- comparison ---- */

static double relative(double value, double due)
{
    return isnan(value) && isnan(due) ? 0 : fabs(value - due) / fmax(fabs(due), 1e-3);
}

static void raise_to(double *worst, double error)
{
    if (!(error <= *worst)) /* a NaN is the worst */
        *worst = isnan(error) ? INFINITY : error;
}

/* The change that the step made, or its result if `from` is NULL. */
static double change_of(const float *due, const float *from, uint64_t i)
{
    return (double)due[i] - (from == NULL ? 0.0 : (double)from[i]);
}

/* Finds the errors of all tensors of a kind. `from` has the values before an update, or is NULL. */
static void compare_tensors(const struct tdm_model *model, const float *got, const float *due,
                            const float *from, enum tdm_left what, struct errors *errors)
{
    double squares = 0, elements = 0;
    uint64_t base = 0;
    for (uint32_t unit = 0; unit < model->unit_count; base += model->units[unit++].elements) {
        for (uint64_t i = base; i < base + model->units[unit].elements; i++)
            squares += change_of(due, from, i) * change_of(due, from, i);
        elements += (double)model->units[unit].parameters;
    }
    double least = 3e-2 * sqrt(squares / elements);
    base = 0;
    for (uint32_t unit = 0; unit < model->unit_count; base += model->units[unit++].elements) {
        for (uint32_t t = 0; t < model->units[unit].tensor_count; t++) {
            const struct tdm_tensor *tensor = &model->tensors[model->units[unit].first_tensor + t];
            uint64_t first = base + tensor->offset;
            double error = 0, size = 0;
            for (uint64_t i = first; i < first + tensor->elements; i++) {
                double difference = (double)got[i] - (double)due[i];
                error += difference * difference;
                size += change_of(due, from, i) * change_of(due, from, i);
            }
            double scale = fmax(sqrt(size), least * sqrt((double)tensor->elements));
            double each = error == 0 ? 0 : sqrt(error) / scale, *of_role;
            of_role = &errors->roles[tensor->role];
            if (!(each <= *of_role))
                *of_role = each;
            if (!(each <= errors->tensor)) {
                errors->role = tensor->role;
                errors->what = what;
            }
            raise_to(&errors->tensor, each);
        }
    }
}

static struct errors compare(const struct tdm_schedule *schedule, const struct tdm_step_data *data,
                             const struct tdm_steps *got, const struct tdm_steps *due)
{
    struct errors errors = {0};
    uint32_t last = due->steps - 1;
    for (int role = 0; role < TDM_ROLES; role++)
        errors.roles[role] = NAN;
    for (uint32_t i = 0; i < due->steps; i++) {
        raise_to(&errors.loss, relative(got->losses[i], due->losses[i]));
        if (schedule->pass == TDM_TRAIN)
            raise_to(&errors.norm, relative(got->norms[i], due->norms[i]));
    }
    for (int what = 0; what < TDM_LEFTS; what++)
        compare_tensors(schedule->model, tdm_steps_values(got, last, (enum tdm_left)what),
                        tdm_steps_values(due, last, (enum tdm_left)what),
                        what == TDM_LEFT_VALUES && tdm_steps_update(schedule) ? data->weights
                                                                              : NULL,
                        (enum tdm_left)what, &errors);
    return errors;
}

static double worst_of(const struct errors *errors)
{
    return fmax(errors->tensor, fmax(errors->loss, errors->norm));
}

static bool is_fp32(const struct tdm_schedule *schedule)
{
    const struct tdm_dtypes *d = &schedule->dtypes;
    return d->activations == TDM_DTYPE_FP32 && d->kv == TDM_DTYPE_FP32 &&
           d->kv_gradients == TDM_DTYPE_FP32 && d->gradients == TDM_DTYPE_FP32 &&
           d->logits == TDM_DTYPE_FP32 && d->moments != TDM_DTYPE_BF16 &&
           (d->weights == TDM_DTYPE_FP32 || d->master != TDM_DTYPE_NONE ||
            !tdm_steps_update(schedule));
}

static void note(const struct errors *errors, double allowed, bool fp32, struct tally *tally)
{
    double loss = fp32 ? CLOSE_LOSS_FP32 : CLOSE_LOSS_BF16;
    double tensor = fp32 ? CLOSE_TENSOR_FP32 : CLOSE_TENSOR_BF16;
    tally->cases++;
    tally->close += errors->loss <= loss && errors->norm <= tensor;
    raise_to(&tally->worst_share, worst_of(errors) / allowed);
    for (int role = 0; role < TDM_ROLES; role++) {
        tally->roles[role] += !isnan(errors->roles[role]);
        tally->close_roles[role] += errors->roles[role] <= tensor;
    }
}

/* ---- cases ---- */

/* The results of the runs of a case. */
struct runs {
    struct tdm_steps due, moved[MOVED], first, again, variant;
};

static enum tdm_status run_all(const struct tdm_schedule *schedule,
                               const struct tdm_schedule *variant,
                               const struct tdm_backend *backend, const struct tdm_step_data *data,
                               uint64_t seed, struct runs *runs, struct tdm_error *err)
{
    struct tdm_backend jitter = tdm_jitter_backend();
    bool poisoned = seed % 2 == 1;
    enum tdm_status status =
        tdm_steps_run(schedule, &tdm_cpu_backend, data, seed, poisoned, &runs->due, err);
    tdm_jitter_seed(seed);
    for (int i = 0; i < MOVED && status == TDM_OK; i++)
        status = tdm_steps_run(schedule, &jitter, data, seed, poisoned, &runs->moved[i], err);
    if (status == TDM_OK)
        status = tdm_steps_run(schedule, backend, data, seed, poisoned, &runs->first, err);
    if (status == TDM_OK)
        status = tdm_steps_run(schedule, backend, data, seed, !poisoned, &runs->again, err);
    if (status == TDM_OK)
        status = tdm_steps_run(variant, backend, data, seed, poisoned, &runs->variant, err);
    return status;
}

static void free_runs(struct runs *runs)
{
    tdm_steps_free(&runs->due);
    for (int i = 0; i < MOVED; i++)
        tdm_steps_free(&runs->moved[i]);
    tdm_steps_free(&runs->first);
    tdm_steps_free(&runs->again);
    tdm_steps_free(&runs->variant);
}

static enum tdm_status new_case(enum tdm_case kind, uint64_t seed, struct tdm_schedule **schedule,
                                struct tdm_schedule **variant, struct tdm_step_data *data,
                                struct tdm_error *err)
{
    enum tdm_status status = tdm_backend_case(kind, seed, schedule, err);
    if (status == TDM_OK)
        status = tdm_random_variant(*schedule, seed ^ 0x5a5a, variant, err);
    if (status != TDM_OK)
        return status;
    /* an update of lr * g / |g| would blow up the rounding of gradients that are nearly zero */
    (*schedule)->optimizer.epsilon = (*variant)->optimizer.epsilon = 1e-2;
    (*schedule)->optimizer.learning_rate = (*variant)->optimizer.learning_rate = 1e-2;
    return tdm_step_data_draw(data, *schedule, seed)
               ? TDM_OK
               : tdm_fail(err, TDM_NO_MEMORY, "out of memory for weights");
}

static void run_case(struct gpu_test *test, const struct tdm_backend *backend, enum tdm_case kind,
                     uint64_t seed, struct tally tally[2], struct tdm_coverage *coverage)
{
    static const char *const lefts[] = {"values", "moment 1", "moment 2"};
    struct tdm_schedule *schedule = NULL, *variant = NULL;
    struct tdm_step_data data = {0};
    struct tdm_error err = {0};
    struct runs runs = {0};
    struct errors errors = {0};
    double sensitivity = 0, allowed = 0;
    bool again = false, same = false, fp32 = false;
    char text[600];
    enum tdm_status status = new_case(kind, seed, &schedule, &variant, &data, &err);
    if (status == TDM_OK)
        status = run_all(schedule, variant, backend, &data, seed, &runs, &err);
    if (status == TDM_OK) {
        fp32 = is_fp32(schedule);
        for (int i = 0; i < MOVED; i++) {
            struct errors moved = compare(schedule, &data, &runs.moved[i], &runs.due);
            raise_to(&sensitivity, worst_of(&moved));
        }
        errors = compare(schedule, &data, &runs.first, &runs.due);
        allowed = SENSITIVITIES * sensitivity + (fp32 ? FLOOR_FP32 : FLOOR_BF16);
        again = tdm_steps_same(&runs.first, &runs.again);
        same = tdm_steps_same(&runs.first, &runs.variant);
        note(&errors, allowed, fp32, &tally[!fp32]);
        tally[!fp32].overlapped += again && runs.first.overlapped > 0 && runs.again.overlapped > 0;
        tdm_coverage_note(coverage, schedule);
        tdm_coverage_note(coverage, variant);
    }
    bool passed = status == TDM_OK && worst_of(&errors) <= allowed && same && again;
    gpu_test_case(
        test, passed,
        "seed %llu %s %s: loss off by %.1e, norm by %.1e, tensors by %.1e (role %d, %s) of %.1e, "
        "again %s, variant %s%s",
        (unsigned long long)seed, tdm_case_name(kind), fp32 ? "fp32" : "bf16", errors.loss,
        errors.norm, errors.tensor, (int)errors.role, lefts[errors.what], allowed,
        again ? "the same" : "differs", same ? "the same" : "differs",
        status == TDM_OK ? "" : ", failed");
    if (!passed)
        printf("# %s\n# %s\n", status == TDM_OK ? "" : err.message,
               schedule == NULL ? "" : tdm_schedule_describe(schedule, text, sizeof(text)));
    free_runs(&runs);
    tdm_step_data_free(&data);
    tdm_schedule_free(schedule);
    tdm_schedule_free(variant);
}

/* ---- all cases together ---- */

static void judge(struct gpu_test *test, const struct tally *tally, const char *name)
{
    double least = SHARE;
    uint64_t close = tally->close, cases = tally->cases;
    if (cases < CASES_LEAST)
        return;
    gpu_test_case(test, (double)close >= least * (double)cases,
                  "losses and norms of %llu of %llu cases in %s are close, the worst error is %.2f "
                  "of what its case allows",
                  (unsigned long long)close, (unsigned long long)cases, name, tally->worst_share);
    for (int role = 0; role < TDM_ROLES; role++)
        if (tally->roles[role] >= CASES_LEAST)
            gpu_test_case(test,
                          (double)tally->close_roles[role] >= least * (double)tally->roles[role],
                          "of role %d in %s %llu of %llu cases are close", role, name,
                          (unsigned long long)tally->close_roles[role],
                          (unsigned long long)tally->roles[role]);
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
    struct tally tally[2] = {{0}};
    struct tdm_coverage coverage = {0};
    struct tdm_error err = {0};
    const struct tdm_backend *backend;
    uint64_t cases = tdm_case_count(20, 80), overlapped;
    if (tdm_backend_find(name, &backend, &err) != TDM_OK) {
        printf("Bail out! %s\n", err.message);
        return 1;
    }
    for (uint64_t i = 0; i < cases; i++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, i);
        run_case(&test, backend, tdm_case_of(seed), seed, tally, &coverage);
    }
    judge(&test, &tally[0], "fp32");
    judge(&test, &tally[1], "bf16");
    if (cases >= 80) {
        report_coverage(&test, &coverage);
        overlapped = tally[0].overlapped + tally[1].overlapped;
        gpu_test_case(&test, overlapped > 0 || strcmp(name, "cuda") != 0,
                      "%llu cases gave the same bits again with copies beside compute",
                      (unsigned long long)overlapped);
    }
    return gpu_test_end(&test);
}
