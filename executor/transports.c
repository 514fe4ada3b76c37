/* SPDX-License-Identifier: Apache-2.0 */
/* The transports between ranks, and which of them a run takes. */
#include "executor/transports.h"

#include <string.h>

static const struct tdm_transport *const transports[] = {&tdm_transport_shared, &tdm_transport_mpi,
                                                         &tdm_transport_nccl};

enum tdm_status tdm_transport_find(const char *name, const struct tdm_transport **transport,
                                   struct tdm_error *err)
{
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++)
        if (strcmp(name, transports[i]->name) == 0) {
            *transport = transports[i];
            return TDM_OK;
        }
    return tdm_fail(err, TDM_USAGE, "no transport \"%s\"; there are shared, mpi, nccl", name);
}

enum tdm_status tdm_transport_choose(const struct tdm_transport *asked,
                                     const struct tdm_backend *backend,
                                     const struct tdm_schedule *schedule, uint32_t processes,
                                     const struct tdm_transport **transport, struct tdm_error *err)
{
    const bool planned = schedule->machine->joined_channels > 0;
    if (asked != NULL && schedule->ranks == 1) {
        tdm_fail(err, TDM_USAGE, "--transport %s: one rank needs no transport", asked->name);
        return tdm_hint(err, "leave it out; plan --ranks N makes a schedule of several ranks");
    }
    const struct tdm_transport *best = backend->own_device_memory && (processes > 1 || planned)
                                           ? &tdm_transport_nccl
                                       : processes == 1 ? &tdm_transport_shared
                                                        : &tdm_transport_mpi;
    const struct tdm_transport *chosen = asked == NULL ? best : asked;
    if (processes > 1 && chosen == &tdm_transport_shared) {
        tdm_fail(err, TDM_USAGE,
                 "--transport shared: ranks of %u processes cannot read each "
                 "other's memory",
                 processes);
        return tdm_hint(err, "leave it out, and the right one is chosen");
    }
    if (chosen == &tdm_transport_mpi && backend->own_device_memory) {
        tdm_fail(err, TDM_USAGE, "transport mpi carries no memory of GPUs");
        return tdm_hint(err, "between GPUs of several processes use --transport nccl");
    }
    if (chosen == &tdm_transport_nccl && !backend->own_device_memory && backend->executes) {
        tdm_fail(err, TDM_USAGE, "transport nccl needs GPUs; backend %s has none", backend->name);
        return tdm_hint(err, "leave it out, and the right one is chosen");
    }
    if (chosen == &tdm_transport_nccl && backend->executes && !planned) {
        tdm_fail(err, TDM_INFEASIBLE, "the schedule was planned without the memory of NCCL");
        return tdm_hint(err, "plan with --transport nccl");
    }
    *transport = chosen;
    return TDM_OK;
}
