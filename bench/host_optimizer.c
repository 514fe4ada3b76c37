/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/host_optimizer [THREADS]: how many bytes of state and gradients a second the host's cores read and write
 * while they update a layer of Qwen2.5-7B, for every optimizer, on one thread and on THREADS (default: all cores).
 */
#include "executor/host_optimizer.h"

#include "schedule/layout.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEAST_SECONDS 1.0

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* What an update works on; zeros, but touched. */
struct work {
    struct tdm_program program;
    struct tdm_op op;
    struct tdm_step step;
    struct tdm_launch launch;
    uint64_t bytes; /* read and written */
};

static const enum tdm_content contents[] = {TDM_UNIT_WEIGHTS, TDM_UNIT_GRADIENT, TDM_UNIT_MASTER,
                                            TDM_UNIT_MOMENT1, TDM_UNIT_MOMENT2};

static enum tdm_status open_work(struct tdm_schedule *schedule, struct work *work,
                                 struct tdm_error *err)
{
    *work = (struct work){.step = {.number = 1, .learning_rate = 1e-4, .seed = 1}};
    work->program.schedule = schedule;
    work->launch = (struct tdm_launch){&work->program, &work->op, &work->step, .scratch = NULL};
    for (int i = 0; i < 5; i++) {
        uint64_t bytes = tdm_content_bytes(schedule, contents[i], 0, 0);
        struct tdm_operand *operand = &work->launch.operand[i];
        if (bytes == 0)
            continue;
        *operand = (struct tdm_operand){.data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096),
                                        .dtype = tdm_content_dtype(schedule, contents[i]),
                                        .slots = 1,
                                        .slot_bytes = bytes};
        if (operand->data == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "no memory for a layer");
        memset(operand->data, 0, bytes);
        work->bytes += contents[i] == TDM_UNIT_GRADIENT ? bytes : 2 * bytes;
    }
    return TDM_OK;
}

static void close_work(struct work *work)
{
    for (int i = 0; i < 5; i++)
        free(work->launch.operand[i].data);
}

static double bytes_per_second(const struct work *work, uint32_t threads)
{
    struct tdm_host_update update = tdm_host_update_of(&work->launch);
    tdm_host_update_run(&update, threads);
    double begin = now(), seconds = 0, updates = 0;
    for (; seconds < LEAST_SECONDS; seconds = now() - begin, updates++)
        tdm_host_update_run(&update, threads);
    return updates * (double)work->bytes / seconds;
}

static enum tdm_status measure(struct tdm_schedule *schedule, uint32_t threads,
                               struct tdm_error *err)
{
    struct work work;
    enum tdm_status status = open_work(schedule, &work, err);
    if (status == TDM_OK)
        printf("%-20s %-12s %6.1f %6.1f\n", tdm_optimizer_name(schedule->optimizer.kind),
               tdm_dtype_name(schedule->dtypes.master), 1e-9 * bytes_per_second(&work, 1),
               1e-9 * bytes_per_second(&work, threads));
    close_work(&work);
    return status;
}

int main(int count, char **values)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN), asked = count > 1 ? atol(values[1]) : cores;
    uint32_t threads = asked > 0 ? (uint32_t)asked : 1;
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
    if (status == TDM_OK) {
        tdm_host_update_warm_up(threads);
        printf("%s; GB/s on 1 thread and on %u\n",
               tdm_host_update_width_name(tdm_host_update_widths() - 1), threads);
    }
    for (int kind = TDM_OPTIMIZER_ADAMW; kind < TDM_OPTIMIZERS && status == TDM_OK; kind++) {
        tdm_schedule_set_optimizer(schedule, (enum tdm_optimizer)kind);
        status = measure(schedule, threads, &err);
    }
    tdm_schedule_free(schedule);
    if (status != TDM_OK)
        fprintf(stderr, "host_optimizer: %s\n", err.message);
    return status == TDM_OK ? 0 : 1;
}
