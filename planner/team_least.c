/* SPDX-License-Identifier: Apache-2.0 */
/* The least memory of several ranks: recipes of one rank's part, lowered for all ranks. */
#include "planner/team_least.h"

#include "base/size.h"
#include "planner/candidates_parts.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"

#include <stdlib.h>
#include <string.h>

#define MOST_LOWERED 6u /* recipes of one chunk size and one choice of where state is */
/* Estimates this close to the least, or to what is enough, are not lowered. */
#define NEAR 0.9995
#define NEAR_ENOUGH 1.01

struct list {
    struct tdm_recipe *recipes; /* lowered ones have list TDM_NONE */
    size_t count, capacity;
    bool no_memory;
};

struct least {
    struct tdm_schedule *whole; /* of all ranks: what is lowered */
    struct tdm_schedule best;   /* has only the choices of the schedule found; groups are its own */
    struct tdm_pins pins;       /* with the chunk size that is tried; groups are the caller's */
    struct tdm_search_space space; /* of one rank's part */
    struct list list;
    enum tdm_place place, other;
    uint64_t limit_bytes[TDM_MAX_PLACES]; /* of each rank */
    uint64_t enough, least;               /* the same; least TDM_SIZE_MAX: none was found */
    struct tdm_team_memo *memo;
    bool trusts; /* memo: it was filled before */
};

/* ---- between a rank's bytes and those of all ---- */

static uint64_t of_rank(const struct tdm_schedule *schedule, enum tdm_place place, uint64_t bytes)
{
    const uint64_t runtime = schedule->machine->topology.places[place].runtime_bytes;
    if (bytes == TDM_SIZE_MAX || bytes < runtime)
        return bytes;
    return runtime + (bytes - runtime) / tdm_schedule_sharers(schedule, place);
}

static uint64_t of_all(const struct tdm_schedule *schedule, enum tdm_place place, uint64_t bytes)
{
    const uint64_t runtime = schedule->machine->topology.places[place].runtime_bytes;
    return tdm_size_add(runtime, tdm_size_mul(tdm_size_left(bytes, runtime),
                                              tdm_schedule_sharers(schedule, place)));
}

/* ---- lowering ---- */

/* Copies what is chosen of a schedule of several ranks. */
static void copy_choices(struct tdm_schedule *to, const struct tdm_schedule *from)
{
    tdm_copy_choices(to, from);
    to->exchange = from->exchange;
    to->head_ranks = from->head_ranks;
    to->sliced_weights = from->sliced_weights;
}

/* Lowers s->whole. Keeps it if it takes the least. *legal: it can be lowered. */
static enum tdm_status lower(struct least *s, uint64_t used_bytes[TDM_MAX_PLACES], bool *legal,
                             struct tdm_error *err)
{
    struct tdm_error refusal;
    uint64_t arena_bytes[TDM_MAX_PLACES] = {0};
    *legal = tdm_schedule_check(s->whole, "plan", &refusal) == TDM_OK;
    if (!*legal)
        return TDM_OK;
    enum tdm_status status = tdm_program_measure(s->whole, NULL, arena_bytes, err);
    if (status != TDM_OK)
        return status;
    const enum tdm_place places[] = {s->place, s->other};
    for (int i = 0; i < TDM_PLANNED_PLACES; i++)
        used_bytes[places[i]] = tdm_size_add(
            arena_bytes[places[i]], s->whole->machine->topology.places[places[i]].runtime_bytes);
    if (used_bytes[s->other] <= s->limit_bytes[s->other] && used_bytes[s->place] < s->least) {
        s->least = used_bytes[s->place];
        copy_choices(&s->best, s->whole);
    }
    return TDM_OK;
}

/* Writes a recipe for all ranks. */
static void write(struct least *s, const struct tdm_recipe *recipe,
                  const struct tdm_team_choice *choice)
{
    const enum tdm_exchange_kind exchange = s->whole->exchange;
    tdm_recipe_write(&s->space, recipe);
    tdm_copy_choices(s->whole, s->space.schedule);
    s->whole->exchange = exchange;
    for (uint32_t i = 0; i < s->whole->group_count; i++)
        if (s->pins.kept_from_unit != TDM_SPLIT_CHUNK)
            s->whole->groups[i].kept_from_chunk *= s->whole->ranks;
    tdm_team_choose(s->whole, &s->pins, choice);
}

/* Gives s->whole the exchange with which it takes the least device memory. A ring takes long to
 * lower, and no less than where all ranks divide the heads. */
