/* SPDX-License-Identifier: Apache-2.0 */
/* The search: computes bounds, then lowers and simulates candidates in order of rising estimated
 * time, until none can win. */
#include "planner/candidates.h"

#include "base/size.h"
#include "planner/recipes.h"
#include "planner/relaxation.h"
#include "planner/rounding.h"
#include "schedule/validate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Effort limits: ops lowered and simulated for roundings; as many for recipes after a first
 * schedule was found; and again for polishing. One core does about five million a second. */
#define MOST_OPS 3000000u
#define MOST_SOLUTIONS 60u   /* of one linear program */
#define TOLERANCE 3e-4       /* of its bound */
#define QUICK_PARTS 8u       /* divides the effort for recipes, for `quick` */
#define SMALL_OPS 600u       /* of a small step */
#define WIDE_GAP 0.05        /* from this gap on polishing gets its full effort, */
#define DEEP_GAP 0.01        /* the same for longer searches of roundings, */
#define LEAST_EFFORT 0.2     /* and at the bound this share of it */
#define QUICK_ESTIMATES 800u /* of one rounding, */
#define GRID_ESTIMATES 600u  /* of the best one of an order and chunk size, */
#define GRID_TRAVELLED 0u    /* and points of its walk */
#define MOST_TRAVELLED 10000u
#define MOST_ESTIMATES 8000u /* and of each of the most promising ones */
#define MOST_DEEPENED 4u     /* of them, at one place of updates, */
#define DEEPENED_OF_KIND 1u  /* and of one order and chunk size */
#define TOO_SLOW 1.06        /* likely cost over the best step; deepening and polishing gain less */
#define FREE_GIB 1e6         /* a GiB that saves less than this share of the step counts as free */
#define COPIES 0.01          /* rounding.h; raised where the simulator finds stalls: */
#define STALLED 1.003        /* simulated over estimated */
#define FREE_SLOTS 2u        /* of a ring of state: enough that copies do not wait */
#define MOST_MENDED 3u       /* retries of a rounding because packing took more than estimated */
#define NO_BOUND 1e300
#define ESTIMATES_LOG2 16u /* estimates remembered in a search */
#define MEASURED_LOG2 12u  /* and simulations remembered while polishing */

/* When the minimum memory is sought, estimates this close to the minimum are not lowered. */
#define NEAR 0.9995

const char *tdm_attention_store_name(enum tdm_attention_store store)
{
    static const char *const names[TDM_ATTENTION_STORES] = {"none", "held", "kept"};
    return names[store];
}

const char *tdm_heuristic_name(enum tdm_heuristic heuristic)
{
    static const char *const names[TDM_HEURISTICS] = {"enumeration", "rounding", "structure",
                                                      "fine", "polish"};
    return names[heuristic];
}

void tdm_pins_free(struct tdm_pins *pins)
{
    free(pins->groups);
    pins->groups = NULL;
    pins->group_count = 0;
}

/* A heap of recipes: the next one to examine is first. */
struct queue {
    struct tdm_recipe *recipes;
    size_t count, room;
    int place; /* sorted by bytes of this place, or by seconds if TDM_PLACES */
};

static bool goes_before(const struct queue *queue, const struct tdm_recipe *a,
                        const struct tdm_recipe *b)
{
    if (queue->place < TDM_PLACES) {
        if (a->bytes[queue->place] != b->bytes[queue->place])
            return a->bytes[queue->place] < b->bytes[queue->place];
    } else if (a->seconds < b->seconds || a->seconds > b->seconds) {
        return a->seconds < b->seconds;
    }
    return a->number < b->number;
}

static bool queue_push(struct queue *queue, const struct tdm_recipe *recipe)
{
    if (queue->count == queue->room) {
        size_t room = queue->room == 0 ? 1024 : queue->room * 2;
        struct tdm_recipe *moved = realloc(queue->recipes, room * sizeof(*moved));
        if (moved == NULL)
            return false;
        queue->recipes = moved;
        queue->room = room;
    }
    size_t at = queue->count++;
    for (; at > 0; at = (at - 1) / 2) {
        struct tdm_recipe *parent = &queue->recipes[(at - 1) / 2];
        if (!goes_before(queue, recipe, parent))
            break;
        queue->recipes[at] = *parent;
    }
    queue->recipes[at] = *recipe;
    return true;
}

static struct tdm_recipe queue_pop(struct queue *queue)
{
    struct tdm_recipe first = queue->recipes[0];
    struct tdm_recipe last = queue->recipes[--queue->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= queue->count)
            break;
        if (child + 1 < queue->count &&
            goes_before(queue, &queue->recipes[child + 1], &queue->recipes[child]))
            child++;
        if (!goes_before(queue, &queue->recipes[child], &last))
            break;
        queue->recipes[at] = queue->recipes[child];
        at = child;
    }
    queue->recipes[at] = last;
    return first;
}

/* Result of a tried schedule: its step time (TDM_UNMEASURED: it did not fit) and the effort. */
struct measured {
    double step_seconds;
    uint64_t ops;
};

/* State of a search. */
struct run {
    struct tdm_kitchen kitchen;
    struct queue queue;
    uint64_t limit_bytes[TDM_MAX_PLACES];
    struct tdm_search_counts counts;
    uint64_t ops;
    bool no_memory;

    struct tdm_rounded *rounded; /* [rounded_count], those that fit */
    /* how many of them were searched longer, and of each order and chunk size */
    uint32_t all_deepened, deepened[TDM_ORDERS][TDM_BASES];
    double ratio[TDM_ORDERS][TDM_BASES]; /* ratio_of() */
    uint32_t rounded_count;
    enum tdm_place on; /* place of updates in the current pass over the two places */
    double bound_of[TDM_MAX_PLACES],
        bound_seconds;          /* with updates at each place; the minimum of both */
    struct tdm_relaxed binding; /* the solution that sets bound_seconds */
    /* For each order and chunk size: a lower bound on all schedules; whether its linear program is
     * deferred until the best schedule found is slower than this bound */
    double floor_seconds[TDM_ORDERS][TDM_BASES];
    bool is_put_off[TDM_ORDERS][TDM_BASES];
    /* The same bound, or that of its program, less the savings of sets richer than those of the
     * search; NO_BOUND: not examined */
    double least_seconds[TDM_ORDERS][TDM_BASES];
    struct tdm_relaxation *last[TDM_ORDERS]; /* warm starts for the next programs */
    bool program_written;                    /* for --write-lp */

    enum tdm_status status; /* of the last measurement while polishing */
    struct tdm_error err;
    bool found;
    /* for each order and chunk size; `fits`: one was found */
    struct tdm_rounded best[TDM_ORDERS * TDM_BASES];
    const struct tdm_rounded *winner; /* one of these, or `grown` */
    struct tdm_rounded grown;         /* the winner with a larger LM-head tile */
    double other_seconds; /* of the fastest schedule with updates at the other place; 0: none */
    struct tdm_simulation simulation; /* of the winner */
    uint64_t most_ops;                /* limit while polishing */
    struct tdm_memo *measured; /* results of neighbours while polishing; NULL: not remembered */
};

static bool switched_off(const struct run *run, enum tdm_heuristic heuristic)
{
    return (run->kitchen.pins->without >> heuristic) & 1;
}

static bool take_recipe(void *self, const struct tdm_recipe *offered)
{
    struct run *run = self;
    struct tdm_recipe recipe = *offered;
    run->counts.examined++;
    if (!tdm_recipe_estimate(&run->kitchen, &recipe, run->limit_bytes))
        run->counts.too_large++;
    else if (!queue_push(&run->queue, &recipe))
        run->no_memory = true;
    return !run->no_memory;
}

