/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A team: the ranks of one step, each on its own thread, and where they meet for team ops
 * (ops/team.h). Ranks of other processes (processes.h) belong to it, too, but have no thread here.
 *
 * A rank enters an op with its launch, and when all have entered it sees the launches of the
 * others, until it meets them at the op's end. If a rank fails, the others' waits end with an
 * error.
 *
 * A rank that does not come is taken to be lost after 30 s, or ten times what the stretch since the
 * last team op should take: as predicted, and as the longest that the waiting rank has needed.
 */
#ifndef TDM_EXECUTOR_TEAM_H
#define TDM_EXECUTOR_TEAM_H

#include "executor/transport.h"

struct tdm_team;
struct tdm_processes;

struct tdm_team_options {
    const struct tdm_transport *transport;
    struct tdm_processes *processes; /* NULL: all ranks are in this one */
    double late_seconds;             /* the least after which a rank is lost; 0: 30 */
};

/* A team of `ranks`. TDM_NO_MEMORY. */
enum tdm_status tdm_team_new(uint32_t ranks, const struct tdm_team_options *options,
                             struct tdm_team **team, struct tdm_error *err);
void tdm_team_free(struct tdm_team *team);

/* Before a step: forgets failures of this process' ranks. */
void tdm_team_reset(struct tdm_team *team);

/* Notes which op a rank launches, and how many seconds after the step's start it should. */
void tdm_team_at(struct tdm_team *team, uint32_t rank, const struct tdm_op *op,
                 double predicted_seconds);

/* Shows a rank's launch and executor, and waits until all ranks show theirs. TDM_INTERNAL on every
 * rank if one shows another op than rank 0; TDM_INTERRUPTED if a rank has failed or is lost. */
enum tdm_status tdm_team_enter(struct tdm_team *team, const struct tdm_launch *launch,
                               struct tdm_executor *executor, struct tdm_error *err);

/* What a rank shows: a copy, valid until the rank enters its next op. */
const struct tdm_launch *tdm_team_shown(const struct tdm_team *team, uint32_t rank);
struct tdm_executor *tdm_team_executor(const struct tdm_team *team, uint32_t rank);

uint32_t tdm_team_ranks(const struct tdm_team *team);
double tdm_team_late_seconds(const struct tdm_team *team);
const struct tdm_transport *tdm_team_transport(const struct tdm_team *team);
struct tdm_processes *tdm_team_processes(const struct tdm_team *team);

/* What a rank of this process gives and takes in a phase of its op, or, as phase TDM_TEAM_PHASES,
 * in a window of one; the others see it after they have met. */
struct tdm_exchange *tdm_team_exchange(struct tdm_team *team, uint32_t rank, uint32_t phase);

/* Opens the transport for a rank of this process, ends its transfers after a failure; and what it
 * has opened. */
enum tdm_status tdm_team_open(struct tdm_team *team, uint32_t rank,
                              const struct tdm_team_needs *needs, struct tdm_error *err);
void tdm_team_abort(struct tdm_team *team);

/* Some bytes that a transport keeps for all ranks, at most TDM_TEAM_ID_BYTES. */
#define TDM_TEAM_ID_BYTES 128u
void tdm_team_set_id(struct tdm_team *team, const void *id, size_t bytes);
void tdm_team_get_id(const struct tdm_team *team, void *id, size_t bytes);

void *tdm_team_link(const struct tdm_team *team, uint32_t rank);

/* Waits until all ranks are here, in the middle of an op or at its end. */
enum tdm_status tdm_team_meet(struct tdm_team *team, uint32_t rank, struct tdm_error *err);

/* Between ops: waits until all ranks of this process are here; if `patient`, as long as it takes.
 * TDM_INTERRUPTED if a rank, of any process, has failed, or else is lost. */
enum tdm_status tdm_team_meet_here(struct tdm_team *team, uint32_t rank, bool patient,
                                   struct tdm_error *err);

/* For transports that wait by themselves: what tdm_team_enter() shows; the seconds after which
 * another rank is lost to this one, now that it waits; for whom it waits, and that it has ended;
 * and what all ranks then say of a lost one. `where` is what that does, as tdm_team_describe() puts
 * it. */
void tdm_team_show(struct tdm_team *team, const struct tdm_launch *launch,
                   struct tdm_executor *executor);
double tdm_team_patience(struct tdm_team *team, uint32_t rank);
void tdm_team_waits(struct tdm_team *team, uint32_t rank, uint32_t waits_for);
void tdm_team_goes_on(struct tdm_team *team, uint32_t rank);
enum tdm_status tdm_team_lose(struct tdm_team *team, uint32_t rank, uint32_t lost,
                              const char *where, struct tdm_error *err);

/* What a rank of this process does, and since when: "at attention, layer 13, chunk 57 for 41 s". A
 * rank that waits for another one: *waits_for is that rank, else TDM_NONE. Returns `out`. */
#define TDM_TEAM_WHERE 160
const char *tdm_team_describe(struct tdm_team *team, uint32_t rank, uint32_t *waits_for,
                              char out[TDM_TEAM_WHERE]);

/* A rank has failed: the others end at their next wait. */
void tdm_team_fail(struct tdm_team *team, uint32_t rank);

/* The first rank that failed; TDM_NONE if none has. */
uint32_t tdm_team_failed(struct tdm_team *team);

/* If that one was lost: what is said of it. Else false. */
bool tdm_team_lost(struct tdm_team *team, struct tdm_error *err);

#endif
