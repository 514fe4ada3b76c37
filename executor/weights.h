/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves weights between the arenas of a program and a directory of files, or draws random ones.
 * Works block by block: outside the arenas only a few blocks of a model are in memory at a time.
 */
#ifndef TDM_EXECUTOR_WEIGHTS_H
#define TDM_EXECUTOR_WEIGHTS_H

#include "executor/arenas.h"
#include "models/weights.h"

#include <signal.h>

/* Called after every block with the number of elements moved, of `elements`. A NULL watch is
 * allowed. */
struct tdm_weights_watch {
    void *self;
    void (*moved)(void *self, uint64_t done, uint64_t elements);
    const volatile sig_atomic_t *stop; /* TDM_INTERRUPTED when it is set; NULL: never */
};

/* Adds `count` to *done and calls the watch (NULL is allowed). */
enum tdm_status tdm_weights_moved(const struct tdm_weights_watch *watch, uint64_t count,
                                  uint64_t *done, uint64_t elements, struct tdm_error *err);

/* Opens the weights of a directory whose config.json must describe `model`, for which `schedule` (a
 * path, for messages) was planned. TDM_USAGE if it is not a directory; TDM_INPUT if it holds
 * another model; errors of tdm_weights_open(). */
enum tdm_status tdm_weights_find(const char *directory, const char *schedule,
                                 const struct tdm_model *model, struct tdm_weights **weights,
                                 struct tdm_error *err);

/* Loads files into arenas: weights, matching masters (exact: an fp32 value in a file is the master,
 * bit for bit), zero moments. */
enum tdm_status tdm_weights_load(const struct tdm_weights *weights, const struct tdm_arenas *arenas,
                                 const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err);

/* Draws random weights: vectors by tdm_model_vector_start(), matrices from a normal distribution
 * with the config's initializer_range; matching masters, zero moments. Reproducible by (seed,
 * tensor, element). */
enum tdm_status tdm_weights_draw(uint64_t seed, const struct tdm_arenas *arenas,
                                 const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err);

/* Saves from arenas into files: the weights that ops compute with, or, at fp32, with the precision
 * of their masters; or gradients, if the target says so. TDM_INPUT, and nothing is saved, if a
 * value is not finite. */
enum tdm_status tdm_weights_save(const struct tdm_weights_target *target,
                                 const struct tdm_arenas *arenas, const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err);

#endif
