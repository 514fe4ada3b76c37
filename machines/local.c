/* SPDX-License-Identifier: Apache-2.0 */
/* The machine called `local`: the description that calibrate measured and wrote. If there is none,
 * it is this computer's cores and memory with assumed rates, for the cpu backend. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "machines/parts.h"

#include "base/size.h"
#include "base/units.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Rounded rates of one core of an x86-64 machine with AVX2 and OpenBLAS in steps of a small model
 * (bf16 storage, head_dim 32). They make the parts of a step comparable. On another machine the
 * time of a step is off by the factor between the cores. */
#define CORE_PEAK_FLOPS 80e9
#define CORE_PRODUCT_FLOPS 45e9
#define CORE_ATTENTION_FORWARD_FLOPS 28e9
#define CORE_ATTENTION_BACKWARD_FLOPS 50e9
#define CORE_ELEMENTWISE_BYTES 1.2e9
/* The process itself: libraries, threads and the backend's scratch. */
#define RUNTIME_BYTES (16 << 20)
/* Copies between the two arenas share the computer's memory, so they do not scale with the
 * cores. */
#define COPY_BYTES 6e9
#define BOTH_WAYS_BYTES 8e9

static long count_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? online : 1;
}

/* A limit that the kernel sets for this container, or TDM_SIZE_MAX. */
static uint64_t container_limit(const char *path)
{
    uint64_t bytes = TDM_SIZE_MAX;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return bytes;
    if (fscanf(file, "%" SCNu64, &bytes) != 1) /* "max" */
        bytes = TDM_SIZE_MAX;
    fclose(file);
    return bytes;
}

/* Returns 0 if the memory cannot be determined. */
static uint64_t count_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGE_SIZE);
    if (pages <= 0 || page_bytes <= 0)
        return 0;
    uint64_t bytes = tdm_size_mul((uint64_t)pages, (uint64_t)page_bytes);
    const uint64_t limits[] = {
        container_limit("/sys/fs/cgroup/memory.max"),
        container_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    };
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (limits[i] < bytes)
            bytes = limits[i];
    }
    return bytes;
}

bool tdm_machine_local_path(char *out, size_t out_bytes)
{
    const char *config = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    int length;
    if (config != NULL && config[0] == '/') /* the XDG rules say to ignore a relative one */
        length = snprintf(out, out_bytes, "%s/tidemark/machine.json", config);
    else if (home != NULL && home[0] == '/')
        length = snprintf(out, out_bytes, "%s/.config/tidemark/machine.json", home);
    else
        return false;
    return length > 0 && (size_t)length < out_bytes;
}

static json_t *describe(long cores, uint64_t memory_bytes)
{
    char title[96];
    char source[128];
    char size[TDM_FORMAT_SIZE];
    double n = (double)cores;
    tdm_format_bytes(memory_bytes, size);
    snprintf(title, sizeof(title), "this computer: %ld core%s, %s", cores, cores == 1 ? "" : "s",
             size);
    snprintf(source, sizeof(source), "assumed from %ld core%s and %s of memory", cores,
             cores == 1 ? "" : "s", size);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:[s, s], s:I, s:I, s:I, s:I, s:f, s:f, s:f,"
        " s:{s:f, s:f, s:f, s:f, s:f, s:f, s:f}}",
        "format", TDM_MACHINE_FORMAT, "name", "local", "title", title, "source", source, "notes",
        "for the cpu backend: the device is a quarter of the memory,"
        " the host half of it",
        "the rates are assumed, by the number of cores", "device_bytes",
        (json_int_t)(memory_bytes / 4), "host_bytes", (json_int_t)(memory_bytes / 2),
        "runtime_device_bytes", (json_int_t)0, "runtime_host_bytes", (json_int_t)RUNTIME_BYTES,
        "peak_flops_per_second", CORE_PEAK_FLOPS * n, "launch_seconds", 2e-6, "copy_seconds", 1e-6,
        "rates", "product_flops_per_second", CORE_PRODUCT_FLOPS * n,
        "attention_forward_flops_per_second", CORE_ATTENTION_FORWARD_FLOPS * n,
        "attention_backward_flops_per_second", CORE_ATTENTION_BACKWARD_FLOPS * n,
        "elementwise_bytes_per_second", CORE_ELEMENTWISE_BYTES * n, "h2d_bytes_per_second",
        COPY_BYTES, "d2h_bytes_per_second", COPY_BYTES, "both_ways_bytes_per_second",
        BOTH_WAYS_BYTES);
}

enum tdm_status tdm_machine_describe_computer(json_t **description, struct tdm_error *err)
{
    uint64_t memory_bytes = count_memory();
    if (memory_bytes == 0) {
        tdm_fail(err, TDM_IO, "the memory of this computer cannot be found out");
        return tdm_hint(err, "name a machine or the file that describes one with --machine");
    }
    *description = describe(count_cores(), memory_bytes);
    return *description == NULL
               ? tdm_fail(err, TDM_NO_MEMORY, "no memory to describe this computer")
               : TDM_OK;
}

enum tdm_status tdm_machine_load_local(struct tdm_machine **machine, struct tdm_error *err)
{
    char path[4096];
    if (tdm_machine_local_path(path, sizeof(path)) && access(path, F_OK) == 0)
        return tdm_machine_load_file(path, machine, err);

    json_t *description;
    enum tdm_status status = tdm_machine_describe_computer(&description, err);
    if (status != TDM_OK)
        return status;
    status = tdm_machine_from_json("local", description, machine, err);
    json_decref(description);
    return status;
}
