/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda backend: its table, and what it allocates when it is opened. */
#include "executor/backends.h"
#include "executor/cuda/cuda.h"
#include "ops/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL(kind, kernel) [TDM_OP_##kind] = kernel,
#define RUNS(kind, kernel) [TDM_OP_##kind] = tdm_cuda_run,

static const tdm_cuda_op ops[TDM_OP_KINDS] = {TDM_CUDA_KERNELS(KERNEL)};

enum tdm_status tdm_cuda_launch(struct tdm_executor *executor, const struct tdm_launch *launch,
                                struct tdm_error *err)
{
    if (launch->op->lane == TDM_LANE_COMPUTE) {
        executor->scratch = launch->scratch;
        tdm_matmul_use(executor->matmul, launch->scratch, launch->program->product_bytes);
    }
    return ops[launch->op->kind](executor, launch, err);
}

/* Fails if a kernel met a token outside the vocabulary. */
static enum tdm_status check_fault(struct tdm_executor *executor, struct tdm_error *err)
{
    struct tdm_fault fault = *executor->fault;
    if (fault.row == 0)
        return TDM_OK;
    *executor->fault = (struct tdm_fault){0};
    return tdm_fail(err, TDM_INPUT, "token %d, row %llu of a chunk, is not in the vocabulary",
                    (int)fault.token, (unsigned long long)fault.row - 1);
}

static enum tdm_status finish_cuda(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status = tdm_cuda_finish_lanes(executor, err);
    executor->prepared = NULL;
    return status == TDM_OK ? check_fault(executor, err) : status;
}

static size_t reap_cuda(struct tdm_executor *executor, struct tdm_timing *timings, size_t capacity)
{
    return tdm_timings_reap(&executor->timings, timings, capacity);
}

/* ---- tables ---- */

/* The number of document starts to reserve for a program on the device. */
static uint64_t starts_of(const struct tdm_program *program)
{
    uint64_t count = 0, tokens = tdm_program_tokens(program);
    if (program->documents_of_text)
        return tokens < TDM_MOST_STEP_DOCUMENTS ? tokens : TDM_MOST_STEP_DOCUMENTS;
    for (uint32_t s = 0; s < program->sequence_count; s++)
        if (program->sequences[s].document_starts != NULL)
            count += program->sequences[s].document_count;
    return count;
}

/* Copies the starts of all documents of `sequences` to `starts` on the device. */
static enum tdm_status put_documents(const struct tdm_cuda_program *program,
                                     const struct tdm_sequence *sequences, uint64_t *starts,
                                     struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t s = 0; s < program->program->sequence_count && status == TDM_OK; s++) {
        const struct tdm_sequence *sequence = &sequences[s];
        program->documents[s] = (struct tdm_documents){.count = 1};
        if (sequence->document_count == 1)
            continue;
        status =
            TDM_CUDA(cudaMemcpy(starts, sequence->document_starts,
                                sequence->document_count * sizeof(*starts), cudaMemcpyHostToDevice),
                     err);
        program->documents[s] = (struct tdm_documents){starts, sequence->document_count};
        starts += sequence->document_count;
    }
    return status;
}

