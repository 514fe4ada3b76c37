/* SPDX-License-Identifier: Apache-2.0 */
/* exp() in fp32 as straight-line code, so that loops over it are vectorised. */
#ifndef TDM_EXECUTOR_CPU_EXP_H
#define TDM_EXECUTOR_CPU_EXP_H

#include "executor/simd.h"

/* Below this the result is exactly 0, so that a softmax gives no denormals, which are slow. */
#define TDM_EXP_LEAST (-80.0f)

/* exp(x) to 1e-7 relative; 0 below TDM_EXP_LEAST (also for -infinity), exp(88) above 88; a NaN
 * without payload stays one. x = n ln 2 + r with |r| <= ln 2 / 2, and Cephes' minimax polynomial of
 * exp(r) (expf.c, S. Moshier). Adding 1.5 * 2^23 rounds to an integer, which then stands in the low
 * bits. */
static inline float tdm_exp(float x)
{
    const float shift = 12582912.0f;
    float clamped = tdm_choose(x < TDM_EXP_LEAST, TDM_EXP_LEAST, x);
    clamped = tdm_choose(clamped > 88.0f, 88.0f, clamped);
    float shifted = clamped * 1.44269504088896341f + shift;
    float n = shifted - shift;
    float r = clamped - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits, shifted_bits;
    memcpy(&bits, &p, sizeof(bits));
    memcpy(&shifted_bits, &shifted, sizeof(shifted_bits));
    bits += shifted_bits << 23;
    memcpy(&p, &bits, sizeof(p));
    return tdm_choose(x < TDM_EXP_LEAST, 0.0f, p);
}

#endif
