/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: streams, the events after their ops, and the times of the ops.
 *
 * After every op an event is recorded, in a ring that the host never overtakes. Other lanes wait
 * for it. In a timed step it also tells when the op ended. The start needs no event: a lane begins
 * an op when the previous one has ended, everything it waits for has ended, and the host has
 * launched it. A timing event delays a lane by 2 us, one without timing by 0.2 us (H200).
 *
 * Times are measured from a base event whose time on the host's clock is known. The base moves
 * along because elapsed times are floats of milliseconds. It is set again after every step, because
 * the two clocks drift.
 */
#include "executor/cuda/cuda.h"

#include <stdlib.h>
#include <time.h>

/* The base event is not much older than this. */
#define BASE_MILLISECONDS 1000.0f

int64_t tdm_cuda_now(struct tdm_executor *executor)
{
    struct timespec time;
    (void)executor;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static struct tdm_cuda_mark *mark_at(const struct tdm_cuda_lane *lane, uint64_t position)
{
    return &lane->marks[(position - 1) % TDM_CUDA_RING];
}

static cudaEvent_t event_of(const struct tdm_cuda_mark *mark)
{
    return mark->timed ? mark->end : mark->done;
}

static enum tdm_status take_end(struct tdm_executor *executor, struct tdm_cuda_lane *lane,
                                struct tdm_error *err);

/* Finds when an op of a lane could begin: everything it waited for has ended. Takes the times of
 * these ops first. */
static enum tdm_status find_start(struct tdm_executor *executor, const struct tdm_cuda_lane *lane,
                                  const struct tdm_cuda_mark *mark, int64_t *start_ns,
                                  struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    *start_ns = mark->launch_ns > lane->last_end_ns ? mark->launch_ns : lane->last_end_ns;
    for (int i = 0; i < (int)executor->lane_count && status == TDM_OK; i++) {
        struct tdm_cuda_lane *other = &executor->lanes[i];
        uint64_t position = mark->awaited[i];
        while (other->ended < position && status == TDM_OK)
            status = take_end(executor, other, err);
        /* if that time is already overwritten, the start found is too early */
        if (status == TDM_OK && position > 0 && other->ended - position < TDM_CUDA_ENDS &&
            other->ends_ns[position % TDM_CUDA_ENDS] > *start_ns)
            *start_ns = other->ends_ns[position % TDM_CUDA_ENDS];
    }
    return status;
}

static enum tdm_status take_time(struct tdm_executor *executor, struct tdm_cuda_lane *lane,
                                 struct tdm_cuda_mark *mark, struct tdm_error *err)
{
    struct tdm_timing timing = {.op_number = mark->op_number};
    float milliseconds;
    enum tdm_status status = find_start(executor, lane, mark, &timing.start_ns, err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaEventElapsedTime(&milliseconds, executor->base.end, mark->end), err);
    if (status != TDM_OK)
        return status;
    if (lane == &executor->lanes[TDM_LANE_COMPUTE])
        timing.counts = executor->counts[lane->ended % TDM_CUDA_RING];
    timing.end_ns = executor->base_ns + (int64_t)(1e6 * (double)milliseconds);
    if (timing.start_ns > timing.end_ns)
        timing.start_ns = timing.end_ns;
    lane->ends_ns[(lane->ended + 1) % TDM_CUDA_ENDS] = lane->last_end_ns = timing.end_ns;
    tdm_timings_push(&executor->timings, timing);
    if (milliseconds > BASE_MILLISECONDS) { /* its end becomes the base */
        cudaEvent_t event = executor->base.end;
        executor->base.end = mark->end;
        executor->base_ns = timing.end_ns;
        mark->end = event;
    }
    return TDM_OK;
}

/* Waits for the oldest op of a lane that is not known to have ended, and takes its time. */
static enum tdm_status take_end(struct tdm_executor *executor, struct tdm_cuda_lane *lane,
                                struct tdm_error *err)
{
    struct tdm_cuda_mark *mark = mark_at(lane, lane->ended + 1);
    enum tdm_status status = TDM_CUDA(cudaEventSynchronize(event_of(mark)), err);
    if (status == TDM_OK && mark->timed)
        status = take_time(executor, lane, mark, err);
    if (status == TDM_OK)
        lane->ended++;
    return status;
}

enum tdm_status tdm_cuda_run(struct tdm_executor *executor, const struct tdm_launch *launch,
                             struct tdm_error *err)
{
    struct tdm_cuda_lane *lane = &executor->lanes[launch->op->lane];
    enum tdm_status status = tdm_cuda_here(executor, err);
    if (status == TDM_OK && lane->position - lane->ended == TDM_CUDA_RING)
        status = take_end(executor, lane, err);
    struct tdm_cuda_mark *mark = mark_at(lane, lane->position + 1);
    mark->op_number = launch->op->number;
    mark->timed = !launch->step->untimed;
    if (mark->timed)
        mark->launch_ns = tdm_cuda_now(executor);
    if (launch->op->lane == TDM_LANE_COMPUTE) {
        executor->count = &executor->counts[lane->position % TDM_CUDA_RING];
        *executor->count = (struct tdm_counts){0};
    }
    for (int i = 0; i < (int)executor->lane_count; i++) {
        mark->awaited[i] = lane->awaited[i];
        lane->awaited[i] = 0;
    }
    if (status == TDM_OK)
        status = tdm_cuda_launch(executor, launch, err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaEventRecord(event_of(mark), lane->stream), err);
    if (status == TDM_OK)
        lane->position++;
    return status;
}

enum tdm_status tdm_cuda_wait(struct tdm_executor *executor, enum tdm_lane number,
                              enum tdm_lane other, uint64_t position, struct tdm_error *err)
{
    struct tdm_cuda_lane *lane = &executor->lanes[number];
    const struct tdm_cuda_lane *awaited = &executor->lanes[other];
    if (position > lane->awaited[other])
        lane->awaited[other] = position;
    if (position <= awaited->ended)
        return TDM_OK;
    if (position > awaited->position)
        return tdm_fail(err, TDM_INTERNAL, "lane %s waits for op %llu of lane %s, which has %llu",
                        tdm_lane_name(&executor->topology, number), (unsigned long long)position,
                        tdm_lane_name(&executor->topology, other),
                        (unsigned long long)awaited->position);
    return TDM_CUDA(cudaStreamWaitEvent(lane->stream, event_of(mark_at(awaited, position)), 0),
                    err);
}

enum tdm_status tdm_cuda_ended(struct tdm_executor *executor, enum tdm_lane number, uint64_t await,
                               uint64_t *ended, struct tdm_error *err)
{
    struct tdm_cuda_lane *lane = &executor->lanes[number];
    enum tdm_status status = TDM_OK;
    while (lane->ended < lane->position && status == TDM_OK) {
        if (lane->ended >= await &&
            cudaEventQuery(event_of(mark_at(lane, lane->ended + 1))) == cudaErrorNotReady) {
            /* it has not ended; later calls must not report this as an error */
            (void)cudaGetLastError();
            break;
        }
        status = take_end(executor, lane, err);
    }
    *ended = lane->ended;
    return status;
}

/* All lanes are idle: sets the base to now. */
static enum tdm_status set_base(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status =
        TDM_CUDA(cudaEventRecord(executor->base.end, tdm_cuda_compute(executor)), err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaEventSynchronize(executor->base.end), err);
    executor->base_ns = tdm_cuda_now(executor);
    return status;
}

enum tdm_status tdm_cuda_finish_lanes(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int i = 0; i < (int)executor->lane_count; i++) {
        struct tdm_cuda_lane *lane = &executor->lanes[i];
        struct tdm_error *first = status == TDM_OK ? err : NULL;
        enum tdm_status ended = TDM_CUDA(cudaStreamSynchronize(lane->stream), first);
        while (ended == TDM_OK && lane->ended < lane->position)
            ended = take_end(executor, lane, first);
        status = status == TDM_OK ? ended : status;
    }
    for (int i = 0; i < (int)executor->lane_count; i++) {
        struct tdm_cuda_lane *lane = &executor->lanes[i];
        lane->position = lane->ended = 0;
        lane->last_end_ns = 0;
        for (int k = 0; k < (int)executor->lane_count; k++)
            lane->awaited[k] = 0;
    }
    return status == TDM_OK ? set_base(executor, err) : status;
}

