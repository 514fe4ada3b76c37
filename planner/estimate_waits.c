/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Approximate seconds of a step with the waits of its compute lane for copies. No bound, but close
 * to the simulator.
 *
 * Computing, each direction of the link, and both together have a clock. All advance layer by
 * layer. Copies of a layer begin with its sweep. A sweep ends no earlier than its copies, less
 * those that slots let run ahead or behind: a few chunks, or for state a layer or two. The backward
 * is traversed upward too, as if time ran in reverse: a copy that must end before a sweep then
 * follows it, with the same wait.
 */
#include "planner/estimate_parts.h"

#include "schedule/optimizer.h"
#include "schedule/slices.h"

struct clocks {
    double compute;
    double fetch, send, both;                   /* copies of chunks */
    double state_fetch, state_send, state_both; /* of chunks and state */
};

/* Advances a clock of the link by `seconds`, at the earliest from `from`. Computing waits for it,
 * less `slack`. */
static void copy(double *clock, double from, double seconds, double slack, double *compute)
{
    if (seconds <= 0)
        return;
    *clock = later(*clock, from) + seconds;
    *compute = later(*compute, *clock - slack);
}

/* Seconds of a sweep's copies that a ring's slots hold, cached for the last sweep: most layers are
 * alike. */
struct held {
    double copies, seconds;
};

struct held_ways {
    struct held ahead, behind;
};

static double held_seconds(struct held *held, double copies, uint64_t slots, uint32_t chunks)
{
    if (copies < held->copies || copies > held->copies) {
        held->copies = copies;
        held->seconds = copies > 0 ? copies * smaller(slots, chunks) / chunks : 0;
    }
    return held->seconds;
}

/* How much longer copies take while the link is busy both ways. */
struct slowdowns {
    double to_device, to_host;
};

static void advance(const struct tdm_estimator *e, const struct slowdowns *slower, struct clocks *c,
                    struct held_ways *held, const struct sweep *sweep,
                    const struct state_copies *state)
{
    double from = c->compute, to_device = slower->to_device, to_host = slower->to_host;
    double ahead = held_seconds(&held->ahead, sweep->fetch, e->base->prefetch, e->chunks);
    double behind = held_seconds(&held->behind, sweep->send, e->base->rings.stashed, e->chunks);
    double fetch = sweep->fetch + state->fetch, send = sweep->send + state->send;
    c->compute += sweep->compute + state->alone;
    copy(&c->fetch, from, sweep->fetch, ahead, &c->compute);
    copy(&c->send, from, sweep->send, behind, &c->compute);
    copy(&c->both, from, to_device * sweep->fetch + to_host * sweep->send, ahead + behind,
         &c->compute);
    copy(&c->state_fetch, from, fetch, ahead + state->slack, &c->compute);
    copy(&c->state_send, from, send, behind + state->slack, &c->compute);
    copy(&c->state_both, from, to_device * fetch + to_host * send, ahead + behind + state->slack,
         &c->compute);
}

/* Seconds to fetch a unit's state for its use; send_seconds(): to send to the host. */
static double fetch_seconds(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    if (!tdm_is_far(tdm_schedule_home(e->base, state, unit)) ||
        !tdm_estimator_comes(e, state, unit))
        return 0;
    return (double)tdm_estimator_unit_bytes(e, state, unit) /
           tdm_machine_link_rate(e->base->machine, TDM_LINK_H2D);
}

static double send_seconds(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit)
{
    if (!tdm_is_far(tdm_schedule_home(e->base, state, unit)))
        return 0;
    return (double)tdm_estimator_sent_bytes(e, state, unit) /
           tdm_machine_link_rate(e->base->machine, TDM_LINK_D2H);
}

/* Copies of weights before a layer's forward. */
static struct state_copies before_forward(const struct tdm_estimator *e, uint32_t layer)
{
    double fetch = fetch_seconds(e, TDM_STATE_WEIGHTS, layer);
    uint32_t slots = e->base->rings.weights;
    return (struct state_copies){
        .fetch = fetch, .slack = (slots - 1) * fetch, .alone = slots == 1 ? fetch : 0};
}

/* Copies of weights before a layer's backward, and of state for its update. */
static struct state_copies around_backward(const struct tdm_estimator *e, uint32_t layer)
{
    struct state_copies copies = before_forward(e, layer);
    bool trains = e->base->optimizer.kind != TDM_OPTIMIZER_NONE;
    for (int s = 0; s <= TDM_STATE_MOMENTS && trains; s++) {
        enum tdm_state state = (enum tdm_state)s;
        bool comes = state != TDM_STATE_WEIGHTS;
        double fetch = comes ? fetch_seconds(e, state, layer) : 0;
        copies.fetch += fetch;
        copies.send += send_seconds(e, state, layer);
        copies.slack += (e->base->rings.optimizer - 1) * fetch;
    }
    /* the next layer's gradient uses the same bytes, once this one was sent to the host */
    if (tdm_updates_on_host(e->base, layer) && !tdm_gradients_stay(e->base))
        copies.alone += copies.send;
    return copies;
}

/* Weights of embedding and head come in one piece when they are needed, their state in slices, of
 * which the first must be waited for. The embedding's are sent home last. */
static double exposed_seconds(const struct tdm_estimator *e)
{
    const struct tdm_model *model = e->base->model;
    const uint32_t units[] = {tdm_model_embedding_unit(model), tdm_model_head_unit(model)};
    bool trains = e->base->optimizer.kind != TDM_OPTIMIZER_NONE;
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        seconds += fetch_seconds(e, TDM_STATE_WEIGHTS, units[i]);
        for (int s = 0; s <= TDM_STATE_MOMENTS && trains; s++) {
            enum tdm_state state = (enum tdm_state)s;
            bool again = state == TDM_STATE_WEIGHTS && tdm_is_far(e->base->optimizer.on);
            double pieces = state == TDM_STATE_WEIGHTS ? 1 : e->slices[units[i]];
            seconds += again ? 0 : fetch_seconds(e, state, units[i]) / pieces;
            /* if updated on the host, it is part of the tail */
            seconds += i == 0 && !again ? send_seconds(e, state, units[i]) / pieces : 0;
        }
    }
    return seconds;
}

double tdm_estimate_waiting(const struct tdm_estimator *e)
{
    struct clocks forward = {0}, backward = {0};
    struct held_ways of_forward = {0}, of_backward = {0}, of_kv = {0}, of_again = {0};
    static const struct state_copies none = {0};
    const struct tdm_machine *machine = e->base->machine;
    double both = tdm_machine_both_ways_rate(machine);
    const struct slowdowns slower = {tdm_machine_link_rate(machine, TDM_LINK_H2D) / both,
                                     tdm_machine_link_rate(machine, TDM_LINK_D2H) / both};
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        const struct layer_sweeps *sweeps = &e->sweeps[layer];
        const struct state_copies before = before_forward(e, layer),
                                  around = around_backward(e, layer);
        advance(e, &slower, &forward, &of_forward, &sweeps->forward, &before);
        advance(e, &slower, &backward, &of_backward, &sweeps->backward, &around);
        if (sweeps->kv.compute > 0)
            advance(e, &slower, &backward, &of_kv, &sweeps->kv, &none);
        if (sweeps->again.compute > 0)
            advance(e, &slower, &backward, &of_again, &sweeps->again, &none);
    }
    return forward.compute + backward.compute + e->head_seconds + e->updates.optimizer_seconds +
           e->updates.tail_seconds[TDM_CHUNK_MAJOR] + exposed_seconds(e);
}
