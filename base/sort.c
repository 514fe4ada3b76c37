/* SPDX-License-Identifier: Apache-2.0 */
/* Stable insertion sort (base/sort.h). */
#include "base/sort.h"

static void swap(char *left, char *right, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        char byte = left[i];
        left[i] = right[i];
        right[i] = byte;
    }
}

void tdm_sort_stable(void *items, size_t count, size_t bytes,
                     int (*compare)(const void *left, const void *right))
{
    char *first = items;
    for (size_t i = 1; i < count; i++)
        for (char *at = first + i * bytes; at > first && compare(at - bytes, at) > 0; at -= bytes)
            swap(at - bytes, at, bytes);
}
