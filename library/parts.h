/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the shared library. Only for library/. */
#ifndef TDM_LIBRARY_PARTS_H
#define TDM_LIBRARY_PARTS_H

#include "base/status.h"
#include "library/tidemark.h"

/* What is not made for several threads at once (getopt, Jansson's error text, the planner's solver)
 * runs between these. */
void tdm_library_lock(void);
void tdm_library_unlock(void);

/* Copies an error to the caller's, if there is one, and returns its status. */
enum tidemark_status tdm_library_tell(enum tdm_status status, const struct tdm_error *err,
                                      struct tidemark_error *error);

#endif
