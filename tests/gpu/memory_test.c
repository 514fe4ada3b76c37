/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that memory is as planned on a GPU. A step touches the arena up to its last buffer, and the
 * driver reports what is planned, within 64 MiB. What does not fit is refused before it is
 * allocated, and everything is freed. Op times exist only if they are asked for. */
#include "executor/arenas.h"
#include "executor/free_memory.h"
#include "executor/state.h"
#include "texts/tokens.h"
#include "executor/walk.h"
#include "executor/weights.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "tests/gpu/gpu_test.h"

#include <inttypes.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define DRIVER_BOUND (64 * MIB)

static void die(const struct tdm_error *err)
{
    printf("Bail out! %s\n", err->message);
    exit(1);
}

static struct tdm_schedule *schedule_of(const char *name, uint64_t context, uint64_t chunk)
{
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err = {0};
    if (tdm_model_load(name, &model, &err) != TDM_OK ||
        tdm_machine_load("h200-published", &machine, &err) != TDM_OK ||
        tdm_schedule_new(model, machine, context, &schedule, &err) != TDM_OK)
        die(&err);
    schedule->chunk_tokens = chunk;
    if (tdm_schedule_check(schedule, name, &err) != TDM_OK)
        die(&err);
    return schedule;
}

static uint64_t free_bytes(void)
{
    size_t free_now = 0, total = 0;
    cudaMemGetInfo(&free_now, &total);
    return free_now;
}

/* Runs one step of a program. Returns the number of op times. */
static size_t run_step(const struct tdm_program *program, const struct tdm_arenas *arenas,
                       struct tdm_walk *walk, bool untimed)
{
    struct tdm_step step = {.number = 1, .learning_rate = 1e-4, .untimed = untimed};
    uint64_t count = tdm_schedule_tokens(program->schedule);
    int32_t *tokens = calloc(count + 1, sizeof(*tokens));
    struct tdm_timing *timings = calloc(program->op_count + 1, sizeof(*timings));
    struct tdm_error err = {0};
    if (tokens == NULL || timings == NULL)
        exit(1);
    for (uint64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(i * 31 % program->schedule->model->vocabulary);
    if (tdm_state_write_tokens(arenas, program, tokens, tokens, &err) != TDM_OK ||
        tdm_walk_step(walk, &step, NULL, NULL, &err) != TDM_OK)
        die(&err);
    size_t timed = arenas->backend->reap(arenas->executor, timings, program->op_count + 1);
    free(tokens);
    free(timings);
    return timed;
}

/* The offset of the last buffer of the arena. Its last bytes need not be touched, because an op may
 * use less of it. */
static uint64_t begin_of_last(const struct tdm_program *program)
{
    uint64_t begin = 0;
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].used && program->buffers[i].place == TDM_DEVICE &&
            program->buffers[i].offset > begin)
            begin = program->buffers[i].offset;
    return begin;
}

