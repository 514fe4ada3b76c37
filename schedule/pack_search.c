/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing by search: depth first, from the bottom up, with proofs that a branch is dead.
 *
 * It is enough to search packings in which no buffer can be moved down, as in Moffitt, "MiniMalloc"
 * (ASPLOS 2023): each buffer lies at 0 or on the end of a buffer that it conflicts with. An open
 * buffer (not yet placed) has a `rest`, the lowest offset above its placed neighbours, and a
 * `bound`: it is known not to lie below that. A branch takes a buffer below which none of its open
 * neighbours fits, and decides whether it lies at its rest. If so, it is placed. If not, it waits
 * for an open neighbour to be placed below it. Its bound is then the lowest end that one of them
 * can have, and one of them must reach into the hole that it left, or it could be moved down.
 *
 * Cliques, sets of buffers that all conflict, show that a branch is dead: the open buffers of each,
 * stacked in the order of their bounds, must end within the capacity. They also show where to
 * branch: in a clique with little space to spare and few buffers that can be its lowest. When the
 * open buffers fall into parts without conflicts between them, each part is packed by itself.
 *
 * Which of the lowest buffers goes first is a guess. After some steps the search starts again with
 * another guess: with another key, some noise, and earlier ranks for the buffers that failed most.
 */
#include "schedule/pack_search.h"

#include "base/size.h"
#include "schedule/pack_graph.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_ROUND 1000000u /* steps of the first rounds, one per key: enough for most inputs */
#define LONG_ROUND 10000000u /* steps of later rounds; each ROUNDS_A_LENGTH rounds add as many */
#define ROUNDS_A_LENGTH 24u
#define FAILURE 4096u    /* divided among the buffers that may have caused it */
#define LEARNED 1048576u /* maximum sum of `learned` over all buffers */
#define KEYS 6u
#define NOT_WAITING UINT64_MAX
#define NO_BUFFER UINT32_MAX

struct buffer {
    uint64_t bytes, rest, bound, offset;
    uint64_t hole; /* its rest when it was left out; NOT_WAITING once the rest is raised */
    bool placed, queued;
    uint32_t rank;              /* among open buffers of equal bound, the lowest goes first */
    uint64_t failures, learned; /* in this round; from earlier rounds, halved after each */
};

struct clique {
    uint64_t top;             /* its open members cannot end lower */
    uint64_t floor;           /* the lowest of their bounds */
    uint32_t at_floor, stamp; /* open members with that bound; when it was last visited */
};

/* The values of a buffer (rest, bound, hole) or a clique (top, floor, at_floor) before a branch. */
struct change {
    bool of_clique;
    uint32_t index;
    uint64_t was[3];
};

struct tdm_pack_search {
    struct tdm_pack_graph graph;
    struct buffer *buffers; /* [graph.count] */
    struct clique *cliques; /* [graph.count], the maximum number */
    uint64_t capacity, steps, limit, dice, failures;
    uint32_t *open;  /* [count] each part is a slice, its open buffers in any order */
    uint32_t *ends;  /* [count] end of the part that begins here */
    uint64_t *set;   /* [words] scratch */
    uint32_t *queue; /* [count + 1] ring of buffers whose bound rose */
    uint32_t head, tail;
    uint32_t *touched; /* [count] cliques to check again */
    uint32_t touched_count, stamp;
    struct tdm_pack_keyed *keyed; /* [count] scratch */
    struct change *changes;
    size_t change_count, change_capacity;
    bool no_memory;
};

/* ---- changes that a branch undoes ---- */

static void remember(struct tdm_pack_search *s, bool of_clique, uint32_t index)
{
    if (s->change_count == s->change_capacity) {
        size_t capacity = s->change_capacity * 2 + 1024;
        struct change *changes = realloc(s->changes, capacity * sizeof(*changes));
        if (changes == NULL) {
            s->no_memory = true; /* ends the round, and the run fails */
            s->limit = 0;
            return;
        }
        s->changes = changes;
        s->change_capacity = capacity;
    }
    struct change *change = &s->changes[s->change_count++];
    change->of_clique = of_clique;
    change->index = index;
    const struct buffer *b = &s->buffers[index];
    const struct clique *c = &s->cliques[index];
    change->was[0] = of_clique ? c->top : b->rest;
    change->was[1] = of_clique ? c->floor : b->bound;
    change->was[2] = of_clique ? c->at_floor : b->hole;
}