static enum tdm_status run_open(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                const uint64_t limit_bytes[TDM_MAX_PLACES], int queue_place,
                                struct run *run, struct tdm_error *err)
{
    *run = (struct run){.queue = {.place = queue_place},
                        .bound_of = {NO_BOUND, NO_BOUND},
                        .bound_seconds = NO_BOUND};
    memcpy(run->limit_bytes, limit_bytes, sizeof(run->limit_bytes));
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++)
        run->least_seconds[i / TDM_BASES][i % TDM_BASES] = NO_BOUND;
    enum tdm_status status =
        tdm_kitchen_open(schedule, pins, queue_place < TDM_PLACES, &run->kitchen, err);
    if (status != TDM_OK)
        return status;
    if (schedule->pass == TDM_TRAIN && queue_place == TDM_PLACES) {
        run->kitchen.estimates = tdm_memo_new(sizeof(struct tdm_estimate), ESTIMATES_LOG2);
        run->measured = tdm_memo_new(sizeof(struct measured), MEASURED_LOG2);
    }
    /* one for every order, chunk size and rounding, and one per chunk size for variants of the
     * winner */
    run->rounded =
        calloc((size_t)TDM_BASES * (TDM_ORDERS * TDM_ROUNDINGS + 1), sizeof(*run->rounded));
    bool ok = run->rounded != NULL;
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++) {
        struct tdm_rounded *best = &run->best[i];
        best->groups = calloc((size_t)schedule->model->layers + 1, sizeof(*best->groups));
        ok = ok && best->groups != NULL;
    }
    if (!ok)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates");
    return TDM_OK;
}

/* Enumerates recipes with updates at run->on. */
static enum tdm_status enumerate(struct run *run, struct tdm_error *err)
{
    tdm_recipes_enumerate(&run->kitchen, run->on, take_recipe, run);
    return run->no_memory ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates") : TDM_OK;
}

static void run_close(struct run *run)
{
    for (uint32_t i = 0; i < run->rounded_count; i++)
        tdm_rounded_free(&run->rounded[i]);
    free(run->rounded);
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++)
        tdm_rounded_free(&run->best[i]);
    free(run->queue.recipes);
    tdm_memo_free(run->measured);
    for (int order = 0; order < TDM_ORDERS; order++)
        tdm_relaxation_free(run->last[order]);
    tdm_kitchen_close(&run->kitchen);
}

/* ---- bounds and roundings ---- */

/* Does a base update units at the place of the current pass? */
static bool is_due(const struct run *run, uint32_t size)
{
    return run->kitchen.bases[size].optimizer.on == run->on;
}

/* False if pins fix what rounding moves: then only recipes are candidates. */
static bool may_round(const struct run *run)
{
    const struct tdm_pins *pins = run->kitchen.pins;
    return !switched_off(run, TDM_ROUNDING) && !pins->has_attention && !pins->has_input_place &&
           !pins->has_kept_place && !pins->has_held_place && !pins->has_kv &&
           pins->kept_set == TDM_SET_INPUT && pins->held_set == TDM_SET_INPUT &&
           pins->kept_from_unit == TDM_SPLIT_FREE && pins->kv_place == TDM_DEVICE &&
           pins->kv_gradients_place == TDM_DEVICE;
}

/* Homes that must not move: pinned ones; all of them if updates run on the host. */
static void fixed_homes(const struct run *run, uint32_t size, bool fixed[TDM_STATES])
{
    bool host = run->kitchen.bases[size].optimizer.on == TDM_HOST;
    for (int state = 0; state < TDM_STATES; state++)
        fixed[state] = host || run->kitchen.pins->has_home[state];
}

static struct tdm_rounding_limits rounding_limits(const struct run *run, uint32_t size)
{
    const struct tdm_pins *pins = run->kitchen.pins;
    struct tdm_rounding_limits limits = {.fixed_groups = pins->group_count > 0,
                                         .no_structure = switched_off(run, TDM_STRUCTURE),
                                         .no_fine = switched_off(run, TDM_FINE),
                                         .most_estimates = QUICK_ESTIMATES,
                                         .richest = TDM_SEARCHED_SET,
                                         .copies = COPIES};
    memcpy(limits.bytes, run->limit_bytes, sizeof(limits.bytes));
    limits.fixed_rings = pins->has_rings;
    fixed_homes(run, size, limits.fixed_homes);
    return limits;
}

/* Improves a schedule stored after the rounded ones. Adds it to them if it fits; else frees its
 * groups. */
static enum tdm_status improve_new(struct run *run, const struct tdm_rounding_limits *limits,
                                   struct tdm_rounded *rounded, struct tdm_error *err)
{
    enum tdm_status status = tdm_improve(&run->kitchen, limits, rounded, err);
    if (status == TDM_OK && rounded->fits)
        run->rounded_count++;
    else
        tdm_rounded_free(rounded);
    return status;
}

static enum tdm_status round_one(struct run *run, enum tdm_order order, uint32_t size,
                                 struct tdm_relaxation *relaxation,
                                 const struct tdm_relaxed *relaxed, enum tdm_rounding rounding,
                                 struct tdm_error *err)
{
    struct tdm_rounded *rounded = &run->rounded[run->rounded_count];
    const struct tdm_rounding_limits limits = rounding_limits(run, size);
    enum tdm_status status =
        tdm_round(&run->kitchen, size, order, relaxation, relaxed, rounding, rounded, err);
    if (status != TDM_OK)
        return status;
    if (rounded->group_count == 0) {
        tdm_rounded_free(rounded);
        return TDM_OK;
    }
    return improve_new(run, &limits, rounded, err);
}

/* The only allowed list of groups, or NULL. */
static const struct tdm_group_list *pinned_list(const struct tdm_kitchen *kitchen)
{
    return kitchen->pins->group_count > 0 ? &kitchen->lists.lists[0] : NULL;
}

static void note_least(struct run *run, int order, uint32_t size, double seconds)
{
    const struct tdm_pins *pins = run->kitchen.pins;
    bool may_be_richer = may_round(run) || !tdm_set_covers(TDM_SEARCHED_SET, pins->kept_set) ||
                         !tdm_set_covers(TDM_SEARCHED_SET, pins->held_set);
    double saves = may_be_richer ? tdm_estimator_richer_seconds(run->kitchen.estimators[size]) : 0;
    run->least_seconds[order][size] = fmax(seconds - saves, 0);
}

/* Improves the best rounding of an order and chunk size from a grid of homes. Solutions of the
 * program hardly tell one home from another, and single moves seldom lead to the best ones. */
static enum tdm_status try_grid(struct run *run, enum tdm_order order, uint32_t size,
                                struct tdm_error *err)
{
    struct tdm_rounding_limits limits = rounding_limits(run, size);
    struct tdm_rounded *best = NULL;
    for (uint32_t i = 0; i < run->rounded_count; i++) {
        struct tdm_rounded *of = &run->rounded[i];
        if (of->size == size && of->order == order && of->fits &&
            (best == NULL || of->cost < best->cost))
            best = of;
    }
    limits.grid = true;
    limits.most_estimates = GRID_ESTIMATES;
    limits.travelled = GRID_TRAVELLED;
    return best == NULL ? TDM_OK : tdm_improve(&run->kitchen, &limits, best, err);
}

/* The bound of an order and chunk size, and schedules rounded from it. If the program is too large
 * for the solver, as with a model of hundreds of layers, no bound is known. */
