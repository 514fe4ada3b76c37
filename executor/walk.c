/* SPDX-License-Identifier: Apache-2.0 */
/* The walk: launches the items of a program on a backend. */
#include "executor/walk.h"

#include "base/clock.h"
#include "executor/finite.h"
#include "executor/team.h"
#include "ops/team.h"
#include "schedule/order.h"
#include "schedule/program.h"

#include <math.h>
#include <stdlib.h>

/* How far the walk may be ahead of the compute lane. It may always be ahead by one running op and
 * one queued op, so that the lane never runs empty. */
#define AHEAD_SECONDS 2.0
#define AHEAD_OPS 2u

/* The slowdown is measured only after this many predicted seconds of ops, and clamped, because the
 * first ops of a step may have to wait. */
#define MIN_SAMPLE_SECONDS 0.1
#define MAX_SLOWDOWN 10.0

/* Interval between two calls of the watch. */
#define LOOK_SECONDS 0.2

struct tdm_walk {
    const struct tdm_program *program;
    const struct tdm_arenas *arenas;
    struct tdm_order_tracker *order;
    struct tdm_team *team; /* NULL: one rank */
    const struct tdm_forecast *forecast;
    struct tdm_forecast *own_forecast;  /* NULL: the caller gave one */
    const struct tdm_walk_watch *watch; /* may be NULL */
    double slowdown;                    /* measured / predicted seconds, at least 1 */
    /* of the step under way */
    const struct tdm_step *step;
    struct tdm_observer *observer;
    struct tdm_finite *finite; /* of all steps; NULL: outputs are not checked */
    const volatile sig_atomic_t *stop;
    const struct tdm_walk_pauser *pauser; /* may be NULL */
    uint64_t first_op;                    /* earlier ones have been run before */
    uint64_t skipped[TDM_MAX_LANES];      /* of them */
    uint64_t launched[TDM_MAX_LANES];     /* with those that are skipped */
    uint64_t ended;                       /* of the compute lane, as last seen */
    double began, looked;                 /* seconds on a clock */
};

