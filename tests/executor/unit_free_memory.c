/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the checks before memory is allocated, host memory, host arenas and NUMA nodes. */
#include "base/size.h"
#include "executor/amounts.h"
#include "executor/arenas.h"
#include "executor/backends.h"
#include "executor/host_arena.h"
#include "executor/host_memory.h"
#include "executor/numa.h"
#include "executor/free_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)
#define RESERVE (256 * MIB) /* left for other programs */

/* ---- the device ---- */

static void test_device(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    struct tdm_device_memory memory = {
        .used_bytes = 500 * MIB, .free_bytes = 70 * GIB, .runtime_bytes = 600 * MIB};
    assert_int_equal(tdm_free_memory_check_device(&memory, 70 * GIB - 100 * MIB, &err), TDM_OK);
    assert_int_equal(tdm_free_memory_check_device(&memory, 0, &err), TDM_OK);

    /* the arena would fit, but not the rest of the runtime with it */
    assert_int_equal(tdm_free_memory_check_device(&memory, 70 * GIB - 99 * MIB, &err),
                     TDM_INFEASIBLE);
    assert_string_equal(err.message, "needs 70.00 GiB of the GPU's memory, 70 GiB are free: 1 MiB "
                                     "too little");
    /* free bytes and our own used bytes: 70.48 GiB, rounded down */
    assert_non_null(strstr(err.hint, "--memory 70.48G"));

    /* the runtime uses more than planned; those bytes are no longer free, but all else stays */
    memory.used_bytes = 700 * MIB;
    assert_int_equal(tdm_free_memory_check_device(&memory, 70 * GIB, &err), TDM_OK);
    assert_int_equal(tdm_free_memory_check_device(&memory, 70 * GIB + 1, &err), TDM_INFEASIBLE);
    assert_int_equal(tdm_free_memory_check_device(&memory, UINT64_MAX, &err), TDM_INFEASIBLE);
}

static void test_host(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    assert_int_equal(tdm_free_memory_check_host(64 * GIB, 0, 64 * GIB, &err), TDM_OK);
    assert_int_equal(tdm_free_memory_check_host(TDM_SIZE_MAX, 64 * GIB, 640 * GIB, &err), TDM_OK);
    assert_int_equal(tdm_free_memory_check_host(64 * GIB, 0, 80 * GIB, &err), TDM_INFEASIBLE);
    assert_string_equal(err.message, "needs 80 GiB of this computer's memory, 64 GiB are "
                                     "available: 16 GiB too little");
    assert_non_null(strstr(err.hint, "--host-memory 64.00G"));
    assert_int_equal(tdm_free_memory_check_host(64 * GIB, 40 * GIB, 30 * GIB, &err),
                     TDM_INFEASIBLE);
    assert_non_null(strstr(err.hint, "--memory and --host-memory of 64.00G together"));
    assert_int_equal(tdm_free_memory_check_host(64 * GIB, UINT64_MAX, 1, &err), TDM_INFEASIBLE);
}

/* ---- the computer ---- */

/* A folder that stands for the root of a file system. */
static const char *root_of(const char *name)
{
    static char root[512];
    const char *scratch = getenv("TDM_SCRATCH");
    snprintf(root, sizeof(root), "%s/%s", scratch == NULL ? "." : scratch, name);
    return root;
}

