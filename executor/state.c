/* SPDX-License-Identifier: Apache-2.0 */
/* State: weights, masters and moments into the arenas; weights, gradients and losses out of them. */
#include "executor/state.h"

#include "executor/random.h"
#include "executor/remainder.h"
#include "schedule/lowering.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double tdm_random_normal(uint64_t seed, uint64_t step, uint64_t tensor, uint64_t element)
{
    uint64_t bits = tdm_random_bits(seed, step, tensor, element);
    double radius = sqrt(-2.0 * log(tdm_random_unit(bits)));
    return radius * cos(2.0 * M_PI * tdm_random_unit(tdm_random_mix(bits)));
}

/* Where a content of a unit is at home; NULL if this schedule has none. */
static void *unit_data(const struct tdm_arenas *arenas, const struct tdm_program *program,
                       enum tdm_content content, uint32_t unit)
{
    uint32_t buffer, slot;
    if (!tdm_program_home(program, content, unit, &buffer, &slot))
        return NULL;
    return tdm_arenas_slot(arenas, &program->buffers[buffer], slot);
}

/* Element `i` of an array of fp32 or bf16. */
static float load(const void *data, enum tdm_dtype dtype, uint64_t i)
{
    if (dtype == TDM_DTYPE_FP32)
        return ((const float *)data)[i];
    return tdm_bf16_to_float(((const uint16_t *)data)[i]);
}

/* Writes the elements of each tensor of a unit (never the padding between) from `source`, laid out
 * like the unit at `dtype`. */
static enum tdm_status upload_tensors(const struct tdm_arenas *arenas,
                                      const struct tdm_model *model, uint32_t unit, void *data,
                                      const void *source, enum tdm_dtype dtype,
                                      struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    uint64_t size = tdm_dtype_bytes(dtype);
    const struct tdm_unit *u = &model->units[unit];
    for (uint32_t i = 0; i < u->tensor_count && status == TDM_OK; i++) {
        const struct tdm_tensor *tensor = &model->tensors[u->first_tensor + i];
        status = arenas->backend->upload(arenas->executor, (char *)data + tensor->offset * size,
                                         (const char *)source + tensor->offset * size,
                                         tensor->elements * size, err);
    }
    return status;
}

/* bf16 weights and what the masters add to them, from fp32. */
static void split_values(const float *values, uint64_t count, uint16_t *weights,
                         uint16_t *remainders)
{
    for (uint64_t i = 0; i < count; i++)
        tdm_master_split(values[i], &weights[i], &remainders[i]);
}

enum tdm_status tdm_state_write(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                uint32_t unit, const float *values, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_dtypes *dtypes = &program->schedule->dtypes;
    uint64_t elements = model->units[unit].elements;
    uint16_t *weights = calloc(elements, sizeof(*weights));
    uint16_t *remainders = calloc(elements, sizeof(*remainders));
    float *zeros = calloc(elements, sizeof(*zeros));
    enum tdm_status status = TDM_OK;
    if (weights == NULL || remainders == NULL || zeros == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the weights of unit %u", unit);
        goto free_arrays;
    }
    split_values(values, elements, weights, remainders);
    status = upload_tensors(arenas, model, unit, unit_data(arenas, program, TDM_UNIT_WEIGHTS, unit),
                            dtypes->weights == TDM_DTYPE_FP32 ? (const void *)values : weights,
                            dtypes->weights, err);
    void *master = unit_data(arenas, program, TDM_UNIT_MASTER, unit);
    if (master != NULL && status == TDM_OK)
        status =
            upload_tensors(arenas, model, unit, master,
                           dtypes->master == TDM_DTYPE_FP32 ? (const void *)values : remainders,
                           dtypes->master, err);
    const enum tdm_content moments[] = {TDM_UNIT_MOMENT1, TDM_UNIT_MOMENT2};
    for (int m = 0; m < 2 && status == TDM_OK; m++) {
        void *moment = unit_data(arenas, program, moments[m], unit);
        if (moment != NULL)
            status = upload_tensors(arenas, model, unit, moment, zeros, dtypes->moments, err);
    }

free_arrays:
    free(weights);
    free(remainders);
    free(zeros);
    return status;
}

