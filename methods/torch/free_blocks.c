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
};

_Static_assert(SLOTS / 64 == 64, "one bit for each word");

static size_t page_of(uint64_t address)
{
    return (size_t)((TOP - 1 - address) >> PAGE_BITS);
}

static unsigned slot_of(uint64_t address)
{
    return (unsigned)(address >> SLOT_BITS) % SLOTS;
}

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
    if (f->pages[number] == NULL)
        f->pages[number] = calloc(1, sizeof(struct tdm_free_page));
    return f->pages[number] != NULL;
}

/* Of a page that is not empty. */
static unsigned lowest_slot(const struct tdm_free_page *page)
{
    unsigned word = (unsigned)__builtin_ctzll(page->words);
    return word * 64 + (unsigned)__builtin_ctzll(page->bits[word]);
}

/* Finds out which segment is at the lowest address; `lowest` has been too low at most. */
static void find_front(struct tdm_free_blocks *f)
{
    if (f->count == 0)
        return;
    while (f->pages[f->lowest] == NULL || f->pages[f->lowest]->words == 0)
        f->lowest--;
    f->front.address = TOP - ((uint64_t)(f->lowest + 1) << PAGE_BITS) +
                       ((uint64_t)lowest_slot(f->pages[f->lowest]) << SLOT_BITS);
    f->front.size = f->segment_bytes;
    f->front.mapped = f->front.in_map = true;
}

/* Sets the bits of `count` slots in a row, which are on the page. */
static void set_bits(struct tdm_free_page *page, unsigned slot, unsigned count)
{
    while (count > 0) {
        const unsigned at = slot % 64, now = count < 64 - at ? count : 64 - at;
        page->bits[slot / 64] |= (now == 64 ? UINT64_MAX : (UINT64_C(1) << now) - 1) << at;
        page->words |= UINT64_C(1) << slot / 64;
        slot += now;
        count -= now;
    }
}

/* Clears the lowest bit, and those right above it in its word; at most `most`. Returns their
 * number. */
static unsigned clear_bits(struct tdm_free_page *page, unsigned slot, uint64_t most)
{
    const unsigned word = slot / 64, at = slot % 64;
    const uint64_t above = ~(page->bits[word] >> at);
    unsigned count = above == 0 ? 64 : (unsigned)__builtin_ctzll(above);
    if (count > most)
        count = (unsigned)most;
    page->bits[word] &= ~((count == 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1) << at);
    if (page->bits[word] == 0)
        page->words &= ~(UINT64_C(1) << word);
    return count;
}

bool tdm_free_has_place(struct tdm_free_blocks *f, uint64_t address)
{
    return address < TOP && page_of(address) < MOST_PAGES && make_page(f, page_of(address));
}

void tdm_free_insert_segments(struct tdm_free_blocks *f, uint64_t address, uint64_t count,
                              uint64_t apart)
{
    const bool neighbours = apart == UINT64_C(1) << SLOT_BITS;
    while (count > 0) {
        const size_t number = page_of(address);
        const unsigned slot = slot_of(address), most = neighbours ? SLOTS - slot : 1;
        const unsigned now = count < most ? (unsigned)count : most;
        set_bits(f->pages[number], slot, now);
        if (f->count == 0 || number > f->lowest)
            f->lowest = number;
        f->count += now;
        count -= now;
        address += now * apart;
    }
    find_front(f);
}

uint64_t tdm_free_take_segments(struct tdm_free_blocks *f, uint64_t most, uint64_t *address)
{
    if (f->count == 0 || most == 0)
        return 0;
    *address = f->front.address;
    const unsigned count = clear_bits(f->pages[f->lowest], slot_of(*address), most);
    f->count -= count;
    find_front(f);
    return count;
}

uint64_t tdm_free_take_all_segments(struct tdm_free_blocks *f)
{
    const uint64_t count = f->count;
    for (size_t i = 0; i < f->page_capacity && count > 0; i++)
        if (f->pages[i] != NULL)
            *f->pages[i] = (struct tdm_free_page){.words = 0};
    f->count = 0;
    return count;
}

/* Adds the block if it is a segment to be mapped. */
static bool map_segment(struct tdm_free_blocks *f, const struct tdm_torch_block *block)
{
    if (block->before != NULL || block->after != NULL || block->size != f->segment_bytes ||
        !tdm_free_has_place(f, block->address))
        return false;
    tdm_free_insert_segments(f, block->address, 1, f->segment_bytes);
    return true;
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

bool tdm_free_insert(struct tdm_free_blocks *f, struct tdm_torch_block *block)
{
    if (map_segment(f, block))
        return true;
    unsigned bin = bin_of(block->size);
    struct tdm_torch_block **hole = &f->bins[bin];
    f->random = f->random * 1664525u + 1013904223u;
    block->priority = (uint16_t)(f->random >> 16);
    while (*hole != NULL && (*hole)->priority >= block->priority)
        hole =
            tdm_free_before(*hole, block->size, block->address) ? &(*hole)->right : &(*hole)->left;
    cut(*hole, block, &block->left, &block->right);
    *hole = block;
    f->filled[bin / 64] |= UINT64_C(1) << bin % 64;
    return false;
}

void tdm_free_take(struct tdm_free_blocks *f, struct tdm_torch_block *block)
{
    unsigned bin = bin_of(block->size);
    struct tdm_torch_block **hole = &f->bins[bin];
    while (*hole != block)
        hole =
            tdm_free_before(*hole, block->size, block->address) ? &(*hole)->right : &(*hole)->left;
    *hole = join(block->left, block->right);
    if (f->bins[bin] == NULL)
        f->filled[bin / 64] &= ~(UINT64_C(1) << bin % 64);
}

struct tdm_torch_block *tdm_free_best(struct tdm_free_blocks *f, uint64_t size)
{
    struct tdm_torch_block *best = in_bins(f, size, 0);
    if (f->count == 0 || size > f->segment_bytes)
        return best;
    return best != NULL && tdm_free_before(best, f->front.size, f->front.address) ? best
                                                                                  : &f->front;
}

struct tdm_torch_block *tdm_free_next(const struct tdm_free_blocks *f,
                                      const struct tdm_torch_block *block)
{
    return in_bins(f, block->size, block->address + 1);
}