static void undo(struct tdm_pack_search *s, size_t until)
{
    while (s->change_count > until) {
        const struct change *change = &s->changes[--s->change_count];
        struct buffer *b = &s->buffers[change->index];
        struct clique *c = &s->cliques[change->index];
        if (change->of_clique) {
            c->top = change->was[0];
            c->floor = change->was[1];
            c->at_floor = (uint32_t)change->was[2];
        } else {
            b->rest = change->was[0];
            b->bound = change->was[1];
            b->hole = change->was[2];
        }
    }
}

/* ---- what follows from a branch ---- */

static bool blame(struct tdm_pack_search *s, struct buffer *b, uint64_t share)
{
    b->failures += share;
    s->failures += share;
    return false;
}

/* Raises the bound of a buffer to `bound`, if that is more. False: then it cannot lie anywhere. */
static bool raise_bound(struct tdm_pack_search *s, uint32_t index, uint64_t bound)
{
    struct buffer *b = &s->buffers[index];
    if (bound <= b->bound)
        return true;
    if (bound + b->bytes > s->capacity)
        return blame(s, b, FAILURE);
    remember(s, false, index);
    b->bound = bound;
    if (!b->queued) {
        b->queued = true;
        s->queue[s->tail] = index;
        s->tail = s->tail == s->graph.count ? 0 : s->tail + 1;
    }
    return true;
}

/* A waiting buffer must lie on an open neighbour, and one of them must reach into its hole. */
static bool check_waiting(struct tdm_pack_search *s, uint32_t index)
{
    struct buffer *b = &s->buffers[index];
    const struct tdm_pack_list *neighbours = &s->graph.neighbours[index];
    uint64_t lowest = UINT64_MAX, lowest_end = UINT64_MAX;
    for (uint32_t i = 0; i < neighbours->count; i++) {
        const struct buffer *other = &s->buffers[neighbours->items[i]];
        if (other->placed)
            continue;
        if (other->bound < lowest)
            lowest = other->bound;
        if (other->bound + other->bytes < lowest_end)
            lowest_end = other->bound + other->bytes;
    }
    s->steps += neighbours->count;
    if (lowest_end == UINT64_MAX || lowest >= b->hole + b->bytes)
        return blame(s, b, FAILURE);
    return raise_bound(s, index, lowest_end);
}

/* Stacks the open members of a clique by ascending bound: no other order ends lower. They are
 * sorted in place, because they are nearly sorted from the last time. */
static void stack_clique(struct tdm_pack_search *s, uint32_t index)
{
    struct clique *clique = &s->cliques[index];
    uint32_t *members = s->graph.members[index].items, count = s->graph.members[index].count;
    for (uint32_t i = 1; i < count; i++) {
        uint32_t member = members[i], j = i;
        uint64_t bound = s->buffers[member].bound;
        for (; j > 0 && s->buffers[members[j - 1]].bound > bound; j--)
            members[j] = members[j - 1];
        members[j] = member;
    }
    clique->top = 0;
    clique->floor = UINT64_MAX;
    clique->at_floor = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct buffer *b = &s->buffers[members[i]];
        if (b->placed)
            continue;
        if (clique->floor == UINT64_MAX)
            clique->floor = b->bound;
        clique->at_floor += b->bound == clique->floor;
        clique->top = (b->bound > clique->top ? b->bound : clique->top) + b->bytes;
    }
    s->steps += count;
}

static bool check_clique(struct tdm_pack_search *s, uint32_t index)
{
    const struct tdm_pack_list *members = &s->graph.members[index];
    remember(s, true, index);
    stack_clique(s, index);
    if (s->cliques[index].top <= s->capacity)
        return true;
    for (uint32_t i = 0; i < members->count; i++)
        if (!s->buffers[members->items[i]].placed)
            blame(s, &s->buffers[members->items[i]], FAILURE / members->count);
    return false;
}

static void touch_cliques(struct tdm_pack_search *s, uint32_t index)
{
    const struct tdm_pack_list *cliques = &s->graph.cliques[index];
    for (uint32_t i = 0; i < cliques->count; i++) {
        struct clique *clique = &s->cliques[cliques->items[i]];
        if (clique->stamp != s->stamp) {
            clique->stamp = s->stamp;
            s->touched[s->touched_count++] = cliques->items[i];
        }
    }
    s->steps += cliques->count;
}

/* Propagates raised bounds and a placed buffer (or NO_BUFFER). False: a dead end. If the branch is
 * dead already (not `alive`), only empties the queue. */
