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

/* ---- tiles that are not run ---- */

/* What a tile changed beside the allocator. */
struct tdm_tile_counts {
    uint64_t nodes, moments;
    uint64_t live[TDM_METHOD_CATEGORIES];
};

/* The two latest of tiles that run one after the other. If they did the same, those that follow do
 * it too, up to the last but one, and are not run: their nodes, allocations and frees are only
 * counted. After the machine has failed they only count in any case. */
struct tdm_tiles {
    struct tdm_torch_round rounds[2];
    struct tdm_tile_counts counts[2];
    unsigned run;
    bool alone;
    uint64_t digest;                      /* of the follower after the latest tile; 0: not asked */
    uint64_t sequence, moment, host_live; /* before the tile */
    uint64_t kept_aside;
    uint64_t live[TDM_METHOD_CATEGORIES];
};

/* `alone`: within a tile no module is called and no gradient gets ready, so that the machine's
 * follower need not be asked. */
void tdm_tiles_start(struct tdm_tiles *t, bool alone);
void tdm_tiles_begin(struct tdm_eager *m, struct tdm_tiles *t);
/* To be called after tile number i of `count`, which leaves `kept` (NULL: nothing). Returns the
 * number of the tile to go on from, which is i unless tiles are skipped. *uncounted grows by the
 * skipped tiles' values whose frees will not be counted: the caller adds it to the moments once the
 * values are freed. */
uint64_t tdm_tiles_end(struct tdm_eager *m, struct tdm_tiles *t, uint64_t i, uint64_t count,
                       struct tdm_eager_value *kept, uint64_t *uncounted);

#endif
