/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver reports: how much of the GPU's memory is ours, and how much is free.
 *
 * By NVML, which is part of the driver and is loaded when the backend is opened: what it says of
 * this process, or, where it does not know processes (in containers), by how much the card's use
 * has grown since before our context. Without NVML: all that is used on the card.
 */
#ifndef TDM_EXECUTOR_CUDA_DRIVER_USE_H
#define TDM_EXECUTOR_CUDA_DRIVER_USE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tdm_driver_use {
    void *library; /* NULL: no NVML */
    void *device;
    int (*shutdown)(void);
    int (*memory)(void *device, void *info);
    int (*processes)(void *device, unsigned *count, void *infos);
    uint64_t before_bytes; /* in use on the card before our context */
};

/* Before the first call that makes a context on the CUDA device `device`. Never fails: what cannot
 * be found out is left out. */
void tdm_driver_use_open(struct tdm_driver_use *use, int device);
void tdm_driver_use_close(struct tdm_driver_use *use);

/* Bytes of the card that nobody uses, by NVML: needs no context. False without it. */
bool tdm_driver_use_free(const struct tdm_driver_use *use, uint64_t *bytes);

/* Bytes of the current device that this process uses, context and libraries included. */
enum tdm_status tdm_driver_use_read(const struct tdm_driver_use *use, uint64_t *bytes,
                                    struct tdm_error *err);

/* The version of the driver, "580.82.07", by NVML; "" without it. */
void tdm_driver_version(char *out, size_t out_bytes);

/* Bytes of it that can still be taken. */
enum tdm_status tdm_driver_free_read(uint64_t *bytes, struct tdm_error *err);

#endif
