/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run: trains one or more schedules, one after the other in the same arenas, and records a trace.
 *
 * Each program is validated before anything is allocated. Its first step is the measured one: the
 * arenas are filled with the pattern before it and scanned after it, and the launches are observed.
 */
#ifndef TDM_EXECUTOR_RUN_H
#define TDM_EXECUTOR_RUN_H

#include "executor/amounts.h"
#include "executor/arenas.h"
#include "executor/processes.h"
#include "executor/transport.h"
#include "texts/order.h"
#include "texts/tokens.h"
#include "traces/trace.h"

#include <signal.h>

/* A text to evaluate on. */
struct tdm_run_text {
    char name[TDM_TEXT_NAME]; /* "validation" of one that nobody named */
    const char *path;         /* NULL: the end of the tokens, */
    double share;             /* this part of them */
};
#define TDM_RUN_MOST_TEXTS 16u

struct tdm_run_options {
    uint32_t schedule_count;
    const char *const *schedule_paths;
    const struct tdm_backend *backend;
    uint64_t seed;            /* for random weights and for where sequences begin */
    bool seed_given;          /* else a resumed run has the seed of the checkpoint */
    const char *weights_path; /* directory to load from; NULL: random */
    const char *tokens_path;  /* NULL: random tokens */
    const char *mask_path;    /* of the tokens; NULL: none */
    enum tdm_text_order order;
    uint64_t steps;           /* the last one */
    const char *const *pairs; /* of --set, KEY=VALUE; applied to the training schedules */
    size_t pair_count;
    const char *evaluate_path; /* schedule that evaluates between steps; NULL: none */
    uint64_t evaluate_every;   /* in steps; also after the last one */
    uint64_t evaluate_windows; /* maximum steps of its program in one evaluation */
    struct tdm_run_text texts[TDM_RUN_MOST_TEXTS]; /* to evaluate on */
    uint32_t text_count;                           /* with evaluate_path at least 1 */
    const char *trace_path;                        /* NULL: none */
    const char *log_path;       /* directory for CSV and event files; NULL: none */
    const char *save_path;      /* directory to write the trained model to; with save_every a folder
                                   of checkpoints; NULL: none */
    const char *resume_path;    /* checkpoint, or a folder of them, to go on from; NULL: none */
    const char *gradients_path; /* directory for the gradients of the last step; NULL: none */
    enum tdm_dtype save_dtype;  /* of saved weights; NONE: the schedule's dtype */
    uint64_t save_every;        /* in steps; also after the last one; 0: only then, and no
                                   checkpoint */
    uint64_t save_keep;         /* checkpoints that stay */
    bool saves_within;          /* also within a step, where it pauses in the backward: */
    double within_seconds;      /* if the last checkpoint is so old, or the run is to stop */
    uint64_t shard_bytes;       /* maximum size of a saved file */
    const uint32_t *devices;    /* [device_count] of this process' ranks; NULL: 0, 1, ... */
    uint32_t device_count;
    const struct tdm_transport *transport; /* between ranks; NULL: by what the backend can */
    struct tdm_processes *processes;       /* which share the run; NULL: one */
    double late_seconds;  /* the least after which a rank is taken to be lost; 0: 30 */
    bool check_finite;    /* after a loss that is not a number, run again to find why */
    bool force;           /* replace an existing trace or saved directory */
    uint64_t timed_every; /* record op times of step 1 and every k-th; 0: automatic */
    bool dry_run;         /* allocate nothing, run nothing */
    const char *command;  /* for the trace */
    /* Not zero: the run ends as soon as it can. If it writes checkpoints, it ends the step and
     * saves first. */
    const volatile sig_atomic_t *stop;
    const volatile sig_atomic_t *cut; /* not zero: it ends in the middle of that too; NULL: never */
    volatile sig_atomic_t *save_now;  /* not zero: a checkpoint is saved after the step, and it
                                         becomes  zero; NULL: never */
};

/* Progress of a step: the running op, the seconds since the step began, and the estimated remaining
 * seconds. */
struct tdm_run_moment {
    const struct tdm_program *program;
    uint64_t step;
    enum tdm_phase phase;
    uint32_t layer, chunk; /* or TDM_NONE */
    double seconds, left_seconds;
    bool left_as_planned;   /* left_seconds is the schedule's: too little has run to tell more */
    bool stopping;          /* the run ends after this step, */
    bool pauses;            /* or within it, where its backward pauses */
    uint64_t used_bytes;    /* of the device, as its driver reports it; 0: not known */
    uint64_t planned_bytes; /* of the device: the arenas on it and the runtime */
};

/* Receives the progress of a run. Calls come from the run's thread, and outside steps except for
 * within(). */
