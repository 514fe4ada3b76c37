/* SPDX-License-Identifier: Apache-2.0 */
/* Finds how much memory this computer can still give. */
#include "executor/host_memory.h"

#include "base/size.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A limit this large is the kernel's way to say that there is none. */
#define NO_LIMIT (UINT64_C(1) << 60)

/* The most that is left to other processes. */
#define MOST_RESERVE_BYTES (UINT64_C(256) << 20)

#define MEMORY_BLOCKS "/sys/devices/system/memory"

/* Longest path of a control group that is followed. */
#define PATH_BYTES 4096

/* How a version of control groups names its files, below sys/fs/cgroup. */
struct version {
    const char *controllers; /* in proc/self/cgroup */
    const char *folder;
    const char *limit, *used, *caches[2];
};

static const struct version versions[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory",
     "/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

static FILE *open_below(const char *root, const char *folder, const char *group, const char *name)
{
    char path[PATH_BYTES + 256];
    snprintf(path, sizeof(path), "%s%s%s/%s", root, folder, group, name);
    return fopen(path, "re");
}

/* Reads a file that holds one number, or "max". */
static bool read_number(const char *root, const char *folder, const char *group, const char *name,
                        uint64_t *number)
{
    char text[64];
    FILE *file = open_below(root, folder, group, name);
    if (file == NULL)
        return false;
    bool read = fgets(text, sizeof(text), file) != NULL;
    fclose(file);
    if (!read)
        return false;
    *number = strncmp(text, "max", 3) == 0 ? TDM_SIZE_MAX : strtoull(text, NULL, 10);
    return true;
}

/* Reads a line "NAME[:] NUMBER [kB]" of a file and closes it; 0 if there is no such line. */
static uint64_t read_line(FILE *file, const char *name)
{
    char line[256];
    size_t length = strlen(name);
    uint64_t number = 0;
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, length) == 0 && (line[length] == ':' || line[length] == ' ')) {
            char *end;
            number = strtoull(line + length + 1, &end, 10);
            if (strncmp(end, " kB", 3) == 0)
                number = tdm_size_mul(number, 1024);
        }
    if (file != NULL)
        fclose(file);
    return number;
}

/* How much more one group may use. Its file cache can be given back, so it does not count. */
static uint64_t group_free_bytes(const char *root, const struct version *version, const char *group)
{
    uint64_t limit, used;
    if (!read_number(root, version->folder, group, version->limit, &limit) ||
        !read_number(root, version->folder, group, version->used, &used) || limit >= NO_LIMIT)
        return TDM_SIZE_MAX;
    for (int i = 0; i < 2; i++) {
        uint64_t cache =
            read_line(open_below(root, version->folder, group, "memory.stat"), version->caches[i]);
        used = used > cache ? used - cache : 0;
    }
    return limit > used ? limit - used : 0;
}

/* How much more our group and all groups above it may use. In a container the path may be the
 * host's, of which only the top is visible. */
static uint64_t version_free_bytes(const char *root, const struct version *version, char *group)
{
    uint64_t least = TDM_SIZE_MAX;
    for (;;) {
        uint64_t here = group_free_bytes(root, version, group);
        least = here < least ? here : least;
        char *end = strrchr(group, '/');
        if (end == NULL)
            return least;
        *end = '\0';
    }
}

static uint64_t groups_free_bytes(const char *root)
{
    char line[PATH_BYTES];
    uint64_t least = TDM_SIZE_MAX;
    FILE *file = open_below(root, "/proc", "/self", "cgroup");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL)
            continue;
        controllers++;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
            if (strcmp(controllers, versions[i].controllers) == 0) {
                uint64_t here = version_free_bytes(root, &versions[i], group);
                least = here < least ? here : least;
            }
    }
    if (file != NULL)
        fclose(file);
    return least;
}

/* Is there a device that adds memory at run time? */
static bool has_growing_memory(const char *root)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/sys/bus/virtio/drivers/virtio_mem", root);
    DIR *folder = opendir(path);
    bool found = false;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        found = found || strncmp(entry->d_name, "virtio", 6) == 0;
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* Is a block of memory in use? */
static bool is_online(const char *root, const char *block)
{
    char state[16] = "";
    FILE *file = open_below(root, MEMORY_BLOCKS, block, "state");
    if (file == NULL)
        return false;
    bool online = fgets(state, sizeof(state), file) != NULL && strncmp(state, "online", 6) == 0;
    fclose(file);
    return online;
}

/* Bytes of all blocks of memory that are in use; 0 if unknown. */
static uint64_t present_bytes(const char *root)
{
    char text[PATH_BYTES] = "", block[300];
    uint64_t blocks = 0;
    FILE *file = open_below(root, MEMORY_BLOCKS, "", "block_size_bytes");
    if (file == NULL)
        return 0;
    uint64_t block_bytes = fgets(text, sizeof(text), file) != NULL ? strtoull(text, NULL, 16) : 0;
    fclose(file);
    snprintf(text, sizeof(text), "%s" MEMORY_BLOCKS, root);
    DIR *folder = opendir(text);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        snprintf(block, sizeof(block), "/%s", entry->d_name);
        if (strncmp(entry->d_name, "memory", 6) == 0 && is_online(root, block))
            blocks++;
    }
    if (folder != NULL)
        closedir(folder);
    return tdm_size_mul(blocks, block_bytes);
}

/* Memory that is present but not managed yet. The kernel itself keeps a few percent, so that a
 * small difference does not count. */
static uint64_t bytes_to_come(const char *root)
{
    uint64_t managed = read_line(open_below(root, "/proc", "", "meminfo"), "MemTotal");
    uint64_t present = present_bytes(root);
    if (has_growing_memory(root))
        return TDM_SIZE_MAX;
    return managed > 0 && present > managed + managed / 4 ? present - managed : 0;
}

void tdm_host_memory_look(const char *root, struct tdm_host_memory *memory)
{
    uint64_t available = read_line(open_below(root, "/proc", "", "meminfo"), "MemAvailable");
    memory->available_bytes = available == 0 ? TDM_SIZE_MAX : available;
    memory->allowed_bytes = groups_free_bytes(root);
}

void tdm_host_memory_read(const char *root, struct tdm_host_memory *memory)
{
    tdm_host_memory_look(root, memory);
    memory->to_come_bytes = bytes_to_come(root);
}

/* How much of `available` may be used: what is allowed, less a reserve for other processes. */
static uint64_t usable_of(const struct tdm_host_memory *memory, uint64_t available)
{
    uint64_t usable = memory->allowed_bytes < available ? memory->allowed_bytes : available;
    uint64_t reserve = usable / 32 < MOST_RESERVE_BYTES ? usable / 32 : MOST_RESERVE_BYTES;
    return usable == TDM_SIZE_MAX ? usable : usable - reserve;
}

uint64_t tdm_host_memory_usable_bytes(const struct tdm_host_memory *memory)
{
    return usable_of(memory, tdm_size_add(memory->available_bytes, memory->to_come_bytes));
}

bool tdm_host_memory_has(const struct tdm_host_memory *memory, uint64_t bytes)
{
    return bytes <= usable_of(memory, memory->available_bytes);
}
