/* SPDX-License-Identifier: Apache-2.0 */
/* Memory options: --memory, what a device has or may use; --margin, what must stay free;
 * --host-memory, what the host has. Also the defaults of predict and compare. */
#ifndef TDM_PLANNER_MARGIN_H
#define TDM_PLANNER_MARGIN_H

#include "base/status.h"
#include "machines/machine.h"

#include <stdbool.h>
#include <stdint.h>

#define TDM_MARGIN 0.03 /* the default */

/* "3%" or "0.03". TDM_USAGE. */
enum tdm_status tdm_margin_parse(const char *text, double *margin, struct tdm_error *err);

/* Checks that the usable memory of a device is enough for driver and libraries. "80", which means
 * 80 bytes, is not. `what`: the option's name. TDM_USAGE. */
enum tdm_status tdm_memory_check(const char *what, uint64_t bytes,
                                 const struct tdm_machine *machine, struct tdm_error *err);

#define TDM_MOST_HOST_BYTES (UINT64_C(1) << 60)

/* --host-memory. TDM_USAGE. */
enum tdm_status tdm_host_memory_parse(const char *text, uint64_t *bytes, struct tdm_error *err);

/* The memory options given for a machine. */
struct tdm_said_memory {
    bool has_device, has_host;
    uint64_t device_bytes, host_bytes;
};

/* Gives the machine the requested memory. Without --host-memory it gets the host memory of a server
 * with such cards, because the machine's description assumes one computer. TDM_USAGE: the device
 * has no more than the runtime takes. */
enum tdm_status tdm_machine_give_memory(struct tdm_machine *machine,
                                        const struct tdm_said_memory *said, struct tdm_error *err);

#define TDM_HOST_SOURCE_BYTES 128

/* Says where the machine's host memory is from, as a sentence without a full stop. Returns
 * `out`. */
const char *tdm_host_source(const struct tdm_machine *machine, const struct tdm_said_memory *said,
                            char out[TDM_HOST_SOURCE_BYTES]);

#endif