struct tdm_run_listener {
    void *self;
    /* Progress of arena allocation. */
    struct tdm_arena_watch taking;
    /* Called before anything is allocated. */
    void (*planned)(void *self, const char *path, const struct tdm_program *program,
                    const struct tdm_amounts *amounts, double predicted_seconds);
    /* In a dry run: the memory that is free. */
    void (*compared)(void *self, const struct tdm_free_memory *memory);
    /* The tokens are loaded; `entropy` is their unigram entropy in nats. */
    void (*tokens)(void *self, const struct tdm_tokens *tokens, double entropy);
    /* Weights are being moved: the activity ("loading weights"), and `done` of `elements`. */
    void (*moved)(void *self, const char *what, uint64_t done, uint64_t elements);
    /* The run goes on after `step`, or, `within`, in the one after it. `differences` from the run
     * that saved change how sums are rounded, or the user wants them; "": none. */
    void (*resumed)(void *self, const char *directory, uint64_t step, bool within,
                    const char *differences);
    /* Checkpoints will be written beside the next step, or, for the reason `between`, between two.
     */
    void (*saving)(void *self, const char *between);
    /* A checkpoint was saved after a step. */
    void (*saved)(void *self, const char *directory, uint64_t step, double seconds);
    /* What checkpoints within a step take: at `pauses` points of it from `least_bytes` to
     * `most_bytes`, of which the first is expected `first_seconds` after the step began, and no two
     * are more than `gap_seconds` apart. May be NULL. */
    void (*within_costs)(void *self, uint32_t pauses, uint64_t least_bytes, uint64_t most_bytes,
                         double first_seconds, double gap_seconds);
    /* A checkpoint was saved within a step, before op `op` of `ops`. May be NULL. */
    void (*saved_within)(void *self, const char *directory, uint64_t step, uint64_t op,
                         uint64_t ops, double seconds);
    /* Called a few times a second in a step. May be NULL. */
    void (*within)(void *self, const struct tdm_run_moment *moment);
    void (*stepped)(void *self, const struct tdm_program *program, uint64_t step, double loss,
                    double gradient_norm, double seconds);
    /* An evaluation on a text after a step has ended. */
    void (*evaluated)(void *self, uint64_t step, const char *text, double loss, uint64_t tokens,
                      double seconds);
    /* Something went wrong that does not concern the training, as an old checkpoint that cannot be
     * removed. May be NULL. */
    void (*warned)(void *self, const struct tdm_error *what);
    /* The trace cannot be written any more; the run goes on without it. May be NULL. */
    void (*trace_lost)(void *self, const struct tdm_error *failure);
};

/* Results of the evaluations of one schedule on a text. A loss is NAN if the backend computes
 * nothing. */
struct tdm_run_validation {
    uint64_t evaluations, tokens; /* tokens: of one evaluation */
    double last_loss, best_loss;
    uint64_t last_step, best_step;
    double seconds; /* of all */
};

/* Results of one schedule. */
struct tdm_run_result {
    bool begun;            /* its first step has begun */
    bool hangs;            /* a rank is in an op that does not end: the process must end so */
    bool finished;         /* all steps are done, and all that was to be saved is saved */
    uint64_t steps;        /* the last one that is done */
    uint64_t resumed_step; /* the run went on after this one; 0: from the start */
    uint64_t saved_step;   /* of the last checkpoint that it saved; 0: none */
    uint64_t within_step;  /* the step within which it saved a checkpoint after that; 0: none */
    uint64_t tokens;
    double first_loss, late_loss; /* of step 1; mean of the last tenth; NAN: not computed */
    double unigram_entropy;       /* of the tokens, nats */
    double seconds;               /* of all steps */
    double predicted_step_seconds;
    double model_flops;                                        /* of a step, for MFU */
    struct tdm_run_validation validations[TDM_RUN_MOST_TEXTS]; /* [text_count of the options] */
    struct tdm_topology topology;                              /* of the schedule's machine */
    struct tdm_trace_arena arenas[TDM_MAX_PLACES];
    const char *failed;     /* what of its last step is not a number; NULL: nothing */
    bool scanned;           /* it is known which of their bytes a whole step touched */
    uint64_t outside_bytes; /* held by the backend outside the arenas */
    /* Of a device with its own memory: the maximum that its driver reported over all steps; the
     * plan, which is the arenas of its ranks as allocated for all schedules plus the runtime; the
     * runtime alone; and these ranks, on the device with most. */
    uint64_t device_used_bytes, device_planned_bytes, runtime_planned_bytes;
    uint32_t device_ranks;
};

/* Runs all schedules; `results` is [schedule_count]. After TDM_INTERRUPTED the trace is complete up
 * to there, and so are the results. If the trace could not be written to its end, the run goes on,
 * saves, and then fails with the reason. */
enum tdm_status tdm_run(const struct tdm_run_options *options,
                        const struct tdm_run_listener *listener, struct tdm_run_result *results,
                        struct tdm_error *err);

#endif
