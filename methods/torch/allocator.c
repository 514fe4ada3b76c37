/* SPDX-License-Identifier: Apache-2.0 */
/* The caching allocator. Blocks are in address order within their segment; free blocks are also
 * ordered by size (free_blocks.h). The free block of a pool that changed last is kept out of that
 * order, because consecutive allocations or frees mostly cut or grow the same block. */
#include "methods/torch/allocator.h"

#include "base/size.h"
#include "methods/torch/free_blocks.h"

#include <stdlib.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

#define ROUND 512u              /* all block sizes are multiples */
#define SMALL_MOST MIB          /* the largest request from a small segment */
#define SMALL_SEGMENT (2 * MIB) /* also a page of an expandable small segment */
#define LARGE_SEGMENT (20 * MIB)
#define OWN_SEGMENT (10 * MIB) /* from here on a request gets a segment of its own */
#define OWN_ROUND (2 * MIB)
#define STEP (32 * MIB)               /* address steps of cudaMalloc */
#define RANGE (2 * TDM_TORCH_ENDLESS) /* address range of an expandable segment */

/* Each stream has a small and a large pool. A block freed in one pool is not used for another. */
enum { SMALL, LARGE, KINDS, POOLS = KINDS * TDM_TORCH_STREAMS };

#define SLAB_BLOCKS 1024u

struct slab {
    _Alignas(TDM_CACHE_LINE) struct tdm_torch_block blocks[SLAB_BLOCKS];
    struct slab *next;
};

_Static_assert(POOLS <= UINT8_MAX, "a block knows its pool by a byte");

#define GAPS 2048u

struct gap {
    uint64_t address, bytes;
};

struct tdm_torch_allocator {
    uint64_t capacity, limit;
    bool expandable;
    struct tdm_free_blocks *free_blocks[POOLS]; /* NULL: the pool has had no segment */
    struct tdm_torch_block *last[POOLS]; /* the free block kept out of free_blocks, or NULL */
    uint64_t none_from[POOLS],
        none_below[POOLS];                /* no block of free_blocks has a size in this interval */
    struct tdm_torch_block *range[POOLS]; /* first block of each expandable segment */
    struct tdm_torch_block *unmapped[POOLS]; /* the first unmapped block of each */
    struct tdm_torch_bytes now, peak;
    uint64_t next_address, retries;
    struct gap gaps[GAPS];         /* in the order of creation, at falling addresses */
    uint32_t gap_count, gaps_made; /* there are `gap_count`; those at the end are not empty */
    uint64_t no_gap_from;          /* every gap is smaller than this; 0: not known */
    struct slab *slabs;
    struct tdm_torch_block *spares;
    uint32_t fresh;                  /* blocks of the latest slab that were never taken */
    struct tdm_torch_block *waiting; /* freed blocks that another stream still uses */
    struct tdm_torch_round *watch;   /* where events are noted; NULL: nowhere */
};

/* The size to which a block of an expandable segment can grow. */
static uint64_t grown_size(const struct tdm_torch_block *block)
{
    const struct tdm_torch_block *after = block->after;
    return block->size + (after != NULL && !after->mapped ? after->size : 0);
}

/* Makes sure that new_block() will return one. False: out of memory. */
static bool has_block(struct tdm_torch_allocator *a)
{
    if (a->spares != NULL || a->fresh > 0)
        return true;
    struct slab *slab = aligned_alloc(TDM_CACHE_LINE, sizeof(*slab));
    if (slab == NULL)
        return false;
    slab->next = a->slabs;
    a->slabs = slab;
    a->fresh = SLAB_BLOCKS;
    return true;
}

static struct tdm_torch_block *new_block(struct tdm_torch_allocator *a)
{
    if (!has_block(a))
        return NULL;
    struct tdm_torch_block *block = a->spares;
    if (block != NULL)
        a->spares = block->right;
    else
        block = &a->slabs->blocks[SLAB_BLOCKS - a->fresh--];
    *block = (struct tdm_torch_block){.mapped = true};
    return block;
}

