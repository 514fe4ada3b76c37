/* SPDX-License-Identifier: Apache-2.0 */
/* --margin: memory of a device that must be left over; --host-memory: that of a host that there is. */
#ifndef TDM_PLANNER_MARGIN_H
#define TDM_PLANNER_MARGIN_H

#include "base/status.h"

#include <stdint.h>

#define TDM_MARGIN 0.03 /* where nothing is said */

/* "3%" or "0.03". TDM_USAGE. */
enum tdm_status tdm_margin_parse(const char *text, double *margin, struct tdm_error *err);

#define TDM_MOST_HOST_BYTES (UINT64_C(1) << 60)

/* --host-memory. TDM_USAGE. */
enum tdm_status tdm_host_memory_parse(const char *text, uint64_t *bytes, struct tdm_error *err);

#endif
