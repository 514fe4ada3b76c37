/* SPDX-License-Identifier: Apache-2.0 */
/* A test bench for single ops of the cpu backend. */
#include "tests/support/cpu_fixture.h"

#include "base/digest.h"
#include "executor/backends.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/ranks.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint64_t bench_seed(void)
{
    const char *text = getenv("TDM_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    print_message("# TDM_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

uint64_t bench_next(struct bench *bench)
{
    bench->random += 0x9e3779b97f4a7c15u;
    uint64_t x = bench->random;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t bench_between(struct bench *bench, uint64_t low, uint64_t high)
{
    return low + bench_next(bench) % (high - low + 1);
}

struct shape bench_shape(struct bench *bench)
{
    static const struct tdm_dtypes dtypes[] = {
        {.weights = TDM_DTYPE_FP32,
         .master = TDM_DTYPE_NONE,
         .activations = TDM_DTYPE_FP32,
         .kv = TDM_DTYPE_FP32,
         .kv_gradients = TDM_DTYPE_FP32,
         .gradients = TDM_DTYPE_FP32,
         .moments = TDM_DTYPE_FP32,
         .logits = TDM_DTYPE_FP32},
        {.weights = TDM_DTYPE_BF16,
         .master = TDM_DTYPE_REMAINDER16,
         .activations = TDM_DTYPE_BF16,
         .kv = TDM_DTYPE_BF16,
         .kv_gradients = TDM_DTYPE_FP32,
         .gradients = TDM_DTYPE_FP32,
         .moments = TDM_DTYPE_FP32,
         .logits = TDM_DTYPE_FP32},
        {.weights = TDM_DTYPE_BF16,
         .master = TDM_DTYPE_NONE,
         .activations = TDM_DTYPE_BF16,
         .kv = TDM_DTYPE_BF16,
         .kv_gradients = TDM_DTYPE_BF16,
         .gradients = TDM_DTYPE_BF16,
         .moments = TDM_DTYPE_BF16,
         .logits = TDM_DTYPE_BF16},
        {.weights = TDM_DTYPE_FP16,
         .master = TDM_DTYPE_FP32,
         .activations = TDM_DTYPE_FP16,
         .kv = TDM_DTYPE_FP16,
         .kv_gradients = TDM_DTYPE_FP16,
         .gradients = TDM_DTYPE_FP32,
         .moments = TDM_DTYPE_FP32,
         .logits = TDM_DTYPE_FP16},
        {.weights = TDM_DTYPE_BF16,
         .master = TDM_DTYPE_FP32,
         .activations = TDM_DTYPE_FP32,
         .kv = TDM_DTYPE_BF16,
         .kv_gradients = TDM_DTYPE_FP32,
         .gradients = TDM_DTYPE_BF16,
         .moments = TDM_DTYPE_BF16,
         .logits = TDM_DTYPE_FP32},
    };
    static const uint64_t pages[] = {4, 16, 33, 128, 200};
    struct shape shape = {
        .hidden = (uint32_t)bench_between(bench, 3, 90),
        .intermediate = (uint32_t)bench_between(bench, 3, 150),
        .kv_heads = (uint32_t)bench_between(bench, 1, 4),
        .head_dim = 2 * (uint32_t)bench_between(bench, 1, 20),
        .vocabulary = (uint32_t)bench_between(bench, 5, 300),
        .bias = bench_next(bench) & 1,
        .tied = bench_next(bench) & 1,
        .qk_norm = bench_next(bench) & 1,
        .page_tokens = pages[bench_between(bench, 0, 4)],
        .chunk_tokens = bench_between(bench, 5, bench_next(bench) % 4 == 0 ? 150 : 60),
        .sequences = (uint32_t)bench_between(bench, 1, 3),
        .dtypes = dtypes[bench_between(bench, 0, 4)],
    };
    shape.gelu = shape.intermediate % 3 == 0;
    shape.query_heads = shape.kv_heads * (uint32_t)bench_between(bench, 1, 7);
    shape.tile_tokens = bench_between(bench, 1, shape.chunk_tokens);
    for (uint32_t i = 0; i < shape.sequences; i++)
        shape.sequence_tokens[i] = bench_between(bench, 1, 3 * shape.chunk_tokens);
    if (bench_next(bench) & 1)
        shape.document_tokens = bench_between(bench, 1, 2 * shape.chunk_tokens);
    if (bench_next(bench) & 1)
        shape.window = bench_between(bench, 1, 2 * shape.chunk_tokens);
    return shape;
}

static void make_chunks(struct bench *bench)
{
    struct tdm_program *program = &bench->program;
    const struct tdm_schedule *schedule = &bench->schedule;
    uint64_t row = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        uint64_t tokens = schedule->sequences[s].tokens;
        uint32_t first = program->chunk_count;
        for (uint64_t t = 0; t < tokens; t += schedule->chunk_tokens) {
            assert_true(program->chunk_count < CHUNKS_MOST);
            struct tdm_chunk *chunk = &bench->chunks[program->chunk_count++];
            *chunk = (struct tdm_chunk){.sequence = s, .first_chunk = first, .first_token = t};
            chunk->tokens =
                tokens - t < schedule->chunk_tokens ? tokens - t : schedule->chunk_tokens;
            chunk->row = row;
            row += chunk->tokens;
        }
        for (uint32_t c = first; c < program->chunk_count; c++)
            bench->chunks[c].last_chunk = program->chunk_count - 1;
    }
    tdm_ranks_deal(bench->chunks, program->chunk_count, 1, TDM_DEAL_SNAKE, NULL);
}

void bench_open(struct bench *bench, const struct shape *shape, uint64_t seed)
{
    struct tdm_error err = {0};
    const char *architecture = shape->qk_norm      ? "Qwen3ForCausalLM"
                               : shape->bias       ? "Qwen2ForCausalLM"
                               : shape->window > 0 ? "MistralForCausalLM"
                                                   : "LlamaForCausalLM";
    json_t *config = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:b, s:I, s:i}",
        "architectures", architecture, "hidden_act", shape->gelu ? "gelu_pytorch_tanh" : "silu",
        "hidden_size", (int)shape->hidden, "intermediate_size", (int)shape->intermediate,
        "num_hidden_layers", 2, "num_attention_heads", (int)shape->query_heads,
        "num_key_value_heads", (int)shape->kv_heads, "head_dim", (int)shape->head_dim, "vocab_size",
        (int)shape->vocabulary, "max_position_embeddings", 4096, "rms_norm_eps", 1e-5, "rope_theta",
        10000.0, "tie_word_embeddings", (int)shape->tied, "use_sliding_window", shape->window > 0,
        "sliding_window", (json_int_t)(shape->window > 0 ? shape->window : 1), "max_window_layers",
        0);
    *bench = (struct bench){.random = seed};
    if (tdm_model_from_config("test", "test", config, &bench->model, &err) != TDM_OK)
        fail_msg("%s", err.message);
    json_decref(config);
    tdm_topology_begin(&bench->machine.topology);
    bench->schedule = (struct tdm_schedule){
        .model = bench->model,
        .machine = &bench->machine,
        .sequence_count = shape->sequences,
        .sequences = bench->sequences,
        .chunk_tokens = shape->chunk_tokens,
        .page_tokens = shape->page_tokens,
        .head_tile_tokens = shape->tile_tokens,
        .head_tile_vocabulary = shape->vocabulary,
        .dtypes = shape->dtypes,
        .optimizer = {.kind = TDM_OPTIMIZER_ADAMW,
                      .learning_rate = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .weight_decay = 0.1,
                      .decayed = TDM_DECAYED_DEFAULT},
    };
    for (uint32_t s = 0; s < shape->sequences; s++) {
        uint64_t tokens = shape->sequence_tokens[s];
        bench->sequences[s] = (struct tdm_sequence){.tokens = tokens, .document_count = 1};
        if (shape->document_tokens > 0 &&
            tdm_sequence_divide(&bench->sequences[s], "test", shape->document_tokens, &err) !=
                TDM_OK)
            fail_msg("%s", err.message);
    }
    bench->program = (struct tdm_program){.chunks = bench->chunks};
    tdm_program_set_schedule(&bench->program, &bench->schedule);
    make_chunks(bench);
    bench->step = (struct tdm_step){.number = 1, .learning_rate = 1e-3};
    const struct tdm_program *program = &bench->program;
    if (tdm_cpu_backend.open(1, &program, 0, &bench->executor, &err) != TDM_OK)
        fail_msg("%s", err.message);
}

