/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk: replays one step of a program on a backend.
 *
 * Every op waits for what the derived order says, its accesses become memory, and the backend
 * launches it on its lane. Nothing is allocated.
 *
 * Where ops end later than they are launched, the walk is ahead of them by 2 s or two ops at most,
 * by what is predicted and how it went so far: so soon a step that is interrupted ends.
 */
#ifndef TDM_EXECUTOR_WALK_H
#define TDM_EXECUTOR_WALK_H

#include "executor/arenas.h"
#include "executor/forecast.h"
#include "executor/observer.h"

#include <signal.h>

struct tdm_walk;

/* A walk over `program` in `arenas`; both must outlive it, and so must `forecast`, which is of the
 * program; NULL: the walk makes one. */
enum tdm_status tdm_walk_new(const struct tdm_program *program, const struct tdm_forecast *forecast,
                             const struct tdm_arenas *arenas, struct tdm_walk **walk,
                             struct tdm_error *err);
void tdm_walk_free(struct tdm_walk *walk);

/* Has the backend get ready for the ops of the program. What the arenas hold is lost. */
enum tdm_status tdm_walk_prepare(struct tdm_walk *walk, struct tdm_error *err);

/* Who looks at a step while it goes on: a few times a second, between two launches. `ended`: so
 * many ops of the compute lane have; `seconds` since the step began. A failure ends the step. */
struct tdm_walk_watch {
    void *self;
    enum tdm_status (*look)(void *self, uint64_t ended, double seconds, struct tdm_error *err);
};

/* From here on `watch` (borrowed; may be NULL) looks at the walk's steps. */
void tdm_walk_watch(struct tdm_walk *walk, const struct tdm_walk_watch *watch);

/* Ops of the compute lane that were launched in the step under way, or in the last one. */
uint64_t tdm_walk_launched(const struct tdm_walk *walk);

/* Bytes that a walk takes for an op. */
uint64_t tdm_walk_op_bytes(void);

/* Runs a step to its end, with all lanes finished. `observer` may be NULL. A non-zero *stop ends it
 * after the ops that are launched: TDM_INTERRUPTED, with how far the step is. */
enum tdm_status tdm_walk_step(struct tdm_walk *walk, const struct tdm_step *step,
                              struct tdm_observer *observer, const volatile sig_atomic_t *stop,
                              struct tdm_error *err);

#endif
