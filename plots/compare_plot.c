/* SPDX-License-Identifier: Apache-2.0 */
/* Writes data and settings for plots/compare.gp. The top of that script explains them. */
#include "plots/compare_plot.h"

#include "base/units.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#define GIB ((double)(UINT64_C(1) << 30))

/* More lines than this could not be told apart. */
#define MOST_LINES 8
/* Two methods are drawn as one line if their peaks, wherever both are known, differ by at most
 * SAME_BYTES of the device's memory, and the contexts that they reach by at most SAME_REACH. */
#define SAME_BYTES 0.02
#define SAME_REACH 0.05

/* The panel of the lines begins at this share of the width. Its margins are in pixels of a picture
 * of 1600 x 1000, and scale with the picture. */
#define MIDDLE 0.46
#define LEFT_MARGIN 90.0
#define RIGHT_MARGIN 40.0
#define BOTTOM_MARGIN 215.0
#define TOP_MARGIN 130.0
#define LABEL_HEIGHT 24.0 /* of a row of labels, over the line of the limit */
#define LETTER 8.6        /* mean width of a letter of a label */

/* Methods that are drawn as one line. */
struct group {
    const struct tdm_compare_line *line; /* of the first of them */
    uint64_t least, most;                /* contexts that they reach */
    char names[256];
    /* the label: its row, counted up from the line of the limit; whether it begins at the end of
     * the line, or ends there */
    unsigned row;
    bool begins;
};

struct drawing {
    const struct tdm_compare_plot *plot;
    const struct tdm_picture *picture;
    struct group groups[MOST_LINES];
    size_t group_count;
    char left_out[512]; /* methods that have no line; empty: none */
    double low, high;   /* of the axis of contexts */
    double highest;     /* of the other axis, in GiB */
};

/* Which methods are drawn as lines. */

static uint64_t reach_of(const struct tdm_compare_line *line)
{
    return line->dots[line->dot_count - 1].context;
}

/* Are two methods one line? Compares them at the contexts of both, and at the longest of each. */
static bool coincide(const struct tdm_compare_plot *plot, const struct tdm_compare_line *a,
                     const struct tdm_compare_line *b)
{
    double reach_a = (double)reach_of(a), reach_b = (double)reach_of(b);
    if (fabs(reach_a - reach_b) > SAME_REACH * fmax(reach_a, reach_b))
        return false;
    for (size_t i = 0; i < a->dot_count; i++)
        for (size_t k = 0; k < b->dot_count; k++) {
            bool last = i + 1 == a->dot_count && k + 1 == b->dot_count;
            double off = fabs((double)a->dots[i].bytes - (double)b->dots[k].bytes);
            if ((last || a->dots[i].context == b->dots[k].context) &&
                off > SAME_BYTES * (double)plot->device_bytes)
                return false;
        }
    return true;
}

__attribute__((format(printf, 3, 4))) static void append(char *out, size_t size, const char *format,
                                                         ...)
{
    size_t length = strlen(out);
    va_list list;
    va_start(list, format);
    vsnprintf(out + length, size - length, format, list);
    va_end(list);
}

/* Groups the methods into lines, in their order. Those without a line go to `left_out`. */
static void group_lines(struct drawing *drawing)
{
    const struct tdm_compare_plot *plot = drawing->plot;
    char text[TDM_FORMAT_SIZE];
    for (size_t i = 0; i < plot->count; i++) {
        const struct tdm_compare_line *line = &plot->lines[i];
        size_t g = 0;
        while (line->dot_count > 0 && g < drawing->group_count &&
               !coincide(plot, drawing->groups[g].line, line))
            g++;
        if (line->dot_count == 0 || g == MOST_LINES) {
            append(drawing->left_out, sizeof(drawing->left_out), "%s%s %s",
                   drawing->left_out[0] == '\0' ? "no line: " : ", ", line->name,
                   line->dot_count == 0 ? "fits nowhere" : tdm_format_tokens(reach_of(line), text));
            continue;
        }
        struct group *group = &drawing->groups[g];
        uint64_t reach = reach_of(line);
        if (g == drawing->group_count) {
            *group = (struct group){.line = line, .least = reach, .most = reach};
            drawing->group_count++;
        }
        append(group->names, sizeof(group->names), "%s%s", group->line == line ? "" : ", ",
               line->name);
        group->least = reach < group->least ? reach : group->least;
        group->most = reach > group->most ? reach : group->most;
    }
}

