/* SPDX-License-Identifier: Apache-2.0 */
/* Internal functions that the files of machines/ share. */
#ifndef TDM_MACHINES_PARTS_H
#define TDM_MACHINES_PARTS_H

#include "machines/machine.h"

/* Loads `local`: what calibrate wrote, else what this computer reports (machines/local.c). */
enum tdm_status tdm_machine_load_local(struct tdm_machine **machine, struct tdm_error *err);

/* The folder of the shipped descriptions in the data directory. */
#define TDM_MACHINE_FOLDER "machines/descriptions"

/* Sets machine->description to the description (borrowed) or to a completed copy, and sets
 * machine->missing (machines/complete.c). TDM_INPUT if its `base` is not a shipped machine. */
enum tdm_status tdm_machine_complete(const char *file, json_t *description,
                                     struct tdm_machine *machine, struct tdm_error *err);

/* Reads a description from a file (machines/machine.c). */
enum tdm_status tdm_machine_load_file(const char *path, struct tdm_machine **machine,
                                      struct tdm_error *err);

#endif
