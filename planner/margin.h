/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of memory: --memory that a device has or may use, --margin that must be left over,
 * --host-memory that there is; and what predict and compare assume where nothing is said. */
#ifndef TDM_PLANNER_MARGIN_H
#define TDM_PLANNER_MARGIN_H

#include "base/status.h"
#include "machines/machine.h"

#include <stdbool.h>
#include <stdint.h>

#define TDM_MARGIN 0.03 /* where nothing is said */

/* "3%" or "0.03". TDM_USAGE. */
enum tdm_status tdm_margin_parse(const char *text, double *margin, struct tdm_error *err);

/* Is what may be used of a device enough for driver and libraries? "80", which is 80 bytes, is not.
 * `what`: the option that says it. TDM_USAGE. */
enum tdm_status tdm_memory_check(const char *what, uint64_t bytes,
                                 const struct tdm_machine *machine, struct tdm_error *err);

#define TDM_MOST_HOST_BYTES (UINT64_C(1) << 60)

/* --host-memory. TDM_USAGE. */
enum tdm_status tdm_host_memory_parse(const char *text, uint64_t *bytes, struct tdm_error *err);

/* What was said of a machine's memory. */
struct tdm_said_memory {
    bool has_device, has_host;
    uint64_t device_bytes, host_bytes;
};

/* Gives the machine the memory that was said. Of host memory that was not said it gets what a
 * server of such cards has, as its description is of what to plan on in one computer. TDM_USAGE:
 * the device has no more than the runtime takes. */
enum tdm_status tdm_machine_give_memory(struct tdm_machine *machine,
                                        const struct tdm_said_memory *said, struct tdm_error *err);

#define TDM_HOST_SOURCE_BYTES 128

/* Where its host memory is from, as a sentence without a full stop; returns `out`. */
const char *tdm_host_source(const struct tdm_machine *machine, const struct tdm_said_memory *said,
                            char out[TDM_HOST_SOURCE_BYTES]);

#endif
