/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend: what runs a program. A const table of functions; NULL means not supported.
 *
 * `cpu` computes in fp32 and loads and stores any dtype of the schedule, so it runs the byte layout
 * of GPU schedules; `null` counts only. All memory of a step is one arena per place, taken once. No
 * function below allocates once tdm_backend.open() and the arenas are done.
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

/* What a step of the run gives to its ops. */
struct tdm_step {
    uint64_t number; /* from 1 */
    double learning_rate;
    uint64_t seed;
    bool untimed; /* nobody asks for the times of its ops */
    /* where the schedule takes documents from the text; else NULL and 0 */
    const struct tdm_sequence *sequences; /* [sequence_count], with the documents of this step */
    uint64_t trained_tokens;              /* that have a target */
};

/* Documents of all sequences of a step that come from a text, at most. */
#define TDM_MOST_STEP_DOCUMENTS 65536u

/* One op, ready to run. */
struct tdm_launch {
    const struct tdm_program *program;
    const struct tdm_op *op;
    const struct tdm_step *step;
    struct tdm_operand operand[TDM_OPERANDS]; /* same order as op->access */
    void *scratch; /* program->scratch on the device, for a backend that wants it */
};

/* What all ops of a family share; and the tensors of the op's part. */
static inline const struct tdm_params *tdm_launch_params(const struct tdm_launch *launch)
{
    return &launch->program->params;
}

static inline struct tdm_part_tensors tdm_launch_tensors(const struct tdm_launch *launch)
{
    return tdm_part_tensors(&launch->program->params.weights, launch->op->part, launch->op->layer);
}

/* The sequence that an op works on, with its documents in this step. */
static inline const struct tdm_sequence *tdm_launch_sequence(const struct tdm_launch *launch)
{
    uint32_t number = launch->program->chunks[launch->op->chunk].sequence;
    const struct tdm_sequence *sequences = launch->step->sequences;
    return sequences != NULL ? &sequences[number] : &launch->program->sequences[number];
}

/* Tokens of the step that have a target: the loss is the mean over these. */
static inline uint64_t tdm_launch_trained_tokens(const struct tdm_launch *launch)
{
    return launch->step->sequences != NULL ? launch->step->trained_tokens
                                           : launch->program->params.head.trained_tokens;
}

/* A backend's own state. */
struct tdm_executor;

/* What only running shows of an op; 0: not counted. */
struct tdm_counts {
    uint64_t pairs;         /* of a selection: (query, key) pairs of its lists */
    uint64_t fetched_bytes; /* of attention that gathers: from the host, and sent there */
    uint64_t sent_bytes;
};

/* When an op ran, on the clock of tdm_backend.now(). */
struct tdm_timing {
    uint64_t op_number;
    int64_t start_ns, end_ns;
    struct tdm_counts counts;
};

/* A device of its own. */
struct tdm_card {
    char name[96];   /* as the driver calls it: "NVIDIA H200" */
    char driver[64]; /* version of the driver; "" if it cannot be found out */
    uint64_t bytes;  /* of its memory, as the driver has it */
};

/* Who is told how far it is while the host arena is taken, which takes long, and may end it. */
struct tdm_watch {
    void *self;
    void (*taken)(void *self, uint64_t taken_bytes, uint64_t bytes);
    /* The host arena stays pageable, and why. NULL: nobody asks. */
    void (*pageable)(void *self, uint64_t bytes, const char *reason);
    const volatile sig_atomic_t *stop; /* not zero: TDM_INTERRUPTED; NULL: never */
};

struct tdm_backend {
    const char *name;
    const char *description;
    bool executes;          /* false: null; arenas are not taken and no values exist */
    double timing_seconds;  /* by which taking an op's time delays its lane */
    bool own_device_memory; /* the arena of the device is not memory of this computer */
    uint32_t places, lanes; /* it serves so many of the machine's, the first by number */

    /* Sets up for programs of one model; scratch is sized here for the largest of `count`
     * programs. */
    enum tdm_status (*open)(uint32_t count, const struct tdm_program *const *programs,
                            struct tdm_executor **executor, struct tdm_error *err);
    void (*close)(struct tdm_executor *executor);

    /* Takes `bytes` at a place, aligned to at least 4096. Released with close(). */
    enum tdm_status (*arena)(struct tdm_executor *executor, enum tdm_place place, uint64_t bytes,
                             void **base, struct tdm_error *err);

    /* From here on `watch` (borrowed; may be NULL) is told of arenas. NULL: it would have no time
     * to look. */
    void (*watch)(struct tdm_executor *executor, const struct tdm_watch *watch);

