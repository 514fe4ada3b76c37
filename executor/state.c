/* SPDX-License-Identifier: Apache-2.0 */
/* State: writes weights, masters, moments and tokens into the arenas; reads weights, gradients,
 * moments and losses from them. */
#include "executor/state.h"

#include "base/size.h"
#include "executor/processes.h"
#include "executor/remainder.h"
#include "executor/snapshot.h"
#include "schedule/program.h"
#include "schedule/slices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Does this schedule have a content of a unit? */
static bool has_home(const struct tdm_program *program, enum tdm_content content, uint32_t unit)
{
    uint32_t buffer, slot;
    return tdm_program_home(program, content, unit, &buffer, &slot);
}

/* The home of a content of a unit on a rank; NULL if this schedule has none, or the rank is of
 * another process. */
static void *unit_data(const struct tdm_arenas *arenas, const struct tdm_program *program,
                       enum tdm_content content, uint32_t unit)
{
    uint32_t buffer, slot;
    if (!tdm_program_home(program, content, unit, &buffer, &slot))
        return NULL;
    return tdm_arenas_slot(arenas, &program->buffers[buffer], slot);
}

/* Elements [begin, end) of a unit that a rank has of a content, within others; `at` is the number
 * of the first one in the rank's home. */
struct held {
    uint64_t begin, end, at;
};

/* Does each rank have its part of a content? Otherwise all have all of it. */
static bool is_parted(const struct tdm_program *program, enum tdm_content content)
{
    return tdm_is_of_state(content) ||
           (content == TDM_UNIT_WEIGHTS && tdm_weights_sliced(program->schedule));
}

static struct held held_by(const struct tdm_program *program, enum tdm_content content,
                           uint32_t unit, uint32_t rank, uint64_t first, uint64_t count)
{
    struct tdm_slice part = {0, program->schedule->model->units[unit].elements};
    if (is_parted(program, content))
        part = tdm_rank_part(program->schedule, unit, rank);
    struct held held = {tdm_most(first, part.first),
                        tdm_least(first + count, part.first + part.elements), 0};
    held.end = tdm_most(held.begin, held.end);
    held.at = held.begin - part.first;
    return held;
}

/* Element `i` of an array of fp32 or bf16. */
static float load(const void *data, enum tdm_dtype dtype, uint64_t i)
{
    if (dtype == TDM_DTYPE_FP32)
        return ((const float *)data)[i];
    return tdm_bf16_to_float(((const uint16_t *)data)[i]);
}

/* Writes `count` elements of a content of a tensor's unit on all ranks, if this schedule has it. If
 * source is NULL, it writes zeros. */
static enum tdm_status upload(const struct tdm_arenas *arenas, const struct tdm_program *program,
                              enum tdm_content content, enum tdm_dtype dtype,
                              const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                              const void *source, struct tdm_error *err)
{
    const uint64_t size = tdm_dtype_bytes(dtype), from = tensor->offset + first;
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++) {
        char *data = unit_data(&arenas[rank], program, content, tensor->unit);
        const struct held held = held_by(program, content, tensor->unit, rank, from, count);
        if (data == NULL || held.begin == held.end)
            continue;
        const char *at = source == NULL ? NULL : (const char *)source + (held.begin - from) * size;
        status = arenas[rank].backend->upload(arenas[rank].executor, data + held.at * size, at,
                                              (held.end - held.begin) * size, err);
    }
    return status;
}

/* Who gets what is read of a rank, if there are several processes. */
enum readers { PROCESS_0, ALL_PROCESSES };

/* Reads bytes of a rank's arena. `data` is NULL where the rank is of another process. */
static enum tdm_status fetch(const struct tdm_arenas *arenas, uint32_t ranks, uint32_t rank,
                             enum readers readers, const void *data, void *destination,
                             uint64_t bytes, struct tdm_error *err)
{
    const struct tdm_arenas *of_rank = &arenas[rank];
    struct tdm_processes *processes = tdm_arenas_here(arenas)->processes;
    enum tdm_status status =
        of_rank->backend == NULL
            ? TDM_OK
            : of_rank->backend->download(of_rank->executor, destination, data, bytes, err);
    if (status != TDM_OK || processes == NULL)
        return status;
    const uint32_t from = tdm_processes_of(processes, ranks, rank);
    return readers == ALL_PROCESSES
               ? tdm_processes_broadcast(processes, from, destination, bytes, err)
               : tdm_processes_collect(processes, from, destination, bytes, err);
}

/* Whose part of what all ranks have is read: process 0 has it; one that reads for itself, too. */
static uint32_t rank_with_all(const struct tdm_arenas *arenas)
{
    const struct tdm_arenas *here = tdm_arenas_here(arenas);
    return here->processes != NULL ? 0 : (uint32_t)(here - arenas);
}

