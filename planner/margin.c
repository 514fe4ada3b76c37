/* SPDX-License-Identifier: Apache-2.0 */
/* Memory options: --margin, --memory, --host-memory. */
#include "planner/margin.h"

#include "base/units.h"

#include <errno.h>
#include <stdio.h>
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
        return tdm_fail(err, TDM_USAGE,
                        "--margin: \"%s\" is not a fraction of the memory, such as 3%%", text);
    *margin = value;
    return TDM_OK;
}

/* With fewer bytes, the user left out the unit. */
#define LEAST_BYTES 65536

enum tdm_status tdm_memory_check(const char *what, uint64_t bytes,
                                 const struct tdm_machine *machine, struct tdm_error *err)
{
    char asked[TDM_FORMAT_SIZE], runtime[TDM_FORMAT_SIZE];
    bool no_unit = bytes < LEAST_BYTES && strcmp(what, "--margin") != 0;
    if (bytes > machine->topology.places[TDM_DEVICE].runtime_bytes && !no_unit)
        return TDM_OK;
    if (bytes > machine->topology.places[TDM_DEVICE].runtime_bytes)
        tdm_fail(err, TDM_USAGE, "%s: %s is too little for any step", what,
                 tdm_format_bytes(bytes, asked));
    else
        tdm_fail(err, TDM_USAGE, "%s: %s is not more than the %s that driver and libraries take",
                 what, tdm_format_bytes(bytes, asked),
                 tdm_format_bytes(machine->topology.places[TDM_DEVICE].runtime_bytes, runtime));
    return strcmp(what, "--margin") == 0
               ? tdm_hint(err, "choose a smaller margin; 3%% is usual")
               : tdm_hint(err, "a number without a unit is bytes; for example --memory 24G");
}

#define LEAST_HOST_BYTES (UINT64_C(1) << 20)

enum tdm_status tdm_host_memory_parse(const char *text, uint64_t *bytes, struct tdm_error *err)
{
    enum tdm_status status = tdm_parse_bytes(text, "--host-memory", bytes, err);
    if (status == TDM_OK && *bytes > TDM_MOST_HOST_BYTES)
        return tdm_fail(err, TDM_USAGE, "--host-memory: \"%s\" is more than 1 EiB", text);
    if (status == TDM_OK && *bytes > 0 && *bytes < LEAST_HOST_BYTES) {
        char asked[TDM_FORMAT_SIZE];
        tdm_fail(err, TDM_USAGE, "--host-memory: %s is too little for any step",
                 tdm_format_bytes(*bytes, asked));
        return tdm_hint(err,
                        "a number without a unit is bytes; for example --host-memory 64G, or 0 "
                        "for what driver and libraries take");
    }
    return status;
}

enum tdm_status tdm_machine_give_memory(struct tdm_machine *machine,
                                        const struct tdm_said_memory *said, struct tdm_error *err)
{
    struct tdm_place_row *places = machine->topology.places;
    enum tdm_place far = machine->topology.far;
    if (said->has_device)
        places[TDM_DEVICE].capacity_bytes = said->device_bytes;
    if (said->has_host)
        places[far].capacity_bytes = said->host_bytes;
    else if (machine->server_host_bytes > 0)
        places[far].capacity_bytes = machine->server_host_bytes;
    return tdm_memory_check("--memory", places[TDM_DEVICE].capacity_bytes, machine, err);
}

const char *tdm_host_source(const struct tdm_machine *machine, const struct tdm_said_memory *said,
                            char out[TDM_HOST_SOURCE_BYTES])
{
    if (said->has_host)
        snprintf(out, TDM_HOST_SOURCE_BYTES, "as given");
    else if (machine->server_host_bytes > 0)
        snprintf(out, TDM_HOST_SOURCE_BYTES, "assumed: %s has it for all its GPUs (--host-memory)",
                 machine->server_name);
    else
        snprintf(out, TDM_HOST_SOURCE_BYTES, "from the machine's description");
    return out;
}