static void spare(struct tdm_torch_allocator *a, struct tdm_torch_block *block)
{
    block->right = a->spares;
    a->spares = block;
}

/* ---- the free block that changed last ---- */

/* Notes that there is another free block of this size. What is known about sizes above or below it
 * stays valid; the more useful of the two is kept. */
static void note_free(struct tdm_torch_allocator *a, uint32_t pool, uint64_t size,
                      uint64_t interest)
{
    if (size < a->none_from[pool] || size >= a->none_below[pool])
        return;
    if (interest > size)
        a->none_from[pool] = size + 1;
    else
        a->none_below[pool] = size;
}

/* Puts a block to the others. */
static void put(struct tdm_torch_allocator *a, struct tdm_torch_block *block, uint64_t interest)
{
    note_free(a, block->pool, block->size, interest);
    if (tdm_free_insert(a->free_blocks[block->pool], block))
        spare(a, block);
}

/* Puts the block that was kept out to the others. */
static void put_back(struct tdm_torch_allocator *a, uint32_t pool, uint64_t interest)
{
    struct tdm_torch_block *block = a->last[pool];
    a->last[pool] = NULL;
    if (block != NULL)
        put(a, block, interest);
}

/* Is a block a whole segment of the usual size? It cannot grow. */
static bool is_segment(const struct tdm_torch_allocator *a, const struct tdm_torch_block *block)
{
    return block->before == NULL && block->after == NULL &&
           block->size == a->free_blocks[block->pool]->segment_bytes;
}

/* Keeps a free block apart from the others. */
static void keep_out(struct tdm_torch_allocator *a, struct tdm_torch_block *block)
{
    if (is_segment(a, block)) {
        put(a, block, 0);
        return;
    }
    put_back(a, block->pool, block->size);
    a->last[block->pool] = block;
}

static bool can_grow(const struct tdm_torch_block *block)
{
    return grown_size(block) > block->size;
}

/* Is it known without a search that this block is the best fit? */
static bool is_last_best(const struct tdm_torch_allocator *a, uint32_t pool, uint64_t size)
{
    const struct tdm_torch_block *last = a->last[pool];
    return last != NULL && size <= last->size && size >= a->none_from[pool] &&
           last->size < a->none_below[pool];
}

/* Takes a block out of the free blocks. */
static void take_free(struct tdm_torch_allocator *a, struct tdm_torch_block *block)
{
    if (a->last[block->pool] == block)
        a->last[block->pool] = NULL;
    else
        tdm_free_take(a->free_blocks[block->pool], block);
}

/* Takes what find_free() found in a pool, which may be a segment of the map. NULL: out of memory.
 */
static struct tdm_torch_block *take_found(struct tdm_torch_allocator *a, uint32_t pool,
                                          struct tdm_torch_block *found)
{
    if (!found->in_map) {
        take_free(a, found);
        return found;
    }
    struct tdm_torch_block *block = new_block(a);
    if (block == NULL)
        return NULL;
    block->pool = (uint8_t)pool;
    block->size = found->size;
    tdm_free_take_segments(a->free_blocks[pool], 1, &block->address);
    return block;
}

/* Finds the free block to use. A block that can grow counts with the size it can grow to, so that
 * the end of an expandable segment is used last. */
static struct tdm_torch_block *find_free(struct tdm_torch_allocator *a, uint32_t pool,
                                         uint64_t size)
{
    struct tdm_free_blocks *others = a->free_blocks[pool];
    struct tdm_torch_block *last = a->last[pool], *block;
    if (is_last_best(a, pool, size) && !can_grow(last))
        return last;
    if (a->expandable) { /* it may be preferred to the best, and the other way round */
        put_back(a, pool, size);
        last = NULL;
    }
    block = others == NULL ? NULL : tdm_free_best(others, size);
    a->none_from[pool] = size;
    a->none_below[pool] = block == NULL ? UINT64_MAX : block->size;
    if (last != NULL && size <= last->size &&
        (block == NULL || tdm_free_before(last, block->size, block->address)))
        return last;
    /* One that cannot grow is no larger than those behind it, however much these can. */
    for (struct tdm_torch_block *next; block != NULL && can_grow(block); block = next) {
        next = tdm_free_next(others, block);
        if (next == NULL || grown_size(next) >= grown_size(block))
            break;
    }
    return block;
}

