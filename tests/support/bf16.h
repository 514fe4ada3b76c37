/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds doubles to bf16 by arithmetic, to check code that rounds bit patterns: to nearest with
 * ties to even, as tensors are stored; to nearest with ties away from zero, as weights are rounded
 * from masters; and stochastically.
 */
#ifndef TDM_TESTS_BF16_H
#define TDM_TESTS_BF16_H

#include <math.h>
#include <stdint.h>

/* Distance between adjacent bf16 values at `value`: 8 significant bits, subnormals below 2^-126. */
static inline double bf16_unit(double value)
{
    int exponent;
    frexp(value, &exponent);
    return ldexp(1, (value == 0 || exponent < -125 ? -125 : exponent) - 8);
}

/* Rounds away from zero if the part that is cut off, in [0, 1), plus `dice` is at least 1. */
static inline double bf16_round(double value, double dice)
{
    double unit = bf16_unit(value), units = fabs(value) / unit;
    double below = floor(units);
    return copysign((below + (units - below + dice >= 1 ? 1 : 0)) * unit, value);
}

static inline double bf16_nearest(double value)
{
    return bf16_round(value, 0.5);
}

/* Rounds a value that was computed in fp32: first to fp32, then to bf16. */
static inline double bf16_nearest_even(double value)
{
    double unit = bf16_unit((float)value);
    return nearbyint((float)value / unit) * unit;
}

/* Rounds with 16 random bits. */
static inline double bf16_stochastic(double value, uint64_t random)
{
    return bf16_round(value, (double)(random & 0xffff) * 0x1p-16);
}

#endif
