/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tidemark asks of MPI: a table that a module gives (mpi_module.c), which is built where MPI
 * is and loaded only by runs that want it. So the programs are not linked with MPI.
 *
 * Functions return 0, or a number of MPI's own. They are called by one thread at a time.
 */
#ifndef TDM_EXECUTOR_MPI_MODULE_H
#define TDM_EXECUTOR_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Changes whenever the table does. */
#define TDM_MPI_VERSION 1u

/* The most bytes of a message. */
#define TDM_MPI_MESSAGE_BYTES (UINT64_C(1) << 30)

/* Two separate streams of messages between the same processes. */
enum tdm_mpi_stream { TDM_MPI_DATA, TDM_MPI_CONTROL, TDM_MPI_STREAMS };

struct tdm_mpi {
    uint32_t version; /* TDM_MPI_VERSION */
    /* Joins the job. */
    int (*begin)(uint32_t *process, uint32_t *processes);
    /* Begin to send or receive a message; *request is then asked with test(). Messages with one tag
     * between two processes arrive in the order in which they were sent. */
    int (*send)(enum tdm_mpi_stream stream, const void *data, uint64_t bytes, uint32_t to, int tag,
                uint64_t *request);
    int (*receive)(enum tdm_mpi_stream stream, void *data, uint64_t bytes, uint32_t from, int tag,
                   uint64_t *request);
    int (*test)(uint64_t *request, bool *done);
    /* Has a message with a tag come, from whomever? */
    int (*probe)(enum tdm_mpi_stream stream, int tag, bool *found, uint32_t *from);
    /* Leaves the job: all processes call it; or ends all of it. */
    int (*end)(void);
    void (*abort)(int exit_code);
    /* Puts an error's number into words. */
    void (*explain)(int error, char *out, size_t out_bytes);
};

/* The name of the module's table. */
#define TDM_MPI_SYMBOL "tdm_mpi"
extern const struct tdm_mpi tdm_mpi;

#endif
