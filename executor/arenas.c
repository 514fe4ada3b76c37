/* SPDX-License-Identifier: Apache-2.0 */
/* The arenas of a run: checks that the machine has the memory, then allocates, fills and scans. */
#include "executor/arenas.h"

#include "base/size.h"
#include "executor/host_memory.h"
#include "executor/free_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The bytes filled between two checks of the stop flag. */
#define SLICE_BYTES (UINT64_C(1) << 28)

/* The driver's memory beside the arena: the most that any schedule's machine states. */
static uint64_t runtime_bytes(uint32_t count, const struct tdm_program *const *programs)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; i++)
        if (programs[i]->schedule->machine->topology.places[TDM_DEVICE].runtime_bytes > most)
            most = programs[i]->schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
    return most;
}

static void size_arenas(struct tdm_arenas *arenas, uint32_t count,
                        const struct tdm_program *const *programs)
{
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
        for (uint32_t i = 0; i < count; i++) {
            if (programs[i]->arena_bytes[place] > arenas->bytes[place])
                arenas->bytes[place] = programs[i]->arena_bytes[place];
            arenas->host_memory[place] |=
                programs[i]->schedule->machine->topology.places[place].host_memory;
        }
}

static uint64_t bytes_in(const struct tdm_arenas *arenas, bool host_memory)
{
    uint64_t bytes = 0;
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
        if (arenas->host_memory[place] == host_memory)
            bytes = tdm_size_add(bytes, arenas->bytes[place]);
    return bytes;
}

uint64_t tdm_arenas_device_bytes(const struct tdm_arenas *arenas)
{
    return bytes_in(arenas, false);
}

uint64_t tdm_arenas_host_bytes(const struct tdm_arenas *arenas)
{
    return bytes_in(arenas, true);
}

static uint64_t usable_host_bytes(void)
{
    struct tdm_host_memory memory;
    tdm_host_memory_read("", &memory);
    return tdm_host_memory_usable_bytes(&memory);
}

/* Checks the host's memory for the arenas of all ranks. */
static enum tdm_status check_host(const struct tdm_arenas *arenas, uint32_t ranks,
                                  uint64_t usable_bytes, struct tdm_error *err)
{
    bool stands_in = !arenas->backend->own_device_memory; /* for device memory */
    uint64_t device_bytes = stands_in ? tdm_arenas_device_bytes(arenas) : 0;
    return tdm_free_memory_check_host(usable_bytes, tdm_size_mul(device_bytes, ranks),
                                      tdm_size_mul(tdm_arenas_host_bytes(arenas), ranks), err);
}

enum tdm_status tdm_arenas_check(const struct tdm_backend *backend, uint32_t count,
                                 const struct tdm_program *const *programs,
                                 struct tdm_free_memory *memory, struct tdm_error *err)
{
    struct tdm_arenas arenas = {.backend = backend};
    size_arenas(&arenas, count, programs);
    enum tdm_status status = tdm_backend_check(backend, count, programs, err);
    if (status != TDM_OK)
        return status;
    *memory = (struct tdm_free_memory){.host_bytes = usable_host_bytes()};
    if (!backend->executes)
        return TDM_OK;
    if (backend->free_bytes != NULL && backend->free_bytes(&memory->device_bytes, NULL) != TDM_OK)
        memory->device_bytes = TDM_SIZE_MAX;
    status = check_host(&arenas, programs[0]->ranks, memory->host_bytes, err);
    if (status != TDM_OK || backend->free_bytes == NULL)
        return status;
    const struct tdm_device_memory device = {.free_bytes = memory->device_bytes,
                                             .runtime_bytes = runtime_bytes(count, programs)};
    return tdm_free_memory_check_device(&device, arenas.bytes[TDM_DEVICE], err);
}

static enum tdm_status check_device(const struct tdm_arenas *arenas, uint64_t runtime,
                                    struct tdm_error *err)
{
    struct tdm_device_memory device = {.runtime_bytes = runtime};
    if (arenas->backend->used == NULL)
        return TDM_OK;
    enum tdm_status status =
        arenas->backend->used(arenas->executor, &device.used_bytes, &device.free_bytes, err);
    return status == TDM_OK ? tdm_free_memory_check_device(&device, arenas->bytes[TDM_DEVICE], err)
                            : status;
}

