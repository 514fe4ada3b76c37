/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL, loaded at run time: the few functions that are used, as NCCL's documentation declares them
 * since version 2.13. nccl.h is not included, so that tidemark builds without NCCL and runs with
 * any of these versions.
 *
 * The library is libnccl.so.2 as the system's linker finds it, or the file that TIDEMARK_NCCL
 * names. It gets the settings that plans count on, by its environment: the sizes of its buffers
 * (machines/nccl.h), no NVLink multicast, and no connections before they are used.
 */
#ifndef TDM_EXECUTOR_NCCL_H
#define TDM_EXECUTOR_NCCL_H

#include "base/status.h"

#include <stddef.h>

struct tdm_nccl_id {
    char bytes[128];
};
typedef struct tdm_nccl_comm *tdm_nccl_comm; /* of the library */

enum { TDM_NCCL_SUCCESS = 0, TDM_NCCL_IN_PROGRESS = 7, TDM_NCCL_UINT8 = 1 };

/* Versions as ncclGetVersion() has them: 2.13.4 is 21304. */
#define TDM_NCCL_OLDEST 21300
#define TDM_NCCL_TOO_NEW 30000

struct tdm_nccl {
    int version;
    int (*unique_id)(struct tdm_nccl_id *id);
    int (*comm_init_rank)(tdm_nccl_comm *comm, int ranks, struct tdm_nccl_id id, int rank);
    int (*comm_destroy)(tdm_nccl_comm comm);
    int (*comm_abort)(tdm_nccl_comm comm);
    int (*comm_error)(tdm_nccl_comm comm, int *error);
    const char *(*explain)(int result);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *data, size_t count, int type, int to, tdm_nccl_comm comm, void *stream);
    int (*receive)(void *data, size_t count, int type, int from, tdm_nccl_comm comm, void *stream);
};

/* Loads the library, once a process; it stays loaded. TDM_NO_DEVICE: it is not there, with a hint
 * that names the package, or its version is not one of those. */
enum tdm_status tdm_nccl_load(const struct tdm_nccl **nccl, struct tdm_error *err);

#endif
