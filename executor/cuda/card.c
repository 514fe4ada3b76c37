/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/cuda/card.h"

#include <cuda_runtime_api.h>

#define MOST_DEVICES 64 /* of which facts are kept */

/* 0: not asked yet. */
struct facts {
    int capability; /* 10 * major + minor; -1: unknown */
    int multiprocessors;
};

static struct facts known[MOST_DEVICES];
static unsigned limit;

static int attribute(enum cudaDeviceAttr which, int device, int otherwise)
{
    int value = 0;
    return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : otherwise;
}

/* Threads of several ranks may ask at the same time. They find the same. */
static struct facts facts_of_device(void)
{
    struct facts facts = {-1, 1};
    int device;
    if (cudaGetDevice(&device) != cudaSuccess || device < 0)
        return facts;
    if (device < MOST_DEVICES) {
        facts.capability = __atomic_load_n(&known[device].capability, __ATOMIC_RELAXED);
        facts.multiprocessors = __atomic_load_n(&known[device].multiprocessors, __ATOMIC_RELAXED);
        if (facts.capability != 0 && facts.multiprocessors != 0)
            return facts;
    }
    const int major = attribute(cudaDevAttrComputeCapabilityMajor, device, -1);
    const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device, -1);
    facts.capability = major > 0 && minor >= 0 ? 10 * major + minor : -1;
    facts.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device, 1);
    if (device < MOST_DEVICES) {
        __atomic_store_n(&known[device].capability, facts.capability, __ATOMIC_RELAXED);
        __atomic_store_n(&known[device].multiprocessors, facts.multiprocessors, __ATOMIC_RELAXED);
    }
    return facts;
}

bool tdm_cuda_is_hopper(void)
{
    return facts_of_device().capability == 90;
}

unsigned tdm_cuda_multiprocessors(void)
{
    const unsigned count = (unsigned)facts_of_device().multiprocessors;
    return limit > 0 && limit < count ? limit : count;
}

void tdm_cuda_limit_multiprocessors(unsigned most)
{
    limit = most;
}
