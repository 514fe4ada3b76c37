/* SPDX-License-Identifier: Apache-2.0 */
/* A share of the memory, and how much there is. */
#include "planner/margin.h"

#include "base/units.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum tdm_status tdm_margin_parse(const char *text, double *margin, struct tdm_error *err)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    bool percent = strcmp(end, "%") == 0;
    if (percent)
        value /= 100;
    if (end == text || (*end != '\0' && !percent) || errno != 0 || !(value >= 0 && value < 1))
        return tdm_fail(err, TDM_USAGE, "--margin: \"%s\" is not a share of the memory, as 3%% is",
                        text);
    *margin = value;
    return TDM_OK;
}

enum tdm_status tdm_host_memory_parse(const char *text, uint64_t *bytes, struct tdm_error *err)
{
    enum tdm_status status = tdm_parse_bytes(text, "--host-memory", bytes, err);
    if (status == TDM_OK && *bytes > TDM_MOST_HOST_BYTES)
        return tdm_fail(err, TDM_USAGE, "--host-memory: \"%s\" is more than 1 EiB", text);
    return status;
}