static enum tdm_status relax_one(struct run *run, enum tdm_order order, uint32_t size,
                                 struct tdm_error *err)
{
    const struct tdm_kitchen *kitchen = &run->kitchen;
    const struct tdm_pins *pins = kitchen->pins;
    struct tdm_relaxation *relaxation, **last = &run->last[order];
    struct tdm_relaxed relaxed;
    bool fixed[TDM_STATES];
    fixed_homes(run, size, fixed);
    enum tdm_status status = tdm_relaxation_new(kitchen->estimators[size], order, run->limit_bytes,
                                                fixed, pinned_list(kitchen), &relaxation, err);
    double *bound = &run->bound_of[kitchen->bases[size].optimizer.on];
    if (status == TDM_INTERNAL) {
        *bound = run->bound_seconds = 0;
        return TDM_OK;
    }
    if (status != TDM_OK)
        return status;
    if (*last != NULL)
        tdm_relaxation_warm(relaxation, *last);
    status = tdm_relaxation_solve(relaxation, *bound, TOLERANCE, MOST_SOLUTIONS, &relaxed, err);
    if (status != TDM_OK) {
        tdm_relaxation_free(relaxation);
        return status;
    }
    run->counts.programs++;
    note_least(run, order, size, relaxed.bound_seconds);
    if (relaxed.bound_seconds < *bound)
        *bound = relaxed.bound_seconds;
    if (relaxed.bound_seconds < run->bound_seconds) {
        run->bound_seconds = relaxed.bound_seconds;
        run->binding = relaxed;
        if (pins->program_path != NULL)
            status = tdm_relaxation_write(relaxation, pins->program_path, err);
        run->program_written = true;
    }
    for (int rounding = 0; rounding < TDM_ROUNDINGS && status == TDM_OK; rounding++) {
        if (!relaxed.solved || !may_round(run) || (rounding == TDM_NEAR && fixed[0]) ||
            (rounding == TDM_FAR &&
             relaxed.device_seconds_per_gib * FREE_GIB >= relaxed.bound_seconds))
            continue;
        status =
            round_one(run, order, size, relaxation, &relaxed, (enum tdm_rounding)rounding, err);
    }
    if (status == TDM_OK)
        status = try_grid(run, order, size, err);
    tdm_relaxation_free(*last);
    *last = relaxation;
    return status;
}

/* Chunk sizes by rising forward time: the first one most likely has the lowest bound. */
static void sort_sizes(const struct tdm_kitchen *kitchen, uint32_t sizes[TDM_BASES])
{
    double seconds[TDM_BASES];
    for (uint32_t i = 0; i < kitchen->size_count; i++) {
        double time = tdm_estimator_forward_seconds(kitchen->estimators[i]);
        uint32_t at = i;
        for (; at > 0 && seconds[at - 1] > time; at--) {
            seconds[at] = seconds[at - 1];
            sizes[at] = sizes[at - 1];
        }
        seconds[at] = time;
        sizes[at] = i;
    }
}

static bool may_have(const struct run *run, int order)
{
    const struct tdm_pins *pins = run->kitchen.pins;
    return !pins->has_order || (int)pins->order == order;
}

/* Computes a floor, below which no schedule is, for each order and chunk size with updates at
 * run->on. *least: the minimum of them, or NO_BOUND if there are none. */
static enum tdm_status find_floors(struct run *run, double *least, struct tdm_error *err)
{
    const struct tdm_kitchen *kitchen = &run->kitchen;
    *least = NO_BOUND;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < kitchen->size_count; size++) {
            double *floor_seconds = &run->floor_seconds[order][size];
            bool fixed[TDM_STATES];
            if (!is_due(run, size) || !may_have(run, order))
                continue;
            fixed_homes(run, size, fixed);
            enum tdm_status status = tdm_relaxation_floor(
                kitchen->estimators[size], (enum tdm_order)order, run->limit_bytes, fixed,
                pinned_list(kitchen), floor_seconds, err);
            if (status == TDM_INTERNAL) /* too large for the solver */
                *floor_seconds = 0;
            else if (status != TDM_OK)
                return status;
            *least = fmin(*least, *floor_seconds);
            note_least(run, order, size, *floor_seconds);
        }
    return TDM_OK;
}

/* Updates move to the host only if the step becomes faster by this factor: simulated times are not
 * more exact. If the bound rules that out, the host is not searched. */
#define WORTH_THE_HOST 1.005

/* Could a schedule of an order and chunk size be faster than the best so far, or lower the
 * bound? */
static bool size_could_win(const struct run *run, int order, uint32_t size)
{
    double floor_seconds = run->floor_seconds[order][size];
    if (run->other_seconds > 0 && WORTH_THE_HOST * floor_seconds >= run->other_seconds &&
        floor_seconds >= run->bound_seconds)
        return false;
    return !run->found || floor_seconds < run->simulation.step_seconds;
}

/* The minimum likely time of the roundings with updates at run->on, or NO_BOUND. */
static double promised_seconds(const struct run *run)
{
    double least = NO_BOUND;
    for (uint32_t i = 0; i < run->rounded_count; i++)
        if (run->rounded[i].fits && is_due(run, run->rounded[i].size))
            least = fmin(least, run->rounded[i].likely_seconds);
    return least;
}

#define CLEARLY_SLOWER 1.02

/* Solves the programs of all orders and chunk sizes with updates at run->on. Defers those whose
 * floor is clearly slower than an existing rounding. */
static enum tdm_status relax(struct run *run, struct tdm_error *err)
{
    uint32_t sizes[TDM_BASES];
    enum tdm_status status = TDM_OK;
    sort_sizes(&run->kitchen, sizes);
    for (int order = 0; order < TDM_ORDERS; order++) {
        tdm_relaxation_free(run->last[order]);
        run->last[order] = NULL;
        for (uint32_t i = 0; i < run->kitchen.size_count && may_have(run, order); i++) {
            if (!is_due(run, sizes[i]) || status != TDM_OK)
                continue;
            if (run->floor_seconds[order][sizes[i]] > CLEARLY_SLOWER * promised_seconds(run) ||
                !size_could_win(run, order, sizes[i]))
                run->is_put_off[order][sizes[i]] = true;
            else
                status = relax_one(run, (enum tdm_order)order, sizes[i], err);
        }
    }
    return status;
}

/* ---- candidates ---- */

/* Lowers the kitchen's schedule and reports its used bytes. `quick`: packing stops once it is
 * within the limits. */
static enum tdm_status lower(struct run *run, bool quick, struct tdm_program **program,
                             uint64_t used_bytes[TDM_MAX_PLACES], struct tdm_error *err)
{
    struct tdm_schedule *schedule = run->kitchen.schedule;
    uint64_t capacity_bytes[TDM_MAX_PLACES] = {0};
    for (int place = 0; place < TDM_PLACES; place++) {
        uint64_t runtime = schedule->machine->topology.places[place].runtime_bytes;
        uint64_t limit = run->limit_bytes[place];
        capacity_bytes[place] = limit > runtime ? limit - runtime : 0;
    }
    enum tdm_status status = tdm_schedule_check(schedule, "plan", err);
    if (status == TDM_OK)
        status = quick ? tdm_program_lower_within(schedule, capacity_bytes, program, err)
                       : tdm_program_lower(schedule, program, err);
    if (status != TDM_OK)
        return status;
    run->counts.lowered++;
    run->ops += (*program)->op_count;
    for (int place = 0; place < TDM_PLACES; place++)
        used_bytes[place] = tdm_size_add((*program)->arena_bytes[place],
                                         schedule->machine->topology.places[place].runtime_bytes);
    return TDM_OK;
}

static bool within(const struct run *run, const uint64_t used_bytes[TDM_MAX_PLACES])
{
    for (int place = 0; place < TDM_PLACES; place++)
        if (used_bytes[place] > run->limit_bytes[place])
            return false;
    return true;
}

/* Bytes that packing took beyond an estimate are reserved the next time. */
static void add_reserve(const struct run *run, const uint64_t used_bytes[TDM_MAX_PLACES],
                        const uint64_t estimated_bytes[TDM_MAX_PLACES],
                        uint64_t reserve[TDM_MAX_PLACES])
{
    for (int place = 0; place < TDM_PLACES; place++)
        if (used_bytes[place] > run->limit_bytes[place])
            reserve[place] = used_bytes[place] -
                             (reserve[place] == 0 ? run->limit_bytes : estimated_bytes)[place];
}

/* Lowers the kitchen's schedule with the large tile, and if that is not within the limits, with the
 * safe one. */
