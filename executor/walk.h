/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk: replays one step of a program on a backend.
 *
 * Each op waits as the derived order requires. The walk resolves its accesses to memory addresses,
 * and the backend launches it on its lane. A step allocates nothing.
 *
 * Where ops end later than they are launched, the walk launches at most about 2 s of work ahead of
 * the compute lane, but always two ops, so that an interrupt takes effect quickly. The work is
 * estimated from the forecast and from how the step has gone so far.
 */
#ifndef TDM_EXECUTOR_WALK_H
#define TDM_EXECUTOR_WALK_H

#include "executor/arenas.h"
#include "executor/forecast.h"
#include "executor/observer.h"
#include "executor/transport.h"

#include <signal.h>

struct tdm_walk;
struct tdm_finite;

/* Creates a walk over `program` in `arenas`. Both must outlive it, and so must `forecast`, which
 * must be of the same program. With NULL the walk makes its own. */
enum tdm_status tdm_walk_new(const struct tdm_program *program, const struct tdm_forecast *forecast,
                             const struct tdm_arenas *arenas, struct tdm_walk **walk,
                             struct tdm_error *err);
void tdm_walk_free(struct tdm_walk *walk);

/* With several ranks: the team in which the walk's rank runs its steps (team.h), which must outlive
 * it. */
void tdm_walk_join(struct tdm_walk *walk, struct tdm_team *team);

/* What the team ops of its rank need of their transport. */
enum tdm_status tdm_walk_team_needs(struct tdm_walk *walk, struct tdm_team_needs *needs,
                                    struct tdm_error *err);

/* Prepares the backend for the ops of the program. The contents of the arenas are lost. */
enum tdm_status tdm_walk_prepare(struct tdm_walk *walk, struct tdm_error *err);

/* Observes a running step: look() is called a few times a second, between two launches. `ended` is
 * the number of ops of the compute lane that have ended, `seconds` the time since the step began. A
 * failure ends the step. */
struct tdm_walk_watch {
    void *self;
    enum tdm_status (*look)(void *self, uint64_t ended, double seconds, struct tdm_error *err);
};

/* Sets the watch for later steps. It is borrowed and may be NULL. */
void tdm_walk_watch(struct tdm_walk *walk, const struct tdm_walk_watch *watch);

/* Sets what checks the outputs of every op of later steps (finite.h); borrowed, NULL: nothing. Ops
 * then run one by one. */
void tdm_walk_check(struct tdm_walk *walk, struct tdm_finite *finite);

/* Asked before each op whether the step pauses there; if so, pause() is called when all ops before
 * it have ended, and reads what it needs from the arenas. `seconds`: since the walk began the step.
 * A failure ends the step. */
struct tdm_walk_pauser {
    void *self;
    bool (*wants)(void *self, const struct tdm_op *op);
    enum tdm_status (*pause)(void *self, const struct tdm_op *op, double seconds,
                             struct tdm_error *err);
};

/* Sets the pauser of later steps. It is borrowed and may be NULL. */
void tdm_walk_pause(struct tdm_walk *walk, const struct tdm_walk_pauser *pauser);

/* The next step begins with the op of this number: the arenas hold what the ops before it leave. Of
 * several ranks all begin at the same pause (pauses.h). */
void tdm_walk_begin_at(struct tdm_walk *walk, uint64_t op);

/* Ops of the compute lane launched in the current step, or else in the last one. */
uint64_t tdm_walk_launched(const struct tdm_walk *walk);

/* Bytes that a walk allocates for each op. */
uint64_t tdm_walk_op_bytes(void);

/* Runs a step until all lanes have finished. `observer` may be NULL. If *stop becomes non-zero, no
 * further op is launched and the result is TDM_INTERRUPTED, with a message that says how far the
 * step is. */
enum tdm_status tdm_walk_step(struct tdm_walk *walk, const struct tdm_step *step,
                              struct tdm_observer *observer, const volatile sig_atomic_t *stop,
                              struct tdm_error *err);

#endif
