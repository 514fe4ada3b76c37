/* SPDX-License-Identifier: Apache-2.0 */
/* Values, their storages, and the nodes of the graph: how they are allocated, shared and freed. */
#include "methods/eager/parts.h"

#include "base/size.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define POOL_ITEMS 512u

struct tdm_pool {
    struct tdm_pool *next;
    max_align_t items[];
};

static const char *const category_names[TDM_METHOD_CATEGORIES] = {
    "weights",      "gradients", "optimizer", "residuals",     "kv",
    "kv_gradients", "logits",    "workspace", "communication",
};

const char *tdm_method_category_name(enum tdm_method_category category)
{
    return category_names[category];
}

void tdm_eager_no_memory(struct tdm_eager *m)
{
    m->status = TDM_NO_MEMORY;
    assert(m->can_leave);
    longjmp(m->no_memory, 1);
}

/* ---- pools of equal items ---- */

static void add_pool(struct tdm_eager *m, struct tdm_items *items, size_t bytes)
{
    struct tdm_pool *pool = malloc(sizeof(*pool) + POOL_ITEMS * bytes);
    if (pool == NULL)
        tdm_eager_no_memory(m);
    pool->next = m->pools;
    m->pools = pool;
    items->fresh = (char *)pool->items;
    items->end = items->fresh + POOL_ITEMS * bytes;
}

/* Its contents are left over from before. */
static inline void *take_item(struct tdm_eager *m, struct tdm_items *items, size_t bytes)
{
    void *item = items->spares;
    if (item != NULL) {
        items->spares = *(void **)item;
        return item;
    }
    if (items->fresh == items->end)
        add_pool(m, items, bytes);
    item = items->fresh;
    items->fresh += bytes;
    return item;
}

static inline void give_item(struct tdm_items *items, void *item)
{
    *(void **)item = items->spares;
    items->spares = item;
}

void tdm_eager_start(struct tdm_eager *m, struct tdm_torch_allocator *allocator,
                     const struct tdm_gpu_facts *gpu)
{
    *m = (struct tdm_eager){.allocator = allocator,
                            .bytes = tdm_torch_now(allocator),
                            .gpu = *gpu,
                            .grad_enabled = true,
                            .category = TDM_METHOD_WORKSPACE,
                            .label = {.layer = TDM_NO_LAYER}};
}

void tdm_eager_end(struct tdm_eager *m)
{
    for (struct tdm_pool *pool = m->pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        free(pool);
    }
    m->pools = NULL;
}

#define POOL_STREAMS 32u
#define DEEPSPEED_STREAMS 2u

uint32_t tdm_eager_next_stream(struct tdm_eager *m)
{
    return 1 + (DEEPSPEED_STREAMS + m->streams_made++) % POOL_STREAMS;
}

/* ---- storages ---- */

static void note_peak(struct tdm_eager *m)
{
    if (m->bytes->allocated <= m->peak)
        return;
    m->peak = m->bytes->allocated;
    memcpy(m->at_peak, m->live, sizeof(m->live));
    tdm_peak_note(m);
}

void tdm_eager_reset_peak(struct tdm_eager *m)
{
    tdm_torch_reset_peak(m->allocator);
    m->peak = 0;
    m->host_peak = m->host_live;
    note_peak(m);
}

void tdm_host_take(struct tdm_eager *m, uint64_t bytes)
{
    m->host_live += bytes;
    if (m->host_live > m->host_peak)
        m->host_peak = m->host_live;
}

void tdm_host_take_pinned(struct tdm_eager *m, uint64_t bytes)
{
    uint64_t block = 1;
    while (block < bytes && block <= UINT64_MAX / 2)
        block *= 2;
    tdm_host_take(m, block);
}

void tdm_host_give(struct tdm_eager *m, uint64_t bytes)
{
    m->host_live -= bytes;
}

/* NULL: the machine has failed, now or before, or has stopped. */
static struct tdm_torch_block *take_block(struct tdm_eager *m, uint64_t bytes)
{
    struct tdm_torch_block *block = NULL;
    if (m->status != TDM_OK || m->stopped)
        return NULL;
    if (m->most_moments > 0 && m->moment >= m->most_moments)
        m->status = TDM_INFEASIBLE;
    else
        m->status = tdm_torch_malloc(m->allocator, m->stream, bytes, &block);
    if (m->status == TDM_NO_MEMORY)
        tdm_eager_no_memory(m);
    return block;
}

