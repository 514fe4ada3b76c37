/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing: buffers are placed one by one, each at the lowest offset that is free of the buffers it
 * conflicts with. The result depends on the order of placing. Several orders are tried; then the
 * buffer that determines the size of the arena moves to the front, repeatedly. The few inputs that
 * this does not pack as tightly as possible are left to a search (pack_search.h).
 */
#include "schedule/pack.h"

#include "base/size.h"
#include "schedule/pack_search.h"

#include <stdlib.h>
#include <string.h>

#define KEYS 3u
#define FEW_MOVES 40u /* placings tried after those by key, before cliques are found */
#define MOVES 400u    /* placings in all after those by key, if cliques leave something to gain */

/* Larger sums of bytes are not searched: up to this, no sum of two overflows. */
#define SEARCHED_BYTES ((uint64_t)1 << 62)

struct keyed {
    uint64_t key, bytes;
    uint32_t buffer;
};

struct packer {
    const struct tdm_conflicts *conflicts;
    const uint64_t *bytes; /* aligned */
    uint64_t align;
    uint32_t count;      /* of buffers to place */
    struct keyed *keyed; /* [count] scratch */
    uint32_t *order;     /* [count] order of placing */
    uint32_t *placed;    /* [count] placed buffers, sorted by offset */
    uint64_t *offsets;   /* [conflicts->count] of the current placing */
    uint64_t *best;      /* [conflicts->count] of the best placing */
};

/* Lowest free offset for a buffer among those placed. */
static uint64_t lowest_free(const struct packer *p, uint32_t buffer, uint32_t placed)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < placed; i++) {
        uint32_t other = p->placed[i];
        if (!tdm_conflicts_test(p->conflicts, buffer, other))
            continue;
        if (p->offsets[other] >= tdm_size_add(at, p->bytes[buffer]))
            break;
        uint64_t end = tdm_size_add(p->offsets[other], p->bytes[other]);
        if (end > at)
            at = end;
    }
    return at;
}

/* Places all in p->order. Returns the arena's bytes. *highest: index of the first that ends
 * there. */
static uint64_t place_all(struct packer *p, uint32_t *highest)
{
    uint64_t arena = 0;
    for (uint32_t n = 0; n < p->count; n++) {
        uint32_t buffer = p->order[n];
        uint64_t at = lowest_free(p, buffer, n);
        p->offsets[buffer] = at;
        uint32_t i = n;
        for (; i > 0 && p->offsets[p->placed[i - 1]] > at; i--)
            p->placed[i] = p->placed[i - 1];
        p->placed[i] = buffer;
        if (tdm_size_add(at, p->bytes[buffer]) > arena) {
            arena = tdm_size_add(at, p->bytes[buffer]);
            *highest = n;
        }
    }
    return arena;
}

/* Sorting keys by rule: 0 bytes, 1 bytes with all that it conflicts with, 2 number of conflicts. */
static uint64_t key_of(const struct packer *p, uint32_t buffer, int rule)
{
    uint64_t key = p->bytes[buffer];
    if (rule == 0)
        return key;
    uint64_t crowd = 0, degree = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (tdm_conflicts_test(p->conflicts, buffer, p->order[i])) {
            crowd = tdm_size_add(crowd, p->bytes[p->order[i]]);
            degree++;
        }
    return rule == 1 ? tdm_size_add(crowd, key) : degree;
}

static int by_falling_key(const void *a, const void *b)
{
    const struct keyed *left = a, *right = b;
    if (left->key != right->key)
        return left->key < right->key ? 1 : -1;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? 1 : -1;
    return left->buffer < right->buffer ? -1 : left->buffer > right->buffer;
}

static void sort_order(struct packer *p, int rule)
{
    struct keyed *keyed = p->keyed;
    for (uint32_t i = 0; i < p->count; i++)
        keyed[i] = (struct keyed){key_of(p, p->order[i], rule), p->bytes[p->order[i]], p->order[i]};
    qsort(keyed, p->count, sizeof(*keyed), by_falling_key);
    for (uint32_t i = 0; i < p->count; i++)
        p->order[i] = keyed[i].buffer;
}

static void move_to_front(uint32_t *order, uint32_t from)
{
    uint32_t buffer = order[from];
    memmove(order + 1, order, from * sizeof(*order));
    order[0] = buffer;
}

/* Tries greedy packings [first, last), as long as *least, the best arena so far, is above the goal.
 * Continues from p->order. */
static void pack_greedily(struct packer *p, uint64_t goal, unsigned first, unsigned last,
                          uint64_t *least)
{
    for (unsigned attempt = first; *least > goal && attempt < last; attempt++) {
        uint32_t highest = 0;
        if (attempt <= KEYS)
            sort_order(p, (int)(attempt % KEYS));
        uint64_t arena = place_all(p, &highest);
        if (arena < *least) {
            *least = arena;
            memcpy(p->best, p->offsets, p->conflicts->count * sizeof(*p->best));
        }
        if (attempt >= KEYS)
            move_to_front(p->order, highest);
    }
}

/* Searches for a packing of the goal with half of the effort. If none is found, tries half way
 * between the capacity that failed and the best arena, and so on. *least: the best arena so far. It
 * stays so where no arena can be below `below`. */
