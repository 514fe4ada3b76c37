/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/host_optimizer [THREADS]: how many bytes of state and gradients the host's cores read and
 * write per second while they update a layer of Qwen2.5-7B. It measures every optimizer, on one
 * thread and on THREADS (default: all cores).
 */
#include "base/units.h"
#include "executor/host_optimizer.h"
#include "executor/host_update_rate.h"
#include "schedule/optimizer.h"

#include <stdio.h>
#include <string.h>

#define LEAST_SECONDS 1.0
#define MOST_THREADS 4096

static const char usage[] =
    "usage: bench/host_optimizer [THREADS]\n"
    "GB/s that the host's cores read and write while they update a layer of Qwen2.5-7B, for every\n"
    "optimizer, on one thread and on THREADS (default: all cores)\n";

static enum tdm_status measure(const struct tdm_schedule *schedule, uint32_t threads,
                               struct tdm_error *err)
{
    double one, all;
    enum tdm_status status = tdm_host_update_rate(schedule, 1, LEAST_SECONDS, NULL, &one, err);
    if (status == TDM_OK)
        status = tdm_host_update_rate(schedule, threads, LEAST_SECONDS, NULL, &all, err);
    if (status != TDM_OK)
        return status;
    printf("%-20s %-12s %6.1f %6.1f\n", tdm_optimizer_name(schedule->optimizer.kind),
           tdm_dtype_name(schedule->dtypes.master), 1e-9 * one, 1e-9 * all);
    fflush(stdout);
    return TDM_OK;
}

/* Makes the schedule of one layer's model, without an optimizer. The caller owns it. */
static enum tdm_status make_schedule(struct tdm_schedule **schedule, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    enum tdm_status status = tdm_model_load("qwen2.5-7b", &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200", &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, 1, schedule, err);
    if (status != TDM_OK) {
        tdm_machine_free(machine);
        tdm_model_free(model);
    }
    return status;
}

static enum tdm_status run(uint32_t threads, struct tdm_error *err)
{
    struct tdm_schedule *schedule = NULL;
    enum tdm_status status = make_schedule(&schedule, err);
    if (status != TDM_OK)
        return status;
    printf("%s; GB/s on 1 thread and on %u\n",
           tdm_host_update_width_name(tdm_host_update_widths() - 1), threads);
    fflush(stdout);
    for (int kind = TDM_OPTIMIZER_ADAMW; kind < TDM_OPTIMIZERS && status == TDM_OK; kind++) {
        tdm_schedule_set_optimizer(schedule, (enum tdm_optimizer)kind);
        status = measure(schedule, threads, err);
    }
    tdm_schedule_free(schedule);
    return status;
}

int main(int count, char **values)
{
    uint64_t threads = tdm_host_update_threads(0);
    struct tdm_error err = {0};
    enum tdm_status status = TDM_OK;
    if (count == 2 && strcmp(values[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (count > 2)
        status = tdm_fail(&err, TDM_USAGE, "takes THREADS only");
    else if (count == 2)
        status = tdm_parse_count(values[1], "THREADS", 1, MOST_THREADS, &threads, &err);
    if (status == TDM_OK)
        status = run((uint32_t)threads, &err);
    if (status != TDM_OK)
        fprintf(stderr, "host_optimizer: %s\n", err.message);
    if (status != TDM_OK && err.hint[0] != '\0')
        fprintf(stderr, "hint: %s\n", err.hint);
    return status == TDM_OK ? 0 : status == TDM_USAGE ? 2 : 1;
}
