/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of two sweeps: writes data and settings for plots/frontier.gp. The top of that script
 * explains them. */
#include "plots/frontier_plot.h"

#include <math.h>

#define ROOM 0.03 /* beside the outermost dots, as a share of the axis */

struct drawing {
    const struct tdm_frontier_plot *plot;
    const struct tdm_picture *picture;
};

/* What the axes must show. */
struct ranges {
    double x_low, x_high, seconds_low, seconds_high;
};

static struct ranges ranges_of(const struct tdm_frontier_plot *plot)
{
    struct ranges r = {INFINITY, -INFINITY, INFINITY, 0};
    for (size_t i = 0; i < plot->count; i++)
        for (size_t k = 0; k < plot->lines[i].count; k++) {
            const struct tdm_sweep_dot *dot = &plot->lines[i].dots[k];
            r.x_low = fmin(r.x_low, dot->x);
            r.x_high = fmax(r.x_high, dot->x);
            if (!dot->fits)
                continue;
            const double least = dot->bound_seconds > 0 ? dot->bound_seconds : dot->step_seconds;
            r.seconds_low = fmin(r.seconds_low, least);
            r.seconds_high = fmax(r.seconds_high, dot->step_seconds);
        }
    const double room = plot->tokens ? pow(r.x_high / r.x_low, ROOM) : ROOM * (r.x_high - r.x_low);
    if (!(r.x_high > r.x_low)) {
        r.x_low *= 0.9;
        r.x_high = r.x_high * 1.1 + 1;
    } else {
        r.x_low = plot->tokens ? r.x_low / room : fmax(r.x_low - room, 0);
        r.x_high = plot->tokens ? r.x_high * room : r.x_high + room;
    }
    return r;
}

static enum tdm_status write_line(const struct tdm_frontier_line *line, size_t number,
                                  const char *folder, struct tdm_error *err)
{
    char name[32];
    snprintf(name, sizeof(name), "line_%zu", number);
    FILE *file = tdm_picture_create(folder, name);
    for (size_t i = 0; i < line->count && file != NULL; i++) {
        const struct tdm_sweep_dot *dot = &line->dots[i];
        if (!dot->fits)
            fprintf(file, "\n"); /* the line is interrupted */
        else if (dot->bound_seconds > 0)
            fprintf(file, "%.9g %.9g %.9g\n", dot->x, dot->step_seconds, dot->bound_seconds);
        else
            fprintf(file, "%.9g %.9g NaN\n", dot->x, dot->step_seconds);
    }
    return tdm_picture_finish(folder, name, file, err);
}

static enum tdm_status write_files(void *self, const char *folder, struct tdm_error *err)
{
    const struct drawing *drawing = self;
    const struct tdm_frontier_plot *plot = drawing->plot;
    const struct ranges r = ranges_of(plot);
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < plot->count && status == TDM_OK; i++)
        status = write_line(&plot->lines[i], i + 1, folder, err);
    if (status != TDM_OK)
        return status;
    FILE *file = tdm_picture_settings(folder, drawing->picture);
    if (file == NULL)
        return tdm_picture_finish(folder, "settings.gp", file, err);
    tdm_picture_string(file, "title", plot->title);
    tdm_picture_string(file, "subtitle", plot->subtitle);
    tdm_picture_string(file, "x_title", plot->x_title);
    fprintf(file, "tokens = %d\nx_low = %.9g\nx_high = %.9g\n", plot->tokens, r.x_low, r.x_high);
    fprintf(file, "seconds_low = %.9g\nseconds_high = %.9g\n", r.seconds_low, r.seconds_high);
    fprintf(file, "lines = %zu\n", plot->count);
    for (size_t i = 0; i < plot->count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "name_%zu", i + 1);
        tdm_picture_string(file, name, plot->lines[i].name);
    }
    tdm_sweep_plot_ticks(file, plot->tokens, r.x_low, r.x_high);
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_frontier_plot_draw(const struct tdm_frontier_plot *plot,
                                       const struct tdm_picture *picture, struct tdm_error *err)
{
    struct drawing drawing = {plot, picture};
    return tdm_picture_draw(picture, "frontier", write_files, &drawing, err);
}
