/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the team ops of all ranks of a program: every rank must run the same ones in the same
 * order, and what one sends another must receive. The validator checks each rank by itself.
 */
#ifndef TDM_SCHEDULE_TEAM_CHECK_H
#define TDM_SCHEDULE_TEAM_CHECK_H

#include "schedule/program_types.h"

struct tdm_team_check;

/* Whose heads a TDM_OP_ALL_TO_ALL exchanges, the same on all ranks; TDM_EMPTY in other ops. */
enum tdm_content tdm_team_exchanged(const struct tdm_op *op);

/* For the programs of `ranks` ranks, of which `row` in a row divide the heads; 1: none do. */
enum tdm_status tdm_team_check_new(uint32_t ranks, uint32_t row, struct tdm_team_check **check,
                                   struct tdm_error *err);
void tdm_team_check_free(struct tdm_team_check *check);

/* Begins a rank: its items follow. */
void tdm_team_check_rank(struct tdm_team_check *check, uint32_t rank);

/* Takes an item of the rank. TDM_INPUT if its team op is not that of rank 0 at the same position.
 */
enum tdm_status tdm_team_check_take(struct tdm_team_check *check, const struct tdm_item *item,
                                    struct tdm_error *err);

/* After the last item of a rank: TDM_INPUT if it has fewer team ops than rank 0. */
enum tdm_status tdm_team_check_rank_end(const struct tdm_team_check *check, struct tdm_error *err);

/* After the last rank: TDM_INPUT if the bytes sent in an op are not those received. */
enum tdm_status tdm_team_check_finish(const struct tdm_team_check *check, struct tdm_error *err);

#endif
