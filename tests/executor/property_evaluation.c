/* SPDX-License-Identifier: Apache-2.0 */
/* Property: a program that evaluates between the steps of another uses its weights as they are. Its
 * loss is that of the naive double-precision transformer on them. It changes nothing: the losses
 * and weights of the steps are those of a run without it, to the last bit.
 *
 * Before and after every evaluation, all bytes of the arenas except the state are poisoned, so that
 * nothing can pass from one program to the other. */
#include "executor/batch.h"
#include "executor/evaluate.h"
#include "executor/state.h"
#include "executor/walk.h"
#include "executor/weights.h"
#include "schedule/learning_rate.h"
#include "schedule/program.h"
#include "schedule/validate.h"
#include "tests/support/random_schedule.h"
#include "tests/reference/reference.h"
#include "tests/support/seen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, WINDOWS = 2, BASE_SEED = 31000 };

#define BOUND 1e-4 /* relative error of a loss */

/* The results of the steps. */
struct outcome {
    double losses[STEPS];
    float *weights; /* of all units, in order */
    size_t count;
};

struct trial {
    uint64_t seed;
    const struct tdm_schedule *schedule, *evaluated; /* `evaluated` is NULL: no evaluation */
    struct tdm_program *program, *evaluator;
    struct tdm_arenas arenas;
    struct tdm_walk *walk;
    struct tdm_tokens *tokens, *held_out;
    struct tdm_evaluation *evaluation;
    struct tdm_batch *batch;
    bool fp32; /* losses can be compared with the reference's */
    double worst;
    uint64_t compared; /* losses that were compared with the reference's */
};

static enum tdm_status lower(const struct tdm_schedule *schedule, struct tdm_program **program,
                             struct tdm_error *err)
{
    const uint64_t no_limit[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX};
    enum tdm_status status = tdm_program_lower(schedule, program, err);
    return status == TDM_OK ? tdm_program_validate(*program, no_limit, err) : status;
}

static enum tdm_status open_trial(struct trial *t, struct tdm_error *err)
{
    const struct tdm_team_options alone = {.transport = &tdm_transport_shared};
    const struct tdm_backend *backend;
    enum tdm_status status = tdm_backend_find("cpu", &backend, err);
    if (status == TDM_OK)
        status = lower(t->schedule, &t->program, err);
    if (status == TDM_OK && t->evaluated != NULL)
        status = lower(t->evaluated, &t->evaluator, err);
    if (status == TDM_OK && t->evaluated != NULL)
        status = tdm_evaluation_check("evaluation", t->evaluator, "training", t->program, err);
    if (status == TDM_OK) {
        const struct tdm_program *programs[] = {t->program, t->evaluator};
        status = tdm_arenas_take(backend, t->evaluator == NULL ? 1 : 2, programs, NULL, NULL,
                                 &t->arenas, err);
    }
    if (status == TDM_OK)
        status = tdm_walk_new(t->program, NULL, &t->arenas, &t->walk, err);
    if (status == TDM_OK)
        status = tdm_tokens_open(NULL, t->schedule->model->vocabulary, &t->tokens, err);
    if (status == TDM_OK)
        status = tdm_batch_new(t->tokens, t->schedule, &t->batch, err);
    if (status == TDM_OK)
        status = tdm_tokens_split(t->tokens, 0.5, &t->held_out, err);
    if (status == TDM_OK && t->evaluator != NULL)
        status = tdm_evaluation_new(t->evaluator, NULL, &t->arenas, &alone, &t->held_out, 1,
                                    t->seed, WINDOWS, &t->evaluation, err);
    if (status == TDM_OK)
        status = tdm_arenas_fill(&t->arenas, NULL, err);
    return status == TDM_OK ? tdm_weights_draw(t->seed, &t->arenas, t->program, NULL, err) : status;
}

static void close_trial(struct trial *t)
{
    tdm_evaluation_free(t->evaluation);
    tdm_batch_free(t->batch);
    tdm_tokens_free(t->held_out);
    tdm_tokens_free(t->tokens);
    tdm_walk_free(t->walk);
    tdm_arenas_release(&t->arenas, 1);
    tdm_program_free(t->evaluator);
    tdm_program_free(t->program);
}

/* Fills the arenas with NaN above the state, which is at the bottom. */
static void poison(const struct trial *t)
{
    for (int place = 0; place < TDM_PLACES; place++) {
        uint64_t end = 0;
        for (uint32_t i = 0; i < t->program->buffer_count; i++) {
            const struct tdm_buffer *buffer = &t->program->buffers[i];
            bool state = buffer->category == TDM_WEIGHTS || buffer->category == TDM_OPTIMIZER;
            if (buffer->place == (enum tdm_place)place && buffer->resident && state &&
                buffer->offset + buffer->bytes > end)
                end = buffer->offset + buffer->bytes;
        }
        if (t->arenas.base[place] != NULL)
            memset((char *)t->arenas.base[place] + end, 0xff, t->arenas.bytes[place] - end);
    }
}