/* Allocates and fills the starts of all documents of all programs on the device. */
static enum tdm_status open_documents(struct tdm_executor *executor, uint32_t count,
                                      const struct tdm_program *const *programs,
                                      struct tdm_error *err)
{
    executor->programs = calloc(count, sizeof(*executor->programs));
    if (executor->programs == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the programs of a run");
    executor->program_count = count;
    for (uint32_t i = 0; i < count; i++) {
        executor->programs[i].program = programs[i];
        executor->document_count += starts_of(programs[i]);
    }
    uint64_t bytes = executor->document_count * sizeof(uint64_t);
    enum tdm_status status = TDM_OK;
    if (bytes > 0)
        status = TDM_CUDA(cudaMalloc((void **)&executor->document_starts, bytes), err);
    uint64_t *starts = executor->document_starts;
    for (uint32_t i = 0; i < count && status == TDM_OK; i++) {
        struct tdm_cuda_program *program = &executor->programs[i];
        program->documents = calloc(programs[i]->sequence_count, sizeof(*program->documents));
        if (program->documents == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the documents of a run");
        program->step_starts = programs[i]->documents_of_text ? starts : NULL;
        status = put_documents(program, programs[i]->sequences, starts, err);
        starts += starts_of(programs[i]);
    }
    return status;
}

/* Are both the program of a run, as any rank runs it? */
static bool is_same(const struct tdm_program *one, const struct tdm_program *other)
{
    return one->chunks == other->chunks;
}

static struct tdm_cuda_program *program_of(const struct tdm_executor *executor,
                                           const struct tdm_program *program)
{
    uint32_t i = 0;
    while (i + 1 < executor->program_count && !is_same(executor->programs[i].program, program))
        i++;
    return &executor->programs[i];
}

static enum tdm_status documents_cuda(struct tdm_executor *executor,
                                      const struct tdm_program *program,
                                      const struct tdm_sequence *sequences, struct tdm_error *err)
{
    struct tdm_cuda_program *own = program_of(executor, program);
    uint64_t count = 0;
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t s = 0; s < program->sequence_count; s++)
        count += sequences[s].document_count;
    if (own->step_starts == NULL || count > starts_of(program))
        return tdm_fail(err, TDM_INTERNAL, "the cuda backend has no room for %llu documents",
                        (unsigned long long)count);
    return put_documents(own, sequences, own->step_starts, err);
}

static enum tdm_status open_rope(struct tdm_executor *executor,
                                 const struct tdm_rope_params *params, struct tdm_error *err)
{
    uint64_t bytes = (uint64_t)params->head_dim / 2 * sizeof(double);
    double *frequencies = malloc(bytes + 1);
    if (frequencies == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the frequencies of RoPE");
    tdm_rope_inverse_frequencies(&params->positions, params->head_dim, frequencies,
                                 &executor->rope_factor);
    enum tdm_status status = TDM_CUDA(cudaMalloc((void **)&executor->frequencies, bytes), err);
    if (status == TDM_OK)
        status = TDM_CUDA(
            cudaMemcpy(executor->frequencies, frequencies, bytes, cudaMemcpyHostToDevice), err);
    free(frequencies);
    executor->table_bytes = bytes + executor->document_count * sizeof(uint64_t);
    return status;
}

struct tdm_documents tdm_cuda_documents(const struct tdm_executor *executor,
                                        const struct tdm_launch *launch)
{
    const struct tdm_chunk *chunk = &launch->program->chunks[launch->op->chunk];
    return program_of(executor, launch->program)->documents[chunk->sequence];
}

/* Refuses what the kernels would refuse in the middle of a run. */
static enum tdm_status supports_cuda(const struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_params *params = &program->params;
    if (program->ranks > TDM_CUDA_MOST_RANKS)
        return tdm_fail(err, TDM_INPUT, "%s: the cuda backend takes up to %u ranks, not %u",
                        params->model, TDM_CUDA_MOST_RANKS, program->ranks);
    if (params->norm.hidden > TDM_CUDA_MOST_HIDDEN)
        return tdm_fail(err, TDM_INPUT, "%s: the cuda backend takes hidden sizes up to %u, not %u",
                        params->model, TDM_CUDA_MOST_HIDDEN, params->norm.hidden);
    if (params->pages.head_dim > TDM_CUDA_MOST_HEAD_DIM)
        return tdm_fail(err, TDM_INPUT, "%s: the cuda backend takes head dims up to %u, not %u",
                        params->model, TDM_CUDA_MOST_HEAD_DIM, params->pages.head_dim);
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].dtype == TDM_DTYPE_FP16)
            return tdm_fail(err, TDM_INPUT, "%s: the cuda backend has no kernels for %s in %s",
                            params->model, program->buffers[i].name,
                            tdm_dtype_name(program->buffers[i].dtype));
    return TDM_OK;
}

static enum tdm_status open_fault(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status =
        TDM_CUDA(cudaMalloc((void **)&executor->found, 2 * sizeof(*executor->found)), err);
    if (status == TDM_OK)
        status = TDM_CUDA(
            cudaHostAlloc((void **)&executor->fault, sizeof(*executor->fault), cudaHostAllocMapped),
            err);
    if (status == TDM_OK)
        memset(executor->fault, 0, sizeof(*executor->fault));
    if (status == TDM_OK)
        status =
            TDM_CUDA(cudaHostAlloc((void **)&executor->counts,
                                   TDM_CUDA_RING * sizeof(*executor->counts), cudaHostAllocMapped),
                     err);
    executor->count = executor->counts;
    return status;
}

/* ---- opening and closing ---- */

static void close_cuda(struct tdm_executor *executor)
{
    if (executor == NULL)
        return;
    (void)tdm_cuda_here(executor, NULL);
    tdm_cuda_close_team(executor);
    tdm_cuda_close_lanes(executor);
    free(executor->calls);
    tdm_cuda_release_arenas(executor);
    tdm_matmul_close(executor->matmul);
    cudaFree(executor->found);
    cudaFree(executor->document_starts);
    cudaFree(executor->frequencies);
    cudaFreeHost(executor->fault);
    cudaFreeHost(executor->counts);
    for (uint32_t i = 0; i < executor->program_count; i++)
        free(executor->programs[i].documents);
    free(executor->programs);
    free(executor->timings.items);
    tdm_driver_use_close(&executor->driver_use);
    free(executor);
}