static enum tdm_status find_exchange(struct least *s, struct tdm_error *err)
{
    static const enum tdm_exchange_kind kinds[] = {TDM_EXCHANGE_GATHER, TDM_EXCHANGE_HEADS,
                                                   TDM_EXCHANGE_HEADS_GATHER,
                                                   TDM_EXCHANGE_HEADS_RING, TDM_EXCHANGE_RING};
    const uint32_t head_ranks = s->whole->head_ranks;
    enum tdm_exchange_kind best = TDM_EXCHANGE_GATHER;
    uint64_t least = TDM_SIZE_MAX;
    enum tdm_status status = TDM_OK;
    bool divided = false; /* by all ranks */
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && status == TDM_OK; i++) {
        uint64_t used_bytes[TDM_MAX_PLACES] = {0};
        bool legal = false;
        tdm_team_set_exchange(s->whole, kinds[i], 0);
        if (!tdm_team_tries_exchange(s->whole) || (divided && tdm_schedule_rings(s->whole)))
            continue;
        status = lower(s, used_bytes, &legal, err);
        divided |= legal && kinds[i] == TDM_EXCHANGE_HEADS;
        if (!legal || used_bytes[TDM_DEVICE] >= least)
            continue;
        least = used_bytes[TDM_DEVICE];
        best = kinds[i];
    }
    tdm_team_set_exchange(s->whole, best, head_ranks);
    return status;
}

/* ---- one chunk size ---- */

static bool take_recipe(void *self, const struct tdm_recipe *offered)
{
    static const uint64_t no_limits[TDM_MAX_PLACES] = {0};
    struct least *s = self;
    struct list *list = &s->list;
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity == 0 ? 256 : 2 * list->capacity;
        struct tdm_recipe *moved = realloc(list->recipes, capacity * sizeof(*moved));
        if (moved == NULL) {
            list->no_memory = true;
            return false;
        }
        list->recipes = moved;
        list->capacity = capacity;
    }
    struct tdm_recipe recipe = *offered;
    (void)tdm_recipe_estimate(&s->space, &recipe, no_limits); /* sets the bytes */
    list->recipes[list->count++] = recipe;
    return true;
}

static uint64_t corrected(uint64_t bytes, int64_t more)
{
    return more >= 0 ? tdm_size_add(bytes, (uint64_t)more) : tdm_size_left(bytes, (uint64_t)-more);
}

/* The recipe that takes the least of the place by its corrected estimate, of those within the limit
 * of the other; NULL: none is left. */
static struct tdm_recipe *next(const struct least *s, const struct tdm_team_correction *correction,
                               uint64_t *bytes)
{
    struct tdm_recipe *found = NULL;
    for (size_t i = 0; i < s->list.count; i++) {
        struct tdm_recipe *recipe = &s->list.recipes[i];
        if (recipe->list == TDM_NONE ||
            (correction->known && corrected(recipe->bytes[s->other], correction->bytes[s->other]) >
                                      s->limit_bytes[s->other]))
            continue;
        if (found == NULL || recipe->bytes[s->place] < found->bytes[s->place])
            found = recipe;
    }
    if (found != NULL)
        *bytes = corrected(found->bytes[s->place], correction->bytes[s->place]);
    return found;
}

static bool is_hopeless(const struct least *s, uint64_t bytes)
{
    return (double)bytes >= NEAR * (double)s->least ||
           (s->enough > 0 && (double)bytes > NEAR_ENOUGH * (double)s->enough);
}

/* Lowers the recipes of a list with one choice, as long as they may take less. *correction: what
 * all take more than estimated, or less. */
static enum tdm_status find_of_choice(struct least *s, const struct tdm_team_choice *choice,
                                      struct tdm_team_correction *correction, bool *has_exchange,
                                      struct tdm_error *err)
{
    bool fresh = false;
    enum tdm_status status = TDM_OK;
    for (unsigned i = 0; i < MOST_LOWERED && status == TDM_OK && s->least > s->enough; i++) {
        uint64_t used_bytes[TDM_MAX_PLACES] = {0}, bytes = 0;
        bool legal = false;
        struct tdm_recipe *recipe = next(s, correction, &bytes);
        if (recipe == NULL || (correction->known && is_hopeless(s, bytes)))
            break;
        write(s, recipe, choice);
        if (!*has_exchange)
            status = find_exchange(s, err);
        *has_exchange = true;
        if (status == TDM_OK)
            status = lower(s, used_bytes, &legal, err);
        recipe->list = TDM_NONE;
        for (int place = 0; place < (int)TDM_MAX_PLACES && legal; place++) {
            const int64_t more = (int64_t)(used_bytes[place] - recipe->bytes[place]);
            if (!fresh || more < correction->bytes[place])
                correction->bytes[place] = more;
        }
        fresh |= legal;
        correction->known |= legal;
    }
    return status;
}

