/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a training (executor/history.h). */
#include "executor/history.h"

#include <stdlib.h>

enum tdm_status tdm_history_add(struct tdm_history *history, double loss, double gradient_norm,
                                struct tdm_error *err)
{
    if (history->count == history->capacity) {
        uint64_t capacity = history->capacity == 0 ? 256 : 2 * history->capacity;
        void *steps = realloc(history->steps, capacity * sizeof(*history->steps));
        if (steps == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the losses of %llu steps",
                            (unsigned long long)capacity);
        history->steps = steps;
        history->capacity = capacity;
    }
    history->steps[history->count++] = (struct tdm_history_step){loss, gradient_norm};
    return TDM_OK;
}

enum tdm_status tdm_history_copy(const struct tdm_history *history, struct tdm_history *copy,
                                 struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    *copy = (struct tdm_history){0};
    for (uint64_t i = 0; i < history->count && status == TDM_OK; i++)
        status =
            tdm_history_add(copy, history->steps[i].loss, history->steps[i].gradient_norm, err);
    return status;
}

void tdm_history_free(struct tdm_history *history)
{
    free(history->steps);
    *history = (struct tdm_history){0};
}