static enum tdm_status open_mark(struct tdm_cuda_mark *mark, struct tdm_error *err)
{
    enum tdm_status status = TDM_CUDA(cudaEventCreate(&mark->end), err);
    return status == TDM_OK
               ? TDM_CUDA(cudaEventCreateWithFlags(&mark->done, cudaEventDisableTiming), err)
               : status;
}

/* Team ops are many short kernels, for which other ranks wait. With the priority of the others each
 * would begin only when all blocks of the kernels that compute are under way. */
static enum tdm_status open_stream(struct tdm_cuda_lane *lane, bool urgent, struct tdm_error *err)
{
    int usual, highest;
    enum tdm_status status = TDM_CUDA(cudaDeviceGetStreamPriorityRange(&usual, &highest), err);
    return status == TDM_OK
               ? TDM_CUDA(cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking,
                                                       urgent ? highest : usual),
                          err)
               : status;
}

enum tdm_status tdm_cuda_open_lanes(struct tdm_executor *executor, struct tdm_error *err)
{
    enum tdm_status status = open_mark(&executor->base, err);
    for (int i = 0; i < (int)executor->lane_count && status == TDM_OK; i++) {
        struct tdm_cuda_lane *lane = &executor->lanes[i];
        lane->marks = calloc(TDM_CUDA_RING, sizeof(*lane->marks));
        lane->ends_ns = calloc(TDM_CUDA_ENDS, sizeof(*lane->ends_ns));
        if (lane->marks == NULL || lane->ends_ns == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the events of a lane");
        status = open_stream(lane, i == TDM_LANE_PEER, err);
        for (uint32_t k = 0; k < TDM_CUDA_RING && status == TDM_OK; k++)
            status = open_mark(&lane->marks[k], err);
    }
    return status == TDM_OK ? set_base(executor, err) : status;
}

static void close_mark(struct tdm_cuda_mark *mark)
{
    if (mark->end != NULL)
        cudaEventDestroy(mark->end);
    if (mark->done != NULL)
        cudaEventDestroy(mark->done);
}

void tdm_cuda_close_lanes(struct tdm_executor *executor)
{
    for (int i = 0; i < (int)executor->lane_count; i++) {
        struct tdm_cuda_lane *lane = &executor->lanes[i];
        if (lane->stream != NULL)
            cudaStreamSynchronize(lane->stream);
        for (uint32_t k = 0; lane->marks != NULL && k < TDM_CUDA_RING; k++)
            close_mark(&lane->marks[k]);
        free(lane->marks);
        free(lane->ends_ns);
        if (lane->stream != NULL)
            cudaStreamDestroy(lane->stream);
    }
    close_mark(&executor->base);
}