    /* Before the first step of a program, while arenas hold nothing: gets ready for ops like this
     * one, if it is not. It may change every byte of the arenas, and finish() ends it. NULL: always
     * ready. */
    enum tdm_status (*prepare)(struct tdm_executor *executor, const struct tdm_launch *launch,
                               struct tdm_error *err);

    /* Has it kernels for the sizes and dtypes of a program? Opens nothing and needs no device.
     * TDM_INPUT says what it lacks. NULL: for all that a schedule can have. */
    enum tdm_status (*supports)(const struct tdm_program *program, struct tdm_error *err);

    /* Before a step whose documents are those of its text: tdm_step.sequences. NULL: ops read them
     * there. */
    enum tdm_status (*documents)(struct tdm_executor *executor, const struct tdm_program *program,
                                 const struct tdm_sequence *sequences, struct tdm_error *err);

    /* Launches an op on its lane. NULL: it has no kernel for that kind of op. */
    enum tdm_status (*run[TDM_OP_KINDS])(struct tdm_executor *executor,
                                         const struct tdm_launch *launch, struct tdm_error *err);

    /* Order across lanes: `lane` goes on only when `other` has finished its op at `position`. */
    enum tdm_status (*wait)(struct tdm_executor *executor, enum tdm_lane lane, enum tdm_lane other,
                            uint64_t position, struct tdm_error *err);

    /* How many ops of a lane have ended in this step, as far as that can be told without waiting;
     * but waits until the one at position `await` has (0: for none). NULL: an op has ended when it
     * is launched. */
    enum tdm_status (*ended)(struct tdm_executor *executor, enum tdm_lane lane, uint64_t await,
                             uint64_t *ended, struct tdm_error *err);

    /* All lanes have ended. */
    enum tdm_status (*finish)(struct tdm_executor *executor, struct tdm_error *err);

    /* Takes the times of ops that have ended, at most `capacity`; returns how many. */
    size_t (*reap)(struct tdm_executor *executor, struct tdm_timing *timings, size_t capacity);

    /* Copies between an arena and ordinary memory, outside a step. upload: source NULL is zeros. */
    enum tdm_status (*upload)(struct tdm_executor *executor, void *arena_bytes, const void *source,
                              uint64_t bytes, struct tdm_error *err);
    enum tdm_status (*download)(struct tdm_executor *executor, void *destination,
                                const void *arena_bytes, uint64_t bytes, struct tdm_error *err);

    /* Fills `bytes` of an arena from `offset` on (both multiples of 8) with the pattern; and counts
     * what of an arena no longer holds it: bytes in 8-byte words, and the end of the highest such
     * word. */
    enum tdm_status (*fill)(struct tdm_executor *executor, void *base, uint64_t offset,
                            uint64_t bytes, struct tdm_error *err);
    enum tdm_status (*scan)(struct tdm_executor *executor, const void *base, uint64_t bytes,
                            uint64_t *touched_bytes, uint64_t *highest_byte, struct tdm_error *err);

    /* Of the memory of a device of its own: bytes that the driver reports this process to use, and
     * bytes that can still be taken (`free_bytes` may be NULL). NULL: it has none. */
    enum tdm_status (*used)(const struct tdm_executor *executor, uint64_t *used_bytes,
                            uint64_t *free_bytes, struct tdm_error *err);

    /* Bytes of the host arena that are pinned. NULL: none are. */
    uint64_t (*pinned_bytes)(const struct tdm_executor *executor);

    /* Bytes of the device's memory that can be taken; as far as it can, without opening anything.
     * NULL: it has none of its own. */
    enum tdm_status (*free_bytes)(uint64_t *bytes, struct tdm_error *err);

    /* The device that it would run on; nothing is opened. NULL: it has none of its own. */
    enum tdm_status (*card)(struct tdm_card *card, struct tdm_error *err);

    /* Nanoseconds on the clock of the timings. */
    int64_t (*now)(struct tdm_executor *executor);

    /* Bytes that the backend holds outside the arenas (scratch, handles). */
    uint64_t (*outside_bytes)(const struct tdm_executor *executor);
};

/* "cpu", "cuda" (with CUDA), "null". NULL-terminated table of what this build has. */
extern const struct tdm_backend *const tdm_backends[];

/* Finds a backend by name; TDM_USAGE says which there are, or that this build has no cuda. */
enum tdm_status tdm_backend_find(const char *name, const struct tdm_backend **backend,
                                 struct tdm_error *err);

/* Can the backend run all of the programs, and are their places the same? TDM_INPUT says what place
 * or lane it does not serve, or for what it has no kernel. Opens nothing;
 * taking arenas (arenas.h) asks this first, so that no run ends in the middle for it. */
enum tdm_status tdm_backend_check(const struct tdm_backend *backend, uint32_t count,
                                  const struct tdm_program *const *programs, struct tdm_error *err);

#endif
