/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a run: what they begin with, and where they, or gradients, are saved. Part of run.c,
 * in a file of its own.
 */
#ifndef TDM_EXECUTOR_RUN_WEIGHTS_H
#define TDM_EXECUTOR_RUN_WEIGHTS_H

#include "executor/arenas.h"
#include "executor/run.h"
#include "models/weights.h"

struct tdm_run_weights {
    const struct tdm_run_options *options;
    const struct tdm_run_listener *listener;
    struct tdm_weights *files; /* to begin with; NULL: random */
    const char *moving;        /* what is being done with weights */
    bool saved;                /* weights are in place that the next save replaces */
};

/* Before anything is taken: opens the directory that the run begins with and checks the ones that
 * it will write, for `program`, its first. TDM_USAGE if the run cannot save what is asked for;
 * errors of tdm_weights_find() and tdm_weights_check(). To be closed in any case. */
enum tdm_status tdm_run_weights_open(const struct tdm_run_options *options,
                                     const struct tdm_run_listener *listener,
                                     const struct tdm_program *program,
                                     struct tdm_run_weights *weights, struct tdm_error *err);
void tdm_run_weights_close(struct tdm_run_weights *weights);

/* Fills the state of a program. */
enum tdm_status tdm_run_weights_init(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, struct tdm_error *err);

/* Saves what is due after step `step`. */
enum tdm_status tdm_run_weights_save(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, uint64_t step,
                                     struct tdm_error *err);

#endif
