/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a schedule's optimizer: which dtypes each kind allows, the bytes of masters and moments,
 * and the learning rate of a step.
 */
#include "schedule/learning_rate.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"
#include "schedule/slices.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static struct tdm_schedule *small(void)
{
    struct tdm_random_options options = {.dtypes = TDM_RANDOM_FP32,
                                         .optimizer = TDM_RANDOM_NO_OPTIMIZER};
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err = {0};
    must(tdm_random_schedule(1, &options, &schedule, &err), &err);
    for (int state = 0; state < TDM_STATES; state++)
        tdm_schedule_set_home(schedule, (enum tdm_state)state, schedule->model->layers, TDM_DEVICE);
    return schedule;
}

/* All legal combinations. Every other combination of these dtypes is refused with a reason. */
static const struct {
    enum tdm_optimizer kind;
    enum tdm_dtype weights, master, moments;
} legal[] = {
    {TDM_OPTIMIZER_NONE, TDM_DTYPE_FP32, TDM_DTYPE_NONE, TDM_DTYPE_NONE},
    {TDM_OPTIMIZER_NONE, TDM_DTYPE_BF16, TDM_DTYPE_NONE, TDM_DTYPE_NONE},
    {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_FP32, TDM_DTYPE_NONE, TDM_DTYPE_FP32},
    {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_BF16, TDM_DTYPE_REMAINDER16, TDM_DTYPE_FP32},
    {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_BF16, TDM_DTYPE_FP32, TDM_DTYPE_FP32},
    {TDM_OPTIMIZER_ADAMW_BF16_MOMENTS, TDM_DTYPE_FP32, TDM_DTYPE_NONE, TDM_DTYPE_BF16},
    {TDM_OPTIMIZER_ADAMW_BF16_MOMENTS, TDM_DTYPE_BF16, TDM_DTYPE_REMAINDER16, TDM_DTYPE_BF16},
    {TDM_OPTIMIZER_ADAMW_BF16_MOMENTS, TDM_DTYPE_BF16, TDM_DTYPE_FP32, TDM_DTYPE_BF16},
    {TDM_OPTIMIZER_ADAMW_BF16, TDM_DTYPE_BF16, TDM_DTYPE_NONE, TDM_DTYPE_BF16},
    {TDM_OPTIMIZER_SGD, TDM_DTYPE_FP32, TDM_DTYPE_NONE, TDM_DTYPE_NONE},
    {TDM_OPTIMIZER_SGD, TDM_DTYPE_BF16, TDM_DTYPE_NONE, TDM_DTYPE_NONE},
    {TDM_OPTIMIZER_SGD, TDM_DTYPE_BF16, TDM_DTYPE_REMAINDER16, TDM_DTYPE_NONE},
    {TDM_OPTIMIZER_SGD, TDM_DTYPE_BF16, TDM_DTYPE_FP32, TDM_DTYPE_NONE},
};

static bool is_legal(enum tdm_optimizer kind, const struct tdm_dtypes *dtypes)
{
    for (size_t i = 0; i < sizeof(legal) / sizeof(legal[0]); i++)
        if (legal[i].kind == kind && legal[i].weights == dtypes->weights &&
            legal[i].master == dtypes->master && legal[i].moments == dtypes->moments)
            return true;
    return false;
}

static void test_dtypes(void **state)
{
    (void)state;
    static const enum tdm_dtype weights[] = {TDM_DTYPE_FP32, TDM_DTYPE_BF16};
    static const enum tdm_dtype stored[] = {TDM_DTYPE_NONE, TDM_DTYPE_FP32, TDM_DTYPE_BF16,
                                            TDM_DTYPE_FP16, TDM_DTYPE_REMAINDER16};
    struct tdm_schedule *schedule = small();
    size_t allowed = 0;
    for (int kind = 0; kind < TDM_OPTIMIZERS; kind++)
        for (int w = 0; w < 2; w++)
            for (int master = 0; master < 5; master++)
                for (int moments = 0; moments < 5; moments++) {
                    struct tdm_error err = {0};
                    schedule->optimizer.kind = (enum tdm_optimizer)kind;
                    schedule->dtypes.weights = weights[w];
                    schedule->dtypes.master = stored[master];
                    schedule->dtypes.moments = stored[moments];
                    bool good = is_legal((enum tdm_optimizer)kind, &schedule->dtypes);
                    enum tdm_status status = tdm_schedule_check(schedule, "file", &err);
                    if ((status == TDM_OK) != good ||
                        (!good && (status != TDM_INPUT || strstr(err.message, "dtypes.") == NULL)))
                        fail_msg("%s %s %s %s: status %d, \"%s\"",
                                 tdm_optimizer_name((enum tdm_optimizer)kind),
                                 tdm_dtype_name(weights[w]), tdm_dtype_name(stored[master]),
                                 tdm_dtype_name(stored[moments]), (int)status, err.message);
                    allowed += good;
                }
    assert_int_equal(allowed, sizeof(legal) / sizeof(legal[0]));
    tdm_schedule_free(schedule);
}