static enum tdm_status take(const struct tdm_backend *backend, uint32_t count,
                            const struct tdm_program *const *programs, uint32_t device,
                            const struct tdm_arena_watch *watch, struct tdm_arenas *out,
                            struct tdm_error *err)
{
    struct tdm_arenas arenas = {.backend = backend};
    size_arenas(&arenas, count, programs);
    enum tdm_status status = backend->open(count, programs, device, &arenas.executor, err);
    if (status != TDM_OK)
        return status;
    if (backend->watch != NULL)
        backend->watch(arenas.executor, watch);
    status = check_device(&arenas, runtime_bytes(count, programs), err);
    for (uint32_t place = 0; place < TDM_MAX_PLACES && status == TDM_OK; place++)
        if (arenas.bytes[place] > 0)
            status = backend->arena(arenas.executor, (enum tdm_place)place, arenas.bytes[place],
                                    &arenas.base[place], err);
    if (status != TDM_OK) {
        backend->close(arenas.executor);
        return status;
    }
    *out = arenas;
    return TDM_OK;
}

static uint32_t device_of(const uint32_t *devices, uint32_t rank)
{
    return devices != NULL ? devices[rank] : rank;
}

/* Counts the ranks whose arenas are in the memory of each place. */
static void count_sharers(uint32_t rank, uint32_t ranks, const uint32_t *devices,
                          struct tdm_arenas *arenas)
{
    uint32_t of_device = 0;
    for (uint32_t i = 0; i < ranks; i++)
        of_device += device_of(devices, i) == device_of(devices, rank);
    for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
        arenas->sharers[place] = arenas->host_memory[place] ? ranks : of_device;
}

/* Is there a device for each rank? */
static enum tdm_status check_devices(const struct tdm_backend *backend, uint32_t first,
                                     uint32_t ranks, const uint32_t *devices, struct tdm_error *err)
{
    uint32_t count;
    enum tdm_status status = backend->devices == NULL ? TDM_OK : backend->devices(&count, err);
    for (uint32_t rank = 0; backend->devices != NULL && rank < ranks && status == TDM_OK; rank++) {
        uint32_t device = device_of(devices, rank);
        if (device < count)
            continue;
        status = tdm_fail(err, TDM_INFEASIBLE, "rank %u needs device %u; this computer has %u",
                          first + rank, device, count);
        tdm_hint(err, "plan for fewer ranks, or let ranks share a device (--devices 0,0)");
    }
    return status;
}

/* Says of which rank an error is, where there are several. */
static enum tdm_status about_rank(uint32_t rank, uint32_t ranks, struct tdm_error *err)
{
    char text[32];
    snprintf(text, sizeof(text), "rank %u", rank);
    return ranks > 1 ? tdm_about(err, text) : err->status;
}

enum tdm_status tdm_arenas_take_ranks(const struct tdm_backend *backend, uint32_t count,
                                      const struct tdm_program *const *programs, uint32_t first,
                                      uint32_t ranks, const uint32_t *devices,
                                      const struct tdm_arena_watch *watch, struct tdm_arenas *out,
                                      struct tdm_error *err)
{
    struct tdm_arenas arenas = {.backend = backend};
    size_arenas(&arenas, count, programs);
    enum tdm_status status = tdm_backend_check(backend, count, programs, err);
    if (status == TDM_OK && backend->executes)
        status = check_host(&arenas, ranks, usable_host_bytes(), err);
    if (status == TDM_OK)
        status = check_devices(backend, first, ranks, devices, err);
    uint32_t taken = 0;
    while (status == TDM_OK && taken < ranks) {
        uint32_t device = device_of(devices, taken);
        status = take(backend, count, programs, device, watch, &out[first + taken], err);
        if (status == TDM_OK)
            count_sharers(taken, ranks, devices, &out[first + taken]);
        if (status != TDM_OK && err != NULL)
            about_rank(first + taken, programs[0]->ranks, err);
        taken += status == TDM_OK;
    }
    if (status != TDM_OK)
        tdm_arenas_release(out + first, taken);
    return status;
}

