/* SPDX-License-Identifier: Apache-2.0 */
/* Finds files of the data directory: shipped configs, machine descriptions and plot scripts. It has
 * the layout of the source tree, so that the source tree itself can serve as an installation. */
#include "base/file.h"

#include "base/install.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifndef TDM_DATA_DIRECTORY
#define TDM_DATA_DIRECTORY "/usr/local/share/tidemark"
#endif

static bool is_directory(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Is the folder of the program the root of a build in the source tree? */
static bool in_source_tree(char path[PATH_MAX])
{
    char probe[PATH_MAX + 16];
    if (!tdm_install_folder(path, PATH_MAX))
        return false;
    snprintf(probe, sizeof(probe), "%s/models/configs", path);
    return is_directory(probe);
}

const char *tdm_data_directory(void)
{
    static _Thread_local char path[PATH_MAX];
    const char *chosen = getenv("TIDEMARK_DATA");
    if (chosen != NULL && chosen[0] != '\0')
        return chosen;
    if (in_source_tree(path) || tdm_install_path(TDM_DATA_DIRECTORY, path, sizeof(path)))
        return path;
    return TDM_DATA_DIRECTORY;
}

enum tdm_status tdm_data_path(const char *folder, const char *name, const char *suffix, char *out,
                              size_t out_bytes, struct tdm_error *err)
{
    const char *directory = tdm_data_directory();
    size_t length = strlen(directory) + strlen(folder) + strlen(name) + strlen(suffix) + 2;
    if (length >= out_bytes)
        return tdm_fail(err, TDM_INPUT, "\"%.64s\" in %.256s: the name of the file is too long",
                        name, directory);
    snprintf(out, out_bytes, "%s/%s/%s%s", directory, folder, name, suffix);
    return TDM_OK;
}

/* Length of a file name without `suffix`; 0 if it does not end in it. */
static size_t stem_length(const char *file, const char *suffix)
{
    size_t length = strlen(file);
    size_t tail = strlen(suffix);
    if (length <= tail || strcmp(file + length - tail, suffix) != 0 || file[0] == '.')
        return 0;
    return length - tail;
}

static void free_entries(struct dirent **entries, int count)
{
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

/* Compares by bytes, in any locale. */
static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum tdm_status tdm_data_names(const char *folder, const char *suffix, char ***names,
                               struct tdm_error *err)
{
    char path[4096];
    enum tdm_status status = tdm_data_path(folder, "", "", path, sizeof(path), err);
    if (status != TDM_OK)
        return status;

    struct dirent **entries;
    int entry_count = scandir(path, &entries, NULL, NULL);
    if (entry_count < 0 && errno == ENOMEM)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to list it", path);
    if (entry_count < 0) {
        tdm_fail(err, TDM_IO, "%s: cannot be read: %s", path, strerror(errno));
        tdm_hint(err, "run make install, or set TIDEMARK_DATA to the source directory");
        return TDM_IO;
    }

    size_t count = 0;
    size_t text_bytes = 0;
    for (int i = 0; i < entry_count; i++) {
        size_t length = stem_length(entries[i]->d_name, suffix);
        if (length != 0) {
            count++;
            text_bytes += length + 1;
        }
    }
    char **list = malloc((count + 1) * sizeof(*list) + text_bytes);
    if (list == NULL) {
        free_entries(entries, entry_count);
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to list it", path);
    }
    char *text = (char *)(list + count + 1);
    size_t next = 0;
    for (int i = 0; i < entry_count; i++) {
        size_t length = stem_length(entries[i]->d_name, suffix);
        if (length != 0) {
            memcpy(text, entries[i]->d_name, length);
            text[length] = '\0';
            list[next++] = text;
            text += length + 1;
        }
    }
    list[next] = NULL;
    /* without suffixes: "h200" comes before "h200-x" */
    qsort(list, count, sizeof(*list), by_bytes);
    free_entries(entries, entry_count);
    *names = list;
    return TDM_OK;
}

const char *tdm_names_join(char *const *names, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; names[i] != NULL; i++) {
        size_t length = strlen(names[i]);
        if (used + length + sizeof(", , ...") > out_bytes) {
            snprintf(out + used, out_bytes - used, "%s...", i == 0 ? "" : ", ");
            break;
        }
        used +=
            (size_t)snprintf(out + used, out_bytes - used, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    return out;
}
