/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of one step: writes data and settings for plots/timeline.gp. The top of that script
 * explains the settings. */
#include "plots/plot.h"

#include "base/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The stack from the bottom: what stays through the step is below what comes and goes. */
static const enum tdm_category stack[TDM_CATEGORIES] = {
    TDM_RUNTIME, TDM_WEIGHTS,       TDM_OPTIMIZER, TDM_GRADIENTS,    TDM_RESIDUALS, TDM_KV,
    TDM_STAGING, TDM_COMMUNICATION, TDM_ALLOCATOR, TDM_KV_GRADIENTS, TDM_LOGITS,    TDM_WORKSPACE};

/* A limit above this multiple of the peak, of the device or of another place, is not drawn: it
 * would flatten the rest. */
#define DEVICE_LIMIT_SHOWN 2.5
#define LIMIT_SHOWN 1.5
/* The least height of any activity on a lane, which is about 30 pixels high; and the grain of
 * heights. */
#define LEAST_SHARE 0.06
#define SHARE_GRAIN 0.02
/* Pixels of one panel at a width of 1,600, alone and beside another; see timeline.gp. */
#define PANEL_ALONE 1430.0
#define PANEL_BESIDE 672.0
#define MOST_COLUMNS 2000
/* More lanes would be too low to see. */
#define MOST_LANES 24u
#define MOST_PHASES 64

/* Everything that goes into the files of one picture. */
struct drawing {
    const struct tdm_plot *plot;
    const struct tdm_picture *picture;
    const char *folder; /* temporary */
    unsigned panel_count;
    enum tdm_plot_side sides[TDM_PLOT_SIDES];   /* of the panels */
    struct tdm_column *columns[TDM_PLOT_SIDES]; /* by panel */
    /* [shown_ranks] by panel: the lanes of each rank; of one rank alone they are in `columns` */
    struct tdm_column **ranks[TDM_PLOT_SIDES];
    bool compute_alone; /* too many lanes: the compute lane of each rank */
    size_t column_count;
    double end_seconds; /* of the time axis, which the panels share */
    bool place_used[TDM_MAX_PLACES];
    bool category_used[TDM_MAX_PLACES][TDM_CATEGORIES];
    bool lane_used[TDM_MAX_LANES];
    bool group_used[TDM_OP_GROUPS];
    uint64_t top_bytes[TDM_MAX_PLACES]; /* of what is drawn */
    uint64_t unit_bytes[TDM_MAX_PLACES];
    const char *unit[TDM_MAX_PLACES];
};

/* What there is to see. */

static const struct tdm_plot_panel *panel_at(const struct drawing *drawing, unsigned panel)
{
    return &drawing->plot->panels[drawing->sides[panel]];
}

/* The columns that have the lanes of a rank. */
static const struct tdm_column *lanes_of(const struct drawing *drawing, unsigned panel,
                                         uint32_t rank)
{
    return drawing->ranks[panel] == NULL ? drawing->columns[panel] : drawing->ranks[panel][rank];
}

static const struct tdm_timeline *timeline_of(const struct drawing *drawing, unsigned panel,
                                              uint32_t rank)
{
    const struct tdm_plot_panel *shows = panel_at(drawing, panel);
    return shows->ranks == NULL ? &shows->timeline : &shows->ranks[rank];
}

/* Is a lane drawn? */
static bool shows_lane(const struct drawing *drawing, uint32_t lane)
{
    return drawing->lane_used[lane] && (!drawing->compute_alone || lane == TDM_LANE_COMPUTE);
}

/* The planned bytes of a place: the arena, and what is outside it. */
static uint64_t planned_bytes(const struct tdm_plot *plot, int place)
{
    return plot->arena_bytes[place] + plot->runtime_bytes[place];
}

/* Allocated bytes of a column as they are drawn, on top of the runtime. */
static uint64_t drawn_allocated(const struct tdm_plot *plot, const struct tdm_column *column,
                                int place)
{
    uint64_t allocated = column->allocated_bytes[place];
    return allocated > 0 ? allocated + plot->runtime_bytes[place] : 0;
}

/* The legend has all categories that ever hold something, even if no column shows them because
 * another stack is higher in it. Which ones columns show depends on the times of a run. */
static void note_categories(struct drawing *drawing, const struct tdm_timeline_changes *values)
{
    for (size_t i = 0; i < values->count; i++)
        if (values->change[i].bytes > 0)
            drawing->category_used[values->change[i].place][values->change[i].category] = true;
}

