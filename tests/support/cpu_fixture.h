/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test bench for single ops of the cpu backend: a small model, chunks made by hand, stored
 * tensors of any dtype with random values, and comparison with a computation in double.
 */
#ifndef TDM_TESTS_CPU_FIXTURE_H
#define TDM_TESTS_CPU_FIXTURE_H

#include "executor/backend.h"

#define CHUNKS_MOST 64

struct shape {
    uint32_t hidden, intermediate, query_heads, kv_heads, head_dim, vocabulary;
    bool bias, tied, gelu;
    bool qk_norm;    /* if true, no bias */
    uint64_t window; /* of every layer; 0: none */
    uint64_t page_tokens, chunk_tokens, tile_tokens;
    uint32_t sequences;
    uint64_t sequence_tokens[3];
    uint64_t document_tokens; /* length of each document; 0: one document per sequence */
    struct tdm_dtypes dtypes;
};

struct bench {
    struct tdm_model *model;
    struct tdm_machine machine; /* has only the tables that every machine has */
    struct tdm_schedule schedule;
    struct tdm_program program;
    struct tdm_chunk chunks[CHUNKS_MOST];
    struct tdm_sequence sequences[3];
    struct tdm_executor *executor;
    struct tdm_step step;
    struct tdm_op op;
    struct tdm_launch launch;
    uint64_t random;
    uint64_t digest;    /* of all outputs compared so far */
    double worst;       /* largest error of an fp32 result so far */
    double least_scale; /* errors are relative to at least this */
};

/* A tensor in memory, without padding after it, at varying offsets. */
struct cell {
    void *data;
    enum tdm_dtype dtype;
    uint64_t count;
    unsigned char *block;
};

/* Returns TDM_SEED, or a seed from the clock, and prints it. */
uint64_t bench_seed(void);

uint64_t bench_next(struct bench *bench);
uint64_t bench_between(struct bench *bench, uint64_t low, uint64_t high); /* both included */

/* A random small shape. */
struct shape bench_shape(struct bench *bench);

void bench_open(struct bench *bench, const struct shape *shape, uint64_t seed);
void bench_close(struct bench *bench);

/* A tensor of random values in [-1, 1] * size. Size NAN: all NaN (must not be read). */
struct cell cell_new(struct bench *bench, enum tdm_dtype dtype, uint64_t count, double size);
void cell_free(struct cell *cell);
double cell_get(const struct cell *cell, uint64_t index);
void cell_set(struct cell *cell, uint64_t index, double value);
/* All values; the caller frees. */
double *cell_values(const struct cell *cell);

/* bench_op() starts an op without operands; the next two set operands. */
void bench_op(struct bench *bench, enum tdm_op_kind kind, enum tdm_part part, uint32_t layer,
              uint32_t chunk, uint64_t tokens);
void bench_operand(struct bench *bench, uint32_t index, struct cell *cell, enum tdm_mode mode);
void bench_slots(struct bench *bench, uint32_t index, uint32_t first_chunk, uint32_t slots,
                 uint64_t slot_bytes);
void bench_run(struct bench *bench);

/* Compares values [first, first + count) of a cell with `want`. The largest difference, relative to
 * the largest wanted value or least_scale, is at most `bound` plus the dtype's rounding. */
void bench_compare(struct bench *bench, const char *what, const struct cell *cell, uint64_t first,
                   uint64_t count, const double *want, double bound);

/* Checks that the values of a cell outside the given part of a unit are still `before`. */
void bench_untouched(struct bench *bench, const struct cell *unit_cell, const double *before,
                     uint32_t unit, enum tdm_part part);

/* Tokens of each document of the chunk's sequence, except the last one, which may be shorter. */
uint64_t bench_document_tokens(const struct bench *bench, const struct tdm_chunk *chunk);

const struct tdm_tensor *bench_tensor(const struct bench *bench, uint32_t unit, enum tdm_role role);

/* Rotates the heads of each row of x by the positions of a chunk's tokens; sign -1 rotates back. */
void bench_rotate(const struct bench *bench, const struct tdm_chunk *chunk, uint64_t heads,
                  uint64_t stride, double sign, double *x);

/* Checks of unit_cpu.c that have their own files. */
void check_attention(struct bench *bench);
void check_qk_norm(struct bench *bench);

#endif
