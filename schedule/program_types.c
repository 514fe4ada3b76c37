/* SPDX-License-Identifier: Apache-2.0 */
/* Names in programs, and questions that need no lowering. */
#include "schedule/program_types.h"

#include <string.h>

const char *tdm_phase_name(enum tdm_phase phase)
{
    static const char *const names[TDM_PHASES] = {"forward", "backward", "optimizer"};
    return names[phase];
}

uint64_t tdm_program_tokens(const struct tdm_program *program)
{
    if (program->chunk_count == 0)
        return 0;
    const struct tdm_chunk *last = &program->chunks[program->chunk_count - 1];
    return last->row + last->tokens;
}

uint32_t tdm_program_find(const struct tdm_program *program, const char *name)
{
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (strcmp(program->buffers[i].name, name) == 0)
            return i;
    return TDM_NONE;
}
