/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores an fp32 master as a bf16 weight and a 16-bit remainder. The two give back the master bit
 * for bit, so that no second copy of the weights is stored.
 *
 * The weight is the master rounded to the nearest bf16. The remainder is what the rounding took: a
 * signed 16-bit difference of bit patterns. Ties between two bf16 values are rounded away from
 * zero: rounding them to even would map 65,537 masters to an even weight, one more than 16 bits can
 * tell apart. A weight beside a plain fp32 master is rounded by the same function, so that both
 * ways of storing a master train to the same bits.
 */
#ifndef TDM_EXECUTOR_REMAINDER_H
#define TDM_EXECUTOR_REMAINDER_H

#include "base/anywhere.h"

#include <stdint.h>
#include <string.h>

/* Splits a master. A NaN stays a NaN, with remainder 0. */
TDM_ANYWHERE void tdm_master_split(float master, uint16_t *weight, uint16_t *remainder)
{
    uint32_t bits;
    memcpy(&bits, &master, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        bits = (bits & 0xffff0000u) | 0x400000u;
    *weight = (uint16_t)((bits + 0x8000u) >> 16);
    *remainder = (uint16_t)bits;
}

/* The bf16 weight of a master, as tdm_master_split rounds it. */
TDM_ANYWHERE uint16_t tdm_master_weight(float master)
{
    uint16_t weight, remainder;
    tdm_master_split(master, &weight, &remainder);
    return weight;
}

/* The master that was split into `weight` and `remainder`. */
TDM_ANYWHERE float tdm_master_join(uint16_t weight, uint16_t remainder)
{
    uint32_t bits = ((uint32_t)weight << 16) + remainder;
    if (remainder & 0x8000u) /* the difference is negative */
        bits -= 0x10000u;
    float master;
    memcpy(&master, &bits, sizeof(master));
    return master;
}

#endif
