/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of NCCL, and machines whose ranks it joins. */
#include "machines/nccl.h"

#include "base/json.h"
#include "base/size.h"

#include <jansson.h>

#define MOST_CHANNELS 1024u
#define MOST_BYTES (UINT64_C(1) << 40)

void tdm_nccl_read(struct tdm_json_reader *reader, struct tdm_machine *machine)
{
    if (tdm_json_has(reader, "nccl_bytes")) {
        const json_t *rows = tdm_json_array(reader, "nccl_bytes");
        const size_t count = json_array_size(rows);
        bool good = count > 0 && count <= TDM_NCCL_ROWS;
        for (size_t i = 0; i < count && good; i++) {
            const json_t *row = json_array_get(rows, i);
            const json_int_t channels = json_integer_value(json_array_get(row, 0));
            const json_int_t bytes = json_integer_value(json_array_get(row, 1));
            good = json_array_size(row) == 2 && channels >= 1 && channels <= MOST_CHANNELS &&
                   bytes >= 0 && bytes <= (json_int_t)MOST_BYTES &&
                   (i == 0 || channels > machine->nccl_channels[i - 1]);
            machine->nccl_channels[i] = (uint32_t)channels;
            machine->nccl_bytes[i] = (uint64_t)bytes;
        }
        machine->nccl_rows = good ? (uint32_t)count : 0;
        if (!good && tdm_json_status(reader) == TDM_OK)
            tdm_json_fail(reader, "nccl_bytes",
                          "must be 1 to %u pairs of channels and bytes, with rising channels",
                          TDM_NCCL_ROWS);
    }
    if (!tdm_json_has(reader, "nccl"))
        return;
    struct tdm_json_reader joined = {.file = reader->file,
                                     .prefix = "nccl.",
                                     .object = tdm_json_object(reader, "nccl"),
                                     .err = reader->err};
    if (joined.object == NULL)
        return;
    machine->joined_channels = (uint32_t)tdm_json_count(&joined, "channels", 1, MOST_CHANNELS);
    (void)tdm_json_count(&joined, "bytes", 0, MOST_BYTES);
    if (tdm_json_status(&joined) != TDM_OK)
        reader->status = tdm_json_status(&joined);
}

uint64_t tdm_nccl_bytes(const struct tdm_machine *machine, uint32_t channels)
{
    for (uint32_t i = 0; i < machine->nccl_rows; i++)
        if (machine->nccl_channels[i] >= channels)
            return machine->nccl_bytes[i];
    return 0;
}

enum tdm_status tdm_machine_join(const struct tdm_joined *joined, struct tdm_machine **machine,
                                 struct tdm_error *err)
{
    const struct tdm_machine *alone = *machine;
    const uint64_t bytes = tdm_nccl_bytes(alone, joined->channels);
    struct tdm_machine *built;
    if (alone->joined_channels != 0 || (joined->channels == 0 && !joined->over_network))
        return TDM_OK;
    if (joined->channels != 0 && bytes == 0) {
        tdm_fail(err, TDM_INPUT, "%s: \"nccl_bytes\" does not say what NCCL takes with %u channels",
                 alone->name, joined->channels);
        return tdm_hint(err, "measure it, and add it to the machine's description, or plan for "
                             "ranks that read each other's memory (--transport shared)");
    }
    json_t *description = json_deep_copy(alone->description);
    if (joined->channels != 0) {
        const uint64_t all = tdm_size_add(bytes, joined->staging_bytes);
        const uint64_t runtime =
            tdm_size_add(alone->topology.places[TDM_DEVICE].runtime_bytes, all);
        tdm_json_set(&description, "runtime_device_bytes", json_integer((json_int_t)runtime));
        tdm_json_set(&description, "nccl",
                     json_pack("{s:I, s:I}", "channels", (json_int_t)joined->channels, "bytes",
                               (json_int_t)all));
    }
    if (joined->over_network && alone->network_rate > 0) {
        const double node = alone->topology.links[TDM_LINK_PEER].bytes_per_second;
        tdm_json_set(&description, "node_bytes_per_second", json_real(node));
        tdm_json_set(&description, "peer_bytes_per_second", json_real(alone->network_rate));
    }
    if (description == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a machine's description");
    enum tdm_status status = tdm_machine_from_json(alone->name, description, &built, err);
    json_decref(description);
    if (status != TDM_OK)
        return status;
    built->shipped = alone->shipped;
    tdm_machine_free(*machine);
    *machine = built;
    return TDM_OK;
}
