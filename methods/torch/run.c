/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the steps of a system and records their peaks. */
#include "methods/method.h"

#include <string.h>

static const char *const phase_names[TDM_TORCH_PHASES] = {"forward", "backward", "optimizer"};

const char *tdm_torch_phase_name(enum tdm_torch_phase phase)
{
    return phase_names[phase];
}

struct running {
    struct tdm_eager eager;
    const struct tdm_torch_system *system;
    void *state;
    const struct tdm_torch_observer *observer;
    uint32_t number; /* of the step, from 1; 0 while the model is being made */
    enum tdm_torch_phase phase;
};

static void observe(void *context, const struct tdm_storage *storage, bool allocated,
                    uint64_t bytes)
{
    const struct running *r = context;
    const struct tdm_torch_event event = {
        .step = r->number,
        .phase = r->phase,
        .allocated = allocated,
        .bytes = bytes,
        .category = storage->category,
        .label = &storage->label,
        .live = r->eager.live,
        .reserved = tdm_torch_current(r->eager.allocator).reserved,
    };
    r->observer->event(r->observer->context, &event);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The peaks of the phase that ends, and of the step so far. */
static void note_peaks(struct running *r, struct tdm_torch_step *step, enum tdm_torch_phase phase)
{
    const struct tdm_torch_bytes peak = tdm_torch_peak(r->eager.allocator);
    step->phases[phase] = peak;
    step->peak.allocated = larger(step->peak.allocated, peak.allocated);
    step->peak.reserved = larger(step->peak.reserved, peak.reserved);
    step->peak.requested = larger(step->peak.requested, peak.requested);
    tdm_torch_reset_peak(r->eager.allocator);
}

static void end_phase(struct running *r, struct tdm_torch_step *step, enum tdm_torch_phase phase)
{
    if (step->failed)
        return;
    if (r->eager.status == TDM_INFEASIBLE) {
        step->failed = true;
        step->failed_phase = phase;
        step->lacks = r->eager.lacks;
    }
    uint64_t before = phase == 0 ? 0 : step->highest_bytes[phase - 1];
    step->end_bytes[phase] = tdm_torch_current(r->eager.allocator).allocated;
    note_peaks(r, step, phase);
    step->highest_bytes[phase] = step->peak.allocated;
    if (step->highest_bytes[phase] > before)
        step->peak_phase = phase;
}

static void run_step(struct running *r, struct tdm_torch_step *step)
{
    struct tdm_eager *m = &r->eager;
    uint64_t retries = tdm_torch_retries(m->allocator);
    tdm_eager_reset_peak(m);
    step->before_bytes = tdm_torch_current(m->allocator).allocated;
    for (unsigned p = 0; p < TDM_TORCH_PHASES; p++) {
        r->phase = (enum tdm_torch_phase)p;
        if (!step->failed)
            r->system->phases[p](r->state);
        end_phase(r, step, (enum tdm_torch_phase)p);
    }
    step->host_bytes = m->host_peak;
    memcpy(step->categories, m->at_peak, sizeof(step->categories));
    if (!m->totals_only)
        step->largest_count = tdm_eager_largest(m, step->largest, TDM_TORCH_LARGEST);
    step->retries = tdm_torch_retries(m->allocator) - retries;
    r->system->end_step(r->state);
    step->end_reserved_bytes = tdm_torch_current(m->allocator).reserved;
}

static enum tdm_status make_and_run(struct running *r, const struct tdm_model *config,
                                    const struct tdm_method_settings *settings, uint32_t steps,
                                    struct tdm_torch_run *run, struct tdm_error *err)
{
    enum tdm_status status = r->system->create(&r->eager, config, settings, &r->state, err);
    if (status != TDM_OK)
        return status;
    run->weight_bytes = r->system->weight_bytes(r->state);
    while (run->steps < steps && run->steps < TDM_TORCH_STEPS && r->eager.status == TDM_OK) {
        r->number = ++run->steps;
        run_step(r, &run->step[r->number - 1]);
    }
    if (run->steps == 0 && r->eager.status == TDM_INFEASIBLE) {
        run->steps = 1; /* the model itself does not fit */
        run->step[0].failed = run->step[0].unmade = true;
        run->step[0].peak = tdm_torch_peak(r->eager.allocator);
        memcpy(run->step[0].categories, r->eager.at_peak, sizeof(run->step[0].categories));
    }
    if (r->eager.status == TDM_INTERNAL)
        return tdm_fail(err, TDM_INTERNAL,
                        "expected an operation of at most %u inputs, %u saved tensors and "
                        "%u results",
                        TDM_MOST_INPUTS, TDM_MOST_SAVED, TDM_MOST_OUTPUTS);
    return r->eager.status == TDM_NO_MEMORY ? TDM_NO_MEMORY : TDM_OK;
}

/* The same. If the process has no memory, the eager machine leaves from wherever it is, and what
 * the system holds is half made: it is not freed. */
static enum tdm_status run_guarded(struct running *r, const struct tdm_model *config,
                                   const struct tdm_method_settings *settings, uint32_t steps,
                                   struct tdm_torch_run *run, struct tdm_error *err)
{
    r->eager.can_leave = true;
    r->eager.means_save = settings->torch.release != TDM_RELEASE_NOW;
    if (setjmp(r->eager.no_memory) != 0) {
        r->state = NULL;
        return TDM_NO_MEMORY;
    }
    return make_and_run(r, config, settings, steps, run, err);
}

enum tdm_status tdm_torch_run(const struct tdm_model *config,
                              const struct tdm_method_settings *settings,
                              const struct tdm_torch_device *device, uint32_t steps,
                              const struct tdm_torch_observer *observer, struct tdm_torch_run *run,
                              struct tdm_error *err)
{
    struct running r = {.observer = observer, .system = settings->method->system};
    struct tdm_torch_allocator *allocator;
    enum tdm_status status = tdm_torch_allocator_create(
        device->capacity_bytes, settings->expandable_segments, &allocator, err);
    if (status != TDM_OK)
        return status;
    tdm_torch_set_limit(allocator, device->limit_bytes);
    tdm_eager_start(&r.eager, allocator, &device->gpu);
    r.eager.most_moments = device->most_moments;
    r.eager.totals_only = device->totals_only;
    if (observer != NULL) {
        r.eager.observe = observe;
        r.eager.observer = &r;
    }
    memset(run, 0, sizeof(*run));
    status = run_guarded(&r, config, settings, steps, run, err);
    if (status == TDM_NO_MEMORY)
        tdm_fail(err, TDM_NO_MEMORY, "out of memory for the steps of a method");
    run->work = r.eager.sequence + r.eager.moment;
    run->skipped = r.eager.skipped;
    r.number = 0;
    r.system->free(r.state);
    tdm_eager_end(&r.eager);
    tdm_torch_allocator_free(allocator);
    return status;
}
