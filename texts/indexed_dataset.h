/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index (.idx) of a token file (.bin) as Megatron-LM writes the pair: IndexedDataset of
 * megatron/core/datasets/indexed_dataset.py, once called MMapIndexedDataset. Little-endian, without
 * padding:
 *
 *     9 bytes   "MMIDIDX\0\0"
 *     u64       version, 1
 *     u8        dtype of the tokens: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 and 7 floats, 8
 *               uint16
 *     u64       n, the number of sequences
 *     u64       m, the number of entries of the document index
 *     i32[n]    tokens of each sequence
 *     i64[n]    byte of the .bin file at which each sequence begins
 *     i64[m]    first sequence of each document, and last n
 *     i8[n]     modes, of multimodal data only
 *
 * Sequences must follow each other in the .bin file without gaps, as Megatron's own tools write
 * them.
 */
#ifndef TDM_TEXTS_INDEXED_DATASET_H
#define TDM_TEXTS_INDEXED_DATASET_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The contents of an index. */
struct tdm_indexed_dataset {
    uint64_t count; /* tokens */
    uint32_t width; /* bytes of a token: 1, 2, 4 or 8 */
    bool is_signed;
    uint64_t document_count; /* empty ones not counted */
    uint64_t *
        document_starts; /* [document_count] first token of each, rising from 0; the caller frees */
};

/* Does a file start with the magic bytes of an index? */
bool tdm_indexed_dataset_is(const void *data, uint64_t bytes);

/* Reads a whole index. `path` names it in messages. `bin_bytes` is the size of the .bin file, which
 * must match. TDM_INPUT names the wrong field; TDM_NO_MEMORY. */
enum tdm_status tdm_indexed_dataset_read(const char *path, const void *data, uint64_t bytes,
                                         uint64_t bin_bytes, struct tdm_indexed_dataset *dataset,
                                         struct tdm_error *err);

#endif
