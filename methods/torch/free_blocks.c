/* SPDX-License-Identifier: Apache-2.0 */
/* Free blocks in treaps by bins of sizes, and whole segments in a heap. */
#include "methods/torch/free_blocks.h"

#include <stdlib.h>

#define UNIT_BITS 9u   /* block sizes are multiples of 512 B */
#define EXACT_BITS 6u  /* sizes below 2^6 units have bins of their own */
#define SHARED_BITS 5u /* above, a power of two has 2^5 bins */
#define MOST_POWER 47u

_Static_assert((1u << EXACT_BITS) + ((MOST_POWER + 1 - EXACT_BITS) << SHARED_BITS) == TDM_FREE_BINS,
               "bins of all sizes");

static unsigned bin_of(uint64_t size)
{
    uint64_t units = size >> UNIT_BITS;
    if (units >> EXACT_BITS == 0)
        return (unsigned)units;
    unsigned power = 63u - (unsigned)__builtin_clzll(units);
    if (power > MOST_POWER) /* a request that no block can meet */
        return TDM_FREE_BINS - 1;
    unsigned part = (unsigned)(units >> (power - SHARED_BITS)) & ((1u << SHARED_BITS) - 1);
    return (1u << EXACT_BITS) + ((power - EXACT_BITS) << SHARED_BITS) + part;
}

/* The first bin from `bin` on that is not empty; TDM_FREE_BINS: there is none. */
static unsigned filled_from(const struct tdm_free_blocks *f, unsigned bin)
{
    unsigned word = bin / 64;
    if (word >= TDM_FREE_WORDS)
        return TDM_FREE_BINS;
    uint64_t bits = f->filled[word] & (UINT64_MAX << bin % 64);
    while (bits == 0)
        if (++word == TDM_FREE_WORDS)
            return TDM_FREE_BINS;
        else
            bits = f->filled[word];
    return word * 64 + (unsigned)__builtin_ctzll(bits);
}

/* ---- a treap ---- */

/* Splits a treap into the blocks smaller than `at` and the rest. */
static void cut(struct tdm_torch_block *tree, const struct tdm_torch_block *at,
                struct tdm_torch_block **low, struct tdm_torch_block **high)
{
    while (tree != NULL) {
        if (tdm_free_before(tree, at->size, at->address)) {
            *low = tree;
            low = &tree->right;
            tree = tree->right;
        } else {
            *high = tree;
            high = &tree->left;
            tree = tree->left;
        }
    }
    *low = NULL;
    *high = NULL;
}

static struct tdm_torch_block *join(struct tdm_torch_block *low, struct tdm_torch_block *high)
{
    struct tdm_torch_block *root = NULL, **hole = &root;
    while (low != NULL && high != NULL) {
        if (low->priority > high->priority) {
            *hole = low;
            hole = &low->right;
            low = low->right;
        } else {
            *hole = high;
            hole = &high->left;
            high = high->left;
        }
    }
    *hole = low != NULL ? low : high;
    return root;
}

/* The first block of a treap that does not come before this size and address, or NULL. */
static struct tdm_torch_block *first_from(struct tdm_torch_block *tree, uint64_t size,
                                          uint64_t address)
{
    struct tdm_torch_block *first = NULL;
    while (tree != NULL) {
        if (tdm_free_before(tree, size, address)) {
            tree = tree->right;
        } else {
            first = tree;
            tree = tree->left;
        }
    }
    return first;
}

/* The first block from this size and address on in all bins, or NULL. */
static struct tdm_torch_block *in_bins(const struct tdm_free_blocks *f, uint64_t size,
                                       uint64_t address)
{
    unsigned bin = bin_of(size);
    struct tdm_torch_block *first = first_from(f->bins[bin], size, address);
    if (first != NULL)
        return first;
    bin = filled_from(f, bin + 1);
    return bin == TDM_FREE_BINS ? NULL : first_from(f->bins[bin], 0, 0);
}

/* ---- the heap of whole segments ---- */

#define CHILDREN 4u

static bool is_segment(const struct tdm_free_blocks *f, const struct tdm_torch_block *block)
{
    return block->before == NULL && block->after == NULL && block->size == f->segment_bytes;
}

