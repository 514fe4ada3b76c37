/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and tokens for tests that execute steps. */
#include "tests/support/step_data.h"

#include "executor/state.h"
#include "schedule/layout.h"
#include "tests/support/random_schedule.h"

#include <math.h>
#include <stdlib.h>

static float draw_weight(struct tdm_dice *dice, const struct tdm_tensor *tensor)
{
    double scale = tensor->rows > 1 ? 1.0 / sqrt((double)tensor->columns) : 0.1;
    double uniform = (double)(tdm_dice_next(dice) >> 11) * 0x1p-53 * 2 - 1;
    if (tensor->role == TDM_ROLE_EMBEDDING) /* no row has a norm near 0 */
        return (float)(uniform + (uniform < 0 ? -0.5 : 0.5));
    return (float)((tdm_role_is_norm(tensor->role) ? 1.0 : 0.0) + 1.7 * scale * uniform);
}

bool tdm_step_data_draw(struct tdm_step_data *data, const struct tdm_schedule *schedule,
                        uint64_t seed)
{
    const struct tdm_model *model = schedule->model;
    bool alone = schedule->dtypes.weights == TDM_DTYPE_BF16 &&
                 schedule->dtypes.master == TDM_DTYPE_NONE; /* no copy is wider than the weights */
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed ^ 0xda7a);
    *data = (struct tdm_step_data){.model = model, .tokens = tdm_schedule_tokens(schedule)};
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        data->count += model->units[unit].elements;
    data->weights = calloc(data->count, sizeof(*data->weights));
    data->inputs = calloc(data->tokens, sizeof(*data->inputs));
    data->targets = calloc(data->tokens, sizeof(*data->targets));
    if (data->weights == NULL || data->inputs == NULL || data->targets == NULL)
        return false;
    float *at = data->weights;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        for (uint32_t t = 0; t < model->units[unit].tensor_count; t++) {
            const struct tdm_tensor *tensor = &model->tensors[model->units[unit].first_tensor + t];
            for (uint64_t i = 0; i < tensor->elements; i++) {
                float weight = draw_weight(&dice, tensor);
                at[tensor->offset + i] =
                    alone ? tdm_bf16_to_float(tdm_float_to_bf16(weight)) : weight;
            }
        }
        at += model->units[unit].elements;
    }
    for (uint64_t i = 0; i < data->tokens; i++) {
        data->inputs[i] = (int32_t)tdm_dice_roll(&dice, 0, model->vocabulary - 1);
        data->targets[i] = (int32_t)tdm_dice_roll(&dice, 0, model->vocabulary - 1);
    }
    uint64_t row = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        for (uint64_t t = 0; t < schedule->sequences[s].tokens; t++, row++)
            if (!tdm_sequence_trains(&schedule->sequences[s], t))
                data->targets[row] = TDM_NO_TARGET;
    return true;
}

void tdm_step_data_free(struct tdm_step_data *data)
{
    free(data->weights);
    free(data->inputs);
    free(data->targets);
    *data = (struct tdm_step_data){0};
}

enum tdm_status tdm_step_data_write(const struct tdm_step_data *data,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    const float *at = data->weights;
    for (uint32_t unit = 0; unit < data->model->unit_count && status == TDM_OK; unit++) {
        status = tdm_state_write(arenas, program, unit, at, err);
        at += data->model->units[unit].elements;
    }
    return status == TDM_OK
               ? tdm_state_write_tokens(arenas, program, data->inputs, data->targets, err)
               : status;
}
