/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas on the device and in host memory: copies, zeros, and the pattern.
 *
 * Copies also work if the host arena could not be pinned. The driver then stages them in the order
 * of their stream. A copy to the device then blocks the launching thread until the stream reaches
 * it. Everything it waits for was launched before it, so there is no deadlock.
 */
#include "executor/cuda/cuda.h"

#include "base/size.h"
#include "executor/copied.h"
#include "executor/pattern.h"
#include "ops/move.h"
#include "schedule/program.h"

#include <string.h>

/* What a thread writes of host memory at once. */
#define PIECE_BYTES (UINT64_C(1) << 20)

static enum tdm_status pin(void *self, void *start, uint64_t bytes, struct tdm_error *err)
{
    (void)self;
    return TDM_CUDA(cudaHostRegister(start, bytes, cudaHostRegisterPortable), err);
}

static void unpin(void *self, void *start)
{
    (void)self;
    cudaHostUnregister(start);
}

/* Pins memory near the GPU, if the computer has memory at different distances. */
static struct tdm_host_pinning pinning_of_device(void)
{
    struct tdm_host_pinning pinning = {NULL, TDM_NO_NODE, pin, unpin};
    char bus[32];
    int device;
    if (cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetPCIBusId(bus, sizeof(bus), device) == cudaSuccess)
        pinning.node = tdm_numa_node_of("", bus);
    else
        (void)cudaGetLastError();
    return pinning;
}

/* Kernels cannot read host memory that is not pinned. */
static enum tdm_status refuse_host_read(void *self, const struct tdm_item *item,
                                        struct tdm_error *err)
{
    const struct tdm_program *program = self;
    const struct tdm_place_row *places = program->schedule->machine->topology.places;
    if (item->kind != TDM_RUN || item->op->lane != TDM_LANE_COMPUTE)
        return TDM_OK;
    for (uint32_t i = 0; i < item->op->access_count; i++) {
        uint32_t buffer = item->op->access[i].buffer;
        if (buffer == TDM_NONE || !places[program->buffers[buffer].place].host_memory)
            continue;
        tdm_fail(err, TDM_INFEASIBLE,
                 "the host arena cannot be pinned, and %s reads \"%s\" there itself",
                 tdm_op_kind_name(item->op->kind), program->buffers[buffer].name);
        return tdm_hint(err, "raise the limit of locked memory (ulimit -l), or plan without "
                             "rings.gather");
    }
    return TDM_OK;
}

static enum tdm_status take_host(struct tdm_executor *executor, struct tdm_cuda_arena *arena,
                                 struct tdm_error *err)
{
    const struct tdm_host_pinning pinning = pinning_of_device();
    enum tdm_status status =
        tdm_host_arena_take(arena->bytes, &pinning, executor->watch, "", &arena->host, err);
    arena->base = arena->host.base;
    for (uint32_t i = 0; i < executor->program_count && status == TDM_OK && !arena->host.pinned;
         i++) {
        const struct tdm_program *program = executor->programs[i].program;
        status = tdm_program_emit(program, refuse_host_read, (void *)program, err);
    }
    return status;
}

enum tdm_status tdm_cuda_take_arena(struct tdm_executor *executor, enum tdm_place place,
                                    uint64_t bytes, void **base, struct tdm_error *err)
{
    if (executor->arena_count == TDM_PLACES)
        return tdm_fail(err, TDM_INTERNAL, "the cuda backend has an arena at each place already");
    struct tdm_cuda_arena *arena = &executor->arenas[executor->arena_count++];
    *arena = (struct tdm_cuda_arena){.place = place, .bytes = bytes};
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status == TDM_OK)
        status = place == TDM_DEVICE ? TDM_CUDA(cudaMalloc(&arena->base, bytes), err)
                                     : take_host(executor, arena, err);
    if (status == TDM_OK)
        *base = arena->base;
    return status;
}

void tdm_cuda_release_arenas(struct tdm_executor *executor)
{
    const struct tdm_host_pinning pinning = {NULL, TDM_NO_NODE, pin, unpin};
    for (uint32_t i = 0; i < executor->arena_count; i++) {
        struct tdm_cuda_arena *arena = &executor->arenas[i];
        if (arena->place == TDM_DEVICE)
            cudaFree(arena->base);
        else
            tdm_host_arena_release(&arena->host, &pinning);
    }
    executor->arena_count = 0;
}

/* Copies on the compute lane, whose stream does not wait for the default one. */
static enum tdm_status copy_now(struct tdm_executor *executor, void *to, const void *from,
                                uint64_t bytes, struct tdm_error *err)
{
    cudaStream_t stream = tdm_cuda_compute(executor);
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), err);
    return status == TDM_OK ? TDM_CUDA(cudaStreamSynchronize(stream), err) : status;
}

/* Does an address lie in an arena on the device, or in one on the host? */
static bool is_in_arena(const struct tdm_executor *executor, const void *address, bool on_device)
{
    for (uint32_t i = 0; i < executor->arena_count; i++) {
        const struct tdm_cuda_arena *arena = &executor->arenas[i];
        uintptr_t base = (uintptr_t)arena->base, at = (uintptr_t)address;
        if ((arena->place == TDM_DEVICE) == on_device && at >= base && at - base < arena->bytes)
            return true;
    }
    return false;
}

