/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a product of stored matrices, for the backends that compute one. */
#ifndef TDM_EXECUTOR_MULTIPLICATION_H
#define TDM_EXECUTOR_MULTIPLICATION_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* A matrix in an operand. `data` is its first element; rows are `stride` elements apart.
 * `transposed`: memory holds the transpose. */
struct tdm_matrix {
    void *data;
    enum tdm_dtype dtype;
    uint64_t stride;
    bool transposed;
};

/* C = start + sum over terms of A B, with A m x k and B k x n. C is not transposed and overlaps no
 * factor. The start is C itself with `add`; a matrix like C if `addend.data` is set (it may be C);
 * one row for all rows of C if `bias.data` is set; else 0. */
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
