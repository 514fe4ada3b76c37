/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a run: initialises them, and saves them or gradients; a part of run.c.
 */
#ifndef TDM_EXECUTOR_RUN_WEIGHTS_H
#define TDM_EXECUTOR_RUN_WEIGHTS_H

#include "executor/arenas.h"
#include "executor/run.h"
#include "models/weights.h"

struct tdm_run_weights {
    const struct tdm_run_options *options;
    const struct tdm_run_listener *listener;
    struct tdm_weights *files; /* to load from; NULL: random */
    const char *moving;        /* the current activity, for listener->moved */
    bool saved;                /* this run has saved; the next save replaces that */
};

/* Called before anything is allocated. Opens the directory to load from and checks the directories
 * to write to, for `program`, the run's first. TDM_USAGE if the run cannot save what is asked for;
 * errors of tdm_weights_find() and tdm_weights_check(). Must be closed even after a failure. */
enum tdm_status tdm_run_weights_open(const struct tdm_run_options *options,
                                     const struct tdm_run_listener *listener,
                                     const struct tdm_program *program,
                                     struct tdm_run_weights *weights, struct tdm_error *err);
void tdm_run_weights_close(struct tdm_run_weights *weights);

/* Initialises the state of a program. */
enum tdm_status tdm_run_weights_init(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, struct tdm_error *err);

/* Saves weights or gradients if they are to be saved after step `step`. */
enum tdm_status tdm_run_weights_save(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, uint64_t step,
                                     struct tdm_error *err);

#endif
