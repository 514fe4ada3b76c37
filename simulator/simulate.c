/* SPDX-License-Identifier: Apache-2.0 */
/* Simulator: event times on the lanes, live bytes by place and category. */
#include "simulator/simulate.h"

#include "ops/move.h"
#include "ops/team.h"
#include "simulator/lanes.h"
#include "simulator/team.h"

#include <stdlib.h>
#include <string.h>

/* Less than this is rounding: equal work in another order. */
#define LEAST_WAIT_SECONDS 1e-9

struct tdm_simulator {
    const struct tdm_program *program;
    const struct tdm_topology *topology; /* of its machine */
    struct tdm_lanes lanes;
    uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES];
    uint64_t live_total[TDM_MAX_PLACES];
    uint64_t live_lists, live_means; /* page lists and page means, which are on the device */
    uint64_t next_op;
    struct tdm_team_clock *clock; /* NULL: no other ranks are simulated */
    uint32_t member;
    struct tdm_simulation result;
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void note_live(struct tdm_simulator *s, const struct tdm_item *item)
{
    const struct tdm_buffer *buffer = &s->program->buffers[item->buffer];
    uint64_t *live = &s->live[buffer->place][buffer->category];
    uint64_t *total = &s->live_total[buffer->place];
    uint64_t *of_lists = buffer->content == TDM_PAGE_LISTS   ? &s->live_lists
                         : buffer->content == TDM_PAGE_MEANS ? &s->live_means
                                                             : NULL;
    if (item->kind == TDM_FREE) {
        *live -= buffer->bytes;
        *total -= buffer->bytes;
        if (of_lists != NULL)
            *of_lists -= buffer->bytes;
        return;
    }
    *live += buffer->bytes;
    *total += buffer->bytes;
    if (of_lists != NULL)
        *of_lists += buffer->bytes;
    struct tdm_simulation *result = &s->result;
    uint64_t *most = &result->category_peaks[buffer->place][buffer->category];
    if (*live > *most)
        *most = *live;
    if (*total > result->live_peak_bytes[buffer->place]) {
        result->live_peak_bytes[buffer->place] = *total;
        memcpy(result->peak_categories[buffer->place], s->live[buffer->place],
               sizeof(s->live[buffer->place]));
        result->peak_op[buffer->place] = s->next_op;
        if (buffer->place == TDM_DEVICE) {
            result->peak_list_bytes = s->live_lists;
            result->peak_mean_bytes = s->live_means;
        }
    }
    uint64_t stored = 0;
    for (uint32_t place = 0; place < s->topology->place_count; place++)
        stored += s->live[place][TDM_RESIDUALS] + s->live[place][TDM_KV] +
                  s->live[place][TDM_KV_GRADIENTS];
    if (stored > result->stored_peak_bytes)
        result->stored_peak_bytes = stored;
}