/* Lists the recipes with updates at a place, and goes through the choices of ranks with them. */
static enum tdm_status find_on(struct least *s, enum tdm_place on,
                               struct tdm_team_correction corrections[2], bool *has_exchange,
                               struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int sliced = 0; sliced < 2 && status == TDM_OK && s->least > s->enough; sliced++) {
        const uint32_t slots = s->pins.gradient_slots == 0 ? 1 : s->pins.gradient_slots;
        const struct tdm_team_choice choice = {slots, sliced == 1};
        s->whole->optimizer.on = on;
        if (!tdm_team_may_choose(s->whole, &s->pins, &choice))
            continue;
        s->list.count = 0;
        tdm_recipes_enumerate(&s->space, on, take_recipe, s);
        status = s->list.no_memory
                     ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for candidates")
                     : find_of_choice(s, &choice, &corrections[sliced], has_exchange, err);
    }
    return status;
}

/* State where the user put it, then streamed from the host, then updated there. */
static enum tdm_status find_of_space(struct least *s,
                                     struct tdm_team_correction corrections[TDM_TEAM_STAGES][2],
                                     bool *has_exchange, struct tdm_error *err)
{
    const enum tdm_place asked_on = s->space.schedule->optimizer.on;
    const bool moves = s->whole->pass == TDM_TRAIN && !tdm_is_far(asked_on);
    enum tdm_status status = find_on(s, asked_on, corrections[0], has_exchange, err);
    if (status == TDM_OK && moves) {
        tdm_search_space_stream_state(&s->space);
        status = find_on(s, asked_on, corrections[1], has_exchange, err);
    }
    if (status == TDM_OK && moves && !s->pins.has_update_place)
        status = find_on(s, tdm_far_place(s->whole), corrections[2], has_exchange, err);
    return status;
}

