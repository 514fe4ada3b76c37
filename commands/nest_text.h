/* SPDX-License-Identifier: Apache-2.0 */
/* Short descriptions of a schedule's loop nest, for tables and pictures. */
#ifndef TDM_COMMANDS_NEST_TEXT_H
#define TDM_COMMANDS_NEST_TEXT_H

#include "schedule/schedule.h"

#include <stddef.h>

#define TDM_NEST_TEXT 128

/* "28 x 1", "7,6,5,4,3,2,1". All functions return `out`. */
const char *tdm_nest_groups(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT]);

/* What chunks keep besides inputs, and where. Includes the fraction of chunks and layers if it is
 * not all: "attention device", "attention 48% host, all 10% device". "-": nothing. */
const char *tdm_nest_kept(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT]);

/* The same for what groups of more than one layer hold: "inputs host, attention host". */
const char *tdm_nest_held(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT]);

/* What else is on the host: "inputs, moments 12 of 28 layers". "-": nothing. */
const char *tdm_nest_on_host(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT]);

/* The nest's distinguishing properties, for a picture: "layer-major, 28 groups of 1, attention
 * kept". */
const char *tdm_nest_name(const struct tdm_schedule *schedule, char out[TDM_NEST_TEXT]);

#endif
