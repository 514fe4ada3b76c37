/* SPDX-License-Identifier: Apache-2.0 */
/* The backends. Only the table itself uses these names; all other code calls tdm_backend_find(). */
#ifndef TDM_EXECUTOR_BACKENDS_H
#define TDM_EXECUTOR_BACKENDS_H

#include "executor/backend.h"

extern const struct tdm_backend tdm_cpu_backend;
extern const struct tdm_backend tdm_cuda_backend; /* in builds with CUDA */
extern const struct tdm_backend tdm_null_backend;

#endif