static enum tdm_status lower_with(struct run *run, const struct tdm_tiles *tiles,
                                  struct tdm_program **program, uint64_t used_bytes[TDM_MAX_PLACES],
                                  struct tdm_error *err)
{
    run->kitchen.schedule->head_tile_tokens = tiles->large;
    enum tdm_status status = lower(run, true, program, used_bytes, err);
    if (status != TDM_OK || tiles->large == tiles->safe || within(run, used_bytes))
        return status;
    tdm_program_free(*program);
    run->kitchen.schedule->head_tile_tokens = tiles->safe;
    return lower(run, true, program, used_bytes, err);
}

/* Lowers and simulates the kitchen's schedule with one of two tiles; keeps it if it is the fastest
 * so far of its order and chunk size. *fits: it was within the limits and takes *step_seconds; else
 * `used_bytes` shows the excess. */
static enum tdm_status try_schedule(struct run *run, uint32_t size, const struct tdm_tiles *tiles,
                                    bool *fits, uint64_t used_bytes[TDM_MAX_PLACES],
                                    double *step_seconds, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = run->kitchen.schedule;
    struct tdm_program *program;
    struct tdm_simulation simulation;
    enum tdm_status status = lower_with(run, tiles, &program, used_bytes, err);
    if (status != TDM_OK)
        return status;
    *fits = within(run, used_bytes);
    if (*fits) {
        status = tdm_simulate(program, NULL, NULL, &simulation, err);
        run->counts.simulated++;
        *step_seconds = simulation.step_seconds;
    }
    tdm_program_free(program);
    struct tdm_rounded *best = &run->best[schedule->order * TDM_BASES + size];
    if (status != TDM_OK || !*fits || (best->fits && simulation.step_seconds >= best->seconds))
        return status;
    struct tdm_group *groups = best->groups;
    memcpy(groups, schedule->groups, schedule->group_count * sizeof(*groups));
    *best = (struct tdm_rounded){.size = size,
                                 .order = schedule->order,
                                 .group_count = schedule->group_count,
                                 .groups = groups,
                                 .rings = schedule->rings,
                                 .tiles = {schedule->head_tile_tokens, schedule->head_tile_tokens},
                                 .seconds = simulation.step_seconds,
                                 .fits = true};
    memcpy(best->homes, schedule->homes, sizeof(best->homes));
    if (!run->found || simulation.step_seconds < run->simulation.step_seconds) {
        run->simulation = simulation;
        run->winner = best;
        run->found = true;
    }
    return TDM_OK;
}

/* A schedule this close to the bound needs no improvement. */
#define ENOUGH (1 + 1e-5)

static bool could_win(const struct run *run, double seconds)
{
    double best = run->simulation.step_seconds;
    double bound = run->bound_of[run->on];
    bool done = bound < NO_BOUND && best <= ENOUGH * bound;
    return !run->found || (seconds < best && !done);
}

/* Simulated over likely seconds of the last simulated schedule of an order and chunk size; 0: none
 * was simulated. */
static double *ratio_of(struct run *run, const struct tdm_rounded *rounded)
{
    return &run->ratio[rounded->order][rounded->size];
}

/* The likely cost of a rounding, corrected by simulations of its kind. */
static double corrected_cost(struct run *run, const struct tdm_rounded *rounded)
{
    double ratio = *ratio_of(run, rounded);
    return ratio > 0 ? ratio * rounded->cost : rounded->cost;
}

/* The nearer the best schedule is to the bound, the less there is to gain. */
static double share_of_effort(const struct run *run, double wide_gap)
{
    double bound = run->bound_of[run->on];
    double gap =
        run->found && bound > 0 && bound < NO_BOUND ? run->simulation.step_seconds / bound - 1 : 1;
    return fmin(fmax(gap / wide_gap, LEAST_EFFORT), 1);
}

static bool may_deepen(const struct run *run, const struct tdm_rounded *rounded)
{
    return !rounded->deepened &&
           run->all_deepened < MOST_DEEPENED * share_of_effort(run, DEEP_GAP) &&
           run->deepened[rounded->order][rounded->size] < DEEPENED_OF_KIND;
}

/* A lower bound on what a rounding is or, if it is searched longer, becomes. */
static double least_of(const struct run *run, const struct tdm_rounded *rounded)
{
    return may_deepen(run, rounded) ? run->floor_seconds[rounded->order][rounded->size]
                                    : rounded->seconds;
}

/* The best step so far; once something was found, with updates at any place. */
static double best_seconds(const struct run *run)
{
    double seconds = run->found ? run->simulation.step_seconds : NO_BOUND;
    return run->found && run->other_seconds > 0 ? fmin(seconds, run->other_seconds) : seconds;
}

/* Among the roundings that could win, the one with the lowest corrected cost, or NULL. */
static struct tdm_rounded *fastest_rounded(struct run *run)
{
    const double most = TOO_SLOW * best_seconds(run);
    struct tdm_rounded *fastest = NULL;
    for (uint32_t i = 0; i < run->rounded_count; i++) {
        struct tdm_rounded *rounded = &run->rounded[i];
        double cost = corrected_cost(run, rounded);
        if (rounded->fits && is_due(run, rounded->size) && cost < most &&
            could_win(run, least_of(run, rounded)) &&
            (fastest == NULL || cost < corrected_cost(run, fastest)))
            fastest = rounded;
    }
    return fastest;
}

/* Simulates a rounding. If packing takes more than estimated, searches it again with less memory.
 * If the compute lane stalls more than a rough estimate says, searches it again with dearer copies.
 * The result waits for its next turn. */
static enum tdm_status try_one(struct run *run, struct tdm_rounded *rounded, struct tdm_error *err)
{
    static const double dearer[] = {1, 10, 50, 200};
    struct tdm_rounding_limits limits = rounding_limits(run, rounded->size);
    uint64_t used_bytes[TDM_MAX_PLACES];
    double step_seconds, estimated = rounded->likely_seconds;
    bool fits, rough = !tdm_estimator_knows_lanes(run->kitchen.estimators[rounded->size]);
    tdm_rounded_write(&run->kitchen, rounded);
    enum tdm_status status =
        try_schedule(run, rounded->size, &rounded->tiles, &fits, used_bytes, &step_seconds, err);
    if (status != TDM_OK)
        return status;
    rounded->simulated = fits;
    if (fits)
        *ratio_of(run, rounded) = step_seconds / estimated;
    if (!fits) {
        add_reserve(run, used_bytes, rounded->bytes, rounded->reserve);
        rounded->mended++;
        limits.no_structure = true;
    } else if (rough && step_seconds >= STALLED * estimated) {
        rounded->dearer++;
    } else {
        return TDM_OK;
    }
    if (rounded->mended > MOST_MENDED || rounded->dearer == sizeof(dearer) / sizeof(dearer[0])) {
        rounded->fits = false; /* finished */
        return TDM_OK;
    }
    rounded->simulated = false;
    limits.copies = COPIES * dearer[rounded->dearer];
    /* with one slot, a fetch waits until the previous content was sent, and delays the chunks'
     * copies */
    if (rounded->dearer > 0 && !limits.fixed_rings && rounded->rings.optimizer < FREE_SLOTS) {
        rounded->rings.optimizer = FREE_SLOTS;
        limits.fixed_rings = true;
    }
    memcpy(limits.reserve, rounded->reserve, sizeof(limits.reserve));
    return tdm_improve(&run->kitchen, &limits, rounded, err);
}

/* Searches longer from a rounding. */
static enum tdm_status deepen(struct run *run, struct tdm_rounded *rounded, struct tdm_error *err)
{
    struct tdm_rounding_limits limits = rounding_limits(run, rounded->size);
    limits.most_estimates = (unsigned)(MOST_ESTIMATES * share_of_effort(run, DEEP_GAP));
    limits.deep = limits.grid = true;
    limits.travelled = (unsigned)(MOST_TRAVELLED * share_of_effort(run, DEEP_GAP));
    memcpy(limits.reserve, rounded->reserve, sizeof(limits.reserve));
    rounded->deepened = true;
    rounded->simulated = false;
    run->deepened[rounded->order][rounded->size]++;
    run->all_deepened++;
    return tdm_improve(&run->kitchen, &limits, rounded, err);
}

