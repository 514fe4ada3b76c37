/* SPDX-License-Identifier: Apache-2.0 */
/* The first planner: recipes by rising estimated time, lowered and simulated until none can win. */
#include "planner/candidates.h"

#include "base/size.h"
#include "planner/recipes.h"
#include "schedule/validate.h"

#include <stdlib.h>
#include <string.h>

/* Effort: ops lowered and simulated after a first schedule was found. About two seconds. */
#define MOST_OPS 12000000u

/* Estimates that are this close to the least are not worth lowering when the least memory is sought. */
#define NEAR 0.9995

const char *tdm_attention_store_name(enum tdm_attention_store store)
{
    static const char *const names[TDM_ATTENTION_STORES] = {"none", "held", "kept"};
    return names[store];
}

void tdm_pins_free(struct tdm_pins *pins)
{
    free(pins->groups);
    pins->groups = NULL;
    pins->group_count = 0;
}

/* Recipes in a heap: the one to be looked at next is first. */
struct queue {
    struct tdm_recipe *recipes;
    size_t count, room;
    int place; /* by bytes of this place, or by seconds if it is TDM_PLACES */
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

/* A search under way. */
struct run {
    struct tdm_kitchen kitchen;
    struct queue queue;
    uint64_t limit_bytes[TDM_PLACES];
    struct tdm_search_counts counts;
    uint64_t ops;
    bool no_memory;
};

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
                                const uint64_t limit_bytes[TDM_PLACES], int queue_place,
                                struct run *run, struct tdm_error *err)
{
    *run = (struct run){.queue = {.place = queue_place}};
    memcpy(run->limit_bytes, limit_bytes, sizeof(run->limit_bytes));
    enum tdm_status status =
        tdm_kitchen_open(schedule, pins, queue_place < TDM_PLACES, &run->kitchen, err);
    if (status != TDM_OK)
        return status;
    tdm_recipes_enumerate(&run->kitchen, take_recipe, run);
    return run->no_memory ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates") : TDM_OK;
}

static void run_close(struct run *run)
{
    free(run->queue.recipes);
    tdm_kitchen_close(&run->kitchen);
}

/* Writes and lowers a recipe, and says what it uses. */
static enum tdm_status lower(struct run *run, const struct tdm_recipe *recipe,
                             struct tdm_program **program, uint64_t used_bytes[TDM_PLACES],
                             struct tdm_error *err)
{
    struct tdm_schedule *schedule = run->kitchen.schedule;
    tdm_recipe_write(&run->kitchen, recipe);
    enum tdm_status status = tdm_schedule_check(schedule, "plan", err);
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, program, err);
    if (status != TDM_OK)
        return status;
    run->counts.lowered++;
    run->ops += (*program)->op_count;
    for (int place = 0; place < TDM_PLACES; place++)
        used_bytes[place] =
            tdm_size_add((*program)->arena_bytes[place], schedule->machine->runtime_bytes[place]);
    return TDM_OK;
}

/* Packing took more than the estimate: the recipe comes again with less to spend, if it still fits. */
static bool push_again(struct run *run, struct tdm_recipe *recipe,
                       const uint64_t used_bytes[TDM_PLACES])
{
    if (!recipe->kept)
        return true;
    for (int place = 0; place < TDM_PLACES; place++)
        if (used_bytes[place] > run->limit_bytes[place])
            recipe->reserve[place] =
                tdm_size_add(recipe->reserve[place], used_bytes[place] - run->limit_bytes[place]);
    uint32_t before = recipe->kept_from_chunk;
    if (!tdm_recipe_estimate(&run->kitchen, recipe, run->limit_bytes) ||
        recipe->kept_from_chunk == before)
        return true;
    return queue_push(&run->queue, recipe);
}