/* ---- blocks ---- */

/* Splits a block that is not among the free ones after `size` bytes. Returns the rest, which is not
 * free yet.
 */
static struct tdm_torch_block *split(struct tdm_torch_allocator *a, struct tdm_torch_block *block,
                                     uint64_t size)
{
    struct tdm_torch_block *rest = new_block(a);
    if (rest == NULL)
        return NULL;
    rest->pool = block->pool;
    rest->mapped = block->mapped;
    rest->address = block->address + size;
    rest->size = block->size - size;
    rest->before = block;
    rest->after = block->after;
    if (rest->after != NULL)
        rest->after->before = rest;
    block->after = rest;
    block->size = size;
    return rest;
}

static bool is_free(const struct tdm_torch_block *block)
{
    return block != NULL && !block->allocated && block->mapped;
}

/* Merges a block that is not among the free ones with the block behind it. */
static void swallow_next(struct tdm_torch_allocator *a, struct tdm_torch_block *block)
{
    struct tdm_torch_block *next = block->after;
    block->size += next->size;
    block->after = next->after;
    if (block->after != NULL)
        block->after->before = block;
    spare(a, next);
}

/* Frees a block and merges it with free neighbours. Returns the free block; NULL: it was whole
 * segments. */
static struct tdm_torch_block *make_free(struct tdm_torch_allocator *a,
                                         struct tdm_torch_block *block)
{
    block->allocated = false;
    block->requested = 0;
    if (block->filled) {
        note_free(a, block->pool, SMALL_SEGMENT, 0);
        tdm_free_insert_segments(a->free_blocks[block->pool], block->address,
                                 block->size / SMALL_SEGMENT, block->apart_mib * MIB);
        spare(a, block);
        return NULL;
    }
    if (is_free(block->after)) {
        take_free(a, block->after);
        swallow_next(a, block);
    }
    if (is_free(block->before)) {
        block = block->before;
        take_free(a, block);
        swallow_next(a, block);
    }
    keep_out(a, block);
    return block;
}

/* ---- segments ---- */

static uint64_t page_bytes(uint32_t pool)
{
    return pool % KINDS == SMALL ? SMALL_SEGMENT : LARGE_SEGMENT;
}

static uint64_t segment_bytes(uint64_t size)
{
    if (size <= SMALL_MOST)
        return SMALL_SEGMENT;
    return size < OWN_SEGMENT ? LARGE_SEGMENT : tdm_size_align(size, OWN_ROUND);
}

static bool take_from_device(struct tdm_torch_allocator *a, uint64_t bytes)
{
    uint64_t reserved = tdm_size_add(a->now.reserved, bytes);
    if (reserved > a->limit)
        return false;
    a->now.reserved = reserved;
    if (reserved > a->peak.reserved)
        a->peak.reserved = reserved;
    return true;
}

/* The lowest gap of at least `bytes`, or NULL. Gaps only shrink, so a size for which all were too
 * small fits only in a new gap. */
static struct gap *lowest_gap(struct tdm_torch_allocator *a, uint64_t bytes)
{
    if (a->no_gap_from > 0 && bytes >= a->no_gap_from)
        return NULL;
    for (uint32_t i = a->gap_count; i-- > 0;)
        if (a->gaps[i].bytes >= bytes)
            return &a->gaps[i];
    a->no_gap_from = bytes;
    return NULL;
}

/* Chooses the address of a segment, which matters because the lowest address is used among equal
 * blocks. As observed on H100 and H200, cudaMalloc goes downward in steps of 32 MiB, and places a
 * smaller segment in the lowest gap that is large enough. */
