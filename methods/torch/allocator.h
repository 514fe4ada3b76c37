/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of PyTorch's caching allocator of device memory: allocated bytes, reserved bytes, and
 * when an allocation fails.
 *
 * Sizes are rounded up to 512 B. Requests up to 1 MiB are served from segments of 2 MiB. Larger
 * requests are served from segments of 20 MiB; from 10 MiB on, they get a segment of their own
 * size, rounded up to 2 MiB. The smallest free block that is large enough is taken. It is split
 * if enough remains: 512 B in a small segment, more than 1 MiB in a large one. A remainder that
 * is not split off counts as allocated. Free neighbours merge. With expandable segments each
 * kind has one range of addresses, and pages of 2 or 20 MiB are mapped into it as needed. If the
 * device has no more memory, cached segments that are completely free are released, and the
 * allocation is retried. Source: c10/cuda/CUDACachingAllocator.cpp (get_free_block, alloc_block,
 * should_split, free_block, release_cached_blocks, try_allocate_expandable_block).
 *
 * malloc and free take O(log n) for n free blocks.
 */
#ifndef TDM_METHODS_TORCH_ALLOCATOR_H
#define TDM_METHODS_TORCH_ALLOCATOR_H

#include "base/status.h"
#include "methods/torch/rounds.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_torch_allocator;
struct tdm_torch_block; /* handle of an allocation */

struct tdm_torch_bytes {
    uint64_t requested; /* as requested */
    uint64_t allocated; /* after rounding: torch.cuda.memory_allocated */
    uint64_t reserved;  /* of segments: torch.cuda.memory_reserved */
};

/* More than any device has: no limit. */
#define TDM_TORCH_ENDLESS (UINT64_C(1) << 55)

/* `capacity_bytes`: device memory available for segments. `expandable`: expandable_segments:True.
 * The caller owns *allocator. TDM_NO_MEMORY. */
enum tdm_status tdm_torch_allocator_create(uint64_t capacity_bytes, bool expandable,
                                           struct tdm_torch_allocator **allocator,
                                           struct tdm_error *err);
/* Sets what the device provides from now on, which may be more or less than the capacity it
 * reports; at most TDM_TORCH_ENDLESS. */
void tdm_torch_set_limit(struct tdm_torch_allocator *allocator, uint64_t limit_bytes);
void tdm_torch_allocator_free(struct tdm_torch_allocator *allocator);

/* Each stream has its own free blocks. */
#define TDM_TORCH_STREAMS 33u /* the default one and all of torch.cuda.Stream() */

/* `stream`: below TDM_TORCH_STREAMS. `bytes` 0 gives an empty block. TDM_INFEASIBLE if the device
 * has too little memory even after cached segments were released; the bytes in use are then
 * unchanged. TDM_NO_MEMORY if this process has too little. */
enum tdm_status tdm_torch_malloc(struct tdm_torch_allocator *allocator, uint32_t stream,
                                 uint64_t bytes, struct tdm_torch_block **block);
void tdm_torch_free(struct tdm_torch_allocator *allocator, struct tdm_torch_block *block);

/* Allocates the next block as part of this one, which is equivalent if it would lie directly behind
 * it and both are freed together. False: it would not, or that is not easily known; nothing has
 * changed. */
bool tdm_torch_extend(struct tdm_torch_allocator *allocator, struct tdm_torch_block *block,
                      uint32_t stream, uint64_t bytes);

/* Allocates equal requests, which are freed together, as tdm_torch_malloc() and tdm_torch_extend()
 * would one after another, as long as they fill whole segments: at most `most` of these, whose
 * number becomes *segments. Segments that lie as in a row share a block. The blocks are linked
 * behind *last, or become part of it; the latest is *last then. Returns the number of requests that
 * were met. 0: the next one would not go to a segment of its own that such requests fill, or that
 * is not easily known. */
#define TDM_TORCH_FILL_MOST (UINT64_C(1) << 20) /* bytes of a request; larger ones fill none */
uint64_t tdm_torch_fill(struct tdm_torch_allocator *allocator, uint32_t stream, uint64_t bytes,
                        uint64_t requests, uint64_t most, struct tdm_torch_block **last,
                        uint64_t *segments);

/* Links a block behind another one, both in use. A block links to at most one. Links are used for
 * blocks that are freed together, from the first on: `count` of them, where a block of several
 * filled segments counts as so many. */
void tdm_torch_link(struct tdm_torch_block *before, struct tdm_torch_block *block);
void tdm_torch_free_linked(struct tdm_torch_allocator *allocator, struct tdm_torch_block *first,
                           uint64_t count);

/* Frees a block that another stream may still use (record_stream). It no longer counts as
 * allocated, but is not reused until that stream is done (insert_events, process_events). The
 * caller signals that by settling; the allocator also assumes it when memory is short. */
void tdm_torch_free_later(struct tdm_torch_allocator *allocator, struct tdm_torch_block *block);
void tdm_torch_settle(struct tdm_torch_allocator *allocator);

/* Notes all allocations and frees in `round`, from its end on; NULL: no longer. */
void tdm_torch_watch(struct tdm_torch_allocator *allocator, struct tdm_torch_round *round);

/* How many further rounds would do the same as the two latest ones, which leave `kept` allocated
 * (NULL: nothing). Each of them would cut its own block behind `kept`, or take it from a segment of
 * its own. 0: none, as far as is known; UINT64_MAX: any number. */
uint64_t tdm_torch_repeats(const struct tdm_torch_allocator *allocator,
                           const struct tdm_torch_round *before, const struct tdm_torch_round *now,
                           const struct tdm_torch_block *kept);

/* Allocates what so many further rounds leave. They become part of `kept`, or blocks of their own,
 * linked behind it. True: blocks of their own. TDM_NO_MEMORY goes to *status. */
bool tdm_torch_repeat(struct tdm_torch_allocator *allocator, struct tdm_torch_block *kept,
                      uint64_t rounds, enum tdm_status *status);

/* Bytes that the block counts as allocated, and bytes that were requested. */
uint64_t tdm_torch_block_bytes(const struct tdm_torch_block *block);
uint64_t tdm_torch_block_requested(const struct tdm_torch_block *block);

/* Releases free segments, as torch.cuda.empty_cache does. */
void tdm_torch_empty_cache(struct tdm_torch_allocator *allocator);

/* Device memory for segments, as the device reports it. */
uint64_t tdm_torch_capacity(const struct tdm_torch_allocator *allocator);

/* Current bytes, and the maxima since the peaks were last reset. Each peak is independent. */
struct tdm_torch_bytes tdm_torch_current(const struct tdm_torch_allocator *allocator);
/* The current bytes themselves, which change with every call. */
const struct tdm_torch_bytes *tdm_torch_now(const struct tdm_torch_allocator *allocator);
struct tdm_torch_bytes tdm_torch_peak(const struct tdm_torch_allocator *allocator);
void tdm_torch_reset_peak(struct tdm_torch_allocator *allocator);

/* Blocks that the allocator has made so far, in use, free or spare: what its own memory, and the
 * time of a simulation, grow with. */
uint64_t tdm_torch_blocks_made(const struct tdm_torch_allocator *allocator);

/* How often an allocation needed cached segments to be released (num_alloc_retries). */
uint64_t tdm_torch_retries(const struct tdm_torch_allocator *allocator);

#endif