void bench_close(struct bench *bench)
{
    tdm_cpu_backend.close(bench->executor);
    tdm_model_free(bench->model);
    for (int s = 0; s < 3; s++)
        free(bench->sequences[s].document_starts);
}

struct cell cell_new(struct bench *bench, enum tdm_dtype dtype, uint64_t count, double size)
{
    static unsigned number; /* so that addresses differ */
    uint64_t shift = number++ % 7 * 64, bytes = count * tdm_dtype_bytes(dtype);
    struct cell cell = {.dtype = dtype, .count = count, .block = malloc(shift + bytes + 1)};
    assert_non_null(cell.block);
    cell.data = cell.block + shift;
    for (uint64_t i = 0; i < count; i++)
        cell_set(&cell, i,
                 isnan(size) ? size : size * ((double)(bench_next(bench) >> 11) * 0x1p-52 - 1.0));
    return cell;
}

void cell_free(struct cell *cell)
{
    free(cell->block);
    cell->block = NULL;
}

double cell_get(const struct cell *cell, uint64_t index)
{
    switch (cell->dtype) {
    case TDM_DTYPE_FP32:
        return (double)((const float *)cell->data)[index];
    case TDM_DTYPE_BF16:
        return (double)tdm_bf16_to_float(((const uint16_t *)cell->data)[index]);
    case TDM_DTYPE_FP16:
        return (double)tdm_fp16_to_float(((const uint16_t *)cell->data)[index]);
    case TDM_DTYPE_INT32:
        return ((const int32_t *)cell->data)[index];
    default:
        return ((const double *)cell->data)[index];
    }
}

