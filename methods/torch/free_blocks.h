/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free blocks of one pool of the caching allocator, by size, then by address.
 *
 * Sizes fall into bins: up to 32 KiB each size has its own, above that 32 bins share a power of
 * two. A bin is a treap, mostly of a few blocks. Whole segments of the pool's usual size, of which
 * there may be millions, are bits of a map of the addresses instead, and have no block: only the
 * one at the lowest address is ever taken, because none has neighbours to merge with.
 */
#ifndef TDM_METHODS_TORCH_FREE_BLOCKS_H
#define TDM_METHODS_TORCH_FREE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As large as a line of the processor's cache, and aligned to it. */
struct tdm_torch_block {
    uint64_t address, size, requested;
    uint16_t priority;
    uint8_t pool;
    bool allocated : 1, mapped : 1, in_map : 1;
    bool filled : 1;    /* whole segments of 2 MiB, all of them in use, */
    uint32_t apart_mib; /* from the lowest address on so far apart; one segment: 0 */
    struct tdm_torch_block *before, *after; /* neighbours in the segment */
    /* In the treap of free blocks; `right` also in the list of spares, or the link of a block in
     * use. */
    struct tdm_torch_block *left, *right;
};

#define TDM_CACHE_LINE 64u
_Static_assert(sizeof(struct tdm_torch_block) <= TDM_CACHE_LINE, "a block is a cache line");

#define TDM_FREE_BINS 1408u
#define TDM_FREE_WORDS (TDM_FREE_BINS / 64)

struct tdm_free_page;

struct tdm_free_blocks {
    uint64_t segment_bytes;       /* the usual size of segments; 0: there are no segments */
    struct tdm_free_page **pages; /* of the map, from the highest addresses on; may be NULL */
    size_t page_capacity, lowest; /* `lowest`: the page of the lowest address in the map */
    uint64_t count;               /* segments in the map */
    struct tdm_torch_block front; /* stands for the one at the lowest address */
    uint32_t random;
    uint64_t filled[TDM_FREE_WORDS]; /* bins that are not empty */
    struct tdm_torch_block *bins[TDM_FREE_BINS];
};

/* NULL: out of memory. */
struct tdm_free_blocks *tdm_free_blocks_create(uint64_t segment_bytes);
void tdm_free_blocks_free(struct tdm_free_blocks *f);

/* The block must be multiples of 512 B in size, and at most 2^56 B. True: it is in the map from now
 * on, which has no use for the block itself. */
bool tdm_free_insert(struct tdm_free_blocks *f, struct tdm_torch_block *block);
/* Takes out a block that is not in the map. */
void tdm_free_take(struct tdm_free_blocks *f, struct tdm_torch_block *block);

/* The first block of at least `size` bytes; NULL if there is none. If it is in the map, it is
 * f->front. */
struct tdm_torch_block *tdm_free_best(struct tdm_free_blocks *f, uint64_t size);
/* The first block behind this one, which is in a bin; NULL if there is none. */
struct tdm_torch_block *tdm_free_next(const struct tdm_free_blocks *f,
                                      const struct tdm_torch_block *block);
/* Takes out whole segments of the usual size, which must be 2 MiB if there are to be several: the
 * one at the lowest address, and those right above it, at most `most`. Returns their number; 0:
 * there is none. */
uint64_t tdm_free_take_segments(struct tdm_free_blocks *f, uint64_t most, uint64_t *address);
/* Takes out all of them. Returns their number. */
uint64_t tdm_free_take_all_segments(struct tdm_free_blocks *f);

/* Prepares the map for a segment of the usual size at this address: it can then be put there, and
 * needs no memory for that. */
bool tdm_free_has_place(struct tdm_free_blocks *f, uint64_t address);
/* Puts segments of 2 MiB there, which are `apart` bytes from each other. */
void tdm_free_insert_segments(struct tdm_free_blocks *f, uint64_t address, uint64_t count,
                              uint64_t apart);

static inline bool tdm_free_before(const struct tdm_torch_block *a, uint64_t size, uint64_t address)
{
    return a->size != size ? a->size < size : a->address < address;
}

#endif
