/* SPDX-License-Identifier: Apache-2.0 */
/* Reduces the events of a step to a fixed number of points. Each point is the maximum of equally
 * many events. */
#include "methods/timeline.h"

#include <stdlib.h>
#include <string.h>

static uint64_t allocated(const uint64_t *live)
{
    uint64_t bytes = 0;
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        bytes += live[c];
    return bytes;
}

/* Merges pairs of points. */
static void halve(struct tdm_method_timeline *t)
{
    for (uint32_t i = 0; i + 1 < t->count; i += 2) {
        const struct tdm_timeline_point *a = &t->points[i], *b = &t->points[i + 1];
        t->points[i / 2] = allocated(a->live_bytes) < allocated(b->live_bytes) ? *b : *a;
    }
    t->count /= 2;
    t->stretch *= 2;
}

static void note(void *context, const struct tdm_torch_event *event)
{
    struct tdm_method_timeline *t = context;
    if (event->step != t->step)
        return;
    if (t->events % t->stretch == 0 && t->count == TDM_TIMELINE_POINTS)
        halve(t);
    bool first = t->events % t->stretch == 0;
    if (first)
        t->count++;
    struct tdm_timeline_point *point = &t->points[t->count - 1];
    if (first || allocated(event->live) > allocated(point->live_bytes)) {
        point->event = t->events;
        point->phase = event->phase;
        point->reserved_bytes = event->reserved;
        memcpy(point->live_bytes, event->live, sizeof(point->live_bytes));
    }
    t->phase_events[event->phase]++;
    t->events++;
}

enum tdm_status tdm_method_timeline(const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings, uint32_t step,
                                    bool endless, enum tdm_megatron_run run,
                                    struct tdm_method_timeline **timeline, struct tdm_error *err)
{
    struct tdm_method_timeline *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a timeline");
    t->step = step;
    t->stretch = 1;
    const struct tdm_torch_observer observer = {note, t};
    enum tdm_status status =
        tdm_method_observe(model, machine, settings, step, endless, run, &observer, err);
    if (status != TDM_OK) {
        free(t);
        return status;
    }
    *timeline = t;
    return TDM_OK;
}
