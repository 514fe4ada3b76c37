/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who attends to whom: the tokens that a token of a layer sees (selector.h has the rules), and the
 * chunks that follow from it.
 *
 * What is seen first never falls with rising token, so a chunk reads a range of chunks that ends
 * with itself, and of later chunks a range that begins with it reads it. Of the pages in that range
 * it may see a few alone.
 */
#ifndef TDM_SCHEDULE_ATTEND_H
#define TDM_SCHEDULE_ATTEND_H

#include "schedule/program.h"

/* First near token of a token of a sequence; the last is itself. */
uint64_t tdm_attend_near_token(const struct tdm_schedule *schedule, uint32_t layer,
                               uint32_t sequence, uint64_t token);

/* Query page `number` of a chunk of a sequence, by the rule of its layer. */
struct tdm_query_page tdm_attend_query_page(const struct tdm_page_rule *rule,
                                            const struct tdm_chunk *chunk,
                                            const struct tdm_sequence *sequence, uint64_t number);

/* First chunk that a chunk reads K and V of; the last is itself. */
uint32_t tdm_attend_first(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Of the chunks that a chunk reads, the first that the chunk after it reads too; chunk + 1 if there
 * is none. The chunks before it are read by no later chunk: to their dK, dV this one is the first
 * to add. */
uint32_t tdm_attend_shared(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Last chunk that reads K and V of a chunk; the first is itself. */
uint32_t tdm_attend_last(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* Fills before[chunks + 1]: how many of the chunks before a chunk are read by a later one than
 * themselves. */
void tdm_attend_seen(const struct tdm_program *program, uint32_t layer, uint32_t *before);

/* (query, key) pairs of the queries of a chunk: exact without lists, with them as many as lists
 * have room for, where every page counts as a whole one. */
uint64_t tdm_attend_pairs(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* (query, page) pairs of the vote of a chunk's selection. */
uint64_t tdm_attend_scores(const struct tdm_program *program, uint32_t layer, uint32_t chunk);

/* (query, key) pairs of all sequences and layers of a step. */
double tdm_attend_step_pairs(const struct tdm_schedule *schedule);

#endif
