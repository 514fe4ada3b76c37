/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a picture: writes its files, runs gnuplot, and moves the picture to its place. */
#include "plots/picture.h"

#include "base/file.h"
#include "plots/gnuplot.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Where a picture goes. */

const char *tdm_picture_format(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot == NULL || dot == path || dot[-1] == '/' || strchr(dot, '/') != NULL)
        return NULL;
    if (strcmp(dot, ".png") == 0 || strcmp(dot, ".svg") == 0 || strcmp(dot, ".pdf") == 0)
        return dot + 1;
    return NULL;
}

enum tdm_status tdm_picture_check(const struct tdm_picture *picture, struct tdm_error *err)
{
    if (tdm_picture_format(picture->path) == NULL) {
        tdm_fail(err, TDM_USAGE, "%s: is not the name of a picture that can be drawn",
                 picture->path);
        return tdm_hint(err, "end the name in .png, .svg or .pdf");
    }
    return tdm_file_check(picture->path, picture->force, err);
}

/* Files for gnuplot. */

/* In gnuplot's single quotes only the quote itself is special. File names may have any bytes. */
void tdm_picture_string(FILE *file, const char *name, const char *text)
{
    json_t *utf8 = json_string(text);
    fprintf(file, "%s = '", name);
    for (const char *byte = text; *byte != '\0'; byte++) {
        unsigned char value = (unsigned char)*byte;
        if (value < 0x20 || value == 0x7f || (value >= 0x80 && utf8 == NULL))
            fputc('?', file);
        else if (value == '\'')
            fputs("''", file);
        else
            fputc(value, file);
    }
    fputs("'\n", file);
    json_decref(utf8);
}

void tdm_picture_text(FILE *file, const char *name, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    tdm_picture_string(file, name, text);
}

FILE *tdm_picture_create(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return fopen(path, "wxe");
}

enum tdm_status tdm_picture_finish(const char *folder, const char *name, FILE *file,
                                   struct tdm_error *err)
{
    bool failed = file == NULL || ferror(file);
    int reason = errno;
    if (file != NULL && fclose(file) != 0 && !failed) {
        failed = true;
        reason = errno;
    }
    if (!failed)
        return TDM_OK;
    tdm_fail(err, TDM_IO, "%s/%s: cannot be written: %s", folder, name, strerror(reason));
    return tdm_hint(err, "free space there, or set TMPDIR to another directory");
}

FILE *tdm_picture_settings(const char *folder, const struct tdm_picture *picture)
{
    char output[4096];
    FILE *file = tdm_picture_create(folder, "settings.gp");
    if (file == NULL)
        return NULL;
    snprintf(output, sizeof(output), "%s/picture", folder);
    tdm_picture_string(file, "format", tdm_picture_format(picture->path));
    tdm_picture_string(file, "output", output);
    tdm_picture_string(file, "folder", folder);
    fprintf(file, "width = %" PRIu32 "\nheight = %" PRIu32 "\n", picture->width, picture->height);
    return file;
}

/* gnuplot does not check its writes: is the end of the picture there? */
static enum tdm_status check_whole(const struct tdm_picture *picture, const char *data,
                                   uint64_t bytes, struct tdm_error *err)
{
    static const char *const ends[][2] = {
        {"png", "IEND\xae\x42\x60\x82"}, {"svg", "</svg>"}, {"pdf", "%%EOF"}};
    const char *format = tdm_picture_format(picture->path);
    while (bytes > 0 && data[bytes - 1] == '\n')
        bytes--;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        size_t length = strlen(ends[i][1]);
        if (strcmp(format, ends[i][0]) == 0 && bytes >= length &&
            memcmp(data + bytes - length, ends[i][1], length) == 0)
            return TDM_OK;
    }
    tdm_fail(err, TDM_IO, "%s: cannot be written: gnuplot wrote only a part of it", picture->path);
    return tdm_hint(err, "free space for temporary files, or set TMPDIR to another directory");
}

/* Runs gnuplot on the files, and moves the picture to its place. */
static enum tdm_status draw_in(const struct tdm_picture *picture, const char *folder,
                               const char *name, struct tdm_error *err)
{
    char settings[4096];
    char colours[4096];
    char page[4096];
    char script[4096];
    char output[4096];
    char *data = NULL;
    uint64_t bytes;
    snprintf(settings, sizeof(settings), "%s/settings.gp", folder);
    snprintf(output, sizeof(output), "%s/picture", folder);
    enum tdm_status status =
        tdm_data_path("plots", "colours", ".gp", colours, sizeof(colours), err);
    if (status == TDM_OK)
        status = tdm_data_path("plots", "page", ".gp", page, sizeof(page), err);
    if (status == TDM_OK)
        status = tdm_data_path("plots", name, ".gp", script, sizeof(script), err);
    if (status == TDM_OK) {
        const char *const files[] = {settings, colours, page, script, NULL};
        status = tdm_gnuplot_run(files, folder, err);
    }
    if (status == TDM_OK)
        status = tdm_file_read(output, UINT64_C(1) << 30, &data, &bytes, err);
    if (status == TDM_OK)
        status = check_whole(picture, data, bytes, err);
    if (status == TDM_OK)
        status = tdm_file_write(picture->path, data, bytes, picture->force, err);
    free(data);
    return status;
}

enum tdm_status tdm_picture_draw(const struct tdm_picture *picture, const char *script,
                                 tdm_picture_writer write, void *self, struct tdm_error *err)
{
    struct tdm_scratch scratch = {.path = ""};
    enum tdm_status status = tdm_picture_check(picture, err);
    if (status == TDM_OK)
        status = tdm_scratch_open(&scratch, err);
    if (status != TDM_OK)
        return status;
    status = write(self, scratch.path, err);
    if (status == TDM_OK)
        status = draw_in(picture, scratch.path, script, err);
    tdm_scratch_close(&scratch);
    return status;
}
