/* SPDX-License-Identifier: Apache-2.0 */
/* Free blocks in treaps by bins of sizes, and whole segments in a map of addresses. */
#include "methods/torch/free_blocks.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- the map of whole segments ---- */

#define SLOT_BITS 21u /* segments start at multiples of 2 MiB */
#define PAGE_BITS 33u /* a page maps 8 GiB */
#define SLOTS (1u << (PAGE_BITS - SLOT_BITS))
#define TOP (UINT64_C(1) << 56) /* all segments lie below, the first ones right below */
#define MOST_PAGES 65536u

struct tdm_free_page {
    uint64_t words; /* of `bits`, that are not 0 */
    uint64_t bits[SLOTS / 64];
    struct tdm_torch_block *blocks[SLOTS]; /* set where the bit is */
};

_Static_assert(SLOTS / 64 == 64, "one bit for each word");

/* False: out of memory. */
static bool make_page(struct tdm_free_blocks *f, size_t number)
{
    if (number >= f->page_capacity) {
        size_t capacity = 2 * number + 16;
        struct tdm_free_page **pages = realloc(f->pages, capacity * sizeof(struct tdm_free_page *));
        if (pages == NULL)
            return false;
        for (size_t i = f->page_capacity; i < capacity; i++)
            pages[i] = NULL;
        f->pages = pages;
        f->page_capacity = capacity;
    }
    if (f->pages[number] != NULL)
        return true;
    struct tdm_free_page *page = malloc(sizeof(*page));
    if (page == NULL)
        return false;
    page->words = 0;
    memset(page->bits, 0, sizeof(page->bits));
    f->pages[number] = page;
    return true;
}

/* Adds the block if it is a segment to be mapped. */
static bool map_segment(struct tdm_free_blocks *f, struct tdm_torch_block *block)
{
    if (block->before != NULL || block->after != NULL || block->size != f->segment_bytes ||
        block->address >= TOP)
        return false;
    size_t number = (size_t)((TOP - 1 - block->address) >> PAGE_BITS);
    if (number >= MOST_PAGES || !make_page(f, number))
        return false;
    struct tdm_free_page *page = f->pages[number];
    unsigned slot = (unsigned)(block->address >> SLOT_BITS) % SLOTS;
    page->blocks[slot] = block;
    page->bits[slot / 64] |= UINT64_C(1) << slot % 64;
    page->words |= UINT64_C(1) << slot / 64;
    if (f->count++ == 0 || number > f->lowest)
        f->lowest = number;
    return true;
}

static unsigned lowest_slot(const struct tdm_free_page *page)
{
    unsigned word = (unsigned)__builtin_ctzll(page->words);
    return word * 64 + (unsigned)__builtin_ctzll(page->bits[word]);
}

/* The segment at the lowest address; there must be one. */
static struct tdm_torch_block *lowest_segment(const struct tdm_free_blocks *f)
{
    const struct tdm_free_page *page = f->pages[f->lowest];
    return page->blocks[lowest_slot(page)];
}

static void take_lowest(struct tdm_free_blocks *f)
{
    struct tdm_free_page *page = f->pages[f->lowest];
    unsigned slot = lowest_slot(page);
    page->bits[slot / 64] &= page->bits[slot / 64] - 1;
    if (page->bits[slot / 64] == 0)
        page->words &= page->words - 1;
    f->count--;
    while (f->count > 0 && (f->pages[f->lowest] == NULL || f->pages[f->lowest]->words == 0))
        f->lowest--;
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
    if (f == NULL)
        return;
    for (size_t i = 0; i < f->page_capacity; i++)
        free(f->pages[i]);
    free(f->pages);
    free(f);
}

void tdm_free_insert(struct tdm_free_blocks *f, struct tdm_torch_block *block)
{
    block->in_map = map_segment(f, block);
    if (block->in_map)
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
    if (block->in_map) {
        take_lowest(f);
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
    struct tdm_torch_block *lowest = lowest_segment(f);
    return best != NULL && tdm_free_before(best, lowest->size, lowest->address) ? best : lowest;
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
    struct tdm_torch_block *block = lowest_segment(f);
    take_lowest(f);
    return block;
}