static void fill_storage(struct tdm_eager *m, struct tdm_storage *storage, uint64_t bytes)
{
    storage->block = take_block(m, bytes);
    if (storage->block == NULL)
        return;
    storage->count = 1;
    storage->blocks = 1;
    storage->bytes = tdm_torch_block_bytes(storage->block);
    m->live[storage->category] += storage->bytes;
    tdm_peak_enter(m, storage);
    note_peak(m);
    if (m->observe != NULL)
        m->observe(m->observer, storage, true, bytes);
}

static void empty_storage(struct tdm_eager *m, struct tdm_storage *storage)
{
    if (storage->block == NULL)
        return;
    m->live[storage->category] -= storage->bytes - storage->second_bytes;
    m->live[storage->second_category] -= storage->second_bytes;
    tdm_peak_leave(m, storage);
    if (m->observe != NULL)
        m->observe(m->observer, storage, false, tdm_torch_block_requested(storage->block));
    if (storage->shared)
        tdm_torch_free_later(m->allocator, storage->block);
    else
        tdm_torch_free_linked(m->allocator, storage->block, storage->blocks);
    storage->block = NULL;
    storage->second_bytes = storage->second_count = 0;
}

static struct tdm_storage *new_storage(struct tdm_eager *m, uint64_t bytes)
{
    struct tdm_storage *storage = take_item(m, &m->storages, sizeof(*storage));
    /* One by one, as there are so many: what it stands for, and where it is, is set once it has a
     * block. */
    storage->references = 1;
    storage->category = storage->second_category = m->category;
    storage->shared = false;
    storage->bytes = storage->second_bytes = 0;
    storage->label = m->label;
    storage->count = storage->second_count = 0;
    fill_storage(m, storage, bytes);
    return storage;
}

static void drop_storage(struct tdm_eager *m, struct tdm_storage *storage)
{
    if (--storage->references > 0)
        return;
    empty_storage(m, storage);
    give_item(&m->storages, storage);
}

static bool same_label(const struct tdm_label *a, const struct tdm_label *b)
{
    return a->name == b->name && a->layer == b->layer && a->made == b->made;
}

/* Can the storage stand for a tensor of the current category and label too? */
static bool can_stand_for(const struct tdm_eager *m, const struct tdm_storage *s, uint64_t bytes,
                          bool *second)
{
    if (m->observe != NULL || m->status != TDM_OK || m->stopped || s->block == NULL || s->shared)
        return false;
    *second = s->category != m->category || !same_label(&s->label, &m->label);
    if (*second && s->second_count > 0 &&
        (s->second_category != m->category || !same_label(&s->second_label, &m->label)))
        return false;
    /* What was live at the peak must not change after it. */
    return s->taken > m->peak_moment || m->bytes->allocated + bytes > m->peak;
}

/* Notes `count` tensors that a storage stands for from now on, of `added` bytes in all. */
static void note_tensors(struct tdm_eager *m, struct tdm_storage *s, uint32_t count, uint64_t added,
                         bool second)
{
    m->live[m->category] += added;
    s->bytes += added;
    s->count += count;
    if (second) {
        s->second_category = m->category;
        s->second_label = m->label;
        s->second_bytes += added;
        s->second_count += count;
    }
    note_peak(m);
}

bool tdm_value_extend(struct tdm_eager *m, struct tdm_eager_value *value,
                      struct tdm_torch_block *block, uint64_t bytes)
{
    bool second;
    if (!can_stand_for(m, value->storage, bytes, &second))
        return false;
    uint64_t before = m->bytes->allocated;
    if (!tdm_torch_extend(m->allocator, block, m->stream, bytes))
        return false;
    note_tensors(m, value->storage, 1, m->bytes->allocated - before, second);
    return true;
}

