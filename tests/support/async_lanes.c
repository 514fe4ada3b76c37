/* SPDX-License-Identifier: Apache-2.0 */
/* A cpu backend whose lanes are threads. */
#include "tests/support/async_lanes.h"

#include "executor/backends.h"
#include "executor/team.h"
#include "tests/support/random_schedule.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { PAUSE_PERCENT = 5, LONGEST_PAUSE_NANOSECONDS = 200000 };

/* An op that was launched, and the positions of other lanes that it waits for. */
struct job {
    struct tdm_launch launch;
    struct tdm_op op;
    uint64_t waits[TDM_MAX_LANES];
    struct job *next;
};

struct lane {
    struct tdm_executor *of; /* the backend's */
    uint32_t number;
    struct tdm_executor *cpu; /* a cpu executor of its own: they have scratch and counters */
    pthread_t thread;
    bool started;
    struct job *first, **last; /* jobs that have not begun */
    uint64_t launched, ended;
    uint64_t waits[TDM_MAX_LANES]; /* of the next job */
};

struct tdm_executor {
    struct lane lanes[TDM_MAX_LANES];
    uint32_t lane_count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closing;
    enum tdm_status status; /* of the first op that failed in this step */
    struct tdm_error err;
};

static uint64_t pauses; /* only read while steps run */
static struct tdm_backend backend;

static bool may_run(const struct tdm_executor *executor, const struct job *job)
{
    for (uint32_t lane = 0; lane < executor->lane_count; lane++)
        if (executor->lanes[lane].ended < job->waits[lane])
            return false;
    return true;
}

static void pause_before(const struct tdm_launch *launch)
{
    struct tdm_dice dice;
    tdm_dice_seed(&dice, pauses ^ (uint64_t)launch->program->rank << 48 ^
                             launch->step->number << 40 ^ launch->op->number);
    if (!tdm_dice_chance(&dice, PAUSE_PERCENT))
        return;
    const struct timespec pause = {.tv_nsec =
                                       (long)tdm_dice_roll(&dice, 0, LONGEST_PAUSE_NANOSECONDS)};
    nanosleep(&pause, NULL);
}

static void *run_lane(void *self)
{
    struct lane *lane = self;
    struct tdm_executor *executor = lane->of;
    pthread_mutex_lock(&executor->lock);
    for (;;) {
        struct job *job = lane->first;
        if (job == NULL && executor->closing)
            break;
        if (job == NULL || !may_run(executor, job)) {
            pthread_cond_wait(&executor->changed, &executor->lock);
            continue;
        }
        lane->first = job->next;
        if (lane->first == NULL)
            lane->last = &lane->first;
        bool failed = executor->status != TDM_OK;
        pthread_mutex_unlock(&executor->lock);
        struct tdm_error err = {0};
        enum tdm_status status = TDM_OK;
        if (!failed) {
            pause_before(&job->launch);
            status = tdm_cpu_backend.run[job->op.kind](lane->cpu, &job->launch, &err);
            if (status != TDM_OK && job->launch.team != NULL)
                tdm_team_fail(job->launch.team, job->launch.program->rank);
        }
        pthread_mutex_lock(&executor->lock);
        if (status != TDM_OK && executor->status == TDM_OK) {
            executor->status = status;
            executor->err = err;
        }
        lane->ended++;
        pthread_cond_broadcast(&executor->changed);
        free(job);
    }
    pthread_mutex_unlock(&executor->lock);
    return NULL;
}

static void close_lanes(struct tdm_executor *executor)
{
    if (executor == NULL)
        return;
    pthread_mutex_lock(&executor->lock);
    executor->closing = true;
    pthread_cond_broadcast(&executor->changed);
    pthread_mutex_unlock(&executor->lock);
    for (uint32_t i = 0; i < executor->lane_count; i++) {
        if (executor->lanes[i].started)
            pthread_join(executor->lanes[i].thread, NULL);
        if (executor->lanes[i].cpu != NULL)
            tdm_cpu_backend.close(executor->lanes[i].cpu);
    }
    pthread_cond_destroy(&executor->changed);
    pthread_mutex_destroy(&executor->lock);
    free(executor);
}

static enum tdm_status open_lanes(uint32_t count, const struct tdm_program *const *programs,
                                  uint32_t device, struct tdm_executor **opened,
                                  struct tdm_error *err)
{
    struct tdm_executor *executor = calloc(1, sizeof(*executor));
    if (executor == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "no memory for lanes");
    pthread_mutex_init(&executor->lock, NULL);
    pthread_cond_init(&executor->changed, NULL);
    executor->lane_count = programs[0]->schedule->machine->topology.lane_count;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < executor->lane_count && status == TDM_OK; i++) {
        struct lane *lane = &executor->lanes[i];
        lane->of = executor;
        lane->number = i;
        lane->last = &lane->first;
        status = tdm_cpu_backend.open(count, programs, device, &lane->cpu, err);
        if (status == TDM_OK)
            lane->started = pthread_create(&lane->thread, NULL, run_lane, lane) == 0;
        if (status == TDM_OK && !lane->started)
            status = tdm_fail(err, TDM_NO_MEMORY, "no thread for lane %u", i);
    }
    if (status != TDM_OK) {
        close_lanes(executor);
        return status;
    }
    *opened = executor;
    return TDM_OK;
}

