/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a sweep: writes data and settings for plots/sweep.gp. The top of that script
 * explains them. */
#include "plots/sweep_plot.h"

#include "base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The axis does not reach a limit above this multiple of the peaks: it would flatten the rest. */
#define LIMIT_SHOWN 1.5

#define GIB ((double)(UINT64_C(1) << 30))

/* Margins of the panels, in pixels of a picture of 1600 x 1000, and the width of a letter and the
 * height of a row in the names of bands. */
#define LEFT_MARGIN 104.0
#define RIGHT_MARGIN 40.0
#define LETTER 7.4
#define ROW_HEIGHT 18.0
/* A name is above its band, in at most MOST_ROWS rows of at least LEAST_LETTERS letters. A name
 * that is too long for that is turned, inside the band, in rows of at most TURNED_LETTERS. */
#define MOST_ROWS 7
#define LEAST_LETTERS 9
#define TURNED_LETTERS 40

struct drawing {
    const struct tdm_sweep_plot *plot;
    const struct tdm_picture *picture;
    size_t *nests; /* [dots]: number of a dot's nest, from 1; 0: nothing fits */
    size_t nest_count;
    bool *listed; /* [nests + 1], by number: a band is too small for the name, so it is listed */
};

/* Numbers the nests in the order of dots. A name that occurs again keeps its number. */
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
        if (dot->bound_seconds > 0)
            fprintf(file, " %.9g\n", dot->bound_seconds);
        else
            fprintf(file, " NaN\n");
    }
    return tdm_picture_finish(folder, "dots", file, err);
}

/* The number of letters in the next row of a name. It is cut after a comma if the row is then more
 * than half full, else between words or after a comma. 0 if it cannot be cut. */
static size_t cut(const char *name, size_t letters)
{
    size_t words = 0;
    if (strlen(name) <= letters)
        return strlen(name);
    for (size_t end = letters; end > 0; end--) {
        bool comma = name[end - 1] == ',';
        if (comma && 2 * end > letters)
            return end;
        if (words == 0 && (comma || name[end] == ' '))
            words = end;
    }
    return words;
}

/* Splits a name into rows of at most `letters`; *rows is MOST_ROWS + 1 if that is impossible. */
static void wrap(const char *name, size_t letters, char row[MOST_ROWS][128], size_t *rows)
{
    *rows = 0;
    while (*name != '\0') {
        size_t end = cut(name, letters);
        if (end == 0 || end >= sizeof(row[0]) || *rows == MOST_ROWS) {
            *rows = MOST_ROWS + 1;
            return;
        }
        snprintf(row[(*rows)++], sizeof(row[0]), "%.*s", (int)end, name);
        name += end;
        name += strspn(name, " ");
    }
}

/* A stretch of dots with the same nest. */
struct band {
    double from, to;
    size_t nest; /* 0: nothing fits */
    bool turned;
    char row[MOST_ROWS][128];
    size_t rows; /* of its name; 0: no room for it */
};

static double pixels_of(const struct drawing *drawing, const struct band *band)
{
    const struct tdm_sweep_plot *plot = drawing->plot;
    double width = drawing->picture->width, height = drawing->picture->height;
    double panel = width / fmin(width / 1600, height / 1000) - LEFT_MARGIN - RIGHT_MARGIN;
    double low = edge(plot, false), high = edge(plot, true);
    return panel * (plot->tokens ? log(band->to / band->from) / log(high / low)
                                 : (band->to - band->from) / (high - low));
}

static void name_band(const struct drawing *drawing, const char *name, struct band *band)
{
    double pixels = pixels_of(drawing, band);
    size_t letters = (size_t)fmax(0, (pixels - 4) / LETTER);
    band->rows = MOST_ROWS + 1;
    if (letters >= LEAST_LETTERS)
        wrap(name, letters, band->row, &band->rows);
    if (band->rows <= MOST_ROWS)
        return;
    band->turned = true;
    wrap(name, TURNED_LETTERS, band->row, &band->rows);
    if (band->rows * ROW_HEIGHT > pixels - 4)
        band->rows = 0;
}

