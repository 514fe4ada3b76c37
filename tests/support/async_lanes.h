/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cpu backend whose lanes are threads: an op runs as soon as the ops that it waits for have
 * ended, beside the ops of other lanes, as on a GPU. Before some ops a lane pauses at random. So a
 * wait that is missing shows as other bits, and to ThreadSanitizer as a race.
 */
#ifndef TDM_TESTS_ASYNC_LANES_H
#define TDM_TESTS_ASYNC_LANES_H

#include "executor/backend.h"

/* The backend. `seed` is that of the pauses in all steps until the next call. No step may run. */
const struct tdm_backend *tdm_async_lanes(uint64_t seed);

#endif
