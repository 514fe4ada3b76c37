/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a command reads for its model and machine. */
#include "commands/model_inputs.h"

#include "base/inputs.h"
#include "machines/machine.h"
#include "models/weights.h"

enum tdm_status tdm_model_inputs_spare(const char *model, const char *machine, const char *option,
                                       const char *path, struct tdm_error *err)
{
    char files[2][4096];
    struct tdm_input inputs[2] = {{.option = "MODEL"}, {.option = "--machine"}};
    enum tdm_status status = tdm_output_check_name(option, path, err);
    if (model != NULL && status == TDM_OK) {
        status = tdm_model_path(model, files[0], sizeof(files[0]), err);
        inputs[0].path = files[0];
        inputs[0].reads = tdm_model_is_directory(model) ? tdm_weights_reads : NULL;
    }
    if (machine != NULL && status == TDM_OK) {
        status = tdm_machine_path(machine, files[1], sizeof(files[1]), err);
        inputs[1].path = files[1];
    }
    return status == TDM_OK ? tdm_inputs_spare(inputs, 2, option, path, err) : status;
}
