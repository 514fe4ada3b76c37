/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run: one or more schedules, trained one after the other in the same arenas, with a trace.
 *
 * Each program is validated before anything is taken. The first step of each is the measured one:
 * the arenas hold the pattern before it, are scanned after it, and the launches are observed.
 */
#ifndef TDM_EXECUTOR_RUN_H
#define TDM_EXECUTOR_RUN_H

#include "executor/amounts.h"
#include "executor/arenas.h"
#include "executor/tokens.h"
#include "traces/trace.h"

#include <signal.h>

struct tdm_run_options {
    uint32_t schedule_count;
    const char *const *schedule_paths;
    const struct tdm_backend *backend;
    uint64_t seed;            /* of random weights and of where sequences begin */
    const char *weights_path; /* directory to load them from; NULL: random */
    const char *tokens_path;  /* NULL: random tokens */
    uint64_t steps;
    const char *const *pairs; /* of --set, KEY=VALUE; for the schedules that train */
    size_t pair_count;
    const char *evaluate_path;   /* schedule that evaluates between steps; NULL: none */
    uint64_t evaluate_every;     /* steps; after the last one too */
    uint64_t evaluate_windows;   /* steps of its program an evaluation, at most */
    const char *validation_path; /* text to evaluate on; NULL: the last share of the tokens */
    double validation_share;
    const char *trace_path;     /* NULL: none */
    const char *save_path;      /* directory to write the trained model to; NULL: none */
    const char *gradients_path; /* directory for the gradients of the last step; NULL: none */
    enum tdm_dtype save_dtype;  /* of saved weights; NONE: as the schedule has them */
    uint64_t save_every;        /* steps, beside after the last one; 0: only then */
    uint64_t shard_bytes;       /* of a saved file, at most */
    bool force;                 /* replace an existing trace or saved directory */
    uint64_t timed_every; /* record op times of step 1 and every k-th; 0: choose by their number */
    bool dry_run;         /* take nothing, run nothing */
    const char *command;  /* for the trace */
    const volatile sig_atomic_t *stop;
};

/* How far a step is: the op that runs, the seconds since the step began, and those that are
 * left. */
struct tdm_run_moment {
    const struct tdm_program *program;
    uint64_t step;
    enum tdm_phase phase;
    uint32_t layer, chunk; /* or TDM_NONE */
    double seconds, left_seconds;
    uint64_t used_bytes;    /* of the device, as its driver reports it; 0: not known */
    uint64_t planned_bytes; /* of it: the arena and the runtime */
};

/* What a run says of itself while it goes on. Calls come from the run's thread, outside steps but
 * for within(). */
struct tdm_run_listener {
    void *self;
    /* While the arenas are taken. */
    struct tdm_watch taking;
    /* Before anything is taken. */
    void (*planned)(void *self, const char *path, const struct tdm_program *program,
                    const struct tdm_amounts *amounts, double predicted_seconds);
    /* Of a dry run: what there is of it. */
    void (*compared)(void *self, const struct tdm_free_memory *memory);
    /* Tokens are there, and their unigram entropy in nats. */
    void (*tokens)(void *self, const struct tdm_tokens *tokens, double entropy);
    /* Weights are being moved: what is done ("loading weights"), how many elements of how many. */
    void (*moved)(void *self, const char *what, uint64_t done, uint64_t elements);
    /* A few times a second, in a step. NULL: nobody asks. */
    void (*within)(void *self, const struct tdm_run_moment *moment);
    void (*stepped)(void *self, const struct tdm_program *program, uint64_t step, double loss,
                    double gradient_norm, double seconds);
    /* An evaluation after a step. */
    void (*evaluated)(void *self, uint64_t step, double loss, uint64_t tokens, double seconds);
};

/* What came of the evaluations of one schedule; loss NAN: nothing is computed. */
struct tdm_run_validation {
    uint64_t evaluations, tokens; /* tokens of one */
    double last_loss, best_loss;
    uint64_t last_step, best_step;
    double seconds; /* of all */
};

/* What came of one schedule. */
struct tdm_run_result {
    bool begun;     /* its first step was */
    uint64_t steps; /* done */
    uint64_t tokens;
    double first_loss, late_loss; /* of step 1; mean of the last tenth; NAN: nothing is computed */
    double unigram_entropy;       /* of the tokens, nats */
    double seconds;               /* of all steps */
    double predicted_step_seconds;
    double model_flops; /* of a step, for MFU */
    struct tdm_run_validation validation;
    struct tdm_topology topology; /* of the schedule's machine */
    struct tdm_trace_arena arenas[TDM_MAX_PLACES];
    uint64_t outside_bytes; /* that the backend holds beside the arenas */
    /* of a device of its own: what its driver reports, the most of all steps; what is planned, the
     * arena as taken for all schedules and the runtime; and of that the runtime */
    uint64_t device_used_bytes, device_planned_bytes, runtime_planned_bytes;
};

/* Runs all; `results` is [schedule_count]. TDM_INTERRUPTED leaves the trace whole and results up to
 * there. */
enum tdm_status tdm_run(const struct tdm_run_options *options,
                        const struct tdm_run_listener *listener, struct tdm_run_result *results,
                        struct tdm_error *err);

#endif
