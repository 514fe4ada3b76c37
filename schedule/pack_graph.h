/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input of a search for a packing: the buffers to pack, their conflicts as lists and as bits, and
 * cliques of buffers. Only pack_search.c uses it. It is constant during a search.
 */
#ifndef TDM_SCHEDULE_PACK_GRAPH_H
#define TDM_SCHEDULE_PACK_GRAPH_H

#include "schedule/conflicts.h"

/* A list of buffers or cliques, in the graph's memory. Users may change the order of members. */
struct tdm_pack_list {
    uint32_t count;
    uint32_t *items;
};

/* Buffers are numbered by falling bytes. */
struct tdm_pack_graph {
    uint32_t count, words;
    uint32_t *ids;                    /* [count] the caller's numbers */
    uint64_t *bytes;                  /* [count] */
    uint64_t *bits;                   /* [count][words] conflicts */
    struct tdm_pack_list *neighbours; /* [count] of a buffer: those it conflicts with */
    struct tdm_pack_list *cliques;    /* [count] of a buffer: the cliques it is in, at least one */
    uint64_t *demand;                 /* [count] bytes of the heaviest of these */
    uint32_t clique_count;            /* at most `count` */
    struct tdm_pack_list *members;    /* [clique_count] of a clique: buffers that all conflict */
    uint64_t bound;                   /* bytes of the heaviest clique: no packing needs less */

    uint64_t *clique_bits; /* [count][words] */
    uint32_t *lists;       /* what the lists point into */
};

/* Takes the buffers with bytes[i] > 0 ([conflicts->count]), whose sum must not wrap, and finds
 * cliques: all maximal ones if every buffer lives once; otherwise some, with each buffer in at
 * least one. Adds its work to *steps, in the unit of pack_search.h. The graph must be freed also on
 * failure. */
enum tdm_status tdm_pack_graph_make(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                                    struct tdm_pack_graph *graph, uint64_t *steps,
                                    struct tdm_error *err);
/* frees what the graph owns, not the struct */
void tdm_pack_graph_free(struct tdm_pack_graph *graph);

/* Lists the set bits of word number `word` of a set; returns how many. */
uint32_t tdm_pack_list_word(uint64_t bits, uint32_t word, uint32_t *items);

/* For sorting by descending key; equal keys by ascending index. */
struct tdm_pack_keyed {
    uint64_t key;
    uint32_t index;
};
void tdm_pack_sort(struct tdm_pack_keyed *keyed, uint32_t count);

#endif
