/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memo: results for points of a search, by key, so that a local search that returns to a point
 * need not estimate or simulate it again.
 *
 * Its capacity is fixed. A new point may evict another one, which is then unknown again. A memo
 * changes how long a search takes, never what it finds.
 */
#ifndef TDM_PLANNER_MEMO_H
#define TDM_PLANNER_MEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A 128-bit hash of all that identifies a point: points of a search do not collide by chance. */
struct tdm_memo_key {
    uint64_t low, high;
};

/* The key of empty data, the start value for tdm_memo_mix(). */
#define TDM_MEMO_NOTHING ((struct tdm_memo_key){UINT64_C(0x9e3779b97f4a7c15), 1})

/* The key of the data of `key` followed by a word: a product carries bits upward, the shift brings
 * them down again. */
static inline struct tdm_memo_key tdm_memo_mix_word(struct tdm_memo_key key, uint64_t word)
{
    key.low = (key.low ^ word) * UINT64_C(0x9fb21c651e98df25);
    key.low ^= key.low >> 29;
    key.high = (key.high + word) * UINT64_C(0xd6e8feb86659fd93);
    key.high ^= key.high >> 32;
    return key;
}

/* The same of two numbers. */
static inline struct tdm_memo_key tdm_memo_mix_pair(struct tdm_memo_key key, uint32_t a, uint32_t b)
{
    return tdm_memo_mix_word(key, (uint64_t)a << 32 | b);
}

struct tdm_memo;

/* A memo for values of `value_bytes` and 2^places_log2 points. The caller owns it. NULL: out of
 * memory; the functions below treat NULL as an empty memo. */
struct tdm_memo *tdm_memo_new(size_t value_bytes, unsigned places_log2);
void tdm_memo_free(struct tdm_memo *memo);

/* Copies the value of a point into *value. False: unknown. */
bool tdm_memo_find(const struct tdm_memo *memo, struct tdm_memo_key key, void *value);
void tdm_memo_note(struct tdm_memo *memo, struct tdm_memo_key key, const void *value);

#endif
