/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save that several processes write together: each puts what its ranks have into files that
 * process 0 made, of a model or a checkpoint (models/weights.h).
 */
#ifndef TDM_EXECUTOR_SHARED_SAVE_H
#define TDM_EXECUTOR_SHARED_SAVE_H

#include "executor/arenas.h"
#include "executor/weights.h"

/* So many files are written at the same time by a process, at most: each needs a block of memory.
 */
#define TDM_MOST_WRITERS 8u

/* A set of files: a content of all tensors. */
struct tdm_shared_set {
    const char *part; /* of a checkpoint (weights.h); NULL: the model */
    enum tdm_content content;
    enum tdm_dtype dtype; /* of the files */
    bool rounded;         /* read as fp32, which is rounded to `dtype`; else as it is kept */
    const char *checked;  /* its values must be finite: what a message calls them; NULL: any */
};

/* All processes: writes `count` sets, and reads them back. `target` has `shared`. TDM_INPUT on all
 * of them if a value that is to be finite is not. On success the caller owns *writer: process 0
 * adds what else there is and commits it, the others abandon it. */
enum tdm_status tdm_shared_save(const struct tdm_weights_target *target,
                                const struct tdm_arenas *arenas, const struct tdm_program *program,
                                uint32_t count, const struct tdm_shared_set *sets,
                                const struct tdm_weights_watch *watch,
                                struct tdm_weights_writer **writer, struct tdm_error *err);

/* TDM_INPUT, with the tensor's name, unless all of `count` elements are finite. Remainders always
 * are. `shown`: what they are called. */
enum tdm_status tdm_check_finite(const struct tdm_model *model, const struct tdm_tensor *tensor,
                                 const char *shown, enum tdm_dtype dtype, const void *data,
                                 uint64_t count, struct tdm_error *err);

#endif