/* "ring, ulysses  100K to 101K" */
static void describe(const struct group *group, char *out, size_t size)
{
    char text[TDM_FORMAT_SIZE];
    snprintf(out, size, "%s  %s", group->names, tdm_format_tokens(group->least, text));
    if (group->most != group->least)
        append(out, size, " to %s", tdm_format_tokens(group->most, text));
}

/* A label over its line, in pixels of the panel. */
struct span {
    double end; /* of the line */
    double left, right;
    unsigned row;
    bool begins;
};

/* Labels are above the limit; a vertical leader joins each with the end of its line. All labels are
 * left of their leaders, or all right of them (`begin`), except that a label which would leave the
 * panel is turned to the other side. A label is above all those that it would overlap, so it only
 * crosses leaders of turned labels. Returns the number of rows; *turned is the number of turned
 * labels. `spans` are by rising end. */
static unsigned lay_out(struct span *spans, size_t count, bool begin, double panel_width,
                        unsigned *turned)
{
    unsigned rows = 0;
    *turned = 0;
    for (size_t n = 0; n < count; n++) {
        struct span *span = &spans[begin ? count - 1 - n : n];
        double width = span->right - span->left;
        bool outside = begin ? span->end + width > panel_width : span->end < width;
        span->begins = begin != outside;
        span->left = span->begins ? span->end : span->end - width;
        span->right = span->left + width;
        span->row = 0;
        *turned += outside;
        for (size_t k = 0; k < n; k++) {
            const struct span *other = &spans[begin ? count - 1 - k : k];
            if (other->left <= span->right && span->left <= other->right && other->row >= span->row)
                span->row = other->row + 1;
        }
        rows = span->row + 1 > rows ? span->row + 1 : rows;
    }
    return rows;
}

/* Places the labels on the side where fewer are turned; returns their rows. */
static unsigned place_labels(struct drawing *drawing, double panel_width)
{
    struct group *by_reach[MOST_LINES];
    struct span spans[2][MOST_LINES];
    unsigned rows[2], turned[2];
    size_t count = drawing->group_count;
    for (size_t g = 0; g < count; g++) {
        size_t at = g;
        for (; at > 0 && reach_of(by_reach[at - 1]->line) > reach_of(drawing->groups[g].line); at--)
            by_reach[at] = by_reach[at - 1];
        by_reach[at] = &drawing->groups[g];
    }
    for (size_t i = 0; i < count; i++) {
        char text[320];
        describe(by_reach[i], text, sizeof(text));
        double end = log((double)reach_of(by_reach[i]->line) / drawing->low) /
                     log(drawing->high / drawing->low) * panel_width;
        double width = LETTER * (double)strlen(text) + LABEL_HEIGHT / 2;
        spans[0][i] = spans[1][i] = (struct span){.end = end, .right = width};
    }
    for (int begin = 0; begin < 2; begin++)
        rows[begin] = lay_out(spans[begin], count, begin, panel_width, &turned[begin]);
    bool begin = turned[1] < turned[0] || (turned[1] == turned[0] && rows[1] < rows[0]);
    for (size_t i = 0; i < count; i++) {
        by_reach[i]->row = spans[begin][i].row;
        by_reach[i]->begins = spans[begin][i].begins;
    }
    return rows[begin];
}

/* Computes the ends of the axes, with space for the labels above the limit. */
static void measure(struct drawing *drawing)
{
    double width = drawing->picture->width, height = drawing->picture->height;
    double scale = fmin(width / 1600, height / 1000);
    double panel_width = width / scale * (1 - MIDDLE) - LEFT_MARGIN - RIGHT_MARGIN;
    double panel_height = height / scale - TOP_MARGIN - BOTTOM_MARGIN;
    drawing->low = INFINITY;
    for (size_t g = 0; g < drawing->group_count; g++) {
        const struct tdm_compare_line *line = drawing->groups[g].line;
        drawing->low = fmin(drawing->low, (double)line->dots[0].context / 1.2);
        drawing->high = fmax(drawing->high, (double)reach_of(line) * 1.2);
    }
    double labels = LABEL_HEIGHT * (place_labels(drawing, panel_width) + 0.5);
    drawing->highest = (double)drawing->plot->device_bytes / GIB * panel_height /
                       (panel_height - fmin(labels, panel_height / 2));
}

