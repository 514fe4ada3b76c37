/* SPDX-License-Identifier: Apache-2.0 */
/* A direct-mapped table: each key has one slot, and a later key replaces an earlier one. */
#include "planner/memo.h"

#include <stdlib.h>
#include <string.h>

struct tdm_memo {
    size_t value_bytes, place_bytes;
    uint64_t mask;
    unsigned char *places; /* each a key and a value; an all-zero key: an empty slot */
};

struct tdm_memo *tdm_memo_new(size_t value_bytes, unsigned places_log2)
{
    struct tdm_memo *memo = malloc(sizeof(*memo));
    if (memo == NULL)
        return NULL;
    size_t place_bytes = sizeof(struct tdm_memo_key) + value_bytes;
    *memo = (struct tdm_memo){.value_bytes = value_bytes,
                              .place_bytes = place_bytes,
                              .mask = (UINT64_C(1) << places_log2) - 1,
                              .places = calloc((size_t)1 << places_log2, place_bytes)};
    if (memo->places == NULL) {
        free(memo);
        return NULL;
    }
    return memo;
}

void tdm_memo_free(struct tdm_memo *memo)
{
    if (memo == NULL)
        return;
    free(memo->places);
    free(memo);
}

static unsigned char *place_of(const struct tdm_memo *memo, struct tdm_memo_key key)
{
    return memo->places + (key.low & memo->mask) * memo->place_bytes;
}

bool tdm_memo_find(const struct tdm_memo *memo, struct tdm_memo_key key, void *value)
{
    if (memo == NULL)
        return false;
    const unsigned char *place = place_of(memo, key);
    if (memcmp(place, &key, sizeof(key)) != 0)
        return false;
    memcpy(value, place + sizeof(key), memo->value_bytes);
    return true;
}

void tdm_memo_note(struct tdm_memo *memo, struct tdm_memo_key key, const void *value)
{
    if (memo == NULL)
        return;
    unsigned char *place = place_of(memo, key);
    memcpy(place, &key, sizeof(key));
    memcpy(place + sizeof(key), value, memo->value_bytes);
}
