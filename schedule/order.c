/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order: which op waits for which, derived from accesses.
 *
 * Each buffer has two marks for each lane, reads and writes: the last position at which each leaf
 * was accessed. A leaf is a slot, or in a buffer of units a part of a slot: one part can be copied
 * away, and summed again for the next layer, while other parts of its slot are in use. Two layers
 * have their parts at the same bytes of a slot only if they are laid out alike. If some layers of
 * the model are not, every leaf is a slot. A mark is a tree over the leaves. It returns the last
 * position in a range of leaves, or sets the position of a range, in O(log leaves). A node's cover
 * holds for all nodes below it. Positions only grow, so a cover never has to be pushed down.
 */
#include "schedule/order.h"

#include "schedule/program.h"

#include <stdlib.h>
#include <string.h>

/* A tree of last positions. The leaves are the nodes [leaves, 2 * leaves). */
struct mark {
    uint64_t *most;  /* [2 * leaves] greatest position in or below the node */
    uint64_t *cover; /* [2 * leaves] position that holds for all below the node */
};

struct lane_marks {
    struct mark reads, writes;
};

struct buffer_state {
    struct lane_marks lanes[TDM_MAX_LANES];
    uint64_t last[TDM_MAX_LANES];  /* last use of any leaf */
    uint64_t birth[TDM_MAX_LANES]; /* last uses of its bytes by earlier buffers */
    uint32_t first_neighbour;      /* into `neighbours`: buffers on overlapping bytes */
    uint32_t neighbour_count;
};

struct tdm_order_tracker {
    uint32_t lanes; /* of the machine */
    const struct tdm_program *program;
    bool layers_alike;
    struct buffer_state *buffers;
    uint32_t *neighbours;
    uint64_t *positions; /* memory of all marks */
    size_t position_count;
    uint64_t lane_position[TDM_MAX_LANES];
    uint64_t waited[TDM_MAX_LANES]
                   [TDM_MAX_LANES]; /* [lane][other]: position of other that lane has waited for */
};