static void test_planned_is_used(struct gpu_test *test, const struct tdm_backend *backend)
{
    struct tdm_schedule *schedule = schedule_of("qwen2.5-0.5b", 4096, 1024);
    struct tdm_program *program = NULL;
    struct tdm_arenas arenas;
    struct tdm_walk *walk = NULL;
    struct tdm_error err = {0};
    uint64_t touched, highest, used, left;
    if (tdm_program_lower(schedule, &program, &err) != TDM_OK ||
        tdm_arenas_take(backend, 1, (const struct tdm_program *const *)&program, NULL, NULL,
                        &arenas, &err) != TDM_OK ||
        tdm_walk_new(program, NULL, &arenas, &walk, &err) != TDM_OK ||
        tdm_walk_prepare(walk, &err) != TDM_OK || tdm_arenas_fill(&arenas, NULL, &err) != TDM_OK ||
        tdm_weights_draw(1, &arenas, program, NULL, &err) != TDM_OK)
        die(&err);
    size_t timed = run_step(program, &arenas, walk, false);
    if (tdm_arenas_scan(&arenas, TDM_DEVICE, &touched, &highest, &err) != TDM_OK ||
        backend->used(arenas.executor, &used, &left, &err) != TDM_OK)
        die(&err);
    uint64_t planned = program->arena_bytes[TDM_DEVICE];
    gpu_test_case(test,
                  highest > begin_of_last(program) && highest <= planned &&
                      planned - touched < planned / 50,
                  "touched %" PRIu64 " of %" PRIu64 " bytes planned, the highest at %" PRIu64,
                  touched, planned, highest);
    uint64_t all = planned + schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
    gpu_test_case(test, used < all + DRIVER_BOUND && all < used + DRIVER_BOUND,
                  "the driver reports %" PRIu64 " MiB, planned %" PRIu64 " MiB", used / MIB,
                  all / MIB);
    gpu_test_case(test, timed == program->op_count, "%zu of %" PRIu64 " ops are timed", timed,
                  program->op_count);
    timed = run_step(program, &arenas, walk, true);
    gpu_test_case(test, timed == 0, "%zu ops of a step that nobody times are timed", timed);
    tdm_walk_free(walk);
    tdm_arenas_release(&arenas, 1);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

static void test_too_large_is_refused(struct gpu_test *test, const struct tdm_backend *backend)
{
    struct tdm_schedule *schedule = schedule_of("llama-3.1-70b", 4096, 1024);
    struct tdm_program *program = NULL;
    struct tdm_arenas arenas;
    struct tdm_error err = {0};
    if (tdm_program_lower(schedule, &program, &err) != TDM_OK)
        die(&err);
    uint64_t before = free_bytes();
    enum tdm_status status = tdm_arenas_take(
        backend, 1, (const struct tdm_program *const *)&program, NULL, NULL, &arenas, &err);
    uint64_t after = free_bytes();
    gpu_test_case(test, status == TDM_INFEASIBLE && strstr(err.hint, "--memory") != NULL,
                  "a schedule of %" PRIu64 " GiB: \"%s\"; hint: %s",
                  program->arena_bytes[TDM_DEVICE] / 1024 / MIB, err.message, err.hint);
    gpu_test_case(test, before < after + DRIVER_BOUND,
                  "%" PRIu64 " MiB free before, %" PRIu64 " after", before / MIB, after / MIB);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

/* A plan for all of the machine's memory is not refused, if the GPU is that machine's and idle. */
static void test_all_fits(struct gpu_test *test, const struct tdm_backend *backend)
{
    struct tdm_schedule *schedule = schedule_of("qwen2.5-0.5b", 4096, 1024);
    struct tdm_program *program = NULL;
    struct tdm_executor *executor;
    struct tdm_device_memory memory;
    struct tdm_error err = {0};
    struct cudaDeviceProp properties;
    uint64_t all = schedule->machine->topology.places[TDM_DEVICE].capacity_bytes;
    uint64_t arena = all - schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
    void *base;
    memory.runtime_bytes = schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
        exit(1);
    if (properties.totalGlobalMem < all || properties.totalGlobalMem > all + DRIVER_BOUND ||
        properties.totalGlobalMem - free_bytes() > DRIVER_BOUND + memory.runtime_bytes) {
        printf("# this card is not an idle H200\n");
        goto free_schedule;
    }
    if (tdm_program_lower(schedule, &program, &err) != TDM_OK ||
        backend->open(1, (const struct tdm_program *const *)&program, 0, &executor, &err) !=
            TDM_OK ||
        backend->used(executor, &memory.used_bytes, &memory.free_bytes, &err) != TDM_OK)
        die(&err);
    enum tdm_status status = tdm_free_memory_check_device(&memory, arena, &err);
    if (status == TDM_OK)
        status = backend->arena(executor, TDM_DEVICE, arena, &base, &err);
    gpu_test_case(test, status == TDM_OK,
                  "an arena of %" PRIu64 " MiB, %" PRIu64 " MiB free of %" PRIu64 ": %s",
                  arena / MIB, memory.free_bytes / MIB, (uint64_t)properties.totalGlobalMem / MIB,
                  status == TDM_OK ? "taken" : err.message);
    backend->close(executor);
    tdm_program_free(program);
free_schedule:
    tdm_schedule_free(schedule);
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    const struct tdm_backend *backend;
    struct tdm_error err = {0};
    if (tdm_backend_find("cuda", &backend, &err) != TDM_OK)
        die(&err);
    test_too_large_is_refused(&test, backend);
    test_planned_is_used(&test, backend);
    test_all_fits(&test, backend);
    return gpu_test_end(&test);
}