bool tdm_value_append(struct tdm_eager *m, struct tdm_eager_value *value,
                      struct tdm_torch_block *last, uint64_t bytes, struct tdm_torch_block **made)
{
    struct tdm_storage *s = value->storage;
    bool second;
    if (s->label.layer != m->label.layer || !can_stand_for(m, s, bytes, &second))
        return false;
    *made = take_block(m, bytes);
    if (*made == NULL)
        return true;
    tdm_torch_link(last, *made);
    m->moment++;
    s->blocks++;
    note_tensors(m, s, 1, tdm_torch_block_bytes(*made), second);
    return true;
}

uint64_t tdm_value_append_many(struct tdm_eager *m, struct tdm_eager_value *value,
                               struct tdm_torch_block **last, uint64_t bytes, uint64_t count)
{
    struct tdm_storage *s = value->storage;
    const uint64_t before = m->bytes->allocated;
    uint64_t most = count;
    bool second;
    /* Once it can stand for one, it can for all: each of them either is after the peak or raises
     * it. */
    if (s->label.layer != m->label.layer || !can_stand_for(m, s, bytes, &second))
        return 0;
    if (m->most_moments > 0)
        most = m->most_moments > m->moment ? m->most_moments - m->moment : 0;
    uint64_t segments;
    const uint64_t made =
        tdm_torch_fill(m->allocator, m->stream, bytes, count, most, last, &segments);
    if (made == 0)
        return 0;
    m->moment += segments;
    s->blocks += segments;
    note_tensors(m, s, (uint32_t)made, m->bytes->allocated - before, second);
    return made;
}

uint64_t tdm_value_repeat(struct tdm_eager *m, struct tdm_eager_value *value, uint64_t rounds)
{
    struct tdm_storage *s = value->storage;
    const uint64_t before = m->bytes->allocated;
    bool blocks = tdm_torch_repeat(m->allocator, s->block, rounds, &m->status);
    if (m->status == TDM_NO_MEMORY)
        tdm_eager_no_memory(m);
    m->live[s->category] += m->bytes->allocated - before;
    s->bytes += m->bytes->allocated - before;
    s->count += (uint32_t)rounds;
    s->blocks += blocks ? rounds : 0;
    return blocks ? 0 : rounds;
}

void tdm_value_vacate(struct tdm_eager *m, struct tdm_eager_value *value)
{
    empty_storage(m, value->storage);
}

void tdm_value_occupy(struct tdm_eager *m, struct tdm_eager_value *value)
{
    if (value->storage->block == NULL)
        fill_storage(
            m, value->storage,
            tdm_size_mul(tdm_value_elements(value), value->is_float8 ? 1 : value->element_bytes));
}

void tdm_value_share(struct tdm_eager_value *value)
{
    value->storage->shared = true;
}

void tdm_storage_set_category(struct tdm_eager *m, struct tdm_storage *storage,
                              enum tdm_method_category category)
{
    if (storage->block != NULL) {
        tdm_peak_change(m, storage);
        m->live[storage->category] -= storage->bytes;
        m->live[category] += storage->bytes;
    }
    storage->category = category;
}

void tdm_value_set_category(struct tdm_eager *m, struct tdm_eager_value *value,
                            enum tdm_method_category category)
{
    tdm_storage_set_category(m, value->storage, category);
}

/* ---- values ---- */

static struct tdm_eager_value *bare_value(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                          uint16_t element_bytes)
{
    struct tdm_eager_value *value = take_item(m, &m->values, sizeof(*value));
    *value = (struct tdm_eager_value){
        .references = 1, .rows = rows, .columns = columns, .element_bytes = element_bytes};
    return value;
}

struct tdm_eager_value *tdm_value_new(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                      uint16_t element_bytes)
{
    struct tdm_eager_value *value = bare_value(m, rows, columns, element_bytes);
    value->storage = new_storage(m, tdm_size_mul(tdm_size_mul(rows, columns), element_bytes));
    return value;
}

struct tdm_eager_value *tdm_value_like(struct tdm_eager *m, const struct tdm_eager_value *like)
{
    struct tdm_eager_value *value =
        tdm_value_new(m, like->rows, like->columns, like->element_bytes);
    value->swapped = like->swapped;
    return value;
}

struct tdm_eager_value *tdm_value_view(struct tdm_eager *m, struct tdm_eager_value *of)
{
    struct tdm_eager_value *value = bare_value(m, of->rows, of->columns, of->element_bytes);
    value->swapped = of->swapped;
    value->view = true;
    value->storage = of->storage;
    value->storage->references++;
    return value;
}

