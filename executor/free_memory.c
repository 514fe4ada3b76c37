/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the memory of a plan fits, and writes the error if it does not. */
#include "executor/free_memory.h"

#include "base/size.h"
#include "base/units.h"

#include <stdio.h>

/* Proposed limits are printed in this unit, with two decimals. */
#define STEP_BYTES (UINT64_C(1) << 30)

/* Prints bytes in the form that --memory takes, rounded down: "71.25G". */
static const char *as_option(uint64_t bytes, char out[TDM_FORMAT_SIZE])
{
    uint64_t hundredths = bytes / STEP_BYTES * 100 + bytes % STEP_BYTES * 100 / STEP_BYTES;
    snprintf(out, TDM_FORMAT_SIZE, "%llu.%02lluG", (unsigned long long)(hundredths / 100),
             (unsigned long long)(hundredths % 100));
    return out;
}

enum tdm_status tdm_free_memory_check_device(const struct tdm_device_memory *memory,
                                             uint64_t arena_bytes, struct tdm_error *err)
{
    uint64_t to_come =
        memory->runtime_bytes > memory->used_bytes ? memory->runtime_bytes - memory->used_bytes : 0;
    uint64_t needed = tdm_size_add(arena_bytes, to_come);
    if (needed <= memory->free_bytes)
        return TDM_OK;
    char need[TDM_FORMAT_SIZE], have[TDM_FORMAT_SIZE], missing[TDM_FORMAT_SIZE];
    uint64_t most = tdm_size_add(memory->free_bytes, memory->used_bytes);
    tdm_fail(err, TDM_INFEASIBLE, "needs %s of the GPU's memory, %s are free: %s too little",
             tdm_format_bytes(needed, need), tdm_format_bytes(memory->free_bytes, have),
             tdm_format_bytes(needed - memory->free_bytes, missing));
    return tdm_hint(err, "plan with --memory %s, or free the card: nvidia-smi shows who uses it",
                    as_option(most, need));
}

enum tdm_status tdm_free_memory_check_host(uint64_t usable_bytes, uint64_t device_bytes,
                                           uint64_t host_bytes, struct tdm_error *err)
{
    uint64_t needed = tdm_size_add(device_bytes, host_bytes);
    if (needed <= usable_bytes)
        return TDM_OK;
    char need[TDM_FORMAT_SIZE], have[TDM_FORMAT_SIZE], missing[TDM_FORMAT_SIZE];
    tdm_fail(err, TDM_INFEASIBLE,
             "needs %s of this computer's memory, %s are available: %s too little",
             tdm_format_bytes(needed, need), tdm_format_bytes(usable_bytes, have),
             tdm_format_bytes(needed - usable_bytes, missing));
    if (device_bytes == 0)
        return tdm_hint(err, "plan with --host-memory %s", as_option(usable_bytes, need));
    return tdm_hint(err, "plan with --memory and --host-memory of %s together",
                    as_option(usable_bytes, need));
}
