/* SPDX-License-Identifier: Apache-2.0 */
/* A cpu backend that rounds differently, at random. */
#include "tests/support/jitter.h"

#include "executor/backends.h"
#include "ops/attention.h"
#include "tests/support/random_schedule.h"
#include "executor/written.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The fraction of bf16 values that is rounded to the other neighbour; for other values the largest
 * change, relative to their root mean square. Somewhat more than tests/gpu/lockstep_test measured
 * on an H200. */
#define FLIPPED 0.01
#define FLIPPED_BY_ATTENTION 0.3 /* on tensor cores it takes probabilities in bf16 */
#define ADDED 1e-6
#define ADDED_BY_ATTENTION 1e-3
#define ADDED_TO_LOSS 1e-7

static struct tdm_dice dice;

void tdm_jitter_seed(uint64_t seed)
{
    tdm_dice_seed(&dice, seed);
}

bool tdm_jitter_spares(enum tdm_op_kind kind)
{
    static const enum tdm_op_kind kinds[] = {
        TDM_OP_COPY,        TDM_OP_ZERO,      TDM_OP_EMBED,    TDM_OP_EMBED_GRAD,
        TDM_OP_SORT_TOKENS, TDM_OP_OPTIMIZER, TDM_OP_KV_WRITE, TDM_OP_KV_GRAD_READ /* V */,
        TDM_OP_SELECT};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i] == kind)
            return true;
    return false;
}

static double uniform(void)
{
    return (double)(tdm_dice_next(&dice) >> 11) * 0x1p-53;
}

static void write_value(unsigned char *at, enum tdm_dtype dtype, double value)
{
    float single = (float)value;
    if (dtype == TDM_DTYPE_FP32)
        memcpy(at, &single, sizeof(single));
    else
        memcpy(at, &value, sizeof(value));
}

/* Changes the elements that an op changed. */
static void move(const struct tdm_launch *launch, const struct tdm_written *piece,
                 unsigned char *at, const unsigned char *before)
{
    bool by_attention = launch->op->kind == TDM_OP_ATTENTION_GRAD ||
                        (launch->op->kind == TDM_OP_ATTENTION && !piece->lse);
    bool in_bf16 = launch->operand[TDM_ATTENTION_Q].dtype == TDM_DTYPE_BF16 &&
                   launch->operand[TDM_ATTENTION_KV].dtype == TDM_DTYPE_BF16;
    double flipped = by_attention && in_bf16 ? FLIPPED_BY_ATTENTION : FLIPPED;
    double added = by_attention && in_bf16 ? ADDED_BY_ATTENTION : ADDED, squares = 0, count = 0;
    uint64_t size = tdm_dtype_bytes(piece->dtype);
    uint16_t half;
    if (piece->dtype == TDM_DTYPE_FP64)
        added = ADDED_TO_LOSS;
    for (uint64_t i = 0; i < piece->elements; i++) {
        double value = tdm_value_of(at + i * size, piece->dtype);
        if (memcmp(at + i * size, before + i * size, size) == 0 || !isfinite(value))
            continue;
        squares += value * value;
        count += 1;
    }
    double typical = count > 0 ? sqrt(squares / count) : 0;
    for (uint64_t i = 0; i < piece->elements; i++) {
        double value = tdm_value_of(at + i * size, piece->dtype);
        if (memcmp(at + i * size, before + i * size, size) == 0 || !isfinite(value))
            continue;
        double draw = uniform();
        if (piece->dtype != TDM_DTYPE_BF16) {
            write_value(at + i * size, piece->dtype, value + (2 * draw - 1) * added * typical);
        } else if (draw < flipped && value != 0) {
            memcpy(&half, at + i * size, sizeof(half));
            half = (uint16_t)(draw < flipped / 2 ? half + 1 : half - 1);
            memcpy(at + i * size, &half, sizeof(half));
        }
    }
}

static bool is_value(enum tdm_dtype dtype)
{
    return dtype == TDM_DTYPE_FP32 || dtype == TDM_DTYPE_BF16 || dtype == TDM_DTYPE_FP64;
}

static enum tdm_status run_moved(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    unsigned char *before[TDM_OPERANDS] = {NULL};
    struct tdm_written written[TDM_WRITTEN_MOST];
    enum tdm_status status = TDM_OK;
    bool moves = !tdm_jitter_spares(op->kind);
    for (uint32_t i = 0; i < op->access_count && moves && status == TDM_OK; i++) {
        const struct tdm_operand *operand = &launch->operand[i];
        if (!tdm_is_written(&op->access[i]))
            continue;
        before[i] = malloc(operand->slots * operand->slot_bytes);
        if (before[i] == NULL)
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for an operand");
        else
            memcpy(before[i], operand->data, operand->slots * operand->slot_bytes);
    }
    if (status == TDM_OK)
        status = tdm_cpu_backend.run[op->kind](executor, launch, err);
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_operand *operand = &launch->operand[i];
        for (uint32_t slot = 0; slot < operand->slots && before[i] != NULL; slot++) {
            uint32_t pieces = tdm_list_written(launch, i, slot, written);
            for (uint32_t k = 0; k < pieces && status == TDM_OK; k++) {
                uint64_t at = slot * operand->slot_bytes + written[k].offset;
                if (is_value(written[k].dtype))
                    move(launch, &written[k], (unsigned char *)operand->data + at, before[i] + at);
            }
        }
        free(before[i]);
    }
    return status;
}

struct tdm_backend tdm_jitter_backend(void)
{
    struct tdm_backend backend = tdm_cpu_backend;
    backend.name = "cpu that rounds otherwise";
    for (int i = 0; i < TDM_OP_KINDS; i++)
        backend.run[i] = run_moved;
    return backend;
}