static void mark_set(struct mark *mark, uint32_t leaves, uint32_t first, uint32_t end,
                     uint64_t position)
{
    uint32_t low = first + leaves, high = end + leaves;
    for (; low < high; low >>= 1, high >>= 1) {
        if (low & 1) {
            mark->most[low] = mark->cover[low] = position;
            low++;
        }
        if (high & 1) {
            high--;
            mark->most[high] = mark->cover[high] = position;
        }
    }
    for (low = (first + leaves) >> 1; low > 0; low >>= 1)
        mark->most[low] = position;
    for (high = (end - 1 + leaves) >> 1; high > 0 && end - first > 1; high >>= 1)
        mark->most[high] = position;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t mark_last(const struct mark *mark, uint32_t leaves, uint32_t first, uint32_t end)
{
    uint64_t last = 0;
    for (uint32_t node = first + leaves; node > 0; node >>= 1)
        last = larger(last, mark->cover[node]);
    for (uint32_t node = end - 1 + leaves; node > 0 && end - first > 1; node >>= 1)
        last = larger(last, mark->cover[node]);
    for (uint32_t low = first + leaves, high = end + leaves; low < high; low >>= 1, high >>= 1) {
        if (low & 1)
            last = larger(last, mark->most[low++]);
        if (high & 1)
            last = larger(last, mark->most[--high]);
    }
    return last;
}

/* Number of leaves of a slot. */
static uint32_t slot_leaves(const struct tdm_order_tracker *order, const struct tdm_buffer *buffer)
{
    return buffer->by_part && order->layers_alike ? TDM_PARTS : 1;
}

static uint32_t buffer_leaves(const struct tdm_order_tracker *order, uint32_t buffer)
{
    const struct tdm_buffer *b = &order->program->buffers[buffer];
    return b->slots * slot_leaves(order, b);
}

/* The leaves that an access touches: one part of a slot, or all of its slots. */
static void find_leaves(const struct tdm_order_tracker *order, const struct tdm_access *access,
                        uint32_t *first, uint32_t *end)
{
    uint32_t each = slot_leaves(order, &order->program->buffers[access->buffer]);
    bool one = each > 1 && access->slots == 1 && access->part < TDM_PARTS;
    *first = access->first_slot * each + (one ? access->part : 0);
    *end = one ? *first + 1 : *first + access->slots * each;
}

static bool overlap(const struct tdm_buffer *a, const struct tdm_buffer *b)
{
    return a->used && b->used && a->place == b->place && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

/* Lists for every buffer those, itself too, that use some of the same bytes. */
static bool find_neighbours(struct tdm_order_tracker *order)
{
    const struct tdm_program *program = order->program;
    size_t count = program->buffer_count, found = 0, capacity = 0;
    for (uint32_t a = 0; a < count; a++) {
        if (found + count > capacity) {
            size_t more = 2 * (found + count);
            uint32_t *moved = realloc(order->neighbours, more * sizeof(*moved));
            if (moved == NULL)
                return false;
            order->neighbours = moved;
            capacity = more;
        }
        order->buffers[a].first_neighbour = (uint32_t)found;
        for (uint32_t b = 0; b < count; b++)
            if (overlap(&program->buffers[a], &program->buffers[b]))
                order->neighbours[found++] = b;
        order->buffers[a].neighbour_count = (uint32_t)found - order->buffers[a].first_neighbour;
    }
    return true;
}

enum tdm_status tdm_order_new(const struct tdm_program *program, struct tdm_order_tracker **out,
                              struct tdm_error *err)
{
    struct tdm_order_tracker *order = calloc(1, sizeof(*order));
    if (order == NULL)
        goto no_memory;
    order->program = program;
    order->lanes = program->schedule->machine->topology.lane_count;
    order->layers_alike = tdm_model_layers_alike(program->schedule->model);
    order->buffers = calloc((size_t)program->buffer_count + 1, sizeof(*order->buffers));
    for (uint32_t i = 0; i < program->buffer_count; i++)
        order->position_count += (size_t)8 * order->lanes * buffer_leaves(order, i);
    order->positions = calloc(order->position_count + 1, sizeof(*order->positions));
    if (order->buffers == NULL || order->positions == NULL || !find_neighbours(order))
        goto no_memory;

    uint64_t *next = order->positions;
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        size_t nodes = (size_t)2 * buffer_leaves(order, i);
        for (uint32_t lane = 0; lane < order->lanes; lane++) {
            struct lane_marks *marks = &order->buffers[i].lanes[lane];
            marks->reads.most = next;
            marks->reads.cover = next + nodes;
            marks->writes.most = next + 2 * nodes;
            marks->writes.cover = next + 3 * nodes;
            next += 4 * nodes;
        }
    }
    *out = order;
    return TDM_OK;

no_memory:
    tdm_order_free(order);
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the order of a program");
}

void tdm_order_free(struct tdm_order_tracker *order)
{
    if (order == NULL)
        return;
    free(order->buffers);
    free(order->neighbours);
    free(order->positions);
    free(order);
}

void tdm_order_reset(struct tdm_order_tracker *order)
{
    memset(order->positions, 0, order->position_count * sizeof(*order->positions));
    memset(order->lane_position, 0, sizeof(order->lane_position));
    memset(order->waited, 0, sizeof(order->waited));
    for (uint32_t i = 0; i < order->program->buffer_count; i++) {
        memset(order->buffers[i].last, 0, sizeof(order->buffers[i].last));
        memset(order->buffers[i].birth, 0, sizeof(order->buffers[i].birth));
    }
}

/* A buffer is allocated. It inherits the last uses of all buffers that were on its bytes. */
static void take_over(struct tdm_order_tracker *order, uint32_t number)
{
    struct buffer_state *state = &order->buffers[number];
    for (uint32_t i = 0; i < state->neighbour_count; i++) {
        const struct buffer_state *other =
            &order->buffers[order->neighbours[state->first_neighbour + i]];
        for (uint32_t lane = 0; lane < order->lanes; lane++)
            state->birth[lane] = larger(state->birth[lane], other->last[lane]);
    }
}

static void take_op(struct tdm_order_tracker *order, const struct tdm_op *op,
                    struct tdm_waits *waits)
{
    memset(waits, 0, sizeof(*waits));
    waits->position = ++order->lane_position[op->lane];

    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE)
            continue;
        struct buffer_state *state = &order->buffers[access->buffer];
        uint32_t leaves = buffer_leaves(order, access->buffer), first, end;
        find_leaves(order, access, &first, &end);
        for (uint32_t lane = 0; lane < order->lanes; lane++) {
            if (lane == (uint32_t)op->lane)
                continue;
            /* only a position beyond those for which the op's lane has waited, or this op waits,
             * makes a difference */
            const uint64_t known =
                larger(waits->lane_position[lane], order->waited[op->lane][lane]);
            uint64_t last = state->birth[lane];
            if (state->last[lane] > known) {
                const struct lane_marks *marks = &state->lanes[lane];
                last = larger(last, mark_last(&marks->writes, leaves, first, end));
                if (access->mode != TDM_READ)
                    last = larger(last, mark_last(&marks->reads, leaves, first, end));
            }
            waits->lane_position[lane] = larger(waits->lane_position[lane], last);
        }
    }
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE)
            continue;
        struct buffer_state *state = &order->buffers[access->buffer];
        struct lane_marks *marks = &state->lanes[op->lane];
        uint32_t first, end;
        find_leaves(order, access, &first, &end);
        mark_set(access->mode == TDM_READ ? &marks->reads : &marks->writes,
                 buffer_leaves(order, access->buffer), first, end, waits->position);
        state->last[op->lane] = waits->position;
    }
    for (uint32_t lane = 0; lane < order->lanes; lane++) {
        uint64_t *waited = &order->waited[op->lane][lane];
        if (waits->lane_position[lane] <= *waited)
            waits->lane_position[lane] = 0;
        else
            *waited = waits->lane_position[lane];
    }
}

void tdm_order_push(struct tdm_order_tracker *order, const struct tdm_item *item,
                    struct tdm_waits *waits)
{
    if (item->kind == TDM_ALLOC)
        take_over(order, item->buffer);
    else if (item->kind == TDM_RUN)
        take_op(order, item->op, waits);
}

/* ---- a program that nobody else reads ---- */

struct ordered {
    struct tdm_order_tracker *order;
    tdm_ordered_sink take;
    void *self;
};

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct ordered *ordered = self;
    struct tdm_waits waits;
    tdm_order_push(ordered->order, item, &waits);
    return ordered->take(ordered->self, item, &waits, err);
}

enum tdm_status tdm_order_emit(const struct tdm_program *program, tdm_ordered_sink take, void *self,
                               struct tdm_error *err)
{
    struct ordered ordered = {.take = take, .self = self};
    enum tdm_status status = tdm_order_new(program, &ordered.order, err);
    if (status == TDM_OK)
        status = tdm_program_emit(program, take_item, &ordered, err);
    tdm_order_free(ordered.order);
    return status;
}
