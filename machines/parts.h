/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of machines/ share. Not for use outside. */
#ifndef TDM_MACHINES_PARTS_H
#define TDM_MACHINES_PARTS_H

#include "machines/machine.h"

/* `local`: what calibrate wrote, else what this computer shows of itself (machines/local.c). */
enum tdm_status tdm_machine_load_local(struct tdm_machine **machine, struct tdm_error *err);

/* Reads a description from a file (machines/machine.c). */
enum tdm_status tdm_machine_load_file(const char *path, struct tdm_machine **machine,
                                      struct tdm_error *err);

#endif
