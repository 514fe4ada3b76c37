/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses to overwrite the inputs of a command (base/inputs.h). */
#include "base/inputs.h"

#include "base/directory.h"
#include "base/file.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The last part of a path, without slashes after it; malloc'ed. NULL if memory ran out. */
static char *last_name(const char *path)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return strndup(path + start, end - start);
}

/* The path with all links resolved. A path that does not exist yet is resolved through its
 * directory. malloc'ed; NULL if that directory does not exist either. */
static char *place_of(const char *path)
{
    char *place = realpath(path, NULL);
    if (place != NULL)
        return place;
    char *parent = tdm_directory_parent(path);
    char *folder = parent == NULL ? NULL : realpath(parent, NULL);
    char *name = last_name(path);
    size_t bytes = folder == NULL || name == NULL ? 0 : strlen(folder) + strlen(name) + 2;
    if (bytes > 0)
        place = malloc(bytes);
    if (place != NULL)
        snprintf(place, bytes, "%s/%s", folder, name);
    free(name);
    free(folder);
    free(parent);
    return place;
}

bool tdm_path_within(const char *path, const char *other)
{
    char *inner = place_of(path), *outer = place_of(other);
    size_t length = outer == NULL ? 0 : strlen(outer);
    bool within = inner != NULL && outer != NULL && strncmp(inner, outer, length) == 0 &&
                  (inner[length] == '\0' || inner[length] == '/' || outer[length - 1] == '/');
    free(inner);
    free(outer);
    return within || tdm_file_same(path, other);
}

/* Is `path` a file that is read in the folder, by its name or through a link? */
static bool folder_reads(const struct tdm_input *input, const char *path)
{
    char *parent = tdm_directory_parent(path), *name = last_name(path);
    bool found =
        parent != NULL && name != NULL && tdm_file_same(parent, input->path) && input->reads(name);
    free(name);
    free(parent);
    DIR *stream = found ? NULL : opendir(input->path);
    for (struct dirent *entry; stream != NULL && !found && (entry = readdir(stream)) != NULL;) {
        char file[PATH_MAX];
        int length = snprintf(file, sizeof(file), "%s/%s", input->path, entry->d_name);
        found = length > 0 && (size_t)length < sizeof(file) && input->reads(entry->d_name) &&
                tdm_file_same(file, path);
    }
    if (stream != NULL)
        (void)closedir(stream);
    return found;
}

/* Pipes and devices lose nothing when they are written: they can be read and written at once. */
static bool can_be_lost(const char *path)
{
    struct stat info;
    return stat(path, &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode);
}

bool tdm_input_is(const struct tdm_input *input, const char *path)
{
    if (input->path == NULL || strcmp(path, "-") == 0 || !can_be_lost(path))
        return false;
    return tdm_file_same(path, input->path) || tdm_path_within(input->path, path) ||
           (input->reads != NULL && folder_reads(input, path));
}

static enum tdm_status is_empty(const char *option, struct tdm_error *err)
{
    return tdm_fail(err, TDM_USAGE, "%s: the name of what to write is empty", option);
}

enum tdm_status tdm_output_check_name(const char *option, const char *path, struct tdm_error *err)
{
    struct stat info;
    if (path == NULL)
        return TDM_OK;
    if (path[0] == '\0')
        return is_empty(option, err);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "%s %s: is a folder", option, path);
    return tdm_hint(err, "name a file in it");
}

enum tdm_status tdm_inputs_spare(const struct tdm_input *inputs, size_t count, const char *option,
                                 const char *path, struct tdm_error *err)
{
    if (path != NULL && path[0] == '\0')
        return is_empty(option, err);
    for (size_t i = 0; i < count && path != NULL; i++) {
        const struct tdm_input *input = &inputs[i];
        if (!tdm_input_is(input, path))
            continue;
        bool holds = tdm_path_within(input->path, path);
        if (holds && tdm_path_within(path, input->path))
            tdm_fail(err, TDM_USAGE, "%s %s: this command reads that file as %s", option, path,
                     input->option);
        else
            tdm_fail(err, TDM_USAGE, "%s %s: %s %s, which this command reads as %s", option, path,
                     holds ? "holds" : "is a file of", input->path, input->option);
        return tdm_hint(err, "give what is written a name of its own");
    }
    return TDM_OK;
}