static bool propagate(struct tdm_pack_search *s, uint32_t placed, bool alive)
{
    s->stamp++;
    s->touched_count = 0;
    if (placed != NO_BUFFER && alive)
        touch_cliques(s, placed);
    while (s->head != s->tail) {
        uint32_t index = s->queue[s->head];
        const struct tdm_pack_list *neighbours = &s->graph.neighbours[index];
        s->head = s->head == s->graph.count ? 0 : s->head + 1;
        s->buffers[index].queued = false;
        if (!alive)
            continue;
        touch_cliques(s, index);
        for (uint32_t i = 0; i < neighbours->count && alive; i++) {
            const struct buffer *other = &s->buffers[neighbours->items[i]];
            if (!other->placed && other->hole != NOT_WAITING)
                alive = check_waiting(s, neighbours->items[i]);
        }
        s->steps += neighbours->count;
    }
    for (uint32_t i = 0; i < s->touched_count && alive; i++)
        alive = check_clique(s, s->touched[i]);
    return alive;
}

/* ---- branching ---- */

static bool goes_before(const struct tdm_pack_search *s, uint32_t a, uint32_t b)
{
    const struct buffer *left = &s->buffers[a], *right;
    if (b == NO_BUFFER)
        return true;
    right = &s->buffers[b];
    return left->bound != right->bound ? left->bound < right->bound : left->rank < right->rank;
}

/* Among the cliques with an open buffer of a part, the one with the least to try. */
static uint32_t choose_clique(struct tdm_pack_search *s, uint32_t first, uint32_t last)
{
    uint32_t chosen = UINT32_MAX;
    uint64_t least = UINT64_MAX;
    s->stamp++;
    for (uint32_t i = first; i < last; i++) {
        const struct tdm_pack_list *cliques = &s->graph.cliques[s->open[i]];
        for (uint32_t j = 0; j < cliques->count; j++) {
            struct clique *clique = &s->cliques[cliques->items[j]];
            if (clique->stamp == s->stamp)
                continue;
            clique->stamp = s->stamp;
            uint64_t spare = s->capacity - clique->top + s->capacity / 50;
            uint64_t tries = tdm_size_mul(spare, clique->at_floor);
            if (chosen == UINT32_MAX || tries < least) {
                chosen = cliques->items[j];
                least = tries;
            }
        }
        s->steps += cliques->count;
    }
    return chosen;
}

/* The buffer to branch on: a lowest one of the chosen clique; or an open neighbour that fits below
 * it, or below that neighbour, and so on. */
static uint32_t choose_buffer(struct tdm_pack_search *s, uint32_t first, uint32_t last)
{
    const struct tdm_pack_list *members = &s->graph.members[choose_clique(s, first, last)];
    uint32_t next = NO_BUFFER, chosen = NO_BUFFER;
    for (uint32_t i = 0; i < members->count; i++)
        if (!s->buffers[members->items[i]].placed && goes_before(s, members->items[i], next))
            next = members->items[i];
    while (next != NO_BUFFER) {
        const struct tdm_pack_list *neighbours = &s->graph.neighbours[next];
        uint64_t bound = s->buffers[next].bound;
        chosen = next;
        next = NO_BUFFER;
        for (uint32_t i = 0; i < neighbours->count; i++) {
            const struct buffer *other = &s->buffers[neighbours->items[i]];
            if (!other->placed && other->bound + other->bytes <= bound &&
                goes_before(s, neighbours->items[i], next))
                next = neighbours->items[i];
        }
        s->steps += neighbours->count;
    }
    return chosen;
}

/* Places a buffer at its rest. False: a dead end. */
static bool place(struct tdm_pack_search *s, uint32_t index)
{
    struct buffer *b = &s->buffers[index];
    const struct tdm_pack_list *neighbours = &s->graph.neighbours[index];
    uint64_t end = b->rest + b->bytes;
    bool alive = true;
    b->placed = true;
    b->offset = b->rest;
    for (uint32_t i = 0; i < neighbours->count && alive; i++) {
        struct buffer *other = &s->buffers[neighbours->items[i]];
        if (other->placed)
            continue;
        if (other->rest < end) {
            remember(s, false, neighbours->items[i]);
            other->rest = end;
            other->hole = NOT_WAITING;
            alive = raise_bound(s, neighbours->items[i], end);
        } else if (other->hole != NOT_WAITING) {
            alive = check_waiting(s, neighbours->items[i]);
        }
    }
    s->steps += neighbours->count;
    return propagate(s, index, alive);
}