/* Is a rounding like one that was simulated? */
static bool is_known(const struct run *run, const struct tdm_rounded *rounded)
{
    const struct tdm_memo_key key = tdm_rounded_key(rounded);
    for (uint32_t i = 0; i < run->rounded_count; i++) {
        const struct tdm_rounded *other = &run->rounded[i];
        struct tdm_memo_key known = tdm_rounded_key(other);
        if (other != rounded && other->simulated && memcmp(&known, &key, sizeof(key)) == 0)
            return true;
    }
    return false;
}

/* Simulates the roundings, the most promising one first. Of each order and chunk size, first one as
 * it is, which shows how far estimates are off; then the best ones are searched longer. */
static enum tdm_status try_rounded(struct run *run, struct tdm_error *err)
{
    struct tdm_rounded *rounded;
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && (rounded = fastest_rounded(run)) != NULL && run->ops < MOST_OPS)
        if (*ratio_of(run, rounded) > 0 && may_deepen(run, rounded))
            status = deepen(run, rounded, err);
        else if (!rounded->simulated && !is_known(run, rounded))
            status = try_one(run, rounded, err);
        else
            rounded->fits = false; /* finished */
    return status;
}

/* Converts a split to another chunk size. */
static void scale_split(enum tdm_set *set, uint32_t *from, uint32_t chunks, uint32_t to_chunks)
{
    *from = (uint32_t)(((uint64_t)*from * to_chunks + chunks / 2) / chunks);
    if (*from >= to_chunks)
        *set = TDM_SET_INPUT;
}

/* Improves the winner with another chunk size. A schedule found for one chunk size is a good start
 * for others, sometimes better than their own. */
