/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates the host arena: touches it slice by slice, then pins all of it if that is allowed. */
#include "executor/host_arena.h"

#include "base/clock.h"
#include "base/units.h"
#include "executor/host_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SLICE_BYTES (UINT64_C(1) << 30)
#define PAGE_BYTES 4096u

/* How long to wait for memory that is still to come, and how often to look. */
#define PATIENCE_SECONDS 10.0
#define LOOK_NANOSECONDS 20000000

/* Waits until a slice can be touched; false if it cannot. */
static bool wait_for_memory(const char *root, struct tdm_host_memory *memory, uint64_t bytes)
{
    const struct timespec pause = {.tv_nsec = LOOK_NANOSECONDS};
    double begin = tdm_now_seconds();
    for (;;) {
        tdm_host_memory_look(root, memory);
        if (tdm_host_memory_has(memory, bytes))
            return true;
        if (memory->to_come_bytes == 0 || tdm_now_seconds() - begin > PATIENCE_SECONDS)
            return false;
        nanosleep(&pause, NULL);
    }
}

static void touch(unsigned char *start, uint64_t bytes)
{
    volatile unsigned char *touched = start;
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (uint64_t i = 0; i < bytes; i += PAGE_BYTES)
        touched[i] = 0;
}

static enum tdm_status touch_slice(struct tdm_host_arena *arena, const char *root,
                                   struct tdm_host_memory *memory, struct tdm_error *err)
{
    uint64_t left = arena->bytes - arena->touched_bytes;
    uint64_t bytes = left < SLICE_BYTES ? left : SLICE_BYTES;
    char need[TDM_FORMAT_SIZE], have[TDM_FORMAT_SIZE];
    if (!wait_for_memory(root, memory, bytes)) {
        tdm_fail(err, TDM_INFEASIBLE, "the host arena needs %s, this computer gave %s",
                 tdm_format_bytes(arena->bytes, need),
                 tdm_format_bytes(arena->touched_bytes, have));
        return tdm_hint(err, "plan with a smaller --host-memory, or end what else uses memory");
    }
    touch((unsigned char *)arena->base + arena->touched_bytes, bytes);
    arena->touched_bytes += bytes;
    return TDM_OK;
}

/* Pins the arena. If the device refuses, because of a limit or of what its driver can lock, the
 * arena stays pageable. Only a missing device is an error. */
static enum tdm_status pin(struct tdm_host_arena *arena, const struct tdm_host_pinning *pinning,
                           const struct tdm_arena_watch *watch, struct tdm_error *err)
{
    struct tdm_error refusal = {0};
    enum tdm_status status = pinning->pin(pinning->self, arena->base, arena->bytes, &refusal);
    arena->pinned = status == TDM_OK;
    if (status == TDM_NO_DEVICE)
        return tdm_fail(err, status, "%s", refusal.message);
    if (status != TDM_OK && watch != NULL && watch->pageable != NULL)
        watch->pageable(watch->self, arena->bytes, refusal.message);
    return TDM_OK;
}

enum tdm_status tdm_host_arena_take(uint64_t bytes, const struct tdm_host_pinning *pinning,
                                    const struct tdm_arena_watch *watch, const char *root,
                                    struct tdm_host_arena *out, struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    struct tdm_host_arena arena = {.bytes = bytes};
    struct tdm_host_memory computer;
    void *memory = bytes > PTRDIFF_MAX ? MAP_FAILED
                                       : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        tdm_fail(err, TDM_NO_MEMORY, "no memory for the host arena of %s: %s",
                 tdm_format_bytes(bytes, text), strerror(bytes > PTRDIFF_MAX ? ENOMEM : errno));
        return tdm_hint(err, "plan with a smaller --host-memory");
    }
    arena.base = memory;
    madvise(memory, bytes, MADV_HUGEPAGE); /* only for speed: it may fail */
    tdm_numa_prefer(memory, bytes, pinning->node);
    tdm_host_memory_read(root, &computer);
    enum tdm_status status = TDM_OK;
    while (arena.touched_bytes < bytes && status == TDM_OK) {
        if (watch != NULL)
            watch->taken(watch->self, arena.touched_bytes, bytes);
        if (watch != NULL && watch->stop != NULL && *watch->stop)
            status = tdm_fail(err, TDM_INTERRUPTED, "interrupted while the host arena was taken");
        else
            status = touch_slice(&arena, root, &computer, err);
    }
    if (status == TDM_OK)
        status = pin(&arena, pinning, watch, err);
    if (status != TDM_OK) {
        tdm_host_arena_release(&arena, pinning);
        return status;
    }
    if (watch != NULL)
        watch->taken(watch->self, bytes, bytes);
    *out = arena;
    return TDM_OK;
}

void tdm_host_arena_release(struct tdm_host_arena *arena, const struct tdm_host_pinning *pinning)
{
    if (arena->base == NULL)
        return;
    if (arena->pinned)
        pinning->unpin(pinning->self, arena->base);
    munmap(arena->base, arena->bytes);
    memset(arena, 0, sizeof(*arena));
}
