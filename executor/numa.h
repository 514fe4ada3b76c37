/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes of memory: where a computer has several, copies from the one that a device hangs on are the
 * fast ones. A wish, by the system call that libnuma wraps: where it cannot be met, pages come from
 * elsewhere, and nothing fails.
 */
#ifndef TDM_EXECUTOR_NUMA_H
#define TDM_EXECUTOR_NUMA_H

#include <stdint.h>

#define TDM_NO_NODE (-1)

/* The node of a PCI device by its bus id ("0000:4B:00.0", in any case), read below `root` ("" but
 * in tests): sys/bus/pci/devices, sys/devices/system/node. TDM_NO_NODE if the system does not say,
 * or if there is one node only. */
int tdm_numa_node_of(const char *root, const char *bus_id);

/* Pages of the range that are touched from here on come from `node` while it has any. `start` is
 * aligned to pages; nothing happens for TDM_NO_NODE. */
void tdm_numa_prefer(void *start, uint64_t bytes, int node);

#endif
