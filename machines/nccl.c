/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of NCCL, and machines whose ranks it joins. */
#include "machines/nccl.h"

#include "base/json.h"
#include "base/size.h"

#include <jansson.h>

#define MOST_BYTES (UINT64_C(1) << 40)

#define STEP_BYTES (UINT64_C(1) << 21) /* NCCL takes device memory in multiples of it */
#define COUNTERS_BYTES 4096u           /* of each end of a connection, before its buffers */
#define CHANNEL_STEPS 3u

const struct tdm_nccl_buffers tdm_nccl_buffers = {
    .simple = 3u << 19, .ll = 120u << 10, .ll128 = 120u << 10};

void tdm_nccl_read(struct tdm_json_reader *reader, struct tdm_machine *machine)
{
    if (tdm_json_has(reader, "nccl_base_bytes"))
        machine->nccl_base_bytes = tdm_json_count(reader, "nccl_base_bytes", 1, MOST_BYTES);
    if (!tdm_json_has(reader, "nccl"))
        return;
    struct tdm_json_reader joined = {.file = reader->file,
                                     .prefix = "nccl.",
                                     .object = tdm_json_object(reader, "nccl"),
                                     .err = reader->err};
    if (joined.object == NULL)
        return;
    machine->joined_channels =
        (uint32_t)tdm_json_count(&joined, "channels", 1, TDM_NCCL_MOST_CHANNELS);
    (void)tdm_json_count(&joined, "bytes", 0, MOST_BYTES);
    if (tdm_json_status(&joined) != TDM_OK)
        reader->status = tdm_json_status(&joined);
}

static uint64_t whole_steps(uint64_t bytes)
{
    return tdm_size_mul(tdm_size_ceil_div(bytes, STEP_BYTES), STEP_BYTES);
}

uint64_t tdm_nccl_channel_bytes(const struct tdm_nccl_buffers *buffers, uint32_t channels,
                                uint64_t peers)
{
    const uint64_t sent = whole_steps(COUNTERS_BYTES);
    const uint64_t received =
        whole_steps(COUNTERS_BYTES + buffers->simple + buffers->ll + buffers->ll128);
    uint64_t all = 1;
    while (all < channels)
        all *= 2;
    return tdm_size_mul(
        all, tdm_size_add(CHANNEL_STEPS * STEP_BYTES, tdm_size_mul(peers, sent + received)));
}

enum tdm_status tdm_machine_join(const struct tdm_joined *joined, struct tdm_machine **machine,
                                 struct tdm_error *err)
{
    const struct tdm_machine *alone = *machine;
    const bool over_network = joined->ranks_per_node < joined->ranks;
    struct tdm_machine *built;
    if (alone->joined_channels != 0 || (joined->channels == 0 && !over_network))
        return TDM_OK;
    if (joined->channels != 0 && alone->nccl_base_bytes == 0) {
        tdm_fail(err, TDM_INPUT, "%s: there is no \"nccl_base_bytes\", which says what NCCL takes",
                 alone->name);
        return tdm_hint(err, "measure it, and add it to the machine's description, or plan for "
                             "ranks that read each other's memory (--transport shared)");
    }
    json_t *description = tdm_json_copy(alone->description);
    if (joined->channels != 0) {
        const uint64_t peers = joined->ranks_per_node - 1 + (over_network ? 1 : 0);
        const uint64_t channels =
            tdm_nccl_channel_bytes(&tdm_nccl_buffers, joined->channels, peers);
        const uint64_t all =
            tdm_size_add(tdm_size_add(alone->nccl_base_bytes, channels), joined->staging_bytes);
        const uint64_t runtime =
            tdm_size_add(alone->topology.places[TDM_DEVICE].runtime_bytes, all);
        tdm_json_set(&description, "runtime_device_bytes", json_integer((json_int_t)runtime));
        tdm_json_set(&description, "nccl",
                     json_pack("{s:I, s:I}", "channels", (json_int_t)joined->channels, "bytes",
                               (json_int_t)all));
    }
    if (over_network && alone->network_rate > 0) {
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