/* Decides that a buffer does not lie at its rest. False: a dead end. */
static bool leave_out(struct tdm_pack_search *s, uint32_t index)
{
    remember(s, false, index);
    s->buffers[index].hole = s->buffers[index].rest;
    bool alive = check_waiting(s, index);
    return propagate(s, NO_BUFFER, alive);
}

/* Orders a slice of open buffers so that each part of it is a slice. */
static void split(struct tdm_pack_search *s, uint32_t first, uint32_t last)
{
    const struct tdm_pack_graph *g = &s->graph;
    uint32_t *open = s->open, filled = first;
    memset(s->set, 0, g->words * sizeof(*s->set));
    for (uint32_t i = first; i < last; i++)
        s->set[open[i] / 64] |= (uint64_t)1 << (open[i] % 64);
    for (uint32_t word = 0; word < g->words; word++)
        while (s->set[word] != 0) { /* a buffer of a part, then its neighbours, then theirs ... */
            uint32_t begin = filled;
            open[filled++] = word * 64 + (uint32_t)__builtin_ctzll(s->set[word]);
            s->set[word] &= s->set[word] - 1;
            for (uint32_t next = begin; next < filled && filled < last; next++) {
                const uint64_t *row = &g->bits[(size_t)open[next] * g->words];
                for (uint32_t w = 0; w < g->words; w++) {
                    filled += tdm_pack_list_word(s->set[w] & row[w], w, &open[filled]);
                    s->set[w] &= ~row[w];
                }
                s->steps += g->words;
            }
            s->ends[begin] = filled;
        }
}

static bool pack_part(struct tdm_pack_search *s, uint32_t first, uint32_t last);

static bool pack_parts(struct tdm_pack_search *s, uint32_t first, uint32_t last)
{
    split(s, first, last);
    bool packed = true;
    for (uint32_t at = first; at < last && packed; at = s->ends[at])
        packed = pack_part(s, at, s->ends[at]);
    return packed;
}

/* Packs a part. If it returns false, it has undone everything except the order of the slice. */
static bool pack_part(struct tdm_pack_search *s, uint32_t first, uint32_t last)
{
    size_t before = s->change_count;
    while (s->steps < s->limit) {
        uint32_t index = choose_buffer(s, first, last);
        size_t branch = s->change_count;
        if (place(s, index)) {
            uint32_t at = first;
            while (s->open[at] != index)
                at++;
            s->open[at] = s->open[first];
            s->open[first] = index;
            if (pack_parts(s, first + 1, last))
                return true;
        }
        for (uint32_t i = first; i < last; i++)
            s->buffers[s->open[i]].placed = false;
        undo(s, branch);
        if (!leave_out(s, index))
            break;
    }
    undo(s, before);
    return false;
}

/* ---- rounds ---- */

/* About 256 * log2(x + 1), in integers, so that it is the same on every machine. */
static uint64_t logarithm(uint64_t x)
{
    unsigned power = 63 - (unsigned)__builtin_clzll(++x);
    uint64_t mantissa = power > 8 ? x >> (power - 8) : x << (8 - power);
    return (uint64_t)power * 256 + (mantissa & 255);
}

static uint64_t key_of(const struct tdm_pack_graph *g, uint32_t buffer, uint32_t rule)
{
    uint64_t bytes = logarithm(g->bytes[buffer]), life = logarithm(g->cliques[buffer].count);
    switch (rule) {
    case 0:
        return life + bytes;
    case 1:
        return life;
    case 2:
        return logarithm(g->demand[buffer]);
    case 3:
        return bytes;
    case 4:
        return logarithm(g->neighbours[buffer].count) + bytes;
    default:
        return life + bytes + 4 * logarithm(g->demand[buffer]);
    }
}

