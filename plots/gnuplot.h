/* SPDX-License-Identifier: Apache-2.0 */
/* Runs gnuplot in a temporary directory, which is removed afterwards. */
#ifndef TDM_PLOTS_GNUPLOT_H
#define TDM_PLOTS_GNUPLOT_H

#include "base/status.h"

#include <signal.h>

/* A temporary directory below $TMPDIR, or /tmp. */
struct tdm_scratch {
    char path[512];
    sigset_t signals; /* the mask before */
};

/* Creates the directory; TDM_IO. While it is open, SIGINT, SIGTERM and SIGHUP are blocked, so that
 * closing removes it in every case. They are delivered afterwards. */
enum tdm_status tdm_scratch_open(struct tdm_scratch *scratch, struct tdm_error *err);

/* Removes it and the files in it. */
void tdm_scratch_close(struct tdm_scratch *scratch);

/* Runs the gnuplot of PATH on scripts (NULL-terminated), one after the other in one process,
 * without the user's settings. What it prints goes to a file in `folder`. The last script ends with
 * "is_drawn = 1". TDM_IO with its first error line if it fails or does not come to that end, or
 * with its warning if it could not read a file; if gnuplot is not in PATH, TDM_IO with the package
 * that installs it. */
enum tdm_status tdm_gnuplot_run(const char *const *scripts, const char *folder,
                                struct tdm_error *err);

#endif
