/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the cuda backend: its state and its ops.
 *
 * A lane is a stream (lanes.c). Kernels take memory from the arena
 * alone: their operands, and the program's scratch, which the ops of the compute lane use one after
 * the other.
 */
#ifndef TDM_EXECUTOR_CUDA_CUDA_H
#define TDM_EXECUTOR_CUDA_CUDA_H

#include "executor/backend.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/driver_use.h"
#include "executor/cuda/kernels.h"
#include "executor/cuda/matmul.h"
#include "executor/host_arena.h"
#include "executor/host_optimizer.h"
#include "executor/timings.h"

#include <cuda_runtime_api.h>

/* Ops of a lane that the host may be ahead of the device. */
#define TDM_CUDA_RING 1024u

/* Ends of a lane's last ops that are remembered, for the ops of other lanes that waited for them: a
 * ring of copies may reach back over many times as many ops of the compute lane. */
#define TDM_CUDA_ENDS 65536u

/* An op under way. */
struct tdm_cuda_mark {
    uint64_t op_number;
    bool timed;
    cudaEvent_t end, done;           /* one of them is recorded: if it is timed, end */
    int64_t launch_ns;               /* if it is timed */
    uint64_t awaited[TDM_MAX_LANES]; /* position in each lane that it waits for; 0: none */
};

struct tdm_cuda_lane {
    cudaStream_t stream;
    struct tdm_cuda_mark
        *marks;        /* [TDM_CUDA_RING]; the op at position p is number (p - 1) % ring */
    uint64_t position; /* ops launched in this step */
    uint64_t ended;    /* of these, those of which the end and the time are known */
    int64_t last_end_ns;
    int64_t *ends_ns;                /* [TDM_CUDA_ENDS], by position: of timed ops */
    uint64_t awaited[TDM_MAX_LANES]; /* by the next op */
};

/* An update that the driver calls. */
struct tdm_cuda_call {
    struct tdm_host_update update;
    uint32_t threads;
};

/* What kernels must know of the documents of one program. */
struct tdm_cuda_program {
    const struct tdm_program *program;
    struct tdm_documents *documents; /* [sequences], with starts on the device */
    uint64_t *step_starts; /* room for those of a step's text; NULL: the schedule has them */
};

/* Ops that need the same code: kind, part, shape, and the modes of the operands that are there. */
struct tdm_cuda_like {
    uint32_t kind, part;
    uint64_t tokens, entries, operands;
};

/* A program has about 40. */
#define TDM_CUDA_LIKES 256u

struct tdm_cuda_arena {
    enum tdm_place place;
    void *base;
    uint64_t bytes;
    struct tdm_host_arena host; /* where the place is the host */
};

struct tdm_executor {
    struct tdm_topology topology; /* of the programs' machine */
    struct tdm_cuda_lane lanes[TDM_MAX_LANES];
    struct tdm_cuda_mark base; /* its end: the event that others are timed from */
    int64_t base_ns;           /* when that was */
    struct tdm_timings timings;

    struct tdm_driver_use driver_use;
    struct tdm_matmul *matmul;
    void *scratch; /* of the op under way */

    struct tdm_cuda_program *programs; /* [program_count] */
    uint32_t program_count;
    uint64_t *document_starts; /* of all programs, on the device */
    uint64_t document_count;
    uint64_t *found;     /* [2] by a scan, on the device */
    double *frequencies; /* of RoPE, [head_dim / 2], on the device */
    double rope_factor;
    uint64_t table_bytes;

    struct tdm_fault *fault; /* of a token; pinned, kernels write it */
    /* what ops of the compute lane count, as their marks; pinned, kernels write them */
    struct tdm_counts *counts, *count; /* of the op under way */

    struct tdm_cuda_call
        *calls; /* [TDM_CUDA_RING], as the marks of the host's lane; NULL: it has nothing to do */

    const struct tdm_program *prepared; /* and what of it is ready */
    struct tdm_cuda_like likes[TDM_CUDA_LIKES];
    uint32_t like_count;

    struct tdm_cuda_arena arenas[TDM_MAX_PLACES];
    uint32_t arena_count;
    const struct tdm_watch *watch; /* NULL: nobody looks */
};

static inline cudaStream_t tdm_cuda_compute(const struct tdm_executor *executor)
{
    return executor->lanes[TDM_LANE_COMPUTE].stream;
}

/* Documents of the sequence that a launch works on. */
struct tdm_documents tdm_cuda_documents(const struct tdm_executor *executor,
                                        const struct tdm_launch *launch);

