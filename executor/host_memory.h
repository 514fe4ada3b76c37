/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free memory of this computer: the kernel's own estimate, and the limits of the control groups of
 * this process (both versions).
 *
 * Some virtual machines get more memory when theirs fills up, or manage a part of it only then.
 * There the kernel's estimate is too low, and code that allocates must read it again as it goes.
 */
#ifndef TDM_EXECUTOR_HOST_MEMORY_H
#define TDM_EXECUTOR_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct tdm_host_memory {
    uint64_t available_bytes; /* from /proc/meminfo; TDM_SIZE_MAX if unknown */
    uint64_t
        allowed_bytes; /* still free under the control groups' limits; TDM_SIZE_MAX: no limit */
    uint64_t
        to_come_bytes; /* may be added as memory fills; TDM_SIZE_MAX: amount unknown; usually 0 */
};

/* Reads the files below `root` ("" except in tests): proc/meminfo, proc/self/cgroup, sys/. */
void tdm_host_memory_read(const char *root, struct tdm_host_memory *memory);

/* Reads all but to_come_bytes again; fast. */
void tdm_host_memory_look(const char *root, struct tdm_host_memory *memory);

/* Bytes that may be allocated, as far as is known in advance. Leaves a reserve for other processes.
 * */
uint64_t tdm_host_memory_usable_bytes(const struct tdm_host_memory *memory);

/* Can `bytes` be allocated right now? */
bool tdm_host_memory_has(const struct tdm_host_memory *memory, uint64_t bytes);

#endif
