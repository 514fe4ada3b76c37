/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host arena of a backend that copies to a device of its own: huge pages, touched by all threads and
 * then pinned, a slice at a time. That takes a third of the time in which a driver finds, clears
 * and pins the pages itself, and shows how far it is.
 *
 * Whether there is memory is asked before every slice: no slice is touched that would bring the
 * computer to its end.
 */
#ifndef TDM_EXECUTOR_HOST_ARENA_H
#define TDM_EXECUTOR_HOST_ARENA_H

#include "executor/backend.h"

/* Takes and gives back. A pinned slice is as long as the others, the last one as long as is left. */
struct tdm_host_arena {
    void *base; /* NULL: nothing was taken */
    uint64_t bytes, pinned_bytes;
    uint64_t slice_bytes;
};

struct tdm_host_pinning {
    void *self;
    enum tdm_status (*pin)(void *self, void *start, uint64_t bytes, struct tdm_error *err);
    void (*unpin)(void *self, void *start);
};

/* Takes and pins `bytes`, slice by slice. TDM_INFEASIBLE if the computer turns out to have less, with what it
 * had; on a computer whose memory grows it gives it time. After a failure nothing is held. `root`: as in
 * tdm_host_memory_read(). */
enum tdm_status tdm_host_arena_take(uint64_t bytes, const struct tdm_host_pinning *pinning,
                                    const struct tdm_watch *watch, const char *root,
                                    struct tdm_host_arena *arena, struct tdm_error *err);
void tdm_host_arena_release(struct tdm_host_arena *arena, const struct tdm_host_pinning *pinning);

#endif
