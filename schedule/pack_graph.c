/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conflicts and cliques of the buffers to pack. Buffers are visited, always one with the most
 * visited neighbours next (maximum cardinality search, Tarjan and Yannakakis, 1984). A clique is
 * grown from each, first among its visited neighbours. If every buffer lives once, conflicts are an
 * interval graph, and these are all maximal cliques.
 */
#include "schedule/pack_graph.h"

#include <stdlib.h>
#include <string.h>

static int by_falling_key(const void *a, const void *b)
{
    const struct tdm_pack_keyed *left = a, *right = b;
    if (left->key != right->key)
        return left->key < right->key ? 1 : -1;
    return left->index < right->index ? -1 : left->index > right->index;
}

void tdm_pack_sort(struct tdm_pack_keyed *keyed, uint32_t count)
{
    qsort(keyed, count, sizeof(*keyed), by_falling_key);
}

static uint64_t bit_of(uint32_t buffer)
{
    return (uint64_t)1 << (buffer % 64);
}

static void read_buffers(struct tdm_pack_graph *g, const struct tdm_conflicts *conflicts,
                         const uint64_t *bytes, struct tdm_pack_keyed *keyed, uint64_t *steps)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < conflicts->count; i++)
        if (bytes[i] > 0)
            keyed[count++] = (struct tdm_pack_keyed){bytes[i], i};
    tdm_pack_sort(keyed, count);
    for (uint32_t a = 0; a < count; a++) {
        g->ids[a] = keyed[a].index;
        g->bytes[a] = keyed[a].key;
        for (uint32_t b = 0; b < count; b++)
            if (tdm_conflicts_test(conflicts, keyed[a].index, keyed[b].index))
                g->bits[(size_t)a * g->words + b / 64] |= bit_of(b);
    }
    *steps += (uint64_t)count * count;
}

/* Adds to the clique `set` as many buffers as possible, by number, of those in `common`, which
 * conflict with all members, and in `of` (NULL: any). */
static void grow_clique(const struct tdm_pack_graph *g, uint64_t *set, uint64_t *common,
                        const uint64_t *of, uint64_t *steps)
{
    for (uint32_t word = 0; word < g->words; word++) {
        uint64_t left;
        while ((left = of == NULL ? common[word] : common[word] & of[word]) != 0) {
            uint32_t buffer = word * 64 + (uint32_t)__builtin_ctzll(left);
            set[word] |= left & -left;
            for (uint32_t w = 0; w < g->words; w++)
                common[w] &= g->bits[(size_t)buffer * g->words + w];
            *steps += g->words;
        }
    }
}

/* `visited`, `common`: [words]. `near`: [count] number of visited neighbours. All must be zero. */
static void find_cliques(struct tdm_pack_graph *g, uint64_t *visited, uint64_t *common,
                         uint32_t *near, uint64_t *steps)
{
    size_t row_bytes = g->words * sizeof(*g->bits);
    for (uint32_t n = 0; n < g->count; n++) {
        uint32_t next = UINT32_MAX;
        for (uint32_t i = 0; i < g->count; i++)
            if ((visited[i / 64] & bit_of(i)) == 0 && (next == UINT32_MAX || near[i] > near[next]))
                next = i;
        const uint64_t *row = &g->bits[(size_t)next * g->words];
        uint64_t *set = &g->clique_bits[(size_t)g->clique_count * g->words];
        memset(set, 0, row_bytes);
        set[next / 64] |= bit_of(next);
        memcpy(common, row, row_bytes);
        grow_clique(g, set, common, visited, steps);
        grow_clique(g, set, common, NULL, steps);
        bool fresh = true;
        for (uint32_t c = 0; c < g->clique_count && fresh; c++)
            fresh = memcmp(&g->clique_bits[(size_t)c * g->words], set, row_bytes) != 0;
        g->clique_count += fresh;
        visited[next / 64] |= bit_of(next);
        for (uint32_t i = 0; i < g->count; i++)
            near[i] += (row[i / 64] & bit_of(i)) != 0;
        *steps += 2 * (uint64_t)g->count + g->clique_count;
    }
}

uint32_t tdm_pack_list_word(uint64_t bits, uint32_t word, uint32_t *items)
{
    uint32_t count = 0;
    for (; bits != 0; bits &= bits - 1)
        items[count++] = word * 64 + (uint32_t)__builtin_ctzll(bits);
    return count;
}

