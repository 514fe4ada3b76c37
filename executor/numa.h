/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory nodes. On a computer with several, copies are fastest from the node that the device is
 * attached to. The preferred node is a hint, set by the system call that libnuma wraps. If it
 * cannot be met, pages come from other nodes, and nothing fails.
 */
#ifndef TDM_EXECUTOR_NUMA_H
#define TDM_EXECUTOR_NUMA_H

#include <stdint.h>

#define TDM_NO_NODE (-1)

/* The node of a PCI device by its bus id ("0000:4B:00.0", case ignored), read below `root` (""
 * except in tests): sys/bus/pci/devices, sys/devices/system/node. TDM_NO_NODE if the system does
 * not say, or has only one node. */
int tdm_numa_node_of(const char *root, const char *bus_id);

/* Makes pages of the range that are touched later come from `node` while it has free ones. `start`
 * is aligned to pages. Does nothing for TDM_NO_NODE. */
void tdm_numa_prefer(void *start, uint64_t bytes, int node);

#endif