static enum tdm_status search(struct packer *p, uint64_t goal, uint64_t below, uint64_t effort,
                              uint64_t *least, struct tdm_error *err)
{
    struct tdm_pack_search *search = NULL;
    enum tdm_status status = tdm_pack_search_new(p->conflicts, p->bytes, &effort, &search, err);
    if (status != TDM_OK)
        return status;
    if (goal < tdm_pack_search_bound(search))
        goal = tdm_pack_search_bound(search);
    if (goal >= below) {
        tdm_pack_search_free(search);
        return TDM_OK;
    }
    pack_greedily(p, goal, KEYS + FEW_MOVES, KEYS + MOVES, least);
    uint64_t capacity = goal;
    while (status == TDM_OK && *least > goal && effort > 0 && capacity < *least) {
        enum tdm_pack_answer answer;
        uint64_t share = effort / 2, left = share;
        status = tdm_pack_search_run(search, capacity, &left, p->best, &answer, err);
        effort -= share - left + 1;
        if (status == TDM_OK && answer == TDM_PACK_FOUND) {
            *least = 0;
            for (uint32_t i = 0; i < p->count; i++) {
                uint64_t end = p->best[p->order[i]] + p->bytes[p->order[i]];
                *least = end > *least ? end : *least;
            }
        } else {
            goal = capacity + p->align; /* nothing below is tried again */
        }
        capacity = goal + (*least - goal) / 2;
    }
    tdm_pack_search_free(search);
    return status;
}

/* tdm_pack() for a goal only. */
static enum tdm_status pack_to(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                               uint64_t align, uint64_t goal_bytes, uint64_t below_bytes,
                               uint64_t effort, uint64_t *offsets, uint64_t *arena_bytes,
                               struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    uint32_t all = conflicts->count;
    uint64_t *numbers = calloc((size_t)all * 3 + 1, sizeof(*numbers));
    uint32_t *lists = calloc((size_t)all * 2 + 1, sizeof(*lists));
    struct keyed *keyed = calloc((size_t)all + 1, sizeof(*keyed));
    if (numbers == NULL || lists == NULL || keyed == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for packing %u buffers", all);
        goto free_lists;
    }

    uint64_t *aligned = numbers, sum = 0, arena = 0;
    struct packer p = {.conflicts = conflicts,
                       .bytes = aligned,
                       .align = align,
                       .keyed = keyed,
                       .order = lists,
                       .placed = lists + all,
                       .offsets = numbers + all,
                       .best = numbers + 2 * (size_t)all};
    for (uint32_t i = 0; i < all; i++) {
        aligned[i] = tdm_size_align(bytes[i], align);
        sum = tdm_size_add(sum, aligned[i]);
        if (bytes[i] > 0)
            p.order[p.count++] = i;
    }
    if (p.count > 0) {
        arena = TDM_SIZE_MAX;
        pack_greedily(&p, goal_bytes, 0, KEYS + FEW_MOVES, &arena);
    }
    if (arena > goal_bytes && effort > 0 && p.count <= TDM_PACK_SEARCH_MOST &&
        sum <= SEARCHED_BYTES)
        status = search(&p, goal_bytes, below_bytes, effort, &arena, err);
    if (status == TDM_OK) {
        for (uint32_t i = 0; i < p.count; i++)
            offsets[p.order[i]] = p.best[p.order[i]];
        *arena_bytes = arena;
    }

free_lists:
    free(numbers);
    free(lists);
    free(keyed);
    return status;
}

enum tdm_status tdm_pack(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                         uint64_t align, uint64_t goal_bytes, uint64_t capacity_bytes,
                         uint64_t effort, uint64_t *offsets, uint64_t *arena_bytes,
                         struct tdm_error *err)
{
    return tdm_pack_below(conflicts, bytes, align, goal_bytes, capacity_bytes, TDM_SIZE_MAX, effort,
                          offsets, arena_bytes, err);
}

enum tdm_status tdm_pack_below(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                               uint64_t align, uint64_t goal_bytes, uint64_t capacity_bytes,
                               uint64_t below_bytes, uint64_t effort, uint64_t *offsets,
                               uint64_t *arena_bytes, struct tdm_error *err)
{
    uint64_t arena, arena_within = 0;
    enum tdm_status status =
        pack_to(conflicts, bytes, align, goal_bytes, below_bytes, effort, offsets, &arena, err);
    if (status != TDM_OK)
        return status;
    if (arena <= capacity_bytes || capacity_bytes <= goal_bytes || effort == 0) {
        *arena_bytes = arena;
        return TDM_OK;
    }
    /* The arena is above the capacity: pack again with the capacity as the goal. */
    uint64_t *within = calloc((size_t)conflicts->count + 1, sizeof(*within));
    if (within == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for packing %u buffers",
                        conflicts->count);
    status = pack_to(conflicts, bytes, align, capacity_bytes, below_bytes, effort, within,
                     &arena_within, err);
    bool fits = status == TDM_OK && arena_within <= capacity_bytes;
    for (uint32_t i = 0; i < conflicts->count && fits; i++)
        if (bytes[i] > 0)
            offsets[i] = within[i];
    if (status == TDM_OK)
        *arena_bytes = fits ? arena_within : arena;
    free(within);
    return status;
}
