/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that run on tiles of rows. Gradients of weights are added up over the tiles; until the
 * last tile, partial_gradients of the machine is set. */
#include "methods/eager/tiles.h"

#include "base/size.h"
#include "methods/eager/parts.h"

#include <stddef.h>
#include <string.h>

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

/* ---- tiles that are not run ---- */

void tdm_tiles_start(struct tdm_tiles *t, bool alone)
{
    t->alone = alone;
    t->run = 0;
    t->digest = 0;
}

static bool may_skip(const struct tdm_eager *m, const struct tdm_tiles *t)
{
    return !tdm_eager_runs_all(m) &&
           (t->alone || m->gradient_ready == NULL || m->follower.digest != NULL);
}

/* Tensors that casts, checkpoints and their recomputation have counted so far. */
static uint64_t kept_aside(const struct tdm_eager *m)
{
    const struct tdm_frame *saving = m->saving;
    uint64_t count = m->cast_count + (m->repeating == NULL ? 0 : m->repeating->made_again);
    if (saving != NULL)
        count += (uint64_t)saving->saved_count + saving->products + saving->selected_count;
    return count;
}

void tdm_tiles_begin(struct tdm_eager *m, struct tdm_tiles *t)
{
    struct tdm_torch_round *round = &t->rounds[t->run % 2];
    if (!may_skip(m, t))
        return;
    round->count = 0;
    round->unclear = false;
    t->sequence = m->sequence;
    t->moment = m->moment;
    t->host_live = m->host_live;
    t->kept_aside = kept_aside(m);
    memcpy(t->live, m->live, sizeof(t->live));
    tdm_torch_watch(m->allocator, round);
}

static bool counts_are_same(const struct tdm_tiles *t)
{
    const struct tdm_tile_counts *a = &t->counts[0], *b = &t->counts[1];
    return a->nodes == b->nodes && a->moments == b->moments &&
           memcmp(a->live, b->live, sizeof(a->live)) == 0;
}

/* Does the tile leave one value of its own, `kept` (NULL: none), and nothing else? */
static bool leaves_only(const struct tdm_tile_counts *counts, const struct tdm_eager_value *kept)
{
    const struct tdm_storage *s = kept == NULL ? NULL : kept->storage;
    if (s != NULL && (s->references > 1 || s->shared || s->count > 1))
        return false;
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        if (counts->live[c] != (s != NULL && s->category == c ? s->bytes : 0))
            return false;
    return true;
}

/* Tiles of which each moves the machine by so many moments, before it reaches its most. */
static uint64_t before_most(const struct tdm_eager *m, uint64_t moments)
{
    if (m->most_moments == 0 || m->status != TDM_OK || moments == 0)
        return UINT64_MAX;
    uint64_t left = m->most_moments > m->moment ? (m->most_moments - m->moment) / moments : 0;
    return left > 0 ? left - 1 : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t tdm_tiles_end(struct tdm_eager *m, struct tdm_tiles *t, uint64_t i, uint64_t count,
                       struct tdm_eager_value *kept, uint64_t *uncounted)
{
    struct tdm_tile_counts *now = &t->counts[t->run % 2];
    const struct tdm_torch_round *round = &t->rounds[t->run % 2];
    bool changed = t->host_live != m->host_live || t->kept_aside != kept_aside(m);
    tdm_torch_watch(m->allocator, NULL);
    if (!may_skip(m, t))
        return i;
    *now = (struct tdm_tile_counts){.nodes = m->sequence - t->sequence,
                                    .moments = m->moment - t->moment};
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        now->live[c] = m->live[c] - t->live[c];
    uint64_t digest = t->digest;
    t->digest = 0;
    if (++t->run < 2 || i + 3 >= count || changed || !counts_are_same(t) || !leaves_only(now, kept))
        return i;
    if (kept != NULL && kept->storage->block == NULL)
        kept = NULL; /* the machine has failed */
    const struct tdm_torch_round *before = &t->rounds[t->run % 2];
    uint64_t tiles =
        tdm_torch_repeats(m->allocator, before, round, kept == NULL ? NULL : kept->storage->block);
    tiles = least(least(count - 3 - i, before_most(m, now->moments)), tiles);
    if (tiles > 0 && !t->alone && m->follower.digest != NULL) {
        t->digest = m->follower.digest(m->follower.context);
        tiles =
            digest != 0 && digest == t->digest ? m->follower.skip(m->follower.context, tiles) : 0;
    }
    if (tiles == 0)
        return i;
    if (kept != NULL)
        *uncounted += tdm_value_repeat(m, kept, tiles);
    m->sequence += tiles * now->nodes;
    m->moment += tiles * now->moments;
    m->skipped += tiles * (now->nodes + now->moments);
    t->run = 0;
    t->digest = 0;
    return i + tiles;
}

static void run_tiles(struct tdm_eager *m, const struct tdm_function *function,
                      struct tdm_eager_value *x, struct tdm_eager_value *grad,
                      struct tdm_eager_value *incoming, uint64_t tiles, uint64_t count)
{
    struct tdm_tiles t;
    uint64_t uncounted = 0;
    tdm_tiles_start(&t, false);
    for (uint64_t i = 0; i < count; i++) {
        tdm_tiles_begin(m, &t);
        run_tile(m, function, x, grad, incoming, rows_of(x, tiles, i), i + 1 == count);
        i = tdm_tiles_end(m, &t, i, count, NULL, &uncounted);
    }
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
    run_tiles(m, &frame->function, x, grad, grads[0], tiles, tile_count);
    results[0] = grad;
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_tiled(struct tdm_eager *m, const struct tdm_function *function,
                                  struct tdm_eager_value *x, uint64_t tiles)
{
    static const struct tdm_eager_op op = {"TiledMLPBackward", false, tiled_backward};
    struct tdm_node *node = tdm_node_new(m, &op, &x, 1);
    struct tdm_eager_value *made[TDM_MOST_TILES]; /* too many to be cleared each time */
    bool grad_enabled = m->grad_enabled;
    uint32_t count = 0;
    m->grad_enabled = false;
    const uint64_t tile_count = count_tiles(x, tiles);
    uint64_t uncounted = 0;
    struct tdm_tiles t;
    tdm_tiles_start(&t, false);
    made[0] = NULL;
    for (uint64_t i = 0; i < tile_count; i++) {
        tdm_tiles_begin(m, &t);
        struct tdm_eager_value *tile = part(m, x, rows_of(x, tiles, i));
        made[count] = function->run(m, function->model, function->layer, tile);
        tdm_drop(m, tile);
        i = tdm_tiles_end(m, &t, i, tile_count, made[count++], &uncounted);
    }
    struct tdm_eager_value *y = tdm_value_new(m, x->rows, made[0]->columns, made[0]->element_bytes);
    while (count > 0)
        tdm_drop(m, made[--count]);
    m->moment += uncounted;
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
    run_tiles(m, function, x, grad, NULL, tiles, count_tiles(x, tiles));
    struct tdm_eager_value *loss = tdm_value_new(m, 1, 1, sizeof(float));
    if (grad != NULL)
        tdm_node_save(m, node, grad);
    tdm_drop(m, grad);
    return tdm_node_finish(m, node, loss);
}