static void note_lanes(struct drawing *drawing, const struct tdm_column *columns)
{
    for (size_t i = 0; i < drawing->column_count; i++)
        for (uint32_t lane = 0; lane < drawing->plot->topology.lane_count; lane++)
            for (int group = 0; group < TDM_OP_GROUPS; group++)
                if (columns[i].busy[lane][group] > 0)
                    drawing->lane_used[lane] = drawing->group_used[group] = true;
}

static void note_used(struct drawing *drawing, unsigned panel)
{
    note_categories(drawing, &panel_at(drawing, panel)->timeline.values);
    for (size_t i = 0; i < drawing->column_count; i++) {
        const struct tdm_column *column = &drawing->columns[panel][i];
        for (uint32_t place = 0; place < drawing->plot->topology.place_count; place++) {
            uint64_t allocated = drawn_allocated(drawing->plot, column, place);
            if (allocated > drawing->top_bytes[place])
                drawing->top_bytes[place] = allocated;
        }
    }
    for (uint32_t rank = 0; rank < drawing->plot->shown_ranks; rank++)
        note_lanes(drawing, lanes_of(drawing, panel, rank));
}

static void choose_unit(struct drawing *drawing, int place)
{
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    int power = 0;
    while (power < 2 && drawing->top_bytes[place] >= UINT64_C(1024) << 10 * (power + 1))
        power++;
    drawing->unit[place] = units[power];
    drawing->unit_bytes[place] = UINT64_C(1024) << 10 * power;
}

/* Thins the lanes of all ranks. */
static enum tdm_status look_at_ranks(struct drawing *drawing, unsigned panel, struct tdm_error *err)
{
    const struct tdm_plot_panel *shows = panel_at(drawing, panel);
    const uint32_t ranks = drawing->plot->shown_ranks;
    enum tdm_status status = TDM_OK;
    if (shows->ranks == NULL)
        return TDM_OK;
    drawing->ranks[panel] = calloc(ranks, sizeof(*drawing->ranks[panel]));
    if (drawing->ranks[panel] == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", ranks);
    for (uint32_t rank = 0; rank < ranks && status == TDM_OK; rank++)
        status = tdm_timeline_thin(&shows->ranks[rank], drawing->end_seconds, drawing->column_count,
                                   &drawing->ranks[panel][rank], err);
    return status;
}

static enum tdm_status look(struct drawing *drawing, struct tdm_error *err)
{
    double pixels =
        (drawing->panel_count == 1 ? PANEL_ALONE : PANEL_BESIDE) * drawing->picture->width / 1600.0;
    drawing->column_count = (size_t)fmin(MOST_COLUMNS, fmax(100, pixels));

    for (unsigned panel = 0; panel < drawing->panel_count; panel++)
        drawing->end_seconds = fmax(drawing->end_seconds, panel_at(drawing, panel)->end_seconds);
    for (unsigned panel = 0; panel < drawing->panel_count; panel++) {
        enum tdm_status status =
            tdm_timeline_thin(&panel_at(drawing, panel)->timeline, drawing->end_seconds,
                              drawing->column_count, &drawing->columns[panel], err);
        if (status == TDM_OK)
            status = look_at_ranks(drawing, panel, err);
        if (status != TDM_OK)
            return status;
        note_used(drawing, panel);
    }
    uint32_t lanes = 0;
    for (uint32_t lane = 0; lane < drawing->plot->topology.lane_count; lane++)
        lanes += drawing->lane_used[lane];
    drawing->compute_alone = lanes * drawing->plot->shown_ranks > MOST_LANES;
    drawing->place_used[TDM_DEVICE] = true;
    for (uint32_t place = 0; place < drawing->plot->topology.place_count; place++) {
        for (unsigned panel = 0; panel < drawing->panel_count; panel++) {
            const struct tdm_timeline_peak *peak = &panel_at(drawing, panel)->peak[place];
            uint64_t bytes = peak->value_bytes + drawing->plot->runtime_bytes[place];
            if (peak->known && bytes > drawing->top_bytes[place])
                drawing->top_bytes[place] = bytes;
            if (peak->known)
                drawing->place_used[place] = true;
        }
        if (drawing->plot->runtime_bytes[place] > 0)
            drawing->category_used[place][TDM_RUNTIME] = true;
        choose_unit(drawing, place);
    }
    return TDM_OK;
}

/* Files for gnuplot. */

/* Writes a running sum over the columns as a step function, constant from the start of a column to
 * its end. Equal neighbours are joined, and columns of 0 are left out: there is nothing to fill.
 * Two empty lines end the block, an `index` of gnuplot. gnuplot counts only blocks with a point, so
 * each begins with one. */
static void write_steps(FILE *file, double column_seconds, const double *value, size_t count)
{
    fprintf(file, "0 0\n\n");
    for (size_t first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && value[next] == value[first];)
            next++;
        if (value[first] == 0)
            continue;
        fprintf(file, "%.9g %.7g\n%.9g %.7g\n", column_seconds * (double)first, value[first],
                column_seconds * (double)next, value[first]);
        if (next < count && value[next] == 0)
            fputc('\n', file);
    }
    fputs("\n\n", file);
}