/* Reads `count` elements of a content of a tensor's unit, from the ranks that have them. The
 * schedule has the content. */
static enum tdm_status download(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                enum tdm_content content, enum tdm_dtype dtype,
                                const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                                void *destination, struct tdm_error *err)
{
    const uint64_t size = tdm_dtype_bytes(dtype), from = tensor->offset + first;
    const bool parted = is_parted(program, content);
    enum tdm_status status = TDM_OK;
    if (arenas->snapshot != NULL) {
        tdm_snapshot_read(arenas->snapshot, content, tensor, first, count, destination);
        return TDM_OK;
    }
    const uint32_t begin = parted ? 0 : rank_with_all(arenas);
    const uint32_t end = parted ? program->ranks : begin + 1;
    for (uint32_t rank = begin; rank < end && status == TDM_OK; rank++) {
        const char *data = unit_data(&arenas[rank], program, content, tensor->unit);
        const struct held held = held_by(program, content, tensor->unit, rank, from, count);
        if (held.begin < held.end)
            status = fetch(arenas, program->ranks, rank, PROCESS_0,
                           data == NULL ? NULL : data + held.at * size,
                           (char *)destination + (held.begin - from) * size,
                           (held.end - held.begin) * size, err);
    }
    return status;
}

enum tdm_dtype tdm_state_dtype(const struct tdm_program *program, enum tdm_content content)
{
    const struct tdm_dtypes *dtypes = &program->schedule->dtypes;
    uint32_t buffer, slot;
    if (!tdm_program_home(program, content, 0, &buffer, &slot))
        return TDM_DTYPE_NONE;
    return content == TDM_UNIT_WEIGHTS  ? dtypes->weights
           : content == TDM_UNIT_MASTER ? dtypes->master
                                        : dtypes->moments;
}

enum tdm_status tdm_state_put_kept(const struct tdm_arenas *arenas,
                                   const struct tdm_program *program, enum tdm_content content,
                                   const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                                   const void *data, struct tdm_error *err)
{
    return upload(arenas, program, content, tdm_state_dtype(program, content), tensor, first, count,
                  data, err);
}

enum tdm_status tdm_state_get_kept(const struct tdm_arenas *arenas,
                                   const struct tdm_program *program, enum tdm_content content,
                                   const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                                   void *data, struct tdm_error *err)
{
    return download(arenas, program, content, tdm_state_dtype(program, content), tensor, first,
                    count, data, err);
}

/* Splits fp32 values into bf16 weights and the remainders of their masters. */
static void split_values(const float *values, uint64_t count, uint16_t *weights,
                         uint16_t *remainders)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (uint64_t i = 0; i < count; i++)
        tdm_master_split(values[i], &weights[i], &remainders[i]);
}

enum tdm_status tdm_state_put(const struct tdm_arenas *arenas, const struct tdm_program *program,
                              const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                              const float *values, struct tdm_error *err)
{
    const struct tdm_dtypes *dtypes = &program->schedule->dtypes;
    uint16_t *weights = malloc(count * sizeof(*weights) + 1);
    uint16_t *remainders = malloc(count * sizeof(*remainders) + 1);
    enum tdm_status status = TDM_OK;
    if (weights == NULL || remainders == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu weights",
                          (unsigned long long)count);
        goto free_arrays;
    }
    split_values(values, count, weights, remainders);
    const struct {
        enum tdm_content content;
        enum tdm_dtype dtype;
        const void *source;
    } states[] = {
        {TDM_UNIT_WEIGHTS, dtypes->weights,
         dtypes->weights == TDM_DTYPE_FP32 ? (const void *)values : weights},
        {TDM_UNIT_MASTER, dtypes->master,
         dtypes->master == TDM_DTYPE_FP32 ? (const void *)values : remainders},
        {TDM_UNIT_MOMENT1, dtypes->moments, NULL},
        {TDM_UNIT_MOMENT2, dtypes->moments, NULL},
    };
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]) && status == TDM_OK; i++)
        status = upload(arenas, program, states[i].content, states[i].dtype, tensor, first, count,
                        states[i].source, err);

free_arrays:
    free(weights);
    free(remainders);
    return status;
}

enum tdm_status tdm_state_write(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                uint32_t unit, const float *values, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_unit *u = &model->units[unit];
    enum tdm_status status = TDM_OK;
    for (uint32_t t = u->first_tensor; t < u->first_tensor + u->tensor_count && status == TDM_OK;
         t++)
        status = tdm_state_put(arenas, program, &model->tensors[t], 0, model->tensors[t].elements,
                               values + model->tensors[t].offset, err);
    return status;
}