static enum tdm_status open_cuda(uint32_t count, const struct tdm_program *const *programs,
                                 uint32_t device, struct tdm_executor **opened,
                                 struct tdm_error *err)
{
    struct tdm_executor *executor = calloc(1, sizeof(*executor));
    if (executor == NULL || count == 0 || !tdm_timings_open(&executor->timings, count, programs)) {
        free(executor);
        return count == 0 ? tdm_fail(err, TDM_INTERNAL, "the cuda backend was opened for nothing")
                          : tdm_fail(err, TDM_NO_MEMORY, "no memory for the cuda backend");
    }
    executor->topology = programs[0]->schedule->machine->topology;
    executor->device = (int)device;
    executor->lane_count = TDM_LANE_PEER;
    for (uint32_t i = 0; i < count; i++)
        if (programs[i]->ranks > 1)
            executor->lane_count = TDM_LANES;
    int devices = 0;
    enum tdm_status status = TDM_CUDA(cudaGetDeviceCount(&devices), err);
    if (status == TDM_OK) {
        tdm_driver_use_open(&executor->driver_use, executor->device);
        status = tdm_cuda_here(executor, err);
    }
    if (status == TDM_OK)
        status = tdm_cuda_open_lanes(executor, err);
    if (status == TDM_OK)
        status = tdm_cuda_open_team(executor, err);
    if (status == TDM_OK)
        status = tdm_cuda_open_host_lane(executor, count, programs, err);
    if (status == TDM_OK)
        status = open_documents(executor, count, programs, err);
    if (status == TDM_OK)
        status = open_rope(executor, &programs[0]->params.rope, err);
    if (status == TDM_OK)
        status = open_fault(executor, err);
    if (status == TDM_OK)
        status = tdm_matmul_open(&executor->matmul, err);
    if (status != TDM_OK) {
        close_cuda(executor);
        return status;
    }
    *opened = executor;
    return TDM_OK;
}

static enum tdm_status used_cuda(const struct tdm_executor *executor, uint64_t *used_bytes,
                                 uint64_t *free_bytes, struct tdm_error *err)
{
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status == TDM_OK)
        status = tdm_driver_use_read(&executor->driver_use, used_bytes, err);
    return status == TDM_OK && free_bytes != NULL ? tdm_driver_free_read(free_bytes, err) : status;
}

static uint64_t pinned_bytes_cuda(const struct tdm_executor *executor)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < executor->arena_count; i++)
        bytes += executor->arenas[i].host.pinned ? executor->arenas[i].bytes : 0;
    return bytes;
}

static enum tdm_status free_bytes_cuda(uint64_t *bytes, struct tdm_error *err)
{
    struct tdm_driver_use use;
    int devices = 0;
    enum tdm_status status = TDM_CUDA(cudaGetDeviceCount(&devices), err);
    if (status != TDM_OK)
        return status;
    tdm_driver_use_open(&use, 0);
    bool known = tdm_driver_use_free(&use, bytes);
    tdm_driver_use_close(&use);
    return known ? TDM_OK : tdm_driver_free_read(bytes, err);
}

static enum tdm_status devices_cuda(uint32_t *count, struct tdm_error *err)
{
    int devices = 0;
    enum tdm_status status = TDM_CUDA(cudaGetDeviceCount(&devices), err);
    *count = (uint32_t)devices;
    return status;
}

static enum tdm_status card_cuda(struct tdm_card *card, struct tdm_error *err)
{
    struct cudaDeviceProp properties;
    enum tdm_status status = TDM_CUDA(cudaGetDeviceProperties(&properties, 0), err);
    if (status != TDM_OK)
        return status;
    snprintf(card->name, sizeof(card->name), "%.95s", properties.name);
    card->bytes = properties.totalGlobalMem;
    tdm_driver_version(card->driver, sizeof(card->driver));
    return TDM_OK;
}

static uint64_t outside_bytes_cuda(const struct tdm_executor *executor)
{
    return executor->table_bytes;
}

static void watch_cuda(struct tdm_executor *executor, const struct tdm_arena_watch *watch)
{
    executor->watch = watch;
}

const struct tdm_backend tdm_cuda_backend = {
    .name = "cuda",
    .description = "an NVIDIA GPU, bf16 and fp32 with fp32 sums, products by cuBLASLt",
    .executes = true,
    .places = TDM_PLACES,
    .lanes = TDM_LANES,
    .own_device_memory = true,
    .timing_seconds = 2e-6,
    .open = open_cuda,
    .close = close_cuda,
    .arena = tdm_cuda_take_arena,
    .watch = watch_cuda,
    .prepare = tdm_cuda_prepare,
    .supports = supports_cuda,
    .documents = documents_cuda,
    .run = {TDM_CUDA_KERNELS(RUNS)},
    .team = &tdm_cuda_team_verbs,
    .wait = tdm_cuda_wait,
    .ended = tdm_cuda_ended,
    .finish = finish_cuda,
    .reap = reap_cuda,
    .upload = tdm_cuda_upload,
    .download = tdm_cuda_download,
    .fill = tdm_cuda_fill,
    .scan = tdm_cuda_scan,
    .used = used_cuda,
    .pinned_bytes = pinned_bytes_cuda,
    .devices = devices_cuda,
    .free_bytes = free_bytes_cuda,
    .card = card_cuda,
    .now = tdm_cuda_now,
    .outside_bytes = outside_bytes_cuda,
};
