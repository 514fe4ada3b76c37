/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting of short lists that keeps the order of equal items, which qsort() may not. */
#ifndef TDM_BASE_SORT_H
#define TDM_BASE_SORT_H

#include <stddef.h>

/* Sorts `count` items of `bytes` each, by a comparison as qsort() takes it; equal ones stay in
 * their order. Takes no memory; time grows with the square of the count: for hundreds of items. */
void tdm_sort_stable(void *items, size_t count, size_t bytes,
                     int (*compare)(const void *left, const void *right));

#endif
