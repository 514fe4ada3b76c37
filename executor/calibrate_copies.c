/* SPDX-License-Identifier: Apache-2.0 */
/* Measures copies for a calibration: series of copies that run while nothing else does, or beside
 * updates on the host. */
#include "executor/calibrate_parts.h"

#include "executor/host_optimizer.h"
#include "executor/host_update_rate.h"
#include "ops/move.h"
#include "schedule/program.h"

#include <math.h>
#include <stdlib.h>

#define SMALL_BYTES (UINT64_C(128) << 10)
#define MOST_COPIES 64u
/* How long updates run beside copies; copies last for so many times as long, as the last update
 * may begin at the end. */
#define BESIDE_SECONDS 0.25
#define BESIDE_TIMES 2.5

/* Copies of each direction at most: half of the launches that may be under way. */
#define MOST_BESIDE 480u

struct copies {
    const struct tdm_backend *backend;
    struct tdm_executor *executor;
    const struct tdm_program *program;
    unsigned char *base[TDM_MAX_PLACES]; /* a half for each direction */
    uint64_t half_bytes;
    const volatile sig_atomic_t *stop;
};

static enum tdm_status launch(const struct copies *copies, enum tdm_lane lane, uint64_t number,
                              uint64_t bytes, struct tdm_error *err)
{
    bool up = lane == TDM_LANE_H2D;
    const struct tdm_link *link =
        &copies->program->schedule->machine->topology.links[up ? TDM_LINK_H2D : TDM_LINK_D2H];
    uint64_t offset = up ? 0 : copies->half_bytes;
    const struct tdm_step step = {.number = 1};
    struct tdm_op op = {
        .number = number, .kind = TDM_OP_COPY, .lane = lane, .access_count = TDM_COPY_OPERANDS};
    op.access[TDM_COPY_FROM].bytes = op.access[TDM_COPY_TO].bytes = bytes;
    struct tdm_launch row = {.program = copies->program, .op = &op, .step = &step};
    row.operand[TDM_COPY_FROM] = (struct tdm_operand){
        .data = copies->base[link->from] + offset, .slots = 1, .slot_bytes = bytes};
    row.operand[TDM_COPY_TO] = (struct tdm_operand){
        .data = copies->base[link->to] + offset, .slots = 1, .slot_bytes = bytes};
    return copies->backend->run[TDM_OP_COPY](copies->executor, &row, err);
}

/* Times a series of `count` copies on each lane that is asked for, both lanes together. */
static enum tdm_status time_row(const struct copies *copies, bool h2d, bool d2h, uint64_t bytes,
                                uint32_t count, double *seconds, struct tdm_error *err)
{
    struct tdm_timing timings[2 * MOST_COPIES];
    enum tdm_status status = TDM_OK;
    uint64_t number = 0;
    for (uint32_t i = 0; i < count && status == TDM_OK; i++) {
        if (h2d)
            status = launch(copies, TDM_LANE_H2D, number++, bytes, err);
        if (d2h && status == TDM_OK)
            status = launch(copies, TDM_LANE_D2H, number++, bytes, err);
    }
    enum tdm_status finished = copies->backend->finish(copies->executor, err);
    size_t taken = copies->backend->reap(copies->executor, timings, 2 * MOST_COPIES);
    int64_t start = INT64_MAX, end = INT64_MIN;
    for (size_t i = 0; i < taken; i++) {
        start = timings[i].start_ns < start ? timings[i].start_ns : start;
        end = timings[i].end_ns > end ? timings[i].end_ns : end;
    }
    if (status == TDM_OK)
        status = finished;
    if (status == TDM_OK && copies->stop != NULL && *copies->stop)
        status = tdm_fail(err, TDM_INTERRUPTED, "interrupted while copies were measured");
    if (status == TDM_OK && taken != number)
        status = tdm_fail(err, TDM_INTERNAL, "%zu copies of %llu were timed", taken,
                          (unsigned long long)number);
    *seconds = 1e-9 * (double)(end - start);
    return status;
}

/* Measures the fixed time of a copy and the rate of its bytes, in one direction. */
static enum tdm_status measure_way(const struct copies *copies, bool up, uint64_t bytes,
                                   uint32_t count, double *fixed, double *rate,
                                   struct tdm_error *err)
{
    double once, small, large;
    enum tdm_status status = time_row(copies, up, !up, SMALL_BYTES, 4, &once, err);
    if (status == TDM_OK)
        status = time_row(copies, up, !up, SMALL_BYTES, MOST_COPIES, &small, err);
    if (status == TDM_OK)
        status = time_row(copies, up, !up, bytes, count, &large, err);
    if (status != TDM_OK)
        return status;
    small /= MOST_COPIES;
    large /= count;
    double bytes_rate = (double)(bytes - SMALL_BYTES) / (large - small);
    *rate = large > small && bytes_rate > 1 ? bytes_rate : (double)bytes / large;
    *fixed = small - (double)SMALL_BYTES / *rate;
    if (!(*fixed > 0))
        *fixed = 0;
    return TDM_OK;
}

static enum tdm_status measure_both(const struct copies *copies, uint64_t bytes, uint32_t count,
                                    double *rate, struct tdm_error *err)
{
    double seconds;
    enum tdm_status status = time_row(copies, true, true, bytes, count, &seconds, err);
    if (status == TDM_OK)
        *rate = 2.0 * (double)bytes * count / seconds;
    return status;
}

/* ---- beside updates on the host ---- */

struct beside {
    const struct copies *copies;
    uint64_t bytes;           /* of a copy */
    uint32_t count;           /* of copies of each direction */
    int64_t start_ns, end_ns; /* of the updates */
};

