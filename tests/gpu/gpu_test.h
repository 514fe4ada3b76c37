/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the GPU tests: the skip without a GPU, cases in TAP, the closing line, and random
 * numbers. */
#ifndef TDM_TESTS_GPU_GPU_TEST_H
#define TDM_TESTS_GPU_GPU_TEST_H

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct gpu_test {
    unsigned passed, failed;
    uint64_t seed;  /* set by TDM_SEED to repeat a test */
    uint64_t state; /* of the generator */
};

/* The backend under test: TDM_BACKEND, or "cuda" without it. Another backend lets the tests
 * themselves be tested without a GPU. */
static inline const char *gpu_test_backend(void)
{
    const char *name = getenv("TDM_BACKEND");
    return name == NULL || *name == '\0' ? "cuda" : name;
}

/* Exits with 77 and a reason if there is no GPU that this program can use; else prints its name. */
static inline void gpu_test_find_device(void)
{
    int devices = 0;
    cudaError_t code = cudaGetDeviceCount(&devices);
    if (code == cudaSuccess && devices > 0)
        code = cudaFree(NULL);
    if (code != cudaSuccess || devices == 0) {
        printf("no usable GPU: %s\n",
               code != cudaSuccess ? cudaGetErrorString(code) : "none found");
        exit(77);
    }
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess)
        printf("# %s, compute capability %d.%d\n", properties.name, properties.major,
               properties.minor);
}

/* Finds the device if the cuda backend is tested, and prints the seed. */
static inline struct gpu_test gpu_test_begin(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* lines are visible however the test ends */
    if (strcmp(gpu_test_backend(), "cuda") == 0)
        gpu_test_find_device();
    struct gpu_test test = {.seed = (uint64_t)time(NULL)};
    const char *seed = getenv("TDM_SEED");
    if (seed != NULL)
        test.seed = strtoull(seed, NULL, 0);
    test.state = test.seed;
    printf("# TDM_SEED=%llu\n", (unsigned long long)test.seed);
    return test;
}

/* Prints the TAP line of one case and counts it. */
static inline void __attribute__((format(printf, 3, 4)))
gpu_test_case(struct gpu_test *test, bool passed, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%s %u - ", passed ? "ok" : "not ok", test->passed + test->failed + 1);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    if (passed)
        test->passed++;
    else
        test->failed++;
}

/* Prints the plan and the closing line; returns the exit status. */
static inline int gpu_test_end(const struct gpu_test *test)
{
    printf("1..%u\n", test->passed + test->failed);
    printf("%u passed, %u failed, 0 skipped\n", test->passed, test->failed);
    return test->failed > 0;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t gpu_test_random(struct gpu_test *test)
{
    uint64_t z = test->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A whole number in [low, high]. */
static inline uint64_t gpu_test_between(struct gpu_test *test, uint64_t low, uint64_t high)
{
    return low + gpu_test_random(test) % (high - low + 1);
}

/* Uniform in [-1, 1). */
static inline float gpu_test_float(struct gpu_test *test)
{
    return (float)(gpu_test_random(test) >> 40) * 0x1p-23f - 1.0f;
}

#endif
