/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the cuda backend: its state and its ops.
 *
 * A lane is a stream (lanes.c). Kernels use memory of the arena only: their operands and the
 * program's scratch. The ops of the compute lane run one after the other, so they share the
 * scratch.
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
#include "executor/transport.h"
#include "ops/kernels.h"

#include <cuda_runtime_api.h>

/* How many ops of a lane the host may launch ahead of the device. */
#define TDM_CUDA_RING 1024u

/* How many end times of a lane's last ops are kept, for ops of other lanes that waited for them. A
 * ring of copies may refer back across many times as many ops of the compute lane. */
#define TDM_CUDA_ENDS 65536u

/* An op in flight. */
struct tdm_cuda_mark {
    uint64_t op_number;
    bool timed;
    cudaEvent_t end, done;           /* `end` is recorded if the op is timed, else `done` */
    int64_t launch_ns;               /* set if the op is timed */
    uint64_t awaited[TDM_MAX_LANES]; /* position in each lane that the op waits for; 0: none */
};

struct tdm_cuda_lane {
    cudaStream_t stream;
    struct tdm_cuda_mark
        *marks;        /* [TDM_CUDA_RING]; the op at position p is number (p - 1) % ring */
    uint64_t position; /* ops launched in this step */
    uint64_t ended;    /* how many of these are known to have ended */
    int64_t last_end_ns;
    int64_t *ends_ns;                /* [TDM_CUDA_ENDS], end times of timed ops, by position */
    uint64_t awaited[TDM_MAX_LANES]; /* what the next op waits for */
};

/* Arguments of an update on the host, which the driver calls. */
struct tdm_cuda_call {
    struct tdm_host_update update;
    uint32_t threads;
};

/* The documents of one program, for the kernels. */
struct tdm_cuda_program {
    const struct tdm_program *program;
    struct tdm_documents *documents; /* [sequences], with starts on the device */
    uint64_t *step_starts; /* device memory for the starts of a step's text; NULL: the schedule has
                            * them */
};

struct tdm_cuda_arena {
    enum tdm_place place;
    void *base;
    uint64_t bytes;
    struct tdm_host_arena host; /* if `place` is the host */
};

struct tdm_executor {
    int device;                                   /* its number */
    struct tdm_topology topology;                 /* of the machine that the programs are for */
    cudaEvent_t team_events[TDM_TEAM_PHASES + 1]; /* points of a team op: team.c */
    uint64_t reads;                               /* bit i: it may read the memory of device i */
    struct tdm_cuda_lane lanes[TDM_MAX_LANES];
    uint32_t lane_count;       /* of these; one rank needs no lane `peer`, which is the last */
    struct tdm_cuda_mark base; /* its `end` is the event that others are timed from */
    int64_t base_ns;           /* the time of that event */
    struct tdm_timings timings;

    struct tdm_driver_use driver_use;
    struct tdm_matmul *matmul;
    void *scratch; /* of the op under way */

    struct tdm_cuda_program *programs; /* [program_count] */
    uint32_t program_count;
    uint64_t *document_starts; /* of all programs, on the device */
    uint64_t document_count;
    uint64_t *found;     /* [2], results of a scan, on the device */
    double *frequencies; /* RoPE frequencies, [head_dim / 2], on the device */
    double rope_factor;
    uint64_t table_bytes;

    struct tdm_fault *fault; /* an invalid token; pinned memory, written by kernels */
    /* counters of ops of the compute lane, indexed as their marks; pinned memory, written by
     * kernels. `count` is the entry of the op being launched */
    struct tdm_counts *counts, *count; /* of the op under way */

    struct tdm_cuda_call *calls; /* [TDM_CUDA_RING], indexed as the marks of the host lane; NULL: no
                                  * program updates on the host */

    const struct tdm_program *prepared; /* the program that is being prepared; NULL: none */

    struct tdm_cuda_arena arenas[TDM_MAX_PLACES];
    uint32_t arena_count;
    const struct tdm_arena_watch *watch; /* NULL: no observer */
};

static inline cudaStream_t tdm_cuda_compute(const struct tdm_executor *executor)
{
    return executor->lanes[TDM_LANE_COMPUTE].stream;
}

/* The documents of the sequence that a launch processes. */
struct tdm_documents tdm_cuda_documents(const struct tdm_executor *executor,
                                        const struct tdm_launch *launch);

/* An operand from element `first` on, in the form that kernels take. */
static inline struct tdm_array tdm_array_at(const struct tdm_operand *operand, uint64_t first)
{
    struct tdm_array array = {0};
    if (operand->data != NULL)
        array = (struct tdm_array){tdm_operand_at(operand, first), operand->dtype};
    return array;
}

/* Lanes, their events and times: lanes.c. These are functions of the backend's table, and the
 * functions that open and close the lanes. */
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

/* The events of team ops: team.c. */
enum tdm_status tdm_cuda_open_team(struct tdm_executor *executor, struct tdm_error *err);
void tdm_cuda_close_team(struct tdm_executor *executor);
extern const struct tdm_team_verbs tdm_cuda_team_verbs;

/* Makes the executor's device that of the calling thread. To be called where CUDA's functions do
 * not get a stream of the device, and before kernels are launched. */
static inline enum tdm_status tdm_cuda_here(const struct tdm_executor *executor,
                                            struct tdm_error *err)
{
    return TDM_CUDA(cudaSetDevice(executor->device), err);
}

/* Loads kernels and chooses algorithms for ops like this one: prepare.c. */
enum tdm_status tdm_cuda_prepare(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 struct tdm_error *err);

/* The ops. ops/ names their operands, ops/kernels.h the functions. */
typedef enum tdm_status (*tdm_cuda_op)(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err);

#define TDM_KERNEL_DECLARE(kind, function)                                                   \
    enum tdm_status function(struct tdm_executor *executor, const struct tdm_launch *launch, \
                             struct tdm_error *err);
TDM_CUDA_KERNELS(TDM_KERNEL_DECLARE)
#undef TDM_KERNEL_DECLARE

/* Updates on the host: host_lane.c. Opened after the lanes. `calls` is freed when the lanes are
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
