/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pattern that arenas are filled with, to find which bytes a step touches.
 *
 * Each word is its index, mixed by the finaliser of SplitMix64 (S. Vigna). All words differ, and
 * data is unlikely to match them by chance.
 */
#ifndef TDM_EXECUTOR_PATTERN_H
#define TDM_EXECUTOR_PATTERN_H

#include "base/anywhere.h"

#include <stdint.h>

/* Word `index` of an arena. */
TDM_ANYWHERE uint64_t tdm_pattern_word(uint64_t index)
{
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif
