/* SPDX-License-Identifier: Apache-2.0 */
/* Where the files of an installation are. They are looked for from where the running program or
 * shared library is now, so that a copied or moved installation uses its own files. */
#ifndef TDM_BASE_INSTALL_H
#define TDM_BASE_INSTALL_H

#include <stdbool.h>
#include <stddef.h>

/* Writes to `out` the folder of the program, or of the shared library that has this code. False if
 * it is not known or too long. */
bool tdm_install_folder(char *out, size_t out_bytes);

/* Writes to `out` where a file is that was configured to be installed as `configured`, an absolute
 * path: in the installation that the running code belongs to if the file is there, else
 * `configured` itself. False if the path is too long. */
bool tdm_install_path(const char *configured, char *out, size_t out_bytes);

/* The way from the folder `from` to `to`, both absolute: "../share/tidemark" from "/usr/bin" to
 * "/usr/share/tidemark". False if it is too long. */
bool tdm_install_way(const char *from, const char *to, char *out, size_t out_bytes);

#endif
