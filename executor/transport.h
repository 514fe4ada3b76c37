/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport: how bytes get from rank to rank in a team op. A const table of functions, as
 * backends are.
 *
 * A team op has one phase or several. In a phase every rank names pieces: those that it gives to
 * others and those that it takes from them (shares.c, the same for every backend and transport).
 * The n-th piece that a rank gives another is the n-th that the other takes from it. So transports
 * that read the memory of others and transports that send messages need the same description.
 *
 * A piece that is taken has a place in the rank's own memory, or is only read: then the transport
 * says where, and the bytes stay there until the op ends. That is in the memory of the other rank
 * where it can be read, else in staging memory.
 */
#ifndef TDM_EXECUTOR_TRANSPORT_H
#define TDM_EXECUTOR_TRANSPORT_H

#include "executor/backend.h"
#include "ops/team.h"

/* The most phases of a team op, and the most pieces that a rank gives another in one. */
#define TDM_TEAM_PHASES 8u
#define TDM_TEAM_PIECES 2u

struct tdm_piece {
    uint32_t rank; /* who gets it, or who gives it */
    void *data;    /* where it is, or where it goes; NULL: where it can be read, set by move() */
    uint64_t bytes;
};

/* A sum of elements of the ranks' shares, in rank order in fp32; of fp64 elements in fp64. */
struct tdm_share_sum {
    uint64_t elements; /* 0: nothing is summed */
    enum tdm_dtype dtype;
    void *own; /* the rank's own share, which becomes the sum; those of others are what it reads */
};

/* What a rank gives and takes in a phase, and then sums. */
struct tdm_exchange {
    struct tdm_piece *give, *take; /* [capacity] */
    uint32_t give_count, take_count, capacity;
    struct tdm_share_sum sum;
};

/* Adds a piece for `rank`, or from it; with `to` NULL it is only read. No bytes: nothing. */
void tdm_exchange_give(struct tdm_exchange *exchange, uint32_t rank, const void *data,
                       uint64_t bytes);
void tdm_exchange_take(struct tdm_exchange *exchange, uint32_t rank, void *to, uint64_t bytes);

/* Places the pieces that are only read one after the other in staging memory. TDM_INTERNAL if they
 * are more than `bytes`. */
enum tdm_status tdm_exchange_stage(struct tdm_exchange *exchange, unsigned char *staging,
                                   uint64_t bytes, struct tdm_error *err);

/* The shares of a sum in rank order, after move(): the rank's own and those that it reads. Returns
 * their number, at most `ranks`; shares [ranks]. */
uint32_t tdm_exchange_shares(const struct tdm_exchange *exchange, uint32_t own, uint32_t ranks,
                             const void **shares);

/* Rows in the rank's own memory that it copies before its pieces move, or after. */
struct tdm_row_copy {
    void *to;
    const void *from;
    uint64_t to_stride_bytes, from_stride_bytes; /* from row to row */
    uint64_t row_bytes, rows;
};

/* What a backend does for team ops; each queues its work on the op's lane. */
struct tdm_team_verbs {
    enum tdm_status (*copy)(struct tdm_executor *executor, const struct tdm_launch *launch,
                            void *to, const void *from, uint64_t bytes, struct tdm_error *err);
    enum tdm_status (*copy_rows)(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 const struct tdm_row_copy *rows, struct tdm_error *err);
    enum tdm_status (*sum)(struct tdm_executor *executor, const struct tdm_launch *launch,
                           const struct tdm_exchange *exchange, struct tdm_error *err);
    /* Marks that the lane has come to a point of the op (a phase, or TDM_TEAM_PHASES: its end), and
     * lets it wait until another rank's lane has. NULL: ops end when they are launched. */
    enum tdm_status (*reach)(struct tdm_executor *executor, const struct tdm_launch *launch,
                             uint32_t point, struct tdm_error *err);
    enum tdm_status (*follow)(struct tdm_executor *executor, const struct tdm_launch *launch,
                              struct tdm_executor *other, uint32_t point, struct tdm_error *err);
    /* For libraries: makes the executor's device that of the calling thread; a lane's stream (NULL
     * if the backend has none); memory of the device outside the arenas, taken before the first
     * step; and waits until all lanes are idle. */
    enum tdm_status (*here)(const struct tdm_executor *executor, struct tdm_error *err);
    void *(*stream)(const struct tdm_executor *executor, enum tdm_lane lane);
    enum tdm_status (*take)(struct tdm_executor *executor, uint64_t bytes, void **memory,
                            struct tdm_error *err);
    void (*give_back)(struct tdm_executor *executor, void *memory);
    enum tdm_status (*drain)(struct tdm_executor *executor, struct tdm_error *err);
};

/* A team op of one rank, as transports see it. */
struct tdm_team_op {
    const struct tdm_team_verbs *verbs;
    struct tdm_executor *executor;
    const struct tdm_launch *launch;
};

/* What a rank needs of its transport in a step. */
struct tdm_team_needs {
    uint32_t rank, ranks;
    const struct tdm_team_verbs *verbs;
    struct tdm_executor *executor;
    uint64_t read_bytes;    /* the most that it reads at a time without a place of its own */
    uint32_t reading_lanes; /* bit i: lane i has ops that do */
    uint32_t messages;      /* the most of a phase, of TDM_MPI_MESSAGE_BYTES each */
};

struct tdm_transport {
    const char *name;
    uint64_t
        window_bytes; /* of a piece in staging memory: no more; 0: what is read is not staged */
    /* Before the ranks open, on the caller's thread. NULL: nothing. */
    enum tdm_status (*begin)(struct tdm_team *team, struct tdm_error *err);
    /* Before the first step, for each rank of this process, on a thread of its own: takes what its
     * ops need. close() releases it. NULL: nothing. */
    enum tdm_status (*open)(struct tdm_team *team, const struct tdm_team_needs *needs, void **link,
                            struct tdm_error *err);
    void (*close)(void *link);
    /* After a failure: ends transfers that wait for other ranks. From any thread. NULL: they end by
     * themselves. */
    void (*abort)(void *link);
    /* Moves the pieces of a phase, or of a window of them: `window` counts from 0. All ranks call
     * it. When it returns, the lane's later work finds the pieces; the rank may not change what it
     * gives before leave(). */
    enum tdm_status (*move)(struct tdm_team *team, const struct tdm_team_op *op,
                            struct tdm_exchange *exchange, uint32_t phase, uint32_t window,
                            struct tdm_error *err);
    /* Ends an op: later work may change what the rank gave. */
    enum tdm_status (*leave)(struct tdm_team *team, const struct tdm_team_op *op,
                             struct tdm_error *err);
};

/* Ranks that are threads of one process and read each other's memory. */
extern const struct tdm_transport tdm_transport_shared;

/* Ranks in several processes, in the computer's own memory: messages over MPI. */
extern const struct tdm_transport tdm_transport_mpi;

/* GPUs, by NCCL. */
extern const struct tdm_transport tdm_transport_nccl;

/* Adds what an op of the launch needs. */
void tdm_team_need(const struct tdm_launch *launch, struct tdm_exchange *scratch,
                   struct tdm_team_needs *needs);

/* Runs a team op of a backend: describes each phase, moves its pieces, sums. Rows are copied before
 * the first phase and after the last. */
enum tdm_status tdm_team_run(const struct tdm_team_verbs *verbs, struct tdm_executor *executor,
                             const struct tdm_launch *launch, struct tdm_error *err);

#endif
