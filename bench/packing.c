/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/packing: how tightly the packer packs public instances of static allocation. It compares
 * each arena with the live peak, and tells whether it fits in the capacity that the instances were
 * published with. An instance is a table of id, lower, upper, size: a buffer of `size` lives from
 * `lower` up to, but not including, `upper`. This file checks every packing itself, pair by pair.
 */
#include "schedule/pack.h"

#include "base/file.h"
#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CAPACITY 1048576u
#define LIMIT_SECONDS 10.0
#define EFFORT 1000000000u /* steps; takes less than the limit on current machines */

#define FILE_BYTES ((uint64_t)1 << 24)

struct range {
    uint64_t lower, upper, bytes, offset;
};

struct instance {
    uint32_t count;
    struct range *ranges;
};

static enum tdm_status bad_line(const char *path, uint32_t line, struct tdm_error *err)
{
    return tdm_fail(err, TDM_INPUT, "%s:%u: not id,lower,upper,size with lower below upper", path,
                    line);
}

static enum tdm_status read_instance(const char *path, struct instance *instance,
                                     struct tdm_error *err)
{
    char *text = NULL, *state = NULL;
    uint64_t bytes = 0;
    uint32_t lines = 1, line = 1;
    enum tdm_status status = tdm_file_read(path, FILE_BYTES, &text, &bytes, err);
    if (status != TDM_OK)
        return status;
    for (uint64_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    instance->count = 0;
    instance->ranges = calloc(lines, sizeof(*instance->ranges));
    if (instance->ranges == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %s", path);
    const char *at = strtok_r(text, "\r\n", &state);
    if (status == TDM_OK && (at == NULL || strcmp(at, "id,lower,upper,size") != 0))
        status = tdm_fail(err, TDM_INPUT, "%s: the first line is not id,lower,upper,size", path);
    while (status == TDM_OK && (at = strtok_r(NULL, "\r\n", &state)) != NULL) {
        struct range *range = &instance->ranges[instance->count];
        int used = 0;
        line++;
        if (sscanf(at, "%*[^,],%" SCNu64 ",%" SCNu64 ",%" SCNu64 "%n", &range->lower, &range->upper,
                   &range->bytes, &used) != 3 ||
            at[used] != '\0' || range->lower >= range->upper)
            status = bad_line(path, line, err);
        instance->count++;
    }
    free(text);
    return status;
}

static bool live_together(const struct range *a, const struct range *b)
{
    return a->lower < b->upper && b->lower < a->upper;
}

/* The most bytes live at once. It is enough to check the moments when a buffer begins to live. */
static uint64_t live_peak(const struct instance *instance)
{
    uint64_t peak = 0;
    for (uint32_t i = 0; i < instance->count; i++) {
        uint64_t moment = instance->ranges[i].lower, live = 0;
        for (uint32_t j = 0; j < instance->count; j++)
            if (instance->ranges[j].lower <= moment && moment < instance->ranges[j].upper)
                live += instance->ranges[j].bytes;
        peak = live > peak ? live : peak;
    }
    return peak;
}

/* True if no two buffers that live together share a byte, and none ends above the arena. */
static bool valid(const struct instance *instance, uint64_t arena)
{
    for (uint32_t i = 0; i < instance->count; i++) {
        const struct range *a = &instance->ranges[i];
        if (a->offset > arena || arena - a->offset < a->bytes)
            return false;
        for (uint32_t j = 0; j < i; j++) {
            const struct range *b = &instance->ranges[j];
            if (live_together(a, b) && a->offset < b->offset + b->bytes &&
                b->offset < a->offset + a->bytes)
                return false;
        }
    }
    return true;
}

static enum tdm_status pack(struct instance *instance, uint64_t goal, uint64_t *arena,
                            struct tdm_error *err)
{
    struct tdm_conflicts conflicts;
    uint32_t count = instance->count;
    enum tdm_status status = tdm_conflicts_new(count, &conflicts, err);
    if (status != TDM_OK)
        return status;
    uint64_t *numbers = calloc((size_t)count * 2 + conflicts.words + 1, sizeof(*numbers));
    if (numbers == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u buffers", count);
        goto free_conflicts;
    }
    uint64_t *bytes = numbers, *offsets = bytes + count, *live = offsets + count;
    for (uint32_t i = 0; i < count; i++) {
        bytes[i] = instance->ranges[i].bytes;
        memset(live, 0, conflicts.words * sizeof(*live));
        for (uint32_t j = 0; j < i; j++)
            if (live_together(&instance->ranges[i], &instance->ranges[j]))
                live[j / 64] |= (uint64_t)1 << (j % 64);
        tdm_conflicts_add(&conflicts, i, live);
    }
    status = tdm_pack(&conflicts, bytes, 1, goal, TDM_SIZE_MAX, EFFORT, offsets, arena, err);
    for (uint32_t i = 0; i < count; i++)
        instance->ranges[i].offset = offsets[i];
    free(numbers);
free_conflicts:
    tdm_conflicts_free(&conflicts);
    return status;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static enum tdm_status measure(const char *path, bool *fits, struct tdm_error *err)
{
    struct instance instance = {0};
    uint64_t arena = 0;
    enum tdm_status status = read_instance(path, &instance, err);
    if (status != TDM_OK)
        goto free_ranges;
    uint64_t peak = live_peak(&instance);
    double start = now();
    status = pack(&instance, peak > CAPACITY ? peak : CAPACITY, &arena, err);
    double seconds = now() - start;
    if (status != TDM_OK)
        goto free_ranges;
    if (!valid(&instance, arena)) {
        status = tdm_fail(err, TDM_INTERNAL, "%s: buffers that live together overlap", path);
        goto free_ranges;
    }
    const char *name = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
    *fits = arena <= CAPACITY && seconds <= LIMIT_SECONDS;
    printf("%-20.20s %7" PRIu32 " %12" PRIu64 " %12" PRIu64 " %8.2f%% %8.3f %4s\n", name,
           instance.count, peak, arena,
           peak == 0 ? 0 : 100 * ((double)arena - (double)peak) / (double)peak, seconds,
           *fits ? "yes" : "no");
free_ranges:
    free(instance.ranges);
    return status;
}

int main(int argc, char **argv)
{
    struct tdm_error err;
    char **names = NULL, path[4096];
    int count = argc - 1, fitting = 0;
    if (argc < 2) {
        enum tdm_status status = tdm_data_names("tests/data/minimalloc", ".csv", &names, &err);
        if (status != TDM_OK) {
            fprintf(stderr, "packing: %s\n", err.message);
            return tdm_exit_code(status);
        }
        while (names[count] != NULL)
            count++;
    }
    printf("%-20s %7s %12s %12s %9s %8s %4s\n", "instance", "buffers", "live peak", "arena",
           "overhead", "seconds", "fits");
    for (int i = 0; i < count; i++) {
        bool fits = false;
        enum tdm_status status = TDM_OK;
        if (names == NULL)
            snprintf(path, sizeof(path), "%s", argv[i + 1]);
        else
            status =
                tdm_data_path("tests/data/minimalloc", names[i], ".csv", path, sizeof(path), &err);
        if (status == TDM_OK)
            status = measure(path, &fits, &err);
        if (status != TDM_OK) {
            fprintf(stderr, "packing: %s\n", err.message);
            free(names);
            return tdm_exit_code(status);
        }
        fitting += fits;
    }
    printf("%d of %d fit in %u within %.0f s\n", fitting, count, CAPACITY, LIMIT_SECONDS);
    free(names);
    return 0;
}
