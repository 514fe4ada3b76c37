/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the lanes of the cuda backend: copies wait for each other when they must, waits work for
 * more ops than the ring of events holds, and the times of ops are in order and on the backend's
 * clock.
 *
 * Words travel in circles: from the host to the device on one lane, one word down on the compute
 * lane, and back on a third. Each copy waits for the one before it, so after n rounds every word
 * has moved down by n. A copy that began too early would bring words that have moved less. The test
 * is repeated with host memory that cannot be pinned. */
#include "executor/arenas.h"
#include "ops/move.h"
#include "schedule/program.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/random_schedule.h"

#include <string.h>

#define WORDS (UINT64_C(1) << 18)
#define ROUNDS 5000u /* more than a lane's ring has events */

/* With -Wl,--wrap the linker sends calls from our objects here. */
cudaError_t __real_cudaHostRegister(void *start, size_t bytes, unsigned flags);
cudaError_t __wrap_cudaHostRegister(void *start, size_t bytes, unsigned flags);

static bool refuses;

cudaError_t __wrap_cudaHostRegister(void *start, size_t bytes, unsigned flags)
{
    return refuses ? cudaErrorMemoryAllocation : __real_cudaHostRegister(start, bytes, flags);
}

static void die(const struct tdm_error *err)
{
    printf("Bail out! %s\n", err->message);
    exit(1);
}

struct circle {
    const struct tdm_backend *backend;
    struct tdm_executor *executor;
    struct tdm_program *program;
    uint64_t number;
    uint64_t position[TDM_MAX_LANES];
};

/* Copies `words` words on a lane, after the last op of the lane `after`. */
static enum tdm_status copy(struct circle *circle, enum tdm_lane lane, enum tdm_lane after,
                            uint64_t *to, uint64_t *from, uint64_t words, struct tdm_error *err)
{
    struct tdm_op op = {.number = circle->number++,
                        .kind = TDM_OP_COPY,
                        .lane = lane,
                        .layer = TDM_NONE,
                        .chunk = TDM_NONE,
                        .access_count = TDM_COPY_OPERANDS};
    op.access[TDM_COPY_FROM].bytes = op.access[TDM_COPY_TO].bytes = words * sizeof(*to);
    static const struct tdm_step step = {.number = 1};
    struct tdm_launch launch = {.program = circle->program, .op = &op, .step = &step};
    launch.operand[TDM_COPY_FROM] =
        (struct tdm_operand){.data = from, .dtype = TDM_DTYPE_FP32, .slots = 1};
    launch.operand[TDM_COPY_TO] =
        (struct tdm_operand){.data = to, .dtype = TDM_DTYPE_FP32, .slots = 1};
    enum tdm_status status = TDM_OK;
    if (circle->position[after] > 0)
        status = circle->backend->wait(circle->executor, lane, after, circle->position[after], err);
    if (status == TDM_OK)
        status = circle->backend->run[TDM_OP_COPY](circle->executor, &launch, err);
    circle->position[lane]++;
    return status;
}

/* Counts the ops of a lane as they end. Returns false if the count does not grow, or exceeds the
 * ops launched. */
static bool await_end(struct circle *circle, enum tdm_lane lane, struct tdm_error *err)
{
    uint64_t before = 0, ended = 0;
    while (ended < circle->position[lane]) {
        if (circle->backend->ended(circle->executor, lane, before + 1, &ended, err) != TDM_OK)
            die(err);
        if (ended <= before || ended > circle->position[lane])
            return false;
        before = ended;
    }
    return true;
}

