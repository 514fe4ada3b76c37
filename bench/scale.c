/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale: how long it takes to lower and simulate steps of millions of tokens, and how much
 * more an access to many slots costs the order tracker than an access to one slot. For Qwen2.5-7B.
 */
#include "models/model.h"
#include "simulator/simulate.h"
#include "schedule/order.h"
#include "schedule/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static enum tdm_status make(uint64_t tokens, uint64_t chunk, struct tdm_schedule **schedule,
                            struct tdm_program **program, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    enum tdm_status status = tdm_model_load("qwen2.5-7b", &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200", &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, tokens, schedule, err);
    if (status != TDM_OK) {
        tdm_model_free(model);
        tdm_machine_free(machine);
        return status;
    }
    (*schedule)->chunk_tokens = chunk;
    return tdm_program_lower(*schedule, program, err);
}

static enum tdm_status measure_step(uint64_t tokens, uint64_t chunk, struct tdm_error *err)
{
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    struct tdm_simulation simulation;
    double start = now_seconds();
    enum tdm_status status = make(tokens, chunk, &schedule, &program, err);
    double lowered = now_seconds();
    if (status == TDM_OK)
        status = tdm_simulate(program, NULL, NULL, &simulation, err);
    double simulated = now_seconds();
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (status == TDM_OK)
        printf("%6.1fM %6llu %9llu %9.2f %10.2f %10ld\n", (double)tokens / (1 << 20),
               (unsigned long long)chunk, (unsigned long long)program->op_count, lowered - start,
               simulated - lowered, usage.ru_maxrss / 1024);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    return status;
}

/* Seconds that the tracker takes for an attention op that reads `slots` slots of K and V. */
static double push_seconds(struct tdm_order_tracker *order, const struct tdm_program *program,
                           uint32_t kv, uint32_t slots)
{
    enum { TIMES = 200000 };
    struct tdm_waits waits;
    struct tdm_op op = {.kind = TDM_OP_ATTENTION, .access_count = 1};
    struct tdm_access *only = op.access; /* K and V */
    struct tdm_item item = {.kind = TDM_RUN, .op = &op};
    double start = now_seconds();
    for (uint32_t i = 0; i < TIMES; i++) {
        uint32_t first = i % (program->buffers[kv].slots - slots + 1);
        op.lane = i % 4 == 0 ? TDM_LANE_H2D : TDM_LANE_COMPUTE;
        *only = (struct tdm_access){
            .buffer = kv, .first_slot = first, .slots = slots, .mode = TDM_READ};
        if (op.lane == TDM_LANE_H2D) { /* a slot is refilled between reads */
            only->slots = 1;
            only->mode = TDM_WRITE;
        }
        tdm_order_push(order, &item, &waits);
    }
    return (now_seconds() - start) / TIMES;
}

static enum tdm_status measure_prefix(struct tdm_error *err)
{
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    struct tdm_order_tracker *order = NULL;
    enum tdm_status status = make(2560u * 4096u, 4096, &schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_order_new(program, &order, err);
    if (status == TDM_OK) {
        uint32_t kv = tdm_program_find(program, "kv");
        printf("\n  slots  nanoseconds an access\n");
        for (uint32_t slots = 1; slots <= 2560; slots = slots == 1 ? 160 : slots * 4)
            printf("%7u %8.0f\n", slots, 1e9 * push_seconds(order, program, kv, slots));
    }
    tdm_order_free(order);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    return status;
}

int main(void)
{
    struct tdm_error err;
    printf(" tokens  chunk       ops   lowered  simulated  peak MiB\n");
    enum tdm_status status = measure_step(UINT64_C(10) << 20, 16384, &err);
    if (status == TDM_OK)
        status = measure_step(UINT64_C(4) << 20, 4096, &err);
    if (status == TDM_OK)
        status = measure_prefix(&err);
    if (status != TDM_OK)
        fprintf(stderr, "scale: %s\n", err.message);
    return tdm_exit_code(status);
}