/* The defaults of a kind are legal: the first of that kind and weight dtype in the list above. */
static void test_defaults(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = small();
    for (int kind = 0; kind < TDM_OPTIMIZERS; kind++)
        for (int wide = 0; wide < 2; wide++) {
            if (wide == 1 && kind == TDM_OPTIMIZER_ADAMW_BF16)
                continue;
            schedule->dtypes.weights = wide ? TDM_DTYPE_FP32 : TDM_DTYPE_BF16;
            tdm_schedule_set_optimizer(schedule, (enum tdm_optimizer)kind);
            size_t i = 0;
            while (legal[i].kind != schedule->optimizer.kind ||
                   legal[i].weights != schedule->dtypes.weights)
                i++;
            assert_int_equal(schedule->dtypes.master, legal[i].master);
            assert_int_equal(schedule->dtypes.moments, legal[i].moments);
        }
    tdm_schedule_free(schedule);
}

/* A state of dtype none has no buffer. Every other state has its dtype's bytes for each element. */
static void test_bytes(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = small();
    for (size_t i = 0; i < sizeof(legal) / sizeof(legal[0]); i++) {
        struct tdm_program *program = NULL;
        struct tdm_error err = {0};
        uint64_t due = 0, found = 0, no_limit[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX};
        schedule->optimizer.kind = legal[i].kind;
        schedule->dtypes.weights = legal[i].weights;
        schedule->dtypes.master = legal[i].master;
        schedule->dtypes.moments = legal[i].moments;
        must(tdm_schedule_check(schedule, "file", &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_program_validate(program, no_limit, &err), &err);
        for (uint32_t unit = 0; unit < schedule->model->unit_count; unit++) {
            uint64_t elements = tdm_slice_at(schedule, unit, 0).elements;
            uint64_t slices = tdm_slice_count(schedule, unit);
            uint64_t master = elements * tdm_dtype_bytes(legal[i].master);
            uint64_t moment = elements * tdm_dtype_bytes(legal[i].moments);
            due += slices * ((master + 255) / 256 * 256 + 2 * ((moment + 255) / 256 * 256));
        }
        for (uint32_t b = 0; b < program->buffer_count; b++)
            if (program->buffers[b].category == TDM_OPTIMIZER)
                found += program->buffers[b].bytes;
        assert_int_equal(found, due);
        tdm_program_free(program);
    }
    tdm_schedule_free(schedule);
}

/* Compares with values calculated by hand. */
static void test_learning_rates(void **state)
{
    (void)state;
    static const struct {
        enum tdm_rate_schedule schedule;
        uint64_t warmup, decay, step;
        double final, due;
    } table[] = {
        {TDM_RATE_CONSTANT, 0, 0, 1, 0, 1},   {TDM_RATE_CONSTANT, 4, 0, 1, 0, 0.25},
        {TDM_RATE_CONSTANT, 4, 0, 4, 0, 1},   {TDM_RATE_CONSTANT, 4, 0, 4000, 0, 1},
        {TDM_RATE_LINEAR, 0, 4, 1, 0, 0.75},  {TDM_RATE_LINEAR, 2, 4, 1, 0.5, 0.5},
        {TDM_RATE_LINEAR, 2, 4, 2, 0.5, 1},   {TDM_RATE_LINEAR, 2, 4, 4, 0.5, 0.75},
        {TDM_RATE_LINEAR, 2, 4, 6, 0.5, 0.5}, {TDM_RATE_LINEAR, 2, 4, 7, 0.5, 0.5},
        {TDM_RATE_COSINE, 2, 4, 2, 0, 1},     {TDM_RATE_COSINE, 2, 4, 3, 0, 0.853553390593274},
        {TDM_RATE_COSINE, 2, 4, 4, 0, 0.5},   {TDM_RATE_COSINE, 2, 4, 5, 0.2, 0.317157287525381},
        {TDM_RATE_COSINE, 2, 4, 6, 0.2, 0.2}, {TDM_RATE_COSINE, 2, 4, UINT64_MAX, 0.2, 0.2},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct tdm_optimizer_settings o = {.learning_rate = 2,
                                           .rate_schedule = table[i].schedule,
                                           .warmup_steps = table[i].warmup,
                                           .decay_steps = table[i].decay,
                                           .final_learning_rate = 2 * table[i].final};
        double rate = tdm_learning_rate(&o, table[i].step);
        if (!(rate > 2 * table[i].due - 1e-12 && rate < 2 * table[i].due + 1e-12))
            fail_msg("row %zu: %.15g, not %.15g", i, rate, 2 * table[i].due);
    }
}

/* Settings that have no effect or contradict each other. */
static void test_bad_learning_rates(void **state)
{
    (void)state;
    static const struct {
        enum tdm_rate_schedule schedule;
        uint64_t decay;
        double final;
        const char *message;
    } table[] = {
        {TDM_RATE_CONSTANT, 5, 0, "decay_steps\" needs"},
        {TDM_RATE_CONSTANT, 0, 1e-5, "final_learning_rate\" needs"},
        {TDM_RATE_LINEAR, 0, 0, "decay_steps\" is 0"},
        {TDM_RATE_COSINE, 5, 1, "final_learning_rate\" is 1"},
        {TDM_RATE_COSINE, 5, -1e-5, "final_learning_rate\" is -1e-05"},
    };
    struct tdm_schedule *schedule = small();
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct tdm_error err = {0};
        schedule->optimizer.rate_schedule = table[i].schedule;
        schedule->optimizer.decay_steps = table[i].decay;
        schedule->optimizer.final_learning_rate = table[i].final;
        assert_int_equal(tdm_schedule_check(schedule, "file", &err), TDM_INPUT);
        if (strstr(err.message, table[i].message) == NULL)
            fail_msg("row %zu: \"%s\"", i, err.message);
    }
    tdm_schedule_free(schedule);
}