/* Writes the same as a line. Columns of 0 interrupt it. */
static void write_line(FILE *file, double column_seconds, const double *value, size_t count)
{
    fprintf(file, "0 NaN\n");
    for (size_t first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && value[next] == value[first];)
            next++;
        if (value[first] != 0)
            fprintf(file, "%.9g %.7g\n%.9g %.7g\n", column_seconds * (double)first, value[first],
                    column_seconds * (double)next, value[first]);
        else
            fputc('\n', file);
    }
    fputs("\n\n", file);
}

/* `value` can hold one number per column. */
static enum tdm_status write_memory(const struct drawing *drawing, int place, unsigned panel,
                                    double *value, struct tdm_error *err)
{
    char name[32];
    snprintf(name, sizeof(name), "%s_%u",
             tdm_place_name(&drawing->plot->topology, (enum tdm_place)place), panel + 1);
    FILE *file = tdm_picture_create(drawing->folder, name);
    const struct tdm_column *columns = drawing->columns[panel];
    double unit = (double)drawing->unit_bytes[place];
    double seconds = drawing->end_seconds / (double)drawing->column_count;
    /* Beyond the end of a shorter step there is nothing, and what was not observed is not drawn. */
    const struct tdm_plot_panel *shows = panel_at(drawing, panel);
    double end = shows->peak[place].known ? shows->end_seconds : 0;
    memset(value, 0, drawing->column_count * sizeof(*value));
    for (int level = 0; level < TDM_CATEGORIES && file != NULL; level++) {
        enum tdm_category category = stack[level];
        if (!drawing->category_used[place][category])
            continue;
        for (size_t i = 0; i < drawing->column_count && seconds * (double)i < end; i++) {
            uint64_t bytes = columns[i].value_bytes[place][category];
            if (category == TDM_RUNTIME)
                bytes += drawing->plot->runtime_bytes[place];
            value[i] += (double)bytes / unit;
        }
        write_steps(file, seconds, value, drawing->column_count);
    }
    memset(value, 0, drawing->column_count * sizeof(*value));
    for (size_t i = 0; i < drawing->column_count && seconds * (double)i < end; i++)
        value[i] = (double)drawn_allocated(drawing->plot, &columns[i], place) / unit;
    if (file != NULL)
        write_line(file, seconds, value, drawing->column_count);
    return tdm_picture_finish(drawing->folder, name, file, err);
}

/* The running sum of a lane's shares up to a group, rounded to SHARE_GRAIN. */
static double lane_height(const struct tdm_column *column, int lane, int group)
{
    double below = 0;
    double share = 0;
    for (int other = 0; other < TDM_OP_GROUPS; other++) {
        share += column->busy[lane][other];
        if (other <= group)
            below += column->busy[lane][other];
    }
    if (share > 0 && share < LEAST_SHARE)
        below *= LEAST_SHARE / share;
    return rint(below / SHARE_GRAIN) * SHARE_GRAIN;
}