/* Reads the current weights into `values`. */
static enum tdm_status read_weights(const struct trial *t, float *values, struct tdm_error *err)
{
    const struct tdm_model *model = t->schedule->model;
    enum tdm_status status = TDM_OK;
    for (uint32_t unit = 0; unit < model->unit_count && status == TDM_OK; unit++) {
        status = tdm_state_read_weights(&t->arenas, t->program, unit, values, err);
        values += model->units[unit].elements;
    }
    return status;
}

/* The lengths of all documents; the reference treats each as a sequence. The caller frees them. */
static uint64_t *document_lengths(const struct tdm_schedule *schedule, uint32_t *count)
{
    uint64_t *lengths = calloc(tdm_schedule_tokens(schedule), sizeof(*lengths));
    assert_non_null(lengths);
    *count = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        for (uint32_t d = 0; d < schedule->sequences[s].document_count; d++)
            lengths[(*count)++] = tdm_document_end(&schedule->sequences[s], d) -
                                  (d == 0 ? 0 : tdm_document_end(&schedule->sequences[s], d - 1));
    return lengths;
}

/* The expected loss: the mean over the windows. */
static double due_loss(const struct trial *t, const float *values)
{
    const struct tdm_schedule *schedule = t->evaluated;
    const struct tdm_model *model = schedule->model;
    struct tdm_batch *batch;
    struct tdm_reference *reference;
    struct tdm_error err;
    double sum = 0;
    uint32_t documents;
    uint64_t *lengths = document_lengths(schedule, &documents);
    const struct tdm_seen seen = {.schedule = schedule};
    assert_int_equal(tdm_batch_new(t->held_out, schedule, &batch, &err), TDM_OK);
    assert_int_equal(tdm_reference_new(model, &reference, &err), TDM_OK);
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        for (uint64_t i = 0; i < model->units[unit].elements; i++)
            tdm_reference_weights(reference, unit)[i] = *values++;
    tdm_reference_set_sees(reference, tdm_seen, &seen);
    for (uint64_t window = 0; window < WINDOWS; window++) {
        double loss;
        tdm_batch_window(batch, t->seed, window);
        assert_int_equal(tdm_reference_step(reference, documents, lengths,
                                            (const uint32_t *)batch->inputs,
                                            (const uint32_t *)batch->targets, &loss, &err),
                         TDM_OK);
        sum += loss;
    }
    tdm_reference_free(reference);
    free(lengths);
    tdm_batch_free(batch);
    return sum / WINDOWS;
}

static enum tdm_status evaluate(struct trial *t, uint64_t step, float *values,
                                struct tdm_error *err)
{
    double loss, seconds;
    poison(t);
    enum tdm_status status = tdm_evaluation_run(t->evaluation, 0, step, NULL, &loss, &seconds, err);
    poison(t);
    if (status == TDM_OK && !isfinite(loss))
        return tdm_fail(err, TDM_INTERNAL, "the loss of an evaluation is not a number");
    if (status != TDM_OK || !t->fp32)
        return status;
    status = read_weights(t, values, err);
    double due = due_loss(t, values), error = fabs(loss - due) / fmax(fabs(due), 1e-3);
    t->worst = fmax(t->worst, error);
    t->compared++;
    if (status == TDM_OK && !(error <= BOUND))
        return tdm_fail(err, TDM_INTERNAL, "evaluated %.9g after step %llu, %.9g is due", loss,
                        (unsigned long long)step, due);
    return status;
}

static enum tdm_status run_steps(struct trial *t, struct outcome *outcome, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    double norm;
    for (uint64_t i = 1; i <= STEPS && status == TDM_OK; i++) {
        struct tdm_step step = {.number = i,
                                .learning_rate = tdm_learning_rate(&t->schedule->optimizer, i),
                                .seed = t->seed};
        tdm_batch_step(t->batch, t->seed, i);
        status = tdm_state_write_tokens(&t->arenas, t->program, t->batch->inputs, t->batch->targets,
                                        err);
        if (status == TDM_OK)
            status = tdm_walk_step(t->walk, &step, NULL, NULL, err);
        if (status == TDM_OK)
            status = tdm_state_read_loss(&t->arenas, t->program, &outcome->losses[i - 1], &norm,
                                         NULL, err);
        if (status == TDM_OK && t->evaluation != NULL)
            status = evaluate(t, i, outcome->weights, err);
    }
    return status == TDM_OK ? read_weights(t, outcome->weights, err) : status;
}

