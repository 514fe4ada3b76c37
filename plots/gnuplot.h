/* SPDX-License-Identifier: Apache-2.0 */
/* Running gnuplot, in a directory of its own that is gone afterwards. */
#ifndef TDM_PLOTS_GNUPLOT_H
#define TDM_PLOTS_GNUPLOT_H

#include "base/status.h"

#include <signal.h>

/* A temporary directory below $TMPDIR, or /tmp. */
struct tdm_scratch {
    char path[512];
    sigset_t signals; /* mask from before */
};

/* While it is open, SIGINT, SIGTERM and SIGHUP are blocked, so that closing it removes it in every
 * case; then they come. TDM_IO. */
enum tdm_status tdm_scratch_open(struct tdm_scratch *scratch, struct tdm_error *err);

/* Removes it and the files in it. */
void tdm_scratch_close(struct tdm_scratch *scratch);

/* Runs the gnuplot of PATH on scripts (NULL-terminated), one after the other in one process,
 * without the user's settings; `folder` takes what it prints. TDM_IO with its first error line if
 * it fails, and if there is none, with the package that brings it. */
enum tdm_status tdm_gnuplot_run(const char *const *scripts, const char *folder,
                                struct tdm_error *err);

#endif
