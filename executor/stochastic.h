/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stochastic rounding to bf16, for values that change a little in every step and have no wider
 * copy: weights without a master, moments in bf16. Rounding to nearest would lose every update
 * below half a unit in the last place. Rounding up with a probability equal to the fraction that is
 * cut off keeps the update on average (Gupta et al., arXiv 1502.02551, section 3).
 *
 * Each element has one 64-bit random number per step, by (seed, step, tensor, element), see
 * random.h. Each stored value uses 16 of its bits, so the result does not depend on schedule or
 * threads.
 */
#ifndef TDM_EXECUTOR_STOCHASTIC_H
#define TDM_EXECUTOR_STOCHASTIC_H

#include "base/anywhere.h"

#include <stdint.h>
#include <string.h>

/* Which 16 of the 64 bits: the shift. */
enum tdm_random_share {
    TDM_RANDOM_OF_WEIGHT = 0,
    TDM_RANDOM_OF_MOMENT1 = 16,
    TDM_RANDOM_OF_MOMENT2 = 32
};

/* Rounds `value` to one of its two bf16 neighbours: to the one further from zero with probability
 * (bits cut off) / 2^16 over `random` in [0, 65535]. A bf16 value is unchanged, and so is an
 * infinity; a NaN stays a NaN. */
TDM_ANYWHERE uint16_t tdm_bf16_stochastic(float value, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
