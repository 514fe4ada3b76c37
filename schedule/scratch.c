/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch of a step: the most that any op of it needs, by the records of ops.
 *
 * Products use what there is and ask for nothing. For models from 0.5B to 7B and chunks of 1K and
 * 4K tokens, cuBLASLt chose the same algorithms, which need no workspace, whether it was allowed 0,
 * 32 or 64 MiB (H200, CUDA 13.0).
 */
#include "schedule/scratch.h"

#include "base/size.h"
#include "schedule/params.h"

static uint64_t most_bytes(const struct tdm_params *params, uint64_t tokens)
{
    uint64_t most = 0;
    for (int kind = 0; kind < TDM_OP_KINDS; kind++) {
        const struct tdm_op_type *type = tdm_op_type((enum tdm_op_kind)kind);
        uint64_t bytes = type->scratch == NULL ? 0 : type->scratch(params, tokens);
        bytes = tdm_size_align(bytes, TDM_SCRATCH_ALIGN);
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint64_t tdm_scratch_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    struct tdm_params params;
    tdm_params_fill(schedule, &params);
    return most_bytes(&params, tokens);
}

uint64_t tdm_scratch_product_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    struct tdm_params params;
    tdm_params_fill(schedule, &params);
    params.attention.gather = (struct tdm_gather_params){.key_pages = params.pages.longest_pages};
    return most_bytes(&params, tokens);
}
