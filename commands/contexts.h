/* SPDX-License-Identifier: Apache-2.0 */
/* --context of commands that look at many: in the words of plan --sweep. */
#ifndef TDM_COMMANDS_CONTEXTS_H
#define TDM_COMMANDS_CONTEXTS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* "8K..128K" doubles, "8K..128K:9" has nine, "8K,12K" lists, "8K" is one; rising, at most `most`.
 * TDM_USAGE. */
enum tdm_status tdm_contexts_parse(const char *text, uint64_t *contexts, size_t most, size_t *count,
                                   struct tdm_error *err);

#endif
