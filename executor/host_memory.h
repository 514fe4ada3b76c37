/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this computer can still give: the kernel's own estimate, and what the control
 * groups that we are in allow (both versions of them).
 *
 * A virtual machine may be given memory as it fills what it has, or manage only a part of what is
 * there until that is full. There the kernel's estimate says too little; who takes memory there
 * must look again as it goes.
 */
#ifndef TDM_EXECUTOR_HOST_MEMORY_H
#define TDM_EXECUTOR_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct tdm_host_memory {
    uint64_t available_bytes; /* as /proc/meminfo has it; TDM_SIZE_MAX if unknown */
    uint64_t allowed_bytes;   /* by control groups, beside what is used; TDM_SIZE_MAX: no limit */
    uint64_t to_come_bytes;   /* as it is used; TDM_SIZE_MAX: how much is not known; 0 on most */
};

/* Reads what is below `root` ("" but in tests): proc/meminfo, proc/self/cgroup, sys/. */
void tdm_host_memory_read(const char *root, struct tdm_host_memory *memory);

/* The same again, but for what is to come: quick. */
void tdm_host_memory_look(const char *root, struct tdm_host_memory *memory);

/* Bytes that may be taken, as far as one knows before. A little is left to everybody else. */
uint64_t tdm_host_memory_room(const struct tdm_host_memory *memory);

/* Can so much be taken right now? */
bool tdm_host_memory_has(const struct tdm_host_memory *memory, uint64_t bytes);

#endif
