/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a sweep: data and settings for plots/sweep.gp, at the top of which they are explained. */
#include "plots/sweep_plot.h"

#include "base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Above this multiple of the peaks a limit may lie above the picture: it would press the rest flat. */
#define LIMIT_SHOWN 1.5

#define GIB ((double)(UINT64_C(1) << 30))

struct drawing {
    const struct tdm_sweep_plot *plot;
    const struct tdm_picture *picture;
    size_t *nests; /* [dots]: number of a dot's nest, from 1; 0: nothing fits */
    size_t nest_count;
};

/* Nests are numbered as they come, a name that comes again has its number. */
static void number_nests(struct drawing *drawing)
{
    const struct tdm_sweep_dot *dots = drawing->plot->dots;
    for (size_t i = 0; i < drawing->plot->count; i++) {
        drawing->nests[i] = 0;
        for (size_t k = 0; k < i && dots[i].fits && drawing->nests[i] == 0; k++)
            if (dots[k].fits && strcmp(dots[k].nest, dots[i].nest) == 0)
                drawing->nests[i] = drawing->nests[k];
        if (dots[i].fits && drawing->nests[i] == 0)
            drawing->nests[i] = ++drawing->nest_count;
    }
}

/* Half way between two dots, as the axis shows it. */
static double between(const struct tdm_sweep_plot *plot, size_t i)
{
    double a = plot->dots[i].x, b = plot->dots[i + 1].x;
    return plot->tokens ? sqrt(a * b) : (a + b) / 2;
}

/* Where the axis begins and ends: half a step beyond the dots. */
static double edge(const struct tdm_sweep_plot *plot, bool last)
{
    size_t n = plot->count;
    if (n == 1)
        return plot->tokens ? plot->dots[0].x * (last ? 1.4 : 0.7)
                            : plot->dots[0].x + (last ? 1 : -1);
    double end = plot->dots[last ? n - 1 : 0].x, near = between(plot, last ? n - 2 : 0);
    double at = plot->tokens ? end * end / near : 2 * end - near;
    return !plot->tokens && at < 0 ? 0 : at;
}

static enum tdm_status write_dots(const struct drawing *drawing, const char *folder,
                                  struct tdm_error *err)
{
    FILE *file = tdm_picture_create(folder, "dots");
    const struct tdm_sweep_plot *plot = drawing->plot;
    for (size_t i = 0; i < plot->count && file != NULL; i++) {
        const struct tdm_sweep_dot *dot = &plot->dots[i];
        if (!dot->fits) {
            fprintf(file, "\n"); /* the line is interrupted */
            continue;
        }
        fprintf(file, "%.9g %.9g %.5g", dot->x, dot->step_seconds, 100 * dot->mfu);
        for (int place = 0; place < TDM_PLACES; place++)
            fprintf(file, " %.6g %.6g", (double)dot->peak_bytes[place] / GIB,
                    (double)dot->limit_bytes[place] / GIB);
        fprintf(file, "\n");
    }
    return tdm_picture_finish(folder, "dots", file, err);
}

/* Stretches of dots with the same nest: "from to number". */
static void write_bands(const struct drawing *drawing, FILE *file)
{
    const struct tdm_sweep_plot *plot = drawing->plot;
    fprintf(file, "bands = '");
    for (size_t first = 0, next; first < plot->count; first = next) {
        for (next = first + 1; next < plot->count && drawing->nests[next] == drawing->nests[first];)
            next++;
        fprintf(file, " %.9g %.9g %zu", first == 0 ? edge(plot, false) : between(plot, first - 1),
                next == plot->count ? edge(plot, true) : between(plot, next - 1),
                drawing->nests[first]);
    }
    fprintf(file, "'\nnests = %zu\n", drawing->nest_count);
    for (size_t number = 1; number <= drawing->nest_count; number++) {
        char name[32];
        size_t i = 0;
        while (drawing->nests[i] != number)
            i++;
        snprintf(name, sizeof(name), "nest_%zu", number);
        tdm_picture_text(file, name, "%zu  %s", number, plot->dots[i].nest);
    }
}

/* Powers of two of tokens, few enough to be read. */
static void write_ticks(const struct drawing *drawing, FILE *file)
{
    const struct tdm_sweep_plot *plot = drawing->plot;
    char text[TDM_FORMAT_SIZE];
    double low = edge(plot, false), high = edge(plot, true);
    int every = 1 + (int)(log2(high / low) / 14);
    bool any = false;
    fprintf(file, "ticks = '");
    for (int power = (int)ceil(log2(low)); plot->tokens && exp2(power) <= high; power += every) {
        fprintf(file, "%s\"%s\" %.9g", any ? ", " : "",
                tdm_format_tokens((uint64_t)exp2(power), text), exp2(power));
        any = true;
    }
    fprintf(file, "'\n");
}

static enum tdm_status write_files(void *self, const char *folder, struct tdm_error *err)
{
    const struct drawing *drawing = self;
    const struct tdm_sweep_plot *plot = drawing->plot;
    double seconds = 0, least = INFINITY, gib = 0, limit = 0, host = 0;
    enum tdm_status status = write_dots(drawing, folder, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < plot->count; i++) {
        const struct tdm_sweep_dot *dot = &plot->dots[i];
        if (!dot->fits)
            continue;
        seconds = fmax(seconds, dot->step_seconds);
        least = fmin(least, dot->step_seconds);
        gib =
            fmax(gib, fmax((double)dot->peak_bytes[TDM_DEVICE], (double)dot->peak_bytes[TDM_HOST]));
        limit = fmax(limit, (double)dot->limit_bytes[TDM_DEVICE]);
        host = fmax(host, (double)dot->peak_bytes[TDM_HOST]);
    }
    if (limit < LIMIT_SHOWN * gib)
        gib = fmax(gib, limit);
    FILE *file = tdm_picture_settings(folder, drawing->picture);
    if (file == NULL)
        return tdm_picture_finish(folder, "settings.gp", file, err);
    tdm_picture_string(file, "title", plot->title);
    tdm_picture_string(file, "subtitle", plot->subtitle);
    tdm_picture_string(file, "x_title", plot->x_title);
    fprintf(file, "tokens = %d\nx_low = %.9g\nx_high = %.9g\n", plot->tokens, edge(plot, false),
            edge(plot, true));
    fprintf(file, "seconds_high = %.9g\nseconds_low = %.9g\ngib_high = %.9g\nhas_host = %d\n",
            seconds, least, gib / GIB, host > 0);
    write_ticks(drawing, file);
    write_bands(drawing, file);
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_sweep_plot_draw(const struct tdm_sweep_plot *plot,
                                    const struct tdm_picture *picture, struct tdm_error *err)
{
    struct drawing drawing = {.plot = plot, .picture = picture};
    drawing.nests = calloc(plot->count + 1, sizeof(*drawing.nests));
    if (drawing.nests == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu points", plot->count);
    number_nests(&drawing);
    enum tdm_status status = tdm_picture_draw(picture, "sweep", write_files, &drawing, err);
    free(drawing.nests);
    return status;
}
