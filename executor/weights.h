/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights between the arenas of a program and a directory of files, or random ones: block by block,
 * so that beside the arenas there is never more of a model in memory than a few blocks.
 */
#ifndef TDM_EXECUTOR_WEIGHTS_H
#define TDM_EXECUTOR_WEIGHTS_H

#include "executor/arenas.h"
#include "models/weights.h"

#include <signal.h>

/* Told after every block how many of all elements have moved. A NULL watch watches nothing. */
struct tdm_weights_watch {
    void *self;
    void (*moved)(void *self, uint64_t done, uint64_t elements);
    const volatile sig_atomic_t *stop; /* TDM_INTERRUPTED when it is set; NULL: never */
};

/* Opens the weights of a directory whose config.json describes `model`, which `schedule` (a path,
 * for messages) was planned for. TDM_USAGE if it is no directory; TDM_INPUT if it is another
 * model's; errors of tdm_weights_open(). */
enum tdm_status tdm_weights_find(const char *directory, const char *schedule,
                                 const struct tdm_model *model, struct tdm_weights **weights,
                                 struct tdm_error *err);

/* Files into arenas: weights, masters to match (exact: a file's fp32 is the master, bit for bit),
 * zero moments. */
enum tdm_status tdm_weights_load(const struct tdm_weights *weights, const struct tdm_arenas *arenas,
                                 const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err);

/* Random weights: vectors as tdm_model_vector_start() says, matrices normal with the config's
 * initializer_range; masters to match, moments 0. Repeatable by (seed, tensor, element). */
enum tdm_status tdm_weights_draw(uint64_t seed, const struct tdm_arenas *arenas,
                                 const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err);

/* Arenas into files: the weights that ops compute with, or, at fp32, with the precision of their
 * masters; or gradients, if the target says so. */
enum tdm_status tdm_weights_save(const struct tdm_weights_target *target,
                                 const struct tdm_arenas *arenas, const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err);

#endif
