/* SPDX-License-Identifier: Apache-2.0 */
/* Compares documents of a text with documents of a schedule. */
#include "tests/support/text_documents.h"

#include "schedule/schedule_check.h"
#include "tests/support/run_steps.h"

#include <math.h>

/* Copies the schedule without its documents. The copy takes them from the text. */
static enum tdm_status without_documents(const struct tdm_schedule *schedule,
                                         struct tdm_schedule **out, struct tdm_error *err)
{
    json_t *root = NULL;
    struct tdm_schedule *copy = NULL;
    enum tdm_status status = tdm_schedule_to_json(schedule, NULL, &root, err);
    if (status != TDM_OK)
        return status;
    status = tdm_schedule_from_json("text", root, &copy, err);
    json_decref(root);
    for (uint32_t s = 0; status == TDM_OK && s < copy->sequence_count; s++)
        status = tdm_sequence_divide(&copy->sequences[s], "text", UINT64_MAX, err);
    if (status == TDM_OK) {
        copy->documents_of_text = true;
        status = tdm_schedule_check(copy, "text", err);
    }
    if (status != TDM_OK) {
        tdm_schedule_free(copy);
        return status;
    }
    *out = copy;
    return TDM_OK;
}

static double difference_of(const struct tdm_steps *a, const struct tdm_steps *b,
                            enum tdm_left what)
{
    double off = 0, size = 0;
    const float *x = tdm_steps_values(a, 0, what);
    const float *y = tdm_steps_values(b, 0, what);
    for (size_t i = 0; i < a->count; i++) {
        off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        size += (double)x[i] * (double)x[i];
    }
    return size > 0 ? sqrt(off / size) : sqrt(off);
}

/* Weights are so much larger than a step's changes that they hide what moments show. */
static double difference(const struct tdm_steps *a, const struct tdm_steps *b)
{
    double most = 0;
    for (int what = 0; what < TDM_LEFTS; what++) {
        double each = difference_of(a, b, (enum tdm_left)what);
        if (!(each <= most)) /* also if it is no number */
            most = each;
        if (isnan(most))
            break;
    }
    return most;
}

enum tdm_status tdm_text_documents_compare(const struct tdm_schedule *schedule,
                                           const struct tdm_backend *backend, uint64_t seed,
                                           struct tdm_text_documents *differences,
                                           struct tdm_error *err)
{
    struct tdm_schedule *text = NULL;
    struct tdm_step_data data = {0};
    struct tdm_steps packed = {0}, taken = {0};
    *differences = (struct tdm_text_documents){0};
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        differences->documents += schedule->sequences[s].document_count;
    enum tdm_status status = without_documents(schedule, &text, err);
    if (status == TDM_OK && !tdm_step_data_draw(&data, schedule, seed))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for weights");
    if (status == TDM_OK)
        status = tdm_steps_run(schedule, backend, &data, seed, false, &packed, err);
    data.sequences = schedule->sequences;
    if (status == TDM_OK)
        status = tdm_steps_run(text, backend, &data, seed, false, &taken, err);
    if (status == TDM_OK) {
        differences->loss = fabs(packed.losses[0] - taken.losses[0]);
        differences->values = difference(&packed, &taken);
        differences->of_loss = packed.losses[0];
    }
    tdm_steps_free(&packed);
    tdm_steps_free(&taken);
    tdm_step_data_free(&data);
    tdm_schedule_free(text);
    return status;
}
