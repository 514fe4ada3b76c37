/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the parser of plan --sweep. */
#include "commands/contexts.h"

#include "planner/sweep.h"

#include <stdio.h>
#include <string.h>

enum tdm_status tdm_contexts_parse(const char *text, uint64_t *contexts, size_t most, size_t *count,
                                   struct tdm_error *err)
{
    char axis[128];
    struct tdm_sweep sweep;
    if ((size_t)snprintf(axis, sizeof(axis), "context=%s", text) >= sizeof(axis))
        return tdm_fail(err, TDM_USAGE, "--context: \"%.32s...\" is too long", text);
    struct tdm_error why = {0};
    if (tdm_sweep_parse(axis, &sweep, &why) != TDM_OK) {
        const char *reason = strchr(why.message, ':'); /* skip the sweep's own prefix */
        tdm_fail(err, TDM_USAGE, "--context: \"%s\" is not a range of contexts%s", text,
                 reason == NULL ? "" : reason);
        return tdm_hint(err, "for example --context 8K..128K, which doubles, or 8K,12K,16K");
    }
    if (sweep.count > most)
        return tdm_fail(err, TDM_USAGE, "--context: more than %zu contexts", most);
    memcpy(contexts, sweep.values, sweep.count * sizeof(contexts[0]));
    *count = sweep.count;
    return TDM_OK;
}
