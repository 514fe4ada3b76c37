/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cpu backend: it computes in fp32, and loads and stores any dtype of the schedule.
 *
 * The calling thread launches all ops in order: an op has ended when its run() returns, so wait()
 * does nothing. Scratch for the largest op is allocated at open. After that only the arenas are
 * allocated.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/backends.h"
#include "executor/cpu/cpu.h"

#include "base/size.h"
#include "base/units.h"
#include "executor/cpu/gemm.h"
#include "ops/kernels.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { SCRATCH_ALIGN = 4096 };

/* The stack of a thread: twice glibc's default. */
#define STACK_BYTES (UINT64_C(16) << 20)

#define KERNEL(kind, kernel) [TDM_OP_##kind] = kernel,
#define RUNS(kind, kernel) [TDM_OP_##kind] = run_cpu,

static const tdm_cpu_op ops[TDM_OP_KINDS] = {TDM_CPU_KERNELS(KERNEL)};

static struct tdm_cpu_scratch (*const scratch_of[])(const struct tdm_cpu_shape *) = {
    tdm_cpu_multiply_scratch,  tdm_cpu_norm_scratch,           tdm_cpu_rope_scratch,
    tdm_cpu_attention_scratch, tdm_cpu_attention_grad_scratch, tdm_cpu_embed_scratch,
    tdm_cpu_head_scratch,      tdm_cpu_gradient_norm_scratch,  tdm_cpu_select_scratch,
    tdm_cpu_merge_scratch,     tdm_cpu_pack_queries_scratch,
};

void tdm_cpu_for(struct tdm_executor *executor, uint64_t tasks, tdm_cpu_task task, void *context)
{
#ifdef _OPENMP
    if (tasks > 1 && executor->threads > 1) {
#pragma omp parallel for schedule(static, 1) num_threads(executor->threads)
        for (uint64_t i = 0; i < tasks; i++)
            task(context,
                 executor->thread_scratch + (uint64_t)omp_get_thread_num() * executor->thread_bytes,
                 i);
        return;
    }
#endif
    for (uint64_t i = 0; i < tasks; i++)
        task(context, executor->thread_scratch, i);
}

static void close_cpu(struct tdm_executor *executor)
{
    if (executor == NULL)
        return;
    for (uint32_t i = 0; i < executor->arena_count; i++)
        munmap(executor->arenas[i].base, executor->arenas[i].bytes);
    free(executor->arenas);
    free(executor->timings.items);
    free(executor->rope);
    free(executor->shared_scratch);
    free(executor->thread_scratch);
    free(executor);
}

/* Allocates scratch for the largest op of the programs. */
static enum tdm_status take_scratch(struct tdm_executor *executor, uint32_t count,
                                    const struct tdm_program *const *programs,
                                    struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    for (uint32_t i = 0; i < count; i++) {
        struct tdm_cpu_shape shape = {.params = &programs[i]->params};
        for (uint32_t c = 0; c < programs[i]->chunk_count; c++)
            shape.chunk_tokens = tdm_most(shape.chunk_tokens, programs[i]->chunks[c].tokens);
        for (size_t k = 0; k < sizeof(scratch_of) / sizeof(scratch_of[0]); k++) {
            struct tdm_cpu_scratch scratch = scratch_of[k](&shape);
            executor->thread_bytes = tdm_most(executor->thread_bytes, scratch.thread_bytes);
            executor->shared_bytes = tdm_most(executor->shared_bytes, scratch.shared_bytes);
        }
    }
    executor->thread_bytes = tdm_size_align(executor->thread_bytes, SCRATCH_ALIGN);
    executor->shared_bytes = tdm_size_align(executor->shared_bytes, SCRATCH_ALIGN);
    uint64_t all_threads = tdm_size_mul(executor->threads, executor->thread_bytes);
    executor->thread_scratch = aligned_alloc(SCRATCH_ALIGN, all_threads);
    executor->shared_scratch = aligned_alloc(SCRATCH_ALIGN, executor->shared_bytes);
    if (executor->thread_scratch == NULL || executor->shared_scratch == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "no memory for the scratch of %u threads (%s)",
                        executor->threads,
                        tdm_format_bytes(tdm_size_add(all_threads, executor->shared_bytes), text));
    return TDM_OK;
}

/* Starts the threads, and has each use the GEMM once at the same time as the others. */
static void warm_up(struct tdm_executor *executor)
{
#ifdef _OPENMP
#pragma omp parallel num_threads(executor->threads)
    {
        for (int i = 0; i < 3; i++) {
#pragma omp barrier
            tdm_gemm_warm_up();
        }
    }
#else
    (void)executor;
    tdm_gemm_warm_up();
#endif
}

/* Checks that there is address space for the stacks of all threads and for what the GEMM maps for
 * each: maps as much, and unmaps it. */
