/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event file of TensorBoard: records of TFRecord (length and data, each with a masked CRC-32C),
 * which are messages of the Protocol Buffers type tensorflow.Event
 * (tensorflow/core/util/event.proto and framework/summary.proto, where scalars are simple_value).
 */
#ifndef TDM_EXECUTOR_EVENTS_H
#define TDM_EXECUTOR_EVENTS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* A scalar at a step. */
struct tdm_event_scalar {
    const char *tag; /* at most 64 characters: "train/loss" */
    double value;
};

/* Creates a new event file in a directory. TensorBoard drops what earlier files of the
 * directory have after `resumed_step`; 0: all of it. TDM_IO. The caller owns *path, malloc'ed, and
 * closes *fd. */
enum tdm_status tdm_events_create(const char *directory, uint64_t resumed_step, char **path,
                                  int *fd, struct tdm_error *err);

/* Appends an event with scalars, at most 16; those that are not finite are left out. TDM_IO. */
enum tdm_status tdm_events_add(int fd, const char *path, uint64_t step, size_t count,
                               const struct tdm_event_scalar *scalars, struct tdm_error *err);

/* CRC-32C (Castagnoli) of bytes, as in RFC 3720, appendix B.4. */
uint32_t tdm_crc32c(const void *data, size_t bytes);

#endif
