/* SPDX-License-Identifier: Apache-2.0 */
/* Simulator: event times on the lanes, live bytes by place and category. */
#include "simulator/simulate.h"

#include "ops/move.h"
#include "ops/team.h"
#include "schedule/cost.h"
#include "simulator/team.h"

#include <stdlib.h>
#include <string.h>

/* Less than this is rounding: equal work in another order. */
#define LEAST_WAIT_SECONDS 1e-9

struct tdm_simulator {
    const struct tdm_program *program;
    const struct tdm_machine *machine;
    const struct tdm_topology *topology; /* of the machine */
    double *end_seconds[TDM_MAX_LANES];  /* [op_count] by position on the lane */
    double lane_free[TDM_MAX_LANES];
    double link_free[TDM_MAX_LINKS];
    uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES];
    uint64_t live_total[TDM_MAX_PLACES];
    uint64_t live_lists, live_means; /* page lists and page means, which are on the device */
    uint64_t next_op;
    struct tdm_team_clock *clock; /* NULL: no other ranks are simulated */
    uint32_t member;
    tdm_simulated see;
    void *self;
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

static void note_work(struct tdm_simulator *s, const struct tdm_op *op, double seconds)
{
    struct tdm_simulation *result = &s->result;
    result->busy_seconds[op->lane] += seconds;
    result->kind_seconds[op->kind] += seconds;
    result->flops += (double)op->flops;
    if (op->lane == TDM_LANE_COMPUTE)
        result->phase_seconds[op->phase] += seconds;
    if (op->kind == TDM_OP_ATTENTION)
        result->attention_forward_flops += (double)op->flops;
    if (op->kind == TDM_OP_COPY || (TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0) {
        uint64_t bytes =
            op->kind == TDM_OP_COPY ? op->access[TDM_COPY_FROM].bytes : op->fetched_bytes;
        result->copied_bytes[op->lane] += bytes;
        if (op->link != TDM_NO_LINK) {
            result->links[op->link].bytes += bytes;
            result->links[op->link].seconds += seconds;
        }
    }
    if (op->kind == TDM_OP_PRODUCT || op->kind == TDM_OP_PRODUCT_GRAD_INPUT ||
        op->kind == TDM_OP_PRODUCT_GRAD_WEIGHT || op->part == TDM_PART_HEAD)
        result->product_flops += (double)op->flops;
}

/* Links, as bits by number, on which a copy is under way at a time. */
static uint32_t links_busy(const struct tdm_simulator *s, double seconds)
{
    uint32_t busy = 0;
    for (uint32_t link = 0; link < s->topology->link_count; link++)
        if (s->link_free[link] > seconds)
            busy |= 1u << link;
    return busy;
}

enum tdm_status tdm_simulator_new(const struct tdm_program *program, tdm_simulated see, void *self,
                                  struct tdm_simulator **out, struct tdm_error *err)
{
    struct tdm_simulator *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a simulator");
    s->program = program;
    s->machine = program->schedule->machine;
    s->topology = &s->machine->topology;
    s->see = see;
    s->self = self;
    s->result.op_count = program->op_count;
    s->result.team.ranks = program->ranks;
    enum tdm_status status = TDM_OK;
    for (uint32_t lane = 0; lane < s->topology->lane_count && status == TDM_OK; lane++) {
        s->end_seconds[lane] = malloc((program->op_count + 1) * sizeof(double));
        if (s->end_seconds[lane] == NULL)
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu ops",
                              (unsigned long long)program->op_count);
    }
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
    for (uint32_t lane = 0; lane < s->topology->lane_count; lane++)
        free(s->end_seconds[lane]);
    free(s);
}

void tdm_simulator_join(struct tdm_simulator *s, struct tdm_team_clock *clock, uint32_t member)
{
    s->clock = clock;
    s->member = member;
}

/* A team op that the rank is ready for at *seconds: sets it to when all ranks are. */
static enum tdm_status meet(struct tdm_simulator *s, const struct tdm_op *op, double *seconds,
                            struct tdm_error *err)
{
    struct tdm_rank_use *use = &s->result.team.of[0];
    double ready = *seconds;
    uint32_t last = s->member;
    use->received_bytes += op->fetched_bytes;
    use->sent_bytes += op->sent_bytes;
    enum tdm_status status =
        s->clock == NULL ? TDM_OK : tdm_team_clock_meet(s->clock, s->member, seconds, &last, err);
    if (status == TDM_OK && *seconds - ready > LEAST_WAIT_SECONDS) {
        use->wait_seconds += *seconds - ready;
        if (last < TDM_SIMULATED_RANKS)
            use->wait_for_seconds[last] += *seconds - ready;
    }
    return status;
}

