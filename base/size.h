/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checked sizes: uint64_t arithmetic that saturates at TDM_SIZE_MAX instead of wrapping.
 *
 * A saturated value stays saturated in further additions and multiplications. So a formula can be
 * written plainly, and only its result is compared with TDM_SIZE_MAX.
 */
#ifndef TDM_BASE_SIZE_H
#define TDM_BASE_SIZE_H

#include <stdint.h>

#define TDM_SIZE_MAX UINT64_MAX

static inline uint64_t tdm_size_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? TDM_SIZE_MAX : sum;
}

static inline uint64_t tdm_size_mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? TDM_SIZE_MAX : product;
}

/* a - b, or 0 if b is larger. */
static inline uint64_t tdm_size_left(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* The least multiple of `unit` (not 0) that is at least `a`. */
static inline uint64_t tdm_size_align(uint64_t a, uint64_t unit)
{
    uint64_t padded = tdm_size_add(a, unit - 1);
    return padded == TDM_SIZE_MAX ? TDM_SIZE_MAX : padded - padded % unit;
}

static inline uint64_t tdm_size_ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static inline uint64_t tdm_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t tdm_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
