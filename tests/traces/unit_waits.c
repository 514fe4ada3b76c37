/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what the compute lane waited for: each gap is due to the op that ended it. */
#include "traces/waits.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#define SECOND INT64_C(1000000000)

static struct tdm_trace_interval op(uint64_t number, enum tdm_lane lane, enum tdm_op_kind kind,
                                    enum tdm_content content, int64_t start, int64_t end)
{
    return (struct tdm_trace_interval){.op_number = number,
                                       .lane = lane,
                                       .kind = kind,
                                       .content = content,
                                       .phase = TDM_BACKWARD,
                                       .predicted_start_ns = start * SECOND,
                                       .predicted_end_ns = end * SECOND};
}

static struct tdm_trace_wait *sum_of(const struct tdm_trace_interval *ops, size_t count, bool whole,
                                     size_t rows)
{
    struct tdm_trace_wait *waits;
    size_t found;
    struct tdm_error err;
    assert_int_equal(tdm_trace_sum_waits(ops, count, whole, &waits, &found, &err), TDM_OK);
    assert_int_equal(found, rows);
    return waits;
}

static struct tdm_trace_wait *sum(const struct tdm_trace_interval *ops, size_t count, size_t rows)
{
    return sum_of(ops, count, true, rows);
}

/* Two waits for fetched weights, one for a d2h copy that ends the step, one for no other op. */
static void gaps_have_names(void **state)
{
    (void)state;
    const struct tdm_trace_interval ops[] = {
        op(0, TDM_LANE_H2D, TDM_OP_COPY, TDM_UNIT_WEIGHTS, 0, 2),
        op(1, TDM_LANE_COMPUTE, TDM_OP_PRODUCT, TDM_EMPTY, 2, 5), /* 2 s for the weights */
        op(2, TDM_LANE_H2D, TDM_OP_COPY, TDM_UNIT_WEIGHTS, 2, 8),
        op(3, TDM_LANE_D2H, TDM_OP_COPY, TDM_X, 5, 6), /* ends in the gap, but not last */
        op(4, TDM_LANE_COMPUTE, TDM_OP_PRODUCT, TDM_EMPTY, 8, 9), /* 3 s for weights again */
        op(5, TDM_LANE_COMPUTE, TDM_OP_NORM, TDM_EMPTY, 10, 11),  /* 1 s for the host */
        op(6, TDM_LANE_D2H, TDM_OP_COPY, TDM_UNIT_MOMENT1, 9, 15),
    };
    struct tdm_trace_wait *waits = sum(ops, sizeof(ops) / sizeof(ops[0]), 3);
    assert_int_equal(waits[0].content, TDM_UNIT_WEIGHTS);
    assert_int_equal(waits[0].lane, TDM_LANE_H2D);
    assert_int_equal(waits[0].waits, 2);
    assert_true(fabs(waits[0].predicted_seconds - 5) < 1e-9);
    assert_true(isnan(waits[0].measured_seconds));
    assert_int_equal(waits[1].content, TDM_UNIT_MOMENT1);
    assert_true(fabs(waits[1].predicted_seconds - 4) < 1e-9);
    assert_true(waits[2].launch);
    assert_true(fabs(waits[2].predicted_seconds - 1) < 1e-9);
    free(waits);

    /* in a step that did not end, nobody knows what its last copy was for */
    waits = sum_of(ops, sizeof(ops) / sizeof(ops[0]), false, 2);
    assert_int_equal(waits[0].content, TDM_UNIT_WEIGHTS);
    assert_true(waits[1].launch);
    free(waits);
}

/* Measured ops have their own gaps, and the number of waits is the measured one. */
static void measured_beside_predicted(void **state)
{
    (void)state;
    struct tdm_trace_interval ops[] = {
        op(0, TDM_LANE_H2D, TDM_OP_COPY, TDM_KVPAGES, 0, 1),
        op(1, TDM_LANE_COMPUTE, TDM_OP_ATTENTION, TDM_EMPTY, 1, 2),
        op(2, TDM_LANE_COMPUTE, TDM_OP_PRODUCT, TDM_EMPTY, 2, 3),
    };
    const int64_t times[][2] = {{0, 3}, {3, 4}, {4, 5}};
    for (size_t i = 0; i < 3; i++) {
        ops[i].measured = true;
        ops[i].start_ns = times[i][0] * SECOND;
        ops[i].end_ns = times[i][1] * SECOND;
    }
    struct tdm_trace_wait *waits = sum(ops, 3, 1);
    assert_int_equal(waits[0].waits, 1);
    assert_int_equal(waits[0].phase, TDM_BACKWARD);
    assert_true(fabs(waits[0].predicted_seconds - 1) < 1e-9);
    assert_true(fabs(waits[0].measured_seconds - 3) < 1e-9);
    free(waits);
}

static void nothing_waits(void **state)
{
    (void)state;
    const struct tdm_trace_interval ops[] = {
        op(0, TDM_LANE_COMPUTE, TDM_OP_PRODUCT, TDM_EMPTY, 0, 2),
        op(1, TDM_LANE_D2H, TDM_OP_COPY, TDM_X, 0, 1),
    };
    assert_null(sum(ops, 2, 0));
    assert_null(sum(ops, 0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_have_names),
        cmocka_unit_test(measured_beside_predicted),
        cmocka_unit_test(nothing_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
