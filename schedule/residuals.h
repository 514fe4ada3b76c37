/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residual sets: what a chunk of a layer may keep or hold for its backward besides its input.
 *
 * A set is a mask of stores and a row of one table; a store is a row of another. Buffers, lowering,
 * legality, estimates and reports use these tables, and no code compares sets by their order.
 */
#ifndef TDM_SCHEDULE_RESIDUALS_H
#define TDM_SCHEDULE_RESIDUALS_H

#include "ops/content.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is stored for a chunk, one buffer each. The last one, K and V, is stored for all chunks of a
 * layer or for none, in a row (lower_kv.c). */
enum tdm_store {
    TDM_STORE_ATTENTION,
    TDM_STORE_Q,
    TDM_STORE_GATE_UP,
    TDM_STORE_NORMED,
    TDM_STORES,
    TDM_STORE_KV = TDM_STORES
};

/* Sets, from the smallest up: each has the stores of the one before, and more. */
enum tdm_set {
    TDM_SET_INPUT,
    TDM_SET_ATTENTION_OUTPUT,
    TDM_SET_QKV,
    TDM_SET_ALL,
    TDM_SET_NORMED,
    TDM_SETS
};

/* One kind of store. */
struct tdm_store_type {
    enum tdm_content content;
    const char *name; /* in names of buffers */
    /* If a forward finds the store named here, it neither uses nor makes this one: this one is only
     * for the backward. If it names itself, the forward always uses and makes it. */
    enum tdm_store needed_without;
};
extern const struct tdm_store_type tdm_store_types[TDM_STORES];

static inline const struct tdm_store_type *tdm_store_type(enum tdm_store store)
{
    return &tdm_store_types[store];
}

/* The store of a content, or TDM_STORES. */
enum tdm_store tdm_store_of(enum tdm_content content);

/* Bits of the stores of each set, by number. */
extern const unsigned tdm_set_stores[TDM_SETS];

/* Does a set have a store? Planners ask millions of times. */
static inline bool tdm_set_has(enum tdm_set set, enum tdm_store store)
{
    return (tdm_set_stores[set] >> store & 1) != 0;
}

/* Does a set have every store of another one? */
bool tdm_set_covers(enum tdm_set set, enum tdm_set other);

/* The smallest set that has a store. */
enum tdm_set tdm_set_with(enum tdm_store store);

/* The next larger or smaller set of the table; at the ends, the set itself. */
enum tdm_set tdm_set_richer(enum tdm_set set);
enum tdm_set tdm_set_poorer(enum tdm_set set);

const char *tdm_set_name(enum tdm_set set); /* in files and options: "qkv" */
bool tdm_set_parse(const char *name, enum tdm_set *set);
const char *tdm_set_short_name(enum tdm_set set); /* in tables: "q, K, V" */
/* What the set has besides attention outputs, in words; NULL: nothing. */
const char *tdm_set_beside(enum tdm_set set);

/* Names of the sets from one up, as in "input, qkv or all". Returns `text`, cut to `bytes`. */
const char *tdm_set_list(enum tdm_set from, char *text, size_t bytes);
#define TDM_SET_LIST 96u /* bytes that hold all names */

#endif
