/* SPDX-License-Identifier: Apache-2.0 */
/* Writes data and settings for plots/events.gp. The top of that script explains them. */
#include "plots/events_plot.h"

#include "base/units.h"

#include <inttypes.h>
#include <math.h>

#define GIB ((double)(UINT64_C(1) << 30))
/* The axis does not reach a limit above this multiple of the highest: it would flatten the rest. */
#define LIMIT_SHOWN 1.6

struct drawing {
    const struct tdm_events_plot *plot;
    const struct tdm_picture *picture;
};

static bool is_used(const struct tdm_method_timeline *t, unsigned category)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (t->points[i].live_bytes[category] > 0)
            return true;
    return false;
}

/* Writes a block for every category that occurs, the runtime first: event, running sum in GiB. The
 * last block is what the method uses: reserved bytes and runtime. */
static enum tdm_status write_stack(const struct tdm_events_plot *plot, const char *folder,
                                   struct tdm_error *err)
{
    const struct tdm_method_timeline *t = plot->timeline;
    double runtime = (double)plot->runtime_bytes / GIB;
    FILE *file = tdm_picture_create(folder, "stack");
    if (file == NULL)
        return tdm_picture_finish(folder, "stack", file, err);
    for (uint32_t i = 0; i < t->count; i++)
        fprintf(file, "%" PRIu64 " %.6g\n", t->points[i].event, runtime);
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++) {
        if (!is_used(t, c))
            continue;
        fprintf(file, "\n\n");
        for (uint32_t i = 0; i < t->count; i++) {
            uint64_t sum = plot->runtime_bytes;
            for (unsigned k = 0; k <= c; k++)
                sum += t->points[i].live_bytes[k];
            fprintf(file, "%" PRIu64 " %.6g\n", t->points[i].event, (double)sum / GIB);
        }
    }
    fprintf(file, "\n\n");
    for (uint32_t i = 0; i < t->count; i++)
        fprintf(file, "%" PRIu64 " %.6g\n", t->points[i].event,
                (double)(t->points[i].reserved_bytes + plot->runtime_bytes) / GIB);
    return tdm_picture_finish(folder, "stack", file, err);
}

static enum tdm_status write_files(void *self, const char *folder, struct tdm_error *err)
{
    const struct drawing *drawing = self;
    const struct tdm_events_plot *plot = drawing->plot;
    const struct tdm_method_timeline *t = plot->timeline;
    double peak = 0, highest = 0, limit = (double)plot->device_bytes / GIB;
    uint64_t begin = 0, peak_event = 0;
    char text[TDM_FORMAT_SIZE];
    enum tdm_status status = write_stack(plot, folder, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t i = 0; i < t->count; i++) {
        double sum = 0;
        for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
            sum += (double)t->points[i].live_bytes[c];
        if (sum > peak) {
            peak = sum;
            peak_event = t->points[i].event;
        }
        highest = fmax(highest, (double)(t->points[i].reserved_bytes + plot->runtime_bytes) / GIB);
    }
    FILE *file = tdm_picture_settings(folder, drawing->picture);
    if (file == NULL)
        return tdm_picture_finish(folder, "settings.gp", file, err);
    tdm_picture_string(file, "title", plot->title);
    tdm_picture_string(file, "subtitle", plot->subtitle);
    tdm_picture_text(file, "limit_text", "the device: %s",
                     tdm_format_bytes(plot->device_bytes, text));
    tdm_picture_text(file, "peak_text", "%s allocated", tdm_format_bytes((uint64_t)peak, text));
    fprintf(file, "peak_x = %" PRIu64 "\npeak_y = %.6g\n", peak_event,
            (peak + (double)plot->runtime_bytes) / GIB);
    fprintf(file, "highest = %.6g\nlimit = %.6g\nevents = %" PRIu64 "\nphases = '",
            limit < LIMIT_SHOWN * highest ? fmax(limit, highest) : highest, limit, t->events);
    for (unsigned p = 0; p < TDM_TORCH_PHASES; p++) {
        fprintf(file, " %s %" PRIu64 " %" PRIu64, tdm_torch_phase_name((enum tdm_torch_phase)p),
                begin, begin + t->phase_events[p]);
        begin += t->phase_events[p];
    }
    fprintf(file, "'\ncategories = 'runtime");
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        if (is_used(t, c))
            fprintf(file, " %s", tdm_method_category_name((enum tdm_method_category)c));
    fprintf(file, "'\n");
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_events_plot_draw(const struct tdm_events_plot *plot,
                                     const struct tdm_picture *picture, struct tdm_error *err)
{
    struct drawing drawing = {.plot = plot, .picture = picture};
    return tdm_picture_draw(picture, "events", write_files, &drawing, err);
}