static uint64_t place(struct tdm_torch_allocator *a, uint64_t bytes)
{
    struct gap *lowest = bytes < STEP ? lowest_gap(a, bytes) : NULL;
    if (lowest != NULL) {
        uint64_t address = lowest->address;
        lowest->address += bytes;
        lowest->bytes -= bytes;
        while (a->gap_count > 0 && a->gaps[a->gap_count - 1].bytes == 0)
            a->gap_count--;
        return address;
    }
    uint64_t taken = tdm_size_align(bytes, STEP);
    a->next_address -= taken;
    if (taken > bytes && a->gaps_made < GAPS) {
        a->gaps_made++;
        a->gaps[a->gap_count++] =
            (struct gap){.address = a->next_address + bytes, .bytes = taken - bytes};
        if (taken - bytes >= a->no_gap_from)
            a->no_gap_from = 0;
    }
    return a->next_address;
}

/* Makes a new segment of one free block, which is not among the free ones yet. */
static enum tdm_status add_segment(struct tdm_torch_allocator *a, uint32_t pool, uint64_t size,
                                   struct tdm_torch_block **segment)
{
    uint64_t bytes = segment_bytes(size);
    if (!take_from_device(a, bytes))
        return TDM_INFEASIBLE;
    struct tdm_torch_block *block = new_block(a);
    if (block == NULL)
        return TDM_NO_MEMORY;
    block->pool = (uint8_t)pool;
    block->size = bytes;
    block->address = place(a, bytes);
    *segment = block;
    return TDM_OK;
}

/* The first place in the range where free and unmapped blocks together have `size` bytes. */
static struct tdm_torch_block *find_unallocated(const struct tdm_torch_allocator *a, uint32_t pool,
                                                uint64_t size)
{
    for (struct tdm_torch_block *block = a->unmapped[pool]; block != NULL; block = block->after) {
        if (block->mapped)
            continue;
        struct tdm_torch_block *first = is_free(block->before) ? block->before : block;
        uint64_t together = 0;
        for (struct tdm_torch_block *b = first; b != NULL && !b->allocated && together < size;
             b = b->after)
            together += b->size;
        if (together >= size)
            return first;
    }
    return NULL;
}

/* Maps the pages that hold the first `size` bytes of an unmapped block. They are then a free block,
 * merged with a free one before it, and among the free ones. */
static enum tdm_status map_pages(struct tdm_torch_allocator *a, struct tdm_torch_block *block,
                                 uint64_t size, struct tdm_torch_block **mapped)
{
    uint64_t bytes = tdm_size_align(size, page_bytes(block->pool));
    if (!take_from_device(a, bytes))
        return TDM_INFEASIBLE;
    if (bytes < block->size && split(a, block, bytes) == NULL)
        return TDM_NO_MEMORY;
    block->mapped = true;
    while (a->unmapped[block->pool] != NULL && a->unmapped[block->pool]->mapped)
        a->unmapped[block->pool] = a->unmapped[block->pool]->after;
    *mapped = make_free(a, block);
    return TDM_OK;
}

static enum tdm_status expand(struct tdm_torch_allocator *a, uint32_t pool, uint64_t size,
                              struct tdm_torch_block **found)
{
    if (a->range[pool] == NULL) {
        struct tdm_torch_block *range = new_block(a);
        if (range == NULL)
            return TDM_NO_MEMORY;
        range->pool = (uint8_t)pool;
        range->address = RANGE * (pool + 1);
        range->size = RANGE;
        range->mapped = false;
        a->range[pool] = a->unmapped[pool] = range;
    }
    struct tdm_torch_block *block = find_unallocated(a, pool, size);
    if (block == NULL)
        return TDM_INFEASIBLE;
    enum tdm_status status = TDM_OK;
    if (!block->mapped)
        status = map_pages(a, block, size < block->size ? size : block->size, &block);
    while (status == TDM_OK && block->size < size) {
        uint64_t missing = size - block->size;
        struct tdm_torch_block *next = block->after;
        status = map_pages(a, next, missing < next->size ? missing : next->size, &block);
    }
    if (status == TDM_OK) {
        take_free(a, block);
        *found = block;
    }
    return status;
}