static enum tdm_status write_lanes(const struct drawing *drawing, unsigned panel, double *value,
                                   struct tdm_error *err)
{
    char name[32];
    snprintf(name, sizeof(name), "lanes_%u", panel + 1);
    FILE *file = tdm_picture_create(drawing->folder, name);
    const uint32_t lane_count = drawing->plot->topology.lane_count;
    for (uint32_t row = 0; row < drawing->plot->shown_ranks * lane_count; row++) {
        const uint32_t lane = row % lane_count;
        if (!shows_lane(drawing, lane))
            continue;
        const struct tdm_column *columns = lanes_of(drawing, panel, row / lane_count);
        for (int group = 0; group < TDM_OP_GROUPS && file != NULL; group++) {
            if (!drawing->group_used[group])
                continue;
            for (size_t i = 0; i < drawing->column_count; i++)
                value[i] = lane_height(&columns[i], (int)lane, group);
            write_steps(file, drawing->end_seconds / (double)drawing->column_count, value,
                        drawing->column_count);
        }
    }
    return tdm_picture_finish(drawing->folder, name, file, err);
}

/* Shares of the step for which the lanes of a rank are busy. */
static void write_busy(const struct drawing *drawing, FILE *file, unsigned panel, uint32_t rank)
{
    const struct tdm_timeline *timeline = timeline_of(drawing, panel, rank);
    double busy[TDM_MAX_LANES] = {0};
    for (size_t i = 0; i < timeline->op_count; i++)
        busy[timeline->ops[i].lane] += timeline->ops[i].end - timeline->ops[i].start;
    for (uint32_t lane = 0; lane < drawing->plot->topology.lane_count; lane++) {
        double percent = 100 * fmin(1, busy[lane] / panel_at(drawing, panel)->end_seconds);
        if (shows_lane(drawing, lane))
            fprintf(file, percent > 0 && percent < 1 ? " <1%%" : " %.0f%%", percent);
    }
}

/* "compute h2d d2h"; of several ranks "0:compute 0:h2d 1:compute 1:h2d". */
static void write_lane_names(const struct drawing *drawing, FILE *file)
{
    for (uint32_t rank = 0; rank < drawing->plot->shown_ranks; rank++)
        for (uint32_t lane = 0; lane < drawing->plot->topology.lane_count; lane++) {
            if (!shows_lane(drawing, lane))
                continue;
            fputc(' ', file);
            if (drawing->plot->shown_ranks > 1)
                fprintf(file, "%u:", rank);
            fputs(tdm_lane_name(&drawing->plot->topology, (enum tdm_lane)lane), file);
        }
}

/* Settings. */

static bool shows_limit(const struct drawing *drawing, int place)
{
    uint64_t limit = drawing->plot->limit_bytes[place];
    double shown = place == TDM_DEVICE ? DEVICE_LIMIT_SHOWN : LIMIT_SHOWN;
    return limit > 0 && (double)limit <= shown * (double)drawing->top_bytes[place];
}

static void write_place(const struct drawing *drawing, FILE *file, int place)
{
    char name[48];
    char bytes[TDM_FORMAT_SIZE];
    const char *word = tdm_place_name(&drawing->plot->topology, (enum tdm_place)place);
    double unit = (double)drawing->unit_bytes[place];
    double top = (double)drawing->top_bytes[place];
    uint64_t limit = drawing->plot->limit_bytes[place];
    bool shown = shows_limit(drawing, place);
    if (shown)
        top = fmax(top, (double)limit);

    fprintf(file, "%s_categories = '", word);
    for (int level = 0; level < TDM_CATEGORIES; level++) {
        if (drawing->category_used[place][stack[level]])
            fprintf(file, " %s", tdm_category_name(stack[level]));
    }
    fprintf(file, "'\n%s_unit = '%s'\n%s_highest = %.9g\n", word, drawing->unit[place], word,
            top > 0 ? top / unit : 1);
    fprintf(file, "%s_limit = ", word);
    fprintf(file, shown ? "'%.9g'\n" : "''\n", (double)limit / unit);
    snprintf(name, sizeof(name), "%s_limit_text", word);
    tdm_picture_text(file, name, "limit %s", tdm_format_bytes(limit, bytes));

    for (unsigned panel = 0; panel < drawing->panel_count; panel++) {
        const struct tdm_plot_panel *shows = panel_at(drawing, panel);
        const struct tdm_timeline_peak *peak = &shows->peak[place];
        uint64_t runtime = drawing->plot->runtime_bytes[place];
        if (!peak->known) {
            fprintf(file, "%s_peak_x_%u = ''\n", word, panel + 1);
            continue;
        }
        fprintf(file, "%s_peak_x_%u = '%.9g'\n%s_peak_y_%u = '%.9g'\n", word, panel + 1,
                peak->seconds, word, panel + 1, (double)(peak->value_bytes + runtime) / unit);
        uint64_t top_bytes = 0;
        for (size_t i = 0; i < drawing->column_count; i++) {
            uint64_t allocated = drawn_allocated(drawing->plot, &drawing->columns[panel][i], place);
            if (allocated > top_bytes)
                top_bytes = allocated;
        }
        fprintf(file, "%s_top_%u = %.9g\n", word, panel + 1, (double)top_bytes / unit);
        snprintf(name, sizeof(name), "%s_peak_text_%u", word, panel + 1);
        char outside[TDM_FORMAT_SIZE];
        tdm_picture_text(file, name, "values %s%s%s%s%s",
                         tdm_format_bytes(peak->value_bytes, bytes),
                         runtime == 0 ? "" : " + runtime ",
                         runtime == 0 ? "" : tdm_format_bytes(runtime, outside),
                         shows->peak_op[place][0] == '\0' ? "" : ": ", shows->peak_op[place]);
    }
}