enum tdm_status tdm_walk_new(const struct tdm_program *program, const struct tdm_forecast *forecast,
                             const struct tdm_arenas *arenas, struct tdm_walk **out,
                             struct tdm_error *err)
{
    struct tdm_walk *walk = calloc(1, sizeof(*walk));
    if (walk == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a walk");
    walk->program = program;
    walk->arenas = arenas;
    walk->slowdown = 1;
    enum tdm_status status = tdm_order_new(program, &walk->order, err);
    if (status == TDM_OK && forecast == NULL)
        status = tdm_forecast_new(program, &walk->own_forecast, err);
    if (status != TDM_OK) {
        tdm_walk_free(walk);
        return status;
    }
    walk->forecast = forecast == NULL ? walk->own_forecast : forecast;
    *out = walk;
    return TDM_OK;
}

void tdm_walk_free(struct tdm_walk *walk)
{
    if (walk == NULL)
        return;
    tdm_forecast_free(walk->own_forecast);
    tdm_order_free(walk->order);
    free(walk);
}

void tdm_walk_watch(struct tdm_walk *walk, const struct tdm_walk_watch *watch)
{
    walk->watch = watch;
}

void tdm_walk_join(struct tdm_walk *walk, struct tdm_team *team)
{
    walk->team = team;
}

uint64_t tdm_walk_launched(const struct tdm_walk *walk)
{
    return walk->launched[TDM_LANE_COMPUTE];
}

uint64_t tdm_walk_op_bytes(void)
{
    return sizeof(struct tdm_forecast_op);
}

/* ---- how far the step is ---- */

/* Reads how many ops of a lane have ended. Waits until at least `await` have. */
static enum tdm_status see_ended(const struct tdm_walk *walk, enum tdm_lane lane, uint64_t await,
                                 uint64_t *ended, struct tdm_error *err)
{
    const struct tdm_backend *backend = walk->arenas->backend;
    const uint64_t skipped = walk->skipped[lane];
    *ended = walk->launched[lane];
    if (backend->ended == NULL)
        return TDM_OK;
    uint64_t of_backend = 0;
    enum tdm_status status = backend->ended(
        walk->arenas->executor, lane, await > skipped ? await - skipped : 0, &of_backend, err);
    *ended = skipped + of_backend;
    return status;
}

/* The same for the compute lane; also updates the slowdown. */
static enum tdm_status update(struct tdm_walk *walk, uint64_t await, struct tdm_error *err)
{
    enum tdm_status status = see_ended(walk, TDM_LANE_COMPUTE, await, &walk->ended, err);
    double predicted = tdm_forecast_seconds(walk->forecast, walk->ended);
    double seconds = tdm_now_seconds() - walk->began;
    if (predicted >= MIN_SAMPLE_SECONDS)
        walk->slowdown = fmin(fmax(seconds / predicted, 1), MAX_SLOWDOWN);
    return status;
}

/* Calls the watch if its interval has passed. */
static enum tdm_status look(struct tdm_walk *walk, struct tdm_error *err)
{
    double now = tdm_now_seconds();
    if (walk->watch == NULL || now - walk->looked < LOOK_SECONDS)
        return TDM_OK;
    walk->looked = now;
    enum tdm_status status = update(walk, 0, err);
    return status == TDM_OK
               ? walk->watch->look(walk->watch->self, walk->ended, now - walk->began, err)
               : status;
}

/* Would launching the next op of the compute lane put the walk too far ahead? */
static bool is_far_ahead(const struct tdm_walk *walk)
{
    uint64_t next = walk->launched[TDM_LANE_COMPUTE] + 1;
    double seconds = tdm_forecast_seconds(walk->forecast, next) -
                     tdm_forecast_seconds(walk->forecast, walk->ended);
    return next - walk->ended > AHEAD_OPS && seconds * walk->slowdown > AHEAD_SECONDS;
}

/* Before a launch: waits while the walk is too far ahead. */
static enum tdm_status keep_pace(struct tdm_walk *walk, const struct tdm_op *op,
                                 struct tdm_error *err)
{
    enum tdm_status status = look(walk, err);
    while (status == TDM_OK && op->lane == TDM_LANE_COMPUTE &&
           walk->arenas->backend->ended != NULL && is_far_ahead(walk)) {
        status = update(walk, walk->ended + 1, err);
        if (status == TDM_OK)
            status = look(walk, err);
    }
    return status;
}

/* After the last launch: calls the watch until all ops have ended. */
static enum tdm_status watch_end(struct tdm_walk *walk, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (walk->arenas->backend->ended == NULL)
        return TDM_OK;
    for (uint32_t lane = 0; lane < walk->program->schedule->machine->topology.lane_count; lane++)
        for (uint64_t ended = 0; ended < walk->launched[lane] && status == TDM_OK;) {
            status = see_ended(walk, (enum tdm_lane)lane, ended + 1, &ended, err);
            if (status == TDM_OK)
                status = look(walk, err);
        }
    return status;
}

/* ---- launching ---- */

void tdm_walk_pause(struct tdm_walk *walk, const struct tdm_walk_pauser *pauser)
{
    walk->pauser = pauser;
}

void tdm_walk_begin_at(struct tdm_walk *walk, uint64_t op)
{
    walk->first_op = op;
}

void tdm_walk_check(struct tdm_walk *walk, struct tdm_finite *finite)
{
    walk->finite = finite;
}

static void resolve(const struct tdm_walk *walk, const struct tdm_access *access,
                    struct tdm_operand *operand)
{
    if (access->buffer == TDM_NONE) {
        *operand = (struct tdm_operand){0};
        return;
    }
    const struct tdm_buffer *buffer = &walk->program->buffers[access->buffer];
    *operand =
        (struct tdm_operand){.data = tdm_arenas_slot(walk->arenas, buffer, access->first_slot),
                             .dtype = buffer->dtype,
                             .mode = access->mode,
                             .slots = access->slots,
                             .slot_bytes = buffer->slot_bytes};
}

static struct tdm_launch launch_of(const struct tdm_walk *walk, const struct tdm_op *op)
{
    struct tdm_launch launch = {.program = walk->program,
                                .op = op,
                                .step = walk->step,
                                .team = walk->team,
                                .scratch = tdm_arenas_scratch(walk->arenas, walk->program)};
    for (uint32_t i = 0; i < op->access_count; i++)
        resolve(walk, &op->access[i], &launch.operand[i]);
    return launch;
}

static enum tdm_status launch_op(struct tdm_walk *walk, const struct tdm_op *op,
                                 const struct tdm_waits *waits, struct tdm_error *err)
{
    const struct tdm_backend *backend = walk->arenas->backend;
    struct tdm_executor *executor = walk->arenas->executor;
    enum tdm_status status = TDM_OK;

    for (uint32_t lane = 0;
         lane < walk->program->schedule->machine->topology.lane_count && status == TDM_OK; lane++)
        if (backend->wait != NULL && waits->lane_position[lane] > 0)
            status = backend->wait(executor, op->lane, (enum tdm_lane)lane,
                                   waits->lane_position[lane], err);
    if (status != TDM_OK)
        return status;

    struct tdm_launch launch = launch_of(walk, op);
    if (walk->team != NULL)
        tdm_team_at(walk->team, walk->program->rank, op,
                    tdm_forecast_seconds(walk->forecast, walk->launched[TDM_LANE_COMPUTE]));
    if (walk->observer != NULL)
        status = tdm_observer_launch(walk->observer, &launch, err);
    if (status == TDM_OK && walk->finite != NULL)
        status = tdm_finite_before(walk->finite, &launch, err);
    if (status == TDM_OK)
        status = backend->run[op->kind](executor, &launch, err);
    if (status == TDM_OK)
        walk->launched[op->lane]++;
    if (status == TDM_OK && walk->finite != NULL)
        status = tdm_finite_after(walk->finite, &launch, err);
    return status;
}

static enum tdm_status interrupted(const struct tdm_walk *walk, const struct tdm_op *op,
                                   struct tdm_error *err)
{
    char where[TDM_WHERE_SIZE];
    return tdm_fail(err, TDM_INTERRUPTED, "interrupted in step %llu, before op %llu of %llu: %s",
                    (unsigned long long)walk->step->number, (unsigned long long)op->number + 1,
                    (unsigned long long)walk->program->op_count,
                    tdm_forecast_where(walk->program, op->phase, op->layer, op->chunk, where));
}

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct tdm_walk *walk = self;
    struct tdm_waits waits;
    if (item->kind == TDM_RUN && item->op->number < walk->first_op) { /* nothing waits for it */
        walk->skipped[item->op->lane]++;
        walk->launched[item->op->lane]++;
        walk->ended = walk->launched[TDM_LANE_COMPUTE];
        return TDM_OK;
    }
    tdm_order_push(walk->order, item, &waits);
    if (item->kind != TDM_RUN)
        return TDM_OK;
    if (walk->pauser != NULL && walk->pauser->wants(walk->pauser->self, item->op)) {
        enum tdm_status paused = watch_end(walk, err);
        if (paused == TDM_OK)
            paused = walk->pauser->pause(walk->pauser->self, item->op,
                                         tdm_now_seconds() - walk->began, err);
        if (paused != TDM_OK)
            return paused;
    }
    enum tdm_status status = keep_pace(walk, item->op, err);
    if (status != TDM_OK)
        return status;
    if (walk->stop != NULL && *walk->stop)
        return interrupted(walk, item->op, err);
    return launch_op(walk, item->op, &waits, err);
}