static enum tdm_status vary_size(struct run *run, uint32_t size, struct tdm_error *err)
{
    const struct tdm_kitchen *kitchen = &run->kitchen;
    const struct tdm_rounded *from = run->winner;
    const struct tdm_rounding_limits limits = rounding_limits(run, size);
    struct tdm_rounded *rounded = &run->rounded[run->rounded_count];
    uint32_t chunks = tdm_estimator_chunks(kitchen->estimators[from->size]);
    uint32_t to_chunks = tdm_estimator_chunks(kitchen->estimators[size]);
    struct tdm_group *groups =
        calloc((size_t)kitchen->schedule->model->layers + 1, sizeof(*groups));
    if (groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    *rounded = *from;
    rounded->size = size;
    rounded->deepened = rounded->simulated = false;
    rounded->groups = groups;
    memcpy(groups, from->groups, from->group_count * sizeof(*groups));
    for (uint32_t g = 0; g < from->group_count; g++) {
        scale_split(&groups[g].kept, &groups[g].kept_from_chunk, chunks, to_chunks);
        scale_split(&groups[g].held, &groups[g].held_from_chunk, chunks, to_chunks);
    }
    return improve_new(run, &limits, rounded, err);
}

/* Among the deferred programs that could still win, the one with the lowest floor. */
static bool next_put_off(const struct run *run, int *order, uint32_t *size)
{
    double least = NO_BOUND;
    for (int o = 0; o < TDM_ORDERS; o++)
        for (uint32_t i = 0; i < run->kitchen.size_count; i++)
            if (run->is_put_off[o][i] && is_due(run, i) && size_could_win(run, o, i) &&
                run->floor_seconds[o][i] < least) {
                least = run->floor_seconds[o][i];
                *order = o;
                *size = i;
            }
    return least < NO_BOUND;
}

static enum tdm_status try_put_off(struct run *run, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    int order;
    uint32_t size;
    while (status == TDM_OK && next_put_off(run, &order, &size)) {
        run->is_put_off[order][size] = false;
        status = relax_one(run, (enum tdm_order)order, size, err);
        if (status == TDM_OK)
            status = try_rounded(run, err);
    }
    return status;
}

static enum tdm_status try_other_sizes(struct run *run, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    const struct tdm_rounded *from = run->winner;
    if (!run->found || !may_round(run) || !is_due(run, from->size) || !could_win(run, 0))
        return TDM_OK;
    for (uint32_t size = 0; size < run->kitchen.size_count && status == TDM_OK; size++)
        if (size != from->size && is_due(run, size) && size_could_win(run, (int)from->order, size))
            status = vary_size(run, size, err);
    run->ops = 0;
    return status == TDM_OK ? try_rounded(run, err) : status;
}

static enum tdm_status try_recipe(struct run *run, struct tdm_recipe *recipe, struct tdm_error *err)
{
    uint64_t used_bytes[TDM_MAX_PLACES];
    double step_seconds;
    bool fits;
    tdm_recipe_write(&run->kitchen, recipe);
    enum tdm_status status =
        try_schedule(run, recipe->size, &recipe->tiles, &fits, used_bytes, &step_seconds, err);
    if (status != TDM_OK || fits || !recipe->kept)
        return status;
    /* queued again with a larger reserve, if it still fits */
    uint32_t before = recipe->kept_from_chunk;
    add_reserve(run, used_bytes, recipe->bytes, recipe->reserve);
    if (tdm_recipe_estimate(&run->kitchen, recipe, run->limit_bytes) &&
        recipe->kept_from_chunk != before && !queue_push(&run->queue, recipe))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates");
    return status;
}

static enum tdm_status try_recipes(struct run *run, struct tdm_error *err)
{
    const uint64_t most_ops = run->kitchen.pins->quick ? MOST_OPS / QUICK_PARTS : MOST_OPS;
    enum tdm_status status = TDM_OK;
    run->ops = 0;
    while (run->queue.count > 0 && status == TDM_OK) {
        if (!could_win(run, run->queue.recipes[0].seconds)) {
            run->counts.too_slow += run->queue.count;
            break;
        }
        if (run->found && run->ops > most_ops) {
            run->counts.complete = false;
            break;
        }
        struct tdm_recipe recipe = queue_pop(&run->queue);
        status = try_recipe(run, &recipe, err);
    }
    return status;
}

/* Moves state that is not pinned to the host, except where it is updated there. */
static void stream_state(struct run *run)
{
    struct tdm_kitchen *kitchen = &run->kitchen;
    for (uint32_t i = 0; i < kitchen->size_count; i++) {
        struct tdm_schedule *base = &kitchen->bases[i];
        if (base->optimizer.on == TDM_HOST)
            continue;
        for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
            if (!kitchen->pins->has_home[state])
                base->homes[state] = (struct tdm_home){0, TDM_HOST, TDM_HOST};
        tdm_estimator_set_state(kitchen->estimators[i], base->homes, &base->rings);
    }
}

/* Counts a remembered schedule as effort and as tried, so that a memo does not change the
 * result. */
static void count_again(struct run *run, const struct measured *measured)
{
    run->ops += measured->ops;
    run->counts.lowered++;
    run->counts.simulated += measured->step_seconds < TDM_UNMEASURED;
}

static bool measure(void *self, const struct tdm_rounded *rounded, double *seconds)
{
    struct run *run = self;
    struct measured measured;
    const struct tdm_memo_key key = tdm_rounded_key(rounded);
    uint64_t used_bytes[TDM_MAX_PLACES], before = run->ops;
    bool fits;
    *seconds = TDM_UNMEASURED;
    if (run->ops + run->simulation.op_count > run->most_ops || !could_win(run, 0))
        return false;
    if (tdm_memo_find(run->measured, key, &measured)) {
        count_again(run, &measured);
        *seconds = measured.step_seconds;
        return true;
    }
    tdm_rounded_write(&run->kitchen, rounded);
    run->status =
        try_schedule(run, rounded->size, &rounded->tiles, &fits, used_bytes, seconds, &run->err);
    measured = (struct measured){.step_seconds = *seconds, .ops = run->ops - before};
    if (run->status == TDM_OK)
        tdm_memo_note(run->measured, key, &measured);
    return run->status == TDM_OK;
}

/* Times the best with updates at the other place. A guess: the rest of a search seldom gains more
 * than a few percent. */
#define FAR_BEHIND 1.1

static bool is_far_behind(const struct run *run)
{
    return run->found && run->other_seconds > 0 &&
           run->simulation.step_seconds > FAR_BEHIND * run->other_seconds;
}

/* Sets all groups of a point to one set at one place. K and V are on the device, on the host, or on
 * the host for the lower half of the groups. */
static void start_over(struct tdm_rounded *point, unsigned start)
{
    for (uint32_t g = 0; g < point->group_count; g++) {
        struct tdm_group *group = &point->groups[g];
        group->kept = (enum tdm_set)(TDM_SET_ATTENTION_OUTPUT + start % 3);
        group->kept_from_chunk = 0;
        group->kept_place = start / 3 % 2 == 0 ? TDM_DEVICE : TDM_HOST;
        bool far = start / 6 % 3 == 1 || (start / 6 % 3 == 2 && 2 * g + 1 < point->group_count);
        group->kv_place = far ? TDM_HOST : TDM_DEVICE;
        group->kv = TDM_KV_KEEP;
    }
}
#define STARTS 18u
#define POLISHED 2u   /* orders and chunk sizes, */
#define PARTS 4u      /* each with this part of the effort */
#define HOPELESS 1.03 /* times the best; slower ones are not polished */

/* The best of an order (TDM_ORDERS: of any) among those not polished yet, or NULL. */
static const struct tdm_rounded *best_of(const struct run *run, int order, const bool *polished)
{
    const struct tdm_rounded *best = NULL;
    for (unsigned i = 0; i < TDM_ORDERS * TDM_BASES; i++) {
        const struct tdm_rounded *of = &run->best[i];
        if (of->fits && is_due(run, of->size) && (order == TDM_ORDERS || (int)of->order == order) &&
            (polished == NULL || !polished[i]) && (best == NULL || of->seconds < best->seconds))
            best = of;
    }
    return best;
}

/* Copies with separate groups, which the caller frees. False: out of memory. */
static bool copy_rounded(const struct run *run, const struct tdm_rounded *from,
                         struct tdm_rounded *copy)
{
    *copy = *from;
    copy->groups = calloc((size_t)run->kitchen.schedule->model->layers + 1, sizeof(*copy->groups));
    if (copy->groups == NULL)
        return false;
    memcpy(copy->groups, from->groups, copy->group_count * sizeof(*copy->groups));
    return true;
}

/* Is a step so small that simulations are cheap, and waits inside bodies matter? */
static bool is_small(const struct run *run)
{
    return run->simulation.op_count < SMALL_OPS;
}

/* Searches the neighbours of a point by simulation. `start` above 0: begins at the variant of the
 * point that start_over() makes, in `order`. */
static enum tdm_status polish_point(struct run *run, const struct tdm_rounded *from,
                                    enum tdm_order order, unsigned start, enum tdm_set richest,
                                    struct tdm_error *err)
{
    struct tdm_rounding_limits limits = rounding_limits(run, from->size);
    struct tdm_rounded point;
    limits.richest = richest;
    limits.doubtful = is_small(run);
    if (!copy_rounded(run, from, &point))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    point.order = order;
    if (start > 0)
        start_over(&point, start - 1);
    enum tdm_status status =
        tdm_polish(&run->kitchen, &limits, &point, start > 0 ? TDM_UNMEASURED : point.seconds,
                   measure, run, err);
    tdm_rounded_free(&point);
    if (status == TDM_OK && run->status != TDM_OK)
        *err = run->err;
    return status == TDM_OK ? run->status : status;
}

/* Ops that polishing may simulate. */
static uint64_t polishing_ops(const struct run *run)
{
    return (uint64_t)(MOST_OPS * share_of_effort(run, WIDE_GAP));
}

/* Polishes small steps from other starting points of each order too. */
static enum tdm_status polish_starts(struct run *run, enum tdm_set richest, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    const uint64_t most_ops = polishing_ops(run);
    if (!is_small(run))
        return TDM_OK;
    run->most_ops = most_ops / 4;
    for (int order = 0; order < TDM_ORDERS; order++) {
        run->ops = 0;
        for (unsigned start = 1; start <= STARTS && run->ops < most_ops / 8; start++) {
            const struct tdm_rounded *best = best_of(run, order, NULL);
            if (best == NULL)
                best = best_of(run, TDM_ORDERS, NULL);
            if (best != NULL && status == TDM_OK && may_have(run, order) && could_win(run, 0))
                status = polish_point(run, best, (enum tdm_order)order, start, richest, err);
        }
    }
    return status;
}

/* Polishes the best few orders and chunk sizes by simulation, as far as the effort allows; then
 * calls polish_starts(). */
static enum tdm_status polish(struct run *run, struct tdm_error *err)
{
    bool polished[TDM_ORDERS * TDM_BASES] = {false};
    enum tdm_status status = TDM_OK;
    const struct tdm_rounded *best;
    if (!may_round(run) || switched_off(run, TDM_POLISH) || run->kitchen.pins->quick ||
        is_far_behind(run))
        return TDM_OK;
    run->most_ops = polishing_ops(run) / PARTS;
    for (unsigned i = 0; i < POLISHED && status == TDM_OK && could_win(run, 0); i++) {
        run->ops = 0;
        best = best_of(run, TDM_ORDERS, polished);
        if (best == NULL || best->seconds > HOPELESS * best_seconds(run))
            break;
        polished[best - run->best] = true;
        status = polish_point(run, best, best->order, 0, TDM_SEARCHED_SET, err);
    }
    return status == TDM_OK ? polish_starts(run, TDM_SEARCHED_SET, err) : status;
}

/* Sets richer than those of the search must save this share of a step to be worth their bytes:
 * simulated times are not more exact. */
#define WORTH_RICHER 0.001

/* A lower bound on schedules with any sets. */
static double bound_of_all(const struct run *run)
{
    double least = NO_BOUND;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (uint32_t size = 0; size < run->kitchen.size_count; size++)
            least = fmin(least, run->least_seconds[order][size]);
    /* 0: a program was too large for the solver, or none was made */
    return run->bound_seconds > 0 && least < NO_BOUND ? least : 0;
}

static enum tdm_status enrich_point(struct run *run, const struct tdm_rounded *from,
                                    struct tdm_error *err)
{
    struct tdm_rounding_limits limits = rounding_limits(run, from->size);
    struct tdm_rounded point;
    limits.richest = TDM_SETS - 1;
    limits.doubtful = is_small(run);
    if (!copy_rounded(run, from, &point))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    run->ops = 0;
    enum tdm_status status =
        tdm_enrich(&run->kitchen, &limits, &point, point.seconds, measure, run, err);
    tdm_rounded_free(&point);
    if (status == TDM_OK && run->status != TDM_OK)
        *err = run->err;
    return status == TDM_OK ? run->status : status;
}

/* Are richer sets worth a search? If the schedule keeps all searched sets already, richer sets use
 * the memory that is left. Otherwise a byte saves more time for what is not kept yet, and richer
 * sets are tried only if they could save this share of a step. */
#define MAYBE_WORTH_RICHER 0.01

static bool may_enrich(const struct run *run)
{
    const struct tdm_rounded *winner = run->winner;
    bool keeps_all = true;
    for (uint32_t g = 0; g < winner->group_count; g++)
        keeps_all = keeps_all && winner->groups[g].kept == TDM_SEARCHED_SET &&
                    winner->groups[g].kept_from_chunk == 0;
    return keeps_all || tdm_estimator_richer_seconds(run->kitchen.estimators[winner->size]) >=
                            MAYBE_WORTH_RICHER * run->simulation.step_seconds;
}

/* The last phase: tries richer sets on the fastest schedule of each order. */
static enum tdm_status enrich(struct run *run, struct tdm_error *err)
{
    const struct tdm_simulation simulation = run->simulation;
    struct tdm_rounded poorer;
    enum tdm_status status = TDM_OK;
    if (!run->found || !may_round(run) || !may_enrich(run))
        return TDM_OK;
    if (!copy_rounded(run, run->winner, &poorer))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    run->on = run->kitchen.bases[poorer.size].optimizer.on;
    run->bound_of[run->on] = bound_of_all(run);
    run->most_ops = MOST_OPS / 8;
    for (int order = 0; order < TDM_ORDERS && status == TDM_OK; order++) {
        const struct tdm_rounded *best = best_of(run, order, NULL);
        if (best != NULL)
            status = enrich_point(run, best, err);
    }
    if (status == TDM_OK)
        status = polish_starts(run, TDM_SETS - 1, err);
    if (run->simulation.step_seconds > (1 - WORTH_RICHER) * simulation.step_seconds) {
        struct tdm_rounded *was = &run->best[poorer.order * TDM_BASES + poorer.size];
        tdm_rounded_copy(was, &poorer);
        run->winner = was;
        run->simulation = simulation;
    }
    tdm_rounded_free(&poorer);
    return status;
}

/* Gives the winner a larger LM-head tile if memory is left after packing: the gradient of the
 * head's weights is read and written once per tile. */
static enum tdm_status grow_tile(struct run *run, struct tdm_error *err)
{
    const uint64_t most = run->kitchen.bases[run->winner->size].head_tile_tokens;
    enum tdm_status status = TDM_OK;
    bool grows = run->kitchen.pins->head_tile_tokens == 0;
    run->grown = *run->winner; /* shares the winner's groups */
    while (grows && run->grown.tiles.safe < most) {
        struct tdm_rounded larger = run->grown;
        struct tdm_program *program;
        struct tdm_simulation simulation;
        uint64_t used_bytes[TDM_MAX_PLACES];
        larger.tiles.safe = tdm_size_mul(2, larger.tiles.safe);
        if (larger.tiles.safe > most)
            larger.tiles.safe = most;
        tdm_rounded_write(&run->kitchen, &larger);
        status = lower(run, true, &program, used_bytes, err);
        if (status != TDM_OK)
            break;
        grows = within(run, used_bytes);
        if (grows) {
            status = tdm_simulate(program, NULL, NULL, &simulation, err);
            run->counts.simulated++;
            grows = status == TDM_OK && simulation.step_seconds < run->simulation.step_seconds;
        }
        tdm_program_free(program);
        if (grows) {
            run->grown = larger;
            run->simulation = simulation;
            run->winner = &run->grown;
        }
    }
    return status;
}

/* Packs the winner completely, which stays within the limits (program.h), and simulates it again.
 * Unless pins disable it, validates the program with code that took no part in the choice. */
static enum tdm_status validate(struct run *run, struct tdm_error *err)
{
    struct tdm_program *program;
    uint64_t used_bytes[TDM_MAX_PLACES], capacity_bytes[TDM_MAX_PLACES] = {0};
    tdm_rounded_write(&run->kitchen, run->winner);
    enum tdm_status status = lower(run, false, &program, used_bytes, err);
    if (status != TDM_OK)
        return status;
    for (int place = 0; place < TDM_PLACES; place++)
        capacity_bytes[place] =
            run->limit_bytes[place] -
            run->kitchen.schedule->machine->topology.places[place].runtime_bytes;
    struct tdm_error reason;
    if (!run->kitchen.pins->unchecked)
        status = tdm_program_validate(program, capacity_bytes, &reason);
    if (status == TDM_OK) /* complete packing changes offsets, and with them waits */
        status = tdm_simulate(program, NULL, NULL, &run->simulation, err);
    else
        status = tdm_fail(err, status == TDM_NO_MEMORY ? status : TDM_INTERNAL,
                          "the schedule found is not valid: %s", reason.message);
    tdm_program_free(program);
    return status;
}

/* Validates the winner; uses the larger tile only if it is no slower after complete packing. */
static enum tdm_status validate_best(struct run *run, struct tdm_error *err)
{
    const struct tdm_rounded *winner = run->winner;
    enum tdm_status status = grow_tile(run, err);
    if (status != TDM_OK || run->winner == winner)
        return status == TDM_OK ? validate(run, err) : status;
    run->winner = winner;
    status = validate(run, err);
    const double seconds = run->simulation.step_seconds;
    run->winner = &run->grown;
    if (status == TDM_OK)
        status = validate(run, err);
    if (status != TDM_OK || run->simulation.step_seconds <= seconds)
        return status;
    run->winner = winner;
    return validate(run, err);
}

/* Sets the bound. Without a linear program, the best recipe is the bound if the estimates of all
 * recipes were examined. */
static void say_bound(const struct run *run, bool trains, struct tdm_search *search)
{
    double step = run->simulation.step_seconds;
    search->bound_seconds = trains ? bound_of_all(run) : run->counts.complete ? step : 0;
    if (search->bound_seconds > step) /* nothing that fits is faster */
        search->bound_seconds = step;
    search->gap = search->bound_seconds > 0 ? step / search->bound_seconds - 1 : 0;
    search->binding = run->binding;
}

/* State that is not pinned starts on the device, whatever an earlier search found; on the host if
 * updates run there. TDM_USAGE: host updates are requested and homes do not allow them. */
static enum tdm_status forget_homes(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                    struct tdm_error *err)
{
    if (!pins->has_update_place)
        schedule->optimizer.on = TDM_DEVICE;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        if (!pins->has_home[state])
            schedule->homes[state] =
                (struct tdm_home){schedule->model->layers, TDM_DEVICE, TDM_DEVICE};
    if (!pins->has_rings)
        schedule->rings = (struct tdm_rings)TDM_DEFAULT_RINGS;
    if (schedule->optimizer.on == TDM_HOST &&
        !tdm_host_homes(schedule, pins, schedule->homes, err)) {
        err->status = TDM_USAGE;
        return TDM_USAGE;
    }
    return TDM_OK;
}

/* True: the best schedule takes no longer than the bound, so nothing can be faster. */
static bool is_at_bound(const struct run *run)
{
    return run->found && run->simulation.step_seconds <= run->bound_of[run->on];
}

/* Tries recipes with state where the user put it. If nothing fits, moves state that is not pinned
 * to the host, as tdm_candidates_least() does. */
static enum tdm_status look_at_recipes(struct run *run, bool trains, struct tdm_error *err)
{
    if (trains && (switched_off(run, TDM_ENUMERATION) || is_at_bound(run) || is_far_behind(run)))
        return TDM_OK;
    run->queue.count = 0;
    enum tdm_status status = enumerate(run, err);
    if (status == TDM_OK)
        status = try_recipes(run, err);
    if (status != TDM_OK || run->found || !trains || run->on == TDM_HOST)
        return status;
    stream_state(run);
    status = enumerate(run, err);
    return status == TDM_OK ? try_recipes(run, err) : status;
}

/* Finds the fastest schedule with updates at run->on, independently of the other place: results
 * from there would keep this search away from points that lead to its best. */
static enum tdm_status look(struct run *run, bool trains, struct tdm_error *err)
{
    struct tdm_kitchen *kitchen = &run->kitchen;
    run->found = false;
    run->ops = 0;
    run->all_deepened = 0;
    enum tdm_status status = try_rounded(run, err);
    if (status == TDM_OK)
        status = try_put_off(run, err);
    if (status == TDM_OK)
        status = try_other_sizes(run, err);
    for (uint32_t i = 0; i < kitchen->size_count; i++)
        tdm_estimator_set_state(kitchen->estimators[i], kitchen->bases[i].homes,
                                &kitchen->bases[i].rings);
    if (status == TDM_OK)
        status = look_at_recipes(run, trains, err);
    return status == TDM_OK && trains ? polish(run, err) : status;
}

/* Searches both places of updates, or only the requested one. Computes bounds on the way. */
static enum tdm_status look_at_places(struct run *run, bool trains, bool fixed,
                                      enum tdm_place asked_on, struct tdm_error *err)
{
    const struct tdm_rounded *winner = NULL;
    struct tdm_simulation simulation = {0};
    enum tdm_status status = TDM_OK;
    const bool bounds = trains && !run->kitchen.pins->quick;
    run->counts.complete = true;
    for (int on = 0; on < TDM_PLACES && status == TDM_OK; on++) {
        double floor_seconds = 0;
        run->on = (enum tdm_place)on;
        if (fixed && run->on != asked_on)
            continue;
        if (bounds)
            status = find_floors(run, &floor_seconds, err);
        /* neither the plan nor the bound can come from this place */
        if (winner != NULL && simulation.step_seconds <= WORTH_THE_HOST * floor_seconds &&
            run->bound_seconds <= floor_seconds)
            continue;
        run->found = false;
        if (status == TDM_OK && bounds)
            status = relax(run, err);
        if (status != TDM_OK || (winner != NULL && run->bound_of[on] < NO_BOUND &&
                                 simulation.step_seconds <= WORTH_THE_HOST * run->bound_of[on]))
            continue;
        status = look(run, trains, err);
        if (run->found && (winner == NULL || WORTH_THE_HOST * run->simulation.step_seconds <=
                                                 simulation.step_seconds)) {
            winner = run->winner;
            simulation = run->simulation;
        }
        run->other_seconds = winner != NULL ? simulation.step_seconds : 0;
    }
    run->found = winner != NULL;
    run->winner = winner;
    run->simulation = simulation;
    return status;
}

/* Checks that both places together can hold the state. Otherwise the search is skipped: a model
 * that is far too large often has many layers, and a search would take long. */
static bool has_room(const struct run *run)
{
    const struct tdm_kitchen *kitchen = &run->kitchen;
    uint64_t most = tdm_size_add(run->limit_bytes[TDM_DEVICE], run->limit_bytes[TDM_HOST]);
    for (uint32_t i = 0; i < kitchen->size_count; i++)
        if (tdm_estimator_resident_bytes(kitchen->estimators[i]) <= most)
            return true;
    return kitchen->pins->program_path != NULL; /* the program is written even if nothing fits */
}

enum tdm_status tdm_candidates_search(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      struct tdm_search *search, struct tdm_error *err)
{
    const uint64_t limit_bytes[TDM_MAX_PLACES] = {schedule->memory_bytes,
                                                  schedule->host_memory_bytes};
    bool trains = schedule->pass == TDM_TRAIN;
    enum tdm_status status = forget_homes(schedule, pins, err);
    if (status != TDM_OK)
        return status;
    struct tdm_home homes[TDM_STATES];
    const struct tdm_rings rings = schedule->rings;
    const enum tdm_place asked_on = schedule->optimizer.on;
    struct run run;
    memcpy(homes, schedule->homes, sizeof(homes));
    status = run_open(schedule, pins, limit_bytes, TDM_PLACES, &run, err);
    if (status == TDM_OK && has_room(&run))
        status = look_at_places(&run, trains, pins->has_update_place || !trains, asked_on, err);
    if (status == TDM_OK && trains && !pins->quick)
        status = enrich(&run, err);
    if (status == TDM_OK && pins->program_path != NULL && !run.program_written)
        status = tdm_fail(err, TDM_INTERNAL, "%s: not written: no linear program was made",
                          pins->program_path);
    run.counts.rounded = run.rounded_count;
    run.counts.recipes_alone = trains && !switched_off(&run, TDM_ROUNDING) && !may_round(&run);
    search->counts = run.counts;
    if (status == TDM_OK && !run.found) {
        memcpy(schedule->homes, homes, sizeof(homes));
        schedule->rings = rings;
        schedule->optimizer.on = asked_on;
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");
    }
    if (status == TDM_OK)
        status = validate_best(&run, err);
    if (status == TDM_OK)
        say_bound(&run, trains, search);
    search->simulation = run.simulation;
    run_close(&run);
    return status;
}

/* Finds the minimum of `place` with updates at run->on; lowers *least. It ends as soon as it is
 * known whether the minimum is at most `enough`. */
static enum tdm_status find_least(struct run *run, enum tdm_place place, bool estimated,
                                  uint64_t enough, uint64_t *least, struct tdm_error *err)
{
    if (*least <= enough)
        return TDM_OK;
    const enum tdm_place other = place == TDM_DEVICE ? TDM_HOST : TDM_DEVICE;
    run->queue.count = 0;
    enum tdm_status status = enumerate(run, err);
    if (estimated && run->queue.count > 0 && run->queue.recipes[0].bytes[place] < *least)
        *least = run->queue.recipes[0].bytes[place];
    while (status == TDM_OK && !estimated && run->queue.count > 0) {
        struct tdm_recipe recipe = queue_pop(&run->queue);
        bool hopeless =
            enough > 0 && recipe.bytes[place] > enough; /* estimates are never too high */
        if (hopeless || *least <= enough || (double)recipe.bytes[place] >= NEAR * (double)*least)
            break;
        struct tdm_program *program;
        uint64_t used_bytes[TDM_MAX_PLACES];
        tdm_recipe_write(&run->kitchen, &recipe);
        status = lower(run, false, &program, used_bytes, err);
        if (status != TDM_OK)
            break;
        tdm_program_free(program);
        if (used_bytes[other] <= run->limit_bytes[other] && used_bytes[place] < *least)
            *least = used_bytes[place];
    }
    return status;
}

/* Tries state where the user put it, then streamed from the host, then updated on the host. */
static enum tdm_status least_anywhere(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      enum tdm_place place, bool estimated, uint64_t enough,
                                      uint64_t *bytes, struct tdm_error *err)
{
    struct tdm_home homes[TDM_STATES];
    uint64_t least = TDM_SIZE_MAX;
    enum tdm_status status = forget_homes(schedule, pins, err);
    if (status != TDM_OK)
        return status;
    const enum tdm_place asked_on = schedule->optimizer.on;
    bool trains = schedule->pass == TDM_TRAIN;
    memcpy(homes, schedule->homes, sizeof(homes));
    uint64_t limit_bytes[TDM_MAX_PLACES] = {schedule->memory_bytes, schedule->host_memory_bytes};
    limit_bytes[place] = TDM_SIZE_MAX;
    struct run run;
    status = run_open(schedule, pins, limit_bytes, (int)place, &run, err);
    run.on = asked_on;
    if (status == TDM_OK)
        status = find_least(&run, place, estimated, enough, &least, err);
    if (status == TDM_OK && trains && asked_on == TDM_DEVICE) {
        stream_state(&run);
        status = find_least(&run, place, estimated, enough, &least, err);
    }
    if (status == TDM_OK && trains && asked_on == TDM_DEVICE && !pins->has_update_place) {
        run.on = TDM_HOST;
        status = find_least(&run, place, estimated, enough, &least, err);
    }
    run_close(&run);
    memcpy(schedule->homes, homes, sizeof(homes));
    schedule->optimizer.on = asked_on;
    if (status != TDM_OK)
        return status;
    if (least == TDM_SIZE_MAX)
        return tdm_fail(err, TDM_INFEASIBLE, "no schedule fits the memory of the %s",
                        tdm_place_name(&schedule->machine->topology,
                                       place == TDM_DEVICE ? TDM_HOST : TDM_DEVICE));
    *bytes = least;
    return TDM_OK;
}

enum tdm_status tdm_candidates_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t *bytes, struct tdm_error *err)
{
    return least_anywhere(schedule, pins, place, false, 0, bytes, err);
}

enum tdm_status tdm_candidates_enough(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      enum tdm_place place, uint64_t enough, bool *is_enough,
                                      struct tdm_error *err)
{
    uint64_t bytes = TDM_SIZE_MAX;
    enum tdm_status status = least_anywhere(schedule, pins, place, false, enough, &bytes, err);
    *is_enough = status == TDM_OK && bytes <= enough;
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

enum tdm_status tdm_candidates_least_estimate(struct tdm_schedule *schedule,
                                              const struct tdm_pins *pins, enum tdm_place place,
                                              uint64_t *bytes, struct tdm_error *err)
{
    return least_anywhere(schedule, pins, place, true, 0, bytes, err);
}
