/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that run tile by tile over the tokens. TiledMLP saves its input and runs each tile
 * again in its backward. TiledFusedLogitsLoss runs each tile's backward in its forward. Source:
 * DeepSpeed runtime/sequence_parallel/ulysses_sp.py.
 */
#ifndef TDM_METHODS_EAGER_TILES_H
#define TDM_METHODS_EAGER_TILES_H

#include "methods/eager/eager.h"

#define TDM_MOST_TILES 4096u

/* Runs the function on each of `tiles` (at most TDM_MOST_TILES) parts of the rows of x. Joins the
 * results and returns a new reference. */
struct tdm_eager_value *tdm_tiled(struct tdm_eager *m, const struct tdm_function *function,
                                  struct tdm_eager_value *x, uint64_t tiles);

/* The function returns the loss of a tile. Returns the mean of all, which has one element. */
struct tdm_eager_value *tdm_tiled_loss(struct tdm_eager *m, const struct tdm_function *function,
                                       struct tdm_eager_value *x, uint64_t tiles);

#endif