void cell_set(struct cell *cell, uint64_t index, double value)
{
    switch (cell->dtype) {
    case TDM_DTYPE_FP32:
        ((float *)cell->data)[index] = (float)value;
        break;
    case TDM_DTYPE_BF16:
        ((uint16_t *)cell->data)[index] = tdm_float_to_bf16((float)value);
        break;
    case TDM_DTYPE_FP16:
        ((uint16_t *)cell->data)[index] = tdm_float_to_fp16((float)value);
        break;
    case TDM_DTYPE_INT32:
        ((int32_t *)cell->data)[index] = (int32_t)value;
        break;
    default:
        ((double *)cell->data)[index] = value;
    }
}

double *cell_values(const struct cell *cell)
{
    double *values = malloc(cell->count * sizeof(*values) + 1);
    assert_non_null(values);
    for (uint64_t i = 0; i < cell->count; i++)
        values[i] = cell_get(cell, i);
    return values;
}

void bench_op(struct bench *bench, enum tdm_op_kind kind, enum tdm_part part, uint32_t layer,
              uint32_t chunk, uint64_t tokens)
{
    tdm_program_set_schedule(&bench->program, &bench->schedule); /* a test may have changed it */
    bench->op = (struct tdm_op){
        .kind = kind, .part = part, .layer = layer, .chunk = chunk, .tokens = tokens};
    if (kind == TDM_OP_OPTIMIZER) {
        bench->op.slices = 1;
        bench->op.elements = bench->model->units[layer].elements;
    }
    for (int i = 0; i < TDM_OPERANDS; i++)
        bench->op.access[i].buffer = TDM_NONE;
    bench->launch =
        (struct tdm_launch){.program = &bench->program, .op = &bench->op, .step = &bench->step};
}

void bench_operand(struct bench *bench, uint32_t index, struct cell *cell, enum tdm_mode mode)
{
    uint64_t bytes = cell->count * tdm_dtype_bytes(cell->dtype);
    bench->launch.operand[index] = (struct tdm_operand){
        .data = cell->data, .dtype = cell->dtype, .mode = mode, .slots = 1, .slot_bytes = bytes};
    bench->op.access[index] = (struct tdm_access){.slots = 1, .mode = mode, .bytes = bytes};
    bench->op.access_count = index + 1;
}