void tdm_value_set_data(struct tdm_eager *m, struct tdm_eager_value *value,
                        struct tdm_eager_value *from)
{
    struct tdm_storage *old = value->storage;
    value->storage = from->storage;
    value->storage->references++;
    drop_storage(m, old);
}

static struct tdm_node *bare_node(struct tdm_eager *m, const struct tdm_eager_op *op, bool of_leaf)
{
    const size_t head = offsetof(struct tdm_node, edges);
    struct tdm_node *node =
        of_leaf ? take_item(m, &m->leaf_nodes, head) : take_item(m, &m->nodes, sizeof(*node));
    memset(node, 0, head);
    node->of_leaf = of_leaf;
    node->op = op;
    node->references = 1;
    node->sequence = ++m->sequence;
    node->label = m->label;
    return node;
}

void tdm_value_require_grad(struct tdm_eager *m, struct tdm_eager_value *value)
{
    value->leaf = true;
    value->requires_grad = true;
    value->node = bare_node(m, &tdm_accumulate_op, true);
    value->node->sequence = UINT64_MAX;
    value->node->leaf = value;
}

struct tdm_eager_value *tdm_value_leaf(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                       uint16_t element_bytes, bool trained)
{
    struct tdm_eager_value *value = tdm_value_new(m, rows, columns, element_bytes);
    value->leaf = true;
    if (trained)
        tdm_value_require_grad(m, value);
    return value;
}

struct tdm_eager_value *tdm_take(struct tdm_eager_value *value)
{
    if (value != NULL)
        value->references++;
    return value;
}

static void drop_node(struct tdm_eager *m, struct tdm_node *node);

void tdm_drop(struct tdm_eager *m, struct tdm_eager_value *value)
{
    if (value == NULL || --value->references > 0)
        return;
    if (value->node != NULL)
        drop_node(m, value->node);
    tdm_drop(m, value->grad);
    tdm_drop(m, value->cast);
    drop_storage(m, value->storage);
    give_item(&m->values, value);
}

struct tdm_eager_value *tdm_replace(struct tdm_eager *m, struct tdm_eager_value *old,
                                    struct tdm_eager_value *made)
{
    tdm_drop(m, old);
    return made;
}

uint64_t tdm_value_elements(const struct tdm_eager_value *value)
{
    return tdm_size_mul(value->rows, value->columns);
}

/* ---- nodes ---- */

void tdm_node_release_saved(struct tdm_eager *m, struct tdm_node *node)
{
    for (uint32_t i = 0; i < node->saved_count; i++) {
        struct tdm_saved *saved = &node->saved[i];
        tdm_drop(m, saved->value);
        if (saved->frame != NULL)
            tdm_frame_drop(m, saved->frame);
    }
    node->saved_count = 0;
}

static void empty_node(struct tdm_eager *m, struct tdm_node *node)
{
    tdm_node_release_saved(m, node);
    for (uint32_t i = 0; i < node->inputs; i++)
        if (node->edges[i].node != NULL)
            drop_node(m, node->edges[i].node);
    for (uint32_t i = 0; i < TDM_MOST_OUTPUTS; i++)
        tdm_drop(m, node->grads[i]);
    tdm_drop(m, node->held);
    if (node->function != NULL)
        tdm_frame_drop(m, node->function);
    give_item(node->of_leaf ? &m->leaf_nodes : &m->nodes, node);
}

/* A graph may be a chain of a million nodes. Instead of recursing, nodes wait in a list that the
 * outermost call empties. */
static void drop_node(struct tdm_eager *m, struct tdm_node *node)
{
    if (--node->references > 0)
        return;
    node->next_heap = m->dropped;
    m->dropped = node;
    if (m->dropping)
        return;
    m->dropping = true;
    while ((node = m->dropped) != NULL) {
        m->dropped = node->next_heap;
        empty_node(m, node);
    }
    m->dropping = false;
}

/* A node has too few slots for an operation. */
static void fail_node(struct tdm_eager *m)
{
    if (m->status == TDM_OK)
        m->status = TDM_INTERNAL;
}

