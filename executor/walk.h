/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk: replays one step of a program on a backend.
 *
 * Every op waits for what the derived order says, its accesses become memory, and the backend launches
 * it on its lane. Nothing is allocated.
 */
#ifndef TDM_EXECUTOR_WALK_H
#define TDM_EXECUTOR_WALK_H

#include "executor/arenas.h"
#include "executor/observer.h"

#include <signal.h>

struct tdm_walk;

/* A walk over `program` in `arenas`; both must outlive it. */
enum tdm_status tdm_walk_new(const struct tdm_program *program, const struct tdm_arenas *arenas,
                             struct tdm_walk **walk, struct tdm_error *err);
void tdm_walk_free(struct tdm_walk *walk);

/* Has the backend get ready for the ops of the program. What the arenas hold is lost. */
enum tdm_status tdm_walk_prepare(struct tdm_walk *walk, struct tdm_error *err);

/* Runs a step to its end, with all lanes finished. `observer` may be NULL. A non-zero *stop ends it
 * after the current op: TDM_INTERRUPTED. */
enum tdm_status tdm_walk_step(struct tdm_walk *walk, const struct tdm_step *step,
                              struct tdm_observer *observer, const volatile sig_atomic_t *stop,
                              struct tdm_error *err);

#endif