static enum tdm_status check_address_space(const struct tdm_executor *executor,
                                           struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    uint64_t each = tdm_gemm_mapped_bytes() + STACK_BYTES;
    void **ranges = calloc(executor->threads, sizeof(*ranges));
    uint32_t count = 0;
    if (tdm_gemm_mapped_bytes() == 0 || ranges == NULL) {
        free(ranges);
        return tdm_gemm_mapped_bytes() == 0
                   ? TDM_OK
                   : tdm_fail(err, TDM_NO_MEMORY, "no memory for the cpu backend");
    }
    for (; count < executor->threads; count++) {
        ranges[count] =
            mmap(NULL, each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (ranges[count] == MAP_FAILED)
            break;
    }
    bool enough = count == executor->threads;
    while (count > 0)
        munmap(ranges[--count], each);
    free(ranges);
    if (enough)
        return TDM_OK;
    tdm_fail(err, TDM_NO_MEMORY, "no address space for %u threads, of which each takes %s",
             executor->threads, tdm_format_bytes(each, text));
    return tdm_hint(err, "raise the limit on it (ulimit -v), or run fewer threads "
                         "(OMP_NUM_THREADS)");
}

static enum tdm_status open_cpu(uint32_t count, const struct tdm_program *const *programs,
                                uint32_t device, struct tdm_executor **opened,
                                struct tdm_error *err)
{
    struct tdm_executor *executor = calloc(1, sizeof(*executor));
    (void)device;
    if (executor == NULL || count == 0) {
        free(executor);
        return count == 0 ? tdm_fail(err, TDM_INTERNAL, "the cpu backend was opened for nothing")
                          : tdm_fail(err, TDM_NO_MEMORY, "no memory for the cpu backend");
    }
    executor->topology = programs[0]->schedule->machine->topology;
    executor->threads = 1;
#ifdef _OPENMP
    executor->threads = (uint32_t)omp_get_max_threads();
#endif
    enum tdm_status status = take_scratch(executor, count, programs, err);
    if (status != TDM_OK)
        goto fail_close;

    if (!tdm_timings_open(&executor->timings, count, programs) ||
        !tdm_rope_open(executor, &programs[0]->params.rope)) {
        status = tdm_fail(err, TDM_NO_MEMORY, "no memory for the tables of the cpu backend");
        goto fail_close;
    }
    status = check_address_space(executor, err);
    if (status != TDM_OK)
        goto fail_close;
    warm_up(executor);
    *opened = executor;
    return TDM_OK;

fail_close:
    close_cpu(executor);
    return status;
}

static int64_t now_cpu(struct tdm_executor *executor)
{
    struct timespec time;
    (void)executor;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static enum tdm_status run_cpu(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err)
{
    struct tdm_timing timing = {.op_number = launch->op->number, .start_ns = now_cpu(executor)};
    executor->counts = (struct tdm_counts){0};
    enum tdm_status status = ops[launch->op->kind](executor, launch, err);
    timing.end_ns = now_cpu(executor);
    timing.counts = executor->counts;
    tdm_timings_push(&executor->timings, timing);
    return status;
}

static size_t reap_cpu(struct tdm_executor *executor, struct tdm_timing *timings, size_t capacity)
{
    return tdm_timings_reap(&executor->timings, timings, capacity);
}

static enum tdm_status wait_cpu(struct tdm_executor *executor, enum tdm_lane lane,
                                enum tdm_lane other, uint64_t position, struct tdm_error *err)
{
    (void)executor;
    (void)lane;
    (void)other;
    (void)position;
    (void)err;
    return TDM_OK;
}

static enum tdm_status finish_cpu(struct tdm_executor *executor, struct tdm_error *err)
{
    (void)executor;
    (void)err;
    return TDM_OK;
}

static uint64_t outside_bytes_cpu(const struct tdm_executor *executor)
{
    return executor->threads * executor->thread_bytes + executor->shared_bytes +
           executor->rope_bytes + executor->timings.capacity * sizeof(*executor->timings.items);
}

const struct tdm_backend tdm_cpu_backend = {
    .name = "cpu",
    .description = "this computer's processor, fp32 arithmetic, products by OpenBLAS if built in",
    .executes = true,
    .places = TDM_MAX_PLACES,
    .lanes = TDM_MAX_LANES,
    .open = open_cpu,
    .close = close_cpu,
    .arena = tdm_cpu_take_arena,
    .run = {TDM_CPU_KERNELS(RUNS)},
    .team = &tdm_cpu_team_verbs,
    .wait = wait_cpu,
    .finish = finish_cpu,
    .reap = reap_cpu,
    .upload = tdm_cpu_upload,
    .download = tdm_cpu_download,
    .fill = tdm_cpu_fill,
    .scan = tdm_cpu_scan,
    .now = now_cpu,
    .outside_bytes = outside_bytes_cpu,
};
