/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend: what runs a program. A const table of functions; NULL means not supported.
 *
 * `cpu` computes in fp32 and loads and stores any dtype of the schedule, so it runs schedules
 * planned for GPUs with the same byte layout. `null` only counts. All memory of a step lies in one
 * arena per place, allocated once. After tdm_backend.open() and arena() no function below
 * allocates.
 */
#ifndef TDM_EXECUTOR_BACKEND_H
#define TDM_EXECUTOR_BACKEND_H

#include "schedule/program.h"

#include <signal.h>
#include <stddef.h>

/* An operand resolved to memory. `data` is the first byte of the first slot; NULL if absent. */
struct tdm_operand {
    void *data;
    enum tdm_dtype dtype;
    enum tdm_mode mode;
    uint32_t slots;
    uint64_t slot_bytes;
};

/* First byte of element `element` of an operand. */
static inline void *tdm_operand_at(const struct tdm_operand *operand, uint64_t element)
{
    return (unsigned char *)operand->data + element * tdm_dtype_bytes(operand->dtype);
}

/* The parameters of a step that its ops read. */
struct tdm_step {
    uint64_t number; /* from 1 */
    double learning_rate;
    uint64_t seed;
    bool untimed; /* op times are not needed */
    /* set if the schedule takes documents from the text; else NULL and 0 */
    const struct tdm_sequence *sequences; /* [sequence_count], documents of this step */
    /* a bit for each row of the embedding that a token of the step uses; NULL: not known */
    const uint64_t *used_rows;
    /* tokens that have a target, if that is not as the schedule says; else 0 */
    uint64_t trained_tokens;
};

/* Maximum number of documents of a step, over all sequences, if they come from the text. */
#define TDM_MOST_STEP_DOCUMENTS 65536u

struct tdm_team;
struct tdm_team_verbs;

/* One op, ready to run. */
struct tdm_launch {
    const struct tdm_program *program;
    const struct tdm_op *op;
    const struct tdm_step *step;
    struct tdm_operand operand[TDM_OPERANDS]; /* same order as op->access */
    void *scratch;         /* program->scratch on the device, for a backend that wants it */
    struct tdm_team *team; /* in which the ranks meet (team.h); NULL with one rank */
};

/* The parameters that all ops of a family share; and the tensors of the op's part. */
static inline const struct tdm_params *tdm_launch_params(const struct tdm_launch *launch)
{
    return &launch->program->params;
}

static inline struct tdm_part_tensors tdm_launch_tensors(const struct tdm_launch *launch)
{
    return tdm_part_tensors(&launch->program->params.weights, launch->op->part, launch->op->layer);
}

/* The sequence that an op works on, with its documents of this step. */
static inline const struct tdm_sequence *tdm_launch_sequence(const struct tdm_launch *launch)
{
    uint32_t number = launch->program->chunks[launch->op->chunk].sequence;
    const struct tdm_sequence *sequences = launch->step->sequences;
    return sequences != NULL ? &sequences[number] : &launch->program->sequences[number];
}

/* Tokens of the step that have a target: the loss is the mean over these. */
static inline uint64_t tdm_launch_trained_tokens(const struct tdm_launch *launch)
{
    return launch->step->trained_tokens > 0 ? launch->step->trained_tokens
                                            : launch->program->params.head.trained_tokens;
}

/* A backend's own state. */
struct tdm_executor;

/* Counts of an op that are known only at run time; 0: not counted. */
struct tdm_counts {
    uint64_t pairs;         /* of a selection: (query, key) pairs of its lists */
    uint64_t fetched_bytes; /* of attention that gathers: fetched from the host, and sent to it */
    uint64_t sent_bytes;
};

/* When an op ran, on the clock of tdm_backend.now(). */
struct tdm_timing {
    uint64_t op_number;
    int64_t start_ns, end_ns;
    struct tdm_counts counts;
};

/* A device with its own memory. */
struct tdm_card {
    char name[96];   /* as the driver calls it: "NVIDIA H200" */
    char driver[64]; /* version of the driver; "" if it cannot be found out */
    uint64_t bytes;  /* of memory, as the driver reports it */
};

/* Receives progress while the host arena is allocated, which takes long, and can interrupt it. */
struct tdm_arena_watch {
    void *self;
    void (*taken)(void *self, uint64_t taken_bytes, uint64_t bytes);
    /* Called if the host arena stays pageable, with the reason. May be NULL. */
    void (*pageable)(void *self, uint64_t bytes, const char *reason);
    const volatile sig_atomic_t *stop; /* not zero: TDM_INTERRUPTED; NULL: never */
};

struct tdm_backend {
    const char *name;
    const char *description;
    bool executes;          /* false: null; arenas are not taken and no values exist */
    double timing_seconds;  /* delay of a lane per op that is timed */
    bool own_device_memory; /* the device arena is not host memory */
    uint32_t places, lanes; /* it supports this many of the machine's, from number 0 */

    /* Initialises for programs of one model, on a device by number (0 where there is no choice).
     * Scratch is sized for the largest of the `count` programs. */
    enum tdm_status (*open)(uint32_t count, const struct tdm_program *const *programs,
                            uint32_t device, struct tdm_executor **executor, struct tdm_error *err);
    void (*close)(struct tdm_executor *executor);

    /* Allocates `bytes` at a place, aligned to at least 4096. close() releases them. */
    enum tdm_status (*arena)(struct tdm_executor *executor, enum tdm_place place, uint64_t bytes,
                             void **base, struct tdm_error *err);

