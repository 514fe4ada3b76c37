/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the three amounts of memory of a run: device, pinned and pageable. */
#include "executor/amounts.h"

#include "base/size.h"
#include "executor/record.h"
#include "executor/walk.h"

struct tdm_amounts tdm_amounts_of(const struct tdm_program *program,
                                  const struct tdm_backend *backend, bool traced)
{
    const struct tdm_topology *topology = &program->schedule->machine->topology;
    uint64_t device_bytes = 0, host_bytes = 0;
    for (uint32_t place = 0; place < topology->place_count; place++) {
        uint64_t *bytes = topology->places[place].host_memory ? &host_bytes : &device_bytes;
        *bytes = tdm_size_add(*bytes, program->arena_bytes[place]);
    }
    host_bytes = tdm_size_mul(host_bytes, program->ranks); /* the ranks share the host */
    uint64_t tokens = backend->executes ? tdm_schedule_tokens(program->schedule) : 0;
    struct tdm_amounts amounts = {
        .device_bytes = device_bytes,
        .pageable_bytes = tdm_size_mul(tokens, 2 * sizeof(int32_t))}; /* inputs and targets */
    uint64_t of_op = sizeof(struct tdm_timing) + tdm_walk_op_bytes();
    if (traced)
        of_op += tdm_recorder_op_bytes() + tdm_forecast_traced_bytes();
    amounts.pageable_bytes =
        tdm_size_add(amounts.pageable_bytes,
                     tdm_size_mul(tdm_size_mul(program->op_count, program->ranks), of_op));
    if (backend->own_device_memory)
        amounts.pinned_bytes = host_bytes;
    else
        amounts.pageable_bytes = tdm_size_add(amounts.pageable_bytes, host_bytes);
    return amounts;
}