static struct outcome new_outcome(const struct tdm_model *model)
{
    struct outcome outcome = {0};
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        outcome.count += model->units[unit].elements;
    outcome.weights = calloc(outcome.count, sizeof(float));
    assert_non_null(outcome.weights);
    return outcome;
}

/* Adds to *compared the evaluations whose loss was compared with the reference's. */
static bool run_case(uint64_t seed, double *worst, uint64_t *compared)
{
    bool fp32 = seed % 3 != 0;
    struct tdm_random_options options = {.dtypes = fp32 ? TDM_RANDOM_FP32 : TDM_RANDOM_MIXED,
                                         .optimizer = seed % 5 == 0 ? TDM_RANDOM_NO_OPTIMIZER
                                                                    : TDM_RANDOM_ANY_OPTIMIZER,
                                         .max_tokens = 48};
    struct tdm_schedule *schedule = NULL, *evaluated = NULL;
    struct tdm_error err = {0};
    char text[768];
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_random_evaluation(schedule, seed, 48, &evaluated, &err), TDM_OK);
    /* some optimizers store weights in bf16, which the reference does not compute with */
    fp32 = fp32 && schedule->dtypes.weights == TDM_DTYPE_FP32;
    /* property_gradients checks which pages top-k selects, in evaluations too */
    fp32 = fp32 && evaluated->selector.kind != TDM_SELECT_TOP_K;
    struct outcome with = new_outcome(schedule->model), without = new_outcome(schedule->model);
    struct trial one = {.seed = seed, .schedule = schedule, .evaluated = evaluated, .fp32 = fp32};
    struct trial other = {.seed = seed, .schedule = schedule};
    bool passed = open_trial(&one, &err) == TDM_OK && run_steps(&one, &with, &err) == TDM_OK &&
                  open_trial(&other, &err) == TDM_OK && run_steps(&other, &without, &err) == TDM_OK;
    if (!passed) {
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, err.message);
    } else {
        passed = memcmp(with.losses, without.losses, sizeof(with.losses)) == 0 &&
                 memcmp(with.weights, without.weights, with.count * sizeof(float)) == 0;
        if (!passed)
            fprintf(stderr, "seed %llu: steps are others with an evaluation between\n",
                    (unsigned long long)seed);
    }
    if (!passed) {
        tdm_case_again("executor/property_evaluation", seed);
        fprintf(stderr, "  schedule:   %s\n", tdm_schedule_describe(schedule, text, sizeof(text)));
        fprintf(stderr, "  evaluation: %s\n", tdm_schedule_describe(evaluated, text, sizeof(text)));
    }
    *worst = fmax(*worst, one.worst);
    *compared += one.compared;
    close_trial(&one);
    close_trial(&other);
    free(with.weights);
    free(without.weights);
    tdm_schedule_free(schedule);
    tdm_schedule_free(evaluated);
    return passed;
}

static void evaluations_are_right_and_leave_no_trace(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(15, 80), failed = 0, compared = 0;
    double worst = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !run_case(tdm_case_seed(BASE_SEED, i), &worst, &compared);
    print_message("%llu cases from seed %llu: worst relative error of a loss %.2e\n",
                  (unsigned long long)cases, (unsigned long long)tdm_case_seed(BASE_SEED, 0),
                  worst);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("losses of evaluations were compared with the reference's",
                                compared, cases * STEPS, 0.1));
}

/* An evaluation is refused if the passes are wrong or the programs do not share their state. */
static void programs_that_share_no_state_are_refused(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES,
                                               .dtypes = TDM_RANDOM_FP32};
    struct tdm_schedule *schedule, *evaluated;
    struct tdm_program *program, *evaluator;
    struct tdm_error err;
    assert_int_equal(tdm_random_schedule(7, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_random_evaluation(schedule, 7, 48, &evaluated, &err), TDM_OK);
    assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
    assert_int_equal(tdm_program_lower(evaluated, &evaluator, &err), TDM_OK);
    assert_int_equal(tdm_evaluation_check("e", evaluator, "t", program, &err), TDM_OK);
    assert_int_equal(tdm_evaluation_check("e", program, "t", program, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "\"pass\""));
    assert_int_equal(tdm_evaluation_check("e", evaluator, "t", evaluator, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "\"pass\""));
    uint32_t number = tdm_program_find(evaluator, "weights.head");
    assert_true(number < evaluator->buffer_count);
    evaluator->buffers[number].offset += 512;
    assert_int_equal(tdm_evaluation_check("e", evaluator, "t", program, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "weights.head"));
    tdm_program_free(program);
    tdm_program_free(evaluator);
    tdm_schedule_free(schedule);
    tdm_schedule_free(evaluated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_are_right_and_leave_no_trace),
        cmocka_unit_test(programs_that_share_no_state_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