/* splitmix64 (Steele, Lea and Flood, 2014) */
static uint64_t roll(struct tdm_pack_search *s)
{
    uint64_t z = (s->dice += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Resets the search, with ranks by the key of this round. Half the logarithm of what was learned is
 * added to the key, and after a key's first round noise of less than a doubling. */
static void begin_round(struct tdm_pack_search *s, uint32_t round)
{
    uint32_t count = s->graph.count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t key = key_of(&s->graph, i, round % KEYS);
        key += logarithm(LEARNED / 20 + s->buffers[i].learned * count) / 2;
        key += round < KEYS ? 0 : roll(s) % 192;
        s->keyed[i] = (struct tdm_pack_keyed){key, i};
    }
    tdm_pack_sort(s->keyed, count);
    for (uint32_t i = 0; i < count; i++) {
        struct buffer *b = &s->buffers[s->keyed[i].index];
        b->rank = i;
        b->rest = b->bound = 0;
        b->hole = NOT_WAITING;
        b->placed = b->queued = false;
        b->failures = 0;
        s->open[i] = i;
    }
    s->failures = 0;
    s->change_count = 0;
    s->head = s->tail = 0;
    for (uint32_t c = 0; c < s->graph.clique_count; c++)
        stack_clique(s, c);
}

static void learn(struct tdm_pack_search *s)
{
    for (uint32_t i = 0; i < s->graph.count && s->failures > 0; i++) {
        struct buffer *b = &s->buffers[i];
        b->learned = (b->learned + b->failures * LEARNED / s->failures) / 2;
    }
}

enum tdm_status tdm_pack_search_run(struct tdm_pack_search *s, uint64_t capacity_bytes,
                                    uint64_t *steps, uint64_t *offsets,
                                    enum tdm_pack_answer *answer, struct tdm_error *err)
{
    const struct tdm_pack_graph *g = &s->graph;
    *answer = capacity_bytes < g->bound ? TDM_PACK_NONE : TDM_PACK_SPENT;
    s->capacity = capacity_bytes;
    s->steps = 0;
    s->dice = 0;
    s->no_memory = false;
    for (uint32_t i = 0; i < g->count; i++)
        s->buffers[i].learned = 0;
    for (uint32_t round = 0; *answer == TDM_PACK_SPENT && s->steps < *steps && !s->no_memory;
         round++) {
        begin_round(s, round);
        uint64_t most = SHORT_ROUND;
        if (round >= KEYS)
            most = LONG_ROUND * (1 + (uint64_t)round / ROUNDS_A_LENGTH);
        s->limit = s->steps + most < *steps ? s->steps + most : *steps;
        if (pack_parts(s, 0, g->count))
            *answer = TDM_PACK_FOUND;
        else if (s->steps < s->limit) /* all branches were dead ends */
            *answer = TDM_PACK_NONE;
        learn(s);
    }
    *steps -= s->steps < *steps ? s->steps : *steps;
    if (s->no_memory)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for packing %u buffers", g->count);
    for (uint32_t i = 0; i < g->count && *answer == TDM_PACK_FOUND; i++)
        offsets[g->ids[i]] = s->buffers[i].offset;
    return TDM_OK;
}

uint64_t tdm_pack_search_bound(const struct tdm_pack_search *s)
{
    return s->graph.bound;
}

void tdm_pack_search_free(struct tdm_pack_search *s)
{
    if (s == NULL)
        return;
    tdm_pack_graph_free(&s->graph);
    free(s->buffers);
    free(s->cliques);
    free(s->open);
    free(s->ends);
    free(s->set);
    free(s->queue);
    free(s->touched);
    free(s->keyed);
    free(s->changes);
    free(s);
}

enum tdm_status tdm_pack_search_new(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                                    uint64_t *steps, struct tdm_pack_search **search,
                                    struct tdm_error *err)
{
    uint64_t work = 0;
    struct tdm_pack_search *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for packing %u buffers",
                        conflicts->count);
    const struct tdm_pack_graph *g = &s->graph;
    enum tdm_status status = tdm_pack_graph_make(conflicts, bytes, &s->graph, &work, err);
    if (status != TDM_OK)
        goto free_search;
    size_t entries = (size_t)g->count + 1;
    s->buffers = calloc(entries, sizeof(*s->buffers));
    s->cliques = calloc(entries, sizeof(*s->cliques));
    s->open = calloc(entries, sizeof(*s->open));
    s->ends = calloc(entries, sizeof(*s->ends));
    s->set = calloc((size_t)g->words + 1, sizeof(*s->set));
    s->queue = calloc(entries, sizeof(*s->queue));
    s->touched = calloc(entries, sizeof(*s->touched));
    s->keyed = calloc(entries, sizeof(*s->keyed));
    if (s->buffers == NULL || s->cliques == NULL || s->open == NULL || s->ends == NULL ||
        s->set == NULL || s->queue == NULL || s->touched == NULL || s->keyed == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for packing %u buffers", g->count);
        goto free_search;
    }
    for (uint32_t i = 0; i < g->count; i++)
        s->buffers[i].bytes = g->bytes[i];
    *steps -= work < *steps ? work : *steps;
    *search = s;
    return TDM_OK;

free_search:
    tdm_pack_search_free(s);
    return status;
}