/* By all threads: every element has a random number of its own. */
static void draw_normal(uint64_t seed, uint32_t tensor, uint64_t count, double range, float *values)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)(range * tdm_random_normal(seed, 0, tensor, i));
}

enum tdm_status tdm_state_init(const struct tdm_arenas *arenas, const struct tdm_program *program,
                               uint64_t seed, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    enum tdm_status status = TDM_OK;
    for (uint32_t unit = 0; unit < model->unit_count && status == TDM_OK; unit++) {
        const struct tdm_unit *u = &model->units[unit];
        float *values = calloc(u->elements, sizeof(*values));
        if (values == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the weights of unit %u", unit);
        for (uint32_t t = u->first_tensor; t < u->first_tensor + u->tensor_count; t++) {
            const struct tdm_tensor *tensor = &model->tensors[t];
            float *at = values + tensor->offset;
            if (tdm_role_is_norm(tensor->role))
                for (uint64_t i = 0; i < tensor->elements; i++)
                    at[i] = 1;
            else if (tensor->rows > 1)
                draw_normal(seed, t, tensor->elements, model->initializer_range, at);
        }
        status = tdm_state_write(arenas, program, unit, values, err);
        free(values);
    }
    return status;
}

/* Adds the tensors of one array of the arena, laid out like `unit`, to `values`. */
static enum tdm_status add_tensors(const struct tdm_arenas *arenas, const struct tdm_model *model,
                                   uint32_t unit, const void *data, enum tdm_dtype dtype,
                                   float *values, struct tdm_error *err)
{
    const struct tdm_unit *u = &model->units[unit];
    enum tdm_status status = TDM_OK;
    uint64_t size = tdm_dtype_bytes(dtype);
    char *copy = malloc(u->elements * size);
    if (copy == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for reading unit %u", unit);
    for (uint32_t t = u->first_tensor; t < u->first_tensor + u->tensor_count && status == TDM_OK;
         t++) {
        const struct tdm_tensor *tensor = &model->tensors[t];
        status = arenas->backend->download(arenas->executor, copy,
                                           (const char *)data + tensor->offset * size,
                                           tensor->elements * size, err);
        for (uint64_t i = 0; i < tensor->elements && status == TDM_OK; i++)
            values[tensor->offset + i] += load(copy, dtype, i);
    }
    free(copy);
    return status;
}

enum tdm_status tdm_state_read_weights(const struct tdm_arenas *arenas,
                                       const struct tdm_program *program, uint32_t unit,
                                       float *values, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_dtypes *dtypes = &program->schedule->dtypes;
    const struct tdm_unit *u = &model->units[unit];
    void *weights = unit_data(arenas, program, TDM_UNIT_WEIGHTS, unit);
    void *master = unit_data(arenas, program, TDM_UNIT_MASTER, unit);
    memset(values, 0, u->elements * sizeof(*values));
    if (master == NULL)
        return add_tensors(arenas, model, unit, weights, dtypes->weights, values, err);
    if (dtypes->master == TDM_DTYPE_FP32)
        return add_tensors(arenas, model, unit, master, TDM_DTYPE_FP32, values, err);

    uint16_t *high = calloc(u->elements, sizeof(*high));
    uint16_t *low = calloc(u->elements, sizeof(*low));
    enum tdm_status status = TDM_OK;
    if (high == NULL || low == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for reading unit %u", unit);
        goto free_halves;
    }
    for (uint32_t t = u->first_tensor; t < u->first_tensor + u->tensor_count && status == TDM_OK;
         t++) {
        const struct tdm_tensor *tensor = &model->tensors[t];
        uint64_t at = tensor->offset, bytes = tensor->elements * sizeof(*high);
        status = arenas->backend->download(arenas->executor, high + at, (uint16_t *)weights + at,
                                           bytes, err);
        if (status == TDM_OK)
            status = arenas->backend->download(arenas->executor, low + at, (uint16_t *)master + at,
                                               bytes, err);
        for (uint64_t i = at; i < at + tensor->elements && status == TDM_OK; i++)
            values[i] = tdm_master_join(high[i], low[i]);
    }

free_halves:
    free(high);
    free(low);
    return status;
}

enum tdm_status tdm_state_read_gradient(const struct tdm_arenas *arenas,
                                        const struct tdm_program *program, uint32_t unit,
                                        float *values, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_model *model = schedule->model;
    const struct tdm_layout *layout = program->layout;
    uint32_t embedding = tdm_model_embedding_unit(model);
    uint32_t tied = layout->tied_home != TDM_NONE ? layout->tied_home : layout->tied_gradient;
    if (schedule->optimizer.kind != TDM_OPTIMIZER_NONE || schedule->pass == TDM_EVALUATE)
        return tdm_fail(err, TDM_INPUT,
                        "only a step that trains without an optimizer leaves its gradients");
    memset(values, 0, model->units[unit].elements * sizeof(*values));

    enum tdm_dtype dtype = schedule->dtypes.gradients;
    enum tdm_status status =
        add_tensors(arenas, model, unit, unit_data(arenas, program, TDM_UNIT_GRADIENT, unit), dtype,
                    values, err);
    if (status == TDM_OK && unit == embedding && model->tied)
        status =
            add_tensors(arenas, model, unit, tdm_arenas_slot(arenas, &program->buffers[tied], 0),
                        dtype, values, err);
    return status;
}

enum tdm_status tdm_state_read_moment(const struct tdm_arenas *arenas,
                                      const struct tdm_program *program, uint32_t unit, bool second,
                                      float *values, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    memset(values, 0, schedule->model->units[unit].elements * sizeof(*values));
    void *moment = unit_data(arenas, program, second ? TDM_UNIT_MOMENT2 : TDM_UNIT_MOMENT1, unit);
    return moment == NULL ? TDM_OK
                          : add_tensors(arenas, schedule->model, unit, moment,
                                        schedule->dtypes.moments, values, err);
}

enum tdm_status tdm_state_write_tokens(const struct tdm_arenas *arenas,
                                       const struct tdm_program *program, const int32_t *inputs,
                                       const int32_t *targets, struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &program->buffers[program->layout->tokens];
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < program->chunk_count && status == TDM_OK; i++) {
        const struct tdm_chunk *chunk = &program->chunks[i];
        uint64_t bytes = chunk->tokens * sizeof(int32_t);
        char *slot = tdm_arenas_slot(arenas, buffer, i);
        status = arenas->backend->upload(arenas->executor, slot, inputs + chunk->row, bytes, err);
        if (status == TDM_OK)
            status = arenas->backend->upload(arenas->executor, slot + bytes, targets + chunk->row,
                                             bytes, err);
    }
    return status;
}

/* The fp64 of a slot. */
static enum tdm_status read_number(const struct tdm_arenas *arenas, const struct tdm_buffer *buffer,
                                   uint32_t slot, double *number, struct tdm_error *err)
{
    return arenas->backend->download(arenas->executor, number,
                                     tdm_arenas_slot(arenas, buffer, slot), sizeof(*number), err);
}

enum tdm_status tdm_state_read_loss(const struct tdm_arenas *arenas,
                                    const struct tdm_program *program, double *loss,
                                    double *gradient_norm, struct tdm_error *err)
{
    const struct tdm_layout *layout = program->layout;
    enum tdm_status status = TDM_OK;
    double sum = 0, squares = 0, number = 0;
    for (uint32_t i = 0; i < program->chunk_count && status == TDM_OK; i++) {
        status = read_number(arenas, &program->buffers[layout->loss], i, &number, err);
        sum += number;
    }
    bool norms = layout->norms != TDM_NONE;
    for (uint32_t i = 0; norms && i < program->schedule->model->unit_count && status == TDM_OK;
         i++) {
        status = read_number(arenas, &program->buffers[layout->norms], i, &number, err);
        squares += number;
    }
    if (status != TDM_OK)
        return status;
    *loss = sum;
    *gradient_norm = norms ? sqrt(squares) : NAN;
    return TDM_OK;
}