enum tdm_status tdm_arenas_take(const struct tdm_backend *backend, uint32_t count,
                                const struct tdm_program *const *programs, const uint32_t *devices,
                                const struct tdm_arena_watch *watch, struct tdm_arenas *out,
                                struct tdm_error *err)
{
    return tdm_arenas_take_ranks(backend, count, programs, 0, programs[0]->ranks, devices, watch,
                                 out, err);
}

const struct tdm_arenas *tdm_arenas_here(const struct tdm_arenas *arenas)
{
    while (arenas->backend == NULL)
        arenas++;
    return arenas;
}

void tdm_arenas_apart(const struct tdm_arenas *arenas, uint32_t ranks, struct tdm_arenas *own)
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        own[rank] = arenas[rank];
        own[rank].processes = NULL;
    }
}

void tdm_arenas_release(struct tdm_arenas *arenas, uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (arenas[rank].executor != NULL)
            arenas[rank].backend->close(arenas[rank].executor);
        memset(&arenas[rank], 0, sizeof(arenas[rank]));
    }
}

void *tdm_arenas_slot(const struct tdm_arenas *arenas, const struct tdm_buffer *buffer,
                      uint32_t slot)
{
    char *base = arenas->base[buffer->place];
    return base == NULL ? NULL : base + buffer->offset + slot * buffer->slot_bytes;
}

void *tdm_arenas_scratch(const struct tdm_arenas *arenas, const struct tdm_program *program)
{
    return tdm_arenas_slot(arenas, &program->buffers[program->scratch], 0);
}

/* Fills one arena, slice by slice. */
static enum tdm_status fill(const struct tdm_arenas *arenas, uint32_t place,
                            const volatile sig_atomic_t *stop, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    uint64_t bytes = arenas->bytes[place];
    for (uint64_t at = 0; at < bytes && status == TDM_OK; at += SLICE_BYTES) {
        if (stop != NULL && *stop)
            return tdm_fail(err, TDM_INTERRUPTED, "interrupted while the arenas were filled");
        status = arenas->backend->fill(arenas->executor, arenas->base[place], at,
                                       bytes - at < SLICE_BYTES ? bytes - at : SLICE_BYTES, err);
    }
    return status;
}

enum tdm_status tdm_arenas_fill(const struct tdm_arenas *arenas, const volatile sig_atomic_t *stop,
                                struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t place = 0; place < TDM_MAX_PLACES && status == TDM_OK; place++)
        if (arenas->base[place] != NULL)
            status = fill(arenas, place, stop, err);
    return status;
}

enum tdm_status tdm_arenas_scan(const struct tdm_arenas *arenas, enum tdm_place place,
                                uint64_t *touched_bytes, uint64_t *highest_byte,
                                struct tdm_error *err)
{
    *touched_bytes = *highest_byte = 0;
    if (arenas->base[place] == NULL)
        return TDM_OK;
    return arenas->backend->scan(arenas->executor, arenas->base[place], arenas->bytes[place],
                                 touched_bytes, highest_byte, err);
}

uint64_t tdm_arenas_host_used(const struct tdm_arenas *arenas)
{
    char text[128];
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
    if (file >= 0)
        close(file);
    if (length < 0)
        return 0;
    text[length] = '\0';
    const char *resident = strchr(text, ' '); /* the second number, in pages */
    uint64_t pages = resident == NULL ? 0 : strtoull(resident, NULL, 10);
    uint64_t bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    bool stands_in = arenas->base[TDM_DEVICE] != NULL && !arenas->backend->own_device_memory;
    uint64_t device = stands_in ? tdm_arenas_device_bytes(arenas) : 0;
    return bytes > device ? bytes - device : 0;
}

uint64_t tdm_arenas_used(const struct tdm_arenas *arenas, enum tdm_place place,
                         uint64_t device_used_bytes)
{
    if (arenas->host_memory[place])
        return tdm_arenas_host_used(arenas);
    return place == TDM_DEVICE ? device_used_bytes : 0;
}
