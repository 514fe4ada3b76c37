/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NumPy's .npy files that can hold tokens or a mask: a one-dimensional array of integers, or of
 * truth values. Format: "NumPy Format Version 1.0" to 3.0, numpy.lib.format.
 */
#ifndef TDM_TEXTS_NPY_H
#define TDM_TEXTS_NPY_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Numbers in a file: little-endian, `width` bytes each. */
struct tdm_npy {
    uint64_t offset; /* of the first one in the file */
    uint64_t count;
    uint32_t width; /* 1, 2, 4 or 8 */
    bool is_signed;
    bool is_truth; /* truth values, of which a mask is made; no tokens */
};

/* Does the file start with the magic bytes of a .npy file? */
bool tdm_npy_is(const void *data, uint64_t bytes);

/* Finds the numbers in a whole file; `path` names it in messages. TDM_INPUT: an invalid header,
 * more than one dimension, numbers that are not integers or are big-endian, or a file size that
 * does not match the header. */
enum tdm_status tdm_npy_find(const char *path, const void *data, uint64_t bytes,
                             struct tdm_npy *npy, struct tdm_error *err);

#endif