static void put(const char *root, const char *path, const char *text)
{
    char file[1024];
    snprintf(file, sizeof(file), "%s/%s", root, path);
    for (char *slash = strchr(file + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(file, 0777);
        *slash = '/';
    }
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static struct tdm_host_memory read_root(const char *root)
{
    struct tdm_host_memory memory;
    tdm_host_memory_read(root, &memory);
    return memory;
}

static const char meminfo[] = "MemTotal:       131072000 kB\n"
                              "MemFree:          100000 kB\n"
                              "MemAvailable:  104857600 kB\n"; /* 100 GiB */

static void test_plain_computer(void **state)
{
    (void)state;
    const char *root = root_of("plain");
    put(root, "proc/meminfo", meminfo);
    struct tdm_host_memory memory = read_root(root);
    assert_int_equal(memory.available_bytes, 100 * GIB);
    assert_true(memory.allowed_bytes == TDM_SIZE_MAX && memory.to_come_bytes == 0);
    assert_int_equal(tdm_host_memory_usable_bytes(&memory), 100 * GIB - RESERVE);

    memory = read_root(root_of("empty")); /* nothing is known, so nothing is refused */
    assert_true(tdm_host_memory_usable_bytes(&memory) == TDM_SIZE_MAX);
}

/* The smallest limit of our group and its parents counts. File cache can be freed. */
static void test_groups(void **state)
{
    (void)state;
    const char *root = root_of("groups");
    put(root, "proc/meminfo", meminfo);
    put(root, "proc/self/cgroup", "0::/user.slice/job\n");
    put(root, "sys/fs/cgroup/user.slice/job/memory.max", "max\n");
    put(root, "sys/fs/cgroup/user.slice/job/memory.current", "1073741824\n");
    put(root, "sys/fs/cgroup/user.slice/memory.max", "17179869184\n"); /* 16 GiB */
    put(root, "sys/fs/cgroup/user.slice/memory.current", "3221225472\n");
    put(root, "sys/fs/cgroup/user.slice/memory.stat",
        "anon 2147483648\ninactive_file 805306368\nactive_file 268435456\n");
    struct tdm_host_memory memory = read_root(root);
    assert_int_equal(memory.allowed_bytes, 14 * GIB);
    assert_int_equal(tdm_host_memory_usable_bytes(&memory), 14 * GIB - RESERVE);

    put(root, "sys/fs/cgroup/user.slice/memory.max", "1073741824\n"); /* below what is used */
    memory = read_root(root);
    assert_int_equal(tdm_host_memory_usable_bytes(&memory), 0);
}

/* cgroups version 1, in a container that sees only the top group, under the host's path. */
static void test_first_groups(void **state)
{
    (void)state;
    const char *root = root_of("first");
    put(root, "proc/meminfo", meminfo);
    put(root, "proc/self/cgroup", "12:cpuset:/docker/0123\n4:memory:/docker/0123\n");
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "8589934592\n");
    put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    put(root, "sys/fs/cgroup/memory/memory.stat", "cache 5\ntotal_inactive_file 0\n");
    struct tdm_host_memory memory = read_root(root);
    assert_int_equal(memory.allowed_bytes, 7 * GIB);

    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    memory = read_root(root);
    assert_true(memory.allowed_bytes == TDM_SIZE_MAX);
}

/* If memory is plugged in as it is used, what is available now does not count. Limits still
 * hold. */
static void test_growing_computer(void **state)
{
    (void)state;
    const char *root = root_of("growing");
    put(root, "proc/meminfo", meminfo);
    put(root, "sys/bus/virtio/drivers/virtio_mem/virtio3/device", "1\n");
    struct tdm_host_memory memory = read_root(root);
    assert_true(memory.to_come_bytes == TDM_SIZE_MAX);
    assert_true(tdm_host_memory_usable_bytes(&memory) == TDM_SIZE_MAX);
    put(root, "proc/self/cgroup", "0::/\n");
    put(root, "sys/fs/cgroup/memory.max", "274877906944\n");
    put(root, "sys/fs/cgroup/memory.current", "0\n");
    memory = read_root(root);
    assert_int_equal(tdm_host_memory_usable_bytes(&memory), 256 * GIB - RESERVE);
}

/* ---- the host arena ---- */

/* Counts of pinning, and the number of the call that fails. */
struct pins {
    volatile sig_atomic_t stop; /* the arena must be given up */
    unsigned pinned, unpinned, fails_at;
    enum tdm_status failure;
    uint64_t bytes;
};

/* What the watch was told. */
struct watched {
    uint64_t taken_bytes, pageable_bytes;
    char reason[64];
};

static enum tdm_status pin(void *self, void *start, uint64_t bytes, struct tdm_error *err)
{
    struct pins *pins = self;
    (void)start;
    if (++pins->pinned == pins->fails_at)
        return tdm_fail(err, pins->failure, "no more");
    pins->bytes += bytes;
    return TDM_OK;
}

static void unpin(void *self, void *start)
{
    struct pins *pins = self;
    (void)start;
    pins->unpinned++;
}

static void taken(void *self, uint64_t taken_bytes, uint64_t bytes)
{
    struct watched *seen = self;
    assert_true(taken_bytes >= seen->taken_bytes && taken_bytes <= bytes);
    seen->taken_bytes = taken_bytes;
}

static void pageable(void *self, uint64_t bytes, const char *reason)
{
    struct watched *seen = self;
    seen->pageable_bytes = bytes;
    snprintf(seen->reason, sizeof(seen->reason), "%s", reason);
}

static enum tdm_status take(const char *root, struct pins *pins, uint64_t bytes,
                            struct watched *seen, struct tdm_error *err)
{
    const struct tdm_host_pinning pinning = {pins, 0, pin, unpin};
    const struct tdm_arena_watch watch = {seen, taken, pageable, &pins->stop};
    struct tdm_host_arena arena = {0};
    *seen = (struct watched){0};
    enum tdm_status status = tdm_host_arena_take(bytes, &pinning, &watch, root, &arena, err);
    if (status != TDM_OK) {
        assert_null(arena.base);
    } else {
        memset((char *)arena.base + bytes - 1, 1, 1);
        assert_true(arena.bytes == bytes && arena.touched_bytes == bytes);
        assert_true(arena.pinned == (seen->pageable_bytes == 0));
    }
    tdm_host_arena_release(&arena, &pinning);
    return status;
}

static void test_host_arena(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    struct pins pins = {0};
    struct watched seen;
    const char *root = root_of("arena");
    put(root, "proc/meminfo", meminfo);
    assert_int_equal(take(root, &pins, 3 * MIB + 5, &seen, &err), TDM_OK);
    assert_true(pins.pinned == 1 && pins.unpinned == 1 && pins.bytes == 3 * MIB + 5);
    assert_true(seen.taken_bytes == 3 * MIB + 5 && seen.pageable_bytes == 0);

    /* the computer has less memory than expected */
    put(root, "proc/meminfo", "MemAvailable:  2048 kB\n");
    pins = (struct pins){0};
    assert_int_equal(take(root, &pins, 3 * MIB, &seen, &err), TDM_INFEASIBLE);
    assert_true(pins.pinned == 0 && strstr(err.message, "this computer gave 0 B") != NULL);
    assert_int_equal(take(root, &pins, UINT64_MAX, &seen, &err), TDM_NO_MEMORY);

    put(root, "proc/meminfo", meminfo);
    pins = (struct pins){.stop = 1};
    assert_int_equal(take(root, &pins, 3 * MIB, &seen, &err), TDM_INTERRUPTED);
    assert_true(pins.pinned == 0 && seen.taken_bytes == 0);
}

/* Memory that cannot be pinned is allocated as pageable and reported. Without a device, the
 * allocation fails. */
static void test_pageable_arena(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    struct pins pins = {.fails_at = 1, .failure = TDM_NO_MEMORY};
    struct watched seen;
    const char *root = root_of("pageable");
    put(root, "proc/meminfo", meminfo);
    assert_int_equal(take(root, &pins, 3 * MIB, &seen, &err), TDM_OK);
    assert_true(pins.unpinned == 0 && seen.taken_bytes == 3 * MIB);
    assert_int_equal(seen.pageable_bytes, 3 * MIB);
    assert_string_equal(seen.reason, "no more");

    pins = (struct pins){.fails_at = 1, .failure = TDM_NO_DEVICE};
    assert_int_equal(take(root, &pins, 3 * MIB, &seen, &err), TDM_NO_DEVICE);
    assert_true(pins.unpinned == 0 && seen.pageable_bytes == 0);
    assert_string_equal(err.message, "no more");
}

/* ---- before a run ---- */

static enum tdm_status free_bytes(uint64_t *bytes, struct tdm_error *err)
{
    (void)err;
    *bytes = 10 * GIB;
    return TDM_OK;
}

static enum tdm_status no_device(uint64_t *bytes, struct tdm_error *err)
{
    (void)bytes;
    return tdm_fail(err, TDM_NO_DEVICE, "no GPU");
}

/* Of two programs the larger arenas count. Nothing is opened, so all of the runtime is still to
 * come. */
static void test_dry_run(void **state)
{
    (void)state;
    struct tdm_machine machine = {0};
    tdm_topology_begin(&machine.topology);
    machine.topology.places[TDM_DEVICE].runtime_bytes = GIB;
    const struct tdm_schedule schedule = {.machine = &machine};
    struct tdm_program small = {.schedule = &schedule, .ranks = 1}, large = small;
    const struct tdm_program *programs[] = {&small, &large};
    struct tdm_backend backend = tdm_null_backend;
    backend.executes = backend.own_device_memory = true;
    backend.free_bytes = free_bytes;
    struct tdm_free_memory memory;
    struct tdm_error err = {0};
    large.arena_bytes[TDM_DEVICE] = 9 * GIB;
    assert_int_equal(tdm_arenas_check(&backend, 2, programs, &memory, &err), TDM_OK);
    assert_true(memory.device_bytes == 10 * GIB && memory.host_bytes > 0);
    large.arena_bytes[TDM_DEVICE]++;
    assert_int_equal(tdm_arenas_check(&backend, 2, programs, &memory, &err), TDM_INFEASIBLE);
    assert_non_null(strstr(err.message, "of the GPU's memory"));

    backend.free_bytes = no_device; /* the device may be in another computer */
    assert_int_equal(tdm_arenas_check(&backend, 2, programs, &memory, &err), TDM_OK);
    assert_true(memory.device_bytes == TDM_SIZE_MAX);
    small.arena_bytes[TDM_HOST] = UINT64_MAX / 2; /* more than any computer has */
    assert_int_equal(tdm_arenas_check(&backend, 2, programs, &memory, &err), TDM_INFEASIBLE);
    assert_non_null(strstr(err.message, "of this computer's memory"));

    /* The device's arena is memory of this computer. */
    small.arena_bytes[TDM_HOST] = 0;
    large.arena_bytes[TDM_DEVICE] = UINT64_MAX / 2;
    backend = tdm_null_backend;
    backend.executes = true;
    assert_int_equal(tdm_arenas_check(&backend, 2, programs, &memory, &err), TDM_INFEASIBLE);
    assert_true(memory.device_bytes == 0 && strstr(err.message, "of this computer's") != NULL);
    backend.executes = false;
    assert_int_equal(tdm_arenas_check(&backend, 2, programs, &memory, &err), TDM_OK);
}

/* Bytes that are pinned for a device are pageable without one. The trace adds bytes of its own. */
static void test_amounts(void **state)
{
    (void)state;
    struct tdm_machine machine = {0};
    tdm_topology_begin(&machine.topology);
    struct tdm_sequence sequence = {.tokens = 1000};
    const struct tdm_schedule schedule = {
        .machine = &machine, .sequences = &sequence, .sequence_count = 1};
    const struct tdm_program program = {.schedule = &schedule,
                                        .ranks = 1,
                                        .op_count = 50,
                                        .arena_bytes = {[TDM_DEVICE] = 3 * GIB, [TDM_HOST] = GIB}};
    struct tdm_backend backend = {.executes = true, .own_device_memory = true};
    struct tdm_amounts device = tdm_amounts_of(&program, &backend, false);
    assert_true(device.device_bytes == 3 * GIB && device.pinned_bytes == GIB);
    assert_true(device.pageable_bytes >= 8000 && device.pageable_bytes < 20000);
    assert_true(tdm_amounts_of(&program, &backend, true).pageable_bytes > device.pageable_bytes);
    backend.own_device_memory = false;
    struct tdm_amounts computer = tdm_amounts_of(&program, &backend, false);
    assert_true(computer.pinned_bytes == 0);
    assert_int_equal(computer.pageable_bytes, device.pageable_bytes + GIB);
}

/* ---- nodes of memory ---- */

static void test_node_of_device(void **state)
{
    (void)state;
    const char *root = root_of("nodes");
    put(root, "sys/bus/pci/devices/0000:4b:00.0/numa_node", "1\n");
    put(root, "sys/bus/pci/devices/0000:4c:00.0/numa_node", "-1\n");
    assert_int_equal(tdm_numa_node_of(root, "0000:4B:00.0"), TDM_NO_NODE); /* no node is known */
    put(root, "sys/devices/system/node/online", "0\n");
    /* there is only one node */
    assert_int_equal(tdm_numa_node_of(root, "0000:4B:00.0"), TDM_NO_NODE);
    put(root, "sys/devices/system/node/online", "0-1\n");
    assert_int_equal(tdm_numa_node_of(root, "0000:4B:00.0"), 1);
    assert_int_equal(tdm_numa_node_of(root, "0000:4C:00.0"), TDM_NO_NODE);
    assert_int_equal(tdm_numa_node_of(root, "0000:4D:00.0"), TDM_NO_NODE);
}

/* The kernel numbers nodes as we do: the preferred node of a range can be read back. */
static void test_preferred_node(void **state)
{
    (void)state;
    unsigned long mask[16] = {0};
    int policy = -1;
    void *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    enum { PREFERRED = 1, OF_ADDRESS = 2 };
    tdm_numa_prefer(memory, MIB, TDM_NO_NODE);
    long known = syscall(SYS_get_mempolicy, &policy, mask, 1025, memory, OF_ADDRESS);
    assert_true(known != 0 || policy != PREFERRED);
    tdm_numa_prefer(memory, MIB, 0);
    if (known == 0) { /* the kernel has nodes and allows the query */
        assert_int_equal(syscall(SYS_get_mempolicy, &policy, mask, 1025, memory, OF_ADDRESS), 0);
        assert_true(policy == PREFERRED && mask[0] == 1);
    }
    memset(memory, 1, MIB);
    munmap(memory, MIB);
}

/* Memory that exists but that the kernel does not manage yet. */
static void test_sleeping_memory(void **state)
{
    (void)state;
    const char *root = root_of("sleeping");
    char path[128];
    put(root, "proc/meminfo", meminfo);
    put(root, "sys/devices/system/memory/block_size_bytes", "40000000\n"); /* 1 GiB */
    for (int i = 0; i < 130; i++) {
        snprintf(path, sizeof(path), "sys/devices/system/memory/memory%d/state", i);
        put(root, path, i < 126 ? "online\n" : "offline\n");
    }
    struct tdm_host_memory memory = read_root(root);
    /* MemTotal has 125 of 126 GiB: the kernel took the rest. */
    assert_int_equal(memory.to_come_bytes, 0);
    assert_int_equal(tdm_host_memory_usable_bytes(&memory), 100 * GIB - RESERVE);
    for (int i = 126; i < 256; i++) {
        snprintf(path, sizeof(path), "sys/devices/system/memory/memory%d/state", i);
        put(root, path, "online\n");
    }
    memory = read_root(root);
    assert_int_equal(memory.to_come_bytes, 131 * GIB);
    assert_int_equal(tdm_host_memory_usable_bytes(&memory), 231 * GIB - RESERVE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device),          cmocka_unit_test(test_host),
        cmocka_unit_test(test_plain_computer),  cmocka_unit_test(test_groups),
        cmocka_unit_test(test_first_groups),    cmocka_unit_test(test_growing_computer),
        cmocka_unit_test(test_sleeping_memory), cmocka_unit_test(test_host_arena),
        cmocka_unit_test(test_pageable_arena),  cmocka_unit_test(test_node_of_device),
        cmocka_unit_test(test_preferred_node),  cmocka_unit_test(test_dry_run),
        cmocka_unit_test(test_amounts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