/* False: out of memory. */
static bool push(struct tdm_free_blocks *f, struct tdm_torch_block *block)
{
    if (f->count == f->room) {
        size_t room = f->room == 0 ? 256 : 2 * f->room;
        struct tdm_free_entry *heap = realloc(f->heap, room * sizeof(*heap));
        if (heap == NULL)
            return false;
        f->heap = heap;
        f->room = room;
    }
    size_t at = f->count++;
    for (size_t above; at > 0 && f->heap[above = (at - 1) / CHILDREN].address > block->address;
         at = above)
        f->heap[at] = f->heap[above];
    f->heap[at] = (struct tdm_free_entry){.address = block->address, .block = block};
    return true;
}

static struct tdm_torch_block *pop(struct tdm_free_blocks *f)
{
    struct tdm_torch_block *first = f->heap[0].block;
    const struct tdm_free_entry last = f->heap[--f->count];
    size_t at = 0;
    for (size_t child; (child = CHILDREN * at + 1) < f->count;) {
        size_t end = child + CHILDREN < f->count ? child + CHILDREN : f->count, lowest = child;
        while (++child < end)
            if (f->heap[child].address < f->heap[lowest].address)
                lowest = child;
        if (f->heap[lowest].address >= last.address)
            break;
        f->heap[at] = f->heap[lowest];
        at = lowest;
    }
    f->heap[at] = last;
    first->heaped = false;
    return first;
}

/* ---- the interface ---- */

struct tdm_free_blocks *tdm_free_blocks_create(uint64_t segment_bytes)
{
    struct tdm_free_blocks *f = calloc(1, sizeof(*f));
    if (f != NULL)
        f->segment_bytes = segment_bytes;
    return f;
}

void tdm_free_blocks_free(struct tdm_free_blocks *f)
{
    if (f != NULL)
        free(f->heap);
    free(f);
}

void tdm_free_insert(struct tdm_free_blocks *f, struct tdm_torch_block *block)
{
    block->heaped = is_segment(f, block) && push(f, block);
    if (block->heaped)
        return;
    unsigned bin = bin_of(block->size);
    struct tdm_torch_block **hole = &f->bins[bin];
    f->random = f->random * 1664525u + 1013904223u;
    block->priority = f->random;
    while (*hole != NULL && (*hole)->priority >= block->priority)
        hole =
            tdm_free_before(*hole, block->size, block->address) ? &(*hole)->right : &(*hole)->left;
    cut(*hole, block, &block->left, &block->right);
    *hole = block;
    f->filled[bin / 64] |= UINT64_C(1) << bin % 64;
}

void tdm_free_take(struct tdm_free_blocks *f, struct tdm_torch_block *block)
{
    if (block->heaped) {
        pop(f);
        return;
    }
    unsigned bin = bin_of(block->size);
    struct tdm_torch_block **hole = &f->bins[bin];
    while (*hole != block)
        hole =
            tdm_free_before(*hole, block->size, block->address) ? &(*hole)->right : &(*hole)->left;
    *hole = join(block->left, block->right);
    if (f->bins[bin] == NULL)
        f->filled[bin / 64] &= ~(UINT64_C(1) << bin % 64);
}

struct tdm_torch_block *tdm_free_best(const struct tdm_free_blocks *f, uint64_t size)
{
    struct tdm_torch_block *best = in_bins(f, size, 0);
    if (f->count == 0 || size > f->segment_bytes)
        return best;
    return best != NULL && tdm_free_before(best, f->segment_bytes, f->heap[0].address)
               ? best
               : f->heap[0].block;
}

struct tdm_torch_block *tdm_free_next(const struct tdm_free_blocks *f,
                                      const struct tdm_torch_block *block)
{
    return in_bins(f, block->size, block->address + 1);
}

struct tdm_torch_block *tdm_free_take_segment(struct tdm_free_blocks *f)
{
    if (f->count == 0)
        return NULL;
    struct tdm_torch_block *block = f->heap[--f->count].block;
    block->heaped = false;
    return block;
}
