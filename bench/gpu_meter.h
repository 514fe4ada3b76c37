/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the milliseconds of a call on the GPU, with the clock of the multiprocessors and the
 * power (by NVML). There are two ways to run: in bursts, single calls each after a pause; and held,
 * back to back for seconds, so that the clock settles at what the power limit allows. In a burst
 * the device first clears some memory, so that the host's time to launch the call is not measured:
 * in a step too, ops are launched ahead.
 */
#ifndef TDM_BENCH_GPU_METER_H
#define TDM_BENCH_GPU_METER_H

#include "executor/cuda/cuda_error.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { METER_BURSTS = 5, METER_MOST_CALLS = 4096 };
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

/* Runs `calls` calls in a row and returns the milliseconds of one. Reads the clock while they run,
 * unless busy_megahertz is NULL. */
static inline double meter_calls(const struct meter *meter, metered_call call, const void *of,
                                 int calls, double *busy_megahertz)
{
    struct tdm_error err = {0};
    float milliseconds;
    meter_must(TDM_CUDA(cudaEventRecord(meter->start, NULL), &err), &err);
    for (int i = 0; i < calls; i++)
        meter_must(call(of, NULL, &err), &err);
    meter_must(TDM_CUDA(cudaEventRecord(meter->end, NULL), &err), &err);
    if (busy_megahertz != NULL)
        *busy_megahertz = meter_megahertz(meter);
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
    meter_calls(meter, call, of, 1, NULL);
    for (int i = 0; i < METER_BURSTS; i++) {
        struct tdm_error err = {0};
        usleep(20000);
        meter_must(TDM_CUDA(cudaMemsetAsync(meter->cleared, 0, METER_CLEARED_BYTES, NULL), &err),
                   &err);
        const double time = meter_calls(meter, call, of, 1, NULL);
        int at = i;
        for (; at > 0 && times[at - 1] > time; at--)
            times[at] = times[at - 1];
        times[at] = time;
    }
    result.milliseconds = times[METER_BURSTS / 2];
    return result;
}

/* Runs back to back for about `seconds`. Only the second half counts. */
static inline struct metered meter_held(const struct meter *meter, metered_call call,
                                        const void *of, double seconds)
{
    struct metered result = {0};
    const double once = meter_calls(meter, call, of, 1, NULL);
    int calls = (int)(500 * seconds / once);
    calls = calls < 2 ? 2 : calls > METER_MOST_CALLS ? METER_MOST_CALLS : calls;
    meter_calls(meter, call, of, calls, NULL);
    const double joules = meter_joules(meter), start = meter_seconds();
    result.milliseconds = meter_calls(meter, call, of, calls, &result.megahertz);
    result.watts = (meter_joules(meter) - joules) / (meter_seconds() - start);
    return result;
}

#endif
