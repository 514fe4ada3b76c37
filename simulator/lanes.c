/* SPDX-License-Identifier: Apache-2.0 */
/* When ops start and end on their lanes, with copies that share their links. */
#include "simulator/lanes.h"

#include "ops/team.h"
#include "schedule/cost.h"

#include <math.h>
#include <stdlib.h>

#define FIRST_CAPACITY 64u /* of a queue; a power of two */

/* ---- links ---- */

static bool is_of_host(const struct tdm_link *link)
{
    return link->from != TDM_DEVICE || link->to != TDM_DEVICE;
}

/* Links whose rate depends on whether other links are busy, beside updates on the host or not, and
 * the links on which it depends. */
static void find_sharing(struct tdm_lanes *lanes)
{
    const struct tdm_topology *topology = &lanes->machine->topology;
    for (uint32_t link = 0; link < topology->link_count; link++)
        for (uint32_t other = 0; other < topology->link_count; other++) {
            const double alone = tdm_link_rate(topology, link, 0);
            const double beside = tdm_link_rate(topology, link, 1u << other | TDM_UPDATES_BUSY);
            if (other == link || beside >= alone)
                continue;
            lanes->link_shares[link] = lanes->link_shares[other] = true;
        }
    for (uint32_t link = 0; link < topology->link_count; link++)
        lanes->link_shares[link] |=
            lanes->machine->host_bytes_per_copied_byte > 0 && is_of_host(&topology->links[link]);
    for (uint32_t link = 0; link < topology->link_count; link++)
        lanes->lane_shares[topology->links[link].lane] |= lanes->link_shares[link];
}

/* ---- queues ---- */

enum tdm_status tdm_lanes_open(struct tdm_lanes *lanes, const struct tdm_machine *machine,
                               uint64_t op_count, bool keep_starts, struct tdm_error *err)
{
    *lanes = (struct tdm_lanes){.machine = machine, .short_of = TDM_MAX_LANES};
    find_sharing(lanes);
    bool ok = op_count < UINT32_MAX;
    for (uint32_t lane = 0; lane < machine->topology.lane_count && ok; lane++) {
        struct tdm_lane_queue *queue = &lanes->queue[lane];
        queue->ends = malloc((op_count + 1) * sizeof(double));
        queue->starts = keep_starts ? malloc((op_count + 1) * sizeof(double)) : NULL;
        queue->ops = malloc(FIRST_CAPACITY * sizeof(*queue->ops));
        queue->capacity = FIRST_CAPACITY;
        ok = queue->ends != NULL && queue->ops != NULL && (queue->starts != NULL || !keep_starts);
    }
    return ok ? TDM_OK
              : tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu ops",
                         (unsigned long long)op_count);
}

void tdm_lanes_close(struct tdm_lanes *lanes)
{
    for (uint32_t lane = 0; lane < TDM_MAX_LANES; lane++) {
        free(lanes->queue[lane].ops);
        free(lanes->queue[lane].starts);
        free(lanes->queue[lane].ends);
    }
}

/* The op that is to run next on a lane; NULL if none is known. */
static struct tdm_lane_op *first_of(const struct tdm_lane_queue *queue)
{
    return queue->count > 0 ? &queue->ops[queue->first] : NULL;
}