/* One rank's part of a step: of every sequence as many chunks as there are rounds. */
static enum tdm_status make_share(const struct tdm_schedule *whole, uint64_t chunk_tokens,
                                  struct tdm_schedule *share, struct tdm_error *err)
{
    *share = *whole;
    share->groups = NULL;
    share->group_count = 0;
    share->ranks = 1;
    share->ranks_per_node = 0;
    tdm_team_set_exchange(share, TDM_EXCHANGE_GATHER, 0);
    share->sliced_weights = false;
    share->sequences = tdm_sequences_new(whole->sequence_count, 1); /* documents change no bytes */
    if (share->sequences == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for sequences");
    for (uint32_t i = 0; i < whole->sequence_count; i++) {
        const uint64_t chunks = tdm_size_ceil_div(whole->sequences[i].tokens, chunk_tokens);
        const uint64_t tokens = tdm_size_mul(tdm_size_ceil_div(chunks, whole->ranks), chunk_tokens);
        share->sequences[i].tokens = tdm_least(tokens, whole->sequences[i].tokens);
    }
    return TDM_OK;
}

static enum tdm_status find_of_size(struct least *s, const struct tdm_pins *pins,
                                    uint64_t chunk_tokens,
                                    struct tdm_team_correction corrections[TDM_TEAM_STAGES][2],
                                    bool *has_exchange, struct tdm_error *err)
{
    struct tdm_schedule share;
    s->pins = *pins;
    s->pins.chunk_tokens = chunk_tokens;
    enum tdm_status status = make_share(s->whole, chunk_tokens, &share, err);
    if (status != TDM_OK)
        return status;
    status = tdm_candidates_forget_homes(&share, &s->pins, err);
    if (status == TDM_OK) {
        status = tdm_search_space_open(&share, &s->pins, true, &s->space, err);
        if (status == TDM_OK)
            status = find_of_space(s, corrections, has_exchange, err);
        tdm_search_space_close(&s->space);
    }
    tdm_sequences_free(share.sequences, share.sequence_count);
    free(share.groups);
    return status;
}

/* ---- all ---- */

/* The sizes of chunks that are tried, longest first. Returns how many. */
static uint32_t list_sizes(const struct tdm_schedule *whole, const struct tdm_pins *pins,
                           uint64_t sizes[TDM_TEAM_SIZES])
{
    uint64_t longest = 0;
    uint32_t count = 1;
    for (uint32_t i = 0; i < whole->sequence_count; i++)
        longest = tdm_most(longest, whole->sequences[i].tokens);
    sizes[0] = pins->chunk_tokens;
    if (pins->chunk_tokens != 0)
        return count;
    sizes[0] = tdm_team_longest_chunk(longest, whole->sequence_count, whole->ranks);
    while (count < TDM_TEAM_SIZES && sizes[count - 1] / 2 >= TDM_TEAM_SHORTEST_CHUNK) {
        sizes[count] = sizes[count - 1] / 2;
        count++;
    }
    return count;
}

/* Would the exchange be tried with chunks of this size? */
static bool may_exchange(struct tdm_schedule *schedule, uint64_t chunk_tokens)
{
    schedule->chunk_tokens = chunk_tokens;
    return tdm_team_tries_exchange(schedule);
}

static enum tdm_status find(struct least *s, const struct tdm_pins *pins, struct tdm_error *err)
{
    uint64_t sizes[TDM_TEAM_SIZES];
    const uint32_t count = list_sizes(s->whole, pins, sizes);
    bool has_exchange = pins->has_exchange || s->trusts;
    enum tdm_status status = TDM_OK;
    if (s->trusts)
        tdm_team_set_exchange(s->whole, s->memo->exchange, s->memo->head_ranks);
    else {
        tdm_team_set_exchange(s->whole, s->whole->exchange, s->whole->head_ranks);
        *s->memo = (struct tdm_team_memo){.chunk_tokens = sizes[0]};
    }
    for (uint32_t i = 0; i < count && status == TDM_OK && s->least > s->enough; i++) {
        has_exchange = has_exchange && (pins->has_exchange || may_exchange(s->whole, sizes[i]));
        status = find_of_size(s, pins, sizes[i], s->memo->corrections[i], &has_exchange, err);
    }
    s->memo->exchange = s->whole->exchange;
    s->memo->head_ranks = s->whole->head_ranks;
    return status;
}

static enum tdm_status find_least(struct least *s, const struct tdm_pins *pins, uint64_t *bytes,
                                  struct tdm_error *err)
{
    struct tdm_schedule *schedule = s->whole;
    const size_t layers = (size_t)schedule->model->layers + 1;
    struct tdm_pins of_team = *pins;
    of_team.has_order = true;
    of_team.order = TDM_LAYER_MAJOR;
    of_team.has_update_place |= of_team.weight_slices; /* the host updates whole weights */
    enum tdm_status status = tdm_team_check_pins(schedule, pins, err);
    if (status != TDM_OK)
        return status;
    s->other = tdm_other_place(schedule, s->place);
    s->enough = s->enough == 0 ? 0 : of_rank(schedule, s->place, s->enough);
    s->least = TDM_SIZE_MAX;
    tdm_place_limits(schedule, s->limit_bytes);
    s->limit_bytes[s->other] = of_rank(schedule, s->other, s->limit_bytes[s->other]);
    s->best.groups = calloc(layers, sizeof(*s->best.groups));
    struct tdm_group *groups = calloc(layers, sizeof(*groups));
    if (s->best.groups == NULL || groups == NULL) {
        free(groups);
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu groups", layers);
    } else {
        free(schedule->groups); /* large enough for any list now */
        schedule->groups = groups;
        schedule->group_count = 0;
        status = find(s, &of_team, err);
    }
    if (status == TDM_OK && s->least < TDM_SIZE_MAX) {
        copy_choices(schedule, &s->best);
        *bytes = of_all(schedule, s->place, s->least);
    } else if (status == TDM_OK)
        status = tdm_fail(err, TDM_INFEASIBLE, "no schedule fits the memory of the %s",
                          tdm_place_name(&schedule->machine->topology, s->other));
    free(s->best.groups);
    free(s->list.recipes);
    return status;
}

enum tdm_status tdm_team_least(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                               enum tdm_place place, uint64_t enough, struct tdm_team_memo *memo,
                               uint64_t *bytes, struct tdm_error *err)
{
    struct least s = {.whole = schedule, .place = place, .enough = enough, .memo = memo};
    return find_least(&s, pins, bytes, err);
}

enum tdm_status tdm_team_least_alike(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                                     enum tdm_place place, uint64_t enough,
                                     struct tdm_team_memo *memo, bool *tried, uint64_t *bytes,
                                     struct tdm_error *err)
{
    struct least s = {
        .whole = schedule, .place = place, .enough = enough, .memo = memo, .trusts = true};
    uint64_t sizes[TDM_TEAM_SIZES];
    (void)list_sizes(schedule, pins, sizes);
    *tried = memo->chunk_tokens == sizes[0];
    return *tried ? find_least(&s, pins, bytes, err) : TDM_OK;
}
