/* SPDX-License-Identifier: Apache-2.0 */
/* Divisors as text. */
#include "methods/divisors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ITEM_BYTES 24u /* a number and its separator */

uint64_t tdm_common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

const char *tdm_divisors_format(uint64_t number, uint64_t least, uint64_t most,
                                char out[TDM_DIVISORS_BYTES])
{
    uint64_t pending = 0;
    size_t used = 0;
    out[0] = '\0';
    if (most > number)
        most = number;
    for (uint64_t d = least == 0 ? 1 : least; d <= most; d++) {
        if (number % d != 0)
            continue;
        if (pending > 0 && used + 2 * ITEM_BYTES < TDM_DIVISORS_BYTES)
            used += (size_t)snprintf(out + used, TDM_DIVISORS_BYTES - used, "%s%" PRIu64,
                                     used == 0 ? "" : ", ", pending);
        pending = d;
    }
    if (pending > 0)
        snprintf(out + used, TDM_DIVISORS_BYTES - used, "%s%" PRIu64, used == 0 ? "" : " or ",
                 pending);
    return out;
}