static void run_rounds(struct gpu_test *test, struct circle *circle, uint64_t *host,
                       uint64_t *device)
{
    struct tdm_error err = {0};
    static struct tdm_timing timings[3 * ROUNDS];
    uint64_t *below = device + WORDS;
    enum tdm_status status = TDM_OK;
    memset(circle->position, 0, sizeof(circle->position));
    circle->number = 0;
    for (uint64_t i = 0; i < WORDS; i++)
        host[i] = i;
    int64_t begin = circle->backend->now(circle->executor);
    for (uint32_t round = 0; round < ROUNDS && status == TDM_OK; round++) {
        status = copy(circle, TDM_LANE_H2D, TDM_LANE_D2H, device, host, WORDS, &err);
        if (status == TDM_OK)
            status =
                copy(circle, TDM_LANE_COMPUTE, TDM_LANE_H2D, below, device + 1, WORDS - 1, &err);
        if (status == TDM_OK)
            status = copy(circle, TDM_LANE_D2H, TDM_LANE_COMPUTE, host, below, WORDS - 1, &err);
    }
    bool counted = true;
    for (int lane = 0; lane < TDM_LANES && status == TDM_OK; lane++)
        counted = await_end(circle, (enum tdm_lane)lane, &err) && counted;
    if (status == TDM_OK)
        status = circle->backend->finish(circle->executor, &err);
    int64_t end = circle->backend->now(circle->executor);
    if (status != TDM_OK)
        die(&err);

    uint64_t wrong = 0;
    for (uint64_t i = 0; i + ROUNDS < WORDS; i++)
        wrong += host[i] != i + ROUNDS;
    gpu_test_case(test, wrong == 0,
                  "%u rounds over three lanes in %.1f ms: %llu of %llu words wrong", ROUNDS,
                  1e-6 * (double)(end - begin), (unsigned long long)wrong,
                  (unsigned long long)(WORDS - ROUNDS));

    gpu_test_case(test, counted, "ops are counted as they end");

    const int64_t slack_ns = 1000000;
    size_t count = circle->backend->reap(circle->executor, timings, 3 * ROUNDS), late = 0;
    int64_t ends[3 * ROUNDS] = {0};
    for (size_t i = 0; i < count; i++)
        if (timings[i].op_number < 3 * ROUNDS)
            ends[timings[i].op_number] = timings[i].end_ns;
    for (size_t i = 0; i < count; i++) {
        uint64_t number = timings[i].op_number;
        late += timings[i].start_ns > timings[i].end_ns || timings[i].start_ns < begin - slack_ns ||
                timings[i].end_ns > end + slack_ns ||
                /* it ended before the previous op, by more than the clock's error */
                (number > 0 && ends[number - 1] > 0 && timings[i].end_ns + 2000 < ends[number - 1]);
    }
    gpu_test_case(test, count > 0 && late == 0, "times of %zu ops, %zu of them out of order", count,
                  late);
}

/* Runs the rounds on pinned or pageable host memory. */
static void travel(struct gpu_test *test, const struct tdm_schedule *schedule, bool pinned)
{
    struct circle circle = {0};
    struct tdm_error err = {0};
    void *host, *device;
    refuses = !pinned;
    if (tdm_program_lower(schedule, &circle.program, &err) != TDM_OK ||
        tdm_backend_find("cuda", &circle.backend, &err) != TDM_OK ||
        circle.backend->open(1, (const struct tdm_program *const *)&circle.program, 0,
                             &circle.executor, &err) != TDM_OK ||
        circle.backend->arena(circle.executor, TDM_HOST, WORDS * sizeof(uint64_t), &host, &err) !=
            TDM_OK ||
        circle.backend->arena(circle.executor, TDM_DEVICE, 2 * WORDS * sizeof(uint64_t), &device,
                              &err) != TDM_OK)
        die(&err);
    gpu_test_case(test,
                  circle.backend->pinned_bytes(circle.executor) ==
                      (pinned ? WORDS * sizeof(uint64_t) : 0),
                  "host memory is %s", pinned ? "pinned" : "pageable");
    run_rounds(test, &circle, host, device);
    run_rounds(test, &circle, host, device); /* a second step: positions start again */

    uint64_t touched, highest;
    if (circle.backend->fill(circle.executor, device, 0, 2 * WORDS * 8, &err) != TDM_OK ||
        circle.backend->upload(circle.executor, (uint64_t *)device + 5, &test->seed, 8, &err) !=
            TDM_OK ||
        circle.backend->upload(circle.executor, (uint64_t *)device + 900, &test->seed, 8, &err) !=
            TDM_OK ||
        circle.backend->scan(circle.executor, device, 2 * WORDS * 8, &touched, &highest, &err) !=
            TDM_OK)
        die(&err);
    gpu_test_case(test, touched == 16 && highest == 901 * 8,
                  "the pattern shows 2 touched words, %llu bytes, the highest at %llu",
                  (unsigned long long)touched, (unsigned long long)highest - 8);
    circle.backend->close(circle.executor);
    tdm_program_free(circle.program);
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    struct tdm_random_options options = {0};
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err = {0};
    if (tdm_random_schedule(1, &options, &schedule, &err) != TDM_OK)
        die(&err);
    travel(&test, schedule, true);
    travel(&test, schedule, false);
    tdm_schedule_free(schedule);
    return gpu_test_end(&test);
}
