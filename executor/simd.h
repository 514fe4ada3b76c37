/* SPDX-License-Identifier: Apache-2.0 */
/* Loops that the compiler shall vectorise at -O2. */
#ifndef TDM_EXECUTOR_SIMD_H
#define TDM_EXECUTOR_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Before a loop without dependencies between its rounds. */
#ifdef _OPENMP
#define TDM_SIMD _Pragma("omp simd")
#else
#define TDM_SIMD
#endif

/* `yes` where the condition holds, else `no`: bits are masked, because a choice between floats
 * would be taken for a branch and keep the loop around it scalar. */
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
