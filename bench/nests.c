/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/nests: what a loop nest costs, as the simulator counts it: stored bytes per token,
 * attention forwards, and linear units (a forward is 2). For Qwen2.5-7B at 128K tokens in chunks of
 * 4K.
 */
#include "models/model.h"
#include "planner/nest_cost.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    const char *name;
    enum tdm_order order;
    const char *groups; /* "1" repeats */
    enum tdm_set kept, held;
    unsigned kept_from_percent; /* earlier chunks keep only the input */
    enum tdm_dtype kv_gradients;
};

static const struct row rows[] = {
    {"groups of 1, inputs only", TDM_LAYER_MAJOR, "1", 0, 0, 0, TDM_DTYPE_FP32},
    {"same, attention outputs kept", TDM_LAYER_MAJOR, "1", 1, 0, 0, TDM_DTYPE_FP32},
    {"same, qkv kept", TDM_LAYER_MAJOR, "1", TDM_SET_QKV, 0, 0, TDM_DTYPE_FP32},
    {"same, all kept", TDM_LAYER_MAJOR, "1", TDM_SET_ALL, 0, 0, TDM_DTYPE_FP32},
    {"groups of 2, attention outputs held", TDM_LAYER_MAJOR, "2", 0, 1, 0, TDM_DTYPE_FP32},
    {"groups of 4, attention outputs held", TDM_LAYER_MAJOR, "4", 0, 1, 0, TDM_DTYPE_FP32},
    {"groups of 4, not held", TDM_LAYER_MAJOR, "4", 0, 0, 0, TDM_DTYPE_FP32},
    {"groups 5,5,4,4,3,3,2,2, held", TDM_LAYER_MAJOR, "5,5,4,4,3,3,2,2", 0, 1, 0, TDM_DTYPE_FP32},
    {"groups 7,6,5,4,3,2,1, not held", TDM_LAYER_MAJOR, "7,6,5,4,3,2,1", 0, 0, 0, TDM_DTYPE_FP32},
    {"groups 13,8,4,2,1, outputs kept", TDM_LAYER_MAJOR, "13,8,4,2,1", 1, 1, 0, TDM_DTYPE_FP32},
    {"same, last 80% kept, rest held", TDM_LAYER_MAJOR, "13,8,4,2,1", 1, 1, 20, TDM_DTYPE_FP32},
    {"chunk-major, all layers, bf16 dKV, held", TDM_CHUNK_MAJOR, "28", 0, 1, 0, TDM_DTYPE_BF16},
    {"chunk-major, all layers, bf16 dKV, qkv held", TDM_CHUNK_MAJOR, "28", 0, TDM_SET_QKV, 0,
     TDM_DTYPE_BF16},
    {"chunk-major, all layers, fp32 dKV, held", TDM_CHUNK_MAJOR, "28", 0, 1, 0, TDM_DTYPE_FP32},
};

/* Reads sizes such as "13,8,4,2,1", or one size that repeats up to the last layer. */
static uint32_t read_groups(const char *text, uint32_t layers, uint32_t *sizes)
{
    uint32_t count = 0, sum = 0;
    const char *at = text;
    while (sum < layers) {
        char *end;
        sizes[count] = (uint32_t)strtoul(at, &end, 10);
        sum += sizes[count++];
        if (*end == ',')
            at = end + 1;
    }
    return count;
}

static enum tdm_status measure(const struct row *row, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    struct tdm_simulation simulation;
    uint64_t none[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX};
    uint32_t sizes[64];
    enum tdm_status status = tdm_model_load("qwen2.5-7b", &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200", &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, 131072, &schedule, err);
    if (status != TDM_OK) {
        tdm_model_free(model);
        tdm_machine_free(machine);
        return status;
    }
    schedule->order = row->order;
    schedule->dtypes.kv_gradients = row->kv_gradients;
    uint32_t groups = read_groups(row->groups, model->layers, sizes);
    status = tdm_schedule_set_groups(schedule, groups, sizes, err);
    tdm_schedule_set_order(schedule, row->order);
    uint32_t chunks = 131072 / 4096;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        schedule->groups[g].kept = row->kept;
        schedule->groups[g].held = row->held;
        if (tdm_set_has(row->kept, TDM_STORE_KV))
            schedule->groups[g].kv = TDM_KV_KEEP;
        schedule->groups[g].kept_from_chunk = (chunks * row->kept_from_percent + 50) / 100;
    }
    if (status == TDM_OK)
        status = tdm_schedule_check(schedule, row->name, err);
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_program_validate(program, none, err);
    if (status == TDM_OK)
        status = tdm_simulate(program, NULL, NULL, &simulation, err);
    if (status == TDM_OK) {
        struct tdm_nest_cost cost = tdm_nest_cost(schedule, &simulation);
        printf("%-42s %6.0f %9.3f %7.2f %8.1f\n", row->name, cost.stored_bytes_per_token / 1024,
               cost.attention, cost.linear, simulation.step_seconds);
    }
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    return status;
}

int main(void)
{
    printf("%-42s %6s %9s %7s %8s\n", "nest", "KiB", "attention", "linear", "seconds");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tdm_error err;
        enum tdm_status status = measure(&rows[i], &err);
        if (status != TDM_OK) {
            fprintf(stderr, "nests: %s: %s\n", rows[i].name, err.message);
            return tdm_exit_code(status);
        }
    }
    return 0;
}
