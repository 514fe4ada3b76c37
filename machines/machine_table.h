/* SPDX-License-Identifier: Apache-2.0 */
/* A machine as people and programs read it. */
#ifndef TDM_MACHINES_MACHINE_TABLE_H
#define TDM_MACHINES_MACHINE_TABLE_H

#include "machines/machine.h"

#include <jansson.h>
#include <stdio.h>

/* Capacities, rates and where they come from, a line each. */
void tdm_machine_table(FILE *out, const struct tdm_machine *machine);

/* The same as an object. New reference; NULL if memory ran out. */
json_t *tdm_machine_json(const struct tdm_machine *machine);

#endif
