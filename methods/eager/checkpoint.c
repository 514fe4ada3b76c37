/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpointed functions: what their nodes saved is recomputed when it is needed. */
#include "methods/eager/parts.h"

#include "base/size.h"

#include <stdlib.h>

void tdm_frame_drop(struct tdm_eager *m, struct tdm_frame *frame)
{
    if (--frame->references > 0)
        return;
    for (uint32_t i = 0; i < frame->made_capacity; i++)
        tdm_drop(m, frame->made[i]);
    free(frame->made);
    for (uint32_t i = frame->selected_again; i < frame->selected_count; i++)
        tdm_drop(m, frame->selected[i]);
    free(frame->selected);
    tdm_drop(m, frame->input);
    for (unsigned i = 0; i < TDM_MOST_HELD; i++)
        tdm_drop(m, frame->function.held[i]);
    free(frame);
}

struct tdm_frame *tdm_frame_new(struct tdm_eager *m, const struct tdm_function *function)
{
    struct tdm_frame *frame = calloc(1, sizeof(*frame));
    if (frame == NULL)
        tdm_eager_no_memory(m);
    frame->references = 1;
    frame->function = *function;
    frame->autocast = m->autocast;
    frame->selective = m->selective;
    for (unsigned i = 0; i < TDM_MOST_HELD; i++)
        tdm_take(function->held[i]);
    return frame;
}

void tdm_frame_save_again(struct tdm_eager *m, struct tdm_frame *frame,
                          struct tdm_eager_value *value)
{
    if (m->stopped || frame->made_again >= frame->saved_count)
        return;
    frame->made[frame->made_again++] = tdm_value_view(m, value);
    if (value->storage->category == TDM_METHOD_WORKSPACE)
        tdm_storage_set_category(m, value->storage, TDM_METHOD_RESIDUALS);
    /* Early stop: everything saved exists, so the kernel that would use the last tensor is left
     * out. */
    m->stopped = frame->made_again == frame->saved_count;
}

/* ---- selective checkpoints ---- */

static void keep(struct tdm_eager *m, struct tdm_frame *frame, struct tdm_eager_value *value)
{
    if (frame->selected_count == frame->selected_capacity) {
        uint32_t capacity = frame->selected_capacity == 0 ? 8 : 2 * frame->selected_capacity;
        struct tdm_eager_value **values =
            realloc(frame->selected, capacity * sizeof(struct tdm_eager_value *));
        if (values == NULL)
            tdm_eager_no_memory(m);
        frame->selected = values;
        frame->selected_capacity = capacity;
    }
    frame->selected[frame->selected_count++] = tdm_value_view(m, value);
    if (value->storage->category == TDM_METHOD_WORKSPACE)
        tdm_storage_set_category(m, value->storage, TDM_METHOD_RESIDUALS);
}

struct tdm_eager_value *tdm_value_selected(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                           uint16_t element_bytes, bool product)
{
    struct tdm_frame *frame = m->repeating != NULL ? m->repeating : m->saving;
    bool kept = frame != NULL && frame->selective && (!product || frame->products++ % 2 == 0) &&
                !m->passing;
    if (kept && m->repeating != NULL && frame->selected_again < frame->selected_count)
        return frame->selected[frame->selected_again++];
    struct tdm_eager_value *value = tdm_value_new(m, rows, columns, element_bytes);
    if (kept && m->repeating == NULL)
        keep(m, frame, value);
    return value;
}

static void make_again(struct tdm_eager *m, struct tdm_node *node,
                       struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    for (uint32_t i = 0; i < node->saved_count; i++) {
        struct tdm_eager_value *value = tdm_node_saved(m, node, i);
        tdm_value_occupy(m, value);
        tdm_drop(m, value);
    }
    results[0] = tdm_take(grads[0]);
}

struct tdm_eager_value *tdm_discard(struct tdm_eager *m, struct tdm_eager_value *y,
                                    struct tdm_eager_value *const *values, uint32_t count)
{
    static const struct tdm_eager_op op = {"made again", false, make_again};
    struct tdm_node *node = m->saving != NULL ? NULL : tdm_node_new(m, &op, &y, 1);
    if (node == NULL)
        return y;
    for (uint32_t i = 0; i < count; i++) {
        tdm_node_save(m, node, values[i]);
        tdm_value_vacate(m, values[i]);
    }
    struct tdm_eager_value *same = tdm_value_view(m, y);
    same->view = y->view;
    same = tdm_node_finish(m, node, same);
    tdm_drop(m, y);
    return same;
}

static void run_again(struct tdm_eager *m, struct tdm_frame *frame)
{
    frame->has_run_again = true;
    frame->products = 0;
    frame->made_capacity = frame->saved_count;
    frame->made = calloc(frame->made_capacity, sizeof(struct tdm_eager_value *));
    if (frame->made == NULL)
        tdm_eager_no_memory(m);
    if (frame->offloaded) {
        frame->input = tdm_value_new(m, frame->rows, frame->columns, frame->element_bytes);
        tdm_value_require_grad(m, frame->input);
        tdm_host_give(m, tdm_size_mul(tdm_value_elements(frame->input), frame->element_bytes));
    }
    struct tdm_frame *repeating = m->repeating;
    bool grad_enabled = m->grad_enabled, autocast = m->autocast;
    struct tdm_label label = m->label;
    m->label.made = TDM_MADE_FORWARD;
    m->repeating = frame;
    m->grad_enabled = true;
    m->autocast = frame->autocast;
    tdm_drop(m, frame->function.run(m, frame->function.model, frame->function.layer, frame->input));
    if (frame->offloaded) {
        tdm_drop(m, frame->input);
        frame->input = NULL;
    }
    m->label = label;
    m->repeating = repeating;
    m->grad_enabled = grad_enabled;
    m->autocast = autocast;
    m->stopped = false;
    if (frame->autocast)
        tdm_autocast_clear(m);
}

