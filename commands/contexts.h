/* SPDX-License-Identifier: Apache-2.0 */
/* Parses --context for commands that take several contexts, with the syntax of plan --sweep. */
#ifndef TDM_COMMANDS_CONTEXTS_H
#define TDM_COMMANDS_CONTEXTS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* "8K..128K" doubles, "8K..128K:9" gives nine values, "8K,12K" is a list, "8K" is one value. The
 * result is ascending, with at most `most` values. Fails with TDM_USAGE. */
enum tdm_status tdm_contexts_parse(const char *text, uint64_t *contexts, size_t most, size_t *count,
                                   struct tdm_error *err);

#endif
