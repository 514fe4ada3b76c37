/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the milliseconds of a call on the GPU, with the clock of the multiprocessors and the
 * power (by NVML). There are two ways to run: in bursts, single calls each after a pause; and held,
 * back to back for seconds, so that the clock settles at what the power limit allows. Both give
 * medians. In a burst
 * the device first clears some memory, so that the host's time to launch the call is not measured:
 * in a step too, ops are launched ahead.
 */
#ifndef TDM_BENCH_GPU_METER_H
#define TDM_BENCH_GPU_METER_H

#include "executor/cuda/cuda_error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { METER_BURSTS = 5, METER_PARTS = 5, METER_MOST_CALLS = 4096, METER_MOST_CLOCKS = 4096 };
#define METER_CLEARED_BYTES ((size_t)2 << 30) /* takes some 0.6 ms */

/* A measurement. Clock and power are 0 if they are unknown. */
struct metered {
    double milliseconds, megahertz, watts;
};

struct meter {
    cudaEvent_t start, end;
    void *cleared; /* METER_CLEARED_BYTES on the device */
    void *device;
    int (*energy)(void *, unsigned long long *);
    int (*clock)(void *, int, unsigned *);
};

typedef enum tdm_status (*metered_call)(const void *of, cudaStream_t stream, struct tdm_error *err);

static inline void meter_must(enum tdm_status status, const struct tdm_error *err)
{
    if (status == TDM_OK)
        return;
    fprintf(stderr, "bench: %s\n", err->message);
    exit(1);
}

static inline struct meter meter_open(void)
{
    struct tdm_error err = {0};
    struct meter meter = {0};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = NULL;
    int (*by_index)(unsigned, void **) = NULL;
    meter_must(TDM_CUDA(cudaEventCreate(&meter.start), &err), &err);
    meter_must(TDM_CUDA(cudaEventCreate(&meter.end), &err), &err);
    meter_must(TDM_CUDA(cudaMalloc(&meter.cleared, METER_CLEARED_BYTES), &err), &err);
    if (library == NULL)
        return meter;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&meter.energy = dlsym(library, "nvmlDeviceGetTotalEnergyConsumption");
    *(void **)&meter.clock = dlsym(library, "nvmlDeviceGetClockInfo");
    if (init == NULL || by_index == NULL || init() != 0 || by_index(0, &meter.device) != 0) {
        meter.energy = NULL;
        meter.clock = NULL;
    }
    return meter;
}

static inline double meter_joules(const struct meter *meter)
{
    unsigned long long millijoules = 0;
    if (meter->energy == NULL || meter->energy(meter->device, &millijoules) != 0)
        return 0;
    return 1e-3 * (double)millijoules;
}

static inline double meter_megahertz(const struct meter *meter)
{
    unsigned megahertz = 0;
    if (meter->clock == NULL || meter->clock(meter->device, 1, &megahertz) != 0) /* SM */
        return 0;
    return megahertz;
}

static inline double meter_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Sorts a few values and returns their median. */
static inline double meter_median(double *values, int count)
{
    for (int i = 1; i < count; i++) {
        const double value = values[i];
        int at = i;
        for (; at > 0 && values[at - 1] > value; at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
    return count > 0 ? values[count / 2] : 0;
}

/* Reads clock and energy every 10 ms from a thread of its own. The energy counter moves some ten
 * times a second, so power is the energy between the first and the last move that it sees. */
struct meter_watch {
    const struct meter *meter;
    atomic_bool ends;
    pthread_t thread;
    double clocks[METER_MOST_CLOCKS];
    int clock_count;
    double first_joules, first_second, last_joules, last_second; /* of moves */
    int moves;
};

static inline void *meter_watching(void *of)
{
    struct meter_watch *watch = of;
    double joules = meter_joules(watch->meter);
    while (!atomic_load(&watch->ends)) {
        usleep(10000);
        const double megahertz = meter_megahertz(watch->meter), now = meter_joules(watch->meter);
        if (watch->clock_count < METER_MOST_CLOCKS)
            watch->clocks[watch->clock_count++] = megahertz;
        if (now == joules)
            continue;
        joules = now;
        if (watch->moves++ == 0) {
            watch->first_joules = now;
            watch->first_second = meter_seconds();
        }
        watch->last_joules = now;
        watch->last_second = meter_seconds();
    }
    return NULL;
}

/* Runs `calls` calls in a row and returns the milliseconds of one. */
static inline double meter_calls(const struct meter *meter, metered_call call, const void *of,
                                 int calls)
{
    struct tdm_error err = {0};
    float milliseconds;
    meter_must(TDM_CUDA(cudaEventRecord(meter->start, NULL), &err), &err);
    for (int i = 0; i < calls; i++)
        meter_must(call(of, NULL, &err), &err);
    meter_must(TDM_CUDA(cudaEventRecord(meter->end, NULL), &err), &err);
    meter_must(TDM_CUDA(cudaEventSynchronize(meter->end), &err), &err);
    meter_must(TDM_CUDA(cudaEventElapsedTime(&milliseconds, meter->start, meter->end), &err), &err);
    return milliseconds / calls;
}

/* The median of METER_BURSTS calls, each after a pause. */
static inline struct metered meter_burst(const struct meter *meter, metered_call call,
                                         const void *of)
{
    struct metered result = {0};
    double times[METER_BURSTS] = {0};
    meter_calls(meter, call, of, 1);
    for (int i = 0; i < METER_BURSTS; i++) {
        struct tdm_error err = {0};
        usleep(20000);
        meter_must(TDM_CUDA(cudaMemsetAsync(meter->cleared, 0, METER_CLEARED_BYTES, NULL), &err),
                   &err);
        times[i] = meter_calls(meter, call, of, 1);
    }
    result.milliseconds = meter_median(times, METER_BURSTS);
    return result;
}

/* Runs back to back for about `seconds`, and before that a third as long, which does not count. The
 * time is the median of METER_PARTS parts, the clock the median of what was read, the power the
 * mean; 0 if the time was too short for it. */
static inline struct metered meter_held(const struct meter *meter, metered_call call,
                                        const void *of, double seconds)
{
    struct metered result = {0};
    double times[METER_PARTS] = {0};
    static struct meter_watch watch;
    const double once = meter_calls(meter, call, of, 1);
    int calls = (int)(1000 * seconds / METER_PARTS / once);
    calls = calls < 1 ? 1 : calls > METER_MOST_CALLS ? METER_MOST_CALLS : calls;
    meter_calls(meter, call, of, (calls * METER_PARTS + 2) / 3);
    watch = (struct meter_watch){.meter = meter};
    if (pthread_create(&watch.thread, NULL, meter_watching, &watch) != 0) {
        fprintf(stderr, "bench: no thread\n");
        exit(1);
    }
    for (int i = 0; i < METER_PARTS; i++)
        times[i] = meter_calls(meter, call, of, calls);
    atomic_store(&watch.ends, true);
    pthread_join(watch.thread, NULL);
    result.milliseconds = meter_median(times, METER_PARTS);
    result.megahertz = meter_median(watch.clocks, watch.clock_count);
    if (watch.moves > 3)
        result.watts =
            (watch.last_joules - watch.first_joules) / (watch.last_second - watch.first_second);
    return result;
}

#endif
