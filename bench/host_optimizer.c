/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/host_optimizer [THREADS]: how many bytes of state and gradients a second the host's cores read and write
 * while they update a layer of Qwen2.5-7B, for every optimizer, on one thread and on THREADS (default: all cores).
 */
#include "executor/host_optimizer.h"
#include "executor/host_update_rate.h"
#include "schedule/optimizer.h"

#include <stdio.h>
#include <stdlib.h>

#define LEAST_SECONDS 1.0

static enum tdm_status measure(const struct tdm_schedule *schedule, uint32_t threads,
                               struct tdm_error *err)
{
    double one, all;
    enum tdm_status status = tdm_host_update_rate(schedule, 1, LEAST_SECONDS, &one, err);
    if (status == TDM_OK)
        status = tdm_host_update_rate(schedule, threads, LEAST_SECONDS, &all, err);
    if (status == TDM_OK)
        printf("%-20s %-12s %6.1f %6.1f\n", tdm_optimizer_name(schedule->optimizer.kind),
               tdm_dtype_name(schedule->dtypes.master), 1e-9 * one, 1e-9 * all);
    return status;
}

int main(int count, char **values)
{
    long asked = count > 1 ? atol(values[1]) : 0;
    uint32_t threads = asked > 0 ? (uint32_t)asked : tdm_host_update_threads(0);
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err = {0};
    enum tdm_status status = tdm_model_load("qwen2.5-7b", &model, &err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200", &machine, &err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, 1, &schedule, &err);
    if (schedule == NULL) {
        tdm_machine_free(machine);
        tdm_model_free(model);
    }
    if (status == TDM_OK)
        printf("%s; GB/s on 1 thread and on %u\n",
               tdm_host_update_width_name(tdm_host_update_widths() - 1), threads);
    for (int kind = TDM_OPTIMIZER_ADAMW; kind < TDM_OPTIMIZERS && status == TDM_OK; kind++) {
        tdm_schedule_set_optimizer(schedule, (enum tdm_optimizer)kind);
        status = measure(schedule, threads, &err);
    }
    tdm_schedule_free(schedule);
    if (status != TDM_OK)
        fprintf(stderr, "host_optimizer: %s\n", err.message);
    return status == TDM_OK ? 0 : 1;
}