/* What is on the host is copied by the calling thread: several then copy at the same time, which
 * the driver does not do. */
enum tdm_status tdm_cuda_download(struct tdm_executor *executor, void *destination,
                                  const void *arena_bytes, uint64_t bytes, struct tdm_error *err)
{
    if (!is_in_arena(executor, arena_bytes, false))
        return copy_now(executor, destination, arena_bytes, bytes, err);
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaStreamSynchronize(tdm_cuda_compute(executor)), err);
    if (status == TDM_OK)
        memcpy(destination, arena_bytes, bytes);
    return status;
}

/* Copies to memory of the host, or zeroes it if `from` is NULL. Uses all threads: one reaches a
 * small part of the rate of the memory. */
static void write_host(unsigned char *to, const unsigned char *from, uint64_t bytes)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        const uint64_t piece = tdm_least(bytes - at, PIECE_BYTES);
        if (from != NULL)
            memcpy(to + at, from + at, piece);
        else
            memset(to + at, 0, piece);
    }
}

enum tdm_status tdm_cuda_upload(struct tdm_executor *executor, void *arena_bytes,
                                const void *source, uint64_t bytes, struct tdm_error *err)
{
    cudaStream_t stream = tdm_cuda_compute(executor);
    const bool on_host = is_in_arena(executor, arena_bytes, false);
    if (source != NULL && !on_host)
        return copy_now(executor, arena_bytes, source, bytes, err);
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status == TDM_OK && !on_host)
        status = TDM_CUDA(cudaMemsetAsync(arena_bytes, 0, bytes, stream), err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaStreamSynchronize(stream), err);
    if (status == TDM_OK && on_host)
        write_host(arena_bytes, source, bytes);
    return status;
}

enum tdm_status tdm_cuda_fill(struct tdm_executor *executor, void *base, uint64_t offset,
                              uint64_t bytes, struct tdm_error *err)
{
    uint64_t *words = base, first = offset / sizeof(*words), end = first + bytes / sizeof(*words);
    if (is_in_arena(executor, base, true)) {
        enum tdm_status status = tdm_cuda_here(executor, err);
        if (status == TDM_OK)
            status = tdm_cuda_pattern_fill(words, first, end, tdm_cuda_compute(executor), err);
        return status == TDM_OK ? TDM_CUDA(cudaStreamSynchronize(tdm_cuda_compute(executor)), err)
                                : status;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (uint64_t i = first; i < end; i++)
        words[i] = tdm_pattern_word(i);
    return TDM_OK;
}

enum tdm_status tdm_cuda_scan(struct tdm_executor *executor, const void *base, uint64_t bytes,
                              uint64_t *touched_bytes, uint64_t *highest_byte,
                              struct tdm_error *err)
{
    const uint64_t *words = base;
    uint64_t count = bytes / sizeof(*words), touched = 0, end = 0;
    if (is_in_arena(executor, base, true)) {
        uint64_t found[2];
        uint64_t *found_device = executor->found;
        enum tdm_status status = tdm_cuda_here(executor, err);
        if (status == TDM_OK)
            status =
                tdm_cuda_pattern_scan(words, count, found_device, tdm_cuda_compute(executor), err);
        if (status == TDM_OK)
            status = copy_now(executor, found, found_device, sizeof(found), err);
        if (status != TDM_OK)
            return status;
        touched = found[0];
        end = found[1];
    } else {
#ifdef _OPENMP
#pragma omp parallel for schedule(static) reduction(+ : touched) reduction(max : end)
#endif
        for (uint64_t i = 0; i < count; i++) {
            if (words[i] != tdm_pattern_word(i)) {
                touched++;
                end = i + 1;
            }
        }
    }
    *touched_bytes = touched * sizeof(*words);
    *highest_byte = end * sizeof(*words);
    return TDM_OK;
}

enum tdm_status tdm_cuda_run_copy(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    struct tdm_copied copied = tdm_copied_by(launch);
    return TDM_CUDA(cudaMemcpyAsync(copied.to, copied.from, copied.bytes, cudaMemcpyDefault,
                                    executor->lanes[launch->op->lane].stream),
                    err);
}

/* For a unit: zeroes the tensors of the op's part. For other content: all meaningful bytes. */
enum tdm_status tdm_cuda_run_zero(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    const struct tdm_weights_params *weights = &tdm_launch_params(launch)->weights;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *slot = &launch->operand[TDM_ZERO_SLOT];
    cudaStream_t stream = executor->lanes[op->lane].stream;
    enum tdm_content content = op->access[TDM_ZERO_SLOT].after.content;
    if (content < TDM_UNIT_WEIGHTS || content > TDM_UNIT_GRADIENT || op->part == TDM_PART_ALL)
        return TDM_CUDA(cudaMemsetAsync(slot->data, 0, op->access[TDM_ZERO_SLOT].bytes, stream),
                        err);
    const struct tdm_unit *unit = &weights->units[op->layer];
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < unit->tensor_count && status == TDM_OK; i++) {
        const struct tdm_tensor *tensor = &weights->tensors[unit->first_tensor + i];
        if (tdm_part_of(tensor->role) == op->part)
            status =
                TDM_CUDA(cudaMemsetAsync(tdm_operand_at(slot, tensor->offset), 0,
                                         tensor->elements * tdm_dtype_bytes(slot->dtype), stream),
                         err);
    }
    return status;
}
