/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory as the driver reports it: used by this process, and free.
 *
 * The source is NVML. It is part of the driver and is loaded when the backend is opened. Where NVML
 * lists processes, the use of this process is taken from that list. In containers it often does
 * not; then it is the growth of the card's use since before our context was made. Without NVML it
 * is all memory in use on the card.
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
    uint64_t before_bytes; /* memory in use on the card before our context was made */
};

/* Call it before the first call that makes a context on the CUDA device `device`. Never fails: what
 * it cannot find out, it leaves out. */
void tdm_driver_use_open(struct tdm_driver_use *use, int device);
void tdm_driver_use_close(struct tdm_driver_use *use);

/* Free bytes of the card, by NVML; needs no context. False without NVML. */
bool tdm_driver_use_free(const struct tdm_driver_use *use, uint64_t *bytes);

/* Bytes of the current device that this process uses, including its context and libraries. */
enum tdm_status tdm_driver_use_read(const struct tdm_driver_use *use, uint64_t *bytes,
                                    struct tdm_error *err);

/* The driver's version, for example "580.82.07", by NVML; "" without NVML. */
void tdm_driver_version(char *out, size_t out_bytes);

/* Bytes of the current device that can still be allocated. */
enum tdm_status tdm_driver_free_read(uint64_t *bytes, struct tdm_error *err);

#endif