static void write_phases(const struct drawing *drawing, FILE *file, unsigned panel)
{
    struct tdm_phase_run runs[MOST_PHASES];
    double seconds = drawing->end_seconds / (double)drawing->column_count;
    double end = panel_at(drawing, panel)->end_seconds;
    size_t columns = (size_t)ceil(end / seconds - 1e-6);
    if (columns > drawing->column_count)
        columns = drawing->column_count;
    size_t count = tdm_phase_runs(drawing->columns[panel], columns, drawing->column_count / 100 + 1,
                                  runs, MOST_PHASES);
    fprintf(file, "phases_%u = '", panel + 1);
    for (size_t i = 0; i < count; i++)
        fprintf(file, " %s %.9g %.9g", tdm_phase_name(runs[i].phase),
                seconds * (double)runs[i].first,
                i + 1 == count ? end : seconds * (double)(runs[i].last + 1));
    fprintf(file, "'\n");
}

/* Appends "; uses device 8.31 MiB of 5.89 GiB, host 28.01 MiB of 11.77 GiB": the planned bytes, or
 * those that the driver and the system reported. */
static void write_used(const struct drawing *drawing, unsigned panel, char *facts, size_t size)
{
    const struct tdm_plot *plot = drawing->plot;
    bool predicted = drawing->sides[panel] == TDM_PREDICTED, any = false;
    unsigned used = 0;
    for (uint32_t place = 0; place < plot->topology.place_count; place++)
        used += drawing->place_used[place];
    bool is_wide = drawing->panel_count == 1 || used <= 2; /* has space for limits */
    char text[TDM_FORMAT_SIZE];
    for (uint32_t place = 0; place < drawing->plot->topology.place_count; place++) {
        uint64_t bytes = predicted ? planned_bytes(plot, place) : plot->used_bytes[place];
        uint64_t limit = plot->limit_bytes[place];
        size_t length = strlen(facts);
        if (!drawing->place_used[place] || bytes == 0)
            continue;
        snprintf(facts + length, size - length, "%s %s %s", any ? "," : "; uses",
                 tdm_place_name(&drawing->plot->topology, (enum tdm_place)place),
                 tdm_format_bytes(bytes, text));
        any = true;
        length = strlen(facts);
        if (is_wide && predicted && limit > 0 &&
            !shows_limit(drawing, place)) /* else its line shows it */
            snprintf(facts + length, size - length, " of %s", tdm_format_bytes(limit, text));
    }
}

static void write_panel(const struct drawing *drawing, FILE *file, unsigned panel)
{
    const struct tdm_plot_panel *shows = panel_at(drawing, panel);
    char name[32];
    char text[TDM_FORMAT_SIZE];
    char facts[256];
    bool unfinished = drawing->sides[panel] == TDM_MEASURED && drawing->plot->unfinished;
    snprintf(name, sizeof(name), "heading_%u", panel + 1);
    if (drawing->sides[panel] == TDM_PREDICTED)
        tdm_picture_text(file, name, "predicted");
    else
        tdm_picture_text(file, name, "measured, step %" PRId64 "%s", drawing->plot->step,
                         unfinished ? ", not finished" : "");

    snprintf(facts, sizeof(facts), "%s %s%s", unfinished ? "first" : "step",
             tdm_format_seconds(shows->end_seconds, text),
             shows->timeline.values.count > 0 ? "" : "; memory not observed");
    write_used(drawing, panel, facts, sizeof(facts));
    snprintf(name, sizeof(name), "facts_%u", panel + 1);
    tdm_picture_string(file, name, facts);
    fprintf(file, "observed_%u = %d\n", panel + 1, shows->timeline.values.count > 0);
    write_phases(drawing, file, panel);

    fprintf(file, "busy_%u = '", panel + 1);
    for (uint32_t rank = 0; rank < drawing->plot->shown_ranks; rank++)
        write_busy(drawing, file, panel, rank);
    fprintf(file, "'\n");
}

