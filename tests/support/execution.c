/* SPDX-License-Identifier: Apache-2.0 */
/* Executes programs in tests: arenas, weights, tokens, single ops. */
#include "tests/support/execution.h"

#include "base/size.h"
#include "executor/state.h"
#include "executor/weights.h"
#include "schedule/layout.h"
#include "schedule/learning_rate.h"
#include "schedule/program.h"
#include "tests/support/slot_tensors.h"

#include <stdlib.h>
#include <string.h>

enum tdm_status tdm_execution_open(struct tdm_program *program, const char *name, uint64_t seed,
                                   struct tdm_execution *e, struct tdm_error *err)
{
    const struct tdm_program *const programs[] = {program};
    const struct tdm_backend *backend;
    *e = (struct tdm_execution){.seed = seed, .program = program};
    enum tdm_status status = tdm_backend_find(name, &backend, err);
    if (status == TDM_OK)
        status = tdm_tokens_open(NULL, program->schedule->model->vocabulary, &e->tokens, err);
    if (status == TDM_OK)
        status = tdm_batch_new(e->tokens, program->schedule, &e->batch, err);
    return status == TDM_OK ? tdm_arenas_take(backend, 1, programs, NULL, NULL, &e->arenas, err)
                            : status;
}

void tdm_execution_close(struct tdm_execution *e)
{
    tdm_arenas_release(&e->arenas, 1);
    tdm_batch_free(e->batch);
    tdm_tokens_free(e->tokens);
    tdm_program_free(e->program);
    *e = (struct tdm_execution){0};
}

enum tdm_status tdm_execution_begin(struct tdm_execution *e, int byte, struct tdm_error *err)
{
    for (int place = 0; place < TDM_PLACES; place++)
        if (e->arenas.base[place] != NULL)
            memset(e->arenas.base[place], byte, e->arenas.bytes[place]);
    return tdm_weights_draw(e->seed, &e->arenas, e->program, NULL, err);
}

enum tdm_status tdm_execution_step(struct tdm_execution *e, uint64_t number, struct tdm_step *step,
                                   struct tdm_error *err)
{
    const struct tdm_schedule *schedule = e->program->schedule;
    *step = (struct tdm_step){.number = number,
                              .learning_rate = tdm_learning_rate(&schedule->optimizer, number),
                              .seed = e->seed};
    tdm_batch_step(e->batch, e->seed, number);
    step->used_rows = e->batch->used_rows;
    return tdm_state_write_tokens(&e->arenas, e->program, e->batch->inputs, e->batch->targets, err);
}

enum tdm_status tdm_execution_launch(struct tdm_execution *e, const struct tdm_op *op,
                                     const struct tdm_step *step, struct tdm_error *err)
{
    struct tdm_launch launch = {.program = e->program,
                                .op = op,
                                .step = step,
                                .scratch = tdm_arenas_scratch(&e->arenas, e->program)};
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE)
            continue;
        const struct tdm_buffer *buffer = &e->program->buffers[access->buffer];
        launch.operand[i] =
            (struct tdm_operand){.data = tdm_arenas_slot(&e->arenas, buffer, access->first_slot),
                                 .dtype = buffer->dtype,
                                 .mode = access->mode,
                                 .slots = access->slots,
                                 .slot_bytes = buffer->slot_bytes};
    }
    return e->arenas.backend->run[op->kind](e->arenas.executor, &launch, err);
}

/* Copies only the tensors of a unit, or of its slice, without the padding between and after
 * them. */
static void copy_unit(const struct tdm_schedule *schedule, uint32_t unit, uint32_t slice,
                      uint64_t element_bytes, const unsigned char *from, unsigned char *to)
{
    const struct tdm_model *model = schedule->model;
    for (uint32_t i = 0; i < model->units[unit].tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[model->units[unit].first_tensor + i];
        uint64_t at, elements = tdm_slot_elements(schedule, tensor, slice, &at);
        memcpy(to + at * element_bytes, from + at * element_bytes, elements * element_bytes);
    }
}

/* Copies the contents of a slot without its padding, which may hold anything. */
static void copy_slot(const struct tdm_execution *e, const struct tdm_buffer *buffer, uint32_t slot,
                      unsigned char *to)
{
    const struct tdm_schedule *schedule = e->program->schedule;
    const struct tdm_model *model = schedule->model;
    const unsigned char *from = tdm_arenas_slot(&e->arenas, buffer, slot);
    uint64_t element_bytes = tdm_dtype_bytes(buffer->dtype);
    if (buffer->by_part) {
        struct tdm_tag tag = tdm_program_initial(e->program, buffer, slot);
        copy_unit(schedule, tag.layer, tag.chunk, element_bytes, from, to);
    } else if (buffer->content == TDM_TIED_GRADIENT) {
        copy_unit(schedule, tdm_model_embedding_unit(model), TDM_NONE, element_bytes, from, to);
    } else {
        uint64_t tokens = buffer->axis == TDM_AXIS_CHUNK ? e->program->chunks[slot].tokens : 1;
        memcpy(to, from, tdm_content_bytes(schedule, buffer->content, 0, tokens));
    }
}

unsigned char *tdm_execution_state(const struct tdm_execution *e, uint64_t *bytes)
{
    const struct tdm_program *program = e->program;
    *bytes = 0;
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].resident)
            *bytes += program->buffers[i].bytes;
    unsigned char *state = calloc(*bytes + 1, 1), *at = state;
    for (uint32_t i = 0; i < program->buffer_count && state != NULL; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        for (uint32_t slot = 0; slot < buffer->slots && buffer->resident; slot++) {
            copy_slot(e, buffer, slot, at);
            at += buffer->slot_bytes;
        }
    }
    return state;
}
