/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A picture on its way: where it goes, the temporary directory with the files that a gnuplot script
 * reads, the run of gnuplot, and the picture put in its place when it is whole.
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

/* Whether a picture could be drawn there: TDM_USAGE for another suffix, and what tdm_file_check()
 * refuses. */
enum tdm_status tdm_picture_check(const struct tdm_picture *picture, struct tdm_error *err);

/* Writes the files that a script reads into `folder`. */
typedef enum tdm_status (*tdm_picture_writer)(void *self, const char *folder,
                                              struct tdm_error *err);

/* Checks, has the files written, and draws by plots/SCRIPT.gp, which finds in settings.gp what
 * tdm_picture_settings() wrote. TDM_IO if there is no gnuplot, if it fails (with its first error
 * line), or if a file cannot be written. SIGINT, SIGTERM and SIGHUP wait until the temporary
 * directory is gone. */
enum tdm_status tdm_picture_draw(const struct tdm_picture *picture, const char *script,
                                 tdm_picture_writer write, void *self, struct tdm_error *err);

/* A file in the folder, and its end: both are needed, also if it could not be made (NULL).
 * TDM_IO. */
FILE *tdm_picture_create(const char *folder, const char *name);
enum tdm_status tdm_picture_finish(const char *folder, const char *name, FILE *file,
                                   struct tdm_error *err);

/* settings.gp, begun with format, output, folder, width and height; NULL as above. */
FILE *tdm_picture_settings(const char *folder, const struct tdm_picture *picture);

/* Writes `name = 'text'`; what gnuplot could not take in it becomes a question mark. */
void tdm_picture_string(FILE *file, const char *name, const char *text);
void tdm_picture_text(FILE *file, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
