/* SPDX-License-Identifier: Apache-2.0 */
/* Degrees that divide what they must, for hints: "1, 2, 4 or 8". */
#ifndef TDM_METHODS_DIVISORS_H
#define TDM_METHODS_DIVISORS_H

#include <stdint.h>

#define TDM_DIVISORS_BYTES 128u

uint64_t tdm_common_divisor(uint64_t a, uint64_t b);

/* The divisors of a number (0: none) from `least` to `most`, rising, as many as there is room for;
 * returns `out`, empty if there is none. */
const char *tdm_divisors_format(uint64_t number, uint64_t least, uint64_t most,
                                char out[TDM_DIVISORS_BYTES]);

#endif
