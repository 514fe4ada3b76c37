/* SPDX-License-Identifier: Apache-2.0 */
/* A machine as a table for people and as JSON for programs. */
#ifndef TDM_MACHINES_MACHINE_TABLE_H
#define TDM_MACHINES_MACHINE_TABLE_H

#include "machines/machine.h"

#include <jansson.h>
#include <stdio.h>

/* Prints capacities, rates and their sources, one per line. */
void tdm_machine_table(FILE *out, const struct tdm_machine *machine);

/* The same as a JSON object. New reference; NULL if memory ran out. */
json_t *tdm_machine_json(const struct tdm_machine *machine);

#endif