static enum tdm_status grow(struct tdm_torch_allocator *a, uint32_t pool, uint64_t size,
                            struct tdm_torch_block **block)
{
    if (a->free_blocks[pool] == NULL)
        a->free_blocks[pool] = tdm_free_blocks_create(a->expandable ? 0 : page_bytes(pool));
    if (a->free_blocks[pool] == NULL)
        return TDM_NO_MEMORY;
    return a->expandable ? expand(a, pool, size, block) : add_segment(a, pool, size, block);
}

/* Unmaps all whole pages of a free block in an expandable segment, if it contains any. */
static void unmap_pages(struct tdm_torch_allocator *a, struct tdm_torch_block *block)
{
    uint64_t page = page_bytes(block->pool);
    uint64_t base = RANGE * (block->pool + 1);
    uint64_t first = base + tdm_size_align(block->address - base, page);
    uint64_t end = base + (block->address + block->size - base) / page * page;
    if (first >= end)
        return;
    struct tdm_free_blocks *others = a->free_blocks[block->pool];
    tdm_free_take(others, block);
    if (first > block->address) {
        struct tdm_torch_block *inner = split(a, block, first - block->address);
        put(a, block, 0);
        if (inner == NULL)
            return;
        block = inner;
    }
    if (end < block->address + block->size) {
        struct tdm_torch_block *rest = split(a, block, end - block->address);
        if (rest != NULL)
            put(a, rest, 0);
    }
    a->now.reserved -= block->size;
    block->mapped = false;
    if (a->unmapped[block->pool] == NULL || block->address < a->unmapped[block->pool]->address)
        a->unmapped[block->pool] = block;
    if (block->after != NULL && !block->after->mapped)
        swallow_next(a, block);
    if (block->before != NULL && !block->before->mapped)
        swallow_next(a, block->before);
}

static void release_segment(struct tdm_torch_allocator *a, struct tdm_torch_block *segment)
{
    a->now.reserved -= segment->size;
    spare(a, segment);
}

/* Something that notes do not tell. */
static void lose_track(struct tdm_torch_allocator *a)
{
    if (a->watch != NULL)
        a->watch->unclear = true;
}

void tdm_torch_settle(struct tdm_torch_allocator *a)
{
    lose_track(a);
    for (struct tdm_torch_block *block = a->waiting, *next; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        make_free(a, block);
    }
    a->waiting = NULL;
}

void tdm_torch_empty_cache(struct tdm_torch_allocator *a)
{
    lose_track(a);
    tdm_torch_settle(a);
    for (unsigned pool = 0; pool < POOLS; pool++) {
        struct tdm_free_blocks *f = a->free_blocks[pool];
        struct tdm_torch_block *block, *next;
        if (f == NULL)
            continue;
        put_back(a, pool, 0);
        a->now.reserved -= tdm_free_take_all_segments(f) * f->segment_bytes;
        for (block = tdm_free_best(f, 0); block != NULL; block = next) {
            next = tdm_free_next(f, block);
            if (a->expandable) {
                unmap_pages(a, block);
            } else if (block->before == NULL && block->after == NULL) {
                tdm_free_take(f, block);
                release_segment(a, block);
            }
        }
    }
}

/* ---- the interface ---- */

void tdm_torch_set_limit(struct tdm_torch_allocator *a, uint64_t limit_bytes)
{
    a->limit = limit_bytes < TDM_TORCH_ENDLESS ? limit_bytes : TDM_TORCH_ENDLESS;
}

enum tdm_status tdm_torch_allocator_create(uint64_t capacity_bytes, bool expandable,
                                           struct tdm_torch_allocator **allocator,
                                           struct tdm_error *err)
{
    struct tdm_torch_allocator *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for an allocator");
    a->capacity = capacity_bytes;
    tdm_torch_set_limit(a, capacity_bytes);
    a->expandable = expandable;
    a->next_address = RANGE;
    *allocator = a;
    return TDM_OK;
}

void tdm_torch_allocator_free(struct tdm_torch_allocator *a)
{
    if (a == NULL)
        return;
    for (struct slab *slab = a->slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        free(slab);
    }
    for (unsigned pool = 0; pool < POOLS; pool++)
        tdm_free_blocks_free(a->free_blocks[pool]);
    free(a);
}