static enum tdm_status write_settings(const struct drawing *drawing, struct tdm_error *err)
{
    FILE *file = tdm_picture_settings(drawing->folder, drawing->picture);
    if (file == NULL)
        return tdm_picture_finish(drawing->folder, "settings.gp", file, err);
    tdm_picture_string(file, "title", drawing->plot->title);
    tdm_picture_string(file, "subtitle", drawing->plot->subtitle);
    fprintf(file, "panels = %u\nend = %.9g\n", drawing->panel_count, drawing->end_seconds);
    for (unsigned panel = 0; panel < drawing->panel_count; panel++)
        write_panel(drawing, file, panel);

    fprintf(file, "places = '");
    for (uint32_t place = 0; place < drawing->plot->topology.place_count; place++) {
        if (drawing->place_used[place])
            fprintf(file, " %s", tdm_place_name(&drawing->plot->topology, (enum tdm_place)place));
    }
    fprintf(file, "'\ncategories = '"); /* of all places */
    for (int level = 0; level < TDM_CATEGORIES; level++) {
        bool used = false;
        for (uint32_t place = 0; place < drawing->plot->topology.place_count; place++)
            used =
                used || (drawing->place_used[place] && drawing->category_used[place][stack[level]]);
        if (used)
            fprintf(file, " %s", tdm_category_name(stack[level]));
    }
    fprintf(file, "'\nlanes = '");
    write_lane_names(drawing, file);
    fprintf(file, "'\ngroups = '");
    for (int group = 0; group < TDM_OP_GROUPS; group++) {
        if (drawing->group_used[group])
            fprintf(file, " %s", tdm_op_group_name((enum tdm_op_group)group));
    }
    fprintf(file, "'\n");
    for (uint32_t place = 0; place < drawing->plot->topology.place_count; place++) {
        if (drawing->place_used[place])
            write_place(drawing, file, place);
    }
    return tdm_picture_finish(drawing->folder, "settings.gp", file, err);
}

static enum tdm_status write_files(void *self, const char *folder, struct tdm_error *err)
{
    struct drawing *drawing = self;
    double *value = calloc(drawing->column_count, sizeof(*value));
    if (value == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu columns of a picture",
                        drawing->column_count);
    drawing->folder = folder;
    enum tdm_status status = write_settings(drawing, err);
    for (unsigned panel = 0; panel < drawing->panel_count && status == TDM_OK; panel++) {
        for (uint32_t place = 0; place < drawing->plot->topology.place_count && status == TDM_OK;
             place++) {
            if (drawing->place_used[place])
                status = write_memory(drawing, place, panel, value, err);
        }
        if (status == TDM_OK)
            status = write_lanes(drawing, panel, value, err);
    }
    free(value);
    return status;
}

enum tdm_status tdm_plot_draw(const struct tdm_plot *plot, const struct tdm_picture *picture,
                              struct tdm_error *err)
{
    struct drawing drawing = {.plot = plot, .picture = picture};
    for (int side = 0; side < TDM_PLOT_SIDES; side++) {
        if (plot->panels[side].known)
            drawing.sides[drawing.panel_count++] = (enum tdm_plot_side)side;
    }
    enum tdm_status status = tdm_picture_check(picture, err);
    if (status == TDM_OK)
        status = look(&drawing, err);
    if (status == TDM_OK)
        status = tdm_picture_draw(picture, "timeline", write_files, &drawing, err);
    for (int panel = 0; panel < TDM_PLOT_SIDES; panel++) {
        free(drawing.columns[panel]);
        for (uint32_t rank = 0; drawing.ranks[panel] != NULL && rank < plot->shown_ranks; rank++)
            free(drawing.ranks[panel][rank]);
        free(drawing.ranks[panel]);
    }
    return status;
}
