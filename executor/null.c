/* SPDX-License-Identifier: Apache-2.0 */
/* The null backend: takes every program and computes nothing, for counting what would run. */
#include "executor/backends.h"

#include <time.h>

/* It has no state; this gives open() something to return. */
struct tdm_null {
    char nothing;
};

static struct tdm_null state;

static enum tdm_status open_null(uint32_t count, const struct tdm_program *const *programs,
                                 uint32_t device, struct tdm_executor **executor,
                                 struct tdm_error *err)
{
    (void)count;
    (void)programs;
    (void)device;
    (void)err;
    *executor = (struct tdm_executor *)&state;
    return TDM_OK;
}

static void close_null(struct tdm_executor *executor)
{
    (void)executor;
}

static enum tdm_status arena_null(struct tdm_executor *executor, enum tdm_place place,
                                  uint64_t bytes, void **base, struct tdm_error *err)
{
    (void)executor;
    (void)place;
    (void)bytes;
    (void)err;
    *base = NULL;
    return TDM_OK;
}

static enum tdm_status run_null(struct tdm_executor *executor, const struct tdm_launch *launch,
                                struct tdm_error *err)
{
    (void)executor;
    (void)launch;
    (void)err;
    return TDM_OK;
}

static enum tdm_status wait_null(struct tdm_executor *executor, enum tdm_lane lane,
                                 enum tdm_lane other, uint64_t position, struct tdm_error *err)
{
    (void)executor;
    (void)lane;
    (void)other;
    (void)position;
    (void)err;
    return TDM_OK;
}

static enum tdm_status finish_null(struct tdm_executor *executor, struct tdm_error *err)
{
    (void)executor;
    (void)err;
    return TDM_OK;
}

static size_t reap_null(struct tdm_executor *executor, struct tdm_timing *timings, size_t capacity)
{
    (void)executor;
    (void)timings;
    (void)capacity;
    return 0;
}

static int64_t now_null(struct tdm_executor *executor)
{
    struct timespec time;
    (void)executor;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static uint64_t outside_bytes_null(const struct tdm_executor *executor)
{
    (void)executor;
    return 0;
}

const struct tdm_backend tdm_null_backend = {
    .name = "null",
    .description = "computes nothing and holds no values: counts what would run",
    .executes = false,
    .places = TDM_MAX_PLACES,
    .lanes = TDM_MAX_LANES,
    .open = open_null,
    .close = close_null,
    .arena = arena_null,
    .run = {[0 ... TDM_OP_KINDS - 1] = run_null},
    .wait = wait_null,
    .finish = finish_null,
    .reap = reap_null,
    .now = now_null,
    .outside_bytes = outside_bytes_null,
};