/* What clipping requires, and settings that have no effect. */
static void test_clip(void **state)
{
    (void)state;
    static const struct {
        enum tdm_optimizer kind;
        enum tdm_clip clip;
        enum tdm_when when;
        double norm;
        const char *message; /* NULL: legal */
    } table[] = {
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_NONE, TDM_WHEN_LAYER, 0, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_NONE, TDM_WHEN_END, 0, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_LAYER, TDM_WHEN_LAYER, 0.5, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_LAYER, TDM_WHEN_END, 2, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_GLOBAL, TDM_WHEN_END, 1, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_GLOBAL, TDM_WHEN_LAYER, 1, "needs all gradients"},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_NONE, TDM_WHEN_LAYER, 1, "nothing is clipped"},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_LAYER, TDM_WHEN_LAYER, 0, "clip_norm\" is 0"},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_LAYER, TDM_WHEN_LAYER, -1, "clip_norm\" is -1"},
        {TDM_OPTIMIZER_ADAMW, TDM_CLIP_LAYER, TDM_WHEN_LAYER, 1e31, "clip_norm\" is 1e+31"},
        {TDM_OPTIMIZER_NONE, TDM_CLIP_LAYER, TDM_WHEN_LAYER, 1, "updates nothing"},
    };
    struct tdm_schedule *schedule = small();
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct tdm_error err = {0};
        tdm_schedule_set_optimizer(schedule, table[i].kind);
        schedule->optimizer.clip = table[i].clip;
        schedule->optimizer.when = table[i].when;
        schedule->optimizer.clip_norm = table[i].norm;
        enum tdm_status status = tdm_schedule_check(schedule, "file", &err);
        if (table[i].message == NULL
                ? status != TDM_OK
                : status != TDM_INPUT || strstr(err.message, table[i].message) == NULL)
            fail_msg("row %zu: status %d, \"%s\"", i, (int)status, err.message);
    }
    schedule->optimizer.when = TDM_WHEN_LAYER;
    tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_SGD);
    tdm_schedule_set_clip(schedule, TDM_CLIP_GLOBAL);
    assert_int_equal(schedule->optimizer.when, TDM_WHEN_END);
    tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_NONE);
    assert_int_equal(schedule->optimizer.clip, TDM_CLIP_NONE);
    tdm_schedule_free(schedule);
}

/* A unit with weights on the host needs all its state there if it is updated there, and the message
 * names what is not. Others may have theirs anywhere. */
