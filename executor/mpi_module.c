/* SPDX-License-Identifier: Apache-2.0 */
/* The module that speaks MPI (mpi_module.h): a shared object of its own. */
#include "executor/mpi_module.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static MPI_Comm streams[TDM_MPI_STREAMS];

/* MPI's requests are numbers or pointers; the table has room for either. */
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request fits into 64 bits");

static void put(MPI_Request request, uint64_t *out)
{
    *out = 0;
    memcpy(out, &request, sizeof(request));
}

static int begin(uint32_t *process, uint32_t *processes)
{
    int provided, number, count;
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (error != MPI_SUCCESS)
        return error;
    if (provided < MPI_THREAD_SERIALIZED)
        return MPI_ERR_OTHER;
    for (int i = 0; i < TDM_MPI_STREAMS && error == MPI_SUCCESS; i++) {
        error = MPI_Comm_dup(MPI_COMM_WORLD, &streams[i]);
        if (error == MPI_SUCCESS)
            error = MPI_Comm_set_errhandler(streams[i], MPI_ERRORS_RETURN);
    }
    if (error == MPI_SUCCESS)
        error = MPI_Comm_rank(MPI_COMM_WORLD, &number);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_size(MPI_COMM_WORLD, &count);
    if (error != MPI_SUCCESS)
        return error;
    *process = (uint32_t)number;
    *processes = (uint32_t)count;
    return MPI_SUCCESS;
}

static int send_message(enum tdm_mpi_stream stream, const void *data, uint64_t bytes, uint32_t to,
                        int tag, uint64_t *request)
{
    MPI_Request begun;
    int error = MPI_Isend(data, (int)bytes, MPI_BYTE, (int)to, tag, streams[stream], &begun);
    if (error == MPI_SUCCESS)
        put(begun, request);
    return error;
}

static int receive(enum tdm_mpi_stream stream, void *data, uint64_t bytes, uint32_t from, int tag,
                   uint64_t *request)
{
    MPI_Request begun;
    int error = MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)from, tag, streams[stream], &begun);
    if (error == MPI_SUCCESS)
        put(begun, request);
    return error;
}

static int test(uint64_t *request, bool *done)
{
    MPI_Request begun;
    int flag = 0;
    memcpy(&begun, request, sizeof(begun));
    int error = MPI_Test(&begun, &flag, MPI_STATUS_IGNORE);
    put(begun, request);
    *done = flag != 0;
    return error;
}

static int probe(enum tdm_mpi_stream stream, int tag, bool *found, uint32_t *from)
{
    MPI_Status status;
    int flag = 0;
    int error = MPI_Iprobe(MPI_ANY_SOURCE, tag, streams[stream], &flag, &status);
    *found = error == MPI_SUCCESS && flag != 0;
    if (*found)
        *from = (uint32_t)status.MPI_SOURCE;
    return error;
}

static int end(void)
{
    return MPI_Finalize();
}

static void end_all(int exit_code)
{
    MPI_Abort(MPI_COMM_WORLD, exit_code);
}

static void explain(int error, char *out, size_t out_bytes)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
        length = 0;
    snprintf(out, out_bytes, "%.*s", length, text);
}

const struct tdm_mpi tdm_mpi = {.version = TDM_MPI_VERSION,
                                .begin = begin,
                                .send = send_message,
                                .receive = receive,
                                .test = test,
                                .probe = probe,
                                .end = end,
                                .abort = end_all,
                                .explain = explain};
