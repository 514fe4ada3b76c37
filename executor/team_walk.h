/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walks of all ranks of a step, each over its own arenas: rank 0 on the caller's thread, the
 * others on threads of their own. With one rank it is that rank's walk.
 */
#ifndef TDM_EXECUTOR_TEAM_WALK_H
#define TDM_EXECUTOR_TEAM_WALK_H

#include "executor/team.h"
#include "executor/walk.h"

struct tdm_team_walk;

/* Creates the walks of a program over `arenas` [program->ranks]. Both must outlive them, and so
 * must `forecasts` (of the ranks, may be NULL: tdm_walk_new()). */
enum tdm_status tdm_team_walk_new(const struct tdm_program *program,
                                  struct tdm_forecast *const *forecasts,
                                  const struct tdm_arenas *arenas, struct tdm_team_walk **walk,
                                  struct tdm_error *err);
void tdm_team_walk_free(struct tdm_team_walk *walk);

/* The walk of a rank, and the program as that rank runs it. */
struct tdm_walk *tdm_team_walk_of(const struct tdm_team_walk *walk, uint32_t rank);
const struct tdm_program *tdm_team_walk_program(const struct tdm_team_walk *walk, uint32_t rank);

/* tdm_walk_prepare() for all ranks. */
enum tdm_status tdm_team_walk_prepare(struct tdm_team_walk *walk, struct tdm_error *err);

/* tdm_walk_step() of all ranks, which `observers` (NULL: none) see. The error is that of the rank
 * that failed first, which it names. */
enum tdm_status tdm_team_walk_step(struct tdm_team_walk *walk, const struct tdm_step *step,
                                   struct tdm_observer *const *observers,
                                   const volatile sig_atomic_t *stop, struct tdm_error *err);

#endif