static enum tdm_status push(struct tdm_lane_queue *queue, const struct tdm_lane_op *op,
                            struct tdm_error *err)
{
    if (queue->count == queue->capacity) {
        struct tdm_lane_op *more = malloc(2 * queue->capacity * sizeof(*more));
        if (more == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu ops", 2 * queue->capacity);
        for (size_t i = 0; i < queue->count; i++)
            more[i] = queue->ops[(queue->first + i) & (queue->capacity - 1)];
        free(queue->ops);
        queue->ops = more;
        queue->first = 0;
        queue->capacity *= 2;
    }
    queue->ops[(queue->first + queue->count++) & (queue->capacity - 1)] = *op;
    return TDM_OK;
}

/* ---- times ---- */

/* Have all ended that an op waits for? Ranks meet in the order of the program. */
static bool is_ready(const struct tdm_lanes *lanes, const struct tdm_lane_op *op)
{
    for (uint32_t lane = 0; lane < lanes->machine->topology.lane_count; lane++)
        if (op->after[lane] > lanes->queue[lane].ended)
            return false;
    return !op->of_team || op->team_number == lanes->team_met;
}

/* When an op is ready but for ops of the lane `peer`, and when those ended. */
static double ready_seconds(const struct tdm_lanes *lanes, const struct tdm_lane_op *op,
                            double *peers)
{
    double ready = lanes->queue[op->lane].free_seconds;
    *peers = 0;
    for (uint32_t lane = 0; lane < lanes->machine->topology.lane_count; lane++) {
        if (op->after[lane] == 0)
            continue;
        const double end = lanes->queue[lane].ends[op->after[lane] - 1];
        if (lane == TDM_LANE_PEER)
            *peers = end;
        else
            ready = fmax(ready, end);
    }
    return ready;
}

static enum tdm_status begin(struct tdm_lanes *lanes, struct tdm_lane_op *op, struct tdm_error *err)
{
    struct tdm_lane_queue *queue = &lanes->queue[op->lane];
    double peers;
    op->start_seconds = ready_seconds(lanes, op, &peers);
    op->start_seconds = fmax(op->start_seconds, peers);
    op->begin_seconds = op->start_seconds;
    op->has_begun = true;
    lanes->team_met += op->of_team;
    if (op->updates_host) {
        /* Copies before `lanes->seconds` are not counted. There are few: copies are seldom followed
         * beyond that of its gradient, for which it waits. */
        queue->bytes = fmax(op->seconds - fmax(lanes->seconds - op->begin_seconds, 0), 0);
        queue->fixed_seconds = 0;
    } else if (op->shares) {
        queue->bytes = op->link_bytes;
        queue->fixed_seconds =
            op->seconds - op->link_bytes / tdm_link_rate(&lanes->machine->topology, op->link, 0);
    }
    return op->of_team ? lanes->meet(lanes->self, &op->begin_seconds, err) : TDM_OK;
}

/* Ends the first op of a lane. */
static void end(struct tdm_lanes *lanes, struct tdm_lane_queue *queue, double seconds)
{
    const struct tdm_lane_op *op = first_of(queue);
    double peers;
    const double ready = ready_seconds(lanes, op, &peers);
    if (queue->starts != NULL)
        queue->starts[queue->ended] = op->start_seconds;
    queue->ends[queue->ended++] = seconds;
    queue->free_seconds = seconds;
    lanes->see(lanes->self, op, ready, peers, seconds);
    queue->first = (queue->first + 1) & (queue->capacity - 1);
    queue->count--;
}

/* Begins and ends what can be, but for ops that share links. */
static enum tdm_status run_ready(struct tdm_lanes *lanes, struct tdm_error *err)
{
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (uint32_t lane = 0; lane < lanes->machine->topology.lane_count; lane++) {
            struct tdm_lane_queue *queue = &lanes->queue[lane];
            struct tdm_lane_op *op;
            while ((op = first_of(queue)) != NULL && !op->has_begun && is_ready(lanes, op)) {
                enum tdm_status status = begin(lanes, op, err);
                if (status != TDM_OK)
                    return status;
                goes_on = true;
                if (op->shares)
                    break;
                end(lanes, queue, op->begin_seconds + op->seconds);
            }
        }
    }
    return TDM_OK;
}

/* Copies that share links, and updates that they slow, the first ones of their lanes. */
struct sharers {
    struct tdm_lane_queue *queues[TDM_MAX_LANES];
    uint32_t count;
};

static struct sharers sharers_of(struct tdm_lanes *lanes)
{
    struct sharers sharers = {.count = 0};
    for (uint32_t lane = 0; lane < lanes->machine->topology.lane_count; lane++) {
        const struct tdm_lane_op *op = first_of(&lanes->queue[lane]);
        if (op != NULL && op->has_begun)
            sharers.queues[sharers.count++] = &lanes->queue[lane];
    }
    return sharers;
}

/* Follows copies until the first one ends. No op begins before that, other than those that have
 * begun: all others wait for one of them. */