static struct tdm_eager_value *checkpoint(struct tdm_eager *m, const struct tdm_function *function,
                                          struct tdm_eager_value *input, bool offload)
{
    struct tdm_frame *frame = tdm_frame_new(m, function);
    if (frame == NULL)
        return tdm_take(input);
    if (offload) {
        frame->offloaded = true;
        frame->rows = input->rows;
        frame->columns = input->columns;
        frame->element_bytes = input->element_bytes;
        tdm_host_take(m, tdm_size_mul(tdm_value_elements(input), input->element_bytes));
    } else {
        frame->input = tdm_take(input);
        if (input->storage->category == TDM_METHOD_WORKSPACE)
            tdm_storage_set_category(m, input->storage, TDM_METHOD_RESIDUALS);
    }
    m->saving = frame;
    struct tdm_eager_value *output = function->run(m, function->model, function->layer, input);
    m->saving = NULL;
    tdm_frame_drop(m, frame);
    return output;
}

struct tdm_eager_value *tdm_checkpoint(struct tdm_eager *m, const struct tdm_function *function,
                                       struct tdm_eager_value *input)
{
    return checkpoint(m, function, input, false);
}

struct tdm_eager_value *tdm_checkpoint_away(struct tdm_eager *m,
                                            const struct tdm_function *function,
                                            struct tdm_eager_value *input)
{
    return checkpoint(m, function, input, true);
}

static void checkpoint_backward(struct tdm_eager *m, struct tdm_node *node,
                                struct tdm_eager_value *const *grads,
                                struct tdm_eager_value **results)
{
    const struct tdm_frame *frame = node->function;
    bool offloaded = node->saved_count == 0;
    const struct tdm_edge *edge = &node->edges[0];
    struct tdm_eager_value *saved =
        offloaded ? tdm_value_new(m, edge->rows, edge->columns, edge->element_bytes)
                  : tdm_node_saved(m, node, 0);
    struct tdm_eager_value *input = tdm_value_view(m, saved);
    tdm_value_require_grad(m, input);
    bool grad_enabled = m->grad_enabled, autocast = m->autocast;
    m->grad_enabled = true;
    m->autocast = frame->autocast;
    m->label.made = TDM_MADE_FORWARD;
    struct tdm_eager_value *output =
        frame->function.run(m, frame->function.model, frame->function.layer, input);
    m->autocast = autocast;
    if (frame->autocast)
        tdm_autocast_clear(m);
    tdm_backward(m, output, grads[0]);
    m->grad_enabled = grad_enabled;
    results[0] = tdm_take(input->grad);
    tdm_drop(m, output);
    if (offloaded)
        tdm_host_give(m, tdm_size_mul(tdm_value_elements(input), input->element_bytes));
    tdm_drop(m, input);
    tdm_drop(m, saved);
}

static const struct tdm_eager_op checkpoint_op = {"CheckpointFunctionBackward", false,
                                                  checkpoint_backward};

static struct tdm_eager_value *reentrant(struct tdm_eager *m, const struct tdm_function *function,
                                         struct tdm_eager_value *input, bool offload)
{
    struct tdm_eager_value *inputs[] = {input};
    struct tdm_node *node = tdm_node_new(m, &checkpoint_op, inputs, 1);
    if (node != NULL) {
        node->function = tdm_frame_new(m, function);
        if (node->function == NULL)
            node->op = &tdm_accumulate_op;
        if (offload)
            tdm_host_take(m, tdm_size_mul(tdm_value_elements(input), input->element_bytes));
        else
            tdm_node_save(m, node, input);
    }
    bool grad_enabled = m->grad_enabled;
    m->grad_enabled = false;
    struct tdm_eager_value *output = function->run(m, function->model, function->layer, input);
    m->grad_enabled = grad_enabled;
    return tdm_node_finish(m, node, output);
}

struct tdm_eager_value *tdm_checkpoint_reentrant(struct tdm_eager *m,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *input)
{
    return reentrant(m, function, input, false);
}

struct tdm_eager_value *tdm_checkpoint_offloaded(struct tdm_eager *m,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *input)
{
    return reentrant(m, function, input, true);
}

struct tdm_eager_value *tdm_node_saved(struct tdm_eager *m, struct tdm_node *node, uint32_t i)
{
    struct tdm_saved *saved = &node->saved[i];
    if (saved->frame == NULL)
        return tdm_take(saved->value);
    struct tdm_frame *frame = saved->frame;
    if (!frame->has_run_again)
        run_again(m, frame);
    struct tdm_eager_value *value =
        saved->index < frame->made_capacity ? frame->made[saved->index] : NULL;
    if (value == NULL) /* after a failure */
        return tdm_value_new(m, 1, 1, 1);
    frame->made[saved->index] = NULL;
    return value;
}
