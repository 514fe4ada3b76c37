/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counter-based random numbers: (seed, step, tensor, element) gives the same bits wherever and
 * whenever they are drawn. The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over a
 * mixed counter.
 */
#ifndef TDM_EXECUTOR_RANDOM_H
#define TDM_EXECUTOR_RANDOM_H

#include "base/anywhere.h"

#include <stdint.h>

TDM_ANYWHERE uint64_t tdm_random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The stream of one tensor in one step; drawing from it costs less than mixing all four. */
TDM_ANYWHERE uint64_t tdm_random_stream(uint64_t seed, uint64_t step, uint64_t tensor)
{
    return tdm_random_mix(tdm_random_mix(tdm_random_mix(seed) ^ step) ^ tensor);
}

TDM_ANYWHERE uint64_t tdm_random_draw(uint64_t stream, uint64_t element)
{
    return tdm_random_mix(stream ^ tdm_random_mix(element));
}

TDM_ANYWHERE uint64_t tdm_random_bits(uint64_t seed, uint64_t step, uint64_t tensor,
                                      uint64_t element)
{
    return tdm_random_draw(tdm_random_stream(seed, step, tensor), element);
}

/* In (0, 1]. */
TDM_ANYWHERE double tdm_random_unit(uint64_t bits)
{
    return (double)((bits >> 11) + 1) * 0x1p-53;
}

/* Standard normal numbers: the widths of the ziggurat's strips, see random.c. */
struct tdm_normal {
    double width[257];
};

void tdm_normal_open(struct tdm_normal *normal);

/* The normal number for the bits of a counter. */
double tdm_normal_draw(const struct tdm_normal *normal, uint64_t bits);

#endif
