/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer updates of the cpu backend. The host's cores compute them, whatever the lane. */
#include "executor/cpu/cpu.h"
#include "executor/host_optimizer.h"

enum tdm_status tdm_cpu_optimizer(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    struct tdm_host_update update = tdm_host_update_of(launch);
    (void)err;
    tdm_host_update_run(&update, executor->threads);
    return TDM_OK;
}