struct counting {
    const struct tdm_walk *walk;
    struct tdm_team_needs *needs;
};

static enum tdm_status count_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct counting *counting = self;
    const struct tdm_walk *walk = counting->walk;
    (void)err;
    if (item->kind != TDM_RUN || (TDM_TEAM_KINDS & TDM_KIND(item->op->kind)) == 0)
        return TDM_OK;
    const struct tdm_launch launch = launch_of(walk, item->op);
    tdm_team_need(&launch, tdm_team_exchange(walk->team, walk->program->rank, 0), counting->needs);
    return TDM_OK;
}

enum tdm_status tdm_walk_team_needs(struct tdm_walk *walk, struct tdm_team_needs *needs,
                                    struct tdm_error *err)
{
    struct counting counting = {walk, needs};
    *needs = (struct tdm_team_needs){.rank = walk->program->rank,
                                     .ranks = walk->program->ranks,
                                     .verbs = walk->arenas->backend->team,
                                     .executor = walk->arenas->executor};
    return tdm_program_emit(walk->program, count_item, &counting, err);
}

/* Prepares the backend for ops like this one. Team ops need all ranks, and no preparation. */
static enum tdm_status prepare_op(const struct tdm_walk *walk, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    struct tdm_launch launch = launch_of(walk, op);
    bool of_team = (TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0;
    return of_team ? TDM_OK : walk->arenas->backend->prepare(walk->arenas->executor, &launch, err);
}

enum tdm_status tdm_walk_prepare(struct tdm_walk *walk, struct tdm_error *err)
{
    const struct tdm_backend *backend = walk->arenas->backend;
    const struct tdm_step step = {.number = 1};
    if (backend->prepare == NULL)
        return TDM_OK;
    uint32_t count;
    const struct tdm_op *ops = tdm_examples_ops(walk->forecast->examples, &count);
    enum tdm_status status = TDM_OK;
    walk->step = &step;
    for (uint32_t i = 0; i < count && status == TDM_OK; i++)
        status = prepare_op(walk, &ops[i], err);
    walk->step = NULL;
    enum tdm_status finished =
        backend->finish(walk->arenas->executor, status == TDM_OK ? err : NULL);
    return status == TDM_OK ? finished : status;
}

enum tdm_status tdm_walk_step(struct tdm_walk *walk, const struct tdm_step *step,
                              struct tdm_observer *observer, const volatile sig_atomic_t *stop,
                              struct tdm_error *err)
{
    const struct tdm_backend *backend = walk->arenas->backend;
    walk->step = step;
    walk->observer = observer;
    walk->stop = stop;
    for (uint32_t lane = 0; lane < walk->program->schedule->machine->topology.lane_count; lane++)
        walk->launched[lane] = walk->skipped[lane] = 0;
    walk->ended = 0;
    walk->began = walk->looked = tdm_now_seconds();
    tdm_order_reset(walk->order);
    if (observer != NULL)
        tdm_observer_reset(observer);
    enum tdm_status status = TDM_OK;
    if (step->sequences != NULL && backend->documents != NULL)
        status = backend->documents(walk->arenas->executor, walk->program, step->sequences, err);
    if (status == TDM_OK)
        status = tdm_program_emit(walk->program, take_item, walk, err);
    if (status == TDM_OK)
        status = watch_end(walk, err);
    enum tdm_status finished =
        backend->finish == NULL
            ? TDM_OK
            : backend->finish(walk->arenas->executor, status == TDM_OK ? err : NULL);
    walk->first_op = 0;
    return status == TDM_OK ? finished : status;
}
