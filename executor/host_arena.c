/* SPDX-License-Identifier: Apache-2.0 */
/* The host arena: taken slice by slice. */
#include "executor/host_arena.h"

#include "base/units.h"
#include "executor/host_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SLICE_BYTES (UINT64_C(1) << 30)
#define PAGE_BYTES 4096u

/* What is left to everybody else on the computer. */
#define RESERVE_BYTES (UINT64_C(256) << 20)

/* How long memory that grows is waited for, and how often it is looked at. */
#define PATIENCE_SECONDS 10.0
#define LOOK_NANOSECONDS 20000000

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Can a slice be touched now, or soon? */
static bool wait_for_room(const char *root, uint64_t bytes)
{
    const struct timespec pause = {.tv_nsec = LOOK_NANOSECONDS};
    double begin = now_seconds();
    for (;;) {
        struct tdm_host_memory memory;
        tdm_host_memory_read(root, &memory);
        uint64_t needed = bytes + RESERVE_BYTES;
        if (memory.available_bytes >= needed && memory.allowed_bytes >= needed)
            return true;
        if (!memory.grows || now_seconds() - begin > PATIENCE_SECONDS)
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

static enum tdm_status take_slice(struct tdm_host_arena *arena, uint64_t bytes,
                                  const struct tdm_host_pinning *pinning, const char *root,
                                  struct tdm_error *err)
{
    unsigned char *start = (unsigned char *)arena->base + arena->pinned_bytes;
    char need[TDM_FORMAT_SIZE], have[TDM_FORMAT_SIZE];
    if (!wait_for_room(root, bytes)) {
        tdm_fail(err, TDM_INFEASIBLE, "the host arena needs %s, this computer gave %s",
                 tdm_format_bytes(arena->bytes, need), tdm_format_bytes(arena->pinned_bytes, have));
        return tdm_hint(err, "plan with a smaller --host-memory, or end what else uses memory");
    }
    touch(start, bytes);
    enum tdm_status status = pinning->pin(pinning->self, start, bytes, err);
    if (status == TDM_OK)
        arena->pinned_bytes += bytes;
    return status;
}

enum tdm_status tdm_host_arena_take(uint64_t bytes, const struct tdm_host_pinning *pinning,
                                    const struct tdm_watch *watch, const char *root,
                                    struct tdm_host_arena *out, struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    struct tdm_host_arena arena = {.bytes = bytes, .slice_bytes = SLICE_BYTES};
    void *memory = bytes > PTRDIFF_MAX ? MAP_FAILED
                                       : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        tdm_fail(err, TDM_NO_MEMORY, "no memory for the host arena of %s: %s",
                 tdm_format_bytes(bytes, text), strerror(bytes > PTRDIFF_MAX ? ENOMEM : errno));
        return tdm_hint(err, "plan with a smaller --host-memory");
    }
    arena.base = memory;
    madvise(memory, bytes, MADV_HUGEPAGE); /* faster if it works, right if it does not */
    enum tdm_status status = TDM_OK;
    while (arena.pinned_bytes < bytes && status == TDM_OK) {
        uint64_t left = bytes - arena.pinned_bytes;
        status = take_slice(&arena, left < SLICE_BYTES ? left : SLICE_BYTES, pinning, root, err);
        if (status == TDM_OK && watch != NULL)
            watch->taken(watch->self, TDM_HOST, arena.pinned_bytes, bytes);
    }
    if (status != TDM_OK) {
        tdm_host_arena_release(&arena, pinning);
        return status;
    }
    *out = arena;
    return TDM_OK;
}

void tdm_host_arena_release(struct tdm_host_arena *arena, const struct tdm_host_pinning *pinning)
{
    if (arena->base == NULL)
        return;
    for (uint64_t at = 0; at < arena->pinned_bytes; at += arena->slice_bytes)
        pinning->unpin(pinning->self, (unsigned char *)arena->base + at);
    munmap(arena->base, arena->bytes);
    memset(arena, 0, sizeof(*arena));
}