static void end_first(struct tdm_lanes *lanes, const struct sharers *sharers)
{
    const struct tdm_topology *topology = &lanes->machine->topology;
    struct tdm_lane_queue *ends = NULL;
    while (ends == NULL) {
        double next = HUGE_VAL, rates[TDM_MAX_LANES] = {0}, of_host = 0;
        uint32_t busy = 0;
        for (uint32_t i = 0; i < sharers->count; i++) {
            const struct tdm_lane_op *op = first_of(sharers->queues[i]);
            if (op->begin_seconds > lanes->seconds)
                next = fmin(next, op->begin_seconds);
            else
                busy |= op->updates_host ? TDM_UPDATES_BUSY : 1u << op->link;
        }
        for (uint32_t link = 0; link < topology->link_count; link++)
            if ((busy >> link & 1) != 0 && is_of_host(&topology->links[link]))
                of_host += tdm_link_rate(topology, link, busy & ~(1u << link));
        for (uint32_t i = 0; i < sharers->count; i++) {
            struct tdm_lane_queue *queue = sharers->queues[i];
            const struct tdm_lane_op *op = first_of(queue);
            if (op->begin_seconds > lanes->seconds)
                continue;
            rates[i] = op->updates_host
                           ? fmax(1 - op->slower * of_host, TDM_LEAST_UPDATE_RATE)
                           : tdm_link_rate(topology, op->link, busy & ~(1u << op->link));
            const double due = lanes->seconds + queue->fixed_seconds + queue->bytes / rates[i];
            if (due <= next) {
                next = due;
                ends = queue;
            }
        }
        for (uint32_t i = 0; i < sharers->count; i++) {
            struct tdm_lane_queue *queue = sharers->queues[i];
            double passed = rates[i] > 0 ? next - lanes->seconds : 0;
            const double fixed = fmin(passed, queue->fixed_seconds);
            queue->fixed_seconds -= fixed;
            queue->bytes = fmax(queue->bytes - (passed - fixed) * rates[i], 0);
        }
        lanes->seconds = next;
    }
    end(lanes, ends, lanes->seconds);
}

/* Finds all times that do not depend on ops still to come. */
static enum tdm_status run(struct tdm_lanes *lanes, bool is_last, struct tdm_error *err)
{
    for (;;) {
        enum tdm_status status = run_ready(lanes, err);
        if (status != TDM_OK)
            return status;
        struct sharers sharers = sharers_of(lanes);
        lanes->short_of = TDM_MAX_LANES;
        if (sharers.count == 0)
            return TDM_OK;
        for (uint32_t lane = 0; lane < TDM_MAX_LANES && !is_last; lane++)
            if (lanes->lane_shares[lane] && lanes->queue[lane].count == 0) {
                lanes->short_of = lane;
                return TDM_OK;
            }
        /* before the first one begins nothing passes */
        double first = HUGE_VAL;
        for (uint32_t i = 0; i < sharers.count; i++)
            first = fmin(first, first_of(sharers.queues[i])->begin_seconds);
        lanes->seconds = fmax(lanes->seconds, first);
        end_first(lanes, &sharers);
    }
}

enum tdm_status tdm_lanes_take(struct tdm_lanes *lanes, const struct tdm_op *op,
                               const struct tdm_waits *waits, struct tdm_error *err)
{
    struct tdm_lane_op taken = {.seconds = tdm_op_seconds(lanes->machine, op),
                                .link = op->link,
                                .kind = (uint8_t)op->kind,
                                .phase = (uint8_t)op->phase,
                                .lane = (uint8_t)op->lane,
                                .of_team = (TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0};
    taken.shares = op->link != TDM_NO_LINK && lanes->link_shares[op->link] &&
                   !lanes->machine->topology.lanes[op->lane].computes;
    taken.link_bytes = taken.shares ? (double)tdm_op_link_bytes(op) : 0;
    taken.slower = tdm_op_seconds_per_copied_byte(lanes->machine, op);
    taken.updates_host = tdm_op_shares_host_memory(lanes->machine, op);
    taken.shares |= taken.updates_host;
    taken.team_number = lanes->team_taken;
    lanes->team_taken += taken.of_team;
    for (uint32_t lane = 0; lane < lanes->machine->topology.lane_count; lane++)
        taken.after[lane] = (uint32_t)waits->lane_position[lane];
    enum tdm_status status = push(&lanes->queue[op->lane], &taken, err);
    /* while the next op of a lane is not known, ops of others change nothing */
    if (status != TDM_OK || (lanes->short_of < TDM_MAX_LANES && lanes->short_of != op->lane))
        return status;
    return run(lanes, false, err);
}

enum tdm_status tdm_lanes_finish(struct tdm_lanes *lanes, struct tdm_error *err)
{
    return run(lanes, true, err);
}