void bench_slots(struct bench *bench, uint32_t index, uint32_t first_chunk, uint32_t slots,
                 uint64_t slot_bytes)
{
    bench->launch.operand[index].slots = bench->op.access[index].slots = slots;
    bench->launch.operand[index].slot_bytes = slot_bytes;
    bench->op.access[index].before.chunk = bench->op.access[index].after.chunk = first_chunk;
}

void bench_run(struct bench *bench)
{
    struct tdm_error err = {0};
    if (tdm_cpu_backend.run[bench->op.kind](bench->executor, &bench->launch, &err) != TDM_OK)
        fail_msg("%s", err.message);
}

void bench_compare(struct bench *bench, const char *what, const struct cell *cell, uint64_t first,
                   uint64_t count, const double *want, double bound)
{
    double scale = fmax(bench->least_scale, 1e-30), error = 0;
    double rounding = cell->dtype == TDM_DTYPE_BF16   ? 0x1p-8
                      : cell->dtype == TDM_DTYPE_FP16 ? 0x1p-10
                                                      : 0;
    bound += rounding;
    for (uint64_t i = 0; i < count; i++)
        scale = fmax(scale, fabs(want[i]));
    for (uint64_t i = 0; i < count; i++) {
        double difference = fabs(cell_get(cell, first + i) - want[i]) / scale;
        if (!(difference <= bound))
            fail_msg("%s: element %llu of %llu is %g, should be %g (error %.2g, bound %.2g)", what,
                     (unsigned long long)i, (unsigned long long)count, cell_get(cell, first + i),
                     want[i], difference, bound);
        error = fmax(error, difference);
    }
    if (cell->dtype == TDM_DTYPE_FP32 && bench->schedule.dtypes.logits == TDM_DTYPE_FP32)
        bench->worst = fmax(bench->worst, error);
    uint64_t bytes = tdm_dtype_bytes(cell->dtype);
    bench->digest = bench->digest * 31 +
                    tdm_digest_bytes((const char *)cell->data + first * bytes, count * bytes);
}

void bench_untouched(struct bench *bench, const struct cell *unit_cell, const double *before,
                     uint32_t unit, enum tdm_part part)
{
    const struct tdm_unit *layout = &bench->model->units[unit];
    for (uint64_t i = 0; i < layout->elements; i++) {
        bool inside = false;
        for (uint32_t k = 0; k < layout->tensor_count; k++) {
            const struct tdm_tensor *tensor = &bench->model->tensors[layout->first_tensor + k];
            inside |= (part == TDM_PART_ALL || tdm_part_of(tensor->role) == part) &&
                      i >= tensor->offset && i < tensor->offset + tensor->elements;
        }
        if (!inside && cell_get(unit_cell, i) != before[i])
            fail_msg("element %llu of unit %u was touched", (unsigned long long)i, unit);
    }
}

uint64_t bench_document_tokens(const struct bench *bench, const struct tdm_chunk *chunk)
{
    const struct tdm_sequence *sequence = &bench->sequences[chunk->sequence];
    return sequence->document_count > 1 ? sequence->document_starts[1] : sequence->tokens;
}

const struct tdm_tensor *bench_tensor(const struct bench *bench, uint32_t unit, enum tdm_role role)
{
    return tdm_model_tensor(bench->model, unit, role);
}

void bench_rotate(const struct bench *bench, const struct tdm_chunk *chunk, uint64_t heads,
                  uint64_t stride, double sign, double *x)
{
    uint64_t document = bench_document_tokens(bench, chunk);
    uint64_t half = bench->model->head_dim / 2;
    double factor, frequency[64];
    tdm_rope_inverse_frequencies(&bench->model->rope, bench->model->head_dim, frequency, &factor);
    for (uint64_t t = 0; t < chunk->tokens; t++)
        for (uint64_t h = 0; h < heads; h++)
            for (uint64_t i = 0; i < half; i++) {
                double *a = x + t * stride + h * 2 * half + i, *b = a + half, was = *a;
                double angle = (double)((chunk->first_token + t) % document) * frequency[i];
                *a = factor * (was * cos(angle) - sign * *b * sin(angle));
                *b = factor * (*b * cos(angle) + sign * was * sin(angle));
            }
}
