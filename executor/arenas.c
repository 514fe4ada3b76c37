/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas: what a run takes, counted against what the machine has before it is taken. */
#include "executor/arenas.h"

#include "base/size.h"
#include "base/units.h"

#include <stdio.h>
#include <string.h>

/* Bytes that this computer can still give, by the kernel's own estimate; TDM_SIZE_MAX if unknown. */
static uint64_t available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return TDM_SIZE_MAX;
    char line[128];
    unsigned long long kib;
    uint64_t bytes = TDM_SIZE_MAX;
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            bytes = tdm_size_mul(kib, 1024);
    fclose(file);
    return bytes;
}

enum tdm_status tdm_arenas_take(const struct tdm_backend *backend, uint32_t count,
                                const struct tdm_program *const *programs, struct tdm_arenas *out,
                                struct tdm_error *err)
{
    struct tdm_arenas arenas = {.backend = backend};
    uint64_t total = 0;
    for (int place = 0; place < TDM_PLACES; place++) {
        for (uint32_t i = 0; i < count; i++)
            if (programs[i]->arena_bytes[place] > arenas.bytes[place])
                arenas.bytes[place] = programs[i]->arena_bytes[place];
        if (place != TDM_DEVICE || !backend->own_device_memory)
            total = tdm_size_add(total, arenas.bytes[place]);
    }
    uint64_t available = available_bytes();
    if (backend->executes && total > available) {
        char need[TDM_FORMAT_SIZE], have[TDM_FORMAT_SIZE];
        tdm_fail(err, TDM_INFEASIBLE, "the arenas need %s, this machine has %s available",
                 tdm_format_bytes(total, need), tdm_format_bytes(available, have));
        return tdm_hint(err, "plan with smaller --memory and --host-memory, together at most %s",
                        have);
    }

    enum tdm_status status = backend->open(count, programs, &arenas.executor, err);
    if (status != TDM_OK)
        return status;
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++)
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

void tdm_arenas_release(struct tdm_arenas *arenas)
{
    if (arenas->executor != NULL)
        arenas->backend->close(arenas->executor);
    memset(arenas, 0, sizeof(*arenas));
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

enum tdm_status tdm_arenas_fill(const struct tdm_arenas *arenas, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++)
        if (arenas->base[place] != NULL)
            status = arenas->backend->fill(arenas->executor, arenas->base[place],
                                           arenas->bytes[place], err);
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
