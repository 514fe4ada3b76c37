/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA nodes: finds the node near a device, and asks the system for pages on it. */
#include "executor/numa.h"

#include <ctype.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_NODES 1024
#define WORD_BITS (8 * (int)sizeof(unsigned long))

static bool read_file(const char *root, const char *path, char *text, int bytes)
{
    char name[1024];
    snprintf(name, sizeof(name), "%s%s", root, path);
    FILE *file = fopen(name, "re");
    if (file == NULL)
        return false;
    bool read = fgets(text, bytes, file) != NULL;
    fclose(file);
    return read;
}

/* The system lists nodes as "0" or "0-1,3". */
static bool has_several(const char *root)
{
    char text[256];
    return read_file(root, "/sys/devices/system/node/online", text, sizeof(text)) &&
           strpbrk(text, "-,") != NULL;
}

int tdm_numa_node_of(const char *root, const char *bus_id)
{
    char path[128], text[32];
    if (!has_several(root))
        return TDM_NO_NODE;
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.32s/numa_node", bus_id);
    for (char *c = path; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    if (!read_file(root, path, text, sizeof(text)))
        return TDM_NO_NODE;
    long node = strtol(text, NULL, 10);
    return node < 0 || node >= MOST_NODES ? TDM_NO_NODE : (int)node;
}

void tdm_numa_prefer(void *start, uint64_t bytes, int node)
{
    unsigned long mask[MOST_NODES / WORD_BITS] = {0};
    if (node < 0 || node >= MOST_NODES)
        return;
    mask[node / WORD_BITS] = 1ul << (node % WORD_BITS);
    (void)syscall(SYS_mbind, start, bytes, MPOL_PREFERRED, mask, MOST_NODES + 1, 0);
}