static void write_band(const struct drawing *drawing, size_t number, const struct band *band,
                       FILE *file)
{
    char setting[48];
    fprintf(file, "band_%zu = '%.9g %.9g %zu %zu %d'\n", number, band->from, band->to, band->nest,
            band->rows, band->turned);
    for (size_t i = 0; i < band->rows; i++) {
        snprintf(setting, sizeof(setting), "band_%zu_%zu", number, i + 1);
        tdm_picture_string(file, setting, band->row[i]);
    }
    if (band->nest > 0 && band->rows == 0)
        drawing->listed[band->nest] = true;
}

/* Writes the bands with their names, and the names that do not fit their bands. */
static void write_bands(const struct drawing *drawing, FILE *file)
{
    const struct tdm_sweep_plot *plot = drawing->plot;
    size_t bands = 0, most_rows = 1;
    for (size_t first = 0, next; first < plot->count; first = next) {
        for (next = first + 1; next < plot->count && drawing->nests[next] == drawing->nests[first];)
            next++;
        struct band band = {.from = first == 0 ? edge(plot, false) : between(plot, first - 1),
                            .to = next == plot->count ? edge(plot, true) : between(plot, next - 1),
                            .nest = drawing->nests[first]};
        name_band(drawing, band.nest == 0 ? "does not fit" : plot->dots[first].nest, &band);
        if (!band.turned && band.rows > most_rows)
            most_rows = band.rows;
        write_band(drawing, ++bands, &band, file);
    }
    fprintf(file,
            "bands = %zu\nname_rows = %zu\nrow_height = %g\nleft_margin = %g\nright_margin = %g\n",
            bands, most_rows, ROW_HEIGHT, LEFT_MARGIN, RIGHT_MARGIN);
    fprintf(file, "listed = '");
    for (size_t number = 1; number <= drawing->nest_count; number++)
        if (drawing->listed[number])
            fprintf(file, " %zu", number);
    fprintf(file, "'\n");
    for (size_t number = 1; number <= drawing->nest_count; number++) {
        char name[32];
        size_t i = 0;
        if (!drawing->listed[number])
            continue;
        while (drawing->nests[i] != number)
            i++;
        snprintf(name, sizeof(name), "nest_%zu", number);
        tdm_picture_text(file, name, "%zu  %s", number, plot->dots[i].nest);
    }
}

void tdm_sweep_plot_ticks(FILE *file, bool tokens, double low, double high)
{
    char text[TDM_FORMAT_SIZE];
    int every = 1 + (int)(log2(high / low) / 14);
    bool any = false;
    fprintf(file, "ticks = '");
    for (int power = (int)ceil(log2(low)); tokens && exp2(power) <= high; power += every) {
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
    double seconds = 0, least = INFINITY, gib = 0, limit = 0, away = 0;
    enum tdm_status status = write_dots(drawing, folder, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < plot->count; i++) {
        const struct tdm_sweep_dot *dot = &plot->dots[i];
        if (!dot->fits)
            continue;
        seconds = fmax(seconds, dot->step_seconds);
        least = fmin(least, dot->step_seconds);
        for (int place = 0; place < TDM_PLACES; place++) {
            double peak = (double)dot->peak_bytes[place];
            gib = fmax(gib, peak);
            away = place == TDM_DEVICE ? away : fmax(away, peak);
        }
        limit = fmax(limit, (double)dot->limit_bytes[TDM_DEVICE]);
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
            seconds, least, gib / GIB, away > 0);
    tdm_sweep_plot_ticks(file, plot->tokens, edge(plot, false), edge(plot, true));
    write_bands(drawing, file);
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_sweep_plot_draw(const struct tdm_sweep_plot *plot,
                                    const struct tdm_picture *picture, struct tdm_error *err)
{
    struct drawing drawing = {.plot = plot, .picture = picture};
    enum tdm_status status = TDM_OK;
    drawing.nests = calloc(plot->count + 1, sizeof(*drawing.nests));
    drawing.listed = calloc(plot->count + 1, sizeof(*drawing.listed));
    if (drawing.nests == NULL || drawing.listed == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu points", plot->count);
    if (status == TDM_OK) {
        number_nests(&drawing);
        status = tdm_picture_draw(picture, "sweep", write_files, &drawing, err);
    }
    free(drawing.nests);
    free(drawing.listed);
    return status;
}