static bool is_used(const struct tdm_compare_plot *plot, unsigned category)
{
    for (size_t i = 0; i < plot->count; i++)
        if (plot->lines[i].has_bar && plot->lines[i].categories[category] > 0)
            return true;
    return false;
}

/* Writes a block for every category that occurs: number of the method, from and to in GiB. */
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

static enum tdm_status write_lines(const struct drawing *drawing, const char *folder,
                                   struct tdm_error *err)
{
    FILE *file = tdm_picture_create(folder, "lines");
    for (size_t g = 0; g < drawing->group_count && file != NULL; g++) {
        const struct tdm_compare_line *line = drawing->groups[g].line;
        for (size_t k = 0; k < line->dot_count; k++)
            fprintf(file, "%.9g %.6g\n", (double)line->dots[k].context,
                    (double)line->dots[k].bytes / GIB);
        fprintf(file, "\n\n");
    }
    return tdm_picture_finish(folder, "lines", file, err);
}

static void write_names(const struct tdm_compare_plot *plot, FILE *file)
{
    fprintf(file, "methods = %zu\n", plot->count);
    for (size_t i = 0; i < plot->count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "method_%zu", i + 1);
        tdm_picture_string(file, name, plot->lines[i].name);
        fprintf(file, "has_bar_%zu = %d\n", i + 1, plot->lines[i].has_bar);
    }
    fprintf(file, "categories = '");
    for (unsigned c = 0; c < TDM_CATEGORIES; c++)
        if (is_used(plot, c))
            fprintf(file, " %s", tdm_category_name((enum tdm_category)c));
    fprintf(file, "'\n");
}

/* Writes the labels of the lines, and where the lines end. */
static void write_labels(const struct drawing *drawing, FILE *file)
{
    fprintf(file, "lines = %zu\n", drawing->group_count);
    for (size_t g = 0; g < drawing->group_count; g++) {
        const struct group *group = &drawing->groups[g];
        const struct tdm_compare_dot *end = &group->line->dots[group->line->dot_count - 1];
        char text[320], name[32];
        describe(group, text, sizeof(text));
        snprintf(name, sizeof(name), "label_%zu", g + 1);
        tdm_picture_string(file, name, text);
        fprintf(file, "end_%zu = '%.9g %.6g %u %d'\n", g + 1, (double)end->context,
                (double)end->bytes / GIB, group->row, group->begins);
    }
    tdm_picture_string(file, "left_out", drawing->left_out);
}

/* Writes ticks at powers of two of tokens, few enough to be read. */
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
    char text[TDM_FORMAT_SIZE];
    enum tdm_status status = write_bars(plot, folder, err);
    if (status == TDM_OK)
        status = write_lines(drawing, folder, err);
    if (status != TDM_OK)
        return status;
    FILE *file = tdm_picture_settings(folder, drawing->picture);
    if (file == NULL)
        return tdm_picture_finish(folder, "settings.gp", file, err);
    tdm_picture_string(file, "title", plot->title);
    tdm_picture_string(file, "subtitle", plot->subtitle);
    tdm_picture_text(file, "bar_title", "at %s tokens", tdm_format_tokens(plot->bar_context, text));
    tdm_picture_text(file, "limit_text", "the device: %s",
                     tdm_format_bytes(plot->device_bytes, text));
    fprintf(file, "limit = %.6g\nhighest = %.6g\nlabel_height = %g\n",
            (double)plot->device_bytes / GIB, drawing->highest, LABEL_HEIGHT);
    fprintf(file,
            "middle = %g\nleft_margin = %g\nright_margin = %g\nbottom_margin = %g\n"
            "top_margin = %g\n",
            MIDDLE, LEFT_MARGIN, RIGHT_MARGIN, BOTTOM_MARGIN, TOP_MARGIN);
    write_names(plot, file);
    write_labels(drawing, file);
    write_ticks(drawing->low, drawing->high, file);
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_compare_plot_draw(const struct tdm_compare_plot *plot,
                                      const struct tdm_picture *picture, struct tdm_error *err)
{
    struct drawing drawing = {.plot = plot, .picture = picture};
    group_lines(&drawing);
    measure(&drawing);
    return tdm_picture_draw(picture, "compare", write_files, &drawing, err);
}
