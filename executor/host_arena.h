/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host arena of a backend that copies to a device of its own: huge pages, near the device,
 * touched by all threads, a slice at a time, and then pinned at once, because copies do not cross
 * from one pinned range into another. On a computer with an H200 and 16 cores that takes 0.05
 * s/GiB, cudaHostAlloc 0.33. It has the bytes that are asked for: nothing is rounded up but to
 * pages.
 *
 * Whether there is memory is asked before every slice: none is touched that would bring the
 * computer to its end. Where pinning is refused (a limit of locked memory) the arena stays
 * pageable: copies go through the driver's own buffer, in the same order and slower.
 */
#ifndef TDM_EXECUTOR_HOST_ARENA_H
#define TDM_EXECUTOR_HOST_ARENA_H

#include "executor/backend.h"
#include "executor/numa.h"

struct tdm_host_arena {
    void *base; /* NULL: nothing was taken */
    uint64_t bytes, touched_bytes;
    bool pinned;
};

/* What the device wants of its host memory. */
struct tdm_host_pinning {
    void *self;
    int node; /* of memory that is near it; TDM_NO_NODE: any (numa.h) */
    enum tdm_status (*pin)(void *self, void *start, uint64_t bytes, struct tdm_error *err);
    void (*unpin)(void *self, void *start);
};

/* Takes and pins `bytes`. TDM_INFEASIBLE if the computer turns out to have less, with what it had;
 * on a computer whose memory grows it gives it time. After a failure nothing is held. `root`: as in
 * tdm_host_memory_read(). Memory that cannot be pinned is no failure, unless there is no device
 * (TDM_NO_DEVICE): arena->pinned is false then, and `watch` has been told why. */
enum tdm_status tdm_host_arena_take(uint64_t bytes, const struct tdm_host_pinning *pinning,
                                    const struct tdm_watch *watch, const char *root,
                                    struct tdm_host_arena *arena, struct tdm_error *err);
void tdm_host_arena_release(struct tdm_host_arena *arena, const struct tdm_host_pinning *pinning);

#endif
