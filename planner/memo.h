/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memo: what was found out about points of a search, by their keys, so that a local search that
 * comes back to a point need not estimate or simulate it again.
 *
 * It has a fixed number of places. A point may lose its place to another one and is then unknown
 * again: a memo changes how long a search takes, and never what it finds.
 */
#ifndef TDM_PLANNER_MEMO_H
#define TDM_PLANNER_MEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 128 bits of all that a point is made of: two points of a search never share them by chance. */
struct tdm_memo_key {
    uint64_t low, high;
};

/* The key of nothing, from which tdm_memo_mix() begins. */
#define TDM_MEMO_NOTHING ((struct tdm_memo_key){UINT64_C(0x9e3779b97f4a7c15), 1})

/* The key of what `key` is of, followed by `bytes` bytes. */
struct tdm_memo_key tdm_memo_mix(struct tdm_memo_key key, const void *data, size_t bytes);

struct tdm_memo;

/* For values of a size, and 2^places_log2 points. The caller owns it. NULL: there is no memory; the
 * functions below take that as a memo that knows nothing. */
struct tdm_memo *tdm_memo_new(size_t value_bytes, unsigned places_log2);
void tdm_memo_free(struct tdm_memo *memo);

/* Copies what is known of a point into *value; false: nothing is. */
bool tdm_memo_find(const struct tdm_memo *memo, struct tdm_memo_key key, void *value);
void tdm_memo_note(struct tdm_memo *memo, struct tdm_memo_key key, const void *value);

#endif