static bool worth_splitting(const struct tdm_torch_allocator *a,
                            const struct tdm_torch_block *block, uint64_t size)
{
    uint64_t rest = block->size - size;
    return block->pool % KINDS == SMALL || a->expandable ? rest >= ROUND : rest > SMALL_MOST;
}

static void raise_peak(uint64_t now, uint64_t *peak)
{
    if (now > *peak)
        *peak = now;
}

static uint64_t rounded(uint64_t bytes)
{
    return bytes < ROUND ? ROUND : tdm_size_align(bytes, ROUND);
}

static uint32_t pool_of(uint32_t stream, uint64_t size)
{
    return KINDS * stream + (size <= SMALL_MOST ? SMALL : LARGE);
}

static void count(struct tdm_torch_allocator *a, struct tdm_torch_block *block, uint64_t bytes,
                  uint64_t size)
{
    block->requested += bytes;
    a->now.requested += bytes;
    a->now.allocated += size;
    raise_peak(a->now.requested, &a->peak.requested);
    raise_peak(a->now.allocated, &a->peak.allocated);
}

/* Uses a block, which is not among the free ones, for a request. */
static enum tdm_status use(struct tdm_torch_allocator *a, struct tdm_torch_block *block,
                           uint64_t bytes, uint64_t size)
{
    if (worth_splitting(a, block, size)) {
        struct tdm_torch_block *rest = split(a, block, size);
        if (rest == NULL)
            return TDM_NO_MEMORY;
        keep_out(a, rest);
    }
    block->allocated = true;
    count(a, block, bytes, block->size);
    return TDM_OK;
}

static void note(struct tdm_torch_allocator *a, const struct tdm_torch_block *block, uint64_t size,
                 uint64_t picked, uint64_t room, bool grown)
{
    if (a->watch != NULL)
        tdm_round_note(a->watch, &(struct tdm_torch_note){.address = block->address,
                                                          .size = size,
                                                          .picked = picked,
                                                          .room = room,
                                                          .pool = block->pool,
                                                          .grown = grown});
}

enum tdm_status tdm_torch_malloc(struct tdm_torch_allocator *a, uint32_t stream, uint64_t bytes,
                                 struct tdm_torch_block **out)
{
    uint64_t size = rounded(bytes);
    uint32_t pool = pool_of(stream, size);
    struct tdm_torch_block *block = find_free(a, pool, size);
    bool grown = block == NULL;
    if (!grown) {
        block = take_found(a, pool, block);
        if (block == NULL)
            return TDM_NO_MEMORY;
    } else {
        enum tdm_status status = grow(a, pool, size, &block);
        if (status == TDM_INFEASIBLE) {
            tdm_torch_empty_cache(a);
            a->retries++;
            status = grow(a, pool, size, &block);
        }
        if (status != TDM_OK)
            return status;
    }
    uint64_t picked = block->size, room = grown_size(block);
    enum tdm_status status = use(a, block, bytes, size);
    if (status != TDM_OK)
        return status;
    note(a, block, size, picked, room, grown);
    *out = block;
    return TDM_OK;
}

bool tdm_torch_extend(struct tdm_torch_allocator *a, struct tdm_torch_block *block, uint32_t stream,
                      uint64_t bytes)
{
    uint64_t size = rounded(bytes);
    uint32_t pool = pool_of(stream, size);
    struct tdm_torch_block *next = a->last[pool];
    if (next == NULL || a->expandable || block->after != next || !is_last_best(a, pool, size) ||
        (next->size > size && !worth_splitting(a, next, size)))
        return false;
    lose_track(a);
    next->address += size;
    next->size -= size;
    block->size += size;
    if (next->size == 0) {
        a->last[pool] = NULL;
        swallow_next(a, block);
    }
    count(a, block, bytes, size);
    return true;
}

/* Adds `count` segments, which are neighbours, to a block of filled ones. They must go on where
 * that ends: behind it, or a step of addresses below, if each is in a step of its own. */