struct tdm_node *tdm_node_new(struct tdm_eager *m, const struct tdm_eager_op *op,
                              struct tdm_eager_value *const *inputs, uint32_t count)
{
    bool wanted = false;
    for (uint32_t i = 0; i < count; i++)
        wanted |= inputs[i] != NULL && inputs[i]->requires_grad;
    if (!wanted || !m->grad_enabled)
        return NULL;
    if (count > TDM_MOST_INPUTS) {
        fail_node(m);
        return NULL;
    }
    struct tdm_node *node = bare_node(m, op, false);
    node->inputs = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct tdm_eager_value *input = inputs[i];
        if (input == NULL || !input->requires_grad) {
            node->edges[i] = (struct tdm_edge){.node = NULL};
            continue;
        }
        node->edges[i] = (struct tdm_edge){.node = input->node,
                                           .output = input->output,
                                           .element_bytes = input->element_bytes,
                                           .rows = input->rows,
                                           .columns = input->columns};
        if (input->node != NULL)
            input->node->references++;
    }
    return node;
}

bool tdm_node_needs(const struct tdm_node *node, uint32_t input)
{
    return node != NULL && input < node->inputs && node->edges[input].node != NULL;
}

void tdm_node_save(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *value)
{
    if (node == NULL)
        return;
    if (node->saved_count == TDM_MOST_SAVED) {
        fail_node(m);
        return;
    }
    struct tdm_saved *saved = &node->saved[node->saved_count++];
    *saved = (struct tdm_saved){0};
    if (m->saving != NULL) {
        saved->frame = m->saving;
        saved->frame->references++;
        saved->index = saved->frame->saved_count++;
        return;
    }
    if (m->repeating != NULL)
        tdm_frame_save_again(m, m->repeating, value);
    saved->value = tdm_value_view(m, value);
    if (value->storage->category == TDM_METHOD_WORKSPACE)
        tdm_storage_set_category(m, value->storage, TDM_METHOD_RESIDUALS);
}

struct tdm_eager_value *tdm_node_release(struct tdm_eager *m, struct tdm_node *node, uint32_t i)
{
    struct tdm_eager_value *value = tdm_node_saved(m, node, i);
    if (node->saved[i].frame == NULL) {
        tdm_drop(m, node->saved[i].value);
        node->saved[i].value = NULL;
    }
    return value;
}

void tdm_node_hold(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *value)
{
    if (node == NULL)
        return;
    node->held = tdm_value_view(m, value);
    if (value->storage->category == TDM_METHOD_WORKSPACE)
        tdm_storage_set_category(m, value->storage, TDM_METHOD_RESIDUALS);
}

void tdm_node_output(struct tdm_eager *m, struct tdm_node *node, uint32_t output,
                     struct tdm_eager_value *value)
{
    if (node == NULL)
        return;
    if (output >= TDM_MOST_OUTPUTS) {
        fail_node(m);
        return;
    }
    value->requires_grad = true;
    value->node = node;
    value->output = output;
    node->references++;
}

void tdm_node_done(struct tdm_eager *m, struct tdm_node *node)
{
    if (node != NULL)
        drop_node(m, node);
}

struct tdm_eager_value *tdm_node_finish(struct tdm_eager *m, struct tdm_node *node,
                                        struct tdm_eager_value *value)
{
    tdm_node_output(m, node, 0, value);
    tdm_node_done(m, node);
    return value;
}

struct tdm_eager_value *tdm_mark(struct tdm_eager *m, const struct tdm_eager_op *op, uint64_t fact,
                                 void *context, struct tdm_eager_value *x)
{
    struct tdm_node *node = tdm_node_new(m, op, &x, 1);
    if (node == NULL)
        return tdm_take(x);
    node->facts[0] = fact;
    node->context = context;
    struct tdm_eager_value *y = tdm_value_view(m, x);
    y->view = x->view;
    return tdm_node_finish(m, node, y);
}

void tdm_autocast_clear(struct tdm_eager *m)
{
    for (uint32_t i = 0; i < m->cast_count; i++) {
        tdm_drop(m, m->casts[i]->cast);
        m->casts[i]->cast = NULL;
    }
    m->cast_count = 0;
}
