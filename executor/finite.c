/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what ops write with what was there (executor/finite.h). */
#include "executor/finite.h"

#include "executor/forecast.h"
#include "executor/written.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tdm_finite {
    const struct tdm_arenas *arenas;
    /* of the operands that the op writes: their bytes before it, and after it */
    unsigned char *before[TDM_OPERANDS], *after;
    uint64_t capacity[TDM_OPERANDS], after_capacity;
};

enum tdm_status tdm_finite_new(const struct tdm_arenas *arenas, struct tdm_finite **out,
                               struct tdm_error *err)
{
    struct tdm_finite *finite = calloc(1, sizeof(*finite));
    if (finite == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for checking a step");
    finite->arenas = arenas;
    *out = finite;
    return TDM_OK;
}

void tdm_finite_free(struct tdm_finite *finite)
{
    if (finite == NULL)
        return;
    for (unsigned i = 0; i < TDM_OPERANDS; i++)
        free(finite->before[i]);
    free(finite->after);
    free(finite);
}

/* Does the op make values of this operand? A copy only moves them. */
static bool is_output(const struct tdm_launch *launch, uint32_t number)
{
    return launch->op->kind != TDM_OP_COPY && launch->operand[number].data != NULL &&
           tdm_is_written(&launch->op->access[number]);
}

static enum tdm_status finish(const struct tdm_finite *finite, struct tdm_error *err)
{
    const struct tdm_backend *backend = finite->arenas->backend;
    return backend->finish == NULL ? TDM_OK : backend->finish(finite->arenas->executor, err);
}

/* Copies an operand out of the arena. */
static enum tdm_status copy(const struct tdm_finite *finite, const struct tdm_operand *operand,
                            unsigned char **data, uint64_t *capacity, struct tdm_error *err)
{
    const uint64_t bytes = operand->slots * operand->slot_bytes;
    if (bytes > *capacity) {
        unsigned char *more = realloc(*data, bytes);
        if (more == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for checking a step");
        *data = more;
        *capacity = bytes;
    }
    return finite->arenas->backend->download(finite->arenas->executor, *data, operand->data, bytes,
                                             err);
}

enum tdm_status tdm_finite_before(struct tdm_finite *finite, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    enum tdm_status status = finish(finite, err);
    for (uint32_t i = 0; i < launch->op->access_count && status == TDM_OK; i++)
        if (is_output(launch, i))
            status =
                copy(finite, &launch->operand[i], &finite->before[i], &finite->capacity[i], err);
    return status;
}

/* Has an element of a piece changed to one that is not finite? Others may hold what was there
 * before. */
static bool spoils_piece(const struct tdm_written *piece, const unsigned char *before,
                         const unsigned char *after)
{
    const uint64_t size = tdm_dtype_bytes(piece->dtype);
    const bool is_number = piece->dtype == TDM_DTYPE_FP32 || piece->dtype == TDM_DTYPE_BF16 ||
                           piece->dtype == TDM_DTYPE_FP64;
    for (uint64_t i = 0; is_number && i < piece->elements; i++) {
        const uint64_t at = piece->offset + i * size;
        if (!isfinite(tdm_value_of(after + at, piece->dtype)) &&
            memcmp(before + at, after + at, size) != 0)
            return true;
    }
    return false;
}

/* The same for an operand. */
static bool spoils(const struct tdm_launch *launch, uint32_t number, const unsigned char *before,
                   const unsigned char *after)
{
    struct tdm_written written[TDM_WRITTEN_MOST];
    const struct tdm_operand *operand = &launch->operand[number];
    for (uint32_t slot = 0; slot < operand->slots; slot++) {
        const uint64_t at = slot * operand->slot_bytes;
        uint32_t count = tdm_list_written(launch, number, slot, written);
        for (uint32_t i = 0; i < count; i++)
            if (spoils_piece(&written[i], before + at, after + at))
                return true;
    }
    return false;
}

enum tdm_status tdm_finite_after(struct tdm_finite *finite, const struct tdm_launch *launch,
                                 struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    char where[TDM_WHERE_SIZE];
    enum tdm_status status = finish(finite, err);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++) {
        const struct tdm_operand *operand = &launch->operand[i];
        if (!is_output(launch, i))
            continue;
        status = copy(finite, operand, &finite->after, &finite->after_capacity, err);
        if (status == TDM_OK && spoils(launch, i, finite->before[i], finite->after))
            status = tdm_fail(
                err, TDM_INPUT,
                "op %llu of %llu of step %llu, %s (%s), writes the first value that is not finite, "
                "to \"%s\"",
                (unsigned long long)op->number + 1, (unsigned long long)launch->program->op_count,
                (unsigned long long)launch->step->number, tdm_op_kind_name(op->kind),
                tdm_forecast_where(launch->program, op->phase, op->layer, op->chunk, where),
                launch->program->buffers[op->access[i].buffer].name);
    }
    return status;
}