static bool join_filled(struct tdm_torch_block *block, uint64_t address, uint64_t count)
{
    static const uint64_t steps[] = {SMALL_SEGMENT, STEP};
    for (unsigned i = 0; i < (count == 1 ? 2 : 1); i++) {
        const uint64_t behind = block->size / SMALL_SEGMENT * steps[i];
        if (block->apart_mib != 0 && block->apart_mib * MIB != steps[i])
            continue;
        if (address != block->address + behind && (i == 0 || address + STEP != block->address))
            continue;
        if (address < block->address)
            block->address = address;
        block->apart_mib = (uint32_t)(steps[i] / MIB);
        block->size += count * SMALL_SEGMENT;
        return true;
    }
    return false;
}

/* Makes `count` segments, which are neighbours, part of the last block, or a block of their own,
 * linked behind it, for which has_block() has made sure. */
static void add_filled(struct tdm_torch_allocator *a, uint32_t pool, uint64_t address,
                       uint64_t count, struct tdm_torch_block **last)
{
    struct tdm_torch_block *block = *last;
    const bool filled = tdm_free_has_place(a->free_blocks[pool], address);
    if (filled && block->filled && block->pool == pool && join_filled(block, address, count))
        return;
    block = new_block(a);
    block->pool = (uint8_t)pool;
    block->address = address;
    block->size = count * SMALL_SEGMENT;
    block->allocated = true;
    block->filled = filled; /* else it is one segment */
    block->apart_mib = count > 1 ? SMALL_SEGMENT / MIB : 0;
    tdm_torch_link(*last, block);
    *last = block;
}

uint64_t tdm_torch_fill(struct tdm_torch_allocator *a, uint32_t stream, uint64_t bytes,
                        uint64_t requests, uint64_t most, struct tdm_torch_block **last,
                        uint64_t *segments)
{
    const uint64_t size = rounded(bytes), each = SMALL_SEGMENT / size;
    const uint32_t pool = pool_of(stream, size);
    struct tdm_free_blocks *others = a->free_blocks[pool];
    const struct tdm_torch_block *best;
    uint64_t made = 0;
    *segments = 0;
    if (each < 2 || SMALL_SEGMENT % size != 0 || requests < each || a->expandable ||
        others == NULL || a->last[pool] != NULL ||
        ((best = tdm_free_best(others, size)) != NULL && !best->in_map))
        return 0;
    lose_track(a);
    if (most > requests / each)
        most = requests / each;
    while (made < most && has_block(a)) {
        uint64_t address, now = tdm_free_take_segments(others, most - made, &address);
        if (now == 0) {
            if (!take_from_device(a, SMALL_SEGMENT))
                break; /* the next allocation finds out why */
            address = place(a, SMALL_SEGMENT);
            now = 1;
        }
        add_filled(a, pool, address, now, last);
        count(a, *last, now * each * bytes, now * SMALL_SEGMENT);
        made += now;
    }
    *segments = made;
    return made * each;
}

void tdm_torch_free(struct tdm_torch_allocator *a, struct tdm_torch_block *block)
{
    if (block == NULL)
        return;
    note(a, block, 0, 0, 0, false);
    a->now.requested -= block->requested;
    a->now.allocated -= block->size;
    make_free(a, block);
}

void tdm_torch_link(struct tdm_torch_block *before, struct tdm_torch_block *block)
{
    before->right = block;
}

void tdm_torch_free_linked(struct tdm_torch_allocator *a, struct tdm_torch_block *first,
                           uint64_t count)
{
    for (struct tdm_torch_block *block = first, *next; count > 0; block = next) {
        next = block->right;
        count -= block->filled ? block->size / SMALL_SEGMENT : 1;
        tdm_torch_free(a, block);
    }
}

void tdm_torch_free_later(struct tdm_torch_allocator *a, struct tdm_torch_block *block)
{
    if (block == NULL)
        return;
    lose_track(a);
    a->now.requested -= block->requested;
    a->now.allocated -= block->size;
    block->right = a->waiting;
    a->waiting = block;
}

/* ---- rounds ---- */

void tdm_torch_watch(struct tdm_torch_allocator *a, struct tdm_torch_round *round)
{
    a->watch = round;
}

