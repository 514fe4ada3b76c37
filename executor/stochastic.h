/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stochastic rounding to bf16, for what is updated a little in every step and has no wider copy:
 * weights without a master, moments in bf16. Rounded to nearest, an update of less than half a unit
 * in the last place would be lost each time; rounded up with the probability of the fraction that
 * is cut off, it is made on average (Gupta et al., arXiv 1502.02551, section 3).
 *
 * The randomness of an element in a step is one 64-bit number by (seed, step, tensor, element), see
 * random.h; what is stored takes 16 bits of it each, so that nothing depends on schedule or
 * threads.
 */
#ifndef TDM_EXECUTOR_STOCHASTIC_H
#define TDM_EXECUTOR_STOCHASTIC_H

#include "executor/on_device.h"

#include <stdint.h>
#include <string.h>

/* Which 16 of the 64 bits: the shift. */
enum tdm_random_share {
    TDM_RANDOM_OF_WEIGHT = 0,
    TDM_RANDOM_OF_MOMENT1 = 16,
    TDM_RANDOM_OF_MOMENT2 = 32
};

/* One of the two bf16 neighbours of `value`, the one further from zero with probability (bits cut
 * off) / 2^16 over `random` in [0, 65535]. A bf16 value stays itself, an infinity too; a NaN stays
 * a NaN. */
static TDM_ON_DEVICE inline uint16_t tdm_bf16_stochastic(float value, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