static enum tdm_status run_later(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 struct tdm_error *err)
{
    struct lane *lane = &executor->lanes[launch->op->lane];
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "no memory for an op");
    job->launch = *launch;
    job->op = *launch->op;
    job->launch.op = &job->op;
    pthread_mutex_lock(&executor->lock);
    for (uint32_t other = 0; other < executor->lane_count; other++) {
        job->waits[other] = lane->waits[other];
        lane->waits[other] = 0;
    }
    *lane->last = job;
    lane->last = &job->next;
    lane->launched++;
    pthread_cond_broadcast(&executor->changed);
    pthread_mutex_unlock(&executor->lock);
    return TDM_OK;
}

static enum tdm_status wait_lanes(struct tdm_executor *executor, enum tdm_lane lane,
                                  enum tdm_lane other, uint64_t position, struct tdm_error *err)
{
    (void)err;
    if (executor->lanes[lane].waits[other] < position)
        executor->lanes[lane].waits[other] = position;
    return TDM_OK;
}

static enum tdm_status finish_lanes(struct tdm_executor *executor, struct tdm_error *err)
{
    pthread_mutex_lock(&executor->lock);
    for (uint32_t i = 0; i < executor->lane_count; i++)
        while (executor->lanes[i].ended < executor->lanes[i].launched)
            pthread_cond_wait(&executor->changed, &executor->lock);
    for (uint32_t i = 0; i < executor->lane_count; i++) {
        executor->lanes[i].launched = executor->lanes[i].ended = 0;
        for (uint32_t other = 0; other < executor->lane_count; other++)
            executor->lanes[i].waits[other] = 0;
    }
    enum tdm_status status = executor->status;
    if (status != TDM_OK && err != NULL)
        *err = executor->err;
    executor->status = TDM_OK;
    pthread_mutex_unlock(&executor->lock);
    return status;
}

/* Only between steps. */
static size_t reap_lanes(struct tdm_executor *executor, struct tdm_timing *timings, size_t capacity)
{
    size_t count = 0;
    for (uint32_t i = 0; i < executor->lane_count; i++)
        count += tdm_cpu_backend.reap(executor->lanes[i].cpu, timings + count, capacity - count);
    return count;
}

/* ---- memory: of the first cpu executor ---- */

static enum tdm_status arena(struct tdm_executor *executor, enum tdm_place place, uint64_t bytes,
                             void **base, struct tdm_error *err)
{
    return tdm_cpu_backend.arena(executor->lanes[0].cpu, place, bytes, base, err);
}

static enum tdm_status upload(struct tdm_executor *executor, void *arena_bytes, const void *source,
                              uint64_t bytes, struct tdm_error *err)
{
    return tdm_cpu_backend.upload(executor->lanes[0].cpu, arena_bytes, source, bytes, err);
}

static enum tdm_status download(struct tdm_executor *executor, void *destination,
                                const void *arena_bytes, uint64_t bytes, struct tdm_error *err)
{
    return tdm_cpu_backend.download(executor->lanes[0].cpu, destination, arena_bytes, bytes, err);
}

static enum tdm_status fill(struct tdm_executor *executor, void *base, uint64_t offset,
                            uint64_t bytes, struct tdm_error *err)
{
    return tdm_cpu_backend.fill(executor->lanes[0].cpu, base, offset, bytes, err);
}

static enum tdm_status scan(struct tdm_executor *executor, const void *base, uint64_t bytes,
                            uint64_t *touched_bytes, uint64_t *highest_byte, struct tdm_error *err)
{
    return tdm_cpu_backend.scan(executor->lanes[0].cpu, base, bytes, touched_bytes, highest_byte,
                                err);
}

static int64_t now(struct tdm_executor *executor)
{
    return tdm_cpu_backend.now(executor->lanes[0].cpu);
}

static uint64_t outside_bytes(const struct tdm_executor *executor)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < executor->lane_count; i++)
        bytes += tdm_cpu_backend.outside_bytes(executor->lanes[i].cpu);
    return bytes;
}

const struct tdm_backend *tdm_async_lanes(uint64_t seed)
{
    pauses = seed;
    backend = tdm_cpu_backend;
    backend.name = "cpu whose lanes are threads";
    backend.open = open_lanes;
    backend.close = close_lanes;
    backend.arena = arena;
    backend.wait = wait_lanes;
    backend.finish = finish_lanes;
    backend.reap = reap_lanes;
    backend.upload = upload;
    backend.download = download;
    backend.fill = fill;
    backend.scan = scan;
    backend.now = now;
    backend.outside_bytes = outside_bytes;
    for (int i = 0; i < TDM_OP_KINDS; i++)
        if (backend.run[i] != NULL)
            backend.run[i] = run_later;
    return &backend;
}
