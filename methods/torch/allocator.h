/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of PyTorch's caching allocator of device memory: what is allocated, what is reserved, and
 * when it gives up.
 *
 * Sizes are rounded up to 512 B. Requests up to 1 MiB come from segments of 2 MiB; larger ones from
 * segments of 20 MiB, or, from 10 MiB on, of their own size rounded up to 2 MiB. The smallest free
 * block that is large enough is taken and split if enough remains: 512 B in a small segment, more
 * than 1 MiB in a large one; what is not split off counts as allocated. Neighbours that are free
 * merge. With expandable segments each kind has one range of addresses, to which pages of 2 or 20
 * MiB are mapped at its end. Where the device has no more memory, cached segments that are free as
 * a whole go back and it tries again. Source: c10/cuda/CUDACachingAllocator.cpp (get_free_block,
 * alloc_block, should_split, free_block, release_cached_blocks, try_allocate_expandable_block).
 *
 * malloc and free take O(log n) of free blocks.
 */
#ifndef TDM_METHODS_TORCH_ALLOCATOR_H
#define TDM_METHODS_TORCH_ALLOCATOR_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_torch_allocator;
struct tdm_torch_block; /* a handle of what was allocated */

struct tdm_torch_bytes {
    uint64_t requested; /* as asked for */
    uint64_t allocated; /* after rounding: torch.cuda.memory_allocated */
    uint64_t reserved;  /* of segments: torch.cuda.memory_reserved */
};

/* More than any device has: a limit that is none. */
#define TDM_TORCH_ENDLESS (UINT64_C(1) << 55)

/* `capacity_bytes`: what the device has for segments. `expandable`: expandable_segments:True.
 * Caller owns *allocator. TDM_NO_MEMORY. */
enum tdm_status tdm_torch_allocator_create(uint64_t capacity_bytes, bool expandable,
                                           struct tdm_torch_allocator **allocator,
                                           struct tdm_error *err);
/* What the device gives from here on, more or less than it says that it has; at most
 * TDM_TORCH_ENDLESS. */
void tdm_torch_set_limit(struct tdm_torch_allocator *allocator, uint64_t limit_bytes);
void tdm_torch_allocator_free(struct tdm_torch_allocator *allocator);

/* Streams have free blocks of their own. */
#define TDM_TORCH_STREAMS 33u /* the default one and as many as torch.cuda.Stream() gives out */

/* `stream`: below TDM_TORCH_STREAMS. TDM_INFEASIBLE if the device has too little, also after cached
 * segments went back; the bytes in use are then as they were. TDM_NO_MEMORY if this process has.
 * `bytes` 0 is a block of no bytes. */
enum tdm_status tdm_torch_malloc(struct tdm_torch_allocator *allocator, uint32_t stream,
                                 uint64_t bytes, struct tdm_torch_block **block);
void tdm_torch_free(struct tdm_torch_allocator *allocator, struct tdm_torch_block *block);

/* The next block, as part of this one, where it would lie right behind it and they are freed at the
 * same time: all is as if there were two. False: it would not, or that is not seen at once; nothing
 * is changed. */
bool tdm_torch_extend(struct tdm_torch_allocator *allocator, struct tdm_torch_block *block,
                      uint32_t stream, uint64_t bytes);

/* Frees what another stream may still use (record_stream): it no longer counts as allocated, but
 * nobody gets it until that stream is done (insert_events, process_events), which the caller says
 * by settling, or memory is short. */
void tdm_torch_free_later(struct tdm_torch_allocator *allocator, struct tdm_torch_block *block);
void tdm_torch_settle(struct tdm_torch_allocator *allocator);

/* Bytes that the block counts as allocated, and that were asked for. */
uint64_t tdm_torch_block_bytes(const struct tdm_torch_block *block);
uint64_t tdm_torch_block_requested(const struct tdm_torch_block *block);

/* Gives free segments back, as torch.cuda.empty_cache. */
void tdm_torch_empty_cache(struct tdm_torch_allocator *allocator);

/* What the device says that it has for segments. */
uint64_t tdm_torch_capacity(const struct tdm_torch_allocator *allocator);

/* Now, and the most since the peaks were last reset; each peak stands for itself. */
struct tdm_torch_bytes tdm_torch_current(const struct tdm_torch_allocator *allocator);
struct tdm_torch_bytes tdm_torch_peak(const struct tdm_torch_allocator *allocator);
void tdm_torch_reset_peak(struct tdm_torch_allocator *allocator);

/* How often it had to give cached segments back to go on (num_alloc_retries). */
uint64_t tdm_torch_retries(const struct tdm_torch_allocator *allocator);

#endif
