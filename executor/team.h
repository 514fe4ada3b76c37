/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A team: the ranks of one step, each on its own thread, and where they meet for team ops
 * (ops/team.h).
 *
 * A rank enters an op with its launch, and when all have entered it sees the launches of the
 * others, until it meets them at the op's end. If a rank fails, the others' meetings end with an
 * error (base/meeting.h).
 */
#ifndef TDM_EXECUTOR_TEAM_H
#define TDM_EXECUTOR_TEAM_H

#include "executor/transport.h"

struct tdm_team;

/* A team of `ranks` whose ops travel by `transport`. TDM_NO_MEMORY. */
enum tdm_status tdm_team_new(uint32_t ranks, const struct tdm_transport *transport,
                             struct tdm_team **team, struct tdm_error *err);
void tdm_team_free(struct tdm_team *team);

/* Before a step: forgets failures. */
void tdm_team_reset(struct tdm_team *team);

/* Shows a rank's launch and executor, and waits until all ranks show theirs. TDM_INTERNAL on every
 * rank if one shows another op than rank 0; TDM_INTERRUPTED if a rank has failed. */
enum tdm_status tdm_team_enter(struct tdm_team *team, const struct tdm_launch *launch,
                               struct tdm_executor *executor, struct tdm_error *err);

/* What a rank shows: a copy, valid until the rank enters its next op. */
const struct tdm_launch *tdm_team_shown(const struct tdm_team *team, uint32_t rank);
struct tdm_executor *tdm_team_executor(const struct tdm_team *team, uint32_t rank);

const struct tdm_transport *tdm_team_transport(const struct tdm_team *team);

/* What a rank gives and takes in a phase of its op; others see it after they have met. */
struct tdm_exchange *tdm_team_exchange(struct tdm_team *team, uint32_t rank, uint32_t phase);

/* Waits until all ranks are here, in the middle of an op or at its end. */
enum tdm_status tdm_team_meet(struct tdm_team *team, uint32_t rank, struct tdm_error *err);

/* A rank has failed: the others end at their next meeting. */
void tdm_team_fail(struct tdm_team *team, uint32_t rank);

/* The first rank that failed; TDM_NONE if none has. */
uint32_t tdm_team_failed(struct tdm_team *team);

#endif
