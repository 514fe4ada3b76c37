/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for loops that the compiler should vectorise at -O2. */
#ifndef TDM_EXECUTOR_SIMD_H
#define TDM_EXECUTOR_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Put before a loop without dependencies between iterations. */
#ifdef _OPENMP
#define TDM_SIMD _Pragma("omp simd")
#else
#define TDM_SIMD
#endif

/* `condition ? yes : no` by bit masks: the compiler would turn a choice between floats into a
 * branch, which keeps the enclosing loop scalar. */
static inline float tdm_choose(bool condition, float yes, float no)
{
    uint32_t mask = -(uint32_t)condition, yes_bits, no_bits;
    memcpy(&yes_bits, &yes, sizeof(yes_bits));
    memcpy(&no_bits, &no, sizeof(no_bits));
    yes_bits = (yes_bits & mask) | (no_bits & ~mask);
    memcpy(&yes, &yes_bits, sizeof(yes));
    return yes;
}

#endif
