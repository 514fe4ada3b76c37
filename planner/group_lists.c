/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of group sizes: equal ones, and decreasing ones whose weights are rounded to whole
 * layers. */
#include "planner/group_lists.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FALLING 12u /* groups in a decreasing list */

static enum tdm_status no_memory(struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for lists of groups");
}

/* Adds a copy of a list unless it is already there. */
static bool add_list(struct tdm_group_lists *lists, const uint32_t *sizes, uint32_t count)
{
    for (uint32_t i = 0; i < lists->count; i++)
        if (lists->lists[i].count == count &&
            memcmp(lists->lists[i].sizes, sizes, count * sizeof(*sizes)) == 0)
            return true;
    struct tdm_group_list *moved =
        realloc(lists->lists, ((size_t)lists->count + 1) * sizeof(*moved));
    if (moved == NULL)
        return false;
    lists->lists = moved;
    uint32_t *copy = malloc((size_t)count * sizeof(*copy));
    if (copy == NULL)
        return false;
    memcpy(copy, sizes, (size_t)count * sizeof(*copy));
    lists->lists[lists->count++] = (struct tdm_group_list){count, copy};
    return true;
}

/* Fills `sizes` with one size that repeats up to the last layer. Returns the number of groups. */
static uint32_t repeat_size(uint32_t layers, uint32_t size, uint32_t *sizes)
{
    uint32_t count = 0;
    for (uint32_t left = layers; left > 0; count++) {
        sizes[count] = left < size ? left : size;
        left -= sizes[count];
    }
    return count;
}

/* Weight of group i of `count`, from layer 0 up, in a decreasing list. */
static double weight(uint32_t family, uint32_t i, uint32_t count)
{
    static const double ratios[] = {1.5, 2};
    double falling = count - i;
    if (family == 0)
        return falling;
    if (family == 1)
        return falling + count / 2.0;
    double value = 1;
    for (uint32_t k = i + 1; k < count; k++)
        value *= ratios[family - 2];
    return value;
}

#define FAMILIES 4u

/* Distributes layers by weight: one each, then one at a time to the group that is most below its
 * share. */
static void share_layers(uint32_t layers, uint32_t family, uint32_t count, uint32_t *sizes)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i++) {
        total += weight(family, i, count);
        sizes[i] = 1;
    }
    for (uint32_t given = count; given < layers; given++) {
        uint32_t neediest = 0;
        double most = -1e9;
        for (uint32_t i = 0; i < count; i++) {
            double missing = weight(family, i, count) / total * layers - sizes[i];
            if (missing > most + 1e-9) {
                most = missing;
                neediest = i;
            }
        }
        sizes[neediest]++;
    }
}

/* The next size to try: 1 to 8, then growing steps. */
static uint32_t next_size(uint32_t size)
{
    return size < 8 ? size + 1 : size + size / 5 + 1;
}

enum tdm_status tdm_group_lists_make(uint32_t layers, struct tdm_group_lists *out,
                                     struct tdm_error *err)
{
    struct tdm_group_lists lists = {0};
    uint32_t *sizes = calloc((size_t)layers + 1, sizeof(*sizes));
    bool ok = sizes != NULL;
    for (uint32_t size = 1; ok && size < layers; size = next_size(size))
        ok = add_list(&lists, sizes, repeat_size(layers, size, sizes));
    if (ok)
        ok = add_list(&lists, sizes, repeat_size(layers, (layers + 1) / 2, sizes));
    if (ok)
        ok = add_list(&lists, sizes, repeat_size(layers, layers, sizes));
    for (uint32_t count = 2; ok && count <= MAX_FALLING && count <= layers; count++)
        for (uint32_t family = 0; ok && family < FAMILIES; family++) {
            share_layers(layers, family, count, sizes);
            ok = add_list(&lists, sizes, count);
        }
    free(sizes);
    if (!ok) {
        tdm_group_lists_free(&lists);
        return no_memory(err);
    }
    *out = lists;
    return TDM_OK;
}

enum tdm_status tdm_group_lists_fixed(uint32_t layers, const uint32_t *sizes, uint32_t count,
                                      struct tdm_group_lists *out, struct tdm_error *err)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += sizes[i];
    if (count == 0 || (count > 1 && sum != layers) || (count == 1 && sizes[0] > layers)) {
        tdm_fail(err, TDM_USAGE, "groups: the sizes add up to %llu, the model has %u layers",
                 (unsigned long long)sum, layers);
        return tdm_hint(err, "give sizes that add up to %u, or one size that repeats", layers);
    }

    struct tdm_group_lists lists = {0};
    uint32_t *repeated = calloc((size_t)layers + 1, sizeof(*repeated));
    bool ok = repeated != NULL;
    if (ok && count == 1)
        ok = add_list(&lists, repeated, repeat_size(layers, sizes[0], repeated));
    else if (ok)
        ok = add_list(&lists, sizes, count);
    free(repeated);
    if (!ok) {
        tdm_group_lists_free(&lists);
        return no_memory(err);
    }
    *out = lists;
    return TDM_OK;
}

void tdm_group_lists_free(struct tdm_group_lists *lists)
{
    for (uint32_t i = 0; i < lists->count; i++)
        free(lists->lists[i].sizes);
    free(lists->lists);
    *lists = (struct tdm_group_lists){0};
}