static void test_on_host(void **state)
{
    (void)state;
    enum { MOSTLY = 1, ALL = 0 }; /* layers on the device */
    static const struct {
        enum tdm_optimizer kind;
        enum tdm_dtype master;
        struct tdm_home weights, masters, moments;
        const char *message; /* NULL: legal */
    } table[] = {
#define AT(layers, embedding, head) {layers, TDM_##embedding, TDM_##head}
#define HERE AT(ALL, HOST, HOST)
#define SOME AT(MOSTLY, DEVICE, HOST)
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_REMAINDER16, HERE, HERE, HERE, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_FP32, SOME, SOME, SOME, NULL},
        {TDM_OPTIMIZER_ADAMW_BF16, TDM_DTYPE_NONE, HERE, SOME, HERE, NULL},
        {TDM_OPTIMIZER_SGD, TDM_DTYPE_NONE, HERE, SOME, SOME, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_REMAINDER16, SOME, SOME, HERE, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_FP32, SOME, HERE, HERE, NULL},
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_REMAINDER16, SOME, HERE, AT(MOSTLY, DEVICE, DEVICE),
         "by \"homes.moments\" not all"},
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_REMAINDER16, HERE, SOME, HERE,
         "by \"homes.master\" not all"},
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_REMAINDER16, HERE, HERE, AT(ALL, HOST, DEVICE),
         "by \"homes.moments\" not all"},
        {TDM_OPTIMIZER_ADAMW, TDM_DTYPE_REMAINDER16, HERE, AT(ALL, DEVICE, HOST), HERE,
         "by \"homes.master\" not all"},
        {TDM_OPTIMIZER_NONE, TDM_DTYPE_NONE, HERE, HERE, HERE, "updates nothing"},
#undef HERE
#undef SOME
#undef AT
    };
    struct tdm_schedule *schedule = small();
    struct tdm_error err = {0};
    assert_true(schedule->model->layers > 1);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        schedule->dtypes.weights = TDM_DTYPE_BF16;
        tdm_schedule_set_optimizer(schedule, table[i].kind);
        schedule->dtypes.master = table[i].master;
        schedule->optimizer.on = TDM_HOST;
        schedule->homes[TDM_STATE_WEIGHTS] = table[i].weights;
        schedule->homes[TDM_STATE_MASTER] = table[i].masters;
        schedule->homes[TDM_STATE_MOMENTS] = table[i].moments;
        enum tdm_status status = tdm_schedule_check(schedule, "file", &err);
        if (table[i].message == NULL
                ? status != TDM_OK
                : status != TDM_INPUT || strstr(err.message, table[i].message) == NULL)
            fail_msg("row %zu: status %d, \"%s\"", i, (int)status, err.message);
        for (uint32_t unit = 0; unit < schedule->model->unit_count && status == TDM_OK; unit++)
            assert_int_equal(tdm_updates_on_host(schedule, unit),
                             tdm_schedule_home(schedule, TDM_STATE_WEIGHTS, unit) == TDM_HOST);
    }
    /* no state is on the host */
    tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_ADAMW);
    schedule->optimizer.on = TDM_HOST;
    for (int s = 0; s < TDM_STATES; s++)
        tdm_schedule_set_home(schedule, (enum tdm_state)s, schedule->model->layers, TDM_DEVICE);
    assert_int_equal(tdm_schedule_check(schedule, "file", &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "no unit has its weights, master and moments there"));
    tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_NONE);
    assert_int_equal(schedule->optimizer.on, TDM_DEVICE);
    tdm_schedule_free(schedule);
}

/* Depending on when updates run, gradients share bytes or each has its own. */
static void test_gradients_together(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = small();
    uint64_t all = 0;
    assert_true(schedule->model->layers > 1);
    tdm_schedule_set_order(schedule, TDM_LAYER_MAJOR);
    tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_SGD);
    for (uint32_t unit = 0; unit < schedule->model->unit_count; unit++)
        all += schedule->model->units[unit].elements * tdm_dtype_bytes(schedule->dtypes.gradients);
    for (int when = 0; when < TDM_WHENS; when++) {
        struct tdm_program *program = NULL;
        struct tdm_error err = {0};
        uint64_t found = 0;
        schedule->optimizer.when = (enum tdm_when)when;
        assert_int_equal(tdm_gradients_stay(schedule), when == TDM_WHEN_END);
        must(tdm_program_lower(schedule, &program, &err), &err);
        for (uint32_t b = 0; b < program->buffer_count; b++)
            if (program->buffers[b].used && program->buffers[b].category == TDM_GRADIENTS)
                found += program->buffers[b].bytes;
        if (when == TDM_WHEN_END)
            assert_true(found >= all);
        else
            assert_true(found < all);
        tdm_program_free(program);
    }
    tdm_schedule_free(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_learning_rates),
        cmocka_unit_test(test_bad_learning_rates),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_on_host),
        cmocka_unit_test(test_gradients_together),
    };
    return cmocka_run_group_tests_name("schedule's optimizer", tests, NULL, NULL);
}