/* How often can a round move on through a free block, so that it would take the same of that and
 * of others? What took it once takes it again while it is large enough, as it only gets smaller.
 * What took another one would take it once it is smaller than that, or than that could grow to,
 * unless it is too small for that. */
static uint64_t moves_left(uint64_t bytes, const struct tdm_round_facts *facts)
{
    uint64_t least = facts->most_room;
    if (least < SMALL_MOST || facts->least_rest < facts->least_size)
        least = SMALL_MOST;
    return facts->least_rest > least ? (facts->least_rest - least - 1) / bytes : 0;
}

/* Each kept block has a segment of its own, of which no other allocation would take the rest. One
 * less than fit are counted: the next round then also does the same. */
static uint64_t segments_left(const struct tdm_torch_allocator *a, uint64_t size,
                              uint64_t least_size)
{
    uint64_t bytes = segment_bytes(size), rest = bytes - size;
    if (size < OWN_SEGMENT || (rest > SMALL_MOST && least_size <= rest) ||
        a->limit <= a->now.reserved)
        return 0;
    uint64_t all = (a->limit - a->now.reserved) / bytes;
    return all > 0 ? all - 1 : 0;
}

uint64_t tdm_torch_repeats(const struct tdm_torch_allocator *a,
                           const struct tdm_torch_round *before, const struct tdm_torch_round *now,
                           const struct tdm_torch_block *kept)
{
    struct tdm_round_facts facts;
    if (kept == NULL)
        return tdm_rounds_alike(before, now, 0, 0, &facts) ? UINT64_MAX : 0;
    if (kept->pool % KINDS == SMALL ||
        !tdm_rounds_alike(before, now, kept->address, kept->size, &facts) ||
        (a->expandable && facts.grown))
        return 0;
    return facts.grown ? segments_left(a, rounded(kept->requested), facts.least_size)
                       : moves_left(kept->size, &facts);
}

bool tdm_torch_repeat(struct tdm_torch_allocator *a, struct tdm_torch_block *kept, uint64_t rounds,
                      enum tdm_status *status)
{
    uint64_t bytes = kept->requested, size = rounded(bytes), all = rounds * kept->size;
    struct tdm_torch_block *next = kept->after, *last = kept;
    if (is_free(next) && next->size > all) {
        take_free(a, next);
        next->address += all;
        next->size -= all;
        kept->size += all;
        keep_out(a, next);
        count(a, kept, rounds * bytes, all);
        return false;
    }
    for (; rounds > 0 && *status == TDM_OK; rounds--) {
        struct tdm_torch_block *block;
        *status = grow(a, kept->pool, size, &block);
        if (*status == TDM_OK)
            *status = use(a, block, bytes, size);
        if (*status != TDM_OK)
            return true;
        tdm_torch_link(last, block);
        last = block;
    }
    return true;
}

uint64_t tdm_torch_block_bytes(const struct tdm_torch_block *block)
{
    return block->size;
}

uint64_t tdm_torch_block_requested(const struct tdm_torch_block *block)
{
    return block->requested;
}

uint64_t tdm_torch_capacity(const struct tdm_torch_allocator *a)
{
    return a->capacity;
}

struct tdm_torch_bytes tdm_torch_current(const struct tdm_torch_allocator *a)
{
    return a->now;
}

const struct tdm_torch_bytes *tdm_torch_now(const struct tdm_torch_allocator *a)
{
    return &a->now;
}

struct tdm_torch_bytes tdm_torch_peak(const struct tdm_torch_allocator *a)
{
    return a->peak;
}

void tdm_torch_reset_peak(struct tdm_torch_allocator *a)
{
    a->peak = a->now;
}

uint64_t tdm_torch_retries(const struct tdm_torch_allocator *a)
{
    return a->retries;
}

uint64_t tdm_torch_blocks_made(const struct tdm_torch_allocator *a)
{
    uint64_t made = 0;
    for (const struct slab *slab = a->slabs; slab != NULL; slab = slab->next)
        made += SLAB_BLOCKS;
    return made - a->fresh;
}