/* An operand from element `first` on, as kernels take it. */
static inline struct tdm_array tdm_array_at(const struct tdm_operand *operand, uint64_t first)
{
    struct tdm_array array = {0};
    if (operand->data != NULL)
        array = (struct tdm_array){tdm_operand_at(operand, first), operand->dtype};
    return array;
}

/* Lanes, their events and times; lanes.c. Functions of the backend's table, and what opens them. */
enum tdm_status tdm_cuda_open_lanes(struct tdm_executor *executor, struct tdm_error *err);
void tdm_cuda_close_lanes(struct tdm_executor *executor);
enum tdm_status tdm_cuda_run(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err);
enum tdm_status tdm_cuda_wait(struct tdm_executor *executor, enum tdm_lane lane,
                              enum tdm_lane other, uint64_t position, struct tdm_error *err);
enum tdm_status tdm_cuda_ended(struct tdm_executor *executor, enum tdm_lane lane, uint64_t await,
                               uint64_t *ended, struct tdm_error *err);
enum tdm_status tdm_cuda_finish_lanes(struct tdm_executor *executor, struct tdm_error *err);
int64_t tdm_cuda_now(struct tdm_executor *executor);

/* Queues an op on its lane, without events. */
enum tdm_status tdm_cuda_launch(struct tdm_executor *executor, const struct tdm_launch *launch,
                                struct tdm_error *err);

/* Gets ready for ops like this one; prepare.c. */
enum tdm_status tdm_cuda_prepare(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 struct tdm_error *err);

/* The ops. Their operands are named in ops/. */
typedef enum tdm_status (*tdm_cuda_op)(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err);

enum tdm_status tdm_cuda_run_copy(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err);
enum tdm_status tdm_cuda_run_zero(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err);
enum tdm_status tdm_cuda_run_embed(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err);
enum tdm_status tdm_cuda_run_sort_tokens(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_embed_grad(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_norm(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err);
enum tdm_status tdm_cuda_run_norm_grad(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_product(struct tdm_executor *executor, const struct tdm_launch *launch,
                                     struct tdm_error *err);
enum tdm_status tdm_cuda_run_product_grad_weight(struct tdm_executor *executor,
                                                 const struct tdm_launch *launch,
                                                 struct tdm_error *err);
enum tdm_status tdm_cuda_run_rope(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err);
enum tdm_status tdm_cuda_run_rope_grad(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_kv_write(struct tdm_executor *executor,
                                      const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_kv_grad_read(struct tdm_executor *executor,
                                          const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_page_means(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_select(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err);
enum tdm_status tdm_cuda_run_attention(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_attention_grad(struct tdm_executor *executor,
                                            const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_swiglu(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err);
enum tdm_status tdm_cuda_run_swiglu_grad(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_head(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err);
enum tdm_status tdm_cuda_run_gradient_norm(struct tdm_executor *executor,
                                           const struct tdm_launch *launch, struct tdm_error *err);
enum tdm_status tdm_cuda_run_optimizer(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err);

/* Updates on the host: host_lane.c. Opened after the lanes; `calls` is freed when they are
 * closed. */
enum tdm_status tdm_cuda_open_host_lane(struct tdm_executor *executor, uint32_t count,
                                        const struct tdm_program *const *programs,
                                        struct tdm_error *err);
enum tdm_status tdm_cuda_run_host_update(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err);

/* Arenas and ordinary memory: arena.c. */
enum tdm_status tdm_cuda_take_arena(struct tdm_executor *executor, enum tdm_place place,
                                    uint64_t bytes, void **base, struct tdm_error *err);
void tdm_cuda_release_arenas(struct tdm_executor *executor);
enum tdm_status tdm_cuda_upload(struct tdm_executor *executor, void *arena_bytes,
                                const void *source, uint64_t bytes, struct tdm_error *err);
enum tdm_status tdm_cuda_download(struct tdm_executor *executor, void *destination,
                                  const void *arena_bytes, uint64_t bytes, struct tdm_error *err);
enum tdm_status tdm_cuda_fill(struct tdm_executor *executor, void *base, uint64_t offset,
                              uint64_t bytes, struct tdm_error *err);
enum tdm_status tdm_cuda_scan(struct tdm_executor *executor, const void *base, uint64_t bytes,
                              uint64_t *touched_bytes, uint64_t *highest_byte,
                              struct tdm_error *err);

#endif
