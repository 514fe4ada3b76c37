/* SPDX-License-Identifier: Apache-2.0 */
/* What a product of stored matrices is, for the backends that compute one. */
#ifndef TDM_EXECUTOR_MULTIPLICATION_H
#define TDM_EXECUTOR_MULTIPLICATION_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* A matrix of an operand. `data` is its first element, rows `stride` elements apart; `transposed`:
 * memory holds the transpose. */
struct tdm_matrix {
    void *data;
    enum tdm_dtype dtype;
    uint64_t stride;
    bool transposed;
};

/* C = start + sum over terms of A B, with A m x k and B k x n; C is not transposed and no factor
 * overlaps it. The start is 0, C itself with `add`, a matrix like C if `addend.data` (which may be
 * C), or a row for every row of C if `bias.data`. */
struct tdm_multiplication {
    uint64_t m, n;
    struct tdm_matrix c;
    bool add;
    struct tdm_matrix addend;
    struct tdm_matrix bias;
    uint32_t terms;
    struct {
        uint64_t k;
        struct tdm_matrix a, b;
    } term[2];
};

#endif
