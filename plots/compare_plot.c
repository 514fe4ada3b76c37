/* SPDX-License-Identifier: Apache-2.0 */
/* Data and settings for plots/compare.gp, at the top of which they are explained. */
#include "plots/compare_plot.h"

#include "base/units.h"

#include <math.h>

#define GIB ((double)(UINT64_C(1) << 30))

struct drawing {
    const struct tdm_compare_plot *plot;
    const struct tdm_picture *picture;
};

static bool is_used(const struct tdm_compare_plot *plot, unsigned category)
{
    for (size_t i = 0; i < plot->count; i++)
        if (plot->lines[i].has_bar && plot->lines[i].categories[category] > 0)
            return true;
    return false;
}

/* A block for every category that occurs: number of the method, from and to in GiB. */
static enum tdm_status write_bars(const struct tdm_compare_plot *plot, const char *folder,
                                  struct tdm_error *err)
{
    FILE *file = tdm_picture_create(folder, "bars");
    for (unsigned c = 0; c < TDM_CATEGORIES && file != NULL; c++) {
        if (!is_used(plot, c))
            continue;
        for (size_t i = 0; i < plot->count; i++) {
            const struct tdm_compare_line *line = &plot->lines[i];
            uint64_t below = 0;
            for (unsigned k = 0; k < c; k++)
                below += line->categories[k];
            if (line->has_bar)
                fprintf(file, "%zu %.6g %.6g\n", i + 1, (double)below / GIB,
                        (double)(below + line->categories[c]) / GIB);
        }
        fprintf(file, "\n\n");
    }
    return tdm_picture_finish(folder, "bars", file, err);
}

static enum tdm_status write_lines(const struct tdm_compare_plot *plot, const char *folder,
                                   struct tdm_error *err)
{
    FILE *file = tdm_picture_create(folder, "lines");
    for (size_t i = 0; i < plot->count && file != NULL; i++) {
        const struct tdm_compare_line *line = &plot->lines[i];
        for (size_t k = 0; k < line->dot_count; k++)
            fprintf(file, "%.9g %.6g\n", (double)line->dots[k].context,
                    (double)line->dots[k].bytes / GIB);
        fprintf(file, line->dot_count == 0 ? "NaN NaN\n\n\n" : "\n\n");
    }
    return tdm_picture_finish(folder, "lines", file, err);
}

static void write_names(const struct tdm_compare_plot *plot, FILE *file)
{
    fprintf(file, "methods = %zu\n", plot->count);
    for (size_t i = 0; i < plot->count; i++) {
        char name[32], text[TDM_FORMAT_SIZE];
        const struct tdm_compare_line *line = &plot->lines[i];
        snprintf(name, sizeof(name), "method_%zu", i + 1);
        tdm_picture_string(file, name, line->name);
        snprintf(name, sizeof(name), "reach_%zu", i + 1);
        tdm_picture_text(file, name, "%s  %s", line->name,
                         line->dot_count == 0
                             ? "-"
                             : tdm_format_tokens(line->dots[line->dot_count - 1].context, text));
        fprintf(file, "has_bar_%zu = %d\n", i + 1, line->has_bar);
    }
    fprintf(file, "categories = '");
    for (unsigned c = 0; c < TDM_CATEGORIES; c++)
        if (is_used(plot, c))
            fprintf(file, " %s", tdm_category_name((enum tdm_category)c));
    fprintf(file, "'\n");
}

/* Powers of two of tokens, few enough to be read. */
static void write_ticks(double low, double high, FILE *file)
{
    char text[TDM_FORMAT_SIZE];
    int every = 1 + (int)(log2(high / low) / 9);
    fprintf(file, "x_low = %.9g\nx_high = %.9g\nticks = '", low, high);
    for (int power = (int)ceil(log2(low)), first = power; exp2(power) <= high; power += every)
        fprintf(file, "%s\"%s\" %.9g", power == first ? "" : ", ",
                tdm_format_tokens((uint64_t)exp2(power), text), exp2(power));
    fprintf(file, "'\n");
}

static enum tdm_status write_files(void *self, const char *folder, struct tdm_error *err)
{
    const struct drawing *drawing = self;
    const struct tdm_compare_plot *plot = drawing->plot;
    double low = INFINITY, high = 0, gib = (double)plot->device_bytes / GIB;
    char text[TDM_FORMAT_SIZE];
    enum tdm_status status = write_bars(plot, folder, err);
    if (status == TDM_OK)
        status = write_lines(plot, folder, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < plot->count; i++)
        for (size_t k = 0; k < plot->lines[i].dot_count; k++) {
            low = fmin(low, (double)plot->lines[i].dots[k].context);
            high = fmax(high, (double)plot->lines[i].dots[k].context);
        }
    FILE *file = tdm_picture_settings(folder, drawing->picture);
    if (file == NULL)
        return tdm_picture_finish(folder, "settings.gp", file, err);
    tdm_picture_string(file, "title", plot->title);
    tdm_picture_string(file, "subtitle", plot->subtitle);
    tdm_picture_text(file, "bar_title", "at %s tokens", tdm_format_tokens(plot->bar_context, text));
    tdm_picture_text(file, "limit_text", "the device: %s",
                     tdm_format_bytes(plot->device_bytes, text));
    fprintf(file, "limit = %.6g\n", gib);
    write_names(plot, file);
    write_ticks(low / 1.2, high * 1.2, file);
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_compare_plot_draw(const struct tdm_compare_plot *plot,
                                      const struct tdm_picture *picture, struct tdm_error *err)
{
    struct drawing drawing = {.plot = plot, .picture = picture};
    return tdm_picture_draw(picture, "compare", write_files, &drawing, err);
}
