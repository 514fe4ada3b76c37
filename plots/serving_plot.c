/* SPDX-License-Identifier: Apache-2.0 */
/* Writes data and settings for plots/serving.gp. The top of that script explains them. */
#include "plots/serving_plot.h"

#include "base/units.h"

#include <inttypes.h>

struct drawing {
    const struct tdm_serving_plot *plot;
    const struct tdm_picture *picture;
};

/* A block of lines of a dtype: contexts and sequences of which there is at least one. */
static enum tdm_status write_lines(const struct tdm_serving_plot *plot, const char *folder,
                                   struct tdm_error *err)
{
    FILE *file = tdm_picture_create(folder, "lines");
    for (size_t i = 0; i < plot->count && file != NULL; i++) {
        const struct tdm_serving_line *line = &plot->lines[i];
        for (size_t d = 0; d < line->count; d++)
            if (line->dots[d].sequences > 0)
                fprintf(file, "%" PRIu64 " %" PRIu64 "\n", line->dots[d].context,
                        line->dots[d].sequences);
        fprintf(file, "\n\n");
    }
    return tdm_picture_finish(folder, "lines", file, err);
}

static enum tdm_status write_files(void *self, const char *folder, struct tdm_error *err)
{
    const struct drawing *drawing = self;
    const struct tdm_serving_plot *plot = drawing->plot;
    uint64_t low = plot->context, high = low, most = plot->batch;
    char text[TDM_FORMAT_SIZE], name[32];
    enum tdm_status status = write_lines(plot, folder, err);
    if (status != TDM_OK)
        return status;
    FILE *file = tdm_picture_settings(folder, drawing->picture);
    if (file == NULL)
        return tdm_picture_finish(folder, "settings.gp", file, err);
    tdm_picture_string(file, "title", plot->title);
    tdm_picture_string(file, "subtitle", plot->subtitle);
    fprintf(file, "lines = %zu\n", plot->count);
    for (size_t i = 0; i < plot->count; i++) {
        const struct tdm_serving_line *line = &plot->lines[i];
        snprintf(name, sizeof(name), "name_%zu", i + 1);
        tdm_picture_string(file, name, line->name);
        fprintf(file, "asked_%zu = %d\nany_%zu = %d\n", i + 1, line->asked, i + 1,
                line->count > 0 && line->dots[0].sequences > 0);
        for (size_t d = 0; d < line->count; d++) {
            if (line->dots[d].sequences == 0)
                continue;
            low = line->dots[d].context < low ? line->dots[d].context : low;
            high = line->dots[d].context > high ? line->dots[d].context : high;
            most = line->dots[d].sequences > most ? line->dots[d].sequences : most;
        }
    }
    fprintf(file, "context = %" PRIu64 "\nbatch = %" PRIu64 "\n", plot->context, plot->batch);
    fprintf(file, "x_low = %" PRIu64 "\nx_high = %" PRIu64 "\ny_high = %" PRIu64 "\n", low, high,
            most);
    fprintf(file, "ticks = '");
    bool any = false;
    for (uint64_t tokens = 1; tokens / 2 < high; tokens *= 2) {
        if (tokens < low)
            continue;
        fprintf(file, "%s\"%s\" %" PRIu64, any ? ", " : "", tdm_format_tokens(tokens, text),
                tokens);
        any = true;
    }
    fprintf(file, "'\n");
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_serving_plot_draw(const struct tdm_serving_plot *plot,
                                      const struct tdm_picture *picture, struct tdm_error *err)
{
    struct drawing drawing = {.plot = plot, .picture = picture};
    return tdm_picture_draw(picture, "serving", write_files, &drawing, err);
}
