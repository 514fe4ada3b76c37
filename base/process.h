/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares the process of both programs: descriptors and signals that affect files. */
#ifndef TDM_BASE_PROCESS_H
#define TDM_BASE_PROCESS_H

#include "base/status.h"

/* Call this first in main().
 *
 * A program may be started with standard input, output or error closed. The next opened file would
 * then get that number, and a message to stderr would be written into it. So closed descriptors 0
 * to 2 are opened on /dev/null, in a way that using them fails as if they were closed: output to a
 * closed standard output is still an error. TDM_IO if that cannot be done.
 *
 * SIGXFSZ is ignored: a write beyond the file size limit fails with an error instead. */
enum tdm_status tdm_process_begin(struct tdm_error *err);

#endif
