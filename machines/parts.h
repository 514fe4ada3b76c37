/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of machines/ share. Not for use outside. */
#ifndef TDM_MACHINES_PARTS_H
#define TDM_MACHINES_PARTS_H

#include "machines/machine.h"

/* `local`: what calibrate wrote, else what this computer shows of itself (machines/local.c). */
enum tdm_status tdm_machine_load_local(struct tdm_machine **machine, struct tdm_error *err);

/* Where the shipped descriptions are, below the data directory. */
#define TDM_MACHINE_FOLDER "machines/descriptions"

/* Sets machine->description to the description (borrowed) or a completed copy, and machine->missing
 * (machines/complete.c). TDM_INPUT if its `base` is not shipped. */
enum tdm_status tdm_machine_complete(const char *file, json_t *description,
                                     struct tdm_machine *machine, struct tdm_error *err);

/* Reads a description from a file (machines/machine.c). */
enum tdm_status tdm_machine_load_file(const char *path, struct tdm_machine **machine,
                                      struct tdm_error *err);

#endif
