/* SPDX-License-Identifier: Apache-2.0 */
/* Writes data and settings for plots/loss.gp. The top of that script explains them. */
#include "plots/loss_plot.h"

#include "traces/reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct drawing {
    const struct tdm_picture *picture;
    const char *trace;
    int64_t program;
    struct tdm_trace_step_row *steps; /* of all programs */
    size_t step_count;
    struct tdm_trace_evaluation_row *evaluations;
    size_t evaluation_count;
    size_t losses, norms, validations; /* that are drawn */
    int64_t first_step, last_step;     /* of the program */
    int64_t failed_step;               /* the last one, if it is not a number; 0: none */
    const char *failed;                /* what of it; NULL: nothing */
    const char **texts;                /* [text_count] names of texts that were evaluated on */
    size_t text_count;
};

/* Lists the names of the texts, in the order in which they first come. */
static enum tdm_status list_texts(struct drawing *d, struct tdm_error *err)
{
    d->texts = calloc(d->evaluation_count + 1, sizeof(*d->texts));
    if (d->texts == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to draw it", d->trace);
    for (size_t i = 0; i < d->evaluation_count; i++) {
        const struct tdm_trace_evaluation_row *row = &d->evaluations[i];
        size_t at = 0;
        while (at < d->text_count && strcmp(d->texts[at], row->text) != 0)
            at++;
        if (at == d->text_count && row->program == d->program && isfinite(row->loss))
            d->texts[d->text_count++] = row->text;
    }
    return TDM_OK;
}

static enum tdm_status write_data(struct drawing *d, const char *folder, struct tdm_error *err)
{
    FILE *file = tdm_picture_create(folder, "data");
    if (file == NULL)
        return tdm_picture_finish(folder, "data", file, err);
    for (size_t i = 0; i < d->step_count; i++)
        if (d->steps[i].program == d->program && isfinite(d->steps[i].loss))
            d->losses +=
                fprintf(file, "%" PRId64 " %.8g\n", d->steps[i].step, d->steps[i].loss) > 0;
    fputs("\n\n", file);
    for (size_t i = 0; i < d->step_count; i++)
        if (d->steps[i].program == d->program && isfinite(d->steps[i].gradient_norm))
            d->norms += fprintf(file, "%" PRId64 " %.8g\n", d->steps[i].step,
                                d->steps[i].gradient_norm) > 0;
    for (size_t t = 0; t < d->text_count; t++) {
        fputs("\n\n", file);
        for (size_t i = 0; i < d->evaluation_count; i++)
            if (d->evaluations[i].program == d->program && isfinite(d->evaluations[i].loss) &&
                strcmp(d->evaluations[i].text, d->texts[t]) == 0)
                d->validations += fprintf(file, "%" PRId64 " %.8g\n", d->evaluations[i].step,
                                          d->evaluations[i].loss) > 0;
    }
    return tdm_picture_finish(folder, "data", file, err);
}

/* Finds which steps are drawn, and what of the last one is not a number. */
static void find_steps(struct drawing *d)
{
    for (size_t i = 0; i < d->step_count; i++) {
        const struct tdm_trace_step_row *row = &d->steps[i];
        if (row->program != d->program)
            continue;
        if (d->first_step == 0)
            d->first_step = row->step;
        d->last_step = row->step;
    }
    d->failed = tdm_trace_failed(d->steps, d->step_count);
    d->failed_step = d->failed == NULL ? 0 : d->last_step;
}

static enum tdm_status write_files(void *self, const char *folder, struct tdm_error *err)
{
    struct drawing *d = self;
    enum tdm_status status = write_data(d, folder, err);
    if (status == TDM_OK && d->losses == 0)
        status = tdm_fail(err, TDM_INPUT, "%s: has no step with a loss", d->trace);
    find_steps(d);
    FILE *file = status == TDM_OK ? tdm_picture_settings(folder, d->picture) : NULL;
    if (status != TDM_OK)
        return status;
    if (file != NULL) {
        const char *name = strrchr(d->trace, '/');
        tdm_picture_text(file, "title", "Training of %s", name == NULL ? d->trace : name + 1);
        tdm_picture_text(file, "subtitle", "%zu step%s, %zu evaluation%s", d->losses,
                         d->losses == 1 ? "" : "s", d->validations, d->validations == 1 ? "" : "s");
        fprintf(file, "norms = %zu\ntexts = %zu\n", d->norms, d->text_count);
        fprintf(file,
                "first_step = %" PRId64 "\nlast_step = %" PRId64 "\nfailed_step = %" PRId64 "\n",
                d->first_step, d->last_step, d->failed_step);
        if (d->failed != NULL)
            tdm_picture_text(file, "failed", "step %" PRId64 ": its %s is not a number",
                             d->failed_step, d->failed);
        for (size_t t = 0; t < d->text_count; t++) {
            const bool named = strcmp(d->texts[t], TDM_TEXT_UNNAMED) != 0;
            char name[32];
            snprintf(name, sizeof(name), "text_%zu", t + 1);
            tdm_picture_text(file, name, "validation%s%s", named ? ": " : "",
                             named ? d->texts[t] : "");
        }
    }
    return tdm_picture_finish(folder, "settings.gp", file, err);
}

enum tdm_status tdm_loss_plot_draw(const char *trace, const struct tdm_picture *picture,
                                   struct tdm_error *err)
{
    struct drawing d = {.picture = picture, .trace = trace};
    struct tdm_trace_reader *reader;
    enum tdm_status status = tdm_trace_reader_open(trace, &reader, err);
    if (status != TDM_OK)
        return status;
    status = tdm_trace_read_steps(reader, &d.steps, &d.step_count, err);
    if (status == TDM_OK)
        status = tdm_trace_read_evaluations(reader, &d.evaluations, &d.evaluation_count, err);
    if (status == TDM_OK && d.step_count > 0)
        d.program = d.steps[d.step_count - 1].program;
    if (status == TDM_OK)
        status = list_texts(&d, err);
    if (status == TDM_OK)
        status = tdm_picture_draw(picture, "loss", write_files, &d, err);
    free(d.texts);
    free(d.steps);
    free(d.evaluations);
    tdm_trace_reader_close(reader);
    return status;
}
