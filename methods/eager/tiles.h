/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that run tile by tile over the tokens: TiledMLP, which saves its input and runs each
 * tile again in its backward, and TiledFusedLogitsLoss, which takes each tile's backward in its
 * forward. Source: DeepSpeed runtime/sequence_parallel/ulysses_sp.py.
 */
#ifndef TDM_METHODS_EAGER_TILES_H
#define TDM_METHODS_EAGER_TILES_H

#include "methods/eager/eager.h"

#define TDM_MOST_TILES 4096u

/* function.run on each of `tiles` (at most TDM_MOST_TILES) parts of the rows of x, joined; a new
 * reference. */
struct tdm_eager_value *tdm_tiled(struct tdm_eager *m, const struct tdm_function *function,
                                  struct tdm_eager_value *x, uint64_t tiles);

/* function.run gives the loss of a tile; the mean of all, of one element. */
struct tdm_eager_value *tdm_tiled_loss(struct tdm_eager *m, const struct tdm_function *function,
                                       struct tdm_eager_value *x, uint64_t tiles);

#endif