/* Lists a set at `at`; returns where the next list begins. */
static uint32_t *list_set(const struct tdm_pack_graph *g, const uint64_t *set, uint32_t *at,
                          struct tdm_pack_list *list)
{
    *list = (struct tdm_pack_list){0, at};
    for (uint32_t word = 0; word < g->words; word++)
        list->count += tdm_pack_list_word(set[word], word, &at[list->count]);
    return at + list->count;
}

static size_t count_bits(const struct tdm_pack_graph *g, const uint64_t *bits, uint32_t rows)
{
    size_t sum = 0;
    for (size_t i = 0; i < (size_t)rows * g->words; i++)
        sum += (size_t)__builtin_popcountll(bits[i]);
    return sum;
}

static bool make_lists(struct tdm_pack_graph *g)
{
    size_t entries =
        count_bits(g, g->bits, g->count) + 2 * count_bits(g, g->clique_bits, g->clique_count);
    g->lists = calloc(entries + 1, sizeof(*g->lists));
    if (g->lists == NULL)
        return false;
    uint32_t *at = g->lists;
    for (uint32_t i = 0; i < g->count; i++)
        at = list_set(g, &g->bits[(size_t)i * g->words], at, &g->neighbours[i]);
    for (uint32_t c = 0; c < g->clique_count; c++) {
        struct tdm_pack_list *members = &g->members[c];
        at = list_set(g, &g->clique_bits[(size_t)c * g->words], at, members);
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < members->count; i++) {
            bytes += g->bytes[members->items[i]];
            g->cliques[members->items[i]].count++;
        }
        for (uint32_t i = 0; i < members->count; i++)
            if (bytes > g->demand[members->items[i]])
                g->demand[members->items[i]] = bytes;
        if (bytes > g->bound)
            g->bound = bytes;
    }
    for (uint32_t i = 0; i < g->count; i++) {
        g->cliques[i].items = at;
        at += g->cliques[i].count;
        g->cliques[i].count = 0;
    }
    for (uint32_t c = 0; c < g->clique_count; c++)
        for (uint32_t i = 0; i < g->members[c].count; i++) {
            struct tdm_pack_list *cliques = &g->cliques[g->members[c].items[i]];
            cliques->items[cliques->count++] = c;
        }
    return true;
}

enum tdm_status tdm_pack_graph_make(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                                    struct tdm_pack_graph *g, uint64_t *steps,
                                    struct tdm_error *err)
{
    *g = (struct tdm_pack_graph){0};
    for (uint32_t i = 0; i < conflicts->count; i++)
        g->count += bytes[i] > 0;
    g->words = (g->count + 63) / 64;
    size_t entries = (size_t)g->count + 1, matrix = entries * g->words + 1;
    g->ids = calloc(entries, sizeof(*g->ids));
    g->bytes = calloc(entries, sizeof(*g->bytes));
    g->demand = calloc(entries, sizeof(*g->demand));
    g->neighbours = calloc(entries, sizeof(*g->neighbours));
    g->cliques = calloc(entries, sizeof(*g->cliques));
    g->members = calloc(entries, sizeof(*g->members));
    g->bits = calloc(matrix, sizeof(*g->bits));
    g->clique_bits = calloc(matrix, sizeof(*g->clique_bits));
    struct tdm_pack_keyed *keyed = calloc(entries, sizeof(*keyed));
    uint64_t *sets = calloc(2 * (size_t)g->words + 1, sizeof(*sets));
    uint32_t *near = calloc(entries, sizeof(*near));
    bool enough = g->ids != NULL && g->bytes != NULL && g->demand != NULL &&
                  g->neighbours != NULL && g->cliques != NULL && g->members != NULL &&
                  g->bits != NULL && g->clique_bits != NULL && keyed != NULL && sets != NULL &&
                  near != NULL;
    if (enough) {
        read_buffers(g, conflicts, bytes, keyed, steps);
        find_cliques(g, sets, sets + g->words, near, steps);
        enough = make_lists(g);
    }
    free(keyed);
    free(sets);
    free(near);
    if (!enough)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for packing %u buffers", g->count);
    return TDM_OK;
}

void tdm_pack_graph_free(struct tdm_pack_graph *g)
{
    free(g->ids);
    free(g->bytes);
    free(g->demand);
    free(g->neighbours);
    free(g->cliques);
    free(g->members);
    free(g->bits);
    free(g->clique_bits);
    free(g->lists);
}