/* Lowers, and simulates if it fits; keeps it if it is the fastest so far. */
static enum tdm_status try_recipe(struct run *run, struct tdm_recipe *recipe,
                                  struct tdm_recipe *best, struct tdm_simulation *best_simulation,
                                  struct tdm_error *err)
{
    struct tdm_program *program;
    struct tdm_simulation simulation;
    uint64_t used_bytes[TDM_PLACES];
    enum tdm_status status = lower(run, recipe, &program, used_bytes, err);
    if (status != TDM_OK)
        return status;
    if (used_bytes[TDM_DEVICE] > run->limit_bytes[TDM_DEVICE] ||
        used_bytes[TDM_HOST] > run->limit_bytes[TDM_HOST]) {
        if (!push_again(run, recipe, used_bytes))
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates");
    } else {
        status = tdm_simulate(program, NULL, NULL, &simulation, err);
        run->counts.simulated++;
        if (status == TDM_OK && (run->counts.simulated == 1 ||
                                 simulation.step_seconds < best_simulation->step_seconds)) {
            *best = *recipe;
            *best_simulation = simulation;
        }
    }
    tdm_program_free(program);
    return status;
}

/* A last check by what did not take part in the choice. */
static enum tdm_status validate(struct run *run, const struct tdm_recipe *best,
                                struct tdm_error *err)
{
    struct tdm_program *program;
    uint64_t used_bytes[TDM_PLACES], capacity_bytes[TDM_PLACES];
    enum tdm_status status = lower(run, best, &program, used_bytes, err);
    if (status != TDM_OK)
        return status;
    for (int place = 0; place < TDM_PLACES; place++)
        capacity_bytes[place] =
            run->limit_bytes[place] - run->kitchen.schedule->machine->runtime_bytes[place];
    struct tdm_error reason;
    status = tdm_program_validate(program, capacity_bytes, &reason);
    if (status != TDM_OK)
        status = tdm_fail(err, status == TDM_NO_MEMORY ? status : TDM_INTERNAL,
                          "the schedule found is not valid: %s", reason.message);
    tdm_program_free(program);
    return status;
}

enum tdm_status tdm_candidates_search(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                      struct tdm_search *search, struct tdm_error *err)
{
    const uint64_t limit_bytes[TDM_PLACES] = {schedule->memory_bytes, schedule->host_memory_bytes};
    struct run run;
    struct tdm_recipe best;
    struct tdm_simulation simulation = {0};
    enum tdm_status status = run_open(schedule, pins, limit_bytes, TDM_PLACES, &run, err);
    if (status != TDM_OK)
        goto close;
    run.counts.complete = true;
    while (run.queue.count > 0 && status == TDM_OK) {
        bool found = run.counts.simulated > 0;
        if (found && run.queue.recipes[0].seconds >= simulation.step_seconds) {
            run.counts.too_slow = run.queue.count;
            break;
        }
        if (found && run.ops > MOST_OPS) {
            run.counts.complete = false;
            break;
        }
        struct tdm_recipe recipe = queue_pop(&run.queue);
        status = try_recipe(&run, &recipe, &best, &simulation, err);
    }
    search->counts = run.counts;
    search->simulation = simulation;
    if (status == TDM_OK && run.counts.simulated == 0)
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");
    if (status == TDM_OK)
        status = validate(&run, &best, err);

close:
    run_close(&run);
    return status;
}

enum tdm_status tdm_candidates_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t *bytes, struct tdm_error *err)
{
    uint64_t limit_bytes[TDM_PLACES] = {schedule->memory_bytes, schedule->host_memory_bytes};
    limit_bytes[place] = TDM_SIZE_MAX;
    struct run run;
    uint64_t least = TDM_SIZE_MAX;
    enum tdm_status status = run_open(schedule, pins, limit_bytes, (int)place, &run, err);
    while (status == TDM_OK && run.queue.count > 0) {
        struct tdm_recipe recipe = queue_pop(&run.queue);
        if ((double)recipe.bytes[place] >= NEAR * (double)least)
            break;
        struct tdm_program *program;
        uint64_t used_bytes[TDM_PLACES];
        status = lower(&run, &recipe, &program, used_bytes, err);
        if (status != TDM_OK)
            break;
        tdm_program_free(program);
        enum tdm_place other = place == TDM_DEVICE ? TDM_HOST : TDM_DEVICE;
        if (used_bytes[other] <= limit_bytes[other] && used_bytes[place] < least)
            least = used_bytes[place];
    }
    run_close(&run);
    if (status != TDM_OK)
        return status;
    if (least == TDM_SIZE_MAX)
        return tdm_fail(err, TDM_INFEASIBLE, "no schedule fits the memory of the %s",
                        tdm_place_name(place == TDM_DEVICE ? TDM_HOST : TDM_DEVICE));
    *bytes = least;
    return TDM_OK;
}
