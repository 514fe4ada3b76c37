/* SPDX-License-Identifier: Apache-2.0 */
/* The transports between ranks, and which of them a run takes. */
#ifndef TDM_EXECUTOR_TRANSPORTS_H
#define TDM_EXECUTOR_TRANSPORTS_H

#include "executor/transport.h"

/* Finds a transport by name. TDM_USAGE lists the names. */
enum tdm_status tdm_transport_find(const char *name, const struct tdm_transport **transport,
                                   struct tdm_error *err);

/* Checks that `asked` can join the ranks of a schedule on a backend in so many processes. With NULL
 * chooses: within a process the memory of other ranks is read, which is fastest and takes no memory
 * of a library, unless the schedule was planned with NCCL; between processes messages go over MPI,
 * or between GPUs over NCCL. TDM_USAGE. TDM_INFEASIBLE: NCCL's memory was not planned. */
enum tdm_status tdm_transport_choose(const struct tdm_transport *asked,
                                     const struct tdm_backend *backend,
                                     const struct tdm_schedule *schedule, uint32_t processes,
                                     const struct tdm_transport **transport, struct tdm_error *err);

#endif