enum tdm_status tdm_simulator_take(struct tdm_simulator *s, const struct tdm_item *item,
                                   const struct tdm_waits *waits, struct tdm_error *err)
{
    if (item->kind != TDM_RUN) {
        note_live(s, item);
        return TDM_OK;
    }

    const struct tdm_op *op = item->op;
    double start = s->lane_free[op->lane], of_peers = 0;
    for (uint32_t lane = 0; lane < s->topology->lane_count; lane++)
        if (waits->lane_position[lane] > 0) {
            double end = s->end_seconds[lane][waits->lane_position[lane] - 1];
            if (lane == TDM_LANE_PEER)
                of_peers = end;
            else
                start = larger(start, end);
        }
    if (op->lane == TDM_LANE_COMPUTE && of_peers > start)
        s->result.team.of[0].exposed_seconds += of_peers - start;
    start = larger(start, of_peers);
    bool of_team = (TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0;
    double begin = start; /* of the work itself */
    enum tdm_status status = of_team ? meet(s, op, &begin, err) : TDM_OK;
    if (status != TDM_OK)
        return status;
    double seconds = tdm_op_seconds(s->machine, op, links_busy(s, begin));
    double end = begin + seconds;
    s->end_seconds[op->lane][waits->position - 1] = end;
    s->lane_free[op->lane] = end;
    if (!s->topology->lanes[op->lane].computes && op->link != TDM_NO_LINK)
        s->link_free[op->link] = end;
    s->next_op = op->number + 1;
    note_work(s, op, seconds);
    if (of_team)
        s->result.team.of[0].team_seconds += seconds;
    else if (op->lane == TDM_LANE_COMPUTE)
        s->result.team.of[0].compute_seconds += seconds;
    return s->see == NULL ? TDM_OK : s->see(s->self, op, start, end, s->live, err);
}

void tdm_simulator_finish(const struct tdm_simulator *s, struct tdm_simulation *simulation)
{
    struct tdm_simulation result = s->result;
    for (uint32_t lane = 0; lane < s->topology->lane_count; lane++)
        if (lane != TDM_LANE_PEER)
            result.step_seconds = larger(result.step_seconds, s->lane_free[lane]);
    if (s->lane_free[TDM_LANE_PEER] > result.step_seconds) {
        result.team.of[0].exposed_seconds += s->lane_free[TDM_LANE_PEER] - result.step_seconds;
        result.step_seconds = s->lane_free[TDM_LANE_PEER];
    }
    double stall = s->lane_free[TDM_LANE_COMPUTE] - result.busy_seconds[TDM_LANE_COMPUTE];
    result.stall_seconds = stall > LEAST_WAIT_SECONDS ? stall : 0;
    for (uint32_t place = 0; place < s->topology->place_count; place++) {
        uint64_t runtime = s->topology->places[place].runtime_bytes;
        result.arena_bytes[place] = s->program->arena_bytes[place];
        result.used_peak_bytes[place] =
            s->program->arena_bytes[place] *
                tdm_schedule_sharers(s->program->schedule, (enum tdm_place)place) +
            runtime;
        result.peak_categories[place][TDM_RUNTIME] = runtime;
        result.category_peaks[place][TDM_RUNTIME] = runtime;
    }
    result.kinds = s->program->kinds;
    result.team.simulated = 1;
    result.team.of[0].rank = s->program->rank;
    result.team.of[0].step_seconds = result.step_seconds;
    memcpy(result.team.of[0].copied_bytes, result.copied_bytes, sizeof(result.copied_bytes));
    *simulation = result;
}

static enum tdm_status take_item(void *self, const struct tdm_item *item,
                                 const struct tdm_waits *waits, struct tdm_error *err)
{
    return tdm_simulator_take(self, item, waits, err);
}

enum tdm_status tdm_simulate(const struct tdm_program *program, tdm_simulated see, void *self,
                             struct tdm_simulation *simulation, struct tdm_error *err)
{
    struct tdm_simulator *simulator = NULL;
    if (program->ranks > 1)
        return tdm_simulate_team(program, see, &self, see == NULL ? 0 : 1, simulation, err);
    enum tdm_status status = tdm_simulator_new(program, see, self, &simulator, err);
    if (status == TDM_OK)
        status = tdm_order_emit(program, take_item, simulator, err);
    if (status == TDM_OK)
        tdm_simulator_finish(simulator, simulation);
    tdm_simulator_free(simulator);
    return status;
}
