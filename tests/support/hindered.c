/* SPDX-License-Identifier: Apache-2.0 */
/* A cpu backend whose ranks pause at random, and of which one may fail. */
#include "tests/support/hindered.h"

#include "executor/backends.h"
#include "tests/support/random_schedule.h"

#include <time.h>

static struct tdm_hindrance hindrance; /* only read while steps run */
static struct tdm_backend backend;
static struct timespec failed; /* when an op failed */

static void pause_for(uint64_t nanoseconds)
{
    const struct timespec pause = {.tv_sec = (time_t)(nanoseconds / 1000000000),
                                   .tv_nsec = (long)(nanoseconds % 1000000000)};
    nanosleep(&pause, NULL);
}

static enum tdm_status run_hindered(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    const uint32_t rank = launch->program->rank;
    struct tdm_dice dice;
    tdm_dice_seed(&dice,
                  hindrance.seed ^ (uint64_t)rank << 48 ^ launch->step->number << 40 ^ op->number);
    if (tdm_dice_chance(&dice, hindrance.percent))
        pause_for(tdm_dice_roll(&dice, 0, hindrance.longest_nanoseconds));
    if (rank == hindrance.fails && op->number == hindrance.at_op &&
        launch->step->number == hindrance.of_step) {
        pause_for(hindrance.late_nanoseconds);
        while (hindrance.released != NULL && !atomic_load(hindrance.released))
            pause_for(1000000);
        clock_gettime(CLOCK_MONOTONIC, &failed);
        return tdm_fail(err, TDM_IO, "op %llu fails", (unsigned long long)op->number);
    }
    return tdm_cpu_backend.run[op->kind](executor, launch, err);
}

const struct tdm_backend *tdm_hindered(const struct tdm_hindrance *how)
{
    hindrance = *how;
    backend = tdm_cpu_backend;
    backend.name = "cpu whose ranks are hindered";
    for (int i = 0; i < TDM_OP_KINDS; i++)
        if (backend.run[i] != NULL)
            backend.run[i] = run_hindered;
    return &backend;
}

double tdm_hindered_failed_seconds(void)
{
    return (double)failed.tv_sec + 1e-9 * (double)failed.tv_nsec;
}
