/* SPDX-License-Identifier: Apache-2.0 */
/* Where the files of an installation are. configure knows all folders; the way from the program's
 * folder to another one stays the same when the whole tree is copied. */
#include "base/install.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef TDM_PROGRAM_DIRECTORY
#define TDM_PROGRAM_DIRECTORY "/usr/local/bin"
#endif
#ifndef TDM_LIBRARY_DIRECTORY
#define TDM_LIBRARY_DIRECTORY "/usr/local/lib"
#endif

/* The file of this code: of a shared library its path, of a program NULL. */
static const char *library_file(void)
{
    static const char here = 0;
    Dl_info info;
    struct link_map *map = NULL;
    if (dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL ||
        map->l_name == NULL || map->l_name[0] == '\0')
        return NULL;
    return map->l_name;
}

bool tdm_install_folder(char *out, size_t out_bytes)
{
    char path[PATH_MAX];
    const char *library = library_file();
    if (realpath(library != NULL ? library : "/proc/self/exe", path) == NULL)
        return false;
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return (size_t)snprintf(out, out_bytes, "%s", path) < out_bytes;
}

/* Bytes of the folders that two absolute paths begin with, without the slash after them. */
static size_t common_bytes(const char *a, const char *b)
{
    size_t common = 0, i = 0;
    while (a[i] != '\0' && a[i] == b[i]) {
        if (a[i] == '/')
            common = i;
        i++;
    }
    if ((a[i] == '\0' || a[i] == '/') && (b[i] == '\0' || b[i] == '/'))
        common = i;
    return common;
}

bool tdm_install_way(const char *from, const char *to, char *out, size_t out_bytes)
{
    size_t common = common_bytes(from, to), length = 0;
    for (const char *c = from + common; *c != '\0'; c++)
        if (*c == '/' && c[1] != '/' && c[1] != '\0') {
            if (length + 3 >= out_bytes)
                return false;
            memcpy(out + length, "../", 3);
            length += 3;
        }
    const char *rest = to + common;
    while (*rest == '/')
        rest++;
    return (size_t)snprintf(out + length, out_bytes - length, "%s", rest) < out_bytes - length;
}

bool tdm_install_path(const char *configured, char *out, size_t out_bytes)
{
    char folder[PATH_MAX], path[PATH_MAX];
    const char *from = library_file() != NULL ? TDM_LIBRARY_DIRECTORY : TDM_PROGRAM_DIRECTORY;
    const char *way = path;
    if (tdm_install_folder(folder, sizeof(folder)) &&
        tdm_install_way(from, configured, path, sizeof(path))) {
        char *slash;
        while (strncmp(way, "../", 3) == 0 && (slash = strrchr(folder, '/')) != NULL) {
            *slash = '\0'; /* the folder has no links: its parent is what ".." is */
            way += 3;
        }
        if ((size_t)snprintf(out, out_bytes, "%s/%s", folder, way) < out_bytes &&
            access(out, F_OK) == 0)
            return true;
    }
    return (size_t)snprintf(out, out_bytes, "%s", configured) < out_bytes;
}
