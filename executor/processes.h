/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a run: one a node, or one for several ranks of a node. MPI joins them, by a
 * module that is loaded at run time (mpi_module.h).
 *
 * All processes read the same files and do the same in the same order; each has the arenas and
 * threads of its own ranks. Process 0 has rank 0, prints, and writes gradients and the trace;
 * models and checkpoints are written by all. Functions marked "all" are called by all processes, or
 * none. They wait without limit, but end with an error if another process has failed, or if the run
 * is to stop.
 *
 * With NULL in place of processes there is one: the functions do nothing and succeed.
 */
#ifndef TDM_EXECUTOR_PROCESSES_H
#define TDM_EXECUTOR_PROCESSES_H

#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct tdm_processes;
struct tdm_team;

/* Was this program started by mpirun, as one of several processes? */
bool tdm_processes_expected(void);

/* Loads the module, from TIDEMARK_MPI, beside the program or where it is installed, and joins the
 * job. TDM_NO_DEVICE: there is no module, with a hint. A set *stop ends all waits. */
enum tdm_status tdm_processes_open(const volatile sig_atomic_t *stop, struct tdm_processes **out,
                                   struct tdm_error *err);

/* The run has ended here, with a status. If it has failed, the others end too, with this error; if
 * it has failed elsewhere first, `err` becomes what that process says. Returns the status of the
 * run. What process 0 has to say of it, it says before it calls tdm_processes_close(): when a
 * process ends that failed, mpirun may kill the others. */
enum tdm_status tdm_processes_settle(struct tdm_processes *processes, enum tdm_status status,
                                     struct tdm_error *err);

/* Leaves the job: waits until all processes do, after a failure not long. *told: process 0 says
 * what has failed, so that this one need not. Returns the status of the run: it may still have
 * failed elsewhere, and `err` says how. */
enum tdm_status tdm_processes_close(struct tdm_processes *processes, enum tdm_status status,
                                    bool *told, struct tdm_error *err);

/* Ends a job of which some processes did not answer; else does nothing. To be called last, after
 * the message. */
void tdm_processes_abort(int exit_code);

/* Number of this process, and how many there are. */
uint32_t tdm_processes_number(const struct tdm_processes *processes);
uint32_t tdm_processes_count(const struct tdm_processes *processes);

/* Ranks are divided evenly and in order: the first of this process, their number in each, and the
 * process of a rank. */
uint32_t tdm_processes_first(const struct tdm_processes *processes, uint32_t ranks);
uint32_t tdm_processes_ranks(const struct tdm_processes *processes, uint32_t ranks);
uint32_t tdm_processes_of(const struct tdm_processes *processes, uint32_t ranks, uint32_t rank);

/* The calls below that all processes make are in the same order in each. Those of one other thread
 * may be beside them, in an order of their own: it calls this first. */
void tdm_processes_beside(void);

/* All: every process gets `bytes` of process `from`. */
enum tdm_status tdm_processes_broadcast(struct tdm_processes *processes, uint32_t from, void *data,
                                        uint64_t bytes, struct tdm_error *err);

/* All: process 0 gets `bytes` of process `from`. */
enum tdm_status tdm_processes_collect(struct tdm_processes *processes, uint32_t from, void *data,
                                      uint64_t bytes, struct tdm_error *err);

/* All: process `to` gets `bytes` of process 0. */
enum tdm_status tdm_processes_hand(struct tdm_processes *processes, uint32_t to, void *data,
                                   uint64_t bytes, struct tdm_error *err);

/* All: *flags becomes the union of those of all processes. */
enum tdm_status tdm_processes_unite(struct tdm_processes *processes, uint32_t *flags,
                                    struct tdm_error *err);

/* All: every process is about to fail in the same way, and need not be told. */
void tdm_processes_fail_alike(struct tdm_processes *processes);

/* All: waits for all processes. */
enum tdm_status tdm_processes_meet(struct tdm_processes *processes, struct tdm_error *err);

/* What must be the same in all processes, as "schedule" and its digest. */
#define TDM_FACT_NAME 32
#define TDM_FACT_TEXT 160
struct tdm_fact {
    char name[TDM_FACT_NAME], text[TDM_FACT_TEXT];
};
#define TDM_MOST_FACTS 16u

/* All: compares `count` facts, at most TDM_MOST_FACTS. TDM_INPUT on all, with the ranks of the
 * first process that differs from process 0. */
enum tdm_status tdm_processes_compare(struct tdm_processes *processes, uint32_t ranks,
                                      const struct tdm_fact *facts, uint32_t count,
                                      struct tdm_error *err);

/* ---- within steps ---- */

/* The team whose step runs; NULL: none. It ends when another process fails. */
void tdm_processes_join(struct tdm_processes *processes, struct tdm_team *team);

/* This process fails, or a rank is lost to it: tells all others, once. */
void tdm_processes_fail(struct tdm_processes *processes, const struct tdm_error *why);

/* Has another process failed? Then with what. */
bool tdm_processes_failed(struct tdm_processes *processes, struct tdm_error *err);

/* Begin to send to a process or to receive from one; at most TDM_MPI_MESSAGE_BYTES. */
enum tdm_status tdm_processes_send(struct tdm_processes *processes, const void *data,
                                   uint64_t bytes, uint32_t to, int tag, uint64_t *request,
                                   struct tdm_error *err);
enum tdm_status tdm_processes_receive(struct tdm_processes *processes, void *data, uint64_t bytes,
                                      uint32_t from, int tag, uint64_t *request,
                                      struct tdm_error *err);
enum tdm_status tdm_processes_test(struct tdm_processes *processes, uint64_t *request, bool *done,
                                   struct tdm_error *err);

/* Is the run to stop? */
bool tdm_processes_stopped(const struct tdm_processes *processes);

/* Asks the process of a rank what the rank does (tdm_team_describe()); false: no answer. */
bool tdm_processes_ask(struct tdm_processes *processes, uint32_t process, uint32_t rank,
                       uint32_t *waits_for, char *where, size_t where_bytes);

/* Lets a thread that polls rest, the longer the more often it has: *polls begins with 0. */
void tdm_processes_rest(uint32_t *polls);

#endif
