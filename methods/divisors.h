/* SPDX-License-Identifier: Apache-2.0 */
/* Valid values of degrees that must divide a number, for hints: "1, 2, 4 or 8". */
#ifndef TDM_METHODS_DIVISORS_H
#define TDM_METHODS_DIVISORS_H

#include <stdint.h>

#define TDM_DIVISORS_BYTES 128u

uint64_t tdm_common_divisor(uint64_t a, uint64_t b);

/* Writes the divisors of a number (0: it has none) from `least` to `most` in ascending order, as
 * many as `out` can hold. Returns `out`, which is empty if there are none. */
const char *tdm_divisors_format(uint64_t number, uint64_t least, uint64_t most,
                                char out[TDM_DIVISORS_BYTES]);

#endif
