/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the slack of lockstep_slack.h: sizes of terms, and functions for kinds of ops. */
#ifndef TDM_TESTS_SLACK_PARTS_H
#define TDM_TESTS_SLACK_PARTS_H

#include "schedule/layout.h"
#include "tests/support/lockstep_slack.h"

#include <math.h>
#include <stdlib.h>

#define UNIT 0x1p-24        /* of fp32, half a unit in the last place of 1 */
#define ROUNDED_BF16 0x1p-8 /* relative: the largest change by rounding to bf16 */
#define EXACT (-1.0)
#define LEAST_EXP 2e-35 /* smaller exponentials are 0 on the cpu: executor/cpu/exp.h */

/* Error of a sum, relative to the sum of the terms' sizes. */
static inline double slack_sum_error(double terms)
{
    return (8 + 2 * sqrt(terms)) * UNIT;
}

/* Tensor cores add products in fp32, but they truncate, a bit or two below the place where other
 * units round. */
static inline double slack_product_error(double terms, enum tdm_dtype factors)
{
    return slack_sum_error(terms) * (factors == TDM_DTYPE_BF16 ? 4 : 1);
}

static inline double slack_value(const struct tdm_operand *operand, uint64_t element)
{
    return tdm_value_of(tdm_operand_at(operand, element), operand->dtype);
}

static inline bool slack_adds(const struct tdm_operand *operand)
{
    return operand->mode == TDM_ACCUMULATE;
}

/* Allocates array `number` with count + 1 zeros. NULL if memory runs out. */
static inline double *slack_take(struct tdm_slack *slack, int number, uint64_t count)
{
    slack->array[number] = calloc(count + 1, sizeof(double));
    return slack->array[number];
}

/* A matrix within an operand. */
struct slack_view {
    const struct tdm_operand *operand;
    uint64_t first, rows, columns, stride;
};

/* Adds squares of rows to rows[], and of columns to columns[]. Either may be NULL. */
static inline void slack_add_squares(const struct slack_view *x, double *rows, double *columns)
{
    for (uint64_t r = 0; r < x->rows; r++)
        for (uint64_t c = 0; c < x->columns; c++) {
            double value = slack_value(x->operand, x->first + r * x->stride + c);
            if (rows != NULL)
                rows[r] += value * value;
            if (columns != NULL)
                columns[c] += value * value;
        }
}

static inline void slack_take_roots(double *squares, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        squares[i] = sqrt(squares[i]);
}

static inline const struct tdm_model *slack_model(const struct tdm_slack *slack)
{
    return slack->launch->program->schedule->model;
}

static inline void slack_raise_to(double *most, double value)
{
    *most = value > *most ? value : *most;
}

/* First element of token t's K in a slot of pages. */
static inline uint64_t slack_page_element(const struct tdm_slack *slack, uint64_t t)
{
    const struct tdm_schedule *schedule = slack->launch->program->schedule;
    const struct tdm_model *model = schedule->model;
    return t / schedule->page_tokens * tdm_page_elements(schedule) +
           t % schedule->page_tokens * model->kv_heads * model->head_dim;
}

/* Prepare the arrays of ops that rotate heads, of attention, the LM head and selections. False if
 * memory runs out or the cpu backend fails. */
bool slack_begin_turn(struct tdm_slack *slack);
bool slack_begin_attention(struct tdm_slack *slack, struct tdm_error *err);
bool slack_begin_head(struct tdm_slack *slack);
bool slack_begin_select(struct tdm_slack *slack);

/* Slack of an element that these ops write; negative: exact. */
double slack_of_means(const struct tdm_slack *slack, uint64_t element);
double slack_of_select(const struct tdm_slack *slack, uint64_t element);
double slack_of_turn(const struct tdm_slack *slack, const struct tdm_written *piece,
                     uint64_t element);
double slack_of_attention(const struct tdm_slack *slack, const struct tdm_written *piece,
                          uint64_t element);
double slack_of_attention_grad(const struct tdm_slack *slack, const struct tdm_written *piece,
                               uint64_t element);
double slack_of_head(const struct tdm_slack *slack, const struct tdm_written *piece,
                     uint64_t element, double due);

#endif