/* Notes of an op all but its time. */
static void note_work(struct tdm_simulator *s, const struct tdm_op *op)
{
    struct tdm_simulation *result = &s->result;
    result->flops += (double)op->flops;
    if (op->kind == TDM_OP_ATTENTION)
        result->attention_forward_flops += (double)op->flops;
    if ((TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0) {
        result->team.of[0].received_bytes += op->fetched_bytes;
        result->team.of[0].sent_bytes += op->sent_bytes;
    }
    if (op->kind == TDM_OP_COPY || (TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0) {
        uint64_t bytes =
            op->kind == TDM_OP_COPY ? op->access[TDM_COPY_FROM].bytes : op->fetched_bytes;
        result->copied_bytes[op->lane] += bytes;
        if (op->link != TDM_NO_LINK)
            result->links[op->link].bytes += bytes;
    }
    if (op->kind == TDM_OP_PRODUCT || op->kind == TDM_OP_PRODUCT_GRAD_INPUT ||
        op->kind == TDM_OP_PRODUCT_GRAD_WEIGHT || op->part == TDM_PART_HEAD)
        result->product_flops += (double)op->flops;
}

static void note_times(void *self, const struct tdm_lane_op *op, double ready_seconds,
                       double peers_end_seconds, double end_seconds)
{
    struct tdm_simulator *s = self;
    struct tdm_simulation *result = &s->result;
    struct tdm_rank_use *use = &result->team.of[0];
    const double seconds = end_seconds - op->begin_seconds;
    result->busy_seconds[op->lane] += seconds;
    result->kind_seconds[op->kind] += seconds;
    if (op->lane == TDM_LANE_COMPUTE) {
        result->phase_seconds[op->phase] += seconds;
        use->exposed_seconds += larger(peers_end_seconds - ready_seconds, 0);
    }
    if (op->of_team)
        use->team_seconds += seconds;
    else if (op->lane == TDM_LANE_COMPUTE)
        use->compute_seconds += seconds;
    if (op->link != TDM_NO_LINK && (op->kind == TDM_OP_COPY || op->of_team))
        result->links[op->link].seconds += seconds;
}

/* A team op that the rank is ready for at *seconds: sets it to when all ranks are. */
static enum tdm_status meet(void *self, double *seconds, struct tdm_error *err)
{
    struct tdm_simulator *s = self;
    struct tdm_rank_use *use = &s->result.team.of[0];
    double ready = *seconds;
    uint32_t last = s->member;
    enum tdm_status status =
        s->clock == NULL ? TDM_OK : tdm_team_clock_meet(s->clock, s->member, seconds, &last, err);
    if (status == TDM_OK && *seconds - ready > LEAST_WAIT_SECONDS) {
        use->wait_seconds += *seconds - ready;
        if (last < TDM_SIMULATED_RANKS)
            use->wait_for_seconds[last] += *seconds - ready;
    }
    return status;
}

enum tdm_status tdm_simulator_new(const struct tdm_program *program, bool keep_starts,
                                  struct tdm_simulator **out, struct tdm_error *err)
{
    struct tdm_simulator *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a simulator");
    const struct tdm_machine *machine = program->schedule->machine;
    s->program = program;
    s->topology = &machine->topology;
    s->result.op_count = program->op_count;
    s->result.team.ranks = program->ranks;
    enum tdm_status status =
        tdm_lanes_open(&s->lanes, machine, program->op_count, keep_starts, err);
    s->lanes.meet = meet;
    s->lanes.see = note_times;
    s->lanes.self = s;
    if (status != TDM_OK) {
        tdm_simulator_free(s);
        return status;
    }
    *out = s;
    return TDM_OK;
}

void tdm_simulator_free(struct tdm_simulator *s)
{
    if (s == NULL)
        return;
    tdm_lanes_close(&s->lanes);
    free(s);
}

enum tdm_status tdm_simulator_take(struct tdm_simulator *s, const struct tdm_item *item,
                                   const struct tdm_waits *waits, struct tdm_error *err)
{
    if (item->kind != TDM_RUN) {
        note_live(s, item);
        return TDM_OK;
    }
    s->next_op = item->op->number + 1;
    note_work(s, item->op);
    return tdm_lanes_take(&s->lanes, item->op, waits, err);
}

const uint64_t (*tdm_simulator_live(const struct tdm_simulator *s))[TDM_CATEGORIES]
{
    return s->live;
}

void tdm_simulator_times(const struct tdm_simulator *s, enum tdm_lane lane, uint64_t position,
                         double *start_seconds, double *end_seconds)
{
    const struct tdm_lane_queue *queue = &s->lanes.queue[lane];
    *start_seconds = queue->starts[position - 1];
    *end_seconds = queue->ends[position - 1];
}

enum tdm_status tdm_simulator_finish(struct tdm_simulator *s, struct tdm_simulation *simulation,
                                     struct tdm_error *err)
{
    enum tdm_status status = tdm_lanes_finish(&s->lanes, err);
    if (status != TDM_OK)
        return status;
    struct tdm_simulation result = s->result;
    const struct tdm_lane_queue *queues = s->lanes.queue;
    for (uint32_t lane = 0; lane < s->topology->lane_count; lane++)
        if (lane != TDM_LANE_PEER)
            result.step_seconds = larger(result.step_seconds, queues[lane].free_seconds);
    const double of_peers = queues[TDM_LANE_PEER].free_seconds;
    if (of_peers > result.step_seconds) {
        result.team.of[0].exposed_seconds += of_peers - result.step_seconds;
        result.step_seconds = of_peers;
    }
    double stall = queues[TDM_LANE_COMPUTE].free_seconds - result.busy_seconds[TDM_LANE_COMPUTE];
    result.stall_seconds = stall > LEAST_WAIT_SECONDS ? stall : 0;
    for (uint32_t place = 0; place < s->topology->place_count; place++) {
        uint64_t runtime = s->topology->places[place].runtime_bytes;
        result.arena_bytes[place] = s->program->arena_bytes[place];
        result.used_peak_bytes[place] = tdm_program_used_bytes(s->program, (enum tdm_place)place);
        result.peak_categories[place][TDM_RUNTIME] = runtime;
        result.category_peaks[place][TDM_RUNTIME] = runtime;
    }
    result.kinds = s->program->kinds;
    result.team.simulated = 1;
    result.team.of[0].rank = s->program->rank;
    result.team.of[0].step_seconds = result.step_seconds;
    memcpy(result.team.of[0].copied_bytes, result.copied_bytes, sizeof(result.copied_bytes));
    *simulation = result;
    return TDM_OK;
}

/* ---- a whole program ---- */

static enum tdm_status take_item(void *self, const struct tdm_item *item,
                                 const struct tdm_waits *waits, struct tdm_error *err)
{
    return tdm_simulator_take(self, item, waits, err);
}

/* The second reading of a program, whose times are known. */
struct showing {
    const struct tdm_simulator *simulator;
    uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES];
    uint64_t positions[TDM_MAX_LANES];
    tdm_simulated see;
    void *self;
};

static enum tdm_status show_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct showing *showing = self;
    if (item->kind != TDM_RUN) {
        const struct tdm_buffer *buffer = &showing->simulator->program->buffers[item->buffer];
        uint64_t *live = &showing->live[buffer->place][buffer->category];
        *live = item->kind == TDM_FREE ? *live - buffer->bytes : *live + buffer->bytes;
        return TDM_OK;
    }
    const struct tdm_op *op = item->op;
    double start, end;
    tdm_simulator_times(showing->simulator, op->lane, ++showing->positions[op->lane], &start, &end);
    return showing->see(showing->self, op, start, end,
                        (const uint64_t(*)[TDM_CATEGORIES])showing->live, err);
}

