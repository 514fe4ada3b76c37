/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention ranges: the tokens that a token of a layer sees (rules in selector.h), and the chunks
 * that follow from them.
 *
 * The first token seen never decreases as the token number increases. So a chunk reads a contiguous
 * range of chunks that ends with itself, and is read by a contiguous range that begins with itself.
 * Of the pages in that range it may see only a few.
 */
#ifndef TDM_SCHEDULE_ATTEND_H
#define TDM_SCHEDULE_ATTEND_H

#include "schedule/program_types.h"

/* Query page `number` of a chunk of a sequence, by the rule of its layer. */
struct tdm_query_page tdm_attend_query_page(const struct tdm_page_rule *rule,
                                            const struct tdm_chunk *chunk,
                                            const struct tdm_sequence *sequence, uint64_t number);

/* First chunk whose K and V a chunk reads. The last one is the chunk itself. */
uint32_t tdm_attend_first(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Among the chunks that a chunk reads: the first that the chunk that adds before it reads too
 * (ranks.h), or chunk + 1 if there is none. No later chunk of the rank reads the chunks before it,
 * so this chunk is the first to add to their dK and dV. */
uint32_t tdm_attend_shared(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Last chunk that reads K and V of a chunk. The first one is the chunk itself. */
uint32_t tdm_attend_last(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Fills before[chunks + 1]: the number of chunks before a chunk that some later chunk than
 * themselves reads. */
void tdm_attend_seen(const struct tdm_program *program, uint32_t layer, uint32_t *before);

/* (query, key) pairs of the queries of a chunk. Exact without lists. With lists: the number of
 * pairs that the lists have space for, with every page counted as whole. */
uint64_t tdm_attend_pairs(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Those pairs whose keys are of chunk `key` of the same sequence, which is no later one; without
 * lists. */
uint64_t tdm_attend_pairs_with(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                               uint32_t key);

/* (query, page) pairs that the vote scores when a chunk selects its pages. */
uint64_t tdm_attend_scores(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* (query, key) pairs of all sequences and layers of a step. */
double tdm_attend_step_pairs(const struct tdm_schedule *schedule);

#endif
