/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of calibration; private to them. */
#ifndef TDM_EXECUTOR_CALIBRATE_PARTS_H
#define TDM_EXECUTOR_CALIBRATE_PARTS_H

#include "executor/calibrate.h"
#include "simulator/rate_fit.h"

#define TDM_MOST_SHAPES 12u /* maximum number of shapes of one model */

/* A step to run, of a shipped model with this many layers. */
struct tdm_calibration_shape {
    const char *model;
    uint32_t layers, vocabulary;
    uint64_t context, chunk_tokens;
    double seconds; /* to run for, at least two steps; the later half counts */
    enum tdm_optimizer optimizer;
    bool fp32; /* all values, by kernels of their own on a card; else as schedules have it */
};

struct tdm_calibration {
    const struct tdm_calibration_options *options;
    json_t *machine; /* description that schedules are planned for; borrowed */
    struct tdm_rate_fit *fit;
    double overhead_seconds;                /* delay of an op by being timed */
    uint64_t runtime_bytes[TDM_MAX_PLACES]; /* outside the arenas; 0: no device of its own */
    /* of the shape that ran longest: seconds of its second step and of its last */
    double early_seconds, late_seconds, longest_seconds;
    double link_rate[TDM_RATES];         /* H2D, D2H, BOTH_WAYS */
    double host_rate, host_rounded_rate; /* updates on the host */
    /* updates beside copies both ways, and the copies of each direction; 0: not measured */
    double beside_host_rate, beside_copy_rate[TDM_RATES];
    double copy_seconds;
    double pinned_rate; /* bytes/s at which pinned host memory is allocated */
};

/* Runs shapes of one model in memory that is allocated once. Shapes that do not fit are left out.
 * TDM_INFEASIBLE if none fits. */
enum tdm_status tdm_calibrate_steps(struct tdm_calibration *calibration, uint32_t count,
                                    const struct tdm_calibration_shape *shapes,
                                    struct tdm_error *err);

/* Measures copies of `bytes` and of 128 KiB, `count` in sequence, on a backend opened for the
 * smallest shape; then copies both ways beside updates on the host of a layer of `updates` (NULL:
 * not), as the host's memory serves both. */
enum tdm_status tdm_calibrate_copies(struct tdm_calibration *calibration,
                                     const struct tdm_calibration_shape *shape,
                                     const struct tdm_calibration_shape *updates, uint64_t bytes,
                                     uint32_t count, struct tdm_error *err);

/* Describes the machine before anything is measured; a card with what its shipped machine says and
 * a calibration does not measure. The caller owns *description. */
enum tdm_status tdm_calibration_describe(const struct tdm_backend *backend, json_t **description,
                                         struct tdm_error *err);

/* Makes the schedule and the program of a shape. The caller frees both. */
enum tdm_status tdm_calibration_program(const struct tdm_calibration *calibration,
                                        const struct tdm_calibration_shape *shape,
                                        struct tdm_schedule **schedule,
                                        struct tdm_program **program, struct tdm_error *err);

/* Reports one line through options->say. */
void tdm_calibration_say(const struct tdm_calibration_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
