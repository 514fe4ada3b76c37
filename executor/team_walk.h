/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walks of all ranks of a step that this process has, each over its own arenas and on a thread
 * of its own. With one rank it is that rank's walk, on the caller's thread.
 */
#ifndef TDM_EXECUTOR_TEAM_WALK_H
#define TDM_EXECUTOR_TEAM_WALK_H

#include "executor/team.h"
#include "executor/walk.h"

struct tdm_team_walk;

/* Creates the walks of a program over `arenas` [program->ranks], where ranks of other processes
 * have no backend. Both must outlive them, and so must `forecasts` (of the ranks, may be NULL:
 * tdm_walk_new()). */
enum tdm_status tdm_team_walk_open(const struct tdm_program *program,
                                   struct tdm_forecast *const *forecasts,
                                   const struct tdm_arenas *arenas,
                                   const struct tdm_team_options *options,
                                   struct tdm_team_walk **walk, struct tdm_error *err);

/* The same, with all ranks in this process. */
enum tdm_status tdm_team_walk_new(const struct tdm_program *program,
                                  struct tdm_forecast *const *forecasts,
                                  const struct tdm_arenas *arenas, struct tdm_team_walk **walk,
                                  struct tdm_error *err);

/* Does nothing while a rank hangs. */
void tdm_team_walk_free(struct tdm_team_walk *walk);

/* Is a rank, after a failure, still in an op that does not end? Then it may use all memory of the
 * run, which must not be released. */
bool tdm_team_walk_hangs(const struct tdm_team_walk *walk);

/* The team of its ranks; NULL: one rank. */
struct tdm_team *tdm_team_walk_team(const struct tdm_team_walk *walk);

/* The walks of a rank of this process and of its first one, and the program as a rank runs it. */
struct tdm_walk *tdm_team_walk_of(const struct tdm_team_walk *walk, uint32_t rank);
struct tdm_walk *tdm_team_walk_first(const struct tdm_team_walk *walk);
const struct tdm_program *tdm_team_walk_program(const struct tdm_team_walk *walk, uint32_t rank);

/* tdm_walk_prepare() for all ranks. */
enum tdm_status tdm_team_walk_prepare(struct tdm_team_walk *walk, struct tdm_error *err);

/* tdm_walk_step() of all ranks, which `observers` (NULL: none) see. The error is that of the rank
 * that failed first, which it names. */
enum tdm_status tdm_team_walk_step(struct tdm_team_walk *walk, const struct tdm_step *step,
                                   struct tdm_observer *const *observers,
                                   const volatile sig_atomic_t *stop, struct tdm_error *err);

#endif
