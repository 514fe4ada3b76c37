/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws a picture: checks where it goes, writes the files that a gnuplot script reads to a
 * temporary directory, runs gnuplot, and moves the picture to its place when it is complete.
 */
#ifndef TDM_PLOTS_PICTURE_H
#define TDM_PLOTS_PICTURE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Bounds of a picture's width and height in pixels. */
#define TDM_PICTURE_LEAST 400
#define TDM_PICTURE_MOST 10000

struct tdm_picture {
    const char *path;       /* ends in ".png", ".svg" or ".pdf" */
    bool force;             /* overwrites */
    uint32_t width, height; /* pixels */
};

/* The format that a name asks for by its end, as "png"; NULL: none that can be drawn. */
const char *tdm_picture_format(const char *path);

/* Checks that a picture could be drawn there. TDM_USAGE for another suffix; else the result of
 * tdm_file_check(). */
enum tdm_status tdm_picture_check(const struct tdm_picture *picture, struct tdm_error *err);

/* Writes the files that a script reads into `folder`. */
typedef enum tdm_status (*tdm_picture_writer)(void *self, const char *folder,
                                              struct tdm_error *err);

/* Checks the picture, calls `write`, and draws with plots/SCRIPT.gp, which reads settings.gp as
 * tdm_picture_settings() began it. TDM_IO if there is no gnuplot, if it fails (with its first error
 * line), or if a file cannot be written. SIGINT, SIGTERM and SIGHUP are delayed until the temporary
 * directory is removed. */
enum tdm_status tdm_picture_draw(const struct tdm_picture *picture, const char *script,
                                 tdm_picture_writer write, void *self, struct tdm_error *err);

/* Creates a file in the folder, and finishes it. Both calls are needed, even if creating failed
 * (NULL): tdm_picture_finish() then returns TDM_IO. */
FILE *tdm_picture_create(const char *folder, const char *name);
enum tdm_status tdm_picture_finish(const char *folder, const char *name, FILE *file,
                                   struct tdm_error *err);

/* Creates settings.gp and writes format, output, folder, width and height to it; NULL as above. */
FILE *tdm_picture_settings(const char *folder, const struct tdm_picture *picture);

/* Writes `name = 'text'`. Bytes that gnuplot cannot read become question marks. */
void tdm_picture_string(FILE *file, const char *name, const char *text);
void tdm_picture_text(FILE *file, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