/* Reads elements of a content as fp32. Does nothing if the schedule does not have it. */
static enum tdm_status read_elements(const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, enum tdm_content content,
                                     enum tdm_dtype dtype, const struct tdm_tensor *tensor,
                                     uint64_t first, uint64_t count, float *values,
                                     struct tdm_error *err)
{
    if (!has_home(program, content, tensor->unit))
        return TDM_OK;
    char *copy = malloc(count * tdm_dtype_bytes(dtype) + 1);
    if (copy == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for reading %llu elements",
                        (unsigned long long)count);
    enum tdm_status status =
        download(arenas, program, content, dtype, tensor, first, count, copy, err);
    for (uint64_t i = 0; i < count && status == TDM_OK; i++)
        values[i] = load(copy, dtype, i);
    free(copy);
    return status;
}

/* Reads weights with the precision of their masters. */
static enum tdm_status read_masters(const struct tdm_arenas *arenas,
                                    const struct tdm_program *program,
                                    const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                                    float *values, struct tdm_error *err)
{
    const struct tdm_dtypes *dtypes = &program->schedule->dtypes;
    if (!has_home(program, TDM_UNIT_MASTER, tensor->unit))
        return read_elements(arenas, program, TDM_UNIT_WEIGHTS, dtypes->weights, tensor, first,
                             count, values, err);
    if (dtypes->master == TDM_DTYPE_FP32)
        return read_elements(arenas, program, TDM_UNIT_MASTER, TDM_DTYPE_FP32, tensor, first, count,
                             values, err);

    uint64_t bytes = count * sizeof(uint16_t);
    uint16_t *high = malloc(bytes + 1), *low = malloc(bytes + 1);
    enum tdm_status status = TDM_OK;
    if (high == NULL || low == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for reading %llu weights",
                          (unsigned long long)count);
        goto free_halves;
    }
    status = download(arenas, program, TDM_UNIT_WEIGHTS, TDM_DTYPE_BF16, tensor, first, count, high,
                      err);
    if (status == TDM_OK)
        status = download(arenas, program, TDM_UNIT_MASTER, TDM_DTYPE_REMAINDER16, tensor, first,
                          count, low, err);
    for (uint64_t i = 0; i < count && status == TDM_OK; i++)
        values[i] = tdm_master_join(high[i], low[i]);

free_halves:
    free(high);
    free(low);
    return status;
}

/* Adds the head's part of a tied gradient, which is summed in a buffer of its own. */
static enum tdm_status add_tied(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                const struct tdm_tensor *tensor, uint64_t first, uint64_t count,
                                float *values, struct tdm_error *err)
{
    const struct tdm_buffer *tied = tdm_program_tied_buffer(program);
    const enum tdm_dtype dtype = program->schedule->dtypes.gradients;
    const uint64_t size = tdm_dtype_bytes(dtype);
    const uint32_t rank = rank_with_all(arenas);
    const char *data = tdm_arenas_slot(&arenas[rank], tied, 0);
    char *of_head = malloc(count * size + 1);
    if (of_head == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for reading %llu elements",
                        (unsigned long long)count);
    enum tdm_status status = fetch(arenas, program->ranks, rank, PROCESS_0,
                                   data == NULL ? NULL : data + (tensor->offset + first) * size,
                                   of_head, count * size, err);
    for (uint64_t i = 0; i < count && status == TDM_OK; i++)
        values[i] += load(of_head, dtype, i);
    free(of_head);
    return status;
}

static enum tdm_status read_gradients(const struct tdm_arenas *arenas,
                                      const struct tdm_program *program,
                                      const struct tdm_tensor *tensor, uint64_t first,
                                      uint64_t count, float *values, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    if (schedule->optimizer.kind != TDM_OPTIMIZER_NONE || schedule->pass == TDM_EVALUATE)
        return tdm_fail(err, TDM_INPUT,
                        "only a step that trains without an optimizer leaves its gradients");
    enum tdm_status status =
        read_elements(arenas, program, TDM_UNIT_GRADIENT, schedule->dtypes.gradients, tensor, first,
                      count, values, err);
    if (status == TDM_OK && schedule->model->tied && tensor->role == TDM_ROLE_EMBEDDING)
        status = add_tied(arenas, program, tensor, first, count, values, err);
    return status;
}