enum tdm_status tdm_simulate_rank(const struct tdm_program *program, struct tdm_team_clock *clock,
                                  uint32_t member, tdm_simulated see, void *self,
                                  struct tdm_simulation *simulation, struct tdm_error *err)
{
    struct tdm_simulator *simulator = NULL;
    enum tdm_status status = tdm_simulator_new(program, see != NULL, &simulator, err);
    if (status == TDM_OK) {
        simulator->clock = clock;
        simulator->member = member;
        status = tdm_order_emit(program, take_item, simulator, err);
    }
    if (status == TDM_OK)
        status = tdm_simulator_finish(simulator, simulation, err);
    if (status == TDM_OK && see != NULL) {
        struct showing showing = {.simulator = simulator, .see = see, .self = self};
        status = tdm_program_emit(program, show_item, &showing, err);
    }
    tdm_simulator_free(simulator);
    return status;
}

enum tdm_status tdm_simulate(const struct tdm_program *program, tdm_simulated see, void *self,
                             struct tdm_simulation *simulation, struct tdm_error *err)
{
    if (program->ranks > 1)
        return tdm_simulate_team(program, see, &self, see == NULL ? 0 : 1, simulation, err);
    return tdm_simulate_rank(program, NULL, 0, see, self, simulation, err);
}