    /* Sets the watch of later arena() calls (borrowed; may be NULL). NULL: arenas are allocated too
     * quickly for progress. */
    void (*watch)(struct tdm_executor *executor, const struct tdm_arena_watch *watch);

    /* Called before the first step of a program, while the arenas hold nothing, for each of its
     * examples (examples.h). Prepares for ops like this one. It may overwrite every byte of the
     * arenas. finish() must follow the last. NULL: no preparation is needed. */
    enum tdm_status (*prepare)(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err);

    /* Does the backend have kernels for the sizes and dtypes of a program? Opens nothing and needs
     * no device. TDM_INPUT names what is missing. NULL: everything that a schedule can contain is
     * supported. */
    enum tdm_status (*supports)(const struct tdm_program *program, struct tdm_error *err);

    /* Called before a step whose documents come from the text (tdm_step.sequences). NULL: ops read
     * them from the step. */
    enum tdm_status (*documents)(struct tdm_executor *executor, const struct tdm_program *program,
                                 const struct tdm_sequence *sequences, struct tdm_error *err);

    /* Launches an op on its lane. NULL: no kernel for that kind of op. */
    enum tdm_status (*run[TDM_OP_KINDS])(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err);

    /* What transports between ranks need (transport.h). NULL: it runs no team ops. */
    const struct tdm_team_verbs *team;

    /* Orders lanes: `lane` continues only after `other` has finished its op at `position`. */
    enum tdm_status (*wait)(struct tdm_executor *executor, enum tdm_lane lane, enum tdm_lane other,
                            uint64_t position, struct tdm_error *err);

    /* Number of ops of a lane that have ended in this step. Waits until the op at position `await`
     * has ended (0: does not wait). NULL: ops end when they are launched. */
    enum tdm_status (*ended)(struct tdm_executor *executor, enum tdm_lane lane, uint64_t await,
                             uint64_t *ended, struct tdm_error *err);

    /* Waits until all lanes have ended. */
    enum tdm_status (*finish)(struct tdm_executor *executor, struct tdm_error *err);

    /* Removes the times of up to `capacity` ended ops from the backend's queue and returns their
     * number. */
    size_t (*reap)(struct tdm_executor *executor, struct tdm_timing *timings, size_t capacity);

    /* Copy between an arena and ordinary memory, outside steps. upload: a NULL source writes zeros.
     * */
    enum tdm_status (*upload)(struct tdm_executor *executor, void *arena_bytes, const void *source,
                              uint64_t bytes, struct tdm_error *err);
    enum tdm_status (*download)(struct tdm_executor *executor, void *destination,
                                const void *arena_bytes, uint64_t bytes, struct tdm_error *err);

    /* fill writes the pattern to `bytes` of an arena from `offset` on (both multiples of 8). scan
     * counts the bytes, in 8-byte words, that no longer hold the pattern, and finds the end of the
     * highest such word. */
    enum tdm_status (*fill)(struct tdm_executor *executor, void *base, uint64_t offset,
                            uint64_t bytes, struct tdm_error *err);
    enum tdm_status (*scan)(struct tdm_executor *executor, const void *base, uint64_t bytes,
                            uint64_t *touched_bytes, uint64_t *highest_byte, struct tdm_error *err);

    /* Memory of the device: bytes that the driver reports as used by this process, and bytes that
     * are still free (`free_bytes` may be NULL). NULL: the backend has no device memory of its own.
     * */
    enum tdm_status (*used)(const struct tdm_executor *executor, uint64_t *used_bytes,
                            uint64_t *free_bytes, struct tdm_error *err);

    /* Bytes of the host arena that are pinned. NULL: 0. */
    uint64_t (*pinned_bytes)(const struct tdm_executor *executor);

    /* Number of devices that open() can choose from. NULL: any number of ranks share one. */
    enum tdm_status (*devices)(uint32_t *count, struct tdm_error *err);

    /* Free bytes of the device's memory, as far as they can be known without opening anything.
     * NULL: no device memory of its own. */
    enum tdm_status (*free_bytes)(uint64_t *bytes, struct tdm_error *err);

    /* Describes the device that it would use; opens nothing. NULL: no device of its own. */
    enum tdm_status (*card)(struct tdm_card *card, struct tdm_error *err);

    /* Current time in nanoseconds, on the clock of the timings. */
    int64_t (*now)(struct tdm_executor *executor);

    /* Bytes that the backend holds outside the arenas (scratch, handles). */
    uint64_t (*outside_bytes)(const struct tdm_executor *executor);
};

/* "cpu", "cuda" (with CUDA), "null". NULL-terminated table of this build's backends. */
extern const struct tdm_backend *const tdm_backends[];

/* Finds a backend by name. TDM_USAGE lists the names, or says that this build has no cuda. */
enum tdm_status tdm_backend_find(const char *name, const struct tdm_backend **backend,
                                 struct tdm_error *err);

/* Can the backend run all programs, and do they have the same places? TDM_INPUT names the place or
 * lane that is not supported, or the missing kernel. Opens nothing. arenas.h calls it before
 * allocation, so that a run cannot fail for this reason midway. */
enum tdm_status tdm_backend_check(const struct tdm_backend *backend, uint32_t count,
                                  const struct tdm_program *const *programs, struct tdm_error *err);

#endif