enum tdm_status tdm_state_get(const struct tdm_arenas *arenas, const struct tdm_program *program,
                              enum tdm_content content, const struct tdm_tensor *tensor,
                              uint64_t first, uint64_t count, float *values, struct tdm_error *err)
{
    const struct tdm_dtypes *dtypes = &program->schedule->dtypes;
    memset(values, 0, count * sizeof(*values));
    if (content == TDM_UNIT_MASTER)
        return read_masters(arenas, program, tensor, first, count, values, err);
    if (content == TDM_UNIT_GRADIENT)
        return read_gradients(arenas, program, tensor, first, count, values, err);
    return read_elements(arenas, program, content,
                         content == TDM_UNIT_WEIGHTS ? dtypes->weights : dtypes->moments, tensor,
                         first, count, values, err);
}

/* Reads all tensors of a unit, in its layout. */
static enum tdm_status read_unit(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                 enum tdm_content content, uint32_t unit, float *values,
                                 struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_unit *u = &model->units[unit];
    enum tdm_status status = TDM_OK;
    memset(values, 0, u->elements * sizeof(*values));
    for (uint32_t t = u->first_tensor; t < u->first_tensor + u->tensor_count && status == TDM_OK;
         t++)
        status = tdm_state_get(arenas, program, content, &model->tensors[t], 0,
                               model->tensors[t].elements, values + model->tensors[t].offset, err);
    return status;
}

enum tdm_status tdm_state_read_weights(const struct tdm_arenas *arenas,
                                       const struct tdm_program *program, uint32_t unit,
                                       float *values, struct tdm_error *err)
{
    return read_unit(arenas, program, TDM_UNIT_MASTER, unit, values, err);
}

enum tdm_status tdm_state_read_gradient(const struct tdm_arenas *arenas,
                                        const struct tdm_program *program, uint32_t unit,
                                        float *values, struct tdm_error *err)
{
    return read_unit(arenas, program, TDM_UNIT_GRADIENT, unit, values, err);
}

enum tdm_status tdm_state_read_moment(const struct tdm_arenas *arenas,
                                      const struct tdm_program *program, uint32_t unit, bool second,
                                      float *values, struct tdm_error *err)
{
    return read_unit(arenas, program, second ? TDM_UNIT_MOMENT2 : TDM_UNIT_MOMENT1, unit, values,
                     err);
}

enum tdm_status tdm_state_write_tokens(const struct tdm_arenas *arenas,
                                       const struct tdm_program *program, const int32_t *inputs,
                                       const int32_t *targets, struct tdm_error *err)
{
    const struct tdm_buffer *buffer = tdm_program_tokens_buffer(program);
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < program->chunk_count && status == TDM_OK; i++) {
        const struct tdm_chunk *chunk = &program->chunks[i];
        const struct tdm_arenas *of_rank = &arenas[chunk->rank];
        if (of_rank->backend == NULL) /* of another process */
            continue;
        uint64_t bytes = chunk->tokens * sizeof(int32_t);
        char *slot = tdm_arenas_slot(of_rank, buffer, i);
        status = of_rank->backend->upload(of_rank->executor, slot, inputs + chunk->row, bytes, err);
        if (status == TDM_OK)
            status = of_rank->backend->upload(of_rank->executor, slot + bytes, targets + chunk->row,
                                              bytes, err);
    }
    return status;
}

/* Reads the fp64 number of a slot of a rank. */
static enum tdm_status read_number(const struct tdm_arenas *arenas,
                                   const struct tdm_program *program, uint32_t rank,
                                   const struct tdm_buffer *buffer, uint32_t slot, double *number,
                                   struct tdm_error *err)
{
    return fetch(arenas, program->ranks, rank, ALL_PROCESSES,
                 tdm_arenas_slot(&arenas[rank], buffer, slot), number, sizeof(*number), err);
}

enum tdm_status tdm_state_read_loss(const struct tdm_arenas *arenas,
                                    const struct tdm_program *program, double *loss,
                                    double *gradient_norm, double *unit_norms,
                                    struct tdm_error *err)
{
    const struct tdm_buffer *losses = tdm_program_loss_buffer(program);
    const struct tdm_buffer *norms = tdm_program_norms_buffer(program);
    enum tdm_status status = TDM_OK;
    double sum = 0, squares = 0, number = 0;
    for (uint32_t i = 0; i < program->chunk_count && status == TDM_OK; i++) {
        status = read_number(arenas, program, program->chunks[i].rank, losses, i, &number, err);
        sum += number;
    }
    for (uint32_t i = 0;
         norms != NULL && i < program->schedule->model->unit_count && status == TDM_OK; i++) {
        status = read_number(arenas, program, 0, norms, i, &number, err);
        squares += number;
        if (unit_norms != NULL)
            unit_norms[i] = sqrt(number);
    }
    if (status != TDM_OK)
        return status;
    *loss = sum;
    *gradient_norm = norms != NULL ? sqrt(squares) : NAN;
    return TDM_OK;
}
