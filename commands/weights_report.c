/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the weights next to a model's config. */
#include "commands/weights_report.h"

#include "base/units.h"

enum tdm_status tdm_weights_beside(const char *model_or_path, const struct tdm_model *model,
                                   struct tdm_weights **weights, struct tdm_error *err)
{
    *weights = NULL;
    if (!tdm_model_is_directory(model_or_path) || !tdm_weights_exist(model_or_path))
        return TDM_OK;
    return tdm_weights_open(model_or_path, model, weights, err);
}

void tdm_weights_line(FILE *out, const char *title, const struct tdm_weights *weights)
{
    char dtypes[32], bytes[TDM_FORMAT_SIZE];
    if (weights != NULL)
        fprintf(out, "%s%u file%s, %u tensors of %s, %s\n", title, weights->file_count,
                weights->file_count == 1 ? "" : "s", weights->model->tensor_count,
                tdm_weights_dtypes(weights, dtypes), tdm_format_bytes(weights->bytes, bytes));
}

json_t *tdm_weights_json(const struct tdm_weights *weights)
{
    char dtypes[32];
    if (weights == NULL)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:s}", "files", (json_int_t)weights->file_count, "tensors",
                     (json_int_t)weights->model->tensor_count, "bytes", (json_int_t)weights->bytes,
                     "dtypes", tdm_weights_dtypes(weights, dtypes));
}
