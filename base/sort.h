/* SPDX-License-Identifier: Apache-2.0 */
/* Sorts short lists and keeps the order of equal items, which qsort() does not guarantee. */
#ifndef TDM_BASE_SORT_H
#define TDM_BASE_SORT_H

#include <stddef.h>

/* Sorts `count` items of `bytes` bytes with a comparison like qsort()'s. Equal items keep their
 * order. Allocates nothing. Time grows with the square of the count, so this is for up to hundreds
 * of items. */
void tdm_sort_stable(void *items, size_t count, size_t bytes,
                     int (*compare)(const void *left, const void *right));

#endif
