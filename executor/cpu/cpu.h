/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the cpu backend: its state, how an op is cut into tasks, and the ops.
 *
 * An op is a fixed set of tasks that depends only on its shape. Each task writes its own memory,
 * and a sum over tasks is added in task order. So the result depends neither on the number of
 * threads nor on which thread runs a task.
 */
#ifndef TDM_EXECUTOR_CPU_CPU_H
#define TDM_EXECUTOR_CPU_CPU_H

#include "base/size.h"
#include "executor/backend.h"
#include "executor/simd.h"
#include "executor/timings.h"
#include "ops/kernels.h"

/* The largest ops of the programs that a backend was opened for; determines the size of scratch. */
struct tdm_cpu_shape {
    const struct tdm_params *params;
    uint64_t chunk_tokens; /* of the longest chunk */
};

struct tdm_cpu_arena {
    void *base;
    uint64_t bytes;
};

struct tdm_executor {
    struct tdm_topology topology; /* of the programs' machine */
    uint32_t threads;

    /* Scratch per thread, and scratch that the tasks of an op share. */
    unsigned char *thread_scratch;
    uint64_t thread_bytes;
    unsigned char *shared_scratch;
    uint64_t shared_bytes;

    /* RoPE: frequencies [head_dim / 2], and (cos, sin) of the positions below TDM_ROPE_STEP. */
    double *rope;
    double rope_factor;
    uint64_t rope_bytes;

    struct tdm_timings timings;
    struct tdm_counts counts; /* of the current op */

    struct tdm_cpu_arena *arenas;
    uint32_t arena_count;
};

/* Runs task(context, scratch, i) for i in [0, tasks), each on some thread with that thread's
 * scratch. */
typedef void (*tdm_cpu_task)(void *context, void *scratch, uint64_t index);
void tdm_cpu_for(struct tdm_executor *executor, uint64_t tasks, tdm_cpu_task task, void *context);

/* Takes `count` elements of `size` bytes from scratch, aligned to 64 bytes, and advances *scratch.
 * If *scratch starts at NULL, the same code computes the required size. */
static inline void *tdm_cpu_take(unsigned char **scratch, uint64_t count, uint64_t size)
{
    void *taken = *scratch;
    *scratch = (unsigned char *)((uintptr_t)*scratch + (count * size + 63) / 64 * 64);
    return taken;
}

/* Rows per task of elementwise work. */
#define TDM_TASK_ROWS 32u

/* Scratch that an op needs: bytes per thread, and bytes shared by its tasks. */
struct tdm_cpu_scratch {
    uint64_t thread_bytes, shared_bytes;
};

struct tdm_cpu_scratch tdm_cpu_multiply_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_norm_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_rope_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_attention_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_merge_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_pack_queries_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_attention_grad_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_select_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_embed_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_head_scratch(const struct tdm_cpu_shape *shape);
struct tdm_cpu_scratch tdm_cpu_gradient_norm_scratch(const struct tdm_cpu_shape *shape);

/* Makes RoPE's tables; false if out of memory. */
bool tdm_rope_open(struct tdm_executor *executor, const struct tdm_rope_params *params);

/* TDM_INPUT if one of `count` tokens is not in the vocabulary. */
enum tdm_status tdm_cpu_check_tokens(const struct tdm_launch *launch, const int32_t *tokens,
                                     uint64_t count, struct tdm_error *err);

/* The ops. Their operands are named in ops/, they themselves in ops/kernels.h. */
typedef enum tdm_status (*tdm_cpu_op)(struct tdm_executor *executor,
                                      const struct tdm_launch *launch, struct tdm_error *err);

#define TDM_KERNEL_DECLARE(kind, function)                                                   \
    enum tdm_status function(struct tdm_executor *executor, const struct tdm_launch *launch, \
                             struct tdm_error *err);
TDM_CPU_KERNELS(TDM_KERNEL_DECLARE)
#undef TDM_KERNEL_DECLARE

/* Arenas and ordinary memory. */
enum tdm_status tdm_cpu_take_arena(struct tdm_executor *executor, enum tdm_place place,
                                   uint64_t bytes, void **base, struct tdm_error *err);
enum tdm_status tdm_cpu_upload(struct tdm_executor *executor, void *arena_bytes, const void *source,
                               uint64_t bytes, struct tdm_error *err);
enum tdm_status tdm_cpu_download(struct tdm_executor *executor, void *destination,
                                 const void *arena_bytes, uint64_t bytes, struct tdm_error *err);
enum tdm_status tdm_cpu_fill(struct tdm_executor *executor, void *base, uint64_t offset,
                             uint64_t bytes, struct tdm_error *err);
enum tdm_status tdm_cpu_scan(struct tdm_executor *executor, const void *base, uint64_t bytes,
                             uint64_t *touched_bytes, uint64_t *highest_byte,
                             struct tdm_error *err);

/* What transports need: team.c. */
extern const struct tdm_team_verbs tdm_cpu_team_verbs;

#endif