static enum tdm_status begin_copies(void *self, struct tdm_error *err)
{
    struct beside *beside = self;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < 2 * beside->count && status == TDM_OK; i++)
        status =
            launch(beside->copies, i % 2 == 0 ? TDM_LANE_H2D : TDM_LANE_D2H, i, beside->bytes, err);
    beside->start_ns = beside->copies->backend->now(beside->copies->executor);
    return status;
}

static void note_end(void *self)
{
    struct beside *beside = self;
    beside->end_ns = beside->copies->backend->now(beside->copies->executor);
}

/* The rate of the copies of a direction that lie within the updates. */
static double rate_within(const struct beside *beside, bool up, const struct tdm_timing *timings,
                          size_t count)
{
    double bytes = 0, seconds = 0;
    for (size_t i = 0; i < count; i++)
        if ((timings[i].op_number % 2 == 0) == up && timings[i].start_ns >= beside->start_ns &&
            timings[i].end_ns <= beside->end_ns) {
            bytes += (double)beside->bytes;
            seconds += 1e-9 * (double)(timings[i].end_ns - timings[i].start_ns);
        }
    return seconds > 0 ? bytes / seconds : 0;
}

static enum tdm_status measure_beside_updates(const struct copies *copies,
                                              const struct tdm_schedule *updates, uint64_t bytes,
                                              struct tdm_calibration *calibration,
                                              struct tdm_error *err)
{
    static struct tdm_timing timings[2 * MOST_BESIDE];
    const double copied =
        BESIDE_TIMES * BESIDE_SECONDS *
        fmax(calibration->link_rate[TDM_RATE_H2D], calibration->link_rate[TDM_RATE_D2H]);
    struct beside beside = {.copies = copies,
                            .bytes = bytes,
                            .count = (uint32_t)fmin(copied / (double)bytes + 1, MOST_BESIDE)};
    const struct tdm_beside_updates watch = {
        .self = &beside, .begin = begin_copies, .end = note_end};
    tdm_calibration_say(calibration->options, "copies beside updates on the host");
    enum tdm_status status =
        tdm_host_update_rate(updates, tdm_host_update_threads(TDM_HOST_SPARE_CORES), BESIDE_SECONDS,
                             &watch, &calibration->beside_host_rate, err);
    enum tdm_status finished = copies->backend->finish(copies->executor, err);
    const size_t taken = copies->backend->reap(copies->executor, timings, 2 * MOST_BESIDE);
    if (status == TDM_OK)
        status = finished;
    for (int way = TDM_RATE_H2D; way <= TDM_RATE_D2H; way++)
        calibration->beside_copy_rate[way] =
            rate_within(&beside, way == TDM_RATE_H2D, timings, taken);
    return status;
}

static enum tdm_status take_places(struct copies *copies, struct tdm_calibration *calibration,
                                   struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    const struct tdm_topology *topology = &copies->program->schedule->machine->topology;
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++) {
        void *base = NULL;
        int64_t start_ns = copies->backend->now(copies->executor);
        status = copies->backend->arena(copies->executor, (enum tdm_place)place,
                                        2 * copies->half_bytes, &base, err);
        double seconds = 1e-9 * (double)(copies->backend->now(copies->executor) - start_ns);
        copies->base[place] = base;
        if (topology->places[place].host_memory && copies->backend->own_device_memory)
            calibration->pinned_rate = 2.0 * (double)copies->half_bytes / seconds;
        if (status == TDM_OK)
            status = copies->backend->fill(copies->executor, base, 0, 2 * copies->half_bytes, err);
    }
    return status;
}

enum tdm_status tdm_calibrate_copies(struct tdm_calibration *calibration,
                                     const struct tdm_calibration_shape *shape,
                                     const struct tdm_calibration_shape *updates, uint64_t bytes,
                                     uint32_t count, struct tdm_error *err)
{
    struct copies copies = {.backend = calibration->options->backend,
                            .half_bytes = bytes,
                            .stop = calibration->options->stop};
    struct tdm_schedule *schedule = NULL, *updated = NULL;
    struct tdm_program *program = NULL, *updating = NULL;
    double fixed[2] = {0}, *rate = calibration->link_rate;
    tdm_calibration_say(calibration->options, "copies one way and both");
    enum tdm_status status = tdm_calibration_program(calibration, shape, &schedule, &program, err);
    copies.program = program;
    if (status == TDM_OK)
        status = copies.backend->open(1, &copies.program, 0, &copies.executor, err);
    if (status == TDM_OK)
        status = take_places(&copies, calibration, err);
    if (status == TDM_OK)
        status = measure_way(&copies, true, bytes, count, &fixed[0], &rate[TDM_RATE_H2D], err);
    if (status == TDM_OK)
        status = measure_way(&copies, false, bytes, count, &fixed[1], &rate[TDM_RATE_D2H], err);
    if (status == TDM_OK)
        status = measure_both(&copies, bytes, count, &rate[TDM_RATE_BOTH_WAYS], err);
    if (status == TDM_OK && updates != NULL)
        status = tdm_calibration_program(calibration, updates, &updated, &updating, err);
    if (status == TDM_OK && updates != NULL)
        status = measure_beside_updates(&copies, updated, bytes, calibration, err);
    double sum = rate[TDM_RATE_H2D] + rate[TDM_RATE_D2H];
    if (rate[TDM_RATE_BOTH_WAYS] > sum)
        rate[TDM_RATE_BOTH_WAYS] = sum;
    calibration->copy_seconds = (fixed[0] + fixed[1]) / 2;
    if (copies.executor != NULL)
        copies.backend->close(copies.executor);
    tdm_program_free(updating);
    tdm_schedule_free(updated);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    return status;
}
