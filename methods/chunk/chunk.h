/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk-recurrent training: a sequence is run chunk by chunk, first all of it without a
 * graph, which leaves K and V, then from its end on each chunk once more with its loss and
 * backward. Two systems do so:
 *
 *   oomb  K, V and their gradients in pages, to which the attention's backward adds; layer
 *         checkpoints, host memory for the pages of layers that do not run, and page-level top-k
 *         are options (github wenhaoli-xmu/OOMB)
 *   seco  K and V of each chunk are leaves of autograd's graph, joined for each attention
 *         (wenhaoli-xmu/seco)
 */
#ifndef TDM_METHODS_CHUNK_CHUNK_H
#define TDM_METHODS_CHUNK_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

#define TDM_CHUNK_RANKS 64u /* GPUs of OOMB, at most */

struct tdm_chunk_settings {
    uint64_t tokens;      /* of a chunk */
    uint64_t page_tokens; /* 0: no pages (seco) */
    uint64_t budget;      /* tokens that are retrieved in addition to the chunk; 0: all */
    bool checkpoint;      /* a chunk's forward keeps only the layer inputs */
    bool offload;         /* pages of layers that are not running are in pinned host memory */
    uint64_t window;      /* tokens of the latest pages that layers read; 0: all; TDM_AUTO: as the
                             model's layers have windows */
    bool bf16_grads;      /* gradients of K and V are bf16; else fp32 */
};

#endif
