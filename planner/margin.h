/* SPDX-License-Identifier: Apache-2.0 */
/* --margin: memory of a device that must be left over. */
#ifndef TDM_PLANNER_MARGIN_H
#define TDM_PLANNER_MARGIN_H

#include "base/status.h"

#define TDM_MARGIN 0.03 /* where nothing is said */

/* "3%" or "0.03". TDM_USAGE. */
enum tdm_status tdm_margin_parse(const char *text, double *margin, struct tdm_error *err);

#endif
