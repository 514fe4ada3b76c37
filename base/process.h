/* SPDX-License-Identifier: Apache-2.0 */
/* What both programs do before anything else: descriptors and signals that a file may depend on. */
#ifndef TDM_BASE_PROCESS_H
#define TDM_BASE_PROCESS_H

#include "base/status.h"

/* To be called first in main().
 *
 * A program may be started with standard input, output or error closed. The next file that is
 * opened would then get that number, and a message to stderr would be written into it. Descriptors
 * 0 to 2 that are closed are therefore opened on /dev/null, so that using them fails as it does
 * when they are closed: what a command writes to a closed standard output is still an error. TDM_IO
 * if that cannot be done.
 *
 * SIGXFSZ is ignored: a file that would exceed the limit on its size is an error of the write. */
enum tdm_status tdm_process_begin(struct tdm_error *err);

#endif
