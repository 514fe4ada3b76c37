/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that run on tiles of rows. Gradients of weights are added up over the tiles; until the
 * last tile, partial_gradients of the machine is set. */
#include "methods/eager/tiles.h"

#include "base/size.h"
#include "methods/eager/parts.h"

#include <stddef.h>

/* Rows of tile number i, as torch.chunk cuts them: equal in all but the last; 0 past the last. */
static uint64_t rows_of(const struct tdm_eager_value *x, uint64_t tiles, uint64_t i)
{
    uint64_t most = tdm_size_ceil_div(x->rows, tiles), first = i * most;
    return first >= x->rows ? 0 : x->rows - first < most ? x->rows - first : most;
}

static struct tdm_eager_value *part(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t rows)
{
    struct tdm_eager_value *view = tdm_value_view(m, x);
    view->rows = rows;
    return view;
}

/* Runs a tile of x with gradients, then its backward, which adds to a part of `grad` (NULL: not
 * needed). `incoming`: the gradient of all results; NULL: each result is a loss. */
static void run_tile(struct tdm_eager *m, const struct tdm_function *function,
                     struct tdm_eager_value *x, struct tdm_eager_value *grad,
                     struct tdm_eager_value *incoming, uint64_t rows, bool last)
{
    struct tdm_eager_value *tile = part(m, x, rows);
    bool grad_enabled = m->grad_enabled, partial = m->partial_gradients;
    struct tdm_frame *saving = m->saving;
    if (grad != NULL) {
        tdm_value_require_grad(m, tile);
        tile->grad = part(m, grad, rows);
    }
    m->saving = NULL;
    m->grad_enabled = true;
    m->partial_gradients = partial || !last;
    struct tdm_eager_value *output = function->run(m, function->model, function->layer, tile);
    struct tdm_eager_value *of_output = incoming == NULL ? NULL : part(m, incoming, rows);
    if (!m->stopped)
        tdm_backward(m, output, of_output);
    m->partial_gradients = partial;
    m->grad_enabled = grad_enabled;
    m->saving = saving;
    tdm_drop(m, of_output);
    tdm_drop(m, output);
    tdm_drop(m, tile);
}

static uint64_t count_tiles(const struct tdm_eager_value *x, uint64_t tiles)
{
    uint64_t most = tdm_size_ceil_div(x->rows, tiles);
    return most == 0 ? 0 : tdm_size_ceil_div(x->rows, most);
}

/* Once the machine has failed, nothing is allocated any more, and all that tiles still do is to
 * count nodes and frees (`sequence` and `moment` of the machine). From the second tile after the
 * failure on, all but the last tile count the same, so their counts are added without a run. */
struct failed_tiles {
    unsigned run;
    uint64_t sequence, moment; /* after the latest of them */
};

/* To be called after tile number i of `count`. Returns the number of the tile to go on from, which
 * is i unless tiles are skipped. */
static uint64_t skip_tiles(struct tdm_eager *m, struct failed_tiles *failed, uint64_t i,
                           uint64_t count)
{
    if (m->status == TDM_OK || m->counts_modules)
        return i;
    uint64_t nodes = m->sequence - failed->sequence, frees = m->moment - failed->moment;
    failed->sequence = m->sequence;
    failed->moment = m->moment;
    if (failed->run++ < 2 || i + 2 >= count)
        return i;
    uint64_t skipped = count - 2 - i;
    m->sequence += skipped * nodes;
    m->moment += skipped * frees;
    return count - 2;
}

/* ---- TiledMLP ---- */

static void tiled_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    const struct tdm_frame *frame = node->function;
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *grad = NULL;
    if (tdm_node_needs(node, 0))
        grad = tdm_value_like(m, x);
    const uint64_t tiles = node->facts[0], tile_count = count_tiles(x, tiles);
    struct failed_tiles failed = {0};
    for (uint64_t i = 0; i < tile_count; i = 1 + skip_tiles(m, &failed, i, tile_count))
        run_tile(m, &frame->function, x, grad, grads[0], rows_of(x, tiles, i), i + 1 == tile_count);
    results[0] = grad;
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_tiled(struct tdm_eager *m, const struct tdm_function *function,
                                  struct tdm_eager_value *x, uint64_t tiles)
{
    static const struct tdm_eager_op op = {"TiledMLPBackward", false, tiled_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *made[TDM_MOST_TILES] = {NULL};
    bool grad_enabled = m->grad_enabled;
    uint32_t count = 0;
    m->grad_enabled = false;
    const uint64_t tile_count = count_tiles(x, tiles);
    struct failed_tiles failed = {0};
    for (uint64_t i = 0; i < tile_count; i = 1 + skip_tiles(m, &failed, i, tile_count)) {
        struct tdm_eager_value *tile = part(m, x, rows_of(x, tiles, i));
        made[count++] = function->run(m, function->model, function->layer, tile);
        tdm_drop(m, tile);
    }
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, made[0]->columns, made[0]->element_bytes);
    while (count > 0)
        tdm_drop(m, made[--count]);
    m->grad_enabled = grad_enabled;
    if (node != NULL) {
        node->facts[0] = tiles;
        node->function = tdm_frame_new(m, function);
        if (node->function == NULL)
            node->op = &tdm_accumulate_op;
        tdm_node_save(m, node, x);
    }
    return tdm_node_finish(m, node, y);
}

/* ---- TiledFusedLogitsLoss ---- */

static void tiled_loss_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    (void)grads;
    results[0] = tdm_node_saved(m, node, 0);
}

struct tdm_eager_value *tdm_tiled_loss(struct tdm_eager *m, const struct tdm_function *function,
                                       struct tdm_eager_value *x, uint64_t tiles)
{
    static const struct tdm_eager_op op = {"TiledFusedLogitsLossBackward", false,
                                           tiled_loss_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *grad = tdm_node_needs(node, 0) ? tdm_value_like(m, x) : NULL;
    const uint64_t tile_count = count_tiles(x, tiles);
    struct failed_tiles failed = {0};
    for (uint64_t i = 0; i < tile_count; i = 1 + skip_tiles(m, &failed, i, tile_count))
        run_tile(m, function, x, grad, NULL, rows_of(x, tiles, i), i + 1 == tile_count);
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, sizeof(float));
    if (grad != NULL)
        tdm_node_save(m, node, grad);
    tdm_drop(m, grad);
    return tdm_node_finish(m, node, loss);
}
